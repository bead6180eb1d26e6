/* A search by a policy (compiler/policy/decision_policy.h): it asks for measurements of candidates, and what
 * it returns is tested as what moec tune finds itself. */
#include "compiler/certify/front.h"
#include "compiler/policy/decision_policy.h"
#include "compiler/tune/tune_internal.h"

#include <inttypes.h>

/* Measurements of a policy; beside these there is room for what its answer needs. */
#define MAX_EVALUATIONS 240
_Static_assert(MAX_EVALUATIONS + 2 * MOEC_MAX_SEQUENCE <= MOEC_TUNE_MAX_CANDIDATES, "for plan and plain");
_Static_assert(MOEC_POLICY_MAX_PLANS <= MOEC_MAX_SEQUENCE, "an answer is a sequence");

struct search {
    struct tune *tune;
    struct moec_candidate_rules rules; /* of the bundle that is open */
    bool is_ready;                     /* what there is without decisions was measured */
};

/* ---- measuring ---- */

/* Config and paths are those of the bundle that is open: another draft's are gone. */
static void learn_bundle(struct search *search)
{
    const struct moec_bundle *bundle = search->tune->trial.inputs->bundle->bundle;
    search->rules.config = &bundle->config;
    search->rules.paths = &bundle->paths;
    search->rules.path = bundle->file.path;
}

/* Opens a draft's search part. What there is without decisions is measured first. */
static enum moec_status get_ready(struct search *search, const struct moec_policy_candidate *wanted,
                                  struct moec_error *err)
{
    struct tune *tune = search->tune;
    const struct moec_tune_fit *fit = tune->options->fit;
    if (fit != NULL && fit->n_slots[wanted->draft] == 0)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "policy '%s' asks for draft %" PRIu32
                         ", which does not fit into the memory: leave out drafts whose moec.draft_slots is 0",
                         tune->options->policy, wanted->draft + 1);
    MOEC_TRY(moec_tune_open(tune, wanted->draft, MOEC_PART_SEARCH, err));
    learn_bundle(search);
    moec_trial_expect(&tune->trial, 1, MOEC_TUNE_MAX_TESTS);
    if (fit == NULL && !search->is_ready)
        MOEC_TRY(moec_tune_try_plain(tune, err));
    search->is_ready = true;
    return wanted->left_out > 0 ? moec_tune_fit_sparsity(tune, err) : MOEC_OK;
}

static bool is_of(const struct moec_tune_candidate *candidate, const struct moec_policy_candidate *wanted)
{
    const struct moec_policy_candidate own = {
        .settings = candidate->settings, .draft = candidate->draft, .left_out = candidate->share};
    return moec_policy_candidates_equal(&own, wanted);
}

/* Place among the report's candidates; n_candidate where it is not there. */
static uint32_t find(const struct moec_tune_report *report, const struct moec_policy_candidate *wanted)
{
    uint32_t i = 0;
    while (i < report->n_candidate && !is_of(&report->candidates[i], wanted))
        i++;
    return i;
}

/* A candidate is measured once. `candidate` is the report's. */
static enum moec_status measure(struct search *search, const struct moec_policy_candidate *wanted,
                                uint32_t most, const struct moec_tune_candidate **candidate,
                                struct moec_error *err)
{
    struct tune *tune = search->tune;
    struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *plain = &report->plain[wanted->draft];
    const uint32_t at = find(report, wanted);
    bool is_spent = false;
    *candidate = &report->candidates[at];
    if (at < report->n_candidate)
        return MOEC_OK;
    if (at >= most)
        return moec_fail(err, MOEC_ERR_SCRIPT,
                         "policy '%s' evaluated more than the limit of %" PRIu32 " different candidates",
                         tune->options->policy, most);
    MOEC_TRY(get_ready(search, wanted, err));
    if (is_of(plain, wanted)) {
        *candidate = plain;
        return MOEC_OK;
    }
    return moec_tune_try_next(tune, &wanted->settings, wanted->left_out, &is_spent, err);
}

static enum moec_status evaluate(void *context, const struct moec_policy_candidate *wanted,
                                 struct moec_evaluation *out, struct moec_error *err)
{
    struct search *search = context;
    const struct tune *tune = search->tune;
    const struct moec_tune_candidate *candidate = NULL;
    MOEC_TRY(measure(search, wanted, MAX_EVALUATIONS, &candidate, err));
    *out = (struct moec_evaluation){.loss = candidate->search.loss,
                                    .loss_low = candidate->search.low,
                                    .loss_high = candidate->search.high,
                                    .kl = candidate->search.mean_kl,
                                    .accepted = candidate->search.loss <= tune->options->trial.max_loss,
                                    .has_traffic = true,
                                    .missed_share = moec_decision_missed_share(&candidate->traffic),
                                    .token_misses = candidate->token_misses,
                                    .token_bytes = moec_tune_token_bytes(candidate),
                                    .has_time = tune->options->fit != NULL && !tune->options->fit->by_bytes,
                                    .token_ns = candidate->foretold.token_ns,
                                    .is_read = tune->options->fit != NULL,
                                    .read_bytes = candidate->foretold.read_bytes};
    return MOEC_OK;
}

static void say(void *context, const char *line)
{
    const struct search *search = context;
    moec_trial_say(&search->tune->trial, line);
}

/* ---- its answer ---- */

/* The report of a plan with decisions says what the plan loses alone. */
static enum moec_status measure_alone(struct search *search, uint32_t at, struct moec_error *err)
{
    const struct moec_tune_candidate *candidate = &search->tune->report->candidates[at], *alone = NULL;
    const struct moec_policy_candidate wanted = {.settings =
                                                     search->tune->report->plain[candidate->draft].settings,
                                                 .draft = candidate->draft,
                                                 .left_out = candidate->share};
    if (candidate->share == 0 || !moec_decision_settings_are_on(&candidate->settings))
        return MOEC_OK;
    return measure(search, &wanted, MOEC_TUNE_MAX_CANDIDATES, &alone, err);
}

/* Before the policy's one candidate stand those that it has measured which lose no more and read no less in
 * the same cache. */
static enum moec_status make_ladder(struct search *search, uint32_t last, struct moec_error *err)
{
    const struct tune *tune = search->tune;
    struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *end = &report->candidates[last];
    struct moec_front_point points[MOEC_TUNE_MAX_CANDIDATES];
    uint32_t places[MOEC_TUNE_MAX_CANDIDATES];
    bool is_on_front[MOEC_TUNE_MAX_CANDIDATES] = {false};
    uint32_t n = 0;
    for (uint32_t i = 0; i < report->n_candidate; i++) {
        const struct moec_tune_candidate *candidate = &report->candidates[i];
        const bool does_something =
            candidate->share > 0 || moec_decision_settings_are_on(&candidate->settings);
        if (tune->options->fit == NULL &&
            (!does_something || candidate->settings.n_slots != end->settings.n_slots))
            continue;
        if (candidate->search.loss > end->search.loss ||
            moec_tune_whole(tune, candidate) < moec_tune_whole(tune, end) ||
            !moec_tune_fit_admits(tune, candidate))
            continue;
        points[n] = (struct moec_front_point){moec_tune_whole(tune, candidate), &candidate->search};
        places[n++] = i;
    }
    const struct moec_front_request request = {.points = points,
                                               .n_point = n,
                                               .max_loss = tune->options->trial.max_loss,
                                               .confidence = tune->options->trial.confidence,
                                               .n_search = tune->trial.n_search,
                                               .n_certify = tune->trial.n_certify};
    report->n_sequence = moec_front_choose(&request, is_on_front, report->sequence);
    if (report->n_sequence == 0) {
        char name[MOEC_TUNE_NAME_BYTES];
        return moec_fail(err, MOEC_ERR_TARGET,
                         "policy '%s' gave %s, whose loss is %.3f%% on the search "
                         "part, but the target is %.3f%%; nothing was written",
                         tune->options->policy, moec_tune_name(&end->settings, end->share, name),
                         100 * end->search.loss, 100 * tune->options->trial.max_loss);
    }
    for (uint32_t i = 0; i < report->n_sequence; i++)
        report->sequence[i] = places[report->sequence[i]];
    for (uint32_t i = 0; i < n; i++)
        report->candidates[places[i]].is_on_front = is_on_front[i];
    return MOEC_OK;
}

static enum moec_status take_answer(struct search *search, const struct moec_decision_policy_answer *answer,
                                    struct moec_error *err)
{
    struct moec_tune_report *report = search->tune->report;
    const struct moec_tune_candidate *candidate = NULL;
    for (uint32_t i = 0; i < answer->n; i++) {
        const struct moec_policy_candidate *wanted = &answer->candidates[i];
        if (search->tune->options->fit == NULL && wanted->left_out == 0 &&
            !moec_decision_settings_are_on(&wanted->settings))
            return moec_fail(
                err, MOEC_ERR_SCRIPT,
                "policy '%s' gave a candidate that decides nothing and leaves out no neurons: a candidate "
                "needs route, precision, prefill or left_out",
                search->tune->options->policy);
        MOEC_TRY(measure(search, wanted, MOEC_TUNE_MAX_CANDIDATES, &candidate, err));
        report->sequence[i] = find(report, wanted);
        report->candidates[report->sequence[i]].is_on_front = answer->is_sequence;
    }
    report->n_sequence = answer->n;
    if (!answer->is_sequence)
        MOEC_TRY(make_ladder(search, report->sequence[0], err));
    const uint32_t n = report->n_candidate;
    for (uint32_t i = 0; i < n; i++)
        if (report->candidates[i].is_on_front)
            MOEC_TRY(measure_alone(search, i, err));
    if (answer->is_sequence)
        return MOEC_OK;
    MOEC_TRY(moec_tune_select(search->tune, err));
    if (search->tune->options->fit != NULL)
        moec_tune_fit_complete(search->tune);
    return MOEC_OK;
}

enum moec_status moec_tune_policy(struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_options *options = tune->options;
    struct search search = {.tune = tune,
                            .rules = {.shared = options->shared,
                                      .may_route = moec_tune_has_routes(options),
                                      .may_precise = options->with_precision,
                                      .may_prefill = options->with_prefill,
                                      .may_leave_out = options->with_sparsity,
                                      .n_draft = moec_tune_draft_count(tune),
                                      .draft_slots = options->fit != NULL ? options->fit->n_slots : NULL}};
    const struct moec_decision_policy_request request = {
        .policy = options->policy,
        .rules = &search.rules,
        .max_loss = options->trial.max_loss,
        .n_part_window = {[MOEC_PART_SEARCH] = tune->trial.n_search,
                          [MOEC_PART_SELECT] = tune->trial.n_select,
                          [MOEC_PART_CERTIFICATE] = tune->trial.n_certify},
        .seed = options->seed,
        .limits = moec_guest_limits_default,
        .hooks = {.evaluate = evaluate, .log = say, .context = &search}};
    struct moec_decision_policy_answer answer;
    if (options->fit != NULL)
        MOEC_TRY(moec_tune_fit_try_plain(tune, err));
    learn_bundle(&search);
    MOEC_TRY(moec_decision_policy_run(&request, &answer, err));
    return take_answer(&search, &answer, err);
}
