/* How likely a token is among all, and which are likelier.
 * Thread rule: a pure function. */
#ifndef MOEC_RUNTIME_TOKEN_RANKS_H
#define MOEC_RUNTIME_TOKEN_RANKS_H

#include "runtime/kernels/kernels.h"
#include "runtime/moert.h"

/* Scores of `token` (< n_vocab), then of the n_best (<= MOERT_SCORE_BEST, n_vocab) likeliest, by logits
 * (n_vocab), which are then scratch. log_prob = (x - max) - log(sum of exp(x - max)), as moec eval has it. */
void moec_token_ranks(const struct moec_kernels *kernels, float *logits, uint32_t n_vocab, uint32_t token,
                      uint32_t n_best, struct moert_score *scores);

#endif
