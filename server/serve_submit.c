/* Room is taken once for the body as it comes, and once for the job that it becomes. What does not fit now
 * is 429, what never will is 413. A text that a special token spells as a whole is that token only where its
 * id is asked for; in other texts nothing typed is special. */
#include "server/serve_submit.h"

#include "formats/base/memory.h"
#include "server/serve_answer.h"
#include "server/serve_chat_values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool serve_take_room(struct serve *server, size_t n, struct serve_problem *problem)
{
    const size_t limit = server->options.limits.held_bytes;
    const size_t before = atomic_fetch_add(&server->held, n);
    if (before <= limit && n <= limit - before)
        return true;
    atomic_fetch_sub(&server->held, n);
    if (n > limit)
        return serve_refuse(
            problem, 413, NULL,
            "the request needs %zu bytes with its answer, but the limit is %zu: ask for fewer tokens, "
            "choices or logprobs",
            n, limit);
    return serve_refuse(
        problem, 429, NULL,
        "the request needs %zu bytes with its answer, and running requests hold %zu of %zu bytes: ask again "
        "later",
        n, before, limit);
}

static bool holds(enum moert_status status, const struct moert_error *err, const char *param,
                  struct serve_problem *problem)
{
    return status == MOERT_OK || serve_refuse_error(problem, param, (enum moec_status)status, err->message);
}

/* ---- prompts ---- */

static bool take_ids(const struct serve_prompt *prompt, struct serve_prompt_tokens *out,
                     struct serve_problem *problem)
{
    struct moec_error err = {0};
    if (moec_alloc((void **)&out->ids, prompt->n_ids, sizeof *out->ids, "a prompt", &err) != MOEC_OK)
        return serve_refuse_error(problem, NULL, err.status, err.message);
    memcpy(out->ids, prompt->ids, prompt->n_ids * sizeof *out->ids);
    out->n_ids = prompt->n_ids;
    return true;
}

/* A conversation, by the bundle's template up to where an answer begins. */
static bool take_messages(const struct serve *server, const struct serve_request *request,
                          struct moert_values *values, struct serve_prompt_tokens *out,
                          struct serve_problem *problem)
{
    struct moert_error err = {0};
    struct moert_chat_text text = {0};
    struct moert_value *messages = NULL;
    const time_t now = time(NULL);
    struct tm date;
    (void)localtime_r(&now, &date);
    if (!serve_chat_messages(values, request->messages, &messages, problem))
        return false;
    const struct moert_chat chat = {.messages = messages,
                                    .add_generation_prompt = true,
                                    .date = &date,
                                    .memory_bytes = server->options.limits.template_bytes};
    if (!holds(moert_chat_render(server->options.engine, values, &chat, &text, &err), &err, "messages",
               problem))
        return false;
    const enum moert_status status =
        moert_chat_tokenize(server->options.engine, &text, &out->ids, &out->n_ids, &err);
    moert_chat_text_release(&text);
    return holds(status, &err, "messages", problem);
}

static bool take_prompt(const struct serve *server, const struct serve_request *request, size_t i,
                        struct serve_prompt_tokens *out, struct serve_problem *problem)
{
    struct moert_error err = {0};
    const struct moert_engine *engine = server->options.engine;
    if (request->kind != SERVE_CHAT && request->prompts[i].ids != NULL)
        return take_ids(&request->prompts[i], out, problem);
    if (request->kind != SERVE_CHAT)
        return holds(moert_tokenize_typed(engine, request->prompts[i].text, request->prompts[i].n_bytes, true,
                                          &out->ids, &out->n_ids, &err),
                     &err, "prompt", problem);
    struct moert_values *values = NULL;
    if (!holds(moert_values_create(&values, &err), &err, NULL, problem))
        return false;
    const bool is_taken = take_messages(server, request, values, out, problem);
    moert_values_free(values);
    return is_taken;
}

static bool check_length(const struct serve *server, const struct serve_job *job, size_t n,
                         struct serve_problem *problem)
{
    const char *param = job->is_chat ? "messages" : "prompt";
    const uint32_t n_context = server->options.limits.n_context;
    if (n == 0)
        return serve_refuse(problem, 400, param,
                            "the prompt has no tokens, and this model needs text to continue");
    if (n <= n_context)
        return true;
    (void)serve_refuse(problem, 400, param,
                       "the prompt has %zu tokens, but the context has %" PRIu32
                       " tokens: send less, or start the server with a larger --ctx",
                       n, n_context);
    problem->code = "context_length_exceeded";
    return false;
}

static bool fill_job(struct serve *server, struct serve_job *job, struct serve_problem *problem)
{
    struct moec_error err = {0};
    struct serve_request *request = &job->request;
    const size_t n = job->is_chat ? 1 : request->n_prompt;
    if (moec_alloc((void **)&job->prompts, n, sizeof *job->prompts, "prompts", &err) != MOEC_OK)
        return serve_refuse_error(problem, NULL, err.status, err.message);
    job->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        if (!take_prompt(server, request, i, &job->prompts[i], problem) ||
            !check_length(server, job, job->prompts[i].n_ids, problem))
            return false;
    if (serve_request_shed(request, &err) != MOEC_OK || serve_job_make_sequences(job, &err) != MOEC_OK)
        return serve_refuse_error(problem, NULL, err.status, err.message);
    return true;
}

/* ---- jobs ---- */

struct serve_job *serve_make_job(struct serve *server, enum serve_kind kind, const char *body, size_t n,
                                 struct serve_problem *problem)
{
    struct serve_request request;
    if (!serve_request_read(kind, body, n, &server->options.limits, &request, problem))
        return NULL;
    struct serve_job *job = serve_job_create(&request);
    if (job == NULL) {
        (void)serve_refuse(problem, 500, NULL, "the server has no memory for the request");
        return NULL;
    }
    job->id = ++server->n_jobs;
    if (fill_job(server, job, problem)) {
        const size_t n_bytes = serve_job_bytes(job, server->options.limits.n_context) + n;
        if (serve_take_room(server, n_bytes, problem)) {
            job->held = &server->held;
            job->held_bytes = n_bytes;
            return job;
        }
    }
    serve_job_let_go(job);
    return NULL;
}

/* ---- tokens ---- */

/* Tokens of a text. One that a special token spells as a whole is that token, for who looks its id up; within
 * other text nothing is. */
static bool tokenize(const struct moert_engine *engine, const struct serve_request *request,
                     uint32_t **tokens, size_t *n_tokens, struct serve_problem *problem)
{
    const struct serve_prompt *prompt = &request->prompts[0];
    struct moert_error err = {0};
    char *shown = NULL;
    size_t n_shown = 1;
    if (!holds(moert_tokenize(engine, prompt->text, prompt->n_bytes, false, tokens, n_tokens, &err), &err,
               "prompt", problem))
        return false;
    if (*n_tokens == 1 &&
        !holds(moert_detokenize(engine, *tokens, 1, true, &shown, &n_shown, &err), &err, NULL, problem))
        return false;
    moert_free(shown);
    if (*n_tokens == 1 && n_shown == 0)
        return true;
    moert_free(*tokens);
    *tokens = NULL;
    return holds(moert_tokenize_typed(engine, prompt->text, prompt->n_bytes, request->adds_special, tokens,
                                      n_tokens, &err),
                 &err, "prompt", problem);
}

static char *convert(struct serve *server, const struct serve_request *request, struct serve_problem *problem)
{
    const struct moert_engine *engine = server->options.engine;
    struct moert_error err = {0};
    uint32_t *tokens = NULL;
    char *text = NULL, *answer = NULL;
    size_t n = 0;
    if (request->kind == SERVE_TOKENIZE) {
        if (tokenize(engine, request, &tokens, &n, problem))
            answer = serve_answer_tokens(&server->options, tokens, n);
    } else if (holds(moert_detokenize(engine, request->prompts[0].ids, request->prompts[0].n_ids,
                                      !request->keeps_special, &text, &n, &err),
                     &err, "tokens", problem)) {
        answer = serve_answer_text(text, n);
    }
    if (answer == NULL)
        (void)serve_refuse(problem, 500, NULL, "the server has no memory for the answer");
    moert_free(tokens);
    moert_free(text);
    return answer;
}

char *serve_convert(struct serve *server, enum serve_kind kind, const char *body, size_t n,
                    struct serve_problem *problem)
{
    struct serve_request request;
    if (!serve_request_read(kind, body, n, &server->options.limits, &request, problem))
        return NULL;
    char *answer = convert(server, &request, problem);
    serve_request_release(&request);
    return answer;
}
