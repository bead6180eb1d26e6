/* The dense weights of a model in a GPU's memory, beside the model that they are copies of. One stream
 * computes with them, for all sessions: what is given to it is done in that order. Thread rule: immutable
 * after creation. */
#ifndef MOEC_RUNTIME_GPU_MODEL_H
#define MOEC_RUNTIME_GPU_MODEL_H

#include "runtime/cuda/gpu_transfer.h"
#include "runtime/forward/moe/sparsity.h"
#include "runtime/forward/weights/model.h"

/* Biases of a layer's routed experts, or of its dense MLP, by enum moec_projection: F32, an expert's `stride`
 * floats behind the one before; NULL without. */
struct moec_gpu_biases {
    float *at[MOEC_PROJECTION_COUNT];
    size_t stride[MOEC_PROJECTION_COUNT];
};

struct moec_gpu_model {
    const struct moec_model *model; /* resident; this and the device: borrowed until freed */
    struct moec_gpu *gpu;
    struct moec_gpu_stream *stream; /* this and all that follow: owned */
    uint8_t *blob; /* the device's, as the pointers below: rows of matrices as they are encoded */
    float *vectors;
    /* As the model's, with pointers to the device's memory: vectors are padded with zeros to whole lanes. */
    struct moec_layer *layers;
    struct moec_gpu_biases *biases; /* (n_layer) */
    struct moec_token_rows embedding, head;
    struct moec_matrix output_projection;
    float *final_norm, *head_bias, *output_projection_bias, *encoder_norm;
    float *position_bias[2];        /* by enum moec_stack */
    struct moec_sparsity *sparsity; /* of routed experts, borrowed, or NULL */
    uint16_t *scales;               /* its scales of neurons, the device's, owned; or NULL */
};

/* Bytes of the device's memory, for a budget: at least those of a model of which this is known before it is
 * loaded. */
uint64_t moec_gpu_model_bytes(const struct moec_config *config, uint64_t dense_bytes,
                              const struct moec_sparsity *sparsity);

/* `sparsity`, or NULL, is what forward passes on the device leave out. Errors: MOEC_ERR_UNSUPPORTED for a
 * streamed model; the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_model_create(struct moec_gpu *gpu, const struct moec_model *model,
                                                        struct moec_sparsity *sparsity,
                                                        struct moec_gpu_model **out, struct moec_error *err);
/* No sparsity from now on, or another one: nothing that was given uses the one before. Errors: the device's,
 * after which there is none. */
void moec_gpu_model_keep_all(struct moec_gpu_model *model);
MOEC_WARN_UNUSED enum moec_status moec_gpu_model_leave_out(struct moec_gpu_model *model,
                                                           struct moec_gpu_transfer *transfer,
                                                           struct moec_sparsity *sparsity,
                                                           struct moec_error *err);
void moec_gpu_model_free(struct moec_gpu_model *model); /* NULL-safe */

#endif
