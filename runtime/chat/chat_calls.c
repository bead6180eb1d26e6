/* Calls: of functions, of macros, and of methods, whose arguments are bound here. */
#include "runtime/chat/chat_render.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>

static const struct moec_chat_signature functions[] = {
    {"namespace", 0, 255, NULL}, /* NULL: any keywords */
    {"dict", 0, 255, NULL},
    {"range", 1, 3, ""},
    {"raise_exception", 1, 1, " message "},
    {"strftime_now", 1, 1, " format "},
};

const struct moec_chat_signature *moec_chat_function_find(const struct moec_chat_string *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (moec_chat_string_is(name, functions[i].name))
            return &functions[i];
    return NULL;
}

/* ---- arguments ---- */

/* The place of a word in " a b c ", or the number of words. */
static size_t place_of(const char *words, const struct moec_chat_string *name)
{
    size_t place = 0;
    const char *at = words + strspn(words, " ");
    while (*at != '\0') {
        const size_t n = strcspn(at, " ");
        if (n == name->n_bytes && memcmp(at, name->bytes, n) == 0)
            break;
        at += n;
        at += strspn(at, " ");
        place++;
    }
    return place;
}

enum moec_status moec_chat_bind(struct moec_chat_run *run, const struct moec_chat_node *call,
                                const struct moec_chat_signature *signature,
                                struct moec_chat_arguments *arguments)
{
    *arguments = (struct moec_chat_arguments){.n = 0};
    for (size_t i = 0; i < call->n_item; i++) {
        const struct moec_chat_node *item = call->items[i];
        const bool is_keyword = item->kind == MOEC_CHAT_KEYWORD;
        const bool has_own_name = is_keyword && signature->keywords == NULL;
        const size_t place = is_keyword && !has_own_name ? place_of(signature->keywords, item->text) : i;
        if (place >= MOEC_CHAT_MAX_ARGUMENTS || arguments->given[place])
            return moec_chat_run_fail(run, call, MOEC_ERR_FORMAT, "an argument is given twice");
        MOEC_TRY(moec_chat_eval(run, is_keyword ? item->a : item, &arguments->values[place]));
        arguments->given[place] = true;
        arguments->names[place] = has_own_name ? item->text : NULL;
        arguments->n += !is_keyword;
    }
    return MOEC_OK;
}

/* ---- functions ---- */

/* namespace(a=1) and dict(a=1), which may both take a dict first. */
static enum moec_status make_names(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   struct moec_chat_value *out)
{
    struct moec_chat_value value;
    MOEC_TRY(moec_chat_dict_make(run->arena, out, run->err));
    for (size_t i = 0; i < node->n_item; i++) {
        const struct moec_chat_node *item = node->items[i];
        const bool is_keyword = item->kind == MOEC_CHAT_KEYWORD;
        const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = item->text};
        MOEC_TRY(moec_chat_eval(run, is_keyword ? item->a : item, &value));
        if (!is_keyword && (i > 0 || value.kind != MOEC_CHAT_DICT))
            return moec_chat_run_fail(
                run, node, MOEC_ERR_FORMAT,
                "namespace and dict take at most one argument without a name: a dict, before all named "
                "arguments");
        MOEC_TRY(moec_chat_charge(run, node, moec_chat_weight(&value) + out->as.dict->n));
        for (size_t pair = 0; !is_keyword && pair < value.as.dict->n; pair++)
            MOEC_TRY(moec_chat_dict_set(run->arena, out->as.dict, value.as.dict->pairs[pair].key,
                                        value.as.dict->pairs[pair].value, run->err));
        if (is_keyword)
            MOEC_TRY(moec_chat_dict_set(run->arena, out->as.dict, key, value, run->err));
    }
    return MOEC_OK;
}

static enum moec_status make_range(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_arguments *arguments, struct moec_chat_value *out)
{
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < arguments->n; i++) {
        const struct moec_chat_value *value = &arguments->values[i];
        if (value->kind != MOEC_CHAT_INT || value->as.integer > INT32_MAX || value->as.integer < INT32_MIN)
            return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "range takes only integers of 32 bits");
        bounds[arguments->n == 1 ? 1 : i] = value->as.integer;
    }
    if (bounds[2] == 0)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "the step of a range must not be 0");
    MOEC_TRY(moec_chat_list_make(run->arena, 0, out, run->err));
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1]; i += bounds[2]) {
        MOEC_TRY(moec_chat_charge(run, node, 1));
        MOEC_TRY(moec_chat_list_append(run->arena, out->as.list, moec_chat_int(i), run->err));
    }
    return MOEC_OK;
}

static enum moec_status show_date(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  const struct moec_chat_value *format, struct moec_chat_value *out)
{
    char pattern[256], text[1024];
    MOEC_TRY(moec_chat_need(run, node, format));
    if (format->kind != MOEC_CHAT_STRING || format->as.string->n_bytes >= sizeof pattern || run->date == NULL)
        return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT,
                                  "strftime_now needs a short format string, and a date from the caller");
    (void)snprintf(pattern, sizeof pattern, "%.*s", (int)format->as.string->n_bytes,
                   format->as.string->bytes);
    /* Names of days and months are English, whatever the program around speaks. */
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return moec_fail(run->err, MOEC_ERR_MEMORY, "out of memory: a date");
    const size_t n = strftime_l(text, sizeof text, pattern, run->date, plain);
    freelocale(plain);
    return moec_chat_string_make(run->arena, text, n, 0, out, run->err);
}

static enum moec_status call_function(struct moec_chat_run *run, const struct moec_chat_node *node,
                                      const struct moec_chat_signature *function, struct moec_chat_value *out)
{
    struct moec_chat_arguments arguments;
    if (function->keywords == NULL) {
        MOEC_TRY(make_names(run, node, out));
        out->kind = function == &functions[0] ? MOEC_CHAT_NAMESPACE : MOEC_CHAT_DICT;
        return MOEC_OK;
    }
    MOEC_TRY(moec_chat_bind(run, node, function, &arguments));
    if (strcmp(function->name, "range") == 0)
        return make_range(run, node, &arguments, out);
    if (strcmp(function->name, "strftime_now") == 0)
        return show_date(run, node, &arguments.values[0], out);
    const struct moec_chat_string *message = NULL;
    MOEC_TRY(moec_chat_to_string(run, node, &arguments.values[0], &message));
    return moec_chat_run_fail(run, node, MOEC_ERR_USAGE, "the template raised an exception: %.*s",
                              (int)(message->n_bytes < 400 ? message->n_bytes : 400), message->bytes);
}

/* ---- macros ---- */

static enum moec_status set_name(struct moec_chat_run *run, struct moec_chat_scope *scope,
                                 const struct moec_chat_string *name, struct moec_chat_value value)
{
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = name};
    return moec_chat_dict_set(run->arena, scope->names, key, value, run->err);
}

/* Arguments of the caller, which are evaluated in its scope, by the names of the parameters. */
static enum moec_status pass_arguments(struct moec_chat_run *run, const struct moec_chat_node *call,
                                       const struct moec_chat_macro *macro, struct moec_chat_scope *scope)
{
    const struct moec_chat_node *parameters = macro->node->b;
    struct moec_chat_value value;
    for (size_t i = 0; i < call->n_item; i++) {
        const struct moec_chat_node *item = call->items[i];
        const bool is_keyword = item->kind == MOEC_CHAT_KEYWORD;
        size_t place = is_keyword ? 0 : i;
        while (is_keyword && place < parameters->n_item &&
               (parameters->items[place]->text->n_bytes != item->text->n_bytes ||
                memcmp(parameters->items[place]->text->bytes, item->text->bytes, item->text->n_bytes) != 0))
            place++;
        const bool is_caller = is_keyword && moec_chat_string_is(item->text, "caller");
        if (place >= parameters->n_item && (!is_caller || macro->node->op != 'c'))
            return moec_chat_run_fail(run, call, MOEC_ERR_FORMAT,
                                      "the macro '%.*s' has no parameter for this argument",
                                      (int)macro->node->text->n_bytes, macro->node->text->bytes);
        MOEC_TRY(moec_chat_eval(run, is_keyword ? item->a : item, &value));
        MOEC_TRY(set_name(run, scope, is_keyword ? item->text : parameters->items[place]->text, value));
    }
    return MOEC_OK;
}

static bool has_parameter_caller(const struct moec_chat_node *macro)
{
    for (size_t i = 0; i < macro->b->n_item; i++)
        if (moec_chat_string_is(macro->b->items[i]->text, "caller"))
            return true;
    return false;
}

/* Sets `caller` where the macro names it: to the block of a {% call %}, else to nothing. */
static enum moec_status pass_caller(struct moec_chat_run *run, const struct moec_chat_node *call,
                                    const struct moec_chat_macro *macro, const struct moec_chat_macro *block,
                                    struct moec_chat_scope *scope)
{
    static const struct moec_chat_string name = {.bytes = "caller", .n_bytes = 6};
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = &name};
    const bool is_given = moec_chat_dict_find(scope->names, &key) != NULL,
               is_parameter = has_parameter_caller(macro->node);
    if (block != NULL && (is_given || (macro->node->op != 'c' && !is_parameter)))
        return moec_chat_run_fail(
            run, call, MOEC_ERR_FORMAT,
            "a call block cannot call the macro '%.*s': it does not use 'caller', or gets it as an "
            "argument",
            (int)macro->node->text->n_bytes, macro->node->text->bytes);
    if (is_given || (block == NULL && (is_parameter || macro->node->op != 'c')))
        return MOEC_OK;
    const struct moec_chat_value value = {.kind = MOEC_CHAT_MACRO, .as.macro = block};
    return set_name(run, scope, &name, block != NULL ? value : moec_chat_undefined(&name));
}

/* `block`: of a {% call %}, NULL without. */
static enum moec_status call_macro(struct moec_chat_run *run, const struct moec_chat_node *call,
                                   const struct moec_chat_macro *macro, const struct moec_chat_macro *block,
                                   struct moec_chat_value *out)
{
    const struct moec_chat_scope *caller = run->scope;
    const struct moec_chat_node *parameters = macro->node->b;
    struct moec_chat_scope *scope = NULL;
    if (run->n_call >= MOEC_CHAT_MAX_CALLS)
        return moec_chat_run_fail(run, call, MOEC_ERR_LIMIT, "macro calls nest deeper than %d",
                                  MOEC_CHAT_MAX_CALLS);
    MOEC_TRY(moec_chat_scope_make(run, macro->scope, &scope));
    MOEC_TRY(pass_arguments(run, call, macro, scope));
    MOEC_TRY(pass_caller(run, call, macro, block, scope));
    run->n_call++;
    run->scope = scope;
    for (size_t i = 0; i < parameters->n_item; i++) {
        const struct moec_chat_node *parameter = parameters->items[i];
        const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = parameter->text};
        struct moec_chat_value value = moec_chat_undefined(parameter->text);
        if (moec_chat_dict_find(scope->names, &key) != NULL)
            continue;
        if (parameter->kind == MOEC_CHAT_KEYWORD)
            MOEC_TRY(moec_chat_eval(run, parameter->a, &value));
        MOEC_TRY(set_name(run, scope, parameter->text, value));
    }
    MOEC_TRY(moec_chat_run_captured(run, macro->node, out));
    run->scope = caller;
    run->n_call--;
    return MOEC_OK;
}

/* ---- calls ---- */

static enum moec_status call_loop(struct moec_chat_run *run, const struct moec_chat_node *call,
                                  const struct moec_chat_dict *loop, struct moec_chat_value *out)
{
    struct moec_chat_value iterated;
    if (call->n_item != 1 || call->items[0]->kind == MOEC_CHAT_KEYWORD)
        return moec_chat_run_fail(run, call, MOEC_ERR_FORMAT,
                                  "loop() takes one argument, the items to iterate over");
    MOEC_TRY(moec_chat_eval(run, call->items[0], &iterated));
    return moec_chat_loop_again(run, call, loop, &iterated, out);
}

enum moec_status moec_chat_call_block(struct moec_chat_run *run, const struct moec_chat_node *block,
                                      struct moec_chat_value *out)
{
    const struct moec_chat_node *call = block->a;
    struct moec_chat_value callee;
    void *memory = NULL;
    MOEC_TRY(moec_chat_alloc(run->arena, sizeof(struct moec_chat_macro), &memory, run->err));
    struct moec_chat_macro *caller = memory;
    *caller = (struct moec_chat_macro){.node = block, .scope = run->scope};
    MOEC_TRY(moec_chat_eval(run, call->a, &callee));
    MOEC_TRY(moec_chat_need(run, call->a, &callee));
    if (callee.kind != MOEC_CHAT_MACRO)
        return moec_chat_run_fail(run, call, MOEC_ERR_FORMAT, "a call block must call a macro, found %s",
                                  moec_chat_kind_name(&callee));
    return call_macro(run, call, callee.as.macro, caller, out);
}

enum moec_status moec_chat_call(struct moec_chat_run *run, const struct moec_chat_node *node,
                                struct moec_chat_value *out)
{
    const struct moec_chat_node *callee = node->a;
    struct moec_chat_value value;
    if (callee->kind == MOEC_CHAT_ATTRIBUTE) {
        struct moec_chat_arguments arguments;
        MOEC_TRY(moec_chat_eval(run, callee->a, &value));
        MOEC_TRY(moec_chat_need(run, callee, &value));
        MOEC_TRY(moec_chat_bind(run, node, moec_chat_method_find(callee->text), &arguments));
        return moec_chat_call_method(run, node, &value, callee->text, &arguments, out);
    }
    MOEC_TRY(moec_chat_eval(run, callee, &value));
    MOEC_TRY(moec_chat_need(run, callee, &value));
    if (value.kind == MOEC_CHAT_MACRO)
        return call_macro(run, node, value.as.macro, NULL, out);
    if (value.kind == MOEC_CHAT_LOOP)
        return call_loop(run, node, value.as.dict, out);
    if (value.kind == MOEC_CHAT_METHOD && value.as.method->object.kind == MOEC_CHAT_NONE &&
        moec_chat_function_find(value.as.method->name) != NULL &&
        moec_chat_string_is(callee->text, moec_chat_function_find(value.as.method->name)->name))
        return call_function(run, node, moec_chat_function_find(value.as.method->name), out);
    return moec_chat_run_fail(run, node, MOEC_ERR_FORMAT, "'%.*s' is a %s and cannot be called",
                              (int)callee->text->n_bytes, callee->text->bytes, moec_chat_kind_name(&value));
}
