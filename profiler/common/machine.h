/* What the machine is called and has, as the system says. Thread rule: any thread. */
#ifndef MOEC_PROFILER_MACHINE_H
#define MOEC_PROFILER_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* The processor's name in plain ASCII, "unknown" where the system does not say. */
void moec_machine_processor(char *text, size_t capacity);

/* Bytes of memory that the machine has; 0 where the system does not say. */
uint64_t moec_machine_memory_bytes(void);

/* Processors that are online, at least 1. */
uint32_t moec_machine_processor_count(void);

/* Processor seconds that all programs have taken since the machine started, and those that a virtual machine had to wait
 * for; negative where the system does not say. `proc` is the folder "/proc". */
double moec_machine_busy_seconds(const char *proc);

#endif
