/* Memory that this process may still take: what the system can hand out now, or what is left of the limit of
 * a memory control group that the process is in (versions 1 and 2), or of one above it, if that is less;
 * pages of files count as free in both, as the kernel gives them up first. Thread rule: a plain function. */
#ifndef MOEC_PROFILER_AVAILABLE_MEMORY_H
#define MOEC_PROFILER_AVAILABLE_MEMORY_H

#include <stdint.h>

/* Bytes, 0 where the system does not say. `proc` and `cgroup` are the folders "/proc" and "/sys/fs/cgroup".
 */
uint64_t moec_available_bytes(const char *proc, const char *cgroup);

#endif
