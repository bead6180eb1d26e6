/* What one layer of a model is: its attention, how positions rotate its queries and keys, and its MLP or its
 * router and experts.
 *
 * Most layers of a model are alike, so a config (config.h) holds the few kinds that occur, and for each layer
 * a byte that selects one; moec_config_layer looks it up. What all layers of every known model share (hidden
 * size, shape and number of experts, activation) is in the config itself. Thread rule: plain data. */
#ifndef MOEC_FORMATS_LAYER_H
#define MOEC_FORMATS_LAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOEC_MAX_LAYER_KINDS 32

/* Bounds of RoPE's theta. With at least 1 no pair of a head turns by more than a radian a position, so that
 * the sine of every position's angle is accurate; with at most 1e30 every frequency is a normal F32. */
#define MOEC_MIN_ROPE_THETA 1.0
#define MOEC_MAX_ROPE_THETA 1e30

struct moec_layer_kind {
    uint32_t n_head;     /* query heads */
    uint32_t n_kv_head;  /* key/value heads; divides n_head */
    uint32_t head_dim;   /* even where positions rotate it */
    uint32_t window;     /* positions that a token sees, its own included; 0 = all up to its own */
    double rope_theta;   /* base of the rotary angles, within the bounds above; 0 = q and k are not rotated */
    float clip_qkv;      /* |q|, |k|, |v| are clamped to this; 0 = off (OLMoE) */
    bool qkv_bias;       /* biases on q, k, v (Qwen2) */
    bool qk_norm;        /* RMS norm over the whole q and k projections before heads are split (OLMoE) */
    bool is_moe;         /* router and experts instead of an MLP */
    uint32_t n_ff_dense; /* neurons of the MLP; 0 with experts */
};

/* Floats of one position's queries, and of its keys (as many as of its values). */
static inline size_t moec_layer_q_dim(const struct moec_layer_kind *kind)
{
    return (size_t)kind->n_head * kind->head_dim;
}
static inline size_t moec_layer_kv_dim(const struct moec_layer_kind *kind)
{
    return (size_t)kind->n_kv_head * kind->head_dim;
}

/* Whether two kinds are equal: in their rotary angles, in their attention, in everything. */
bool moec_layer_same_rope(const struct moec_layer_kind *a, const struct moec_layer_kind *b);
bool moec_layer_same_attention(const struct moec_layer_kind *a, const struct moec_layer_kind *b);
bool moec_layer_same(const struct moec_layer_kind *a, const struct moec_layer_kind *b);

#endif
