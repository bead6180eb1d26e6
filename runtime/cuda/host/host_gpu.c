/* Streams are queues, and an event is a place in a queue: the number of works given before it. A step of
 * work happens only inside a call, at a stream that may go on, drawn by xorshift64* from the seed. A copy
 * has two steps, and its destination is poison between them. Once the device is lost nothing runs any more
 * and every call says so. All state is under one lock. */
#include "runtime/cuda/host/host_gpu.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define ALIGNMENT      256u
#define CAPACITY_BYTES ((uint64_t)1 << 40)

enum work_kind { WORK_COPY, WORK_CLEAR, WORK_LAUNCH, WORK_RECORD, WORK_WAIT };

/* One piece of work in a stream's queue. */
struct work {
    struct work *next;
    enum work_kind kind;
    bool is_begun; /* a copy: its destination is poisoned */
    void *to;
    const void *from;
    uint64_t n_bytes;
    moec_host_gpu_body *body;
    const struct moec_gpu_stream *until; /* a wait: for `number` pieces of work of this stream */
    uint64_t number;
    max_align_t arguments[];
};

struct moec_gpu_stream {
    struct host_gpu *gpu;
    struct moec_gpu_stream *next;
    struct work *first, **last;
    uint64_t n_given, n_done;
};

/* The mark: after so many pieces of work of a stream; NULL where there is none, or all is done. */
struct moec_gpu_event {
    struct moec_gpu_event *next;
    const struct moec_gpu_stream *stream;
    uint64_t number;
};

/* Memory of the device, or pinned. */
struct range {
    struct range *next;
    uint8_t *bytes;
    uint64_t n_bytes;
    bool is_own; /* allocated here */
};

struct host_gpu {
    struct moec_gpu gpu;
    pthread_mutex_t lock;
    uint64_t random;
    struct moec_gpu_stream *streams;
    struct moec_gpu_event *events;
    struct range *allocations, *pinned;
    struct moec_host_gpu_faults faults;
    uint64_t n_allocs, n_copies, n_launches, n_works; /* since the faults were set */
    struct moec_host_gpu_counts counts;
    bool is_lost, has_failed_launch;
};

static struct host_gpu *host_of(struct moec_gpu *gpu)
{
    return (struct host_gpu *)gpu;
}

/* xorshift64*: what is drawn depends on the seed and the calls alone. */
static uint32_t draw(struct host_gpu *host, uint32_t n)
{
    host->random ^= host->random >> 12;
    host->random ^= host->random << 25;
    host->random ^= host->random >> 27;
    return (uint32_t)((host->random * 0x2545f4914f6cdd1dULL) >> 33) % n;
}

/* ---- work ---- */

static bool is_past(const struct moec_gpu_stream *stream, uint64_t number)
{
    return stream == NULL || stream->n_done >= number;
}

static bool is_runnable(const struct moec_gpu_stream *stream)
{
    const struct work *work = stream->first;
    return work != NULL && (work->kind != WORK_WAIT || is_past(work->until, work->number));
}

static void do_work(struct work *work)
{
    switch (work->kind) {
    case WORK_COPY:
        memcpy(work->to, work->from, work->n_bytes);
        break;
    case WORK_CLEAR:
        memset(work->to, 0, work->n_bytes);
        break;
    case WORK_LAUNCH:
        work->body(work->arguments);
        break;
    case WORK_RECORD:
    case WORK_WAIT:
        break;
    }
}

/* The first piece of a stream's work goes on by a step: a copy begins, or something is done. */
static void step(struct host_gpu *host, struct moec_gpu_stream *stream)
{
    struct work *work = stream->first;
    if (work->kind == WORK_COPY && !work->is_begun) {
        memset(work->to, MOEC_HOST_GPU_POISON, work->n_bytes);
        work->is_begun = true;
        return;
    }
    host->counts.n_works++;
    if (host->faults.lose_at != 0 && ++host->n_works == host->faults.lose_at) {
        host->is_lost = true;
        return;
    }
    do_work(work);
    stream->first = work->next;
    if (stream->first == NULL)
        stream->last = &stream->first;
    stream->n_done++;
    free(work);
}

/* One step of some stream that can go on; false where none can. */
static bool advance(struct host_gpu *host)
{
    uint32_t n = 0;
    if (host->is_lost)
        return false;
    for (const struct moec_gpu_stream *stream = host->streams; stream != NULL; stream = stream->next)
        n += is_runnable(stream);
    if (n == 0)
        return false;
    uint32_t chosen = draw(host, n);
    struct moec_gpu_stream *stream = host->streams;
    for (; !is_runnable(stream) || chosen-- > 0; stream = stream->next)
        continue;
    for (uint32_t left = 1 + draw(host, 4); left > 0 && is_runnable(stream) && !host->is_lost; left--)
        step(host, stream);
    return true;
}

/* What a device does while the process goes on: mostly nothing, as the process is fast. */
static void pass_time(struct host_gpu *host)
{
    if (draw(host, 3) == 0)
        (void)advance(host);
}

static void finish_all(struct host_gpu *host)
{
    while (advance(host))
        continue;
}

static enum moec_status lost(const struct host_gpu *host, struct moec_error *err)
{
    if (!host->is_lost)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_IO, "the device is lost: it stopped answering while it worked");
}

/* Takes the lock, unless the device is lost. */
static enum moec_status enter(struct host_gpu *host, struct moec_error *err)
{
    (void)pthread_mutex_lock(&host->lock);
    pass_time(host);
    const enum moec_status status = lost(host, err);
    if (status != MOEC_OK)
        (void)pthread_mutex_unlock(&host->lock);
    return status;
}

static enum moec_status leave(struct host_gpu *host, enum moec_status status)
{
    (void)pthread_mutex_unlock(&host->lock);
    return status;
}

static void queue(struct moec_gpu_stream *stream, struct work *work)
{
    *stream->last = work;
    stream->last = &work->next;
    stream->n_given++;
}

/* With the lock held; `n_bytes` of arguments. */
static enum moec_status make_work(enum work_kind kind, size_t n_bytes, struct work **out,
                                  struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)out, 1, sizeof **out + n_bytes, "work of a device", err));
    (*out)->kind = kind;
    return MOEC_OK;
}

/* ---- memory ---- */

static const struct range *find(const struct range *ranges, const void *memory, uint64_t n_bytes)
{
    for (; ranges != NULL; ranges = ranges->next) {
        const uintptr_t begin = (uintptr_t)ranges->bytes, at = (uintptr_t)memory;
        if (at >= begin && at - begin <= ranges->n_bytes && n_bytes <= ranges->n_bytes - (at - begin))
            return ranges;
    }
    return NULL;
}

/* Counts an allocation; false where it is the one that fails. */
static bool may_allocate(struct host_gpu *host)
{
    host->counts.n_allocs++;
    return ++host->n_allocs != host->faults.fail_alloc_at;
}

static uint64_t capacity_of(const struct host_gpu *host)
{
    return host->faults.capacity_bytes != 0 ? host->faults.capacity_bytes : CAPACITY_BYTES;
}

/* Puts a range in front of a list. The lock is held. */
static enum moec_status add_range(struct range **list, void *memory, uint64_t n_bytes, bool is_own,
                                  struct moec_error *err)
{
    struct range *range = NULL;
    MOEC_TRY(moec_alloc((void **)&range, 1, sizeof *range, "a range of memory", err));
    *range = (struct range){.next = *list, .bytes = memory, .n_bytes = n_bytes, .is_own = is_own};
    *list = range;
    return MOEC_OK;
}

static bool remove_range(struct range **list, const void *memory, uint64_t *n_bytes)
{
    for (; *list != NULL; list = &(*list)->next) {
        struct range *range = *list;
        if (range->bytes != memory)
            continue;
        *list = range->next;
        *n_bytes = range->n_bytes;
        if (range->is_own)
            free(range->bytes);
        free(range);
        return true;
    }
    return false;
}

static enum moec_status own_memory(struct range **list, uint64_t n_bytes, const char *what, void **out,
                                   struct moec_error *err)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, n_bytes) != 0)
        return moec_fail(err, MOEC_ERR_MEMORY, "no memory for %s of %" PRIu64 " bytes", what, n_bytes);
    memset(memory, MOEC_HOST_GPU_POISON, n_bytes);
    const enum moec_status status = add_range(list, memory, n_bytes, true, err);
    if (status != MOEC_OK)
        free(memory);
    else
        *out = memory;
    return status;
}

static enum moec_status alloc_locked(struct host_gpu *host, uint64_t n_bytes, const char *what, void **out,
                                     struct moec_error *err)
{
    const uint64_t capacity = capacity_of(host);
    if (!may_allocate(host) || n_bytes > capacity || host->counts.bytes > capacity - n_bytes)
        return moec_fail(err, MOEC_ERR_MEMORY,
                         "the device has no room for %s: %" PRIu64 " bytes are asked for, %" PRIu64
                         " of %" PRIu64 " are in use",
                         what, n_bytes, host->counts.bytes, capacity);
    MOEC_TRY(own_memory(&host->allocations, n_bytes, what, out, err));
    host->counts.allocations++;
    host->counts.bytes += n_bytes;
    if (host->counts.bytes > host->counts.peak_bytes)
        host->counts.peak_bytes = host->counts.bytes;
    return MOEC_OK;
}

static enum moec_status host_alloc(struct moec_gpu *gpu, uint64_t n_bytes, const char *what, void **out,
                                   struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, alloc_locked(host, n_bytes, what, out, err));
}

static void host_free(struct moec_gpu *gpu, void *memory)
{
    struct host_gpu *host = host_of(gpu);
    uint64_t n_bytes = 0;
    (void)pthread_mutex_lock(&host->lock);
    finish_all(host);
    if (memory != NULL && remove_range(&host->allocations, memory, &n_bytes)) {
        host->counts.allocations--;
        host->counts.bytes -= n_bytes;
    }
    (void)pthread_mutex_unlock(&host->lock);
}

static enum moec_status pin_locked(struct host_gpu *host, void *memory, uint64_t n_bytes, const char *what,
                                   void **out, struct moec_error *err)
{
    if (!may_allocate(host))
        return moec_fail(err, MOEC_ERR_MEMORY, "no pinned memory for %s of %" PRIu64 " bytes", what, n_bytes);
    if (memory != NULL)
        MOEC_TRY(add_range(&host->pinned, memory, n_bytes, false, err));
    else
        MOEC_TRY(own_memory(&host->pinned, n_bytes, what, out, err));
    host->counts.pinned++;
    host->counts.pinned_bytes += n_bytes;
    if (host->counts.pinned_bytes > host->counts.peak_pinned_bytes)
        host->counts.peak_pinned_bytes = host->counts.pinned_bytes;
    return MOEC_OK;
}

static enum moec_status host_alloc_pinned(struct moec_gpu *gpu, uint64_t n_bytes, const char *what,
                                          void **out, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, pin_locked(host, NULL, n_bytes, what, out, err));
}

static enum moec_status host_pin(struct moec_gpu *gpu, void *memory, uint64_t n_bytes, const char *what,
                                 struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    if ((uintptr_t)memory % 4096 != 0 || memory == NULL)
        return moec_fail(err, MOEC_ERR_USAGE, "%s does not begin at a page boundary, so it cannot be pinned",
                         what);
    MOEC_TRY(enter(host, err));
    return leave(host, pin_locked(host, memory, n_bytes, what, NULL, err));
}

static void host_unpin(struct moec_gpu *gpu, void *memory)
{
    struct host_gpu *host = host_of(gpu);
    uint64_t n_bytes = 0;
    (void)pthread_mutex_lock(&host->lock);
    finish_all(host);
    if (memory != NULL && remove_range(&host->pinned, memory, &n_bytes)) {
        host->counts.pinned--;
        host->counts.pinned_bytes -= n_bytes;
    }
    (void)pthread_mutex_unlock(&host->lock);
}

/* ---- streams and events ---- */

static enum moec_status host_stream_create(struct moec_gpu *gpu, struct moec_gpu_stream **out,
                                           struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    struct moec_gpu_stream *stream = NULL;
    MOEC_TRY(enter(host, err));
    const enum moec_status status = moec_alloc((void **)&stream, 1, sizeof *stream, "a stream", err);
    if (status == MOEC_OK) {
        *stream = (struct moec_gpu_stream){.gpu = host, .next = host->streams};
        stream->last = &stream->first;
        host->streams = stream;
        host->counts.streams++;
        *out = stream;
    }
    return leave(host, status);
}

static void free_works(struct moec_gpu_stream *stream)
{
    while (stream->first != NULL) {
        struct work *work = stream->first;
        stream->first = work->next;
        free(work);
    }
}

static void host_stream_free(struct moec_gpu *gpu, struct moec_gpu_stream *stream)
{
    struct host_gpu *host = host_of(gpu);
    if (stream == NULL)
        return;
    (void)pthread_mutex_lock(&host->lock);
    finish_all(host);
    for (struct moec_gpu_event *event = host->events; event != NULL; event = event->next)
        if (event->stream == stream)
            event->stream = NULL;
    struct moec_gpu_stream **link = &host->streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    free_works(stream);
    free(stream);
    host->counts.streams--;
    (void)pthread_mutex_unlock(&host->lock);
}

static enum moec_status host_event_create(struct moec_gpu *gpu, struct moec_gpu_event **out,
                                          struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    struct moec_gpu_event *event = NULL;
    MOEC_TRY(enter(host, err));
    const enum moec_status status = moec_alloc((void **)&event, 1, sizeof *event, "an event", err);
    if (status == MOEC_OK) {
        event->next = host->events;
        host->events = event;
        host->counts.events++;
        *out = event;
    }
    return leave(host, status);
}

static void host_event_free(struct moec_gpu *gpu, struct moec_gpu_event *event)
{
    struct host_gpu *host = host_of(gpu);
    if (event == NULL)
        return;
    (void)pthread_mutex_lock(&host->lock);
    struct moec_gpu_event **link = &host->events;
    while (*link != event)
        link = &(*link)->next;
    *link = event->next;
    free(event);
    host->counts.events--;
    (void)pthread_mutex_unlock(&host->lock);
}

/* ---- giving work ---- */

static enum moec_status check_copy(const struct host_gpu *host, struct moec_gpu_move move,
                                   struct moec_error *err)
{
    const struct range *to_ranges = move.kind == MOEC_GPU_TO_HOST ? host->pinned : host->allocations;
    const struct range *from_ranges = move.kind == MOEC_GPU_TO_DEVICE ? host->pinned : host->allocations;
    if (find(to_ranges, move.to, move.n_bytes) == NULL)
        return moec_fail(err, MOEC_ERR_IO, "a copy of %" PRIu64 " bytes goes to memory that is not %s",
                         move.n_bytes, move.kind == MOEC_GPU_TO_HOST ? "pinned" : "the device's");
    if (find(from_ranges, move.from, move.n_bytes) == NULL)
        return moec_fail(err, MOEC_ERR_IO, "a copy of %" PRIu64 " bytes comes from memory that is not %s",
                         move.n_bytes, move.kind == MOEC_GPU_TO_DEVICE ? "pinned" : "the device's");
    return MOEC_OK;
}

static enum moec_status copy_locked(struct host_gpu *host, struct moec_gpu_stream *stream,
                                    struct moec_gpu_move move, struct moec_error *err)
{
    struct work *work = NULL;
    MOEC_TRY(check_copy(host, move, err));
    host->counts.n_copies++;
    host->counts.to_host_bytes += move.kind == MOEC_GPU_TO_HOST ? move.n_bytes : 0;
    if (++host->n_copies == host->faults.fail_copy_at)
        return moec_fail(err, MOEC_ERR_IO, "the device refused a copy of %" PRIu64 " bytes", move.n_bytes);
    MOEC_TRY(make_work(WORK_COPY, 0, &work, err));
    work->to = move.to;
    work->from = move.from;
    work->n_bytes = move.n_bytes;
    queue(stream, work);
    return MOEC_OK;
}

static enum moec_status host_copy(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                  struct moec_gpu_move move, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, copy_locked(host, stream, move, err));
}

static enum moec_status clear_locked(struct host_gpu *host, struct moec_gpu_stream *stream, void *memory,
                                     uint64_t n_bytes, struct moec_error *err)
{
    struct work *work = NULL;
    if (find(host->allocations, memory, n_bytes) == NULL)
        return moec_fail(err, MOEC_ERR_IO, "%" PRIu64 " bytes to be cleared are not in the device's memory",
                         n_bytes);
    MOEC_TRY(make_work(WORK_CLEAR, 0, &work, err));
    work->to = memory;
    work->n_bytes = n_bytes;
    queue(stream, work);
    return MOEC_OK;
}

static enum moec_status host_clear(struct moec_gpu *gpu, struct moec_gpu_stream *stream, void *memory,
                                   uint64_t n_bytes, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, clear_locked(host, stream, memory, n_bytes, err));
}

static enum moec_status record_locked(struct moec_gpu_stream *stream, struct moec_gpu_event *event,
                                      struct moec_error *err)
{
    struct work *work = NULL;
    MOEC_TRY(make_work(WORK_RECORD, 0, &work, err));
    queue(stream, work);
    event->stream = stream;
    event->number = stream->n_given;
    return MOEC_OK;
}

static enum moec_status host_record(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                    struct moec_gpu_event *event, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, record_locked(stream, event, err));
}

static enum moec_status wait_locked(struct moec_gpu_stream *stream, const struct moec_gpu_event *event,
                                    struct moec_error *err)
{
    struct work *work = NULL;
    MOEC_TRY(make_work(WORK_WAIT, 0, &work, err));
    work->until = event->stream;
    work->number = event->number;
    queue(stream, work);
    return MOEC_OK;
}

static enum moec_status host_wait(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                  const struct moec_gpu_event *event, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, wait_locked(stream, event, err));
}

void moec_host_gpu_launch(struct moec_gpu_stream *stream, moec_host_gpu_body *body, const void *arguments,
                          size_t n_bytes)
{
    struct host_gpu *host = stream->gpu;
    struct work *work = NULL;
    if (enter(host, NULL) != MOEC_OK)
        return;
    host->counts.n_launches++;
    if (++host->n_launches == host->faults.fail_launch_at ||
        make_work(WORK_LAUNCH, n_bytes, &work, NULL) != MOEC_OK) {
        host->has_failed_launch = true;
    } else {
        work->body = body;
        if (n_bytes > 0)
            memcpy(work->arguments, arguments, n_bytes);
        queue(stream, work);
    }
    (void)leave(host, MOEC_OK);
}

static enum moec_status host_check(struct moec_gpu *gpu, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    const bool has_failed = host->has_failed_launch;
    host->has_failed_launch = false;
    return leave(host,
                 has_failed ? moec_fail(err, MOEC_ERR_IO, "the device refused to run a kernel") : MOEC_OK);
}

/* ---- waiting ---- */

static enum moec_status host_is_done(struct moec_gpu *gpu, const struct moec_gpu_event *event, bool *done,
                                     struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    *done = is_past(event->stream, event->number);
    if (!*done)
        (void)advance(host); /* who asks again and again is answered at last */
    return leave(host, lost(host, err));
}

static enum moec_status finish_until(struct host_gpu *host, const struct moec_gpu_stream *stream,
                                     uint64_t number, struct moec_error *err)
{
    while (!is_past(stream, number)) {
        if (!advance(host))
            break;
    }
    return lost(host, err);
}

static enum moec_status host_finish_event(struct moec_gpu *gpu, const struct moec_gpu_event *event,
                                          struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, finish_until(host, event->stream, event->number, err));
}

static enum moec_status host_finish(struct moec_gpu *gpu, struct moec_gpu_stream *stream,
                                    struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    return leave(host, finish_until(host, stream, stream->n_given, err));
}

/* ---- the device ---- */

static enum moec_status host_info(struct moec_gpu *gpu, struct moec_gpu_info *info, struct moec_error *err)
{
    struct host_gpu *host = host_of(gpu);
    MOEC_TRY(enter(host, err));
    *info = (struct moec_gpu_info){.capability = host->faults.capability > 0 ? host->faults.capability : 80,
                                   .total_bytes = capacity_of(host),
                                   .free_bytes = capacity_of(host) - host->counts.bytes};
    (void)snprintf(info->name, sizeof info->name, "stand-in for tests");
    return leave(host, MOEC_OK);
}

static void host_close(struct moec_gpu *gpu)
{
    struct host_gpu *host = host_of(gpu);
    if (host == NULL)
        return;
    (void)pthread_mutex_destroy(&host->lock);
    free(host);
}

enum moec_status moec_host_gpu_open(uint64_t seed, struct moec_gpu **out, struct moec_error *err)
{
    static const struct moec_gpu_ops ops = {.close = host_close,
                                            .info = host_info,
                                            .alloc = host_alloc,
                                            .free = host_free,
                                            .alloc_pinned = host_alloc_pinned,
                                            .free_pinned = host_unpin,
                                            .pin = host_pin,
                                            .unpin = host_unpin,
                                            .stream_create = host_stream_create,
                                            .stream_free = host_stream_free,
                                            .event_create = host_event_create,
                                            .event_free = host_event_free,
                                            .copy = host_copy,
                                            .clear = host_clear,
                                            .record = host_record,
                                            .wait = host_wait,
                                            .check = host_check,
                                            .is_done = host_is_done,
                                            .finish_event = host_finish_event,
                                            .finish = host_finish};
    struct host_gpu *host = NULL;
    MOEC_TRY(moec_alloc((void **)&host, 1, sizeof *host, "a stand-in for a device", err));
    if (pthread_mutex_init(&host->lock, NULL) != 0) {
        free(host);
        return moec_fail(err, MOEC_ERR_MEMORY, "no memory for a lock of a device");
    }
    host->gpu.ops = &ops;
    host->random = (seed + 1) * 0x9e3779b97f4a7c15ULL; /* neighbouring seeds draw nothing alike */
    *out = &host->gpu;
    return MOEC_OK;
}

void moec_host_gpu_set_faults(struct moec_gpu *gpu, const struct moec_host_gpu_faults *faults)
{
    struct host_gpu *host = host_of(gpu);
    (void)pthread_mutex_lock(&host->lock);
    host->faults = *faults;
    host->n_allocs = host->n_copies = host->n_launches = host->n_works = 0;
    (void)pthread_mutex_unlock(&host->lock);
}

struct moec_host_gpu_counts moec_host_gpu_counts(struct moec_gpu *gpu)
{
    struct host_gpu *host = host_of(gpu);
    (void)pthread_mutex_lock(&host->lock);
    const struct moec_host_gpu_counts counts = host->counts;
    (void)pthread_mutex_unlock(&host->lock);
    return counts;
}
