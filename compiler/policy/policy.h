/* A bit-allocation policy: a Lua file that turns a profile and a target into a plan, or into a sequence of
 * plans for the certificate (D16): codecs for every expert, or for each of its projections, and for dense
 * matrices.
 *
 * The policy runs as a guest (compiler/lua/lua_host.h); lua/README.md documents what it sees. This header has
 * the question and the checks: an assignment that a policy evaluates or returns must name an allowed
 * bitwidth, or a variant that was offered, for every expert. */
#ifndef MOEC_COMPILER_POLICY_H
#define MOEC_COMPILER_POLICY_H

#include "compiler/policy/policy_request.h"

/* Whether there is a policy of this name or path that can be run: its file is loaded as a guest, with the
 * modules that it requires, and must return a function, which is not called. What can be known before
 * anything is measured. Errors: MOEC_ERR_NOT_FOUND, MOEC_ERR_SCRIPT with the script's own message, which
 * names the line. */
MOEC_WARN_UNUSED enum moec_status moec_policy_check(const char *policy, struct moec_error *err);

/* Runs the policy. The answer is released by the caller in every case. Errors: MOEC_ERR_SCRIPT,
 * MOEC_ERR_TARGET when the policy itself says that no assignment meets the target. */
MOEC_WARN_UNUSED enum moec_status moec_policy_run(const struct moec_policy_request *request,
                                                  struct moec_policy_answer *answer, struct moec_error *err);
/* Idempotent. */
void moec_policy_answer_release(struct moec_policy_answer *answer);

#endif
