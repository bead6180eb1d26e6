/* What the profiles of experiments/decisions.sh say about ranks of experts, about a token's last choice and
 * about which experts a prompt's tokens take. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_ROUTING_H
#define MOEC_EXPERIMENTS_DECISIONS_ROUTING_H

#include "formats/profile/profile.h"

/* Loss when the expert at a rank (from 1) is treated so, as a study names it: "drop", "random swap", "cut";
 * NaN where it was not measured. `edge` is "", "_low" or "_high" of its interval. */
double decisions_rank_loss(const struct moec_profile *profile, const char *action, uint32_t rank,
                           const char *edge);

/* Share of a layer's tokens whose last expert is the best one in its place; NaN likewise. `layer` counts MoE
 * layers. */
double decisions_choice_share(const struct moec_profile *profile, uint32_t layer);

/* Of the experts that a prompt takes in a layer, the share `part` that fewest of its tokens take: the share
 * of the tokens' choices that goes to them, mean over the windows of a profile, each of which is a prompt.
 * Between experts by a straight line. `n_active` (may be NULL) gets how many experts a prompt takes there,
 * mean. NaN without a trace, or where memory is short. Fate, Fig. 9. */
double decisions_unpopular_share(const struct moec_profile *profile, uint32_t layer, double part,
                                 double *n_active);

#endif
