/* The table of thresholds that --sparsity SHARE goes by (formats/tables/sparsity_table.h), of a bundle's own
 * weights. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_SPARSIFY_TABLE_H
#define MOEC_COMPILER_SPARSIFY_TABLE_H

#include "compiler/certify/trial.h"
#include "formats/tables/sparsity_table.h"

/* Fills a table, released by the caller in every case, with thresholds on the search part of the inputs, so
 * that what certifies stays unseen: of |up . x|, or at the gate of |act(gate . x)|. Of the options kernels and threads count. Progress is in windows, each
 * counted MOEC_SPARSIFY_TABLE_RUNS times. Errors: those of moec_sparsity_table_create and
 * moec_thresholds_fill. */
#define MOEC_SPARSIFY_TABLE_RUNS 2.0
MOEC_WARN_UNUSED enum moec_status moec_sparsify_table_fill(const struct moec_trial_inputs *inputs,
                                                           const struct moec_trial_options *options,
                                                           bool at_gate, const struct moec_progress *progress,
                                                           struct moec_sparsity_table *table,
                                                           struct moec_error *err);

#endif
