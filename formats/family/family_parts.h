/* What families have in common: names of tensors, and fields of config.json that several of them read and
 * write alike (internal to formats/family). A family is a file family_NAME.c with a row of this kind, and
 * a line of the list in family.c.
 *
 * Readers fill kinds[0] as a template of every layer; moec_family_place_layers makes the layers of it last.
 * `where` names the file in messages. Thread rule: pure functions and constant data. */
#ifndef MOEC_FORMATS_FAMILY_PARTS_H
#define MOEC_FORMATS_FAMILY_PARTS_H

#include "formats/family/family.h"

extern const struct moec_family moec_family_qwen2_moe, moec_family_qwen3_moe, moec_family_olmoe,
    moec_family_flex_olmo, moec_family_mixtral, moec_family_switch, moec_family_deepseek, moec_family_dots1,
    moec_family_glm4_moe, moec_family_ernie4_5_moe, moec_family_hunyuan_v1_moe, moec_family_minimax_m2,
    moec_family_granitemoe, moec_family_granitemoeshared, moec_family_minicpm, moec_family_exaone_moe,
    moec_family_afmoe, moec_family_lfm2_moe, moec_family_qwen3_next, moec_family_qwen3_5_moe,
    moec_family_gpt_oss, moec_family_gemma4, moec_family_granitemoehybrid, moec_family_deepseek_v2,
    moec_family_deepseek_v3, moec_family_glm4_moe_lite, moec_family_phimoe, moec_family_mistral4,
    moec_family_hash_moe, moec_family_nemotron_h, moec_family_kimi_linear, moec_family_gptsan,
    moec_family_longcat_flash, moec_family_llama4;

/* ---- names of tensors ---- */

#define MOEC_LAYER_NAME "model.layers.{L}."

/* Embedding, head, attention, and norms before attention and MLP. */
#define MOEC_NAMES_ATTENTION                                                                                 \
    [MOEC_ROLE_EMBEDDING] = "model.embed_tokens.weight", [MOEC_ROLE_HEAD] = "lm_head.weight",                \
    [MOEC_ROLE_FINAL_NORM] = "model.norm.weight", [MOEC_ROLE_Q] = MOEC_LAYER_NAME "self_attn.q_proj.weight", \
    [MOEC_ROLE_K] = MOEC_LAYER_NAME "self_attn.k_proj.weight",                                               \
    [MOEC_ROLE_V] = MOEC_LAYER_NAME "self_attn.v_proj.weight",                                               \
    [MOEC_ROLE_O] = MOEC_LAYER_NAME "self_attn.o_proj.weight",                                               \
    [MOEC_ROLE_Q_BIAS] = MOEC_LAYER_NAME "self_attn.q_proj.bias",                                            \
    [MOEC_ROLE_K_BIAS] = MOEC_LAYER_NAME "self_attn.k_proj.bias",                                            \
    [MOEC_ROLE_V_BIAS] = MOEC_LAYER_NAME "self_attn.v_proj.bias",                                            \
    [MOEC_ROLE_O_BIAS] = MOEC_LAYER_NAME "self_attn.o_proj.bias"

#define MOEC_NAMES_NORMS                                                                                     \
    [MOEC_ROLE_ATTENTION_NORM] = MOEC_LAYER_NAME "input_layernorm.weight", [MOEC_ROLE_MLP_NORM] =            \
                                                                               MOEC_LAYER_NAME               \
                                                                           "post_attention_layernorm.weight"

#define MOEC_NAMES_QK_NORM                                                                                   \
    [MOEC_ROLE_Q_NORM] = MOEC_LAYER_NAME "self_attn.q_norm.weight", [MOEC_ROLE_K_NORM] = MOEC_LAYER_NAME     \
                                                                    "self_attn.k_norm.weight"

/* The MLP of a layer without experts. */
#define MOEC_NAMES_DENSE                                                                                     \
    [MOEC_ROLE_DENSE_UP] = MOEC_LAYER_NAME "mlp.up_proj.weight",                                             \
    [MOEC_ROLE_DENSE_GATE] = MOEC_LAYER_NAME "mlp.gate_proj.weight",                                         \
    [MOEC_ROLE_DENSE_DOWN] = MOEC_LAYER_NAME "mlp.down_proj.weight"

/* `name`: of the shared expert's module in the layer. */
#define MOEC_NAMES_SHARED(name)                                                                              \
    [MOEC_ROLE_SHARED_UP] = MOEC_LAYER_NAME name ".up_proj.weight",                                          \
    [MOEC_ROLE_SHARED_GATE] = MOEC_LAYER_NAME name ".gate_proj.weight",                                      \
    [MOEC_ROLE_SHARED_DOWN] = MOEC_LAYER_NAME name ".down_proj.weight"

/* A state space (Mamba 2); `name`: of its module, with a dot. */
#define MOEC_NAMES_SPACE(name)                                                                               \
    [MOEC_ROLE_Q] = name "in_proj.weight", [MOEC_ROLE_K] = name "in_proj.weight",                            \
    [MOEC_ROLE_V] = name "in_proj.weight", [MOEC_ROLE_OUTPUT_GATE] = name "in_proj.weight",                  \
    [MOEC_ROLE_DELTA_DECAY] = name "in_proj.weight", [MOEC_ROLE_O] = name "out_proj.weight",                 \
    [MOEC_ROLE_CONVOLUTION] = name "conv1d.weight", [MOEC_ROLE_CONVOLUTION_BIAS] = name "conv1d.bias",       \
    [MOEC_ROLE_DELTA_DECAY_LOG] = name "A_log", [MOEC_ROLE_DELTA_DECAY_BIAS] = name "dt_bias",               \
    [MOEC_ROLE_SPACE_SKIP] = name "D", [MOEC_ROLE_DELTA_NORM] = name "norm.weight"

/* `name`: of the list of experts in the layer. */
#define MOEC_NAMES_EXPERTS(name, gate, up, down)                                                             \
    [MOEC_PROJECTION_GATE] = MOEC_LAYER_NAME name ".{E}." gate ".weight",                                    \
    [MOEC_PROJECTION_UP] = MOEC_LAYER_NAME name ".{E}." up ".weight",                                        \
    [MOEC_PROJECTION_DOWN] = MOEC_LAYER_NAME name ".{E}." down ".weight"

/* All experts of a layer in two tensors, (experts, gate then up, inputs) and (experts, outputs, neurons), as
 * transformers 5 holds them in memory and writes them when asked not to keep the original format. */
#define MOEC_STACKED_EXPERTS(name)                                                                           \
    {                                                                                                        \
        .names = {[MOEC_PROJECTION_GATE] = MOEC_LAYER_NAME name ".gate_up_proj",                             \
                  [MOEC_PROJECTION_UP] = MOEC_LAYER_NAME name ".gate_up_proj",                               \
                  [MOEC_PROJECTION_DOWN] = MOEC_LAYER_NAME name ".down_proj"},                               \
        .layouts = {                                                                                         \
            [MOEC_PROJECTION_GATE] = {.is_stacked = true, .n_part = 2},                                      \
            [MOEC_PROJECTION_UP] = {.is_stacked = true, .n_part = 2, .part = 1},                             \
            [MOEC_PROJECTION_DOWN] = {.is_stacked = true}                                                    \
        }                                                                                                    \
    }

/* Experts of separate tensors with the usual names, or stacked. */
#define MOEC_USUAL_EXPERTS                                                                                   \
    .expert_names = {MOEC_NAMES_EXPERTS("mlp.experts", "gate_proj", "up_proj", "down_proj")},                \
    .other_experts = {MOEC_STACKED_EXPERTS("mlp.experts")}

/* ---- common fields ---- */

/* Fields that all families but those with has_own_fields name alike: sizes, heads, rope, norm epsilon. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_common(const struct moec_json *root, const char *where,
                                                          const struct moec_family *family,
                                                          struct moec_config *config, struct moec_error *err);
void moec_family_put_common(const struct moec_config *config, struct moec_json_out *root);

/* RoPE: `rope_theta`, `rope_scaling` and `partial_rotary_factor` of transformers 4, `rope_parameters` of 5.
 * Types 'default', 'linear', 'yarn', 'longrope' and 'dynamic', which with an 'alpha' is another theta. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_rope(const struct moec_json *root, const char *where,
                                                        const struct moec_family *family,
                                                        struct moec_config *config, struct moec_error *err);
void moec_family_put_rope(const struct moec_config *config, struct moec_json_out *root);

/* YaRN's 'mscale_all_dim', by which latent attention scales scores too: score_scale of a kind whose heads
 * have their size. moec_family_put_rope writes it back. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_mscale(const struct moec_json *root, const char *where,
                                                          struct moec_config *config, struct moec_error *err);

/* The first of `keys` (ended by NULL) that is present; *out is kept where none is. */
MOEC_WARN_UNUSED enum moec_status moec_family_update_any(const struct moec_json *root, const char *where,
                                                         const char *const *keys, uint32_t max, uint32_t *out,
                                                         struct moec_error *err);

/* MOEC_ERR_UNSUPPORTED where the steps of state spaces are clamped by 'time_step_limit'. */
MOEC_WARN_UNUSED enum moec_status moec_family_check_step_limit(const struct moec_json *root,
                                                               const char *where, struct moec_error *err);

/* MOEC_ERR_UNSUPPORTED, naming key and reason, where a flag is true. */
MOEC_WARN_UNUSED enum moec_status moec_family_refuse_flag(const struct moec_json *root, const char *where,
                                                          const char *key, const char *needed,
                                                          struct moec_error *err);

/* Families whose transformers code derives the head dimension from the hidden size. */
MOEC_WARN_UNUSED enum moec_status
moec_family_check_head_dim(const char *where, const struct moec_config *config, struct moec_error *err);

/* `attention_bias`: biases on q, k, v, and o where `has_o`. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_bias(const struct moec_json *root, const char *where,
                                                        bool has_o, struct moec_config *config,
                                                        struct moec_error *err);
void moec_family_put_bias(const struct moec_config *config, struct moec_json_out *root);

/* A positive factor, which is 0 in a config where it is 1. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_factor(const struct moec_json *root, const char *where,
                                                          const char *key, double assumed, float *out,
                                                          struct moec_error *err);
void moec_family_put_factor(struct moec_json_out *root, const char *key, float value);

/* Experts, capacity and bias of the routers that transformers has for Switch and GPTSAN. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_capacity(const struct moec_json *root, const char *where,
                                                            struct moec_config *config,
                                                            struct moec_error *err);

/* ---- layers ---- */

struct moec_family_layers {
    uint32_t n_dense; /* the class's default of how many layers come before those with experts */
    uint8_t is_moe[MOEC_MAX_LAYERS];
    uint8_t routes_by_token[MOEC_MAX_LAYERS];
    uint8_t has_window[MOEC_MAX_LAYERS];
    uint32_t window;             /* of those that have one */
    bool rotates_in_window_only; /* layers without a window have no RoPE */
    uint8_t is_running[MOEC_MAX_LAYERS];
    struct moec_layer_kind running; /* what running layers are like before they are placed */
};

/* All layers have experts but the first ones, as many as `key` says. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_first_dense(const struct moec_json *root,
                                                               const char *where, const char *key,
                                                               struct moec_config *config,
                                                               struct moec_family_layers *layers,
                                                               struct moec_error *err);
/* `mlp_layer_types`: which layers are 'sparse', with experts, and which 'dense'; without it the first ones
 * are dense, as many as `first_k_dense_replace` says. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_mlp_types(const struct moec_json *root, const char *where,
                                                             struct moec_config *config,
                                                             struct moec_family_layers *layers,
                                                             struct moec_error *err);
void moec_family_put_mlp_types(const struct moec_config *config, struct moec_json_out *root);

/* `intermediate_size`: neurons of the MLPs of layers without experts, where there are such. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_dense_size(const struct moec_json *root, const char *where,
                                                              struct moec_config *config,
                                                              const struct moec_family_layers *layers,
                                                              struct moec_error *err);
void moec_family_put_first_dense(const struct moec_config *config, const char *key,
                                 struct moec_json_out *root);

/* `layer_types`: which layers are 'sliding_attention', which 'full_attention', and which 'conv' or
 * 'linear_attention', where layers->running is of that kind. `has_window` and `is_running` are kept where
 * config.json has no such list. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_layer_types(const struct moec_json *root,
                                                               const char *where,
                                                               const struct moec_config *config,
                                                               struct moec_family_layers *layers,
                                                               struct moec_error *err);
/* `layer_types`, and `sliding_window` without running layers. */
void moec_family_put_layer_types(const struct moec_config *config, struct moec_json_out *root);

/* Makes the layers of the template. */
MOEC_WARN_UNUSED enum moec_status moec_family_place_layers(struct moec_config *config,
                                                           const struct moec_family_layers *layers,
                                                           const char *where, struct moec_error *err);

/* ---- latent attention ---- */

/* Sizes of latents and heads: 'q_lora_rank', 'kv_lora_rank', 'v_head_dim', 'qk_nope_head_dim' and
 * 'qk_rope_head_dim'. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_latent(const struct moec_json *root, const char *where,
                                                          struct moec_config *config, struct moec_error *err);
void moec_family_put_latent(const struct moec_config *config, struct moec_json_out *root);

/* ---- state spaces ---- */

/* How a layer with a state space holds its tensors: in_proj has the gate, what is convolved, then dt of each
 * head. Zero for other tensors and layers. */
struct moec_tensor_layout moec_family_space_layout(const struct moec_config *config, enum moec_role role,
                                                   uint32_t layer);

/* ---- routers ---- */

/* What DeepSeek's and its relatives' config.json calls routed and shared experts. */
struct moec_family_routed_keys {
    const char *n_expert, *n_shared;
    uint32_t n_shared_default;
    const char *scale; /* NULL without one */
    double scale_default;
    bool has_norm, has_groups;  /* 'norm_topk_prob'; 'n_group' and 'topk_group' */
    const char *norm, *n_group; /* names in place of the first two; NULL: these */
};

/* Those of the families whose class assumes one shared expert and a scale of 1: GLM-4 MoE, Mistral 4. */
extern const struct moec_family_routed_keys moec_family_usual_keys;

/* Numbers of experts, `moe_intermediate_size`, `norm_topk_prob`, the scale of weights, groups. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_routed(const struct moec_json *root, const char *where,
                                                          const struct moec_family_routed_keys *keys,
                                                          struct moec_config *config, struct moec_error *err);
void moec_family_put_routed(const struct moec_config *config, const struct moec_family_routed_keys *keys,
                            struct moec_json_out *root);

/* ---- Qwen ---- */

/* `num_experts`, `moe_intermediate_size`, `norm_topk_prob`. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_qwen_experts(const struct moec_json *root,
                                                                const char *where, struct moec_config *config,
                                                                struct moec_error *err);
/* `decoder_sparse_step` and `mlp_only_layers`: which layers have experts. */
MOEC_WARN_UNUSED enum moec_status
moec_family_read_sparse_layers(const struct moec_json *root, const char *where, struct moec_config *config,
                               struct moec_family_layers *layers, struct moec_error *err);
/* Both. */
void moec_family_put_qwen_experts(const struct moec_config *config, struct moec_json_out *root);

#endif
