/* The first kind of files that is there wins: tokenizer.json, tokenizer.model, spiece.model, vocab.json with
 * merges.txt, vocab.txt with emoji.json. `files` lists what decided about ids, for the digest of a
 * checkpoint, so a file that changes ids must be in it. The ids of BOS and EOS of vocab.json are only known
 * after a first reading. Such a tokenizer may be made twice. */
#include "formats/tokenizer/folder_tokenizer.h"

#include "formats/base/file.h"
#include "formats/json/json.h"
#include "formats/tokenizer/japanese_vocab.h"
#include "formats/tokenizer/sentencepiece.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "formats/tokenizer/vocab_merges.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX_BYTES ((uint64_t)16 << 20)

static const char *const no_files[] = {NULL};
static const char *const json_files[] = {"tokenizer.json", NULL};
static const char *const declaring_files[] = {"tokenizer.json", "tokenizer_config.json",
                                              "special_tokens_map.json", "added_tokens.json", NULL};
static const char *const model_files[] = {"tokenizer.model", "tokenizer_config.json", NULL};
static const char *const vocab_files[] = {
    "vocab.json",        "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", NULL};
static const char *const japanese_files[] = {
    "vocab.txt", "emoji.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", NULL};
static const char *const spiece_files[] = {"spiece.model", "tokenizer_config.json", NULL};

/* A file of the folder. */
struct text_file {
    char *path;  /* owned, also where there is no such file */
    char *bytes; /* (n_bytes), owned; NULL where there is none */
    size_t n_bytes;
};

static void free_file(struct text_file *file)
{
    free(file->bytes);
    free(file->path);
}

static enum moec_status load(const char *folder, const char *name, uint64_t limit_bytes,
                             struct text_file *out, struct moec_error *err)
{
    bool found = false;
    MOEC_TRY(moec_path_join(&out->path, folder, name, err));
    MOEC_TRY(moec_path_find(out->path, &found, err));
    return found ? moec_file_load(out->path, limit_bytes, &out->bytes, &out->n_bytes, err) : MOEC_OK;
}

static enum moec_status read_affixes(const char *folder, struct moec_sentencepiece_affixes *affixes,
                                     struct moec_error *err)
{
    struct text_file file = {0};
    struct moec_json *root = NULL;
    const char *class = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(load(folder, "tokenizer_config.json", CONFIG_MAX_BYTES, &file, err));
    if (file.bytes == NULL)
        goto out;
    MOEC_TRY_OUT(moec_json_parse(file.bytes, file.n_bytes, CONFIG_MAX_BYTES, file.path, &root, err));
    MOEC_TRY_OUT(moec_json_get_string_or(root, file.path, "tokenizer_class", "", &class, err));
    const bool is_llama = strncmp(class, "LlamaTokenizer", 14) == 0,
               is_t5 = strncmp(class, "T5Tokenizer", 11) == 0;
    MOEC_TRY_OUT(moec_json_get_bool_or(root, file.path, "add_bos_token", is_llama, &affixes->bos, err));
    MOEC_TRY_OUT(moec_json_get_bool_or(root, file.path, "add_eos_token", is_t5, &affixes->eos, err));
out:
    moec_json_free(root);
    free_file(&file);
    return status;
}

static enum moec_status try_model(const char *folder, const char *const *names,
                                  struct moec_tokenizer_model *model, const char *const **files,
                                  struct moec_error *err)
{
    struct text_file file = {0};
    struct moec_sentencepiece_affixes affixes = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(load(folder, names[0], MOEC_SENTENCEPIECE_MAX_BYTES, &file, err));
    if (file.bytes == NULL)
        goto out;
    MOEC_TRY_OUT(read_affixes(folder, &affixes, err));
    MOEC_TRY_OUT(
        moec_sentencepiece_read((const uint8_t *)file.bytes, file.n_bytes, file.path, affixes, model, err));
    *files = names;
out:
    free_file(&file);
    return status;
}

/* A text member of a JSON file of the folder; empty where there is none. `text` has room for n bytes. */
static enum moec_status read_member(const char *folder, const char *name, const char *key, size_t n,
                                    char *text, struct moec_error *err)
{
    struct text_file file = {0};
    struct moec_json *root = NULL;
    const char *value = "";
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(load(folder, name, CONFIG_MAX_BYTES, &file, err));
    if (file.bytes != NULL) {
        MOEC_TRY_OUT(moec_json_parse(file.bytes, file.n_bytes, CONFIG_MAX_BYTES, file.path, &root, err));
        MOEC_TRY_OUT(moec_json_get_string_or(root, file.path, key, "", &value, err));
    }
    (void)snprintf(text, n, "%s", value);
out:
    moec_json_free(root);
    free_file(&file);
    return status;
}

/* Classes of GPT-2's kind set ByteLevel's add_prefix_space to that of tokenizer_config.json. */
static enum moec_status read_prefix_space(const char *folder, struct moec_declared_tokens *declared,
                                          struct moec_error *err)
{
    char name[64], model_type[64];
    const struct moec_json *config = declared->trees[0];
    if (config == NULL || moec_json_present(config, "add_prefix_space") == NULL)
        return MOEC_OK;
    MOEC_TRY(read_member(folder, "tokenizer_config.json", "tokenizer_class", sizeof name, name, err));
    MOEC_TRY(read_member(folder, "config.json", "model_type", sizeof model_type, model_type, err));
    declared->sets_prefix_space = moec_vocab_class_find(name, model_type) != NULL;
    return moec_json_get_bool_or(config, folder, "add_prefix_space", false, &declared->prefix_space, err);
}

static enum moec_status read_json(const char *folder, struct moec_tokenizer_json json, uint64_t vocab_size,
                                  struct moec_tokenizer_model *model, const char *const **files,
                                  struct moec_error *err)
{
    struct moec_declared_tokens declared;
    bool is_changed = false;
    MOEC_TRY(moec_declared_tokens_read(folder, NULL, &declared, err));
    enum moec_status status = read_prefix_space(folder, &declared, err);
    if (status == MOEC_OK)
        status = moec_tokenizer_json_read_with(json, &declared, vocab_size, &is_changed, model, err);
    moec_declared_tokens_release(&declared);
    *files = is_changed ? declaring_files : json_files;
    return status;
}

/* ---- vocab.json and merges.txt ---- */

static enum moec_status find_class(const char *folder, const struct moec_vocab_class **class,
                                   struct moec_error *err)
{
    char name[64], model_type[64];
    MOEC_TRY(read_member(folder, "tokenizer_config.json", "tokenizer_class", sizeof name, name, err));
    MOEC_TRY(read_member(folder, "config.json", "model_type", sizeof model_type, model_type, err));
    *class = moec_vocab_class_find(name, model_type);
    if (*class == NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the folder '%s' has vocab.json and merges.txt but no tokenizer.json, which tokenizer class "
            "'%s' ('model_type' '%s') needs: without that file moec supports only GPT2Tokenizer, "
            "GPTNeoXTokenizer and Qwen2Tokenizer. To write tokenizer.json with transformers, use "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            folder, name, model_type);
    return MOEC_OK;
}

/* What tokenizer_config.json says about the text around the model: the ids are found in a tokenizer without
 * them. */
static enum moec_status read_around(const char *folder, const struct moec_declared_tokens *declared,
                                    const struct moec_tokenizer_model *model, struct moec_vocab_merges *files,
                                    struct moec_error *err)
{
    const struct moec_json *config = declared->trees[0];
    const char *const keys[] = {"add_bos_token", "add_eos_token"};
    uint32_t *const ids[] = {&files->bos_id, &files->eos_id};
    for (size_t i = 0; i < 2 && config != NULL; i++) {
        const struct moec_declared_token *token = moec_declared_tokens_named(declared, i);
        bool is_on = false;
        MOEC_TRY(moec_json_get_bool_or(config, folder, keys[i], false, &is_on, err));
        for (uint32_t id = 0; is_on && token != NULL && id < model->n_tokens; id++) {
            uint32_t length = 0;
            const char *text = moec_tokenizer_model_text(model, id, &length);
            if (length == token->n_bytes && length > 0 && memcmp(text, token->bytes, length) == 0)
                *ids[i] = id;
        }
    }
    return MOEC_OK;
}

static enum moec_status read_vocab(const char *folder, struct moec_vocab_merges *files, uint64_t vocab_size,
                                   struct moec_tokenizer_model *model, struct moec_error *err)
{
    const struct moec_vocab_class *class = NULL;
    struct moec_declared_tokens declared;
    bool is_changed = false;
    char *json = NULL;
    MOEC_TRY(find_class(folder, &class, err));
    MOEC_TRY(moec_declared_tokens_read(folder, class->special, &declared, err));
    enum moec_status status = MOEC_OK;
    if (declared.trees[0] != NULL)
        MOEC_TRY_OUT(moec_json_get_bool_or(declared.trees[0], folder, "add_prefix_space", false,
                                           &files->add_prefix_space, err));
    for (int pass = 0; pass < 2; pass++) {
        MOEC_TRY_OUT(moec_vocab_merges_json(class, files, &json, err));
        MOEC_TRY_OUT(
            moec_tokenizer_json_read_with((struct moec_tokenizer_json){json, strlen(json), files->vocab.path},
                                          &declared, vocab_size, &is_changed, model, err));
        free(json);
        json = NULL;
        if (pass == 0)
            MOEC_TRY_OUT(read_around(folder, &declared, model, files, err));
        if (files->bos_id == MOEC_TOKENIZER_NO_ID && files->eos_id == MOEC_TOKENIZER_NO_ID)
            break;
        if (pass == 0)
            moec_tokenizer_model_release(model);
    }
out:
    if (status != MOEC_OK)
        moec_tokenizer_model_release(model);
    moec_declared_tokens_release(&declared);
    free(json);
    return status;
}

static enum moec_status try_vocab(const char *folder, uint64_t vocab_size, struct moec_tokenizer_model *model,
                                  const char *const **files, struct moec_error *err)
{
    struct text_file vocab = {0}, merges = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(load(folder, vocab_files[0], MOEC_TOKENIZER_JSON_MAX_BYTES, &vocab, err));
    MOEC_TRY_OUT(load(folder, vocab_files[1], MOEC_TOKENIZER_JSON_MAX_BYTES, &merges, err));
    if (vocab.bytes != NULL && merges.bytes != NULL) {
        struct moec_vocab_merges read = {
            .vocab = {.bytes = vocab.bytes, .n_bytes = vocab.n_bytes, .path = vocab.path},
            .merges = {.bytes = merges.bytes, .n_bytes = merges.n_bytes, .path = merges.path},
            .bos_id = MOEC_TOKENIZER_NO_ID,
            .eos_id = MOEC_TOKENIZER_NO_ID};
        MOEC_TRY_OUT(read_vocab(folder, &read, vocab_size, model, err));
        *files = vocab_files;
    }
out:
    free_file(&vocab);
    free_file(&merges);
    return status;
}

/* ---- vocab.txt and emoji.json ---- */

static enum moec_status read_japanese(const char *folder, struct moec_japanese_files *files,
                                      struct moec_tokenizer_model *model, struct moec_error *err)
{
    char class[64], model_type[64];
    struct moec_declared_tokens declared;
    MOEC_TRY(read_member(folder, "tokenizer_config.json", "tokenizer_class", sizeof class, class, err));
    MOEC_TRY(read_member(folder, "config.json", "model_type", sizeof model_type, model_type, err));
    if (class[0] != '\0' ? strcmp(class, MOEC_JAPANESE_CLASS) != 0
                         : strcmp(model_type, "gptsan-japanese") != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the folder '%s' has vocab.txt and emoji.json, which moec reads for the tokenizer "
                         "class " MOEC_JAPANESE_CLASS " only; its class is '%s' ('model_type' '%s')",
                         folder, class, model_type);
    MOEC_TRY(moec_declared_tokens_read(folder, moec_japanese_special, &declared, err));
    files->declared = &declared;
    const enum moec_status status = moec_japanese_vocab_read(files, model, err);
    moec_declared_tokens_release(&declared);
    return status;
}

static enum moec_status try_japanese(const char *folder, struct moec_tokenizer_model *model,
                                     const char *const **used, struct moec_error *err)
{
    struct text_file vocab = {0}, emoji = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(load(folder, japanese_files[0], MOEC_TOKENIZER_MAX_TEXT_BYTES, &vocab, err));
    MOEC_TRY_OUT(load(folder, japanese_files[1], MOEC_TOKENIZER_MAX_TEXT_BYTES, &emoji, err));
    if (vocab.bytes != NULL && emoji.bytes != NULL) {
        struct moec_japanese_files files = {.vocab = vocab.bytes,
                                            .emoji = emoji.bytes,
                                            .n_vocab = vocab.n_bytes,
                                            .n_emoji = emoji.n_bytes,
                                            .vocab_path = vocab.path,
                                            .emoji_path = emoji.path};
        MOEC_TRY_OUT(read_japanese(folder, &files, model, err));
        *used = japanese_files;
    }
out:
    free_file(&vocab);
    free_file(&emoji);
    return status;
}

enum moec_status moec_folder_tokenizer_load(const char *folder, uint64_t vocab_size,
                                            struct moec_tokenizer_model *model, const char *const **files,
                                            struct moec_error *err)
{
    struct text_file file = {0};
    enum moec_status status = MOEC_OK;
    *model = (struct moec_tokenizer_model){0};
    *files = no_files;
    MOEC_TRY_OUT(load(folder, json_files[0], MOEC_TOKENIZER_JSON_MAX_BYTES, &file, err));
    if (file.bytes != NULL) {
        MOEC_TRY_OUT(read_json(folder, (struct moec_tokenizer_json){file.bytes, file.n_bytes, file.path},
                               vocab_size, model, files, err));
        goto out;
    }
    MOEC_TRY_OUT(try_model(folder, model_files, model, files, err));
    if (*files == no_files)
        MOEC_TRY_OUT(try_model(folder, spiece_files, model, files, err));
    if (*files == no_files)
        MOEC_TRY_OUT(try_vocab(folder, vocab_size, model, files, err));
    if (*files == no_files)
        MOEC_TRY_OUT(try_japanese(folder, model, files, err));
out:
    free_file(&file);
    return status;
}
