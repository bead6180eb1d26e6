/* `moec sparsify --max-loss`: the sparsity plan (formats/bundle/sparsity_plan.h) with which a bundle
 * decodes the fewest bytes a token within a loss target.
 *
 *   search part       what each neuron costs when it is left out (sparsity_fit.h), by up and by the gate: the
 *                     one that loses less at 70 % is kept; then thresholds, from mild to strong, to where the
 *                     loss is spent
 *   certificate part  up to 8 of them, from the safest to the smallest, tested until one fails
 *
 * Losses are against the original model, so the bundle's own bits take
 * their share of the target. The certificate is that of fixed-sequence testing
 * (compiler/certify/sequence.h). Thread rule: one thread, parallel inside; results do not depend on threads.
 */
#ifndef MOEC_COMPILER_SPARSIFY_H
#define MOEC_COMPILER_SPARSIFY_H

#include "compiler/certify/trial.h"
#include "formats/bundle/sparsity_plan.h"
#include "formats/tables/sparsity_table.h"

#define MOEC_SPARSIFY_MAX_CANDIDATES 16

struct moec_sparsify_options {
    struct moec_trial_options trial; /* without a sparsity */
    enum moec_sparsity_by by;
    bool tries[2]; /* by up, by the gate: at least one of them */
    /* By model: thresholds of up and of the gate for each share, of those that are tried; else not looked at. */
    const struct moec_sparsity_table *tables[2];
};

/* The share that is left out where up and the gate are compared, in thousandths. */
#define MOEC_SPARSIFY_TRIED_SHARE 700u

struct moec_sparsify_candidate {
    /* By model of each expert's neurons, else of the bytes of gate and down: left out in calibration, in
     * thousandths. */
    uint32_t share;
    struct moec_loss search; /* against the original */
    struct moec_sparsity_traffic traffic;
    bool is_on_front; /* within the target, and no other one loses less and reads no more */
};

struct moec_sparsify_report {
    struct moec_loss plain;    /* with all neurons, on the search part */
    struct moec_loss tried[2]; /* by up and by the gate, where both were tried */
    struct moec_sparsify_candidate candidates[MOEC_SPARSIFY_MAX_CANDIDATES];
    uint32_t n_candidate;
    uint32_t sequence[MOEC_MAX_SEQUENCE]; /* (n_sequence) places in candidates, in the order of the tests */
    uint32_t n_sequence;
    struct moec_sparsity_plan plan; /* the last that passed; its certificate has the tests */
    bool is_reused; /* the bundle itself was certified on the same windows: each promise holds by itself */
};

/* Searches and certifies. Fills what it has measured in any case; released with moec_sparsify_report_release.
 * `note` of the progress receives a line for each measurement. Errors: MOEC_ERR_TARGET when nothing is
 * proven, saying what the bundle itself loses and what could be asked for; those of
 * moec_sparsity_check_config, of the scorer and of `progress`. */
MOEC_WARN_UNUSED enum moec_status moec_sparsify(const struct moec_trial_inputs *inputs,
                                                const struct moec_sparsify_options *options,
                                                const struct moec_progress *progress,
                                                struct moec_sparsify_report *report, struct moec_error *err);
void moec_sparsify_report_release(struct moec_sparsify_report *report);

#endif
