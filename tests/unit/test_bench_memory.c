/* Which rows of a bench run at once, and how large its matrices are, for the memory that there is. */
#include "tests/unit/temporary.h"

#include "profiler/bench/bench_memory.h"
#include "profiler/bench/kernel_bench.h"

static void test_bench_memory__rows_run_in_groups(void **state)
{
    (void)state;
    struct moec_bench_row rows[5] = {0};
    struct moec_bench bench = {.rows = rows, .n_row = 5};
    static const uint64_t row_bytes[] = {40, 50, 30, 200, 60};
    moec_bench_make_groups(&bench, row_bytes, 0);
    assert_int_equal(bench.n_group, 1);
    moec_bench_make_groups(&bench, row_bytes, 380);
    assert_int_equal(bench.n_group, 1);
    moec_bench_make_groups(&bench, row_bytes, 100);
    static const uint32_t expected[] = {0, 0, 1, 1, 1};
    assert_int_equal(bench.n_group, 2);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(rows[r].group, expected[r]);
        assert_int_equal(rows[r].error.status, r == 3 ? MOEC_ERR_LIMIT : MOEC_OK);
    }
}

#define MIB ((uint64_t)1 << 20)

static void test_bench_memory__matrices_of_kernels(void **state)
{
    (void)state;
    struct moec_error err = {0};
    uint64_t n_bytes = 0;
    static const struct {
        uint64_t cache, available, matrix;
    } sizes[] = {
        {0, 0, 128},           {32, 0, 128},          {32, 8000, 128},   {33, 8000, 132},
        {480, 0, 4 * 480},     {480, 2560, 4 * 480},  {480, 2000, 1500}, {480, 172, 129},
        {1 << 20, 0, 4 << 20}, {1 << 20, 8000, 6000}, {0, 4 << 20, 128},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(
            moec_kernel_bench_size(sizes[i].cache * MIB, sizes[i].available * MIB, &n_bytes, &err), MOEC_OK);
        assert_true(n_bytes == sizes[i].matrix * MIB);
    }
    assert_int_equal(moec_kernel_bench_size(480 * MIB, 170 * MIB, &n_bytes, &err), MOEC_ERR_LIMIT);
    assert_non_null(strstr(err.message, "has only 170 MiB free"));
    assert_int_equal(moec_kernel_bench_size(0, 1, &n_bytes, &err), MOEC_ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bench_memory__rows_run_in_groups),
        cmocka_unit_test(test_bench_memory__matrices_of_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
