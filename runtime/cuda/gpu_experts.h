/* Experts in a GPU's memory: a pool of records in front of another source of experts, whose records lie in
 * pinned memory (the expert cache of the process, in front of storage).
 *
 * Which records are in the pool is decided by bytes and an eviction alone
 * (runtime/policy/schedule/residency.h), as in the cache behind it. What an answer misses is asked of that cache, and
 * what is there begins at once to be copied, on a stream of its own, while the experts that are present are
 * computed:
 *
 *     absent --room--> copying --landed--> ready <--> held      (evicted: absent)
 *
 * What a predictor names for the next layer is copied too, from what the cache behind has, on a third stream
 * and piece by piece (runtime/cuda/gpu_prefetches.h): it takes room as guesses do in that cache, and is given up
 * when the router asks for others (runtime/policy/schedule/preload.h, runtime/policy/schedule/read_order.h).
 *
 * The streams run on without the process. Work on an expert waits for its copy by an event; a copy into room
 * that an evicted record had waits for the work that used it, by an event too. The record in pinned memory is
 * held until its copy has landed, and released before the session waits for another one, so that the rule of
 * the cache behind it holds: who waits for a record there holds none.
 *
 * Records keep their sizes, and are not moved: where free bytes suffice but lie apart, more is evicted.
 *
 * Thread rule: as a source of experts; all uses of experts are given to one stream. Nothing is allocated
 * after creation. */
#ifndef MOEC_RUNTIME_GPU_EXPERTS_H
#define MOEC_RUNTIME_GPU_EXPERTS_H

#include "formats/bundle/bundle.h"
#include "runtime/cuda/gpu.h"
#include "runtime/policy/evict/evict.h"
#include "runtime/policy/predict/predict.h"
#include "runtime/seam/experts.h"

struct moec_gpu_experts;

#define MOEC_GPU_FORMS 2 /* in which experts are had: the copy that is run, and its low copy */

struct moec_gpu_pool_setup {
    uint64_t n_bytes;                /* at least the largest record; more than all need is not allocated */
    uint32_t n_form;                 /* 1 or 2; 0 counts as 1 */
    uint32_t copies[MOEC_GPU_FORMS]; /* of the bundle, by form */
};

/* Which experts stay in the pool. */
struct moec_gpu_keeping {
    const struct moec_evict_ops *policy; /* NULL: least recently used */
    const float *weights;                /* of struct moec_evict_setup; borrowed for the call, or NULL */
};

/* Which are guessed. */
struct moec_gpu_guesses {
    const struct moec_predict_ops *predictor; /* NULL = nothing is guessed, nor where all records have room */
    uint32_t count;                           /* guesses after each answer; 0 = bounded by time */
    uint32_t ahead;                           /* layers that are predicted, at most; 0 = 1 */
    uint64_t piece_bytes; /* of a guess, between which it may be given up; 0: a mebibyte */
};

/* A missed expert is computed by the processor where that is faster (runtime/policy/schedule/cooperation.h):
 * for one session, with a backend that cooperates. Times of a byte; 0: measured, of the processor while it
 * runs, but for the device's own, which is small. */
struct moec_gpu_cooperation {
    bool is_on;
    double cpu_byte_ns, copy_byte_ns, gpu_byte_ns;
};

struct moec_gpu_experts_setup {
    struct moec_gpu *gpu;            /* this and the three that follow: borrowed until freed */
    struct moec_gpu_stream *compute; /* that experts are used on */
    struct moec_experts *behind; /* offers as many forms: records of their copies whole, in pinned memory */
    const struct moec_bundle *bundle;
    struct moec_gpu_pool_setup pool;
    struct moec_gpu_keeping keeps;
    struct moec_gpu_guesses guesses;
    struct moec_gpu_cooperation cooperation;
};

/* Bytes that records of these copies take in a pool: the largest, all of them. */
struct moec_gpu_pool_sizes {
    uint64_t largest_bytes, all_bytes;
};
struct moec_gpu_pool_sizes moec_gpu_pool_sizes_of(const struct moec_bundle *bundle, const uint32_t *copies,
                                                  uint32_t n_copy);

/* Bytes of the process's memory, for a budget. */
uint64_t moec_gpu_experts_table_bytes(const struct moec_bundle *bundle, const struct moec_evict_ops *policy,
                                      const struct moec_predict_ops *predictor, uint32_t ahead,
                                      uint32_t n_form);

/* Errors: MOEC_ERR_BUDGET for a pool below the largest record; the device's. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_experts_create(const struct moec_gpu_experts_setup *setup,
                                                          struct moec_gpu_experts **out,
                                                          struct moec_error *err);
/* Every record must have been released. NULL-safe. */
void moec_gpu_experts_free(struct moec_gpu_experts *experts);

/* The source to give to a forward pass; borrowed until freed. */
struct moec_experts *moec_gpu_experts_source(struct moec_gpu_experts *experts);

/* Gives back every record behind, when copies under way have landed: another user of the source behind goes
 * on with it. Nothing is held. */
void moec_gpu_experts_settle(struct moec_gpu_experts *experts);

uint64_t moec_gpu_experts_pool_bytes(const struct moec_gpu_experts *experts);

/* Since creation: each expert that is asked for counts once. */
struct moec_gpu_experts_counters {
    uint64_t hits; /* its bytes were in the pool */
    uint64_t late; /* on their way there */
    uint64_t misses;
    uint64_t computed_here; /* of these, left to the processor */
    uint64_t evictions;
    uint64_t copied_bytes; /* guesses included: */
    uint64_t guessed_bytes;
    uint64_t record_bytes;   /* of the records of experts that were copied, in whole or in part */
    uint64_t useful_guesses; /* asked for before they left */
    uint64_t wasted_guesses; /* evicted before, or given up on their way */
};
struct moec_gpu_experts_counters moec_gpu_experts_counters(struct moec_gpu_experts *experts);

#endif
