/* Who computes the passes of a model over windows, and how. All is borrowed. Thread rule: plain data. */
#ifndef MOEC_PROFILER_PASS_MEANS_H
#define MOEC_PROFILER_PASS_MEANS_H

#include "profiler/ranks/ranks.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/kernels/kernels.h"

struct moec_pass_means {
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
    enum moec_arithmetic arithmetic;
    struct moec_ranks *ranks; /* that share the windows and call together; NULL = none do */
};

#endif
