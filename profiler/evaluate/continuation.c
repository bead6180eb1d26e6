/* A candidate is tokenised with its prompt and scored from the first token where it leaves the prompt's own
 * tokens. What all candidates begin with is computed once, and the session is cut back to it for each. A cut
 * takes the same tokens from all of them, or their likelihoods would not compare. Stop texts are searched
 * back by their length, as one may span two pieces. */
#include "profiler/evaluate/continuation.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/token_score.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/generate/generate.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Largest batch of a prefill, and positions whose logits are held at once. */
#define BATCH_TOKENS 256u
#define TILE_TOKENS  32u

/* Tokens of one text: the tokenizer's start and the text's own. */
struct tokens {
    uint32_t *ids; /* owned */
    size_t n;
};

struct moec_continuation {
    struct {
        const struct moec_tokenizer_model *start; /* borrowed */
        struct moec_tokenizer *tokenizer;
        uint64_t most_bytes; /* that tokenising a text may take */
    } text;
    struct moec_forward forward;
    struct moec_decider decider; /* of `forward`, where there is a route */
    struct moec_session *session;
    struct moec_generator *generator;
    uint32_t n_context;
    float *logits; /* (TILE_TOKENS, n_vocab) */
    struct {
        char *joined; /* prompt and candidate */
        size_t joined_capacity;
        char *answer;
        size_t answer_bytes, answer_capacity;
    } room;
};

static uint32_t context_of(const struct moec_config *config, const struct moec_continuation_options *options)
{
    if (options->n_context > 0)
        return options->n_context;
    return config->n_position < MOEC_CONTINUATION_CONTEXT ? config->n_position : MOEC_CONTINUATION_CONTEXT;
}

uint64_t moec_continuation_bytes(const struct moec_config *config,
                                 const struct moec_continuation_options *options)
{
    const uint32_t n_context = context_of(config, options);
    const uint32_t n_batch = n_context < BATCH_TOKENS ? n_context : BATCH_TOKENS;
    const uint64_t n_beam =
        options->generation != NULL && options->generation->n_beam > 1 ? options->generation->n_beam : 1;
    const uint64_t route_bytes =
        options->route == NULL ? 0
                               : moec_decider_bytes(config, options->route, n_batch) +
                                     n_beam * moec_session_route_bytes(config, options->route, n_context);
    return moec_forward_scratch_bytes(config, n_batch, options->n_threads) +
           moec_forward_arithmetic_bytes(config, n_batch, options->arithmetic) + route_bytes +
           moec_session_bytes(config, n_context, n_batch) +
           (n_beam - 1) * moec_session_bytes(config, n_context, 0) +
           (TILE_TOKENS + 2 * n_beam) * (uint64_t)config->n_vocab * sizeof(float);
}

enum moec_status moec_continuation_create(const struct moec_model *model, struct moec_experts *experts,
                                          const struct moec_tokenizer_model *tokenizer,
                                          const struct moec_continuation_options *options,
                                          struct moec_continuation **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &model->config;
    struct moec_continuation *made = NULL;
    uint32_t n_context = options->n_context;
    if (n_context > config->n_position)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a context of %" PRIu32 " tokens is too long: the model has only %" PRIu32
                         " positions",
                         n_context, config->n_position);
    n_context = context_of(config, options);
    MOEC_TRY(moec_tokenizer_model_fits(tokenizer, config->n_vocab, "the tokenizer", err));
    MOEC_TRY(moec_alloc((void **)&made, 1, sizeof *made, "a continuation", err));
    made->text.start = tokenizer;
    made->n_context = n_context;
    made->text.most_bytes = options->text_bytes > 0 ? options->text_bytes : UINT64_MAX;
    const uint32_t n_batch = n_context < BATCH_TOKENS ? n_context : BATCH_TOKENS;
    MOEC_TRY_OUT(moec_tokenizer_create(tokenizer, &made->text.tokenizer, err));
    MOEC_TRY_OUT(moec_forward_init(&made->forward, model, options->kernels, options->n_threads, experts,
                                   n_batch, err));
    MOEC_TRY_OUT(moec_forward_use_arithmetic(&made->forward, options->arithmetic, err));
    if (options->route != NULL) {
        MOEC_TRY_OUT(moec_decider_create(config, options->route, n_batch, &made->decider, err));
        memcpy(made->decider.record_bytes, options->record_bytes, sizeof made->decider.record_bytes);
        made->forward.decider = &made->decider;
    }
    MOEC_TRY_OUT(moec_session_create(&made->forward, n_context, &made->session, err));
    const struct moec_generator_options generator = {.generation = options->generation,
                                                     .sampler = moert_sampler_greedy()};
    MOEC_TRY_OUT(moec_generator_create(made->session, &generator, &made->generator, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&made->logits, TILE_TOKENS, config->n_vocab * sizeof(float),
                                    "logits", err));
    *out = made;
    made = NULL;
out:
    moec_continuation_free(made);
    return status;
}

void moec_continuation_free(struct moec_continuation *continuation)
{
    if (continuation == NULL)
        return;
    moec_generator_free(continuation->generator);
    moec_session_free(continuation->session);
    moec_decider_release(&continuation->decider);
    moec_forward_release(&continuation->forward);
    moec_tokenizer_free(continuation->text.tokenizer);
    free(continuation->logits);
    free(continuation->room.joined);
    free(continuation->room.answer);
    free(continuation);
}

struct moec_route_counts moec_continuation_route_counts(const struct moec_continuation *continuation)
{
    return moec_generator_route_counts(continuation->generator);
}

static bool has_encoder(const struct moec_continuation *c)
{
    return moec_config_is_encoder_decoder(&c->forward.model->config);
}

/* What stands around the tokens of a text. */
struct frame {
    const uint32_t *start, *end;
    size_t n_start, n_end;
};

static enum moec_status join(const struct frame *frame, const uint32_t *ids, size_t n, struct tokens *tokens,
                             struct moec_error *err)
{
    const size_t n_start = frame->n_start, n_end = frame->n_end;
    tokens->n = n_start + n + n_end;
    MOEC_TRY(moec_alloc((void **)&tokens->ids, tokens->n, sizeof *ids, "tokens of a prompt", err));
    if (n_start > 0)
        memcpy(tokens->ids, frame->start, n_start * sizeof *ids);
    if (n > 0)
        memcpy(tokens->ids + n_start, ids, n * sizeof *ids);
    if (n_end > 0)
        memcpy(tokens->ids + n_start + n, frame->end, n_end * sizeof *ids);
    return MOEC_OK;
}

static enum moec_status encode(const struct moec_continuation *c, const char *text, size_t n_bytes,
                               uint32_t **ids, size_t *n, struct moec_error *err)
{
    uint64_t left_bytes = c->text.most_bytes;
    struct moec_error own = {0};
    const enum moec_status status = moec_tokenizer_encode_within(
        c->text.tokenizer, (struct moec_text){text, n_bytes}, false, &left_bytes, ids, n, &own);
    if (status == MOEC_ERR_BUDGET)
        return moec_fail(
            err, status,
            "tokenising %.1f MiB of text takes more than the %.1f MiB of work memory that are left; raise "
            "--work-memory or give shorter rows",
            (double)n_bytes / (1 << 20), (double)c->text.most_bytes / (1 << 20));
    return status == MOEC_OK ? MOEC_OK : moec_fail(err, status, "%s", own.message);
}

/* A prompt that is continued has the tokenizer's start, a source its end too. */
static enum moec_status tokenise(const struct moec_continuation *c, const char *text, size_t n_bytes,
                                 struct tokens *tokens, struct moec_error *err)
{
    const struct frame frame = {c->text.start->prefix, c->text.start->suffix, c->text.start->n_prefix,
                                has_encoder(c) ? c->text.start->n_suffix : 0};
    uint32_t *ids = NULL;
    size_t n = 0;
    MOEC_TRY(encode(c, text, n_bytes, &ids, &n, err));
    const enum moec_status status = join(&frame, ids, n, tokens, err);
    free(ids);
    return status;
}

/* Takes `n` tokens away: behind the start of a prompt, before the end of a source. */
static void cut(const struct moec_continuation *c, struct tokens *tokens, size_t n)
{
    const size_t n_start = has_encoder(c) ? tokens->n - n - c->text.start->n_suffix : c->text.start->n_prefix;
    memmove(tokens->ids + n_start, tokens->ids + n_start + n,
            (tokens->n - n_start - n) * sizeof *tokens->ids);
    tokens->n -= n;
}

/* ---- generation ---- */

/* Where the first stop text begins within text[n_bytes], looking from `from` on; n_bytes when none does. */
static size_t find_stop(const char *text, size_t n_bytes, size_t from,
                        const char stops[MOEC_TASK_MAX_STOPS][MOEC_TASK_TEXT_BYTES])
{
    size_t first = n_bytes;
    for (size_t i = 0; i < MOEC_TASK_MAX_STOPS && from < n_bytes; i++) {
        size_t n = strlen(stops[i]);
        const char *found = n > 0 ? memmem(text + from, n_bytes - from, stops[i], n) : NULL;
        if (found != NULL && (size_t)(found - text) < first)
            first = (size_t)(found - text);
    }
    return first;
}

/* Appends a piece of the answer; `*is_stopped` when a stop text is whole, which is then taken off. */
static enum moec_status add_piece(struct moec_continuation *c, const char *piece, size_t n,
                                  const char stops[MOEC_TASK_MAX_STOPS][MOEC_TASK_TEXT_BYTES],
                                  bool *is_stopped, struct moec_error *err)
{
    MOEC_TRY(moec_grow((void **)&c->room.answer, &c->room.answer_capacity, c->room.answer_bytes + n + 1, 1,
                       "an answer", err));
    /* A stop text may have begun in what stands there already. */
    size_t from =
        c->room.answer_bytes < MOEC_TASK_TEXT_BYTES ? 0 : c->room.answer_bytes - MOEC_TASK_TEXT_BYTES;
    if (n > 0)
        memcpy(c->room.answer + c->room.answer_bytes, piece, n);
    c->room.answer_bytes += n;
    size_t end = find_stop(c->room.answer, c->room.answer_bytes, from, stops);
    *is_stopped = end < c->room.answer_bytes;
    c->room.answer_bytes = end;
    c->room.answer[end] = '\0';
    return MOEC_OK;
}

/* What the generator gives, as text. */
static enum moec_status decode(struct moec_continuation *c,
                               const char stops[MOEC_TASK_MAX_STOPS][MOEC_TASK_TEXT_BYTES],
                               struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_detokenizer text;
    const char *piece = NULL;
    size_t n_bytes = 0;
    bool is_stopped = false;
    moec_detokenizer_init(&text, c->text.tokenizer, true);
    while (!is_stopped) {
        uint32_t token = 0;
        enum moec_generated what = MOEC_GENERATED_TOKEN;
        MOEC_TRY_OUT(moec_generator_next(c->generator, &token, &what, err));
        if (what != MOEC_GENERATED_TOKEN)
            break;
        MOEC_TRY_OUT(moec_detokenizer_push(&text, token, &piece, &n_bytes, err));
        MOEC_TRY_OUT(add_piece(c, piece, n_bytes, stops, &is_stopped, err));
    }
    if (!is_stopped) {
        MOEC_TRY_OUT(moec_detokenizer_finish(&text, &piece, &n_bytes, err));
        MOEC_TRY_OUT(add_piece(c, piece, n_bytes, stops, &is_stopped, err));
    }
out:
    moec_detokenizer_release(&text);
    return status;
}

enum moec_status moec_continuation_generate(struct moec_continuation *c, const struct moec_prompt *prompt,
                                            const char **text, size_t *n_bytes,
                                            struct moec_continuation_cost *cost, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct tokens tokens = {0};
    const uint32_t n_tokens = prompt->n_tokens;
    *cost = (struct moec_continuation_cost){0};
    /* The last token generated needs no position, and a source stands beside its target. */
    const uint32_t n_beside = has_encoder(c) ? 0 : n_tokens - 1;
    const size_t n_around = c->text.start->n_prefix + (has_encoder(c) ? c->text.start->n_suffix : 0);
    if (n_tokens == 0 || n_tokens > c->n_context - 1 || c->n_context - n_beside <= n_around)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "answers of %" PRIu32 " tokens leave no room for a prompt in the context of %" PRIu32
                         " tokens; raise --ctx or ask for fewer tokens",
                         n_tokens, c->n_context);
    const size_t room = c->n_context - n_beside;
    MOEC_TRY_OUT(tokenise(c, prompt->text, prompt->n_bytes, &tokens, err));
    if (tokens.n == 0) {
        status = moec_fail(err, MOEC_ERR_USAGE,
                           "the prompt is empty, and this model has no start token: give a prompt with text");
        goto out;
    }
    if (tokens.n > room) {
        cost->n_cut = (uint32_t)(tokens.n - room);
        cut(c, &tokens, tokens.n - room);
    }
    MOEC_TRY_OUT(moec_generator_start(c->generator, tokens.ids, (uint32_t)tokens.n, n_tokens, err));
    c->room.answer_bytes = 0;
    MOEC_TRY_OUT(decode(c, prompt->stops, err));
    cost->n_tokens = moec_generator_tokens_run(c->generator);
    *text = c->room.answer != NULL ? c->room.answer : "";
    *n_bytes = c->room.answer_bytes;
out:
    free(tokens.ids);
    return status;
}

/* ---- likelihood ---- */

/* One candidate as tokens. */
struct scored {
    struct tokens tokens; /* of prompt and candidate */
    size_t first;         /* token that is scored first, >= 1 */
};

static enum moec_status tokenise_candidate(struct moec_continuation *c, const struct tokens *alone,
                                           const struct moec_candidate *candidate, struct scored *scored,
                                           struct moec_error *err)
{
    const size_t prompt_bytes = candidate->prompt_bytes;
    if (candidate->n_bytes == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a choice is empty, so it has no likelihood: give every choice some text");
    MOEC_TRY(moec_grow((void **)&c->room.joined, &c->room.joined_capacity, prompt_bytes + candidate->n_bytes,
                       1, "a prompt and its choice", err));
    if (prompt_bytes > 0)
        memcpy(c->room.joined, candidate->prompt, prompt_bytes);
    memcpy(c->room.joined + prompt_bytes, candidate->bytes, candidate->n_bytes);
    MOEC_TRY(tokenise(c, c->room.joined, prompt_bytes + candidate->n_bytes, &scored->tokens, err));
    const size_t n = scored->tokens.n;
    size_t same = 0;
    while (same < alone->n && same + 1 < n && scored->tokens.ids[same] == alone->ids[same])
        same++;
    if (same == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a choice has no token before it, so its first token has no likelihood; "
                         "give the task a longer prompt");
    scored->first = same;
    return MOEC_OK;
}

/* Makes the longest candidate fit; all lose the same tokens of the prompt. */
static enum moec_status fit(const struct moec_continuation *c, struct scored *scored, size_t n,
                            struct moec_continuation_cost *cost, struct moec_error *err)
{
    size_t longest = 0, shared = SIZE_MAX;
    const size_t n_start = c->text.start->n_prefix;
    for (size_t i = 0; i < n; i++) {
        longest = scored[i].tokens.n > longest ? scored[i].tokens.n : longest;
        shared = scored[i].first < shared ? scored[i].first : shared;
    }
    if (longest <= c->n_context)
        return MOEC_OK;
    const size_t surplus = longest - c->n_context;
    if (shared < n_start || surplus >= shared - n_start)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a prompt and its choice have %zu tokens; even without the prompt, the choice "
                         "does not fit into the context of %" PRIu32 " tokens: raise --ctx or shorten the "
                         "choice",
                         longest, c->n_context);
    for (size_t i = 0; i < n; i++) {
        cut(c, &scored[i].tokens, surplus);
        scored[i].first -= surplus;
    }
    cost->n_cut = (uint32_t)surplus;
    return MOEC_OK;
}

/* Steps tokens base.. of the candidate and sums what tokens first.. cost. */
static enum moec_status score(struct moec_continuation *c, const struct scored *scored, size_t base,
                              struct moec_candidate *candidate, struct moec_error *err)
{
    const uint32_t n_vocab = c->forward.model->config.n_vocab;
    const uint32_t *ids = scored->tokens.ids;
    uint32_t wanted[TILE_TOKENS];
    double nll = 0;
    for (uint32_t i = 0; i < TILE_TOKENS; i++)
        wanted[i] = i;
    moec_session_truncate(c->session, (uint32_t)base);
    moec_session_set_prompt(c->session, has_encoder(c) ? 0 : (uint32_t)scored->first);
    /* Everything up to the token before the first scored one, then tiles with logits. */
    if (scored->first - 1 > base)
        MOEC_TRY(moec_session_step(c->session, ids + base, (uint32_t)(scored->first - 1 - base), NULL, 0,
                                   NULL, err));
    for (size_t at = scored->first - 1; at + 1 < scored->tokens.n;) {
        const size_t left = scored->tokens.n - 1 - at;
        const uint32_t n = left < TILE_TOKENS ? (uint32_t)left : TILE_TOKENS;
        MOEC_TRY(moec_session_step(c->session, ids + at, n, wanted, n, c->logits, err));
        for (uint32_t i = 0; i < n; i++)
            nll +=
                moec_token_nll(c->forward.kernels, c->logits + (size_t)i * n_vocab, n_vocab, ids[at + i + 1]);
        at += n;
    }
    if (!isfinite(nll))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the model gives a choice a likelihood that is not finite: the model's weights are damaged or "
            "out of range");
    candidate->log_likelihood = -nll;
    candidate->n_tokens = (uint32_t)(scored->tokens.n - scored->first);
    return MOEC_OK;
}

static enum moec_status score_all(struct moec_continuation *c, const struct scored *scored,
                                  struct moec_candidate *candidates, size_t n,
                                  struct moec_continuation_cost *cost, struct moec_error *err)
{
    size_t base = SIZE_MAX; /* what all begin with */
    for (size_t i = 0; i < n; i++)
        base = scored[i].first - 1 < base ? scored[i].first - 1 : base;
    for (size_t i = 1; i < n; i++) {
        size_t same = 0;
        while (same < base && scored[i].tokens.ids[same] == scored->tokens.ids[same])
            same++;
        base = same;
    }
    moec_session_truncate(c->session, 0);
    moec_session_set_prompt(c->session, (uint32_t)base);
    if (base > 0)
        MOEC_TRY(moec_session_step(c->session, scored->tokens.ids, (uint32_t)base, NULL, 0, NULL, err));
    cost->n_tokens = base;
    for (size_t i = 0; i < n; i++) {
        MOEC_TRY(score(c, &scored[i], base, &candidates[i], err));
        cost->n_tokens += scored[i].tokens.n - 1 - base;
    }
    return MOEC_OK;
}

/* One candidate as the target of a source that the session has read. */
static enum moec_status score_target(struct moec_continuation *c, struct moec_candidate *candidate,
                                     struct moec_continuation_cost *cost, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint32_t *ids = NULL;
    size_t n = 0;
    struct scored scored = {.first = 1};
    if (candidate->n_bytes == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a choice is empty, so it has no likelihood: give every choice some text");
    MOEC_TRY_OUT(encode(c, candidate->bytes, candidate->n_bytes, &ids, &n, err));
    const struct frame frame = {&c->forward.model->config.ids.decoder_start, c->text.start->suffix, 1,
                                c->text.start->n_suffix};
    MOEC_TRY_OUT(join(&frame, ids, n, &scored.tokens, err));
    if (scored.tokens.n < 2 || scored.tokens.n - 1 > c->n_context) {
        status = moec_fail(err, MOEC_ERR_LIMIT,
                           "a choice of %zu tokens does not fit into the context of %" PRIu32
                           " tokens: raise --ctx or shorten the choice",
                           scored.tokens.n, c->n_context);
        goto out;
    }
    MOEC_TRY_OUT(score(c, &scored, 0, candidate, err));
    cost->n_tokens += scored.tokens.n - 1;
out:
    free(ids);
    free(scored.tokens.ids);
    return status;
}

/* Each candidate is a target of its own behind one source. */
static enum moec_status score_targets(struct moec_continuation *c, struct moec_candidate *candidates,
                                      size_t n_candidate, struct moec_continuation_cost *cost,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct tokens source = {0};
    if (c->n_context <= c->text.start->n_prefix + c->text.start->n_suffix)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a context of %" PRIu32 " tokens has no room for the source text that the encoder "
                         "reads; raise --ctx",
                         c->n_context);
    for (size_t i = 1; i < n_candidate; i++)
        if (candidates[i].prompt_bytes != candidates->prompt_bytes ||
            memcmp(candidates[i].prompt, candidates->prompt, candidates->prompt_bytes) != 0) {
            status =
                moec_fail(err, MOEC_ERR_UNSUPPORTED,
                          "each choice has its own prompt, but an encoder-decoder model reads one prompt "
                          "for all choices; use a task whose prompt has no '{choice}'");
            goto out;
        }
    MOEC_TRY_OUT(tokenise(c, candidates->prompt, candidates->prompt_bytes, &source, err));
    if (source.n > c->n_context) {
        cost->n_cut = (uint32_t)(source.n - c->n_context);
        cut(c, &source, source.n - c->n_context);
    }
    moec_session_count_capacity(c->session, true);
    MOEC_TRY_OUT(moec_session_encode(c->session, source.ids, (uint32_t)source.n, err));
    cost->n_tokens = source.n;
    for (size_t i = 0; i < n_candidate; i++)
        MOEC_TRY_OUT(score_target(c, &candidates[i], cost, err));
out:
    free(source.ids);
    return status;
}

enum moec_status moec_continuation_score(struct moec_continuation *c, struct moec_candidate *candidates,
                                         size_t n_candidate, struct moec_continuation_cost *cost,
                                         struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct tokens alone = {0};
    struct scored *scored = NULL;
    *cost = (struct moec_continuation_cost){0};
    if (n_candidate == 0)
        return MOEC_OK;
    if (has_encoder(c))
        return score_targets(c, candidates, n_candidate, cost, err);
    MOEC_TRY_OUT(moec_alloc((void **)&scored, n_candidate, sizeof *scored, "choices", err));
    for (size_t i = 0; i < n_candidate; i++) {
        const struct moec_candidate *before = i > 0 ? &candidates[i - 1] : NULL;
        if (before == NULL || before->prompt != candidates[i].prompt ||
            before->prompt_bytes != candidates[i].prompt_bytes) {
            free(alone.ids);
            alone = (struct tokens){0};
            MOEC_TRY_OUT(tokenise(c, candidates[i].prompt, candidates[i].prompt_bytes, &alone, err));
        }
        MOEC_TRY_OUT(tokenise_candidate(c, &alone, &candidates[i], &scored[i], err));
    }
    MOEC_TRY_OUT(fit(c, scored, n_candidate, cost, err));
    MOEC_TRY_OUT(score_all(c, scored, candidates, n_candidate, cost, err));
out:
    for (size_t i = 0; scored != NULL && i < n_candidate; i++)
        free(scored[i].tokens.ids);
    free(scored);
    free(alone.ids);
    return status;
}
