/* Experts at a chosen sparsity (FloE, section 3.2.1): neurons whose |up . x| is under their expert's
 * threshold are left out, and neither their gate row nor their down column is read; with a bundle's plan
 * |up . x| may be scaled first, or the activated gate may be in its place, and up's rows are then not read
 * (formats/bundle/sparsity_plan.h). Which ones is a function of the weights and
 * the token alone (D15).
 *
 * A forward pass that is given one (struct moec_forward) sets each routed expert's filter from it, and counts
 * what it leaves out. Thread rule: many passes may share one; counts are atomic. */
#ifndef MOEC_RUNTIME_SPARSITY_H
#define MOEC_RUNTIME_SPARSITY_H

#include "formats/bundle/bundle_sparsity.h"
#include "formats/model/record.h"

/* Of routed experts, for all tokens since creation. Bytes are those of encoded rows that the neurons have:
 * all rows, and those of up, with scales of neurons, and the gate and down rows of neurons that stay. The
 * latter is what decoding token by token reads; a prompt's tokens share rows. */
struct moec_sparsity_counts {
    uint64_t n_neuron, n_active;
    uint64_t dense_bytes, active_bytes;
};

struct moec_sparsity;

/* `share` in thousandths; the config is borrowed. Errors: as moec_sparsity_table_choose, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_create(const struct moec_sparsity_table *table,
                                                       const struct moec_config *config, uint32_t share,
                                                       struct moec_sparsity **out, struct moec_error *err);
/* By a plan, of the same model; the config is borrowed. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_create_planned(const struct moec_sparsity_plan *plan,
                                                               const struct moec_config *config,
                                                               struct moec_sparsity **out,
                                                               struct moec_error *err);
/* By the bundle's plan, for its compiled assignment, with the plan's certificate; *out is NULL where it has
 * none, and the certificate stays what it was. The bundle is borrowed. Errors: those of the section. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_open_planned(const struct moec_bundle *bundle,
                                                             struct moec_sparsity **out,
                                                             struct moec_certificate *certificate,
                                                             struct moec_error *err);
/* By the bundle's table, for a share such as 0.6, rounded to thousandths; the bundle is borrowed. Errors:
 * MOEC_ERR_USAGE for a share out of range and for copies other than 0, whose weights the table is not of;
 * MOEC_ERR_UNSUPPORTED for a bundle without a table or a model without use for one. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_open(const struct moec_bundle *bundle, uint32_t copy,
                                                     double share, struct moec_sparsity **out,
                                                     struct moec_error *err);
void moec_sparsity_free(struct moec_sparsity *sparsity);

/* The share of neurons that is expected to be left out. */
double moec_sparsity_share(const struct moec_sparsity *sparsity);

/* Sets the filter of an expert of a model layer. */
void moec_sparsity_filter(const struct moec_sparsity *sparsity, uint32_t layer, uint32_t expert,
                          struct moec_mlp *mlp);

/* Whether neurons are left out by the activated gate, so that it is up's rows that are not read. */
bool moec_sparsity_is_at_gate(const struct moec_sparsity *sparsity);

/* Whether a GPU can leave the neurons out. Errors: MOEC_ERR_UNSUPPORTED where the gate decides. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_check_device(const struct moec_sparsity *sparsity,
                                                             struct moec_error *err);

/* Scales of neurons, (n) in one piece that filters point into; NULL without. */
const uint16_t *moec_sparsity_scales(const struct moec_sparsity *sparsity, uint64_t *n);

/* Neurons of an MLP that were looked at, and those of them that stayed. */
void moec_sparsity_count(struct moec_sparsity *sparsity, const struct moec_mlp *mlp, uint64_t n_neuron,
                         uint64_t n_active);
struct moec_sparsity_counts moec_sparsity_counts(const struct moec_sparsity *sparsity);

/* Of n_bytes among these counts those for each token: all MoE layers, top-k experts each. */
double moec_sparsity_token_bytes(const struct moec_sparsity_counts *counts, const struct moec_config *config,
                                 uint64_t n_bytes);

#endif
