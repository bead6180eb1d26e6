/* Plans of sparsity (formats/bundle/sparsity_plan.h) of a bundle for any share that is left out: what a
 * calibration on the search part says of its neurons (profiler/profile/neuron_harm.h, layer_gain.h), or a
 * table of thresholds. Thread rule: one thread, parallel inside; results do not depend on threads. */
#ifndef MOEC_COMPILER_SPARSITY_FIT_H
#define MOEC_COMPILER_SPARSITY_FIT_H

#include "compiler/certify/trial.h"
#include "formats/bundle/sparsity_plan.h"
#include "formats/tables/sparsity_table.h"

struct moec_sparsity_fit;

/* By model a plan follows `table`, which is borrowed, of thresholds of what the plan compares, and else not
 * looked at. `at_gate` as in a plan. By expert and by neuron it is
 * calibrated on the trial's part, which is open, by two runs of the bundle and some of single layers; its
 * scorer then keeps all neurons and takes the router's experts. Errors: those of moec_sparsity_check_config,
 * of the scorer and of progress. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_fit_create(struct moec_trial *trial, enum moec_sparsity_by by,
                                                           bool at_gate,
                                                           const struct moec_sparsity_table *table,
                                                           struct moec_sparsity_fit **out,
                                                           struct moec_error *err);
void moec_sparsity_fit_free(struct moec_sparsity_fit *fit);

/* Sets a plan of the same model and kind. `share`, in thousandths: by model of each expert's neurons, else of
 * the bytes of gate and down that tokens of the calibration decode, left out. */
void moec_sparsity_fit_plan(const struct moec_sparsity_fit *fit, uint32_t share,
                            struct moec_sparsity_plan *plan);
/* The most that may be left out, in thousandths. */
uint32_t moec_sparsity_fit_most(const struct moec_sparsity_fit *fit);

#endif
