/* The figures of EdgeMoE's evaluation from one bench, as far as its rows have the numbers, with captions that
 * say what to conclude. Thread rule: plain data. */
#ifndef MOEC_PROFILER_BENCH_FIGURES_H
#define MOEC_PROFILER_BENCH_FIGURES_H

#include "profiler/bench/bench.h"
#include "profiler/report/figures.h"

/* Makes the charts; released by the caller. A figure without rows to show has none. */
MOEC_WARN_UNUSED enum moec_status
moec_bench_figures_make(const struct moec_bench *bench, struct moec_figures *figures, struct moec_error *err);

#endif
