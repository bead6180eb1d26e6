/* A token's row of scratch in latent attention (latent.h), each part padded to whole lanes:
 *
 *   absorbed queries (n_head, latent_dim + rotary_dim), later sums of latents in their place
 *   | queries (n_head, head_dim), later outputs (n_head, value_dim) | latent of queries (q_latent_dim)
 *
 * Functions of the layer's kind alone; internal to runtime/. */
#ifndef MOEC_RUNTIME_LATENT_ROW_H
#define MOEC_RUNTIME_LATENT_ROW_H

#include "formats/model/config.h"

/* Where the row holds its queries or outputs, and its latent of queries, in floats; and all of them. */
size_t moec_latent_queries(const struct moec_layer_kind *kind);
size_t moec_latent_query_latent(const struct moec_layer_kind *kind);
size_t moec_latent_token_floats(const struct moec_layer_kind *kind);

#endif
