/* What the figure_*.c files share (internal): makers of charts, studies found by name and shape, captions
 * that grow. Thread rule: plain data. */
#ifndef MOEC_PROFILER_FIGURE_PARTS_H
#define MOEC_PROFILER_FIGURE_PARTS_H

#include "formats/profile/profile.h"
#include "profiler/plot/chart.h"

/* Makes chart number `index` of a figure from what the profile has; leaves `chart->name` empty where there is
 * none (any more). `chart` comes with its provenance and is released by the caller in every case. */
typedef enum moec_status moec_figure_make(const struct moec_profile *profile, uint32_t index,
                                          struct moec_chart *chart, struct moec_error *err);

moec_figure_make moec_figure_sensitivity, moec_figure_sorted, moec_figure_loss_by_bits, moec_figure_tokens,
    moec_figure_layer_loss, moec_figure_mixed, moec_figure_local_error;
moec_figure_make moec_figure_load, moec_figure_entropy, moec_figure_margin, moec_figure_paths,
    moec_figure_conditional, moec_figure_recall, moec_figure_cosine, moec_figure_gate_norm,
    moec_figure_gate_correlation, moec_figure_positions, moec_figure_scores;
moec_figure_make moec_figure_dense_loss, moec_figure_projection_loss, moec_figure_projection_experts,
    moec_figure_quantizer, moec_figure_quantizer_all, moec_figure_rank, moec_figure_sparsity,
    moec_figure_up_quantiles;

/* ---- studies ---- */

/* The study of this name with exactly these axes, NULL when it is missing or shaped otherwise. */
const struct moec_study *moec_figure_find(const struct moec_profile *profile, const char *name,
                                          uint32_t n_axis, const char *const *axes);

/* A loss study and the ends of its interval (NULL where they are missing). */
struct moec_figure_losses {
    const struct moec_study *loss, *low, *high;
};
bool moec_figure_find_losses(const struct moec_profile *profile, const char *name, uint32_t n_axis,
                             const char *const *axes, struct moec_figure_losses *losses);

/* Point `i` of a series from value `at` of the study, in percent. */
void moec_figure_set_loss(struct moec_chart_series *series, uint64_t i, double x,
                          const struct moec_figure_losses *losses, uint64_t at);

/* Whether the intervals say that point i of `a` loses more than point j of `b`: they lie apart. Losses are
 * measured on the same windows, so this errs on the careful side. Without intervals nothing is sure. */
static inline bool moec_figure_loses_more(const struct moec_chart_series *a, uint64_t i,
                                          const struct moec_chart_series *b, uint64_t j)
{
    return a->has_interval && b->has_interval && a->low[i] > b->high[j];
}

/* What point i loses at most: the end of its interval, or the figure itself where there is none. */
static inline double moec_figure_loses_at_most(const struct moec_chart_series *series, uint64_t i)
{
    return series->has_interval ? series->high[i] : series->y[i];
}

/* ---- charts ---- */

MOEC_PRINTF(2, 3) void moec_figure_name(struct moec_chart *chart, const char *format, ...);
MOEC_PRINTF(2, 3) void moec_figure_title(struct moec_chart *chart, const char *format, ...);
/* Adds a sentence to the caption; one that does not fit is left out. */
MOEC_PRINTF(2, 3) void moec_figure_say(struct moec_chart *chart, const char *format, ...);

/* Axis of losses in percent, and of layers. */
void moec_figure_loss_axis(struct moec_chart_axis *axis);
void moec_figure_layer_axis(const struct moec_profile *profile, struct moec_chart_axis *axis);

/* Categories named after an axis: its labels, "INT4" for bits, "channel" for a group of 0, else numbers. */
MOEC_WARN_UNUSED enum moec_status moec_figure_categories(struct moec_chart_axis *axis,
                                                         const struct moec_study_axis *from,
                                                         struct moec_error *err);
/* The same name for one value. */
void moec_figure_axis_text(const struct moec_study_axis *axis, uint64_t i,
                           char text[static MOEC_CHART_LABEL]);

/* Bars whose values differ so much that some would vanish become points on a logarithmic scale. */
void moec_figure_spread_out(struct moec_chart *chart);

#endif
