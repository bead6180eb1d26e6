/* The part of a section that is loaded when it is asked for. */
#include "tests/unit/temporary.h"

#include "formats/base/bytes.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/bundle/late_pieces.h"

#include <pthread.h>

#define PIECE         ((uint64_t)MOEC_PIECE_BYTES)
#define CONTENT_BYTES (7 * PIECE + 999)
#define BEFORE_BYTES  640u

struct stored {
    char *folder, *path;
    uint8_t *content, *loaded;
    uint8_t *bytes; /* of the file */
    size_t n_bytes;
    uint64_t at[8]; /* where pieces begin in the file */
    struct moec_section section;
    struct moec_file file;
    struct moec_dense_late *late;
};

static void write_file(struct stored *stored)
{
    struct moec_error err = {0};
    moec_file_close(&stored->file);
    temporary_write(stored->folder, "section", stored->bytes, stored->n_bytes);
    assert_status(moec_file_open(&stored->file, stored->path, &err), MOEC_OK, err);
}

static enum moec_status keep(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    (void)err;
    struct stored *stored = context;
    memcpy(stored->bytes + stored->n_bytes, bytes, n);
    stored->n_bytes += n;
    return MOEC_OK;
}

/* Every other piece compresses. */
static void make(struct stored *stored)
{
    struct moec_error err = {0};
    void *loaded = NULL;
    *stored = (struct stored){.file.fd = -1, .n_bytes = BEFORE_BYTES};
    stored->folder = temporary_folder();
    stored->path = temporary_path(stored->folder, "section");
    stored->content = malloc(CONTENT_BYTES);
    stored->bytes = calloc(2, CONTENT_BYTES);
    assert_status(moec_alloc_pages(&loaded, CONTENT_BYTES, "a section", &err), MOEC_OK, err);
    stored->loaded = loaded;
    assert_true(stored->content != NULL && stored->bytes != NULL);
    uint64_t random = 9;
    for (size_t i = 0; i < CONTENT_BYTES; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        stored->content[i] = (uint8_t)(random >> (i / PIECE % 2 == 0 ? 56 : 60));
    }
    assert_status(moec_pieces_encode(stored->content, CONTENT_BYTES, keep, stored, &err), MOEC_OK, err);
    stored->section = (struct moec_section){.flags = MOEC_SECTION_FLAG_COMPRESSED,
                                            .offset = BEFORE_BYTES,
                                            .stored_bytes = stored->n_bytes - BEFORE_BYTES,
                                            .content_bytes = CONTENT_BYTES,
                                            .name = "large"};
    for (uint64_t i = 0, at = BEFORE_BYTES; i < 8; i++) {
        stored->at[i] = at;
        at += MOEC_PIECE_HEADER_BYTES + (moec_get_u32(stored->bytes + at) & ~MOEC_PIECE_RAW);
    }
    write_file(stored);
}

static void release(struct stored *stored)
{
    if (stored->late != NULL)
        stored->late->free(stored->late);
    moec_file_close(&stored->file);
    free(stored->content);
    free(stored->loaded);
    free(stored->bytes);
    free(stored->path);
    temporary_remove(stored->folder);
}

static enum moec_status load(struct stored *stored, uint64_t from, uint64_t end, struct moec_error *err)
{
    memset(stored->loaded, 0xee, CONTENT_BYTES);
    return moec_late_pieces_load(&stored->file, &stored->section, from, end, stored->loaded, &stored->late,
                                 err);
}

static void check_there(const struct stored *stored, uint64_t from, uint64_t end)
{
    assert_memory_equal(stored->loaded + from, stored->content + from, end - from);
}

static void check_absent(const struct stored *stored, uint64_t from, uint64_t end)
{
    for (uint64_t i = from; i < end; i++)
        assert_int_equal(stored->loaded[i], 0);
}

static void test_late_pieces__come_when_asked_for(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    make(&stored);
    /* Of pieces 1 to 5 those at the ends are loaded: they reach over the range. */
    assert_status(load(&stored, PIECE + 4096, 5 * PIECE + 8192, &err), MOEC_OK, err);
    struct moec_dense_late *late = stored.late;
    check_there(&stored, 0, 2 * PIECE);
    check_absent(&stored, 2 * PIECE, 5 * PIECE);
    check_there(&stored, 5 * PIECE, CONTENT_BYTES);
    assert_status(late->bring(late, 0, 2 * PIECE, &err), MOEC_OK, err); /* which are there */
    assert_status(late->bring(late, 5 * PIECE, CONTENT_BYTES - 5 * PIECE, &err), MOEC_OK, err);
    check_absent(&stored, 2 * PIECE, 5 * PIECE);
    assert_status(late->bring(late, 3 * PIECE + 5, 1, &err), MOEC_OK, err);
    check_absent(&stored, 2 * PIECE, 3 * PIECE);
    check_there(&stored, 3 * PIECE, 4 * PIECE);
    check_absent(&stored, 4 * PIECE, 5 * PIECE);
    assert_status(late->bring(late, 4 * PIECE - 1, 2, &err), MOEC_OK, err); /* over a border */
    assert_status(late->bring(late, 2 * PIECE - 3, 4, &err), MOEC_OK, err);
    check_there(&stored, 0, CONTENT_BYTES);
    release(&stored);
}

static void test_late_pieces__whole_section(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    make(&stored);
    assert_status(load(&stored, 0, CONTENT_BYTES, &err), MOEC_OK, err);
    check_absent(&stored, 0, CONTENT_BYTES / 4096 * 4096);
    assert_status(stored.late->bring(stored.late, 0, CONTENT_BYTES, &err), MOEC_OK, err);
    check_there(&stored, 0, CONTENT_BYTES);
    release(&stored);
}

struct asking {
    struct stored *stored;
    uint64_t seed;
};

static void *ask(void *context)
{
    struct asking *asking = context;
    struct stored *stored = asking->stored;
    struct moec_error err = {0};
    uint64_t random = asking->seed;
    for (int i = 0; i < 200; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint64_t at = (random >> 33) % (CONTENT_BYTES - 1000);
        if (stored->late->bring(stored->late, at, 1000, &err) != MOEC_OK ||
            memcmp(stored->loaded + at, stored->content + at, 1000) != 0)
            return stored;
    }
    return NULL;
}

static void test_late_pieces__several_threads(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    pthread_t threads[4];
    struct asking asking[4];
    make(&stored);
    assert_status(load(&stored, 0, CONTENT_BYTES, &err), MOEC_OK, err);
    for (size_t i = 0; i < 4; i++) {
        asking[i] = (struct asking){&stored, i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &asking[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    release(&stored);
}

static void test_late_pieces__damage_is_found_when_it_is_asked_for(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    make(&stored);
    stored.bytes[stored.at[3] + 100] ^= 1;
    write_file(&stored);
    assert_status(load(&stored, PIECE, 6 * PIECE, &err), MOEC_OK, err);
    struct moec_dense_late *late = stored.late;
    for (int i = 0; i < 2; i++) {
        assert_status(late->bring(late, 3 * PIECE, 10, &err), MOEC_ERR_CHECKSUM, err);
        assert_message(err, "section 'large'");
    }
    err = (struct moec_error){0};
    assert_status(late->bring(late, 2 * PIECE, 10, &err), MOEC_OK, err);
    assert_status(late->bring(late, 4 * PIECE, 10, &err), MOEC_OK, err);
    check_there(&stored, 4 * PIECE, 5 * PIECE);
    late->free(late);
    stored.late = NULL;
    assert_status(load(&stored, 4 * PIECE, 6 * PIECE, &err), MOEC_ERR_CHECKSUM, err); /* piece 3 is loaded */
    assert_null(stored.late);
    release(&stored);
}

static void test_late_pieces__a_file_that_ends_early(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    make(&stored);
    assert_status(load(&stored, PIECE, 6 * PIECE, &err), MOEC_OK, err);
    assert_int_equal(truncate(stored.path, (off_t)stored.at[4]), 0);
    assert_status(stored.late->bring(stored.late, 3 * PIECE, 10, &err), MOEC_OK, err);
    assert_status(stored.late->bring(stored.late, 4 * PIECE, 10, &err), MOEC_ERR_IO, err);
    assert_message(err, "section");
    stored.late->free(stored.late);
    stored.late = NULL;
    err = (struct moec_error){0};
    assert_status(load(&stored, PIECE, 6 * PIECE, &err), MOEC_ERR_IO, err);
    release(&stored);
}

/* A writer cuts no such pieces, which would take more to keep in mind than to load. */
static void test_late_pieces__very_short_pieces(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    const uint32_t n_piece = 100000;
    make(&stored);
    stored.n_bytes = BEFORE_BYTES;
    for (uint32_t i = 0; i < n_piece; i++) {
        uint8_t *piece = stored.bytes + stored.n_bytes;
        moec_put_u32(piece, MOEC_PIECE_RAW | 2);
        moec_put_u32(piece + 4, moec_crc32c(0, stored.content + (size_t)2 * i, 2));
        memcpy(piece + MOEC_PIECE_HEADER_BYTES, stored.content + (size_t)2 * i, 2);
        stored.n_bytes += MOEC_PIECE_HEADER_BYTES + 2;
    }
    stored.section.flags |= MOEC_SECTION_FLAG_CUT;
    stored.section.stored_bytes = stored.n_bytes - BEFORE_BYTES;
    stored.section.content_bytes = (uint64_t)2 * n_piece;
    write_file(&stored);
    assert_status(load(&stored, 0, (uint64_t)2 * n_piece, &err), MOEC_OK, err);
    assert_status(stored.late->bring(stored.late, 0, (uint64_t)2 * n_piece, &err), MOEC_OK, err);
    check_there(&stored, 0, (uint64_t)2 * n_piece);
    release(&stored);
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
