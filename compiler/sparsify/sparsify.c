/* Bisection over the share that is left out, in thousandths, by the loss and then by its upper end. Brackets
 * are found among everything measured so far, so the second search profits from the first. The search part
 * alone chooses; nothing on the certificate part changes shares, tables or their order. */
#include "compiler/sparsify/sparsify.h"

#include "compiler/certify/front.h"
#include "compiler/sparsify/sparsity_fit.h"
#include "runtime/forward/moe/sparsity.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* How the search halves what is between two shares: to where the loss is spent, then to where its upper end
 * is. */
#define LOSS_TURNS  7
#define UPPER_TURNS 5
/* Passes of the certificate part: the original and all neurons too. */
#define MAX_TESTS (MOEC_MAX_SEQUENCE + 2)

_Static_assert(LOSS_TURNS + UPPER_TURNS <= MOEC_SPARSIFY_MAX_CANDIDATES, "there is room for all candidates");
_Static_assert(MOEC_SPARSIFY_MAX_CANDIDATES <= MOEC_FRONT_MAX, "and for their front");

struct sparsify {
    const struct moec_sparsify_options *options;
    struct moec_sparsify_report *report;
    struct moec_trial trial;
    struct moec_sparsity_fit *fit;
    struct moec_sparsity *sparsity; /* that the scorer leaves neurons out by */
    char name[40];
};

static const struct moec_config *config_of(const struct sparsify *s)
{
    return s->trial.inputs->bundle->config;
}

/* ---- measuring ---- */

/* The scorer leaves out a share from now on. */
static enum moec_status set_up(struct sparsify *s, uint32_t share, struct moec_error *err)
{
    struct moec_sparsity_plan *plan = &s->report->plan;
    moec_scorer_keep_all(s->trial.measured.scorer);
    moec_sparsity_free(s->sparsity);
    s->sparsity = NULL;
    moec_sparsity_fit_plan(s->fit, share, plan);
    MOEC_TRY(moec_sparsity_create_planned(plan, config_of(s), &s->sparsity, err));
    return moec_scorer_set_sparsity(s->trial.measured.scorer, s->sparsity, err);
}

/* What was decoded since it was set up. */
static struct moec_sparsity_traffic traffic_of(const struct sparsify *s)
{
    const struct moec_sparsity_counts counts = moec_sparsity_counts(s->sparsity);
    return (struct moec_sparsity_traffic){
        .active_share = counts.n_neuron > 0 ? (double)counts.n_active / (double)counts.n_neuron : 0,
        .token_bytes = moec_sparsity_token_bytes(&counts, config_of(s), counts.active_bytes),
        .dense_token_bytes = moec_sparsity_token_bytes(&counts, config_of(s), counts.dense_bytes)};
}

/* ---- the search ---- */

static enum moec_status try_share(struct sparsify *s, uint32_t share, struct moec_error *err)
{
    struct moec_sparsify_report *report = s->report;
    struct moec_sparsify_candidate *candidate = &report->candidates[report->n_candidate];
    char line[192];
    *candidate = (struct moec_sparsify_candidate){.share = share};
    MOEC_TRY(set_up(s, share, err));
    MOEC_TRY(moec_trial_measure(&s->trial, &candidate->search, err));
    candidate->traffic = traffic_of(s);
    report->n_candidate++;
    (void)snprintf(line, sizeof line,
                   "%.1f%% left out: loss %.3f%% (upper bound %.3f%%), %.1f%% of neurons active, "
                   "%.1f KiB a token",
                   share / 10.0, 100 * candidate->search.loss, 100 * candidate->search.high,
                   100 * candidate->traffic.active_share, candidate->traffic.token_bytes / 1024);
    moec_trial_say(&s->trial, line);
    return MOEC_OK;
}

/* The largest share that was tried whose loss, or its upper end, is within the target, and the smallest above
 * it that was tried and is not. */
static void find_between(const struct sparsify *s, bool upper, uint32_t most, uint32_t *low, uint32_t *high)
{
    *low = 0;
    *high = most + 1;
    for (uint32_t i = 0; i < s->report->n_candidate; i++) {
        const struct moec_sparsify_candidate *candidate = &s->report->candidates[i];
        const double loss = upper ? candidate->search.high : candidate->search.loss;
        if (loss <= s->options->trial.max_loss && candidate->share > *low)
            *low = candidate->share;
    }
    for (uint32_t i = 0; i < s->report->n_candidate; i++)
        if (s->report->candidates[i].share > *low && s->report->candidates[i].share < *high)
            *high = s->report->candidates[i].share;
}

static enum moec_status halve(struct sparsify *s, bool upper, int n_turn, double n_later,
                              struct moec_error *err)
{
    const uint32_t most = moec_sparsity_fit_most(s->fit);
    for (int turn = 0; turn < n_turn; turn++) {
        uint32_t low = 0, high = 0;
        find_between(s, upper, most, &low, &high);
        if (high - low <= 1)
            break;
        moec_trial_expect(&s->trial, n_turn - turn + n_later, MAX_TESTS);
        MOEC_TRY(try_share(s, (low + high) / 2, err));
    }
    return MOEC_OK;
}

/* A fit by up (0) or the gate (1), and what it loses where both are compared. */
static enum moec_status try_projection(struct sparsify *s, size_t at, struct moec_error *err)
{
    static const char *const names[2] = {"up", "the gate"};
    const struct moec_sparsify_options *options = s->options;
    char line[96];
    MOEC_TRY(moec_sparsity_fit_create(&s->trial, options->by, at == 1, options->tables[at], &s->fit, err));
    if (!options->tries[0] || !options->tries[1])
        return MOEC_OK;
    MOEC_TRY(set_up(s, MOEC_SPARSIFY_TRIED_SHARE, err));
    MOEC_TRY(moec_trial_measure(&s->trial, &s->report->tried[at], err));
    (void)snprintf(line, sizeof line, "by %s, %.0f%% left out: loss %.3f%%", names[at],
                   MOEC_SPARSIFY_TRIED_SHARE / 10.0, 100 * s->report->tried[at].loss);
    moec_trial_say(&s->trial, line);
    return MOEC_OK;
}

/* Which product decides what stays: by the gate only where that loses less. */
static enum moec_status choose_projection(struct sparsify *s, struct moec_error *err)
{
    const bool *tries = s->options->tries;
    struct moec_sparsity_fit *by_up = NULL;
    if (tries[0])
        MOEC_TRY(try_projection(s, 0, err));
    if (!tries[1])
        return MOEC_OK;
    by_up = s->fit;
    s->fit = NULL;
    const enum moec_status status = try_projection(s, 1, err);
    if (status == MOEC_OK && by_up != NULL && !(s->report->tried[1].loss < s->report->tried[0].loss)) {
        moec_sparsity_fit_free(s->fit);
        s->fit = by_up;
        by_up = NULL;
    }
    moec_sparsity_fit_free(by_up);
    return status;
}

static enum moec_status search(struct sparsify *s, struct moec_error *err)
{
    struct moec_sparsify_report *report = s->report;
    const double n_fit = 4 * (s->options->tries[0] + s->options->tries[1]);
    moec_trial_expect(&s->trial, LOSS_TURNS + UPPER_TURNS + 1 + n_fit, MAX_TESTS);
    MOEC_TRY(moec_trial_open(&s->trial, MOEC_PART_SEARCH, err));
    MOEC_TRY(moec_trial_measure(&s->trial, &report->plain, err));
    if (report->plain.loss > s->options->trial.max_loss)
        return MOEC_OK;
    MOEC_TRY(choose_projection(s, err));
    MOEC_TRY(halve(s, false, LOSS_TURNS, UPPER_TURNS, err));
    return halve(s, true, UPPER_TURNS, 0, err);
}

/* Whole bytes a token, at least one: sizes of a sequence are compared by ratio. */
static uint64_t bytes_of(const struct moec_sparsify_candidate *candidate)
{
    return candidate->traffic.token_bytes > 1 ? (uint64_t)llround(candidate->traffic.token_bytes) : 1;
}

static void make_sequence(struct sparsify *s)
{
    struct moec_sparsify_report *report = s->report;
    struct moec_front_point points[MOEC_SPARSIFY_MAX_CANDIDATES];
    bool is_on_front[MOEC_SPARSIFY_MAX_CANDIDATES] = {false};
    for (uint32_t i = 0; i < report->n_candidate; i++)
        points[i] =
            (struct moec_front_point){bytes_of(&report->candidates[i]), &report->candidates[i].search};
    const struct moec_front_request request = {.points = points,
                                               .n_point = report->n_candidate,
                                               .max_loss = s->options->trial.max_loss,
                                               .confidence = s->options->trial.confidence,
                                               .n_search = s->trial.n_search,
                                               .n_certify = s->trial.n_certify};
    report->n_sequence = moec_front_choose(&request, is_on_front, report->sequence);
    for (uint32_t i = 0; i < report->n_candidate; i++)
        report->candidates[i].is_on_front = is_on_front[i];
}

/* ---- the certificate ---- */

static const struct moec_sparsify_candidate *candidate_of(const struct sparsify *s, uint32_t i)
{
    return &s->report->candidates[s->report->sequence[i]];
}

static const char *name_test(void *context, uint32_t i)
{
    struct sparsify *s = context;
    (void)snprintf(s->name, sizeof s->name, "%.1f%% left out", candidate_of(s, i)->share / 10.0);
    return s->name;
}

static enum moec_status prepare_test(void *context, uint32_t i, struct moec_error *err)
{
    struct sparsify *s = context;
    return set_up(s, candidate_of(s, i)->share, err);
}

static void keep_passed(void *context, uint32_t i)
{
    struct sparsify *s = context;
    (void)i;
    s->report->plan.traffic = traffic_of(s);
}

/* The search has found nothing within the target: the certificate part stays unseen. */
static enum moec_status refuse_search(const struct sparsify *s, struct moec_error *err)
{
    const struct moec_sparsify_report *report = s->report;
    double least = report->n_candidate > 0 ? INFINITY : report->plain.high;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        least = fmin(least, report->candidates[i].search.high);
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "nothing was written: no sparsity plan stays within the target of %.3f%%. With all "
        "neurons the bundle itself loses %.3f%% on the search part (upper bound with %g%% confidence: "
        "%.3f%%): compile with a smaller --max-loss, or give moec sparsify --max-loss %.1f%% or more",
        100 * s->options->trial.max_loss, 100 * report->plain.loss, 100 * s->options->trial.confidence,
        100 * report->plain.high, ceil(1e3 * least) / 10);
}

/* The last that passed becomes the report's plan. */
static enum moec_status test_all(struct sparsify *s, struct moec_loss *first, uint32_t *n_passed,
                                 struct moec_error *err)
{
    struct moec_sparsify_report *report = s->report;
    struct moec_trial_sequence sequence = {.n = report->n_sequence,
                                           .name = name_test,
                                           .prepare = prepare_test,
                                           .passed = keep_passed,
                                           .context = s};
    for (uint32_t i = 0; i < sequence.n; i++) {
        sequence.n_bytes[i] = bytes_of(candidate_of(s, i));
        sequence.search[i] = &candidate_of(s, i)->search;
    }
    MOEC_TRY(moec_trial_test(&s->trial, &sequence, first, n_passed, &report->plan.certificate, err));
    if (*n_passed > 0)
        moec_sparsity_fit_plan(s->fit, candidate_of(s, *n_passed - 1)->share, &report->plan);
    return MOEC_OK;
}

static enum moec_status certify(struct sparsify *s, struct moec_error *err)
{
    struct moec_sparsity_plan *plan = &s->report->plan;
    struct moec_loss plain, first = {0};
    uint32_t n_passed = 0;
    moec_trial_expect(&s->trial, 0, s->report->n_sequence + 2);
    MOEC_TRY(moec_trial_open(&s->trial, MOEC_PART_CERTIFICATE, err));
    /* No test: what the bundle loses with all neurons, to be shown beside the plan. */
    MOEC_TRY(moec_trial_measure(&s->trial, &plain, err));
    MOEC_TRY(test_all(s, &first, &n_passed, err));
    plan->plain_loss = plain.loss;
    plan->plain_low = plain.low;
    plan->plain_high = plain.high;
    if (n_passed == 0) {
        const struct moec_trial_missed missed = {"sparsity plan", name_test(s, 0), &first, "With all neurons",
                                                 &plain};
        return moec_trial_refuse(&s->trial, &missed, err);
    }
    s->report->is_reused = moec_trial_is_reused(&s->trial, &plan->certificate);
    return MOEC_OK;
}

enum moec_status moec_sparsify(const struct moec_trial_inputs *inputs,
                               const struct moec_sparsify_options *options,
                               const struct moec_progress *progress, struct moec_sparsify_report *report,
                               struct moec_error *err)
{
    struct sparsify s = {.options = options, .report = report};
    enum moec_status status = MOEC_OK;
    *report = (struct moec_sparsify_report){0};
    moec_trial_init(inputs, &options->trial, progress, &s.trial);
    MOEC_TRY_OUT(moec_sparsity_check_config(inputs->bundle->config, err));
    MOEC_TRY_OUT(moec_sparsity_plan_create(inputs->bundle->config, options->by, &report->plan, err));
    MOEC_TRY_OUT(search(&s, err));
    make_sequence(&s);
    if (report->n_sequence == 0)
        status = refuse_search(&s, err);
    else
        status = certify(&s, err);
out:
    moec_trial_close(&s.trial);
    moec_sparsity_free(s.sparsity);
    moec_sparsity_fit_free(s.fit);
    return status;
}

void moec_sparsify_report_release(struct moec_sparsify_report *report)
{
    moec_sparsity_plan_release(&report->plan);
}
