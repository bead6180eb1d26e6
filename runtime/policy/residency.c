/* Invariants: used_bytes is the sum of the present keys' slots and at most the capacity, but for what was
 * demanded when that was lowered; demanded_bytes and kept_bytes are the parts of it that are demanded, and
 * demanded or foreseen; the policy knows exactly the present keys. */
#include "runtime/policy/residency.h"

#include "formats/base/memory.h"
#include "runtime/policy/layer_shares.h"
#include "runtime/policy/residency_test_hook.h"

#include <string.h>

struct key_state {
    uint32_t demands;
    bool is_present;
    bool is_foreseen; /* only while present */
    bool is_listed;   /* for the warm start */
};

struct moec_residency {
    struct moec_residency_setup setup;
    struct moec_evict *policy;
    uint32_t n_layer_key; /* keys of a layer */
    uint32_t n_key;
    uint32_t n_likeliest;
    bool is_starved; /* the last admission found no room */
    uint64_t used_bytes;
    uint64_t demanded_bytes;
    uint64_t kept_bytes;
    uint64_t logical_bytes; /* that logical caches may hold */
    bool keeps_logical;
    uint32_t *shares;       /* (n_layer) keys of each, owned; all n_layer_key where nothing shares */
    struct key_state *keys; /* (n_key), owned */
    uint32_t *likeliest; /* (n_likeliest) of form 0 by falling frequency, owned; NULL without frequencies */
};

void moec_residency_frequencies(const struct moec_path_table *paths, uint32_t n_form, float *out)
{
    const uint32_t n_expert = paths->n_expert;
    for (uint32_t i = 0; i < paths->n_layer * n_expert; i++)
        for (uint32_t form = 0; form < n_form; form++)
            out[(size_t)(i / n_expert * n_form + form) * n_expert + paths->frequency[i].expert] =
                (float)paths->frequency[i].probability / 65535.0f;
}

uint64_t moec_residency_state_bytes(uint32_t n_key, const struct moec_evict_ops *policy)
{
    const uint64_t n_layer = n_key < MOEC_MAX_LAYERS ? n_key : MOEC_MAX_LAYERS;
    return sizeof(struct moec_residency) + n_layer * sizeof(uint32_t) +
           n_key * (sizeof(struct key_state) + sizeof(uint32_t)) + policy->state_bytes(n_key);
}

static bool is_of_form_0(const struct moec_residency *residency, uint32_t key)
{
    return key % residency->n_layer_key < residency->setup.n_expert;
}

static int compare_frequency(const void *left, const void *right, void *context)
{
    const float *frequency = context;
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    if (frequency[a] != frequency[b])
        return frequency[a] > frequency[b] ? -1 : 1;
    return a < b ? -1 : a > b;
}

static enum moec_status create_tables(struct moec_residency *residency, struct moec_error *err)
{
    const struct moec_residency_setup *setup = &residency->setup;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, residency->n_key, sizeof *residency->keys, "expert residency", err));
    residency->keys = memory;
    MOEC_TRY(moec_alloc(&memory, setup->n_layer, sizeof *residency->shares, "expert residency", err));
    residency->shares = memory;
    if (setup->frequency == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc(&memory, residency->n_key, sizeof *residency->likeliest, "expert residency", err));
    residency->likeliest = memory;
    for (uint32_t key = 0; key < residency->n_key; key++)
        if (is_of_form_0(residency, key))
            residency->likeliest[residency->n_likeliest++] = key;
    qsort_r(residency->likeliest, residency->n_likeliest, sizeof *residency->likeliest, compare_frequency,
            (void *)(uintptr_t)setup->frequency);
    return MOEC_OK;
}

static void set_shares(struct moec_residency *residency)
{
    const struct moec_residency_setup *setup = &residency->setup;
    const struct moec_layer_shares_setup of_policy = {.n_layer = setup->n_layer,
                                                      .n_encoder = setup->n_encoder,
                                                      .n_shallow = setup->n_shallow,
                                                      .n_expert = setup->n_expert,
                                                      .n_form = residency->n_layer_key / setup->n_expert,
                                                      .top_k = setup->top_k,
                                                      .slot_bytes = setup->slot_bytes,
                                                      .capacity_bytes = setup->capacity_bytes};
    for (uint32_t layer = 0; layer < setup->n_layer; layer++)
        residency->shares[layer] =
            residency->keeps_logical ? setup->logical->n_slots[0] : residency->n_layer_key;
    if (setup->policy->shared == NULL)
        return;
    moec_layer_shares(&of_policy, residency->shares);
    setup->policy->shared(residency->policy, residency->shares);
}

static void set_capacity(struct moec_residency *residency, uint64_t capacity_bytes)
{
    residency->setup.capacity_bytes = capacity_bytes;
    residency->keeps_logical = residency->setup.logical != NULL && residency->logical_bytes <= capacity_bytes;
    set_shares(residency);
}

enum moec_status moec_residency_create(const struct moec_residency_setup *setup, struct moec_residency **out,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_residency), "expert residency", err));
    struct moec_residency *residency = memory;
    residency->setup = *setup;
    residency->n_layer_key = (setup->n_form > 1 ? setup->n_form : 1) * setup->n_expert;
    residency->n_key = setup->n_layer * residency->n_layer_key;
    if (setup->logical != NULL)
        residency->logical_bytes = moec_logical_cache_room(setup->logical, setup->slot_bytes).held_bytes;
    const struct moec_evict_setup evict = {.n_layer = setup->n_layer,
                                           .n_encoder = setup->n_encoder,
                                           .n_expert = residency->n_layer_key,
                                           .frequency = setup->frequency,
                                           .n_high = setup->n_expert,
                                           .weights = setup->evict_weights};
    MOEC_TRY_OUT(create_tables(residency, err));
    MOEC_TRY_OUT(setup->policy->create(&evict, &residency->policy, err));
    set_capacity(residency, setup->capacity_bytes);
    residency->setup.frequency = NULL;
    residency->setup.evict_weights = NULL;
    *out = residency;
    residency = NULL;
out:
    moec_residency_free(residency);
    return status;
}

void moec_residency_free(struct moec_residency *residency)
{
    if (residency == NULL)
        return;
    if (residency->policy != NULL)
        residency->policy->ops->destroy(residency->policy);
    free(residency->keys);
    free(residency->shares);
    free(residency->likeliest);
    free(residency);
}

bool moec_residency_keeps_logical(const struct moec_residency *residency)
{
    return residency->keeps_logical;
}

bool moec_residency_is_present(const struct moec_residency *residency, uint32_t key)
{
    return residency->keys[key].is_present;
}

void moec_residency_begin(struct moec_residency *residency)
{
    if (residency->policy->ops->began != NULL)
        residency->policy->ops->began(residency->policy);
}

/* ---- changes of one key ---- */

static void set_demands(struct moec_residency *residency, uint32_t key, uint32_t demands)
{
    struct key_state *state = &residency->keys[key];
    const uint64_t bytes = residency->setup.slot_bytes[key];
    if (state->demands == 0 && demands > 0) {
        residency->demanded_bytes += bytes;
        residency->kept_bytes += state->is_foreseen ? 0 : bytes;
    } else if (state->demands > 0 && demands == 0) {
        residency->demanded_bytes -= bytes;
        residency->kept_bytes -= state->is_foreseen ? 0 : bytes;
    }
    state->demands = demands;
}

static void set_foreseen(struct moec_residency *residency, uint32_t key, bool is_foreseen)
{
    struct key_state *state = &residency->keys[key];
    if (state->is_foreseen != is_foreseen && state->demands == 0) {
        const uint64_t bytes = residency->setup.slot_bytes[key];
        residency->kept_bytes += is_foreseen ? bytes : 0;
        residency->kept_bytes -= is_foreseen ? 0 : bytes;
    }
    state->is_foreseen = is_foreseen;
}

static void insert(struct moec_residency *residency, uint32_t key, bool is_guess)
{
    residency->keys[key].is_present = true;
    residency->used_bytes += residency->setup.slot_bytes[key];
    if (is_guess && residency->policy->ops->guessed != NULL)
        residency->policy->ops->guessed(residency->policy, key);
    else
        residency->policy->ops->inserted(residency->policy, key);
}

void moec_residency_drop(struct moec_residency *residency, uint32_t key)
{
    set_foreseen(residency, key, false);
    residency->keys[key].is_present = false;
    residency->used_bytes -= residency->setup.slot_bytes[key];
    residency->policy->ops->removed(residency->policy, key);
}

/* ---- making room ---- */

static bool is_undemanded(void *context, uint32_t key)
{
    const struct moec_residency *residency = context;
    return residency->keys[key].demands == 0;
}

static bool is_unneeded(void *context, uint32_t key)
{
    const struct moec_residency *residency = context;
    return residency->keys[key].demands == 0 && !residency->keys[key].is_foreseen;
}

static bool is_idle(void *context, uint32_t key)
{
    const struct moec_residency *residency = context;
    return is_undemanded(context, key) && !moec_logical_cache_has(residency->setup.logical, key);
}

static bool is_idle_and_unneeded(void *context, uint32_t key)
{
    const struct moec_residency *residency = context;
    return is_unneeded(context, key) && !moec_logical_cache_has(residency->setup.logical, key);
}

static bool give_up_one(struct moec_residency *residency, moec_evictable_fn *evictable)
{
    const uint32_t victim = residency->policy->ops->victim(residency->policy, evictable, residency);
    if (victim == MOEC_EVICT_NONE)
        return false;
    moec_residency_drop(residency, victim);
    if (residency->setup.evicted != NULL)
        residency->setup.evicted(residency->setup.context, victim);
    return true;
}

/* What is foreseen goes last, but for what is logically present. */
static bool give_up_undemanded(struct moec_residency *residency)
{
    if (residency->keeps_logical &&
        (give_up_one(residency, is_idle_and_unneeded) || give_up_one(residency, is_idle)))
        return true;
    return give_up_one(residency, is_unneeded) || give_up_one(residency, is_undemanded);
}

static bool give_up_unneeded(struct moec_residency *residency)
{
    return give_up_one(residency, residency->keeps_logical ? is_idle_and_unneeded : is_unneeded);
}

bool moec_residency_shrink(struct moec_residency *residency)
{
    return give_up_undemanded(residency);
}

bool moec_residency_limit(struct moec_residency *residency, uint64_t capacity_bytes)
{
    set_capacity(residency, capacity_bytes);
    while (residency->used_bytes > capacity_bytes && moec_residency_shrink(residency))
        continue;
    return residency->used_bytes <= capacity_bytes;
}

/* For demands there are evictable keys enough: the caller has counted their bytes. */
static bool make_room(struct moec_residency *residency, uint32_t key,
                      bool (*give_up)(struct moec_residency *))
{
    struct moec_evict *policy = residency->policy;
    const uint64_t limit = residency->setup.capacity_bytes - residency->setup.slot_bytes[key];
    if (policy->ops->wanted != NULL)
        policy->ops->wanted(policy, key);
    while (residency->used_bytes > limit && give_up(residency))
        continue;
    return residency->used_bytes <= limit;
}

static bool fits_beside(const struct moec_residency *residency, uint32_t key, uint64_t bytes)
{
    const uint64_t capacity = residency->setup.capacity_bytes, slot = residency->setup.slot_bytes[key];
    return bytes <= capacity && slot <= capacity - bytes;
}

bool moec_residency_admit(struct moec_residency *residency, uint32_t key)
{
    residency->is_starved = !fits_beside(residency, key, residency->demanded_bytes);
    if (residency->is_starved)
        return false;
    (void)make_room(residency, key, give_up_undemanded);
    insert(residency, key, false);
    set_demands(residency, key, 1);
    return true;
}

bool moec_residency_guess(struct moec_residency *residency, uint32_t key)
{
    if (residency->is_starved || !fits_beside(residency, key, residency->kept_bytes) ||
        !make_room(residency, key, give_up_unneeded))
        return false;
    insert(residency, key, true);
    set_foreseen(residency, key, true);
    return true;
}

static bool holds_all_experts(const struct moec_residency *residency)
{
    uint64_t n_bytes = 0;
    for (uint32_t key = 0; key < residency->n_key; key++)
        if (is_of_form_0(residency, key))
            n_bytes += residency->setup.slot_bytes[key];
    return n_bytes <= residency->setup.capacity_bytes;
}

/* Lists the likeliest that fit beside what is listed: of layers that hold less than their shares, or of all.
 */
static void list_likeliest(struct moec_residency *residency, bool within_shares, uint64_t *used_bytes,
                           uint32_t *keys, uint32_t *n)
{
    uint32_t n_listed[MOEC_MAX_LAYERS] = {0};
    for (uint32_t i = 0; i < residency->n_likeliest; i++) {
        const uint32_t key = residency->likeliest[i], layer = key / residency->n_layer_key;
        if (residency->keys[key].is_listed || !fits_beside(residency, key, *used_bytes) ||
            (within_shares && n_listed[layer] >= residency->shares[layer]))
            continue;
        residency->keys[key].is_listed = true;
        n_listed[layer]++;
        *used_bytes += residency->setup.slot_bytes[key];
        keys[(*n)++] = key;
    }
}

uint32_t moec_residency_warm(struct moec_residency *residency, uint32_t *keys)
{
    uint32_t n = 0;
    uint64_t used_bytes = 0;
    if (residency->likeliest == NULL && holds_all_experts(residency))
        for (uint32_t key = 0; key < residency->n_key; key++)
            if (is_of_form_0(residency, key))
                keys[n++] = key;
    list_likeliest(residency, true, &used_bytes, keys, &n);
    list_likeliest(residency, false, &used_bytes, keys, &n);
    for (uint32_t i = n; i > 0; i--)
        insert(residency, keys[i - 1], false);
    return n;
}

/* ---- demands ---- */

void moec_residency_hold(struct moec_residency *residency, uint32_t key)
{
    residency->policy->ops->used(residency->policy, key);
    set_demands(residency, key, residency->keys[key].demands + 1);
}

void moec_residency_release(struct moec_residency *residency, uint32_t key)
{
    set_demands(residency, key, residency->keys[key].demands - 1);
}

void moec_residency_ask(struct moec_residency *residency, uint32_t ordinal, uint32_t form,
                        const uint32_t *experts, uint32_t n_experts, bool *is_present)
{
    const uint32_t layer = ordinal * residency->n_layer_key;
    const uint32_t first = layer + form * residency->setup.n_expert;
    residency->is_starved = false;
    if (residency->policy->ops->reached != NULL)
        residency->policy->ops->reached(residency->policy, ordinal);
    for (uint32_t key = layer; key < layer + residency->n_layer_key; key++)
        set_foreseen(residency, key, false);
    for (uint32_t i = 0; i < n_experts; i++) {
        is_present[i] = residency->keys[first + experts[i]].is_present;
        if (is_present[i])
            moec_residency_hold(residency, first + experts[i]);
    }
}

bool moec_residency_foresee(void *context, uint32_t key)
{
    struct moec_residency *residency = context;
    if (residency->keys[key].is_present)
        set_foreseen(residency, key, true);
    return residency->keys[key].is_present;
}

/* ---- for tests ---- */

bool moec_residency_is_demanded(const struct moec_residency *residency, uint32_t key)
{
    return residency->keys[key].demands > 0;
}

uint64_t moec_residency_used_bytes(const struct moec_residency *residency)
{
    return residency->used_bytes;
}
