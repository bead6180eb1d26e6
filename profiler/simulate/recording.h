/* Routing that was recorded, as the simulator replays it: a replay (formats/trace/replay.h) and what its
 * steps are in their sequences. A step is what the engine computes at once: one token while decoding, or a
 * chunk of a prompt. Thread rule: immutable after creation. */
#ifndef MOEC_PROFILER_RECORDING_H
#define MOEC_PROFILER_RECORDING_H

#include "formats/trace/replay.h"
#include "runtime/seam/experts.h"

struct moec_recorded_step {
    uint64_t first_token; /* of the recording */
    uint32_t n_tok;
    uint32_t position; /* tokens of its sequence before it */
    bool begins;       /* a sequence */
    bool is_prefill;   /* its time is not time per output token: of a prompt, or of a source and the step
                        * behind it, which gives the first token of the target */
    struct moec_replay_span layers;
};

/* What the logical caches of tokens that decide hold (runtime/policy/decide/logical_cache.h): at an answer the keys
 * first[a] .. first[a + 1] - 1 enter, or leave if they are held, in this order. */
struct moec_recorded_logical {
    uint32_t n_slots[2]; /* of a layer: high and low copies */
    uint64_t *first;     /* (answers + 1), owned */
    uint32_t *keys;      /* owned */
};

/* In which copies prompts take their experts, where they have a precision of their own
 * (runtime/policy/decide/prefill.h): what is known of a layer before it answers. */
struct moec_recorded_forms {
    uint32_t *rows; /* (answers), owned: of is_low; UINT32_MAX = not known, or not of a prompt */
    bool *is_low;   /* (rows, n_expert), owned: taken in form 1 */
};

struct moec_recording {
    const struct moec_replay *replay; /* borrowed */
    struct {
        const struct moec_recorded_logical *logical; /* NULL: nothing of such caches */
        const struct moec_recorded_forms *forms;     /* NULL: prompts have no precision of their own */
    } known;                                         /* beside it, borrowed */
    struct {
        uint32_t n_layer;   /* S: MoE layers */
        uint32_t n_encoder; /* of those */
        uint32_t n_expert;
        uint32_t n_layer_key; /* experts of a layer, in each of the replay's forms */
        uint32_t top_k;
    } shape;
    struct {
        uint64_t first; /* the steps before it run and do not count */
        uint64_t n_token, n_decoded;
    } counted; /* of the steps that count */
    uint64_t n_step;
    struct moec_recorded_step *steps; /* (n_step), owned */
    uint64_t n_active;                /* experts of all answers: length of replay->active */
    uint32_t *n_takers;               /* (n_active), owned: tokens that take each expert of an answer */
};

/* Of a profile's windows with these prompts (as moec_replay_from_profile), or with profile NULL of a trace,
 * where a step of several tokens begins a sequence or continues its prompt. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status
moec_recording_make(const struct moec_replay *replay, const struct moec_profile *profile,
                    uint32_t prompt_tokens, struct moec_recording *recording, struct moec_error *err);
/* What comes before this step of a trace of a decoder does not count: a sample that only warmed up. */
void moec_recording_count_from(struct moec_recording *recording, uint64_t step);
/* Frees the members and zeroes the struct. */
void moec_recording_release(struct moec_recording *recording);

/* Experts of answer a = step * S + ordinal, increasing, in a form behind the first numbered on; none in
 * layers that the step does not pass. */
static inline const uint32_t *moec_recording_active(const struct moec_recording *recording, uint64_t a,
                                                    uint32_t *n)
{
    *n = recording->replay->answers[a].n_active;
    return recording->replay->active + recording->replay->answers[a].active;
}

/* Of answer a, (n_expert) before it comes; NULL where it is not known. */
static inline const bool *moec_recording_low(const struct moec_recording *recording, uint64_t a)
{
    const struct moec_recorded_forms *forms = recording->known.forms;
    return forms == NULL || forms->rows[a] == UINT32_MAX
               ? NULL
               : forms->is_low + (size_t)forms->rows[a] * recording->shape.n_expert;
}

/* The answer of one layer; its arrays are the replay's and the recording's. */
static inline struct moec_router_answer moec_recording_answer(const struct moec_recording *recording,
                                                              uint64_t step, uint32_t ordinal)
{
    const struct moec_replay *replay = recording->replay;
    const struct moec_replay_answer *from = &replay->answers[step * recording->shape.n_layer + ordinal];
    struct moec_router_answer answer = {
        .layer = replay->moe_layers[ordinal],
        .n_tok = replay->n_tok[step],
        .active = {.list = replay->active + from->active,
                   .n = from->n_active,
                   .n_takers = replay->n_tok[step] > 1 ? recording->n_takers + from->active : NULL},
        .choices = {.experts = replay->experts + from->choices,
                    .weights = replay->weights + from->choices,
                    .is_low = replay->is_low != NULL ? replay->is_low + from->choices : NULL}};
    if (ordinal > recording->steps[step].layers.first) {
        answer.last.experts = replay->experts + from[-1].choices;
        answer.last.weights = replay->weights + from[-1].choices;
    }
    if (ordinal + 1 < recording->shape.n_layer)
        answer.next.is_low = moec_recording_low(recording, step * recording->shape.n_layer + ordinal + 1);
    if (from->n_next_gate > 0) {
        answer.next.gate.experts = replay->scored + from->next_gate;
        answer.next.gate.n = from->n_next_gate;
    }
    for (size_t i = 0; i < MOEC_REPLAY_LATER; i++)
        answer.next.later[i] =
            (struct moec_gate_list){replay->scored + from->later_gates[i], from->n_later_gates[i]};
    if (from->n_next_learned > 0) {
        answer.next.learned.experts = replay->scored + from->next_learned;
        answer.next.learned.n = from->n_next_learned;
    }
    return answer;
}

#endif
