/* A forward pass on a GPU: the backend (runtime/forward/context/backend.h) whose memory is the device's, with kernels
 * on the stream of a model's weights.
 *
 * A layer is given to the device as a row of launches; the process waits for it once in a MoE layer, for the
 * router's logits, and once for the logits of the head. What it gives along (tokens, positions, which rows an
 * expert takes) goes by way of pinned pieces. Thread rule: one thread at a time for each backend; several may
 * share a model, and their work is done in the order in which it is given. */
#ifndef MOEC_RUNTIME_GPU_BACKEND_H
#define MOEC_RUNTIME_GPU_BACKEND_H

#include "runtime/cuda/gpu_kernels.h"
#include "runtime/cuda/gpu_model.h"
#include "runtime/forward/context/backend.h"
#include "runtime/kernels/arithmetic.h"

struct moec_gpu_backend;

/* Bytes for batches of up to max_tokens, for a budget. */
struct moec_gpu_backend_sizes {
    uint64_t device_bytes; /* of the device's memory */
    uint64_t host_bytes;   /* of the process's, pinned or not */
};
struct moec_gpu_backend_sizes moec_gpu_backend_sizes_of(const struct moec_config *config,
                                                        uint32_t max_tokens);

/* Model and kernels are borrowed until freed. With `cooperates` the source of experts may leave some to the
 * process, in batches of up to MOEC_COOPERATION_TOKENS. Errors: the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_backend_create(const struct moec_gpu_model *model,
                                                          const struct moec_gpu_kernels *kernels,
                                                          uint32_t max_tokens, bool cooperates,
                                                          struct moec_gpu_backend **out,
                                                          struct moec_error *err);
/* From here on computes with another model of the same device, in batches of up to max_tokens, where it is
 * not the one at work; what was given before is done then. Its working memory is used again where it
 * suffices, and made anew otherwise: after an error the backend can only be freed. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_backend_turn(struct moec_gpu_backend *backend,
                                                        const struct moec_gpu_model *model,
                                                        uint32_t max_tokens, struct moec_error *err);

/* Whether such a device computes in this arithmetic. Errors: MOEC_ERR_UNSUPPORTED. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_check_arithmetic(const struct moec_gpu_info *info,
                                                            enum moec_arithmetic arithmetic,
                                                            struct moec_error *err);
/* Products from here on, until the backend turns to another model, in the arithmetic bf16
 * (runtime/cuda/kernels/bf16.h), with so many bytes of the device's memory more; or canonical again. The
 * device computes in it (moec_gpu_check_arithmetic). Errors: the device's. */
uint64_t moec_gpu_backend_bf16_bytes(const struct moec_config *config, uint32_t max_tokens);
MOEC_WARN_UNUSED enum moec_status moec_gpu_backend_use_bf16(struct moec_gpu_backend *backend,
                                                            struct moec_error *err);
void moec_gpu_backend_use_canonical(struct moec_gpu_backend *backend);

/* NULL-safe. What was allocated by it has been freed. */
void moec_gpu_backend_free(struct moec_gpu_backend *backend);

/* To be set in a forward pass over the same model with as many tokens, whose source of experts answers with
 * the device's memory, on the model's stream. */
struct moec_backend *moec_gpu_backend_of(struct moec_gpu_backend *backend);

#endif
