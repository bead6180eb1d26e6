/* What a model's routers answered, step by step: what a cache is replayed with. It comes from a trace that a
 * running engine wrote (formats/trace/trace_json.h) or from the routing of a profile.
 *
 * A step is one batch of tokens on its way through all layers: a chunk of a prompt, or one token that is
 * decoded. Where an encoder reads a source first, the source is a step through the encoder's layers (a long
 * one, which goes through each layer in chunks, a step for each layer and chunk) and the others pass the
 * decoder's; answers of layers that a step does not pass are empty. Letters: S MoE layers, E
 * experts, k top-k, T tokens of a step, F forms. Expert indices are in range, active lists increase strictly
 * and hold exactly the experts chosen, those of form 1 numbered from E on, answers of a step come in the
 * order of the layers; whoever holds a replay may trust that. Choices of weight 0 count for nothing (an
 * expert that was full, one that was skipped), so that a passed layer may have none active. Thread rule:
 * immutable after creation. */
#ifndef MOEC_FORMATS_REPLAY_H
#define MOEC_FORMATS_REPLAY_H

#include "formats/profile/profile.h"
#include "formats/tables/path_table.h"

/* The MoE layers that a step passes: ordinals first .. end - 1. */
struct moec_replay_span {
    uint32_t first, end;
};

/* Routers behind the next one whose gates a trace may tell. */
#define MOEC_REPLAY_LATER 3

/* One router's answer. Times are nanoseconds since the trace began, 0 in a replay without times. */
struct moec_replay_answer {
    uint32_t n_active;       /* 0 .. F x E */
    uint32_t n_next_gate;    /* 0: none known (the last MoE layer, and everywhere without gates) */
    uint32_t n_next_learned; /* 0 likewise, and everywhere without a learned predictor */
    uint64_t active;         /* index in moec_replay.active: (n_active) increasing */
    uint64_t choices;      /* index in moec_replay.experts, .weights and .is_low: (T, k) in order of weight */
    uint64_t logits;       /* index in moec_replay.logits: (T, n_logit); only where these are told */
    uint64_t next_gate;    /* index in moec_replay.scored: as struct moec_router_answer has it */
    uint64_t next_learned; /* likewise */
    uint64_t later_gates[MOEC_REPLAY_LATER]; /* likewise, of the routers behind the next one */
    uint32_t n_later_gates[MOEC_REPLAY_LATER];
    uint64_t answered_ns; /* the router had answered */
    uint64_t done_ns;     /* the layer's experts were computed */
    uint64_t stall_ns;    /* of the time between, waiting for storage */
};

struct moec_replay {
    /* model */
    uint32_t n_layer, n_expert, top_k; /* S, E, k */
    uint32_t n_form;                   /* F, in which experts were taken: 1, or 2 with low copies (form 1) */
    uint32_t low_copy;                 /* of the bundle, which form 1 is; 0 with one form */
    uint32_t n_encoder;                /* of S, the first ones: read a source, once for each input */
    uint32_t *moe_layers;              /* (S), owned: model layer of each MoE layer */
    /* Its frequencies warm the buffer up; n_layer 0 when there is none. */
    const struct moec_path_table *paths;

    /* what ran; in a replay of a profile all of it is empty: NULL, 0, "" */
    uint64_t *record_bytes; /* (S, F, E), owned: as read */
    uint64_t *slot_bytes;   /* (S, F, E), owned: as counted in the buffer */
    uint64_t buffer_bytes;
    uint32_t preload_count, preload_ahead; /* ahead 0: not told */
    char evict[32], predict[32], version[32];
    char precision[32]; /* the word by which experts were taken in form 1; "" = not told */

    /* routing */
    bool has_next_gate, has_next_learned;
    uint32_t gates_ahead; /* all answers tell the gates of so many layers, as far as their stack has them */
    bool has_times;
    uint64_t n_step;
    uint32_t *n_tok; /* (n_step), owned: T of each step */
    bool *begins;    /* (n_step), owned: with its prompt, a sequence; NULL: as steps of several tokens tell */
    struct moec_replay_span *spans;     /* (n_step), owned; NULL: each step passes all layers */
    struct moec_replay_answer *answers; /* (n_step, S), owned */
    uint32_t *active;                   /* owned pools that answers point into */
    uint32_t *experts;
    float *weights;
    bool *is_low; /* of the experts, taken in form 1; NULL with one form */
    struct moec_scored_expert *scored;
    /* What routers said of every choice, before any was made: their experts and, behind these, choices that
     * give their input. Any bits of F32. NULL and 0 in a replay without. */
    float *logits;
    uint32_t n_logit;
    /* What the router of the next MoE layer would say of the input of this one's, for answers to single tokens, as
     * `logits` (same places). Owned; NULL in a replay without. */
    float *next_logits;

    struct moec_path_table own_paths; /* of a trace */
};

static inline struct moec_replay_span moec_replay_passed(const struct moec_replay *replay, uint64_t step)
{
    return replay->spans != NULL ? replay->spans[step] : (struct moec_replay_span){0, replay->n_layer};
}

/* Whether it reads a source, or a part of one; through no layer where the encoder has no MoE layers. */
static inline bool moec_replay_is_source(const struct moec_replay *replay, uint64_t step)
{
    const struct moec_replay_span span = moec_replay_passed(replay, step);
    return replay->spans != NULL && (span.first < replay->n_encoder || span.end == 0);
}

/* The routing of a profile's windows, each a prompt of up to prompt_tokens in one step and then token by
 * token (0: token by token from the first one on); with an encoder the source in one step, then the target
 * token by token. The profile is borrowed until release. Errors: MOEC_ERR_USAGE when it has no routing trace,
 * and for prompt_tokens with an encoder. */
MOEC_WARN_UNUSED enum moec_status moec_replay_from_profile(const struct moec_profile *profile,
                                                           uint32_t prompt_tokens, struct moec_replay *out,
                                                           struct moec_error *err);

/* Frees the members and zeroes the struct. */
void moec_replay_release(struct moec_replay *replay);

#endif
