/* What dense matrices are given, where ranks share the windows (profiler/evaluate/rank_block.h): each keeps the inputs of
 * its own windows while these pass a layer, and then one of the ranks gets all of them, in the windows' order, and sums
 * them up. One of these is for the matrices that are given the same. Thread rule: as moec_ranks. */
#ifndef MOEC_COMPILER_DENSE_INPUTS_H
#define MOEC_COMPILER_DENSE_INPUTS_H

#include "compiler/fit/gptq.h"
#include "profiler/evaluate/rank_block.h"

struct moec_dense_inputs {
    struct moec_states rows; /* (tokens, n_input padded to whole lanes), owned */
    uint64_t n_row;          /* that are there */
    uint32_t n_input;
};

/* For the own windows; `work` (may be NULL) is borrowed until released. Errors: those of moec_states_create. */
MOEC_WARN_UNUSED enum moec_status moec_dense_inputs_create(const struct moec_rank_block *block,
                                                           struct moec_work_memory *work, uint32_t n_input,
                                                           struct moec_dense_inputs *out,
                                                           struct moec_error *err);
void moec_dense_inputs_release(struct moec_dense_inputs *inputs);

/* Keeps x (n_tok, stride), the next tokens of the own windows. Errors: MOEC_ERR_LIMIT for more than there are. */
MOEC_WARN_UNUSED enum moec_status moec_dense_inputs_keep(struct moec_dense_inputs *inputs,
                                                         const struct moec_rank_block *block, const float *x,
                                                         size_t stride, uint32_t n_tok,
                                                         struct moec_error *err);

/* Together: rank `owner` has all inputs then, the others none. Errors: those of moec_ranks_pass and
 * moec_states_create. */
MOEC_WARN_UNUSED enum moec_status moec_dense_inputs_collect(struct moec_dense_inputs *inputs,
                                                            const struct moec_rank_block *block,
                                                            struct moec_work_memory *work, uint32_t owner,
                                                            struct moec_error *err);

/* Adds all that is there and releases it. */
void moec_dense_inputs_sum(struct moec_dense_inputs *inputs, const struct moec_pool *pool,
                           struct moec_gptq *gptq);

/* About how many floats dense matrices are given for a token, those that share them once: in all layers, and in the
 * layer with most. For forecasts. */
struct moec_dense_input_floats {
    uint64_t all, most;
};
struct moec_dense_input_floats moec_dense_inputs_floats(const struct moec_config *config);

#endif
