#include "tests/unit/fixture_reader.h"

#include <errno.h>
#include <sys/mman.h>

/* NULL where this machine maps no files. */
static struct moec_reader *open_mapped(const struct place *place)
{
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    const struct moec_reader_options options = {
        .io = MOEC_IO_MAPPED, .buffer = {.bytes = place->buffer, .n_bytes = (uint64_t)MAX_READS * MAX_BYTES}};
    const enum moec_status status = moec_reader_create(&place->file, &options, &reader, &err);
    if (status == MOEC_ERR_UNSUPPORTED)
        return NULL;
    assert_status(status, MOEC_OK, err);
    return reader;
}

/* One request's answer. */
static int ask(struct moec_reader *reader, uint64_t offset, uint64_t n_bytes, uint8_t *buffer)
{
    struct moec_read read = {.offset = offset, .n_bytes = n_bytes, .buffer = buffer};
    reader->ops->submit(reader, &read);
    assert_ptr_equal(wait_for(reader), &read);
    return read.error;
}

static void test_reader__mapped_bytes_are_the_files(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_reader *reader = open_mapped(&place);
    if (reader == NULL) {
        place_release(&place);
        skip();
    }
    assert_int_equal(reader->alignment, BLOCK);
    assert_non_null(strstr(reader->description, "mapped through 4 threads"));
    uint64_t random = 17;
    for (uint32_t n = 1; n <= MAX_READS; n += 1 + random_u32(&random) % 7)
        read_batch(&place, reader, &random, n); /* which writes to what is mapped there between */
    assert_int_equal(ask(reader, 0, 0, place.buffer), 0);
    /* What it holds can be moved and written, and the file stays what it is. */
    assert_int_equal(ask(reader, BLOCK, MAX_BYTES, place.buffer), 0);
    assert_int_equal(ask(reader, 0, MAX_BYTES, place.buffer + MAX_BYTES), 0);
    memmove(place.buffer + 3 * BLOCK, place.buffer, MAX_BYTES);
    assert_memory_equal(place.buffer + 3 * BLOCK, place.content + BLOCK, MAX_BYTES);
    assert_memory_equal(place.buffer + 3 * BLOCK + MAX_BYTES, place.content + 3 * BLOCK,
                        MAX_BYTES - 3 * BLOCK);
    /* Another reader reads over it. */
    struct moec_reader *other = open_reader(&place, MOEC_IO_CACHED, MOEC_IO_ENGINE_AUTO, 4);
    assert_int_equal(ask(reader, 0, MAX_BYTES, place.buffer), 0);
    assert_int_equal(ask(other, 12345, 1000, place.buffer + BLOCK), 0);
    assert_memory_equal(place.buffer + BLOCK, place.content + 12345, 1000);
    assert_memory_equal(place.buffer + BLOCK + 1000, place.content + BLOCK + 1000, BLOCK);
    other->ops->destroy(other);
    uint8_t *again = malloc(FILE_BYTES);
    assert_non_null(again);
    assert_int_equal(pread(place.file.fd, again, FILE_BYTES, 0), FILE_BYTES);
    assert_memory_equal(again, place.content, FILE_BYTES);
    free(again);
    /* Behind it the buffer is memory of its own: the file may go. */
    reader->ops->destroy(reader);
    assert_int_equal(truncate(place.path, 0), 0);
    for (size_t i = 0; i < (size_t)MAX_READS * MAX_BYTES; i++)
        assert_int_equal(place.buffer[i], 0);
    place_release(&place);
}

static void test_reader__mapping_refuses_what_it_cannot_map(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_reader *reader = open_mapped(&place), *none = NULL;
    if (reader == NULL) {
        place_release(&place);
        skip();
    }
    uint8_t *end = place.buffer + (size_t)MAX_READS * MAX_BYTES;
    assert_int_equal(ask(reader, 100, 10, place.buffer), EINVAL);
    assert_int_equal(ask(reader, 0, 10, place.buffer + 64), EINVAL);
    assert_int_equal(ask(reader, 0, 2 * BLOCK, end - BLOCK), EINVAL);
    assert_int_equal(ask(reader, 0, 10, end + BLOCK), EINVAL);
    assert_int_equal(ask(reader, 0, UINT64_MAX, place.buffer), EINVAL);
    const uint64_t last = FILE_BYTES / BLOCK * BLOCK;
    assert_int_equal(ask(reader, last, FILE_BYTES - last, place.buffer), 0);
    assert_memory_equal(place.buffer, place.content + last, FILE_BYTES - last);
    assert_int_equal(ask(reader, last, FILE_BYTES - last + 1, place.buffer), ENODATA);
    assert_int_equal(ask(reader, last + BLOCK, 1, place.buffer), ENODATA);
    assert_int_equal(ask(reader, (uint64_t)1 << 62, 1, place.buffer), ENODATA);
    /* Cut off while it is open. */
    assert_int_equal(truncate(place.path, BLOCK + 5), 0);
    assert_int_equal(ask(reader, BLOCK, 6, place.buffer), ENODATA);
    assert_int_equal(ask(reader, 0, BLOCK + 5, place.buffer), 0);
    assert_memory_equal(place.buffer, place.content, BLOCK + 5);
    reader->ops->destroy(reader);

    struct moec_error err = {0};
    struct moec_reader_options options = {.io = MOEC_IO_MAPPED};
    assert_status(moec_reader_create(&place.file, &options, &none, &err), MOEC_ERR_UNSUPPORTED, err);
    assert_message(err, "no buffer of whole pages");
    place_release(&place);
}

/* In a child, as the process can map no more afterwards: 0, otherwise which step failed. */
static int read_without_mappings(const struct place *place)
{
    struct moec_reader *reader = open_mapped(place);
    if (reader == NULL)
        return 77;
    const size_t n = (size_t)1 << 30;
    uint8_t *pages = mmap(NULL, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return 77;
    size_t at = 0; /* every second page is another mapping */
    while (at < n && mprotect(pages + at, BLOCK, PROT_NONE) == 0)
        at += 2 * BLOCK;
    if (at >= n)
        return 77;
    for (uint32_t i = 0; i < 8; i++) {
        struct moec_read read = {.offset = (uint64_t)i * 3 * BLOCK,
                                 .n_bytes = MAX_BYTES,
                                 .buffer = place->buffer + (size_t)i * MAX_BYTES};
        reader->ops->submit(reader, &read);
        if (reader->ops->wait(reader) != &read || read.error != 0 ||
            memcmp(read.buffer, place->content + read.offset, MAX_BYTES) != 0)
            return 2;
    }
    return 0;
}

static void test_reader__reads_where_the_kernel_maps_no_more(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    const bool has_run = in_child(read_without_mappings, &place);
    place_release(&place);
    if (!has_run)
        skip();
}

static void test_reader__auto_maps_where_it_was_told_to(void **state)
{
    (void)state;
    struct place place;
    place_make(&place);
    struct moec_error err = {0};
    struct moec_reader *reader = open_mapped(&place);
    const bool can_map = reader != NULL;
    struct moec_reader_options options = {
        .sample = {.n_bytes = 50000, .end = FILE_BYTES},
        .buffer = {.bytes = place.buffer, .n_bytes = (uint64_t)MAX_READS * MAX_BYTES}};
    if (can_map)
        reader->ops->destroy(reader);
    assert_int_equal(fsync(place.file.fd), 0);
    assert_true(moec_file_cached_share(&place.file, 0, FILE_BYTES) == 1);
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_null(strstr(reader->description, "mapped"));
    reader->ops->destroy(reader);
    options.io = MOEC_IO_AUTO_MAPPED;
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(
        strstr(reader->description, can_map ? "mapped (auto: in the page cache) through " : "(not mapped: "));
    reader->ops->destroy(reader);
    options.buffer.bytes = NULL;
    assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
    assert_non_null(strstr(reader->description, ", in the page cache "));
    assert_non_null(strstr(reader->description, "(not mapped: there is no buffer"));
    reader->ops->destroy(reader);
    options.buffer.bytes = place.buffer;
    moec_file_drop(&place.file, 0, 2 * FILE_BYTES);
    if (moec_file_cached_share(&place.file, 0, FILE_BYTES) < 0.4) { /* not on a file system of memory alone */
        options.buffer.n_bytes = FILE_BYTES - 1;
        assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
        assert_null(strstr(reader->description, "mapped"));
        reader->ops->destroy(reader);
        options.sample.end = options.buffer.n_bytes; /* all records fit */
        assert_status(moec_reader_create(&place.file, &options, &reader, &err), MOEC_OK, err);
        assert_non_null(strstr(reader->description, can_map
                                                        ? "mapped (auto: memory has room for all) through "
                                                        : "(not mapped: "));
        reader->ops->destroy(reader);
    }
    place_release(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader__mapped_bytes_are_the_files),
        cmocka_unit_test(test_reader__mapping_refuses_what_it_cannot_map),
        cmocka_unit_test(test_reader__reads_where_the_kernel_maps_no_more),
        cmocka_unit_test(test_reader__auto_maps_where_it_was_told_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
