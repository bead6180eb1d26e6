/* What can be refused is refused before the first row: options, folders, data. Results are shown and written
 * before failed rows, or traces that are missing, become the exit status. */
#include "cli/options/outputs.h"
#include "cli/output/bench_output.h"
#include "cli/output/figure_output.h"
#include "cli/settings/bench_options.h"
#include "cli/settings/device_options.h"
#include "cli/settings/engine_options.h"
#include "cli/settings/measure_options.h"
#include "cli/settings/policy_options.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/data_note.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/json_output.h"
#include "cli/terminal/progress_line.h"
#include "cli/verbs/commands.h"
#include "compiler/lua/task_file.h"
#include "formats/base/file.h"
#include "profiler/bench/bench_figures.h"
#include "profiler/bench/bench_json.h"
#include "profiler/bench/kernel_bench.h"
#include "runtime/kernels/arithmetic.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct cli_option options[] = {
    {"memory", 0, "LIST", NULL,
     "Memory sizes to compare, separated by commas: 25% of the bytes of all experts, or 64MiB "
     "for the whole process.",
     CLI_OF_MEMORY},
    {"modes", 0, "LIST", NULL,
     "Run modes, separated by commas. Default: the modes of EdgeMoE's paper, from edgemoe to sti, "
     "for which the bundle has copies, and cache if --evict or --predict is given. --help-all lists "
     "all modes:\n"
     "cache\tas moec run, with --evict and --predict\n"
     "edgemoe\tcache with the eviction and prediction of EdgeMoE" CLI_RESEARCH
     "io-free\t16 bits, all in memory\n"
     "io-qfree\t8 bits, all in memory\n"
     "io-exp\t16 bits, read when needed, not kept\n"
     "io-qexp\t4 bits, read when needed, not kept\n"
     "sti\tall experts read in order for every token\n"
     "io-exp+lru\tio-exp, kept in an LRU buffer\n"
     "io-qexp+lru\tio-qexp, kept in an LRU buffer\n"
     "lod\tread when needed, not kept (Fate)\n"
     "eap\tevicted by fate, predicted by path (Fate)\n"
     "moe-offloading\tevicted by lru, predicted by gate (HOBBIT)\n"
     "moe-infinity\tevicted by lfu, predicted by path (HOBBIT)",
     CLI_OF_MEMORY},
    {"emulate-storage", 0, "RATE,LATENCY,REQUEST", NULL,
     "Read as slowly as storage with this bandwidth and latency, such as 550MB/s,80us. Each request "
     "takes REQUEST longer (default 10us). May be repeated.",
     CLI_REPEATS | CLI_OF_MEMORY},
    {"data", 0, "FILE", NULL, "Text for the samples (default: a text inside moec).", CLI_INPUT | CLI_OF_DATA},
    {"samples", 0, "N", NULL, "How many samples to time (default 8).", CLI_OF_DATA},
    CLI_DEVICE_OPTIONS(CLI_RARE),
    {"prompt-tokens", 0, "N", NULL,
     "Tokens in the prompt of a sample (default 64); for an encoder-decoder model, in its source.",
     CLI_OF_DATA},
    {"tokens", 'n', "N", NULL, "Tokens decoded after the prompt (default 32).", CLI_OF_DATA},
    {"kernels", 0, NULL, NULL,
     "Measure how fast weights of each codec are read and multiplied for one token; needs no bundle.", 0},
    {"output", 'o', "FILE.json", NULL, "Also write the result to FILE.json.", CLI_OUTPUT | CLI_OF_OUTPUT},
    {"plots", 0, "FOLDER", NULL, "Draw the figures of EdgeMoE's evaluation.", CLI_OF_OUTPUT},
    {"json", 0, NULL, NULL, "Print the result as JSON.", CLI_OF_OUTPUT},
    {"evict", 0, "LIST", NULL,
     "Evictions to compare in mode cache, separated by commas (default hobbit; edgemoe if the "
     "model's encoder has experts):\n" CLI_EVICT_VALUES,
     CLI_RARE | CLI_OF_MEMORY},
    {"predict", 0, "NAME", CLI_PREDICT_CHOICES,
     "How mode cache predicts the next layer's experts. Default, the first that applies: token if the "
     "model routes by token, none with --device, the predictor that moec fit chose, learned if the bundle "
     "has it, else gate:\n" CLI_PREDICT_VALUES CLI_PREDICT_TOKEN,
     CLI_RARE | CLI_OF_MEMORY},
    {"preload-count", 0, "N", NULL, "Read N predicted experts for each layer, however long it takes.",
     CLI_RARE | CLI_OF_MEMORY},
    {"preload-ahead", 0, "P", NULL, CLI_PRELOAD_AHEAD, CLI_RARE | CLI_OF_MEMORY},
    CLI_ROUTE_OPTIONS(CLI_RARE, "", ""),
    CLI_DECIDE_OPTION(CLI_RARE),
    CLI_SPARSITY_OPTION(CLI_RARE),
    CLI_ARITHMETIC_OPTION(CLI_RARE),
    CLI_KV_OPTION(CLI_RARE),
    {"against-none", 0, NULL, NULL, "For each row with predictions, add a row without predictions.",
     CLI_RARE | CLI_OF_MEMORY},
    {"ablation", 0, NULL, NULL,
     "Add rows that show what each part of edgemoe brings: bitwidths alone, then also preloads, "
     "then also the buffer.",
     CLI_RARE | CLI_OF_RESEARCH},
    {"io", 0, "WAY", CLI_IO_CHOICES, "How storage is read:\n" CLI_IO_VALUES, CLI_RARE | CLI_OF_MEMORY},
    {"task", 0, "TASK", NULL, "How --data is read: " CLI_TASK_NAMES ".",
     CLI_RARE | CLI_INPUT | CLI_BUILT_IN | CLI_OF_DATA},
    {"traces", 0, "FOLDER", NULL,
     "Write a trace of each row, for Perfetto and moec simulate. Recording slows every token a little.",
     CLI_RARE | CLI_OF_OUTPUT},
    {"trace-scores", 0, NULL, NULL,
     "With --traces: also record every expert's router score, for moec simulate --route and "
     "--precision.",
     CLI_RARE | CLI_OF_OUTPUT},
    {"plot-format", 0, CLI_LIST, "png|svg|pdf|csv",
     "Formats for --plots: png, svg, pdf, csv, separated by commas (default png,svg,csv).",
     CLI_RARE | CLI_OF_OUTPUT},
    CLI_THREAD_OPTIONS,
    {"quiet", 'q', NULL, NULL, "Show no progress.", 0},
    {0},
};

struct bench_job {
    const struct cli_args *args;
    struct cli_bench_options options;
    struct moec_task task;
    struct moec_rows rows;
    struct moec_bench bench;
    struct cli_progress progress;
};

static enum moec_status show_progress(void *context, const char *phase, double done, double total)
{
    struct bench_job *job = context;
    cli_progress_show(&job->progress, phase, done, total);
    return cli_interrupt_status();
}

static void show_note(void *context, const char *line)
{
    struct bench_job *job = context;
    cli_progress_tell(&job->progress, line);
}

#define TEXT_BYTES ((uint64_t)1 << 30) /* that reading the data may take */

static enum moec_status read_data(struct bench_job *job, struct moec_error *err)
{
    if (cli_has(job->args, "task") && !cli_has(job->args, "data"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--task says how to read the file of --data: give --data FILE too");
    if (!cli_has(job->args, "data"))
        return MOEC_OK;
    MOEC_TRY(
        moec_task_load(cli_has(job->args, "task") ? cli_text(job->args, "task") : "text", &job->task, err));
    struct moec_error own = {0};
    const enum moec_status status =
        moec_rows_read(&job->task, cli_text(job->args, "data"), TEXT_BYTES, &job->rows, &own);
    if (status == MOEC_ERR_BUDGET) /* whose message names an option that a bench does not have */
        return moec_fail(err, status,
                         "reading '%s' needs more than %.0f MiB, the limit for a bench's text. Give less "
                         "text: the bench uses only %" PRIu32 " samples of %" PRIu32 " + %" PRIu32 " tokens",
                         cli_text(job->args, "data"), (double)TEXT_BYTES / (1 << 20),
                         job->options.bench.n_sample, job->options.bench.prompt_tokens,
                         job->options.bench.n_tokens);
    if (status != MOEC_OK)
        return moec_fail(err, status, "%s", own.message);
    cli_note_data(&job->progress, &job->rows);
    job->options.bench.rows = &job->rows;
    return MOEC_OK;
}

/* A trace may have the name of an input that stands in the same folder. */
static enum moec_status check_trace(void *context, const char *path, struct moec_error *err)
{
    const struct bench_job *job = context;
    return cli_check_output(job->args, "traces", path, err);
}

static enum moec_status make_trace_folder(struct bench_job *job, struct moec_error *err)
{
    const char *folder = cli_text(job->args, "traces");
    job->options.bench.engine.trace.scores = cli_has(job->args, "trace-scores");
    if (job->options.bench.engine.trace.scores && folder == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "--trace-scores does nothing without --traces FOLDER");
    if (folder != NULL && mkdir(folder, 0777) != 0 && !(errno == EEXIST && moec_path_is_folder(folder)))
        return moec_fail(err, MOEC_ERR_IO, "cannot make the folder '%s' for traces: %s", folder,
                         strerror(errno));
    if (folder != NULL)
        MOEC_TRY(cli_check_folder("traces", folder, err));
    job->options.bench.traces = folder;
    job->options.bench.check_trace = check_trace;
    job->options.bench.check_context = job;
    return MOEC_OK;
}

static enum moec_status write_json(const char *path, const char *text, struct moec_error *err)
{
    struct moec_output output = {.fd = -1};
    MOEC_TRY(moec_output_open(&output, path, err));
    enum moec_status status = moec_output_append(&output, text, strlen(text), err);
    if (status == MOEC_OK)
        status = moec_output_commit(&output, err);
    moec_output_abort(&output);
    return status;
}

static enum moec_status draw(struct bench_job *job, struct moec_error *err)
{
    struct moec_figures figures = {0};
    if (!cli_has(job->args, "plots"))
        return MOEC_OK;
    MOEC_TRY(moec_bench_figures_make(&job->bench, &figures, err));
    const bool is_silent = cli_has(job->args, "json");
    enum moec_status status = cli_write_plots(job->args, &figures, is_silent, err);
    moec_figures_release(&figures);
    return status;
}

/* The result, consumed, to where --json and --output want it. */
static enum moec_status put_json(const struct bench_job *job, struct moec_json_out *root,
                                 struct moec_error *err)
{
    const char *path = cli_text(job->args, "output");
    char *text = NULL;
    enum moec_status status = moec_json_out_text(root, &text, err);
    moec_json_out_free(root);
    if (status == MOEC_OK && cli_has(job->args, "json"))
        fputs(text, stdout);
    if (status == MOEC_OK && path != NULL)
        status = write_json(path, text, err);
    free(text);
    return status;
}

static enum moec_status show(struct bench_job *job, struct moec_error *err)
{
    if (!cli_has(job->args, "json"))
        cli_print_bench(&job->bench);
    MOEC_TRY(put_json(job, moec_bench_json(&job->bench), err));
    return draw(job, err);
}

/* What --kernels has no use for. */
static enum moec_status check_kernels(const struct cli_args *args, struct moec_error *err)
{
    static const char *const used[] = {"kernels", "output", "json", "threads", "cpu", "arithmetic", "quiet"};
    if (args->n_positional > 0)
        return moec_fail(err, MOEC_ERR_USAGE, "--kernels does not time a bundle: leave '%s' out",
                         args->positional[0]);
    for (const struct cli_option *option = options; option->name != NULL; option++) {
        bool is_used = false;
        for (size_t i = 0; i < sizeof used / sizeof *used; i++)
            is_used = is_used || strcmp(option->name, used[i]) == 0;
        if (!is_used && cli_has(args, option->name))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s applies to timing a bundle, but --kernels "
                             "does not time one: leave out one of the two",
                             option->name);
    }
    return MOEC_OK;
}

static enum moec_status bench_kernels(struct bench_job *job, struct moec_error *err)
{
    const struct moec_progress progress = {.report = show_progress, .note = show_note, .context = job};
    struct moec_mlp_kernels set = {0};
    int n_threads = 0;
    enum moec_arithmetic arithmetic = MOEC_ARITHMETIC_CANONICAL;
    struct moec_kernel_bench bench;
    MOEC_TRY(check_kernels(job->args, err));
    MOEC_TRY(cli_read_threads(job->args, &n_threads, err));
    MOEC_TRY(cli_read_kernels(job->args, &set.all, err));
    MOEC_TRY(moec_arithmetic_read(cli_text(job->args, "arithmetic"), &arithmetic, err));
    if (arithmetic == MOEC_ARITHMETIC_BF16)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--kernels times the processor, which does not have "
                         "arithmetic 'bf16': give --arithmetic canonical or int8");
    set.int8 = arithmetic == MOEC_ARITHMETIC_INT8 ? moec_int8_kernels_of(set.all) : NULL;
    cli_progress_init(&job->progress, "bench", "codecs", cli_has(job->args, "quiet"));
    cli_interrupt_catch();
    enum moec_status status = moec_kernel_bench_run(&set, n_threads, &progress, &bench, err);
    cli_progress_end(&job->progress);
    MOEC_TRY(status);
    if (!cli_has(job->args, "json"))
        cli_print_kernel_bench(&bench);
    return put_json(job, moec_kernel_bench_json(&bench), err);
}

/* What was measured is shown all the same. */
static enum moec_status check_traced(const struct moec_bench *bench, struct moec_error *err)
{
    for (uint32_t r = 0; r < bench->n_row; r++)
        if (bench->rows[r].trace_error.status != MOEC_OK)
            return moec_fail(err, bench->rows[r].trace_error.status,
                             "%u traces could not be recorded; the first is '%s': %s", bench->n_untraced,
                             bench->rows[r].trace, bench->rows[r].trace_error.message);
    return MOEC_OK;
}

static enum moec_status bench(struct bench_job *job, struct moec_error *err)
{
    const struct moec_progress progress = {.report = show_progress, .note = show_note, .context = job};
    if (cli_has(job->args, "kernels"))
        return bench_kernels(job, err);
    if (job->args->n_positional == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "no bundle given: give MODEL.moec, or --kernels");
    MOEC_TRY(cli_read_bench_options(job->args, &job->options, err));
    MOEC_TRY(cli_check_figures(job->args, err));
    MOEC_TRY(make_trace_folder(job, err));
    cli_progress_init(&job->progress, "bench", "samples", cli_has(job->args, "quiet"));
    MOEC_TRY(read_data(job, err));
    cli_interrupt_catch();
    enum moec_status status = moec_bench_run(&job->options.bench, &progress, &job->bench, err);
    cli_progress_end(&job->progress);
    MOEC_TRY(status);
    MOEC_TRY(show(job, err));
    if (job->bench.n_failed > 0)
        return moec_fail(err, MOEC_ERR_IO, "%u of %u rows failed", job->bench.n_failed, job->bench.n_row);
    return check_traced(&job->bench, err);
}

static int run_bench(const struct cli_args *args)
{
    struct bench_job job = {.args = args};
    struct moec_error err = {0};
    enum moec_status status = bench(&job, &err);
    moec_bench_release(&job.bench);
    moec_rows_release(&job.rows);
    cli_bench_options_release(&job.options);
    return status == MOEC_OK ? CLI_OK : cli_interrupt_fail(args, &err);
}

const struct cli_command cli_command_bench = {
    .name = "bench",
    .model = CLI_BUNDLE,
    .summary = "time a bundle in the run modes of the EdgeMoE paper",
    .usage = "[MODEL.moec]",
    .about = "Measures the time to the first token (TTFT) and the time per further token (TPOT) in each run "
             "mode, at several memory sizes and storage speeds. Each row also shows its floor, the least "
             "possible time of a token: the time of computing with all experts in memory, or of reading the "
             "token's bytes at the device's bandwidth, whichever is longer.",
    .details =
        "Every row runs in a process of its own. Rows take turns, sample by sample and in rotating "
        "order, so that other work on the machine slows all rows alike. All rows decode the tokens of "
        "the data instead of choosing tokens, so they compute the same tokens. Rows of the same "
        "precision must give the same logits; the bench checks this. If a row fails, the bench reports "
        "it and continues with the other rows; the exit status is then 1.\n"
        "A share given to --memory is a share of the experts' bytes as compiled, in every mode the "
        "same number of bytes.\n"
        "lod (Load on Demand) and eap (expert activation paths) are baselines in Fate's paper; "
        "moe-offloading and moe-infinity are baselines in HOBBIT's. These four modes run only if "
        "--modes names them.\n"
        "The plots show tokens by mode, latency of samples, memory, parts of a token, and hits by "
        "eviction. Folders are created if they do not exist.\n"
        "--kernels measures what limits decoding when everything is in memory. For each codec, "
        "--kernels multiplies one token with matrices four times as large as the last-level cache (at "
        "most three quarters of the available memory). Also measured are the rate at which memory is "
        "read, and the cost of one parallel region of all threads.",
    .examples = "moec bench model.moec --memory 25%,50%,64MiB\n"
                "moec bench model.moec --memory 25% --emulate-storage 550MB/s,80us\n"
                "moec bench --kernels",
    .more_examples =
        "moec bench model.moec --memory 25% --emulate-storage 550MB/s,80us --emulate-storage 50MB/s\n"
        "moec bench model.moec --modes io-exp,edgemoe --memory 25% --data test.txt --against-none --json",
    .n_positional_min = 0,
    .n_positional_max = 1,
    .options = options,
    .run = run_bench,
};
