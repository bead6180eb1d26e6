/* The watch on a small budget: what it leaves to the expert buffer and when it takes it back, and what the
 * system says of this process. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "runtime/engine/memory_watch.h"
#include "runtime/engine/process_memory.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/storage/reader.h"

#define MIB         ((uint64_t)1 << 20)
#define FILES_BYTES (64 * MIB) /* more than this program's files take */

static struct moec_memory_watch watch_of(const struct moec_memory_plan *plan, uint64_t budget_bytes,
                                         bool is_alone)
{
    struct moec_memory_watch watch;
    struct moec_error err = {0};
    assert_ok(moec_memory_watch_plan(&watch, plan, budget_bytes, is_alone, &err), err);
    return watch;
}

static void test_memory_watch__small_budgets_of_one_session_are_used_up(void **state)
{
    (void)state;
    struct moec_memory_pages now;
    assert_status(moec_memory_pages_now(&now, NULL), MOEC_OK, (struct moec_error){0});
    const uint64_t own_bytes = now.resident_bytes - now.file_bytes;
    const struct moec_memory_plan plan = {.parts.base_bytes = own_bytes + 3 * MIB},
                                  whole = {.experts.all_stay = true};
    assert_false(watch_of(&plan, 0, true).is_on);
    const struct moec_memory_watch small = watch_of(&plan, MOEC_WATCH_SMALL_BYTES, true);
    assert_true(small.is_on && small.most_bytes == small.files_bytes);
    /* What this process took by itself is its own, but for what it has come to take since. */
    assert_true(small.files_bytes <= MOEC_READER_CODE_BYTES + 3 * MIB);
    assert_true(small.files_bytes > MOEC_READER_CODE_BYTES + 2 * MIB);
    assert_int_equal(watch_of(&plan, MOEC_WATCH_SMALL_BYTES + 1, true).most_bytes, 0);
    assert_int_equal(watch_of(&plan, MOEC_WATCH_SMALL_BYTES, false).most_bytes, 0);
    assert_int_equal(watch_of(&whole, MOEC_WATCH_SMALL_BYTES, true).most_bytes, 0);
    assert_true(watch_of(&whole, MOEC_WATCH_SMALL_BYTES, true).is_on);
}

static void test_memory_watch__gives_after_two_tokens_and_takes_back_before_a_prompt(void **state)
{
    (void)state;
    struct sample_fixture f = {0};
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    sample_make(&f.sample, 16, 40, 24, 77);
    sample_open(&f);
    const struct moec_expert_cache_options options = {.buffer.n_bytes = MIB / 16, .n_sessions = 1};
    assert_ok(moec_expert_cache_create(f.bundle, &options, &cache, &err), err);
    struct moec_kv_lending lending = {.own_bytes = MIB / 16};
    struct moec_memory_watch watch = {
        .is_on = true, .budget_bytes = UINT64_MAX / 2, .files_bytes = FILES_BYTES, .most_bytes = MIB / 32};
    moec_kv_lending_begin(&lending, cache);
    moec_memory_watch_end(&watch, &lending, 1);
    assert_int_equal(lending.spare_bytes, 0);
    moec_memory_watch_end(&watch, &lending, 1);
    assert_int_equal(lending.spare_bytes, MIB / 32);
    moec_memory_watch_begin(&watch, &lending);
    assert_int_equal(lending.spare_bytes, 0);
    moec_memory_watch_end(&watch, &lending, 7); /* a prompt */
    moec_memory_watch_end(&watch, &lending, 1);
    assert_int_equal(lending.spare_bytes, 0);
    moec_memory_watch_end(&watch, &lending, 1);
    assert_int_equal(lending.spare_bytes, MIB / 32);
    watch.files_bytes = 0; /* files take all that was counted for them */
    moec_memory_watch_end(&watch, &lending, 1);
    assert_int_equal(lending.spare_bytes, 0);
    moec_kv_lending_end(&lending);
    moec_expert_cache_free(cache);
    sample_close(&f);
}

static void test_memory_watch__code_that_was_given_back_runs_on(void **state)
{
    (void)state;
    struct moec_memory_pages before, after;
    uint64_t resident_bytes = 0, peak_bytes = 0, base_bytes = 0;
    struct moec_error err = {0};
    assert_ok(moec_memory_pages_now(&before, &err), err);
    assert_ok(moec_memory_resident_bytes(&resident_bytes, &err), err);
    assert_ok(moec_memory_peak_bytes(&peak_bytes, &err), err);
    assert_ok(moec_memory_base_bytes(&base_bytes, &err), err);
    assert_true(before.file_bytes > 0 && before.file_bytes <= before.resident_bytes);
    assert_true(peak_bytes >= resident_bytes && base_bytes >= peak_bytes);
    moec_memory_give_back_code();
    assert_ok(moec_memory_pages_now(&after, &err), err);
    assert_true(after.file_bytes <= before.file_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_watch__small_budgets_of_one_session_are_used_up),
        cmocka_unit_test(test_memory_watch__gives_after_two_tokens_and_takes_back_before_a_prompt),
        cmocka_unit_test(test_memory_watch__code_that_was_given_back_runs_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
