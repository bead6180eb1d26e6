#include "formats/model/config.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- limits and relations ---- */

static enum moec_status check_range(const char *subject, const char *name, uint64_t value, uint64_t min,
                                    uint64_t max, struct moec_error *err)
{
    if (value < min || value > max)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s says %s %" PRIu64 ", expected %" PRIu64 "..%" PRIu64,
                         subject, name, value, min, max);
    return MOEC_OK;
}

/* Two-sided buckets are halved, and the first half of what is left are single distances: at least one, and
 * max_distance lies past them, or there would be nothing to take the logarithm of. */
static enum moec_status check_buckets(const struct moec_config *c, const char *subject,
                                      struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "buckets of relative positions", c->n_bucket, 4, MOEC_MAX_BUCKETS, err));
    MOEC_TRY(check_range(subject, "distance of relative positions", c->max_distance, c->n_bucket / 2 + 1,
                         MOEC_MAX_DISTANCE, err));
    MOEC_TRY(check_range(subject, "heads x distance of relative positions",
                         (uint64_t)c->n_head * c->max_distance, 1, MOEC_MAX_BIASES, err));
    if (c->rope_theta != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says RoPE theta %g and buckets of relative positions",
                         subject, c->rope_theta);
    return MOEC_OK;
}

static enum moec_status check_attention(const struct moec_config *c, const char *subject,
                                        struct moec_error *err)
{
    MOEC_TRY(check_range(subject, "attention heads", c->n_head, 1, MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "key/value heads", c->n_kv_head, 1, c->n_head, err));
    if (c->n_head % c->n_kv_head != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says %u attention heads and %u key/value heads, expected a multiple", subject,
                         c->n_head, c->n_kv_head);
    MOEC_TRY(check_range(subject, "head dimension", c->head_dim, 2, MOEC_MAX_DIMENSION, err));
    if (c->head_dim % 2 != 0 && c->n_bucket == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says head dimension %u, expected an even number", subject,
                         c->head_dim);
    MOEC_TRY(check_range(subject, "heads x head dimension", (uint64_t)c->n_head * c->head_dim, 2,
                         MOEC_MAX_DIMENSION, err));
    MOEC_TRY(check_range(subject, "positions", c->n_position, 1, MOEC_MAX_POSITIONS, err));
    MOEC_TRY(check_range(subject, "attention window", c->window, 0, MOEC_MAX_POSITIONS, err));
    if (c->n_bucket > 0)
        MOEC_TRY(check_buckets(c, subject, err));
    if (c->n_bucket == 0 && c->max_distance > 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says %u as a distance of relative positions without buckets", subject,
                         c->max_distance);
    if (c->n_bucket == 0 && !(isfinite(c->rope_theta) && c->rope_theta > 0))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says RoPE theta %g, expected a positive number", subject,
                         c->rope_theta);
    if (!(isfinite(c->clip_qkv) && c->clip_qkv >= 0))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says QKV clip %g, expected 0 or a positive number",
                         subject, (double)c->clip_qkv);
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
    if (c->shared_gate && c->n_ff_shared == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has a shared expert gate but no shared expert", subject);
    if (c->expert_dtype > MOEC_DTYPE_BF16)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says expert dtype %u, expected 0 (F32), 1 (F16) or 2 (BF16)", subject,
                         c->expert_dtype);
    uint32_t moe = 0;
    for (uint32_t layer = 0; layer < MOEC_MAX_LAYERS; layer++) {
        if (c->layer_is_moe[layer] > (layer < c->n_layer ? 1 : 0))
            return moec_fail(err, MOEC_ERR_FORMAT, "%s says kind %u for layer %u of %u, expected 0 or 1",
                             subject, c->layer_is_moe[layer], layer, c->n_layer);
        moe += c->layer_is_moe[layer];
    }
    if (moe == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has no layer with experts, expected at least one",
                         subject);
    if (moe < c->n_layer)
        return check_range(subject, "dense MLP size", c->n_ff_dense, 1, MOEC_MAX_DIMENSION, err);
    return check_range(subject, "dense MLP size without dense layers", c->n_ff_dense, 0, 0, err);
}

/* What comes with an encoder, and what no encoder is known to come with. */
static enum moec_status check_stacks(const struct moec_config *c, const char *subject, struct moec_error *err)
{
    const bool has_encoder = moec_config_is_encoder_decoder(c);
    MOEC_TRY(check_range(subject, "encoder layers", c->n_encoder_layer, 0, c->n_layer - 1, err));
    if (has_encoder != (c->n_bucket > 0))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s says %u encoder layers and %u buckets of relative positions, expected both or none", subject,
            c->n_encoder_layer, c->n_bucket);
    if (has_encoder && (c->window > 0 || c->clip_qkv > 0 || c->qkv_bias || c->qk_norm || c->n_ff_shared > 0))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has an encoder with a window, a clip, biases or norms of q, k, v or a shared expert",
            subject);
    if (!has_encoder && c->scaled_head)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s scales the head's input without an encoder", subject);
    if (!has_encoder)
        MOEC_TRY(check_range(subject, "expert capacity without an encoder", c->expert_capacity, 0, 0, err));
    if (c->expert_capacity > 0)
        MOEC_TRY(check_range(subject, "experts for each token of limited experts", c->top_k, 1, 1, err));
    const uint32_t last_id = has_encoder ? c->n_vocab - 1 : 0;
    MOEC_TRY(check_range(subject, "decoder start id", c->decoder_start_id, 0, last_id, err));
    return check_range(subject, "padding id", c->pad_id, 0, last_id, err);
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
                         "%s has no family name of 1..%zu lower-case letters, digits, _ or -", subject,
                         sizeof c->family - 1);
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
    if (!(c->rms_eps >= 0 && c->rms_eps < 1))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s says RMS norm epsilon %g, expected 0 <= epsilon < 1",
                         subject, c->rms_eps);
    MOEC_TRY(check_attention(c, subject, err));
    MOEC_TRY(check_experts(c, subject, err));
    MOEC_TRY(check_range(subject, "activation", c->activation, 0, MOEC_ACTIVATION_COUNT - 1, err));
    MOEC_TRY(check_stacks(c, subject, err));
    MOEC_TRY(check_range(subject, "end-of-text ids", c->n_eos, 0, MOEC_MAX_EOS, err));
    for (uint32_t i = 0; i < c->n_eos; i++)
        MOEC_TRY(check_range(subject, "end-of-text id", c->eos_ids[i], 0, c->n_vocab - 1, err));
    return MOEC_OK;
}

/* ---- MoE layers ---- */

uint32_t moec_config_moe_count(const struct moec_config *config)
{
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        count += config->layer_is_moe[layer];
    return count;
}

uint32_t moec_config_moe_encoder_count(const struct moec_config *config)
{
    uint32_t count = 0;
    for (uint32_t layer = 0; layer < config->n_encoder_layer; layer++)
        count += config->layer_is_moe[layer];
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
    if (layer >= config->n_layer || !config->layer_is_moe[layer])
        return -1;
    int32_t ordinal = 0;
    for (uint32_t before = 0; before < layer; before++)
        ordinal += config->layer_is_moe[before];
    return ordinal;
}

uint32_t moec_config_moe_layer(const struct moec_config *config, uint32_t ordinal)
{
    uint32_t seen = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        if (config->layer_is_moe[layer] && seen++ == ordinal)
            return layer;
    return config->n_layer;
}

/* ---- binary section ---- */

/* Little-endian, no padding; offsets in bytes:
 *     0 u32 version (1 or 2)         4 char family[24], NUL-padded
 *    28 u32 n_layer, n_embd, n_head, n_kv_head, head_dim, n_vocab, n_position, window,
 *           n_expert, top_k, n_ff_expert, n_ff_shared, n_ff_dense
 *    80 u64 rope_theta, rms_eps: bits of F64
 *    96 u32 clip_qkv: bits of F32
 *   100 u8  qkv_bias, qk_norm, tied_head, shared_gate, norm_topk_prob (0 or 1), expert_dtype, 0, 0
 *   108 u32 n_eos               112 u32 eos_ids[n_eos]
 *   then u8 layer_is_moe[n_layer]
 * and in version 2, which is written only where version 1 cannot say it:
 *     0 u32 n_encoder_layer, n_bucket, max_distance, expert_capacity, decoder_start_id, pad_id
 *    24 u8  activation, plain_mlp, router_bias, scaled_head */
#define SECTION_FIXED 112u
#define SECTION_TAIL  28u

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

enum moec_status moec_config_encode(const struct moec_config *config, uint8_t **bytes, size_t *n_bytes,
                                    struct moec_error *err)
{
    const struct moec_config *c = config;
    void *memory = NULL;
    MOEC_TRY(moec_config_check(c, "config", err));
    const bool has_tail = needs_tail(c);
    size_t total = SECTION_FIXED + (size_t)4 * c->n_eos + c->n_layer + (has_tail ? SECTION_TAIL : 0);
    MOEC_TRY(moec_alloc(&memory, total, 1, "config section", err));
    uint8_t *at = memory;
    put_u32(&at, has_tail ? 2 : 1);
    memcpy(at, c->family, strlen(c->family));
    at += sizeof c->family;
    const uint32_t counts[13] = {c->n_layer,     c->n_embd,      c->n_head,    c->n_kv_head, c->head_dim,
                                 c->n_vocab,     c->n_position,  c->window,    c->n_expert,  c->top_k,
                                 c->n_ff_expert, c->n_ff_shared, c->n_ff_dense};
    for (size_t i = 0; i < 13; i++)
        put_u32(&at, counts[i]);
    put_f64(&at, c->rope_theta);
    put_f64(&at, c->rms_eps);
    uint32_t clip;
    memcpy(&clip, &c->clip_qkv, sizeof clip);
    put_u32(&at, clip);
    const uint8_t flags[8] = {
        c->qkv_bias, c->qk_norm, c->tied_head, c->shared_gate, c->norm_topk_prob, c->expert_dtype, 0, 0};
    memcpy(at, flags, sizeof flags);
    at += sizeof flags;
    put_u32(&at, c->n_eos);
    for (uint32_t i = 0; i < c->n_eos; i++)
        put_u32(&at, c->eos_ids[i]);
    memcpy(at, c->layer_is_moe, c->n_layer);
    at += c->n_layer;
    if (has_tail)
        encode_tail(c, &at);
    *bytes = memory;
    *n_bytes = total;
    return MOEC_OK;
}

static enum moec_status decode_flags(const uint8_t **at, struct moec_config *c, struct moec_error *err)
{
    bool *const flags[5] = {&c->qkv_bias, &c->qk_norm, &c->tied_head, &c->shared_gate, &c->norm_topk_prob};
    for (int i = 0; i < 8; i++) {
        uint8_t value = *(*at)++;
        if (value > (i < 5 ? 1 : i == 5 ? 255 : 0))
            return moec_fail(err, MOEC_ERR_FORMAT, "config section has %u at offset %d, expected %s", value,
                             100 + i, i < 5 ? "0 or 1" : "0");
        if (i < 5)
            *flags[i] = value != 0;
        else if (i == 5)
            c->expert_dtype = value;
    }
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
                             "config section has %u for flag %zu of version 2, expected "
                             "0 or 1",
                             *at, i);
        *flags[i] = *at != 0;
    }
    if (!needs_tail(c))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "config section has version 2 but says nothing that version 1 cannot");
    return MOEC_OK;
}

enum moec_status moec_config_decode(const uint8_t *bytes, size_t n_bytes, struct moec_config *config,
                                    struct moec_error *err)
{
    if (n_bytes < SECTION_FIXED)
        return moec_fail(err, MOEC_ERR_FORMAT, "config section has %zu bytes, expected at least %u", n_bytes,
                         SECTION_FIXED);
    struct moec_config c = {0};
    const uint8_t *at = bytes;
    uint32_t version = get_u32(&at);
    if (version != 1 && version != 2)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "config section has version %u, expected 1 or 2",
                         version);
    memcpy(c.family, at, sizeof c.family);
    at += sizeof c.family;
    for (size_t i = strnlen(c.family, sizeof c.family); i < sizeof c.family; i++)
        if (c.family[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "config section has bytes after the end of the family name");
    uint32_t *const counts[13] = {&c.n_layer,     &c.n_embd,      &c.n_head,    &c.n_kv_head, &c.head_dim,
                                  &c.n_vocab,     &c.n_position,  &c.window,    &c.n_expert,  &c.top_k,
                                  &c.n_ff_expert, &c.n_ff_shared, &c.n_ff_dense};
    for (size_t i = 0; i < 13; i++)
        *counts[i] = get_u32(&at);
    c.rope_theta = get_f64(&at);
    c.rms_eps = get_f64(&at);
    uint32_t clip = get_u32(&at);
    memcpy(&c.clip_qkv, &clip, sizeof clip);
    MOEC_TRY(decode_flags(&at, &c, err));
    c.n_eos = get_u32(&at);
    MOEC_TRY(check_range("config section", "layers", c.n_layer, 1, MOEC_MAX_LAYERS, err));
    MOEC_TRY(check_range("config section", "end-of-text ids", c.n_eos, 0, MOEC_MAX_EOS, err));
    size_t expected = SECTION_FIXED + (size_t)4 * c.n_eos + c.n_layer + (version == 2 ? SECTION_TAIL : 0);
    if (n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "config section has %zu bytes, expected %zu", n_bytes,
                         expected);
    for (uint32_t i = 0; i < c.n_eos; i++)
        c.eos_ids[i] = get_u32(&at);
    memcpy(c.layer_is_moe, at, c.n_layer);
    if (version == 2)
        MOEC_TRY(decode_tail(at + c.n_layer, &c, err));
    MOEC_TRY(moec_config_check(&c, "config section", err));
    *config = c;
    return MOEC_OK;
}
