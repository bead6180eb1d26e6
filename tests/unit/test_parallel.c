/* Every item runs once, thread numbers are exclusive, and a blocked product has the same bits however many
 * threads share it. */
#include "tests/unit/counted_items.h"
#include "tests/unit/kernel_sets.h"

#include <pthread.h>

static void test_parallel__every_item_runs_once(void **state)
{
    (void)state;
    check_sizes(false);
}

/* The team is awake, asleep, or on its way to sleep. */
static void test_parallel__every_item_of_brief_work_runs_once(void **state)
{
    (void)state;
    for (unsigned pause_us = 0; pause_us <= 2000; pause_us = pause_us * 3 + 50) {
        (void)usleep(pause_us);
        check_sizes(true);
    }
}

struct sum {
    size_t item[8];
    atomic_int slow;
};

/* Now and then one takes longer than anybody watches for it. */
static void note_item(void *context, size_t item, int thread)
{
    struct sum *sum = context;
    sum->item[item]++;
    if (thread > 0 && atomic_fetch_add(&sum->slow, 1) % 64 == 0)
        (void)usleep(300);
}

/* Regions follow each other as while decoding, and with pauses in which the team falls asleep. */
static void test_parallel__many_regions_lose_nothing(void **state)
{
    (void)state;
    struct moec_pool pool = moec_pool_make(3);
    struct sum sum = {.slow = 0};
    for (size_t round = 1; round <= 3000; round++) {
        moec_parallel_for_brief(&pool, 8, note_item, &sum);
        for (size_t i = 0; i < 8; i++)
            assert_int_equal(sum.item[i], round);
        if (round % 250 == 0)
            (void)usleep(500);
    }
}

struct turn {
    atomic_size_t n_done;
    uint32_t n_steps;
};

static void take_turn(void *context, size_t item, int thread)
{
    struct turn *turn = context;
    (void)item;
    (void)thread;
    for (volatile uint32_t step = 0; step < turn->n_steps; step = step + 1)
        continue;
    atomic_fetch_add(&turn->n_done, 1);
}

/* The caller comes back from a region just as the team comes or goes, in whatever order: its last item is
 * done, and nobody waits for what has happened already. */
static void test_parallel__short_regions_end_with_their_last_item(void **state)
{
    (void)state;
    const struct moec_pool pool = moec_pool_make(2);
    uint32_t seed = 1;
    for (int round = 0; round < 300000; round++) {
        struct turn turn = {.n_done = 0};
        seed = seed * 1664525u + 1013904223u;
        turn.n_steps = (seed >> 16) % 400;
        const size_t n_items = 2 + (seed >> 8) % 3;
        if ((seed >> 28 & 1) != 0)
            moec_parallel_for(&pool, n_items, take_turn, &turn);
        else
            moec_parallel_for_brief(&pool, n_items, take_turn, &turn);
        assert_int_equal(atomic_load(&turn.n_done), n_items);
    }
}

static void test_parallel__pool_sizes_are_sane(void **state)
{
    (void)state;
    assert_true(moec_pool_make(0).n_threads >= 1);
    assert_true(moec_pool_make(-3).n_threads >= 1);
    assert_int_equal(moec_pool_make(3).n_threads, 3);
    assert_int_equal(moec_pool_make(100000).n_threads, MAX_THREADS);
}

/* What a body writes is seen after the call, without atomics. */
static void square(void *context, size_t item, int thread)
{
    (void)thread;
    ((size_t *)context)[item] = item * item;
}

static void test_parallel__results_are_visible_afterwards(void **state)
{
    (void)state;
    size_t *squares = calloc(MAX_ITEMS, sizeof *squares);
    assert_non_null(squares);
    struct moec_pool pool = moec_pool_make(4);
    for (int round = 0; round < 20; round++) {
        moec_parallel_for(&pool, MAX_ITEMS, square, squares);
        for (size_t i = 0; i < MAX_ITEMS; i++) {
            assert_int_equal(squares[i], i * i);
            squares[i] = 0;
        }
    }
    free(squares);
}

/* ---- forks ---- */

struct busy {
    atomic_bool is_over;
};

static void spend_time(void *context, size_t item, int thread)
{
    (void)context;
    (void)item;
    (void)thread;
    (void)usleep(300);
}

static void *keep_busy(void *context)
{
    const struct moec_pool pool = moec_pool_make(4);
    while (!atomic_load(&((struct busy *)context)->is_over))
        moec_parallel_for(&pool, 40, spend_time, NULL);
    return NULL;
}

/* The parent's threads stay in the parent, where they sleep or are at work: the child has a team of its own.
 */
static void test_parallel__children_have_a_team_of_their_own(void **state)
{
    (void)state;
#if MOEC_HAS_TSAN
    skip(); /* it ends children that start threads */
#endif
    const struct moec_pool pool = moec_pool_make(4);
    atomic_uint threads = 0;
    moec_parallel_for(&pool, 200, note_thread, &threads);
    fork_and_run();
    struct busy busy = {.is_over = false};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &busy), 0);
    for (int i = 0; i < 10; i++)
        fork_and_run();
    atomic_store(&busy.is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    atomic_store(&threads, 0);
    moec_parallel_for(&pool, 200, note_thread, &threads);
    assert_true(atomic_load(&threads) > 1); /* and the parent still has its own */
}

/* ---- a product shared by threads ---- */

enum { N_TOK = 37, N_ROWS = 203, K = 250, STRIDE = 256 };

struct product {
    const struct moec_kernels *kernels;
    const float *x, *w;
    float *y;
    uint32_t tokens_per_item, rows_per_item;
};

static void run_part(void *context, size_t item, int thread)
{
    const struct product *p = context;
    uint32_t row_parts = (N_ROWS + p->rows_per_item - 1) / p->rows_per_item;
    uint32_t t = (uint32_t)item / row_parts * p->tokens_per_item,
             r = (uint32_t)item % row_parts * p->rows_per_item;
    uint32_t n_tok = N_TOK - t < p->tokens_per_item ? N_TOK - t : p->tokens_per_item;
    uint32_t n_rows = N_ROWS - r < p->rows_per_item ? N_ROWS - r : p->rows_per_item;
    (void)thread;
    p->kernels->dot(p->x + t * STRIDE, STRIDE, n_tok, p->w + r * STRIDE, STRIDE, n_rows, K,
                    p->y + t * N_ROWS + r, N_ROWS);
}

static float *random_rows(uint32_t n_rows)
{
    float *rows = calloc((size_t)n_rows * STRIDE, sizeof *rows);
    uint32_t seed = n_rows;
    assert_non_null(rows);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < K; i++) {
            seed = seed * 1664525u + 1013904223u;
            rows[r * STRIDE + i] = (float)(int32_t)seed * 0x1p-31f;
        }
    return rows;
}

/* Prefill in any chunking and step by step, at 1, 2 and 5 threads, on every instruction set. */
static void test_parallel__products_have_same_bits_in_any_cut_at_any_thread_count(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 5};
    static const uint32_t cuts[][2] = {{N_TOK, N_ROWS}, {1, N_ROWS}, {1, 1}, {5, 16}, {7, 33}, {N_TOK, 3}};
    float *x = random_rows(N_TOK), *w = random_rows(N_ROWS);
    float *want = calloc(N_TOK * N_ROWS, sizeof *want), *got = calloc(N_TOK * N_ROWS, sizeof *got);
    assert_non_null(want);
    assert_non_null(got);
    moec_kernels_scalar.dot(x, STRIDE, N_TOK, w, STRIDE, N_ROWS, K, want, N_ROWS);
    for (size_t s = 0; s <= n_kernel_sets(); s++) {
        struct product product = {.x = x, .w = w, .y = got};
        product.kernels = s < n_kernel_sets() ? kernel_set(s) : &moec_kernels_scalar;
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            product.tokens_per_item = cuts[c][0];
            product.rows_per_item = cuts[c][1];
            size_t token_parts = (N_TOK + cuts[c][0] - 1) / cuts[c][0];
            size_t row_parts = (N_ROWS + cuts[c][1] - 1) / cuts[c][1];
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
                struct moec_pool pool = moec_pool_make(threads[t]);
                memset(got, 0xff, N_TOK * N_ROWS * sizeof *got);
                moec_parallel_for(&pool, token_parts * row_parts, run_part, &product);
                assert_memory_equal(got, want, N_TOK * N_ROWS * sizeof *got);
            }
        }
    }
    free(x);
    free(w);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallel__every_item_runs_once),
        cmocka_unit_test(test_parallel__every_item_of_brief_work_runs_once),
        cmocka_unit_test(test_parallel__many_regions_lose_nothing),
        cmocka_unit_test(test_parallel__short_regions_end_with_their_last_item),
        cmocka_unit_test(test_parallel__pool_sizes_are_sane),
        cmocka_unit_test(test_parallel__results_are_visible_afterwards),
        cmocka_unit_test(test_parallel__children_have_a_team_of_their_own),
        cmocka_unit_test(test_parallel__products_have_same_bits_in_any_cut_at_any_thread_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
