/* Statements of a template, and the whole of parsing. */
#include "formats/base/locale.h"
#include "runtime/chat/chat_parser.h"
#include "runtime/chat/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERATOR MOEC_CHAT_TOKEN_OPERATOR
#define NAME     MOEC_CHAT_TOKEN_NAME

/* The "%}" of a block. */
static enum moec_status end_block(struct moec_chat_parser *p)
{
    if (p->at->kind != MOEC_CHAT_TOKEN_BLOCK_END)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "found '%.*s', expected the end of the block",
                                     (int)(p->at->n_bytes < 40 ? p->at->n_bytes : 40), p->at->bytes);
    p->at++;
    return MOEC_OK;
}

/* Statements into `body`, up to "{% word %}" with a single word, which is stepped over. */
static enum moec_status parse_body(struct moec_chat_parser *p, const char *word, struct moec_chat_node *body)
{
    char ends[40];
    (void)snprintf(ends, sizeof ends, " %s ", word);
    MOEC_TRY(end_block(p));
    MOEC_TRY(moec_chat_parse_statements(p, ends, body));
    p->at++;
    return end_block(p);
}

/* A name, or name.member where that may be, as in {% set ns.x = 1 %}. */
static enum moec_status parse_target_name(struct moec_chat_parser *p, bool may_member,
                                          struct moec_chat_node **out)
{
    struct moec_chat_node *member = NULL;
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_NAME, out));
    if (p->at->kind != NAME)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "a name is expected here");
    MOEC_TRY(moec_chat_node_text(p, p->at, *out));
    p->at++;
    if (!may_member || !moec_chat_skip(p, OPERATOR, "."))
        return MOEC_OK;
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_ATTRIBUTE, &member));
    if (p->at->kind != NAME)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "a name is expected here");
    MOEC_TRY(moec_chat_node_text(p, p->at, member));
    p->at++;
    member->a = *out;
    *out = member;
    return MOEC_OK;
}

/* What is assigned to: one name, or several to unpack into, perhaps in parentheses. */
static enum moec_status parse_target(struct moec_chat_parser *p, bool may_member, struct moec_chat_node **out)
{
    const bool has_bracket = moec_chat_skip(p, OPERATOR, "(");
    struct moec_chat_node *first = NULL, *next = NULL;
    MOEC_TRY(parse_target_name(p, may_member, &first));
    *out = first;
    if (moec_chat_token_is(p->at, OPERATOR, ",")) {
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_TUPLE_OF, out));
        MOEC_TRY(moec_chat_node_add(p, *out, first));
    }
    while (moec_chat_skip(p, OPERATOR, ",")) {
        if (p->at->kind != NAME)
            break;
        MOEC_TRY(parse_target_name(p, may_member, &next));
        MOEC_TRY(moec_chat_node_add(p, *out, next));
    }
    return has_bracket ? moec_chat_expect(p, OPERATOR, ")") : MOEC_OK;
}

static enum moec_status parse_if(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    MOEC_TRY(moec_chat_parse_tuple(p, false, &node->a));
    MOEC_TRY(end_block(p));
    MOEC_TRY(moec_chat_parse_statements(p, " elif else endif ", node));
    if (moec_chat_skip(p, NAME, "elif")) {
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_IF, &node->c));
        MOEC_TRY(moec_chat_parser_enter(p));
        MOEC_TRY(parse_if(p, node->c));
        p->depth--;
        return MOEC_OK;
    }
    if (moec_chat_skip(p, NAME, "else")) {
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_BLOCK, &node->c));
        return parse_body(p, "endif", node->c);
    }
    p->at++;
    return end_block(p);
}

static enum moec_status parse_for(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    MOEC_TRY(parse_target(p, false, &node->a));
    MOEC_TRY(moec_chat_expect(p, NAME, "in"));
    MOEC_TRY(moec_chat_parse_tuple(p, false, &node->b));
    if (moec_chat_skip(p, NAME, "if"))
        MOEC_TRY(moec_chat_parse_expression(p, true, &node->c));
    if (moec_chat_skip(p, NAME, "recursive"))
        node->op = 'r';
    MOEC_TRY(end_block(p));
    p->n_loop++;
    MOEC_TRY(moec_chat_parse_statements(p, " else endfor ", node));
    p->n_loop--;
    if (moec_chat_skip(p, NAME, "else")) {
        MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_BLOCK, &node->d));
        return parse_body(p, "endfor", node->d);
    }
    p->at++;
    return end_block(p);
}

static enum moec_status parse_set(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    MOEC_TRY(parse_target(p, true, &node->a));
    if (moec_chat_skip(p, OPERATOR, "=")) {
        MOEC_TRY(moec_chat_parse_tuple(p, true, &node->b));
        return end_block(p);
    }
    node->kind = MOEC_CHAT_SET_BLOCK;
    if (moec_chat_skip(p, OPERATOR, "|"))
        MOEC_TRY(moec_chat_parse_filters(p, true, NULL, &node->b));
    return parse_body(p, "endset", node);
}

/* "(a, b=1)" into the items of node->b. */
static enum moec_status parse_parameters(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    bool had_default = false;
    MOEC_TRY(moec_chat_expect(p, OPERATOR, "("));
    while (!moec_chat_skip(p, OPERATOR, ")")) {
        struct moec_chat_node *parameter = NULL;
        if (node->b->n_item > 0)
            MOEC_TRY(moec_chat_expect(p, OPERATOR, ","));
        MOEC_TRY(parse_target_name(p, false, &parameter));
        if (moec_chat_skip(p, OPERATOR, "=")) {
            parameter->kind = MOEC_CHAT_KEYWORD;
            MOEC_TRY(moec_chat_parse_expression(p, true, &parameter->a));
            had_default = true;
        } else if (had_default) {
            return moec_chat_parser_fail(p, MOEC_ERR_FORMAT,
                                         "a parameter without a default follows one with a default");
        }
        MOEC_TRY(moec_chat_node_add(p, node->b, parameter));
    }
    return MOEC_OK;
}

/* The body of a macro or of a call's block, in which no loop around it goes on. */
static enum moec_status parse_macro_body(struct moec_chat_parser *p, const char *end,
                                         struct moec_chat_node *node)
{
    const uint32_t n_loop = p->n_loop, n_caller = p->n_caller;
    p->n_loop = 0;
    MOEC_TRY(parse_body(p, end, node));
    p->n_loop = n_loop;
    if (p->n_caller == n_caller)
        return MOEC_OK;
    node->op = 'c';
    for (size_t i = 0; i < node->b->n_item; i++)
        if (node->b->items[i]->kind == MOEC_CHAT_NAME &&
            moec_chat_string_is(node->b->items[i]->text, "caller"))
            return moec_chat_fail(p->err, MOEC_ERR_FORMAT, node->line, node->column,
                                  "a macro that uses its parameter 'caller' must give it a default");
    return MOEC_OK;
}

static enum moec_status parse_macro(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    struct moec_chat_node *name = NULL;
    MOEC_TRY(parse_target_name(p, false, &name));
    node->text = name->text;
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_LIST_OF, &node->b));
    MOEC_TRY(parse_parameters(p, node));
    return parse_macro_body(p, "endmacro", node);
}

/* {% call(a) f(x) %}: the block is what f calls as caller(a). */
static enum moec_status parse_call(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    static const struct moec_chat_token caller = {.bytes = "caller", .n_bytes = 6};
    MOEC_TRY(moec_chat_node_text(p, &caller, node));
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_LIST_OF, &node->b));
    if (moec_chat_token_is(p->at, OPERATOR, "("))
        MOEC_TRY(parse_parameters(p, node));
    MOEC_TRY(moec_chat_parse_expression(p, true, &node->a));
    if (node->a->kind != MOEC_CHAT_CALL)
        return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "the statement 'call' must call a macro");
    return parse_macro_body(p, "endcall", node);
}

static enum moec_status parse_with(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_LIST_OF, &node->b));
    while (p->at->kind != MOEC_CHAT_TOKEN_BLOCK_END) {
        struct moec_chat_node *target = NULL, *value = NULL;
        if (node->b->n_item > 0)
            MOEC_TRY(moec_chat_expect(p, OPERATOR, ","));
        MOEC_TRY(parse_target_name(p, false, &target));
        MOEC_TRY(moec_chat_expect(p, OPERATOR, "="));
        MOEC_TRY(moec_chat_parse_expression(p, true, &value));
        MOEC_TRY(moec_chat_node_add(p, node->b, target));
        MOEC_TRY(moec_chat_node_add(p, node->b, value));
    }
    return parse_body(p, "endwith", node);
}

static enum moec_status parse_filter_block(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    MOEC_TRY(moec_chat_parse_filters(p, true, NULL, &node->b));
    return parse_body(p, "endfilter", node);
}

static enum moec_status parse_generation(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    return parse_body(p, "endgeneration", node);
}

static enum moec_status parse_jump(struct moec_chat_parser *p, struct moec_chat_node *node)
{
    (void)node;
    return p->n_loop > 0
               ? end_block(p)
               : moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "break and continue must be inside a loop");
}

/* What stands behind "{%". */
static enum moec_status parse_block(struct moec_chat_parser *p, struct moec_chat_node **out)
{
    static const struct {
        const char *word;
        enum moec_chat_node_kind kind;
        enum moec_status (*parse)(struct moec_chat_parser *p, struct moec_chat_node *node);
    } statements[] = {
        {"if", MOEC_CHAT_IF, parse_if},
        {"for", MOEC_CHAT_FOR, parse_for},
        {"set", MOEC_CHAT_SET, parse_set},
        {"macro", MOEC_CHAT_MACRO_OF, parse_macro},
        {"call", MOEC_CHAT_CALL_OF, parse_call},
        {"with", MOEC_CHAT_SCOPE, parse_with},
        {"filter", MOEC_CHAT_FILTER_BLOCK, parse_filter_block},
        {"generation", MOEC_CHAT_SCOPE, parse_generation},
        {"break", MOEC_CHAT_BREAK, parse_jump},
        {"continue", MOEC_CHAT_CONTINUE, parse_jump},
    };
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (moec_chat_token_is(p->at, NAME, statements[i].word)) {
            MOEC_TRY(moec_chat_node_make(p, statements[i].kind, out));
            p->at++;
            MOEC_TRY(moec_chat_parser_enter(p));
            MOEC_TRY(statements[i].parse(p, *out));
            p->depth--;
            return MOEC_OK;
        }
    return moec_chat_parser_fail(p, MOEC_ERR_UNSUPPORTED, "the statement '%.*s' is not supported here",
                                 (int)(p->at->n_bytes < 40 ? p->at->n_bytes : 40), p->at->bytes);
}

static bool is_end(const struct moec_chat_token *token, const char *ends)
{
    char word[40];
    if (ends == NULL || token->kind != NAME || token->n_bytes + 3 > sizeof word)
        return false;
    (void)snprintf(word, sizeof word, " %.*s ", (int)token->n_bytes, token->bytes);
    return strstr(ends, word) != NULL;
}

enum moec_status moec_chat_parse_statements(struct moec_chat_parser *p, const char *ends,
                                            struct moec_chat_node *body)
{
    for (;;) {
        const struct moec_chat_token *token = p->at;
        struct moec_chat_node *node = NULL;
        if (token->kind == MOEC_CHAT_TOKEN_END) {
            if (ends == NULL)
                return MOEC_OK;
            return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "the template ends, expected%s", ends);
        }
        if (token->kind == MOEC_CHAT_TOKEN_TEXT) {
            MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_TEXT, &node));
            MOEC_TRY(moec_chat_node_text(p, token, node));
            p->at++;
        } else if (token->kind == MOEC_CHAT_TOKEN_VARIABLE_BEGIN) {
            MOEC_TRY(moec_chat_node_make(p, MOEC_CHAT_OUTPUT, &node));
            p->at++;
            MOEC_TRY(moec_chat_parse_tuple(p, true, &node->a));
            if (p->at->kind != MOEC_CHAT_TOKEN_VARIABLE_END)
                return moec_chat_parser_fail(p, MOEC_ERR_FORMAT, "expected the end of the expression");
            p->at++;
        } else { /* the lexer gives nothing else outside of tags */
            p->at++;
            if (is_end(p->at, ends))
                return MOEC_OK;
            MOEC_TRY(parse_block(p, &node));
        }
        MOEC_TRY(moec_chat_node_add(p, body, node));
    }
}

enum moec_status moec_chat_template_parse(const char *text, size_t n_bytes, struct moec_chat_template **out,
                                          struct moec_error *err)
{
    struct moec_chat_tokens tokens = {0};
    struct moec_chat_template *made = calloc(1, sizeof *made);
    if (made == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: a chat template");
    enum moec_status status = MOEC_OK;
    const locale_t before = moec_locale_enter();
    if (n_bytes > MOEC_CHAT_MAX_TEMPLATE_BYTES) {
        status = moec_fail(err, MOEC_ERR_LIMIT, "a chat template has %zu bytes, expected at most %zu",
                           n_bytes, MOEC_CHAT_MAX_TEMPLATE_BYTES);
        goto out;
    }
    MOEC_TRY_OUT(moec_chat_lex(text, n_bytes, &made->arena, &tokens, err));
    struct moec_chat_parser parser = {.at = tokens.items, .arena = &made->arena, .err = err};
    MOEC_TRY_OUT(moec_chat_node_make(&parser, MOEC_CHAT_BLOCK, &made->root));
    MOEC_TRY_OUT(moec_chat_parse_statements(&parser, NULL, made->root));
    *out = made;
    made = NULL;
out:
    moec_locale_leave(before);
    moec_chat_tokens_release(&tokens);
    moec_chat_template_free(made);
    return status;
}

void moec_chat_template_free(struct moec_chat_template *chat_template)
{
    if (chat_template == NULL)
        return;
    moec_chat_arena_release(&chat_template->arena);
    free(chat_template);
}
