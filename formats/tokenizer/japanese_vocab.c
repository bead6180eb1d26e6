/* A line is a token, its number the id, and a token may have several spellings. Pairs of replacements are
 * NUL-ended texts after the vocabulary. They keep the order of the class, since each is applied to the
 * result of those before. Writing leaves out the pairs that the class has itself. */
#include "formats/tokenizer/japanese_vocab.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const moec_japanese_special[MOEC_SPECIAL_NAMES] = {
    "<|startoftext|>", "<|endoftext|>", "<|nottoken|>", "<|segmenter|>", "<|separator|>", NULL, NULL};

enum { BOS, EOS, UNK, SEP, PAD, N_NAMED };

/* What the class replaces before emojis. */
static const char *const replaced[][2] = {{" ", "<SP>"},        {"\u3000", "<SP>"},  {"\r\n", "<BR>"},
                                          {"\n", "<BR>"},       {"\r", "<BR>"},      {"\t", "<TAB>"},
                                          {"\u2014", "\u30fc"}, {"\u2212", "\u30fc"}};
#define N_REPLACED (sizeof replaced / sizeof *replaced)

/* ---- reading ---- */

struct reader {
    const struct moec_japanese_files *files;
    struct moec_error *err;
    char *text; /* owned: lines, then pairs */
    size_t n_text, text_capacity;
    uint32_t *token_start; /* owned, (n_tokens + 1) */
    size_t n_tokens, start_capacity;
    struct moec_tokenizer_added *added; /* owned */
    size_t n_added, added_capacity;
    uint32_t named[N_NAMED];
};

static enum moec_status append(struct reader *r, const char *bytes, size_t n)
{
    if (r->n_text + n > MOEC_TOKENIZER_MAX_TEXT_BYTES)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "the vocabulary '%s' has more than %u bytes of text",
                         r->files->vocab_path, MOEC_TOKENIZER_MAX_TEXT_BYTES);
    MOEC_TRY(moec_grow((void **)&r->text, &r->text_capacity, r->n_text + n + 1, 1, "a vocabulary", r->err));
    if (n > 0)
        memcpy(r->text + r->n_text, bytes, n);
    r->n_text += n;
    return MOEC_OK;
}

static enum moec_status add_start(struct reader *r)
{
    MOEC_TRY(moec_grow((void **)&r->token_start, &r->start_capacity, r->n_tokens + 1, sizeof *r->token_start,
                       "a vocabulary", r->err));
    r->token_start[r->n_tokens++] = (uint32_t)r->n_text;
    return MOEC_OK;
}

/* Lines end as Python's text files do: with LF, CR or both. */
static enum moec_status read_lines(struct reader *r)
{
    const char *text = r->files->vocab;
    const size_t n = r->files->n_vocab;
    MOEC_TRY(append(r, "", 0));
    for (size_t at = 0; at < n;) {
        size_t length = 0;
        while (at + length < n && text[at + length] != '\n' && text[at + length] != '\r')
            length++;
        if (at + length == n && length == 1 && text[at] == ',')
            return moec_fail(
                r->err, MOEC_ERR_UNSUPPORTED,
                "the last line of the vocabulary '%s' is a comma without a line break, so it does not "
                "count as the token ',': add the line break",
                r->files->vocab_path);
        MOEC_TRY(add_start(r));
        MOEC_TRY(append(r, text + at, length));
        at += length;
        at += at + 1 < n && text[at] == '\r' && text[at + 1] == '\n' ? 2 : 1;
    }
    MOEC_TRY(add_start(r));
    if (r->n_tokens-- > MOEC_TOKENIZER_MAX_TOKENS)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "the vocabulary '%s' has more than %u lines",
                         r->files->vocab_path, MOEC_TOKENIZER_MAX_TOKENS);
    return MOEC_OK;
}

static bool spells(const char *text, size_t n_text, const char *bytes, size_t n_bytes)
{
    for (size_t at = 0, rest = 0; at < n_text; at += rest)
        if (moec_tokenizer_spelling(text + at, n_text - at, &rest) == n_bytes &&
            memcmp(text + at, bytes, n_bytes) == 0)
            return true;
    return false;
}

/* The token that has a declared token's text as its only spelling. */
static enum moec_status find(const struct reader *r, const struct moec_declared_token *token, uint32_t *id)
{
    const char *problem = "which is not in";
    for (size_t i = r->n_tokens; i-- > 0;) {
        const char *text = r->text + r->token_start[i];
        const size_t n = r->token_start[i + 1] - r->token_start[i];
        if (!spells(text, n, token->bytes, token->n_bytes))
            continue;
        *id = (uint32_t)i;
        if (n == token->n_bytes && token->n_bytes > 0 && (!token->replaces || token->order == i))
            return MOEC_OK;
        problem = "which has a different id or more than one spelling in";
        break;
    }
    return moec_fail(r->err, MOEC_ERR_UNSUPPORTED, "the tokenizer has an added token '%.*s', %s '%s'",
                     (int)(token->n_bytes < 64 ? token->n_bytes : 64), token->bytes, problem,
                     r->files->vocab_path);
}

static enum moec_status add_declared(struct reader *r, const struct moec_declared_token *token)
{
    const uint32_t takes = MOEC_ADDED_SINGLE_WORD | MOEC_ADDED_LSTRIP | MOEC_ADDED_RSTRIP;
    uint32_t id = 0;
    MOEC_TRY(find(r, token, &id));
    if ((token->flags & takes) != 0)
        return moec_fail(
            r->err, MOEC_ERR_UNSUPPORTED,
            "the tokenizer has an added token '%.*s' with 'single_word', 'lstrip' or 'rstrip', which is "
            "not supported with the vocabulary '%s'",
            (int)(token->n_bytes < 64 ? token->n_bytes : 64), token->bytes, r->files->vocab_path);
    for (size_t i = 0; i < r->n_added; i++)
        if (r->added[i].id == id) {
            r->added[i].flags |= token->flags & MOEC_ADDED_SPECIAL;
            return MOEC_OK;
        }
    MOEC_TRY(moec_grow((void **)&r->added, &r->added_capacity, r->n_added + 1, sizeof *r->added,
                       "added tokens", r->err));
    r->added[r->n_added++] =
        (struct moec_tokenizer_added){id, (token->flags & MOEC_ADDED_SPECIAL) | MOEC_ADDED_IN_MODEL};
    return MOEC_OK;
}

static enum moec_status read_special(struct reader *r)
{
    static const char *const names[N_NAMED] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token"};
    const struct moec_declared_tokens *declared = r->files->declared;
    bool cleans = false;
    if (declared->trees[0] != NULL)
        MOEC_TRY(moec_json_get_bool_or(declared->trees[0], "tokenizer_config.json", "do_clean_text", false,
                                       &cleans, r->err));
    if (cleans)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "tokenizer_config.json beside the vocabulary '%s' says 'do_clean_text' true, "
                         "only false is supported",
                         r->files->vocab_path);
    for (size_t i = 0; i < N_NAMED; i++) {
        const struct moec_declared_token *token = moec_declared_tokens_named(declared, i);
        if (token == NULL)
            return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                             "the tokenizer of '%s' has no '%s', expected one in tokenizer_config.json or "
                             "special_tokens_map.json",
                             r->files->vocab_path, names[i]);
        MOEC_TRY(find(r, token, &r->named[i]));
    }
    for (size_t i = 0; i < declared->n; i++)
        MOEC_TRY(add_declared(r, &declared->items[i]));
    return MOEC_OK;
}

static enum moec_status add_pair(struct reader *r, const char *from, size_t n_from, const char *to,
                                 size_t n_to)
{
    if (n_from == 0 || memchr(from, 0, n_from) != NULL || memchr(to, 0, n_to) != NULL)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "the emoji file '%s' has a key that is empty, or a key or value with a NUL "
                         "character",
                         r->files->emoji_path);
    MOEC_TRY(append(r, from, n_from));
    MOEC_TRY(append(r, "", 1));
    MOEC_TRY(append(r, to, n_to));
    return append(r, "", 1);
}

static enum moec_status add_pairs(struct reader *r, const struct moec_json *root, const char *key)
{
    const struct moec_json *map = NULL;
    MOEC_TRY(moec_json_get(root, r->files->emoji_path, key, MOEC_JSON_OBJECT, &map, r->err));
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        const char *to = NULL;
        size_t n_to = 0;
        MOEC_TRY(moec_json_as_string(m.value, r->files->emoji_path, &to, &n_to, r->err));
        MOEC_TRY(add_pair(r, m.key, m.key_length, to, n_to));
    }
    return MOEC_OK;
}

/* `start`: where the content of the normalizer's step begins, the decoder's, and where that ends. */
static enum moec_status read_emoji(struct reader *r, uint32_t start[3])
{
    struct moec_json *root = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_json_parse(r->files->emoji, r->files->n_emoji, MOEC_TOKENIZER_MAX_TEXT_BYTES,
                             r->files->emoji_path, &root, r->err));
    start[0] = (uint32_t)r->n_text;
    for (size_t i = 0; i < N_REPLACED; i++)
        MOEC_TRY_OUT(
            add_pair(r, replaced[i][0], strlen(replaced[i][0]), replaced[i][1], strlen(replaced[i][1])));
    MOEC_TRY_OUT(add_pairs(r, root, "emoji"));
    start[1] = (uint32_t)r->n_text;
    MOEC_TRY_OUT(add_pairs(r, root, "emoji_inv"));
    start[2] = (uint32_t)r->n_text;
out:
    moec_json_free(root);
    return status;
}

static enum moec_status assemble(struct reader *r, const uint32_t start[3],
                                 struct moec_tokenizer_model *model)
{
    const struct moec_tokenizer_step normalizer = {.kind = MOEC_STEP_REPLACE_EACH,
                                                   .content = {start[0], start[1] - start[0]}},
                                     decoder = {.kind = MOEC_STEP_JAPANESE,
                                                .content = {start[1], start[2] - start[1]}};
    const uint32_t prefix[2] = {r->named[BOS], r->named[SEP]};
    uint32_t *merge_start = NULL;
    void *bytes = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(moec_alloc((void **)&merge_start, r->n_tokens + 1, sizeof *merge_start, "merges", r->err));
    const struct moec_tokenizer_model flat = {.flags = MOEC_TOKENIZER_JAPANESE,
                                              .n_tokens = (uint32_t)r->n_tokens,
                                              .n_added = (uint32_t)r->n_added,
                                              .n_normalizer = 1,
                                              .n_decoder = 1,
                                              .n_prefix = 2,
                                              .unk_id = r->named[UNK],
                                              .text_bytes = (uint32_t)r->n_text,
                                              .token_start = r->token_start,
                                              .merge_start = merge_start,
                                              .added = r->added,
                                              .normalizer = &normalizer,
                                              .decoder = &decoder,
                                              .prefix = prefix,
                                              .text = r->text};
    enum moec_status status = moec_tokenizer_model_encode(&flat, &bytes, &n_bytes, r->err);
    if (status == MOEC_OK)
        status = moec_tokenizer_model_decode(bytes, n_bytes, r->files->vocab_path, model, r->err);
    free(bytes);
    free(merge_start);
    return status;
}

enum moec_status moec_japanese_vocab_read(const struct moec_japanese_files *files,
                                          struct moec_tokenizer_model *model, struct moec_error *err)
{
    struct reader r = {.files = files, .err = err};
    uint32_t start[3] = {0};
    *model = (struct moec_tokenizer_model){0};
    enum moec_status status = read_lines(&r);
    if (status == MOEC_OK)
        status = read_special(&r);
    if (status == MOEC_OK)
        status = read_emoji(&r, start);
    if (status == MOEC_OK)
        status = assemble(&r, start, model);
    free(r.text);
    free(r.token_start);
    free(r.added);
    return status;
}

/* ---- writing ---- */

static enum moec_status write_lines(const struct moec_tokenizer_model *model, char **vocab,
                                    struct moec_error *err)
{
    const uint64_t n_bytes = (uint64_t)model->token_start[model->n_tokens] + model->n_tokens + 1;
    MOEC_TRY(moec_alloc((void **)vocab, n_bytes, 1, "a vocabulary", err));
    char *at = *vocab;
    for (uint32_t id = 0; id < model->n_tokens; id++) {
        uint32_t length = 0;
        const char *text = moec_tokenizer_model_text(model, id, &length);
        memcpy(at, text, length);
        at += length;
        *at++ = '\n';
    }
    *at = '\0';
    return MOEC_OK;
}

static struct moec_json_out *pairs_of(const struct moec_tokenizer_model *model,
                                      const struct moec_tokenizer_step *step, size_t n_left_out)
{
    struct moec_json_out *map = moec_json_out_object();
    const char *at = model->text + step->content.offset, *end = at + step->content.length;
    const char *from = NULL, *to = NULL;
    for (size_t i = 0; moec_tokenizer_next_pair(&at, end, &from, &to); i++)
        if (i >= n_left_out)
            moec_json_out_string(map, from, to);
    return map;
}

static void put_token(const struct moec_tokenizer_model *model, const char *key, uint32_t id,
                      struct moec_json_out *out)
{
    uint32_t length = 0;
    const char *text = moec_tokenizer_model_text(model, id, &length);
    moec_json_out_string_n(out, key, text, length);
}

enum moec_status moec_japanese_vocab_write(const struct moec_tokenizer_model *model, char **vocab,
                                           char **emoji, struct moec_json_out *config, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *others = moec_json_out_array();
    char *lines = NULL;
    enum moec_status status = MOEC_OK;
    moec_json_out_string(config, "tokenizer_class", MOEC_JAPANESE_CLASS);
    moec_json_out_bool(config, "do_clean_text", false);
    put_token(model, "unk_token", model->unk_id, config);
    if (model->n_prefix > 0)
        put_token(model, "bos_token", model->prefix[0], config);
    if (model->n_prefix > 1)
        put_token(model, "sep_token", model->prefix[1], config);
    for (uint32_t i = 0; i < model->n_added; i++)
        put_token(model, NULL, model->added[i].id, others);
    moec_json_out_node(config, "additional_special_tokens", others);
    moec_json_out_node(root, "emoji", pairs_of(model, &model->normalizer[0], N_REPLACED));
    moec_json_out_node(root, "emoji_inv", pairs_of(model, &model->decoder[0], 0));
    MOEC_TRY_OUT(write_lines(model, &lines, err));
    MOEC_TRY_OUT(moec_json_out_text(root, emoji, err));
    *vocab = lines;
    lines = NULL;
out:
    free(lines);
    moec_json_out_free(root);
    return status;
}
