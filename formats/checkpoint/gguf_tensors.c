/* Names and layouts of tensors in GGUF files. */
#include "formats/checkpoint/gguf_tensors.h"

#include "formats/checkpoint/gguf_model.h"

#include <string.h>

/* clang-format off */
static const char *const names[MOEC_ROLE_COUNT] = {
    [MOEC_ROLE_EMBEDDING] = "token_embd.weight",
    [MOEC_ROLE_HEAD] = "output.weight",
    [MOEC_ROLE_FINAL_NORM] = "output_norm.weight",
    [MOEC_ROLE_ATTENTION_NORM] = "blk.{L}.attn_norm.weight",
    [MOEC_ROLE_Q] = "blk.{L}.attn_q.weight",
    [MOEC_ROLE_K] = "blk.{L}.attn_k.weight",
    [MOEC_ROLE_V] = "blk.{L}.attn_v.weight",
    [MOEC_ROLE_O] = "blk.{L}.attn_output.weight",
    [MOEC_ROLE_Q_BIAS] = "blk.{L}.attn_q.bias",
    [MOEC_ROLE_K_BIAS] = "blk.{L}.attn_k.bias",
    [MOEC_ROLE_V_BIAS] = "blk.{L}.attn_v.bias",
    [MOEC_ROLE_O_BIAS] = "blk.{L}.attn_output.bias",
    [MOEC_ROLE_OUTPUT_GATE] = "blk.{L}.attn_gate.weight",
    [MOEC_ROLE_Q_NORM] = "blk.{L}.attn_q_norm.weight",
    [MOEC_ROLE_K_NORM] = "blk.{L}.attn_k_norm.weight",
    [MOEC_ROLE_MLP_NORM] = "blk.{L}.ffn_norm.weight",
    [MOEC_ROLE_ATTENTION_POST_NORM] = "blk.{L}.post_attention_norm.weight",
    [MOEC_ROLE_MLP_POST_NORM] = "blk.{L}.post_ffw_norm.weight",
    [MOEC_ROLE_ROUTER] = "blk.{L}.ffn_gate_inp.weight",
    [MOEC_ROLE_ROUTER_BIAS] = "blk.{L}.ffn_gate_inp.bias",
    [MOEC_ROLE_ROUTER_CHOICE_BIAS] = "blk.{L}.exp_probs_b.bias",
    [MOEC_ROLE_DELTA_RATE] = "blk.{L}.ssm_ba.weight",
    [MOEC_ROLE_DELTA_DECAY] = "blk.{L}.ssm_ba.weight",
    [MOEC_ROLE_DELTA_DECAY_LOG] = "blk.{L}.ssm_a",
    [MOEC_ROLE_DELTA_DECAY_BIAS] = "blk.{L}.ssm_dt.bias",
    [MOEC_ROLE_DELTA_NORM] = "blk.{L}.ssm_norm.weight",
    [MOEC_ROLE_EXPERT_GATE_BIAS] = "blk.{L}.ffn_gate_exps.bias",
    [MOEC_ROLE_EXPERT_UP_BIAS] = "blk.{L}.ffn_up_exps.bias",
    [MOEC_ROLE_EXPERT_DOWN_BIAS] = "blk.{L}.ffn_down_exps.bias",
    [MOEC_ROLE_SINKS] = "blk.{L}.attn_sinks.weight",
    [MOEC_ROLE_SHARED_EXPERT_GATE] = "blk.{L}.ffn_gate_inp_shexp.weight",
    [MOEC_ROLE_SHARED_UP] = "blk.{L}.ffn_up_shexp.weight",
    [MOEC_ROLE_SHARED_GATE] = "blk.{L}.ffn_gate_shexp.weight",
    [MOEC_ROLE_SHARED_DOWN] = "blk.{L}.ffn_down_shexp.weight",
    [MOEC_ROLE_DENSE_UP] = "blk.{L}.ffn_up.weight",
    [MOEC_ROLE_DENSE_GATE] = "blk.{L}.ffn_gate.weight",
    [MOEC_ROLE_DENSE_DOWN] = "blk.{L}.ffn_down.weight",
};

/* All experts of a layer stacked, as converters have written them since April 2024; then gate and up in one
 * tensor; then each expert alone, as older files have them. */
static const struct moec_family_experts experts[] = {
    {.names = {[MOEC_PROJECTION_GATE] = "blk.{L}.ffn_gate_exps.weight",
               [MOEC_PROJECTION_UP] = "blk.{L}.ffn_up_exps.weight",
               [MOEC_PROJECTION_DOWN] = "blk.{L}.ffn_down_exps.weight"},
     .layouts = {[MOEC_PROJECTION_GATE] = {.is_stacked = true}, [MOEC_PROJECTION_UP] = {.is_stacked = true},
                 [MOEC_PROJECTION_DOWN] = {.is_stacked = true}}},
    {.names = {[MOEC_PROJECTION_GATE] = "blk.{L}.ffn_gate_up_exps.weight",
               [MOEC_PROJECTION_UP] = "blk.{L}.ffn_gate_up_exps.weight",
               [MOEC_PROJECTION_DOWN] = "blk.{L}.ffn_down_exps.weight"},
     .layouts = {[MOEC_PROJECTION_GATE] = {.is_stacked = true, .n_part = 2},
                 [MOEC_PROJECTION_UP] = {.is_stacked = true, .n_part = 2, .part = 1},
                 [MOEC_PROJECTION_DOWN] = {.is_stacked = true}}},
    {.names = {[MOEC_PROJECTION_GATE] = "blk.{L}.ffn_gate.{E}.weight",
               [MOEC_PROJECTION_UP] = "blk.{L}.ffn_up.{E}.weight",
               [MOEC_PROJECTION_DOWN] = "blk.{L}.ffn_down.{E}.weight"}},
};
/* clang-format on */

/* Queries, keys and values of all heads in one tensor, one after the other (the converter's --fuse-qkv). */
static struct moec_tensor_layout layout_fused(const struct moec_config *config, enum moec_role role,
                                              uint32_t layer)
{
    const struct moec_layer_kind *kind = layer == MOEC_LAYER_NONE ? NULL : moec_config_layer(config, layer);
    struct moec_tensor_layout layout = {0};
    if (kind == NULL)
        return layout;
    const uint32_t n_q = kind->n_head * kind->head_dim, n_kv = kind->n_kv_head * kind->head_dim;
    const struct {
        enum moec_role weight, bias;
        uint32_t first, n;
    } parts[] = {{MOEC_ROLE_Q, MOEC_ROLE_Q_BIAS, 0, n_q},
                 {MOEC_ROLE_K, MOEC_ROLE_K_BIAS, n_q, n_kv},
                 {MOEC_ROLE_V, MOEC_ROLE_V_BIAS, n_q + n_kv, n_kv}};
    for (size_t i = 0; i < 3; i++)
        if (role == parts[i].weight || role == parts[i].bias)
            layout = (struct moec_tensor_layout){
                .block_rows = parts[i].n, .block_first = parts[i].first, .block_step = n_q + 2 * n_kv};
    return layout;
}

static struct moec_tensor_layout layout_fused_pairs(const struct moec_config *config, enum moec_role role,
                                                    uint32_t layer)
{
    struct moec_tensor_layout layout = layout_fused(config, role, layer);
    layout.has_pairs =
        role == MOEC_ROLE_Q || role == MOEC_ROLE_K || role == MOEC_ROLE_Q_BIAS || role == MOEC_ROLE_K_BIAS;
    return layout;
}

/* Where the first layer has such a tensor, all have. */
static void fuse_names(const struct moec_tensor_source *source, bool has_pairs, struct moec_family *family)
{
    static const enum moec_role weights[] = {MOEC_ROLE_Q, MOEC_ROLE_K, MOEC_ROLE_V},
                                biases[] = {MOEC_ROLE_Q_BIAS, MOEC_ROLE_K_BIAS, MOEC_ROLE_V_BIAS};
    struct moec_tensor tensor;
    if (family->layout_of != NULL || !source->find(source, "blk.0.attn_qkv.weight", &tensor))
        return;
    for (size_t i = 0; i < 3; i++) {
        family->names[weights[i]] = "blk.{L}.attn_qkv.weight";
        family->names[biases[i]] = "blk.{L}.attn_qkv.bias";
    }
    family->layout_of = has_pairs ? layout_fused_pairs : layout_fused;
}

void moec_gguf_model_names(const struct moec_tensor_source *source, struct moec_family *family)
{
    static const enum moec_role paired[] = {MOEC_ROLE_Q, MOEC_ROLE_K, MOEC_ROLE_Q_BIAS, MOEC_ROLE_K_BIAS};
    const struct moec_gguf_tensors *own = moec_gguf_tensors_of(moec_gguf_source_header(source));
    const struct moec_tensor_layout plain = {0};
    memcpy(family->names, names, sizeof names);
    memset(family->other_names, 0, sizeof family->other_names);
    for (size_t role = 0; role < MOEC_ROLE_COUNT; role++)
        family->layouts[role] = plain;
    memset(family->running_names, 0, sizeof family->running_names);
    family->layout_of = NULL;
    if (family->direct_q_name != NULL)
        family->direct_q_name = names[MOEC_ROLE_Q];
    if (own != NULL) {
        for (size_t i = 0; i < sizeof paired / sizeof *paired; i++)
            family->layouts[paired[i]].has_pairs = own->has_pairs;
        for (const struct moec_gguf_tensor_name *named = own->names; named->name != NULL; named++)
            (named->is_running ? family->running_names : family->names)[named->role] = named->name;
        family->layout_of = own->layout_of;
        fuse_names(source, own->has_pairs, family);
    }
    memcpy(family->expert_names, experts[0].names, sizeof family->expert_names);
    memcpy(family->expert_layouts, experts[0].layouts, sizeof family->expert_layouts);
    memset(family->other_experts, 0, sizeof family->other_experts);
    memcpy(family->other_experts, experts + 1, sizeof experts - sizeof *experts);
    family->embedding_copies = NULL;
}
