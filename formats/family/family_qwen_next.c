/* Qwen3-Next and the text of Qwen3.5-MoE: three layers of the gated delta rule to one with attention, whose
 * q_proj has a gate of the outputs beside each head's queries. Norms are stored as what they differ from 1
 * by, but for that of the delta rule's outputs. */
#include "formats/family/family_parts.h"

static enum moec_status read_running(const struct moec_json *root, const char *where,
                                     struct moec_layer_kind *running, struct moec_error *err)
{
    const uint32_t most = MOEC_MAX_DIMENSION;
    *running = (struct moec_layer_kind){.mixer = MOEC_MIXER_DELTA,
                                        .conv_size = 4,
                                        .n_head = 32,
                                        .n_kv_head = 16,
                                        .head_dim = 128,
                                        .value_dim = 128};
    MOEC_TRY(moec_json_update_u32(root, where, "linear_conv_kernel_dim", most, &running->conv_size, err));
    MOEC_TRY(moec_json_update_u32(root, where, "linear_num_value_heads", most, &running->n_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "linear_num_key_heads", most, &running->n_kv_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "linear_key_head_dim", most, &running->head_dim, err));
    return moec_json_update_u32(root, where, "linear_value_head_dim", most, &running->value_dim, err);
}

static enum moec_status read_mixing(const struct moec_json *root, const char *where,
                                    struct moec_config *config, struct moec_family_layers *layers,
                                    struct moec_error *err)
{
    uint64_t interval = 4;
    MOEC_TRY(moec_family_refuse_flag(root, where, "attention_bias", "biases of gates in 'q_proj'", err));
    MOEC_TRY(read_running(root, where, &layers->running, err));
    MOEC_TRY(
        moec_json_get_u64_or(root, where, "full_attention_interval", 1, MOEC_MAX_LAYERS, 4, &interval, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers->is_running[layer] = (layer + 1) % interval != 0;
    return moec_family_read_layer_types(root, where, config, layers, err);
}

static enum moec_status read_moe(const struct moec_json *root, const char *where, struct moec_config *config,
                                 struct moec_error *err)
{
    MOEC_TRY(moec_family_read_qwen_experts(root, where, config, err));
    MOEC_TRY(moec_json_update_u32(root, where, "shared_expert_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_shared, err));
    config->mlp.shared_gate = config->n_ff_shared > 0;
    return MOEC_OK;
}

static enum moec_status read_next(const struct moec_json *root, const char *where, struct moec_config *config,
                                  struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    MOEC_TRY(read_moe(root, where, config, err));
    MOEC_TRY(read_mixing(root, where, config, &layers, err));
    MOEC_TRY(moec_family_read_sparse_layers(root, where, config, &layers, err));
    layers.running.n_ff_dense = config->kinds[0].n_ff_dense;
    return moec_family_place_layers(config, &layers, where, err);
}

/* Every layer has experts, and router weights always sum to 1. */
static enum moec_status read_3_5(const struct moec_json *root, const char *where, struct moec_config *config,
                                 struct moec_error *err)
{
    struct moec_family_layers layers = {0};
    MOEC_TRY(read_moe(root, where, config, err));
    MOEC_TRY(read_mixing(root, where, config, &layers, err));
    config->router.norm_topk_prob = true;
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        layers.is_moe[layer] = 1;
    return moec_family_place_layers(config, &layers, where, err);
}

static void put(const struct moec_config *config, struct moec_json_out *root)
{
    moec_json_out_u64(root, "shared_expert_intermediate_size", config->n_ff_shared);
    moec_family_put_layer_types(config, root);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        if (!moec_layer_is_running(kind))
            continue;
        moec_json_out_u64(root, "linear_conv_kernel_dim", kind->conv_size);
        moec_json_out_u64(root, "linear_num_value_heads", kind->n_head);
        moec_json_out_u64(root, "linear_num_key_heads", kind->n_kv_head);
        moec_json_out_u64(root, "linear_key_head_dim", kind->head_dim);
        moec_json_out_u64(root, "linear_value_head_dim", moec_layer_value_dim(kind));
        return;
    }
}

static void write_next(const struct moec_config *config, struct moec_json_out *root)
{
    put(config, root);
    moec_family_put_qwen_experts(config, root);
}

static void write_3_5(const struct moec_config *config, struct moec_json_out *root)
{
    put(config, root);
    moec_json_out_u64(root, "num_experts", config->n_expert);
    moec_json_out_u64(root, "moe_intermediate_size", config->n_ff_expert);
}

/* What both have. */
static struct moec_tensor_layout common_layout(const struct moec_layer_kind *kind, enum moec_role role)
{
    const uint32_t dim = kind == NULL ? 0 : kind->head_dim;
    struct moec_tensor_layout layout = {.is_convolution = role == MOEC_ROLE_CONVOLUTION};
    layout.adds_one = role == MOEC_ROLE_FINAL_NORM || role == MOEC_ROLE_ATTENTION_NORM ||
                      role == MOEC_ROLE_MLP_NORM || role == MOEC_ROLE_Q_NORM || role == MOEC_ROLE_K_NORM;
    if (kind != NULL && !moec_layer_is_running(kind) &&
        (role == MOEC_ROLE_Q || role == MOEC_ROLE_OUTPUT_GATE))
        layout = (struct moec_tensor_layout){
            .block_rows = dim, .block_first = role == MOEC_ROLE_Q ? 0 : dim, .block_step = 2 * dim};
    return layout;
}

/* One matrix of several that follow each other in every group of a tensor. */
struct part {
    enum moec_role role;
    uint32_t rows;
};

static struct moec_tensor_layout part_layout(struct moec_tensor_layout layout, enum moec_role role,
                                             const struct part *parts, uint32_t n_part)
{
    uint32_t first = 0, step = 0;
    for (uint32_t i = 0; i < n_part; i++)
        step += parts[i].rows;
    for (uint32_t i = 0; i < n_part; first += parts[i++].rows)
        if (parts[i].role == role)
            layout = (struct moec_tensor_layout){
                .block_rows = parts[i].rows, .block_first = first, .block_step = step};
    return layout;
}

static const struct moec_layer_kind *kind_of(const struct moec_config *config, uint32_t layer)
{
    return layer == MOEC_LAYER_NONE ? NULL : moec_config_layer(config, layer);
}

/* Each key head has its queries, its keys, and values and gates of the value heads that it serves. */
static struct moec_tensor_layout layout_next(const struct moec_config *config, enum moec_role role,
                                             uint32_t layer)
{
    const struct moec_layer_kind *kind = kind_of(config, layer);
    const struct moec_tensor_layout layout = common_layout(kind, role);
    if (kind == NULL || !moec_layer_is_running(kind))
        return layout;
    const uint32_t n_each = kind->n_head / kind->n_kv_head, values = n_each * moec_layer_value_dim(kind);
    const struct part inputs[] = {{MOEC_ROLE_Q, kind->head_dim},
                                  {MOEC_ROLE_K, kind->head_dim},
                                  {MOEC_ROLE_V, values},
                                  {MOEC_ROLE_OUTPUT_GATE, values}};
    const struct part rates[] = {{MOEC_ROLE_DELTA_RATE, n_each}, {MOEC_ROLE_DELTA_DECAY, n_each}};
    return part_layout(part_layout(layout, role, inputs, 4), role, rates, 2);
}

static struct moec_tensor_layout layout_3_5(const struct moec_config *config, enum moec_role role,
                                            uint32_t layer)
{
    const struct moec_layer_kind *kind = kind_of(config, layer);
    const struct moec_tensor_layout layout = common_layout(kind, role);
    if (kind == NULL || !moec_layer_is_running(kind))
        return layout;
    const struct part inputs[] = {{MOEC_ROLE_Q, moec_layer_q_rows(kind)},
                                  {MOEC_ROLE_K, moec_layer_q_rows(kind)},
                                  {MOEC_ROLE_V, moec_layer_v_rows(kind)}};
    return part_layout(layout, role, inputs, 3);
}

/* clang-format off */
#define LAYER MOEC_LAYER_NAME
#define DELTA LAYER "linear_attn."

#define NAMES                                                                                                \
    MOEC_NAMES_ATTENTION, MOEC_NAMES_NORMS, MOEC_NAMES_QK_NORM, MOEC_NAMES_DENSE,                            \
    MOEC_NAMES_SHARED("mlp.shared_expert"),                                                                  \
    [MOEC_ROLE_OUTPUT_GATE] = LAYER "self_attn.q_proj.weight",                                               \
    [MOEC_ROLE_ROUTER] = LAYER "mlp.gate.weight",                                                            \
    [MOEC_ROLE_SHARED_EXPERT_GATE] = LAYER "mlp.shared_expert_gate.weight",                                  \
    [MOEC_ROLE_CONVOLUTION] = DELTA "conv1d.weight", [MOEC_ROLE_DELTA_DECAY_LOG] = DELTA "A_log",            \
    [MOEC_ROLE_DELTA_DECAY_BIAS] = DELTA "dt_bias", [MOEC_ROLE_DELTA_NORM] = DELTA "norm.weight"

#define KIND {{.n_head = 16, .n_kv_head = 2, .head_dim = 256, .rope_theta = 10000.0, .n_ff_dense = 5632,     \
               .qk_norm = MOEC_QK_NORM_HEAD, .has_gate = true}}

const struct moec_family moec_family_qwen3_next = {
    .model_type = "qwen3_next",
    .read = read_next,
    .write = write_next,
    .has_partial_rope = true,
    .rotary_part = 0.25,
    .architecture = "Qwen3NextForCausalLM",
    .defaults = {.n_vocab = 151936, .n_embd = 2048, .n_layer = 48, .n_position = 32768, .rms_eps = 1e-6,
                 .n_expert = 512, .top_k = 10, .n_ff_expert = 512, .n_ff_shared = 512, .router.norm_topk_prob = true,
                 .kinds = KIND},
    .names = {
        NAMES, [MOEC_ROLE_DELTA_RATE] = DELTA "in_proj_ba.weight",
        [MOEC_ROLE_DELTA_DECAY] = DELTA "in_proj_ba.weight",
    },
    .running_names = {
        [MOEC_ROLE_Q] = DELTA "in_proj_qkvz.weight", [MOEC_ROLE_K] = DELTA "in_proj_qkvz.weight",
        [MOEC_ROLE_V] = DELTA "in_proj_qkvz.weight", [MOEC_ROLE_OUTPUT_GATE] = DELTA "in_proj_qkvz.weight",
        [MOEC_ROLE_O] = DELTA "out_proj.weight",
    },
    .layout_of = layout_next,
    MOEC_USUAL_EXPERTS,
};

const struct moec_family moec_family_qwen3_5_moe = {
    .model_type = "qwen3_5_moe_text",
    .outer_type = "qwen3_5_moe",
    .read = read_3_5,
    .write = write_3_5,
    .has_partial_rope = true,
    .rotary_part = 0.25,
    .architecture = "Qwen3_5MoeForCausalLM",
    .defaults = {.n_vocab = 248320, .n_embd = 2048, .n_layer = 40, .n_position = 32768, .rms_eps = 1e-6,
                 .n_expert = 256, .top_k = 8, .n_ff_expert = 512, .n_ff_shared = 512, .kinds = KIND},
    .names = {
        NAMES, [MOEC_ROLE_DELTA_RATE] = DELTA "in_proj_b.weight",
        [MOEC_ROLE_DELTA_DECAY] = DELTA "in_proj_a.weight",
    },
    .running_names = {
        [MOEC_ROLE_Q] = DELTA "in_proj_qkv.weight", [MOEC_ROLE_K] = DELTA "in_proj_qkv.weight",
        [MOEC_ROLE_V] = DELTA "in_proj_qkv.weight", [MOEC_ROLE_OUTPUT_GATE] = DELTA "in_proj_z.weight",
        [MOEC_ROLE_O] = DELTA "out_proj.weight",
    },
    .layout_of = layout_3_5,
    MOEC_USUAL_EXPERTS,
};
/* clang-format on */
