/* Fate's shallow-favoring cache (arXiv:2502.12224, section 4.4): each layer has a share of the buffer, and
 * ARC decides within it. Which shares, the cache says (runtime/policy/schedule/layer_shares.h).
 *
 * A share is a wish: a buffer whose layers hold less than theirs gives the room to others meanwhile, and what
 * a layer demands it gets. An expert takes the room of its own layer where that holds its share already, else
 * of the layer that is the farthest above its share, of equal ones the deepest. */
#include "formats/base/memory.h"
#include "formats/model/config.h"
#include "runtime/policy/evict/arc.h"

#include <stdlib.h>
#include <string.h>

struct fate {
    struct moec_evict base;
    uint32_t n_layer, n_expert;
    uint32_t wanting;          /* the layer that room is made for */
    struct moec_arc_keys keys; /* behind the layers */
    struct moec_arc layers[];  /* (n_layer); capacity = the share */
};

static uint64_t fate_state_bytes(uint32_t n_key)
{
    const uint64_t n_layer = n_key < MOEC_MAX_LAYERS ? n_key : MOEC_MAX_LAYERS;
    return sizeof(struct fate) + n_layer * sizeof(struct moec_arc) +
           (uint64_t)n_key * (sizeof(struct moec_key_link) + 1);
}

static enum moec_status fate_create(const struct moec_evict_setup *setup, struct moec_evict **out,
                                    struct moec_error *err)
{
    const uint32_t n_key = setup->n_layer * setup->n_expert;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, fate_state_bytes(n_key), 1, "eviction", err));
    struct fate *fate = memory;
    fate->base.ops = &moec_evict_fate;
    fate->n_layer = setup->n_layer;
    fate->n_expert = setup->n_expert;
    fate->keys.links = (struct moec_key_link *)(fate->layers + setup->n_layer);
    fate->keys.places = (uint8_t *)(fate->keys.links + n_key);
    for (uint32_t layer = 0; layer < setup->n_layer; layer++)
        moec_arc_init(&fate->layers[layer]);
    *out = &fate->base;
    return MOEC_OK;
}

static void fate_destroy(struct moec_evict *self)
{
    free(self);
}

static void fate_shared(struct moec_evict *self, const uint32_t *shares)
{
    struct fate *fate = (struct fate *)self;
    for (uint32_t layer = 0; layer < fate->n_layer; layer++) {
        struct moec_arc *arc = &fate->layers[layer];
        arc->capacity = shares[layer];
        arc->share = arc->share < arc->capacity ? arc->share : arc->capacity;
    }
}

static enum moec_status fate_read(const char *parameters, struct moec_evict_choice *choice,
                                  struct moec_error *err)
{
    char *end = NULL;
    const unsigned long n = strtoul(parameters, &end, 10);
    if (parameters[0] < '0' || parameters[0] > '9' || *end != '\0' || n < 1 || n > MOEC_MAX_LAYERS)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "eviction 'fate' has '%s' shallow layers, expected a whole number from 1 to "
                         "%d, such as fate:3",
                         parameters, MOEC_MAX_LAYERS);
    choice->n_shallow = (uint32_t)n;
    return MOEC_OK;
}

static struct moec_arc *layer_of(struct fate *fate, uint32_t key)
{
    return &fate->layers[key / fate->n_expert];
}

static void fate_wanted(struct moec_evict *self, uint32_t key)
{
    struct fate *fate = (struct fate *)self;
    fate->wanting = key / fate->n_expert;
    moec_arc_wanted(layer_of(fate, key), &fate->keys, key);
}

static void fate_inserted(struct moec_evict *self, uint32_t key)
{
    struct fate *fate = (struct fate *)self;
    moec_arc_inserted(layer_of(fate, key), &fate->keys, key);
}

static void fate_used(struct moec_evict *self, uint32_t key)
{
    struct fate *fate = (struct fate *)self;
    moec_arc_used(layer_of(fate, key), &fate->keys, key);
}

static void fate_removed(struct moec_evict *self, uint32_t key)
{
    struct fate *fate = (struct fate *)self;
    moec_arc_removed(layer_of(fate, key), &fate->keys, key);
}

/* By how much a layer holds more than its share. */
static int64_t excess_of(const struct moec_arc *arc)
{
    return (int64_t)moec_arc_present(arc) - (int64_t)arc->capacity;
}

static uint32_t fate_victim(struct moec_evict *self, moec_evictable_fn *evictable, void *context)
{
    const struct fate *fate = (const struct fate *)self;
    const struct moec_arc *own = &fate->layers[fate->wanting];
    uint32_t best = MOEC_EVICT_NONE;
    int64_t most = INT64_MIN;
    if (excess_of(own) >= 0)
        best = moec_arc_victim(own, &fate->keys, evictable, context);
    if (best != MOEC_EVICT_NONE)
        return best;
    for (uint32_t layer = 0; layer < fate->n_layer; layer++) {
        const struct moec_arc *arc = &fate->layers[layer];
        if (excess_of(arc) < most)
            continue;
        const uint32_t key = moec_arc_victim(arc, &fate->keys, evictable, context);
        if (key == MOEC_EVICT_NONE)
            continue;
        best = key;
        most = excess_of(arc);
    }
    return best;
}

const struct moec_evict_ops moec_evict_fate = {.name = "fate",
                                               .read = fate_read,
                                               .state_bytes = fate_state_bytes,
                                               .create = fate_create,
                                               .destroy = fate_destroy,
                                               .shared = fate_shared,
                                               .wanted = fate_wanted,
                                               .inserted = fate_inserted,
                                               .used = fate_used,
                                               .removed = fate_removed,
                                               .victim = fate_victim};
