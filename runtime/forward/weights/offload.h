/* What a model has on a device that its forward passes compute on, where those who drive a pass keep rows,
 * keys and values in the process's memory: profiling, evaluating and compiling, which stop between layers and
 * keep what they find. A model that has it (struct moec_model) gives every forward pass over it a backend and
 * a source of experts there (moec_forward_init); in the canonical arithmetic results are the same bits (D1).
 *
 * Thread rule: one thread at a time for all models on a device. */
#ifndef MOEC_RUNTIME_OFFLOAD_H
#define MOEC_RUNTIME_OFFLOAD_H

#include "formats/base/error.h"
#include "runtime/kernels/arithmetic.h"

#include <stdint.h>

struct moec_backend;
struct moec_experts;
struct moec_offload;
struct moec_sparsity;

struct moec_offload_ops {
    /* The backend of passes in batches of up to max_tokens, in this arithmetic. It takes rows, keys and
     * values of the process's memory as well as of its own alloc. Borrowed, and good until `free`; those of
     * two arithmetics may be used in turn, a step at a time. Errors: MOEC_ERR_UNSUPPORTED for an arithmetic
     * that the device has not; MOEC_ERR_BUDGET, itemised; the device's. */
    enum moec_status (*open)(struct moec_offload *self, uint32_t max_tokens, enum moec_arithmetic arithmetic,
                             struct moec_backend **out, struct moec_error *err);
    /* The experts of a source in the process's memory, which is borrowed, as copies on the device, until
     * `forget`. Errors: MOEC_ERR_UNSUPPORTED for a source that does not tell their bytes. */
    enum moec_status (*experts)(struct moec_offload *self, struct moec_experts *source,
                                struct moec_experts **out, struct moec_error *err);
    void (*forget)(struct moec_offload *self, struct moec_experts *experts);
    /* From now on passes leave out neurons by this sparsity of theirs, which is borrowed until the next call;
     * NULL: by none, which cannot fail. */
    enum moec_status (*leave_out)(struct moec_offload *self, struct moec_sparsity *sparsity,
                                  struct moec_error *err);
    void (*free)(struct moec_offload *self);
};

/* First member of every implementation. */
struct moec_offload {
    const struct moec_offload_ops *ops;
};

#endif
