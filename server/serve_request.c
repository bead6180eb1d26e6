/* Fields are a table: name, kinds of request, reader. A name may stand there twice with different kinds.
 * Values are counted in the text before it is parsed, since a tree takes many times the bytes of its text.
 * Once prompts are tokens the tree is given up. What is read of it later, stop texts and echoed prompts, is
 * copied to one block. */
#include "server/serve_request.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define IN_COMPLETION 1u
#define IN_CHAT       2u
#define IN_TOKENIZE   4u
#define IN_DETOKENIZE 8u

struct reading {
    struct serve_request *request;
    const struct serve_limits *limits;
    struct serve_problem *problem;
    const char *name; /* of the field at work */
};

typedef bool field_reader(struct reading *reading, const struct moec_json *value);

static bool refuse_value(struct reading *r, const struct moec_json *value, const char *expected)
{
    return serve_refuse(r->problem, 400, r->name, "'%s' is %s, expected %s", r->name,
                        moec_json_type_name(value), expected);
}

/* ---- values ---- */

static bool read_double(struct reading *r, const struct moec_json *value, double min, double max, double *out)
{
    struct moec_error err = {0};
    if (moec_json_as_double(value, r->name, min, max, out, &err) == MOEC_OK)
        return true;
    return serve_refuse(r->problem, 400, r->name, "%s", err.message);
}

static bool read_u64(struct reading *r, const struct moec_json *value, uint64_t min, uint64_t max,
                     uint64_t *out)
{
    struct moec_error err = {0};
    if (moec_json_as_u64(value, r->name, min, max, out, &err) == MOEC_OK)
        return true;
    return serve_refuse(r->problem, 400, r->name, "%s", err.message);
}

static bool read_u32(struct reading *r, const struct moec_json *value, uint32_t min, uint32_t max,
                     uint32_t *out)
{
    uint64_t read = 0;
    if (!read_u64(r, value, min, max, &read))
        return false;
    *out = (uint32_t)read;
    return true;
}

static bool read_bool(struct reading *r, const struct moec_json *value, bool *out)
{
    if (moec_json_type(value) != MOEC_JSON_BOOL)
        return refuse_value(r, value, "true or false");
    return moec_json_as_bool(value, r->name, out, NULL) == MOEC_OK;
}

static bool is_null(const struct moec_json *value)
{
    return moec_json_type(value) == MOEC_JSON_NULL;
}

static bool read_ids(struct reading *r, const struct moec_json *list, struct serve_prompt *prompt)
{
    const size_t n = moec_json_length(list);
    struct moec_error err = {0};
    if (moec_alloc((void **)&prompt->ids, n, sizeof *prompt->ids, "token ids", &err) != MOEC_OK)
        return serve_refuse_error(r->problem, NULL, err.status, err.message);
    for (size_t i = 0; i < n; i++) {
        const struct moec_json *id = moec_json_at(list, i);
        if (moec_json_type(id) != MOEC_JSON_INTEGER)
            return serve_refuse(r->problem, 400, r->name, "'%s' holds %s at index %zu, expected a token id",
                                r->name, moec_json_type_name(id), i);
        if (!read_u32(r, id, 0, r->limits->n_vocab - 1, &prompt->ids[i]))
            return false;
    }
    prompt->n_ids = n;
    return true;
}

static bool read_text(struct reading *r, const struct moec_json *value, const char **text, size_t *n)
{
    if (moec_json_type(value) != MOEC_JSON_STRING)
        return refuse_value(r, value, "a text");
    return moec_json_as_string(value, r->name, text, n, NULL) == MOEC_OK;
}

/* ---- fields ---- */

static bool read_nothing(struct reading *r, const struct moec_json *value)
{
    (void)r;
    (void)value;
    return true;
}

/* Fields of what there is none of here: a value that asks for nothing passes. */
static bool read_neutral(struct reading *r, const struct moec_json *value)
{
    const enum moec_json_type type = moec_json_type(value);
    if (type == MOEC_JSON_NULL ||
        ((type == MOEC_JSON_ARRAY || type == MOEC_JSON_OBJECT) && moec_json_length(value) == 0))
        return true;
    return serve_refuse(r->problem, 400, r->name, "'%s' is not supported: leave it out", r->name);
}

static bool read_no_penalty(struct reading *r, const struct moec_json *value)
{
    double penalty = 0;
    if (is_null(value))
        return true;
    if (!read_double(r, value, -2, 2, &penalty))
        return false;
    return penalty == 0 ||
           serve_refuse(r->problem, 400, r->name,
                        "'%s' is not supported: leave it out, or use 'repetition_penalty'", r->name);
}

static bool read_only_one(struct reading *r, const struct moec_json *value)
{
    uint32_t n = 1;
    return is_null(value) || read_u32(r, value, 1, 1, &n);
}

static bool is_text(const struct moec_json *value, const char *text)
{
    const char *found = NULL;
    size_t n = 0;
    return moec_json_type(value) == MOEC_JSON_STRING &&
           moec_json_as_string(value, "text", &found, &n, NULL) == MOEC_OK && n == strlen(text) &&
           memcmp(found, text, n) == 0;
}

static bool read_tool_choice(struct reading *r, const struct moec_json *value)
{
    return is_text(value, "none") || is_text(value, "auto") || read_neutral(r, value);
}

static bool read_format(struct reading *r, const struct moec_json *value)
{
    const struct moec_json *type = moec_json_find(value, "type");
    return (type != NULL && is_text(type, "text") && moec_json_length(value) == 1) || read_neutral(r, value);
}

static bool read_modalities(struct reading *r, const struct moec_json *value)
{
    return (moec_json_length(value) == 1 && moec_json_type(value) == MOEC_JSON_ARRAY &&
            is_text(moec_json_at(value, 0), "text")) ||
           read_neutral(r, value);
}

static bool read_any_bool(struct reading *r, const struct moec_json *value)
{
    bool ignored = false;
    return is_null(value) || read_bool(r, value, &ignored);
}

static bool read_model(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || moec_json_type(value) == MOEC_JSON_STRING || refuse_value(r, value, "a text");
}

static bool read_n(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_u32(r, value, 1, SERVE_MAX_CHOICES, &r->request->n);
}

static bool read_max_tokens(struct reading *r, const struct moec_json *value)
{
    if (is_null(value))
        return true;
    if (r->request->has_tokens)
        return serve_refuse(
            r->problem, 400, r->name,
            "'max_tokens' and 'max_completion_tokens' are both given: leave out one of the two");
    r->request->has_tokens = true;
    return read_u32(r, value, 0, 1u << 30, &r->request->max_tokens);
}

static bool read_temperature(struct reading *r, const struct moec_json *value)
{
    if (is_null(value))
        return true;
    r->request->has_temperature = true;
    return read_double(r, value, 0, 100, &r->request->temperature);
}

static bool read_top_p(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_double(r, value, 0, 1, &r->request->top_p);
}

static bool read_min_p(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_double(r, value, 0, 1, &r->request->min_p);
}

static bool read_top_k(struct reading *r, const struct moec_json *value)
{
    double k = 0;
    if (is_null(value))
        return true;
    if (moec_json_type(value) == MOEC_JSON_INTEGER &&
        moec_json_as_double(value, r->name, -1, -1, &k, NULL) == MOEC_OK)
        return true; /* all, as other servers spell it */
    return read_u32(r, value, 0, 1u << 24, &r->request->top_k);
}

static bool read_penalty(struct reading *r, const struct moec_json *value)
{
    if (is_null(value))
        return true;
    r->request->has_penalty = true;
    return read_double(r, value, 0.01, 100, &r->request->repetition_penalty);
}

static bool read_seed(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_u64(r, value, 0, INT64_MAX, &r->request->seed);
}

static bool read_stream(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_bool(r, value, &r->request->is_stream);
}

static bool read_stream_options(struct reading *r, const struct moec_json *value)
{
    if (is_null(value))
        return true;
    if (moec_json_type(value) != MOEC_JSON_OBJECT)
        return refuse_value(r, value, "an object");
    for (struct moec_json_member m = moec_json_first(value); m.key != NULL; m = moec_json_next(value, m)) {
        if (strcmp(m.key, "include_usage") != 0)
            return serve_refuse(r->problem, 400, r->name,
                                "'%.40s' in 'stream_options' is unknown, expected 'include_usage'", m.key);
        if (!is_null(m.value) && !read_bool(r, m.value, &r->request->has_usage))
            return false;
    }
    return true;
}

static bool read_echo(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_bool(r, value, &r->request->echo);
}

/* Of a completion a number, of a conversation whether there are any. */
static bool read_logprobs(struct reading *r, const struct moec_json *value)
{
    if (is_null(value))
        return true;
    if (r->request->kind == SERVE_CHAT)
        return read_bool(r, value, &r->request->has_logprobs);
    r->request->has_logprobs = true;
    return read_u32(r, value, 0, SERVE_MAX_LOGPROBS, &r->request->n_logprobs);
}

static bool read_top_logprobs(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_u32(r, value, 0, SERVE_MAX_LOGPROBS, &r->request->n_logprobs);
}

static bool add_stop(struct reading *r, const struct moec_json *value)
{
    struct moec_stop_text *stop = &r->request->stops[r->request->n_stop];
    if (!read_text(r, value, &stop->bytes, &stop->n_bytes))
        return false;
    if (stop->n_bytes == 0 || stop->n_bytes > SERVE_MAX_STOP_BYTES)
        return serve_refuse(r->problem, 400, r->name, "a text of 'stop' has %zu bytes, expected 1 to %d",
                            stop->n_bytes, SERVE_MAX_STOP_BYTES);
    r->request->n_stop++;
    return true;
}

static bool read_stop(struct reading *r, const struct moec_json *value)
{
    if (is_null(value))
        return true;
    if (moec_json_type(value) != MOEC_JSON_ARRAY)
        return add_stop(r, value);
    if (moec_json_length(value) > SERVE_MAX_STOPS)
        return serve_refuse(r->problem, 400, r->name, "'stop' has %zu texts, expected at most %u",
                            moec_json_length(value), SERVE_MAX_STOPS);
    for (size_t i = 0; i < moec_json_length(value); i++)
        if (!add_stop(r, moec_json_at(value, i)))
            return false;
    return true;
}

static bool make_prompts(struct reading *r, size_t n)
{
    struct moec_error err = {0};
    struct serve_request *request = r->request;
    if (n == 0 || n > SERVE_MAX_SEQUENCES)
        return serve_refuse(r->problem, 400, r->name, "'%s' has %zu prompts, expected 1 to %u", r->name, n,
                            SERVE_MAX_SEQUENCES);
    if (moec_alloc((void **)&request->prompts, n, sizeof *request->prompts, "prompts", &err) != MOEC_OK)
        return serve_refuse_error(r->problem, NULL, err.status, err.message);
    request->n_prompt = n;
    return true;
}

/* A text, a list of ids, or a list of either. */
static bool read_prompt(struct reading *r, const struct moec_json *value)
{
    const bool is_list = moec_json_type(value) == MOEC_JSON_ARRAY;
    const struct moec_json *first = is_list ? moec_json_at(value, 0) : NULL;
    const bool is_one = !is_list || (first != NULL && moec_json_type(first) == MOEC_JSON_INTEGER);
    if (!is_list && moec_json_type(value) != MOEC_JSON_STRING)
        return refuse_value(r, value, "a text, a list of token ids, or a list of either");
    if (!make_prompts(r, is_one ? 1 : moec_json_length(value)))
        return false;
    for (size_t i = 0; i < r->request->n_prompt; i++) {
        const struct moec_json *one = is_one ? value : moec_json_at(value, i);
        struct serve_prompt *prompt = &r->request->prompts[i];
        if (moec_json_type(one) == MOEC_JSON_ARRAY) {
            if (!read_ids(r, one, prompt))
                return false;
        } else if (!read_text(r, one, &prompt->text, &prompt->n_bytes)) {
            return false;
        }
    }
    return true;
}

static bool read_one_text(struct reading *r, const struct moec_json *value)
{
    return make_prompts(r, 1) &&
           read_text(r, value, &r->request->prompts[0].text, &r->request->prompts[0].n_bytes);
}

static bool read_tokens(struct reading *r, const struct moec_json *value)
{
    if (moec_json_type(value) != MOEC_JSON_ARRAY)
        return refuse_value(r, value, "a list of token ids");
    return make_prompts(r, 1) && read_ids(r, value, &r->request->prompts[0]);
}

static bool read_messages(struct reading *r, const struct moec_json *value)
{
    if (moec_json_type(value) != MOEC_JSON_ARRAY)
        return refuse_value(r, value, "a list of messages");
    if (moec_json_length(value) == 0)
        return serve_refuse(r->problem, 400, r->name, "'messages' is empty, expected at least one message");
    for (size_t i = 0; i < moec_json_length(value); i++)
        if (moec_json_type(moec_json_at(value, i)) != MOEC_JSON_OBJECT)
            return serve_refuse(r->problem, 400, r->name, "message %zu is %s, expected an object", i,
                                moec_json_type_name(moec_json_at(value, i)));
    r->request->messages = value;
    return true;
}

static bool read_adds_special(struct reading *r, const struct moec_json *value)
{
    return is_null(value) || read_bool(r, value, &r->request->adds_special);
}

static bool read_skips_special(struct reading *r, const struct moec_json *value)
{
    bool skips = false;
    if (!is_null(value) && !read_bool(r, value, &skips))
        return false;
    r->request->keeps_special = !skips;
    return true;
}

static const struct field {
    const char *name;
    unsigned in;
    field_reader *read;
} fields[] = {
    {"model", IN_COMPLETION | IN_CHAT | IN_TOKENIZE | IN_DETOKENIZE, read_model},
    {"prompt", IN_COMPLETION, read_prompt},
    {"prompt", IN_TOKENIZE, read_one_text},
    {"tokens", IN_DETOKENIZE, read_tokens},
    {"messages", IN_CHAT, read_messages},
    {"add_special_tokens", IN_TOKENIZE, read_adds_special},
    {"skip_special_tokens", IN_DETOKENIZE, read_skips_special},
    {"n", IN_COMPLETION | IN_CHAT, read_n},
    {"max_tokens", IN_COMPLETION | IN_CHAT, read_max_tokens},
    {"max_completion_tokens", IN_CHAT, read_max_tokens},
    {"temperature", IN_COMPLETION | IN_CHAT, read_temperature},
    {"top_p", IN_COMPLETION | IN_CHAT, read_top_p},
    {"top_k", IN_COMPLETION | IN_CHAT, read_top_k},
    {"min_p", IN_COMPLETION | IN_CHAT, read_min_p},
    {"repetition_penalty", IN_COMPLETION | IN_CHAT, read_penalty},
    {"seed", IN_COMPLETION | IN_CHAT, read_seed},
    {"stop", IN_COMPLETION | IN_CHAT, read_stop},
    {"stream", IN_COMPLETION | IN_CHAT, read_stream},
    {"stream_options", IN_COMPLETION | IN_CHAT, read_stream_options},
    {"echo", IN_COMPLETION, read_echo},
    {"logprobs", IN_COMPLETION | IN_CHAT, read_logprobs},
    {"top_logprobs", IN_CHAT, read_top_logprobs},
    /* without effect */
    {"user", IN_COMPLETION | IN_CHAT, read_nothing},
    {"metadata", IN_COMPLETION | IN_CHAT, read_nothing},
    {"store", IN_COMPLETION | IN_CHAT, read_nothing},
    {"service_tier", IN_COMPLETION | IN_CHAT, read_nothing},
    {"parallel_tool_calls", IN_CHAT, read_any_bool},
    /* neutral values alone */
    {"best_of", IN_COMPLETION, read_only_one},
    {"suffix", IN_COMPLETION, read_neutral},
    {"presence_penalty", IN_COMPLETION | IN_CHAT, read_no_penalty},
    {"frequency_penalty", IN_COMPLETION | IN_CHAT, read_no_penalty},
    {"logit_bias", IN_COMPLETION | IN_CHAT, read_neutral},
    {"tools", IN_CHAT, read_neutral},
    {"tool_choice", IN_CHAT, read_tool_choice},
    {"functions", IN_CHAT, read_neutral},
    {"function_call", IN_CHAT, read_tool_choice},
    {"response_format", IN_COMPLETION | IN_CHAT, read_format},
    {"modalities", IN_CHAT, read_modalities},
    {"audio", IN_CHAT, read_neutral},
    {"prediction", IN_CHAT, read_neutral},
    {"reasoning_effort", IN_CHAT, read_neutral},
    {"verbosity", IN_CHAT, read_neutral},
    {"web_search_options", IN_CHAT, read_neutral},
};

static unsigned kind_bit(enum serve_kind kind)
{
    static const unsigned bits[] = {[SERVE_CHAT] = IN_CHAT,
                                    [SERVE_COMPLETION] = IN_COMPLETION,
                                    [SERVE_TOKENIZE] = IN_TOKENIZE,
                                    [SERVE_DETOKENIZE] = IN_DETOKENIZE};
    return bits[kind];
}

/* ---- the whole ---- */

/* Values of a JSON text, at most: what stands between its commas, colons and brackets. */
static size_t count_values(const char *body, size_t n)
{
    size_t count = 1;
    bool is_string = false;
    for (size_t i = 0; i < n; i++) {
        if (is_string && body[i] == '\\')
            i++;
        else if (body[i] == '"')
            is_string = !is_string;
        else if (!is_string)
            count += body[i] == ',' || body[i] == ':' || body[i] == '[' || body[i] == '{';
    }
    return count;
}

static bool read_field(struct reading *r, const struct moec_json_member *member)
{
    const unsigned bit = kind_bit(r->request->kind);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if ((fields[i].in & bit) == 0 || strcmp(fields[i].name, member->key) != 0)
            continue;
        r->name = fields[i].name;
        return fields[i].read(r, member->value);
    }
    return serve_refuse(r->problem, 400, member->key, "the field '%.60s' is unknown: leave it out",
                        member->key);
}

static bool check_whole(struct reading *r)
{
    struct serve_request *request = r->request;
    static const char *const needed[] = {[SERVE_CHAT] = "messages",
                                         [SERVE_COMPLETION] = "prompt",
                                         [SERVE_TOKENIZE] = "prompt",
                                         [SERVE_DETOKENIZE] = "tokens"};
    if (request->messages == NULL && request->n_prompt == 0)
        return serve_refuse(r->problem, 400, needed[request->kind], "the field '%s' is missing",
                            needed[request->kind]);
    if (request->n_prompt * request->n > SERVE_MAX_SEQUENCES)
        return serve_refuse(r->problem, 400, "n",
                            "%zu prompts with %" PRIu32
                            " choices each are more than %u sequences: ask for fewer",
                            request->n_prompt, request->n, SERVE_MAX_SEQUENCES);
    if (request->kind == SERVE_CHAT && request->n_logprobs > 0 && !request->has_logprobs)
        return serve_refuse(r->problem, 400, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    if (request->n_logprobs > r->limits->n_vocab)
        return serve_refuse(r->problem, 400, "logprobs",
                            "'logprobs' is more than the vocabulary of %" PRIu32 " tokens",
                            r->limits->n_vocab);
    return true;
}

static bool read_root(struct reading *r)
{
    const struct moec_json *root = r->request->root;
    if (moec_json_type(root) != MOEC_JSON_OBJECT)
        return serve_refuse(r->problem, 400, NULL, "the body is %s, expected an object",
                            moec_json_type_name(root));
    for (struct moec_json_member m = moec_json_first(root); m.key != NULL; m = moec_json_next(root, m))
        if (!read_field(r, &m))
            return false;
    return check_whole(r);
}

bool serve_request_read(enum serve_kind kind, const char *body, size_t n, const struct serve_limits *limits,
                        struct serve_request *out, struct serve_problem *problem)
{
    struct moec_error err = {0};
    *out =
        (struct serve_request){.kind = kind, .n = 1, .top_p = 1, .adds_special = true, .keeps_special = true};
    if (n > limits->body_bytes || count_values(body, n) > limits->tree_values)
        return serve_refuse(problem, 413, NULL,
                            "the body has %zu bytes and up to %zu values, expected at most %zu bytes and %zu "
                            "values: send less, or start the server with a larger --ctx",
                            n, count_values(body, n), limits->body_bytes, limits->tree_values);
    if (moec_json_parse(body, n, limits->body_bytes, "the body", &out->root, &err) != MOEC_OK)
        return serve_refuse_error(problem, NULL, err.status, err.message);
    struct reading reading = {.request = out, .limits = limits, .problem = problem};
    if (read_root(&reading))
        return true;
    serve_request_release(out);
    return false;
}

static const char *keep(char **to, const char *text, size_t n)
{
    char *kept = *to;
    if (n > 0)
        memcpy(kept, text, n);
    *to += n;
    return kept;
}

enum moec_status serve_request_shed(struct serve_request *request, struct moec_error *err)
{
    size_t n_bytes = 1;
    char *to = NULL;
    for (size_t i = 0; i < request->n_stop; i++)
        n_bytes += request->stops[i].n_bytes;
    for (size_t i = 0; request->echo && i < request->n_prompt; i++)
        n_bytes += request->prompts[i].n_bytes;
    MOEC_TRY(moec_alloc((void **)&to, n_bytes, 1, "texts of a request", err));
    request->kept = to;
    for (size_t i = 0; i < request->n_stop; i++)
        request->stops[i].bytes = keep(&to, request->stops[i].bytes, request->stops[i].n_bytes);
    for (size_t i = 0; i < request->n_prompt; i++) {
        struct serve_prompt *prompt = &request->prompts[i];
        prompt->text = request->echo ? keep(&to, prompt->text, prompt->n_bytes) : NULL;
        prompt->n_bytes = request->echo ? prompt->n_bytes : 0;
    }
    moec_json_free(request->root);
    request->root = NULL;
    request->messages = NULL;
    return MOEC_OK;
}

void serve_request_release(struct serve_request *request)
{
    free(request->kept);
    for (size_t i = 0; i < request->n_prompt; i++)
        free(request->prompts[i].ids);
    free(request->prompts);
    moec_json_free(request->root);
    *request = (struct serve_request){0};
}
