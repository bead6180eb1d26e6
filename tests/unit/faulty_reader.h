/* A reader that fails: on top of another it breaks some reads, flips a bit in others, is late at times and
 * gives reads back in another order, drawn from a seed. For sources of experts, which must report it or try
 * again, and never give out a wrong byte. */
#ifndef MOEC_TESTS_FAULTY_READER_H
#define MOEC_TESTS_FAULTY_READER_H

#include "runtime/storage/reader.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* Out of 65536 reads, and what happened so far. */
struct faults {
    uint32_t errors, flips, delays;
    uint32_t swaps;    /* a read is held back until another one is done */
    uint32_t delay_ns; /* at most */
    uint64_t state;    /* of the draws, not 0 */
    /* Beside what is drawn: of the reads with tags bad_first .. bad_end - 1 (under 256) the first n_bad come
     * with a bit flipped, the next one whole, and so on. */
    uint32_t bad_first, bad_end, n_bad;
    uint8_t n_reads[256];
    atomic_uint n_errors, n_flips, n_delays;
    uint8_t *flipped; /* the byte that was flipped last, and the bit */
    uint8_t bit;
};

struct faulty_reader {
    struct moec_reader base; /* first */
    struct moec_reader *under;
    struct faults *faults;
    uint32_t n_flying;      /* in `under` */
    struct moec_read *held; /* done, and held back; NULL = none */
};

static uint32_t faulty_draw(struct faults *faults)
{
    faults->state ^= faults->state << 13;
    faults->state ^= faults->state >> 7;
    faults->state ^= faults->state << 17;
    return (uint32_t)(faults->state >> 32);
}

static bool faulty_happens(struct faults *faults, uint32_t in_65536)
{
    return (faulty_draw(faults) & 0xffff) < in_65536;
}

static bool faulty_is_bad(struct faults *faults, uint64_t tag)
{
    if (tag < faults->bad_first || tag >= faults->bad_end)
        return false;
    return faults->n_reads[tag]++ % (faults->n_bad + 1) < faults->n_bad;
}

static void faulty_submit(struct moec_reader *self, struct moec_read *read)
{
    struct faulty_reader *reader = (struct faulty_reader *)self;
    reader->n_flying++;
    reader->under->ops->submit(reader->under, read);
}

static bool faulty_cancel(struct moec_reader *self, struct moec_read *read)
{
    struct faulty_reader *reader = (struct faulty_reader *)self;
    const bool is_back = reader->under->ops->cancel(reader->under, read);
    reader->n_flying -= is_back;
    return is_back;
}

/* The next read that is done; one at a time may stay behind while others are in flight. */
static struct moec_read *faulty_next(struct faulty_reader *reader)
{
    struct moec_read *read = NULL;
    if (reader->held != NULL && reader->n_flying == 0) {
        read = reader->held;
        reader->held = NULL;
        return read;
    }
    read = reader->under->ops->wait(reader->under);
    reader->n_flying -= read != NULL;
    if (read != NULL && reader->held == NULL && reader->n_flying > 0 &&
        faulty_happens(reader->faults, reader->faults->swaps)) {
        reader->held = read;
        read = reader->under->ops->wait(reader->under);
        reader->n_flying -= read != NULL;
    }
    return read;
}

static struct moec_read *faulty_wait(struct moec_reader *self)
{
    struct faults *faults = ((struct faulty_reader *)self)->faults;
    struct moec_read *read = faulty_next((struct faulty_reader *)self);
    if (read == NULL)
        return NULL;
    if (faulty_happens(faults, faults->delays) && faults->delay_ns > 0) {
        const struct timespec time = {.tv_nsec = faulty_draw(faults) % faults->delay_ns};
        (void)nanosleep(&time, NULL);
        atomic_fetch_add(&faults->n_delays, 1);
    }
    if (read->error == 0 && faulty_happens(faults, faults->errors)) {
        read->error = faulty_draw(faults) % 4 == 0 ? ENODATA : EIO; /* or short: the file ends */
        atomic_fetch_add(&faults->n_errors, 1);
    }
    if (read->error == 0 && (faulty_happens(faults, faults->flips) || faulty_is_bad(faults, read->tag))) {
        faults->flipped = &read->buffer[faulty_draw(faults) % read->n_bytes];
        faults->bit = (uint8_t)(1u << (faulty_draw(faults) & 7));
        *faults->flipped ^= faults->bit;
        read->sum.is_there = false;
        atomic_fetch_add(&faults->n_flips, 1);
    }
    return read;
}

static void faulty_wake(struct moec_reader *self)
{
    struct moec_reader *under = ((struct faulty_reader *)self)->under;
    under->ops->wake(under);
}

static void faulty_destroy(struct moec_reader *self)
{
    struct moec_reader *under = ((struct faulty_reader *)self)->under;
    under->ops->destroy(under);
    free(self);
}

/* For struct moec_reader_test_hook; the context is a struct faults. */
static struct moec_reader *faulty_wrap(void *context, struct moec_reader *base)
{
    static const struct moec_reader_ops ops = {.submit = faulty_submit,
                                               .cancel = faulty_cancel,
                                               .wait = faulty_wait,
                                               .wake = faulty_wake,
                                               .destroy = faulty_destroy};
    struct faulty_reader *reader = malloc(sizeof *reader);
    if (reader == NULL)
        return base; /* without faults, which the test will notice */
    *reader = (struct faulty_reader){.base = *base, .under = base, .faults = context};
    reader->base.ops = &ops;
    return &reader->base;
}

#endif
