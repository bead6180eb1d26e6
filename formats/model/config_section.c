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
 *
 * in versions 2 and 3:
 *     0 u32 n_encoder_layer, n_bucket, max_distance, expert_capacity, decoder_start_id, pad_id
 *    24 u8  activation, plain_mlp, router_bias, scaled_head
 *
 * and in version 3 blocks up to the end, in increasing order of their tags:
 *     0 u32 tag, n_bytes          8 u8  payload[n_bytes]
 *
 * Of what layers differ in, the fixed fields say what the first layer (of MLPs: the first without experts)
 * has. A config has one encoding: a block is written where the fixed fields cannot say what it says, and the
 * version is the lowest that holds it all. */
#include "formats/model/config_section.h"

#include "formats/base/memory.h"

#define SECTION_FIXED 112u
#define SECTION_TAIL  28u
#define BLOCK_HEADER  8u

uint32_t moec_config_first_dense_size(const struct moec_config *c)
{
    for (uint32_t i = 0; i < c->n_kind; i++)
        if (!c->kinds[i].is_moe)
            return c->kinds[i].n_ff_dense;
    return 0;
}

/* ---- blocks ---- */

static size_t blocks_size(const struct moec_config *c)
{
    size_t total = 0;
    for (size_t i = 0; i < moec_config_block_count; i++) {
        const size_t n_bytes = moec_config_blocks[i].size(c);
        total += n_bytes > 0 ? BLOCK_HEADER + n_bytes : 0;
    }
    return total;
}

static void encode_blocks(const struct moec_config *c, uint8_t **at)
{
    for (size_t i = 0; i < moec_config_block_count; i++) {
        const size_t n_bytes = moec_config_blocks[i].size(c);
        if (n_bytes == 0)
            continue;
        moec_section_put_u32(at, moec_config_blocks[i].tag);
        moec_section_put_u32(at, (uint32_t)n_bytes);
        moec_config_blocks[i].encode(c, *at);
        *at += n_bytes;
    }
}

static enum moec_status decode_blocks(const uint8_t *at, size_t n_left, struct moec_config_reading *reading,
                                      struct moec_error *err)
{
    uint32_t last = 0;
    while (n_left > 0) {
        if (n_left < BLOCK_HEADER)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section ends with %zu bytes, expected a block header of %u bytes",
                             n_left, BLOCK_HEADER);
        const uint32_t tag = moec_section_get_u32(&at), n_bytes = moec_section_get_u32(&at);
        n_left -= BLOCK_HEADER;
        if (tag <= last)
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the config section has block %u after block %u, expected increasing block numbers", tag,
                last);
        if (n_bytes > n_left)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has only %zu bytes left for block %u, which needs %u",
                             n_left, tag, n_bytes);
        size_t i = 0;
        while (i < moec_config_block_count && moec_config_blocks[i].tag != tag)
            i++;
        if (i == moec_config_block_count)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "the config section has a block with tag %u, which this version of moec does not know: "
                "the bundle was written by a newer moec; use a newer moec to read it",
                tag);
        MOEC_TRY(moec_config_blocks[i].decode(at, n_bytes, reading, err));
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
    for (size_t i = 0; i < moec_config_block_count; i++) {
        const size_t wanted = moec_config_blocks[i].size(c);
        const bool is_here = n_left > 0 && moec_get_u32(at) == moec_config_blocks[i].tag;
        const uint32_t n_bytes = is_here ? moec_get_u32(at + 4) : 0;
        if (n_bytes != wanted || is_here != (wanted > 0))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has %u bytes for %s (block %u), expected %zu", n_bytes,
                             moec_config_blocks[i].name, moec_config_blocks[i].tag, wanted);
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
    return c->n_encoder_layer > 0 || c->mlp.activation != MOEC_ACTIVATION_SILU || c->mlp.plain ||
           c->router.bias || c->router.expert_capacity > 0;
}

static void encode_tail(const struct moec_config *c, uint8_t **at)
{
    const uint32_t counts[6] = {c->n_encoder_layer,        c->position.n_bucket, c->position.max_distance,
                                c->router.expert_capacity, c->ids.decoder_start, c->ids.pad};
    for (size_t i = 0; i < 6; i++)
        moec_section_put_u32(at, counts[i]);
    const uint8_t flags[4] = {c->mlp.activation, c->mlp.plain, c->router.bias, c->head.is_scaled};
    memcpy(*at, flags, sizeof flags);
    *at += sizeof flags;
}

static void encode_fixed(const struct moec_config *c, uint32_t version, uint8_t **at)
{
    const struct moec_layer_kind *kind = moec_config_layer(c, 0);
    moec_section_put_u32(at, version);
    memcpy(*at, c->family, strlen(c->family));
    *at += sizeof c->family;
    const uint32_t counts[13] = {c->n_layer,
                                 c->n_embd,
                                 kind->n_head,
                                 kind->n_kv_head,
                                 kind->head_dim,
                                 c->n_vocab,
                                 c->n_position,
                                 kind->window,
                                 c->n_expert,
                                 c->top_k,
                                 c->n_ff_expert,
                                 c->n_ff_shared,
                                 moec_config_first_dense_size(c)};
    for (size_t i = 0; i < 13; i++)
        moec_section_put_u32(at, counts[i]);
    moec_section_put_f64(at, kind->rope_theta);
    moec_section_put_f64(at, c->rms_eps);
    moec_section_put_f32(at, kind->clip_qkv);
    const uint8_t flags[8] = {kind->qkv_bias,
                              kind->qk_norm == MOEC_QK_NORM_WHOLE,
                              c->head.is_tied,
                              c->mlp.shared_gate,
                              c->router.norm_topk_prob,
                              c->expert_dtype,
                              0,
                              0};
    memcpy(*at, flags, sizeof flags);
    *at += sizeof flags;
    moec_section_put_u32(at, c->ids.n_eos);
    for (uint32_t i = 0; i < c->ids.n_eos; i++)
        moec_section_put_u32(at, c->ids.eos[i]);
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
    const size_t total = SECTION_FIXED + (size_t)4 * c->ids.n_eos + c->n_layer +
                         (version > 1 ? SECTION_TAIL : 0) + n_block_bytes;
    MOEC_TRY(moec_alloc(&memory, total, 1, MOEC_CONFIG_SUBJECT, err));
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

static enum moec_status decode_flags(const uint8_t **at, struct moec_config_reading *reading,
                                     struct moec_error *err)
{
    struct moec_config *c = &reading->config;
    bool is_normed = false;
    bool *const flags[5] = {&reading->attention[0].qkv_bias, &is_normed, &c->head.is_tied,
                            &c->mlp.shared_gate, &c->router.norm_topk_prob};
    for (int i = 0; i < 8; i++) {
        uint8_t value = *(*at)++;
        if (value > (i < 5 ? 1 : i == 5 ? 255 : 0))
            return moec_fail(err, MOEC_ERR_FORMAT, "the config section has %u at offset %d, expected %s",
                             value, 100 + i, i < 5 ? "0 or 1" : "0");
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
    uint32_t *const counts[6] = {&c->n_encoder_layer,        &c->position.n_bucket, &c->position.max_distance,
                                 &c->router.expert_capacity, &c->ids.decoder_start, &c->ids.pad};
    for (size_t i = 0; i < 6; i++)
        *counts[i] = moec_section_get_u32(&at);
    bool *const flags[3] = {&c->mlp.plain, &c->router.bias, &c->head.is_scaled};
    c->mlp.activation = *at++;
    for (size_t i = 0; i < 3; i++, at++) {
        if (*at > 1)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has %u for flag %zu of version 2, expected 0 or 1", *at, i);
        *flags[i] = *at != 0;
    }
    return MOEC_OK;
}

static enum moec_status decode_family(const uint8_t *at, struct moec_config *c, struct moec_error *err)
{
    memcpy(c->family, at, sizeof c->family);
    for (size_t i = strnlen(c->family, sizeof c->family); i < sizeof c->family; i++)
        if (c->family[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the config section has nonzero bytes after the end of the family name");
    return MOEC_OK;
}

/* The fields before the layers. */
static enum moec_status decode_fixed(const uint8_t **at, struct moec_config_reading *reading,
                                     struct moec_error *err)
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
        *counts[i] = moec_section_get_u32(at);
    kind->rope_theta = moec_section_get_f64(at);
    c->rms_eps = moec_section_get_f64(at);
    kind->clip_qkv = moec_section_get_f32(at);
    MOEC_TRY(decode_flags(at, reading, err));
    c->ids.n_eos = moec_section_get_u32(at);
    if (reading->n_layer == 0 || reading->n_layer > MOEC_MAX_LAYERS)
        return moec_fail(err, MOEC_ERR_LIMIT, "the config section has %u layers, expected 1..%u",
                         reading->n_layer, MOEC_MAX_LAYERS);
    if (c->ids.n_eos > MOEC_MAX_EOS)
        return moec_fail(err, MOEC_ERR_LIMIT, "the config section has %u end-of-text ids, expected 0..%u",
                         c->ids.n_eos, MOEC_MAX_EOS);
    return MOEC_OK;
}

static enum moec_status decode_is_moe(const uint8_t *at, struct moec_config_reading *reading,
                                      struct moec_error *err)
{
    uint32_t n_moe = 0;
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        if (at[layer] > 1)
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "the config section says kind %u for layer %u of %u, expected 0 (dense) or 1 (MoE)",
                at[layer], layer, reading->n_layer);
        reading->is_moe[layer] = at[layer];
        reading->n_ff_dense[layer] = reading->n_ff_dense[0];
        n_moe += at[layer];
    }
    if (n_moe == reading->n_layer && reading->n_ff_dense[0] > 0)
        return moec_fail(
            err, MOEC_ERR_LIMIT,
            "the config section sets the dense MLP size to %u but has no dense layers, expected 0",
            reading->n_ff_dense[0]);
    return MOEC_OK;
}

static enum moec_status place_layers(struct moec_config_reading *reading, struct moec_error *err)
{
    for (uint32_t layer = 0; layer < reading->n_layer; layer++) {
        struct moec_layer_kind kind = reading->attention[reading->attention_of[layer]];
        kind.is_moe = reading->is_moe[layer] != 0;
        kind.routes_by_token = reading->routes_by_token[layer] != 0;
        kind.adds_positions = reading->adds_positions[layer] != 0;
        kind.n_ff_dense = kind.is_moe ? 0 : reading->n_ff_dense[layer];
        if (!moec_config_add_layer(&reading->config, &kind))
            return moec_fail(err, MOEC_ERR_LIMIT, "the config section has more than %u kinds of layers",
                             MOEC_MAX_LAYER_KINDS);
    }
    return MOEC_OK;
}

enum moec_status moec_config_decode(const uint8_t *bytes, size_t n_bytes, struct moec_config *config,
                                    struct moec_error *err)
{
    if (n_bytes < SECTION_FIXED)
        return moec_fail(err, MOEC_ERR_FORMAT, "the config section has %zu bytes, expected at least %u",
                         n_bytes, SECTION_FIXED);
    struct moec_config_reading reading = {.n_attention = 1};
    struct moec_config *c = &reading.config;
    const uint8_t *at = bytes;
    const uint32_t version = moec_section_get_u32(&at);
    if (version < 1 || version > 3)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the config section has version %u, expected 1 to 3",
                         version);
    MOEC_TRY(decode_fixed(&at, &reading, err));
    const size_t expected =
        SECTION_FIXED + (size_t)4 * c->ids.n_eos + reading.n_layer + (version > 1 ? SECTION_TAIL : 0);
    if (version == 3 ? n_bytes <= expected : n_bytes != expected)
        return moec_fail(err, MOEC_ERR_FORMAT, "the config section has %zu bytes, expected %s%zu", n_bytes,
                         version == 3 ? "more than " : "", expected);
    for (uint32_t i = 0; i < c->ids.n_eos; i++)
        c->ids.eos[i] = moec_section_get_u32(&at);
    MOEC_TRY(decode_is_moe(at, &reading, err));
    if (version > 1)
        MOEC_TRY(decode_tail(at + reading.n_layer, c, err));
    if (version == 2 && !needs_tail(c))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the config section has version 2, expected version 1, because none of its settings needs "
            "version 2");
    const uint8_t *const first_block = bytes + expected;
    MOEC_TRY(decode_blocks(first_block, n_bytes - expected, &reading, err));
    MOEC_TRY(place_layers(&reading, err));
    MOEC_TRY(moec_config_check(c, MOEC_CONFIG_SUBJECT, err));
    MOEC_TRY(check_blocks(first_block, n_bytes - expected, c, err));
    *config = *c;
    return MOEC_OK;
}
