/* Charts of an experiment, beside those that a profile has itself. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_CHARTS_H
#define MOEC_EXPERIMENTS_CHARTS_H

#include "experiments/measured.h"
#include "profiler/plot/chart.h"

/* Makes one chart of a sample; its name stays empty where nothing was measured. Released by the caller in
 * every case. */
typedef enum moec_status experiment_chart(const struct experiment_sample *sample, struct moec_chart *chart,
                                          struct moec_error *err);

experiment_chart experiment_chart_bits;            /* Fig. 6 on the test data */
experiment_chart experiment_chart_decoding;        /* Fig. 7b */
experiment_chart experiment_chart_evictions;       /* Fig. 14 */
experiment_chart experiment_chart_paper_evictions; /* the same of the paper's procedure's bundle */
experiment_chart experiment_chart_latency;         /* Fig. 11 and 16 */
experiment_chart experiment_chart_storage;         /* Fig. 17, storage by target */
experiment_chart experiment_chart_targets;         /* Fig. 17, latency by target */

/* "ROUGE-2", "perplexity". */
const char *experiment_metric(const struct experiment_sample *sample);

#endif
