/* `moec serve`: a bundle for programs that speak OpenAI's protocol (server/serve.h). */
#include "cli/print/print.h"
#include "cli/settings/conversation.h"
#include "cli/settings/device_options.h"
#include "cli/settings/engine_options.h"
#include "cli/settings/route_options.h"
#include "cli/terminal/floor_advice.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/mapped_guard.h"
#include "cli/terminal/terminal.h"
#include "cli/verbs/commands.h"
#include "server/serve.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_DEFAULT_SESSIONS 4u
#define TICK_NS               100000000L

static const struct cli_option options[] = {
    {"memory", 0, "SIZE", NULL,
     "Limit for the whole process, such as 2GiB: experts, every session's KV cache, and requests.",
     CLI_OF_MEMORY},
    {"address", 0, "IP", NULL,
     "Listen on this address (default 127.0.0.1, which only this machine reaches). Any other address "
     "needs --key-file or --no-key.",
     CLI_OF_NETWORK},
    {"port", 0, "N", NULL, "Listen on this port (default 8080; 0 takes a free one).", CLI_OF_NETWORK},
    {"key-file", 0, "FILE", NULL,
     "Accept only requests with one of the keys in FILE, one key a line. Only the file's owner may "
     "have access to it.",
     CLI_INPUT | CLI_OF_NETWORK},
    {"no-key", 0, NULL, NULL,
     "Accept requests without a key, even on another address than this machine's own: everybody who "
     "reaches it may ask.",
     CLI_RARE | CLI_OF_NETWORK},
    {"sessions", 0, "N", NULL,
     "Compute up to N texts at once, each with its own KV cache; further texts wait. A request has "
     "a text for each prompt and each choice. Default: 4, or 2 or 1 if half of --memory has no room "
     "for more.",
     CLI_OF_MEMORY},
    {"queue", 0, "N", NULL,
     "Let up to N texts wait for a session (default 64); further requests get the status 429.",
     CLI_RARE | CLI_OF_NETWORK},
    {"ctx", 0, "TOKENS", NULL,
     "Size of each session's KV cache (default 2048, or the model's limit if that is less).", CLI_OF_MEMORY},
    {"model-name", 0, "NAME", NULL, "The model's name in answers (default: the file's name).",
     CLI_RARE | CLI_OF_TEXT},
    {"score", 0, "HOW", "prompt|decided",
     "How to score a text whose log probabilities a request asks for. Matters only if the bundle's "
     "settings apply to generated tokens alone:\n"
     "prompt\tthe text counts as a prompt (default)\n"
     "decided\tthe text counts as generated",
     CLI_RARE | CLI_OF_TEXT},
    {"no-share", 0, NULL, NULL,
     "Never reuse the prompt of another request: a fast answer would reveal that somebody asked the "
     "same before.",
     CLI_RARE | CLI_OF_NETWORK},
    {"name", 0, "HOST", NULL,
     "Also accept requests for this host name, besides IP addresses and localhost; may be repeated.",
     CLI_RARE | CLI_REPEATS | CLI_OF_NETWORK},
    {"origin", 0, "URL", NULL,
     "Let web pages of this origin send requests, such as https://example.org; may be repeated.",
     CLI_RARE | CLI_REPEATS | CLI_OF_NETWORK},
    {"connections", 0, "N", NULL,
     "At most N connections (default 64), at most half of them from one address.", CLI_RARE | CLI_OF_NETWORK},
    {"request-time", 0, "TIME", NULL, "A request must arrive completely within TIME (default 60s).",
     CLI_RARE | CLI_OF_NETWORK},
    {"grace", 0, "TIME", NULL,
     "When the server ends, let running requests finish for at most TIME (default 30s).",
     CLI_RARE | CLI_OF_NETWORK},
    {"log", 0, NULL, NULL,
     "Print a line for each request to standard error: its path, status, time and tokens, never its text.",
     CLI_OF_OUTPUT},
    CLI_DEVICE_OPTIONS(CLI_RARE),
    CLI_STORAGE_OPTIONS,
    CLI_ROUTE_OPTIONS(CLI_RARE, "", ""),
    CLI_DECIDE_OPTION(CLI_RARE),
    CLI_SPARSITY_OPTION(CLI_RARE),
    CLI_ARITHMETIC_OPTION(CLI_RARE),
    CLI_KV_OPTION(CLI_RARE),
    CLI_THREAD_OPTIONS,
    {0},
};

struct serving {
    const struct cli_args *args;
    struct moert_options engine;
    struct serve_options server;
    struct moert_floor floor; /* of a budget that was refused */
    char name[256];
    double grace_seconds;
};

/* ---- options ---- */

static enum moec_status read_engine(struct serving *serving, struct moec_error *err)
{
    const struct cli_args *args = serving->args;
    struct moert_options *engine = &serving->engine;
    MOEC_TRY(cli_read_engine(args, engine, err));
    engine->sessions.one_thread = true;
    engine->sessions.n_beams = 1;
    engine->sessions.n_sessions = MOST_DEFAULT_SESSIONS;
    engine->refused_floor = &serving->floor;
    MOEC_TRY(cli_u32(args, "sessions", 1, SERVE_MAX_SESSIONS, &engine->sessions.n_sessions, err));
    return cli_check_pure(args, "moec serve", err);
}

/* Another address than this machine's own needs a key, or the word that it has none. */
static enum moec_status read_guards(struct serving *serving, struct moec_error *err)
{
    const struct cli_args *args = serving->args;
    struct serve_options *server = &serving->server;
    bool is_local = false;
    MOEC_TRY(serve_address_check(server->address, &is_local, err));
    if (cli_has(args, "key-file") && cli_has(args, "no-key"))
        return moec_fail(err, MOEC_ERR_USAGE, "--key-file and --no-key contradict each other: give one");
    if (cli_has(args, "key-file"))
        MOEC_TRY(serve_read_keys(server, cli_text(args, "key-file"), err));
    else if (!is_local && !cli_has(args, "no-key"))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "other machines can reach address '%s': give --key-file, or --no-key if everybody who can "
            "reach it may send requests",
            server->address);
    for (uint32_t i = 0; i < cli_count(args, "name"); i++)
        server->names[server->n_name++] = cli_repeat(args, "name", i);
    for (uint32_t i = 0; i < cli_count(args, "origin"); i++)
        server->origins[server->n_origin++] = cli_repeat(args, "origin", i);
    return MOEC_OK;
}

/* "models/olmoe.moec" is "olmoe". */
static void name_model(struct serving *serving)
{
    const char *given = cli_text(serving->args, "model-name"), *path = serving->args->positional[0];
    const char *slash = strrchr(path, '/'), *file = slash != NULL ? slash + 1 : path;
    const size_t n = strlen(file), n_end = n > 5 && strcmp(file + n - 5, ".moec") == 0 ? 5 : 0;
    if (given != NULL)
        (void)snprintf(serving->name, sizeof serving->name, "%s", given);
    else
        (void)snprintf(serving->name, sizeof serving->name, "%.*s", (int)(n - n_end), file);
    serving->server.model = serving->name;
}

static void print_log(void *context, const char *line)
{
    (void)context;
    char when[40] = "";
    const time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts) != NULL)
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S%z", &parts);
    fprintf(stderr, "%s %s\n", when, line);
}

static enum moec_status read_server(struct serving *serving, struct moec_error *err)
{
    const struct cli_args *args = serving->args;
    struct serve_options *server = &serving->server;
    uint32_t port = 8080;
    *server = (struct serve_options){.address = "127.0.0.1",
                                     .n_queue = 64,
                                     .n_connections = 64,
                                     .shares = !cli_has(args, "no-share"),
                                     .request_seconds = 60,
                                     .log = cli_has(args, "log") ? print_log : NULL};
    serving->grace_seconds = 30;
    if (cli_has(args, "address"))
        server->address = cli_text(args, "address");
    MOEC_TRY(cli_u32(args, "port", 0, 65535, &port, err));
    MOEC_TRY(cli_u32(args, "queue", 1, 4096, &server->n_queue, err));
    MOEC_TRY(cli_u32(args, "connections", 1, 4096, &server->n_connections, err));
    MOEC_TRY(cli_duration(args, "request-time", &server->request_seconds, err));
    MOEC_TRY(cli_duration(args, "grace", &serving->grace_seconds, err));
    server->port = (uint16_t)port;
    server->scores_decided = cli_has(args, "score") && strcmp(cli_text(args, "score"), "decided") == 0;
    name_model(serving);
    return read_guards(serving, err);
}

/* ---- opening ---- */

/* What the server wants beside the engine, for a number of sessions. */
static void reserve(struct serving *serving, uint32_t n_sessions, uint32_t n_context)
{
    const struct serve_limits limits = serve_limits_make(n_context, 1);
    serving->engine.sessions.n_sessions = n_sessions;
    serving->engine.reserve_bytes = serve_reserve_bytes(&limits, serving->server.n_connections, n_sessions);
}

/* As many sessions as asked for, else as half of the budget has room for. */
static enum moec_status choose_sessions(struct serving *serving, struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct moert_floor floor = {0};
    const char *path = serving->args->positional[0];
    uint32_t n = serving->engine.sessions.n_sessions;
    MOEC_TRY(cli_from_runtime(moert_engine_floor(path, &serving->engine, &floor, &theirs), &theirs, err));
    const uint32_t n_context = floor.n_context;
    reserve(serving, n, n_context);
    while (n > 1 && !cli_has(serving->args, "sessions") && serving->engine.memory_bytes > 0) {
        MOEC_TRY(cli_from_runtime(moert_engine_floor(path, &serving->engine, &floor, &theirs), &theirs, err));
        if (floor.memory_bytes <= serving->engine.memory_bytes / 2)
            break;
        n /= 2;
        reserve(serving, n, n_context);
    }
    return MOEC_OK;
}

static enum moec_status open_engine(struct serving *serving, struct moec_error *err)
{
    struct moert_error theirs = {0};
    char note[1024];
    cli_guard_mapped(serving->args);
    MOEC_TRY(choose_sessions(serving, err));
    MOEC_TRY(cli_from_runtime(
        moert_engine_open(serving->args->positional[0], &serving->engine, &serving->server.engine, &theirs),
        &theirs, err));
    if (moert_engine_warning(serving->server.engine, note, sizeof note))
        cli_print(stderr, "note: %s\n", note);
    const struct moert_info info = moert_engine_info(serving->server.engine);
    serving->server.n_sessions = serving->engine.sessions.n_sessions;
    serving->server.limits = serve_limits_make(info.compute.n_context, info.model.n_vocab);
    return MOEC_OK;
}

/* ---- serving ---- */

static enum moec_status serve(struct serving *serving, struct moec_error *err)
{
    struct serve *server = NULL;
    const bool is_six = strchr(serving->server.address, ':') != NULL;
    (void)signal(SIGPIPE, SIG_IGN);
    cli_interrupt_catch();
    MOEC_TRY(serve_start(&serving->server, &server, err));
    cli_print(stdout, "'%s' listens on http://%s%s%s:%u, %" PRIu32 " %s of %" PRIu32 " tokens\n",
              serving->name, is_six ? "[" : "", serving->server.address, is_six ? "]" : "",
              serve_port(server), serving->server.n_sessions,
              serving->server.n_sessions == 1 ? "session" : "sessions", serving->server.limits.n_context);
    (void)fflush(stdout);
    while (cli_interrupt_signal() == 0) {
        const struct timespec tick = {.tv_nsec = TICK_NS};
        serve_tick(server);
        (void)nanosleep(&tick, NULL);
    }
    const uint32_t n_cut = serve_stop(server, serving->grace_seconds, NULL);
    if (n_cut > 0)
        cli_print(stderr,
                  "note: %" PRIu32
                  " running requests were cut off, because they did not end within %g s (--grace)\n",
                  n_cut, serving->grace_seconds);
    return MOEC_OK;
}

static int run_serve(const struct cli_args *args)
{
    struct serving serving = {.args = args};
    struct moec_error err = {0};
    enum moec_status status = read_engine(&serving, &err);
    if (status == MOEC_OK)
        status = read_server(&serving, &err);
    if (status == MOEC_OK)
        status = open_engine(&serving, &err);
    const bool is_open = serving.server.engine != NULL;
    if (status == MOEC_OK)
        status = serve(&serving, &err);
    moert_engine_close(serving.server.engine);
    const int result = status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
    if (status == MOEC_ERR_BUDGET && !is_open)
        cli_advise_floor(args, serving.engine.memory_bytes, &serving.floor);
    return result;
}

const struct cli_command cli_command_serve = {
    .name = "serve",
    .model = CLI_BUNDLE,
    .summary = "serve a bundle to programs that speak OpenAI's protocol",
    .usage = "MODEL.moec",
    .about = "Answers /v1/chat/completions, /v1/completions and /v1/models over HTTP, within --memory. The "
             "text is that of moec run with the same settings. Requests run together: an expert that "
             "several of them need is read once. The page http://127.0.0.1:8080/ lets you try the model in "
             "a browser.",
    .details = "Without a temperature in the request, the answer is greedy, as in moec run. Choice i of n "
               "takes seed + i. If a prompt begins as an earlier one did, the server reads only the rest, "
               "unless --no-share is given.\n"
               "SIGTERM and Ctrl-C let running requests finish; a second signal ends the server at once. The "
               "text of a request is never logged. docs/serve.md describes every field, a systemd unit, and "
               "how to use lm-evaluation-harness.",
    .examples = "moec serve model.moec --memory 2GiB\n"
                "curl -s http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' -d "
                "'{\"prompt\": \"Once\"}'\n"
                "moec serve model.moec --memory 2GiB --address 0.0.0.0 --key-file keys.txt",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_serve,
};
