#include "profiler/tasks/answer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static struct moec_task task_of(enum moec_task_take take, const char *after)
{
    struct moec_task task = {.name = "test", .metric = MOEC_TASK_METRIC_EXACT_MATCH, .take = take};
    (void)snprintf(task.after, sizeof task.after, "%s", after);
    return task;
}

static void check_take(enum moec_task_take take, const char *after, const char *text, const char *expected)
{
    struct moec_task task = task_of(take, after);
    struct moec_answer answer;
    bool found = moec_answer_take(&task, text, strlen(text), &answer);
    if (found != (expected != NULL) || (found && (answer.n_bytes != strlen(expected) ||
                                                  memcmp(answer.bytes, expected, answer.n_bytes) != 0)))
        fail_msg("'%s' gives '%.*s', expected '%s'", text, (int)answer.n_bytes,
                 answer.bytes != NULL ? answer.bytes : "", expected != NULL ? expected : "nothing");
}

static void test_answer__texts(void **state)
{
    (void)state;
    check_take(MOEC_TASK_TAKE_TEXT, "", "  a b\nc \n", "a b\nc");
    check_take(MOEC_TASK_TAKE_TEXT, "", " \t\r\n", NULL);
    check_take(MOEC_TASK_TAKE_TEXT, "", "", NULL);
    check_take(MOEC_TASK_TAKE_TEXT, "A:", "Q: x A: y A: z", "y A: z");
    check_take(MOEC_TASK_TAKE_TEXT, "A:", "A", NULL);
    check_take(MOEC_TASK_TAKE_TEXT, "A:", "A:", NULL);
    check_take(MOEC_TASK_TAKE_LINE, "", "\n\n one two \nthree", "one two");
    check_take(MOEC_TASK_TAKE_WORD, "", "\n one two", "one");
}

static void test_answer__numbers(void **state)
{
    (void)state;
    check_take(MOEC_TASK_TAKE_NUMBER, "####", "48/2 = <<48/2=24>>24 clips.\n#### 72", "72");
    check_take(MOEC_TASK_TAKE_NUMBER, "####", "#### $1,234.50.", "1,234.50");
    check_take(MOEC_TASK_TAKE_NUMBER, "####", "#### -5", "-5");
    check_take(MOEC_TASK_TAKE_NUMBER, "####", "#### none", NULL);
    check_take(MOEC_TASK_TAKE_NUMBER, "####", "the answer is 7", NULL);
    check_take(MOEC_TASK_TAKE_NUMBER, "", "10-5", "10");
    check_take(MOEC_TASK_TAKE_LAST_NUMBER, "", "10-5", "5");
    check_take(MOEC_TASK_TAKE_LAST_NUMBER, "", "x = -5.", "-5");
    check_take(MOEC_TASK_TAKE_LAST_NUMBER, "", "1,23 and 12,3456", "3456");
    check_take(MOEC_TASK_TAKE_NUMBER, "", "1,234,567,8", "1,234,567");
    check_take(MOEC_TASK_TAKE_NUMBER, "", "- .5", ".5");
    check_take(MOEC_TASK_TAKE_NUMBER, "", "3.", "3");
    check_take(MOEC_TASK_TAKE_LAST_NUMBER, "", "-", NULL);
}

static void check_equal(enum moec_task_take take, const char *a, const char *b, bool expected)
{
    struct moec_task task = task_of(take, "");
    struct moec_answer x = {a, strlen(a)}, y = {b, strlen(b)};
    if (moec_answer_equal(&task, &x, &y) != expected || moec_answer_equal(&task, &y, &x) != expected)
        fail_msg("'%s' and '%s' are %s the same", a, b, expected ? "not" : "said to be");
}

static void test_answer__equal(void **state)
{
    (void)state;
    static const char *const same[][2] = {
        {"72", "72"},  {"1,234.50", "1234.5"}, {"007", "7"},      {"5.00", "5"},           {"-0", "0"},
        {"-0.0", "0"}, {".5", "0.50"},         {"1,000", "1000"}, {"-1,000.10", "-1000.1"}};
    static const char *const other[][2] = {{"72", "73"},  {"7", "70"}, {"-7", "7"},       {"5.5", "5.05"},
                                           {"100", "10"}, {"0", "1"},  {"1000", "100.0"}, {"12", "1.2"}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        check_equal(MOEC_TASK_TAKE_NUMBER, same[i][0], same[i][1], true);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        check_equal(MOEC_TASK_TAKE_NUMBER, other[i][0], other[i][1], false);
    check_equal(MOEC_TASK_TAKE_TEXT, "yes", "yes", true);
    check_equal(MOEC_TASK_TAKE_TEXT, "yes", "Yes", false);
    check_equal(MOEC_TASK_TAKE_TEXT, "07", "7", false);
    check_equal(MOEC_TASK_TAKE_TEXT, "", "", false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answer__texts),
        cmocka_unit_test(test_answer__numbers),
        cmocka_unit_test(test_answer__equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
