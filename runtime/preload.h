/* What to preload, and when to leave it: turns a predictor's ranking into reads (shared by the runtime and
 * the simulator).
 *
 * A right guess that is read while the layer before computes hides that much of the read. A wrong one holds
 * up the reads that are then demanded by what is left of it, and may cost a resident record. So a guess is
 * acted upon when
 *
 *     p min(d, w) > (1 - p) (max(0, d - w) + c)
 *
 * p: how often guesses of this rank in this layer were right so far; d: time of the read; w: time until the
 * router is expected to answer; c: price of the record that makes room. p, d and w are learned while running
 * and start from the predictor's scores and from nothing known. With --preload-count N the first N guesses
 * are read whatever they cost, and the router's answer does not stop them.
 *
 * Thread rule: the caller's lock covers every call on one instance. */
#ifndef MOEC_RUNTIME_PRELOAD_H
#define MOEC_RUNTIME_PRELOAD_H

#include "runtime/predict.h"

struct moec_preload;

/* What the chooser may ask the cache. */
struct moec_preload_view {
    bool (*is_present)(void *context, uint32_t key);     /* there or on its way */
    uint64_t (*n_bytes_of)(void *context, uint32_t key); /* of its record */
    void *context;
};

struct moec_preload_setup {
    const struct moec_predict_ops *predictor;
    struct moec_predict_setup model;
    struct moec_preload_view view;
    uint32_t count; /* --preload-count; 0 = bounded by time */
};

uint64_t moec_preload_state_bytes(const struct moec_preload_setup *setup);
MOEC_WARN_UNUSED enum moec_status moec_preload_create(const struct moec_preload_setup *setup,
                                                      struct moec_preload **out, struct moec_error *err);
void moec_preload_free(struct moec_preload *preload); /* NULL-safe */

/* A router has answered at now_ns: judges the guesses that were made for its layer, and ranks the next one's
 * experts. After it, guesses for the layer that answered are no more to be made. */
void moec_preload_answer(struct moec_preload *preload, const struct moec_router_answer *answer,
                         uint32_t ordinal, uint64_t now_ns);

/* A read of n_bytes took this long by itself (device asked -> bytes there). */
void moec_preload_timed(struct moec_preload *preload, uint64_t n_bytes, uint64_t read_ns);

/* The next guess worth reading at now_ns: key (ordinal * n_expert + expert), or MOEC_EVICT_NONE. Skips what
 * is present. Each guess is given once; one that is not worth it now is asked about again at the next call.
 */
uint32_t moec_preload_next(struct moec_preload *preload, uint64_t now_ns);

#endif
