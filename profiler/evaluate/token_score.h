/* From final hidden states to the NLL and KL of single tokens.
 *
 * With x the logits of a token, m their maximum and y = x - m (F32):
 *     lse = log(sum of exp(y)),  nll = lse - y[target]
 *
 * The sum is exp_sum of the kernels (F32, canonical order), the rest F64. KL(original || variant) is
 *     sum of p (log p - log q) = (p . y_original - p . y) + mass (lse - lse_original)
 *
 * with p the original's probabilities as F32 values and mass their sum, so that it is exactly 0 where the
 * logits are the original's, and off by rounding (about 1e-6) elsewhere, to either side. */
#ifndef MOEC_PROFILER_TOKEN_SCORE_H
#define MOEC_PROFILER_TOKEN_SCORE_H

#include "profiler/evaluate/states.h"
#include "runtime/forward/pass/forward.h"

/* The original's distribution at some tokens. */
struct moec_reference {
    uint32_t n_row;  /* room */
    size_t stride;   /* floats, n_vocab padded */
    float *p;        /* (n_row, stride), owned */
    double *mass;    /* (n_row): sum of p, owned */
    double *product; /* (n_row): p . y, owned */
    double *lse;     /* (n_row), owned */
};

/* Bytes of one row. */
uint64_t moec_reference_row_bytes(const struct moec_config *config);
MOEC_WARN_UNUSED enum moec_status moec_reference_create(const struct moec_config *config, uint32_t n_row,
                                                        struct moec_reference *reference,
                                                        struct moec_error *err);
void moec_reference_release(struct moec_reference *reference);

/* Logits of a tile of tokens. One for each forward pass that runs at a time. */
struct moec_token_scorer {
    uint32_t n_row; /* of a tile */
    size_t stride;
    float *logits; /* (n_row, stride), owned */
};

/* Bytes of logits that are scored at once at least: 32 tokens or 8 MiB. */
uint64_t moec_token_scorer_least_bytes(const struct moec_config *config);

/* max_tokens: largest batch that the forward takes; work: logits_bytes of it, NULL: the least. */
MOEC_WARN_UNUSED enum moec_status moec_token_scorer_create(const struct moec_config *config,
                                                           uint32_t max_tokens,
                                                           const struct moec_work_memory *work,
                                                           struct moec_token_scorer *scorer,
                                                           struct moec_error *err);
void moec_token_scorer_release(struct moec_token_scorer *scorer);

/* Final hidden states of tokens, before the final norm. */
struct moec_final_states {
    uint32_t n;
    const float *rows; /* (n, moec_forward_stride) */
};

/* Tokens that are scored, and what comes of them. */
struct moec_scored_tokens {
    const uint32_t *targets;                /* (n): the token after each */
    const struct moec_reference *reference; /* NULL = none: kl becomes 0 */
    const uint32_t *reference_rows;         /* (n): each token's row of it; NULL without one */
    double *nll, *kl;                       /* (n), filled */
};

/* Fills rows first.. of the reference from final hidden states of the original; `forward` is of the original
 * model. */
MOEC_WARN_UNUSED enum moec_status moec_token_scorer_refer(struct moec_token_scorer *scorer,
                                                          const struct moec_forward *forward,
                                                          const struct moec_final_states *states,
                                                          struct moec_reference *reference, uint32_t first,
                                                          struct moec_error *err);

/* Scores the tokens of n final hidden states. */
MOEC_WARN_UNUSED enum moec_status moec_token_scorer_run(struct moec_token_scorer *scorer,
                                                        const struct moec_forward *forward,
                                                        const struct moec_final_states *states,
                                                        const struct moec_scored_tokens *tokens,
                                                        struct moec_error *err);

/* NLL of one token given its logits (n_vocab), which are overwritten.
 * The same bits as moec_token_scorer_run gives. */
double moec_token_nll(const struct moec_kernels *kernels, float *logits, uint32_t n_vocab, uint32_t target);

#endif
