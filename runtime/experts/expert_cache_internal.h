/* The parts of an expert cache, which its files share: runtime/experts/expert_cache.c answers sessions,
 * runtime/experts/loader.c reads, both change entries through runtime/experts/cache_entry.h alone;
 * runtime/experts/expert_cache_create.c makes the parts, runtime/experts/expert_cache_counters.c counts what
 * happened (internal to runtime/).
 *
 * One lock covers all of it. `is_driven` is the baton of the reader: the thread that sets it, under the lock,
 * may submit requests and wait for them with the lock released; everyone else leaves what is to be read in a
 * queue and wakes the reader. */
#ifndef MOEC_RUNTIME_EXPERT_CACHE_INTERNAL_H
#define MOEC_RUNTIME_EXPERT_CACHE_INTERNAL_H

#include "runtime/experts/arena.h"
#include "runtime/experts/cache_entry.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/experts/expert_units.h"
#include "runtime/policy/evict/key_list.h"
#include "runtime/policy/schedule/preload.h"
#include "runtime/policy/schedule/prompt_prefetch.h"
#include "runtime/policy/schedule/read_order.h"
#include "runtime/policy/schedule/residency.h"
#include "runtime/storage/storage.h"
#include "runtime/trace/trace.h"

#include <pthread.h>

#define MOEC_CACHE_DEPTH  32                   /* reads in flight at most */
#define MOEC_LOADER_BYTES ((uint64_t)64 << 10) /* of its thread's stack that are touched, at most */

struct moec_cache_read {
    struct moec_read read; /* first; tag = key */
    bool is_flying;
    bool is_alone;      /* nothing else was in flight when it was begun */
    bool is_measurable; /* its time says something about the device */
    bool is_whole;      /* the record, else its up section or units */
    bool is_units;
    struct moec_unit_read units;
};

struct moec_expert_cache {
    struct moec_experts experts; /* first: the source */
    const struct moec_bundle *bundle;
    struct moec_expert_cache_options options;
    uint32_t n_expert;
    uint32_t n_form;   /* that are served */
    uint32_t n_layer;  /* MoE layers */
    uint32_t n_key;    /* as runtime/policy/schedule/residency.h has them */
    int32_t *ordinals; /* (config.n_layer): MoE ordinal or -1, owned */
    struct moec_expert_form forms[MOEC_CACHE_FORMS];
    struct moec_storage *storages[MOEC_CACHE_FORMS]; /* of each form */
    uint64_t buffer_bytes;
    uint64_t most_bytes;                  /* of the arena's memory */
    bool keeps_expected;                  /* one session: what it expects is kept until it has had it */
    uint64_t *slot_bytes;                 /* (n_key), owned */
    struct moec_cache_counters *counters; /* (n_layer, n_form), owned */
    struct moec_cache_entry *entries;     /* (n_key), owned */
    struct moec_key_link *links;          /* likewise: the lists go through these */
    bool *was_present;                    /* (n_form x n_expert) of the answer at work, owned */
    bool *is_ready;                       /* (n_form x n_expert) likewise */
    uint32_t *turns;                      /* (n_form x n_expert) likewise, in the order of rule 5, owned */
    struct moec_key_list lists[MOEC_CACHE_N_LIST];
    struct moec_residency *residency;
    struct moec_arena *arenas[2]; /* of the high and the low copies where these have pools, else the first */
    uint8_t *pool_memory;         /* that both are in, owned; NULL = the first has its own */
    struct moec_preload *preload; /* NULL = nothing is prefetched */
    struct moec_prompt_prefetch prompt_prefetch; /* never open without options.preload.reads_on */
    struct moec_expert_units *units;             /* NULL = experts come whole; owned */
    struct moec_error failure;                   /* words for the last record whose bytes were wrong */
    uint32_t failure_key;

    struct moec_reader *reader;
    struct moec_cache_read reads[MOEC_CACHE_DEPTH];
    struct moec_cache_read *free_reads[MOEC_CACHE_DEPTH];
    uint32_t depth, n_free;
    uint64_t last_done_ns;
    uint64_t busy_until_ns; /* of the reads that were counted */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* for sessions: a record came, went or was released, or the reader is free */
    pthread_cond_t work;    /* for the loader */
    pthread_t loader;
    bool has_loader;
    bool is_stopping;
    bool is_driven;
    bool is_blocked; /* the next slot finds no place until one is freed or unpinned */
    uint32_t blocked_key;
    bool is_prefetched_out; /* nothing more is worth a prefetch until the next answer */
    bool loader_sleeps;
    uint32_t n_waiting;  /* sessions that wait for a read: they begin what is wanted themselves */
    uint32_t n_sleeping; /* sessions that wait for `changed` */
    uint32_t n_hurried;  /* callers that wait for the warm start */
};

/* NULL where slots hold whole records. */
static inline struct moec_unit_frames *moec_cache_frames(const struct moec_expert_cache *cache)
{
    return cache->units != NULL ? cache->units->frames : NULL;
}

static inline struct moec_cache_counters *moec_cache_counters_of(struct moec_expert_cache *cache,
                                                                 uint32_t key)
{
    return &cache->counters[key / cache->n_expert];
}

static inline struct moec_read_rules moec_cache_read_rules(const struct moec_expert_cache *cache)
{
    return (struct moec_read_rules){.preload_count = cache->options.preload.count,
                                    .reads_on = moec_prompt_prefetch_is_open(&cache->prompt_prefetch),
                                    .begins_in_turn = cache->reader->begins_in_turn,
                                    .are_known = cache->preload != NULL &&
                                                 cache->options.preload.predictor->knows_tokens};
}

/* What a key is of. */
static inline uint32_t moec_cache_ordinal(const struct moec_expert_cache *cache, uint32_t key)
{
    return key / (cache->n_form * cache->n_expert);
}

static inline uint32_t moec_cache_expert(const struct moec_expert_cache *cache, uint32_t key)
{
    return key % cache->n_expert;
}

static inline uint32_t moec_cache_form(const struct moec_expert_cache *cache, uint32_t key)
{
    return key / cache->n_expert % cache->n_form;
}

static inline struct moec_storage *moec_cache_storage(const struct moec_expert_cache *cache, uint32_t key)
{
    return cache->storages[moec_cache_form(cache, key)];
}

static inline struct moec_arena *moec_cache_arena(const struct moec_expert_cache *cache, uint32_t key)
{
    return cache->arenas[cache->options.buffer.low_pool_bytes > 0 && moec_cache_form(cache, key) > 0];
}

static inline uint32_t moec_cache_key(const struct moec_expert_cache *cache, uint32_t ordinal, uint32_t form,
                                      uint32_t expert)
{
    return (ordinal * cache->n_form + form) * cache->n_expert + expert;
}

/* A span of a trace about a key. */
void moec_cache_trace(struct moec_expert_cache *cache, uint32_t key, struct moec_trace_span span);

/* ---- runtime/experts/expert_cache.c: all with the lock held ---- */

extern const struct moec_experts_ops moec_cache_ops;

/* Of a residency (its context is the cache): a key was given up. */
void moec_cache_evicted(void *context, uint32_t key);
/* Makes room for what the preloader names and puts it into the queue. */
bool moec_cache_prefetch(struct moec_expert_cache *cache, uint32_t key);

/* ---- runtime/experts/loader.c ---- */

/* Starts the loader's thread. Errors: MOEC_ERR_MEMORY when there can be no more threads. */
MOEC_WARN_UNUSED enum moec_status moec_loader_start(struct moec_expert_cache *cache, struct moec_error *err);
/* Ends it when what is in flight has come. No session may be at work. */
void moec_loader_stop(struct moec_expert_cache *cache);

/* With the lock held, which they may release meanwhile. */

/* Takes back prefetches that the reader has not begun, unless another thread has the reader. */
void moec_loader_cancel(struct moec_expert_cache *cache);
/* Begins the demanded reads that have been queued, now, in this thread or in the one that has the reader. */
void moec_loader_begin(struct moec_expert_cache *cache);
/* Takes what has been read by now, without waiting, where prompts are read ahead or one session is served, and
 * this thread can have the reader. */
void moec_loader_take(struct moec_expert_cache *cache);
/* Waits until something has changed that may concern a demanded record: for the device, where this thread can
 * have the reader. */
void moec_loader_wait(struct moec_expert_cache *cache);
/* Waits until a read has ended or a record was released, and begins none. */
void moec_loader_wait_change(struct moec_expert_cache *cache);
/* Wakes the loader if there is something for it to do. */
void moec_loader_notify(struct moec_expert_cache *cache);

#endif
