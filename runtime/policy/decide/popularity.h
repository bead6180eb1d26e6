/* How many tokens of a sequence have taken each expert, and which experts of a prompt's block are read in a
 * low copy for it (runtime/policy/decide/prefill.h). Part of a sequence's route state, layer by layer.
 *
 * Counts are in units of 1/65535 token, as the path table has calibration's shares. Thread rule: one thread
 * at a time. */
#ifndef MOEC_RUNTIME_POPULARITY_H
#define MOEC_RUNTIME_POPULARITY_H

#include "runtime/policy/decide/prefill.h"

#include <stdbool.h>

struct moec_popularity {
    struct moec_prefill settings;
    uint32_t n_layer, n_expert;
    uint64_t *counts; /* (n_layer, n_expert), owned */
    bool *is_low;     /* (n_layer, n_expert) of the block at work, owned */
    bool *is_read[2]; /* (n_layer, n_expert) high and low copies that it has read or found, owned */
};

uint64_t moec_popularity_bytes(uint32_t n_layer, uint32_t n_expert);
/* Allocates for settings of a kind; with none the rest is zero and must not be used. */
MOEC_WARN_UNUSED enum moec_status moec_popularity_create(const struct moec_prefill *settings,
                                                         uint32_t n_layer, uint32_t n_expert,
                                                         struct moec_popularity *popularity,
                                                         struct moec_error *err);
void moec_popularity_release(struct moec_popularity *popularity);

static inline bool moec_popularity_is_on(const struct moec_popularity *popularity)
{
    return popularity->settings.kind != MOEC_PREFILL_SAME;
}

/* A layer, of this MoE ordinal in the model, knows calibration alone. */
void moec_popularity_reset(struct moec_popularity *popularity, uint32_t layer, uint32_t ordinal);

/* A token took the expert, or will take it, where tokens to come are looked at. */
void moec_popularity_add(struct moec_popularity *popularity, uint32_t layer, uint32_t expert);

/* A block begins with these high and low copies (n_expert) in the logical cache. */
void moec_popularity_begin(struct moec_popularity *popularity, uint32_t layer, const bool *has_high,
                           const bool *has_low);

static inline bool moec_popularity_is_low(const struct moec_popularity *popularity, uint32_t layer,
                                          uint32_t expert)
{
    return popularity->is_low[(size_t)layer * popularity->n_expert + expert];
}

/* Reads a copy for the block. Whether it had it already. */
bool moec_popularity_take(struct moec_popularity *popularity, uint32_t layer, uint32_t expert, bool is_low);

/* `to`, of the same settings, becomes what `from` is. */
void moec_popularity_copy(struct moec_popularity *to, const struct moec_popularity *from);

#endif
