/* What policies of moec compile and of moec tune share: the check of a file, and the tables that both are
 * given (internal to the policies; lua/README.md documents the members). These push one value, or set a field
 * of the table on top of the stack. Thread rule: the guest's only thread. */
#ifndef MOEC_COMPILER_POLICY_PUSH_H
#define MOEC_COMPILER_POLICY_PUSH_H

#include "compiler/policy/policy_request.h"

/* The stack holds what the policy's file returned: raises an error if that is no function. */
void moec_policy_expect_function(lua_State *lua, const char *policy);
/* In the parent: loads a file as a guest and expects a function, which is not called. `folder` of lua/ has
 * the built-in ones. Errors: as moec_policy_check. */
MOEC_WARN_UNUSED enum moec_status moec_policy_check_file(const char *folder, const char *policy,
                                                         struct moec_error *err);

void moec_policy_set_number(lua_State *lua, const char *key, double value);
void moec_policy_set_integer(lua_State *lua, const char *key, uint64_t value);
/* Sets the field `model`. */
void moec_policy_set_model(lua_State *lua, const struct moec_config *config);
/* Sets the field `parts`: windows (or rows) of each part. */
void moec_policy_set_parts(lua_State *lua, const uint32_t n_part_window[static MOEC_PART_COUNT]);
/* Sets what candidates may have, and what they have where they do not say: `with`, `slots`, `low_slots`,
 * `low_bits`, `keep_top`, `cache_start`, `drafts`. */
void moec_policy_set_rules(lua_State *lua, const struct moec_candidate_rules *rules);
/* Pushes what evaluate returns. */
void moec_policy_push_evaluation(lua_State *lua, const struct moec_evaluation *evaluation);

#endif
