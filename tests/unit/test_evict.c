/* Eviction policies: victims of sequences worked out by hand, and what every policy must keep. */
#include "tests/unit/temporary.h"

#include "runtime/policy/evict/evict.h"

#include <math.h>

#define N_LAYER  3u
#define N_EXPERT 4u
#define N_KEY    (N_LAYER * N_EXPERT)

static struct moec_evict *make(const struct moec_evict_ops *ops, const float *frequency)
{
    struct moec_error err = {0};
    struct moec_evict *policy = NULL;
    const struct moec_evict_setup setup = {.n_layer = N_LAYER, .n_expert = N_EXPERT, .frequency = frequency};
    assert_status(ops->create(&setup, &policy, &err), MOEC_OK, err);
    return policy;
}

static bool any(void *context, uint32_t key)
{
    (void)context;
    (void)key;
    return true;
}

/* A key of the set that `context` points to (a bit each) is in use. */
static bool not_pinned(void *context, uint32_t key)
{
    return (*(const uint32_t *)context >> key & 1) == 0;
}

static uint32_t victim(struct moec_evict *policy)
{
    return policy->ops->victim(policy, any, NULL);
}

/* What a cache of `capacity` keys does with one demand; returns the key that went, or MOEC_EVICT_NONE. */
static uint32_t demand(struct moec_evict *policy, uint32_t capacity, bool *present, uint32_t key)
{
    const struct moec_evict_ops *ops = policy->ops;
    uint32_t n = 0, gone = MOEC_EVICT_NONE;
    if (ops->reached != NULL)
        ops->reached(policy, key / N_EXPERT);
    if (present[key]) {
        ops->used(policy, key);
        return gone;
    }
    if (ops->wanted != NULL)
        ops->wanted(policy, key);
    for (uint32_t i = 0; i < N_KEY; i++)
        n += present[i];
    if (n == capacity) {
        gone = victim(policy);
        ops->removed(policy, gone);
        present[gone] = false;
    }
    ops->inserted(policy, key);
    present[key] = true;
    return gone;
}

static void expect(const struct moec_evict_ops *ops, uint32_t capacity, const uint32_t *keys,
                   const uint32_t *gone, size_t n)
{
    bool present[N_KEY] = {false};
    struct moec_evict *policy = make(ops, NULL);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(demand(policy, capacity, present, keys[i]), gone[i]);
    ops->destroy(policy);
}

#define NO MOEC_EVICT_NONE

static void test_evict__lru_fifo_and_lfu(void **state)
{
    (void)state;
    const uint32_t keys[] = {0, 1, 2, 0, 0, 3, 1, 4, 3};
    const uint32_t lru[] = {NO, NO, NO, NO, NO, 1, 2, 0, NO};
    const uint32_t fifo[] = {NO, NO, NO, NO, NO, 0, NO, 1, NO};
    /* 3 counts one use when 4 comes, as 1 does anew; counts stay when a key has gone: 1 then has two. */
    const uint32_t lfu[] = {NO, NO, NO, NO, NO, 1, 2, 3, 4};
    expect(&moec_evict_lru, 3, keys, lru, sizeof keys / sizeof *keys);
    expect(&moec_evict_fifo, 3, keys, fifo, sizeof keys / sizeof *keys);
    expect(&moec_evict_lfu, 3, keys, lfu, sizeof keys / sizeof *keys);
}

/* One expert of each layer present, all used once; layers 0, 1, 2 stand for i, `current` for I, S = 3. */
static void test_evict__edgemoe_by_distance(void **state)
{
    (void)state;
    const uint32_t farthest[N_LAYER] = {0, 4, 8};    /* the current layer comes again after S layers */
    const uint32_t next_first[N_LAYER] = {0, 4, 8};  /* the formula gives 0 at i = I, read as S */
    const uint32_t second_far[N_LAYER] = {8, 0, 4};  /* d = 2 with the current layer's in use: i = I + 2 */
    const uint32_t second_next[N_LAYER] = {4, 8, 0}; /* the formula: i = I + 1 has 2 */
    for (uint32_t current = 0; current < N_LAYER; current++) {
        struct moec_evict *words = make(&moec_evict_edgemoe, NULL);
        struct moec_evict *formula = make(&moec_evict_edgemoe_literal, NULL);
        for (uint32_t layer = 0; layer < N_LAYER; layer++) {
            words->ops->inserted(words, layer * N_EXPERT);
            formula->ops->inserted(formula, layer * N_EXPERT);
        }
        words->ops->reached(words, current);
        formula->ops->reached(formula, current);
        assert_int_equal(victim(words), farthest[current]);
        assert_int_equal(victim(formula), next_first[current]);
        uint32_t pinned = 1u << (current * N_EXPERT);
        assert_int_equal(words->ops->victim(words, not_pinned, &pinned), second_far[current]);
        assert_int_equal(formula->ops->victim(formula, not_pinned, &pinned), second_next[current]);
        words->ops->destroy(words);
        formula->ops->destroy(formula);
    }
}

/* Layer 0 is an encoder's, 1 and 2 are a decoder's: what the encoder has passed goes first, however often it
 * was used; then the decoder's two layers come round by themselves. */
static void test_evict__edgemoe_gives_up_the_encoder_first(void **state)
{
    (void)state;
    static const struct moec_evict_ops *const policies[] = {&moec_evict_edgemoe, &moec_evict_edgemoe_literal};
    for (size_t i = 0; i < 2; i++) {
        struct moec_error err = {0};
        struct moec_evict *policy = NULL;
        const struct moec_evict_setup setup = {.n_layer = 3, .n_expert = N_EXPERT, .n_encoder = 1};
        assert_status(policies[i]->create(&setup, &policy, &err), MOEC_OK, err);
        const uint32_t keys[] = {0, 1, N_EXPERT, 2 * N_EXPERT};
        for (size_t k = 0; k < 4; k++)
            policies[i]->inserted(policy, keys[k]);
        for (int use = 0; use < 9; use++)
            policies[i]->used(policy, 0);
        /* The encoder is at work: its own layer may go on, the decoder's last is the farthest. */
        policies[i]->reached(policy, 0);
        assert_int_equal(victim(policy), 2 * N_EXPERT);
        uint32_t pinned = 1u << (2 * N_EXPERT);
        assert_int_equal(policies[i]->victim(policy, not_pinned, &pinned), N_EXPERT);
        pinned |= 1u << N_EXPERT;
        assert_int_equal(policies[i]->victim(policy, not_pinned, &pinned), 1);
        for (uint32_t current = 1; current < 3; current++) {
            policies[i]->reached(policy, current);
            assert_int_equal(victim(policy), 1); /* among those of the encoder the seldom used one */
            pinned = 1u << 1;
            assert_int_equal(policies[i]->victim(policy, not_pinned, &pinned), 0);
            pinned =
                3; /* both: then the round of two, where the current layer is as far as the other is not */
            assert_int_equal(policies[i]->victim(policy, not_pinned, &pinned), current * N_EXPERT);
        }
        policies[i]->destroy(policy);
    }
}

/* f / d: a key three times as often used outweighs a distance of two. */
static void test_evict__edgemoe_by_frequency(void **state)
{
    (void)state;
    struct moec_evict *policy = make(&moec_evict_edgemoe, NULL);
    policy->ops->inserted(policy, 1 * N_EXPERT); /* d = 1 from layer 0 */
    policy->ops->inserted(policy, 2 * N_EXPERT); /* d = 2 */
    policy->ops->reached(policy, 0);
    assert_int_equal(victim(policy), 2 * N_EXPERT);
    policy->ops->used(policy, 2 * N_EXPERT);
    assert_int_equal(victim(policy), 1 * N_EXPERT); /* 1 / 1 = 2 / 2: the least recent goes */
    policy->ops->used(policy, 2 * N_EXPERT);
    policy->ops->used(policy, 1 * N_EXPERT);
    assert_int_equal(victim(policy), 2 * N_EXPERT); /* 3 / 2 < 2 / 1 */
    policy->ops->destroy(policy);
}

/* A guess is no use: the key counts when it is asked for. */
static void test_evict__guesses_do_not_count(void **state)
{
    (void)state;
    struct moec_evict *policy = make(&moec_evict_lfu, NULL);
    policy->ops->inserted(policy, 0);
    policy->ops->prefetched(policy, 1);
    assert_int_equal(victim(policy), 1); /* younger, and used less */
    policy->ops->used(policy, 1);
    assert_int_equal(victim(policy), 0);
    policy->ops->removed(policy, 0);
    policy->ops->removed(policy, 1);
    policy->ops->prefetched(policy, 0);
    policy->ops->prefetched(policy, 1);
    assert_int_equal(victim(policy), 0); /* one use each is remembered: the older goes */
    policy->ops->destroy(policy);
}

/* Wrong guesses go before what was used, right ones are used like others. */
static void test_evict__lru_gives_up_wrong_guesses_first(void **state)
{
    (void)state;
    struct moec_evict *policy = make(&moec_evict_lru, NULL);
    policy->ops->prefetched(policy, 5);
    assert_int_equal(victim(policy), 5);
    policy->ops->inserted(policy, 0);
    policy->ops->inserted(policy, 1);
    policy->ops->prefetched(policy, 2);
    policy->ops->prefetched(policy, 3);
    policy->ops->used(policy, 2);
    assert_int_equal(victim(policy), 3);
    policy->ops->removed(policy, 3);
    policy->ops->removed(policy, 5);
    assert_int_equal(victim(policy), 0);
    policy->ops->removed(policy, 0);
    policy->ops->removed(policy, 1);
    assert_int_equal(victim(policy), 2);
    policy->ops->destroy(policy);
}

static void test_evict__profile_frequencies_count(void **state)
{
    (void)state;
    float frequency[N_KEY] = {0};
    frequency[0] = 0.5f;
    frequency[1] = 0.25f;
    const struct moec_evict_ops *const all[] = {&moec_evict_lfu, &moec_evict_edgemoe,
                                                &moec_evict_edgemoe_literal};
    for (size_t i = 0; i < 3; i++) {
        struct moec_evict *policy = make(all[i], frequency);
        policy->ops->inserted(policy, 1);
        policy->ops->inserted(policy, 0);
        policy->ops->inserted(policy, 2);
        for (int use = 0; use < 60; use++) /* 61 uses are fewer than a quarter of 256 tokens and one */
            policy->ops->used(policy, 2);
        assert_int_equal(victim(policy), 2);
        for (int use = 0; use < 10; use++)
            policy->ops->used(policy, 2);
        assert_int_equal(victim(policy), 1);
        policy->ops->destroy(policy);
    }
}

/* A scan over keys used once passes by the keys used twice; a wish for a key that ONCE gave up widens it. */
static void test_evict__arc(void **state)
{
    (void)state;
    const uint32_t keys[] = {0, 1, 0, 1, 2, 3, 4, 5, 0, 4, 6};
    /* 0 and 1 are used again; with c = 3, 2 to 5 push each other out. 4 comes back from the memory, p = 1,
     * and ONCE = {5} keeps its one key: AGAIN gives up 1, and 0 for the new key 6. */
    const uint32_t gone[] = {NO, NO, NO, NO, NO, 2, 3, 4, NO, 1, 0};
    expect(&moec_evict_arc, 3, keys, gone, sizeof keys / sizeof *keys);
}

/* Room is taken from a layer that holds its share, else from the one farthest above its own, the deepest of
 * equal ones; within a layer ARC decides. */
static void test_evict__fate_by_shares(void **state)
{
    (void)state;
    struct moec_evict *policy = make(&moec_evict_fate, NULL);
    const struct moec_evict_ops *ops = policy->ops;
    ops->shared(policy, (const uint32_t[]){3, 2, 1});
    for (uint32_t key = 0; key < 8; key++) /* layers 0 and 1 are whole */
        ops->inserted(policy, key);
    ops->inserted(policy, 8);
    ops->used(policy, 4);
    ops->wanted(policy, 9);
    assert_int_equal(victim(policy), 8); /* layer 2 has its share */
    uint32_t pinned = 1u << 8;
    assert_int_equal(ops->victim(policy, not_pinned, &pinned),
                     5); /* layer 1 has two more; 4 was used again */
    pinned |= 0xe0;
    assert_int_equal(ops->victim(policy, not_pinned, &pinned), 4);
    pinned |= 1u << 4;
    assert_int_equal(ops->victim(policy, not_pinned, &pinned), 0);
    ops->removed(policy, 8);
    assert_int_equal(victim(policy), 5); /* layer 2 has room in its share */
    ops->removed(policy, 5);
    ops->removed(policy, 6);
    ops->wanted(policy, 8);
    assert_int_equal(victim(policy), 0);
    pinned = 0xff;
    assert_int_equal(ops->victim(policy, not_pinned, &pinned), MOEC_EVICT_NONE);
    ops->destroy(policy);
}

/* Equation 3 by itself: the lowest priority of what is present, ties to the least recent. */
struct plain_hobbit {
    double weights[MOEC_EVICT_WEIGHTS];
    uint32_t n_high, current, n_passes;
    uint32_t last_pass[N_KEY], n_uses[N_KEY], n_high_uses[N_KEY], clock, last[N_KEY];
};

static uint32_t plain_victim(const struct plain_hobbit *plain, const bool *present)
{
    uint32_t best = MOEC_EVICT_NONE;
    double least = 0;
    for (uint32_t key = 0; key < N_KEY; key++) {
        const uint32_t ahead = (key / N_EXPERT - plain->current + N_LAYER) % N_LAYER;
        const double t = plain->n_passes, n_high = plain->n_high_uses[key];
        const double p = plain->weights[0] * plain->last_pass[key] / t +
                         plain->weights[1] * plain->n_uses[key] / t + plain->weights[2] * n_high / t +
                         plain->weights[3] * (1 - (double)ahead / N_LAYER);
        if (!present[key])
            continue;
        const bool is_tie = best != MOEC_EVICT_NONE && fabs(p - least) < 1e-9;
        if (best == MOEC_EVICT_NONE || (is_tie && plain->last[key] < plain->last[best]) ||
            (!is_tie && p < least)) {
            best = key;
            least = p;
        }
    }
    return best;
}

static void plain_use(struct plain_hobbit *plain, uint32_t key, bool is_high)
{
    plain->n_uses[key]++;
    plain->n_high_uses[key] += is_high;
    plain->last_pass[key] = plain->n_passes;
    plain->last[key] = ++plain->clock;
}

/* With pools, experts are used in another pool's copies too. */
static void check_hobbit(const struct moec_evict_ops *ops, const float *weights, uint32_t n_low,
                         bool has_pools)
{
    struct moec_error err = {0};
    struct moec_evict *policy = NULL;
    const struct moec_evict_setup setup = {
        .n_layer = N_LAYER, .n_expert = N_EXPERT, .n_low = n_low, .weights = weights};
    struct plain_hobbit plain = {.n_high = N_EXPERT - n_low};
    bool present[N_KEY] = {false};
    uint64_t random = 3;
    assert_status(ops->create(&setup, &policy, &err), MOEC_OK, err);
    for (size_t i = 0; i < MOEC_EVICT_WEIGHTS; i++)
        plain.weights[i] = ops == &moec_evict_lhu ? i == MOEC_EVICT_LHU : weights == NULL ? 0.25 : weights[i];
    for (uint32_t pass = 0; pass < 600; pass++) {
        if (pass % 90 == 0) {
            ops->began(policy);
            plain.n_passes = 0;
            memset(plain.last_pass, 0, sizeof plain.last_pass);
            memset(plain.n_uses, 0, sizeof plain.n_uses);
            memset(plain.n_high_uses, 0, sizeof plain.n_high_uses);
        }
        plain.n_passes++;
        for (plain.current = 0; plain.current < N_LAYER; plain.current++) {
            uint32_t n = 0;
            const uint32_t key = plain.current * N_EXPERT + random_u32(&random) % N_EXPERT;
            ops->reached(policy, plain.current);
            for (uint32_t i = 0; i < N_KEY; i++)
                n += present[i];
            if (!present[key] && n == 6) {
                const uint32_t gone = victim(policy);
                assert_int_equal(gone, plain_victim(&plain, present));
                ops->removed(policy, gone);
                present[gone] = false;
            }
            if (present[key])
                ops->used(policy, key);
            else
                ops->inserted(policy, key);
            present[key] = true;
            plain_use(&plain, key, key % N_EXPERT < plain.n_high);
            if (has_pools && random_u32(&random) % 3 == 0) {
                const uint32_t other = plain.current * N_EXPERT + random_u32(&random) % N_EXPERT;
                const bool is_high = random_u32(&random) % 2 == 0;
                ops->used_beside(policy, other, is_high);
                plain_use(&plain, other, is_high);
            }
        }
    }
    ops->destroy(policy);
}

static void test_evict__hobbit_by_its_equation(void **state)
{
    (void)state;
    static const float weights[][MOEC_EVICT_WEIGHTS] = {
        {0.5f, 0.25f, 0.125f, 0.125f}, {0, 0, 0, 1}, {1, 0, 0, 0}, {0, 0.75f, 0, 0.25f}};
    for (uint32_t n_low = 0; n_low <= N_EXPERT; n_low += 2) {
        check_hobbit(&moec_evict_hobbit, NULL, n_low, false);
        check_hobbit(&moec_evict_lhu, NULL, n_low, false);
        check_hobbit(&moec_evict_lhu, NULL, n_low, true);
    }
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        for (uint32_t n_low = 0; n_low <= N_EXPERT; n_low += 2)
            for (int has_pools = 0; has_pools < 2; has_pools++)
                check_hobbit(&moec_evict_hobbit, weights[i], n_low, has_pools == 1);
}

static void test_evict__words_have_parameters(void **state)
{
    (void)state;
    static const char *const wrong[] = {"hobbit:",
                                        "hobbit:1:2:3",
                                        "hobbit:1:2:3:4:5",
                                        "hobbit:1:2:3:x",
                                        "hobbit:0:0:0:0",
                                        "hobbit:-1:1:1:1",
                                        "hobbit:1:2:3:",
                                        "hobbit:nan:1:1:1",
                                        "fate:",
                                        "fate:0",
                                        "fate:-1",
                                        "fate: 1",
                                        "fate:2x",
                                        "fate:1025",
                                        "fate:1:2",
                                        "lru:3",
                                        "lhu:1:1:1:1",
                                        "",
                                        "hobbit ",
                                        "Fate:2"};
    struct moec_error err = {0};
    struct moec_evict_choice read;
    char longest[MOEC_EVICT_WORD_BYTES + 1] = "hobbit:1:1:1:1";
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++, err = (struct moec_error){0})
        assert_status(moec_evict_read(wrong[i], &read, &err), MOEC_ERR_USAGE, err);
    memset(longest + strlen(longest), '0', sizeof longest - 1 - strlen(longest));
    assert_status(moec_evict_read(longest, &read, &err), MOEC_ERR_USAGE, err);
    err = (struct moec_error){0};
    longest[MOEC_EVICT_WORD_BYTES - 1] = '\0';
    assert_status(moec_evict_read(longest, &read, &err), MOEC_OK, err);
    assert_string_equal(read.word, longest);
    assert_status(moec_evict_read("hobbit:4:2:0:2", &read, &err), MOEC_OK, err);
    assert_ptr_equal(read.ops, &moec_evict_hobbit);
    assert_true(read.has_weights && read.n_shallow == 0);
    assert_true(read.weights[0] == 0.5f && read.weights[1] == 0.25f && read.weights[2] == 0 &&
                read.weights[3] == 0.25f);
    assert_string_equal(read.word, "hobbit:4:2:0:2");
    assert_status(moec_evict_read("fate:3", &read, &err), MOEC_OK, err);
    assert_true(read.ops == &moec_evict_fate && read.n_shallow == 3 && !read.has_weights);
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++) {
        assert_status(moec_evict_read(moec_evict_policies[p]->name, &read, &err), MOEC_OK, err);
        assert_true(read.ops == moec_evict_policies[p] && !read.has_weights && read.n_shallow == 0);
        assert_string_equal(read.word, moec_evict_policies[p]->name);
    }
}

/* Random demands: victims are present, never pinned, and the same ones when all is done again. */
static void test_evict__every_policy_keeps_the_rules(void **state)
{
    (void)state;
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++) {
        const struct moec_evict_ops *ops = moec_evict_policies[p];
        uint32_t first_run[2000];
        for (int run = 0; run < 2; run++) {
            struct moec_evict *policy = make(ops, NULL);
            bool present[N_KEY] = {false};
            uint64_t random = 11;
            for (int i = 0; i < 2000; i++) {
                uint32_t key = random_u32(&random) % N_KEY, pinned = random_u32(&random);
                bool was[N_KEY];
                memcpy(was, present, sizeof was);
                const uint32_t gone = demand(policy, 5, present, key);
                assert_true(gone == MOEC_EVICT_NONE || (was[gone] && gone != key));
                const uint32_t offered = ops->victim(policy, not_pinned, &pinned);
                bool exists = false;
                for (uint32_t k = 0; k < N_KEY; k++)
                    exists = exists || (present[k] && not_pinned(&pinned, k));
                assert_int_equal(offered != MOEC_EVICT_NONE, exists);
                assert_true(!exists || (present[offered] && not_pinned(&pinned, offered)));
                if (run == 0)
                    first_run[i] = gone;
                else
                    assert_int_equal(gone, first_run[i]);
            }
            ops->destroy(policy);
        }
        assert_true(ops->state_bytes(N_KEY) > ops->state_bytes(1));
    }
}

static void test_evict__random_reaches_every_key(void **state)
{
    (void)state;
    struct moec_evict *policy = make(&moec_evict_random, NULL);
    uint32_t count[N_KEY] = {0};
    for (uint32_t key = 0; key < N_KEY; key++)
        policy->ops->inserted(policy, key);
    for (int i = 0; i < 1200; i++)
        count[victim(policy)]++;
    for (uint32_t key = 0; key < N_KEY; key++)
        assert_in_range(count[key], 60, 150); /* 100 expected, standard deviation under 10 */
    policy->ops->destroy(policy);
}

static void test_evict__names(void **state)
{
    (void)state;
    const struct moec_evict_ops *found = NULL;
    struct moec_error err = {0};
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++) {
        assert_status(moec_evict_find(moec_evict_policies[p]->name, &found, &err), MOEC_OK, err);
        assert_ptr_equal(found, moec_evict_policies[p]);
    }
    assert_int_equal(moec_evict_find("belady", &found, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "'belady'"));
    assert_non_null(strstr(err.message, "edgemoe-literal, arc, random, hobbit, lhu, fate"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evict__lru_fifo_and_lfu),
        cmocka_unit_test(test_evict__edgemoe_by_distance),
        cmocka_unit_test(test_evict__edgemoe_gives_up_the_encoder_first),
        cmocka_unit_test(test_evict__edgemoe_by_frequency),
        cmocka_unit_test(test_evict__guesses_do_not_count),
        cmocka_unit_test(test_evict__lru_gives_up_wrong_guesses_first),
        cmocka_unit_test(test_evict__profile_frequencies_count),
        cmocka_unit_test(test_evict__arc),
        cmocka_unit_test(test_evict__fate_by_shares),
        cmocka_unit_test(test_evict__hobbit_by_its_equation),
        cmocka_unit_test(test_evict__every_policy_keeps_the_rules),
        cmocka_unit_test(test_evict__random_reaches_every_key),
        cmocka_unit_test(test_evict__names),
        cmocka_unit_test(test_evict__words_have_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
