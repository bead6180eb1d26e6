/* Running states cannot go back by themselves. Where they stand before the first new token, the tokens
 * between run again (n_again), and nobody is shown their logits. A step that may be taken back keeps a copy
 * of them first. A step that fails leaves the session as it was: states recover, decisions are forgotten and
 * capacities counted again. A source that has more than a chunk gets all keys of a layer before any of its
 * rows attend. */
#include "runtime/forward/pass/session_internal.h"

#include "formats/base/memory.h"
#include "runtime/forward/attention/kv_lender.h"
#include "runtime/forward/context/backend.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/moe/router_answer.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

/* Sequences stepped in one batch at most. */
#define EACH_TOKENS 64u

/* Names sources, over all sessions of the process. */
static atomic_ullong next_source_id = 1;

static uint32_t decoder_layers(const struct moec_config *config)
{
    return config->n_layer - config->n_encoder_layer;
}

/* Keys and values of n_context positions in the decoder's layers. */
static uint64_t decoder_kv_bytes(const struct moec_config *config, uint32_t n_context, enum moec_kv_room room)
{
    return moec_kv_state_bytes(config, config->n_encoder_layer, decoder_layers(config), room, n_context);
}

/* Tokens of a sequence, where these are kept. */
static uint64_t token_items(const struct moec_config *config, uint32_t n_context)
{
    return moec_config_is_running(config) ? n_context : 0;
}

/* Words of what layers foresee, where precisions go by it. */
static uint64_t hinted_items(const struct moec_config *config, const struct moec_route *route,
                             uint32_t n_context)
{
    return route->precision.kind == MOEC_PRECISION_FATE
               ? (uint64_t)n_context * moec_precision_predicted_words(config)
               : 0;
}

static uint64_t count_items(const struct moec_config *config)
{
    return (uint64_t)moec_config_moe_count(config) * config->n_expert;
}

static uint64_t choice_items(const struct moec_config *config, uint32_t n_context)
{
    return (uint64_t)(moec_config_moe_count(config) - moec_config_moe_encoder_count(config)) * n_context;
}

/* Whether every session counts what its experts take. */
static bool always_counts(const struct moec_config *config)
{
    return config->router.expert_capacity > 0 && !moec_config_is_encoder_decoder(config);
}

static uint64_t capacity_bytes(const struct moec_config *config, uint32_t n_context)
{
    return (count_items(config) + choice_items(config, n_context)) * sizeof(uint32_t);
}

uint64_t moec_session_bytes(const struct moec_config *config, uint32_t n_context, uint32_t max_tokens)
{
    uint64_t n_bytes = sizeof(struct moec_session) + decoder_kv_bytes(config, n_context, MOEC_KV_REWINDABLE) +
                       token_items(config, n_context) * sizeof(uint32_t) +
                       (uint64_t)max_tokens * moec_forward_stride(config) * sizeof(float);
    if (moec_config_is_encoder_decoder(config))
        n_bytes += decoder_kv_bytes(config, n_context, MOEC_KV_EACH_LAYER) +
                   moec_kv_state_bytes(config, 0, config->n_encoder_layer, MOEC_KV_ONE_LAYER, n_context) +
                   (uint64_t)n_context * moec_forward_stride(config) * sizeof(float) +
                   capacity_bytes(config, n_context);
    return n_bytes + (always_counts(config) ? capacity_bytes(config, n_context) : 0);
}

uint64_t moec_session_beside_bytes(const struct moec_config *config, uint32_t n_context)
{
    return sizeof(struct moec_session) + decoder_kv_bytes(config, n_context, MOEC_KV_EACH_LAYER) +
           token_items(config, n_context) * sizeof(uint32_t) +
           (always_counts(config) ? capacity_bytes(config, n_context) : 0);
}

/* ---- memory that is lent ---- */

#define TAKE_STEPS  16u /* in which a state takes its memory, at most */
#define TAKE_TOKENS 64u /* that it takes memory for, at least */

/* Positions that a state has memory for when n are filled. */
static uint32_t taken_positions(uint32_t n_context, uint32_t n)
{
    const uint32_t step = n_context / TAKE_STEPS > TAKE_TOKENS ? n_context / TAKE_STEPS : TAKE_TOKENS;
    return n_context - n < step ? n_context : (n + step - 1) / step * step;
}

static uint64_t taken_bytes(const struct moec_config *config, enum moec_kv_room room, uint32_t n_context,
                            uint32_t n)
{
    return moec_kv_state_filled_bytes(config, config->n_encoder_layer, decoder_layers(config), room,
                                      n_context, n);
}

uint64_t moec_session_filled_bytes(const struct moec_config *config, uint32_t n_context, uint32_t n_filled,
                                   bool beside)
{
    return taken_bytes(config, beside ? MOEC_KV_EACH_LAYER : MOEC_KV_REWINDABLE, n_context,
                       n_filled < n_context ? taken_positions(n_context, n_filled) : n_context);
}

/* The first n positions are about to be filled. */
void moec_session_take_memory(struct moec_session *session, uint32_t n)
{
    const struct moec_kv_lender *lender = session->forward->lender;
    const struct moec_config *config = &session->forward->model->config;
    if (lender == NULL || n <= session->n_taken)
        return;
    const uint32_t n_taken = taken_positions(session->n_context, n);
    lender->take(lender->context,
                 taken_bytes(config, session->kv.layers.room, session->n_context, n_taken) -
                     taken_bytes(config, session->kv.layers.room, session->n_context, session->n_taken));
    session->n_taken = n_taken;
}

static void give_memory(struct moec_session *session)
{
    const struct moec_kv_lender *lender = session->forward->lender;
    if (lender != NULL && session->n_taken > 0)
        lender->give(lender->context, taken_bytes(&session->forward->model->config, session->kv.layers.room,
                                                  session->n_context, session->n_taken));
    session->n_taken = 0;
}

static enum moec_status create_counts(struct moec_session *session, struct moec_error *err)
{
    const struct moec_config *config = &session->forward->model->config;
    MOEC_TRY(moec_alloc((void **)&session->counts, count_items(config), sizeof *session->counts,
                        "counts of experts", err));
    return moec_alloc((void **)&session->choices, choice_items(config, session->n_context),
                      sizeof *session->choices, "experts of a text", err);
}

/* Rows of hidden states, where the forward computes. */
static enum moec_status create_rows(const struct moec_forward *forward, uint32_t n_rows, const char *what,
                                    float **out, struct moec_error *err)
{
    const uint64_t n_floats = (uint64_t)n_rows * moec_forward_stride(&forward->model->config);
    if (forward->backend != NULL)
        return forward->backend->ops->alloc(forward->backend, n_floats * sizeof(float), what, (void **)out,
                                            err);
    return moec_alloc_aligned((void **)out, n_floats, sizeof(float), what, err);
}

static void free_rows(const struct moec_forward *forward, float *rows)
{
    if (forward->backend != NULL)
        forward->backend->ops->free(forward->backend, rows);
    else
        free(rows);
}

static enum moec_status create_source(struct moec_session *session, struct moec_error *err)
{
    const struct moec_config *config = &session->forward->model->config;
    const uint32_t n_context = session->n_context;
    const char *what = "keys and values of a source";
    struct moec_backend *backend = session->forward->backend;
    MOEC_TRY(moec_kv_state_create_on(backend, config,
                                     (struct moec_kv_layers){config->n_encoder_layer, decoder_layers(config),
                                                             MOEC_KV_EACH_LAYER, n_context},
                                     what, &session->source_kv, err));
    MOEC_TRY(moec_kv_state_create_on(
        backend, config, (struct moec_kv_layers){0, config->n_encoder_layer, MOEC_KV_ONE_LAYER, n_context},
        what, &session->encoder_kv, err));
    MOEC_TRY(create_rows(session->forward, n_context, "hidden states of a source", &session->source, err));
    return create_counts(session, err);
}

/* Activations and source are still missing. */
static enum moec_status create(const struct moec_forward *forward, uint32_t n_context, enum moec_kv_room room,
                               struct moec_session **out, struct moec_error *err)
{
    const struct moec_config *config = &forward->model->config;
    if (n_context == 0 || n_context > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_LIMIT, "the context has %" PRIu32 " tokens, expected 1 to %u",
                         n_context, MOEC_MAX_POSITIONS);
    struct moec_session *session = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&session, 1, sizeof *session, "a session", err));
    session->forward = forward;
    session->n_context = n_context;
    session->first = session;
    MOEC_TRY_OUT(moec_kv_state_create_on(
        forward->backend, config,
        (struct moec_kv_layers){config->n_encoder_layer, decoder_layers(config), room, n_context},
        "keys and values of a session", &session->kv, err));
    if (forward->lender == NULL)
        moec_kv_state_take_huge_pages(&session->kv);
    if (moec_config_is_running(config))
        MOEC_TRY_OUT(moec_alloc((void **)&session->tokens, token_items(config, n_context),
                                sizeof *session->tokens, "tokens of a session", err));
    session->counts_capacity = always_counts(config);
    if (session->counts_capacity)
        MOEC_TRY_OUT(create_counts(session, err));
    if (forward->decider != NULL)
        MOEC_TRY_OUT(moec_route_state_create(config, forward->decider->route, moec_config_moe_count(config),
                                             n_context, &session->route, err));
    if (forward->decider != NULL && forward->decider->logical != NULL)
        moec_route_state_share(&session->route, forward->decider->logical);
    if (forward->decider != NULL && hinted_items(config, forward->decider->route, n_context) > 0)
        MOEC_TRY_OUT(moec_alloc((void **)&session->predicted,
                                hinted_items(config, forward->decider->route, n_context),
                                sizeof *session->predicted, "predicted experts of a session", err));
    session->log = (struct moec_decision_log){
        .n_layer = moec_config_moe_count(config), .top_k = config->top_k, .n_context = n_context};
    *out = session;
    session = NULL;
out:
    moec_session_free(session);
    return status;
}

/* The log of a sequence that begins, or of one beside it. */
static enum moec_status create_log(struct moec_session *session, uint32_t sequence, uint32_t beam,
                                   struct moec_error *err)
{
    return moec_decision_log_create(session->forward->decider->book, sequence, beam, &session->log, err);
}

static bool is_logged(const struct moec_forward *forward)
{
    return forward->decider != NULL && forward->decider->book != NULL;
}

enum moec_status moec_session_rows_create(const struct moec_forward *forward, float **out,
                                          struct moec_error *err)
{
    return create_rows(forward, forward->max_tokens, "activations of a session", out, err);
}

void moec_session_rows_free(const struct moec_forward *forward, float *hidden)
{
    free_rows(forward, hidden);
}

enum moec_status moec_session_create(const struct moec_forward *forward, uint32_t n_context,
                                     struct moec_session **out, struct moec_error *err)
{
    return moec_session_create_with(forward, n_context, NULL, out, err);
}

enum moec_status moec_session_create_with(const struct moec_forward *forward, uint32_t n_context,
                                          float *hidden, struct moec_session **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    struct moec_session *session = NULL;
    MOEC_TRY(create(forward, n_context, MOEC_KV_REWINDABLE, &session, err));
    session->borrows_hidden = hidden != NULL;
    session->hidden = hidden;
    if (hidden == NULL)
        MOEC_TRY_OUT(moec_session_rows_create(forward, &session->hidden, err));
    if (moec_config_is_encoder_decoder(config))
        MOEC_TRY_OUT(create_source(session, err));
    if (is_logged(forward))
        MOEC_TRY_OUT(create_log(session, moec_decision_book_next(forward->decider->book), 0, err));
    *out = session;
    session = NULL;
out:
    moec_session_free(session);
    return status;
}

enum moec_status moec_session_beside(struct moec_session *first, struct moec_session **out,
                                     struct moec_error *err)
{
    struct moec_session *session = NULL;
    MOEC_TRY(create(first->forward, first->n_context, MOEC_KV_EACH_LAYER, &session, err));
    session->first = first;
    session->hidden = first->hidden;
    const enum moec_status status = is_logged(first->forward)
                                        ? create_log(session, first->log.sequence, ++first->n_beside, err)
                                        : MOEC_OK;
    if (status == MOEC_OK)
        *out = session;
    else
        moec_session_free(session);
    return status;
}

void moec_session_free(struct moec_session *session)
{
    if (session == NULL)
        return;
    moec_decision_log_end(&session->log, moec_session_filled(session));
    if (session->first == session && !session->borrows_hidden)
        free_rows(session->forward, session->hidden);
    moec_kv_state_release(&session->kv);
    give_memory(session);
    moec_kv_state_release(&session->source_kv);
    moec_kv_state_release(&session->encoder_kv);
    moec_route_state_release(&session->route);
    free(session->predicted);
    free(session->tokens);
    free_rows(session->forward, session->source);
    free(session->counts);
    free(session->choices);
    free(session);
}

/* ---- what MoE layers are told of a sequence ---- */

static bool routes_by_token(const struct moec_config *config, uint32_t layer)
{
    return moec_config_layer(config, layer)->routes_by_token;
}

/* n_tok rows of this sequence from `first` on in the MoE layer `ordinal`, and their tokens in a decoder. */
static struct moec_sequence_rows rows_of(struct moec_session *session, uint32_t ordinal, uint32_t first,
                                         const uint32_t *tokens, uint32_t n_tok)
{
    const struct moec_config *config = &session->forward->model->config;
    struct moec_sequence_rows span = {.n_rows = n_tok, .tokens = tokens};
    if (always_counts(config))
        span.counts = session->counts + (size_t)ordinal * config->n_expert;
    if (!moec_session_decides(session))
        return span;
    const bool is_source = ordinal < moec_config_moe_encoder_count(config);
    const uint32_t n_prompt = is_source ? UINT32_MAX : session->n_prompt;
    span.decides.route = &session->route;
    span.decides.layer = ordinal;
    if (session->predicted != NULL)
        span.decides.predicted = session->predicted + first * moec_precision_predicted_words(config);
    if (first < n_prompt)
        span.decides.n_prompt = moec_min_u32(n_tok, n_prompt - first);
    if (session->log.book != NULL)
        span.decides.log = &session->log;
    span.decides.first_position = first;
    return span;
}

/* The counts of a whole prompt need all of it in one chunk. */
static enum moec_status check_prompt(const struct moec_session *session, uint32_t n_prompt, uint32_t first,
                                     uint32_t n_tokens, struct moec_error *err)
{
    const uint32_t max_tokens = session->forward->max_tokens;
    if (!moec_session_decides(session) ||
        !moec_prefill_looks_ahead(&session->forward->decider->route->prefill) ||
        session->forward->decider->route->decode_only || first >= n_prompt ||
        (first == 0 && n_tokens >= n_prompt && n_prompt <= max_tokens))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "prefill '%s' needs the whole prompt of %" PRIu32 " tokens in one call of at most "
                     "%" PRIu32 " tokens, but this call has %" PRIu32 " tokens from position %" PRIu32 " on: "
                     "use prefill 'unpopular', which works block by block",
                     moec_prefill_name(&session->forward->decider->route->prefill), n_prompt, max_tokens,
                     n_tokens, first);
}

/* Rows of one sequence that pass a layer: of an encoder's source, or of a decoder's tokens. */
struct rows {
    uint32_t first, n_tok;  /* positions */
    const uint32_t *tokens; /* (n_tok); NULL in an encoder */
    float *hidden;
    bool counts; /* those that the session counts for their experts */
};

/* hidden += mlp(norm(hidden)). `experts` (n_tok), where it is not NULL, receives what the router of a MoE
 * layer chose. */
static enum moec_status run_mlp(struct moec_session *session, uint32_t layer, const struct rows *rows,
                                uint32_t *experts, struct moec_error *err)
{
    const struct moec_forward *forward = session->forward;
    const struct moec_config *config = &forward->model->config;
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    struct moec_mlp_batch batch = {.n_tok = rows->n_tok, .hidden = rows->hidden};
    if (ordinal < 0 || (!rows->counts && !moec_session_decides(session) && !routes_by_token(config, layer)))
        return moec_forward_mlp(forward, layer, &batch, err);
    struct moec_sequence_rows span =
        rows_of(session, (uint32_t)ordinal, rows->first, rows->tokens, rows->n_tok);
    if (rows->counts)
        span.counts = session->counts + (size_t)ordinal * config->n_expert;
    const struct moec_sequences sequences = {.spans = &span, .n_spans = 1};
    const struct moec_mlp_trace trace = {.experts = experts};
    batch.sequences = &sequences;
    batch.trace = &trace;
    return moec_forward_mlp(forward, layer, &batch, err);
}

/* Positions from n on are forgotten. */
static void forget_routes(struct moec_session *session, uint32_t n)
{
    if (moec_session_decides(session))
        moec_route_state_truncate(&session->route,
                                  moec_config_moe_encoder_count(&session->forward->model->config), n);
}

/* The same of what they decided by the expert buffer, which positions that run again take once more. */
void moec_session_forget_decisions(struct moec_session *session, uint32_t n)
{
    forget_routes(session, n);
    moec_decision_log_truncate(&session->log, n);
}

void moec_session_set_prompt(struct moec_session *session, uint32_t n_prompt)
{
    session->n_prompt = n_prompt;
}

uint32_t moec_session_keepable(const struct moec_session *session, uint32_t n)
{
    const struct moec_decider *decider = session->forward->decider;
    uint32_t kept = moec_min_u32(n, moec_session_filled(session));
    if (moec_config_is_encoder_decoder(&session->forward->model->config))
        return 0;
    if (decider != NULL && moec_prefill_looks_ahead(&decider->route->prefill))
        return 0;
    /* Where prompts are decided about in another way than generated positions, one of a prompt is another. */
    if (decider != NULL && (decider->route->decode_only || decider->route->prefill.kind != MOEC_PREFILL_SAME))
        kept = moec_min_u32(kept, session->n_prompt);
    return kept;
}

struct moec_route_counts moec_session_route_counts(const struct moec_session *session)
{
    return session->route.counts;
}

uint64_t moec_session_route_bytes(const struct moec_config *config, const struct moec_route *route,
                                  uint32_t n_context)
{
    const uint32_t n_layer = moec_config_moe_count(config);
    return moec_route_state_bytes(config, route, n_layer, n_context) +
           hinted_items(config, route, n_context) * sizeof(uint64_t) +
           (moec_route_looks_at_buffer(route) ? moec_decision_log_bytes(n_layer, config->top_k, n_context)
                                              : 0);
}

/* ---- expert capacity ---- */

/* Where the choices of a decoder's MoE layer stand; NULL for a dense one. */
uint32_t *moec_session_choices(const struct moec_session *session, uint32_t layer)
{
    const struct moec_config *config = &session->forward->model->config;
    const int32_t ordinal = moec_config_moe_ordinal(config, layer);
    if (ordinal < 0)
        return NULL;
    return session->choices + ((size_t)ordinal - moec_config_moe_encoder_count(config)) * session->n_context;
}

/* Counts of the text as far as it goes, of the target where it has a source. */
void moec_session_count_again(struct moec_session *session)
{
    const struct moec_config *config = &session->forward->model->config;
    if (!session->counts_capacity)
        return;
    uint32_t *counts = session->counts + (size_t)moec_config_moe_encoder_count(config) * config->n_expert;
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++) {
        const uint32_t *choices = moec_session_choices(session, layer);
        if (choices == NULL)
            continue;
        memset(counts, 0, config->n_expert * sizeof *counts);
        for (uint32_t i = 0; i < moec_session_filled(session); i++)
            counts[choices[i]]++;
        counts += config->n_expert;
    }
}

void moec_session_count_capacity(struct moec_session *session, bool counts)
{
    if (!moec_config_is_encoder_decoder(&session->forward->model->config) || session->first != session)
        return;
    session->counts_capacity = counts;
    moec_kv_state_truncate(&session->kv, 0);
    forget_routes(session, 0);
    moec_session_count_again(session);
}

/* ---- the source ---- */

/* Says to the source of experts that a sequence begins. */
static void begin_experts(const struct moec_forward *forward)
{
    if (forward->experts->ops->begin != NULL)
        forward->experts->ops->begin(forward->experts);
}

/* One encoder layer over the whole source, chunk by chunk: all rows need keys before any can attend. */
static enum moec_status encode_layer(struct moec_session *session, uint32_t layer, uint32_t n_source,
                                     struct moec_error *err)
{
    const struct moec_forward *forward = session->forward;
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config);
    const uint32_t max_tokens = forward->max_tokens;
    const struct moec_kv_rows all = moec_kv_state_rows(&session->encoder_kv, layer, 0);
    const bool is_whole = n_source <= max_tokens;
    uint32_t n = 0;
    for (uint32_t done = 0; !is_whole && done < n_source; done += n) {
        n = moec_min_u32(max_tokens, n_source - done);
        const struct moec_kv_rows rows = moec_kv_state_rows(&session->encoder_kv, layer, done);
        MOEC_TRY(moec_forward_keys(forward, layer, n, session->source + done * stride, rows, err));
    }
    for (uint32_t done = 0; done < n_source; done += n) {
        n = moec_min_u32(max_tokens, n_source - done);
        const struct moec_span span = {
            .n_rows = n,
            .first_position = done,
            .n_source = is_whole ? 0 : n_source,
            .keys = {.k_prefix = all.keys, .v_prefix = all.values, .k_own = all.keys, .v_own = all.values}};
        const struct rows rows = {
            .first = done, .n_tok = n, .hidden = session->source + done * stride, .counts = true};
        MOEC_TRY(moec_forward_attention(forward, layer, (struct moec_batch){&span, 1, n}, rows.hidden, err));
        MOEC_TRY(run_mlp(session, layer, &rows, NULL, err));
    }
    return MOEC_OK;
}

static enum moec_status encode(struct moec_session *session, const uint32_t *tokens, uint32_t n_source,
                               struct moec_error *err)
{
    const struct moec_forward *forward = session->forward;
    const struct moec_config *config = &forward->model->config;
    const size_t stride = moec_forward_stride(config);
    uint32_t n = 0;
    for (uint32_t done = 0; done < n_source; done += n) {
        n = moec_min_u32(forward->max_tokens, n_source - done);
        MOEC_TRY(moec_forward_embed(forward, tokens + done, n, session->source + done * stride, err));
    }
    begin_experts(forward);
    for (uint32_t layer = 0; layer < config->n_encoder_layer; layer++)
        MOEC_TRY(encode_layer(session, layer, n_source, err));
    for (uint32_t done = 0; done < n_source; done += n) {
        float *encoded = session->source + done * stride;
        n = moec_min_u32(forward->max_tokens, n_source - done);
        MOEC_TRY(moec_forward_encoded(forward, n, encoded, encoded, err));
    }
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++) {
        for (uint32_t done = 0; done < n_source; done += n) {
            n = moec_min_u32(forward->max_tokens, n_source - done);
            const struct moec_kv_rows rows = moec_kv_state_rows(&session->source_kv, layer, done);
            MOEC_TRY(moec_forward_cross_keys(forward, layer, n, session->source + done * stride, rows, err));
        }
    }
    return MOEC_OK;
}

enum moec_status moec_session_encode(struct moec_session *session, const uint32_t *tokens, uint32_t n_tokens,
                                     struct moec_error *err)
{
    const struct moec_config *config = &session->forward->model->config;
    if (!moec_config_is_encoder_decoder(config))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a model of family '%s' has no encoder, so it cannot read a source", config->family);
    if (session->first != session)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "only the first of several parallel sequences reads a source text, but another "
                         "sequence was given one");
    if (n_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the encoder's source text has no tokens, expected at least one");
    if (n_tokens > session->n_context)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a source of %" PRIu32 " tokens does not fit into the context of %" PRIu32
                         " tokens: reserve more with --ctx",
                         n_tokens, session->n_context);
    MOEC_TRY(check_prompt(session, n_tokens, 0, n_tokens, err));
    memset(session->counts, 0, count_items(config) * sizeof *session->counts);
    moec_kv_state_truncate(&session->kv, 0);
    moec_kv_state_truncate(&session->source_kv, 0);
    for (uint32_t layer = 0; layer < session->route.n_layer; layer++)
        moec_route_state_reset(&session->route, layer);
    session->source_id = 0;
    MOEC_TRY(encode(session, tokens, n_tokens, err));
    moec_kv_state_append(&session->source_kv, n_tokens);
    session->source_id = atomic_fetch_add(&next_source_id, 1);
    return MOEC_OK;
}

/* ---- steps ---- */

static enum moec_status run_layer(struct moec_session *session, uint32_t layer, const uint32_t *tokens,
                                  uint32_t n_tok, struct moec_error *err)
{
    const struct moec_forward *forward = session->forward;
    const struct moec_span span = moec_kv_state_span(&session->kv, layer, 0, n_tok);
    MOEC_TRY(
        moec_forward_attention(forward, layer, (struct moec_batch){&span, 1, n_tok}, session->hidden, err));
    if (moec_config_is_encoder_decoder(&forward->model->config)) {
        const struct moec_span source =
            moec_kv_state_source_span(&session->first->source_kv, layer, 0, n_tok);
        MOEC_TRY(
            moec_forward_cross(forward, layer, (struct moec_batch){&source, 1, n_tok}, session->hidden, err));
    }
    const uint32_t first = moec_session_filled(session);
    uint32_t *choices = session->counts_capacity ? moec_session_choices(session, layer) : NULL;
    const struct rows rows = {first, n_tok, tokens, session->hidden, session->counts_capacity};
    return run_mlp(session, layer, &rows, choices == NULL ? NULL : choices + first, err);
}

/* Runs one chunk through all layers that tokens of a text pass;
 * the final hidden states stay in session->hidden. */
static enum moec_status run_chunk(struct moec_session *session, const uint32_t *tokens, uint32_t n_tok,
                                  struct moec_error *err)
{
    const struct moec_forward *forward = session->forward;
    const struct moec_config *config = &forward->model->config;
    if (moec_session_filled(session) == 0 && !moec_config_is_encoder_decoder(config))
        begin_experts(forward);
    MOEC_TRY(moec_forward_embed(forward, tokens, n_tok, session->hidden, err));
    const struct moec_sequence_rows span =
        rows_of(session, moec_config_moe_encoder_count(config), moec_session_filled(session), tokens, n_tok);
    const struct moec_sequences sequences = {.spans = &span, .n_spans = 1};
    moec_router_look_ahead(forward, moec_session_decides(session) ? &sequences : NULL, tokens, n_tok);
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++)
        MOEC_TRY(run_layer(session, layer, tokens, n_tok, err));
    return MOEC_OK;
}

/* What is wanted of a step: logits of some rows, of all, or a choice after the last. */
struct wanted {
    const uint32_t *logits_at;
    uint32_t n_logits;
    float *logits;
    const struct moec_logits_reader *reader; /* NULL: nobody reads all */
    const struct moec_draw *how;             /* NULL: no choice */
    struct moec_chosen *chosen;
};

/* Rows first .. first + n_tok - 1 of what runs in a step, which begins with n_again rows of earlier ones. */
struct chunk {
    uint32_t first, n_tok, n_again;
};

/* Logits of the wanted rows of the step that are among the chunk's; neighbours together. */
static enum moec_status chunk_logits(struct moec_session *session, struct chunk chunk,
                                     const struct wanted *wanted, uint32_t *n_done, struct moec_error *err)
{
    const uint32_t *logits_at = wanted->logits_at;
    const uint32_t n_again = chunk.n_again, n_logits = wanted->n_logits, end = chunk.first + chunk.n_tok;
    const struct moec_forward *forward = session->forward;
    size_t stride = moec_forward_stride(&forward->model->config);
    size_t n_vocab = forward->model->config.n_vocab;
    while (*n_done < n_logits && n_again + logits_at[*n_done] < end) {
        uint32_t at = n_again + logits_at[*n_done];
        uint32_t n = 1;
        while (*n_done + n < n_logits && n_again + logits_at[*n_done + n] == at + n && at + n < end)
            n++;
        MOEC_TRY(moec_forward_head(forward, n, session->hidden + (at - chunk.first) * stride,
                                   wanted->logits + *n_done * n_vocab, n_vocab, err));
        *n_done += n;
    }
    return MOEC_OK;
}

static enum moec_status check_step(const struct moec_session *session, uint32_t n_tokens,
                                   const uint32_t *logits_at, uint32_t n_logits, struct moec_error *err)
{
    if (moec_config_is_encoder_decoder(&session->forward->model->config) &&
        session->first->source_kv.length == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the decoder's tokens were given before the encoder read a source: "
                         "encode the source first");
    if (n_tokens > session->n_context - moec_session_filled(session))
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%" PRIu32 " more tokens do not fit into the context of %" PRIu32
                         ", of which %" PRIu32 " are filled: reserve more with --ctx",
                         n_tokens, session->n_context, moec_session_filled(session));
    MOEC_TRY(check_prompt(session, session->n_prompt, moec_session_filled(session), n_tokens, err));
    for (uint32_t i = 0; i < n_logits; i++) {
        if (logits_at[i] >= n_tokens || (i > 0 && logits_at[i] <= logits_at[i - 1]))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "logits are requested at offset %" PRIu32 ", expected "
                             "increasing offsets below %" PRIu32,
                             logits_at[i], n_tokens);
    }
    return MOEC_OK;
}

/* Notes the step's tokens, asks for a copy of running states before them where the step may be taken back,
 * and goes to where running states stand. Returns how many earlier positions run again. */
static uint32_t begin_step(struct moec_session *session, const uint32_t *tokens, uint32_t n_tokens)
{
    const uint32_t start = moec_session_filled(session),
                   n_again = (uint32_t)moec_kv_state_missing(&session->kv);
    if (session->tokens == NULL)
        return 0;
    for (uint32_t i = 0; i < n_tokens; i++)
        session->tokens[start + i] = tokens[i];
    if (n_tokens > 1 || (n_tokens > 0 && n_again > 0))
        moec_kv_state_keep(&session->kv, start);
    moec_kv_state_rewind(&session->kv);
    forget_routes(session, start - n_again);
    return n_again;
}

/* Logits of all rows of the step among those of this chunk, some at a time. */
static enum moec_status read_logits(struct moec_session *session, struct chunk chunk,
                                    const struct moec_logits_reader *reader, struct moec_error *err)
{
    const struct moec_forward *forward = session->forward;
    const size_t stride = moec_forward_stride(&forward->model->config);
    const uint32_t end = chunk.first + chunk.n_tok;
    uint32_t at = chunk.first < chunk.n_again ? chunk.n_again : chunk.first;
    while (at < end) {
        const uint32_t n = moec_min_u32(reader->n_rows, end - at);
        MOEC_TRY(moec_forward_head(forward, n, session->hidden + (at - chunk.first) * stride, reader->rows,
                                   forward->model->config.n_vocab, err));
        reader->take(reader->context, at - chunk.n_again, n, reader->rows);
        at += n;
    }
    return MOEC_OK;
}

static enum moec_status step(struct moec_session *session, const uint32_t *tokens, uint32_t n_tokens,
                             const struct wanted *wanted, struct moec_error *err)
{
    MOEC_TRY(check_step(session, n_tokens, wanted->logits_at, wanted->n_logits, err));
    MOEC_TRY(moec_decision_log_check(&session->log, moec_session_filled(session), tokens, n_tokens, err));
    moec_session_take_memory(session, moec_session_filled(session) + n_tokens);
    const uint32_t start = moec_session_filled(session), n_again = begin_step(session, tokens, n_tokens);
    const uint32_t *all = session->tokens != NULL ? session->tokens + (start - n_again) : tokens;
    const uint32_t max_tokens = session->forward->max_tokens, n_all = n_again + n_tokens;
    const size_t stride = moec_forward_stride(&session->forward->model->config);
    uint32_t n_logits_done = 0;
    moec_decision_log_begin_step(&session->log, start - n_again, all, n_all);
    for (uint32_t done = 0; done < n_all;) {
        uint32_t n = n_all - done < max_tokens ? n_all - done : max_tokens;
        const struct chunk chunk = {done, n, n_again};
        enum moec_status status = run_chunk(session, all + done, n, err);
        if (status == MOEC_OK)
            status = chunk_logits(session, chunk, wanted, &n_logits_done, err);
        if (status == MOEC_OK && wanted->reader != NULL)
            status = read_logits(session, chunk, wanted->reader, err);
        if (status == MOEC_OK && wanted->how != NULL && done + n == n_all)
            status = moec_forward_choose(session->forward, session->hidden + (n - 1) * stride, wanted->how,
                                         wanted->chosen, err);
        if (status != MOEC_OK) {
            moec_kv_state_recover(&session->kv, start);
            moec_session_forget_decisions(session, start);
            moec_session_count_again(session);
            return status;
        }
        moec_kv_state_append(&session->kv, n);
        done += n;
    }
    return MOEC_OK;
}

enum moec_status moec_session_step(struct moec_session *session, const uint32_t *tokens, uint32_t n_tokens,
                                   const uint32_t *logits_at, uint32_t n_logits, float *logits,
                                   struct moec_error *err)
{
    const struct wanted wanted = {
        .logits_at = logits_at, .n_logits = logits_at != NULL ? n_logits : 0, .logits = logits};
    return step(session, tokens, n_tokens, &wanted, err);
}

enum moec_status moec_session_step_reading(struct moec_session *session, const uint32_t *tokens,
                                           uint32_t n_tokens, const struct moec_logits_reader *reader,
                                           struct moec_error *err)
{
    const struct wanted wanted = {.reader = reader};
    return step(session, tokens, n_tokens, &wanted, err);
}

enum moec_status moec_session_step_choose(struct moec_session *session, const uint32_t *tokens,
                                          uint32_t n_tokens, const struct moec_draw *how,
                                          struct moec_chosen *chosen, struct moec_error *err)
{
    const struct wanted wanted = {.how = how, .chosen = chosen};
    return step(session, tokens, n_tokens, &wanted, err);
}

/* The MLP of one layer for one token of each. */
static enum moec_status run_mlp_each(struct moec_session *const *sessions, uint32_t layer,
                                     const uint32_t *tokens, uint32_t n, float *hidden,
                                     struct moec_error *err)
{
    const struct moec_forward *forward = sessions[0]->forward;
    const int32_t ordinal = moec_config_moe_ordinal(&forward->model->config, layer);
    struct moec_sequence_rows spans[EACH_TOKENS];
    uint32_t experts[EACH_TOKENS];
    const struct moec_sequences sequences = {.spans = spans, .n_spans = n};
    const bool counts = always_counts(&forward->model->config); /* with one expert a token */
    const struct moec_mlp_trace trace = {.experts = counts ? experts : NULL};
    if (ordinal < 0 ||
        (!counts && !moec_session_decides(sessions[0]) && !routes_by_token(&forward->model->config, layer)))
        return moec_forward_mlp(forward, layer, &(struct moec_mlp_batch){.n_tok = n, .hidden = hidden}, err);
    for (uint32_t i = 0; i < n; i++)
        spans[i] = rows_of(sessions[i], (uint32_t)ordinal, moec_session_filled(sessions[i]), tokens + i, 1);
    MOEC_TRY(moec_forward_mlp(
        forward, layer,
        &(struct moec_mlp_batch){.n_tok = n, .hidden = hidden, .sequences = &sequences, .trace = &trace},
        err));
    for (uint32_t i = 0; counts && i < n; i++)
        moec_session_choices(sessions[i], layer)[moec_session_filled(sessions[i])] = experts[i];
    return MOEC_OK;
}

/* One token for each of n sequences, as many as a batch takes. */
static enum moec_status step_batch(struct moec_session *const *sessions, const uint32_t *tokens, uint32_t n,
                                   float *logits, struct moec_error *err)
{
    const struct moec_forward *forward = sessions[0]->forward;
    const struct moec_config *config = &forward->model->config;
    float *hidden = sessions[0]->hidden;
    struct moec_span spans[EACH_TOKENS];
    MOEC_TRY(moec_forward_embed(forward, tokens, n, hidden, err));
    moec_router_look_ahead(forward, NULL, tokens, n);
    for (uint32_t layer = config->n_encoder_layer; layer < config->n_layer; layer++) {
        for (uint32_t i = 0; i < n; i++)
            spans[i] = moec_kv_state_span(&sessions[i]->kv, layer, i, 1);
        MOEC_TRY(moec_forward_attention(forward, layer, (struct moec_batch){spans, n, n}, hidden, err));
        if (moec_config_is_encoder_decoder(config)) {
            for (uint32_t i = 0; i < n; i++)
                spans[i] = moec_kv_state_source_span(&sessions[i]->first->source_kv, layer, i, 1);
            MOEC_TRY(moec_forward_cross(forward, layer, (struct moec_batch){spans, n, n}, hidden, err));
        }
        MOEC_TRY(run_mlp_each(sessions, layer, tokens, n, hidden, err));
    }
    return moec_forward_head(forward, n, hidden, logits, config->n_vocab, err);
}

enum moec_status moec_session_step_each(struct moec_session *const *sessions, const uint32_t *tokens,
                                        uint32_t n, float *logits, struct moec_error *err)
{
    const size_t n_vocab = sessions[0]->forward->model->config.n_vocab;
    const uint32_t max_tokens = sessions[0]->forward->max_tokens;
    const uint32_t batch = max_tokens < EACH_TOKENS ? max_tokens : EACH_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        MOEC_TRY(check_step(sessions[i], 1, NULL, 0, err));
        MOEC_TRY(
            moec_decision_log_check(&sessions[i]->log, moec_session_filled(sessions[i]), tokens + i, 1, err));
        if (sessions[i]->counts_capacity && !always_counts(&sessions[0]->forward->model->config))
            return moec_fail(
                err, MOEC_ERR_USAGE,
                "this model limits how many tokens an expert takes, counted per sequence, so sequences "
                "cannot share a step: run a step for each sequence");
    }
    for (uint32_t i = 0; i < n; i++) {
        if (moec_kv_state_missing(&sessions[i]->kv) > 0)
            MOEC_TRY(moec_session_step(sessions[i], NULL, 0, NULL, 0, NULL, err));
        moec_session_take_memory(sessions[i], moec_session_filled(sessions[i]) + 1);
        (void)begin_step(sessions[i], tokens + i, 1);
        moec_decision_log_begin_step(&sessions[i]->log, moec_session_filled(sessions[i]), tokens + i, 1);
    }
    enum moec_status status = MOEC_OK;
    for (uint32_t done = 0; done < n && status == MOEC_OK; done += batch) {
        const uint32_t n_now = n - done < batch ? n - done : batch;
        status = step_batch(sessions + done, tokens + done, n_now, logits + done * n_vocab, err);
    }
    /* Together, so that a failure leaves all of them where they were. */
    for (uint32_t i = 0; i < n; i++) {
        if (status == MOEC_OK) {
            moec_kv_state_append(&sessions[i]->kv, 1);
        } else {
            moec_kv_state_recover(&sessions[i]->kv, moec_session_filled(sessions[i]));
            moec_session_forget_decisions(sessions[i], moec_session_filled(sessions[i]));
            moec_session_count_again(sessions[i]);
        }
    }
    return status;
}

uint32_t moec_session_length(const struct moec_session *session)
{
    return moec_session_filled(session);
}

uint32_t moec_session_context(const struct moec_session *session)
{
    return session->n_context;
}

const struct moec_forward *moec_session_forward(const struct moec_session *session)
{
    return session->forward;
}

void moec_session_truncate(struct moec_session *session, uint32_t n)
{
    if (n >= moec_session_filled(session))
        return;
    moec_kv_state_truncate(&session->kv, n);
    moec_session_forget_decisions(session, n);
    moec_session_count_again(session);
}
