/* Texts are added in the order in which transformers prefers them, the preferred last: an added text
 * replaces one of the same name. So chat_template.jinja wins over tokenizer_config.json. Special tokens are
 * added only where there is a template. */
#include "formats/checkpoint/checkpoint_chat.h"

#include "formats/base/file.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/gguf/gguf.h"
#include "formats/tokenizer/declared_tokens.h"

#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX_BYTES ((uint64_t)16 << 20)

static const char *const special_names[MOEC_SPECIAL_NAMES] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

static enum moec_status add_file(const char *folder, const char *file, const char *name,
                                 struct moec_chat_source *source, struct moec_error *err)
{
    char *path = NULL, *bytes = NULL;
    size_t n_bytes = 0;
    bool has = false;
    MOEC_TRY(moec_folder_has(folder, file, &has, err));
    if (!has)
        return MOEC_OK;
    MOEC_TRY(moec_path_join(&path, folder, file, err));
    enum moec_status status = moec_file_load(path, MOEC_CHAT_SOURCE_MAX_BYTES, &bytes, &n_bytes, err);
    if (status == MOEC_OK)
        status = moec_chat_source_add(source, name, bytes, n_bytes, err);
    free(bytes);
    free(path);
    return status;
}

/* chat_template of tokenizer_config.json: a text, or a list of {"name": ..., "template": ...}. */
static enum moec_status add_config(const struct moec_json *config, const char *where,
                                   struct moec_chat_source *source, struct moec_error *err)
{
    const struct moec_json *node = moec_json_present(config, "chat_template");
    const char *text = "", *name = "";
    size_t n = 0;
    if (node == NULL)
        return MOEC_OK;
    if (moec_json_type(node) == MOEC_JSON_STRING) {
        MOEC_TRY(moec_json_as_string(node, "'chat_template'", &text, &n, err));
        return moec_chat_source_add(source, MOEC_CHAT_TEMPLATE, text, n, err);
    }
    if (moec_json_type(node) != MOEC_JSON_ARRAY)
        return moec_fail(err, MOEC_ERR_FORMAT, "'chat_template' in %s is %s, expected a string or an array",
                         where, moec_json_type_name(node));
    for (size_t i = 0; i < moec_json_length(node); i++) {
        const struct moec_json *item = moec_json_at(node, i);
        MOEC_TRY(moec_json_get_string(item, where, "name", &name, NULL, err));
        MOEC_TRY(moec_json_get_string(item, where, "template", &text, &n, err));
        if (strcmp(name, "default") == 0)
            MOEC_TRY(moec_chat_source_add(source, MOEC_CHAT_TEMPLATE, text, n, err));
        else if (strcmp(name, "tool_use") == 0)
            MOEC_TRY(moec_chat_source_add(source, MOEC_CHAT_TEMPLATE_TOOLS, text, n, err));
    }
    return MOEC_OK;
}

static enum moec_status add_tokens(const char *folder, struct moec_chat_source *source,
                                   struct moec_error *err)
{
    struct moec_declared_tokens declared;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_declared_tokens_read(folder, NULL, &declared, err));
    for (size_t i = 0; i < MOEC_SPECIAL_NAMES && status == MOEC_OK; i++) {
        const struct moec_declared_token *token = moec_declared_tokens_named(&declared, i);
        if (token != NULL)
            status = moec_chat_source_add(source, special_names[i], token->bytes, token->n_bytes, err);
    }
    moec_declared_tokens_release(&declared);
    return status;
}

enum moec_status moec_chat_source_read_folder(const char *folder, struct moec_chat_source *source,
                                              struct moec_error *err)
{
    struct moec_json *config = NULL;
    char *where = NULL;
    bool has = false;
    enum moec_status status = moec_folder_has(folder, "tokenizer_config.json", &has, err);
    if (status == MOEC_OK && has)
        status =
            moec_folder_load_json(folder, "tokenizer_config.json", CONFIG_MAX_BYTES, &config, &where, err);
    if (status == MOEC_OK && has)
        status = add_config(config, where, source, err);
    moec_json_free(config);
    free(where);
    if (status == MOEC_OK)
        status = add_file(folder, "chat_template.jinja", MOEC_CHAT_TEMPLATE, source, err);
    if (status == MOEC_OK)
        status = add_file(folder, "additional_chat_templates/tool_use.jinja", MOEC_CHAT_TEMPLATE_TOOLS,
                          source, err);
    if (status == MOEC_OK && source->n > 0)
        status = add_tokens(folder, source, err);
    return status;
}

enum moec_status moec_chat_source_read_gguf(const struct moec_gguf *gguf,
                                            const struct moec_tokenizer_model *tokenizer,
                                            struct moec_chat_source *source, struct moec_error *err)
{
    static const char *const templates[][2] = {
        {"tokenizer.chat_template", MOEC_CHAT_TEMPLATE},
        {"tokenizer.chat_template.tool_use", MOEC_CHAT_TEMPLATE_TOOLS}};
    static const char *const tokens[][2] = {{"tokenizer.ggml.bos_token_id", "bos_token"},
                                            {"tokenizer.ggml.eos_token_id", "eos_token"},
                                            {"tokenizer.ggml.unknown_token_id", "unk_token"},
                                            {"tokenizer.ggml.padding_token_id", "pad_token"}};
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        const struct moec_gguf_value *value = moec_gguf_find(gguf, templates[i][0]);
        struct moec_gguf_text text;
        if (value == NULL)
            continue;
        MOEC_TRY(moec_gguf_as_text(gguf, value, &text, err));
        MOEC_TRY(moec_chat_source_add(source, templates[i][1], text.bytes, (size_t)text.n_bytes, err));
    }
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens && source->n > 0 && tokenizer != NULL; i++) {
        const struct moec_gguf_value *value = moec_gguf_find(gguf, tokens[i][0]);
        uint64_t id = 0;
        uint32_t n = 0;
        if (value == NULL)
            continue;
        MOEC_TRY(moec_gguf_as_u64(gguf, value, &id, err));
        if (id >= tokenizer->n_tokens)
            continue;
        const char *text = moec_tokenizer_model_text(tokenizer, (uint32_t)id, &n);
        MOEC_TRY(moec_chat_source_add(source, tokens[i][1], text, n, err));
    }
    return MOEC_OK;
}
