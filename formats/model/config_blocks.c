/* Blocks of the config section: what its fixed fields cannot say (formats/bundle/FORMAT.md, "Config"). */
#include "formats/model/config_section.h"

/* Of the block of `what`. */
static enum moec_status check_bytes(size_t n_bytes, size_t wanted, const char *what, struct moec_error *err)
{
    if (n_bytes == wanted)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT, "the config section has %zu bytes for %s, expected %zu", n_bytes,
                     what, wanted);
}

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
    moec_section_put_u32(&payload, n - 1);
    for (uint32_t i = 1; i < n; i++) {
        const struct moec_layer_kind *kind = attentions[i];
        const uint32_t counts[4] = {kind->n_head, kind->n_kv_head, kind->head_dim, kind->window};
        const uint8_t flags[4] = {kind->qkv_bias, kind->qk_norm == MOEC_QK_NORM_WHOLE, 0, 0};
        for (size_t j = 0; j < 4; j++)
            moec_section_put_u32(&payload, counts[j]);
        moec_section_put_f64(&payload, kind->rope_theta);
        moec_section_put_f32(&payload, kind->clip_qkv);
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
        *counts[j] = moec_section_get_u32(at);
    kind->rope_theta = moec_section_get_f64(at);
    kind->clip_qkv = moec_section_get_f32(at);
    for (size_t j = 0; j < 4; j++)
        if ((*at)[j] > (j < 2 ? 1 : 0))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has %u for flag %zu of attention kind %u, expected %s",
                             (*at)[j], j, i, j < 2 ? "0 or 1" : "0");
    kind->qkv_bias = (*at)[0] != 0;
    kind->qk_norm = (*at)[1] != 0 ? MOEC_QK_NORM_WHOLE : MOEC_QK_NORM_NONE;
    *at += 4;
    return MOEC_OK;
}

/* One order is right: that of the first layer of each. */
static enum moec_status decode_attentions(const uint8_t *payload, size_t n_bytes,
                                          struct moec_config_reading *reading, struct moec_error *err)
{
    const uint32_t n = n_bytes < sizeof(uint32_t) ? 0 : moec_section_get_u32(&payload);
    if (n < 1 || n >= MOEC_MAX_LAYER_KINDS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the config section says %u kinds of attention beside the first, expected 1..%u", n,
                         MOEC_MAX_LAYER_KINDS - 1);
    const size_t wanted = sizeof(uint32_t) + (size_t)n * ATTENTION_BYTES + reading->n_layer;
    MOEC_TRY(check_bytes(n_bytes, wanted, "kinds of attention", err));
    for (uint32_t i = 1; i <= n; i++)
        MOEC_TRY(decode_attention(&payload, i, &reading->attention[i], err));
    reading->n_attention = n + 1;
    uint32_t n_seen = 0;
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (payload[layer] > n_seen || payload[layer] > n)
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the config section gives attention kind %u of %u to layer %u, but the kinds must be "
                "numbered in the order of their first use",
                payload[layer], n, layer);
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
        moec_section_put_u32(&payload, kind->rotary_dim);
        moec_section_put_f32(&payload, kind->score_scale);
        memcpy(payload, scaling_flags, sizeof scaling_flags);
        payload += sizeof scaling_flags;
        moec_section_put_u32(&payload, scaling->original_positions);
        moec_section_put_f64(&payload, scaling->factor);
        moec_section_put_f64(&payload, scaling->beta_fast);
        moec_section_put_f64(&payload, scaling->beta_slow);
        moec_section_put_f64(&payload, scaling->attention_factor);
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
        return moec_fail(err, MOEC_ERR_FORMAT, "the config section has invalid flags for attention kind %u",
                         i);
    kind->qk_norm = flags[0] != 0 ? flags[0] : kind->qk_norm;
    kind->o_bias = flags[1] != 0;
    kind->has_sinks = flags[2] != 0;
    kind->has_gate = flags[3] != 0;
    *at += 4;
    kind->rotary_dim = moec_section_get_u32(at);
    kind->score_scale = moec_section_get_f32(at);
    scaling->kind = scaling_flags[0];
    scaling->truncate = scaling_flags[1] != 0;
    *at += 4;
    scaling->original_positions = moec_section_get_u32(at);
    scaling->factor = moec_section_get_f64(at);
    scaling->beta_fast = moec_section_get_f64(at);
    scaling->beta_slow = moec_section_get_f64(at);
    scaling->attention_factor = moec_section_get_f64(at);
    return MOEC_OK;
}

static enum moec_status decode_forms(const uint8_t *payload, size_t n_bytes,
                                     struct moec_config_reading *reading, struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * FORM_BYTES;
    MOEC_TRY(check_bytes(n_bytes, wanted, "attention options", err));
    for (uint32_t i = 0; i < reading->n_attention; i++)
        MOEC_TRY(decode_form(&payload, i, &reading->attention[i], err));
    return MOEC_OK;
}

/* Of each attention, the first layer's included: u8 kind of mixing, u8 values are normed, u8 keys are values,
 * u8 no MLP follows, u32 positions of a convolution, u32 dimension of values. */
#define MIXER_BYTES 12u

static size_t mixers_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    bool is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        is_plain = is_plain && attentions[i]->mixer == MOEC_MIXER_ATTENTION &&
                   attentions[i]->value_dim == 0 && !attentions[i]->v_norm &&
                   !attentions[i]->keys_are_values && !attentions[i]->no_mlp;
    return is_plain ? 0 : (size_t)n * MIXER_BYTES;
}

static void encode_mixers(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t flags[4] = {attentions[i]->mixer, attentions[i]->v_norm, attentions[i]->keys_are_values,
                                  attentions[i]->no_mlp};
        memcpy(payload, flags, sizeof flags);
        payload += sizeof flags;
        moec_section_put_u32(&payload, attentions[i]->conv_size);
        moec_section_put_u32(&payload, attentions[i]->value_dim);
    }
}

static enum moec_status decode_mixers(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * MIXER_BYTES;
    MOEC_TRY(check_bytes(n_bytes, wanted, "kinds of mixers", err));
    for (uint32_t i = 0; i < reading->n_attention; i++) {
        struct moec_layer_kind *kind = &reading->attention[i];
        kind->mixer = payload[0];
        if (payload[1] > 1 || payload[2] > 1 || payload[3] > 1)
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the config section has the flags %u, %u and %u after the mixer of attention kind %u, "
                "expected each to be 0 or 1",
                payload[1], payload[2], payload[3], i);
        kind->v_norm = payload[1] != 0;
        kind->keys_are_values = payload[2] != 0;
        kind->no_mlp = payload[3] != 0;
        payload += 4;
        kind->conv_size = moec_section_get_u32(&payload);
        kind->value_dim = moec_section_get_u32(&payload);
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
        moec_section_put_u32(&payload, attentions[i]->latent_dim);
        moec_section_put_u32(&payload, attentions[i]->q_latent_dim);
    }
}

static enum moec_status decode_latents(const uint8_t *payload, size_t n_bytes,
                                       struct moec_config_reading *reading, struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * LATENT_BYTES;
    MOEC_TRY(check_bytes(n_bytes, wanted, "MLA latents", err));
    for (uint32_t i = 0; i < reading->n_attention; i++) {
        reading->attention[i].latent_dim = moec_section_get_u32(&payload);
        reading->attention[i].q_latent_dim = moec_section_get_u32(&payload);
    }
    return MOEC_OK;
}

/* Of each attention: f32 least step of its state space. */
#define STEP_BYTES 4u

static size_t steps_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    bool is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        is_plain = is_plain && attentions[i]->step_min == 0;
    return is_plain ? 0 : (size_t)n * STEP_BYTES;
}

static void encode_steps(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    for (uint32_t i = 0; i < n; i++)
        moec_section_put_f32(&payload, attentions[i]->step_min);
}

static enum moec_status decode_steps(const uint8_t *payload, size_t n_bytes,
                                     struct moec_config_reading *reading, struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * STEP_BYTES;
    MOEC_TRY(check_bytes(n_bytes, wanted, "minimum time steps", err));
    for (uint32_t i = 0; i < reading->n_attention; i++)
        reading->attention[i].step_min = moec_section_get_f32(&payload);
    return MOEC_OK;
}

/* Of each attention: u32 chunk. */
#define CHUNK_BYTES 4u

static size_t chunks_size(const struct moec_config *c)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    bool is_plain = true;
    for (uint32_t i = 0; i < n; i++)
        is_plain = is_plain && attentions[i]->chunk == 0;
    return is_plain ? 0 : (size_t)n * CHUNK_BYTES;
}

static void encode_chunks(const struct moec_config *c, uint8_t *payload)
{
    const struct moec_layer_kind *attentions[MOEC_MAX_LAYER_KINDS];
    uint8_t attention_of[MOEC_MAX_LAYERS];
    const uint32_t n = list_attentions(c, attentions, attention_of);
    for (uint32_t i = 0; i < n; i++)
        moec_section_put_u32(&payload, attentions[i]->chunk);
}

static enum moec_status decode_chunks(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    const size_t wanted = (size_t)reading->n_attention * CHUNK_BYTES;
    MOEC_TRY(check_bytes(n_bytes, wanted, "attention chunks", err));
    for (uint32_t i = 0; i < reading->n_attention; i++)
        reading->attention[i].chunk = moec_section_get_u32(&payload);
    return MOEC_OK;
}

/* u8 the router scales what experts read, 3 bytes 0. */
#define SCALED_BYTES 4u

static size_t scaled_size(const struct moec_config *c)
{
    return c->router.scales_input ? SCALED_BYTES : 0;
}

static void encode_scaled(const struct moec_config *c, uint8_t *payload)
{
    moec_section_put_u32(&payload, c->router.scales_input);
}

static enum moec_status decode_scaled(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    const uint32_t value = n_bytes == SCALED_BYTES ? moec_section_get_u32(&payload) : 0;
    if (value != 1)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section marks scaled expert inputs with the value %u in %zu bytes, expected the "
            "value 1 in %u bytes",
            value, n_bytes, SCALED_BYTES);
    reading->config.router.scales_input = true;
    return MOEC_OK;
}

/* Sizes of the MLPs without experts but the first, where they differ. */
static size_t dense_sizes_size(const struct moec_config *c)
{
    const uint32_t first = moec_config_first_dense_size(c);
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
            moec_section_put_u32(&payload, moec_config_layer(c, layer)->n_ff_dense);
        is_first = false;
    }
}

static enum moec_status decode_dense_sizes(const uint8_t *payload, size_t n_bytes,
                                           struct moec_config_reading *reading, struct moec_error *err)
{
    const uint8_t *const end = payload + n_bytes;
    bool is_first = true;
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (reading->is_moe[layer])
            continue;
        if (!is_first && (size_t)(end - payload) < sizeof(uint32_t))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has %zu bytes for MLP sizes, too few for layer %u", n_bytes,
                             layer);
        if (!is_first)
            reading->n_ff_dense[layer] = moec_section_get_u32(&payload);
        is_first = false;
    }
    return MOEC_OK;
}

#define ROUTER_BYTES 8u

/* u8 kind, u8 has a choice bias, u8 has a soft sum, u8 0, f32 scale. */
static size_t router_size(const struct moec_config *c)
{
    return c->router.kind != 0 || c->router.choice_bias || c->router.soft_sum || c->router.scale != 0
               ? ROUTER_BYTES
               : 0;
}

static void encode_router(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->router.kind, c->router.choice_bias, c->router.soft_sum, 0};
    memcpy(payload, flags, sizeof flags);
    payload += sizeof flags;
    moec_section_put_f32(&payload, c->router.scale);
}

static enum moec_status decode_router(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    MOEC_TRY(check_bytes(n_bytes, ROUTER_BYTES, "the router", err));
    if (payload[1] > 1 || payload[2] > 1 || payload[3] != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has %u, %u and %u after the kind of router, expected two values of 0 or "
            "1, then 0",
            payload[1], payload[2], payload[3]);
    c->router.kind = payload[0];
    c->router.choice_bias = payload[1] != 0;
    c->router.soft_sum = payload[2] != 0;
    payload += 4;
    c->router.scale = moec_section_get_f32(&payload);
    return MOEC_OK;
}

#define GROUP_BYTES 12u

/* u32 groups, u32 chosen groups, u8 score, 3 zeros. */
static size_t groups_size(const struct moec_config *c)
{
    return c->router.n_group > 0 ? GROUP_BYTES : 0;
}

static void encode_groups(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->router.group_score, 0, 0, 0};
    moec_section_put_u32(&payload, c->router.n_group);
    moec_section_put_u32(&payload, c->router.n_top_group);
    memcpy(payload, flags, sizeof flags);
}

static enum moec_status decode_groups(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    MOEC_TRY(check_bytes(n_bytes, GROUP_BYTES, "groups of experts", err));
    c->router.n_group = moec_section_get_u32(&payload);
    c->router.n_top_group = moec_section_get_u32(&payload);
    c->router.group_score = payload[0];
    if (payload[1] != 0 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has nonzero bytes after the score of groups of experts, expected 0");
    return MOEC_OK;
}

#define EXPERT_BYTES 4u

/* u8 has biases, 3 zeros. */
static size_t experts_size(const struct moec_config *c)
{
    return c->mlp.expert_bias ? EXPERT_BYTES : 0;
}

static void encode_experts(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[EXPERT_BYTES] = {c->mlp.expert_bias, 0, 0, 0};
    memcpy(payload, flags, sizeof flags);
}

static enum moec_status decode_experts(const uint8_t *payload, size_t n_bytes,
                                       struct moec_config_reading *reading, struct moec_error *err)
{
    MOEC_TRY(check_bytes(n_bytes, EXPERT_BYTES, "expert options", err));
    if (payload[0] != 1 || payload[1] != 0 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has %u as the flag of expert biases, then %u, %u and %u, expected 1 and "
            "three zeros",
            payload[0], payload[1], payload[2], payload[3]);
    reading->config.mlp.expert_bias = true;
    return MOEC_OK;
}

/* u32 experts that give their input, u32 0 or 1: sums join a layer later, f32 what latents of queries are
 * multiplied by, and those of keys and values. */
#define IDENTITY_BYTES 16u

static size_t identity_size(const struct moec_config *c)
{
    return c->n_identity > 0 || c->mlp.joins_late || c->scale.q_latent != 0 || c->scale.latent != 0
               ? IDENTITY_BYTES
               : 0;
}

static void encode_identity(const struct moec_config *c, uint8_t *payload)
{
    moec_section_put_u32(&payload, c->n_identity);
    moec_section_put_u32(&payload, c->mlp.joins_late);
    moec_section_put_f32(&payload, c->scale.q_latent);
    moec_section_put_f32(&payload, c->scale.latent);
}

static enum moec_status decode_identity(const uint8_t *payload, size_t n_bytes,
                                        struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    MOEC_TRY(check_bytes(n_bytes, IDENTITY_BYTES, "identity experts", err));
    c->n_identity = moec_section_get_u32(&payload);
    const uint32_t joins_late = moec_section_get_u32(&payload);
    if (joins_late > 1)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the config section has %u for adding expert outputs a layer later, expected 0 "
                         "or 1",
                         joins_late);
    c->mlp.joins_late = joins_late != 0;
    c->scale.q_latent = moec_section_get_f32(&payload);
    c->scale.latent = moec_section_get_f32(&payload);
    return MOEC_OK;
}

#define NORM_BYTES 16u

/* u8 place of norms, 3 zeros, f32 embedding scale, residual scale, logit divisor. */
static size_t norms_size(const struct moec_config *c)
{
    return c->norms != 0 || c->scale.embedding != 0 || c->scale.residual != 0 || c->scale.logit_divisor != 0
               ? NORM_BYTES
               : 0;
}

static void encode_norms(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->norms, 0, 0, 0};
    memcpy(payload, flags, sizeof flags);
    payload += sizeof flags;
    moec_section_put_f32(&payload, c->scale.embedding);
    moec_section_put_f32(&payload, c->scale.residual);
    moec_section_put_f32(&payload, c->scale.logit_divisor);
}

static enum moec_status decode_norms(const uint8_t *payload, size_t n_bytes,
                                     struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    MOEC_TRY(check_bytes(n_bytes, NORM_BYTES, "norms and factors", err));
    if (payload[1] != 0 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the config section has nonzero bytes after the place of norms, expected 0");
    c->norms = payload[0];
    payload += 4;
    c->scale.embedding = moec_section_get_f32(&payload);
    c->scale.residual = moec_section_get_f32(&payload);
    c->scale.logit_divisor = moec_section_get_f32(&payload);
    return MOEC_OK;
}

#define CAP_BYTES 8u

/* u8 own norms of router and experts, u8 scale of layers, u16 0, f32 cap of logits. */
static size_t caps_size(const struct moec_config *c)
{
    return c->mlp.own_norms || c->scale.has_layer || c->scale.logit_cap != 0 ? CAP_BYTES : 0;
}

static void encode_caps(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[4] = {c->mlp.own_norms, c->scale.has_layer, 0, 0};
    memcpy(payload, flags, sizeof flags);
    payload += sizeof flags;
    moec_section_put_f32(&payload, c->scale.logit_cap);
}

static enum moec_status decode_caps(const uint8_t *payload, size_t n_bytes,
                                    struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    MOEC_TRY(check_bytes(n_bytes, CAP_BYTES, "separate norms and logit caps", err));
    if (payload[0] > 1 || payload[1] > 1 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has the bytes %u, %u, %u, %u for separate norms, layer scale and two "
            "reserved fields, expected 0 or 1 in the first two and 0 in the others",
            payload[0], payload[1], payload[2], payload[3]);
    c->mlp.own_norms = payload[0] != 0;
    c->scale.has_layer = payload[1] != 0;
    payload += 4;
    c->scale.logit_cap = moec_section_get_f32(&payload);
    return MOEC_OK;
}

/* u32 length of texts that angles are for, u32 pairs, f64 attention factor of long texts, and for each pair
 * an f32 of texts within the trained context, then an f32 for each of longer ones. */
#define ROPE_BYTES 16u

static size_t rope_size(const struct moec_config *c)
{
    return c->position.rope_context > 0 || c->position.n_rope_factor > 0
               ? ROPE_BYTES + 2 * sizeof(float) * c->position.n_rope_factor
               : 0;
}

static void encode_rope(const struct moec_config *c, uint8_t *payload)
{
    moec_section_put_u32(&payload, c->position.rope_context);
    moec_section_put_u32(&payload, c->position.n_rope_factor);
    moec_section_put_f64(&payload, c->position.rope_long_attention);
    for (size_t set = 0; set < 2; set++)
        for (uint32_t i = 0; i < c->position.n_rope_factor; i++)
            moec_section_put_f32(&payload, c->position.rope_factors[set][i]);
}

static enum moec_status decode_rope(const uint8_t *payload, size_t n_bytes,
                                    struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    if (n_bytes < ROPE_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the config section has %zu bytes for factors of RoPE, expected at least %u",
                         n_bytes, ROPE_BYTES);
    c->position.rope_context = moec_section_get_u32(&payload);
    c->position.n_rope_factor = moec_section_get_u32(&payload);
    c->position.rope_long_attention = moec_section_get_f64(&payload);
    if (c->position.n_rope_factor > MOEC_MAX_FACTORS)
        return moec_fail(err, MOEC_ERR_LIMIT, "the config section says %u factors of RoPE, expected 0..%u",
                         c->position.n_rope_factor, MOEC_MAX_FACTORS);
    if (n_bytes != ROPE_BYTES + 2 * sizeof(float) * c->position.n_rope_factor)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has %zu bytes for %u factors of RoPE, expected 16 bytes and 8 for each "
            "factor",
            n_bytes, c->position.n_rope_factor);
    for (size_t set = 0; set < 2; set++)
        for (uint32_t i = 0; i < c->position.n_rope_factor; i++)
            c->position.rope_factors[set][i] = moec_section_get_f32(&payload);
    return MOEC_OK;
}

/* f32 growth; then u32 positions that layers without rotation grow by, where these alone grow. */
#define GROWTH_BYTES 4u

static size_t growth_size(const struct moec_config *c)
{
    const size_t n_bytes = c->position.growth_positions > 0 ? GROWTH_BYTES + sizeof(uint32_t) : GROWTH_BYTES;
    return c->position.query_growth != 0 ? n_bytes : 0;
}

static void encode_growth(const struct moec_config *c, uint8_t *payload)
{
    moec_section_put_f32(&payload, c->position.query_growth);
    if (c->position.growth_positions > 0)
        moec_section_put_u32(&payload, c->position.growth_positions);
}

static enum moec_status decode_growth(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    if (n_bytes != GROWTH_BYTES && n_bytes != GROWTH_BYTES + sizeof(uint32_t))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the config section has %zu bytes for the growth of queries, expected %u or %zu",
                         n_bytes, GROWTH_BYTES, GROWTH_BYTES + sizeof(uint32_t));
    reading->config.position.query_growth = moec_section_get_f32(&payload);
    if (n_bytes > GROWTH_BYTES)
        reading->config.position.growth_positions = moec_section_get_u32(&payload);
    return MOEC_OK;
}

/* f32 jitter. */
#define JITTER_BYTES 4u

static size_t jitter_size(const struct moec_config *c)
{
    return c->router.jitter != 0 ? JITTER_BYTES : 0;
}

static void encode_jitter(const struct moec_config *c, uint8_t *payload)
{
    moec_section_put_f32(&payload, c->router.jitter);
}

static enum moec_status decode_jitter(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    MOEC_TRY(check_bytes(n_bytes, JITTER_BYTES, "the router's jitter", err));
    reading->config.router.jitter = moec_section_get_f32(&payload);
    return MOEC_OK;
}

/* u8 for each layer: whether it routes by token. */
static size_t token_routes_size(const struct moec_config *c)
{
    return moec_config_routes_by_token(c) ? c->n_layer : 0;
}

static void encode_token_routes(const struct moec_config *c, uint8_t *payload)
{
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        payload[layer] = moec_config_layer(c, layer)->routes_by_token;
}

static enum moec_status decode_token_routes(const uint8_t *payload, size_t n_bytes,
                                            struct moec_config_reading *reading, struct moec_error *err)
{
    MOEC_TRY(check_bytes(n_bytes, reading->n_layer, "routing by token", err));
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (payload[layer] > 1)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has %u for routing by token in layer %u, expected 0 or 1",
                             payload[layer], layer);
        reading->routes_by_token[layer] = payload[layer];
    }
    return MOEC_OK;
}

/* u8 LayerNorms, u8 bias of logits, u16 0. */
#define CENTRE_BYTES 4u

static size_t centre_size(const struct moec_config *c)
{
    return c->layer_norm || c->head.bias ? CENTRE_BYTES : 0;
}

static void encode_centre(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[CENTRE_BYTES] = {c->layer_norm, c->head.bias, 0, 0};
    memcpy(payload, flags, sizeof flags);
}

static enum moec_status decode_centre(const uint8_t *payload, size_t n_bytes,
                                      struct moec_config_reading *reading, struct moec_error *err)
{
    MOEC_TRY(check_bytes(n_bytes, CENTRE_BYTES, "LayerNorms", err));
    if (payload[0] > 1 || payload[1] > 1 || payload[2] != 0 || payload[3] != 0)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has the four bytes %u, %u, %u and %u for LayerNorms, the bias of logits "
            "and two unused fields: the first two must be 0 or 1, the last two 0",
            payload[0], payload[1], payload[2], payload[3]);
    reading->config.layer_norm = payload[0] != 0;
    reading->config.head.bias = payload[1] != 0;
    return MOEC_OK;
}

/* u8 the last hidden state is projected, u8 bypass of the experts, u8 full experts give their input, u8
 * biases (1) and SiLU (2) of the MLPs of layers without experts; then u8 for each layer: whether it adds
 * learned positions. */
#define LEARNED_BYTES 4u

static size_t learned_size(const struct moec_config *c)
{
    bool is_plain = !c->head.projects_output && !c->mlp.has_bypass && !c->router.full_keeps_input &&
                    !c->mlp.dense_bias && !c->mlp.dense_silu;
    for (uint32_t i = 0; i < c->n_kind; i++)
        is_plain = is_plain && !c->kinds[i].adds_positions;
    return is_plain ? 0 : LEARNED_BYTES + c->n_layer;
}

static void encode_learned(const struct moec_config *c, uint8_t *payload)
{
    const uint8_t flags[LEARNED_BYTES] = {c->head.projects_output, c->mlp.has_bypass,
                                          c->router.full_keeps_input,
                                          (uint8_t)(c->mlp.dense_bias | c->mlp.dense_silu << 1)};
    memcpy(payload, flags, sizeof flags);
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        payload[LEARNED_BYTES + layer] = moec_config_layer(c, layer)->adds_positions;
}

static enum moec_status decode_learned(const uint8_t *payload, size_t n_bytes,
                                       struct moec_config_reading *reading, struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    MOEC_TRY(check_bytes(n_bytes, LEARNED_BYTES + reading->n_layer,
                         "position embeddings and skip connections", err));
    for (size_t i = 0; i < n_bytes; i++)
        if (payload[i] > (i == 3 ? 3 : 1))
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the config section has %u at offset %zu of position embeddings and skip connections, "
                "expected 0..%d",
                payload[i], i, i == 3 ? 3 : 1);
    c->head.projects_output = payload[0] != 0;
    c->mlp.has_bypass = payload[1] != 0;
    c->router.full_keeps_input = payload[2] != 0;
    c->mlp.dense_bias = (payload[3] & 1) != 0;
    c->mlp.dense_silu = (payload[3] & 2) != 0;
    memcpy(reading->adds_positions, payload + LEARNED_BYTES, reading->n_layer);
    return MOEC_OK;
}

/* u32 ids whose rows of the embedding and the head are matrices of their own. */
#define FREQUENT_BYTES 4u

static size_t frequent_size(const struct moec_config *c)
{
    return c->n_frequent > 0 ? FREQUENT_BYTES : 0;
}

static void encode_frequent(const struct moec_config *c, uint8_t *payload)
{
    moec_section_put_u32(&payload, c->n_frequent);
}

static enum moec_status decode_frequent(const uint8_t *payload, size_t n_bytes,
                                        struct moec_config_reading *reading, struct moec_error *err)
{
    MOEC_TRY(check_bytes(n_bytes, FREQUENT_BYTES, "frequent tokens", err));
    reading->config.n_frequent = moec_section_get_u32(&payload);
    return MOEC_OK;
}

const struct moec_config_block moec_config_blocks[] = {
    {1, "kinds of attention", attentions_size, encode_attentions, decode_attentions},
    {2, "MLP sizes", dense_sizes_size, encode_dense_sizes, decode_dense_sizes},
    {3, "attention options", forms_size, encode_forms, decode_forms},
    {8, "kinds of mixers", mixers_size, encode_mixers, decode_mixers},
    {9, "MLA latents", latents_size, encode_latents, decode_latents},
    {10, "factors of RoPE", rope_size, encode_rope, decode_rope},
    {11, "the growth of queries", growth_size, encode_growth, decode_growth},
    {12, "minimum time steps", steps_size, encode_steps, decode_steps},
    {13, "attention chunks", chunks_size, encode_chunks, decode_chunks},
    {16, "the router", router_size, encode_router, decode_router},
    {17, "groups of experts", groups_size, encode_groups, decode_groups},
    {18, "expert options", experts_size, encode_experts, decode_experts},
    {19, "the router's jitter", jitter_size, encode_jitter, decode_jitter},
    {20, "routing by token", token_routes_size, encode_token_routes, decode_token_routes},
    {21, "scaled expert inputs", scaled_size, encode_scaled, decode_scaled},
    {22, "identity experts", identity_size, encode_identity, decode_identity},
    {32, "norms and factors", norms_size, encode_norms, decode_norms},
    {33, "separate norms and logit caps", caps_size, encode_caps, decode_caps},
    {34, "LayerNorms", centre_size, encode_centre, decode_centre},
    {35, "learned positions and bypasses", learned_size, encode_learned, decode_learned},
    {36, "frequent tokens", frequent_size, encode_frequent, decode_frequent},
};

const size_t moec_config_block_count = sizeof moec_config_blocks / sizeof *moec_config_blocks;
