/* HOBBIT beside the systems that it compares with (Fig. 14): tables and sentences. Thread rule: plain data;
 * the page one thread at a time. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_SYSTEMS_H
#define MOEC_EXPERIMENTS_DECISIONS_SYSTEMS_H

#include "experiments/decisions_timings.h"
#include "experiments/page.h"

void decisions_system_findings(const struct decisions_timings *systems, struct experiment_claims *claims);
/* Nothing where nothing was timed. */
MOEC_WARN_UNUSED enum moec_status decisions_page_systems(const struct experiment_page *page,
                                                         const struct decisions_timings *systems,
                                                         struct moec_error *err);

#endif
