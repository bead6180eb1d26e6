/* Encoded records in memory, as many as a limit allows: the least recently used give way to others, and their
 * memory to records of the same size (spares.h). Slots are the caller's, one for each record that there could
 * be, zero at first. Thread rule: the caller's lock, for a store and all of its slots. */
#ifndef MOEC_PROFILER_RECORD_STORE_H
#define MOEC_PROFILER_RECORD_STORE_H

#include "formats/base/error.h"
#include "profiler/evaluate/spares.h"

/* Holds a record (bytes not NULL) or nothing. One that is held stays; the others stand in the store's list.
 */
struct moec_record_slot {
    uint8_t *bytes;
    uint64_t n_bytes;
    uint32_t n_held;
    struct moec_record_slot *older;
    struct moec_record_slot *newer;
};

/* Invariant: used_bytes is the sum over slots that hold a record and memory that was taken; with the spares
 * it is at most limit_bytes. */
struct moec_record_store {
    uint64_t limit_bytes; /* 0: none, and nothing is spare */
    uint64_t used_bytes;
    struct moec_spares spares;
    struct moec_record_slot list; /* a ring: list.newer is the oldest, list.older the newest */
};

void moec_record_store_init(struct moec_record_store *store, uint64_t limit_bytes);
/* Frees the spares; records are their slots'. */
void moec_record_store_end(struct moec_record_store *store);

/* Evicts the least recently used until n_bytes fit; false when held records alone are in the way. */
bool moec_record_store_make_room(struct moec_record_store *store, uint64_t n_bytes);

/* Memory for a record that fits, which is used from now on: kept in a slot, or given back. */
MOEC_WARN_UNUSED enum moec_status moec_record_store_take(struct moec_record_store *store, uint64_t n_bytes,
                                                         uint8_t **bytes, struct moec_error *err);
void moec_record_store_give_back(struct moec_record_store *store, uint64_t n_bytes, uint8_t *bytes);
/* Into an empty slot, as the newest. */
void moec_record_store_keep(struct moec_record_store *store, struct moec_record_slot *slot, uint8_t *bytes,
                            uint64_t n_bytes);

/* Frees a record that is not held. */
void moec_record_store_drop(struct moec_record_store *store, struct moec_record_slot *slot);

/* Held until it was let go as often; then it is the newest. */
void moec_record_slot_hold(struct moec_record_slot *slot);
void moec_record_store_let_go(struct moec_record_store *store, struct moec_record_slot *slot);

/* Makes a record the last to give way, or the first; nothing happens to one that is held or not there. */
void moec_record_store_move(struct moec_record_store *store, struct moec_record_slot *slot, bool is_last);

#endif
