/* The family-independent description of a model: numbers and feature flags that the engine executes.
 *
 * formats/family.c fills it from a checkpoint's config.json; a bundle carries it as a binary section. The
 * runtime knows features (QKV bias, q/k norm, shared expert, ...) and never a family's name. After
 * moec_config_check every field is within the limits below and code may trust it. Thread rule: plain data,
 * immutable after checking. */
#ifndef MOEC_FORMATS_CONFIG_H
#define MOEC_FORMATS_CONFIG_H

#include "formats/codec.h"
#include "formats/error.h"

#define MOEC_MAX_LAYERS     1024
#define MOEC_MAX_EXPERTS    4096
#define MOEC_MAX_TOP_K      64
#define MOEC_MAX_DIMENSION  (1u << 20) /* hidden, head, inner sizes */
#define MOEC_MAX_VOCABULARY (1u << 24)
#define MOEC_MAX_POSITIONS  (1u << 24)
#define MOEC_MAX_EOS        16

struct moec_config {
    char family[24]; /* config.json's model_type, for people: "qwen2_moe" */

    uint32_t n_layer;
    uint32_t n_embd;     /* hidden_size */
    uint32_t n_head;     /* query heads */
    uint32_t n_kv_head;  /* key/value heads; divides n_head */
    uint32_t head_dim;   /* even */
    uint32_t n_vocab;    /* rows of the embedding */
    uint32_t n_position; /* max_position_embeddings */
    uint32_t window;     /* sliding attention window in positions, 0 = none */
    double rope_theta;
    double rms_eps; /* used as F32 */
    float clip_qkv; /* |q|, |k|, |v| are clamped to this; 0 = off (OLMoE) */
    bool qkv_bias;  /* biases on q, k, v (Qwen2) */
    bool qk_norm;   /* RMS norm over the whole q and k projections before heads are split (OLMoE) */
    bool tied_head; /* the head is the embedding */

    uint32_t n_expert; /* routed experts of a MoE layer */
    uint32_t top_k;
    uint32_t n_ff_expert; /* neurons of a routed expert */
    uint32_t n_ff_shared; /* neurons of the shared expert, 0 = none */
    uint32_t n_ff_dense;  /* neurons of the MLP of layers without experts, 0 = there are none */
    bool shared_gate;     /* shared expert scaled by sigmoid(gate . x) (Qwen2-MoE) */
    bool norm_topk_prob;  /* top-k gate weights renormalised to sum 1 */
    uint8_t layer_is_moe[MOEC_MAX_LAYERS]; /* 1 = routed experts, 0 = dense MLP */

    uint8_t expert_dtype; /* enum moec_dtype of the routed experts in the source checkpoint */
    uint32_t n_eos;       /* end-of-text ids (generation_config.json, else config.json) */
    uint32_t eos_ids[MOEC_MAX_EOS];
};

/* Checks every limit and relation. `subject` names the source in messages ("'config.json'"). */
MOEC_WARN_UNUSED enum moec_status moec_config_check(const struct moec_config *config, const char *subject,
                                                    struct moec_error *err);

/* Number of MoE layers (S of EdgeMoE), and the MoE ordinal of a model layer (-1 for a dense one). */
uint32_t moec_config_moe_count(const struct moec_config *config);
int32_t moec_config_moe_ordinal(const struct moec_config *config, uint32_t layer);
/* Model layer of the MoE layer with this ordinal. */
uint32_t moec_config_moe_layer(const struct moec_config *config, uint32_t ordinal);

/* Binary section of a bundle (formats/FORMAT.md, "config"). encode gives malloc'ed bytes, owned by the
 * caller. */
MOEC_WARN_UNUSED enum moec_status moec_config_encode(const struct moec_config *config, uint8_t **bytes,
                                                     size_t *n_bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_config_decode(const uint8_t *bytes, size_t n_bytes,
                                                     struct moec_config *config, struct moec_error *err);

#endif
