/* Two profiles of models of one shape beside each other: do they say the same about the experts? Two data
 * sets (EdgeMoE, Table IV: does the data of the offline stage matter?), two quantisers, two checkpoints,
 * exact against estimated sensitivities.
 *
 * Experts are compared by their effect (profiler/profile/verdict.h): the KL that one of them adds at b bits.
 * How well two measurements of the same thing would agree is seen in each profile's own halves, even windows
 * against odd ones. What disagreement costs is seen by spending A's assignment on B.
 * Thread rule: pure functions. */
#ifndef MOEC_PROFILER_COMPARE_H
#define MOEC_PROFILER_COMPARE_H

#include "formats/profile/profile.h"
#include "profiler/common/paragraphs.h"
#include "profiler/profile/mixed.h"
#include "profiler/report/figures.h"

#define MOEC_COMPARE_LISTED 10

/* Spearman's rank correlations at one bitwidth that both have; NaN where nothing can be said. */
struct moec_compare_bits {
    uint32_t bits;
    uint32_t a_index, b_index;               /* in bits of A and of B */
    double pooled;                           /* over all experts that both data reached */
    double halves_a, halves_b;               /* even against odd windows of one profile, pooled */
    double *layers;                          /* (S), owned: over the experts of one layer */
    double *layer_halves_a, *layer_halves_b; /* (S) each, behind `layers`: even against odd windows there */
    double layer_median;                     /* of `layers` */
    uint32_t lowest;                         /* MoE ordinal of the least of `layers` */
};

/* An expert that the two rank differently. */
struct moec_compare_expert {
    uint32_t layer, expert;    /* layer of the model */
    double rank_a, rank_b;     /* 1 = the most sensitive */
    double effect_a, effect_b; /* nats a token */
};

/* The assignment that `from` chose for a target, on the importance of the other profile. All predicted. */
struct moec_compare_cross {
    double target;
    double own_loss;     /* what it is predicted to lose where it was chosen */
    double loss;         /* and on the other; NaN where that one lacks a bitwidth of it */
    double planned_loss; /* what the other's own plan of the same bytes would lose there */
    double blind_loss;   /* what bitwidths mixed regardless of sensitivity would lose there, same bytes; NaN
                          * when no mixture of measured uniform ones has these bytes */
};

struct moec_compare {
    const struct moec_profile *a, *b; /* borrowed */
    char name_a[320], name_b[320];    /* how they differ: data, quantiser, ... */
    bool same_model, same_data, same_quantizer, same_mode;
    uint32_t n_expert, n_reached; /* of all MoE layers; by both */
    uint32_t n_bits;
    struct moec_compare_bits bits[MOEC_PROFILE_MAX_BITS];
    double activation_rank;    /* Spearman of activations, pooled within layers' shares */
    double activation_overlap; /* mean over layers of the overlap of load: sum over experts of min(share) */
    double path_coverage;      /* share of B's keyed tokens whose key A's path table has; NaN without keys */
    double path_overlap;       /* mean overlap of the first k predictions of common keys */
    uint32_t n_listed;
    /* By difference of rank, at the lowest bitwidth. */
    struct moec_compare_expert listed[MOEC_COMPARE_LISTED];
    struct moec_compare_cross a_on_b[MOEC_MIXED_TARGETS], b_on_a[MOEC_MIXED_TARGETS];
};

/* Errors: MOEC_ERR_MISMATCH for models of different shapes or without a common bitwidth, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_compare_make(const struct moec_profile *a,
                                                    const struct moec_profile *b,
                                                    struct moec_compare *compare, struct moec_error *err);
void moec_compare_release(struct moec_compare *compare);

/* What expert (MoE ordinal s, e) of one of the two profiles adds at its bits[b], nats a token (what it saves
 * at more bits than the baseline's); NaN where either data did not reach it. */
double moec_compare_effect(const struct moec_compare *compare, const struct moec_profile *profile, uint32_t s,
                           uint32_t e, uint32_t b);

/* In words, the conclusion first. */
void moec_compare_describe(const struct moec_compare *compare, struct moec_paragraphs *paragraphs);

/* Charts: effects of A against those of B, and rank correlation by layer. Released by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_compare_figures(const struct moec_compare *compare,
                                                       struct moec_figures *figures, struct moec_error *err);

#endif
