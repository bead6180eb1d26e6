#include "cli/options/device_options.h"
#include "cli/options/original.h"
#include "cli/options/part_windows.h"
#include "cli/options/route_options.h"
#include "cli/output/decisions_output.h"
#include "cli/output/json_output.h"
#include "cli/output/progress_line.h"
#include "cli/output/terminal.h"
#include "cli/print/print.h"
#include "cli/verbs/commands.h"
#include "compiler/tune/tune.h"
#include "formats/base/memory.h"
#include "runtime/experts/low_copy.h"
#include "runtime/forward/sparsity.h"
#include "runtime/policy/route.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    CLI_DATA_OPTIONS,
    {"reference", 0, "MODEL", NULL,
     "The original: the checkpoint that the bundle was compiled from. Losses are against it.", CLI_INPUT},
    {"max-loss", 0, "LOSS", NULL,
     "Accuracy that may be lost in all, by the bundle's bits and the decisions, such as 2% or 0.02.", 0},
    {"with", 0, CLI_LIST, "route|rank|precision|prefill",
     "What is searched, alone and together (default: route,precision where moec compile --copies made low "
     "copies, else route):\nroute\tcache-prior: experts in the cache are preferred\nrank\tmax-rank instead: "
     "those of the router's best that are in the cache\nprecision\thobbit: "
     "missing experts of little weight are read in a low copy\nprefill\tunpopular: so are experts that few "
     "of "
     "a prompt's tokens take",
     0},
    {"block-tokens", 0, "L", NULL,
     "With prefill: tokens of its blocks (default 512): as many as a chunk of a prompt, or more.", CLI_RARE},
    {"prompt-tokens", 0, "P", NULL,
     "With prefill: the first P tokens of each window are a prompt's (default: all with prefill alone, else "
     "half).",
     CLI_RARE},
    {"slots", 0, "N|PERCENT", NULL,
     "Experts of each layer in the logical cache (default " MOEC_ROUTE_SLOTS "): about as many as will be in "
     "memory.",
     0},
    {"low-slots", 0, "N|PERCENT", NULL,
     "With precision or prefill: low copies of each layer beside them (default " MOEC_ROUTE_LOW_SLOTS ").",
     CLI_RARE},
    {"low-bits", 0, "B", NULL, "With precision or prefill: bitwidth of the low copy (default: the smallest).",
     CLI_RARE},
    {"keep-top", 0, "J", NULL, "With route or rank: each token takes its J best in any case (default 0).",
     CLI_RARE},
    {"cache-start", 0, "HOW", "empty|frequency",
     "What the logical cache holds at first:\nempty\tnothing (default)\nfrequency\twhat was used most in "
     "the bundle's profile",
     CLI_RARE},
    {"confidence", 0, "C", NULL,
     "Confidence of the interval whose upper end must meet --max-loss (default 0.95).", CLI_RARE},
    CLI_CERTIFIED_ARITHMETIC_OPTION(CLI_RARE),
    CLI_SAMPLES_OPTIONS,
    {"output", 'o', "OUT.moec", NULL, "The bundle with settings; may be MODEL.moec itself, as by default.",
     CLI_OUTPUT | CLI_IN_PLACE},
    {"json", 0, NULL, NULL, "Print the result as JSON.", 0},
    CLI_OFFLINE_DEVICE_OPTIONS(CLI_RARE),
    CLI_MACHINE_OPTIONS,
    {0},
};

struct tune_job {
    const struct cli_args *args;
    const char *output;
    struct cli_measure_options measure;
    struct moec_tune_options tune;
    struct moec_source bundle, original;
    struct moec_sparsity *sparsity; /* by the bundle's plan; NULL = it has none */
    struct moec_work_memory work;   /* batches that a device has room for */
    struct cli_part_windows data;
    struct moec_tune_report report;
    struct cli_progress progress;
};

/* ---- progress ---- */

static enum moec_status show_progress(void *context, const char *phase, double done, double total)
{
    struct tune_job *job = context;
    cli_progress_show(&job->progress, phase, done, total);
    return MOEC_OK;
}

static void expect_work(void *context, double work)
{
    struct tune_job *job = context;
    cli_progress_expect(&job->progress, work);
}

static void show_note(void *context, const char *line)
{
    struct tune_job *job = context;
    if (job->progress.is_verbose)
        cli_progress_note(&job->progress, line);
}

/* ---- inputs ---- */

static enum moec_status read_options(struct tune_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    MOEC_TRY(cli_read_measure_options(args, &job->measure, err));
    job->tune.trial = (struct moec_trial_options){.kernels = job->measure.kernels,
                                                  .n_threads = job->measure.n_threads,
                                                  .reference_bytes = job->measure.work_bytes,
                                                  .confidence = 0.95};
    if (job->measure.data == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "nothing to measure on: give --data FILE");
    if (!cli_has(args, "reference"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "losses are against the original model: name its checkpoint with --reference MODEL");
    if (!cli_has(args, "max-loss"))
        return moec_fail(err, MOEC_ERR_USAGE, "say what may be lost in all with --max-loss, such as 2%%");
    MOEC_TRY(cli_fraction(args, "max-loss", &job->tune.trial.max_loss, err));
    return cli_double(args, "confidence", 0.5001, 0.9999, &job->tune.trial.confidence, err);
}

static bool takes_low(const struct tune_job *job)
{
    return job->tune.with_precision || job->tune.with_prefill;
}

/* The bundle's copy that would be the low one. Without --with, a bundle that has none is searched without. */
static enum moec_status read_low(struct tune_job *job, struct moec_error *err)
{
    struct moec_decision_settings *shared = &job->tune.shared;
    const struct moec_bundle *bundle = job->bundle.bundle;
    const char *slots = cli_text(job->args, "low-slots");
    uint32_t low = 0;
    const bool is_asked = cli_has(job->args, "with") || slots != NULL || shared->low_bits > 0;
    struct moec_error ignored = {0};
    const enum moec_status found =
        moec_low_copy_find(bundle, 0, shared->low_bits, &low, is_asked ? err : &ignored);
    if (found != MOEC_OK || bundle->config.top_k == 1)
        job->tune.with_precision = false;
    if (found != MOEC_OK || !takes_low(job)) {
        job->tune.with_prefill = false;
        return is_asked && found != MOEC_OK ? found : MOEC_OK;
    }
    shared->low_bits = bundle->copy_bits[low];
    MOEC_TRY(moec_route_read_slots(slots != NULL ? slots : MOEC_ROUTE_LOW_SLOTS, &bundle->config,
                                   &shared->n_low_slots, err));
    return moec_source_serve_low(&job->bundle, shared->low_bits, err);
}

/* A bundle that leaves out neurons does so in every candidate, and takes its experts in one precision. */
static enum moec_status use_plan(struct tune_job *job, struct moec_error *err)
{
    struct moec_certificate certificate = job->bundle.bundle->certificate;
    MOEC_TRY(moec_sparsity_open_planned(job->bundle.bundle, &job->sparsity, &certificate, err));
    job->tune.trial.sparsity = job->sparsity;
    job->tune.trial.arithmetic = cli_arithmetic(job->args, &certificate);
    if (job->sparsity == NULL || !takes_low(job))
        return MOEC_OK;
    if (cli_has(job->args, "with") || cli_has(job->args, "low-slots") || cli_has(job->args, "low-bits"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "low copies with the plan of sparsity of '%s', which is that of its compiled "
                         "assignment: search --with route, or tune the bundle from before moec sparsify "
                         "--max-loss",
                         job->bundle.path);
    job->tune.with_precision = job->tune.with_prefill = false;
    return MOEC_OK;
}

/* Which tokens are a prompt's; without a prefill it makes no difference. */
static enum moec_status read_prompt(struct tune_job *job, struct moec_error *err)
{
    const uint32_t n = job->measure.seq_len_tokens;
    const bool is_alone = !job->tune.with_route && !job->tune.with_rank && !job->tune.with_precision;
    const bool is_given = cli_has(job->args, "prompt-tokens");
    job->tune.block_tokens = MOEC_PREFILL_TOKENS;
    if (!job->tune.with_prefill && (is_given || cli_has(job->args, "block-tokens")))
        return moec_fail(err, MOEC_ERR_USAGE, "--%s does nothing without --with prefill",
                         is_given ? "prompt-tokens" : "block-tokens");
    if (!job->tune.with_prefill)
        return MOEC_OK;
    MOEC_TRY(cli_u32(job->args, "block-tokens", 1, MOEC_MAX_POSITIONS, &job->tune.block_tokens, err));
    if (moec_prefill_window(&job->bundle.bundle->config) == 0)
        return MOEC_OK;
    job->tune.trial.n_prompt = is_alone ? n : n / 2;
    MOEC_TRY(cli_u32(job->args, "prompt-tokens", 1, n, &job->tune.trial.n_prompt, err));
    if (job->bundle.bundle->paths.n_layer > 0 || job->tune.block_tokens < job->tune.trial.n_prompt)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "'%s' does not know which experts calibration used, so that of a prompt's first %" PRIu32
                     " tokens none would be unpopular: compile it with --profile, or choose --block-tokens "
                     "below the %" PRIu32 " of a prompt",
                     job->bundle.path, job->tune.block_tokens, job->tune.trial.n_prompt);
}

static enum moec_status read_settings(struct tune_job *job, struct moec_error *err)
{
    const struct cli_args *args = job->args;
    const char *with = cli_has(args, "with") ? cli_text(args, "with") : "route,precision";
    const char *slots = cli_has(args, "slots") ? cli_text(args, "slots") : MOEC_ROUTE_SLOTS;
    const char *start = cli_text(args, "cache-start");
    struct moec_decision_settings *shared = &job->tune.shared;
    job->tune.with_route = strstr(with, "route") != NULL;
    job->tune.with_rank = strstr(with, "rank") != NULL;
    job->tune.with_precision = strstr(with, "precision") != NULL;
    if (job->tune.with_route && job->tune.with_rank)
        return moec_fail(err, MOEC_ERR_USAGE, "--with %s has two routes, expected route or rank", with);
    job->tune.with_prefill = strstr(with, "prefill") != NULL;
    if (!takes_low(job) && (cli_has(args, "low-slots") || cli_has(args, "low-bits")))
        return moec_fail(err, MOEC_ERR_USAGE, "--low-slots and --low-bits do nothing with --with %s", with);
    if (!job->tune.with_route && !job->tune.with_rank && cli_has(args, "keep-top"))
        return moec_fail(err, MOEC_ERR_USAGE, "--keep-top does nothing with --with %s", with);
    MOEC_TRY(moec_route_read_slots(slots, &job->bundle.bundle->config, &shared->n_slots, err));
    MOEC_TRY(cli_u32(args, "keep-top", 0, MOEC_MAX_TOP_K, &shared->keep_top, err));
    MOEC_TRY(cli_u32(args, "low-bits", 1, 16, &shared->low_bits, err));
    shared->starts_frequent = start != NULL && strcmp(start, "frequency") == 0;
    MOEC_TRY(use_plan(job, err));
    if (takes_low(job))
        MOEC_TRY(read_low(job, err));
    return read_prompt(job, err);
}

static enum moec_status open_models(struct tune_job *job, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    const struct cli_measure_options *measure = &job->measure;
    MOEC_TRY(moec_source_open(path, measure->work_bytes, measure->n_threads, measure->seq_len_tokens,
                              &job->bundle, err));
    if (job->bundle.bundle == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "'%s' is a checkpoint, expected a bundle: compile it first, with less than the loss "
                         "that bundle and decisions may have together",
                         path);
    MOEC_TRY(read_settings(job, err));
    MOEC_TRY(cli_use_arithmetic(measure->place, job->tune.trial.arithmetic, err));
    MOEC_TRY(cli_open_original(measure, &job->bundle, cli_text(job->args, "reference"), &job->original, err));
    if (measure->place == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_source_offload(&job->bundle, measure->place, err));
    return moec_source_offload(&job->original, measure->place, err);
}

/* ---- result ---- */

static struct moec_json_out *json_candidate(const struct moec_tune_candidate *candidate)
{
    struct moec_json_out *node = moec_json_out_object();
    cli_json_settings(node, &candidate->settings);
    cli_json_loss(node, &candidate->search);
    moec_json_out_double(node, "missed_share", moec_decision_missed_share(&candidate->traffic));
    moec_json_out_double(node, "missed_bytes_per_token", candidate->traffic.token_bytes);
    moec_json_out_bool(node, "on_front", candidate->is_on_front);
    return node;
}

static enum moec_status print_json(const struct tune_job *job, struct moec_error *err)
{
    const struct moec_tune_report *report = &job->report;
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array(),
                         *tests = moec_json_out_array();
    moec_json_out_string(root, "file", job->output);
    moec_json_out_node(root, "decisions", cli_json_decisions(&report->decisions));
    moec_json_out_bool(root, "bundle_certified_on_same_windows", report->is_reused);
    moec_json_out_node(root, "without", json_candidate(&report->plain));
    for (uint32_t i = 0; i < report->n_candidate; i++)
        moec_json_out_node(list, NULL, json_candidate(&report->candidates[i]));
    moec_json_out_node(root, "candidates", list);
    for (uint32_t i = 0; i < report->n_sequence; i++)
        moec_json_out_u64(tests, NULL, report->sequence[i]);
    moec_json_out_node(root, "sequence", tests);
    return cli_print_json(root, err);
}

static void print_result(const struct tune_job *job)
{
    const struct moec_bundle_decisions *decisions = &job->report.decisions;
    const struct moec_certificate *certificate = &decisions->certificate;
    char name[MOEC_TUNE_NAME_BYTES];
    uint32_t n_passed = 0;
    while (n_passed < certificate->n_sequence &&
           certificate->sequence[n_passed].result == MOEC_SEQUENCE_PASSED)
        n_passed++;
    cli_print(stdout, "wrote '%s', which decides by %s; %" PRIu32 " measurements\n", job->output,
              moec_tune_name(&decisions->settings, name), job->report.n_candidate + 1);
    cli_print_decisions(decisions);
    cli_print(stdout,
              "             setting %" PRIu32 " of %" PRIu32 " is the last proven with %g%% confidence",
              n_passed, certificate->n_sequence, 100 * certificate->confidence);
    if (n_passed < certificate->n_sequence)
        cli_print(stdout, "; the next may lose %.3f%%", 100 * certificate->sequence[n_passed].high);
    cli_print(stdout, "\n");
    if (job->report.is_reused)
        cli_print(stdout,
                  "             the bundle itself was certified on the same windows: each promise holds "
                  "by itself\n             (--seed draws other windows)\n");
}

static enum moec_status tune(struct tune_job *job, struct moec_error *err)
{
    const char *path = job->args->positional[0];
    MOEC_TRY(read_options(job, err));
    job->output = cli_has(job->args, "output") ? cli_text(job->args, "output") : path;
    cli_progress_init(&job->progress, "tune", NULL, job->measure.is_quiet);
    job->progress.is_verbose = job->measure.is_verbose;
    MOEC_TRY(cli_open_place(job->args, cli_arithmetic(job->args, NULL), &job->measure.place, err));
    MOEC_TRY(open_models(job, err));
    MOEC_TRY(cli_part_windows_make(&job->measure, &job->bundle, "tune", &job->data, err));
    if (job->measure.place != NULL) {
        job->work.batch_tokens = moec_gpu_place_batch_tokens(job->measure.place, job->bundle.model);
        job->data.windows.work = &job->work;
    }
    const struct moec_trial_inputs inputs = {.bundle = &job->bundle,
                                             .original = &job->original,
                                             .windows = &job->data.windows,
                                             .data_digest = job->data.rows.digest,
                                             .data_name = job->data.rows.name};
    const struct moec_progress progress = {
        .report = show_progress, .note = show_note, .expect = expect_work, .context = job};
    MOEC_TRY(moec_tune(&inputs, &job->tune, &progress, &job->report, err));
    moec_source_close(&job->bundle);
    MOEC_TRY(moec_bundle_put_decisions(path, &job->report.decisions, job->output, err));
    cli_progress_end(&job->progress);
    if (cli_has(job->args, "json"))
        return print_json(job, err);
    print_result(job);
    return MOEC_OK;
}

static int run_tune(const struct cli_args *args)
{
    struct tune_job job = {.args = args};
    struct moec_error err = {0};
    const enum moec_status status = tune(&job, &err);
    cli_progress_end(&job.progress);
    cli_part_windows_release(&job.data);
    moec_source_close(&job.original);
    moec_source_close(&job.bundle);
    moec_sparsity_free(job.sparsity);
    moec_gpu_place_free(job.measure.place);
    return status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
}

const struct cli_command cli_command_tune = {
    .name = "tune",
    .model = CLI_BUNDLE,
    .summary = "let a bundle decide about each token within a loss",
    .usage = "MODEL.moec --data FILE",
    .about = "Searches for settings of --route, --precision and --prefill with which a token reads the "
             "fewest bytes of "
             "experts, proves that bundle and settings together lose no more than --max-loss against the "
             "original, and writes both into the bundle. moec run, chat, eval and bench use them from then "
             "on; --decide none turns them off.",
    .details =
        "The data has the three parts that moec compile draws with the same --seed. Settings are measured on "
        "the search part. Up to 8 of those that lose less or read less than all others are then tested on "
        "the certificate part, from the safest to the one that reads least, until one fails; the last that "
        "passed is written. If none passes, nothing is written and the exit status is 1. A bundle that was "
        "compiled with --max-loss 2% has no loss left for decisions at 2%: compile with less.\n"
        "Bytes are those that the logical cache of --slots misses. A bundle's plan of sparsity stays in use, "
        "and "
        "its loss counts. docs/decisions.md describes it.",
    .examples = "moec compile MODEL --data calibration.txt --max-loss 1% --copies 2 -o model.moec\n"
                "moec tune model.moec --data calibration.txt --reference MODEL --max-loss 2%\n"
                "moec run model.moec -p \"Once upon a time\" --memory 64MiB --stats",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_tune,
    .is_offline = true,
};
