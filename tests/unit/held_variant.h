/* One variant of an expert, as the forward pass gets it. */
#ifndef MOEC_TESTS_HELD_VARIANT_H
#define MOEC_TESTS_HELD_VARIANT_H

#include "profiler/evaluate/variants.h"

/* Assigns the variant, points `mlp` at it, and holds it until variant_release (as often as held). */
static inline enum moec_status variant_hold(struct moec_variants *variants, uint32_t layer, uint32_t expert,
                                            uint32_t code, struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_experts *experts = moec_variants_experts(variants);
    MOEC_TRY(moec_variants_assign_one(variants, layer, expert, code, err));
    return experts->ops->acquire(experts, moec_expert_request_of(layer, expert), mlp, err);
}

/* It stays assigned. */
static inline void variant_release(struct moec_variants *variants, uint32_t layer, uint32_t expert,
                                   uint32_t code)
{
    struct moec_experts *experts = moec_variants_experts(variants);
    if (moec_variants_assign_one(variants, layer, expert, code, NULL) == MOEC_OK)
        experts->ops->release(experts, moec_expert_request_of(layer, expert));
}

#endif
