/* Measuring this machine takes a while. So a compile is first judged by the slowest pace that matters, and
 * timed only if it would be long then. For --time-limit scopes are tried from the whole to the least, and the
 * first that fits is taken. */
#include "cli/output/compile_forecast.h"

#include "cli/print/print.h"
#include "cli/terminal/terminal.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/parts.h"
#include "runtime/threads/parallel.h"

#include <inttypes.h>
#include <stdio.h>

#define LONG_SECONDS  3600.0
#define LEAST_PACE    5e9 /* multiply-adds a second of one thread: no machine that matters is slower */
#define FEWER_WINDOWS 256u
#define WORK_BYTES    ((uint64_t)1 << 30) /* of compile.h, where nobody says how many */

void cli_default_parts(uint32_t n_window, uint32_t n_part[static MOEC_PART_COUNT])
{
    const uint32_t most =
        MOEC_DEFAULT_SEARCH_WINDOWS + MOEC_DEFAULT_SELECT_WINDOWS + MOEC_DEFAULT_CERTIFICATE_WINDOWS;
    const uint32_t n = n_window > 0 ? n_window : most, rest = n - n / 2;
    n_part[MOEC_PART_CERTIFICATE] = n / 2;
    n_part[MOEC_PART_SELECT] = rest / 3;
    n_part[MOEC_PART_SEARCH] = rest - rest / 3;
    if (n != most)
        return;
    n_part[MOEC_PART_CERTIFICATE] = MOEC_DEFAULT_CERTIFICATE_WINDOWS;
    n_part[MOEC_PART_SELECT] = MOEC_DEFAULT_SELECT_WINDOWS;
    n_part[MOEC_PART_SEARCH] = MOEC_DEFAULT_SEARCH_WINDOWS;
}

struct cli_compile_forecast cli_forecast_compile(const struct moec_compile_request *request, bool has_profile,
                                                 struct moec_forecast_time window)
{
    struct cli_compile_forecast forecast = {.stages = moec_compile_estimate(request), .window = window};
    for (int part = 0; part < MOEC_PART_COUNT; part++)
        forecast.counted.n_drawn += request->n_part[part];
    forecast.work_bytes =
        request->options->memory.work_bytes > 0 ? request->options->memory.work_bytes : WORK_BYTES;
    forecast.layer_bytes =
        (uint64_t)request->config->n_expert * moec_cost_expert(request->config, 1) *
        moec_codec_row_bytes((struct moec_codec){.dtype = request->config->expert_dtype}, 64) / 64;
    if (!has_profile)
        forecast.counted.original = forecast.counted.n_drawn - request->n_part[MOEC_PART_CERTIFICATE];
    forecast.counted.all = forecast.counted.original + forecast.stages.windows;
    const double windows = forecast.counted.all + forecast.stages.others;
    forecast.seconds = windows * window.seconds + forecast.stages.weights * window.product_seconds;
    forecast.core_seconds =
        windows * window.core_seconds + forecast.stages.weights * window.product_core_seconds;
    return forecast;
}

/* ---- the whole ---- */

static double stage_seconds(const struct cli_compile_forecast *forecast, uint32_t i)
{
    const struct moec_compile_forecast *stages = &forecast->stages;
    return (stages->phases[i].windows + stages->phases[i].others) * forecast->window.core_seconds +
           stages->phases[i].weights * forecast->window.product_core_seconds;
}

static void print_stage(const char *name, double windows, double seconds)
{
    cli_print(stdout, "    %-22s %6.0f windows   %9.3f core-hours\n", name, windows, seconds / 3600);
}

void cli_print_compile_stages(const struct cli_compile_forecast *forecast)
{
    const struct moec_compile_forecast *stages = &forecast->stages;
    char size[24], work[24];
    if (forecast->counted.original > 0)
        print_stage("routing, original", forecast->counted.original,
                    forecast->counted.original * forecast->window.core_seconds);
    for (uint32_t i = 0; i < stages->n_phase; i++)
        print_stage(stages->phases[i].name, stages->phases[i].windows, stage_seconds(forecast, i));
    print_stage("all", forecast->counted.all, forecast->core_seconds);
    cli_print_wrapped(
        stdout, 4,
        "  the data decides how many plans are searched and tested, and on how many windows: these numbers "
        "are typical\n");
    cli_print_wrapped(stdout, 4, "  memory: about %s, plus %s for the weights of a layer\n",
                      cli_memory_text(work, forecast->work_bytes),
                      cli_size_text(size, forecast->layer_bytes));
    if (stages->fitted_bytes > 0)
        cli_print_wrapped(
            stdout, 4,
            "  disk: about %s of fitted weights in the journal, and as much again in memory or a "
            "temporary file while compile runs\n",
            cli_size_text(size, stages->fitted_bytes));
}

void cli_print_compile_ranks(const struct cli_compile_forecast *forecast, uint32_t n_rank)
{
    char received[24], weighed[24], disk[24], states[24];
    if (n_rank < 2)
        return;
    const struct moec_compile_rank_forecast rank = moec_compile_rank_estimate(&forecast->stages, n_rank);
    cli_print_wrapped(
        stdout, 4,
        "  each of %" PRIu32
        " ranks: receives about %s from the others, and keeps %s of fitted weights and up to %s of "
        "hidden states in memory or temporary files; only the first rank has the journal. To weigh "
        "bitwidths, each rank also receives up to %s of encoded experts, if that is quicker than encoding "
        "these experts itself\n",
        n_rank, cli_size_text(received, rank.received_bytes),
        cli_size_text(disk, forecast->stages.fitted_bytes), cli_size_text(states, rank.state_bytes),
        cli_size_text(weighed, rank.weighed_bytes));
}

static void put_stage(struct moec_json_out *phases, const char *name, double windows, double core_seconds)
{
    struct moec_json_out *stage = moec_json_out_object();
    moec_json_out_double(stage, "windows", windows);
    moec_json_out_double(stage, "core_seconds", core_seconds);
    moec_json_out_node(phases, name, stage);
}

static struct moec_json_out *json_ranks(const struct cli_compile_forecast *forecast, uint32_t n_rank)
{
    const struct moec_compile_rank_forecast rank = moec_compile_rank_estimate(&forecast->stages, n_rank);
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_u64(node, "count", n_rank);
    moec_json_out_u64(node, "received_bytes", rank.received_bytes);
    moec_json_out_u64(node, "weighed_bytes", rank.weighed_bytes);
    moec_json_out_u64(node, "fitted_bytes", forecast->stages.fitted_bytes);
    moec_json_out_u64(node, "state_bytes", rank.state_bytes);
    moec_json_out_u64(node, "disk_bytes", forecast->stages.fitted_bytes + rank.state_bytes);
    return node;
}

struct moec_json_out *cli_json_compile_forecast(const struct cli_compile_forecast *forecast, uint32_t n_rank)
{
    struct moec_json_out *node = moec_json_out_object(), *phases = moec_json_out_object();
    const struct moec_compile_forecast *stages = &forecast->stages;
    moec_json_out_double(node, "windows", forecast->counted.all);
    moec_json_out_double(node, "seconds", forecast->seconds);
    moec_json_out_double(node, "core_seconds", forecast->core_seconds);
    moec_json_out_u64(node, "memory_bytes", forecast->work_bytes + forecast->layer_bytes);
    moec_json_out_u64(node, "fitted_bytes", stages->fitted_bytes);
    if (forecast->counted.original > 0)
        put_stage(phases, "routing, original", forecast->counted.original,
                  forecast->counted.original * forecast->window.core_seconds);
    for (uint32_t i = 0; i < stages->n_phase; i++)
        put_stage(phases, stages->phases[i].name, stages->phases[i].windows, stage_seconds(forecast, i));
    moec_json_out_node(node, "phases", phases);
    if (n_rank > 1)
        moec_json_out_node(node, "ranks", json_ranks(forecast, n_rank));
    return node;
}

/* ---- before a compile ---- */

static struct cli_compile_forecast at_scope(const struct moec_compile_request *request, bool has_profile,
                                            struct moec_forecast_time window, uint32_t scope)
{
    struct moec_compile_options options = *request->options;
    struct moec_compile_request changed = *request;
    options.target.scope = scope;
    changed.options = &options;
    return cli_forecast_compile(&changed, has_profile, window);
}

/* "moec compile: note: this takes about 3 h 10 min on 8 threads here (19 core-hours)": and what less takes. */
static void say_long(struct cli_progress *progress, const struct moec_compile_request *request,
                     const struct cli_compile_forecast *all, double times)
{
    const uint32_t n_thread = (uint32_t)moec_pool_make(request->options->by.n_threads).n_threads;
    char line[400], whole[24], fewer[24], least[24];
    struct moec_compile_request few = *request;
    cli_duration_text(whole, times * all->seconds);
    cli_duration_text(least, at_scope(request, false, all->window, MOEC_COMPILE_SCOPES - 1).seconds);
    const int n =
        snprintf(line, sizeof line,
                 "moec %s: note: this takes about %s on %" PRIu32 " threads here if the data has %" PRIu32
                 " windows (%.1f core-hours)",
                 progress->job, whole, n_thread, all->counted.n_drawn, times * all->core_seconds / 3600);
    size_t used = n > 0 ? (size_t)n : 0;
    if (request->options->search.offers_variants && times <= 1)
        used += (size_t)snprintf(
            line + used, sizeof line - used,
            "; --time-limit can shorten the compile to about %s, but makes the bundle larger", least);
    if (all->counted.n_drawn > FEWER_WINDOWS) {
        cli_default_parts(FEWER_WINDOWS, few.n_part);
        cli_duration_text(fewer, times * cli_forecast_compile(&few, false, all->window).seconds);
        (void)snprintf(line + used, sizeof line - used,
                       "; --samples %u takes about %s, but may prove only a larger loss", FEWER_WINDOWS,
                       fewer);
    }
    cli_progress_note(progress, line);
}

static void say_scope(struct cli_progress *progress, const struct cli_compile_forecast *forecast,
                      uint32_t level)
{
    const struct moec_compile_scope *scope = moec_compile_scope_at(level);
    char line[400], duration[24], fit[48] = "";
    cli_duration_text(duration, forecast->seconds);
    if (scope->n_fit < MOEC_DEFAULT_SEARCH_WINDOWS)
        (void)snprintf(fit, sizeof fit, ", weights are fitted to %" PRIu32 " at %" PRIu32 " bitwidths",
                       scope->n_fit, scope->n_expert_codec);
    (void)snprintf(line, sizeof line,
                   "moec %s: note: to keep --time-limit, plans are compared on %" PRIu32
                   " windows and tested on at most %" PRIu32 "%s: about %s; the promise is the same",
                   progress->job, scope->n_search, scope->n_certify, fit, duration);
    cli_progress_note(progress, line);
}

static enum moec_status refuse(const struct cli_compile_forecast *least, double limit_seconds,
                               struct moec_error *err)
{
    char needed[24], limit[24];
    cli_duration_text(needed, least->seconds);
    cli_duration_text(limit, limit_seconds);
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "--time-limit is %s, but the shortest compile of this model takes about %s here: give more "
        "time, more threads or fewer --samples",
        limit, needed);
}

const char *cli_many_cores_text(char text[static 24], double core_seconds)
{
    cli_duration_text(text, core_seconds / CLI_MANY_THREADS);
    return text;
}

void cli_print_compile_forecast(const struct cli_compile_forecast *forecast, int n_threads, uint32_t n_rank)
{
    char here[24], many[24];
    cli_duration_text(here, forecast->seconds);
    cli_print(stdout, "forecast: about %s on %" PRIu32 " threads here, %s on %u idle cores like these\n",
              here, (uint32_t)moec_pool_make(n_threads).n_threads,
              cli_many_cores_text(many, forecast->core_seconds), CLI_MANY_THREADS);
    cli_print_compile_stages(forecast);
    cli_print_compile_ranks(forecast, n_rank);
}

enum moec_status cli_estimate_compile(const struct moec_compile_request *request, bool has_profile,
                                      struct cli_compile_forecast *forecast, struct moec_error *err)
{
    const struct moec_forecast_request window = {.config = request->config,
                                                 .kernels = request->options->by.kernels,
                                                 .n_threads = request->options->by.n_threads,
                                                 .seq_len_tokens = request->seq_len_tokens};
    struct moec_forecast_time pace;
    MOEC_TRY(moec_forecast_window(&window, &pace, err));
    *forecast = cli_forecast_compile(request, has_profile, pace);
    return MOEC_OK;
}

enum moec_status cli_warn_long_compile(struct cli_progress *progress,
                                       const struct moec_compile_request *request, double times,
                                       struct moec_error *err)
{
    const double n_thread = (double)moec_pool_make(request->options->by.n_threads).n_threads;
    const double slowest = (request->seq_len_tokens - 1) *
                           (double)moec_cost_from_layer(request->config, 0, 1, 0, 1) / LEAST_PACE / n_thread;
    struct cli_compile_forecast all = cli_forecast_compile(
        request, false,
        (struct moec_forecast_time){.seconds = slowest, .product_seconds = 1 / LEAST_PACE / n_thread});
    if (times * all.seconds < LONG_SECONDS)
        return MOEC_OK;
    MOEC_TRY(cli_estimate_compile(request, false, &all, err));
    if (times * all.seconds >= LONG_SECONDS)
        say_long(progress, request, &all, times);
    return MOEC_OK;
}

enum moec_status cli_limit_compile(struct cli_progress *progress, const struct moec_compile_request *request,
                                   bool has_profile, double limit_seconds,
                                   struct cli_compile_forecast *forecast, struct moec_error *err)
{
    uint32_t scope = 0;
    MOEC_TRY(cli_estimate_compile(request, has_profile, forecast, err));
    while (forecast->seconds > limit_seconds && scope + 1 < MOEC_COMPILE_SCOPES)
        *forecast = at_scope(request, has_profile, forecast->window, ++scope);
    if (forecast->seconds > limit_seconds)
        return refuse(forecast, limit_seconds, err);
    forecast->scope = scope;
    if (scope > 0)
        say_scope(progress, forecast, scope);
    return MOEC_OK;
}
