/* The order and the rules of transformers 5: first added_tokens_decoder by id, or else added_tokens.json by
 * id; then tokens under special names. With added_tokens_decoder special_tokens_map.json is not read.
 * `replaces` marks tokens whose flags win over the tokenizer.json's, `yields` those that give way to an id
 * that is taken. */
#include "formats/tokenizer/declared_tokens.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX_BYTES ((uint64_t)16 << 20)

enum { CONFIG, MAP, ADDED };
static const char *const file_names[MOEC_DECLARED_FILES] = {"tokenizer_config.json",
                                                            "special_tokens_map.json", "added_tokens.json"};

static const char *const special_names[MOEC_SPECIAL_NAMES] = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

static enum moec_status load(const char *folder, size_t file, struct moec_json **tree, struct moec_error *err)
{
    char *path = NULL, *bytes = NULL;
    size_t n_bytes = 0;
    bool found = false;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_path_join(&path, folder, file_names[file], err));
    MOEC_TRY_OUT(moec_path_find(path, &found, err));
    if (!found)
        goto out;
    MOEC_TRY_OUT(moec_file_load(path, FILE_MAX_BYTES, &bytes, &n_bytes, err));
    MOEC_TRY_OUT(moec_json_parse(bytes, n_bytes, FILE_MAX_BYTES, path, tree, err));
    if (moec_json_type(*tree) != MOEC_JSON_OBJECT)
        status = moec_fail(err, MOEC_ERR_FORMAT, "'%s' holds %s, expected an object", path,
                           moec_json_type_name(*tree));
out:
    free(path);
    free(bytes);
    return status;
}

/* ---- one token ---- */

static enum moec_status append(struct moec_declared_tokens *tokens, const struct moec_declared_token *token,
                               struct moec_error *err)
{
    if (tokens->n == MOEC_TOKENIZER_MAX_ADDED)
        return moec_fail(err, MOEC_ERR_LIMIT, "the tokenizer's JSON files declare more than %u added tokens",
                         MOEC_TOKENIZER_MAX_ADDED);
    MOEC_TRY(moec_grow((void **)&tokens->items, &tokens->capacity, tokens->n + 1, sizeof *tokens->items,
                       "declared tokens", err));
    tokens->items[tokens->n++] = *token;
    return MOEC_OK;
}

/* A text, or an object with `content` and flags; `normalized` is the opposite of `special` where it is
 * missing. */
static enum moec_status read_token(const struct moec_json *node, const char *where, bool is_special,
                                   struct moec_declared_token *token, struct moec_error *err)
{
    static const struct {
        const char *key;
        uint32_t bit;
    } bits[] = {{"single_word", MOEC_ADDED_SINGLE_WORD},
                {"lstrip", MOEC_ADDED_LSTRIP},
                {"rstrip", MOEC_ADDED_RSTRIP}};
    bool special = is_special, normalized = !is_special;
    if (moec_json_type(node) != MOEC_JSON_OBJECT) {
        MOEC_TRY(moec_json_as_string(node, where, &token->bytes, &token->n_bytes, err));
    } else {
        MOEC_TRY(moec_json_get_string(node, where, "content", &token->bytes, &token->n_bytes, err));
        MOEC_TRY(moec_json_get_bool_or(node, where, "special", false, &special, err));
        special |= is_special;
        MOEC_TRY(moec_json_get_bool_or(node, where, "normalized", !special, &normalized, err));
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
            bool is_set = false;
            MOEC_TRY(moec_json_get_bool_or(node, where, bits[i].key, false, &is_set, err));
            token->flags |= is_set ? bits[i].bit : 0;
        }
    }
    token->flags |= (special ? MOEC_ADDED_SPECIAL : 0) | (normalized ? MOEC_ADDED_NORMALIZED : 0);
    return MOEC_OK;
}

static int compare_order(const void *a, const void *b)
{
    const struct moec_declared_token *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

/* ---- the lists ---- */

/* {"32000": {"content": ..., "special": ...}, ...} */
static enum moec_status read_decoder(struct moec_declared_tokens *tokens, const struct moec_json *decoder,
                                     struct moec_error *err)
{
    for (struct moec_json_member m = moec_json_first(decoder); m.key != NULL;
         m = moec_json_next(decoder, m)) {
        struct moec_declared_token token = {.replaces = true};
        char where[200], *end = NULL;
        (void)snprintf(where, sizeof where, "key '%.40s' of 'added_tokens_decoder' in tokenizer_config.json",
                       m.key);
        token.order = strtoull(m.key, &end, 10);
        if (end == m.key || *end != '\0')
            return moec_fail(err, MOEC_ERR_FORMAT, "%s is not a token id, expected a whole number", where);
        MOEC_TRY(read_token(m.value, where, false, &token, err));
        MOEC_TRY(append(tokens, &token, err));
    }
    if (tokens->n > 0)
        qsort(tokens->items, tokens->n, sizeof *tokens->items, compare_order);
    return MOEC_OK;
}

/* The value of a special name: special_tokens_map.json's, where it is read, before tokenizer_config.json's.
 */
static const struct moec_json *named(const struct moec_declared_tokens *tokens, bool has_decoder,
                                     const char *name)
{
    const struct moec_json *map = has_decoder ? NULL : tokens->trees[MAP];
    const struct moec_json *value = map == NULL ? NULL : moec_json_present(map, name);
    if (value == NULL && tokens->trees[CONFIG] != NULL)
        value = moec_json_present(tokens->trees[CONFIG], name);
    return value;
}

static const struct moec_json *extra(const struct moec_declared_tokens *tokens, bool has_decoder)
{
    const struct moec_json *value = named(tokens, has_decoder, "extra_special_tokens");
    if (value == NULL || moec_json_length(value) == 0)
        value = named(tokens, has_decoder, "additional_special_tokens");
    return value;
}

/* What a special name stands for where the folder does not mention it; null is a mention. */
static const char *assumed(const struct moec_declared_tokens *tokens, size_t i)
{
    const struct moec_json *config = tokens->trees[CONFIG];
    const bool is_null = config != NULL && moec_json_find(config, special_names[i]) != NULL;
    return tokens->defaults == NULL || is_null ? NULL : tokens->defaults[i];
}

static enum moec_status read_named(struct moec_declared_tokens *tokens, bool has_decoder,
                                   struct moec_error *err)
{
    for (size_t i = 0; i < MOEC_SPECIAL_NAMES; i++) {
        const struct moec_json *node = named(tokens, has_decoder, special_names[i]);
        const char *text = node != NULL ? NULL : assumed(tokens, i);
        struct moec_declared_token token = {.flags = MOEC_ADDED_SPECIAL};
        if (node == NULL && text == NULL)
            continue;
        if (node != NULL)
            MOEC_TRY(read_token(node, special_names[i], true, &token, err));
        else
            token.bytes = text;
        token.n_bytes = node != NULL ? token.n_bytes : strlen(text);
        MOEC_TRY(append(tokens, &token, err));
        tokens->named[i] = tokens->n;
    }
    const struct moec_json *list = extra(tokens, has_decoder);
    for (size_t i = 0; list != NULL && moec_json_type(list) == MOEC_JSON_ARRAY && i < moec_json_length(list);
         i++) {
        struct moec_declared_token token = {0};
        MOEC_TRY(read_token(moec_json_at(list, i), "a token of 'extra_special_tokens'", true, &token, err));
        MOEC_TRY(append(tokens, &token, err));
    }
    return MOEC_OK;
}

/* Whether a text is among these. */
static bool is_named(const struct moec_declared_tokens *named_tokens, const char *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < named_tokens->n; i++)
        if (named_tokens->items[i].n_bytes == n_bytes &&
            memcmp(named_tokens->items[i].bytes, bytes, n_bytes) == 0)
            return true;
    return false;
}

/* added_tokens.json: {"<text>": id, ...}. They come before the special names, which say what is special. */
static enum moec_status read_added(struct moec_declared_tokens *tokens, struct moec_error *err)
{
    struct moec_declared_tokens special = {0};
    const struct moec_json *added = tokens->trees[ADDED];
    enum moec_status status = MOEC_OK;
    memcpy(special.trees, tokens->trees, sizeof special.trees);
    special.defaults = tokens->defaults;
    status = read_named(&special, false, err);
    for (struct moec_json_member m = moec_json_first(added); status == MOEC_OK && m.key != NULL;
         m = moec_json_next(added, m)) {
        struct moec_declared_token token = {.bytes = m.key, .n_bytes = m.key_length, .yields = true};
        token.flags = is_named(&special, m.key, m.key_length) ? MOEC_ADDED_SPECIAL : MOEC_ADDED_NORMALIZED;
        status = moec_json_as_u64(m.value, "an id of added_tokens.json", 0, UINT32_MAX, &token.order, err);
        if (status == MOEC_OK)
            status = append(tokens, &token, err);
    }
    free(special.items);
    if (tokens->n > 0)
        qsort(tokens->items, tokens->n, sizeof *tokens->items, compare_order);
    return status;
}

enum moec_status moec_declared_tokens_read(const char *folder, const char *const *defaults,
                                           struct moec_declared_tokens *tokens, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_json *decoder = NULL;
    bool splits = false;
    *tokens = (struct moec_declared_tokens){.defaults = defaults};
    for (size_t i = 0; i < MOEC_DECLARED_FILES; i++)
        MOEC_TRY_OUT(load(folder, i, &tokens->trees[i], err));
    if (tokens->trees[CONFIG] != NULL) {
        decoder = moec_json_present(tokens->trees[CONFIG], "added_tokens_decoder");
        MOEC_TRY_OUT(moec_json_get_bool_or(tokens->trees[CONFIG], file_names[CONFIG], "split_special_tokens",
                                           false, &splits, err));
    }
    if (splits) {
        status = moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "tokenizer_config.json in the folder '%s' says 'split_special_tokens' true, which moec does "
            "not support: moec always reads special tokens in a text as tokens",
            folder);
        goto out;
    }
    if (decoder != NULL && moec_json_type(decoder) == MOEC_JSON_OBJECT)
        MOEC_TRY_OUT(read_decoder(tokens, decoder, err));
    else if (tokens->trees[ADDED] != NULL)
        MOEC_TRY_OUT(read_added(tokens, err));
    MOEC_TRY_OUT(read_named(tokens, decoder != NULL, err));
out:
    if (status != MOEC_OK)
        moec_declared_tokens_release(tokens);
    return status;
}

const struct moec_declared_token *moec_declared_tokens_named(const struct moec_declared_tokens *tokens,
                                                             size_t name)
{
    return tokens->named[name] == 0 ? NULL : &tokens->items[tokens->named[name] - 1];
}

void moec_declared_tokens_release(struct moec_declared_tokens *tokens)
{
    for (size_t i = 0; i < MOEC_DECLARED_FILES; i++)
        moec_json_free(tokens->trees[i]);
    free(tokens->items);
    *tokens = (struct moec_declared_tokens){0};
}
