/* The vocabulary's text is put into the new JSON as it stands, so it is parsed first and must be an object.
 * What stands around the model comes from the class that would read the folder; a class that is not in the
 * table is unknown. */
#include "formats/tokenizer/vocab_merges.h"

#include "formats/base/memory.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "formats/model/tokenizer_model.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "formats/tokenizer/word_patterns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END "<|endoftext|>"

/* ---- classes ---- */

static const struct moec_vocab_class classes[] = {
    {.name = "GPT2Tokenizer", .fast_name = "GPT2TokenizerFast", .special = {END, END, END}},
    {.name = "GPTNeoXTokenizer",
     .fast_name = "GPTNeoXTokenizerFast",
     .nfc = true,
     .special = {END, END, END, NULL, "<|padding|>"}},
    {.name = "Qwen2Tokenizer",
     .fast_name = "Qwen2TokenizerFast",
     .words = MOEC_WORDS_QWEN2,
     .nfc = true,
     .special = {NULL, END, END, NULL, END}},
};

const struct moec_vocab_class *moec_vocab_class_find(const char *tokenizer_class, const char *model_type)
{
    static const struct {
        const char *model_type, *class;
    } models[] = {
        {"qwen2_moe", "Qwen2Tokenizer"}, {"qwen3_moe", "Qwen2Tokenizer"}, {"olmoe", "GPTNeoXTokenizer"}};
    const char *name = tokenizer_class;
    for (size_t i = 0; i < sizeof models / sizeof *models && *tokenizer_class == '\0'; i++)
        name = strcmp(models[i].model_type, model_type) == 0 ? models[i].class : name;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].name, name) == 0 || strcmp(classes[i].fast_name, name) == 0)
            return &classes[i];
    return NULL;
}

/* ---- the file ---- */

static struct moec_json_out *typed(const char *type)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "type", type);
    return node;
}

static struct moec_json_out *byte_level(bool add_prefix_space, bool use_regex)
{
    struct moec_json_out *node = typed("ByteLevel");
    moec_json_out_bool(node, "add_prefix_space", add_prefix_space);
    moec_json_out_bool(node, "use_regex", use_regex);
    return node;
}

/* Lines of two tokens with a space between; "#version" is a comment. */
static enum moec_status put_merges(const struct moec_vocab_merges *files, struct moec_json_out *list,
                                   struct moec_error *err)
{
    size_t number = 0;
    for (size_t at = 0; at < files->merges.n_bytes; number++) {
        const char *line = files->merges.bytes + at, *end = memchr(line, '\n', files->merges.n_bytes - at);
        size_t n = end == NULL ? files->merges.n_bytes - at : (size_t)(end - line);
        at += n + 1;
        n -= n > 0 && line[n - 1] == '\r';
        if (n >= 8 && memcmp(line, "#version", 8) == 0)
            continue;
        const char *space = memchr(line, ' ', n);
        if (space == NULL || memchr(space + 1, ' ', n - (size_t)(space + 1 - line)) != NULL)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "line %zu of the file '%s' is not a merge, expected two tokens with a space "
                             "between",
                             number + 1, files->merges.path);
        moec_json_out_string_n(list, NULL, line, n);
    }
    return MOEC_OK;
}

/* A template of BOS, text and EOS. */
static struct moec_json_out *template(const struct moec_vocab_merges *files)
{
    const struct {
        const char *name;
        uint32_t id;
    } parts[] = {{"bos", files->bos_id}, {NULL, 0}, {"eos", files->eos_id}};
    struct moec_json_out *node = typed("TemplateProcessing"), *single = moec_json_out_array(),
                         *pieces = moec_json_out_object();
    for (size_t i = 0; i < 3; i++) {
        if (parts[i].id == MOEC_TOKENIZER_NO_ID)
            continue;
        struct moec_json_out *item = moec_json_out_object(), *body = moec_json_out_object();
        moec_json_out_string(body, "id", parts[i].name != NULL ? parts[i].name : "A");
        moec_json_out_u64(body, "type_id", 0);
        moec_json_out_node(item, parts[i].name != NULL ? "SpecialToken" : "Sequence", body);
        moec_json_out_node(single, NULL, item);
        if (parts[i].name == NULL)
            continue;
        struct moec_json_out *piece = moec_json_out_object(), *ids = moec_json_out_array();
        moec_json_out_u64(ids, NULL, parts[i].id);
        moec_json_out_node(piece, "ids", ids);
        moec_json_out_node(pieces, parts[i].name, piece);
    }
    moec_json_out_node(node, "single", single);
    moec_json_out_node(node, "special_tokens", pieces);
    return node;
}

static void put_steps(const struct moec_vocab_class *class, const struct moec_vocab_merges *files,
                      struct moec_json_out *root)
{
    struct moec_json_out *steps = moec_json_out_array(), *sequence = typed("Sequence");
    if (class->nfc)
        moec_json_out_node(root, "normalizer", typed("NFC"));
    if (class->words != NULL) {
        struct moec_json_out *split = typed("Split"), *pattern = moec_json_out_object();
        moec_json_out_string(pattern, "Regex", class->words);
        moec_json_out_node(split, "pattern", pattern);
        moec_json_out_string(split, "behavior", "Isolated");
        moec_json_out_bool(split, "invert", false);
        moec_json_out_node(steps, NULL, split);
    }
    moec_json_out_node(steps, NULL, byte_level(files->add_prefix_space, class->words == NULL));
    moec_json_out_node(sequence, "pretokenizers", steps);
    moec_json_out_node(root, "pre_tokenizer", sequence);
    moec_json_out_node(root, "decoder", byte_level(false, true));
    if (files->bos_id != MOEC_TOKENIZER_NO_ID || files->eos_id != MOEC_TOKENIZER_NO_ID)
        moec_json_out_node(root, "post_processor", template(files));
}

/* The vocabulary goes into the text as it stands, so it must be an object by itself. */
static enum moec_status check_vocab(const struct moec_vocab_merges *files, struct moec_error *err)
{
    struct moec_json *tree = NULL;
    MOEC_TRY(moec_json_parse(files->vocab.bytes, files->vocab.n_bytes, MOEC_TOKENIZER_JSON_MAX_BYTES,
                             files->vocab.path, &tree, err));
    enum moec_status status = MOEC_OK;
    if (moec_json_type(tree) != MOEC_JSON_OBJECT)
        status = moec_fail(err, MOEC_ERR_FORMAT, "'%s' holds %s, expected an object", files->vocab.path,
                           moec_json_type_name(tree));
    moec_json_free(tree);
    return status;
}

enum moec_status moec_vocab_merges_json(const struct moec_vocab_class *class,
                                        const struct moec_vocab_merges *files, char **json,
                                        struct moec_error *err)
{
    struct moec_json_out *merges = moec_json_out_array(), *root = moec_json_out_object();
    char *list = NULL, *steps = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(check_vocab(files, err));
    MOEC_TRY_OUT(put_merges(files, merges, err));
    put_steps(class, files, root);
    MOEC_TRY_OUT(moec_json_out_line(merges, &list, err));
    MOEC_TRY_OUT(moec_json_out_line(root, &steps, err));
    /* `steps` is an object: its members follow the model. */
    if (asprintf(json, "{\"model\":{\"type\":\"BPE\",\"vocab\":%.*s,\"merges\":%s},%s",
                 (int)files->vocab.n_bytes, files->vocab.bytes, list, strchr(steps, '{') + 1) < 0) {
        *json = NULL;
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the tokenizer of '%s'",
                           files->vocab.path);
    }
out:
    free(list);
    free(steps);
    moec_json_out_free(merges);
    moec_json_out_free(root);
    return status;
}
