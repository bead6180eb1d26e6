/* What moec.variants() offers a policy. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_OFFER_H
#define MOEC_COMPILER_COMPILE_OFFER_H

#include "compiler/compile/compile_run.h"

/* Fits experts and dense matrices by GPTQ to the search part and measures what each variant costs, at the
 * first call; `context` is the run. Errors: those of moec_expert_fit_create, moec_dense_fit_create and
 * moec_harm_measure. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_variants(void *context, const struct moec_policy_variants **out, struct moec_error *err);
void moec_compile_variants_release(struct moec_compile_run *run);

#endif
