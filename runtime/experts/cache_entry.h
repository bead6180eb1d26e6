/* The life of one entry of an expert cache, in runtime/experts/cache_entry.c: its states, its queue and its
 * slot (internal to runtime/).
 *
 *     ABSENT   bring: QUEUED
 *     QUEUED   begin: READING, leave: ABSENT
 *     READING  end, good: READY, end, bad: QUEUED again, FAILED at the last try, ABSENT where nobody wants it
 *              take back: ABSENT, leave: doomed, and ABSENT when its read ends; bring: no longer doomed
 *     READY    leave: ABSENT
 *     FAILED   retry: QUEUED, leave: ABSENT
 *
 * Invariants, under the cache's lock:
 *  1. ABSENT: no slot; in the queue WAITING or in none.
 *  2. QUEUED: in one of DEMANDED, GUESSED, WARMING; it may have a slot already.
 *  3. READING: its slot is pinned, and one request in flight has its key as tag. Only here may it be doomed:
 *     its slot goes when the read ends. In no queue, or doomed and WAITING for room to be spared.
 *  4. READY: in no queue; it has a slot, pinned once for each session that holds it. No other state is held.
 *  5. FAILED: no slot, in no queue; somebody wishes for it.
 *  6. The residency has it as present exactly when it is QUEUED, READING and not doomed, READY or FAILED.
 *     Code that admits a key there calls bring here, and code that drops it calls leave, under one lock.
 *  7. is_prefetched: it is present, came for a prefetch, and nobody has asked for it since.
 *
 * No other file writes an entry's state, queue, flags, tries or problem. */
#ifndef MOEC_RUNTIME_CACHE_ENTRY_H
#define MOEC_RUNTIME_CACHE_ENTRY_H

#include "formats/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct moec_expert_cache;

enum moec_cache_state {
    MOEC_CACHE_ABSENT = 0,
    MOEC_CACHE_QUEUED,  /* to be read */
    MOEC_CACHE_READING, /* in flight; with is_doomed no longer present */
    MOEC_CACHE_READY,   /* checked */
    MOEC_CACHE_FAILED,  /* demanded, and cannot be read: kept until nobody demands it */
};

/* Queues, oldest first. */
enum moec_cache_list {
    MOEC_CACHE_WAITING, /* asked for, and absent: what is demanded leaves no room */
    MOEC_CACHE_DEMANDED,
    MOEC_CACHE_PREFETCHED,
    MOEC_CACHE_WARMING,
    MOEC_CACHE_N_LIST,
    MOEC_CACHE_NO_LIST = MOEC_CACHE_N_LIST
};

struct moec_cache_entry {
    /* Wishes of sessions; runtime/experts/expert_cache.c counts the first two. */
    uint32_t expected; /* announced by answers */
    uint32_t awaited;  /* no longer expected: sessions in acquire wait for it */
    uint32_t held;     /* acquired */

    int problem;   /* FAILED: an errno, or 0 for bytes that are not the record */
    uint8_t state; /* enum moec_cache_state */
    uint8_t list;  /* enum moec_cache_list */
    uint8_t kind;  /* enum moec_cache_list that the read was begun from */
    uint8_t tries; /* that failed */
    bool is_doomed;
    bool is_prefetched;
};

/* Sessions that want it, now or later in the same answer. */
static inline uint32_t moec_cache_wishes(const struct moec_cache_entry *entry)
{
    return entry->expected + entry->awaited + entry->held;
}

static inline bool moec_cache_is_demanded(const struct moec_cache_entry *entry)
{
    return moec_cache_wishes(entry) > 0 && !entry->is_doomed;
}

/* No session has to wait for it any longer. */
static inline bool moec_cache_has_ended(const struct moec_cache_entry *entry)
{
    return entry->state == MOEC_CACHE_READY || entry->state == MOEC_CACHE_FAILED;
}

/* Makes the tables of a new cache: everything absent. */
MOEC_WARN_UNUSED enum moec_status moec_cache_entries_create(struct moec_expert_cache *cache,
                                                            struct moec_error *err);
void moec_cache_entries_free(struct moec_expert_cache *cache);

/* ---- changes, with the lock held ---- */

/* A session asks for an absent key and there is no room; later, no session wants it any more. */
void moec_cache_entry_wait(struct moec_expert_cache *cache, uint32_t key);
void moec_cache_entry_stop_waiting(struct moec_expert_cache *cache, uint32_t key);

/* A key has become present: it is queued for reading, or, if its read is still in flight, no longer doomed.
 */
void moec_cache_entry_bring(struct moec_expert_cache *cache, uint32_t key, enum moec_cache_list list);

/* A session asks for a present key: one that is queued moves to DEMANDED. Counts a useful prefetch. */
void moec_cache_entry_ask(struct moec_expert_cache *cache, uint32_t key);

/* A key is no longer present: its slot is free, now or at the end of its read. Counts a wasted prefetch. */
void moec_cache_entry_leave(struct moec_expert_cache *cache, uint32_t key);

/* QUEUED with a slot: the loader makes a request for it. */
void moec_cache_entry_begin(struct moec_expert_cache *cache, uint32_t key);

/* READING: the reader gave the request back before it began. The caller drops the key from the residency. */
void moec_cache_entry_take_back(struct moec_expert_cache *cache, uint32_t key);

/* READING: the request has ended. */
enum moec_cache_end {
    MOEC_CACHE_END_READY,
    MOEC_CACHE_END_GONE,   /* it was doomed */
    MOEC_CACHE_END_AGAIN,  /* failed, and is demanded: queued once more */
    MOEC_CACHE_END_FAILED, /* at the last try */
    MOEC_CACHE_END_LOST,   /* failed, and no session wants it: the caller drops it from the residency */
};
enum moec_cache_end moec_cache_entry_end(struct moec_expert_cache *cache, uint32_t key, bool is_good,
                                         int problem);

/* FAILED, and another session wants it too: its tries start over. */
void moec_cache_entry_retry(struct moec_expert_cache *cache, uint32_t key);

/* READY: a session begins and ends to hold it. */
void moec_cache_entry_hold(struct moec_expert_cache *cache, uint32_t key);
void moec_cache_entry_release(struct moec_expert_cache *cache, uint32_t key);

#endif
