/* Without --reference its NLLs are 0, and losses are the model's own. A rank counts its own windows. Counts
 * are structs of 64-bit numbers that are summed as arrays, so that a field of another type would break the
 * sum. */
#include "cli/print/print.h"
#include "cli/settings/device_options.h"
#include "cli/settings/engine_options.h"
#include "cli/settings/generation_options.h"
#include "cli/settings/measure_options.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/checkpoint_note.h"
#include "cli/terminal/data_note.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/phase_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "cli/verbs/eval_decisions.h"
#include "cli/verbs/eval_rows.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_digest.h"
#include "profiler/evaluate/chance.h"
#include "profiler/evaluate/continuation.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/source.h"
#include "profiler/tasks/rows.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/moe/sparsity.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/text/tokenizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"samples", 0, "N", NULL, "How many windows or rows to draw (default: all).", CLI_OF_DATA},
    {"reference", 0, "MODEL", NULL,
     "Also measure the loss against this model or bundle, with an interval and, for perplexity, the "
     "KL divergence.",
     CLI_INPUT | CLI_OF_DATA},
    {"answers", 0, "FILE", NULL, "Also write the model's answer to each row: JSON, one object per line.",
     CLI_OUTPUT | CLI_OF_OUTPUT},
    {"ctx", 0, "TOKENS", NULL,
     "Limit on the tokens of a row's prompt and answer (default 2048, or the model's limit if that "
     "is less).",
     CLI_RARE | CLI_OF_TEXT},
    CLI_GENERATION_OPTIONS(CLI_RARE),
    CLI_ROUTE_OPTIONS(CLI_RARE, "", ""),
    CLI_DECIDE_OPTION(CLI_RARE),
    {"prompt-tokens", 0, "P", NULL,
     "For perplexity. With --prefill: the first P tokens of each window count as a prompt (default: "
     "all tokens). With other decisions alone: these P tokens keep the router's choice (default: 0).",
     CLI_RARE | CLI_OF_DECISIONS},
    CLI_SPARSITY_OPTION(CLI_RARE),
    CLI_ARITHMETIC_OPTION(CLI_RARE),
    CLI_KV_OPTION(CLI_RARE),
    {"json", 0, NULL, NULL, "Print the result as JSON.", CLI_OF_OUTPUT},
    CLI_OFFLINE_DEVICE_OPTIONS(CLI_RARE),
    CLI_MACHINE_OPTIONS,
    {0},
};

static const char *const row_options[] = {"ctx", "answers"};

/* Which neurons are left out. */
struct eval_neurons {
    struct moec_sparsity *sparsity; /* NULL = none */
    bool is_planned;                /* it is that of the bundle's plan */
    struct moec_sparsity_counts counts;
};

struct eval_data {
    struct moec_tokenizer *tokenizer;
    struct moec_rows rows;
    struct moec_windows windows;
};

struct eval_run {
    struct moec_scorer *scorer;
    struct moec_measure measured;    /* owned arrays (W) */
    double *reference_nll;           /* owned (W); 0 without --reference: losses are then the model's own */
    struct moec_route_counts counts; /* of decisions, and of neurons where there is a sparsity */
    struct moec_cache_replay_counts replayed;
    double error; /* standard error of the perplexity */
};

struct eval_job {
    const struct cli_args *args;
    struct cli_measure_options measure;
    struct {
        struct moert_options engine; /* what options of an engine say */
        struct cli_eval_decisions decisions;
    } asked;
    struct {
        struct moec_source source, reference;
        struct moec_gpu_place *place; /* NULL without a device */
        struct moec_work_memory work; /* batches that the device has room for */
    } models;
    struct eval_neurons neurons;
    struct eval_data data;
    struct eval_run run;
    struct {
        struct cli_progress progress;
        struct cli_phases phases;
    } shown;
};

static enum moec_status show_progress(void *context, const char *phase, double done, double total)
{
    struct eval_job *job = context;
    cli_progress_show(&job->shown.progress, phase, done, total);
    return MOEC_OK;
}

static enum moec_status make_windows(struct eval_job *job, struct moec_error *err)
{
    if (job->models.source.tokenizer == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the model '%s' has no tokenizer, so it cannot be measured on text",
                         job->models.source.path);
    MOEC_TRY(moec_windows_need_task(&job->models.source.model->config, &job->measure.data.task,
                                    "an evaluation", err));
    MOEC_TRY(moec_tokenizer_create(job->models.source.tokenizer, &job->data.tokenizer, err));
    MOEC_TRY(moec_rows_read(&job->measure.data.task, job->measure.data.path,
                            moec_rows_budget(job->measure.memory.work_bytes), &job->data.rows, err));
    cli_note_data(&job->shown.progress, &job->data.rows);
    struct moec_windows_options window_options = {
        .seq_len_tokens = job->measure.data.seq_len_tokens,
        .n_sample = job->measure.data.parts.n_window,
        .seed = job->measure.data.seed,
        .memory_bytes = moec_rows_budget(job->measure.memory.work_bytes),
    };
    moec_windows_options_for(&job->models.source.model->config, &window_options);
    struct moec_pool pool = moec_pool_make(job->measure.by.n_threads);
    MOEC_TRY(moec_windows_make(&job->data.rows, job->data.tokenizer, &window_options, &pool,
                               &job->data.windows, err));
    moec_rows_drop_texts(&job->data.rows);
    return MOEC_OK;
}

static enum moec_status open_sparsity(struct eval_job *job, struct moec_error *err)
{
    const struct moec_bundle *bundle = job->models.source.bundle;
    struct moec_certificate certificate;
    const double wanted = job->asked.engine.decisions.sparsity;
    if (job->asked.engine.decisions.all_neurons)
        return MOEC_OK;
    if (wanted == 0 && bundle != NULL)
        MOEC_TRY(moec_sparsity_open_planned(bundle, &job->neurons.sparsity, &certificate, err));
    job->neurons.is_planned = job->neurons.sparsity != NULL;
    if (job->neurons.is_planned && !cli_eval_are_tuned(&job->asked.decisions))
        cli_eval_take_certificate(&job->asked.decisions, &certificate);
    if (wanted == 0 && !job->neurons.is_planned)
        return MOEC_OK;
    const bool is_precision = job->asked.decisions.route.precision.kind != MOEC_PRECISION_ONE;
    if (moec_route_takes_low(&job->asked.decisions.route))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "%s does not work with %s '%s'%s: sparsity thresholds hold only for the bitwidths that experts were "
            "compiled at",
            job->neurons.is_planned ? "the bundle's sparsity plan (--sparsity none turns it off)"
                                    : "--sparsity",
            is_precision ? "precision" : "prefill",
            is_precision ? cli_eval_precision(&job->asked.decisions)
                         : cli_eval_prefill(&job->asked.decisions),
            cli_eval_are_tuned(&job->asked.decisions) ? " (--decide none turns the bundle's decisions off)"
                                                      : "");
    if (bundle == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--sparsity needs a bundle with thresholds, but '%s' is a checkpoint: compile it, then run "
            "moec sparsify",
            job->models.source.path);
    return job->neurons.is_planned ? MOEC_OK
                                   : moec_sparsity_open(bundle, 0, wanted, &job->neurons.sparsity, err);
}

static enum moec_status enter_device(struct eval_job *job, struct moec_error *err)
{
    MOEC_TRY(cli_use_arithmetic(job->models.place, job->asked.decisions.arithmetic, err));
    if (job->models.place == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_source_offload(&job->models.source, job->models.place, err));
    job->models.work.batch_tokens = moec_gpu_place_batch_tokens(job->models.place, job->models.source.model);
    job->data.windows.work = &job->models.work;
    return MOEC_OK;
}

/* Of the decisions of all ranks: each has counted its own windows. Counts are structs of 64-bit numbers. */
static enum moec_status sum_counts(struct eval_job *job, struct moec_error *err)
{
    struct moec_ranks *ranks = job->args->ranks;
    job->run.counts = moec_scorer_route_counts(job->run.scorer);
    if (job->neurons.sparsity != NULL)
        job->neurons.counts = moec_sparsity_counts(job->neurons.sparsity);
    MOEC_TRY(
        moec_ranks_sum(ranks, (uint64_t *)&job->run.counts, sizeof job->run.counts / sizeof(uint64_t), err));
    MOEC_TRY(moec_ranks_sum(ranks, (uint64_t *)&job->neurons.counts,
                            sizeof job->neurons.counts / sizeof(uint64_t), err));
    job->run.replayed = moec_scorer_replayed(job->run.scorer);
    uint64_t stays[] = {job->run.replayed.n_belady_missed, job->run.replayed.n_stay,
                        (uint64_t)job->run.replayed.stay_tokens,
                        (uint64_t)job->run.replayed.stay_tokens_squared}; /* whole numbers all */
    MOEC_TRY(moec_ranks_sum(ranks, stays, 4, err));
    job->run.replayed =
        (struct moec_cache_replay_counts){stays[0], stays[1], (double)stays[2], (double)stays[3]};
    return MOEC_OK;
}

static enum moec_status score(struct eval_job *job, struct moec_error *err)
{
    const struct cli_eval_decisions *decisions = &job->asked.decisions;
    MOEC_TRY(cli_eval_decisions_read(job->args, &job->asked.engine.decisions, &job->models.source, false,
                                     &job->asked.decisions, err));
    MOEC_TRY(open_sparsity(job, err));
    MOEC_TRY(enter_device(job, err));
    struct moec_scorer_options scorer_options = {
        .by = {.kernels = job->measure.by.kernels,
               .n_threads = job->measure.by.n_threads,
               .arithmetic = job->asked.decisions.arithmetic,
               .ranks = job->args->ranks},
        .reference_limit_bytes = job->measure.memory.work_bytes,
        .decisions = {.route = moec_route_is_on(&decisions->route) ? &decisions->route : NULL,
                      .n_prompt = decisions->n_prompt,
                      /* Belady's rule reads by token, prompts with a prefill by block. */
                      .replays = decisions->route.prefill.kind == MOEC_PREFILL_SAME,
                      .record_bytes = {job->models.source.record_bytes[0],
                                       job->models.source.record_bytes[1]}},
        .sparsity = job->neurons.sparsity,
    };
    struct moec_progress progress = {.report = show_progress, .context = job};
    uint64_t n = job->data.windows.n_window;
    MOEC_TRY(moec_alloc((void **)&job->run.measured.nll, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&job->run.measured.kl, n, sizeof(double), "window losses", err));
    MOEC_TRY(moec_scorer_create(job->models.source.model, job->models.source.experts, &job->data.windows,
                                &scorer_options, &job->run.scorer, err));
    cli_progress_expect(&job->shown.progress, cli_has(job->args, "reference") ? 2 : 1);
    MOEC_TRY(moec_alloc((void **)&job->run.reference_nll, n, sizeof(double), "window losses", err));
    if (cli_has(job->args, "reference")) {
        MOEC_TRY(moec_source_open(cli_text(job->args, "reference"), job->measure.memory.work_bytes,
                                  job->measure.by.n_threads, job->measure.data.seq_len_tokens,
                                  &job->models.reference, err));
        if (job->models.place != NULL)
            MOEC_TRY(moec_source_offload(&job->models.reference, job->models.place, err));
        MOEC_TRY(moec_scorer_set_reference(job->run.scorer, job->models.reference.model,
                                           job->models.reference.experts, job->run.reference_nll, &progress,
                                           err));
    }
    MOEC_TRY(moec_scorer_run(job->run.scorer, &job->run.measured, &progress, err));
    return sum_counts(job, err);
}

static double share(uint64_t part, uint64_t all)
{
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

/* The share that was asked for. */
static const char *sparsity_word(const struct eval_job *job)
{
    return job->neurons.is_planned ? "plan" : cli_text(job->args, "sparsity");
}

static void put_sparsity(const struct eval_job *job, struct moec_json_out *root)
{
    const struct moec_config *config = &job->models.source.model->config;
    const struct moec_sparsity_counts counts = job->neurons.counts;
    moec_json_out_string(root, "sparsity", sparsity_word(job));
    moec_json_out_double(root, "active_share", share(counts.n_active, counts.n_neuron) / 100);
    moec_json_out_double(root, "expert_bytes_per_token",
                         moec_sparsity_token_bytes(&counts, config, counts.active_bytes));
    moec_json_out_double(root, "dense_expert_bytes_per_token",
                         moec_sparsity_token_bytes(&counts, config, counts.dense_bytes));
}

static void print_sparsity(const struct eval_job *job)
{
    const struct moec_config *config = &job->models.source.model->config;
    const struct moec_sparsity_counts counts = job->neurons.counts;
    cli_print(
        stdout,
        "sparsity   %s   %.1f%% of neurons active, %.1f KiB of expert weights decoded a token instead of "
        "%.1f KiB\n",
        sparsity_word(job), share(counts.n_active, counts.n_neuron),
        moec_sparsity_token_bytes(&counts, config, counts.active_bytes) / 1024,
        moec_sparsity_token_bytes(&counts, config, counts.dense_bytes) / 1024);
}

static enum moec_status print_json(const struct eval_job *job, const struct moec_loss *loss,
                                   struct moec_error *err)
{
    char digest[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256_hex(job->data.rows.digest, digest);
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "model", job->models.source.path);
    moec_json_out_string(root, "task", job->measure.data.task.name);
    moec_json_out_string(root, "metric", moec_task_metric_name(job->measure.data.task.metric));
    moec_json_out_double(root, "value", loss->compiled);
    moec_json_out_u64(root, "tokens", loss->n_token);
    moec_json_out_u64(root, "samples", loss->n_window);
    moec_json_out_u64(root, "seq_len_tokens", job->measure.data.seq_len_tokens);
    moec_json_out_string(root, "data", job->data.rows.name);
    moec_json_out_string(root, "data_sha256", digest);
    moec_json_out_double(root, "standard_error", job->run.error);
    if (cli_has(job->args, "reference")) {
        moec_json_out_double(root, "reference", loss->reference);
        cli_json_loss(root, loss);
    }
    if (moec_route_is_on(&job->asked.decisions.route)) {
        cli_eval_json_decisions(&job->asked.decisions, &job->run.counts, &job->run.replayed, root);
    }
    if (job->neurons.sparsity != NULL)
        put_sparsity(job, root);
    if (job->asked.decisions.meant != MOEC_ARITHMETIC_CANONICAL || cli_has(job->args, "arithmetic"))
        moec_json_out_string(root, "arithmetic", moec_arithmetic_name(job->asked.decisions.arithmetic));
    if (cli_has(job->args, "kv"))
        moec_json_out_string(root, "kv", moec_kv_name(job->models.source.config));
    cli_json_phases(root, &job->shown.phases);
    return cli_print_json(root, err);
}

static void print_result(const struct eval_job *job, const struct moec_loss *loss)
{
    cli_print_wrapped(stdout, 4,
                      "%s %.4f +- %.2g   (%" PRIu32 " windows of at most %" PRIu32 " tokens, %" PRIu64
                      " scored, '%s')\n",
                      moec_task_metric_name(job->measure.data.task.metric), loss->compiled, job->run.error,
                      loss->n_window, job->measure.data.seq_len_tokens, loss->n_token, job->data.rows.name);
    if (cli_has(job->args, "reference"))
        cli_print_wrapped(
            stdout, 4,
            "reference  %.4f   loss %.3f%% (90%% interval %.3f%% to %.3f%%), mean KL divergence %.6f nats per token\n",
            loss->reference, 100 * loss->loss, 100 * loss->low, 100 * loss->high, loss->mean_kl);
    if (moec_route_is_on(&job->asked.decisions.route)) {
        cli_eval_print_decisions(&job->asked.decisions, &job->run.counts, &job->run.replayed);
    }
    if (job->neurons.sparsity != NULL)
        print_sparsity(job);
    if (job->asked.decisions.meant != MOEC_ARITHMETIC_CANONICAL || cli_has(job->args, "arithmetic"))
        cli_print(stdout, "arithmetic %s%s\n", moec_arithmetic_name(job->asked.decisions.arithmetic),
                  job->asked.decisions.meant != job->asked.decisions.arithmetic
                      ? " (certified: bf16, which takes --device)"
                      : "");
    if (cli_has(job->args, "kv"))
        cli_print(stdout, "keys and values %s\n", moec_kv_name(job->models.source.config));
}

/* By the units that an interval of a loss goes by, which against a reference of no surprise at all is the
 * model's own mean NLL. */
static enum moec_status measure_error(struct eval_job *job, const struct moec_loss_windows *windows,
                                      struct moec_error *err)
{
    const struct moec_loss_options plain = moec_loss_options_default();
    struct moec_loss own;
    double *nothing = NULL;
    MOEC_TRY(
        moec_alloc((void **)&nothing, job->data.windows.n_window, sizeof *nothing, "window losses", err));
    const enum moec_status status = moec_loss_measure(
        windows, &(struct moec_paired_nll){nothing, job->run.measured.nll, NULL}, &plain, &own, err);
    free(nothing);
    job->run.error = status == MOEC_OK ? own.compiled * own.error : NAN;
    return status;
}

/* What is known before any weight is read. */
static enum moec_status check_windows(const struct eval_job *job, struct moec_error *err)
{
    const uint32_t n_position = job->models.source.model->config.n_position;
    if (job->measure.data.seq_len_tokens <= n_position)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_LIMIT,
                     "windows of %" PRIu32 " tokens are too long: the model has only %" PRIu32
                     " positions ('%s'); lower --seq-len",
                     job->measure.data.seq_len_tokens, n_position, job->models.source.path);
}

/* Rows are scored with all neurons: of a bundle with a plan that is another model. */
static enum moec_status tell_rows(struct eval_job *job, struct moec_error *err)
{
    struct moec_sparsity_plan plan = {0};
    if (job->models.source.bundle != NULL)
        MOEC_TRY(moec_bundle_load_plan(job->models.source.bundle, &plan, err));
    if (plan.n_layer > 0)
        cli_progress_note(&job->shown.progress,
                          "rows are scored with all neurons, not by the bundle's sparsity plan");
    moec_sparsity_plan_release(&plan);
    return MOEC_OK;
}

static enum moec_status finish_phases(struct eval_job *job, struct moec_error *err)
{
    MOEC_TRY(cli_phases_share(&job->shown.phases, job->args->ranks, err));
    cli_phases_finish(&job->shown.phases, &job->shown.progress, job->measure.by.kernels,
                      job->measure.by.n_threads);
    return MOEC_OK;
}

/* Rows, once the model is open. */
static enum moec_status eval_rows(struct eval_job *job, struct moec_error *err)
{
    if (cli_has(job->args, "sparsity"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--sparsity is measured only in perplexity, but task '%s' measures %s: leave "
                         "--sparsity out, or give a task that measures perplexity",
                         job->measure.data.task.name, moec_task_metric_name(job->measure.data.task.metric));
    MOEC_TRY(tell_rows(job, err));
    MOEC_TRY(cli_eval_decisions_read(job->args, &job->asked.engine.decisions, &job->models.source, true,
                                     &job->asked.decisions, err));
    if (job->models.place != NULL)
        MOEC_TRY(moec_source_offload(&job->models.source, job->models.place, err));
    MOEC_TRY(cli_eval_rows(job->args, &job->measure, &job->models.source, &job->asked.decisions,
                           &job->shown.progress, err));
    return finish_phases(job, err);
}

/* What compile and profile would refuse is measured here, and said. */
static enum moec_status note_chance(struct eval_job *job, double perplexity, struct moec_error *err)
{
    const struct moec_chance chance = {.original = perplexity,
                                       .guessing = job->models.source.model->config.n_vocab,
                                       .data_name = job->data.rows.name,
                                       .subject = "the model"};
    char note[MOEC_CHANCE_NOTE_BYTES];
    MOEC_TRY(moec_chance_check(&chance, true, note, err));
    if (note[0] != '\0')
        cli_progress_note(&job->shown.progress, note);
    return MOEC_OK;
}

/* Completions are for another program to judge: they have to go somewhere, and have no loss. */
static enum moec_status check_completions(const struct eval_job *job, struct moec_error *err)
{
    const struct moec_task *task = &job->measure.data.task;
    if (moec_task_metric_kind(task->metric) != MOEC_TASK_KIND_COMPLETION)
        return MOEC_OK;
    if (!cli_has(job->args, "answers"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "task '%s' writes completions and runs none of them: give --answers FILE.jsonl, and "
                         "let the task's own harness run the file",
                         task->name);
    if (cli_has(job->args, "reference"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "task '%s' has no score to compare with --reference: write the completions of both "
                         "models, and compare the scores that the harness gives",
                         task->name);
    return MOEC_OK;
}

/* What each rank measures has to be the same. */
static enum moec_status compare_models(struct eval_job *job, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES] = {0};
    if (job->args->ranks == NULL)
        return MOEC_OK;
    if (job->models.source.checkpoint != NULL)
        MOEC_TRY(moec_checkpoint_digest(job->models.source.checkpoint, NULL, NULL, digest, err));
    else
        moec_bundle_digest(job->models.source.bundle, digest);
    return moec_ranks_same(job->args->ranks, "another model", digest, sizeof digest, err);
}

static enum moec_status eval(struct eval_job *job, struct moec_error *err)
{
    MOEC_TRY(cli_read_measure_options(job->args, &job->measure, err));
    if (job->measure.data.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "nothing to measure on: give --data FILE");
    const bool is_rows = moec_task_metric_kind(job->measure.data.task.metric) != MOEC_TASK_KIND_WINDOWS;
    for (size_t i = 0; !is_rows && i < sizeof row_options / sizeof *row_options; i++)
        if (cli_has(job->args, row_options[i]))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s applies to tasks that score rows, but task '%s' measures perplexity: "
                             "leave the option out",
                             row_options[i], job->measure.data.task.name);
    const enum moec_task_kind kind = moec_task_metric_kind(job->measure.data.task.metric);
    const char *option = NULL;
    if ((kind == MOEC_TASK_KIND_WINDOWS || kind == MOEC_TASK_KIND_CHOICE) &&
        cli_has_generation(job->args, &option))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--%s applies to tasks with generated answers, but task '%s' measures %s: leave "
                         "the option out",
                         option, job->measure.data.task.name,
                         moec_task_metric_name(job->measure.data.task.metric));
    if (cli_has(job->args, "answers") && job->args->ranks != NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "several ranks share the rows, and each has only its own answers: leave out --answers, or "
            "start one process");
    MOEC_TRY(check_completions(job, err));
    MOEC_TRY(cli_read_pass(job->args, &job->asked.engine, err));
    MOEC_TRY(cli_check_pure(job->args, "moec eval", err));
    MOEC_TRY(cli_open_device(&job->asked.engine.device, job->asked.engine.sessions.kv,
                             cli_arithmetic(job->args, NULL), &job->models.place, err));
    cli_progress_init(&job->shown.progress, "eval", is_rows ? "rows" : NULL, job->measure.is_quiet);
    job->shown.progress.ranks = job->args->ranks;
    job->shown.progress.is_verbose = job->measure.is_verbose;
    if (job->measure.is_verbose)
        cli_phases_start(&job->shown.phases, &job->shown.progress);
    struct moec_codec kv;
    uint32_t n_tokens = is_rows ? MOEC_CONTINUATION_CONTEXT : job->measure.data.seq_len_tokens;
    MOEC_TRY(cli_u32(job->args, "ctx", 2, 1u << 24, &n_tokens, err));
    MOEC_TRY(moec_source_open(job->args->positional[0], job->measure.memory.work_bytes,
                              job->measure.by.n_threads, n_tokens, &job->models.source, err));
    if (job->models.source.checkpoint != NULL)
        cli_say_checkpoint(&job->shown.progress, job->models.source.checkpoint);
    MOEC_TRY(moec_kv_read(job->asked.engine.sessions.kv, &kv, err));
    if (kv.dtype != MOEC_DTYPE_F32)
        MOEC_TRY(moec_source_keep_kv(&job->models.source, kv, err));
    MOEC_TRY(compare_models(job, err));
    if (is_rows)
        return eval_rows(job, err);
    MOEC_TRY(check_windows(job, err));
    MOEC_TRY(make_windows(job, err));
    MOEC_TRY(moec_ranks_same(job->args->ranks, "other data", job->data.rows.digest,
                             sizeof job->data.rows.digest, err));
    MOEC_TRY(score(job, err));
    MOEC_TRY(finish_phases(job, err));
    cli_progress_end(&job->shown.progress);
    struct moec_loss_options loss_options = moec_loss_options_default();
    struct moec_loss loss;
    const struct moec_loss_windows windows = moec_windows_loss_windows(&job->data.windows);
    MOEC_TRY(measure_error(job, &windows, err));
    MOEC_TRY(moec_loss_measure(
        &windows,
        &(struct moec_paired_nll){job->run.reference_nll, job->run.measured.nll, job->run.measured.kl},
        &loss_options, &loss, err));
    MOEC_TRY(note_chance(job, loss.compiled, err));
    if (cli_has(job->args, "json"))
        return print_json(job, &loss, err);
    print_result(job, &loss);
    return MOEC_OK;
}

static int run_eval(const struct cli_args *args)
{
    struct eval_job job = {.args = args};
    struct moec_error err = {0};
    enum moec_status status = eval(&job, &err);
    cli_progress_end(&job.shown.progress);
    moec_scorer_free(job.run.scorer);
    moec_windows_release(&job.data.windows);
    moec_rows_release(&job.data.rows);
    moec_tokenizer_free(job.data.tokenizer);
    moec_source_close(&job.models.reference);
    moec_source_close(&job.models.source);
    moec_sparsity_free(job.neurons.sparsity);
    moec_gpu_place_free(job.models.place);
    cli_phases_release(&job.shown.phases);
    free(job.run.measured.nll);
    free(job.run.measured.kl);
    free(job.run.reference_nll);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_eval = {
    .name = "eval",
    .model = CLI_BUNDLE_OR_CHECKPOINT,
    .summary = "measure a checkpoint or a bundle on data",
    .usage = "MODEL|MODEL.moec",
    .about = "Measures a Hugging Face folder, a GGUF file or a bundle on the rows of --data, by the metric "
             "of --task:\n"
             "perplexity\ttext (default), wikitext, jawiki\n"
             "ROUGE-1, 2, L\tsamsum, dialogsum, xsum, dialogues\n"
             "exact match\tgsm8k\n"
             "accuracy\tmmlu, hellaswag, piqa, arc, boolq, sciq, openbookqa, winogrande, truthfulqa-mc1, "
             "truthfulqa-mc2\n"
             "no metric\thumaneval, mbpp: --answers writes programs for the benchmark to run\n"
             "With --reference, it also measures the loss against another model.",
    .details =
        "--verbose ends with a table of phases: what each phase computed, and what limited its speed. "
        "--json then has this table too.\n"
        "Perplexity: every row is tokenised by itself and cut into windows of --seq-len tokens without "
        "overlap. Each token of a window but the first is scored, given the tokens before it.\n"
        "ROUGE and exact match: the model continues each row's prompt, greedily or with --beams, and "
        "this text is compared with the row's reference.\n"
        "Accuracy: the share of rows whose likeliest choice is the right one. Each choice is scored by "
        "its log-likelihood after the prompt: in total, per byte and per token. The right choices' "
        "share of all likelihoods (right-mass) is shown too.\n"
        "Loss: paired by window or row, with a 90 % interval.\n"
        "datasets/tasks/README.md describes the tasks, and how to write your own.\n" CLI_GENERATION_DETAILS,
    .examples = "moec eval MODEL --data test.txt\n"
                "moec eval model.moec --data test.txt --reference MODEL\n"
                "moec eval model.moec --task samsum --data val.csv --samples 100",
    .more_examples =
        "moec eval model.moec --task samsum --data val.csv --samples 100 --answers answers.jsonl\n"
        "moec eval model.moec --task piqa --data valid.jsonl --reference MODEL --json\n"
        "moec eval model.moec --data news.jsonl.zst --task my_task.lua --samples 200",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_eval,
    .is_offline = true,
    .shares_work = true,
};
