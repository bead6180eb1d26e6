/* A stream tells each token once: n_tokens goes back to 0 after an event, and told_characters says where the
 * next one begins. Prompts count once in the usage, however many choices they have. Tokens of one text share
 * a place in a map, which keeps the likelier. */
#include "server/serve_answer.h"

#include "formats/base/memory.h"
#include "formats/json/json_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *finish_text(enum serve_finish finish)
{
    static const char *const texts[] = {
        [SERVE_UNFINISHED] = NULL, [SERVE_STOP] = "stop", [SERVE_LENGTH] = "length"};
    return texts[finish];
}

/* The line of a tree, which is freed; `before` and `after` stand around it. */
static char *line_of(struct moec_json_out *root, const char *before, const char *after)
{
    char *line = NULL, *text = NULL;
    if (moec_json_out_line(root, &line, NULL) == MOEC_OK &&
        asprintf(&text, "%s%s%s", before, line, after) < 0)
        text = NULL;
    free(line);
    moec_json_out_free(root);
    return text;
}

/* ---- tokens ---- */

/* The text of a token by itself; the caller frees it with moert_free. "" where it cannot be told. */
static char *token_text(const struct serve_options *options, uint32_t token, size_t *n)
{
    char *text = NULL;
    *n = 0;
    if (moert_detokenize(options->engine, &token, 1, false, &text, n, NULL) != MOERT_OK)
        return NULL;
    return text;
}

static size_t count_characters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

static bool is_one_of(char *const *texts, uint32_t n, const char *text)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(texts[i], text) == 0)
            return true;
    return false;
}

/* A map of texts to logarithms: the likeliest, and the token's own. Two tokens of one text have one place, with
 * the larger of both. */
static struct moec_json_out *likeliest_map(const struct serve_options *options,
                                           const struct moert_score *scores, uint32_t n_best)
{
    struct moec_json_out *map = moec_json_out_object();
    char *texts[SERVE_MAX_LOGPROBS + 1];
    uint32_t n = 0;
    for (uint32_t i = 1; i <= n_best + 1; i++) {
        const struct moert_score *score = &scores[i <= n_best ? i : 0];
        size_t n_bytes = 0;
        char *text = token_text(options, score->token, &n_bytes);
        if (text == NULL || is_one_of(texts, n, text)) {
            moert_free(text);
            continue;
        }
        moec_json_out_double(map, text, score->log_prob);
        texts[n++] = text;
    }
    for (uint32_t i = 0; i < n; i++)
        moert_free(texts[i]);
    return map;
}

/* Of a completion: four lists beside each other. *offset: where the tokens before these end, in characters. */
static struct moec_json_out *completion_logprobs(const struct serve_options *options,
                                                 const struct serve_sequence *sequence, size_t *offset)
{
    const uint32_t n_best = sequence->job->request.n_logprobs;
    struct moec_json_out *root = moec_json_out_object(), *tokens = moec_json_out_array(),
                         *logs = moec_json_out_array(), *maps = moec_json_out_array(),
                         *offsets = moec_json_out_array();
    for (size_t i = 0; i < sequence->n_tokens; i++) {
        const struct serve_token *token = &sequence->tokens[i];
        const struct moert_score *scores = sequence->scores + i * (1 + n_best);
        size_t n = 0;
        char *text = token_text(options, token->token, &n);
        moec_json_out_string_n(tokens, NULL, text != NULL ? text : "", n);
        moec_json_out_u64(offsets, NULL, *offset);
        *offset += text != NULL ? count_characters(text, n) : 0;
        moert_free(text);
        if (token->is_scored)
            moec_json_out_double(logs, NULL, scores[0].log_prob);
        else
            moec_json_out_null(logs, NULL);
        if (token->is_scored && n_best > 0)
            moec_json_out_node(maps, NULL, likeliest_map(options, scores, n_best));
        else
            moec_json_out_null(maps, NULL);
    }
    moec_json_out_node(root, "tokens", tokens);
    moec_json_out_node(root, "token_logprobs", logs);
    moec_json_out_node(root, "top_logprobs", maps);
    moec_json_out_node(root, "text_offset", offsets);
    return root;
}

static struct moec_json_out *scored_token(const struct serve_options *options,
                                          const struct moert_score *score)
{
    struct moec_json_out *one = moec_json_out_object();
    size_t n = 0;
    char *text = token_text(options, score->token, &n);
    moec_json_out_string_n(one, "token", text != NULL ? text : "", n);
    moec_json_out_double(one, "logprob", score->log_prob);
    moec_json_out_null(one, "bytes");
    moert_free(text);
    return one;
}

/* Of a conversation: a list of objects. */
static struct moec_json_out *chat_logprobs(const struct serve_options *options,
                                           const struct serve_sequence *sequence)
{
    const uint32_t n_best = sequence->job->request.n_logprobs;
    struct moec_json_out *root = moec_json_out_object(), *content = moec_json_out_array();
    for (size_t i = 0; i < sequence->n_tokens; i++) {
        const struct moert_score *scores = sequence->scores + i * (1 + n_best);
        struct moec_json_out *token = scored_token(options, &scores[0]), *best = moec_json_out_array();
        for (uint32_t k = 1; k <= n_best; k++)
            moec_json_out_node(best, NULL, scored_token(options, &scores[k]));
        moec_json_out_node(token, "top_logprobs", best);
        moec_json_out_node(content, NULL, token);
    }
    moec_json_out_node(root, "content", content);
    return root;
}

static void put_logprobs(const struct serve_options *options, const struct serve_sequence *sequence,
                         size_t *offset, struct moec_json_out *choice)
{
    const struct serve_job *job = sequence->job;
    if (!job->request.has_logprobs)
        moec_json_out_null(choice, "logprobs");
    else
        moec_json_out_node(choice, "logprobs",
                           job->is_chat ? chat_logprobs(options, sequence)
                                        : completion_logprobs(options, sequence, offset));
}

static void put_finish(const struct serve_sequence *sequence, struct moec_json_out *choice)
{
    moec_json_out_string_or_null(choice, "finish_reason", finish_text(sequence->finish));
}

/* ---- the whole ---- */

static struct moec_json_out *begin_answer(const struct serve_options *options, const struct serve_job *job,
                                          const char *object)
{
    struct moec_json_out *root = moec_json_out_object();
    char id[48];
    (void)snprintf(id, sizeof id, "%s-%" PRIu64, job->is_chat ? "chatcmpl" : "cmpl", job->id);
    moec_json_out_string(root, "id", id);
    moec_json_out_string(root, "object", object);
    moec_json_out_u64(root, "created", (uint64_t)job->created_s);
    moec_json_out_string(root, "model", options->model);
    return root;
}

static void put_usage(const struct serve_job *job, struct moec_json_out *root)
{
    struct moec_json_out *usage = moec_json_out_object(), *details = moec_json_out_object();
    uint64_t n_prompt = 0, n_generated = 0, n_cached = 0;
    for (size_t i = 0; i < job->n_sequence; i++) {
        n_generated += job->sequences[i].n_generated;
        if (i % job->request.n != 0)
            continue;
        n_prompt += job->sequences[i].n_prompt;
        n_cached += job->sequences[i].n_cached;
    }
    moec_json_out_u64(usage, "prompt_tokens", n_prompt);
    moec_json_out_u64(usage, "completion_tokens", n_generated);
    moec_json_out_u64(usage, "total_tokens", n_prompt + n_generated);
    moec_json_out_u64(details, "cached_tokens", n_cached);
    moec_json_out_node(usage, "prompt_tokens_details", details);
    moec_json_out_node(root, "usage", usage);
}

/* The prompt as its request spells it, or what its ids spell; the caller frees it. */
static char *prompt_text(const struct serve_options *options, const struct serve_sequence *sequence,
                         size_t *n)
{
    const struct serve_prompt *prompt =
        &sequence->job->request.prompts[sequence->index / sequence->job->request.n];
    char *text = NULL;
    *n = 0;
    if (prompt->ids != NULL) {
        if (moert_detokenize(options->engine, prompt->ids, prompt->n_ids, false, &text, n, NULL) != MOERT_OK)
            text = NULL;
        return text;
    }
    *n = prompt->n_bytes;
    return moec_strndup(&text, prompt->text, prompt->n_bytes, NULL) == MOEC_OK ? text : NULL;
}

/* "text", after the prompt where it is echoed. */
static void put_text(const struct serve_options *options, const struct serve_sequence *sequence, bool echoes,
                     const char *piece, size_t n_bytes, struct moec_json_out *choice)
{
    size_t n = 0;
    char *prompt = echoes ? prompt_text(options, sequence, &n) : NULL, *both = NULL;
    if (n == 0) {
        moec_json_out_string_n(choice, "text", piece, n_bytes);
    } else if ((both = realloc(prompt, n + n_bytes + 1)) != NULL) {
        prompt = both;
        memcpy(both + n, piece, n_bytes);
        moec_json_out_string_n(choice, "text", both, n + n_bytes);
    }
    free(prompt);
}

static void put_moec(const struct serve_options *options, const struct serve_job *job,
                     struct moec_json_out *root)
{
    struct moec_json_out *ours = moec_json_out_object();
    if (!job->is_scored) {
        moec_json_out_free(ours);
        return;
    }
    moec_json_out_string(ours, "score", options->scores_decided ? "decided" : "prompt");
    moec_json_out_node(root, "moec", ours);
}

char *serve_answer_whole(const struct serve_options *options, const struct serve_job *job)
{
    struct moec_json_out *root =
        begin_answer(options, job, job->is_chat ? "chat.completion" : "text_completion");
    struct moec_json_out *choices = moec_json_out_array();
    for (size_t i = 0; i < job->n_sequence; i++) {
        const struct serve_sequence *sequence = &job->sequences[i];
        struct moec_json_out *choice = moec_json_out_object();
        const char *text = sequence->answer != NULL ? sequence->answer : "";
        size_t offset = 0;
        moec_json_out_u64(choice, "index", sequence->index);
        if (job->is_chat) {
            struct moec_json_out *message = moec_json_out_object();
            moec_json_out_string(message, "role", "assistant");
            moec_json_out_string_n(message, "content", text, sequence->n_answer);
            moec_json_out_node(choice, "message", message);
        } else {
            put_text(options, sequence, job->request.echo, text, sequence->n_answer, choice);
        }
        put_logprobs(options, sequence, &offset, choice);
        put_finish(sequence, choice);
        moec_json_out_node(choices, NULL, choice);
    }
    moec_json_out_node(root, "choices", choices);
    put_usage(job, root);
    put_moec(options, job, root);
    return line_of(root, "", "\n");
}

/* ---- streams ---- */

char *serve_answer_event(const struct serve_options *options, struct serve_sequence *sequence,
                         const char *piece, size_t n_bytes, bool begins)
{
    const struct serve_job *job = sequence->job;
    struct moec_json_out *root =
        begin_answer(options, job, job->is_chat ? "chat.completion.chunk" : "text_completion");
    struct moec_json_out *choices = moec_json_out_array(), *choice = moec_json_out_object();
    moec_json_out_u64(choice, "index", sequence->index);
    if (job->is_chat) {
        struct moec_json_out *delta = moec_json_out_object();
        if (begins)
            moec_json_out_string(delta, "role", "assistant");
        if (n_bytes > 0 || begins)
            moec_json_out_string_n(delta, "content", piece, n_bytes);
        moec_json_out_node(choice, "delta", delta);
    } else {
        put_text(options, sequence, begins && job->request.echo, piece, n_bytes, choice);
    }
    if (sequence->n_tokens > 0)
        put_logprobs(options, sequence, &sequence->told_characters, choice);
    else
        moec_json_out_null(choice, "logprobs");
    sequence->n_tokens = 0; /* they are told */
    put_finish(sequence, choice);
    moec_json_out_node(choices, NULL, choice);
    moec_json_out_node(root, "choices", choices);
    return line_of(root, "data: ", "\n\n");
}

char *serve_answer_usage_event(const struct serve_options *options, const struct serve_job *job)
{
    struct moec_json_out *root =
        begin_answer(options, job, job->is_chat ? "chat.completion.chunk" : "text_completion");
    moec_json_out_node(root, "choices", moec_json_out_array());
    put_usage(job, root);
    return line_of(root, "data: ", "\n\n");
}

char *serve_answer_problem_event(const struct serve_problem *problem)
{
    char *text = serve_problem_text(problem), *event = NULL;
    if (text == NULL || asprintf(&event, "data: %s\n\n", text) < 0)
        event = NULL;
    free(text);
    return event;
}

/* ---- what there is ---- */

char *serve_answer_models(const struct serve_options *options)
{
    struct moec_json_out *root = moec_json_out_object(), *data = moec_json_out_array(),
                         *model = moec_json_out_object();
    moec_json_out_string(model, "id", options->model);
    moec_json_out_string(model, "object", "model");
    moec_json_out_u64(model, "created", 0);
    moec_json_out_string(model, "owned_by", "moec");
    moec_json_out_u64(model, "max_model_len", options->limits.n_context);
    moec_json_out_bool(model, "chat", moert_engine_has_chat(options->engine));
    moec_json_out_node(data, NULL, model);
    moec_json_out_string(root, "object", "list");
    moec_json_out_node(root, "data", data);
    return line_of(root, "", "\n");
}

char *serve_answer_tokens(const struct serve_options *options, const uint32_t *tokens, size_t n_tokens)
{
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array();
    for (size_t i = 0; i < n_tokens; i++)
        moec_json_out_u64(list, NULL, tokens[i]);
    moec_json_out_u64(root, "count", n_tokens);
    moec_json_out_u64(root, "max_model_len", options->limits.n_context);
    moec_json_out_node(root, "tokens", list);
    return line_of(root, "", "\n");
}

char *serve_answer_text(const char *text, size_t n_bytes)
{
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string_n(root, "prompt", text, n_bytes);
    return line_of(root, "", "\n");
}

static void put_token(const struct serve_options *options, const char *key, bool is_there, uint32_t token,
                      struct moec_json_out *root)
{
    size_t n = 0;
    char *text = is_there ? token_text(options, token, &n) : NULL;
    if (text != NULL)
        moec_json_out_string_n(root, key, text, n);
    else
        moec_json_out_null(root, key);
    moert_free(text);
}

char *serve_answer_tokenizer(const struct serve_options *options)
{
    struct moec_json_out *root = moec_json_out_object();
    const uint32_t n_vocab = options->limits.n_vocab;
    uint32_t *first = NULL, end = 0;
    size_t n = 0;
    while (end < n_vocab && !moert_token_is_end(options->engine, end))
        end++;
    if (moert_tokenize(options->engine, "", 0, true, &first, &n, NULL) != MOERT_OK)
        n = 0;
    put_token(options, "eos_token", end < n_vocab, end, root);
    put_token(options, "bos_token", n > 0, n > 0 ? first[0] : 0, root);
    moec_json_out_null(root, "pad_token");
    moec_json_out_null(root, "chat_template");
    moec_json_out_u64(root, "vocab_size", n_vocab);
    moec_json_out_u64(root, "max_model_len", options->limits.n_context);
    moert_free(first);
    return line_of(root, "", "\n");
}
