/* OpenMP under parallel regions keeps what the runtime's own team promises. */
#include "profiler/common/openmp.h"
#include "tests/unit/counted_items.h"

struct nested {
    struct moec_pool pool;
    struct count *count;
};

static void run_nested(void *context, size_t item, int thread)
{
    struct nested *nested = context;
    (void)item;
    (void)thread;
    for (int i = 0; i < 50; i++)
        moec_parallel_for(&nested->pool, 1, count_item, nested->count);
}

/* The promises of a team; a region inside another runs on the thread that asks for it, and a forked child, in
 * which OpenMP would hang, has a team. */
static void test_openmp__runs_what_is_not_brief(void **state)
{
    (void)state;
#if !MOEC_HAS_TSAN
    extern void omp_set_num_threads(int n_threads); /* as OMP_NUM_THREADS does */
    moec_openmp_use(false);
    omp_set_num_threads(200);
    assert_int_equal(moec_pool_make(0).n_threads, moec_cpu_count());
    omp_set_num_threads(1);
    assert_int_equal(moec_pool_make(0).n_threads, 1);
#endif
    moec_openmp_use(true);
#if !MOEC_HAS_TSAN
    omp_set_num_threads(3);
    assert_int_equal(moec_pool_make(0).n_threads, 3);
#endif
    check_sizes(false);
    check_sizes(true);
    const struct moec_pool pool = moec_pool_make(4);
    atomic_uint threads = 0;
    moec_parallel_for(&pool, 200, note_thread, &threads);
    assert_int_equal(atomic_load(&threads), 15);
    struct count *count = calloc(1, sizeof *count);
    assert_non_null(count);
    count->n_threads = 1;
    struct nested nested = {.pool = pool, .count = count};
    moec_parallel_for(&pool, 8, run_nested, &nested);
    assert_int_equal(atomic_load(&count->runs[0]), 400);
    free(count);
#if !MOEC_HAS_TSAN
    fork_and_run();
#endif
    moec_parallel_for(&pool, 200, note_thread, &threads);
    moec_parallel_use(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_openmp__runs_what_is_not_brief)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
