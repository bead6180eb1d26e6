/* For tests: how much variants keep in memory and how often they encode, which change speed but no result. */
#ifndef MOEC_PROFILER_VARIANTS_TEST_HOOK_H
#define MOEC_PROFILER_VARIANTS_TEST_HOOK_H

#include "profiler/evaluate/variants.h"

/* Bytes of records in memory now, and records encoded since creation (those made again count again). */
uint64_t moec_variants_cached_bytes(const struct moec_variants *variants);
uint64_t moec_variants_encoded_count(const struct moec_variants *variants);

#endif
