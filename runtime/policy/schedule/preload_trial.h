/* Whether prefetching pays at all on this machine: measured, token by token, beside tokens without prefetches.
 *
 * The rule of runtime/policy/schedule/preload.h weighs reads against reads. It knows nothing of what a prefetch costs
 * beside them: a thread that wakes, bytes that are checked on a core that computes, a buffer that holds less
 * of what comes again. So decoded tokens run in blocks with prefetches and in blocks without. Prefetches were
 * weighed one by one, so they are made from the start, in a first block that nobody times because everything
 * is cold and prefetches know nothing. Then each kind is timed often enough; from then on prefetches are made
 * unless they make the median token slower by more than it may be off, but for one block now and then, in
 * which the other kind is timed again: the fifth, and up to eight times as rarely while that changes nothing.
 * A device whose rate changes between two blocks deceives the comparison, so what changed is soon tried
 * again. A kind that is only tried is tried no longer than that takes. The first tokens of a block still feel
 * the block before, and are not timed; batches of several tokens do as the last token did.
 *
 * Thread rule: plain data, the caller's lock. */
#ifndef MOEC_RUNTIME_PRELOAD_TRIAL_H
#define MOEC_RUNTIME_PRELOAD_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#define MOEC_TRIAL_TIMES 24u /* tokens of a kind that are remembered */

struct moec_preload_trial {
    float times_ns[2][MOEC_TRIAL_TIMES]; /* [1] with prefetches, [0] without: rings */
    uint32_t n_timed[2];
    uint32_t n_block;   /* that have begun */
    uint32_t n_left;    /* tokens of this one */
    uint32_t n_settled; /* tokens since kinds changed or something came between */
    uint32_t n_calm;    /* blocks since the last doubt */
    uint32_t gap;       /* of these until the next */
    uint64_t began_ns;  /* the token at work; 0 = it is not timed */
    bool is_prefetching;
    bool has_mind;     /* both kinds were compared: */
    bool is_preferred; /* prefetching is */
};

/* Nothing timed yet; the first block prefetches. */
void moec_preload_trial_init(struct moec_preload_trial *trial);

/* A decoded token begins its first MoE layer at now_ns, which ends the one before: decides about prefetches. */
void moec_preload_trial_token(struct moec_preload_trial *trial, uint64_t now_ns);

/* Something else came between: the token at work is not timed. */
void moec_preload_trial_pause(struct moec_preload_trial *trial);

#endif
