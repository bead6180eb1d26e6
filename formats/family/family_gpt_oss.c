/* gpt-oss (arXiv 2508.10925): sinks, a window in every second layer, biases everywhere, a clamped GLU. All
 * experts of a layer are stacked: in float checkpoints transposed, in MXFP4 ones as (outputs, inputs); gate
 * and up take turns in both. */
#include "formats/family/family_parts.h"

#include <math.h>

static enum moec_status read_experts(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    double limit = 7, gain = 1.702;
    MOEC_TRY(
        moec_json_update_u32(root, where, "num_local_experts", MOEC_MAX_EXPERTS, &config->n_expert, err));
    MOEC_TRY(moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &config->n_ff_expert,
                                  err));
    MOEC_TRY(moec_json_get_double_or(root, where, "swiglu_limit", 0, 1e9, limit, &limit, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "swiglu_alpha", 0, 1e9, gain, &gain, err));
    if (limit != 7 || gain != 1.702)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'swiglu_limit' %g and 'swiglu_alpha' %g, only 7 and 1.702 are supported",
                         where, limit, gain);
    return MOEC_OK;
}

/* What the class assumes where config.json says nothing about RoPE. */
static void assume_rope(const struct moec_json *root, struct moec_config *config)
{
    if (moec_json_present(root, "rope_parameters") == NULL && moec_json_present(root, "rope_scaling") == NULL)
        config->kinds[0].rope_scaling = (struct moec_rope_scaling){.kind = MOEC_ROPE_YARN,
                                                                   .factor = 32,
                                                                   .beta_fast = 32,
                                                                   .beta_slow = 1,
                                                                   .attention_factor = 0.1 * log(32) + 1,
                                                                   .original_positions = 4096};
}

static enum moec_status read_gpt_oss(const struct moec_json *root, const char *where,
                                     struct moec_config *config, struct moec_error *err)
{
    struct moec_family_layers layers = {.window = 128};
    MOEC_TRY(read_experts(root, where, config, err));
    MOEC_TRY(moec_family_read_bias(root, where, true, config, err));
    assume_rope(root, config);
    const struct moec_json *given = moec_json_find(root, "sliding_window");
    const bool has_window = given == NULL || moec_json_type(given) != MOEC_JSON_NULL;
    MOEC_TRY(moec_json_update_u32(root, where, "sliding_window", MOEC_MAX_POSITIONS, &layers.window, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        layers.is_moe[layer] = 1;
        layers.has_window[layer] = has_window && layer % 2 == 0;
    }
    if (has_window)
        MOEC_TRY(moec_family_read_layer_types(root, where, config, &layers, err));
    return moec_family_place_layers(config, &layers, where, err);
}

static void write_gpt_oss(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "num_local_experts", config->n_expert);
    moec_json_out_u64(root, "intermediate_size", config->n_ff_expert);
    moec_json_out_double(root, "swiglu_limit", 7);
    moec_json_out_double(root, "swiglu_alpha", 1.702);
    moec_family_put_bias(config, root);
    moec_family_put_layer_types(config, root);
    if (moec_config_layer(config, 0)->rope_scaling.kind != MOEC_ROPE_PLAIN)
        return;
    struct moec_json_out *rope = moec_json_out_object(); /* or the class would assume YaRN */
    moec_json_out_string(rope, "rope_type", "default");
    moec_json_out_node(root, "rope_scaling", rope);
}

/* clang-format off */
#define EXPERTS MOEC_LAYER_NAME "mlp.experts."

const struct moec_family moec_family_gpt_oss = {
    .model_type = "gpt_oss",
    .read = read_gpt_oss,
    .write = write_gpt_oss,
    .architecture = "GptOssForCausalLM",
    .defaults = {.n_vocab = 201088, .n_embd = 2880, .n_layer = 36, .n_position = 131072, .rms_eps = 1e-5,
                 .n_expert = 128, .top_k = 4, .n_ff_expert = 2880, .router.kind = MOEC_ROUTER_SOFTMAX_CHOSEN,
                 .router.bias = true, .mlp.expert_bias = true, .mlp.activation = MOEC_ACTIVATION_CLAMPED_GLU,
                 .kinds = {{.n_head = 64, .n_kv_head = 8, .head_dim = 64, .rope_theta = 150000.0,
                            .has_sinks = true, .qkv_bias = true, .o_bias = true}}},
    .names = {
        MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, [MOEC_ROLE_SINKS] = MOEC_LAYER_NAME "self_attn.sinks",
        [MOEC_ROLE_ROUTER] = MOEC_LAYER_NAME "mlp.router.weight",
        [MOEC_ROLE_ROUTER_BIAS] = MOEC_LAYER_NAME "mlp.router.bias",
        [MOEC_ROLE_EXPERT_GATE_BIAS] = EXPERTS "gate_up_proj_bias",
        [MOEC_ROLE_EXPERT_UP_BIAS] = EXPERTS "gate_up_proj_bias",
        [MOEC_ROLE_EXPERT_DOWN_BIAS] = EXPERTS "down_proj_bias",
    },
    .layouts = {
        [MOEC_ROLE_EXPERT_GATE_BIAS] = {.is_row_fused = true, .is_interleaved = true, .n_part = 2},
        [MOEC_ROLE_EXPERT_UP_BIAS] = {.is_row_fused = true, .is_interleaved = true, .n_part = 2, .part = 1},
    },
    .expert_names = {[MOEC_PROJECTION_GATE] = EXPERTS "gate_up_proj",
                     [MOEC_PROJECTION_UP] = EXPERTS "gate_up_proj",
                     [MOEC_PROJECTION_DOWN] = EXPERTS "down_proj"},
    .expert_layouts = {
        [MOEC_PROJECTION_GATE] = {.is_stacked = true, .is_transposed = true, .is_interleaved = true,
                                  .n_part = 2},
        [MOEC_PROJECTION_UP] = {.is_stacked = true, .is_transposed = true, .is_interleaved = true, .n_part = 2,
                                .part = 1},
        [MOEC_PROJECTION_DOWN] = {.is_stacked = true, .is_transposed = true},
    },
    .other_experts = {{
        .names = {[MOEC_PROJECTION_GATE] = EXPERTS "gate_up_proj_blocks",
                  [MOEC_PROJECTION_UP] = EXPERTS "gate_up_proj_blocks",
                  [MOEC_PROJECTION_DOWN] = EXPERTS "down_proj_blocks"},
        .layouts = {[MOEC_PROJECTION_GATE] = {.is_stacked = true, .is_interleaved = true, .n_part = 2},
                    [MOEC_PROJECTION_UP] = {.is_stacked = true, .is_interleaved = true, .n_part = 2, .part = 1},
                    [MOEC_PROJECTION_DOWN] = {.is_stacked = true}},
    }},
};
/* clang-format on */
