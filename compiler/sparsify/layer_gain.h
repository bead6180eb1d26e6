/* What an error of one MoE layer's output does to the model: its KL divergence from itself with all neurons,
 * for each unit of squared error. Measured layer by layer on a few windows, with 70 % of the bytes of gate
 * and down left out in that layer alone. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_LAYER_GAIN_H
#define MOEC_COMPILER_LAYER_GAIN_H

#include "compiler/certify/trial.h"
#include "profiler/profile/neuron_harm.h"

/* Windows that are enough: KL of a model from itself varies little. */
#define MOEC_LAYER_GAIN_WINDOWS 24

/* factors (MoE layers) receives the square roots of the gains, which scores of moec_neuron_harm are to be
 * multiplied by. `harm` has been filled. Of the trial, its inputs and options are used. Errors: those of the
 * scorer. */
MOEC_WARN_UNUSED enum moec_status moec_layer_gain_measure(const struct moec_trial *trial,
                                                          const struct moec_neuron_harm *harm,
                                                          double *factors, struct moec_error *err);

#endif
