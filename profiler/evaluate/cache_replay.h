/* What became of the experts that a sequence's tokens took in one layer (runtime/policy/decide/route_state.h), seen
 * after its last token: what Belady's rule, which knows the future, would have missed of the same choices in
 * as many slots (cache-conditional experts, Fig. 9), and how long an expert stayed in the logical cache
 * (Table 2).
 *
 * Belady's rule evicts the expert whose next use is farthest away, never one of the token at work, and the
 * slots are at least those of one token; so nothing that loads experts when tokens take them misses less. A
 * stay counts the tokens from the one that loads an expert to the one that evicts it, or to the end of the
 * sequence; experts that the cache began with stay from the first token on. Low copies have slots of their
 * own and are left out. Thread rule: one thread at a time. */
#ifndef MOEC_PROFILER_CACHE_REPLAY_H
#define MOEC_PROFILER_CACHE_REPLAY_H

#include "runtime/policy/decide/route_state.h"

struct moec_cache_replay_counts {
    uint64_t n_belady_missed;
    uint64_t n_stay;
    double stay_tokens, stay_tokens_squared; /* sums over stays of their length and of its square */
};

/* Means and standard deviation of the stays, in tokens; 0 without any. */
double moec_cache_replay_stay(const struct moec_cache_replay_counts *counts, double *deviation);

struct moec_cache_replay {
    struct moec_cache_replay_counts counts; /* of all sequences so far */
    uint32_t n_expert, top_k, n_slots;
    uint32_t *next;             /* (max_tokens, top_k), owned: the token that takes an expert next */
    uint32_t *soon;             /* (n_expert), owned: likewise, seen from the token at work */
    uint32_t *loaded;           /* (n_expert), owned: the token that loaded it */
    uint16_t *recent;           /* (n_slots), owned: the most recent first */
    bool *is_there, *was_there; /* (n_expert), owned: now, and before the token at work */
};

MOEC_WARN_UNUSED enum moec_status moec_cache_replay_create(uint32_t n_expert, uint32_t top_k,
                                                           uint32_t n_slots, uint32_t max_tokens,
                                                           struct moec_cache_replay **out,
                                                           struct moec_error *err);
void moec_cache_replay_free(struct moec_cache_replay *replay);

/* Counts one sequence of at most max_tokens. `touched` (n_token, top_k) is as a route state keeps it;
 * `initial` (n_slots) what the cache began with, NULL = nothing. Without slots nothing is counted. */
void moec_cache_replay_run(struct moec_cache_replay *replay, const uint16_t *touched, uint32_t n_token,
                           const struct moec_path_value *initial);

#endif
