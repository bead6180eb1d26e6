/* The verdict on a profile: does it pay to give experts different bitwidths, and how certain is that? Numbers
 * from what the profile holds (single-expert sensitivities, whole-model losses, the studies `codes` and
 * `mixed`), and the same in words.
 *
 * The *effect* of an expert at b bits is what changes when it alone goes from the baseline to b bits: the
 * mean difference of KL against the original (nats a token), which is smooth, and of NLL, which becomes loss
 * against the baseline. Experts that the data never reached are left out of every figure.
 * Thread rule: pure functions. */
#ifndef MOEC_PROFILER_VERDICT_H
#define MOEC_PROFILER_VERDICT_H

#include "formats/profile/profile.h"
#include "profiler/common/paragraphs.h"

#define MOEC_VERDICT_TARGETS 3 /* 1, 2 and 5 % */

/* One profiled bitwidth. NaN where the data says nothing. */
struct moec_verdict_bits {
    uint32_t bits;
    /* Spread between experts: quantiles of the effect (KL, nats a token) and their ratio. */
    double low, median, high; /* 10 %, 50 %, 90 % */
    double largest;
    double ratio;                           /* high / low; NaN when low is not positive */
    uint32_t largest_layer, largest_expert; /* layer of the model */
    /* Between layers: share of the variance of effects that the means of layers explain (0..1), and the most
     * and least sensitive layer by mean effect. */
    double layer_share;
    double layer_low, layer_high;
    uint32_t least_layer, most_layer;
    /* Noise floor: the interval of each expert's loss against the baseline, paired by window. */
    double noise;      /* median half-width of the 90 % intervals (one-sided 95 % ends), as loss */
    uint32_t n_worse;  /* experts whose lower end is above 0 */
    uint32_t n_better; /* experts whose upper end is under 0 */
    uint32_t n_unclear;
    /* Additivity: all experts at these bits, measured, against the sum of single experts;
     * both from the baseline. */
    double joint_kl, sum_kl;     /* nats a token */
    double joint_loss, sum_loss; /* sum_loss = exp(sum of differences of mean NLL) - 1 */
    double additivity;           /* joint_kl / sum_kl */
};

/* What a mixed assignment saves at one allowed loss (study `mixed`). */
struct moec_verdict_target {
    double target;    /* 0.01, 0.02, 0.05 */
    double loss;      /* of the mixed assignment: measured, or predicted */
    double loss_high; /* upper end of its interval; NaN when predicted */
    bool is_measured;
    bool is_met;            /* loss <= target */
    uint64_t mixed_bytes;   /* of all expert records */
    uint32_t uniform_bits;  /* smallest uniform bitwidth within the target, 0 = none measured */
    uint64_t uniform_bytes; /* 0 without one */
    double saving;          /* 1 - mixed / uniform; NaN without */
    double blind_saving;    /* what mixing bitwidths regardless of sensitivity is predicted to save; NaN */
};

/* All experts alike in the codes that compile takes by default, within a loss (study `codes`). */
struct moec_verdict_single {
    uint32_t bits;                /* the fewest that stay within it; 0 = none that was measured */
    char codes[MOEC_STUDY_LABEL]; /* "int2 trellis channel" */
    uint64_t n_bytes;             /* of all expert records */
    double loss, loss_high;
    /* What mixing these codes is predicted to take: the profile's sensitivities say how the loss of each
     * bitwidth is shared out among experts. 0 without sensitivities. */
    uint64_t mixed_bytes;
    double saving; /* 1 - mixed / n_bytes; NaN without */
};

struct moec_verdict {
    bool has_codes; /* the study is there */
    struct moec_verdict_single singles[MOEC_VERDICT_TARGETS];
    bool is_estimated; /* fast sensitivities: no noise floor, spread of estimates */
    uint32_t n_expert, n_reached;
    uint32_t n_bits;
    struct moec_verdict_bits bits[MOEC_PROFILE_MAX_BITS]; /* as profile->bits */
    bool has_mixed;                                       /* the study is there */
    double mixed_passes;                                  /* whole passes that it took */
    struct moec_verdict_target targets[MOEC_VERDICT_TARGETS];
};

/* Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_verdict_make(const struct moec_profile *profile,
                                                    struct moec_verdict *verdict, struct moec_error *err);

/* Fills has_codes and singles; called by moec_verdict_make. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_verdict_read_codes(const struct moec_profile *profile,
                                                          struct moec_verdict *verdict,
                                                          struct moec_error *err);

/* In words, a paragraph or two. */
void moec_verdict_conclude(const struct moec_profile *profile, const struct moec_verdict *verdict,
                           struct moec_paragraphs *paragraphs);
/* The same, and what stands behind it: targets, codes, spread, noise, additivity. */
void moec_verdict_describe(const struct moec_profile *profile, const struct moec_verdict *verdict,
                           struct moec_paragraphs *paragraphs);

#endif
