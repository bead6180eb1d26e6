/* A search over the KL that a plan may spend. The first budget is predicted, the next scaled by what was
 * measured. Once one budget met the target and another missed it, their geometric mean is tried. Of attempts,
 * one that meets the target beats one that misses it, then the smaller. Targets are searched one by one, and
 * every attempt is a unit of the journal. */
#include "profiler/profile/mixed.h"

#include "formats/base/memory.h"
#include "profiler/profile/loss_study.h"
#include "profiler/profile/mixed_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const double moec_mixed_targets[MOEC_MIXED_TARGETS] = {0.01, 0.02, 0.05};

#define SLACK 0.1 /* part of the target that may stay unspent */

/* One plan for a target, and what measuring it said. */
struct attempt {
    struct moec_mixed_plan plan;
    double loss; /* measured; NaN when not */
};

struct mixed {
    struct moec_profile_job *job;
    struct moec_mixed_model model;
    struct moec_measure measure; /* owned */
    struct moec_loss_study losses;
    struct moec_study shape; /* of arrays over targets */
    double predicted[MOEC_MIXED_TARGETS], bytes[MOEC_MIXED_TARGETS], uniform_bits[MOEC_MIXED_TARGETS],
        uniform_bytes[MOEC_MIXED_TARGETS], blind_bytes[MOEC_MIXED_TARGETS];
    double *assignments; /* (targets, S x E), owned */
    uint32_t n_pass;
    bool measures; /* plans, not only predicts them */
};

static enum moec_status open(struct mixed *m, struct moec_error *err)
{
    const struct moec_profile *profile = m->job->profile;
    m->shape = (struct moec_study){
        .n_axis = 1,
        .axes = {
            {.name = "target", .n = MOEC_MIXED_TARGETS, .values = (double *)(uintptr_t)moec_mixed_targets}}};
    struct moec_study losses = m->shape;
    (void)snprintf(losses.name, sizeof losses.name, "mixed/loss");
    (void)snprintf(
        losses.description, sizeof losses.description,
        "the smallest mixed assignment found for this loss, measured; NaN where it was only predicted");
    MOEC_TRY(moec_mixed_model_make(profile, &m->model, err));
    MOEC_TRY(moec_loss_study_create(&losses, &m->losses, err));
    MOEC_TRY(moec_alloc((void **)&m->assignments, (uint64_t)MOEC_MIXED_TARGETS * m->model.n_expert,
                        sizeof(double), "mixed assignments", err));
    MOEC_TRY(moec_alloc((void **)&m->measure.nll, profile->n_window, sizeof(double), "window losses", err));
    MOEC_TRY(moec_alloc((void **)&m->measure.kl, profile->n_window, sizeof(double), "window losses", err));
    m->measures = profile->sensitivity != MOEC_SENSITIVITY_FAST;
    return MOEC_OK;
}

static void release(struct mixed *m)
{
    moec_mixed_model_release(&m->model);
    moec_loss_study_release(&m->losses);
    free(m->measure.nll);
    free(m->measure.kl);
    free(m->assignments);
}

/* ---- one target ---- */

static enum moec_status measure(struct mixed *m, uint32_t target, uint32_t number, struct attempt *attempt,
                                struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    (void)snprintf(key, sizeof key, "mixed/%" PRIu32 "/%" PRIu32, target, number);
    MOEC_TRY(moec_variants_assign(m->job->variants, attempt->plan.assignment, err));
    MOEC_TRY(moec_job_score(m->job, key, &m->measure, err));
    attempt->loss = moec_profile_loss(m->job->profile, m->measure.nll);
    m->n_pass++;
    return MOEC_OK;
}

/* Whether `a` is the better answer to the target: one that meets it goes before one that does not, then the
 * smaller one, and of those that miss it the later. */
static bool is_better(const struct attempt *a, const struct attempt *b, double target)
{
    const bool meets = a->loss <= target, other = b->loss <= target;
    if (meets != other)
        return meets;
    return !meets || a->plan.n_bytes < b->plan.n_bytes;
}

static enum moec_status keep(struct mixed *m, uint32_t target, const struct attempt *attempt,
                             struct moec_error *err)
{
    for (uint32_t i = 0; i < m->model.n_expert; i++)
        m->assignments[(size_t)target * m->model.n_expert + i] = attempt->plan.assignment[i];
    m->bytes[target] = (double)attempt->plan.n_bytes;
    m->predicted[target] = moec_mixed_loss(&m->model, attempt->plan.kl);
    if (!isnan(attempt->loss))
        MOEC_TRY(moec_loss_study_set(&m->losses, target, m->job->profile, &m->measure, err));
    const double kl = isnan(attempt->loss) ? attempt->plan.kl : m->losses.kl[target];
    m->blind_bytes[target] = moec_mixed_blind_bytes(&m->model, kl);
    return MOEC_OK;
}

/* KL to spend next: corrected by what was measured, or between a budget that met the target and one that
 * missed it. */
struct search {
    double budget;
    double met, missed; /* the largest that met it, the smallest that missed it; NaN before */
};

static void correct(struct search *search, double target, double loss)
{
    if (loss <= target)
        search->met = search->met > search->budget ? search->met : search->budget;
    else
        search->missed = search->missed < search->budget ? search->missed : search->budget;
    if (search->met < search->missed)
        search->budget = sqrt(search->met * search->missed);
    else /* a little under the target, so that a miss is not repeated by a hair */
        search->budget *= log1p(target) / log1p(loss) * (1 - SLACK / 5);
}

static enum moec_status plan_target(struct mixed *m, uint32_t target, struct moec_error *err)
{
    const double loss = moec_mixed_targets[target];
    struct search search = {.budget = moec_mixed_kl(&m->model, loss), .met = NAN, .missed = NAN};
    struct attempt best = {.loss = NAN}, now = {.loss = NAN};
    enum moec_status status = MOEC_OK;
    for (uint32_t number = 0; number < MOEC_MIXED_ATTEMPTS; number++) {
        MOEC_TRY_OUT(moec_mixed_plan(&m->model, search.budget, &now.plan, err));
        if (number > 0 && memcmp(now.plan.assignment, best.plan.assignment, m->model.n_expert) == 0)
            break;
        now.loss = NAN;
        if (m->measures)
            MOEC_TRY_OUT(measure(m, target, number, &now, err));
        const double measured = now.loss;
        if (number == 0 || is_better(&now, &best, loss)) {
            MOEC_TRY_OUT(keep(m, target, &now, err));
            moec_mixed_plan_release(&best.plan);
            best = now;
            now.plan = (struct moec_mixed_plan){0};
        }
        moec_mixed_plan_release(&now.plan);
        if (!(measured > 0) || (measured <= loss && measured >= (1 - SLACK) * loss))
            break;
        correct(&search, loss, measured);
    }
out:
    moec_mixed_plan_release(&now.plan);
    moec_mixed_plan_release(&best.plan);
    return status;
}

/* The smallest measured uniform bitwidth whose loss is within the target. */
static void choose_uniform(struct mixed *m, uint32_t target)
{
    m->uniform_bits[target] = m->uniform_bytes[target] = NAN;
    for (uint32_t o = m->model.n_option; o-- > 0;)
        if (m->model.loss[o] <= moec_mixed_targets[target]) {
            m->uniform_bits[target] = m->model.bits[o];
            m->uniform_bytes[target] = (double)m->model.record_bytes[o] * m->model.n_expert;
        }
}

/* ---- the study ---- */

static enum moec_status add(const struct mixed *m, const char *name, const char *units,
                            const char *description, double *values, struct moec_error *err)
{
    struct moec_study study = m->shape;
    (void)snprintf(study.name, sizeof study.name, "mixed/%s", name);
    (void)snprintf(study.units, sizeof study.units, "%s", units);
    (void)snprintf(study.description, sizeof study.description, "%s", description);
    study.values = values;
    return moec_profile_add_study(m->job->profile, &study, NULL, err);
}

static enum moec_status add_all(struct mixed *m, struct moec_error *err)
{
    struct moec_profile *profile = m->job->profile;
    double passes = m->n_pass;
    MOEC_TRY(moec_loss_study_add(&m->losses, profile, err));
    MOEC_TRY(add(m, "predicted_loss", "", "what the assignment was predicted to lose", m->predicted, err));
    MOEC_TRY(add(m, "bytes", "byte", "all expert records of the assignment, without padding", m->bytes, err));
    MOEC_TRY(add(m, "uniform_bits", "bit", "smallest uniform bitwidth measured within this loss",
                 m->uniform_bits, err));
    MOEC_TRY(add(m, "uniform_bytes", "byte", "all expert records at that bitwidth", m->uniform_bytes, err));
    MOEC_TRY(add(m, "blind_bytes", "byte",
                 "what bitwidths mixed regardless of sensitivity are predicted to need for the same KL",
                 m->blind_bytes, err));
    m->shape.n_axis = 0;
    MOEC_TRY(add(m, "passes", "pass", "whole evaluations that these measurements took", &passes, err));
    m->shape.n_axis = 3;
    m->shape.axes[1] = (struct moec_study_axis){.name = "moe_layer", .n = profile->n_moe_layer};
    m->shape.axes[2] = (struct moec_study_axis){.name = "expert", .n = profile->n_expert};
    return add(m, "assignment", "bit", "bitwidth of each expert", m->assignments, err);
}

static enum moec_status run(struct mixed *m, struct moec_error *err)
{
    MOEC_TRY(open(m, err));
    for (uint32_t target = 0; target < MOEC_MIXED_TARGETS; target++)
        choose_uniform(m, target);
    for (uint32_t target = 0; target < MOEC_MIXED_TARGETS; target++)
        MOEC_TRY(plan_target(m, target, err));
    return add_all(m, err);
}

enum moec_status moec_mixed_measure(struct moec_profile_job *job, struct moec_error *err)
{
    struct mixed m = {.job = job};
    const enum moec_status status = run(&m, err);
    release(&m);
    return status;
}
