/* A read is answered in pieces: it goes on from the last whole unit that arrived, and one that gets no
 * further is an error. To choose a way, both are measured in turns on ranges dropped from the page cache,
 * and the best round counts. The answer is kept for the process, by device, engine, size of reads and
 * whether the file is cached. Where mapping is allowed, a file is mapped that is half in the page cache, or
 * that the buffer has room for. */
#include "runtime/storage/reader_internal.h"

#include "formats/base/digest.h"
#include "formats/base/memory.h"
#include "formats/base/pause.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_DEPTH 32
#define MAX_DEPTH     1024

/* ---- requests ---- */

void moec_read_list_push(struct moec_read_list *list, struct moec_read *read)
{
    read->progress.next = NULL;
    if (list->first == NULL)
        list->first = read;
    else
        list->last->progress.next = read;
    list->last = read;
}

struct moec_read *moec_read_list_pop(struct moec_read_list *list)
{
    struct moec_read *read = list->first;
    if (read != NULL)
        list->first = read->progress.next;
    return read;
}

bool moec_read_list_remove(struct moec_read_list *list, struct moec_read *read)
{
    struct moec_read *before = NULL, *at = list->first;
    while (at != NULL && at != read) {
        before = at;
        at = at->progress.next;
    }
    if (at == NULL)
        return false;
    if (before == NULL)
        list->first = read->progress.next;
    else
        before->progress.next = read->progress.next;
    if (list->last == read)
        list->last = before;
    return true;
}

/* One call moves at most this much, a multiple of every alignment. */
#define PIECE_MAX_BYTES ((uint64_t)1 << 30)

struct moec_read_piece moec_read_next_piece(const struct moec_read *read, uint32_t alignment)
{
    uint64_t mask = ~((uint64_t)alignment - 1);
    uint64_t skip = read->progress.done_bytes & mask;
    uint64_t left = ((read->n_bytes + alignment - 1) & mask) - skip;
    return (struct moec_read_piece){skip, (uint32_t)(left < PIECE_MAX_BYTES ? left : PIECE_MAX_BYTES)};
}

/* A read that got no further: at the end of the file there is nothing more, before it the device broke off.
 */
static int why_stuck(const struct moec_read *read, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return errno;
    return read->offset + read->progress.done_bytes >= (uint64_t)info.st_size ? ENODATA : EIO;
}

bool moec_read_take_answer(struct moec_read *read, struct moec_read_piece piece, int64_t answer, int fd)
{
    if (answer == -EINTR || answer == -EAGAIN)
        return false;
    uint64_t end = answer < 0 ? 0 : piece.skip + (uint64_t)answer;
    read->error = answer < 0 ? (int)-answer : 0;
    if (answer >= 0 && end < read->n_bytes) {
        if (end > read->progress.done_bytes) {
            read->progress.done_bytes = end;
            return false;
        }
        read->error = why_stuck(read, fd);
    } else if (answer >= 0) {
        read->progress.done_bytes = read->n_bytes;
    }
    read->at.done_ns = moec_now_ns();
    return true;
}

void moec_read_reset(struct moec_read *read)
{
    read->error = 0;
    read->progress.done_bytes = read->progress.begun_bytes = read->progress.summed_bytes =
        read->progress.arrived = 0;
    read->progress.n_flying = read->sum.crc32c = 0;
    read->sum.is_there = false;
}

void moec_read_sum_to(struct moec_read *read, uint64_t end)
{
    const uint64_t from =
        read->progress.summed_bytes > read->sum.skip ? read->progress.summed_bytes : read->sum.skip;
    if (!read->sum.is_wanted || end <= from)
        return;
    read->sum.crc32c = moec_crc32c(read->sum.crc32c, read->buffer + from, end - from);
    read->progress.summed_bytes = end;
}

bool moec_read_watch(uint64_t until_ns)
{
    (void)sched_yield();
    return moec_pause_until(until_ns);
}

void moec_read_sum_end(struct moec_read *read)
{
    if (read->error != 0)
        return;
    moec_read_sum_to(read, read->n_bytes);
    read->sum.is_there = read->sum.is_wanted;
}

/* ---- opening ---- */

/* The file that `file` has open, opened again with these flags. */
static enum moec_status open_again(const struct moec_file *file, int flags, int *out, struct moec_error *err)
{
    struct stat had, got;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);
    if (fd < 0 && errno == EINVAL && (flags & O_DIRECT) != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the file system of '%s' refuses direct reads",
                         file->path);
    if (fd < 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot open '%s' again: %s", file->path, strerror(errno));
    if (fstat(file->fd, &had) != 0 || fstat(fd, &got) != 0 || had.st_dev != got.st_dev ||
        had.st_ino != got.st_ino) {
        (void)close(fd);
        return moec_fail(err, MOEC_ERR_IO,
                         "the file '%s' was replaced while it was open: run the command again", file->path);
    }
    /* O_NONBLOCK was for opening, should a FIFO have taken the place; io_uring would take it seriously. */
    (void)fcntl(fd, F_SETFL, flags);
    *out = fd;
    return MOEC_OK;
}

/* Some file systems open a file for direct reads and then refuse to read it so. */
static enum moec_status try_direct(const struct moec_file *file, int fd, uint32_t unit,
                                   struct moec_error *err)
{
    void *block = NULL;
    if (posix_memalign(&block, MOEC_READER_ALIGNMENT, 2 * MOEC_READER_ALIGNMENT) != 0)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: blocks of %d bytes", MOEC_READER_ALIGNMENT);
    ssize_t n = pread(fd, (char *)block + unit, unit, unit);
    int problem = n < 0 ? errno : 0;
    free(block);
    if (problem == EINVAL || problem == EOPNOTSUPP)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the device of '%s' refuses direct reads of %" PRIu32 " bytes", file->path, unit);
    return MOEC_OK;
}

enum way { WAY_CACHED, WAY_DIRECT, N_MEASURED_WAYS, WAY_MAPPED = N_MEASURED_WAYS };

static enum moec_status open_target(const struct moec_file *file, enum way way,
                                    struct moec_reader_target *target, struct moec_error *err)
{
    MOEC_TRY(open_again(file, way == WAY_DIRECT ? O_DIRECT : 0, &target->fd, err));
    enum moec_status status = MOEC_OK;
    if (way == WAY_DIRECT) {
        status = try_direct(file, target->fd, target->alignment, err);
    } else if (way == WAY_MAPPED) {
        target->alignment = MOEC_READER_ALIGNMENT;
        target->is_mapped = true;
        target->depth =
            target->depth < MOEC_READER_MAPPING_THREADS ? target->depth : MOEC_READER_MAPPING_THREADS;
        status = moec_reader_mapped_check(target, file->path, err);
    } else { /* reading ahead of a record fetches its neighbours */
        target->alignment = 1;
        (void)posix_fadvise(target->fd, 0, 0, POSIX_FADV_RANDOM);
    }
    if (status != MOEC_OK)
        (void)close(target->fd);
    return status;
}

/* Puts the way of reading and `why` around the engine's description of itself. */
static void describe(struct moec_reader *reader, enum way way, const char *why)
{
    static const char *const names[] = {
        [WAY_CACHED] = "cached", [WAY_DIRECT] = "direct", [WAY_MAPPED] = "mapped"};
    char engine[sizeof reader->description];
    memcpy(engine, reader->description, sizeof engine);
    (void)snprintf(reader->description, sizeof reader->description, "%s%s through %.100s", names[way], why,
                   engine);
}

/* A way of reading, and the words that say why it was chosen. */
struct chosen_way {
    enum way way;
    const char *why;
};

static enum moec_status create_one(const struct moec_file *file, struct chosen_way chosen,
                                   enum moec_io_engine engine, struct moec_reader_target target,
                                   struct moec_reader **out, struct moec_error *err)
{
    struct moec_error refusal = {0};
    MOEC_TRY(open_target(file, chosen.way, &target, err));
    if (chosen.way == WAY_MAPPED)
        engine = MOEC_IO_ENGINE_THREADS;
    enum moec_status status = MOEC_ERR_UNSUPPORTED;
    if (engine != MOEC_IO_ENGINE_THREADS)
        status = moec_reader_uring_create(&target, out, engine == MOEC_IO_ENGINE_URING ? err : &refusal);
    if (status == MOEC_ERR_UNSUPPORTED && engine != MOEC_IO_ENGINE_URING) {
        status = moec_reader_threads_create(&target, out, err);
        size_t used = status == MOEC_OK ? strlen((*out)->description) : 0;
        if (status == MOEC_OK && refusal.status != MOEC_OK)
            (void)snprintf((*out)->description + used, sizeof(*out)->description - used, " (%.60s)",
                           refusal.message);
    } else if (status != MOEC_OK && engine != MOEC_IO_ENGINE_URING) {
        status = moec_fail(err, status, "%s", refusal.message);
    }
    if (status != MOEC_OK) {
        (void)close(target.fd);
        return status;
    }
    describe(*out, chosen.way, chosen.why);
    return MOEC_OK;
}

/* ---- which way is faster ---- */

#define TRIAL_READS     4 /* at once, where the buffer holds as many */
#define TRIAL_ROUNDS    8 /* at most, each way */
#define TRIAL_NS        30000000u
#define TRIAL_MAX_BYTES ((uint64_t)1 << 20)
/* Around a range, so that pages which the cache holds in large pieces are dropped too. */
#define TRIAL_AROUND_BYTES ((uint64_t)2 << 20)

struct trial {
    const struct moec_file *file;
    struct moec_reader *ways[N_MEASURED_WAYS];
    uint8_t *buffer;
    uint64_t n_reads; /* at once, up to TRIAL_READS */
    uint64_t n_bytes; /* of a read */
    uint64_t first;   /* offset of the first range */
    uint64_t n_ranges;
    bool is_in_cache; /* the file, so what is measured is that */
    uint64_t spent_ns;
    double bytes_per_second[N_MEASURED_WAYS]; /* of the best round: others share the device and the cores */
};

/* Cached reads cost a copy and the memory of the page cache: they are to be this much faster to be taken. */
#define CACHED_ADVANTAGE 1.1

/* What was measured in this process: one answer for each device, engine and size of reads, of files in the
 * page cache and of others. A device that is slow to begin may be faster through the page cache for small
 * reads, and directly for large ones. */
struct measured {
    dev_t device;
    enum moec_io_engine engine;
    uint32_t size_class; /* sizes up to twice the smallest share one */
    bool is_in_cache;    /* the page cache holds the file */
    double bytes_per_second[N_MEASURED_WAYS];
};

static struct {
    pthread_mutex_t lock;
    struct measured answers[64];
    uint32_t n_answers;
} measurements = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Reads n_reads ranges from number `range` on, spread over the file, none of them cached unless all is. */
static void run_round(struct trial *trial, int way, uint64_t range)
{
    struct moec_reader *reader = trial->ways[way];
    struct moec_read reads[TRIAL_READS];
    /* A stride that has no factor in common with powers of two visits ranges far from each other. */
    uint64_t stride = trial->n_ranges / trial->n_reads | 1;
    for (uint64_t i = 0; i < trial->n_reads; i++) {
        uint64_t at = (range / trial->n_reads + i * stride) % trial->n_ranges;
        reads[i] = (struct moec_read){.offset = trial->first + at * trial->n_bytes,
                                      .n_bytes = trial->n_bytes,
                                      .buffer = trial->buffer + i * trial->n_bytes};
        uint64_t before = reads[i].offset < TRIAL_AROUND_BYTES ? reads[i].offset : TRIAL_AROUND_BYTES;
        if (!trial->is_in_cache)
            moec_file_drop(trial->file, reads[i].offset - before,
                           before + trial->n_bytes + TRIAL_AROUND_BYTES);
    }
    uint64_t n_bytes = 0, begun_ns = moec_now_ns();
    for (uint64_t i = 0; i < trial->n_reads; i++)
        reader->ops->submit(reader, &reads[i]);
    for (uint64_t n_done = 0; n_done < trial->n_reads;) {
        const struct moec_read *read = reader->ops->wait(reader);
        if (read == NULL)
            continue;
        n_done++;
        n_bytes += read->error == 0 ? read->n_bytes : 0;
    }
    uint64_t spent_ns = moec_now_ns() - begun_ns;
    double speed = (double)n_bytes * 1e9 / (double)(spent_ns > 0 ? spent_ns : 1);
    trial->spent_ns += spent_ns;
    if (speed > trial->bytes_per_second[way])
        trial->bytes_per_second[way] = speed;
}

static void run_rounds(struct trial *trial)
{
    uint64_t range = 0;
    for (int round = 0; round < TRIAL_ROUNDS && trial->spent_ns < TRIAL_NS; round++)
        for (int turn = 0; turn < N_MEASURED_WAYS; turn++, range += trial->n_reads)
            run_round(trial, (round + turn) % N_MEASURED_WAYS, range);
}

/* Bytes of a read in a trial. */
static uint64_t trial_bytes(const struct moec_reader_options *options)
{
    const uint64_t wanted =
        options->sample.n_bytes < TRIAL_MAX_BYTES ? options->sample.n_bytes : TRIAL_MAX_BYTES;
    return (wanted + MOEC_READER_ALIGNMENT - 1) / MOEC_READER_ALIGNMENT * MOEC_READER_ALIGNMENT;
}

/* Blocks of it, as a power of two. */
static uint32_t size_class_of(uint64_t n_bytes)
{
    uint32_t class = 0;
    while (n_bytes >> class > MOEC_READER_ALIGNMENT)
        class ++;
    return class;
}

static uint32_t direct_unit(const struct moec_reader_options *options)
{
    return options->direct_unit != 0 ? options->direct_unit : MOEC_READER_ALIGNMENT;
}

/* Fills answer->bytes_per_second. */
static enum moec_status measure(const struct moec_file *file, const struct moec_reader_options *options,
                                struct measured *answer, struct moec_error *err)
{
    uint64_t mask = ~((uint64_t)MOEC_READER_ALIGNMENT - 1);
    struct trial trial = {.file = file, .n_bytes = trial_bytes(options), .is_in_cache = answer->is_in_cache};
    struct moec_reader_target target = {.depth = TRIAL_READS, .alignment = direct_unit(options)};
    void *memory = NULL;
    trial.first = (options->sample.offset + MOEC_READER_ALIGNMENT - 1) & mask;
    uint64_t end = options->sample.end < file->n_bytes ? options->sample.end : file->n_bytes;
    trial.n_ranges = trial.n_bytes > 0 && trial.first < end ? (end - trial.first) / trial.n_bytes : 0;
    if (trial.n_ranges < 2 * TRIAL_READS)
        return moec_fail(
            err, MOEC_ERR_NOT_FOUND,
            "cannot measure the reading speed: the file has too few records, expected at least %d",
            2 * TRIAL_READS);
    enum moec_status status = MOEC_OK;
    trial.buffer = options->buffer.bytes;
    trial.n_reads = TRIAL_READS;
    if (options->buffer.bytes != NULL && options->buffer.n_bytes / trial.n_bytes < TRIAL_READS)
        trial.n_reads = options->buffer.n_bytes / trial.n_bytes; /* no memory beside what was planned */
    if (trial.n_reads == 0)
        return moec_fail(err, MOEC_ERR_NOT_FOUND,
                         "cannot measure the reading speed: the buffer is smaller than one record");
    if (options->buffer.bytes == NULL) {
        MOEC_TRY(moec_alloc_pages(&memory, TRIAL_READS * trial.n_bytes, "measuring storage", err));
        trial.buffer = memory;
    }
    for (int way = 0; way < N_MEASURED_WAYS; way++)
        MOEC_TRY_OUT(create_one(file, (struct chosen_way){(enum way)way, ""}, options->engine, target,
                                &trial.ways[way], err));
    run_rounds(&trial);
    memcpy(answer->bytes_per_second, trial.bytes_per_second, sizeof trial.bytes_per_second);
out:
    for (int way = 0; way < N_MEASURED_WAYS; way++)
        if (trial.ways[way] != NULL)
            trial.ways[way]->ops->destroy(trial.ways[way]);
    free(memory);
    return status;
}

static bool is_same_question(const struct measured *a, const struct measured *b)
{
    return a->device == b->device && a->engine == b->engine && a->size_class == b->size_class &&
           a->is_in_cache == b->is_in_cache;
}

/* A file of which less is in the page cache is read from the device, by whichever way. */
#define IN_CACHE_SHARE 0.97

/* A file of which this much is in the page cache is mapped: what is missing is read into the page cache in
 * the course of it, while every other way takes and fills memory for all of it. */
#define MAPPED_SHARE 0.5

static bool is_in_cache(const struct moec_file *file, const struct moec_reader_options *options, double share)
{
    const uint64_t first = options->sample.offset, end = options->sample.end;
    return first < end && moec_file_cached_share(file, first, end - first) >= share;
}

/* Why a file is mapped; NULL where it is not to be. Where the buffer has room for all of it, nothing is ever
 * taken from the buffer again, and a file that was read through the page cache is in it for the next process.
 */
static const char *why_mapped(const struct moec_file *file, const struct moec_reader_options *options)
{
    const uint64_t first = options->sample.offset, end = options->sample.end;
    if (is_in_cache(file, options, MAPPED_SHARE))
        return " (auto: in the page cache)";
    return first < end && end - first <= options->buffer.n_bytes ? " (auto: memory has room for all)" : NULL;
}

/* The answer for this file's device and records of this size, measured by the first who asks; `why` says it.
 * False: cached. */
static bool choose_direct(const struct moec_file *file, const struct moec_reader_options *options,
                          char why[static 64])
{
    struct stat info;
    struct measured answer = {.engine = options->engine, .size_class = size_class_of(trial_bytes(options))};
    struct moec_error problem = {0};
    if (fstat(file->fd, &info) == 0)
        answer.device = info.st_dev;
    answer.is_in_cache = is_in_cache(file, options, IN_CACHE_SHARE);
    (void)pthread_mutex_lock(&measurements.lock);
    uint32_t i = 0;
    while (i < measurements.n_answers && !is_same_question(&measurements.answers[i], &answer))
        i++;
    enum moec_status status = MOEC_OK;
    if (i < measurements.n_answers)
        answer = measurements.answers[i];
    else
        status = measure(file, options, &answer, &problem);
    if (status == MOEC_OK && i == measurements.n_answers &&
        i < sizeof measurements.answers / sizeof *measurements.answers)
        measurements.answers[measurements.n_answers++] = answer;
    (void)pthread_mutex_unlock(&measurements.lock);
    if (status == MOEC_OK)
        (void)snprintf(
            why, 64, " (auto: direct %.0f, %s %.0f MB/s)", answer.bytes_per_second[WAY_DIRECT] / 1e6,
            answer.is_in_cache ? "in the page cache" : "cached", answer.bytes_per_second[WAY_CACHED] / 1e6);
    else
        (void)snprintf(why, 64, " (auto: %s)",
                       status == MOEC_ERR_UNSUPPORTED ? "direct reads are refused" : "not measured");
    return status == MOEC_ERR_NOT_FOUND ||
           (status == MOEC_OK &&
            answer.bytes_per_second[WAY_CACHED] <= CACHED_ADVANTAGE * answer.bytes_per_second[WAY_DIRECT]);
}

/* ---- creation ---- */

static uint32_t depth_of(uint32_t depth)
{
    return depth == 0 ? DEFAULT_DEPTH : depth < MAX_DEPTH ? depth : MAX_DEPTH;
}

uint64_t moec_reader_bytes(uint32_t depth)
{
    uint64_t uring = moec_reader_uring_bytes(depth_of(depth));
    uint64_t threads = moec_reader_threads_bytes(depth_of(depth));
    return MOEC_READER_CODE_BYTES + (uring > threads ? uring : threads) +
           moec_reader_emulated_bytes(depth_of(depth));
}

static enum moec_status create_auto(const struct moec_file *file, const struct moec_reader_options *options,
                                    struct moec_reader_target target, struct moec_reader **out,
                                    struct moec_error *err)
{
    char why[64] = "";
    struct moec_error refusal = {0};
    const bool is_direct = choose_direct(file, options, why);
    const enum moec_status status =
        create_one(file, (struct chosen_way){is_direct ? WAY_DIRECT : WAY_CACHED, why}, options->engine,
                   target, out, is_direct ? &refusal : err);
    if (status == MOEC_ERR_UNSUPPORTED && is_direct) /* not measured, and refused */
        return create_one(file, (struct chosen_way){WAY_CACHED, " (auto: direct reads are refused)"},
                          options->engine, target, out, err);
    return status == MOEC_OK || !is_direct ? status : moec_fail(err, status, "%s", refusal.message);
}

enum moec_status moec_reader_create(const struct moec_file *file, const struct moec_reader_options *options,
                                    struct moec_reader **out, struct moec_error *err)
{
    const struct moec_reader_target target = {.depth = depth_of(options->depth),
                                              .alignment = direct_unit(options),
                                              .buffer = options->buffer.bytes,
                                              .buffer_bytes = options->buffer.n_bytes};
    struct moec_error refusal = {0};
    const char *why = NULL;
    switch (options->io) {
    case MOEC_IO_DIRECT:
        return create_one(file, (struct chosen_way){WAY_DIRECT, ""}, options->engine, target, out, err);
    case MOEC_IO_CACHED:
        return create_one(file, (struct chosen_way){WAY_CACHED, ""}, options->engine, target, out, err);
    case MOEC_IO_MAPPED:
        return create_one(file, (struct chosen_way){WAY_MAPPED, ""}, options->engine, target, out, err);
    case MOEC_IO_AUTO_MAPPED:
        why = why_mapped(file, options);
        if (why != NULL && create_one(file, (struct chosen_way){WAY_MAPPED, why}, options->engine, target,
                                      out, &refusal) == MOEC_OK)
            return MOEC_OK;
        break;
    case MOEC_IO_AUTO:
        break;
    }
    MOEC_TRY(create_auto(file, options, target, out, err));
    const size_t used = strlen((*out)->description);
    if (refusal.status != MOEC_OK)
        (void)snprintf((*out)->description + used, sizeof(*out)->description - used, " (not mapped: %.60s)",
                       refusal.message);
    return MOEC_OK;
}

enum moec_status moec_io_find(const char *name, enum moec_io *out, struct moec_error *err)
{
    static const char *const names[] = {[MOEC_IO_AUTO] = "auto",
                                        [MOEC_IO_DIRECT] = "direct",
                                        [MOEC_IO_CACHED] = "cached",
                                        [MOEC_IO_MAPPED] = "mapped",
                                        [MOEC_IO_AUTO_MAPPED] = "auto+mapped"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum moec_io)i;
            return MOEC_OK;
        }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "unknown way of reading '%s', expected auto, direct, cached, mapped or auto+mapped",
                     name);
}
