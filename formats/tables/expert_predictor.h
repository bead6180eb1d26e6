/* A learned predictor of experts (FloE, section 3.3.1): for each MoE layer a perceptron of one layer, or of
 * two beside the one, that names the experts of the next MoE layer of the same stack while this one is
 * computed.
 *
 * Letters: S MoE layers, E experts, d hidden size, F = d + E inputs, H hidden units of a layer's perceptron.
 * Inputs: what this layer's router reads (its hidden state after the norm), then for each expert 1 where this
 * layer's router chose it and 0 elsewhere. With r(z) = max(z, 0) the logits of the next layer's experts are
 *     direct . input + out . r(hidden . input + hidden_bias) + bias
 *
 * and their sigmoids the probabilities that the token chooses them. Where H is 0, the second term is absent.
 *
 * Matrices are INT8 rows with one scale each (formats/codec/codec.h). Guesses are read early and change no
 * result. Thread rule: immutable once made. */
#ifndef MOEC_FORMATS_EXPERT_PREDICTOR_H
#define MOEC_FORMATS_EXPERT_PREDICTOR_H

#include "formats/base/digest.h"
#include "formats/model/dense.h"

#define MOEC_PREDICTOR_MAX_HIDDEN 1024u

struct moec_predictor_layer {
    bool is_known;             /* false in a stack's last MoE layer, which has none after it */
    uint32_t n_hidden;         /* H */
    struct moec_matrix direct; /* (E, F) */
    struct moec_matrix hidden; /* (H, F) */
    struct moec_matrix out;    /* (E, H) */
    float *bias;               /* (E) */
    float *hidden_bias;        /* (H) */
};

struct moec_expert_predictor {
    uint32_t n_layer, n_expert, n_embd; /* S, E, d; all 0 = there is none */
    uint64_t n_token;                   /* that it learned from */
    uint8_t data_digest[MOEC_SHA256_BYTES];
    /* Shares of the chosen experts among its first k guesses, and among the next layer's router's on the same
     * input: of tokens that it did not learn from, mean over its layers. */
    double recall, gate_recall;
    struct moec_predictor_layer *layers; /* (S), owned */
    uint8_t *rows;                       /* of all matrices, owned */
    float *biases;                       /* of all layers, owned */
};

/* F. */
static inline uint32_t moec_predictor_inputs(uint32_t n_embd, uint32_t n_expert)
{
    return n_embd + n_expert;
}

/* Bytes of a layer's part of the section. */
uint64_t moec_predictor_layer_bytes(const struct moec_config *config, uint32_t n_hidden);

/* Room for layers with so many hidden units each, n_hidden (S), where `is_known` (S) says so; all zero.
 * Released with moec_expert_predictor_release. Errors: MOEC_ERR_MEMORY, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_expert_predictor_create(const struct moec_config *config,
                                                               const bool *is_known, const uint32_t *n_hidden,
                                                               struct moec_expert_predictor *out,
                                                               struct moec_error *err);
void moec_expert_predictor_release(struct moec_expert_predictor *predictor);

/* Bytes that it holds in memory. */
uint64_t moec_expert_predictor_bytes(const struct moec_expert_predictor *predictor);

/* Rows that may be written while it is being made. */
static inline uint8_t *moec_predictor_row(const struct moec_expert_predictor *predictor,
                                          const struct moec_matrix *matrix, uint32_t row)
{
    return predictor->rows + (matrix->data - predictor->rows) + row * matrix->stride_bytes;
}

/* The section of a bundle (FORMAT.md): allocated, the caller frees it. */
MOEC_WARN_UNUSED enum moec_status moec_expert_predictor_encode(const struct moec_expert_predictor *predictor,
                                                               uint8_t **bytes, size_t *n_bytes,
                                                               struct moec_error *err);
/* Errors: MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED (version), MOEC_ERR_MEMORY; on failure `out` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_expert_predictor_decode(const uint8_t *bytes, size_t n_bytes,
                                                               const struct moec_config *config,
                                                               struct moec_expert_predictor *out,
                                                               struct moec_error *err);

#endif
