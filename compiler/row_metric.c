#include "compiler/row_metric.h"

#include "formats/base/memory.h"
#include "profiler/common/random.h"

#include <inttypes.h>
#include <string.h>

#define DEFAULT_SAMPLES 64u

struct moec_row_metric {
    const struct moec_row_metric_options *options;
    const struct moec_checkpoint *checkpoint;
    struct moec_rows rows;
    uint64_t *chosen[2]; /* rows of each part, owned */
    uint32_t n_chosen[2];
};

/* ---- rows ---- */

/* Whether the profile's windows are rows of this file. */
static bool is_profiled(const struct moec_rows *rows, const struct moec_profile *profile)
{
    return profile != NULL && profile->window_source != NULL &&
           memcmp(rows->digest, profile->data_digest, sizeof rows->digest) == 0 &&
           profile->n_window_available == rows->n_row;
}

static enum moec_status draw(const struct moec_row_metric_options *options, const struct moec_rows *rows,
                             uint32_t n, uint64_t **order, struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)order, rows->n_row, sizeof **order, "the list of rows", err));
    for (size_t i = 0; i < rows->n_row; i++)
        (*order)[i] = i;
    struct moec_random random = {options->seed};
    moec_random_draw(&random, *order, rows->n_row, n);
    return MOEC_OK;
}

/* Even places of the order are the search's, odd ones the certificate's. */
static enum moec_status part_rows(struct moec_row_metric *metric, const uint64_t *order, uint32_t n,
                                  struct moec_error *err)
{
    if (n / 2 < MOEC_MIN_PART_WINDOWS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%" PRIu32 " rows of '%s' give %" PRIu32
                         " to each part, expected at least %d; draw at least %d",
                         n, metric->rows.name, n / 2, MOEC_MIN_PART_WINDOWS, 2 * MOEC_MIN_PART_WINDOWS);
    for (uint32_t part = 0; part < 2; part++)
        MOEC_TRY(moec_alloc((void **)&metric->chosen[part], (uint64_t)n / 2 + 1, sizeof(uint64_t),
                            "rows of a part", err));
    for (uint32_t i = 0; i < n; i++)
        metric->chosen[i & 1u][metric->n_chosen[i & 1u]++] = order[i];
    return MOEC_OK;
}

static enum moec_status choose_rows(struct moec_row_metric *metric, const struct moec_profile *profile,
                                    struct moec_error *err)
{
    const struct moec_row_metric_options *options = metric->options;
    uint64_t *order = NULL;
    if (is_profiled(&metric->rows, profile)) {
        const uint32_t all = profile->n_window, asked = options->n_sample;
        return part_rows(metric, profile->window_index, asked > 0 && asked < all ? asked : all, err);
    }
    uint64_t n = options->n_sample > 0 ? options->n_sample : DEFAULT_SAMPLES;
    n = n < metric->rows.n_row ? n : metric->rows.n_row;
    enum moec_status status = draw(options, &metric->rows, (uint32_t)n, &order, err);
    if (status == MOEC_OK)
        status = part_rows(metric, order, (uint32_t)n, err);
    free(order);
    return status;
}

enum moec_status moec_row_metric_open(const struct moec_row_metric_options *options,
                                      const struct moec_checkpoint *checkpoint,
                                      const struct moec_profile *profile, struct moec_row_metric **out,
                                      struct moec_error *err)
{
    struct moec_row_metric *metric = NULL;
    if (moec_task_metric_kind(options->task.metric) == MOEC_TASK_KIND_WINDOWS)
        return moec_fail(err, MOEC_ERR_USAGE, "task '%s' measures perplexity, not rows", options->task.name);
    if (moec_checkpoint_tokenizer(checkpoint) == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "'%s' has no tokenizer, so it cannot be measured on text",
                         moec_checkpoint_folder(checkpoint));
    MOEC_TRY(moec_alloc((void **)&metric, 1, sizeof *metric, "rows to measure on", err));
    *metric = (struct moec_row_metric){.options = options, .checkpoint = checkpoint};
    enum moec_status status = moec_rows_read(&options->task, options->data_path,
                                             moec_rows_budget(options->memory_bytes), &metric->rows, err);
    if (status == MOEC_OK)
        status = choose_rows(metric, profile, err);
    if (status != MOEC_OK) {
        moec_row_metric_free(metric);
        return status;
    }
    *out = metric;
    return MOEC_OK;
}

void moec_row_metric_free(struct moec_row_metric *metric)
{
    if (metric == NULL)
        return;
    moec_rows_release(&metric->rows);
    free(metric->chosen[0]);
    free(metric->chosen[1]);
    free(metric);
}

uint32_t moec_row_metric_count(const struct moec_row_metric *metric, enum moec_part part)
{
    return metric->n_chosen[part];
}

const struct moec_rows *moec_row_metric_rows(const struct moec_row_metric *metric)
{
    return &metric->rows;
}

/* ---- measuring ---- */

static struct moec_continuation_options
continuation_options(const struct moec_row_metric *metric, const struct moec_kernels *kernels, int n_threads)
{
    const uint64_t memory_bytes = moec_rows_budget(metric->options->memory_bytes);
    return (struct moec_continuation_options){.kernels = kernels,
                                              .text_bytes = moec_rows_left_bytes(&metric->rows, memory_bytes),
                                              .n_threads = n_threads,
                                              .n_context = metric->options->n_context,
                                              .generation = moec_checkpoint_generation(metric->checkpoint)};
}

uint64_t moec_row_metric_bytes(const struct moec_row_metric *metric, int n_threads)
{
    const struct moec_config *config = moec_checkpoint_config(metric->checkpoint);
    const struct moec_continuation_options options = continuation_options(metric, NULL, n_threads);
    return metric->rows.text_bytes + moec_continuation_bytes(config, &options);
}

static enum moec_status row_done(void *context, uint32_t n_done, uint32_t n_row,
                                 const struct moec_row_result *result, struct moec_error *err)
{
    (void)result;
    return moec_progress_report(context, "rows", n_done, n_row, err);
}

enum moec_status moec_row_metric_measure(const struct moec_row_metric *metric, enum moec_part part,
                                         const struct moec_model *model, struct moec_experts *experts,
                                         const struct moec_kernels *kernels, int n_threads,
                                         const struct moec_progress *progress, double *scores,
                                         struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_continuation *continuation = NULL;
    struct moec_row_scores measured = {0};
    const struct moec_task *task = &metric->options->task;
    const struct moec_continuation_options options = continuation_options(metric, kernels, n_threads);
    struct moec_progress own = progress != NULL ? *progress : (struct moec_progress){0};
    const struct moec_row_scores_options rows = {.n_sample = metric->n_chosen[part],
                                                 .chosen = metric->chosen[part],
                                                 .done = row_done,
                                                 .context = &own};
    MOEC_TRY_OUT(moec_continuation_create(model, experts, moec_checkpoint_tokenizer(metric->checkpoint),
                                          &options, &continuation, err));
    MOEC_TRY_OUT(moec_row_scores_measure(continuation, task, &metric->rows, &rows, &measured, err));
    for (uint32_t i = 0; i < measured.n_row; i++)
        scores[i] = measured.values[(size_t)i * measured.n_metric + (task->metric - measured.first)];
out:
    moec_row_scores_release(&measured);
    moec_continuation_free(continuation);
    return status;
}
