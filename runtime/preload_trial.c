#include "runtime/preload_trial.h"

#define LEAST_TOKENS                                                                                         \
    24u                  /* of a block; up to 15 more, so that blocks keep no step with texts of one length  \
                          */
#define SETTLING   12u   /* tokens after a change, which still feel what was left in the buffer */
#define DOUBT_OFF  16u   /* one block in so many guesses where guessing is left, */
#define DOUBT_ON   6u    /* and in so many does not where it pays: wrong guesses cost more than missed ones */
#define LEAST_GAIN 0.96f /* of the other's time: what gains little is left, as it reads and wakes for it */

void moec_preload_trial_init(struct moec_preload_trial *trial)
{
    *trial = (struct moec_preload_trial){.n_left = LEAST_TOKENS};
}

void moec_preload_trial_pause(struct moec_preload_trial *trial)
{
    trial->began_ns = 0;
    trial->n_settled = 0;
}

/* Of a ring that is full. */
static float median(const struct moec_preload_trial *trial, bool guessing)
{
    float sorted[MOEC_TRIAL_TIMES];
    for (uint32_t i = 0; i < MOEC_TRIAL_TIMES; i++) {
        const float time_ns = trial->times_ns[guessing][i];
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > time_ns; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = time_ns;
    }
    return sorted[MOEC_TRIAL_TIMES / 2];
}

static bool next_kind(const struct moec_preload_trial *trial)
{
    if (trial->n_timed[0] < MOEC_TRIAL_TIMES || trial->n_timed[1] < MOEC_TRIAL_TIMES)
        return !trial->is_guessing;
    const bool is_better = median(trial, true) <= LEAST_GAIN * median(trial, false);
    return trial->n_block % (is_better ? DOUBT_ON : DOUBT_OFF) == 0 ? !is_better : is_better;
}

static void begin_block(struct moec_preload_trial *trial)
{
    const bool was_guessing = trial->is_guessing;
    trial->n_block++;
    trial->n_left = LEAST_TOKENS + (trial->n_block * 2654435761u >> 28);
    trial->is_guessing = next_kind(trial);
    if (trial->is_guessing != was_guessing)
        trial->n_settled = 0;
}

void moec_preload_trial_token(struct moec_preload_trial *trial, uint64_t now_ns)
{
    if (trial->began_ns > 0 && ++trial->n_settled > SETTLING && now_ns > trial->began_ns) {
        uint32_t *n = &trial->n_timed[trial->is_guessing];
        trial->times_ns[trial->is_guessing][(*n)++ % MOEC_TRIAL_TIMES] = (float)(now_ns - trial->began_ns);
    }
    if (trial->n_left-- == 0)
        begin_block(trial);
    trial->began_ns = now_ns;
}
