/* What a MoE layer is told of the sequences in a batch: how many more tokens an expert takes of each, where
 * the config limits them (expert_capacity; Switch Transformers, section 2.2), which tokens they are, where
 * layers route by token, and what its tokens' choices look at, where the forward pass decides. */
#ifndef MOEC_RUNTIME_SEQUENCES_H
#define MOEC_RUNTIME_SEQUENCES_H

#include "formats/model/config.h"

struct moec_route_state;
struct moec_decision_log;

/* Where the forward pass decides (runtime/forward/moe/decide.h), else all zero. */
struct moec_sequence_decisions {
    /* What choices look at, advanced by moec_forward_mlp, and which of its layers is at work. */
    struct moec_route_state *route;
    uint32_t layer;
    /* The first rows, which are a prompt's: they keep the router's choice where decisions are for decoding
     * alone, and may have a precision of their own. */
    uint32_t n_prompt;
    /* (n_rows, moec_precision_predicted_words), where precisions go by what is foreseen, else NULL: the
     * experts of the MoE layer at work that the one before foresaw for each row; it leaves those of the next
     * there. */
    uint64_t *predicted;
    /* With decisions by what the expert buffer holds, else NULL: where they are noted, or already stand; and
     * the first row's position. */
    struct moec_decision_log *log;
    uint32_t first_position;
};

/* Rows of a batch that belong to one sequence; the rows of the spans follow each other. Capacity: every token
 * counts for the expert that its router chose, in order of position; from the expert_capacity-th on they pass
 * the expert by, which does not compute them: their weight and their rank output are 0, or the weight turns
 * negative and the output is the input times its size (full_keeps_input). Traces still name the router's
 * choice.
 *
 * transformers counts over each sequence of one call: over a source whole, over a target whole when it is
 * teacher-forced, and over each step by itself in generation with a cache, where nothing is ever full. A
 * decoder alone counts from a text's first token on, in generation too. */
struct moec_sequence_rows {
    uint32_t n_rows;
    const uint32_t *tokens; /* (n_rows) their ids, where a layer routes by token; else may be NULL */
    /* (n_expert), of the layer at work: earlier tokens; advanced by moec_forward_mlp. NULL: nothing is ever
     * full. */
    uint32_t *counts;
    struct moec_sequence_decisions decides;
};

struct moec_sequences {
    const struct moec_sequence_rows *spans;
    uint32_t n_spans;
};

struct moec_mlp_trace;

/* What passes an MLP together: n_tok rows of hidden states (n_tok, moec_forward_stride), which it adds to,
 * whose they are, and who looks. */
struct moec_mlp_batch {
    uint32_t n_tok;
    float *hidden;
    const struct moec_sequences *sequences; /* NULL: nothing is ever full, and nothing is decided */
    const struct moec_mlp_trace *trace;     /* runtime/forward/moe/moe.h; NULL: nothing is traced */
};

/* Counts a token for its expert. Whether the expert was full; its weight is then marked as above. */
static inline bool moec_capacity_take(const struct moec_sequence_rows *span, const struct moec_config *config,
                                      uint32_t expert, float *weight)
{
    if (span->counts == NULL)
        return false;
    uint32_t *count = &span->counts[expert];
    const bool is_full = *count >= config->router.expert_capacity;
    if (is_full)
        *weight = config->router.full_keeps_input ? -*weight : 0;
    *count += *count < UINT32_MAX ? 1 : 0;
    return is_full;
}

/* Whether a token of a weight found its expert full, in models with an expert capacity. */
static inline bool moec_capacity_was_full(float weight)
{
    return weight <= 0;
}

#endif
