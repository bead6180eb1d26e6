/* What the papers about decisions say and what this project set out to reach, beside what was measured.
 * Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_CLAIMS_H
#define MOEC_EXPERIMENTS_DECISIONS_CLAIMS_H

#include "experiments/decisions_measured.h"
#include "experiments/paper_claim.h"

void decisions_goals(const struct decisions_sample *sample, struct experiment_claims *claims);

/* Sentences of cache-conditional experts, and of HOBBIT. */
void decisions_findings(const struct decisions_sample *sample, struct experiment_claims *claims);

/* Whether held-out loss minus certificate is within the 90 % interval of both together. */
bool decisions_tuning_holds(const struct decisions_tuning *tuning);

#endif
