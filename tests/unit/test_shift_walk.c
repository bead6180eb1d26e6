/* The search for codes of the shift scheme on each instruction set that this processor has: the same choices and costs.
 * The source itself is included, since a processor chooses one set for a whole program. */
#include "formats/codec/shift.c"

#include "tests/unit/status.h"

#include <stdlib.h>

#define MOST 200

typedef void walker(const struct table *, uint32_t, const float *, size_t, float, float[2][STATES],
                    struct moec_shift_choices *);

static void check_same(walker *other)
{
    uint64_t seed = 9;
    float w[MOST];
    struct moec_shift_choices choices[2][MOST];
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (size_t n = 1; n <= MOST; n = n < 8 ? n + 1 : n * 5 / 4) {
            const struct table *table = table_of(bits);
            _Alignas(64) float costs[2][2][STATES];
            for (size_t i = 0; i < n; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                w[i] = (float)(int32_t)(seed >> 32) * (seed % 64 == 0 ? 0x1p-30f : 0x1p-33f);
            }
            memset(costs, 0, sizeof costs);
            begin_costs(costs[0][0]);
            begin_costs(costs[1][0]);
            walk_plain(table, 1u << (bits - 2), w, n, 0.002f, costs[0], choices[0]);
            other(table, 1u << (bits - 2), w, n, 0.002f, costs[1], choices[1]);
            assert_memory_equal(costs[0], costs[1], sizeof costs[0]);
            assert_memory_equal(choices[0], choices[1], n * sizeof choices[0][0]);
        }
}

static void test_shift_walk__avx2(void **state)
{
    (void)state;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        check_same(walk_avx2);
        return;
    }
#endif
    skip();
}

static void test_shift_walk__avx512(void **state)
{
    (void)state;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) {
        check_same(walk_avx512);
        return;
    }
#endif
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shift_walk__avx2),
        cmocka_unit_test(test_shift_walk__avx512),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
