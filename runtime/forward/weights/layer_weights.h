/* Dense weights of one layer, bound to their roles: matrices as they are encoded, small vectors as F32. Part
 * of a model (runtime/forward/weights/model.h), resident or streamed. */
#ifndef MOEC_RUNTIME_LAYER_WEIGHTS_H
#define MOEC_RUNTIME_LAYER_WEIGHTS_H

#include "formats/model/dense.h"
#include "formats/model/record.h"

/* Rows by token id: those of ids below first.rows in `first`, the others, where there are any, in `rest`. */
struct moec_token_rows {
    struct moec_matrix first, rest; /* rest without rows where `first` has all */
};

/* The matrix that has a token's row, which becomes the row's number there. */
static inline const struct moec_matrix *moec_token_rows_of(const struct moec_token_rows *rows, uint32_t *row)
{
    if (*row < rows->first.rows)
        return &rows->first;
    *row -= rows->first.rows;
    return &rows->rest;
}

struct moec_layer {
    /* (n_embd) F32 copies of small vectors; NULL without norms before. A LayerNorm's biases stand behind its
     * weights, from moec_lanes_padded(n_embd) on. */
    float *attention_norm;
    float *mlp_norm;                 /* likewise */
    float *attention_post_norm;      /* likewise; NULL without norms after */
    float *mlp_post_norm;            /* likewise */
    float *q_bias, *k_bias, *v_bias; /* NULL without qkv_bias */
    float *o_bias;                   /* NULL without o_bias */
    /* NULL without qk_norm. Of the delta rule not weights but what makes an RMS norm give length
     * head_dim^-0.5 and length 1. */
    float *q_norm, *k_norm;
    float *sinks;                  /* (n_head) or NULL */
    struct moec_matrix q, k, v, o; /* v without rows where keys are values */
    float *v_norm;                 /* (head_dim) ones; NULL without a norm of values */
    float *layer_scale;            /* (1) or NULL */
    /* Latent attention: no k and v, but these; without a latent of queries q_down has no rows, q_down_norm is
     * NULL. */
    struct moec_matrix q_down, kv_down, kv_up;
    float *q_down_norm;             /* (q_latent_dim) */
    float *kv_down_norm;            /* (latent_dim) */
    struct moec_matrix output_gate; /* no rows without one */
    /* Running layers; without rows and NULL elsewhere. */
    struct moec_matrix input_gate;
    struct moec_matrix delta_rate, delta_decay;
    struct moec_matrix delta_decay_down, output_gate_down; /* to latents, which those two are products of */
    float *convolution;            /* (conv_size, padded channels): of the newest row last */
    float *decay_log, *decay_bias; /* (n_head), (moec_layer_decays) */
    float *delta_norm;             /* (moec_layer_state_norm) */
    float *convolution_bias;       /* (channels), and */
    float *skip;                   /* (n_head): of a state space */
    float *cross_norm; /* (n_embd); NULL where nothing attends to a source: this and the four that follow */
    struct moec_matrix cross_q, cross_k, cross_v, cross_o;
    bool is_moe;
    struct moec_matrix router; /* MoE layers: (n_expert, n_embd) */
    /* Layers that route by token: (n_vocab, top_k) numbers of experts, checked, resident in every model; no
     * rows elsewhere. */
    struct moec_matrix router_table;
    float *router_bias;        /* (n_expert) or NULL */
    float *router_choice_bias; /* (n_expert) or NULL */
    /* By enum moec_projection, a row for each expert; no rows without biases. Resident in every model. */
    struct moec_matrix expert_biases[MOEC_PROJECTION_COUNT];
    float *shared_expert_gate; /* (n_embd) or NULL */
    /* NULL without norms of their own. What the router reads is multiplied by n_embd^-0.5 besides, which
     * router_norm contains. */
    float *router_norm, *expert_norm, *expert_post_norm, *shared_post_norm; /* (n_embd) */
    float *router_expert_scale;                                             /* (n_expert) */
    /* (n_position, n_embd), resident in every model; no rows where none are added. */
    struct moec_matrix positions;
    bool has_shared;           /* what stands beside the experts: one of these two */
    struct moec_mlp shared;    /* shared expert of a MoE layer */
    struct moec_matrix bypass; /* of a MoE layer with a bypass; no rows elsewhere */
    struct moec_mlp dense;     /* MLP of a layer without experts */
};

/* Gives the routed expert's MLP, all of whose neurons it has, the biases that the layer keeps. */
static inline void moec_layer_expert_biases(const struct moec_layer *layer, uint32_t expert,
                                            struct moec_mlp *mlp)
{
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        if (layer->expert_biases[p].rows == 0)
            continue;
        mlp->biases[p] = layer->expert_biases[p];
        mlp->biases[p].rows = 1;
        mlp->biases[p].data += expert * mlp->biases[p].stride_bytes;
    }
}

#endif
