/* Trials of guessing, with made-up times. */
#include "runtime/policy/schedule/preload_trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Decodes n tokens that take so long, with and without guesses, and every ninth ten times as long; returns
 * how many guessed. */
static uint32_t decode(struct moec_preload_trial *trial, uint64_t *now_ns, uint32_t n, uint64_t with_ns,
                       uint64_t without_ns)
{
    uint32_t n_prefetching = 0;
    for (uint32_t i = 0; i < n; i++) {
        moec_preload_trial_token(trial, *now_ns);
        n_prefetching += trial->is_prefetching;
        *now_ns += (trial->is_prefetching ? with_ns : without_ns) * (i % 9 == 8 ? 10 : 1);
    }
    return n_prefetching;
}

static void test_preload_trial__guesses_where_they_help(void **state)
{
    (void)state;
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    moec_preload_trial_init(&trial);
    assert_true(trial.is_prefetching);
    (void)decode(&trial, &now_ns, 160, 900, 1000);
    assert_in_range(decode(&trial, &now_ns, 2560, 900, 1000), 2300, 2540);
}

static void test_preload_trial__leaves_guesses_that_harm(void **state)
{
    (void)state;
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    moec_preload_trial_init(&trial);
    assert_in_range(decode(&trial, &now_ns, 128, 1100, 1000), 36, 48);
    assert_in_range(decode(&trial, &now_ns, 2560, 1100, 1000), 40, 130); /* what trying again takes */
    assert_in_range(decode(&trial, &now_ns, 2560, 1000, 1000), 20, 130); /* nor what then gains nothing */
}

static void test_preload_trial__changes_its_mind(void **state)
{
    (void)state;
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    moec_preload_trial_init(&trial);
    (void)decode(&trial, &now_ns, 640, 1100, 1000);
    (void)decode(&trial, &now_ns, 2560, 4000, 5000); /* both slower, the other way round */
    assert_in_range(decode(&trial, &now_ns, 2560, 4000, 5000), 2300, 2540);
    (void)decode(&trial, &now_ns, 2560, 1100, 1000);
    assert_in_range(decode(&trial, &now_ns, 2560, 1100, 1000), 12, 100);
}

/* Guesses of 16 short texts, of which the first is slow because everything is cold. */
static uint32_t decode_short_texts(uint64_t with_ns, uint64_t without_ns)
{
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    uint32_t n_prefetching = 0;
    moec_preload_trial_init(&trial);
    for (uint32_t text = 0; text < 16; text++) {
        n_prefetching += decode(&trial, &now_ns, 20, text == 0 ? 5000 : with_ns, without_ns);
        moec_preload_trial_pause(&trial);
    }
    return n_prefetching;
}

/* What is slow because caches are cold speaks for nothing, in a short run of short texts either. */
static void test_preload_trial__the_first_block_is_not_timed(void **state)
{
    (void)state;
    assert_in_range(decode_short_texts(900, 1000), 240, 300);
    assert_in_range(decode_short_texts(1100, 1000), 40, 96);
}

/* The first block with guesses, which are learned in it, speaks for nothing either. */
static void test_preload_trial__guesses_learn_first(void **state)
{
    (void)state;
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    uint32_t n_prefetching = 0;
    moec_preload_trial_init(&trial);
    for (uint32_t i = 0; i < 640; i++) {
        n_prefetching += decode(&trial, &now_ns, 1, n_prefetching < 20 ? 5000 : 900, 1000);
        if (i == 160)
            assert_true(trial.is_preferred);
    }
    assert_in_range(n_prefetching, 480, 600);
}

/* Times that scatter widely say nothing against guesses that change nothing. */
static void test_preload_trial__noise_is_no_harm(void **state)
{
    (void)state;
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    uint32_t n_prefetching = 0, seed = 1;
    moec_preload_trial_init(&trial);
    for (uint32_t i = 0; i < 20000; i++) {
        moec_preload_trial_token(&trial, now_ns);
        n_prefetching += trial.is_prefetching;
        seed = seed * 1664525u + 1013904223u;
        now_ns += 600 + (seed >> 16) % 800;
    }
    assert_in_range(n_prefetching, 12000, 19500);
}

static void test_preload_trial__pauses_are_not_timed(void **state)
{
    (void)state;
    struct moec_preload_trial trial;
    uint64_t now_ns = 1;
    moec_preload_trial_init(&trial);
    for (uint32_t i = 0; i < 200; i++) {
        moec_preload_trial_token(&trial, now_ns);
        moec_preload_trial_pause(&trial);
        now_ns += 1000;
    }
    assert_int_equal(trial.n_timed[0] + trial.n_timed[1], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preload_trial__guesses_where_they_help),
        cmocka_unit_test(test_preload_trial__leaves_guesses_that_harm),
        cmocka_unit_test(test_preload_trial__changes_its_mind),
        cmocka_unit_test(test_preload_trial__the_first_block_is_not_timed),
        cmocka_unit_test(test_preload_trial__guesses_learn_first),
        cmocka_unit_test(test_preload_trial__noise_is_no_harm),
        cmocka_unit_test(test_preload_trial__pauses_are_not_timed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
