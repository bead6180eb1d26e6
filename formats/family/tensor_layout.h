/* How tensors of files hold the matrices of a model: what a family's row says of each, and what a view of a
 * tensor (formats/checkpoint/tensor_view.h) undoes. Thread rule: plain data. */
#ifndef MOEC_FORMATS_TENSOR_LAYOUT_H
#define MOEC_FORMATS_TENSOR_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

/* Heads that take turns: output `first` and those behind it are n_group x n_each heads of `head` outputs, and
 * head number group * n_each + i is stored as head number i * n_group + group. head 0: none do. */
struct moec_tensor_tiles {
    uint32_t first, head, n_group, n_each;
    bool are_inputs; /* heads of inputs instead */
};

/* How a tensor holds a matrix (rows = outputs, columns = inputs). Zero: the tensor is the matrix. */
struct moec_tensor_layout {
    bool is_stacked;    /* a first dimension counts experts */
    bool is_transposed; /* (inputs, outputs) */
    /* The matrix is part `part` of n_part with equally many outputs, fused along the outputs: one after the
     * other, or taking turns output by output. n_part 0: it stands alone. */
    bool is_interleaved;
    uint8_t part, n_part;
    bool is_row_fused; /* the parts share each row instead: (rows, n_part x columns) */
    /* Of queries and keys: the two coordinates of each rotated pair stand side by side, where the engine
     * wants all first ones before all second ones (moec_tensor_view_split_pairs). */
    bool has_pairs;
    /* The matrix comes in blocks of block_rows outputs; the first begins at output block_first of the tensor,
     * and each block_step outputs after the one before. The tensor has block_step outputs for each block.
     * block_rows 0: its outputs are those of the tensor. */
    uint32_t block_rows, block_first, block_step;
    bool is_convolution; /* (channels, 1, positions) */
    /* Of a vector: whatever dimensions its weights are given. Of a matrix: its inputs are the last one. */
    bool is_flat;
    struct moec_tensor_tiles tiles;
    bool is_four;    /* of a vector of n weights: (1, 1, n, 1), which is_flat reads */
    bool is_row;     /* of a vector of n weights: (1, n) */
    bool adds_one;   /* 1 is added to each weight: norms that are stored as what they differ from 1 by */
    bool takes_log;  /* stored are -exp(weight) */
    bool is_integer; /* whole numbers, stored as such */
};

/* Outputs of a tensor that holds a matrix of `rows` outputs in this way. */
static inline uint64_t moec_tensor_layout_outputs(struct moec_tensor_layout layout, uint32_t rows)
{
    if (layout.block_rows > 0)
        return (uint64_t)rows / layout.block_rows * layout.block_step;
    return (uint64_t)rows * (layout.n_part > 0 ? layout.n_part : 1);
}

#endif
