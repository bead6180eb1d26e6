/* A report: one HTML page that needs nothing beside itself, whose tables and charts also stand beside it as
 * TSV. Thread rule: one thread at a time. */
#ifndef MOEC_EXPERIMENTS_PAGE_H
#define MOEC_EXPERIMENTS_PAGE_H

#include "experiments/paper_claim.h"
#include "experiments/table.h"
#include "profiler/plot/chart.h"

struct experiment_page {
    const char *folder; /* that the files are written to */
    const char *sample; /* whose part of the page is written: names of files begin with it */
    FILE *stream;
    bool hides_unmeasured; /* claims that were not measured are left out */
};

/* Writes FOLDER/report.html, whole or not at all, as `put` fills it, and says its name. */
MOEC_WARN_UNUSED enum moec_status experiment_page_write(
    struct experiment_page *page,
    enum moec_status (*put)(const struct experiment_page *page, void *context, struct moec_error *err),
    void *context, struct moec_error *err);

void experiment_page_heading(const struct experiment_page *page, const char *text);
void experiment_page_paragraph(const struct experiment_page *page, const char *text);

/* A table called SAMPLE_WHAT with its headings; `name` is where its name is kept. */
MOEC_WARN_UNUSED enum moec_status experiment_page_begin(const struct experiment_page *page,
                                                        struct experiment_table *table, char name[static 64],
                                                        const char *what, const char *const *headings,
                                                        size_t n, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status experiment_page_end(const struct experiment_page *page,
                                                      struct experiment_table *table, struct moec_error *err);

/* Figures to reach (`is_goal`), or sentences of the paper. */
MOEC_WARN_UNUSED enum moec_status experiment_page_claims(const struct experiment_page *page,
                                                         const struct experiment_claims *claims, bool is_goal,
                                                         struct moec_error *err);
/* One paragraph of what agrees with the paper and what does not. */
void experiment_page_agreement(const struct experiment_page *page, const struct experiment_claims *claims);
/* How many figures to reach are reached, with a link to the sample's part. */
void experiment_page_score(const struct experiment_page *page, const struct experiment_claims *goals,
                           const char *title);

/* Nothing for a chart without a name. */
MOEC_WARN_UNUSED enum moec_status experiment_page_chart(const struct experiment_page *page,
                                                        const struct moec_chart *chart,
                                                        struct moec_error *err);

#endif
