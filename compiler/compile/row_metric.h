/* A loss measured on rows of a task, by ROUGE, exact match or accuracy, in place of perplexity.
 *
 * Where each window of the profile is a row of this data (encoder-decoder models), rows are the profile's,
 * for what they were drawn for. Else they are drawn here (profiler/evaluate/parts.h), and where the profile
 * was made from the same file only among rows that neither ranked experts nor fitted weights. Thread rule:
 * one thread, parallel inside. */
#ifndef MOEC_COMPILER_ROW_METRIC_H
#define MOEC_COMPILER_ROW_METRIC_H

#include "formats/checkpoint/checkpoint.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/row_scores.h"
#include "profiler/evaluate/windows.h"
#include "runtime/kernels/arithmetic.h"

/* What is asked for. */
struct moec_row_metric_options {
    struct moec_task task; /* its metric is the loss's */
    const char *data_path;
    struct moec_part_request parts; /* rows to draw, or how many of the profile's to use */
    uint64_t seed;
    uint64_t memory_bytes; /* that the rows may take; 0 = no bound */
    uint32_t n_context;    /* of prompt and answer; 0 = the default of profiler/evaluate/continuation.h */
};

struct moec_row_metric;

/* Reads and draws. `options` is borrowed until free; `profile` is not kept. Errors: MOEC_ERR_USAGE (a metric
 * of windows), MOEC_ERR_UNSUPPORTED (no tokenizer), MOEC_ERR_LIMIT (fewer than MOEC_MIN_PART_WINDOWS rows for
 * the search or the certificate), those of moec_rows_read. */
MOEC_WARN_UNUSED enum moec_status moec_row_metric_open(const struct moec_row_metric_options *options,
                                                       const struct moec_checkpoint *checkpoint,
                                                       const struct moec_profile *profile,
                                                       struct moec_row_metric **out, struct moec_error *err);
void moec_row_metric_free(struct moec_row_metric *metric);

/* What measures: a model, which is not asked for bytes, and who runs it. */
struct moec_row_metric_means {
    const struct moec_model *model;
    struct moec_experts *experts;
    const struct moec_kernels *kernels;
    int n_threads;
    enum moec_arithmetic arithmetic;
    struct moec_ranks *ranks; /* that share the rows (profiler/evaluate/row_scores.h); borrowed, or NULL */
};

/* Rows of a part, their data's name and digest, and bytes that a measurement takes. */
uint32_t moec_row_metric_count(const struct moec_row_metric *metric, enum moec_part part);
/* Which rows a part has: (*n), in the order in which they were drawn; borrowed. */
const uint64_t *moec_row_metric_chosen(const struct moec_row_metric *metric, enum moec_part part,
                                       uint32_t *n);
const struct moec_rows *moec_row_metric_rows(const struct moec_row_metric *metric);
/* Share of a part's rows that are answered rightly at random: the mean of one over their choices; 0 where the
 * metric is no accuracy. */
double moec_row_metric_guessing(const struct moec_row_metric *metric, enum moec_part part);
uint64_t moec_row_metric_bytes(const struct moec_row_metric *metric,
                               const struct moec_row_metric_means *means);

/* scores (moec_row_metric_count) of the part's rows with what model and experts answer now. Errors: those
 * of moec_row_scores_measure, what `progress` answers. */
MOEC_WARN_UNUSED enum moec_status moec_row_metric_measure(const struct moec_row_metric *metric,
                                                          enum moec_part part,
                                                          const struct moec_row_metric_means *means,
                                                          const struct moec_progress *progress,
                                                          double *scores, struct moec_error *err);

#endif
