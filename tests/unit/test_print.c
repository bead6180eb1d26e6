/* Text for people: lines broken at 80 columns. */
#include "cli/print/print.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *wrapped(size_t indent, const char *text)
{
    char *out = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&out, &n);
    assert_non_null(memory);
    cli_put_wrapped(memory, indent, text);
    assert_int_equal(fclose(memory), 0);
    return out;
}

static void expect(size_t indent, const char *text, const char *expected)
{
    char *out = wrapped(indent, text);
    assert_string_equal(out, expected);
    free(out);
}

#define TEN     "123456789 "
#define SEVENTY TEN TEN TEN TEN TEN TEN TEN

static void short_lines_stay(void **state)
{
    (void)state;
    expect(4, "", "");
    expect(4, "one\n", "one\n");
    expect(4, "  one\n\ntwo", "  one\n\ntwo");
    expect(4, SEVENTY "1234567890", SEVENTY "1234567890");
}

static void long_lines_break_at_spaces(void **state)
{
    (void)state;
    expect(4, SEVENTY "12345678901\nx\n", TEN TEN TEN TEN TEN TEN "123456789\n    12345678901\nx\n");
    expect(0, SEVENTY "1234567890   more", SEVENTY "1234567890\nmore");
    expect(6, SEVENTY "123456789 " SEVENTY "1", SEVENTY "123456789\n      " SEVENTY "1");
}

static void long_words_stay_whole(void **state)
{
    char word[128];
    char text[160], expected[176];
    (void)state;
    memset(word, 'a', 100);
    word[100] = '\0';
    expect(2, word, word);
    (void)snprintf(text, sizeof text, "  file %s end", word);
    (void)snprintf(expected, sizeof expected, "  file\n    %s\n    end", word);
    expect(4, text, expected);
}

static void no_line_is_longer(void **state)
{
    char text[512];
    (void)state;
    for (size_t n = 1; n < 40; n++) {
        size_t length = 0;
        while (length + n + 2 < sizeof text) {
            memset(text + length, 'b', n);
            text[length + n] = ' ';
            length += n + 1;
        }
        text[length - 1] = '\0';
        char *out = wrapped(10, text);
        size_t n_words = 0;
        for (const char *line = out; line != NULL; line = strchr(line, '\n'), line += line != NULL)
            assert_true(strcspn(line, "\n") <= CLI_COLUMNS);
        for (const char *at = out; (at = strchr(at, 'b')) != NULL; at += strspn(at, "b"), n_words++)
            assert_int_equal(strspn(at, "b"), n);
        assert_int_equal(n_words, length / (n + 1));
        free(out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_lines_stay),
        cmocka_unit_test(long_lines_break_at_spaces),
        cmocka_unit_test(long_words_stay_whole),
        cmocka_unit_test(no_line_is_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
