/* Model descriptions put together in memory: layers that are added, and what is refused of a whole one. */
#include "tests/unit/fixture_config.h"

#include <math.h>

static void test_config_check__layers_are_added(void **state)
{
    (void)state;
    struct moec_config c = {0};
    for (uint32_t layer = 0; layer < MOEC_MAX_LAYERS; layer++) {
        struct moec_layer_kind kind = KIND(.n_ff_dense = 1 + layer % MOEC_MAX_LAYER_KINDS);
        assert_true(moec_config_add_layer(&c, &kind));
        kind.n_ff_dense = 99; /* one kind more than there may be, and later one layer more */
        assert_int_equal(c.n_layer, layer + 1);
        if (layer + 1 >= MOEC_MAX_LAYER_KINDS)
            assert_false(moec_config_add_layer(&c, &kind));
        assert_int_equal(c.n_kind, layer < MOEC_MAX_LAYER_KINDS ? layer + 1 : MOEC_MAX_LAYER_KINDS);
        assert_int_equal(moec_config_layer(&c, layer)->n_ff_dense, 1 + layer % MOEC_MAX_LAYER_KINDS);
    }
    assert_false(moec_config_add_layer(&c, &c.kinds[0]));
    assert_int_equal(c.n_layer, MOEC_MAX_LAYERS);
}

static void expect_refusal(const struct moec_config *c, enum moec_status status, const char *part)
{
    struct moec_error err = {0};
    assert_status(moec_config_check(c, "'config.json'", &err), status, err);
    assert_message(err, "'config.json'");
    assert_message(err, part);
}

#define REFUSED(change, status, part)                                                                        \
    do {                                                                                                     \
        struct moec_config c = sample();                                                                     \
        change;                                                                                              \
        expect_refusal(&c, status, part);                                                                    \
    } while (0)

static void test_config_check__check_refuses(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_config good = sample();
    assert_status(moec_config_check(&good, "x", &err), MOEC_OK, err);
    REFUSED(c.router.kind = MOEC_ROUTER_COUNT, MOEC_ERR_LIMIT, "kind of router 6");
    REFUSED(c.n_frequent = c.n_vocab, MOEC_ERR_LIMIT, "ids of frequent tokens");
    REFUSED(c.router.jitter = 0.1f, MOEC_ERR_FORMAT, "the router's jitter to 0.1, expected 0 without");
    REFUSED((c.layer_norm = true, c.norms = MOEC_NORMS_AROUND), MOEC_ERR_FORMAT, "LayerNorms");
    REFUSED((c.head.projects_output = true, c.scale.logit_divisor = 2), MOEC_ERR_FORMAT,
            "projects the last hidden state");
    REFUSED((c.mlp.has_bypass = true, c.n_ff_shared = 3), MOEC_ERR_FORMAT,
            "expert bypass together with a shared");
    REFUSED(c.router.scales_input = true, MOEC_ERR_FORMAT,
            "scales expert inputs, which moec supports only with top-k 1");
    REFUSED((c.kinds[0].window = 4, c.kinds[0].chunk = 3), MOEC_ERR_LIMIT,
            "attention chunk 3, expected 0..0");
    REFUSED(c.position.growth_positions = 3, MOEC_ERR_LIMIT, "positions of growing queries 3, expected 0..0");
    REFUSED((c.kinds[0].rope_scaling = (struct moec_rope_scaling){.kind = MOEC_ROPE_LLAMA3,
                                                                  .factor = 2,
                                                                  .beta_fast = 1,
                                                                  .beta_slow = 2,
                                                                  .original_positions = 9}),
            MOEC_ERR_FORMAT, "expected the high one to be at least the low one");
    REFUSED(c.mlp.dense_bias = true, MOEC_ERR_FORMAT,
            "activation: biases and a separate activation are supported only in MLPs without gates");
    REFUSED(c.router.full_keeps_input = true, MOEC_ERR_FORMAT, "but gives no capacity");
    REFUSED(c.n_identity = MOEC_MAX_EXPERTS, MOEC_ERR_LIMIT, "identity experts 4096");
    REFUSED((c.n_identity = 2, c.router.kind = MOEC_ROUTER_SOFTMAX_CHOSEN, c.router.norm_topk_prob = false),
            MOEC_ERR_FORMAT, "need a softmax or sigmoid router");
    REFUSED((c.mlp.joins_late = true, c.norms = MOEC_NORMS_AFTER), MOEC_ERR_FORMAT, "one layer later");
    REFUSED(c.scale.latent = -1, MOEC_ERR_FORMAT, "the scale of latents");
    REFUSED(c.position.query_growth = 0.5f, MOEC_ERR_LIMIT, "trained context of growing queries 0");
    REFUSED(c.position.rope_context = 5, MOEC_ERR_LIMIT, "text length for RoPE angles 5");
    REFUSED(c.position.n_rope_factor = 4, MOEC_ERR_LIMIT, "factors of RoPE 4");
    REFUSED(c.router.scale = NAN, MOEC_ERR_FORMAT, "the scale of router weights to nan");
    REFUSED(c.router.scale = INFINITY, MOEC_ERR_FORMAT, "the scale of router weights to inf");
    REFUSED(c.router.scale = -0.0f, MOEC_ERR_FORMAT, "the scale of router weights to -0");
    REFUSED((c.router.kind = MOEC_ROUTER_SOFTMAX_CHOSEN, c.router.norm_topk_prob = true), MOEC_ERR_FORMAT,
            "divides router weights by their sum");
    REFUSED(c.n_layer = 0, MOEC_ERR_LIMIT, "layers 0, expected 1..1024");
    REFUSED(c.n_layer = 1025, MOEC_ERR_LIMIT, "layers 1025");
    REFUSED(c.n_embd = 0, MOEC_ERR_LIMIT, "hidden size");
    REFUSED(c.n_embd = MOEC_MAX_DIMENSION + 1, MOEC_ERR_LIMIT, "hidden size");
    REFUSED(c.kinds[0].n_head = 0, MOEC_ERR_LIMIT, "attention heads");
    REFUSED(c.kinds[0].n_kv_head = 0, MOEC_ERR_LIMIT, "key/value heads");
    REFUSED(c.kinds[0].n_kv_head = 7, MOEC_ERR_LIMIT, "key/value heads");
    REFUSED(c.kinds[0].n_kv_head = 4, MOEC_ERR_FORMAT, "to be a multiple of the key/value heads");
    REFUSED(c.kinds[0].head_dim = 7, MOEC_ERR_FORMAT, "even");
    REFUSED(c.n_encoder_layer = 2, MOEC_ERR_FORMAT, "2 encoder layers and 0 buckets");
    REFUSED(c.n_encoder_layer = 5, MOEC_ERR_LIMIT, "expected 0..4");
    REFUSED(c.position.n_bucket = 8; c.position.max_distance = 20, MOEC_ERR_FORMAT, "RoPE (theta");
    REFUSED(c.position.max_distance = 20, MOEC_ERR_FORMAT,
            "to 20 but has no buckets of relative positions, expected 0");
    REFUSED(c.router.expert_capacity = 5, MOEC_ERR_LIMIT, "expert capacity");
    REFUSED(c.kinds[0].q_latent_dim = 5, MOEC_ERR_LIMIT, "latent of queries 5, expected 0..0");
    REFUSED(c = latent(); c.kinds[0].n_head = 4;
            c.kinds[0].n_kv_head = 2, MOEC_ERR_LIMIT, "key/value heads with a latent 2");
    REFUSED(c = latent();
            c.kinds[0].rotary_dim = 0, MOEC_ERR_LIMIT, "rotated part of a head with a latent 0");
    REFUSED(c = latent();
            c.kinds[0].has_gate = true, MOEC_ERR_FORMAT, "latent attention (MLA) together with");
    REFUSED(c = latent(); c.kinds[0].n_head = c.kinds[0].latent_dim = 1u << 19, MOEC_ERR_LIMIT, "heads x ");
    REFUSED(c.mlp.activation = 6, MOEC_ERR_LIMIT, "activation 6");
    REFUSED(c.mlp.activation = MOEC_ACTIVATION_CLAMPED_SILU;
            c.mlp.plain = true, MOEC_ERR_FORMAT, "without a gate, but an activation that clamps gates");
    REFUSED(c = two_stacks();
            c.kinds[1].routes_by_token = true, MOEC_ERR_FORMAT, "routes by token id but has");
    REFUSED(c.mlp.activation = MOEC_ACTIVATION_CLAMPED_GLU;
            c.mlp.plain = true, MOEC_ERR_FORMAT, "without a gate, but an activation that clamps gates");
    REFUSED(c = two_stacks(); c.mlp.expert_bias = true, MOEC_ERR_FORMAT, "settings that moec supports only");
    REFUSED(c = two_stacks(); c.top_k = 2, MOEC_ERR_LIMIT, "expected 1..1");
    REFUSED(c = two_stacks(); c.position.n_bucket = 3, MOEC_ERR_LIMIT, "buckets");
    REFUSED(c = two_stacks(); c.position.max_distance = 4, MOEC_ERR_LIMIT, "expected 5..");
    REFUSED(c = two_stacks(); c.kinds[0].qk_norm = c.kinds[1].qk_norm = true, MOEC_ERR_FORMAT, "norms of q");
    REFUSED(c = two_stacks(); c.ids.decoder_start = 99, MOEC_ERR_LIMIT, "decoder start id");
    REFUSED(c = two_stacks(); c.ids.pad = 99, MOEC_ERR_LIMIT, "padding id");
    REFUSED(c.ids.pad = 1, MOEC_ERR_LIMIT, "padding id");
    REFUSED(c.head.is_scaled = true, MOEC_ERR_FORMAT, "supported only with an encoder");
    REFUSED(c.kinds[0].head_dim = 0, MOEC_ERR_LIMIT, "head dimension");
    REFUSED((c.kinds[0].n_head = 1u << 20, c.kinds[0].n_kv_head = 1, c.kinds[0].head_dim = 1u << 20),
            MOEC_ERR_LIMIT, "heads x head dimension");
    REFUSED(c.n_vocab = 0, MOEC_ERR_LIMIT, "vocabulary");
    REFUSED(c.n_vocab = UINT32_MAX, MOEC_ERR_LIMIT, "vocabulary");
    REFUSED(c.n_position = 0, MOEC_ERR_LIMIT, "positions");
    REFUSED(c.kinds[0].window = UINT32_MAX, MOEC_ERR_LIMIT, "window");
    REFUSED(c.kinds[0].rope_theta = (double)NAN, MOEC_ERR_FORMAT, "theta");
    REFUSED(c.kinds[0].rope_theta = (double)INFINITY, MOEC_ERR_FORMAT, "theta");
    REFUSED(c.kinds[0].rope_theta = 1e-300, MOEC_ERR_FORMAT, "RoPE theta 1e-300, expected 1 to 1e+30");
    REFUSED(c.kinds[0].rope_theta = 0.999, MOEC_ERR_FORMAT, "theta");
    REFUSED(c.kinds[0].rope_theta = 1.001e30, MOEC_ERR_FORMAT, "theta");
    REFUSED(c.kinds[0].rope_theta = 1e308, MOEC_ERR_FORMAT, "RoPE theta 1e+308, expected 1 to 1e+30");
    REFUSED(c.kinds[0].rope_theta = -1e4, MOEC_ERR_FORMAT, "theta");
    REFUSED(c.rms_eps = (double)NAN, MOEC_ERR_FORMAT, "epsilon");
    REFUSED(c.rms_eps = -1e-9, MOEC_ERR_FORMAT, "epsilon");
    REFUSED(c.kinds[0].clip_qkv = INFINITY, MOEC_ERR_FORMAT, "clip");
    REFUSED(c.kinds[0].clip_qkv = 1e-40f, MOEC_ERR_FORMAT, "clip");
    REFUSED(c.n_expert = 0, MOEC_ERR_LIMIT, "experts");
    REFUSED(c.n_expert = 4097, MOEC_ERR_LIMIT, "experts 4097");
    REFUSED(c.top_k = 10, MOEC_ERR_LIMIT, "experts for each token 10, expected 1..9");
    REFUSED(c.top_k = 0, MOEC_ERR_LIMIT, "experts for each token");
    REFUSED((c.n_expert = 100, c.top_k = 65), MOEC_ERR_LIMIT, "expected 1..64");
    REFUSED(c.n_ff_expert = 0, MOEC_ERR_LIMIT, "expert size");
    REFUSED(c.n_ff_shared = 0, MOEC_ERR_FORMAT, "no shared expert");
    REFUSED(c.kinds[1].n_ff_dense = 0, MOEC_ERR_LIMIT, "layer 1 of 'config.json' says: dense MLP size");
    REFUSED((c = parts_alone(), c.kinds[2].no_mlp = true), MOEC_ERR_LIMIT,
            "dense MLP size without an MLP 40");
    REFUSED((c = parts_alone(), c.kinds[1].is_moe = false, c.kinds[1].no_mlp = true), MOEC_ERR_FORMAT,
            "has no MLP and has neither attention nor");
    REFUSED((c = parts_alone(), c.scale.has_layer = true), MOEC_ERR_FORMAT,
            "does not support such layers in a model with an encoder");
    REFUSED((c = two_stacks(), c.kinds[1].no_mlp = true, c.kinds[1].n_ff_dense = 0), MOEC_ERR_FORMAT,
            "does not support such layers in a model with an encoder");
    REFUSED((c = two_stacks(), c.kinds[1].head_dim = 9), MOEC_ERR_FORMAT,
            "the attention of layer 1 of 'config.json' differs from layer 0's");
    REFUSED(c.kinds[1].n_kv_head = 4, MOEC_ERR_FORMAT, "layer 1 of 'config.json' says 6 attention heads");
    REFUSED(c.kinds[1].is_moe = true, MOEC_ERR_LIMIT, "dense MLP size with experts");
    REFUSED((c.kinds[0].is_moe = false, c.kinds[0].n_ff_dense = 50), MOEC_ERR_FORMAT,
            "no layer with experts");
    REFUSED(c.layer_kind[2] = 2, MOEC_ERR_FORMAT, "kind 2 to layer 2");
    REFUSED(c.layer_kind[0] = 1, MOEC_ERR_FORMAT, "must be numbered in the order of their first use");
    REFUSED((c.kinds[2] = c.kinds[0], c.n_kind = 3), MOEC_ERR_LIMIT, "kinds of layers in use");
    REFUSED((c.kinds[2] = c.kinds[0], c.n_kind = 3, c.layer_kind[4] = 2), MOEC_ERR_FORMAT,
            "has the same settings for kinds 0 and 2 of layers");
    REFUSED(c.n_kind = 0, MOEC_ERR_LIMIT, "kinds of layers");
    REFUSED(c.n_kind = 33, MOEC_ERR_LIMIT, "kinds of layers 33");
    REFUSED(c.layer_kind[5] = 1, MOEC_ERR_FORMAT, "to layer 5 of 5");
    REFUSED(c.expert_dtype = MOEC_DTYPE_INT4, MOEC_ERR_FORMAT, "expert dtype");
    REFUSED(c.ids.n_eos = 17, MOEC_ERR_LIMIT, "end-of-text ids");
    REFUSED(c.ids.eos[1] = 99, MOEC_ERR_LIMIT, "end-of-text id 99");
    REFUSED(memset(c.family, 'a', sizeof c.family), MOEC_ERR_FORMAT, "family");
    REFUSED(c.family[0] = '\0', MOEC_ERR_FORMAT, "family");
    REFUSED(c.family[3] = '\n', MOEC_ERR_FORMAT, "family");
}

static void test_config_check__moe_layers(void **state)
{
    (void)state;
    struct moec_config c = sample();
    const int32_t ordinals[6] = {0, -1, 1, 2, -1, -1};
    assert_int_equal(moec_config_moe_count(&c), 3);
    for (uint32_t layer = 0; layer < 6; layer++)
        assert_int_equal(moec_config_moe_ordinal(&c, layer), ordinals[layer]);
    assert_int_equal(moec_config_moe_layer(&c, 0), 0);
    assert_int_equal(moec_config_moe_layer(&c, 1), 2);
    assert_int_equal(moec_config_moe_layer(&c, 2), 3);
    assert_int_equal(moec_config_moe_layer(&c, 3), c.n_layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_check__check_refuses),
        cmocka_unit_test(test_config_check__moe_layers),
        cmocka_unit_test(test_config_check__layers_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
