/* What the readers share (internal to runtime/storage/reader*.c):
 * lists of requests, and how a read continues. */
#ifndef MOEC_RUNTIME_READER_INTERNAL_H
#define MOEC_RUNTIME_READER_INTERNAL_H

#include "runtime/storage/reader.h"

#include "formats/base/clock.h"

#include <stddef.h>

/* Direct reads begin and end at multiples of this, in the file and in memory, unless the caller knows of a
 * smaller one. */
#define MOEC_READER_ALIGNMENT 4096

/* The file opened for one way of reading, and how an engine is to read it. */
struct moec_reader_target {
    int fd;             /* the engine's once it was created */
    uint32_t alignment; /* of direct and mapped reads; 1 for the page cache */
    uint32_t depth;
    bool is_mapped;  /* the threads map what is asked for instead of reading it */
    uint8_t *buffer; /* (buffer_bytes), of a mapped reader */
    uint64_t buffer_bytes;
};

/* Both leave what they are in `description`, without the way of reading ("io_uring, 32 at once"). Errors:
 * MOEC_ERR_UNSUPPORTED when the kernel refuses io_uring, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_reader_uring_create(const struct moec_reader_target *target,
                                                           struct moec_reader **out, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_reader_threads_create(const struct moec_reader_target *target,
                                                             struct moec_reader **out,
                                                             struct moec_error *err);
uint64_t moec_reader_uring_bytes(uint32_t depth);
uint64_t moec_reader_threads_bytes(uint32_t depth);
uint64_t moec_reader_emulated_bytes(uint32_t depth);

/* ---- mapping (runtime/storage/reader_mapped.c) ---- */

/* Threads that map at most: from the page cache two keep up with any processor's checks. */
#define MOEC_READER_MAPPING_THREADS 4

/* Whether this file can be mapped into this buffer, here. Errors: MOEC_ERR_UNSUPPORTED, with what refuses. */
MOEC_WARN_UNUSED enum moec_status moec_reader_mapped_check(const struct moec_reader_target *target,
                                                           const char *path, struct moec_error *err);
/* Maps what is asked for over the request's buffer and waits for its pages; `error` and `done_ns` are then
 * set. False: the process has as many mappings as the kernel gives, so the request is to be read instead. */
bool moec_read_map(const struct moec_reader_target *target, struct moec_read *read);
/* Makes the buffer memory of its own again, all zeros. */
void moec_reader_mapped_end(const struct moec_reader_target *target);

/* The next piece of a request to ask for: from `skip` bytes after its beginning, which is a multiple of the
 * alignment when the request's are. */
struct moec_read_piece {
    uint64_t skip;
    uint32_t n_bytes;
};
struct moec_read_piece moec_read_next_piece(const struct moec_read *read, uint32_t alignment);

/* Takes what the kernel answered for a piece: bytes read, or minus an errno. True when the request is over,
 * its `error` and `done_ns` set; false when its next piece is to be asked for. `fd` is asked for the file's
 * size where a read ends early. */
bool moec_read_take_answer(struct moec_read *read, struct moec_read_piece piece, int64_t answer, int fd);

/* Before a request is asked for: nothing of it is there. */
void moec_read_reset(struct moec_read *read);
/* The bytes up to `end` are there: their sum goes on, where it is wanted. */
void moec_read_sum_to(struct moec_read *read, uint64_t end);
/* The request is over. */
void moec_read_sum_end(struct moec_read *read);

/* ---- waiting awake ---- */

/* Looks away for about a microsecond, in which others may have this core; false when the time is over. */
bool moec_read_watch(uint64_t until_ns);

/* ---- how many at once ---- */

/* What a device has to work on: requests that were begun and are not done. */
struct moec_read_load {
    uint32_t n_reads;
    uint64_t n_bytes;
};

/* A device that works on many large requests ends them all at about the same time, the first as late as the
 * last, and nothing can be checked and computed meanwhile. This many bytes keep a device busy that gives 4 GB
 * in a second and takes a millisecond to begin. */
#define MOEC_READ_LOAD_BYTES ((uint64_t)4 << 20)

/* Whether another request may begin: one beside the one at work always, so that the device never waits. */
static inline bool moec_read_may_begin(const struct moec_read_load *load, const struct moec_read *read,
                                       uint32_t depth)
{
    return load->n_reads == 0 ||
           (load->n_reads < depth &&
            (load->n_reads == 1 || load->n_bytes + read->n_bytes <= MOEC_READ_LOAD_BYTES));
}

static inline void moec_read_load_add(struct moec_read_load *load, const struct moec_read *read)
{
    load->n_reads++;
    load->n_bytes += read->n_bytes;
}

static inline void moec_read_load_remove(struct moec_read_load *load, const struct moec_read *read)
{
    load->n_reads--;
    load->n_bytes -= read->n_bytes;
}

/* ---- requests in order ---- */

struct moec_read_list {
    struct moec_read *first, *last;
};

void moec_read_list_push(struct moec_read_list *list, struct moec_read *read);
struct moec_read *moec_read_list_pop(struct moec_read_list *list); /* NULL when empty */
/* Whether it was there. */
bool moec_read_list_remove(struct moec_read_list *list, struct moec_read *read);

#endif
