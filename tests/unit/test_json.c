#include "formats/json/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct moec_json *parse(const char *text)
{
    struct moec_error err = {0};
    struct moec_json *root = NULL;
    assert_int_equal(moec_json_parse(text, strlen(text), 1 << 20, "a.json", &root, &err), MOEC_OK);
    return root;
}

static void expect_refused(const char *text, size_t n_bytes, enum moec_status expected, const char *part)
{
    struct moec_error err = {0};
    struct moec_json *root = NULL;
    assert_int_equal(moec_json_parse(text, n_bytes, 100, "a.json", &root, &err), expected);
    assert_null(root);
    if (strstr(err.message, part) == NULL)
        fail_msg("message '%s' lacks '%s'", err.message, part);
}

static void test_json__names_file_and_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "'a.json' is not valid JSON at line 1 column 1 (byte 0)"},
        {"{\"a\": 1,\n  \"b\": }", "line 2"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"[1, 2] 3", "'a.json'"},
        {"[1e999]", "line 1"},
        {"[99999999999999999999]", "line 1"},
        {"[\"\\ud800\"]", "line 1"},
        {"[\"\xff\"]", "line 1"},
        {"nul", "line 1"},
        {"[nan]", "line 1"},
        {"[NaNs]", "line 1"},
        {"[1, +Infinity]", "line 1"},
        {"[--Infinity]", "line 1"},
        {"[Infinity 1]", "line 1"},
        {"[NaN, Inf]", "line 1"},
        {"[1 NaN]", "line 1"},
        {"{NaN: 1}", "line 1"},
        {"NaN NaN", "line 1"},
        {"[-NaN]", "line 1"},
        {"[NaN, \"\x7f\"]", "has NaN or Infinity and also a string of only DEL"},
        {"{\"a\\u0000b\": 1}", "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_refused(cases[i].text, strlen(cases[i].text), MOEC_ERR_FORMAT, cases[i].part);
}

/* What Python's json module writes for floats that are not finite. */
static void test_json__numbers_that_are_not_finite(void **state)
{
    (void)state;
    struct moec_json *root = parse(
        "{\"limit\": [0.0, Infinity], \"no\": NaN,\n\"less\": -Infinity , \"text\": \"NaN, [Infinity]\", "
        "\"quote\": \"\\\"\", \"last\":NaN}");
    double real = 0;
    uint64_t number = 0;
    const char *text = NULL;
    struct moec_error err = {0};
    const struct moec_json *limit = moec_json_find(root, "limit"), *end = moec_json_at(limit, 1);
    assert_int_equal(moec_json_type(end), MOEC_JSON_REAL);
    assert_string_equal(moec_json_type_name(end), "Infinity");
    assert_int_equal(moec_json_as_double(end, "end", 0, HUGE_VAL, &real, &err), MOEC_OK);
    assert_true(real == HUGE_VAL);
    assert_int_equal(moec_json_get_double(root, "x", "less", -HUGE_VAL, 0, &real, &err), MOEC_OK);
    assert_true(real == -HUGE_VAL);
    assert_int_equal(moec_json_get_string(root, "x", "text", &text, NULL, &err), MOEC_OK);
    assert_string_equal(text, "NaN, [Infinity]");
    assert_int_equal(moec_json_as_double(end, "end", 0, 9, &real, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "end is Infinity, expected 0..9");
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_double(root, "'a.json'", "no", -HUGE_VAL, HUGE_VAL, &real, &err),
                     MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "'no' in 'a.json' is NaN, expected -inf..inf");
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_u64(root, "'a.json'", "last", 0, 9, &number, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "'last' in 'a.json' is NaN, expected an integer");
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_string(root, "'a.json'", "less", &text, NULL, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "'less' in 'a.json' is -Infinity, expected a string");
    moec_json_free(root);
    root = parse(" -Infinity");
    assert_string_equal(moec_json_type_name(root), "-Infinity");
    moec_json_free(root);
    root = parse("[\"\x7f\"]"); /* a string like any other */
    assert_int_equal(moec_json_type(moec_json_at(root, 0)), MOEC_JSON_STRING);
    moec_json_free(root);
}

static void test_json__limits_size_and_depth(void **state)
{
    (void)state;
    char text[2 * MOEC_JSON_MAX_DEPTH + 8];
    size_t n = MOEC_JSON_MAX_DEPTH + 1;
    memset(text, '[', n);
    expect_refused(text, n, MOEC_ERR_LIMIT, "deeper than 64 levels at line 1 column 65 (byte 64)");
    memset(text, ' ', 101);
    expect_refused(text, 101, MOEC_ERR_LIMIT, "101 bytes");

    struct moec_error err = {0};
    struct moec_json *root = NULL;
    memset(text, '[', MOEC_JSON_MAX_DEPTH);
    memset(text + MOEC_JSON_MAX_DEPTH, ']', MOEC_JSON_MAX_DEPTH);
    assert_int_equal(moec_json_parse(text, 2 * MOEC_JSON_MAX_DEPTH, sizeof text, "a.json", &root, &err),
                     MOEC_OK);
    moec_json_free(root);
    /* Brackets in strings are text. */
    const char *quoted = "\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[\"";
    assert_int_equal(moec_json_parse(quoted, strlen(quoted), 1000, "a.json", &root, &err), MOEC_OK);
    moec_json_free(root);
}

static void test_json__getters_check_type_and_range(void **state)
{
    (void)state;
    struct moec_json *root =
        parse("{\"n\": 7, \"x\": 0.5, \"s\": \"text\", \"b\": true, \"z\": null, \"minus\": -1,"
              " \"nul\": \"a\\u0000b\", \"list\": [1, 2]}");
    uint64_t number = 0;
    double real = 0;
    bool flag = false;
    const char *text = NULL;
    size_t length = 0;
    struct moec_error err = {0};
    assert_int_equal(moec_json_get_u64(root, "'a.json'", "n", 1, 7, &number, &err), MOEC_OK);
    assert_int_equal(number, 7);
    assert_int_equal(moec_json_get_double(root, "'a.json'", "x", 0, 1, &real, &err), MOEC_OK);
    assert_true(real == 0.5);
    assert_int_equal(moec_json_get_double(root, "'a.json'", "n", 0, 10, &real, &err), MOEC_OK);
    assert_true(real == 7);
    assert_int_equal(moec_json_get_string(root, "'a.json'", "s", &text, NULL, &err), MOEC_OK);
    assert_string_equal(text, "text");
    assert_int_equal(moec_json_get_string(root, "'a.json'", "nul", &text, &length, &err), MOEC_OK);
    assert_int_equal(length, 3);
    assert_int_equal(moec_json_get_bool(root, "'a.json'", "b", &flag, &err), MOEC_OK);
    assert_true(flag);
    assert_int_equal(moec_json_get_u64_or(root, "'a.json'", "z", 0, 9, 5, &number, &err), MOEC_OK);
    assert_int_equal(number, 5);
    assert_int_equal(moec_json_get_string_or(root, "'a.json'", "none", "else", &text, &err), MOEC_OK);
    assert_string_equal(text, "else");

    assert_int_equal(moec_json_get_u64(root, "'a.json'", "n", 0, 6, &number, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "'n' in 'a.json' is 7, expected 0..6");
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_u64(root, "'a.json'", "minus", 0, UINT64_MAX, &number, &err),
                     MOEC_ERR_FORMAT);
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_u64(root, "'a.json'", "x", 0, 6, &number, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "'x' in 'a.json' is a real, expected an integer");
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_string(root, "'a.json'", "none", &text, NULL, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "'a.json' has no 'none'");
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_string(root, "'a.json'", "nul", &text, NULL, &err), MOEC_ERR_FORMAT);
    assert_non_null(strstr(err.message, "NUL"));
    err = (struct moec_error){0};
    assert_int_equal(moec_json_get_bool_or(root, "'a.json'", "n", false, &flag, &err), MOEC_ERR_FORMAT);
    err = (struct moec_error){0};
    const struct moec_json *list = moec_json_find(root, "list");
    assert_int_equal(moec_json_get_u64(list, "the list", "n", 0, 6, &number, &err), MOEC_ERR_FORMAT);
    assert_string_equal(err.message, "the list is an array, expected an object");
    moec_json_free(root);
}

static void test_json__walks_in_the_order_of_the_file(void **state)
{
    (void)state;
    struct moec_json *root = parse("{\"z\": 1, \"a\": 2, \"m\": [10, 20, 30]}");
    char keys[8] = "";
    size_t n = 0;
    for (struct moec_json_member m = moec_json_first(root); m.key != NULL; m = moec_json_next(root, m))
        keys[n++] = m.key[0];
    assert_string_equal(keys, "zam");
    const struct moec_json *list = moec_json_find(root, "m");
    assert_int_equal(moec_json_length(list), 3);
    uint64_t third = 0;
    assert_int_equal(moec_json_as_u64(moec_json_at(list, 2), "item 2", 0, 99, &third, NULL), MOEC_OK);
    assert_int_equal(third, 30);
    assert_null(moec_json_at(list, 3));
    moec_json_free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json__names_file_and_place),
        cmocka_unit_test(test_json__numbers_that_are_not_finite),
        cmocka_unit_test(test_json__limits_size_and_depth),
        cmocka_unit_test(test_json__getters_check_type_and_range),
        cmocka_unit_test(test_json__walks_in_the_order_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
