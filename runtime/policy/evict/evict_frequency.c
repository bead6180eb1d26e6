/* Policies that weigh how often an expert is used: LFU, and EdgeMoE's with the distance of its layer.
 *
 * f of a key counts its uses; a profile's frequencies stand for the uses of PRIOR_TOKENS tokens before the
 * first one. The victim is the key with the smallest f / d, ties to the least recently used:
 *  - lfu: d = 1
 *  - edgemoe: d = layers until the key's layer is computed again, 1..S (the current layer: S): rarely used
 *    and far away goes first, as EdgeMoE III-C2 explains its policy
 *  - edgemoe-literal: d = (S - i + I) mod S with 0 read as S, the formula that the paper prints, which gives
 *    up the next layer's experts first
 *
 * Where a decoder follows an encoder, S counts the layers of one stack: those of the decoder come round for
 * every token, those of the encoder once for every input. So what the encoder has passed goes first, whatever
 * f says, and its layer at work goes last, because a long input passes it in parts: each is read once for an
 * input where a layer has room. The layers after it, the decoder's too, are as far as they stand behind it.
 *
 * Within a layer d is one, so each keeps its present keys in a heap by (f, last use); the victim is the best
 * of what stands on top of them. */
#include "formats/base/memory.h"
#include "runtime/policy/evict/key_heaps.h"

#define PRIOR_TOKENS 256
#define ONE_USE      ((uint64_t)1 << 16) /* counts are fixed point, so that fractions compare exactly */

struct frequency {
    struct moec_evict base;
    uint32_t n_layer;
    uint32_t n_encoder; /* of n_layer */
    uint32_t n_expert;
    uint32_t current; /* MoE ordinal */
    uint64_t clock;
    struct moec_key_heaps heaps;
};

static uint64_t frequency_state_bytes(uint32_t n_key)
{
    return sizeof(struct frequency) + moec_key_heaps_bytes(n_key);
}

static enum moec_status create(const struct moec_evict_ops *ops, const struct moec_evict_setup *setup,
                               struct moec_evict **out, struct moec_error *err)
{
    const uint32_t n_key = setup->n_layer * setup->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, frequency_state_bytes(n_key), 1, "eviction", err));
    struct frequency *state = memory;
    state->base.ops = ops;
    state->n_layer = setup->n_layer;
    state->n_encoder = setup->n_encoder;
    state->n_expert = setup->n_expert;
    state->heaps = moec_key_heaps_make(state + 1, setup->n_layer, setup->n_expert);
    for (uint32_t key = 0; setup->frequency != NULL && key < n_key; key++)
        state->heaps.uses[key].count = (uint64_t)(setup->frequency[key] * (float)(PRIOR_TOKENS * ONE_USE));
    *out = &state->base;
    return MOEC_OK;
}

static enum moec_status lfu_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                   struct moec_error *err)
{
    return create(&moec_evict_lfu, setup, out, err);
}

static enum moec_status edgemoe_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                       struct moec_error *err)
{
    return create(&moec_evict_edgemoe, setup, out, err);
}

static enum moec_status literal_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                       struct moec_error *err)
{
    return create(&moec_evict_edgemoe_literal, setup, out, err);
}

static void frequency_destroy(struct moec_evict *self)
{
    free(self);
}

static void frequency_reached(struct moec_evict *self, uint32_t ordinal)
{
    ((struct frequency *)self)->current = ordinal;
}

static void frequency_used(struct moec_evict *self, uint32_t key)
{
    struct frequency *state = (struct frequency *)self;
    state->heaps.uses[key].count += ONE_USE;
    state->heaps.uses[key].last = ++state->clock;
    moec_key_heaps_settle(&state->heaps, key);
}

static void frequency_inserted(struct moec_evict *self, uint32_t key)
{
    struct frequency *state = (struct frequency *)self;
    moec_key_heaps_add(&state->heaps, key);
    frequency_used(self, key);
}

static void frequency_prefetched(struct moec_evict *self, uint32_t key)
{
    struct frequency *state = (struct frequency *)self;
    moec_key_heaps_add(&state->heaps, key);
    state->heaps.uses[key].last = ++state->clock;
    moec_key_heaps_settle(&state->heaps, key);
}

static void frequency_removed(struct moec_evict *self, uint32_t key)
{
    moec_key_heaps_remove(&((struct frequency *)self)->heaps, key);
}

/* ---- victims ---- */

typedef uint32_t distance_fn(const struct frequency *state, uint32_t ordinal);

#define NEVER   0u          /* distance of a layer that this input does not come back to */
#define AT_WORK 0xffffffffu /* of an encoder's layer that may be in the middle of an input */

static uint32_t no_distance(const struct frequency *state, uint32_t ordinal)
{
    (void)state;
    (void)ordinal;
    return 1;
}

/* Layers from one to another in a round of n, 1..n. */
static uint32_t layers_ahead(uint32_t from, uint32_t to, uint32_t n)
{
    const uint32_t ahead = (to + n - from) % n;
    return ahead > 0 ? ahead : n;
}

/* Distances that a stack's own round does not give, which are alike in both formulas:
 * false within the decoder. */
static bool distance_of_stacks(const struct frequency *state, uint32_t ordinal, uint32_t *distance)
{
    if (state->current >= state->n_encoder && ordinal >= state->n_encoder)
        return false;
    if (ordinal < state->current) /* passed, in the encoder */
        *distance = NEVER;
    else
        *distance = ordinal > state->current ? ordinal - state->current : AT_WORK;
    return true;
}

static uint32_t distance_ahead(const struct frequency *state, uint32_t ordinal)
{
    uint32_t distance = 0;
    if (distance_of_stacks(state, ordinal, &distance))
        return distance;
    return layers_ahead(state->current, ordinal, state->n_layer - state->n_encoder);
}

static uint32_t distance_literal(const struct frequency *state, uint32_t ordinal)
{
    uint32_t distance = 0;
    if (distance_of_stacks(state, ordinal, &distance))
        return distance;
    return layers_ahead(ordinal, state->current, state->n_layer - state->n_encoder);
}

/* A key and the distance of its layer. */
struct candidate {
    uint32_t key, distance;
};

/* 0: goes first, 1: by its f / d, 2: goes last. */
static uint32_t class_of(uint32_t distance)
{
    return distance == NEVER ? 0 : distance == AT_WORK ? 2 : 1;
}

static bool goes_before(const struct frequency *state, struct candidate ours, struct candidate theirs)
{
    const struct moec_key_use *a = &state->heaps.uses[ours.key], *b = &state->heaps.uses[theirs.key];
    const uint32_t class = class_of(ours.distance), other = class_of(theirs.distance);
    if (class != other)
        return class < other;
    const uint64_t left = a->count * (class == 1 ? theirs.distance : 1),
                   right = b->count * (class == 1 ? ours.distance : 1);
    return left != right ? left < right : a->last <= b->last;
}

static uint32_t smallest(const struct frequency *state, distance_fn *distance, moec_evictable_fn *evictable,
                         void *context)
{
    struct candidate best = {MOEC_EVICT_NONE, 1};
    for (uint32_t layer = 0; layer < state->n_layer; layer++) {
        const struct candidate candidate = {moec_key_heaps_smallest(&state->heaps, layer, evictable, context),
                                            distance(state, layer)};
        if (candidate.key != MOEC_EVICT_NONE &&
            (best.key == MOEC_EVICT_NONE || goes_before(state, candidate, best)))
            best = candidate;
    }
    return best.key;
}

static uint32_t lfu_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    return smallest((const struct frequency *)self, no_distance, evictable, context);
}

static uint32_t edgemoe_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    return smallest((const struct frequency *)self, distance_ahead, evictable, context);
}

static uint32_t literal_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    return smallest((const struct frequency *)self, distance_literal, evictable, context);
}

const struct moec_evict_ops moec_evict_lfu = {.name = "lfu",
                                              .state_bytes = frequency_state_bytes,
                                              .create = lfu_create,
                                              .destroy = frequency_destroy,
                                              .inserted = frequency_inserted,
                                              .prefetched = frequency_prefetched,
                                              .used = frequency_used,
                                              .removed = frequency_removed,
                                              .victim = lfu_victim};

const struct moec_evict_ops moec_evict_edgemoe = {.name = "edgemoe",
                                                  .state_bytes = frequency_state_bytes,
                                                  .create = edgemoe_create,
                                                  .destroy = frequency_destroy,
                                                  .reached = frequency_reached,
                                                  .inserted = frequency_inserted,
                                                  .prefetched = frequency_prefetched,
                                                  .used = frequency_used,
                                                  .removed = frequency_removed,
                                                  .victim = edgemoe_victim};

const struct moec_evict_ops moec_evict_edgemoe_literal = {.name = "edgemoe-literal",
                                                          .state_bytes = frequency_state_bytes,
                                                          .create = literal_create,
                                                          .destroy = frequency_destroy,
                                                          .reached = frequency_reached,
                                                          .inserted = frequency_inserted,
                                                          .prefetched = frequency_prefetched,
                                                          .used = frequency_used,
                                                          .removed = frequency_removed,
                                                          .victim = literal_victim};
