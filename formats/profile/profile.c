/* moec_profile_check states everything that readers of a profile rely on: extents, ranges of every number,
 * order of bitwidths, tokens within the vocabulary. Writing and reading both end in it. Perplexity is
 * exp(sum of NLL / scored tokens), over all windows together. Its loss is expm1(sum of NLL differences /
 * scored tokens), which keeps its digits where it is small. */
#include "formats/profile/profile.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- memory ---- */

static void measure_release(struct moec_measure *measure)
{
    free(measure->nll);
    free(measure->kl);
}

void moec_profile_release(struct moec_profile *profile)
{
    if (profile == NULL)
        return;
    free(profile->moe_layers);
    free(profile->window_length);
    free(profile->window_source);
    free(profile->window_tokens);
    free(profile->window_index);
    free(profile->window_scored);
    free(profile->window_document);
    free(profile->window_part);
    measure_release(&profile->reference);
    measure_release(&profile->baseline);
    for (size_t u = 0; u < MOEC_PROFILE_MAX_BITS; u++)
        measure_release(&profile->uniform[u]);
    free(profile->expert_nll);
    free(profile->expert_kl);
    free(profile->activations);
    free(profile->mean_gate_weight);
    free(profile->trace_experts);
    free(profile->trace_weights);
    free(profile->path_recall);
    free(profile->frequency_recall);
    moec_path_table_release(&profile->paths);
    moec_studies_release(&profile->studies);
    memset(profile, 0, sizeof *profile);
}

static enum moec_status check_range(uint64_t value, uint64_t least, uint64_t most, const char *what,
                                    const char *subject, struct moec_error *err)
{
    if (value < least || value > most)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: %s is %" PRIu64 ", expected %" PRIu64 " to %" PRIu64,
                         subject, what, value, least, most);
    return MOEC_OK;
}

enum moec_status moec_profile_check_dimensions(const struct moec_profile *profile, const char *subject,
                                               struct moec_error *err)
{
    MOEC_TRY(check_range(profile->n_moe_layer, 1, MOEC_MAX_LAYERS, "number of MoE layers", subject, err));
    MOEC_TRY(check_range(profile->n_expert, 1, MOEC_MAX_EXPERTS, "number of experts", subject, err));
    uint32_t most = profile->n_expert < MOEC_MAX_TOP_K ? profile->n_expert : MOEC_MAX_TOP_K;
    MOEC_TRY(check_range(profile->top_k, 1, most, "top-k", subject, err));
    MOEC_TRY(check_range(profile->n_drawn, 1, MOEC_PROFILE_MAX_WINDOWS, "number of windows", subject, err));
    MOEC_TRY(check_range(profile->n_window, 1, profile->n_drawn, "number of measured windows", subject, err));
    MOEC_TRY(check_range(profile->seq_len_tokens, 2, MOEC_MAX_POSITIONS, "sequence length", subject, err));
    MOEC_TRY(check_range(profile->n_uniform, 0, MOEC_PROFILE_MAX_BITS, "number of whole-model bitwidths",
                         subject, err));
    MOEC_TRY(
        check_range(profile->n_bits, 0, MOEC_PROFILE_MAX_BITS, "number of profiled bitwidths", subject, err));
    MOEC_TRY(check_range(profile->n_sensitivity_window, 0, profile->n_window,
                         "number of windows with sensitivities", subject, err));
    uint64_t most_tokens = (uint64_t)profile->n_window * moec_profile_window_stride(profile);
    return check_range(profile->n_trace_token, 0, most_tokens, "number of traced tokens", subject, err);
}

static enum moec_status measure_allocate(struct moec_measure *measure, uint32_t n_window,
                                         struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&measure->nll, n_window, sizeof(double), "the NLL of a profile", err));
    return moec_alloc((void **)&measure->kl, n_window, sizeof(double), "the KL of a profile", err);
}

static enum moec_status allocate(struct moec_profile *p, struct moec_error *err)
{
    uint64_t experts = (uint64_t)p->n_moe_layer * p->n_expert;
    uint64_t losses = experts * p->n_bits * p->n_sensitivity_window;
    uint64_t choices = p->n_trace_token * p->n_moe_layer * p->top_k;
    uint64_t recalls = (uint64_t)p->n_moe_layer * 3;
    const struct {
        void **array;
        uint64_t count, item_bytes;
        const char *what;
    } arrays[] = {
        {(void **)&p->moe_layers, p->n_moe_layer, sizeof(uint32_t), "the MoE layers of a profile"},
        {(void **)&p->window_length, p->n_drawn, sizeof(uint32_t), "the windows of a profile"},
        {(void **)&p->window_scored, p->n_drawn, sizeof(uint32_t), "the windows of a profile"},
        {(void **)&p->window_index, p->n_drawn, sizeof(uint64_t), "the windows of a profile"},
        {(void **)&p->window_tokens, (uint64_t)p->n_drawn * moec_profile_window_stride(p), sizeof(uint32_t),
         "the tokens of a profile"},
        {(void **)&p->expert_nll, losses, sizeof(double), "the sensitivity table of a profile"},
        {(void **)&p->expert_kl, losses, sizeof(double), "the sensitivity table of a profile"},
        {(void **)&p->activations, experts, sizeof(uint64_t), "the activations of a profile"},
        {(void **)&p->mean_gate_weight, experts, sizeof(double), "the gate weights of a profile"},
        {(void **)&p->trace_experts, choices, sizeof(uint16_t), "the routing trace of a profile"},
        {(void **)&p->trace_weights, choices, sizeof(uint16_t), "the routing trace of a profile"},
        {(void **)&p->path_recall, recalls, sizeof(double), "the path recall of a profile"},
        {(void **)&p->frequency_recall, recalls, sizeof(double), "the frequency recall of a profile"},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        MOEC_TRY(moec_alloc(arrays[i].array, arrays[i].count, arrays[i].item_bytes, arrays[i].what, err));
    if (p->n_document > 0) {
        MOEC_TRY(moec_alloc((void **)&p->window_document, p->n_drawn, sizeof(uint64_t),
                            "the windows of a profile", err));
        MOEC_TRY(moec_alloc((void **)&p->window_part, p->n_drawn, sizeof(uint8_t), "the windows of a profile",
                            err));
    }
    if (p->config.n_encoder_layer > 0)
        MOEC_TRY(moec_alloc((void **)&p->window_source, p->n_drawn, sizeof(uint32_t),
                            "the windows of a profile", err));
    MOEC_TRY(measure_allocate(&p->reference, p->n_window, err));
    MOEC_TRY(measure_allocate(&p->baseline, p->n_window, err));
    for (uint32_t u = 0; u < p->n_uniform; u++)
        MOEC_TRY(measure_allocate(&p->uniform[u], p->n_window, err));
    return MOEC_OK;
}

enum moec_status moec_profile_allocate(struct moec_profile *profile, struct moec_error *err)
{
    if (profile->n_drawn == 0)
        profile->n_drawn = profile->n_window;
    MOEC_TRY(moec_profile_check_dimensions(profile, "a profile", err));
    if (profile->n_sensitivity_window == 0)
        profile->n_sensitivity_window = profile->n_window;
    enum moec_status status = allocate(profile, err);
    if (status != MOEC_OK)
        moec_profile_release(profile);
    return status;
}

/* ---- checking ---- */

bool moec_profile_has_bits(uint32_t bits)
{
    return (bits >= 1 && bits <= 6) || bits == 8 || bits == 16;
}

static bool is_bitwidth(uint32_t bits)
{
    return moec_profile_has_bits(bits) || bits == 32;
}

static enum moec_status check_text(const char *text, size_t capacity, const char *what, const char *subject,
                                   struct moec_error *err)
{
    if (memchr(text, '\0', capacity) == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: %s has %zu bytes or more, expected fewer", subject, what,
                         capacity);
    return MOEC_OK;
}

static enum moec_status check_provenance(const struct moec_profile *p, const char *subject,
                                         struct moec_error *err)
{
    MOEC_TRY(check_text(p->moec_version, sizeof p->moec_version, "the version of moec", subject, err));
    MOEC_TRY(check_text(p->arithmetic, sizeof p->arithmetic, "the arithmetic", subject, err));
    MOEC_TRY(check_text(p->task, sizeof p->task, "the task", subject, err));
    MOEC_TRY(check_text(p->metric, sizeof p->metric, "the metric", subject, err));
    MOEC_TRY(check_text(p->data_name, sizeof p->data_name, "the name of the data", subject, err));
    if (!is_bitwidth(p->baseline_bits))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the baseline has %" PRIu32 " bits, expected 1, 2, 3, 4, 5, 6, 8, 16 or 32",
                         subject, p->baseline_bits);
    const uint8_t quantizer = p->quantizer == MOEC_QUANTIZER_AUTO ? MOEC_QUANTIZER_LINEAR : p->quantizer;
    if (p->quantizer >= MOEC_QUANTIZER_COUNT || p->scheme >= MOEC_SCHEME_COUNT ||
        !moec_quantizer_makes((enum moec_quantizer)quantizer, (enum moec_scheme)p->scheme))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the profile is damaged: quantizer number %u does not support scheme number %u",
                         subject, (unsigned)p->quantizer, (unsigned)p->scheme);
    for (uint32_t bits = 0; bits < MOEC_CODEC_TABLE; bits++)
        if (p->choices[bits].quantizer >= MOEC_QUANTIZER_AUTO ||
            p->choices[bits].scheme > MOEC_SCHEME_ASYMMETRIC)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: the profile is damaged: quantizer number %u with scheme number %u is not a "
                             "choice for %" PRIu32 " bits",
                             subject, (unsigned)p->choices[bits].quantizer, (unsigned)p->choices[bits].scheme,
                             bits);
    if (p->group != 0 && p->group != 16 && p->group != 32 && p->group != 64 && p->group != 128)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: the group size is %u, expected 0, 16, 32, 64 or 128",
                         subject, (unsigned)p->group);
    if (p->sensitivity != MOEC_SENSITIVITY_EXACT && p->sensitivity != MOEC_SENSITIVITY_FAST &&
        p->sensitivity != MOEC_SENSITIVITY_NONE)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: sensitivity is %u, expected 0 (exact), 1 (fast) or 3 (none)", subject,
                         (unsigned)p->sensitivity);
    if ((p->sensitivity == MOEC_SENSITIVITY_NONE) != (p->n_bits == 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the profile has %" PRIu32 " profiled bitwidths, but its sensitivity is %s",
                         subject, p->n_bits,
                         p->n_bits == 0 ? "exact or fast, which needs at least 1" : "none, which needs 0");
    MOEC_TRY(check_text(p->sensitivity_choice, sizeof p->sensitivity_choice, "the choice of sensitivity",
                        subject, err));
    if (!isfinite(p->cost_passes) || p->cost_passes < 0 || !isfinite(p->naive_passes) || p->naive_passes < 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the profile's cost is %g passes, and %g with the naive method, expected two "
                         "finite numbers of 0 or more",
                         subject, p->cost_passes, p->naive_passes);
    return MOEC_OK;
}

static enum moec_status check_bits(const uint32_t *bits, uint32_t n, const char *what, const char *subject,
                                   struct moec_error *err)
{
    for (uint32_t b = 0; b < n; b++) {
        if (!is_bitwidth(bits[b]))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: the %s at index %" PRIu32 " is %" PRIu32
                             ", expected 1, 2, 3, 4, 5, 6, 8, 16 or 32",
                             subject, what, b, bits[b]);
        if (b > 0 && bits[b] <= bits[b - 1])
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: the %s at index %" PRIu32 " is %" PRIu32 " after %" PRIu32
                             ", expected increasing bitwidths",
                             subject, what, b, bits[b], bits[b - 1]);
    }
    return MOEC_OK;
}

static enum moec_status check_model(const struct moec_profile *p, const char *subject, struct moec_error *err)
{
    const struct moec_config *config = &p->config;
    MOEC_TRY(moec_config_check(config, subject, err));
    if ((config->n_encoder_layer > 0) != (p->window_source != NULL))
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: the windows come %s source tokens, but the model has %s",
                         subject, p->window_source != NULL ? "with" : "without",
                         config->n_encoder_layer > 0 ? "an encoder" : "no encoder");
    uint32_t n_moe_layer = moec_config_moe_count(config);
    if (p->n_moe_layer != n_moe_layer || p->n_expert != config->n_expert || p->top_k != config->top_k)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the profile has %" PRIu32 " MoE layers, %" PRIu32 " experts and top-k %" PRIu32
                         ", but its model has %" PRIu32 " MoE layers, %" PRIu32 " experts and top-k %" PRIu32,
                         subject, p->n_moe_layer, p->n_expert, p->top_k, n_moe_layer, config->n_expert,
                         config->top_k);
    for (uint32_t s = 0; s < p->n_moe_layer; s++)
        if (p->moe_layers[s] != moec_config_moe_layer(config, s))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: MoE layer %" PRIu32 " is layer %" PRIu32
                             " of the model, expected layer %" PRIu32,
                             subject, s, p->moe_layers[s], moec_config_moe_layer(config, s));
    for (uint32_t b = 0; b < p->n_bits; b++)
        if (p->bits[b] == p->baseline_bits)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: %" PRIu32
                             " bits are a profiled bitwidth and the baseline's; a profile compares "
                             "with the baseline, so they must differ",
                             subject, p->bits[b]);
    MOEC_TRY(check_bits(p->bits, p->n_bits, "profiled bitwidth", subject, err));
    return check_bits(p->uniform_bits, p->n_uniform, "whole-model bitwidth", subject, err);
}

/* Lengths of a window: where its source ends, and which of the others are scored. */
static enum moec_status check_lengths(const struct moec_profile *p, uint32_t w, const char *subject,
                                      struct moec_error *err)
{
    const uint32_t length = p->window_length[w], source = moec_profile_source(p, w);
    const uint32_t most = moec_profile_window_stride(p), least = p->window_source != NULL ? 3 : 2;
    if (length < least || length > most)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: window %" PRIu32 " has %" PRIu32 " tokens, expected %" PRIu32 " to %" PRIu32,
                         subject, w, length, least, most);
    if (p->window_source != NULL && (source < 1 || source > p->seq_len_tokens || source > length - 2 ||
                                     length - source > p->seq_len_tokens))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: window %" PRIu32 " has %" PRIu32 " source tokens among its %" PRIu32
                         " tokens, expected at least 1 source token and 2 others, and at most %" PRIu32
                         " of each",
                         subject, w, source, length, p->seq_len_tokens);
    if (p->window_scored[w] < 1 || p->window_scored[w] >= length - source)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: window %" PRIu32 " has %" PRIu32 " scored tokens, expected 1 to %" PRIu32,
                         subject, w, p->window_scored[w], length - source - 1);
    return MOEC_OK;
}

/* Where a window comes from and what it is for. */
static enum moec_status check_part(const struct moec_profile *p, uint32_t w, const char *subject,
                                   struct moec_error *err)
{
    if (p->window_part == NULL)
        return MOEC_OK;
    if (p->window_part[w] >= MOEC_PART_COUNT)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: window %" PRIu32
                         " belongs to part %u of the data, expected a number from 0 to %d",
                         subject, w, (unsigned)p->window_part[w], MOEC_PART_COUNT - 1);
    if (p->window_document[w] >= p->n_document)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: window %" PRIu32 " has document %" PRIu64 ", expected less than %" PRIu64,
                         subject, w, p->window_document[w], p->n_document);
    if (w >= p->n_window && p->window_part[w] != MOEC_PART_CERTIFICATE)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s: window %" PRIu32
            " was not measured and belongs to part %u of the data, but only windows of part %d may "
            "be left for later",
            subject, w, (unsigned)p->window_part[w], MOEC_PART_CERTIFICATE);
    return MOEC_OK;
}

static enum moec_status check_windows(const struct moec_profile *p, const char *subject,
                                      struct moec_error *err)
{
    const uint32_t stride = moec_profile_window_stride(p);
    if ((p->n_document > 0) != (p->window_part != NULL) ||
        (p->n_document > 0) != (p->window_document != NULL))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the profile has %" PRIu64
                         " documents, which contradicts its windows: if there are documents, every window "
                         "must name a part and a document; otherwise no window may name them",
                         subject, p->n_document);
    if (p->n_window < p->n_drawn && p->n_document == 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: %" PRIu32 " of %" PRIu32
                         " windows were measured, but the profile does not say to which part of the data the "
                         "others belong",
                         subject, p->n_window, p->n_drawn);
    for (uint32_t w = 0; w < p->n_drawn; w++) {
        uint32_t length = p->window_length[w];
        MOEC_TRY(check_lengths(p, w, subject, err));
        MOEC_TRY(check_part(p, w, subject, err));
        if (p->window_index[w] >= p->n_window_available)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: window %" PRIu32 " is number %" PRIu64 " of the windows in the data, "
                             "expected less than %" PRIu64,
                             subject, w, p->window_index[w], p->n_window_available);
        const uint32_t *tokens = p->window_tokens + (size_t)w * stride;
        for (uint32_t t = 0; t < stride; t++) {
            bool good = t < length ? tokens[t] < p->config.n_vocab : tokens[t] == MOEC_PROFILE_NO_TOKEN;
            if (!good)
                return moec_fail(err, MOEC_ERR_FORMAT,
                                 "%s: token %" PRIu32 " of window %" PRIu32 " is %" PRIu32 ", expected %s",
                                 subject, t, w, tokens[t],
                                 t < length ? "an id of the vocabulary"
                                            : "4294967295 (no token) after the end of the window");
        }
    }
    return MOEC_OK;
}

/* Sums of NLL up to this stay finite over all windows. */
#define SUM_LIMIT 1e15

struct limits {
    double lowest; /* 0 for NLL; a KL may fall below 0 by rounding */
    double highest;
};

static enum moec_status check_doubles(const double *values, uint64_t n, struct limits limits,
                                      const char *what, const char *subject, struct moec_error *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (!(values[i] >= limits.lowest && values[i] <= limits.highest))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: %s, value number %" PRIu64 ", is %g, expected %g to %g", subject, what, i,
                             values[i], limits.lowest, limits.highest);
    return MOEC_OK;
}

static enum moec_status check_measure(const struct moec_measure *measure, uint32_t n_window, const char *what,
                                      const char *subject, struct moec_error *err)
{
    MOEC_TRY(check_doubles(measure->nll, n_window, (struct limits){0, SUM_LIMIT}, what, subject, err));
    return check_doubles(measure->kl, n_window, (struct limits){-SUM_LIMIT, SUM_LIMIT}, what, subject, err);
}

static enum moec_status check_losses(const struct moec_profile *p, const char *subject,
                                     struct moec_error *err)
{
    uint64_t n = (uint64_t)p->n_moe_layer * p->n_expert * p->n_bits * p->n_sensitivity_window;
    MOEC_TRY(check_measure(&p->reference, p->n_window, "measurement of the original", subject, err));
    MOEC_TRY(check_measure(&p->baseline, p->n_window, "measurement of the baseline", subject, err));
    for (uint32_t u = 0; u < p->n_uniform; u++)
        MOEC_TRY(check_measure(&p->uniform[u], p->n_window, "whole-model measurement", subject, err));
    MOEC_TRY(
        check_doubles(p->expert_nll, n, (struct limits){0, SUM_LIMIT}, "NLL of the experts", subject, err));
    return check_doubles(p->expert_kl, n, (struct limits){-SUM_LIMIT, SUM_LIMIT}, "KL of the experts",
                         subject, err);
}

static enum moec_status check_routing(const struct moec_profile *p, const char *subject,
                                      struct moec_error *err)
{
    uint64_t n_expert = (uint64_t)p->n_moe_layer * p->n_expert;
    uint64_t n_choice = p->n_trace_token * p->n_moe_layer * p->top_k;
    uint64_t n_token = 0;
    /* Layers of the other stack, experts that were full, which only top-1 has, and choices that are none. */
    const bool may_be_none = p->window_source != NULL || p->top_k == 1 || p->config.n_identity > 0;
    for (uint32_t w = 0; w < p->n_window; w++)
        n_token += moec_profile_traced(p, w);
    if (p->n_trace_token != 0 && p->n_trace_token != n_token)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the routing trace has %" PRIu64 " tokens, but the windows have %" PRIu64,
                         subject, p->n_trace_token, n_token);
    for (uint64_t i = 0; i < n_expert; i++)
        if (p->activations[i] > n_token)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: expert %" PRIu64 " of MoE layer %" PRIu64 " has %" PRIu64
                             " activations, expected at most %" PRIu64,
                             subject, i % p->n_expert, i / p->n_expert, p->activations[i], n_token);
    for (uint64_t i = 0; i < n_choice; i++) {
        const bool is_none = may_be_none && p->trace_experts[i] == MOEC_PROFILE_NO_EXPERT;
        if (p->trace_experts[i] >= p->n_expert && !is_none)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s: choice %" PRIu64
                             " of the routing trace is expert %u, expected less than %" PRIu32 "%s",
                             subject, i, (unsigned)p->trace_experts[i], p->n_expert,
                             may_be_none ? ", or 65535 for none" : "");
        /* F16 bits from 0x7c00 on are infinite, NaN or negative. */
        if (p->trace_weights[i] >= 0x7c00)
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "%s: gate weight %" PRIu64
                " of the routing trace has the F16 bits 0x%04x, expected a finite number of 0 or more",
                subject, i, (unsigned)p->trace_weights[i]);
    }
    uint64_t n_recall = (uint64_t)p->n_moe_layer * 3;
    MOEC_TRY(check_doubles(p->mean_gate_weight, n_expert, (struct limits){0, SUM_LIMIT}, "mean gate weight",
                           subject, err));
    MOEC_TRY(check_doubles(p->path_recall, n_recall, (struct limits){0, 1}, "recall of the path table",
                           subject, err));
    return check_doubles(p->frequency_recall, n_recall, (struct limits){0, 1}, "recall by frequency", subject,
                         err);
}

static enum moec_status check_paths(const struct moec_profile *p, const char *subject, struct moec_error *err)
{
    const struct moec_path_table *paths = &p->paths;
    if (paths->n_layer != p->n_moe_layer || paths->n_expert != p->n_expert || paths->top_k != p->top_k)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s: the path table has %" PRIu32 " layers, %" PRIu32 " experts and top-k %" PRIu32
                         ", expected %" PRIu32 " layers, %" PRIu32 " experts and top-k %" PRIu32,
                         subject, paths->n_layer, paths->n_expert, paths->top_k, p->n_moe_layer, p->n_expert,
                         p->top_k);
    enum moec_status status = moec_path_table_check(paths, err);
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "%s", subject);
    return status;
}

enum moec_status moec_profile_check(const struct moec_profile *profile, const char *subject,
                                    struct moec_error *err)
{
    MOEC_TRY(moec_profile_check_dimensions(profile, subject, err));
    MOEC_TRY(check_provenance(profile, subject, err));
    MOEC_TRY(check_model(profile, subject, err));
    MOEC_TRY(check_windows(profile, subject, err));
    MOEC_TRY(check_losses(profile, subject, err));
    MOEC_TRY(check_routing(profile, subject, err));
    MOEC_TRY(check_paths(profile, subject, err));
    return moec_studies_check(&profile->studies, subject, err);
}

/* ---- reading values ---- */

void moec_profile_layer_label(const struct moec_profile *profile, size_t capacity, char *text)
{
    const struct moec_config *config = &profile->config;
    if (!moec_config_is_encoder_decoder(config))
        (void)snprintf(text, capacity, "layer");
    else
        (void)snprintf(text, capacity,
                       "layer (0 to %" PRIu32 ": encoder, %" PRIu32 " to %" PRIu32 ": decoder)",
                       config->n_encoder_layer - 1, config->n_encoder_layer, config->n_layer - 1);
}

uint32_t moec_profile_part_count(const struct moec_profile *profile, enum moec_part part)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < profile->n_drawn; w++)
        n += moec_part_has(part, profile->window_part, w);
    return n;
}

double moec_profile_perplexity(const double *nll, const uint32_t *scored, uint32_t n_window)
{
    double sum = 0;
    uint64_t n_token = 0;
    for (uint32_t w = 0; w < n_window; w++) {
        sum += nll[w];
        n_token += scored[w];
    }
    return exp(sum / (double)n_token);
}

bool moec_profile_is_chance(const struct moec_profile *profile)
{
    const double perplexity =
        moec_profile_perplexity(profile->reference.nll, profile->window_scored, profile->n_window);
    return !(perplexity < profile->config.n_vocab);
}

static double loss_of_first(const struct moec_profile *profile, const double *nll, uint32_t n_window)
{
    double difference = 0;
    uint64_t n_token = 0;
    for (uint32_t w = 0; w < n_window; w++) {
        difference += nll[w] - profile->reference.nll[w];
        n_token += profile->window_scored[w];
    }
    return expm1(difference / (double)n_token);
}

double moec_profile_loss(const struct moec_profile *profile, const double *nll)
{
    return loss_of_first(profile, nll, profile->n_window);
}

double moec_profile_sensitivity_loss(const struct moec_profile *profile, const double *nll)
{
    return loss_of_first(profile, nll, profile->n_sensitivity_window);
}

/* ---- studies ---- */

bool moec_profile_find_axis(const struct moec_profile *profile, const char *name, uint32_t cuts[static 3],
                            struct moec_profile_axis *axis)
{
    const struct {
        const char *name;
        struct moec_profile_axis axis;
    } known[] = {
        {"moe_layer", {"layer", profile->n_moe_layer, profile->moe_layers, 0}},
        {"expert", {"expert", profile->n_expert, NULL, 0}},
        {"bits", {"bit", profile->n_bits, profile->bits, 0}},
        {"uniform_bits", {"bit", profile->n_uniform, profile->uniform_bits, 0}},
        {"window", {"window", profile->n_window, NULL, 0}},
        {"rank", {"rank", profile->top_k, NULL, 1}},
        {"cut", {"expert", 3, cuts, 0}},
    };
    cuts[0] = profile->top_k;
    cuts[1] = profile->top_k + 1;
    cuts[2] = 2 * profile->top_k;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *axis = known[i].axis;
            return true;
        }
    }
    return false;
}

enum moec_status moec_profile_add_study(struct moec_profile *profile, const struct moec_study *study,
                                        struct moec_study **added, struct moec_error *err)
{
    struct moec_study filled = *study;
    double *owned[MOEC_STUDY_MAX_AXES] = {0};
    enum moec_status status = MOEC_OK;
    for (uint32_t i = 0; i < study->n_axis && i < MOEC_STUDY_MAX_AXES; i++) {
        struct moec_study_axis *axis = &filled.axes[i];
        struct moec_profile_axis known;
        uint32_t cuts[3];
        if (axis->values != NULL || axis->labels != NULL ||
            !moec_profile_find_axis(profile, axis->name, cuts, &known) || known.n != axis->n)
            continue;
        memset(axis->units, 0, sizeof axis->units);
        memcpy(axis->units, known.units, strlen(known.units));
        if (known.values == NULL && known.first == 0)
            continue;
        MOEC_TRY_OUT(moec_alloc((void **)&owned[i], known.n, sizeof **owned, "an axis of a study", err));
        for (uint64_t v = 0; v < known.n; v++)
            owned[i][v] = moec_profile_axis_value(&known, v);
        axis->values = owned[i];
    }
    MOEC_TRY_OUT(moec_studies_add(&profile->studies, &filled, added, err));
out:
    for (uint32_t i = 0; i < MOEC_STUDY_MAX_AXES; i++)
        free(owned[i]);
    return status;
}

enum moec_status moec_profile_codecs(const struct moec_profile *profile,
                                     struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                     struct moec_error *err)
{
    const uint8_t quantizer =
        profile->quantizer == MOEC_QUANTIZER_AUTO ? MOEC_QUANTIZER_LINEAR : profile->quantizer;
    MOEC_TRY(moec_codec_table((enum moec_quantizer)quantizer, (enum moec_scheme)profile->scheme,
                              profile->group, (enum moec_dtype)profile->config.expert_dtype, codecs, err));
    for (uint32_t bits = 1; bits < 16; bits++) {
        if (codecs[bits].dtype == MOEC_DTYPE_F32) /* no such bitwidth */
            continue;
        const struct moec_quantizer_choice choice = moec_profile_quantizer(profile, bits);
        codecs[bits].quantizer = choice.quantizer;
        codecs[bits].scheme = bits == 1 ? codecs[bits].scheme : choice.scheme;
    }
    return MOEC_OK;
}
