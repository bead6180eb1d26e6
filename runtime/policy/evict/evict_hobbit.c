/* HOBBIT's multidimensional eviction (arXiv:2411.01433, section 3.4): the key with the lowest priority goes,
 *
 *     p = w_lru R / T + w_lfu F / T + w_lhu H / T + w_fld (1 - ((l_t - l_i + l_n) mod l_n) / l_n)   (eq. 3)
 *
 * where R is the pass in which it was used last, F the number of its uses, H of those in high precision, T
 * the number of the pass at work, l_t its layer, l_i the layer at work and l_n the number of MoE layers; ties
 * go to the least recent. A pass is a token that is decoded or a chunk of a prompt. R, F, H and T begin anew
 * with every sequence. In one buffer they are a key's: a low copy, which is a key of its own, has no uses in
 * high precision. Where high and low copies have pools of their own they are the expert's, in whichever copy
 * it was used, as the paper has them.
 *
 * Within a layer the order is that of w_lru R + w_lfu F + w_lhu H, so each keeps its present keys in a heap.
 */
#include "formats/base/memory.h"
#include "runtime/policy/evict/key_heaps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ONE 65536.0f /* weights are fixed point, so that priorities compare exactly */

struct hobbit {
    struct moec_evict base;
    uint32_t n_high;   /* keys of a layer that are of high precision, the first ones */
    uint32_t current;  /* MoE ordinal */
    uint64_t n_passes; /* T */
    uint64_t clock;
    uint64_t weights[MOEC_EVICT_WEIGHTS];
    struct moec_key_heaps heaps;
    uint32_t *uses;      /* (n_key) F, behind the heaps */
    uint32_t *high_uses; /* (n_key) H */
    uint32_t *order;     /* (n_expert) of a layer that is sorted anew */
};

static uint64_t hobbit_state_bytes(uint32_t n_key)
{
    return sizeof(struct hobbit) + moec_key_heaps_bytes(n_key) + 3 * (uint64_t)n_key * sizeof(uint32_t);
}

static enum moec_status create(const struct moec_evict_ops *ops, const struct moec_evict_setup *setup,
                               const float *weights, struct moec_evict **out, struct moec_error *err)
{
    const uint32_t n_key = setup->n_layer * setup->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, hobbit_state_bytes(n_key), 1, "eviction", err));
    struct hobbit *state = memory;
    state->base.ops = ops;
    state->n_high = setup->n_expert - setup->n_low;
    state->heaps = moec_key_heaps_make(state + 1, setup->n_layer, setup->n_expert);
    state->uses = (uint32_t *)((uint8_t *)(state + 1) + moec_key_heaps_bytes(n_key));
    state->high_uses = state->uses + n_key;
    state->order = state->high_uses + n_key;
    for (size_t i = 0; i < MOEC_EVICT_WEIGHTS; i++)
        state->weights[i] = (uint64_t)(weights[i] * ONE + 0.5f);
    *out = &state->base;
    return MOEC_OK;
}

static enum moec_status hobbit_read(const char *parameters, struct moec_evict_choice *choice,
                                    struct moec_error *err)
{
    double values[MOEC_EVICT_WEIGHTS], sum = 0;
    const char *at = parameters;
    for (size_t i = 0; i < MOEC_EVICT_WEIGHTS; i++) {
        char *end = NULL;
        values[i] = strtod(at, &end);
        const char follows = i + 1 < MOEC_EVICT_WEIGHTS ? ':' : '\0';
        if (end == at || *end != follows || !(values[i] >= 0) || !isfinite(values[i]))
            break;
        sum += values[i];
        at = end + (follows == ':');
        choice->has_weights = follows == '\0' && sum > 0 && isfinite(sum);
    }
    for (size_t i = 0; choice->has_weights && i < MOEC_EVICT_WEIGHTS; i++)
        choice->weights[i] = (float)(values[i] / sum);
    if (choice->has_weights)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "cannot read eviction weights '%s', expected four numbers for lru, lfu, lhu and fld, "
                     "such as hobbit:0.4:0.3:0.1:0.2",
                     parameters);
}

static enum moec_status hobbit_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                      struct moec_error *err)
{
    static const float equal[MOEC_EVICT_WEIGHTS] = {0.25f, 0.25f, 0.25f, 0.25f};
    return create(&moec_evict_hobbit, setup, setup->weights != NULL ? setup->weights : equal, out, err);
}

static enum moec_status lhu_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                   struct moec_error *err)
{
    static const float lhu[MOEC_EVICT_WEIGHTS] = {[MOEC_EVICT_LHU] = 1};
    return create(&moec_evict_lhu, setup, lhu, out, err);
}

static void hobbit_destroy(struct moec_evict *self)
{
    free(self);
}

/* Layers come round in a pass. */
static void hobbit_reached(struct moec_evict *self, uint32_t ordinal)
{
    struct hobbit *state = (struct hobbit *)self;
    if (ordinal <= state->current || state->n_passes == 0)
        state->n_passes++;
    state->current = ordinal;
}

/* A layer's keys all count the same now: by their last uses. */
static void forget_layer(struct hobbit *state, uint32_t layer)
{
    const uint32_t n = state->heaps.sizes[layer], n_expert = state->heaps.n_expert;
    memcpy(state->order, state->heaps.keys + (size_t)layer * n_expert, n * sizeof *state->order);
    state->heaps.sizes[layer] = 0;
    for (uint32_t i = 0; i < n; i++)
        moec_key_heaps_add(&state->heaps, state->order[i]);
}

static void hobbit_began(struct moec_evict *self)
{
    struct hobbit *state = (struct hobbit *)self;
    const uint32_t n_key = state->heaps.n_layer * state->heaps.n_expert;
    state->n_passes = 0;
    for (uint32_t key = 0; key < n_key; key++) {
        state->uses[key] = state->high_uses[key] = 0;
        state->heaps.uses[key].count = 0;
    }
    for (uint32_t layer = 0; layer < state->heaps.n_layer; layer++)
        forget_layer(state, layer);
}

static void count_use(struct hobbit *state, uint32_t key, bool is_high)
{
    struct moec_key_use *use = &state->heaps.uses[key];
    const uint64_t n = ++state->uses[key], n_high = state->high_uses[key] += is_high;
    use->count = state->weights[MOEC_EVICT_LRU] * state->n_passes + state->weights[MOEC_EVICT_LFU] * n +
                 state->weights[MOEC_EVICT_LHU] * n_high;
    use->last = ++state->clock;
}

static void hobbit_used(struct moec_evict *self, uint32_t key)
{
    struct hobbit *state = (struct hobbit *)self;
    count_use(state, key, key % state->heaps.n_expert < state->n_high);
    moec_key_heaps_settle(&state->heaps, key);
}

static void hobbit_used_beside(struct moec_evict *self, uint32_t key, bool is_high)
{
    struct hobbit *state = (struct hobbit *)self;
    count_use(state, key, is_high);
    if (moec_key_heaps_has(&state->heaps, key))
        moec_key_heaps_settle(&state->heaps, key);
}

static void hobbit_inserted(struct moec_evict *self, uint32_t key)
{
    moec_key_heaps_add(&((struct hobbit *)self)->heaps, key);
    hobbit_used(self, key);
}

static void hobbit_prefetched(struct moec_evict *self, uint32_t key)
{
    struct hobbit *state = (struct hobbit *)self;
    state->heaps.uses[key].last = ++state->clock;
    moec_key_heaps_add(&state->heaps, key);
}

static void hobbit_removed(struct moec_evict *self, uint32_t key)
{
    moec_key_heaps_remove(&((struct hobbit *)self)->heaps, key);
}

/* p T l_n, in fixed point. */
static uint64_t priority_of(const struct hobbit *state, uint32_t key)
{
    const uint32_t n_layer = state->heaps.n_layer;
    const uint32_t ahead = (key / state->heaps.n_expert + n_layer - state->current) % n_layer;
    return state->heaps.uses[key].count * n_layer +
           state->weights[MOEC_EVICT_FLD] * state->n_passes * (n_layer - ahead);
}

static uint32_t hobbit_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    const struct hobbit *state = (const struct hobbit *)self;
    uint32_t best = MOEC_EVICT_NONE;
    for (uint32_t layer = 0; layer < state->heaps.n_layer; layer++) {
        const uint32_t key = moec_key_heaps_smallest(&state->heaps, layer, evictable, context);
        if (key == MOEC_EVICT_NONE)
            continue;
        const uint64_t ours = priority_of(state, key),
                       theirs = best != MOEC_EVICT_NONE ? priority_of(state, best) : UINT64_MAX;
        if (ours < theirs || (ours == theirs && state->heaps.uses[key].last < state->heaps.uses[best].last))
            best = key;
    }
    return best;
}

const struct moec_evict_ops moec_evict_hobbit = {.name = "hobbit",
                                                 .read = hobbit_read,
                                                 .state_bytes = hobbit_state_bytes,
                                                 .create = hobbit_create,
                                                 .destroy = hobbit_destroy,
                                                 .began = hobbit_began,
                                                 .reached = hobbit_reached,
                                                 .inserted = hobbit_inserted,
                                                 .prefetched = hobbit_prefetched,
                                                 .used = hobbit_used,
                                                 .used_beside = hobbit_used_beside,
                                                 .removed = hobbit_removed,
                                                 .victim = hobbit_victim};

const struct moec_evict_ops moec_evict_lhu = {.name = "lhu",
                                              .state_bytes = hobbit_state_bytes,
                                              .create = lhu_create,
                                              .destroy = hobbit_destroy,
                                              .began = hobbit_began,
                                              .reached = hobbit_reached,
                                              .inserted = hobbit_inserted,
                                              .prefetched = hobbit_prefetched,
                                              .used = hobbit_used,
                                              .used_beside = hobbit_used_beside,
                                              .removed = hobbit_removed,
                                              .victim = hobbit_victim};
