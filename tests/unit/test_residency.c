/* The cache's decisions: random operations against a model small enough to be seen through, and the rules of
 * the header one by one. */
#include "tests/unit/temporary.h"

#include "runtime/policy/schedule/layer_shares.h"
#include "runtime/policy/schedule/residency_test_hook.h"

#define N_LAYER  4u
#define N_EXPERT 6u
#define N_KEY    (N_LAYER * N_EXPERT)
#define N_TAKE   2u /* experts of a token */

/* Least recently used first, by the book: one array in the order of use. */
struct model {
    const uint64_t *slots;
    uint64_t capacity;
    uint32_t order[N_KEY]; /* present keys, least recently used first */
    uint32_t n;
    uint32_t demands[N_KEY];
    bool hinted[N_KEY];
    bool starved;
};

static uint32_t model_find(const struct model *m, uint32_t key)
{
    uint32_t i = 0;
    while (i < m->n && m->order[i] != key)
        i++;
    return i;
}

static bool model_has(const struct model *m, uint32_t key)
{
    return model_find(m, key) < m->n;
}

static void model_remove(struct model *m, uint32_t key)
{
    const uint32_t at = model_find(m, key);
    memmove(m->order + at, m->order + at + 1, (m->n - at - 1) * sizeof *m->order);
    m->n--;
    m->hinted[key] = false;
}

static void model_append(struct model *m, uint32_t key)
{
    m->order[m->n++] = key;
}

static uint64_t model_used(const struct model *m)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < m->n; i++)
        used += m->slots[m->order[i]];
    return used;
}

/* The oldest that nobody demands, and with is_spared that nobody foresees; n when there is none. */
static uint32_t model_victim(const struct model *m, bool is_spared)
{
    uint32_t i = 0;
    while (i < m->n && (m->demands[m->order[i]] > 0 || (is_spared && m->hinted[m->order[i]])))
        i++;
    return i;
}

/* Evicts until `key` fits: what is foreseen last, and not at all for a guess, which then is the next to go;
 * false and unchanged when that cannot be. */
static bool model_insert(struct model *m, uint32_t key, bool is_prefetch)
{
    struct model after = *m;
    while (model_used(&after) + m->slots[key] > m->capacity) {
        uint32_t i = model_victim(&after, true);
        if (i == after.n && !is_prefetch)
            i = model_victim(&after, false);
        if (i == after.n)
            return false;
        model_remove(&after, after.order[i]);
    }
    model_append(&after, key);
    if (is_prefetch) {
        memmove(after.order + 1, after.order, (after.n - 1) * sizeof *after.order);
        after.order[0] = key;
    }
    *m = after;
    return true;
}

/* ---- random operations ---- */

struct run {
    struct moec_residency *residency;
    struct model model;
    uint64_t random;
    uint64_t digest;    /* of every answer and victim, in order */
    uint32_t n_evicted; /* told of since the last check */
    uint32_t evicted[N_KEY];
    uint64_t slots[N_KEY];
    bool follows_model; /* the policy is LRU */
};

static void note(struct run *run, uint64_t value)
{
    run->digest = (run->digest ^ value) * 1099511628211u;
}

static void on_evicted(void *context, uint32_t key)
{
    struct run *run = context;
    run->evicted[run->n_evicted++] = key;
    note(run, key);
}

static struct moec_residency *make(struct run *run, const struct moec_evict_ops *policy, uint64_t capacity,
                                   const float *frequency)
{
    struct moec_error err = {0};
    struct moec_residency *residency = NULL;
    const struct moec_residency_setup setup = {
        .shape = {.n_layer = N_LAYER, .n_expert = N_EXPERT},
        .pools = {.slot_bytes = run->slots, .capacity_bytes = capacity},
        .policy = {.ops = policy, .frequency = frequency},
        .evicted = {.call = on_evicted, .context = run}};
    assert_status(moec_residency_create(&setup, &residency, &err), MOEC_OK, err);
    return residency;
}

/* What holds with every policy: bytes add up, nothing demanded goes, and a refusal changes nothing. */
static void check(struct run *run, const bool *before, bool refused)
{
    uint64_t used = 0;
    uint32_t gone = 0;
    for (uint32_t key = 0; key < N_KEY; key++) {
        const bool present = moec_residency_is_present(run->residency, key);
        used += present ? run->slots[key] : 0;
        gone += before[key] && !present;
        assert_true(present || !moec_residency_is_demanded(run->residency, key));
        assert_false(refused && present != before[key]);
        if (run->follows_model)
            assert_true(present == model_has(&run->model, key));
        else
            assert_true(present || run->model.demands[key] == 0);
    }
    assert_int_equal(used, moec_residency_used_bytes(run->residency));
    assert_true(used <= run->model.capacity);
    assert_int_equal(gone, run->n_evicted);
    run->n_evicted = 0;
}

static void do_ask(struct run *run)
{
    const uint32_t ordinal = random_u32(&run->random) % N_LAYER;
    uint32_t experts[N_EXPERT], n = 0;
    bool is_present[N_EXPERT];
    for (uint32_t e = 0; e < N_EXPERT; e++) {
        if (random_u32(&run->random) % 3 == 0)
            experts[n++] = e;
        run->model.hinted[ordinal * N_EXPERT + e] = false;
    }
    run->model.starved = false;
    moec_residency_ask(run->residency, ordinal, 0, experts, n, is_present);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t key = ordinal * N_EXPERT + experts[i];
        assert_true(is_present[i] == moec_residency_is_present(run->residency, key));
        note(run, is_present[i]);
        if (!is_present[i])
            continue;
        run->model.demands[key]++;
        if (run->follows_model) {
            model_remove(&run->model, key);
            model_append(&run->model, key);
        }
    }
}

static bool do_insert(struct run *run, uint32_t key, bool is_prefetch)
{
    struct model *m = &run->model;
    const bool done = is_prefetch ? moec_residency_prefetch(run->residency, key)
                                  : moec_residency_admit(run->residency, key);
    if (run->follows_model)
        assert_true(done == (!(is_prefetch && m->starved) && model_insert(m, key, is_prefetch)));
    m->starved = is_prefetch ? m->starved : !done;
    m->demands[key] += done && !is_prefetch;
    m->hinted[key] = done && is_prefetch;
    note(run, done);
    return done;
}

/* One operation on a random key; true when it was refused. */
static bool do_something(struct run *run)
{
    struct model *m = &run->model;
    const uint32_t key = random_u32(&run->random) % N_KEY, choice = random_u32(&run->random) % 8;
    const bool present = moec_residency_is_present(run->residency, key);
    if (choice == 0) {
        do_ask(run);
    } else if (!present) {
        return !do_insert(run, key, choice < 3);
    } else if (m->demands[key] > 0 && choice < 6) {
        moec_residency_release(run->residency, key);
        m->demands[key]--;
    } else if (choice == 6 && m->demands[key] == 0) {
        moec_residency_drop(run->residency, key);
        run->n_evicted++; /* not reported, but gone */
        if (run->follows_model)
            model_remove(m, key);
    } else {
        assert_true(moec_residency_hint(run->residency, key));
        m->hinted[key] = true;
    }
    return false;
}

static uint64_t run_random(const struct moec_evict_ops *policy, uint64_t seed)
{
    struct run run = {.random = seed, .follows_model = policy == &moec_evict_lru};
    for (uint32_t key = 0; key < N_KEY; key++)
        run.slots[key] = 4096u * (1 + random_u32(&run.random) % 5);
    run.model = (struct model){.slots = run.slots, .capacity = 4096u * (5 + random_u32(&run.random) % 40)};
    run.residency = make(&run, policy, run.model.capacity, NULL);
    for (int i = 0; i < 3000; i++) {
        bool before[N_KEY];
        for (uint32_t key = 0; key < N_KEY; key++)
            before[key] = moec_residency_is_present(run.residency, key);
        const bool refused = do_something(&run);
        check(&run, before, refused);
    }
    moec_residency_free(run.residency);
    return run.digest;
}

static void test_residency__random_operations(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++)
        (void)run_random(&moec_evict_lru, seed);
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++)
        for (uint64_t seed = 1; seed <= 4; seed++)
            assert_true(run_random(moec_evict_policies[p], seed) == run_random(moec_evict_policies[p], seed));
    assert_true(run_random(&moec_evict_lru, 1) != run_random(&moec_evict_fifo, 1));
}

/* ---- rules one by one ---- */

static void equal_slots(struct run *run)
{
    for (uint32_t key = 0; key < N_KEY; key++)
        run->slots[key] = 4096;
}

/* Hits of an answer are held before its misses make room. */
static void test_residency__hits_are_held_first(void **state)
{
    (void)state;
    struct run run = {0};
    equal_slots(&run);
    struct moec_residency *r = run.residency = make(&run, &moec_evict_lru, 2 * 4096, NULL);
    bool is_present[2];
    assert_true(moec_residency_admit(r, 1));
    assert_true(moec_residency_admit(r, N_EXPERT));
    moec_residency_release(r, 1);
    moec_residency_release(r, N_EXPERT);
    moec_residency_ask(r, 0, 0, (const uint32_t[]){0, 1}, 2, is_present);
    assert_false(is_present[0]);
    assert_true(is_present[1]); /* the least recently used, but asked for */
    assert_true(moec_residency_admit(r, 0));
    assert_int_equal(run.n_evicted, 1);
    assert_int_equal(run.evicted[0], N_EXPERT);
    assert_false(moec_residency_admit(r, 2)); /* all is demanded */
    assert_false(moec_residency_prefetch(r, N_EXPERT));
    moec_residency_hold(r, 1);
    moec_residency_release(r, 1);
    assert_false(moec_residency_admit(r, 2)); /* still held once */
    moec_residency_release(r, 1);
    assert_false(moec_residency_prefetch(r, N_EXPERT)); /* room, but another one waits for it */
    assert_true(moec_residency_admit(r, 2));
    assert_false(moec_residency_is_present(r, 1));
    moec_residency_free(r);
}

/* Forms of one expert come and go by themselves; a buffer is filled with form 0. */
static void test_residency__forms_are_keys_of_their_own(void **state)
{
    (void)state;
    enum { FORMS = 2, LAYERS = 2, EXPERTS = 3, KEYS = FORMS * LAYERS * EXPERTS };
    uint64_t slots[KEYS];
    float frequency[KEYS];
    for (uint32_t key = 0; key < KEYS; key++) {
        slots[key] = key / EXPERTS % FORMS == 0 ? 4096 : 1024;
        frequency[key] = (float)(key % EXPERTS);
    }
    const struct moec_residency_setup setup = {
        .shape = {.n_layer = LAYERS, .n_expert = EXPERTS, .n_form = FORMS},
        .pools = {.slot_bytes = slots, .capacity_bytes = 3 * 4096},
        .policy = {.ops = &moec_evict_lru, .frequency = frequency}};
    struct moec_residency *r = NULL;
    uint32_t keys[KEYS];
    bool is_present[2];
    MUST(moec_residency_create(&setup, &r, &err));
    assert_int_equal(moec_residency_warm(r, keys), 3);
    assert_true(keys[0] == 2 && keys[1] == 8 && keys[2] == 1); /* form 0 of both layers */
    moec_residency_ask(r, 1, 1, (const uint32_t[]){1, 2}, 2, is_present);
    assert_false(is_present[0] || is_present[1]); /* layer 1, form 1 */
    assert_true(moec_residency_admit(r, 10) && moec_residency_admit(r, 11));
    assert_int_equal(moec_residency_used_bytes(r), 2 * 4096 + 2 * 1024); /* one record made room for both */
    moec_residency_ask(r, 1, 0, (const uint32_t[]){2}, 1, is_present);
    assert_true(is_present[0]);
    moec_residency_free(r);
}

/* ---- pools ---- */

enum { POOL_KEYS = N_LAYER * N_EXPERT };

/* Two pools beside a residency for each of them alone: they have the same. */
struct pools {
    struct moec_residency *both, *alone[2]; /* alone NULL: not compared */
    uint64_t slots[2][POOL_KEYS];           /* of those alone */
    uint32_t form;                          /* of the key at work */
    uint32_t demands[2 * POOL_KEYS];
};

static void on_pool_evicted(void *context, uint32_t key)
{
    assert_int_equal(key / N_EXPERT % 2, ((const struct pools *)context)->form);
}

static uint32_t alone_of(uint32_t key)
{
    return key / (2 * N_EXPERT) * N_EXPERT + key % N_EXPERT;
}

static void make_pools(struct pools *pools, const struct moec_evict_ops *policy, const uint64_t *slots,
                       const uint64_t *capacity)
{
    struct moec_residency_setup setup = {
        .shape = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .n_form = 2, .n_shallow = 1, .top_k = 2},
        .pools = {.slot_bytes = slots, .capacity_bytes = capacity[0], .low_capacity_bytes = capacity[1]},
        .policy.ops = policy,
        .evicted = {.call = on_pool_evicted, .context = pools}};
    MUST(moec_residency_create(&setup, &pools->both, &err));
    for (uint32_t key = 0; key < 2 * POOL_KEYS; key++)
        pools->slots[key / N_EXPERT % 2][alone_of(key)] = slots[key];
    for (int form = 0; form < 2 && policy->used_beside == NULL; form++) {
        setup.shape.n_form = 1;
        setup.pools.slot_bytes = pools->slots[form];
        setup.pools.capacity_bytes = capacity[form];
        setup.pools.low_capacity_bytes = 0;
        setup.evicted.call = NULL;
        MUST(moec_residency_create(&setup, &pools->alone[form], &err));
    }
}

/* One operation on a key of a residency, by which it is drawn; what it answered. */
static bool do_one(struct moec_residency *r, uint32_t layer, uint32_t form, uint32_t key, uint32_t choice,
                   bool is_demanded)
{
    const uint32_t expert = key % N_EXPERT;
    bool is_present = moec_residency_is_present(r, key);
    if (choice == 0)
        moec_residency_ask(r, layer, form, &expert, 1, &is_present);
    else if (!is_present)
        return choice < 3 ? moec_residency_prefetch(r, key) : moec_residency_admit(r, key);
    else if (is_demanded)
        moec_residency_release(r, key);
    else if (choice < 3)
        return moec_residency_shrink(r, key);
    else if (choice < 4)
        return moec_residency_hint(r, key);
    return is_present;
}

static void do_to_pools(struct pools *pools, uint64_t *random)
{
    const uint32_t key = random_u32(random) % (2 * POOL_KEYS), choice = random_u32(random) % 8;
    const uint32_t layer = key / (2 * N_EXPERT), form = key / N_EXPERT % 2;
    const bool was_present = moec_residency_is_present(pools->both, key),
               was_demanded = pools->demands[key] > 0;
    bool nothing = false;
    pools->form = form;
    const bool answer = do_one(pools->both, layer, form, key, choice, was_demanded);
    if (pools->alone[0] != NULL) {
        if (choice == 0)
            moec_residency_ask(pools->alone[1 - form], layer, 0, NULL, 0, &nothing);
        assert_true(answer == do_one(pools->alone[form], layer, 0, alone_of(key), choice, was_demanded));
    }
    if (choice == 0 ? was_present : !was_present && answer && choice >= 3)
        pools->demands[key]++;
    else if (choice > 0 && was_present && was_demanded)
        pools->demands[key]--;
}

/* A copy makes room among its like alone, as if the others were not there, by any policy; hobbit's records
 * are of experts, so a use in one pool counts in the other. */
static void test_residency__pools_evict_their_own(void **state)
{
    (void)state;
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++) {
        struct pools *pools = calloc(1, sizeof *pools);
        const struct moec_evict_ops *policy = moec_evict_policies[p];
        uint64_t random = 41 + p, slots[2 * POOL_KEYS];
        assert_non_null(pools);
        for (uint32_t key = 0; key < 2 * POOL_KEYS; key++)
            slots[key] = key / N_EXPERT % 2 == 0 ? 4096u * (2 + random_u32(&random) % 3) : 4096;
        make_pools(pools, policy, slots, (const uint64_t[]){4096u * 25, 4096u * 5});
        for (int i = 0; i < 4000; i++) {
            do_to_pools(pools, &random);
            for (uint32_t key = 0; key < 2 * POOL_KEYS && pools->alone[0] != NULL; key++)
                assert_true(moec_residency_is_present(pools->both, key) ==
                            moec_residency_is_present(pools->alone[key / N_EXPERT % 2], alone_of(key)));
        }
        moec_residency_free(pools->both);
        for (int form = 0; form < 2; form++)
            moec_residency_free(pools->alone[form]);
        free(pools);
    }
}

/* ---- shares ---- */

/* Shallow layers whole, one after the other, beside room for one answer; the rest evenly; an encoder's none.
 */
static void test_residency__layers_have_shares(void **state)
{
    (void)state;
    enum { LAYERS = 6, EXPERTS = 8 };
    uint64_t slots[LAYERS * EXPERTS];
    uint32_t shares[LAYERS];
    struct moec_layer_shares_setup setup = {
        .shape = {.n_layer = LAYERS, .n_shallow = 2, .n_expert = EXPERTS, .n_form = 1, .top_k = 2},
        .slot_bytes = slots};
    static const struct {
        uint32_t n_encoder, n_record, shares[LAYERS];
    } cases[] = {{0, 48, {8, 8, 8, 8, 8, 8}}, {0, 36, {8, 8, 5, 5, 5, 5}}, {0, 26, {8, 8, 3, 3, 2, 2}},
                 {0, 18, {8, 8, 1, 1, 0, 0}}, {0, 17, {8, 7, 1, 1, 0, 0}}, {0, 6, {4, 0, 1, 1, 0, 0}},
                 {0, 1, {0, 0, 1, 0, 0, 0}},  {1, 31, {0, 8, 8, 5, 5, 5}}, {5, 30, {0, 0, 0, 0, 0, 8}}};
    for (size_t i = 0; i < LAYERS * EXPERTS; i++)
        slots[i] = 4096;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        setup.shape.n_encoder = cases[c].n_encoder;
        setup.capacity_bytes = 4096 * (uint64_t)cases[c].n_record;
        moec_layer_shares(&setup, shares);
        assert_memory_equal(shares, cases[c].shares, sizeof shares);
    }
    setup.shape.n_encoder = setup.shape.n_shallow = 0; /* all are deep */
    setup.capacity_bytes = 4096 * 15;
    moec_layer_shares(&setup, shares);
    assert_memory_equal(shares, ((const uint32_t[]){3, 3, 3, 2, 2, 2}), sizeof shares);
}

/* The policy "fate" fills its shares at first, and lets tokens that ask for everything evenly take from
 * layers what is theirs alone: a shallow layer that is whole is never read again. */
static void test_residency__fate_keeps_shallow_layers(void **state)
{
    (void)state;
    struct run run = {.random = 3};
    float frequency[N_KEY];
    uint32_t keys[N_KEY], n_missed[N_LAYER] = {0};
    struct moec_residency *r = NULL;
    equal_slots(&run);
    for (uint32_t key = 0; key < N_KEY; key++)
        frequency[key] = (float)(key + 1) / N_KEY; /* what is deep is frequent */
    const struct moec_residency_setup setup = {
        .shape = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .n_shallow = 2, .top_k = N_TAKE},
        .pools = {.slot_bytes = run.slots, .capacity_bytes = 18 * 4096},
        .policy = {.ops = &moec_evict_fate, .frequency = frequency}};
    MUST(moec_residency_create(&setup, &r, &err));
    assert_int_equal(moec_residency_warm(r, keys), 18);
    for (uint32_t key = 0; key < N_KEY; key++)
        assert_true(moec_residency_is_present(r, key) == (key < 12 || key % N_EXPERT >= 3));
    for (uint32_t token = 0; token < 200; token++)
        for (uint32_t layer = 0; layer < N_LAYER; layer++) {
            const uint32_t first = random_u32(&run.random) % (N_EXPERT - 1);
            const uint32_t experts[N_TAKE] = {first,
                                              first + 1 + random_u32(&run.random) % (N_EXPERT - first - 1)};
            bool is_present[N_TAKE];
            moec_residency_ask(r, layer, 0, experts, N_TAKE, is_present);
            for (uint32_t i = 0; i < N_TAKE; i++) {
                n_missed[layer] += !is_present[i];
                assert_true(is_present[i] || moec_residency_admit(r, layer * N_EXPERT + experts[i]));
            }
            for (uint32_t i = 0; i < N_TAKE; i++)
                moec_residency_release(r, layer * N_EXPERT + experts[i]);
        }
    assert_true(n_missed[0] == 0 && n_missed[1] == 0 && n_missed[2] > 50 && n_missed[3] > 50);
    /* A smaller buffer has smaller shares. */
    assert_true(moec_residency_limit(r, 14 * 4096));
    for (uint32_t key = 0; key < 12; key++)
        assert_true(moec_residency_is_present(r, key));
    moec_residency_free(r);
}

/* ---- logical caches ---- */

#define N_SLOT 3u /* of a layer's logical cache */

/* A layer's logical cache takes a token's experts; whether it had each. */
static void take_logically(struct moec_logical_cache *logical, uint32_t layer, uint32_t recent[N_SLOT],
                           const uint32_t experts[N_TAKE], bool had[N_TAKE])
{
    for (uint32_t i = 0; i < N_TAKE; i++)
        had[i] = moec_logical_cache_has(logical, layer * N_EXPERT + experts[i]);
    for (uint32_t i = 0; i < N_TAKE; i++) {
        uint32_t at = 0;
        while (at < N_SLOT - 1 && recent[at] != experts[i])
            at++;
        if (recent[at] != experts[i]) {
            if (recent[at] < N_EXPERT)
                moec_logical_cache_count(logical, layer * N_EXPERT + recent[at], false);
            moec_logical_cache_count(logical, layer * N_EXPERT + experts[i], true);
        }
        memmove(recent + 1, recent, at * sizeof *recent);
        recent[0] = experts[i];
    }
}

/* Tokens pass all layers; returns logical hits that were no real ones. */
static uint32_t count_lost(const struct moec_evict_ops *policy, uint64_t capacity, uint64_t seed)
{
    struct run run = {.random = seed};
    struct moec_logical_cache *logical = NULL;
    struct moec_residency *r = NULL;
    uint32_t recent[N_LAYER][N_SLOT], n_lost = 0;
    memset(recent, 0xff, sizeof recent);
    equal_slots(&run);
    MUST(moec_logical_cache_create(&(struct moec_logical_shape){N_LAYER, 1, N_EXPERT, {N_SLOT, 0}}, 1,
                                   &logical, &err));
    const struct moec_residency_setup setup = {.shape = {.n_layer = N_LAYER, .n_expert = N_EXPERT},
                                               .pools = {.slot_bytes = run.slots, .capacity_bytes = capacity},
                                               .policy.ops = policy,
                                               .logical = logical};
    MUST(moec_residency_create(&setup, &r, &err));
    assert_true(moec_residency_keeps_logical(r) == (capacity >= (uint64_t)N_LAYER * N_SLOT * 4096));
    for (uint32_t token = 0; token < 300; token++)
        for (uint32_t layer = 0; layer < N_LAYER; layer++) {
            uint32_t first = random_u32(&run.random) % (N_EXPERT - 1);
            const uint32_t experts[N_TAKE] = {first,
                                              first + 1 + random_u32(&run.random) % (N_EXPERT - first - 1)};
            const uint32_t next = (layer + 1) % N_LAYER * N_EXPERT + random_u32(&run.random) % N_EXPERT;
            bool had[N_TAKE], is_present[N_TAKE];
            take_logically(logical, layer, recent[layer], experts, had);
            moec_residency_ask(r, layer, 0, experts, N_TAKE, is_present);
            for (uint32_t i = 0; i < N_TAKE; i++) {
                n_lost += had[i] && !is_present[i];
                assert_true(is_present[i] || moec_residency_admit(r, layer * N_EXPERT + experts[i]));
            }
            if (!moec_residency_hint(r, next))
                (void)moec_residency_prefetch(r, next);
            for (uint32_t i = 0; i < N_TAKE; i++)
                moec_residency_release(r, layer * N_EXPERT + experts[i]);
        }
    moec_residency_free(r);
    moec_logical_cache_free(logical);
    return n_lost;
}

/* With room for all that is logically present, a logical hit is a real one, whatever the policy is and
 * whatever is guessed; with less, it need not be. */
static void test_residency__logical_hits_are_real_ones(void **state)
{
    (void)state;
    const uint64_t fits = (uint64_t)N_LAYER * N_SLOT * 4096;
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            assert_int_equal(count_lost(moec_evict_policies[p], fits, seed), 0);
            assert_int_equal(count_lost(moec_evict_policies[p], fits + 3 * 4096, seed), 0);
            const uint32_t n_lost = count_lost(moec_evict_policies[p], fits - 4096, seed);
            assert_true(n_lost > 0); /* but few, since what is logically present goes last here too */
            assert_true(n_lost * 3 < count_lost(moec_evict_policies[p], fits * 2 / 3, seed) * 2);
        }
}

static void test_residency__room_of_a_logical_cache(void **state)
{
    (void)state;
    struct moec_logical_cache *logical = NULL;
    uint64_t slots[2 * 2 * 4]; /* layer, form, expert */
    for (uint32_t i = 0; i < 16; i++)
        slots[i] = 1000 * (1 + i / 8) + 100 * (i % 4) - (i / 4 % 2 == 1 ? 500 : 0);
    MUST(moec_logical_cache_create(&(struct moec_logical_shape){2, 2, 4, {2, 1}}, 1, &logical, &err));
    struct moec_logical_room room = moec_logical_cache_room(logical, slots);
    assert_int_equal(room.held_bytes, 1300 + 1200 + 800 + 2300 + 2200 + 1800);
    assert_int_equal(room.passing_bytes, 2000 + 2100 + 1500 + 1600 + 1700); /* of the second layer */
    moec_logical_cache_free(logical);
    MUST(moec_logical_cache_create(&(struct moec_logical_shape){2, 2, 4, {2, 1}}, 3, &logical, &err));
    assert_true(logical->n_slots[0] == 4 && logical->n_slots[1] == 3); /* of three sequences */
    room = moec_logical_cache_room(logical, slots);
    assert_int_equal(room.passing_bytes, 1500);
    moec_logical_cache_free(logical);
}

/* An admission gives up what is foreseen, but after everything else that nobody demands. */
static void test_residency__what_is_hinted_goes_last(void **state)
{
    (void)state;
    struct run run = {0};
    equal_slots(&run);
    struct moec_residency *r = run.residency = make(&run, &moec_evict_lru, 3 * 4096, NULL);
    for (uint32_t key = 6; key < 9; key++) {
        assert_true(moec_residency_admit(r, key));
        moec_residency_release(r, key);
    }
    assert_true(moec_residency_hint(r, 6)); /* the oldest */
    assert_true(moec_residency_hint(r, 7));
    for (uint32_t key = 0; key < 3; key++)
        assert_true(moec_residency_admit(r, key));
    assert_int_equal(run.n_evicted, 3);
    assert_int_equal(run.evicted[0], 8);
    assert_int_equal(run.evicted[1], 6);
    assert_int_equal(run.evicted[2], 7);
    assert_false(moec_residency_admit(r, 3)); /* everything is demanded */
    moec_residency_free(r);
}

/* A guess gives up neither what is demanded nor what is foreseen; an admission gives up a guess. */
static void test_residency__guesses_spare_each_other(void **state)
{
    (void)state;
    struct run run = {0};
    equal_slots(&run);
    struct moec_residency *r = run.residency = make(&run, &moec_evict_lru, 3 * 4096, NULL);
    bool is_present[1];
    assert_true(moec_residency_admit(r, 6));
    moec_residency_release(r, 6);
    assert_true(moec_residency_admit(r, 0));
    assert_true(moec_residency_hint(r, 6));
    assert_false(moec_residency_hint(r, 7));
    assert_true(moec_residency_prefetch(r, 7));
    assert_false(moec_residency_prefetch(r, 8)); /* 0 is demanded, 6 and 7 are foreseen */
    assert_false(moec_residency_shrink_for_prefetch(r, 8));
    assert_true(moec_residency_admit(r, 1));
    assert_int_equal(run.evicted[0], 7); /* which was never used */
    moec_residency_release(r, 0);
    moec_residency_release(r, 1);
    moec_residency_ask(r, 1, 0, (const uint32_t[]){6 - N_EXPERT}, 1, is_present);
    assert_true(is_present[0]);
    moec_residency_release(r, 6);
    assert_true(moec_residency_prefetch(r, 12)); /* 0 went */
    assert_true(moec_residency_prefetch(r, 13)); /* 1 went */
    assert_true(moec_residency_prefetch(r, 14)); /* 6, whose layer has answered */
    assert_int_equal(run.n_evicted, 4);
    assert_int_equal(run.evicted[3], 6);
    moec_residency_ask(r, 2, 0, (const uint32_t[]){13 - 2 * N_EXPERT}, 1, is_present);
    assert_true(moec_residency_shrink_for_prefetch(r, 8)); /* 12, nobody's by now */
    assert_true(moec_residency_shrink_for_prefetch(r, 8));
    assert_false(moec_residency_shrink_for_prefetch(r, 8)); /* 13 is demanded */
    assert_int_equal(run.n_evicted, 6);
    moec_residency_free(r);
}

static void test_residency__warm(void **state)
{
    (void)state;
    struct run run = {0};
    float frequency[N_KEY] = {0};
    uint32_t keys[N_KEY];
    equal_slots(&run);
    run.slots[3] = 3 * 4096;
    frequency[5] = 0.5f;
    frequency[2] = frequency[9] = 0.25f;
    frequency[3] = 0.125f;
    struct moec_residency *r = run.residency = make(&run, &moec_evict_lru, 5 * 4096, frequency);
    assert_int_equal(moec_residency_warm(r, keys), 5); /* 3 does not fit beside the first three */
    const uint32_t expected[] = {5, 2, 9, 0, 1};
    assert_memory_equal(keys, expected, sizeof expected);
    assert_int_equal(run.n_evicted, 0);
    assert_true(moec_residency_admit(r, 23)); /* the least likely goes first */
    assert_int_equal(run.evicted[0], 1);
    moec_residency_free(r);
    r = make(&run, &moec_evict_lru, 5 * 4096, NULL);
    assert_int_equal(moec_residency_warm(r, keys), 0);
    moec_residency_free(r);
    /* Without frequencies: all, where there is room for all. */
    uint64_t all_bytes = 0;
    for (uint32_t key = 0; key < N_KEY; key++)
        all_bytes += run.slots[key];
    r = make(&run, &moec_evict_lru, all_bytes - 1, NULL);
    assert_int_equal(moec_residency_warm(r, keys), 0);
    moec_residency_free(r);
    r = make(&run, &moec_evict_lru, all_bytes, NULL);
    assert_int_equal(moec_residency_warm(r, keys), N_KEY);
    for (uint32_t key = 0; key < N_KEY; key++)
        assert_true(keys[key] == key && moec_residency_is_present(r, key));
    moec_residency_free(r);
}

/* A buffer for one record: the answer's experts come and go in the order of the header, and nothing sticks.
 */
static void test_residency__smallest_buffer(void **state)
{
    (void)state;
    struct run run = {0};
    equal_slots(&run);
    struct moec_residency *r = run.residency = make(&run, &moec_evict_edgemoe, 4096, NULL);
    const uint32_t experts[] = {0, 2, 5};
    bool is_present[3];
    assert_true(moec_residency_prefetch(r, 5));
    moec_residency_ask(r, 0, 0, experts, 3, is_present);
    assert_true(is_present[2] && !is_present[0] && !is_present[1]);
    assert_false(moec_residency_admit(r, 0));
    moec_residency_release(r, 5);
    assert_true(moec_residency_admit(r, 0));
    assert_false(moec_residency_admit(r, 2));
    moec_residency_release(r, 0);
    assert_true(moec_residency_admit(r, 2));
    moec_residency_release(r, 2);
    assert_int_equal(run.n_evicted, 2);
    moec_residency_free(r);
}

/* A lower capacity evicts by the policy, spares what is demanded until it is released, and holds from then
 * on. */
static void test_residency__limit(void **state)
{
    (void)state;
    struct run run = {0};
    equal_slots(&run);
    struct moec_residency *r = run.residency = make(&run, &moec_evict_lru, 3 * 4096, NULL);
    const uint32_t experts[] = {0, 1, 2};
    bool is_present[3];
    moec_residency_ask(r, 0, 0, experts, 3, is_present);
    for (uint32_t key = 0; key < 3; key++)
        assert_true(moec_residency_admit(r, key));
    moec_residency_release(r, 0);
    moec_residency_release(r, 1);
    assert_true(moec_residency_limit(r, 2 * 4096 + 100));
    assert_int_equal(run.n_evicted, 1);
    assert_false(moec_residency_is_present(r, 0));
    moec_residency_hold(r, 1);
    assert_false(moec_residency_limit(r, 4096));
    assert_false(moec_residency_admit(r, 3));
    moec_residency_release(r, 2);
    assert_true(moec_residency_limit(r, 4096));
    assert_true(moec_residency_is_present(r, 1) && !moec_residency_is_present(r, 2));
    moec_residency_release(r, 1);
    assert_true(moec_residency_admit(r, 3));
    assert_false(moec_residency_is_present(r, 1));
    assert_int_equal(moec_residency_used_bytes(r), 4096);
    moec_residency_release(r, 3);
    moec_residency_free(r);
}

static void test_residency__state_bytes(void **state)
{
    (void)state;
    assert_true(moec_residency_state_bytes(200, &moec_evict_lru) >
                moec_residency_state_bytes(100, &moec_evict_lru) + 100 * sizeof(uint32_t));
    moec_residency_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_residency__random_operations),
        cmocka_unit_test(test_residency__hits_are_held_first),
        cmocka_unit_test(test_residency__forms_are_keys_of_their_own),
        cmocka_unit_test(test_residency__pools_evict_their_own),
        cmocka_unit_test(test_residency__guesses_spare_each_other),
        cmocka_unit_test(test_residency__layers_have_shares),
        cmocka_unit_test(test_residency__fate_keeps_shallow_layers),
        cmocka_unit_test(test_residency__logical_hits_are_real_ones),
        cmocka_unit_test(test_residency__room_of_a_logical_cache),
        cmocka_unit_test(test_residency__what_is_hinted_goes_last),
        cmocka_unit_test(test_residency__warm),
        cmocka_unit_test(test_residency__smallest_buffer),
        cmocka_unit_test(test_residency__limit),
        cmocka_unit_test(test_residency__state_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
