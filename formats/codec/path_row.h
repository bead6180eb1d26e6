/* Encoding a row whose codes are a path through a trellis, with one scale (internal to formats/codec). */
#ifndef MOEC_FORMATS_PATH_ROW_H
#define MOEC_FORMATS_PATH_ROW_H

#include "formats/codec/codec.h"

struct moec_path {
    /* The codes (n) of least squared error at a scale above 0, and the levels of codes, times nothing yet.
     * `choices` is scratch. */
    void (*search)(struct moec_codec codec, const float *weights, size_t n, float scale, void *choices,
                   uint8_t *codes);
    void (*values)(struct moec_codec codec, const uint8_t *codes, size_t n, float *values);
    /* The scale to begin with: 0 for zeros. */
    float (*first_scale)(struct moec_codec codec, const float *weights, size_t n);
    size_t choice_bytes;
    uint8_t none; /* the code of a row of zeros */
};

/* As moec_codec_encode_row. */
MOEC_WARN_UNUSED enum moec_status moec_path_encode_row(const struct moec_path *path, struct moec_codec codec,
                                                       const float *weights, size_t n, uint8_t *row,
                                                       struct moec_error *err);

#endif
