/* What the files of a GPU for offline work share (internal to runtime/cuda). Pointers to floats are the
 * device's unless it says otherwise. */
#ifndef MOEC_RUNTIME_GPU_PLACE_INTERNAL_H
#define MOEC_RUNTIME_GPU_PLACE_INTERNAL_H

#include "runtime/cuda/gpu_place.h"
#include "runtime/forward/context/context.h"

/* Memory that a caller asked for. */
struct moec_gpu_place_memory {
    uint8_t *first;
    uint64_t n_bytes;
};

/* Keys and values that spans of a batch read and do not make, in the process's memory and brought. */
struct moec_gpu_place_past {
    const float *keys, *values;
    uint32_t n; /* rows */
    float *there[2];
};

struct moec_gpu_place {
    struct moec_gpu *gpu;
    bool owns_gpu;
    bool has_told;
    bool rounds; /* passes in bf16 have room too */
    const struct moec_gpu_kernels *kernels;
    struct moec_gpu_info info;
    struct moec_gpu_transfer transfer;
    struct moec_gpu_copies copies;
    struct moec_gpu_backend *backend; /* owned; turned to the model at work; NULL before the first step */
    uint32_t max_tokens;              /* of all passes */

    /* What is taken or set aside of the limit. */
    uint64_t limit_bytes, dense_bytes, work_bytes, memory_bytes, largest_bytes;

    struct moec_gpu_place_memory *memories; /* (n_memory), owned */
    size_t n_memory, memory_capacity;

    /* Rows that are brought for a step, owned: (M, S) hidden states; four times M rows of keys or values:
     * own keys, own values, keys and values before them; states of running layers. */
    float *rows, *kv, *states;
    uint64_t row_bytes, kv_bytes, state_bytes;
    /* The process's, of a layer's steps (struct moec_backend_ops, hold), or NULL: whether `rows` has them,
     * and has them changed. */
    float *held;
    uint32_t n_held;
    bool held_is_there, held_has_changed;
    /* (M), owned, the process's: of the batch at work */
    struct moec_span *spans;
    struct moec_gpu_place_past *pasts;
    uint32_t *past_of; /* by span */
};

/* A model's backend in one arithmetic, on rows of either memory. */
struct moec_gpu_offload_backend {
    struct moec_backend backend; /* first */
    struct moec_gpu_offload *offload;
    enum moec_arithmetic arithmetic;
};

/* What a model has there. */
struct moec_gpu_offload {
    struct moec_offload offload; /* first */
    struct moec_gpu_offload_backend canonical, bf16;
    struct moec_gpu_place *place;
    struct moec_gpu_model *model; /* owned */
    uint64_t dense_bytes;
};

/* Whether this is the device's memory, of a caller's alloc. */
bool moec_gpu_place_has(const struct moec_gpu_place *place, const void *memory);
/* Memory for a caller, within the limit. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_place_alloc(struct moec_gpu_place *place, uint64_t n_bytes,
                                                       const char *what, void **out, struct moec_error *err);
void moec_gpu_place_free_memory(struct moec_gpu_place *place, void *memory);

/* Working memory and streams serve this backend's model and arithmetic from here on. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_place_turn(const struct moec_gpu_offload_backend *backend,
                                                      struct moec_error *err);

/* gpu_offload.c */
extern const struct moec_backend_ops moec_gpu_offload_ops;

#endif
