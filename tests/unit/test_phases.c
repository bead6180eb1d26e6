/* What phases of long work record, and what they are said to be bound by. */
#include "formats/base/clock.h"
#include "profiler/common/phases.h"
#include "profiler/common/product_peak.h"
#include "runtime/threads/parallel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void test_phases__rows_by_name(void **state)
{
    (void)state;
    struct moec_phases phases = {0};
    moec_phases_end(&phases);
    assert_int_equal(phases.n, 0);
    moec_phases_begin(&phases, "start");
    moec_work_count(MOEC_WORK_PRODUCTS, 7);
    moec_phases_begin(&phases, "start");
    moec_work_count(MOEC_WORK_PRODUCTS, 5);
    moec_phases_begin(&phases, "routing");
    moec_work_count(MOEC_WORK_PRODUCTS, 100);
    const uint64_t begun_ns = moec_work_begin(MOEC_WORK_DECODING);
    assert_true(begun_ns > 0);
    moec_work_end(MOEC_WORK_DECODING, begun_ns, 64);
    moec_work_count(MOEC_WORK_FITTING, 11);
    moec_phases_begin(&phases, "start");
    moec_work_count(MOEC_WORK_PRODUCTS, 30);
    moec_phases_end(&phases);
    moec_work_count(MOEC_WORK_PRODUCTS, 1000); /* of no phase */
    moec_phases_end(&phases);
    assert_int_equal(phases.n, 2);
    assert_string_equal(phases.items[0].name, "start");
    assert_true(phases.items[0].multiply_adds == 42 && phases.items[0].decoded_weights == 0);
    assert_true(phases.items[1].multiply_adds == 111 && phases.items[1].fit_multiply_adds == 11);
    assert_true(phases.items[1].decoded_weights == 64);
    const struct moec_phase sum = moec_phases_sum(&phases);
    assert_true(sum.multiply_adds == 153 && sum.fit_multiply_adds == 11 && sum.decoded_weights == 64 &&
                sum.seconds > 0);
}

static void test_phases__as_many_as_there_is_room_for(void **state)
{
    (void)state;
    struct moec_phases phases = {0};
    char name[8] = "phase a";
    for (int i = 0; i < MOEC_MAX_PHASES + 3; i++, name[6]++) {
        moec_phases_begin(&phases, name);
        moec_work_count(MOEC_WORK_PRODUCTS, 1);
    }
    moec_phases_end(&phases);
    assert_int_equal(phases.n, MOEC_MAX_PHASES);
    assert_true(phases.items[0].multiply_adds == 1);
    assert_true(phases.items[MOEC_MAX_PHASES - 1].multiply_adds == 4);
}

static void nothing(void *context, size_t item, int thread)
{
    (void)context;
    (void)item;
    (void)thread;
}

static void test_phases__regions(void **state)
{
    (void)state;
    const struct moec_pool two = moec_pool_make(2), one = moec_pool_make(1);
    moec_work_watch();
    const struct moec_work_tally before = moec_work_now();
    moec_parallel_for(&two, 8, nothing, NULL);
    moec_parallel_for_brief(&two, 8, nothing, NULL);
    moec_parallel_for(&two, 1, nothing, NULL); /* one item and one thread are no region of several */
    moec_parallel_for(&one, 8, nothing, NULL);
    const struct moec_work_tally after = moec_work_now();
    assert_int_equal(after.n[MOEC_WORK_TOGETHER] - before.n[MOEC_WORK_TOGETHER], 2);
    assert_true(after.ns[MOEC_WORK_TOGETHER] > before.ns[MOEC_WORK_TOGETHER]);
}

static void test_phases__work_within_work(void **state)
{
    (void)state;
    moec_work_watch();
    const struct moec_work_tally before = moec_work_now();
    const uint64_t start_ns = moec_now_ns(), outer_ns = moec_work_begin(MOEC_WORK_ENCODING);
    const uint64_t inner_ns = moec_work_begin(MOEC_WORK_READING);
    while (moec_now_ns() - start_ns < 3000000)
        continue;
    moec_work_end(MOEC_WORK_READING, inner_ns, 10);
    moec_work_end(MOEC_WORK_ENCODING, outer_ns, 20);
    const uint64_t all_ns = moec_now_ns() - start_ns;
    const struct moec_work_tally after = moec_work_now();
    assert_int_equal(after.n[MOEC_WORK_READING] - before.n[MOEC_WORK_READING], 10);
    assert_int_equal(after.n[MOEC_WORK_ENCODING] - before.n[MOEC_WORK_ENCODING], 20);
    const uint64_t read_ns = after.ns[MOEC_WORK_READING] - before.ns[MOEC_WORK_READING];
    assert_true(read_ns > 2000000 &&
                read_ns + after.ns[MOEC_WORK_ENCODING] - before.ns[MOEC_WORK_ENCODING] <= all_ns);
}

/* 10 s on four threads. */
static enum moec_phase_bound bound_of(struct moec_phase phase, enum moec_phase_bound part, double expected)
{
    phase.seconds = 10;
    if (phase.processor_seconds == 0)
        phase.processor_seconds = 40;
    const struct moec_phase_parts parts = moec_phase_parts_of(&phase, 4, 100);
    assert_true(parts.shares[part] > expected - 1e-9 && parts.shares[part] < expected + 1e-9);
    return parts.bound;
}

static void test_phases__what_binds(void **state)
{
    (void)state;
    assert_int_equal(bound_of((struct moec_phase){.multiply_adds = 700}, MOEC_BOUND_PRODUCTS, 0.7),
                     MOEC_BOUND_PRODUCTS);
    assert_int_equal(
        bound_of((struct moec_phase){.multiply_adds = 300, .decode_seconds = 16}, MOEC_BOUND_DECODING, 0.4),
        MOEC_BOUND_DECODING);
    /* multiply-adds of fits count by their time alone */
    const struct moec_phase fits = {.multiply_adds = 500, .fit_multiply_adds = 400, .fit_seconds = 24};
    assert_int_equal(bound_of(fits, MOEC_BOUND_FITTING, 0.6), MOEC_BOUND_FITTING);
    assert_int_equal(bound_of(fits, MOEC_BOUND_PRODUCTS, 0.1), MOEC_BOUND_FITTING);
    assert_int_equal(
        bound_of((struct moec_phase){.multiply_adds = 100, .encode_seconds = 30}, MOEC_BOUND_OTHER, 0.15),
        MOEC_BOUND_ENCODING);
    assert_int_equal(bound_of((struct moec_phase){.multiply_adds = 300}, MOEC_BOUND_OTHER, 0.7),
                     MOEC_BOUND_OTHER);
    /* 8 of 10 s in which three threads had nothing to do */
    assert_int_equal(bound_of((struct moec_phase){.alone_seconds = 8, .processor_seconds = 16},
                              MOEC_BOUND_ONE_THREAD, 0.6),
                     MOEC_BOUND_ONE_THREAD);
    /* a thread read for 9 s, without a processor for most of them */
    assert_int_equal(
        bound_of((struct moec_phase){.alone_seconds = 10, .processor_seconds = 3, .read_seconds = 9},
                 MOEC_BOUND_WAITING, 0),
        MOEC_BOUND_ONE_THREAD);
    assert_int_equal(
        bound_of((struct moec_phase){.processor_seconds = 4, .read_seconds = 30}, MOEC_BOUND_READING, 0.75),
        MOEC_BOUND_READING);
    /* threads that had work and no processor */
    assert_int_equal(bound_of((struct moec_phase){.processor_seconds = 10, .multiply_adds = 200},
                              MOEC_BOUND_WAITING, 0.75),
                     MOEC_BOUND_WAITING);
    const struct moec_phase none = {0}, fast = {.seconds = 1, .multiply_adds = 300};
    assert_int_equal(moec_phase_parts_of(&none, 4, 100).bound, MOEC_BOUND_OTHER);
    assert_true(moec_phase_parts_of(&fast, 4, 100).shares[MOEC_BOUND_OTHER] == 0);  /* above the peak */
    assert_true(moec_phase_parts_of(&fast, 4, 0).shares[MOEC_BOUND_PRODUCTS] == 0); /* which is not known */
    for (int bound = 0; bound < MOEC_BOUND_COUNT; bound++)
        assert_non_null(moec_phase_bound_name((enum moec_phase_bound)bound));
}

static void test_phases__peak(void **state)
{
    (void)state;
    struct moec_error err = {0};
    double peak = 0;
    assert_int_equal(moec_product_peak(&moec_kernels_scalar, 2, &peak, &err), MOEC_OK);
    assert_true(peak > 1e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases__rows_by_name),
        cmocka_unit_test(test_phases__as_many_as_there_is_room_for),
        cmocka_unit_test(test_phases__regions),
        cmocka_unit_test(test_phases__work_within_work),
        cmocka_unit_test(test_phases__what_binds),
        cmocka_unit_test(test_phases__peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
