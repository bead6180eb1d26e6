/* Encoded matrices of kernels that are timed, and the names of their codecs. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_BENCH_MATRIX_H
#define MOEC_PROFILER_BENCH_MATRIX_H

#include "formats/base/error.h"
#include "runtime/kernels/kernels.h"

#define MOEC_BENCH_COLUMNS 2048

/* Fills as many rows of MOEC_BENCH_COLUMNS as fit into n_bytes of `data`, a multiple of MOEC_MADE_UP_ROWS, with
 * made-up weights; the matrix borrows `data`. Errors: those of moec_made_up_rows_make. */
MOEC_WARN_UNUSED enum moec_status moec_bench_matrix_fill(struct moec_codec codec, uint8_t *data,
                                                         uint64_t n_bytes, struct moec_matrix *matrix,
                                                         struct moec_error *err);

/* The same bytes as rows of a down projection, which in MXFP4 have other scales. */
struct moec_matrix moec_bench_matrix_down(struct moec_matrix matrix);

/* The codec's name, also of those whose name moec_codec_name does not write there. */
void moec_bench_codec_name(struct moec_codec codec, char name[static 40]);

#endif
