/* The dense weights of a model in a GPU's memory, beside the model that they are copies of. One stream
 * computes with them, for all sessions: what is given to it is done in that order. Thread rule: immutable
 * after creation. */
#ifndef MOEC_RUNTIME_GPU_MODEL_H
#define MOEC_RUNTIME_GPU_MODEL_H

#include "runtime/cuda/gpu.h"
#include "runtime/forward/model.h"

struct moec_gpu_model {
    const struct moec_model *model; /* resident; this and the device: borrowed until freed */
    struct moec_gpu *gpu;
    struct moec_gpu_stream *stream; /* this and all that follow: owned */
    uint8_t *blob; /* the device's, as the pointers below: rows of matrices as they are encoded */
    float *vectors;
    /* As the model's, with pointers to the device's memory: vectors are padded with zeros to whole lanes. */
    struct moec_layer *layers;
    struct moec_matrix embedding, head;
    float *final_norm, *head_bias;
};

/* Whether layers of all kinds that the model has can run on a device. Errors: MOEC_ERR_UNSUPPORTED, naming
 * what cannot. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_model_check(const struct moec_config *config,
                                                       struct moec_error *err);

/* Bytes of the device's memory, for a budget: at least those of a model of which this is known before it is
 * loaded. */
uint64_t moec_gpu_model_bytes(const struct moec_config *config, uint64_t dense_bytes);

/* Errors: those of moec_gpu_model_check, and the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_model_create(struct moec_gpu *gpu, const struct moec_model *model,
                                                        struct moec_gpu_model **out, struct moec_error *err);
void moec_gpu_model_free(struct moec_gpu_model *model); /* NULL-safe */

#endif
