/* What the files of `moec compile` share; no other file includes it.
 *
 *   compile_stages.c       what is going on, and how much is left
 *   compile_scope.c        how much is looked at
 *   compile_part.c         a part of the data: opened, and measured for a plan
 *   compile_order.c        the order of neurons in records
 *   compile_units.c        what is kept for the case that the compile is interrupted
 *   compile_dense.c        dense weights: which bitwidths to try, what they become, the choice among them
 *   compile_dense_plan.c   dense matrices of a plan that have codecs of their own: measured, sized, written
 *   compile_search.c       the policy's questions, and what its answer must hold
 *   compile_decide.c       plans with decisions about each token, where a policy asks for them
 *   compile_variants.c     what moec.variants() offers a policy
 *   compile_wanted.c       which of them are fitted
 *   compile_sequence.c     the plans that the certificate tests, and their order
 *   compile_windows.c      how many windows these are tested on
 *   compile_certificate.c  the tests, and the loss that is promised
 *   compile_limits.c       the smallest bundle that there can be, and how near a plan is to it
 *   compile.c              drives these, and writes the bundle
 *   compile_drafts.c       bundles without a certificate, at several losses, from one run
 *
 * Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_INTERNAL_H
#define MOEC_COMPILER_COMPILE_INTERNAL_H

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
        block; /* of a fit that ranks share: the windows that the scorer has; else all zero */
    bool has_reference;        /* reference_nll is filled */
    double *reference_scores;  /* (rows of the part), owned; where rows are scored, instead of the above */
    double *scores;            /* the same for the last run */
    uint64_t *record_bytes[2]; /* (MoE layers, n_expert) owned: where runs decide, for their counts */
    enum moec_part which;
    bool is_open;
};

/* What is kept between plans that give dense matrices codecs of their own. Each array is of one number for
 * each matrix, as in plans; everything is owned, and all zero before the first such plan. */
struct moec_compile_dense {
    struct moec_model *model; /* of model_numbers */
    uint8_t *model_numbers;
    struct moec_dense dense; /* of bundle_numbers, with a source: what `bundle` has */
    uint8_t *bundle_numbers;
    struct moec_bundle_plan *bundle;
    struct moec_path_table paths; /* cut to their share of the smallest such bundle */
    uint64_t *stored_bytes;       /* (n_dense, MOEC_CODEC_TABLE): of a matrix; 0 = not measured yet */
    uint64_t rest_bytes;          /* of everything that is no such matrix; 0 = not measured yet */
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

/* The first of the search part: harm takes passes; and those that plans are measured on, of the selection part
 * too, which must tell plans apart (differences are paired) but not promise anything. Weights are fitted to all of
 * the search part. */
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
    bool has_losses;  /* plans are searched for several losses, with the same variants */
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

/* ---- a run: compile.c ---- */

/* Everything before a search, of a run whose checkpoint, profile, options, hooks and report are set; begins
 * the report. Whatever it answers, moec_compile_finish ends the run. Errors: as moec_compile. */
MOEC_WARN_UNUSED enum moec_status moec_compile_start(struct moec_compile_run *run, struct moec_error *err);
/* No plan is measured from here on. */
void moec_compile_pack_begin(struct moec_compile_run *run);
/* Writes the bundle of report->plan with report->certificate. Errors: those of the writer. */
MOEC_WARN_UNUSED enum moec_status moec_compile_write(struct moec_compile_run *run,
                                                     const uint8_t profile_digest[static MOEC_SHA256_BYTES],
                                                     const char *path, struct moec_error *err);
void moec_compile_finish(struct moec_compile_run *run);
/* Refuses an original that is no better than chance, or notes and marks it where the options go on. Errors:
 * those of moec_chance_check. */
MOEC_WARN_UNUSED enum moec_status moec_compile_check_chance(struct moec_compile_run *run,
                                                            const struct moec_chance *chance,
                                                            struct moec_error *err);

/* ---- how much is looked at: compile_scope.c ---- */

/* Sets scope and report->scope to the journal's level, else to that of the options, which the journal then keeps;
 * one that holds n_kept units and no level is of all. Errors: MOEC_ERR_FORMAT for a level that is none. */
MOEC_WARN_UNUSED enum moec_status moec_compile_scope_take(struct moec_compile_run *run, uint64_t n_kept,
                                                          struct moec_error *err);

/* ---- progress: compile.c, compile_stages.c ---- */

/* From now on this is done; with what comes after it, that is what is expected. */
void moec_compile_begin(struct moec_compile_run *run, enum moec_compile_stage stage);
/* How far an evaluation of the stage's part is. */
void moec_compile_show_part(const struct moec_compile_run *run, double done, double total);
/* How far the stage is that counts by itself: experts, records. */
void moec_compile_show_whole(const struct moec_compile_run *run, double done, double total);

/* A line for the log; longer ones are cut. */
void moec_compile_say(const struct moec_compile_run *run, const char *format, ...) MOEC_PRINTF(2, 3);
/* What a user should know, whether or not there is a log. */
void moec_compile_tell(const struct moec_compile_run *run, const char *line);
bool moec_compile_is_cancelled(const struct moec_compile_run *run);

/* ---- parts of the data: compile_part.c ---- */

/* Windows of a part that `model` can be evaluated on, canonically; its experts are the original's until they
 * are assigned. Errors: those of the scorer. The part is released by the caller in every case. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_make(struct moec_compile_run *run, enum moec_part which,
                                                         const struct moec_model *model,
                                                         struct moec_compile_part *part,
                                                         struct moec_error *err);
/* The same of the windows of the search part that the original is fitted on. Ranks share them in blocks. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_make_fit(struct moec_compile_run *run,
                                                             struct moec_compile_part *part,
                                                             struct moec_error *err);
/* The block of such a part, NULL without ranks. */
const struct moec_rank_block *moec_compile_part_block(const struct moec_compile_part *part);
/* Windows or rows of a part with what the original scores on them, to be measured with the dense weights that
 * are currently bound, or those of a plan. The original is evaluated on windows when the first plan is, of
 * which no measurement was kept, and on those that the profile did not measure only here. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_open(struct moec_compile_run *run, enum moec_part which,
                                                         struct moec_compile_part *part,
                                                         struct moec_error *err);
/* Windows, or rows, that plans are measured on in a part: the first of the search and of the selection part, as
 * many as the scope has, the first n_certify of the certificate part, and of either all before they are known. */
uint32_t moec_compile_part_count(const struct moec_compile_run *run, enum moec_part which);
/* Frees what the part holds and zeroes it. */
void moec_compile_part_release(struct moec_compile_part *part);

/* The loss of a plan on a part, at the options' confidence: measured, or as an interrupted compile measured
 * it. Errors: MOEC_ERR_MISMATCH when the original is not what the profile measured. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_measure(struct moec_compile_run *run,
                                                            struct moec_compile_part *part,
                                                            const struct moec_plan *plan,
                                                            struct moec_loss *loss, struct moec_error *err);
/* Its steps. What measuring on windows needs, with the original's hidden states; a run, into the part's
 * arrays; and the loss of what these hold (`is_promise` as in struct moec_loss_options). */
MOEC_WARN_UNUSED enum moec_status
moec_compile_part_ready(struct moec_compile_run *run, struct moec_compile_part *part, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_compile_part_run(struct moec_compile_run *run,
                                                        struct moec_compile_part *part,
                                                        const struct moec_plan *plan, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_compile_part_loss(const struct moec_compile_run *run,
                                                         const struct moec_compile_part *part,
                                                         bool is_promise, struct moec_loss *loss,
                                                         struct moec_error *err);
/* Adds what was measured of a plan to the report's trace. `is_extra`: for comparison only. */
MOEC_WARN_UNUSED enum moec_status moec_compile_note(struct moec_compile_run *run, enum moec_trace_part part,
                                                    const struct moec_plan *plan,
                                                    const struct moec_loss *loss, bool is_extra,
                                                    struct moec_error *err);
/* The same for report->plan, which the search ended with: the trace's `chosen`. */
MOEC_WARN_UNUSED enum moec_status moec_compile_note_choice(struct moec_compile_run *run,
                                                           struct moec_error *err);
/* Whether a loss is within the target; true without one. The search goes by the loss that it measures, the
 * certificate by its upper end. */
bool moec_compile_meets(const struct moec_compile_run *run, const struct moec_loss *loss);

/* ---- the order of neurons: compile_order.c ---- */

/* Orders neurons by coactivation on the search part, if the options ask for it; from then on the run's
 * variants have them so. Errors: those of moec_coactivation_order. */
MOEC_WARN_UNUSED enum moec_status moec_compile_order_make(struct moec_compile_run *run,
                                                          struct moec_error *err);
/* Until the other call the run's variants have the checkpoint's order, as the original is measured. */
void moec_compile_order_leave(struct moec_compile_run *run);
void moec_compile_order_return(struct moec_compile_run *run);

/* ---- what is kept: compile_units.c ---- */

/* Opens the journal that the options name, if there is one and something will be measured. */
MOEC_WARN_UNUSED enum moec_status moec_compile_units_open(struct moec_compile_run *run,
                                                          struct moec_error *err);
/* Ends keeping: with the bundle written the journal is removed, unless the options keep it. Fills
 * report->n_resumed. */
void moec_compile_units_close(struct moec_compile_run *run, bool is_finished);
/* The key of a plan's measurement on a part: of everything that it depends on beside the journal's job. */
void moec_compile_units_name(const struct moec_compile_run *run, enum moec_part part,
                             const struct moec_plan *plan, char key[static MOEC_JOURNAL_MAX_KEY]);
/* Of the run's codecs, and which of them GPTQ fits. */
uint32_t moec_compile_units_crc(const struct moec_compile_run *run);

/* ---- dense weights: compile_dense.c ---- */

/* Fills dense_bits and has_f32. Errors: MOEC_ERR_USAGE for bits that the checkpoint does not have. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_list(struct moec_compile_run *run,
                                                          struct moec_error *err);
/* Whether dense weights at these bits are the checkpoint's own. */
bool moec_compile_dense_is_original(const struct moec_compile_run *run, uint32_t dense_bits);

/* What each number means for a dense matrix: a bitwidth its own (moec_compile_dense_codec), others the run's.
 */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_codecs(const struct moec_compile_run *run,
                                                            struct moec_codec codecs[static MOEC_CODEC_TABLE],
                                                            struct moec_error *err);
/* Encodes dense weights by GPTQ on the search part, if the options ask for it. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_fit(struct moec_compile_run *run,
                                                         struct moec_error *err);
/* Gives the bundle dense weights of these bits: sets `compiled`, `paths` and `plan`. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_bind(struct moec_compile_run *run, uint32_t bits,
                                                          struct moec_error *err);
void moec_compile_dense_unbind(struct moec_compile_run *run);
/* Searches with each of dense_bits and binds the one that leaves the smallest bundle within the target
 * (EdgeMoE III-B, "Non-expert weights quantization decision"). Errors: MOEC_ERR_TARGET when none does. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_choose(struct moec_compile_run *run,
                                                            struct moec_error *err);

/* What a bundle of least_bytes or more keeps of the profile's paths, 1 % of it at most, and of its router
 * ranges. Released with moec_path_table_release. */
MOEC_WARN_UNUSED enum moec_status moec_compile_take_paths(const struct moec_compile_run *run,
                                                          uint64_t least_bytes, struct moec_path_table *paths,
                                                          struct moec_error *err);

/* Makes a bundle plan for parts whose dense weights, their cut and their size are given: the rest is the
 * run's. */
MOEC_WARN_UNUSED enum moec_status moec_compile_bundle_make(struct moec_compile_run *run,
                                                           const struct moec_path_table *paths,
                                                           struct moec_bundle_parts *parts,
                                                           struct moec_bundle_plan **out,
                                                           struct moec_error *err);

/* ---- dense matrices with codecs of their own: compile_dense_plan.c ---- */

/* What a number in plan->dense stands for, F32 for 0: as the checkpoint has it. A bitwidth is symmetric, in
 * groups as experts are; others are the run's codecs. Errors: MOEC_ERR_USAGE for a number without a codec. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_codec(const struct moec_compile_run *run,
                                                           uint32_t number, struct moec_codec *codec,
                                                           struct moec_error *err);
/* A model with the dense matrices of these numbers (n_dense of the plan; 0 = as in the dense weights that are
 * bound; NULL = all of them 0), the caller's. It borrows the run. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_model(const struct moec_compile_run *run,
                                                           const uint8_t *numbers, struct moec_model **model,
                                                           struct moec_error *err);
/* The model to measure a plan with: the one that is bound, or one of the plan's own dense weights, which
 * stays until a plan with others. Borrowed. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_take(struct moec_compile_run *run,
                                                          const struct moec_plan *plan,
                                                          const struct moec_model **model,
                                                          struct moec_error *err);
/* The bundle plan to size and write a plan with, and its dense weights; borrowed until a plan with others. A
 * matrix is compressed once for each codec that plans give it, after which sizes are sums. */
MOEC_WARN_UNUSED enum moec_status moec_compile_bundle_of(struct moec_compile_run *run,
                                                         const struct moec_plan *plan,
                                                         struct moec_bundle_plan **bundle,
                                                         const struct moec_dense **dense,
                                                         struct moec_error *err);
/* Stored bytes of the dense weights that no plan encodes: of the runs of `dense` that are no matrices. */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_rest_bytes(const struct moec_dense *dense,
                                                                uint64_t *n_bytes, struct moec_error *err);
/* Stored bytes of each entry of a plan's dense weights as moec_compile_bundle_of gave them: of matrices that
 * are compressed alone, 0 of others; NULL for weights that are bound. The caller's. Errors: MOEC_ERR_MEMORY.
 */
MOEC_WARN_UNUSED enum moec_status moec_compile_dense_bytes(const struct moec_compile_run *run,
                                                           const struct moec_plan *plan,
                                                           const struct moec_dense *dense, uint64_t **n_bytes,
                                                           struct moec_error *err);
/* To be called when run->codecs has got further codecs, and when run->fit has become another one. */
MOEC_WARN_UNUSED enum moec_status moec_compile_codecs_changed(struct moec_compile_run *run,
                                                              struct moec_error *err);
void moec_compile_dense_forget(struct moec_compile_run *run);

/* ---- the search: compile_search.c ---- */

/* Bytes of the bundle of a plan. */
MOEC_WARN_UNUSED enum moec_status moec_compile_size(void *context, const struct moec_plan *plan,
                                                    uint64_t *n_bytes, struct moec_error *err);
/* The policy's plan for the dense weights that are bound, measured once more on the search part,
 * independently of the policy: report->plan, n_bytes and search_loss. Errors: MOEC_ERR_TARGET,
 * MOEC_ERR_SCRIPT, MOEC_ERR_CANCELLED. */
MOEC_WARN_UNUSED enum moec_status moec_compile_search(struct moec_compile_run *run, struct moec_error *err);

/* All experts at 2, 3, 4 and 8 bits with the chosen plan's dense weights, which are bound: measured on the
 * search part where the search did not, for the trace. */
MOEC_WARN_UNUSED enum moec_status moec_compile_measure_uniform(struct moec_compile_run *run,
                                                               struct moec_error *err);

/* The plan that the search ended with where every expert has the codes that most have: measured on the search
 * part for the trace, so that what mixing gains is known. Not of rows. */
MOEC_WARN_UNUSED enum moec_status moec_compile_measure_alike(struct moec_compile_run *run,
                                                             struct moec_error *err);

/* A loss as a policy is told it. */
struct moec_evaluation moec_compile_evaluation(const struct moec_compile_run *run,
                                               const struct moec_loss *loss);

/* ---- decisions: compile_decide.c ---- */

/* What candidates of the run's policy may have, which borrow the run. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_compile_rules(const struct moec_compile_run *run,
                                                     struct moec_candidate_rules *rules,
                                                     struct moec_error *err);
/* Of struct moec_policy_ops; `context` is the run. */
MOEC_WARN_UNUSED enum moec_status moec_compile_decide(void *context, const struct moec_plan *plan,
                                                      const struct moec_decision_settings *settings,
                                                      enum moec_part which, struct moec_evaluation *out,
                                                      struct moec_error *err);

/* ---- variants: compile_variants.c ---- */

/* Fits experts and dense matrices by GPTQ to the search part and measures what each variant costs, at the
 * first call; `context` is the run. Errors: those of moec_expert_fit_create, moec_dense_fit_create and
 * moec_harm_measure. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_variants(void *context, const struct moec_policy_variants **out, struct moec_error *err);
void moec_compile_variants_release(struct moec_compile_run *run);
/* The codecs that it offers, at their numbers; other entries stay. And whether experts may have a number. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_further_codecs(struct moec_codec codecs[static MOEC_CODEC_TABLE], struct moec_error *err);
bool moec_compile_is_for_experts(uint32_t number);
/* The codec in which experts are looked at before they are fitted: one that is quickly encoded, and whose error is
 * about that of fitted codes of 2 bits. Its number is one that no plan has. */
#define MOEC_COMPILE_LOOK_NUMBER (MOEC_CODEC_TABLE - 1u)
MOEC_WARN_UNUSED enum moec_status moec_compile_look_codec(struct moec_codec *codec, struct moec_error *err);
/* The number with the fewest bits that dense matrices may have. */
uint32_t moec_compile_smallest_dense(void);
/* Who encodes the experts of plans: NULL = the checkpoint. */
const struct moec_expert_encoder *moec_compile_encoder(const struct moec_compile_run *run);

/* Squared error of a projection of an expert at a number over its outputs' energy, or over its noise
 * (moec_expert_fit_noise); negative where it was not fitted. */
double moec_compile_expert_error(const struct moec_compile_run *run, uint32_t ordinal, uint32_t expert,
                                 enum moec_projection projection, uint32_t number, bool over_noise);
/* Fits experts at what `wanted` says (struct moec_expert_fit_request), or all; beside what was fitted before. */
MOEC_WARN_UNUSED enum moec_status
moec_compile_fit_experts(struct moec_compile_run *run, const struct moec_compile_part *part,
                         const uint8_t *wanted, const struct moec_scorer_watch *also, struct moec_error *err);
/* Measures harm: of experts where `experts` (struct moec_harm_request) is NULL, with `is_look` before they are fitted,
 * and with `has_dense` of dense matrices. `expert_error` as in struct moec_harm_errors. */
struct moec_compile_harm {
    const double *experts;
    const uint8_t *numbers; /* (n_number) of experts, and */
    const uint32_t *bits;   /* their bits; NULL: those offered */
    uint32_t n_number;
    bool has_dense, is_look;
    double (*expert_error)(void *context, uint32_t ordinal, uint32_t expert, enum moec_projection projection,
                           uint32_t number);
};
MOEC_WARN_UNUSED enum moec_status moec_compile_measure_harm(struct moec_compile_run *run,
                                                            const struct moec_compile_harm *what,
                                                            struct moec_harm *harm, struct moec_error *err);

/* ---- which variants are fitted: compile_wanted.c ---- */

/* Whether only some are: where the policy is moec's own, and a loss alone says what its plans may take. */
bool moec_compile_has_wanted(const struct moec_compile_run *run);
/* The same of options alone, of a compile for one loss; of policy NULL, hull. */
bool moec_compile_may_have_wanted(const struct moec_compile_options *options);
/* Looks at experts whose codes were not fitted, and allocates and fills `wanted` (moec_compile_fit_experts) with what
 * plans near the target are foretold to take. The caller frees it. */
MOEC_WARN_UNUSED enum moec_status moec_compile_wanted_foretell(struct moec_compile_run *run, uint8_t **wanted,
                                                               struct moec_error *err);
/* After that fit: fills offer.harm, and fits what plans near the target take beside it, until this is next to
 * nothing. Numbers that are not fitted then have infinite harm. */
MOEC_WARN_UNUSED enum moec_status moec_compile_wanted_settle(struct moec_compile_run *run,
                                                             struct moec_error *err);
/* Whether all that the plan's experts take is fitted, of numbers that are. */
bool moec_compile_is_fitted(const struct moec_compile_run *run, const struct moec_plan *plan);

/* ---- the sequence: compile_sequence.c ---- */

/* Keeps a plan that was measured on the search part, with the dense weights that are bound, if it may be
 * worth a test. */
MOEC_WARN_UNUSED enum moec_status moec_compile_candidates_add(struct moec_compile_run *run,
                                                              const struct moec_plan *plan, uint64_t n_bytes,
                                                              const struct moec_loss *loss,
                                                              struct moec_error *err);
/* Starts with the plans of a policy's answer, with the dense weights that are bound. */
MOEC_WARN_UNUSED enum moec_status moec_compile_candidates_start(struct moec_compile_run *run,
                                                                const struct moec_policy_answer *answer,
                                                                struct moec_error *err);
/* Idempotent. */
void moec_compile_candidates_release(struct moec_compile_candidates *candidates);
/* Makes the sequence that ends with report->plan, which was measured. The others are plans that the search
 * measured, those of the policy and uniform ones, whose losses are foretold. Nothing of the certificate part
 * is known yet. */
MOEC_WARN_UNUSED enum moec_status moec_compile_sequence_make(struct moec_compile_run *run,
                                                             struct moec_error *err);

/* ---- limits: compile_limits.c ---- */

/* Errors: MOEC_ERR_TARGET where the smallest plan of the variants, which are fitted, is larger than the
 * options allow. */
MOEC_WARN_UNUSED enum moec_status moec_compile_check_offer(struct moec_compile_run *run,
                                                           struct moec_error *err);
/* Fills report->uses_smallest for report->plan. */
MOEC_WARN_UNUSED enum moec_status moec_compile_note_smallest(struct moec_compile_run *run,
                                                             struct moec_error *err);

/* ---- the certificate's windows: compile_windows.c ---- */

/* How many of the certificate part's windows tests would take (compiler/certify/prefix.h), by what the search
 * and selection parts have shown so far; of rows all. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_compile_windows_expect(const struct moec_compile_run *run, uint32_t *n,
                                                              struct moec_error *err);
/* Sets n_certify. Where a compile whose journal this is has tested on more windows of the same part, it is
 * these: what it said that they prove is then proven. */
MOEC_WARN_UNUSED enum moec_status moec_compile_windows_choose(struct moec_compile_run *run,
                                                              struct moec_error *err);
/* Keeps what the certificate is going to do, before it does: the order of the part's windows, n_certify and the
 * sequence. */
MOEC_WARN_UNUSED enum moec_status moec_compile_windows_fix(struct moec_compile_run *run,
                                                           struct moec_error *err);

/* ---- the certificate: compile_certificate.c ---- */

/* Tests the sequence on the certificate part and fills report->certificate. The last plan that passed becomes
 * report->plan. Errors: MOEC_ERR_TARGET when the first plan misses and that is not accepted. */
MOEC_WARN_UNUSED enum moec_status moec_compile_certify(struct moec_compile_run *run, struct moec_error *err);

#endif
