/* What the system says of the machine: where it says nothing, and where it says something else. */
#include "tests/unit/temporary.h"

#include "profiler/common/machine.h"

#include <math.h>
#include <unistd.h>

static double busy_seconds(const char *stat)
{
    char *folder = temporary_folder();
    temporary_write(folder, "stat", (const uint8_t *)stat, strlen(stat));
    const double seconds = moec_machine_busy_seconds(folder);
    temporary_remove(folder);
    return seconds;
}

static void test_machine__busy_seconds(void **state)
{
    (void)state;
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    const double now = busy_seconds("cpu  10 20 30 4000 500 6 7 8 9 10\ncpu0 1 1 1 1\n"),
                 old = busy_seconds("cpu  10 20 30 4000\n"); /* of an old kernel */
    assert_true(fabs(now - (10 + 20 + 30 + 6 + 7 + 8) * tick) < 1e-9);
    assert_true(fabs(old - (10 + 20 + 30) * tick) < 1e-9);
    assert_true(busy_seconds("cpu  10 20\n") < 0);
    assert_true(busy_seconds("processors\n") < 0);
    assert_true(moec_machine_busy_seconds("/proc/nowhere") < 0);
    assert_true(moec_machine_processor_count() >= 1);
}

static void test_machine__busy_seconds_grow_by_work(void **state)
{
    (void)state;
    const double before = moec_machine_busy_seconds("/proc");
    if (before < 0)
        skip(); /* a system without /proc/stat */
    volatile double sum = 0;
    while (moec_machine_busy_seconds("/proc") < before + 0.05)
        for (int i = 0; i < 1000000; i++)
            sum += i;
    assert_true(sum > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine__busy_seconds),
        cmocka_unit_test(test_machine__busy_seconds_grow_by_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
