/* moec_config_check is the one place where limits and relations of a model are stated; readers of
 * checkpoints, bundles and profiles all end in it. After it no product of dimensions overflows. Kinds of
 * layers have one valid form: all differ, all are used, in the order of their first use. So equal models
 * have equal bytes. A step that forward passes do not combine with another is refused here. */
#include "formats/model/config.h"

#include "formats/codec/mxfp4.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- limits and relations ---- */

static enum moec_status check_range(const char *subject, const char *name, uint64_t value, uint64_t min,
                                    uint64_t max, struct moec_error *err)
{
    if (value < min || value > max)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s says: %s %" PRIu64 ", expected %" PRIu64 "..%" PRIu64,
                         subject, name, value, min, max);
    return MOEC_OK;
}

/* Two-sided buckets are halved, and the first half of what is left are single distances: at least one, and
 * max_distance lies past them, or there would be nothing to take the logarithm of. */
static enum moec_status check_buckets(const struct moec_config *c, const char *subject,
                                      struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "buckets of relative positions", c->position.n_bucket, 4, MOEC_MAX_BUCKETS,
                         err));
    MOEC_TRY(check_range(subject, "distance of relative positions", c->position.max_distance,
                         c->position.n_bucket / 2 + 1, MOEC_MAX_DISTANCE, err));
    MOEC_TRY(check_range(subject, "heads x distance of relative positions",
                         (uint64_t)c->kinds[0].n_head * c->position.max_distance, 1, MOEC_MAX_BIASES, err));
    return MOEC_OK;
}

/* A factor that is 0 where there is none. */
static enum moec_status check_factor(const char *subject, const char *name, float value,
                                     struct moec_error *err)
{
    if (isfinite(value) && (value == 0 || value >= FLT_MIN) && !signbit(value))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT, "%s sets %s to %g, expected 0 or a positive number", subject, name,
                     (double)value);
}

static enum moec_status check_scaling(const struct moec_rope_scaling *s, const char *subject,
                                      struct moec_error *err)
{
    const bool is_yarn = s->kind == MOEC_ROPE_YARN, is_plain = s->kind == MOEC_ROPE_PLAIN;
    const bool is_long = s->kind == MOEC_ROPE_LONG, is_llama = s->kind == MOEC_ROPE_LLAMA3;
    const bool has_limit = is_yarn || is_long || is_llama || s->kind == MOEC_ROPE_DYNAMIC;
    MOEC_TRY(check_range(subject, "kind of RoPE scaling", s->kind, 0, MOEC_ROPE_COUNT - 1, err));
    if (is_plain ? s->factor != 0 : !(s->factor >= 1 && s->factor <= (is_long ? 1 : MOEC_MAX_POSITIONS)))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says RoPE scaling factor %g, expected %s", subject,
                         s->factor,
                         is_plain  ? "0 without scaling"
                         : is_long ? "1 with LongRoPE"
                                   : "1 or more");
    MOEC_TRY(check_range(subject, "original context length of RoPE", s->original_positions, has_limit,
                         has_limit ? MOEC_MAX_POSITIONS : 0, err));
    const double values[] = {s->beta_fast, s->beta_slow, s->attention_factor};
    for (size_t i = 0; i < 3; i++) {
        const bool is_used = is_yarn || (is_long && i == 2) || (is_llama && i < 2);
        if (is_used ? !(values[i] >= 1e-6 && values[i] <= 1e6) : values[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT, "%s sets the %s of RoPE scaling to %g, expected %s",
                             subject,
                             i == 0   ? "beta_fast (Llama 3: high_freq_factor)"
                             : i == 1 ? "beta_slow (Llama 3: low_freq_factor)"
                                      : "attention factor",
                             values[i], is_used ? "1e-6 to 1e6" : "0 with this kind of scaling");
    }
    if (is_llama && !(s->beta_fast >= s->beta_slow))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says Llama 3 RoPE 'high_freq_factor' %g and 'low_freq_factor' %g, expected the "
                         "high one to be at least the low one",
                         subject, s->beta_fast, s->beta_slow);
    if (s->truncate && !is_yarn)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has YaRN's 'truncate' set, but does not use YaRN",
                         subject);
    return MOEC_OK;
}

/* What rotates, and by which angles. */
static enum moec_status check_rope(const struct moec_layer_kind *k, const char *subject,
                                   struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "rotated part of a head", k->rotary_dim, 0,
                         k->rope_theta > 0 || k->latent_dim > 0 ? k->head_dim - 1 : 0, err));
    if (k->rotary_dim % 2 != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s rotates %u dimensions of each head, expected an even number", subject,
                         k->rotary_dim);
    if (k->rope_theta == 0)
        MOEC_TRY(check_range(subject, "kind of RoPE scaling without RoPE", k->rope_scaling.kind, 0, 0, err));
    if (k->rope_scaling.kind == MOEC_ROPE_YARN && !(k->rope_theta > 1))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says YaRN with RoPE theta %g, expected a theta above 1",
                         subject, k->rope_theta);
    if (k->rope_scaling.kind == MOEC_ROPE_DYNAMIC && moec_layer_rotary_dim(k) < 4)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s uses dynamic NTK scaling with %u rotated dimensions per "
                         "head, expected 4 or more",
                         subject, moec_layer_rotary_dim(k));
    return check_scaling(&k->rope_scaling, subject, err);
}

/* Whether a layer has what only attention has. */
static bool has_attention(const struct moec_layer_kind *k)
{
    return k->latent_dim > 0 || k->q_latent_dim > 0 || k->window > 0 || k->chunk > 0 || k->rope_theta != 0 ||
           k->rotary_dim > 0 || k->rope_scaling.kind > 0 || k->score_scale > 0 || k->clip_qkv > 0 ||
           k->qkv_bias || k->o_bias || k->has_sinks || k->has_gate || k->qk_norm > 0 || k->v_norm ||
           k->keys_are_values;
}

/* A running layer has heads, a convolution, and nothing of attention. */
static enum moec_status check_kind_running(const struct moec_layer_kind *k, bool has_buckets,
                                           const char *subject, struct moec_error *err)
{
    const uint64_t keys = 2 * (uint64_t)k->n_kv_head * k->head_dim;
    const uint64_t values = (uint64_t)k->n_head * moec_layer_value_dim(k);
    const bool is_short = k->mixer == MOEC_MIXER_CONVOLUTION;
    MOEC_TRY(check_range(subject, "positions of a convolution", k->conv_size, 2, MOEC_MAX_CONVOLUTION, err));
    MOEC_TRY(check_range(subject, "head dimension", k->head_dim, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "heads x head dimension", values, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "channels of a convolution", values + keys, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "floats of a state", values * k->head_dim, 1, UINT32_MAX, err));
    if (k->mixer == MOEC_MIXER_CHANNEL_DELTA)
        MOEC_TRY(check_range(subject, "key heads", k->n_kv_head, k->n_head, k->n_head, err));
    if (has_attention(k) || has_buckets || (is_short && (k->n_kv_head != k->n_head || k->value_dim > 0)))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has a layer with both a recurrent state and attention settings, "
                         "expected only one of them",
                         subject);
    return check_scaling(&k->rope_scaling, subject, err);
}

/* A layer without a mixer has nothing of any. */
static enum moec_status check_kind_alone(const struct moec_layer_kind *k, const char *subject,
                                         struct moec_error *err)
{
    if (has_attention(k) || k->n_head > 0 || k->n_kv_head > 0 || k->head_dim > 0 || k->value_dim > 0 ||
        k->conv_size > 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s gives heads or attention settings to a layer that has neither attention nor "
                         "a recurrent state, expected none",
                         subject);
    return check_scaling(&k->rope_scaling, subject, err);
}

static enum moec_status check_heads(const struct moec_layer_kind *k, const char *subject,
                                    struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "attention heads", k->n_head, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "key/value heads", k->n_kv_head, 1, k->n_head, err));
    MOEC_TRY(check_range(subject, "dimension of values", k->value_dim, k->latent_dim > 0,
                         moec_layer_is_running(k) || k->latent_dim > 0 ? MOEC_MAX_DIMENSION : 0, err));
    if (k->n_head % k->n_kv_head == 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "%s says %u attention heads and %u key/value heads, expected the attention heads to be "
                     "a multiple of the key/value heads",
                     subject, k->n_head, k->n_kv_head);
}

/* A latent, in place of one key/value head, and rotation of the last part of each head. */
static enum moec_status check_latent(const struct moec_layer_kind *k, bool has_buckets, const char *subject,
                                     struct moec_error *err)
{
    const bool is_latent = k->latent_dim > 0;
    MOEC_TRY(check_range(subject, "latent of keys and values", k->latent_dim, 0, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "latent of queries", k->q_latent_dim, 0, is_latent ? MOEC_MAX_DIMENSION : 0,
                         err));
    if (!is_latent)
        return MOEC_OK;
    MOEC_TRY(check_range(subject, "key/value heads with a latent", k->n_kv_head, 1, 1, err));
    MOEC_TRY(
        check_range(subject, "rotated part of a head with a latent", k->rotary_dim, 2, k->head_dim - 1, err));
    const uint64_t n_head = k->n_head, latent = (uint64_t)k->latent_dim + k->rotary_dim;
    MOEC_TRY(check_range(subject, "heads x latent", n_head * latent, 2, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "heads x dimension of values", n_head * k->value_dim, 1, MOEC_MAX_DIMENSION,
                         err));
    MOEC_TRY(check_range(subject, "keys and values of a latent",
                         n_head * ((uint64_t)moec_layer_plain_dim(k) + k->value_dim), 2, MOEC_MAX_DIMENSION,
                         err));
    if (has_buckets || k->clip_qkv > 0 || k->qkv_bias || k->has_gate || k->qk_norm > 0 || k->v_norm ||
        k->keys_are_values)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has latent attention (MLA) together with position buckets, a QKV clip, an output gate, biases "
            "or norms of q, k, v, or keys used as values: this combination is not supported",
            subject);
    return MOEC_OK;
}

static enum moec_status check_kind_attention(const struct moec_layer_kind *k, bool has_buckets,
                                             const char *subject, struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "kind of mixer", k->mixer, 0, MOEC_MIXER_COUNT - 1, err));
    MOEC_TRY(check_factor(subject, "the minimum time step of a state space", k->step_min, err));
    if (k->step_min > 0 && k->mixer != MOEC_MIXER_SPACE)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s gives a minimum time step of %g to a layer that has no state space, expected 0",
                         subject, (double)k->step_min);
    if (!moec_layer_mixes(k))
        return check_kind_alone(k, subject, err);
    MOEC_TRY(check_heads(k, subject, err));
    if (moec_layer_is_running(k))
        return check_kind_running(k, has_buckets, subject, err);
    MOEC_TRY(check_range(subject, "positions of a convolution", k->conv_size, 0, 0, err));
    if (k->rope_theta != 0 && !(k->rope_theta >= MOEC_MIN_ROPE_THETA && k->rope_theta <= MOEC_MAX_ROPE_THETA))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says RoPE theta %g, expected %g to %g", subject,
                         k->rope_theta, MOEC_MIN_ROPE_THETA, MOEC_MAX_ROPE_THETA);
    if (has_buckets && k->rope_theta != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has both RoPE (theta %g) and buckets of relative positions, "
                         "expected only one of them",
                         subject, k->rope_theta);
    MOEC_TRY(check_range(subject, "head dimension", k->head_dim, 2, MOEC_MAX_DIMENSION, err));
    if (k->head_dim % 2 != 0 && k->rope_theta > 0 && k->rotary_dim == 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says head dimension %u, expected an even number, because RoPE rotates pairs",
                         subject, k->head_dim);
    MOEC_TRY(check_rope(k, subject, err));
    MOEC_TRY(check_range(subject, "heads x head dimension", (uint64_t)k->n_head * k->head_dim, 2,
                         MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_latent(k, has_buckets, subject, err));
    MOEC_TRY(check_range(subject, "attention window", k->window, 0, MOEC_MAX_POSITIONS, err));
    MOEC_TRY(
        check_range(subject, "attention chunk", k->chunk, 0, k->window > 0 ? 0 : MOEC_MAX_POSITIONS, err));
    if (!(isfinite(k->clip_qkv) && (k->clip_qkv == 0 || k->clip_qkv >= FLT_MIN)))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says QKV clip %g, expected 0 or a positive number",
                         subject, (double)k->clip_qkv);
    MOEC_TRY(check_range(subject, "kind of q/k norm", k->qk_norm, 0, MOEC_QK_NORM_COUNT - 1, err));
    return check_factor(subject, "the scale of attention scores", k->score_scale, err);
}

/* Checks that the table has its only valid form: all kinds differ, stand in the order in which layers first
 * use them, and are used. */
static enum moec_status check_table(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    uint32_t n_seen = 0;
    MOEC_TRY(check_range(subject, "kinds of layers", c->n_kind, 1, MOEC_MAX_LAYER_KINDS, err));
    for (uint32_t layer = 0; layer < MOEC_MAX_LAYERS; layer++) {
        const uint32_t kind = c->layer_kind[layer];
        if (kind >= c->n_kind || (layer < c->n_layer ? kind > n_seen : kind > 0))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s gives kind %u to layer %u of %u, but kinds of layers must be numbered in "
                             "the order of their first use",
                             subject, kind, layer, c->n_layer);
        n_seen += layer < c->n_layer && kind == n_seen;
    }
    MOEC_TRY(check_range(subject, "kinds of layers in use", n_seen, c->n_kind, c->n_kind, err));
    for (uint32_t kind = 1; kind < c->n_kind; kind++)
        for (uint32_t before = 0; before < kind; before++)
            if (moec_layer_same(&c->kinds[before], &c->kinds[kind]))
                return moec_fail(err, MOEC_ERR_FORMAT,
                                 "%s has the same settings for kinds %u and %u of layers, expected different "
                                 "settings",
                                 subject, before, kind);
    return MOEC_OK;
}

/* The MLP of a layer, or its router and experts, or neither. */
static enum moec_status check_kind_mlp(const struct moec_config *c, const struct moec_layer_kind *kind,
                                       const char *where, struct moec_error *err)
{
    if (kind->is_moe)
        MOEC_TRY(check_range(where, "dense MLP size with experts", kind->n_ff_dense, 0, 0, err));
    else if (kind->no_mlp)
        MOEC_TRY(check_range(where, "dense MLP size without an MLP", kind->n_ff_dense, 0, 0, err));
    else
        MOEC_TRY(check_range(where, "dense MLP size", kind->n_ff_dense, 1, MOEC_MAX_DIMENSION, err));
    if (kind->no_mlp && (kind->is_moe || !moec_layer_mixes(kind)))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has no MLP and %s: a layer without an MLP needs attention or a recurrent state, "
                         "and no experts",
                         where, kind->is_moe ? "has experts" : "has neither attention nor a recurrent state");
    if ((kind->no_mlp || !moec_layer_mixes(kind)) && (c->n_encoder_layer > 0 || c->scale.has_layer))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s lacks %s: moec does not support such layers in a model with an encoder or a "
                         "layer scale",
                         where, kind->no_mlp ? "an MLP" : "attention or a recurrent state");
    if (kind->adds_positions && (!moec_layer_attends(kind) || c->n_encoder_layer > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s adds learned positions but %s, expected attention and no encoder", where,
                         c->n_encoder_layer > 0 ? "has an encoder" : "has no attention");
    if (kind->routes_by_token && (!kind->is_moe || c->n_encoder_layer > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s routes by token id but has %s, expected experts and no encoder", where,
                         kind->is_moe ? "an encoder" : "no experts");
    return MOEC_OK;
}

static enum moec_status check_layers(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    char where[300];
    MOEC_TRY(check_table(c, subject, err));
    for (uint32_t i = 0; i < c->n_kind; i++) {
        const struct moec_layer_kind *kind = &c->kinds[i];
        const uint32_t layer =
            (uint32_t)((const uint8_t *)memchr(c->layer_kind, (int)i, c->n_layer) - c->layer_kind);
        if (i == 0)
            (void)snprintf(where, sizeof where, "%s", subject);
        else
            (void)snprintf(where, sizeof where, "layer %u of %.270s", layer, subject);
        MOEC_TRY(check_kind_attention(kind, c->position.n_bucket > 0, where, err));
        MOEC_TRY(check_kind_mlp(c, kind, where, err));
        if (c->position.n_bucket > 0 && !moec_layer_same_attention(&c->kinds[0], kind))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the attention of %s differs from layer 0's, but buckets of relative positions "
                             "need the same attention in all layers",
                             where);
    }
    if (moec_config_moe_count(c) == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has no layer with experts, expected at least one",
                         subject);
    return MOEC_OK;
}

/* What LongRoPE and dynamic NTK have beside the kinds of layers. */
static enum moec_status check_long_rope(const struct moec_config *c, const char *subject,
                                        struct moec_error *err)
{
    bool is_long = false;
    const uint32_t limit = moec_config_rope_limit(c);
    for (uint32_t i = 0; i < c->n_kind; i++) {
        const struct moec_layer_kind *kind = &c->kinds[i];
        if (kind->rope_scaling.kind != MOEC_ROPE_LONG)
            continue;
        is_long = true;
        MOEC_TRY(check_range(subject, "factors of RoPE", c->position.n_rope_factor,
                             moec_layer_rotary_dim(kind) / 2, moec_layer_rotary_dim(kind) / 2, err));
    }
    MOEC_TRY(check_range(subject, "factors of RoPE", c->position.n_rope_factor, 0,
                         is_long ? MOEC_MAX_FACTORS : 0, err));
    for (uint32_t i = 0; i < 2 * c->position.n_rope_factor; i++) {
        const float factor = c->position.rope_factors[i % 2][i / 2];
        if (!(factor >= 1e-6f && factor <= 1e9f))
            return moec_fail(err, MOEC_ERR_FORMAT, "%s has a LongRoPE factor of %g, expected 1e-6 to 1e9",
                             subject, (double)factor);
    }
    const double attention = c->position.rope_long_attention;
    if (is_long ? !(attention >= 1e-6 && attention <= 1e6) : attention != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has an attention factor of %g for LongRoPE, expected %s",
                         subject, attention, is_long ? "a positive number" : "0 without LongRoPE");
    MOEC_TRY(check_factor(subject, "the growth of queries", c->position.query_growth, err));
    MOEC_TRY(check_range(subject, "positions of growing queries", c->position.growth_positions, 0,
                         c->position.query_growth > 0 ? MOEC_MAX_POSITIONS : 0, err));
    for (uint32_t i = 0; i < c->n_kind && c->position.query_growth > 0 && c->position.growth_positions == 0;
         i++)
        MOEC_TRY(check_range(subject, "trained context of growing queries",
                             c->kinds[i].rope_scaling.original_positions, 1, MOEC_MAX_POSITIONS, err));
    if (c->position.rope_context == 0)
        return MOEC_OK;
    return check_range(subject, "text length for RoPE angles", c->position.rope_context,
                       limit > 0 ? limit + 1 : 0, limit > 0 ? MOEC_MAX_POSITIONS : 0, err);
}

static enum moec_status check_positions(const struct moec_config *c, const char *subject,
                                        struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "positions", c->n_position, 1, MOEC_MAX_POSITIONS, err));
    if (c->position.n_bucket > 0)
        return check_buckets(c, subject, err);
    if (c->position.max_distance > 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s sets the distance of relative positions to %u but has no buckets of relative "
                         "positions, expected 0",
                         subject, c->position.max_distance);
    return MOEC_OK;
}

/* Experts that give their input, and sums that join the hidden state a layer later. */
static enum moec_status check_identity(const struct moec_config *c, const char *subject,
                                       struct moec_error *err)
{
    bool is_followed = true;
    MOEC_TRY(check_range(subject, "identity experts", c->n_identity, 0, MOEC_MAX_EXPERTS - c->n_expert, err));
    if (c->n_identity > 0 &&
        (c->router.expert_capacity > 0 || c->router.n_group > 0 || c->mlp.own_norms ||
         c->router.scales_input ||
         (c->router.kind != MOEC_ROUTER_SOFTMAX && c->router.kind != MOEC_ROUTER_SIGMOID)))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has identity experts, which need a softmax or sigmoid router that does not scale expert "
            "inputs, and no expert capacity, groups or separate norms",
            subject);
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        is_followed = is_followed && (!moec_config_is_moe(c, layer) ||
                                      (layer + 1 < c->n_layer && !moec_config_is_moe(c, layer + 1) &&
                                       !moec_config_layer(c, layer + 1)->no_mlp));
    if (c->mlp.joins_late && (!is_followed || c->norms != MOEC_NORMS_BEFORE || c->scale.residual > 0 ||
                              c->scale.has_layer || c->n_encoder_layer > 0 || c->mlp.has_bypass))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s adds the output of experts one layer later. moec supports this only if each MoE layer is "
            "followed by a layer with a dense MLP, norms stand before layers, and there are no scaled "
            "residuals, encoder or skip connections",
            subject);
    return MOEC_OK;
}

static enum moec_status check_experts(const struct moec_config *c, const char *subject,
                                      struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "experts", c->n_expert, 1, MOEC_MAX_EXPERTS, err));
    MOEC_TRY(check_range(subject, "experts for each token", c->top_k, 1,
                         c->n_expert < MOEC_MAX_TOP_K ? c->n_expert : MOEC_MAX_TOP_K, err));
    MOEC_TRY(check_range(subject, "expert size", c->n_ff_expert, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "shared expert size", c->n_ff_shared, 0, MOEC_MAX_DIMENSION, err));
    if (c->mlp.shared_gate && c->n_ff_shared == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has a shared expert gate but no shared expert", subject);
    if (c->mlp.has_bypass && (c->n_ff_shared > 0 || c->n_encoder_layer > 0 || c->mlp.own_norms))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has an expert bypass together with a shared expert, an encoder or separate norms for "
            "experts: this combination is not supported",
            subject);
    MOEC_TRY(check_identity(c, subject, err));
    if ((c->mlp.dense_bias || c->mlp.dense_silu) && !c->mlp.plain)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has dense MLPs with gates and also with biases or their own activation: biases "
                         "and a separate activation are supported only in MLPs without gates",
                         subject);
    const bool is_clamped =
        c->mlp.activation == MOEC_ACTIVATION_CLAMPED_GLU || c->mlp.activation == MOEC_ACTIVATION_CLAMPED_SILU;
    if (is_clamped && c->mlp.plain)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has MLPs without a gate, but an activation that clamps gates, expected gates",
                         subject);
    if (!moec_dtype_is_source(c->expert_dtype))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says expert dtype %u, expected 0 (F32), 1 (F16), 2 (BF16) or 9 (MXFP4)", subject,
                         c->expert_dtype);
    if (!moec_codec_fits((struct moec_codec){.dtype = c->expert_dtype}, c->n_ff_expert, c->n_embd))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has experts of %u neurons and hidden size %u as MXFP4, expected multiples of %d",
                         subject, c->n_ff_expert, c->n_embd, MOEC_MXFP4_GROUP);
    return MOEC_OK;
}

static enum moec_status check_router(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "kind of router", c->router.kind, 0, MOEC_ROUTER_COUNT - 1, err));
    if (!isfinite(c->router.scale) || signbit(c->router.scale))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s sets the scale of router weights to %g, expected 0 or a positive number",
                         subject, (double)c->router.scale);
    if (c->router.soft_sum && !c->router.norm_topk_prob)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s adds an epsilon to the sum of router weights, but does not divide "
                         "the weights by that sum",
                         subject);
    if (c->router.kind == MOEC_ROUTER_SOFTMAX_CHOSEN && c->router.norm_topk_prob)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s divides router weights by their sum, but a softmax over the chosen experts "
                         "already gives weights that sum to 1",
                         subject);
    if (c->router.scales_input && (c->top_k != 1 || c->mlp.own_norms || c->router.expert_capacity > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has a router that scales expert inputs, which moec supports only with top-k 1, "
                         "without norms of each expert and without an expert capacity",
                         subject);
    const bool is_mixer = c->router.kind == MOEC_ROUTER_SPARSEMIXER;
    if (is_mixer ? !(c->router.jitter >= 0 && c->router.jitter <= 1e6f) : c->router.jitter != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s sets the router's jitter to %g, expected %s", subject,
                         (double)c->router.jitter,
                         is_mixer ? "0 or a positive number" : "0 without SparseMixer");
    return MOEC_OK;
}

static enum moec_status check_groups(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    const bool is_grouped = c->router.n_group > 0;
    MOEC_TRY(
        check_range(subject, "groups of experts", c->router.n_group, is_grouped ? 2 : 0, c->n_expert, err));
    MOEC_TRY(check_range(subject, "chosen groups of experts", c->router.n_top_group, is_grouped,
                         is_grouped ? c->router.n_group - 1 : 0, err));
    MOEC_TRY(check_range(subject, "score of groups of experts", c->router.group_score, 0,
                         is_grouped ? MOEC_GROUP_COUNT - 1 : 0, err));
    if (!is_grouped)
        return MOEC_OK;
    const uint32_t size = c->n_expert / c->router.n_group;
    if (c->n_expert % c->router.n_group != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says %u experts in %u groups, expected a multiple of the number of groups",
                         subject, c->n_expert, c->router.n_group);
    MOEC_TRY(check_range(subject, "experts in a group", size,
                         c->router.group_score == MOEC_GROUP_BEST_TWO ? 2 : 1, MOEC_MAX_EXPERTS, err));
    return check_range(subject, "experts for each token with groups", c->top_k, 1,
                       (uint64_t)c->router.n_top_group * size, err);
}

static enum moec_status check_factors(const struct moec_config *c, const char *subject,
                                      struct moec_error *err)
{
    MOEC_TRY(check_factor(subject, "the scale of the embedding", c->scale.embedding, err));
    MOEC_TRY(check_factor(subject, "the scale of residuals", c->scale.residual, err));
    MOEC_TRY(check_factor(subject, "the scale of queries' latents", c->scale.q_latent, err));
    MOEC_TRY(check_factor(subject, "the scale of latents", c->scale.latent, err));
    MOEC_TRY(check_factor(subject, "the logit cap", c->scale.logit_cap, err));
    if (c->mlp.own_norms && (c->norms != MOEC_NORMS_AROUND || c->n_ff_shared == 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has separate norms for router and experts: these need norms both before and "
                         "after attention and MLP, and a shared expert",
                         subject);
    if (c->layer_norm && (c->norms == MOEC_NORMS_AROUND || c->n_encoder_layer > 0))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has LayerNorms with biases: these need norms only before or only after attention and MLP, "
            "and no encoder",
            subject);
    if (c->head.projects_output && (c->n_encoder_layer > 0 || c->scale.logit_divisor > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s projects the last hidden state: this is not supported with an encoder or a "
                         "logit divisor",
                         subject);
    if (c->head.bias && (c->n_encoder_layer > 0 || c->scale.logit_divisor > 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s adds a bias to the logits: this is not supported with an encoder or a logit "
                         "divisor",
                         subject);
    return check_factor(subject, "the logit divisor", c->scale.logit_divisor, err);
}

/* What comes with an encoder, and what no encoder is known to come with. */
static enum moec_status check_stacks(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    const bool has_encoder = moec_config_is_encoder_decoder(c);
    MOEC_TRY(check_range(subject, "encoder layers", c->n_encoder_layer, 0, c->n_layer - 1, err));
    if (has_encoder != (c->position.n_bucket > 0))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s says %u encoder layers and %u buckets of relative positions, expected both above 0 or both 0",
            subject, c->n_encoder_layer, c->position.n_bucket);
    const struct moec_layer_kind *kind = &c->kinds[0];
    if (has_encoder &&
        (c->mlp.own_norms || c->scale.has_layer || c->scale.logit_cap > 0 || kind->v_norm ||
         kind->keys_are_values || kind->window > 0 || kind->chunk > 0 || c->router.scales_input ||
         kind->clip_qkv > 0 || kind->qkv_bias || kind->qk_norm || kind->o_bias || kind->has_sinks ||
         kind->has_gate || kind->score_scale > 0 || c->n_ff_shared > 0 || c->norms > 0 ||
         c->scale.embedding > 0 || c->scale.residual > 0 || c->scale.logit_divisor > 0 || c->mlp.expert_bias))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has an encoder together with settings that moec supports only without one, such "
                         "as a window, a QKV clip, biases or norms of q, k, v, a shared expert, scales or "
                         "expert biases",
                         subject);
    if (!has_encoder && c->head.is_scaled)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s scales the input of the LM head, which is supported only with an encoder",
                         subject);
    if (c->router.full_keeps_input && (c->router.expert_capacity == 0 || has_encoder))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says that a token skips an expert whose capacity is used up, but %s", subject,
                         has_encoder ? "this is not supported with an encoder" : "gives no capacity");
    if (c->router.expert_capacity > 0)
        MOEC_TRY(check_range(subject, "experts for each token with an expert capacity", c->top_k, 1, 1, err));
    const uint32_t last_id = has_encoder ? c->n_vocab - 1 : 0;
    MOEC_TRY(check_range(subject, "decoder start id", c->ids.decoder_start, 0, last_id, err));
    return check_range(subject, "padding id", c->ids.pad, 0, last_id, err);
}

static enum moec_status check_family(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    size_t length = strnlen(c->family, sizeof c->family);
    bool good = length > 0 && length < sizeof c->family;
    for (size_t i = 0; i < length && good; i++)
        good = (c->family[i] >= 'a' && c->family[i] <= 'z') || (c->family[i] >= '0' && c->family[i] <= '9') ||
               c->family[i] == '_' || c->family[i] == '-';
    if (!good)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has an invalid family name, expected 1..%zu lower-case letters, digits, _ or -",
                         subject, sizeof c->family - 1);
    return MOEC_OK;
}

enum moec_status moec_config_check(const struct moec_config *config, const char *subject,
                                   struct moec_error *err)
{
    const struct moec_config *c = config;
    MOEC_TRY(check_family(c, subject, err));
    MOEC_TRY(check_range(subject, "layers", c->n_layer, 1, MOEC_MAX_LAYERS, err));
    MOEC_TRY(check_range(subject, "hidden size", c->n_embd, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "vocabulary", c->n_vocab, 1, MOEC_MAX_VOCABULARY, err));
    MOEC_TRY(check_range(subject, "ids of frequent tokens", c->n_frequent, 0, c->n_vocab - 1, err));
    if (!(c->rms_eps >= 0 && c->rms_eps < 1))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says RMS norm epsilon %g, expected 0 <= epsilon < 1",
                         subject, c->rms_eps);
    MOEC_TRY(check_positions(c, subject, err));
    MOEC_TRY(check_layers(c, subject, err));
    MOEC_TRY(check_long_rope(c, subject, err));
    MOEC_TRY(check_experts(c, subject, err));
    MOEC_TRY(check_router(c, subject, err));
    MOEC_TRY(check_groups(c, subject, err));
    MOEC_TRY(check_factors(c, subject, err));
    MOEC_TRY(check_range(subject, "place of norms", c->norms, 0, MOEC_NORMS_COUNT - 1, err));
    MOEC_TRY(check_range(subject, "activation", c->mlp.activation, 0, MOEC_ACTIVATION_COUNT - 1, err));
    MOEC_TRY(check_stacks(c, subject, err));
    MOEC_TRY(check_range(subject, "end-of-text ids", c->ids.n_eos, 0, MOEC_MAX_EOS, err));
    for (uint32_t i = 0; i < c->ids.n_eos; i++)
        MOEC_TRY(check_range(subject, "end-of-text id", c->ids.eos[i], 0, c->n_vocab - 1, err));
    return MOEC_OK;
}

/* ---- layers ---- */

uint32_t moec_config_rope_kind(const struct moec_config *config, uint32_t kind)
{
    uint32_t first = 0;
    while (!moec_layer_same_rope(&config->kinds[first], &config->kinds[kind]))
        first++;
    return first;
}

uint32_t moec_config_rope_limit(const struct moec_config *config)
{
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_rope_scaling *scaling = &config->kinds[i].rope_scaling;
        if (scaling->kind == MOEC_ROPE_LONG || scaling->kind == MOEC_ROPE_DYNAMIC)
            return scaling->original_positions;
    }
    return 0;
}

/* LongRoPE has one set for all longer texts, so that one number stands for them. */
void moec_config_choose_rope(struct moec_config *config, uint32_t n_tokens)
{
    const uint32_t limit = moec_config_rope_limit(config);
    const uint32_t n = n_tokens < config->n_position ? n_tokens : config->n_position;
    if (limit == 0 || n <= limit)
        return;
    const uint32_t context = config->position.n_rope_factor > 0 ? limit + 1 : n;
    if (context > config->position.rope_context)
        config->position.rope_context = context;
}

enum moec_status moec_config_choose_kv(struct moec_config *config, struct moec_codec kv,
                                       struct moec_error *err)
{
    if (kv.dtype != MOEC_DTYPE_F32 && moec_config_is_encoder_decoder(config))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "a model of family '%s' has an encoder, so its keys and values must be F32: give "
                         "--kv f32",
                         config->family);
    for (uint32_t i = 0; i < config->n_kind; i++)
        if (moec_layer_attends(&config->kinds[i]))
            config->kinds[i].kv = kv;
    return MOEC_OK;
}

bool moec_config_add_layer(struct moec_config *config, const struct moec_layer_kind *kind)
{
    uint32_t found = 0;
    while (found < config->n_kind && !moec_layer_same(&config->kinds[found], kind))
        found++;
    if (found == MOEC_MAX_LAYER_KINDS || config->n_layer == MOEC_MAX_LAYERS)
        return false;
    if (found == config->n_kind)
        config->kinds[config->n_kind++] = *kind;
    config->layer_kind[config->n_layer++] = (uint8_t)found;
    return true;
}

enum moec_status moec_config_place_layers(struct moec_config *config, const uint8_t *is_moe,
                                          const char *subject, struct moec_error *err)
{
    const struct moec_layer_kind like = config->kinds[0];
    const uint32_t n_layer = config->n_layer;
    config->n_kind = 0;
    config->n_layer = 0;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        struct moec_layer_kind kind = like;
        kind.is_moe = is_moe == NULL || is_moe[layer] != 0;
        kind.n_ff_dense = kind.is_moe ? 0 : like.n_ff_dense;
        if (!moec_config_add_layer(config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %u layers", subject, MOEC_MAX_LAYERS);
    }
    return MOEC_OK;
}

bool moec_config_routes_by_token(const struct moec_config *config)
{
    bool routes = false;
    for (uint32_t kind = 0; kind < config->n_kind; kind++)
        routes = routes || config->kinds[kind].routes_by_token;
    return routes;
}

bool moec_config_is_running(const struct moec_config *config)
{
    bool is_running = false;
    for (uint32_t kind = 0; kind < config->n_kind; kind++)
        is_running = is_running || moec_layer_is_running(&config->kinds[kind]);
    return is_running;
}

const struct moec_layer_kind *moec_config_attention(const struct moec_config *config)
{
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        if (moec_layer_attends(moec_config_layer(config, layer)))
            return moec_config_layer(config, layer);
    return moec_config_layer(config, 0);
}

uint32_t moec_config_moe_count(const struct moec_config *config)
{
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        count += moec_config_is_moe(config, layer);
    return count;
}

uint32_t moec_config_moe_encoder_count(const struct moec_config *config)
{
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < config->n_encoder_layer; layer++)
        count += moec_config_is_moe(config, layer);
    return count;
}

struct moec_moe_range moec_config_moe_range(const struct moec_config *config, uint32_t ordinal)
{
    const uint32_t n_encoder = moec_config_moe_encoder_count(config);
    if (ordinal < n_encoder)
        return (struct moec_moe_range){0, n_encoder};
    return (struct moec_moe_range){n_encoder, moec_config_moe_count(config) - n_encoder};
}

int32_t moec_config_moe_ordinal(const struct moec_config *config, uint32_t layer)
{
    if (layer >= config->n_layer || !moec_config_is_moe(config, layer))
        return -1;
    int32_t ordinal = 0;
    for (uint32_t before = 0; before < layer; before++)
        ordinal += moec_config_is_moe(config, before);
    return ordinal;
}

uint32_t moec_config_moe_layer(const struct moec_config *config, uint32_t ordinal)
{
    uint32_t seen = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        if (moec_config_is_moe(config, layer) && seen++ == ordinal)
            return layer;
    return config->n_layer;
}
