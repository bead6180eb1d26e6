/* Texts of variable length in HDF5 archives: read where they are, refused where their places lie. */
#include "formats/profile/h5_text.h"
#include "tests/unit/h5_image.h"
#include "tests/unit/status.h"

#include <stdio.h>
#include <stdlib.h>

static enum moec_status read(const uint8_t *bytes, size_t n_bytes, uint64_t header, const char *name,
                             uint64_t n, char *texts, size_t text_bytes, struct moec_error *err)
{
    const struct moec_h5_image image = {.bytes = bytes, .n_bytes = n_bytes, .base = H5_IMAGE_BASE};
    return moec_h5_text_read(&image, header, name, texts, (struct moec_h5_text_list){text_bytes, n}, err);
}

static void test_h5_text__reads(void **state)
{
    (void)state;
    uint8_t bytes[H5_IMAGE_BYTES];
    char texts[2][16];
    struct moec_error err = {0};
    h5_image_make(bytes);
    assert_int_equal(read(bytes, sizeof bytes, H5_IMAGE_HEAD, "one", 1, texts[0], sizeof texts[0], &err),
                     MOEC_OK);
    assert_string_equal(texts[0], "first text");
    assert_int_equal(read(bytes, sizeof bytes, H5_IMAGE_HEAD, "list", 2, texts[0], sizeof texts[0], &err),
                     MOEC_OK);
    assert_string_equal(texts[0], "second");
    assert_string_equal(texts[1], "third text");
    assert_int_equal(read(bytes, sizeof bytes, H5_IMAGE_HEAD, "none", 1, texts[0], sizeof texts[0], &err),
                     MOEC_OK);
    assert_string_equal(texts[0], "");
}

static void expect_refused(const uint8_t *bytes, uint64_t header, const char *name, uint64_t n,
                           size_t text_bytes, enum moec_status expected, const char *part)
{
    char texts[4 * 16];
    struct moec_error err = {0};
    assert_int_equal(read(bytes, H5_IMAGE_BYTES, header, name, n, texts, text_bytes, &err), expected);
    if (strstr(err.message, part) == NULL)
        fail_msg("'%s' not in '%s'", part, err.message);
}

static void test_h5_text__what_is_asked_must_be_there(void **state)
{
    (void)state;
    uint8_t bytes[H5_IMAGE_BYTES];
    h5_image_make(bytes);
    expect_refused(bytes, H5_IMAGE_HEAD, "two", 1, 16, MOEC_ERR_FORMAT, "the object's header lists no text");
    expect_refused(bytes, H5_IMAGE_HEAD, "list", 4, 16, MOEC_ERR_FORMAT,
                   "the attribute has 2 texts, expected 4");
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 10, MOEC_ERR_FORMAT, "text 0 is longer than 9 bytes");
    expect_refused(bytes, H5_IMAGE_BYTES, "one", 1, 16, MOEC_ERR_FORMAT, "no header at address 512");
    expect_refused(bytes, UINT64_MAX, "one", 1, 16, MOEC_ERR_FORMAT, "no header at address");
    memcpy(bytes + H5_IMAGE_BASE + H5_IMAGE_HEAD, "OHDR", 4);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_UNSUPPORTED, "libver='earliest'");
}

/* HDF5 would write over its memory for the first of these, and fill 8 GiB for the second. */
static void test_h5_text__places_that_lie_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[H5_IMAGE_BYTES];
    char text[16];
    struct moec_error err = {0};
    h5_image_make(bytes);
    moec_put_u32(bytes + H5_IMAGE_PLACE, 5);
    assert_int_equal(read(bytes, sizeof bytes, H5_IMAGE_HEAD, "one", 1, text, sizeof text, &err), MOEC_OK);
    assert_string_equal(text, "first");
    moec_put_u32(bytes + H5_IMAGE_PLACE, UINT32_MAX);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_FORMAT,
                   "text 0 (4294967295 bytes) is not in a heap");
    h5_image_make(bytes);
    moec_put_u64(bytes + H5_IMAGE_PLACE + 4, UINT64_MAX - 7);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_FORMAT, "is not in a heap");
    h5_image_make(bytes);
    moec_put_u32(bytes + H5_IMAGE_PLACE + 12, 9);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_FORMAT, "is not in a heap");
    h5_image_make(bytes);
    moec_put_u64(bytes + H5_IMAGE_BASE + H5_IMAGE_HEAP + 8, H5_IMAGE_BYTES);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_FORMAT, "is not in a heap");
    h5_image_make(bytes);
    moec_put_u64(bytes + H5_IMAGE_BASE + H5_IMAGE_HEAP + 16 + 8, UINT64_MAX - 15);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_FORMAT, "is not in a heap");
    h5_image_make(bytes);
    moec_put_u16(bytes + H5_IMAGE_BASE + H5_IMAGE_HEAD + 16 + 2, UINT16_MAX);
    expect_refused(bytes, H5_IMAGE_HEAD, "one", 1, 16, MOEC_ERR_FORMAT, "extends past the end of its block");
}

/* At every length the archive ends where its memory ends: a sanitizer sees what reads behind it. */
static void test_h5_text__truncation_is_safe(void **state)
{
    (void)state;
    uint8_t bytes[H5_IMAGE_BYTES];
    h5_image_make(bytes);
    for (size_t n = 0; n < sizeof bytes; n++) {
        uint8_t *copy = malloc(n > 0 ? n : 1);
        char texts[2][16];
        struct moec_error err = {0};
        assert_non_null(copy);
        memcpy(copy, bytes, n);
        assert_int_not_equal(read(copy, n, H5_IMAGE_HEAD, "list", 2, texts[0], sizeof texts[0], &err),
                             MOEC_OK);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_h5_text__reads),
        cmocka_unit_test(test_h5_text__what_is_asked_must_be_there),
        cmocka_unit_test(test_h5_text__places_that_lie_are_refused),
        cmocka_unit_test(test_h5_text__truncation_is_safe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
