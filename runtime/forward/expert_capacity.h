/* How many more tokens an expert takes of a sequence, where the config limits them (expert_capacity; Switch
 * Transformers, section 2.2). */
#ifndef MOEC_RUNTIME_EXPERT_CAPACITY_H
#define MOEC_RUNTIME_EXPERT_CAPACITY_H

#include <stdint.h>

/* Tokens that an expert has been sent in each sequence of a batch. Rows of the batch belong to the spans in
 * order. Every token counts for the expert that its router chose, in order of position; from the
 * expert_capacity-th on they pass the layer by: their weight is 0, the expert does not compute them, and
 * their rank output is 0. Traces still name the router's choice.
 *
 * transformers counts over each sequence of one call: over a source whole, over a target whole when it is
 * teacher-forced, and over each step by itself in generation with a cache, where nothing is ever full. */
struct moec_capacity_span {
    uint32_t n_rows;
    uint32_t *counts; /* (n_expert), of the layer at work: earlier tokens; advanced by moec_forward_mlp */
};

struct moec_capacity {
    const struct moec_capacity_span *spans;
    uint32_t n_spans;
};

#endif
