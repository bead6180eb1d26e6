/* Experts in memory behind the runtime's own cache, for tokens that are timed (internal to profiler/device/):
 * what the cache itself takes of a token is part of the token's time. Of each MoE layer the first n_kept
 * experts stand for the others too. Thread rule: one thread. */
#ifndef MOEC_PROFILER_DEVICE_EXPERTS_H
#define MOEC_PROFILER_DEVICE_EXPERTS_H

#include "formats/bundle/bundle.h"
#include "profiler/common/progress.h"
#include "runtime/seam/experts.h"

struct moec_expert_cache;
struct moec_preload;

/* Zero is closed. */
struct moec_device_experts {
    struct moec_experts base; /* first: the source for a forward pass */
    const struct moec_bundle *bundle;
    struct moec_expert_cache *cache; /* owned */
    struct moec_preload *preload;    /* owned; NULL: nothing is predicted */
    uint32_t n_kept;                 /* of each MoE layer */
    uint64_t answered_ns;            /* when the router's last answer came */
};

/* Reads as many experts of each layer as limit_bytes hold, at least one. The bundle is borrowed. `out` may be
 * closed after a failure too. Errors: those of the cache and of reading, MOEC_ERR_CANCELLED. */
MOEC_WARN_UNUSED enum moec_status moec_device_experts_open(const struct moec_bundle *bundle,
                                                           uint64_t limit_bytes,
                                                           const struct moec_progress *progress,
                                                           struct moec_device_experts *out,
                                                           struct moec_error *err);

/* From now on the next layer's experts are predicted by its router, and ranked as for prefetches. Nothing is
 * read for it, as everything is there. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_device_experts_predict(struct moec_device_experts *experts,
                                                              struct moec_error *err);
void moec_device_experts_predict_no_more(struct moec_device_experts *experts);

void moec_device_experts_close(struct moec_device_experts *experts);

#endif
