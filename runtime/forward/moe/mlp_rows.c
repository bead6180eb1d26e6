/* Rows in frames are read where kernels want them: few are copied to a chunk's room at even steps, encoded as
 * they are; many are decoded there one by one, unless the kernel decodes parts itself. */
#include "runtime/forward/moe/mlp_rows.h"

#include "runtime/forward/context/steps.h"

#include <string.h>

struct moec_mlp_pairs moec_mlp_pairs_of(const struct moec_mlp *mlp, uint32_t neuron, const uint8_t *some,
                                        uint32_t n, float *room)
{
    struct moec_mlp_pairs rows = {mlp->gate, mlp->down, neuron, n, some};
    if (mlp->frames.of_units == NULL)
        return rows;
    const size_t stride = mlp->down.stride_bytes;
    uint8_t *to = (uint8_t *)room;
    rows = (struct moec_mlp_pairs){.gate = mlp->gate, .down = mlp->down, .n = n};
    rows.gate.data = to;
    rows.down.data = to + mlp->frames.down_offset;
    rows.gate.rows = rows.down.rows = n;
    for (uint32_t i = 0; i < n; i++, to += stride) {
        const uint8_t *from = moec_mlp_framed_pair(mlp, neuron + (some != NULL ? some[i] : i));
        if (from != NULL)
            memcpy(to, from, stride);
        else
            memset(to, 0, stride);
    }
    return rows;
}

struct moec_mlp_pairs moec_mlp_up_or_gate(const struct moec_mlp *mlp, struct moec_mlp_rows rows, float *room)
{
    if (rows.matrix == &mlp->gate)
        return moec_mlp_pairs_of(mlp, rows.first, NULL, rows.n, room);
    return (struct moec_mlp_pairs){.gate = *rows.matrix, .first = rows.first, .n = rows.n};
}

void moec_mlp_decode_framed(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                            struct moec_mlp_rows rows, float *weights, size_t stride)
{
    const struct moec_matrix *matrix = rows.matrix;
    struct moec_matrix row = *matrix;
    row.rows = 1;
    for (uint32_t i = 0; i < rows.n; i++, weights += stride) {
        const uint8_t *pair = moec_mlp_framed_pair(mlp, rows.first + i);
        if (pair == NULL) {
            memset(weights, 0, stride * sizeof *weights);
            continue;
        }
        row.data = pair + (matrix == &mlp->down ? mlp->frames.down_offset : 0);
        moec_forward_decode(kernels, &row, 0, 1, weights, stride);
    }
}

void moec_mlp_dot_one(const struct moec_mlp_kernels *kernels, struct moec_mlp_rows rows,
                      const struct moec_mlp_token *token, float *y)
{
    if (moec_mlp_serves(kernels, rows.matrix))
        kernels->int8->dot(rows.matrix, rows.first, rows.some, rows.n, &token->rounded, 1, y, rows.n);
    else if (rows.some != NULL)
        kernels->all->dot_some(rows.matrix, rows.first, rows.some, rows.n, token->x, y);
    else
        kernels->all->dot_encoded(rows.matrix, rows.first, rows.n, token->x, y);
}

void moec_mlp_sum_one(const struct moec_mlp_kernels *kernels, struct moec_mlp_rows rows, const float *h,
                      float *y)
{
    const struct moec_matrix *matrix = rows.matrix;
    if (moec_mlp_serves(kernels, matrix))
        kernels->int8->sum_chunk(matrix, rows.first, rows.some, rows.n, h, rows.n, 1, y, matrix->columns);
    else if (rows.some != NULL)
        kernels->all->sum_chunk_some(matrix, rows.first, rows.some, rows.n, h, y);
    else
        kernels->all->sum_chunk_encoded(matrix, rows.first, rows.n, h, y);
}

void moec_mlp_dot_many(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                       struct moec_mlp_rows rows, struct moec_mlp_inputs inputs, float *weights, float *y)
{
    const struct moec_matrix *matrix = rows.matrix;
    if (!moec_mlp_is_framed(mlp, matrix) || moec_kernels_decode_parts(matrix->codec)) {
        const struct moec_mlp_pairs pair = moec_mlp_up_or_gate(mlp, rows, weights);
        kernels->dot_tokens(&pair.gate, pair.first, rows.n, inputs.x, inputs.stride, inputs.n, weights, y,
                            rows.n);
        return;
    }
    moec_mlp_decode_framed(kernels, mlp, rows, weights, inputs.stride);
    kernels->dot(inputs.x, inputs.stride, inputs.n, weights, inputs.stride, rows.n, matrix->columns, y,
                 rows.n);
}
