/* One sentence of a paper, or one figure to reach, beside what was measured. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_PAPER_CLAIM_H
#define MOEC_EXPERIMENTS_PAPER_CLAIM_H

#include "formats/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define EXPERIMENT_MAX_CLAIMS 96

enum experiment_verdict {
    EXPERIMENT_NOT_MEASURED,
    EXPERIMENT_YES,
    EXPERIMENT_NO,
    EXPERIMENT_SHOWN /* a sentence without a threshold to judge by */
};

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

static inline double experiment_percent(double share)
{
    return 100 * share;
}

/* The next claim, not measured yet. */
struct experiment_claim *experiment_claim_add(struct experiment_claims *claims, const char *figure,
                                              const char *paper);
void experiment_claim_decide(struct experiment_claim *claim, bool is_so);

/* What was measured. */
MOEC_PRINTF(2, 3) void experiment_claim_say(struct experiment_claim *claim, const char *format, ...);
/* Why it is not so: more at the end of what was said before. */
MOEC_PRINTF(2, 3) void experiment_claim_explain(struct experiment_claim *claim, const char *format, ...);

#endif
