/* Model descriptions that are sound: what tests damage, encode and change. */
#ifndef MOEC_TESTS_FIXTURE_CONFIG_H
#define MOEC_TESTS_FIXTURE_CONFIG_H

#include "tests/unit/temporary.h"

#include "formats/model/config.h"

#define KIND(...)                                                                                            \
    {                                                                                                        \
        .n_head = 6, .n_kv_head = 2, .head_dim = 8, .window = 17, .rope_theta = 1e6, .clip_qkv = 7.5f,       \
        .qkv_bias = true, __VA_ARGS__                                                                        \
    }

static inline struct moec_config sample(void)
{
    struct moec_config c = {.family = "qwen2_moe",
                            .n_layer = 5,
                            .n_embd = 48,
                            .n_vocab = 99,
                            .n_position = 1000,
                            .rms_eps = 1e-6,
                            .head.is_tied = true,
                            .n_expert = 9,
                            .top_k = 3,
                            .n_ff_expert = 20,
                            .n_ff_shared = 30,
                            .mlp.shared_gate = true,
                            .n_kind = 2,
                            .kinds = {KIND(.is_moe = true), KIND(.n_ff_dense = 40)},
                            .layer_kind = {0, 1, 0, 0, 1},
                            .expert_dtype = MOEC_DTYPE_BF16,
                            .ids.n_eos = 2,
                            .ids.eos = {98, 5}};
    return c;
}

static inline struct moec_config two_stacks(void)
{
    struct moec_config c = sample();
    (void)snprintf(c.family, sizeof c.family, "switch_transformers");
    c.n_encoder_layer = 2;
    for (uint32_t i = 0; i < c.n_kind; i++) {
        struct moec_layer_kind *kind = &c.kinds[i];
        kind->head_dim = 7;
        kind->window = 0;
        kind->rope_theta = 0;
        kind->clip_qkv = 0;
        kind->qkv_bias = false;
    }
    c.head.is_scaled = true;
    c.position.n_bucket = 8;
    c.position.max_distance = 20;
    c.top_k = 1;
    c.n_ff_shared = 0;
    c.mlp.shared_gate = false;
    c.mlp.activation = MOEC_ACTIVATION_GELU_TANH;
    c.mlp.plain = true;
    c.router.bias = true;
    c.router.expert_capacity = 33;
    c.ids.decoder_start = 98;
    c.ids.pad = 97;
    return c;
}

/* Layers 1 and 4 have MLPs of other sizes. */
static inline struct moec_config dense_sizes(void)
{
    struct moec_config c = sample();
    c.kinds[2] = (struct moec_layer_kind)KIND(.n_ff_dense = 41);
    c.n_kind = 3;
    c.layer_kind[4] = 2;
    return c;
}

/* Layer 2 attends within a smaller window, with larger heads that are not rotated; layer 4 with others again.
 */
static inline struct moec_config attentions(void)
{
    struct moec_config c = dense_sizes();
    c.kinds[3] = c.kinds[2];
    c.kinds[2] =
        (struct moec_layer_kind){.n_head = 3, .n_kv_head = 3, .head_dim = 9, .window = 5, .is_moe = true};
    c.kinds[3].qk_norm = true;
    c.n_kind = 4;
    c.layer_kind[2] = 2;
    c.layer_kind[4] = 3;
    return c;
}

/* As Nemotron-H has it: a state space alone, experts alone, an MLP alone, attention alone. */
static inline struct moec_config parts_alone(void)
{
    struct moec_config c = sample();
    c.kinds[0] = (struct moec_layer_kind){.mixer = MOEC_MIXER_SPACE,
                                          .no_mlp = true,
                                          .conv_size = 4,
                                          .n_head = 4,
                                          .n_kv_head = 2,
                                          .head_dim = 5,
                                          .value_dim = 7,
                                          .step_min = 0.25f};
    c.kinds[1] = (struct moec_layer_kind){.mixer = MOEC_MIXER_NONE, .is_moe = true};
    c.kinds[2] = (struct moec_layer_kind){.mixer = MOEC_MIXER_NONE, .n_ff_dense = 40};
    c.kinds[3] = (struct moec_layer_kind)KIND(.no_mlp = true);
    c.n_kind = 4;
    memcpy(c.layer_kind, (uint8_t[]){0, 1, 2, 3, 1}, 5);
    c.mlp.activation = MOEC_ACTIVATION_RELU_SQUARED;
    c.mlp.plain = true;
    return c;
}

/* As DeepSeek-V3 has it. */
static inline struct moec_config latent(void)
{
    struct moec_config c = sample();
    for (uint32_t i = 0; i < c.n_kind; i++) {
        struct moec_layer_kind *kind = &c.kinds[i];
        kind->n_kv_head = 1;
        kind->clip_qkv = 0;
        kind->qkv_bias = false;
        kind->qk_norm = MOEC_QK_NORM_NONE;
        kind->rotary_dim = 4;
        kind->value_dim = 7;
        kind->latent_dim = 9;
        kind->q_latent_dim = 5;
    }
    return c;
}

#endif
