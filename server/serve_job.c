/* serve_job_bytes bounds all that a job will hold until it is freed, so room is taken once. A stream holds
 * few tokens back, a whole answer all of them. */
#include "server/serve_job.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"

#include <stdlib.h>
#include <time.h>

#define TOKEN_TEXT_BYTES 16u  /* of a token's text in an answer, about the most on average */
#define SCORE_TEXT_BYTES 256u /* of a token and its logarithm in an answer, while it is made */
#define UNTOLD_TOKENS    64u  /* that a stream holds back, with what may begin a stop text */
#define SEQUENCE_BYTES   1024u

struct serve_job *serve_job_create(struct serve_request *request)
{
    void *memory = NULL;
    if (moec_alloc(&memory, 1, sizeof(struct serve_job), "a request", NULL) != MOEC_OK) {
        serve_request_release(request);
        return NULL;
    }
    struct serve_job *job = memory;
    job->request = *request;
    *request = (struct serve_request){0};
    job->is_chat = job->request.kind == SERVE_CHAT;
    job->is_scored = job->request.echo && job->request.has_logprobs;
    job->n_users = 1;
    job->socket = -1;
    job->created_s = (int64_t)time(NULL);
    job->created_ns = job->told_ns = moec_now_ns();
    pthread_mutex_init(&job->lock, NULL);
    return job;
}

enum moec_status serve_job_make_sequences(struct serve_job *job, struct moec_error *err)
{
    const uint32_t n = job->request.n;
    MOEC_TRY(moec_alloc((void **)&job->sequences, job->n_prompt * n, sizeof *job->sequences, "choices", err));
    job->n_sequence = job->n_prompt * n;
    for (size_t i = 0; i < job->n_sequence; i++) {
        const struct serve_prompt_tokens *prompt = &job->prompts[i / n];
        job->sequences[i] =
            (struct serve_sequence){.job = job,
                                    .index = (uint32_t)i,
                                    .prompt = prompt->ids,
                                    .n_prompt = (uint32_t)prompt->n_ids,
                                    .seed = job->request.seed + i % n,
                                    .stops = {.texts = job->request.stops, .n_text = job->request.n_stop}};
    }
    return MOEC_OK;
}

static void release_sequence(struct serve_sequence *sequence)
{
    moert_generator_free(sequence->generator);
    moert_text_free(sequence->text);
    moec_stop_texts_release(&sequence->stops);
    free(sequence->answer);
    free(sequence->tokens);
    free(sequence->scores);
}

void serve_job_let_go(struct serve_job *job)
{
    pthread_mutex_lock(&job->lock);
    const bool is_last = --job->n_users == 0;
    pthread_mutex_unlock(&job->lock);
    if (!is_last)
        return;
    for (size_t i = 0; i < job->n_sequence; i++)
        release_sequence(&job->sequences[i]);
    for (size_t i = 0; i < job->n_prompt; i++)
        moert_free(job->prompts[i].ids);
    if (job->held != NULL)
        atomic_fetch_sub(job->held, job->held_bytes);
    free(job->prompts);
    free(job->sequences);
    free(job->out);
    serve_request_release(&job->request);
    pthread_mutex_destroy(&job->lock);
    free(job);
}

size_t serve_job_bytes(const struct serve_job *job, uint32_t n_context)
{
    const struct serve_request *request = &job->request;
    const size_t scores = request->has_logprobs ? 1 + (size_t)request->n_logprobs : 0;
    size_t n_bytes = sizeof *job + (request->is_stream ? SERVE_QUEUE_BYTES : 0);
    for (size_t i = 0; i < job->n_prompt; i++) {
        const size_t n_prompt = job->prompts[i].n_ids;
        size_t n_text = n_context > n_prompt ? n_context - n_prompt + 1 : 1;
        if (request->has_tokens && request->max_tokens < n_text)
            n_text = request->max_tokens;
        const size_t n_untold = request->is_stream && n_text > UNTOLD_TOKENS ? UNTOLD_TOKENS : n_text;
        const size_t n_listed = n_untold + (job->is_scored ? n_prompt : 0);
        n_bytes += n_prompt * sizeof(uint32_t) +
                   request->n * (SEQUENCE_BYTES + n_text * TOKEN_TEXT_BYTES +
                                 n_listed * (sizeof(struct serve_token) +
                                             scores * (sizeof(struct moert_score) + SCORE_TEXT_BYTES)));
    }
    return n_bytes;
}
