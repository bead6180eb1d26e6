/* Which reads go first: the rules by which the expert cache reads and hands out what was read, for the loader
 * (runtime/experts/loader.c), which asks them about what is, and for the simulator, which asks them about
 * what would be.
 *
 *   1. What is demanded goes first, all of it at once.
 *   2. Guesses stand behind it, one at a time: a router's answer waits for one read at most. Where the device
 *      begins one request after the other, a second one may stand behind, so that it goes on without a pause,
 *      and is taken back before it begins.
 *   3. When the router answers, guesses that have not begun are taken back, unless a number of them was asked
 *      for, which are read whatever happens.
 *   4. The warm start fills pauses: one read at a time while nothing else is in flight, or all at once for
 * who waits for it.
 *   5. Of an answer, what is there is taken first, then what was on its way, then what was missing; where
 *      something waits for room, what was present in its own order, so that the order of releases is no
 *      matter of time.
 *   6. A time tells of the device where somebody waited while it passed: one who came late found the bytes
 *      there.
 *
 * Thread rule: plain functions. */
#ifndef MOEC_RUNTIME_READ_ORDER_H
#define MOEC_RUNTIME_READ_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* What does not change while a buffer is used. */
struct moec_read_rules {
    uint32_t preload_count; /* guesses after each answer; 0 = bounded by time */
    bool begins_in_turn;    /* struct moec_reader */
};

/* Rule 2. */
static inline uint32_t moec_read_most_guesses(const struct moec_read_rules *rules)
{
    return rules->begins_in_turn && rules->preload_count == 0 ? 2 : 1;
}

/* Rule 3. */
static inline bool moec_read_takes_guesses_back(const struct moec_read_rules *rules)
{
    return rules->preload_count == 0;
}

enum moec_read_turn {
    MOEC_READ_NOTHING, /* now */
    MOEC_READ_DEMANDED,
    MOEC_READ_GUESS,
    MOEC_READ_WARMING,
};

/* What is known when the next read is chosen. */
struct moec_read_moment {
    uint32_t n_demanded;     /* not begun */
    uint32_t n_warming;      /* not begun */
    uint32_t n_flying;       /* in all */
    uint32_t n_guess_flying; /* that nobody has asked for meanwhile */
    bool has_guess;          /* one is queued, or may be made */
    bool is_idle;            /* nothing demanded is in flight, and nobody but the loader is about to ask */
    bool is_hurried;         /* somebody waits for the warm start */
};

/* Rules 1, 2 and 4. */
static inline enum moec_read_turn moec_read_next(const struct moec_read_rules *rules,
                                                 const struct moec_read_moment *moment)
{
    if (moment->n_demanded > 0)
        return MOEC_READ_DEMANDED;
    if (moment->is_idle && moment->is_hurried && moment->n_warming > 0)
        return MOEC_READ_WARMING;
    if (moment->has_guess && moment->n_guess_flying < moec_read_most_guesses(rules))
        return MOEC_READ_GUESS;
    if (moment->is_idle && moment->n_flying == 0 && moment->n_warming > 0)
        return MOEC_READ_WARMING;
    return MOEC_READ_NOTHING;
}

/* Rule 5: writes the numbers 0 .. n - 1 of an answer's experts into order. was_present: before the answer
 * made room; is_tight: something waits for room. */
static inline void moec_read_order(uint32_t n, const bool *was_present, const bool *is_ready, bool is_tight,
                                   uint32_t *order)
{
    uint32_t n_ordered = 0;
    for (int rank = 0; rank < 3; rank++)
        for (uint32_t i = 0; i < n; i++)
            if (rank == (!was_present[i] ? 2 : is_tight || is_ready[i] ? 0 : 1))
                order[n_ordered++] = i;
}

/* Rule 6: what a read took by itself, from when it was begun or the read before it was done, whichever is
 * later, until it was done; 0 when its times tell nothing. All in ns on one clock; somebody began to wait at
 * waited_ns. */
static inline double moec_read_own_ns(double begun_ns, double done_ns, double last_done_ns, double waited_ns)
{
    const double start_ns = begun_ns > last_done_ns ? begun_ns : last_done_ns;
    const bool tells = done_ns > start_ns && waited_ns <= start_ns + (done_ns - start_ns) / 2;
    return tells ? done_ns - start_ns : 0;
}

#endif
