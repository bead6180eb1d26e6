#include "cli/settings/conversation.h"

#include "formats/base/memory.h"

#include <string.h>

enum moec_status cli_from_runtime(enum moert_status status, const struct moert_error *theirs,
                                  struct moec_error *err)
{
    if (status == MOERT_OK)
        return MOEC_OK;
    return moec_fail(err, (enum moec_status)status, "%s", theirs->message);
}

enum moec_status cli_conversation_add(struct cli_conversation *conversation, const char *role,
                                      const char *text, size_t n_bytes, struct moec_error *err)
{
    char *copy = NULL;
    MOEC_TRY(moec_grow((void **)&conversation->messages, &conversation->capacity, conversation->n + 1,
                       sizeof *conversation->messages, "messages", err));
    MOEC_TRY(moec_strndup(&copy, text, n_bytes, err));
    conversation->messages[conversation->n++] = (struct cli_message){role, copy, n_bytes};
    return MOEC_OK;
}

void cli_conversation_remove(struct cli_conversation *conversation, size_t first, size_t n)
{
    if (n == 0)
        return;
    for (size_t i = first; i < first + n; i++)
        free(conversation->messages[i].text);
    memmove(conversation->messages + first, conversation->messages + first + n,
            (conversation->n - first - n) * sizeof *conversation->messages);
    conversation->n -= n;
}

void cli_conversation_release(struct cli_conversation *conversation)
{
    cli_conversation_remove(conversation, 0, conversation->n);
    free(conversation->messages);
    *conversation = (struct cli_conversation){0};
}

static enum moec_status render(const struct cli_conversation *conversation, const struct moert_engine *engine,
                               struct moert_values *values, struct moert_chat_text *out,
                               struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct moert_value *messages = moert_value_list(values);
    const time_t now = time(NULL);
    struct tm date;
    (void)localtime_r(&now, &date);
    struct moert_chat chat = {.messages = messages, .add_generation_prompt = true, .date = &date};
    if (conversation->begin != NULL)
        MOEC_TRY(conversation->begin(conversation->context, values, messages, &chat, err));
    for (size_t i = 0; i < conversation->n; i++) {
        const struct cli_message *message = &conversation->messages[i];
        struct moert_value *value = moert_value_dict(values);
        moert_value_set(values, value, "role",
                        moert_value_string(values, message->role, strlen(message->role)));
        moert_value_set(values, value, "content",
                        moert_value_string(values, message->text, message->n_bytes));
        moert_value_append(values, messages, value);
    }
    return cli_from_runtime(moert_chat_render(engine, values, &chat, out, &theirs), &theirs, err);
}

enum moec_status cli_conversation_render(const struct cli_conversation *conversation,
                                         const struct moert_engine *engine, struct moert_chat_text *out,
                                         struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct moert_values *values = NULL;
    MOEC_TRY(cli_from_runtime(moert_values_create(&values, &theirs), &theirs, err));
    const enum moec_status status = render(conversation, engine, values, out, err);
    moert_values_free(values);
    return status;
}

enum moec_status cli_conversation_tokens(const struct cli_conversation *conversation,
                                         const struct moert_engine *engine, uint32_t **tokens,
                                         size_t *n_tokens, struct moec_error *err)
{
    struct moert_error theirs = {0};
    struct moert_chat_text text = {0};
    MOEC_TRY(cli_conversation_render(conversation, engine, &text, err));
    const enum moec_status status =
        cli_from_runtime(moert_chat_tokenize(engine, &text, tokens, n_tokens, &theirs), &theirs, err);
    moert_chat_text_release(&text);
    return status;
}
