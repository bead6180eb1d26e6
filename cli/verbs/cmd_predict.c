/* A predictor learns on the search part and is judged on the certificate part, or on --test. It is written
 * only where the lower end of its gain is above 0. The figures are printed in either case. */
#include "cli/options/outputs.h"
#include "cli/output/predictor_output.h"
#include "cli/print/print.h"
#include "cli/settings/part_windows.h"
#include "cli/terminal/data_note.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/verbs/commands.h"
#include "compiler/predictor/predictor_train.h"
#include "formats/bundle/bundle_predictor.h"
#include "formats/tables/sparsity_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"test", 0, "FILE", NULL,
     "Text to judge predictors on (default: the windows of --data that no predictor learned from).",
     CLI_INPUT | CLI_OF_DATA},
    {"study", 0, "WHAT", "neurons",
     "Also study:\n"
     "neurons\thow well this layer's input tells which neurons of the next layer's experts are "
     "active (FloE)",
     CLI_RARE | CLI_OF_LOSS},
    {"max-share", 0, "SHARE", NULL, "Largest share of the bundle that the predictor may take (default 2%).",
     CLI_OF_LOSS},
    {"samples", 0, "N", NULL,
     "Windows of --data to draw (default: all, at most 768; at least 32): half judge, the other "
     "half teaches.",
     CLI_OF_DATA},
    {"search-samples", 0, "N", NULL, "How many windows to learn from (by default at most 256).",
     CLI_RARE | CLI_OF_DATA},
    {"certificate-samples", 0, "N", NULL,
     "How many windows of --data or --test judge (by default at most 512).", CLI_RARE | CLI_OF_DATA},
    {"output", 'o', "OUT.moec", NULL,
     "The bundle with its predictor (default: MODEL.moec itself, which needs --force).",
     CLI_OUTPUT | CLI_IN_PLACE | CLI_OF_OUTPUT},
    {"json", 0, NULL, NULL, "Print the result as JSON, with figures for each layer.", CLI_OF_OUTPUT},
    CLI_MACHINE_OPTIONS,
    {0},
};

struct predict_job {
    const struct cli_args *args;
    struct {
        const char *bundle, *output; /* NULL: nothing is learned */
    } paths;
    double max_share;
    struct cli_measure_options measure;
    struct moec_source source;
    struct {
        struct cli_part_windows data, test;
        struct moec_windows teaching, judging;
    } windows;
    struct {
        struct moec_expert_predictor predictor;
        struct moec_predictor_study study;
        struct moec_neuron_study neurons;
        size_t n_bytes; /* of the section */
    } found;
    struct cli_progress progress;
};

static enum moec_status show_progress(void *context, const char *phase, double done, double total)
{
    struct predict_job *job = context;
    cli_progress_show(&job->progress, phase, done, total);
    return MOEC_OK;
}

static void show_note(void *context, const char *line)
{
    struct predict_job *job = context;
    if (job->progress.is_verbose)
        cli_progress_note(&job->progress, line);
}

/* ---- inputs ---- */

static enum moec_status read_options(struct predict_job *job, struct moec_error *err)
{
    static const char *const idle[] = {"max-share", "samples", "search-samples", "output"};
    const struct cli_args *args = job->args;
    const bool learns = cli_has(args, "data");
    job->max_share = MOEC_PREDICTOR_SHARE;
    if (!learns && !cli_has(args, "test"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "no text given: give --data FILE to learn from, or --test FILE to test on");
    for (size_t i = 0; i < sizeof idle / sizeof *idle && !learns; i++)
        if (cli_has(args, idle[i]))
            return moec_fail(err, MOEC_ERR_USAGE, "--%s does nothing without --data", idle[i]);
    MOEC_TRY(cli_read_measure_options(args, &job->measure, err));
    if (cli_has(args, "max-share"))
        MOEC_TRY(cli_fraction(args, "max-share", &job->max_share, err));
    job->measure.data.parts.no_select = true;
    job->paths.bundle = args->positional[0];
    return learns ? cli_output_or_input(args, &job->paths.output, err) : MOEC_OK;
}

static enum moec_status open_bundle(struct predict_job *job, struct moec_error *err)
{
    const struct cli_measure_options *measure = &job->measure;
    MOEC_TRY(moec_source_open(job->paths.bundle, measure->memory.work_bytes, measure->by.n_threads,
                              measure->data.seq_len_tokens, &job->source, err));
    if (job->source.bundle != NULL)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "the model '%s' is a checkpoint, expected a bundle: predictors learn the routing of "
                     "the bundle's own weights",
                     job->paths.bundle);
}

static enum moec_status make_windows(struct predict_job *job, struct moec_error *err)
{
    struct cli_measure_options test = job->measure;
    if (job->paths.output != NULL) {
        MOEC_TRY(cli_part_windows_make(&job->measure, &job->source, "a predictor", &job->windows.data, err));
        cli_note_data(&job->progress, &job->windows.data.rows);
        MOEC_TRY(
            moec_windows_part(&job->windows.data.windows, MOEC_PART_SEARCH, &job->windows.teaching, err));
    }
    if (!cli_has(job->args, "test"))
        return moec_windows_part(&job->windows.data.windows, MOEC_PART_CERTIFICATE, &job->windows.judging,
                                 err);
    test.data.path = cli_text(job->args, "test");
    test.data.parts.n_window = job->measure.data.parts.n_part[MOEC_PART_CERTIFICATE] > 0
                                   ? job->measure.data.parts.n_part[MOEC_PART_CERTIFICATE]
                                   : MOEC_DEFAULT_CERTIFICATE_WINDOWS;
    MOEC_TRY(cli_whole_windows_make(&test, &job->source, "a predictor", &job->windows.test, err));
    cli_note_data(&job->progress, &job->windows.test.rows);
    return moec_windows_part(&job->windows.test.windows, MOEC_PART_ALL, &job->windows.judging, err);
}

/* ---- result ---- */

static void json_learned(const struct predict_job *job, struct moec_json_out *root)
{
    struct moec_json_out *layers = moec_json_out_array();
    moec_json_out_string(root, "file", job->paths.output);
    moec_json_out_u64(root, "predictor_bytes", job->found.n_bytes);
    moec_json_out_u64(root, "learned_tokens", job->found.predictor.n_token);
    for (uint32_t s = 0; s < job->found.predictor.n_layer; s++) {
        if (job->found.predictor.layers[s].is_known)
            moec_json_out_u64(layers, NULL, job->found.predictor.layers[s].n_hidden);
        else
            moec_json_out_null(layers, NULL);
    }
    moec_json_out_node(root, "hidden_units", layers);
}

static enum moec_status print_result(const struct predict_job *job, bool is_written, struct moec_error *err)
{
    if (cli_has(job->args, "json")) {
        struct moec_json_out *root = cli_json_predictors(&job->found.study, job->source.config);
        if (cli_has(job->args, "study"))
            moec_json_out_node(root, "neurons", cli_json_neurons(&job->found.neurons));
        if (is_written)
            json_learned(job, root);
        return cli_print_json(root, err);
    }
    cli_print_predictors(&job->found.study);
    cli_print_predictor_verdict(&job->found.study);
    cli_print_neurons(&job->found.neurons);
    if (is_written)
        cli_print_wrapped(stdout, 2,
                          "wrote '%s' with a predictor of %zu bytes, learned from %" PRIu64 " tokens\n"
                          "moec run, chat and bench use it: moec run %s -p TEXT --memory SIZE --stats\n",
                          job->paths.output, job->found.n_bytes, job->found.predictor.n_token,
                          job->paths.output);
    return MOEC_OK;
}

/* ---- work ---- */

static enum moec_status learn(struct predict_job *job, const struct moec_progress *progress,
                              struct moec_error *err)
{
    const struct moec_predictor_job training = {
        .model = job->source.model,
        .experts = job->source.experts,
        .kernels = job->measure.by.kernels,
        .n_threads = job->measure.by.n_threads,
        .windows = &job->windows.teaching,
        .most_bytes = (uint64_t)(job->max_share * (double)job->source.bundle->file.n_bytes),
        .work_bytes = job->measure.memory.work_bytes,
        .seed = job->measure.data.seed};
    MOEC_TRY(moec_predictor_train(&training, progress, &job->found.predictor, err));
    memcpy(job->found.predictor.data_digest, job->windows.data.rows.digest,
           sizeof job->found.predictor.data_digest);
    return MOEC_OK;
}

static enum moec_status judge(struct predict_job *job, const struct moec_progress *progress,
                              struct moec_error *err)
{
    const struct moec_predictor_study_job study = {.model = job->source.model,
                                                   .experts = job->source.experts,
                                                   .kernels = job->measure.by.kernels,
                                                   .n_threads = job->measure.by.n_threads,
                                                   .windows = &job->windows.judging,
                                                   .paths = &job->source.bundle->paths,
                                                   .predictor = &job->found.predictor,
                                                   .work_bytes = job->measure.memory.work_bytes};
    return moec_predictor_study_run(&study, progress, &job->found.study, err);
}

static enum moec_status study_neurons(struct predict_job *job, const struct moec_progress *progress,
                                      struct moec_error *err)
{
    const struct moec_neuron_study_job study = {.model = job->source.model,
                                                .experts = job->source.experts,
                                                .kernels = job->measure.by.kernels,
                                                .n_threads = job->measure.by.n_threads,
                                                .windows = &job->windows.judging,
                                                .work_bytes = job->measure.memory.work_bytes};
    MOEC_TRY(moec_sparsity_check_config(job->source.config, err));
    return moec_neuron_study_run(&study, progress, &job->found.neurons, err);
}

/* A predictor that guesses no better than what needs no bytes stays out of the bundle. */
static enum moec_status keep(struct predict_job *job, struct moec_error *err)
{
    const struct moec_study_share *gain = &job->found.study.gain[0];
    if (!(gain->low > 0))
        return moec_fail(err, MOEC_ERR_TARGET,
                         "the learned predictor finds %.2f percentage points more of the next layer's "
                         "experts than the gate predictor (90%% interval %.2f to %.2f). This gain is "
                         "not significant, so nothing was written: use --predict gate, or give more text",
                         100 * gain->value, 100 * gain->low, 100 * gain->high);
    job->found.predictor.recall = job->found.study.predictors[MOEC_STUDIED_LEARNED].recall[0].value;
    job->found.predictor.gate_recall = job->found.study.predictors[MOEC_STUDIED_GATE].recall[0].value;
    return moec_bundle_put_predictor(job->paths.bundle, &job->found.predictor, job->paths.output,
                                     &job->found.n_bytes, err);
}

static enum moec_status predict(struct predict_job *job, struct moec_error *err)
{
    const struct moec_progress progress = {.report = show_progress, .note = show_note, .context = job};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(read_options(job, err));
    cli_progress_init(&job->progress, "predict", NULL, job->measure.is_quiet);
    job->progress.is_verbose = job->measure.is_verbose;
    MOEC_TRY(open_bundle(job, err));
    MOEC_TRY(make_windows(job, err));
    /* Learning, judging, neurons: each is one unit of work. */
    cli_progress_expect(&job->progress, 1.0 + (job->paths.output != NULL) + cli_has(job->args, "study"));
    if (job->paths.output != NULL)
        MOEC_TRY(learn(job, &progress, err));
    else
        MOEC_TRY(moec_bundle_load_predictor(job->source.bundle, &job->found.predictor, err));
    MOEC_TRY(judge(job, &progress, err));
    if (cli_has(job->args, "study"))
        MOEC_TRY(study_neurons(job, &progress, err));
    if (job->paths.output != NULL)
        status = keep(job, err);
    cli_progress_end(&job->progress);
    struct moec_error print_error = {0};
    const enum moec_status printed =
        print_result(job, job->paths.output != NULL && status == MOEC_OK, &print_error);
    if (status == MOEC_OK && printed != MOEC_OK)
        return moec_fail(err, printed, "%s", print_error.message);
    return status;
}

static int run_predict(const struct cli_args *args)
{
    struct predict_job job = {.args = args};
    struct moec_error err = {0};
    const enum moec_status status = predict(&job, &err);
    cli_progress_end(&job.progress);
    moec_predictor_study_release(&job.found.study);
    moec_neuron_study_release(&job.found.neurons);
    moec_expert_predictor_release(&job.found.predictor);
    moec_windows_release(&job.windows.teaching);
    moec_windows_release(&job.windows.judging);
    cli_part_windows_release(&job.windows.data);
    cli_part_windows_release(&job.windows.test);
    moec_source_close(&job.source);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_predict = {
    .name = "predict",
    .model = CLI_BUNDLE,
    .summary = "train a bundle's predictor of the next layer's experts",
    .usage = "MODEL.moec --data FILE",
    .about = "Trains, for each MoE layer, a predictor of the next layer's experts, and writes it into the "
             "bundle. The predictor sees the input and the choices of this layer's router. moec run, chat "
             "and bench then read the predicted experts from storage early; --predict gate predicts as "
             "before. The text stays the same.\n"
             "The command also shows which share of the needed experts each predictor names, on text from "
             "which none learned. With --test alone, it trains and writes nothing, and judges the "
             "predictors that the bundle has.",
    .details =
        "For each layer, the command trains a perceptron of one layer. A perceptron of two layers is "
        "trained too, and is taken if its better predictions are worth the bytes. Training uses the "
        "bundle's own weights and half of the windows of --data; an eighth of them decide when "
        "training ends. The rest of --data, or --test, judges. If the trained predictor is not "
        "significantly better than asking the next layer's router early (--predict gate), nothing is "
        "written and the exit status is 1. The result depends on --seed, but not on --threads or --cpu.",
    .examples = "moec predict model.moec --data calibration.txt -o taught.moec\n"
                "moec run taught.moec -p \"Once upon a time\" --memory 64MiB --stats\n"
                "moec predict taught.moec --test other.txt",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_predict,
    .is_offline = true,
};
