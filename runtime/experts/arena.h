/* One buffer, cut into slots of different sizes: where the expert cache lays its records.
 *
 * Slots are as large as the records that they are for, so the arena compacts: when the free bytes suffice but
 * lie apart, the slots between neighbouring holes slide together, choosing the run that moves the fewest
 * bytes. Pinned slots (a kernel or a device is using their bytes) never move. So no free byte is lost
 * permanently to fragmentation, with any mix of sizes, and with equal sizes nothing ever moves. (Slots of the
 * largest size would waste up to seven eighths on INT2 beside BF16; slabs by size would let one size starve
 * another and break an eviction's order.)
 *
 * Thread rule: the caller's lock covers every call on one instance;
 * bytes of pinned slots may be used without it. */
#ifndef MOEC_RUNTIME_ARENA_H
#define MOEC_RUNTIME_ARENA_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_arena;
struct moec_residency;

/* Bytes beside the buffer, for a budget. */
uint64_t moec_arena_table_bytes(uint32_t n_key);

/* A buffer of n_bytes at a page's start. slot_bytes: (n_key), what each key takes, borrowed until freed;
 * where all are multiples of a power of two up to 4096, every slot stands at one.
 * Errors: MOEC_ERR_LIMIT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_arena_create(const uint64_t *slot_bytes, uint32_t n_key,
                                                    uint64_t n_bytes, struct moec_arena **out,
                                                    struct moec_error *err);
/* The same within memory that somebody else owns and that stands at a page's start. It is not shrunk. */
MOEC_WARN_UNUSED enum moec_status moec_arena_create_within(const uint64_t *slot_bytes, uint32_t n_key,
                                                           uint8_t *bytes, uint64_t n_bytes,
                                                           struct moec_arena **out, struct moec_error *err);
/* The same without a buffer: slots lie where they would, and what would be moved is counted. */
MOEC_WARN_UNUSED enum moec_status moec_arena_create_empty(const uint64_t *slot_bytes, uint32_t n_key,
                                                          uint64_t n_bytes, struct moec_arena **out,
                                                          struct moec_error *err);
void moec_arena_free(struct moec_arena *arena); /* NULL-safe */

uint8_t *moec_arena_bytes(const struct moec_arena *arena);

/* Gives an absent key a slot, without content, moving others where it must; their bytes are added to
 * *moved_bytes. False, with nothing moved, when no room can be made: too few bytes are free, or pinned slots
 * cut them apart (never when nothing is pinned). */
bool moec_arena_place(struct moec_arena *arena, uint32_t key, uint64_t *moved_bytes);
/* Whether an absent key finds a place with nothing moved. */
bool moec_arena_has_hole(const struct moec_arena *arena, uint32_t key);
/* For a prefetch: gives up what is neither demanded nor hinted until an absent key finds a place with nothing
 * moved, or nothing more can be given up. Of a prompt, whose layers come round, what is given up in the order
 * of its last use lay side by side, so a hole opens sooner than slots are moved. */
void moec_arena_make_hole(const struct moec_arena *arena, struct moec_residency *residency, uint32_t key);
/* Frees the slot of a key that is there and not pinned. */
void moec_arena_remove(struct moec_arena *arena, uint32_t key);
bool moec_arena_has(const struct moec_arena *arena, uint32_t key);
/* Valid until the next place, or while pinned. */
uint8_t *moec_arena_slot(const struct moec_arena *arena, uint32_t key);

/* Makes the arena end after n_bytes, at most as many as it has; what is behind goes back to the system.
 * Nothing is placed there any more from the first call on, but slots still stand there until a call answers
 * true: pinned ones stay in the way, and what is there may take more than n_bytes. Moves as few slots as
 * equal sizes allow. */
bool moec_arena_shrink(struct moec_arena *arena, uint64_t n_bytes, uint64_t *moved_bytes);
/* After calls that shrank it: makes the arena end after n_bytes again, at most as many as it was created
 * with.
 */
void moec_arena_grow(struct moec_arena *arena, uint64_t n_bytes);

/* Pins count. */
void moec_arena_pin(struct moec_arena *arena, uint32_t key);
void moec_arena_unpin(struct moec_arena *arena, uint32_t key);

#endif
