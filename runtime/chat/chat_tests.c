/* Jinja's tests, "value is name": a table. A test looks at the value alone, or compares it with one
 * argument. Comparing costs what the value weighs, so that a template cannot run for ever. */
#include "runtime/chat/chat_render.h"

#include <string.h>

/* Tests that look at a value alone. */
static bool is_defined(const struct moec_chat_value *v)
{
    return v->kind != MOEC_CHAT_UNDEFINED;
}
static bool is_undefined(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_UNDEFINED;
}
static bool is_none(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_NONE;
}
static bool is_boolean(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_BOOL;
}
static bool is_true(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_BOOL && v->as.boolean;
}
static bool is_false(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_BOOL && !v->as.boolean;
}
static bool is_integer(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_INT;
}
static bool is_float(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_FLOAT;
}
static bool is_string(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_STRING;
}
static bool is_mapping(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_DICT;
}
/* What Python can go through, and what has a length and members: Jinja's undefined value pretends to both. */
static bool is_collection(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_STRING || v->kind == MOEC_CHAT_LIST || v->kind == MOEC_CHAT_DICT ||
           v->kind == MOEC_CHAT_UNDEFINED;
}
static bool is_callable(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_MACRO || v->kind == MOEC_CHAT_METHOD;
}
static bool is_odd(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_INT && v->as.integer % 2 != 0;
}
static bool is_even(const struct moec_chat_value *v)
{
    return v->kind == MOEC_CHAT_INT && v->as.integer % 2 == 0;
}

/* `compares`: how a test with one argument compares; 0 where it looks at the value alone. */
static const struct test {
    struct moec_chat_signature signature;
    bool (*holds)(const struct moec_chat_value *value);
    char compares;
} tests[] = {
    {{"defined", 0, 0, ""}, is_defined, 0},
    {{"undefined", 0, 0, ""}, is_undefined, 0},
    {{"none", 0, 0, ""}, is_none, 0},
    {{"boolean", 0, 0, ""}, is_boolean, 0},
    {{"true", 0, 0, ""}, is_true, 0},
    {{"false", 0, 0, ""}, is_false, 0},
    {{"integer", 0, 0, ""}, is_integer, 0},
    {{"float", 0, 0, ""}, is_float, 0},
    {{"number", 0, 0, ""}, moec_chat_is_number, 0},
    {{"string", 0, 0, ""}, is_string, 0},
    {{"mapping", 0, 0, ""}, is_mapping, 0},
    {{"iterable", 0, 0, ""}, is_collection, 0},
    {{"sequence", 0, 0, ""}, is_collection, 0},
    {{"callable", 0, 0, ""}, is_callable, 0},
    {{"odd", 0, 0, ""}, is_odd, 0},
    {{"even", 0, 0, ""}, is_even, 0},
    {{"eq", 1, 1, ""}, NULL, '='},
    {{"equalto", 1, 1, ""}, NULL, '='},
    {{"ne", 1, 1, ""}, NULL, '!'},
    {{"lt", 1, 1, ""}, NULL, '<'},
    {{"lessthan", 1, 1, ""}, NULL, '<'},
    {{"le", 1, 1, ""}, NULL, 'l'},
    {{"gt", 1, 1, ""}, NULL, '>'},
    {{"greaterthan", 1, 1, ""}, NULL, '>'},
    {{"ge", 1, 1, ""}, NULL, 'g'},
    {{"in", 1, 1, ""}, NULL, 'i'},
};

static const struct test *find_test(const struct moec_chat_string *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (moec_chat_string_is(name, tests[i].signature.name))
            return &tests[i];
    return NULL;
}

const struct moec_chat_signature *moec_chat_test_find(const struct moec_chat_string *name)
{
    const struct test *test = find_test(name);
    return test != NULL ? &test->signature : NULL;
}

enum moec_status moec_chat_test(struct moec_chat_run *run, const struct moec_chat_node *node,
                                const struct moec_chat_string *name, const struct moec_chat_value *value,
                                const struct moec_chat_arguments *arguments, bool *out)
{
    const struct test *test = find_test(name);
    int order = 0;
    if (test->compares == 0) {
        *out = test->holds(value);
        return MOEC_OK;
    }
    const struct moec_chat_value *other = &arguments->values[0];
    if (test->compares == 'i')
        return moec_chat_contains(run, node, value, other, out);
    MOEC_TRY(moec_chat_charge(run, node, moec_chat_weight(value)));
    if (test->compares == '=' || test->compares == '!') {
        *out = moec_chat_equal(value, other) == (test->compares == '=');
        return MOEC_OK;
    }
    MOEC_TRY(moec_chat_need(run, node, value));
    if (!moec_chat_order(value, other, &order))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "%s and %s cannot be compared",
                                  moec_chat_kind_name(value), moec_chat_kind_name(other));
    *out = test->compares == '<'   ? order < 0
           : test->compares == '>' ? order > 0
           : test->compares == 'l' ? order <= 0
                                   : order >= 0;
    return MOEC_OK;
}
