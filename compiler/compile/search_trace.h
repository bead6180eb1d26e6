/* What a compile measured, in its order: the points of the curve of size against loss, and the sequence of
 * the certificate. Losses are fractions (0.02 is 2 %), sizes are those of whole bundles.
 *
 * A trace owns its points; zero is an empty one. Thread rule: belongs to one thread. */
#ifndef MOEC_COMPILER_SEARCH_TRACE_H
#define MOEC_COMPILER_SEARCH_TRACE_H

#include "formats/bundle/bundle.h"
#include "formats/model/record.h"

#include <stddef.h>

/* The part of the data that a plan was measured on. */
enum moec_trace_part { MOEC_TRACE_SEARCH, MOEC_TRACE_SELECT, MOEC_TRACE_CERTIFICATE, MOEC_TRACE_N_PART };

struct moec_trace_point {
    enum moec_trace_part part;
    bool is_alike;             /* all experts have the same variant; its projections may differ */
    struct moec_variant alike; /* which one, where is_alike */
    uint32_t uniform_bits;     /* of all projections of all experts; 0: they differ, or have another codec */
    uint32_t dense_bits;       /* of the weights outside experts; 0: matrices have codecs of their own, */
    uint32_t dense_digest;     /* whose numbers this is the CRC-32C of; 0 else */
    bool is_extra;             /* measured for comparison, not by the search */
    uint64_t n_bytes;
    double loss, low, high; /* and the ends of its interval at the options' confidence */
    double kl;              /* mean nats a token against the original; 0 of rows */
};

struct moec_search_trace {
    size_t n;
    struct moec_trace_point *points; /* (n), owned */
    size_t capacity;
    bool has_chosen; /* the search found a plan: */
    struct moec_trace_point chosen;
    uint32_t n_sequence;
    struct moec_sequence_step sequence[MOEC_MAX_SEQUENCE]; /* (n_sequence) from the safest to the smallest */
};

/* Adds a point unless the same one is there already: a plan that is measured again gives the same numbers.
 * Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_search_trace_add(struct moec_search_trace *trace,
                                                        const struct moec_trace_point *point,
                                                        struct moec_error *err);
/* Idempotent. */
void moec_search_trace_release(struct moec_search_trace *trace);

/* The search part's point of all experts at these bits, with dense weights as in another point; NULL when
 * there is none. */
const struct moec_trace_point *moec_search_trace_uniform(const struct moec_search_trace *trace, uint32_t bits,
                                                         const struct moec_trace_point *dense);
/* What giving experts codes of their own gains over one plan for all of them. */
struct moec_mixing_gain {
    bool is_known; /* there are both: */
    struct moec_trace_point single, mixed;
    double saving; /* 1 - bytes of mixed / bytes of single; less than 0 where mixing is larger */
};

/* Two plans lose alike where their KL differs by less than this share: policies compare as closely. */
#define MOEC_MIXING_CLOSE 0.03

/* The smallest plan whose experts are alike and the smallest whose experts differ, of those on the search
 * part that lose no more than `limit`: by KL, which is less noisy than the loss, or by the loss where a
 * metric has no KL. */
struct moec_mixing_gain moec_search_trace_mixing(const struct moec_search_trace *trace,
                                                 const struct moec_trace_point *limit);

/* The smallest bundle of the search part whose upper end is at most `loss`; NULL when there is none. */
const struct moec_trace_point *moec_search_trace_smallest(const struct moec_search_trace *trace, double loss);

#endif
