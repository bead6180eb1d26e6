/* Which layers get a perturbed model in the fast sensitivity, and on which windows
 * (profiler/sensitivity/fast_sensitivity.h).
 *
 * A layer's perturbed model runs from that layer to the end, at the whole size of the change on every so-many-
 * th window and at half the size on some of these. All of them together cost MOEC_GAIN_PASSES evaluations of
 * the windows at most: each layer has as many windows as that leaves for. Where it leaves for fewer than
 * MOEC_GAIN_WINDOWS (deep models), as many layers as possible have that many, evenly spread from the first to
 * the last, and a layer between two takes its gains from both. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_GAIN_PLAN_H
#define MOEC_PROFILER_GAIN_PLAN_H

#include "profiler/evaluate/windows.h"

#define MOEC_GAIN_PASSES  1.5
#define MOEC_GAIN_WINDOWS 8

struct moec_gain_plan {
    uint32_t layers[MOEC_MAX_LAYERS]; /* (n_layer): ordinals of MoE layers, rising */
    uint32_t n_layer;
    uint32_t every;       /* whole size: windows 0, every, 2 every, ... */
    uint32_t small_every; /* half the size: a multiple of `every` */
    uint64_t cost;        /* multiply-adds, heads included */
};

/* At least two layers, or the only one, whatever they cost. */
void moec_gain_plan_make(const struct moec_config *config, const struct moec_windows *windows,
                         struct moec_gain_plan *plan);

/* Scored tokens of a layer's windows at the whole size of the change. */
uint64_t moec_gain_plan_layer_rows(const struct moec_gain_plan *plan, const struct moec_windows *windows);
/* Rows of hidden states that the perturbed models keep together. */
uint64_t moec_gain_plan_rows(const struct moec_gain_plan *plan, const struct moec_windows *windows);

/* Where a layer stands among those that have perturbed models. */
struct moec_gain_place {
    uint32_t before, after; /* places in plan->layers; equal for a layer that has its own */
    double share;           /* of `after`, 0..1 */
};
struct moec_gain_place moec_gain_plan_place(const struct moec_gain_plan *plan, uint32_t ordinal);

#endif
