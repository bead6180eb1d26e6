/* A chat template cut into text and tokens, with Jinja's rules for whitespace as transformers sets them:
 * trim_blocks and lstrip_blocks are on, and one newline at the end of the template is dropped. Thread rule:
 * one thread. */
#ifndef MOEC_RUNTIME_CHAT_LEXER_H
#define MOEC_RUNTIME_CHAT_LEXER_H

#include "runtime/chat/chat_value.h"

enum moec_chat_token_kind {
    MOEC_CHAT_TOKEN_TEXT,           /* outside of tags */
    MOEC_CHAT_TOKEN_BLOCK_BEGIN,    /* {% */
    MOEC_CHAT_TOKEN_BLOCK_END,      /* %} */
    MOEC_CHAT_TOKEN_VARIABLE_BEGIN, /* {{ */
    MOEC_CHAT_TOKEN_VARIABLE_END,   /* }} */
    MOEC_CHAT_TOKEN_NAME,
    MOEC_CHAT_TOKEN_STRING, /* its value, escapes resolved */
    MOEC_CHAT_TOKEN_INT,
    MOEC_CHAT_TOKEN_FLOAT,
    MOEC_CHAT_TOKEN_OPERATOR, /* its characters */
    MOEC_CHAT_TOKEN_END
};

struct moec_chat_token {
    enum moec_chat_token_kind kind;
    uint32_t line, column; /* from 1; columns count bytes */
    const char *bytes;     /* of text, name, string, operator; borrowed from the arena */
    size_t n_bytes;
    int64_t integer;
    double number;
};

struct moec_chat_tokens {
    struct moec_chat_token *items; /* the last one is END; owned */
    size_t n, capacity;
};

/* Errors: MOEC_ERR_FORMAT for what is no Jinja, MOEC_ERR_UNSUPPORTED for what this interpreter lacks, both
 * with line and column. */
MOEC_WARN_UNUSED enum moec_status moec_chat_lex(const char *text, size_t n_bytes,
                                                struct moec_chat_arena *arena,
                                                struct moec_chat_tokens *tokens, struct moec_error *err);
void moec_chat_tokens_release(struct moec_chat_tokens *tokens);

/* Fails with "chat template, line 3, column 7: ...". */
enum moec_status moec_chat_fail(struct moec_error *err, enum moec_status status, uint32_t line,
                                uint32_t column, const char *format, ...) MOEC_PRINTF(5, 6);

/* Whether Python's str.isspace holds for a code point. */
bool moec_chat_is_space(uint32_t code_point);
/* Bytes of whitespace at the start of a text, and at its end. */
size_t moec_chat_space_before(const char *text, size_t n_bytes);
size_t moec_chat_space_after(const char *text, size_t n_bytes);

#endif
