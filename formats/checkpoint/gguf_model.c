/* The config.json is made in a fixed order: layers, keys, router, rotation, windows, ends, then what only
 * the tensors show, then the architecture's own function. A key of an architecture takes the place of the
 * general one. Values that the family could not honour are refused here: a silent default would give other
 * logits. */
#include "formats/checkpoint/gguf_model.h"

#include "formats/base/memory.h"
#include "formats/checkpoint/gguf_architectures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG_FACTORS "rope_factors_long.weight"

/* ---- metadata ---- */

static const struct moec_gguf_key keys[] = {
    {"context_length", "max_position_embeddings", MOEC_KEY_COUNT, true},
    {"embedding_length", "hidden_size", MOEC_KEY_COUNT, true},
    {"feed_forward_length", "intermediate_size", MOEC_KEY_COUNT, false},
    {"attention.head_count", "num_attention_heads", MOEC_KEY_COUNT, true},
    {"attention.head_count_kv", "num_key_value_heads", MOEC_KEY_COUNT, false},
    {"attention.key_length", "head_dim", MOEC_KEY_COUNT, false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", MOEC_KEY_REAL, true},
    {"attention.sliding_window", "sliding_window", MOEC_KEY_COUNT, false},
    {"attention.clamp_kqv", "clip_qkv", MOEC_KEY_REAL, false},
    {"expert_count", "num_experts", MOEC_KEY_COUNT, true},
    {"expert_used_count", "num_experts_per_tok", MOEC_KEY_COUNT, true},
    {"expert_feed_forward_length", "moe_intermediate_size", MOEC_KEY_COUNT, false},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", MOEC_KEY_COUNT, false},
    {"expert_group_count", "n_group", MOEC_KEY_COUNT, false},
    {"expert_group_used_count", "topk_group", MOEC_KEY_COUNT, false},
};
#define N_KEYS (sizeof keys / sizeof *keys)

static const struct moec_gguf_key *own_key(const struct moec_gguf_architecture *architecture, const char *key)
{
    for (const struct moec_gguf_key *own = architecture->keys; own->key != NULL; own++)
        if (strcmp(own->key, key) == 0)
            return own;
    return NULL;
}

static enum moec_status put_keys(const struct moec_gguf_making *m)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (own_key(m->architecture, keys[i].key) == NULL)
            MOEC_TRY(moec_gguf_making_put(m, &keys[i]));
    for (const struct moec_gguf_key *own = m->architecture->keys; own->key != NULL; own++)
        MOEC_TRY(moec_gguf_making_put(m, own));
    return MOEC_OK;
}

/* Blocks for multi-token prediction count in block_count, after the model's layers. */
static enum moec_status count_layers(struct moec_gguf_making *m)
{
    static const struct moec_gguf_key block_count = {"block_count", NULL, MOEC_KEY_COUNT, true};
    const struct moec_gguf_value *blocks = moec_gguf_making_find(m, block_count.key),
                                 *extra = moec_gguf_making_find(m, "nextn_predict_layers");
    uint64_t n_extra = 0;
    if (blocks == NULL)
        return moec_gguf_making_put(m, &block_count);
    MOEC_TRY(moec_gguf_as_u64(m->gguf, blocks, &m->n_layer, m->err));
    if (extra != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, extra, &n_extra, m->err));
    if (n_extra >= m->n_layer)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' has %" PRIu64 " blocks ('%s.block_count'), %" PRIu64
                         " of them for multi-token prediction: expected at least 1 other block",
                         m->gguf->file.path, m->n_layer, m->architecture->name, n_extra);
    m->n_layer -= n_extra;
    moec_json_out_u64(m->root, "num_hidden_layers", m->n_layer);
    return MOEC_OK;
}

/* The router, which an architecture has of one kind. */
static enum moec_status put_router(const struct moec_gguf_making *m)
{
    static const char *const names[] = {[MOEC_GATING_SOFTMAX] = "softmax",
                                        [MOEC_GATING_SIGMOID] = "sigmoid",
                                        [MOEC_GATING_SOFTMAX_CHOSEN] = "softmax of the chosen"};
    const struct moec_gguf_architecture *a = m->architecture;
    const struct moec_gguf_value *norm = moec_gguf_making_find(m, "expert_weights_norm"),
                                 *gating = moec_gguf_making_find(m, "expert_gating_func"),
                                 *scale = moec_gguf_making_find(m, "expert_weights_scale");
    bool norm_topk = a->norm_topk;
    uint64_t kind = a->gating;
    double factor = 1;
    if (norm != NULL)
        MOEC_TRY(moec_gguf_as_bool(m->gguf, norm, &norm_topk, m->err));
    if (a->always_norm && !norm_topk)
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "the GGUF file '%s' has '%s.expert_weights_norm' false, only true is supported "
                         "for this architecture",
                         m->gguf->file.path, a->name);
    moec_json_out_bool(m->root, "norm_topk_prob", norm_topk);
    if (gating != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, gating, &kind, m->err));
    if (kind != a->gating && !(a->takes_softmax && kind == MOEC_GATING_SOFTMAX))
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "the GGUF file '%s' has '%s.expert_gating_func' %" PRIu64 ", only %d (%s) is "
                         "supported for this architecture",
                         m->gguf->file.path, a->name, kind, a->gating, names[a->gating]);
    if (scale != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, scale, &factor, m->err));
    /* 0 is what writers without a scale leave there. */
    if (factor != 1 && factor != 0 && own_key(a, "expert_weights_scale") == NULL)
        return moec_fail(m->err, MOEC_ERR_UNSUPPORTED,
                         "the GGUF file '%s' has '%s.expert_weights_scale' %g, only 1 is supported for "
                         "this architecture",
                         m->gguf->file.path, a->name, factor);
    return MOEC_OK;
}

/* ---- rotation ---- */

/* The rotated part of a head. */
static enum moec_status put_rotated(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *dims = moec_gguf_making_find(m, "rope.dimension_count"),
                                 *head = moec_gguf_making_find(m, "attention.key_length"),
                                 *width = moec_gguf_making_find(m, "embedding_length"),
                                 *heads = moec_gguf_making_find(m, "attention.head_count");
    uint64_t n_rotated = 0, n_head = 0, n_heads = 0;
    if (dims == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_as_u64(m->gguf, dims, &n_rotated, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, head != NULL ? head : width, &n_head, m->err));
    MOEC_TRY(moec_gguf_as_u64(m->gguf, heads, &n_heads, m->err));
    if (head == NULL && n_heads > 0)
        n_head /= n_heads;
    /* A little more than the quotient, whose product with the head is rounded down. */
    if (n_head > 0 && n_rotated < n_head)
        moec_json_out_double(m->root, "partial_rotary_factor", ((double)n_rotated + 1e-6) / (double)n_head);
    return MOEC_OK;
}

/* DeepSeek's 'mscale_all_dim', a tenth of which the file has; llama.cpp takes 'mscale' to be the same. */
static enum moec_status put_mscale(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *factor = moec_gguf_making_find(m, "rope.scaling.yarn_log_multiplier");
    double tenth = 0;
    if (factor == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_as_double(m->gguf, factor, &tenth, m->err));
    moec_json_out_double(m->root, "mscale", moec_gguf_shortest((float)(10 * moec_gguf_shortest(tenth))));
    moec_json_out_double(m->root, "mscale_all_dim",
                         moec_gguf_shortest((float)(10 * moec_gguf_shortest(tenth))));
    return MOEC_OK;
}

/* LongRoPE's factors, which stand in tensors. */
static enum moec_status put_factors(const struct moec_gguf_making *m, const char *tensor, const char *name)
{
    float factors[MOEC_MAX_FACTORS];
    uint64_t n = 0;
    MOEC_TRY(moec_gguf_making_read(m, tensor, MOEC_MAX_FACTORS, factors, &n));
    struct moec_json_out *list = moec_json_out_array();
    for (uint64_t i = 0; i < n; i++)
        moec_json_out_double(list, NULL, (double)factors[i]);
    moec_json_out_node(m->root, name, list);
    return MOEC_OK;
}

static enum moec_status put_parameters(const struct moec_gguf_making *m, bool is_long)
{
    static const struct moec_gguf_key keys_of_scaling[] = {
        {"rope.scaling.factor", "factor", MOEC_KEY_REAL, false},
        {"rope.scaling.original_context_length", "original_max_position_embeddings", MOEC_KEY_COUNT, false},
        {"rope.scaling.yarn_beta_fast", "beta_fast", MOEC_KEY_REAL, false},
        {"rope.scaling.yarn_beta_slow", "beta_slow", MOEC_KEY_REAL, false},
        {"rope.scaling.yarn_attn_factor", "attention_factor", MOEC_KEY_REAL, false},
    };
    for (size_t i = 0; i < sizeof keys_of_scaling / sizeof *keys_of_scaling; i++)
        MOEC_TRY(moec_gguf_making_put(m, &keys_of_scaling[i]));
    MOEC_TRY(put_mscale(m));
    if (m->architecture->keeps_rope_ends)
        moec_json_out_bool(m->root, "truncate", false);
    if (is_long) {
        MOEC_TRY(put_factors(m, "rope_factors_short.weight", "short_factor"));
        MOEC_TRY(put_factors(m, LONG_FACTORS, "long_factor"));
    }
    return m->architecture->put_scaling == NULL ? MOEC_OK : m->architecture->put_scaling(m);
}

static enum moec_status put_scaling(const struct moec_gguf_making *m, struct moec_gguf_text type)
{
    struct moec_gguf_making inner = *m;
    inner.root = moec_json_out_object();
    moec_json_out_string_n(inner.root, "rope_type", type.bytes, type.n_bytes);
    const enum moec_status status =
        put_parameters(&inner, type.n_bytes == 8 && memcmp(type.bytes, "longrope", 8) == 0);
    moec_json_out_node(m->root, "rope_scaling", inner.root);
    return status;
}

/* ggml's base is 10000 where none is given, and a factor without a type is a linear one; the family judges
 * the type. */
static enum moec_status put_rope(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *base = moec_gguf_making_find(m, "rope.freq_base"),
                                 *type = moec_gguf_making_find(m, "rope.scaling.type"),
                                 *factor = moec_gguf_making_find(m, "rope.scaling.factor");
    struct moec_tensor factors;
    struct moec_gguf_text text = {"none", 4};
    double theta = 10000, scale = 1;
    if (base != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, base, &theta, m->err));
    moec_json_out_double(m->root, "rope_theta", moec_gguf_shortest(theta));
    MOEC_TRY(put_rotated(m));
    if (factor != NULL)
        MOEC_TRY(moec_gguf_as_double(m->gguf, factor, &scale, m->err));
    if (scale != 1 && scale != 0)
        text = (struct moec_gguf_text){"linear", 6};
    if (type != NULL)
        MOEC_TRY(moec_gguf_as_text(m->gguf, type, &text, m->err));
    if (m->source->find(m->source, "rope_freqs.weight", &factors))
        text = (struct moec_gguf_text){"llama3", 6};
    if (m->source->find(m->source, LONG_FACTORS, &factors))
        text = (struct moec_gguf_text){"longrope", 8};
    if (text.n_bytes != 4 || memcmp(text.bytes, "none", 4) != 0)
        return put_scaling(m, text);
    struct moec_json_out *plain = moec_json_out_object(); /* without it, gpt_oss has YaRN */
    moec_json_out_string(plain, "rope_type", "default");
    moec_json_out_node(m->root, "rope_scaling", plain);
    return MOEC_OK;
}

/* `attention.sliding_window_pattern`: which layers have a window, or that each so many-th has none. */
static enum moec_status put_windows(const struct moec_gguf_making *m)
{
    const struct moec_gguf_value *window = moec_gguf_making_find(m, "attention.sliding_window"),
                                 *pattern = moec_gguf_making_find(m, "attention.sliding_window_pattern");
    const bool is_list = pattern != NULL && pattern->type == MOEC_GGUF_ARRAY;
    uint64_t n_window = 0, step = m->architecture->window_step;
    if (window != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, window, &n_window, m->err));
    if (is_list)
        MOEC_TRY(moec_gguf_expect_array(m->gguf, pattern, MOEC_GGUF_BOOL, m->n_layer, m->err));
    else if (pattern != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, pattern, &step, m->err));
    if (n_window == 0)
        moec_json_out_null(m->root, "sliding_window");
    struct moec_json_out *types = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        const bool has_window =
            is_list ? moec_gguf_number(pattern, layer) != 0 : step == 0 || layer % step + 1 < step;
        moec_json_out_string(types, NULL,
                             n_window > 0 && has_window ? "sliding_attention" : "full_attention");
    }
    moec_json_out_node(m->root, "layer_types", types);
    return MOEC_OK;
}

/* ---- what is left to say ---- */

/* Ids that end a text: of the text, of a turn, of a message. */
static enum moec_status put_ends(const struct moec_gguf_making *m)
{
    static const char *const names[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    uint64_t ids[3];
    size_t n = 0;
    struct moec_json_out *list = moec_json_out_array();
    for (size_t i = 0; i < 3; i++) {
        const struct moec_gguf_value *value = moec_gguf_find(m->gguf, names[i]);
        enum moec_status status = value == NULL ? MOEC_OK : moec_gguf_as_u64(m->gguf, value, &ids[n], m->err);
        if (status != MOEC_OK) {
            moec_json_out_free(list);
            return status;
        }
        bool is_new = value != NULL;
        for (size_t j = 0; j < n && is_new; j++)
            is_new = ids[j] != ids[n];
        if (is_new)
            moec_json_out_u64(list, NULL, ids[n++]);
    }
    moec_json_out_node(m->root, "eos_token_id", list);
    return MOEC_OK;
}

/* Layers with a plain MLP, and the width of a shared expert in experts. */
static enum moec_status put_layers(const struct moec_gguf_making *m)
{
    const struct moec_gguf_architecture *a = m->architecture;
    const struct moec_gguf_value *width = moec_gguf_making_find(m, "expert_feed_forward_length");
    struct moec_tensor tensor;
    uint64_t first = m->n_layer, last = 0, n_ff = 0;
    struct moec_json_out *plain = moec_json_out_array();
    for (uint64_t layer = 0; layer < m->n_layer && layer < MOEC_MAX_LAYERS; layer++) {
        if (!moec_gguf_making_has(m, layer, "ffn_gate_inp.weight", &tensor)) {
            moec_json_out_u64(plain, NULL, layer);
            continue;
        }
        first = first == m->n_layer ? layer : first;
        last = layer;
    }
    moec_json_out_node(m->root, "mlp_only_layers", plain);
    if (a->first_moe != NULL)
        moec_json_out_u64(m->root, a->first_moe, first);
    if (a->last_moe != NULL)
        moec_json_out_u64(m->root, a->last_moe, last);
    if (a->n_shared == NULL)
        return MOEC_OK;
    if (width != NULL)
        MOEC_TRY(moec_gguf_as_u64(m->gguf, width, &n_ff, m->err));
    const bool has_shared = moec_gguf_making_has(m, last, "ffn_up_shexp.weight", &tensor) && n_ff > 0;
    moec_json_out_u64(m->root, a->n_shared, has_shared ? tensor.shape[0] / n_ff : 0);
    return MOEC_OK;
}

/* What shows in the tensors alone: the vocabulary, a tied head, biases and norms of attention. */
static enum moec_status put_tensors(const struct moec_gguf_making *m)
{
    struct moec_tensor tensor;
    if (!m->source->find(m->source, "token_embd.weight", &tensor) || tensor.n_dims != 2)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' has no tensor 'token_embd.weight' of two dimensions",
                         m->gguf->file.path);
    moec_json_out_u64(m->root, "vocab_size", tensor.shape[0]);
    moec_json_out_bool(m->root, "tie_word_embeddings", !m->source->find(m->source, "output.weight", &tensor));
    const bool has_bias = moec_gguf_making_has(m, 0, "attn_q.bias", &tensor) ||
                          moec_gguf_making_has(m, 0, "attn_qkv.bias", &tensor);
    moec_json_out_bool(m->root, "qkv_bias", has_bias);
    moec_json_out_bool(m->root, "attention_bias", has_bias);
    moec_json_out_bool(m->root, "use_qk_norm", moec_gguf_making_has(m, 0, "attn_q_norm.weight", &tensor));
    return put_layers(m);
}

enum moec_status moec_gguf_model_config(const struct moec_tensor_source *source, char **json,
                                        struct moec_error *err)
{
    struct moec_gguf_making m = {.source = source, .gguf = moec_gguf_source_header(source), .err = err};
    MOEC_TRY(moec_gguf_find_architecture(m.gguf, &m.architecture, err));
    m.root = moec_json_out_object();
    enum moec_status status = MOEC_OK;
    moec_json_out_string(m.root, "model_type", m.architecture->model_type);
    MOEC_TRY_OUT(count_layers(&m));
    MOEC_TRY_OUT(put_keys(&m));
    MOEC_TRY_OUT(put_router(&m));
    if (!m.architecture->has_own_rope)
        MOEC_TRY_OUT(put_rope(&m));
    if (m.architecture->window_step > 0)
        MOEC_TRY_OUT(put_windows(&m));
    MOEC_TRY_OUT(put_ends(&m));
    MOEC_TRY_OUT(put_tensors(&m));
    if (m.architecture->put != NULL)
        MOEC_TRY_OUT(m.architecture->put(&m));
    MOEC_TRY_OUT(moec_json_out_text(m.root, json, err));
out:
    moec_json_out_free(m.root);
    return status;
}
