/* Profiles made of arithmetic, of any shape, for tests of what stores and shows profiles. Values look like
 * measured ones: a few sensitive experts, some that the data never reach. Every value is a function of the
 * shape alone. */
#ifndef MOEC_TESTS_SYNTHETIC_PROFILE_H
#define MOEC_TESTS_SYNTHETIC_PROFILE_H

#include "formats/base/memory.h"
#include "formats/profile/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct synthetic_shape {
    uint32_t n_dense; /* layers without experts before the first with */
    uint32_t n_moe_layer, n_expert, top_k;
    uint32_t n_window, seq_len_tokens;
    uint32_t n_sensitivity_window; /* 0 = all */
    uint32_t n_document;           /* windows come from them in turn; 0 = not known */
    uint32_t n_bits;               /* the first of 2, 3, 8 */
    uint32_t n_uniform;            /* the first of 2, 3, 4, 8 */
    uint32_t every_unreached;      /* each such expert is never chosen; 0 = all are */
    uint32_t n_key;
    bool has_studies;
    uint32_t n_unmeasured; /* windows beyond n_window, of the certificate part */
};

/* 0 <= value < 1, the same for equal seeds (Steele et al., "Fast splittable pseudorandom number generators",
 * 2014). */
static inline double synthetic_unit(uint64_t seed)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static inline bool synthetic_is_reached(const struct synthetic_shape *shape, uint32_t s, uint32_t e)
{
    return shape->every_unreached == 0 || (s * shape->n_expert + e) % shape->every_unreached != 3;
}

static inline void synthetic_config(const struct synthetic_shape *shape, struct moec_config *config)
{
    *config = (struct moec_config){.n_embd = 64,
                                   .n_vocab = 1000,
                                   .n_position = 4096,
                                   .rms_eps = 1e-5,
                                   .n_expert = shape->n_expert,
                                   .top_k = shape->top_k,
                                   .n_ff_expert = 96,
                                   .expert_dtype = MOEC_DTYPE_BF16};
    (void)snprintf(config->family, sizeof config->family, "qwen2_moe");
    for (uint32_t i = 0; i < shape->n_dense + shape->n_moe_layer; i++) {
        const bool is_moe = i >= shape->n_dense;
        (void)moec_config_add_layer(config, &(struct moec_layer_kind){.n_head = 4,
                                                                      .n_kv_head = 2,
                                                                      .head_dim = 16,
                                                                      .rope_theta = 10000,
                                                                      .is_moe = is_moe,
                                                                      .n_ff_dense = is_moe ? 0 : 128});
    }
}

static inline void synthetic_windows(const struct moec_profile *p, uint32_t n_window, double extra,
                                     double *nll, double *kl)
{
    for (uint32_t w = 0; w < n_window; w++) {
        double scored = p->window_scored[w];
        nll[w] = scored * (2.5 + 0.4 * synthetic_unit(w) + extra * (0.8 + 0.4 * synthetic_unit(w + 77)));
        kl[w] = scored * extra * 0.5;
    }
}

static inline void synthetic_measure(const struct moec_profile *p, double extra, double *nll, double *kl)
{
    synthetic_windows(p, p->n_window, extra, nll, kl);
}

static inline void synthetic_losses(const struct synthetic_shape *shape, struct moec_profile *p)
{
    static const double bit_extra[] = {1.0, 0.25, -0.15};
    static const double uniform_extra[] = {0.6, 0.12, 0.012, 0.0002};
    synthetic_measure(p, 0, p->reference.nll, p->reference.kl);
    synthetic_measure(p, 0.012, p->baseline.nll, p->baseline.kl);
    for (uint32_t u = 0; u < p->n_uniform; u++)
        synthetic_measure(p, uniform_extra[u], p->uniform[u].nll, p->uniform[u].kl);
    for (uint32_t s = 0; s < p->n_moe_layer; s++)
        for (uint32_t e = 0; e < p->n_expert; e++)
            for (uint32_t b = 0; b < p->n_bits; b++) {
                double rank = synthetic_unit(1000 + s * 4099u + e);
                double extra = 0.012 * rank * rank * rank + (rank > 0.985 ? 0.03 : 0) - 0.0006;
                extra = synthetic_is_reached(shape, s, e) ? extra * bit_extra[b] : 0;
                synthetic_windows(p, p->n_sensitivity_window, 0.012 + extra,
                                  moec_profile_expert_row(p, p->expert_nll, s, e, b),
                                  moec_profile_expert_row(p, p->expert_kl, s, e, b));
            }
}

static inline void synthetic_routing(const struct synthetic_shape *shape, struct moec_profile *p)
{
    for (uint64_t t = 0; t < p->n_trace_token; t++)
        for (uint32_t s = 0; s < p->n_moe_layer; s++) {
            uint16_t *choices = p->trace_experts + (t * p->n_moe_layer + s) * p->top_k;
            uint32_t e = (uint32_t)(synthetic_unit(t * 131 + s) * p->n_expert);
            for (uint32_t r = 0; r < p->top_k; r++, e++) {
                while (!synthetic_is_reached(shape, s, e % p->n_expert))
                    e++;
                choices[r] = (uint16_t)(e % p->n_expert);
                p->trace_weights[(t * p->n_moe_layer + s) * p->top_k + r] = (uint16_t)(0x3800 - 0x100 * r);
                p->activations[(size_t)s * p->n_expert + choices[r]]++;
            }
        }
    for (uint32_t i = 0; i < p->n_moe_layer * p->n_expert; i++)
        p->mean_gate_weight[i] = p->activations[i] > 0 ? 0.25 + 0.5 * synthetic_unit(i) : 0;
    for (uint32_t i = 0; i < p->n_moe_layer * 3; i++) {
        p->path_recall[i] = 0.5 + 0.4 * synthetic_unit(i);
        p->frequency_recall[i] = 0.2 + 0.3 * synthetic_unit(i);
    }
}

static inline enum moec_status synthetic_paths(const struct synthetic_shape *shape,
                                               struct moec_path_table *paths)
{
    *paths = (struct moec_path_table){.n_layer = shape->n_moe_layer,
                                      .n_expert = shape->n_expert,
                                      .top_k = shape->top_k,
                                      .n_value = 2 * shape->top_k < shape->n_expert ? 2 * shape->top_k
                                                                                    : shape->n_expert};
    if (shape->n_moe_layer > 1)
        paths->n_key = shape->n_key < shape->n_expert ? shape->n_key : shape->n_expert;
    MOEC_TRY(moec_alloc((void **)&paths->keys, paths->n_key, sizeof *paths->keys, "keys", NULL));
    MOEC_TRY(moec_alloc((void **)&paths->values, (uint64_t)paths->n_key * paths->n_value,
                        sizeof *paths->values, "values", NULL));
    MOEC_TRY(moec_alloc((void **)&paths->frequency, (uint64_t)paths->n_layer * paths->n_expert,
                        sizeof *paths->frequency, "frequency", NULL));
    for (uint32_t i = 0; i < paths->n_key; i++) {
        paths->keys[i] = (struct moec_path_key){
            .layer = 1, .first = MOEC_PATH_NONE, .second = (uint16_t)i, .count = 100 + i};
        for (uint32_t v = 0; v < paths->n_value; v++)
            paths->values[(size_t)i * paths->n_value + v] = (struct moec_path_value){
                .expert = (uint16_t)((i + v) % paths->n_expert), .probability = (uint16_t)(60000 / (v + 1))};
    }
    for (uint32_t i = 0; i < paths->n_layer * paths->n_expert; i++)
        paths->frequency[i] = (struct moec_path_value){.expert = (uint16_t)(i % paths->n_expert),
                                                       .probability = (uint16_t)(65535 / paths->n_expert)};
    return MOEC_OK;
}

/* A single value; axes that every profile has; axes of its own, with labels and without; values left open. */
static inline enum moec_status synthetic_studies(struct moec_profile *p)
{
    static double quantiles[] = {0, 0.25, 0.5, 1};
    static char predictors[][MOEC_STUDY_LABEL] = {"path table", "frequency", "next-layer gate"};
    double margin[4 * 64];
    const struct moec_study one = {.name = "gate/one", .description = "one value"};
    const struct moec_study quantile = {.name = "routing/margin",
                                        .units = "nats",
                                        .description = "values over known and own axes",
                                        .source = "Paper, Fig. 1",
                                        .n_axis = 2,
                                        .axes = {{.name = "moe_layer", .n = p->n_moe_layer},
                                                 {.name = "quantile", .n = 4, .values = quantiles}},
                                        .values = margin};
    const struct moec_study recall = {.name = "predict/recall",
                                      .description = "zeros over labels",
                                      .n_axis = 3,
                                      .axes = {{.name = "moe_layer", .n = p->n_moe_layer},
                                               {.name = "predictor", .n = 3, .labels = predictors},
                                               {.name = "cut", .n = 3}}};
    for (uint32_t i = 0; i < 4 * p->n_moe_layer; i++)
        margin[i] = i == 5 ? NAN : 0.125 * i;
    /* Called as an axis is, which the groups of studies have links to. */
    const struct moec_study cut = {.name = "routing/cut", .description = "one value"};
    MOEC_TRY(moec_profile_add_study(p, &one, NULL, NULL));
    MOEC_TRY(moec_profile_add_study(p, &cut, NULL, NULL));
    MOEC_TRY(moec_profile_add_study(p, &quantile, NULL, NULL));
    return moec_profile_add_study(p, &recall, NULL, NULL);
}

/* Released by the caller. Experts of layer s reach from 0; the trace covers every token. */
static inline enum moec_status synthetic_profile(const struct synthetic_shape *shape, struct moec_profile *p)
{
    static const uint32_t bits[] = {2, 3, 8}, uniform_bits[] = {2, 3, 4, 8};
    *p = (struct moec_profile){.moec_version = "0.1.0",
                               .arithmetic = "canonical-f32",
                               .task = "language-modelling",
                               .metric = "perplexity",
                               .data_name = "corpus.txt",
                               .seq_len_tokens = shape->seq_len_tokens,
                               .seed = 42,
                               .baseline_bits = 4,
                               .n_moe_layer = shape->n_moe_layer,
                               .n_expert = shape->n_expert,
                               .top_k = shape->top_k,
                               .n_window = shape->n_window,
                               .n_drawn = shape->n_window + shape->n_unmeasured,
                               .n_window_available = 3 * ((uint64_t)shape->n_window + shape->n_unmeasured),
                               .n_uniform = shape->n_uniform,
                               .n_bits = shape->n_bits,
                               .n_sensitivity_window = shape->n_sensitivity_window,
                               .n_document = shape->n_document,
                               .parts_by_document = shape->n_document > 0,
                               .cost_passes = 12.5,
                               .naive_passes = 96};
    for (uint32_t i = 0; i < MOEC_SHA256_BYTES; i++) {
        p->model_digest[i] = (uint8_t)(0xa0 + i);
        p->data_digest[i] = (uint8_t)(7 * i);
    }
    for (uint32_t w = 0; w < shape->n_window; w++)
        p->n_trace_token += shape->seq_len_tokens - w % 2;
    synthetic_config(shape, &p->config);
    MOEC_TRY(moec_profile_allocate(p, NULL));
    memcpy(p->bits, bits, shape->n_bits * sizeof *bits);
    memcpy(p->uniform_bits, uniform_bits, shape->n_uniform * sizeof *uniform_bits);
    for (uint32_t s = 0; s < shape->n_moe_layer; s++)
        p->moe_layers[s] = shape->n_dense + s;
    for (uint32_t w = 0; w < p->n_drawn; w++) {
        p->window_length[w] = shape->seq_len_tokens - w % 2;
        p->window_scored[w] = p->window_length[w] - 1;
        p->window_index[w] = 3 * (uint64_t)w + 1;
        if (shape->n_document > 0) {
            p->window_document[w] = w % shape->n_document;
            p->window_part[w] = (uint8_t)(w < shape->n_window ? w % shape->n_document % MOEC_PART_COUNT
                                                              : MOEC_PART_CERTIFICATE);
        }
        for (uint32_t t = 0; t < shape->seq_len_tokens; t++)
            p->window_tokens[(size_t)w * shape->seq_len_tokens + t] =
                t < p->window_length[w] ? (w * 31 + t * 7) % 1000 : MOEC_PROFILE_NO_TOKEN;
    }
    synthetic_losses(shape, p);
    synthetic_routing(shape, p);
    if (shape->has_studies)
        MOEC_TRY(synthetic_studies(p));
    return synthetic_paths(shape, &p->paths);
}

#endif
