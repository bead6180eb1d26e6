/* Whether the storage of a run is the one that its bundle was fitted for. */
#include "tests/unit/temporary.h"

#include "cli/output/run_stats.h"

/* 100 reads of a million bytes in all take 10 ms at 100 MB/s, and another 20 ms if each waits 200 us for itself. */
static int differs(uint64_t busy_ns)
{
    const struct moert_info info = {
        .storage = {.fitted_bytes_per_second = 100000000, .fitted_latency_ns = 200000}};
    const struct moert_stats stats = {.n_reads = 100, .read_bytes = 1000000, .busy_ns = busy_ns};
    return run_stats_storage_differs(&info, &stats);
}

static void test_run_stats__tells_what_cannot_be_the_fitted_storage(void **state)
{
    (void)state;
    assert_int_equal(differs(4999999), -1);
    assert_int_equal(differs(5000000), 0);
    assert_int_equal(differs(10000000), 0);
    assert_int_equal(differs(60000000), 0);
    assert_int_equal(differs(60000001), 1);
}

static void test_run_stats__says_nothing_of_others(void **state)
{
    (void)state;
    const struct moert_info fitted = {.storage.fitted_bytes_per_second = 100000000}, other = {0};
    const struct moert_stats few = {.n_reads = 31, .read_bytes = 1000000, .busy_ns = 1000000000};
    const struct moert_stats many = {.n_reads = 32, .read_bytes = 1000000, .busy_ns = 1000000000};
    assert_int_equal(run_stats_storage_differs(&fitted, &few), 0);
    assert_int_equal(run_stats_storage_differs(&fitted, &many), 1);
    assert_int_equal(run_stats_storage_differs(&other, &many), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_stats__tells_what_cannot_be_the_fitted_storage),
        cmocka_unit_test(test_run_stats__says_nothing_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
