/* The family-independent description of a model: numbers and feature flags that the engine executes.
 *
 * An encoder-decoder model is one row of layers: the encoder's blocks are layers 0 .. n_encoder_layer - 1,
 * the decoder's follow. So tables, records, profiles, assignments and caches need no second index, and which
 * stack a layer belongs to follows from its number. Code that counts MoE layers in the order in which a token
 * passes them (paths, next-layer gates, eviction distance) counts within one stack.
 *
 * formats/family/family.c fills it from a checkpoint's config.json; a bundle carries it as a binary
 * section. The runtime knows features (QKV bias, q/k norm, shared expert, ...) and never a family's name.
 * After moec_config_check every field is within the limits below and code may trust it. Thread rule: plain
 * data, immutable after checking. */
#ifndef MOEC_FORMATS_CONFIG_H
#define MOEC_FORMATS_CONFIG_H

#include "formats/base/error.h"
#include "formats/codec/codec.h"
#include "formats/model/layer.h"

#define MOEC_MAX_LAYERS     1024
#define MOEC_MAX_EXPERTS    4096
#define MOEC_MAX_TOP_K      64
#define MOEC_MAX_DIMENSION  (1u << 20) /* hidden, head, inner sizes */
#define MOEC_MAX_VOCABULARY (1u << 24)
#define MOEC_MAX_POSITIONS  (1u << 24)
#define MOEC_MAX_EOS        16
#define MOEC_MAX_BUCKETS    4096       /* of relative positions */
#define MOEC_MAX_BIASES     (1u << 22) /* heads x max_distance */
#define MOEC_MAX_DISTANCE   (1u << 16) /* the largest that buckets tell apart */
#define MOEC_MAX_FACTORS    256        /* pairs of a head that LongRoPE has factors for */

/* What an MLP computes for a neuron: activation(gate . x) * (up . x); without a gate, activation(up . x).
 * With biases of experts, gate . x and up . x include theirs. */
enum moec_activation {
    MOEC_ACTIVATION_SILU = 0,
    MOEC_ACTIVATION_RELU = 1,
    MOEC_ACTIVATION_GELU_TANH = 2, /* transformers' gelu_new */
    /* (u + 1) * g * sigmoid(1.702 g), where g is gate . x but at most 7, and u is up . x within -7 .. 7
     * (gpt-oss). Only with a gate. A neuron whose up . x is 0 counts. */
    MOEC_ACTIVATION_CLAMPED_GLU = 3,
    /* silu(g) * u, where g is gate . x but at most 10, and u is up . x within -10 .. 10 (DeepSeek-V4). Only
     * with a gate. */
    MOEC_ACTIVATION_CLAMPED_SILU = 4,
    MOEC_ACTIVATION_RELU_SQUARED = 5, /* max(z, 0)^2 (Nemotron-H) */
    MOEC_ACTIVATION_COUNT
};

/* How router logits become the scores that experts are chosen by, and the weights of the chosen. */
enum moec_router_kind {
    MOEC_ROUTER_SOFTMAX = 0,        /* scores: softmax over all experts; weights: scores of the chosen */
    MOEC_ROUTER_SIGMOID = 1,        /* scores: sigmoid of each (DeepSeek-V3); weights: scores of the chosen */
    MOEC_ROUTER_SOFTMAX_CHOSEN = 2, /* scores: the logits; weights: softmax over those chosen (gpt-oss) */
    /* Scores: the logits. The weight of a chosen expert is its share in a softmax over itself and those that
     * were not chosen before it, but for experts whose logit is lower by more than 2 jitter of the
     * larger of its size and the chosen one's (SparseMixer, arXiv 2409.12136, as PhiMoE uses it). */
    MOEC_ROUTER_SPARSEMIXER = 3,
    /* Scores: the square root of log(1 + e^logit) of each (DeepSeek-V4); weights: scores of the chosen. */
    MOEC_ROUTER_ROOT_SOFTPLUS = 4,
    MOEC_ROUTER_SIGMOID_CHOSEN = 5, /* scores: the logits; weights: sigmoid of those chosen (Llama 4) */
    MOEC_ROUTER_COUNT
};

/* Where a layer's RMS norms stand. */
enum moec_norms {
    MOEC_NORMS_BEFORE = 0, /* of what attention and MLP read */
    MOEC_NORMS_AFTER = 1,  /* of what they add to the hidden state (FlexOlmo) */
    MOEC_NORMS_AROUND = 2, /* both (AFMoE) */
    MOEC_NORMS_COUNT
};

/* What a group of experts is chosen by. */
enum moec_group_score {
    MOEC_GROUP_BEST = 0,     /* its best expert (DeepSeek-V2) */
    MOEC_GROUP_BEST_TWO = 1, /* the sum of its two best, choice bias included (DeepSeek-V3) */
    MOEC_GROUP_COUNT
};

enum moec_stack { MOEC_STACK_ENCODER, MOEC_STACK_DECODER };

/* Positions, beside what the kinds of layers say. */
struct moec_position_config {
    /* Buckets of relative positions (T5): each head has a bias for each bucket, which is added to attention
     * scores. Each stack has its own table; buckets are two-sided in the encoder and cover only the past in
     * the decoder, and cross attention has none. With buckets, scores are not scaled, and queries and keys
     * are not rotated. 0 = no buckets: layers rotate, and scores are scaled by head_dim^-0.5. */
    uint32_t n_bucket;
    uint32_t max_distance; /* from here on all distances share the last bucket; 0 without buckets */
    /* Where angles depend on the length of the text: the length that they are for, 0 = at most the trained
     * context (moec_config_choose_rope). */
    uint32_t rope_context;
    /* Of layers with MOEC_ROPE_LONG: what the frequency of each pair is divided by in texts within the
     * trained context, and in longer ones; and the attention_factor of longer ones. */
    uint32_t n_rope_factor; /* pairs; 0 = there are no such layers */
    float rope_factors[2][MOEC_MAX_FACTORS];
    double rope_long_attention;
    /* Queries at position p are multiplied by 1 + query_growth ln(1 + floor(p / trained context)) (Llama 4,
     * Mistral 4); 0 = not. Layers that rotate then know their trained context. */
    float query_growth;
    /* 0 = as above. Else only layers that do not rotate have this, by 1 + query_growth ln(1 + floor((p + 1) /
     * growth_positions)) (Llama 4), and need not know their trained context. */
    uint32_t growth_positions;
};

/* Factors of activations; 0 = off. */
struct moec_scale_config {
    /* The embedding is multiplied, what attention and MLPs add to the hidden state is multiplied, logits are
     * divided (Granite, MiniCPM). */
    float embedding, residual, logit_divisor;
    float logit_cap; /* logits are logit_cap tanh(logit / logit_cap) (Gemma) */
    bool has_layer;  /* the hidden state is multiplied by a factor after each layer (Gemma 4) */
    /* What latents are multiplied by after their norm: that of queries, and that of keys and values
     * (LongCat-Flash). */
    float q_latent, latent;
};

/* From the last hidden state to logits. */
struct moec_head_config {
    bool is_tied;   /* the head is the embedding */
    bool is_scaled; /* its input is multiplied by n_embd^-0.5 (T5 with a tied head) */
    /* What the head reads is silu(W h + b) of the last hidden state h, without a norm (GPTSAN). */
    bool projects_output;
    bool bias; /* logits have a bias (n_vocab) */
};

/* MLPs, those of experts and those of layers without. */
struct moec_mlp_config {
    uint8_t activation; /* enum moec_activation of every MLP */
    bool plain;         /* two matrices, up and down, where others have three with a gate */
    bool shared_gate;   /* shared expert scaled by sigmoid(gate . x) (Qwen2-MoE) */
    bool dense_bias;    /* both matrices of an MLP of a layer without experts have biases; only if plain */
    bool dense_silu;    /* those MLPs compute silu(up . x), whatever `activation` is; likewise */
    bool has_bypass;    /* tanh(B x) stands in the place of a shared expert's output (GPTSAN) */
    bool expert_bias;   /* each matrix of a routed expert has a bias, kept with the dense weights (gpt-oss) */
    /* In layers with experts, the router, the routed experts and the shared expert read the hidden state by a
     * norm each, and what routed and shared experts add is normed before their sum is (Gemma 4, whose shared
     * expert is the layer's MLP). Weights of the chosen are multiplied by a factor of each expert. */
    bool own_norms;
    /* What routed experts give joins the hidden state at the end of the layer that follows, which has an MLP
     * (LongCat-Flash, whose layers are two of these); a shared expert's output joins it at once. */
    bool joins_late;
};

/* How a router scores, chooses and weighs. */
struct moec_router_config {
    uint8_t kind; /* enum moec_router_kind */
    float jitter; /* of MOEC_ROUTER_SPARSEMIXER, else 0 */
    bool bias;    /* logits have a bias (moec_config_choices) */
    /* A bias (moec_config_choices) is added to scores for the choice alone (DeepSeek-V3); layers that route
     * by token have none. */
    bool choice_bias;
    /* The expert's input is multiplied by the router's weight, not its output (Llama 4); only top-1. */
    bool scales_input;
    bool norm_topk_prob; /* weights of the chosen are divided by their sum */
    bool soft_sum;       /* 1e-6 is added to that sum (LFM2) */
    float scale;         /* and then multiplied by this; 0 = off */
    /* Experts form n_group groups of equally many, in order, and tokens choose among the n_top_group best
     * alone. 0 = experts are not grouped, and both fields that follow are 0. */
    uint32_t n_group, n_top_group;
    uint8_t group_score; /* enum moec_group_score */
    /* Tokens of one sequence that an expert takes, counted over the whole source and over the whole target;
     * further ones skip the expert. 0 = no limit. See struct moec_sequence_rows. */
    uint32_t expert_capacity;
    /* What such a token's expert gives is then its input, with the router's weight (GPTSAN); else it is 0. */
    bool full_keeps_input;
};

/* Tokens with a meaning. */
struct moec_token_config {
    uint32_t n_eos; /* end-of-text ids (generation_config.json, else config.json) */
    uint32_t eos[MOEC_MAX_EOS];
    uint32_t decoder_start; /* token that every target begins with; 0 without an encoder */
    uint32_t pad;           /* 0 without an encoder */
};

struct moec_config {
    char family[24]; /* config.json's model_type, for people: "qwen2_moe" */

    uint32_t n_layer;         /* of both stacks */
    uint32_t n_encoder_layer; /* 0 = a decoder alone */
    /* The kinds of layers in the order in which they first occur, no two equal. They are read through
     * moec_config_layer and filled by moec_config_add_layer. */
    uint32_t n_kind;
    struct moec_layer_kind kinds[MOEC_MAX_LAYER_KINDS];
    uint8_t layer_kind[MOEC_MAX_LAYERS]; /* index into kinds; 0 past n_layer */

    uint32_t n_embd;  /* hidden_size */
    uint32_t n_vocab; /* rows of the embedding */
    /* The embedding, and a head of its own, are two dense matrices each: rows of ids below this, which are those
     * of frequent tokens, and the rest. 0 = one matrix each. It is not a property of the model, but of how its
     * weights are stored. */
    uint32_t n_frequent;
    uint32_t n_position; /* max_position_embeddings; MOEC_MAX_POSITIONS where the model sets no limit */
    double rms_eps;      /* used as F32 */
    uint8_t norms;       /* enum moec_norms, of every layer */
    bool layer_norm; /* all norms of layers, before or after, and the last one are LayerNorms with biases */

    uint32_t n_expert; /* routed experts of a MoE layer */
    /* Further choices of its router, numbered from n_expert on, that give the token its input, times the
     * router's weight (LongCat-Flash). They have no weights and are no experts in records, caches, profiles
     * and statistics; see moec_config_has_passed. */
    uint32_t n_identity;
    uint32_t top_k;
    uint32_t n_ff_expert; /* neurons of a routed expert */
    uint32_t n_ff_shared; /* neurons of the shared expert, 0 = none */
    uint8_t expert_dtype; /* enum moec_dtype of the routed experts in the source checkpoint */

    struct moec_router_config router;
    struct moec_mlp_config mlp;
    struct moec_position_config position;
    struct moec_scale_config scale;
    struct moec_head_config head;
    struct moec_token_config ids;
};

/* Checks every limit and relation. `subject` names the source in messages ("'config.json'"). */
MOEC_WARN_UNUSED enum moec_status moec_config_check(const struct moec_config *config, const char *subject,
                                                    struct moec_error *err);

/* What a layer (< n_layer) is. */
static inline const struct moec_layer_kind *moec_config_layer(const struct moec_config *config,
                                                              uint32_t layer)
{
    return &config->kinds[config->layer_kind[layer]];
}
static inline bool moec_config_is_moe(const struct moec_config *config, uint32_t layer)
{
    return moec_config_layer(config, layer)->is_moe;
}

/* What a router chooses among: routed experts, then those that give their input. */
static inline uint32_t moec_config_choices(const struct moec_config *config)
{
    return config->n_expert + config->n_identity;
}

/* Rows of the embedding's first matrix, which may be its only one. */
static inline uint32_t moec_config_first_rows(const struct moec_config *config)
{
    return config->n_frequent > 0 ? config->n_frequent : config->n_vocab;
}

/* Whether a weight of 0 or less marks a choice that asks for no expert: its expert was full, or it is one
 * that gives its input. Where such a choice gives the token its input, times the weight's size, its weight is
 * negative. */
static inline bool moec_config_has_passed(const struct moec_config *config)
{
    return config->router.expert_capacity > 0 || config->n_identity > 0;
}
static inline bool moec_config_passed_give_input(const struct moec_config *config)
{
    return config->router.full_keeps_input || config->n_identity > 0;
}

/* The trained context where angles depend on whether a text is longer than it, else 0. */
uint32_t moec_config_rope_limit(const struct moec_config *config);
/* Chooses the angles for texts of up to n_tokens, or as many as the model knows, in a config that is to
 * become a model; nothing changes where they do not depend on it. A choice for longer texts stays. */
void moec_config_choose_rope(struct moec_config *config, uint32_t n_tokens);

/* How attention keeps keys and values (runtime/forward/attention/kv_state.h), in a config that is to become a model.
 * Errors: MOEC_ERR_UNSUPPORTED with an encoder, whose sources are kept as F32. */
MOEC_WARN_UNUSED enum moec_status moec_config_choose_kv(struct moec_config *config, struct moec_codec kv,
                                                        struct moec_error *err);

/* Whether any layer routes by token. */
bool moec_config_routes_by_token(const struct moec_config *config);

/* Whether any layer has a running state (enum moec_mixer). */
bool moec_config_is_running(const struct moec_config *config);
/* What the first layer with attention is; without any, what the first layer is. */
const struct moec_layer_kind *moec_config_attention(const struct moec_config *config);

/* The first kind with the same rotary angles as this one, which may be this one. Tables of angles are stored
 * under that kind. */
uint32_t moec_config_rope_kind(const struct moec_config *config, uint32_t kind);

/* Appends a layer. False, with nothing changed, if the config already has MOEC_MAX_LAYERS layers, or
 * MOEC_MAX_LAYER_KINDS kinds that all differ from this one. */
bool moec_config_add_layer(struct moec_config *config, const struct moec_layer_kind *kind);

/* Fills the n_layer layers of a config from kinds[0], which serves as a template: with experts where is_moe
 * (n_layer; NULL = everywhere) is not 0, and with an MLP of kinds[0].n_ff_dense neurons elsewhere. */
MOEC_WARN_UNUSED enum moec_status moec_config_place_layers(struct moec_config *config, const uint8_t *is_moe,
                                                           const char *subject, struct moec_error *err);

static inline bool moec_config_is_encoder_decoder(const struct moec_config *config)
{
    return config->n_encoder_layer > 0;
}

/* Which stack a layer is in, and its number there. */
static inline enum moec_stack moec_config_stack(const struct moec_config *config, uint32_t layer)
{
    return layer < config->n_encoder_layer ? MOEC_STACK_ENCODER : MOEC_STACK_DECODER;
}
static inline uint32_t moec_config_stack_layer(const struct moec_config *config, uint32_t layer)
{
    return layer < config->n_encoder_layer ? layer : layer - config->n_encoder_layer;
}

/* MoE layers of the encoder: these have the ordinals 0 .. n - 1, the decoder's follow. */
uint32_t moec_config_moe_encoder_count(const struct moec_config *config);

/* MoE ordinals of the stack that `ordinal` is in: first <= ordinal < first + count. */
struct moec_moe_range {
    uint32_t first;
    uint32_t count;
};
struct moec_moe_range moec_config_moe_range(const struct moec_config *config, uint32_t ordinal);

/* Matrices of an MLP: 2 or 3. */
static inline uint32_t moec_config_mlp_matrices(const struct moec_config *config)
{
    return config->mlp.plain ? 2 : 3;
}

/* Number of MoE layers (S of EdgeMoE), and the MoE ordinal of a model layer (-1 for a dense one). */
uint32_t moec_config_moe_count(const struct moec_config *config);
int32_t moec_config_moe_ordinal(const struct moec_config *config, uint32_t layer);
/* Model layer of the MoE layer with this ordinal. */
uint32_t moec_config_moe_layer(const struct moec_config *config, uint32_t ordinal);

/* Binary section of a bundle (formats/bundle/FORMAT.md, "config").
 * encode gives malloc'ed bytes, owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_config_encode(const struct moec_config *config, uint8_t **bytes,
                                                     size_t *n_bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_config_decode(const uint8_t *bytes, size_t n_bytes,
                                                     struct moec_config *config, struct moec_error *err);

#endif
