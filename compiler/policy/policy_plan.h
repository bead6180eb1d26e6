/* Plans as messages between a policy and its parent (internal to the policy; lua/README.md documents what a
 * policy writes).
 *
 * A message is one byte of the kind, then for each plan the codec numbers of every expert's projections,
 * three bytes an expert, and one byte for each dense matrix. What the child sends it has read from Lua tables
 * and checked; the parent checks all of it again, for the child is a guest. */
#ifndef MOEC_COMPILER_POLICY_PLAN_H
#define MOEC_COMPILER_POLICY_PLAN_H

#include "compiler/policy/policy_request.h"

/* What a plan must fit. */
struct moec_policy_shape {
    uint32_t n_layer; /* MoE layers */
    uint32_t n_expert;
    uint32_t n_dense;
    bool has_gate;
};

struct moec_policy_shape moec_policy_shape_of(const struct moec_config *config);

/* Names of the projections of an expert: gate, up, down. */
const char *moec_policy_projection_name(enum moec_projection projection);

/* ---- the child's side ---- */

/* From now on entries of assignments may be this name. */
void moec_policy_name_codec(lua_State *lua, const char *name, uint8_t number);

/* Pushes a message with the assignment at `index`, or raises an error that says which entry is wrong. `what`
 * begins it ("evaluate's assignment"). */
void moec_policy_push_plan(lua_State *lua, const struct moec_policy_shape *shape, int index, char kind,
                           const char *what);

/* The same for an assignment or for {sequence = {a1, .., an}}, n at most MOEC_POLICY_MAX_PLANS. */
void moec_policy_push_answer(lua_State *lua, const struct moec_policy_shape *shape, int index, char kind,
                             const char *what);

/* ---- the parent's side ---- */

/* Bytes of one plan in a message. */
size_t moec_policy_plan_bytes(const struct moec_policy_shape *shape);

/* Reads a plan from moec_policy_plan_bytes bytes. `variants` (NULL before the policy asked for them) says
 * which numbers there are besides bitwidths. Errors: MOEC_ERR_SCRIPT. */
MOEC_WARN_UNUSED enum moec_status moec_policy_read_plan(const struct moec_policy_shape *shape,
                                                        const struct moec_policy_variants *variants,
                                                        const char *policy, const uint8_t *bytes,
                                                        struct moec_plan *plan, struct moec_error *err);

#endif
