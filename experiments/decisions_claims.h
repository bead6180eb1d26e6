/* What the papers about decisions say and what this project set out to reach, beside what was measured.
 * Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_CLAIMS_H
#define MOEC_EXPERIMENTS_DECISIONS_CLAIMS_H

#include "experiments/decisions_measured.h"
#include "experiments/paper_claim.h"

void decisions_goals(const struct decisions_sample *sample, struct experiment_claims *claims);

enum decisions_paper {
    DECISIONS_CACHE_PAPER,
    DECISIONS_HOBBIT_PAPER,
    DECISIONS_FATE_PAPER,
    DECISIONS_N_PAPER
};
extern const char *const decisions_papers[DECISIONS_N_PAPER]; /* their names */
/* Whose sentence a claim is: figures of cache-conditional experts stand without its name. */
enum decisions_paper decisions_paper_of(const struct experiment_claim *claim);

/* Sentences of the papers, one paper after the other. */
void decisions_findings(const struct decisions_sample *sample, struct experiment_claims *claims);

/* Whether held-out loss minus certificate is within the 90 % interval of both together. */
bool decisions_tuning_holds(const struct decisions_tuning *tuning);

#endif
