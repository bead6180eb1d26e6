/* Experts and dense matrices at the codecs of a search: numbers, fits, errors and harm. Thread rule: one
 * thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_VARIANTS_H
#define MOEC_COMPILER_COMPILE_VARIANTS_H

#include "compiler/compile/compile_run.h"

/* The codecs that it offers, at their numbers; other entries stay. And whether experts may have a number. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_further_codecs(struct moec_codec codecs[static MOEC_CODEC_TABLE], struct moec_error *err);
bool moec_compile_is_for_experts(uint32_t number);
/* The codec in which experts are looked at before they are fitted: one that is quickly encoded, and whose
 * error is about that of fitted codes of 2 bits. Its number is one that no plan has. */
#define MOEC_COMPILE_LOOK_NUMBER (MOEC_CODEC_TABLE - 1u)
MOEC_WARN_UNUSED enum moec_status moec_compile_look_codec(struct moec_codec *codec, struct moec_error *err);
/* The number with the fewest bits that dense matrices may have. */
uint32_t moec_compile_smallest_dense(void);

/* Squared error of a projection of an expert at a number over its outputs' energy, or over its noise
 * (moec_expert_fit_noise); negative where it was not fitted. */
double moec_compile_expert_error(const struct moec_compile_run *run, uint32_t ordinal, uint32_t expert,
                                 enum moec_projection projection, uint32_t number, bool over_noise);
/* Fits experts at what `wanted` says (struct moec_expert_fit_request), or all; beside what was fitted
 * before. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_fit_experts(struct moec_compile_run *run, const struct moec_compile_part *part,
                         const uint8_t *wanted, const struct moec_scorer_watch *also, struct moec_error *err);
/* Measures harm: of experts where `experts` (struct moec_harm_request) is NULL, with `is_look` before they
 * are fitted, and with `has_dense` of dense matrices. `expert_error` as in struct moec_harm_errors. */
struct moec_compile_harm {
    const double *experts;
    const uint8_t *numbers; /* (n_number) of experts, and */
    const uint32_t *bits;   /* their bits; NULL: those offered */
    uint32_t n_number;
    bool has_dense, is_look;
    double (*expert_error)(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                           uint32_t number);
};
MOEC_WARN_UNUSED enum moec_status moec_compile_measure_harm(struct moec_compile_run *run,
                                                            const struct moec_compile_harm *what,
                                                            struct moec_harm *harm, struct moec_error *err);

#endif
