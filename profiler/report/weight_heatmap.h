/* The first look's heatmap: rows are the MoE layers, columns the experts, and each cell is what a bitwidth does
 * to the expert's weights (profiler/sensitivity/weight_error.h). It says that it is no loss. Thread rule: pure
 * functions. */
#ifndef MOEC_PROFILER_WEIGHT_HEATMAP_H
#define MOEC_PROFILER_WEIGHT_HEATMAP_H

#include "formats/model/config.h"
#include "profiler/plot/chart.h"

struct moec_weight_heatmap {
    const struct moec_config *config; /* all borrowed */
    const char *model;                /* its name */
    const char *codes;                /* "INT2, linear symmetric, one scale per channel" */
    uint32_t bits;
    const double *errors; /* (S, E), as moec_weight_error_measure fills them */
    size_t stride;        /* from one expert's to the next */
};

/* Draws or tabulates by the ending of the name (.png, .svg, .pdf, .csv), whole or not at all. Errors: those of
 * moec_chart_write, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_weight_heatmap_write(const struct moec_weight_heatmap *heatmap,
                                                            const char *path, struct moec_error *err);

#endif
