/* What no policy can beat: hits of a buffer that knows the future.
 *
 * Belady's rule (L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", 1966)
 * evicts the record whose next use is farthest away. The experts of one answer are needed together, so none
 * of them is evicted for another while there is any other record. Hits are counted while decoding: uses by
 * prompts and sources do not count, what they use need not stay, and what they will use next is not worth
 * keeping for them.
 *  - Slots of one size: no buffer that loads records when they are asked for has fewer misses.
 *  - Slots of different sizes: the rule is good, but not a bound. Then struct moec_belady has a bound of
 *    another kind beside it (Berger, Beckmann and Harchol-Balter, "Practical bounds on optimal caching with
 *    variable object sizes", 2018, PFOO-L): keeping a record from one use to the next takes its slot's bytes
 *    for as many answers as lie between, and all that is kept together cannot take more than the whole buffer
 *    for all answers. Taking the cheapest first counts at least as many hits as any schedule has.
 *
 * A record that is preloaded is read all the same: preloading turns misses into hits, so it can pass the hit
 * rate, but its reads are not fewer than Belady's misses. Thread rule: a future is immutable; any number of
 * threads may run on it. */
#ifndef MOEC_PROFILER_BELADY_H
#define MOEC_PROFILER_BELADY_H

#include "profiler/simulate/simulated_model.h"

#define MOEC_BELADY_NEVER UINT64_MAX

struct moec_belady_future {
    const struct moec_recording *recording;   /* borrowed */
    const struct moec_simulated_model *model; /* borrowed */
    uint64_t *first; /* (S, E), owned: answer (step * S + ordinal) that uses a key first, or NEVER */
    uint64_t *next;  /* as replay->active, owned: answer that uses this expert next, or NEVER */
    /* Slots of different sizes: prices (bytes times answers) of the hits of decode steps, increasing, owned.
     * Without those of records that are in the buffer at the start. */
    double *prices;
    uint64_t n_price;
};

MOEC_WARN_UNUSED enum moec_status moec_belady_look_ahead(const struct moec_recording *recording,
                                                         const struct moec_simulated_model *model,
                                                         struct moec_belady_future *future,
                                                         struct moec_error *err);
void moec_belady_release(struct moec_belady_future *future);

/* When the experts of an answer (moec_recording_active) are used next. */
static inline const uint64_t *moec_belady_nexts(const struct moec_belady_future *future, uint64_t a)
{
    return future->next + future->recording->replay->answers[a].active;
}

/* Counted over decode steps. */
struct moec_belady {
    uint64_t asked, hits;
    uint64_t read_bytes;
    double most_hits; /* slots of different sizes: an upper bound; else equal to `hits` */
};

/* A buffer of capacity_bytes that holds `start` (n_start keys that fit) at first. */
MOEC_WARN_UNUSED enum moec_status moec_belady_run(const struct moec_belady_future *future,
                                                  uint64_t capacity_bytes, const uint32_t *start,
                                                  uint32_t n_start, struct moec_belady *belady,
                                                  struct moec_error *err);

#endif
