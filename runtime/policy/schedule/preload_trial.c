/* A block runs with prefetches or without, and its length varies. Of each kind the last times are kept.
 * Medians are compared, with an error from the distance of the quartiles. While a mind is made up, a block
 * of the other kind comes after `gap` blocks. The gap doubles each time that this changes nothing. */
#include "runtime/policy/schedule/preload_trial.h"

#include <math.h>

/* Tokens of a block; up to 15 more, so that blocks keep no step with texts of one length. */
#define LEAST_TOKENS 24u
/* Tokens after a change, which still feel what was left in the buffer. */
#define SETTLING 6u
/* Times of a kind, before it is compared. */
#define NEEDED 16u
/* Blocks from one doubt to the next, twice as many each time that it changes nothing, and at most. */
#define FIRST_GAP 4u
#define LAST_GAP  32u
void moec_preload_trial_init(struct moec_preload_trial *trial)
{
    *trial = (struct moec_preload_trial){.n_left = LEAST_TOKENS, .is_prefetching = true};
}

void moec_preload_trial_pause(struct moec_preload_trial *trial)
{
    trial->began_ns = 0;
    trial->n_settled = 0;
}

/* The middle of what is remembered of a kind, and how far it may be off: one standard error of a median, from
 * the distance of the quartiles. */
struct middle {
    float ns, error_ns;
};

static struct middle middle_of(const struct moec_preload_trial *trial, bool prefetching)
{
    float sorted[MOEC_TRIAL_TIMES] = {0};
    const uint32_t n_timed = trial->n_timed[prefetching];
    const uint32_t n = n_timed < MOEC_TRIAL_TIMES ? n_timed : MOEC_TRIAL_TIMES;
    for (uint32_t i = 0; i < n; i++) {
        const float time_ns = trial->times_ns[prefetching][i];
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > time_ns; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = time_ns;
    }
    const float spread_ns = sorted[3 * n / 4] - sorted[n / 4];
    return (struct middle){.ns = sorted[n / 2], .error_ns = 0.93f * spread_ns / sqrtf((float)n)};
}

/* Prefetches were weighed one by one before they were made, so they have the benefit of the doubt: they are left
 * where they are seen to harm, and taken up again where they no longer do. */
static bool is_gain(const struct moec_preload_trial *trial)
{
    const struct middle with = middle_of(trial, true), without = middle_of(trial, false);
    const float error_ns = sqrtf(with.error_ns * with.error_ns + without.error_ns * without.error_ns);
    const bool was_left = trial->has_mind && !trial->is_preferred;
    return with.ns < without.ns + (was_left ? 0 : error_ns);
}

/* The mind is made up where doubt ends, when both kinds were timed one after the other. Doubt that changed it
 * is repeated soon, one that did not later. */
static void make_up_mind(struct moec_preload_trial *trial)
{
    const bool is_better = is_gain(trial), has_changed = is_better != trial->is_preferred;
    const uint32_t gap = trial->has_mind && !has_changed ? 2 * trial->gap : FIRST_GAP;
    trial->gap = gap < LAST_GAP ? gap : LAST_GAP;
    trial->is_preferred = is_better;
    trial->has_mind = true;
    trial->n_calm = 0;
}

static bool next_kind(struct moec_preload_trial *trial)
{
    if (trial->n_timed[true] < NEEDED || trial->n_timed[false] < NEEDED)
        return trial->n_timed[true] < NEEDED;
    if (!trial->has_mind || trial->is_prefetching != trial->is_preferred)
        make_up_mind(trial);
    if (++trial->n_calm <= trial->gap)
        return trial->is_preferred;
    trial->n_timed[!trial->is_preferred] = 0;
    return !trial->is_preferred;
}

static void begin_block(struct moec_preload_trial *trial)
{
    const bool was_prefetching = trial->is_prefetching;
    /* In the very first block everything was cold, and prefetches knew nothing. */
    if (trial->n_block++ == 0)
        trial->n_timed[true] = 0;
    trial->n_left = LEAST_TOKENS + (trial->n_block * 2654435761u >> 28);
    trial->is_prefetching = next_kind(trial);
    if (trial->is_prefetching != was_prefetching)
        trial->n_settled = 0;
}

/* A kind that is only tried is left when it was timed as often as it takes;
 * the very first block is not tried. */
static bool has_enough(const struct moec_preload_trial *trial)
{
    const bool is_tried = !trial->has_mind || trial->is_prefetching != trial->is_preferred;
    return is_tried && trial->n_block > 0 && trial->n_timed[trial->is_prefetching] >= NEEDED;
}

void moec_preload_trial_token(struct moec_preload_trial *trial, uint64_t now_ns)
{
    if (trial->began_ns > 0 && ++trial->n_settled > SETTLING && now_ns > trial->began_ns) {
        uint32_t *n = &trial->n_timed[trial->is_prefetching];
        trial->times_ns[trial->is_prefetching][(*n)++ % MOEC_TRIAL_TIMES] = (float)(now_ns - trial->began_ns);
    }
    if (trial->n_left-- == 0 || has_enough(trial))
        begin_block(trial);
    trial->began_ns = now_ns;
}
