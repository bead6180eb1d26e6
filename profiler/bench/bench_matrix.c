#include "profiler/bench/bench_matrix.h"

#include <stdio.h>
#include <string.h>

#define TEMPLATE_ROWS 64

enum moec_status moec_bench_matrix_fill(struct moec_codec codec, uint8_t *data, uint64_t n_bytes,
                                        struct moec_matrix *matrix, struct moec_error *err)
{
    const size_t stride = moec_codec_row_bytes(codec, MOEC_BENCH_COLUMNS);
    const uint32_t rows = (uint32_t)(n_bytes / stride);
    float w[MOEC_BENCH_COLUMNS];
    uint32_t state = 1;
    for (uint32_t r = 0; r < TEMPLATE_ROWS; r++) {
        for (uint32_t i = 0; i < MOEC_BENCH_COLUMNS; i++) {
            state = state * 1664525u + 1013904223u;
            w[i] = (float)(int32_t)state * 0x1p-36f;
        }
        MOEC_TRY(moec_codec_encode_row(codec, w, MOEC_BENCH_COLUMNS, data + r * stride, err));
    }
    for (uint32_t r = TEMPLATE_ROWS; r < rows; r++)
        memcpy(data + r * stride, data + (r - TEMPLATE_ROWS) * stride, stride);
    *matrix = (struct moec_matrix){
        .codec = codec, .rows = rows, .columns = MOEC_BENCH_COLUMNS, .stride_bytes = stride, .data = data};
    return MOEC_OK;
}

void moec_bench_codec_name(struct moec_codec codec, char name[static 40])
{
    char text[40];
    (void)snprintf(name, 40, "%s", moec_codec_name(codec, text));
}
