/* Candidates between the ends are taken twice: by the chance to pass, then by size where a gap is widest. The
 * noise of search and certificate adds as independent errors (hypot). Once the order is fixed, each test may
 * stop the sequence but never change it: that keeps one level for all (arXiv:2110.01052). */
#include "compiler/certify/sequence.h"

#include "profiler/common/student.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Windows that a test must have to look at half of them. */
#define LEAST_LOOK 64

/* Standard errors beyond the expected loss within which four estimates of five lie: advice counts windows for that. */
#define LIKELY_ERRORS 0.8416

/* How far apart candidates are that only their sizes recommend. */
#define LEAST_DISTANCE 1.05

struct moec_sequence_spacing moec_sequence_spacing_of(double target, const struct moec_loss *last,
                                                      uint32_t n_search, uint32_t n_certify,
                                                      double confidence)
{
    struct moec_sequence_spacing spacing = {.target = target,
                                            .search_error = last->n_unit > 1 ? last->error : 0,
                                            .reach =
                                                moec_student_quantile(confidence, (double)n_certify - 1)};
    spacing.certify_error = spacing.search_error * sqrt((double)n_search / (double)n_certify);
    return spacing;
}

double moec_sequence_certain(const struct moec_sequence_spacing *spacing, double errors)
{
    const double apart = hypot(spacing->search_error, spacing->certify_error);
    return spacing->target - spacing->reach * spacing->certify_error - errors * apart;
}

/* ---- between the safest and the smallest ---- */

struct between {
    const struct moec_sequence_candidate *front; /* (n_front) */
    size_t n_front;
    bool *taken; /* (n_front) */
    uint32_t n;
    uint64_t least_bytes, most_bytes;
};

static void take(struct between *between, size_t at)
{
    if (between->taken[at] || between->n == MOEC_SEQUENCE_MAX_BETWEEN)
        return;
    between->taken[at] = true;
    between->n++;
}

/* By the chance to pass, in standard errors: half way to the target, where a loss that the search
 * overestimated passes; rather than not; mostly; nearly always. Of each the smallest. */
static void take_by_chance(const struct moec_sequence_spacing *spacing, struct between *between)
{
    const double most[] = {spacing->target - 0.5 * spacing->reach * spacing->certify_error,
                           moec_sequence_certain(spacing, 0.3), moec_sequence_certain(spacing, 1),
                           moec_sequence_certain(spacing, 2)};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        size_t found = between->n_front;
        for (size_t at = 0; at < between->n_front; at++)
            if (between->front[at].difference <= most[i])
                found = at;
        if (found < between->n_front && between->front[found].n_bytes > between->least_bytes)
            take(between, found);
    }
}

/* How far a candidate is from its neighbours in the sequence, as the smaller ratio of sizes. */
static double distance(const struct between *between, size_t at)
{
    const uint64_t bytes = between->front[at].n_bytes;
    uint64_t above = between->most_bytes, below = between->least_bytes;
    for (size_t i = 0; i < between->n_front; i++) {
        const uint64_t taken = between->front[i].n_bytes;
        if (between->taken[i] && taken >= bytes && taken < above)
            above = taken;
        if (between->taken[i] && taken <= bytes && taken > below)
            below = taken;
    }
    return fmin((double)above / (double)bytes, (double)bytes / (double)below);
}

/* By size: candidates that are far from their neighbours, the farthest first. */
static void take_by_size(struct between *between)
{
    for (;;) {
        double farthest = LEAST_DISTANCE;
        size_t best = between->n_front;
        for (size_t at = 0; at < between->n_front; at++)
            if (distance(between, at) > farthest) {
                farthest = distance(between, at);
                best = at;
            }
        if (best == between->n_front || between->n == MOEC_SEQUENCE_MAX_BETWEEN)
            return;
        take(between, best);
    }
}

void moec_sequence_choose(const struct moec_sequence_candidate *front, size_t n,
                          const struct moec_sequence_spacing *spacing, uint64_t least_bytes,
                          uint64_t most_bytes, bool *taken)
{
    struct between between = {
        .front = front, .n_front = n, .taken = taken, .least_bytes = least_bytes, .most_bytes = most_bytes};
    for (size_t i = 0; i < n; i++)
        taken[i] = false;
    take_by_chance(spacing, &between);
    take_by_size(&between);
}

/* ---- tests ---- */

struct moec_sequence_step moec_sequence_step_of(uint64_t n_bytes, const struct moec_loss *search)
{
    return (struct moec_sequence_step){
        .n_bytes = n_bytes,
        .search_loss = search != NULL ? search->loss : (double)NAN,
        .search_high = search != NULL ? search->high : (double)NAN,
        .loss = NAN,
        .low = NAN,
        .high = NAN,
        .kl = NAN,
        .p_value = NAN,
    };
}

uint32_t moec_sequence_look(uint32_t n_window)
{
    return n_window >= LEAST_LOOK ? n_window / 2 : 0;
}

bool moec_sequence_ends(const struct moec_loss *seen, double target)
{
    return seen->loss > target;
}

void moec_sequence_judge(struct moec_sequence_step *step, const struct moec_loss *loss, double target,
                         bool has_p)
{
    step->loss = loss->loss;
    step->low = loss->low;
    step->high = loss->high;
    step->kl = loss->mean_kl;
    if (has_p && !isnan(target))
        step->p_value = moec_loss_p_value(loss, target);
    step->result = isnan(target) || loss->high <= target ? MOEC_SEQUENCE_PASSED : MOEC_SEQUENCE_FAILED;
}

static void judge_early(struct moec_sequence_step *step, const struct moec_loss *loss)
{
    step->loss = loss->loss;
    step->result = MOEC_SEQUENCE_FAILED;
}

enum moec_status moec_sequence_test(const struct moec_sequence_tests *tests, uint32_t *n_passed,
                                    struct moec_error *err)
{
    for (*n_passed = 0; *n_passed < tests->n; (*n_passed)++) {
        const uint32_t at = *n_passed;
        struct moec_loss loss;
        MOEC_TRY(tests->measure(tests->context, at, &loss, err));
        if (loss.n_window < tests->n_window)
            judge_early(&tests->steps[at], &loss);
        else
            moec_sequence_judge(&tests->steps[at], &loss, tests->target, tests->has_p);
        tests->judged(tests->context, at, &loss);
        if (tests->steps[at].result != MOEC_SEQUENCE_PASSED)
            break;
    }
    return MOEC_OK;
}

const char *moec_sequence_advice(const struct moec_loss *loss, double target, const char *unit,
                                 char text[static MOEC_SEQUENCE_ADVICE_BYTES])
{
    const uint64_t needed = moec_loss_windows_needed(loss, target, LIKELY_ERRORS);
    /* Rounded up: a target that is printed must be one that is met. */
    const double promise = ceil(1e5 * loss->high) / 1e3;
    if (needed == 0)
        (void)snprintf(
            text, MOEC_SEQUENCE_ADVICE_BYTES,
            "the measured loss itself is not below the target, so more %s do not help; the %" PRIu32
            " measured ones prove --max-loss %.3f%%",
            unit, loss->n_window, promise);
    else
        (void)snprintf(text, MOEC_SEQUENCE_ADVICE_BYTES,
                       "if the measured loss is right, about %" PRIu64
                       " %s would prove the target in four of five cases (--certificate-samples %" PRIu64
                       "); the %" PRIu32 " measured ones prove --max-loss %.3f%%",
                       needed, unit, needed, loss->n_window, promise);
    return text;
}
