/* Loss and its interval (D5, D6), computed from per-window sums and nothing else.
 *
 * Everything is paired by window: window w of the reference stands beside window w of the variant. Thread
 * rule: pure functions. */
#ifndef MOEC_PROFILER_METRICS_H
#define MOEC_PROFILER_METRICS_H

#include "profiler/evaluate/windows.h"

#define MOEC_BOOTSTRAP_RESAMPLES 10000
#define MOEC_BOOTSTRAP_SEED      20240601
#define MOEC_CONFIDENCE_POINT    0.0 /* no interval: low = loss = high */

struct moec_loss_options {
    double confidence;   /* of the one-sided interval: 0.5 < c < 1, or MOEC_CONFIDENCE_POINT */
    uint32_t n_resample; /* >= 100; of scores */
    uint64_t seed;
    bool is_promise; /* of scores: that no row changed does not prove that none would */
};

/* 95 %, 10,000 resamples, a fixed seed. */
struct moec_loss_options moec_loss_options_default(void);

struct moec_loss {
    double reference;  /* perplexity, or mean score */
    double compiled;   /* perplexity, or mean score */
    double loss;       /* (compiled - reference) / reference, of scores the other way round; 0.02 is 2 % */
    double low;        /* lower end: the true loss is above it with the confidence asked */
    double high;       /* upper end: the true loss is below it with the confidence asked */
    double mean_kl;    /* nats a scored token; 0 without kl */
    uint32_t n_window; /* or rows */
    uint64_t n_token;  /* scored; 0 of rows */
    /* What the interval comes from: independent units (windows, documents or rows); mean difference of NLL a
     * token, or loss of the score; its standard error; skewness of its residuals. */
    uint32_t n_unit;
    double difference, error, skewness;
};

/* The windows that a loss is measured on: those of one part. Everything is borrowed. */
struct moec_loss_windows {
    uint32_t n_window;
    const uint32_t *scored;    /* (n_window): scored tokens */
    const uint64_t *documents; /* (n_window): windows of a document count as one; NULL: each by itself */
    const uint8_t *parts;      /* (n_window), as moec_part_has takes them */
    enum moec_part part;
};

static inline struct moec_loss_windows moec_profile_loss_windows(const struct moec_profile *profile,
                                                                 enum moec_part part)
{
    return (struct moec_loss_windows){.n_window = profile->n_window,
                                      .scored = profile->window_scored,
                                      .documents =
                                          profile->parts_by_document ? profile->window_document : NULL,
                                      .parts = profile->window_part,
                                      .part = part};
}

/* All of the windows. */
static inline struct moec_loss_windows moec_windows_loss_windows(const struct moec_windows *windows)
{
    return (struct moec_loss_windows){.n_window = windows->n_window,
                                      .scored = windows->scored,
                                      .documents = windows->by_document ? windows->document : NULL,
                                      .parts = windows->part,
                                      .part = MOEC_PART_ALL};
}

/* What windows were measured at under the reference and under a variant of it: sums in nats. */
struct moec_paired_nll {
    const double *reference, *variant; /* (n_window) */
    const double *kl;                  /* (n_window), or NULL */
};

/* Loss on windows. The interval is
 * Student's t on the paired differences of NLL: r = their sum over the scored tokens, its standard error that
 * of a ratio of sums over windows (of documents, where windows are told apart by them), and
 * high = exp(r + t * error) - 1, with t corrected for skewness where that makes the end longer (Hall, 1992).
 * The percentile bootstrap covers only 92 to 95 % at 32 windows or fewer. A single window has no interval:
 * low is -1, high infinite. Errors: MOEC_ERR_USAGE (options, no windows), MOEC_ERR_FORMAT (not finite). */
MOEC_WARN_UNUSED enum moec_status moec_loss_measure(const struct moec_loss_windows *windows,
                                                    const struct moec_paired_nll *nll,
                                                    const struct moec_loss_options *options,
                                                    struct moec_loss *loss, struct moec_error *err);

/* The probability that windows like these show a loss this small or smaller although the true loss is
 * `target` or more (one-sided test; the null hypothesis is a mean difference of NLL of ln(1 + target) or
 * more). It is at most 1 - confidence exactly where high <= target. 1 for a single window. Of
 * moec_loss_measure alone. */
double moec_loss_p_value(const struct moec_loss *loss, double target);

/* Loss of a score, of which more is better (ROUGE, accuracy), over rows: reference and variant (n_row) are
 * paired. loss = (reference - variant) / reference of their means. The interval is the studentised bootstrap
 * (Efron and Tibshirani, 1993, 12.5): a resample draws as many rows, with replacement, and what counts is how
 * far its loss is off in its own standard errors. Resamples on which the reference scores 0 have no loss and
 * are drawn again. Deterministic for a seed. Errors: MOEC_ERR_USAGE (options, no rows), MOEC_ERR_FORMAT (a
 * score that is not finite or below 0, a reference that scores 0 on every row). */
MOEC_WARN_UNUSED enum moec_status moec_loss_measure_scores(const double *reference, const double *variant,
                                                           uint32_t n_row,
                                                           const struct moec_loss_options *options,
                                                           struct moec_loss *loss, struct moec_error *err);

/* Windows in this part that would bring the upper end down to the target, from the interval's width shrinking
 * as one over the root of their number; the present number when it is enough, 0 when the loss itself is not
 * under the target and no number would do. If the true loss is the measured one, other windows give an upper end under
 * the target every other time; with n_errors of room, in standard errors, more often. */
uint64_t moec_loss_windows_needed(const struct moec_loss *loss, double target, double n_errors);

/* False for an expert that the data never reached: no activation on the original weights, or no change of any
 * bit in any window with sensitivities at any bitwidth (as for an expert that only the original weights route
 * to). Its measured loss is the baseline's and says nothing about it. */
bool moec_profile_expert_reached(const struct moec_profile *profile, uint32_t s, uint32_t e);

/* What each expert loses at bits[b] with the others at the baseline: importance (S, E) = loss against the
 * original weights on those windows of the part that sensitivities are of. Experts that the data never
 * reached get the largest loss of the reached ones of their layer (of the model where the layer has none), so
 * that no search takes them for insensitive. */
void moec_profile_importance(const struct moec_profile *profile, enum moec_part part, uint32_t b,
                             double *importance);

#endif
