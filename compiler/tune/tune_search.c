/* Candidates of a bundle's decisions and sparsity, measured on the search part. */
#include "compiler/certify/front.h"
#include "compiler/tune/tune_internal.h"
#include "formats/tables/score_shares.h"
#include "runtime/experts/expert_cache.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Thousandths: L of cache-prior and P of unpopular, from mild to strong; 0 = none of it. Where a walk along
 * the priors ends, one half way back is tried too. */
static const uint32_t priors[] = {0, 20, 50, 80, 110, 150, 200, 250, 300, 400};
#define N_PRIOR (sizeof priors / sizeof *priors)
/* Shares of the experts that T1 of hobbit leaves high, and that T2 of settings on the front does not skip; in
 * place of the last of these T1, beyond which nothing is low. Where the bundle does not know how scores are
 * spread: thresholds, in thousandths. */
static const double high_shares[] = {0.9, 0.8, MOEC_SCORE_PAPER_HIGH, 0.5};
static const double read_shares[] = {MOEC_SCORE_PAPER_READ, 0.9, 0};
static const uint32_t high_scores[] = {900, 800, 600, 400}, read_scores[] = {950, 900, 0};
#define N_SCORE (sizeof high_shares / sizeof *high_shares)
#define N_SKIP  (sizeof read_shares / sizeof *read_shares)
_Static_assert(sizeof high_scores / sizeof *high_scores == N_SCORE &&
                   sizeof read_scores / sizeof *read_scores == N_SKIP,
               "one threshold for each share");
/* Of max-rank in place of the priors: ranks beyond the experts of a token. */
static const uint32_t ranks[] = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24};
_Static_assert(sizeof ranks == sizeof priors, "one walk serves both");
/* Widths of fate, each half of the one before: those of the most experts that a layer may have. */
#define N_WIDTH 13
_Static_assert(MOEC_MAX_EXPERTS >> N_WIDTH == 0, "the last one is 1");
/* Of skip, in thousandths. */
static const uint32_t skips[] = {50, 80, 100, 125, 160, 250};
#define N_SKIPPED (sizeof skips / sizeof *skips)
static const uint32_t prompt_shares[] = {32, 63, 125, 188, 250, 375, 500, 750, 1000};
#define N_PROMPT_SHARE (sizeof prompt_shares / sizeof *prompt_shares)
/* Of the bytes of gate and down that a plan leaves out. */
static const uint32_t left_out[] = {300, 450, 550, 600, 650, 700, 750, 800, 850, 920};
#define N_LEFT_OUT (sizeof left_out / sizeof *left_out)
/* With a route the strongest plans are measured that are expected to keep the loss within these shares of the
 * target: milder ones read more. */
static const double plan_goals[] = {1, 0.75};
#define N_PLAN_GOAL (sizeof plan_goals / sizeof *plan_goals)
/* Tries of a fit once the selection part is known. */
#define MOST_REFINED 3u
/* Settings that shares are tried with: none, and some of the front. */
#define N_BASE (1 + MOEC_MAX_SEQUENCE)
#define N_DECIDED                                                                                            \
    ((N_PRIOR + 1) * (N_SCORE + N_SKIPPED + 2) + MOEC_MAX_SEQUENCE * N_SKIP + N_SCORE + MOEC_MAX_SEQUENCE +  \
     N_WIDTH + N_BASE * N_PROMPT_SHARE)
_Static_assert(N_DECIDED <= MOEC_TUNE_MAX_CANDIDATES, "there is room for the candidates of one bundle");
_Static_assert(MOEC_TUNE_MAX_CANDIDATES <= MOEC_FRONT_MAX, "and for their front");

/* ---- settings ---- */

const char *moec_tune_name(const struct moec_decision_settings *settings, uint32_t share,
                           char text[static MOEC_TUNE_NAME_BYTES])
{
    const char *words[] = {settings->route, settings->precision, settings->prefill};
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words && n < MOEC_TUNE_NAME_BYTES; i++)
        if (words[i][0] != '\0')
            n +=
                (size_t)snprintf(text + n, MOEC_TUNE_NAME_BYTES - n, "%s%s", n > 0 ? " with " : "", words[i]);
    if (share > 0 && n < MOEC_TUNE_NAME_BYTES)
        (void)snprintf(text + n, MOEC_TUNE_NAME_BYTES - n, "%s%g%% left out", n > 0 ? " with " : "",
                       share / 10.0);
    return text[0] != '\0' ? text : "none";
}

/* What experts beside a route's choice are left: a precision, hobbit or fate, or a weight that is skipped, or
 * neither. */
struct low {
    bool by_score;
    uint32_t score; /* T1 of hobbit, in thousandths */
    uint32_t width; /* W of fate; 0 = it is not fate */
    uint32_t skip;  /* W of skip, in thousandths; 0 = nothing is skipped */
};

/* Of so much of `priors` or `ranks` and a precision; with neither: what counts misses and decides nothing. */
static struct moec_decision_settings settings_of(const struct tune *tune, uint32_t strength, struct low low)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_decision_settings settings = options->shared;
    if (strength > 0 && options->with_rank)
        (void)snprintf(settings.route, sizeof settings.route, "max-rank:%" PRIu32,
                       tune->trial.inputs->bundle->config->top_k + strength);
    else if (strength > 0)
        (void)snprintf(settings.route, sizeof settings.route, "cache-prior:%g", strength * 1e-3);
    else if (low.skip > 0)
        (void)snprintf(settings.route, sizeof settings.route, "top-k");
    else
        settings.keep_top = 0;
    if (low.skip > 0) {
        const size_t n = strlen(settings.route);
        (void)snprintf(settings.route + n, sizeof settings.route - n, ":skip:%g", low.skip * 1e-3);
    }
    if (low.by_score)
        (void)snprintf(settings.precision, sizeof settings.precision, "hobbit:%g:1", low.score * 1e-3);
    else if (low.width > 0)
        (void)snprintf(settings.precision, sizeof settings.precision, "fate:%" PRIu32, low.width);
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
    const struct moec_bundle *bundle = tune->trial.inputs->bundle->bundle;
    return moec_route_from_settings(settings, &bundle->config, &bundle->paths, bundle->file.path, route, err);
}

/* ---- measuring ---- */

/* So many candidates are still to come. */
static void expect(const struct tune *tune, size_t n_left)
{
    moec_trial_expect(&tune->trial, (double)n_left, MOEC_TUNE_MAX_TESTS);
}

static enum moec_status try_candidate(struct tune *tune, struct moec_tune_candidate *candidate,
                                      struct moec_error *err)
{
    char name[MOEC_TUNE_NAME_BYTES], draft[32] = "", computed[40] = "", line[256];
    MOEC_TRY(moec_tune_measure(tune, MOEC_PART_SEARCH, candidate, &candidate->search, err));
    candidate->chosen = candidate->search;
    if (tune->drafts != NULL)
        (void)snprintf(draft, sizeof draft, "plan %" PRIu32 ", ", candidate->draft + 1);
    if (candidate->share > 0)
        (void)snprintf(computed, sizeof computed, ", %.0f%% of it computed", 100 * candidate->kept_share);
    (void)snprintf(line, sizeof line, "%s%s: loss %.3f%% (upper bound %.3f%%), %.1f KiB a token%s", draft,
                   moec_tune_name(&candidate->settings, candidate->share, name), 100 * candidate->search.loss,
                   100 * candidate->search.high, moec_tune_cost_of(candidate).read_bytes / 1024, computed);
    moec_trial_say(&tune->trial, line);
    return MOEC_OK;
}

enum moec_status moec_tune_try_next(struct tune *tune, const struct moec_decision_settings *settings,
                                    uint32_t share, bool *is_spent, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_tune_candidate *candidate = &report->candidates[report->n_candidate];
    *is_spent = true;
    if (report->n_candidate == MOEC_TUNE_MAX_CANDIDATES)
        return MOEC_OK;
    *candidate = (struct moec_tune_candidate){.draft = tune->draft, .share = share, .settings = *settings};
    MOEC_TRY(try_candidate(tune, candidate, err));
    report->n_candidate++;
    *is_spent = candidate->search.loss > tune->options->trial.max_loss;
    return MOEC_OK;
}

enum moec_status moec_tune_try_plain(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_candidate *plain = &tune->report->plain[tune->draft];
    *plain =
        (struct moec_tune_candidate){.draft = tune->draft, .settings = settings_of(tune, 0, (struct low){0})};
    return try_candidate(tune, plain, err);
}

/* ---- walks ---- */

/* Strengths of the route that is searched, from 0 on. */
static const uint32_t *strengths_of(const struct tune *tune, size_t *n)
{
    const struct moec_config *config = tune->trial.inputs->bundle->config;
    *n = tune->options->with_route || tune->options->with_rank ? N_PRIOR : 1;
    if (!tune->options->with_rank)
        return priors;
    while (*n > 1 && config->top_k + ranks[*n - 1] > config->n_expert)
        --*n;
    return ranks;
}

/* Thousandths up to which this share of experts lies, by what the bundle knows; else `known_not`. */
static uint32_t score_of(const struct tune *tune, double share, uint32_t known_not)
{
    const float *shares = tune->trial.inputs->bundle->bundle->paths.scores;
    return shares != NULL ? moec_score_threshold(shares, share) * (1000 / MOEC_SCORE_STEPS) : known_not;
}

/* Without hobbit, then with it from mild to strong, each threshold once: (N_SCORE + 1). */
static size_t list_scores(const struct tune *tune, struct low *lows)
{
    size_t n = 0;
    uint32_t before = 1000; /* of which nothing is low */
    lows[n++] = (struct low){0};
    for (size_t s = 0; s < N_SCORE; s++) {
        const uint32_t score = score_of(tune, high_shares[s], high_scores[s]);
        if (score < before)
            lows[n++] = (struct low){.by_score = true, .score = score};
        before = score < before ? score : before;
    }
    return n;
}

/* Behind the n settings of `lows` those that skip, from mild to strong: returns how many all are. */
static size_t list_skips(const struct tune *tune, struct low *lows, size_t n)
{
    for (size_t s = 0; s < N_SKIPPED && tune->options->with_skip; s++)
        lows[n++] = (struct low){.skip = skips[s]};
    return n;
}

/* Strengths with one score of hobbit or weight to skip, from none on; without either from the first on.
 * Stronger settings lose more: the walk ends with the first one beyond the target, and one half way back.
 * `n_later` candidates come after the walk at most. */
static enum moec_status walk(struct tune *tune, struct low low, size_t n_later, bool *is_spent,
                             struct moec_error *err)
{
    size_t n_prior = 0, p = low.by_score || low.skip > 0 ? 0 : 1;
    const uint32_t *strengths = strengths_of(tune, &n_prior);
    *is_spent = false;
    for (; p < n_prior && !*is_spent; p++) {
        expect(tune, n_prior - p + 1 + n_later);
        const struct moec_decision_settings settings = settings_of(tune, strengths[p], low);
        MOEC_TRY(moec_tune_try_next(tune, &settings, 0, is_spent, err));
    }
    bool is_half_spent = false;
    if (*is_spent && p > 1 && strengths[p - 1] > strengths[p - 2] + 1) {
        const struct moec_decision_settings settings =
            settings_of(tune, (strengths[p - 2] + strengths[p - 1]) / 2, low);
        MOEC_TRY(moec_tune_try_next(tune, &settings, 0, &is_half_spent, err));
    }
    /* What even no prior keeps within the target, no stronger score does. */
    *is_spent = *is_spent && p == 1;
    return MOEC_OK;
}

/* Whether another candidate loses and reads no more, of those without a route or of all. */
static bool is_beaten(const struct tune *tune, uint32_t at, bool by_all)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *candidate = &report->candidates[at];
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *other = &report->candidates[i];
        if (i != at && (by_all || other->settings.route[0] == '\0') &&
            other->search.loss <= candidate->search.loss &&
            moec_tune_whole(tune, other) <= moec_tune_whole(tune, candidate))
            return true;
    }
    return false;
}

/* The widest that a layer foresees: the paper's, or what the device reads while it computes one. */
static uint32_t widest(const struct tune *tune)
{
    static const struct moec_precision paper = {.kind = MOEC_PRECISION_FATE};
    const struct moec_bundle *bundle = tune->trial.inputs->bundle->bundle;
    const struct moec_config *config = &bundle->config;
    const uint32_t n_encoder = moec_config_moe_encoder_count(config),
                   n_layer = moec_config_moe_count(config) - n_encoder;
    const uint32_t width = moec_precision_width(&paper, config);
    if (moec_precision_check(&(struct moec_precision){.kind = MOEC_PRECISION_FATE, .width = width}, config,
                             &(struct moec_error){0}) != MOEC_OK)
        return 0;
    if (tune->options->device == NULL || n_layer == 0)
        return width;
    const uint32_t ahead =
        moec_device_records_ahead(tune->options->device, moec_record_sizes_of(bundle, 0).token_bytes /
                                                             ((uint64_t)n_layer * config->top_k));
    return ahead < width ? ahead : width;
}

/* Tries fate at the end of the candidates; whether others beat it there. */
static enum moec_status try_fate(struct tune *tune, uint32_t strength, struct low low, bool *is_spent,
                                 bool *is_weak, struct moec_error *err)
{
    const struct moec_decision_settings settings = settings_of(tune, strength, low);
    const uint32_t at = tune->report->n_candidate;
    MOEC_TRY(moec_tune_try_next(tune, &settings, 0, is_spent, err));
    *is_weak = *is_spent || is_beaten(tune, at, strength > 0);
    return MOEC_OK;
}

/* Widths of fate alone, from the widest down to the first beyond the target; then routes with the narrowest
 * that no score of hobbit beats, for as long as nothing beats both together. */
static enum moec_status walk_widths(struct tune *tune, struct moec_error *err)
{
    struct low best = {0};
    bool is_spent = false, is_weak = false;
    size_t n_prior = 0;
    const uint32_t *strengths = strengths_of(tune, &n_prior);
    for (struct low low = {.width = widest(tune)}; low.width > 0 && !is_spent; low.width /= 2) {
        expect(tune, n_prior + 1);
        MOEC_TRY(try_fate(tune, 0, low, &is_spent, &is_weak, err));
        if (!is_weak)
            best = low;
    }
    is_weak = best.width == 0;
    for (size_t p = 1; p < n_prior && !is_weak; p++) {
        expect(tune, n_prior - p);
        MOEC_TRY(try_fate(tune, strengths[p], best, &is_spent, &is_weak, err));
    }
    return MOEC_OK;
}

/* Marks the front among the candidates, and lists the sequence that they would be. */
static uint32_t list_front(struct tune *tune, uint32_t *sequence)
{
    struct moec_tune_report *report = tune->report;
    struct moec_front_point points[MOEC_TUNE_MAX_CANDIDATES];
    bool is_on_front[MOEC_TUNE_MAX_CANDIDATES] = {false};
    uint32_t places[MOEC_TUNE_MAX_CANDIDATES], n_point = 0;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        report->candidates[i].is_on_front = false;
        if (!moec_tune_fit_admits(tune, &report->candidates[i]))
            continue;
        points[n_point] = (struct moec_front_point){moec_tune_whole(tune, &report->candidates[i]),
                                                    &report->candidates[i].search};
        places[n_point++] = i;
    }
    const struct moec_front_request request = {.points = points,
                                               .n_point = n_point,
                                               .max_loss = tune->options->trial.max_loss,
                                               .confidence = tune->options->trial.confidence,
                                               .n_search = tune->trial.n_search,
                                               .n_certify = tune->trial.n_certify};
    const uint32_t n = moec_front_choose(&request, is_on_front, sequence);
    for (uint32_t i = 0; i < n; i++)
        sequence[i] = places[sequence[i]];
    for (uint32_t i = 0; i < n_point; i++)
        report->candidates[places[i]].is_on_front = is_on_front[i];
    return n;
}

/* Of settings with hobbit that would be tested: the same with less and less that is low rather than skipped,
 * up to the first beyond the target. */
static enum moec_status walk_skips(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    uint32_t sequence[MOEC_MAX_SEQUENCE];
    const uint32_t n_base = list_front(tune, sequence);
    for (uint32_t b = 0; b < n_base; b++) {
        struct moec_decision_settings settings = report->candidates[sequence[b]].settings;
        struct moec_precision precision = {0};
        bool is_spent = false;
        if (settings.precision[0] != '\0')
            MOEC_TRY(moec_precision_read(settings.precision, &precision, err));
        if (precision.kind != MOEC_PRECISION_HOBBIT)
            continue;
        const uint32_t high = (uint32_t)lround(1e3 * (double)precision.high_score);
        uint32_t before = 1000; /* of which nothing is skipped */
        for (size_t s = 0; s < N_SKIP && !is_spent; s++) {
            const uint32_t found = score_of(tune, read_shares[s], read_scores[s]);
            const uint32_t read = found > high ? found : high;
            if (read >= before)
                continue;
            before = read;
            (void)snprintf(settings.precision, sizeof settings.precision, "hobbit:%.3g:%.3g", high * 1e-3,
                           read * 1e-3);
            expect(tune, (n_base - b) * N_SKIP - s);
            MOEC_TRY(moec_tune_try_next(tune, &settings, 0, &is_spent, err));
        }
    }
    return MOEC_OK;
}

/* Whether settings are those of a candidate. */
static bool is_tried(const struct moec_tune_report *report, const struct moec_decision_settings *settings)
{
    for (uint32_t i = 0; i < report->n_candidate; i++)
        if (strcmp(report->candidates[i].settings.precision, settings->precision) == 0 &&
            strcmp(report->candidates[i].settings.route, settings->route) == 0)
            return true;
    return false;
}

/* The same by blocks of a prompt, unless that was tried. */
static enum moec_status try_by_blocks(struct tune *tune, struct moec_decision_settings settings,
                                      bool *is_spent, struct moec_error *err)
{
    const size_t n = strlen(settings.precision);
    *is_spent = false;
    (void)snprintf(settings.precision + n, sizeof settings.precision - n, ":%u", MOEC_PRECISION_BLOCK);
    return is_tried(tune->report, &settings) ? MOEC_OK
                                             : moec_tune_try_next(tune, &settings, 0, is_spent, err);
}

/* Where tokens of a prompt decide each for themselves, a chunk of it reads one expert in both copies. So the
 * (n_low) scores alone, and the settings with hobbit that would be tested, are tried by blocks too. */
static enum moec_status walk_blocks(struct tune *tune, const struct low *lows, size_t n_low,
                                    struct moec_error *err)
{
    uint32_t sequence[MOEC_MAX_SEQUENCE];
    bool is_spent = false;
    const uint32_t n_base = list_front(tune, sequence);
    for (size_t s = 0; s < n_low && !is_spent; s++) {
        expect(tune, n_low - s + n_base);
        if (lows[s].by_score)
            MOEC_TRY(try_by_blocks(tune, settings_of(tune, 0, lows[s]), &is_spent, err));
    }
    for (uint32_t b = 0; b < n_base; b++) {
        const struct moec_decision_settings settings = tune->report->candidates[sequence[b]].settings;
        expect(tune, n_base - b);
        if (strncmp(settings.precision, "hobbit:", 7) == 0)
            MOEC_TRY(try_by_blocks(tune, settings, &is_spent, err));
    }
    return MOEC_OK;
}

/* Shares of a prompt's experts in low copies, up to the first beyond the target, with no other decision and
 * with those that would be tested without a prefill. */
static enum moec_status walk_prompt_shares(struct tune *tune, struct moec_error *err)
{
    const uint32_t n_expert = tune->trial.inputs->bundle->config->n_expert;
    struct moec_decision_settings bases[N_BASE];
    uint32_t sequence[MOEC_MAX_SEQUENCE];
    const uint32_t n_base = 1 + list_front(tune, sequence);
    bases[0] = tune->report->plain[0].settings;
    for (uint32_t b = 1; b < n_base; b++)
        bases[b] = tune->report->candidates[sequence[b - 1]].settings;
    for (uint32_t b = 0; b < n_base; b++) {
        bool is_spent = false;
        for (size_t s = 0; s < N_PROMPT_SHARE && !is_spent; s++) {
            if (prompt_shares[s] * n_expert < 1000) /* of no expert */
                continue;
            const struct moec_decision_settings settings =
                with_share(tune->options, &bases[b], prompt_shares[s]);
            expect(tune, (n_base - b) * N_PROMPT_SHARE - s);
            MOEC_TRY(moec_tune_try_next(tune, &settings, 0, &is_spent, err));
        }
    }
    return MOEC_OK;
}

/* Plans that alone are within the target: places in candidates, from mild to strong. */
struct plans {
    uint32_t places[N_LEFT_OUT + 1];
    size_t n;
};

static enum moec_status try_plan(struct tune *tune, uint32_t share, struct plans *plans, bool *is_spent,
                                 struct moec_error *err)
{
    const struct moec_decision_settings alone = settings_of(tune, 0, (struct low){0});
    MOEC_TRY(moec_tune_try_next(tune, &alone, share, is_spent, err));
    if (!*is_spent)
        plans->places[plans->n++] = tune->report->n_candidate - 1;
    return MOEC_OK;
}

/* Plans alone, until one is beyond the target; then one half way back. */
static enum moec_status walk_plans(struct tune *tune, struct plans *plans, struct moec_error *err)
{
    bool is_spent = false;
    uint32_t share = 0, before = 0;
    for (size_t s = 0; s < N_LEFT_OUT && !is_spent; s++) {
        before = share;
        share = left_out[s];
        expect(tune, 3 * (N_LEFT_OUT - s));
        MOEC_TRY(try_plan(tune, share, plans, &is_spent, err));
    }
    return is_spent ? try_plan(tune, (before + share) / 2, plans, &is_spent, err) : MOEC_OK;
}

/* The strongest plan that is expected to keep a route's loss, `added` to its own, within `most`. */
static const struct moec_tune_candidate *strongest(const struct moec_tune_report *report,
                                                   const struct plans *plans, double added, double most)
{
    for (size_t i = plans->n; i-- > 0;)
        if (report->candidates[plans->places[i]].search.loss + added <= most)
            return &report->candidates[plans->places[i]];
    return NULL;
}

/* Plans, and routes with them. What each route loses without one stands first among the candidates, by rising
 * strength. */
static enum moec_status walk_left_out(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss, plain = report->plain[0].search.loss;
    const uint32_t end = report->n_candidate;
    struct plans plans = {.n = 0};
    size_t n_prior = 0;
    const uint32_t *strengths = strengths_of(tune, &n_prior);
    bool is_spent = false;
    MOEC_TRY(walk_plans(tune, &plans, err));
    for (size_t p = 1; p < n_prior && p - 1 < end; p++) {
        const struct moec_tune_candidate *route = &report->candidates[p - 1];
        const struct moec_decision_settings settings = settings_of(tune, strengths[p], (struct low){0});
        uint32_t before = 0;
        if (route->search.loss > target)
            break;
        expect(tune, N_PLAN_GOAL * (n_prior - p));
        for (size_t g = 0; g < N_PLAN_GOAL; g++) {
            const struct moec_tune_candidate *plan =
                strongest(report, &plans, route->search.loss - plain, plan_goals[g] * target);
            if (plan != NULL && plan->share != before)
                MOEC_TRY(moec_tune_try_next(tune, &settings, plan->share, &is_spent, err));
            before = plan != NULL ? plan->share : before;
        }
    }
    return MOEC_OK;
}

/* ---- a bundle ---- */

enum moec_status moec_tune_search(struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    const struct moec_tune_candidate *plain = &tune->report->plain[0];
    /* A token's only expert is never low by its score. */
    const bool has_scores = options->with_precision && tune->trial.inputs->bundle->config->top_k > 1;
    struct low lows[N_SCORE + N_SKIPPED + 1];
    size_t n_prior = 0;
    bool is_spent = false;
    MOEC_TRY(moec_tune_open(tune, 0, MOEC_PART_SEARCH, err));
    (void)strengths_of(tune, &n_prior);
    const size_t n_score = has_scores ? list_scores(tune, lows) : 1;
    if (!has_scores)
        lows[0] = (struct low){0};
    const size_t n_low = list_skips(tune, lows, n_score);
    expect(tune, (n_prior + 1) * n_low + 1);
    MOEC_TRY(moec_tune_try_plain(tune, err));
    if (plain->search.loss > options->trial.max_loss)
        return MOEC_OK;
    for (size_t s = 0; s < n_low; s++) {
        /* What is too strong without a route ends the walks of its kind alone. */
        if (is_spent && s != n_score)
            continue;
        MOEC_TRY(walk(tune, lows[s], (n_prior + 1) * (n_low - s - 1), &is_spent, err));
    }
    if (has_scores)
        MOEC_TRY(walk_skips(tune, err));
    if (has_scores && moec_tune_reads_prompts(options))
        MOEC_TRY(walk_blocks(tune, lows, n_score, err));
    if (options->with_precision)
        MOEC_TRY(walk_widths(tune, err));
    if (options->with_prefill)
        MOEC_TRY(walk_prompt_shares(tune, err));
    if (!options->with_sparsity)
        return MOEC_OK;
    MOEC_TRY(moec_tune_fit_sparsity(tune, err));
    return walk_left_out(tune, err);
}

enum moec_status moec_tune_fit_sparsity(struct tune *tune, struct moec_error *err)
{
    if (tune->sparsity_fit != NULL)
        return MOEC_OK;
    return moec_sparsity_fit_create(&tune->trial, MOEC_SPARSITY_BY_NEURON, false, NULL, &tune->sparsity_fit,
                                    err);
}

enum moec_status moec_tune_check(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    struct moec_route route;
    const bool is_one = tune->trial.inputs->bundle->config->top_k == 1;
    struct moec_decision_settings settings = settings_of(tune,
                                                         options->with_rank    ? ranks[1]
                                                         : options->with_route ? priors[1]
                                                                               : 0,
                                                         !options->with_precision ? (struct low){0}
                                                         : is_one                 ? (struct low){.width = 1}
                                                                  : (struct low){.by_score = true});
    if (options->with_sparsity)
        MOEC_TRY(moec_sparsity_check_config(tune->trial.inputs->bundle->config, err));
    if (options->with_prefill)
        settings = with_share(options, &settings, prompt_shares[0]);
    return read_settings(tune, &settings, &route, err);
}

/* ---- the sequence ---- */

static enum moec_status select_front(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    char line[256], name[MOEC_TUNE_NAME_BYTES];
    for (uint32_t draft = 0; draft < moec_tune_draft_count(tune); draft++)
        for (uint32_t i = 0; i < report->n_candidate; i++) {
            struct moec_tune_candidate *candidate = &report->candidates[i];
            struct moec_tune_candidate again = *candidate;
            if (!candidate->is_on_front || candidate->draft != draft)
                continue;
            MOEC_TRY(moec_tune_measure(tune, MOEC_PART_SELECT, &again, &candidate->chosen, err));
            (void)snprintf(line, sizeof line, "plan %" PRIu32 ", %s: loss %.3f%% on the selection part",
                           draft + 1, moec_tune_name(&candidate->settings, candidate->share, name),
                           100 * candidate->chosen.loss);
            moec_trial_say(&tune->trial, line);
        }
    return MOEC_OK;
}

/* The sequence of those on the front, by what the selection part says of them. */
static void choose_selected(struct tune *tune)
{
    struct moec_tune_report *report = tune->report;
    struct moec_front_point points[MOEC_TUNE_MAX_CANDIDATES];
    uint32_t places[MOEC_TUNE_MAX_CANDIDATES], n = 0;
    bool is_on_front[MOEC_TUNE_MAX_CANDIDATES] = {false};
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        if (!report->candidates[i].is_on_front)
            continue;
        points[n] = (struct moec_front_point){moec_tune_whole(tune, &report->candidates[i]),
                                              &report->candidates[i].chosen};
        places[n++] = i;
    }
    const struct moec_front_request request = {.points = points,
                                               .n_point = n,
                                               .max_loss = tune->options->trial.max_loss,
                                               .confidence = tune->options->trial.confidence,
                                               .n_search = tune->trial.n_select,
                                               .n_certify = tune->trial.n_certify};
    report->n_sequence = moec_front_choose(&request, is_on_front, report->sequence);
    for (uint32_t i = 0; i < report->n_sequence; i++)
        report->sequence[i] = places[report->sequence[i]];
    for (uint32_t i = 0; i < n; i++)
        report->candidates[places[i]].is_on_front = is_on_front[i];
}

/* What would not be tested is not measured once more. */
static void keep_sequence(struct moec_tune_report *report)
{
    bool is_kept[MOEC_TUNE_MAX_CANDIDATES] = {false};
    for (uint32_t i = 0; i < report->n_sequence; i++)
        is_kept[report->sequence[i]] = true;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        report->candidates[i].is_on_front &= is_kept[i];
}

enum moec_status moec_tune_sequence_make(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    report->n_sequence = list_front(tune, report->sequence);
    if (tune->options->fit != NULL) {
        moec_tune_fit_complete(tune);
        keep_sequence(report);
    }
    MOEC_TRY(moec_tune_select(tune, err));
    if (tune->options->fit == NULL)
        return MOEC_OK;
    bool is_added = tune->trial.n_select > 0;
    for (uint32_t i = 0; i < MOST_REFINED && is_added; i++) {
        MOEC_TRY(moec_tune_fit_refine(tune, &is_added, err));
        if (is_added)
            choose_selected(tune);
    }
    moec_tune_fit_complete(tune);
    return MOEC_OK;
}

enum moec_status moec_tune_select(struct tune *tune, struct moec_error *err)
{
    if (tune->drafts == NULL || tune->trial.n_select == 0 || tune->report->n_sequence == 0)
        return MOEC_OK;
    MOEC_TRY(select_front(tune, err));
    choose_selected(tune);
    return MOEC_OK;
}
