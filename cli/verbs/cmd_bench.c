#include "cli/options/bench_options.h"
#include "cli/output/bench_output.h"
#include "cli/output/figure_output.h"
#include "cli/output/interrupt.h"
#include "cli/output/json_output.h"
#include "cli/output/progress_line.h"
#include "cli/verbs/commands.h"
#include "compiler/task_file.h"
#include "formats/base/file.h"
#include "profiler/bench/bench_figures.h"
#include "profiler/bench/bench_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct cli_option options[] = {
    {"modes", 0, "LIST", NULL,
     "Run modes with commas between them: io-free and io-qfree (everything resident, original precision and "
     "INT8), io-exp and io-qexp (experts read when routers ask, original and INT4, nothing kept), sti (every "
     "expert streamed in order), io-exp+lru and io-qexp+lru (with the buffer that edgemoe has), edgemoe, "
     "cache (with --evict and --predict); all (default): those that the bundle has the precision copies for.",
     false},
    {"memory", 0, "LIST", NULL,
     "What experts may take, each a row of every mode that has a buffer: 25% is that share of the bytes of "
     "all "
     "experts of the compiled assignment, the same number of bytes in every mode; 64MiB is the budget of the "
     "whole process, as moec run --memory.",
     false},
    {"emulate-storage", 0, "SPEED", NULL,
     "Slow storage down to a bandwidth and a latency, such as 550MB/s,80us; may be repeated: a set of rows "
     "each (default: the device itself).",
     true},
    {"io", 0, "WAY", "auto|direct|cached",
     "How experts are read: past the page cache (direct), through it (cached), or whichever is faster "
     "(auto, default).",
     false},
    {"evict", 0, "LIST", NULL,
     "Eviction policies of mode cache, a row each: fifo, lru, lfu, edgemoe, edgemoe-literal, arc, random "
     "(default lru).",
     false},
    {"predict", 0, "NAME", "none|frequency|path|gate|path+gate",
     "How mode cache guesses the next layer's experts (default none).", false},
    {"preload-count", 0, "N", NULL, "Preload the first N guesses whatever time there is.", false},
    {"against-none", 0, NULL, NULL, "Beside each row that preloads, the same without predictions.", false},
    {"ablation", 0, NULL, NULL,
     "Rows that show what each part of edgemoe brings: its bitwidths alone, then with preloads, then with "
     "the "
     "buffer.",
     false},
    {"data", 0, "FILE", NULL,
     "Text that samples are cut from: plain text, .jsonl, .json, .csv, each also .zst (default: a short text "
     "that moec brings).",
     false},
    {"task", 0, "TASK", NULL, "How to read it: a built-in task (default: text) or a .lua file.", false},
    {"samples", 0, "N", NULL, "Samples (default 8).", false},
    {"prompt-tokens", 0, "N", NULL,
     "Tokens of a sample's prompt (default 64), the source of encoder-decoder models.", false},
    {"tokens", 'n', "N", NULL, "Tokens decoded after it (default 32).", false},
    {"output", 'o', "FILE.json", NULL, "Write the result as JSON into FILE.json too.", false},
    {"traces", 0, "FOLDER", NULL,
     "Write a trace of each row into FOLDER, made where it is missing, for Perfetto and moec simulate; "
     "recording costs every token a little.",
     false},
    {"plots", 0, "FOLDER", NULL,
     "Draw the figures of the paper's evaluation into FOLDER, made where it is missing: tokens by mode, "
     "latency of samples, memory, parts of a token, hits by policy.",
     false},
    {"plot-format", 0, "LIST", NULL,
     "Formats of --plots: png, svg, pdf, csv, with commas between them (default png,svg,csv).", false},
    {"json", 0, NULL, NULL, "The result as JSON on standard output.", false},
    {"threads", 't', "N", NULL, "Threads (default: all cores).", false},
    {"cpu", 0, "SET", "auto|scalar|avx2|avx512", "Instruction set (default auto).", false},
    {"quiet", 'q', NULL, NULL, "No progress.", false},
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

static enum moec_status read_data(struct bench_job *job, struct moec_error *err)
{
    if (cli_has(job->args, "task") && !cli_has(job->args, "data"))
        return moec_fail(err, MOEC_ERR_USAGE, "--task says how to read --data FILE, which is missing");
    if (!cli_has(job->args, "data"))
        return MOEC_OK;
    MOEC_TRY(
        moec_task_load(cli_has(job->args, "task") ? cli_text(job->args, "task") : "text", &job->task, err));
    MOEC_TRY(moec_rows_read(&job->task, cli_text(job->args, "data"), &job->rows, err));
    job->options.bench.rows = &job->rows;
    return MOEC_OK;
}

static enum moec_status make_trace_folder(struct bench_job *job, struct moec_error *err)
{
    const char *folder = cli_text(job->args, "traces");
    if (folder != NULL && mkdir(folder, 0777) != 0 && !(errno == EEXIST && moec_path_is_folder(folder)))
        return moec_fail(err, MOEC_ERR_IO, "cannot make the folder '%s' for traces: %s", folder,
                         strerror(errno));
    job->options.bench.traces = folder;
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

static enum moec_status show(struct bench_job *job, struct moec_error *err)
{
    const char *path = cli_text(job->args, "output");
    struct moec_json_out *root = moec_bench_json(&job->bench);
    char *text = NULL;
    enum moec_status status = moec_json_out_text(root, &text, err);
    moec_json_out_free(root);
    if (status == MOEC_OK && cli_has(job->args, "json"))
        fputs(text, stdout);
    else if (status == MOEC_OK)
        cli_print_bench(&job->bench);
    if (status == MOEC_OK && path != NULL)
        status = write_json(path, text, err);
    free(text);
    MOEC_TRY(status);
    return draw(job, err);
}

static enum moec_status bench(struct bench_job *job, struct moec_error *err)
{
    const struct moec_progress progress = {.report = show_progress, .note = show_note, .context = job};
    MOEC_TRY(cli_read_bench_options(job->args, &job->options, err));
    MOEC_TRY(cli_check_figures(job->args, err));
    MOEC_TRY(make_trace_folder(job, err));
    MOEC_TRY(read_data(job, err));
    cli_progress_init(&job->progress, "samples", cli_has(job->args, "quiet"));
    cli_interrupt_catch();
    enum moec_status status = moec_bench_run(&job->options.bench, &progress, &job->bench, err);
    cli_progress_end(&job->progress);
    MOEC_TRY(status);
    MOEC_TRY(show(job, err));
    if (job->bench.n_failed > 0)
        return moec_fail(err, MOEC_ERR_IO, "%u of %u rows failed", job->bench.n_failed, job->bench.n_row);
    return MOEC_OK;
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
    .summary = "time a bundle in the run modes of the paper",
    .usage = "MODEL.moec",
    .about = "Times prompts (TTFT) and tokens (TPOT) in the run modes of EdgeMoE's evaluation, at several "
             "memory "
             "sizes and storage speeds, beside the least that each row could take: the larger of what the "
             "same "
             "precisions compute with everything resident and what the bytes read take at the device's "
             "bandwidth. Every row has a process of its own; all run in one go, sample by sample, in an "
             "order "
             "that turns, so that whatever else the machine does hits all alike. Decoding feeds the data's "
             "own "
             "tokens, not the chosen ones: every row computes the same tokens, and rows of the same "
             "precisions "
             "must give the same logits, which is checked. A row that fails is reported, the others go on, "
             "and "
             "the command ends with status 1.",
    .examples = "moec bench model.moec --memory 25%,50%,64MiB\n"
                "moec bench model.moec --memory 25% --emulate-storage 550MB/s,80us --emulate-storage 50MB/s\n"
                "moec bench model.moec --modes io-exp,edgemoe --memory 25% --data test.txt --against-none "
                "--json",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_bench,
};
