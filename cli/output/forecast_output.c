/* Measuring this machine takes a while. So a profile is first judged by the slowest pace that matters, and
 * timed only if it would be long then. */
#include "cli/output/forecast_output.h"

#include "cli/output/compile_forecast.h"
#include "cli/print/print.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/parts.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>
#include <stdio.h>

#define LONG_SECONDS  3600.0
#define LEAST_PACE    5e9 /* multiply-adds a second of one thread: no machine that matters is slower */
#define FAST_PASSES   4.0 /* no estimate takes more */
#define FEWER_WINDOWS 256u

static double all_passes(const struct moec_profile_forecast *forecast)
{
    double passes = 0;
    for (uint32_t i = 0; i < forecast->n_phase; i++)
        passes += forecast->phases[i].passes;
    return passes;
}

static void print_row(const char *name, double passes, double seconds_per_pass)
{
    char duration[24];
    cli_duration_text(duration, passes * seconds_per_pass);
    cli_print(stdout, "  %-16s %8.1f passes   %s\n", name, passes, duration);
}

void cli_print_forecast(const struct moec_profile_forecast *forecast)
{
    char size[24], other[24];
    const double pace = forecast->seconds_per_pass, passes = all_passes(forecast);
    cli_duration_text(size, passes * pace);
    cli_print(stdout, "about %s on this machine as it is now: %.1f passes over %" PRIu32 " windows\n", size,
              passes, forecast->n_window);
    cli_print(stdout, "%.3f core-hours: %s on %u idle cores like these\n",
              passes * forecast->core_seconds_per_pass / 3600,
              cli_many_cores_text(other, passes * forecast->core_seconds_per_pass), CLI_MANY_THREADS);
    for (uint32_t i = 0; i < forecast->n_phase; i++)
        print_row(forecast->phases[i].name, forecast->phases[i].passes, pace);
    if (forecast->exact_passes > 0) {
        cli_duration_text(other,
                          (forecast->is_exact ? forecast->fast_passes : forecast->exact_passes) * pace);
        cli_print_wrapped(stdout, 2, "each expert's sensitivity is %s; %s would take %s (--sensitivity %s)\n",
                          forecast->is_exact ? "measured" : "estimated",
                          forecast->is_exact ? "estimating it" : "measuring it", other,
                          forecast->is_exact ? "fast" : "exact");
    }
    cli_print(stdout, "windows: %" PRIu32 " search, %" PRIu32 " select, %" PRIu32 " certify\n",
              forecast->n_part[MOEC_PART_SEARCH], forecast->n_part[MOEC_PART_SELECT],
              forecast->n_part[MOEC_PART_CERTIFICATE]);
    if (forecast->memory_bytes > 0)
        cli_print(stdout, "memory: about %s, at most %s (--work-memory and the largest layer)\n",
                  cli_memory_text(size, forecast->memory_bytes),
                  cli_memory_text(other, forecast->memory_limit_bytes));
    cli_print(stdout, "disk: profile at most %s, and as much for a journal during the run",
              cli_size_text(size, forecast->profile_bytes));
    if (forecast->spill_bytes > 0)
        cli_print(stdout, ", hidden states %s in a temporary file",
                  cli_size_text(size, forecast->spill_bytes));
    cli_print(stdout, "\n");
}

enum moec_status cli_print_forecast_json(const struct moec_profile_forecast *forecast, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *phases = moec_json_out_object();
    const double passes = all_passes(forecast);
    moec_json_out_double(root, "passes", passes);
    moec_json_out_double(root, "seconds", passes * forecast->seconds_per_pass);
    moec_json_out_double(root, "core_seconds", passes * forecast->core_seconds_per_pass);
    moec_json_out_double(root, "seconds_per_pass", forecast->seconds_per_pass);
    for (uint32_t i = 0; i < forecast->n_phase; i++)
        moec_json_out_double(phases, forecast->phases[i].name, forecast->phases[i].passes);
    moec_json_out_node(root, "phases", phases);
    moec_json_out_double(root, "exact_passes", forecast->exact_passes);
    moec_json_out_double(root, "fast_passes", forecast->fast_passes);
    moec_json_out_u64(root, "samples", forecast->n_window);
    moec_json_out_u64(root, "memory_bytes", forecast->memory_bytes);
    moec_json_out_u64(root, "memory_limit_bytes", forecast->memory_limit_bytes);
    moec_json_out_u64(root, "profile_bytes", forecast->profile_bytes);
    moec_json_out_u64(root, "spill_bytes", forecast->spill_bytes);
    return cli_print_json(root, err);
}

enum moec_status cli_warn_long_profile(struct cli_progress *progress,
                                       const struct moec_forecast_request *request, uint32_t n_window,
                                       bool is_exact, struct moec_error *err)
{
    const struct moec_config *config = request->config;
    const uint32_t n_thread = (uint32_t)moec_pool_make(request->n_threads).n_threads,
                   n_most = MOEC_DEFAULT_SEARCH_WINDOWS + MOEC_DEFAULT_SELECT_WINDOWS +
                            MOEC_DEFAULT_CERTIFICATE_WINDOWS,
                   n = n_window > 0 ? n_window : n_most;
    const double most_passes =
        FAST_PASSES +
        (is_exact ? (double)moec_config_moe_count(config) * config->n_expert * request->n_bits : 0);
    const double slowest = most_passes * n * (request->seq_len_tokens - 1) *
                           (double)moec_cost_from_layer(config, 0, 1, 0, 1) / LEAST_PACE / n_thread;
    struct moec_forecast forecast;
    char line[400], whole[24], fast[24], fewer[24];
    if (slowest < LONG_SECONDS)
        return MOEC_OK;
    MOEC_TRY(moec_forecast_make(request, &forecast, err));
    const double share = n / (double)forecast.n_window,
                 seconds = share * (is_exact ? forecast.exact_seconds : forecast.fast_seconds);
    if (seconds < LONG_SECONDS)
        return MOEC_OK;
    cli_duration_text(whole, seconds);
    const double passes = is_exact ? forecast.exact_passes : forecast.fast_passes;
    size_t used =
        (size_t)snprintf(line, sizeof line,
                         "moec %s: note: this takes about %s on %" PRIu32
                         " threads here if the data has %" PRIu32 " windows (%.1f core-hours)",
                         progress->job, whole, n_thread, n, passes * n * forecast.window.core_seconds / 3600);
    cli_duration_text(fast, share * forecast.fast_seconds);
    if (is_exact && forecast.fast_seconds > 0)
        used +=
            (size_t)snprintf(line + used, sizeof line - used,
                             "; --sensitivity fast, which --time-limit chooses too, takes about %s", fast);
    cli_duration_text(fewer, seconds / n * FEWER_WINDOWS);
    if (n > FEWER_WINDOWS)
        (void)snprintf(line + used, sizeof line - used, "; --samples %u takes about %s", FEWER_WINDOWS,
                       fewer);
    cli_progress_note(progress, line);
    return MOEC_OK;
}
