/* Which experts of a prompt are low by how many of its tokens take them. */
#include "tests/unit/temporary.h"

#include "runtime/policy/decide/route_state.h"

/* By calibration and by the blocks before, ties to the higher index; high copies that are there stay, and a
 * block reads each copy once. */
static void test_popularity__unpopular_experts_are_those_of_the_blocks_before(void **state)
{
    (void)state;
    enum { N_EXPERT = 6, TOP_K = 2, N_TOKENS = 4 };
    const struct moec_config config = {.n_expert = N_EXPERT, .top_k = TOP_K};
    static const struct moec_path_value frequency[N_EXPERT] = {{3, 40000}, {0, 30000}, {5, 30000},
                                                               {1, 20000}, {2, 500},   {4, 500}};
    struct moec_route route = {
        .n_slots = 2,
        .n_low_slots = 2,
        .prefill = {
            .kind = MOEC_PREFILL_UNPOPULAR, .share = 0.5f, .block_tokens = N_TOKENS, .frequency = frequency}};
    struct moec_route_state routes, copy;
    struct moec_error err = {0};
    assert_ok(moec_route_state_create(&config, &route, 1, 16, &routes, &err), err);
    assert_ok(moec_route_state_create(&config, &route, 1, 16, &copy, &err), err);
    moec_route_state_begin_prompt(&routes, 0);
    static const bool first[N_EXPERT] = {false, true, true, false, true, false};
    assert_memory_equal(routes.popularity.is_low, first, sizeof first);
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        const struct moec_route_taken taken = {.experts = (const uint32_t[]){4, t < 2 ? 1 : 3},
                                               .weights = (const float[]){0.75f, 0.25f},
                                               .skips = (const bool[]){false, false},
                                               .is_low = (const bool[]){true, t < 2},
                                               .is_of_block = true};
        moec_route_state_begin_prompt(&routes, 0); /* within a block it changes nothing */
        assert_memory_equal(routes.popularity.is_low, first, sizeof first);
        moec_route_state_take(&routes, 0, 0, &taken);
    }
    assert_true(routes.counts.n_missed == 3 && routes.counts.n_low_missed == 2 && routes.counts.n_low == 6);
    /* Of 4 tokens 4 took expert 4, 2 each 1 and 3; the others have calibration's share alone. 3 is there. */
    moec_route_state_begin_prompt(&routes, 0);
    static const bool second[N_EXPERT] = {true, false, true, false, false, true};
    assert_memory_equal(routes.popularity.is_low, second, sizeof second);
    moec_route_state_copy(&copy, &routes);
    moec_route_state_truncate(&copy, 0, 3);
    assert_memory_equal(copy.popularity.is_low, first, sizeof first);
    moec_route_state_truncate(&copy, 0, 0);
    assert_memory_equal(copy.popularity.counts,
                        ((const uint64_t[]){120000, 80000, 2000, 160000, 2000, 120000}),
                        sizeof(uint64_t) * N_EXPERT);
    moec_route_state_release(&copy);
    moec_route_state_release(&routes);
    /* Without calibration nothing is known of the first block. */
    route.prefill.frequency = NULL;
    assert_ok(moec_route_state_create(&config, &route, 1, 0, &routes, &err), err);
    moec_route_state_begin_prompt(&routes, 0);
    for (uint32_t e = 0; e < N_EXPERT; e++)
        assert_false(routes.popularity.is_low[e]);
    moec_route_state_release(&routes);
}

/* Popular experts are those that are not among the least popular, whatever their counts and ties. */
static void test_popularity__popular_experts_are_the_others(void **state)
{
    (void)state;
    enum { N_EXPERT = 8 };
    static const bool none[N_EXPERT] = {false};
    uint64_t random = 19;
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t n_low = 1 + random_u32(&random) % N_EXPERT;
        struct moec_prefill settings = {.kind = MOEC_PREFILL_POPULAR,
                                        .share = (float)n_low / (float)N_EXPERT,
                                        .block_tokens = UINT32_MAX};
        struct moec_popularity popular, least;
        struct moec_error err = {0};
        assert_ok(moec_popularity_create(&settings, 1, N_EXPERT, &popular, &err), err);
        settings.kind = MOEC_PREFILL_WHOLE;
        settings.share = (float)(N_EXPERT - n_low) / (float)N_EXPERT;
        assert_ok(moec_popularity_create(&settings, 1, N_EXPERT, &least, &err), err);
        for (uint32_t t = 0; t < 1 + i % 9; t++) {
            const uint32_t expert = random_u32(&random) % N_EXPERT;
            moec_popularity_add(&popular, 0, expert);
            moec_popularity_add(&least, 0, expert);
        }
        moec_popularity_begin(&popular, 0, none, none);
        moec_popularity_begin(&least, 0, none, none);
        for (uint32_t e = 0; e < N_EXPERT; e++)
            assert_true(popular.is_low[e] != least.is_low[e]);
        moec_popularity_release(&popular);
        moec_popularity_release(&least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_popularity__unpopular_experts_are_those_of_the_blocks_before),
        cmocka_unit_test(test_popularity__popular_experts_are_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
