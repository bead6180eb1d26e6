/* Which precision copy of a bundle stands in for important experts' less important uses, beside the copy that
 * is run (runtime/policy/decide/precision.h), and what records of both take. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_LOW_COPY_H
#define MOEC_RUNTIME_LOW_COPY_H

#include "runtime/experts/expert_cache.h"

/* The copy whose experts have these bits, or with 0 the smallest there is. Errors: MOEC_ERR_USAGE where the
 * bundle has none that is smaller than copy `high`, naming the flag that makes them. */
MOEC_WARN_UNUSED enum moec_status moec_low_copy_find(const struct moec_bundle *bundle, uint32_t high,
                                                     uint32_t bits, uint32_t *low, struct moec_error *err);

/* Of a buffer that two copies have pools in, the bytes of the low one's: room for n_slots low copies for each
 * layer, or with 0 for half as many of them as the other pool has high ones; at most all of them, at least
 * the largest, which beside the largest high one the buffer has room for. What the other pool could not fill
 * goes to this one, unless n_slots says how many. */
uint64_t moec_low_pool_bytes(const struct moec_bundle *bundle, uint32_t high, uint32_t low, uint32_t n_slots,
                             uint64_t buffer_bytes);
/* The same by the sizes of both copies, of which a layer has n_expert each. */
uint64_t moec_low_pool_of_sizes(const struct moec_record_sizes *high, const struct moec_record_sizes *low,
                                uint32_t n_expert, uint32_t n_slots, uint64_t buffer_bytes);

/* Bytes of a copy's records in a buffer, (MoE layers, n_expert); freed by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_copy_record_bytes(const struct moec_bundle *bundle, uint32_t copy,
                                                         uint64_t **bytes, struct moec_error *err);

#endif
