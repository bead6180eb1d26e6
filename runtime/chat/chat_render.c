/* Running the statements of a template. */
#include "runtime/chat/chat_render.h"

#include "formats/base/locale.h"

#include <stdio.h>
#include <string.h>

/* What a statement says to those around it. */
enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

enum moec_status moec_chat_run_fail(const struct moec_chat_run *run, const struct moec_chat_node *node,
                                    enum moec_status status, const char *format, ...)
{
    char text[768];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return moec_chat_fail(run->err, status, node->line, node->column, "%s", text);
}

enum moec_status moec_chat_charge(struct moec_chat_run *run, const struct moec_chat_node *node, uint64_t n)
{
    run->n_step += n;
    if (run->n_step <= MOEC_CHAT_MAX_STEPS)
        return MOEC_OK;
    return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "the template takes more than %u million steps",
                              (unsigned)(MOEC_CHAT_MAX_STEPS >> 20));
}

enum moec_status moec_chat_scope_make(struct moec_chat_run *run, const struct moec_chat_scope *parent,
                                      struct moec_chat_scope **out)
{
    void *memory = NULL;
    struct moec_chat_value names;
    MOEC_TRY(moec_chat_dict_make(run->arena, &names, run->err));
    MOEC_TRY(moec_chat_alloc(run->arena, sizeof(struct moec_chat_scope), &memory, run->err));
    *out = memory;
    **out = (struct moec_chat_scope){.parent = parent, .names = names.as.dict};
    return MOEC_OK;
}

static enum moec_status run_body(struct moec_chat_run *run, const struct moec_chat_node *body,
                                 enum flow *flow);

/* ---- assignment ---- */

static enum moec_status assign(struct moec_chat_run *run, const struct moec_chat_node *target,
                               const struct moec_chat_value *value)
{
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = target->text};
    if (target->kind == MOEC_CHAT_NAME) {
        MOEC_TRY(moec_chat_charge(run, target, run->scope->names->n));
        return moec_chat_dict_set(run->arena, run->scope->names, key, *value, run->err);
    }
    if (target->kind == MOEC_CHAT_ATTRIBUTE) {
        struct moec_chat_value object;
        MOEC_TRY(moec_chat_eval(run, target->a, &object));
        if (object.kind != MOEC_CHAT_NAMESPACE)
            return moec_chat_run_fail(run, target, MOEC_ERR_FORMAT,
                                      "only members of a namespace can be assigned to");
        MOEC_TRY(moec_chat_charge(run, target, object.as.dict->n));
        return moec_chat_dict_set(run->arena, object.as.dict, key, *value, run->err);
    }
    struct moec_chat_list *items = NULL;
    MOEC_TRY(moec_chat_items(run, target, value, &items));
    if (items->n != target->n_item)
        return moec_chat_run_fail(run, target, MOEC_ERR_FORMAT,
                                  "%zu values cannot be unpacked into %zu names", items->n, target->n_item);
    for (size_t i = 0; i < items->n; i++)
        MOEC_TRY(assign(run, target->items[i], &items->items[i]));
    return MOEC_OK;
}

/* ---- loops ---- */

/* Members of `loop` in their order in its dict. */
static const char *const loop_members[] = {"index",  "index0", "revindex", "revindex0", "first",   "last",
                                           "length", "depth",  "depth0",   "previtem",  "nextitem"};
#define N_LOOP_MEMBER (sizeof loop_members / sizeof *loop_members)

static enum moec_status make_loop(struct moec_chat_run *run, struct moec_chat_value *loop)
{
    struct moec_chat_value key;
    MOEC_TRY(moec_chat_dict_make(run->arena, loop, run->err));
    for (size_t i = 0; i < N_LOOP_MEMBER; i++) {
        MOEC_TRY(
            moec_chat_string_make(run->arena, loop_members[i], strlen(loop_members[i]), 0, &key, run->err));
        MOEC_TRY(moec_chat_dict_set(run->arena, loop->as.dict, key, moec_chat_none(), run->err));
    }
    loop->kind = MOEC_CHAT_LOOP;
    return MOEC_OK;
}

static void set_loop(struct moec_chat_dict *loop, const struct moec_chat_list *items, size_t at,
                     uint32_t depth)
{
    const int64_t i = (int64_t)at, n = (int64_t)items->n;
    const struct moec_chat_value nothing = moec_chat_undefined(NULL);
    const struct moec_chat_value values[N_LOOP_MEMBER] = {
        moec_chat_int(i + 1),
        moec_chat_int(i),
        moec_chat_int(n - i),
        moec_chat_int(n - i - 1),
        moec_chat_bool(i == 0),
        moec_chat_bool(i + 1 == n),
        moec_chat_int(n),
        moec_chat_int((int64_t)depth + 1),
        moec_chat_int(depth),
        i > 0 ? items->items[at - 1] : nothing,
        i + 1 < n ? items->items[at + 1] : nothing,
    };
    for (size_t member = 0; member < N_LOOP_MEMBER; member++)
        loop->pairs[member].value = values[member];
}

/* A scope in which the loop's target has this value. */
static enum moec_status enter_item(struct moec_chat_run *run, const struct moec_chat_node *node,
                                   const struct moec_chat_scope *outer, const struct moec_chat_value *item)
{
    struct moec_chat_scope *scope = NULL;
    MOEC_TRY(moec_chat_scope_make(run, outer, &scope));
    run->scope = scope;
    return assign(run, node->a, item);
}

/* The items of a value that the loop's condition lets through. */
static enum moec_status choose_items(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     const struct moec_chat_value *iterated, struct moec_chat_list **items)
{
    const struct moec_chat_scope *outer = run->scope;
    struct moec_chat_value chosen, holds;
    MOEC_TRY(moec_chat_items(run, node, iterated, items));
    if (node->c == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_chat_list_make(run->arena, 0, &chosen, run->err));
    for (size_t i = 0; i < (*items)->n; i++) {
        MOEC_TRY(enter_item(run, node, outer, &(*items)->items[i]));
        MOEC_TRY(moec_chat_eval(run, node->c, &holds));
        if (moec_chat_truth(&holds))
            MOEC_TRY(moec_chat_list_append(run->arena, chosen.as.list, (*items)->items[i], run->err));
    }
    run->scope = outer;
    *items = chosen.as.list;
    return MOEC_OK;
}

/* Goes through the items of a value; `depth` of recursive loops in each other. */
static enum moec_status run_loop(struct moec_chat_run *run, const struct moec_chat_node *node,
                                 const struct moec_chat_value *iterated, uint32_t depth)
{
    static const struct moec_chat_string loop_name = {.bytes = "loop", .n_bytes = 4};
    const struct moec_chat_value loop_key = {.kind = MOEC_CHAT_STRING, .as.string = &loop_name};
    const struct moec_chat_scope *outer = run->scope;
    const struct moec_chat_recursion *recursion = run->recursion;
    struct moec_chat_list *items = NULL;
    struct moec_chat_value loop;
    enum flow flow = FLOW_ON;
    MOEC_TRY(choose_items(run, node, iterated, &items));
    if (items->n == 0 && node->d != NULL)
        return run_body(run, node->d, &flow);
    MOEC_TRY(make_loop(run, &loop));
    const struct moec_chat_recursion own = {node, outer, loop.as.dict, depth, recursion};
    run->recursion = node->op == 'r' ? &own : recursion;
    const size_t n = items->n;
    for (size_t i = 0; i < n && flow != FLOW_BREAK; i++) {
        set_loop(loop.as.dict, items, i, depth);
        MOEC_TRY(enter_item(run, node, outer, &items->items[i]));
        MOEC_TRY(moec_chat_dict_set(run->arena, run->scope->names, loop_key, loop, run->err));
        MOEC_TRY(run_body(run, node, &flow));
    }
    run->recursion = recursion;
    run->scope = outer;
    return MOEC_OK;
}

static enum moec_status run_for(struct moec_chat_run *run, const struct moec_chat_node *node)
{
    struct moec_chat_value iterated;
    MOEC_TRY(moec_chat_eval(run, node->b, &iterated));
    return run_loop(run, node, &iterated, 0);
}

enum moec_status moec_chat_loop_again(struct moec_chat_run *run, const struct moec_chat_node *call,
                                      const struct moec_chat_dict *loop,
                                      const struct moec_chat_value *iterated, struct moec_chat_value *out)
{
    struct moec_chat_buffer buffer = {.arena = run->arena}, *written = run->out;
    const struct moec_chat_scope *scope = run->scope;
    const struct moec_chat_recursion *again = run->recursion;
    while (again != NULL && again->loop != loop)
        again = again->outer;
    if (again == NULL)
        return moec_chat_run_fail(run, call, MOEC_ERR_FORMAT,
                                  "loop() was called, but the loop is not recursive or has ended");
    if (run->n_call >= MOEC_CHAT_MAX_CALLS)
        return moec_chat_run_fail(run, call, MOEC_ERR_LIMIT, "recursive loops nest deeper than %d",
                                  MOEC_CHAT_MAX_CALLS);
    run->n_call++;
    run->out = &buffer;
    run->scope = again->scope;
    MOEC_TRY(run_loop(run, again->node, iterated, again->depth + 1));
    run->scope = scope;
    run->out = written;
    run->n_call--;
    return moec_chat_buffer_end(&buffer, out, run->err);
}

/* ---- other statements ---- */

enum moec_status moec_chat_run_captured(struct moec_chat_run *run, const struct moec_chat_node *body,
                                        struct moec_chat_value *text)
{
    struct moec_chat_buffer buffer = {.arena = run->arena}, *out = run->out;
    enum flow flow = FLOW_ON;
    run->out = &buffer;
    MOEC_TRY(run_body(run, body, &flow));
    run->out = out;
    return moec_chat_buffer_end(&buffer, text, run->err);
}

/* What a block writes with names of its own, through its filters. */
static enum moec_status run_filtered(struct moec_chat_run *run, const struct moec_chat_node *node,
                                     struct moec_chat_value *text)
{
    const struct moec_chat_scope *outer = run->scope;
    struct moec_chat_scope *scope = NULL;
    MOEC_TRY(moec_chat_scope_make(run, outer, &scope));
    run->scope = scope;
    MOEC_TRY(moec_chat_run_captured(run, node, text));
    run->scope = outer;
    run->captured = *text;
    return node->b != NULL ? moec_chat_eval(run, node->b, text) : MOEC_OK;
}

static enum moec_status run_scope(struct moec_chat_run *run, const struct moec_chat_node *node,
                                  enum flow *flow)
{
    const struct moec_chat_scope *outer = run->scope;
    struct moec_chat_scope *scope = NULL;
    MOEC_TRY(moec_chat_scope_make(run, outer, &scope));
    for (size_t i = 0; node->b != NULL && i < node->b->n_item; i += 2) {
        struct moec_chat_value value;
        MOEC_TRY(moec_chat_eval(run, node->b->items[i + 1], &value));
        run->scope = scope;
        MOEC_TRY(assign(run, node->b->items[i], &value));
        run->scope = outer;
    }
    run->scope = scope;
    MOEC_TRY(run_body(run, node, flow));
    run->scope = outer;
    return MOEC_OK;
}

static enum moec_status define_macro(struct moec_chat_run *run, const struct moec_chat_node *node)
{
    void *memory = NULL;
    MOEC_TRY(moec_chat_alloc(run->arena, sizeof(struct moec_chat_macro), &memory, run->err));
    struct moec_chat_macro *macro = memory;
    *macro = (struct moec_chat_macro){.node = node, .scope = run->scope};
    const struct moec_chat_value key = {.kind = MOEC_CHAT_STRING, .as.string = node->text};
    const struct moec_chat_value value = {.kind = MOEC_CHAT_MACRO, .as.macro = macro};
    return moec_chat_dict_set(run->arena, run->scope->names, key, value, run->err);
}

static enum moec_status write_value(struct moec_chat_run *run, const struct moec_chat_node *node,
                                    const struct moec_chat_value *value)
{
    MOEC_TRY(moec_chat_print(run, node, value, run->out));
    if (run->out->n_bytes > MOEC_CHAT_MAX_OUTPUT_BYTES)
        return moec_chat_run_fail(run, node, MOEC_ERR_LIMIT, "the rendered text is longer than %zu bytes",
                                  MOEC_CHAT_MAX_OUTPUT_BYTES);
    return MOEC_OK;
}

static enum moec_status run_if(struct moec_chat_run *run, const struct moec_chat_node *node, enum flow *flow)
{
    struct moec_chat_value holds;
    while (node != NULL && node->kind == MOEC_CHAT_IF) {
        MOEC_TRY(moec_chat_eval(run, node->a, &holds));
        if (moec_chat_truth(&holds))
            return run_body(run, node, flow);
        node = node->c;
    }
    return node != NULL ? run_body(run, node, flow) : MOEC_OK;
}

static enum moec_status run_statement(struct moec_chat_run *run, const struct moec_chat_node *node,
                                      enum flow *flow)
{
    struct moec_chat_value value = {.kind = MOEC_CHAT_STRING, .as.string = node->text};
    switch (node->kind) {
    case MOEC_CHAT_TEXT:
        return write_value(run, node, &value);
    case MOEC_CHAT_OUTPUT:
        MOEC_TRY(moec_chat_eval(run, node->a, &value));
        return write_value(run, node, &value);
    case MOEC_CHAT_IF:
        return run_if(run, node, flow);
    case MOEC_CHAT_FOR:
        return run_for(run, node);
    case MOEC_CHAT_SET:
        MOEC_TRY(moec_chat_eval(run, node->b, &value));
        return assign(run, node->a, &value);
    case MOEC_CHAT_SET_BLOCK:
        MOEC_TRY(run_filtered(run, node, &value));
        return assign(run, node->a, &value);
    case MOEC_CHAT_FILTER_BLOCK:
        MOEC_TRY(run_filtered(run, node, &value));
        return write_value(run, node, &value);
    case MOEC_CHAT_CALL_OF:
        MOEC_TRY(moec_chat_call_block(run, node, &value));
        return write_value(run, node, &value);
    case MOEC_CHAT_SCOPE:
        return run_scope(run, node, flow);
    case MOEC_CHAT_MACRO_OF:
        return define_macro(run, node);
    default: /* break and continue: the parser puts nothing else here */
        *flow = node->kind == MOEC_CHAT_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        return MOEC_OK;
    }
}

static enum moec_status run_body(struct moec_chat_run *run, const struct moec_chat_node *body,
                                 enum flow *flow)
{
    *flow = FLOW_ON;
    if (run->depth >= MOEC_CHAT_MAX_RECURSION)
        return moec_chat_run_fail(run, body, MOEC_ERR_LIMIT, "statements nest deeper than %d",
                                  MOEC_CHAT_MAX_RECURSION);
    run->depth++;
    for (size_t i = 0; i < body->n_item && *flow == FLOW_ON; i++) {
        MOEC_TRY(moec_chat_charge(run, body->items[i], 1));
        MOEC_TRY(run_statement(run, body->items[i], flow));
    }
    run->depth--;
    return MOEC_OK;
}

enum moec_status moec_chat_template_render(const struct moec_chat_template *chat_template,
                                           const struct moec_chat_dict *variables, const struct tm *date,
                                           struct moec_chat_arena *arena, struct moec_chat_value *text,
                                           struct moec_error *err)
{
    struct moec_chat_buffer out = {.arena = arena};
    struct moec_chat_scope *scope = NULL;
    enum flow flow = FLOW_ON;
    struct moec_chat_run run = {
        .arena = arena, .variables = variables, .date = date, .out = &out, .err = err};
    if (arena->limit_bytes == 0 || arena->limit_bytes > arena->n_bytes + MOEC_CHAT_MAX_MEMORY_BYTES)
        arena->limit_bytes = arena->n_bytes + MOEC_CHAT_MAX_MEMORY_BYTES;
    const locale_t before = moec_locale_enter();
    enum moec_status status = moec_chat_scope_make(&run, NULL, &scope);
    run.scope = scope;
    if (status == MOEC_OK)
        status = run_body(&run, chat_template->root, &flow);
    moec_locale_leave(before);
    return status == MOEC_OK ? moec_chat_buffer_end(&out, text, err) : status;
}
