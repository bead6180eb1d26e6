/* Where the engine gets a routed expert's weights from: the seam between computing and storage.
 *
 * The forward pass asks for one expert of one layer at a time, uses it and gives it back. Behind the seam
 * stand the bundle's cache within the memory budget (runtime/expert_cache.h) and the profiler's table of
 * encoded variants. Thread rule: acquire and release are called from one thread for each session; an
 * implementation that several sessions share locks inside. */
#ifndef MOEC_RUNTIME_EXPERTS_H
#define MOEC_RUNTIME_EXPERTS_H

#include "formats/record.h"

struct moec_experts;

struct moec_experts_ops {
    /* Points `mlp` at the expert's weights, which stay valid and unchanged until release. `layer` is the
     * model layer. Errors name layer and expert. */
    enum moec_status (*acquire)(struct moec_experts *self, uint32_t layer, uint32_t expert,
                                struct moec_mlp *mlp, struct moec_error *err);
    void (*release)(struct moec_experts *self, uint32_t layer, uint32_t expert);

    /* Optional (NULL): the router has answered; these experts (increasing, each once) will be acquired in
     * this order. A streaming source starts loading what is missing. */
    void (*expect)(struct moec_experts *self, uint32_t layer, const uint32_t *experts, uint32_t n_experts);

    /* Optional (NULL = always): whether acquire would answer at once. The forward pass computes experts that
     * are ready together and never waits for one while it could compute another. */
    bool (*ready)(struct moec_experts *self, uint32_t layer, uint32_t expert);
};

/* First member of every implementation. */
struct moec_experts {
    const struct moec_experts_ops *ops;
    uint32_t
        max_held; /* experts that may be held at once; 0 and 1 mean that each is released before the next */
};

#endif
