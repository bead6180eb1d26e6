/* Answers the policy's questions and judges its result. A policy is never believed: size and loss of what
 * it returns are measured here again. The selection part is opened for one question and closed, and the
 * search part stays open throughout. For one plan the search part decides; of a sequence only the
 * certificate does. */
#include "compiler/compile/compile_search.h"

#include "compiler/compile/compile_decide.h"
#include "compiler/compile/compile_dense_plan.h"
#include "compiler/compile/compile_note.h"
#include "compiler/compile/compile_offer.h"
#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_scope.h"
#include "compiler/compile/compile_sequence.h"
#include "compiler/compile/compile_stages.h"
#include "compiler/compile/compile_wanted.h"
#include "compiler/compile/compile_windows.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>

/* The part is open only for this: a search looks at it once or twice. */
static enum moec_status evaluate_select(struct moec_compile_run *run, const struct moec_plan *plan,
                                        struct moec_evaluation *out, struct moec_error *err)
{
    struct moec_compile_part part = {0};
    struct moec_loss loss;
    enum moec_status status = moec_compile_part_open(run, MOEC_PART_SELECT, &part, err);
    if (status == MOEC_OK)
        status = moec_compile_part_measure(run, &part, plan, &loss, err);
    moec_compile_part_release(&part);
    MOEC_TRY(status);
    run->select_loss = loss;
    *out = moec_compile_evaluation(run, &loss);
    MOEC_TRY(moec_compile_windows_expect(run, &out->n_certificate, err));
    return moec_compile_note(run, MOEC_TRACE_SELECT, plan, &loss, false, err);
}

static enum moec_status answer_evaluate(void *context, const struct moec_plan *plan, enum moec_part part,
                                        struct moec_evaluation *out, struct moec_error *err)
{
    struct moec_compile_run *run = context;
    run->n_asked++;
    moec_compile_begin(run, MOEC_STAGE_SEARCH);
    if (part == MOEC_PART_SELECT)
        return evaluate_select(run, plan, out, err);
    MOEC_TRY(moec_compile_part_measure(run, &run->search, plan, &run->search_loss, err));
    if (run->safest.n_window == 0 || run->search_loss.high < run->safest.high)
        run->safest = run->search_loss;
    *out = moec_compile_evaluation(run, &run->search_loss);
    MOEC_TRY(moec_compile_windows_expect(run, &out->n_certificate, err));
    return moec_compile_note(run, MOEC_TRACE_SEARCH, plan, &run->search_loss, false, err);
}

/* Experts that the source has as codes stay so wherever that is no larger than what the plan gives them: it
 * loses nothing. */
static void settle_plan(void *context, struct moec_plan *plan)
{
    const struct moec_compile_run *run = context;
    const struct moec_codec source = run->codecs[16];
    const size_t n_embd = moec_checkpoint_config(run->checkpoint)->n_embd,
                 n_bytes = moec_codec_row_bytes(source, n_embd);
    for (size_t i = 0; moec_codec_traits(source)->is_exact && i < moec_plan_count(plan); i++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
            if (moec_codec_row_bytes(run->codecs[plan->experts[i].codecs[p]], n_embd) >= n_bytes)
                plan->experts[i].codecs[p] = 16;
}

static void pass_log(void *context, const char *line)
{
    const struct moec_compile_run *run = context;
    if (run->hooks != NULL && run->hooks->log != NULL)
        run->hooks->log(run->hooks->context, line);
}

#define NO_WINDOWS                                                                                           \
    "the loss itself is not below the target, so more windows do not help: ask for --max-loss %.3f%% or more"

/* In percent, rounded up: a target that is printed must be one that is met. */
static double reachable(const struct moec_loss *loss)
{
    return ceil(1e5 * loss->loss) / 1e3;
}

/* The policy found nothing within the loss target: its reason goes on with the safest that it measured. */
static enum moec_status explain_miss(const struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_loss *loss = &run->safest;
    struct moec_error reason = *err;
    *err = (struct moec_error){0};
    return moec_fail(err, MOEC_ERR_TARGET,
                     "%s; the safest assignment measured has a loss of %.3f%% (upper bound "
                     "%.3f%%) on the search part, but the target is %.3f%%: " NO_WINDOWS,
                     reason.message, 100 * loss->loss, 100 * loss->high, 100 * run->options->target.max_loss,
                     reachable(loss));
}

static enum moec_status run_policy(struct moec_compile_run *run, struct moec_error *err)
{
    const struct moec_compile_options *options = run->options;
    struct moec_candidate_rules rules;
    MOEC_TRY(moec_compile_rules(run, &rules, err));
    struct moec_policy_request request = {
        .policy = options->search.policy,
        .config = moec_checkpoint_config(run->checkpoint),
        .profile = run->profile,
        .target = {.max_loss = options->target.max_loss,
                   .max_bytes = options->target.max_bytes,
                   .pair_share = options->search.pair_share,
                   .loss_tolerance = options->search.loss_tolerance},
        .given.bits = options->search.bits,
        .rules = run->profile != NULL && run->rows == NULL ? &rules : NULL,
        .limits = {.seed = options->search.seed,
                   .max_evaluations = MOEC_POLICY_MAX_EVALUATIONS,
                   .guest = moec_guest_limits_default},
        .answers = {.ops = {.settle = settle_plan,
                            .evaluate = answer_evaluate,
                            .decide = moec_compile_decide,
                            .size = moec_compile_size,
                            .variants = options->search.offers_variants ? moec_compile_variants : NULL,
                            .log = pass_log},
                    .context = run},
    };
    for (uint32_t part = 0; run->profile != NULL && part < MOEC_PART_COUNT; part++)
        request.given.n_part_window[part] = moec_compile_part_count(run, (enum moec_part)part);
    run->safest = run->search_loss = run->select_loss = (struct moec_loss){0};
    run->n_certify = 0;
    struct moec_policy_answer answer;
    moec_compile_candidates_release(&run->candidates);
    enum moec_status status = moec_policy_run(&request, &answer, err);
    if (status == MOEC_OK) {
        status = moec_compile_candidates_start(run, &answer, err);
        answer.plans[answer.n_plan - 1].dense_bits = run->report->plan.dense_bits;
        moec_plan_copy(&run->report->plan, &answer.plans[answer.n_plan - 1]);
        run->report->n_evaluations = answer.n_evaluations;
    }
    moec_policy_answer_release(&answer);
    /* Ctrl-C reaches the policy's process too: its death is then no fault of the script. */
    if (status == MOEC_ERR_SCRIPT && moec_compile_is_cancelled(run)) {
        if (err != NULL)
            *err = (struct moec_error){0};
        status = moec_fail(err, MOEC_ERR_CANCELLED, "search: stopped; nothing was written");
    }
    if (status == MOEC_ERR_TARGET && err != NULL && run->safest.n_window > 0 &&
        !moec_compile_meets(run, &run->safest))
        return explain_miss(run, err);
    MOEC_TRY(status);
    MOEC_TRY(moec_compile_size(run, &run->report->plan, &run->report->n_bytes, err));
    if (options->target.max_bytes > 0 && run->report->n_bytes > options->target.max_bytes)
        return moec_fail(err, MOEC_ERR_TARGET,
                         "policy '%s' gave a bundle of %" PRIu64 " bytes, more than --max-size of %" PRIu64,
                         options->search.policy, run->report->n_bytes, options->target.max_bytes);
    return MOEC_OK;
}

/* The search part decides whether an assignment is accepted, whatever the policy believes. */
static enum moec_status confirm(struct moec_compile_run *run, struct moec_error *err)
{
    MOEC_TRY(moec_compile_part_measure(run, &run->search, &run->report->plan, &run->search_loss, err));
    const struct moec_loss *loss = &run->search_loss;
    MOEC_TRY(moec_compile_note(run, MOEC_TRACE_SEARCH, &run->report->plan, loss, false, err));
    /* Of a sequence only the certificate decides: its first plans are safer. */
    if (!moec_compile_meets(run, loss) && run->candidates.n <= 1)
        return moec_fail(err, MOEC_ERR_TARGET,
                         "policy '%s' gave an assignment with a loss of %.3f%% (upper bound "
                         "%.3f%%) on the search part, but the target is %.3f%%: " NO_WINDOWS,
                         run->options->search.policy, 100 * loss->loss, 100 * loss->high,
                         100 * run->options->target.max_loss, reachable(loss));
    return MOEC_OK;
}

enum moec_status moec_compile_search(struct moec_compile_run *run, struct moec_error *err)
{
    if (run->profile != NULL && !run->search.is_open)
        MOEC_TRY(moec_compile_part_open(run, MOEC_PART_SEARCH, &run->search, err));
    run->n_asked = 0;
    moec_compile_begin(run, run->options->search.offers_variants && !run->offer.is_made ? MOEC_STAGE_HARM
                                                                                        : MOEC_STAGE_SEARCH);
    MOEC_TRY(run_policy(run, err));
    if (run->profile == NULL ||
        (run->most_loss > 0 && run->candidates.n > 1)) /* drafts are measured by those who compare */
        return MOEC_OK;
    return confirm(run, err);
}

/* ---- for comparison ---- */

static enum moec_status measure_at(struct moec_compile_run *run, uint32_t bits, struct moec_plan *plan,
                                   struct moec_error *err)
{
    struct moec_loss loss;
    uint64_t n_bytes = 0;
    moec_plan_copy(plan, &run->report->plan);
    moec_plan_fill(plan, bits);
    if (moec_search_trace_uniform(&run->report->trace, bits, &run->report->trace.chosen) != NULL)
        return MOEC_OK;
    MOEC_TRY(moec_compile_part_measure(run, &run->search, plan, &loss, err));
    MOEC_TRY(moec_compile_note(run, MOEC_TRACE_SEARCH, plan, &loss, true, err));
    MOEC_TRY(moec_compile_size(run, plan, &n_bytes, err));
    moec_compile_say(run,
                     "for comparison: all experts at %" PRIu32 " bits: %" PRIu64
                     " bytes, loss %.3f%% (upper bound %.3f%%)",
                     bits, n_bytes, 100 * loss.loss, 100 * loss.high);
    return MOEC_OK;
}

enum moec_status moec_compile_measure_uniform(struct moec_compile_run *run, struct moec_error *err)
{
    static const uint32_t widths[] = {2, 3, 4, 8};
    struct moec_plan plan = {0};
    enum moec_status status = MOEC_OK;
    if (!run->search.is_open)
        MOEC_TRY_OUT(moec_compile_part_open(run, MOEC_PART_SEARCH, &run->search, err));
    MOEC_TRY_OUT(moec_plan_create(&plan, moec_checkpoint_config(run->checkpoint), err));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        MOEC_TRY_OUT(measure_at(run, widths[i], &plan, err));
out:
    moec_plan_release(&plan);
    return status;
}

/* The codes that most experts have. */
static enum moec_status find_most_frequent(const struct moec_plan *plan, struct moec_variant *most,
                                           struct moec_error *err)
{
    uint32_t *counts = NULL, n_most = 0;
    const uint64_t n = (uint64_t)MOEC_CODEC_TABLE * MOEC_CODEC_TABLE * MOEC_CODEC_TABLE;
    MOEC_TRY(moec_alloc((void **)&counts, n, sizeof *counts, "counts of codes", err));
    for (size_t i = 0; i < moec_plan_count(plan); i++) {
        const uint8_t *codecs = plan->experts[i].codecs;
        const size_t at = ((size_t)codecs[0] * MOEC_CODEC_TABLE + codecs[1]) * MOEC_CODEC_TABLE + codecs[2];
        if (++counts[at] > n_most) {
            n_most = counts[at];
            *most = plan->experts[i];
        }
    }
    free(counts);
    return MOEC_OK;
}

enum moec_status moec_compile_measure_alike(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_plan plan = {0};
    struct moec_loss loss;
    struct moec_variant most;
    enum moec_status status = MOEC_OK;
    if (run->rows != NULL || run->report->trace.chosen.is_alike) /* generating text takes long */
        return MOEC_OK;
    MOEC_TRY(find_most_frequent(&run->report->plan, &most, err));
    if (!run->search.is_open)
        MOEC_TRY(moec_compile_part_open(run, MOEC_PART_SEARCH, &run->search, err));
    MOEC_TRY(moec_plan_create(&plan, moec_checkpoint_config(run->checkpoint), err));
    moec_plan_copy(&plan, &run->report->plan);
    for (size_t i = 0; i < moec_plan_count(&plan); i++)
        plan.experts[i] = most;
    if (!moec_compile_is_fitted(run, &plan))
        goto out;
    MOEC_TRY_OUT(moec_compile_part_measure(run, &run->search, &plan, &loss, err));
    status = moec_compile_note(run, MOEC_TRACE_SEARCH, &plan, &loss, true, err);
out:
    moec_plan_release(&plan);
    return status;
}
