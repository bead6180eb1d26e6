/* Reading through io_uring; the home of liburing.
 *
 * Buffers are not registered: that takes and pins all of their memory at once, before the first byte is read,
 * and requests into huge pages (moec_alloc_pages) were not measured to be any slower without it. Requests are
 * handed to the kernel as they come, up to the depth; the others wait in order. A poll on an event counter
 * stands in the ring beside them, so that another thread can end a wait. */
#include "runtime/storage/reader_internal.h"

#include "formats/base/memory.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Large requests are read directly in parts of so many bytes, in order: a device that works on two whole
 * records at once ends both at the same time, in parts the first comes in half of it; and the sum of one part
 * is computed while the next ones come. At most as many parts as `arrived` has bits. */
#define PART_BYTES ((uint64_t)512 << 10)
#define MAX_PARTS  64u

struct part {
    struct moec_read read; /* tag: number of the part */
    struct moec_read *whole;
};

struct uring_reader {
    struct moec_reader base;
    struct io_uring ring;
    int fd;
    int wake_fd; /* event counter that the ring polls */
    bool has_registered_file;
    bool is_polled;                /* wake_fd, by a request in the ring */
    struct moec_read_load load;    /* in flight */
    struct moec_read_list waiting; /* not begun, the first maybe in part */
    atomic_bool is_woken;
    uint32_t n_free;
    struct part **free_parts; /* (depth), behind `parts` */
    struct part parts[];      /* (depth) */
};

/* What the kernel does not take now stays in the ring, and the next call brings it again. The ring has room
 * for the depth and the poll. */
static void hand_over(struct uring_reader *self)
{
    (void)io_uring_submit(&self->ring);
}

/* From the thread that waits: the kernel works on a request in the context of the thread that handed it over.
 */
static void poll_for_wake(struct uring_reader *self)
{
    if (self->is_polled)
        return;
    self->is_polled = true;
    struct io_uring_sqe *entry = io_uring_get_sqe(&self->ring);
    io_uring_prep_poll_add(entry, self->wake_fd, POLLIN);
    io_uring_sqe_set_data(entry, NULL);
    hand_over(self);
}

/* From the page cache a request is a copy, made by the thread that hands it over unless the kernel is told to
 * use another. That pays from about so many bytes on. */
#define ASYNC_COPY_BYTES ((uint32_t)256 << 10)

static void ask(struct uring_reader *self, struct part *part, unsigned flags)
{
    const struct moec_read *read = &part->read;
    const struct moec_read_piece piece = moec_read_next_piece(read, self->base.alignment);
    struct io_uring_sqe *entry = io_uring_get_sqe(&self->ring);
    int fd = self->has_registered_file ? 0 : self->fd;
    if (self->base.alignment == 1 && piece.n_bytes >= ASYNC_COPY_BYTES)
        flags |= IOSQE_ASYNC;
    io_uring_prep_read(entry, fd, read->buffer + piece.skip, piece.n_bytes, read->offset + piece.skip);
    io_uring_sqe_set_flags(entry, flags | (self->has_registered_file ? IOSQE_FIXED_FILE : 0));
    io_uring_sqe_set_data(entry, part);
}

/* Of all parts but the last. */
static uint64_t part_bytes(const struct uring_reader *self, const struct moec_read *whole)
{
    if (self->base.alignment == 1)
        return whole->n_bytes;
    const uint64_t n_units = (whole->n_bytes + MAX_PARTS * PART_BYTES - 1) / (MAX_PARTS * PART_BYTES);
    return (n_units > 1 ? n_units : 1) * PART_BYTES;
}

static struct moec_read next_part(const struct uring_reader *self, const struct moec_read *whole)
{
    const uint64_t most = part_bytes(self, whole), left = whole->n_bytes - whole->progress.begun_bytes;
    return (struct moec_read){.offset = whole->offset + whole->progress.begun_bytes,
                              .n_bytes = left < most ? left : most,
                              .buffer = whole->buffer + whole->progress.begun_bytes,
                              .tag = whole->progress.begun_bytes / (most > 0 ? most : 1)};
}

static void begin(struct uring_reader *self, struct moec_read *whole, const struct moec_read *read)
{
    struct part *part = self->free_parts[--self->n_free];
    *part = (struct part){.read = *read, .whole = whole};
    moec_read_load_add(&self->load, read);
    if (whole->progress.begun_bytes == 0)
        whole->at.begun_ns = moec_now_ns();
    whole->progress.begun_bytes += read->n_bytes;
    whole->progress.n_flying++;
    ask(self, part, 0);
}

/* Whether any has begun. */
static bool begin_waiting(struct uring_reader *self)
{
    bool has_begun = false;
    for (struct moec_read *whole; (whole = self->waiting.first) != NULL; has_begun = true) {
        const struct moec_read read = next_part(self, whole);
        if (!moec_read_may_begin(&self->load, &read, self->base.depth))
            break;
        begin(self, whole, &read);
        if (whole->progress.begun_bytes == whole->n_bytes)
            (void)moec_read_list_pop(&self->waiting);
    }
    self->base.holds_back = self->waiting.first != NULL;
    return has_begun;
}

static void uring_submit(struct moec_reader *base, struct moec_read *read)
{
    struct uring_reader *self = (struct uring_reader *)base;
    moec_read_reset(read);
    moec_read_list_push(&self->waiting, read);
    (void)begin_waiting(self);
    if (!base->has_more)
        hand_over(self);
}

static bool uring_cancel(struct moec_reader *base, struct moec_read *read)
{
    return read->progress.begun_bytes == 0 &&
           moec_read_list_remove(&((struct uring_reader *)base)->waiting, read);
}

/* A part is over: its request, if that is over too. What fails at one part asks for no more. */
static struct moec_read *end_part(struct uring_reader *self, struct part *part)
{
    struct moec_read *whole = part->whole;
    moec_read_load_remove(&self->load, &part->read);
    whole->progress.n_flying--;
    if (part->read.error == 0) {
        whole->progress.arrived |= UINT64_C(1) << part->read.tag;
    } else if (whole->error == 0) {
        whole->error = part->read.error;
        (void)moec_read_list_remove(&self->waiting, whole);
    }
    whole->at.done_ns = part->read.at.done_ns;
    self->free_parts[self->n_free++] = part;
    if (begin_waiting(self))
        hand_over(self);
    const uint64_t n_first =
        ~whole->progress.arrived != 0 ? (uint64_t)__builtin_ctzll(~whole->progress.arrived) : MAX_PARTS;
    const uint64_t end = n_first * part_bytes(self, whole);
    if (whole->error == 0)
        moec_read_sum_to(whole, end < whole->n_bytes ? end : whole->n_bytes);
    if (whole->progress.n_flying > 0 || (whole->error == 0 && whole->progress.begun_bytes < whole->n_bytes))
        return NULL;
    whole->progress.done_bytes = whole->error == 0 ? whole->n_bytes : 0;
    moec_read_sum_end(whole);
    return whole;
}

/* A request that this completion ends, or NULL. */
static struct moec_read *take_completion(struct uring_reader *self, const struct io_uring_cqe *completion)
{
    struct part *part = io_uring_cqe_get_data(completion);
    if (part == NULL) {
        eventfd_t count;
        (void)eventfd_read(self->wake_fd, &count);
        self->is_polled = false;
        return NULL;
    }
    /* The piece asked for last: only done_bytes decides it. */
    const struct moec_read_piece piece = moec_read_next_piece(&part->read, self->base.alignment);
    if (moec_read_take_answer(&part->read, piece, completion->res, self->fd))
        return end_part(self, part);
    /* A request that would have blocked is given to a worker of the kernel, which may. */
    ask(self, part, completion->res == -EAGAIN ? IOSQE_ASYNC : 0);
    hand_over(self);
    return NULL;
}

static struct moec_read *uring_take(struct moec_reader *base)
{
    struct uring_reader *self = (struct uring_reader *)base;
    struct io_uring_cqe *completion = NULL;
    while (io_uring_peek_cqe(&self->ring, &completion) == 0 && completion != NULL) {
        struct io_uring_cqe copy = {.user_data = completion->user_data, .res = completion->res};
        io_uring_cqe_seen(&self->ring, completion);
        struct moec_read *read = take_completion(self, &copy);
        if (read != NULL)
            return read;
    }
    return NULL;
}

/* Watches for as many answers as the caller needs; false when there is nothing for a long time. */
static bool watch(struct uring_reader *self, uint32_t n, uint64_t until_ns)
{
    hand_over(self);
    do {
        if (io_uring_cq_ready(&self->ring) >= n || atomic_load(&self->is_woken))
            return true;
    } while (moec_read_watch(until_ns));
    return false;
}

static struct moec_read *uring_wait(struct moec_reader *base)
{
    struct uring_reader *self = (struct uring_reader *)base;
    const uint64_t until_ns = base->spins ? moec_now_ns() + MOEC_READER_SPIN_NS : 0;
    /* Set before the counter is raised, looked at after the counter is lowered: no wake is lost. */
    while (!atomic_exchange(&self->is_woken, false)) {
        const bool was_polled = self->is_polled;
        struct moec_read *read = uring_take(base);
        if (read != NULL)
            return read;
        if (was_polled && !self->is_polled)
            continue;
        const uint32_t wanted = base->n_needed < self->load.n_reads ? base->n_needed : self->load.n_reads;
        const uint32_t n = wanted > 1 ? wanted : 1;
        if (until_ns > 0 && watch(self, n, until_ns))
            continue;
        poll_for_wake(self);
        int answer = io_uring_submit_and_wait(&self->ring, n);
        if (answer < 0 && answer != -EINTR) {
            /* Out of memory for requests: those that are in flight give some back. */
            struct timespec pause = {.tv_nsec = 1000000};
            (void)nanosleep(&pause, NULL);
        }
    }
    return NULL;
}

static void uring_wake(struct moec_reader *base)
{
    struct uring_reader *self = (struct uring_reader *)base;
    if (!atomic_exchange(&self->is_woken, true))
        (void)eventfd_write(self->wake_fd, 1);
}

static void uring_destroy(struct moec_reader *base)
{
    if (base == NULL)
        return;
    struct uring_reader *self = (struct uring_reader *)base;
    io_uring_queue_exit(&self->ring);
    (void)close(self->wake_fd);
    (void)close(self->fd);
    free(self);
}

static const struct moec_reader_ops uring_ops = {
    .submit = uring_submit,
    .cancel = uring_cancel,
    .wait = uring_wait,
    .take = uring_take,
    .wake = uring_wake,
    .destroy = uring_destroy,
};

/* A ring whose kernel knows the operations used here: 0, or an errno. */
static int open_ring(struct io_uring *ring, uint32_t depth)
{
    int answer = io_uring_queue_init(depth + 1, ring, 0);
    if (answer < 0)
        return -answer;
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool is_known = probe != NULL && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                    io_uring_opcode_supported(probe, IORING_OP_POLL_ADD);
    io_uring_free_probe(probe);
    if (!is_known)
        io_uring_queue_exit(ring);
    return is_known ? 0 : ENOSYS;
}

static uint64_t struct_bytes(uint32_t depth)
{
    return sizeof(struct uring_reader) + depth * (sizeof(struct part) + sizeof(struct part *));
}

uint64_t moec_reader_uring_bytes(uint32_t depth)
{
    uint64_t entries = 1;
    while (entries <= depth)
        entries *= 2;
    return struct_bytes(depth) + 4096 + entries * sizeof(struct io_uring_sqe) +
           2 * entries * sizeof(struct io_uring_cqe) + 4096;
}

enum moec_status moec_reader_uring_create(const struct moec_reader_target *target, struct moec_reader **out,
                                          struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, struct_bytes(target->depth), "io_uring reader", err));
    struct uring_reader *self = memory;
    int problem = open_ring(&self->ring, target->depth);
    if (problem != 0) {
        free(self);
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the kernel refuses io_uring: %s", strerror(problem));
    }
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->wake_fd < 0) {
        problem = errno;
        io_uring_queue_exit(&self->ring);
        free(self);
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "cannot create an eventfd: %s", strerror(problem));
    }
    self->base.ops = &uring_ops;
    self->base.alignment = target->alignment;
    self->base.depth = target->depth;
    self->fd = target->fd;
    self->free_parts = (struct part **)&self->parts[target->depth];
    while (self->n_free < target->depth) {
        self->free_parts[self->n_free] = &self->parts[self->n_free];
        self->n_free++;
    }
    self->has_registered_file = io_uring_register_files(&self->ring, &self->fd, 1) == 0;
    (void)snprintf(self->base.description, sizeof self->base.description, "io_uring, %u at once",
                   self->base.depth);
    *out = &self->base;
    return MOEC_OK;
}
