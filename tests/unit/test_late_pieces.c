/* The part of a section that is loaded when it is asked for. */
#include "tests/unit/stored_section.h"

#include "formats/base/bytes.h"
#include "formats/bundle/late_pieces.h"

#include <pthread.h>

#define PIECE         ((uint64_t)MOEC_PIECE_BYTES)
#define CONTENT_BYTES (7 * PIECE + 999)

struct late {
    struct stored stored;
    struct moec_dense_late *late;
    uint64_t at[8]; /* where pieces begin in the file */
};

static void make(struct late *f)
{
    *f = (struct late){0};
    stored_make(&f->stored, CONTENT_BYTES, true);
    for (uint64_t i = 0, at = BEFORE_BYTES; i < 8; i++) {
        f->at[i] = at;
        at += MOEC_PIECE_HEADER_BYTES + (moec_get_u32(f->stored.bytes + at) & ~MOEC_PIECE_RAW);
    }
}

static void release(struct late *f)
{
    if (f->late != NULL)
        f->late->free(f->late);
    stored_release(&f->stored);
}

static enum moec_status load(struct late *f, uint64_t from, uint64_t end, struct moec_error *err)
{
    memset(f->stored.loaded, 0xee, CONTENT_BYTES);
    return moec_late_pieces_load(&f->stored.file, &f->stored.section, (struct moec_content_range){from, end},
                                 f->stored.loaded, &f->late, err);
}

static void check_there(const struct late *f, uint64_t from, uint64_t end)
{
    assert_memory_equal(f->stored.loaded + from, f->stored.content + from, end - from);
}

static void check_absent(const struct late *f, uint64_t from, uint64_t end)
{
    for (uint64_t i = from; i < end; i++)
        assert_int_equal(f->stored.loaded[i], 0);
}

static void test_late_pieces__come_when_asked_for(void **state)
{
    (void)state;
    struct late f;
    struct moec_error err = {0};
    make(&f);
    /* Of pieces 1 to 5 those at the ends are loaded: they reach over the range. */
    assert_status(load(&f, PIECE + 4096, 5 * PIECE + 8192, &err), MOEC_OK, err);
    struct moec_dense_late *late = f.late;
    check_there(&f, 0, 2 * PIECE);
    check_absent(&f, 2 * PIECE, 5 * PIECE);
    check_there(&f, 5 * PIECE, CONTENT_BYTES);
    assert_status(late->bring(late, 0, 2 * PIECE, &err), MOEC_OK, err); /* which are there */
    assert_status(late->bring(late, 5 * PIECE, CONTENT_BYTES - 5 * PIECE, &err), MOEC_OK, err);
    check_absent(&f, 2 * PIECE, 5 * PIECE);
    assert_status(late->bring(late, 3 * PIECE + 5, 1, &err), MOEC_OK, err);
    check_absent(&f, 2 * PIECE, 3 * PIECE);
    check_there(&f, 3 * PIECE, 4 * PIECE);
    check_absent(&f, 4 * PIECE, 5 * PIECE);
    assert_status(late->bring(late, 4 * PIECE - 1, 2, &err), MOEC_OK, err); /* over a border */
    assert_status(late->bring(late, 2 * PIECE - 3, 4, &err), MOEC_OK, err);
    check_there(&f, 0, CONTENT_BYTES);
    release(&f);
}

static void test_late_pieces__whole_section(void **state)
{
    (void)state;
    struct late f;
    struct moec_error err = {0};
    make(&f);
    assert_status(load(&f, 0, CONTENT_BYTES, &err), MOEC_OK, err);
    check_absent(&f, 0, CONTENT_BYTES / 4096 * 4096);
    assert_status(f.late->bring(f.late, 0, CONTENT_BYTES, &err), MOEC_OK, err);
    check_there(&f, 0, CONTENT_BYTES);
    release(&f);
}

struct asking {
    struct late *f;
    uint64_t seed;
};

static void *ask(void *context)
{
    struct asking *asking = context;
    struct late *f = asking->f;
    struct moec_error err = {0};
    uint64_t random = asking->seed;
    for (int i = 0; i < 200; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint64_t at = (random >> 33) % (CONTENT_BYTES - 1000);
        if (f->late->bring(f->late, at, 1000, &err) != MOEC_OK ||
            memcmp(f->stored.loaded + at, f->stored.content + at, 1000) != 0)
            return f;
    }
    return NULL;
}

static void test_late_pieces__several_threads(void **state)
{
    (void)state;
    struct late f;
    struct moec_error err = {0};
    pthread_t threads[4];
    struct asking asking[4];
    make(&f);
    assert_status(load(&f, 0, CONTENT_BYTES, &err), MOEC_OK, err);
    for (size_t i = 0; i < 4; i++) {
        asking[i] = (struct asking){&f, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &asking[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    release(&f);
}

static void test_late_pieces__damage_is_found_when_it_is_asked_for(void **state)
{
    (void)state;
    struct late f;
    struct moec_error err = {0};
    make(&f);
    f.stored.bytes[f.at[3] + 100] ^= 1;
    stored_write(&f.stored);
    assert_status(load(&f, PIECE, 6 * PIECE, &err), MOEC_OK, err);
    struct moec_dense_late *late = f.late;
    for (int i = 0; i < 2; i++) {
        assert_status(late->bring(late, 3 * PIECE, 10, &err), MOEC_ERR_CHECKSUM, err);
        assert_message(err, "section 'large'");
    }
    err = (struct moec_error){0};
    assert_status(late->bring(late, 2 * PIECE, 10, &err), MOEC_OK, err);
    assert_status(late->bring(late, 4 * PIECE, 10, &err), MOEC_OK, err);
    check_there(&f, 4 * PIECE, 5 * PIECE);
    late->free(late);
    f.late = NULL;
    assert_status(load(&f, 4 * PIECE, 6 * PIECE, &err), MOEC_ERR_CHECKSUM, err); /* piece 3 is loaded */
    assert_null(f.late);
    release(&f);
}

static void test_late_pieces__a_file_that_ends_early(void **state)
{
    (void)state;
    struct late f;
    struct moec_error err = {0};
    make(&f);
    assert_status(load(&f, PIECE, 6 * PIECE, &err), MOEC_OK, err);
    assert_int_equal(truncate(f.stored.path, (off_t)f.at[4]), 0);
    assert_status(f.late->bring(f.late, 3 * PIECE, 10, &err), MOEC_OK, err);
    assert_status(f.late->bring(f.late, 4 * PIECE, 10, &err), MOEC_ERR_IO, err);
    assert_message(err, "section");
    f.late->free(f.late);
    f.late = NULL;
    err = (struct moec_error){0};
    assert_status(load(&f, PIECE, 6 * PIECE, &err), MOEC_ERR_IO, err);
    release(&f);
}

/* A writer cuts no such pieces, which would take more to keep in mind than to load. */
static void test_late_pieces__very_short_pieces(void **state)
{
    (void)state;
    struct late f;
    struct moec_error err = {0};
    const uint32_t n_piece = 100000;
    make(&f);
    f.stored.n_bytes = BEFORE_BYTES;
    for (uint32_t i = 0; i < n_piece; i++) {
        uint8_t *piece = f.stored.bytes + f.stored.n_bytes;
        moec_put_u32(piece, MOEC_PIECE_RAW | 2);
        moec_put_u32(piece + 4, moec_crc32c(0, f.stored.content + (size_t)2 * i, 2));
        memcpy(piece + MOEC_PIECE_HEADER_BYTES, f.stored.content + (size_t)2 * i, 2);
        f.stored.n_bytes += MOEC_PIECE_HEADER_BYTES + 2;
    }
    f.stored.section.flags |= MOEC_SECTION_FLAG_CUT;
    f.stored.section.stored_bytes = f.stored.n_bytes - BEFORE_BYTES;
    f.stored.section.content_bytes = (uint64_t)2 * n_piece;
    stored_write(&f.stored);
    assert_status(load(&f, 0, (uint64_t)2 * n_piece, &err), MOEC_OK, err);
    assert_status(f.late->bring(f.late, 0, (uint64_t)2 * n_piece, &err), MOEC_OK, err);
    check_there(&f, 0, (uint64_t)2 * n_piece);
    release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_pieces__come_when_asked_for),
        cmocka_unit_test(test_late_pieces__whole_section),
        cmocka_unit_test(test_late_pieces__several_threads),
        cmocka_unit_test(test_late_pieces__damage_is_found_when_it_is_asked_for),
        cmocka_unit_test(test_late_pieces__a_file_that_ends_early),
        cmocka_unit_test(test_late_pieces__very_short_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
