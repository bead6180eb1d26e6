/* Which rows a bench has (internal to profiler/bench/, and for tests). */
#ifndef MOEC_PROFILER_BENCH_PLAN_H
#define MOEC_PROFILER_BENCH_PLAN_H

#include "profiler/bench/bench_result.h"

/* Fills bench->rows from bench->options, and left_out. Errors: MOEC_ERR_USAGE for an unknown mode, one whose
 * copy is missing (naming the flag that makes it), or values that mean nothing together; MOEC_ERR_LIMIT for
 * more than MOEC_BENCH_MAX_ROWS. */
MOEC_WARN_UNUSED enum moec_status moec_bench_plan(const struct moec_bundle *bundle, struct moec_bench *bench,
                                                  struct moec_error *err);

/* Bytes that the process of a row will take, about. */
uint64_t moec_bench_row_bytes(const struct moec_bundle *bundle, const struct moec_bench_row *row);

#endif
