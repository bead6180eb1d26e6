#include "profiler/path_study.h"

#include "formats/memory.h"
#include "profiler/paths.h"
#include "profiler/windows.h"

#include <math.h>
#include <string.h>

#define MAX_POPULAR 48 /* 1, 2, 5, ... below 2^48 */

static const double fractions[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};
#define N_FRACTION (sizeof fractions / sizeof *fractions)

static struct moec_path_trace trace_of(const struct moec_profile *profile)
{
    return (struct moec_path_trace){.n_layer = profile->n_moe_layer,
                                    .n_expert = profile->n_expert,
                                    .top_k = profile->top_k,
                                    .n_token = profile->n_trace_token,
                                    .experts = profile->trace_experts,
                                    .weights = profile->trace_weights};
}

/* --- load --------------------------------------------------------------------------------------------------
 */

static double load_entropy(const uint64_t *activations, uint32_t n_expert)
{
    double total = 0, entropy = 0;
    for (uint32_t e = 0; e < n_expert; e++)
        total += (double)activations[e];
    if (total == 0)
        return NAN;
    if (n_expert == 1)
        return 1;
    for (uint32_t e = 0; e < n_expert; e++) {
        const double share = (double)activations[e] / total;
        entropy -= share > 0 ? share * log(share) : 0;
    }
    return entropy / log(n_expert);
}

static enum moec_status add_entropy(struct moec_profile *profile, struct moec_error *err)
{
    struct moec_study *added = NULL;
    const struct moec_study study = {.name = "routing/entropy",
                                     .description = "entropy of a layer's load over log(experts): 1 = even",
                                     .n_axis = 1,
                                     .axes = {{.name = "moe_layer", .n = profile->n_moe_layer}}};
    MOEC_TRY(moec_profile_add_study(profile, &study, &added, err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        added->values[s] =
            load_entropy(profile->activations + (size_t)s * profile->n_expert, profile->n_expert);
    return MOEC_OK;
}

/* --- popularity of paths -----------------------------------------------------------------------------------
 */

/* 1, 2, 5, 10, ... below n, and n. */
static uint32_t popular_counts(uint64_t n, double counts[static MAX_POPULAR])
{
    static const uint64_t steps[3] = {1, 2, 5};
    uint32_t used = 0;
    uint64_t unit = 1;
    for (uint32_t i = 0; used + 1 < MAX_POPULAR && unit * steps[i % 3] < n; i++) {
        counts[used++] = (double)(unit * steps[i % 3]);
        unit *= i % 3 == 2 ? 10 : 1;
    }
    counts[used++] = (double)n;
    return used;
}

/* shares (n_path): cumulated in place. */
static void cumulate(double *shares, uint64_t n_path)
{
    for (uint64_t i = 1; i < n_path; i++)
        shares[i] += shares[i - 1];
    /* Every token is on one of the paths. */
    if (n_path > 0)
        shares[n_path - 1] = 1;
}

static double share_of(const double *shares, uint64_t n_path, double count)
{
    return shares[count < (double)n_path ? (uint64_t)count - 1 : n_path - 1];
}

static enum moec_status add_full_paths(struct moec_profile *profile, const struct moec_path_trace *trace,
                                       double *shares, struct moec_error *err)
{
    double counts[MAX_POPULAR], places[N_FRACTION];
    struct moec_study *added = NULL;
    uint64_t n_path = 0;
    memcpy(places, fractions, sizeof places);
    MOEC_TRY(moec_paths_popularity(trace, 0, trace->n_layer, shares, &n_path, err));
    if (n_path == 0)
        return MOEC_OK;
    cumulate(shares, n_path);
    const struct moec_study full = {
        .name = "paths/full",
        .description = "share of tokens on the n most popular paths through all MoE layers; a path is the "
                       "rank-1 expert of each layer",
        .source = "EdgeMoE Fig. 4",
        .n_axis = 1,
        .axes = {{.name = "popular_paths", .n = popular_counts(n_path, counts), .values = counts}}};
    MOEC_TRY(moec_profile_add_study(profile, &full, &added, err));
    for (uint64_t i = 0; i < full.axes[0].n; i++)
        added->values[i] = share_of(shares, n_path, counts[i]);
    const struct moec_study fraction = {
        .name = "paths/full_fraction",
        .description =
            "share of tokens on this fraction of the distinct paths through all MoE layers, the most popular",
        .source = "EdgeMoE Fig. 4",
        .n_axis = 1,
        .axes = {{.name = "path_fraction", .n = N_FRACTION, .values = places}}};
    MOEC_TRY(moec_profile_add_study(profile, &fraction, &added, err));
    for (size_t i = 0; i < N_FRACTION; i++)
        added->values[i] = share_of(shares, n_path, ceil(fractions[i] * (double)n_path));
    return MOEC_OK;
}

static enum moec_status add_three_paths(struct moec_profile *profile, const struct moec_path_trace *trace,
                                        double *shares, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    double counts[MAX_POPULAR], *found = NULL;
    uint32_t n_count = 0;
    uint64_t most = 0;
    const uint32_t n_layer = trace->n_layer;
    if (n_layer < 3 || trace->n_token == 0)
        return MOEC_OK;
    const double most_possible = pow(trace->n_expert, 3), n_token = (double)trace->n_token;
    n_count = popular_counts((uint64_t)(most_possible < n_token ? most_possible : n_token), counts);
    MOEC_TRY_OUT(moec_alloc((void **)&found, (uint64_t)n_layer * n_count, sizeof *found, "path shares", err));
    for (uint32_t s = 0; s < n_layer; s++) {
        uint64_t n_path = 0;
        if (s + 3 <= n_layer) {
            MOEC_TRY_OUT(moec_paths_popularity(trace, s, 3, shares, &n_path, err));
            cumulate(shares, n_path);
        }
        most = n_path > most ? n_path : most;
        for (uint32_t i = 0; i < n_count; i++)
            found[(size_t)s * n_count + i] = n_path > 0 ? share_of(shares, n_path, counts[i]) : (double)NAN;
    }
    /* The curves end where the longest has reached 1. */
    uint32_t n_kept = 1;
    while (n_kept < n_count && counts[n_kept - 1] < (double)most)
        n_kept++;
    for (uint32_t s = 0; s < n_layer; s++)
        memmove(found + (size_t)s * n_kept, found + (size_t)s * n_count, n_kept * sizeof *found);
    const struct moec_study three = {
        .name = "paths/three",
        .description = "share of tokens on the n most popular paths through three consecutive MoE layers, "
                       "this one first",
        .source = "EdgeMoE Fig. 4",
        .n_axis = 2,
        .axes = {{.name = "moe_layer", .n = n_layer},
                 {.name = "popular_paths", .n = n_kept, .values = counts}},
        .values = found};
    MOEC_TRY_OUT(moec_profile_add_study(profile, &three, NULL, err));
out:
    free(found);
    return status;
}

static enum moec_status add_paths(struct moec_profile *profile, const struct moec_path_trace *trace,
                                  struct moec_error *err)
{
    double *shares = NULL;
    MOEC_TRY(moec_alloc((void **)&shares, trace->n_token, sizeof *shares, "path shares", err));
    enum moec_status status = add_full_paths(profile, trace, shares, err);
    if (status == MOEC_OK)
        status = add_three_paths(profile, trace, shares, err);
    free(shares);
    return status;
}

/* --- predictions -------------------------------------------------------------------------------------------
 */

static enum moec_status add_conditional(struct moec_profile *profile, const struct moec_study *kind,
                                        const uint64_t *hits, uint64_t n_used, struct moec_error *err)
{
    struct moec_study study = *kind, *added = NULL;
    study.n_axis = 2;
    study.axes[0] = (struct moec_study_axis){.name = "moe_layer", .n = profile->n_moe_layer};
    study.axes[1] = (struct moec_study_axis){.name = "activation_rank", .n = profile->n_expert};
    MOEC_TRY(moec_profile_add_study(profile, &study, &added, err));
    for (uint64_t i = 0; i < moec_study_count(added); i++)
        added->values[i] = n_used > 0 ? (double)hits[i] / (double)n_used : (double)NAN;
    return MOEC_OK;
}

static enum moec_status add_recall(struct moec_profile *profile, const double *gate_recall,
                                   struct moec_error *err)
{
    char labels[][MOEC_STUDY_LABEL] = {"path table", "frequency", "next-layer gate"};
    const double *const recalls[] = {profile->path_recall, profile->frequency_recall, gate_recall};
    struct moec_study *added = NULL;
    const struct moec_study study = {
        .name = "predict/recall",
        .description = "recall of the activated experts among the top k, k + 1, 2k predicted; odd windows, "
                       "tables of the even ones",
        .source = "EdgeMoE III-C1; HOBBIT Fig. 7(b); Fate Table 1",
        .n_axis = 3,
        .axes = {{.name = "moe_layer", .n = profile->n_moe_layer},
                 {.name = "predictor", .n = 3, .labels = labels},
                 {.name = "cut", .n = 3}}};
    MOEC_TRY(moec_profile_add_study(profile, &study, &added, err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t p = 0; p < 3; p++)
            memcpy(added->values + ((size_t)s * 3 + p) * 3, recalls[p] + (size_t)s * 3, 3 * sizeof(double));
    return MOEC_OK;
}

/* Hits on the odd windows of a table made from the even ones. */
static enum moec_status count_predictions(struct moec_profile *profile, const struct moec_path_trace *trace,
                                          uint64_t *hits, uint64_t *frequency_hits, uint64_t *n_used,
                                          struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_path_table half = {0};
    uint8_t *even = NULL, *odd = NULL;
    MOEC_TRY_OUT(moec_alloc((void **)&even, trace->n_token, 1, "tokens of a part", err));
    MOEC_TRY_OUT(moec_alloc((void **)&odd, trace->n_token, 1, "tokens of a part", err));
    uint64_t token = 0;
    for (uint32_t w = 0; w < profile->n_window; w++) {
        for (uint32_t i = 0; i < profile->window_length[w]; i++, token++) {
            even[token] = moec_part_has(MOEC_PART_SEARCH, w);
            odd[token] = moec_part_has(MOEC_PART_CERTIFICATE, w);
        }
    }
    MOEC_TRY_OUT(moec_paths_build(trace, even, &half, err));
    MOEC_TRY_OUT(moec_paths_hits(&half, trace, odd, hits, frequency_hits, n_used, err));
out:
    moec_path_table_release(&half);
    free(even);
    free(odd);
    return status;
}

static enum moec_status add_predictions(struct moec_profile *profile, const struct moec_path_trace *trace,
                                        const double *gate_recall, struct moec_error *err)
{
    static const struct moec_study by_path = {
        .name = "conditional/path",
        .description = "share of tokens (odd windows) that activated the expert predicted as r-th likeliest "
                       "from the experts of the two MoE layers before",
        .source = "EdgeMoE Fig. 8"};
    static const struct moec_study by_frequency = {
        .name = "conditional/frequency",
        .description = "share of tokens (odd windows) that activated the expert predicted as r-th likeliest "
                       "from the layer's load alone",
        .source = "EdgeMoE Fig. 8"};
    enum moec_status status = MOEC_OK;
    const uint32_t n_layer = trace->n_layer, n_expert = trace->n_expert;
    uint64_t *hits = NULL, *frequency_hits = NULL, n_used = 0;
    const uint64_t n_cell = (uint64_t)n_layer * n_expert;
    MOEC_TRY_OUT(moec_alloc((void **)&hits, n_cell, sizeof *hits, "predictions", err));
    MOEC_TRY_OUT(moec_alloc((void **)&frequency_hits, n_cell, sizeof *frequency_hits, "predictions", err));
    MOEC_TRY_OUT(count_predictions(profile, trace, hits, frequency_hits, &n_used, err));
    moec_paths_recall(hits, n_layer, n_expert, trace->top_k, n_used, profile->path_recall);
    moec_paths_recall(frequency_hits, n_layer, n_expert, trace->top_k, n_used, profile->frequency_recall);
    MOEC_TRY_OUT(add_conditional(profile, &by_path, hits, n_used, err));
    MOEC_TRY_OUT(add_conditional(profile, &by_frequency, frequency_hits, n_used, err));
    MOEC_TRY_OUT(add_recall(profile, gate_recall, err));
out:
    free(hits);
    free(frequency_hits);
    return status;
}

enum moec_status moec_path_study_run(struct moec_profile *profile, const double *gate_recall,
                                     struct moec_error *err)
{
    const struct moec_path_trace trace = trace_of(profile);
    MOEC_TRY(add_entropy(profile, err));
    MOEC_TRY(add_paths(profile, &trace, err));
    MOEC_TRY(add_predictions(profile, &trace, gate_recall, err));
    return moec_paths_build(&trace, NULL, &profile->paths, err);
}
