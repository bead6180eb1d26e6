/* The parts of a pool of experts on a GPU, which its files share (internal to runtime/cuda): gpu_experts.c
 * answers sessions, gpu_preload.c guesses, gpu_experts_create.c makes the parts. One lock covers all of it;
 * the thread of guesses takes it for short times. */
#ifndef MOEC_RUNTIME_GPU_EXPERTS_INTERNAL_H
#define MOEC_RUNTIME_GPU_EXPERTS_INTERNAL_H

#include "runtime/cuda/gpu_experts.h"
#include "runtime/cuda/gpu_prefetches.h"
#include "runtime/policy/schedule/preload.h"
#include "runtime/policy/schedule/residency.h"

#include <pthread.h>

#define MOEC_GPU_FLYING    32u  /* copies under way, at most */
#define MOEC_GPU_MARKS     64u  /* marks behind uses of experts that are told apart */
#define MOEC_GPU_ALIGNMENT 256u /* of records in the pool */

struct moec_gpu_entry {
    uint64_t offset;   /* in the pool */
    uint64_t copy;     /* number of the copy that brought it */
    uint64_t used;     /* mark behind its last use; 0 = none */
    uint32_t expected; /* demands of answers for which it is present, and that nobody has taken yet */
    uint32_t asked;    /* demands that the source behind was told of, and that nobody has taken there */
    uint32_t held;
    bool is_here; /* this answer's is computed by the processor: */
    bool is_held_here;
    bool is_prefetch; /* brought, or being brought, by a guess that nobody has asked for yet */
};

/* A record in pinned memory that a copy under way reads. */
struct moec_gpu_flight {
    struct moec_expert_request request;
    uint64_t copy;
};

/* Experts, by keys as runtime/policy/schedule/residency.h has them. */
struct moec_gpu_expert_keys {
    uint32_t n_layer, n_form, n_expert, n;
    int32_t *ordinals;              /* (config.n_layer): MoE ordinal or -1, owned */
    uint64_t *slot_bytes;           /* (n), owned */
    struct moec_gpu_entry *entries; /* (n), owned */
};

struct moec_gpu_pool {
    uint8_t *memory; /* the device's, owned */
    uint64_t n_bytes;
    uint32_t *slots; /* (keys) those that have a place, by offset, owned */
    uint32_t n_slot;
};

/* The answer at work. */
struct moec_gpu_wanted {
    /* (n_form x n_expert) each, owned. */
    bool *was_present, *is_ready;
    uint32_t *missing, *takers, *order, *turns;
    uint32_t layer, form;
    uint32_t n, n_tried; /* misses in order, of which n_tried need no copy any more */
    bool was_told;       /* the source behind was told of it */
};

struct moec_gpu_copying {
    struct moec_gpu_stream *stream;
    struct moec_gpu_event *landed[MOEC_GPU_FLYING], *marks[MOEC_GPU_MARKS];
    struct moec_gpu_flight flights[MOEC_GPU_FLYING]; /* a ring */
    uint64_t n_copy, n_landed;                       /* that were begun, and that are known to be done */
    uint64_t n_mark, freed, n_waited; /* marks made, behind which room was freed, that copies wait for */
    uint64_t freed_copy;              /* the last copy to room that was freed */
};

/* NULL without a predictor, or where every record has room. */
struct moec_gpu_guessing {
    struct moec_preload *preload;
    struct moec_gpu_prefetches *prefetches;
    uint32_t *pending; /* (n_layer x n_expert) keys that were guessed and are not in memory yet, owned */
    uint32_t n_pending;
    uint32_t key;  /* whose guess is on its way, or MOEC_EVICT_NONE */
    bool has_left; /* a guess that was on its way lost its room: what comes there waits for its pieces */
    bool is_out;   /* nothing more is worth a guess until the next answer */
};

/* Experts that the processor computes: held ones, their bytes times tokens, and since when. */
struct moec_gpu_here {
    uint32_t n, n_tok;
    double n_bytes, cpu_byte_ns, copy_byte_ns;
    uint64_t since_ns;
};

struct moec_gpu_experts {
    struct moec_experts experts; /* first: the source */
    struct moec_gpu_experts_setup setup;
    const struct moec_gpu_ops *ops;
    struct moec_gpu_expert_keys keys;
    struct moec_gpu_pool pool;
    uint32_t n_held; /* of all keys */
    struct moec_residency *residency;
    struct moec_gpu_experts_counters counters;
    struct moec_gpu_wanted wanted;
    struct moec_gpu_copying copies;
    struct moec_gpu_guessing guesses;
    struct moec_gpu_here here;
    pthread_mutex_t lock;
    pthread_cond_t released;
};

static inline uint32_t moec_gpu_key(const struct moec_gpu_experts *experts,
                                    struct moec_expert_request request)
{
    return ((uint32_t)experts->keys.ordinals[request.layer] * experts->keys.n_form + request.form) *
               experts->keys.n_expert +
           request.expert;
}

static inline const struct moec_record_layout *moec_gpu_layout(const struct moec_gpu_experts *experts,
                                                               uint32_t key)
{
    const uint32_t n_expert = experts->keys.n_expert, form = key / n_expert % experts->keys.n_form;
    return moec_bundle_layout(experts->setup.bundle, experts->setup.pool.copies[form],
                              key / n_expert / experts->keys.n_form, key % n_expert);
}

static inline struct moec_gpu_event *moec_gpu_landed(const struct moec_gpu_experts *experts, uint64_t copy)
{
    return experts->copies.landed[copy % MOEC_GPU_FLYING];
}

/* ---- gpu_experts.c: with the lock held ---- */

extern const struct moec_experts_ops moec_gpu_experts_ops;

/* Of the residency. */
void moec_gpu_evicted(void *context, uint32_t key);
/* Gives a present key a place in the pool, and takes it away; what comes next there waits for what used it.
 */
bool moec_gpu_place(struct moec_gpu_experts *experts, uint32_t key);
void moec_gpu_leave(struct moec_gpu_experts *experts, uint32_t key);
bool moec_gpu_is_ready_behind(const struct moec_gpu_experts *experts, struct moec_expert_request request);
/* The oldest copy under way is done, or will never be: its source is given back. */
void moec_gpu_end_flight(struct moec_gpu_experts *experts);

/* ---- gpu_preload.c: with the lock held, but for create and free; no-ops without guesses ---- */

MOEC_WARN_UNUSED enum moec_status moec_gpu_preload_create(struct moec_gpu_experts *experts,
                                                          struct moec_error *err);
void moec_gpu_preload_free(struct moec_gpu_experts *experts);
uint64_t moec_gpu_preload_bytes(const struct moec_bundle *bundle, const struct moec_predict_ops *predictor,
                                uint32_t ahead);

/* A router has answered: what it asks for has been asked of the residency. */
void moec_gpu_preload_answer(struct moec_gpu_experts *experts, const struct moec_router_answer *answer);
bool moec_gpu_preload_wants_rank(const struct moec_gpu_experts *experts, uint32_t ahead);
void moec_gpu_preload_rank(struct moec_gpu_experts *experts, const struct moec_router_answer *answer,
                           uint32_t ahead);
void moec_gpu_preload_know(struct moec_gpu_experts *experts, uint32_t layer, const uint32_t *list,
                           uint32_t n);
/* Something behind, or room here, may have changed. */
void moec_gpu_preload_wake(struct moec_gpu_experts *experts);
/* A key was asked for, or leaves: a guess of it was right, or not. */
void moec_gpu_preload_judge(struct moec_gpu_experts *experts, uint32_t key, bool is_right);

#endif
