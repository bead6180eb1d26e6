/* Latent attention (MLA, DeepSeek-V2, arXiv 2405.04434, section 2.1): the products around a softmax over
 * latents.
 *
 * Keys and values of all heads are products of one latent c of each position, k_h = K_h c and v_h = V_h c.
 * They are never made, in prefill as little as in decoding: since q . (K_h c) = (K_h^T q) . c, queries are
 * multiplied by K_h^T first ("absorbed"), attention then works on latents as on one key/value head, and what
 * it gives is multiplied by V_h. So a position keeps latent_dim + rotary_dim floats, whatever the heads.
 *
 * latent_row.h has a token's row of scratch.
 *
 * Internal to runtime/; functions work on tokens 0 .. n_tok - 1 of the scratch, on all threads. */
#ifndef MOEC_RUNTIME_LATENT_H
#define MOEC_RUNTIME_LATENT_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/latent_row.h"

/* Of the norms of both latents, whatever the model's other norms have. */
#define MOEC_LATENT_NORM_EPS 1e-6f

/* Absorbs queries, whose rotated parts are rotated already. */
void moec_latent_absorb(const struct moec_forward *forward, const struct moec_layer_kind *kind,
                        const struct moec_matrix *kv_up, uint32_t n_tok);
/* Makes outputs of the sums of latents, zero up to whole lanes. */
void moec_latent_expand(const struct moec_forward *forward, const struct moec_layer_kind *kind,
                        const struct moec_matrix *kv_up, uint32_t n_tok);

#endif
