/* The sparsity plan of a bundle: which neurons of its routed experts a token leaves out, and what is promised
 * of the bundle with it. FloE (eq. 5 and 11) leaves out those whose |up . x| is under a threshold of their
 * expert. A plan may also weigh |up . x| by what a neuron's product costs (scales) and by the token's gate
 * weight, so that what is left out does the least harm for each byte that is not read. At the gate, by model,
 * it is CATS (arXiv:2404.08763), by neuron in the manner of CHESS (arXiv:2409.01366). Thread rule: immutable
 * once made. */
#ifndef MOEC_FORMATS_SPARSITY_PLAN_H
#define MOEC_FORMATS_SPARSITY_PLAN_H

#include "formats/bundle/bundle.h"

/* How a plan was chosen: one share of neurons for all experts, as FloE does; a threshold for each expert; or
 * a scale for each neuron, and the token's gate weight counts. */
enum moec_sparsity_by { MOEC_SPARSITY_BY_MODEL, MOEC_SPARSITY_BY_EXPERT, MOEC_SPARSITY_BY_NEURON };
#define MOEC_SPARSITY_BY_COUNT 3

/* "model", "expert", "neuron". */
const char *moec_sparsity_by_name(enum moec_sparsity_by by);

/* The largest BF16 number: a scale with which a neuron stays. */
#define MOEC_SPARSITY_KEEP 0x7f7fu

/* What tokens read on the certificate part: encoded rows of routed experts, up's and those of gate and down
 * that stay. */
struct moec_sparsity_traffic {
    double active_share;      /* of neurons, 0 to 1 */
    double token_bytes;       /* decoded for a token */
    double dense_token_bytes; /* the same with all neurons */
};

struct moec_sparsity_plan {
    uint32_t n_layer, n_expert; /* MoE layers and their experts; 0 = there is no plan */
    uint32_t n_scale;           /* of an expert: its neurons, or 1 where they share one */
    enum moec_sparsity_by by;
    bool
        is_at_gate; /* what is compared is |act(gate . x)| in place of |up . x|: the gate is computed first */
    /* A neuron is left out where |up . x| times its scale is under the threshold; by neuron times the token's
     * gate weight too. */
    float threshold;  /* finite, from 0 on */
    uint16_t *scales; /* (n_layer, n_expert, n_scale), owned: BF16 numbers, finite, from +0 on */
    /* Of the bundle with this plan against the original model, so that the loss of its own bits counts. In
     * the sequence, n_bytes are those decoded for a token, on the search part; of moec tune those read by the
     * logical cache. Without a sequence it is a measurement and no promise: that of the decisions, which the
     * plan was searched with, is. */
    struct moec_certificate certificate;
    double plain_loss, plain_low, plain_high; /* of the bundle with all neurons, on the same windows */
    struct moec_sparsity_traffic traffic;
};

/* A plan with room for scales, all 0: one for each expert, or by neuron n_ff. Released with
 * moec_sparsity_plan_release. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_plan_create(const struct moec_config *config,
                                                            enum moec_sparsity_by by,
                                                            struct moec_sparsity_plan *plan,
                                                            struct moec_error *err);
void moec_sparsity_plan_release(struct moec_sparsity_plan *plan);

/* The section of a bundle: allocated, the caller frees it. Errors: MOEC_ERR_FORMAT for figures that are not
 * finite. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_plan_encode(const struct moec_sparsity_plan *plan,
                                                            uint8_t **bytes, size_t *n_bytes,
                                                            struct moec_error *err);
/* Errors: MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED for another version or a model without use for it,
 * MOEC_ERR_MEMORY; on failure `plan` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_sparsity_plan_decode(const uint8_t *bytes, size_t n_bytes,
                                                            const struct moec_config *config,
                                                            struct moec_sparsity_plan *plan,
                                                            struct moec_error *err);

#endif
