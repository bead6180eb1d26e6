/* Sessions and generators of the public interface.
 *
 * Each session has a forward (scratch) of its own, so that sessions run in different threads, or all share
 * one, so that they can take steps together; model, cache and tokenizer are the engine's. */
#include "formats/base/memory.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/moert_internal.h"
#include "runtime/forward/pass/session.h"
#include "runtime/generate/generate.h"
#include "runtime/generate/token_ranks.h"

#include <inttypes.h>
#include <string.h>

/* What steps of sessions work with: of one session, or of all where one thread has them. */
struct moert_work {
    struct moec_clocked_experts experts;
    struct moec_forward forward;
    struct moec_gpu_backend *backend; /* where the engine has a device */
    struct moec_decider decider;      /* where the engine has a route */
    float *hidden;                    /* activations of sessions that share them, else NULL */
    uint32_t n_users;
};

struct moert_session {
    struct moert_engine *engine; /* borrowed */
    struct moert_work *work;     /* owned together with those that share it */
    struct moec_session *session;
    uint32_t n_before; /* positions when its step began */
};

struct moert_generator {
    struct moec_generator *generator;
    struct moert_engine *engine; /* borrowed */
    uint32_t n_tokens;           /* as asked for */
};

/* ---- sessions ---- */

static void release_work(struct moert_work *work)
{
    if (work->hidden != NULL)
        moec_session_rows_free(&work->forward, work->hidden);
    moec_forward_release(&work->forward);
    moec_gpu_backend_free(work->backend);
    moec_decider_release(&work->decider);
    free(work);
}

static enum moec_status open_decider(struct moert_engine *engine, struct moert_work *work,
                                     struct moec_error *err)
{
    MOEC_TRY(moec_decider_create(&engine->bundle->config, &engine->decisions.route, engine->plan.max_tokens,
                                 &work->decider, err));
    work->decider.record_bytes[0] = engine->decisions.record_bytes[0];
    work->decider.record_bytes[1] = engine->decisions.record_bytes[1];
    work->decider.book = engine->decisions.book;
    work->decider.logical = engine->decisions.logical;
    work->forward.decider = &work->decider;
    return MOEC_OK;
}

static enum moec_status open_work(struct moert_engine *engine, struct moert_work *work,
                                  struct moec_error *err)
{
    moec_clocked_experts_init(&work->experts, moert_engine_experts(engine), &engine->bundle->config,
                              engine->trace.compute_ns);
    MOEC_TRY(moec_forward_init(&work->forward, engine->model, engine->kernels, engine->n_threads,
                               &work->experts.experts, engine->plan.max_tokens, err));
    if (engine->experts.gpu == NULL)
        MOEC_TRY(moec_forward_use_arithmetic(&work->forward, engine->arithmetic.kind, err));
    if (engine->experts.predictor.n_layer > 0)
        MOEC_TRY(moec_forward_use_predictor(&work->forward, &engine->experts.predictor, err));
    if (engine->experts.gpu != NULL) {
        MOEC_TRY(moec_gpu_backend_create(engine->experts.gpu->model, engine->experts.gpu->kernels,
                                         engine->plan.max_tokens, engine->experts.gpu->cooperates,
                                         &work->backend, err));
        if (engine->arithmetic.kind == MOEC_ARITHMETIC_BF16)
            MOEC_TRY(moec_gpu_backend_use_bf16(work->backend, err));
        work->forward.backend = moec_gpu_backend_of(work->backend);
    }
    work->forward.trace = engine->trace.file;
    if (engine->trace.scores)
        MOEC_TRY(moec_forward_keep_logits(&work->forward, err));
    work->forward.sparsity = engine->decisions.sparsity;
    work->forward.lender = engine->experts.lending.cache != NULL ? &engine->experts.lending.lender : NULL;
    if (moec_route_is_on(&engine->decisions.route))
        MOEC_TRY(open_decider(engine, work, err));
    return engine->sessions.one_thread ? moec_session_rows_create(&work->forward, &work->hidden, err)
                                       : MOEC_OK;
}

/* The session's own, or that of the others. */
static enum moec_status take_work(struct moert_session *session, struct moec_error *err)
{
    struct moert_engine *engine = session->engine;
    void *memory = NULL;
    if (engine->sessions.work == NULL) {
        MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moert_work), "a session", err));
        const enum moec_status status = open_work(engine, memory, err);
        if (status != MOEC_OK) {
            release_work(memory);
            return status;
        }
        if (engine->sessions.one_thread)
            engine->sessions.work = memory;
    }
    session->work = engine->sessions.work != NULL ? engine->sessions.work : memory;
    session->work->n_users++;
    return MOEC_OK;
}

static void leave_work(struct moert_session *session)
{
    struct moert_work *work = session->work;
    if (work == NULL || --work->n_users > 0)
        return;
    if (session->engine->sessions.work == work)
        session->engine->sessions.work = NULL;
    release_work(work);
}

static enum moec_status open_session(struct moert_session *session, struct moec_error *err)
{
    MOEC_TRY(take_work(session, err));
    return moec_session_create_with(&session->work->forward, session->engine->sessions.n_context,
                                    session->work->hidden, &session->session, err);
}

enum moert_status moert_session_create(struct moert_engine *engine, struct moert_session **out,
                                       struct moert_error *err)
{
    struct moec_error ours = {0};
    if (atomic_fetch_add(&engine->sessions.n_open, 1) >= engine->sessions.n_sessions) {
        atomic_fetch_sub(&engine->sessions.n_open, 1);
        return moert_to_public(moec_fail(&ours, MOEC_ERR_LIMIT,
                                         "%" PRIu32 " sessions exist already, and the engine was opened "
                                         "for this number of sessions (n_sessions)",
                                         engine->sessions.n_sessions),
                               &ours, err);
    }
    void *memory = NULL;
    enum moec_status status = moec_alloc(&memory, 1, sizeof(struct moert_session), "a session", &ours);
    if (status != MOEC_OK) {
        atomic_fetch_sub(&engine->sessions.n_open, 1);
        return moert_to_public(status, &ours, err);
    }
    struct moert_session *session = memory;
    session->engine = engine;
    status = open_session(session, &ours);
    if (status != MOEC_OK) {
        moert_session_free(session);
        return moert_to_public(status, &ours, err);
    }
    *out = session;
    return MOERT_OK;
}

void moert_session_free(struct moert_session *session)
{
    if (session == NULL)
        return;
    moec_session_free(session->session);
    leave_work(session);
    atomic_fetch_sub(&session->engine->sessions.n_open, 1);
    free(session);
}

static void begin_step(void *context)
{
    struct moert_session *session = context;
    session->n_before = moec_session_length(session->session);
    moec_clocked_experts_begin(&session->work->experts);
}

static void end_step(void *context)
{
    struct moert_session *session = context;
    struct moert_engine *engine = session->engine;
    const uint32_t n_tokens = moec_session_length(session->session) - session->n_before;
    moec_clocked_experts_end(&session->work->experts);
    moec_trace_flush(engine->trace.file);
    moec_memory_watch_end(&engine->experts.watch, &engine->experts.lending, n_tokens);
}

/* Before a prompt. */
static void begin_prompt(struct moert_engine *engine)
{
    moec_memory_watch_begin(&engine->experts.watch, &engine->experts.lending);
}

enum moert_status moert_session_encode(struct moert_session *session, const uint32_t *tokens, size_t n_tokens,
                                       struct moert_error *err)
{
    struct moec_error ours = {0};
    if (n_tokens > MOEC_MAX_POSITIONS)
        return moert_to_public(moec_fail(&ours, MOEC_ERR_LIMIT, "the source has %zu tokens, the limit is %u",
                                         n_tokens, MOEC_MAX_POSITIONS),
                               &ours, err);
    begin_prompt(session->engine);
    begin_step(session);
    const enum moec_status status = moec_session_encode(session->session, tokens, (uint32_t)n_tokens, &ours);
    end_step(session);
    return moert_to_public(status, &ours, err);
}

static enum moec_status step(struct moert_session *session, const uint32_t *tokens, uint32_t n_tokens,
                             const uint32_t *at, uint32_t n_at, float *logits, struct moec_error *err)
{
    if (n_tokens > 1)
        begin_prompt(session->engine);
    begin_step(session);
    const enum moec_status status =
        moec_session_step(session->session, tokens, n_tokens, at, n_at, logits, err);
    end_step(session);
    return status;
}

enum moert_status moert_session_step_at(struct moert_session *session, const uint32_t *tokens,
                                        size_t n_tokens, const uint32_t *at, size_t n_at, float *logits,
                                        struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_status status = MOEC_OK;
    if (n_tokens > MOEC_MAX_POSITIONS || n_at > n_tokens)
        status = moec_fail(
            &ours, MOEC_ERR_LIMIT,
            "a step has %zu tokens and asks for %zu rows of logits, expected at most %u tokens and one row "
            "for each token",
            n_tokens, n_at, MOEC_MAX_POSITIONS);
    else
        status = step(session, tokens, (uint32_t)n_tokens, at, (uint32_t)n_at, logits, &ours);
    return moert_to_public(status, &ours, err);
}

enum moert_status moert_session_step(struct moert_session *session, const uint32_t *tokens, size_t n_tokens,
                                     float *logits, struct moert_error *err)
{
    uint32_t last = n_tokens > 0 ? (uint32_t)(n_tokens - 1) : 0;
    size_t n_at = logits != NULL && n_tokens > 0 ? 1 : 0;
    return moert_session_step_at(session, tokens, n_tokens, &last, n_at, logits, err);
}

enum moert_status moert_step_each(struct moert_session *const *sessions, const uint32_t *tokens, size_t n,
                                  float *logits, struct moert_error *err)
{
    struct moec_error ours = {0};
    struct moec_session *inner[MOEC_MAX_SESSIONS];
    if (n == 0)
        return MOERT_OK;
    if (n > MOEC_MAX_SESSIONS || sessions[0]->work->hidden == NULL)
        return moert_to_public(
            moec_fail(
                &ours, MOEC_ERR_USAGE,
                "%zu sessions cannot take a step together: a common step needs an engine opened for one "
                "thread, and at most %u sessions",
                n, MOEC_MAX_SESSIONS),
            &ours, err);
    for (size_t i = 0; i < n; i++)
        inner[i] = sessions[i]->session;
    begin_step(sessions[0]);
    const enum moec_status status = moec_session_step_each(inner, tokens, (uint32_t)n, logits, &ours);
    end_step(sessions[0]);
    return moert_to_public(status, &ours, err);
}

/* Logits on their way through a step whose tokens are scored. */
struct scored_step {
    const struct moert_session *session;
    const struct moert_scoring *scoring;
    struct moert_score *scores;
    float *last;
};

static void score_rows(void *context, uint32_t first, uint32_t n, float *logits)
{
    const struct scored_step *step = context;
    const struct moert_scoring *scoring = step->scoring;
    const uint32_t n_vocab = step->session->engine->bundle->config.n_vocab;
    for (uint32_t i = first; i < first + n; i++, logits += n_vocab) {
        if (i + (size_t)1 == scoring->n_tokens && step->last != NULL)
            memcpy(step->last, logits, n_vocab * sizeof *logits);
        if (i < scoring->n_next)
            moec_token_ranks(step->session->engine->kernels, logits, n_vocab, scoring->next[i],
                             scoring->n_best, step->scores + (size_t)i * (1 + scoring->n_best));
    }
}

static enum moec_status check_scoring(const struct moert_engine *engine, const uint32_t *next, size_t n_next,
                                      uint32_t n_best, struct moec_error *err)
{
    const uint32_t n_vocab = engine->bundle->config.n_vocab;
    if (n_best > MOERT_SCORE_BEST || n_best > n_vocab)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the %" PRIu32 " likeliest tokens are asked for, expected at most %u", n_best,
                         n_vocab < MOERT_SCORE_BEST ? n_vocab : MOERT_SCORE_BEST);
    for (size_t i = 0; i < n_next; i++)
        if (next[i] >= n_vocab)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "token id %" PRIu32 " is outside the vocabulary of %" PRIu32 " tokens", next[i],
                             n_vocab);
    return MOEC_OK;
}

enum moert_status moert_logits_score(const struct moert_engine *engine, float *logits, uint32_t token,
                                     uint32_t n_best, struct moert_score *scores, struct moert_error *err)
{
    struct moec_error ours = {0};
    const enum moec_status status = check_scoring(engine, &token, 1, n_best, &ours);
    if (status == MOEC_OK)
        moec_token_ranks(engine->kernels, logits, engine->bundle->config.n_vocab, token, n_best, scores);
    return moert_to_public(status, &ours, err);
}

static enum moec_status score(struct moert_session *session, const struct moert_scoring *scoring,
                              struct moert_score *scores, float *last, struct moec_error *err)
{
    struct scored_step context = {session, scoring, scores, last};
    const struct moec_logits_reader reader = {
        .take = score_rows, .context = &context, .rows = scoring->rows, .n_rows = scoring->n_rows};
    if (scoring->n_tokens > MOEC_MAX_POSITIONS || scoring->n_next > scoring->n_tokens || reader.n_rows == 0)
        return moec_fail(
            err, MOEC_ERR_LIMIT,
            "scoring got %zu tokens, %zu next tokens and %" PRIu32
            " rows of logits, expected at most %u tokens, no more next tokens than tokens, and at least one "
            "row",
            scoring->n_tokens, scoring->n_next, scoring->n_rows, MOEC_MAX_POSITIONS);
    MOEC_TRY(check_scoring(session->engine, scoring->next, scoring->n_next, scoring->n_best, err));
    begin_prompt(session->engine);
    begin_step(session);
    const enum moec_status status = moec_session_step_reading(session->session, scoring->tokens,
                                                              (uint32_t)scoring->n_tokens, &reader, err);
    end_step(session);
    return status;
}

enum moert_status moert_session_score(struct moert_session *session, const struct moert_scoring *scoring,
                                      struct moert_score *scores, float *last, struct moert_error *err)
{
    struct moec_error ours = {0};
    return moert_to_public(score(session, scoring, scores, last, &ours), &ours, err);
}

uint32_t moert_session_keep(struct moert_session *session, uint32_t n)
{
    const uint32_t kept = moec_session_keepable(session->session, n);
    moec_session_truncate(session->session, kept);
    return kept;
}

uint32_t moert_session_copy(struct moert_session *to, const struct moert_session *from, uint32_t n)
{
    const uint32_t kept = moec_session_keepable(from->session, n);
    moec_session_truncate(to->session, 0);
    if (kept == 0)
        return 0;
    moec_session_copy_first(to->session, from->session, kept);
    return kept;
}

void moert_session_set_prompt(struct moert_session *session, uint32_t n)
{
    moec_session_set_prompt(session->session, n);
}

struct moert_decided moert_session_decided(const struct moert_session *session)
{
    const struct moec_route_counts counts = moec_session_route_counts(session->session);
    const uint32_t n_layer = moec_config_moe_count(&session->engine->bundle->config);
    return (struct moert_decided){.n_taken = counts.n_taken,
                                  .n_missed = counts.n_missed,
                                  .n_low = counts.n_low,
                                  .n_low_missed = counts.n_low_missed,
                                  .n_skipped = counts.n_skipped,
                                  .missed_bytes = moec_route_token_bytes(&counts, n_layer)};
}

uint32_t moert_session_length(const struct moert_session *session)
{
    return moec_session_length(session->session);
}

void moert_session_truncate(struct moert_session *session, uint32_t n)
{
    if (n < moec_session_length(session->session))
        moec_session_truncate(session->session, n);
}

enum moert_status moert_session_fork(const struct moert_session *session, struct moert_session **out,
                                     struct moert_error *err)
{
    enum moert_status status = moert_session_create(session->engine, out, err);
    if (status == MOERT_OK)
        moec_session_copy((*out)->session, session->session);
    return status;
}

/* ---- generation ---- */

struct moert_generation moert_generation_default(const struct moert_engine *engine)
{
    struct moert_generation generation = moec_generation_to_public(&engine->bundle->generation);
    if (generation.n_beams > engine->sessions.n_beams)
        generation.n_beams = engine->sessions.n_beams;
    return generation;
}

static enum moec_status create_generator(struct moert_session *session, const struct moert_generation *asked,
                                         struct moert_generator *generator, struct moec_error *err)
{
    struct moert_engine *engine = session->engine;
    struct moec_generation generation = engine->bundle->generation;
    moec_generation_take_public(&generation, asked);
    if (generation.n_beam > engine->sessions.n_beams)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%" PRIu32 " beams are asked for, but the engine was opened for %" PRIu32
                         ": open the engine with more beams (n_beams)",
                         generation.n_beam, engine->sessions.n_beams);
    if (asked->draft != MOERT_DRAFT_NONE && asked->draft != MOERT_DRAFT_LOOKUP)
        return moec_fail(err, MOEC_ERR_USAGE, "the draft method %d is unknown", (int)asked->draft);
    if (asked->draft != MOERT_DRAFT_NONE && !engine->sessions.drafts)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "drafts are asked for, but the engine was opened without room for drafts: open "
                         "the engine with drafts");
    generator->engine = engine;
    generator->n_tokens = asked->n_tokens;
    const struct moec_generator_options options = {
        .generation = &generation,
        .ignore_eos = asked->ignore_end,
        .drafts = asked->draft == MOERT_DRAFT_LOOKUP,
        .is_given = asked->is_given,
        .sampler = asked->sampler,
        .hooks = {.begin = begin_step, .end = end_step, .context = session}};
    return moec_generator_create(session->session, &options, &generator->generator, err);
}

enum moert_status moert_generator_create(struct moert_session *session,
                                         const struct moert_generation *generation,
                                         struct moert_generator **out, struct moert_error *err)
{
    struct moec_error ours = {0};
    void *memory = NULL;
    enum moec_status status = moec_alloc(&memory, 1, sizeof(struct moert_generator), "a generator", &ours);
    if (status == MOEC_OK)
        status = create_generator(session, generation, memory, &ours);
    if (status == MOEC_OK)
        *out = memory;
    else
        free(memory);
    return moert_to_public(status, &ours, err);
}

void moert_generator_free(struct moert_generator *generator)
{
    if (generator == NULL)
        return;
    moec_generator_free(generator->generator);
    free(generator);
}

static enum moert_status start(struct moert_generator *generator, const uint32_t *tokens, size_t n_tokens,
                               uint32_t *n_kept, struct moert_error *err)
{
    struct moec_error ours = {0};
    if (n_tokens > MOEC_MAX_POSITIONS)
        return moert_to_public(moec_fail(&ours, MOEC_ERR_LIMIT, "the prompt has %zu tokens, the limit is %u",
                                         n_tokens, MOEC_MAX_POSITIONS),
                               &ours, err);
    const uint32_t n = (uint32_t)n_tokens;
    const uint32_t most = moert_engine_text_room(generator->engine, generator->n_tokens, n);
    begin_prompt(generator->engine);
    const enum moec_status status =
        n_kept != NULL ? moec_generator_continue(generator->generator, tokens, n, most, n_kept, &ours)
                       : moec_generator_start(generator->generator, tokens, n, most, &ours);
    return moert_to_public(status, &ours, err);
}

enum moert_status moert_generator_start(struct moert_generator *generator, const uint32_t *tokens,
                                        size_t n_tokens, struct moert_error *err)
{
    return start(generator, tokens, n_tokens, NULL, err);
}

enum moert_status moert_generator_continue(struct moert_generator *generator, const uint32_t *tokens,
                                           size_t n_tokens, size_t *n_kept, struct moert_error *err)
{
    uint32_t kept = 0;
    const enum moert_status status = start(generator, tokens, n_tokens, &kept, err);
    *n_kept = kept;
    return status;
}

enum moert_status moert_generator_next(struct moert_generator *generator, uint32_t *token,
                                       enum moert_generated *what, struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_generated found = MOEC_GENERATED_TOKEN;
    const enum moec_status status = moec_generator_next(generator->generator, token, &found, &ours);
    *what = (enum moert_generated)found;
    return moert_to_public(status, &ours, err);
}

enum moert_status moert_generator_begin(struct moert_generator *generator, const uint32_t *tokens,
                                        size_t n_tokens, struct moert_error *err)
{
    struct moec_error ours = {0};
    const uint32_t n = n_tokens < UINT32_MAX ? (uint32_t)n_tokens : UINT32_MAX;
    const uint32_t most = moert_engine_text_room(generator->engine, generator->n_tokens, n);
    return moert_to_public(moec_generator_begin(generator->generator, tokens, n, most, &ours), &ours, err);
}

enum moert_status moert_generator_choose(struct moert_generator *generator, float *logits, uint32_t *token,
                                         enum moert_generated *what, struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_generated found = MOEC_GENERATED_TOKEN;
    const enum moec_status status = moec_generator_choose(generator->generator, logits, token, &found, &ours);
    *what = (enum moert_generated)found;
    return moert_to_public(status, &ours, err);
}

uint32_t moert_generator_left(const struct moert_generator *generator)
{
    return moec_generator_left(generator->generator);
}

uint64_t moert_generator_steps(const struct moert_generator *generator)
{
    return moec_generator_steps(generator->generator);
}

uint64_t moert_generator_drafted(const struct moert_generator *generator)
{
    return moec_generator_drafted(generator->generator);
}

uint64_t moert_generator_accepted(const struct moert_generator *generator)
{
    return moec_generator_accepted(generator->generator);
}
