/* The block formats of ggml: how the weights of a GGUF tensor are stored.
 *
 * A row is cut into blocks of `block_weights` weights in `block_bytes` bytes. What a block decodes to is
 * defined here as ggml defines it (ggml-common.h and dequantize_row_* of ggml-quants.c), one F32 operation
 * after the other, so that values equal those of the `gguf` package bit for bit. Thread rule: constant data
 * and pure functions. */
#ifndef MOEC_FORMATS_GGML_BLOCKS_H
#define MOEC_FORMATS_GGML_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types whose bytes are little-endian floats; the others have a decoder, and one of them a name. */
enum { MOEC_GGML_F32 = 0, MOEC_GGML_F16 = 1, MOEC_GGML_BF16 = 30, MOEC_GGML_MXFP4 = 39 };

struct moec_ggml_type {
    uint32_t type; /* its number in files */
    const char *name;
    uint32_t block_weights, block_bytes;
    /* Decodes n weights, whole blocks; NULL for floats, and for types that moec knows only by size. */
    void (*decode)(const uint8_t *blocks, size_t n, float *weights);
    /* Bytes of a block at which its n_half scales of F16 stand. */
    uint8_t n_half, halves[2];
};

/* NULL for a number that is not known. */
const struct moec_ggml_type *moec_ggml_type_find(uint32_t type);

/* Whether blocks of a type with a decoder decode to finite numbers, which is a matter of their scales. */
bool moec_ggml_are_finite(const struct moec_ggml_type *type, const uint8_t *blocks, size_t n_block);

#endif
