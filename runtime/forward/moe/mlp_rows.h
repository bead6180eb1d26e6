/* Rows of an MLP's matrices and their products with few or many tokens, wherever the rows stand: together, or
 * in frames of units (struct moec_mlp; internal to runtime/). Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_MLP_ROWS_H
#define MOEC_RUNTIME_MLP_ROWS_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/kernels/int8.h"

/* What products are made with: int8 NULL is the canonical arithmetic. */
struct moec_mlp_kernels {
    const struct moec_kernels *all;
    const struct moec_int8_kernels *int8;
};

/* One token that an MLP is computed for. */
struct moec_mlp_token {
    const float *x;                       /* its row */
    const struct moec_int8_span *rounded; /* x in spans, where int8 serves gate or up */
    float limit;                          /* of moec_mlp_limit */
    const float *up; /* its products with all neurons of up, which are then not computed, or NULL */
};

/* Rows of tokens, `stride` floats apart. */
struct moec_mlp_inputs {
    const float *x;
    size_t stride;
    uint32_t n;
};

/* Rows first + i, or first + some[i], i < n, of a matrix: of a chunk at most. */
struct moec_mlp_rows {
    const struct moec_matrix *matrix;
    uint32_t first, n;
    const uint8_t *some; /* NULL = all */
};

/* Gate and down rows of neurons: as struct moec_mlp_rows has them. */
struct moec_mlp_pairs {
    struct moec_matrix gate, down;
    uint32_t first, n;
    const uint8_t *some;
};

/* Those of neurons neuron + i, or neuron + some[i], i < n, which stand in `room` (a chunk's floats) where
 * they are in frames: a row takes no more than its floats would, and kernels read rows that are evenly apart.
 */
struct moec_mlp_pairs moec_mlp_pairs_of(const struct moec_mlp *mlp, uint32_t neuron, const uint8_t *some,
                                        uint32_t n, float *room);

static inline struct moec_mlp_rows moec_mlp_gate_rows(const struct moec_mlp_pairs *pairs)
{
    return (struct moec_mlp_rows){&pairs->gate, pairs->first, pairs->n, pairs->some};
}

static inline struct moec_mlp_rows moec_mlp_down_rows(const struct moec_mlp_pairs *pairs)
{
    return (struct moec_mlp_rows){&pairs->down, pairs->first, pairs->n, pairs->some};
}

/* Rows of gate or up, as the gate of pairs. */
struct moec_mlp_pairs moec_mlp_up_or_gate(const struct moec_mlp *mlp, struct moec_mlp_rows rows, float *room);

/* Whether products with the matrix are those of integers. */
static inline bool moec_mlp_serves(const struct moec_mlp_kernels *kernels, const struct moec_matrix *matrix)
{
    return kernels->int8 != NULL && moec_int8_serves(matrix->codec);
}

/* Whether rows of this matrix of the MLP stand in frames: of gate and down. */
static inline bool moec_mlp_is_framed(const struct moec_mlp *mlp, const struct moec_matrix *matrix)
{
    return mlp->frames.of_units != NULL && matrix != &mlp->up;
}

/* weights (n, stride) = rows of gate or down, which stand in frames; missing ones are zeros. */
void moec_mlp_decode_framed(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                            struct moec_mlp_rows rows, float *weights, size_t stride);

/* y (n) = products of one token with n rows. */
void moec_mlp_dot_one(const struct moec_mlp_kernels *kernels, struct moec_mlp_rows rows,
                      const struct moec_mlp_token *token, float *y);
/* y (columns) = the sum of n rows times h (n). */
void moec_mlp_sum_one(const struct moec_mlp_kernels *kernels, struct moec_mlp_rows rows, const float *h,
                      float *y);
/* y (inputs, n) = canonical products of tokens with n rows of up or gate; `weights` (n, stride) is room. */
void moec_mlp_dot_many(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                       struct moec_mlp_rows rows, struct moec_mlp_inputs inputs, float *weights, float *y);

#endif
