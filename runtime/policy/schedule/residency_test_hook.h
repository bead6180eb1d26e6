/* For tests: what a residency believes of its keys, to compare with a model of it. */
#ifndef MOEC_RUNTIME_RESIDENCY_TEST_HOOK_H
#define MOEC_RUNTIME_RESIDENCY_TEST_HOOK_H

#include "runtime/policy/schedule/residency.h"

bool moec_residency_is_demanded(const struct moec_residency *residency, uint32_t key);
/* Bytes of all present keys. */
uint64_t moec_residency_used_bytes(const struct moec_residency *residency);

#endif
