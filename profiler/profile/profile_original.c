/* The original as a phase of a profile: its routing, the studies of routers, and its losses. */
#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/evaluate/chance.h"
#include "profiler/evaluate/cost.h"
#include "profiler/profile/profile_job.h"
#include "profiler/routing/path_study.h"
#include "profiler/routing/routing.h"
#include "profiler/routing/score_study.h"

#include <inttypes.h>
#include <string.h>

/* The reference is evaluated in every run: other phases need its hidden states. That it gives the bits that
 * the run before got shows that both compute alike. */
static enum moec_status check_reference(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile *profile = job->profile;
    const size_t n_bytes = profile->n_window * sizeof(double);
    enum moec_status status = MOEC_OK;
    double *before = NULL;
    bool found = false;
    uint64_t cost = 0; /* 0: this run's own counts */
    const struct moec_unit_part now = {profile->reference.nll, n_bytes};
    MOEC_TRY(moec_alloc((void **)&before, profile->n_window, sizeof *before, "window losses", err));
    const struct moec_unit_part then = {before, n_bytes};
    MOEC_TRY_OUT(moec_unit_find(job->units, &(struct moec_unit){"original", &then, 1}, &cost, &found, err));
    if (!found)
        MOEC_TRY_OUT(moec_unit_keep(job->units, &(struct moec_unit){"original", &now, 1},
                                    moec_scorer_multiply_adds(job->scorer), err));
    else if (memcmp(before, profile->reference.nll, n_bytes) != 0)
        status = moec_fail(err, MOEC_ERR_MISMATCH,
                           "the losses of the original model differ from those recorded in the journal "
                           "'%s': another build or a faulty machine computed them; delete the journal to "
                           "start over",
                           job->options->journal.path);
out:
    free(before);
    return status;
}

/* A journal is a file: what says which array element is meant is looked at before it is used. */
static enum moec_status check_trace(const struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile *profile = job->profile;
    const uint64_t n = profile->n_trace_token * profile->n_moe_layer * profile->top_k;
    const bool may_be_none = job->windows.source != NULL || moec_config_has_passed(job->config);
    for (uint64_t i = 0; i < n; i++)
        if (profile->trace_experts[i] >= profile->n_expert &&
            (!may_be_none || profile->trace_experts[i] != MOEC_PROFILE_NO_EXPERT))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the journal '%s' has a route to expert %u, but there are only %" PRIu32
                             " experts; delete the journal to start over",
                             job->options->journal.path, (unsigned)profile->trace_experts[i],
                             profile->n_expert);
    return MOEC_OK;
}

struct routing_parts {
    struct moec_unit_part parts[5];
    uint32_t n;
};

static struct routing_parts routing_parts(const struct moec_profile *profile,
                                          const struct moec_router_results *results)
{
    const uint64_t n_expert = (uint64_t)profile->n_moe_layer * profile->n_expert;
    const uint64_t n_choice = profile->n_trace_token * profile->n_moe_layer * profile->top_k;
    return (struct routing_parts){{{profile->trace_experts, n_choice * sizeof *profile->trace_experts},
                                   {profile->trace_weights, n_choice * sizeof *profile->trace_weights},
                                   {profile->activations, n_expert * sizeof *profile->activations},
                                   {profile->mean_gate_weight, n_expert * sizeof *profile->mean_gate_weight},
                                   {results->values, results->n_value * sizeof *results->values}},
                                  5};
}

static const char routing_key[] = "routing by path and gate";

/* Takes the routing that an interrupted run left, if it did. */
static enum moec_status find_routing(struct moec_profile_job *job, struct moec_router_results *results,
                                     bool *found, struct moec_error *err)
{
    const struct routing_parts kept = routing_parts(job->profile, results);
    MOEC_TRY(moec_unit_find(job->units, &(struct moec_unit){routing_key, kept.parts, kept.n},
                            &job->multiply_adds, found, err));
    return *found ? check_trace(job, err) : MOEC_OK;
}

/* Windows through all layers: where tokens go, and the hidden states that give the original's losses. */
static enum moec_status trace_routing(struct moec_profile_job *job, struct moec_router_results *results,
                                      struct moec_states *hidden, uint64_t *cost, struct moec_error *err)
{
    const struct moec_profile_options *options = job->options;
    struct moec_profile *profile = job->profile;
    struct moec_routing routing = {.experts = profile->trace_experts,
                                   .weights = profile->trace_weights,
                                   .activations = profile->activations,
                                   .mean_gate_weight = profile->mean_gate_weight,
                                   .results = results,
                                   .hidden = hidden,
                                   .ranks = options->by.ranks};
    MOEC_TRY(moec_routing_run(&(struct moec_runner){job->model, moec_variants_experts(job->variants),
                                                    options->by.kernels, options->by.n_threads},
                              &job->windows, &routing, options->progress, err));
    *cost = routing.multiply_adds;
    job->multiply_adds += routing.multiply_adds;
    return MOEC_OK;
}

static enum moec_status study_routing(struct moec_profile_job *job, struct moec_router_results *results,
                                      struct moec_error *err)
{
    MOEC_TRY(moec_router_results_add(results, job->profile, err));
    MOEC_TRY(moec_score_study_run(job->profile, err));
    return moec_path_study_run(job->profile, results->gate_recall, &results->path_gate, err);
}

/* Whether something is measured against the original: that needs its hidden states, not only its losses. */
static bool needs_original(const struct moec_profile_job *job)
{
    return job->profile->n_uniform > 0 || job->options->measures.sensitivity != MOEC_SENSITIVITY_NONE ||
           job->options->measures.studies != 0 || job->profile->quantizer == MOEC_QUANTIZER_AUTO;
}

/* Before its losses are kept, so that a journal which began with them is removed. */
static enum moec_status check_chance(const struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_profile *profile = job->profile;
    const struct moec_chance chance = {.original = moec_profile_perplexity(
                                           profile->reference.nll, profile->window_scored, profile->n_window),
                                       .guessing = profile->config.n_vocab,
                                       .data_name = profile->data_name};
    char note[MOEC_CHANCE_NOTE_BYTES];
    MOEC_TRY(moec_chance_check(&chance, job->options->data.goes_on_by_chance, note, err));
    if (note[0] != '\0')
        moec_progress_note(job->options->progress, "%s", note);
    return MOEC_OK;
}

/* The losses of the original from its last hidden states, or, where an interrupted run has the routing
 * already, from a pass of its own: later phases need these states. */
static enum moec_status score_original(struct moec_profile_job *job, struct moec_states *hidden,
                                       struct moec_error *err)
{
    double *nll = job->profile->reference.nll;
    if (hidden->rows != NULL)
        return moec_scorer_take_reference(job->scorer, hidden, nll, job->options->progress, err);
    MOEC_TRY(moec_scorer_set_reference(job->scorer, job->model, moec_variants_experts(job->variants), nll,
                                       job->options->progress, err));
    job->repeated_multiply_adds = moec_cost_layers(job->config, &job->windows);
    return MOEC_OK;
}

/* The original's routing and losses, in one pass; what the journal has of both is taken. */
static enum moec_status measure_both(struct moec_profile_job *job, struct moec_router_results *results,
                                     struct moec_error *err)
{
    const uint64_t start_ns = moec_now_ns();
    struct moec_states hidden = {0};
    uint64_t cost = 0;
    bool has_routing = false;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_variants_assign_all(job->variants, moec_variants_source_bits(job->variants), err));
    MOEC_TRY_OUT(find_routing(job, results, &has_routing, err));
    if (!has_routing)
        MOEC_TRY_OUT(trace_routing(job, results, &hidden, &cost, err));
    MOEC_TRY_OUT(score_original(job, &hidden, err));
    job->seconds_per_multiply_add =
        1e-9 * (double)(moec_now_ns() - start_ns) / (double)(cost + moec_scorer_multiply_adds(job->scorer));
    MOEC_TRY_OUT(check_chance(job, err));
    MOEC_TRY_OUT(check_reference(job, err));
    if (!has_routing) {
        const struct routing_parts kept = routing_parts(job->profile, results);
        MOEC_TRY_OUT(
            moec_unit_keep(job->units, &(struct moec_unit){routing_key, kept.parts, kept.n}, cost, err));
    }
out:
    moec_states_release(&hidden);
    return status;
}

enum moec_status moec_job_measure_original(struct moec_profile_job *job, struct moec_error *err)
{
    const struct moec_unit_part losses = {job->profile->reference.nll,
                                          job->profile->n_window * sizeof(double)};
    struct moec_router_results results = {0};
    enum moec_status status = MOEC_OK;
    bool has_losses = false, has_routing = false;
    MOEC_TRY_OUT(moec_router_results_create(job->config, &results, err));
    if (!needs_original(job))
        MOEC_TRY_OUT(moec_unit_find(job->units, &(struct moec_unit){"original", &losses, 1},
                                    &job->multiply_adds, &has_losses, err));
    if (has_losses)
        MOEC_TRY_OUT(find_routing(job, &results, &has_routing, err));
    if (has_routing) {
        MOEC_TRY_OUT(check_chance(job, err));
    } else {
        MOEC_TRY_OUT(measure_both(job, &results, err));
        if (has_losses)
            job->repeated_multiply_adds += moec_scorer_multiply_adds(job->scorer);
    }
    MOEC_TRY_OUT(study_routing(job, &results, err));
out:
    moec_router_results_release(&results);
    return status;
}
