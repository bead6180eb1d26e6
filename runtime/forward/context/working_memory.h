/* The working memory of a forward pass (runtime/forward/context/context.h): made, grown for an arithmetic or a
 * predictor, moved to and from a device, released. Thread rule: as struct moec_forward says. */
#ifndef MOEC_RUNTIME_WORKING_MEMORY_H
#define MOEC_RUNTIME_WORKING_MEMORY_H

#include "runtime/forward/context/context.h"

/* Allocates working memory for batches of up to max_tokens; afterwards nothing allocates. The byte count for
 * a budget is known before: moec_forward_scratch_bytes. */
uint64_t moec_forward_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads);
MOEC_WARN_UNUSED enum moec_status moec_forward_init(struct moec_forward *forward,
                                                    const struct moec_model *model,
                                                    const struct moec_kernels *kernels, int n_threads,
                                                    struct moec_experts *experts, uint32_t max_tokens,
                                                    struct moec_error *err);
void moec_forward_release(struct moec_forward *forward);

/* From now on the pass keeps all neurons of routed experts, or leaves out some by `sparsity`, which is
 * borrowed. Errors: a device's. */
void moec_forward_keep_all(struct moec_forward *forward);
MOEC_WARN_UNUSED enum moec_status
moec_forward_leave_out(struct moec_forward *forward, struct moec_sparsity *sparsity, struct moec_error *err);

/* Of a copy: the pass computes in the process's memory, as an inputs hook needs it, with rows there; where it
 * was in an arithmetic of the device, canonically. */
void moec_forward_stay(struct moec_forward *forward);
/* Of a copy: the pass has another model of the same config and offload, or another source of experts until
 * moec_forward_return_experts of the copy. Errors: MOEC_ERR_BUDGET for a model that found no room on a device
 * whose arithmetic the pass has; the device's. */
MOEC_WARN_UNUSED enum moec_status
moec_forward_take_model(struct moec_forward *forward, const struct moec_model *model, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status
moec_forward_take_experts(struct moec_forward *forward, struct moec_experts *experts, struct moec_error *err);
void moec_forward_return_experts(struct moec_forward *forward);

/* Products from here on in this arithmetic, for which it allocates moec_forward_arithmetic_bytes more. Before
 * the forward pass is copied. Errors: MOEC_ERR_UNSUPPORTED for one that is not computed there. */
uint64_t moec_forward_arithmetic_bytes(const struct moec_config *config, uint32_t max_tokens,
                                       enum moec_arithmetic arithmetic);
MOEC_WARN_UNUSED enum moec_status moec_forward_use_arithmetic(struct moec_forward *forward,
                                                              enum moec_arithmetic arithmetic,
                                                              struct moec_error *err);

/* Answers of routers from here on carry what a learned predictor, which is borrowed, makes of their inputs,
 * for sources that want it and for the trace. Not with a backend, whose inputs are in its own memory. Before
 * the forward pass is copied. */
MOEC_WARN_UNUSED enum moec_status moec_forward_use_predictor(struct moec_forward *forward,
                                                             const struct moec_expert_predictor *predictor,
                                                             struct moec_error *err);

/* Answers of routers from here on carry their logits, for the trace; takes moec_forward_logits_bytes more.
 * Before the forward pass is copied. */
uint64_t moec_forward_logits_bytes(const struct moec_config *config, uint32_t max_tokens);
MOEC_WARN_UNUSED enum moec_status moec_forward_keep_logits(struct moec_forward *forward,
                                                           struct moec_error *err);

#endif
