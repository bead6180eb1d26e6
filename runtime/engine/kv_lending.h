/* The expert buffer has, beside its own memory, that which KV caches will fill later (D7): the plan counts
 * them full, so a run that was admitted never ends for memory, and what is empty yet holds experts meanwhile.
 * As sequences grow the buffer shrinks, in steps, to its own size. Thread rule: sessions take and give from
 * any thread. */
#ifndef MOEC_RUNTIME_KV_LENDING_H
#define MOEC_RUNTIME_KV_LENDING_H

#include "runtime/engine/memory_plan.h"
#include "runtime/forward/attention/kv_lender.h"

#include <pthread.h>

struct moec_expert_cache;

struct moec_kv_lending {
    struct moec_kv_lender lender;    /* of this, for sessions; without functions where nothing is lent */
    struct moec_expert_cache *cache; /* borrowed; NULL until the lending begins */
    pthread_mutex_t lock;
    uint64_t own_bytes;   /* of the buffer, by the plan */
    uint64_t lent_bytes;  /* that it has beside */
    uint64_t free_bytes;  /* of KV caches, neither lent nor taken */
    uint64_t spare_bytes; /* of what the plan counts for programs, that the buffer has beside */
};

/* What can be lent when sessions begin with n_first positions: set in *lending, nothing where all experts are
 * held anyway. */
void moec_kv_lending_plan(struct moec_kv_lending *lending, const struct moec_memory_plan *plan,
                          const struct moec_memory_request *request, uint32_t n_first);

/* From here on sessions take memory of a cache that was created with own_bytes + lent_bytes. */
void moec_kv_lending_begin(struct moec_kv_lending *lending, struct moec_expert_cache *cache);
/* When no session is left; a lending that never began is allowed. */
void moec_kv_lending_end(struct moec_kv_lending *lending);

/* Gives the buffer n_bytes beside that, in place of what it was given so before
 * (runtime/engine/memory_watch.h). The caller holds no experts. */
void moec_kv_lending_spare(struct moec_kv_lending *lending, uint64_t n_bytes);

/* What of KV caches the buffer has beside its own now. */
uint64_t moec_kv_lending_lent_bytes(struct moec_kv_lending *lending);

#endif
