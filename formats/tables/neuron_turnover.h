/* How neurons that are active for a token lie in an expert's record: how likely the one after an active
 * neuron is not active, by the share that is left out. Where neurons are active by lot that is the share
 * itself; where those that are active together stand together (formats/tables/neuron_order.h) it is less. As a
 * chain of two states it says in how many ranges, and how long ones, a token's neurons lie. Thread rule:
 * plain data. */
#ifndef MOEC_FORMATS_NEURON_TURNOVER_H
#define MOEC_FORMATS_NEURON_TURNOVER_H

#include <stdint.h>

#define MOEC_SPARSITY_MAX_SHARES 32u

struct moec_neuron_turnover {
    uint32_t n_share;                          /* 0: not measured */
    uint16_t shares[MOEC_SPARSITY_MAX_SHARES]; /* thousandths, rising, 1 to 999 */
    float turnover[MOEC_SPARSITY_MAX_SHARES];  /* 0 to 1 */
};

/* At a share from 0 to 1: between those measured the ratio to the share is interpolated, beyond them it is
 * that of the nearest. The share itself where nothing was measured. */
double moec_neuron_turnover_at(const struct moec_neuron_turnover *turnover, double share);

#endif
