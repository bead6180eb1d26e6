/* Readers of a bundle's records: the way of reading that is asked for, whole records, words for failures. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "runtime/storage/record_reader.h"

#include <errno.h>

static struct sample_fixture *make_fixture(uint32_t alignment)
{
    struct sample_fixture *f = calloc(1, sizeof *f);
    sample_make(&f->sample, 8, 40, 24, 9);
    f->sample.parts.alignment = alignment;
    sample_open(f);
    return f;
}

static int set_up(void **state)
{
    *state = make_fixture(4096);
    return 0;
}

static int set_up_dense(void **state)
{
    *state = make_fixture(64);
    return 0;
}

/* Every record of a copy through this reader, checked by its CRC32C. */
static void read_all(const struct sample_fixture *f, uint32_t copy, struct moec_reader *reader,
                     uint8_t *buffer)
{
    for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE; ordinal++)
        for (uint32_t expert = 0; expert < 8; expert++) {
            const struct moec_record_entry *entry = moec_bundle_record(f->bundle, copy, ordinal, expert);
            struct moec_error err = {0};
            const struct moec_record_place place =
                moec_record_place_of(f->bundle, entry->offset, entry->n_bytes);
            struct moec_read read = {.offset = place.offset, .n_bytes = place.n_bytes, .buffer = buffer};
            assert_int_equal(place.offset % reader->alignment, 0);
            assert_int_equal(place.offset + place.skip, entry->offset);
            reader->ops->submit(reader, &read);
            assert_ptr_equal(reader->ops->wait(reader), &read);
            assert_int_equal(read.error, 0);
            assert_status(moec_bundle_check_record(f->bundle, (struct moec_record_id){copy, ordinal, expert},
                                                   buffer + place.skip, true, &err),
                          MOEC_OK, err);
            const uint64_t slot = moec_record_slot_bytes(f->bundle, copy, ordinal, expert);
            assert_true(slot >= place.n_bytes && slot % f->bundle->alignment == 0);
            assert_int_equal(slot % reader->alignment, 0);
        }
}

static void test_record_reader__reads_every_record(void **state)
{
    const struct sample_fixture *f = *state;
    static const enum moec_io ways[] = {MOEC_IO_AUTO, MOEC_IO_DIRECT, MOEC_IO_CACHED};
    uint8_t *buffer = aligned_alloc(4096, 65536);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct moec_error err = {0};
        struct moec_reader *reader = NULL;
        const struct moec_record_io io = {.io = ways[i], .emulation = {i * 1000000000u, 1000, 0}};
        const enum moec_status status = moec_record_reader_create(
            f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536}, &reader, &err);
        if (status == MOEC_ERR_UNSUPPORTED && ways[i] == MOEC_IO_DIRECT)
            continue; /* a file system without direct reads */
        assert_status(status, MOEC_OK, err);
        assert_true((i > 0) == (strncmp(reader->description, "emulated", 8) == 0));
        read_all(f, 1, reader, buffer);
        reader->ops->destroy(reader);
    }
    free(buffer);
}

static void test_record_reader__maps_where_records_stand_on_pages(void **state)
{
    const struct sample_fixture *f = *state;
    uint8_t *buffer = aligned_alloc(4096, 65536);
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    struct moec_record_io io = {.io = MOEC_IO_MAPPED};
    const enum moec_status status =
        moec_record_reader_create(f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536}, &reader, &err);
    if (f->bundle->alignment < 4096) {
        assert_status(status, MOEC_ERR_UNSUPPORTED, err);
        assert_message(err, "bytes, mapping needs 4096");
    } else if (status != MOEC_ERR_UNSUPPORTED) { /* on a machine that maps */
        assert_status(status, MOEC_OK, err);
        read_all(f, 1, reader, buffer);
        reader->ops->destroy(reader);
        io.io = MOEC_IO_AUTO_MAPPED;
        assert_status(moec_record_reader_create(f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536},
                                                &reader, &err),
                      MOEC_OK, err);
        assert_non_null(strstr(reader->description, "mapped (auto: "));
        read_all(f, 0, reader, buffer);
        reader->ops->destroy(reader);
    }
    io = (struct moec_record_io){.io = MOEC_IO_AUTO_MAPPED, .emulation = {1000000000, 1000, 0}};
    assert_status(
        moec_record_reader_create(f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536}, &reader, &err),
        MOEC_OK, err);
    assert_non_null(strstr(reader->description, "us a request over cached through"));
    reader->ops->destroy(reader);
    err = (struct moec_error){0};
    io.io = MOEC_IO_MAPPED;
    assert_status(
        moec_record_reader_create(f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536}, &reader, &err),
        MOEC_ERR_USAGE, err);
    assert_message(err, "emulated storage cannot map");
    free(buffer);
}

static void test_record_reader__emulation_stands_on_the_page_cache(void **state)
{
    const struct sample_fixture *f = *state;
    uint8_t *buffer = aligned_alloc(4096, 65536);
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    const struct moec_record_io io = {.emulation = {1000000000, 1000, 0}};
    assert_status(
        moec_record_reader_create(f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536}, &reader, &err),
        MOEC_OK, err);
    assert_non_null(strstr(reader->description, "us a request over cached through"));
    reader->ops->destroy(reader);
    free(buffer);
}

/* Small records are read directly from the block of the device that they begin in, of 512 or of 4096 bytes; here every way
 * in which such a record may lie in blocks of 4096 occurs. */
static void read_small_records(uint32_t alignment)
{
    struct sample_fixture *f = make_fixture(alignment);
    static const enum moec_io ways[] = {MOEC_IO_AUTO, MOEC_IO_DIRECT, MOEC_IO_CACHED};
    static const enum moec_io_engine engines[] = {MOEC_IO_ENGINE_AUTO, MOEC_IO_ENGINE_THREADS};
    uint8_t *buffer = aligned_alloc(4096, 65536);
    uint32_t n_inside = 0, n_across = 0;
    const uint32_t found = f->bundle->direct_unit;
    assert_true(found == 512 || found == 4096);
    for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE; ordinal++)
        for (uint32_t expert = 0; expert < 8; expert++) {
            const struct moec_record_entry *entry = moec_bundle_record(f->bundle, 0, ordinal, expert);
            n_inside += entry->offset % 4096 != 0;
            n_across += entry->offset / 4096 != (entry->offset + entry->n_bytes - 1) / 4096;
        }
    assert_true(n_inside > 4 && n_across > 4);
    for (int forced = 0; forced < 2; forced++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            for (size_t j = 0; j < sizeof engines / sizeof *engines; j++) {
                struct moec_error err = {0};
                struct moec_reader *reader = NULL;
                const struct moec_record_io io = {.io = ways[i], .engine = engines[j]};
                f->bundle->direct_unit = forced ? 4096 : found;
                const enum moec_status status = moec_record_reader_create(
                    f->bundle, 1, &io, (struct moec_read_buffer){buffer, 65536}, &reader, &err);
                if (status == MOEC_ERR_UNSUPPORTED && ways[i] == MOEC_IO_DIRECT)
                    continue; /* a file system without direct reads */
                assert_status(status, MOEC_OK, err);
                if (ways[i] == MOEC_IO_DIRECT)
                    assert_int_equal(reader->alignment, f->bundle->direct_unit);
                read_all(f, 1, reader, buffer);
                read_all(f, 0, reader, buffer);
                reader->ops->destroy(reader);
            }
    free(buffer);
    void *whole = f;
    (void)sample_tear_down(&whole);
}

static void test_record_reader__small_records_are_read_by_the_unit_of_the_device(void **state)
{
    (void)state;
    for (uint32_t alignment = MOEC_BUNDLE_LEAST_ALIGNMENT; alignment <= MOEC_BUNDLE_SMALL_ALIGNMENT;
         alignment *= 2)
        read_small_records(alignment);
}

static struct moec_reader *note_and_return(void *context, struct moec_reader *base)
{
    *(struct moec_reader **)context = base;
    return base;
}

static void test_record_reader__another_reader_may_stand_on_top(void **state)
{
    const struct sample_fixture *f = *state;
    struct moec_error err = {0};
    struct moec_reader *reader = NULL, *noted = NULL;
    const struct moec_record_io io = {.test_hook = {note_and_return, &noted}};
    assert_status(
        moec_record_reader_create(f->bundle, 0, &io, (struct moec_read_buffer){NULL, 0}, &reader, &err),
        MOEC_OK, err);
    assert_ptr_equal(reader, noted);
    reader->ops->destroy(reader);
}

static void test_record_reader__failures_name_the_record(void **state)
{
    const struct sample_fixture *f = *state;
    struct moec_error err = {0};
    assert_int_equal(moec_record_failed(f->bundle, (struct moec_record_id){1, 1, 5}, EIO, NULL, &err),
                     MOEC_ERR_IO);
    assert_message(err, "layer 2 expert 5 (copy 1)");
    assert_message(err, strerror(EIO));
    err = (struct moec_error){0};
    assert_int_equal(moec_record_failed(f->bundle, (struct moec_record_id){0, 0, 5}, ENODATA, NULL, &err),
                     MOEC_ERR_IO);
    assert_message(err, "the file ends before the end of the record");
    const struct moec_error words = {.status = MOEC_ERR_FORMAT, .message = "a scale that is not finite"};
    err = (struct moec_error){0};
    assert_int_equal(moec_record_failed(f->bundle, (struct moec_record_id){1, 1, 5}, 0, &words, &err),
                     MOEC_ERR_FORMAT);
    assert_message(err, "a scale that is not finite; the record was read 3 times");
    err = (struct moec_error){0};
    assert_int_equal(moec_record_failed(f->bundle, (struct moec_record_id){1, 1, 5}, 0, NULL, &err),
                     MOEC_ERR_CHECKSUM);
    assert_message(err, "layer 2 expert 5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_record_reader__reads_every_record, set_up, sample_tear_down),
        cmocka_unit_test_setup_teardown(test_record_reader__maps_where_records_stand_on_pages, set_up,
                                        sample_tear_down),
        {"test_record_reader__maps_where_records_stand_on_pages, between pages",
         test_record_reader__maps_where_records_stand_on_pages, set_up_dense, sample_tear_down, NULL},
        cmocka_unit_test_setup_teardown(test_record_reader__emulation_stands_on_the_page_cache, set_up,
                                        sample_tear_down),
        cmocka_unit_test_setup_teardown(test_record_reader__another_reader_may_stand_on_top, set_up,
                                        sample_tear_down),
        cmocka_unit_test_setup_teardown(test_record_reader__failures_name_the_record, set_up,
                                        sample_tear_down),
        cmocka_unit_test(test_record_reader__small_records_are_read_by_the_unit_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
