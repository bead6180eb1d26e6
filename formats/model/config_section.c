/* The config as a section of a bundle or a dataset of a profile (formats/bundle/FORMAT.md, "Config").
 *
 * Little-endian, no padding; offsets in bytes:
 *     0 u32 version (1, 2 or 3)      4 char family[24], NUL-padded
 *    28 u32 n_layer, n_embd, n_head, n_kv_head, head_dim, n_vocab, n_position, window,
 *           n_expert, top_k, n_ff_expert, n_ff_shared, n_ff_dense
 *    80 u64 rope_theta, rms_eps: bits of F64
 *    96 u32 clip_qkv: bits of F32
 *   100 u8  qkv_bias, qk_norm, tied_head, shared_gate, norm_topk_prob (0 or 1), expert_dtype, 0, 0
 *   108 u32 n_eos               112 u32 eos_ids[n_eos]
 *   then u8 is_moe[n_layer]
 * in versions 2 and 3:
 *     0 u32 n_encoder_layer, n_bucket, max_distance, expert_capacity, decoder_start_id, pad_id
 *    24 u8  activation, plain_mlp, router_bias, scaled_head
 * and in version 3 blocks up to the end, in increasing order of their tags:
 *     0 u32 tag, n_bytes          8 u8  payload[n_bytes]
 *
 * Of what layers differ in, the fixed fields say what the first layer (of MLPs: the first without experts)
 * has. A config has one encoding: a block is written where the fixed fields cannot say what it says, and the
 * version is the lowest that holds it all. */
#include "formats/model/config.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <string.h>

#define SUBJECT       "config section"
#define SECTION_FIXED 112u
#define SECTION_TAIL  28u
#define BLOCK_HEADER  8u

/* Cursors over moec_put_ and moec_get_. */
static void put_u32(uint8_t **at, uint32_t value)
{
    moec_put_u32(*at, value);
    *at += 4;
}

static void put_f64(uint8_t **at, double value)
{
    moec_put_f64(*at, value);
    *at += 8;
}

static void put_f32(uint8_t **at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u32(at, bits);
}

static uint32_t get_u32(const uint8_t **at)
{
    *at += 4;
    return moec_get_u32(*at - 4);
}

static double get_f64(const uint8_t **at)
{
    *at += 8;
    return moec_get_f64(*at - 8);
}

static float get_f32(const uint8_t **at)
{
    const uint32_t bits = get_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A config on its way out of a section. Layers are put together when everything has been read: until then its
 * table of kinds is empty. */
struct reading {
    struct moec_config config;
    uint32_t n_layer;
    uint32_t n_attention;
    struct moec_layer_kind attention[MOEC_MAX_LAYER_KINDS]; /* the first from the fixed fields; no MLPs */
    uint8_t attention_of[MOEC_MAX_LAYERS];
    uint8_t is_moe[MOEC_MAX_LAYERS];
    uint32_t n_ff_dense[MOEC_MAX_LAYERS]; /* looked at where a layer has no experts */
};

/* ---- blocks ---- */

/* What the fixed fields cannot say. To say something new, add a row to the table below with a tag of its own,
 * and its description to FORMAT.md. */
struct block {
    uint32_t tag;
    const char *name;
    /* Bytes of the payload; 0 = the fixed fields say it all, and there is no block. */
    size_t (*size)(const struct moec_config *config);
    void (*encode)(const struct moec_config *config, uint8_t *payload);
    /* Fixed fields have been read; moec_config_check follows, and that the config needs these n_bytes. */
    enum moec_status (*decode)(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                               struct moec_error *err);
};

/* Attentions in the order of the first layer of each, and which one each layer has; returns how many. */
static uint32_t list_attentions(const struct moec_config *c, const struct moec_layer_kind **attentions,
                                uint8_t *attention_of)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(c, layer);
        uint32_t found = 0;
        while (found < n && !moec_layer_same_attention(attentions[found], kind))
            found++;
        if (found == n)
            attentions[n++] = kind;
        attention_of[layer] = (uint8_t)found;
    }
    return n;
}

/* How layers attend: u32 n, the number of attentions beside the first layer's, ATTENTION_BYTES for each, and
 * a byte for each layer that picks one, 0 the first layer's. */
#define ATTENTION_BYTES 32u

static size_t attentions_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    return n > 1 ? sizeof(uint32_t) + (size_t)(n - 1) * ATTENTION_BYTES + c->n_layer : 0;
}

static void encode_attentions(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    put_u32(&payload, n - 1);
    for (uint32_t i = 1; i < n; i++) {
        const struct moec_layer_kind *kind = attentions[i];
        const uint32_t counts[4] = {kind->n_head, kind->n_kv_head, kind->head_dim, kind->window};
        const uint8_t flags[4] = {kind->qkv_bias, kind->qk_norm == MOEC_QK_NORM_WHOLE, 0, 0};
        for (size_t j = 0; j < 4; j++)
            put_u32(&payload, counts[j]);
        put_f64(&payload, kind->rope_theta);
        put_f32(&payload, kind->clip_qkv);
        memcpy(payload, flags, sizeof flags);
        payload += sizeof flags;
    }
    memcpy(payload, attention_of, c->n_layer);
}

static enum moec_status decode_attention(const uint8_t **at, uint32_t i, struct moec_layer_kind *kind,
                                         struct moec_error *err)
{
    uint32_t *const counts[4] = {&kind->n_head, &kind->n_kv_head, &kind->head_dim, &kind->window};
    for (size_t j = 0; j < 4; j++)
        *counts[j] = get_u32(at);
    kind->rope_theta = get_f64(at);
    kind->clip_qkv = get_f32(at);
    for (size_t j = 0; j < 4; j++)
        if ((*at)[j] > (j < 2 ? 1 : 0))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " has %u for flag %zu of attention %u, expected %s", (*at)[j], j, i,
                             j < 2 ? "0 or 1" : "0");
    kind->qkv_bias = (*at)[0] != 0;
    kind->qk_norm = (*at)[1] != 0 ? MOEC_QK_NORM_WHOLE : MOEC_QK_NORM_NONE;
    *at += 4;
    return MOEC_OK;
}

/* One order is right: that of the first layer of each. */
static enum moec_status decode_attentions(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                          struct moec_error *err)
{
    const uint32_t n = n_bytes < sizeof(uint32_t) ? 0 : get_u32(&payload);
    if (n < 1 || n >= MOEC_MAX_LAYER_KINDS)
        return moec_fail(err, MOEC_ERR_LIMIT, SUBJECT " says %u more kinds of attention, expected 1..%u", n,
                         MOEC_MAX_LAYER_KINDS - 1);
    const size_t wanted = sizeof(uint32_t) + (size_t)n * ATTENTION_BYTES + reading->n_layer;
    if (n_bytes != wanted)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for kinds of attention, expected %zu",
                         n_bytes, wanted);
    for (uint32_t i = 1; i <= n; i++)
        MOEC_TRY(decode_attention(&payload, i, &reading->attention[i], err));
    reading->n_attention = n + 1;
    uint32_t n_seen = 0;
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (payload[layer] > n_seen || payload[layer] > n)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " says attention %u of %u for layer %u, out of order", payload[layer], n,
                             layer);
        n_seen += payload[layer] == n_seen;
        reading->attention_of[layer] = payload[layer];
    }
    return MOEC_OK;
}

/* What attentions have beyond those fields, FORM_BYTES for each, the first layer's included. */
#define FORM_BYTES 52u

static bool is_plain_attention(const struct moec_layer_kind *kind)
{
    return kind->qk_norm <= MOEC_QK_NORM_WHOLE && !kind->o_bias && !kind->has_sinks && !kind->has_gate &&
           kind->rotary_dim == 0 && kind->score_scale == 0 && kind->rope_scaling.kind == MOEC_ROPE_PLAIN;
}

static size_t forms_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    bool is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        is_plain = is_plain && is_plain_attention(attentions[i]);
    return is_plain ? 0 : (size_t)n * FORM_BYTES;
}

static void encode_forms(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    for (uint32_t i = 0; i < n; i++) {
        const struct moec_layer_kind *kind = attentions[i];
        const struct moec_rope_scaling *scaling = &kind->rope_scaling;
        const uint8_t norm = kind->qk_norm == MOEC_QK_NORM_WHOLE ? 0 : kind->qk_norm;
        const uint8_t flags[4] = {norm, kind->o_bias, kind->has_sinks, kind->has_gate};
        const uint8_t scaling_flags[4] = {scaling->kind, scaling->truncate, 0, 0};
        memcpy(payload, flags, sizeof flags);
        payload += sizeof flags;
        put_u32(&payload, kind->rotary_dim);
        put_f32(&payload, kind->score_scale);
        memcpy(payload, scaling_flags, sizeof scaling_flags);
        payload += sizeof scaling_flags;
        put_u32(&payload, scaling->original_positions);
        put_f64(&payload, scaling->factor);
        put_f64(&payload, scaling->beta_fast);
        put_f64(&payload, scaling->beta_slow);
        put_f64(&payload, scaling->attention_factor);
    }
}

static enum moec_status decode_form(const uint8_t **at, uint32_t i, struct moec_layer_kind *kind,
                                    struct moec_error *err)
{
    struct moec_rope_scaling *scaling = &kind->rope_scaling;
    const uint8_t *flags = *at, *scaling_flags = *at + 12;
    const bool is_good = flags[0] != MOEC_QK_NORM_WHOLE && flags[1] <= 1 && flags[2] <= 1 && flags[3] <= 1 &&
                         scaling_flags[1] <= 1 && scaling_flags[2] == 0 && scaling_flags[3] == 0;
    if (!is_good || (flags[0] != 0 && kind->qk_norm != 0))
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has flags of attention %u that contradict", i);
    kind->qk_norm = flags[0] != 0 ? flags[0] : kind->qk_norm;
    kind->o_bias = flags[1] != 0;
    kind->has_sinks = flags[2] != 0;
    kind->has_gate = flags[3] != 0;
    *at += 4;
    kind->rotary_dim = get_u32(at);
    kind->score_scale = get_f32(at);
    scaling->kind = scaling_flags[0];
    scaling->truncate = scaling_flags[1] != 0;
    *at += 4;
    scaling->original_positions = get_u32(at);
    scaling->factor = get_f64(at);
    scaling->beta_fast = get_f64(at);
    scaling->beta_slow = get_f64(at);
    scaling->attention_factor = get_f64(at);
    return MOEC_OK;
}

static enum moec_status decode_forms(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                     struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * FORM_BYTES;
    if (n_bytes != wanted)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for forms of attention, expected %zu",
                         n_bytes, wanted);
    for (uint32_t i = 0; i < reading->n_attention; i++)
        MOEC_TRY(decode_form(&payload, i, &reading->attention[i], err));
    return MOEC_OK;
}

/* Of each attention, the first layer's included: u8 kind of mixing, u8 values are normed, u8 keys are values,
 * u8 0, u32 positions of a convolution, u32 dimension of values. */
#define MIXER_BYTES 12u

static size_t mixers_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    bool is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        is_plain = is_plain && attentions[i]->mixer == MOEC_MIXER_ATTENTION &&
                   attentions[i]->value_dim == 0 && !attentions[i]->v_norm && !attentions[i]->keys_are_values;
    return is_plain ? 0 : (size_t)n * MIXER_BYTES;
}

static void encode_mixers(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t flags[4] = {attentions[i]->mixer, attentions[i]->v_norm, attentions[i]->keys_are_values,
                                  0};
        memcpy(payload, flags, sizeof flags);
        payload += sizeof flags;
        put_u32(&payload, attentions[i]->conv_size);
        put_u32(&payload, attentions[i]->value_dim);
    }
}

static enum moec_status decode_mixers(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                      struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * MIXER_BYTES;
    if (n_bytes != wanted)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for kinds of mixing, expected %zu",
                         n_bytes, wanted);
    for (uint32_t i = 0; i < reading->n_attention; i++) {
        struct moec_layer_kind *kind = &reading->attention[i];
        kind->mixer = payload[0];
        if (payload[1] > 1 || payload[2] > 1 || payload[3] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT
                             " has %u, %u and %u after the kind of mixing of attention %u, expected 0 or "
                             "1 twice, and 0",
                             payload[1], payload[2], payload[3], i);
        kind->v_norm = payload[1] != 0;
        kind->keys_are_values = payload[2] != 0;
        payload += 4;
        kind->conv_size = get_u32(&payload);
        kind->value_dim = get_u32(&payload);
    }
    return MOEC_OK;
}

/* Of each attention: u32 latent of keys and values, u32 latent of queries. */
#define LATENT_BYTES 8u

static size_t latents_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    bool is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        is_plain = is_plain && attentions[i]->latent_dim == 0 && attentions[i]->q_latent_dim == 0;
    return is_plain ? 0 : (size_t)n * LATENT_BYTES;
}

static void encode_latents(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    for (uint32_t i = 0; i < n; i++) {
        put_u32(&payload, attentions[i]->latent_dim);
        put_u32(&payload, attentions[i]->q_latent_dim);
    }
}

static enum moec_status decode_latents(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                       struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * LATENT_BYTES;
    if (n_bytes != wanted)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for latents, expected %zu", n_bytes,
                         wanted);
    for (uint32_t i = 0; i < reading->n_attention; i++) {
        reading->attention[i].latent_dim = get_u32(&payload);
        reading->attention[i].q_latent_dim = get_u32(&payload);
    }
    return MOEC_OK;
}

/* Neurons of the first MLP without experts; 0 where every layer has experts. */
static uint32_t first_dense_size(const struct moec_config *c)
{
    for (uint32_t i = 0; i < c->n_kind; i++)
        if (!c->kinds[i].is_moe)
            return c->kinds[i].n_ff_dense;
    return 0;
}

/* Sizes of the MLPs without experts but the first, where they differ. */
static size_t dense_sizes_size(const struct moec_config *c)
{
    const uint32_t first = first_dense_size(c);
    bool differ = false;
    for (uint32_t i = 0; i < c->n_kind; i++)
        differ = differ || (!c->kinds[i].is_moe && c->kinds[i].n_ff_dense != first);
    return differ ? sizeof(uint32_t) * (size_t)(c->n_layer - moec_config_moe_count(c) - 1) : 0;
}

static void encode_dense_sizes(const struct moec_config *c, uint8_t *payload)
{
    bool is_first = true;
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        if (moec_config_is_moe(c, layer))
            continue;
        if (!is_first)
            put_u32(&payload, moec_config_layer(c, layer)->n_ff_dense);
        is_first = false;
    }
}

static enum moec_status decode_dense_sizes(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                           struct moec_error *err)
{
    const uint8_t *const end = payload + n_bytes;
    bool is_first = true;
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (reading->is_moe[layer])
            continue;
        if (!is_first && (size_t)(end - payload) < sizeof(uint32_t))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " has %zu bytes for MLP sizes, which leave none for layer %u", n_bytes,
                             layer);
        if (!is_first)
            reading->n_ff_dense[layer] = get_u32(&payload);
        is_first = false;
    }
    return MOEC_OK;
}

#define ROUTER_BYTES 8u

/* u8 kind, u8 has a choice bias, u8 has a soft sum, u8 0, f32 scale. */
static size_t router_size(const struct moec_config *c)
{
    return c->router_kind != 0 || c->router_choice_bias || c->router_soft_sum || c->router_scale != 0
               ? ROUTER_BYTES
               : 0;
}

static void encode_router(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->router_kind, c->router_choice_bias, c->router_soft_sum, 0};
    memcpy(payload, flags, sizeof flags);
    payload += sizeof flags;
    put_f32(&payload, c->router_scale);
}

static enum moec_status decode_router(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                      struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    if (n_bytes != ROUTER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for the router, expected %u", n_bytes,
                         ROUTER_BYTES);
    if (payload[1] > 1 || payload[2] > 1 || payload[3] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         SUBJECT " has %u, %u and %u after the kind of router, expected 0 or 1 twice, and 0",
                         payload[1], payload[2], payload[3]);
    c->router_kind = payload[0];
    c->router_choice_bias = payload[1] != 0;
    c->router_soft_sum = payload[2] != 0;
    payload += 4;
    c->router_scale = get_f32(&payload);
    return MOEC_OK;
}

#define GROUP_BYTES 12u

/* u32 groups, u32 chosen groups, u8 score, 3 zeros. */
static size_t groups_size(const struct moec_config *c)
{
    return c->n_group > 0 ? GROUP_BYTES : 0;
}

static void encode_groups(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->group_score, 0, 0, 0};
    put_u32(&payload, c->n_group);
    put_u32(&payload, c->n_top_group);
    memcpy(payload, flags, sizeof flags);
}

static enum moec_status decode_groups(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                      struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    if (n_bytes != GROUP_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for groups of experts, expected %u",
                         n_bytes, GROUP_BYTES);
    c->n_group = get_u32(&payload);
    c->n_top_group = get_u32(&payload);
    c->group_score = payload[0];
    if (payload[1] != 0 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         SUBJECT " has bytes after the score of groups of experts, expected 0");
    return MOEC_OK;
}

#define EXPERT_BYTES 4u

/* u8 has biases, 3 zeros. */
static size_t experts_size(const struct moec_config *c)
{
    return c->expert_bias ? EXPERT_BYTES : 0;
}

static void encode_experts(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[EXPERT_BYTES] = {c->expert_bias, 0, 0, 0};
    memcpy(payload, flags, sizeof flags);
}

static enum moec_status decode_experts(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                       struct moec_error *err)
{
    if (n_bytes != EXPERT_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for forms of experts, expected %u",
                         n_bytes, EXPERT_BYTES);
    if (payload[0] != 1 || payload[1] != 0 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         SUBJECT " has flags of experts %u, %u, %u and %u, expected 1, 0, 0 and 0",
                         payload[0], payload[1], payload[2], payload[3]);
    reading->config.expert_bias = true;
    return MOEC_OK;
}

#define NORM_BYTES 16u

/* u8 place of norms, 3 zeros, f32 embedding scale, residual scale, logit divisor. */
static size_t norms_size(const struct moec_config *c)
{
    return c->norms != 0 || c->embedding_scale != 0 || c->residual_scale != 0 || c->logit_divisor != 0
               ? NORM_BYTES
               : 0;
}

static void encode_norms(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->norms, 0, 0, 0};
    memcpy(payload, flags, sizeof flags);
    payload += sizeof flags;
    put_f32(&payload, c->embedding_scale);
    put_f32(&payload, c->residual_scale);
    put_f32(&payload, c->logit_divisor);
}

static enum moec_status decode_norms(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                     struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    if (n_bytes != NORM_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for norms and factors, expected %u",
                         n_bytes, NORM_BYTES);
    if (payload[1] != 0 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has bytes after the place of norms, expected 0");
    c->norms = payload[0];
    payload += 4;
    c->embedding_scale = get_f32(&payload);
    c->residual_scale = get_f32(&payload);
    c->logit_divisor = get_f32(&payload);
    return MOEC_OK;
}

#define CAP_BYTES 8u

/* u8 own norms of router and experts, u8 scale of layers, u16 0, f32 cap of logits. */
static size_t caps_size(const struct moec_config *c)
{
    return c->own_norms || c->layer_scale || c->logit_cap != 0 ? CAP_BYTES : 0;
}

static void encode_caps(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->own_norms, c->layer_scale, 0, 0};
    memcpy(payload, flags, sizeof flags);
    payload += sizeof flags;
    put_f32(&payload, c->logit_cap);
}

static enum moec_status decode_caps(const uint8_t *payload, size_t n_bytes, struct reading *reading,
                                    struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    if (n_bytes != CAP_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes for own norms and caps, expected %u",
                         n_bytes, CAP_BYTES);
    if (payload[0] > 1 || payload[1] > 1 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         SUBJECT
                         " has %u, %u, %u and %u for own norms and scales, expected 0 or 1 twice, and 0 "
                         "twice",
                         payload[0], payload[1], payload[2], payload[3]);
    c->own_norms = payload[0] != 0;
    c->layer_scale = payload[1] != 0;
    payload += 4;
    c->logit_cap = get_f32(&payload);
    return MOEC_OK;
}

static const struct block blocks[] = {
    {1, "kinds of attention", attentions_size, encode_attentions, decode_attentions},
    {2, "MLP sizes", dense_sizes_size, encode_dense_sizes, decode_dense_sizes},
    {3, "forms of attention", forms_size, encode_forms, decode_forms},
    {8, "kinds of mixing", mixers_size, encode_mixers, decode_mixers},
    {9, "latents", latents_size, encode_latents, decode_latents},
    {16, "the router", router_size, encode_router, decode_router},
    {17, "groups of experts", groups_size, encode_groups, decode_groups},
    {18, "forms of experts", experts_size, encode_experts, decode_experts},
    {32, "norms and factors", norms_size, encode_norms, decode_norms},
    {33, "own norms and caps", caps_size, encode_caps, decode_caps},
};

#define N_BLOCKS (sizeof blocks / sizeof *blocks)

static size_t blocks_size(const struct moec_config *c)
{
    size_t total = 0;
    for (size_t i = 0; i < N_BLOCKS; i++) {
        const size_t n_bytes = blocks[i].size(c);
        total += n_bytes > 0 ? BLOCK_HEADER + n_bytes : 0;
    }
    return total;
}

static void encode_blocks(const struct moec_config *c, uint8_t **at)
{
    for (size_t i = 0; i < N_BLOCKS; i++) {
        const size_t n_bytes = blocks[i].size(c);
        if (n_bytes == 0)
            continue;
        put_u32(at, blocks[i].tag);
        put_u32(at, (uint32_t)n_bytes);
        blocks[i].encode(c, *at);
        *at += n_bytes;
    }
}

static enum moec_status decode_blocks(const uint8_t *at, size_t n_left, struct reading *reading,
                                      struct moec_error *err)
{
    uint32_t last = 0;
    while (n_left > 0) {
        if (n_left < BLOCK_HEADER)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " ends with %zu bytes, expected a block's header of %u", n_left,
                             BLOCK_HEADER);
        const uint32_t tag = get_u32(&at), n_bytes = get_u32(&at);
        n_left -= BLOCK_HEADER;
        if (tag <= last)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " has block %u after block %u, expected rising tags", tag, last);
        if (n_bytes > n_left)
            return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes left for block %u, which has %u",
                             n_left, tag, n_bytes);
        size_t i = 0;
        while (i < N_BLOCKS && blocks[i].tag != tag)
            i++;
        if (i == N_BLOCKS)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             SUBJECT
                             " has a block with tag %u, which this version of moec does not know: it was "
                             "written by a newer version; use that one",
                             tag);
        MOEC_TRY(blocks[i].decode(at, n_bytes, reading, err));
        at += n_bytes;
        n_left -= n_bytes;
        last = tag;
    }
    return MOEC_OK;
}

/* Whether the blocks are those that the config needs, byte for byte as long. */
static enum moec_status check_blocks(const uint8_t *at, size_t n_left, const struct moec_config *c,
                                     struct moec_error *err)
{
    for (size_t i = 0; i < N_BLOCKS; i++) {
        const size_t wanted = blocks[i].size(c);
        const bool is_here = n_left > 0 && moec_get_u32(at) == blocks[i].tag;
        const uint32_t n_bytes = is_here ? moec_get_u32(at + 4) : 0;
        if (n_bytes != wanted || is_here != (wanted > 0))
            return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %u bytes for %s (block %u), expected %zu",
                             n_bytes, blocks[i].name, blocks[i].tag, wanted);
        if (is_here) {
            at += BLOCK_HEADER + n_bytes;
            n_left -= BLOCK_HEADER + n_bytes;
        }
    }
    return MOEC_OK;
}

/* ---- encoding ---- */

static bool needs_tail(const struct moec_config *c)
{
    return c->n_encoder_layer > 0 || c->activation != MOEC_ACTIVATION_SILU || c->plain_mlp || c->router_bias;
}

static void encode_tail(const struct moec_config *c, uint8_t **at)
{
    const uint32_t counts[6] = {c->n_encoder_layer, c->n_bucket,         c->max_distance,
                                c->expert_capacity, c->decoder_start_id, c->pad_id};
    for (size_t i = 0; i < 6; i++)
        put_u32(at, counts[i]);
    const uint8_t flags[4] = {c->activation, c->plain_mlp, c->router_bias, c->scaled_head};
    memcpy(*at, flags, sizeof flags);
    *at += sizeof flags;
}

static void encode_fixed(const struct moec_config *c, uint32_t version, uint8_t **at)
{
    const struct moec_layer_kind *kind = moec_config_layer(c, 0);
    put_u32(at, version);
    memcpy(*at, c->family, strlen(c->family));
    *at += sizeof c->family;
    const uint32_t counts[13] = {c->n_layer,         c->n_embd,  kind->n_head,   kind->n_kv_head,
                                 kind->head_dim,     c->n_vocab, c->n_position,  kind->window,
                                 c->n_expert,        c->top_k,   c->n_ff_expert, c->n_ff_shared,
                                 first_dense_size(c)};
    for (size_t i = 0; i < 13; i++)
        put_u32(at, counts[i]);
    put_f64(at, kind->rope_theta);
    put_f64(at, c->rms_eps);
    put_f32(at, kind->clip_qkv);
    const uint8_t flags[8] = {kind->qkv_bias,
                              kind->qk_norm == MOEC_QK_NORM_WHOLE,
                              c->tied_head,
                              c->shared_gate,
                              c->norm_topk_prob,
                              c->expert_dtype,
                              0,
                              0};
    memcpy(*at, flags, sizeof flags);
    *at += sizeof flags;
    put_u32(at, c->n_eos);
    for (uint32_t i = 0; i < c->n_eos; i++)
        put_u32(at, c->eos_ids[i]);
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        *(*at)++ = moec_config_is_moe(c, layer);
}

enum moec_status moec_config_encode(const struct moec_config *config, uint8_t **bytes, size_t *n_bytes,
                                    struct moec_error *err)
{
    const struct moec_config *c = config;
    void *memory = NULL;
    MOEC_TRY(moec_config_check(c, "config", err));
    const size_t n_block_bytes = blocks_size(c);
    const uint32_t version = n_block_bytes > 0 ? 3 : needs_tail(c) ? 2 : 1;
    const size_t total =
        SECTION_FIXED + (size_t)4 * c->n_eos + c->n_layer + (version > 1 ? SECTION_TAIL : 0) + n_block_bytes;
    MOEC_TRY(moec_alloc(&memory, total, 1, SUBJECT, err));
    uint8_t *at = memory;
    encode_fixed(c, version, &at);
    if (version > 1)
        encode_tail(c, &at);
    encode_blocks(c, &at);
    *bytes = memory;
    *n_bytes = total;
    return MOEC_OK;
}

/* ---- decoding ---- */

static enum moec_status decode_flags(const uint8_t **at, struct reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    bool is_normed = false;
    bool *const flags[5] = {&reading->attention[0].qkv_bias, &is_normed, &c->tied_head, &c->shared_gate,
                            &c->norm_topk_prob};
    for (int i = 0; i < 8; i++) {
        uint8_t value = *(*at)++;
        if (value > (i < 5 ? 1 : i == 5 ? 255 : 0))
            return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %u at offset %d, expected %s", value,
                             100 + i, i < 5 ? "0 or 1" : "0");
        if (i < 5)
            *flags[i] = value != 0;
        else if (i == 5)
            c->expert_dtype = value;
    }
    reading->attention[0].qk_norm = is_normed ? MOEC_QK_NORM_WHOLE : MOEC_QK_NORM_NONE;
    return MOEC_OK;
}

static enum moec_status decode_tail(const uint8_t *at, struct moec_config *c, struct moec_error *err)
{
    uint32_t *const counts[6] = {&c->n_encoder_layer, &c->n_bucket,         &c->max_distance,
                                 &c->expert_capacity, &c->decoder_start_id, &c->pad_id};
    for (size_t i = 0; i < 6; i++)
        *counts[i] = get_u32(&at);
    bool *const flags[3] = {&c->plain_mlp, &c->router_bias, &c->scaled_head};
    c->activation = *at++;
    for (size_t i = 0; i < 3; i++, at++) {
        if (*at > 1)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " has %u for flag %zu of version 2, expected 0 or 1", *at, i);
        *flags[i] = *at != 0;
    }
    return MOEC_OK;
}

static enum moec_status decode_family(const uint8_t *at, struct moec_config *c, struct moec_error *err)
{
    memcpy(c->family, at, sizeof c->family);
    for (size_t i = strnlen(c->family, sizeof c->family); i < sizeof c->family; i++)
        if (c->family[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has bytes after the end of the family name");
    return MOEC_OK;
}

/* The fields before the layers. */
static enum moec_status decode_fixed(const uint8_t **at, struct reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    struct moec_layer_kind *kind = &reading->attention[0];
    MOEC_TRY(decode_family(*at, c, err));
    *at += sizeof c->family;
    uint32_t *const counts[13] = {&reading->n_layer,      &c->n_embd,  &kind->n_head,   &kind->n_kv_head,
                                  &kind->head_dim,        &c->n_vocab, &c->n_position,  &kind->window,
                                  &c->n_expert,           &c->top_k,   &c->n_ff_expert, &c->n_ff_shared,
                                  &reading->n_ff_dense[0]};
    for (size_t i = 0; i < 13; i++)
        *counts[i] = get_u32(at);
    kind->rope_theta = get_f64(at);
    c->rms_eps = get_f64(at);
    kind->clip_qkv = get_f32(at);
    MOEC_TRY(decode_flags(at, reading, err));
    c->n_eos = get_u32(at);
    if (reading->n_layer == 0 || reading->n_layer > MOEC_MAX_LAYERS)
        return moec_fail(err, MOEC_ERR_LIMIT, SUBJECT " says layers %u, expected 1..%u", reading->n_layer,
                         MOEC_MAX_LAYERS);
    if (c->n_eos > MOEC_MAX_EOS)
        return moec_fail(err, MOEC_ERR_LIMIT, SUBJECT " says end-of-text ids %u, expected 0..%u", c->n_eos,
                         MOEC_MAX_EOS);
    return MOEC_OK;
}

static enum moec_status decode_is_moe(const uint8_t *at, struct reading *reading, struct moec_error *err)
{
    uint32_t n_moe = 0;
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (at[layer] > 1)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             SUBJECT " says kind %u for layer %u of %u, expected 0 or 1", at[layer], layer,
                             reading->n_layer);
        reading->is_moe[layer] = at[layer];
        reading->n_ff_dense[layer] = reading->n_ff_dense[0];
        n_moe += at[layer];
    }
    if (n_moe == reading->n_layer && reading->n_ff_dense[0] > 0)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         SUBJECT " says dense MLP size without dense layers %u, expected 0",
                         reading->n_ff_dense[0]);
    return MOEC_OK;
}

static enum moec_status place_layers(struct reading *reading, struct moec_error *err)
{
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        struct moec_layer_kind kind = reading->attention[reading->attention_of[layer]];
        kind.is_moe = reading->is_moe[layer] != 0;
        kind.n_ff_dense = kind.is_moe ? 0 : reading->n_ff_dense[layer];
        if (!moec_config_add_layer(&reading->config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, SUBJECT " has more than %u kinds of layers",
                             MOEC_MAX_LAYER_KINDS);
    }
    return MOEC_OK;
}

enum moec_status moec_config_decode(const uint8_t *bytes, size_t n_bytes, struct moec_config *config,
                                    struct moec_error *err)
{
    if (n_bytes < SECTION_FIXED)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes, expected at least %u", n_bytes,
                         SECTION_FIXED);
    struct reading reading = {.n_attention = 1};
    struct moec_config *c = &reading.config;
    const uint8_t *at = bytes;
    const uint32_t version = get_u32(&at);
    if (version < 1 || version > 3)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, SUBJECT " has version %u, expected 1 to 3", version);
    MOEC_TRY(decode_fixed(&at, &reading, err));
    const size_t expected =
        SECTION_FIXED + (size_t)4 * c->n_eos + reading.n_layer + (version > 1 ? SECTION_TAIL : 0);
    if (version == 3 ? n_bytes <= expected : n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, SUBJECT " has %zu bytes, expected %s%zu", n_bytes,
                         version == 3 ? "more than " : "", expected);
    for (uint32_t i = 0; i < c->n_eos; i++)
        c->eos_ids[i] = get_u32(&at);
    MOEC_TRY(decode_is_moe(at, &reading, err));
    if (version > 1)
        MOEC_TRY(decode_tail(at + reading.n_layer, c, err));
    if (version == 2 && !needs_tail(c))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         SUBJECT " has version 2 but says nothing that version 1 cannot");
    const uint8_t *const first_block = bytes + expected;
    MOEC_TRY(decode_blocks(first_block, n_bytes - expected, &reading, err));
    MOEC_TRY(place_layers(&reading, err));
    MOEC_TRY(moec_config_check(c, SUBJECT, err));
    MOEC_TRY(check_blocks(first_block, n_bytes - expected, c, err));
    *config = *c;
    return MOEC_OK;
}
