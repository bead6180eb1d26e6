/* Invariants: slots form a list in the order of their offsets and do not overlap; used_bytes is their sum.
 * They end at n_bytes, but for those that a shrunk arena could not move yet. */
#include "runtime/experts/arena.h"

#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"
#include "runtime/policy/schedule/residency.h"

#include <string.h>

#define NONE 0xffffffffu

struct slot {
    uint64_t offset;
    uint32_t previous; /* neighbours by offset */
    uint32_t next;
    uint32_t pins;
    bool is_there;
};

struct moec_arena {
    const uint64_t *slot_bytes;
    uint8_t *bytes; /* NULL: none */
    bool is_own;    /* they go with the arena */
    uint64_t n_bytes;
    uint64_t taken_bytes; /* from the system: n_bytes, or more while the arena is being shrunk */
    uint64_t used_bytes;
    uint32_t first; /* slot with the lowest offset */
    uint32_t freed; /* slot before the one that went last (NONE = the start of the arena) */
    struct slot slots[];
};

uint64_t moec_arena_table_bytes(uint32_t n_key)
{
    return sizeof(struct moec_arena) + n_key * sizeof(struct slot);
}

enum moec_status moec_arena_create_empty(const uint64_t *slot_bytes, uint32_t n_key, uint64_t n_bytes,
                                         struct moec_arena **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, moec_arena_table_bytes(n_key), 1, "expert buffer", err));
    struct moec_arena *arena = memory;
    arena->slot_bytes = slot_bytes;
    arena->n_bytes = arena->taken_bytes = n_bytes;
    arena->first = arena->freed = NONE;
    *out = arena;
    return MOEC_OK;
}

enum moec_status moec_arena_create(const uint64_t *slot_bytes, uint32_t n_key, uint64_t n_bytes,
                                   struct moec_arena **out, struct moec_error *err)
{
    struct moec_arena *arena = NULL;
    void *bytes = NULL;
    MOEC_TRY(moec_arena_create_empty(slot_bytes, n_key, n_bytes, &arena, err));
    enum moec_status status = moec_alloc_pages(&bytes, n_bytes, "expert buffer", err);
    if (status != MOEC_OK) {
        moec_arena_free(arena);
        return status;
    }
    arena->bytes = bytes;
    arena->is_own = true;
    *out = arena;
    return MOEC_OK;
}

enum moec_status moec_arena_create_within(const uint64_t *slot_bytes, uint32_t n_key, uint8_t *bytes,
                                          uint64_t n_bytes, struct moec_arena **out, struct moec_error *err)
{
    MOEC_TRY(moec_arena_create_empty(slot_bytes, n_key, n_bytes, out, err));
    (*out)->bytes = bytes;
    return MOEC_OK;
}

void moec_arena_free(struct moec_arena *arena)
{
    if (arena == NULL)
        return;
    if (arena->is_own)
        free(arena->bytes);
    free(arena);
}

uint8_t *moec_arena_bytes(const struct moec_arena *arena)
{
    return arena->bytes;
}

bool moec_arena_has(const struct moec_arena *arena, uint32_t key)
{
    return arena->slots[key].is_there;
}

uint8_t *moec_arena_slot(const struct moec_arena *arena, uint32_t key)
{
    return arena->bytes + arena->slots[key].offset;
}

void moec_arena_pin(struct moec_arena *arena, uint32_t key)
{
    arena->slots[key].pins++;
}

void moec_arena_unpin(struct moec_arena *arena, uint32_t key)
{
    arena->slots[key].pins--;
}

/* ---- the list of slots ---- */

static uint64_t end_of(const struct moec_arena *arena, uint32_t key)
{
    return key == NONE ? 0 : arena->slots[key].offset + arena->slot_bytes[key];
}

static uint64_t start_of(const struct moec_arena *arena, uint32_t key)
{
    return key == NONE ? arena->n_bytes : arena->slots[key].offset;
}

static uint32_t next_of(const struct moec_arena *arena, uint32_t key)
{
    return key == NONE ? arena->first : arena->slots[key].next;
}

/* Free bytes between a slot (NONE = the arena's start) and the next, or the arena's end. */
static uint64_t hole_after(const struct moec_arena *arena, uint32_t key)
{
    const uint64_t next = start_of(arena, next_of(arena, key)), end = end_of(arena, key);
    const uint64_t limit = next < arena->n_bytes ? next : arena->n_bytes;
    return limit > end ? limit - end : 0;
}

static void link_after(struct moec_arena *arena, uint32_t previous, uint32_t key)
{
    struct slot *slot = &arena->slots[key];
    slot->offset = end_of(arena, previous);
    slot->previous = previous;
    slot->next = next_of(arena, previous);
    if (previous == NONE)
        arena->first = key;
    else
        arena->slots[previous].next = key;
    if (slot->next != NONE)
        arena->slots[slot->next].previous = key;
    slot->is_there = true;
    arena->used_bytes += arena->slot_bytes[key];
}

void moec_arena_remove(struct moec_arena *arena, uint32_t key)
{
    struct slot *slot = &arena->slots[key];
    if (slot->previous == NONE)
        arena->first = slot->next;
    else
        arena->slots[slot->previous].next = slot->next;
    if (slot->next != NONE)
        arena->slots[slot->next].previous = slot->previous;
    slot->is_there = false;
    arena->freed = slot->previous;
    arena->used_bytes -= arena->slot_bytes[key];
}

/* ---- making place ---- */

/* Smallest hole of at least n bytes: the slot before it in *previous (NONE = start of the arena). Where the
 * slot that went last left just enough, as it does among records of one size, no other is looked at. */
static bool find_hole(const struct moec_arena *arena, uint64_t n, uint32_t *previous)
{
    uint64_t best = UINT64_MAX;
    uint32_t at = NONE;
    if (hole_after(arena, arena->freed) == n) {
        *previous = arena->freed;
        return true;
    }
    do {
        const uint64_t hole = hole_after(arena, at);
        if (hole >= n && hole < best) {
            best = hole;
            *previous = at;
        }
        at = next_of(arena, at);
    } while (at != NONE && best != n);
    return best != UINT64_MAX;
}

/* Slots after `before` up to and including `last` slide down; the hole behind `last` takes all space between.
 */
struct run {
    uint32_t before;
    uint32_t last;
    uint64_t moved_bytes;
};

/* Among runs of unpinned slots with holes of at least n bytes in all, the one that moves the fewest bytes. A
 * window over the list: its right end advances over every slot,
 * its left end as far as the holes still suffice. */
static bool find_run(const struct moec_arena *arena, uint64_t n, struct run *best)
{
    struct run run = {.before = NONE, .last = NONE};
    uint64_t holes = hole_after(arena, NONE);
    best->moved_bytes = UINT64_MAX;
    for (uint32_t at = arena->first; at != NONE; at = arena->slots[at].next) {
        if (arena->slots[at].pins > 0) {
            run = (struct run){.before = at, .last = at};
            holes = hole_after(arena, at);
            continue;
        }
        run.last = at;
        run.moved_bytes += arena->slot_bytes[at];
        holes += hole_after(arena, at);
        while (run.before != run.last) {
            const uint64_t left_hole = hole_after(arena, run.before);
            if (holes - left_hole < n)
                break;
            holes -= left_hole;
            run.before = next_of(arena, run.before);
            run.moved_bytes -= arena->slot_bytes[run.before];
        }
        if (holes >= n && run.moved_bytes < best->moved_bytes)
            *best = run;
    }
    return best->moved_bytes != UINT64_MAX;
}

static void slide(struct moec_arena *arena, const struct run *run)
{
    for (uint32_t at = run->before; at != run->last;) {
        const uint64_t offset = end_of(arena, at);
        at = next_of(arena, at);
        struct slot *slot = &arena->slots[at];
        if (slot->offset != offset && arena->bytes != NULL)
            memmove(arena->bytes + offset, arena->bytes + slot->offset, arena->slot_bytes[at]);
        slot->offset = offset;
    }
}

bool moec_arena_has_hole(const struct moec_arena *arena, uint32_t key)
{
    uint32_t previous = NONE;
    return find_hole(arena, arena->slot_bytes[key], &previous);
}

bool moec_arena_place(struct moec_arena *arena, uint32_t key, uint64_t *moved_bytes)
{
    const uint64_t n = arena->slot_bytes[key];
    uint32_t previous = NONE;
    struct run run;
    if (arena->used_bytes > arena->n_bytes || arena->n_bytes - arena->used_bytes < n)
        return false;
    if (!find_hole(arena, n, &previous)) {
        if (arena->taken_bytes > arena->n_bytes || !find_run(arena, n, &run))
            return false;
        slide(arena, &run);
        *moved_bytes += run.moved_bytes;
        previous = run.last;
    }
    link_after(arena, previous, key);
    return true;
}

void moec_arena_make_hole(const struct moec_arena *arena, struct moec_residency *residency, uint32_t key)
{
    while (!moec_arena_has(arena, key) && !moec_arena_has_hole(arena, key) &&
           moec_residency_shrink_for_prefetch(residency, key))
        continue;
}

/* ---- shrinking ---- */

static uint32_t last_of(const struct moec_arena *arena)
{
    uint32_t last = NONE;
    for (uint32_t at = arena->first; at != NONE; at = arena->slots[at].next)
        last = at;
    return last;
}

/* Moves an unpinned slot into a hole, where one is large enough. */
static bool move_to_hole(struct moec_arena *arena, uint32_t key, uint64_t *moved_bytes)
{
    const uint64_t n = arena->slot_bytes[key], offset = arena->slots[key].offset;
    uint32_t previous = NONE;
    if (!find_hole(arena, n, &previous))
        return false;
    moec_arena_remove(arena, key);
    link_after(arena, previous, key);
    if (arena->bytes != NULL)
        memcpy(arena->bytes + arena->slots[key].offset, arena->bytes + offset, n);
    *moved_bytes += n;
    return true;
}

/* Slides the fewest slots at the end together that then end within the arena. False where pinned ones are
 * among them. */
static bool slide_end(struct moec_arena *arena, uint64_t *moved_bytes)
{
    struct run run = {.before = last_of(arena), .last = last_of(arena)};
    while (end_of(arena, run.before) + run.moved_bytes > arena->n_bytes) {
        if (run.before == NONE || arena->slots[run.before].pins > 0)
            return false;
        run.moved_bytes += arena->slot_bytes[run.before];
        run.before = arena->slots[run.before].previous;
    }
    slide(arena, &run);
    *moved_bytes += run.moved_bytes;
    return true;
}

bool moec_arena_shrink(struct moec_arena *arena, uint64_t n_bytes, uint64_t *moved_bytes)
{
    arena->n_bytes = n_bytes;
    for (uint32_t last; (last = last_of(arena)) != NONE && end_of(arena, last) > n_bytes;)
        if (arena->slots[last].pins > 0 ||
            (!move_to_hole(arena, last, moved_bytes) && !slide_end(arena, moved_bytes)))
            return false;
    if (arena->bytes != NULL)
        moec_give_back_memory(arena->bytes, n_bytes, arena->taken_bytes);
    arena->taken_bytes = n_bytes;
    return true;
}

void moec_arena_grow(struct moec_arena *arena, uint64_t n_bytes)
{
    arena->n_bytes = arena->taken_bytes = n_bytes;
}
