/* Metadata become one of two known files in memory: a tokenizer.json for BPE, a SentencePiece message for
 * `llama`. The readers of these formats do the rest, so that ids have one definition. How words are cut is
 * not in a GGUF file: `pre` selects it from a table, and a name that is not there is refused. */
#include "formats/tokenizer/gguf_tokenizer.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/base/printable.h"
#include "formats/base/utf8.h"
#include "formats/json/json_write.h"
#include "formats/tokenizer/sentencepiece.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "formats/tokenizer/word_patterns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type, which are SentencePiece's numbers. */
enum token_type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

#define MAX_SPLITS 5
#define MARK       "\xE2\x96\x81" /* SentencePiece's, for a space */

/* How text becomes words: what the tokenizer.json of the models behind a `pre` says. */
struct cut {
    const char *splits[MAX_SPLITS + 1]; /* patterns, each isolating its matches; ended by NULL */
    bool digits;                        /* every digit by itself, after the splits */
    bool gpt2;                          /* GPT-2's own pattern last (ByteLevel with use_regex) */
    bool nfc;
};

/* `but`: what takes letters away from both sets. */
#define CASED_LETTERS_BUT(but, end)                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" but "]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" but     \
    "]+" end "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}" but                                \
    "]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}" but "]*" end
#define CASED_WORDS(end) CASED_LETTERS_BUT("", end)
#define CASED_END        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Letters of alphabets with case, as DeepSeek's tokenizer.json lists them. */
#define CASED_LETTERS                                                                                        \
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ"                                      \
    "-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-"                    \
    "ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-"       \
    "Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-"   \
    "ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰"    \
    "-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"

static const struct cut gpt2 = {.gpt2 = true}, gpt2_nfc = {.gpt2 = true, .nfc = true},
                        digits = {.digits = true, .gpt2 = true},
                        digits_nfc = {.digits = true, .gpt2 = true, .nfc = true};
static const struct cut qwen2 = {.splits = {MOEC_WORDS_QWEN2}, .nfc = true};
static const struct cut qwen35 = {
    .splits = {MOEC_WORDS_CONTRACTIONS
               "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
               "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}};
static const struct cut llama3 = {
    .splits = {MOEC_WORDS_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" MOEC_WORDS_END}};
static const struct cut gpt4o = {
    .splits = {CASED_WORDS(MOEC_WORDS_CONTRACTIONS "?") "|\\p{N}{1,3}" CASED_END}};
static const struct cut tekken = {.splits = {CASED_WORDS("") "|\\p{N}" CASED_END}};
static const struct cut deepseek_llm = {.splits = {"[\r\n]", "\\s?[" CASED_LETTERS "]+",
                                                   "\\s?[!-/:-~！-／：-～‘-‟　-。]+", "\\s+$",
                                                   "[一-龥ࠀ-一가-퟿]+"},
                                        .digits = true};
static const struct cut deepseek_coder = {
    .splits = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[一-龥ࠀ-一가-퟿]+"}, .digits = true};
static const struct cut deepseek_v3 = {
    .splits = {
        "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}};

static const struct cut exaone_moe = {
    .splits = {
        MOEC_WORDS_CONTRACTIONS
        "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?"
        "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}};

static const struct cut kimi_k2 = {
    .splits = {"[\\p{Han}]+|" CASED_LETTERS_BUT("&&[^\\p{Han}]",
                                                MOEC_WORDS_CONTRACTIONS "?") "|\\p{N}{1,3}|" MOEC_WORDS_END}};

/* What each `pre` stands for; a word that is itself a token is not split, and a BOS is put before a text,
 * where llama.cpp assumes so for that name. */
static const struct pre {
    const char *name;
    const struct cut *cut;
    bool ignore_merges, add_bos;
} pres[] = {
    {"gpt-2", &gpt2, false, false},
    {"phi-2", &gpt2, false, false},
    {"mpt", &gpt2, false, false},
    {"olmo", &gpt2_nfc, false, false},
    {"starcoder", &digits, false, false},
    {"refact", &digits, false, false},
    {"smollm", &digits, false, false},
    {"codeshell", &digits, false, false},
    {"command-r", &digits_nfc, false, false},
    {"qwen2", &qwen2, false, false},
    {"deepseek-r1-qwen", &qwen2, false, false},
    {"megrez", &qwen2, false, false},
    {"hunyuan", &qwen2, false, false},
    {"qwen35", &qwen35, false, false},
    {"llama3", &llama3, true, true},
    {"llama-v3", &llama3, true, true},
    {"llama-bpe", &llama3, true, true},
    {"falcon3", &llama3, true, true},
    {"pixtral", &llama3, true, true},
    {"lfm2", &llama3, true, true},
    {"dbrx", &llama3, false, false},
    {"smaug-bpe", &llama3, false, false},
    {"chatglm-bpe", &llama3, false, false},
    {"glm4", &llama3, true, false},
    {"gpt-4o", &gpt4o, false, false},
    {"llama4", &gpt4o, false, false},
    {"minimax-m2", &gpt4o, false, false},
    {"tekken", &tekken, true, true},
    {"deepseek-llm", &deepseek_llm, false, false},
    {"deepseek-coder", &deepseek_coder, false, false},
    {"deepseek-v3", &deepseek_v3, false, false},
    {"exaone-moe", &exaone_moe, false, false},
    {"kimi-k2", &kimi_k2, false, false},
};
#define N_PRES (sizeof pres / sizeof *pres)

/* ---- metadata ---- */

/* What is read of the metadata. */
struct reader {
    const struct moec_gguf *gguf;
    const struct moec_gguf_value *tokens, *types, *scores, *merges;
    bool has_bos, has_eos;       /* put around a text */
    uint64_t bos_id, eos_id;     /* MOEC_TOKENIZER_NO_ID: none */
    bool add_prefix, trim_space; /* SentencePiece's */
    struct moec_error *err;
};

static enum moec_status read_bool(const struct reader *r, const char *key, bool fallback, bool *out)
{
    const struct moec_gguf_value *value = moec_gguf_find(r->gguf, key);
    *out = fallback;
    return value == NULL ? MOEC_OK : moec_gguf_as_bool(r->gguf, value, out, r->err);
}

static enum moec_status read_id(const struct reader *r, const char *key, uint64_t fallback, uint64_t *out)
{
    const struct moec_gguf_value *value = moec_gguf_find(r->gguf, key);
    *out = fallback;
    if (value == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_as_u64(r->gguf, value, out, r->err));
    if (*out >= r->tokens->n_items)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "'%s' in the GGUF file '%s' is %" PRIu64 ", expected an id below %" PRIu64, key,
                         r->gguf->file.path, *out, r->tokens->n_items);
    return MOEC_OK;
}

static enum moec_status read_tokens(struct reader *r)
{
    r->tokens = moec_gguf_find(r->gguf, "tokenizer.ggml.tokens");
    r->types = moec_gguf_find(r->gguf, "tokenizer.ggml.token_type");
    if (r->tokens == NULL)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' has a tokenizer without 'tokenizer.ggml.tokens'",
                         r->gguf->file.path);
    MOEC_TRY(moec_gguf_expect_array(r->gguf, r->tokens, MOEC_GGUF_STRING, r->tokens->n_items, r->err));
    if (r->tokens->n_items > MOEC_TOKENIZER_MAX_TOKENS)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the GGUF file '%s' has %" PRIu64 " tokens, more than the limit of %u",
                         r->gguf->file.path, r->tokens->n_items, MOEC_TOKENIZER_MAX_TOKENS);
    if (r->types != NULL)
        MOEC_TRY(moec_gguf_expect_array(r->gguf, r->types, MOEC_GGUF_I32, r->tokens->n_items, r->err));
    return MOEC_OK;
}

static enum token_type type_of(const struct reader *r, uint64_t id)
{
    return r->types == NULL ? NORMAL : (enum token_type)(int32_t)moec_gguf_number(r->types, id);
}

static enum moec_status check_text(const struct reader *r, uint64_t id, struct moec_gguf_text text)
{
    if (memchr(text.bytes, '\0', text.n_bytes) != NULL ||
        moec_utf8_valid_bytes(text.bytes, text.n_bytes) != text.n_bytes)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "token %" PRIu64 " in the GGUF file '%s' is not UTF-8 or has a NUL", id,
                         r->gguf->file.path);
    return MOEC_OK;
}

/* ---- gpt2 and gemma4: a tokenizer.json ---- */

static bool is_text(struct moec_gguf_text text, const char *other)
{
    return text.n_bytes == strlen(other) && memcmp(text.bytes, other, text.n_bytes) == 0;
}

static enum moec_status find_pre(const struct reader *r, const struct pre **found)
{
    const struct moec_gguf_value *value = moec_gguf_find(r->gguf, "tokenizer.ggml.pre");
    struct moec_gguf_text text = {0};
    char shown[64];
    if (value == NULL)
        return moec_fail(
            r->err, MOEC_ERR_UNSUPPORTED,
            "the GGUF file '%s' has no 'tokenizer.ggml.pre', which says how to split text into words: "
            "convert the model again with llama.cpp of May 2024 or later",
            r->gguf->file.path);
    MOEC_TRY(moec_gguf_as_text(r->gguf, value, &text, r->err));
    for (size_t i = 0; i < N_PRES; i++)
        if (is_text(text, pres[i].name)) {
            *found = &pres[i];
            return MOEC_OK;
        }
    (void)moec_printable(text.bytes, text.n_bytes, false, shown, sizeof shown);
    return moec_fail(
        r->err, MOEC_ERR_UNSUPPORTED,
        "the GGUF file '%s' has 'tokenizer.ggml.pre' '%s', a way to split text into words that moec does "
        "not know; start from the model's Hugging Face folder, whose tokenizer.json describes it",
        r->gguf->file.path, shown);
}

static struct moec_json_out *typed(const char *type)
{
    struct moec_json_out *node = moec_json_out_object();
    moec_json_out_string(node, "type", type);
    return node;
}

static struct moec_json_out *sequence(const char *members, struct moec_json_out *list)
{
    struct moec_json_out *node = typed("Sequence");
    moec_json_out_node(node, members, list);
    return node;
}

static struct moec_json_out *byte_level(bool use_regex)
{
    struct moec_json_out *node = typed("ByteLevel");
    moec_json_out_bool(node, "add_prefix_space", false);
    moec_json_out_bool(node, "use_regex", use_regex);
    return node;
}

static void put_cut(const struct cut *cut, struct moec_json_out *root)
{
    struct moec_json_out *steps = moec_json_out_array();
    if (cut->nfc)
        moec_json_out_node(root, "normalizer", typed("NFC"));
    for (size_t i = 0; cut->splits[i] != NULL; i++) {
        struct moec_json_out *split = typed("Split"), *pattern = moec_json_out_object();
        moec_json_out_string(pattern, "Regex", cut->splits[i]);
        moec_json_out_node(split, "pattern", pattern);
        moec_json_out_string(split, "behavior", "Isolated");
        moec_json_out_bool(split, "invert", false);
        moec_json_out_node(steps, NULL, split);
    }
    if (cut->digits) {
        struct moec_json_out *node = typed("Digits");
        moec_json_out_bool(node, "individual_digits", true);
        moec_json_out_node(steps, NULL, node);
    }
    moec_json_out_node(steps, NULL, byte_level(cut->gpt2));
    moec_json_out_node(root, "pre_tokenizer", sequence("pretokenizers", steps));
    moec_json_out_node(root, "decoder", byte_level(true));
}

static void put_added(struct moec_json_out *list, uint64_t id, struct moec_gguf_text text, bool is_special)
{
    static const char *const off[] = {"single_word", "lstrip", "rstrip", "normalized"};
    struct moec_json_out *added = moec_json_out_object();
    moec_json_out_u64(added, "id", id);
    moec_json_out_string_n(added, "content", text.bytes, text.n_bytes);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        moec_json_out_bool(added, off[i], false);
    moec_json_out_bool(added, "special", is_special);
    moec_json_out_node(list, NULL, added);
}

/* Every token with its id; control tokens and those of users are added tokens too. Unused ids are holes. */
static enum moec_status put_vocab(const struct reader *r, struct moec_json_out *model,
                                  struct moec_json_out *root)
{
    struct moec_json_out *vocab = moec_json_out_object(), *added = moec_json_out_array();
    enum moec_status status = MOEC_OK;
    uint64_t offset = 0;
    for (uint64_t id = 0; id < r->tokens->n_items && status == MOEC_OK; id++) {
        const struct moec_gguf_text text = moec_gguf_next_text(r->tokens, &offset);
        const enum token_type type = type_of(r, id);
        char key[MOEC_TOKENIZER_MAX_TOKEN_BYTES + 1];
        if (type == UNUSED || text.n_bytes == 0)
            continue;
        status = check_text(r, id, text);
        if (status == MOEC_OK && text.n_bytes > MOEC_TOKENIZER_MAX_TOKEN_BYTES)
            status = moec_fail(r->err, MOEC_ERR_LIMIT,
                               "token %" PRIu64 " in the GGUF file '%s' has %" PRIu64 " bytes, more than "
                               "the limit of %u",
                               id, r->gguf->file.path, text.n_bytes, MOEC_TOKENIZER_MAX_TOKEN_BYTES);
        if (status != MOEC_OK)
            break;
        memcpy(key, text.bytes, text.n_bytes);
        key[text.n_bytes] = '\0';
        moec_json_out_u64(vocab, key, id);
        if (type == CONTROL || type == USER_DEFINED)
            put_added(added, id, text, type == CONTROL);
    }
    moec_json_out_node(model, "vocab", vocab);
    moec_json_out_node(root, "added_tokens", added);
    return status;
}

static enum moec_status put_merges(const struct reader *r, struct moec_json_out *model)
{
    struct moec_json_out *list = moec_json_out_array();
    uint64_t offset = 0;
    for (uint64_t i = 0; i < r->merges->n_items; i++) {
        const struct moec_gguf_text text = moec_gguf_next_text(r->merges, &offset);
        moec_json_out_string_n(list, NULL, text.bytes, text.n_bytes);
    }
    moec_json_out_node(model, "merges", list);
    return MOEC_OK;
}

/* A template of BOS, text and EOS. */
static void put_affixes(const struct reader *r, struct moec_json_out *root)
{
    struct moec_json_out *single = moec_json_out_array(), *pieces = moec_json_out_object(),
                         *node = typed("TemplateProcessing");
    const struct {
        bool is_there;
        const char *name;
        uint64_t id;
    } affixes[] = {{r->has_bos, "bos", r->bos_id}, {true, NULL, 0}, {r->has_eos, "eos", r->eos_id}};
    for (size_t i = 0; i < 3; i++) {
        if (!affixes[i].is_there)
            continue;
        struct moec_json_out *item = moec_json_out_object(), *body = moec_json_out_object();
        moec_json_out_string(body, "id", affixes[i].name != NULL ? affixes[i].name : "A");
        moec_json_out_u64(body, "type_id", 0);
        moec_json_out_node(item, affixes[i].name != NULL ? "SpecialToken" : "Sequence", body);
        moec_json_out_node(single, NULL, item);
        if (affixes[i].name == NULL)
            continue;
        struct moec_json_out *piece = moec_json_out_object(), *ids = moec_json_out_array();
        moec_json_out_u64(ids, NULL, affixes[i].id);
        moec_json_out_node(piece, "ids", ids);
        moec_json_out_node(pieces, affixes[i].name, piece);
    }
    moec_json_out_node(node, "single", single);
    moec_json_out_node(node, "special_tokens", pieces);
    moec_json_out_node(root, "post_processor", node);
}

static struct moec_json_out *replacement(const char *from, const char *to)
{
    struct moec_json_out *node = typed("Replace"), *pattern = moec_json_out_object();
    moec_json_out_string(pattern, "String", from);
    moec_json_out_node(node, "pattern", pattern);
    moec_json_out_string(node, "content", to);
    return node;
}

/* Gemma's: characters, of which those that are no tokens are bytes; words are not cut, spaces are marks. */
static enum moec_status put_characters(const struct reader *r, struct moec_json_out *body,
                                       struct moec_json_out *root)
{
    uint64_t unknown = MOEC_TOKENIZER_NO_ID, offset = 0;
    MOEC_TRY(read_id(r, "tokenizer.ggml.unknown_token_id", MOEC_TOKENIZER_NO_ID, &unknown));
    struct moec_json_out *steps = moec_json_out_array();
    moec_json_out_node(root, "normalizer", replacement(" ", MARK));
    moec_json_out_node(steps, NULL, replacement(MARK, " "));
    moec_json_out_node(steps, NULL, typed("ByteFallback"));
    moec_json_out_node(steps, NULL, typed("Fuse"));
    moec_json_out_node(root, "decoder", sequence("decoders", steps));
    moec_json_out_bool(body, "byte_fallback", true);
    moec_json_out_bool(body, "fuse_unk", true);
    for (uint64_t id = 0; unknown != MOEC_TOKENIZER_NO_ID && id <= unknown; id++) {
        const struct moec_gguf_text text = moec_gguf_next_text(r->tokens, &offset);
        if (id == unknown) {
            MOEC_TRY(check_text(r, id, text));
            moec_json_out_string_n(body, "unk_token", text.bytes, text.n_bytes);
        }
    }
    return MOEC_OK;
}

/* `is_gemma`: over characters, as put_characters says; else over bytes, cut as 'tokenizer.ggml.pre' says. */
static enum moec_status read_bpe(struct reader *r, bool is_gemma, struct moec_tokenizer_model *model)
{
    const struct pre *pre = NULL;
    char *text = NULL;
    if (!is_gemma)
        MOEC_TRY(find_pre(r, &pre));
    r->merges = moec_gguf_find(r->gguf, "tokenizer.ggml.merges");
    if (r->merges == NULL)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' has a '%s' tokenizer without 'tokenizer.ggml.merges'",
                         r->gguf->file.path, is_gemma ? "gemma4" : "gpt2");
    MOEC_TRY(moec_gguf_expect_array(r->gguf, r->merges, MOEC_GGUF_STRING, r->merges->n_items, r->err));
    MOEC_TRY(read_bool(r, "tokenizer.ggml.add_bos_token", is_gemma || pre->add_bos, &r->has_bos));
    MOEC_TRY(read_bool(r, "tokenizer.ggml.add_eos_token", false, &r->has_eos));
    r->has_bos = r->has_bos && r->bos_id != MOEC_TOKENIZER_NO_ID;
    r->has_eos = r->has_eos && r->eos_id != MOEC_TOKENIZER_NO_ID;
    struct moec_json_out *root = moec_json_out_object(), *body = typed("BPE");
    enum moec_status status = MOEC_OK;
    if (is_gemma) {
        status = put_characters(r, body, root);
    } else {
        moec_json_out_bool(body, "ignore_merges", pre->ignore_merges);
        put_cut(pre->cut, root);
    }
    if (status == MOEC_OK)
        status = put_vocab(r, body, root);
    if (status == MOEC_OK)
        status = put_merges(r, body);
    moec_json_out_node(root, "model", body);
    if (r->has_bos || r->has_eos)
        put_affixes(r, root);
    if (status == MOEC_OK)
        status = moec_json_out_line(root, &text, r->err);
    moec_json_out_free(root);
    if (status == MOEC_OK)
        status = moec_tokenizer_json_read(text, strlen(text), r->gguf->file.path, model, r->err);
    free(text);
    return status;
}

/* ---- llama: SentencePiece's message ---- */

struct message {
    uint8_t *bytes;
    size_t n, capacity;
    struct moec_error *err;
    enum moec_status status; /* of the first failure */
};

static void put_bytes(struct message *m, const void *bytes, size_t n)
{
    if (m->status == MOEC_OK)
        m->status = moec_grow((void **)&m->bytes, &m->capacity, m->n + n, 1, "a tokenizer", m->err);
    if (m->status != MOEC_OK)
        return;
    memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

static void put_varint(struct message *m, uint64_t value)
{
    uint8_t bytes[10];
    size_t n = 0;
    for (; value > 127; value >>= 7)
        bytes[n++] = (uint8_t)(value | 128u);
    bytes[n++] = (uint8_t)value;
    put_bytes(m, bytes, n);
}

static void put_number(struct message *m, uint32_t field, uint64_t value)
{
    put_varint(m, (uint64_t)field << 3);
    put_varint(m, value);
}

static void put_part(struct message *m, uint32_t field, const void *bytes, size_t n)
{
    put_varint(m, (uint64_t)field << 3 | 2);
    put_varint(m, n);
    put_bytes(m, bytes, n);
}

/* The text of a piece. Of user-defined ones the converter has turned the marks into spaces. */
static void put_piece_text(struct message *piece, struct moec_gguf_text text, bool has_spaces)
{
    static const char mark[] = MARK;
    size_t n_spaces = 0;
    for (uint64_t i = 0; has_spaces && i < text.n_bytes; i++)
        n_spaces += text.bytes[i] == ' ';
    if (n_spaces == 0) {
        put_part(piece, 1, text.bytes, text.n_bytes);
        return;
    }
    put_varint(piece, 1 << 3 | 2);
    put_varint(piece, text.n_bytes + n_spaces * (sizeof mark - 2));
    for (uint64_t i = 0; i < text.n_bytes; i++)
        put_bytes(piece, text.bytes[i] == ' ' ? mark : text.bytes + i,
                  text.bytes[i] == ' ' ? sizeof mark - 1 : 1);
}

/* ModelProto.pieces; ids that are not used, and further unknown pieces, become control pieces, which no text
 * gives either. */
static enum moec_status put_pieces(const struct reader *r, struct message *model, bool *has_bytes)
{
    struct message piece = {.err = r->err};
    enum moec_status status = MOEC_OK;
    bool has_unknown = false;
    uint64_t offset = 0;
    for (uint64_t id = 0; id < r->tokens->n_items && status == MOEC_OK; id++) {
        const struct moec_gguf_text text = moec_gguf_next_text(r->tokens, &offset);
        const enum token_type type = type_of(r, id);
        uint8_t score[5] = {2 << 3 | 5};
        const float value = (float)moec_gguf_number(r->scores, id);
        moec_put_f32(score + 1, value);
        piece.n = 0;
        status = check_text(r, id, text);
        put_piece_text(&piece, text, type == USER_DEFINED);
        put_bytes(&piece, score, sizeof score);
        put_number(&piece, 3, type == UNUSED || (type == UNKNOWN && has_unknown) ? CONTROL : type);
        has_unknown |= type == UNKNOWN;
        put_part(model, 1, piece.bytes, piece.n);
        *has_bytes |= type == BYTE;
        if (status == MOEC_OK)
            status = piece.status;
    }
    free(piece.bytes);
    return status == MOEC_OK ? model->status : status;
}

/* Control pieces. Those of Phi take the white space behind them, which no file says, but for the first three
 * of its vocabulary (<unk>, <s>, </s>) and the end of a text. */
static enum moec_status list_controls(const struct reader *r, struct moec_tokenizer_added **controls,
                                      size_t *n)
{
    const struct moec_gguf_value *architecture = moec_gguf_find(r->gguf, "general.architecture");
    struct moec_gguf_text name = {0};
    uint64_t offset = 0;
    size_t capacity = 0;
    if (architecture != NULL)
        MOEC_TRY(moec_gguf_as_text(r->gguf, architecture, &name, r->err));
    for (uint64_t id = 0; id < r->tokens->n_items; id++) {
        const struct moec_gguf_text text = moec_gguf_next_text(r->tokens, &offset);
        const bool strips = is_text(name, "phimoe") && id > 2 && !is_text(text, "<|endoftext|>");
        if (type_of(r, id) != CONTROL || text.n_bytes == 0)
            continue;
        MOEC_TRY(moec_grow((void **)controls, &capacity, *n + 1, sizeof **controls, "pieces", r->err));
        (*controls)[(*n)++] = (struct moec_tokenizer_added){(uint32_t)id, strips ? MOEC_ADDED_RSTRIP : 0};
    }
    return MOEC_OK;
}

static enum moec_status read_llama(struct reader *r, struct moec_tokenizer_model *model)
{
    struct message message = {.err = r->err}, part = {.err = r->err};
    struct moec_sentencepiece_affixes affixes = {0};
    struct moec_tokenizer_added *controls = NULL;
    const struct moec_gguf_value *charsmap = moec_gguf_find(r->gguf, "tokenizer.ggml.precompiled_charsmap");
    bool has_bytes = false;
    r->scores = moec_gguf_find(r->gguf, "tokenizer.ggml.scores");
    if (r->scores == NULL || r->types == NULL)
        return moec_fail(r->err, MOEC_ERR_FORMAT, "the GGUF file '%s' has a 'llama' tokenizer without '%s'",
                         r->gguf->file.path,
                         r->scores == NULL ? "tokenizer.ggml.scores" : "tokenizer.ggml.token_type");
    MOEC_TRY(moec_gguf_expect_array(r->gguf, r->scores, MOEC_GGUF_F32, r->tokens->n_items, r->err));
    if (charsmap != NULL)
        MOEC_TRY(moec_gguf_expect_array(r->gguf, charsmap,
                                        charsmap->item_type == MOEC_GGUF_I8 ? MOEC_GGUF_I8 : MOEC_GGUF_U8,
                                        charsmap->n_items, r->err));
    MOEC_TRY(read_bool(r, "tokenizer.ggml.add_bos_token", true, &r->has_bos));
    MOEC_TRY(read_bool(r, "tokenizer.ggml.add_eos_token", false, &r->has_eos));
    MOEC_TRY(read_bool(r, "tokenizer.ggml.add_space_prefix", true, &r->add_prefix));
    MOEC_TRY(read_bool(r, "tokenizer.ggml.remove_extra_whitespaces", false, &r->trim_space));
    enum moec_status status = list_controls(r, &controls, &affixes.n_controls);
    if (status == MOEC_OK)
        status = put_pieces(r, &message, &has_bytes);
    affixes.bos = r->has_bos;
    affixes.eos = r->has_eos;
    affixes.controls = controls;
    put_number(&part, 3, 2); /* TrainerSpec.model_type: BPE */
    put_number(&part, 35, has_bytes);
    put_number(&part, 41, r->bos_id == MOEC_TOKENIZER_NO_ID ? 1 : r->bos_id);
    put_number(&part, 42, r->eos_id == MOEC_TOKENIZER_NO_ID ? 2 : r->eos_id);
    put_part(&message, 2, part.bytes, part.n);
    part.n = 0;
    if (charsmap != NULL)
        put_part(&part, 2, charsmap->bytes, charsmap->n_bytes);
    put_number(&part, 3, r->add_prefix); /* NormalizerSpec.add_dummy_prefix */
    put_number(&part, 4, r->trim_space);
    put_number(&part, 5, 1);
    put_part(&message, 3, part.bytes, part.n);
    if (status == MOEC_OK)
        status = part.status != MOEC_OK ? part.status : message.status;
    if (status == MOEC_OK)
        status =
            moec_sentencepiece_read(message.bytes, message.n, r->gguf->file.path, affixes, model, r->err);
    free(controls);
    free(message.bytes);
    free(part.bytes);
    return status;
}

enum moec_status moec_gguf_tokenizer_read(const struct moec_gguf *gguf, struct moec_tokenizer_model *model,
                                          bool *found, struct moec_error *err)
{
    struct reader r = {.gguf = gguf, .err = err};
    const struct moec_gguf_value *kind = moec_gguf_find(gguf, "tokenizer.ggml.model");
    struct moec_gguf_text name = {0};
    char shown[64];
    *model = (struct moec_tokenizer_model){0};
    *found = kind != NULL;
    if (kind == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_gguf_as_text(gguf, kind, &name, err));
    *found = !is_text(name, "none") && !is_text(name, "no_vocab");
    if (!*found)
        return MOEC_OK;
    const bool is_gpt2 = is_text(name, "gpt2"), is_gemma = is_text(name, "gemma4");
    if (!is_gpt2 && !is_gemma && !is_text(name, "llama")) {
        (void)moec_printable(name.bytes, name.n_bytes, false, shown, sizeof shown);
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the GGUF file '%s' has 'tokenizer.ggml.model' '%s', expected 'gpt2', 'gemma4' or 'llama'; "
            "start from the model's Hugging Face folder",
            gguf->file.path, shown);
    }
    MOEC_TRY(read_tokens(&r));
    MOEC_TRY(read_id(&r, "tokenizer.ggml.bos_token_id", MOEC_TOKENIZER_NO_ID, &r.bos_id));
    MOEC_TRY(read_id(&r, "tokenizer.ggml.eos_token_id", MOEC_TOKENIZER_NO_ID, &r.eos_id));
    return is_gpt2 || is_gemma ? read_bpe(&r, is_gemma, model) : read_llama(&r, model);
}
