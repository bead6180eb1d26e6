/* Routing that was recorded, as the simulator replays it: which experts every MoE layer's router answered,
 * step after step.
 *
 * A step is what the engine computes at once: one token while decoding, or a chunk of a prompt. It has one
 * answer for each of the S MoE layers, in their order. Recordings come from the routing of a profile, whose
 * windows are sequences, or from the trace of a run (profiler/recording_trace.c). Thread rule: immutable
 * after creation. */
#ifndef MOEC_PROFILER_RECORDING_H
#define MOEC_PROFILER_RECORDING_H

#include "formats/profile.h"
#include "runtime/experts.h"

struct moec_recorded_step {
    uint64_t first_token; /* of the recording */
    uint32_t n_tok;
    uint32_t position; /* tokens of its sequence before it */
    bool is_prefill;   /* its time is not time per output token */
};

struct moec_recording {
    uint32_t n_layer; /* S: MoE layers */
    uint32_t n_expert;
    uint32_t top_k;
    uint32_t *layers; /* (S), owned: model layer of each ordinal */
    uint64_t n_step, n_token, n_decoded;
    struct moec_recorded_step *steps; /* (n_step), owned */
    /* Choices of a step: (S, n_tok, k) from first_token * S * k on, each token's in order of weight; owned.
     */
    uint32_t *experts;
    float *weights;
    uint64_t *active_start; /* (n_step * S + 1), owned: where an answer's experts begin in `active` */
    uint32_t *active;       /* owned: increasing within an answer, each once */
    /* What the next layer's router said of this layer's input (struct moec_router_answer); NULL when that was
     * not recorded. */
    uint64_t *gate_start; /* (n_step * S + 1), owned */
    struct moec_scored_expert *gate;
};

/* Routing of a profile: each window is a sequence whose first prefill_tokens are one chunk of a prompt (all
 * of it when it is shorter), the others decoded one by one; 0 decodes every token. Errors: MOEC_ERR_USAGE for
 * a profile without routing trace, MOEC_ERR_LIMIT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_recording_from_profile(const struct moec_profile *profile,
                                                              uint32_t prefill_tokens,
                                                              struct moec_recording *recording,
                                                              struct moec_error *err);
/* Frees the members and zeroes the struct. */
void moec_recording_release(struct moec_recording *recording);

/* The answer of one layer; its arrays are the recording's. */
static inline struct moec_router_answer moec_recording_answer(const struct moec_recording *recording,
                                                              uint64_t step, uint32_t ordinal)
{
    const struct moec_recorded_step *at = &recording->steps[step];
    const uint64_t a = step * recording->n_layer + ordinal;
    const size_t n = (size_t)at->n_tok * recording->top_k;
    const size_t first = at->first_token * recording->n_layer * recording->top_k + ordinal * n;
    struct moec_router_answer answer = {
        .layer = recording->layers[ordinal],
        .n_tok = at->n_tok,
        .active = recording->active + recording->active_start[a],
        .n_active = (uint32_t)(recording->active_start[a + 1] - recording->active_start[a]),
        .experts = recording->experts + first,
        .weights = recording->weights + first,
        .last_experts = ordinal > 0 ? recording->experts + first - n : NULL,
        .last_weights = ordinal > 0 ? recording->weights + first - n : NULL};
    if (recording->gate_start != NULL && recording->gate_start[a] < recording->gate_start[a + 1]) {
        answer.next_gate = recording->gate + recording->gate_start[a];
        answer.n_next_gate = (uint32_t)(recording->gate_start[a + 1] - recording->gate_start[a]);
    }
    return answer;
}

/* --- making one (internal to the recording*.c files) ------------------------------------------------------
 */

/* Allocates for steps of n_token tokens in all; dimensions are set. Released by the caller in every case. */
MOEC_WARN_UNUSED enum moec_status moec_recording_allocate(struct moec_recording *recording, uint64_t n_step,
                                                          uint64_t n_token, struct moec_error *err);
/* Derives which experts each answer activates from the choices of all steps, which are valid. */
MOEC_WARN_UNUSED enum moec_status moec_recording_finish(struct moec_recording *recording,
                                                        struct moec_error *err);

#endif
