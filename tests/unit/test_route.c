/* Routing and precision that look at a logical cache: the choices against the papers' definitions, the cache
 * against a plain reference. */
#include "tests/unit/fixture_model.h"

#include "formats/tables/score_shares.h"
#include "runtime/forward/moe/decide.h"

#include <math.h>

/* ---- choices ---- */

struct held {
    struct moec_residents residents;
    const bool *is_there;
};

static bool held_has(const struct moec_residents *self, uint32_t layer, uint32_t expert)
{
    assert_int_equal(layer, 3);
    return ((const struct held *)self)->is_there[expert];
}

/* Six experts in the order of their ranks; the third, fourth and sixth are in the cache (the paper's Fig.
 * 12). */
static const float ranked[] = {5, 4, 3, 2.5f, 1, 0.5f};
static const float shares[] = {0.4f, 0.3f, 0.15f, 0.1f, 0.04f, 0.01f};
static const bool there[] = {false, false, true, true, false, true};

static void expect_choice(const struct moec_route *route, uint32_t k, const uint32_t *expected,
                          uint32_t n_skipped)
{
    const struct held held = {{held_has}, there};
    const struct moec_scored_token token = {.layer = 3,
                                            .n_expert = 6,
                                            .top_k = k,
                                            .scores = shares,
                                            .residents = &held.residents,
                                            .ranked = {.compared = ranked, .shares = shares, .range = 5}};
    const struct moec_choice choice = moec_route_choice(route);
    uint32_t experts[8];
    bool skips[8] = {false};
    choice.choose(choice.context, &token, experts, skips);
    for (uint32_t i = 0; i < k; i++) {
        assert_int_equal(experts[i], expected[i]);
        assert_int_equal(skips[i], i >= k - n_skipped);
    }
}

static void test_route__chooses_as_the_paper_says(void **state)
{
    (void)state;
    struct moec_route route = {.kind = MOEC_ROUTE_TOP_K, .n_slots = 3};
    expect_choice(&route, 3, (const uint32_t[]){0, 1, 2}, 0);
    /* Appendix B: M = 4, K = 2, J = 1 takes the best and the third. */
    route = (struct moec_route){.kind = MOEC_ROUTE_MAX_RANK, .n_expert = 4, .keep_top = 1, .n_slots = 3};
    expect_choice(&route, 2, (const uint32_t[]){0, 2}, 0);
    route.keep_top = 0;
    expect_choice(&route, 2, (const uint32_t[]){2, 3}, 0);
    expect_choice(&route, 4, (const uint32_t[]){0, 1, 2, 3}, 0); /* two are there, the best two fill up */
    route.n_expert = 3;
    expect_choice(&route, 2, (const uint32_t[]){0, 2}, 0);
    /* 0.8 takes three experts, 0.9 four, 0.7 two, of which none is there. */
    route = (struct moec_route){.kind = MOEC_ROUTE_CUMSUM, .share = 0.8f, .n_slots = 3};
    expect_choice(&route, 2, (const uint32_t[]){0, 2}, 0);
    route.share = 0.9f;
    expect_choice(&route, 2, (const uint32_t[]){2, 3}, 0);
    route.share = 0.65f;
    expect_choice(&route, 2, (const uint32_t[]){0, 1}, 0);
    /* Boosts of 5 L: 0.25 lifts the third over the second, not over the first. */
    route = (struct moec_route){.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0, .n_slots = 3};
    expect_choice(&route, 2, (const uint32_t[]){0, 1}, 0);
    route.share = 0.25f;
    expect_choice(&route, 2, (const uint32_t[]){0, 2}, 0);
    route.share = 1;
    expect_choice(&route, 3, (const uint32_t[]){2, 3, 5}, 0);
    route.keep_top = 1;
    expect_choice(&route, 3, (const uint32_t[]){0, 2, 3}, 0);
    route = (struct moec_route){.kind = MOEC_ROUTE_PRUNE, .n_expert = 1};
    expect_choice(&route, 3, (const uint32_t[]){0, 1, 2}, 2);
}

static void test_route__reads_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum moec_route_range range;
    } cases[] = {{"cache-prior:0.25", MOEC_ROUTE_RANGE_RUNNING},
                 {"cache-prior:0.25:running", MOEC_ROUTE_RANGE_RUNNING},
                 {"cache-prior:0.25:calibrated", MOEC_ROUTE_RANGE_CALIBRATED},
                 {"cache-prior:0.25:own", MOEC_ROUTE_RANGE_OWN}};
    const struct moec_config config = {.n_layer = 1, .n_expert = 12, .top_k = 4};
    float ranges[] = {3};
    struct moec_path_table paths = {
        .n_layer = moec_config_moe_count(&config), .n_expert = 12, .ranges = ranges};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_error err = {0};
        struct moec_route route = {0};
        assert_ok(moec_route_read(cases[i].text, &route, &err), err);
        assert_true(route.kind == MOEC_ROUTE_CACHE_PRIOR && route.share == 0.25f);
        assert_int_equal(route.range, cases[i].range);
        const bool is_calibrated = cases[i].range == MOEC_ROUTE_RANGE_CALIBRATED;
        const enum moec_status unknown = is_calibrated ? MOEC_ERR_USAGE : MOEC_OK;
        assert_status(moec_route_know_ranges(&route, &config, NULL, "m.moec", &err), unknown, err);
        paths.ranges = NULL;
        assert_status(moec_route_know_ranges(&route, &config, &paths, "m.moec", &err), unknown, err);
        if (is_calibrated)
            assert_message(err, "'m.moec' has no calibrated ranges of its routers' scores");
        paths.ranges = ranges;
        assert_ok(moec_route_know_ranges(&route, &config, &paths, "m.moec", &err), err);
        assert_ptr_equal(route.ranges, is_calibrated ? ranges : NULL);
    }
}

static void test_route__refuses_settings(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "prior",
                                        "cache-prior",
                                        "cache-prior:",
                                        "cache-prior:1.5",
                                        "cumsum:-1",
                                        "prune:0",
                                        "prune:1.5",
                                        "max-rank:nan",
                                        "max-rank:5000",
                                        "top-k:2",
                                        "cumsum:x",
                                        "prune:2x",
                                        "cache-prior:nan",
                                        "cache-prior:0.2:",
                                        "cumsum:0.5:own",
                                        "cache-prior:0.2:calibrate",
                                        "cache-prior::own",
                                        "skip:0.1",
                                        ":skip:0.1",
                                        "top-k:skip",
                                        "top-k:skip:",
                                        "top-k:skip:0",
                                        "top-k:skip:1.1",
                                        "top-k:skip:nan",
                                        "top-k:skip:-0.1",
                                        "top-k:skip:1e-60",
                                        "top-k:skip:0.1x",
                                        "top-k:skip:0.1:skip:0.1",
                                        "cache-prior:skip:0.1",
                                        "cache-prior:0.2:skip:0.1:own"};
    static const char *const slots[] = {"", "0", "-1", "101%", "1.5", "7x", "nan%", "%"};
    const struct moec_config config = {.n_expert = 12, .top_k = 4};
    uint32_t n_slots = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct moec_error err = {0};
        struct moec_route route = {0};
        assert_status(moec_route_read(texts[i], &route, &err), MOEC_ERR_USAGE, err);
    }
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        struct moec_error err = {0};
        assert_status(moec_route_read_slots(slots[i], &config, &n_slots, &err), MOEC_ERR_USAGE, err);
    }
    static const struct moec_route wrong[] = {
        {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.5f},
        {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.5f, .n_slots = 3},
        {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.5f, .n_slots = 13},
        {.kind = MOEC_ROUTE_CACHE_PRIOR, .share = 0.5f, .n_slots = 6, .keep_top = 4},
        {.kind = MOEC_ROUTE_MAX_RANK, .n_expert = 4, .n_slots = 6},
        {.kind = MOEC_ROUTE_MAX_RANK, .n_expert = 13, .n_slots = 6},
        {.kind = MOEC_ROUTE_PRUNE, .n_expert = 4},
        {.kind = MOEC_ROUTE_PRUNE, .n_expert = 2, .keep_top = 1},
        {.kind = MOEC_ROUTE_TOP_K, .n_slots = 6, .keep_top = 1},
        {.kind = MOEC_ROUTE_TOP_K, .skip = 0.1f},
        {.kind = MOEC_ROUTE_TOP_K, .skip = 0.1f, .n_slots = 6, .keep_top = 4}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_error err = {0};
        assert_status(moec_route_check(&wrong[i], &config, &err), MOEC_ERR_USAGE, err);
    }
    struct moec_error err = {0};
    assert_ok(moec_route_read_slots("50%", &config, &n_slots, &err), err);
    assert_int_equal(n_slots, 6);
    assert_ok(moec_route_read_slots("10%", &config, &n_slots, &err), err);
    assert_int_equal(n_slots, 4); /* those of one token */
}

/* Of the experts that are missing the lightest go, as long as all of them make up no more than W. */
static void test_route__skips_misses_of_little_weight(void **state)
{
    (void)state;
    enum { K = 5 };
    static const uint32_t experts[K] = {4, 2, 1, 0, 3};
    static const struct {
        float weights[K];
        const char *route;
        uint32_t keep_top;
        const char *skipped; /* a letter for each rank: s = skipped, - = taken */
    } cases[] = {
        /* 2 and 3 are there. */
        {{0.5f, 0.05f, 0.25f, 0.125f, 0.0625f}, "top-k:skip:0.1", 0, "-----"},
        {{0.5f, 0.05f, 0.25f, 0.125f, 0.0625f}, "top-k:skip:0.125", 0, "---s-"},
        {{0.5f, 0.05f, 0.25f, 0.125f, 0.0625f}, "cache-prior:0.2:own:skip:0.375", 0, "--ss-"},
        {{0.5f, 0.05f, 0.25f, 0.125f, 0.0625f}, "max-rank:6:skip:1", 0, "s-ss-"},
        {{0.5f, 0.05f, 0.25f, 0.125f, 0.0625f}, "max-rank:6:skip:1", 1, "--ss-"},
        {{0.5f, 0.05f, 0.25f, 0.125f, 0.0625f}, "top-k", 0, "-----"},
        /* Weights need not fall with the ranks, and count by their size; of equal ones the last goes. */
        {{0.125f, 0.5f, 0.25f, -0.25f, 0.5f}, "cumsum:0.5:skip:0.25", 0, "s----"},
        {{0.5f, 0.5f, 0.25f, -0.25f, 0.5f}, "cumsum:0.5:skip:0.25", 0, "---s-"},
    };
    const struct held held = {{held_has}, (const bool[6]){false, false, true, true, false, false}};
    const struct moec_scored_token token = {
        .layer = 3, .n_expert = 6, .top_k = K, .residents = &held.residents};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool skips[K] = {false};
        struct moec_route route = {.keep_top = cases[i].keep_top};
        struct moec_error err = {0};
        assert_ok(moec_route_read(cases[i].route, &route, &err), err);
        moec_route_skip(&route, &token, experts, cases[i].weights, skips);
        for (uint32_t rank = 0; rank < K; rank++)
            assert_int_equal(skips[rank], cases[i].skipped[rank] == 's');
    }
    /* What a choice has dropped already takes nothing of W. */
    struct moec_route pruned = {.skip = 0.25f};
    bool skips[K] = {false, false, false, true, false};
    moec_route_skip(&pruned, &token, experts, (const float[K]){0.5f, 0.3f, 0.25f, 0.125f, 0.1f}, skips);
    assert_true(!skips[0] && skips[2] && skips[3]);
}

/* ---- the logical cache ---- */

/* A list with the most recent last. */
struct plain_cache {
    uint32_t experts[16], n;
};

static bool plain_touch(struct plain_cache *cache, uint32_t n_slots, uint32_t expert)
{
    uint32_t at = 0;
    while (at < cache->n && cache->experts[at] != expert)
        at++;
    const bool was_there = at < cache->n;
    if (!was_there && cache->n < n_slots)
        cache->n++;
    else if (!was_there)
        at = 0;
    memmove(cache->experts + at, cache->experts + at + 1, (cache->n - 1 - at) * sizeof *cache->experts);
    cache->experts[cache->n - 1] = expert;
    return was_there;
}

static void test_route__the_cache_is_lru_within_a_sequence(void **state)
{
    (void)state;
    enum { N_EXPERT = 12, TOP_K = 3, N_SLOTS = 5, N_TOK = 400 };
    const struct moec_config config = {.n_expert = N_EXPERT, .top_k = TOP_K};
    const struct moec_route route = {.kind = MOEC_ROUTE_TOP_K, .n_slots = N_SLOTS};
    struct moec_route_state routes, copy;
    struct plain_cache plain = {.n = 0}, middle = plain;
    uint64_t n_missed = 0;
    uint32_t seed = 7;
    struct moec_error err = {0};
    assert_ok(moec_route_state_create(&config, &route, 2, N_TOK, &routes, &err), err);
    assert_ok(moec_route_state_create(&config, &route, 2, N_TOK + 9, &copy, &err), err);
    for (uint32_t t = 0; t < N_TOK; t++) {
        uint32_t experts[TOP_K];
        /* Equal weights too: of those the lower index is touched last. */
        const float weights[TOP_K] = {0.5f, 0.25f, 0.25f};
        const bool skips[TOP_K] = {false, false, t % 7 == 0};
        seed = seed * 1664525u + 1013904223u;
        for (uint32_t i = 0; i < TOP_K; i++)
            experts[i] = (seed >> 8) % 4 + 4 * ((seed >> (10 + i)) % 2) +
                         (i == 2 ? 8 - 4 * ((seed >> 12) % 2) : i) % 4;
        for (uint32_t i = 1; i < TOP_K; i++)
            while (experts[i] == experts[0] || (i == 2 && experts[2] == experts[1]))
                experts[i] = (experts[i] + 1) % N_EXPERT;
        bool was_there[N_EXPERT] = {false};
        for (uint32_t i = 0; i < plain.n; i++)
            was_there[plain.experts[i]] = true;
        for (uint32_t i = 0; i < TOP_K; i++)
            n_missed += !skips[i] && !was_there[experts[i]];
        const uint32_t low = experts[1] < experts[2] ? 1 : 2, high = 3 - low;
        if (!skips[high])
            (void)plain_touch(&plain, N_SLOTS, experts[high]);
        if (!skips[low])
            (void)plain_touch(&plain, N_SLOTS, experts[low]);
        (void)plain_touch(&plain, N_SLOTS, experts[0]);
        const struct moec_route_taken taken = {.experts = experts, .weights = weights, .skips = skips};
        moec_route_state_take(&routes, 1, (float)(t % 3), &taken);
        for (uint32_t i = 0; i < plain.n; i++)
            assert_int_equal(routes.pools[0].recent[N_SLOTS + i], plain.experts[plain.n - 1 - i]);
        if (t == N_TOK / 2)
            middle = plain;
    }
    assert_int_equal(routes.counts.n_missed, n_missed);
    assert_int_equal(routes.n_done[0], 0);
    moec_route_state_copy(&copy, &routes);
    moec_route_state_truncate(&copy, 0, N_TOK / 2 + 1);
    for (uint32_t i = 0; i < middle.n; i++)
        assert_int_equal(copy.pools[0].recent[N_SLOTS + i], middle.experts[middle.n - 1 - i]);
    assert_true(moec_route_state_range(&routes, 1, 1) == (routes.range_sum[1] + 1) / (N_TOK + 1));
    moec_route_state_release(&routes);
    moec_route_state_release(&copy);
}

/* ---- precision ---- */

/* Equation 2 as it stands, for weights that differ. */
static void decide_plainly(const struct moec_precision *precision, uint32_t k, const float *weights,
                           const bool *is_there, const bool *was_skipped, bool *skips, bool *is_low)
{
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += was_skipped[i] ? 0 : (double)weights[i];
    for (uint32_t i = 0; i < k; i++) {
        double score = 0;
        for (uint32_t j = 0; j < k; j++)
            score += !was_skipped[j] && weights[j] > weights[i] ? (double)weights[j] / sum : 0;
        const bool is_free = !was_skipped[i] && (precision->kind == MOEC_PRECISION_ALWAYS || !is_there[i]);
        skips[i] = was_skipped[i] || (is_free && score > (double)precision->low_score);
        is_low[i] = is_free && !skips[i] && score > (double)precision->high_score;
    }
}

static void test_route__precision_goes_by_the_weight_before(void **state)
{
    (void)state;
    enum { K = 6, N_EXPERT = 6, N_TOK = 2000 };
    uint32_t seed = 11, n_low = 0, n_skipped = 0;
    for (uint32_t t = 0; t < N_TOK; t++) {
        uint32_t experts[K];
        float weights[K];
        bool is_there[N_EXPERT], was_skipped[K], skips[K], is_low[K], plain_skips[K], plain_low[K];
        for (uint32_t i = 0; i < K; i++) {
            seed = seed * 1664525u + 1013904223u;
            experts[i] = (i + t) % N_EXPERT;
            weights[i] = (float)(1 + (seed >> 9) % 4000 * 8 + i) * 0.01f;
            is_there[i] = (seed >> 8) % 3 == 0;
            was_skipped[i] = t % 4 == 0 && i == t / 4 % K;
        }
        const struct moec_precision precision = {.kind = t % 2 == 0 ? MOEC_PRECISION_HOBBIT
                                                                    : MOEC_PRECISION_ALWAYS,
                                                 .high_score = (float)(t % 7) / 10 + 0.003f,
                                                 .low_score = (float)(t % 7) / 10 + 0.2f};
        bool there_by_expert[N_EXPERT];
        for (uint32_t i = 0; i < K; i++)
            there_by_expert[experts[i]] = is_there[i];
        const struct held held = {{held_has}, there_by_expert};
        memcpy(skips, was_skipped, sizeof skips);
        moec_precision_decide(&precision, &(struct moec_token_experts){K, experts, weights, skips, is_low},
                              &held.residents, 3, NULL, 0);
        decide_plainly(&precision, K, weights, is_there, was_skipped, plain_skips, plain_low);
        for (uint32_t i = 0; i < K; i++) {
            assert_int_equal(skips[i], plain_skips[i]);
            assert_int_equal(is_low[i], plain_low[i]);
            n_low += is_low[i];
            n_skipped += skips[i] && !was_skipped[i];
        }
    }
    assert_true(n_low > N_TOK / 2 && n_skipped > N_TOK / 2);
    /* Of equal weights the lower index comes first; a threshold of 1 is never passed. */
    bool skips[3] = {false}, is_low[3];
    const struct held none = {{held_has}, (const bool[6]){false}};
    const struct moec_precision half = {.kind = MOEC_PRECISION_HOBBIT, .high_score = 0.5f, .low_score = 1};
    moec_precision_decide(
        &half,
        &(struct moec_token_experts){3, (const uint32_t[]){5, 2, 4}, (const float[]){1, 1, 1}, skips, is_low},
        &none.residents, 3, NULL, 0);
    assert_true(is_low[0] && !is_low[1] && !is_low[2]);
    assert_true(!skips[0] && !skips[1] && !skips[2]);
}

/* An engine's counts are those of what the states hold, however they came to it. */
static void check_shared(const struct moec_logical_cache *shared,
                         const struct moec_route_state *const *states, uint32_t n_state)
{
    for (uint32_t key = 0; key < shared->n_form * shared->n_expert; key++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_state; i++)
            n += moec_route_state_has(states[i], 0, key % shared->n_expert, key >= shared->n_expert);
        assert_int_equal(shared->n_holders[key], n);
    }
}

static void test_route__low_copies_have_a_cache_of_their_own(void **state)
{
    (void)state;
    enum { N_EXPERT = 10, TOP_K = 3, N_SLOTS = 4, N_LOW = 3, N_TOK = 300 };
    const struct moec_config config = {.n_expert = N_EXPERT, .top_k = TOP_K};
    const struct moec_route route = {
        .n_slots = N_SLOTS, .precision = {.kind = MOEC_PRECISION_HOBBIT}, .n_low_slots = N_LOW};
    const uint64_t sizes[2][N_EXPERT] = {{100, 101, 102, 103, 104, 105, 106, 107, 108, 109},
                                         {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}};
    struct plain_cache plain[2] = {{.n = 0}, {.n = 0}}, middle[2] = {{.n = 0}, {.n = 0}};
    struct moec_route_state routes, copy;
    struct moec_route_counts counts = {0};
    struct moec_error err = {0};
    struct moec_logical_cache *shared = NULL;
    const struct moec_route_state *states[] = {&routes, &copy};
    uint32_t seed = 5;
    assert_ok(moec_route_state_create(&config, &route, 1, N_TOK, &routes, &err), err);
    assert_ok(moec_route_state_create(&config, &route, 1, N_TOK, &copy, &err), err);
    assert_ok(moec_logical_cache_create(&(struct moec_logical_shape){1, 2, N_EXPERT, {N_SLOTS, N_LOW}}, 2,
                                        &shared, &err),
              err);
    moec_route_state_share(&routes, shared);
    moec_route_state_share(&copy, shared);
    for (uint32_t t = 0; t < N_TOK; t++) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t first = (seed >> 8) % N_EXPERT;
        const uint32_t experts[TOP_K] = {first, (first + 1 + (seed >> 12) % 4) % N_EXPERT,
                                         (first + 5 + (seed >> 16) % 4) % N_EXPERT};
        const float weights[TOP_K] = {0.5f, 0.3f, 0.2f};
        const bool skips[TOP_K] = {false, false, t % 5 == 0}, is_low[TOP_K] = {false, t % 2 == 0, t % 3 != 0};
        const struct moec_route_taken taken = {.experts = experts,
                                               .weights = weights,
                                               .skips = skips,
                                               .is_low = is_low,
                                               .record_bytes = {sizes[0], sizes[1]}};
        counts.n_skipped += skips[2];
        bool is_held[2][N_EXPERT] = {{false}};
        for (uint32_t pool = 0; pool < 2; pool++)
            for (uint32_t i = 0; i < plain[pool].n; i++)
                is_held[pool][plain[pool].experts[i]] = true;
        for (uint32_t i = TOP_K; i-- > 0;) {
            if (skips[i])
                continue;
            const bool is_missed = !is_held[is_low[i]][experts[i]];
            counts.n_taken++;
            counts.n_low += is_low[i];
            counts.n_missed += is_missed;
            counts.n_low_missed += is_missed && is_low[i];
            counts.missed_bytes += is_missed ? sizes[is_low[i]][experts[i]] : 0;
            (void)plain_touch(&plain[is_low[i]], is_low[i] ? N_LOW : N_SLOTS, experts[i]);
        }
        moec_route_state_take(&routes, 0, 0, &taken);
        check_shared(shared, states, 2);
        if (t == N_TOK / 2)
            memcpy(middle, plain, sizeof middle);
    }
    counts.n_position = N_TOK;
    assert_memory_equal(&routes.counts, &counts, sizeof counts);
    moec_route_state_copy(&copy, &routes);
    check_shared(shared, states, 2);
    moec_route_state_truncate(&copy, 0, N_TOK / 2 + 1);
    check_shared(shared, states, 2);
    for (uint32_t pool = 0; pool < 2; pool++) {
        for (uint32_t i = 0; i < plain[pool].n; i++)
            assert_int_equal(routes.pools[pool].recent[i], plain[pool].experts[plain[pool].n - 1 - i]);
        assert_int_equal(copy.pools[pool].n_recent[0], middle[pool].n);
        for (uint32_t i = 0; i < middle[pool].n; i++)
            assert_int_equal(copy.pools[pool].recent[i], middle[pool].experts[middle[pool].n - 1 - i]);
    }
    moec_route_state_release(&routes);
    check_shared(shared, states + 1, 1);
    moec_route_state_release(&copy);
    check_shared(shared, states, 0);
    moec_logical_cache_free(shared);
}

/* The first that takes an expert decides for its block: also where the state was taken back, or copied. */
static void test_route__a_block_keeps_the_first_copy(void **state)
{
    (void)state;
    enum { N_EXPERT = 6, TOP_K = 2, BLOCK = 4, N_TOK = 11 };
    const struct moec_config config = {.n_expert = N_EXPERT, .top_k = TOP_K};
    const struct moec_route route = {
        .n_slots = 2,
        .n_low_slots = 2,
        .precision = {
            .kind = MOEC_PRECISION_HOBBIT, .high_score = 0.5f, .low_score = 1, .block_tokens = BLOCK}};
    struct moec_route_state routes, copy;
    struct moec_error err = {0};
    uint8_t after[N_TOK][N_EXPERT], *seen = NULL;
    uint32_t seed = 3;
    assert_ok(moec_route_state_create(&config, &route, 1, N_TOK, &routes, &err), err);
    assert_ok(moec_route_state_create(&config, &route, 1, N_TOK, &copy, &err), err);
    for (uint32_t t = 0; t < N_TOK; t++) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t first = (seed >> 8) % N_EXPERT;
        const uint32_t experts[TOP_K] = {first, (first + 1 + (seed >> 12) % 4) % N_EXPERT};
        const float weights[TOP_K] = {0.6f, 0.4f};
        bool skips[TOP_K] = {false}, is_low[TOP_K] = {false};
        const struct held none = {{held_has}, (const bool[N_EXPERT]){false}};
        const uint8_t *block = moec_route_state_block(&routes, 0);
        uint8_t before[N_EXPERT];
        memcpy(before, block, sizeof before);
        moec_precision_decide(&route.precision,
                              &(struct moec_token_experts){TOP_K, experts, weights, skips, is_low},
                              &none.residents, 3, block, N_EXPERT);
        for (uint32_t i = 0; i < TOP_K; i++)
            assert_true(
                is_low[i] ==
                (before[experts[i]] != MOEC_BLOCK_NONE ? before[experts[i]] == MOEC_BLOCK_LOW : i == 1));
        const struct moec_route_taken taken = {
            .experts = experts, .weights = weights, .skips = skips, .is_low = is_low};
        moec_route_state_take(&routes, 0, 0, &taken);
        memcpy(after[t], routes.block, sizeof after[t]);
    }
    assert_true(moec_route_state_block(&routes, 0) != NULL);
    for (uint32_t n = N_TOK; n-- > 1;) {
        moec_route_state_copy(&copy, &routes);
        moec_route_state_truncate(&copy, 0, n);
        assert_memory_equal(copy.block, after[n - 1], sizeof after[0]);
    }
    seen = copy.block; /* a new block knows nothing */
    moec_route_state_copy(&copy, &routes);
    moec_route_state_truncate(&copy, 0, 2 * BLOCK);
    (void)moec_route_state_block(&copy, 0);
    for (uint32_t e = 0; e < N_EXPERT; e++)
        assert_int_equal(seen[e], MOEC_BLOCK_NONE);
    moec_route_state_release(&routes);
    moec_route_state_release(&copy);
}

static void test_route__the_cache_may_begin_with_what_is_frequent(void **state)
{
    (void)state;
    enum { N_EXPERT = 5, TOP_K = 2, N_SLOTS = 3, N_LAYER = 2 };
    const struct moec_config config = {.n_expert = N_EXPERT, .top_k = TOP_K};
    static const struct moec_path_value frequency[N_LAYER][N_EXPERT] = {
        {{3, 9}, {0, 8}, {4, 7}, {1, 6}, {2, 5}}, {{2, 9}, {1, 8}, {0, 7}, {3, 6}, {4, 5}}};
    const struct moec_route route = {.n_slots = N_SLOTS, .initial = frequency[0]};
    const struct moec_route_taken taken = {.experts = (const uint32_t[]){1, 3},
                                           .weights = (const float[]){0.75f, 0.25f},
                                           .skips = (const bool[]){false, false}};
    struct moec_route_state routes;
    struct moec_error err = {0};
    assert_ok(moec_route_state_create(&config, &route, N_LAYER, 4, &routes, &err), err);
    for (uint32_t round = 0; round < 2; round++) {
        static const uint16_t first[] = {3, 0, 4, 2, 1, 0}, then[] = {1, 3, 0, 1, 3, 2};
        assert_memory_equal(routes.pools[0].recent, first, sizeof first);
        for (uint32_t layer = 0; layer < N_LAYER; layer++)
            moec_route_state_take(&routes, layer, 0, &taken);
        assert_memory_equal(routes.pools[0].recent, then, sizeof then);
        moec_route_state_truncate(&routes, 0, 0);
    }
    assert_int_equal(routes.counts.n_missed, 4); /* one in each layer, twice */
    moec_route_state_release(&routes);
    /* A sweep's state is of one layer, which it names. */
    assert_ok(moec_route_state_create(&config, &route, 1, 0, &routes, &err), err);
    routes.first_ordinal = 1;
    moec_route_state_reset(&routes, 0);
    assert_int_equal(routes.pools[0].recent[0], 2);
    moec_route_state_release(&routes);
}

static void test_route__refuses_precisions(void **state)
{
    (void)state;
    const struct moec_config config = {.n_expert = 12, .top_k = 4}, switched = {.n_expert = 12, .top_k = 1};
    static const char *const texts[] = {"hobbit:",
                                        "hobbit:2",
                                        "hobbit:0.6:0.5",
                                        "always:x",
                                        "hobbit:0.1:0.2:3.5",
                                        "hobbit:0.1:0.2:70000",
                                        "hobbit:0.1:0.2:x",
                                        "hobbit:0.1:0.2:",
                                        "always:0.1:0.2:3",
                                        "shared:0.1:0.2:3",
                                        "low",
                                        "hobbit0.5"};
    struct moec_route route = {.n_slots = 6, .n_low_slots = 4};
    struct moec_error err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++, err = (struct moec_error){0})
        assert_status(moec_precision_read(texts[i], &route.precision, &err), MOEC_ERR_USAGE, err);
    assert_ok(moec_precision_read("hobbit:0.1:0.2:0", &route.precision, &err), err);
    assert_true(route.precision.block_tokens == 0 && route.precision.names_block);
    assert_ok(moec_precision_read("hobbit", &route.precision, &err), err);
    assert_true(route.precision.high_score == 0.6f && route.precision.low_score == 0.9f);
    assert_true(route.precision.block_tokens == MOEC_PRECISION_BLOCK && !route.precision.names_block);
    /* Two thirds of the experts have scores up to 0.41, all but a fiftieth up to 0.8. */
    float scores[MOEC_SCORE_COUNT];
    const struct moec_path_table paths = {.n_layer = 0, .n_expert = 12, .scores = scores};
    for (uint32_t i = 0; i < MOEC_SCORE_COUNT; i++)
        scores[i] = i < 41 ? 0.5f : i < 80 ? 0.67f : i < MOEC_SCORE_STEPS ? 0.98f : 1;
    moec_route_know_calibration(&route, &config, &paths);
    assert_true(route.precision.high_score == 0.41f && route.precision.low_score == 0.8f);
    assert_ok(moec_precision_read("hobbit:0.6", &route.precision, &err), err);
    moec_route_know_calibration(&route, &config, &paths);
    assert_true(route.precision.high_score == 0.6f && route.precision.low_score == 0.9f);
    assert_ok(moec_precision_read("always:0.95", &route.precision, &err), err);
    assert_true(route.precision.kind == MOEC_PRECISION_ALWAYS && route.precision.low_score == 0.95f);
    assert_ok(moec_route_check(&route, &config, &err), err);
    route.n_slots = 1;
    assert_status(moec_route_check(&route, &switched, &err), MOEC_ERR_USAGE, err);
    assert_non_null(strstr(err.message, "changes nothing"));
    err = (struct moec_error){0};
    route.n_slots = 0;
    assert_status(moec_route_check(&route, &config, &err), MOEC_ERR_USAGE, err);
    err = (struct moec_error){0};
    route.n_slots = 6;
    route.n_low_slots = 3;
    assert_status(moec_route_check(&route, &config, &err), MOEC_ERR_USAGE, err);
}

/* The widths of "fate", and models that it changes nothing in. */
static void test_route__refuses_widths(void **state)
{
    (void)state;
    static const char *const texts[] = {"fate:",   "fate:0",    "fate:-1",     "fate:2.5", "fate:8:1",
                                        "fate:0%", "fate:101%", "fate:100000", "fate:nan", "fates"};
    struct fixture fixture = fixture_open("qwen2_moe");
    const struct moec_config *config = &fixture.model->config;
    struct moec_config one = *config;
    struct moec_route route = {.n_slots = config->top_k, .n_low_slots = config->top_k};
    struct moec_error err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++, err = (struct moec_error){0})
        assert_status(moec_precision_read(texts[i], &route.precision, &err), MOEC_ERR_USAGE, err);
    assert_ok(moec_precision_read("fate", &route.precision, &err), err);
    /* The paper's quarter, or the experts of a token. */
    const uint32_t quarter = (config->n_expert + 3) / 4;
    assert_int_equal(moec_precision_width(&route.precision, config),
                     quarter > config->top_k ? quarter : config->top_k);
    assert_ok(moec_route_check(&route, config, &err), err);
    assert_ok(moec_precision_read("fate:50%", &route.precision, &err), err);
    assert_int_equal(moec_precision_width(&route.precision, config), config->n_expert / 2);
    assert_ok(moec_precision_read("fate:0.1%", &route.precision, &err), err);
    assert_int_equal(moec_precision_width(&route.precision, config), 1);
    route.precision.width = config->n_expert;
    assert_status(moec_route_check(&route, config, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "changes nothing");
    route.precision.width = 2;
    one.n_layer = 1; /* with experts: before it is none */
    err = (struct moec_error){0};
    assert_status(moec_route_check(&route, &one, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "predicts");
    fixture_close(&fixture);
}

/* Low is what neither the cache nor the layer before has. */
static void test_route__precision_of_what_is_not_hinted(void **state)
{
    (void)state;
    const struct moec_precision fate = {.kind = MOEC_PRECISION_FATE, .width = 2};
    const struct held held = {{held_has}, (const bool[6]){false, true, false, false, true, false}};
    bool skips[4] = {false, false, true, false}, is_low[4];
    moec_precision_decide(&fate,
                          &(struct moec_token_experts){4, (const uint32_t[]){4, 2, 3, 1},
                                                       (const float[]){1, 4, 2, 3}, skips, is_low},
                          &held.residents, 3, NULL, 0);
    assert_true(!is_low[0] && is_low[1] && !is_low[2] && !is_low[3]);
    assert_true(!skips[0] && !skips[1] && skips[2] && !skips[3]);
}

/* ---- prompts ---- */

static void test_route__refuses_prefills(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",          "popularx",       "unpopular:",        "unpopular:1.1",
        "whole:-1",  "unpopular:nan",  "unpopular:0.5:0",   "unpopular:0.5:1.5",
        "whole:0:8", "unpopular:0.5x", "unpopular:0.5:8:8", "popular:0:8",
        "popular:2"};
    const struct moec_config config = {.n_expert = 12, .top_k = 4};
    struct moec_route route = {.n_slots = 6, .n_low_slots = 4};
    struct moec_error err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        err = (struct moec_error){0};
        assert_status(moec_prefill_read(texts[i], &route.prefill, &err), MOEC_ERR_USAGE, err);
    }
    err = (struct moec_error){0};
    assert_ok(moec_prefill_read("whole:0.5", &route.prefill, &err), err);
    assert_int_equal(route.prefill.block_tokens, UINT32_MAX);
    assert_true(moec_prefill_looks_ahead(&route.prefill));
    assert_ok(moec_prefill_read("popular:0.5", &route.prefill, &err), err);
    assert_true(route.prefill.kind == MOEC_PREFILL_POPULAR && moec_prefill_looks_ahead(&route.prefill));
    assert_string_equal(moec_prefill_name(&route.prefill), "popular");
    assert_ok(moec_prefill_read("unpopular", &route.prefill, &err), err);
    assert_false(moec_prefill_looks_ahead(&route.prefill));
    assert_true(route.prefill.share == 0.25f && route.prefill.block_tokens == 512);
    assert_ok(moec_route_check(&route, &config, &err), err);
    route.decode_only = true;
    assert_status(moec_route_check(&route, &config, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "applies to prompts");
    err = (struct moec_error){0};
    route.decode_only = false;
    route.n_low_slots = 3;
    assert_status(moec_route_check(&route, &config, &err), MOEC_ERR_USAGE, err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route__chooses_as_the_paper_says),
        cmocka_unit_test(test_route__reads_ranges),
        cmocka_unit_test(test_route__refuses_settings),
        cmocka_unit_test(test_route__skips_misses_of_little_weight),
        cmocka_unit_test(test_route__the_cache_is_lru_within_a_sequence),
        cmocka_unit_test(test_route__precision_goes_by_the_weight_before),
        cmocka_unit_test(test_route__low_copies_have_a_cache_of_their_own),
        cmocka_unit_test(test_route__a_block_keeps_the_first_copy),
        cmocka_unit_test(test_route__the_cache_may_begin_with_what_is_frequent),
        cmocka_unit_test(test_route__refuses_precisions),
        cmocka_unit_test(test_route__refuses_widths),
        cmocka_unit_test(test_route__precision_of_what_is_not_hinted),
        cmocka_unit_test(test_route__refuses_prefills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
