#include "runtime/storage/storage.h"

#include "formats/base/memory.h"

#include <stdatomic.h>

struct moec_storage {
    const struct moec_bundle *bundle; /* borrowed */
    uint32_t copy;
    atomic_uchar seen[]; /* (S, E): 1 once a record's floats were found finite */
};

uint64_t moec_storage_bytes(const struct moec_bundle *bundle)
{
    return sizeof(struct moec_storage) +
           (uint64_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
}

enum moec_status moec_storage_create(const struct moec_bundle *bundle, uint32_t copy,
                                     struct moec_storage **out, struct moec_error *err)
{
    void *memory = NULL;
    if (copy >= bundle->n_copy)
        return moec_fail(err, MOEC_ERR_USAGE, "'%s' has no precision copy %u, only 0 to %u",
                         bundle->file.path, copy, bundle->n_copy - 1);
    MOEC_TRY(moec_alloc(&memory, moec_storage_bytes(bundle), 1, "record reader", err));
    struct moec_storage *storage = memory;
    storage->bundle = bundle;
    storage->copy = copy;
    *out = storage;
    return MOEC_OK;
}

void moec_storage_free(struct moec_storage *storage)
{
    free(storage);
}

enum moec_status moec_storage_check(struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                                    const uint8_t *record, struct moec_error *err)
{
    const struct moec_bundle *bundle = storage->bundle;
    atomic_uchar *seen = &storage->seen[(size_t)ordinal * bundle->config.n_expert + expert];
    bool first = atomic_load_explicit(seen, memory_order_relaxed) == 0;
    MOEC_TRY(moec_bundle_check_record(bundle, storage->copy, ordinal, expert, record, first, err));
    atomic_store_explicit(seen, 1, memory_order_relaxed);
    return MOEC_OK;
}
