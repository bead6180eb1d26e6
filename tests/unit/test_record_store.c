/* Which records give way to others within a limit. */
#include "tests/unit/temporary.h"

#include "formats/base/mapped_memory.h"
#include "profiler/evaluate/record_store.h"

#include <stdlib.h>

enum { N_SLOT = 4, RECORD = 1000 };

struct fixture {
    struct moec_record_store store;
    struct moec_record_slot slots[N_SLOT];
};

static void put(struct fixture *f, size_t i, uint64_t n_bytes)
{
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    assert_true(moec_record_store_make_room(&f->store, n_bytes));
    assert_status(moec_record_store_take(&f->store, n_bytes, &bytes, &err), MOEC_OK, err);
    memset(bytes, (int)i, n_bytes);
    moec_record_store_keep(&f->store, &f->slots[i], bytes, n_bytes);
}

/* Room for three records, which are there. */
static void begin(struct fixture *f)
{
    *f = (struct fixture){0};
    moec_record_store_init(&f->store, 3 * RECORD);
    for (size_t i = 0; i < 3; i++)
        put(f, i, RECORD);
    assert_int_equal(f->store.used_bytes, 3 * RECORD);
}

static void end(struct fixture *f)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < N_SLOT; i++) {
        n_bytes += f->slots[i].bytes != NULL ? f->slots[i].n_bytes : 0;
        if (f->slots[i].bytes != NULL)
            moec_record_store_drop(&f->store, &f->slots[i]);
    }
    moec_record_store_end(&f->store);
    assert_true(n_bytes > 0);
    assert_int_equal(f->store.used_bytes, 0);
}

/* Those that are there, as bits. */
static unsigned there(const struct fixture *f)
{
    unsigned bits = 0;
    for (size_t i = 0; i < N_SLOT; i++)
        bits |= f->slots[i].bytes != NULL ? 1u << i : 0;
    return bits;
}

static void test_record_store__the_oldest_gives_way(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    const uint8_t *oldest = f.slots[0].bytes;
    put(&f, 3, RECORD);
    assert_int_equal(there(&f), 0xe);
    assert_ptr_equal(f.slots[3].bytes, oldest); /* memory of the same size is used again */
    moec_record_slot_hold(&f.slots[1]);
    moec_record_store_let_go(&f.store, &f.slots[1]); /* which makes it the newest */
    put(&f, 0, RECORD);
    assert_int_equal(there(&f), 0xb);
    end(&f);
}

static void test_record_store__what_is_held_stays(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    moec_record_slot_hold(&f.slots[0]);
    moec_record_slot_hold(&f.slots[0]);
    moec_record_slot_hold(&f.slots[1]);
    moec_record_store_let_go(&f.store, &f.slots[0]);
    assert_true(moec_record_store_make_room(&f.store, RECORD));
    assert_int_equal(there(&f), 0x3);
    assert_false(moec_record_store_make_room(&f.store, 2 * RECORD));
    assert_false(moec_record_store_make_room(&f.store, 4 * RECORD)); /* of no use, whatever gives way */
    moec_record_store_move(&f.store, &f.slots[0], false);            /* nothing happens */
    moec_record_store_let_go(&f.store, &f.slots[0]);
    assert_true(moec_record_store_make_room(&f.store, 2 * RECORD));
    assert_int_equal(there(&f), 0x2);
    moec_record_store_let_go(&f.store, &f.slots[1]);
    end(&f);
}

static void test_record_store__records_are_moved(void **state)
{
    (void)state;
    struct fixture f;
    begin(&f);
    moec_record_store_move(&f.store, &f.slots[0], true);
    moec_record_store_move(&f.store, &f.slots[2], false);
    moec_record_store_move(&f.store, &f.slots[3], true); /* is not there */
    put(&f, 3, RECORD);
    assert_int_equal(there(&f), 0xb);
    put(&f, 2, RECORD);
    assert_int_equal(there(&f), 0xd);
    end(&f);
}

static void test_record_store__spares_count_within_the_limit(void **state)
{
    (void)state;
    struct fixture f;
    struct moec_error err = {0};
    uint8_t *bytes = NULL;
    begin(&f);
    assert_true(moec_record_store_make_room(&f.store, 2 * RECORD));
    assert_int_equal(f.store.spares.n_bytes, 2 * RECORD);
    assert_status(moec_record_store_take(&f.store, 2 * RECORD, &bytes, &err), MOEC_OK, err);
    assert_int_equal(f.store.used_bytes, 3 * RECORD);
    assert_int_equal(f.store.spares.n_bytes, 0);
    moec_record_store_give_back(&f.store, 2 * RECORD, bytes);
    assert_int_equal(f.store.used_bytes, RECORD);
    end(&f);
}

static void test_record_store__without_a_limit(void **state)
{
    (void)state;
    struct fixture f = {0};
    moec_record_store_init(&f.store, 0);
    for (size_t i = 0; i < N_SLOT; i++)
        put(&f, i, i == 0 ? MOEC_HUGE_PAGE_BYTES : RECORD);
    assert_int_equal(there(&f), 0xf);
    assert_true(moec_record_store_make_room(&f.store, UINT64_MAX / 2));
    assert_int_equal(there(&f), 0xf);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record_store__the_oldest_gives_way),
        cmocka_unit_test(test_record_store__what_is_held_stays),
        cmocka_unit_test(test_record_store__records_are_moved),
        cmocka_unit_test(test_record_store__spares_count_within_the_limit),
        cmocka_unit_test(test_record_store__without_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
