/* `moec tune`: settings of decisions about each token (runtime/policy/decide/route.h, precision.h), and where it is
 * asked for a sparsity plan, with which a bundle reads the fewest bytes a token within a loss target.
 *
 *   search part       candidates, from mild to strong --> those that lose less or read less than all others
 *   selection part    of drafts: the same once more of these, since their bits were fitted to the search part
 *   certificate part  up to 8 of them, from the safest to the smallest, tested until one fails
 *
 * The search goes by the bytes of records that the logical cache misses, and of these what a plan that is
 * searched leaves, as a run reads them whose bundle has checksums of parts; moec_tune_cost says what the
 * bundle that is written reads and computes: a function of bundle, settings and tokens, so that the result is
 * one at every thread count. Where a prefill or a precision of prompts is searched, the experts that a prompt
 * reads are counted once a block, in all candidates. A sparsity of the trial's options stays on throughout,
 * so that its loss counts too.
 *
 * A policy in Lua may take the place of the search (compiler/policy/decision_policy.h); what it returns goes
 * through the same tests.
 *
 * With a fit there are drafts, bundles of the same model whose bits lose more or less: the bits are chosen too, and
 * the one promise is about all of it. Losses are against the original model. The certificate is that of
 * fixed-sequence testing (compiler/certify/sequence.h). Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_TUNE_H
#define MOEC_COMPILER_TUNE_H

#include "compiler/certify/trial.h"
#include "compiler/tune/foretell.h"
#include "formats/bundle/bundle_decisions.h"
#include "formats/bundle/sparsity_plan.h"
#include "formats/trace/device_description.h"
#include "formats/trace/replay.h"
#include "profiler/common/unit.h"

#define MOEC_TUNE_MAX_CANDIDATES 264
#define MOEC_TUNE_MAX_DRAFTS     8
#define MOEC_TUNE_SAME           1.01 /* a plan changes what later routers choose by as little */

/* What candidates are compared by in place of the logical cache's misses, foretold of each one's own choices: the
 * time of a token on a device, or what it reads. Drafts are then searched with the slots that the device's memory
 * leaves them, and their bits alone are candidates too. */
struct moec_tune_fit {
    /* Of a draft that was run on the search part. Errors end the search. */
    enum moec_status (*foretell)(void *context, uint32_t draft, const struct moec_foretell_run *ran,
                                 struct moec_foretold *out, struct moec_error *err);
    /* When the tests have ended: of the winner again, and of its draft with other settings. */
    enum moec_status (*look)(void *context, uint32_t draft, const struct moec_foretell_run *ran,
                             struct moec_error *err);
    void *context;
    bool by_bytes; /* by read_bytes of what is foretold, else by token_ns */
    /* Of a layer, for decisions; 0: the draft does not run in the memory and is left out. */
    uint32_t n_slots[MOEC_TUNE_MAX_DRAFTS];
    bool holds_all[MOEC_TUNE_MAX_DRAFTS]; /* memory has room for every expert */
    uint32_t n_measured;                  /* candidates that are measured at most */
    uint32_t n_search; /* windows of the search part, and of the selection part, that they are measured on */
    bool takes_all_certificate; /* tests are on all windows of the certificate part, however few would do */
};

/* Times that foretelling cannot tell apart: more than this share above another one is slower. */
#define MOEC_TUNE_SLOWER   0.02
#define MOEC_TUNE_NO_DRAFT UINT32_MAX

struct moec_tune_options {
    /* A policy of decisions that searches in place of moec tune: built-in name or path. NULL = none. */
    const char *policy;
    uint64_t seed;                   /* of its random numbers */
    struct moec_trial_options trial; /* without a sparsity where one is searched */
    bool with_route, with_rank;      /* cache-prior, or max-rank: not both; a policy has any route */
    bool with_skip;                  /* of the route, or of the router's own choice, misses are skipped */
    bool with_precision;             /* not with a sparsity, as with_prefill */
    /* No more experts are foreseen than it reads while it computes a layer; NULL = as many as the paper's
     * percentile. Borrowed. */
    const struct moec_device *device;
    uint32_t block_tokens; /* of prefills, and of what is counted of prompts */
    /* The first n_prompt tokens of the trial's windows are then a prompt's, as they are where `shared` leaves
     * out prompts, which goes with no prefill. Where it does not and n_prompt is not 0, a precision of hobbit is
     * searched by blocks of MOEC_PRECISION_BLOCK, too. */
    bool with_prefill;
    bool with_sparsity; /* a plan by neuron */
    /* What all candidates share, words left empty: slots, with a precision or a prefill low slots and bits,
     * keep-top of those with a route, the start of the cache, whether prompts are left out. */
    struct moec_decision_settings shared;
    /* With drafts, and routes alone; NULL: one bundle, by misses. Borrowed. */
    const struct moec_tune_fit *fit;
    /* What was measured is kept there and found again, and what the certificate part is to test before any of its
     * windows is read. Then SHA-256 of each draft. Borrowed; NULL = nothing is kept. */
    struct moec_units *units;
    const uint8_t (*draft_digests)[MOEC_SHA256_BYTES];
};

/* Whether candidates differ in which experts tokens take. */
static inline bool moec_tune_has_routes(const struct moec_tune_options *options)
{
    return options->with_route || options->with_rank || options->with_skip;
}

/* Whether prompts are decided about, so that what they read counts. */
static inline bool moec_tune_reads_prompts(const struct moec_tune_options *options)
{
    return options->with_prefill ||
           (options->with_precision && !options->shared.decode_only && options->trial.n_prompt > 0);
}

/* Bundles to choose among. */
struct moec_tune_drafts {
    uint32_t n;
    /* Opens one in place of inputs->bundle, which nothing uses while it does. Called only for another one. */
    enum moec_status (*open)(void *context, uint32_t draft, struct moec_error *err);
    void *context;
};

struct moec_tune_candidate {
    uint32_t draft; /* 0 without drafts */
    uint32_t share; /* of the bytes of gate and down that a plan leaves out, in thousandths; 0 = no plan */
    struct moec_decision_settings settings;
    struct moec_loss search; /* against the original */
    struct moec_loss chosen; /* what the sequence goes by: the same, or on the selection part */
    struct moec_decision_traffic traffic;
    double token_misses;           /* missed experts of a token, over all MoE layers */
    double kept_share;             /* of the bytes of experts: what the plan leaves; 1 without one */
    struct moec_foretold foretold; /* with a fit */
    bool is_on_front;              /* within the target, and no other one loses less and reads no more */
};

/* Bytes of missed records that the plan leaves: what candidates are compared by. */
static inline double moec_tune_token_bytes(const struct moec_tune_candidate *candidate)
{
    return candidate->traffic.token_bytes * candidate->kept_share;
}

/* What a bundle without checksums of parts takes for a token, both on the search part. */
struct moec_tune_cost {
    double read_bytes;     /* of missed records, which are read whole */
    double computed_share; /* of the bytes of the experts taken */
};

static inline struct moec_tune_cost moec_tune_cost_of(const struct moec_tune_candidate *candidate)
{
    return (struct moec_tune_cost){.read_bytes = candidate->traffic.token_bytes,
                                   .computed_share = candidate->kept_share};
}

/* Whether `after` reads less, or as much and computes less. */
static inline bool moec_tune_is_better(struct moec_tune_cost after, struct moec_tune_cost before)
{
    return after.read_bytes < before.read_bytes || (after.read_bytes <= before.read_bytes * MOEC_TUNE_SAME &&
                                                    after.computed_share < before.computed_share);
}

struct moec_tune_report {
    struct moec_tune_candidate plain[MOEC_TUNE_MAX_DRAFTS]; /* of each draft, without decisions and plan */
    struct moec_tune_candidate candidates[MOEC_TUNE_MAX_CANDIDATES];
    uint32_t n_candidate;
    uint32_t sequence[MOEC_MAX_SEQUENCE]; /* (n_sequence) places in candidates, in the order of the tests */
    uint32_t n_sequence;
    /* With a fit: the draft that compile alone would write, as its search expects; MOEC_TUNE_NO_DRAFT where that does
     * not run in the memory. Nothing that is foretold slower is the winner, unless a test refuted it. */
    uint32_t compiled;
    /* The last that passed, and what the certificate part says of it. */
    struct moec_tune_candidate winner;
    struct moec_certificate certificate; /* of all of it, with the tests */
    /* Without a fit: of the winner, and of the bundle itself. */
    struct moec_tune_cost after, before;
    /* What is to be written of it. The certificate is that of the decisions where there are some, and the
     * plan's is then what was measured of it alone, which is no promise; else it is the plan's. */
    struct moec_bundle_decisions decisions; /* settings that are not on: none */
    struct moec_sparsity_plan plan;         /* n_layer 0: none */
    bool is_reused; /* the bundle itself was certified on the same windows: each promise holds by itself */
};

/* Whether a fit's winner is the draft that compile alone would write. */
static inline bool moec_tune_is_compiled(const struct moec_tune_report *report)
{
    return report->winner.draft == report->compiled &&
           !moec_decision_settings_are_on(&report->winner.settings);
}

/* Searches and certifies. `drafts` go with a fit; NULL: the one that is inputs->bundle. `note` of the progress
 * receives a line for each measurement. Fills what it has measured in any case; released with moec_tune_report_release.
 * Errors: MOEC_ERR_TARGET when nothing is proven, saying what the bundle itself loses and what could be asked
 * for; MOEC_ERR_USAGE for settings that do not fit the model; of a policy MOEC_ERR_SCRIPT; those of
 * moec_sparsity_check_config, of the scorer, of `drafts` and of `progress`. */
MOEC_WARN_UNUSED enum moec_status moec_tune(const struct moec_trial_inputs *inputs,
                                            const struct moec_tune_options *options,
                                            const struct moec_tune_drafts *drafts,
                                            const struct moec_progress *progress,
                                            struct moec_tune_report *report, struct moec_error *err);
void moec_tune_report_release(struct moec_tune_report *report);

/* "cache-prior:0.15 with hobbit:0.8:1 with unpopular:0.25:512", "cache-prior:0.15 with 60% left out" */
#define MOEC_TUNE_NAME_BYTES 128
const char *moec_tune_name(const struct moec_decision_settings *settings, uint32_t share,
                           char text[static MOEC_TUNE_NAME_BYTES]);

#endif
