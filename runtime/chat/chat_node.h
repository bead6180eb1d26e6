/* A parsed chat template: a tree of statements and expressions. Which members a node has is said beside its
 * kind; `text` is a name or a string. Borrowed from the arena of the template. */
#ifndef MOEC_RUNTIME_CHAT_NODE_H
#define MOEC_RUNTIME_CHAT_NODE_H

#include "runtime/chat/chat_value.h"

enum moec_chat_node_kind {
    /* expressions */
    MOEC_CHAT_CONST,       /* constant */
    MOEC_CHAT_NAME,        /* text */
    MOEC_CHAT_TUPLE_OF,    /* items; as a target: of assignment */
    MOEC_CHAT_LIST_OF,     /* items */
    MOEC_CHAT_DICT_OF,     /* items: key, value, key, value */
    MOEC_CHAT_ATTRIBUTE,   /* a.text */
    MOEC_CHAT_SUBSCRIPT,   /* a[b] */
    MOEC_CHAT_SLICE,       /* a[b:c:d], each of b, c, d may be NULL */
    MOEC_CHAT_CALL,        /* a(items) */
    MOEC_CHAT_KEYWORD,     /* text=a, among items of calls, filters and tests, after the others */
    MOEC_CHAT_FILTER,      /* a|text(items); a NULL: of what a block wrote */
    MOEC_CHAT_TEST,        /* a is text(items) */
    MOEC_CHAT_NOT,         /* not a */
    MOEC_CHAT_NEGATIVE,    /* -a */
    MOEC_CHAT_POSITIVE,    /* +a */
    MOEC_CHAT_BINARY,      /* a op b: one of + - * / % and i for //, p for ** */
    MOEC_CHAT_CONCAT,      /* items joined: a ~ b */
    MOEC_CHAT_AND,         /* a and b */
    MOEC_CHAT_OR,          /* a or b */
    MOEC_CHAT_COMPARE,     /* a, then items of kind COMPARE_TO */
    MOEC_CHAT_COMPARE_TO,  /* op a: = ! < > l for <=, g for >=, i for in, n for not in */
    MOEC_CHAT_CONDITIONAL, /* b if a else c; c may be NULL */
    /* statements */
    MOEC_CHAT_TEXT,         /* text */
    MOEC_CHAT_OUTPUT,       /* a */
    MOEC_CHAT_BLOCK,        /* items */
    MOEC_CHAT_SCOPE,        /* items, with names of their own; pairs (targets, values) first set: b's items */
    MOEC_CHAT_IF,           /* a, items; c: what else, may be NULL */
    MOEC_CHAT_FOR,          /* for a in b if c: items; d: block for none, may be NULL; op r: recursive */
    MOEC_CHAT_SET,          /* a = b */
    MOEC_CHAT_SET_BLOCK,    /* a = what items write, through the filters b (may be NULL) */
    MOEC_CHAT_FILTER_BLOCK, /* what items write through the filters b */
    MOEC_CHAT_MACRO_OF,     /* text, parameters: b's items, which are NAME or KEYWORD; items; op c: these
                             * name `caller` */
    MOEC_CHAT_CALL_OF,      /* a: a CALL; the block that is its `caller`: as a macro */
    MOEC_CHAT_BREAK,
    MOEC_CHAT_CONTINUE
};

struct moec_chat_node {
    uint8_t kind; /* enum moec_chat_node_kind */
    char op;
    uint32_t line, column;
    const struct moec_chat_string *text;
    struct moec_chat_value constant;
    struct moec_chat_node *a, *b, *c, *d;
    struct moec_chat_node **items;
    size_t n_item;
};

struct moec_chat_template {
    struct moec_chat_arena arena;
    struct moec_chat_node *root; /* a BLOCK */
};

/* How a filter, test, method or function may be called. */
struct moec_chat_signature {
    const char *name;
    uint8_t n_least, n_most; /* arguments, keywords included */
    /* " name name " of the arguments in their order; "": none may be named; NULL: any names */
    const char *keywords;
};

/* NULL for what there is not. */
const struct moec_chat_signature *moec_chat_filter_find(const struct moec_chat_string *name);
const struct moec_chat_signature *moec_chat_test_find(const struct moec_chat_string *name);
const struct moec_chat_signature *moec_chat_method_find(const struct moec_chat_string *name);
const struct moec_chat_signature *moec_chat_function_find(const struct moec_chat_string *name);

#endif
