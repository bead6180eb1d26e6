/* Coverage: whether the calibration data says enough about every expert. Numbers and the same in words.
 *
 * An interval over windows means little when few windows reach the expert: below MOEC_COVERAGE_WINDOWS
 * windows or MOEC_COVERAGE_TOKENS tokens it is called rarely seen. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_COVERAGE_H
#define MOEC_PROFILER_COVERAGE_H

#include "formats/profile/profile.h"
#include "profiler/common/paragraphs.h"

#define MOEC_COVERAGE_WINDOWS 10
#define MOEC_COVERAGE_TOKENS  30
#define MOEC_COVERAGE_LISTED  16
#define MOEC_COVERAGE_TARGETS 3 /* 1, 2 and 5 % */

struct moec_coverage_expert {
    uint32_t layer; /* of the model */
    uint32_t expert;
    uint64_t n_token;
    uint32_t n_window;
};

struct moec_coverage {
    uint32_t n_window;
    uint64_t n_token;   /* that the router saw */
    uint32_t n_expert;  /* of all MoE layers */
    double even_tokens; /* what each expert would get if load were even */
    uint64_t min_tokens, median_tokens, max_tokens;
    uint32_t n_unreached; /* moec_profile_expert_reached says no */
    uint32_t n_rare;      /* reached, but rarely seen */
    uint32_t n_listed;
    struct moec_coverage_expert listed[MOEC_COVERAGE_LISTED]; /* unreached and rare ones, the rarest first */
    /* Windows in all after which every expert that was reached would be seen often enough, at the rate seen
     * so far; n_window when all are, 0 when it cannot be said. */
    uint64_t windows_for_rare;
    /* For each allowed loss: the smallest uniform bitwidth whose loss is under it (0 = none), and how many
     * windows would bring the upper end of its interval under it too (moec_loss_windows_needed). */
    double targets[MOEC_COVERAGE_TARGETS];
    uint32_t target_bits[MOEC_COVERAGE_TARGETS];
    uint64_t target_windows[MOEC_COVERAGE_TARGETS];
    /* At the lowest profiled bitwidth: windows after which nine of ten reached experts would differ from the
     * baseline beyond noise, at the effects seen so far;
     * 0 when it cannot be said or sensitivities are estimates. */
    uint32_t difference_bits;
    uint64_t windows_for_differences;
};

/* Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_coverage_make(const struct moec_profile *profile,
                                                     struct moec_coverage *coverage, struct moec_error *err);

void moec_coverage_describe(const struct moec_profile *profile, const struct moec_coverage *coverage,
                            struct moec_paragraphs *paragraphs);

#endif
