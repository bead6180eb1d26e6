/* What a compile from data is going to take: for `moec doctor`, for a dry run, said by a long `moec compile` before
 * it begins, and what --time-limit leaves out. Counted from the stages as the code runs them (compile.h), with the
 * original and its routing, at the pace of this machine. Thread rule: main thread. */
#ifndef MOEC_CLI_COMPILE_FORECAST_H
#define MOEC_CLI_COMPILE_FORECAST_H

#include "cli/terminal/progress_line.h"
#include "compiler/compile/compile.h"
#include "formats/json/json_write.h"
#include "profiler/doctor/forecast.h"

struct cli_compile_forecast {
    struct moec_compile_forecast stages;
    struct moec_forecast_time window; /* of one evaluation of a window */
    struct {
        uint32_t n_drawn;
        double original; /* that the original's routing and losses take; 0: a profile has them */
        double all;      /* that go through the model */
    } counted;           /* windows */
    uint32_t scope;      /* level, of cli_limit_compile (compiler/compile/compile.h); 0 = all */
    double seconds, core_seconds;
    uint64_t work_bytes, layer_bytes; /* memory: --work-memory, and experts of a layer beside it */
};

/* Windows of each part where nobody says how many; n_window 0: as many as are drawn at most. */
void cli_default_parts(uint32_t n_window, uint32_t n_part[static MOEC_PART_COUNT]);

struct cli_compile_forecast cli_forecast_compile(const struct moec_compile_request *request, bool has_profile,
                                                 struct moec_forecast_time window);
/* What it takes on so many cores that have nothing else to do. */
#define CLI_MANY_THREADS 16u
const char *cli_many_cores_text(char text[static 24], double core_seconds);

/* A row for each stage: windows, core-hours. And memory, and what is kept on disk. On stdout. */
void cli_print_compile_stages(const struct cli_compile_forecast *forecast);
/* What each of so many ranks receives and keeps on disk; nothing of one. */
void cli_print_compile_ranks(const struct cli_compile_forecast *forecast, uint32_t n_rank);
/* "windows", "seconds", "core_seconds", "memory_bytes", "fitted_bytes", "phases", and with more than one rank
 * "ranks"; the caller's. */
struct moec_json_out *cli_json_compile_forecast(const struct cli_compile_forecast *forecast, uint32_t n_rank);

/* The forecast at this machine's pace, which takes most of a second to measure. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status cli_estimate_compile(const struct moec_compile_request *request,
                                                       bool has_profile,
                                                       struct cli_compile_forecast *forecast,
                                                       struct moec_error *err);
/* The answer of a dry run, on stdout. */
void cli_print_compile_forecast(const struct cli_compile_forecast *forecast, int n_threads, uint32_t n_rank);

/* Before a compile from data, or a fit, which takes `times` as long (1 = a compile) and has no --time-limit: a note
 * where it takes over an hour, with what less would make of it. Measures the pace only where it may take that long.
 * Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status cli_warn_long_compile(struct cli_progress *progress,
                                                        const struct moec_compile_request *request,
                                                        double times, struct moec_error *err);

/* Sets `forecast` to that of the lowest scope whose forecast is within limit_seconds; says what it leaves
 * out. Errors: MOEC_ERR_USAGE where no level is within the limit. */
MOEC_WARN_UNUSED enum moec_status
cli_limit_compile(struct cli_progress *progress, const struct moec_compile_request *request, bool has_profile,
                  double limit_seconds, struct cli_compile_forecast *forecast, struct moec_error *err);

#endif
