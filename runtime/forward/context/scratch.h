/* Working memory of the forward pass: one allocation, carved once, used by every layer (internal to
 * runtime/).
 *
 *   | struct moec_scratch | tables of a batch | attention or MLP (overlaid) | thread 0 | thread 1 | ...
 *
 * Letters: M = max_tokens, S = moec_forward_stride, k = top_k, E = n_expert, C = moec_config_choices. A
 * thread's area is likewise overlaid by the steps that use it one after the other. Nothing here may be
 * expected to survive a public call of forward.h, except the rotary table, which each row tags with its
 * position, and the last MoE layer's choices, tagged with the rows that they belong to. */
#ifndef MOEC_RUNTIME_SCRATCH_H
#define MOEC_RUNTIME_SCRATCH_H

#include "formats/model/config.h"
#include "formats/model/record.h"
#include "runtime/forward/context/scratch_test_hook.h"
#include "runtime/kernels/kernels.h"
#include "runtime/seam/experts.h"

#define MOEC_TILE_TOKENS    64   /* tokens in a tile of a dense product or of a step that works row by row */
#define MOEC_GROUP_TOKENS   512  /* tokens that share one decoding of a tile of weights */
#define MOEC_ENCODED_ROWS   4096 /* the most outputs in one item of a product with encoded weights */
#define MOEC_ATTENTION_ROWS 64   /* (query, head) rows in a tile of attention */
#define MOEC_ROUTER_TOKENS  32   /* tokens in a tile of the router */
#define MOEC_ROUTER_ROWS    64   /* experts decoded at once by the router */
#define MOEC_MLP_TILE_MAX   128u /* the most tokens in a tile of an MLP */
#define MOEC_SPLIT_ROWS     32   /* MLP rows up to which work is split by neurons instead of tokens */
#define MOEC_HELD_EXPERTS   64   /* the most experts computed together */
#define MOEC_MOE_FORMS      2    /* in which one batch may take an expert */

/* Up to this many tokens, what products are left out or rounded for one by one is; with more, all at once. */
#define MOEC_ENCODED_TOKENS 2
/* With fewer multiply-adds than this, waking a second thread costs more than it saves. */
#define MOEC_SHARED_WORK 32768

struct moec_linear_scratch {
    float *weights; /* tile of decoded rows */
    float *y;       /* (MOEC_TILE_TOKENS, rows of a tile), at most MOEC_ENCODED_ROWS floats; of inputs that
                       are laid (a group, moec_transposed_rows) */
};

struct moec_mlp_scratch {
    float *weights; /* (MOEC_SUM_CHUNK, S) */
    float *x;    /* (tile, S) gathered inputs, or the spans of a tile side by side (runtime/kernels/int8.h) */
    float *y;    /* (tile, S) one chunk's sums */
    float *gate; /* (mlp.chunks, tile, MOEC_SUM_CHUNK); the up products of an MLP without a gate */
    float *up;   /* (tile, MOEC_SUM_CHUNK) */
    /* (tile, MOEC_SUM_CHUNK) of activations other than ReLU and a gate's SiLU; else empty. */
    float *exponents;
};

/* D: padded moec_layer_score_dim. */
struct moec_attention_scratch {
    float *q;      /* (rows, D) */
    float *k;      /* (MOEC_SUM_CHUNK, D), for keys that cannot be read in place */
    float *v;      /* likewise */
    float *scores; /* (rows, MOEC_SUM_CHUNK) */
    float *sum;    /* (rows, D) weighted values so far */
    float *part;   /* (rows, D) those of one chunk */
    float *max;    /* (rows) */
    float *total;  /* (rows) */
};

struct moec_router_scratch {
    float *weights; /* (MOEC_ROUTER_ROWS, S) */
    float *logits;  /* (MOEC_ROUTER_TOKENS, padded C) */
    float *bias;    /* (padded E) of grouped experts, else nothing */
};

struct moec_thread_scratch {
    struct moec_linear_scratch linear;
    struct moec_mlp_scratch mlp;
    struct moec_attention_scratch attention;
    struct moec_router_scratch router;
    float *running; /* (head_dim, MOEC_RUNNING_COLUMNS) of the delta rule */
    float *latent;  /* decoded rows, and a tile's latents */
    float *row;     /* (S) */
};

/* Output row p = list[i], i < n, comes from input row p / per_row. */
struct moec_job_pairs {
    const uint32_t *list; /* or NULL: 0, 1, .. */
    uint32_t n;
    uint32_t per_row;
    uint32_t first; /* the pair whose output row stands first */
    /* Of pairs, that their outputs count; NULL = 1. Only looked at by a filter with scales. */
    const float *weights;
};

/* One MLP and the rows that it is applied to. */
struct moec_mlp_job {
    struct moec_mlp mlp;
    struct moec_expert_request request; /* of a routed expert: whose MLP it is */
    struct moec_job_pairs pairs;
    bool touches_all;   /* of a source that gives parts: as moec_mlp_mark says of all the expert's rows */
    const float *up;    /* (pairs.n, neurons): products that moec_mlp_mark kept; NULL = none */
    const float *input; /* row stride S */
    float *out;         /* row stride S */
};

/* The choices of the MoE layer that was run last, for a source that asks for them. */
struct moec_last_choices {
    uint32_t *experts;   /* (M, k) */
    float *weights;      /* (M, k) */
    const float *hidden; /* of which batch; only compared */
    uint32_t layer;
    uint32_t n_tok; /* 0 = none */
};

/* Of attention, and of what else mixes rows. */
struct moec_mixer_scratch {
    uint32_t block; /* tokens of spans worked on together, which stay in the cache between steps */
    /* By kind of layer, shared by kinds that rotate alike; NULL where nothing is rotated: */
    float *rope[MOEC_MAX_LAYER_KINDS];             /* (M, rotary_dim): cosines, then sines */
    uint32_t *rope_position[MOEC_MAX_LAYER_KINDS]; /* (M): position whose angles stand in rope,
                                                    * MOEC_NO_POSITION = none */
    uint32_t *row_span;                            /* (M) */
    float *q;        /* (M, q_stride): queries of attention, rows of running layers and of latent attention */
    size_t q_stride; /* of the layer with the longest rows of `q`, padded */
    float *own_kv; /* (M, 2, largest moec_layer_kv_dim): keys and values that are then rounded; else empty */
};

/* Inputs of dense products that are laid. */
struct moec_transposed_scratch {
    float *rows;      /* (a group, stride) where batches are large enough; else empty */
    size_t stride;    /* the longest of them */
    uint32_t columns; /* the fewest of matrices whose inputs are laid */
};

/* MLPs' sizes. */
struct moec_mlp_sizes {
    uint32_t tile;       /* tokens in a tile */
    uint32_t chunks;     /* of neurons, whose products with a tile wait for their sums */
    uint32_t n_partials; /* rows of `partials` */
    float *partials;     /* (n_partials, S) chunk sums of a split MLP */
};

/* What a router chooses, and the shares of the shared expert. */
struct moec_choice_scratch {
    uint32_t *experts;  /* (M, k) */
    float *weights;     /* (M, k) */
    float *counted;     /* (M, k) where passed choices give their input: weights, 0 of those */
    float *shared_gate; /* (M) */
};

/* The same by expert. */
struct moec_group_scratch {
    uint32_t *pairs;        /* (M, k): token * k + rank, grouped by expert */
    uint32_t *expert_start; /* (forms x E + 2) first pair of each expert in each form */
    uint32_t *active;       /* (forms x E) as in struct moec_router_answer */
    uint32_t *order;        /* (forms x E) the same in the order in which they are acquired */
    uint32_t *n_takers;     /* (forms x E) likewise */
};

/* What routers ahead say. */
struct moec_gate_scratch {
    float *sums;                      /* (tiles of MOEC_ROUTER_TOKENS, padded C): probabilities */
    struct moec_scored_expert *lists; /* (MOEC_GATES_AHEAD, E) */
};

/* Rows that experts read and give. */
struct moec_expert_rows {
    float *ranks;                       /* (M, k, S) */
    float *shared;                      /* (M, S); also the output of a dense MLP */
    float *router_input, *shared_input; /* (M, S) each in models with own_norms, the first with
                                           router.scales_input too, else nothing */
};

/* Experts held together, and the shared one. */
struct moec_held_scratch {
    uint32_t max_jobs;
    struct moec_mlp_job *jobs; /* (max_jobs) */
    uint64_t *marks;           /* (max_jobs, mark_words) neurons of them that are needed, as bits */
    uint32_t mark_words;
    float *kept_up; /* (n_kept_up, n_ff): up products of jobs with few rows, found with their marks */
    uint32_t n_kept_up;
};

/* Of layers with experts. */
struct moec_moe_scratch {
    uint32_t block; /* tokens whose experts are summed together */
    struct moec_last_choices last;
    struct moec_choice_scratch choices;
    struct moec_group_scratch groups;
    struct moec_gate_scratch gates;
    struct moec_expert_rows rows;
    struct moec_held_scratch held;
};

struct moec_scratch {
    size_t stride; /* S */
    struct moec_scratch_test_hook test_hook;
    float *normed; /* (M, S) */
    struct moec_mixer_scratch mixer;
    struct moec_transposed_scratch transposed;
    struct moec_mlp_sizes mlp;
    struct moec_moe_scratch moe;
    struct moec_thread_scratch *threads; /* (n_threads) */
};

#define MOEC_NO_POSITION 0xffffffffu

/* Bytes that moec_scratch_create allocates. n_threads >= 1. */
uint64_t moec_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads);
/* Released with free(). */
MOEC_WARN_UNUSED enum moec_status moec_scratch_create(const struct moec_config *config, uint32_t max_tokens,
                                                      int n_threads, struct moec_scratch **out,
                                                      struct moec_error *err);

/* Query heads that are worked on together: those of a key/value head, or some of those that share a latent.
 * Divides n_head. */
uint32_t moec_attention_group(const struct moec_layer_kind *kind);

/* Queries in a tile of attention. */
uint32_t moec_attention_tile(const struct moec_layer_kind *kind, uint32_t max_tokens);

/* Rows of a K-column matrix that are decoded at once. */
uint32_t moec_linear_tile_rows(size_t k);

/* x[i] = x[i] * factor over whole lanes; the constant inner count lets compilers vectorise it. */
static inline void moec_scale_lanes(float *x, size_t n, float factor)
{
    for (size_t at = 0; at < n; at += MOEC_LANES) {
        for (size_t i = 0; i < MOEC_LANES; i++)
            x[at + i] *= factor;
    }
}

/* The smaller of two counts. */
static inline uint32_t moec_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

#endif
