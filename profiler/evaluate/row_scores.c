/* Row i is scored by rank i mod n, and its values stand at i: ranks do not show in the result. Every metric
 * of the kind is filled from one run. Masses are exponentials relative to the largest, since likelihoods of
 * long choices underflow. */
#include "profiler/evaluate/row_scores.h"

#include "formats/base/memory.h"
#include "profiler/common/random.h"
#include "profiler/tasks/answer.h"
#include "profiler/tasks/rouge.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct scoring {
    struct moec_continuation *continuation;
    const struct moec_task *task;
    const struct moec_rows *rows;
    struct moec_candidate candidates[MOEC_TASK_MAX_CHOICES];
};

static enum moec_status score_text(const struct scoring *job, const struct moec_row *row, const char *text,
                                   size_t n_bytes, double *values, struct moec_error *err)
{
    const char *reference = job->rows->text + row->reference_offset;
    if (moec_task_metric_kind(job->task->metric) == MOEC_TASK_KIND_SUMMARY) {
        const struct moec_rouge_texts texts = {reference, row->reference_bytes, text, n_bytes,
                                               job->task->stem != 0};
        struct moec_rouge rouge[MOEC_ROUGE_KINDS];
        MOEC_TRY(moec_rouge_measure(&texts, rouge, err));
        for (int k = 0; k < MOEC_ROUGE_KINDS; k++)
            values[k] = rouge[k].f1;
        return MOEC_OK;
    }
    if (moec_task_metric_kind(job->task->metric) == MOEC_TASK_KIND_COMPLETION) {
        values[0] = !moec_text_is_blank(text, n_bytes);
        return MOEC_OK;
    }
    struct moec_answer right, given;
    if (!moec_answer_take(job->task, reference, row->reference_bytes, &right))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the row's reference text has no answer that the task's field 'take' would find%s%s%s",
            job->task->after[0] != '\0' ? " after '" : "", job->task->after,
            job->task->after[0] != '\0' ? "'" : "");
    values[0] =
        moec_answer_take(job->task, text, n_bytes, &given) && moec_answer_equal(job->task, &right, &given);
    return MOEC_OK;
}

static enum moec_status generate(struct scoring *job, const struct moec_row *row,
                                 struct moec_row_result *result, struct moec_continuation_cost *cost,
                                 double *values, struct moec_error *err)
{
    MOEC_TRY(moec_continuation_generate(job->continuation,
                                        &(struct moec_prompt){job->rows->text + row->prompt_offset,
                                                              row->prompt_bytes, job->task->n_tokens,
                                                              job->task->stops},
                                        &result->text, &result->n_bytes, cost, err));
    return score_text(job, row, result->text, result->n_bytes, values, err);
}

/* Bytes of a choice without the white space that parts it from the prompt. */
static double text_bytes(const struct moec_candidate *candidate)
{
    size_t blank = 0;
    while (blank < candidate->n_bytes && (candidate->bytes[blank] == ' ' || candidate->bytes[blank] == '\n' ||
                                          candidate->bytes[blank] == '\t'))
        blank++;
    return candidate->n_bytes > blank ? (double)(candidate->n_bytes - blank) : 1;
}

static double likelihood(const struct moec_candidate *candidate, enum moec_task_metric metric)
{
    double divisor = metric == MOEC_TASK_METRIC_ACCURACY_BYTES    ? text_bytes(candidate)
                     : metric == MOEC_TASK_METRIC_ACCURACY_TOKENS ? candidate->n_tokens
                                                                  : 1;
    return candidate->log_likelihood / divisor;
}

/* The part that right choices have of the sum of all choices' likelihoods. */
static double right_mass(const struct scoring *job, const struct moec_row *row)
{
    double most = -INFINITY, right = 0, all = 0;
    for (uint32_t i = 0; i < row->n_choice; i++)
        most = fmax(most, job->candidates[i].log_likelihood);
    for (uint32_t i = 0; i < row->n_choice; i++) {
        const double mass = exp(job->candidates[i].log_likelihood - most);
        all += mass;
        right += job->rows->choices[row->first_choice + i].is_right ? mass : 0;
    }
    return right / all;
}

static enum moec_status choose(struct scoring *job, const struct moec_row *row,
                               struct moec_row_result *result, struct moec_continuation_cost *cost,
                               double *values, struct moec_error *err)
{
    for (uint32_t i = 0; i < row->n_choice; i++) {
        const struct moec_row_choice *choice = &job->rows->choices[row->first_choice + i];
        job->candidates[i] = (struct moec_candidate){.prompt = job->rows->text + choice->prompt_offset,
                                                     .prompt_bytes = choice->prompt_bytes,
                                                     .bytes = job->rows->text + choice->offset,
                                                     .n_bytes = choice->n_bytes};
    }
    MOEC_TRY(moec_continuation_score(job->continuation, job->candidates, row->n_choice, cost, err));
    result->candidates = job->candidates;
    result->n_candidate = row->n_choice;
    uint32_t n_metric = 0;
    enum moec_task_metric first = moec_task_kind_first(MOEC_TASK_KIND_CHOICE, &n_metric);
    for (uint32_t m = 0; m < n_metric; m++) {
        const enum moec_task_metric metric = (enum moec_task_metric)(first + m);
        uint32_t best = 0;
        if (metric == MOEC_TASK_METRIC_RIGHT_MASS) {
            values[m] = right_mass(job, row);
            continue;
        }
        for (uint32_t i = 1; i < row->n_choice; i++)
            if (likelihood(&job->candidates[i], metric) > likelihood(&job->candidates[best], metric))
                best = i;
        values[m] = job->rows->choices[row->first_choice + best].is_right;
    }
    return MOEC_OK;
}

static enum moec_status draw(const struct moec_rows *rows, const struct moec_row_scores_options *options,
                             struct moec_row_scores *scores, struct moec_error *err)
{
    const bool is_chosen = options->chosen != NULL;
    const bool all = !is_chosen && (options->n_sample == 0 || options->n_sample >= rows->n_row);
    for (uint32_t i = 0; is_chosen && i < options->n_sample; i++)
        if (options->chosen[i] >= rows->n_row)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "row %" PRIu64 " was chosen, but the data '%s' has only %zu rows",
                             options->chosen[i], rows->name, rows->n_row);
    scores->n_row = all ? (uint32_t)rows->n_row : options->n_sample;
    MOEC_TRY(
        moec_alloc((void **)&scores->index, rows->n_row, sizeof *scores->index, "the list of rows", err));
    for (size_t i = 0; i < rows->n_row; i++)
        scores->index[i] = i;
    struct moec_random random = {options->seed};
    if (is_chosen)
        memcpy(scores->index, options->chosen, options->n_sample * sizeof *options->chosen);
    else if (!all)
        moec_random_draw(&random, scores->index, rows->n_row, scores->n_row);
    return moec_alloc((void **)&scores->values, (uint64_t)scores->n_row * scores->n_metric, sizeof(double),
                      "scores of the rows", err);
}

static enum moec_status score_row(struct scoring *job, uint32_t i,
                                  const struct moec_row_scores_options *options,
                                  struct moec_row_scores *scores, struct moec_error *err)
{
    const uint64_t index = scores->index[i];
    const struct moec_row *row = &job->rows->rows[index];
    double *values = scores->values + (size_t)i * scores->n_metric;
    struct moec_row_result result = {.index = index, .row = row, .values = values};
    struct moec_continuation_cost cost;
    const bool is_choice = moec_task_metric_kind(job->task->metric) == MOEC_TASK_KIND_CHOICE;
    enum moec_status status = is_choice ? choose(job, row, &result, &cost, values, err)
                                        : generate(job, row, &result, &cost, values, err);
    if (status != MOEC_OK) {
        moec_error_prefix(err, "row at line %" PRIu64 " of '%s'", row->line, job->rows->name);
        return status;
    }
    scores->n_tokens += cost.n_tokens;
    scores->n_cut += cost.n_cut > 0;
    return options->done != NULL ? options->done(options->context, i + 1, scores->n_row, &result, err)
                                 : MOEC_OK;
}

/* Scores of all rows, and counts over them, to all ranks. */
static enum moec_status gather(struct moec_ranks *ranks, struct moec_row_scores *scores,
                               struct moec_error *err)
{
    uint64_t counts[] = {scores->n_tokens, scores->n_cut};
    MOEC_TRY(moec_ranks_gather(ranks, scores->values, scores->n_row, scores->n_metric * sizeof(double), err));
    MOEC_TRY(moec_ranks_sum(ranks, counts, 2, err));
    scores->n_tokens = counts[0];
    scores->n_cut = (uint32_t)counts[1];
    return MOEC_OK;
}

enum moec_status moec_row_scores_measure(struct moec_continuation *continuation, const struct moec_task *task,
                                         const struct moec_rows *rows,
                                         const struct moec_row_scores_options *options,
                                         struct moec_row_scores *scores, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct scoring *job = NULL;
    *scores = (struct moec_row_scores){0};
    const enum moec_task_kind kind = moec_task_metric_kind(task->metric);
    if (kind == MOEC_TASK_KIND_WINDOWS)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "task '%s' scores windows of text, expected a task that scores rows", task->name);
    scores->first = moec_task_kind_first(kind, &scores->n_metric);
    MOEC_TRY(moec_alloc((void **)&job, 1, sizeof *job, "scores of the rows", err));
    *job = (struct scoring){.continuation = continuation, .task = task, .rows = rows};
    MOEC_TRY_OUT(draw(rows, options, scores, err));
    for (uint32_t i = 0; i < scores->n_row; i++)
        if (moec_ranks_has(options->ranks, i))
            MOEC_TRY_OUT(score_row(job, i, options, scores, err));
    MOEC_TRY_OUT(gather(options->ranks, scores, err));
out:
    free(job);
    if (status != MOEC_OK)
        moec_row_scores_release(scores);
    return status;
}

void moec_row_scores_release(struct moec_row_scores *scores)
{
    free(scores->index);
    free(scores->values);
    *scores = (struct moec_row_scores){0};
}

enum moec_status moec_row_scores_column(const struct moec_row_scores *scores, enum moec_task_metric metric,
                                        double **column, struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)column, scores->n_row, sizeof **column, "scores of the rows", err));
    for (uint32_t i = 0; i < scores->n_row; i++)
        (*column)[i] = scores->values[(size_t)i * scores->n_metric + (metric - scores->first)];
    return MOEC_OK;
}

double moec_row_scores_mean(const struct moec_row_scores *scores, enum moec_task_metric metric)
{
    double sum = 0;
    for (uint32_t i = 0; i < scores->n_row; i++)
        sum += scores->values[(size_t)i * scores->n_metric + (metric - scores->first)];
    return scores->n_row > 0 ? sum / scores->n_row : 0;
}
