/* From the products of gate and up to what the down projection reads: biases, activations, and the filters
 * that leave neurons out (internal to runtime/ and to those who study them). Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_ACTIVATION_H
#define MOEC_RUNTIME_ACTIVATION_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"

/* The neurons whose products stand in a chunk's rows: `n_row` from `first` on in each. */
struct moec_neurons {
    uint32_t first, n_row;
};

/* What a neuron's |up . x|, times its scale, must reach to stay for a token whose output counts `weight`
 * times: the filter's threshold, with scales divided by the weight. */
float moec_mlp_limit(const struct moec_mlp_filter *filter, float weight);

/* Whether the filter leaves a neuron of this up product to a token of this limit. */
bool moec_mlp_stays(const struct moec_mlp_filter *filter, uint32_t neuron, float up, float limit);

/* Whether neurons with small up products can be left out before their gate and down rows are read; else all
 * count as active. */
bool moec_mlp_leaves_out(const struct moec_mlp *mlp);

/* Those of n neurons from `neuron` on that the filter leaves, counted from it: n of them at most in `active`,
 * and their up products moved together in `up` (n). Returns how many. */
uint32_t moec_mlp_find_active(const struct moec_mlp_filter *filter, uint32_t neuron, float limit, uint32_t n,
                              float *up, uint8_t *active);

/* scratch->gate = what the down projection reads of n neurons, from both products (scratch->gate,
 * scratch->up), of which those of up have been filtered. Zero in either factor makes the product zero, except
 * where the activation is clamped. `neurons` and the rows' limits are looked at by filters at the gate.
 * Returns how many such a filter leaves out. */
uint32_t moec_mlp_activate_gated(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                                 const struct moec_mlp_scratch *scratch, struct moec_neurons neurons,
                                 const float *limits, size_t n);

/* Whether neurons whose activated gate is small can be left out before their up and down rows are read. */
bool moec_mlp_leaves_out_by_gate(const struct moec_mlp *mlp);

/* Those of `neurons` that a filter at the gate leaves, counted from the first, by their products in
 * scratch->gate, which are moved together: as many at most in `active`. Returns how many. */
uint32_t moec_mlp_find_by_gate(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                               const struct moec_mlp_scratch *scratch, struct moec_neurons neurons,
                               float limit, uint8_t *active);

/* From the products (n_tok, n_row) of `neurons`, without biases, in scratch->gate and
 * scratch->up, or in scratch->gate alone where there is no gate, for rows of these limits (n_tok), to what
 * the down projection reads, in scratch->gate. Returns how many products a filter of up or at the gate
 * leaves; all, where there is none. */
uint32_t moec_mlp_activate(const struct moec_kernels *kernels, const struct moec_mlp *mlp,
                           const struct moec_mlp_scratch *scratch, struct moec_neurons neurons,
                           const float *limits, uint32_t n_tok);

/* What filters compare (struct moec_mlp_filter) of n neurons of a gated MLP other than the clamped GLU:
 * `gate`, gate . x on entry, becomes its activation, and `down` what the down projection reads. */
void moec_mlp_factors(const struct moec_kernels *kernels, uint8_t activation, size_t n, float *gate,
                      const float *up, float *down);

#endif
