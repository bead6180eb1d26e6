/* A tree walk with Python's meaning: floor division and modulo, slices clamped, comparisons chained, indices
 * in code points. Integers are 64 bits, and an overflow is refused. Every step is charged before its work,
 * in proportion to that work, so a hostile template ends at a limit. Depth is limited too. Only namespaces
 * change once they are made. */
#include "runtime/chat/chat_render.h"

#include "formats/base/utf8.h"

#include <math.h>
#include <string.h>

/* ---- looking into values ---- */

enum moec_status moec_chat_need(const struct moec_chat_run *run, const struct moec_chat_node *node,
                                const struct moec_chat_value *value)
{
    if (value->kind != MOEC_CHAT_UNDEFINED)
        return MOEC_OK;
    const struct moec_chat_string *name = value->as.name;
    return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "'%.*s' is undefined",
                              name != NULL ? (int)(name->n_bytes < 80 ? name->n_bytes : 80) : 5,
                              name != NULL ? name->bytes : "value");
}

size_t moec_chat_code_points(const struct moec_chat_string *string)
{
    size_t n = 0;
    for (size_t i = 0; i < string->n_bytes; i++)
        n += ((uint8_t)string->bytes[i] & 0xC0u) != 0x80;
    return n;
}

/* The byte at which code point n begins; the end for one behind it. */
static size_t byte_of(const struct moec_chat_string *string, size_t n)
{
    size_t at = 0;
    for (; at < string->n_bytes; at++)
        if (((uint8_t)string->bytes[at] & 0xC0u) != 0x80 && n-- == 0)
            break;
    return at;
}

enum moec_status moec_chat_attribute(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *value, const struct moec_chat_string *name,
                                     struct moec_chat_value *out)
{
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = name};
    const struct moec_chat_value *found = NULL;
    MOEC_TRY(moec_chat_need(run, node, value));
    *out = moec_chat_undefined(name);
    if (moec_chat_has_method(value, name)) {
        void *memory = NULL;
        MOEC_TRY(moec_chat_alloc(run->arena, sizeof(struct moec_chat_method), &memory, run->err));
        struct moec_chat_method *method = memory;
        *method = (struct moec_chat_method){.object = *value, .name = name};
        *out = (struct moec_chat_value){.kind = MOEC_CHAT_METHOD, .as.method = method};
        return MOEC_OK;
    }
    if (value->kind == MOEC_CHAT_DICT || value->kind == MOEC_CHAT_NAMESPACE ||
        value->kind == MOEC_CHAT_LOOP) {
        MOEC_TRY(moec_chat_charge(run, node, value->as.dict->n));
        found = moec_chat_dict_find(value->as.dict, &key);
    }
    if (found != NULL)
        *out = *found;
    return MOEC_OK;
}

/* Python's index of n items, or -1 where it is outside. */
static int64_t index_of(int64_t index, size_t n)
{
    const int64_t count = (int64_t)n, at = index < 0 ? index + count : index;
    return at >= 0 && at < count ? at : -1;
}

enum moec_status moec_chat_subscript(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *value, const struct moec_chat_value *key,
                                     struct moec_chat_value *out)
{
    const struct moec_chat_value *found = NULL;
    const bool is_index = key->kind == MOEC_CHAT_INT || key->kind == MOEC_CHAT_BOOL;
    const int64_t index = key->kind == MOEC_CHAT_INT    ? key->as.integer
                          : key->kind == MOEC_CHAT_BOOL ? key->as.boolean
                                                        : 0;
    MOEC_TRY(moec_chat_need(run, node, value));
    *out = moec_chat_undefined(key->kind == MOEC_CHAT_STRING ? key->as.string : NULL);
    if (value->kind == MOEC_CHAT_LIST && is_index) {
        const int64_t at = index_of(index, value->as.list->n);
        found = at >= 0 ? &value->as.list->items[at] : NULL;
    } else if (value->kind == MOEC_CHAT_STRING && is_index) {
        const struct moec_chat_string *string = value->as.string;
        MOEC_TRY(moec_chat_charge(run, node, 1 + string->n_bytes / 16));
        const int64_t at = index_of(index, moec_chat_code_points(string));
        if (at < 0)
            return MOEC_OK;
        const size_t first = byte_of(string, (size_t)at);
        return moec_chat_string_part(run->arena, string, first,
                                     moec_utf8_read(string->bytes + first, string->n_bytes - first).n_bytes,
                                     out, run->err);
    } else if (value->kind == MOEC_CHAT_DICT || value->kind == MOEC_CHAT_NAMESPACE ||
               value->kind == MOEC_CHAT_LOOP) {
        MOEC_TRY(moec_chat_charge(run, node, value->as.dict->n));
        found = moec_chat_dict_find(value->as.dict, key);
    }
    if (found != NULL)
        *out = *found;
    else if (key->kind == MOEC_CHAT_STRING && value->kind != MOEC_CHAT_NAMESPACE)
        return moec_chat_attribute(run, node, value, key->as.string, out);
    return MOEC_OK;
}

enum moec_status moec_chat_items(struct moec_chat_run *run, const struct moec_chat_node *node,
                                 const struct moec_chat_value *value, struct moec_chat_list **out)
{
    struct moec_chat_value made, item;
    if (value->kind == MOEC_CHAT_LIST) {
        *out = value->as.list;
        return moec_chat_charge(run, node, value->as.list->n);
    }
    MOEC_TRY(moec_chat_list_make(run->arena, 0, &made, run->err));
    *out = made.as.list;
    if (value->kind == MOEC_CHAT_DICT) {
        MOEC_TRY(moec_chat_charge(run, node, value->as.dict->n));
        for (size_t i = 0; i < value->as.dict->n; i++)
            MOEC_TRY(moec_chat_list_append(run->arena, *out, value->as.dict->pairs[i].key, run->err));
        return MOEC_OK;
    }
    if (value->kind == MOEC_CHAT_STRING) {
        const struct moec_chat_string *string = value->as.string;
        MOEC_TRY(moec_chat_charge(run, node, string->n_bytes));
        for (size_t at = 0; at < string->n_bytes;) {
            const size_t n = moec_utf8_read(string->bytes + at, string->n_bytes - at).n_bytes;
            MOEC_TRY(moec_chat_string_part(run->arena, string, at, n, &item, run->err));
            MOEC_TRY(moec_chat_list_append(run->arena, *out, item, run->err));
            at += n;
        }
        return MOEC_OK;
    }
    if (value->kind == MOEC_CHAT_UNDEFINED)
        return MOEC_OK;
    return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "a value of type %s cannot be iterated over",
                              moec_chat_kind_name(value));
}

enum moec_status moec_chat_contains(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_value *item,
                                    const struct moec_chat_value *container, bool *out)
{
    *out = false;
    if (container->kind == MOEC_CHAT_STRING) {
        if (item->kind != MOEC_CHAT_STRING)
            return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                      "only a string can be searched for in a string, found a value of "
                                      "type %s",
                                      moec_chat_kind_name(item));
        const struct moec_chat_string *text = container->as.string, *part = item->as.string;
        MOEC_TRY(moec_chat_charge(run, node, text->n_bytes / 16));
        *out = part->n_bytes == 0 || memmem(text->bytes, text->n_bytes, part->bytes, part->n_bytes) != NULL;
        return MOEC_OK;
    }
    if (container->kind == MOEC_CHAT_DICT) {
        MOEC_TRY(moec_chat_charge(run, node, container->as.dict->n));
        *out = moec_chat_dict_find(container->as.dict, item) != NULL;
        return MOEC_OK;
    }
    struct moec_chat_list *items = NULL;
    MOEC_TRY(moec_chat_charge(run, node, moec_chat_weight(container)));
    MOEC_TRY(moec_chat_items(run, node, container, &items));
    for (size_t i = 0; i < items->n && !*out; i++)
        *out = moec_chat_equal(&items->items[i], item);
    return MOEC_OK;
}

/* ---- slices ---- */

/* A bound of a slice as Python clamps it; `otherwise` where it is left out. */
static enum moec_status slice_bound(struct moec_chat_run *run, const struct moec_chat_node *part, int64_t n,
                                    int64_t step, int64_t otherwise, int64_t *out)
{
    struct moec_chat_value value = moec_chat_none();
    if (part != NULL)
        MOEC_TRY(moec_chat_eval(run, part, &value));
    *out = otherwise;
    if (value.kind == MOEC_CHAT_NONE)
        return MOEC_OK;
    if (value.kind != MOEC_CHAT_INT && value.kind != MOEC_CHAT_BOOL)
        return moec_chat_run_fail(run, part, MOEC_ERR_FORMAT,
                                  "the start or end of a slice has type %s, expected an integer",
                                  moec_chat_kind_name(&value));
    int64_t bound = value.kind == MOEC_CHAT_INT ? value.as.integer : value.as.boolean;
    if (bound < 0)
        bound = bound < -n ? -1 : bound + n;
    if (bound < 0)
        bound = step < 0 ? -1 : 0;
    *out = bound < n ? bound : step < 0 ? n - 1 : n;
    return MOEC_OK;
}

/* The bounds of a slice, which its node's members gave. */
struct slice {
    int64_t start, stop, step;
};

static enum moec_status slice_string(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_string *string, struct slice slice,
                                     struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    if (slice.step == 1) {
        const size_t first = byte_of(string, (size_t)slice.start);
        const size_t end = slice.stop > slice.start ? byte_of(string, (size_t)slice.stop) : first;
        return moec_chat_string_part(run->arena, string, first, end - first, out, run->err);
    }
    struct moec_chat_list *items = NULL;
    const struct moec_chat_value whole = {.kind = MOEC_CHAT_STRING, .as.string = string};
    MOEC_TRY(moec_chat_items(run, node, &whole, &items));
    for (int64_t at = slice.start; slice.step > 0 ? at < slice.stop : at > slice.stop; at += slice.step)
        MOEC_TRY(moec_chat_write_string(&buffer, items->items[at].as.string, run->err));
    return moec_chat_buffer_end(&buffer, out, run->err);
}

static enum moec_status eval_slice(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   struct moec_chat_value *out)
{
    struct moec_chat_value value, step_value = moec_chat_none();
    int64_t start = 0, stop = 0, step = 1;
    MOEC_TRY(moec_chat_eval(run, node->a, &value));
    MOEC_TRY(moec_chat_need(run, node, &value));
    if (node->d != NULL)
        MOEC_TRY(moec_chat_eval(run, node->d, &step_value));
    if (step_value.kind == MOEC_CHAT_INT)
        step = step_value.as.integer;
    if ((step_value.kind != MOEC_CHAT_INT && step_value.kind != MOEC_CHAT_NONE) || step == 0 ||
        step > (int64_t)MOEC_CHAT_MAX_OUTPUT_BYTES || step < -(int64_t)MOEC_CHAT_MAX_OUTPUT_BYTES)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "the step of a slice must be an integer other than 0");
    if (value.kind != MOEC_CHAT_STRING && value.kind != MOEC_CHAT_LIST)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "a value of type %s cannot be sliced",
                                  moec_chat_kind_name(&value));
    const bool is_string = value.kind == MOEC_CHAT_STRING;
    const int64_t n = (int64_t)(is_string ? moec_chat_code_points(value.as.string) : value.as.list->n);
    MOEC_TRY(moec_chat_charge(run, node, 1 + (uint64_t)n / 16));
    MOEC_TRY(slice_bound(run, node->b, n, step, step < 0 ? n - 1 : 0, &start));
    MOEC_TRY(slice_bound(run, node->c, n, step, step < 0 ? -1 : n, &stop));
    if (is_string)
        return slice_string(run, node, value.as.string, (struct slice){start, stop, step}, out);
    MOEC_TRY(moec_chat_list_make(run->arena, 0, out, run->err));
    out->as.list->is_tuple = value.as.list->is_tuple;
    for (int64_t at = start; step > 0 ? at < stop : at > stop; at += step)
        MOEC_TRY(moec_chat_list_append(run->arena, out->as.list, value.as.list->items[at], run->err));
    return MOEC_OK;
}

/* ---- arithmetic ---- */

static int64_t as_int(const struct moec_chat_value *value)
{
    return value->kind == MOEC_CHAT_INT ? value->as.integer : value->as.boolean;
}

static enum moec_status power(struct moec_chat_run *run, const struct moec_chat_node *node, int64_t base,
                              int64_t exponent, struct moec_chat_value *out)
{
    int64_t product = 1;
    if (exponent < 0 && base == 0)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "division by zero");
    if (exponent < 0) {
        *out = moec_chat_float(pow((double)base, (double)exponent));
        return MOEC_OK;
    }
    for (int64_t i = 0; i < exponent && (base > 1 || base < -1 || i < 2); i++)
        if (__builtin_mul_overflow(product, base, &product))
            return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "a number does not fit into 64 bits");
    if (base == -1 && exponent > 0)
        product = exponent % 2 != 0 ? -1 : 1;
    *out = moec_chat_int(product);
    return MOEC_OK;
}

static enum moec_status int_binary(struct moec_chat_run *run, const struct moec_chat_node *node, int64_t x,
                                   int64_t y, struct moec_chat_value *out)
{
    int64_t result = 0;
    bool overflows = false;
    const bool divides = node->op == '/' || node->op == 'i' || node->op == '%';
    if (divides && y == 0)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "division by zero");
    if (divides && y == -1 && x == INT64_MIN)
        return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "a number does not fit into 64 bits");
    switch (node->op) {
    case '+':
        overflows = __builtin_add_overflow(x, y, &result);
        break;
    case '-':
        overflows = __builtin_sub_overflow(x, y, &result);
        break;
    case '*':
        overflows = __builtin_mul_overflow(x, y, &result);
        break;
    case '/':
        *out = moec_chat_float((double)x / (double)y);
        return MOEC_OK;
    case 'i':
        result = x / y - (x % y != 0 && (x < 0) != (y < 0));
        break;
    case '%':
        result = x % y + (x % y != 0 && (x < 0) != (y < 0) ? y : 0);
        break;
    default:
        return power(run, node, x, y, out);
    }
    if (overflows)
        return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "a number does not fit into 64 bits");
    *out = moec_chat_int(result);
    return MOEC_OK;
}

/* Python's remainder: exact, and of the divisor's sign. x - y floor(x / y) is neither: x / y is rounded. */
static double float_rest(double x, double y)
{
    const double rest = fmod(x, y);
    if (fabs(rest) > 0)
        return (rest < 0) != (y < 0) ? rest + y : rest;
    return isnan(rest) ? rest : copysign(0, y);
}

/* Python's quotient, which goes with that remainder: x = y quotient + rest. */
static double float_quotient(double x, double y)
{
    const double rest = fmod(x, y);
    const bool is_below = fabs(rest) > 0 && (rest < 0) != (y < 0);
    const double quotient = (x - rest) / y - (is_below ? 1 : 0), whole = floor(quotient);
    if (fabs(quotient) <= 0)
        return copysign(0, x / y);
    return quotient - whole > 0.5 ? whole + 1 : whole; /* a whole number but for rounding */
}

static enum moec_status float_binary(struct moec_chat_run *run, const struct moec_chat_node *node, double x,
                                     double y, struct moec_chat_value *out)
{
    double result = 0;
    const bool divides = node->op == '/' || node->op == 'i' || node->op == '%';
    if ((divides && fabs(y) <= 0) || (node->op == 'p' && fabs(x) <= 0 && y < 0))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "division by zero");
    switch (node->op) {
    case '+':
        result = x + y;
        break;
    case '-':
        result = x - y;
        break;
    case '*':
        result = x * y;
        break;
    case '/':
        result = x / y;
        break;
    case 'i':
        result = float_quotient(x, y);
        break;
    case '%':
        result = float_rest(x, y);
        break;
    default:
        result = pow(x, y);
        break;
    }
    *out = moec_chat_float(result);
    return MOEC_OK;
}

/* "+" of two strings or two lists; "*" of one of these and a number. */
static enum moec_status join_values(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_value *x, const struct moec_chat_value *y,
                                    struct moec_chat_value *out)
{
    const struct moec_chat_value *parts[2] = {x, y};
    int64_t n = 1;
    if (node->op == '*') {
        const bool is_first = x->kind == MOEC_CHAT_INT;
        n = is_first ? x->as.integer : y->as.integer;
        parts[0] = is_first ? y : x;
        parts[1] = NULL;
        n = n < 0 ? 0 : n;
    }
    if (parts[0]->kind == MOEC_CHAT_STRING) {
        struct moec_chat_buffer buffer = {.arena = run->arena};
        for (int64_t i = 0; i < n; i++)
            for (int part = 0; part < 2 && parts[part] != NULL; part++) {
                MOEC_TRY(moec_chat_charge(run, node, 1 + parts[part]->as.string->n_bytes / 64));
                MOEC_TRY(moec_chat_write_string(&buffer, parts[part]->as.string, run->err));
            }
        return moec_chat_buffer_end(&buffer, out, run->err);
    }
    MOEC_TRY(moec_chat_list_make(run->arena, 0, out, run->err));
    out->as.list->is_tuple = parts[0]->as.list->is_tuple;
    for (int64_t i = 0; i < n; i++)
        for (int part = 0; part < 2 && parts[part] != NULL; part++) {
            MOEC_TRY(moec_chat_charge(run, node, 1 + parts[part]->as.list->n));
            for (size_t at = 0; at < parts[part]->as.list->n; at++)
                MOEC_TRY(moec_chat_list_append(run->arena, out->as.list, parts[part]->as.list->items[at],
                                               run->err));
        }
    return MOEC_OK;
}

static bool is_sequence(const struct moec_chat_value *value)
{
    return value->kind == MOEC_CHAT_STRING || value->kind == MOEC_CHAT_LIST;
}

/* "%s" % x: a tuple has a value for each place, a dict those of places with names. */
static enum moec_status fill_places(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_string *text, const struct moec_chat_value *given,
                                    struct moec_chat_value *out)
{
    struct moec_chat_format_values values = {.items = given, .n = 1};
    if (given->kind == MOEC_CHAT_LIST && given->as.list->is_tuple)
        values = (struct moec_chat_format_values){.items = given->as.list->items, .n = given->as.list->n};
    else /* Python takes what has items for names, whether it has names or not */
        values.may_be_left = given->kind == MOEC_CHAT_LIST || given->kind == MOEC_CHAT_DICT ||
                             given->kind == MOEC_CHAT_UNDEFINED;
    if (given->kind == MOEC_CHAT_DICT)
        values.names = given->as.dict;
    return moec_chat_percent(run, node, text, &values, out);
}

static enum moec_status eval_binary(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    struct moec_chat_value *out)
{
    struct moec_chat_value x, y;
    MOEC_TRY(moec_chat_eval(run, node->a, &x));
    MOEC_TRY(moec_chat_eval(run, node->b, &y));
    MOEC_TRY(moec_chat_need(run, node, &x));
    if (node->op == '%' && x.kind == MOEC_CHAT_STRING)
        return fill_places(run, node, x.as.string, &y, out);
    MOEC_TRY(moec_chat_need(run, node, &y));
    if (moec_chat_is_number(&x) && moec_chat_is_number(&y)) {
        if (x.kind == MOEC_CHAT_FLOAT || y.kind == MOEC_CHAT_FLOAT)
            return float_binary(run, node, moec_chat_as_float(&x), moec_chat_as_float(&y), out);
        return int_binary(run, node, as_int(&x), as_int(&y), out);
    }
    const bool same = is_sequence(&x) && x.kind == y.kind &&
                      (x.kind == MOEC_CHAT_STRING || x.as.list->is_tuple == y.as.list->is_tuple);
    const bool times =
        (is_sequence(&x) && y.kind == MOEC_CHAT_INT) || (x.kind == MOEC_CHAT_INT && is_sequence(&y));
    if ((node->op == '+' && same) || (node->op == '*' && times))
        return join_values(run, node, &x, &y, out);
    return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "this operator cannot be applied to %s and %s",
                              moec_chat_kind_name(&x), moec_chat_kind_name(&y));
}

static enum moec_status eval_sign(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  struct moec_chat_value *out)
{
    struct moec_chat_value value;
    MOEC_TRY(moec_chat_eval(run, node->a, &value));
    MOEC_TRY(moec_chat_need(run, node, &value));
    const bool is_negative = node->kind == MOEC_CHAT_NEGATIVE;
    if (!moec_chat_is_number(&value) || (value.kind == MOEC_CHAT_INT && value.as.integer == INT64_MIN))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "a sign cannot be applied to this value of type %s",
                                  moec_chat_kind_name(&value));
    if (value.kind == MOEC_CHAT_FLOAT)
        *out = moec_chat_float(is_negative ? -value.as.number : value.as.number);
    else
        *out = moec_chat_int(is_negative ? -as_int(&value) : as_int(&value));
    return MOEC_OK;
}

/* ---- comparisons ---- */

static enum moec_status compare_two(struct moec_chat_run *run, const struct moec_chat_node *node, char op,
                                    const struct moec_chat_value *x, const struct moec_chat_value *y,
                                    bool *out)
{
    int order = 0;
    if (op == 'i' || op == 'n') {
        MOEC_TRY(moec_chat_contains(run, node, x, y, out));
        *out = *out == (op == 'i');
        return MOEC_OK;
    }
    const uint64_t wx = moec_chat_weight(x), wy = moec_chat_weight(y);
    MOEC_TRY(moec_chat_charge(run, node, wx < wy ? wx : wy));
    if (op == '=' || op == '!') {
        *out = moec_chat_equal(x, y) == (op == '=');
        return MOEC_OK;
    }
    MOEC_TRY(moec_chat_need(run, node, x));
    MOEC_TRY(moec_chat_need(run, node, y));
    if (!moec_chat_order(x, y, &order))
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "%s and %s cannot be compared",
                                  moec_chat_kind_name(x), moec_chat_kind_name(y));
    *out = op == '<' ? order < 0 : op == '>' ? order > 0 : op == 'l' ? order <= 0 : order >= 0;
    return MOEC_OK;
}

static enum moec_status eval_compare(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     struct moec_chat_value *out)
{
    struct moec_chat_value left, right;
    bool holds = true;
    MOEC_TRY(moec_chat_eval(run, node->a, &left));
    for (size_t i = 0; i < node->n_item && holds; i++) {
        MOEC_TRY(moec_chat_eval(run, node->items[i]->a, &right));
        MOEC_TRY(compare_two(run, node, node->items[i]->op, &left, &right, &holds));
        left = right;
    }
    *out = moec_chat_bool(holds);
    return MOEC_OK;
}

/* ---- the rest ---- */

static enum moec_status eval_name(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  struct moec_chat_value *out)
{
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = node->text};
    const struct moec_chat_value *found = NULL;
    for (const struct moec_chat_scope *scope = run->scope; scope != NULL && found == NULL;
         scope = scope->parent) {
        MOEC_TRY(moec_chat_charge(run, node, 1 + scope->names->n));
        found = moec_chat_dict_find(scope->names, &key);
    }
    if (found == NULL)
        found = moec_chat_dict_find(run->variables, &key);
    *out = moec_chat_undefined(node->text);
    if (found != NULL) {
        *out = *found;
    } else if (moec_chat_function_find(node->text) != NULL) {
        void *memory = NULL;
        MOEC_TRY(moec_chat_alloc(run->arena, sizeof(struct moec_chat_method), &memory, run->err));
        struct moec_chat_method *function = memory;
        *function = (struct moec_chat_method){.object = moec_chat_none(), .name = node->text};
        *out = (struct moec_chat_value){.kind = MOEC_CHAT_METHOD, .as.method = function};
    }
    return MOEC_OK;
}

static enum moec_status eval_sequence(struct moec_chat_run *run, const struct moec_chat_node *node,
                                      struct moec_chat_value *out)
{
    struct moec_chat_value item;
    MOEC_TRY(moec_chat_list_make(run->arena, node->n_item, out, run->err));
    out->as.list->is_tuple = node->kind == MOEC_CHAT_TUPLE_OF;
    for (size_t i = 0; i < node->n_item; i++) {
        MOEC_TRY(moec_chat_eval(run, node->items[i], &item));
        MOEC_TRY(moec_chat_list_append(run->arena, out->as.list, item, run->err));
    }
    return MOEC_OK;
}

static enum moec_status eval_dict(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  struct moec_chat_value *out)
{
    struct moec_chat_value key, value;
    MOEC_TRY(moec_chat_dict_make(run->arena, out, run->err));
    for (size_t i = 0; i < node->n_item; i += 2) {
        MOEC_TRY(moec_chat_eval(run, node->items[i], &key));
        MOEC_TRY(moec_chat_eval(run, node->items[i + 1], &value));
        MOEC_TRY(moec_chat_charge(run, node, out->as.dict->n));
        MOEC_TRY(moec_chat_dict_set(run->arena, out->as.dict, key, value, run->err));
    }
    return MOEC_OK;
}

static enum moec_status eval_concat(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena};
    struct moec_chat_value item;
    for (size_t i = 0; i < node->n_item; i++) {
        MOEC_TRY(moec_chat_eval(run, node->items[i], &item));
        MOEC_TRY(moec_chat_print(run, node, &item, &buffer));
    }
    return moec_chat_buffer_end(&buffer, out, run->err);
}

static enum moec_status eval_filter(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    struct moec_chat_value *out)
{
    struct moec_chat_value input;
    struct moec_chat_arguments arguments;
    if (node->a != NULL)
        MOEC_TRY(moec_chat_eval(run, node->a, &input));
    else
        input = run->captured;
    MOEC_TRY(moec_chat_bind(run, node, moec_chat_filter_find(node->text), &arguments));
    return moec_chat_filter(run, node, node->text, &input, &arguments, out);
}

static enum moec_status eval_test(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  struct moec_chat_value *out)
{
    struct moec_chat_value value;
    struct moec_chat_arguments arguments;
    bool holds = false;
    MOEC_TRY(moec_chat_eval(run, node->a, &value));
    MOEC_TRY(moec_chat_bind(run, node, moec_chat_test_find(node->text), &arguments));
    MOEC_TRY(moec_chat_test(run, node, node->text, &value, &arguments, &holds));
    *out = moec_chat_bool(holds);
    return MOEC_OK;
}

static enum moec_status eval_choice(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    struct moec_chat_value *out)
{
    MOEC_TRY(moec_chat_eval(run, node->a, out));
    const bool holds = moec_chat_truth(out);
    switch (node->kind) {
    case MOEC_CHAT_AND:
        return holds ? moec_chat_eval(run, node->b, out) : MOEC_OK;
    case MOEC_CHAT_OR:
        return holds ? MOEC_OK : moec_chat_eval(run, node->b, out);
    case MOEC_CHAT_NOT:
        *out = moec_chat_bool(!holds);
        return MOEC_OK;
    default:
        break;
    }
    if (!holds && node->c == NULL) {
        *out = moec_chat_undefined(NULL);
        return MOEC_OK;
    }
    return moec_chat_eval(run, holds ? node->b : node->c, out);
}

static enum moec_status eval_member(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    struct moec_chat_value *out)
{
    struct moec_chat_value value, key;
    MOEC_TRY(moec_chat_eval(run, node->a, &value));
    if (node->kind == MOEC_CHAT_ATTRIBUTE)
        return moec_chat_attribute(run, node, &value, node->text, out);
    MOEC_TRY(moec_chat_eval(run, node->b, &key));
    return moec_chat_subscript(run, node, &value, &key, out);
}

static enum moec_status eval_node(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  struct moec_chat_value *out)
{
    switch (node->kind) {
    case MOEC_CHAT_CONST:
        *out = node->constant;
        return MOEC_OK;
    case MOEC_CHAT_NAME:
        return eval_name(run, node, out);
    case MOEC_CHAT_TUPLE_OF:
    case MOEC_CHAT_LIST_OF:
        return eval_sequence(run, node, out);
    case MOEC_CHAT_DICT_OF:
        return eval_dict(run, node, out);
    case MOEC_CHAT_ATTRIBUTE:
    case MOEC_CHAT_SUBSCRIPT:
        return eval_member(run, node, out);
    case MOEC_CHAT_SLICE:
        return eval_slice(run, node, out);
    case MOEC_CHAT_CALL:
        return moec_chat_call(run, node, out);
    case MOEC_CHAT_FILTER:
        return eval_filter(run, node, out);
    case MOEC_CHAT_TEST:
        return eval_test(run, node, out);
    case MOEC_CHAT_NEGATIVE:
    case MOEC_CHAT_POSITIVE:
        return eval_sign(run, node, out);
    case MOEC_CHAT_BINARY:
        return eval_binary(run, node, out);
    case MOEC_CHAT_CONCAT:
        return eval_concat(run, node, out);
    case MOEC_CHAT_COMPARE:
        return eval_compare(run, node, out);
    default: /* not, and, or, if else: the parser puts nothing else here */
        return eval_choice(run, node, out);
    }
}

enum moec_status moec_chat_eval(struct moec_chat_run *run, const struct moec_chat_node *node,
                                struct moec_chat_value *out)
{
    MOEC_TRY(moec_chat_charge(run, node, 1));
    if (run->depth >= MOEC_CHAT_MAX_RECURSION)
        return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "expressions nest deeper than %d",
                                  MOEC_CHAT_MAX_RECURSION);
    run->depth++;
    MOEC_TRY(eval_node(run, node, out));
    run->depth--;
    return MOEC_OK;
}
