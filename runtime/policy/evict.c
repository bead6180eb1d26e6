#include "runtime/policy/evict.h"

#include <stdio.h>
#include <string.h>

const struct moec_evict_ops *const moec_evict_policies[] = {
    &moec_evict_fifo,
    &moec_evict_lru,
    &moec_evict_lfu,
    &moec_evict_edgemoe,
    &moec_evict_edgemoe_literal,
    &moec_evict_arc,
    &moec_evict_random,
    NULL,
};

enum moec_status moec_evict_find(const char *name, const struct moec_evict_ops **out, struct moec_error *err)
{
    char names[160] = "";
    size_t at = 0;
    for (size_t i = 0; moec_evict_policies[i] != NULL; i++) {
        const struct moec_evict_ops *policy = moec_evict_policies[i];
        if (strcmp(policy->name, name) == 0) {
            *out = policy;
            return MOEC_OK;
        }
        const int n = snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? ", " : "", policy->name);
        if (n > 0 && (size_t)n < sizeof names - at)
            at += (size_t)n;
    }
    return moec_fail(err, MOEC_ERR_USAGE, "unknown eviction policy '%.40s', expected one of %s", name, names);
}
