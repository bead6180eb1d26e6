/* A sum that the reader made on the way is enough to accept the bytes. Only where it differs are they summed
 * once more, by the check that has words for what is wrong. `seen` is set by any thread without order: at
 * worst a record's floats are checked twice. */
#include "runtime/storage/storage.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <stdatomic.h>

struct moec_storage {
    struct moec_storage_setup setup;
    bool is_whole;                    /* the part is the record */
    struct moec_record_range *ranges; /* of the part, by layout of the bundle; owned */
    atomic_uchar seen[];              /* (S, E): 1 once an expert's floats were found finite */
};

static uint64_t struct_bytes(const struct moec_bundle *bundle)
{
    return sizeof(struct moec_storage) +
           (uint64_t)moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
}

uint64_t moec_storage_bytes(const struct moec_bundle *bundle)
{
    return struct_bytes(bundle) + (uint64_t)bundle->n_layout * sizeof(struct moec_record_range);
}

static enum moec_status find_ranges(struct moec_storage *storage, struct moec_error *err)
{
    const struct moec_bundle *bundle = storage->setup.bundle;
    const struct moec_record_part *part = &storage->setup.part;
    MOEC_TRY(moec_alloc((void **)&storage->ranges, bundle->n_layout, sizeof *storage->ranges,
                        "ranges of records", err));
    /* Layouts differ in the lengths of rows alone. */
    for (uint32_t i = 0; i < bundle->n_layout; i++) {
        MOEC_TRY(moec_record_part_range(&bundle->layouts[i], part, &storage->ranges[i], err));
        storage->is_whole = storage->ranges[i].n_bytes == bundle->layouts[i].n_bytes;
    }
    if (!storage->is_whole && storage->setup.part_crc32c == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the bundle '%s' has checksums of whole records but not of their parts, so a "
                         "single part cannot be checked: moec sparsify --parts adds them",
                         bundle->file.path);
    return MOEC_OK;
}

enum moec_status moec_storage_create(const struct moec_storage_setup *setup, struct moec_storage **out,
                                     struct moec_error *err)
{
    const struct moec_bundle *bundle = setup->bundle;
    void *memory = NULL;
    if (setup->copy >= bundle->n_copy)
        return moec_fail(err, MOEC_ERR_USAGE, "the bundle '%s' has no precision copy %u, only 0 to %u",
                         bundle->file.path, setup->copy, bundle->n_copy - 1);
    MOEC_TRY(moec_alloc(&memory, struct_bytes(bundle), 1, "record reader", err));
    struct moec_storage *storage = memory;
    storage->setup = *setup;
    const enum moec_status status = find_ranges(storage, err);
    if (status != MOEC_OK) {
        moec_storage_free(storage);
        return status;
    }
    *out = storage;
    return MOEC_OK;
}

void moec_storage_free(struct moec_storage *storage)
{
    if (storage != NULL)
        free(storage->ranges);
    free(storage);
}

static const struct moec_record_entry *entry_of(const struct moec_storage *storage, uint32_t ordinal,
                                                uint32_t expert)
{
    return moec_bundle_record(storage->setup.bundle, storage->setup.copy, ordinal, expert);
}

static const struct moec_record_layout *layout_of(const struct moec_storage *storage, uint32_t ordinal,
                                                  uint32_t expert)
{
    return moec_bundle_layout(storage->setup.bundle, storage->setup.copy, ordinal, expert);
}

struct moec_record_place moec_storage_place_of(const struct moec_storage *storage, uint32_t ordinal,
                                               uint32_t expert)
{
    const struct moec_record_entry *entry = entry_of(storage, ordinal, expert);
    const struct moec_record_range *range = &storage->ranges[entry->layout];
    return moec_record_place_of(storage->setup.bundle, entry->offset + range->offset, range->n_bytes);
}

struct moec_record_place moec_storage_up_place_of(const struct moec_storage *storage, uint32_t ordinal,
                                                  uint32_t expert)
{
    return moec_record_place_of(storage->setup.bundle, entry_of(storage, ordinal, expert)->offset,
                                layout_of(storage, ordinal, expert)->up_bytes);
}

uint64_t moec_storage_slot_bytes(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert)
{
    const struct moec_bundle *bundle = storage->setup.bundle;
    if (storage->is_whole)
        return moec_record_slot_bytes(bundle, storage->setup.copy, ordinal, expert);
    return moec_align_up(moec_storage_place_of(storage, ordinal, expert).n_bytes, bundle->direct_unit);
}

/* What the bytes of a part of a record must be. */
struct check {
    const struct moec_record_part *part;
    uint64_t n_bytes;
    uint32_t crc32c;
    bool checks_floats;
};

static enum moec_status check_bytes(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                                    const struct check *check, const uint8_t *bytes, struct moec_error *err)
{
    const struct moec_bundle *bundle = storage->setup.bundle;
    const struct moec_record_entry *entry = entry_of(storage, ordinal, expert);
    const uint32_t layer = moec_config_moe_layer(&bundle->config, ordinal);
    const uint32_t crc = moec_crc32c(0, bytes, check->n_bytes);
    if (crc != check->crc32c)
        return moec_fail(err, MOEC_ERR_CHECKSUM,
                         "part of the record of layer %u expert %u (copy %u) in '%s' is damaged: CRC32C is "
                         "%08x, expected %08x",
                         layer, expert, storage->setup.copy, bundle->file.path, crc, check->crc32c);
    if (check->checks_floats &&
        !moec_record_part_is_finite(layout_of(storage, ordinal, expert), check->part, bytes))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "part of the record of layer %u expert %u (copy %u) in '%s' has a %s "
                         "that is not finite",
                         layer, expert, storage->setup.copy, bundle->file.path,
                         entry->bits == 16 ? "weight" : "scale");
    return MOEC_OK;
}

static uint32_t crc32c_of(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert)
{
    return storage->is_whole
               ? entry_of(storage, ordinal, expert)->crc32c
               : storage->setup
                     .part_crc32c[(size_t)ordinal * storage->setup.bundle->config.n_expert + expert];
}

static enum moec_status check_part(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                                   const uint8_t *bytes, bool checks_floats, struct moec_error *err)
{
    const struct check check = {.part = &storage->setup.part,
                                .n_bytes =
                                    storage->ranges[entry_of(storage, ordinal, expert)->layout].n_bytes,
                                .crc32c = crc32c_of(storage, ordinal, expert),
                                .checks_floats = checks_floats};
    return check_bytes(storage, ordinal, expert, &check, bytes, err);
}

enum moec_status moec_storage_check_up(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                                       uint32_t crc32c, const uint8_t *slot, struct moec_error *err)
{
    static const struct moec_record_part up = {.projections = 1u << MOEC_PROJECTION_UP};
    const struct check check = {.part = &up,
                                .n_bytes = layout_of(storage, ordinal, expert)->up_bytes,
                                .crc32c = crc32c,
                                .checks_floats = true};
    return check_bytes(storage, ordinal, expert, &check,
                       slot + moec_storage_place_of(storage, ordinal, expert).skip, err);
}

/* Whether a sum that the reader has computed (NULL: none) says that the bytes are the expert's. */
static bool is_right(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                     const uint8_t *bytes, bool checks_floats, const uint32_t *sum)
{
    return sum != NULL && *sum == crc32c_of(storage, ordinal, expert) &&
           (!checks_floats ||
            moec_record_part_is_finite(layout_of(storage, ordinal, expert), &storage->setup.part, bytes));
}

enum moec_status moec_storage_check(struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                                    const uint8_t *slot, const uint32_t *sum, struct moec_error *err)
{
    const struct moec_bundle *bundle = storage->setup.bundle;
    atomic_uchar *seen = &storage->seen[(size_t)ordinal * bundle->config.n_expert + expert];
    const bool is_first = atomic_load_explicit(seen, memory_order_relaxed) == 0;
    const uint8_t *bytes = slot + moec_storage_place_of(storage, ordinal, expert).skip;
    if (!is_right(storage, ordinal, expert, bytes, is_first, sum)) /* once more, for the words */
        MOEC_TRY(storage->is_whole
                     ? moec_bundle_check_record(bundle,
                                                (struct moec_record_id){storage->setup.copy, ordinal, expert},
                                                bytes, is_first, err)
                     : check_part(storage, ordinal, expert, bytes, is_first, err));
    atomic_store_explicit(seen, 1, memory_order_relaxed);
    return MOEC_OK;
}

void moec_storage_bind(const struct moec_storage *storage, uint32_t ordinal, uint32_t expert,
                       const uint8_t *slot, struct moec_mlp *mlp)
{
    moec_record_part_bind(layout_of(storage, ordinal, expert), &storage->setup.part,
                          slot + moec_storage_place_of(storage, ordinal, expert).skip, mlp);
}
