/* Chat templates against Jinja's text (tests/fixtures/make_chat_fixtures.py), their refusals and their
 * bounds. */
#include "formats/base/file.h"
#include "runtime/chat/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/unit/chat_json.h"
#include "tests/unit/status.h"

#define FOLDER "tests/fixtures/chat/"

static const struct tm date = {
    .tm_year = 126, .tm_mon = 10, .tm_mday = 22, .tm_hour = 13, .tm_min = 5, .tm_sec = 9, .tm_yday = 325};

static struct moec_json *load(const char *path)
{
    char *bytes = NULL;
    size_t n = 0;
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    assert_status(moec_file_load(path, 1u << 24, &bytes, &n, &err), MOEC_OK, err);
    assert_status(moec_json_parse(bytes, n, 1u << 24, path, &root, &err), MOEC_OK, err);
    free(bytes);
    return root;
}

/* What apply_chat_template gives a template beside the conversation's own variables. */
static void set_defaults(struct moec_chat_arena *arena, struct moec_chat_value *variables)
{
    static const char json[] =
        "{\"tools\":null,\"documents\":null,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\","
        "\"add_generation_prompt\":true}";
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    struct moec_chat_value given = *variables;
    assert_status(moec_json_parse(json, sizeof json - 1, sizeof json, "defaults", &root, &err), MOEC_OK, err);
    assert_status(chat_from_json(arena, root, variables, &err), MOEC_OK, err);
    moec_json_free(root);
    for (size_t i = 0; i < given.as.dict->n; i++)
        assert_status(moec_chat_dict_set(arena, variables->as.dict, given.as.dict->pairs[i].key,
                                         given.as.dict->pairs[i].value, &err),
                      MOEC_OK, err);
    assert_status(moec_chat_measure(variables, &err), MOEC_OK, err);
}

static enum moec_status render(const char *source, const struct moec_json *conversation,
                               struct moec_chat_arena *arena, struct moec_chat_value *text,
                               struct moec_error *err)
{
    struct moec_chat_template *chat_template = NULL;
    struct moec_chat_value variables;
    assert_status(chat_from_json(arena, conversation, &variables, err), MOEC_OK, *err);
    set_defaults(arena, &variables);
    MOEC_TRY(moec_chat_template_parse(source, strlen(source), &chat_template, err));
    const enum moec_status status =
        moec_chat_template_render(chat_template, variables.as.dict, &date, arena, text, err);
    moec_chat_template_free(chat_template);
    return status;
}

static void check_one(const char *name, const char *source, const struct moec_json *conversation,
                      const struct moec_json *expected, size_t i)
{
    struct moec_chat_arena arena = {0};
    struct moec_chat_value text;
    struct moec_error err = {0};
    const enum moec_status status = render(source, conversation, &arena, &text, &err);
    if (moec_json_type(expected) == MOEC_JSON_NULL) {
        if (status != MOEC_ERR_USAGE && status != MOEC_ERR_FORMAT)
            fail_msg("%s renders conversation %zu, which Jinja refuses", name, i);
    } else {
        const char *want = "";
        size_t n = 0;
        if (status != MOEC_OK)
            fail_msg("%s, conversation %zu: %s", name, i, err.message);
        assert_status(moec_json_as_string(expected, "a text", &want, &n, &err), MOEC_OK, err);
        if (text.as.string->n_bytes != n || memcmp(text.as.string->bytes, want, n) != 0)
            fail_msg("%s, conversation %zu gives '%.*s', expected '%s'", name, i,
                     (int)text.as.string->n_bytes, text.as.string->bytes, want);
    }
    moec_chat_arena_release(&arena);
}

static void test_fixtures(void **state)
{
    struct moec_json *conversations = load(FOLDER "conversations.json"), *all = load(FOLDER "expected.json");
    struct moec_error err = {0};
    size_t n_checked = 0;
    (void)state;
    for (struct moec_json_member m = moec_json_first(all); m.key != NULL; m = moec_json_next(all, m)) {
        char path[256], *source = NULL;
        size_t n = 0;
        (void)snprintf(path, sizeof path, FOLDER "%s", m.key);
        assert_status(moec_file_load(path, 1u << 20, &source, &n, &err), MOEC_OK, err);
        assert_int_equal(moec_json_length(m.value), moec_json_length(conversations));
        for (size_t i = 0; i < moec_json_length(conversations); i++, n_checked++)
            check_one(m.key, source, moec_json_at(conversations, i), moec_json_at(m.value, i), i);
        free(source);
    }
    assert_true(n_checked >= 50);
    moec_json_free(conversations);
    moec_json_free(all);
}

/* ---- refusals ---- */

static void test_refused_when_parsed(void **state)
{
    static const struct {
        const char *source;
        enum moec_status status;
        const char *message;
    } cases[] = {
        {"a\n{% include 'x' %}", MOEC_ERR_UNSUPPORTED, "line 2, column 4: the statement 'include'"},
        {"{{ x|sha256 }}", MOEC_ERR_UNSUPPORTED, "line 1, column 6: the filter 'sha256' is not supported"},
        {"{{ x is prime }}", MOEC_ERR_UNSUPPORTED, "the test 'prime' is not supported"},
        {"{{ x.__class__() }}", MOEC_ERR_UNSUPPORTED, "the method '__class__' is not supported"},
        {"{{ x|trim(1, 2) }}", MOEC_ERR_UNSUPPORTED, "'trim' has 2 arguments"},
        {"{{ x|tojson(cls=1) }}", MOEC_ERR_UNSUPPORTED, "'tojson' does not support the argument 'cls'"},
        {"{% raw %}{{ x }}", MOEC_ERR_FORMAT, "line 1, column 10: a raw block has no endraw"},
        {"{% endraw %}", MOEC_ERR_UNSUPPORTED, "'endraw'"},
        {"{% call x %}{% endcall %}", MOEC_ERR_FORMAT, "must call a macro"},
        {"{% macro f(caller) %}{{ caller() }}{% endmacro %}", MOEC_ERR_FORMAT,
         "'caller' must give it a default"},
        {"{% for a in b %}{% call f() %}{% break %}{% endcall %}{% endfor %}", MOEC_ERR_FORMAT, "loop"},
        {"{{ 0x10 }}", MOEC_ERR_UNSUPPORTED, "decimal"},
        {"{% if a %}", MOEC_ERR_FORMAT, "the template ends"},
        {"{% break %}", MOEC_ERR_FORMAT, "loop"},
        {"{{ 'a }}", MOEC_ERR_FORMAT, "a string has no closing quote"},
        {"{{ (1] }}", MOEC_ERR_FORMAT, "closing bracket"},
        {"{{ 1 +", MOEC_ERR_FORMAT, "is not closed"},
        {"{# x", MOEC_ERR_FORMAT, "comment is not closed"},
        {"{% endif %}", MOEC_ERR_UNSUPPORTED, "'endif'"},
        {"\xff", MOEC_ERR_FORMAT, "UTF-8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_chat_template *chat_template = NULL;
        struct moec_error err = {0};
        assert_status(
            moec_chat_template_parse(cases[i].source, strlen(cases[i].source), &chat_template, &err),
            cases[i].status, err);
        if (strstr(err.message, cases[i].message) == NULL)
            fail_msg("'%s': '%s' does not say '%s'", cases[i].source, err.message, cases[i].message);
    }
}

/* Renders without messages: answers the status, and the message in `err`. */
static enum moec_status render_alone(const char *source, struct moec_error *err)
{
    struct moec_chat_arena arena = {0};
    struct moec_chat_value text;
    struct moec_json *root = NULL;
    assert_status(moec_json_parse("{}", 2, 2, "nothing", &root, err), MOEC_OK, *err);
    const enum moec_status status = render(source, root, &arena, &text, err);
    moec_json_free(root);
    moec_chat_arena_release(&arena);
    return status;
}

static void test_refused_when_rendered(void **state)
{
    static const struct {
        const char *source;
        enum moec_status status;
        const char *message;
    } cases[] = {
        {"{{ raise_exception('no ' ~ 1) }}", MOEC_ERR_USAGE, "the template raised an exception: no 1"},
        {"x{{ a.b }}", MOEC_ERR_FORMAT, "column 5: 'a' is undefined"},
        {"{{ 'a' + none }}", MOEC_ERR_FORMAT, "str and None"},
        {"{{ [].append(1) }}", MOEC_ERR_FORMAT, "sandbox"},
        {"{{ 1 // 0 }}", MOEC_ERR_FORMAT, "zero"},
        {"{{ 1.5 % 0 }}", MOEC_ERR_FORMAT, "zero"},
        {"{{ 0 ** -1 }}", MOEC_ERR_FORMAT, "zero"},
        {"{{ 0.0 ** -1 }}", MOEC_ERR_FORMAT, "zero"},
        {"{% set x = 1 %}{% set x.y = 1 %}", MOEC_ERR_FORMAT, "namespace"},
        {"{{ 9223372036854775807 + 1 }}", MOEC_ERR_LIMIT, "64 bits"},
        {"{{ 7 ** 99 }}", MOEC_ERR_LIMIT, "64 bits"},
        /* Bounds: steps, memory, output, nesting of calls and of values. */
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", MOEC_ERR_LIMIT,
         "memory"},
        {"{% set s = 'a' * 9000000 %}{% for i in range(99) %}{% if 'b' in s %}{% endif %}{% endfor %}",
         MOEC_ERR_LIMIT, "million steps"},
        {"{{ 'x' * 2000000000 }}", MOEC_ERR_LIMIT, "chat template"},
        {"{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% "
         "endfor %}",
         MOEC_ERR_LIMIT, "memory"},
        {"{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
         "ns.x == 1 }}",
         MOEC_ERR_LIMIT, "items"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", MOEC_ERR_LIMIT, "deeper than 64"},
        {"{% macro f() %}{% call f() %}{% endcall %}{{ caller }}{% endmacro %}{{ f() }}", MOEC_ERR_LIMIT,
         "deeper than 64"},
        {"{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}", MOEC_ERR_LIMIT, "deeper than 64"},
        {"{% for x in [1] %}{{ loop([x]) }}{% endfor %}", MOEC_ERR_FORMAT, "not recursive or has ended"},
        {"{% set ns = namespace() %}{% for x in [1] recursive %}{% set ns.l = loop %}{% endfor %}{% set l = "
         "ns.l %}{{ l([1]) }}",
         MOEC_ERR_FORMAT, "has ended"},
        {"{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", MOEC_ERR_FORMAT,
         "a call block cannot call the macro 'f'"},
        {"{% call range(3) %}y{% endcall %}", MOEC_ERR_FORMAT, "a call block must call a macro"},
        {"{{ '%s'|format }}", MOEC_ERR_FORMAT, "fewer values than conversions"},
        {"{{ '%s'|format(1, 2) }}", MOEC_ERR_FORMAT, "more values than conversions"},
        {"{{ '%d'|format('1') }}", MOEC_ERR_FORMAT, "a conversion expects a number"},
        {"{{ '%(a)s'|format(b=1) }}", MOEC_ERR_FORMAT, "a conversion names a value that is missing"},
        {"{{ '%s'|format(1, a=2) }}", MOEC_ERR_FORMAT, "with names or without names, not both"},
        {"{{ '%999s' % 1 }}", MOEC_ERR_UNSUPPORTED, "over the limit of 99"},
        {"{{ '%d' % 1e300 }}", MOEC_ERR_FORMAT, "64 bits"},
        {"{{ '%' % 1 }}", MOEC_ERR_FORMAT, "the string ends inside a conversion"},
        {"{{ '{} {0}'.format(1) }}", MOEC_ERR_UNSUPPORTED, "supports only the fields {}, {0} and {name}"},
        {"{% for i in range(9000) %}{{ 'x' * 9000 }}{% endfor %}", MOEC_ERR_LIMIT, "chat template"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_error err = {0};
        assert_status(render_alone(cases[i].source, &err), cases[i].status, err);
        if (strstr(err.message, cases[i].message) == NULL)
            fail_msg("'%s': '%s' does not say '%s'", cases[i].source, err.message, cases[i].message);
    }
}

/* Remainders and whole quotients of floats are Python's, to the last digit. */
static void test_floats_as_in_python(void **state)
{
    static const struct {
        const char *expression, *text;
    } cases[] = {
        {"1 % 0.1", "0.09999999999999995"},
        {"-7.5 % 2", "0.5"},
        {"7.5 % -2", "-0.5"},
        {"-1e-20 % 3.0", "3.0"},
        {"5.0 % ('inf'|float)", "5.0"},
        {"-5.0 % ('inf'|float)", "inf"},
        {"6.0 % -3", "-0.0"},
        {"1 // 0.1", "9.0"},
        {"-7.5 // 2", "-4.0"},
        {"-5.0 // ('inf'|float)", "-1.0"},
        {"0.0 // -2", "-0.0"},
        {"('inf'|float) // 2", "nan"},
        {"4.0 % ('nan'|float)", "nan"},
        {"2 ** -1", "0.5"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_chat_arena arena = {0};
        struct moec_chat_value text;
        struct moec_json *root = NULL;
        struct moec_error err = {0};
        char source[64];
        (void)snprintf(source, sizeof source, "{{ %s }}", cases[i].expression);
        assert_status(moec_json_parse("{}", 2, 2, "nothing", &root, &err), MOEC_OK, err);
        assert_status(render(source, root, &arena, &text, &err), MOEC_OK, err);
        if (text.as.string->n_bytes != strlen(cases[i].text) ||
            memcmp(text.as.string->bytes, cases[i].text, text.as.string->n_bytes) != 0)
            fail_msg("%s is '%.*s', expected '%s'", cases[i].expression, (int)text.as.string->n_bytes,
                     text.as.string->bytes, cases[i].text);
        moec_json_free(root);
        moec_chat_arena_release(&arena);
    }
}

static void test_deep_nesting(void **state)
{
    static char source[20000];
    struct moec_error err = {0};
    (void)state;
    size_t n = (size_t)snprintf(source, sizeof source, "{{ ");
    for (int i = 0; i < 3000; i++)
        source[n++] = '(';
    source[n] = '\0';
    assert_status(render_alone(source, &err), MOEC_ERR_LIMIT, err);
    err = (struct moec_error){0};
    n = (size_t)snprintf(source, sizeof source, "{{ 1");
    for (int i = 0; i < 3000; i++)
        n += (size_t)snprintf(source + n, sizeof source - n, "+1");
    (void)snprintf(source + n, sizeof source - n, " }}");
    assert_status(render_alone(source, &err), MOEC_ERR_LIMIT, err);
    assert_non_null(strstr(err.message, "nest deeper"));
}

/* ---- marks ---- */

static void test_marks(void **state)
{
    static const char json[] = "{\"u\":\"<x>ab\",\"l\":[\"c\"]}";
    static const char source[] = "<x>{{ u }}|{{ u[1:3] ~ '-' ~ u|upper }}{{ l|tojson }}{{ u.replace('x', "
                                 "'yy') }}{{ 'k' if u else u }}{{ l }}{{ [u]|string }}";
    static const char want_text[] = "<x><x>ab|x>-<X>AB[\"c\"]<yy>abk['c']['<x>ab']";
    static const char want_marks[] = "tttuuuuutuutuuuuuttuttuttuuutttuttttuuuuutt";
    struct moec_chat_arena arena = {0};
    struct moec_chat_value text;
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    (void)state;
    assert_status(moec_json_parse(json, sizeof json - 1, sizeof json, "values", &root, &err), MOEC_OK, err);
    assert_status(render(source, root, &arena, &text, &err), MOEC_OK, err);
    moec_json_free(root);
    const struct moec_chat_string *string = text.as.string;
    assert_int_equal(string->n_bytes, sizeof want_text - 1);
    assert_memory_equal(string->bytes, want_text, string->n_bytes);
    assert_non_null(string->marks);
    for (size_t i = 0; i < string->n_bytes; i++)
        if (string->marks[i] != (want_marks[i] == 'u'))
            fail_msg("byte %zu ('%c') has mark %u", i, string->bytes[i], string->marks[i]);
    moec_chat_arena_release(&arena);
}

/* What Jinja says of a filter's arguments, where no published template of the fixtures gives them. */
static void test_indents(void **state)
{
    static const struct {
        const char *source, *text;
    } cases[] = {{"{{ 'a\n\nb\n'|indent(2) }}", "a\n\n  b\n"},
                 {"{{ 'a\n\nb'|indent(2, true) }}", "  a\n\n  b"},
                 {"{{ 'a\n\nb'|indent(2, false, true) }}", "a\n  \n  b"},
                 {"{{ 'a\nb'|indent }}", "a\n    b"}};
    struct moec_json *none = NULL;
    struct moec_error err = {0};
    (void)state;
    assert_status(moec_json_parse("{}", 2, 2, "values", &none, &err), MOEC_OK, err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_chat_arena arena = {0};
        struct moec_chat_value text;
        assert_status(render(cases[i].source, none, &arena, &text, &err), MOEC_OK, err);
        assert_int_equal(text.as.string->n_bytes, strlen(cases[i].text));
        assert_memory_equal(text.as.string->bytes, cases[i].text, text.as.string->n_bytes);
        moec_chat_arena_release(&arena);
    }
    moec_json_free(none);
}

/* A text's own bytes stay the template's, and those of values the user's. */
static void test_marks_of_places(void **state)
{
    static const char json[] = "{\"u\":\"<é>\",\"l\":[[\"a\"]]}";
    static const char source[] =
        "{{ '<%5s>%.1s'|format(u, u) }}{{ '%(a)s%%' % {'a': u} }}{{ '{x}'.format(x=u) }}"
        "{% macro f() %}<{{ caller() }}{% endmacro %}{% call f() %}{{ u }}{% endcall %}"
        "{% for i in l recursive %}{{ i if i is string else loop(i) }}{% endfor %}";
    static const char want_text[] = "<  <é>><<é>%<é><<é>a";
    static const char want_marks[] = "tttuuuutuuuuutuuuutuuuuu";
    struct moec_chat_arena arena = {0};
    struct moec_chat_value text;
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    (void)state;
    assert_status(moec_json_parse(json, sizeof json - 1, sizeof json, "values", &root, &err), MOEC_OK, err);
    assert_status(render(source, root, &arena, &text, &err), MOEC_OK, err);
    moec_json_free(root);
    const struct moec_chat_string *string = text.as.string;
    assert_int_equal(string->n_bytes, sizeof want_text - 1);
    assert_memory_equal(string->bytes, want_text, string->n_bytes);
    assert_non_null(string->marks);
    for (size_t i = 0; i < string->n_bytes; i++)
        if (string->marks[i] != (want_marks[i] == 'u'))
            fail_msg("byte %zu ('%c') has mark %u", i, string->bytes[i], string->marks[i]);
    moec_chat_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_refused_when_parsed),
        cmocka_unit_test(test_refused_when_rendered),
        cmocka_unit_test(test_floats_as_in_python),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_marks_of_places),
        cmocka_unit_test(test_indents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
