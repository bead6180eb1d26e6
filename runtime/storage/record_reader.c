/* What records' alignment allows decides first: below a page no mapping. A record is read from the unit before
 * its offset, and `skip` is how far it begins in its slot. An emulated device reads through the page cache, so
 * that what stands under it is not the slower one. */
#include "runtime/storage/record_reader.h"
#include "formats/base/bytes.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MAPPED_ALIGNMENT 4096 /* a page */

/* Where the records of a precision copy stand. */
struct extent {
    uint64_t first, end;
    uint64_t typical_bytes; /* mean record */
};

static struct extent extent_of(const struct moec_bundle *bundle, uint32_t copy)
{
    struct extent extent = {.first = UINT64_MAX};
    const uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    uint64_t n_bytes = 0;
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++)
        for (uint32_t expert = 0; expert < n_expert; expert++) {
            const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
            const uint64_t end = entry->offset + entry->n_bytes;
            extent.first = entry->offset < extent.first ? entry->offset : extent.first;
            extent.end = end > extent.end ? end : extent.end;
            n_bytes += entry->n_bytes;
        }
    const uint64_t n_record = (uint64_t)n_layer * n_expert;
    extent.typical_bytes = n_record > 0 ? n_bytes / n_record : 0;
    return extent;
}

/* What stands under an emulated device is to be faster than it, or its times are not those that were asked
 * for: the page cache, unless the user says otherwise,
 * filled beforehand with as much as can be expected to fit. */
#define FETCH_MAX_BYTES ((uint64_t)1 << 30)

static bool is_auto(enum moec_io io)
{
    return io == MOEC_IO_AUTO || io == MOEC_IO_AUTO_MAPPED;
}

static enum moec_io way_under_emulation(const struct moec_bundle *bundle, const struct extent *extent,
                                        enum moec_io io)
{
    if (!is_auto(io))
        return io;
    if (extent->first < extent->end && extent->end - extent->first <= FETCH_MAX_BYTES)
        moec_file_fetch(&bundle->file, extent->first, extent->end - extent->first);
    return MOEC_IO_CACHED;
}

/* What was asked for by name. */
static enum moec_status check_mapping(const struct moec_bundle *bundle, const struct moec_record_io *io,
                                      struct moec_error *err)
{
    if (io->io != MOEC_IO_MAPPED)
        return MOEC_OK;
    if (io->emulation.bytes_per_second > 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "emulated storage cannot map '%s': choose a way of reading (--io) other than "
                         "'mapped'",
                         bundle->file.path);
    if (bundle->alignment < MAPPED_ALIGNMENT)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "records of '%s' are aligned to %" PRIu32 " bytes, mapping needs "
                         "%d; choose the way of reading 'cached' (--io)",
                         bundle->file.path, bundle->alignment, MAPPED_ALIGNMENT);
    return MOEC_OK;
}

enum moec_status moec_record_reader_create(const struct moec_bundle *bundle, uint32_t copy,
                                           const struct moec_record_io *io, struct moec_read_buffer buffer,
                                           struct moec_reader **out, struct moec_error *err)
{
    const struct extent extent = extent_of(bundle, copy);
    struct moec_reader_options options = {
        .io = io->io,
        .engine = io->engine,
        .depth = io->depth > 0 ? io->depth : MOEC_RECORD_READER_DEPTH,
        .direct_unit = bundle->direct_unit,
        .sample = {.n_bytes = extent.typical_bytes, .offset = extent.first, .end = extent.end},
        .buffer = {.bytes = buffer.bytes, .n_bytes = buffer.n_bytes},
    };
    MOEC_TRY(check_mapping(bundle, io, err));
    if (io->io == MOEC_IO_AUTO_MAPPED && bundle->alignment < MAPPED_ALIGNMENT)
        options.io = MOEC_IO_AUTO;
    if (io->emulation.bytes_per_second > 0)
        options.io = way_under_emulation(bundle, &extent, options.io);
    struct moec_reader *reader = NULL;
    MOEC_TRY(moec_reader_create(&bundle->file, &options, &reader, err));
    if (io->emulation.bytes_per_second > 0)
        MOEC_TRY(moec_reader_emulate(reader, &io->emulation, &reader, err));
    *out = io->test_hook.wrap != NULL ? io->test_hook.wrap(io->test_hook.context, reader) : reader;
    return MOEC_OK;
}

struct moec_record_place moec_record_place_of(const struct moec_bundle *bundle, uint64_t offset,
                                              uint64_t n_bytes)
{
    const uint64_t skip = offset % bundle->direct_unit;
    return (struct moec_record_place){offset - skip, n_bytes + skip, (uint32_t)skip};
}

uint64_t moec_record_slot_bytes(const struct moec_bundle *bundle, uint32_t copy, uint32_t ordinal,
                                uint32_t expert)
{
    const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, ordinal, expert);
    const uint64_t unit = bundle->alignment > bundle->direct_unit ? bundle->alignment : bundle->direct_unit;
    return moec_align_up(moec_record_place_of(bundle, entry->offset, entry->n_bytes).n_bytes, unit);
}

enum moec_status moec_record_failed(const struct moec_bundle *bundle, struct moec_record_id record,
                                    int problem, const struct moec_error *words, struct moec_error *err)
{
    const uint32_t copy = record.copy, ordinal = record.ordinal, expert = record.expert;
    const uint32_t layer = moec_config_moe_layer(&bundle->config, ordinal);
    if (problem != 0)
        return moec_fail(
            err, MOEC_ERR_IO,
            "record of layer %" PRIu32 " expert %" PRIu32 " (copy %" PRIu32 ") at offset %" PRIu64
            " of '%s' cannot be read: %s",
            layer, expert, copy, moec_bundle_record(bundle, copy, ordinal, expert)->offset, bundle->file.path,
            problem == ENODATA ? "the file ends before the end of the record" : strerror(problem));
    if (words != NULL)
        return moec_fail(err, words->status,
                         "%s; the record was read %d times, 'moec verify' checks the whole file",
                         words->message, MOEC_RECORD_TRIES);
    return moec_fail(err, MOEC_ERR_CHECKSUM,
                     "record of layer %" PRIu32 " expert %" PRIu32
                     " in '%s' is damaged; 'moec verify' checks the whole file",
                     layer, expert, bundle->file.path);
}
