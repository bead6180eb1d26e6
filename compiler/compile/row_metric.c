/* Rows of each part are drawn once, before anything is measured, and scored in that order. A row is fresh if
 * none of its windows ranked experts or fitted weights; those of the certificate part did neither. A file
 * that cannot be matched row by row is refused: any of its rows may have been seen. */
#include "compiler/compile/row_metric.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

struct moec_row_metric {
    const struct moec_row_metric_options *options;
    const struct moec_checkpoint *checkpoint;
    struct moec_rows rows;
    uint64_t *chosen[MOEC_PART_COUNT]; /* rows of each part, owned */
    uint32_t n_chosen[MOEC_PART_COUNT];
};

/* ---- rows ---- */

/* Whether the profile was made from the same file, so that rows may have been seen before. */
static bool is_same_file(const struct moec_rows *rows, const struct moec_profile *profile)
{
    return profile != NULL && memcmp(rows->digest, profile->data_digest, sizeof rows->digest) == 0;
}

/* Whether each row of the file is a window of the profile. */
static bool is_profiled(const struct moec_rows *rows, const struct moec_profile *profile)
{
    return is_same_file(rows, profile) && profile->window_source != NULL &&
           profile->n_window_available == rows->n_row;
}

static enum moec_status take_rows(struct moec_row_metric *metric, enum moec_part part, uint32_t n,
                                  struct moec_error *err)
{
    return moec_alloc((void **)&metric->chosen[part], (uint64_t)n + 1, sizeof(uint64_t), "rows of a part",
                      err);
}

/* The rows of the profile, for what they were drawn for; of each part no more than asked for. */
static enum moec_status take_profiled(struct moec_row_metric *metric, const struct moec_profile *profile,
                                      struct moec_error *err)
{
    uint32_t sizes[MOEC_PART_COUNT] = {0};
    struct moec_part_request request = metric->options->parts;
    const bool all = request.n_window == 0;
    request.min_part_windows = MOEC_MIN_PART_WINDOWS;
    MOEC_TRY(moec_parts_size(&request, profile->n_drawn, sizes, err));
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        MOEC_TRY(take_rows(metric, (enum moec_part)p, profile->n_drawn, err));
    for (uint32_t w = 0; w < profile->n_drawn; w++)
        for (int p = 0; p < MOEC_PART_COUNT; p++)
            if (moec_part_has((enum moec_part)p, profile->window_part, w) &&
                (all || metric->n_chosen[p] < sizes[p]))
                metric->chosen[p][metric->n_chosen[p]++] = profile->window_index[w];
    return MOEC_OK;
}

/* Leaves in `fresh` the rows whose windows neither ranked experts nor fitted weights. */
static enum moec_status list_fresh(const struct moec_rows *rows, const struct moec_profile *profile,
                                   uint64_t *fresh, uint64_t *n_fresh, struct moec_error *err)
{
    uint8_t *seen = NULL;
    *n_fresh = 0;
    if (is_same_file(rows, profile) && profile->n_document != rows->n_row)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the profile was made from the same data, '%s', but not row by row as this task reads it, so moec "
            "cannot tell which rows already served to rank experts: make the profile again with this task, "
            "or give this command other data",
            rows->name);
    MOEC_TRY(moec_alloc((void **)&seen, rows->n_row, 1, "rows that were seen", err));
    for (uint32_t w = 0; is_same_file(rows, profile) && w < profile->n_window; w++)
        if (!moec_part_has(MOEC_PART_CERTIFICATE, profile->window_part, w))
            seen[profile->window_document[w]] = 1;
    for (uint64_t r = 0; r < rows->n_row; r++)
        if (seen[r] == 0)
            fresh[(*n_fresh)++] = r;
    free(seen);
    if (*n_fresh < 2 * MOEC_MIN_PART_WINDOWS && *n_fresh < rows->n_row)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "only %" PRIu64 " of the %zu rows of the data '%s' were not used to rank experts "
                         "or fit weights, and a certificate needs at least %d such rows. Profile fewer "
                         "windows (--samples), or give other rows",
                         *n_fresh, rows->n_row, rows->name, 2 * MOEC_MIN_PART_WINDOWS);
    return MOEC_OK;
}

static enum moec_status draw_rows(struct moec_row_metric *metric, const uint64_t *fresh, uint64_t n_fresh,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint32_t sizes[MOEC_PART_COUNT];
    uint64_t *starts = NULL;
    struct moec_part_draw draw = {0};
    struct moec_part_request request = metric->options->parts;
    request.min_part_windows = MOEC_MIN_PART_WINDOWS;
    MOEC_TRY_OUT(moec_parts_size(&request, n_fresh, sizes, err));
    MOEC_TRY_OUT(moec_alloc((void **)&starts, n_fresh, sizeof *starts, "the list of rows", err));
    for (uint64_t i = 0; i < n_fresh; i++)
        starts[i] = i;
    MOEC_TRY_OUT(moec_parts_draw(&(struct moec_part_documents){starts, n_fresh, n_fresh}, sizes,
                                 metric->options->seed, &draw, err));
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        MOEC_TRY_OUT(take_rows(metric, (enum moec_part)p, sizes[p], err));
    for (uint32_t i = 0; i < draw.n_window; i++)
        metric->chosen[draw.parts[i]][metric->n_chosen[draw.parts[i]]++] = fresh[draw.index[i]];
out:
    free(starts);
    moec_part_draw_release(&draw);
    return status;
}

static enum moec_status choose_rows(struct moec_row_metric *metric, const struct moec_profile *profile,
                                    struct moec_error *err)
{
    uint64_t *fresh = NULL, n_fresh = 0;
    if (is_profiled(&metric->rows, profile))
        return take_profiled(metric, profile, err);
    MOEC_TRY(moec_alloc((void **)&fresh, metric->rows.n_row, sizeof *fresh, "the list of rows", err));
    enum moec_status status = list_fresh(&metric->rows, profile, fresh, &n_fresh, err);
    if (status == MOEC_OK)
        status = draw_rows(metric, fresh, n_fresh, err);
    free(fresh);
    return status;
}

enum moec_status moec_row_metric_open(const struct moec_row_metric_options *options,
                                      const struct moec_checkpoint *checkpoint,
                                      const struct moec_profile *profile, struct moec_row_metric **out,
                                      struct moec_error *err)
{
    struct moec_row_metric *metric = NULL;
    if (moec_task_metric_kind(options->task.metric) == MOEC_TASK_KIND_WINDOWS)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "task '%s' measures perplexity, expected a task measured on rows",
                         options->task.name);
    if (moec_task_metric_kind(options->task.metric) == MOEC_TASK_KIND_COMPLETION)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "task '%s' writes completions, which moec does not judge: expected a task with a "
                         "score, such as gsm8k",
                         options->task.name);
    if (moec_checkpoint_tokenizer(checkpoint) == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model '%s' has no tokenizer, so it cannot be measured on text",
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
    for (int p = 0; p < MOEC_PART_COUNT; p++)
        free(metric->chosen[p]);
    free(metric);
}

uint32_t moec_row_metric_count(const struct moec_row_metric *metric, enum moec_part part)
{
    return metric->n_chosen[part];
}

const uint64_t *moec_row_metric_chosen(const struct moec_row_metric *metric, enum moec_part part, uint32_t *n)
{
    *n = metric->n_chosen[part];
    return metric->chosen[part];
}

const struct moec_rows *moec_row_metric_rows(const struct moec_row_metric *metric)
{
    return &metric->rows;
}

double moec_row_metric_guessing(const struct moec_row_metric *metric, enum moec_part part)
{
    double sum = 0;
    if (moec_task_metric_kind(metric->options->task.metric) != MOEC_TASK_KIND_CHOICE)
        return 0;
    for (uint32_t i = 0; i < metric->n_chosen[part]; i++) {
        const struct moec_row *row = &metric->rows.rows[metric->chosen[part][i]];
        uint32_t n_right = 0;
        for (uint32_t c = 0; c < row->n_choice; c++)
            n_right += metric->rows.choices[row->first_choice + c].is_right;
        sum += (double)n_right / row->n_choice;
    }
    return sum / metric->n_chosen[part];
}

/* ---- measuring ---- */

static struct moec_continuation_options continuation_options(const struct moec_row_metric *metric,
                                                             const struct moec_row_metric_means *means)
{
    const uint64_t memory_bytes = moec_rows_budget(metric->options->memory_bytes);
    return (struct moec_continuation_options){.kernels = means->kernels,
                                              .arithmetic = means->arithmetic,
                                              .text_bytes = moec_rows_left_bytes(&metric->rows, memory_bytes),
                                              .n_threads = means->n_threads,
                                              .n_context = metric->options->n_context,
                                              .generation = moec_checkpoint_generation(metric->checkpoint)};
}

uint64_t moec_row_metric_bytes(const struct moec_row_metric *metric,
                               const struct moec_row_metric_means *means)
{
    const struct moec_config *config = moec_checkpoint_config(metric->checkpoint);
    const struct moec_continuation_options options = continuation_options(metric, means);
    return metric->rows.text_bytes + moec_continuation_bytes(config, &options);
}

static enum moec_status row_done(void *context, uint32_t n_done, uint32_t n_row,
                                 const struct moec_row_result *result, struct moec_error *err)
{
    (void)result;
    return moec_progress_report(context, "rows", n_done, n_row, err);
}

enum moec_status moec_row_metric_measure(const struct moec_row_metric *metric, enum moec_part part,
                                         const struct moec_row_metric_means *means,
                                         const struct moec_progress *progress, double *scores,
                                         struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_continuation *continuation = NULL;
    struct moec_row_scores measured = {0};
    const struct moec_task *task = &metric->options->task;
    const struct moec_continuation_options options = continuation_options(metric, means);
    struct moec_progress own = progress != NULL ? *progress : (struct moec_progress){0};
    const struct moec_row_scores_options rows = {.n_sample = metric->n_chosen[part],
                                                 .chosen = metric->chosen[part],
                                                 .ranks = means->ranks,
                                                 .done = row_done,
                                                 .context = &own};
    MOEC_TRY_OUT(moec_continuation_create(means->model, means->experts,
                                          moec_checkpoint_tokenizer(metric->checkpoint), &options,
                                          &continuation, err));
    MOEC_TRY_OUT(moec_row_scores_measure(continuation, task, &metric->rows, &rows, &measured, err));
    for (uint32_t i = 0; i < measured.n_row; i++)
        scores[i] = measured.values[(size_t)i * measured.n_metric + (task->metric - measured.first)];
out:
    moec_row_scores_release(&measured);
    moec_continuation_free(continuation);
    return status;
}
