/* Which reads go first: the rules by which the expert cache orders its reads and hands out experts. The
 * loader (runtime/experts/loader.c) and the simulator (profiler/simulate) share them.
 *
 *   1. What is demanded goes first, all of it at once.
 *   2. Prefetches follow, one in flight at a time, so that a router's answer waits for one read at most. A
 *      device that begins one request after the other may have a second one queued behind, so that it works
 *      without a pause; that one can be taken back before it begins. What is known to be needed (a predictor
 *      that knows tokens) is no prefetch, and up to MOEC_READ_KNOWN of it are in flight; of what a prompt will
 *      ask of the next layer up to MOEC_READ_ON, so that nobody has to leave computing to hand over more.
 *   3. When the router answers, prefetches that have not begun are taken back, unless --preload-count asks for
 *      a number of them or they are known to be needed.
 *   4. The warm start fills pauses: one read at a time while nothing else is in flight, or many at once while
 *      somebody waits for it.
 *   5. A session takes an answer's experts in this order: those that are ready, those being read, those that
 *      were missing, which are read in the order in which they are taken. While a key waits for room, all
 *      that were present count as ready, so that the order of releases does not depend on timing. Of a prompt
 *      those that most tokens take are missed first: their computing hides the reading of the rest (Fate,
 *      section on prefill: experts in order of popularity).
 *   6. A read's time describes the device only if somebody waited while it passed: a session that comes late
 *      finds the bytes already there.
 *
 * Thread rule: plain functions. */
#ifndef MOEC_RUNTIME_READ_ORDER_H
#define MOEC_RUNTIME_READ_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* What does not change while a buffer is used. */
struct moec_read_rules {
    uint32_t preload_count; /* prefetches after each answer; 0 = bounded by time */
    bool begins_in_turn;    /* as in struct moec_reader */
    bool are_known;         /* prefetches are known to be right */
    bool reads_on;          /* a prompt comes to a layer next (runtime/policy/schedule/prompt_prefetch.h) */
};

#define MOEC_READ_KNOWN 8
#define MOEC_READ_ON    32

/* Rule 2. */
static inline uint32_t moec_read_most_prefetches(const struct moec_read_rules *rules)
{
    if (rules->reads_on)
        return MOEC_READ_ON;
    if (rules->are_known)
        return MOEC_READ_KNOWN;
    return rules->begins_in_turn && rules->preload_count == 0 ? 2 : 1;
}

/* Rule 3. */
static inline bool moec_read_takes_prefetches_back(const struct moec_read_rules *rules)
{
    return rules->preload_count == 0 && !rules->are_known;
}

enum moec_read_turn {
    MOEC_READ_NOTHING, /* for now */
    MOEC_READ_DEMANDED,
    MOEC_READ_PREFETCH,
    MOEC_READ_WARMING,
};

/* What is known when the next read is chosen. */
struct moec_read_moment {
    uint32_t n_demanded;        /* not begun */
    uint32_t n_warming;         /* not begun */
    uint32_t n_flying;          /* in all */
    uint32_t n_prefetch_flying; /* of these, prefetches that nobody has asked for since */
    bool has_prefetch;          /* one is queued, or may be made */
    bool is_idle;               /* nothing demanded is in flight, and the loader's thread asks */
    bool is_hurried;            /* somebody waits for the warm start */
};

/* Rules 1, 2 and 4. */
static inline enum moec_read_turn moec_read_next(const struct moec_read_rules *rules,
                                                 const struct moec_read_moment *moment)
{
    if (moment->n_demanded > 0)
        return MOEC_READ_DEMANDED;
    if (moment->is_idle && moment->is_hurried && moment->n_warming > 0)
        return MOEC_READ_WARMING;
    if (moment->has_prefetch && moment->n_prefetch_flying < moec_read_most_prefetches(rules))
        return MOEC_READ_PREFETCH;
    if (moment->is_idle && moment->n_flying == 0 && moment->n_warming > 0)
        return MOEC_READ_WARMING;
    return MOEC_READ_NOTHING;
}

/* Rule 5: writes the numbers 0 .. n - 1 of an answer's experts into order. was_present: in the cache before
 * room was made for the answer; is_tight: a key waits for room; n_takers: how many tokens take each, NULL
 * where that is one token or not known. Equal ones keep the order of their numbers. */
static inline void moec_read_order(uint32_t n, const bool *was_present, const bool *is_ready, bool is_tight,
                                   const uint32_t *n_takers, uint32_t *order)
{
    uint32_t n_ordered = 0;
    for (int rank = 0; rank < 2; rank++)
        for (uint32_t i = 0; i < n; i++)
            if (was_present[i] && rank == (is_tight || is_ready[i] ? 0 : 1))
                order[n_ordered++] = i;
    const uint32_t n_present = n_ordered;
    for (uint32_t i = 0; i < n; i++) {
        if (was_present[i])
            continue;
        uint32_t at = n_ordered++;
        for (; n_takers != NULL && at > n_present && n_takers[order[at - 1]] < n_takers[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* Rule 6: what a read took by itself, from when it was begun or the read before it was done, whichever is
 * later, until it was done; 0 when its times tell nothing. All in ns on one clock;
 * somebody began to wait at waited_ns. */
static inline double moec_read_own_ns(double begun_ns, double done_ns, double last_done_ns, double waited_ns)
{
    const double start_ns = begun_ns > last_done_ns ? begun_ns : last_done_ns;
    const bool tells = done_ns > start_ns && waited_ns <= start_ns + (done_ns - start_ns) / 2;
    return tells ? done_ns - start_ns : 0;
}

#endif
