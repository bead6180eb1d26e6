/* Large sections, whose SHA-256 is computed beside reading them. */
#include "tests/unit/stored_section.h"

#include "formats/bundle/section_hash.h"

#define CONTENT_BYTES (6u * 1024 * 1024 + 12345)
#define STORED_PIECE  (MOEC_PIECE_HEADER_BYTES + MOEC_PIECE_BYTES) /* of what does not compress */

static void test_section_hash__a_large_section_is_read(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    stored_make(&stored, CONTENT_BYTES, false);
    assert_status(moec_section_load(&stored.file, &stored.section, stored.loaded, &err), MOEC_OK, err);
    assert_memory_equal(stored.loaded, stored.content, CONTENT_BYTES);
    stored_release(&stored);
}

/* Two whole pieces in each other's place: their own checksums are right. */
static void test_section_hash__pieces_that_changed_places_are_found(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    stored_make(&stored, CONTENT_BYTES, false);
    uint8_t *first = stored.bytes + BEFORE_BYTES, *piece = malloc(STORED_PIECE);
    assert_non_null(piece);
    memcpy(piece, first, STORED_PIECE);
    memmove(first, first + STORED_PIECE, STORED_PIECE);
    memcpy(first + STORED_PIECE, piece, STORED_PIECE);
    free(piece);
    stored_write(&stored);
    assert_status(moec_section_load(&stored.file, &stored.section, stored.loaded, &err), MOEC_ERR_CHECKSUM,
                  err);
    assert_message(err, "its SHA-256 does not match");
    stored_release(&stored);
}

static void test_section_hash__damage_and_a_short_file_are_told_once(void **state)
{
    (void)state;
    struct stored stored;
    struct moec_error err = {0};
    stored_make(&stored, CONTENT_BYTES, false);
    stored.bytes[stored.n_bytes - 5] ^= 1;
    stored_write(&stored);
    assert_status(moec_section_load(&stored.file, &stored.section, stored.loaded, &err), MOEC_ERR_CHECKSUM,
                  err);
    assert_message(err, "the piece of");
    err = (struct moec_error){0};
    stored.n_bytes -= 100;
    stored_write(&stored);
    assert_status(moec_section_load(&stored.file, &stored.section, stored.loaded, &err), MOEC_ERR_IO, err);
    assert_message(err, "the file is truncated");
    stored_release(&stored);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_section_hash__a_large_section_is_read),
        cmocka_unit_test(test_section_hash__pieces_that_changed_places_are_found),
        cmocka_unit_test(test_section_hash__damage_and_a_short_file_are_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
