/* Where weights come from: the named tensors of a container, whatever its format (D18).
 *
 * A container is a small table of functions, which find a tensor by its name, tell its shape, its place and
 * how its weights are coded, and read its bytes. Safetensors is the first
 * (formats/checkpoint/safetensors_source.h). A view (formats/checkpoint/tensor_view.h) says which weights of
 * a tensor make up a matrix of the model: all of them, one expert's slice, every other row. Thread rule:
 * immutable after opening; reading from several threads is fine. */
#ifndef MOEC_FORMATS_TENSOR_SOURCE_H
#define MOEC_FORMATS_TENSOR_SOURCE_H

#include "formats/base/file.h"
#include "formats/codec/codec.h"
#include "formats/gguf/ggml_blocks.h"

#define MOEC_TENSOR_MAX_DIMS    8
#define MOEC_TENSOR_SHAPE_BYTES 192 /* of a shape as text */

/* How weights are stored: blocks of `block_weights` weights in `block_bytes` bytes, along the last
 * dimension of the tensor. */
struct moec_tensor_coding {
    uint32_t block_weights; /* 1 for floats */
    uint32_t block_bytes;
    enum moec_dtype dtype; /* F32, F16 or BF16: the bytes are these floats; MOEC_DTYPE_COUNT: anything else */
    bool is_integer;       /* whole numbers, which are no weights */
    /* Decodes n weights, whole blocks. */
    void (*decode)(const uint8_t *blocks, size_t n, float *weights);
    bool is_mxfp4; /* decoded and scaled, weights are those of MXFP4 (formats/codec/mxfp4.h) */
    const struct moec_ggml_type *ggml; /* of GGUF; NULL for others */
};

/* Whether blocks hold finite numbers alone; of codes it is enough to look at their scales. */
bool moec_tensor_coding_is_finite(const struct moec_tensor_coding *coding, const uint8_t *blocks,
                                  size_t n_block);

/* Weights of E4M3 (eight bits: sign, four of exponent with bias 7, three of mantissa; no infinity), factors
 * of E8M0 (powers of two: 2 ^ (byte - 127)), and pairs of E2M1 in a byte, the first in its low half; the last
 * are in blocks of 32, as OCP's MXFP4 scales them. */
extern const struct moec_tensor_coding moec_tensor_e4m3, moec_tensor_e8m0, moec_tensor_e2m1;

/* Little-endian whole numbers with sign. Those past 2^24 are rounded. */
extern const struct moec_tensor_coding moec_tensor_i64, moec_tensor_i32;

/* The coding of little-endian floats; NULL if the dtype is not a float type. */
const struct moec_tensor_coding *moec_tensor_coding_of(enum moec_dtype dtype);

/* Factors that stand in a tensor of their own: one for each block of rows x columns of the last two
 * dimensions, with smaller blocks at the edges. A weight is its decoded number times its factor, rounded once
 * to F32. */
struct moec_tensor_scales {
    const struct moec_tensor_coding *coding; /* of the factors; NULL: the weights have none */
    uint64_t offset;                         /* of the factors in their file */
    uint32_t file;
    uint32_t block_rows, block_columns;
    uint64_t tensor_rows;            /* of one matrix of the tensor: its last dimension but one */
    uint64_t scale_rows, scale_line; /* of one matrix: factors down and across */
};

struct moec_tensor {
    const char *dtype_name;                  /* as the container calls it; lives until names are forgotten */
    const struct moec_tensor_coding *coding; /* lives with the source; NULL: weights that moec cannot read */
    uint32_t n_dims;
    uint32_t file; /* index among the source's files */
    uint64_t shape[MOEC_TENSOR_MAX_DIMS];
    uint64_t offset; /* of its bytes in the file */
    uint64_t n_bytes;
    struct moec_tensor_scales scales;
};

/* Writes a shape as "[2, 3]" for messages. */
const char *moec_tensor_shape_text(const uint64_t *shape, uint32_t n_dims,
                                   char text[static MOEC_TENSOR_SHAPE_BYTES]);

/* First member of every implementation. */
struct moec_tensor_source {
    uint32_t n_file;
    const char *index; /* name of the file in the folder that lists the others; NULL without one */
    const char *note;  /* what the user should hear of the files, a sentence; NULL without; lives with it */
    /* False when there is no tensor of this name. Its bytes lie within the file. */
    bool (*find)(const struct moec_tensor_source *self, const char *name, struct moec_tensor *tensor);
    /* Says why a tensor is not found, where the container knows more than that; else MOEC_OK. NULL: never. */
    enum moec_status (*explain)(const struct moec_tensor_source *self, const char *name,
                                struct moec_error *err);
    /* Reads n bytes at an offset of file `file`. Errors name the file: MOEC_ERR_IO. */
    enum moec_status (*read)(const struct moec_tensor_source *self, uint32_t file, uint64_t offset,
                             void *bytes, size_t n, struct moec_error *err);
    /* Borrowed until free. Files are numbered in the order in which a digest covers them. */
    const struct moec_file *(*file)(const struct moec_tensor_source *self, uint32_t file);
    /* Releases the table of names; `find` and `explain` must not be called after it. */
    void (*forget)(struct moec_tensor_source *self);
    void (*free)(struct moec_tensor_source *self);
};

#endif
