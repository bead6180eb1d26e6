/* Options of `moec bench` as the profiler takes them. */
#ifndef MOEC_CLI_BENCH_OPTIONS_H
#define MOEC_CLI_BENCH_OPTIONS_H

#include "cli/options/options.h"
#include "profiler/bench/bench.h"

struct cli_bench_options {
    struct moec_bench_options bench; /* rows is the caller's to set */
    char *lists[2];                  /* owned: what modes and evicts point into */
};

/* One item of --memory: "25%", "12.5%" of the experts, or "64MiB" for the process. False for anything else,
 * such as nothing or more than 100 %. */
bool cli_bench_memory(const char *text, struct moec_bench_memory *out);

/* Errors: MOEC_ERR_USAGE, MOEC_ERR_MEMORY. Release in either case. */
MOEC_WARN_UNUSED enum moec_status
cli_read_bench_options(const struct cli_args *args, struct cli_bench_options *out, struct moec_error *err);
void cli_bench_options_release(struct cli_bench_options *options);

#endif
