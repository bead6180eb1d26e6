/* Invariants, of each pool: used_bytes is the sum of its present keys' slots and at most the capacity, but
 * for what was demanded when that was lowered; demanded_bytes and kept_bytes are the parts of it that are
 * demanded, and demanded or hinted; its policy knows exactly its present keys. */
#include "runtime/policy/schedule/residency.h"

#include "formats/base/memory.h"
#include "runtime/policy/schedule/layer_shares.h"
#include "runtime/policy/schedule/residency_test_hook.h"

#include <string.h>

struct key_state {
    uint32_t demands;
    bool is_present;
    bool is_hinted; /* only while present */
    bool is_listed; /* for the warm start */
};

/* Forms that share a capacity. Its policy counts keys as if there were no others. */
struct pool {
    struct moec_residency *residency;
    struct moec_evict *policy;
    uint32_t first; /* of a layer's keys, the first one here */
    uint32_t n_key; /* of a layer, here */
    uint64_t capacity_bytes;
    uint64_t used_bytes;
    uint64_t demanded_bytes;
    uint64_t kept_bytes;
    bool is_starved; /* the last admission found no room */
};

struct moec_residency {
    struct moec_residency_setup setup;
    struct pool pools[2];
    uint32_t n_pool;
    uint32_t n_layer_key; /* keys of a layer */
    uint32_t n_key;
    uint32_t n_likeliest;
    uint64_t logical_bytes; /* that logical caches may hold */
    bool keeps_logical, prefers_logical;
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

static struct pool *pool_of(struct moec_residency *residency, uint32_t key)
{
    return &residency->pools[key % residency->n_layer_key >= residency->pools[0].n_key];
}

/* A pool's key as its policy counts it, and back. */
static uint32_t to_policy(const struct pool *pool, uint32_t key)
{
    const uint32_t n_layer_key = pool->residency->n_layer_key;
    return key / n_layer_key * pool->n_key + key % n_layer_key - pool->first;
}

static uint32_t from_policy(const struct pool *pool, uint32_t key)
{
    return key / pool->n_key * pool->residency->n_layer_key + key % pool->n_key + pool->first;
}

static bool is_of_form_0(const struct moec_residency *residency, uint32_t key)
{
    return key % residency->n_layer_key < residency->setup.shape.n_expert;
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
    MOEC_TRY(moec_alloc(&memory, setup->shape.n_layer, sizeof *residency->shares, "expert residency", err));
    residency->shares = memory;
    if (setup->policy.frequency == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_alloc(&memory, residency->n_key, sizeof *residency->likeliest, "expert residency", err));
    residency->likeliest = memory;
    for (uint32_t key = 0; key < residency->n_key; key++)
        if (is_of_form_0(residency, key))
            residency->likeliest[residency->n_likeliest++] = key;
    qsort_r(residency->likeliest, residency->n_likeliest, sizeof *residency->likeliest, compare_frequency,
            (void *)(uintptr_t)setup->policy.frequency);
    return MOEC_OK;
}

/* Of the first pool, whose warm start asks for them too, last. */
static void set_shares(struct moec_residency *residency)
{
    const struct moec_residency_setup *setup = &residency->setup;
    for (uint32_t layer = 0; layer < setup->shape.n_layer; layer++)
        residency->shares[layer] =
            residency->prefers_logical ? setup->logical->n_slots[0] : residency->n_layer_key;
    for (uint32_t i = residency->n_pool; setup->policy.ops->shared != NULL && i-- > 0;) {
        const struct pool *pool = &residency->pools[i];
        const struct moec_layer_shares_setup of_policy = {
            .shape = {.n_layer = setup->shape.n_layer,
                      .n_encoder = setup->shape.n_encoder,
                      .n_shallow = setup->shape.n_shallow,
                      .n_expert = setup->shape.n_expert,
                      .n_form = residency->n_layer_key / setup->shape.n_expert,
                      .top_k = setup->shape.top_k},
            .form = pool->first / setup->shape.n_expert,
            .slot_bytes = setup->pools.slot_bytes,
            .capacity_bytes = pool->capacity_bytes};
        moec_layer_shares(&of_policy, residency->shares);
        setup->policy.ops->shared(pool->policy, residency->shares);
    }
}

static void set_capacity(struct moec_residency *residency, uint64_t capacity_bytes)
{
    residency->pools[0].capacity_bytes = capacity_bytes;
    residency->keeps_logical = residency->setup.logical != NULL && residency->logical_bytes <= capacity_bytes;
    residency->prefers_logical =
        residency->setup.logical != NULL && residency->logical_bytes <= capacity_bytes / 3 * 4;
    set_shares(residency);
}

static enum moec_status create_pool(struct moec_residency *residency, uint32_t i, float *frequency,
                                    struct moec_error *err)
{
    const struct moec_residency_setup *setup = &residency->setup;
    struct pool *pool = &residency->pools[i];
    *pool = (struct pool){.residency = residency,
                          .first = i * setup->shape.n_expert,
                          .n_key = residency->n_layer_key / residency->n_pool,
                          .capacity_bytes =
                              i == 0 ? setup->pools.capacity_bytes : setup->pools.low_capacity_bytes};
    for (uint32_t key = 0; frequency != NULL && key < setup->shape.n_layer * pool->n_key; key++)
        frequency[key] = setup->policy.frequency[from_policy(pool, key)];
    const struct moec_evict_setup evict = {.n_layer = setup->shape.n_layer,
                                           .n_encoder = setup->shape.n_encoder,
                                           .n_expert = pool->n_key,
                                           .frequency = frequency,
                                           .n_low =
                                               i == 0 ? pool->n_key - setup->shape.n_expert : pool->n_key,
                                           .weights = setup->policy.weights};
    return setup->policy.ops->create(&evict, &pool->policy, err);
}

static enum moec_status create_pools(struct moec_residency *residency, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *frequency = NULL;
    if (residency->setup.policy.frequency != NULL)
        MOEC_TRY(moec_alloc(&frequency, residency->n_key, sizeof(float), "expert frequencies", err));
    for (uint32_t i = 0; i < residency->n_pool && status == MOEC_OK; i++)
        status = create_pool(residency, i, frequency, err);
    free(frequency);
    return status;
}

enum moec_status moec_residency_create(const struct moec_residency_setup *setup, struct moec_residency **out,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_residency), "expert residency", err));
    struct moec_residency *residency = memory;
    residency->setup = *setup;
    residency->n_layer_key = (setup->shape.n_form > 1 ? setup->shape.n_form : 1) * setup->shape.n_expert;
    residency->n_key = setup->shape.n_layer * residency->n_layer_key;
    if (setup->logical != NULL)
        residency->logical_bytes =
            moec_logical_cache_room(setup->logical, setup->pools.slot_bytes).held_bytes;
    residency->n_pool = setup->pools.low_capacity_bytes > 0 ? 2 : 1;
    MOEC_TRY_OUT(create_tables(residency, err));
    MOEC_TRY_OUT(create_pools(residency, err));
    set_capacity(residency, setup->pools.capacity_bytes);
    residency->setup.policy.frequency = NULL;
    residency->setup.policy.weights = NULL;
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
    for (uint32_t i = 0; i < residency->n_pool; i++)
        if (residency->pools[i].policy != NULL)
            residency->setup.policy.ops->destroy(residency->pools[i].policy);
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
    for (uint32_t i = 0; residency->setup.policy.ops->began != NULL && i < residency->n_pool; i++)
        residency->setup.policy.ops->began(residency->pools[i].policy);
}

/* ---- changes of one key ---- */

static void set_demands(struct moec_residency *residency, uint32_t key, uint32_t demands)
{
    struct key_state *state = &residency->keys[key];
    struct pool *pool = pool_of(residency, key);
    const uint64_t bytes = residency->setup.pools.slot_bytes[key];
    if (state->demands == 0 && demands > 0) {
        pool->demanded_bytes += bytes;
        pool->kept_bytes += state->is_hinted ? 0 : bytes;
    } else if (state->demands > 0 && demands == 0) {
        pool->demanded_bytes -= bytes;
        pool->kept_bytes -= state->is_hinted ? 0 : bytes;
    }
    state->demands = demands;
}

static void set_hinted(struct moec_residency *residency, uint32_t key, bool is_hinted)
{
    struct key_state *state = &residency->keys[key];
    if (state->is_hinted != is_hinted && state->demands == 0) {
        const uint64_t bytes = residency->setup.pools.slot_bytes[key];
        struct pool *pool = pool_of(residency, key);
        pool->kept_bytes += is_hinted ? bytes : 0;
        pool->kept_bytes -= is_hinted ? 0 : bytes;
    }
    state->is_hinted = is_hinted;
}

/* The other pool knows the expert in its own copy. */
static void tell_other(struct moec_residency *residency, uint32_t key)
{
    const struct pool *pool = pool_of(residency, key);
    if (residency->n_pool < 2 || residency->setup.policy.ops->used_beside == NULL)
        return;
    const bool is_high = pool->first == 0;
    residency->setup.policy.ops->used_beside(residency->pools[is_high].policy, to_policy(pool, key), is_high);
}

static void insert(struct moec_residency *residency, uint32_t key, bool is_prefetch)
{
    const struct moec_evict_ops *ops = residency->setup.policy.ops;
    struct pool *pool = pool_of(residency, key);
    residency->keys[key].is_present = true;
    pool->used_bytes += residency->setup.pools.slot_bytes[key];
    if (is_prefetch && ops->prefetched != NULL) {
        ops->prefetched(pool->policy, to_policy(pool, key));
        return;
    }
    ops->inserted(pool->policy, to_policy(pool, key));
    tell_other(residency, key);
}

void moec_residency_drop(struct moec_residency *residency, uint32_t key)
{
    set_hinted(residency, key, false);
    struct pool *pool = pool_of(residency, key);
    residency->keys[key].is_present = false;
    pool->used_bytes -= residency->setup.pools.slot_bytes[key];
    residency->setup.policy.ops->removed(pool->policy, to_policy(pool, key));
}

/* ---- making room ---- */

/* Of a pool, by its policy's count. */
static bool is_undemanded(void *context, uint32_t key)
{
    const struct pool *pool = context;
    return pool->residency->keys[from_policy(pool, key)].demands == 0;
}

static bool is_unneeded(void *context, uint32_t key)
{
    const struct pool *pool = context;
    const struct key_state *state = &pool->residency->keys[from_policy(pool, key)];
    return state->demands == 0 && !state->is_hinted;
}

static bool is_logical(const struct pool *pool, uint32_t key)
{
    return moec_logical_cache_has(pool->residency->setup.logical, from_policy(pool, key));
}

static bool is_idle(void *context, uint32_t key)
{
    return is_undemanded(context, key) && !is_logical(context, key);
}

static bool is_idle_and_unneeded(void *context, uint32_t key)
{
    return is_unneeded(context, key) && !is_logical(context, key);
}

static bool give_up_one(struct pool *pool, moec_evictable_fn *evictable)
{
    struct moec_residency *residency = pool->residency;
    const uint32_t victim = residency->setup.policy.ops->victim(pool->policy, evictable, pool);
    if (victim == MOEC_EVICT_NONE)
        return false;
    moec_residency_drop(residency, from_policy(pool, victim));
    if (residency->setup.evicted.call != NULL)
        residency->setup.evicted.call(residency->setup.evicted.context, from_policy(pool, victim));
    return true;
}

/* What is hinted goes last, but for what is logically present. */
static bool give_up_undemanded(struct pool *pool)
{
    if (pool->residency->prefers_logical &&
        (give_up_one(pool, is_idle_and_unneeded) || give_up_one(pool, is_idle)))
        return true;
    return give_up_one(pool, is_unneeded) || give_up_one(pool, is_undemanded);
}

static bool give_up_unneeded(struct pool *pool)
{
    return give_up_one(pool, pool->residency->prefers_logical ? is_idle_and_unneeded : is_unneeded);
}

bool moec_residency_shrink(struct moec_residency *residency, uint32_t key)
{
    return give_up_undemanded(pool_of(residency, key));
}

bool moec_residency_shrink_for_prefetch(struct moec_residency *residency, uint32_t key)
{
    return give_up_unneeded(pool_of(residency, key));
}

bool moec_residency_limit(struct moec_residency *residency, uint64_t capacity_bytes)
{
    struct pool *pool = residency->pools;
    set_capacity(residency, capacity_bytes);
    while (pool->used_bytes > capacity_bytes && give_up_undemanded(pool))
        continue;
    return pool->used_bytes <= capacity_bytes;
}

/* For demands there are evictable keys enough: the caller has counted their bytes. */
static bool make_room(struct pool *pool, uint32_t key, bool (*give_up)(struct pool *))
{
    const struct moec_residency_setup *setup = &pool->residency->setup;
    const uint64_t limit = pool->capacity_bytes - setup->pools.slot_bytes[key];
    if (setup->policy.ops->wanted != NULL)
        setup->policy.ops->wanted(pool->policy, to_policy(pool, key));
    while (pool->used_bytes > limit && give_up(pool))
        continue;
    return pool->used_bytes <= limit;
}

static bool fits_beside(const struct pool *pool, uint32_t key, uint64_t bytes)
{
    const uint64_t capacity = pool->capacity_bytes, slot = pool->residency->setup.pools.slot_bytes[key];
    return bytes <= capacity && slot <= capacity - bytes;
}

bool moec_residency_admit(struct moec_residency *residency, uint32_t key)
{
    struct pool *pool = pool_of(residency, key);
    pool->is_starved = !fits_beside(pool, key, pool->demanded_bytes);
    if (pool->is_starved)
        return false;
    (void)make_room(pool, key, give_up_undemanded);
    insert(residency, key, false);
    set_demands(residency, key, 1);
    return true;
}

bool moec_residency_prefetch(struct moec_residency *residency, uint32_t key)
{
    struct pool *pool = pool_of(residency, key);
    if (pool->is_starved || !fits_beside(pool, key, pool->kept_bytes) ||
        !make_room(pool, key, give_up_unneeded))
        return false;
    insert(residency, key, true);
    set_hinted(residency, key, true);
    return true;
}

static bool holds_all_experts(const struct moec_residency *residency)
{
    uint64_t n_bytes = 0;
    for (uint32_t key = 0; key < residency->n_key; key++)
        if (is_of_form_0(residency, key))
            n_bytes += residency->setup.pools.slot_bytes[key];
    return n_bytes <= residency->pools[0].capacity_bytes;
}

/* Lists the likeliest that fit beside what is listed: of layers that hold less than their shares, or of all.
 */
static void list_likeliest(struct moec_residency *residency, bool within_shares, uint64_t *used_bytes,
                           uint32_t *keys, uint32_t *n)
{
    uint32_t n_listed[MOEC_MAX_LAYERS] = {0};
    for (uint32_t i = 0; i < residency->n_likeliest; i++) {
        const uint32_t key = residency->likeliest[i], layer = key / residency->n_layer_key;
        if (residency->keys[key].is_listed || !fits_beside(&residency->pools[0], key, *used_bytes) ||
            (within_shares && n_listed[layer] >= residency->shares[layer]))
            continue;
        residency->keys[key].is_listed = true;
        n_listed[layer]++;
        *used_bytes += residency->setup.pools.slot_bytes[key];
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
    const struct pool *pool = pool_of(residency, key);
    residency->setup.policy.ops->used(pool->policy, to_policy(pool, key));
    tell_other(residency, key);
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
    const uint32_t first = layer + form * residency->setup.shape.n_expert;
    for (uint32_t i = 0; i < residency->n_pool; i++) {
        residency->pools[i].is_starved = false;
        if (residency->setup.policy.ops->reached != NULL)
            residency->setup.policy.ops->reached(residency->pools[i].policy, ordinal);
    }
    for (uint32_t key = layer; key < layer + residency->n_layer_key; key++)
        set_hinted(residency, key, false);
    for (uint32_t i = 0; i < n_experts; i++) {
        is_present[i] = residency->keys[first + experts[i]].is_present;
        if (is_present[i])
            moec_residency_hold(residency, first + experts[i]);
    }
}

bool moec_residency_hint(void *context, uint32_t key)
{
    struct moec_residency *residency = context;
    if (residency->keys[key].is_present)
        set_hinted(residency, key, true);
    return residency->keys[key].is_present;
}

/* ---- for tests ---- */

bool moec_residency_is_demanded(const struct moec_residency *residency, uint32_t key)
{
    return residency->keys[key].demands > 0;
}

uint64_t moec_residency_used_bytes(const struct moec_residency *residency)
{
    return residency->pools[0].used_bytes + residency->pools[1].used_bytes;
}
