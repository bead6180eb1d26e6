/* What of foreign text may reach a terminal, and that messages go through it. */
#include "formats/base/printable.h"

#include "tests/unit/status.h"

#include <stdio.h>
#include <stdlib.h>

static void expect(const char *text, size_t n, bool keeps_lines, const char *expected)
{
    char out[256];
    assert_int_equal(moec_printable(text, n, keeps_lines, out, sizeof out), strlen(expected));
    assert_string_equal(out, expected);
    char again[256];
    assert_int_equal(moec_printable(out, strlen(out), keeps_lines, again, sizeof again), strlen(expected));
    assert_string_equal(again, expected);
}

#define EXPECT(text, expected) expect(text, sizeof(text) - 1, false, expected)

static void test_printable__keeps_what_is_text(void **state)
{
    (void)state;
    EXPECT("", "");
    EXPECT("plain 'text' \\ ~", "plain 'text' \\ ~");
    EXPECT("gr\xc3\xbc\xc3\x9f \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\xa6\x99",
           "gr\xc3\xbc\xc3\x9f \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\xa6\x99");
    expect("a\n\tb", 4, true, "a\n\tb");
}

static void test_printable__escapes_what_steers_a_terminal(void **state)
{
    (void)state;
    EXPECT("a\x1b[31mb", "a\\x1b[31mb");
    EXPECT("\x00\x07\r\n\t\x7f", "\\x00\\x07\\x0d\\x0a\\x09\\x7f");
    expect("\r\n\x1b", 3, true, "\\x0d\n\\x1b");
    EXPECT("\xc2\x9b"
           "2J",
           "\\xc2\\x9b2J"); /* CSI of C1 */
    EXPECT("\xe2\x80\xae"
           "abc",
           "\\xe2\\x80\\xae"
           "abc");                             /* right-to-left override */
    EXPECT("\xe2\x80\xa8", "\\xe2\\x80\\xa8"); /* line separator */
}

static void test_printable__escapes_what_is_no_utf8(void **state)
{
    (void)state;
    EXPECT("\xff"
           "a\x80",
           "\\xffa\\x80");
    EXPECT("\xc0\xaf", "\\xc0\\xaf"); /* overlong */
    EXPECT("\xe0\x9f\xbf", "\\xe0\\x9f\\xbf");
    EXPECT("\xed\xa0\x80", "\\xed\\xa0\\x80");          /* a surrogate */
    EXPECT("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"); /* over U+10FFFF */
    EXPECT("\xe6\x97", "\\xe6\\x97");                   /* cut */
}

static void test_printable__cuts_behind_whole_characters(void **state)
{
    (void)state;
    char out[6] = "";
    assert_int_equal(moec_printable("ab\x1b"
                                    "c",
                                    4, false, out, sizeof out),
                     7);
    assert_string_equal(out, "ab");
    assert_int_equal(moec_printable("abcd\xc3\xbc", 6, false, out, sizeof out), 6);
    assert_string_equal(out, "abcd");
    assert_int_equal(moec_printable("x\x1b", 2, false, NULL, 0), 5);
}

static void test_printable__messages_are(void **state)
{
    (void)state;
    struct moec_error err = {0};
    assert_int_equal(moec_fail(&err, MOEC_ERR_FORMAT, "tensor '%s'\n", "a\x1b[2J"), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "tensor 'a\\x1b[2J'\\x0a");
    assert_int_equal(moec_error_prefix(&err, "file '%s'", "\x1b"), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "file '\\x1b': tensor 'a\\x1b[2J'\\x0a");
    /* A message that is too long ends behind a whole character. */
    char text[2 * MOEC_ERROR_BYTES];
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "\xc3\xbc", 3);
    struct moec_error cut = {0};
    assert_int_equal(moec_fail(&cut, MOEC_ERR_FORMAT, "x%s", text), MOEC_ERR_FORMAT);
    assert_null(strchr(cut.message, '\\'));
    assert_int_equal(strlen(cut.message) % 2, 1);
    assert_true(strlen(cut.message) > MOEC_ERROR_BYTES - 6);
    cut = (struct moec_error){0};
    assert_int_equal(moec_fail(&cut, MOEC_ERR_FORMAT, "%s", text), MOEC_ERR_FORMAT);
    assert_null(strchr(cut.message, '\\'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printable__keeps_what_is_text),
        cmocka_unit_test(test_printable__escapes_what_steers_a_terminal),
        cmocka_unit_test(test_printable__escapes_what_is_no_utf8),
        cmocka_unit_test(test_printable__cuts_behind_whole_characters),
        cmocka_unit_test(test_printable__messages_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
