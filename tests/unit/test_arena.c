/* The arena: slots never overlap or change their bytes, pinned ones stay, and no free byte is lost. */
#include "tests/unit/temporary.h"

#include "runtime/experts/arena.h"

#define N_KEY 60u

struct fixture {
    struct moec_arena *arena;
    uint64_t slot_bytes[N_KEY];
    uint64_t n_bytes;
    uint32_t pins[N_KEY];
    uint64_t unit;
};

static void make(struct fixture *f, uint64_t unit, uint32_t n_units, uint64_t *random)
{
    struct moec_error err = {0};
    *f = (struct fixture){.unit = unit, .n_bytes = unit * n_units};
    for (uint32_t key = 0; key < N_KEY; key++)
        f->slot_bytes[key] = unit * (1 + random_u32(random) % 8);
    assert_status(moec_arena_create(f->slot_bytes, N_KEY, f->n_bytes, &f->arena, &err), MOEC_OK, err);
    assert_int_equal((uintptr_t)moec_arena_bytes(f->arena) % 4096, 0);
}

/* First and last bytes of a slot say whose it is. */
static void fill(const struct fixture *f, uint32_t key)
{
    memset(moec_arena_slot(f->arena, key), (int)(key + 1), f->slot_bytes[key]);
}

static uint64_t check(const struct fixture *f)
{
    uint64_t used = 0;
    for (uint32_t key = 0; key < N_KEY; key++) {
        if (!moec_arena_has(f->arena, key))
            continue;
        const uint8_t *slot = moec_arena_slot(f->arena, key);
        const uint64_t offset = (uint64_t)(slot - moec_arena_bytes(f->arena));
        used += f->slot_bytes[key];
        assert_true(offset <= f->n_bytes - f->slot_bytes[key]);
        assert_int_equal(offset % f->unit, 0);
        for (uint64_t i = 0; i < f->slot_bytes[key]; i += 64)
            assert_int_equal(slot[i], key + 1);
        assert_int_equal(slot[f->slot_bytes[key] - 1], key + 1);
    }
    assert_true(used <= f->n_bytes);
    return used;
}

static bool any_pinned(const struct fixture *f)
{
    for (uint32_t key = 0; key < N_KEY; key++)
        if (f->pins[key] > 0)
            return true;
    return false;
}

/* Places, frees, pins; with nothing pinned a key finds room exactly when its bytes are free. */
static void run(uint64_t seed, uint64_t unit, bool with_pins, uint64_t *moved)
{
    uint64_t random = seed;
    struct fixture f;
    make(&f, unit, 8 + random_u32(&random) % 120, &random);
    for (int i = 0; i < 1500; i++) {
        const uint32_t key = random_u32(&random) % N_KEY, choice = random_u32(&random) % 8;
        const uint64_t used = check(&f), moved_before = *moved;
        const uint8_t *was = moec_arena_has(f.arena, key) ? moec_arena_slot(f.arena, key) : NULL;
        if (!moec_arena_has(f.arena, key)) {
            const bool fits = f.n_bytes - used >= f.slot_bytes[key];
            const bool placed = moec_arena_place(f.arena, key, moved);
            assert_true(placed ? fits : !fits || any_pinned(&f));
            assert_true(placed || *moved == moved_before);
            if (placed)
                fill(&f, key);
        } else if (f.pins[key] > 0) {
            moec_arena_unpin(f.arena, key);
            f.pins[key]--;
            assert_ptr_equal(was, moec_arena_slot(f.arena, key));
        } else if (with_pins && choice < 3) {
            moec_arena_pin(f.arena, key);
            f.pins[key]++;
        } else {
            moec_arena_remove(f.arena, key);
        }
    }
    moec_arena_free(f.arena);
}

static void test_arena__loses_no_free_byte(void **state)
{
    (void)state;
    uint64_t moved = 0;
    for (uint64_t seed = 1; seed <= 30; seed++)
        run(seed, seed % 2 == 0 ? 64 : 4096, false, &moved);
    assert_true(moved > 0);
}

static void test_arena__pinned_slots_stay(void **state)
{
    (void)state;
    uint64_t moved = 0;
    for (uint64_t seed = 1; seed <= 30; seed++)
        run(seed, 64, true, &moved);
    uint64_t random = 3;
    struct fixture f;
    const uint8_t *pinned[N_KEY] = {NULL};
    make(&f, 64, 100, &random);
    for (int i = 0; i < 4000; i++) {
        const uint32_t key = random_u32(&random) % N_KEY;
        if (!moec_arena_has(f.arena, key)) {
            if (!moec_arena_place(f.arena, key, &moved))
                continue;
            fill(&f, key);
            if (key % 7 == 0) {
                moec_arena_pin(f.arena, key);
                pinned[key] = moec_arena_slot(f.arena, key);
            }
        } else if (pinned[key] == NULL || i % 16 == 0) {
            if (pinned[key] != NULL)
                moec_arena_unpin(f.arena, key);
            pinned[key] = NULL;
            moec_arena_remove(f.arena, key);
        }
        for (uint32_t other = 0; other < N_KEY; other++)
            if (pinned[other] != NULL)
                assert_ptr_equal(pinned[other], moec_arena_slot(f.arena, other));
    }
    (void)check(&f);
    moec_arena_free(f.arena);
}

/* Of equal slots none ever moves; a slot pinned twice is pinned until both are gone. */
static void test_arena__equal_sizes_never_move(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_arena *arena = NULL;
    uint64_t slot_bytes[N_KEY], moved = 0, random = 9;
    for (uint32_t key = 0; key < N_KEY; key++)
        slot_bytes[key] = 192;
    assert_status(moec_arena_create(slot_bytes, N_KEY, 11 * 192 + 100, &arena, &err), MOEC_OK, err);
    uint32_t n = 0;
    for (int i = 0; i < 3000; i++) {
        const uint32_t key = random_u32(&random) % N_KEY;
        if (moec_arena_has(arena, key)) {
            moec_arena_remove(arena, key);
            n--;
        } else {
            const bool placed = moec_arena_place(arena, key, &moved);
            assert_true(placed == (n < 11));
            n += placed;
        }
    }
    assert_int_equal(moved, 0);
    moec_arena_free(arena);
    moec_arena_free(NULL);
}

static void test_arena__moves_the_fewest_bytes(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_arena *arena = NULL;
    /* | 0 | 1 | 2 | 3 | 4 | 5 | of 64, 64, 128, 64, 256, 64 bytes */
    const uint64_t slot_bytes[] = {64, 64, 128, 64, 256, 64, 128};
    uint64_t moved = 0;
    assert_status(moec_arena_create(slot_bytes, 7, 640, &arena, &err), MOEC_OK, err);
    for (uint32_t key = 0; key < 6; key++)
        assert_true(moec_arena_place(arena, key, &moved));
    moec_arena_remove(arena, 1);
    moec_arena_remove(arena, 3);
    moec_arena_remove(arena, 5);
    moec_arena_pin(arena, 2);
    moec_arena_pin(arena, 2);
    moec_arena_unpin(arena, 2);
    assert_false(moec_arena_has_hole(arena, 6));
    assert_true(moec_arena_has_hole(arena, 1));
    assert_true(moec_arena_place(arena, 6, &moved)); /* over 4's 256, since 2's 128 are pinned */
    assert_int_equal(moved, 256);
    moec_arena_remove(arena, 6);
    assert_true(moec_arena_place(arena, 1, &moved));
    assert_true(moec_arena_place(arena, 3, &moved));
    moec_arena_remove(arena, 1); /* | 0 | 64 | 2 | 4 | 3 | 64 | */
    assert_false(moec_arena_place(arena, 6, &moved));
    moec_arena_unpin(arena, 2);
    assert_true(moec_arena_place(arena, 6, &moved));
    assert_int_equal(moved, 256 + 128 + 256 + 64);
    moec_arena_free(arena);
}

/* What is there stays, and what was not has room again. */
static void grow_back(struct fixture *f, uint64_t n_bytes)
{
    uint64_t moved = 0, used = check(f);
    const uint64_t small_bytes = f->n_bytes;
    f->n_bytes = n_bytes;
    moec_arena_grow(f->arena, n_bytes);
    assert_int_equal(check(f), used);
    for (uint32_t key = 0; key < N_KEY; key++)
        if (!moec_arena_has(f->arena, key) && moec_arena_place(f->arena, key, &moved))
            fill(f, key);
    used = check(f);
    assert_true(used > small_bytes && used <= n_bytes);
}

/* Fills an arena, then shrinks it step by step as a cache does: what is there has been made to fit before. */
static void shrink(uint64_t seed, bool equal_sizes, bool with_pins)
{
    uint64_t random = seed, moved = 0;
    struct fixture f;
    make(&f, 64, 400, &random);
    for (uint32_t key = 0; equal_sizes && key < N_KEY; key++)
        f.slot_bytes[key] = 5 * f.unit;
    for (uint32_t key = 0; key < N_KEY; key++)
        if (moec_arena_place(f.arena, key, &moved))
            fill(&f, key);
    moved = 0;
    const uint64_t all_bytes = f.n_bytes;
    uint64_t n_given = 0;
    for (uint64_t n_bytes = f.n_bytes - 700; n_bytes > 2000; n_bytes -= 700) {
        for (uint32_t key = random_u32(&random) % N_KEY; check(&f) > n_bytes; key = (key + 7) % N_KEY)
            if (moec_arena_has(f.arena, key))
                moec_arena_remove(f.arena, key);
        for (uint32_t key = 0; with_pins && key < N_KEY; key += 9) {
            const uint8_t *slot = moec_arena_slot(f.arena, key);
            if (!moec_arena_has(f.arena, key))
                continue;
            const bool is_in_the_way =
                (uint64_t)(slot - moec_arena_bytes(f.arena)) + f.slot_bytes[key] > n_bytes;
            moec_arena_pin(f.arena, key);
            assert_true(!moec_arena_shrink(f.arena, n_bytes, &moved) || !is_in_the_way);
            assert_ptr_equal(moec_arena_slot(f.arena, key), slot);
            moec_arena_unpin(f.arena, key);
        }
        n_given += f.n_bytes - n_bytes;
        f.n_bytes = n_bytes;
        assert_true(moec_arena_shrink(f.arena, n_bytes, &moved));
        (void)check(&f);
        const uint32_t key = random_u32(&random) % N_KEY;
        if (!moec_arena_has(f.arena, key) && moec_arena_place(f.arena, key, &moved))
            fill(&f, key);
    }
    /* Each slot that stood in what is given up, once. */
    assert_true(!equal_sizes || with_pins || moved <= n_given + 30 * 5 * f.unit);
    grow_back(&f, all_bytes);
    moec_arena_free(f.arena);
}

static void test_arena__shrinks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        shrink(seed, false, false);
        shrink(seed, true, false);
        shrink(seed, false, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena__loses_no_free_byte),
        cmocka_unit_test(test_arena__pinned_slots_stay),
        cmocka_unit_test(test_arena__equal_sizes_never_move),
        cmocka_unit_test(test_arena__moves_the_fewest_bytes),
        cmocka_unit_test(test_arena__shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
