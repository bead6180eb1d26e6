/* Blocks of threads on the processor: all places of a grid, barriers, exchanges within masks, launches handed
 * to somebody else, and the end of a program that a GPU would hang or run astray. */
#include "runtime/cuda/blocks/blocks.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct output {
    uint32_t *values;
};

static uint32_t own_number(void)
{
    const struct moec_blocks_place *here = moec_blocks_here;
    const uint32_t block =
        (here->block.z * here->n_blocks.y + here->block.y) * here->n_blocks.x + here->block.x;
    return block * here->n_threads.x + here->thread.x;
}

static void run(struct moec_blocks_size grid, uint32_t n_threads, moec_blocks_body *body, uint32_t *values)
{
    const struct output output = {values};
    moec_blocks_launch(NULL, grid, n_threads, body, &output, sizeof output);
}

/* ---- grids ---- */

static void count_place(const void *arguments)
{
    ((const struct output *)arguments)->values[own_number()]++;
}

static void test_blocks__every_thread_of_a_grid_runs_once(void **state)
{
    (void)state;
    uint32_t values[3 * 4 * 5 * 7] = {0};
    run((struct moec_blocks_size){3, 4, 5}, 7, count_place, values);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_int_equal(values[i], 1);
    run((struct moec_blocks_size){3, 0, 5}, 7, count_place, values);
    assert_int_equal(values[0], 1);
}

/* ---- barriers ---- */

/* Each thread reads what its neighbour wrote before the barrier, three times; odd threads end after the
 * first. */
static void pass_on(const void *arguments)
{
    uint32_t *values = ((const struct output *)arguments)->values;
    const uint32_t own = moec_blocks_here->thread.x, n = moec_blocks_here->n_threads.x;
    for (uint32_t round = 0; round < 3; round++) {
        values[own] = 100 * round + own;
        moec_blocks_barrier();
        if (own % 2 == 1)
            return;
        const uint32_t other = values[(own + 2) % n];
        moec_blocks_barrier();
        values[n + own] += other;
    }
}

static void test_blocks__barriers_part_what_is_before_from_what_is_after(void **state)
{
    (void)state;
    uint32_t values[128] = {0};
    run((struct moec_blocks_size){1, 1, 1}, 64, pass_on, values);
    for (uint32_t i = 0; i < 64; i += 2)
        assert_int_equal(values[64 + i], 300 + 3 * ((i + 2) % 64));
}

/* ---- exchanges ---- */

/* Halves of a warp go their own ways, the second twice as often. */
static void exchange_halves(const void *arguments)
{
    uint32_t *values = ((const struct output *)arguments)->values;
    const uint32_t own = moec_blocks_here->thread.x, lane = own % MOEC_BLOCKS_WARP,
                   mask = 0xffffu << (lane & 16);
    uint32_t value = own;
    for (uint32_t i = 0; i < 1 + lane / 16; i++)
        value += 1000 * moec_blocks_exchange(mask, own, lane ^ 1);
    values[own] = value;
    values[64 + own] = moec_blocks_ballot(mask, own % 3 == 0);
}

static void test_blocks__lanes_of_a_mask_exchange_values(void **state)
{
    (void)state;
    uint32_t values[128];
    run((struct moec_blocks_size){1, 1, 1}, 64, exchange_halves, values);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(values[i], i + 1000 * (i ^ 1) * (1 + i % 32 / 16));
        uint32_t ballot = 0;
        for (uint32_t other = i / 16 * 16; other < i / 16 * 16 + 16; other++)
            ballot |= (uint32_t)(other % 3 == 0) << other % 32;
        assert_int_equal(values[64 + i], ballot);
    }
}

/* ---- work together ---- */

/* Lanes of a mask are given the sum of what they have. */
static void add_up(void *const own[MOEC_BLOCKS_WARP])
{
    uint32_t sum = 0;
    for (uint32_t lane = 0; lane < MOEC_BLOCKS_WARP; lane++)
        sum += own[lane] != NULL ? *(const uint32_t *)own[lane] : 0;
    for (uint32_t lane = 0; lane < MOEC_BLOCKS_WARP; lane++)
        if (own[lane] != NULL)
            *(uint32_t *)own[lane] = sum;
}

static void work_in_halves(const void *arguments)
{
    const uint32_t own = moec_blocks_here->thread.x, lane = own % MOEC_BLOCKS_WARP;
    uint32_t value = own;
    for (uint32_t i = 0; i < 1 + lane / 16; i++)
        moec_blocks_together(0xffffu << (lane & 16), add_up, &value);
    ((const struct output *)arguments)->values[own] = value;
}

static void test_blocks__lanes_of_a_mask_work_together(void **state)
{
    (void)state;
    uint32_t values[64];
    run((struct moec_blocks_size){1, 1, 1}, 64, work_in_halves, values);
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t sum = 16 * (i / 16 * 16) + 120;
        assert_int_equal(values[i], i / 16 % 2 == 0 ? sum : 16 * sum);
    }
}

/* ---- two operating system threads ---- */

static void *run_alone(void *context)
{
    for (int i = 0; i < 50; i++) {
        memset(context, 0, 128 * sizeof(uint32_t));
        run((struct moec_blocks_size){1, 1, 1}, 64, pass_on, context);
    }
    return NULL;
}

static void test_blocks__operating_system_threads_have_blocks_of_their_own(void **state)
{
    (void)state;
    uint32_t values[2][128];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_alone, values[i]), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        for (uint32_t at = 0; at < 64; at += 2)
            assert_int_equal(values[i][64 + at], 300 + 3 * ((at + 2) % 64));
    }
}

/* ---- launches handed to somebody else ---- */

static struct {
    void (*run)(void *arguments);
    _Alignas(max_align_t) uint8_t arguments[256];
    struct moec_gpu_stream *stream;
} kept;

static void keep(struct moec_gpu_stream *stream, void (*run_kept)(void *arguments), const void *arguments,
                 size_t n_bytes)
{
    assert_true(n_bytes <= sizeof kept.arguments);
    kept.run = run_kept;
    kept.stream = stream;
    memcpy(kept.arguments, arguments, n_bytes);
}

static void test_blocks__diverted_launches_run_when_they_are_called(void **state)
{
    (void)state;
    uint32_t values[6] = {0};
    struct moec_gpu_stream *stream = (struct moec_gpu_stream *)(void *)values;
    const struct output output = {values};
    moec_blocks_divert(keep);
    moec_blocks_launch(stream, (struct moec_blocks_size){2, 1, 1}, 3, count_place, &output, sizeof output);
    moec_blocks_divert(NULL);
    assert_ptr_equal(kept.stream, stream);
    assert_int_equal(values[5], 0);
    kept.run(kept.arguments);
    assert_int_equal(values[5], 1);
}

/* ---- what ends the program ---- */

static void leave_a_barrier_out(const void *arguments)
{
    (void)arguments;
    if (moec_blocks_here->thread.x == 3)
        (void)moec_blocks_exchange(0x18, 0, 4);
    else
        moec_blocks_barrier();
}

static void ask_outside_of_the_mask(const void *arguments)
{
    (void)arguments;
    (void)moec_blocks_exchange(0x3, 0, 2);
}

static void name_a_mask_without_oneself(const void *arguments)
{
    (void)arguments;
    (void)moec_blocks_exchange(0x2, 0, 1);
}

static void read_past_an_end(const void *arguments)
{
    (void)arguments;
    moec_blocks_refuse_index(5, 5);
}

/* Faults of kernels: tests/unit/blocks_faults.cu. */
void blocks_race(uint32_t value, uint32_t *out);
void blocks_overwrite(uint32_t value, uint32_t *out);
void blocks_index(uint32_t value, uint32_t *out);

/* Whether a process of its own ends well; it says nothing of its end. */
static bool ends_well(void (*start)(const void *context), const void *context)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        (void)signal(SIGABRT, SIG_DFL);
        (void)close(STDERR_FILENO);
        start(context);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct faulty_grid {
    moec_blocks_body *body;
    uint32_t n_threads;
};

static void start_grid(const void *context)
{
    const struct faulty_grid *grid = context;
    uint32_t values[128] = {0};
    run((struct moec_blocks_size){1, 1, 1}, grid->n_threads, grid->body, values);
}

static void test_blocks__what_a_gpu_leaves_undefined_ends_the_program(void **state)
{
    (void)state;
    static const struct faulty_grid faults[] = {{leave_a_barrier_out, 8},
                                                {ask_outside_of_the_mask, 2},
                                                {name_a_mask_without_oneself, 1},
                                                {read_past_an_end, 1},
                                                {count_place, 65}};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        assert_false(ends_well(start_grid, &faults[i]));
    assert_true(ends_well(start_grid, &(struct faulty_grid){count_place, 64}));
}

struct faulty_kernel {
    void (*launch)(uint32_t value, uint32_t *out);
    uint32_t value;
};

static void start_kernel(const void *context)
{
    const struct faulty_kernel *kernel = context;
    uint32_t out[64];
    kernel->launch(kernel->value, out);
}

static void test_blocks__races_and_wrong_indices_of_shared_memory_are_found(void **state)
{
    (void)state;
    assert_true(ends_well(start_kernel, &(struct faulty_kernel){blocks_race, 1}));
    assert_false(ends_well(start_kernel, &(struct faulty_kernel){blocks_race, 0}));
    assert_true(ends_well(start_kernel, &(struct faulty_kernel){blocks_overwrite, 1}));
    assert_false(ends_well(start_kernel, &(struct faulty_kernel){blocks_overwrite, 0}));
    assert_true(ends_well(start_kernel, &(struct faulty_kernel){blocks_index, 3}));
    assert_false(ends_well(start_kernel, &(struct faulty_kernel){blocks_index, 4}));
    uint32_t out[64] = {0};
    blocks_index(0, out);
    assert_int_equal(out[0], UINT32_MAX); /* NaN in a float's place */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks__every_thread_of_a_grid_runs_once),
        cmocka_unit_test(test_blocks__barriers_part_what_is_before_from_what_is_after),
        cmocka_unit_test(test_blocks__lanes_of_a_mask_exchange_values),
        cmocka_unit_test(test_blocks__lanes_of_a_mask_work_together),
        cmocka_unit_test(test_blocks__operating_system_threads_have_blocks_of_their_own),
        cmocka_unit_test(test_blocks__diverted_launches_run_when_they_are_called),
        cmocka_unit_test(test_blocks__what_a_gpu_leaves_undefined_ends_the_program),
        cmocka_unit_test(test_blocks__races_and_wrong_indices_of_shared_memory_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
