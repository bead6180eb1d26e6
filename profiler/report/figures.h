/* The figures of a profile: every plot that its numbers allow, with a caption that says what to conclude.
 *
 * A figure takes its numbers from the profile's own arrays or from its studies, by name. One whose study is
 * not in the profile is listed as not measured, with the option of `moec profile` that measures it. Captions
 * are computed from the numbers. Equal profiles give equal charts. Thread rule: plain data. */
#ifndef MOEC_PROFILER_FIGURES_H
#define MOEC_PROFILER_FIGURES_H

#include "formats/profile/profile.h"
#include "profiler/plot/chart.h"

#define MOEC_FIGURE_MAX_CHARTS 8

enum moec_figure_section { MOEC_FIGURE_SENSITIVITY, MOEC_FIGURE_ROUTING, MOEC_FIGURE_WEIGHTS };
#define MOEC_FIGURE_N_SECTION 3

struct moec_figure {
    const char *title;
    enum moec_figure_section section;
    const char *study;  /* what it is drawn from: "predict/recall"; "" = what every profile has */
    const char *option; /* measures the study: "--study rank" */
    uint32_t n_chart;   /* 0: not measured */
    struct moec_chart charts[MOEC_FIGURE_MAX_CHARTS];
};

struct moec_figures {
    uint32_t n;
    struct moec_figure *items; /* (n) in the order of a report, owned */
};

/* Makes the charts of all figures. Released by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_figures_make(const struct moec_profile *profile,
                                                    struct moec_figures *figures, struct moec_error *err);
void moec_figures_release(struct moec_figures *figures);

/* Writes each chart as folder/NAME.png, .svg, .pdf, .csv, those of `formats` (n); makes the folder where it
 * is missing (its parent must be there). Each file appears whole or not at all. `n_written` counts them.
 * Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_figures_write(const struct moec_figures *figures, const char *folder,
                                                     const enum moec_plot_format *formats, uint32_t n,
                                                     uint32_t *n_written, struct moec_error *err);

#endif
