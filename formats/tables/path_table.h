/* The path table: which experts follow which (EdgeMoE III-C1, "statistical profile of expert activations").
 *
 * Key: one pair (E_{n-2}, E_{n-1}) of experts that a token activated in the two MoE layers before layer n.
 * Value: the experts most often activated in layer n, with their probabilities; the 2k best are kept. Layers
 * are MoE ordinals. Layer 0 has no key and uses the frequency row; layer 1 uses single keys; if a decoder
 * follows an encoder, this holds for the first two layers of each, because tokens of the target never pass
 * the encoder. Unseen pair -> single key E_{n-1} -> frequency of layer n. Thread rule: immutable after
 * creation.
 */
#ifndef MOEC_FORMATS_PATH_TABLE_H
#define MOEC_FORMATS_PATH_TABLE_H

#include "formats/model/config.h"

/* An expert and its score. */
struct moec_scored_expert {
    uint32_t expert;
    float score;
};

/* One predicted expert. probability is scaled: 65535 = 1. */
struct moec_path_value {
    uint16_t expert;
    uint16_t probability;
};

#define MOEC_PATH_NONE 0xffffu /* first of a single key (E_{n-1} alone), and expert of unused value slots */

/* A key of layer n; rows are sorted by (layer, first, second). first = E_{n-2} or MOEC_PATH_NONE. */
struct moec_path_key {
    uint16_t layer;
    uint16_t first;
    uint16_t second;
    uint16_t reserved; /* 0 */
    uint32_t count;    /* tokens that had this key in calibration */
};

struct moec_path_table {
    uint32_t n_layer; /* MoE layers */
    uint32_t n_expert;
    uint32_t top_k;
    uint32_t n_value; /* values a key: min(2 * top_k, n_expert) */
    uint32_t n_key;
    /* Of the layers (of a decoder's, after an encoder), the first so many have experts that the router of the
     * layer before foresees badly (L of Fate, arXiv:2502.12224, section 4.4); 0 = not measured. */
    uint32_t n_shallow;
    struct moec_path_key *keys; /* (n_key), owned */
    /* (n_key, n_value), owned; by falling probability, ties to the lower index */
    struct moec_path_value *values;
    struct moec_path_value *frequency; /* (n_layer, n_expert), owned; by falling probability */
    /* (n_layer), owned, not in the section "paths" but in one of its own: by how much the largest of what the
     * router compares (runtime/policy/decide/route.h) exceeds the smallest, mean over calibration (eq. 10 of
     * arXiv:2412.00099). NULL = not measured. */
    float *ranges;
    /* (MOEC_SCORE_COUNT), owned, likewise in a section of its own: of the experts of all layers the share
     * with scores up to 0, 0.01, .. 1 (formats/tables/score_shares.h). NULL = not measured. */
    float *scores;
};

void moec_path_table_release(struct moec_path_table *table);

/* Checks dimensions, keys (in range, in order) and lists of values (in range, each expert once, by falling
 * probability). The arrays have the lengths that the dimensions say. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_path_table_check(const struct moec_path_table *table,
                                                        struct moec_error *err);

/* Experts that a layer's router chose for a token, and their gate weights. */
struct moec_path_choices {
    const uint16_t *experts; /* (top_k) */
    const float *weights;    /* (top_k) */
};

/* Probability of each expert of MoE layer `layer` (1..n_layer-1), predicted from a token's choices in the
 * layer before (`last`) and two before (`before`, nothing for layer 1): mean over the token's pairs weighted
 * by the products of their gate weights. out: (n_expert). */
void moec_path_table_predict(const struct moec_path_table *table, uint32_t layer,
                             struct moec_path_choices before, struct moec_path_choices last, float *out);

/* Binary section of a bundle (FORMAT.md, "paths"). Owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_path_table_encode(const struct moec_path_table *table, uint8_t **bytes,
                                                         size_t *n_bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_path_table_decode(const uint8_t *bytes, size_t n_bytes,
                                                         struct moec_path_table *table,
                                                         struct moec_error *err);

/* The section "router ranges" of n_layer MoE layers: encode writes moec_router_ranges_bytes; what decode
 * gives is owned by the caller. Errors: MOEC_ERR_FORMAT for another number of layers and for ranges below 0
 * or not finite, MOEC_ERR_UNSUPPORTED for another version. */
static inline size_t moec_router_ranges_bytes(uint32_t n_layer)
{
    return 8 + (size_t)n_layer * 4;
}
void moec_router_ranges_encode(const float *ranges, uint32_t n_layer, uint8_t *bytes);
MOEC_WARN_UNUSED enum moec_status moec_router_ranges_decode(const uint8_t *bytes, size_t n_bytes,
                                                            uint32_t n_layer, float **ranges,
                                                            struct moec_error *err);
#endif
