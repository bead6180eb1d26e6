/* Launches of the kernels of a GPU, for C: the operations of a forward pass in the canonical arithmetic (D1).
 *
 * Letters: T tokens (rows), N columns of a row. Pointers are of the device's memory, structs are read during
 * the call, and the work is done when the stream comes to it. Rows are F32. Sizes of 0 launch nothing. A
 * launch that fails shows in the device's check() (runtime/cuda/gpu.h); launches answer nothing themselves.
 *
 * Same bits as the CPU's scalar set, whatever T is and however a caller cuts it: a dot product's lane l is a
 * thread of half a warp, and the tree is four shuffles; a column of a weighted sum is a thread; fma, division
 * and root are IEEE's. NaN comes out where the scalar set has one, of whatever payload.
 *
 * Thread rule: any thread, with a stream of its own. */
#ifndef MOEC_RUNTIME_CUDA_KERNELS_H
#define MOEC_RUNTIME_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct moec_gpu_stream; /* runtime/cuda/gpu.h */

/* ---- matrices and rows ---- */

/* How a row's codes are laid out (formats/codec/codec.h): what moec_cuda_matrix_make finds. */
enum moec_cuda_codec {
    MOEC_CUDA_F32,
    MOEC_CUDA_F16,
    MOEC_CUDA_BF16,
    MOEC_CUDA_INT2, /* evenly spaced codes: (code - zero) * scale */
    MOEC_CUDA_INT3,
    MOEC_CUDA_INT4,
    MOEC_CUDA_INT5,
    MOEC_CUDA_INT6,
    MOEC_CUDA_INT8,
    MOEC_CUDA_LEVELS2, /* gaussian and logarithmic: level of code * scale */
    MOEC_CUDA_LEVELS3,
    MOEC_CUDA_LEVELS4,
    MOEC_CUDA_LEVELS8,
    MOEC_CUDA_TRELLIS,
    MOEC_CUDA_MXFP4,
    MOEC_CUDA_MXFP4_DOWN,
};

/* Encoded rows in the device's memory; every byte address will do. Made by moec_cuda_matrix_make
 * (runtime/cuda/kernels/cuda_matrix.h). */
struct moec_cuda_matrix {
    const uint8_t *data; /* row r at data + r * stride_bytes */
    size_t stride_bytes;
    size_t scales, zeros, outliers; /* offsets in a row, where it has such */
    uint32_t rows, columns;
    uint32_t n_group, n_outlier; /* of a row */
    uint8_t codec;               /* enum moec_cuda_codec */
    uint8_t group_shift;         /* weight i is of group i >> group_shift */
    bool is_nested, has_zeros, is_logarithmic;
    bool is_aligned; /* floats stand at multiples of their size */
};

/* T rows of floats: row t is at each[t], or with each NULL at first + t * stride. `each` lies in the device's
 * memory: so keys of several sequences are written to where each of them keeps its own. */
struct moec_cuda_rows {
    float *first;
    size_t stride;
    float *const *each;
};

/* ---- products ---- */

/* What becomes of an output, its bias added. */
enum moec_cuda_sink {
    MOEC_CUDA_STORE,
    MOEC_CUDA_ADD,              /* to what stands there */
    MOEC_CUDA_MULTIPLY_SIGMOID, /* what stands there, by the output's sigmoid */
    MOEC_CUDA_CAP,              /* stored as cap tanh(output / cap) */
};

/* y[t][r] = dot(x[t], row first_row + r), r < n_rows. With n_batch above 1 that many products of one shape:
 * of each the first row is row_step further, inputs x_step floats, outputs and biases y_step floats. */
struct moec_cuda_product {
    struct moec_cuda_matrix matrix;
    uint32_t first_row, n_rows;
    uint32_t n_tok;
    const float *x; /* row t at x + t * x_stride, readable and zero from `columns` to a multiple of 16 */
    size_t x_stride;
    const float *bias; /* (n_rows) or NULL */
    struct moec_cuda_rows y;
    uint8_t sink; /* enum moec_cuda_sink */
    float cap;
    uint32_t n_batch; /* 0 counts as 1 */
    uint32_t row_step;
    size_t x_step, y_step;
};
void moec_cuda_product_run(struct moec_gpu_stream *stream, const struct moec_cuda_product *product);

/* y[t][c] = sum over r < n_rows of h[t][r] * weight(first_row + r, c), c < columns: chunks of MOEC_SUM_CHUNK
 * rows, summed from 0 each and added in order. Batches as above; y_step is of outputs, h_step of inputs. */
struct moec_cuda_sum {
    struct moec_cuda_matrix matrix;
    uint32_t first_row, n_rows;
    uint32_t n_tok;
    const float *h;
    size_t h_stride;
    struct moec_cuda_rows y;
    uint32_t n_batch;
    uint32_t row_step;
    size_t h_step, y_step;
};
void moec_cuda_sum_run(struct moec_gpu_stream *stream, const struct moec_cuda_sum *sum);

/* out[i] = row ids[i] of the matrix as F32, times `scale` unless that is 0; zeros from `columns` to a
 * multiple of 16, which fits in out's rows. */
struct moec_cuda_lookup {
    struct moec_cuda_matrix matrix;
    const uint32_t *ids; /* (n) in the device's memory */
    uint32_t n;
    float scale;
    struct moec_cuda_rows out;
};
void moec_cuda_lookup_run(struct moec_gpu_stream *stream, const struct moec_cuda_lookup *lookup);

#ifdef __cplusplus
}
#endif

#endif
