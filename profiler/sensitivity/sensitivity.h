/* Sensitivity of every expert at every bitwidth (EdgeMoE III-B, "Profiling expert importance"): the measures
 * of the model with one expert at one bitwidth and all others at the baseline, for all of them, bit for bit
 * what evaluating each of these models alone would give, at a fraction of the cost.
 *
 * By D1 a token's values depend on the weights and on the tokens before it alone. With one expert of layer l
 * changed,
 *  - hidden states up to layer l's router are the baseline's, and so are the choices and gate weights of
 *    layer l
 *  - the output of layer l changes only for tokens that chose the expert, in that one term of the sum over
 *    ranks
 *  - in later layers only tokens from the first changed one on differ; keys and values before it are the
 *    baseline's
 *  - a token whose final hidden state is the baseline's has the baseline's NLL and KL
 *
 * In an encoder every token sees every other: there layers and windows that the change does not reach can be
 * left out, but no positions, and what the decoder reads changes as a whole. The baseline is therefore
 * evaluated once with everything kept that the variants need, and variants are only computed where they
 * differ: rows of many variants, each a span with the baseline's keys and values before it, go through the
 * later layers together. Windows are handled in groups that fit the working memory; groups and batches do not
 * change a bit. Ranks share the windows of a group, and have all that was measured of it after each layer. */
#ifndef MOEC_PROFILER_SENSITIVITY_H
#define MOEC_PROFILER_SENSITIVITY_H

#include "profiler/common/unit.h"
#include "profiler/evaluate/pass_means.h"
#include "profiler/evaluate/rank_windows.h"
#include "profiler/evaluate/variants.h"
#include "profiler/sensitivity/subject.h"
#include "runtime/forward/pass/forward.h"

struct moec_sensitivity_options {
    struct moec_sensitivity_subject of; /* every expert is assigned baseline_bits afterwards */
    struct moec_pass_means by;          /* its arithmetic is that of all but the original's head */
    /* Final hidden states of the original, moec_scorer_reference_hidden, of this rank's windows; borrowed. */
    const float *reference_hidden;
    const struct moec_states *reference_states; /* what they are rows of, to be left behind; may be NULL */
    /* For activations, beside weights and results; 0 = 1 GiB. At least what one window takes. */
    uint64_t work_bytes;
    const struct moec_progress *progress; /* may be NULL */
    struct moec_units *units;             /* where finished variants are kept and found; may be NULL */
    const char *unit_name;                /* of this sweep among others of the job; NULL = "sensitivity" */
};

/* The caller's arrays. W windows, S MoE layers, E experts, B = n_bits. */
struct moec_sensitivity {
    struct moec_measure baseline; /* (W) each */
    double *expert_nll;           /* (S, E, B, W) */
    double *expert_kl;            /* (S, E, B, W) */
    uint64_t *reached;      /* (S, E): scored tokens that chose the expert under the baseline; may be NULL */
    uint64_t multiply_adds; /* set: all that was done, in this run or the one before */
};

/* Bytes that a run on these windows keeps within work_bytes (0 = the default), beside the scratch of its
 * forward pass and a tile of logits. */
uint64_t moec_sensitivity_bytes(const struct moec_config *config, const struct moec_windows *windows,
                                uint64_t work_bytes);

/* Errors: MOEC_ERR_USAGE (bits), MOEC_ERR_MEMORY, those of the expert source, MOEC_ERR_FORMAT when logits are
 * not finite, what `progress` answers. */
MOEC_WARN_UNUSED enum moec_status moec_sensitivity_run(const struct moec_sensitivity_options *options,
                                                       struct moec_sensitivity *result,
                                                       struct moec_error *err);

#endif
