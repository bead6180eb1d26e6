/* `moec compile`: from a checkpoint, a profile and a target to a bundle with a certificate.
 *
 *   policy (Lua) --evaluate--> search part --accepts--> plan
 *   certificate part, measured once --> certificate --> bundle, or nothing when the promise is missed (D6)
 *
 * What is measured is what ships: the same records, dense weights and kernels as in the bundle. Thread rule:
 * one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_H
#define MOEC_COMPILER_COMPILE_H

#include "compiler/compile/row_metric.h"
#include "compiler/compile/search_trace.h"
#include "compiler/pack/bundle_shares.h"
#include "compiler/policy/policy.h"
#include "formats/bundle/bundle.h"
#include "formats/checkpoint/checkpoint.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/evaluate/pass_means.h"
#include "runtime/cuda/gpu_place.h"

struct moec_kernels;

/* EdgeMoE III-B: every bitwidth is tried, and the smallest bundle within the loss target is taken. */
#define MOEC_DENSE_BITS_AUTO  0u
#define MOEC_MAX_DENSE_TRIALS 4u

/* The result of one bitwidth of dense weights. */
struct moec_dense_trial {
    uint32_t bits;
    /* False: even with all experts at 2 bits it is not smaller than another that meets the target. */
    bool is_measured;
    bool meets;       /* some assignment meets the target; then: */
    uint64_t n_bytes; /* of its bundle */
    double loss;      /* on the search part */
    double loss_high;
    uint32_t n_evaluations;
};

/* A bundle without a loss target whose loss may be more than this gets a warning. */
#define MOEC_COMPILE_LARGE_LOSS 0.1

/* How much a compile looks at. Level 0 is all; each one above leaves out more, the least loss first. */
#define MOEC_COMPILE_SCOPES 5
struct moec_compile_scope {
    uint32_t n_fit;          /* windows of the search part, at most: that weights are fitted to, */
    uint32_t n_search;       /* that plans are measured on, of the selection part likewise, */
    uint32_t n_harm;         /* that local errors are measured on, */
    uint32_t n_class;        /* and whole models for them */
    uint32_t n_certify;      /* windows of the certificate part that tests may take */
    uint32_t n_expert_codec; /* codecs that experts are fitted at */
};
const struct moec_compile_scope *moec_compile_scope_at(uint32_t level);

/* How plans are searched. */
struct moec_compile_search {
    const char *policy; /* built-in name or path */
    uint32_t bits;      /* for `uniform`; 0 when not given */
    double pair_share;  /* of drafts, for the policy (compiler/policy/policy_request.h); else 0 */
    double loss_tolerance;
    uint64_t seed;        /* of the policy's random numbers */
    bool offers_variants; /* the policy may ask for moec.variants(); needs a profile */
    bool measure_uniform; /* for comparison: all experts at 2, 3, 4 and 8 bits, where the search did not */
};

/* What the bundle may lose or weigh, and how that is proven. */
struct moec_compile_target {
    double max_loss;    /* NaN without a loss target */
    uint64_t max_bytes; /* 0 without a size target */
    /* The metric of losses, measured on rows; needs a profile. NULL: perplexity, on the profile's windows */
    const struct moec_row_metric_options *rows;
    double confidence;          /* MOEC_CONFIDENCE_POINT or 0.5 < c < 1 */
    uint32_t scope;             /* level of struct moec_compile_scope; a journal's own goes before it */
    bool takes_all_certificate; /* tests are on all windows of the certificate part, however few would do */
    bool accept_miss;           /* write and mark a bundle that misses its target */
    bool goes_on_by_chance;     /* where the original predicts no better than chance; the bundle is marked */
};

struct moec_compile_experts {
    /* These three of compiles without a profile, else the profile's; not AUTO. */
    enum moec_quantizer quantizer;
    enum moec_scheme scheme;
    uint32_t group;
    bool orders_neurons; /* in records, by coactivation on the search part; needs a profile */
    uint8_t copy_bits[MOEC_MAX_COPIES - 1]; /* further precision copies */
    uint32_t n_copy_bits;
};

struct moec_compile_matrices {
    uint32_t bits;   /* 32 (checkpoints of F32 weights), 16, 8, 4, or MOEC_DENSE_BITS_AUTO */
    bool is_planned; /* a plan may give matrices codecs of their own: bits were not asked for */
    bool by_gptq;    /* 8 and 4 by GPTQ, on the search part's inputs; needs a profile. Else linear */
};

/* Finished measurements and fitted weights are kept in this file (profiler/common/unit.h) until the bundle is
 * written. If an interrupted compile of the same model and windows left one, this compile goes on from it. */
struct moec_compile_journal {
    const char *path; /* NULL: nothing is kept */
    /* It stays when the bundle is written, for other targets and policies. A file of another model or other
     * windows is then refused instead of replaced. */
    bool stays;
};

struct moec_compile_options {
    struct moec_compile_search search;
    struct moec_compile_target target;
    struct moec_compile_experts experts;
    struct moec_compile_matrices dense;
    /* The arithmetic is of plans' losses; the original's are canonical. Of ranks, moec_compile is called
     * together, and the first one alone writes. */
    struct moec_pass_means by;
    struct {
        /* Of the process, beside the largest layer's weights (profiler/profile/work_plan.h); 0 = 1 GiB. */
        uint64_t work_bytes;
        const char *spill_folder;     /* for hidden states that do not fit; NULL = they stay in memory */
        struct moec_gpu_place *place; /* plans are measured there; borrowed, NULL = in the process's memory */
    } memory;
    struct moec_compile_journal journal;
    /* Of the provenance: the options that shaped the bundle, in canonical spelling, and the model's name. */
    struct {
        const char *options;
        const char *model;
    } source;
};

struct moec_compile_hooks {
    void (*log)(void *context, const char *line);  /* how the search goes */
    void (*note)(void *context, const char *line); /* what a user should know, as in moec_progress */
    /* Amounts are passes over all windows of the profile. */
    void (*progress)(void *context, const char *phase, double done, double total);
    void (*expect)(void *context, double passes); /* from here to the end, as far as is known; may be NULL */
    bool (*cancelled)(void *context); /* called many times a second; true ends the work. May be NULL */
    void *context;
};

/* What GPTQ fitted to the search part, and what it could not: that is encoded by HQQ, which sees weights
 * alone. */
struct moec_compile_fit_counts {
    uint32_t n_expert, n_unseen; /* experts, and those among them that no token of the part chose */
    uint64_t n_matrix;           /* of experts, each bitwidth for itself */
    uint32_t n_dense, n_plain;   /* dense matrices that were fitted; only looked up, or too many inputs */
    bool has_wide_experts;       /* a projection of experts has too many inputs (compiler/fit/gptq.h) */
};

struct moec_compile_report {
    struct moec_plan plan;                      /* owned; moec_compile_report_release */
    struct moec_codec codecs[MOEC_CODEC_TABLE]; /* that the plan's numbers stand for */
    uint64_t n_bytes;                           /* of the bundle, exact */
    /* Dense matrices of the bundle, the first of the plan's: the last ones are parts of the embedding and the head, which
     * are joined to others where these have the same codec. */
    uint32_t n_matrix;
    uint64_t source_bytes;
    uint32_t n_evaluations; /* of all trials together */
    struct moec_compile_fit_counts fit;
    double runs_before, runs_after; /* of a token's active neurons in an expert, where these were ordered */
    uint32_t n_dense_trial;         /* with MOEC_DENSE_BITS_AUTO */
    struct moec_dense_trial dense_trials[MOEC_MAX_DENSE_TRIALS];
    struct moec_certificate certificate;
    struct moec_search_trace trace; /* everything measured, of all trials; owned */
    struct moec_mixing_gain mixing; /* at the loss that the search ended with, of what it measured */
    /* The plan has the smallest codes that this search may give anything: another target finds none smaller.
     */
    bool uses_smallest;
    struct moec_bundle_shares shares; /* of the plan's bundle; owned */
    char warning[MOEC_ERROR_BYTES];   /* of a loss that no target forbade and that is large; "" = none */
    /* Bundles beside this one that were certified on the same part with other options, and the name of one.
     * Each promise holds by itself; one that is chosen for what the same windows said of others does not. */
    uint32_t n_reuse;
    char reuse[256];
    uint64_t n_resumed; /* units of work that an interrupted compile had finished */
    uint32_t scope;     /* the level that it was made with */
    bool is_written;
};

/* Whether an order of neurons can save anything of a model, with a scale for each `group` weights (0 =
 * channel). Errors: MOEC_ERR_UNSUPPORTED with the reason. */
MOEC_WARN_UNUSED enum moec_status moec_compile_order_check(const struct moec_config *config, uint32_t group,
                                                           struct moec_error *err);

/* The smallest bundle of some options, before any work: from headers, and dense weights that no plan encodes.
 */
struct moec_compile_least {
    /* No bundle is smaller: records of experts at the smallest codes that the policy may give them, and what
     * stands beside the weights, exactly; of dense matrices nothing, since compressing tells their size. */
    uint64_t least_bytes;
    uint64_t
        dense_bytes; /* dense matrices at their smallest codes, before compressing; 0: no plan has them */
    char codes[40];  /* of the experts */
};

/* `profile` may be NULL. Errors: those of the checkpoint and of moec_bundle_plan_create. */
MOEC_WARN_UNUSED enum moec_status moec_compile_find_least(const struct moec_checkpoint *checkpoint,
                                                          const struct moec_profile *profile,
                                                          const struct moec_compile_options *options,
                                                          struct moec_compile_least *out,
                                                          struct moec_error *err);

/* What is compiled. Borrowed. */
struct moec_compile_inputs {
    struct moec_checkpoint *checkpoint;
    const struct moec_profile *profile; /* NULL: of policies that need none */
    const uint8_t *profile_digest;      /* (MOEC_SHA256_BYTES): of its file */
};

/* `path` NULL plans only (--dry-run): the search runs, the certificate is not measured and nothing is
 * written. Errors: MOEC_ERR_UNSUPPORTED (a tokenizer that cannot be used), MOEC_ERR_MISMATCH (profile of
 * another model), MOEC_ERR_TARGET (no assignment meets the targets, or the certificate missed: the message
 * gives the loss and how many samples would do), MOEC_ERR_MISMATCH (profiler/evaluate/chance.h),
 * MOEC_ERR_SCRIPT, MOEC_ERR_BUDGET (work_bytes is too little, itemised), MOEC_ERR_IO, MOEC_ERR_CANCELLED.
 * After MOEC_ERR_TARGET from the certificate the report is filled; after every failure its trace has what was
 * measured before. */
MOEC_WARN_UNUSED enum moec_status moec_compile(const struct moec_compile_inputs *inputs,
                                               const struct moec_compile_options *options,
                                               const struct moec_compile_hooks *hooks, const char *path,
                                               struct moec_compile_report *report, struct moec_error *err);

/* A bundle that others are compared with before anything is promised, so that it has no certificate. */
struct moec_compile_draft {
    double max_loss;       /* that the search spends, on its part */
    double pair_share;     /* 0: by the bundle's size; else as in struct moec_policy_request */
    double loss_tolerance; /* as there */
    uint32_t n_search;     /* windows that its plans are measured on at most; 0 = as many as compile takes */
    const char *path;      /* that it is written to */
    struct moec_plan plan; /* owned; moec_compile_draft_release */
    uint64_t n_bytes;      /* of the bundle */
    bool is_written;       /* false: no plan loses as little, or an earlier draft has the same one */
};

struct moec_compile_draft_list {
    struct moec_compile_draft *drafts; /* (n) */
    uint32_t n;
};

/* Searches with each draft's loss, which rise, in one run that fits and weighs once, and writes what it finds; the
 * certificate part stays unseen. Not for MOEC_DENSE_BITS_AUTO or losses of rows. The options' max_loss and
 * pair_share are not looked at. Errors: as moec_compile; MOEC_ERR_TARGET where no draft is written. Files
 * that were written stay after an error. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_drafts(const struct moec_compile_inputs *inputs, const struct moec_compile_options *options,
                    const struct moec_compile_hooks *hooks, const struct moec_compile_draft_list *list,
                    struct moec_compile_report *report, struct moec_error *err);
void moec_compile_draft_release(struct moec_compile_draft *draft);

/* What a compile from data is expected to take beside its profile, stage by stage as the code runs them. Windows
 * are counted as often as they go through the whole model; fitting and encoding weights is counted in
 * multiply-adds that take as long where many tokens share a matrix. How often a search measures, and how many
 * tests there are, is not known before: typical numbers stand for both. */
#define MOEC_COMPILE_MAX_PHASES 8
struct moec_compile_forecast {
    uint32_t n_phase;
    struct {
        const char *name;
        double windows;
        double others;  /* beside these, as part of so many windows: the original's logits once more */
        double weights; /* multiply-adds */
    } phases[MOEC_COMPILE_MAX_PHASES]; /* (n_phase), those that cost something */
    double windows, others, weights;   /* of all */
    double window_multiply_adds;
    uint64_t fitted_bytes; /* encoded weights: in memory or a temporary file, and once more in the journal */
    /* With ranks: what is told to all in all (these weights, what enters experts, moments of layers, routing), and to
     * one other (inputs of dense matrices); hidden states of the windows of a fit, and inputs of the layer with most. */
    uint64_t shared_bytes, passed_bytes;
    uint64_t state_bytes, input_bytes;
    uint64_t weighed_bytes; /* of experts encoded to weigh bitwidths: told to all where that is quicker */
};
/* What each of n ranks receives, and keeps in memory or temporary files beside the fitted weights. */
struct moec_compile_rank_forecast {
    uint64_t received_bytes, state_bytes;
    uint64_t weighed_bytes; /* received at most, beside these */
};
struct moec_compile_rank_forecast moec_compile_rank_estimate(const struct moec_compile_forecast *forecast,
                                                             uint32_t n_rank);

struct moec_compile_request {
    const struct moec_config *config;
    const struct moec_compile_options *options;
    uint32_t n_part[MOEC_PART_COUNT]; /* windows */
    uint32_t seq_len_tokens;
};
struct moec_compile_forecast moec_compile_estimate(const struct moec_compile_request *request);
void moec_compile_report_release(struct moec_compile_report *report);

#endif
