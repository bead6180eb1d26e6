/* A policy of decisions: a Lua file that searches what moec tune certifies, settings of decisions about each
 * token and plans of sparsity, of one bundle or of drafts that differ in bits.
 *
 * It runs as a guest (compiler/lua/lua_host.h); lua/README.md documents what it sees. Like a policy of bits
 * (policy.h) it proposes and measures nothing itself; the parent checks every candidate. Thread rule: that of
 * moec_guest_run. */
#ifndef MOEC_COMPILER_DECISION_POLICY_H
#define MOEC_COMPILER_DECISION_POLICY_H

#include "compiler/policy/policy_request.h"

struct moec_decision_policy_hooks {
    /* Measures a candidate, which is checked, on the search part. An error ends the policy. */
    enum moec_status (*evaluate)(void *context, const struct moec_policy_candidate *candidate,
                                 struct moec_evaluation *out, struct moec_error *err);
    void (*log)(void *context, const char *line);
    void *context;
};

struct moec_decision_policy_request {
    const char *policy; /* built-in name or path of a .lua file */
    const struct moec_candidate_rules *rules;
    double max_loss;
    uint32_t n_part_window[MOEC_PART_COUNT];
    uint64_t seed;
    struct moec_guest_limits limits;
    struct moec_decision_policy_hooks hooks;
};

/* What is to be tested: one candidate, or a sequence from the safest to the one that reads least. */
struct moec_decision_policy_answer {
    struct moec_policy_candidate candidates[MOEC_POLICY_MAX_PLANS]; /* (n) */
    uint32_t n;
    bool is_sequence;
};

/* As moec_policy_check. */
MOEC_WARN_UNUSED enum moec_status moec_decision_policy_check(const char *policy, struct moec_error *err);

/* Errors: MOEC_ERR_SCRIPT; MOEC_ERR_TARGET when the policy itself says that nothing meets the target; those
 * of evaluate. */
MOEC_WARN_UNUSED enum moec_status moec_decision_policy_run(const struct moec_decision_policy_request *request,
                                                           struct moec_decision_policy_answer *answer,
                                                           struct moec_error *err);

#endif
