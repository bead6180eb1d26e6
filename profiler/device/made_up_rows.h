/* Encoded rows with made-up weights, of which matrices are filled whose times are to be measured: a few rows that
 * differ, over and over, for encoding is slow in some codecs. Weights are of the size that they have in models,
 * so that nothing overflows. Thread rule: plain data after creation. */
#ifndef MOEC_PROFILER_MADE_UP_ROWS_H
#define MOEC_PROFILER_MADE_UP_ROWS_H

#include "formats/model/dense.h"

#define MOEC_MADE_UP_ROWS 32u /* as many as codecs encode together */

struct moec_made_up_rows {
    size_t row_bytes;
    uint8_t *rows; /* (MOEC_MADE_UP_ROWS, row_bytes), owned */
};

/* Errors: MOEC_ERR_MEMORY, those of moec_rows_encode. */
MOEC_WARN_UNUSED enum moec_status moec_made_up_rows_make(struct moec_codec codec, uint32_t columns,
                                                         struct moec_made_up_rows *out,
                                                         struct moec_error *err);
void moec_made_up_rows_release(struct moec_made_up_rows *rows);

/* Writes all rows of a matrix of this codec and width, whose first row is at `data`; the first of them is number
 * `seed` of those that there are, counted around. */
void moec_made_up_rows_fill(const struct moec_made_up_rows *rows, const struct moec_matrix *matrix,
                            uint32_t seed, uint8_t *data);

#endif
