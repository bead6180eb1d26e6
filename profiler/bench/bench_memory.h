/* How much memory the rows of a bench may take together, and which of them run at once for it.
 *
 * Memory is what the system can hand out now, or what is left of the limit of a memory control group that
 * this process is in (versions 1 and 2), or of one above it, if that is less; pages of files count as free in
 * both, as the kernel gives them up first. Thread rule: plain functions. */
#ifndef MOEC_PROFILER_BENCH_MEMORY_H
#define MOEC_PROFILER_BENCH_MEMORY_H

#include "profiler/bench/bench.h"

/* Bytes, 0 where the system does not say. `proc` and `cgroup` are the folders "/proc" and "/sys/fs/cgroup".
 */
uint64_t moec_bench_available_bytes(const char *proc, const char *cgroup);

/* Gives each row a group, so that the rows of a group fit into `available_bytes` together (0: no limit): in
 * the order of the table, as many as fit; on a device each by itself. A row that does not fit by itself has
 * failed. row_bytes (n_row): what each takes. */
void moec_bench_make_groups(struct moec_bench *bench, const uint64_t *row_bytes, uint64_t available_bytes);

#endif
