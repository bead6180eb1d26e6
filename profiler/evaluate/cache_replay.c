/* Uses are linked backwards first: `next` of each choice, `soon` of each expert. While a token is at work
 * `soon` of its own experts is the token itself, which protects them. It moves on after the whole token.
 * Stays are replayed by LRU, the logical cache's own order, and compare the cache between whole tokens. */
#include "profiler/evaluate/cache_replay.h"

#include "formats/base/memory.h"

#include <math.h>
#include <string.h>

#define NEVER UINT32_MAX

double moec_cache_replay_stay(const struct moec_cache_replay_counts *counts, double *deviation)
{
    const double n = (double)counts->n_stay, mean = n > 0 ? counts->stay_tokens / n : 0;
    const double variance = n > 0 ? counts->stay_tokens_squared / n - mean * mean : 0;
    *deviation = variance > 0 ? sqrt(variance) : 0;
    return mean;
}

static enum moec_status allocate(struct moec_cache_replay *replay, uint32_t max_tokens,
                                 struct moec_error *err)
{
    const char *what = "a replay of logical caches";
    const uint64_t n = replay->n_expert;
    MOEC_TRY(moec_alloc((void **)&replay->next, (uint64_t)max_tokens * replay->top_k, sizeof *replay->next,
                        what, err));
    MOEC_TRY(moec_alloc((void **)&replay->soon, n, sizeof *replay->soon, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->loaded, n, sizeof *replay->loaded, what, err));
    MOEC_TRY(moec_alloc((void **)&replay->recent, (uint64_t)replay->n_slots + 1, sizeof *replay->recent, what,
                        err));
    MOEC_TRY(moec_alloc((void **)&replay->is_there, n, sizeof(bool), what, err));
    return moec_alloc((void **)&replay->was_there, n, sizeof(bool), what, err);
}

enum moec_status moec_cache_replay_create(uint32_t n_expert, uint32_t top_k, uint32_t n_slots,
                                          uint32_t max_tokens, struct moec_cache_replay **out,
                                          struct moec_error *err)
{
    struct moec_cache_replay *replay = NULL;
    *out = NULL;
    MOEC_TRY(moec_alloc((void **)&replay, 1, sizeof *replay, "a replay of logical caches", err));
    *replay = (struct moec_cache_replay){.n_expert = n_expert, .top_k = top_k, .n_slots = n_slots};
    const enum moec_status status = allocate(replay, max_tokens, err);
    if (status == MOEC_OK)
        *out = replay;
    else
        moec_cache_replay_free(replay);
    return status;
}

void moec_cache_replay_free(struct moec_cache_replay *replay)
{
    if (replay == NULL)
        return;
    free(replay->next);
    free(replay->soon);
    free(replay->loaded);
    free(replay->recent);
    free(replay->is_there);
    free(replay->was_there);
    free(replay);
}

/* Experts that a token took as they are, low copies left out, and their places among `touched`. */
static uint32_t taken_by(const struct moec_cache_replay *replay, const uint16_t *touched, uint32_t token,
                         uint32_t *experts, uint32_t *places)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < replay->top_k; i++) {
        const uint32_t place = token * replay->top_k + i;
        if (touched[place] == MOEC_ROUTE_NO_EXPERT)
            break;
        if (touched[place] >= MOEC_ROUTE_LOW)
            continue;
        experts[n] = touched[place];
        places[n++] = place;
    }
    return n;
}

/* ---- Belady ---- */

/* Fills `next`, and `soon` as it is before the first token. */
static void look_ahead(struct moec_cache_replay *replay, const uint16_t *touched, uint32_t n_token)
{
    uint32_t experts[MOEC_MAX_TOP_K], places[MOEC_MAX_TOP_K];
    for (uint32_t e = 0; e < replay->n_expert; e++)
        replay->soon[e] = NEVER;
    for (uint32_t t = n_token; t-- > 0;) {
        const uint32_t n = taken_by(replay, touched, t, experts, places);
        for (uint32_t i = 0; i < n; i++) {
            replay->next[places[i]] = replay->soon[experts[i]];
            replay->soon[experts[i]] = t;
        }
    }
}

/* The expert in the cache that is used last, none of the token's own: theirs is the token at work. */
static uint32_t farthest(const struct moec_cache_replay *replay, uint32_t token)
{
    uint32_t found = 0;
    bool is_found = false;
    for (uint32_t e = 0; e < replay->n_expert; e++) {
        if (!replay->is_there[e] || replay->soon[e] == token ||
            (is_found && replay->soon[e] <= replay->soon[found]))
            continue;
        found = e;
        is_found = true;
    }
    return found;
}

static uint32_t begin(struct moec_cache_replay *replay, const struct moec_path_value *initial)
{
    const uint32_t n = initial != NULL ? replay->n_slots : 0;
    memset(replay->is_there, 0, replay->n_expert * sizeof(bool));
    for (uint32_t i = 0; i < n; i++)
        replay->is_there[initial[i].expert] = true;
    return n;
}

static uint64_t replay_belady(struct moec_cache_replay *replay, const uint16_t *touched, uint32_t n_token,
                              const struct moec_path_value *initial)
{
    uint32_t experts[MOEC_MAX_TOP_K], places[MOEC_MAX_TOP_K];
    uint32_t n_there = begin(replay, initial);
    uint64_t n_missed = 0;
    look_ahead(replay, touched, n_token);
    for (uint32_t t = 0; t < n_token; t++) {
        const uint32_t n = taken_by(replay, touched, t, experts, places);
        for (uint32_t i = 0; i < n; i++) {
            if (replay->is_there[experts[i]])
                continue;
            n_missed++;
            if (n_there < replay->n_slots)
                n_there++;
            else
                replay->is_there[farthest(replay, t)] = false;
            replay->is_there[experts[i]] = true;
        }
        for (uint32_t i = 0; i < n; i++)
            replay->soon[experts[i]] = replay->next[places[i]];
    }
    return n_missed;
}

/* ---- stays ---- */

static void end_stay(struct moec_cache_replay *replay, uint32_t expert, uint32_t token)
{
    struct moec_cache_replay_counts *counts = &replay->counts;
    const double n = token - replay->loaded[expert];
    counts->n_stay++;
    counts->stay_tokens += n;
    counts->stay_tokens_squared += n * n;
}

/* The expert comes to the front; the least recently used goes where there is no room. */
static void use(struct moec_cache_replay *replay, uint32_t expert, uint32_t *n_recent)
{
    uint16_t *recent = replay->recent;
    uint32_t at = 0;
    if (replay->is_there[expert]) {
        while (recent[at] != expert)
            at++;
    } else if (*n_recent < replay->n_slots) {
        at = (*n_recent)++;
    } else {
        at = replay->n_slots - 1;
        replay->is_there[recent[at]] = false;
    }
    memmove(recent + 1, recent, at * sizeof *recent);
    recent[0] = (uint16_t)expert;
    replay->is_there[expert] = true;
}

/* Whole tokens are compared: an expert that one of its token's others pushed out comes back with the token,
 * and never left. */
static void replay_stays(struct moec_cache_replay *replay, const uint16_t *touched, uint32_t n_token,
                         const struct moec_path_value *initial)
{
    uint32_t experts[MOEC_MAX_TOP_K], places[MOEC_MAX_TOP_K];
    uint32_t n_recent = begin(replay, initial);
    for (uint32_t i = 0; i < n_recent; i++) {
        replay->recent[i] = initial[i].expert;
        replay->loaded[initial[i].expert] = 0;
    }
    for (uint32_t t = 0; t < n_token; t++) {
        const uint32_t n = taken_by(replay, touched, t, experts, places);
        memcpy(replay->was_there, replay->is_there, replay->n_expert * sizeof(bool));
        for (uint32_t i = 0; i < n; i++)
            use(replay, experts[i], &n_recent);
        for (uint32_t e = 0; e < replay->n_expert; e++) {
            if (replay->was_there[e] && !replay->is_there[e])
                end_stay(replay, e, t);
            if (!replay->was_there[e] && replay->is_there[e])
                replay->loaded[e] = t;
        }
    }
    for (uint32_t i = 0; i < n_recent; i++)
        end_stay(replay, replay->recent[i], n_token);
}

void moec_cache_replay_run(struct moec_cache_replay *replay, const uint16_t *touched, uint32_t n_token,
                           const struct moec_path_value *initial)
{
    if (replay->n_slots == 0)
        return;
    replay->counts.n_belady_missed += replay_belady(replay, touched, n_token, initial);
    replay_stays(replay, touched, n_token, initial);
}
