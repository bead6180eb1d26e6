/* Both tables of thresholds are filled where a plan by model may stand at the gate. The bundle is closed
 * before the output is written, which may be the bundle itself. */
#include "cli/options/outputs.h"
#include "cli/output/sequence_output.h"
#include "cli/output/sparsity_output.h"
#include "cli/print/print.h"
#include "cli/settings/device_options.h"
#include "cli/settings/original.h"
#include "cli/settings/route_options.h"
#include "cli/settings/trial_options.h"
#include "cli/terminal/data_note.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "compiler/sparsify/sparsify.h"
#include "compiler/sparsify/sparsify_table.h"
#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/bundle_sparsity.h"
#include "formats/bundle/record_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"reference", 0, "MODEL", NULL,
     "With --max-loss: the checkpoint from which the bundle was compiled, to measure losses against.",
     CLI_INPUT | CLI_OF_LOSS},
    {"max-loss", 0, "LOSS", NULL,
     "Find a plan of neurons to leave out, and prove that bits and plan together lose at most LOSS, "
     "such as 2%.",
     CLI_OF_LOSS},
    {"by", 0, "WHAT", "neuron|expert|model",
     "With --max-loss, how the plan chooses neurons:\n"
     "neuron\tby harm and gate weight (default)\n"
     "expert\tone threshold for each expert\n"
     "model\tone share for all experts",
     CLI_OF_LOSS},
    {"parts", 0, NULL, NULL,
     "Also write checksums of parts of records. A run then reads only the up projections and active "
     "neurons of experts from storage.",
     CLI_OF_OUTPUT},
    {"by-projection", 0, "NAME", "auto|up|gate",
     "With --max-loss, the product that a plan compares:\n"
     "auto\twhichever loses less with 70% left out (default; with --parts or --device: up)\n"
     "up\t|up . x|, as in FloE; only up is read whole\n"
     "gate\tthe activated gate, as in CATS (--by model) and CHESS; of inactive neurons, up and down are "
     "left out",
     CLI_RARE | CLI_OF_LOSS},
    {"confidence", 0, "C", NULL,
     "With --max-loss: confidence of the interval whose upper end must be within the target "
     "(default 0.95).",
     CLI_RARE | CLI_OF_LOSS},
    CLI_CERTIFIED_ARITHMETIC_OPTION(CLI_RARE),
    CLI_SAMPLES_OPTIONS,
    {"output", 'o', "OUT.moec", NULL,
     "The bundle with thresholds (default: MODEL.moec itself, which needs --force).",
     CLI_OUTPUT | CLI_IN_PLACE | CLI_OF_OUTPUT},
    {"json", 0, NULL, NULL, "Print the result as JSON.", CLI_OF_OUTPUT},
    CLI_OFFLINE_DEVICE_OPTIONS(CLI_RARE),
    CLI_ANYWAY_OPTION,
    CLI_MACHINE_OPTIONS,
    {0},
};

struct sparsify_job {
    const struct cli_args *args;
    const char *output;
    struct {
        struct cli_measure_options measure;
        struct moec_sparsify_options sparsify;
        bool has_target;
    } options;
    struct {
        struct moec_source source, original;
    } models;
    struct cli_part_windows data;
    struct moec_work_memory work; /* batches that a device has room for */
    struct {
        struct moec_sparsity_table table, gate_table; /* the second of a plan by model at the gate */
        struct moec_sparsify_report report;
    } found;
    struct cli_progress progress;
};

/* ---- inputs ---- */

static enum moec_status read_by(struct sparsify_job *job, struct moec_error *err)
{
    const char *by = cli_text(job->args, "by");
    job->options.sparsify.by = MOEC_SPARSITY_BY_NEURON;
    for (int i = 0; by != NULL && i < MOEC_SPARSITY_BY_COUNT; i++)
        if (strcmp(by, moec_sparsity_by_name((enum moec_sparsity_by)i)) == 0)
            job->options.sparsify.by = (enum moec_sparsity_by)i;
    const char *projection = cli_text(job->args, "by-projection");
    const bool has_parts = cli_has(job->args, "parts");
    const bool is_named = projection != NULL && strcmp(projection, "auto") != 0;
    const bool is_gate = is_named && strcmp(projection, "gate") == 0;
    if (is_gate && has_parts)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--parts reads an expert's up projection first, but --by-projection gate needs the gate "
            "projection first: leave out one of the two");
    job->options.sparsify.tries[0] = !is_gate;
    job->options.sparsify.tries[1] = is_gate || (!is_named && !has_parts);
    return cli_double(job->args, "confidence", 0.5001, 0.9999, &job->options.sparsify.trial.confidence, err);
}

static enum moec_status read_target(struct sparsify_job *job, struct moec_error *err)
{
    static const char *const idle[] = {"reference", "by", "by-projection", "confidence", "arithmetic"};
    const struct cli_args *args = job->args;
    job->options.has_target = cli_has(args, "max-loss");
    for (size_t i = 0; i < sizeof idle / sizeof *idle && !job->options.has_target; i++)
        if (cli_has(args, idle[i]))
            return moec_fail(err, MOEC_ERR_USAGE, "--%s does nothing without --max-loss", idle[i]);
    job->options.sparsify.trial = cli_trial_options(&job->options.measure);
    if (!job->options.has_target)
        return MOEC_OK;
    MOEC_TRY(cli_need_reference(args, err));
    job->options.sparsify.tables[0] = &job->found.table;
    job->options.sparsify.tables[1] = &job->found.gate_table;
    MOEC_TRY(cli_fraction(args, "max-loss", &job->options.sparsify.trial.max_loss, err));
    return read_by(job, err);
}

/* Decisions were proven of a bundle that leaves out what it left out then. */
static enum moec_status check_decisions(const struct sparsify_job *job, struct moec_error *err)
{
    struct moec_bundle_decisions decisions;
    MOEC_TRY(moec_bundle_load_decisions(job->models.source.bundle, &decisions, err));
    if (!moec_decision_settings_are_on(&decisions.settings))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "the bundle '%s' has settings of moec tune, whose certificate would not hold with sparsity. "
        "Sparsify the bundle that moec tune was given, then tune the result: the certificate of moec tune "
        "covers both losses",
        job->models.source.path);
}

static enum moec_status open_models(struct sparsify_job *job, struct moec_error *err)
{
    const struct cli_measure_options *measure = &job->options.measure;
    const char *path = job->args->positional[0];
    MOEC_TRY(moec_source_open(path, measure->memory.work_bytes, measure->by.n_threads,
                              measure->data.seq_len_tokens, &job->models.source, err));
    if (job->models.source.bundle == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "the model '%s' is a checkpoint, expected a bundle: thresholds are measured with the bundle's "
            "own weights",
            path);
    MOEC_TRY(moec_sparsity_check_config(job->models.source.config, err));
    if (!job->options.has_target)
        return MOEC_OK;
    job->options.sparsify.trial.arithmetic =
        cli_arithmetic(job->args, &job->models.source.bundle->certificate);
    MOEC_TRY(cli_use_arithmetic(measure->memory.place, job->options.sparsify.trial.arithmetic, err));
    MOEC_TRY(check_decisions(job, err));
    return cli_open_original(measure, &job->models.source, cli_text(job->args, "reference"),
                             &job->models.original, err);
}

static enum moec_status enter_device(struct sparsify_job *job, struct moec_error *err)
{
    struct moec_gpu_place *place = job->options.measure.memory.place;
    if (place == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_source_offload(&job->models.source, place, err));
    if (job->options.has_target)
        MOEC_TRY(moec_source_offload(&job->models.original, place, err));
    job->work.batch_tokens = moec_gpu_place_batch_tokens(place, job->models.source.model);
    job->data.windows.work = &job->work;
    return MOEC_OK;
}

/* ---- result ---- */

static struct moec_json_out *json_candidates(const struct moec_sparsify_report *report)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_sparsify_candidate *candidate = &report->candidates[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_double(node, "left_out", candidate->share * 1e-3);
        cli_json_loss(node, &candidate->search);
        moec_json_out_double(node, "active_share", candidate->traffic.active_share);
        moec_json_out_double(node, "expert_bytes_per_token", candidate->traffic.token_bytes);
        moec_json_out_bool(node, "on_front", candidate->is_on_front);
        moec_json_out_node(list, NULL, node);
    }
    return list;
}

static enum moec_status print_json(const struct sparsify_job *job, struct moec_error *err)
{
    const struct moec_sparsify_report *report = &job->found.report;
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array();
    moec_json_out_string(root, "file", job->output);
    moec_json_out_u64(root, "tokens", job->found.table.n_token);
    for (uint32_t i = 0; i < job->found.table.n_share; i++)
        moec_json_out_double(list, NULL, job->found.table.shares[i] * 1e-3);
    moec_json_out_node(root, "shares", list);
    if (!job->options.has_target)
        return cli_print_json(root, err);
    moec_json_out_node(root, "plan", cli_json_plan(&report->plan));
    for (int at = 0; at < 2 && job->options.sparsify.tries[0] && job->options.sparsify.tries[1]; at++)
        moec_json_out_double(root, at == 0 ? "loss_by_up" : "loss_by_gate", report->tried[at].loss);
    moec_json_out_bool(root, "bundle_certified_on_same_windows", report->is_reused);
    moec_json_out_node(root, "candidates", json_candidates(report));
    return cli_print_json(root, err);
}

static void print_plan(const struct sparsify_job *job)
{
    const struct moec_sparsify_report *report = &job->found.report;
    cli_print_wrapped(stdout, 4, "wrote '%s', which leaves out neurons; %" PRIu32 " measurements\n",
                      job->output, report->n_candidate + 1);
    cli_print_plan(&report->plan);
    if (job->options.sparsify.tries[0] && job->options.sparsify.tries[1])
        cli_print_wrapped(stdout, 13,
                          "  compared   a plan by up that leaves out %.0f%% loses %.3f%%, by the gate "
                          "%.3f%%\n",
                          MOEC_SPARSIFY_TRIED_SHARE / 10.0, 100 * report->tried[0].loss,
                          100 * report->tried[1].loss);
    cli_print_sequence(&report->plan.certificate, "plan", report->is_reused);
}

/* What reading from storage will save with the parts that were written. */
static enum moec_status print_parts(const struct sparsify_job *job, struct moec_error *err)
{
    static const struct moec_sparsity_plan none = {0};
    struct moec_bundle *bundle = NULL;
    struct moec_record_parts parts = {0};
    MOEC_TRY(moec_bundle_open(job->output, &bundle, err));
    const enum moec_status status = moec_bundle_load_parts(bundle, &parts, err);
    if (status == MOEC_OK)
        cli_print_parts(bundle, &parts, job->options.has_target ? &job->found.report.plan : &none);
    moec_record_parts_release(&parts);
    moec_bundle_close(bundle);
    return status;
}

static enum moec_status print_result(const struct sparsify_job *job, struct moec_error *err)
{
    const uint16_t most = job->found.table.shares[job->found.table.n_share - 1];
    if (cli_has(job->args, "json"))
        return print_json(job, err);
    if (job->options.has_target)
        print_plan(job);
    else
        cli_print(stdout,
                  "wrote '%s' with thresholds of |up . x| from %" PRIu64
                  " tokens, for --sparsity up to %.2f\n"
                  "what a sparsity loses: moec eval %s --data TEST --reference MODEL --sparsity 0.6\n",
                  job->output, job->found.table.n_token, most * 1e-3, job->output);
    return cli_has(job->args, "parts") ? print_parts(job, err) : MOEC_OK;
}

/* ---- work ---- */

static enum moec_status measure(struct sparsify_job *job, const struct moec_progress *progress,
                                struct moec_error *err)
{
    const struct moec_trial_inputs inputs =
        cli_trial_inputs(&job->data, &job->models.source, &job->models.original);
    double n_search = 0;
    for (uint32_t w = 0; w < inputs.windows->n_window; w++)
        n_search += moec_part_has(MOEC_PART_SEARCH, inputs.windows->part, w);
    cli_progress_expect(&job->progress,
                        MOEC_SPARSIFY_TABLE_RUNS * n_search * (job->options.has_target ? 12 : 1));
    MOEC_TRY(moec_sparsify_table_fill(&inputs, &job->options.sparsify.trial, false, progress,
                                      &job->found.table, err));
    if (job->options.sparsify.tries[1] && job->options.sparsify.by == MOEC_SPARSITY_BY_MODEL)
        MOEC_TRY(moec_sparsify_table_fill(&inputs, &job->options.sparsify.trial, true, progress,
                                          &job->found.gate_table, err));
    return job->options.has_target
               ? moec_sparsify(&inputs, &job->options.sparsify, progress, &job->found.report, err)
               : MOEC_OK;
}

/* A device leaves out by up alone. */
static enum moec_status keep_to_device(struct sparsify_job *job, struct moec_error *err)
{
    bool *tries = job->options.sparsify.tries;
    if (job->options.measure.memory.place == NULL || !tries[1])
        return MOEC_OK;
    if (!tries[0])
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--by-projection gate works only on the CPU: leave out --device");
    tries[1] = false;
    return MOEC_OK;
}

static enum moec_status sparsify(struct sparsify_job *job, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    const struct moec_progress progress = cli_progress_observer(&job->progress);
    MOEC_TRY(cli_read_measure_options(job->args, &job->options.measure, err));
    if (job->options.measure.data.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "no text to measure thresholds on: give --data FILE");
    MOEC_TRY(read_target(job, err));
    MOEC_TRY(cli_output_or_input(job->args, &job->output, err));
    cli_progress_init(&job->progress, "sparsify", NULL, job->options.measure.is_quiet);
    job->progress.is_verbose = job->options.measure.is_verbose;
    MOEC_TRY(
        cli_open_place(job->args, cli_arithmetic(job->args, NULL), &job->options.measure.memory.place, err));
    MOEC_TRY(keep_to_device(job, err));
    MOEC_TRY(open_models(job, err));
    MOEC_TRY(
        cli_part_windows_make(&job->options.measure, &job->models.source, "thresholds", &job->data, err));
    cli_note_data(&job->progress, &job->data.rows);
    MOEC_TRY(enter_device(job, err));
    MOEC_TRY(measure(job, &progress, err));
    moec_source_close(&job->models.source);
    MOEC_TRY(moec_bundle_put_sparsity(path, &job->found.table,
                                      job->options.has_target ? &job->found.report.plan : NULL,
                                      cli_has(job->args, "parts"), job->output, err));
    cli_progress_end(&job->progress);
    return print_result(job, err);
}

static int run_sparsify(const struct cli_args *args)
{
    struct sparsify_job job = {.args = args};
    struct moec_error err = {0};
    const enum moec_status status = sparsify(&job, &err);
    cli_progress_end(&job.progress);
    moec_sparsify_report_release(&job.found.report);
    moec_sparsity_table_release(&job.found.table);
    moec_sparsity_table_release(&job.found.gate_table);
    cli_part_windows_release(&job.data);
    moec_source_close(&job.models.original);
    moec_source_close(&job.models.source);
    moec_gpu_place_free(job.options.measure.memory.place);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_sparsify = {
    .name = "sparsify",
    .model = CLI_BUNDLE,
    .summary = "let a bundle leave out neurons of its experts",
    .usage = "MODEL.moec --data FILE",
    .about = "Measures |up . x| of each expert's neurons, and writes thresholds into the bundle. With "
             "--sparsity SHARE, moec run, chat, serve, eval and bench then leave out about this share of "
             "neurons for each token: their gate and down weights are not read or computed.\n"
             "With --max-loss, sparsify also finds a plan: the neurons to leave out that do the least harm "
             "per byte. sparsify proves that bundle and plan together stay within the loss, and writes the "
             "plan with its certificate. Runs then follow it; --sparsity none turns it off.",
    .details =
        "Thresholds come from the bundle's own weights, on the windows of --data on which moec compile "
        "searches with the same --seed. Experts that few tokens choose use the thresholds of their "
        "layer. Plans, from mild to strong, are measured on the same windows. The plans are then "
        "tested on the certificate part until one fails; the last plan that passed is written. If none "
        "passes, nothing is written and the exit status is 1. A bundle compiled with --max-loss 2% "
        "leaves no loss for a plan at 2%: compile with a smaller loss.\n"
        "Sparsity needs neurons whose output is 0 if up . x = 0: models with other neurons (gpt-oss), "
        "or without a gate, are refused. docs/sparsity.md shows costs and gains.",
    .examples =
        "moec sparsify model.moec --data calibration.txt -o sparse.moec\n"
        "moec run sparse.moec -p \"Once upon a time\" --sparsity 0.6 --stats\n"
        "moec sparsify model.moec --data calibration.txt --reference MODEL --max-loss 2% -o sparse.moec",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_sparsify,
    .is_offline = true,
};
