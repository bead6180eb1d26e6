/* Ranks: processes that share one offline job, on one machine or several, as mpirun and srun start them.
 *
 * Every rank runs the whole program and makes every choice by itself, from the same numbers. Only lists of
 * independent items are shared: item i is measured by rank i mod n, and then every rank gets the results of
 * all. So results do not depend on the number of ranks. A plain process is the case of one rank, which has
 * NULL here: functions then do nothing and succeed.
 *
 * Functions called "together" are called by all ranks, in the same order and with the same sizes. Each of
 * them also tells the others of a failure: a rank that fails calls moec_ranks_leave, and the others' next
 * call fails with its message. A rank that is at another step than the others fails too, instead of waiting
 * for ever. Thread rule: one thread, the one that created them. */
#ifndef MOEC_PROFILER_RANKS_H
#define MOEC_PROFILER_RANKS_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define MOEC_RANKS_MAX        4096u
#define MOEC_RANKS_HOST_BYTES 64u
/* What is exchanged at once of long lists: at most this, or an item of each rank. */
#define MOEC_RANKS_PIECE_BYTES ((uint64_t)4 << 20)
/* Items of n_bytes that are exchanged at once where n_ranks send one each: 1 or more. */
static inline uint64_t moec_ranks_piece_items(uint64_t n_bytes, uint32_t n_ranks)
{
    const uint64_t fit = MOEC_RANKS_PIECE_BYTES / n_ranks / n_bytes;
    return fit > 0 ? fit : 1;
}

/* How ranks reach each other: a library's (mpi/mpi_transport.c), or a test's. */
struct moec_ranks_transport {
    uint32_t own, count;              /* 0 <= own < count */
    char host[MOEC_RANKS_HOST_BYTES]; /* this machine's name */
    void *context;
    /* n_bytes of each rank to every rank: all (count, n_bytes), by rank. Together. */
    enum moec_status (*gather)(void *context, const void *own, void *all, uint64_t n_bytes,
                               struct moec_error *err);
    /* From one rank to the others. Together. */
    enum moec_status (*spread)(void *context, uint32_t from, void *data, uint64_t n_bytes,
                               struct moec_error *err);
    /* From one rank to another. These two. */
    enum moec_status (*pass)(void *context, uint32_t from, uint32_t to, void *data, uint64_t n_bytes,
                             struct moec_error *err);
    /* From a rank to rank 0, which need not wait: how far it is; left out while the last one is under way. */
    void (*tell)(void *context, double done);
    /* Rank 0: the next that came, and from whom; false: none is there. */
    bool (*hear)(void *context, uint32_t *from, double *done);
    /* `waits` is called now and then while this rank waits for others; NULL: nobody is. */
    void (*on_wait)(void *context, void (*waits)(void *), void *waiting);
    /* The end; `in_order`: every rank gets here. Otherwise nobody may wait for another. */
    void (*close)(void *context, bool in_order);
};

struct moec_ranks;

/* Takes the transport over, in any case. Errors: MOEC_ERR_MEMORY, MOEC_ERR_LIMIT (more than
 * MOEC_RANKS_MAX). */
MOEC_WARN_UNUSED enum moec_status moec_ranks_create(const struct moec_ranks_transport *transport,
                                                    struct moec_ranks **out, struct moec_error *err);
/* Closes the transport. NULL-safe. */
void moec_ranks_free(struct moec_ranks *ranks);

/* Of NULL: 1, 0 and "". The name of the machine is borrowed. */
uint32_t moec_ranks_count(const struct moec_ranks *ranks);
uint32_t moec_ranks_own(const struct moec_ranks *ranks);
const char *moec_ranks_host(const struct moec_ranks *ranks);

/* Whose an item is to measure, and whether it is this rank's. */
static inline uint32_t moec_ranks_owner(const struct moec_ranks *ranks, uint64_t item)
{
    return (uint32_t)(item % moec_ranks_count(ranks));
}
static inline bool moec_ranks_has(const struct moec_ranks *ranks, uint64_t item)
{
    return moec_ranks_owner(ranks, item) == moec_ranks_own(ranks);
}

/* How many of the items 0..n-1 are this rank's. */
static inline uint64_t moec_ranks_share(const struct moec_ranks *ranks, uint64_t n)
{
    const uint64_t count = moec_ranks_count(ranks), own = moec_ranks_own(ranks);
    return n / count + (n % count > own ? 1 : 0);
}

/* Together: `items` (n_item, item_bytes), of which each rank has filled its own; then all are filled.
 * Errors: a rank's failure, MOEC_ERR_MEMORY, and those of the transport. */
MOEC_WARN_UNUSED enum moec_status moec_ranks_gather(struct moec_ranks *ranks, void *items, uint64_t n_item,
                                                    size_t item_bytes, struct moec_error *err);

/* Together: from one rank to the others. Errors: as above. */
MOEC_WARN_UNUSED enum moec_status moec_ranks_spread(struct moec_ranks *ranks, uint32_t from, void *data,
                                                    uint64_t n_bytes, struct moec_error *err);

/* The same of several at once, which costs little more than one: each from a rank of its own to the others. */
struct moec_ranks_part {
    uint32_t from;
    void *data;
    uint64_t n_bytes;
};
MOEC_WARN_UNUSED enum moec_status moec_ranks_spread_parts(struct moec_ranks *ranks,
                                                          const struct moec_ranks_part *parts, size_t n_part,
                                                          struct moec_error *err);

/* Together: from one rank to another; of the others' `data` nothing is read or changed, and it may be NULL. Errors: as
 * above. */
MOEC_WARN_UNUSED enum moec_status moec_ranks_pass(struct moec_ranks *ranks, uint32_t from, uint32_t to,
                                                  void *data, uint64_t n_bytes, struct moec_error *err);

/* Together: the sum over ranks of each of n values, modulo 2^64. Errors: as above. */
MOEC_WARN_UNUSED enum moec_status moec_ranks_sum(struct moec_ranks *ranks, uint64_t *values, uint32_t n,
                                                 struct moec_error *err);

/* Together: fails on every rank with MOEC_ERR_MISMATCH, naming the first rank whose bytes differ from those
 * of rank 0. `what` it then has: "another checkpoint". */
MOEC_WARN_UNUSED enum moec_status moec_ranks_same(struct moec_ranks *ranks, const char *what,
                                                  const void *data, size_t n_bytes, struct moec_error *err);

/* How far this rank is, in any units that all share: rank 0 learns of it now and then. Not together; it neither waits
 * nor fails. */
void moec_ranks_tell(struct moec_ranks *ranks, double done);
/* Rank 0: the mean of what ranks told last; others, and without ranks: what they told themselves. */
double moec_ranks_mean_done(struct moec_ranks *ranks);
/* `waits` (borrowed; NULL: nobody) is called now and then while this rank waits for others. */
void moec_ranks_on_wait(struct moec_ranks *ranks, void (*waits)(void *context), void *context);

/* The most that functions of many items, here and around here, have in buffers while they exchange: of items of at most
 * MOEC_RANKS_PIECE_BYTES over the ranks. 0 without ranks. */
uint64_t moec_ranks_buffer_bytes(const struct moec_ranks *ranks);

/* The end of this rank's work. `problem` says why it failed, or is NULL or has status MOEC_OK. Waits until
 * every rank got here or failed, so that none succeeds where another did not: errors are another's failure.
 * Once a failure is known, to this function or one above, it does nothing. */
MOEC_WARN_UNUSED enum moec_status moec_ranks_leave(struct moec_ranks *ranks, const struct moec_error *problem,
                                                   struct moec_error *err);

#endif
