/* The parts of the report about time, ranks of experts, evictions and prompts: tables, charts. Each writes
 * nothing where nothing was measured. Thread rule: one thread at a time. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_TIME_PAGE_H
#define MOEC_EXPERIMENTS_DECISIONS_TIME_PAGE_H

#include "experiments/decisions_measured.h"
#include "experiments/page.h"

/* Cells of a row: ms of a token, tokens a second, hits and KiB read for one. */
void decisions_put_token(struct experiment_table *table, const struct decisions_timing *row);

/* Cache-conditional experts: Fig. 2 and appendix A, Fig. 8 and 17. */
MOEC_WARN_UNUSED enum moec_status decisions_page_cache(const struct experiment_page *page,
                                                       const struct decisions_sample *sample,
                                                       struct moec_error *err);
/* HOBBIT: Fig. 5b, 16 to 18. */
MOEC_WARN_UNUSED enum moec_status decisions_page_hobbit(const struct experiment_page *page,
                                                        const struct decisions_sample *sample,
                                                        struct moec_error *err);
/* Fate: Fig. 9 to 14, Tables 2 and 3. */
MOEC_WARN_UNUSED enum moec_status decisions_page_fate(const struct experiment_page *page,
                                                      const struct decisions_sample *sample,
                                                      struct moec_error *err);

#endif
