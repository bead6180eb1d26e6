/* Candidates of a fit: plans of bits, each with routes and skips of rising strength, by the time that tokens
 * take on a device. */
#include "compiler/certify/prefix.h"
#include "compiler/tune/tune_internal.h"
#include "runtime/policy/decide/route.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

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
#define NEAR       0.06 /* of the target: no closer try pays */
#define MOST_TRIES 5    /* of a plan along a ray */
#define FIRST_TRY  0.7  /* strength */
#define STRONGER   1.6
/* What tries are hoped to leave of a token's time, where none was made, unless other tries left less, or none went
 * beyond the aim. Another ray is hoped to leave a little less than those that were tried: else none would be, once the
 * first had spent the loss. And of the best time so far what a further try must hope for. */
#define HOPE_UNTRIED 0.6
#define HOPE_OTHER   0.93
#define HOPE_MILD    0.8
#define WORTH        0.98

/* What is known of a plan along a ray: the strongest try within the aim and the mildest beyond it. Strength 0
 * is the plan alone. */
struct bracket {
    double low, low_loss, low_ns;
    double high, high_loss, high_ns;
    double first_ns; /* of the first try */
    bool has_high;
    uint32_t n;
};

static void set_route(struct moec_decision_settings *settings, const struct ray *ray, double strength)
{
    const double prior = fmin(MOST_PRIOR, round(ray->prior * strength));
    const double skip = fmin(MOST_SKIP, fmax(1, round(ray->skip * strength)));
    const int n = snprintf(settings->route, sizeof settings->route, "cache-prior:%g", prior * 1e-3);
    if (n > 0 && (size_t)n < sizeof settings->route)
        (void)snprintf(settings->route + n, sizeof settings->route - (size_t)n, ":skip:%g", skip * 1e-3);
}

static struct moec_decision_settings settings_of(const struct tune *tune, uint32_t draft,
                                                 const struct ray *ray, double strength)
{
    struct moec_decision_settings settings = tune->options->shared;
    settings.n_slots = tune->options->fit->n_slots[draft];
    if (ray == NULL) {
        settings.keep_top = 0;
        return settings;
    }
    set_route(&settings, ray, strength);
    return settings;
}

static enum moec_status measure(struct tune *tune, uint32_t draft,
                                const struct moec_decision_settings *settings,
                                struct moec_tune_candidate *candidate, struct moec_error *err)
{
    char name[MOEC_TUNE_NAME_BYTES], time[40] = "", line[256];
    *candidate = (struct moec_tune_candidate){.draft = draft, .settings = *settings};
    MOEC_TRY(moec_tune_measure(tune, MOEC_PART_SEARCH, candidate, &candidate->search, err));
    candidate->chosen = candidate->search;
    if (!tune->options->fit->by_bytes)
        (void)snprintf(time, sizeof time, "%.3f ms a token, ", 1e-6 * candidate->foretold.token_ns);
    (void)snprintf(line, sizeof line,
                   "plan %" PRIu32 ", %s: loss %.3f%% (upper bound %.3f%%), %s%.1f KiB read", draft + 1,
                   moec_tune_name(settings, 0, name), 100 * candidate->search.loss,
                   100 * candidate->search.high, time, candidate->foretold.read_bytes / 1024);
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

/* The time that the next try may show; INFINITY where none pays. `hope` is of brackets without a try. */
static double promise(const struct bracket *bracket, double target, double hope)
{
    const double aim = AIM * target;
    if (bracket->n == MOST_TRIES || aim - bracket->low_loss < NEAR * target ||
        (bracket->has_high && bracket->high_loss - bracket->low_loss < NEAR * target))
        return INFINITY;
    if (!bracket->has_high)
        return bracket->low_ns * (bracket->n == 0 ? HOPE_OTHER * hope : HOPE_MILD);
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
    const struct moec_decision_settings settings = settings_of(tune, draft, &rays[r], strength);
    MOEC_TRY(measure(tune, draft, &settings, candidate, err));
    report->n_candidate++;
    if (bracket->n++ == 0)
        bracket->first_ns = moec_tune_amount(tune, candidate);
    if (candidate->search.loss > AIM * target) {
        bracket->has_high = true;
        bracket->high = strength;
        bracket->high_loss = candidate->search.loss;
        bracket->high_ns = moec_tune_amount(tune, candidate);
        return MOEC_OK;
    }
    bracket->low = strength;
    bracket->low_loss = candidate->search.loss;
    bracket->low_ns = moec_tune_amount(tune, candidate);
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
    const struct moec_decision_settings settings = settings_of(tune, draft, NULL, 0);
    expect(tune, report->n_candidate);
    MOEC_TRY(measure(tune, draft, &settings, &report->plain[draft], err));
    report->candidates[report->n_candidate++] = report->plain[draft];
    return MOEC_OK;
}

/* ---- once the selection part is known ---- */

/* Where between two losses the aim is met, never near to either. */
static double part_between(double low, double high, double aim)
{
    return fmin(0.8, fmax(0.2, (aim - low) / (high - low)));
}

bool moec_tune_fit_between(const struct moec_tune_candidate *within, const struct moec_tune_candidate *beyond,
                           double target, struct moec_decision_settings *out)
{
    struct moec_route mild = {0}, strong = {0};
    struct moec_error ignored = {0};
    const double low = within->chosen.loss, high = beyond->chosen.loss, aim = AIM * target;
    if (within->draft != beyond->draft || aim - low < NEAR * target || high - low < NEAR * target ||
        (within->settings.route[0] != '\0' &&
         moec_route_read(within->settings.route, &mild, &ignored) != MOEC_OK) ||
        moec_route_read(beyond->settings.route, &strong, &ignored) != MOEC_OK)
        return false;
    const double part = part_between(low, high, aim);
    const struct ray between = {
        (uint32_t)lround(1e3 * ((double)mild.share + part * (double)(strong.share - mild.share))),
        (uint32_t)lround(1e3 * ((double)mild.skip + part * (double)(strong.skip - mild.skip)))};
    *out = beyond->settings;
    set_route(out, &between, 1);
    return strcmp(out->route, beyond->settings.route) != 0 && strcmp(out->route, within->settings.route) != 0;
}

/* Of the draft's candidates that are faster and lose more, the slowest; NULL: there is none that would pay. */
static const struct moec_tune_candidate *find_beyond(const struct tune *tune,
                                                     const struct moec_tune_candidate *within)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *best = NULL;
    const double most = WORTH * moec_tune_amount(tune, within);
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        const double amount = moec_tune_amount(tune, candidate);
        if (candidate->draft == within->draft && moec_decision_settings_are_on(&candidate->settings) &&
            candidate->chosen.loss > within->chosen.loss && amount < most &&
            (best == NULL || amount > moec_tune_amount(tune, best)))
            best = candidate;
    }
    return best;
}

/* The ray that saved most of a draft's time for the loss that it added, of those that were tried. */
static const struct ray *find_ray(const struct tune *tune)
{
    const struct moec_tune_report *report = tune->report;
    const double least = NEAR * tune->options->trial.max_loss;
    const struct ray *best = &rays[0];
    double most = 0;
    for (size_t r = 0; r < N_RAY; r++) {
        struct moec_decision_settings settings;
        set_route(&settings, &rays[r], FIRST_TRY);
        for (uint32_t i = 0; i < report->n_candidate; i++) {
            const struct moec_tune_candidate *candidate = &report->candidates[i],
                                             *plain = &report->plain[candidate->draft];
            const double saved =
                1 - (double)moec_tune_amount(tune, candidate) / (double)moec_tune_amount(tune, plain);
            const double gain = saved / fmax(candidate->search.loss - plain->search.loss, least);
            if (strcmp(candidate->settings.route, settings.route) != 0 || gain <= most)
                continue;
            most = gain;
            best = &rays[r];
        }
    }
    return best;
}

static bool is_measured(const struct moec_tune_report *report, uint32_t draft, const char *route)
{
    for (uint32_t i = 0; i < report->n_candidate; i++)
        if (report->candidates[i].draft == draft && strcmp(report->candidates[i].settings.route, route) == 0)
            return true;
    return false;
}

bool moec_tune_fit_further(const struct tune *tune, const struct moec_tune_candidate *within,
                           struct moec_decision_settings *out)
{
    const struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss;
    struct moec_route route = {0};
    if (AIM * target - within->chosen.loss < NEAR * target || tune->options->fit->holds_all[within->draft] ||
        tune->trial.inputs->bundle->config->top_k == 1)
        return false;
    if (!moec_decision_settings_are_on(&within->settings))
        *out = settings_of(tune, within->draft, find_ray(tune), FIRST_TRY);
    else if (moec_route_read(within->settings.route, &route, &(struct moec_error){0}) != MOEC_OK)
        return false;
    else
        *out = settings_of(tune, within->draft,
                           &(struct ray){1e3 * (double)route.share, 1e3 * (double)route.skip}, STRONGER);
    return !is_measured(report, within->draft, out->route);
}

/* Of what was measured on the selection part and is within the loss, the candidate from which a try between it and one
 * that loses more is expected to be fastest, and faster than all of them; NULL: there is none. */
static const struct moec_tune_candidate *find_refined(const struct tune *tune,
                                                      struct moec_decision_settings *settings)
{
    const struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss, aim = AIM * target;
    const struct moec_tune_candidate *best = NULL;
    double least = INFINITY;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        if (report->candidates[i].is_on_front && report->candidates[i].chosen.loss <= target)
            least = fmin(least, WORTH * (double)moec_tune_amount(tune, &report->candidates[i]));
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *within = &report->candidates[i],
                                         *beyond = find_beyond(tune, within);
        struct moec_decision_settings between;
        if (!within->is_on_front || beyond == NULL ||
            !moec_tune_fit_between(within, beyond, target, &between) ||
            is_measured(report, within->draft, between.route))
            continue;
        const double slow = (double)moec_tune_amount(tune, within),
                     fast = (double)moec_tune_amount(tune, beyond);
        const double expected =
            slow + part_between(within->chosen.loss, beyond->chosen.loss, aim) * (fast - slow);
        if (expected >= least)
            continue;
        least = expected;
        best = within;
        *settings = between;
    }
    return best;
}

enum moec_status moec_tune_fit_refine(struct tune *tune, bool *is_added, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_decision_settings settings;
    *is_added = false;
    if (report->n_sequence == 0 || report->n_candidate >= tune->options->fit->n_measured)
        return MOEC_OK;
    const struct moec_tune_candidate *within = find_refined(tune, &settings);
    if (within == NULL) {
        within = &report->candidates[report->sequence[report->n_sequence - 1]];
        if (find_beyond(tune, within) != NULL || !moec_tune_fit_further(tune, within, &settings))
            return MOEC_OK;
    }
    struct moec_tune_candidate *candidate = &report->candidates[report->n_candidate];
    MOEC_TRY(measure(tune, within->draft, &settings, candidate, err));
    struct moec_tune_candidate again = *candidate;
    MOEC_TRY(moec_tune_measure(tune, MOEC_PART_SELECT, &again, &candidate->chosen, err));
    candidate->is_on_front = true;
    report->n_candidate++;
    *is_added = true;
    return MOEC_OK;
}

/* ---- beside compile ---- */

/* The last draft spends the whole loss on bits; where the search part does not expect its proof, compile would end
 * with one before. */
static uint32_t find_compiled(const struct tune *tune)
{
    const struct moec_tune_report *report = tune->report;
    uint32_t draft = moec_tune_draft_count(tune) - 1;
    while (draft > 0 && report->plain[draft].search.high > tune->options->trial.max_loss)
        draft--;
    return tune->options->fit->n_slots[draft] > 0 ? draft : MOEC_TUNE_NO_DRAFT;
}

static bool is_slower(const struct tune *tune, const struct moec_tune_candidate *candidate)
{
    const struct moec_tune_report *report = tune->report;
    return report->compiled != MOEC_TUNE_NO_DRAFT &&
           moec_tune_amount(tune, candidate) >
               (1 + MOEC_TUNE_SLOWER) * moec_tune_amount(tune, &report->plain[report->compiled]);
}

/* The plain draft itself; n_candidate where it is not among the candidates. */
static uint32_t place_of_compiled(const struct moec_tune_report *report)
{
    uint32_t i = 0;
    while (i < report->n_candidate && (report->candidates[i].draft != report->compiled ||
                                       moec_decision_settings_are_on(&report->candidates[i].settings)))
        i++;
    return i;
}

/* Bits alone of the lowest upper end on the search part: on few windows noise decides whose loss itself is least.
 * n_candidate where none is within the target. */
static uint32_t find_safest(const struct tune *tune)
{
    const struct moec_tune_report *report = tune->report;
    uint32_t best = report->n_candidate;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        if (!moec_decision_settings_are_on(&candidate->settings) &&
            candidate->search.loss <= tune->options->trial.max_loss &&
            (best == report->n_candidate || candidate->search.high < report->candidates[best].search.high))
            best = i;
    }
    return best;
}

/* Of what is slower the safest plan of bits alone is left, for texts that prove nothing else. */
bool moec_tune_fit_admits(const struct tune *tune, const struct moec_tune_candidate *candidate)
{
    const struct moec_tune_report *report = tune->report;
    if (tune->options->fit == NULL || !is_slower(tune, candidate))
        return true;
    if (moec_decision_settings_are_on(&candidate->settings))
        return false;
    for (uint32_t d = 0; d < MOEC_TUNE_MAX_DRAFTS; d++)
        if (report->plain[d].search.n_window > 0 && report->plain[d].search.high < candidate->search.high)
            return false;
    return true;
}

_Static_assert(MOEC_SEQUENCE_MAX_BETWEEN + 2 < MOEC_MAX_SEQUENCE, "a sequence has room for one more");

static uint32_t find_fastest(const struct tune *tune)
{
    const struct moec_tune_report *report = tune->report;
    uint32_t best = report->n_candidate;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        if (report->candidates[i].is_on_front &&
            (best == report->n_candidate || moec_tune_whole(tune, &report->candidates[i]) <
                                                moec_tune_whole(tune, &report->candidates[best])))
            best = i;
    return best;
}

/* What decides may show less loss than bits alone on few windows, by noise: then the front lacks the safest plan, and
 * the first failure would leave nothing to write. So that plan is tested first, and before all else only what is
 * faster is worth a test. What a policy has chosen stays, whatever it takes. */
static void put_safest_first(const struct tune *tune)
{
    struct moec_tune_report *report = tune->report;
    const uint32_t safest = find_safest(tune), n = report->n_sequence;
    uint32_t sequence[MOEC_MAX_SEQUENCE] = {safest}, n_kept = 1;
    if (safest == report->n_candidate)
        return;
    const uint64_t whole = moec_tune_whole(tune, &report->candidates[safest]);
    if (tune->options->policy != NULL &&
        (n == 0 || whole <= moec_tune_whole(tune, &report->candidates[report->sequence[n - 1]])))
        return;
    for (uint32_t i = 0; i < n && n_kept < MOEC_MAX_SEQUENCE; i++)
        if (moec_tune_whole(tune, &report->candidates[report->sequence[i]]) < whole)
            sequence[n_kept++] = report->sequence[i];
    memcpy(report->sequence, sequence, n_kept * sizeof *sequence);
    report->n_sequence = n_kept;
    report->candidates[safest].is_on_front = true;
}

/* Whether the certificate is likely to prove what was measured on `loss`' windows. */
static bool is_likely(const struct tune *tune, const struct moec_loss *loss)
{
    const struct moec_sequence_spacing spacing =
        moec_sequence_spacing_of(log1p(tune->options->trial.max_loss), loss, loss->n_window,
                                 tune->trial.n_certify, tune->options->trial.confidence);
    return loss->difference <= moec_sequence_certain(&spacing, 1);
}

/* Whether the first of the sequence that is faster than a candidate is likely to be proven. */
static bool has_likely_faster(const struct tune *tune, const struct moec_tune_candidate *candidate)
{
    const struct moec_tune_report *report = tune->report;
    const uint64_t whole = moec_tune_whole(tune, candidate);
    for (uint32_t i = 0; i < report->n_sequence; i++) {
        const struct moec_tune_candidate *other = &report->candidates[report->sequence[i]];
        if (moec_tune_whole(tune, other) < whole)
            return is_likely(tune, &other->chosen);
    }
    return false;
}

/* Whether a plan of bits is expected to fail, or beaten by what loses no more and is no slower. Decisions with the same
 * bits, or with bits that lose more, only seem to lose less; those with safer bits stand for the plan if they are
 * likely to be proven, so that nothing is lost where they are tested in its place. */
static bool is_pointless(const struct tune *tune, uint32_t place)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *candidate = &report->candidates[place];
    if (candidate->chosen.loss > tune->options->trial.max_loss)
        return true;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *other = &report->candidates[i];
        const bool decides = moec_decision_settings_are_on(&other->settings);
        if (i == place || other->search.loss > candidate->search.loss ||
            moec_tune_whole(tune, other) > moec_tune_whole(tune, candidate))
            continue;
        if (!decides || (other->draft < candidate->draft && has_likely_faster(tune, candidate)))
            return true;
    }
    return false;
}

/* Before what is faster; what is no faster than the first is not worth a test. Where there is no room, the second
 * gives way: the first is left to fall back to. */
static void insert(const struct tune *tune, uint32_t place)
{
    struct moec_tune_report *report = tune->report;
    const uint64_t whole = moec_tune_whole(tune, &report->candidates[place]);
    uint32_t at = 0, n = report->n_sequence;
    for (; at < n; at++) {
        if (report->sequence[at] == place)
            return;
        if (moec_tune_whole(tune, &report->candidates[report->sequence[at]]) < whole)
            break;
    }
    if (at == 0)
        return;
    if (n == MOEC_MAX_SEQUENCE) {
        memmove(report->sequence + 1, report->sequence + 2, (--n - 1) * sizeof *report->sequence);
        at = at > 1 ? at - 1 : at;
    }
    memmove(report->sequence + at + 1, report->sequence + at, (n - at) * sizeof *report->sequence);
    report->sequence[at] = place;
    report->n_sequence = n + 1;
    report->candidates[place].is_on_front = true;
}

/* Of two that stand close on the front only one is tested; compile's plan always is. Where it is none of the
 * candidates, or pointless, the fastest stands for it if all that would be tested is slower: a plan that loses less
 * than compile's, as fast with all experts in memory, must not give way to one that is a little slower than both. */
static void add_compiled(const struct tune *tune)
{
    const struct moec_tune_report *report = tune->report;
    uint32_t place = place_of_compiled(report);
    if (report->n_sequence == 0)
        return;
    if (place == report->n_candidate ||
        (!report->candidates[place].is_on_front && is_pointless(tune, place))) {
        if (!is_slower(tune, &report->candidates[report->sequence[report->n_sequence - 1]]))
            return;
        place = find_fastest(tune);
    }
    if (place < report->n_candidate)
        insert(tune, place);
}

void moec_tune_fit_complete(const struct tune *tune)
{
    put_safest_first(tune);
    if (tune->options->policy == NULL)
        add_compiled(tune);
}

/* By what the other parts say of the sequence's fastest, as moec compile chooses them. */
enum moec_status moec_tune_fit_choose_windows(struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *last = &report->candidates[report->sequence[report->n_sequence - 1]];
    const struct moec_loss *losses[] = {&last->search, &last->chosen};
    const size_t n_loss = tune->trial.n_select > 0 ? 2 : 1;
    struct moec_windows part = {0};
    double variance = 0;
    uint32_t n_measured = 0;
    if (tune->options->fit->takes_all_certificate)
        return MOEC_OK;
    for (size_t i = 0; i < n_loss; i++) {
        const double sum = losses[i]->error * losses[i]->n_window;
        if (losses[i]->n_unit < 2)
            continue;
        variance += sum * sum;
        n_measured += losses[i]->n_window;
    }
    MOEC_TRY(moec_windows_part(tune->trial.inputs->windows, MOEC_PART_CERTIFICATE, &part, err));
    const struct moec_prefix_request request = {.n_window = part.n_window,
                                                .documents = part.by_document ? part.document : NULL,
                                                .target = tune->options->trial.max_loss,
                                                .confidence = tune->options->trial.confidence,
                                                .error = n_measured > 0 ? sqrt(variance) / n_measured : 0,
                                                .n_measured = n_measured};
    tune->trial.most_certify = moec_prefix_choose(&request);
    moec_windows_release(&part);
    return MOEC_OK;
}

enum moec_status moec_tune_fit_refuse(const struct tune *tune, const struct moec_loss *safest,
                                      struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss;
    char advice[MOEC_SEQUENCE_ADVICE_BYTES];
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the safest of %" PRIu32 " combinations, plan %" PRIu32
        " without decisions, has a loss of %.3f%% on the certificate part (upper bound with %g%% "
        "confidence: %.3f%%), but the target is %.3f%%, so nothing was written: %s",
        report->n_sequence, report->candidates[report->sequence[0]].draft + 1, 100 * safest->loss,
        100 * tune->options->trial.confidence, 100 * safest->high, 100 * target,
        moec_sequence_advice(safest, target, "windows", advice));
}

enum moec_status moec_tune_fit_check_winner(struct tune *tune, uint32_t n_passed, struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss;
    struct moec_loss loss;
    if (!is_slower(tune, &report->winner))
        return MOEC_OK;
    struct moec_tune_candidate compiled = report->plain[report->compiled];
    if (n_passed < report->n_sequence && report->sequence[n_passed] == place_of_compiled(report))
        return MOEC_OK; /* that is what failed */
    MOEC_TRY(moec_tune_measure(tune, MOEC_PART_CERTIFICATE, &compiled, &loss, err));
    if (loss.high > target)
        return MOEC_OK;
    const bool by_bytes = tune->options->fit->by_bytes;
    const double unit = by_bytes ? 1.0 / 1024 : 1e-6;
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "the best settings proven to lose at most %.3f%% would %s %.3f %s a token, but the plan of moec "
        "compile alone only %.3f %s, so nothing was written: use moec compile with the same --max-loss, or "
        "give more text",
        100 * target, by_bytes ? "read" : "take", unit * moec_tune_amount(tune, &report->winner),
        by_bytes ? "KiB" : "ms", unit * moec_tune_amount(tune, &compiled), by_bytes ? "KiB" : "ms");
}

enum moec_status moec_tune_fit_look(struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_fit *fit = tune->options->fit;
    const struct moec_tune_candidate *winner = &tune->report->winner;
    struct moec_route route = {0};
    if (fit->look == NULL)
        return MOEC_OK;
    tune->trial.leaves_original = true;
    if (moec_decision_settings_are_on(&winner->settings))
        MOEC_TRY(moec_route_read(winner->settings.route, &route, err));
    const bool has_prior = route.kind == MOEC_ROUTE_CACHE_PRIOR && route.share > 0;
    for (int i = 0; i < 3; i++) {
        struct moec_tune_candidate candidate = *winner;
        struct moec_replay ran = {0};
        char *words = candidate.settings.route;
        if (i > 0 && (!has_prior || route.skip <= 0)) /* of two decisions, one alone */
            continue;
        if (i == 1)
            (void)snprintf(words, sizeof candidate.settings.route, "top-k:skip:%g", (double)route.skip);
        if (i == 2)
            (void)snprintf(words, sizeof candidate.settings.route, "cache-prior:%g", (double)route.share);
        MOEC_TRY(moec_tune_record(tune, &candidate, &ran, err));
        const struct moec_foretell_run done = {&candidate.settings, tune->trial.inputs->bundle->model, &ran};
        MOEC_TRY(fit->look(fit->context, candidate.draft, &done, err));
    }
    return MOEC_OK;
}

/* ---- the search ---- */

/* Of drafts whose experts memory holds and that are no slower than compile's, the one of the least loss stays, and
 * what loses less, which is tested before it; whether there is one. */
static bool keep_resident(struct tune *tune)
{
    struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *best = NULL;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        if (tune->options->fit->holds_all[candidate->draft] && !is_slower(tune, candidate) &&
            (best == NULL || candidate->search.loss < best->search.loss))
            best = candidate;
    }
    if (best == NULL || best->search.loss > tune->options->trial.max_loss)
        return false;
    const double most = best->search.loss;
    const uint32_t n_candidate = report->n_candidate, safest = find_safest(tune);
    report->n_candidate = 0;
    for (uint32_t i = 0; i < n_candidate; i++)
        if (report->candidates[i].search.loss <= most || i == safest)
            report->candidates[report->n_candidate++] = report->candidates[i];
    return true;
}

/* Marks the drafts that decisions are tried with: those whose bits alone are likely to be proven, for decisions only
 * lose more; all drafts where none is. */
static void mark_tried(const struct tune *tune, bool is_tried[static MOEC_TUNE_MAX_DRAFTS])
{
    const uint32_t n = moec_tune_draft_count(tune);
    bool is_any = false;
    for (uint32_t d = 0; d < n; d++) {
        const struct moec_loss *loss = &tune->report->plain[d].search;
        is_tried[d] = isfinite(loss->loss) && is_likely(tune, loss);
        is_any = is_any || is_tried[d];
    }
    for (uint32_t d = 0; d < n && !is_any; d++)
        is_tried[d] = true;
}

/* Whether a ray is worth a draft's first try: where another draft has had one along each ray, only the ray that left
 * that draft the shortest time. */
static bool is_promising(const struct bracket brackets[][N_RAY], uint32_t n_draft, uint32_t draft, size_t ray)
{
    for (uint32_t d = 0; d < n_draft; d++) {
        size_t n_tried = 0, fastest = 0;
        for (size_t r = 0; r < N_RAY; r++) {
            n_tried += brackets[d][r].n > 0;
            fastest = brackets[d][r].first_ns < brackets[d][fastest].first_ns ? r : fastest;
        }
        if (d != draft && n_tried == N_RAY)
            return brackets[draft][ray].n > 0 || ray == fastest;
    }
    return true;
}

/* The plan and ray of the shortest time that may still be found, the first of equals; false where none is, or none
 * that is worth a try beside what was found. */
static bool find_best(const struct tune *tune, const struct bracket brackets[][N_RAY],
                      const bool is_tried[static MOEC_TUNE_MAX_DRAFTS], uint32_t *draft, size_t *ray)
{
    const struct moec_tune_report *report = tune->report;
    const double target = tune->options->trial.max_loss;
    double best = INFINITY, found = INFINITY, hope = HOPE_UNTRIED;
    for (uint32_t d = 0; d < moec_tune_draft_count(tune); d++)
        for (size_t r = 0; r < N_RAY; r++) {
            if (brackets[d][r].low_loss > target)
                continue;
            found = fmin(found, brackets[d][r].low_ns);
            hope = fmin(hope, brackets[d][r].low_ns / moec_tune_amount(tune, &report->plain[d]));
        }
    for (uint32_t d = 0; d < moec_tune_draft_count(tune); d++)
        for (size_t r = 0; r < N_RAY; r++) {
            const bool is_open = is_tried[d] && is_promising(brackets, moec_tune_draft_count(tune), d, r);
            const double ns = is_open ? promise(&brackets[d][r], target, hope) : INFINITY;
            if (!(ns < best))
                continue;
            best = ns;
            *draft = d;
            *ray = r;
        }
    return best < WORTH * found;
}

enum moec_status moec_tune_fit_try_plain(struct tune *tune, struct moec_error *err)
{
    for (uint32_t d = 0; d < moec_tune_draft_count(tune); d++)
        MOEC_TRY(try_plain(tune, d, err));
    tune->report->compiled = find_compiled(tune);
    return MOEC_OK;
}

enum moec_status moec_tune_fit_search(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct bracket brackets[MOEC_TUNE_MAX_DRAFTS][N_RAY];
    bool is_tried[MOEC_TUNE_MAX_DRAFTS];
    uint32_t draft = 0;
    size_t ray = 0;
    MOEC_TRY(moec_tune_fit_try_plain(tune, err));
    for (uint32_t d = 0; d < moec_tune_draft_count(tune); d++)
        for (size_t r = 0; r < N_RAY; r++)
            brackets[d][r] = (struct bracket){.low_loss = report->plain[d].search.loss,
                                              .low_ns = moec_tune_amount(tune, &report->plain[d])};
    if (keep_resident(tune) || tune->trial.inputs->bundle->config->top_k == 1)
        return MOEC_OK;
    mark_tried(tune, is_tried);
    while (report->n_candidate < tune->options->fit->n_measured &&
           find_best(tune, brackets, is_tried, &draft, &ray))
        MOEC_TRY(try_ray(tune, draft, ray, &brackets[draft][ray], err));
    return MOEC_OK;
}
