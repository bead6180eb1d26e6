/* Routing and precision that look at a sequence's logical cache (runtime/policy/decide/route.h): after the tokens of
 * a layer have been scored in parallel, they choose one after the other, each from the cache that those
 * before it left (internal to runtime/ and to those who evaluate it). */
#ifndef MOEC_RUNTIME_DECIDE_H
#define MOEC_RUNTIME_DECIDE_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/sequences.h"
#include "runtime/policy/decide/decision_book.h"
#include "runtime/policy/decide/logical_cache.h"
#include "runtime/policy/decide/route.h"

/* Settings and working memory of a forward pass that decides. One thread at a time, as the pass. */
struct moec_decider {
    const struct moec_route *route; /* borrowed */
    size_t stride;                  /* moec_config_choices, padded */
    float *logits;                  /* (max_tokens, stride) of the layer at work, owned */
    float *scores;                  /* (stride) of the token at work, and so on, owned with the logits */
    float *compared;
    float *shares;
    float *bias;
    bool *skips;  /* (max_tokens, top_k), owned: experts that are neither read nor computed */
    bool *is_low; /* likewise: those taken in form 1, their low copies; NULL where all have one precision */
    /* (n_expert), owned: those that a token of the batch before takes high, which are read in any case. NULL
     * unless decisions look at the expert buffer. */
    bool *is_asked;
    /* Of such decisions: where they are kept, or come from. Set by who has it, borrowed; NULL otherwise. */
    struct moec_decision_book *book;
    /* (MoE layers, n_expert) bytes of records, high and low, for counts: set by who knows them, borrowed. */
    const uint64_t *record_bytes[2];
    /* Told what sequences hold, for the source of experts; set by who has it, borrowed; NULL = none. */
    const struct moec_logical_cache *logical;
};

uint64_t moec_decider_bytes(const struct moec_config *config, const struct moec_route *route,
                            uint32_t max_tokens);
MOEC_WARN_UNUSED enum moec_status moec_decider_create(const struct moec_config *config,
                                                      const struct moec_route *route, uint32_t max_tokens,
                                                      struct moec_decider *decider, struct moec_error *err);
void moec_decider_release(struct moec_decider *decider);

struct moec_routing;

/* Chooses and weighs for the batch whose logits stand in the decider, sequence by sequence, counts capacity
 * and advances each sequence's state. */
void moec_decide(const struct moec_forward *forward, uint32_t layer, const struct moec_sequences *sequences,
                 const struct moec_routing *routing);

/* The copies in which a prompt will take the experts of a MoE layer that its tokens come to, where that is
 * known before: no decision of the layers in between changes it. True: `is_low` (n_expert) are taken in form
 * 1 by the first of its tokens at least, NULL: none by a prompt's own precision. False: the prompt's tokens
 * are counted first, or the batch is of several sequences. `sequences`: NULL = the batch decides nothing. */
bool moec_decide_forms(const struct moec_forward *forward, const struct moec_sequences *sequences,
                       uint32_t ordinal, const bool **is_low);

/* A guess at what a token will take of the MoE layer `ahead` of the one that has been decided: `logits`
 * (moec_config_choices) stand for what that layer's router will say, and its logical cache is what it will
 * look at. Of `gate` (n) those that would not be taken, or skipped, get the negative of their score. Changes
 * no state. */
void moec_decide_foretell(const struct moec_forward *forward, uint32_t layer, uint32_t ahead,
                          const struct moec_sequence_rows *span, const float *logits,
                          struct moec_scored_expert *gate, uint32_t n);

#endif
