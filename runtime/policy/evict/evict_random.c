/* Any key that may be given up, all equally likely: the baseline that says what a policy is worth. */
#include "formats/base/memory.h"
#include "runtime/policy/evict/evict.h"

struct random {
    struct moec_evict base;
    uint64_t state; /* SplitMix64 */
    uint32_t n_present;
    uint32_t *present; /* (n_key) in no order; behind `place` */
    uint32_t place[];  /* (n_key) */
};

static uint64_t random_state_bytes(uint32_t n_key)
{
    return sizeof(struct random) + (uint64_t)n_key * 2 * sizeof(uint32_t);
}

static enum moec_status random_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                      struct moec_error *err)
{
    const uint32_t n_key = setup->n_layer * setup->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, random_state_bytes(n_key), 1, "eviction", err));
    struct random *random = memory;
    random->base.ops = &moec_evict_random;
    random->present = random->place + n_key;
    *out = &random->base;
    return MOEC_OK;
}

static void random_destroy(struct moec_evict *self)
{
    free(self);
}

static void random_inserted(struct moec_evict *self, uint32_t key)
{
    struct random *random = (struct random *)self;
    random->place[key] = random->n_present;
    random->present[random->n_present++] = key;
}

static void random_used(struct moec_evict *self, uint32_t key)
{
    (void)self;
    (void)key;
}

static void random_removed(struct moec_evict *self, uint32_t key)
{
    struct random *random = (struct random *)self;
    const uint32_t last = random->present[--random->n_present];
    random->present[random->place[key]] = last;
    random->place[last] = random->place[key];
}

static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    struct random *random = (struct random *)self;
    uint32_t n = 0;
    for (uint32_t i = 0; i < random->n_present; i++)
        n += evictable(context, random->present[i]);
    if (n == 0)
        return MOEC_EVICT_NONE;
    uint64_t chosen = draw(&random->state) % n;
    for (uint32_t i = 0;; i++) {
        if (evictable(context, random->present[i]) && chosen-- == 0)
            return random->present[i];
    }
}

const struct moec_evict_ops moec_evict_random = {.name = "random",
                                                 .state_bytes = random_state_bytes,
                                                 .create = random_create,
                                                 .destroy = random_destroy,
                                                 .inserted = random_inserted,
                                                 .used = random_used,
                                                 .removed = random_removed,
                                                 .victim = random_victim};
