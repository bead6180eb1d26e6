#include "runtime/preload_trial.h"

#include <string.h>

#define BLOCK_TOKENS 4u
#define ENOUGH       9u    /* times of either kind before one is preferred: three blocks */
#define CYCLE_BLOCKS 16u   /* of which one is of the other kind */
#define TOO_SLOW     1.01f /* guesses that gain nothing do no harm either, as far as can be told */

void moec_preload_trial_init(struct moec_preload_trial *trial)
{
    *trial = (struct moec_preload_trial){.is_guessing = true};
}

void moec_preload_trial_pause(struct moec_preload_trial *trial)
{
    trial->began_ns = 0;
}

static float median(const struct moec_preload_trial *trial, bool guessing)
{
    float sorted[MOEC_TRIAL_TIMES];
    const uint32_t n =
        trial->n_timed[guessing] < MOEC_TRIAL_TIMES ? trial->n_timed[guessing] : MOEC_TRIAL_TIMES;
    for (uint32_t i = 0; i < n; i++) {
        const float time_ns = trial->times_ns[guessing][i];
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > time_ns; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = time_ns;
    }
    return sorted[n / 2];
}

static bool next_kind(const struct moec_preload_trial *trial)
{
    if (trial->n_timed[0] < ENOUGH || trial->n_timed[1] < ENOUGH)
        return !trial->is_guessing;
    const bool is_better = median(trial, true) <= TOO_SLOW * median(trial, false);
    return trial->n_block % CYCLE_BLOCKS == 0 ? !is_better : is_better;
}

static void begin_block(struct moec_preload_trial *trial)
{
    trial->n_block++;
    trial->at_token = 0;
    trial->is_guessing = next_kind(trial);
}

void moec_preload_trial_token(struct moec_preload_trial *trial, uint64_t now_ns)
{
    if (trial->began_ns > 0 && trial->at_token > 0 && now_ns > trial->began_ns) {
        uint32_t *n = &trial->n_timed[trial->is_guessing];
        trial->times_ns[trial->is_guessing][(*n)++ % MOEC_TRIAL_TIMES] = (float)(now_ns - trial->began_ns);
    }
    if (++trial->at_token >= BLOCK_TOKENS)
        begin_block(trial);
    trial->began_ns = now_ns;
}
