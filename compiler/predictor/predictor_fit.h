/* Fits one layer of a learned predictor of experts (formats/tables/expert_predictor.h): logistic regression
 * for each expert of the next layer, alone or with a layer of hidden units beside it.
 *
 * Adam (Kingma & Ba, 2015) on minibatches of tokens in a drawn order, loss: binary cross-entropy of all
 * experts. Inputs are brought to mean 0 and variance 1 first, which is undone in the weights. The direct part
 * begins as the next layer's router: what it makes of this layer's input is what `--predict gate` guesses by.
 * After each turn over the tokens the recall at k is taken on those kept apart, and the best turn's weights
 * are kept.
 *
 * All sums have one order, so equal examples give equal weights on every machine and at any number of
 * threads. Thread rule: one thread for a fit; several fits may share examples. */
#ifndef MOEC_COMPILER_PREDICTOR_FIT_H
#define MOEC_COMPILER_PREDICTOR_FIT_H

#include "formats/base/error.h"
#include "runtime/kernels/kernels.h"

#define MOEC_PREDICTOR_NO_EXPERT UINT32_MAX

/* Letters: T tokens, F inputs, E experts, k top-k, H hidden units. */
struct moec_predictor_examples {
    uint32_t n_token;
    uint32_t n_train; /* the first of the tokens; the others are kept apart. T > n_train >= 1 */
    struct {
        uint32_t n_input, n_expert, top_k;
    } shape;
    size_t stride;          /* floats of a row of inputs: F rounded up to MOEC_LANES, the padding zero */
    const float *inputs;    /* (T, stride) */
    const uint32_t *wanted; /* (T, k): the next layer's choices, MOEC_PREDICTOR_NO_EXPERT for none */
    const float *router;    /* (E, stride): the next layer's, zeros past what it reads */
};

struct moec_predictor_fit {
    uint32_t n_hidden;  /* H */
    float *weights;     /* owned: all of the following */
    float *direct;      /* (E, stride) */
    float *hidden;      /* (H, stride) */
    float *out;         /* (E, H rounded up to MOEC_LANES) */
    float *hidden_bias; /* (H) */
    float *bias;        /* (E) */
    double recall;      /* at k, of the tokens kept apart */
    uint32_t n_turn;    /* over the tokens, until the best */
};

/* Released with moec_predictor_fit_release. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_predictor_fit_make(const struct moec_predictor_examples *examples,
                                                          const struct moec_kernels *kernels,
                                                          uint32_t n_hidden, uint64_t seed,
                                                          struct moec_predictor_fit *out,
                                                          struct moec_error *err);
void moec_predictor_fit_release(struct moec_predictor_fit *fit);

#endif
