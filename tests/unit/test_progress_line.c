/* The line that long work shows: one percentage and one time left for the whole job, cut to the terminal. */
#include "cli/terminal/progress_line.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct cli_progress job_of(const char *unit)
{
    return (struct cli_progress){
        .job = "compile", .unit = unit, .expected = NAN, .left_seconds = NAN, .phase = "searching"};
}

/* 3 of 12 passes are done after 30 s: a pass takes 10 s, whatever the phase is. */
static void whole_job_has_one_time_left(void **state)
{
    char text[128];
    struct cli_progress progress = job_of(NULL);
    (void)state;
    cli_progress_expect(&progress, 10);
    cli_progress_later(&progress, 2);
    progress.work_before = 2;
    progress.phase_done = 1;
    cli_progress_text(&progress, (struct cli_progress_point){1, 4, 30, 0}, 80, text, sizeof text);
    assert_string_equal(text, "compile: 25%, 90 s left (searching)");
}

/* The phase at work has a pace of its own; what comes after it goes at the mean. */
static void pace_is_the_phases(void **state)
{
    char text[128];
    struct cli_progress progress = job_of(NULL);
    (void)state;
    cli_progress_expect(&progress, 12);
    progress.work_before = 2;
    progress.phase_done = 1;
    cli_progress_text(&progress, (struct cli_progress_point){1, 4, 30, 20}, 80, text, sizeof text);
    assert_string_equal(text, "compile: 25%, 2 min 00 s left (searching)");
}

/* More work than was expected neither ends the job early nor turns the percentage back. */
static void wrong_expectations_do_no_harm(void **state)
{
    char text[128];
    struct cli_progress progress = job_of(NULL);
    (void)state;
    cli_progress_expect(&progress, 4);
    progress.phase_done = 3;
    cli_progress_text(&progress, (struct cli_progress_point){3, 4, 30, 30}, 80, text, sizeof text);
    assert_string_equal(text, "compile: 75%, 10 s left (searching)");
    progress.work_before = 3;
    progress.phase_done = 1;
    cli_progress_text(&progress, (struct cli_progress_point){1, 9, 40, 10}, 80, text, sizeof text);
    assert_string_equal(text, "compile: 75%, 80 s left (searching)");
}

static int seconds_left(const char *text)
{
    int left = -1;
    assert_int_equal(sscanf(text, "compile: %*d%%, %d s left", &left), 1);
    return left;
}

/* The time left stands while estimates wander, and is put right once it is wrong by more than a quarter. */
static void time_left_does_not_waver(void **state)
{
    static const struct {
        double expected;
        int shown;
    } steps[] = {{6, 50}, {7, 50}, {5, 40}, {5.8, 40}, {7, 60}, {3, 20}};
    struct cli_progress progress = job_of(NULL);
    char text[128];
    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        progress.phase_done = 0;
        cli_progress_expect(&progress, steps[i].expected);
        progress.phase_done = 1;
        cli_progress_text(&progress, (struct cli_progress_point){1, 2, 10, 0}, 80, text, sizeof text);
        assert_int_equal(seconds_left(text), steps[i].shown);
    }
}

/* Phases that cost other than expected: each line's percentage is at least that of the one before. */
static void percentage_never_falls(void **state)
{
    static const double expected[] = {10, 14, 9, 30, 4, 2};
    struct cli_progress progress = job_of(NULL);
    char text[128];
    int last = 0;
    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        cli_progress_expect(&progress, expected[i]);
        for (int step = 0; step < 20; step++) {
            int part = -1;
            progress.phase_done = 0.1 * step;
            cli_progress_text(&progress, (struct cli_progress_point){0.1 * step, 2, 10, 5}, 80, text,
                              sizeof text);
            assert_int_equal(sscanf(text, "compile: %d%%", &part), 1);
            assert_true(part >= last);
            last = part;
        }
        progress.work_before += progress.phase_done;
        progress.phase_done = 0;
    }
    assert_in_range(last, 80, 100);
}

static void counted_jobs_show_their_count(void **state)
{
    char text[128];
    struct cli_progress progress = job_of("samples");
    (void)state;
    progress.phase_done = 14;
    cli_progress_text(&progress, (struct cli_progress_point){14, 35, 28, 28}, 80, text, sizeof text);
    assert_string_equal(text, "compile: 40%, 42 s left (14 of 35 samples)");
}

static void line_never_reaches_the_last_column(void **state)
{
    char text[128];
    struct cli_progress progress = job_of("samples");
    (void)state;
    progress.phase_done = 14;
    for (int columns = 2; columns < 50; columns++) {
        cli_progress_text(&progress, (struct cli_progress_point){14, 35, 28, 28}, columns, text, sizeof text);
        assert_true(strlen(text) < (size_t)columns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_job_has_one_time_left),
        cmocka_unit_test(pace_is_the_phases),
        cmocka_unit_test(wrong_expectations_do_no_harm),
        cmocka_unit_test(counted_jobs_show_their_count),
        cmocka_unit_test(line_never_reaches_the_last_column),
        cmocka_unit_test(time_left_does_not_waver),
        cmocka_unit_test(percentage_never_falls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
