/* What a routing trace says about the experts' load, their paths, and how well those predict.
 *
 * A token's path is its rank-1 expert in each MoE layer (design, "Words with one meaning").
 *
 *   routing/entropy        entropy of the load, -sum p_e log p_e over the shares p_e of a layer's
 *                          activations, divided by log(E): 1 = even, 0 = one expert takes all
 *   paths/full,            share of all tokens on the n most popular paths, through all MoE layers and
 *   paths/three            through three consecutive ones from this one on (EdgeMoE Fig. 4); n = 1, 2, 5,
 *                          10, 20, ... and as many as there are (the last n of paths/full is the number of
 *                          distinct paths)
 *   paths/full_fraction    the same by the fraction of the distinct paths, the 0.01, 0.05, ... most popular
 *                          (rounded up): EdgeMoE, "the 20% most frequently activated paths"
 *   conditional/path       share of tokens that activated the expert which was predicted to be the r-th
 *                          likeliest, from the experts of the two MoE layers before by the path table
 *   conditional/frequency  the same, predicted from the load alone (EdgeMoE Fig. 8). Both sum to k over r;
 *                          their cumulative sums over k are the recalls
 *   predict/recall         recall of path table, frequency and next-layer gate among k, k + 1, 2k predicted
 *
 * Predictions are made from a table of the windows that teach and counted on those that test
 * (profiler/evaluate/parts.h). Of an encoder-decoder model each stack is counted by itself, with the tokens that it reads: paths/full is then
 * the decoder's, and paths/encoder and paths/encoder_fraction are the encoder's. Thread rule: one thread. */
#ifndef MOEC_PROFILER_PATH_STUDY_H
#define MOEC_PROFILER_PATH_STUDY_H

#include "profiler/routing/path_gate_study.h"

/* Makes the path table of a profile and its recalls from its windows, routing trace and activations, and adds
 * the studies. The table is made of all windows.
 * gate_recall: (S, 3) of the next-layer gate, and what gates said of a sample for predict/path_gate
 * (profiler/routing/path_gate_study.h), NULL = no such study: both are profiler/routing/router_study.h's. */
MOEC_WARN_UNUSED enum moec_status moec_path_study_run(struct moec_profile *profile, const double *gate_recall,
                                                      const struct moec_path_gate_kept *kept,
                                                      struct moec_error *err);

/* L of Fate (arXiv:2502.12224, section 4.4), which the paper reads off a plot: the MoE layers (of a decoder)
 * before the first whose experts the router of the layer before foresees no worse than those of a layer on
 * average, by the recall at k. The first layer, which nothing foresees, is always one. 0 where the profile
 * does not tell. */
uint32_t moec_path_study_shallow_layers(const struct moec_profile *profile);

#endif
