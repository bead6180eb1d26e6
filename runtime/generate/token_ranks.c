/* One pass finds the rank and the best. What is needed of logits is kept before exponentials are written
 * over them. Of equal logits the lower index is first. */
#include "runtime/generate/token_ranks.h"

#include "formats/base/elementary.h"

static bool is_before(const float *logits, uint32_t a, uint32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* The likeliest tokens so far, in order; `token` joins them if it is one. */
static uint32_t join(const float *logits, uint32_t token, uint32_t n_best, uint32_t *best, uint32_t n)
{
    if (n == n_best && (n == 0 || !is_before(logits, token, best[n - 1])))
        return n;
    uint32_t at = n < n_best ? n : n - 1;
    while (at > 0 && is_before(logits, token, best[at - 1])) {
        best[at] = best[at - 1];
        at--;
    }
    best[at] = token;
    return n < n_best ? n + 1 : n;
}

void moec_token_ranks(const struct moec_kernels *kernels, float *logits, uint32_t n_vocab, uint32_t token,
                      uint32_t n_best, struct moert_score *scores)
{
    uint32_t best[MOERT_SCORE_BEST], n = 0, rank = 1;
    double shifted[1 + MOERT_SCORE_BEST];
    for (uint32_t i = 0; i < n_vocab; i++) {
        rank += i != token && is_before(logits, i, token);
        n = join(logits, i, n_best, best, n);
    }
    const float largest = kernels->max(logits, n_vocab);
    for (uint32_t i = 0; i <= n; i++) {
        scores[i].token = i == 0 ? token : best[i - 1];
        scores[i].rank = i == 0 ? rank : i;
        shifted[i] = logits[scores[i].token] - largest;
    }
    const double log_sum = moec_log_f64(kernels->exp_sum(logits, largest, n_vocab, logits));
    for (uint32_t i = 0; i <= n; i++)
        scores[i].log_prob = shifted[i] - log_sum;
}
