/* How fast the runtime's reader brings records of a bundle, or blocks of any file, in random order: to be set
 * beside fio with the same request pattern (tests/large/bandwidth.sh).
 *
 *     read_bench FILE [--depth N] [--io auto|direct|cached] [--engine auto|uring|threads] [--seconds S]
 *                [--bytes N] [--seed S] [--pattern]
 *
 * A file whose name ends in .moec is a bundle: its requests are the records of the compiled assignment. Of
 * any other file they are blocks of --bytes (1048576) at multiples of it. --pattern reads nothing and prints
 * the options that make fio ask for the same. Otherwise one line: bandwidth in MB/s, latency in us (median,
 * 95th percentile), number of reads, the reader. */
#include "formats/base/memory.h"
#include "formats/bundle/bundle.h"
#include "profiler/device/read_speed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT 4096u

struct settings {
    const char *path;
    enum moec_io io;
    enum moec_io_engine engine;
    uint32_t depth;
    double seconds;
    uint64_t block_bytes;
    uint64_t seed;
    bool is_pattern;
};

static bool parse(int argc, char **argv, struct settings *s)
{
    struct moec_error err = {0};
    *s = (struct settings){
        .io = MOEC_IO_DIRECT, .depth = 32, .seconds = 2, .block_bytes = 1u << 20, .seed = 1};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--pattern") == 0)
            s->is_pattern = true;
        else if (strcmp(argv[i], "--depth") == 0)
            s->depth = (uint32_t)strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seconds") == 0)
            s->seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--bytes") == 0)
            s->block_bytes = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            s->seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--io") == 0 && moec_io_find(value, &s->io, &err) == MOEC_OK)
            i++;
        else if (strcmp(argv[i], "--engine") == 0 &&
                 (strcmp(value, "uring") == 0 || strcmp(value, "threads") == 0))
            s->engine = strcmp(argv[++i], "uring") == 0 ? MOEC_IO_ENGINE_URING : MOEC_IO_ENGINE_THREADS;
        else if (argv[i][0] != '-' && s->path == NULL)
            s->path = argv[i];
        else
            return false;
    }
    return s->path != NULL && s->depth > 0 && s->block_bytes >= ALIGNMENT && s->block_bytes % ALIGNMENT == 0;
}

/* The file's requests in order of offset; `bundle` stays NULL for other files. */
static enum moec_status list_ranges(const struct settings *s, const struct moec_file *file,
                                    struct moec_read_range **ranges, uint32_t *n, struct moec_error *err)
{
    struct moec_bundle *bundle = NULL;
    void *memory = NULL;
    size_t length = strlen(s->path);
    if (length < 5 || strcmp(s->path + length - 5, ".moec") != 0) {
        *n = (uint32_t)(file->n_bytes / s->block_bytes);
        MOEC_TRY(moec_alloc(&memory, *n, sizeof **ranges, "ranges", err));
        *ranges = memory;
        for (uint32_t i = 0; i < *n; i++)
            (*ranges)[i] = (struct moec_read_range){i * s->block_bytes, s->block_bytes};
        return MOEC_OK;
    }
    MOEC_TRY(moec_bundle_open(s->path, &bundle, err));
    *n = moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    enum moec_status status = moec_alloc(&memory, *n, sizeof **ranges, "ranges", err);
    *ranges = memory;
    for (uint32_t i = 0; status == MOEC_OK && i < *n; i++)
        (*ranges)[i] = (struct moec_read_range){bundle->records[i].offset, bundle->records[i].n_bytes};
    moec_bundle_close(bundle);
    return status;
}

static uint64_t padded(uint64_t n_bytes)
{
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void print_pattern(const struct settings *s, const struct moec_read_range *ranges, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += padded(ranges[i].n_bytes);
    uint64_t mean = padded(total / n);
    printf("--offset=%" PRIu64 " --size=%" PRIu64 " --bs=%" PRIu64 " --iodepth=%" PRIu32 "\n",
           ranges[0].offset, mean * n, mean, s->depth);
}

static enum moec_status measure(const struct settings *s, const struct moec_file *file,
                                struct moec_read_range *ranges, uint32_t n, struct moec_error *err)
{
    struct moec_read_speed speed;
    struct moec_read_speed_request request = {
        .ranges = ranges,
        .n_ranges = n,
        .room.depth = s->depth,
        .limits = {.ns = (uint64_t)(s->seconds * 1e9), .max_reads = 1u << 20},
        .seed = s->seed};
    for (uint32_t i = 0; i < n; i++)
        if (padded(ranges[i].n_bytes) > request.room.slot_bytes)
            request.room.slot_bytes = padded(ranges[i].n_bytes);
    struct moec_reader_options options = {.io = s->io,
                                          .engine = s->engine,
                                          .depth = s->depth,
                                          .sample.n_bytes = ranges[0].n_bytes,
                                          .sample.offset = ranges[0].offset,
                                          .sample.end = file->n_bytes,
                                          .buffer.n_bytes = request.room.slot_bytes * s->depth};
    void *buffer = NULL;
    MOEC_TRY(moec_alloc_pages(&buffer, options.buffer.n_bytes, "a buffer", err));
    options.buffer.bytes = request.room.buffer = buffer;
    enum moec_status status = moec_reader_create(file, &options, &request.reader, err);
    if (status == MOEC_OK) {
        request.cached = request.reader->alignment == 1 ? file : NULL;
        status = moec_read_speed_measure(&request, &speed, err);
        if (status == MOEC_OK)
            printf("%.1f %.1f %.1f %" PRIu32 " %s\n", (double)speed.bytes_per_second / 1e6,
                   (double)speed.latency_ns_median / 1e3, (double)speed.latency_ns_p95 / 1e3, speed.n_reads,
                   request.reader->description);
        request.reader->ops->destroy(request.reader);
    }
    free(buffer);
    return status;
}

int main(int argc, char **argv)
{
    struct settings s;
    struct moec_error err = {0};
    struct moec_file file = {.fd = -1};
    struct moec_read_range *ranges = NULL;
    uint32_t n = 0;
    if (!parse(argc, argv, &s)) {
        fprintf(stderr,
                "usage: read_bench FILE [--depth N] [--io auto|direct|cached] [--engine uring|threads] "
                "[--seconds S] [--bytes N] [--seed S] [--pattern]\n");
        return 2;
    }
    enum moec_status status = moec_file_open(&file, s.path, &err);
    if (status == MOEC_OK)
        status = list_ranges(&s, &file, &ranges, &n, &err);
    if (status == MOEC_OK && n == 0)
        status = moec_fail(&err, MOEC_ERR_USAGE, "'%s' is smaller than one block", s.path);
    if (status == MOEC_OK && s.is_pattern)
        print_pattern(&s, ranges, n);
    else if (status == MOEC_OK)
        status = measure(&s, &file, ranges, n, &err);
    if (status != MOEC_OK)
        fprintf(stderr, "read_bench: %s\n", err.message);
    free(ranges);
    moec_file_close(&file);
    return status == MOEC_OK ? 0 : 1;
}
