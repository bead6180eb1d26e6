/* `moec tune`: settings of decisions about each token (runtime/policy/route.h, precision.h) with which a
 * bundle reads the fewest bytes a token within a loss target.
 *
 *   search part       candidates, from mild to strong --> those that lose less or read less than all others
 *   certificate part  up to 8 of them, from the safest to the smallest, tested until one fails
 *
 * Losses are against the original model, so the bundle's own bits take their share of the target. Bytes are
 * those of records that the logical cache misses: a function of bundle, settings and tokens, so that the
 * result is one at every thread count. Where a prefill is searched, the experts that a prompt reads are
 * counted once a block, in all candidates. A sparsity of the trial's options stays on throughout, so that its
 * loss counts too. The certificate is that of fixed-sequence testing (compiler/certify/sequence.h). Thread
 * rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_TUNE_H
#define MOEC_COMPILER_TUNE_H

#include "compiler/certify/trial.h"
#include "formats/bundle/bundle_decisions.h"

#define MOEC_TUNE_MAX_CANDIDATES 144

struct moec_tune_options {
    struct moec_trial_options trial;
    bool with_route, with_rank; /* cache-prior, or max-rank: not both */
    bool with_precision;
    uint32_t block_tokens; /* of prefills */
    bool with_prefill;     /* the first n_prompt tokens of the trial's windows are then a prompt's */
    /* What all candidates share, words left empty: slots, with a precision or a prefill low slots and bits,
     * keep-top of those with a route, the start of the cache. */
    struct moec_decision_settings shared;
};

struct moec_tune_candidate {
    struct moec_decision_settings settings;
    struct moec_loss search; /* against the original */
    struct moec_decision_traffic traffic;
    bool is_on_front; /* within the target, and no other one loses less and reads no more */
};

struct moec_tune_report {
    struct moec_tune_candidate plain; /* without decisions */
    struct moec_tune_candidate candidates[MOEC_TUNE_MAX_CANDIDATES];
    uint32_t n_candidate;
    uint32_t sequence[MOEC_MAX_SEQUENCE]; /* (n_sequence) places in candidates, in the order of the tests */
    uint32_t n_sequence;
    struct moec_bundle_decisions decisions; /* the last that passed; its certificate has the tests */
    bool is_reused; /* the bundle itself was certified on the same windows: each promise holds by itself */
};

/* Searches and certifies. `note` of the progress receives a line for each measurement. Fills what it has
 * measured in any case. Errors: MOEC_ERR_TARGET when nothing is proven, saying what the bundle itself loses
 * and what could be asked for; MOEC_ERR_USAGE for settings that do not fit the model; those of the scorer and
 * of `progress`. */
MOEC_WARN_UNUSED enum moec_status moec_tune(const struct moec_trial_inputs *inputs,
                                            const struct moec_tune_options *options,
                                            const struct moec_progress *progress,
                                            struct moec_tune_report *report, struct moec_error *err);

/* "cache-prior:0.15 with hobbit:0.8:1 with unpopular:0.25:512" */
#define MOEC_TUNE_NAME_BYTES 112
const char *moec_tune_name(const struct moec_decision_settings *settings,
                           char text[static MOEC_TUNE_NAME_BYTES]);

#endif
