/* How well path table and next-layer gate predict together, by how many experts are predicted.
 *
 *   predict/path_gate   recall of the activated experts among the first n = 1 .. E that the runtime's
 *                       predictor path+gate (runtime/policy/predict/predict.h) names one MoE layer ahead, from a
 *                       table of the windows that teach, over a sample of the tokens of those that test. The gate's
 *                       scores of all experts count, where the runtime has the 2k best
 *
 * The table is there after the last layer only, so a sweep keeps what the gates said of the sample. Thread
 * rule: one thread at a time. */
#ifndef MOEC_PROFILER_PATH_GATE_STUDY_H
#define MOEC_PROFILER_PATH_GATE_STUDY_H

#include "formats/profile/profile.h"
#include "runtime/forward/pass/forward.h"

#define MOEC_PATH_GATE_TOKENS 512 /* kept of each layer, at most */

/* What gates said, for each MoE layer by the gate input of the one before. Borrowed arrays of doubles, so
 * that they can be kept with other results of a sweep; NaN where a layer has no such token. */
struct moec_path_gate_kept {
    double *tokens;        /* (S, MOEC_PATH_GATE_TOKENS): rows of the profile's trace */
    double *probabilities; /* (S, MOEC_PATH_GATE_TOKENS, E) */
};

/* A token that is kept. */
struct moec_path_gate_token {
    uint64_t row;       /* of the profile's trace */
    uint32_t place;     /* below MOEC_PATH_GATE_TOKENS */
    const float *input; /* (n_embd): the gate's */
};

/* Keeps what the router of MoE layer `ordinal` says of a token's gate input in the layer before.
 * `shares`: room for a router's choices, padded to lanes. */
MOEC_WARN_UNUSED enum moec_status moec_path_gate_keep(const struct moec_forward *forward, uint32_t ordinal,
                                                      const struct moec_path_gate_token *token, float *shares,
                                                      const struct moec_path_gate_kept *kept,
                                                      struct moec_error *err);

/* Adds the study to a profile whose trace is there. `table`: paths of the search part, of all MoE layers. */
MOEC_WARN_UNUSED enum moec_status moec_path_gate_run(struct moec_profile *profile,
                                                     const struct moec_path_table *table,
                                                     const struct moec_path_gate_kept *kept,
                                                     struct moec_error *err);

#endif
