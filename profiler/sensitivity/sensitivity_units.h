/* The sensitivity sweep in units of work (internal to the sweep): what of it the run before has finished, and
 * how it is kept.
 *
 * A unit is the baseline on some windows, or some variants of one MoE layer on some windows. Variants are
 * numbered in the order of the sweep, v = b * E + e, and finished in that order. Nothing depends on how
 * windows were grouped: a run with other working memory continues with the same windows. */
#ifndef MOEC_PROFILER_SENSITIVITY_UNITS_H
#define MOEC_PROFILER_SENSITIVITY_UNITS_H

#include "profiler/sensitivity/sensitivity.h"

/* W windows, S MoE layers, E experts, B bitwidths. */
struct moec_sensitivity_units {
    struct moec_units *units; /* borrowed, may be NULL */
    const char *name;         /* of the sweep, borrowed: its units are "name/baseline" and "name/variants" */
    struct moec_ranks *ranks; /* that do the same work, borrowed; NULL = none */
    uint32_t n_window, n_moe, n_expert, n_bits;
    uint8_t *baseline;  /* (W), owned: 1 = the baseline is measured */
    uint32_t *variants; /* (W, S), owned: so many variants of the layer are */
    uint64_t extra;     /* multiply-adds of what was found that no plan names before it is done */
};

/* A unit of variants. */
struct moec_sensitivity_range {
    uint32_t s;
    uint32_t first_window, n_window;
    uint32_t first_variant, n_variant;
    uint64_t extra;         /* of its multiply-adds: the layer's trace and the changed experts themselves */
    uint64_t multiply_adds; /* all of them */
};

/* Takes what is there into `result`, its multiply_adds included; together, and then on all ranks. Errors:
 * MOEC_ERR_FORMAT when units do not fit the job or each other, MOEC_ERR_MEMORY. Released by the caller in
 * every case. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_units_restore(struct moec_sensitivity_units *kept,
                                                                 struct moec_sensitivity *result,
                                                                 struct moec_error *err);
void moec_sensitivity_units_release(struct moec_sensitivity_units *kept);

/* Keeps the baseline of windows first .. first + n - 1. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_units_keep_baseline(struct moec_sensitivity_units *kept,
                                                                       const struct moec_sensitivity *result,
                                                                       uint32_t first, uint32_t n,
                                                                       uint64_t multiply_adds,
                                                                       struct moec_error *err);
/* Keeps variants. `reached` (E) counts the tokens of these windows that chose each expert of the layer; it
 * goes with the first variants of a layer. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_units_keep(struct moec_sensitivity_units *kept,
                                                              const struct moec_sensitivity *result,
                                                              const struct moec_sensitivity_range *range,
                                                              const uint64_t *reached,
                                                              struct moec_error *err);

/* Variants of layer s that are done on window w. */
static inline uint32_t *moec_sensitivity_units_variants(const struct moec_sensitivity_units *kept, uint32_t w,
                                                        uint32_t s)
{
    return &kept->variants[(size_t)w * kept->n_moe + s];
}

/* Whether the same is done on both windows. */
bool moec_sensitivity_units_alike(const struct moec_sensitivity_units *kept, uint32_t a, uint32_t b);
/* Whether everything is done on this window. */
bool moec_sensitivity_units_complete(const struct moec_sensitivity_units *kept, uint32_t w);

#endif
