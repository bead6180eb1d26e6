/* One draft and one part are open at a time. Another draft of the same part takes over what the original
 * gave. Measurements go through the journal first. The order of tests is fixed before the certificate part is
 * read (moec_tune_fix_sequence). What is measured beside the tests is only shown, and decides nothing. */
#include "compiler/tune/tune.h"

#include "compiler/tune/tune_internal.h"
#include "profiler/evaluate/router_record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Of which what routers choose is recorded for a fit: times hardly differ with more, and memory does. */
#define RECORDED_TOKENS 8192u

/* ---- measuring ---- */

static void forget_sparsity(struct tune *tune)
{
    if (tune->trial.measured.scorer != NULL && tune->sparsity != NULL)
        moec_scorer_keep_all(tune->trial.measured.scorer);
    moec_sparsity_free(tune->sparsity);
    tune->sparsity = NULL;
}

enum moec_status moec_tune_open(struct tune *tune, uint32_t draft, enum moec_part part,
                                struct moec_error *err)
{
    if (tune->draft == draft && tune->part == part)
        return MOEC_OK;
    forget_sparsity(tune);
    moec_trial_leave(&tune->trial);
    tune->part = MOEC_PART_ALL;
    if (tune->draft != draft)
        MOEC_TRY(tune->drafts->open(tune->drafts->context, draft, err));
    tune->draft = draft;
    MOEC_TRY(moec_trial_open(&tune->trial, part, err));
    tune->part = part;
    return MOEC_OK;
}

static enum moec_status leave_out(struct tune *tune, uint32_t share, struct moec_error *err)
{
    const struct moec_config *config = tune->trial.inputs->bundle->config;
    forget_sparsity(tune);
    if (share == 0)
        return MOEC_OK;
    if (tune->plan.n_layer == 0)
        MOEC_TRY(moec_sparsity_plan_create(config, MOEC_SPARSITY_BY_NEURON, &tune->plan, err));
    moec_sparsity_fit_plan(tune->sparsity_fit, share, &tune->plan);
    MOEC_TRY(moec_sparsity_create_planned(&tune->plan, config, &tune->sparsity, err));
    return moec_scorer_set_sparsity(tune->trial.measured.scorer, tune->sparsity, err);
}

enum moec_status moec_tune_set_up(struct tune *tune, const struct moec_tune_candidate *candidate,
                                  struct moec_error *err)
{
    const struct moec_bundle *bundle = tune->trial.inputs->bundle->bundle;
    MOEC_TRY(leave_out(tune, candidate->share, err));
    MOEC_TRY(moec_route_from_settings(&candidate->settings, &bundle->config, &bundle->paths,
                                      bundle->file.path, &tune->route, err));
    /* So that all are comparable, what a prompt reads is counted block by block with none of it low too. */
    if (moec_tune_reads_prompts(tune->options) && tune->route.prefill.kind == MOEC_PREFILL_SAME)
        tune->route.prefill = (struct moec_prefill){.kind = MOEC_PREFILL_UNPOPULAR,
                                                    .block_tokens = tune->options->block_tokens};
    return moec_scorer_set_route(tune->trial.measured.scorer, &tune->route, err);
}

/* What was missed and kept since the scorer was set up. */
static void fill_traffic(const struct tune *tune, struct moec_tune_candidate *candidate)
{
    const struct moec_config *config = tune->trial.inputs->bundle->config;
    const struct moec_route_counts counts = moec_scorer_route_counts(tune->trial.measured.scorer);
    candidate->traffic = (struct moec_decision_traffic){
        .n_taken = counts.n_taken,
        .n_missed = counts.n_missed,
        .token_bytes = moec_route_token_bytes(&counts, moec_config_moe_count(config))};
    candidate->token_misses =
        counts.n_position > 0
            ? (double)counts.n_missed * moec_config_moe_count(config) / (double)counts.n_position
            : 0;
    candidate->kept_share = 1;
    if (tune->sparsity == NULL)
        return;
    const struct moec_sparsity_counts kept = moec_sparsity_counts(tune->sparsity);
    if (kept.dense_bytes > 0)
        candidate->kept_share = (double)kept.active_bytes / (double)kept.dense_bytes;
}

/* The scorer's run, with what its routers chose where that is to be foretold of. */
static enum moec_status run(struct tune *tune, struct moec_replay *ran, struct moec_error *err)
{
    const struct moec_source *bundle = tune->trial.inputs->bundle;
    struct moec_router_record *record = NULL;
    struct moec_scorer_variation variation = {0};
    MOEC_TRY(moec_router_record_create(bundle->model, &tune->trial.measured.windows,
                                       tune->options->trial.n_prompt, RECORDED_TOKENS, &record, err));
    variation.watch = moec_router_record_watch(record);
    const enum moec_status status =
        moec_trial_run(&tune->trial, &variation, &tune->trial.measured.losses, err);
    if (status == MOEC_OK)
        moec_router_record_take(record, ran);
    moec_router_record_free(record);
    return status;
}

enum moec_status moec_tune_record(struct tune *tune, const struct moec_tune_candidate *candidate,
                                  struct moec_replay *ran, struct moec_error *err)
{
    MOEC_TRY(moec_tune_open(tune, candidate->draft, MOEC_PART_SEARCH, err));
    MOEC_TRY(moec_tune_set_up(tune, candidate, err));
    return run(tune, ran, err);
}

enum moec_status moec_tune_measure(struct tune *tune, enum moec_part part,
                                   struct moec_tune_candidate *candidate, struct moec_loss *loss,
                                   struct moec_error *err)
{
    const struct moec_tune_fit *fit = part == MOEC_PART_SEARCH ? tune->options->fit : NULL;
    struct moec_replay ran = {0};
    bool found = false;
    MOEC_TRY(moec_tune_find(tune, part, candidate, loss, &found, err));
    if (found)
        return MOEC_OK;
    MOEC_TRY(moec_tune_open(tune, candidate->draft, part, err));
    MOEC_TRY(moec_tune_set_up(tune, candidate, err));
    if (fit == NULL) {
        MOEC_TRY(moec_trial_measure(&tune->trial, loss, err));
        fill_traffic(tune, candidate);
    } else {
        MOEC_TRY(run(tune, &ran, err));
        fill_traffic(tune, candidate);
        const struct moec_foretell_run done = {&candidate->settings, tune->trial.inputs->bundle->model, &ran};
        MOEC_TRY(fit->foretell(fit->context, candidate->draft, &done, &candidate->foretold, err));
        MOEC_TRY(moec_trial_weigh(&tune->trial, loss, err));
    }
    return moec_tune_keep(tune, part, candidate, loss, err);
}

double moec_tune_amount(const struct tune *tune, const struct moec_tune_candidate *candidate)
{
    const struct moec_tune_fit *fit = tune->options->fit;
    return fit == NULL     ? moec_tune_token_bytes(candidate)
           : fit->by_bytes ? candidate->foretold.read_bytes
                           : candidate->foretold.token_ns;
}

uint64_t moec_tune_whole(const struct tune *tune, const struct moec_tune_candidate *candidate)
{
    const double amount = moec_tune_amount(tune, candidate);
    return amount > 1 ? (uint64_t)llround(amount) : 1;
}

/* ---- refusals ---- */

/* The search has found nothing within the target: the certificate part stays unseen. */
static enum moec_status refuse_search(const struct tune *tune, struct moec_error *err)
{
    const struct moec_tune_report *report = tune->report;
    const struct moec_loss *plain = &report->plain[0].search;
    double least = INFINITY;
    for (uint32_t i = 0; i < report->n_candidate; i++)
        least = fmin(least, report->candidates[i].chosen.high);
    if (report->n_candidate == 0)
        least = plain->high;
    if (tune->drafts != NULL)
        return moec_fail(err, MOEC_ERR_TARGET,
                         "no plan of bits with decisions stays within the target of %.3f%% on "
                         "the search and selection parts of the data, so nothing was written: "
                         "ask for --max-loss %.1f%% or more, or compile without decisions",
                         100 * tune->options->trial.max_loss, ceil(1e3 * least) / 10);
    return moec_fail(
        err, MOEC_ERR_TARGET,
        "without decisions, the bundle itself loses %.3f%% on the search part (upper bound with %g%% "
        "confidence: %.3f%%). No decision stays within the target of %.3f%%, so nothing "
        "was written: compile with a smaller --max-loss, or give this command --max-loss %.1f%% or more",
        100 * plain->loss, 100 * tune->options->trial.confidence, 100 * plain->high,
        100 * tune->options->trial.max_loss, ceil(1e3 * least) / 10);
}

static const struct moec_tune_candidate *candidate_of(const struct tune *tune, uint32_t i)
{
    return &tune->report->candidates[tune->report->sequence[i]];
}

static const char *name_test(void *context, uint32_t i)
{
    struct tune *tune = context;
    const struct moec_tune_candidate *candidate = candidate_of(tune, i);
    char name[MOEC_TUNE_NAME_BYTES];
    const char *words = moec_tune_name(&candidate->settings, candidate->share, name);
    if (tune->drafts == NULL)
        (void)snprintf(tune->name, sizeof tune->name, "%s", words);
    else
        (void)snprintf(tune->name, sizeof tune->name, "plan %" PRIu32 ", %s", candidate->draft + 1, words);
    return tune->name;
}

/* ---- the tests ---- */

static enum moec_status measure_test(void *context, uint32_t i, struct moec_loss *loss,
                                     struct moec_error *err)
{
    struct tune *tune = context;
    tune->tested = *candidate_of(tune, i);
    MOEC_TRY(moec_tune_open(tune, tune->tested.draft, MOEC_PART_CERTIFICATE, err));
    return moec_tune_measure(tune, MOEC_PART_CERTIFICATE, &tune->tested, loss, err);
}

static void keep_passed(void *context, uint32_t i)
{
    struct tune *tune = context;
    struct moec_tune_report *report = tune->report;
    report->winner = tune->tested;
    report->after = moec_tune_cost_of(candidate_of(tune, i));
    if (tune->sparsity == NULL)
        return;
    const struct moec_sparsity_counts counts = moec_sparsity_counts(tune->sparsity);
    const struct moec_config *config = tune->trial.inputs->bundle->config;
    tune->plan.traffic = (struct moec_sparsity_traffic){
        .active_share = counts.n_neuron > 0 ? (double)counts.n_active / (double)counts.n_neuron : 0,
        .token_bytes = moec_sparsity_token_bytes(&counts, config, counts.active_bytes),
        .dense_token_bytes = moec_sparsity_token_bytes(&counts, config, counts.dense_bytes)};
}

/* The last that passed becomes the report's winner. */
static enum moec_status test_all(struct tune *tune, struct moec_loss *first, uint32_t *n_passed,
                                 struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_trial_sequence sequence = {.n = report->n_sequence,
                                           .name = name_test,
                                           .measure = measure_test,
                                           .passed = keep_passed,
                                           .context = tune};
    for (uint32_t i = 0; i < sequence.n; i++) {
        sequence.n_bytes[i] = moec_tune_whole(tune, candidate_of(tune, i));
        sequence.search[i] = &candidate_of(tune, i)->chosen;
    }
    return moec_trial_test(&tune->trial, &sequence, first, n_passed, &report->certificate, err);
}

/* ---- what is to be written ---- */

/* What is measured of a candidate on the certificate part beside the tests, to be shown. */
static enum moec_status look(struct tune *tune, struct moec_tune_candidate *candidate, struct moec_loss *loss,
                             struct moec_error *err)
{
    return moec_tune_measure(tune, MOEC_PART_CERTIFICATE, candidate, loss, err);
}

/* What the search part says of a plan alone: each was measured. */
static const struct moec_loss *searched_alone(const struct moec_tune_report *report, uint32_t share)
{
    uint32_t i = 0;
    while (i + 1 < report->n_candidate && (report->candidates[i].share != share ||
                                           moec_decision_settings_are_on(&report->candidates[i].settings)))
        i++;
    return &report->candidates[i].search;
}

/* The winner's plan with its certificate: the one of all where there are no decisions. Else what the plan
 * loses alone, which becomes `without`, as do `plain` and what it missed. */
static enum moec_status fill_plan(struct tune *tune, bool has_decisions, struct moec_tune_candidate *plain,
                                  struct moec_loss *without, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_sparsity_plan *plan = &tune->plan;
    struct moec_tune_candidate alone = *plain;
    const struct moec_sparsity_traffic traffic = plan->traffic;
    alone.share = report->winner.share;
    plan->plain_loss = without->loss;
    plan->plain_low = without->low;
    plan->plain_high = without->high;
    plan->certificate = report->certificate;
    if (has_decisions) {
        MOEC_TRY(look(tune, &alone, without, err));
        moec_trial_certify(&tune->trial, without, searched_alone(report, alone.share), &plan->certificate);
        *plain = alone;
    } else {
        moec_sparsity_fit_plan(tune->sparsity_fit, report->winner.share, plan);
    }
    plan->traffic = traffic;
    report->plan = *plan;
    *plan = (struct moec_sparsity_plan){0};
    return MOEC_OK;
}

/* `plain` is the winner's draft on the certificate part, which loses `without`. */
static enum moec_status fill_winner(struct tune *tune, struct moec_tune_candidate *plain,
                                    struct moec_loss *without, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    const struct moec_tune_candidate *winner = &report->winner;
    const bool has_decisions = moec_decision_settings_are_on(&winner->settings);
    if (winner->share > 0)
        MOEC_TRY(fill_plan(tune, has_decisions, plain, without, err));
    if (has_decisions)
        report->decisions = (struct moec_bundle_decisions){
            .settings = winner->settings,
            .prompt_tokens =
                moec_decision_settings_tell_prompts(&winner->settings) ? tune->options->trial.n_prompt : 0,
            .certificate = report->certificate,
            .plain_loss = without->loss,
            .plain_low = without->low,
            .plain_high = without->high,
            .traffic = winner->traffic,
            .plain_traffic = plain->traffic};
    report->is_reused = moec_trial_is_reused(&tune->trial, &report->certificate);
    return MOEC_OK;
}

static enum moec_status certify(struct tune *tune, struct moec_error *err)
{
    struct moec_tune_report *report = tune->report;
    struct moec_tune_candidate plain = report->plain[candidate_of(tune, 0)->draft];
    struct moec_loss without, first = {0};
    uint32_t n_passed = 0;
    moec_trial_expect(&tune->trial, 0, report->n_sequence + 2);
    if (tune->options->fit != NULL)
        MOEC_TRY(moec_tune_fit_choose_windows(tune, err));
    MOEC_TRY(moec_tune_fix_sequence(tune, err));
    /* No test: what the bundle loses and misses without decisions, to be shown beside them. */
    MOEC_TRY(look(tune, &plain, &without, err));
    MOEC_TRY(test_all(tune, &first, &n_passed, err));
    if (n_passed == 0 && tune->options->fit != NULL &&
        !moec_decision_settings_are_on(&candidate_of(tune, 0)->settings))
        return moec_tune_fit_refuse(tune, &first, err);
    if (n_passed == 0) {
        const struct moec_trial_missed missed = {"decisions", name_test(tune, 0), &first, "Without decisions",
                                                 &without};
        return moec_trial_refuse(&tune->trial, &missed, err);
    }
    if (tune->options->fit != NULL)
        MOEC_TRY(moec_tune_fit_check_winner(tune, n_passed, err));
    report->before = moec_tune_cost_of(&report->plain[0]);
    if (report->winner.draft != plain.draft) {
        plain = report->plain[report->winner.draft];
        MOEC_TRY(look(tune, &plain, &without, err));
    }
    return fill_winner(tune, &plain, &without, err);
}

enum moec_status moec_tune(const struct moec_trial_inputs *inputs, const struct moec_tune_options *options,
                           const struct moec_tune_drafts *drafts, const struct moec_progress *progress,
                           struct moec_tune_report *report, struct moec_error *err)
{
    struct tune tune = {.options = options, .drafts = drafts, .report = report, .part = MOEC_PART_ALL};
    enum moec_status status = MOEC_OK;
    *report = (struct moec_tune_report){.compiled = MOEC_TUNE_NO_DRAFT};
    moec_trial_init(inputs, &options->trial, progress, &tune.trial);
    tune.trial.most_search = tune.trial.most_select = options->fit != NULL ? options->fit->n_search : 0;
    if (drafts != NULL)
        MOEC_TRY_OUT(drafts->open(drafts->context, 0, err));
    MOEC_TRY_OUT(moec_tune_check(&tune, err));
    if (options->policy != NULL) {
        MOEC_TRY_OUT(moec_tune_policy(&tune, err));
    } else {
        MOEC_TRY_OUT(options->fit != NULL ? moec_tune_fit_search(&tune, err) : moec_tune_search(&tune, err));
        MOEC_TRY_OUT(moec_tune_sequence_make(&tune, err));
    }
    if (report->n_sequence == 0)
        status = refuse_search(&tune, err);
    else
        status = certify(&tune, err);
    if (status == MOEC_OK && options->fit != NULL)
        status = moec_tune_fit_look(&tune, err);
out:
    moec_trial_close(&tune.trial);
    moec_sparsity_free(tune.sparsity);
    moec_sparsity_plan_release(&tune.plan);
    moec_sparsity_fit_free(tune.sparsity_fit);
    return status;
}

void moec_tune_report_release(struct moec_tune_report *report)
{
    moec_sparsity_plan_release(&report->plan);
}
