/* The order in which the neurons of each routed expert stand in its record, where that is not the
 * checkpoint's: those that are active together beside each other, so that what a token needs of an expert
 * lies in few ranges (compiler/fit/coactivation.h). Gate and up have rows, down columns in that order: the
 * expert computes the same, but for the order of sums. Thread rule: immutable once filled. */
#ifndef MOEC_FORMATS_NEURON_ORDER_H
#define MOEC_FORMATS_NEURON_ORDER_H

#include "formats/model/record.h"

#define MOEC_ORDER_MAX_NEURONS 65536u

struct moec_neuron_order {
    uint32_t n_layer, n_expert, n_neuron; /* MoE layers, experts, neurons of each; 0 = there is none */
    uint16_t *neurons; /* (n_layer, n_expert, n_neuron), owned: the checkpoint's that stands at each place */
};

/* Whether a model's experts can be in another order: their neurons may be left out
 * (moec_sparsity_check_config), and each of them stands alone. Errors: MOEC_ERR_UNSUPPORTED, with the reason.
 */
MOEC_WARN_UNUSED enum moec_status moec_neuron_order_check(const struct moec_config *config,
                                                          struct moec_error *err);

/* The checkpoint's order, of a model that was checked. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_neuron_order_create(const struct moec_config *config,
                                                           struct moec_neuron_order *order,
                                                           struct moec_error *err);
/* Whether each neuron of an expert has a place, and one alone. Errors: MOEC_ERR_FORMAT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_neuron_order_validate(const struct moec_neuron_order *order,
                                                             struct moec_error *err);
void moec_neuron_order_release(struct moec_neuron_order *order);

/* That of an expert: (n_neuron). */
static inline uint16_t *moec_neuron_order_of(const struct moec_neuron_order *order, uint32_t ordinal,
                                             uint32_t expert)
{
    return order->neurons + ((size_t)ordinal * order->n_expert + expert) * order->n_neuron;
}

/* Rows of row_bytes, stride_bytes apart in both: row i of `to` becomes row neurons[i] of `from`. */
void moec_rows_reorder(const uint16_t *neurons, uint32_t n, size_t row_bytes, size_t stride_bytes,
                       const void *from, void *to);

/* The record `to` of an expert in this order, from the one in the checkpoint's. They may not overlap. Not for
 * codecs whose neurons share scales. */
void moec_record_reorder(const struct moec_record_layout *layout, const uint16_t *neurons,
                         const uint8_t *from, uint8_t *to);

#endif
