/* Replays of logical caches: Belady's misses against every possible schedule, stays against the cache itself.
 */
#include "tests/unit/temporary.h"

#include "profiler/evaluate/cache_replay.h"

#include <math.h>
#include <string.h>

enum { N_EXPERT = 7, TOP_K = 2, N_TOKEN = 14, N_MASK = 1 << N_EXPERT, MANY = 1000 };

static uint32_t draw(uint32_t *seed, uint32_t n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 12) % n;
}

/* Two experts a token, sometimes one, some in their low copies. */
static void draw_tokens(uint32_t *seed, uint16_t *touched)
{
    for (uint32_t t = 0; t < N_TOKEN; t++) {
        uint16_t *token = touched + (size_t)t * TOP_K;
        token[0] = (uint16_t)draw(seed, N_EXPERT);
        token[1] = (uint16_t)((token[0] + 1 + draw(seed, N_EXPERT - 1)) % N_EXPERT);
        if (draw(seed, 8) == 0)
            token[1] = MOEC_ROUTE_NO_EXPERT;
        else if (draw(seed, 8) == 0)
            token[draw(seed, 2)] |= MOEC_ROUTE_LOW;
    }
}

static uint32_t mask_of(const uint16_t *token)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < TOP_K && token[i] != MOEC_ROUTE_NO_EXPERT; i++)
        mask |= token[i] < MOEC_ROUTE_LOW ? 1u << token[i] : 0;
    return mask;
}

/* The fewest misses of any schedule: after each token any contents of at most n_slots experts that hold all
 * of the token's, and nothing that was neither there nor read. */
static uint32_t fewest_misses(const uint16_t *touched, uint32_t n_slots, uint32_t start)
{
    uint32_t best[N_MASK], next[N_MASK], fewest = MANY;
    for (uint32_t m = 0; m < N_MASK; m++)
        best[m] = m == start ? 0 : MANY;
    for (uint32_t t = 0; t < N_TOKEN; t++) {
        const uint32_t needed = mask_of(touched + (size_t)t * TOP_K);
        for (uint32_t m = 0; m < N_MASK; m++)
            next[m] = MANY;
        for (uint32_t m = 0; m < N_MASK; m++) {
            const uint32_t cost = best[m] + (uint32_t)__builtin_popcount(needed & ~m), all = m | needed;
            for (uint32_t after = all; best[m] < MANY && after != 0; after = (after - 1) & all)
                if ((after & needed) == needed && (uint32_t)__builtin_popcount(after) <= n_slots &&
                    cost < next[after])
                    next[after] = cost;
            if (best[m] < MANY && all == 0)
                next[0] = cost;
        }
        memcpy(best, next, sizeof best);
    }
    for (uint32_t m = 0; m < N_MASK; m++)
        fewest = best[m] < fewest ? best[m] : fewest;
    return fewest;
}

static void test_cache_replay__no_schedule_misses_less_than_belady(void **state)
{
    (void)state;
    static const struct moec_path_value initial[] = {{5, 9}, {0, 8}, {3, 7}, {1, 6}, {2, 5}};
    uint32_t seed = 11;
    for (uint32_t round = 0; round < 60; round++) {
        const uint32_t n_slots = TOP_K + round % 4;
        const bool is_filled = round % 3 == 0;
        struct moec_error err = {0};
        struct moec_cache_replay *replay = NULL;
        uint16_t touched[N_TOKEN * TOP_K];
        uint32_t start = 0;
        for (uint32_t i = 0; is_filled && i < n_slots; i++)
            start |= 1u << initial[i].expert;
        draw_tokens(&seed, touched);
        assert_ok(moec_cache_replay_create(N_EXPERT, TOP_K, n_slots, N_TOKEN, &replay, &err), err);
        moec_cache_replay_run(replay, touched, N_TOKEN, is_filled ? initial : NULL);
        assert_int_equal(replay->counts.n_belady_missed, fewest_misses(touched, n_slots, start));
        moec_cache_replay_free(replay);
    }
}

/* The logical cache of the runtime takes the same tokens; who is there is looked up after each of them. */
static void test_cache_replay__stays_are_those_of_the_cache(void **state)
{
    (void)state;
    enum { N_SLOTS = 3 };
    const struct moec_config config = {.n_expert = N_EXPERT, .top_k = TOP_K};
    const struct moec_route route = {.n_slots = N_SLOTS};
    uint32_t seed = 5;
    struct moec_error err = {0};
    struct moec_cache_replay *replay = NULL;
    double n_stay = 0, tokens = 0, squares = 0, deviation = 0;
    assert_ok(moec_cache_replay_create(N_EXPERT, TOP_K, N_SLOTS, N_TOKEN, &replay, &err), err);
    for (uint32_t round = 0; round < 20; round++) {
        struct moec_route_state routes;
        uint16_t touched[N_TOKEN * TOP_K];
        float ranges[N_TOKEN];
        uint32_t since[N_EXPERT];
        bool was_there[N_EXPERT] = {false};
        assert_ok(moec_route_state_create(&config, &route, 1, 0, &routes, &err), err);
        moec_route_state_lend(&routes, touched, ranges, N_TOKEN);
        for (uint32_t t = 0; t <= N_TOKEN; t++) {
            const uint32_t first = draw(&seed, N_EXPERT);
            const uint32_t experts[TOP_K] = {first, (first + 1 + draw(&seed, N_EXPERT - 1)) % N_EXPERT};
            const float weights[TOP_K] = {0.5f, 0.25f};
            const bool skips[TOP_K] = {false, t % 5 == 0};
            const struct moec_route_taken taken = {.experts = experts, .weights = weights, .skips = skips};
            if (t < N_TOKEN)
                moec_route_state_take(&routes, 0, 1, &taken);
            for (uint32_t e = 0; e < N_EXPERT; e++) {
                const bool is_there = t < N_TOKEN && moec_route_state_has(&routes, 0, e, false);
                if (is_there && !was_there[e])
                    since[e] = t;
                if (!is_there && was_there[e]) {
                    n_stay++;
                    tokens += t - since[e];
                    squares += (double)(t - since[e]) * (t - since[e]);
                }
                was_there[e] = is_there;
            }
        }
        moec_cache_replay_run(replay, touched, N_TOKEN, NULL);
        moec_route_state_release(&routes);
    }
    assert_true(n_stay > 40);
    assert_true(replay->counts.n_stay == (uint64_t)n_stay);
    assert_true(fabs(moec_cache_replay_stay(&replay->counts, &deviation) - tokens / n_stay) < 1e-9);
    assert_true(fabs(deviation - sqrt(squares / n_stay - tokens * tokens / n_stay / n_stay)) < 1e-9);
    moec_cache_replay_free(replay);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache_replay__no_schedule_misses_less_than_belady),
        cmocka_unit_test(test_cache_replay__stays_are_those_of_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
