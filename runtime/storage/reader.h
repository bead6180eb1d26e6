/* Reading ranges of one file, many at once: the one place that decides how bytes come from the device (D8).
 *
 * A reader is a table of functions over one of several ways: O_DIRECT or the page cache, through io_uring or
 * through worker threads with pread, or the pages of the page cache themselves, mapped into the buffer by
 * worker threads; another reader may wrap it (moec_reader_emulate). It
 * knows files and bytes, nothing of experts. It handles short reads, EINTR and EAGAIN itself; other errors
 * come back as an errno in the request.
 *
 * Thread rule: submit, cancel and wait from one thread at a time, which the caller sees to (the expert cache
 * hands the reader from thread to thread under a lock, so that who needs a record can wait for the device
 * itself); wake from any. */
#ifndef MOEC_RUNTIME_READER_H
#define MOEC_RUNTIME_READER_H

#include "formats/base/file.h"

/* The CRC32C of a request's bytes from `skip` to n_bytes. */
struct moec_read_sum {
    /* Wanted beside the bytes: the reader computes it while others are on their way, where it can. */
    bool is_wanted;
    uint32_t skip;
    bool
        is_there; /* set by the reader: `crc32c` is that of the bytes as they came; whoever changes them takes
                      it back */
    uint32_t crc32c;
};

/* What the reader keeps of a request. */
struct moec_read_progress {
    struct moec_read *next;             /* links a list */
    uint64_t done_bytes;                /* of a read that continues after a short one */
    uint64_t begun_bytes, summed_bytes; /* of one that is read in parts; */
    uint64_t arrived;                   /* a bit for each */
    uint32_t n_flying;                  /* of them */
};

/* One request, owned by the caller, who must not touch it between submit and its return from wait. */
struct moec_read {
    uint64_t offset;  /* in the file, multiple of the reader's alignment */
    uint64_t n_bytes; /* wanted; the reader may read on to the next multiple of its alignment */
    uint8_t *buffer;  /* at a multiple of the alignment, with room for n_bytes rounded up to it */
    uint64_t tag;     /* the caller's */
    struct moec_read_sum sum;

    /* Set by the reader. */
    int error; /* 0, or an errno; ENODATA when the file ends before offset + n_bytes */
    struct {
        uint64_t begun_ns; /* CLOCK_MONOTONIC: when the device was asked */
        uint64_t done_ns;  /* when the bytes were there */
    } at;
    struct moec_read_progress progress;
};

/* Of a read that is counted, the time in which none that was counted before it was under way; *until_ns, 0 at
 * first, is when the last of these ended. */
static inline uint64_t moec_read_busy_ns(uint64_t *until_ns, uint64_t begun_ns, uint64_t done_ns)
{
    const uint64_t from_ns = begun_ns > *until_ns ? begun_ns : *until_ns;
    *until_ns = done_ns > *until_ns ? done_ns : *until_ns;
    return done_ns > from_ns ? done_ns - from_ns : 0;
}

struct moec_reader;

struct moec_reader_ops {
    /* Begins the request, or keeps it in order until one of those in flight is done. Never blocks, never
     * fails: errors come with the request. */
    void (*submit)(struct moec_reader *self, struct moec_read *read);
    /* Cancels a request that has not begun. True: it will not come from wait; false: it will. */
    bool (*cancel)(struct moec_reader *self, struct moec_read *read);
    /* A request that is done, in any order. Blocks until there is one or someone wakes it (NULL); NULL at
     * once when woken since the last call. */
    struct moec_read *(*wait)(struct moec_reader *self);
    /* One that is done, without blocking; NULL where there is none. NULL: the reader gives none so. */
    struct moec_read *(*take)(struct moec_reader *self);
    void (*wake)(struct moec_reader *self);
    /* Nothing may be in flight. NULL-safe. */
    void (*destroy)(struct moec_reader *self);
};

/* First member of every reader. */
struct moec_reader {
    const struct moec_reader_ops *ops;
    uint32_t alignment; /* of offsets and buffers: a power of two, 1 for the page cache */
    uint32_t depth;     /* requests in flight at most */
    /* Set by the caller before submit: further requests follow at once, and the device may be told of all of
     * them with the last. */
    bool has_more;
    /* Set by the caller before wait: so many of the requests in flight must be done before it can go on, so
     * that wait may sleep until they are and give the first of them. It is no longer ended by a wake then
     * than they take. 0 and 1: each. */
    uint32_t n_needed;
    /* Set by the caller before wait: this thread has nothing else to do, and computes what comes. wait then
     * watches for it awake, up to MOEC_READER_SPIN_NS, where the reader can. */
    bool spins;
    /* Set by the reader: it will begin requests when somebody submits or waits, not before. */
    bool holds_back;
    bool begins_in_turn;   /* a request begins when the one before it is done, and can be cancelled before */
    char description[160]; /* for people: "direct through io_uring, 32 at once" */
};

/* While all cores sleep a machine slows down what they share, and is slow for a while behind it: tokens that
 * wait asleep compute 1.6 times as long as those that need not wait, and no longer than these where one core
 * stays awake. Of what takes longer than this to come computing is a small part. */
#define MOEC_READER_SPIN_NS 10000000u

enum moec_io {
    MOEC_IO_AUTO = 0, /* measured on the file: whichever reads records faster, from the page cache where
                       * the file is in it, else from the device */
    MOEC_IO_DIRECT,   /* O_DIRECT; MOEC_ERR_UNSUPPORTED where the file system refuses it */
    MOEC_IO_CACHED,   /* the page cache */
    /* The page cache's own pages: a request maps the file over its buffer, privately, and nothing is copied.
     * The bytes are there when the request is done, but the kernel may drop and read them again later, so a
     * file that is cut short or a device that fails meanwhile ends the process with SIGBUS, and a file that
     * is written to may change in the buffer. Needs options.buffer, which holds zeros once the reader is
     * destroyed; a request outside of it fails with EINVAL. MOEC_ERR_UNSUPPORTED where pages are not of 4096
     * bytes, the file system maps no files or the kernel is older than 5.14 (MADV_POPULATE_READ). */
    MOEC_IO_MAPPED,
    /* MAPPED where half the file is in the page cache, or the buffer has room for all of the sample's range,
     * and it can be mapped; else AUTO. */
    MOEC_IO_AUTO_MAPPED,
};

/* Which system interface reads; measurements choose, users get AUTO. */
enum moec_io_engine {
    MOEC_IO_ENGINE_AUTO = 0, /* io_uring where the kernel allows it, else threads */
    MOEC_IO_ENGINE_URING,
    MOEC_IO_ENGINE_THREADS,
};

/* What MOEC_IO_AUTO measures with. */
struct moec_read_sample {
    uint64_t n_bytes;     /* typical request */
    uint64_t offset, end; /* range of the file that it may read */
};

/* What is read into: at a multiple of 4096, borrowed while the reader lives. */
struct moec_read_buffer {
    uint8_t *bytes; /* (n_bytes) */
    uint64_t n_bytes;
};

struct moec_reader_options {
    enum moec_io io;
    enum moec_io_engine engine;
    uint32_t depth;       /* 0 = 32 */
    uint32_t direct_unit; /* the reader's alignment where it reads directly; 0 = 4096 */
    struct moec_read_sample sample;
    struct moec_read_buffer buffer; /* where MAPPED maps to, and AUTO measures; NULL: memory of its own */
};

/* Opens the file again by its path; it must be the same file as `file` (device and inode). Errors:
 * MOEC_ERR_IO, MOEC_ERR_UNSUPPORTED, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_reader_create(const struct moec_file *file,
                                                     const struct moec_reader_options *options,
                                                     struct moec_reader **out, struct moec_error *err);

/* Code and libraries that reading touches for the first time. */
#define MOEC_READER_CODE_BYTES ((uint64_t)256 << 10)

/* Bytes of memory that a reader of this depth takes at most, for a budget: rings, thread stacks touched,
 * code.
 */
uint64_t moec_reader_bytes(uint32_t depth);

/* "auto", "direct", "cached", "mapped", "auto+mapped". Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_io_find(const char *name, enum moec_io *out, struct moec_error *err);

/* --- a slower device ---------------------------------------------------------------------------------------
 * A reader on top of another that lets each request end when a device of this latency and bandwidth would
 * have ended it: done = max(issue + latency, previous done) + request + bytes / bandwidth, in issue order,
 * with bytes as asked for, without padding. `request` is what each one takes of the device beside its bytes:
 * without it many small requests would cost no more than a large one. A request begins when the one before it
 * is done, and can be cancelled before. */
#define MOEC_EMULATED_REQUEST_NS 10000u /* where users name none: 100,000 requests a second */

struct moec_emulation {
    uint64_t bytes_per_second;
    uint64_t latency_ns;
    uint64_t request_ns;
};

/* When a request ends. */
uint64_t moec_emulation_done_ns(const struct moec_emulation *emulation, uint64_t issued_ns,
                                uint64_t previous_done_ns, uint64_t n_bytes);

/* Owns `base` from now on, also on failure. */
MOEC_WARN_UNUSED enum moec_status moec_reader_emulate(struct moec_reader *base,
                                                      const struct moec_emulation *emulation,
                                                      struct moec_reader **out, struct moec_error *err);

/* "550MB/s,80us,10us", also B/s to GiB/s and ns to s: bandwidth, latency, what a request costs. Without the
 * last it is MOEC_EMULATED_REQUEST_NS; the latency may be left out too. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_emulation_parse(const char *text, struct moec_emulation *out,
                                                       struct moec_error *err);

#endif
