/* Storage as the runtime uses it: whole records of each bitwidth in random order. */
#include "profiler/device/device_measure.h"

#include "formats/base/memory.h"
#include "profiler/device/read_speed.h"
#include "runtime/storage/record_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT 4096u

/* Requests of one measurement: enough for a 95th percentile, few enough for a slow device. */
#define MIN_READS 24u
#define MAX_READS 8192u

/* Records of a bitwidth that take part, spread over the file. */
#define MAX_RANGES 4096u

/* A buffer is shared by all that is measured; depths that do not fit into it are left out. */
#define MAX_BUFFER_BYTES ((uint64_t)1 << 30)

#define N_DEPTHS 6u /* 1 .. MOEC_DEVICE_DEPTH */
_Static_assert(1u << (N_DEPTHS - 1) == MOEC_DEVICE_DEPTH, "depths are powers of two");

struct width {
    uint64_t record_bytes; /* mean */
    uint64_t slot_bytes;
    uint32_t n_ranges;
    struct moec_read_range *ranges; /* owned */
};

struct storage_job {
    const struct moec_bundle *bundle;
    const struct moec_device_options *options;
    struct moec_device_storage *storage;
    struct width widths[17]; /* by bits; n_ranges 0 where none */
    uint32_t n_widths;
    uint8_t *buffer;
    uint64_t buffer_bytes;
    uint32_t n_steps, n_done;
};

static void count_records(struct storage_job *job)
{
    const struct moec_bundle *bundle = job->bundle;
    size_t n = (size_t)bundle->n_copy * moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    for (size_t i = 0; i < n; i++) {
        struct width *width = &job->widths[bundle->records[i].bits];
        width->record_bytes += bundle->records[i].n_bytes;
        width->n_ranges++;
    }
}

/* The records of each bitwidth, thinned evenly where there are very many. */
static enum moec_status list_records(struct storage_job *job, struct moec_error *err)
{
    const struct moec_bundle *bundle = job->bundle;
    size_t n = (size_t)bundle->n_copy * moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    count_records(job);
    for (uint32_t bits = 0; bits < sizeof job->widths / sizeof *job->widths; bits++) {
        struct width *width = &job->widths[bits];
        void *memory = NULL;
        uint32_t n_all = width->n_ranges, seen = 0;
        if (n_all == 0)
            continue;
        uint32_t keep = n_all < MAX_RANGES ? n_all : MAX_RANGES;
        MOEC_TRY(moec_alloc(&memory, keep, sizeof *width->ranges, "ranges to read", err));
        width->ranges = memory;
        width->record_bytes /= n_all;
        width->n_ranges = 0;
        for (size_t i = 0; i < n; i++) {
            const struct moec_record_entry *record = &bundle->records[i];
            if (record->bits != bits)
                continue;
            const struct moec_record_place place =
                moec_record_place_of(bundle, record->offset, record->n_bytes);
            uint64_t slot = (place.n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            width->slot_bytes = slot > width->slot_bytes ? slot : width->slot_bytes;
            if ((uint64_t)seen++ * keep / n_all == width->n_ranges && width->n_ranges < keep)
                width->ranges[width->n_ranges++] = (struct moec_read_range){place.offset, place.n_bytes};
        }
        job->n_widths++;
    }
    return MOEC_OK;
}

static enum moec_status measure_one(struct storage_job *job, const struct width *width, uint32_t depth,
                                    struct moec_reader *reader, struct moec_error *err)
{
    bool is_direct = reader->alignment > 1;
    struct moec_read_speed speed;
    struct moec_read_speed_request request = {
        .reader = reader,
        .cached = is_direct ? NULL : &job->bundle->file,
        .ranges = width->ranges,
        .n_ranges = width->n_ranges,
        .room = {.depth = depth, .buffer = job->buffer, .slot_bytes = width->slot_bytes},
        .limits = {.ns = job->options->read_ns > 0 ? job->options->read_ns : 100000000u,
                   .min_reads = MIN_READS > 2 * depth ? MIN_READS : 2 * depth,
                   .max_reads = MAX_READS},
        .seed = depth,
    };
    MOEC_TRY(moec_progress_report(job->options->progress, "storage", job->n_done++, job->n_steps, err));
    if (request.room.slot_bytes * depth > job->buffer_bytes)
        return MOEC_OK;
    MOEC_TRY(moec_read_speed_measure(&request, &speed, err));
    job->storage->reads[job->storage->n_reads++] = (struct moec_device_read){
        .is_direct = is_direct,
        .depth = depth,
        .record_bytes = width->record_bytes,
        .latency_ns_median = speed.latency_ns_median,
        .latency_ns_p95 = speed.latency_ns_p95,
        .bytes_per_second = speed.bytes_per_second > 0 ? speed.bytes_per_second : 1,
    };
    return MOEC_OK;
}

/* Everything one way; nothing where the file system refuses direct reads. */
static enum moec_status measure_way(struct storage_job *job, enum moec_io io, struct moec_error *err)
{
    struct moec_reader *reader = NULL;
    struct moec_error refusal = {0};
    struct moec_record_io options = {.io = io, .depth = MOEC_DEVICE_DEPTH};
    enum moec_status status = moec_record_reader_create(
        job->bundle, 0, &options, (struct moec_read_buffer){job->buffer, job->buffer_bytes}, &reader,
        &refusal);
    if (status == MOEC_ERR_UNSUPPORTED && io == MOEC_IO_DIRECT) {
        moec_progress_note(job->options->progress, "%s", refusal.message);
        return MOEC_OK;
    }
    if (status != MOEC_OK)
        return moec_fail(err, status, "%s", refusal.message);
    for (uint32_t bits = 0; status == MOEC_OK && bits < sizeof job->widths / sizeof *job->widths; bits++)
        for (uint32_t d = 0; status == MOEC_OK && job->widths[bits].n_ranges > 0 && d < N_DEPTHS; d++)
            status = measure_one(job, &job->widths[bits], 1u << d, reader, err);
    reader->ops->destroy(reader);
    return status;
}

static enum moec_status create_buffer(struct storage_job *job, struct moec_error *err)
{
    uint64_t slot_bytes = ALIGNMENT;
    for (uint32_t bits = 0; bits < sizeof job->widths / sizeof *job->widths; bits++)
        if (job->widths[bits].slot_bytes > slot_bytes)
            slot_bytes = job->widths[bits].slot_bytes;
    job->buffer_bytes = slot_bytes * MOEC_DEVICE_DEPTH;
    if (job->buffer_bytes > MAX_BUFFER_BYTES)
        job->buffer_bytes = slot_bytes > MAX_BUFFER_BYTES ? slot_bytes : MAX_BUFFER_BYTES;
    void *memory = NULL;
    MOEC_TRY(moec_alloc_pages(&memory, job->buffer_bytes, "a buffer to read into", err));
    job->buffer = memory;
    return MOEC_OK;
}

/* Which way the runtime will take, and its own words for it. */
static enum moec_status ask_auto(struct storage_job *job, struct moec_error *err)
{
    struct moec_reader *reader = NULL;
    struct moec_record_io options = {.io = MOEC_IO_AUTO, .depth = MOEC_DEVICE_DEPTH};
    MOEC_TRY(moec_record_reader_create(
        job->bundle, 0, &options, (struct moec_read_buffer){job->buffer, job->buffer_bytes}, &reader, err));
    job->storage->is_direct_faster = reader->alignment > 1;
    (void)snprintf(job->storage->description, sizeof job->storage->description, "%s", reader->description);
    reader->ops->destroy(reader);
    return MOEC_OK;
}

static enum moec_status describe_emulated(const struct moec_emulation *emulation,
                                          struct moec_device_storage *storage)
{
    *storage = (struct moec_device_storage){.is_emulated = true,
                                            .bytes_per_second = emulation->bytes_per_second,
                                            .latency_ns = emulation->latency_ns,
                                            .request_ns = emulation->request_ns,
                                            .is_direct_faster = true};
    (void)snprintf(storage->description, sizeof storage->description,
                   "emulated %.6g MB/s, %.6g us, %.6g us a request",
                   (double)emulation->bytes_per_second / 1e6, (double)emulation->latency_ns / 1e3,
                   (double)emulation->request_ns / 1e3);
    return MOEC_OK;
}

enum moec_status moec_device_measure_storage(const struct moec_bundle *bundle,
                                             const struct moec_device_options *options,
                                             struct moec_device_storage *storage, struct moec_error *err)
{
    struct storage_job job = {.bundle = bundle, .options = options, .storage = storage};
    void *reads = NULL;
    enum moec_status status = MOEC_OK;
    if (options->emulation != NULL)
        return describe_emulated(options->emulation, storage);
    *storage = (struct moec_device_storage){0};
    MOEC_TRY_OUT(list_records(&job, err));
    MOEC_TRY_OUT(create_buffer(&job, err));
    job.n_steps = 2 * job.n_widths * N_DEPTHS;
    MOEC_TRY_OUT(moec_alloc(&reads, job.n_steps, sizeof *storage->reads, "measured reads", err));
    storage->reads = reads;
    MOEC_TRY_OUT(ask_auto(&job, err));
    MOEC_TRY_OUT(measure_way(&job, MOEC_IO_DIRECT, err));
    MOEC_TRY_OUT(measure_way(&job, MOEC_IO_CACHED, err));
out:
    for (uint32_t bits = 0; bits < sizeof job.widths / sizeof *job.widths; bits++)
        free(job.widths[bits].ranges);
    free(job.buffer);
    return status;
}
