#include "profiler/bench/bench_matrix.h"

#include "profiler/device/made_up_rows.h"

#include <stdio.h>

enum moec_status moec_bench_matrix_fill(struct moec_codec codec, uint8_t *data, uint64_t n_bytes,
                                        struct moec_matrix *matrix, struct moec_error *err)
{
    const size_t stride = moec_codec_row_bytes(codec, MOEC_BENCH_COLUMNS);
    struct moec_made_up_rows rows = {0};
    MOEC_TRY(moec_made_up_rows_make(codec, MOEC_BENCH_COLUMNS, &rows, err));
    *matrix =
        (struct moec_matrix){.codec = codec,
                             .rows = (uint32_t)(n_bytes / stride / MOEC_MADE_UP_ROWS * MOEC_MADE_UP_ROWS),
                             .columns = MOEC_BENCH_COLUMNS,
                             .stride_bytes = stride,
                             .data = data};
    moec_made_up_rows_fill(&rows, matrix, 0, data);
    moec_made_up_rows_release(&rows);
    return MOEC_OK;
}

struct moec_matrix moec_bench_matrix_down(struct moec_matrix matrix)
{
    matrix.codec = moec_codec_for_down(matrix.codec);
    return matrix;
}

void moec_bench_codec_name(struct moec_codec codec, char name[static 40])
{
    char text[40];
    (void)snprintf(name, 40, "%s", moec_codec_name(codec, text));
}
