/* What the paper says, what was measured, and whether they agree. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_CLAIMS_H
#define MOEC_EXPERIMENTS_CLAIMS_H

#include "experiments/measured.h"
#include "experiments/paper_claim.h"

/* The figures that this project set itself on the sample: speeds, sizes, losses, offline time. */
void experiment_goals(const struct experiment_sample *sample, struct experiment_claims *claims);

/* What the paper's figures show, and whether the sample shows it too. */
void experiment_findings(const struct experiment_sample *sample, struct experiment_claims *claims);

/* Median time per token of `slow` over that of edgemoe with a buffer of ten experts; NaN when not measured.
 */
double experiment_speedup(const struct experiment_bench *bench, const char *slow);

/* Hit rate of a policy with about `share` of the expert bytes, of `n` simulated ones; NaN when not simulated. */
double experiment_hit_rate(const struct experiment_hits *all, uint32_t n, const char *evict, double share);

#endif
