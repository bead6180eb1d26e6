/* `moec run` and `moec-run`: the same command, written against libmoert's public header. */
#include "cli/output/run_stats.h"
#include "cli/print/print.h"
#include "cli/settings/conversation.h"
#include "cli/settings/device_options.h"
#include "cli/settings/engine_options.h"
#include "cli/settings/generation_options.h"
#include "cli/settings/prompt.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/floor_advice.h"
#include "cli/terminal/mapped_guard.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "formats/base/stop_texts.h"
#include "runtime/moert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"prompt", 'p', "TEXT", NULL,
     "Text to continue. Without -p and -f, it is read from a pipe or file on standard input. If "
     "there is none, the model starts on its own.",
     CLI_OF_TEXT},
    {"file", 'f', "FILE", NULL, "Read the prompt from FILE; - is standard input.", CLI_INPUT | CLI_OF_TEXT},
    {"chat", 0, NULL, NULL, "Send the prompt as a user's message, by the model's chat template.",
     CLI_OF_TEXT},
    {"system", 0, "TEXT", NULL, "With --chat: the system message.", CLI_RARE | CLI_OF_TEXT},
    {"tokens", 'n', "N", NULL,
     "Generate at most N tokens (default: as in the model's generation_config.json, else 128).", CLI_OF_TEXT},
    {"memory", 0, "SIZE", NULL,
     "Limit for the whole process, such as 64MiB. Without it, every expert that was used stays in "
     "memory.",
     CLI_OF_MEMORY},
    CLI_DEVICE_OPTIONS(0),
    {"ctx", 0, "TOKENS", NULL, "Size of the KV cache (default 2048, or the model's limit if that is less).",
     CLI_OF_MEMORY},
    CLI_SAMPLER_OPTIONS,
    CLI_GENERATION_OPTIONS(0),
    {"stop", 0, "TEXT", NULL, "End before this text appears; may be repeated.", CLI_REPEATS | CLI_OF_TEXT},
    {"draft", 0, "HOW", "none|lookup",
     "Guess the next tokens and verify several at once, as long as that is faster. The text stays "
     "the same:\n"
     "none\tno guesses (default)\n"
     "lookup\ttokens that followed the last tokens earlier in prompt or text",
     CLI_RARE | CLI_OF_TEXT},
    {"ignore-eos", 0, NULL, NULL, "Continue after end-of-text tokens.", CLI_RARE | CLI_OF_TEXT},
    CLI_BUFFER_OPTIONS,
    CLI_ROUTE_OPTIONS(CLI_RARE, CLI_SHARED_PRECISION, CLI_LOW_POOL),
    CLI_DECIDE_OPTION(CLI_RARE),
    CLI_DECISION_FILE_OPTIONS(CLI_RARE),
    CLI_SPARSITY_OPTION(CLI_RARE),
    CLI_ARITHMETIC_OPTION(CLI_RARE),
    CLI_KV_OPTION(CLI_RARE),
    {"trace", 0, "FILE", NULL, "Write a trace of the run, for https://ui.perfetto.dev and moec simulate.",
     CLI_RARE | CLI_OUTPUT | CLI_OF_OUTPUT},
    {"trace-scores", 0, NULL, NULL,
     "With --trace: also record every expert's router score, for moec simulate --route and "
     "--precision.",
     CLI_RARE | CLI_OF_OUTPUT},
    CLI_THREAD_OPTIONS,
    {"stats", 0, "[text|json]", "text|json",
     "At the end, print speed, memory use and expert hits to standard error: as text (default), or "
     "as json, one object on one line with counters for each layer.",
     CLI_OF_OUTPUT},
    {0},
};

struct run_options {
    struct moert_options engine;
    struct moert_sampler sampler;
    uint32_t n_generate; /* MOERT_TOKENS_OF_MODEL: not given */
    bool ignore_eos;
    bool is_json; /* --stats json: standard error has that object and nothing else */
};

struct run {
    const struct cli_args *args;
    struct run_options options;
    struct moert_floor floor; /* of a budget that was refused */
    struct moert_engine *engine;
    struct moert_session *session;
    struct moert_generator *generator;
    struct moert_text *text;
    char *prompt; /* owned */
    size_t n_prompt_bytes;
    uint32_t *tokens; /* owned by libmoert: the prompt's */
    size_t n_tokens;
    struct moec_stop_text stop_texts[CLI_MAX_REPEATS];
    struct moec_stop_texts stops; /* of --stop */
    bool is_stopped;
    bool is_full; /* the context ended the text */
    double prefill_seconds, decode_seconds;
    char note[1024]; /* what the engine wants to be said, "" = nothing */
};

static enum moec_status read_options(const struct cli_args *args, struct run_options *out,
                                     struct moec_error *err)
{
    out->n_generate = MOERT_TOKENS_OF_MODEL;
    MOEC_TRY(cli_read_engine(args, &out->engine, err));
    MOEC_TRY(cli_read_sampler(args, &out->sampler, err));
    MOEC_TRY(cli_read_beams(args, &out->engine.sessions.n_beams, err));
    out->engine.sessions.drafts = cli_has(args, "draft") && strcmp(cli_text(args, "draft"), "lookup") == 0;
    MOEC_TRY(cli_u32(args, "tokens", 0, 1u << 30, &out->n_generate, err));
    out->engine.trace.path = cli_text(args, "trace");
    out->engine.trace.scores = cli_has(args, "trace-scores");
    if (out->engine.trace.scores && out->engine.trace.path == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "--trace-scores does nothing without --trace FILE");
    if (cli_has(args, "prompt") && cli_has(args, "file"))
        return moec_fail(err, MOEC_ERR_USAGE, "give either --prompt or --file, not both");
    if (cli_has(args, "system") && !cli_has(args, "chat"))
        return moec_fail(err, MOEC_ERR_USAGE, "--system is a message of a conversation: give --chat too");
    out->ignore_eos = cli_has(args, "ignore-eos");
    out->is_json = cli_has(args, "stats") && strcmp(cli_text(args, "stats"), "json") == 0;
    return MOEC_OK;
}

/* Whether something was sent: a terminal and /dev/null have no prompt to wait for. */
static bool has_piped_text(void)
{
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode));
}

static enum moec_status find_prompt(struct run *run, struct moec_error *err)
{
    const char *text = cli_text(run->args, "prompt");
    const char *file = cli_text(run->args, "file");
    if (run->args->n_positional > 1) {
        if (text != NULL || file != NULL)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "'-' reads the prompt from standard input: leave out -p and -f");
        if (strcmp(run->args->positional[1], "-") != 0)
            return moec_fail(err, MOEC_ERR_USAGE, "unexpected argument '%s': give a prompt with -p",
                             run->args->positional[1]);
        file = "-";
    }
    if (text == NULL && file == NULL && has_piped_text())
        file = "-";
    return cli_read_prompt(text, file, &run->prompt, &run->n_prompt_bytes, err);
}

/* ---- output ---- */

static void write_text(const char *text, size_t n)
{
    (void)fwrite(text, 1, n, stdout);
    (void)fflush(stdout);
}

/* Writes what can no longer be part of a stop text; ends at the first stop text. */
static enum moec_status emit(struct run *run, const char *piece, size_t n, bool is_last,
                             struct moec_error *err)
{
    const char *text = "";
    size_t n_bytes = 0;
    MOEC_TRY(moec_stop_texts_push(&run->stops, piece, n, is_last, &text, &n_bytes, err));
    write_text(text, n_bytes);
    run->is_stopped = run->stops.is_found || ferror(stdout) != 0; /* cli_finish says why */
    return MOEC_OK;
}

static void print_stats(const struct run *run)
{
    const struct run_figures figures = {
        .decisions = run->options.engine.decisions,
        .decided = moert_session_decided(run->session),
        .n_prompt_tokens = run->n_tokens,
        .prefill_seconds = run->prefill_seconds,
        .n_decode_tokens = moert_generator_steps(run->generator) + moert_generator_accepted(run->generator),
        .drafts = run->options.engine.sessions.drafts,
        .n_drafted = moert_generator_drafted(run->generator),
        .n_accepted = moert_generator_accepted(run->generator),
        .decode_seconds = run->decode_seconds,
        .budget_bytes = run->options.engine.memory_bytes,
        .is_context_full = run->is_full,
        .note = run->note,
    };
    if (run->options.is_json)
        run_stats_print_json(stderr, run->engine, &figures);
    else
        run_stats_print_text(stderr, run->engine, &figures);
}

/* ---- the job ---- */

static enum moec_status open_engine(struct run *run, struct moec_error *err)
{
    struct moert_error theirs = {0};
    if (!cli_has(run->args, "chat")) { /* a template adds to the prompt */
        run->options.engine.text.prompt = run->prompt;
        run->options.engine.text.n_prompt_bytes = run->n_prompt_bytes;
    }
    run->options.engine.text.n_tokens = run->options.n_generate;
    run->options.engine.refused_floor = &run->floor;
    cli_guard_mapped(run->args);
    MOEC_TRY(cli_from_runtime(
        moert_engine_open(run->args->positional[0], &run->options.engine, &run->engine, &theirs), &theirs,
        err));
    MOEC_TRY(cli_from_runtime(moert_session_create(run->engine, &run->session, &theirs), &theirs, err));
    MOEC_TRY(cli_from_runtime(moert_text_create(run->engine, &run->text, &theirs), &theirs, err));
    if (moert_engine_warning(run->engine, run->note, sizeof run->note) && !run->options.is_json)
        cli_print(stderr, "note: %s\n", run->note);
    struct moert_generation generation = moert_generation_default(run->engine);
    MOEC_TRY(cli_read_generation(run->args, &generation, err));
    generation.n_tokens = run->options.n_generate;
    generation.ignore_end = run->options.ignore_eos;
    generation.sampler = run->options.sampler;
    generation.draft = run->options.engine.sessions.drafts ? MOERT_DRAFT_LOOKUP : MOERT_DRAFT_NONE;
    return cli_from_runtime(moert_generator_create(run->session, &generation, &run->generator, &theirs),
                            &theirs, err);
}

static enum moec_status render_chat(struct run *run, struct moec_error *err)
{
    struct cli_conversation conversation = {0};
    const char *system = cli_text(run->args, "system");
    enum moec_status status = MOEC_OK;
    if (system != NULL)
        status = cli_conversation_add(&conversation, "system", system, strlen(system), err);
    if (status == MOEC_OK)
        status = cli_conversation_add(&conversation, "user", run->prompt, run->n_prompt_bytes, err);
    if (status == MOEC_OK)
        status = cli_conversation_tokens(&conversation, run->engine, &run->tokens, &run->n_tokens, err);
    cli_conversation_release(&conversation);
    return status;
}

static enum moec_status find_tokens(struct run *run, struct moec_error *err)
{
    struct moert_error theirs = {0};
    if (cli_has(run->args, "chat"))
        return render_chat(run, err);
    return cli_from_runtime(moert_tokenize(run->engine, run->prompt, run->n_prompt_bytes, true, &run->tokens,
                                           &run->n_tokens, &theirs),
                            &theirs, err);
}

static enum moec_status prefill(struct run *run, struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct moert_info info = moert_engine_info(run->engine);
    for (uint32_t i = 0; i < cli_count(run->args, "stop"); i++) {
        const char *text = cli_repeat(run->args, "stop", i);
        run->stop_texts[run->stops.n_text++] = (struct moec_stop_text){text, strlen(text)};
    }
    run->stops.texts = run->stop_texts;
    MOEC_TRY(find_tokens(run, err));
    if (run->n_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the prompt is empty, and this model needs text to continue: give -p or -f");
    if (run->n_tokens > info.compute.n_context)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the prompt has %zu tokens, but the context has only %" PRIu32 ": %s", run->n_tokens,
                         info.compute.n_context,
                         info.compute.n_context < info.model.n_position
                             ? "raise --ctx, or shorten the prompt"
                             : "shorten the prompt: the model supports at most this context");
    double start = cli_seconds();
    MOEC_TRY(cli_from_runtime(moert_generator_start(run->generator, run->tokens, run->n_tokens, &theirs),
                              &theirs, err));
    run->prefill_seconds = cli_seconds() - start;
    return MOEC_OK;
}

static enum moec_status generate(struct run *run, struct moec_error *err)
{
    struct moert_error theirs = {0};
    const struct moert_info info = moert_engine_info(run->engine);
    const char *piece = "";
    size_t n = 0;
    while (!run->is_stopped) {
        uint32_t token = 0;
        enum moert_generated what = MOERT_GENERATED_TOKEN;
        double start = cli_seconds();
        MOEC_TRY(
            cli_from_runtime(moert_generator_next(run->generator, &token, &what, &theirs), &theirs, err));
        run->decode_seconds += cli_seconds() - start;
        run->is_full = what == MOERT_GENERATED_CONTEXT;
        if (what != MOERT_GENERATED_TOKEN)
            break;
        MOEC_TRY(cli_from_runtime(moert_text_push(run->text, token, &piece, &n, &theirs), &theirs, err));
        MOEC_TRY(emit(run, piece, n, false, err));
    }
    if (run->is_full && !run->options.is_json)
        fprintf(stderr, "\nnote: the context of %" PRIu32 " tokens is full; %s\n", info.compute.n_context,
                info.compute.n_context < info.model.n_position ? "raise --ctx to continue"
                                                               : "the model supports at most this context");
    if (run->is_stopped)
        return MOEC_OK;
    MOEC_TRY(cli_from_runtime(moert_text_flush(run->text, &piece, &n, &theirs), &theirs, err));
    return emit(run, piece, n, true, err);
}

/* Releases everything; a trace that could not be written is a failure too. */
static enum moec_status end(struct run *run, enum moec_status status, struct moec_error *err)
{
    struct moert_error theirs = {0};
    moert_free(run->tokens);
    moert_text_free(run->text);
    moert_generator_free(run->generator);
    moert_session_free(run->session);
    const enum moert_status ended = moert_engine_end(run->engine, &theirs);
    moec_stop_texts_release(&run->stops);
    return status != MOEC_OK ? status : cli_from_runtime(ended, &theirs, err);
}

static int run_run(const struct cli_args *args)
{
    struct run run = {.args = args};
    struct moec_error err = {0};
    enum moec_status status = read_options(args, &run.options, &err);
    if (status == MOEC_OK)
        status = find_prompt(&run, &err);
    if (status == MOEC_OK)
        status = open_engine(&run, &err);
    if (status == MOEC_OK)
        status = prefill(&run, &err);
    if (status == MOEC_OK)
        status = generate(&run, &err);
    if (status == MOEC_OK) {
        write_text("\n", 1);
        if (cli_has(args, "stats"))
            print_stats(&run);
    }
    status = end(&run, status, &err);
    const int result = status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
    if (status == MOEC_ERR_BUDGET)
        cli_advise_floor(args, run.options.engine.memory_bytes, &run.floor);
    free(run.prompt);
    return result;
}

const struct cli_command cli_command_run = {
    .name = "run",
    .model = CLI_BUNDLE,
    .summary = "generate text with a bundle inside a memory budget",
    .usage = "MODEL.moec [-]",
    .about = "Reads a prompt (-p, -f or standard input) and prints its continuation as it is generated. "
             "Experts that do not fit into --memory are read from the bundle when the router asks "
             "for them. The text is the same at every budget, thread count and instruction set.",
    .details = "An encoder-decoder model reads the prompt with its encoder, and writes a new text.\n"
               "Experts are read into the buffer, the memory that is left of --memory, when the router asks "
               "for them, or earlier if moec predicted them. No eviction or predictor changes the text. If "
               "--memory is too small, the command stops and lists the parts of the smallest budget that "
               "works.\n"
               "The program moec-run is this command alone. moec-run also describes a device, as moec device "
               "does: moec-run --describe-device model.moec -o device.json\n" CLI_GENERATION_DETAILS,
    .examples = "moec run model.moec -p \"Once upon a time\"\n"
                "moec run model.moec -f prompt.txt -n 200 --memory 64MiB --stats\n"
                "echo \"To make bread, first\" | moec run model.moec --temp 0.8 --top-p 0.95",
    .more_examples = "moec run model.moec -f prompt.txt --memory 64MiB --mode edgemoe --stats\n"
                     "moec run model.moec -p \"Once\" --memory 64MiB --predict gate --trace trace.json",
    .n_positional_min = 1,
    .n_positional_max = 2,
    .options = options,
    .run = run_run,
};
