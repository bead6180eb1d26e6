/* Divides a device's memory between what a bundle needs there: as the memory plan of the process
 * (runtime/engine/memory_plan.h), with a pool of experts in place of the buffer. The budget covers what the
 * runtime allocates; what the driver takes for itself comes on top. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_VRAM_PLAN_H
#define MOEC_RUNTIME_VRAM_PLAN_H

#include "formats/bundle/bundle.h"

struct moec_sparsity;

/* The pool, and the copies whose records are in it. */
struct moec_vram_records {
    const uint32_t *copies;               /* borrowed for the call */
    uint32_t n_copy;                      /* 1 or 2 */
    const struct moec_sparsity *sparsity; /* or NULL, borrowed for the call */
};

struct moec_vram_request {
    const struct moec_bundle *bundle;
    struct moec_vram_records records;
    uint64_t budget_bytes; /* 0 = what is free on the device, less a sixteenth */
    uint64_t free_bytes;   /* on the device */
    struct {
        uint32_t n_context, n, n_beams; /* at least 1 */
    } sessions;
    bool rounds_inputs;  /* the arithmetic bf16 */
    uint32_t max_tokens; /* the largest chunk that is wanted */
};

struct moec_vram_plan {
    uint64_t dense_bytes, kv_bytes, scratch_bytes, pool_bytes;
    uint64_t total_bytes;
    uint32_t max_tokens; /* at most the one wanted */
};

/* Errors: MOEC_ERR_BUDGET below the floor (a chunk of one token, a pool of the largest expert), and for a
 * budget that is not free on the device, itemised. */
MOEC_WARN_UNUSED enum moec_status moec_vram_plan_make(const struct moec_vram_request *request,
                                                      struct moec_vram_plan *plan, struct moec_error *err);

#endif
