/* Answers are written as rows are scored, and the file is committed before the reference is scored, whose
 * answers nobody wants. Both models draw the same rows by the same seed, so scores pair by their place. The
 * reference decides nothing and stays canonical. */
#include "cli/verbs/eval_rows.h"

#include "cli/print/print.h"
#include "cli/settings/generation_options.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/data_note.h"
#include "cli/terminal/json_output.h"
#include "formats/base/file.h"
#include "profiler/evaluate/continuation.h"
#include "profiler/evaluate/row_scores.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/generate/generate.h"
#include "runtime/kernels/arithmetic.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct rows_job {
    const struct cli_args *args;
    struct {
        const struct cli_measure_options *measure;
        const struct cli_eval_decisions *decisions;
        uint32_t n_context; /* --ctx, 0 = the default */
    } options;
    struct {
        const struct moec_source *source;
        struct moec_source reference;
    } models;
    struct moec_rows rows;
    struct {
        struct moec_route_counts counts; /* of the model's rows, where it decides */
        struct moec_row_scores scores, reference;
        double error; /* standard error of the score */
    } found;
    struct {
        struct moec_output answers;
        bool is_wanted;
    } written;
    struct {
        struct cli_progress *progress;
        const char *phase;
        bool is_expected;
    } shown;
};

/* One row of --answers. */
static enum moec_status write_answer(struct rows_job *job, const struct moec_row_result *result,
                                     struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object();
    char *line = NULL;
    const bool is_completion =
        moec_task_metric_kind(job->options.measure->data.task.metric) == MOEC_TASK_KIND_COMPLETION;
    if (is_completion) { /* as the harnesses of HumanEval and MBPP read it */
        moec_json_out_string_n(root, "task_id", job->rows.text + result->row->reference_offset,
                               result->row->reference_bytes);
        moec_json_out_string_n(root, "completion", result->text, result->n_bytes);
    } else {
        moec_json_out_u64(root, "line", result->row->line);
    }
    if (result->text != NULL && !is_completion)
        moec_json_out_string_n(root, "text", result->text, result->n_bytes);
    if (result->candidates != NULL) {
        struct moec_json_out *choices = moec_json_out_array();
        for (uint32_t i = 0; i < result->n_candidate; i++) {
            const struct moec_candidate *candidate = &result->candidates[i];
            struct moec_json_out *choice = moec_json_out_object();
            moec_json_out_double(choice, "log_likelihood", candidate->log_likelihood);
            moec_json_out_u64(choice, "tokens", candidate->n_tokens);
            moec_json_out_u64(choice, "bytes", candidate->n_bytes);
            moec_json_out_node(choices, NULL, choice);
        }
        moec_json_out_node(root, "choices", choices);
        moec_json_out_u64(root, "label", result->row->label);
    }
    for (uint32_t m = 0; m < job->found.scores.n_metric && !is_completion; m++)
        moec_json_out_double(root,
                             moec_task_metric_name((enum moec_task_metric)(job->found.scores.first + m)),
                             result->values[m]);
    enum moec_status status = moec_json_out_line(root, &line, err);
    if (status == MOEC_OK)
        status = moec_output_append(&job->written.answers, line, strlen(line), err);
    if (status == MOEC_OK)
        status = moec_output_append(&job->written.answers, "\n", 1, err);
    free(line);
    moec_json_out_free(root);
    return status;
}

static enum moec_status row_done(void *context, uint32_t n_done, uint32_t n_row,
                                 const struct moec_row_result *result, struct moec_error *err)
{
    struct rows_job *job = context;
    if (!job->shown.is_expected)
        cli_progress_expect(job->shown.progress, (cli_has(job->args, "reference") ? 2.0 : 1.0) * n_row);
    job->shown.is_expected = true;
    cli_progress_show(job->shown.progress, job->shown.phase, n_done, n_row);
    return job->written.is_wanted ? write_answer(job, result, err) : MOEC_OK;
}

static enum moec_status score(struct rows_job *job, const struct moec_source *source, const char *phase,
                              struct moec_row_scores *scores, struct moec_error *err)
{
    struct moec_continuation *continuation = NULL;
    struct moec_generation generation = *source->generation;
    struct moert_generation asked = moec_generation_to_public(&generation);
    const uint64_t text_bytes =
        moec_rows_left_bytes(&job->rows, moec_rows_budget(job->options.measure->memory.work_bytes));
    /* A reference takes the router's own. */
    const bool decides = source == job->models.source && moec_route_is_on(&job->options.decisions->route);
    struct moec_continuation_options options = {
        .kernels = job->options.measure->by.kernels,
        .n_threads = job->options.measure->by.n_threads,
        .n_context = job->options.n_context,
        .text_bytes = text_bytes,
        /* A reference stays canonical. */
        .arithmetic =
            source == job->models.source ? job->options.decisions->arithmetic : MOEC_ARITHMETIC_CANONICAL,
        .route = decides ? &job->options.decisions->route : NULL,
        .record_bytes = {source->record_bytes[0], source->record_bytes[1]},
        .generation = &generation};
    const struct moec_row_scores_options rows = {.n_sample = job->options.measure->data.parts.n_window,
                                                 .seed = job->options.measure->data.seed,
                                                 .ranks = job->args->ranks,
                                                 .done = row_done,
                                                 .context = job};
    if (source->tokenizer == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model '%s' has no tokenizer, so it cannot be measured on text", source->path);
    MOEC_TRY(cli_read_generation(job->args, &asked, err));
    moec_generation_take_public(&generation, &asked);
    job->shown.phase = phase;
    MOEC_TRY(moec_continuation_create(source->model, source->experts, source->tokenizer, &options,
                                      &continuation, err));
    enum moec_status status = moec_row_scores_measure(continuation, &job->options.measure->data.task,
                                                      &job->rows, &rows, scores, err);
    if (decides)
        job->found.counts = moec_continuation_route_counts(continuation);
    moec_continuation_free(continuation);
    if (status == MOEC_OK && decides)
        status = moec_ranks_sum(job->args->ranks, (uint64_t *)&job->found.counts,
                                sizeof job->found.counts / sizeof(uint64_t), err);
    return status;
}

/* Of the mean score, over rows. */
static enum moec_status measure_error(struct rows_job *job, struct moec_error *err)
{
    double *values = NULL, squares = 0;
    const enum moec_task_metric metric = job->options.measure->data.task.metric;
    const double mean = moec_row_scores_mean(&job->found.scores, metric), n = job->found.scores.n_row;
    MOEC_TRY(moec_row_scores_column(&job->found.scores, metric, &values, err));
    for (uint32_t i = 0; i < job->found.scores.n_row; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    free(values);
    job->found.error = n > 1 ? sqrt(squares / (n - 1) / n) : INFINITY;
    return MOEC_OK;
}

/* Against a model that scores 0 there is no loss to speak of; what was measured still stands. */
static bool has_loss(const struct rows_job *job)
{
    return moec_row_scores_mean(&job->found.reference, job->options.measure->data.task.metric) > 0;
}

static enum moec_status measure_loss(const struct rows_job *job, enum moec_task_metric metric,
                                     struct moec_loss *loss, struct moec_error *err)
{
    double *reference = NULL, *compiled = NULL;
    const struct moec_loss_options options = moec_loss_options_default();
    enum moec_status status = moec_row_scores_column(&job->found.reference, metric, &reference, err);
    if (status == MOEC_OK)
        status = moec_row_scores_column(&job->found.scores, metric, &compiled, err);
    if (status == MOEC_OK)
        status = moec_loss_measure_scores(reference, compiled, job->found.scores.n_row, &options, loss, err);
    free(reference);
    free(compiled);
    return status;
}

static enum moec_status print_json(const struct rows_job *job, const struct moec_loss *loss,
                                   struct moec_error *err)
{
    const enum moec_task_metric metric = job->options.measure->data.task.metric;
    char digest[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(job->rows.digest, digest);
    struct moec_json_out *root = moec_json_out_object(), *scores = moec_json_out_object();
    moec_json_out_string(root, "model", job->models.source->path);
    moec_json_out_string(root, "task", job->options.measure->data.task.name);
    moec_json_out_string(root, "metric", moec_task_metric_name(metric));
    moec_json_out_double(root, "value", moec_row_scores_mean(&job->found.scores, metric));
    moec_json_out_double(root, "standard_error", job->found.error);
    for (uint32_t m = 0; m < job->found.scores.n_metric; m++) {
        const enum moec_task_metric each = (enum moec_task_metric)(job->found.scores.first + m);
        moec_json_out_double(scores, moec_task_metric_name(each),
                             moec_row_scores_mean(&job->found.scores, each));
    }
    moec_json_out_node(root, "scores", scores);
    moec_json_out_u64(root, "samples", job->found.scores.n_row);
    moec_json_out_u64(root, "cut", job->found.scores.n_cut);
    moec_json_out_u64(root, "tokens", job->found.scores.n_tokens);
    moec_json_out_string(root, "data", job->rows.name);
    moec_json_out_string(root, "data_sha256", digest);
    if (job->options.decisions->meant != MOEC_ARITHMETIC_CANONICAL || cli_has(job->args, "arithmetic"))
        moec_json_out_string(root, "arithmetic", moec_arithmetic_name(job->options.decisions->arithmetic));
    if (cli_has(job->args, "kv"))
        moec_json_out_string(root, "kv", moec_kv_name(job->models.source->config));
    if (moec_route_is_on(&job->options.decisions->route))
        cli_eval_json_decisions(job->options.decisions, &job->found.counts, NULL, root);
    if (loss != NULL) {
        moec_json_out_double(root, "reference", loss->reference); /* of 0: the others are null */
        moec_json_out_double(root, "loss", loss->loss);
        moec_json_out_double(root, "loss_low", loss->low);
        moec_json_out_double(root, "loss_high", loss->high);
    }
    return cli_print_json(root, err);
}

static bool can_raise_context(const struct rows_job *job)
{
    const uint32_t n_position = job->models.source->model->config.n_position;
    const uint32_t n_default =
        n_position < MOEC_CONTINUATION_CONTEXT ? n_position : MOEC_CONTINUATION_CONTEXT;
    return (job->options.n_context > 0 ? job->options.n_context : n_default) < n_position;
}

static void print_result(const struct rows_job *job, const struct moec_loss *loss)
{
    const enum moec_task_metric metric = job->options.measure->data.task.metric;
    cli_print(stdout, "%s %.4f +- %.2g   (%" PRIu32 " rows, %" PRIu64 " tokens, '%s')\n",
              moec_task_metric_name(metric), moec_row_scores_mean(&job->found.scores, metric),
              job->found.error, job->found.scores.n_row, job->found.scores.n_tokens, job->rows.name);
    for (uint32_t m = 0; m < job->found.scores.n_metric; m++) {
        const enum moec_task_metric other = (enum moec_task_metric)(job->found.scores.first + m);
        if (other != metric)
            cli_print(stdout, "%s %.4f\n", moec_task_metric_name(other),
                      moec_row_scores_mean(&job->found.scores, other));
    }
    if (moec_route_is_on(&job->options.decisions->route))
        cli_eval_print_decisions(job->options.decisions, &job->found.counts, NULL);
    if (job->options.decisions->meant != MOEC_ARITHMETIC_CANONICAL || cli_has(job->args, "arithmetic"))
        cli_print(stdout, "arithmetic %s%s\n", moec_arithmetic_name(job->options.decisions->arithmetic),
                  job->options.decisions->meant != job->options.decisions->arithmetic
                      ? " (certified: bf16, which takes --device)"
                      : "");
    if (cli_has(job->args, "kv"))
        cli_print(stdout, "keys and values %s\n", moec_kv_name(job->models.source->config));
    if (job->found.scores.n_cut > 0)
        cli_print(stdout, "%" PRIu32 " prompts did not fit into the context and were cut at the start%s\n",
                  job->found.scores.n_cut,
                  can_raise_context(job) ? "; raise --ctx" : ": the model supports at most this context");
    if (loss != NULL && !has_loss(job))
        cli_print(stdout, "reference  0   no loss: the reference scores 0 on every row\n");
    else if (loss != NULL)
        cli_print(stdout, "reference  %.4f   loss %.3f%% (90%% interval %.3f%% to %.3f%%)\n", loss->reference,
                  100 * loss->loss, 100 * loss->low, 100 * loss->high);
}

static enum moec_status run(struct rows_job *job, struct moec_error *err)
{
    const struct cli_measure_options *measure = job->options.measure;
    struct moec_loss loss;
    const bool has_reference = cli_has(job->args, "reference");
    if (cli_has(job->args, "seq-len"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--seq-len cuts running text into windows, but task '%s' measures rows; use --ctx "
                         "for the context of a row",
                         measure->data.task.name);
    MOEC_TRY(cli_u32(job->args, "ctx", 2, 1u << 24, &job->options.n_context, err));
    MOEC_TRY(moec_rows_read(&measure->data.task, measure->data.path,
                            moec_rows_budget(measure->memory.work_bytes), &job->rows, err));
    cli_note_data(job->shown.progress, &job->rows);
    MOEC_TRY(moec_ranks_same(job->args->ranks, "other data", job->rows.digest, sizeof job->rows.digest, err));
    if (cli_has(job->args, "answers")) {
        MOEC_TRY(moec_output_open(&job->written.answers, cli_text(job->args, "answers"), err));
        job->written.is_wanted = true;
    }
    MOEC_TRY(score(job, job->models.source, "rows", &job->found.scores, err));
    if (job->written.is_wanted)
        MOEC_TRY(moec_output_commit(&job->written.answers, err));
    job->written.is_wanted = false;
    if (has_reference) {
        MOEC_TRY(moec_source_open(
            cli_text(job->args, "reference"), measure->memory.work_bytes, measure->by.n_threads,
            job->options.n_context > 0 ? job->options.n_context : MOEC_CONTINUATION_CONTEXT,
            &job->models.reference, err));
        if (job->models.source->place != NULL)
            MOEC_TRY(moec_source_offload(&job->models.reference, job->models.source->place, err));
        MOEC_TRY(score(job, &job->models.reference, "reference", &job->found.reference, err));
        loss = (struct moec_loss){.loss = NAN, .low = NAN, .high = NAN};
        if (has_loss(job))
            MOEC_TRY(measure_loss(job, measure->data.task.metric, &loss, err));
    }
    MOEC_TRY(measure_error(job, err));
    cli_progress_end(job->shown.progress);
    if (cli_has(job->args, "json"))
        return print_json(job, has_reference ? &loss : NULL, err);
    print_result(job, has_reference ? &loss : NULL);
    return MOEC_OK;
}

enum moec_status cli_eval_rows(const struct cli_args *args, const struct cli_measure_options *measure,
                               const struct moec_source *source, const struct cli_eval_decisions *decisions,
                               struct cli_progress *progress, struct moec_error *err)
{
    struct rows_job job = {.args = args,
                           .options = {.measure = measure, .decisions = decisions},
                           .models.source = source,
                           .shown.progress = progress,
                           .written.answers = {.fd = -1}};
    enum moec_status status = run(&job, err);
    moec_output_abort(&job.written.answers);
    moec_row_scores_release(&job.found.scores);
    moec_row_scores_release(&job.found.reference);
    moec_rows_release(&job.rows);
    moec_source_close(&job.models.reference);
    return status;
}
