/* Which of many measured candidates are worth a test: those within the target of which no other loses less
 * and has no more bytes, and of these a sequence for fixed-sequence testing. Thread rule: pure functions. */
#ifndef MOEC_COMPILER_FRONT_H
#define MOEC_COMPILER_FRONT_H

#include "compiler/certify/sequence.h"

#define MOEC_FRONT_MAX 264

struct moec_front_point {
    uint64_t n_bytes;
    const struct moec_loss *loss; /* on the search part */
};

struct moec_front_request {
    const struct moec_front_point *points; /* (n_point), at most MOEC_FRONT_MAX */
    size_t n_point;
    double max_loss;
    double confidence;
    uint32_t n_search, n_certify; /* windows of these parts */
};

/* Marks the front in is_on_front (n_point), and lists in `sequence` (MOEC_MAX_SEQUENCE) the places of its
 * safest, its smallest and some between, by falling bytes, each at least 2 % smaller than the one before.
 * Returns how many: 0 where nothing is within the target. */
uint32_t moec_front_choose(const struct moec_front_request *request, bool *is_on_front, uint32_t *sequence);

#endif
