/* What routers do on the windows of a profile: a study that listens to the sweep which traces routing.
 *
 * Measured for every MoE layer, on the original weights:
 *
 * - routing/range: by how much the largest of what the router compares (runtime/policy/decide/route.h) exceeds the
 *   smallest, mean over all tokens (cache-conditional experts, eq. 10).
 * - routing/margin: router probability (softmax over all experts) of rank k minus that of rank k + 1,
 *   quantiles over all tokens (profiler/common/quantiles.h): where it is small, a perturbation of the
 *   input changes the choice.
 * - next-layer gate: the experts that this layer's router prefers when it is fed with the gate input (the
 *   normed hidden state) of the MoE layer before; recall of the activated experts among the first k, k + 1,
 *   2k, over the tokens that test (profiler/evaluate/parts.h), as the path table's (HOBBIT III-C,
 *   Fig. 7(b); Fate 3.1 and Table 1). Ties go to the lower index.
 * - predict/gate_top1: share of those tokens whose rank-1 expert is the first predicted.
 * - predict/cosine: cosine similarity of the gate inputs of this MoE layer and the next, mean over at most
 *   MOEC_COSINE_TOKENS tokens, one from each of equal stretches (HOBBIT Fig. 7(a), "Next 1"; Fate Table 1,
 *   position 2).
 * - gate/output_norm: Euclidean norm of an expert's unweighted output, relative to the layer's mean, by gate
 *   weight; gate/weighted_norm: the norm of what it adds, weight times output (HOBBIT III-B, Fig. 5(a)).
 * - gate/correlation: Pearson's correlation of gate weight and weighted norm over all choices of a layer;
 *   gate/output_correlation: of gate weight and unweighted norm.
 * - neurons/up_quantiles: profiler/routing/up_study.h; predict/positions: profiler/routing/position_study.h;
 *   predict/path_gate: profiler/routing/path_gate_study.h.
 *
 * Of an encoder-decoder model each stack is on its own: its first MoE layer has no gate before it, its last
 * none after it, and what is counted for each token is counted for those that the stack reads.
 *
 * Sums are sums of windows' sums, added in the order of windows, so that ranks can share the windows: each listens
 * to a sweep of its own, and after every layer all have all. Results are the same at any number of ranks and
 * threads, and any batch size. Memory: a few numbers for each token of
 * one layer (margin, 2k predictions), the gate inputs of the cosine's tokens, one batch of inputs, and what
 * the gates of all layers say of some tokens. Thread
 * rule: one thread at a time; it parallelises inside. */
#ifndef MOEC_PROFILER_ROUTER_STUDY_H
#define MOEC_PROFILER_ROUTER_STUDY_H

#include "formats/profile/profile.h"
#include "profiler/evaluate/rank_windows.h"
#include "profiler/evaluate/sweep.h"
#include "profiler/routing/path_gate_study.h"
#include "runtime/forward/pass/forward.h"

#define MOEC_ROUTER_RANGE_STUDY "routing/range" /* (S) */

#define MOEC_COSINE_TOKENS  2048u
#define MOEC_GATE_BINS      20 /* of gate weight, 0..1 */
#define MOEC_GATE_BIN_WIDTH 0.05

/* What was measured, in one array, so that it can be kept and restored as bytes. */
struct moec_router_results {
    uint32_t n_moe, n_expert;
    double *values; /* (n_value), owned; the others point into it */
    uint64_t n_value;
    double *range;              /* (S) */
    double *margin;             /* (S, quantile) */
    double *cosine, *gate_top1; /* (S) */
    /* (S, 3) for k, k + 1, 2k; NaN in the first row of a stack, which has no gate before it. */
    double *gate_recall;
    double *correlation, *output_correlation; /* (S) */
    double *output_norm, *weighted_norm;      /* (MOEC_GATE_BINS) */
    double *up_quantiles;                     /* (S, E, MOEC_UP_QUANTILES) */
    double *position_recall;                  /* (S, MOEC_POSITION_COUNT, E) */
    double *position_cosine;                  /* (S, MOEC_POSITION_COSINE) */
    struct moec_path_gate_kept path_gate;     /* for profiler/routing/path_study.h */
};

/* All NaN: nothing is known yet. */
MOEC_WARN_UNUSED enum moec_status moec_router_results_create(const struct moec_config *config,
                                                             struct moec_router_results *results,
                                                             struct moec_error *err);
void moec_router_results_release(struct moec_router_results *results);

/* Adds the studies to a profile of the same model,
 * all but the recalls (profiler/routing/path_study.h has them). */
MOEC_WARN_UNUSED enum moec_status moec_router_results_add(const struct moec_router_results *results,
                                                          struct moec_profile *profile,
                                                          struct moec_error *err);

struct moec_router_study;

/* Bytes that a study of n_token tokens of n_window windows in batches of max_tokens takes. */
uint64_t moec_router_study_bytes(const struct moec_config *config, int n_threads, uint32_t n_window,
                                 uint64_t n_token, uint32_t max_tokens);

/* Listens to batches of the forward, which `experts` serves; `results` are there after the last layer.
 * Everything is borrowed until free. */
MOEC_WARN_UNUSED enum moec_status
moec_router_study_create(const struct moec_forward *forward, struct moec_experts *experts,
                         const struct moec_rank_windows *windows, struct moec_router_results *results,
                         struct moec_router_study **out, struct moec_error *err);
void moec_router_study_free(struct moec_router_study *study);

/* Where a sweep leaves a batch's hidden states before attention, for moec_sweep_store. */
float *moec_router_study_attention(struct moec_router_study *study);

/* Points the members of a trace that the study wants at its own arrays; others are left alone. */
void moec_router_study_trace(struct moec_router_study *study, struct moec_mlp_trace *trace);

#define MOEC_ROUTER_NO_EXPERT UINT32_MAX /* in place of a choice that was full */

/* Takes a batch of whole windows, this rank's, of one MoE layer: what the trace received, with the rows'
 * choices. All batches of a layer come, in order, before those of the next. Errors of the expert source. */
MOEC_WARN_UNUSED enum moec_status moec_router_study_batch(struct moec_router_study *study, uint32_t ordinal,
                                                          uint64_t first_row, uint32_t n_rows,
                                                          const struct moec_token_choices *choices,
                                                          struct moec_error *err);

/* Together, after the last batch of each layer, by ranks without windows too. Errors: a rank's failure,
 * MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_router_study_finish(struct moec_router_study *study, uint32_t ordinal,
                                                           struct moec_error *err);

/* All that this rank did so far. */
uint64_t moec_router_study_multiply_adds(const struct moec_router_study *study);

#endif
