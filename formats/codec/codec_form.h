/* A row for each form that a codec's bytes have: what the form needs and which functions know it. The rest of
 * formats/codec, and by the traits in codec.h everything else, asks the row; a new codec is a row, and a file
 * with the functions that it names (internal to formats/codec). */
#ifndef MOEC_FORMATS_CODEC_FORM_H
#define MOEC_FORMATS_CODEC_FORM_H

#include "formats/codec/codec.h"

struct moec_codec_form {
    struct moec_codec_traits traits;
    bool has_levels;   /* codes stand for levels: there is no zero to subtract */
    bool has_outliers; /* floats of a row that are kept apart */
    uint8_t group;     /* weights that share a scale whatever the codec says; 0: as it says */
    uint8_t scale_bytes;

    /* moec_codec_encode_row and moec_codec_decode_span of this form; decode is NULL where rows do not stand
     * alone. */
    enum moec_status (*encode)(struct moec_codec codec, const float *weights, size_t n, uint8_t *row,
                               struct moec_error *err);
    void (*decode)(struct moec_codec codec, const uint8_t *row, size_t n, size_t first, size_t count,
                   float *weights);
    /* One block of codes, 4 * bits bytes; NULL of floats. */
    void (*pack)(uint32_t bits, const uint8_t *codes, uint8_t *out);
    bool (*is_finite)(struct moec_codec codec, const uint8_t *row, size_t n);
};

const struct moec_codec_form *moec_codec_form(struct moec_codec codec);

#endif
