/* How a buffer of experts is shared out among the MoE layers (Fate, arXiv:2502.12224, section 4.4): shallow
 * layers, whose experts the router of the layer before hints badly, are held whole as far as the buffer
 * goes, one after the other; what is left goes to the deep ones evenly:
 *
 *     cache_deep = (cache_total - L x num_experts) / (num_layers - L)
 *
 * Records differ in size, so a layer's counts as its mean. One answer's experts have room beside the shallow
 * layers in any case. The layers of an encoder, each of which an input passes once, have no share. Thread
 * rule: pure. */
#ifndef MOEC_RUNTIME_LAYER_SHARES_H
#define MOEC_RUNTIME_LAYER_SHARES_H

#include <stdint.h>

/* The experts that a buffer is for. */
struct moec_expert_shape {
    uint32_t n_layer, n_encoder; /* MoE layers, and how many of these are an encoder's, the first ones */
    uint32_t n_shallow;          /* L: of the others, the first ones */
    uint32_t n_expert, n_form;   /* that each expert may be present in */
    uint32_t top_k;              /* experts of an answer */
};

struct moec_layer_shares_setup {
    struct moec_expert_shape shape;
    uint32_t form;              /* whose slots count */
    const uint64_t *slot_bytes; /* (n_layer, n_form, n_expert) */
    uint64_t capacity_bytes;
};

/* shares (n_layer): experts of each layer. */
void moec_layer_shares(const struct moec_layer_shares_setup *setup, uint32_t *shares);

#endif
