/* What a prompt reads and loses by HOBBIT's thresholds 0.6 and 0.9 (Fig. 14 and 16), where each of its tokens
 * decides by itself and where blocks of them do: a table, a figure to reach and sentences. Thread rule: plain
 * data; the page one thread at a time. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_BLOCKS_H
#define MOEC_EXPERIMENTS_DECISIONS_BLOCKS_H

#include "experiments/decisions_measured.h"
#include "experiments/page.h"

/* One for each pair of precisions that was measured. */
void decisions_block_goals(const struct decisions_sample *sample, struct experiment_claims *claims);
/* Nothing for a figure of which no pair was measured. */
void decisions_block_findings(const struct decisions_sample *sample, struct experiment_claims *claims);
/* Nothing where nothing was measured. */
MOEC_WARN_UNUSED enum moec_status decisions_page_blocks(const struct experiment_page *page,
                                                        const struct decisions_sample *sample,
                                                        struct moec_error *err);

#endif
