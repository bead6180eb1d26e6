/* How fast a bench's devices give records: what floors of rows are computed with. A device that is emulated
 * says so itself; a real one is measured with the runtime's own reader, and where that reads past the page
 * cache (--io direct) again after each round of samples, since the rate of a shared device changes within
 * minutes.
 * Through the page cache a measurement would change what the rows find there. Thread rule: one thread. */
#ifndef MOEC_PROFILER_BENCH_BANDWIDTH_H
#define MOEC_PROFILER_BENCH_BANDWIDTH_H

#include "profiler/bench/bench_result.h"

/* Fills bench->bandwidth for all rows: of a real device the best of several measurements. Errors: those of
 * moec_bandwidth_measure. */
MOEC_WARN_UNUSED enum moec_status moec_bench_bandwidth_find(const struct moec_bundle *bundle,
                                                            struct moec_bench *bench, struct moec_error *err);

/* After the rows of `group` have computed `sample`: measures again what may have changed, and gives each of
 * them the better of the rates before and after. Errors: as above, and those of moec_bundle_open. */
MOEC_WARN_UNUSED enum moec_status moec_bench_bandwidth_follow(struct moec_bench *bench, uint32_t group,
                                                              uint32_t sample, struct moec_error *err);

#endif
