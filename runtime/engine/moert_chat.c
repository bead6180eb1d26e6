/* Conversations: the bundle's templates, and what they make of values. */
#include "formats/base/memory.h"
#include "formats/bundle/bundle_chat.h"
#include "runtime/chat/chat_template.h"
#include "runtime/engine/moert_internal.h"
#include "runtime/engine/moert_values.h"
#include "runtime/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { PLAIN, TOOLS, N_TEMPLATE };
static const char *const template_names[N_TEMPLATE] = {MOEC_CHAT_TEMPLATE, MOEC_CHAT_TEMPLATE_TOOLS};

struct moec_engine_chat {
    struct moec_chat_source source;
    struct moec_chat_template *templates[N_TEMPLATE]; /* NULL where there is none, or it was refused */
    struct moec_error refusals[N_TEMPLATE];
};

enum moec_status moec_engine_chat_open(const struct moec_bundle *bundle, struct moec_engine_chat **out,
                                       struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_engine_chat), "chat templates", err));
    struct moec_engine_chat *chat = memory;
    enum moec_status status = moec_bundle_load_chat(bundle, &chat->source, err);
    for (int i = 0; i < N_TEMPLATE && status == MOEC_OK; i++) {
        const struct moec_chat_text *text = moec_chat_source_find(&chat->source, template_names[i]);
        const enum moec_status parsed =
            text == NULL ? MOEC_OK
                         : moec_chat_template_parse(text->bytes, text->n_bytes, &chat->templates[i],
                                                    &chat->refusals[i]);
        if (parsed == MOEC_ERR_MEMORY)
            status = moec_fail(err, parsed, "%s", chat->refusals[i].message);
    }
    if (status != MOEC_OK) {
        moec_engine_chat_free(chat);
        return status;
    }
    *out = chat;
    return MOEC_OK;
}

void moec_engine_chat_free(struct moec_engine_chat *chat)
{
    if (chat == NULL)
        return;
    for (int i = 0; i < N_TEMPLATE; i++)
        moec_chat_template_free(chat->templates[i]);
    moec_chat_source_release(&chat->source);
    free(chat);
}

bool moert_engine_has_chat(const struct moert_engine *engine)
{
    return moec_chat_source_find(&moert_engine_chat(engine)->source, MOEC_CHAT_TEMPLATE) != NULL;
}

/* The template for a conversation, with tools or without. */
static enum moec_status choose(const struct moert_engine *engine, bool has_tools,
                               const struct moec_chat_template **out, struct moec_error *err)
{
    const struct moec_engine_chat *chat = moert_engine_chat(engine);
    const bool has_own = moec_chat_source_find(&chat->source, MOEC_CHAT_TEMPLATE_TOOLS) != NULL;
    const int which = has_tools && has_own ? TOOLS : PLAIN;
    if (!moert_engine_has_chat(engine) && which == PLAIN)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the bundle '%s' has no chat template: its checkpoint had neither "
                         "chat_template.jinja nor chat_template in tokenizer_config.json when it was "
                         "compiled",
                         moert_engine_path(engine));
    *out = chat->templates[which];
    if (*out == NULL)
        return moec_fail(err, (enum moec_status)chat->refusals[which].status, "%s",
                         chat->refusals[which].message);
    return MOEC_OK;
}

static enum moec_status set(struct moec_chat_arena *arena, struct moec_chat_dict *dict, const char *name,
                            struct moec_chat_value value, struct moec_error *err)
{
    struct moec_chat_value key;
    MOEC_TRY(moec_chat_string_make(arena, name, strlen(name), 0, &key, err));
    return moec_chat_dict_set(arena, dict, key, value, err);
}

/* What the template sees: what the caller gives, and the special tokens, which are the template's to write.
 */
static enum moec_status make_variables(const struct moec_engine_chat *source, const struct moert_chat *chat,
                                       struct moec_chat_arena *arena, struct moec_chat_value *out,
                                       struct moec_error *err)
{
    const struct moec_chat_value *more = moert_value_inner(chat->variables);
    MOEC_TRY(moec_chat_dict_make(arena, out, err));
    struct moec_chat_dict *dict = out->as.dict;
    for (uint32_t i = 0; i < source->source.n; i++) {
        const struct moec_chat_text *text = &source->source.texts[i];
        struct moec_chat_value value;
        if (strncmp(text->name, MOEC_CHAT_TEMPLATE, strlen(MOEC_CHAT_TEMPLATE)) == 0)
            continue;
        MOEC_TRY(moec_chat_string_make(arena, text->bytes, text->n_bytes, 0, &value, err));
        MOEC_TRY(set(arena, dict, text->name, value, err));
    }
    for (size_t i = 0; more != NULL && more->kind == MOEC_CHAT_DICT && i < more->as.dict->n; i++)
        MOEC_TRY(
            moec_chat_dict_set(arena, dict, more->as.dict->pairs[i].key, more->as.dict->pairs[i].value, err));
    MOEC_TRY(set(arena, dict, "messages", *moert_value_inner(chat->messages), err));
    MOEC_TRY(set(arena, dict, "tools",
                 chat->tools != NULL ? *moert_value_inner(chat->tools) : moec_chat_none(), err));
    MOEC_TRY(set(arena, dict, "documents", moec_chat_none(), err));
    if (more != NULL && more->kind == MOEC_CHAT_DICT &&
        moec_chat_dict_get(more->as.dict, "documents") != NULL)
        MOEC_TRY(set(arena, dict, "documents", *moec_chat_dict_get(more->as.dict, "documents"), err));
    MOEC_TRY(set(arena, dict, "add_generation_prompt", moec_chat_bool(chat->add_generation_prompt), err));
    return moec_chat_measure(out, err);
}

static enum moec_status copy_text(const struct moec_chat_string *string, struct moert_chat_text *out,
                                  struct moec_error *err)
{
    void *text = NULL, *marks = NULL;
    MOEC_TRY(moec_alloc(&text, string->n_bytes + 1, 1, "a conversation", err));
    const enum moec_status status = moec_alloc(&marks, string->n_bytes + 1, 1, "a conversation", err);
    if (status != MOEC_OK) {
        free(text);
        return status;
    }
    memcpy(text, string->bytes, string->n_bytes);
    if (string->marks != NULL)
        memcpy(marks, string->marks, string->n_bytes);
    else
        memset(marks, string->mark, string->n_bytes);
    *out = (struct moert_chat_text){.text = text, .marks = marks, .n_bytes = string->n_bytes};
    return MOEC_OK;
}

static enum moec_status render(const struct moert_engine *engine, const struct moert_values *values,
                               const struct moert_chat *chat, struct moec_chat_arena *arena,
                               struct moert_chat_text *out, struct moec_error *err)
{
    const struct moec_chat_template *chat_template = NULL;
    struct moec_chat_value variables, text;
    const bool has_tools = chat->tools != NULL && moec_chat_truth(moert_value_inner(chat->tools));
    if (values->failure.status != MOEC_OK)
        return moec_fail(err, values->failure.status, "%s", values->failure.message);
    if (chat->messages == NULL || moert_value_inner(chat->messages)->kind != MOEC_CHAT_LIST)
        return moec_fail(err, MOEC_ERR_USAGE, "the messages of a conversation must be a list");
    MOEC_TRY(choose(engine, has_tools, &chat_template, err));
    MOEC_TRY(make_variables(moert_engine_chat(engine), chat, arena, &variables, err));
    MOEC_TRY(moec_chat_template_render(chat_template, variables.as.dict, chat->date, arena, &text, err));
    return copy_text(text.as.string, out, err);
}

enum moert_status moert_chat_render(const struct moert_engine *engine, struct moert_values *values,
                                    const struct moert_chat *chat, struct moert_chat_text *out,
                                    struct moert_error *err)
{
    struct moec_error ours = {0};
    struct moec_chat_arena arena = {.limit_bytes = chat->memory_bytes};
    const enum moec_status status = render(engine, values, chat, &arena, out, &ours);
    moec_chat_arena_release(&arena);
    return moert_to_public(status, &ours, err);
}

void moert_chat_text_release(struct moert_chat_text *text)
{
    free(text->text);
    free(text->marks);
    *text = (struct moert_chat_text){0};
}

enum moert_status moert_chat_tokenize(const struct moert_engine *engine, const struct moert_chat_text *text,
                                      uint32_t **tokens, size_t *n_tokens, struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_status status = MOEC_OK;
    if (moert_engine_tokenizer(engine) == NULL)
        status = moec_fail(&ours, MOEC_ERR_UNSUPPORTED,
                           "the bundle '%s' has no tokenizer, which a chat needs", moert_engine_path(engine));
    else
        status = moec_tokenizer_encode_marked(moert_engine_tokenizer(engine),
                                              (struct moec_text){text->text, text->n_bytes}, text->marks,
                                              tokens, n_tokens, &ours);
    return moert_to_public(status, &ours, err);
}
