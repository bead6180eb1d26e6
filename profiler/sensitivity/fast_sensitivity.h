/* Sensitivity of every expert at every bitwidth, estimated for a few passes whatever the number of experts
 * (the exact measurement, profiler/sensitivity/sensitivity.h, pays about half a pass for each expert and
 * bitwidth).
 *
 * Local errors. One sweep over the original's weights, layer by layer. Where expert e of MoE layer s receives
 * token t with gate weight g, its output at b bits differs from the original's by a vector d and the residual
 * stream x behind the layer by g d. What the later layers make of that depends on its size beside x:
 *
 *     u(t, s, e, b) = g^2 |d|^2 / |x|^2,    u(window, s, e, b) = its sum over the window's tokens
 *
 * Gains. In the same sweep perturbed models go along, each for one MoE layer and on some of the windows
 * (profiler/sensitivity/gain_plan.h): all experts of that layer at the lowest bitwidth, everything else
 * original. What it costs a token, a KL divergence, is known in the end,
 * and so is what each expert of the layer contributed to the error of that token. A token's gain is its KL
 * over its error, drawn towards half of the layer's mean as if it had been measured on one more token of mean
 * error (a few tokens with a huge KL make the mean, most lie below). The gain of an expert is the mean gain
 * of its tokens, weighted by its errors there. Some tokens feel a change much more than others do, and
 * experts that specialise in them are more sensitive than their errors say.
 *
 * A layer without a perturbed model takes each token's gain from the two layers around it, in proportion to
 * their distance.
 *
 * Other bitwidths have smaller errors, to which a model does not answer in proportion: on a quarter of these
 * windows a second perturbed model with the same changes at half the size gives a factor for each layer, and
 * the whole-model measurements, which a profile has anyway, one for each of these bitwidths. Then
 *
 *     KL(window, s, e, b) = KL of the baseline + gain(s, e, b) u(window, s, e, b)
 *                                              - gain(s, e, baseline) u(window, s, e, baseline)
 *
 * and NLL follows KL at the ratio that the layer's perturbed model shows.
 *
 * What a window adds to a sum depends on that window alone: ranks share the windows, those of the perturbed models
 * and the others evenly, and exchange what they measured at the end. Nothing here is a promise: it ranks
 * experts, and what compile promises it measures. */
#ifndef MOEC_PROFILER_FAST_SENSITIVITY_H
#define MOEC_PROFILER_FAST_SENSITIVITY_H

#include "profiler/common/progress.h"
#include "profiler/evaluate/pass_means.h"
#include "profiler/evaluate/rank_windows.h"
#include "profiler/evaluate/variants.h"
#include "profiler/sensitivity/subject.h"
#include "runtime/forward/pass/forward.h"

struct moec_fast_options {
    /* On windows of the search part, with increasing bits; every expert is assigned its source bits
     * afterwards. */
    struct moec_sensitivity_subject of;
    struct moec_pass_means by; /* its arithmetic is that of the original too, and of what is measured below */
    const struct moec_measure *baseline;       /* (W) each: all experts at the baseline, measured */
    const struct moec_measure *const *uniform; /* (n_bits): all experts at bits[b]; NULL: not measured */
    const double *reference_nll; /* (W): of the original, in this arithmetic; NULL: NLL is not estimated */
    /* Local errors are measured on as large a share of an expert's tokens as this leaves for, and on at least one
     * of each window. */
    uint64_t limit_multiply_adds;
    const struct moec_progress *progress; /* may be NULL */
};

/* What a run takes where nothing else says how much it may, in evaluations of its windows, whatever the number
 * of layers. The sweep is one, perturbed models at most MOEC_GAIN_PASSES; local errors have the rest, and all
 * of an expert's tokens would take less than one more for each bitwidth. */
#define MOEC_FAST_PASSES 4
/* The same in multiply-adds. */
uint64_t moec_fast_sensitivity_limit(const struct moec_config *config, const struct moec_windows *windows);

/* Bytes that a run keeps beside what windows->work bounds. */
uint64_t moec_fast_sensitivity_bytes(const struct moec_config *config, const struct moec_windows *windows,
                                     uint32_t n_bits);

/* The caller's arrays. W windows, S MoE layers, E experts, B = n_bits. */
struct moec_fast_result {
    double *expert_nll;     /* (S, E, B, W); not used without reference_nll */
    double *expert_kl;      /* (S, E, B, W) */
    double *local_error;    /* (S, E, B + 1): sum of |d|^2 over that of the output's |y|^2 on the expert's
                               tokens, the baseline's last; NaN for an expert without tokens */
    double *gain;           /* (S, E): at the lowest of `bits`, nats of KL for a unit of u */
    double *small_gain;     /* (S): factor of the layer's gain for errors of half the size */
    double *nll_ratio;      /* (S): change of NLL for one of KL; 1 without reference_nll */
    double *bits_gain;      /* (B + 1): factor for each bitwidth, 1 for the lowest, the baseline's last */
    uint64_t multiply_adds; /* set: all that was done, by all ranks */
    double fraction;        /* set: of the tokens that were measured, 0..1 */
};

/* Errors: MOEC_ERR_MEMORY, those of the expert source, MOEC_ERR_FORMAT when logits are not finite, what
 * `progress` answers. */
MOEC_WARN_UNUSED enum moec_status moec_fast_sensitivity_run(const struct moec_fast_options *options,
                                                            struct moec_fast_result *result,
                                                            struct moec_error *err);

#endif
