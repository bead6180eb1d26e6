/* Room for the largest answer of a deep layer is set aside first, so shallow layers cannot take all of it.
 * It is given back before the deep ones share. They get an expert each in turn, for as long as one more fits
 * into any of them. */
#include "runtime/policy/schedule/layer_shares.h"

#include <stdbool.h>
#include <stddef.h>

/* Rounded up, so that experts of a share do not take more than it. */
static uint64_t mean_bytes(const struct moec_layer_shares_setup *setup, uint32_t layer)
{
    const uint64_t *slots =
        setup->slot_bytes + ((size_t)layer * setup->shape.n_form + setup->form) * setup->shape.n_expert;
    uint64_t sum = 0;
    for (uint32_t expert = 0; expert < setup->shape.n_expert; expert++)
        sum += slots[expert];
    return (sum + setup->shape.n_expert - 1) / setup->shape.n_expert;
}

/* Gives a layer up to n experts of what is left. */
static void give(uint64_t *left_bytes, uint64_t record_bytes, uint32_t n, uint32_t *share)
{
    const uint64_t n_fit = record_bytes > 0 ? *left_bytes / record_bytes : n;
    const uint32_t n_given = n_fit < n ? (uint32_t)n_fit : n;
    *share += n_given;
    *left_bytes -= n_given * record_bytes;
}

void moec_layer_shares(const struct moec_layer_shares_setup *setup, uint32_t *shares)
{
    const uint32_t first_deep = setup->shape.n_encoder + setup->shape.n_shallow < setup->shape.n_layer
                                    ? setup->shape.n_encoder + setup->shape.n_shallow
                                    : setup->shape.n_layer;
    uint64_t left = setup->capacity_bytes, answer_bytes = 0;
    for (uint32_t layer = 0; layer < setup->shape.n_layer; layer++) {
        const uint64_t bytes = setup->shape.top_k * mean_bytes(setup, layer);
        shares[layer] = 0;
        if (layer >= first_deep)
            answer_bytes = bytes > answer_bytes ? bytes : answer_bytes;
    }
    answer_bytes = answer_bytes < left ? answer_bytes : left;
    left -= answer_bytes;
    for (uint32_t layer = setup->shape.n_encoder; layer < first_deep; layer++)
        give(&left, mean_bytes(setup, layer), setup->shape.n_expert, &shares[layer]);
    left += answer_bytes;
    for (bool has_given = true; has_given;) { /* an expert each, while there is room */
        has_given = false;
        for (uint32_t layer = first_deep; layer < setup->shape.n_layer; layer++) {
            const uint32_t before = shares[layer];
            if (before < setup->shape.n_expert)
                give(&left, mean_bytes(setup, layer), 1, &shares[layer]);
            has_given = has_given || shares[layer] > before;
        }
    }
}
