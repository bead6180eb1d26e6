#include "formats/model/layer.h"

bool moec_layer_same_rope(const struct moec_layer_kind *a, const struct moec_layer_kind *b)
{
    return a->rope_theta == b->rope_theta && (a->rope_theta == 0 || a->head_dim == b->head_dim);
}

bool moec_layer_same_attention(const struct moec_layer_kind *a, const struct moec_layer_kind *b)
{
    return a->n_head == b->n_head && a->n_kv_head == b->n_kv_head && a->head_dim == b->head_dim &&
           a->window == b->window && a->rope_theta == b->rope_theta && a->clip_qkv == b->clip_qkv &&
           a->qkv_bias == b->qkv_bias && a->qk_norm == b->qk_norm;
}

bool moec_layer_same(const struct moec_layer_kind *a, const struct moec_layer_kind *b)
{
    return moec_layer_same_attention(a, b) && a->is_moe == b->is_moe && a->n_ff_dense == b->n_ff_dense;
}
