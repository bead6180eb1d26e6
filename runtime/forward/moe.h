/* The experts' half of a MoE layer: router, routed experts from their source, shared expert, weighted sum
 * (internal to runtime/).
 *
 * Experts are acquired in the order that their source wants, as many together as the source lets be held and
 * has ready. When all that a batch needs are held at once, it is computed block by block of tokens, so that a
 * block's expert outputs are summed while they are still in the cache; otherwise outputs of the whole batch
 * wait for the last expert. Each expert is acquired once either way, and the bits are the same. */
#ifndef MOEC_RUNTIME_MOE_H
#define MOEC_RUNTIME_MOE_H

#include "runtime/forward/forward.h"

/* moec_forward_mlp for a layer with experts, whose `weights` are held; n_tok is within the forward pass's
 * limit. */
MOEC_WARN_UNUSED enum moec_status moec_moe_run(struct moec_forward *forward, const struct moec_layer *weights,
                                               uint32_t layer, uint32_t n_tok, float *hidden,
                                               const struct moec_mlp_trace *trace, struct moec_error *err);

#endif
