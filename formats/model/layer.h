/* What one layer of a model is: its attention, how positions rotate its queries and keys, and its MLP or its
 * router and experts.
 *
 * Most layers of a model are alike, so a config (config.h) holds the few kinds that occur, and for each layer
 * a byte that selects one; moec_config_layer looks it up. What all layers of every known model share (hidden
 * size, shape and number of experts, activation) is in the config itself. Thread rule: plain data. */
#ifndef MOEC_FORMATS_LAYER_H
#define MOEC_FORMATS_LAYER_H

#include "formats/codec/codec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOEC_MAX_LAYER_KINDS 32
#define MOEC_MAX_CONVOLUTION 16 /* positions that a short convolution sees */

/* Bounds of RoPE's theta. With at least 1 no pair of a head turns by more than a radian a position, so that
 * the sine of every position's angle is accurate; with at most 1e30 every frequency is a normal F32. */
#define MOEC_MIN_ROPE_THETA 1.0
#define MOEC_MAX_ROPE_THETA 1e30

/* How a layer brings together what stands at different positions. All but attention read the past through a
 * state of constant size, which each token changes in turn ("running" layers): they keep no keys and values,
 * and can go back only to a copy of the state. */
enum moec_mixer {
    MOEC_MIXER_ATTENTION = 0,
    /* Short convolution (LFM2): out = O (c * conv(b * v)), with b, c and v products with the input, and conv
     * of each channel by itself. The state is the last conv_size - 1 rows of b * v. */
    MOEC_MIXER_CONVOLUTION = 1,
    /* Gated delta rule (arXiv 2412.06464, equation 10): queries, keys and values go through a convolution and
     * SiLU; each value head has a matrix S (head_dim, value_dim), which is the state beside the rows that the
     * convolution sees: S = a S + k (beta (v - a k S)), out = q S. n_kv_head key heads serve n_head. */
    MOEC_MIXER_DELTA = 2,
    /* Selective state space (Mamba 2, arXiv 2405.21060): the same states, S = a S + k (dt v), out = q S + D
     * v, with a = exp(-dt e^A). `n_kv_head` groups of queries and keys serve n_head; the convolution has a
     * bias, and its channels are values, keys, then queries. */
    MOEC_MIXER_SPACE = 3,
    MOEC_MIXER_NONE = 4, /* the layer is its MLP, or its router and experts, alone (Nemotron-H) */
    /* Kimi Delta Attention (arXiv 2510.26692): the gated delta rule where a is a decay for each row of S, and
     * outputs are gated by a sigmoid. Decays and gates are products of latents of head_dim floats. Queries,
     * keys and values have a convolution each. */
    MOEC_MIXER_CHANNEL_DELTA = 5,
    MOEC_MIXER_COUNT
};

/* RMS norms of queries and keys. */
enum moec_qk_norm {
    MOEC_QK_NORM_NONE = 0,
    MOEC_QK_NORM_WHOLE = 1,       /* over the whole projection, before heads are split (OLMoE) */
    MOEC_QK_NORM_HEAD = 2,        /* over each head, one weight (head_dim) for all, before rotation (Qwen3) */
    MOEC_QK_NORM_HEAD_AFTER = 3,  /* the same after rotation (HunYuan) */
    MOEC_QK_NORM_PLAIN_AFTER = 4, /* each head after rotation, without weights (Llama 4) */
    MOEC_QK_NORM_COUNT
};

/* How a longer context than the trained one changes the rotary angles. */
enum moec_rope_scaling_kind {
    MOEC_ROPE_PLAIN = 0,
    MOEC_ROPE_LINEAR = 1, /* all frequencies are divided by `factor` */
    MOEC_ROPE_YARN = 2,   /* arXiv 2309.00071: slow pairs are divided by it, fast ones are not */
    /* Only the fastest pairs turn, a part of all that is 1 / `factor`; the others have frequency 0 (Gemma 4).
     */
    MOEC_ROPE_PROPORTIONAL = 3,
    /* Angles that depend on the length of the text, which is chosen when a model is opened
     * (moec_config_choose_rope): each frequency is divided by a number of its own, of which there is one set
     * for texts within the trained context and one for longer ones (LongRoPE, arXiv 2402.13753); or the base
     * grows with what a text is longer than that (dynamic NTK). */
    MOEC_ROPE_LONG = 4,
    MOEC_ROPE_DYNAMIC = 5,
    /* Pairs that turn beta_fast times in the trained context, and more, keep their frequency; those that turn
     * beta_slow times, and less, are divided; between them it is a mean, by how often they turn (Llama 3). */
    MOEC_ROPE_LLAMA3 = 6,
    MOEC_ROPE_COUNT
};

/* In the terms of transformers' 'rope_parameters'; all zero for MOEC_ROPE_PLAIN. */
struct moec_rope_scaling {
    uint8_t kind;  /* enum moec_rope_scaling_kind */
    bool truncate; /* YaRN: the ramp's bounds are rounded outwards to whole pairs */
    double factor; /* at least 1; of LongRoPE 1 */
    /* YaRN, Llama 3: pairs that turn beta_fast times in the trained context, and more, keep their frequency;
     * those that turn beta_slow times, and less, are divided. */
    double beta_fast, beta_slow;
    double attention_factor;     /* YaRN, LongRoPE: cosines and sines are multiplied by this */
    uint32_t original_positions; /* YaRN, LongRoPE, dynamic NTK, Llama 3: the trained context */
};

struct moec_layer_kind {
    uint8_t mixer;      /* enum moec_mixer; of attention alone: all from `window` to `qk_norm` */
    bool no_mlp;        /* the layer is its mixer alone (Nemotron-H) */
    uint32_t conv_size; /* positions that a running layer's convolution sees; 0 with attention */
    uint32_t value_dim; /* floats of a value head; 0 = head_dim */
    float step_min;     /* of a state space: dt is at least this */
    /* Latent attention (MLA, DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are products of one
     * latent of latent_dim floats, which alone is kept, with a part of rotary_dim floats that all heads'
     * keys share. A query head has head_dim floats, of which the last rotary_dim are rotated, unless
     * rope_theta is 0. 0 = none. */
    uint32_t latent_dim;
    uint32_t q_latent_dim; /* queries are products of a latent of so many floats; 0 = of the hidden state */
    uint32_t n_head;       /* query heads */
    uint32_t n_kv_head;    /* key/value heads; divides n_head */
    uint32_t head_dim;     /* even where positions rotate it all */
    uint32_t
        rotary_dim; /* the first of each head that positions rotate (the last with a latent), even; 0 = all */
    uint32_t window; /* positions that a token sees, its own included; 0 = all up to its own */
    uint32_t
        chunk; /* a token sees those of its chunk of so many alone (Llama 4); 0 = not, as with a window */
    double rope_theta; /* base of the rotary angles, within the bounds above; 0 = q and k are not rotated */
    struct moec_rope_scaling rope_scaling;
    float score_scale; /* scores are multiplied by this; 0 = head_dim^-0.5 */
    float clip_qkv;    /* |q|, |k|, |v| are clamped to this; 0 = off (OLMoE) */
    bool qkv_bias;     /* biases on q, k, v (Qwen2) */
    bool o_bias;       /* a bias on the output projection */
    bool has_sinks;    /* a logit for each head joins the softmax and has no value (gpt-oss) */
    bool has_gate;     /* outputs are multiplied by sigmoid(gate . x) before the output projection (AFMoE) */
    uint8_t qk_norm;   /* enum moec_qk_norm */
    bool v_norm;       /* each head's values are divided by their root mean square (Gemma 4) */
    bool keys_are_values; /* values are the keys before norm and rotation: there is no projection of them */
    /* How attention keeps keys and values, each head's as a row (runtime/forward/attention/kv_state.h): 0 = F32. Chosen
     * by who runs the model; no file has it. */
    struct moec_codec kv;
    /* A learned vector of each position is added to the hidden state before the layer (GPTSAN). Only with
     * attention, in a decoder alone. */
    bool adds_positions;
    bool is_moe; /* router and experts instead of an MLP */
    /* A table says which experts each token of the vocabulary takes, whatever its hidden state is; the router
     * still weighs them (hash layers, arXiv 2106.04426; DeepSeek-V4). Only with experts. */
    bool routes_by_token;
    uint32_t n_ff_dense; /* neurons of the MLP; 0 with experts, and without an MLP */
};

static inline bool moec_layer_attends(const struct moec_layer_kind *kind)
{
    return kind->mixer == MOEC_MIXER_ATTENTION;
}
static inline bool moec_layer_mixes(const struct moec_layer_kind *kind)
{
    return kind->mixer != MOEC_MIXER_NONE;
}
static inline bool moec_layer_is_running(const struct moec_layer_kind *kind)
{
    return moec_layer_mixes(kind) && !moec_layer_attends(kind);
}

/* Whether a layer's state is a matrix for each value head, which keys write and queries read. */
static inline bool moec_layer_has_matrices(const struct moec_layer_kind *kind)
{
    return moec_layer_is_running(kind) && kind->mixer != MOEC_MIXER_CONVOLUTION;
}
static inline bool moec_layer_is_delta(const struct moec_layer_kind *kind)
{
    return kind->mixer == MOEC_MIXER_DELTA || kind->mixer == MOEC_MIXER_CHANNEL_DELTA;
}

/* Floats of a value head, and of all that enters the output projection. */
static inline uint32_t moec_layer_value_dim(const struct moec_layer_kind *kind)
{
    return kind->value_dim > 0 ? kind->value_dim : kind->head_dim;
}
static inline uint32_t moec_layer_out_dim(const struct moec_layer_kind *kind)
{
    return kind->n_head * moec_layer_value_dim(kind);
}

/* Rows of the projections of queries and of values. */
static inline uint32_t moec_layer_q_rows(const struct moec_layer_kind *kind)
{
    return (moec_layer_has_matrices(kind) ? kind->n_kv_head : kind->n_head) * kind->head_dim;
}
static inline uint32_t moec_layer_v_rows(const struct moec_layer_kind *kind)
{
    return moec_layer_is_running(kind) ? moec_layer_out_dim(kind) : kind->n_kv_head * kind->head_dim;
}

/* Channels of a running layer's convolution: of the delta rule queries, keys, then values. */
static inline uint32_t moec_layer_channels(const struct moec_layer_kind *kind)
{
    const uint32_t keys = moec_layer_has_matrices(kind) ? 2 * kind->n_kv_head * kind->head_dim : 0;
    return keys + moec_layer_out_dim(kind);
}

/* Decays of a token: one for each value head, or for each row of their states. */
static inline uint32_t moec_layer_decays(const struct moec_layer_kind *kind)
{
    return kind->mixer == MOEC_MIXER_CHANNEL_DELTA ? moec_layer_q_rows(kind) : kind->n_head;
}

/* Columns of the projections of decays and of gates of outputs, given the hidden size. */
static inline uint32_t moec_layer_gate_columns(const struct moec_layer_kind *kind, uint32_t n_embd)
{
    return kind->mixer == MOEC_MIXER_CHANNEL_DELTA ? kind->head_dim : n_embd;
}

/* Weights of the norm of what states give: of each head, or of all of them. */
static inline uint32_t moec_layer_state_norm(const struct moec_layer_kind *kind)
{
    return kind->mixer == MOEC_MIXER_SPACE ? moec_layer_out_dim(kind) : moec_layer_value_dim(kind);
}

/* Columns of the projection of queries, given the hidden size. */
static inline uint32_t moec_layer_q_columns(const struct moec_layer_kind *kind, uint32_t n_embd)
{
    return kind->q_latent_dim > 0 ? kind->q_latent_dim : n_embd;
}

/* Floats of a head of queries and keys that enter a score, and of a head of what scores weigh. With a latent:
 * latent and rotated part, and the latent. */
static inline uint32_t moec_layer_score_dim(const struct moec_layer_kind *kind)
{
    return kind->latent_dim > 0 ? kind->latent_dim + kind->rotary_dim : kind->head_dim;
}
static inline uint32_t moec_layer_weighed_dim(const struct moec_layer_kind *kind)
{
    return kind->latent_dim > 0 ? kind->latent_dim : kind->head_dim;
}

/* Floats of one position's queries, and of its keys; and whether it has as many of values, which with a
 * latent begin where keys do. */
static inline size_t moec_layer_q_dim(const struct moec_layer_kind *kind)
{
    return (size_t)kind->n_head * moec_layer_score_dim(kind);
}
static inline size_t moec_layer_kv_dim(const struct moec_layer_kind *kind)
{
    return (size_t)kind->n_kv_head * moec_layer_score_dim(kind);
}
static inline bool moec_layer_has_values(const struct moec_layer_kind *kind)
{
    return kind->latent_dim == 0;
}

/* Whether keys and values are kept otherwise than they are made. */
static inline bool moec_layer_rounds_kv(const struct moec_layer_kind *kind)
{
    return kind->kv.dtype != MOEC_DTYPE_F32;
}

/* Bytes of a head's keys where they are kept. */
static inline size_t moec_layer_kv_head_bytes(const struct moec_layer_kind *kind)
{
    return moec_codec_row_bytes(kind->kv, moec_layer_score_dim(kind));
}

/* The floats' worth of memory that a position's keys take where they are kept; values as much. */
static inline size_t moec_layer_kv_room(const struct moec_layer_kind *kind)
{
    const size_t n_bytes = kind->n_kv_head * moec_layer_kv_head_bytes(kind);
    return (n_bytes + sizeof(float) - 1) / sizeof(float);
}

/* With a latent: floats of a query head that positions do not rotate, and rows of the matrix that makes keys
 * and values of it, head by head keys then values. */
static inline uint32_t moec_layer_plain_dim(const struct moec_layer_kind *kind)
{
    return kind->head_dim - kind->rotary_dim;
}
static inline uint32_t moec_layer_kv_up_rows(const struct moec_layer_kind *kind)
{
    return kind->n_head * (moec_layer_plain_dim(kind) + moec_layer_value_dim(kind));
}

/* Floats of a norm's weight for queries, and for keys. */
static inline uint32_t moec_layer_norm_dim(const struct moec_layer_kind *kind, uint32_t n_head)
{
    return kind->qk_norm == MOEC_QK_NORM_WHOLE ? n_head * kind->head_dim : kind->head_dim;
}

/* What positions rotate of each head. */
static inline uint32_t moec_layer_rotary_dim(const struct moec_layer_kind *kind)
{
    return kind->rotary_dim > 0 ? kind->rotary_dim : kind->head_dim;
}

/* Whether two kinds are equal: in their rotary angles, in their attention, in everything. */
bool moec_layer_same_rope(const struct moec_layer_kind *a, const struct moec_layer_kind *b);
bool moec_layer_same_attention(const struct moec_layer_kind *a, const struct moec_layer_kind *b);
bool moec_layer_same(const struct moec_layer_kind *a, const struct moec_layer_kind *b);

#endif
