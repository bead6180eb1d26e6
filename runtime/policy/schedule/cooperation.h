/* Where an expert is computed whose record is in the process's memory but not in a GPU's: there, after a
 * copy, or by the processor, whose outputs are small (Fiddler, arXiv:2402.07033; HOBBIT's cooperative mode).
 * The runtime and the simulator share it. Thread rule: pure function. */
#ifndef MOEC_RUNTIME_COOPERATION_H
#define MOEC_RUNTIME_COOPERATION_H

#include <stdbool.h>

/* Tokens of a batch, at most, of which the processor computes experts. */
#define MOEC_COOPERATION_TOKENS 16u

/* When each of the two could begin with it, and what it takes: all in ns on one clock. */
struct moec_cooperation {
    double now_ns;
    double cpu_free_ns, cpu_ns; /* of the processor, for all tokens that take the expert */
    double bus_free_ns, copy_ns;
    double gpu_ns;
};

/* Whether the processor is done with it before the device would be. */
static inline bool moec_cooperation_takes_cpu(const struct moec_cooperation *of)
{
    const double cpu_from_ns = of->cpu_free_ns > of->now_ns ? of->cpu_free_ns : of->now_ns,
                 bus_from_ns = of->bus_free_ns > of->now_ns ? of->bus_free_ns : of->now_ns;
    return cpu_from_ns + of->cpu_ns < bus_from_ns + of->copy_ns + of->gpu_ns;
}

#endif
