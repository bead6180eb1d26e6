/* Charts of decisions. A chart's name stays empty where nothing was measured. Released by the caller in every
 * case. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_CHARTS_H
#define MOEC_EXPERIMENTS_DECISIONS_CHARTS_H

#include "experiments/decisions_measured.h"
#include "profiler/plot/chart.h"

/* Loss against misses with so many slots: Fig. 4, 9 and 14 of cache-conditional experts. */
MOEC_WARN_UNUSED enum moec_status decisions_chart_fronts(const struct decisions_sample *sample,
                                                         uint32_t n_slots, struct moec_chart *chart,
                                                         struct moec_error *err);
/* Misses by the size of the cache: Fig. 10. */
MOEC_WARN_UNUSED enum moec_status decisions_chart_sizes(const struct decisions_sample *sample,
                                                        struct moec_chart *chart, struct moec_error *err);
/* Loss against bytes, precision and routing alone and together, with so many slots. */
MOEC_WARN_UNUSED enum moec_status decisions_chart_bytes(const struct decisions_sample *sample,
                                                        const struct decisions_pair *pair, uint32_t n_slots,
                                                        struct moec_chart *chart, struct moec_error *err);
/* Loss by the share of experts in low precision, and skipped: Fig. 3b of HOBBIT. */
MOEC_WARN_UNUSED enum moec_status decisions_chart_replaced(const struct decisions_sample *sample,
                                                           const struct decisions_pair *pair,
                                                           struct moec_chart *chart, struct moec_error *err);

#endif
