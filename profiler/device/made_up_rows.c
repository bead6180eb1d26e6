/* Weights come from a linear congruence with a fixed seed, so that they are the same everywhere: numbers
 * from -1 to 1, divided by the root of the width. A codec that is exact gets its own levels of about that
 * size. Scales from anywhere in their range would not do: processors take many times as long for weights that
 * are denormal. A matrix repeats the few encoded rows from a place of its own on. */
#include "profiler/device/made_up_rows.h"

#include "formats/base/memory.h"
#include "formats/codec/mxfp4.h"
#include "formats/model/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that encode as rows of the codec. */
static void make_weights(struct moec_codec codec, uint32_t columns, float *weights)
{
    const bool is_exact = moec_codec_traits(codec)->is_exact;
    const float size = 1 / sqrtf((float)columns),
                step = exp2f(floorf(log2f(size / 6))); /* 6: the last level */
    uint32_t state = 1;
    for (size_t i = 0; i < (size_t)MOEC_MADE_UP_ROWS * columns; i++) {
        state = state * 1664525u + 1013904223u;
        weights[i] =
            is_exact ? moec_mxfp4_levels[state >> 28] * step : (float)(int32_t)state * 0x1p-31f * size;
    }
}

enum moec_status moec_made_up_rows_make(struct moec_codec codec, uint32_t columns,
                                        struct moec_made_up_rows *out, struct moec_error *err)
{
    void *rows = NULL, *weights = NULL;
    size_t failed = 0;
    *out = (struct moec_made_up_rows){.row_bytes = moec_codec_row_bytes(codec, columns)};
    MOEC_TRY(moec_alloc(&rows, MOEC_MADE_UP_ROWS, out->row_bytes, "made-up weights", err));
    out->rows = rows;
    enum moec_status status =
        moec_alloc(&weights, (uint64_t)MOEC_MADE_UP_ROWS * columns, sizeof(float), "made-up weights", err);
    if (status == MOEC_OK) {
        make_weights(codec, columns, weights);
        status = moec_rows_encode(&(struct moec_encoded_rows){codec, columns, out->rows, out->row_bytes},
                                  weights, MOEC_MADE_UP_ROWS, &failed, err);
        free(weights);
    }
    if (status != MOEC_OK)
        moec_made_up_rows_release(out);
    return status;
}

void moec_made_up_rows_release(struct moec_made_up_rows *rows)
{
    free(rows->rows);
    *rows = (struct moec_made_up_rows){0};
}

void moec_made_up_rows_fill(const struct moec_made_up_rows *rows, const struct moec_matrix *matrix,
                            uint32_t seed, uint8_t *data)
{
    for (uint32_t row = 0; row < matrix->rows; row++)
        memcpy(data + (size_t)row * matrix->stride_bytes,
               rows->rows + ((size_t)seed + row) % MOEC_MADE_UP_ROWS * rows->row_bytes, rows->row_bytes);
}
