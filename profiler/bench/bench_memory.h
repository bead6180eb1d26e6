/* How much memory the rows of a bench may take together, and which of them run at once for it.
 * Thread rule: a plain function. */
#ifndef MOEC_PROFILER_BENCH_MEMORY_H
#define MOEC_PROFILER_BENCH_MEMORY_H

#include "profiler/bench/bench_result.h"

/* Gives each row a group, so that the rows of a group fit into `available_bytes` together (0: no limit): in
 * the order of the table, as many as fit; on a device each by itself. A row that does not fit by itself has
 * failed. row_bytes (n_row): what each takes. */
void moec_bench_make_groups(struct moec_bench *bench, const uint64_t *row_bytes, uint64_t available_bytes);

#endif
