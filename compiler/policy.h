/* A bit-allocation policy: a Lua file that turns a profile and a target into a plan: bits for every expert,
 * or for each of its projections.
 *
 * The policy runs as a guest (compiler/lua_host.h); lua/README.md documents what it sees. This header has the
 * question and the checks: an assignment that a policy evaluates or returns must name allowed
 * bitwidths for every expert. */
#ifndef MOEC_COMPILER_POLICY_H
#define MOEC_COMPILER_POLICY_H

#include "compiler/lua_host.h"
#include "formats/model/plan.h"
#include "formats/profile/profile.h"

/* Allowed bitwidths, increasing. */
#define MOEC_ASSIGNABLE_BITS                                                                                 \
    {                                                                                                        \
        2, 3, 4, 8, 16                                                                                       \
    }
#define MOEC_N_ASSIGNABLE 5

/* Different assignments that a policy may measure. */
#define MOEC_POLICY_MAX_EVALUATIONS 4096

/* Measured on the search part. */
struct moec_evaluation {
    double loss;      /* (compiled - reference) / reference */
    double loss_low;  /* 5th percentile of the paired bootstrap */
    double loss_high; /* upper end at the chosen confidence; equals loss for `point` */
    double kl;        /* mean nats a token against the original */
    bool accepted;    /* loss_high <= max_loss; true without a loss target */
};

struct moec_policy_ops {
    /* `plan` is already checked; its dense bits are not the policy's. Called once for each assignment; a
     * policy that evaluates it again gets the same result. */
    enum moec_status (*evaluate)(void *context, const struct moec_plan *plan, struct moec_evaluation *out,
                                 struct moec_error *err);
    /* Bytes of the whole bundle. */
    enum moec_status (*size)(void *context, const struct moec_plan *plan, uint64_t *n_bytes,
                             struct moec_error *err);
    void (*log)(void *context, const char *line);
};

struct moec_policy_request {
    const char *policy; /* built-in name or path of a .lua file */
    const struct moec_config *config;
    const struct moec_profile *profile; /* NULL when compiled without data: evaluate is then an error */
    double max_loss;                    /* NaN without a loss target */
    uint64_t max_bytes;                 /* 0 without a size target */
    uint32_t bits;                      /* --bits, 0 when not given */
    uint64_t seed;
    uint32_t max_evaluations; /* different assignments that it may measure */
    struct moec_guest_limits limits;
    struct moec_policy_ops ops;
    void *context; /* of ops */
};

/* Runs the policy. `plan` (of the model, the caller's) receives the experts' variants; `n_evaluations` counts
 * measured assignments. Errors: MOEC_ERR_SCRIPT, MOEC_ERR_TARGET when the policy itself says that no
 * assignment meets the target. */
MOEC_WARN_UNUSED enum moec_status moec_policy_run(const struct moec_policy_request *request,
                                                  struct moec_plan *plan, uint32_t *n_evaluations,
                                                  struct moec_error *err);

#endif
