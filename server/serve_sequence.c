/* Texts pass through two buffers that hold back: of characters (moert_text) and of what may begin a stop
 * text (moec_stop_texts). What comes out is told or kept. Scores are those of the model, so logits are
 * copied before rules and draws change them. The first token of a prompt has no score, as nothing comes
 * before it. */
#include "server/serve_sequence.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "server/serve_answer.h"
#include "server/serve_stream.h"

#include <stdlib.h>
#include <string.h>

#define CHAT_TOKENS 1024u /* of an answer in a conversation, as moec chat has it */

/* Of memory here, or of the engine. Returns false. */
static bool fail(struct serve_sequence *sequence, enum moec_status status, const char *message)
{
    return serve_refuse_error(&sequence->job->problem, NULL, status, message);
}

static bool holds(struct serve_sequence *sequence, enum moert_status status, const struct moert_error *err)
{
    return status == MOERT_OK || fail(sequence, (enum moec_status)status, err->message);
}

void serve_sequence_release(struct serve_sequence *sequence)
{
    moert_generator_free(sequence->generator);
    moert_text_free(sequence->text);
    moec_stop_texts_release(&sequence->stops);
    sequence->generator = NULL;
    sequence->text = NULL;
    sequence->state = SERVE_DONE;
}

static struct moert_generation generation_of(const struct serve_compute *compute,
                                             const struct serve_sequence *sequence)
{
    const struct serve_request *request = &sequence->job->request;
    struct moert_generation generation = moert_generation_default(compute->options->engine);
    generation.n_beams = 1;
    generation.is_given = true;
    generation.n_tokens = request->has_tokens      ? request->max_tokens
                          : sequence->job->is_chat ? CHAT_TOKENS
                                                   : MOERT_TOKENS_OF_MODEL;
    if (request->has_penalty)
        generation.repetition_penalty = request->repetition_penalty;
    generation.sampler = moert_sampler_greedy();
    generation.sampler.temperature = (float)request->temperature;
    generation.sampler.top_p = (float)request->top_p;
    generation.sampler.top_k = request->top_k;
    generation.sampler.min_p = (float)request->min_p;
    generation.sampler.state = sequence->seed;
    return generation;
}

void serve_sequence_begin(struct serve_compute *compute, struct serve_sequence *sequence)
{
    struct moert_error err = {0};
    struct moert_session *session = sequence->slot->session;
    const struct moert_generation generation = generation_of(compute, sequence);
    const bool is_decided = sequence->job->is_scored && compute->options->scores_decided;
    sequence->state = SERVE_READING;
    moert_session_set_prompt(session, is_decided ? 0 : sequence->n_prompt);
    if (!holds(sequence, moert_generator_create(session, &generation, &sequence->generator, &err), &err) ||
        !holds(sequence,
               moert_generator_begin(sequence->generator, sequence->prompt, sequence->n_prompt, &err), &err))
        return;
    (void)holds(sequence, moert_text_create(compute->options->engine, &sequence->text, &err), &err);
}

/* ---- scores ---- */

static uint32_t scores_a_token(const struct serve_sequence *sequence)
{
    return 1 + sequence->job->request.n_logprobs;
}

/* Room for n more tokens with their scores. */
static bool reserve(struct serve_sequence *sequence, size_t n)
{
    struct moec_error err = {0};
    const size_t needed = sequence->n_tokens + n;
    if (moec_grow((void **)&sequence->tokens, &sequence->tokens_capacity, needed, sizeof *sequence->tokens,
                  "tokens of an answer", &err) == MOEC_OK &&
        moec_grow((void **)&sequence->scores, &sequence->scores_capacity, needed * scores_a_token(sequence),
                  sizeof *sequence->scores, "scores", &err) == MOEC_OK)
        return true;
    return fail(sequence, err.status, err.message);
}

static struct moert_score *next_scores(struct serve_sequence *sequence)
{
    return sequence->scores + sequence->n_tokens * scores_a_token(sequence);
}

static bool record(struct serve_compute *compute, struct serve_sequence *sequence, uint32_t token,
                   float *logits)
{
    struct moert_error err = {0};
    if (!reserve(sequence, 1) ||
        !holds(sequence,
               moert_logits_score(compute->options->engine, logits, token, sequence->job->request.n_logprobs,
                                  next_scores(sequence), &err),
               &err))
        return false;
    sequence->tokens[sequence->n_tokens++] = (struct serve_token){.token = token, .is_scored = true};
    return true;
}

/* ---- the prompt ---- */

/* A chunk whose tokens, but for the very first, are told with their scores; `last` receives the logits behind
 * it. */
static bool score_chunk(struct serve_compute *compute, struct serve_sequence *sequence, uint32_t n,
                        float *last)
{
    struct moert_error err = {0};
    const bool is_end = sequence->n_read + n == sequence->n_prompt;
    const struct moert_scoring scoring = {.tokens = sequence->prompt + sequence->n_read,
                                          .next = sequence->prompt + sequence->n_read + 1,
                                          .n_tokens = n,
                                          .n_next = is_end ? n - 1 : n,
                                          .n_best = sequence->job->request.n_logprobs,
                                          .rows = compute->rows,
                                          .n_rows = compute->options->n_sessions};
    if (!reserve(sequence, (size_t)n + 1))
        return false;
    if (sequence->n_read == 0)
        sequence->tokens[sequence->n_tokens++] = (struct serve_token){.token = sequence->prompt[0]};
    if (!holds(sequence,
               moert_session_score(sequence->slot->session, &scoring, next_scores(sequence),
                                   is_end ? last : NULL, &err),
               &err))
        return false;
    for (size_t i = 0; i < scoring.n_next; i++)
        sequence->tokens[sequence->n_tokens++] =
            (struct serve_token){.token = scoring.next[i], .is_scored = true};
    atomic_fetch_add(&compute->metrics->scored_tokens, scoring.n_next);
    return true;
}

static void finish(struct serve_compute *compute, struct serve_sequence *sequence, enum serve_finish how);

void serve_sequence_read(struct serve_compute *compute, struct serve_sequence *sequence)
{
    struct moert_error err = {0};
    struct serve_slot *slot = sequence->slot;
    float *spare = compute->rows + (size_t)compute->options->n_sessions * compute->info.model.n_vocab;
    const uint32_t left = sequence->n_prompt - sequence->n_read;
    const uint32_t n =
        left < compute->info.compute.prefill_tokens ? left : compute->info.compute.prefill_tokens;
    const bool is_end = n == left;
    const uint32_t *tokens = sequence->prompt + sequence->n_read;
    if (sequence->job->is_scored) {
        if (!score_chunk(compute, sequence, n, spare))
            return;
    } else if (!holds(sequence, moert_session_step(slot->session, tokens, n, is_end ? spare : NULL, &err),
                      &err)) {
        return;
    }
    memcpy(slot->tokens + slot->n_tokens, tokens, n * sizeof *tokens);
    slot->n_tokens += n;
    sequence->n_read += n;
    if (!is_end)
        return;
    sequence->state = SERVE_DECODING;
    if (moert_generator_left(sequence->generator) > 0)
        serve_sequence_take(compute, sequence, spare, compute->rows);
    else
        finish(compute, sequence, SERVE_LENGTH);
}

/* ---- the text ---- */

/* Tells a stream what follows, if anything does. */
static void tell(struct serve_compute *compute, struct serve_sequence *sequence, const char *piece, size_t n)
{
    if (!sequence->job->request.is_stream ||
        (n == 0 && sequence->n_tokens == 0 && sequence->is_begun && sequence->finish == SERVE_UNFINISHED))
        return;
    char *event = serve_answer_event(compute->options, sequence, piece, n, !sequence->is_begun);
    sequence->is_begun = true;
    serve_stream_put(sequence->job, event);
}

/* Adds a piece, or with is_last what was held back, to the answer; what of it can be told is *out. */
static bool add_text(struct serve_sequence *sequence, const char *piece, size_t n, bool is_last,
                     const char **out, size_t *n_out)
{
    struct moec_error err = {0};
    if (moec_stop_texts_push(&sequence->stops, piece, n, is_last, out, n_out, &err) != MOEC_OK)
        return fail(sequence, err.status, err.message);
    if (sequence->job->request.is_stream || *n_out == 0)
        return true;
    if (moec_grow((void **)&sequence->answer, &sequence->answer_capacity, sequence->n_answer + *n_out, 1,
                  "an answer", &err) != MOEC_OK)
        return fail(sequence, err.status, err.message);
    memcpy(sequence->answer + sequence->n_answer, *out, *n_out);
    sequence->n_answer += *n_out;
    return true;
}

static void finish(struct serve_compute *compute, struct serve_sequence *sequence, enum serve_finish how)
{
    struct moert_error err = {0};
    const char *piece = "", *out = "";
    size_t n = 0, n_out = 0;
    sequence->finish = how;
    if (!sequence->stops.is_found &&
        (!holds(sequence, moert_text_flush(sequence->text, &piece, &n, &err), &err) ||
         !add_text(sequence, piece, n, true, &out, &n_out)))
        return;
    tell(compute, sequence, out, n_out);
    serve_sequence_release(sequence);
}

/* The token is part of the text. */
static void add_token(struct serve_compute *compute, struct serve_sequence *sequence, uint32_t token)
{
    struct moert_error err = {0};
    const char *piece = "", *out = "";
    size_t n = 0, n_out = 0;
    if (!holds(sequence, moert_text_push(sequence->text, token, &piece, &n, &err), &err) ||
        !add_text(sequence, piece, n, false, &out, &n_out))
        return;
    if (sequence->stops.is_found) {
        sequence->finish = SERVE_STOP;
        tell(compute, sequence, out, n_out);
        serve_sequence_release(sequence);
        return;
    }
    tell(compute, sequence, out, n_out);
    sequence->last = token;
    if (moert_generator_left(sequence->generator) == 0)
        finish(compute, sequence, SERVE_LENGTH);
}

static void measure(struct serve_compute *compute, struct serve_sequence *sequence)
{
    const uint64_t now_ns = moec_now_ns();
    if (sequence->n_generated == 0)
        serve_histogram_add(&compute->metrics->first_token, SERVE_LEAST_FIRST,
                            now_ns - sequence->job->created_ns);
    else
        serve_histogram_add(&compute->metrics->next_token, SERVE_LEAST_NEXT, now_ns - sequence->last_ns);
    sequence->last_ns = now_ns;
    sequence->n_generated++;
    atomic_fetch_add(&compute->metrics->generated_tokens, 1);
}

void serve_sequence_take(struct serve_compute *compute, struct serve_sequence *sequence, float *logits,
                         float *scratch)
{
    struct moert_error err = {0};
    enum moert_generated what = MOERT_GENERATED_LENGTH;
    uint32_t token = 0;
    const bool has_scores = sequence->job->request.has_logprobs;
    if (has_scores) /* of the model, before rules and draws */
        memcpy(scratch, logits, compute->info.model.n_vocab * sizeof *logits);
    if (!holds(sequence, moert_generator_choose(sequence->generator, logits, &token, &what, &err), &err))
        return;
    measure(compute, sequence);
    /* Behind a scored prompt the token is told in any case: readers count on it. */
    if (has_scores && (what == MOERT_GENERATED_TOKEN || sequence->job->is_scored) &&
        !record(compute, sequence, token, scratch))
        return;
    if (what == MOERT_GENERATED_TOKEN)
        add_token(compute, sequence, token);
    else
        finish(compute, sequence, what == MOERT_GENERATED_END ? SERVE_STOP : SERVE_LENGTH);
}
