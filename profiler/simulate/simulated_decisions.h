/* What tokens would take of a recording's routing if they decided (runtime/policy/decide/route.h, precision.h): the
 * recorded logits of each router, one token after the other, through the code with which the runtime decides
 * (runtime/forward/moe/decide.h), from a logical cache that begins with each sequence.
 *
 * The logits are those of the run that was recorded. Where that did not decide, they are the decided run's
 * own in the first MoE layer alone: behind it a token that took another expert has other hidden states, and
 * from the first token on that comes out otherwise, other tokens. So the decided experts are a first guess of
 * a decided run's; of a recording of a run with the same settings they are its own, bit for bit.
 *
 * Thread rule: one call at a time; what it makes is immutable. */
#ifndef MOEC_PROFILER_SIMULATED_DECISIONS_H
#define MOEC_PROFILER_SIMULATED_DECISIONS_H

#include "profiler/simulate/recording.h"
#include "runtime/forward/weights/model.h"
#include "runtime/policy/decide/route_state.h"

struct moec_simulated_decisions_setup {
    const struct moec_replay *replay;       /* of a trace with logits */
    const struct moec_recording *recording; /* of the same */
    const struct moec_model *model;         /* that was recorded: its config and routers */
    const struct moec_route *route;         /* checked; of a logical cache */
    const uint64_t *record_bytes[2];        /* (S, E) high and low, for counts; NULL = unknown */
};

struct moec_simulated_decisions {
    struct moec_replay replay; /* with the decided experts; borrows the rest of the setup's replay */
    bool owns_scored;          /* guesses too are its own: where the setup's replay has next_logits */
    struct moec_route_counts prompt, decode; /* of the tokens of prompts, and of the others */
    struct moec_recorded_logical logical;    /* for a recording of the replay */
    struct moec_recorded_forms forms;        /* likewise, with a prefill; else empty */
    uint64_t n_choice, n_changed;            /* recorded choices of all tokens, and those not taken so now */
};

/* Whether a replay has what decisions need for a model of this config. `path` names it. Errors:
 * MOEC_ERR_USAGE, with what to do; MOEC_ERR_UNSUPPORTED for models with an encoder or with layers that route
 * by token. */
MOEC_WARN_UNUSED enum moec_status moec_simulated_decisions_check(const struct moec_replay *replay,
                                                                 const struct moec_config *config,
                                                                 const char *path, struct moec_error *err);

/* Decides. Errors: MOEC_ERR_USAGE where a precision goes by more than the recording foresees, or a prefill
 * counts prompts that were recorded in several chunks; MOEC_ERR_MEMORY. On failure `decided` is empty. */
MOEC_WARN_UNUSED enum moec_status
moec_simulated_decisions_make(const struct moec_simulated_decisions_setup *setup,
                              struct moec_simulated_decisions *decided, struct moec_error *err);
void moec_simulated_decisions_release(struct moec_simulated_decisions *decided);

#endif
