/* What a prompt will ask of the MoE layer that its tokens come to next: so many tokens take nearly every
 * expert, so those that several of them are expected to take are read while the layer before computes, behind
 * what is demanded and as far as there is room beside it. No predictor is asked; what of it has not begun
 * when the layer answers is taken back (rule 3 of runtime/policy/schedule/read_order.h).
 *
 * A prompt's tokens may take some experts in low copies (runtime/policy/decide/prefill.h). Where these are known
 * before the layer answers they are named, and expected in form 1.
 *
 * How many tokens take an expert follows from its share in calibration, the largest first, so that what is
 * taken back is what is likely to be needed least. Without a path table every expert counts as one that is
 * taken MOEC_PROMPT_PREFETCH_SKEW times less often than the average.
 *
 * Thread rule: the caller's lock covers every call on one instance. */
#ifndef MOEC_RUNTIME_PROMPT_PREFETCH_H
#define MOEC_RUNTIME_PROMPT_PREFETCH_H

#include "runtime/seam/experts.h"

/* An expert that so many tokens are expected to take is not taken by any in one of fifty prompts. */
#define MOEC_PROMPT_PREFETCH_TAKERS 4.0f
#define MOEC_PROMPT_PREFETCH_SKEW   4.0f

struct moec_prompt_prefetch_setup {
    uint32_t n_layer;   /* MoE layers */
    uint32_t n_encoder; /* of these, whose tokens do not pass the others */
    uint32_t n_expert;
    uint32_t n_form; /* that keys tell apart (runtime/policy/schedule/residency.h) */
    uint32_t top_k;
    const struct moec_path_table *paths; /* borrowed; n_layer 0 when there is none */
};

/* What the chooser may ask the cache, as struct moec_preload_view has it. */
struct moec_prompt_prefetch_view {
    bool (*is_present)(void *context, uint32_t key);
    void *context;
};

struct moec_prompt_prefetch {
    struct moec_prompt_prefetch_setup setup;
    struct moec_prompt_prefetch_view view;
    uint32_t ordinal;   /* the layer to come */
    uint32_t n_tok;     /* 0 = nothing is expected */
    uint32_t next;      /* of its experts in order */
    const bool *is_low; /* (n_expert) taken in form 1; NULL = none; borrowed until the next tokens come */
};

/* So many tokens come to a MoE layer next; n_layer or 0 tokens: nothing is expected. `is_low` (n_expert, in a
 * setup of two forms or more) names experts that they take in form 1; NULL: none. Keys of the layer that are
 * present are named to the view at once. */
void moec_prompt_prefetch_begin(struct moec_prompt_prefetch *prompt_prefetch, uint32_t ordinal,
                                uint32_t n_tok, const bool *is_low);

/* A layer has answered: its tokens come to the next one of its stack, where they take what the answer's
 * next.is_low says. Without it, experts that they take in another form say nothing of those that the next
 * layer will be asked for, so nothing is expected then. */
void moec_prompt_prefetch_answered(struct moec_prompt_prefetch *prompt_prefetch, uint32_t ordinal,
                                   const struct moec_router_answer *answer);

static inline bool moec_prompt_prefetch_is_open(const struct moec_prompt_prefetch *prompt_prefetch)
{
    return prompt_prefetch->n_tok > 0;
}

/* The key to be read next, or MOEC_EVICT_NONE; the same again as long as it is absent. */
uint32_t moec_prompt_prefetch_next(struct moec_prompt_prefetch *prompt_prefetch);

#endif
