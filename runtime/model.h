/* A model ready to execute: config, dense weights bound to their roles, and tables derived from them (rotary
 * angles). Built alike from a checkpoint and from a bundle. Immutable after creation; any number of threads
 * may use it. */
#ifndef MOEC_RUNTIME_MODEL_H
#define MOEC_RUNTIME_MODEL_H

#include "formats/config.h"
#include "formats/dense.h"
#include "formats/record.h"

struct moec_layer {
    float *attention_norm;           /* (n_embd) F32 copies of small vectors */
    float *mlp_norm;                 /* (n_embd) */
    float *q_bias, *k_bias, *v_bias; /* NULL without qkv_bias */
    float *q_norm, *k_norm;          /* NULL without qk_norm */
    struct moec_matrix q, k, v, o;
    bool is_moe;
    struct moec_matrix router; /* MoE layers: (n_expert, n_embd) */
    float *shared_expert_gate; /* (n_embd) or NULL */
    bool has_shared;
    struct moec_mlp shared; /* shared expert of a MoE layer */
    struct moec_mlp dense;  /* MLP of a layer without experts */
};

struct moec_model {
    struct moec_config config;
    struct moec_dense dense; /* owned */
    struct moec_matrix embedding;
    struct moec_matrix head;   /* the embedding when tied */
    float *final_norm;         /* (n_embd) */
    struct moec_layer *layers; /* (n_layer), owned */
    float *inverse_frequency;  /* (head_dim / 2), F32 as transformers computes it: theta^(-2i / head_dim) */
};

/* Takes ownership of `dense` in every case (released on failure). Checks it against the config
 * (moec_dense_check). */
MOEC_WARN_UNUSED enum moec_status moec_model_create(const struct moec_config *config,
                                                    struct moec_dense *dense, struct moec_model **out,
                                                    struct moec_error *err);
void moec_model_free(struct moec_model *model);

/* Bytes that the model occupies, for the budget: blob and derived tables. */
uint64_t moec_model_bytes(const struct moec_model *model);

#endif
