/* Invariants, under the lock:
 *  - records tail .. head - 1 of the stream are in the ring, in that order, and at most one round of them,
 *    so that a key is there once; a round is all keys, or those of the decoder, which an encoder's go before
 *    once;
 *  - a record leaves the ring at the tail, once it is decided, its read has ended and nobody wants it. */
#include "runtime/experts/expert_stream.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "runtime/storage/storage.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

/* What a thread touches of its stack, generously. */
#define STACK_BYTES ((uint64_t)64 << 10)

enum state { ABSENT = 0, READING, READY, FAILED };

struct entry {
    uint64_t offset;     /* in the ring */
    uint64_t slot_bytes; /* set once */
    uint8_t state;
    uint8_t tries;  /* that failed, of the read at work */
    bool is_wanted; /* of the layer decided last: from the router's answer to its release */
    bool is_asked;  /* its router had answered when it was asked for */
    int problem;    /* FAILED: an errno, 0 = the checks failed */
};

/* Experts by key: MoE ordinal x n_expert + expert. */
struct keys {
    uint32_t n_layer; /* MoE layers */
    uint32_t n_expert;
    uint32_t n;                           /* n_layer x n_expert */
    uint32_t round_start;                 /* key that every round begins with */
    struct entry *entries;                /* (n), owned */
    struct moec_cache_counters *counters; /* (n_layer), owned */
};

struct ring {
    uint8_t *bytes; /* owned */
    uint64_t n_bytes;
    uint64_t tail;    /* oldest record in the ring */
    uint64_t head;    /* next one to ask for */
    uint64_t decided; /* routers have answered for those before */
    /* Record that is key 0 of the input at work; may lie before the stream's beginning (mod 2^64). */
    uint64_t base;
    uint64_t write_at; /* offset behind the newest record */
    bool is_draining;  /* nothing is asked for until the ring is empty */
};

/* The last record whose bytes were wrong. */
struct failure {
    struct moec_error words;
    uint32_t key;
};

struct reading {
    struct moec_reader *reader; /* owned */
    struct moec_read *reads;    /* (reader->depth), owned */
    struct moec_read *free;     /* through next */
    uint32_t n;
    uint64_t busy_until_ns; /* of the reads that were counted */
};

struct moec_expert_stream {
    struct moec_experts experts; /* first: the source */
    const struct moec_bundle *bundle;
    uint32_t copy;
    struct moec_storage *storage; /* owned */
    struct moec_trace *trace;     /* borrowed, or NULL */
    struct keys keys;
    struct ring ring;
    struct failure failure;
    struct reading reading;
    bool is_closing;
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a read has ended */
};

static uint32_t round_keys(const struct moec_expert_stream *stream)
{
    return stream->keys.n - stream->keys.round_start;
}

static uint32_t key_of(const struct moec_expert_stream *stream, uint64_t place)
{
    const uint64_t since = place - stream->ring.base;
    if (since < stream->keys.n)
        return (uint32_t)since;
    return stream->keys.round_start + (uint32_t)((since - stream->keys.round_start) % round_keys(stream));
}

/* The first place of a key from another one on; the input must still come to it. */
static uint64_t next_place(const struct moec_expert_stream *stream, uint64_t from, uint32_t key)
{
    const uint64_t since = from - stream->ring.base;
    if (since <= key)
        return stream->ring.base + key;
    const uint32_t n = round_keys(stream), at = key_of(stream, from);
    return from + (key + n - at) % n;
}

/* Whether the layer decided last still needs this record. After a step that failed, one of the same expert
 * from the token before may be in the ring: nobody needs that. */
static bool is_wanted(const struct moec_expert_stream *stream, uint64_t place)
{
    return place < stream->ring.decided && place + stream->keys.n_expert >= stream->ring.decided &&
           stream->keys.entries[key_of(stream, place)].is_wanted;
}

/* Where a record of the layer decided last stands in the stream. */
static uint64_t place_of(const struct moec_expert_stream *stream, uint32_t key)
{
    return stream->ring.decided - stream->keys.n_expert + key % stream->keys.n_expert;
}

/* Whether the read of such a record has ended. */
static bool has_ended(const struct moec_expert_stream *stream, uint32_t key)
{
    const uint8_t state = stream->keys.entries[key].state;
    return place_of(stream, key) < stream->ring.head && (state == READY || state == FAILED);
}

/* ---- the ring ---- */

/* Where n bytes can be put behind the newest record. */
static bool find_room(const struct moec_expert_stream *stream, uint64_t n, uint64_t *offset)
{
    uint64_t end = stream->ring.n_bytes;
    *offset = stream->ring.write_at;
    if (stream->ring.tail == stream->ring.head) {
        *offset = 0;
    } else {
        const uint64_t oldest = stream->keys.entries[key_of(stream, stream->ring.tail)].offset;
        if (stream->ring.write_at <= oldest) {
            end = oldest;
        } else if (end - stream->ring.write_at < n) {
            *offset = 0;
            end = oldest;
        }
    }
    return end - *offset >= n;
}

/* Gives up what is decided and unwanted; whether that made room. */
static bool advance_tail(struct moec_expert_stream *stream)
{
    const uint64_t before = stream->ring.tail;
    while (stream->ring.tail < stream->ring.head && stream->ring.tail < stream->ring.decided) {
        struct entry *entry = &stream->keys.entries[key_of(stream, stream->ring.tail)];
        if (entry->state == READING || is_wanted(stream, stream->ring.tail))
            break;
        entry->state = ABSENT;
        stream->ring.tail++;
    }
    return stream->ring.tail != before;
}

/* ---- reading ---- */

/* The next request in order, its record placed; NULL when there is no room or enough is on its way. */
static struct moec_read *next_read(struct moec_expert_stream *stream)
{
    uint64_t offset = 0;
    const uint32_t key = key_of(stream, stream->ring.head);
    struct entry *entry = &stream->keys.entries[key];
    struct moec_read *read = stream->reading.free;
    if (read == NULL || stream->ring.is_draining ||
        stream->ring.head - stream->ring.tail == round_keys(stream) ||
        !find_room(stream, entry->slot_bytes, &offset))
        return NULL;
    stream->reading.free = read->progress.next;
    const struct moec_record_place from =
        moec_storage_place_of(stream->storage, key / stream->keys.n_expert, key % stream->keys.n_expert);
    *read = (struct moec_read){
        .offset = from.offset, .n_bytes = from.n_bytes, .buffer = stream->ring.bytes + offset, .tag = key};
    entry->is_asked = stream->ring.head < stream->ring.decided;
    if (!entry->is_asked)
        stream->keys.counters[key / stream->keys.n_expert].preload_bytes += from.n_bytes;
    entry->offset = offset;
    entry->state = READING;
    entry->tries = 0;
    stream->ring.write_at = offset + entry->slot_bytes;
    stream->ring.head++;
    stream->reading.n++;
    return read;
}

/* Whether a record that is being read will go at once. */
static bool is_passed(const struct moec_expert_stream *stream, uint32_t key)
{
    const uint64_t place = next_place(stream, stream->ring.tail, key);
    return place < stream->ring.decided && !is_wanted(stream, place);
}

static void count_read(struct moec_expert_stream *stream, const struct moec_read *read)
{
    const uint32_t key = (uint32_t)read->tag;
    struct moec_cache_counters *counters = &stream->keys.counters[key / stream->keys.n_expert];
    counters->read_ns += read->at.done_ns > read->at.begun_ns ? read->at.done_ns - read->at.begun_ns : 0;
    counters->busy_ns +=
        moec_read_busy_ns(&stream->reading.busy_until_ns, read->at.begun_ns, read->at.done_ns);
    counters->n_reads += read->error == 0;
    counters->read_bytes += read->error == 0 ? read->n_bytes : 0;
    moec_trace_record(
        stream->trace,
        &(struct moec_trace_span){
            .what = "read",
            .lane = stream->keys.entries[key].is_asked ? MOEC_TRACE_DEMAND : MOEC_TRACE_PRELOAD,
            .layer = moec_config_moe_layer(&stream->bundle->config, key / stream->keys.n_expert),
            .expert = key % stream->keys.n_expert,
            .n_bytes = read->n_bytes,
            .begin_ns = read->at.begun_ns,
            .end_ns = read->at.done_ns});
}

/* Whether the bytes of a record are its own; the lock is released meanwhile. */
static bool check(struct moec_expert_stream *stream, uint32_t key, struct moec_error *words)
{
    const uint8_t *bytes = stream->ring.bytes + stream->keys.entries[key].offset;
    (void)pthread_mutex_unlock(&stream->lock);
    const bool is_good = moec_storage_check(stream->storage, key / stream->keys.n_expert,
                                            key % stream->keys.n_expert, bytes, NULL, words) == MOEC_OK;
    (void)pthread_mutex_lock(&stream->lock);
    return is_good;
}

/* Takes a read that has ended; the lock is released while its bytes are checked, and while a read that failed
 * is begun once more. */
static void finish_read(struct moec_expert_stream *stream, struct moec_read *read)
{
    const uint32_t key = (uint32_t)read->tag;
    struct entry *entry = &stream->keys.entries[key];
    struct moec_error words = {0};
    count_read(stream, read);
    const bool is_good = read->error == 0 && (is_passed(stream, key) || check(stream, key, &words));
    if (!is_good && !is_passed(stream, key) && !stream->is_closing && ++entry->tries < MOEC_RECORD_TRIES) {
        (void)pthread_mutex_unlock(&stream->lock);
        stream->reading.reader->ops->submit(stream->reading.reader, read);
        (void)pthread_mutex_lock(&stream->lock);
        return;
    }
    entry->state = is_good ? READY : FAILED;
    entry->problem = read->error;
    if (!is_good) {
        stream->failure.words = words;
        stream->failure.key = key;
    }
    read->buffer = NULL; /* nobody's */
    read->progress.next = stream->reading.free;
    stream->reading.free = read;
    stream->reading.n--;
    (void)advance_tail(stream);
    (void)pthread_cond_broadcast(&stream->changed);
}

/* Takes back what the device has not begun. */
static void cancel_reads(struct moec_expert_stream *stream)
{
    for (uint32_t i = 0; i < stream->reading.reader->depth; i++) {
        struct moec_read *read = &stream->reading.reads[i];
        if (read->buffer != NULL && stream->reading.reader->ops->cancel(stream->reading.reader, read))
            stream->reading.n--;
    }
}

static void *run_loader(void *context)
{
    struct moec_expert_stream *stream = context;
    struct moec_reader *reader = stream->reading.reader;
    struct moec_read *read = NULL;
    (void)pthread_mutex_lock(&stream->lock);
    while (!stream->is_closing) {
        while ((read = next_read(stream)) != NULL) {
            (void)pthread_mutex_unlock(&stream->lock);
            reader->ops->submit(reader, read);
            (void)pthread_mutex_lock(&stream->lock);
        }
        (void)pthread_mutex_unlock(&stream->lock);
        read = reader->ops->wait(reader);
        (void)pthread_mutex_lock(&stream->lock);
        if (read != NULL)
            finish_read(stream, read);
    }
    cancel_reads(stream);
    while (stream->reading.n > 0) {
        (void)pthread_mutex_unlock(&stream->lock);
        read = reader->ops->wait(reader);
        (void)pthread_mutex_lock(&stream->lock);
        stream->reading.n -= read != NULL ? 1 : 0;
    }
    (void)pthread_mutex_unlock(&stream->lock);
    return NULL;
}

/* ---- the source ---- */

static enum moec_status find_key(const struct moec_expert_stream *stream, struct moec_expert_request request,
                                 uint32_t *key, struct moec_error *err)
{
    const uint32_t layer = request.layer, expert = request.expert;
    const int32_t ordinal =
        layer < stream->bundle->config.n_layer ? moec_config_moe_ordinal(&stream->bundle->config, layer) : -1;
    if (ordinal < 0 || expert >= stream->keys.n_expert)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "layer %" PRIu32 " expert %" PRIu32 " does not exist in the bundle '%s'", layer,
                         expert, stream->bundle->file.path);
    MOEC_TRY(moec_experts_check_form(&stream->experts, request, err));
    *key = (uint32_t)ordinal * stream->keys.n_expert + expert;
    return MOEC_OK;
}

/* What the layer's records were when its router answered. */
static void count_answer(struct moec_expert_stream *stream, uint64_t first)
{
    struct moec_cache_counters *counters =
        &stream->keys.counters[key_of(stream, first) / stream->keys.n_expert];
    for (uint32_t expert = 0; expert < stream->keys.n_expert; expert++) {
        const struct entry *entry = &stream->keys.entries[key_of(stream, first + expert)];
        const bool is_asked = first + expert < stream->ring.head;
        counters->hits += entry->is_wanted && is_asked && entry->state == READY;
        counters->late += entry->is_wanted && is_asked && entry->state != READY;
        counters->misses += entry->is_wanted && !is_asked;
        counters->useful_preloads += entry->is_wanted && is_asked;
        counters->wasted_preloads += !entry->is_wanted && is_asked;
    }
}

/* Goes on with a layer that the input at work has passed:
 * another input has begun, or another part of a long one. */
static void begin_again(struct moec_expert_stream *stream, uint32_t first)
{
    stream->ring.is_draining = true;
    stream->ring.decided = stream->ring.head;
    (void)advance_tail(stream);
    while (stream->ring.tail != stream->ring.head)
        (void)pthread_cond_wait(&stream->changed, &stream->lock);
    stream->ring.base = stream->ring.head - first;
    stream->ring.is_draining = false;
}

/* The layer is decided, and with it all before it: after a step that failed the stream passes what is left of
 * that token. */
static void stream_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_expert_stream *stream = (struct moec_expert_stream *)self;
    uint32_t first = 0;
    if (find_key(stream, moec_expert_request_of(answer->layer, 0), &first, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&stream->lock);
    for (uint32_t key = 0; key < stream->keys.n; key++)
        stream->keys.entries[key].is_wanted = false;
    const bool is_again =
        first < stream->keys.round_start && stream->ring.decided - stream->ring.base > first;
    if (is_again)
        begin_again(stream, first);
    for (uint32_t i = 0; i < answer->active.n; i++)
        stream->keys.entries[first + answer->active.list[i]].is_wanted = true;
    const uint64_t end = next_place(stream, stream->ring.decided, first) + stream->keys.n_expert;
    for (uint64_t place = stream->ring.decided; place < end; place += stream->keys.n_expert)
        count_answer(stream, place);
    stream->ring.decided = end;
    const bool has_room = advance_tail(stream);
    (void)pthread_mutex_unlock(&stream->lock);
    if (has_room || is_again)
        stream->reading.reader->ops->wake(stream->reading.reader);
}

/* Gives a record back; whether that made room. */
static bool give_back(struct moec_expert_stream *stream, uint32_t key)
{
    stream->keys.entries[key].is_wanted = false;
    return advance_tail(stream);
}

static enum moec_status describe_failure(const struct moec_expert_stream *stream, uint32_t key,
                                         struct moec_error *err)
{
    return moec_record_failed(
        stream->bundle,
        (struct moec_record_id){stream->copy, key / stream->keys.n_expert, key % stream->keys.n_expert},
        stream->keys.entries[key].problem, stream->failure.key == key ? &stream->failure.words : NULL, err);
}

static enum moec_status stream_acquire(struct moec_experts *self, struct moec_expert_request request,
                                       struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_expert_stream *stream = (struct moec_expert_stream *)self;
    enum moec_status status = MOEC_OK;
    uint32_t key = 0;
    bool has_room = false;
    MOEC_TRY(find_key(stream, request, &key, err));
    struct entry *entry = &stream->keys.entries[key];
    (void)pthread_mutex_lock(&stream->lock);
    if (!entry->is_wanted) {
        status = moec_fail(err, MOEC_ERR_USAGE,
                           "layer %" PRIu32 " expert %" PRIu32 " is acquired before the router chose it",
                           request.layer, request.expert);
        goto out;
    }
    if (!has_ended(stream, key)) {
        const uint64_t start = moec_now_ns();
        while (!has_ended(stream, key))
            (void)pthread_cond_wait(&stream->changed, &stream->lock);
        const uint64_t end = moec_now_ns();
        stream->keys.counters[key / stream->keys.n_expert].stall_ns += end - start;
        moec_trace_record(stream->trace, &(struct moec_trace_span){.what = "wait",
                                                                   .lane = MOEC_TRACE_STALL,
                                                                   .layer = request.layer,
                                                                   .expert = request.expert,
                                                                   .begin_ns = start,
                                                                   .end_ns = end});
    }
    if (entry->state == FAILED) {
        status = describe_failure(stream, key, err);
        has_room = give_back(stream, key);
        goto out;
    }
    moec_storage_bind(stream->storage, key / stream->keys.n_expert, request.expert,
                      stream->ring.bytes + entry->offset, mlp);
out:
    (void)pthread_mutex_unlock(&stream->lock);
    if (has_room)
        stream->reading.reader->ops->wake(stream->reading.reader);
    return status;
}

static void stream_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_expert_stream *stream = (struct moec_expert_stream *)self;
    uint32_t key = 0;
    if (find_key(stream, request, &key, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&stream->lock);
    const bool has_room = give_back(stream, key);
    (void)pthread_mutex_unlock(&stream->lock);
    if (has_room)
        stream->reading.reader->ops->wake(stream->reading.reader);
}

static bool stream_ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_expert_stream *stream = (struct moec_expert_stream *)self;
    uint32_t key = 0;
    if (find_key(stream, request, &key, NULL) != MOEC_OK)
        return false;
    (void)pthread_mutex_lock(&stream->lock);
    const bool is_ready = stream->keys.entries[key].is_wanted && has_ended(stream, key);
    (void)pthread_mutex_unlock(&stream->lock);
    return is_ready;
}

static const struct moec_experts_ops stream_ops = {
    .acquire = stream_acquire, .release = stream_release, .expect = stream_expect, .ready = stream_ready};

/* ---- life ---- */

uint64_t moec_expert_stream_table_bytes(const struct moec_bundle *bundle, const struct moec_record_io *io)
{
    const uint64_t n_layer = moec_config_moe_count(&bundle->config);
    const uint64_t depth = io->depth > 0 ? io->depth : MOEC_RECORD_READER_DEPTH;
    return sizeof(struct moec_expert_stream) + n_layer * bundle->config.n_expert * sizeof(struct entry) +
           n_layer * sizeof(struct moec_cache_counters) + depth * sizeof(struct moec_read) +
           moec_storage_bytes(bundle) + moec_reader_bytes((uint32_t)depth) + STACK_BYTES;
}

static enum moec_status create_tables(struct moec_expert_stream *stream, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, stream->keys.n_layer, sizeof *stream->keys.counters, "expert stream", err));
    stream->keys.counters = memory;
    MOEC_TRY(moec_alloc(&memory, stream->keys.n, sizeof *stream->keys.entries, "expert stream", err));
    stream->keys.entries = memory;
    for (uint32_t key = 0; key < stream->keys.n; key++)
        stream->keys.entries[key].slot_bytes = moec_storage_slot_bytes(
            stream->storage, key / stream->keys.n_expert, key % stream->keys.n_expert);
    return MOEC_OK;
}

static enum moec_status create_ring(struct moec_expert_stream *stream, uint64_t buffer_bytes,
                                    struct moec_error *err)
{
    uint64_t largest = 0, all = 0;
    for (uint32_t key = 0; key < stream->keys.n; key++) {
        const uint64_t slot = stream->keys.entries[key].slot_bytes;
        largest = slot > largest ? slot : largest;
        all += slot;
    }
    if (buffer_bytes < largest)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "an expert buffer of %" PRIu64 " bytes has no room for the "
                         "largest record of %" PRIu64 " bytes",
                         buffer_bytes, largest);
    stream->ring.n_bytes = buffer_bytes < all ? buffer_bytes : all;
    void *memory = NULL;
    MOEC_TRY(moec_alloc_pages(&memory, stream->ring.n_bytes, "expert buffer", err));
    stream->ring.bytes = memory;
    return MOEC_OK;
}

static enum moec_status create_reader(struct moec_expert_stream *stream, const struct moec_record_io *io,
                                      struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_record_reader_create(stream->bundle, stream->copy, io,
                                       (struct moec_read_buffer){stream->ring.bytes, stream->ring.n_bytes},
                                       &stream->reading.reader, err));
    MOEC_TRY(moec_alloc(&memory, stream->reading.reader->depth, sizeof *stream->reading.reads,
                        "expert stream", err));
    stream->reading.reads = memory;
    for (uint32_t i = 0; i < stream->reading.reader->depth; i++) {
        stream->reading.reads[i].progress.next = stream->reading.free;
        stream->reading.free = &stream->reading.reads[i];
    }
    return MOEC_OK;
}

static struct keys keys_of(const struct moec_config *config)
{
    const uint32_t n_layer = moec_config_moe_count(config), n_expert = config->n_expert;
    const uint32_t n_encoder = moec_config_moe_encoder_count(config);
    return (struct keys){.n_layer = n_layer,
                         .n_expert = n_expert,
                         .n = n_layer * n_expert,
                         .round_start = n_encoder < n_layer ? n_encoder * n_expert : 0};
}

enum moec_status moec_expert_stream_create(const struct moec_bundle *bundle,
                                           const struct moec_expert_stream_options *options,
                                           struct moec_expert_stream **out, struct moec_error *err)
{
    const struct moec_storage_setup storage = {.bundle = bundle, .copy = options->copy};
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_expert_stream), "expert stream", err));
    struct moec_expert_stream *stream = memory;
    (void)pthread_mutex_init(&stream->lock, NULL);
    (void)pthread_cond_init(&stream->changed, NULL);
    stream->experts = (struct moec_experts){.ops = &stream_ops, .max_held = UINT32_MAX};
    stream->bundle = bundle;
    stream->copy = options->copy;
    stream->trace = options->trace;
    stream->keys = keys_of(&bundle->config);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_storage_create(&storage, &stream->storage, err));
    MOEC_TRY_OUT(create_tables(stream, err));
    MOEC_TRY_OUT(create_ring(stream, options->buffer_bytes, err));
    MOEC_TRY_OUT(create_reader(stream, &options->io, err));
    const int problem = pthread_create(&stream->thread, NULL, run_loader, stream);
    if (problem != 0) {
        status = moec_fail(err, MOEC_ERR_MEMORY, "cannot start the thread that reads experts: %s",
                           strerror(problem));
        goto out;
    }
    stream->has_thread = true;
    *out = stream;
    stream = NULL;
out:
    moec_expert_stream_free(stream);
    return status;
}

void moec_expert_stream_free(struct moec_expert_stream *stream)
{
    if (stream == NULL)
        return;
    if (stream->has_thread) {
        (void)pthread_mutex_lock(&stream->lock);
        stream->is_closing = true;
        (void)pthread_mutex_unlock(&stream->lock);
        stream->reading.reader->ops->wake(stream->reading.reader);
        (void)pthread_join(stream->thread, NULL);
    }
    if (stream->reading.reader != NULL)
        stream->reading.reader->ops->destroy(stream->reading.reader);
    moec_storage_free(stream->storage);
    free(stream->reading.reads);
    free(stream->ring.bytes);
    free(stream->keys.entries);
    free(stream->keys.counters);
    (void)pthread_cond_destroy(&stream->changed);
    (void)pthread_mutex_destroy(&stream->lock);
    free(stream);
}

struct moec_experts *moec_expert_stream_experts(struct moec_expert_stream *stream)
{
    return &stream->experts;
}

uint64_t moec_expert_stream_buffer_bytes(const struct moec_expert_stream *stream)
{
    return stream->ring.n_bytes;
}

const char *moec_expert_stream_io(const struct moec_expert_stream *stream)
{
    return stream->reading.reader->description;
}

struct moec_cache_counters moec_expert_stream_layer_counters(struct moec_expert_stream *stream,
                                                             uint32_t ordinal)
{
    (void)pthread_mutex_lock(&stream->lock);
    const struct moec_cache_counters counters = stream->keys.counters[ordinal];
    (void)pthread_mutex_unlock(&stream->lock);
    return counters;
}
