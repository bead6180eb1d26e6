/* What it costs to leave a neuron of an expert out for a token, estimated for all neurons at once.
 *
 * A routed expert adds w * sum over i of h_i * d_i to its layer, with the token's gate weight w, h_i =
 * act(gate_i . x) * (up_i . x) and d_i the column of down. Before the gate is read only u_i = up_i . x is
 * known, so h_i^2 is put at r_i * u_i^2, r_i = sum of (w h_i)^2 / sum of (w u_i)^2 over the calibration's
 * tokens (neurons of experts that see few tokens lean on their layer's). The harm in squared output is (w
 * |u_i| c_i)^2 with c_i = sqrt(r_i) |d_i|, and per byte of the gate and down rows that are then not read (w
 * |u_i| c_i)^2 / b with b those bytes of the expert. Neurons are taken as independent of one another.
 *
 * FloE compares |u_i| alone (eq. 5); the scales here are what makes one threshold fair to all neurons,
 * experts and tokens. By expert, the mean of c_i^2 and of w^2 stand for those of a neuron and a token, which
 * gives each expert a threshold of |u_i|.
 *
 * At the gate the activation a_i = act(gate_i . x) stands in place of u_i, and up's rows in place of gate's.
 *
 * Two runs of a scorer over the calibration's windows fill it: the first finds c_i, the second counts how
 * many bytes have which score w |u_i| c_i / sqrt(b). Thread rule: one thread at a time; it parallelises
 * inside, and its results do not depend on threads. */
#ifndef MOEC_PROFILER_NEURON_HARM_H
#define MOEC_PROFILER_NEURON_HARM_H

#include "formats/bundle/sparsity_plan.h"
#include "profiler/evaluate/score.h"

struct moec_neuron_harm;

struct moec_neuron_harm_options {
    enum moec_sparsity_by by; /* MOEC_SPARSITY_BY_EXPERT or MOEC_SPARSITY_BY_NEURON */
    bool at_gate;             /* as in a plan */
    const struct moec_kernels *kernels;
    int n_threads; /* as moec_pool_make */
};

/* For a model whose neurons may be left out (moec_sparsity_check_config); the config is borrowed.
 * Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_neuron_harm_create(const struct moec_config *config,
                                                          const struct moec_neuron_harm_options *options,
                                                          struct moec_neuron_harm **out,
                                                          struct moec_error *err);
void moec_neuron_harm_free(struct moec_neuron_harm *harm);

/* For the first and then the second run of a scorer over all layers, with all neurons. */
struct moec_scorer_watch moec_neuron_harm_measure(struct moec_neuron_harm *harm);
struct moec_scorer_watch moec_neuron_harm_count(struct moec_neuron_harm *harm);

/* After both runs. The score that the share `share` (0 to 1) of a layer's bytes is under, and the squared
 * error of the layer's outputs, summed over tokens, that leaving these out is expected to make. */
double moec_neuron_harm_layer_threshold(const struct moec_neuron_harm *harm, uint32_t ordinal, double share);
double moec_neuron_harm_layer_error(const struct moec_neuron_harm *harm, uint32_t ordinal, double threshold);

/* The threshold that the share `share` of all bytes is under, when the scores of layer l are multiplied by
 * factors[l] (MoE layers). */
double moec_neuron_harm_threshold(const struct moec_neuron_harm *harm, const double *factors, double share);

/* A plan of the same model and kind, with room for what moec_neuron_harm_plan sets. Errors:
 * MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_neuron_harm_plan_create(const struct moec_neuron_harm *harm,
                                                               struct moec_sparsity_plan *plan,
                                                               struct moec_error *err);
/* Sets a plan of the same model and kind: scores of layer l times factors[l], which below 0 lets the layer
 * keep all its neurons. */
void moec_neuron_harm_plan(const struct moec_neuron_harm *harm, const double *factors, double threshold,
                           struct moec_sparsity_plan *plan);

#endif
