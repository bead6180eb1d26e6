/* The main figures of a profile's routing studies (profiler/routing/router_study.h,
 * profiler/routing/path_study.h), as numbers and in words. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_ROUTING_SUMMARY_H
#define MOEC_PROFILER_ROUTING_SUMMARY_H

#include "formats/profile/profile.h"
#include "profiler/common/paragraphs.h"

enum moec_predictor { MOEC_BY_PATH, MOEC_BY_FREQUENCY, MOEC_BY_GATE, MOEC_N_PREDICTOR };

/* "Mean" is over MoE layers. NaN where the profile does not say. */
struct moec_routing_summary {
    double entropy;                     /* mean; 1 = even load */
    double margin_median;               /* mean of the layers' medians */
    double margin_small;                /* mean of their 5 % quantiles */
    double recall[MOEC_N_PREDICTOR][3]; /* at k, k + 1, 2k; mean without the first MoE layer */
    double gate_top1;                   /* mean */
    double cosine, cosine_lowest;       /* mean and least */
    uint32_t cosine_lowest_layer;       /* layer of the model whose input is least like the next */
    uint64_t n_token, n_path;           /* tokens, distinct full paths */
    double top_fifth, top_ten;          /* share of tokens on the 20 % and on the 10 most popular */
    double weight_correlation, output_correlation; /* mean */
};

/* False when the profile has no routing studies. */
bool moec_routing_summary_make(const struct moec_profile *profile, struct moec_routing_summary *summary);

/* In words: what predicts the experts, how even the load is, how many paths there are, how close choices are.
 */
void moec_routing_summary_describe(const struct moec_profile *profile,
                                   const struct moec_routing_summary *summary,
                                   struct moec_paragraphs *paragraphs);

/* "path table", "frequency", "next-layer gate". */
const char *moec_predictor_name(enum moec_predictor predictor);

#endif
