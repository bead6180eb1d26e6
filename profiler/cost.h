/* Offline cost in multiply-adds, counted from the model's dimensions (design, "Words with one meaning": a
 * pass).
 *
 * Counted: all projections, products of queries with keys and of weights with values over the positions that
 * a token sees, router, the top-k experts, shared expert with its gate, the sum of expert outputs, dense
 * MLPs, head. Not counted: norms, rotation, exp, decoding of weights, embedding look-ups. Thread rule: pure
 * functions. */
#ifndef MOEC_PROFILER_COST_H
#define MOEC_PROFILER_COST_H

#include "profiler/windows.h"

/* Attention of one layer for n tokens of one sequence at positions first_position.. */
uint64_t moec_cost_attention(const struct moec_config *config, uint32_t first_position, uint32_t n);
/* MLP of one layer, dense or with experts, for n tokens. */
uint64_t moec_cost_mlp(const struct moec_config *config, uint32_t layer, uint64_t n);
/* One routed expert for n tokens. */
uint64_t moec_cost_expert(const struct moec_config *config, uint64_t n);
/* The head for n tokens. */
uint64_t moec_cost_head(const struct moec_config *config, uint64_t n);

/* Layers first_layer.. and the head for n tokens of one sequence at positions first_position.. */
uint64_t moec_cost_from_layer(const struct moec_config *config, uint32_t first_layer, uint32_t first_position,
                              uint32_t n);

/* One pass: a full evaluation of the windows. A window's last token is a target only and never computed. */
uint64_t moec_cost_pass(const struct moec_config *config, const struct moec_windows *windows);

#endif
