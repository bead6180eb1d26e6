#include "runtime/policy/evict/evict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct moec_evict_ops *const moec_evict_policies[] = {
    &moec_evict_fifo,
    &moec_evict_lru,
    &moec_evict_lfu,
    &moec_evict_edgemoe,
    &moec_evict_edgemoe_literal,
    &moec_evict_arc,
    &moec_evict_random,
    &moec_evict_hobbit,
    &moec_evict_lhu,
    &moec_evict_fate,
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

enum moec_status moec_evict_read_weights(const char *text, float weights[static MOEC_EVICT_WEIGHTS],
                                         struct moec_error *err)
{
    double values[MOEC_EVICT_WEIGHTS], sum = 0;
    const char *at = text;
    for (size_t i = 0; i < MOEC_EVICT_WEIGHTS; i++) {
        char *end = NULL;
        values[i] = strtod(at, &end);
        const char follows = i + 1 < MOEC_EVICT_WEIGHTS ? ':' : '\0';
        if (end == at || *end != follows || !(values[i] >= 0) || !isfinite(values[i]))
            break;
        sum += values[i];
        at = end + (follows == ':');
        if (follows == '\0' && sum > 0 && isfinite(sum)) {
            for (size_t j = 0; j < MOEC_EVICT_WEIGHTS; j++)
                weights[j] = (float)(values[j] / sum);
            return MOEC_OK;
        }
    }
    return moec_fail(err, MOEC_ERR_USAGE,
                     "cannot read eviction weights '%s', expected four numbers for lru, lfu, lhu and fld, "
                     "such as 0.4:0.3:0.1:0.2",
                     text);
}
