#include "tests/unit/fixture_config.h"

static void test_config__section_of_two_stacks(void **state)
{
    (void)state;
    struct moec_config c = two_stacks(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    assert_int_equal(n, 112 + 4 * 2 + 5 + 28);
    assert_int_equal(bytes[0], 2);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_int_equal(back.n_encoder_layer, 2);
    assert_int_equal(back.position.n_bucket, 8);
    assert_int_equal(back.position.max_distance, 20);
    assert_int_equal(back.router.expert_capacity, 33);
    assert_int_equal(back.ids.decoder_start, 98);
    assert_int_equal(back.ids.pad, 97);
    assert_int_equal(back.mlp.activation, MOEC_ACTIVATION_GELU_TANH);
    assert_true(back.mlp.plain && back.router.bias && back.head.is_scaled);
    /* MoE layers 0 | 2 3: ordinals 0 | 1 2 */
    assert_int_equal(moec_config_moe_encoder_count(&back), 1);
    struct moec_moe_range range = moec_config_moe_range(&back, 2);
    assert_true(range.first == 1 && range.count == 2);
    assert_int_equal(moec_config_stack(&back, 1), MOEC_STACK_ENCODER);
    assert_int_equal(moec_config_stack(&back, 2), MOEC_STACK_DECODER);
    assert_int_equal(moec_config_stack_layer(&back, 4), 2);
    bytes[0] = 1; /* the same bytes as version 1 are too long */
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_ERR_FORMAT, err);
    free(bytes);
}

static void test_config__section_round_trip(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    memset(&back, 0xee, sizeof back);
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    assert_int_equal(n, 112 + 4 * 2 + 5);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_string_equal(back.family, c.family);
    const uint32_t *const fields[][2] = {
        {&c.n_layer, &back.n_layer},
        {&c.n_embd, &back.n_embd},
        {&c.n_kind, &back.n_kind},
        {&c.n_vocab, &back.n_vocab},
        {&c.n_position, &back.n_position},
        {&c.n_expert, &back.n_expert},
        {&c.top_k, &back.top_k},
        {&c.n_ff_expert, &back.n_ff_expert},
        {&c.n_ff_shared, &back.n_ff_shared},
        {&c.ids.n_eos, &back.ids.n_eos},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        assert_int_equal(*fields[i][0], *fields[i][1]);
    for (uint32_t i = 0; i < c.n_kind; i++)
        assert_true(moec_layer_same(&back.kinds[i], &c.kinds[i]));
    assert_true(back.rms_eps == c.rms_eps && back.head.is_tied && back.mlp.shared_gate &&
                !back.router.norm_topk_prob);
    assert_int_equal(back.expert_dtype, MOEC_DTYPE_BF16);
    assert_memory_equal(back.layer_kind, c.layer_kind, sizeof c.layer_kind);
    assert_int_equal(back.ids.eos[0], 98);
    assert_int_equal(back.ids.eos[1], 5);
    uint8_t *again = NULL;
    size_t n_again = 0;
    assert_status(moec_config_encode(&back, &again, &n_again, &err), MOEC_OK, err);
    assert_int_equal(n, n_again);
    assert_memory_equal(bytes, again, n);
    free(again);
    free(bytes);
}

/* A byte of a section that is changed, and what decoding then says. */
struct damage {
    size_t at;
    uint8_t value;
    enum moec_status status;
    const char *part; /* of the message */
};

static void check_damages(uint8_t *bytes, size_t n, const struct damage *damages, size_t n_damages)
{
    for (size_t i = 0; i < n_damages; i++) {
        struct moec_config back;
        struct moec_error why = {0};
        const uint8_t good = bytes[damages[i].at];
        bytes[damages[i].at] = damages[i].value;
        assert_status(moec_config_decode(bytes, n, &back, &why), damages[i].status, why);
        assert_message(why, damages[i].part);
        bytes[damages[i].at] = good;
    }
}

static void test_config__section_of_frequent_tokens(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    c.n_frequent = 65;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t block = 112 + 4 * 2 + 5 + 28;
    assert_int_equal(n, block + 8 + 4);
    assert_memory_equal(bytes + block, ((uint8_t[]){36, 0, 0, 0, 4, 0, 0, 0, 65, 0, 0, 0}), 12);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_int_equal(back.n_frequent, 65);
    const struct damage damages[] = {
        {block, 37, MOEC_ERR_UNSUPPORTED, "block with tag 37"},
        {block + 4, 3, MOEC_ERR_FORMAT, "3 bytes for frequent tokens, expected 4"},
        {block + 8, 0, MOEC_ERR_FORMAT, "4 bytes for frequent tokens (block 36), expected 0"},
        {block + 9, 1, MOEC_ERR_LIMIT, "ids of frequent tokens 321, expected 0"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_attentions(void **state)
{
    (void)state;
    struct moec_config c = attentions(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t block = 112 + 4 * 2 + 5 + 28;
    assert_int_equal(n, block + 8 + 4 + 2 * 32 + 5 + 8 + 4);
    assert_memory_equal(bytes + block, ((uint8_t[]){1, 0, 0, 0, 73, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3}), 17);
    assert_memory_equal(bytes + block + 76, ((uint8_t[]){0, 0, 1, 0, 2}), 5);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_int_equal(back.n_kind, 4);
    assert_memory_equal(back.layer_kind, c.layer_kind, sizeof c.layer_kind);
    for (uint32_t i = 0; i < c.n_kind; i++)
        assert_true(moec_layer_same(&back.kinds[i], &c.kinds[i]));
    const struct damage damages[] = {
        {block + 8, 0, MOEC_ERR_LIMIT, "0 kinds of attention beside the first, expected 1..31"},
        {block + 8, 3, MOEC_ERR_FORMAT, "73 bytes for kinds of attention, expected 105"},
        {block + 12, 2, MOEC_ERR_LIMIT,
         "layer 2 of the config section says: key/value heads 3, expected 1..2"},
        {block + 12 + 28, 2, MOEC_ERR_FORMAT, "2 for flag 0 of attention kind 1, expected 0 or 1"},
        {block + 12 + 31, 1, MOEC_ERR_FORMAT, "1 for flag 3 of attention kind 1, expected 0"},
        {block + 76, 1, MOEC_ERR_FORMAT, "attention kind 1 of 2 to layer 0, but the kinds must be numbered"},
        {block + 79, 3, MOEC_ERR_FORMAT, "attention kind 3 of 2 to layer 3, but the kinds must be numbered"},
        {block + 80, 1, MOEC_ERR_FORMAT, "73 bytes for kinds of attention (block 1), expected 41"},
        {block + 81, 1, MOEC_ERR_FORMAT, "block 1 after block 1"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_dense_sizes(void **state)
{
    (void)state;
    struct moec_config c = dense_sizes(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t block = 112 + 4 * 2 + 5 + 28;
    assert_int_equal(n, block + 8 + 4);
    assert_int_equal(bytes[0], 3);
    assert_memory_equal(bytes + block, ((uint8_t[]){2, 0, 0, 0, 4, 0, 0, 0, 41, 0, 0, 0}), 12);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_int_equal(back.n_kind, 3);
    assert_int_equal(moec_config_layer(&back, 1)->n_ff_dense, 40);
    assert_int_equal(moec_config_layer(&back, 4)->n_ff_dense, 41);

    const struct damage damages[] = {
        {block, 77, MOEC_ERR_UNSUPPORTED, "a block with tag 77"},
        {block, 0, MOEC_ERR_FORMAT, "increasing block numbers"},
        {block + 4, 5, MOEC_ERR_FORMAT, "only 4 bytes left for block 2, which needs 5"},
        {block + 8, 40, MOEC_ERR_FORMAT,
         "4 bytes for MLP sizes (block 2), expected 0"}, /* the first one's size */
        {0, 2, MOEC_ERR_FORMAT, "bytes, expected"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    struct moec_error why = {0};
    assert_status(moec_config_decode(bytes, block, &back, &why), MOEC_ERR_FORMAT, why);
    assert_message(why, "expected more than");
    free(bytes);
}

/* As DeepSeek-V3 has it. */
static struct moec_config sigmoid_router(void)
{
    struct moec_config c = sample();
    c.router.kind = MOEC_ROUTER_SIGMOID;
    c.router.choice_bias = true;
    c.router.norm_topk_prob = true;
    c.router.scale = 2.5f;
    return c;
}

static void test_config__section_of_routers(void **state)
{
    (void)state;
    struct moec_config c = sigmoid_router(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t block = 112 + 4 * 2 + 5 + 28;
    assert_int_equal(n, block + 8 + 8);
    assert_int_equal(bytes[0], 3);
    assert_memory_equal(bytes + block, ((uint8_t[]){16, 0, 0, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0x20, 0x40}),
                        16);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_int_equal(back.router.kind, MOEC_ROUTER_SIGMOID);
    assert_true(back.router.choice_bias && back.router.norm_topk_prob && back.router.scale == 2.5f);

    const struct damage damages[] = {
        {block + 4, 7, MOEC_ERR_FORMAT, "7 bytes for the router, expected 8"},
        {block + 8, 6, MOEC_ERR_LIMIT, "kind of router 6, expected 0..5"},
        {block + 8, 2, MOEC_ERR_FORMAT, "divides router weights by their sum"},
        {block + 9, 2, MOEC_ERR_FORMAT, "2, 0 and 0 after the kind of router"},
        {block + 11, 1, MOEC_ERR_FORMAT, "1, 0 and 1 after the kind of router"},
        {block + 15, 0xc0, MOEC_ERR_FORMAT, "the scale of router weights to -2.5"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    struct moec_error why = {0};
    memset(bytes + block + 8, 0, 8); /* which the fixed fields say too */
    assert_status(moec_config_decode(bytes, n, &back, &why), MOEC_ERR_FORMAT, why);
    assert_message(why, "8 bytes for the router (block 16), expected 0");
    free(bytes);
}

/* As LFM2 and Qwen3-Next have it: a short convolution and the gated delta rule beside attention. */
static struct moec_config running(void)
{
    struct moec_config c = sample();
    c.kinds[1] = (struct moec_layer_kind){.mixer = MOEC_MIXER_CONVOLUTION,
                                          .conv_size = 3,
                                          .n_head = 1,
                                          .n_kv_head = 1,
                                          .head_dim = c.n_embd,
                                          .n_ff_dense = 40};
    c.kinds[2] = (struct moec_layer_kind){.mixer = MOEC_MIXER_DELTA,
                                          .conv_size = 4,
                                          .n_head = 4,
                                          .n_kv_head = 2,
                                          .head_dim = 5,
                                          .value_dim = 7,
                                          .is_moe = true};
    c.n_kind = 3;
    c.layer_kind[2] = 2;
    return c;
}

static void test_config__section_of_running_layers(void **state)
{
    (void)state;
    struct moec_config c = running(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t mixers = 112 + 4 * 2 + 5 + 28 + 8 + 4 + 2 * 32 + 5;
    assert_int_equal(n, mixers + 8 + 3 * 12);
    assert_memory_equal(bytes + mixers, ((uint8_t[]){8, 0, 0, 0, 36, 0, 0, 0}), 8);
    assert_memory_equal(bytes + mixers + 20, ((uint8_t[]){1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2}), 13);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < c.n_kind; i++)
        assert_true(moec_layer_same(&back.kinds[i], &c.kinds[i]));
    assert_true(moec_config_is_running(&back) && moec_config_attention(&back) == &back.kinds[0]);

    const size_t last = mixers + 8 + 24;
    const struct damage damages[] = {
        {mixers + 4, 24, MOEC_ERR_FORMAT, "24 bytes for kinds of mixers, expected 36"},
        {mixers + 9, 2, MOEC_ERR_FORMAT, "2, 0 and 0 after the mixer of attention kind 0"},
        {mixers + 8, 2, MOEC_ERR_LIMIT, "positions of a convolution 0, expected 2..16"},
        {mixers + 12, 2, MOEC_ERR_LIMIT, "positions of a convolution 2, expected 0..0"},
        {mixers + 16, 2, MOEC_ERR_LIMIT, "dimension of values 2, expected 0..0"},
        {last, 6, MOEC_ERR_LIMIT, "kind of mixer 6, expected 0..5"},
        {last, 4, MOEC_ERR_FORMAT, "gives heads or attention settings to a layer that has neither"},
        {last, 5, MOEC_ERR_LIMIT, "key heads 2, expected 4..4"},
        {last + 3, 2, MOEC_ERR_FORMAT, "0, 0 and 2 after the mixer of attention kind 2"},
        {last + 3, 1, MOEC_ERR_FORMAT, "has no MLP and has experts: a layer without an MLP"},
        {last, 0, MOEC_ERR_LIMIT, "dimension of values 7, expected 0..0"},
        {last, 1, MOEC_ERR_FORMAT, "recurrent state and attention settings"},
        {last + 4, 17, MOEC_ERR_LIMIT, "positions of a convolution 17"},
        {last + 10, 0xff, MOEC_ERR_LIMIT, "dimension of values"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_layers_of_one_part(void **state)
{
    (void)state;
    struct moec_config c = parts_alone(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    /* Two attentions beside the first (both parts without a mixer are one), sizes of two MLPs, three mixers,
     * three steps. */
    const size_t sizes = 112 + 4 * 2 + 5 + 28 + 8 + 4 + 2 * 32 + 5, mixers = sizes + 8 + 2 * 4;
    const size_t steps = mixers + 8 + 3 * 12;
    assert_int_equal(n, steps + 8 + 3 * 4);
    assert_memory_equal(bytes + mixers + 8, ((uint8_t[]){3, 0, 0, 1, 4}), 5);
    assert_memory_equal(bytes + mixers + 20, ((uint8_t[]){4, 0, 0, 0}), 4);
    assert_memory_equal(bytes + mixers + 32, ((uint8_t[]){0, 0, 0, 1}), 4);
    assert_memory_equal(bytes + steps, ((uint8_t[]){12, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0x80, 0x3e}), 12);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    for (uint32_t layer = 0; layer < c.n_layer; layer++)
        assert_true(moec_layer_same(moec_config_layer(&back, layer), moec_config_layer(&c, layer)));
    assert_true(moec_config_attention(&back) == &back.kinds[3] && back.mlp.activation == c.mlp.activation);

    const struct damage damages[] = {
        {steps + 4, 8, MOEC_ERR_FORMAT, "8 bytes for minimum time steps, expected 12"},
        {steps + 11, 0xbe, MOEC_ERR_FORMAT, "the minimum time step of a state space to -0.25"},
        {steps + 15, 0x3e, MOEC_ERR_FORMAT, "to a layer that has no state space, expected 0"},
        {mixers + 23, 1, MOEC_ERR_FORMAT, "has no MLP and has experts"},
        {mixers + 11, 0, MOEC_ERR_LIMIT, "dense MLP size 0, expected 1.."},
        {sizes + 12, 40, MOEC_ERR_LIMIT, "dense MLP size without an MLP 40"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_latents(void **state)
{
    (void)state;
    struct moec_config c = latent(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t values = 112 + 4 * 2 + 5 + 28 + 8 + 52, latents = values + 8 + 12;
    assert_int_equal(n, latents + 8 + 8);
    assert_memory_equal(bytes + latents, ((uint8_t[]){9, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0}), 16);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < c.n_kind; i++)
        assert_true(moec_layer_same(&back.kinds[i], &c.kinds[i]));
    const struct damage damages[] = {
        {latents + 4, 7, MOEC_ERR_FORMAT, "7 bytes for MLA latents, expected 8"},
        {latents + 8, 0, MOEC_ERR_LIMIT, "dimension of values 7, expected 0..0"},
        {latents + 11, 1, MOEC_ERR_LIMIT, "latent of keys and values 16777225"},
        {latents + 15, 1, MOEC_ERR_LIMIT, "latent of queries 16777221"},
        {values + 16, 0, MOEC_ERR_LIMIT, "dimension of values 0, expected 1.."},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_routing_by_token(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    const struct moec_layer_kind like = c.kinds[0];
    c.n_layer = c.n_kind = 0;
    memset(c.layer_kind, 0, sizeof c.layer_kind);
    for (uint32_t layer = 0; layer < 3; layer++) {
        struct moec_layer_kind kind = like;
        kind.is_moe = true;
        kind.n_ff_dense = 0;
        kind.routes_by_token = layer != 1;
        assert_true(moec_config_add_layer(&c, &kind));
    }
    assert_int_equal(c.n_kind, 2);
    c.router.kind = MOEC_ROUTER_ROOT_SOFTPLUS;
    c.mlp.activation = MOEC_ACTIVATION_CLAMPED_SILU;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t block = n - 8 - 3;
    assert_memory_equal(bytes + block, ((uint8_t[]){20, 0, 0, 0, 3, 0, 0, 0, 1, 0, 1}), 11);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_true(moec_config_routes_by_token(&back) && moec_config_layer(&back, 2)->routes_by_token &&
                !moec_config_layer(&back, 1)->routes_by_token && back.mlp.activation == c.mlp.activation &&
                back.router.kind == c.router.kind);
    const struct damage damages[] = {
        {block + 4, 2, MOEC_ERR_FORMAT, "2 bytes for routing by token, expected 3"},
        {block + 9, 2, MOEC_ERR_FORMAT, "2 for routing by token in layer 1, expected 0 or 1"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_experts(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    c.mlp.expert_bias = true;
    c.mlp.activation = MOEC_ACTIVATION_CLAMPED_GLU;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t block = 112 + 4 * 2 + 5 + 28;
    assert_int_equal(n, block + 8 + 4);
    assert_memory_equal(bytes + block, ((uint8_t[]){18, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0}), 12);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_true(back.mlp.expert_bias && back.mlp.activation == MOEC_ACTIVATION_CLAMPED_GLU);
    const struct damage damages[] = {
        {block + 4, 3, MOEC_ERR_FORMAT, "3 bytes for expert options, expected 4"},
        {block + 8, 0, MOEC_ERR_FORMAT, "0 as the flag of expert biases, then 0, 0 and 0"},
        {block + 8, 2, MOEC_ERR_FORMAT, "2 as the flag of expert biases, then 0, 0 and 0"},
        {block + 11, 1, MOEC_ERR_FORMAT, "1 as the flag of expert biases, then 0, 0 and 1"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

/* As Gemma 4 has it: norms of router and experts, a factor of each layer, capped logits, values that are
 * keys. */
static struct moec_config own_norms(void)
{
    struct moec_config c = sample();
    c.norms = MOEC_NORMS_AROUND;
    c.mlp.own_norms = c.scale.has_layer = true;
    c.scale.logit_cap = 30;
    c.n_ff_shared = 20;
    for (uint32_t i = 0; i < c.n_kind; i++) {
        c.kinds[i].v_norm = true;
        c.kinds[i].rope_scaling = (struct moec_rope_scaling){.kind = MOEC_ROPE_PROPORTIONAL, .factor = 4};
    }
    c.kinds[1].keys_are_values = true;
    return c;
}

static void test_config__section_of_own_norms(void **state)
{
    (void)state;
    struct moec_config c = own_norms(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t forms = 112 + 4 * 2 + 5 + 28 + 8 + 4 + 32 + 5, mixers = forms + 8 + 2 * 52;
    const size_t norms = mixers + 8 + 2 * 12, caps = norms + 8 + 16;
    assert_int_equal(n, caps + 8 + 8);
    assert_memory_equal(bytes + mixers, ((uint8_t[]){8, 0, 0, 0, 24, 0, 0, 0, 0, 1, 0, 0}), 12);
    assert_memory_equal(bytes + mixers + 20, ((uint8_t[]){0, 1, 1, 0}), 4);
    assert_memory_equal(bytes + caps, ((uint8_t[]){33, 0, 0, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0xf0, 0x41}),
                        16);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < c.n_kind; i++)
        assert_true(moec_layer_same(&back.kinds[i], &c.kinds[i]));
    assert_true(back.mlp.own_norms && back.scale.has_layer && back.scale.logit_cap == 30);

    const struct damage damages[] = {
        {mixers + 9, 2, MOEC_ERR_FORMAT, "2, 0 and 0 after the mixer of attention kind 0"},
        {norms + 8, 1, MOEC_ERR_FORMAT, "need norms both before and after attention and MLP"},
        {caps + 4, 4, MOEC_ERR_FORMAT, "4 bytes for separate norms and logit caps, expected 8"},
        {caps + 8, 2, MOEC_ERR_FORMAT, "bytes 2, 1, 0, 0 for separate norms"},
        {caps + 10, 1, MOEC_ERR_FORMAT, "bytes 1, 1, 1, 0 for separate norms"},
        {caps + 15, 0xc1, MOEC_ERR_FORMAT, "the logit cap to -30"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

/* As PhiMoE has it: factors of each pair for two lengths, SparseMixer, LayerNorms, a bias of logits; and
 * queries that grow, as Mistral 4's. */
static struct moec_config long_rope(void)
{
    struct moec_config c = sample();
    for (uint32_t i = 0; i < c.n_kind; i++) {
        c.kinds[i].rotary_dim = 4;
        c.kinds[i].rope_scaling = (struct moec_rope_scaling){
            .kind = MOEC_ROPE_LONG, .factor = 1, .attention_factor = 1.25, .original_positions = 250};
    }
    c.position.n_rope_factor = 2;
    c.position.rope_factors[0][0] = c.position.rope_factors[0][1] = 1;
    c.position.rope_factors[1][0] = 2;
    c.position.rope_factors[1][1] = 3.5f;
    c.position.rope_long_attention = 1.5;
    c.router.kind = MOEC_ROUTER_SPARSEMIXER;
    c.router.norm_topk_prob = false;
    c.router.jitter = 0.5f;
    c.layer_norm = c.head.bias = true;
    c.position.query_growth = 0.25f;
    return c;
}

/* As LongCat-Flash has it. */
static void test_config__section_of_identity_experts(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    c.n_identity = 5;
    c.scale.q_latent = 1.5f;
    c.scale.latent = 2;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_true(back.n_identity == 5 && !back.mlp.joins_late && back.scale.q_latent == 1.5f &&
                back.scale.latent == 2);
    assert_int_equal(moec_config_choices(&back), back.n_expert + 5);
    /* The block's payload follows its header: tag 22, 16 bytes. */
    static const uint8_t header[] = {22, 0, 0, 0, 16, 0, 0, 0};
    uint8_t *block = memmem(bytes, n, header, sizeof header);
    assert_non_null(block);
    block[sizeof header + 4] = 2;
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_ERR_FORMAT, err);
    assert_non_null(strstr(err.message, "2 for adding expert outputs a layer later"));
    free(bytes);
}

/* As Llama 4 has it. */
static void test_config__section_of_chunks(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    for (uint32_t i = 0; i < c.n_kind; i++) {
        c.kinds[i].window = 0;
        c.kinds[i].chunk = 7 * !c.kinds[i].is_moe;
        c.kinds[i].qk_norm = MOEC_QK_NORM_PLAIN_AFTER;
        c.kinds[i].rope_scaling = (struct moec_rope_scaling){
            .kind = MOEC_ROPE_LLAMA3, .factor = 8, .beta_fast = 4, .beta_slow = 1, .original_positions = 50};
    }
    c.top_k = 1;
    c.router.kind = MOEC_ROUTER_SIGMOID_CHOSEN;
    c.router.scales_input = true;
    c.position.query_growth = 0.5f;
    c.position.growth_positions = 13;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_true(back.router.scales_input && back.position.growth_positions == 13 &&
                back.position.query_growth == 0.5f);
    for (uint32_t layer = 0; layer < c.n_layer; layer++)
        assert_true(moec_layer_same(moec_config_layer(&back, layer), moec_config_layer(&c, layer)));

    const size_t scaled = n - 12, chunks = scaled - 16 - 16;
    assert_memory_equal(bytes + scaled, ((uint8_t[]){21, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0}), 12);
    assert_memory_equal(bytes + chunks, ((uint8_t[]){13, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0}), 16);
    const struct damage damages[] = {
        {scaled + 8, 2, MOEC_ERR_FORMAT, "marks scaled expert inputs with the value 2 in 4 bytes"},
        {chunks + 4, 4, MOEC_ERR_FORMAT, "4 bytes for attention chunks, expected 8"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

/* As GPTSAN has it. */
static void test_config__section_of_learned_positions(void **state)
{
    (void)state;
    struct moec_config c = sample(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    c.n_ff_shared = 0;
    c.mlp.shared_gate = false;
    c.top_k = 1;
    c.router.expert_capacity = 4;
    c.norms = MOEC_NORMS_AFTER;
    c.layer_norm = c.head.projects_output = c.mlp.has_bypass = c.router.full_keeps_input = true;
    c.mlp.plain = c.mlp.dense_bias = c.mlp.dense_silu = true;
    for (uint32_t i = 0; i < c.n_kind; i++) {
        c.kinds[i].rope_theta = 0;
        c.kinds[i].adds_positions = !c.kinds[i].is_moe;
    }
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_true(back.layer_norm && back.head.projects_output && back.mlp.has_bypass &&
                back.router.full_keeps_input && back.mlp.dense_bias && back.mlp.dense_silu &&
                back.router.expert_capacity == 4);
    for (uint32_t layer = 0; layer < c.n_layer; layer++)
        assert_int_equal(moec_config_layer(&back, layer)->adds_positions, !moec_config_is_moe(&c, layer));

    const size_t block = n - 8 - 4 - c.n_layer;
    assert_memory_equal(bytes + block,
                        ((uint8_t[]){35, 0, 0, 0, (uint8_t)(4 + c.n_layer), 0, 0, 0, 1, 1, 1, 3}), 12);
    const struct damage damages[] = {
        {block + 8, 2, MOEC_ERR_FORMAT,
         "2 at offset 0 of position embeddings and skip connections, expected 0..1"},
        {block + 11, 4, MOEC_ERR_FORMAT,
         "4 at offset 3 of position embeddings and skip connections, expected 0..3"},
        {n - 1, 7, MOEC_ERR_FORMAT, "expected 0..1"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void test_config__section_of_long_rope(void **state)
{
    (void)state;
    struct moec_config c = long_rope(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    moec_config_choose_rope(&c, 250);
    assert_int_equal(c.position.rope_context, 0);
    moec_config_choose_rope(&c, c.n_position);
    assert_int_equal(c.position.rope_context, 251);
    moec_config_choose_rope(&c, 20); /* a choice for longer texts stays */
    assert_int_equal(c.position.rope_context, 251);
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t jitter = n - 12 - 12, router = jitter - 16, growth = router - 12, rope = growth - 24 - 4 * 4;
    assert_memory_equal(bytes + rope, ((uint8_t[]){10, 0, 0, 0, 32, 0, 0, 0, 251,  0,    0, 0, 2,    0,
                                                   0,  0, 0, 0, 0,  0, 0, 0, 0xf8, 0x3f, 0, 0, 0x80, 0x3f}),
                        28);
    assert_memory_equal(bytes + growth, ((uint8_t[]){11, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0x80, 0x3e}), 12);
    assert_memory_equal(bytes + router, ((uint8_t[]){16, 0, 0, 0, 8, 0, 0, 0, 3}), 9);
    assert_memory_equal(bytes + jitter, ((uint8_t[]){19, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x3f, 34}), 13);
    assert_memory_equal(bytes + jitter + 12, ((uint8_t[]){34, 0, 0, 0, 4, 0, 0, 0, 1, 1, 0, 0}), 12);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    assert_memory_equal(back.position.rope_factors, c.position.rope_factors, sizeof c.position.rope_factors);
    assert_true(back.position.rope_context == 251 && back.position.n_rope_factor == 2 &&
                back.position.rope_long_attention == 1.5 && back.router.jitter == 0.5f &&
                back.position.query_growth == 0.25f && back.layer_norm && back.head.bias);

    const struct damage damages[] = {
        {rope + 4, 12, MOEC_ERR_FORMAT, "12 bytes for factors of RoPE, expected at least 16"},
        {rope + 4, 40, MOEC_ERR_FORMAT, "40 bytes for 2 factors of RoPE"},
        {rope + 8, 250, MOEC_ERR_LIMIT, "text length for RoPE angles 250, expected 251"},
        {rope + 12, 3, MOEC_ERR_FORMAT, "32 bytes for 3 factors of RoPE"},
        {rope + 13, 9, MOEC_ERR_LIMIT, "says 2306 factors of RoPE"},
        {rope + 23, 0xbf, MOEC_ERR_FORMAT, "an attention factor of -1.5 for LongRoPE"},
        {rope + 27, 0xbf, MOEC_ERR_FORMAT, "a LongRoPE factor of -1"},
        {growth + 4, 5, MOEC_ERR_FORMAT, "5 bytes for the growth of queries, expected 4"},
        {growth + 11, 0xbe, MOEC_ERR_FORMAT, "the growth of queries to -0.25"},
        {router + 8, 0, MOEC_ERR_FORMAT, "the router's jitter to 0.5"},
        {jitter + 4, 3, MOEC_ERR_FORMAT, "3 bytes for the router's jitter"},
        {jitter + 11, 0xbf, MOEC_ERR_FORMAT, "the router's jitter to -0.5"},
        {jitter + 16, 3, MOEC_ERR_FORMAT, "3 bytes for LayerNorms"},
        {jitter + 20, 2, MOEC_ERR_FORMAT, "bytes 2, 1, 0 and 0 for LayerNorms"},
        {jitter + 22, 1, MOEC_ERR_FORMAT, "1, 1, 1 and 0 for LayerNorms"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

/* What later families have: forms of attention, groups of experts, norms around, multipliers. */
static struct moec_config forms(void)
{
    struct moec_config c = sample();
    for (uint32_t i = 0; i < c.n_kind; i++) {
        struct moec_layer_kind *kind = &c.kinds[i];
        kind->qk_norm = MOEC_QK_NORM_HEAD_AFTER;
        kind->o_bias = kind->has_sinks = true;
        kind->rotary_dim = 4;
        kind->score_scale = 0.5f;
        kind->rope_scaling = (struct moec_rope_scaling){.kind = MOEC_ROPE_YARN,
                                                        .truncate = true,
                                                        .factor = 4,
                                                        .beta_fast = 32,
                                                        .beta_slow = 1,
                                                        .attention_factor = 1.25,
                                                        .original_positions = 250};
    }
    c.kinds[1].has_gate = true; /* a second kind of attention */
    c.router.n_group = 3;
    c.router.n_top_group = 2;
    c.router.group_score = MOEC_GROUP_BEST_TWO;
    c.norms = MOEC_NORMS_AROUND;
    c.scale.embedding = 3;
    c.scale.residual = 0.5f;
    c.scale.logit_divisor = 8;
    return c;
}

static void test_config__section_of_forms(void **state)
{
    (void)state;
    struct moec_config c = forms(), back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    const size_t attentions = 112 + 4 * 2 + 5 + 28, form = attentions + 8 + 4 + 32 + 5;
    const size_t groups = form + 8 + 2 * 52, norms = groups + 8 + 12;
    assert_int_equal(n, norms + 8 + 16);
    assert_memory_equal(bytes + form, ((uint8_t[]){3, 0, 0, 0, 104, 0, 0, 0, 3, 1, 1, 0, 4}), 13);
    assert_memory_equal(bytes + groups, ((uint8_t[]){17, 0, 0, 0, 12, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1}),
                        17);
    assert_memory_equal(bytes + norms, ((uint8_t[]){32, 0, 0, 0, 16, 0, 0, 0, 2}), 9);
    assert_status(moec_config_decode(bytes, n, &back, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < c.n_kind; i++)
        assert_true(moec_layer_same(&back.kinds[i], &c.kinds[i]));
    assert_true(back.router.n_group == 3 && back.router.n_top_group == 2 &&
                back.router.group_score == MOEC_GROUP_BEST_TWO);
    assert_true(back.norms == MOEC_NORMS_AROUND && back.scale.embedding == 3 && back.scale.residual == 0.5f &&
                back.scale.logit_divisor == 8);

    const struct damage damages[] = {
        {form + 4, 52, MOEC_ERR_FORMAT, "52 bytes for attention options, expected 104"},
        {form + 8, 1, MOEC_ERR_FORMAT, "invalid flags for attention kind 0"},
        {form + 8, 5, MOEC_ERR_LIMIT, "kind of q/k norm 5"},
        {form + 8 + 3, 2, MOEC_ERR_FORMAT, "invalid flags for attention kind 0"},
        {form + 12, 8, MOEC_ERR_LIMIT, "rotated part of a head 8, expected 0..7"},
        {form + 12, 3, MOEC_ERR_FORMAT, "rotates 3 dimensions of each head"},
        {form + 19, 0xbf, MOEC_ERR_FORMAT, "the scale of attention scores to -0.5"},
        {form + 20, 1, MOEC_ERR_LIMIT, "original context length of RoPE"},
        {form + 20, 7, MOEC_ERR_LIMIT, "kind of RoPE scaling 7"},
        {form + 22, 1, MOEC_ERR_FORMAT, "invalid flags for attention kind 0"},
        {form + 24, 0, MOEC_ERR_LIMIT, "original context length of RoPE 0"},
        {form + 35, 0xc0, MOEC_ERR_FORMAT, "RoPE scaling factor -4"},
        {form + 8 + 52 + 51, 0x7f, MOEC_ERR_FORMAT, "attention factor"},
        {groups + 4, 11, MOEC_ERR_FORMAT, "11 bytes for groups of experts, expected 12"},
        {groups + 8, 2, MOEC_ERR_LIMIT, "chosen groups of experts 2"},
        {groups + 8, 4, MOEC_ERR_FORMAT, "9 experts in 4 groups"},
        {groups + 16, 2, MOEC_ERR_LIMIT, "score of groups of experts 2"},
        {groups + 17, 1, MOEC_ERR_FORMAT, "after the score of groups"},
        {norms + 8, 3, MOEC_ERR_LIMIT, "place of norms 3"},
        {norms + 9, 1, MOEC_ERR_FORMAT, "after the place of norms"},
        {norms + 15, 0xc0, MOEC_ERR_FORMAT, "sets the scale of the embedding to"},
        {norms + 23, 0xc1, MOEC_ERR_FORMAT, "the logit divisor"},
    };
    check_damages(bytes, n, damages, sizeof damages / sizeof *damages);
    free(bytes);
}

static void check_lengths(struct moec_config c)
{
    struct moec_config back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    size_t n = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    for (size_t short_n = 0; short_n < n; short_n++) {
        uint8_t *copy = malloc(short_n + 1); /* exact size: a read past it is seen by the address sanitizer */
        struct moec_error why = {0};
        assert_non_null(copy);
        copy = realloc(copy, short_n > 0 ? short_n : 1);
        memcpy(copy, bytes, short_n);
        assert_int_not_equal(moec_config_decode(copy, short_n, &back, &why), MOEC_OK);
        assert_message(why, "config section");
        free(copy);
    }
    uint8_t *longer = malloc(n + 1);
    assert_non_null(longer);
    memcpy(longer, bytes, n);
    longer[n] = 0;
    assert_status(moec_config_decode(longer, n + 1, &back, &err), MOEC_ERR_FORMAT, err);
    free(longer);
    free(bytes);
}

static void test_config__section_of_wrong_length(void **state)
{
    (void)state;
    check_lengths(sample());
    check_lengths(two_stacks());
    check_lengths(dense_sizes());
    check_lengths(sigmoid_router());
    struct moec_config one_block = attentions(); /* between two blocks a section could end */
    one_block.kinds[3].n_ff_dense = one_block.kinds[1].n_ff_dense;
    check_lengths(one_block);
}

/* No flipped byte may crash, and what is accepted must be a config that passes its checks and encodes to
 * these bytes. */
static void check_flips(struct moec_config c)
{
    struct moec_config back;
    struct moec_error err = {0};
    uint8_t *bytes = NULL, *again = NULL;
    size_t n = 0, n_again = 0;
    assert_status(moec_config_encode(&c, &bytes, &n, &err), MOEC_OK, err);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            struct moec_error why = {0};
            bytes[i] ^= (uint8_t)(1 << bit);
            if (moec_config_decode(bytes, n, &back, &why) == MOEC_OK) {
                assert_status(moec_config_check(&back, "x", &why), MOEC_OK, why);
                assert_status(moec_config_encode(&back, &again, &n_again, &why), MOEC_OK, why);
                assert_int_equal(n_again, n);
                assert_memory_equal(again, bytes, n);
                free(again);
            } else {
                assert_true(why.message[0] != '\0');
            }
            bytes[i] ^= (uint8_t)(1 << bit);
        }
    free(bytes);
}

static void test_config__section_with_flipped_bytes(void **state)
{
    (void)state;
    check_flips(sample());
    check_flips(two_stacks());
    check_flips(dense_sizes());
    check_flips(sigmoid_router());
    check_flips(attentions());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config__section_round_trip),
        cmocka_unit_test(test_config__section_of_two_stacks),
        cmocka_unit_test(test_config__section_of_dense_sizes),
        cmocka_unit_test(test_config__section_of_routers),
        cmocka_unit_test(test_config__section_of_running_layers),
        cmocka_unit_test(test_config__section_of_layers_of_one_part),
        cmocka_unit_test(test_config__section_of_latents),
        cmocka_unit_test(test_config__section_of_experts),
        cmocka_unit_test(test_config__section_of_routing_by_token),
        cmocka_unit_test(test_config__section_of_own_norms),
        cmocka_unit_test(test_config__section_of_identity_experts),
        cmocka_unit_test(test_config__section_of_chunks),
        cmocka_unit_test(test_config__section_of_learned_positions),
        cmocka_unit_test(test_config__section_of_long_rope),
        cmocka_unit_test(test_config__section_of_forms),
        cmocka_unit_test(test_config__section_of_frequent_tokens),
        cmocka_unit_test(test_config__section_of_attentions),
        cmocka_unit_test(test_config__section_of_wrong_length),
        cmocka_unit_test(test_config__section_with_flipped_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
