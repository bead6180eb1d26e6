#include "experiments/decisions_routing.h"

#include "formats/base/memory.h"
#include "profiler/common/quantiles.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double decisions_rank_loss(const struct moec_profile *profile, const char *action, uint32_t rank,
                           const char *edge)
{
    char name[32];
    (void)snprintf(name, sizeof name, "rank/loss%s", edge);
    const struct moec_study *study = moec_studies_find(&profile->studies, name);
    if (study == NULL || study->n_axis != 2 || study->axes[0].labels == NULL)
        return NAN;
    const struct moec_study_axis *actions = &study->axes[0], *ranks = &study->axes[1];
    for (uint64_t a = 0; a < actions->n; a++)
        for (uint64_t r = 0; r < ranks->n && strcmp(actions->labels[a], action) == 0; r++)
            if (moec_study_axis_value(ranks, r) == rank)
                return study->values[a * ranks->n + r];
    return NAN;
}

double decisions_choice_share(const struct moec_profile *profile, uint32_t layer)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, "choice/right");
    return study != NULL && study->n_axis == 1 && layer < study->axes[0].n ? study->values[layer]
                                                                           : (double)NAN;
}

/* Share of `sum` that the first `n` of ascending counts have; n may be between two. */
static double first_share(const double *counts, uint64_t n_count, double n, double sum)
{
    double taken = 0;
    for (uint64_t e = 0; e < n_count && (double)e < n; e++)
        taken += counts[e] * fmin(1, n - (double)e);
    return taken / sum;
}

double decisions_unpopular_share(const struct moec_profile *profile, uint32_t layer, double part,
                                 double *n_active)
{
    const uint32_t k = profile->top_k, n_expert = profile->n_expert;
    double *counts = NULL, share = 0, active = 0;
    uint64_t token = 0;
    uint32_t n_window = 0;
    struct moec_error err = {0};
    if (profile->n_trace_token == 0 ||
        moec_alloc((void **)&counts, n_expert, sizeof *counts, "tokens of experts", &err) != MOEC_OK)
        return NAN;
    for (uint32_t w = 0; w < profile->n_window; w++) {
        double sum = 0;
        uint64_t n = 0;
        memset(counts, 0, n_expert * sizeof *counts);
        for (uint32_t t = 0; t < moec_profile_traced(profile, w) && token < profile->n_trace_token;
             t++, token++)
            for (uint32_t r = 0; r < k; r++) {
                const uint16_t expert =
                    profile->trace_experts[(token * profile->n_moe_layer + layer) * k + r];
                if (expert >= n_expert)
                    continue;
                counts[expert]++;
                sum++;
            }
        for (uint32_t e = 0; e < n_expert; e++)
            if (counts[e] > 0)
                counts[n++] = counts[e];
        if (n == 0)
            continue;
        moec_sort_doubles(counts, n);
        share += first_share(counts, n, part * (double)n, sum);
        active += (double)n;
        n_window++;
    }
    free(counts);
    if (n_active != NULL)
        *n_active = n_window > 0 ? active / n_window : (double)NAN;
    return n_window > 0 ? share / n_window : (double)NAN;
}
