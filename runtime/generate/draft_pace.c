/* a = (accepted + 1) / (tried + 2), of faded counts. While drafts pay, one step in n_wait runs without;
 * while they do not, one runs with the length measured least. n_wait doubles each time up to
 * MOEC_DRAFT_REST, and begins anew when the answer changes. So times stay known at little cost. */
#include "runtime/generate/draft_pace.h"

#define AVERAGED 16u  /* steps, about, that a time is an average of */
#define OUTLIER  2    /* times the average: what a step counts as at most, as something else may hold it up */
#define FADE     0.97 /* of counts, for each token: the last thirty weigh most */
#define GUESS    0.25 /* of a plain step: what a drafted token is taken to cost before any was measured */
#define PRIOR    1.0  /* accepted of two tried, before any was */
#define GAIN     1.1  /* times as fast as plain steps a draft has to look, since times vary */

static const uint32_t lengths[MOEC_DRAFT_LENGTHS] = {0, 2, 4, MOEC_DRAFT_MOST};

void moec_draft_pace_reset(struct moec_draft_pace *pace)
{
    *pace = (struct moec_draft_pace){0};
}

void moec_draft_pace_step(struct moec_draft_pace *pace, uint32_t n_draft, uint64_t ns)
{
    uint32_t i = 0;
    while (lengths[i] < n_draft)
        i++;
    uint32_t *n = &pace->n_steps[i];
    double *average = &pace->step_ns[i], value = (double)ns;
    if (*n > 2 && value > OUTLIER * *average)
        value = OUTLIER * *average;
    *n += *n < AVERAGED ? 1 : 0;
    *average += (value - *average) / *n;
}

void moec_draft_pace_answer(struct moec_draft_pace *pace, uint32_t n_equal, bool is_accepted)
{
    pace->tried[n_equal] = FADE * pace->tried[n_equal] + 1;
    pace->accepted[n_equal] = FADE * pace->accepted[n_equal] + (is_accepted ? 1 : 0);
}

/* Of a step with a draft: measured, or by what a token costs in the nearest length that was, shorter ones
 * first. */
static double expected_ns(const struct moec_draft_pace *pace, uint32_t i)
{
    uint32_t known = i;
    while (known > 0 && pace->n_steps[known] == 0)
        known--;
    for (uint32_t longer = i + 1; known == 0 && longer < MOEC_DRAFT_LENGTHS; longer++)
        if (pace->n_steps[longer] > 0)
            known = longer;
    const double plain_ns = pace->step_ns[0];
    if (known == i)
        return pace->step_ns[i];
    const double extra_ns = known > 0 ? (pace->step_ns[known] - plain_ns) / lengths[known] : GUESS * plain_ns;
    return plain_ns + lengths[i] * (extra_ns > 0 ? extra_ns : 0);
}

/* Tokens that a draft of n is expected to yield, the step's own included. */
static double expected_tokens(const struct moec_draft_pace *pace, uint32_t n_equal, uint32_t n)
{
    const double a = (pace->accepted[n_equal] + PRIOR) / (pace->tried[n_equal] + 2 * PRIOR);
    double tokens = 1, power = 1;
    for (uint32_t i = 0; i < n; i++) {
        power *= a;
        tokens += power;
    }
    return tokens;
}

static uint32_t best_length(const struct moec_draft_pace *pace, uint32_t n_equal, uint32_t n_most)
{
    double best = GAIN / pace->step_ns[0];
    uint32_t best_n = 0;
    for (uint32_t i = 1; i < MOEC_DRAFT_LENGTHS && lengths[i] <= n_most; i++) {
        const double rate = expected_tokens(pace, n_equal, lengths[i]) / expected_ns(pace, i);
        if (rate > best) {
            best = rate;
            best_n = lengths[i];
        }
    }
    return best_n;
}

/* The length that was measured least, of those that n_most leaves. */
static uint32_t least_known(const struct moec_draft_pace *pace, uint32_t n_most)
{
    uint32_t least = 1;
    for (uint32_t i = 2; i < MOEC_DRAFT_LENGTHS && lengths[i] <= n_most; i++)
        if (pace->n_steps[i] < pace->n_steps[least])
            least = i;
    return lengths[least];
}

uint32_t moec_draft_pace_choose(struct moec_draft_pace *pace, uint32_t n_equal, uint32_t n_most)
{
    if (pace->n_steps[0] == 0 || n_most < lengths[1])
        return 0;
    const uint32_t n = best_length(pace, n_equal, n_most);
    if (pace->drafts != (n > 0)) {
        pace->drafts = n > 0;
        pace->n_alike = pace->n_wait = 0;
    }
    if (pace->n_wait == 0)
        pace->n_wait = MOEC_DRAFT_PROBE;
    if (pace->n_alike++ < pace->n_wait)
        return n;
    pace->n_alike = 0;
    if (pace->n_wait < MOEC_DRAFT_REST)
        pace->n_wait *= 2;
    return n > 0 ? 0 : least_known(pace, n_most);
}
