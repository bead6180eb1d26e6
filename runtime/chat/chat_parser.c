/* Expressions, and what both parsers share. Statements are in chat_statements.c. */
#include "runtime/chat/chat_parser.h"

#include <stdio.h>
#include <string.h>

#define OPERATOR MOEC_CHAT_TOKEN_OPERATOR
#define NAME     MOEC_CHAT_TOKEN_NAME

typedef enum moec_status parse_fn(struct moec_chat_parser *p, struct moec_chat_node **out);

/* ---- helpers ---- */

enum moec_status moec_chat_parser_fail(const struct moec_chat_parser *p, enum moec_status status,
                                       const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return moec_chat_fail(p->err, status, p->at->line, p->at->column, "%s", text);
}

enum moec_status moec_chat_parser_enter(struct moec_chat_parser *p)
{
    if (p->depth >= MOEC_CHAT_MAX_NESTING)
        return moec_chat_parser_fail(p, MOEC_ERR_LIMIT, "the template nests deeper than %d",
                                     MOEC_CHAT_MAX_NESTING);
    p->depth++;
    return MOEC_OK;
}

bool moec_chat_token_is(const struct moec_chat_token *token, enum moec_chat_token_kind kind, const char *text)
{
    return token->kind == kind && token->n_bytes == strlen(text) &&
           memcmp(token->bytes, text, token->n_bytes) == 0;
}

bool moec_chat_skip(struct moec_chat_parser *p, enum moec_chat_token_kind kind, const char *text)
{
    const bool is = moec_chat_token_is(p->at, kind, text);
    p->at += is;
    return is;
}

static const char *describe(const struct moec_chat_token *token, char text[static 48])
{
    if (token->kind == MOEC_CHAT_TOKEN_END)
        return "the end of the template";
    (void)snprintf(text, 48, "'%.*s'", (int)(token->n_bytes < 40 ? token->n_bytes : 40), token->bytes);
    return text;
}

enum moec_status moec_chat_expect(struct moec_chat_parser *p, enum moec_chat_token_kind kind,
                                  const char *text)
{
    char found[48];
    if (moec_chat_skip(p, kind, text))
        return MOEC_OK;
    return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "found %s, expected '%s'", describe(p->at, found), text);
}

enum moec_status moec_chat_node_make(struct moec_chat_parser *p, enum moec_chat_node_kind kind,
                                     struct moec_chat_node **out)
{
    void *memory = NULL;
    MOEC_TRY(moec_chat_alloc(p->arena, sizeof(struct moec_chat_node), &memory, p->err));
    *out = memory;
    **out = (struct moec_chat_node){.kind = (uint8_t)kind, .line = p->at->line, .column = p->at->column};
    return MOEC_OK;
}

enum moec_status moec_chat_node_add(struct moec_chat_parser *p, struct moec_chat_node *node,
                                    struct moec_chat_node *item)
{
    /* Room for a power of two. */
    if (node->n_item == 0 || (node->n_item & (node->n_item - 1)) == 0) {
        void *larger = NULL;
        const size_t capacity = node->n_item == 0 ? 1 : 2 * node->n_item;
        MOEC_TRY(moec_chat_alloc(p->arena, capacity * sizeof(struct moec_chat_node *), &larger, p->err));
        if (node->n_item > 0)
            memcpy(larger, node->items, node->n_item * sizeof *node->items);
        node->items = larger;
    }
    node->items[node->n_item++] = item;
    return MOEC_OK;
}

enum moec_status moec_chat_node_text(struct moec_chat_parser *p, const struct moec_chat_token *token,
                                     struct moec_chat_node *node)
{
    struct moec_chat_value value;
    MOEC_TRY(moec_chat_string_make(p->arena, token->bytes, token->n_bytes, 0, &value, p->err));
    node->text = value.as.string;
    return MOEC_OK;
}

static enum moec_status take_name(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    char found[48];
    if (p->at->kind != NAME)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "found %s, expected a name", describe(p->at, found));
    MOEC_TRY(moec_chat_node_text(p, p->at, node));
    p->at++;
    return MOEC_OK;
}

/* A node of this kind in place of `*node`, with it as `a`. */
static enum moec_status wrap(struct moec_chat_parser *p, enum moec_chat_node_kind kind,
                             struct moec_chat_node **node)
{
    struct moec_chat_node *outer = NULL;
    MOEC_TRY(moec_chat_node_make(p, kind, &outer));
    outer->line = (*node)->line;
    outer->column = (*node)->column;
    outer->a = *node;
    *node = outer;
    return MOEC_OK;
}

/* ---- arguments ---- */

static bool is_keyword_of(const struct moec_chat_signature *signature, const struct moec_chat_string *name)
{
    char word[64];
    if (signature->keywords == NULL)
        return true;
    if (name->n_bytes + 3 > sizeof word)
        return false;
    (void)snprintf(word, sizeof word, " %.*s ", (int)name->n_bytes, name->bytes);
    return strstr(signature->keywords, word) != NULL;
}

static enum moec_status check_call(const struct moec_chat_parser *p, const char *what,
                                   const struct moec_chat_string *name,
                                   const struct moec_chat_signature *signature,
                                   const struct moec_chat_node *call)
{
    if (signature == NULL)
        return moec_chat_fail(p->err, MOEC_ERR_UNSUPPORTED, call->line, call->column,
                              "the %s '%.*s' is not supported", what, (int)name->n_bytes, name->bytes);
    if (call->n_item < signature->n_least || call->n_item > signature->n_most)
        return moec_chat_fail(p->err, MOEC_ERR_UNSUPPORTED, call->line, call->column,
                              "the %s '%.*s' has %zu arguments, expected %u to %u", what, (int)name->n_bytes,
                              name->bytes, call->n_item, signature->n_least, signature->n_most);
    for (size_t i = 0; i < call->n_item; i++)
        if (call->items[i]->kind == MOEC_CHAT_KEYWORD && !is_keyword_of(signature, call->items[i]->text))
            return moec_chat_fail(p->err, MOEC_ERR_UNSUPPORTED, call->line, call->column,
                                  "the %s '%.*s' does not support the argument '%.*s'", what,
                                  (int)name->n_bytes, name->bytes, (int)call->items[i]->text->n_bytes,
                                  call->items[i]->text->bytes);
    return MOEC_OK;
}

/* "(a, b, name=c)" into the items of `call`. */
static enum moec_status parse_arguments(struct moec_chat_parser *p, struct moec_chat_node *call)
{
    bool had_keyword = false;
    MOEC_TRY(moec_chat_expect(p, OPERATOR, "("));
    while (!moec_chat_skip(p, OPERATOR, ")")) {
        struct moec_chat_node *item = NULL, *value = NULL;
        if (call->n_item > 0) {
            MOEC_TRY(moec_chat_expect(p, OPERATOR, ","));
            if (moec_chat_skip(p, OPERATOR, ")"))
                break;
        }
        if (moec_chat_token_is(p->at, OPERATOR, "*") || moec_chat_token_is(p->at, OPERATOR, "**"))
            return moec_chat_parser_fail(p, MOEC_ERR_UNSUPPORTED, "arguments with * are not supported");
        if (p->at->kind == NAME && moec_chat_token_is(p->at + 1, OPERATOR, "=")) {
            MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_KEYWORD, &item));
            MOEC_TRY(take_name(p, item));
            p->at++;
            MOEC_TRY(moec_chat_parse_expression(p, true, &value));
            item->a = value;
            had_keyword = true;
        } else if (had_keyword) {
            return moec_chat_parser_fail(p, MOEC_ERR_FORMAT,
                                         "an argument without a name follows one with a name");
        } else {
            MOEC_TRY(moec_chat_parse_expression(p, true, &item));
        }
        MOEC_TRY(moec_chat_node_add(p, call, item));
    }
    return MOEC_OK;
}

/* ---- primary expressions ---- */

static enum moec_status parse_list(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_LIST_OF, out));
    p->at++;
    while (!moec_chat_skip(p, OPERATOR, "]")) {
        struct moec_chat_node *item = NULL;
        if ((*out)->n_item > 0) {
            MOEC_TRY(moec_chat_expect(p, OPERATOR, ","));
            if (moec_chat_skip(p, OPERATOR, "]"))
                break;
        }
        MOEC_TRY(moec_chat_parse_expression(p, true, &item));
        MOEC_TRY(moec_chat_node_add(p, *out, item));
    }
    return MOEC_OK;
}

static enum moec_status parse_dict(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_DICT_OF, out));
    p->at++;
    while (!moec_chat_skip(p, OPERATOR, "}")) {
        struct moec_chat_node *key = NULL, *value = NULL;
        if ((*out)->n_item > 0) {
            MOEC_TRY(moec_chat_expect(p, OPERATOR, ","));
            if (moec_chat_skip(p, OPERATOR, "}"))
                break;
        }
        MOEC_TRY(moec_chat_parse_expression(p, true, &key));
        MOEC_TRY(moec_chat_expect(p, OPERATOR, ":"));
        MOEC_TRY(moec_chat_parse_expression(p, true, &value));
        MOEC_TRY(moec_chat_node_add(p, *out, key));
        MOEC_TRY(moec_chat_node_add(p, *out, value));
    }
    return MOEC_OK;
}

/* Strings beside each other are one. */
static enum moec_status parse_strings(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    struct moec_chat_buffer buffer = {.arena = p->arena};
    while (p->at->kind == MOEC_CHAT_TOKEN_STRING) {
        MOEC_TRY(moec_chat_write(&buffer, p->at->bytes, p->at->n_bytes, 0, p->err));
        p->at++;
    }
    return moec_chat_buffer_end(&buffer, &node->constant, p->err);
}

static enum moec_status parse_name(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    static const struct {
        const char *name;
        struct moec_chat_value value;
    } constants[] = {
        {"true", {.kind = MOEC_CHAT_BOOL, .as.boolean = true}},
        {"True", {.kind = MOEC_CHAT_BOOL, .as.boolean = true}},
        {"false", {.kind = MOEC_CHAT_BOOL}},
        {"False", {.kind = MOEC_CHAT_BOOL}},
        {"none", {.kind = MOEC_CHAT_NONE}},
        {"None", {.kind = MOEC_CHAT_NONE}},
    };
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (moec_chat_token_is(p->at, NAME, constants[i].name)) {
            MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_CONST, out));
            (*out)->constant = constants[i].value;
            p->at++;
            return MOEC_OK;
        }
    p->n_caller += moec_chat_token_is(p->at, NAME, "caller");
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_NAME, out));
    return take_name(p, *out);
}

static enum moec_status parse_primary(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    char found[48];
    const struct moec_chat_token *token = p->at;
    if (token->kind == NAME)
        return parse_name(p, out);
    if (moec_chat_skip(p, OPERATOR, "(")) {
        if (moec_chat_skip(p, OPERATOR, ")"))
            return moec_chat_node_make(p, MOEC_CHAT_TUPLE_OF, out);
        MOEC_TRY(moec_chat_parse_tuple(p, true, out));
        return moec_chat_expect(p, OPERATOR, ")");
    }
    if (moec_chat_token_is(token, OPERATOR, "["))
        return parse_list(p, out);
    if (moec_chat_token_is(token, OPERATOR, "{"))
        return parse_dict(p, out);
    if (token->kind != MOEC_CHAT_TOKEN_STRING && token->kind != MOEC_CHAT_TOKEN_INT &&
        token->kind != MOEC_CHAT_TOKEN_FLOAT)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "found %s, expected an expression",
                                     describe(token, found));
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_CONST, out));
    if (token->kind == MOEC_CHAT_TOKEN_STRING)
        return parse_strings(p, *out);
    (*out)->constant =
        token->kind == MOEC_CHAT_TOKEN_INT ? moec_chat_int(token->integer) : moec_chat_float(token->number);
    p->at++;
    return MOEC_OK;
}

/* ---- what stands behind one ---- */

static bool ends_slice_part(const struct moec_chat_token *token)
{
    return moec_chat_token_is(token, OPERATOR, ":") || moec_chat_token_is(token, OPERATOR, "]");
}

/* "[b]" or "[b:c:d]". */
static enum moec_status parse_subscript(struct moec_chat_parser *p, struct moec_chat_node **node)
{
    struct moec_chat_node *parts[3] = {NULL};
    size_t n = 0;
    bool is_slice = false;
    p->at++;
    for (; n < 3; n++) {
        if (!ends_slice_part(p->at))
            MOEC_TRY(moec_chat_parse_expression(p, true, &parts[n]));
        if (!moec_chat_skip(p, OPERATOR, ":"))
            break;
        is_slice = true;
    }
    if (moec_chat_token_is(p->at, OPERATOR, ","))
        return moec_chat_parser_fail(p, MOEC_ERR_UNSUPPORTED, "a subscript with a comma is not supported");
    if (!is_slice && parts[0] == NULL)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "a subscript is empty");
    MOEC_TRY(moec_chat_expect(p, OPERATOR, "]"));
    MOEC_TRY(wrap(p, is_slice ? MOEC_CHAT_SLICE : MOEC_CHAT_SUBSCRIPT, node));
    (*node)->b = parts[0];
    (*node)->c = parts[1];
    (*node)->d = parts[2];
    return MOEC_OK;
}

static enum moec_status parse_call(struct moec_chat_parser *p, struct moec_chat_node **node)
{
    MOEC_TRY(wrap(p, MOEC_CHAT_CALL, node));
    struct moec_chat_node *call = *node, *callee = call->a;
    MOEC_TRY(parse_arguments(p, call));
    if (callee->kind == MOEC_CHAT_ATTRIBUTE && !moec_chat_string_is(callee->text, "cycle") &&
        !moec_chat_string_is(callee->text, "changed") &&
        !(callee->a->kind == MOEC_CHAT_NAME && moec_chat_string_is(callee->a->text, "loop")))
        return check_call(p, "method", callee->text, moec_chat_method_find(callee->text), call);
    if (callee->kind == MOEC_CHAT_ATTRIBUTE)
        return moec_chat_fail(p->err, MOEC_ERR_UNSUPPORTED, call->line, call->column,
                              "calling loop.%.*s is not supported", (int)callee->text->n_bytes,
                              callee->text->bytes);
    if (callee->kind != MOEC_CHAT_NAME)
        return moec_chat_fail(p->err, MOEC_ERR_UNSUPPORTED, call->line, call->column,
                              "only functions, macros and methods can be called");
    const struct moec_chat_signature *function = moec_chat_function_find(callee->text);
    return function == NULL || function->keywords == NULL
               ? MOEC_OK /* a macro, which is found when it is called; any keywords */
               : check_call(p, "function", callee->text, function, call);
}

static enum moec_status parse_postfix(struct moec_chat_parser *p, struct moec_chat_node **node)
{
    for (;;) {
        if (moec_chat_skip(p, OPERATOR, ".")) {
            MOEC_TRY(wrap(p, MOEC_CHAT_ATTRIBUTE, node));
            if (p->at->kind == MOEC_CHAT_TOKEN_INT) { /* x.0 is x[0] */
                struct moec_chat_node *index = NULL;
                MOEC_TRY(parse_primary(p, &index));
                (*node)->kind = MOEC_CHAT_SUBSCRIPT;
                (*node)->b = index;
            } else {
                MOEC_TRY(take_name(p, *node));
            }
        } else if (moec_chat_token_is(p->at, OPERATOR, "[")) {
            MOEC_TRY(parse_subscript(p, node));
        } else if (moec_chat_token_is(p->at, OPERATOR, "(")) {
            MOEC_TRY(parse_call(p, node));
        } else {
            return MOEC_OK;
        }
    }
}

enum moec_status moec_chat_parse_filters(struct moec_chat_parser *p, bool starts,
                                         struct moec_chat_node *input, struct moec_chat_node **out)
{
    struct moec_chat_node *node = input;
    while (starts || moec_chat_skip(p, OPERATOR, "|")) {
        struct moec_chat_node *filter = NULL;
        starts = false;
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_FILTER, &filter));
        MOEC_TRY(take_name(p, filter));
        filter->a = node;
        if (moec_chat_token_is(p->at, OPERATOR, "("))
            MOEC_TRY(parse_arguments(p, filter));
        MOEC_TRY(check_call(p, "filter", filter->text, moec_chat_filter_find(filter->text), filter));
        node = filter;
    }
    *out = node;
    return MOEC_OK;
}

/* Whether a test's argument without parentheses begins here. */
static bool begins_argument(const struct moec_chat_token *token)
{
    static const char *const words[] = {"else", "or", "and"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (moec_chat_token_is(token, NAME, words[i]))
            return false;
    return token->kind == NAME || token->kind == MOEC_CHAT_TOKEN_STRING ||
           token->kind == MOEC_CHAT_TOKEN_INT || token->kind == MOEC_CHAT_TOKEN_FLOAT ||
           moec_chat_token_is(token, OPERATOR, "[") || moec_chat_token_is(token, OPERATOR, "{");
}

static enum moec_status parse_test(struct moec_chat_parser *p, struct moec_chat_node **node)
{
    const bool is_negated = moec_chat_skip(p, NAME, "not");
    struct moec_chat_node *argument = NULL;
    MOEC_TRY(wrap(p, MOEC_CHAT_TEST, node));
    struct moec_chat_node *test = *node;
    MOEC_TRY(take_name(p, test));
    if (moec_chat_token_is(p->at, OPERATOR, "(")) {
        MOEC_TRY(parse_arguments(p, test));
    } else if (begins_argument(p->at)) {
        if (moec_chat_token_is(p->at, NAME, "is"))
            return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "tests cannot be chained with 'is'");
        MOEC_TRY(parse_primary(p, &argument));
        MOEC_TRY(parse_postfix(p, &argument));
        MOEC_TRY(moec_chat_node_add(p, test, argument));
    }
    MOEC_TRY(check_call(p, "test", test->text, moec_chat_test_find(test->text), test));
    return is_negated ? wrap(p, MOEC_CHAT_NOT, node) : MOEC_OK;
}

static enum moec_status parse_behind(struct moec_chat_parser *p, struct moec_chat_node **node)
{
    for (;;) {
        if (moec_chat_token_is(p->at, OPERATOR, "|"))
            MOEC_TRY(moec_chat_parse_filters(p, false, *node, node));
        else if (moec_chat_skip(p, NAME, "is"))
            MOEC_TRY(parse_test(p, node));
        else if (moec_chat_token_is(p->at, OPERATOR, "("))
            MOEC_TRY(parse_call(p, node));
        else
            return MOEC_OK;
    }
}

/* ---- operators, from those that bind most to those that bind least ---- */

static enum moec_status parse_sign(struct moec_chat_parser *p, bool may_filter, struct moec_chat_node **out)
{
    const bool is_minus = moec_chat_token_is(p->at, OPERATOR, "-");
    if (is_minus || moec_chat_token_is(p->at, OPERATOR, "+")) {
        struct moec_chat_node *operand = NULL;
        MOEC_TRY(moec_chat_node_make(p, is_minus ? MOEC_CHAT_NEGATIVE : MOEC_CHAT_POSITIVE, out));
        p->at++;
        MOEC_TRY(moec_chat_parser_enter(p));
        MOEC_TRY(parse_sign(p, false, &operand));
        p->depth--;
        (*out)->a = operand;
    } else {
        MOEC_TRY(parse_primary(p, out));
    }
    MOEC_TRY(parse_postfix(p, out));
    return may_filter ? parse_behind(p, out) : MOEC_OK;
}

static enum moec_status parse_unary(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    return parse_sign(p, true, out);
}

struct operator_of {
    const char *text;
    char op;
};

/* A chain of binary operators of one level, from the left. */
static enum moec_status parse_chain(struct moec_chat_parser *p, const struct operator_of *operators,
                                    parse_fn *operand, struct moec_chat_node **out)
{
    MOEC_TRY(operand(p, out));
    for (;;) {
        const struct operator_of *found = operators;
        while (found->text != NULL && !moec_chat_skip(p, OPERATOR, found->text))
            found++;
        if (found->text == NULL)
            return MOEC_OK;
        struct moec_chat_node *right = NULL;
        MOEC_TRY(operand(p, &right));
        MOEC_TRY(wrap(p, MOEC_CHAT_BINARY, out));
        (*out)->op = found->op;
        (*out)->b = right;
    }
}

static enum moec_status parse_power(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    static const struct operator_of operators[] = {{"**", 'p'}, {0}};
    return parse_chain(p, operators, parse_unary, out);
}

static enum moec_status parse_product(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    static const struct operator_of operators[] = {{"*", '*'}, {"//", 'i'}, {"/", '/'}, {"%", '%'}, {0}};
    return parse_chain(p, operators, parse_power, out);
}

static enum moec_status parse_concat(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    struct moec_chat_node *first = NULL, *next = NULL;
    MOEC_TRY(parse_product(p, &first));
    *out = first;
    if (!moec_chat_token_is(p->at, OPERATOR, "~"))
        return MOEC_OK;
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_CONCAT, out));
    MOEC_TRY(moec_chat_node_add(p, *out, first));
    while (moec_chat_skip(p, OPERATOR, "~")) {
        MOEC_TRY(parse_product(p, &next));
        MOEC_TRY(moec_chat_node_add(p, *out, next));
    }
    return MOEC_OK;
}

static enum moec_status parse_sum(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    static const struct operator_of operators[] = {{"+", '+'}, {"-", '-'}, {0}};
    return parse_chain(p, operators, parse_concat, out);
}

/* The comparison that stands next, 0 for none; it is stepped over. */
static char take_comparison(struct moec_chat_parser *p)
{
    static const struct operator_of operators[] = {{"==", '='}, {"!=", '!'}, {"<=", 'l'}, {">=", 'g'},
                                                   {"<", '<'},  {">", '>'},  {0}};
    for (const struct operator_of *o = operators; o->text != NULL; o++)
        if (moec_chat_skip(p, OPERATOR, o->text))
            return o->op;
    if (moec_chat_skip(p, NAME, "in"))
        return 'i';
    if (moec_chat_token_is(p->at, NAME, "not") && moec_chat_token_is(p->at + 1, NAME, "in")) {
        p->at += 2;
        return 'n';
    }
    return 0;
}

static enum moec_status parse_compare(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    MOEC_TRY(parse_sum(p, out));
    struct moec_chat_node *compare = NULL;
    for (char op = take_comparison(p); op != 0; op = take_comparison(p)) {
        struct moec_chat_node *operand = NULL, *to = NULL;
        if (compare == NULL) {
            MOEC_TRY(wrap(p, MOEC_CHAT_COMPARE, out));
            compare = *out;
        }
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_COMPARE_TO, &to));
        MOEC_TRY(parse_sum(p, &operand));
        to->op = op;
        to->a = operand;
        MOEC_TRY(moec_chat_node_add(p, compare, to));
    }
    return MOEC_OK;
}

static enum moec_status parse_not(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    if (!moec_chat_token_is(p->at, NAME, "not"))
        return parse_compare(p, out);
    struct moec_chat_node *operand = NULL;
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_NOT, out));
    p->at++;
    MOEC_TRY(moec_chat_parser_enter(p));
    MOEC_TRY(parse_not(p, &operand));
    p->depth--;
    (*out)->a = operand;
    return MOEC_OK;
}

static enum moec_status parse_logical(struct moec_chat_parser *p, const char *word,
                                      enum moec_chat_node_kind kind, parse_fn *operand,
                                      struct moec_chat_node **out)
{
    MOEC_TRY(operand(p, out));
    while (moec_chat_skip(p, NAME, word)) {
        struct moec_chat_node *right = NULL;
        MOEC_TRY(operand(p, &right));
        MOEC_TRY(wrap(p, kind, out));
        (*out)->b = right;
    }
    return MOEC_OK;
}

static enum moec_status parse_and(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    return parse_logical(p, "and", MOEC_CHAT_AND, parse_not, out);
}

static enum moec_status parse_or(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    return parse_logical(p, "or", MOEC_CHAT_OR, parse_and, out);
}

enum moec_status moec_chat_parse_expression(struct moec_chat_parser *p, bool may_if,
                                            struct moec_chat_node **out)
{
    MOEC_TRY(moec_chat_parser_enter(p));
    MOEC_TRY(parse_or(p, out));
    while (may_if && moec_chat_skip(p, NAME, "if")) {
        struct moec_chat_node *condition = NULL, *otherwise = NULL, *outer = NULL;
        MOEC_TRY(parse_or(p, &condition));
        if (moec_chat_skip(p, NAME, "else"))
            MOEC_TRY(moec_chat_parse_expression(p, true, &otherwise));
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_CONDITIONAL, &outer));
        outer->a = condition;
        outer->b = *out;
        outer->c = otherwise;
        *out = outer;
    }
    p->depth--;
    return MOEC_OK;
}

static bool ends_tuple(const struct moec_chat_token *token)
{
    return token->kind == MOEC_CHAT_TOKEN_VARIABLE_END || token->kind == MOEC_CHAT_TOKEN_BLOCK_END ||
           moec_chat_token_is(token, OPERATOR, ")") || moec_chat_token_is(token, OPERATOR, "=");
}

enum moec_status moec_chat_parse_tuple(struct moec_chat_parser *p, bool may_if, struct moec_chat_node **out)
{
    struct moec_chat_node *first = NULL, *next = NULL;
    MOEC_TRY(moec_chat_parse_expression(p, may_if, &first));
    *out = first;
    if (!moec_chat_token_is(p->at, OPERATOR, ","))
        return MOEC_OK;
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_TUPLE_OF, out));
    MOEC_TRY(moec_chat_node_add(p, *out, first));
    while (moec_chat_skip(p, OPERATOR, ",")) {
        if (ends_tuple(p->at))
            break;
        MOEC_TRY(moec_chat_parse_expression(p, may_if, &next));
        MOEC_TRY(moec_chat_node_add(p, *out, next));
    }
    return MOEC_OK;
}
