/* What the process computes while somebody watches, for tables that say what binds long work.
 *
 * Nobody watches at first, and then nothing is counted and no clock is read. Counts never decide anything.
 * Work within work of the same thread counts as the inner one alone, but for parallel regions. Thread rule:
 * any thread; what is counted at the same time may be seen in any order. */
#ifndef MOEC_FORMATS_WORK_TALLY_H
#define MOEC_FORMATS_WORK_TALLY_H

#include <stdbool.h>
#include <stdint.h>

enum moec_work {
    MOEC_WORK_PRODUCTS,  /* multiply-adds of the steps of forward passes; no times */
    MOEC_WORK_DECODING,  /* weights that were decoded into floats for several tokens */
    MOEC_WORK_ENCODING,  /* bytes of expert records that were made */
    MOEC_WORK_FITTING,   /* multiply-adds that fit codes to data: moments, factors, codes, errors */
    MOEC_WORK_READING,   /* bytes of files, from the page cache too */
    MOEC_WORK_RECEIVING, /* bytes from other ranks; times have the waiting for them */
    MOEC_WORK_TOGETHER,  /* parallel regions of two or more threads: time of the calling thread */
    MOEC_WORK_COUNT
};

struct moec_work_tally {
    uint64_t n[MOEC_WORK_COUNT];  /* in the unit above; regions */
    uint64_t ns[MOEC_WORK_COUNT]; /* of all threads together */
};

/* From now on, for good. */
void moec_work_watch(void);

/* Around a piece of work, on one thread: a time, 0 while nobody watches; then n of it are added with the time
 * that it took, unless begun_ns is 0, which adds nothing. */
uint64_t moec_work_begin(enum moec_work work);
void moec_work_end(enum moec_work work, uint64_t begun_ns, uint64_t n);
/* The same without times. */
void moec_work_count(enum moec_work work, uint64_t n);

/* Everything so far; callers take differences. */
struct moec_work_tally moec_work_now(void);

#endif
