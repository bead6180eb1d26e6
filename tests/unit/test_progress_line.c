/* The line that long work shows: one percentage and one time left for the whole job, cut to the terminal. */
#include "cli/output/progress_line.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct cli_progress job_of(const char *unit)
{
    return (struct cli_progress){.job = "compile", .unit = unit, .expected = NAN, .phase = "searching"};
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
    cli_progress_text(&progress, 1, 4, 30, 0, 80, text, sizeof text);
    assert_string_equal(text, "compile: 25%, 90 s left (searching 25%)");
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
    cli_progress_text(&progress, 1, 4, 30, 20, 80, text, sizeof text);
    assert_string_equal(text, "compile: 25%, 2 min 00 s left (searching 25%)");
}

/* More work than was expected neither ends the job early nor turns the percentage back. */
static void wrong_expectations_do_no_harm(void **state)
{
    char text[128];
    struct cli_progress progress = job_of(NULL);
    (void)state;
    cli_progress_expect(&progress, 4);
    progress.phase_done = 3;
    cli_progress_text(&progress, 3, 4, 30, 30, 80, text, sizeof text);
    assert_string_equal(text, "compile: 75%, 10 s left (searching 75%)");
    progress.work_before = 3;
    progress.phase_done = 1;
    cli_progress_text(&progress, 1, 9, 40, 10, 80, text, sizeof text);
    assert_string_equal(text, "compile: 75%, 80 s left (searching 11%)");
}

static void counted_jobs_show_their_count(void **state)
{
    char text[128];
    struct cli_progress progress = job_of("samples");
    (void)state;
    progress.phase_done = 14;
    cli_progress_text(&progress, 14, 35, 28, 28, 80, text, sizeof text);
    assert_string_equal(text, "compile: 40%, 42 s left (14 of 35 samples)");
}

static void line_never_reaches_the_last_column(void **state)
{
    char text[128];
    struct cli_progress progress = job_of("samples");
    (void)state;
    progress.phase_done = 14;
    for (int columns = 2; columns < 50; columns++) {
        cli_progress_text(&progress, 14, 35, 28, 28, columns, text, sizeof text);
        assert_true(strlen(text) < (size_t)columns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_job_has_one_time_left),        cmocka_unit_test(pace_is_the_phases),
        cmocka_unit_test(wrong_expectations_do_no_harm),      cmocka_unit_test(counted_jobs_show_their_count),
        cmocka_unit_test(line_never_reaches_the_last_column),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
