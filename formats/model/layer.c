/* Two layers share a kind only if all fields are equal but kv, which no file has. A field that is added to
 * struct moec_layer_kind must be compared here, or layers that differ in it merge. */
#include "formats/model/layer.h"

static bool same_scaling(const struct moec_rope_scaling *a, const struct moec_rope_scaling *b)
{
    return a->kind == b->kind && a->truncate == b->truncate && a->factor == b->factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor && a->original_positions == b->original_positions;
}

bool moec_layer_same_rope(const struct moec_layer_kind *a, const struct moec_layer_kind *b)
{
    return a->rope_theta == b->rope_theta &&
           (a->rope_theta == 0 || (moec_layer_rotary_dim(a) == moec_layer_rotary_dim(b) &&
                                   same_scaling(&a->rope_scaling, &b->rope_scaling)));
}

bool moec_layer_same_attention(const struct moec_layer_kind *a, const struct moec_layer_kind *b)
{
    return a->mixer == b->mixer && a->no_mlp == b->no_mlp && a->conv_size == b->conv_size &&
           a->value_dim == b->value_dim && a->step_min == b->step_min && a->latent_dim == b->latent_dim &&
           a->q_latent_dim == b->q_latent_dim && a->n_head == b->n_head && a->n_kv_head == b->n_kv_head &&
           a->head_dim == b->head_dim && a->window == b->window && a->chunk == b->chunk &&
           a->rope_theta == b->rope_theta && a->clip_qkv == b->clip_qkv && a->qkv_bias == b->qkv_bias &&
           a->qk_norm == b->qk_norm && a->rotary_dim == b->rotary_dim &&
           same_scaling(&a->rope_scaling, &b->rope_scaling) && a->score_scale == b->score_scale &&
           a->v_norm == b->v_norm && a->keys_are_values == b->keys_are_values && a->o_bias == b->o_bias &&
           a->has_sinks == b->has_sinks && a->has_gate == b->has_gate;
}

bool moec_layer_same(const struct moec_layer_kind *a, const struct moec_layer_kind *b)
{
    return moec_layer_same_attention(a, b) && a->is_moe == b->is_moe &&
           a->routes_by_token == b->routes_by_token && a->adds_positions == b->adds_positions &&
           a->n_ff_dense == b->n_ff_dense;
}
