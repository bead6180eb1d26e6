/* Mixed assignments planned from a profile alone: which bitwidth each expert gets under an allowed loss, and
 * what that is predicted to lose. A quick greedy answer for verdicts and comparisons; compile's policies
 * search with evaluations and promise something.
 *
 * Prediction: KL of an assignment = KL of the baseline + sum over experts of a(b) x(e, b), where x is the
 * expert's own effect (mean KL of it alone at b bits minus the baseline's, nats a token) and a(b) the
 * measured additivity: the whole model's effect at b bits over the sum of the experts', so that uniform
 * assignments are predicted as they were measured. Experts that the data never reached count as the most
 * sensitive of their layer. Loss follows from KL through the uniform measurements. Thread rule: plain data,
 * pure functions. */
#ifndef MOEC_PROFILER_MIXED_PLAN_H
#define MOEC_PROFILER_MIXED_PLAN_H

#include "formats/profile/profile.h"

#define MOEC_MIXED_MAX_OPTIONS (MOEC_PROFILE_MAX_BITS + 1)

struct moec_mixed_model {
    uint32_t n_expert; /* of all MoE layers, S x E */
    uint32_t n_option; /* profiled bitwidths and the baseline's, increasing */
    uint32_t bits[MOEC_MIXED_MAX_OPTIONS];
    uint64_t record_bytes[MOEC_MIXED_MAX_OPTIONS];
    double kl[MOEC_MIXED_MAX_OPTIONS];         /* whole model at these bits, measured, nats a token */
    double loss[MOEC_MIXED_MAX_OPTIONS];       /* likewise */
    double additivity[MOEC_MIXED_MAX_OPTIONS]; /* a(b); 1 where it cannot be measured */
    double baseline_kl;
    double *effects; /* (n_expert, n_option), owned: a(b) x(e, b); 0 at the baseline */
};

/* Errors: MOEC_ERR_MEMORY, MOEC_ERR_USAGE for codecs that do not exist. */
MOEC_WARN_UNUSED enum moec_status moec_mixed_model_make(const struct moec_profile *profile,
                                                        struct moec_mixed_model *model,
                                                        struct moec_error *err);
void moec_mixed_model_release(struct moec_mixed_model *model);

/* Index of a bitwidth among the options, n_option when it is none. */
uint32_t moec_mixed_option(const struct moec_mixed_model *model, uint32_t bits);

struct moec_mixed_plan {
    uint8_t *assignment; /* (n_expert) bits, owned */
    double kl;           /* predicted */
    uint64_t n_bytes;    /* of all records, without padding */
};

/* The smallest assignment that the greedy finds under this KL: everything starts at the lowest bitwidth, and
 * the step that lowers KL most for its bytes is taken next (along each expert's lower convex hull). Where
 * even the last step is not enough, all steps are taken. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_mixed_plan(const struct moec_mixed_model *model, double kl_budget,
                                                  struct moec_mixed_plan *plan, struct moec_error *err);
void moec_mixed_plan_release(struct moec_mixed_plan *plan);

/* Predicted KL of an assignment (n_expert bits); NaN when a bitwidth is no option. */
double moec_mixed_predict(const struct moec_mixed_model *model, const uint8_t *assignment);

/* Loss at a KL and KL at a loss (-1 < loss), along the line through the origin and the uniform measurements.
 */
double moec_mixed_loss(const struct moec_mixed_model *model, double kl);
double moec_mixed_kl(const struct moec_mixed_model *model, double loss);

/* Bytes at which uniform bitwidths, mixed regardless of sensitivity, would reach this KL: on the lower convex
 * hull of the whole-model measurements; NaN above what the highest bitwidth gives. */
double moec_mixed_blind_bytes(const struct moec_mixed_model *model, double kl);

#endif
