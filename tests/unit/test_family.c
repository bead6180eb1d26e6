#include "tests/unit/temporary.h"

#include "formats/family/family.h"

#define QWEN     "\"model_type\": \"qwen2_moe\""
#define OLMOE    "\"model_type\": \"olmoe\""
#define MIXTRAL  "\"model_type\": \"mixtral\""
#define SWITCH   "\"model_type\": \"switch_transformers\""
#define LLAMA4   "\"model_type\": \"llama4_text\", \"num_hidden_layers\": 2"
#define NEMOTRON "\"model_type\": \"nemotron_h\""
#define KIMI     "\"model_type\": \"kimi_linear\""
#define LONGCAT  "\"model_type\": \"longcat_flash\""

static enum moec_status read_config(const char *text, struct moec_config *config, struct moec_error *err)
{
    struct moec_json *root = NULL;
    const struct moec_family *family = NULL;
    assert_status(moec_json_parse(text, strlen(text), 1 << 20, "config.json", &root, err), MOEC_OK, *err);
    enum moec_status status = moec_family_read_config(root, "'config.json'", &family, config, err);
    if (status == MOEC_OK) {
        assert_non_null(family);
        assert_string_equal(family->model_type, config->family);
    }
    moec_json_free(root);
    return status;
}

static struct moec_config good(const char *text)
{
    struct moec_config config;
    struct moec_error err = {0};
    assert_status(read_config(text, &config, &err), MOEC_OK, err);
    return config;
}

/* `is_moe`: a '1' for every layer with experts, a '0' for every other. */
static void assert_layers(const struct moec_config *c, const char *is_moe)
{
    assert_int_equal(c->n_layer, strlen(is_moe));
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        assert_int_equal(moec_config_is_moe(c, layer), is_moe[layer] == '1');
}

/* transformers leaves out what equals the defaults of its config classes. */
static void test_family__defaults_are_those_of_transformers(void **state)
{
    (void)state;
    struct moec_config q = good("{" QWEN "}");
    assert_int_equal(q.n_vocab, 151936);
    assert_int_equal(q.n_embd, 2048);
    assert_int_equal(q.n_layer, 24);
    assert_int_equal(q.kinds[0].n_head, 16);
    assert_int_equal(q.kinds[0].n_kv_head, 16);
    assert_int_equal(q.kinds[0].head_dim, 128);
    assert_int_equal(q.n_position, 32768);
    assert_int_equal(q.n_expert, 60);
    assert_int_equal(q.top_k, 4);
    assert_int_equal(q.n_ff_expert, 1408);
    assert_int_equal(q.n_ff_shared, 5632);
    assert_int_equal(q.n_kind, 1); /* no layer without experts */
    assert_int_equal(q.ids.n_eos, 0);
    assert_int_equal(q.kinds[0].window, 0);
    assert_int_equal(moec_config_moe_count(&q), 24);
    assert_true(q.kinds[0].rope_theta == 1e4 && q.rms_eps == 1e-6 && q.kinds[0].qkv_bias &&
                q.mlp.shared_gate);
    assert_true(!q.head.is_tied && !q.router.norm_topk_prob && !q.kinds[0].qk_norm);
    struct moec_config o = good("{" OLMOE "}");
    assert_int_equal(o.n_vocab, 50304);
    assert_int_equal(o.n_layer, 16);
    assert_int_equal(o.kinds[0].n_kv_head, 16);
    assert_int_equal(o.n_position, 4096);
    assert_int_equal(o.n_expert, 64);
    assert_int_equal(o.top_k, 8);
    assert_int_equal(o.n_ff_expert, 2048);
    assert_int_equal(o.ids.n_eos, 1);
    assert_int_equal(o.ids.eos[0], 50279);
    assert_true(o.kinds[0].qk_norm && !o.kinds[0].qkv_bias && o.kinds[0].clip_qkv == 0 && o.rms_eps == 1e-5 &&
                !o.router.norm_topk_prob);
    struct moec_config m = good("{" MIXTRAL "}");
    assert_int_equal(m.n_vocab, 32000);
    assert_int_equal(m.n_embd, 4096);
    assert_int_equal(m.n_layer, 32);
    assert_int_equal(m.kinds[0].n_head, 32);
    assert_int_equal(m.kinds[0].n_kv_head, 8);
    assert_int_equal(m.n_position, 131072);
    assert_int_equal(m.n_expert, 8);
    assert_int_equal(m.top_k, 2);
    assert_int_equal(m.n_ff_expert, 14336);
    assert_int_equal(m.kinds[0].window, 0);
    assert_int_equal(m.ids.eos[0], 2);
    assert_true(m.kinds[0].rope_theta == 1e6 && m.rms_eps == 1e-5 && m.router.norm_topk_prob);
}

static void test_family__heads_and_rope(void **state)
{
    (void)state;
    struct moec_config c = good("{" MIXTRAL ", \"num_key_value_heads\": null, \"head_dim\": null}");
    assert_int_equal(c.kinds[0].n_kv_head, 32);
    assert_int_equal(c.kinds[0].head_dim, 128);
    c = good("{" MIXTRAL ", \"head_dim\": 64}");
    assert_int_equal(c.kinds[0].head_dim, 64);
    c = good("{" MIXTRAL ", \"rope_scaling\": null, \"rope_theta\": 5000}");
    assert_true(c.kinds[0].rope_theta == 5000);
    c = good("{" MIXTRAL ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 777.5}, "
             "\"dtype\": \"bfloat16\"}");
    assert_true(c.kinds[0].rope_theta == 777.5);
    c = good("{" MIXTRAL ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}, \"rope_parameters\": "
             "{\"rope_type\": \"linear\", \"factor\": 4.0, \"rope_theta\": 100}}"); /* they agree */
    assert_true(c.kinds[0].rope_theta == 100 && c.kinds[0].rope_scaling.factor == 4);
    c = good("{" MIXTRAL
             ", \"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": {\"rope_theta\": 100}}");
    assert_true(c.kinds[0].rope_theta == 100);
    c = good("{" MIXTRAL ", \"rope_scaling\": {\"type\": \"default\"}, \"initializer_range\": NaN, "
             "\"limits\": [-Infinity, Infinity]}"); /* what is not used may be anything */
    assert_true(c.kinds[0].rope_theta == 1e6);
    c = good("{" MIXTRAL ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}, "
             "\"max_position_embeddings\": 300}");
    assert_int_equal(c.n_position, 600);
    assert_int_equal(moec_config_rope_limit(&c), 300);
    moec_config_choose_rope(&c, 300);
    assert_int_equal(c.position.rope_context, 0);
    moec_config_choose_rope(&c, 400);
    moec_config_choose_rope(&c, 350);
    assert_int_equal(c.position.rope_context, 400);
    moec_config_choose_rope(&c, 4000);
    assert_int_equal(c.position.rope_context, 600);
}

static void test_family__qwen_layers(void **state)
{
    (void)state;
    struct moec_config c = good("{" QWEN ", \"num_hidden_layers\": 6, \"decoder_sparse_step\": 2}");
    assert_layers(&c, "010101");
    assert_int_equal(moec_config_layer(&c, 0)->n_ff_dense, 5632);
    c = good("{" QWEN
             ", \"num_hidden_layers\": 4, \"mlp_only_layers\": [0, 3, 77], \"intermediate_size\": 99}");
    assert_layers(&c, "0110");
    assert_int_equal(moec_config_layer(&c, 0)->n_ff_dense, 99);
    c = good("{" QWEN ", \"qkv_bias\": false, \"mlp_only_layers\": null}");
    assert_false(c.kinds[0].qkv_bias);
}

static void test_family__windows(void **state)
{
    (void)state;
    assert_int_equal(good("{" QWEN ", \"sliding_window\": 100}").kinds[0].window, 0);
    assert_int_equal(
        good("{" QWEN ", \"use_sliding_window\": true, \"sliding_window\": null}").kinds[0].window, 0);
    assert_int_equal(
        good("{" QWEN ", \"use_sliding_window\": true, \"sliding_window\": 100, \"max_window_layers\": 0}")
            .kinds[0]
            .window,
        100);
    /* transformers 5 has a window in every second layer, or where `layer_types` says. */
    struct moec_config c = good("{" QWEN ", \"num_hidden_layers\": 4, \"use_sliding_window\": true, "
                                "\"sliding_window\": 9, \"max_window_layers\": 3, "
                                "\"transformers_version\": \"5.0.0\"}");
    const uint32_t windows[] = {9, 0, 9, 0};
    for (uint32_t layer = 0; layer < 4; layer++)
        assert_int_equal(moec_config_layer(&c, layer)->window, windows[layer]);
    c = good("{" QWEN ", \"num_hidden_layers\": 2, \"use_sliding_window\": true, \"sliding_window\": 9, "
             "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}");
    assert_int_equal(moec_config_layer(&c, 0)->window, 0);
    assert_int_equal(moec_config_layer(&c, 1)->window, 9);
    assert_int_equal(good("{" MIXTRAL ", \"sliding_window\": 4096}").kinds[0].window, 4096);
    assert_int_equal(good("{" MIXTRAL ", \"sliding_window\": null}").kinds[0].window, 0);
}

/* By letters or by words, of transformers or of NVIDIA's code. */
static void test_family__layers_of_one_part(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{" NEMOTRON ", \"hybrid_override_pattern\": \"M*E-M\", \"mamba_dt_min\": 0.25}",
        "{" NEMOTRON ", \"time_step_min\": 0.25, \"layers_block_type\": [\"mamba\", \"attention\", \"moe\", "
        "\"mlp\", \"linear_attention\"]}"};
    for (size_t i = 0; i < 2; i++) {
        const struct moec_config c = good(texts[i]);
        assert_layers(&c, "00100");
        assert_int_equal(c.n_kind, 4);
        assert_true(c.kinds[0].mixer == MOEC_MIXER_SPACE && c.kinds[0].no_mlp &&
                    c.kinds[0].step_min == 0.25f);
        assert_true(moec_layer_attends(&c.kinds[1]) && c.kinds[1].no_mlp && c.kinds[1].rope_theta == 0);
        assert_true(!moec_layer_mixes(&c.kinds[2]) && !c.kinds[2].no_mlp);
        assert_true(!moec_layer_mixes(&c.kinds[3]) && c.kinds[3].n_ff_dense == 21504);
        assert_true(c.mlp.plain && c.mlp.activation == MOEC_ACTIVATION_RELU_SQUARED && c.n_ff_shared == 7688);
    }
    assert_true(good("{" NEMOTRON "}").n_layer == 4 && good("{" NEMOTRON "}").kinds[0].step_min == 0.001f);
}

/* Layers are numbered from 1 in what is published, and in groups of four where nothing is said. */
static void test_family__layers_of_kimi_delta_attention(void **state)
{
    (void)state;
    struct moec_config c = good("{" KIMI "}");
    assert_layers(&c, "011111111111111111111111111");
    for (uint32_t layer = 0; layer < c.n_layer; layer++)
        assert_int_equal(moec_layer_attends(moec_config_layer(&c, layer)), layer > 0 && layer % 4 == 0);
    assert_int_equal(moec_config_attention(&c)->latent_dim, 512);
    c = good(
        "{" KIMI ", \"num_hidden_layers\": 4, \"first_k_dense_replace\": 2, \"num_expert_group\": 4, "
        "\"linear_attn_config\": {\"full_attn_layers\": [2], \"kda_layers\": [1, 3, 4], \"head_dim\": 24, "
        "\"num_heads\": 6, \"short_conv_kernel_size\": 3}}");
    assert_layers(&c, "0011");
    for (uint32_t layer = 0; layer < 4; layer++)
        assert_int_equal(moec_layer_attends(moec_config_layer(&c, layer)), layer == 1);
    const struct moec_layer_kind *kind = moec_config_layer(&c, 3);
    assert_true(kind->mixer == MOEC_MIXER_CHANNEL_DELTA && kind->head_dim == 24 && kind->n_head == 6 &&
                kind->n_kv_head == 6 && kind->conv_size == 3 && c.router.n_group == 4 &&
                c.router.n_top_group == 1);
}

static void test_family__end_of_text(void **state)
{
    (void)state;
    struct moec_config c = good("{" OLMOE ", \"vocab_size\": 100}");
    assert_int_equal(c.ids.n_eos, 0); /* the class's 50279 does not exist here */
    c = good("{" OLMOE ", \"eos_token_id\": [3, 60000, 4]}");
    assert_int_equal(c.ids.n_eos, 2);
    assert_int_equal(c.ids.eos[0], 3);
    assert_int_equal(c.ids.eos[1], 4);
}

static void test_family__refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum moec_status status;
        const char *part;
    } cases[] = {
        {"{}", MOEC_ERR_FORMAT, "'model_type'"},
        {"{\"model_type\": 3}", MOEC_ERR_FORMAT, "'model_type'"},
        {"{\"model_type\": \"gpt2\"}", MOEC_ERR_UNSUPPORTED,
         "supported families: 'qwen2_moe', 'qwen3_moe', 'olmoe'"},
        {"{\"model_type\": \"deepseek_v4\"}", MOEC_ERR_UNSUPPORTED,
         "'model_type' 'deepseek_v4', which is not supported: moec does not implement hyper-connections"},
        {"{" NEMOTRON ", \"moe_latent_size\": 64}", MOEC_ERR_UNSUPPORTED, "'moe_latent_size'"},
        {"{" NEMOTRON ", \"mlp_hidden_act\": \"silu\"}", MOEC_ERR_UNSUPPORTED,
         "'mlp_hidden_act' 'silu', only 'relu2'"},
        {"{" NEMOTRON ", \"use_bias\": true}", MOEC_ERR_UNSUPPORTED, "'use_bias' true"},
        {"{" NEMOTRON ", \"use_conv_bias\": false}", MOEC_ERR_UNSUPPORTED, "'use_conv_bias' false"},
        {"{" NEMOTRON ", \"hybrid_override_pattern\": \"ME?\"}", MOEC_ERR_UNSUPPORTED,
         "'hybrid_override_pattern' 'ME?'"},
        {"{" NEMOTRON ", \"layers_block_type\": [\"moe\", \"conv\"]}", MOEC_ERR_UNSUPPORTED,
         "'layers_block_type'[1]"},
        {"{" NEMOTRON ", \"layers_block_type\": []}", MOEC_ERR_LIMIT, "layers"},
        {"{" NEMOTRON ", \"layers_block_type\": [\"mlp\"]}", MOEC_ERR_FORMAT, "no layer with experts"},
        {"{" KIMI ", \"mla_use_nope\": false}", MOEC_ERR_UNSUPPORTED, "'mla_use_nope' false"},
        {"{" KIMI ", \"moe_router_activation_func\": \"softmax\"}", MOEC_ERR_UNSUPPORTED,
         "'moe_router_activation_func' 'softmax'"},
        {"{" KIMI ", \"linear_attn_config\": {\"kda_layers\": [0]}}", MOEC_ERR_FORMAT, "'kda_layers'[0]"},
        {"{" LONGCAT ", \"zero_expert_type\": \"copy\"}", MOEC_ERR_UNSUPPORTED,
         "'zero_expert_type' 'copy', only 'identity'"},
        {"{" LONGCAT ", \"mla_scale_kv_lora\": false}", MOEC_ERR_UNSUPPORTED, "'mla_scale_kv_lora' false"},
        {"{" LONGCAT ", \"q_lora_rank\": null}", MOEC_ERR_UNSUPPORTED, "'q_lora_rank' 0"},
        {"{" LONGCAT ", \"qk_head_dim\": 200}", MOEC_ERR_UNSUPPORTED, "'qk_head_dim' 200"},
        {"{" LONGCAT ", \"router_bias\": true}", MOEC_ERR_UNSUPPORTED, "'router_bias' true"},
        {"{" LONGCAT ", \"num_layers\": 0}", MOEC_ERR_LIMIT, "layers"},
        {"{\"model_type\": \"hash_moe\", \"scoring_func\": \"sigmoid\"}", MOEC_ERR_UNSUPPORTED,
         "'scoring_func' 'sigmoid', only 'sqrtsoftplus'"},
        {"{\"model_type\": \"hash_moe\", \"swiglu_limit\": 7}", MOEC_ERR_UNSUPPORTED,
         "'swiglu_limit' 7, only 10"},
        {"{\"model_type\": \"hash_moe\", \"mlp_layer_types\": [\"moe\", \"dense\"]}", MOEC_ERR_UNSUPPORTED,
         "'mlp_layer_types'[1]"},
        {"{" QWEN ", \"hidden_act\": \"gelu\"}", MOEC_ERR_UNSUPPORTED, "'hidden_act' 'gelu'"},
        {"{" QWEN ", \"quantization_config\": {\"quant_method\": \"gptq\"}}", MOEC_ERR_UNSUPPORTED,
         "'quantization_config' of 'quant_method' 'gptq': the weights are quantised already"},
        {"{" QWEN ", \"quantization_config\": "
         "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}}",
         MOEC_ERR_UNSUPPORTED, "of 'quant_method' 'compressed-tensors', 'format' 'pack-quantized'"},
        {"{" QWEN ", \"quantization_config\": {\"bits\": 4}}", MOEC_ERR_UNSUPPORTED,
         "without a 'quant_method'"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": "
         "{\"rope_type\": \"yarn\", \"rope_theta\": 100, \"factor\": 8}}",
         MOEC_ERR_FORMAT,
         "'config.json' contradicts itself: 'rope_scaling' says 'factor' 4, but 'rope_parameters' says 8; "
         "remove"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": "
         "{\"rope_type\": \"default\", \"rope_theta\": 100}}",
         MOEC_ERR_FORMAT, "'rope_scaling' says 'rope_type' 'yarn', but 'rope_parameters' says 'default'"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": "
         "{\"rope_theta\": 100}}",
         MOEC_ERR_FORMAT, "'rope_scaling' says 'rope_type' 'yarn', but 'rope_parameters' says nothing"},
        {"{" QWEN
         ", \"rope_scaling\": {\"rope_theta\": 100}, \"rope_parameters\": {\"rope_theta\": 1000000}}",
         MOEC_ERR_FORMAT, "'rope_scaling' says 'rope_theta' 100, but 'rope_parameters' says 1000000"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": "
         "{\"type\": \"yarn\", \"factor\": 4, \"truncate\": false}}",
         MOEC_ERR_FORMAT, "'rope_scaling' says 'truncate' nothing, but 'rope_parameters' says false"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2]}, "
         "\"rope_parameters\": {\"type\": \"longrope\", \"short_factor\": [1, 3]}}",
         MOEC_ERR_FORMAT, "'short_factor' a list of other numbers, but"},
        {"{" QWEN ", \"rms_norm_eps\": Infinity}", MOEC_ERR_FORMAT,
         "'rms_norm_eps' in 'config.json' is Infinity, expected"},
        {"{" QWEN ", \"rope_theta\": NaN}", MOEC_ERR_FORMAT,
         "'rope_theta' in 'config.json' is NaN, expected"},
        {"{" QWEN ", \"hidden_size\": Infinity}", MOEC_ERR_FORMAT,
         "'hidden_size' in 'config.json' is Infinity, expected an integer"},
        {"{" NEMOTRON ", \"time_step_limit\": [0.0, 0.5]}", MOEC_ERR_UNSUPPORTED,
         "'time_step_limit' of 0 to 0.5, only 0 to infinity"},
        {"{" NEMOTRON ", \"time_step_limit\": [0.001, Infinity]}", MOEC_ERR_UNSUPPORTED,
         "'time_step_limit' of 0.001 to inf"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 0.5}}", MOEC_ERR_FORMAT, "'factor'"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"longrope\"}}", MOEC_ERR_FORMAT, "'short_factor'"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": []}}",
         MOEC_ERR_FORMAT, "1 numbers in 'short_factor' and 0 in 'long_factor'"},
        {"{" QWEN
         ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [2]}}",
         MOEC_ERR_LIMIT, "factors of RoPE 1, expected 64..64"},
        {"{" QWEN
         ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [0], \"long_factor\": [2]}}",
         MOEC_ERR_FORMAT, "'short_factor'"},
        {"{" QWEN ", \"rope_scaling\": {\"type\": \"dynamic\"}}", MOEC_ERR_FORMAT, "'factor'"},
        {"{\"model_type\": \"mistral4\"}", MOEC_ERR_UNSUPPORTED, "'rope_parameters'"},
        {"{\"model_type\": \"mistral4\", \"rope_parameters\": {\"llama_4_scaling_beta\": 0.1}}",
         MOEC_ERR_UNSUPPORTED, "'llama_4_scaling_beta' 0.1, which is supported only with RoPE"},
        {"{\"model_type\": \"phimoe\", \"num_experts_per_tok\": 3}", MOEC_ERR_UNSUPPORTED,
         "'num_experts_per_tok' 3"},
        {"{\"model_type\": \"phimoe\", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], "
         "\"long_factor\": [2]}}",
         MOEC_ERR_FORMAT, "'short_mscale'"},
        {"{" QWEN ", \"rope_parameters\": {\"full_attention\": {}}}", MOEC_ERR_UNSUPPORTED,
         "'full_attention'"},
        {"{" QWEN ", \"layer_types\": [\"full_attention\"]}", MOEC_ERR_FORMAT, "'layer_types'"},
        {"{" QWEN ", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
         MOEC_ERR_UNSUPPORTED, "'linear_attention'"},
        {"{" QWEN ", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}", MOEC_ERR_FORMAT,
         "'sliding_window'"},
        {"{" QWEN ", \"rope_scaling\": {\"rope_type\": \"linear\"}}", MOEC_ERR_FORMAT, "'factor'"},
        {"{\"model_type\": \"ernie4_5_moe\", \"use_bias\": true}", MOEC_ERR_UNSUPPORTED, "'use_bias'"},
        {"{\"model_type\": \"minicpm\"}", MOEC_ERR_UNSUPPORTED, "'num_experts'"},
        {"{\"model_type\": \"deepseek\", \"scoring_func\": \"sigmoid\"}", MOEC_ERR_UNSUPPORTED, "'sigmoid'"},
        {"{\"model_type\": \"hunyuan_v1_moe\", \"num_experts\": 8, \"moe_topk\": [2, 1]}",
         MOEC_ERR_UNSUPPORTED, "'moe_topk'[1]"},
        {"{\"model_type\": \"glm4_moe\", \"head_dim\": 128, \"n_group\": 5, \"topk_group\": 2}",
         MOEC_ERR_FORMAT, "5 groups"},
        {"{\"model_type\": \"glm4_moe\", \"head_dim\": 128, \"partial_rotary_factor\": 0.001}",
         MOEC_ERR_FORMAT, "'partial_rotary_factor'"},
        {"{" QWEN ", \"rope_parameters\": {\"rope_type\": \"mrope\"}}", MOEC_ERR_UNSUPPORTED, "'mrope'"},
        {"{" QWEN ", \"rope_parameters\": {\"rope_type\": \"llama3\"}}", MOEC_ERR_FORMAT, "has no 'factor'"},
        {"{" LLAMA4 ", \"num_experts_per_tok\": 2}", MOEC_ERR_UNSUPPORTED, "only 1 is supported"},
        {"{" LLAMA4 ", \"attention_bias\": true}", MOEC_ERR_UNSUPPORTED, "'attention_bias' true"},
        {"{" LLAMA4 ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]}", MOEC_ERR_UNSUPPORTED,
         "'layer_types'[1]"},
        {"{" LLAMA4 ", \"no_rope_layers\": [1]}", MOEC_ERR_FORMAT, "has 1 entries, expected 2"},
        {"{" LLAMA4 ", \"moe_layers\": [2]}", MOEC_ERR_FORMAT, "'moe_layers'"},
        {"{" QWEN ", \"rope_scaling\": \"yarn\"}", MOEC_ERR_FORMAT, "'rope_scaling'"},
        {"{" QWEN ", \"partial_rotary_factor\": 0.5}", MOEC_ERR_UNSUPPORTED, "0.5"},
        {"{" QWEN ", \"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": 0}",
         MOEC_ERR_FORMAT, "'sliding_window'"},
        {"{" QWEN ", \"head_dim\": 64}", MOEC_ERR_UNSUPPORTED, "'head_dim' 64"},
        {"{" QWEN ", \"decoder_sparse_step\": 0}", MOEC_ERR_FORMAT, "'decoder_sparse_step'"},
        {"{" QWEN ", \"decoder_sparse_step\": 25}", MOEC_ERR_FORMAT, "no layer with experts"},
        {"{" QWEN ", \"mlp_only_layers\": 3}", MOEC_ERR_FORMAT, "'mlp_only_layers'"},
        {"{" QWEN ", \"mlp_only_layers\": [-1]}", MOEC_ERR_FORMAT, "'mlp_only_layers'[0]"},
        {"{" QWEN ", \"num_experts\": 0}", MOEC_ERR_LIMIT, "experts 0"},
        {"{" QWEN ", \"num_attention_heads\": 0}", MOEC_ERR_FORMAT, "'num_attention_heads' 0"},
        {"{" QWEN ", \"hidden_size\": 2047}", MOEC_ERR_FORMAT, "expected 'hidden_size' to be a multiple"},
        {"{" QWEN ", \"hidden_size\": 99999999999}", MOEC_ERR_FORMAT, "'hidden_size'"},
        {"{" QWEN ", \"hidden_size\": -2048}", MOEC_ERR_FORMAT, "'hidden_size'"},
        {"{" QWEN ", \"hidden_size\": 2048.5}", MOEC_ERR_FORMAT, "'hidden_size'"},
        {"{" QWEN ", \"num_hidden_layers\": 1000000}", MOEC_ERR_FORMAT, "'num_hidden_layers'"},
        {"{" QWEN ", \"vocab_size\": 0}", MOEC_ERR_LIMIT, "vocabulary 0"},
        {"{" QWEN ", \"rms_norm_eps\": 2}", MOEC_ERR_FORMAT, "'rms_norm_eps'"},
        {"{" QWEN ", \"rope_theta\": 0}", MOEC_ERR_FORMAT, "'rope_theta'"},
        {"{" QWEN ", \"rope_theta\": 0.5}", MOEC_ERR_FORMAT, "'rope_theta'"},
        {"{" QWEN ", \"rope_theta\": 1e31}", MOEC_ERR_FORMAT, "'rope_theta'"},
        {"{" QWEN ", \"num_experts_per_tok\": 61}", MOEC_ERR_LIMIT, "expected 1..60"},
        {"{" QWEN ", \"tie_word_embeddings\": 1}", MOEC_ERR_FORMAT, "'tie_word_embeddings'"},
        {"{" OLMOE ", \"attention_bias\": true}", MOEC_ERR_UNSUPPORTED, "'attention_bias'"},
        {"{" OLMOE ", \"clip_qkv\": 0}", MOEC_ERR_FORMAT, "'clip_qkv'"},
        {"{" OLMOE ", \"head_dim\": 32}", MOEC_ERR_UNSUPPORTED, "'head_dim' 32"},
        {"{" MIXTRAL ", \"sliding_window\": 0}", MOEC_ERR_FORMAT, "'sliding_window'"},
        {"{" MIXTRAL ", \"num_key_value_heads\": 5}", MOEC_ERR_FORMAT, "to be a multiple of the key/value"},
        {"{" MIXTRAL ", \"eos_token_id\": -1}", MOEC_ERR_FORMAT, "'eos_token_id'"},
        {"{" SWITCH ", \"is_encoder_decoder\": false}", MOEC_ERR_UNSUPPORTED, "'is_encoder_decoder'"},
        {"{" SWITCH ", \"dense_act_fn\": \"gelu\"}", MOEC_ERR_UNSUPPORTED, "'dense_act_fn' 'gelu'"},
        {"{" SWITCH ", \"expert_capacity\": 0}", MOEC_ERR_UNSUPPORTED, "'expert_capacity' 0"},
        {"{" SWITCH ", \"router_dtype\": \"bfloat16\"}", MOEC_ERR_UNSUPPORTED, "'router_dtype'"},
        {"{" SWITCH ", \"num_layers\": 0}", MOEC_ERR_LIMIT, "0 encoder"},
        {"{" SWITCH ", \"num_layers\": 1020, \"num_decoder_layers\": 5}", MOEC_ERR_LIMIT, "1024 in all"},
        {"{" SWITCH ", \"relative_attention_num_buckets\": 3}", MOEC_ERR_LIMIT, "buckets"},
        {"{" SWITCH ", \"relative_attention_num_buckets\": 0}", MOEC_ERR_FORMAT, "distance"},
        {"{" SWITCH ", \"relative_attention_max_distance\": 16}", MOEC_ERR_LIMIT, "expected 17.."},
        {"{" SWITCH ", \"decoder_start_token_id\": 32128}", MOEC_ERR_LIMIT, "decoder start id"},
        {"{" SWITCH ", \"pad_token_id\": -1}", MOEC_ERR_FORMAT, "'pad_token_id'"},
        {"{" SWITCH ", \"encoder_sparse_step\": 0, \"decoder_sparse_step\": 0}", MOEC_ERR_FORMAT,
         "no layer with experts"},
        {"{" SWITCH ", \"quantization_config\": {}}", MOEC_ERR_UNSUPPORTED, "'quantization_config'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_config config;
        struct moec_error err = {0};
        assert_status(read_config(cases[i].text, &config, &err), cases[i].status, err);
        assert_message(err, cases[i].part);
        assert_message(err, "config.json");
    }
}

static void test_family__tensor_names(void **state)
{
    (void)state;
    char name[MOEC_TENSOR_NAME_BYTES];
    const struct moec_family *family = moec_family_find("mixtral");
    struct moec_config mixtral = good("{" MIXTRAL "}");
    assert_non_null(family);
    assert_null(moec_family_find("mixtra"));
    const char *pattern = moec_family_expert_pattern(family, &mixtral, MOEC_PROJECTION_DOWN, 1023);
    assert_string_equal(moec_family_tensor_name(pattern, &mixtral, 1023, 4095, name),
                        "model.layers.1023.block_sparse_moe.experts.4095.w2.weight");
    pattern = moec_family_pattern(family, &mixtral, MOEC_ROLE_HEAD, MOEC_LAYER_NONE);
    assert_string_equal(moec_family_tensor_name(pattern, &mixtral, MOEC_LAYER_NONE, 0, name),
                        "lm_head.weight");
    /* The longest names of every family fit, and every role that a config of the family expects has a name.
     */
    static const char *const texts[] = {"{" QWEN ", \"decoder_sparse_step\": 2}",
                                        "{" OLMOE "}",
                                        "{" MIXTRAL "}",
                                        "{" SWITCH ", \"router_bias\": true}",
                                        "{\"model_type\": \"qwen3_moe\", \"attention_bias\": true}",
                                        "{\"model_type\": \"flex_olmo\"}",
                                        "{\"model_type\": \"afmoe\"}",
                                        "{\"model_type\": \"exaone_moe\"}",
                                        "{\"model_type\": \"glm4_moe\", \"head_dim\": 128}",
                                        "{\"model_type\": \"minimax_m2\"}",
                                        "{\"model_type\": \"ernie4_5_moe\"}",
                                        "{\"model_type\": \"gpt_oss\"}",
                                        "{\"model_type\": \"deepseek_v2\", \"num_experts_per_tok\": 6}",
                                        "{\"model_type\": \"deepseek_v3\", \"q_lora_rank\": null}",
                                        "{\"model_type\": \"glm4_moe_lite\"}",
                                        "{" LONGCAT "}",
                                        "{\"model_type\": \"granitemoeshared\"}",
                                        "{" SWITCH ", \"dense_act_fn\": \"gated-gelu\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct moec_config c = good(texts[i]);
        family = moec_family_find(c.family);
        for (uint32_t layer = 0; layer <= c.n_layer; layer++)
            for (int role = 0; role < MOEC_ROLE_COUNT; role++) {
                uint32_t at = layer == c.n_layer ? MOEC_LAYER_NONE : layer;
                if (!moec_role_expected(&c, (enum moec_role)role, at))
                    continue;
                pattern = moec_family_pattern(family, &c, (enum moec_role)role, at);
                assert_non_null(pattern);
                (void)moec_family_tensor_name(pattern, &c, UINT32_MAX, UINT32_MAX, name);
                const char *suffix = strrchr(name, '.'); /* a name that was cut lacks it */
                assert_non_null(suffix);
                assert_true(strcmp(suffix, ".weight") == 0 || strcmp(suffix, ".bias") == 0 ||
                            strcmp(suffix, ".sinks") == 0 || strcmp(suffix, ".gate_up_proj_bias") == 0 ||
                            strcmp(suffix, ".down_proj_bias") == 0 ||
                            strcmp(suffix, ".e_score_correction_bias") == 0 ||
                            strcmp(suffix, ".expert_bias") == 0);
            }
    }
}

static void test_family__switch_defaults(void **state)
{
    (void)state;
    struct moec_config c = good("{" SWITCH "}");
    assert_true(moec_config_is_encoder_decoder(&c));
    assert_int_equal(c.n_vocab, 32128);
    assert_int_equal(c.n_embd, 768);
    assert_int_equal(c.n_layer, 24);
    assert_int_equal(c.n_encoder_layer, 12);
    assert_int_equal(c.kinds[0].n_head, 12);
    assert_int_equal(c.kinds[0].n_kv_head, 12);
    assert_int_equal(c.kinds[0].head_dim, 64);
    assert_int_equal(c.n_ff_expert, 2048);
    assert_int_equal(moec_config_layer(&c, 0)->n_ff_dense, 2048);
    assert_int_equal(c.n_expert, 8);
    assert_int_equal(c.top_k, 1);
    assert_int_equal(c.router.expert_capacity, 64);
    assert_int_equal(c.position.n_bucket, 32);
    assert_int_equal(c.position.max_distance, 128);
    assert_int_equal(c.ids.n_eos, 1);
    assert_int_equal(c.ids.eos[0], 1);
    assert_int_equal(c.ids.decoder_start, 0);
    assert_int_equal(c.mlp.activation, MOEC_ACTIVATION_RELU);
    assert_true(c.mlp.plain && c.head.is_tied && c.head.is_scaled && !c.router.bias && c.rms_eps == 1e-6);
    /* three of twelve: every fourth, from the second on, in both stacks */
    for (uint32_t layer = 0; layer < 24; layer++)
        assert_int_equal(moec_config_is_moe(&c, layer), layer % 12 % 4 == 1);
    assert_int_equal(moec_config_moe_count(&c), 6);
    assert_int_equal(moec_config_moe_encoder_count(&c), 3);
    struct moec_moe_range range = moec_config_moe_range(&c, 2);
    assert_true(range.first == 0 && range.count == 3);
    range = moec_config_moe_range(&c, 3);
    assert_true(range.first == 3 && range.count == 3);
}

/* As SwitchTransformersStack counts, whose step of no sparse layer is the number of layers. */
static void test_family__switch_sparse_steps(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        const char *is_moe; /* of both stacks */
    } cases[] = {
        {"\"num_layers\": 4, \"num_decoder_layers\": 2, \"num_sparse_encoder_layers\": 4, "
         "\"num_sparse_decoder_layers\": 1",
         "111101"},
        {"\"num_layers\": 3, \"num_decoder_layers\": null, \"num_sparse_encoder_layers\": 0, "
         "\"num_sparse_decoder_layers\": 4",
         "010000"},
        {"\"num_layers\": 5, \"num_decoder_layers\": 1, \"num_sparse_encoder_layers\": 2, "
         "\"num_sparse_decoder_layers\": 0",
         "010101"},
        {"\"num_layers\": 4, \"num_decoder_layers\": 2, \"encoder_sparse_step\": 3, "
         "\"decoder_sparse_step\": 0",
         "010000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        snprintf(text, sizeof text, "{" SWITCH ", %s}", cases[i].fields);
        struct moec_config c = good(text);
        assert_layers(&c, cases[i].is_moe);
    }
}

/* Bytes between fields are nobody's, so sections are compared. */
static void assert_same_section(const struct moec_config *a, const struct moec_config *b)
{
    struct moec_error err = {0};
    uint8_t *first = NULL, *second = NULL;
    size_t n_first = 0, n_second = 0;
    assert_status(moec_config_encode(a, &first, &n_first, &err), MOEC_OK, err);
    assert_status(moec_config_encode(b, &second, &n_second, &err), MOEC_OK, err);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, n_first);
    free(first);
    free(second);
}

/* What is written reads back, and says the steps that the class would not have derived. */
static void test_family__switch_round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{" SWITCH "}",
        "{" SWITCH ", \"num_layers\": 7, \"encoder_sparse_step\": 4, \"decoder_sparse_step\": 0, "
        "\"dense_act_fn\": \"gated-gelu\", \"tie_word_embeddings\": false, \"pad_token_id\": 7}",
        "{" SWITCH ", \"is_gated_act\": true, \"d_kv\": 7, \"router_bias\": true, "
        "\"decoder_start_token_id\": 9, \"eos_token_id\": [3, 4]}",
        "{" SWITCH ", \"dense_act_fn\": \"silu\", \"relative_attention_num_buckets\": 6, "
        "\"relative_attention_max_distance\": 4}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct moec_config c = good(texts[i]);
        struct moec_error err = {0};
        struct moec_family_texts made = {0};
        const struct moec_generation settings = moec_generation_default();
        assert_status(moec_family_write_config(&c, &settings, "float32", "a", &made, &err), MOEC_OK, err);
        struct moec_config again = good(made.config);
        assert_same_section(&again, &c);
        assert_non_null(strstr(made.generation, "decoder_start_token_id"));
        free(made.config);
        free(made.generation);
    }
    struct moec_config c = good("{" SWITCH ", \"is_gated_act\": true, \"d_kv\": 7, \"pad_token_id\": 5}");
    assert_true(c.mlp.activation == MOEC_ACTIVATION_RELU && !c.mlp.plain && c.kinds[0].head_dim == 7);
    assert_int_equal(c.ids.decoder_start, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_family__defaults_are_those_of_transformers),
        cmocka_unit_test(test_family__heads_and_rope),
        cmocka_unit_test(test_family__qwen_layers),
        cmocka_unit_test(test_family__windows),
        cmocka_unit_test(test_family__layers_of_one_part),
        cmocka_unit_test(test_family__layers_of_kimi_delta_attention),
        cmocka_unit_test(test_family__end_of_text),
        cmocka_unit_test(test_family__refusals),
        cmocka_unit_test(test_family__tensor_names),
        cmocka_unit_test(test_family__switch_defaults),
        cmocka_unit_test(test_family__switch_sparse_steps),
        cmocka_unit_test(test_family__switch_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
