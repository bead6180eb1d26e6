/* From a router's logits to scores, which is the first of routing's two steps, and from the chosen experts'
 * scores to weights, which ends the second (internal to runtime/). The config's router_kind says how
 * (formats/model/config.h):
 *
 *   MOEC_ROUTER_SOFTMAX         scores = softmax(logits); weights = scores of the chosen
 *   MOEC_ROUTER_SIGMOID         scores = sigmoid(logits); weights = scores of the chosen
 *   MOEC_ROUTER_SOFTMAX_CHOSEN  scores = logits; weights = softmax over the logits of the chosen
 *   MOEC_ROUTER_SPARSEMIXER     scores = logits; weights = shares among experts with logits close to each
 *   MOEC_ROUTER_ROOT_SOFTPLUS   scores = sqrt(log(1 + e^logits)); weights = scores of the chosen
 *
 * Then, with norm_topk_prob, the weights are divided by their sum, and multiplied by router_scale. The choice
 * of experts is in runtime/policy/decide/choice.h. Pure functions, F32 throughout, in a fixed order. */
#ifndef MOEC_RUNTIME_ROUTER_SCORES_H
#define MOEC_RUNTIME_ROUTER_SCORES_H

#include "formats/model/config.h"
#include "runtime/kernels/kernels.h"

/* Logits (moec_config_choices) become scores, in place. */
void moec_router_score(const struct moec_config *config, const struct moec_kernels *kernels, float *logits);

/* With groups of experts: bias (n_expert) for a choice that keeps to the best groups: that of the router
 * (NULL: 0) for their experts and minus infinity for the others. Ties go to the lower group. */
void moec_router_group(const struct moec_config *config, const float *scores, const float *router_bias,
                       float *bias);

/* weights (top_k) of the chosen, 0 for those that are skipped; sums are added in rank order. If all are
 * skipped, all weights are 0. */
void moec_router_weigh(const struct moec_config *config, const struct moec_kernels *kernels,
                       const float *scores, const uint32_t *experts, const bool *skips, float *weights);

/* Logits (moec_config_choices) become shares, in place: numbers from 0 on that sum to 1 (to 0 where a bias
 * leaves nothing) and say how much the choice leans to each expert. `bias` counts for the choice alone and
 * may be NULL. */
void moec_router_shares(const struct moec_config *config, const struct moec_kernels *kernels,
                        const float *bias, float *logits);

#endif
