/* The exact sweep is counted from the trace: each variant runs from the first token of its expert to the end.
 * Before there is a trace, the first token is where even and independent choices would put it. Both repeat
 * what sensitivity.c does, and must change with it. */
#include "profiler/profile/profile_cost.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/cost.h"
#include "profiler/profile/codes_study.h"
#include "profiler/profile/mixed.h"
#include "profiler/profile/quantizer_choice.h"
#include "profiler/profile/weight_studies.h"
#include "profiler/sensitivity/fast_sensitivity.h"

#include <math.h>
#include <string.h>

const char *moec_profile_phase_name(enum moec_profile_phase phase)
{
    static const char *const names[MOEC_PHASE_COUNT] = {
        "original", "routing", "quantizers", "whole models", "single experts", "mixed bitwidths", "studies"};
    return names[phase];
}

/* ---- the exact sweep ---- */

/* What one layer's experts have to do with one window: where each is chosen first, and how often. */
struct visits {
    uint32_t *first; /* (E): position, UINT32_MAX = never */
    uint32_t *count; /* (E) */
};

/* Multiply-adds of all variants of one layer's experts on one window, as the exact sweep would do them. */
static uint64_t traced_cost(const struct moec_profile_job *job, uint32_t s, uint32_t w,
                            const uint16_t *choices, const struct visits *visits)
{
    const struct moec_profile *profile = job->profile;
    const uint32_t layer = profile->moe_layers[s], scored = profile->window_scored[w], k = profile->top_k;
    const uint32_t source = moec_profile_source(profile, w);
    const bool is_encoder = moec_config_stack(job->config, layer) == MOEC_STACK_ENCODER;
    const uint32_t begin = is_encoder ? 0 : source, end = is_encoder ? source : source + scored;
    uint64_t cost = 0;
    memset(visits->first, 0xff, profile->n_expert * sizeof *visits->first);
    memset(visits->count, 0, profile->n_expert * sizeof *visits->count);
    for (uint32_t t = begin; t < end; t++) {
        for (uint32_t rank = 0; rank < k; rank++) {
            const uint32_t e = choices[((size_t)t * profile->n_moe_layer + s) * k + rank];
            if (e == MOEC_PROFILE_NO_EXPERT)
                continue;
            visits->first[e] = visits->first[e] == UINT32_MAX ? t - begin : visits->first[e];
            visits->count[e]++;
        }
    }
    for (uint32_t e = 0; e < profile->n_expert; e++) {
        /* In an encoder everything sees the change. */
        const uint32_t first = is_encoder ? 0 : visits->first[e];
        if (visits->count[e] > 0)
            cost += moec_cost_expert(job->config, visits->count[e]) +
                    moec_cost_after_layer(job->config, layer, source, first, scored - first);
    }
    return cost * profile->n_bits;
}

/* The baseline: on all windows, and with traces and heads. */
static uint64_t baseline_cost(const struct moec_profile_job *job)
{
    return moec_cost_pass(job->config, &job->windows) +
           2 * moec_cost_pass(job->config, &job->sensitivity_windows);
}

enum moec_status moec_profile_cost_exact(const struct moec_profile_job *job, uint64_t *out,
                                         struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_profile *profile = job->profile;
    struct visits visits = {0};
    uint64_t cost = baseline_cost(job);
    const uint16_t *choices = profile->trace_experts;
    MOEC_TRY_OUT(
        moec_alloc((void **)&visits.first, profile->n_expert, sizeof(uint32_t), "visits of experts", err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&visits.count, profile->n_expert, sizeof(uint32_t), "visits of experts", err));
    for (uint32_t w = 0; w < profile->n_sensitivity_window; w++) {
        for (uint32_t s = 0; s < profile->n_moe_layer; s++)
            cost += traced_cost(job, s, w, choices, &visits);
        choices += (size_t)moec_profile_traced(profile, w) * profile->n_moe_layer * profile->top_k;
    }
    *out = cost;
out:
    free(visits.first);
    free(visits.count);
    return status;
}

/* The same with even and independent choices. */
static double even_cost(const struct moec_profile_job *job)
{
    const struct moec_profile *profile = job->profile;
    const double part = (double)profile->top_k / (double)profile->n_expert;
    double cost = (double)baseline_cost(job);
    for (uint32_t w = 0; w < profile->n_sensitivity_window; w++) {
        const uint32_t scored = profile->window_scored[w], source = moec_profile_source(profile, w);
        for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
            const uint32_t layer = profile->moe_layers[s];
            const bool is_encoder = moec_config_stack(job->config, layer) == MOEC_STACK_ENCODER;
            const uint32_t n = is_encoder ? source : scored;
            const uint32_t wait = (uint32_t)(1 / part) - 1;
            const uint32_t first = is_encoder ? 0 : wait < scored ? wait : scored;
            const double reached = part < 1 ? 1 - pow(1 - part, n) : 1;
            const uint64_t each = moec_cost_expert(job->config, (uint64_t)ceil(part * n)) +
                                  moec_cost_after_layer(job->config, layer, source, first, scored - first);
            cost += reached * (double)each * profile->n_expert * profile->n_bits;
        }
    }
    return cost;
}

/* ---- all phases ---- */

static double studies_cost(const struct moec_profile_job *job)
{
    double passes = 0;
    for (uint32_t s = 0; s < MOEC_WEIGHT_STUDY_COUNT; s++)
        if (moec_weight_study_wanted((enum moec_weight_study)s, job->options))
            passes += moec_weight_study_passes((enum moec_weight_study)s, job->config, job->options);
    return passes;
}

/* Whole models that are neither the baseline nor measured to choose a quantizer. */
static uint32_t count_whole(const struct moec_profile *profile)
{
    uint32_t n = 0;
    for (uint32_t u = 0; u < profile->n_uniform; u++)
        n += profile->uniform_bits[u] != profile->baseline_bits &&
             !(profile->quantizer == MOEC_QUANTIZER_AUTO && profile->uniform_bits[u] < 16);
    return n;
}

void moec_profile_cost_estimate(const struct moec_profile_job *job, struct moec_profile_cost *cost)
{
    const struct moec_profile *profile = job->profile;
    const double pass = (double)moec_cost_pass(job->config, &job->windows),
                 shared = (double)moec_cost_layers(job->config, &job->windows) / pass,
                 fast = (double)moec_fast_sensitivity_limit(job->config, &job->sensitivity_windows);
    const bool is_chosen = profile->sensitivity_choice[0] != '\0';
    const int mode = is_chosen ? profile->sensitivity : (int)job->options->measures.sensitivity;
    *cost = (struct moec_profile_cost){
        .passes = {[MOEC_PHASE_ORIGINAL] = 1 - shared, [MOEC_PHASE_ROUTING] = shared}};
    cost->passes[MOEC_PHASE_QUANTIZERS] = moec_quantizer_choice_passes(job);
    cost->passes[MOEC_PHASE_WHOLE] = count_whole(profile) + (profile->baseline_bits < 16);
    cost->passes[MOEC_PHASE_STUDIES] = studies_cost(job);
    cost->exact_passes = even_cost(job) / pass;
    cost->fast_passes = fast / pass;
    if (mode == MOEC_SENSITIVITY_NONE)
        return;
    const bool is_fast = mode == MOEC_SENSITIVITY_FAST;
    cost->passes[MOEC_PHASE_SENSITIVITY] = is_fast ? cost->fast_passes : cost->exact_passes;
    /* A fast profile measures no mixed plans. */
    cost->passes[MOEC_PHASE_MIXED] = (is_fast ? 0 : MOEC_MIXED_TARGETS * MOEC_MIXED_ATTEMPTS / 2.0) +
                                     MOEC_CODES_COUNT / 2.0 * moec_codes_windows(profile) / profile->n_window;
}

double moec_profile_cost_from(const struct moec_profile_cost *cost, enum moec_profile_phase first)
{
    double passes = 0;
    for (uint32_t phase = first; phase < MOEC_PHASE_COUNT; phase++)
        passes += cost->passes[phase];
    return passes;
}
