/* What the files of a backend on a GPU share (internal to runtime/cuda): its struct, and launches that
 * several of them need. Rows are M rows of S floats unless it says otherwise; pointers to floats are the
 * device's. */
#ifndef MOEC_RUNTIME_GPU_PASS_H
#define MOEC_RUNTIME_GPU_PASS_H

#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_room.h"
#include "runtime/cuda/gpu_staging.h"
#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/policy/schedule/cooperation.h"

/* A run of an expert whose active neurons the device counts. */
struct moec_gpu_counted {
    struct moec_mlp mlp;
    uint64_t n_neuron;
};

/* Floats from row to row. */
struct moec_gpu_strides {
    size_t row; /* S */
    size_t mixer, h, logits;
};

/* Inputs in the arithmetic bf16. */
struct moec_gpu_rounded {
    uint16_t *rows;   /* room for (M, D) of them, that below; NULL: canonical */
    uint16_t *memory; /* owned, the device's */
    uint64_t n_bytes; /* its size */
};

/* Jobs whose up products stand in room.mlp.ups. */
struct moec_gpu_marked {
    uint32_t n;
    const uint32_t *pairs; /* of the first of them, of which nothing is read */
};

/* Runs of experts whose counts are on their way. */
struct moec_gpu_counts {
    struct moec_gpu_counted of[MOEC_GPU_COUNTED];
    uint32_t n;
};

/* The rows whose angles stand in room.rope. */
struct moec_gpu_positions {
    uint32_t *of; /* owned, (M) */
    uint32_t n;
};

/* Of a copy, which cannot answer itself. */
struct moec_gpu_lost {
    enum moec_status status;
    struct moec_error words;
};

/* Owned, what the room is carved from, and what comes back. */
struct moec_gpu_memory {
    uint8_t *room; /* the device's */
    uint64_t room_bytes, answer_bytes;
    /* Pinned: logits from the device, then (MOEC_GPU_COUNTED) numbers of neurons, then
     * (MOEC_COOPERATION_TOKENS, S) inputs of experts, then (moec_gpu_mark_words) marks of neurons. */
    float *answers;
    float *given; /* pinned, (MOEC_COOPERATION_TOKENS x k, S): rows that the process computed, by pair */
};

struct moec_gpu_backend {
    struct moec_backend backend; /* first */
    const struct moec_gpu_model *model;
    const struct moec_config *config;
    const struct moec_gpu_kernels *kernels;
    struct moec_gpu *gpu;
    const struct moec_gpu_ops *ops;
    struct moec_gpu_stream *stream;
    uint32_t max_tokens;
    bool cooperates; /* the process computes some experts */
    struct moec_gpu_strides strides;
    struct moec_gpu_memory memory;
    struct moec_gpu_room room;
    struct moec_gpu_staging staging;
    struct moec_gpu_rounded rounded;
    struct moec_gpu_marked marked;
    struct moec_gpu_counts counted;
    struct moec_gpu_positions positions;
    struct moec_gpu_lost lost;
};

static inline struct moec_gpu_backend *moec_gpu_backend_self(struct moec_backend *self)
{
    return (struct moec_gpu_backend *)self;
}

static inline enum moec_status moec_gpu_check(const struct moec_gpu_backend *b, struct moec_error *err)
{
    return b->ops->check(b->gpu, err);
}

/* Rows from `first` on. Kernels read rows that they do not write through the same struct. */
static inline struct moec_cuda_rows moec_gpu_rows(const float *first, size_t stride)
{
    return (struct moec_cuda_rows){.first = (float *)(uintptr_t)first, .stride = stride};
}

struct moec_cuda_matrix moec_gpu_matrix(const struct moec_matrix *matrix);

/* out = a norm of the model's layers (RMS norm, or LayerNorm with biases behind the weights), padding zero;
 * without weights a copy. */
void moec_gpu_norm(const struct moec_gpu_backend *b, const float *weight, uint32_t n_tok, const float *x,
                   float *out);
/* Each row's n_part parts of n floats, one behind the other. */
struct moec_gpu_parts {
    uint32_t n_part, n;
};

/* An RMS norm of each part, in place. */
void moec_gpu_norm_parts(const struct moec_gpu_backend *b, const float *weight, float eps, uint32_t n_tok,
                         struct moec_gpu_parts parts, struct moec_cuda_rows x);
/* Zeros behind the n floats of rows, up to whole lanes. */
void moec_gpu_pad(const struct moec_gpu_backend *b, uint32_t n_tok, uint32_t n, struct moec_cuda_rows x);

/* A matrix and its bias, (rows) or NULL. */
struct moec_gpu_dense {
    const struct moec_matrix *matrix;
    const float *bias;
};

/* All rows of a matrix with rows `x`, or none without rows, in the backend's arithmetic. */
void moec_gpu_multiply(const struct moec_gpu_backend *b, struct moec_gpu_dense dense, uint32_t n_tok,
                       struct moec_cuda_rows x, struct moec_cuda_rows y, enum moec_cuda_sink sink);
/* The same in the canonical one, whichever the backend's is. */
void moec_gpu_multiply_canonical(const struct moec_gpu_backend *b, const struct moec_matrix *matrix,
                                 uint32_t n_tok, struct moec_cuda_rows x, struct moec_cuda_rows y);

/* y += x, and as moec_forward_add_batch: x is normed where there is a norm, and scaled as the model says. */
void moec_gpu_add(const struct moec_gpu_backend *b, uint32_t n_tok, const float *x, float scale, float *y);
void moec_gpu_add_update(const struct moec_gpu_backend *b, const float *post_norm, uint32_t n_tok,
                         float *update, float *hidden);
/* What follows the hidden states in their rows (moec_forward_late) is not there yet. */
void moec_gpu_clear_late(const struct moec_gpu_backend *b, uint32_t n_tok, float *hidden);
/* The output product of a layer's mixer into the hidden state: at once, or by way of `normed`. */
void moec_gpu_add_outputs(const struct moec_gpu_backend *b, struct moec_gpu_dense dense,
                          const float *post_norm, uint32_t n_tok, struct moec_cuda_rows x, float *hidden);
/* The factor that ends a layer, where there is one. */
void moec_gpu_scale_layer(const struct moec_gpu_backend *b, uint32_t layer, uint32_t n_tok, float *hidden);

/* Waits for everything that was given, and for n floats of room.logits in `answers`; takes what was counted.
 */
enum moec_status moec_gpu_answer(struct moec_gpu_backend *b, uint64_t n, struct moec_error *err);

/* ---- operations of struct moec_backend_ops, by file ---- */

/* Bytes of the tables that the step with most of them sends. */
uint64_t moec_gpu_mixer_staging_bytes(const struct moec_config *config, uint32_t n_tok); /* gpu_attention.c */
uint64_t moec_gpu_mlp_staging_bytes(const struct moec_config *config, uint32_t n_tok);   /* gpu_mlp.c */

enum moec_status moec_gpu_attention(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                    float *hidden, struct moec_error *err);
enum moec_status moec_gpu_encoded(struct moec_backend *self, uint32_t n_tok, const float *hidden,
                                  float *encoded, struct moec_error *err);
enum moec_status moec_gpu_keys(struct moec_backend *self, uint32_t layer, uint32_t n_tok, const float *hidden,
                               struct moec_kv_rows out, struct moec_error *err);
enum moec_status moec_gpu_cross_keys(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                     const float *encoded, struct moec_kv_rows out, struct moec_error *err);
enum moec_status moec_gpu_cross(struct moec_backend *self, uint32_t layer, struct moec_batch batch,
                                float *hidden, struct moec_error *err);

/* A running layer, gpu_running.c: the tables' pieces are taken of a step that has begun. */
enum moec_status moec_gpu_running(struct moec_gpu_backend *b, uint32_t layer, struct moec_batch batch,
                                  float *hidden, struct moec_error *err);

enum moec_status moec_gpu_dense(struct moec_backend *self, uint32_t layer, uint32_t n_tok, float *hidden,
                                struct moec_error *err);
enum moec_status moec_gpu_norm_inputs(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                      const float *hidden, struct moec_error *err);
enum moec_status moec_gpu_score(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                struct moec_backend_scores *out, struct moec_error *err);
enum moec_status moec_gpu_scale(struct moec_backend *self, uint32_t n_tok, const float *factors,
                                struct moec_error *err);
enum moec_status moec_gpu_run_experts(struct moec_backend *self, const struct moec_mlp_job *jobs,
                                      uint32_t n_jobs, struct moec_error *err);
/* A routed expert by itself, whose output for n_tok rows `x` goes to room.shared. */
enum moec_status moec_gpu_run_expert(struct moec_gpu_backend *b, struct moec_expert_request request,
                                     const struct moec_mlp *mlp, uint32_t n_tok, const float *x,
                                     struct moec_error *err);
enum moec_status moec_gpu_mark(struct moec_backend *self, const struct moec_mlp_job *jobs, uint32_t n_jobs,
                               uint64_t *neurons, uint32_t n_words, struct moec_error *err);
enum moec_status moec_gpu_give(struct moec_backend *self, const uint32_t *pairs, uint32_t n,
                               const float *rows, struct moec_error *err);
enum moec_status moec_gpu_shared(struct moec_backend *self, uint32_t layer, uint32_t n_tok,
                                 struct moec_error *err);
enum moec_status moec_gpu_combine(struct moec_backend *self, uint32_t layer,
                                  const struct moec_backend_sum *sum, float *hidden, struct moec_error *err);

#endif
