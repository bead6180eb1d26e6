/* Offline cost in multiply-adds, counted from the model's dimensions (design, "Words with one meaning": a
 * pass).
 *
 * Counted: all projections, products of queries with keys and of weights with values over the positions that
 * a token sees, router, the top-k experts, shared expert with its gate, the sum of expert outputs, dense
 * MLPs, head. Not counted: norms, rotation, exp, decoding of weights, embedding look-ups.
 * Thread rule: pure functions. */
#ifndef MOEC_PROFILER_COST_H
#define MOEC_PROFILER_COST_H

#include "profiler/evaluate/windows.h"

/* Self-attention of one layer of a decoder for n tokens of one sequence at positions first_position.., or
 * what a running layer has instead. */
uint64_t moec_cost_attention(const struct moec_config *config, uint32_t layer, uint32_t first_position,
                             uint32_t n);
/* That of one layer of an encoder, where every token sees all n. */
uint64_t moec_cost_encoder_attention(const struct moec_config *config, uint32_t layer, uint32_t n);
/* Of one layer of a decoder with an encoder:
 * keys and values of the source, and attention of n tokens to them. */
uint64_t moec_cost_source_keys(const struct moec_config *config, uint32_t layer, uint32_t n_source);
uint64_t moec_cost_cross_attention(const struct moec_config *config, uint32_t layer, uint32_t n_source,
                                   uint32_t n);
/* MLP of one layer, dense or with experts, for n tokens. */
uint64_t moec_cost_mlp(const struct moec_config *config, uint32_t layer, uint64_t n);
/* One routed expert for n tokens. */
uint64_t moec_cost_expert(const struct moec_config *config, uint64_t n);
/* The head for n tokens. */
uint64_t moec_cost_head(const struct moec_config *config, uint64_t n);

/* One layer without the MLP for one sequence: all of its source in an encoder's layer; in a decoder's its n
 * tokens at positions first_position.., with the keys and values of the source.
 * n_source is 0 without an encoder. */
uint64_t moec_cost_mixing(const struct moec_config *config, uint32_t layer, uint32_t n_source,
                          uint32_t first_position, uint32_t n);

/* Layers first_layer.. and the head for one sequence, as above. */
uint64_t moec_cost_from_layer(const struct moec_config *config, uint32_t first_layer, uint32_t n_source,
                              uint32_t first_position, uint32_t n);

/* What follows from a change of a layer's output in one sequence: the later layers, all of the source and of
 * the n tokens where the layer is an encoder's, else the n tokens at positions first_position.. alone, and
 * the head. */
uint64_t moec_cost_after_layer(const struct moec_config *config, uint32_t layer, uint32_t n_source,
                               uint32_t first_position, uint32_t n);

/* One pass: a full evaluation of the windows. A window's last token is a target only and never computed. */
uint64_t moec_cost_pass(const struct moec_config *config, const struct moec_windows *windows);
/* The same without the head: what the losses of the original share with its routing. */
uint64_t moec_cost_layers(const struct moec_config *config, const struct moec_windows *windows);

#endif
