/* A bench as tables for people. */
#ifndef MOEC_CLI_BENCH_OUTPUT_H
#define MOEC_CLI_BENCH_OUTPUT_H

#include "profiler/bench/bench.h"

void cli_print_bench(const struct moec_bench *bench);

#endif
