/* JSON that is built: its bytes, which files of earlier versions have too. */
#include "tests/unit/status.h"

#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both texts of `root`, which is freed. */
static void assert_texts(struct moec_json_out *root, const char *text, const char *line)
{
    struct moec_error err = {0};
    char *got = NULL;
    assert_status(moec_json_out_text(root, &got, &err), MOEC_OK, err);
    assert_string_equal(got, text);
    free(got);
    assert_status(moec_json_out_line(root, &got, &err), MOEC_OK, err);
    assert_string_equal(got, line);
    free(got);
    moec_json_out_free(root);
}

static void test_nesting(void **state)
{
    (void)state;
    struct moec_json_out *root = moec_json_out_object(), *list = moec_json_out_array();
    moec_json_out_u64(root, "n", UINT64_MAX);
    moec_json_out_bool(list, NULL, true);
    moec_json_out_null(list, NULL);
    moec_json_out_node(list, NULL, moec_json_out_object());
    moec_json_out_string_or_null(list, NULL, NULL);
    moec_json_out_string_or_null(list, NULL, "");
    moec_json_out_string_or_null(list, NULL, "a");
    moec_json_out_u64_or_null(list, NULL, 0);
    moec_json_out_u64_or_null(list, NULL, 1);
    moec_json_out_node(root, "list", list);
    moec_json_out_node(root, "none", moec_json_out_array());
    assert_texts(root,
                 "{\n  \"n\": 18446744073709551615,\n  \"list\": [\n    true,\n    null,\n    {},\n"
                 "    null,\n    null,\n    \"a\",\n    null,\n    1\n  ],\n  \"none\": []\n}\n",
                 "{\"n\":18446744073709551615,\"list\":[true,null,{},null,null,\"a\",null,1],\"none\":[]}");
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "[0.0]"},
                 {-0.0, "[-0.0]"},
                 {1, "[1.0]"},
                 {0.1, "[0.10000000000000001]"},
                 {1e5, "[100000.0]"},
                 {1e17, "[1e17]"},
                 {1e-5, "[1.0000000000000001e-5]"},
                 {-2.5e-300, "[-2.5e-300]"},
                 {1.7976931348623157e308, "[1.7976931348623157e308]"},
                 {5e-324, "[4.9406564584124654e-324]"},
                 {NAN, "[null]"},
                 {-INFINITY, "[null]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_json_out *list = moec_json_out_array();
        struct moec_error err = {0};
        char *line = NULL;
        moec_json_out_double(list, NULL, cases[i].value);
        assert_status(moec_json_out_line(list, &line, &err), MOEC_OK, err);
        assert_string_equal(line, cases[i].text);
        free(line);
        moec_json_out_free(list);
    }
}

static void test_strings(void **state)
{
    (void)state;
    struct moec_json_out *list = moec_json_out_array();
    moec_json_out_string(list, NULL, "plain /text\x7f, \xc3\xa9 \xf0\x9f\x98\x80");
    moec_json_out_string(list, NULL, "\"\\\b\f\n\r\t\x01\x1f");
    moec_json_out_string_n(list, NULL, "a\0b", 3);
    moec_json_out_string(list, NULL, "");
    struct moec_error err = {0};
    char *line = NULL;
    assert_status(moec_json_out_line(list, &line, &err), MOEC_OK, err);
    assert_string_equal(line, "[\"plain /text\x7f, \xc3\xa9 \xf0\x9f\x98\x80\","
                              "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001F\",\"a\\u0000b\",\"\"]");
    free(line);
    moec_json_out_free(list);
}

/* What cannot be written is remembered, in the tree above it too. */
static void test_failures(void **state)
{
    (void)state;
    static const char *const broken[] = {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        for (int is_key = 0; is_key < 2; is_key++) {
            struct moec_json_out *root = moec_json_out_object(), *child = moec_json_out_object();
            struct moec_error err = {0};
            char *text = NULL;
            moec_json_out_string(child, is_key ? broken[i] : "key", is_key ? "value" : broken[i]);
            moec_json_out_node(root, "child", child);
            moec_json_out_u64(root, "n", 1);
            assert_status(moec_json_out_text(root, &text, &err), MOEC_ERR_MEMORY, err);
            assert_message(err, "not UTF-8");
            moec_json_out_free(root);
        }
}

/* A name that comes again replaces the value in its place, among few members and many. */
static void test_members(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 3000; n = 3 * n + 1) {
        struct moec_json_out *root = moec_json_out_object();
        struct moec_error err = {0};
        struct moec_json *read = NULL;
        char name[16], *text = NULL;
        for (uint32_t i = 0; i < 2 * n; i++) {
            (void)snprintf(name, sizeof name, "m%u", i % n);
            moec_json_out_u64(root, name, i);
        }
        assert_status(moec_json_out_text(root, &text, &err), MOEC_OK, err);
        assert_status(moec_json_parse(text, strlen(text), 1u << 20, "text", &read, &err), MOEC_OK, err);
        assert_int_equal(moec_json_length(read), n);
        uint32_t i = 0;
        for (struct moec_json_member m = moec_json_first(read); m.key != NULL; m = moec_json_next(read, m)) {
            uint64_t value = 0;
            (void)snprintf(name, sizeof name, "m%u", i);
            assert_string_equal(m.key, name);
            assert_status(moec_json_as_u64(m.value, "a member", 0, UINT32_MAX, &value, &err), MOEC_OK, err);
            assert_int_equal(value, n + i++);
        }
        free(text);
        moec_json_free(read);
        moec_json_out_free(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nesting), cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_strings), cmocka_unit_test(test_failures),
                                       cmocka_unit_test(test_members)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
