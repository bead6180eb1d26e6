/* Rotary angles (RoPE, arXiv 2104.09864): how fast each pair of a head turns from position to position, and
 * the rotation itself (internal to runtime/). Pairs are half-split: dimension i turns with dimension
 * i + rotary_dim / 2; families that pair neighbours have their rows in this order when they are loaded
 * (formats/checkpoint/tensor_view.h). Pure functions. */
#ifndef MOEC_RUNTIME_ROPE_H
#define MOEC_RUNTIME_ROPE_H

#include "formats/model/config.h"

/* out (rotary_dim / 2): radians a position, F32 as transformers computes them: theta^(-2i / rotary_dim),
 * changed by the kind's rope_scaling, for texts of the length that the config has chosen. */
void moec_rope_fill(const struct moec_config *config, const struct moec_layer_kind *kind, float *out);

/* cosine and sine (rotary_dim / 2 each) of a position. */
void moec_rope_angles(const struct moec_config *config, const struct moec_layer_kind *kind,
                      const float *inverse_frequency, uint32_t position, float *cosine, float *sine);

/* What queries at a position are multiplied by in models whose late queries are larger (query_growth);
 * else 1.
 */
float moec_rope_query_factor(const struct moec_config *config, const struct moec_layer_kind *kind,
                             uint32_t position);

/* Turns rotary_dim dimensions of n_heads heads from x on; heads are head_dim floats apart. */
void moec_rope_rotate(const struct moec_layer_kind *kind, const float *cosine, const float *sine,
                      uint32_t n_heads, float *x);

#endif
