/* A conversation as the command line has it: messages in order, turned into a prompt by the bundle's chat
 * template. It needs libmoert alone. Thread rule: main thread. */
#ifndef MOEC_CLI_CONVERSATION_H
#define MOEC_CLI_CONVERSATION_H

#include "formats/base/error.h"
#include "runtime/moert.h"

struct cli_message {
    const char *role; /* "system", "user", "assistant" */
    char *text;       /* owned */
    size_t n_bytes;
};

struct cli_conversation {
    struct cli_message *messages; /* owned */
    size_t n, capacity;
    /* Adds what stands before these messages, and other variables; NULL = nothing does. */
    enum moec_status (*begin)(void *context, struct moert_values *values, struct moert_value *messages,
                              struct moert_chat *chat, struct moec_error *err);
    void *context;
};

MOEC_WARN_UNUSED enum moec_status cli_conversation_add(struct cli_conversation *conversation,
                                                       const char *role, const char *text, size_t n_bytes,
                                                       struct moec_error *err);
/* Removes messages first .. first + n - 1. */
void cli_conversation_remove(struct cli_conversation *conversation, size_t first, size_t n);
void cli_conversation_release(struct cli_conversation *conversation);

/* Renders everything, as it stands now in local time, up to where an answer begins. The caller releases `out`
 * (moert_chat_text_release). Errors: those of moert_chat_render. */
MOEC_WARN_UNUSED enum moec_status cli_conversation_render(const struct cli_conversation *conversation,
                                                          const struct moert_engine *engine,
                                                          struct moert_chat_text *out,
                                                          struct moec_error *err);
/* Its tokens, which the caller frees with moert_free. */
MOEC_WARN_UNUSED enum moec_status cli_conversation_tokens(const struct cli_conversation *conversation,
                                                          const struct moert_engine *engine,
                                                          uint32_t **tokens, size_t *n_tokens,
                                                          struct moec_error *err);

/* libmoert has a message type of its own; its statuses are the same numbers. */
MOEC_WARN_UNUSED enum moec_status cli_from_runtime(enum moert_status status, const struct moert_error *theirs,
                                                   struct moec_error *err);

#endif
