/* The memory of experts that come in parts, counted by pages (internal to runtime/experts): a slot has room
 * for a whole record, but takes memory only where a part of it was put. So a buffer holds more experts than
 * whole records would fit, and slots together have more addresses than the buffer has bytes.
 *
 * The residency counts each expert as its up section, what it has at least; when pages are taken and the
 * buffer is full, further experts are given up. What a session waits for is never given up, so this is for
 * one session and for buffers in which the up sections of a layer and some whole records fit at once; with
 * other sessions or sizes a slot counts as a whole. All with the cache's lock held. */
#ifndef MOEC_RUNTIME_UNIT_PAGES_H
#define MOEC_RUNTIME_UNIT_PAGES_H

#include "formats/base/error.h"

struct moec_expert_cache;

struct moec_unit_pages {
    uint32_t n_words;      /* of a key's bits */
    uint64_t *taken;       /* (n_key, n_words), owned: pages of its slot that have memory */
    uint32_t *n_taken;     /* (n_key), owned */
    uint64_t *least_bytes; /* (n_key), owned: what the residency counts */
    uint64_t arena_bytes;  /* addresses of all slots */
    uint64_t used_bytes, limit_bytes;
    uint32_t max_held; /* experts that a session may hold at once */
};

/* Leaves *out NULL where slots count as a whole. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_unit_pages_create(const struct moec_expert_cache *cache,
                                                         struct moec_unit_pages **out,
                                                         struct moec_error *err);
void moec_unit_pages_free(struct moec_unit_pages *pages); /* NULL-safe */
uint64_t moec_unit_pages_table_bytes(uint32_t n_key, uint64_t slot_bytes);

/* The arena was made, and used for something else: its memory goes back. */
void moec_unit_pages_begin(struct moec_expert_cache *cache);

/* n_bytes of a key's slot from `from` on are about to be written: others are given up where there is no room.
 * False where the key itself was given up. */
bool moec_unit_pages_take(struct moec_expert_cache *cache, uint32_t key, uint64_t from, uint64_t n_bytes);
/* The key's slot is about to be freed: its memory goes back. */
void moec_unit_pages_release(struct moec_expert_cache *cache, uint32_t key);

/* Whether no more than so many bytes are taken, from now on. */
bool moec_unit_pages_limit(struct moec_expert_cache *cache, uint64_t n_bytes);

#endif
