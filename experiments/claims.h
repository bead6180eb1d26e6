/* What the paper says, what was measured, and whether they agree. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_CLAIMS_H
#define MOEC_EXPERIMENTS_CLAIMS_H

#include "experiments/measured.h"

#define EXPERIMENT_MAX_CLAIMS 24

enum experiment_verdict { EXPERIMENT_NOT_MEASURED, EXPERIMENT_YES, EXPERIMENT_NO };

struct experiment_claim {
    const char *figure; /* "Table II" */
    char paper[256];    /* what the paper has, or what is to be reached */
    char ours[256];     /* what was measured */
    char why[512];      /* where it is not so; "" = it is */
    enum experiment_verdict verdict;
};

struct experiment_claims {
    uint32_t n;
    struct experiment_claim items[EXPERIMENT_MAX_CLAIMS];
};

/* The figures that this project set itself on the sample: speeds, sizes, losses, offline time. */
void experiment_goals(const struct experiment_sample *sample, struct experiment_claims *claims);

/* What the paper's figures show, and whether the sample shows it too. */
void experiment_findings(const struct experiment_sample *sample, struct experiment_claims *claims);

/* Median time per token of `slow` over that of edgemoe with a buffer of ten experts; NaN when not measured.
 */
double experiment_speedup(const struct experiment_sample *sample, const char *slow);

/* Hit rate of a policy with about `share` of the expert bytes; NaN when not simulated. */
double experiment_hit_rate(const struct experiment_sample *sample, const char *evict, double share);

#endif
