/* Studies made of arithmetic for a synthetic profile, one of each name that formats/profile/PROFILE.md lists
 * and figures know, shaped as measured ones are. */
#ifndef MOEC_TESTS_STUDY_PROFILE_H
#define MOEC_TESTS_STUDY_PROFILE_H

#include "tests/unit/synthetic_profile.h"

/* What the values of all studies are made of. */
enum study_values { STUDY_USUAL, STUDY_ZERO, STUDY_NAN, STUDY_NEGATIVE, STUDY_HUGE, STUDY_N_VALUES };

static inline double study_value(enum study_values kind, double usual)
{
    switch (kind) {
    case STUDY_ZERO:
        return 0;
    case STUDY_NAN:
        return (double)NAN;
    case STUDY_NEGATIVE:
        return -usual;
    case STUDY_HUGE:
        return usual * 1e300;
    default:
        return usual;
    }
}

static inline struct moec_study_axis study_axis(const char *name, uint64_t n, double *values,
                                                char (*labels)[MOEC_STUDY_LABEL])
{
    struct moec_study_axis axis = {.n = n, .values = values, .labels = labels};
    (void)snprintf(axis.name, sizeof axis.name, "%s", name);
    return axis;
}

/* Adds a study whose values fall along its last axis, from `first` by `factor` a place. */
static inline enum moec_status study_add(struct moec_profile *p, const char *name, enum study_values kind,
                                         double first, double factor, uint32_t n_axis,
                                         const struct moec_study_axis *axes)
{
    struct moec_study study = {.description = "made of arithmetic", .n_axis = n_axis};
    (void)snprintf(study.name, sizeof study.name, "%s", name);
    memcpy(study.axes, axes, n_axis * sizeof *axes);
    uint64_t n = moec_study_count(&study), last = n_axis > 0 ? axes[n_axis - 1].n : 1;
    MOEC_TRY(moec_alloc((void **)&study.values, n, sizeof(double), "a study", NULL));
    for (uint64_t i = 0; i < n; i++) {
        double usual = first * pow(factor, (double)(i % last)) * (0.8 + 0.4 * synthetic_unit(i / last + 5));
        study.values[i] = study_value(kind, usual);
    }
    enum moec_status status = moec_profile_add_study(p, &study, NULL, NULL);
    free(study.values);
    return status;
}

/* X/loss with its siblings. */
static inline enum moec_status study_add_loss(struct moec_profile *p, const char *group,
                                              enum study_values kind, double first, double factor,
                                              uint32_t n_axis, const struct moec_study_axis *axes)
{
    static const struct {
        const char *name;
        double factor;
    } parts[] = {{"loss", 1}, {"kl", 0.5}, {"loss_low", 0.7}, {"loss_high", 1.4}};
    char name[64];
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(name, sizeof name, "%s/%s", group, parts[i].name);
        MOEC_TRY(study_add(p, name, kind, first * parts[i].factor, factor, n_axis, axes));
    }
    return MOEC_OK;
}

/* Each rank of a token's experts has the same weight. */
static inline enum moec_status study_add_scores(struct moec_profile *p, enum study_values kind)
{
    double scores[101], *values = NULL;
    const uint32_t k = p->top_k;
    for (int i = 0; i < 101; i++)
        scores[i] = i * 0.01;
    struct moec_study study = {.name = "gate/scores",
                               .description = "made of arithmetic",
                               .n_axis = 3,
                               .axes = {study_axis("moe_layer", p->n_moe_layer, NULL, NULL),
                                        study_axis("rank", k, NULL, NULL),
                                        study_axis("score", 101, scores, NULL)}};
    const uint64_t n = moec_study_count(&study);
    MOEC_TRY(moec_alloc((void **)&values, n, sizeof *values, "a study", NULL));
    for (uint64_t i = 0; i < n; i++)
        values[i] = study_value(kind, i % 101 * k >= i / 101 % k * 100 ? 1.0 / k : 0);
    study.values = values;
    const enum moec_status status = moec_profile_add_study(p, &study, NULL, NULL);
    free(values);
    return status;
}

static inline enum moec_status study_add_routing(struct moec_profile *p, enum study_values kind)
{
    static double quantiles[] = {0, .01, .05, .25, .5, .75, .95, .99, 1}, weights[20],
                  popular[] = {1, 2, 5, 10, 20, 50, 100, 200, 500};
    static char predictors[][MOEC_STUDY_LABEL] = {"path table", "frequency", "next-layer gate"};
    const struct moec_study_axis layer = study_axis("moe_layer", p->n_moe_layer, NULL, NULL);
    const struct moec_study_axis paths = study_axis("popular_paths", 9, popular, NULL);
    for (int i = 0; i < 20; i++)
        weights[i] = 0.025 + 0.05 * i;
    MOEC_TRY(study_add(p, "routing/entropy", kind, 0.9, 1, 1, &layer));
    MOEC_TRY(study_add(p, "routing/margin", kind, 0.001, 2, 2,
                       (struct moec_study_axis[]){layer, study_axis("quantile", 9, quantiles, NULL)}));
    MOEC_TRY(study_add(p, "paths/full", kind, 0.02, 1.6, 1, &paths));
    MOEC_TRY(study_add(p, "paths/three", kind, 0.1, 1.3, 2, (struct moec_study_axis[]){layer, paths}));
    const struct moec_study_axis ranks[] = {layer, study_axis("activation_rank", p->n_expert, NULL, NULL)};
    MOEC_TRY(study_add(p, "conditional/path", kind, 0.4, 0.6, 2, ranks));
    MOEC_TRY(study_add(p, "conditional/frequency", kind, 0.1, 0.9, 2, ranks));
    MOEC_TRY(study_add(p, "predict/recall", kind, 0.4, 1.3, 3,
                       (struct moec_study_axis[]){layer, study_axis("predictor", 3, NULL, predictors),
                                                  study_axis("cut", 3, NULL, NULL)}));
    MOEC_TRY(study_add(p, "predict/cosine", kind, 0.8, 1, 1, &layer));
    MOEC_TRY(study_add(p, "predict/positions", kind, 0.3, 1.1, 3,
                       (struct moec_study_axis[]){layer, study_axis("position", 3, NULL, predictors),
                                                  study_axis("width", p->n_expert, NULL, NULL)}));
    MOEC_TRY(study_add(p, "predict/path_gate", kind, 0.35, 1.1, 2,
                       (struct moec_study_axis[]){layer, study_axis("width", p->n_expert, NULL, NULL)}));
    const struct moec_study_axis gates = study_axis("gate_weight", 20, weights, NULL);
    MOEC_TRY(study_add(p, "gate/output_norm", kind, 1, 1.01, 1, &gates));
    MOEC_TRY(study_add(p, "gate/weighted_norm", kind, 0.1, 1.2, 1, &gates));
    MOEC_TRY(study_add(p, "gate/correlation", kind, 0.9, 1, 1, &layer));
    MOEC_TRY(study_add_scores(p, kind));
    return study_add(p, "neurons/up_quantiles", kind, 0.01, 2, 3,
                     (struct moec_study_axis[]){layer, study_axis("expert", p->n_expert, NULL, NULL),
                                                study_axis("quantile", 9, quantiles, NULL)});
}

static inline enum moec_status study_add_weights(struct moec_profile *p, enum study_values kind)
{
    static double targets[] = {.01, .02, .05}, bits[] = {2, 3, 4, 8}, groups[] = {0, 32, 64, 128},
                  sparsities[] = {.5, .6, .7, .8, .9};
    static char projections[][MOEC_STUDY_LABEL] = {"gate", "up", "down"},
                actions[][MOEC_STUDY_LABEL] = {"drop", "replace"},
                weights[][MOEC_STUDY_LABEL] = {"experts only", "all weights"},
                quantizers[][MOEC_STUDY_LABEL] = {"linear symmetric", "linear asymmetric", "HQQ"};
    const struct moec_study_axis layer = study_axis("moe_layer", p->n_moe_layer, NULL, NULL),
                                 expert = study_axis("expert", p->n_expert, NULL, NULL),
                                 bit = study_axis("bits", 4, bits, NULL),
                                 projection = study_axis("projection", 3, NULL, projections);
    MOEC_TRY(study_add_loss(p, "layer", kind, 0.2, 0.1, 2, (struct moec_study_axis[]){layer, bit}));
    MOEC_TRY(study_add_loss(p, "dense", kind, 1.2, 0.15, 2,
                            (struct moec_study_axis[]){study_axis("weights", 2, NULL, weights), bit}));
    MOEC_TRY(
        study_add_loss(p, "projection", kind, 0.5, 0.15, 2, (struct moec_study_axis[]){projection, bit}));
    const struct moec_study_axis quantizer[] = {study_axis("quantizer", 3, NULL, quantizers),
                                                study_axis("group", 4, groups, NULL), bit};
    MOEC_TRY(study_add_loss(p, "quantizer", kind, 0.6, 0.2, 3, quantizer));
    MOEC_TRY(
        study_add_loss(p, "quantizer_all", kind, 0.8, 0.2, 2, (struct moec_study_axis[]){quantizer[0], bit}));
    MOEC_TRY(study_add(p, "quantizer/bits_per_weight", kind, 2.2, 1.5, 3, quantizer));
    MOEC_TRY(study_add_loss(p, "quantizer", kind, 0.6, 0.2, 3,
                            (struct moec_study_axis[]){study_axis("quantizer", 3, NULL, quantizers),
                                                       study_axis("group", 4, groups, NULL), bit}));
    MOEC_TRY(study_add_loss(p, "rank", kind, 2, 0.2, 2,
                            (struct moec_study_axis[]){study_axis("action", 2, NULL, actions),
                                                       study_axis("rank", p->top_k, NULL, NULL)}));
    MOEC_TRY(
        study_add_loss(p, "sparsity", kind, 0.003, 2.2, 2,
                       (struct moec_study_axis[]){projection, study_axis("sparsity", 5, sparsities, NULL)}));
    const struct moec_study_axis target = study_axis("target", 3, targets, NULL);
    MOEC_TRY(study_add(p, "mixed/loss", kind, 0.01, 2, 1, &target));
    MOEC_TRY(study_add(p, "mixed/bytes", kind, 4e6, 0.8, 1, &target));
    MOEC_TRY(study_add(p, "mixed/uniform_bytes", kind, 5e6, 0.8, 1, &target));
    MOEC_TRY(study_add(p, "mixed/uniform_bits", kind, 4, 1, 1, &target));
    MOEC_TRY(
        study_add(p, "fast/local_error", kind, 0.1, 0.3, 3, (struct moec_study_axis[]){layer, expert, bit}));
    return study_add(p, "projection/expert_loss", kind, 0.01, 0.3, 4,
                     (struct moec_study_axis[]){layer, expert, projection, bit});
}

static inline enum moec_status study_profile(const struct synthetic_shape *shape, enum study_values kind,
                                             struct moec_profile *p)
{
    MOEC_TRY(synthetic_profile(shape, p));
    MOEC_TRY(study_add_routing(p, kind));
    return study_add_weights(p, kind);
}

#endif
