/* A ring with the store's own slot as its ends, from the oldest record to the newest. A slot is in the ring
 * exactly while it has bytes and nobody holds it; only such a slot may go. Bytes count from when memory is
 * taken, before it is kept, and spares only fill what the limit leaves. */
#include "profiler/evaluate/record_store.h"

#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"

#define HUGE_FROM_BYTES (MOEC_HUGE_PAGE_BYTES / 2) /* records that ask for huge pages */

static void list_remove(struct moec_record_slot *slot)
{
    slot->older->newer = slot->newer;
    slot->newer->older = slot->older;
    slot->older = NULL;
    slot->newer = NULL;
}

/* Next to `newer`, which may be the ring's own: the newest then. */
static void list_insert(struct moec_record_slot *slot, struct moec_record_slot *newer)
{
    slot->older = newer->older;
    slot->newer = newer;
    slot->older->newer = slot;
    newer->older = slot;
}

void moec_record_store_init(struct moec_record_store *store, uint64_t limit_bytes)
{
    *store = (struct moec_record_store){.limit_bytes = limit_bytes};
    store->list.older = &store->list;
    store->list.newer = &store->list;
}

void moec_record_store_end(struct moec_record_store *store)
{
    moec_spares_shrink(&store->spares, 0);
}

/* Takes a record out; its memory is the caller's. */
static uint8_t *take_out(struct moec_record_store *store, struct moec_record_slot *slot)
{
    uint8_t *bytes = slot->bytes;
    list_remove(slot);
    store->used_bytes -= slot->n_bytes;
    slot->bytes = NULL;
    return bytes;
}

static bool fits(const struct moec_record_store *store, uint64_t n_bytes)
{
    return store->limit_bytes == 0 ||
           (n_bytes <= store->limit_bytes && store->used_bytes <= store->limit_bytes - n_bytes);
}

bool moec_record_store_make_room(struct moec_record_store *store, uint64_t n_bytes)
{
    while (!fits(store, n_bytes)) {
        struct moec_record_slot *oldest = store->list.newer;
        if (oldest == &store->list)
            return false;
        moec_spares_leave(&store->spares, take_out(store, oldest), oldest->n_bytes);
    }
    return true;
}

enum moec_status moec_record_store_take(struct moec_record_store *store, uint64_t n_bytes, uint8_t **bytes,
                                        struct moec_error *err)
{
    void *memory = moec_spares_take(&store->spares, n_bytes);
    if (memory == NULL && store->limit_bytes > 0)
        moec_spares_shrink(&store->spares, store->limit_bytes - store->used_bytes - n_bytes);
    if (memory == NULL) {
        MOEC_TRY(moec_alloc_aligned(&memory, n_bytes, 1, "a variant of an expert", err));
        if (n_bytes >= HUGE_FROM_BYTES)
            moec_welcome_shared_huge_pages(memory, n_bytes);
    }
    store->used_bytes += n_bytes;
    *bytes = memory;
    return MOEC_OK;
}

void moec_record_store_give_back(struct moec_record_store *store, uint64_t n_bytes, uint8_t *bytes)
{
    store->used_bytes -= n_bytes;
    free(bytes);
}

void moec_record_store_keep(struct moec_record_store *store, struct moec_record_slot *slot, uint8_t *bytes,
                            uint64_t n_bytes)
{
    slot->bytes = bytes;
    slot->n_bytes = n_bytes;
    list_insert(slot, &store->list);
}

void moec_record_store_drop(struct moec_record_store *store, struct moec_record_slot *slot)
{
    free(take_out(store, slot));
}

void moec_record_slot_hold(struct moec_record_slot *slot)
{
    if (slot->n_held++ == 0)
        list_remove(slot);
}

void moec_record_store_let_go(struct moec_record_store *store, struct moec_record_slot *slot)
{
    if (--slot->n_held == 0)
        list_insert(slot, &store->list);
}

void moec_record_store_move(struct moec_record_store *store, struct moec_record_slot *slot, bool is_last)
{
    if (slot->bytes == NULL || slot->n_held > 0)
        return;
    list_remove(slot);
    list_insert(slot, is_last ? &store->list : store->list.newer);
}
