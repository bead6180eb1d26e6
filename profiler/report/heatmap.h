/* The heatmap of expert sensitivity (EdgeMoE III-B, Fig. 7(a)): rows are the MoE layers, columns the experts,
 * and each element is the loss of the model when that expert alone has a low bitwidth and the others the
 * baseline's.
 *
 * Losses are relative to the original weights, over all windows (moec_profile_loss). Experts that the data
 * never reached have no loss of their own and are shown as such. Thread rule: a heatmap is plain data. */
#ifndef MOEC_PROFILER_HEATMAP_H
#define MOEC_PROFILER_HEATMAP_H

#include "formats/profile/profile.h"
#include "profiler/plot/chart.h"

#define MOEC_HEATMAP_MOST 1e9 /* larger losses are shown as this one */

/* (S, E) each, owned. */
struct moec_heatmap_cells {
    double *loss; /* 0.02 is 2 % */
    bool *reached;
    /* What the expert adds to the baseline may be noise, as its interval holds 0. None where sensitivities
     * are estimates, which have no interval. */
    bool *unclear;
};

/* Experts by their intervals, but for those that no token reached. */
struct moec_heatmap_counts {
    uint64_t n_worse, n_better, n_unclear;
    uint64_t n_unreached;
    double noise; /* half of an interval, at the median, as loss; NaN for estimates */
};

struct moec_heatmap_range {
    double unit;       /* of the scale, which is logarithmic about the baseline (profiler/plot/chart.h) */
    bool is_diverging; /* a bitwidth above the baseline's: experts may gain */
    double baseline;   /* its loss: what an expert without influence shows */
    double low, high;  /* of the colours: holds the baseline; low < high */
    double least;      /* smallest loss of a reached expert or the baseline */
    double largest;    /* loss of the most sensitive reached expert; the baseline when there is none */
};

struct moec_heatmap {
    uint32_t n_layer, n_expert; /* S, E */
    uint32_t bits;              /* of the one expert */
    struct moec_heatmap_cells cells;
    struct moec_heatmap_counts counts;
    struct moec_heatmap_range range;
};

/* bits: one of the profile's bitwidths, 0 = the lowest. Errors: MOEC_ERR_USAGE naming those there are,
 * MOEC_ERR_MEMORY. On success released by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_heatmap_make(const struct moec_profile *profile, uint32_t bits,
                                                    struct moec_heatmap *heatmap, struct moec_error *err);
void moec_heatmap_release(struct moec_heatmap *heatmap);

/* Part of the colour scale, 0..1, of a loss, and the loss at a part. */
double moec_heatmap_unit(const struct moec_heatmap *heatmap, double loss);
double moec_heatmap_loss_at(const struct moec_heatmap *heatmap, double part);

/* The colour of a loss: by the logarithm of what it is over the baseline, or also under it. */
struct moec_colour moec_heatmap_colour(const struct moec_heatmap *heatmap, double loss);

/* Decimals at which losses in percent tell a hundredth of the range of colours apart: 0..6. */
int moec_heatmap_decimals(const struct moec_heatmap *heatmap);

/* Draws or tabulates by the ending of the name (.png, .svg, .pdf, .csv), whole or not at all. The CSV has a
 * line for each expert: layer,expert,bits,reached,activations,loss_percent,baseline_loss_percent. */
MOEC_WARN_UNUSED enum moec_status moec_heatmap_write(const struct moec_profile *profile, uint32_t bits,
                                                     const char *path, struct moec_error *err);

/* The heatmap as a chart, released by the caller. Errors: those of moec_heatmap_make. */
MOEC_WARN_UNUSED enum moec_status moec_heatmap_chart(const struct moec_profile *profile, uint32_t bits,
                                                     struct moec_chart *chart, struct moec_error *err);

/* "INT4", "16-bit". */
void moec_heatmap_bits_name(uint32_t bits, char name[static 16]);

/* Words that both heatmaps use: what is shown, the model, the data, the measure. Control characters of names
 * become
 * '?'. Truncated when they do not fit. */
struct moec_heatmap_words {
    char title[128];
    char model[160];
    char data[512];
    char measure[320];
};
void moec_heatmap_describe(const struct moec_profile *profile, const struct moec_heatmap *heatmap,
                           struct moec_heatmap_words *words);

#endif
