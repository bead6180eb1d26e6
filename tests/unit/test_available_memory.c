/* What memory a process may take, from made folders that look like the system's. */
#include "tests/unit/temporary.h"

#include "profiler/common/available_memory.h"

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

static void place_make(struct place *place)
{
    place->folder = temporary_folder();
    (void)snprintf(place->proc, sizeof place->proc, "%s/p", place->folder);
    (void)snprintf(place->cgroup, sizeof place->cgroup, "%s/c", place->folder);
    make_folder(place, "p");
    make_folder(place, "p/self");
    make_folder(place, "c");
    put(place, "p/meminfo", "MemTotal:  4000 kB\nMemAvailable:    3000 kB\n");
}

static uint64_t available(const struct place *place)
{
    return moec_available_bytes(place->proc, place->cgroup);
}

static void test_available_memory__the_machine(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    assert_true(available(&place) == 3000 * 1024);
    put(&place, "p/self/cgroup", "0::/nowhere\n");
    assert_true(available(&place) == 3000 * 1024);
    put(&place, "p/meminfo", "MemTotal:  4000 kB\n");
    assert_true(available(&place) == 0);
    temporary_remove(place.folder);
}

static void test_available_memory__groups_of_version_2(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    make_folder(&place, "c/a");
    make_folder(&place, "c/a/b");
    put(&place, "p/self/cgroup", "0::/a/b\n");
    put(&place, "c/a/memory.max", "1000000\n");
    put(&place, "c/a/memory.current", "600000\n");
    put(&place, "c/a/memory.stat", "anon 1\nactive_file 100000\ninactive_file 200000\n");
    put(&place, "c/a/b/memory.max", "max\n");
    put(&place, "c/a/b/memory.current", "600000\n");
    assert_true(available(&place) == 700000); /* files give way */
    put(&place, "c/a/b/memory.max", "650000\n");
    assert_true(available(&place) == 50000); /* the least of all above */
    put(&place, "c/a/memory.current", "5000000\n");
    assert_true(available(&place) == 1); /* over its limit: nothing, which is not 'unknown' */
    temporary_remove(place.folder);
}

static void test_available_memory__groups_of_version_1(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    make_folder(&place, "c/memory");
    make_folder(&place, "c/memory/a");
    put(&place, "p/self/cgroup", "5:cpu:/x\n4:memory:/a\n0::/\n");
    put(&place, "c/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(&place, "c/memory/memory.usage_in_bytes", "123456789\n");
    put(&place, "c/memory/a/memory.limit_in_bytes", "2000000\n");
    put(&place, "c/memory/a/memory.usage_in_bytes", "500000\n");
    put(&place, "c/memory/a/memory.stat",
        "inactive_file 7\ntotal_inactive_file 100000\ntotal_active_file 0\n");
    assert_true(available(&place) == 1600000);
    temporary_remove(place.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_available_memory__the_machine),
        cmocka_unit_test(test_available_memory__groups_of_version_2),
        cmocka_unit_test(test_available_memory__groups_of_version_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
