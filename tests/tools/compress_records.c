/* Does zstd pay for expert records? Encodes every expert of a checkpoint at each bitwidth and prints, for
 * several levels, what zstd saves and how fast it gives the records back, beside reading them plainly. The
 * figures in formats/bundle/FORMAT.md come from here.
 *
 *     compress_records CHECKPOINT SCRATCH_FILE [symmetric|asymmetric GROUP]
 *
 * SCRATCH_FILE is written, read (cold: its pages dropped from the cache first; warm: from the cache) and
 * removed: put it on the device in question. Tab-separated; speeds in MB/s of records. */
#include "formats/base/memory.h"
#include "formats/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

struct records {
    uint8_t *bytes; /* all of them, one behind the other */
    size_t record_bytes;
    size_t n;
};

static double seconds(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double megabytes(const struct records *records)
{
    return (double)records->n * (double)records->record_bytes / 1e6;
}

static enum moec_status encode(const struct moec_checkpoint *checkpoint, uint32_t bits,
                               enum moec_scheme scheme, uint32_t group, struct records *records,
                               struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_codec codec;
    void *memory = NULL, *scratch = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_codec_for_bits(bits, scheme, group, config->expert_dtype, &codec, err));
    struct moec_record_layout layout = moec_record_layout_make(config, codec);
    uint32_t n_layer = moec_config_moe_count(config);
    records->record_bytes = layout.n_bytes;
    records->n = (size_t)n_layer * config->n_expert;
    MOEC_TRY_OUT(moec_alloc(&scratch, moec_checkpoint_expert_scratch_bytes(checkpoint), 1, "scratch", err));
    MOEC_TRY_OUT(moec_alloc(&memory, records->n, layout.n_bytes, "records", err));
    records->bytes = memory;
    for (size_t i = 0; i < records->n; i++)
        MOEC_TRY_OUT(moec_checkpoint_encode_expert(
            checkpoint, moec_config_moe_layer(config, (uint32_t)(i / config->n_expert)),
            (uint32_t)(i % config->n_expert), &layout, scratch, records->bytes + i * layout.n_bytes, err));
out:
    free(scratch);
    return status;
}

/* One thread, one record at a time, as a cache miss would. */
static void measure_zstd(const struct records *records, uint32_t bits, int level)
{
    size_t bound = ZSTD_compressBound(records->record_bytes), total = 0;
    uint8_t *packed = malloc(records->n * bound), *unpacked = malloc(records->record_bytes);
    size_t *sizes = calloc(records->n, sizeof *sizes);
    ZSTD_DCtx *context = ZSTD_createDCtx();
    if (packed == NULL || unpacked == NULL || sizes == NULL || context == NULL)
        goto out;
    double start = seconds();
    for (size_t i = 0; i < records->n; i++) {
        sizes[i] = ZSTD_compress(packed + i * bound, bound, records->bytes + i * records->record_bytes,
                                 records->record_bytes, level);
        total += sizes[i];
    }
    double compress = seconds() - start, decompress = 1e9;
    for (int round = 0; round < 5; round++) {
        start = seconds();
        for (size_t i = 0; i < records->n; i++)
            if (ZSTD_decompressDCtx(context, unpacked, records->record_bytes, packed + i * bound, sizes[i]) !=
                records->record_bytes)
                goto out;
        decompress = seconds() - start < decompress ? seconds() - start : decompress;
    }
    printf("%u\t%zu\tzstd -%d\t%.4f\t%.0f\t%.0f\n", bits, records->record_bytes, level,
           (double)total / ((double)records->n * (double)records->record_bytes),
           megabytes(records) / compress, megabytes(records) / decompress);
out:
    free(packed);
    free(unpacked);
    free(sizes);
    (void)ZSTD_freeDCtx(context);
}

static void measure_read(const struct records *records, uint32_t bits, const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint8_t *buffer = malloc(records->record_bytes);
    if (fd < 0 || buffer == NULL)
        goto out;
    for (size_t i = 0; i < records->n; i++)
        if (write(fd, records->bytes + i * records->record_bytes, records->record_bytes) !=
            (ssize_t)records->record_bytes)
            goto out;
    if (fsync(fd) != 0)
        goto out;
    for (int warm = 0; warm < 2; warm++) {
        double best = 1e9;
        for (int round = 0; round < 5; round++) {
            if (!warm)
                (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
            double start = seconds();
            for (size_t i = 0; i < records->n; i++) {
                size_t at = (i * 7919) % records->n; /* not in order */
                if (pread(fd, buffer, records->record_bytes, (off_t)(at * records->record_bytes)) < 0)
                    goto out;
            }
            best = seconds() - start < best ? seconds() - start : best;
        }
        printf("%u\t%zu\tread %s\t1\t\t%.0f\n", bits, records->record_bytes, warm ? "warm" : "cold",
               megabytes(records) / best);
    }
out:
    free(buffer);
    if (fd >= 0)
        (void)close(fd);
    (void)unlink(path);
}

int main(int argc, char **argv)
{
    static const uint32_t widths[] = {2, 3, 4, 8, 16};
    static const int levels[] = {1, 3, 9, 19};
    struct moec_error err = {0};
    struct moec_checkpoint *checkpoint = NULL;
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: compress_records CHECKPOINT SCRATCH_FILE [symmetric|asymmetric GROUP]\n");
        return 2;
    }
    bool asymmetric = argc == 5 && strcmp(argv[3], "asymmetric") == 0;
    enum moec_scheme scheme = asymmetric ? MOEC_SCHEME_ASYMMETRIC : MOEC_SCHEME_SYMMETRIC;
    uint32_t group = argc == 5 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    enum moec_status status = moec_checkpoint_open(argv[1], &checkpoint, &err);
    printf("bits\trecord_bytes\tmethod\tratio\tcompress_mb_s\tread_mb_s\n");
    for (size_t i = 0; i < sizeof widths / sizeof *widths && status == MOEC_OK; i++) {
        struct records records = {0};
        status = encode(checkpoint, widths[i], scheme, group, &records, &err);
        for (size_t j = 0; j < sizeof levels / sizeof *levels && status == MOEC_OK; j++)
            measure_zstd(&records, widths[i], levels[j]);
        if (status == MOEC_OK)
            measure_read(&records, widths[i], argv[2]);
        free(records.bytes);
    }
    moec_checkpoint_close(checkpoint);
    if (status != MOEC_OK)
        fprintf(stderr, "%s\n", err.message);
    return status == MOEC_OK ? 0 : 1;
}
