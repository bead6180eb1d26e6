/* Rows begin each round at another place, so none always follows the same neighbour. The sample that is not
 * counted is written where the first counted one will be, and is overwritten. A row's failure ends that row
 * alone; a request to stop ends all. Workers are forked, so this process frees what it can before: what it
 * holds counts in each one's peak. */
#include "profiler/bench/bench.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle.h"
#include "profiler/bench/bench_bandwidth.h"
#include "profiler/bench/bench_memory.h"
#include "profiler/bench/bench_plan.h"
#include "profiler/bench/bench_row.h"
#include "profiler/bench/bench_tokens.h"
#include "profiler/common/available_memory.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- preparing ---- */

/* Rows take turns as far as there is memory for them at once. */
static enum moec_status divide(const struct moec_bundle *bundle, struct moec_bench *bench,
                               struct moec_error *err)
{
    uint64_t *row_bytes = NULL;
    MOEC_TRY(moec_alloc((void **)&row_bytes, bench->n_row, sizeof *row_bytes, "rows", err));
    for (uint32_t r = 0; r < bench->n_row; r++)
        row_bytes[r] = moec_bench_row_bytes(bundle, &bench->rows[r]);
    moec_bench_make_groups(bench, row_bytes, moec_available_bytes("/proc", "/sys/fs/cgroup"));
    free(row_bytes);
    return MOEC_OK;
}

static enum moec_status check_tokens(const struct moec_bundle *bundle,
                                     const struct moec_bench_options *options, struct moec_error *err)
{
    const uint64_t length = (uint64_t)options->prompt_tokens + options->n_tokens;
    if (options->n_sample == 0 || options->prompt_tokens == 0 || options->n_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the numbers of samples, prompt tokens and generated tokens must each be 1 or more");
    if (length <= bundle->config.n_position)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_LIMIT,
                     "a sample has %" PRIu64 " tokens including its prompt, but the model has "
                     "only %" PRIu32 " positions: lower --prompt-tokens or --tokens",
                     length, bundle->config.n_position);
}

/* A file of the row's own: its name with what file names should not have made plain. */
static enum moec_status name_trace(const struct moec_bench *bench, struct moec_bench_row *row,
                                   struct moec_error *err)
{
    char name[MOEC_BENCH_NAME + 8];
    if (bench->options.traces == NULL)
        return MOEC_OK;
    (void)snprintf(name, sizeof name, "%s.json", row->name);
    for (char *at = name; *at != '\0'; at++)
        if (*at == ' ' || *at == '/' || *at == ',' || *at == '%')
            *at = '_';
    MOEC_TRY(moec_path_join(&row->trace, bench->options.traces, name, err));
    row->engine.trace.path = row->trace;
    row->engine.trace.scores = bench->options.engine.trace.scores;
    return bench->options.check_trace != NULL
               ? bench->options.check_trace(bench->options.check_context, row->trace, err)
               : MOEC_OK;
}

static enum moec_status prepare(struct moec_bench *bench, struct moec_error *err)
{
    const struct moec_bench_options *options = &bench->options;
    struct moec_bundle *bundle = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(options->path, &bundle, err));
    MOEC_TRY_OUT(check_tokens(bundle, options, err));
    MOEC_TRY_OUT(moec_bench_plan(bundle, bench, err));
    MOEC_TRY_OUT(divide(bundle, bench, err));
    for (uint32_t r = 0; r < bench->n_row; r++)
        MOEC_TRY_OUT(name_trace(bench, &bench->rows[r], err));
    bench->tokens = (struct moec_bench_tokens){.n_sample = options->n_sample,
                                               .prompt_tokens = options->prompt_tokens,
                                               .n_tokens = options->n_tokens};
    MOEC_TRY_OUT(moec_bench_tokens_make(bundle, options->rows, &bench->tokens, err));
    MOEC_TRY_OUT(moec_bench_bandwidth_find(bundle, bench, err));
out:
    moec_bundle_close(bundle);
    /* What this process holds when it forks counts in every worker. */
    (void)malloc_trim(0);
    return status;
}

/* ---- running ---- */

struct run {
    struct moec_bench *bench;
    const struct moec_progress *progress;
    const char *phase;
    uint32_t n_done, n_total;
    struct moec_bench_worker *workers; /* (n_row), owned */
    struct moec_bench_worker_setup *setups;
};

static enum moec_status poll_progress(void *context, struct moec_error *err)
{
    const struct run *run = context;
    if (run->progress == NULL || run->progress->report == NULL)
        return MOEC_OK;
    const enum moec_status status =
        run->progress->report(run->progress->context, run->phase, run->n_done, run->n_total);
    return status == MOEC_OK ? MOEC_OK
                             : moec_fail(err, status, "stopped after %" PRIu32 " of %" PRIu32 " samples",
                                         run->n_done, run->n_total);
}

/* A row's failure is its own; being told to stop is everybody's. */
static enum moec_status settle(struct run *run, struct moec_bench_row *row, uint32_t r,
                               const struct moec_error *theirs, struct moec_error *err)
{
    moec_bench_worker_end(&run->workers[r]);
    if (theirs->status == MOEC_ERR_CANCELLED)
        return moec_fail(err, theirs->status, "%s", theirs->message);
    row->error = *theirs;
    moec_progress_note(run->progress, "row '%s' of the bench failed: %s", row->name, theirs->message);
    return MOEC_OK;
}

static enum moec_status open_row(struct run *run, uint32_t r, struct moec_error *err)
{
    struct moec_bench *bench = run->bench;
    struct moec_bench_row *row = &bench->rows[r];
    const struct moec_bench_wait wait = {.poll = poll_progress, .context = run};
    struct moec_error theirs = {0};
    const uint64_t n_sample = bench->tokens.n_sample;
    MOEC_TRY(moec_alloc((void **)&row->samples, n_sample, sizeof *row->samples, "samples", err));
    MOEC_TRY(moec_alloc((void **)&row->decoded, n_sample * bench->tokens.n_tokens, sizeof *row->decoded,
                        "times", err));
    MOEC_TRY(
        moec_alloc((void **)&row->bytes_per_second, n_sample, sizeof *row->bytes_per_second, "rates", err));
    run->setups[r] = (struct moec_bench_worker_setup){
        .path = bench->options.path, .engine = row->engine, .tokens = &bench->tokens};
    MOEC_TRY(moec_bench_worker_start(&run->setups[r], run->workers, r, &run->workers[r], err));
    if (moec_bench_worker_opened(&run->workers[r], &wait, &row->opened, &theirs) != MOEC_OK)
        return settle(run, row, r, &theirs, err);
    return MOEC_OK;
}

static enum moec_status run_sample(struct run *run, uint32_t r, uint32_t sample, struct moec_error *err)
{
    struct moec_bench *bench = run->bench;
    struct moec_bench_row *row = &bench->rows[r];
    const struct moec_bench_wait wait = {.poll = poll_progress, .context = run};
    struct moec_error theirs = {0};
    /* What is not counted stands where the first sample will be written. */
    const uint32_t slot = sample < bench->tokens.n_sample ? sample : 0;
    run->n_done++;
    if (row->error.status != MOEC_OK)
        return MOEC_OK;
    if (moec_bench_worker_run(
            &run->workers[r], sample, &wait, &row->samples[slot],
            &(struct moec_bench_decoded){row->decoded + (uint64_t)slot * bench->tokens.n_tokens,
                                         bench->tokens.n_tokens},
            &theirs) != MOEC_OK)
        return settle(run, row, r, &theirs, err);
    return MOEC_OK;
}

/* A group's rows once, in an order that turns from sample to sample. */
static enum moec_status run_round(struct run *run, uint32_t group, uint32_t sample, uint32_t first,
                                  struct moec_error *err)
{
    for (uint32_t i = 0; i < run->bench->n_row; i++) {
        const uint32_t r = (first + i) % run->bench->n_row;
        if (run->bench->rows[r].group != group)
            continue;
        MOEC_TRY(run_sample(run, r, sample, err));
        MOEC_TRY(poll_progress(run, err));
    }
    return MOEC_OK;
}

/* The engine of a row closes: its trace appears, or the row says why not. */
static void finish_row(struct run *run, uint32_t r)
{
    struct moec_bench_row *row = &run->bench->rows[r];
    struct moec_error theirs = {0};
    if (moec_bench_worker_finish(&run->workers[r], &theirs) == MOEC_OK || row->trace == NULL)
        return;
    row->trace_error = theirs;
    run->bench->n_untraced++;
    moec_progress_note(run->progress, "row '%s' has no trace: %s", row->name, row->trace_error.message);
}

static enum moec_status run_group(struct run *run, uint32_t group, struct moec_error *err)
{
    const uint32_t n_row = run->bench->n_row, n_sample = run->bench->tokens.n_sample;
    const struct moec_bench_row *rows = run->bench->rows;
    run->phase = "opening";
    for (uint32_t r = 0; r < n_row; r++)
        if (rows[r].group == group && rows[r].error.status == MOEC_OK)
            MOEC_TRY(open_row(run, r, err));
    run->phase = "benching";
    MOEC_TRY(run_round(run, group, n_sample, 0, err));
    for (uint32_t s = 0; s < n_sample; s++) {
        MOEC_TRY(run_round(run, group, s, s * n_row / n_sample, err));
        MOEC_TRY(moec_bench_bandwidth_follow(run->bench, group, s, err));
    }
    for (uint32_t r = 0; r < n_row; r++)
        if (rows[r].group == group)
            finish_row(run, r);
    return MOEC_OK;
}

static enum moec_status run_rows(struct run *run, struct moec_error *err)
{
    const struct moec_bench *bench = run->bench;
    run->n_total = bench->n_row * (bench->tokens.n_sample + 1);
    for (uint32_t r = 0; r < bench->n_row; r++) {
        run->workers[r].socket = -1;
        if (bench->rows[r].error.status != MOEC_OK)
            moec_progress_note(run->progress, "row '%s' is left out: %s", bench->rows[r].name,
                               bench->rows[r].error.message);
    }
    for (uint32_t group = 0; group < bench->n_group; group++)
        MOEC_TRY(run_group(run, group, err));
    return MOEC_OK;
}

enum moec_status moec_bench_run(const struct moec_bench_options *options,
                                const struct moec_progress *progress, struct moec_bench *bench,
                                struct moec_error *err)
{
    struct run run = {.bench = bench, .progress = progress};
    enum moec_status status = MOEC_OK;
    *bench = (struct moec_bench){.options = *options};
    MOEC_TRY_OUT(prepare(bench, err));
    MOEC_TRY_OUT(moec_alloc((void **)&run.workers, bench->n_row, sizeof *run.workers, "workers", err));
    MOEC_TRY_OUT(moec_alloc((void **)&run.setups, bench->n_row, sizeof *run.setups, "workers", err));
    MOEC_TRY_OUT(run_rows(&run, err));
    MOEC_TRY_OUT(moec_bench_summarise(bench, err));
out:
    for (uint32_t r = 0; run.workers != NULL && r < bench->n_row; r++)
        moec_bench_worker_end(&run.workers[r]);
    free(run.workers);
    free(run.setups);
    if (status != MOEC_OK)
        moec_bench_release(bench);
    return status;
}

void moec_bench_release(struct moec_bench *bench)
{
    for (uint32_t r = 0; r < bench->n_row; r++) {
        free(bench->rows[r].samples);
        free(bench->rows[r].decoded);
        free(bench->rows[r].bytes_per_second);
        free(bench->rows[r].trace);
    }
    free(bench->rows);
    moec_bench_tokens_release(&bench->tokens);
    *bench = (struct moec_bench){0};
}
