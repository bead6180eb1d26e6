/* All records of a copy are listed as ranges of the file and read in slots of the largest one's size. As
 * many requests are under way as the reader is told to take, or else as fit into a small buffer. */
#include "profiler/device/bandwidth.h"

#include "formats/base/memory.h"
#include "profiler/device/read_speed.h"

#define SLOT_ALIGNMENT ((uint64_t)4096)
#define MAX_READS      (1u << 20)
#define MAX_DEPTH      32u
#define MIN_DEPTH      4u
#define BUFFER_BYTES   ((uint64_t)16 << 20) /* that more than MIN_DEPTH requests may take */

/* All records of the copy, and the largest of their slots. */
static void list_records(const struct moec_bundle *bundle, uint32_t copy, struct moec_read_range *ranges,
                         uint64_t *slot_bytes)
{
    const uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    *slot_bytes = SLOT_ALIGNMENT;
    for (uint32_t s = 0; s < n_layer; s++)
        for (uint32_t e = 0; e < n_expert; e++) {
            const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, s, e);
            const uint64_t n_bytes = moec_record_slot_bytes(bundle, copy, s, e);
            const struct moec_record_place place =
                moec_record_place_of(bundle, entry->offset, entry->n_bytes);
            *ranges++ = (struct moec_read_range){.offset = place.offset, .n_bytes = place.n_bytes};
            *slot_bytes = n_bytes > *slot_bytes ? n_bytes : *slot_bytes;
        }
    *slot_bytes = (*slot_bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
}

/* Large records need few requests at once, and a bench may have little memory beside its rows. */
static uint32_t choose_depth(uint64_t slot_bytes)
{
    const uint64_t fit = BUFFER_BYTES / slot_bytes;
    return fit > MAX_DEPTH ? MAX_DEPTH : fit < MIN_DEPTH ? MIN_DEPTH : (uint32_t)fit;
}

enum moec_status moec_bandwidth_measure(const struct moec_bundle *bundle, uint32_t copy,
                                        const struct moec_record_io *io, uint64_t limit_ns,
                                        double *bytes_per_second, struct moec_error *err)
{
    struct moec_read_speed_request request = {
        .n_ranges = moec_config_moe_count(&bundle->config) * bundle->config.n_expert,
        .limits = {.ns = limit_ns, .max_reads = MAX_READS},
    };
    struct moec_read_speed speed = {0};
    void *memory = NULL;
    enum moec_status status = MOEC_OK;
    if (request.n_ranges == 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the bundle '%s' has no experts to read",
                         bundle->file.path);
    MOEC_TRY_OUT(
        moec_alloc((void **)&request.ranges, request.n_ranges, sizeof *request.ranges, "records", err));
    list_records(bundle, copy, request.ranges, &request.room.slot_bytes);
    request.room.depth = request.limits.min_reads =
        io->depth > 0 ? io->depth : choose_depth(request.room.slot_bytes);
    MOEC_TRY_OUT(moec_alloc_pages(&memory, request.room.depth * request.room.slot_bytes, "records", err));
    request.room.buffer = memory;
    MOEC_TRY_OUT(moec_record_reader_create(
        bundle, copy, io,
        (struct moec_read_buffer){request.room.buffer, request.room.depth * request.room.slot_bytes},
        &request.reader, err));
    MOEC_TRY_OUT(moec_read_speed_measure(&request, &speed, err));
    *bytes_per_second = (double)speed.bytes_per_second;
out:
    if (request.reader != NULL)
        request.reader->ops->destroy(request.reader);
    free(request.ranges);
    free(memory);
    return status;
}
