/* Biases of relative positions (T5; Raffel et al., arXiv 1910.10683, section 2.1): what a head adds to the
 * score of a key depends on the distance between key and query.
 *
 * Distances fall into buckets. Of the buckets of one side, the first half are single distances; the others
 * grow with the logarithm up to max_distance, beyond which all share the last. An encoder's keys stand on
 * both sides and each side has half of the buckets; a decoder's stand before the query. Every layer of a
 * stack adds the same biases. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_POSITION_BIAS_H
#define MOEC_RUNTIME_POSITION_BIAS_H

#include "formats/model/config.h"
#include "runtime/kernels/kernels.h"

/* Bucket of a key that stands `offset` positions after the query (negative: before it).
 * The config has buckets. */
uint32_t moec_position_bucket(const struct moec_config *config, enum moec_stack stack, int64_t offset);

/* A table holds the bias of every head at every distance that buckets tell apart: for each head
 * moec_position_bias_width floats, from offset -max_distance on. */
size_t moec_position_bias_width(const struct moec_config *config, enum moec_stack stack);
/* `weights` (n_bucket, n_head). */
void moec_position_bias_fill(const struct moec_config *config, enum moec_stack stack, const float *weights,
                             float *table);

/* Keys at positions first .. first + n - 1, as a query at `position` sees them. */
struct moec_seen_keys {
    uint32_t position, first, n;
};

/* scores[i] += a head's bias of key i for the query. `head` is the head's row of a table. In the decoder no
 * key stands after the query. */
void moec_position_bias_add(const struct moec_kernels *kernels, const struct moec_config *config,
                            enum moec_stack stack, const float *head, struct moec_seen_keys keys,
                            float *scores);

/* Floats of the tables of both stacks; 0 without buckets. */
uint64_t moec_position_bias_floats(const struct moec_config *config);

#endif
