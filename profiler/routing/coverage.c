/* Windows that reach an expert are counted from the trace, with the last window beside the count, so each
 * counts once. Without a trace a window reaches an expert if its loss changes with it. Numbers of windows
 * that would be enough assume that rates and spreads stay as they are. */
#include "profiler/routing/coverage.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const double targets[MOEC_COVERAGE_TARGETS] = {0.01, 0.02, 0.05};

static int compare_counts(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* ---- windows that reach an expert ---- */

/* From the trace of choices on the original weights. */
static void count_traced(const struct moec_profile *profile, uint32_t *windows)
{
    const uint32_t n_layer = profile->n_moe_layer, n_expert = profile->n_expert, k = profile->top_k;
    uint64_t token = 0;
    for (uint32_t w = 0; w < profile->n_window; w++)
        for (uint32_t i = 0; i < moec_profile_traced(profile, w) && token < profile->n_trace_token;
             i++, token++)
            for (uint32_t s = 0; s < n_layer; s++)
                for (uint32_t r = 0; r < k; r++) {
                    const uint32_t e = profile->trace_experts[((size_t)token * n_layer + s) * k + r];
                    if (e == MOEC_PROFILE_NO_EXPERT)
                        continue;
                    uint32_t *seen = &windows[2 * ((size_t)s * n_expert + e)];
                    seen[0] += seen[1] != w + 1;
                    seen[1] = w + 1;
                }
}

/* Without a trace: windows whose NLL changes with the expert at any bitwidth. */
static void count_changed(const struct moec_profile *profile, uint32_t *windows)
{
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            for (uint32_t w = 0; w < profile->n_sensitivity_window; w++) {
                bool changed = false;
                for (uint32_t b = 0; b < profile->n_bits; b++)
                    changed = changed || moec_profile_expert_row(profile, profile->expert_nll, s, e, b)[w] !=
                                             profile->baseline.nll[w];
                windows[2 * ((size_t)s * profile->n_expert + e)] += changed;
            }
}

/* ---- experts ---- */

static bool is_rarer(const struct moec_coverage_expert *a, const struct moec_coverage_expert *b)
{
    return a->n_window != b->n_window ? a->n_window < b->n_window : a->n_token < b->n_token;
}

static void list_expert(struct moec_coverage *coverage, const struct moec_coverage_expert *expert)
{
    uint32_t at = coverage->n_listed;
    if (at == MOEC_COVERAGE_LISTED && !is_rarer(expert, &coverage->listed[at - 1]))
        return;
    if (at == MOEC_COVERAGE_LISTED)
        at--;
    else
        coverage->n_listed++;
    for (; at > 0 && is_rarer(expert, &coverage->listed[at - 1]); at--)
        coverage->listed[at] = coverage->listed[at - 1];
    coverage->listed[at] = *expert;
}

/* Windows in all that would bring a rarely seen expert to both limits, at the rate seen so far. */
static uint64_t windows_enough(const struct moec_profile *profile, const struct moec_coverage_expert *expert)
{
    double by_window = (double)MOEC_COVERAGE_WINDOWS / expert->n_window;
    double by_token = (double)MOEC_COVERAGE_TOKENS / (double)expert->n_token;
    return (uint64_t)ceil(profile->n_window * fmax(1, fmax(by_window, by_token)));
}

static void judge_experts(const struct moec_profile *profile, const uint32_t *windows,
                          struct moec_coverage *coverage)
{
    coverage->windows_for_rare = profile->n_window;
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++) {
            const size_t at = (size_t)s * profile->n_expert + e;
            const struct moec_coverage_expert expert = {.layer = profile->moe_layers[s],
                                                        .expert = e,
                                                        .n_token = profile->activations[at],
                                                        .n_window = windows[2 * at]};
            const bool reached = moec_profile_expert_reached(profile, s, e);
            const bool rare =
                expert.n_window < MOEC_COVERAGE_WINDOWS || expert.n_token < MOEC_COVERAGE_TOKENS;
            coverage->n_unreached += !reached;
            coverage->n_rare += reached && rare;
            if (!reached || rare)
                list_expert(coverage, &expert);
            if (reached && rare && expert.n_window > 0 && coverage->windows_for_rare > 0) {
                const uint64_t enough = windows_enough(profile, &expert);
                if (enough > coverage->windows_for_rare)
                    coverage->windows_for_rare = enough;
            } else if (reached && rare) {
                coverage->windows_for_rare = 0;
            }
        }
}

/* ---- losses ---- */

static enum moec_status judge_targets(const struct moec_profile *profile, struct moec_coverage *coverage,
                                      struct moec_error *err)
{
    const struct moec_loss_options options = moec_loss_options_default();
    for (uint32_t u = profile->n_uniform; u-- > 0;) {
        struct moec_loss loss;
        const struct moec_loss_windows windows = moec_profile_loss_windows(profile, MOEC_PART_ALL);
        MOEC_TRY(moec_loss_measure(
            &windows, &(struct moec_paired_nll){profile->reference.nll, profile->uniform[u].nll, NULL},
            &options, &loss, err));
        for (uint32_t t = 0; t < MOEC_COVERAGE_TARGETS; t++)
            if (loss.loss < targets[t]) {
                coverage->target_bits[t] = profile->uniform_bits[u];
                coverage->target_windows[t] = moec_loss_windows_needed(&loss, targets[t], 0);
            }
    }
    return MOEC_OK;
}

/* Windows after which the difference of one expert from the baseline would be 1.645 standard errors (a
 * one-sided 95 % end at zero), from the spread between windows; 0 when there is no difference at all. */
static uint64_t windows_to_differ(const struct moec_profile *profile, const double *nll)
{
    double sum = 0, squares = 0;
    const double n = profile->n_sensitivity_window;
    for (uint32_t w = 0; w < profile->n_sensitivity_window; w++)
        sum += nll[w] - profile->baseline.nll[w];
    const double mean = sum / n;
    for (uint32_t w = 0; w < profile->n_sensitivity_window; w++) {
        const double d = nll[w] - profile->baseline.nll[w] - mean;
        squares += d * d;
    }
    if (mean == 0 || profile->n_sensitivity_window < 2)
        return 0;
    const double needed = ceil(1.645 * 1.645 * squares / (n - 1) / (mean * mean));
    return needed < 1e15 ? (uint64_t)fmax(needed, 2) : 0;
}

static enum moec_status judge_differences(const struct moec_profile *profile, struct moec_coverage *coverage,
                                          struct moec_error *err)
{
    uint64_t *needed = NULL;
    size_t n = 0;
    coverage->difference_bits = profile->bits[0];
    if (profile->sensitivity != MOEC_SENSITIVITY_EXACT)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&needed, coverage->n_expert, sizeof *needed, "windows of experts", err));
    for (uint32_t s = 0; s < profile->n_moe_layer; s++)
        for (uint32_t e = 0; e < profile->n_expert; e++)
            if (moec_profile_expert_reached(profile, s, e)) {
                const uint64_t windows = windows_to_differ(
                    profile, moec_profile_expert_row(profile, profile->expert_nll, s, e, 0));
                needed[n++] = windows > 0 ? windows : UINT64_MAX;
            }
    qsort(needed, n, sizeof *needed, compare_counts);
    if (n > 0) {
        const uint64_t windows = needed[(n * 9 + 9) / 10 - 1];
        coverage->windows_for_differences = windows == UINT64_MAX ? 0 : windows;
    }
    free(needed);
    return MOEC_OK;
}

/* Tokens that a MoE layer reads, mean over layers: those of its stack. */
static double mean_layer_tokens(const struct moec_profile *profile, uint64_t n_token)
{
    const uint32_t n_encoder = moec_config_moe_encoder_count(&profile->config);
    uint64_t n_source = 0;
    for (uint32_t w = 0; w < profile->n_window; w++)
        n_source += moec_profile_source(profile, w);
    const uint64_t n_decoder = profile->n_moe_layer - n_encoder;
    return (double)(n_encoder * n_source + n_decoder * (n_token - n_source)) / profile->n_moe_layer;
}

enum moec_status moec_coverage_make(const struct moec_profile *profile, struct moec_coverage *coverage,
                                    struct moec_error *err)
{
    uint32_t *windows = NULL;
    uint64_t *tokens = NULL;
    const uint32_t n = profile->n_moe_layer * profile->n_expert;
    enum moec_status status = MOEC_OK;
    *coverage = (struct moec_coverage){.n_window = profile->n_window, .n_expert = n};
    memcpy(coverage->targets, targets, sizeof targets);
    for (uint32_t w = 0; w < profile->n_window; w++)
        coverage->n_token += moec_profile_traced(profile, w);
    coverage->even_tokens = mean_layer_tokens(profile, coverage->n_token) * profile->top_k /
                            moec_config_choices(&profile->config);
    /* Pairs: windows that reach the expert, and 1 + the last of them. */
    MOEC_TRY_OUT(moec_alloc((void **)&windows, 2 * (uint64_t)n, sizeof *windows, "windows of experts", err));
    MOEC_TRY_OUT(moec_alloc((void **)&tokens, n, sizeof *tokens, "tokens of experts", err));
    if (profile->n_trace_token > 0)
        count_traced(profile, windows);
    else
        count_changed(profile, windows);
    memcpy(tokens, profile->activations, n * sizeof *tokens);
    qsort(tokens, n, sizeof *tokens, compare_counts);
    coverage->min_tokens = tokens[0];
    coverage->median_tokens = tokens[(n - 1) / 2];
    coverage->max_tokens = tokens[n - 1];
    judge_experts(profile, windows, coverage);
    MOEC_TRY_OUT(judge_targets(profile, coverage, err));
    MOEC_TRY_OUT(judge_differences(profile, coverage, err));
out:
    free(windows);
    free(tokens);
    return status;
}

/* ---- in words ---- */

static void describe_experts(const struct moec_coverage *coverage, struct moec_paragraphs *paragraphs)
{
    moec_paragraph_begin(paragraphs,
                         "Coverage: %" PRIu32 " windows with %" PRIu64
                         " tokens. Each expert was chosen for %" PRIu64 " to %" PRIu64
                         " tokens (median %" PRIu64 "; balanced routing would give %.0f).",
                         coverage->n_window, coverage->n_token, coverage->min_tokens, coverage->max_tokens,
                         coverage->median_tokens, coverage->even_tokens);
    if (coverage->n_unreached + coverage->n_rare == 0) {
        moec_paragraph_add(paragraphs,
                           " Every expert has the %d windows and %d tokens that a meaningful "
                           "interval needs.",
                           MOEC_COVERAGE_WINDOWS, MOEC_COVERAGE_TOKENS);
        return;
    }
    if (coverage->n_unreached > 0)
        moec_paragraph_add(paragraphs,
                           " %" PRIu32 " of %" PRIu32
                           " experts were never reached: their loss is unknown, and "
                           "searches treat each as the most sensitive expert of its layer.",
                           coverage->n_unreached, coverage->n_expert);
    if (coverage->n_rare > 0)
        moec_paragraph_add(paragraphs,
                           " %" PRIu32 " of %" PRIu32
                           " experts were seen in fewer than %d windows or by fewer "
                           "than %d tokens: their intervals mean little.",
                           coverage->n_rare, coverage->n_expert, MOEC_COVERAGE_WINDOWS, MOEC_COVERAGE_TOKENS);
    if (coverage->n_rare > 0 && coverage->windows_for_rare > coverage->n_window)
        moec_paragraph_add(paragraphs,
                           " At the rate seen so far %" PRIu64 " windows (--samples %" PRIu64
                           ") would be enough for all that were reached.",
                           coverage->windows_for_rare, coverage->windows_for_rare);
    moec_paragraph_add(paragraphs, " Rarest:");
    for (uint32_t i = 0; i < coverage->n_listed && i < 8; i++)
        moec_paragraph_add(paragraphs, "%s layer %" PRIu32 " expert %" PRIu32 " (%" PRIu64 " tokens)",
                           i > 0 ? "," : "", coverage->listed[i].layer, coverage->listed[i].expert,
                           coverage->listed[i].n_token);
    moec_paragraph_add(paragraphs, ".");
}

static void describe_targets(const struct moec_coverage *coverage, struct moec_paragraphs *paragraphs)
{
    bool begun = false;
    for (uint32_t t = 0; t < MOEC_COVERAGE_TARGETS; t++) {
        if (coverage->target_bits[t] == 0)
            continue;
        if (!begun)
            moec_paragraph_begin(paragraphs,
                                 "Windows needed to prove a loss limit with all experts at one bitwidth:");
        moec_paragraph_add(paragraphs, "%s for %.0f%%, ", begun ? ";" : "", 100 * coverage->targets[t]);
        begun = true;
        if (coverage->target_windows[t] == 0)
            moec_paragraph_add(paragraphs, "no number is enough with %" PRIu32 " bit%s",
                               coverage->target_bits[t], coverage->target_bits[t] == 1 ? "" : "s");
        else if (coverage->target_windows[t] <= coverage->n_window)
            moec_paragraph_add(
                paragraphs, "the %" PRIu32 " of this profile are enough with %" PRIu32 " bit%s",
                coverage->n_window, coverage->target_bits[t], coverage->target_bits[t] == 1 ? "" : "s");
        else
            moec_paragraph_add(paragraphs, "%" PRIu64 " with %" PRIu32 " bit%s", coverage->target_windows[t],
                               coverage->target_bits[t], coverage->target_bits[t] == 1 ? "" : "s");
    }
    if (begun)
        moec_paragraph_add(paragraphs, ". A limit is proven when the upper end of a one-sided 95%% interval "
                                       "is below it; this is for the profile's own quantization.");
}

void moec_coverage_describe(const struct moec_profile *profile, const struct moec_coverage *coverage,
                            struct moec_paragraphs *paragraphs)
{
    describe_experts(coverage, paragraphs);
    describe_targets(coverage, paragraphs);
    if (profile->sensitivity != MOEC_SENSITIVITY_EXACT || coverage->windows_for_differences == 0)
        return;
    if (coverage->windows_for_differences <= profile->n_sensitivity_window)
        moec_paragraph_add(
            paragraphs,
            " On the windows of the sensitivities nine of ten experts differ from the baseline at %" PRIu32
            " bit%s by more than noise.",
            coverage->difference_bits, coverage->difference_bits == 1 ? "" : "s");
    else
        moec_paragraph_add(paragraphs,
                           " For nine of ten experts to differ from the baseline at %" PRIu32
                           " bit%s by more than noise, about %" PRIu64 " windows would suffice.",
                           coverage->difference_bits, coverage->difference_bits == 1 ? "" : "s",
                           coverage->windows_for_differences);
}
