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
/* Of the loss that bits leave, what the first try of a ray aims at, and the second one. */
static const double aims[] = {0.6, 0.9};
#define N_AIM   (sizeof aims / sizeof *aims)
#define N_POINT 64

/* What a ray lost at strengths, beside what its draft lost alone. Strength 0 loses nothing. */
struct points {
    double strength[N_POINT], loss[N_POINT];
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

/* The strength at which a ray is expected to lose so much: between two that were measured, or beyond them by
 * their slope; without any, 1. */
static double strength_for(const struct points *points, double loss)
{
    double low = 0, low_loss = 0, high = INFINITY, high_loss = 0;
    for (uint32_t i = 0; i < points->n; i++) {
        if (points->loss[i] <= loss && points->strength[i] > low) {
            low = points->strength[i];
            low_loss = points->loss[i];
        }
        if (points->loss[i] > loss && points->strength[i] < high) {
            high = points->strength[i];
            high_loss = points->loss[i];
        }
    }
    if (isfinite(high))
        return high > low && high_loss > low_loss
                   ? low + (high - low) * (loss - low_loss) / (high_loss - low_loss)
                   : high / 2;
    if (points->n == 0)
        return 1;
    return low_loss > 0 ? fmin(2 * low, low * loss / low_loss) : 2 * low;
}

static enum moec_status try_ray(struct tune *tune, size_t r, double aim, struct points *points,
                                struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss, plain = report->plain[tune->draft].search.loss;
    const double strength = strength_for(points, aim * (target - plain));
    struct moec_tune_candidate *candidate = &report->candidates[report->n_candidate];
    const struct moec_decision_settings settings = settings_of(tune, &rays[r], strength);
    if (points->n == N_POINT || report->n_candidate >= tune->options->fit->n_measured)
        return MOEC_OK;
    expect(tune, report->n_candidate);
    MOEC_TRY(measure(tune, &settings, candidate, err));
    report->n_candidate++;
    points->strength[points->n] = strength;
    points->loss[points->n++] = candidate->search.loss - plain;
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

enum moec_status moec_tune_fit_search(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const uint32_t n_draft = moec_tune_draft_count(tune);
    const double target = tune->options->trial.max_loss;
    struct points points[N_RAY] = {{.n = 0}};
    for (uint32_t draft = 0; draft < n_draft; draft++)
        MOEC_TRY(try_plain(tune, draft, err));
    if (keep_resident(tune) || tune->trial.inputs->bundle->config->top_k == 1)
        return MOEC_OK;
    /* All drafts once with each ray before any has a second try, those in the middle first. */
    for (size_t a = 0; a < N_AIM; a++)
        for (uint32_t i = 0; i < n_draft; i++) {
            const uint32_t draft = (i + n_draft / 2) % n_draft;
            if (report->plain[draft].search.loss > 0.9 * target)
                continue;
            MOEC_TRY(moec_tune_open(tune, draft, MOEC_PART_SEARCH, err));
            for (size_t r = 0; r < N_RAY; r++)
                MOEC_TRY(try_ray(tune, r, aims[a], &points[r], err));
        }
    return MOEC_OK;
}
