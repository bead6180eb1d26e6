/* A conversation on the terminal. Lines come from libedit where standard input is a terminal, and from
 * standard input as it is elsewhere, so that scripts can talk too. */
#include "cli/print/print.h"
#include "cli/settings/chat_json.h"
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
#include "formats/base/file.h"

#include <errno.h>
#include <histedit.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_JSON_BYTES ((size_t)16 << 20)
#define LINES_KEPT     1000

static const struct cli_option options[] = {
    {"system", 0, "TEXT", NULL, "The system message.", CLI_OF_TEXT},
    {"messages", 0, "FILE", NULL,
     "A conversation to continue: a JSON array of messages, or an object with messages, tools and "
     "other variables of the template.",
     CLI_INPUT | CLI_OF_TEXT},
    {"render", 0, NULL, NULL, "Print the text that the model would read, and end.", CLI_OF_TEXT},
    {"tokens", 'n', "N", NULL, "At most N tokens per answer (default 1024).", CLI_OF_TEXT},
    {"memory", 0, "SIZE", NULL, "Limit for the whole process, such as 64MiB.", CLI_OF_MEMORY},
    CLI_DEVICE_OPTIONS(CLI_RARE),
    {"ctx", 0, "TOKENS", NULL,
     "Size of the KV cache (default 2048, or the model's limit if that is less). If the "
     "conversation gets longer, its oldest turns are dropped.",
     CLI_OF_MEMORY},
    CLI_SAMPLER_OPTIONS,
    CLI_REPETITION_OPTION,
    CLI_BUFFER_OPTIONS,
    CLI_ROUTE_OPTIONS(CLI_RARE, CLI_SHARED_PRECISION, CLI_LOW_POOL),
    CLI_DECIDE_OPTION(CLI_RARE),
    CLI_SPARSITY_OPTION(CLI_RARE),
    CLI_ARITHMETIC_OPTION(CLI_RARE),
    CLI_KV_OPTION(CLI_RARE),
    {"stats", 0, NULL, NULL,
     "After each answer, print to standard error how many tokens were reused and how many were read.",
     CLI_OF_OUTPUT},
    CLI_THREAD_OPTIONS,
    {0},
};

struct chat {
    const struct cli_args *args;
    struct moert_options engine_options;
    struct moert_floor floor; /* of a budget that was refused */
    struct moert_sampler sampler;
    uint32_t n_answer;
    struct moert_engine *engine;
    struct moert_session *session;
    struct moert_generator *generator;
    struct moert_text *text;
    struct cli_conversation conversation;
    struct moec_json *json; /* owned; NULL without --messages */
    uint32_t n_turn;
    EditLine *editor; /* NULL where standard input is no terminal */
    History *history;
    char *line; /* owned: of standard input */
    size_t line_capacity;
};

/* Ctrl-C while an answer is written. */
static volatile sig_atomic_t is_stopped;

static void stop(int signal)
{
    (void)signal;
    is_stopped = 1;
}

/* ---- opening ---- */

static enum moec_status read_options(struct chat *chat, struct moec_error *err)
{
    const struct cli_args *args = chat->args;
    chat->n_answer = 1024;
    MOEC_TRY(cli_read_engine(args, &chat->engine_options, err));
    chat->engine_options.sessions.n_beams = 1;
    MOEC_TRY(cli_read_sampler(args, &chat->sampler, err));
    return cli_u32(args, "tokens", 1, 1u << 30, &chat->n_answer, err);
}

static enum moec_status read_messages(struct chat *chat, struct moec_error *err)
{
    const char *path = cli_text(chat->args, "messages"), *system = cli_text(chat->args, "system");
    char *bytes = NULL;
    size_t n_bytes = 0;
    if (system != NULL)
        MOEC_TRY(cli_conversation_add(&chat->conversation, "system", system, strlen(system), err));
    if (path == NULL)
        return MOEC_OK;
    if (system != NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "give the system message with --system or in the file of --messages, not both");
    MOEC_TRY(moec_file_load(path, MAX_JSON_BYTES, &bytes, &n_bytes, err));
    enum moec_status status = moec_json_parse(bytes, n_bytes, MAX_JSON_BYTES, path, &chat->json, err);
    free(bytes);
    if (status == MOEC_OK)
        status = cli_chat_json_check(chat->json, path, err);
    chat->conversation.begin = cli_chat_json_begin;
    chat->conversation.context = chat->json;
    return status;
}

static enum moec_status open_engine(struct chat *chat, struct moec_error *err)
{
    struct moert_error theirs = {0};
    char note[1024];
    cli_guard_mapped(chat->args);
    chat->engine_options.refused_floor = &chat->floor;
    MOEC_TRY(cli_from_runtime(
        moert_engine_open(chat->args->positional[0], &chat->engine_options, &chat->engine, &theirs), &theirs,
        err));
    MOEC_TRY(cli_from_runtime(moert_session_create(chat->engine, &chat->session, &theirs), &theirs, err));
    MOEC_TRY(cli_from_runtime(moert_text_create(chat->engine, &chat->text, &theirs), &theirs, err));
    if (moert_engine_warning(chat->engine, note, sizeof note))
        cli_print(stderr, "note: %s\n", note);
    const struct moert_decisions tuned = moert_engine_tuned(chat->engine);
    char decided[MOERT_DECISIONS_TEXT_BYTES];
    moert_decisions_text(&tuned, decided);
    if (decided[0] != '\0')
        cli_print(stderr,
                  "note: the bundle's decision settings are in use (%s); --decide none turns them off\n",
                  decided);
    if (moert_engine_neurons(chat->engine).is_planned)
        cli_print(
            stderr,
            "note: the bundle's sparsity plan leaves out neurons; --sparsity none turns the plan off\n");
    struct moert_generation generation = moert_generation_default(chat->engine);
    generation.n_beams = 1;
    MOEC_TRY(cli_double(chat->args, "repetition-penalty", 0.01, 100, &generation.repetition_penalty, err));
    generation.n_tokens = chat->n_answer;
    generation.sampler = chat->sampler;
    return cli_from_runtime(moert_generator_create(chat->session, &generation, &chat->generator, &theirs),
                            &theirs, err);
}

/* ---- lines ---- */

static char *show_prompt(EditLine *editor)
{
    static char prompt[] = "> ";
    (void)editor;
    return prompt;
}

static enum moec_status open_editor(struct chat *chat, struct moec_error *err)
{
    HistEvent event;
    if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)
        return MOEC_OK;
    chat->editor = el_init("moec", stdin, stdout, stderr);
    chat->history = history_init();
    if (chat->editor == NULL || chat->history == NULL)
        return moec_fail(err, MOEC_ERR_IO,
                         "cannot start line editing on this terminal: send the messages through a pipe");
    (void)history(chat->history, &event, H_SETSIZE, LINES_KEPT);
    (void)el_set(chat->editor, EL_PROMPT, show_prompt);
    (void)el_set(chat->editor, EL_EDITOR, "emacs");
    (void)el_set(chat->editor, EL_HIST, history, chat->history);
    return MOEC_OK;
}

/* The next line without its end, or NULL at the end of the input. */
static const char *read_line(struct chat *chat, size_t *n)
{
    HistEvent event;
    const char *line = NULL;
    int count = 0;
    if (chat->editor == NULL) {
        const ssize_t length = getline(&chat->line, &chat->line_capacity, stdin);
        line = length < 0 ? NULL : chat->line;
        *n = length < 0 ? 0 : (size_t)length;
    } else {
        is_stopped = 0;
        line = el_gets(chat->editor, &count);
        *n = count > 0 ? (size_t)count : 0;
        if (line == NULL && (count < 0 || is_stopped != 0)) { /* Ctrl-C gives up the line, not the program */
            fputc('\n', stdout);
            *n = 0;
            return "";
        }
        if (*n > 1)
            (void)history(chat->history, &event, H_ENTER, line);
    }
    while (line != NULL && *n > 0 && (line[*n - 1] == '\n' || line[*n - 1] == '\r'))
        --*n;
    return line;
}

/* ---- a turn ---- */

static bool has_system(const struct cli_conversation *conversation)
{
    return conversation->n > 0 && strcmp(conversation->messages[0].role, "system") == 0;
}

/* The tokens of the conversation; its oldest turns are forgotten until there is room for an answer. */
static enum moec_status find_tokens(struct chat *chat, uint32_t **tokens, size_t *n_tokens,
                                    struct moec_error *err)
{
    const uint32_t n_context = moert_engine_info(chat->engine).compute.n_context;
    const uint32_t room = chat->n_answer < n_context / 4 ? chat->n_answer : n_context / 4;
    for (;;) {
        struct cli_conversation *conversation = &chat->conversation;
        const size_t first = has_system(conversation) ? 1 : 0;
        MOEC_TRY(cli_conversation_tokens(conversation, chat->engine, tokens, n_tokens, err));
        if (*n_tokens + room <= n_context)
            return MOEC_OK;
        const size_t n = *n_tokens;
        moert_free(*tokens);
        *tokens = NULL;
        if (conversation->n < first + 3)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "the message and the text before it take %zu tokens, but the context has "
                             "only %" PRIu32 " and must also hold an answer: raise --ctx, or send less",
                             n, n_context);
        cli_conversation_remove(conversation, first, 2);
        cli_print(stderr,
                  "note: the oldest turn is forgotten, because the context has room for only %" PRIu32
                  " tokens\n",
                  n_context);
    }
}

/* Text as the model gives it, and kept as the assistant's message. */
struct answer {
    char *bytes; /* owned */
    size_t n_bytes, capacity;
    uint64_t n_tokens;
};

static enum moec_status take(struct answer *answer, const char *piece, size_t n, struct moec_error *err)
{
    MOEC_TRY(cli_reserve(&answer->bytes, &answer->capacity, answer->n_bytes + n + 1, err));
    memcpy(answer->bytes + answer->n_bytes, piece, n);
    answer->n_bytes += n;
    (void)fwrite(piece, 1, n, stdout);
    (void)fflush(stdout);
    return MOEC_OK;
}

static enum moec_status generate(struct chat *chat, struct answer *answer, struct moec_error *err)
{
    struct moert_error theirs = {0};
    enum moert_generated what = MOERT_GENERATED_TOKEN;
    const char *piece = "";
    size_t n = 0;
    while (is_stopped == 0 && ferror(stdout) == 0) {
        uint32_t token = 0;
        MOEC_TRY(
            cli_from_runtime(moert_generator_next(chat->generator, &token, &what, &theirs), &theirs, err));
        if (what != MOERT_GENERATED_TOKEN)
            break;
        answer->n_tokens++;
        MOEC_TRY(cli_from_runtime(moert_text_push(chat->text, token, &piece, &n, &theirs), &theirs, err));
        MOEC_TRY(take(answer, piece, n, err));
    }
    MOEC_TRY(cli_from_runtime(moert_text_flush(chat->text, &piece, &n, &theirs), &theirs, err));
    MOEC_TRY(take(answer, piece, n, err));
    fputc('\n', stdout);
    (void)fflush(stdout);
    if (is_stopped != 0)
        fputs("note: stopped\n", stderr);
    else if (what == MOERT_GENERATED_LENGTH || what == MOERT_GENERATED_CONTEXT)
        cli_print(stderr, "note: the answer was cut after %" PRIu64 " tokens; raise %s for longer ones\n",
                  answer->n_tokens, what == MOERT_GENERATED_LENGTH ? "--tokens" : "--ctx");
    return MOEC_OK;
}

static enum moec_status answer_turn(struct chat *chat, struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct answer answer = {0};
    uint32_t *tokens = NULL;
    size_t n_tokens = 0, n_kept = 0;
    is_stopped = 0;
    enum moec_status status = find_tokens(chat, &tokens, &n_tokens, err);
    if (status == MOEC_OK)
        status = cli_from_runtime(
            moert_generator_continue(chat->generator, tokens, n_tokens, &n_kept, &theirs), &theirs, err);
    moert_free(tokens);
    if (status == MOEC_OK)
        status = generate(chat, &answer, err);
    if (status == MOEC_OK)
        status = cli_conversation_add(&chat->conversation, "assistant", answer.bytes, answer.n_bytes, err);
    if (status == MOEC_OK && cli_has(chat->args, "stats"))
        cli_print(stderr, "turn %" PRIu32 ": %zu tokens, %zu kept, %zu read, %" PRIu64 " generated\n",
                  ++chat->n_turn, n_tokens, n_kept, n_tokens - n_kept, answer.n_tokens);
    free(answer.bytes);
    return status;
}

/* ---- commands ---- */

static enum moec_status set_system(struct chat *chat, const char *text, size_t n, struct moec_error *err)
{
    struct cli_conversation *conversation = &chat->conversation;
    if (chat->json != NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the system message comes from the file of --messages and cannot be changed here");
    cli_conversation_remove(conversation, 0, conversation->n);
    return n == 0 ? MOEC_OK : cli_conversation_add(conversation, "system", text, n, err);
}

/* What begins with a slash; two of them begin a message with one. Ends with *is_over at /exit. */
static enum moec_status run_command(struct chat *chat, const char *line, size_t n, bool *is_over,
                                    struct moec_error *err)
{
    struct cli_conversation *conversation = &chat->conversation;
    const size_t word = strcspn(line, " \r\n");
    if (word == 6 && memcmp(line, "/reset", 6) == 0) {
        const size_t first = has_system(conversation) ? 1 : 0;
        cli_conversation_remove(conversation, first, conversation->n - first);
        cli_print(stderr, "note: the conversation begins anew\n");
        return MOEC_OK;
    }
    if (word == 7 && memcmp(line, "/system", 7) == 0) {
        const size_t skip = word + strspn(line + word, " ");
        MOEC_TRY(set_system(chat, line + skip, n > skip ? n - skip : 0, err));
        cli_print(stderr, "note: the conversation begins anew, %s a system message\n",
                  n > skip ? "with" : "without");
        return MOEC_OK;
    }
    *is_over = word == 5 && memcmp(line, "/exit", 5) == 0;
    if (!*is_over)
        cli_print(stderr, "/reset begins anew, /system TEXT does so with another system message, /exit ends; "
                          "type two slashes to begin a message with a slash\n");
    return MOEC_OK;
}

/* A refused message is taken back, and the conversation goes on. */
static enum moec_status say(struct chat *chat, const char *line, size_t n, struct moec_error *err)
{
    struct moec_error refused = {0};
    MOEC_TRY(cli_conversation_add(&chat->conversation, "user", line, n, err));
    const enum moec_status status = answer_turn(chat, &refused);
    if (status == MOEC_OK)
        return MOEC_OK;
    cli_conversation_remove(&chat->conversation, chat->conversation.n - 1, 1);
    if (status != MOEC_ERR_LIMIT && status != MOEC_ERR_USAGE)
        return moec_fail(err, status, "%s", refused.message);
    cli_print(stderr, "moec chat: %s\n", refused.message);
    return MOEC_OK;
}

static enum moec_status talk(struct chat *chat, struct moec_error *err)
{
    const struct sigaction action = {.sa_handler = stop};
    bool is_over = false;
    size_t n = 0;
    (void)sigaction(SIGINT, &action, NULL);
    while (!is_over && ferror(stdout) == 0) { /* cli_finish says why */
        const char *line = read_line(chat, &n);
        if (line == NULL)
            break;
        if (n == 0)
            continue;
        if (line[0] == '/' && !(n > 1 && line[1] == '/'))
            MOEC_TRY(run_command(chat, line, n, &is_over, err));
        else
            MOEC_TRY(say(chat, line + (line[0] == '/'), n - (line[0] == '/'), err));
    }
    return MOEC_OK;
}

static enum moec_status print_rendered(const struct chat *chat, struct moec_error *err)
{
    struct moert_chat_text text = {0};
    MOEC_TRY(cli_conversation_render(&chat->conversation, chat->engine, &text, err));
    (void)fwrite(text.text, 1, text.n_bytes, stdout);
    moert_chat_text_release(&text);
    return MOEC_OK;
}

/* Whether the bundle can talk at all is said before anything is typed. */
static enum moec_status check_template(const struct chat *chat, struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct moert_values *values = NULL;
    struct moert_chat_text text = {0};
    MOEC_TRY(cli_from_runtime(moert_values_create(&values, &theirs), &theirs, err));
    const struct moert_chat none = {.messages = moert_value_list(values)};
    const enum moert_status status = moert_chat_render(chat->engine, values, &none, &text, &theirs);
    moert_chat_text_release(&text);
    moert_values_free(values);
    return status == MOERT_ERR_UNSUPPORTED ? cli_from_runtime(status, &theirs, err) : MOEC_OK;
}

static void release(struct chat *chat)
{
    if (chat->editor != NULL)
        el_end(chat->editor);
    if (chat->history != NULL)
        history_end(chat->history);
    free(chat->line);
    cli_conversation_release(&chat->conversation);
    moec_json_free(chat->json);
    moert_text_free(chat->text);
    moert_generator_free(chat->generator);
    moert_session_free(chat->session);
    moert_engine_close(chat->engine);
}

static int run_chat(const struct cli_args *args)
{
    struct chat chat = {.args = args};
    struct moec_error err = {0};
    enum moec_status status = read_options(&chat, &err);
    if (status == MOEC_OK)
        status = read_messages(&chat, &err);
    if (status == MOEC_OK)
        status = open_engine(&chat, &err);
    if (status == MOEC_OK)
        status = check_template(&chat, &err);
    if (status == MOEC_OK && cli_has(args, "render")) {
        status = print_rendered(&chat, &err);
    } else if (status == MOEC_OK) {
        status = open_editor(&chat, &err);
        if (status == MOEC_OK)
            status = talk(&chat, &err);
    }
    const bool is_open = chat.engine != NULL;
    release(&chat);
    const int result = status == MOEC_OK ? CLI_OK : cli_fail(args, &err);
    if (status == MOEC_ERR_BUDGET && !is_open)
        cli_advise_floor(args, chat.engine_options.memory_bytes, &chat.floor);
    return result;
}

const struct cli_command cli_command_chat = {
    .name = "chat",
    .model = CLI_BUNDLE,
    .summary = "talk with a bundle whose model has a chat template",
    .usage = "MODEL.moec",
    .about = "Holds a conversation; each line that you type is a message. The model's chat template, which "
             "is in the bundle, makes a prompt of the conversation. Only tokens that are new since the last "
             "answer are read. Ctrl-C stops an answer. /reset begins a new conversation, and /system TEXT "
             "begins one with another system message. Ctrl-D or /exit ends the program.",
    .details =
        "If standard input is no terminal, each of its lines is a message, and answers are printed one "
        "after the other. To send a message that begins with a slash, type two slashes.\n"
        "Special tokens in a message, such as <|im_end|>, are read as plain text: only the template "
        "writes special tokens. moec runs the template itself, with limits. If a template uses parts "
        "of Jinja that moec does not know, moec refuses the template and names the place. A template "
        "that asks for the date gets today's.\n"
        "Experts are read as in moec run. Greedy answers are the same at every --memory.",
    .examples = "moec chat model.moec --memory 64MiB --system \"You answer in one sentence.\"\n"
                "echo \"What is a mill?\" | moec chat model.moec --temp 0.7\n"
                "moec chat model.moec --messages conversation.json --render",
    .n_positional_min = 1,
    .n_positional_max = 1,
    .options = options,
    .run = run_chat,
};
