/* The rules of reading, one by one (runtime/policy/schedule/read_order.h). */
#include "tests/unit/status.h"

#include "runtime/policy/schedule/read_order.h"

static const struct moec_read_rules plain = {0}, in_turn = {.begins_in_turn = true},
                                    counted = {.preload_count = 3, .begins_in_turn = true},
                                    on = {.begins_in_turn = true, .reads_on = true};

static void test_read_order__demanded_reads_go_first(void **state)
{
    (void)state;
    const struct moec_read_moment moment = {
        .n_demanded = 1, .n_warming = 5, .has_prefetch = true, .is_idle = true, .is_hurried = true};
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_DEMANDED);
}

static void test_read_order__guesses_stand_behind(void **state)
{
    (void)state;
    struct moec_read_moment moment = {.n_flying = 4, .has_prefetch = true};
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_PREFETCH);
    moment.n_prefetch_flying = 1;
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_NOTHING);
    assert_int_equal(moec_read_next(&in_turn, &moment), MOEC_READ_PREFETCH); /* which can be taken back */
    assert_int_equal(moec_read_next(&counted, &moment), MOEC_READ_NOTHING);
    moment.n_prefetch_flying = 2;
    assert_int_equal(moec_read_next(&in_turn, &moment), MOEC_READ_NOTHING);
    assert_int_equal(moec_read_next(&on, &moment),
                     MOEC_READ_PREFETCH); /* of a prompt, nearly all are right */
    moment.n_prefetch_flying = MOEC_READ_ON;
    assert_int_equal(moec_read_next(&on, &moment), MOEC_READ_NOTHING);
    assert_true(moec_read_takes_prefetches_back(&plain) && moec_read_takes_prefetches_back(&in_turn));
    assert_true(moec_read_takes_prefetches_back(&on));
    assert_false(moec_read_takes_prefetches_back(&counted));
}

static void test_read_order__the_warm_start_fills_pauses(void **state)
{
    (void)state;
    struct moec_read_moment moment = {.n_warming = 5, .is_idle = true};
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_WARMING);
    moment.n_flying = 1;
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_NOTHING);
    moment.is_hurried = true; /* many at once, and before guesses */
    moment.has_prefetch = true;
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_WARMING);
    moment.is_hurried = false;
    moment.n_flying = 0;
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_PREFETCH);
    moment.is_idle = moment.has_prefetch = false;
    assert_int_equal(moec_read_next(&plain, &moment), MOEC_READ_NOTHING);
}

static void test_read_order__what_is_there_is_taken_first(void **state)
{
    (void)state;
    enum { N = 5 };
    static const bool was_present[N] = {false, true, true, false, true};
    static const bool is_ready[N] = {true, false, true, false, true}; /* the first came meanwhile */
    static const uint32_t loose[N] = {2, 4, 1, 0, 3}, tight[N] = {1, 2, 4, 0, 3};
    uint32_t order[N];
    moec_read_order(N, was_present, is_ready, false, NULL, order);
    assert_memory_equal(order, loose, sizeof order);
    moec_read_order(N, was_present, is_ready, true, NULL, order);
    assert_memory_equal(order, tight, sizeof order);
}

static void test_read_order__what_most_tokens_take_is_missed_first(void **state)
{
    (void)state;
    enum { N = 6 };
    static const bool was_present[N] = {false, true, false, false, true, false};
    static const bool is_ready[N] = {false, false, false, false, true, false};
    static const uint32_t n_takers[N] = {2, 9, 5, 2, 1, 7}, expected[N] = {4, 1, 5, 2, 0, 3};
    uint32_t order[N];
    moec_read_order(N, was_present, is_ready, false, n_takers, order);
    assert_memory_equal(order, expected, sizeof order);
}

static void test_read_order__times_tell_where_somebody_waited(void **state)
{
    (void)state;
    assert_true(moec_read_own_ns(100, 300, 0, 50) == 200);
    assert_true(moec_read_own_ns(100, 300, 180, 50) == 120); /* behind another */
    assert_true(moec_read_own_ns(100, 300, 0, 200) == 200);
    assert_true(moec_read_own_ns(100, 300, 0, 201) == 0); /* came when more than half of it had passed */
    assert_true(moec_read_own_ns(100, 300, 300, 50) == 0);
    assert_true(moec_read_own_ns(300, 100, 0, 50) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_order__demanded_reads_go_first),
        cmocka_unit_test(test_read_order__guesses_stand_behind),
        cmocka_unit_test(test_read_order__the_warm_start_fills_pauses),
        cmocka_unit_test(test_read_order__what_is_there_is_taken_first),
        cmocka_unit_test(test_read_order__what_most_tokens_take_is_missed_first),
        cmocka_unit_test(test_read_order__times_tell_where_somebody_waited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
