/* What sensitivities are of, measured or estimated, and who computes the passes. Everything is borrowed.
 * Thread rule: plain data. */
#ifndef MOEC_PROFILER_SUBJECT_H
#define MOEC_PROFILER_SUBJECT_H

#include "profiler/evaluate/rank_windows.h"
#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/weights/model.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/kernels/kernels.h"

struct moec_sensitivity_subject {
    const struct moec_model *model; /* of the checkpoint behind `variants` */
    struct moec_variants *variants;
    const struct moec_windows *windows;
    uint32_t baseline_bits;
    const uint32_t *bits; /* (n_bits) other bitwidths */
    uint32_t n_bits;
};

struct moec_pass_means {
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
    enum moec_arithmetic arithmetic;
    struct moec_ranks *ranks; /* that share the windows and call together; NULL = none do */
};

#endif
