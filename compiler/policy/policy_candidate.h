/* Candidates with decisions about each token (formats/model/decision_settings.h): what a guest writes of them
 * in Lua, and how they go through the pipe (lua/README.md documents the members).
 *
 * The child reads a table into a struct and checks what it means, so that an error names the line of the
 * script; the parent checks the struct again, for the child is a guest. Thread rule: pure functions. */
#ifndef MOEC_COMPILER_POLICY_CANDIDATE_H
#define MOEC_COMPILER_POLICY_CANDIDATE_H

#include "compiler/lua/lua_host.h"
#include "formats/base/error.h"
#include "formats/model/config.h"
#include "formats/model/decision_settings.h"
#include "formats/tables/path_table.h"

struct moec_policy_candidate {
    struct moec_decision_settings settings;
    uint32_t draft;    /* from 0 */
    uint32_t left_out; /* of the bytes of gate and down, in thousandths; 0 = no sparsity plan */
};

/* What candidates may have. All borrowed. */
struct moec_candidate_rules {
    const struct moec_config *config;
    const struct moec_path_table *paths; /* what calibration used */
    const char *path;                    /* of the model, for messages */
    /* What a candidate has where its table has no such member. low_bits 0: there is no low copy. */
    struct moec_decision_settings shared;
    bool may_route, may_precise, may_prefill, may_leave_out;
    uint32_t n_draft;            /* 1: there are no drafts */
    const uint32_t *draft_slots; /* (n_draft) of each in place of shared.n_slots; NULL: there is one of all */
};

/* ---- the child's side ---- */

/* Reads the table at `index`, or raises an error that says which member is wrong; `what` begins it
 * ("evaluate's candidate"). A member `assignment` is left to the caller where `has_assignment`. */
void moec_policy_read_candidate(lua_State *lua, const struct moec_candidate_rules *rules, int index,
                                bool has_assignment, const char *what, struct moec_policy_candidate *out);

/* ---- both sides ---- */

/* Whether a candidate fits rules and model. Errors: MOEC_ERR_USAGE, with what is expected; MOEC_ERR_SCRIPT
 * for bytes that moec_policy_read_candidate cannot have written. */
MOEC_WARN_UNUSED enum moec_status moec_policy_check_candidate(const struct moec_candidate_rules *rules,
                                                              const struct moec_policy_candidate *candidate,
                                                              struct moec_error *err);

bool moec_policy_candidates_equal(const struct moec_policy_candidate *a,
                                  const struct moec_policy_candidate *b);

#endif
