/* The inverse of tokenizer_json.c, proved by reading back: a text whose model encodes to other bytes is not
 * handed out. The format does not state ranks and holes. So merges are repeated and an empty token is added
 * where reading needs them. */
#include "formats/tokenizer/tokenizer_json.h"

#include "formats/base/base64.h"
#include "formats/base/memory.h"
#include "formats/json/json_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- texts ---- */

static void put_token(struct moec_json_out *node, const char *key, const struct moec_tokenizer_model *model,
                      uint32_t id)
{
    uint32_t length = 0;
    const char *text = moec_tokenizer_model_text(model, id, &length);
    moec_json_out_string_n(node, key, text, length);
}

static void put_string(struct moec_json_out *node, const char *key, const struct moec_tokenizer_model *model,
                       struct moec_tokenizer_string string)
{
    moec_json_out_string_n(node, key, model->text + string.offset, string.length);
}

/* The token's text as a key of an object, in `buffer` (MOEC_TOKENIZER_MAX_TOKEN_BYTES + 1). */
static const char *token_key(const struct moec_tokenizer_model *model, uint32_t id, char *buffer)
{
    uint32_t length = 0;
    const char *text = moec_tokenizer_model_text(model, id, &length);
    memcpy(buffer, text, length);
    buffer[length] = '\0';
    return buffer;
}

static bool is_hole(const struct moec_tokenizer_model *model, uint32_t id)
{
    return model->token_start[id] == model->token_start[id + 1];
}

/* ---- vocabulary ---- */

/* Whether the reader would give the added tokens their ids, were there n_vocab entries in the vocabulary: its
 * rule in added_id. */
static bool added_ids_follow(const struct moec_tokenizer_model *model, uint64_t n_vocab)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < model->n_added; i++) {
        const struct moec_tokenizer_added *added = &model->added[i];
        uint64_t next = i > 0 && largest >= n_vocab ? largest + 1 : n_vocab;
        if (!(added->flags & MOEC_ADDED_IN_MODEL) && added->id != next)
            return false;
        if (i == 0 || added->id > largest)
            largest = added->id;
    }
    return true;
}

/* A vocabulary may hold the empty text, which the model keeps as a hole: its id when one is needed to give
 * the same ids again, else MOEC_TOKENIZER_NO_ID. */
static uint32_t find_empty_token(const struct moec_tokenizer_model *model, uint64_t n_vocab)
{
    if (model->n_tokens > 0 && is_hole(model, model->n_tokens - 1))
        return model->n_tokens - 1;
    if (added_ids_follow(model, n_vocab))
        return MOEC_TOKENIZER_NO_ID;
    for (uint32_t id = 0; id < model->n_tokens; id++)
        if (is_hole(model, id))
            return id;
    return MOEC_TOKENIZER_NO_ID;
}

static enum moec_status write_vocab(const struct moec_tokenizer_model *model, struct moec_json_out *out,
                                    char *buffer, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, model->n_tokens, 1, "a vocabulary", err));
    uint8_t *is_vocab = memory;
    uint64_t n_vocab = 0;
    for (uint32_t id = 0; id < model->n_tokens; id++)
        is_vocab[id] = !is_hole(model, id);
    for (uint32_t i = 0; i < model->n_added; i++)
        is_vocab[model->added[i].id] = (model->added[i].flags & MOEC_ADDED_IN_MODEL) != 0;
    for (uint32_t id = 0; id < model->n_tokens; id++)
        n_vocab += is_vocab[id];
    uint32_t empty = find_empty_token(model, n_vocab);
    struct moec_json_out *vocab = moec_json_out_object();
    for (uint32_t id = 0; id < model->n_tokens; id++)
        if (is_vocab[id] || id == empty)
            moec_json_out_u64(vocab, token_key(model, id, buffer), id);
    moec_json_out_node(out, "vocab", vocab);
    free(memory);
    return MOEC_OK;
}

/* ---- merges ---- */

struct ranked_merge {
    uint32_t rank, left, right;
};

static int compare_ranks(const void *a, const void *b)
{
    const struct ranked_merge *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static void put_merge(struct moec_json_out *merges, const struct moec_tokenizer_model *model,
                      const struct ranked_merge *merge)
{
    struct moec_json_out *pair = moec_json_out_array();
    put_token(pair, NULL, model, merge->left);
    put_token(pair, NULL, model, merge->right);
    moec_json_out_node(merges, NULL, pair);
}

/* In order of rank. Ranks are missing where a pair was listed twice, of which the later place counts: the
 * pair of the next rank is put there, and its later place counts again. */
static enum moec_status write_merges(const struct moec_tokenizer_model *model, const char *subject,
                                     struct moec_json_out *out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, model->n_merges, sizeof(struct ranked_merge), "merges", err));
    struct ranked_merge *sorted = memory;
    for (uint32_t left = 0; left < model->n_tokens; left++)
        for (uint32_t i = model->merge_start[left]; i < model->merge_start[left + 1]; i++)
            sorted[i] = (struct ranked_merge){model->merges[i].rank, left, model->merges[i].right};
    qsort(sorted, model->n_merges, sizeof *sorted, compare_ranks);
    uint32_t last = model->n_merges > 0 ? sorted[model->n_merges - 1].rank : 0;
    if (last >= MOEC_TOKENIZER_MAX_MERGES) {
        free(memory);
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the tokenizer of '%s' has a merge of rank %" PRIu32
                         ", expected ranks below %" PRIu32,
                         subject, last, MOEC_TOKENIZER_MAX_MERGES);
    }
    struct moec_json_out *merges = moec_json_out_array();
    uint32_t rank = 0;
    for (uint32_t i = 0; i < model->n_merges; i++)
        for (; rank <= sorted[i].rank; rank++)
            put_merge(merges, model, &sorted[i]);
    moec_json_out_node(out, "merges", merges);
    free(memory);
    return MOEC_OK;
}

/* ---- model and added tokens ---- */

/* A text that no token has, for an unk_token that is named but missing. */
static void put_missing_unk(struct moec_json_out *node, const struct moec_tokenizer_model *model)
{
    char text[32] = "<unk>";
    for (uint32_t attempt = 1;; attempt++) {
        bool taken = false;
        for (uint32_t id = 0; id < model->n_tokens && !taken; id++) {
            uint32_t length = 0;
            const char *token = moec_tokenizer_model_text(model, id, &length);
            taken = length == strlen(text) && memcmp(token, text, length) == 0;
        }
        if (!taken)
            break;
        (void)snprintf(text, sizeof text, "<unk %" PRIu32 ">", attempt);
    }
    moec_json_out_string(node, "unk_token", text);
}

/* [text, score] in order of ids, which the reader counts: the vocabulary has no holes, and added tokens that
 * it does not hold follow it. */
static enum moec_status write_unigram(const struct moec_tokenizer_model *model, const char *subject,
                                      struct moec_json_out *root, struct moec_error *err)
{
    uint32_t n_vocab = model->n_tokens;
    for (uint32_t i = 0; i < model->n_added; i++) {
        const struct moec_tokenizer_added *added = &model->added[i];
        if ((added->flags & MOEC_ADDED_IN_MODEL) == 0 && added->id < n_vocab)
            n_vocab = added->id;
    }
    for (uint32_t id = 0; id < n_vocab; id++)
        if (is_hole(model, id))
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "the tokenizer of '%s' has no token with id %" PRIu32
                             ", so it cannot be written as tokenizer.json",
                             subject, id);
    struct moec_json_out *node = moec_json_out_object(), *vocab = moec_json_out_array();
    moec_json_out_string(node, "type", "Unigram");
    if (model->unk_id == MOEC_TOKENIZER_NO_ID)
        moec_json_out_null(node, "unk_id");
    else
        moec_json_out_u64(node, "unk_id", model->unk_id);
    for (uint32_t id = 0; id < n_vocab; id++) {
        struct moec_json_out *pair = moec_json_out_array();
        put_token(pair, NULL, model, id);
        moec_json_out_double(pair, NULL, moec_tokenizer_model_score(model, id));
        moec_json_out_node(vocab, NULL, pair);
    }
    moec_json_out_node(node, "vocab", vocab);
    moec_json_out_bool(node, "byte_fallback", (model->flags & MOEC_TOKENIZER_BYTE_FALLBACK) != 0);
    moec_json_out_node(root, "model", node);
    return MOEC_OK;
}

static enum moec_status write_model(const struct moec_tokenizer_model *model, const char *subject,
                                    struct moec_json_out *root, char *buffer, struct moec_error *err)
{
    if ((model->flags & MOEC_TOKENIZER_UNIGRAM) != 0)
        return write_unigram(model, subject, root, err);
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "type", "BPE");
    moec_json_out_null(node, "dropout");
    if (model->unk_id == MOEC_TOKENIZER_NO_ID)
        moec_json_out_null(node, "unk_token");
    else if (model->unk_id == MOEC_TOKENIZER_ID_MISSING)
        put_missing_unk(node, model);
    else
        put_token(node, "unk_token", model, model->unk_id);
    moec_json_out_null(node, "continuing_subword_prefix");
    moec_json_out_null(node, "end_of_word_suffix");
    moec_json_out_bool(node, "fuse_unk", (model->flags & MOEC_TOKENIZER_FUSE_UNK) != 0);
    moec_json_out_bool(node, "byte_fallback", (model->flags & MOEC_TOKENIZER_BYTE_FALLBACK) != 0);
    moec_json_out_bool(node, "ignore_merges", (model->flags & MOEC_TOKENIZER_IGNORE_MERGES) != 0);
    enum moec_status status = write_vocab(model, node, buffer, err);
    if (status == MOEC_OK)
        status = write_merges(model, subject, node, err);
    moec_json_out_node(root, "model", node);
    return status;
}

static void write_added(const struct moec_tokenizer_model *model, struct moec_json_out *root)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < model->n_added; i++) {
        const struct moec_tokenizer_added *added = &model->added[i];
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_u64(node, "id", added->id);
        put_token(node, "content", model, added->id);
        moec_json_out_bool(node, "single_word", (added->flags & MOEC_ADDED_SINGLE_WORD) != 0);
        moec_json_out_bool(node, "lstrip", (added->flags & MOEC_ADDED_LSTRIP) != 0);
        moec_json_out_bool(node, "rstrip", (added->flags & MOEC_ADDED_RSTRIP) != 0);
        moec_json_out_bool(node, "normalized", (added->flags & MOEC_ADDED_NORMALIZED) != 0);
        moec_json_out_bool(node, "special", (added->flags & MOEC_ADDED_SPECIAL) != 0);
        moec_json_out_node(list, NULL, node);
    }
    moec_json_out_node(root, "added_tokens", list);
}

/* ---- steps ---- */

static void put_pattern(struct moec_json_out *node, const struct moec_tokenizer_model *model,
                        const struct moec_tokenizer_step *step)
{
    struct moec_json_out *pattern = moec_json_out_object();
    put_string(pattern, step->flags & MOEC_STEP_REGEX ? "Regex" : "String", model, step->pattern);
    moec_json_out_node(node, "pattern", pattern);
}

/* Without memory the member is left out, and the text does not read back. */
static void put_charsmap(struct moec_json_out *node, const struct moec_tokenizer_model *model)
{
    char *text = NULL;
    if (moec_base64_encode(model->charsmap, model->charsmap_bytes, &text, NULL) == MOEC_OK)
        moec_json_out_string(node, "precompiled_charsmap", text);
    free(text);
}

static void put_behavior(struct moec_json_out *node, const struct moec_tokenizer_step *step)
{
    static const char *const names[] = {
        [MOEC_SPLIT_REMOVED] = "Removed",
        [MOEC_SPLIT_ISOLATED] = "Isolated",
        [MOEC_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [MOEC_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [MOEC_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    moec_json_out_string(node, "behavior", names[step->mode]);
}

static void put_metaspace(struct moec_json_out *node, const struct moec_tokenizer_model *model,
                          const struct moec_tokenizer_step *step)
{
    static const char *const schemes[] = {
        [MOEC_PREPEND_NEVER] = "never",
        [MOEC_PREPEND_FIRST] = "first",
        [MOEC_PREPEND_ALWAYS] = "always",
    };
    moec_json_out_string(node, "type", "Metaspace");
    put_string(node, "replacement", model, step->content);
    moec_json_out_string(node, "prepend_scheme", schemes[step->mode]);
    moec_json_out_bool(node, "split", (step->flags & MOEC_STEP_CUT) != 0);
}

/* The type of steps that have no member but this. */
static const char *plain_type(uint32_t kind)
{
    switch (kind) {
    case MOEC_STEP_NFC:
        return "NFC";
    case MOEC_STEP_NFD:
        return "NFD";
    case MOEC_STEP_NFKC:
        return "NFKC";
    case MOEC_STEP_NFKD:
        return "NFKD";
    case MOEC_STEP_LOWERCASE:
        return "Lowercase";
    case MOEC_STEP_WHITESPACE:
        return "Whitespace";
    case MOEC_STEP_WHITESPACE_SPLIT:
        return "WhitespaceSplit";
    case MOEC_STEP_BYTE_FALLBACK:
        return "ByteFallback";
    case MOEC_STEP_FUSE:
        return "Fuse";
    default:
        return NULL;
    }
}

static struct moec_json_out *step_node(const struct moec_tokenizer_model *model,
                                       const struct moec_tokenizer_step *step, bool is_decoder)
{
    struct moec_json_out *node = moec_json_out_object();
    switch (step->kind) {
    case MOEC_STEP_PREPEND:
        moec_json_out_string(node, "type", "Prepend");
        put_string(node, "prepend", model, step->content);
        break;
    case MOEC_STEP_REPLACE:
        moec_json_out_string(node, "type", "Replace");
        put_pattern(node, model, step);
        put_string(node, "content", model, step->content);
        break;
    case MOEC_STEP_PRECOMPILED:
        moec_json_out_string(node, "type", "Precompiled");
        put_charsmap(node, model);
        break;
    case MOEC_STEP_STRIP:
        moec_json_out_string(node, "type", "Strip");
        moec_json_out_bool(node, "strip_left", (step->flags & MOEC_STEP_LEFT) != 0);
        moec_json_out_bool(node, "strip_right", (step->flags & MOEC_STEP_RIGHT) != 0);
        break;
    case MOEC_STEP_BYTE_LEVEL:
        /* A decoder has the members of the pre-tokenizer and heeds none of them. */
        moec_json_out_string(node, "type", "ByteLevel");
        moec_json_out_bool(node, "add_prefix_space", is_decoder || (step->flags & MOEC_STEP_PREFIX_SPACE));
        moec_json_out_bool(node, "trim_offsets", true);
        moec_json_out_bool(node, "use_regex", is_decoder || (step->flags & MOEC_STEP_USE_REGEX));
        break;
    case MOEC_STEP_SPLIT:
        moec_json_out_string(node, "type", "Split");
        put_pattern(node, model, step);
        put_behavior(node, step);
        moec_json_out_bool(node, "invert", (step->flags & MOEC_STEP_INVERT) != 0);
        break;
    case MOEC_STEP_METASPACE:
        put_metaspace(node, model, step);
        break;
    case MOEC_STEP_DIGITS:
        moec_json_out_string(node, "type", "Digits");
        moec_json_out_bool(node, "individual_digits", step->mode == MOEC_SPLIT_ISOLATED);
        break;
    case MOEC_STEP_PUNCTUATION:
        moec_json_out_string(node, "type", "Punctuation");
        put_behavior(node, step);
        break;
    case MOEC_STEP_STRIP_CHAR:
        moec_json_out_string(node, "type", "Strip");
        put_string(node, "content", model, step->content);
        moec_json_out_u64(node, "start", step->start);
        moec_json_out_u64(node, "stop", step->stop);
        break;
    default:
        moec_json_out_string(node, "type", plain_type(step->kind));
        break;
    }
    return node;
}

static void write_steps(const struct moec_tokenizer_model *model, struct moec_json_out *root, const char *key,
                        const char *sequence, const struct moec_tokenizer_step *steps, uint32_t n_steps)
{
    bool is_decoder = strcmp(key, "decoder") == 0;
    if (n_steps == 0) {
        moec_json_out_null(root, key);
        return;
    }
    if (n_steps == 1) {
        moec_json_out_node(root, key, step_node(model, steps, is_decoder));
        return;
    }
    struct moec_json_out *node = moec_json_out_object(), *list = moec_json_out_array();
    moec_json_out_string(node, "type", "Sequence");
    for (uint32_t i = 0; i < n_steps; i++)
        moec_json_out_node(list, NULL, step_node(model, &steps[i], is_decoder));
    moec_json_out_node(node, sequence, list);
    moec_json_out_node(root, key, node);
}

/* ---- post-processor ---- */

/* Name of a special token in a template: its text, or its number when it has none that could be a key. */
static const char *special_name(const struct moec_tokenizer_model *model, uint32_t id, char *buffer)
{
    uint32_t length = 0;
    const char *text = moec_tokenizer_model_text(model, id, &length);
    if (length > 0 && memchr(text, '\0', length) == NULL)
        return token_key(model, id, buffer);
    (void)snprintf(buffer, 32, "token %" PRIu32, id);
    return buffer;
}

static void put_specials(struct moec_json_out *list, const struct moec_tokenizer_model *model,
                         const uint32_t *ids, uint32_t n, uint32_t type_id, char *buffer)
{
    for (uint32_t i = 0; i < n; i++) {
        struct moec_json_out *item = moec_json_out_object(), *special = moec_json_out_object();
        moec_json_out_string(special, "id", special_name(model, ids[i], buffer));
        moec_json_out_u64(special, "type_id", type_id);
        moec_json_out_node(item, "SpecialToken", special);
        moec_json_out_node(list, NULL, item);
    }
}

static void put_sequence(struct moec_json_out *list, const char *id, uint32_t type_id)
{
    struct moec_json_out *item = moec_json_out_object(), *sequence = moec_json_out_object();
    moec_json_out_string(sequence, "id", id);
    moec_json_out_u64(sequence, "type_id", type_id);
    moec_json_out_node(item, "Sequence", sequence);
    moec_json_out_node(list, NULL, item);
}

static void put_special_table(struct moec_json_out *table, const struct moec_tokenizer_model *model,
                              const uint32_t *ids, uint32_t n, char *buffer)
{
    for (uint32_t i = 0; i < n; i++) {
        struct moec_json_out *entry = moec_json_out_object(), *list = moec_json_out_array(),
                             *tokens = moec_json_out_array();
        const char *name = special_name(model, ids[i], buffer);
        moec_json_out_string(entry, "id", name);
        moec_json_out_u64(list, NULL, ids[i]);
        moec_json_out_node(entry, "ids", list);
        moec_json_out_string(tokens, NULL, name);
        moec_json_out_node(entry, "tokens", tokens);
        moec_json_out_node(table, name, entry);
    }
}

static void write_post_processor(const struct moec_tokenizer_model *model, struct moec_json_out *root,
                                 char *buffer)
{
    if (model->n_prefix + model->n_suffix == 0) {
        moec_json_out_null(root, "post_processor");
        return;
    }
    struct moec_json_out *node = moec_json_out_object(), *single = moec_json_out_array(),
                         *pair = moec_json_out_array(), *table = moec_json_out_object();
    moec_json_out_string(node, "type", "TemplateProcessing");
    put_specials(single, model, model->prefix, model->n_prefix, 0, buffer);
    put_sequence(single, "A", 0);
    put_specials(single, model, model->suffix, model->n_suffix, 0, buffer);
    moec_json_out_node(node, "single", single);
    for (uint32_t i = 0; i < 2; i++) {
        put_specials(pair, model, model->prefix, model->n_prefix, i, buffer);
        put_sequence(pair, i == 0 ? "A" : "B", i);
        put_specials(pair, model, model->suffix, model->n_suffix, i, buffer);
    }
    moec_json_out_node(node, "pair", pair);
    put_special_table(table, model, model->prefix, model->n_prefix, buffer);
    put_special_table(table, model, model->suffix, model->n_suffix, buffer);
    moec_json_out_node(node, "special_tokens", table);
    moec_json_out_node(root, "post_processor", node);
}

/* ---- the whole ---- */

/* The text is handed out only when it is the model: a section of a bundle may hold what no file gives. */
static enum moec_status check_written(const struct moec_tokenizer_model *model, const char *subject,
                                      const char *json, size_t n_bytes, struct moec_error *err)
{
    struct moec_tokenizer_model again = {0};
    void *first = NULL, *second = NULL;
    size_t n_first = 0, n_second = 0;
    struct moec_error why = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_tokenizer_model_encode(model, &first, &n_first, err));
    status = moec_tokenizer_json_read(json, n_bytes, subject, &again, &why);
    if (status == MOEC_ERR_MEMORY) {
        status = moec_fail(err, status, "%s", why.message);
        goto out;
    }
    if (status == MOEC_OK)
        MOEC_TRY_OUT(moec_tokenizer_model_encode(&again, &second, &n_second, err));
    if (status != MOEC_OK || n_first != n_second || memcmp(first, second, n_first) != 0)
        status = moec_fail(err, MOEC_ERR_UNSUPPORTED,
                           "the tokenizer of '%s' cannot be written as tokenizer.json: %s", subject,
                           why.status != MOEC_OK ? why.message
                                                 : "reading it back would give a different tokenizer");
out:
    moec_tokenizer_model_release(&again);
    free(first);
    free(second);
    return status;
}

enum moec_status moec_tokenizer_json_write(const struct moec_tokenizer_model *model, const char *subject,
                                           char **json, size_t *n_bytes, struct moec_error *err)
{
    char *text = NULL, *buffer = NULL;
    for (uint32_t i = 0; i < model->n_normalizer; i++)
        if (model->normalizer[i].kind == MOEC_STEP_SENTENCEPIECE)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "the tokenizer of '%s' was read from a SentencePiece .model, and a tokenizer.json cannot "
                "give the same ids",
                subject);
    struct moec_json_out *root = moec_json_out_object();
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&buffer, MOEC_TOKENIZER_MAX_TOKEN_BYTES + 1, 1, "a token", err));
    moec_json_out_string(root, "version", "1.0");
    moec_json_out_null(root, "truncation");
    moec_json_out_null(root, "padding");
    write_added(model, root);
    write_steps(model, root, "normalizer", "normalizers", model->normalizer, model->n_normalizer);
    write_steps(model, root, "pre_tokenizer", "pretokenizers", model->pretokenizer, model->n_pretokenizer);
    write_post_processor(model, root, buffer);
    write_steps(model, root, "decoder", "decoders", model->decoder, model->n_decoder);
    MOEC_TRY_OUT(write_model(model, subject, root, buffer, err));
    MOEC_TRY_OUT(moec_json_out_text(root, &text, err));
    MOEC_TRY_OUT(check_written(model, subject, text, strlen(text), err));
    *json = text;
    *n_bytes = strlen(text);
    text = NULL;
out:
    moec_json_out_free(root);
    free(buffer);
    free(text);
    return status;
}
