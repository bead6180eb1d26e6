#include "runtime/policy/evict/evict.h"

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
    return moec_fail(err, MOEC_ERR_USAGE, "unknown eviction '%.40s', expected one of %s", name, names);
}

enum moec_status moec_evict_read(const char *word, struct moec_evict_choice *out, struct moec_error *err)
{
    const size_t n_name = strcspn(word, ":");
    *out = (struct moec_evict_choice){0};
    if (strlen(word) >= sizeof out->word)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "eviction '%.40s...' is a word of %zu bytes, expected at most %zu", word,
                         strlen(word), sizeof out->word - 1);
    memcpy(out->word, word, n_name);
    MOEC_TRY(moec_evict_find(out->word, &out->ops, err));
    (void)snprintf(out->word, sizeof out->word, "%s", word);
    if (word[n_name] == '\0')
        return MOEC_OK;
    if (out->ops->read == NULL)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "eviction '%s' gives parameters, but '%s' takes none: leave them out (only hobbit and fate take "
            "parameters)",
            word, out->ops->name);
    return out->ops->read(word + n_name + 1, out, err);
}
