/* How the scores of experts are spread (HOBBIT, arXiv:2411.01433, eq. 2 and Fig. 5b): of the experts that
 * tokens of calibration take, the share whose score is at most 0, 0.01, .. 1. An expert's score is the weight
 * of those before it in its token's order, all weights summing to 1, so that thresholds can be chosen by the
 * share of experts that are to stay below them. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_SCORE_SHARES_H
#define MOEC_FORMATS_SCORE_SHARES_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define MOEC_SCORE_STEPS  100u /* between 0 and 1 */
#define MOEC_SCORE_COUNT  (MOEC_SCORE_STEPS + 1)
#define MOEC_SCORES_BYTES (8 + MOEC_SCORE_COUNT * 4)

/* What the paper's thresholds make of the experts of Mixtral-8x7B: high, and high or low. */
#define MOEC_SCORE_PAPER_HIGH 0.67
#define MOEC_SCORE_PAPER_READ 0.97

/* The lowest threshold, in hundredths, up to which at least this share of experts lies. shares: (COUNT). */
uint32_t moec_score_threshold(const float *shares, double share);

/* The section "expert scores" of a bundle: encode writes MOEC_SCORES_BYTES; what decode gives, (COUNT), is
 * owned by the caller. Errors: MOEC_ERR_FORMAT for another length and for shares that fall, lie outside 0 to
 * 1 or do not end with 1, MOEC_ERR_UNSUPPORTED for another version. */
void moec_score_shares_encode(const float *shares, uint8_t *bytes);
MOEC_WARN_UNUSED enum moec_status moec_score_shares_decode(const uint8_t *bytes, size_t n_bytes,
                                                           float **shares, struct moec_error *err);

#endif
