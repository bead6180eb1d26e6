/* A candidate of a search (D16): the codecs of every expert and of every dense matrix. One bitwidth for each
 * expert, and one for all dense weights, as in EdgeMoE, is the simplest case.
 * Thread rule: a plan belongs to one thread while it is changed. */
#ifndef MOEC_FORMATS_PLAN_H
#define MOEC_FORMATS_PLAN_H

#include "formats/model/record.h"

struct moec_plan {
    uint32_t n_layer;             /* MoE layers, S */
    uint32_t n_expert;            /* E */
    struct moec_variant *experts; /* (S, E), owned */
    uint32_t dense_bits;          /* of the dense weights: 4, 8, 16 or 32; 0 = not decided yet */
    uint32_t n_dense;             /* matrices that --dense-bits applies to, moec_plan_dense_count */
    /* (n_dense), owned: the codec number of each, in the order of the dense table; 0 = as dense_bits says */
    uint8_t *dense;
};

/* Number of dense matrices of a model that a plan may encode: those of moec_role_is_quantisable. */
uint32_t moec_plan_dense_count(const struct moec_config *config);

/* Every expert at 16 bits, no dense matrix with a codec of its own. Errors: MOEC_ERR_MEMORY. Released by the
 * caller. */
MOEC_WARN_UNUSED enum moec_status moec_plan_create(struct moec_plan *plan, const struct moec_config *config,
                                                   struct moec_error *err);
/* Idempotent; does nothing to a zeroed plan. */
void moec_plan_release(struct moec_plan *plan);

/* Number of experts, S * E. */
static inline size_t moec_plan_count(const struct moec_plan *plan)
{
    return (size_t)plan->n_layer * plan->n_expert;
}

/* Every projection of every expert with the codec of this number. */
void moec_plan_fill(struct moec_plan *plan, uint32_t number);

/* Copies into a plan of the same model. */
void moec_plan_copy(struct moec_plan *to, const struct moec_plan *from);

#endif
