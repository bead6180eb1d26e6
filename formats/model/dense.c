/* Entries stand in the order of one walk: layer by layer, by role, those of no layer last. The same walk
 * makes a table and checks one that was read, so a table says nothing that the config does not. The order is
 * that of (layer, role) as a number, which lookup relies on. Rows are encoded one after another, entries
 * begin at multiples of 64 bytes, and gaps are zero because they reach the bundle. */
#include "formats/model/dense.h"

#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"
#include "formats/codec/mxfp4.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define BLOB_ALIGNMENT 64u
#define EMIT_BYTES     ((uint64_t)4 << 20) /* made at once by a source */

/* ---- roles ---- */

const char *moec_role_name(enum moec_role role)
{
    static const char *const names[MOEC_ROLE_COUNT] = {
        [MOEC_ROLE_EMBEDDING] = "embedding",
        [MOEC_ROLE_HEAD] = "head",
        [MOEC_ROLE_FINAL_NORM] = "final norm",
        [MOEC_ROLE_ATTENTION_NORM] = "attention norm",
        [MOEC_ROLE_Q] = "q projection",
        [MOEC_ROLE_K] = "k projection",
        [MOEC_ROLE_V] = "v projection",
        [MOEC_ROLE_O] = "o projection",
        [MOEC_ROLE_Q_BIAS] = "q bias",
        [MOEC_ROLE_K_BIAS] = "k bias",
        [MOEC_ROLE_V_BIAS] = "v bias",
        [MOEC_ROLE_Q_NORM] = "q norm",
        [MOEC_ROLE_K_NORM] = "k norm",
        [MOEC_ROLE_MLP_NORM] = "MLP norm",
        [MOEC_ROLE_ROUTER] = "router",
        [MOEC_ROLE_SHARED_EXPERT_GATE] = "shared expert gate",
        [MOEC_ROLE_SHARED_UP] = "shared expert up projection",
        [MOEC_ROLE_SHARED_GATE] = "shared expert gate projection",
        [MOEC_ROLE_SHARED_DOWN] = "shared expert down projection",
        [MOEC_ROLE_DENSE_UP] = "dense up projection",
        [MOEC_ROLE_DENSE_GATE] = "dense gate projection",
        [MOEC_ROLE_DENSE_DOWN] = "dense down projection",
        [MOEC_ROLE_ATTENTION_BIAS] = "relative attention bias",
        [MOEC_ROLE_ROUTER_BIAS] = "router bias",
        [MOEC_ROLE_CROSS_NORM] = "cross attention norm",
        [MOEC_ROLE_CROSS_Q] = "cross q projection",
        [MOEC_ROLE_CROSS_K] = "cross k projection",
        [MOEC_ROLE_CROSS_V] = "cross v projection",
        [MOEC_ROLE_CROSS_O] = "cross o projection",
        [MOEC_ROLE_ENCODER_NORM] = "encoder final norm",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = "router choice bias",
        [MOEC_ROLE_O_BIAS] = "o bias",
        [MOEC_ROLE_SINKS] = "attention sinks",
        [MOEC_ROLE_OUTPUT_GATE] = "gate of attention outputs",
        [MOEC_ROLE_ATTENTION_POST_NORM] = "norm after attention",
        [MOEC_ROLE_MLP_POST_NORM] = "norm after the MLP",
        [MOEC_ROLE_Q_CONVOLUTION] = "convolution of queries",
        [MOEC_ROLE_K_CONVOLUTION] = "convolution of keys",
        [MOEC_ROLE_V_CONVOLUTION] = "convolution of values",
        [MOEC_ROLE_DELTA_DECAY_DOWN] = "projection to the latent of decays",
        [MOEC_ROLE_OUTPUT_GATE_DOWN] = "projection to the latent of the gate",
        [MOEC_ROLE_CONVOLUTION] = "convolution",
        [MOEC_ROLE_INPUT_GATE] = "gate of the convolution's inputs",
        [MOEC_ROLE_DELTA_RATE] = "rate of the delta rule",
        [MOEC_ROLE_DELTA_DECAY] = "decay of the delta rule",
        [MOEC_ROLE_DELTA_DECAY_LOG] = "logarithm of the decay",
        [MOEC_ROLE_DELTA_DECAY_BIAS] = "bias of the decay",
        [MOEC_ROLE_ROUTER_NORM] = "router norm",
        [MOEC_ROLE_ROUTER_EXPERT_SCALE] = "scale of the experts",
        [MOEC_ROLE_EXPERT_NORM] = "norm before the experts",
        [MOEC_ROLE_EXPERT_POST_NORM] = "norm after the experts",
        [MOEC_ROLE_SHARED_POST_NORM] = "norm after the shared expert",
        [MOEC_ROLE_SPACE_SKIP] = "skip factors of the state space",
        [MOEC_ROLE_CONVOLUTION_BIAS] = "bias of the convolution",
        [MOEC_ROLE_ATTENTION_NORM_BIAS] = "bias of the attention norm",
        [MOEC_ROLE_MLP_NORM_BIAS] = "bias of the MLP norm",
        [MOEC_ROLE_FINAL_NORM_BIAS] = "bias of the final norm",
        [MOEC_ROLE_HEAD_BIAS] = "bias of the head",
        [MOEC_ROLE_ATTENTION_POST_NORM_BIAS] = "bias of the norm after attention",
        [MOEC_ROLE_MLP_POST_NORM_BIAS] = "bias of the norm after the MLP",
        [MOEC_ROLE_POSITIONS] = "vectors of positions",
        [MOEC_ROLE_BYPASS] = "bypass of the experts",
        [MOEC_ROLE_OUTPUT_PROJECTION] = "projection of the last hidden state",
        [MOEC_ROLE_OUTPUT_PROJECTION_BIAS] = "bias of the projection of the last hidden state",
        [MOEC_ROLE_DENSE_UP_BIAS] = "dense up bias",
        [MOEC_ROLE_DENSE_DOWN_BIAS] = "dense down bias",
        [MOEC_ROLE_LAYER_SCALE] = "scale of the layer",
        [MOEC_ROLE_DELTA_NORM] = "norm of the delta rule's outputs",
        [MOEC_ROLE_Q_DOWN] = "projection to the latent of queries",
        [MOEC_ROLE_Q_DOWN_NORM] = "norm of the latent of queries",
        [MOEC_ROLE_KV_DOWN] = "projection to the latent",
        [MOEC_ROLE_KV_DOWN_NORM] = "norm of the latent",
        [MOEC_ROLE_KV_UP] = "keys and values of the latent",
        [MOEC_ROLE_ROUTER_TABLE] = "table of the experts of each token",
        [MOEC_ROLE_EXPERT_GATE_BIAS] = "gate biases of the experts",
        [MOEC_ROLE_EXPERT_UP_BIAS] = "up biases of the experts",
        [MOEC_ROLE_EXPERT_DOWN_BIAS] = "down biases of the experts",
        [MOEC_ROLE_EMBEDDING_REST] = "embedding of rare tokens",
        [MOEC_ROLE_HEAD_REST] = "head of rare tokens",
    };
    return role < MOEC_ROLE_COUNT && names[role] != NULL ? names[role] : "unknown role";
}

bool moec_role_expected(const struct moec_config *config, enum moec_role role, uint32_t layer)
{
    if (layer == MOEC_LAYER_NONE)
        return role == MOEC_ROLE_EMBEDDING ||
               (role == MOEC_ROLE_FINAL_NORM && !config->head.projects_output) ||
               ((role == MOEC_ROLE_OUTPUT_PROJECTION || role == MOEC_ROLE_OUTPUT_PROJECTION_BIAS) &&
                config->head.projects_output) ||
               (role == MOEC_ROLE_HEAD && !config->head.is_tied) ||
               (role == MOEC_ROLE_EMBEDDING_REST && config->n_frequent > 0) ||
               (role == MOEC_ROLE_HEAD_REST && config->n_frequent > 0 && !config->head.is_tied) ||
               (role == MOEC_ROLE_HEAD_BIAS && config->head.bias) ||
               (role == MOEC_ROLE_FINAL_NORM_BIAS && config->layer_norm && !config->head.projects_output) ||
               (role == MOEC_ROLE_ENCODER_NORM && moec_config_is_encoder_decoder(config));
    if (layer >= config->n_layer)
        return false;
    const struct moec_layer_kind *kind = moec_config_layer(config, layer);
    const bool moe = kind->is_moe, mixes = moec_layer_mixes(kind), is_dense = !moe && !kind->no_mlp;
    switch (role) {
    case MOEC_ROLE_ATTENTION_NORM:
        return mixes && config->norms != MOEC_NORMS_AFTER;
    case MOEC_ROLE_MLP_NORM:
        return !kind->no_mlp && config->norms != MOEC_NORMS_AFTER;
    case MOEC_ROLE_ATTENTION_NORM_BIAS:
        return mixes && config->layer_norm && config->norms != MOEC_NORMS_AFTER;
    case MOEC_ROLE_MLP_NORM_BIAS:
        return !kind->no_mlp && config->layer_norm && config->norms != MOEC_NORMS_AFTER;
    case MOEC_ROLE_ATTENTION_POST_NORM_BIAS:
        return mixes && config->layer_norm && config->norms == MOEC_NORMS_AFTER;
    case MOEC_ROLE_MLP_POST_NORM_BIAS:
        return !kind->no_mlp && config->layer_norm && config->norms == MOEC_NORMS_AFTER;
    case MOEC_ROLE_POSITIONS:
        return kind->adds_positions;
    case MOEC_ROLE_BYPASS:
        return moe && config->mlp.has_bypass;
    case MOEC_ROLE_DENSE_UP_BIAS:
    case MOEC_ROLE_DENSE_DOWN_BIAS:
        return is_dense && config->mlp.dense_bias;
    case MOEC_ROLE_ATTENTION_POST_NORM:
        return mixes && config->norms != MOEC_NORMS_BEFORE;
    case MOEC_ROLE_MLP_POST_NORM:
        return !kind->no_mlp && config->norms != MOEC_NORMS_BEFORE;
    case MOEC_ROLE_Q:
        return mixes && kind->mixer != MOEC_MIXER_CONVOLUTION;
    case MOEC_ROLE_K:
        return mixes && kind->mixer != MOEC_MIXER_CONVOLUTION && kind->latent_dim == 0;
    case MOEC_ROLE_V:
        return mixes && !kind->keys_are_values && kind->latent_dim == 0;
    case MOEC_ROLE_O:
        return mixes;
    case MOEC_ROLE_LAYER_SCALE:
        return config->scale.has_layer;
    case MOEC_ROLE_ROUTER_NORM:
    case MOEC_ROLE_ROUTER_EXPERT_SCALE:
    case MOEC_ROLE_EXPERT_NORM:
    case MOEC_ROLE_EXPERT_POST_NORM:
    case MOEC_ROLE_SHARED_POST_NORM:
        return moe && config->mlp.own_norms;
    case MOEC_ROLE_Q_DOWN:
    case MOEC_ROLE_Q_DOWN_NORM:
        return kind->q_latent_dim > 0;
    case MOEC_ROLE_KV_DOWN:
    case MOEC_ROLE_KV_DOWN_NORM:
    case MOEC_ROLE_KV_UP:
        return kind->latent_dim > 0;
    case MOEC_ROLE_CONVOLUTION:
        return moec_layer_is_running(kind) && kind->mixer != MOEC_MIXER_CHANNEL_DELTA;
    case MOEC_ROLE_Q_CONVOLUTION:
    case MOEC_ROLE_K_CONVOLUTION:
    case MOEC_ROLE_V_CONVOLUTION:
    case MOEC_ROLE_DELTA_DECAY_DOWN:
    case MOEC_ROLE_OUTPUT_GATE_DOWN:
        return kind->mixer == MOEC_MIXER_CHANNEL_DELTA;
    case MOEC_ROLE_INPUT_GATE:
        return kind->mixer == MOEC_MIXER_CONVOLUTION;
    case MOEC_ROLE_SPACE_SKIP:
    case MOEC_ROLE_CONVOLUTION_BIAS:
        return kind->mixer == MOEC_MIXER_SPACE;
    case MOEC_ROLE_DELTA_RATE:
        return moec_layer_is_delta(kind);
    case MOEC_ROLE_DELTA_DECAY:
    case MOEC_ROLE_DELTA_DECAY_LOG:
    case MOEC_ROLE_DELTA_DECAY_BIAS:
    case MOEC_ROLE_DELTA_NORM:
        return moec_layer_has_matrices(kind);
    case MOEC_ROLE_O_BIAS:
        return kind->o_bias;
    case MOEC_ROLE_SINKS:
        return kind->has_sinks;
    case MOEC_ROLE_OUTPUT_GATE:
        return kind->has_gate || moec_layer_is_running(kind);
    case MOEC_ROLE_Q_BIAS:
    case MOEC_ROLE_K_BIAS:
    case MOEC_ROLE_V_BIAS:
        return kind->qkv_bias;
    case MOEC_ROLE_Q_NORM:
    case MOEC_ROLE_K_NORM:
        return kind->qk_norm != MOEC_QK_NORM_NONE && kind->qk_norm != MOEC_QK_NORM_PLAIN_AFTER;
    case MOEC_ROLE_ROUTER:
        return moe;
    case MOEC_ROLE_SHARED_EXPERT_GATE:
        return moe && config->mlp.shared_gate;
    case MOEC_ROLE_SHARED_GATE:
        return moe && config->n_ff_shared > 0 && !config->mlp.plain;
    case MOEC_ROLE_SHARED_UP:
    case MOEC_ROLE_SHARED_DOWN:
        return moe && config->n_ff_shared > 0;
    case MOEC_ROLE_DENSE_GATE:
        return is_dense && !config->mlp.plain;
    case MOEC_ROLE_DENSE_UP:
    case MOEC_ROLE_DENSE_DOWN:
        return is_dense;
    case MOEC_ROLE_ATTENTION_BIAS:
        return config->position.n_bucket > 0 && moec_config_stack_layer(config, layer) == 0;
    case MOEC_ROLE_ROUTER_BIAS:
        return moe && config->router.bias;
    case MOEC_ROLE_ROUTER_CHOICE_BIAS:
        return moe && config->router.choice_bias && !kind->routes_by_token;
    case MOEC_ROLE_ROUTER_TABLE:
        return kind->routes_by_token;
    case MOEC_ROLE_EXPERT_GATE_BIAS:
        return moe && config->mlp.expert_bias && !config->mlp.plain;
    case MOEC_ROLE_EXPERT_UP_BIAS:
    case MOEC_ROLE_EXPERT_DOWN_BIAS:
        return moe && config->mlp.expert_bias;
    case MOEC_ROLE_CROSS_NORM:
    case MOEC_ROLE_CROSS_Q:
    case MOEC_ROLE_CROSS_K:
    case MOEC_ROLE_CROSS_V:
    case MOEC_ROLE_CROSS_O:
        return moec_config_is_encoder_decoder(config) &&
               moec_config_stack(config, layer) == MOEC_STACK_DECODER;
    default:
        return false;
    }
}

bool moec_role_is_quantisable(enum moec_role role)
{
    switch (role) {
    case MOEC_ROLE_EMBEDDING:
    case MOEC_ROLE_EMBEDDING_REST:
    case MOEC_ROLE_HEAD:
    case MOEC_ROLE_HEAD_REST:
    case MOEC_ROLE_Q:
    case MOEC_ROLE_K:
    case MOEC_ROLE_V:
    case MOEC_ROLE_O:
    case MOEC_ROLE_Q_DOWN:
    case MOEC_ROLE_KV_DOWN:
    case MOEC_ROLE_KV_UP:
    case MOEC_ROLE_OUTPUT_GATE:
    case MOEC_ROLE_INPUT_GATE:
    case MOEC_ROLE_SHARED_UP:
    case MOEC_ROLE_SHARED_GATE:
    case MOEC_ROLE_SHARED_DOWN:
    case MOEC_ROLE_DENSE_UP:
    case MOEC_ROLE_DENSE_GATE:
    case MOEC_ROLE_DENSE_DOWN:
    case MOEC_ROLE_CROSS_Q:
    case MOEC_ROLE_CROSS_K:
    case MOEC_ROLE_CROSS_V:
    case MOEC_ROLE_CROSS_O:
    case MOEC_ROLE_BYPASS:
    case MOEC_ROLE_OUTPUT_PROJECTION:
        return true;
    default:
        return false;
    }
}

enum moec_role moec_role_whole(enum moec_role role)
{
    return role == MOEC_ROLE_EMBEDDING_REST ? MOEC_ROLE_EMBEDDING
           : role == MOEC_ROLE_HEAD_REST    ? MOEC_ROLE_HEAD
                                            : role;
}

enum moec_role moec_role_rest(enum moec_role role)
{
    return role == MOEC_ROLE_EMBEDDING ? MOEC_ROLE_EMBEDDING_REST
           : role == MOEC_ROLE_HEAD    ? MOEC_ROLE_HEAD_REST
                                       : role;
}

bool moec_role_is_of_head(const struct moec_config *config, enum moec_role role)
{
    return moec_role_whole(role) == (config->head.is_tied ? MOEC_ROLE_EMBEDDING : MOEC_ROLE_HEAD);
}

bool moec_role_is_transposed(enum moec_role role)
{
    return role == MOEC_ROLE_SHARED_DOWN || role == MOEC_ROLE_DENSE_DOWN;
}

void moec_role_shape(const struct moec_config *c, enum moec_role role, uint32_t layer, uint32_t *rows,
                     uint32_t *columns)
{
    static const struct moec_layer_kind no_kind = {0};
    const struct moec_layer_kind *k = layer < c->n_layer ? moec_config_layer(c, layer) : &no_kind;
    *rows = 0;
    *columns = 0;
    switch (role) {
#define MOEC_ROLE_CASE(name, number, n_rows, n_columns)                                                      \
    case MOEC_ROLE_##name:                                                                                   \
        *rows = n_rows;                                                                                      \
        *columns = n_columns;                                                                                \
        break;
        MOEC_ROLE_MAP(MOEC_ROLE_CASE)
#undef MOEC_ROLE_CASE
    case MOEC_ROLE_COUNT:
        break;
    }
}

bool moec_dense_next(const struct moec_config *config, struct moec_dense_walk *walk)
{
    const uint64_t end = ((uint64_t)config->n_layer + 1) * MOEC_ROLE_COUNT;
    while (walk->next < end) {
        const uint64_t at = walk->next++, layer = at / MOEC_ROLE_COUNT;
        walk->layer = layer < config->n_layer ? (uint32_t)layer : MOEC_LAYER_NONE;
        walk->role = (enum moec_role)(at % MOEC_ROLE_COUNT);
        if (!moec_role_expected(config, walk->role, walk->layer))
            continue;
        moec_role_shape(config, walk->role, walk->layer, &walk->rows, &walk->columns);
        return true;
    }
    return false;
}

bool moec_dense_next_matrix(const struct moec_config *config, struct moec_dense_walk *walk)
{
    while (moec_dense_next(config, walk))
        if (moec_role_is_quantisable(walk->role))
            return true;
    return false;
}

/* ---- table ---- */

static const char *entry_name(char text[static 80], const struct moec_dense_entry *entry)
{
    if (entry->layer == MOEC_LAYER_NONE)
        (void)snprintf(text, 80, "'%s'", moec_role_name(entry->role));
    else
        (void)snprintf(text, 80, "'%s' of layer %u", moec_role_name(entry->role), entry->layer);
    return text;
}

static uint64_t aligned(uint64_t offset)
{
    return (offset + BLOB_ALIGNMENT - 1) / BLOB_ALIGNMENT * BLOB_ALIGNMENT;
}

static enum moec_status check_codec(const struct moec_dense_entry *entry, struct moec_error *err)
{
    char name[80];
    MOEC_TRY(moec_codec_check(entry->codec, entry_name(name, entry), err));
    if (!moec_role_is_quantisable(entry->role) && entry->codec.dtype > MOEC_DTYPE_BF16)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is quantised, expected F32, F16 or BF16",
                         entry_name(name, entry));
    if (moec_codec_traits(entry->codec)->is_exact)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is MXFP4, which only routed experts may use",
                         entry_name(name, entry));
    return MOEC_OK;
}

enum moec_status moec_dense_create_table(const struct moec_config *config,
                                         struct moec_codec (*codec_of)(void *context, enum moec_role role,
                                                                       uint32_t layer),
                                         void *context, struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    void *entries = NULL;
    uint32_t count = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next(config, &at);)
        count++;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc(&entries, count, sizeof *made.entries, "table of dense weights", err));
    made.entries = entries;
    uint64_t end = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next(config, &at);) {
        struct moec_dense_entry *entry = &made.entries[made.n_entries++];
        *entry = (struct moec_dense_entry){.role = (uint32_t)at.role,
                                           .layer = at.layer,
                                           .codec = codec_of(context, at.role, at.layer),
                                           .rows = at.rows,
                                           .columns = at.columns};
        MOEC_TRY_OUT(check_codec(entry, err));
        entry->offset = aligned(end);
        entry->n_bytes = (uint64_t)entry->rows * moec_codec_row_bytes(entry->codec, entry->columns);
        end = entry->offset + entry->n_bytes;
    }
    made.blob_bytes = aligned(end);
    *dense = made;
    made = (struct moec_dense){0};
out:
    moec_dense_release(&made);
    return status;
}

/* Gaps are zero: they are written to bundles and must not hold what was in memory before. */
static enum moec_status allocate_blob(const struct moec_dense *dense, uint8_t **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc_aligned(&memory, dense->blob_bytes, 1, "dense weights", err));
    uint8_t *blob = memory;
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        uint64_t from = dense->entries[i].offset + dense->entries[i].n_bytes;
        memset(blob + from, 0, (size_t)(aligned(from) - from));
    }
    *out = blob;
    return MOEC_OK;
}

enum moec_status moec_dense_create(const struct moec_config *config,
                                   struct moec_codec (*codec_of)(void *context, enum moec_role role,
                                                                 uint32_t layer),
                                   void *context, struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    MOEC_TRY(moec_dense_create_table(config, codec_of, context, &made, err));
    enum moec_status status = allocate_blob(&made, &made.blob, err);
    if (status != MOEC_OK)
        moec_dense_release(&made);
    else
        *dense = made;
    return status;
}

enum moec_status moec_dense_load(struct moec_dense *dense, struct moec_error *err)
{
    uint8_t *blob = NULL;
    MOEC_TRY(allocate_blob(dense, &blob, err));
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        enum moec_status status =
            dense->source->load(dense->source, entry, 0, entry->rows, blob + entry->offset, err);
        if (status != MOEC_OK) {
            free(blob);
            return status;
        }
    }
    dense->source->free(dense->source);
    dense->source = NULL;
    dense->blob = blob;
    return MOEC_OK;
}

void moec_matrix_decode_span(const struct moec_matrix *matrix, uint32_t row, size_t first, size_t count,
                             float *weights)
{
    const size_t stride = matrix->stride_bytes;
    if (matrix->codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        moec_mxfp4_decode_block_span(matrix->data + row / MOEC_MXFP4_GROUP * MOEC_MXFP4_GROUP * stride,
                                     stride, row % MOEC_MXFP4_GROUP, matrix->columns, first, count, weights);
    else
        moec_codec_decode_span(matrix->codec, matrix->data + row * stride, matrix->columns, first, count,
                               weights);
}

static enum moec_status check_entry(const struct moec_dense_entry *entry,
                                    const struct moec_dense_walk *expected, uint64_t previous_end,
                                    uint64_t blob_bytes, struct moec_error *err)
{
    char name[80], other[80];
    const uint32_t rows = expected->rows, columns = expected->columns;
    struct moec_dense_entry wanted = {.role = (uint32_t)expected->role, .layer = expected->layer};
    if (entry->role != wanted.role || entry->layer != wanted.layer)
        return moec_fail(err, MOEC_ERR_FORMAT, "the table of dense weights has %s, expected %s in this place",
                         entry_name(name, entry), entry_name(other, &wanted));
    MOEC_TRY(check_codec(entry, err));
    if (entry->rows != rows || entry->columns != columns)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has shape [%u, %u], expected [%u, %u]",
                         entry_name(name, entry), entry->rows, entry->columns, rows, columns);
    uint64_t n_bytes = (uint64_t)rows * moec_codec_row_bytes(entry->codec, columns);
    if (entry->n_bytes != n_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %" PRIu64 " bytes, expected %" PRIu64,
                         entry_name(name, entry), entry->n_bytes, n_bytes);
    if (entry->offset % BLOB_ALIGNMENT != 0 || entry->offset < previous_end)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s is at offset %" PRIu64 ", expected a multiple of %u that is at least %" PRIu64,
                         entry_name(name, entry), entry->offset, BLOB_ALIGNMENT, previous_end);
    if (entry->offset > blob_bytes || n_bytes > blob_bytes - entry->offset)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s begins at offset %" PRIu64 " and has %" PRIu64
                         " bytes, which does not fit in the dense weights' %" PRIu64 " bytes",
                         entry_name(name, entry), entry->offset, n_bytes, blob_bytes);
    return MOEC_OK;
}

enum moec_status moec_dense_check(const struct moec_dense *dense, const struct moec_config *config,
                                  struct moec_error *err)
{
    uint64_t end = 0;
    uint32_t count = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next(config, &at); count++) {
        if (count >= dense->n_entries)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the table of dense weights ends after %u tensors: '%s' is missing", count,
                             moec_role_name(at.role));
        const struct moec_dense_entry *entry = &dense->entries[count];
        MOEC_TRY(check_entry(entry, &at, end, dense->blob_bytes, err));
        end = entry->offset + entry->n_bytes;
    }
    if (count != dense->n_entries)
        return moec_fail(err, MOEC_ERR_FORMAT, "the table of dense weights has %u tensors, expected %u",
                         dense->n_entries, count);
    return MOEC_OK;
}

static enum moec_status check_route(const struct moec_dense_entry *entry, uint32_t token,
                                    const float *experts, uint32_t n_expert, struct moec_error *err)
{
    for (uint32_t i = 0; i < entry->columns; i++) {
        const float expert = experts[i];
        if (!(expert >= 0 && expert < (float)n_expert && expert == (float)(uint32_t)expert))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the routing table of layer %u sends token id %u to expert "
                             "%g, expected one of 0..%u",
                             entry->layer, token, (double)expert, n_expert - 1);
        for (uint32_t before = 0; before < i; before++)
            if (experts[before] == expert)
                return moec_fail(err, MOEC_ERR_FORMAT,
                                 "the routing table of layer %u sends token id %u to expert %g twice, "
                                 "expected %u different ones",
                                 entry->layer, token, (double)expert, entry->columns);
    }
    return MOEC_OK;
}

enum moec_status moec_dense_check_routes(const struct moec_dense_entry *entry, uint32_t first_row,
                                         uint32_t n_rows, const uint8_t *rows, uint32_t n_expert,
                                         struct moec_error *err)
{
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    float experts[MOEC_MAX_TOP_K];
    for (uint32_t i = 0; i < n_rows; i++) {
        moec_codec_decode_row(entry->codec, rows + i * row_bytes, entry->columns, experts);
        MOEC_TRY(check_route(entry, first_row + i, experts, n_expert, err));
    }
    return MOEC_OK;
}

const struct moec_dense_entry *moec_dense_entry_find(const struct moec_dense *dense, enum moec_role role,
                                                     uint32_t layer)
{
    uint64_t wanted = (uint64_t)layer << 32 | (uint32_t)role;
    uint32_t low = 0, high = dense->n_entries;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct moec_dense_entry *entry = &dense->entries[middle];
        uint64_t key = (uint64_t)entry->layer << 32 | entry->role;
        if (key == wanted)
            return entry;
        if (key < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

struct moec_matrix moec_dense_matrix(const struct moec_dense_entry *entry, uint32_t n_rows,
                                     const uint8_t *rows)
{
    return (struct moec_matrix){.codec = entry->codec,
                                .rows = n_rows,
                                .columns = entry->columns,
                                .stride_bytes = moec_codec_row_bytes(entry->codec, entry->columns),
                                .data = rows,
                                .entry = entry};
}

bool moec_dense_find(const struct moec_dense *dense, enum moec_role role, uint32_t layer,
                     struct moec_matrix *matrix)
{
    const struct moec_dense_entry *entry = moec_dense_entry_find(dense, role, layer);
    if (entry == NULL)
        return false;
    *matrix = moec_dense_matrix(entry, entry->rows, dense->blob == NULL ? NULL : dense->blob + entry->offset);
    return true;
}

/* ---- in order ---- */

/* Rows of an entry that are made at once. */
static uint32_t emitted_rows(const struct moec_dense_entry *entry)
{
    uint64_t rows = EMIT_BYTES / moec_codec_row_bytes(entry->codec, entry->columns);
    if (moec_role_is_transposed((enum moec_role)entry->role) || rows > entry->rows)
        return entry->rows;
    return rows > 0 ? (uint32_t)rows : 1;
}

/* `buffer` is of a source, NULL with a blob. */
static enum moec_status emit_entry(const struct moec_dense *dense, const struct moec_dense_entry *entry,
                                   uint8_t *buffer, moec_dense_sink *sink, void *context,
                                   struct moec_error *err)
{
    static const uint8_t zeros[BLOB_ALIGNMENT];
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    const uint64_t end = entry->offset + entry->n_bytes;
    if (buffer == NULL)
        MOEC_TRY(sink(context, dense->blob + entry->offset, (size_t)entry->n_bytes, err));
    for (uint32_t row = 0; buffer != NULL && row < entry->rows;) {
        uint32_t n = emitted_rows(entry);
        n = n < entry->rows - row ? n : entry->rows - row;
        MOEC_TRY(dense->source->load(dense->source, entry, row, n, buffer, err));
        MOEC_TRY(sink(context, buffer, n * row_bytes, err));
        row += n;
    }
    return sink(context, zeros, (size_t)(aligned(end) - end), err);
}

enum moec_status moec_dense_emit_entries(const struct moec_dense *dense, uint32_t first, uint32_t n,
                                         moec_dense_sink *sink, void *context, struct moec_error *err)
{
    uint64_t n_buffer = 0;
    for (uint32_t i = first; i < first + n; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        uint64_t bytes = emitted_rows(entry) * (uint64_t)moec_codec_row_bytes(entry->codec, entry->columns);
        n_buffer = bytes > n_buffer ? bytes : n_buffer;
    }
    void *buffer = NULL;
    enum moec_status status = MOEC_OK;
    if (dense->source != NULL)
        MOEC_TRY(moec_alloc_aligned(&buffer, n_buffer, 1, "a piece of the dense weights", err));
    for (uint32_t i = first; i < first + n; i++)
        MOEC_TRY_OUT(emit_entry(dense, &dense->entries[i], buffer, sink, context, err));
out:
    free(buffer);
    return status;
}

enum moec_status moec_dense_emit(const struct moec_dense *dense, moec_dense_sink *sink, void *context,
                                 struct moec_error *err)
{
    if (dense->source == NULL)
        return sink(context, dense->blob, (size_t)dense->blob_bytes, err);
    return moec_dense_emit_entries(dense, 0, dense->n_entries, sink, context, err);
}

void moec_dense_release(struct moec_dense *dense)
{
    if (dense == NULL)
        return;
    free(dense->entries);
    if (dense->late != NULL)
        dense->late->free(dense->late);
    if (dense->mapped_bytes > 0) /* its memory is to be the process's own again */
        moec_unmap_file(dense->blob, dense->mapped_bytes);
    free(dense->blob);
    if (dense->source != NULL)
        dense->source->free(dense->source);
    *dense = (struct moec_dense){0};
}
