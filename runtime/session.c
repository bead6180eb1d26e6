#include "runtime/session.h"

#include "formats/memory.h"

#include <inttypes.h>
#include <string.h>

/* Keys and values lie position-major in one piece for each layer, so that a span's own rows stand right
 * behind its prefix. The allocation is zeroed memory fresh from the system: pages cost nothing until
 * positions fill them.
 *
 *   kv: layer 0 keys (n_context, kv_dim) | layer 0 values | layer 1 keys | ... */
struct moec_session {
    struct moec_forward *forward; /* borrowed */
    uint32_t n_context;
    uint32_t length;
    size_t kv_dim;
    float *kv;     /* owned */
    float *hidden; /* owned, (max_tokens, stride) */
};

static uint64_t kv_floats(const struct moec_config *config, uint32_t n_context)
{
    return 2 * (uint64_t)config->n_layer * n_context * config->n_kv_head * config->head_dim;
}

uint64_t moec_session_bytes(const struct moec_config *config, uint32_t n_context, uint32_t max_tokens)
{
    return sizeof(struct moec_session) +
           (kv_floats(config, n_context) + (uint64_t)max_tokens * moec_forward_stride(config)) *
               sizeof(float);
}

static float *layer_rows(const struct moec_session *session, uint32_t layer, bool value)
{
    return session->kv + (2 * (size_t)layer + (value ? 1 : 0)) * session->n_context * session->kv_dim;
}

enum moec_status moec_session_create(struct moec_forward *forward, uint32_t n_context,
                                     struct moec_session **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &forward->model->config;
    if (n_context == 0 || n_context > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_LIMIT, "a context of %" PRIu32 " tokens is outside 1..%u", n_context,
                         MOEC_MAX_POSITIONS);
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_session), "a session", err));
    struct moec_session *session = memory;
    session->forward = forward;
    session->n_context = n_context;
    session->kv_dim = (size_t)config->n_kv_head * config->head_dim;
    void *kv = NULL;
    MOEC_TRY_OUT(
        moec_alloc(&kv, kv_floats(config, n_context), sizeof(float), "keys and values of a session", err));
    session->kv = kv;
    void *hidden = NULL;
    MOEC_TRY_OUT(moec_alloc_aligned(&hidden, (uint64_t)forward->max_tokens * moec_forward_stride(config),
                                    sizeof(float), "activations of a session", err));
    session->hidden = hidden;
    *out = session;
    return MOEC_OK;

out:
    moec_session_free(session);
    return status;
}

void moec_session_free(struct moec_session *session)
{
    if (session == NULL)
        return;
    free(session->hidden);
    free(session->kv);
    free(session);
}

/* Runs one chunk through all layers; the final hidden states stay in session->hidden. */
static enum moec_status run_chunk(struct moec_session *session, const uint32_t *tokens, uint32_t n_tok,
                                  struct moec_error *err)
{
    struct moec_forward *forward = session->forward;
    size_t done = session->length * session->kv_dim;
    MOEC_TRY(moec_forward_embed(forward, tokens, n_tok, session->hidden, err));
    for (uint32_t layer = 0; layer < forward->model->config.n_layer; layer++) {
        float *keys = layer_rows(session, layer, false);
        float *values = layer_rows(session, layer, true);
        struct moec_span span = {.n_rows = n_tok,
                                 .first_position = session->length,
                                 .k_prefix = keys,
                                 .v_prefix = values,
                                 .k_own = keys + done,
                                 .v_own = values + done};
        MOEC_TRY(moec_forward_attention(forward, layer, &span, 1, n_tok, session->hidden, err));
        MOEC_TRY(moec_forward_mlp(forward, layer, n_tok, session->hidden, NULL, err));
    }
    return MOEC_OK;
}

/* Logits of the wanted rows first .. first + n_tok - 1 of the step, neighbours together. */
static enum moec_status chunk_logits(struct moec_session *session, uint32_t first, uint32_t n_tok,
                                     const uint32_t *logits_at, uint32_t n_logits, uint32_t *n_done,
                                     float *logits, struct moec_error *err)
{
    struct moec_forward *forward = session->forward;
    size_t stride = moec_forward_stride(&forward->model->config);
    size_t n_vocab = forward->model->config.n_vocab;
    while (*n_done < n_logits && logits_at[*n_done] < first + n_tok) {
        uint32_t at = logits_at[*n_done];
        uint32_t n = 1;
        while (*n_done + n < n_logits && logits_at[*n_done + n] == at + n && at + n < first + n_tok)
            n++;
        MOEC_TRY(moec_forward_head(forward, n, session->hidden + (at - first) * stride,
                                   logits + *n_done * n_vocab, n_vocab, err));
        *n_done += n;
    }
    return MOEC_OK;
}

static enum moec_status check_step(const struct moec_session *session, uint32_t n_tokens,
                                   const uint32_t *logits_at, uint32_t n_logits, struct moec_error *err)
{
    if (n_tokens > session->n_context - session->length)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%" PRIu32 " more tokens do not fit into the context of %" PRIu32
                         ", of which %" PRIu32 " are filled, reserve more with --ctx",
                         n_tokens, session->n_context, session->length);
    for (uint32_t i = 0; i < n_logits; i++) {
        if (logits_at[i] >= n_tokens || (i > 0 && logits_at[i] <= logits_at[i - 1]))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "logits are wanted at offset %" PRIu32
                             ", expected increasing offsets under %" PRIu32,
                             logits_at[i], n_tokens);
    }
    return MOEC_OK;
}

enum moec_status moec_session_step(struct moec_session *session, const uint32_t *tokens, uint32_t n_tokens,
                                   const uint32_t *logits_at, uint32_t n_logits, float *logits,
                                   struct moec_error *err)
{
    if (logits_at == NULL)
        n_logits = 0;
    MOEC_TRY(check_step(session, n_tokens, logits_at, n_logits, err));
    uint32_t start = session->length;
    uint32_t max_tokens = session->forward->max_tokens;
    uint32_t n_logits_done = 0;
    for (uint32_t done = 0; done < n_tokens;) {
        uint32_t n = n_tokens - done < max_tokens ? n_tokens - done : max_tokens;
        enum moec_status status = run_chunk(session, tokens + done, n, err);
        if (status == MOEC_OK)
            status = chunk_logits(session, done, n, logits_at, n_logits, &n_logits_done, logits, err);
        if (status != MOEC_OK) {
            session->length = start;
            return status;
        }
        session->length += n;
        done += n;
    }
    return MOEC_OK;
}

uint32_t moec_session_length(const struct moec_session *session)
{
    return session->length;
}

uint32_t moec_session_context(const struct moec_session *session)
{
    return session->n_context;
}

void moec_session_truncate(struct moec_session *session, uint32_t n)
{
    if (n < session->length)
        session->length = n;
}

void moec_session_copy(struct moec_session *to, const struct moec_session *from)
{
    size_t filled_bytes = from->length * from->kv_dim * sizeof(float);
    for (uint32_t layer = 0; layer < from->forward->model->config.n_layer; layer++) {
        memcpy(layer_rows(to, layer, false), layer_rows(from, layer, false), filled_bytes);
        memcpy(layer_rows(to, layer, true), layer_rows(from, layer, true), filled_bytes);
    }
    to->length = from->length;
}

enum moec_status moec_session_fork(const struct moec_session *session, struct moec_session **out,
                                   struct moec_error *err)
{
    MOEC_TRY(moec_session_create(session->forward, session->n_context, out, err));
    moec_session_copy(*out, session);
    return MOEC_OK;
}
