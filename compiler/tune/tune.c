#include "compiler/tune/tune.h"

#include "compiler/certify/front.h"
#include "runtime/policy/route_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Thousandths: L of cache-prior, T1 of hobbit and P of unpopular, from mild to strong; 0 = none of it. Where
 * a walk along the priors ends, one half way back is tried too. */
static const uint32_t priors[] = {0, 20, 50, 80, 110, 150, 200, 250, 300, 400};
static const uint32_t scores[] = {0, 900, 800, 600, 400};
#define N_PRIOR (sizeof priors / sizeof *priors)
/* Of max-rank in place of the priors: ranks beyond the experts of a token. */
static const uint32_t ranks[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24};
_Static_assert(sizeof ranks == sizeof priors, "one walk serves both");
#define N_SCORE (sizeof scores / sizeof *scores)
static const uint32_t shares[] = {32, 63, 125, 188, 250, 375, 500, 750, 1000};
#define N_SHARE (sizeof shares / sizeof *shares)
/* Settings that shares are tried with: none, and some of the front. */
#define N_BASE (1 + MOEC_MAX_SEQUENCE)
/* Passes of the certificate part: the original and no decisions too. */
#define MAX_TESTS (MOEC_MAX_SEQUENCE + 2)
_Static_assert((N_PRIOR + 1) * N_SCORE + N_BASE * N_SHARE <= MOEC_TUNE_MAX_CANDIDATES,
               "there is room for all candidates");
_Static_assert(MOEC_TUNE_MAX_CANDIDATES <= MOEC_FRONT_MAX, "and for their front");

struct tune {
    const struct moec_tune_options *options;
    struct moec_tune_report *report;
    struct moec_trial trial;
    struct moec_route route;              /* of the run at work; the scorer borrows it */
    struct moec_decision_traffic traffic; /* of the last one */
    char name[MOEC_TUNE_NAME_BYTES];
};

static const struct moec_bundle *bundle_of(const struct tune *tune)
{
    return tune->trial.inputs->bundle->bundle;
}

/* ---- settings ---- */

const char *moec_tune_name(const struct moec_decision_settings *settings,
                           char text[static MOEC_TUNE_NAME_BYTES])
{
    const char *words[] = {settings->route, settings->precision, settings->prefill};
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words && n < MOEC_TUNE_NAME_BYTES; i++)
        if (words[i][0] != '\0')
            n +=
                (size_t)snprintf(text + n, MOEC_TUNE_NAME_BYTES - n, "%s%s", n > 0 ? " with " : "", words[i]);
    return text[0] != '\0' ? text : "none";
}

/* Of so much of `priors` or `ranks` and so many thousandths; 0 and 0: what counts misses and decides nothing.
 */
static struct moec_decision_settings settings_of(const struct tune *tune, uint32_t strength, uint32_t score)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_decision_settings settings = options->shared;
    if (strength > 0 && options->with_rank)
        (void)snprintf(settings.route, sizeof settings.route, "max-rank:%" PRIu32,
                       bundle_of(tune)->config.top_k + strength);
    else if (strength > 0)
        (void)snprintf(settings.route, sizeof settings.route, "cache-prior:%g", strength * 1e-3);
    else
        settings.keep_top = 0;
    if (score > 0)
        (void)snprintf(settings.precision, sizeof settings.precision, "hobbit:%g:1", score * 1e-3);
    else
        settings.n_low_slots = settings.low_bits = 0;
    return settings;
}

/* The same with so many thousandths of a prompt's experts in low copies. */
static struct moec_decision_settings with_share(const struct moec_tune_options *options,
                                                const struct moec_decision_settings *base, uint32_t share)
{
    struct moec_decision_settings settings = *base;
    (void)snprintf(settings.prefill, sizeof settings.prefill, "unpopular:%g:%u", share * 1e-3,
                   options->block_tokens);
    settings.n_low_slots = options->shared.n_low_slots;
    settings.low_bits = options->shared.low_bits;
    return settings;
}

static enum moec_status read_settings(const struct tune *tune, const struct moec_decision_settings *settings,
                                      struct moec_route *route, struct moec_error *err)
{
    const struct moec_bundle *bundle = bundle_of(tune);
    return moec_route_from_settings(settings, &bundle->config, &bundle->paths, bundle->file.path, route, err);
}

/* ---- measuring ---- */

static enum moec_status set_up(struct tune *tune, const struct moec_decision_settings *settings,
                               struct moec_error *err)
{
    MOEC_TRY(read_settings(tune, settings, &tune->route, err));
    /* So that all are comparable, what a prompt reads is counted block by block with none of it low too. */
    if (tune->options->with_prefill && tune->route.prefill.kind == MOEC_PREFILL_SAME)
        tune->route.prefill = (struct moec_prefill){.kind = MOEC_PREFILL_UNPOPULAR,
                                                    .block_tokens = tune->options->block_tokens};
    return moec_scorer_set_route(tune->trial.scorer, &tune->route, err);
}

/* What was missed since the scorer was set up. */
static struct moec_decision_traffic traffic_of(const struct tune *tune)
{
    const struct moec_route_counts counts = moec_scorer_route_counts(tune->trial.scorer);
    const uint32_t n_layer = moec_config_moe_count(&bundle_of(tune)->config);
    return (struct moec_decision_traffic){.n_taken = counts.n_taken,
                                          .n_missed = counts.n_missed,
                                          .token_bytes = moec_route_token_bytes(&counts, n_layer)};
}

static enum moec_status measure(struct tune *tune, const struct moec_decision_settings *settings,
                                struct moec_loss *loss, struct moec_decision_traffic *traffic,
                                struct moec_error *err)
{
    MOEC_TRY(set_up(tune, settings, err));
    MOEC_TRY(moec_trial_measure(&tune->trial, loss, err));
    *traffic = traffic_of(tune);
    return MOEC_OK;
}

/* ---- the search ---- */

static enum moec_status try_candidate(struct tune *tune, const struct moec_decision_settings *settings,
                                      struct moec_tune_candidate *candidate, struct moec_error *err)
{
    char name[MOEC_TUNE_NAME_BYTES], line[192];
    *candidate = (struct moec_tune_candidate){.settings = *settings};
    MOEC_TRY(measure(tune, settings, &candidate->search, &candidate->traffic, err));
    (void)snprintf(line, sizeof line, "%s: loss %.3f%%, at most %.3f%%, %.1f KiB a token",
                   moec_tune_name(settings, name), 100 * candidate->search.loss, 100 * candidate->search.high,
                   candidate->traffic.token_bytes / 1024);
    moec_trial_say(&tune->trial, line);
    return MOEC_OK;
}

static enum moec_status try_next(struct tune *tune, const struct moec_decision_settings *settings,
                                 bool *is_spent, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_tune_candidate *candidate = &report->candidates[report->n_candidate];
    MOEC_TRY(try_candidate(tune, settings, candidate, err));
    report->n_candidate++;
    *is_spent = candidate->search.loss > tune->options->trial.max_loss;
    return MOEC_OK;
}

/* Strengths of the route that is searched, from 0 on. */
static const uint32_t *strengths_of(const struct tune *tune, size_t *n)
{
    const struct moec_config *config = &bundle_of(tune)->config;
    *n = tune->options->with_route || tune->options->with_rank ? N_PRIOR : 1;
    if (!tune->options->with_rank)
        return priors;
    while (*n > 1 && config->top_k + ranks[*n - 1] > config->n_expert)
        --*n;
    return ranks;
}

/* Strengths with one score of hobbit, from none on; with score 0 from the first on. Stronger settings lose
 * more: the walk ends with the first one beyond the target, and one half way back. `n_later` candidates come
 * after the walk at most. */
static enum moec_status walk(struct tune *tune, uint32_t score, size_t n_later, bool *is_spent,
                             struct moec_error *err)
{
    size_t n_prior = 0, p = score == 0 ? 1 : 0;
    const uint32_t *strengths = strengths_of(tune, &n_prior);
    *is_spent = false;
    for (; p < n_prior && !*is_spent; p++) {
        moec_trial_expect(&tune->trial, (double)(n_prior - p + 1 + n_later), MAX_TESTS);
        const struct moec_decision_settings settings = settings_of(tune, strengths[p], score);
        MOEC_TRY(try_next(tune, &settings, is_spent, err));
    }
    bool is_half_spent = false;
    if (*is_spent && p > 1 && strengths[p - 1] > strengths[p - 2] + 1) {
        const struct moec_decision_settings settings =
            settings_of(tune, (strengths[p - 2] + strengths[p - 1]) / 2, score);
        MOEC_TRY(try_next(tune, &settings, &is_half_spent, err));
    }
    /* What even no prior keeps within the target, no stronger score does. */
    *is_spent = *is_spent && p == 1;
    return MOEC_OK;
}

/* Whole bytes a token, at least one: sizes of a sequence are compared by ratio. */
static uint64_t bytes_of(const struct moec_tune_candidate *candidate)
{
    return candidate->traffic.token_bytes > 1 ? (uint64_t)llround(candidate->traffic.token_bytes) : 1;
}

/* The front's safest, some between, and its smallest. */
static void make_sequence(struct tune *tune)
{
    struct moec_tune_report *report = tune->report;
    struct moec_front_point points[MOEC_TUNE_MAX_CANDIDATES];
    bool is_on_front[MOEC_TUNE_MAX_CANDIDATES] = {false};
    for (uint32_t i = 0; i < report->n_candidate; i++)
        points[i] =
            (struct moec_front_point){bytes_of(&report->candidates[i]), &report->candidates[i].search};
    const struct moec_front_request request = {.points = points,
                                               .n_point = report->n_candidate,
                                               .max_loss = tune->options->trial.max_loss,
                                               .confidence = tune->options->trial.confidence,
                                               .n_search = tune->trial.n_search,
                                               .n_certify = tune->trial.n_certify};
    report->n_sequence = moec_front_choose(&request, is_on_front, report->sequence);
    for (uint32_t i = 0; i < report->n_candidate; i++)
        report->candidates[i].is_on_front = is_on_front[i];
}

/* Shares of a prompt's experts in low copies, up to the first beyond the target, with each setting of
 * `bases`. */
static enum moec_status walk_shares(struct tune *tune, const struct moec_decision_settings *bases,
                                    uint32_t n_base, struct moec_error *err)
{
    for (uint32_t b = 0; b < n_base; b++) {
        bool is_spent = false;
        for (size_t s = 0; s < N_SHARE && !is_spent; s++) {
            if (shares[s] * bundle_of(tune)->config.n_expert < 1000) /* of no expert */
                continue;
            const struct moec_decision_settings settings = with_share(tune->options, &bases[b], shares[s]);
            moec_trial_expect(&tune->trial, (double)((n_base - b) * N_SHARE - s), MAX_TESTS);
            MOEC_TRY(try_next(tune, &settings, &is_spent, err));
        }
    }
    return MOEC_OK;
}

/* With no other decision, and with those that would be tested without a prefill. */
static enum moec_status search_shares(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_decision_settings bases[N_BASE];
    bases[0] = report->plain.settings;
    make_sequence(tune);
    for (uint32_t i = 0; i < report->n_sequence; i++)
        bases[1 + i] = report->candidates[report->sequence[i]].settings;
    return walk_shares(tune, bases, 1 + report->n_sequence, err);
}

static enum moec_status search(struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_tune_report *report = tune->report;
    const size_t n_score = options->with_precision ? N_SCORE : 1;
    size_t n_prior = 0;
    bool is_spent = false;
    (void)strengths_of(tune, &n_prior);
    moec_trial_expect(&tune->trial, (double)((n_prior + 1) * n_score) + 1, MAX_TESTS);
    MOEC_TRY(moec_trial_open(&tune->trial, MOEC_PART_SEARCH, err));
    const struct moec_decision_settings plain = settings_of(tune, 0, 0);
    MOEC_TRY(try_candidate(tune, &plain, &report->plain, err));
    if (report->plain.search.loss > options->trial.max_loss)
        return MOEC_OK;
    for (size_t s = 0; s < n_score && !is_spent; s++)
        MOEC_TRY(walk(tune, scores[s], (n_prior + 1) * (n_score - s - 1), &is_spent, err));
    return options->with_prefill ? search_shares(tune, err) : MOEC_OK;
}

/* ---- the certificate ---- */

/* The search has found nothing within the target: the certificate part stays unseen. */
static enum moec_status refuse_search(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_loss *plain = &report->plain.search;
    double least = INFINITY;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        least = fmin(least, report->candidates[i].search.high);
    if (report->n_candidate == 0)
        least = plain->high;
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the bundle itself, without decisions, loses %.3f%% on the search part, with %g%% "
        "confidence at most %.3f%%, and no decision stays within the target of %.3f%%; nothing was "
        "written: compile with a smaller --max-loss, or ask for --max-loss %.1f%% or more here",
        100 * plain->loss, 100 * tune->options->trial.confidence, 100 * plain->high,
        100 * tune->options->trial.max_loss, ceil(1e3 * least) / 10);
}

static enum moec_status refuse_test(const struct tune *tune, const struct moec_loss *plain,
                                    const struct moec_loss *safest, struct moec_error *err)
{
    char advice[MOEC_SEQUENCE_ADVICE_BYTES], name[MOEC_TUNE_NAME_BYTES];
    const double target = tune->options->trial.max_loss;
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the bundle itself, without decisions, loses %.3f%% on the certificate part, at most %.3f%%; with "
        "the mildest decisions of the sequence, %s, it loses %.3f%%, with %g%% confidence at most %.3f%%; "
        "the "
        "target is %.3f%%; nothing was written: %s",
        100 * plain->loss, 100 * plain->high,
        moec_tune_name(&tune->report->candidates[tune->report->sequence[0]].settings, name),
        100 * safest->loss, 100 * tune->options->trial.confidence, 100 * safest->high, 100 * target,
        moec_sequence_advice(safest, target, "windows", advice));
}

static const struct moec_tune_candidate *candidate_of(const struct tune *tune, uint32_t i)
{
    return &tune->report->candidates[tune->report->sequence[i]];
}

static const char *name_test(void *context, uint32_t i)
{
    struct tune *tune = context;
    return moec_tune_name(&candidate_of(tune, i)->settings, tune->name);
}

static enum moec_status prepare_test(void *context, uint32_t i, struct moec_error *err)
{
    struct tune *tune = context;
    return set_up(tune, &candidate_of(tune, i)->settings, err);
}

static void keep_passed(void *context, uint32_t i)
{
    struct tune *tune = context;
    tune->report->decisions.settings = candidate_of(tune, i)->settings;
    tune->report->decisions.prompt_tokens =
        tune->report->decisions.settings.prefill[0] != '\0' ? tune->options->trial.n_prompt : 0;
    tune->report->decisions.traffic = traffic_of(tune);
}

/* The last that passed becomes the report's. */
static enum moec_status test_all(struct tune *tune, struct moec_loss *first, uint32_t *n_passed,
                                 struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_trial_sequence sequence = {.n = report->n_sequence,
                                           .name = name_test,
                                           .prepare = prepare_test,
                                           .passed = keep_passed,
                                           .context = tune};
    for (uint32_t i = 0; i < sequence.n; i++) {
        sequence.n_bytes[i] = bytes_of(candidate_of(tune, i));
        sequence.search[i] = &candidate_of(tune, i)->search;
    }
    return moec_trial_test(&tune->trial, &sequence, first, n_passed, &report->decisions.certificate, err);
}

static enum moec_status certify(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_loss plain, first = {0};
    uint32_t n_passed = 0;
    moec_trial_expect(&tune->trial, 0, report->n_sequence + 2);
    MOEC_TRY(moec_trial_open(&tune->trial, MOEC_PART_CERTIFICATE, err));
    /* No test: what the bundle loses and misses without decisions, to be shown beside them. */
    MOEC_TRY(measure(tune, &report->plain.settings, &plain, &report->decisions.plain_traffic, err));
    MOEC_TRY(test_all(tune, &first, &n_passed, err));
    report->decisions.plain_loss = plain.loss;
    report->decisions.plain_low = plain.low;
    report->decisions.plain_high = plain.high;
    if (n_passed == 0)
        return refuse_test(tune, &plain, &first, err);
    report->is_reused = moec_trial_is_reused(&tune->trial, &report->decisions.certificate);
    return MOEC_OK;
}

/* What would only show after the search. */
static enum moec_status check(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_route route;
    struct moec_decision_settings settings = settings_of(tune,
                                                         options->with_rank    ? ranks[1]
                                                         : options->with_route ? priors[1]
                                                                               : 0,
                                                         options->with_precision ? scores[1] : 0);
    if (options->with_prefill)
        settings = with_share(options, &settings, shares[0]);
    return read_settings(tune, &settings, &route, err);
}

enum moec_status moec_tune(const struct moec_trial_inputs *inputs, const struct moec_tune_options *options,
                           const struct moec_progress *progress, struct moec_tune_report *report,
                           struct moec_error *err)
{
    struct tune tune = {.options = options, .report = report};
    enum moec_status status = MOEC_OK;
    *report = (struct moec_tune_report){0};
    moec_trial_init(inputs, &options->trial, progress, &tune.trial);
    MOEC_TRY_OUT(check(&tune, err));
    MOEC_TRY_OUT(search(&tune, err));
    make_sequence(&tune);
    if (report->n_sequence == 0)
        status = refuse_search(&tune, err);
    else
        status = certify(&tune, err);
out:
    moec_trial_close(&tune.trial);
    return status;
}
