/* Candidates of a fit: plans of bits, each with routes and skips of rising strength, by the time that tokens
 * take on a device. */
#include "compiler/tune/tune_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Thousandths of a prior and of a skipped weight at strength 1: routes that mostly change experts, that do
 * both, and that mostly leave them out. */
static const struct ray {
    double prior, skip;
} rays[] = {{150, 50}, {100, 120}, {40, 220}};
#define N_RAY      (sizeof rays / sizeof *rays)
#define MOST_PRIOR 600
#define MOST_SKIP  500
/* Of the target, the loss on the search part that tries aim at: the certificate's interval needs the rest. */
#define AIM        0.93
#define NEAR       0.04 /* of the target: no closer try pays */
#define MOST_TRIES 5    /* of a plan along a ray */
#define FIRST_TRY  0.7  /* strength */
#define STRONGER   1.6
/* What tries are hoped to leave of a token's time, where none was made or none went beyond the aim. */
#define HOPE_UNTRIED 0.6
#define HOPE_MILD    0.8

/* What is known of a plan along a ray: the strongest try within the aim and the mildest beyond it. Strength 0
 * is the plan alone. */
struct bracket {
    double low, low_loss, low_ns;
    double high, high_loss, high_ns;
    bool has_high;
    uint32_t n;
};

static struct moec_decision_settings settings_of(const struct tune *tune, const struct ray *ray,
                                                 double strength)
{
    struct moec_decision_settings settings = tune->options->shared;
    settings.n_slots = tune->options->fit->n_slots[tune->draft];
    if (ray == NULL) {
        settings.keep_top = 0;
        return settings;
    }
    const double prior = fmin(MOST_PRIOR, round(ray->prior * strength));
    const double skip = fmin(MOST_SKIP, fmax(1, round(ray->skip * strength)));
    const int n = snprintf(settings.route, sizeof settings.route, "cache-prior:%g", prior * 1e-3);
    if (n > 0 && (size_t)n < sizeof settings.route)
        (void)snprintf(settings.route + n, sizeof settings.route - (size_t)n, ":skip:%g", skip * 1e-3);
    return settings;
}

static enum moec_status measure(struct tune *tune, const struct moec_decision_settings *settings,
                                struct moec_tune_candidate *candidate, struct moec_error *err)
{
    const struct moec_tune_fit *fit = tune->options->fit;
    char name[MOEC_TUNE_NAME_BYTES], line[256];
    *candidate = (struct moec_tune_candidate){.draft = tune->draft, .settings = *settings};
    MOEC_TRY(moec_tune_set_up(tune, candidate, err));
    MOEC_TRY(moec_tune_measure(tune, candidate, &candidate->search, err));
    candidate->chosen = candidate->search;
    MOEC_TRY(fit->foretell(fit->context, tune->draft, settings, &candidate->foretold, err));
    (void)snprintf(line, sizeof line,
                   "plan %" PRIu32 ", %s: loss %.3f%% (upper bound %.3f%%), %.3f ms a token (%.1f KiB read)",
                   tune->draft + 1, moec_tune_name(settings, 0, name), 100 * candidate->search.loss,
                   100 * candidate->search.high, 1e-6 * candidate->foretold.token_ns,
                   candidate->foretold.read_bytes / 1024);
    moec_trial_say(&tune->trial, line);
    return MOEC_OK;
}

/* What is still to come. */
static void expect(const struct tune *tune, uint32_t n_done)
{
    const uint32_t n_measured = tune->options->fit->n_measured;
    moec_trial_expect(&tune->trial, n_measured > n_done ? n_measured - n_done : 0, MOEC_TUNE_MAX_TESTS);
}

/* Where between its ends a bracket is expected to meet the aim. */
static double meeting(const struct bracket *bracket, double aim)
{
    const double width = bracket->high_loss - bracket->low_loss;
    return width > 0 ? fmin(0.8, fmax(0.2, (aim - bracket->low_loss) / width)) : 0.5;
}

/* The time that the next try may show; INFINITY where none pays. */
static double promise(const struct bracket *bracket, double target)
{
    const double aim = AIM * target;
    if (bracket->n == MOST_TRIES || aim - bracket->low_loss < NEAR * target ||
        (bracket->has_high && bracket->high_loss - bracket->low_loss < NEAR * target))
        return INFINITY;
    if (!bracket->has_high)
        return bracket->low_ns * (bracket->n == 0 ? HOPE_UNTRIED : HOPE_MILD);
    return bracket->low_ns + meeting(bracket, aim) * (bracket->high_ns - bracket->low_ns);
}

static double next_strength(const struct bracket *bracket, double target)
{
    if (bracket->has_high)
        return bracket->low + meeting(bracket, AIM * target) * (bracket->high - bracket->low);
    return bracket->n == 0 ? FIRST_TRY : STRONGER * bracket->low;
}

static enum moec_status try_ray(struct tune *tune, uint32_t draft, size_t r, struct bracket *bracket,
                                struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss, strength = next_strength(bracket, target);
    struct moec_tune_candidate *candidate = &report->candidates[report->n_candidate];
    expect(tune, report->n_candidate);
    MOEC_TRY(moec_tune_open(tune, draft, MOEC_PART_SEARCH, err));
    const struct moec_decision_settings settings = settings_of(tune, &rays[r], strength);
    MOEC_TRY(measure(tune, &settings, candidate, err));
    report->n_candidate++;
    bracket->n++;
    if (candidate->search.loss > AIM * target) {
        bracket->has_high = true;
        bracket->high = strength;
        bracket->high_loss = candidate->search.loss;
        bracket->high_ns = candidate->foretold.token_ns;
        return MOEC_OK;
    }
    bracket->low = strength;
    bracket->low_loss = candidate->search.loss;
    bracket->low_ns = candidate->foretold.token_ns;
    return MOEC_OK;
}

/* The draft's bits alone, a candidate like others. */
static enum moec_status try_plain(struct tune *tune, uint32_t draft, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    if (tune->options->fit->n_slots[draft] == 0) {
        report->plain[draft].search.loss = report->plain[draft].search.high = INFINITY;
        return MOEC_OK;
    }
    MOEC_TRY(moec_tune_open(tune, draft, MOEC_PART_SEARCH, err));
    const struct moec_decision_settings settings = settings_of(tune, NULL, 0);
    expect(tune, report->n_candidate);
    MOEC_TRY(measure(tune, &settings, &report->plain[draft], err));
    report->candidates[report->n_candidate++] = report->plain[draft];
    return MOEC_OK;
}

/* Of drafts whose experts memory holds, the one of the least loss stays, and what loses less, which is tested
 * before it; whether there is one. */
static bool keep_resident(struct tune *tune)
{
    struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *best = NULL;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        if (tune->options->fit->holds_all[candidate->draft] &&
            (best == NULL || candidate->search.loss < best->search.loss))
            best = candidate;
    }
    if (best == NULL || best->search.loss > tune->options->trial.max_loss)
        return false;
    const double most = best->search.loss;
    const uint32_t n_candidate = report->n_candidate;
    report->n_candidate = 0;
    for (uint32_t i = 0; i < n_candidate; i++)
        if (report->candidates[i].search.loss <= most)
            report->candidates[report->n_candidate++] = report->candidates[i];
    return true;
}

/* The plan and ray of the shortest time that may still be found, the first of equals; false where none is. */
static bool find_best(const struct bracket brackets[][N_RAY], uint32_t n_draft, double target,
                      uint32_t *draft, size_t *ray)
{
    double best = INFINITY;
    for (uint32_t d = 0; d < n_draft; d++)
        for (size_t r = 0; r < N_RAY; r++) {
            const double ns = promise(&brackets[d][r], target);
            if (!(ns < best))
                continue;
            best = ns;
            *draft = d;
            *ray = r;
        }
    return isfinite(best);
}

enum moec_status moec_tune_fit_search(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const uint32_t n_draft = moec_tune_draft_count(tune);
    const double target = tune->options->trial.max_loss;
    struct bracket brackets[MOEC_TUNE_MAX_DRAFTS][N_RAY];
    uint32_t draft = 0;
    size_t ray = 0;
    for (uint32_t d = 0; d < n_draft; d++) {
        MOEC_TRY(try_plain(tune, d, err));
        for (size_t r = 0; r < N_RAY; r++)
            brackets[d][r] = (struct bracket){.low_loss = report->plain[d].search.loss,
                                              .low_ns = report->plain[d].foretold.token_ns};
    }
    if (keep_resident(tune) || tune->trial.inputs->bundle->config->top_k == 1)
        return MOEC_OK;
    while (report->n_candidate < tune->options->fit->n_measured &&
           find_best(brackets, n_draft, target, &draft, &ray))
        MOEC_TRY(try_ray(tune, draft, ray, &brackets[draft][ray], err));
    return MOEC_OK;
}
