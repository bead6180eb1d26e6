/* Blocks of codes and the parts of a row, for the files that make up the codec (internal to formats/codec).
 */
#ifndef MOEC_FORMATS_CODEC_INTERNAL_H
#define MOEC_FORMATS_CODEC_INTERNAL_H

#include "formats/codec/codec_form.h"
#include "formats/codec/encode_loops.h"

#define BLOCK    MOEC_CODEC_BLOCK
#define SPAN     MOEC_CODEC_OUTLIER_SPAN
#define F32_INF  0x7f800000u
#define F16_INF  0x7c00u
#define BF16_INF 0x7f80u

static inline bool dtype_is_float(uint8_t dtype)
{
    return dtype <= MOEC_DTYPE_BF16;
}

/* Bits of a code, 0 for floats. */
static inline uint32_t code_bits(uint8_t dtype)
{
    static const uint8_t bits[MOEC_DTYPE_COUNT] = {
        [MOEC_DTYPE_INT1] = 1, [MOEC_DTYPE_INT2] = 2,  [MOEC_DTYPE_INT3] = 3,
        [MOEC_DTYPE_INT4] = 4, [MOEC_DTYPE_INT5] = 5,  [MOEC_DTYPE_INT6] = 6,
        [MOEC_DTYPE_INT8] = 8, [MOEC_DTYPE_MXFP4] = 4, [MOEC_DTYPE_MXFP4_DOWN] = 4,
    };
    return bits[dtype];
}

/* Bytes of the codes of a row, which scales follow, and of its zeros, which follow those. */
static inline size_t codes_bytes(struct moec_codec codec, size_t n)
{
    return (n + BLOCK - 1) / BLOCK * 4 * code_bits(codec.dtype);
}

size_t moec_codec_zeros_bytes(struct moec_codec codec, size_t n);

static inline void store_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value & 0xff);
    at[1] = (uint8_t)(value >> 8);
}

static inline uint16_t load_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)at[1] << 8);
}

static inline void store_u32(uint8_t *at, uint32_t value)
{
    store_u16(at, (uint16_t)(value & 0xffff));
    store_u16(at + 2, (uint16_t)(value >> 16));
}

static inline uint32_t load_u32(const uint8_t *at)
{
    return (uint32_t)load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

/* One block of codes, 4 * bits bytes (formats/codec/codec_row.c). */
void moec_codec_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out);
void moec_codec_unpack_block(uint32_t bits, const uint8_t *in, uint8_t codes[static BLOCK]);

/* Bit `place` of each of 32 codes. */
uint32_t moec_codec_gather_bit(const uint8_t codes[static BLOCK], int place);

/* Range of a row whose last block may be incomplete; F16 bits of a scale or an outlier; what a row that is not
 * finite is refused with (formats/codec/codec_encode.c). */
struct moec_range moec_codec_range(const float *w, size_t n);
enum moec_status moec_codec_to_half(float value, const char *what, uint16_t *half, struct moec_error *err);
enum moec_status moec_codec_fail_not_finite(const float *weights, size_t n, struct moec_error *err);

/* Whether one of n floats of 16 bits is infinite or NaN. */
bool moec_codec_has_infinity(const uint8_t *halves, size_t n, uint32_t infinity);

/* The functions of forms (codec_form.h), by the file of the form. */
#define MOEC_FORM_FUNCTIONS(name)                                                                            \
    enum moec_status moec_##name##_encode_row(struct moec_codec codec, const float *weights, size_t n,       \
                                              uint8_t *row, struct moec_error *err);                         \
    void moec_##name##_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,      \
                                   size_t count, float *weights);
MOEC_FORM_FUNCTIONS(floats)
MOEC_FORM_FUNCTIONS(integers)
MOEC_FORM_FUNCTIONS(dictionary)
MOEC_FORM_FUNCTIONS(shift)
MOEC_FORM_FUNCTIONS(mxfp4_form)
enum moec_status moec_mxfp4_form_refuse_row(struct moec_codec codec, const float *weights, size_t n,
                                            uint8_t *row, struct moec_error *err);
enum moec_status moec_trellis_refuse_row(struct moec_codec codec, const float *weights, size_t n,
                                         uint8_t *row, struct moec_error *err);
void moec_trellis_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                              size_t count, float *weights);
bool moec_floats_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n);
bool moec_integers_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n);
bool moec_mxfp4_row_is_finite(struct moec_codec codec, const uint8_t *row, size_t n);
void moec_trellis_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out);
void moec_shift_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out);

/* Puts the zeros of all groups, one byte each, where a row has them. */
void moec_codec_store_zeros(struct moec_codec codec, const uint8_t *zeros, size_t n, uint8_t *row);

#endif
