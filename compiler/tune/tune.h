/* `moec tune`: settings of decisions about each token (runtime/policy/route.h, precision.h) with which a
 * bundle reads the fewest bytes a token within a loss target.
 *
 *   search part       candidates, from mild to strong --> those that lose less or read less than all others
 *   certificate part  up to 8 of them, from the safest to the smallest, tested until one fails
 *
 * Losses are against the original model, so the bundle's own bits take their share of the target. Bytes are
 * those of records that the logical cache misses: a function of bundle, settings and tokens, so that the
 * result is one at every thread count. The certificate is that of fixed-sequence testing
 * (compiler/certify/sequence.h). Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_TUNE_H
#define MOEC_COMPILER_TUNE_H

#include "formats/bundle/bundle_decisions.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/evaluate/source.h"

#define MOEC_TUNE_MAX_CANDIDATES 64

struct moec_tune_options {
    const struct moec_kernels *kernels;
    int n_threads;            /* as moec_pool_make */
    uint64_t reference_bytes; /* that the original's probabilities may take */
    bool int8;                /* the bundle is measured in the int8 arithmetic; the original never is */
    double max_loss;          /* 0.02 is 2 % */
    double confidence;        /* 0.5 < c < 1 */
    bool with_route, with_precision;
    /* What all candidates share, words left empty: slots, with a precision low slots and bits, keep-top of
     * those with a route, the start of the cache. */
    struct moec_decision_settings shared;
};

struct moec_tune_inputs {
    const struct moec_source *bundle; /* serves low copies where they are searched with (serve_low) */
    const struct moec_source *original;
    const struct moec_windows *windows; /* with parts */
    const uint8_t *data_digest;         /* (MOEC_SHA256_BYTES) */
    const char *data_name;
};

/* Progress is in windows; a phase has a name of its own. `note` receives a line for each measurement. */

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

/* Searches and certifies. Fills what it has measured in any case. Errors: MOEC_ERR_TARGET when nothing is
 * proven, saying what the bundle itself loses and what could be asked for; MOEC_ERR_USAGE for settings that
 * do not fit the model; those of the scorer and of `progress`. */
MOEC_WARN_UNUSED enum moec_status moec_tune(const struct moec_tune_inputs *inputs,
                                            const struct moec_tune_options *options,
                                            const struct moec_progress *progress,
                                            struct moec_tune_report *report, struct moec_error *err);

/* "cache-prior:0.15 with hobbit:0.8:1" */
#define MOEC_TUNE_NAME_BYTES 80
const char *moec_tune_name(const struct moec_decision_settings *settings,
                           char text[static MOEC_TUNE_NAME_BYTES]);

#endif
