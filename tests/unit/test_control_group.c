/* Processors that a container may use, from made folders that look like the system's. */
#include "tests/unit/temporary.h"

#include "formats/base/control_group.h"

#include <sys/stat.h>

struct place {
    char *folder;
    char proc[256], cgroup[256];
};

static void make_folder(const struct place *place, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", place->folder, name);
    assert_int_equal(mkdir(path, 0755), 0);
}

static void put(const struct place *place, const char *name, const char *text)
{
    temporary_write(place->folder, name, text, strlen(text));
}

static void place_make(struct place *place, const char *groups)
{
    place->folder = temporary_folder();
    (void)snprintf(place->proc, sizeof place->proc, "%s/p", place->folder);
    (void)snprintf(place->cgroup, sizeof place->cgroup, "%s/c", place->folder);
    make_folder(place, "p");
    make_folder(place, "p/self");
    make_folder(place, "c");
    if (groups != NULL)
        put(place, "p/self/cgroup", groups);
}

static int cpus(const struct place *place)
{
    return moec_control_group_cpus(place->proc, place->cgroup);
}

static void test_control_group__version_2(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int cpus;
    } limits[] = {{"max 100000\n", 0},
                  {"100000 100000\n", 1},
                  {"150000 100000\n", 2},
                  {"200000 100000\n", 2},
                  {"200001 100000\n", 3},
                  {"1000 100000\n", 1},
                  {"50000 10000\n", 5},
                  {"300000\n", 3},
                  {"max\n", 0},
                  {"", 0},
                  {"-1 100000\n", 0},
                  {"0 100000\n", 0},
                  {"100000 0\n", 0},
                  {"words\n", 0},
                  {"9223372036854775807 1\n", 0}};
    struct place place;
    place_make(&place, "0::/\n");
    assert_int_equal(cpus(&place), 0); /* the file is not there */
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        put(&place, "c/cpu.max", limits[i].text);
        assert_int_equal(cpus(&place), limits[i].cpus);
    }
    temporary_remove(place.folder);
}

static void test_control_group__the_least_of_all_above(void **state)
{
    (void)state;
    struct place place;
    place_make(&place, "0::/a/b\n");
    make_folder(&place, "c/a");
    make_folder(&place, "c/a/b");
    put(&place, "c/a/cpu.max", "250000 100000\n");
    assert_int_equal(cpus(&place), 3);
    put(&place, "c/a/b/cpu.max", "400000 100000\n");
    assert_int_equal(cpus(&place), 3);
    put(&place, "c/a/b/cpu.max", "150000 100000\n");
    assert_int_equal(cpus(&place), 2);
    put(&place, "c/cpu.max", "100000 100000\n");
    assert_int_equal(cpus(&place), 1);
    temporary_remove(place.folder);
}

static void test_control_group__version_1(void **state)
{
    (void)state;
    struct place place;
    /* A container that sees its group as the root, and controllers in one line. */
    place_make(&place, "9:cpuset:/\n4:cpu,cpuacct:/docker/1234\n2:cpuacct:/x\n0::/\n");
    make_folder(&place, "c/cpu");
    put(&place, "c/cpu/cpu.cfs_quota_us", "-1\n");
    put(&place, "c/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(&place), 0);
    put(&place, "c/cpu/cpu.cfs_quota_us", "350000\n");
    assert_int_equal(cpus(&place), 4);
    put(&place, "c/cpu/cpu.cfs_period_us", "50000\n");
    assert_int_equal(cpus(&place), 7);
    put(&place, "p/self/cgroup", "4:cpuset,cpuacct,cpu:/\n");
    assert_int_equal(cpus(&place), 7);
    put(&place, "p/self/cgroup", "4:cpuset,cpuacct:/\n"); /* no line of the controller */
    assert_int_equal(cpus(&place), 0);
    temporary_remove(place.folder);
}

static void test_control_group__no_system(void **state)
{
    (void)state;
    struct place place;
    place_make(&place, NULL);
    assert_int_equal(cpus(&place), 0);
    put(&place, "p/self/cgroup", "\n:\n::\nnonsense\n0::/nowhere/at/all\n");
    assert_int_equal(cpus(&place), 0);
    temporary_remove(place.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_control_group__version_2),
        cmocka_unit_test(test_control_group__the_least_of_all_above),
        cmocka_unit_test(test_control_group__version_1),
        cmocka_unit_test(test_control_group__no_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
