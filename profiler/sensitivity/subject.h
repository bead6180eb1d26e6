/* What sensitivities are of, measured or estimated. Everything is borrowed. Thread rule: plain data. */
#ifndef MOEC_PROFILER_SUBJECT_H
#define MOEC_PROFILER_SUBJECT_H

#include "profiler/evaluate/variants.h"
#include "profiler/evaluate/windows.h"
#include "runtime/forward/weights/model.h"

struct moec_sensitivity_subject {
    const struct moec_model *model; /* of the checkpoint behind `variants` */
    struct moec_variants *variants;
    const struct moec_windows *windows;
    uint32_t baseline_bits;
    const uint32_t *bits; /* (n_bits) other bitwidths */
    uint32_t n_bits;
};

#endif
