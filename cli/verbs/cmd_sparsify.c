#include "cli/options/part_windows.h"
#include "cli/output/json_output.h"
#include "cli/output/progress_line.h"
#include "cli/output/terminal.h"
#include "cli/print/print.h"
#include "cli/verbs/commands.h"
#include "formats/bundle/bundle_sparsity.h"
#include "profiler/evaluate/source.h"
#include "profiler/profile/thresholds.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"samples", 0, "N", NULL,
     "Windows to draw in all, as for moec compile (default: all, at most 896; at least 32). A third gives "
     "thresholds.",
     CLI_RARE},
    {"output", 'o', "OUT.moec", NULL, "The bundle with thresholds; may be MODEL.moec itself, as by default.",
     CLI_OUTPUT | CLI_IN_PLACE},
    {"json", 0, NULL, NULL, "Print what was done as JSON.", 0},
    CLI_MACHINE_OPTIONS,
    {0},
};

/* Thousandths. Between them, thresholds of |up . x| are close to straight lines. */
static const uint16_t shares[] = {100, 200, 300, 400, 500, 600, 700, 800, 850, 900, 950};
#define N_SHARE (sizeof shares / sizeof *shares)

struct sparsify_job {
    const struct cli_args *args;
    const char *output;
    struct cli_measure_options measure;
    struct moec_source source;
    struct cli_part_windows data;
    struct moec_windows search;
    struct moec_sparsity_table table;
    struct cli_progress progress;
};

static enum moec_status show_progress(void *context, const char *phase, double done, double total)
{
    struct sparsify_job *job = context;
    cli_progress_show(&job->progress, phase, done, total);
    return MOEC_OK;
}

static enum moec_status print_result(const struct sparsify_job *job, struct moec_error *err)
{
    if (cli_has(job->args, "json")) {
        struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array();
        moec_json_out_string(root, "file", job->output);
        moec_json_out_u64(root, "tokens", job->table.n_token);
        for (size_t i = 0; i < N_SHARE; i++)
            moec_json_out_double(list, NULL, shares[i] * 1e-3);
        moec_json_out_node(root, "shares", list);
        return cli_print_json(root, err);
    }
    const uint16_t most = shares[N_SHARE - 1];
    cli_print(stdout,
              "wrote '%s' with thresholds of |up . x| from %" PRIu64 " tokens, for --sparsity up to %.2f\n"
              "what a sparsity loses: moec eval %s --data TEST --reference MODEL --sparsity 0.6\n",
              job->output, job->table.n_token, most * 1e-3, job->output);
    return MOEC_OK;
}

static enum moec_status sparsify(struct sparsify_job *job, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    MOEC_TRY(cli_read_measure_options(job->args, &job->measure, err));
    if (job->measure.data == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "no text to take thresholds from: give --data FILE");
    job->output = cli_has(job->args, "output") ? cli_text(job->args, "output") : path;
    cli_progress_init(&job->progress, "sparsify", NULL, job->measure.is_quiet);
    job->progress.is_verbose = job->measure.is_verbose;
    MOEC_TRY(moec_source_open(path, job->measure.work_bytes, job->measure.n_threads,
                              job->measure.seq_len_tokens, &job->source, err));
    if (job->source.bundle == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "'%s' is a checkpoint, expected a bundle, whose thresholds are those of its own weights", path);
    MOEC_TRY(moec_sparsity_table_create(job->source.config, shares, N_SHARE, &job->table, err));
    MOEC_TRY(cli_part_windows_make(&job->measure, &job->source, "thresholds", &job->data, err));
    /* The certificate's windows stay unseen. */
    MOEC_TRY(moec_windows_part(&job->data.windows, MOEC_PART_SEARCH, &job->search, err));
    memcpy(job->table.data_digest, job->data.rows.digest, sizeof job->table.data_digest);
    const struct moec_thresholds_job thresholds = {.model = job->source.model,
                                                   .experts = job->source.experts,
                                                   .kernels = job->measure.kernels,
                                                   .n_threads = job->measure.n_threads,
                                                   .windows = &job->search};
    const struct moec_progress progress = {.report = show_progress, .context = job};
    cli_progress_expect(&job->progress, 1);
    MOEC_TRY(moec_thresholds_fill(&thresholds, &progress, &job->table, err));
    moec_source_close(&job->source);
    MOEC_TRY(moec_bundle_put_sparsity(path, &job->table, job->output, err));
    cli_progress_end(&job->progress);
    return print_result(job, err);
}

static int run_sparsify(const struct cli_args *args)
{
    struct sparsify_job job = {.args = args};
    struct moec_error err = {0};
    const enum moec_status status = sparsify(&job, &err);
    cli_progress_end(&job.progress);
    moec_sparsity_table_release(&job.table);
    moec_windows_release(&job.search);
    cli_part_windows_release(&job.data);
    moec_source_close(&job.source);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_sparsify = {
    .name = "sparsify",
    .model = CLI_BUNDLE,
    .summary = "let a bundle leave out neurons of its experts",
    .usage = "MODEL.moec --data FILE",
    .about =
        "Measures how large up . x is in each expert, and writes thresholds into the bundle. With them "
        "moec run, eval, bench --sparsity SHARE leave out about that share of an expert's neurons for "
        "each token: their gate and down weights are neither read nor computed. The bundle runs as before "
        "without --sparsity.",
    .details = "Thresholds come from the bundle's own weights and the windows of --data that moec compile "
               "searches on with the same --seed; experts that see few tokens take their layer's. Models "
               "whose neurons are not nothing where up . x is (gpt-oss), or that have no gate, are refused.\n"
               "docs/sparsity.md has what it costs and gains.",
    .examples = "moec sparsify model.moec --data calibration.txt\n"
                "moec run model.moec -p \"Once upon a time\" --sparsity 0.6 --stats",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_sparsify,
    .is_offline = true,
};
