#include "cli/output/compile_forecast.h"

#include "profiler/doctor/forecast.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/parts.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>
#include <stdio.h>

#define PROFILE_PASSES 1 /* of the original: its losses and its routing */
#define LONG_SECONDS   3600.0
#define LEAST_PACE     5e9 /* multiply-adds a second of one thread: no machine that matters is slower */
#define FEWER_WINDOWS  256u

struct cli_compile_forecast cli_forecast_compile(const struct moec_config *config,
                                                 const struct moec_compile_options *options,
                                                 uint32_t n_window, uint32_t seq_len_tokens,
                                                 double pass_seconds)
{
    const struct moec_compile_forecast compile =
        moec_compile_foresee(config, options, n_window, seq_len_tokens);
    const double passes = PROFILE_PASSES + compile.passes;
    return (struct cli_compile_forecast){.n_window = n_window,
                                         .passes = passes,
                                         .weights = compile.weights,
                                         .seconds = (passes + compile.weights) * pass_seconds};
}

enum moec_status cli_warn_long_compile(struct cli_progress *progress, const struct moec_config *config,
                                       const struct moec_compile_options *options, uint32_t n_window,
                                       uint32_t seq_len_tokens, struct moec_error *err)
{
    const uint32_t n_thread = (uint32_t)moec_pool_make(options->n_threads).n_threads;
    const struct moec_forecast_request request = {.config = config,
                                                  .kernels = options->kernels,
                                                  .n_threads = options->n_threads,
                                                  .seq_len_tokens = seq_len_tokens};
    char line[256], whole[24], fewer[24];
    double seconds = 0;
    if (n_window == 0)
        n_window =
            MOEC_DEFAULT_SEARCH_WINDOWS + MOEC_DEFAULT_SELECT_WINDOWS + MOEC_DEFAULT_CERTIFICATE_WINDOWS;
    const double multiply_adds =
        (double)n_window * (seq_len_tokens - 1) * (double)moec_cost_from_layer(config, 0, 1, 0, 1);
    if (cli_forecast_compile(config, options, n_window, seq_len_tokens, multiply_adds / LEAST_PACE / n_thread)
            .seconds < LONG_SECONDS)
        return MOEC_OK;
    MOEC_TRY(moec_forecast_evaluation(&request, n_window, &seconds, err));
    const struct cli_compile_forecast all =
        cli_forecast_compile(config, options, n_window, seq_len_tokens, seconds);
    if (all.seconds < LONG_SECONDS)
        return MOEC_OK;
    cli_duration_text(whole, all.seconds);
    const int n = snprintf(line, sizeof line,
                           "moec %s: note: this takes about %s on %" PRIu32
                           " threads here if the data has %" PRIu32 " windows",
                           progress->job, whole, n_thread, n_window);
    if (n_window > FEWER_WINDOWS && n > 0) {
        const struct cli_compile_forecast part = cli_forecast_compile(
            config, options, FEWER_WINDOWS, seq_len_tokens, seconds * FEWER_WINDOWS / n_window);
        cli_duration_text(fewer, part.seconds);
        (void)snprintf(line + n, sizeof line - (size_t)n,
                       "; --samples %u takes about %s, but may not be able to prove a loss as small",
                       FEWER_WINDOWS, fewer);
    }
    cli_progress_note(progress, line);
    return MOEC_OK;
}
