/* Scores are counted at the step where a threshold would first let them pass, and summed up into shares
 * afterwards. Weights are the trace's F16, so a score just above a step counts for it. What is taken from a
 * profile is checked to rise from 0 to 1 before a bundle stores it. */
#include "profiler/routing/score_study.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "runtime/policy/decide/precision.h"

#include <math.h>
#include <string.h>

/* The step at which an expert of this score stops being beyond the threshold. */
static uint32_t step_of(float score)
{
    const double step = ceil((double)score * MOEC_SCORE_STEPS - 1e-4);
    return step > MOEC_SCORE_STEPS ? MOEC_SCORE_STEPS : step > 0 ? (uint32_t)step : 0;
}

/* One token's experts in one layer: counts (k, MOEC_SCORE_COUNT) of exactly these steps. Returns how many
 * there are. */
static uint32_t count_token(uint32_t k, const uint16_t *chosen, const uint16_t *halves, double *counts)
{
    uint32_t experts[MOEC_MAX_TOP_K];
    float weights[MOEC_MAX_TOP_K], scores[MOEC_MAX_TOP_K];
    bool skips[MOEC_MAX_TOP_K];
    for (uint32_t rank = 0; rank < k; rank++) {
        experts[rank] = chosen[rank];
        weights[rank] = moec_f16_to_f32(halves[rank]);
        skips[rank] = chosen[rank] == MOEC_PROFILE_NO_EXPERT;
    }
    const uint32_t n = moec_precision_scores(k, experts, weights, skips, scores);
    for (uint32_t i = 0; i < n; i++)
        counts[i * MOEC_SCORE_COUNT + step_of(scores[i])]++;
    return n;
}

/* Counts of exact steps become shares of at most each; NaN in a layer that nobody reads. */
static void finish_layer(uint32_t k, double n_choice, double *counts)
{
    for (uint32_t rank = 0; rank < k; rank++) {
        double sum = 0;
        for (size_t step = 0; step < MOEC_SCORE_COUNT; step++) {
            double *at = &counts[rank * MOEC_SCORE_COUNT + step];
            sum += *at;
            *at = n_choice > 0 ? sum / n_choice : (double)NAN;
        }
    }
}

enum moec_status moec_score_study_run(struct moec_profile *profile, struct moec_error *err)
{
    double thresholds[MOEC_SCORE_COUNT], *values = NULL;
    enum moec_status status = MOEC_OK;
    const uint32_t k = profile->top_k, n_layer = profile->n_moe_layer;
    const size_t n_cell = (size_t)k * MOEC_SCORE_COUNT;
    if (k == 1)
        return MOEC_OK;
    for (uint32_t i = 0; i < MOEC_SCORE_COUNT; i++)
        thresholds[i] = i / (double)MOEC_SCORE_STEPS;
    MOEC_TRY(moec_alloc((void **)&values, n_layer * n_cell, sizeof *values, "scores of experts", err));
    for (uint32_t layer = 0; layer < n_layer; layer++) {
        uint64_t n_choice = 0;
        for (uint64_t token = 0; token < profile->n_trace_token; token++) {
            const size_t at = ((size_t)token * n_layer + layer) * k;
            n_choice += count_token(k, profile->trace_experts + at, profile->trace_weights + at,
                                    values + layer * n_cell);
        }
        finish_layer(k, (double)n_choice, values + layer * n_cell);
    }
    const struct moec_study study = {
        .name = MOEC_SCORE_STUDY,
        .description = "share of the experts taken in a layer that stand at this rank by weight and have a "
                       "score (the weight of those before it) of at most this; all ranks sum to 1",
        .source = "HOBBIT eq. 2, Fig. 5(b)",
        .n_axis = 3,
        .axes = {{.name = "moe_layer", .n = n_layer},
                 {.name = "rank", .n = k},
                 {.name = "score", .n = MOEC_SCORE_COUNT, .values = thresholds}},
        .values = values};
    status = moec_profile_add_study(profile, &study, NULL, err);
    free(values);
    return status;
}

/* ---- of a profile ---- */

bool moec_score_study_shares(const struct moec_study *study, double *shares)
{
    const uint64_t n_layer = study->axes[0].n, k = study->axes[1].n;
    uint64_t n_read = 0;
    memset(shares, 0, MOEC_SCORE_COUNT * sizeof *shares);
    for (uint64_t layer = 0; layer < n_layer; layer++) {
        const double *values = study->values + layer * k * MOEC_SCORE_COUNT;
        if (isnan(values[0]))
            continue;
        n_read++;
        for (uint64_t i = 0; i < k * MOEC_SCORE_COUNT; i++)
            shares[i % MOEC_SCORE_COUNT] += values[i];
    }
    double before = 0;
    for (size_t i = 0; i < MOEC_SCORE_COUNT && n_read > 0; i++) {
        shares[i] /= (double)n_read;
        if (!(shares[i] >= before && shares[i] < 1 + 1e-6))
            return false;
        before = shares[i];
    }
    return before > 1 - 1e-6;
}

enum moec_status moec_score_study_take(const struct moec_profile *profile, float **shares,
                                       struct moec_error *err)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, MOEC_SCORE_STUDY);
    double found[MOEC_SCORE_COUNT];
    if (study == NULL || study->n_axis != 3 || study->axes[2].n != MOEC_SCORE_COUNT ||
        !moec_score_study_shares(study, found))
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)shares, MOEC_SCORE_COUNT, sizeof **shares, "scores of experts", err));
    for (size_t i = 0; i < MOEC_SCORE_COUNT; i++)
        (*shares)[i] = found[i] < 1 && i < MOEC_SCORE_STEPS ? (float)found[i] : 1;
    return MOEC_OK;
}
