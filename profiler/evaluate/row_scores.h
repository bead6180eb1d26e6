/* Scores of a model on the rows of a task: summaries, answers, choices.
 *
 * Every row is scored with all metrics of its task's kind (moec_task_kind_first): a generated text by
 * ROUGE-1, 2 and L (F1) or by exact match, a choice by the accuracy of the likeliest, plain, by bytes and by
 * tokens, and by the part that right choices have of the likelihoods' sum; of equally likely choices the first
 * is taken. A completion is 1 unless it is blank. A metric's value is the mean over rows. Rows are
 * drawn without replacement with the seed, or taken all in their order. Thread rule: one thread at a time; it
 * parallelises inside. */
#ifndef MOEC_PROFILER_ROW_SCORES_H
#define MOEC_PROFILER_ROW_SCORES_H

#include "profiler/evaluate/continuation.h"
#include "profiler/ranks/ranks.h"
#include "profiler/tasks/rows.h"

#define MOEC_ROW_METRICS 4 /* most of a kind */

struct moec_row_scores {
    uint32_t n_row;
    uint32_t n_metric;
    enum moec_task_metric first; /* values[i][m] is of metric first + m */
    uint64_t *index;             /* (n_row): row of the data, owned */
    double *values;              /* (n_row, n_metric), owned */
    uint64_t n_tokens;           /* run through the model */
    uint32_t n_cut;              /* rows whose prompt did not fit and lost its start */
};

/* What the model made of one row; borrowed during the call. */
struct moec_row_result {
    uint64_t index;
    const struct moec_row *row;
    const char *text; /* generated; NULL for choices */
    size_t n_bytes;
    const struct moec_candidate *candidates; /* choices with their likelihoods; NULL for generated text */
    uint32_t n_candidate;
    const double *values; /* (n_metric) */
};

struct moec_row_scores_options {
    uint32_t n_sample; /* rows to draw; 0, or more than there are = all, in the data's order */
    uint64_t seed;
    const uint64_t *chosen; /* (n_sample) these rows instead of a draw; NULL = draw */
    struct moec_ranks
        *ranks; /* that share the rows: called together then, and `done` is told of own rows alone;
                               * borrowed, NULL = this process has all */
    /* Called after each row; a status other than MOEC_OK stops the work. May be NULL. */
    enum moec_status (*done)(void *context, uint32_t n_done, uint32_t n_row,
                             const struct moec_row_result *result, struct moec_error *err);
    void *context;
};

/* `scores` is the caller's (moec_row_scores_release), empty on failure. Errors: MOEC_ERR_USAGE for a task of
 * perplexity, those of moec_continuation_generate and _score with the row's line, MOEC_ERR_FORMAT where a
 * reference holds no answer. */
MOEC_WARN_UNUSED enum moec_status
moec_row_scores_measure(struct moec_continuation *continuation, const struct moec_task *task,
                        const struct moec_rows *rows, const struct moec_row_scores_options *options,
                        struct moec_row_scores *scores, struct moec_error *err);
void moec_row_scores_release(struct moec_row_scores *scores);

/* Column of a metric as an array (n_row), the caller's to free. */
MOEC_WARN_UNUSED enum moec_status moec_row_scores_column(const struct moec_row_scores *scores,
                                                         enum moec_task_metric metric, double **column,
                                                         struct moec_error *err);
double moec_row_scores_mean(const struct moec_row_scores *scores, enum moec_task_metric metric);

#endif
