/* Variants of experts that ranks make for each other: each encodes its part of a layer's records and gets
 * those of the others, byte for byte what it would have encoded itself. It only saves time: where sending took
 * longer than encoding did, ranks leave it for a while. Thread rule: as moec_ranks, and no forward pass is
 * running on the source. */
#ifndef MOEC_PROFILER_SHARED_VARIANTS_H
#define MOEC_PROFILER_SHARED_VARIANTS_H

#include "profiler/evaluate/variants.h"
#include "profiler/ranks/ranks.h"

/* Records of experts first .. first + n - 1, as far as there are so many, of a layer with experts. */
struct moec_variants_range {
    uint32_t layer, first, n;
    const uint32_t *codes; /* (n_code): each expert at all of these; 0 = as assigned */
    uint32_t n_code;
};

/* Together, with the same range, assignment and codecs: those records of codes below 16 bits that any rank
 * lacks are made by one rank each and kept by all. Nothing happens where a rank's limit has no room for all
 * records of the range at once, where the encoder only copies, or without ranks. A record that cannot be made
 * is left out: acquire tells why. Errors: MOEC_ERR_MEMORY, those of moec_ranks_spread_parts. */
MOEC_WARN_UNUSED enum moec_status moec_variants_share(struct moec_variants *variants,
                                                      struct moec_ranks *ranks,
                                                      const struct moec_variants_range *range,
                                                      struct moec_error *err);

#endif
