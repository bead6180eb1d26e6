/* Measurements of assignments, so that none is measured twice. The key of an assignment is the SHA-256 of its
 * bytes, so entries have the same size for every model. Thread rule: one thread at a time. */
#ifndef MOEC_COMPILER_EVALUATION_CACHE_H
#define MOEC_COMPILER_EVALUATION_CACHE_H

#include "compiler/policy/policy_request.h"
#include "formats/base/digest.h"

struct moec_evaluation_cache;

/* Empty; the caller frees it. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_evaluation_cache_create(struct moec_evaluation_cache **cache,
                                                               struct moec_error *err);
/* NULL is allowed. */
void moec_evaluation_cache_free(struct moec_evaluation_cache *cache);

/* True, with `*out` filled, when an evaluation was added under this key. */
bool moec_evaluation_cache_find(const struct moec_evaluation_cache *cache,
                                const uint8_t key[static MOEC_SHA256_BYTES], struct moec_evaluation *out);

/* Adds an evaluation under a key that is not there yet. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_evaluation_cache_add(struct moec_evaluation_cache *cache,
                                                            const uint8_t key[static MOEC_SHA256_BYTES],
                                                            const struct moec_evaluation *evaluation,
                                                            struct moec_error *err);

/* The number of evaluations added. */
uint32_t moec_evaluation_cache_count(const struct moec_evaluation_cache *cache);

#endif
