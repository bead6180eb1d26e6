/* A rendering at work: what its parts share; internal to the room. */
#ifndef MOEC_RUNTIME_CHAT_RENDER_H
#define MOEC_RUNTIME_CHAT_RENDER_H

#include "runtime/chat/chat_lexer.h"
#include "runtime/chat/chat_node.h"
#include "runtime/chat/chat_template.h"

#define MOEC_CHAT_MAX_RECURSION 1000 /* expressions and statements in each other, macros included */
#define MOEC_CHAT_MAX_ARGUMENTS 8    /* of filters, tests, methods and functions */

struct moec_chat_scope {
    const struct moec_chat_scope *parent; /* NULL: the variables of the caller come next */
    struct moec_chat_dict *names;
};

struct moec_chat_macro {
    const struct moec_chat_node *node;
    const struct moec_chat_scope *scope; /* that it was defined in */
};

/* A loop that its body may call: {% for x in y recursive %}. */
struct moec_chat_recursion {
    const struct moec_chat_node *node;
    const struct moec_chat_scope *scope; /* that the loop stands in */
    const struct moec_chat_dict *loop;   /* its variable `loop` */
    uint32_t depth;
    const struct moec_chat_recursion *outer;
};

struct moec_chat_run {
    struct moec_chat_arena *arena;
    const struct moec_chat_dict *variables;
    const struct tm *date;
    struct moec_chat_buffer *out;
    const struct moec_chat_scope *scope;
    struct moec_chat_value captured;             /* what a block wrote, for its filters */
    const struct moec_chat_recursion *recursion; /* loops at work that may be called, the innermost first */
    uint64_t n_step;
    uint32_t depth, n_call;
    struct moec_error *err;
};

/* Arguments by their place in the signature. */
struct moec_chat_arguments {
    struct moec_chat_value values[MOEC_CHAT_MAX_ARGUMENTS];
    bool given[MOEC_CHAT_MAX_ARGUMENTS];
    const struct moec_chat_string *names[MOEC_CHAT_MAX_ARGUMENTS]; /* where any names may be given; or NULL */
    size_t n;                                                      /* without names */
};

/* Fails with the place of a node. */
enum moec_status moec_chat_run_fail(const struct moec_chat_run *run, const struct moec_chat_node *node,
                                    enum moec_status status, const char *format, ...) MOEC_PRINTF(4, 5);
/* Counts steps. */
MOEC_WARN_UNUSED enum moec_status moec_chat_charge(struct moec_chat_run *run,
                                                   const struct moec_chat_node *node, uint64_t n);
/* Fails for a value that is undefined, naming it. */
MOEC_WARN_UNUSED enum moec_status moec_chat_need(const struct moec_chat_run *run,
                                                 const struct moec_chat_node *node,
                                                 const struct moec_chat_value *value);

/* chat_render.c */
MOEC_WARN_UNUSED enum moec_status moec_chat_run_captured(struct moec_chat_run *run,
                                                         const struct moec_chat_node *body,
                                                         struct moec_chat_value *text);
/* What a loop writes of other items when its body calls it. Errors: MOEC_ERR_FORMAT where `loop` is of no
 * recursive loop at work. */
MOEC_WARN_UNUSED enum moec_status moec_chat_loop_again(struct moec_chat_run *run,
                                                       const struct moec_chat_node *call,
                                                       const struct moec_chat_dict *loop,
                                                       const struct moec_chat_value *iterated,
                                                       struct moec_chat_value *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_scope_make(struct moec_chat_run *run,
                                                       const struct moec_chat_scope *parent,
                                                       struct moec_chat_scope **out);

/* chat_expression.c */
MOEC_WARN_UNUSED enum moec_status moec_chat_eval(struct moec_chat_run *run, const struct moec_chat_node *node,
                                                 struct moec_chat_value *out);
/* The items that a loop over a value has, as a list. */
MOEC_WARN_UNUSED enum moec_status moec_chat_items(struct moec_chat_run *run,
                                                  const struct moec_chat_node *node,
                                                  const struct moec_chat_value *value,
                                                  struct moec_chat_list **out);
/* value.name and value[key]; UNDEFINED where it is missing. */
MOEC_WARN_UNUSED enum moec_status moec_chat_attribute(struct moec_chat_run *run,
                                                      const struct moec_chat_node *node,
                                                      const struct moec_chat_value *value,
                                                      const struct moec_chat_string *name,
                                                      struct moec_chat_value *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_subscript(struct moec_chat_run *run,
                                                      const struct moec_chat_node *node,
                                                      const struct moec_chat_value *value,
                                                      const struct moec_chat_value *key,
                                                      struct moec_chat_value *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_contains(struct moec_chat_run *run,
                                                     const struct moec_chat_node *node,
                                                     const struct moec_chat_value *item,
                                                     const struct moec_chat_value *container, bool *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_bind(struct moec_chat_run *run, const struct moec_chat_node *call,
                                                 const struct moec_chat_signature *signature,
                                                 struct moec_chat_arguments *arguments);

/* chat_calls.c, chat_methods.c */
MOEC_WARN_UNUSED enum moec_status moec_chat_call(struct moec_chat_run *run, const struct moec_chat_node *node,
                                                 struct moec_chat_value *out);
/* {% call %}: the call of a macro, which may call the block as `caller`. */
MOEC_WARN_UNUSED enum moec_status moec_chat_call_block(struct moec_chat_run *run,
                                                       const struct moec_chat_node *block,
                                                       struct moec_chat_value *out);
bool moec_chat_has_method(const struct moec_chat_value *value, const struct moec_chat_string *name);
MOEC_WARN_UNUSED enum moec_status
moec_chat_call_method(struct moec_chat_run *run, const struct moec_chat_node *node,
                      const struct moec_chat_value *object, const struct moec_chat_string *name,
                      const struct moec_chat_arguments *arguments, struct moec_chat_value *out);
/* What filters share with methods. */
enum moec_chat_case { MOEC_CHAT_UPPER, MOEC_CHAT_LOWER, MOEC_CHAT_TITLE, MOEC_CHAT_CAPITALIZE };
MOEC_WARN_UNUSED enum moec_status moec_chat_recase(struct moec_chat_run *run,
                                                   const struct moec_chat_string *string,
                                                   enum moec_chat_case letter_case,
                                                   struct moec_chat_value *out);
/* Strips characters of `chars` (NULL: whitespace) off the start, the end or both. */
MOEC_WARN_UNUSED enum moec_status moec_chat_strip(struct moec_chat_run *run,
                                                  const struct moec_chat_string *string,
                                                  const struct moec_chat_string *chars, bool start, bool end,
                                                  struct moec_chat_value *out);
MOEC_WARN_UNUSED enum moec_status
moec_chat_replace(struct moec_chat_run *run, const struct moec_chat_node *node,
                  const struct moec_chat_string *string, const struct moec_chat_string *old,
                  const struct moec_chat_string *with, int64_t most, struct moec_chat_value *out);
size_t moec_chat_code_points(const struct moec_chat_string *string);

/* chat_filters.c, chat_tests.c */
MOEC_WARN_UNUSED enum moec_status
moec_chat_filter(struct moec_chat_run *run, const struct moec_chat_node *node,
                 const struct moec_chat_string *name, const struct moec_chat_value *input,
                 const struct moec_chat_arguments *arguments, struct moec_chat_value *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_test(struct moec_chat_run *run, const struct moec_chat_node *node,
                                                 const struct moec_chat_string *name,
                                                 const struct moec_chat_value *value,
                                                 const struct moec_chat_arguments *arguments, bool *out);

/* chat_format.c */
struct moec_chat_format_values {
    const struct moec_chat_value *items; /* (n) for places without a name */
    size_t n;
    const struct moec_chat_dict *names; /* NULL without */
    bool may_be_left;                   /* there may be fewer places than values */
};
MOEC_WARN_UNUSED enum moec_status moec_chat_percent(struct moec_chat_run *run,
                                                    const struct moec_chat_node *node,
                                                    const struct moec_chat_string *text,
                                                    const struct moec_chat_format_values *values,
                                                    struct moec_chat_value *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_format(struct moec_chat_run *run,
                                                   const struct moec_chat_node *node,
                                                   const struct moec_chat_string *text,
                                                   const struct moec_chat_arguments *arguments,
                                                   struct moec_chat_value *out);

/* chat_print.c: Python's str and repr, and json.dumps with the options of transformers' tojson. */
MOEC_WARN_UNUSED enum moec_status moec_chat_print(struct moec_chat_run *run,
                                                  const struct moec_chat_node *node,
                                                  const struct moec_chat_value *value,
                                                  struct moec_chat_buffer *out);
MOEC_WARN_UNUSED enum moec_status moec_chat_print_repr(struct moec_chat_run *run,
                                                       const struct moec_chat_node *node,
                                                       const struct moec_chat_value *value,
                                                       struct moec_chat_buffer *out);
struct moec_chat_json {
    bool ensure_ascii, sort_keys;
    int indent; /* -1: one line */
    const struct moec_chat_string *item_separator, *key_separator;
};
MOEC_WARN_UNUSED enum moec_status moec_chat_print_json(struct moec_chat_run *run,
                                                       const struct moec_chat_node *node,
                                                       const struct moec_chat_value *value,
                                                       const struct moec_chat_json *options,
                                                       struct moec_chat_buffer *out);
/* str(value): the string itself where it is one. */
MOEC_WARN_UNUSED enum moec_status moec_chat_to_string(struct moec_chat_run *run,
                                                      const struct moec_chat_node *node,
                                                      const struct moec_chat_value *value,
                                                      const struct moec_chat_string **out);

#endif
