/* Nemotron-H and Nemotron 3 with experts (arXiv 2504.03624): each layer is one part alone, a state space,
 * attention that positions do not rotate, an MLP, or experts. MLPs and experts have two matrices and relu^2.
 */
#include "formats/family/family_parts.h"

#include <stdio.h>
#include <string.h>

/* A layer's part by its letter in 'hybrid_override_pattern', and what 'layers_block_type' calls it in
 * transformers and in NVIDIA's code. */
static const struct {
    char letter;
    const char *name, *other;
} parts[] = {{'M', "linear_attention", "mamba"},
             {'*', "full_attention", "attention"},
             {'E', "moe", "moe"},
             {'-', "mlp", "mlp"}};
#define N_PARTS (sizeof parts / sizeof *parts)

static enum moec_status read_letters(const struct moec_json *root, const char *where, char *letters,
                                     uint32_t *n_layer, struct moec_error *err)
{
    const char *pattern = NULL;
    MOEC_TRY(moec_json_get_string_or(root, where, "hybrid_override_pattern", "ME*-", &pattern, err));
    const size_t n = strlen(pattern);
    if (n > MOEC_MAX_LAYERS || strspn(pattern, "M*E-") != n)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'hybrid_override_pattern' '%.80s', expected up to %u characters, each 'M', '*', 'E' or "
            "'-'",
            where, pattern, MOEC_MAX_LAYERS);
    memcpy(letters, pattern, n + 1);
    *n_layer = (uint32_t)n;
    return MOEC_OK;
}

static enum moec_status read_types(const struct moec_json *root, const char *where, char *letters,
                                   uint32_t *n_layer, struct moec_error *err)
{
    const struct moec_json *list = moec_json_present(root, "layers_block_type");
    if (list == NULL)
        return read_letters(root, where, letters, n_layer, err);
    MOEC_TRY(moec_json_get(root, where, "layers_block_type", MOEC_JSON_ARRAY, &list, err));
    if (moec_json_length(list) > MOEC_MAX_LAYERS)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s has %zu entries in 'layers_block_type', expected up to %u",
                         where, moec_json_length(list), MOEC_MAX_LAYERS);
    *n_layer = (uint32_t)moec_json_length(list);
    for (uint32_t layer = 0; layer < *n_layer; layer++) {
        const char *type = NULL;
        char what[256];
        (void)snprintf(what, sizeof what, "'layers_block_type'[%u] in %.200s", layer, where);
        MOEC_TRY(moec_json_as_string(moec_json_at(list, layer), what, &type, NULL, err));
        size_t i = 0;
        while (i < N_PARTS && strcmp(type, parts[i].name) != 0 && strcmp(type, parts[i].other) != 0)
            i++;
        if (i == N_PARTS)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "%s is '%.40s', supported: 'linear_attention', 'full_attention', 'moe', 'mlp'",
                             what, type);
        letters[layer] = parts[i].letter;
    }
    return MOEC_OK;
}

static enum moec_status read_space(const struct moec_json *root, const char *where,
                                   struct moec_layer_kind *space, struct moec_error *err)
{
    static const char *const groups[] = {"mamba_n_groups", "n_groups", NULL};
    static const char *const positions[] = {"mamba_d_conv", "conv_kernel", NULL};
    const bool is_old = moec_json_present(root, "mamba_dt_min") != NULL;
    const uint32_t most = MOEC_MAX_DIMENSION;
    double step_min = 0.001;
    bool has_bias = true;
    MOEC_TRY(moec_family_update_any(root, where, positions, most, &space->conv_size, err));
    MOEC_TRY(moec_family_update_any(root, where, groups, most, &space->n_kv_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_num_heads", most, &space->n_head, err));
    MOEC_TRY(moec_json_update_u32(root, where, "mamba_head_dim", most, &space->value_dim, err));
    MOEC_TRY(moec_json_update_u32(root, where, "ssm_state_size", most, &space->head_dim, err));
    MOEC_TRY(moec_json_get_double_or(root, where, is_old ? "mamba_dt_min" : "time_step_min", 0, 1e6, step_min,
                                     &step_min, err));
    space->step_min = (float)step_min;
    MOEC_TRY(moec_json_get_bool_or(root, where, "use_conv_bias", true, &has_bias, err));
    if (!has_bias)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'use_conv_bias' false, only true is supported: moec does not implement state-space "
            "convolutions without a bias",
            where);
    MOEC_TRY(moec_family_check_step_limit(root, where, err));
    return moec_family_refuse_flag(root, where, "use_bias", "biases of projections", err);
}

static enum moec_status refuse_others(const struct moec_json *root, const char *where, struct moec_error *err)
{
    static const struct {
        const char *key, *supported;
    } activations[] = {{"mlp_hidden_act", "relu2"}, {"mamba_hidden_act", "silu"}};
    if (moec_json_present(root, "moe_latent_size") != NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s has a 'moe_latent_size', only null is supported: moec does not implement experts on a "
            "projected hidden state",
            where);
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        const char *name = NULL;
        MOEC_TRY(
            moec_json_get_string_or(root, where, activations[i].key, activations[i].supported, &name, err));
        if (strcmp(name, activations[i].supported) != 0)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s says '%s' '%.40s', only '%s' is supported", where,
                             activations[i].key, name, activations[i].supported);
    }
    return moec_family_refuse_flag(root, where, "mlp_bias", "biases of MLPs", err);
}

static enum moec_status read_nemotron_h(const struct moec_json *root, const char *where,
                                        struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind attention = config->kinds[0], experts = {.mixer = MOEC_MIXER_NONE, .is_moe = true};
    struct moec_layer_kind mlp = {.mixer = MOEC_MIXER_NONE, .n_ff_dense = attention.n_ff_dense};
    struct moec_layer_kind space = {.mixer = MOEC_MIXER_SPACE,
                                    .no_mlp = true,
                                    .conv_size = 4,
                                    .n_head = 128,
                                    .n_kv_head = 8,
                                    .head_dim = 128,
                                    .value_dim = 64};
    char letters[MOEC_MAX_LAYERS + 1];
    uint32_t n_layer = 0;
    attention.no_mlp = true;
    attention.n_ff_dense = 0;
    MOEC_TRY(refuse_others(root, where, err));
    MOEC_TRY(moec_family_read_routed(root, where, &moec_family_usual_keys, config, err));
    config->n_ff_shared = 7688;
    MOEC_TRY(moec_json_update_u32(root, where, "moe_shared_expert_intermediate_size", MOEC_MAX_DIMENSION,
                                  &config->n_ff_shared, err));
    MOEC_TRY(
        moec_json_update_u32(root, where, "intermediate_size", MOEC_MAX_DIMENSION, &mlp.n_ff_dense, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "layer_norm_epsilon", 0, 1, config->rms_eps,
                                     &config->rms_eps, err));
    MOEC_TRY(read_space(root, where, &space, err));
    MOEC_TRY(read_types(root, where, letters, &n_layer, err));
    config->n_layer = config->n_kind = 0;
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        const char letter = letters[layer];
        if (!moec_config_add_layer(config, letter == 'M'   ? &space
                                           : letter == '*' ? &attention
                                           : letter == 'E' ? &experts
                                                           : &mlp))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %u layers", where, MOEC_MAX_LAYERS);
    }
    return MOEC_OK;
}

static size_t part_of(const struct moec_layer_kind *kind)
{
    return kind->mixer == MOEC_MIXER_SPACE ? 0 : moec_layer_attends(kind) ? 1 : kind->is_moe ? 2 : 3;
}

static void write_space(const struct moec_layer_kind *kind, struct moec_json_out *root)
{
    moec_json_out_u64(root, "conv_kernel", kind->conv_size);
    moec_json_out_u64(root, "n_groups", kind->n_kv_head);
    moec_json_out_u64(root, "mamba_num_heads", kind->n_head);
    moec_json_out_u64(root, "mamba_head_dim", kind->value_dim);
    moec_json_out_u64(root, "ssm_state_size", kind->head_dim);
    moec_json_out_double(root, "time_step_min", (double)kind->step_min);
}

static void write_nemotron_h(const struct moec_config *config, struct moec_json_out *root)
{
    struct moec_json_out *types = moec_json_out_array();
    struct moec_config usual = *config; /* whose shared expert is one of the size of a routed one */
    char letters[MOEC_MAX_LAYERS + 1] = "";
    usual.n_ff_shared = usual.n_ff_expert;
    moec_family_put_routed(&usual, &moec_family_usual_keys, root);
    moec_json_out_u64(root, "moe_shared_expert_intermediate_size", config->n_ff_shared);
    moec_json_out_double(root, "layer_norm_epsilon", config->rms_eps);
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        const size_t part = part_of(moec_config_layer(config, layer));
        letters[layer] = parts[part].letter;
        moec_json_out_string(types, NULL, parts[part].name);
    }
    moec_json_out_node(root, "layers_block_type", types);
    moec_json_out_string(root, "hybrid_override_pattern", letters);
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        if (kind->mixer == MOEC_MIXER_SPACE)
            write_space(kind, root);
        else if (kind->n_ff_dense > 0)
            moec_json_out_u64(root, "intermediate_size", kind->n_ff_dense);
    }
}

/* clang-format off */
#define LAYER "backbone.layers.{L}."
#define MIXER LAYER "mixer."

const struct moec_family moec_family_nemotron_h = {
    .model_type = "nemotron_h",
    .read = read_nemotron_h,
    .write = write_nemotron_h,
    .has_own_rope = true,
    .architecture = "NemotronHForCausalLM",
    .layout_of = moec_family_space_layout,
    .defaults = {.n_vocab = 131072, .n_embd = 4096, .n_position = 4096, .rms_eps = 1e-5, .n_expert = 8, .top_k = 2,
                 .n_ff_expert = 7688, .mlp.activation = MOEC_ACTIVATION_RELU_SQUARED, .mlp.plain = true,
                 .router.kind = MOEC_ROUTER_SIGMOID, .router.choice_bias = true, .router.norm_topk_prob = true,
                 .router.group_score = MOEC_GROUP_BEST_TWO, .ids.n_eos = 1, .ids.eos = {2},
                 .kinds = {{.n_head = 32, .n_kv_head = 8, .head_dim = 128, .n_ff_dense = 21504}}},
    .names = {
        [MOEC_ROLE_EMBEDDING] = "backbone.embeddings.weight", [MOEC_ROLE_HEAD] = "lm_head.weight",
        [MOEC_ROLE_FINAL_NORM] = "backbone.norm_f.weight",
        [MOEC_ROLE_ATTENTION_NORM] = LAYER "norm.weight", [MOEC_ROLE_MLP_NORM] = LAYER "norm.weight",
        [MOEC_ROLE_Q] = MIXER "q_proj.weight", [MOEC_ROLE_K] = MIXER "k_proj.weight",
        [MOEC_ROLE_V] = MIXER "v_proj.weight", [MOEC_ROLE_O] = MIXER "o_proj.weight",
        [MOEC_ROLE_DENSE_UP] = MIXER "up_proj.weight", [MOEC_ROLE_DENSE_DOWN] = MIXER "down_proj.weight",
        [MOEC_ROLE_SHARED_UP] = MIXER "shared_experts.up_proj.weight",
        [MOEC_ROLE_SHARED_DOWN] = MIXER "shared_experts.down_proj.weight",
        [MOEC_ROLE_ROUTER] = MIXER "gate.weight",
        [MOEC_ROLE_ROUTER_CHOICE_BIAS] = MIXER "gate.e_score_correction_bias",
    },
    .running_names = {MOEC_NAMES_SPACE("backbone.layers.{L}.mixer.")},
    .expert_names = {
        [MOEC_PROJECTION_UP] = MIXER "experts.{E}.up_proj.weight",
        [MOEC_PROJECTION_DOWN] = MIXER "experts.{E}.down_proj.weight",
    },
};
/* clang-format on */
