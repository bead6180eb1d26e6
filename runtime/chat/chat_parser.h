/* Tokens to a tree (chat_node.h), by the grammar of Jinja 3.1's parser; internal to the room. */
#ifndef MOEC_RUNTIME_CHAT_PARSER_H
#define MOEC_RUNTIME_CHAT_PARSER_H

#include "runtime/chat/chat_lexer.h"
#include "runtime/chat/chat_node.h"

#define MOEC_CHAT_MAX_NESTING 100 /* of statements and expressions in each other */

struct moec_chat_parser {
    const struct moec_chat_token *at;
    struct moec_chat_arena *arena;
    uint32_t depth;
    uint32_t n_loop;   /* around the statement being parsed */
    uint32_t n_caller; /* names `caller` that were read */
    struct moec_error *err;
};

/* One expression; `may_if`: with "x if c else y"; a tuple without parentheses where commas follow. */
MOEC_WARN_UNUSED enum moec_status moec_chat_parse_expression(struct moec_chat_parser *p, bool may_if,
                                                             struct moec_chat_node **out);
MOEC_WARN_UNUSED enum moec_status moec_chat_parse_tuple(struct moec_chat_parser *p, bool may_if,
                                                        struct moec_chat_node **out);
/* Filters behind `input`: |name(...)|name. `starts`: the first "|" has been read. */
MOEC_WARN_UNUSED enum moec_status moec_chat_parse_filters(struct moec_chat_parser *p, bool starts,
                                                          struct moec_chat_node *input,
                                                          struct moec_chat_node **out);
/* Statements up to a block that begins with a word of the list (" endif else "), which stands next, or, with
 * NULL, to the end of the template. */
MOEC_WARN_UNUSED enum moec_status moec_chat_parse_statements(struct moec_chat_parser *p, const char *ends,
                                                             struct moec_chat_node *body);

/* ---- helpers of both ---- */

MOEC_WARN_UNUSED enum moec_status
moec_chat_node_make(struct moec_chat_parser *p, enum moec_chat_node_kind kind, struct moec_chat_node **out);
MOEC_WARN_UNUSED enum moec_status moec_chat_node_add(struct moec_chat_parser *p, struct moec_chat_node *node,
                                                     struct moec_chat_node *item);
MOEC_WARN_UNUSED enum moec_status moec_chat_node_text(struct moec_chat_parser *p,
                                                      const struct moec_chat_token *token,
                                                      struct moec_chat_node *node);
enum moec_status moec_chat_parser_fail(const struct moec_chat_parser *p, enum moec_status status,
                                       const char *format, ...) MOEC_PRINTF(3, 4);
/* Counts nesting; every call that succeeds is followed by p->depth--. */
MOEC_WARN_UNUSED enum moec_status moec_chat_parser_enter(struct moec_chat_parser *p);

bool moec_chat_token_is(const struct moec_chat_token *token, enum moec_chat_token_kind kind,
                        const char *text);
/* Steps over the token if it is this one. */
bool moec_chat_skip(struct moec_chat_parser *p, enum moec_chat_token_kind kind, const char *text);
MOEC_WARN_UNUSED enum moec_status moec_chat_expect(struct moec_chat_parser *p, enum moec_chat_token_kind kind,
                                                   const char *text);

#endif
