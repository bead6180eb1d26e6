/* Each stack is a trace of its own layers and tokens. Predictions are tested on windows that their table was
 * not made from; the table in the profile is made from all. A curve of shares ends at exactly 1, whatever its
 * sums are. */
#include "profiler/routing/path_study.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/parts.h"
#include "profiler/evaluate/windows.h"
#include "profiler/routing/paths.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_POPULAR 48 /* 1, 2, 5, ... below 2^48 */

static const double fractions[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1};
#define N_FRACTION (sizeof fractions / sizeof *fractions)

/* The layers and tokens of one stack; a model without an encoder has one. */
struct stack {
    struct moec_path_trace trace;
    uint8_t *tokens; /* (T), owned: those that it reads; NULL = all */
    bool is_encoder;
};

struct stacks {
    struct stack of[2];
    uint32_t n;
};

static void release_stacks(struct stacks *stacks)
{
    for (uint32_t i = 0; i < stacks->n; i++)
        free(stacks->of[i].tokens);
}

/* Marks the tokens of the profile's trace that the encoder, or the decoder, reads. */
static void mark_tokens(const struct moec_profile *profile, bool is_encoder, uint8_t *tokens)
{
    uint64_t token = 0;
    for (uint32_t w = 0; w < profile->n_window && token < profile->n_trace_token; w++)
        for (uint32_t i = 0; i < moec_profile_traced(profile, w); i++)
            tokens[token++] = (i < moec_profile_source(profile, w)) == is_encoder;
}

static enum moec_status find_stacks(const struct moec_profile *profile, struct stacks *stacks,
                                    struct moec_error *err)
{
    const uint32_t n_encoder = moec_config_moe_encoder_count(&profile->config);
    const struct moec_path_trace all = {.n_layer = profile->n_moe_layer,
                                        .n_expert = profile->n_expert,
                                        .top_k = profile->top_k,
                                        .n_token = profile->n_trace_token,
                                        .experts = profile->trace_experts,
                                        .weights = profile->trace_weights,
                                        .row_layers = profile->n_moe_layer};
    const uint32_t first[] = {0, n_encoder}, count[] = {n_encoder, profile->n_moe_layer - n_encoder};
    *stacks = (struct stacks){0};
    for (uint32_t i = 0; i < 2; i++) {
        if (count[i] == 0)
            continue;
        struct stack *stack = &stacks->of[stacks->n++];
        *stack = (struct stack){.trace = all, .is_encoder = i == 0};
        stack->trace.first_layer = first[i];
        stack->trace.n_layer = count[i];
        if (profile->window_source == NULL)
            continue;
        MOEC_TRY(moec_alloc((void **)&stack->tokens, profile->n_trace_token, 1, "tokens of a stack", err));
        mark_tokens(profile, stack->is_encoder, stack->tokens);
    }
    return MOEC_OK;
}

/* ---- load ---- */

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

/* ---- popularity of paths ---- */

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

/* The curves of one stack: paths/full of the only one or of the decoder, paths/encoder of the encoder. */
static enum moec_status add_full_paths(struct moec_profile *profile, const struct stack *stack,
                                       double *shares, struct moec_error *err)
{
    double counts[MAX_POPULAR], places[N_FRACTION];
    struct moec_study *added = NULL;
    uint64_t n_path = 0;
    const bool is_encoder = stack->is_encoder;
    const char *through = is_encoder                       ? "the encoder's MoE layers"
                          : profile->window_source != NULL ? "the decoder's MoE layers"
                                                           : "all MoE layers";
    memcpy(places, fractions, sizeof places);
    MOEC_TRY(moec_paths_popularity(&stack->trace, stack->tokens,
                                   (struct moec_moe_range){0, stack->trace.n_layer}, shares, &n_path, err));
    if (n_path == 0)
        return MOEC_OK;
    cumulate(shares, n_path);
    struct moec_study full = {
        .source = "EdgeMoE Fig. 4",
        .n_axis = 1,
        .axes = {{.name = "popular_paths", .n = popular_counts(n_path, counts), .values = counts}}};
    (void)snprintf(full.name, sizeof full.name, "paths/%s", is_encoder ? "encoder" : "full");
    (void)snprintf(
        full.description, sizeof full.description,
        "share of tokens on the n most popular paths through %s; a path is the rank-1 expert of each layer",
        through);
    MOEC_TRY(moec_profile_add_study(profile, &full, &added, err));
    for (uint64_t i = 0; i < full.axes[0].n; i++)
        added->values[i] = share_of(shares, n_path, counts[i]);
    struct moec_study fraction = {.source = "EdgeMoE Fig. 4",
                                  .n_axis = 1,
                                  .axes = {{.name = "path_fraction", .n = N_FRACTION, .values = places}}};
    (void)snprintf(fraction.name, sizeof fraction.name, "paths/%s_fraction", is_encoder ? "encoder" : "full");
    (void)snprintf(fraction.description, sizeof fraction.description,
                   "share of tokens on this fraction of the distinct paths through %s, the most popular",
                   through);
    MOEC_TRY(moec_profile_add_study(profile, &fraction, &added, err));
    for (size_t i = 0; i < N_FRACTION; i++)
        added->values[i] = share_of(shares, n_path, ceil(fractions[i] * (double)n_path));
    return MOEC_OK;
}

/* Rows of one stack in found (S, popular paths), and the largest number of paths so far. */
static enum moec_status find_three_paths(const struct stack *stack, const struct moec_study_axis *popular,
                                         double *shares, double *found, uint64_t *most,
                                         struct moec_error *err)
{
    for (uint32_t s = 0; s < stack->trace.n_layer; s++) {
        uint64_t n_path = 0;
        if (s + 3 <= stack->trace.n_layer) {
            MOEC_TRY(moec_paths_popularity(&stack->trace, stack->tokens, (struct moec_moe_range){s, 3},
                                           shares, &n_path, err));
            cumulate(shares, n_path);
        }
        *most = n_path > *most ? n_path : *most;
        double *row = found + ((size_t)stack->trace.first_layer + s) * popular->n;
        for (uint64_t i = 0; i < popular->n; i++)
            row[i] = n_path > 0 ? share_of(shares, n_path, popular->values[i]) : (double)NAN;
    }
    return MOEC_OK;
}

static enum moec_status add_three_paths(struct moec_profile *profile, const struct stacks *stacks,
                                        double *shares, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    double counts[MAX_POPULAR], *found = NULL;
    uint32_t n_count = 0, deepest = 0;
    uint64_t most = 0;
    const uint32_t n_layer = profile->n_moe_layer;
    for (uint32_t i = 0; i < stacks->n; i++)
        deepest = stacks->of[i].trace.n_layer > deepest ? stacks->of[i].trace.n_layer : deepest;
    if (deepest < 3 || profile->n_trace_token == 0)
        return MOEC_OK;
    const double most_possible = pow(profile->n_expert, 3), n_token = (double)profile->n_trace_token;
    n_count = popular_counts((uint64_t)(most_possible < n_token ? most_possible : n_token), counts);
    MOEC_TRY_OUT(moec_alloc((void **)&found, (uint64_t)n_layer * n_count, sizeof *found, "path shares", err));
    const struct moec_study_axis popular = {.n = n_count, .values = counts};
    for (uint32_t i = 0; i < stacks->n; i++)
        MOEC_TRY_OUT(find_three_paths(&stacks->of[i], &popular, shares, found, &most, err));
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

static enum moec_status add_paths(struct moec_profile *profile, const struct stacks *stacks,
                                  struct moec_error *err)
{
    double *shares = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&shares, profile->n_trace_token, sizeof *shares, "path shares", err));
    for (uint32_t i = 0; i < stacks->n && status == MOEC_OK; i++)
        status = add_full_paths(profile, &stacks->of[i], shares, err);
    if (status == MOEC_OK)
        status = add_three_paths(profile, stacks, shares, err);
    free(shares);
    return status;
}

/* ---- predictions ---- */

/* n_used: tokens of each layer's stack that were predicted for, (S). */
static enum moec_status add_conditional(struct moec_profile *profile, const struct moec_study *kind,
                                        const uint64_t *hits, const uint64_t *n_used, struct moec_error *err)
{
    struct moec_study study = *kind, *added = NULL;
    double *ranks = NULL;
    MOEC_TRY(moec_alloc((void **)&ranks, profile->n_expert, sizeof *ranks, "an axis of a study", err));
    for (uint32_t r = 0; r < profile->n_expert; r++)
        ranks[r] = r + 1;
    study.n_axis = 2;
    study.axes[0] = (struct moec_study_axis){.name = "moe_layer", .n = profile->n_moe_layer};
    study.axes[1] =
        (struct moec_study_axis){.name = "activation_rank", .n = profile->n_expert, .values = ranks};
    const enum moec_status status = moec_profile_add_study(profile, &study, &added, err);
    free(ranks);
    MOEC_TRY(status);
    for (uint64_t i = 0; i < moec_study_count(added); i++) {
        const uint64_t n = n_used[i / profile->n_expert];
        added->values[i] = n > 0 ? (double)hits[i] / (double)n : (double)NAN;
    }
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
        .description = "recall of the activated experts among the top k, k + 1, 2k predicted; of windows "
                       "that the tables were not made from",
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

/* Which tokens of the stack lie in windows that teach predictions, or that test them. */
static void mark_half(const struct moec_profile *profile, const struct stack *stack, bool tests,
                      uint8_t *tokens)
{
    const struct moec_part_split split = moec_part_split_make(profile->window_part, profile->n_window);
    uint64_t token = 0;
    for (uint32_t w = 0; w < profile->n_window && token < profile->n_trace_token; w++) {
        const bool is_in = tests ? moec_part_split_tests(&split, w) : moec_part_split_teaches(&split, w);
        for (uint32_t i = 0; i < moec_profile_traced(profile, w); i++, token++)
            tokens[token] = is_in && (stack->tokens == NULL || stack->tokens[token]);
    }
}

/* Hits on the windows that test of a table made from those that teach. */
static enum moec_status count_predictions(struct moec_profile *profile, const struct stack *stack,
                                          struct moec_path_hits *hits, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_path_table half = {0};
    uint8_t *tokens = NULL;
    MOEC_TRY_OUT(moec_alloc((void **)&tokens, profile->n_trace_token, 1, "tokens of a part", err));
    mark_half(profile, stack, false, tokens);
    MOEC_TRY_OUT(moec_paths_build(&stack->trace, tokens, &half, err));
    mark_half(profile, stack, true, tokens);
    MOEC_TRY_OUT(moec_paths_hits(&half, &stack->trace, tokens, hits, err));
out:
    moec_path_table_release(&half);
    free(tokens);
    return status;
}

/* Recalls of each layer; where experts were full there are fewer activations than tokens times k. */
static void find_recall(const struct moec_profile *profile, const uint64_t *hits, double *recall)
{
    for (uint32_t s = 0; s < profile->n_moe_layer; s++) {
        const uint64_t *row = hits + (size_t)s * profile->n_expert;
        uint64_t n_choice = 0;
        for (uint32_t e = 0; e < profile->n_expert; e++)
            n_choice += row[e];
        moec_paths_recall(row, 1, profile->n_expert, profile->top_k, n_choice, recall + (size_t)s * 3);
    }
}

static enum moec_status add_predictions(struct moec_profile *profile, const struct stacks *stacks,
                                        const double *gate_recall, struct moec_error *err)
{
    static const struct moec_study by_path = {
        .name = "conditional/path",
        .description =
            "share of tokens (of windows kept for this) that activated the expert predicted as r-th "
            "likeliest from the experts of the two MoE layers before",
        .source = "EdgeMoE Fig. 8"};
    static const struct moec_study by_frequency = {
        .name = "conditional/frequency",
        .description =
            "share of tokens (of windows kept for this) that activated the expert predicted as r-th "
            "likeliest from the layer's load alone",
        .source = "EdgeMoE Fig. 8"};
    enum moec_status status = MOEC_OK;
    const uint32_t n_layer = profile->n_moe_layer, n_expert = profile->n_expert;
    uint64_t *hits = NULL, *frequency_hits = NULL, *n_used = NULL;
    const uint64_t n_cell = (uint64_t)n_layer * n_expert;
    MOEC_TRY_OUT(moec_alloc((void **)&hits, n_cell, sizeof *hits, "predictions", err));
    MOEC_TRY_OUT(moec_alloc((void **)&frequency_hits, n_cell, sizeof *frequency_hits, "predictions", err));
    MOEC_TRY_OUT(moec_alloc((void **)&n_used, n_layer, sizeof *n_used, "predictions", err));
    for (uint32_t i = 0; i < stacks->n; i++) {
        const struct moec_path_trace *trace = &stacks->of[i].trace;
        const size_t first = (size_t)trace->first_layer * n_expert;
        struct moec_path_hits found = {hits + first, frequency_hits + first, 0};
        MOEC_TRY_OUT(count_predictions(profile, &stacks->of[i], &found, err));
        for (uint32_t s = 0; s < trace->n_layer; s++)
            n_used[trace->first_layer + s] = found.n_used;
    }
    find_recall(profile, hits, profile->path_recall);
    find_recall(profile, frequency_hits, profile->frequency_recall);
    MOEC_TRY_OUT(add_conditional(profile, &by_path, hits, n_used, err));
    MOEC_TRY_OUT(add_conditional(profile, &by_frequency, frequency_hits, n_used, err));
    MOEC_TRY_OUT(add_recall(profile, gate_recall, err));
out:
    free(hits);
    free(frequency_hits);
    free(n_used);
    return status;
}

/* A table of all windows, or of those that teach: a part for each stack. `tokens` (T): room to mark some. */
static enum moec_status build_table(const struct moec_profile *profile, const struct stacks *stacks,
                                    uint8_t *tokens, struct moec_path_table *table, struct moec_error *err)
{
    for (uint32_t i = 0; i < stacks->n; i++) {
        const struct stack *stack = &stacks->of[i];
        struct moec_path_table later;
        if (tokens != NULL)
            mark_half(profile, stack, false, tokens);
        MOEC_TRY(moec_paths_build(&stack->trace, tokens != NULL ? tokens : stack->tokens,
                                  i == 0 ? table : &later, err));
        if (i == 0)
            continue;
        const enum moec_status status = moec_paths_append(&later, table, err);
        moec_path_table_release(&later);
        MOEC_TRY(status);
    }
    return MOEC_OK;
}

static enum moec_status add_path_gate(struct moec_profile *profile, const struct stacks *stacks,
                                      const struct moec_path_gate_kept *kept, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_path_table half = {0};
    uint8_t *tokens = NULL;
    MOEC_TRY_OUT(moec_alloc((void **)&tokens, profile->n_trace_token, 1, "tokens of a part", err));
    MOEC_TRY_OUT(build_table(profile, stacks, tokens, &half, err));
    status = moec_path_gate_run(profile, &half, kept, err);
out:
    moec_path_table_release(&half);
    free(tokens);
    return status;
}

enum moec_status moec_path_study_run(struct moec_profile *profile, const double *gate_recall,
                                     const struct moec_path_gate_kept *kept, struct moec_error *err)
{
    struct stacks stacks = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(find_stacks(profile, &stacks, err));
    MOEC_TRY_OUT(add_entropy(profile, err));
    MOEC_TRY_OUT(add_paths(profile, &stacks, err));
    MOEC_TRY_OUT(add_predictions(profile, &stacks, gate_recall, err));
    if (kept != NULL)
        MOEC_TRY_OUT(add_path_gate(profile, &stacks, kept, err));
    status = build_table(profile, &stacks, NULL, &profile->paths, err);
out:
    release_stacks(&stacks);
    return status;
}

uint32_t moec_path_study_shallow_layers(const struct moec_profile *profile)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, "predict/recall");
    const uint64_t n_encoder = moec_config_moe_encoder_count(&profile->config);
    if (study == NULL || study->n_axis != 3 || study->axes[0].n < n_encoder + 2 || study->axes[1].n != 3 ||
        study->axes[2].n != 3)
        return 0;
    const double *recalls = study->values + n_encoder * 9 + 2 * 3; /* of the gate, at k */
    const uint64_t n_layer = study->axes[0].n - n_encoder;
    double sum = 0;
    uint32_t n = 1;
    for (uint64_t layer = 1; layer < n_layer; layer++)
        sum += recalls[layer * 9];
    while (n < n_layer && recalls[n * 9] < sum / (double)(n_layer - 1))
        n++;
    return isnan(sum) ? 0 : n;
}
