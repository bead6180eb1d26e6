/* What the files of `moec compile` work on, and what each of them may ask of it.
 *
 *   compile_run.c          words for the log, and whether to go on
 *   compile_scope.c        how much is looked at
 *   compile_frequent.c     the tokens whose rows are a dense matrix of their own
 *   compile_stages.c       what is going on, and how much is left
 *   compile_units.c        what is kept for the case that the compile is interrupted
 *   compile_dense_plan.c   dense matrices of a plan, with codecs of their own too, and its bundle
 *   compile_part.c         a part of the data: opened, and measured for a plan
 *   compile_order.c        the order of neurons in records
 *   compile_variants.c     experts at further codecs, their errors and harm
 *   compile_limits.c       the smallest bundle that there can be, and how near a plan is to it
 *   compile_wanted.c       which variants are fitted
 *   compile_offer.c        what moec.variants() offers a policy
 *   compile_sequence.c     the plans that the certificate tests, and their order
 *   compile_note.c         what was measured, for the trace and the sequence
 *   compile_windows.c      how many windows these are tested on
 *   compile_decide.c       plans with decisions about each token, where a policy asks for them
 *   compile_search.c       the policy's questions, and what its answer must hold
 *   compile_dense.c        dense weights: which bitwidths to try, what they become, the choice among them
 *   compile_certificate.c  the tests, and the loss that is promised
 *   compile.c              drives these, and writes the bundle
 *   compile_drafts.c       bundles without a certificate, at several losses, from one run
 *
 * Each includes only those above it. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_RUN_H
#define MOEC_COMPILER_COMPILE_RUN_H

#include "compiler/certify/measured_part.h"
#include "compiler/compile/compile.h"
#include "compiler/fit/coactivation.h"
#include "compiler/fit/dense_fit.h"
#include "compiler/fit/expert_fit.h"
#include "compiler/policy/harm.h"
#include "formats/bundle/bundle_writer.h"
#include "profiler/evaluate/chance.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/variants.h"
#include "profiler/profile/work_plan.h"

/* A part of the data with what evaluates on it: windows of the profile, or rows. Zero-initialised before it
 * is opened. */
struct moec_compile_part {
    struct moec_measured_part measured;
    struct moec_rank_block
        block;                 /* of a fit that ranks share: the windows that the scorer has; else all zero */
    bool has_reference;        /* reference_nll is filled */
    double *reference_scores;  /* (rows of the part), owned; where rows are scored, instead of the above */
    double *scores;            /* the same for the last run */
    uint64_t *record_bytes[2]; /* (MoE layers, n_expert) owned: where runs decide, for their counts */
    enum moec_part which;
    bool is_open;
};

/* The bundle of the last plan of a form, and its dense weights; owned. */
struct moec_compile_bundle {
    uint8_t *numbers;        /* (n_dense) of dense matrices */
    struct moec_dense dense; /* with a source: what the bundle has */
    struct moec_bundle_plan *plan;
};

/* Embedding and head as the checkpoint's config has them, or undivided where that one divides them. */
enum moec_compile_form { MOEC_FORM_PLAIN, MOEC_FORM_JOINED, MOEC_FORM_COUNT };

/* What is kept between plans that give dense matrices codecs of their own. Numbers are one for each matrix, as in
 * plans; everything is owned, and all zero before the first such plan. */
struct moec_compile_dense {
    struct moec_model *model; /* of model_numbers */
    uint8_t *model_numbers;
    struct moec_compile_bundle bundles[MOEC_FORM_COUNT];
    struct moec_config joined_config; /* the checkpoint's without frequent tokens */
    struct moec_path_table paths;     /* cut to their share of the smallest such bundle */
    /* (n_dense + 2, MOEC_CODEC_TABLE): of a matrix, then of the joined embedding and head; 0 = not measured yet */
    uint64_t *stored_bytes;
    uint64_t rest_bytes; /* of everything that is no such matrix; 0 = not measured yet */
};

/* Fits of experts at most: of what a plan is foretold to take, then of what plans took beside it. */
#define MOEC_COMPILE_MAX_FITS 3

/* What moec.variants() has made; everything is owned, and all zero before a policy asks. */
struct moec_compile_offer {
    bool is_made;
    uint8_t numbers[MOEC_CODEC_TABLE]; /* (n_number) codecs that projections of experts may take, */
    uint32_t bits[MOEC_CODEC_TABLE];   /* (n_number) and their bits */
    uint32_t n_number;
    uint8_t dense_numbers[MOEC_CODEC_TABLE]; /* (n_dense_number) codecs that dense matrices may take */
    uint32_t n_dense_number;
    uint32_t dense_bits[MOEC_CODEC_TABLE]; /* bits of each codec number; [0] = the checkpoint's */
    uint8_t fitted[MOEC_CODEC_TABLE];      /* 1 + a codec's place among those of `experts`; 0 = not there */
    struct moec_expert_fit *experts[MOEC_COMPILE_MAX_FITS]; /* (n_fit), each the base of the next one */
    uint32_t n_fit;
    uint32_t n_expert_codec; /* that they fit experts at */
    struct moec_harm look;   /* of experts in the codec that is looked at, and in their source's */
    struct moec_policy_matrix *matrices;    /* (n_matrix) in the order of plans; none: not to be searched */
    struct moec_harm_matrix *harm_matrices; /* (n_matrix) */
    uint32_t n_matrix;
    struct moec_harm harm;
    struct moec_policy_variants variants;
};

/* A plan that was measured on the search part, or is to be. */
struct moec_compile_candidate {
    struct moec_plan plan; /* owned */
    uint64_t n_bytes;      /* of its bundle */
    bool is_measured;
    struct moec_loss search;
};

/* What may be tested on the certificate part. Zero is empty. */
struct moec_compile_candidates {
    /* (n_front), owned: plans of the search whose estimate meets the target, without those of which another
     * one is no larger and loses no more; by falling bytes. */
    struct moec_compile_candidate *front;
    size_t n_front, front_capacity;
    /* (n), owned: the sequence, from the safest to the smallest; before it is made, what the policy gave. */
    struct moec_compile_candidate sequence[MOEC_MAX_SEQUENCE];
    uint32_t n;
};

/* The first of the search part: harm takes passes; and those that plans are measured on, of the selection
 * part too, which must tell plans apart (differences are paired) but not promise anything. Weights are fitted
 * to all of the search part. */
#define MOEC_HARM_WINDOWS   64
#define MOEC_SEARCH_WINDOWS 64

/* In the order of a compile that takes all of them; dense weights may be tried again and again. */
enum moec_compile_stage {
    MOEC_STAGE_ORDER,
    MOEC_STAGE_FIT_DENSE,
    MOEC_STAGE_HARM, /* where all variants are fitted: after that */
    MOEC_STAGE_FIT_EXPERTS,
    MOEC_STAGE_SEARCH,
    MOEC_STAGE_SEQUENCE,
    MOEC_STAGE_CERTIFY,
    MOEC_STAGE_PACK,
    MOEC_STAGE_COUNT
};

struct moec_compile_run {
    struct moec_checkpoint *checkpoint;
    const struct moec_profile *profile;
    const struct moec_compile_options *options;
    const struct moec_compile_hooks *hooks;
    struct moec_progress stopper; /* of measurements */
    enum moec_compile_stage stage;
    double
        least_loss; /* plans are searched for losses from here to most_loss, with the same variants; 0: the target */
    double most_loss;
    uint32_t n_asked; /* measurements that this search has asked for */
    struct moec_compile_report *report;
    struct moec_compile_scope scope;
    uint32_t group;                             /* the profile's, else the options' */
    struct moec_codec codecs[MOEC_CODEC_TABLE]; /* by number */
    uint32_t dense_bits[MOEC_MAX_DENSE_TRIALS]; /* (n_dense_bits) to be tried, increasing */
    uint32_t n_dense_bits;
    bool has_f32;                 /* some of the checkpoint's dense weights are F32 */
    struct moec_row_metric *rows; /* NULL: perplexity is measured */
    struct moec_dense_fit *fit;   /* NULL: integers by the linear quantizer */
    struct moec_model *original;  /* dense weights as in the checkpoint; NULL without a profile */
    struct moec_model *compiled;  /* dense weights as in the bundle; the original when these are the same */
    struct moec_variants *variants;
    struct moec_neuron_order order;      /* of records; all zero: the checkpoint's */
    struct moec_ordered_encoder ordered; /* of variants that are not fitted, where there is one */
    struct moec_work_plan memory;
    struct moec_path_table paths; /* the profile's, cut to its share of the bundle */
    /* Of dense weights that are bound; NULL where the config divides the embedding: own_dense has the plans of all. */
    struct moec_bundle_plan *plan;
    struct moec_compile_dense own_dense;
    struct moec_compile_offer offer;
    uint64_t fit_bytes; /* that fitting experts may take for moments of their inputs */
    struct moec_compile_part search;
    struct moec_loss
        search_loss;         /* of the plan evaluated last; at the end of the plan that is written, or, */
    bool has_unmeasured;     /* where only the certificate part has measured that one, the smallest */
    struct moec_loss safest; /* the loss with the lowest upper end in this search; n_window 0: none yet */
    struct moec_loss select_loss; /* of the plan measured last on the selection part; n_window 0: none */
    uint32_t n_certify;           /* windows that the certificate is tested on; 0 before they are chosen */
    struct moec_compile_candidates candidates; /* of this search */
    const char *path;                          /* of the bundle; NULL: plans only */
    struct moec_units *units;                  /* finished work; NULL: none is kept */
    uint8_t model_digest[MOEC_SHA256_BYTES];
    bool is_chance; /* the original was found to be no better than chance: the bundle is marked */
};

/* A line for the log; longer ones are cut. */
void moec_compile_say(const struct moec_compile_run *run, const char *format, ...) MOEC_PRINTF(2, 3);
/* What a user should know, whether or not there is a log. */
void moec_compile_tell(const struct moec_compile_run *run, const char *line);
bool moec_compile_is_cancelled(const struct moec_compile_run *run);

/* Refuses an original that is no better than chance, or notes and marks it where the options go on. Errors:
 * those of moec_chance_check. */
MOEC_WARN_UNUSED enum moec_status moec_compile_check_chance(struct moec_compile_run *run,
                                                            const struct moec_chance *chance,
                                                            struct moec_error *err);

/* Whether a loss is within the target; true without one. The search goes by the loss that it measures, the
 * certificate by its upper end. */
bool moec_compile_meets(const struct moec_compile_run *run, const struct moec_loss *loss);

/* Who encodes the experts of plans: NULL = the checkpoint. */
const struct moec_expert_encoder *moec_compile_encoder(const struct moec_compile_run *run);
/* Until the other call the run's variants have the checkpoint's order, as the original is measured. */
void moec_compile_order_leave(struct moec_compile_run *run);
void moec_compile_order_return(struct moec_compile_run *run);

#endif
