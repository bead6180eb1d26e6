/* Dense weights: which bitwidths to try, what they become, and the choice among them. Thread rule: one
 * thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_DENSE_H
#define MOEC_COMPILER_COMPILE_DENSE_H

#include "compiler/compile/compile_run.h"

/* Fills dense_bits and has_f32. Errors: MOEC_ERR_USAGE for bits that the checkpoint does not have. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_list(struct moec_compile_run *run,
                                                          struct moec_error *err);

/* Encodes dense weights by GPTQ on the search part, if the options ask for it. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_fit(struct moec_compile_run *run,
                                                         struct moec_error *err);
/* Gives the bundle dense weights of these bits: sets `compiled`, `paths` and `plan`. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_bind(struct moec_compile_run *run, uint32_t bits,
                                                          struct moec_error *err);
void moec_compile_dense_unbind(struct moec_compile_run *run);
/* Searches with each of dense_bits and binds the one that leaves the smallest bundle within the target
 * (EdgeMoE III-B, "Non-expert weights quantization decision"). Errors: MOEC_ERR_TARGET when none does. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_choose(struct moec_compile_run *run,
                                                            struct moec_error *err);

#endif
