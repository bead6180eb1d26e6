/* Ids of added tokens follow the library's rule: the vocabulary's id, else the vocabulary's count, else one
 * more than the largest added id. Merges are sorted by pair, and of a pair that is listed twice the later
 * rank counts. The result is encoded and decoded as a section, whose decoder is the one place that checks a
 * tokenizer. What moec would execute differently is refused with its path in the file. */
#include "formats/tokenizer/tokenizer_json.h"
#include "formats/tokenizer/tokenizer_json_internal.h"

#include "formats/base/base64.h"
#include "formats/base/memory.h"
#include "formats/base/utf8.h"
#include "formats/json/json.h"
#include "formats/tokenizer/unigram_vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- small helpers ---- */

struct moec_tokenizer_place moec_tokenizer_place_in(const struct moec_tokenizer_reader *r, const char *path)
{
    struct moec_tokenizer_place p;
    if (snprintf(p.text, sizeof p.text, "%s in '%s'", path, r->subject) >= (int)sizeof p.text)
        memcpy(p.text + sizeof p.text - 5, "...'", 5);
    return p;
}

enum moec_status moec_tokenizer_unsupported(const struct moec_tokenizer_reader *r, const char *path,
                                            const char *what, const char *expected)
{
    return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                     "%s in '%s' is '%s', which moec does not support; expected %s", path, r->subject, what,
                     expected);
}

static enum moec_status keep_string(struct moec_tokenizer_reader *r, const char *bytes, size_t n_bytes,
                                    const char *path, struct moec_tokenizer_string *out)
{
    if (n_bytes > MOEC_TOKENIZER_MAX_STRING)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "%s in '%s' has a string of %zu bytes, more than the limit of %u", path, r->subject,
                         n_bytes, MOEC_TOKENIZER_MAX_STRING);
    MOEC_TRY(moec_grow((void **)&r->strings, &r->strings_capacity, r->n_strings + n_bytes, 1,
                       "tokenizer strings", r->err));
    if (n_bytes > 0)
        memcpy(r->strings + r->n_strings, bytes, n_bytes);
    *out = (struct moec_tokenizer_string){(uint32_t)r->n_strings, (uint32_t)n_bytes};
    r->n_strings += n_bytes;
    return MOEC_OK;
}

static enum moec_status get_text(struct moec_tokenizer_reader *r, const struct moec_json *object,
                                 const char *path, const char *key, struct moec_tokenizer_string *out)
{
    const char *bytes = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(
        moec_json_get_string(object, moec_tokenizer_place_in(r, path).text, key, &bytes, &n_bytes, r->err));
    return keep_string(r, bytes, n_bytes, path, out);
}

static enum moec_status get_one_char(struct moec_tokenizer_reader *r, const struct moec_json *object,
                                     const char *path, const char *key, struct moec_tokenizer_string *out)
{
    const char *bytes = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(
        moec_json_get_string(object, moec_tokenizer_place_in(r, path).text, key, &bytes, &n_bytes, r->err));
    if (n_bytes == 0 || moec_utf8_read(bytes, n_bytes).n_bytes != n_bytes)
        return moec_fail(r->err, MOEC_ERR_FORMAT, "'%s' in %s in '%s' is '%.*s', expected one character", key,
                         path, r->subject, (int)(n_bytes < 64 ? n_bytes : 64), bytes);
    return keep_string(r, bytes, n_bytes, path, out);
}

static enum moec_status get_flag(struct moec_tokenizer_reader *r, const struct moec_json *object,
                                 const char *path, const char *key, bool fallback, uint32_t bit,
                                 uint32_t *flags)
{
    bool value = false;
    MOEC_TRY(
        moec_json_get_bool_or(object, moec_tokenizer_place_in(r, path).text, key, fallback, &value, r->err));
    if (value)
        *flags |= bit;
    return MOEC_OK;
}

/* "pattern": {"String": text} or {"Regex": text} */
static enum moec_status get_pattern(struct moec_tokenizer_reader *r, const struct moec_json *object,
                                    const char *path, struct moec_tokenizer_step *step)
{
    const struct moec_json *pattern = NULL;
    MOEC_TRY(moec_json_get(object, moec_tokenizer_place_in(r, path).text, "pattern", MOEC_JSON_OBJECT,
                           &pattern, r->err));
    char inner[PLACE_BYTES];
    (void)snprintf(inner, sizeof inner, "%.200s.pattern", path);
    bool is_regex = moec_json_find(pattern, "Regex") != NULL;
    MOEC_TRY(get_text(r, pattern, inner, is_regex ? "Regex" : "String", &step->pattern));
    if (step->pattern.length == 0)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "%s in '%s' is empty, expected a pattern to search for", inner, r->subject);
    if (is_regex)
        step->flags |= MOEC_STEP_REGEX;
    return MOEC_OK;
}

static enum moec_status get_behavior(struct moec_tokenizer_reader *r, const struct moec_json *object,
                                     const char *path, const char *fallback, struct moec_tokenizer_step *step)
{
    static const struct {
        const char *name;
        enum moec_split_behavior behavior;
    } behaviors[] = {
        {"Removed", MOEC_SPLIT_REMOVED},
        {"Isolated", MOEC_SPLIT_ISOLATED},
        {"MergedWithPrevious", MOEC_SPLIT_MERGED_WITH_PREVIOUS},
        {"MergedWithNext", MOEC_SPLIT_MERGED_WITH_NEXT},
        {"Contiguous", MOEC_SPLIT_CONTIGUOUS},
    };
    const char *name = fallback;
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    if (fallback != NULL)
        MOEC_TRY(moec_json_get_string_or(object, place.text, "behavior", fallback, &name, r->err));
    else
        MOEC_TRY(moec_json_get_string(object, place.text, "behavior", &name, NULL, r->err));
    for (size_t i = 0; i < sizeof behaviors / sizeof behaviors[0]; i++) {
        if (strcmp(name, behaviors[i].name) == 0) {
            step->mode = behaviors[i].behavior;
            return MOEC_OK;
        }
    }
    return moec_fail(r->err, MOEC_ERR_FORMAT,
                     "'behavior' in %s is '%s', expected Removed, Isolated, "
                     "MergedWithPrevious, MergedWithNext or Contiguous",
                     place.text, name);
}

static enum moec_status add_step(struct moec_tokenizer_reader *r, struct moec_tokenizer_step_list *list,
                                 const struct moec_tokenizer_step *step)
{
    if (list->count == MOEC_TOKENIZER_MAX_STEPS)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "'%s' in '%s' has more than %u steps", list->name,
                         r->subject, MOEC_TOKENIZER_MAX_STEPS);
    list->items[list->count++] = *step;
    return MOEC_OK;
}

/* ---- steps ---- */

typedef enum moec_status step_reader(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                     const char *type, const char *path);

/* Calls `read` for `node`, or for each member when it is a Sequence, at any depth (JSON nesting is bounded).
 */
static enum moec_status read_steps(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                   const char *path, const char *sequence, step_reader *read)
{
    const char *type = NULL;
    MOEC_TRY(moec_json_get_string(node, moec_tokenizer_place_in(r, path).text, "type", &type, NULL, r->err));
    if (strcmp(type, "Sequence") != 0)
        return read(r, node, type, path);
    const struct moec_json *members = NULL;
    MOEC_TRY(moec_json_get(node, moec_tokenizer_place_in(r, path).text, sequence, MOEC_JSON_ARRAY, &members,
                           r->err));
    for (size_t i = 0; i < moec_json_length(members); i++) {
        char inner[PLACE_BYTES];
        (void)snprintf(inner, sizeof inner, "%.200s.%s[%zu]", path, sequence, i);
        MOEC_TRY(read_steps(r, moec_json_at(members, i), inner, sequence, read));
    }
    return MOEC_OK;
}

static enum moec_status read_section(struct moec_tokenizer_reader *r, const char *key, const char *sequence,
                                     step_reader *read)
{
    const struct moec_json *node = moec_json_find(r->root, key);
    if (node == NULL || moec_json_type(node) == MOEC_JSON_NULL)
        return MOEC_OK;
    return read_steps(r, node, key, sequence, read);
}

static enum moec_status read_charsmap(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                      const char *path)
{
    const char *text = NULL;
    size_t n = 0;
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    if (r->charsmap != NULL)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "%s is a second 'Precompiled' step, expected at most one", place.text);
    MOEC_TRY(moec_json_get_string(node, place.text, "precompiled_charsmap", &text, &n, r->err));
    return moec_base64_decode(text, n, place.text, &r->charsmap, &r->n_charsmap, r->err);
}

static enum moec_status read_normalizer(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                        const char *type, const char *path)
{
    static const struct {
        const char *name;
        enum moec_tokenizer_step_kind kind;
    } kinds[] = {
        {"NFC", MOEC_STEP_NFC},
        {"NFD", MOEC_STEP_NFD},
        {"NFKC", MOEC_STEP_NFKC},
        {"NFKD", MOEC_STEP_NFKD},
        {"Prepend", MOEC_STEP_PREPEND},
        {"Lowercase", MOEC_STEP_LOWERCASE},
        {"Strip", MOEC_STEP_STRIP},
        {"Replace", MOEC_STEP_REPLACE},
        {"Precompiled", MOEC_STEP_PRECOMPILED},
        {"ByteLevel", MOEC_STEP_BYTE_LEVEL},
    };
    struct moec_tokenizer_step step = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].name) == 0)
            step.kind = kinds[i].kind;
    }
    switch (step.kind) {
    case MOEC_STEP_PREPEND:
        MOEC_TRY(get_text(r, node, path, "prepend", &step.content));
        break;
    case MOEC_STEP_STRIP:
        MOEC_TRY(get_flag(r, node, path, "strip_left", false, MOEC_STEP_LEFT, &step.flags));
        MOEC_TRY(get_flag(r, node, path, "strip_right", false, MOEC_STEP_RIGHT, &step.flags));
        break;
    case MOEC_STEP_REPLACE:
        MOEC_TRY(get_pattern(r, node, path, &step));
        MOEC_TRY(get_text(r, node, path, "content", &step.content));
        break;
    case MOEC_STEP_PRECOMPILED:
        MOEC_TRY(read_charsmap(r, node, path));
        break;
    case 0:
        return moec_tokenizer_unsupported(
            r, path, type,
            "NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, Precompiled, ByteLevel or Sequence");
    default:
        break;
    }
    return add_step(r, &r->normalizer, &step);
}

/* tokenizers 0.15 turned add_prefix_space into prepend_scheme; files of both kinds exist. */
static enum moec_status read_metaspace(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                       const char *path, struct moec_tokenizer_step *step)
{
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    const char *scheme = NULL;
    bool prefix = true;
    step->kind = MOEC_STEP_METASPACE;
    MOEC_TRY(get_one_char(r, node, path, "replacement", &step->content));
    MOEC_TRY(moec_json_get_bool_or(node, place.text, "add_prefix_space", true, &prefix, r->err));
    MOEC_TRY(moec_json_get_string_or(node, place.text, "prepend_scheme", prefix ? "always" : "never", &scheme,
                                     r->err));
    MOEC_TRY(get_flag(r, node, path, "split", true, MOEC_STEP_CUT, &step->flags));
    if (strcmp(scheme, "always") == 0)
        step->mode = MOEC_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        step->mode = MOEC_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        step->mode = MOEC_PREPEND_NEVER;
    else
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "'prepend_scheme' in %s is '%s', expected 'always', 'first' or 'never'", place.text,
                         scheme);
    if (!prefix && step->mode != MOEC_PREPEND_NEVER)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "'prepend_scheme' in %s is '%s' while 'add_prefix_space' is false, expected 'never'",
                         place.text, scheme);
    return MOEC_OK;
}

static enum moec_status read_byte_level(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                        const char *path, struct moec_tokenizer_step *step)
{
    step->kind = MOEC_STEP_BYTE_LEVEL;
    MOEC_TRY(get_flag(r, node, path, "add_prefix_space", true, MOEC_STEP_PREFIX_SPACE, &step->flags));
    MOEC_TRY(get_flag(r, node, path, "use_regex", true, MOEC_STEP_USE_REGEX, &step->flags));
    const bool has_prefix = (step->flags & MOEC_STEP_PREFIX_SPACE) != 0;
    if (r->declared->sets_prefix_space && r->declared->prefix_space != has_prefix) {
        step->flags ^= MOEC_STEP_PREFIX_SPACE;
        r->is_changed = true;
    }
    return MOEC_OK;
}

static enum moec_status read_pretokenizer(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                          const char *type, const char *path)
{
    struct moec_tokenizer_step step = {0};
    if (strcmp(type, "ByteLevel") == 0) {
        MOEC_TRY(read_byte_level(r, node, path, &step));
    } else if (strcmp(type, "Split") == 0) {
        step.kind = MOEC_STEP_SPLIT;
        MOEC_TRY(get_pattern(r, node, path, &step));
        MOEC_TRY(get_behavior(r, node, path, NULL, &step));
        MOEC_TRY(get_flag(r, node, path, "invert", false, MOEC_STEP_INVERT, &step.flags));
    } else if (strcmp(type, "Metaspace") == 0) {
        MOEC_TRY(read_metaspace(r, node, path, &step));
    } else if (strcmp(type, "Digits") == 0) {
        uint32_t individual = 0;
        MOEC_TRY(get_flag(r, node, path, "individual_digits", false, 1, &individual));
        step.kind = MOEC_STEP_DIGITS;
        step.mode = individual ? MOEC_SPLIT_ISOLATED : MOEC_SPLIT_CONTIGUOUS;
    } else if (strcmp(type, "Punctuation") == 0) {
        step.kind = MOEC_STEP_PUNCTUATION;
        MOEC_TRY(get_behavior(r, node, path, "Isolated", &step));
    } else if (strcmp(type, "Whitespace") == 0) {
        step.kind = MOEC_STEP_WHITESPACE;
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        step.kind = MOEC_STEP_WHITESPACE_SPLIT;
    } else {
        return moec_tokenizer_unsupported(
            r, path, type,
            "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit or Sequence");
    }
    return add_step(r, &r->pretokenizer, &step);
}

static enum moec_status read_decoder(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                     const char *type, const char *path)
{
    struct moec_tokenizer_step step = {0};
    if (strcmp(type, "ByteLevel") == 0) {
        step.kind = MOEC_STEP_BYTE_LEVEL;
    } else if (strcmp(type, "ByteFallback") == 0) {
        step.kind = MOEC_STEP_BYTE_FALLBACK;
    } else if (strcmp(type, "Fuse") == 0) {
        step.kind = MOEC_STEP_FUSE;
    } else if (strcmp(type, "Replace") == 0) {
        step.kind = MOEC_STEP_REPLACE;
        MOEC_TRY(get_pattern(r, node, path, &step));
        MOEC_TRY(get_text(r, node, path, "content", &step.content));
    } else if (strcmp(type, "Strip") == 0) {
        uint64_t start = 0;
        uint64_t stop = 0;
        struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
        step.kind = MOEC_STEP_STRIP_CHAR;
        MOEC_TRY(get_one_char(r, node, path, "content", &step.content));
        MOEC_TRY(moec_json_get_u64(node, place.text, "start", 0, UINT32_MAX, &start, r->err));
        MOEC_TRY(moec_json_get_u64(node, place.text, "stop", 0, UINT32_MAX, &stop, r->err));
        step.start = (uint32_t)start;
        step.stop = (uint32_t)stop;
    } else if (strcmp(type, "Metaspace") == 0) {
        MOEC_TRY(read_metaspace(r, node, path, &step));
    } else {
        return moec_tokenizer_unsupported(
            r, path, type, "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
    }
    return add_step(r, &r->decoder, &step);
}

/* ---- vocabulary ---- */

static enum moec_status grow_tokens(struct moec_tokenizer_reader *r, size_t needed)
{
    if (needed <= r->n_tokens)
        return MOEC_OK;
    MOEC_TRY(moec_grow((void **)&r->tokens, &r->tokens_capacity, needed, sizeof *r->tokens, "a vocabulary",
                       r->err));
    memset(r->tokens + r->n_tokens, 0, (needed - r->n_tokens) * sizeof *r->tokens);
    r->n_tokens = needed;
    return MOEC_OK;
}

static int shown(size_t n_bytes)
{
    return (int)(n_bytes < 64 ? n_bytes : 64);
}

static enum moec_status set_token(struct moec_tokenizer_reader *r, uint32_t id, const char *bytes,
                                  size_t n_bytes)
{
    if (n_bytes > MOEC_TOKENIZER_MAX_TOKEN_BYTES)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "token '%.*s...' in the tokenizer '%s' has %zu bytes, more than the limit of %u",
                         shown(n_bytes), bytes, r->subject, n_bytes, MOEC_TOKENIZER_MAX_TOKEN_BYTES);
    MOEC_TRY(grow_tokens(r, (size_t)id + 1));
    if (r->tokens[id].bytes != NULL)
        return moec_fail(
            r->err, MOEC_ERR_FORMAT, "tokens '%.*s' and '%.*s' in the tokenizer '%s' both have id %" PRIu32,
            shown(r->tokens[id].n_bytes), r->tokens[id].bytes, shown(n_bytes), bytes, r->subject, id);
    r->tokens[id] = (struct moec_tokenizer_text_ref){bytes, n_bytes};
    return MOEC_OK;
}

static enum moec_status read_vocab(struct moec_tokenizer_reader *r, const struct moec_json *model)
{
    char place[PLACE_BYTES];
    (void)snprintf(place, sizeof place, "%s", moec_tokenizer_place_in(r, "model").text);
    MOEC_TRY(moec_json_get(model, place, "vocab", MOEC_JSON_OBJECT, &r->vocab, r->err));
    for (struct moec_json_member m = moec_json_first(r->vocab); m.key != NULL;
         m = moec_json_next(r->vocab, m)) {
        char what[PLACE_BYTES];
        (void)snprintf(what, sizeof what, "the id of token '%.64s' in '%.128s'", m.key, r->subject);
        uint64_t id = 0;
        MOEC_TRY(moec_json_as_u64(m.value, what, 0, MOEC_TOKENIZER_MAX_TOKENS - 1, &id, r->err));
        MOEC_TRY(set_token(r, (uint32_t)id, m.key, m.key_length));
        r->n_vocab++;
    }
    return MOEC_OK;
}

/* Id of a text in the vocabulary of the model, or MOEC_TOKENIZER_NO_ID. Keys hold no NUL, so a text with one
 * is no key. */
static uint32_t vocab_id(const struct moec_tokenizer_reader *r, const char *bytes, size_t n_bytes)
{
    uint64_t id = MOEC_TOKENIZER_NO_ID;
    if ((r->flags & MOEC_TOKENIZER_UNIGRAM) != 0)
        return moec_unigram_vocab_find(&r->unigram, bytes, n_bytes);
    if (strlen(bytes) != n_bytes)
        return MOEC_TOKENIZER_NO_ID;
    const struct moec_json *node = moec_json_find(r->vocab, bytes);
    if (node == NULL || moec_json_as_u64(node, "", 0, UINT32_MAX, &id, NULL) != MOEC_OK)
        return MOEC_TOKENIZER_NO_ID;
    return (uint32_t)id;
}

/* ---- merges ---- */

static enum moec_status merge_member(const struct moec_tokenizer_reader *r, const char *text, size_t n_bytes,
                                     size_t index, uint32_t *id)
{
    *id = vocab_id(r, text, n_bytes);
    if (*id == MOEC_TOKENIZER_NO_ID)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "model.merges[%zu] in the tokenizer '%s' needs the token '%.*s', which "
                         "model.vocab does not have",
                         index, r->subject, shown(n_bytes), text);
    return MOEC_OK;
}

/* One of the two tokens that a merge joins. */
struct part {
    const char *bytes;
    size_t n;
};

/* Looks up left, right and left + right. */
static enum moec_status add_merge(struct moec_tokenizer_reader *r, size_t index, uint32_t rank,
                                  struct part left, struct part right)
{
    struct moec_tokenizer_merge_item item = {.rank = rank};
    char joined[2 * MOEC_TOKENIZER_MAX_STRING + 1];
    if (left.n > MOEC_TOKENIZER_MAX_STRING || right.n > MOEC_TOKENIZER_MAX_STRING)
        return moec_fail(
            r->err, MOEC_ERR_LIMIT,
            "model.merges[%zu] in the tokenizer '%s' joins tokens of %zu and %zu bytes, expected at most "
            "%u bytes each",
            index, r->subject, left.n, right.n, MOEC_TOKENIZER_MAX_STRING);
    memcpy(joined, left.bytes, left.n);
    joined[left.n] = '\0';
    MOEC_TRY(merge_member(r, joined, left.n, index, &item.left));
    MOEC_TRY(merge_member(r, right.bytes, right.n, index, &item.right));
    memcpy(joined + left.n, right.bytes, right.n);
    joined[left.n + right.n] = '\0';
    MOEC_TRY(merge_member(r, joined, left.n + right.n, index, &item.merged));
    MOEC_TRY(moec_grow((void **)&r->merges, &r->merges_capacity, r->n_merges + 1, sizeof *r->merges, "merges",
                       r->err));
    r->merges[r->n_merges++] = item;
    return MOEC_OK;
}

/* "a b": the line of a merges.txt. */
static enum moec_status read_merge_line(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                        size_t index, uint32_t *rank)
{
    const char *line = NULL;
    size_t n_bytes = 0;
    char what[PLACE_BYTES];
    (void)snprintf(what, sizeof what, "model.merges[%zu] in '%.128s'", index, r->subject);
    MOEC_TRY(moec_json_as_string(node, what, &line, &n_bytes, r->err));
    if (strncmp(line, "#version", 8) == 0)
        return MOEC_OK;
    const char *space = memchr(line, ' ', n_bytes);
    if (space == NULL || memchr(space + 1, ' ', n_bytes - (size_t)(space + 1 - line)) != NULL)
        return moec_fail(r->err, MOEC_ERR_FORMAT, "%s is '%.*s', expected two tokens with one space between",
                         what, shown(n_bytes), line);
    size_t n_left = (size_t)(space - line);
    return add_merge(r, index, (*rank)++, (struct part){line, n_left},
                     (struct part){space + 1, n_bytes - n_left - 1});
}

/* ["a", "b"] */
static enum moec_status read_merge_pair(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                        size_t index, uint32_t *rank)
{
    char what[PLACE_BYTES];
    (void)snprintf(what, sizeof what, "model.merges[%zu] in '%.128s'", index, r->subject);
    if (moec_json_type(node) != MOEC_JSON_ARRAY || moec_json_length(node) != 2)
        return moec_fail(r->err, MOEC_ERR_FORMAT, "%s is %s (%zu items), expected an array of two tokens",
                         what, moec_json_type_name(node), moec_json_length(node));
    const char *left = NULL;
    const char *right = NULL;
    size_t n_left = 0;
    size_t n_right = 0;
    MOEC_TRY(moec_json_as_string(moec_json_at(node, 0), what, &left, &n_left, r->err));
    MOEC_TRY(moec_json_as_string(moec_json_at(node, 1), what, &right, &n_right, r->err));
    return add_merge(r, index, (*rank)++, (struct part){left, n_left}, (struct part){right, n_right});
}

/* A pair listed twice counts with its later rank, as in the library's map. */
static int compare_merges(const void *a, const void *b)
{
    const struct moec_tokenizer_merge_item *x = a;
    const struct moec_tokenizer_merge_item *y = b;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    if (x->right != y->right)
        return x->right < y->right ? -1 : 1;
    return x->rank > y->rank ? -1 : x->rank < y->rank;
}

static enum moec_status read_merges(struct moec_tokenizer_reader *r, const struct moec_json *model)
{
    const struct moec_json *merges = NULL;
    char place[PLACE_BYTES];
    (void)snprintf(place, sizeof place, "%s", moec_tokenizer_place_in(r, "model").text);
    MOEC_TRY(moec_json_get(model, place, "merges", MOEC_JSON_ARRAY, &merges, r->err));
    size_t count = moec_json_length(merges);
    if (count > MOEC_TOKENIZER_MAX_MERGES)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the tokenizer '%s' has %zu merges, more than the limit of %u", r->subject, count,
                         MOEC_TOKENIZER_MAX_MERGES);
    bool lines = count > 0 && moec_json_type(moec_json_at(merges, 0)) == MOEC_JSON_STRING;
    uint32_t rank = 0;
    for (size_t i = 0; i < count; i++) {
        const struct moec_json *node = moec_json_at(merges, i);
        MOEC_TRY(lines ? read_merge_line(r, node, i, &rank) : read_merge_pair(r, node, i, &rank));
    }
    if (r->n_merges == 0)
        return MOEC_OK;
    qsort(r->merges, r->n_merges, sizeof *r->merges, compare_merges);
    size_t kept = 1;
    for (size_t i = 1; i < r->n_merges; i++) {
        if (r->merges[i].left != r->merges[kept - 1].left || r->merges[i].right != r->merges[kept - 1].right)
            r->merges[kept++] = r->merges[i];
    }
    r->n_merges = kept;
    return MOEC_OK;
}

/* ---- model ---- */

static enum moec_status read_unigram(struct moec_tokenizer_reader *r, const struct moec_json *model)
{
    r->flags = MOEC_TOKENIZER_UNIGRAM;
    MOEC_TRY(get_flag(r, model, "model", "byte_fallback", false, MOEC_TOKENIZER_BYTE_FALLBACK, &r->flags));
    MOEC_TRY(moec_unigram_vocab_read(model, r->subject, &r->unigram, r->err));
    for (uint32_t id = 0; id < r->unigram.n; id++)
        MOEC_TRY(set_token(r, id, r->unigram.pieces[id].bytes, r->unigram.pieces[id].n_bytes));
    r->n_vocab = r->unigram.n;
    r->unk_id = r->unigram.unk_id;
    return MOEC_OK;
}

static enum moec_status read_model(struct moec_tokenizer_reader *r)
{
    const struct moec_json *model = NULL;
    char file[PLACE_BYTES];
    (void)snprintf(file, sizeof file, "'%.200s'", r->subject);
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, "model");
    MOEC_TRY(moec_json_get(r->root, file, "model", MOEC_JSON_OBJECT, &model, r->err));
    const char *type = NULL;
    MOEC_TRY(moec_json_get_string_or(model, place.text, "type", "BPE", &type, r->err));
    if (strcmp(type, "Unigram") == 0)
        return read_unigram(r, model);
    if (strcmp(type, "BPE") != 0)
        return moec_tokenizer_unsupported(r, "model.type", type, "BPE or Unigram");
    double dropout = 0;
    MOEC_TRY(moec_json_get_double_or(model, place.text, "dropout", 0, 1, 0, &dropout, r->err));
    if (dropout != 0)
        return moec_fail(r->err, MOEC_ERR_UNSUPPORTED,
                         "model.dropout in the tokenizer '%s' is %g, which makes ids random; expected "
                         "null or 0",
                         r->subject, dropout);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        const char *affix = NULL;
        MOEC_TRY(moec_json_get_string_or(model, place.text, affixes[i], "", &affix, r->err));
        char path[64];
        (void)snprintf(path, sizeof path, "model.%s", affixes[i]);
        if (affix[0] != '\0')
            return moec_tokenizer_unsupported(r, path, affix, "null or an empty string");
    }
    MOEC_TRY(get_flag(r, model, "model", "fuse_unk", false, MOEC_TOKENIZER_FUSE_UNK, &r->flags));
    MOEC_TRY(get_flag(r, model, "model", "byte_fallback", false, MOEC_TOKENIZER_BYTE_FALLBACK, &r->flags));
    MOEC_TRY(get_flag(r, model, "model", "ignore_merges", false, MOEC_TOKENIZER_IGNORE_MERGES, &r->flags));
    MOEC_TRY(read_vocab(r, model));
    MOEC_TRY(read_merges(r, model));

    const char *unk = NULL;
    MOEC_TRY(moec_json_get_string_or(model, place.text, "unk_token", NULL, &unk, r->err));
    r->unk_id = MOEC_TOKENIZER_NO_ID;
    if (unk != NULL) {
        r->unk_id = vocab_id(r, unk, strlen(unk));
        if (r->unk_id == MOEC_TOKENIZER_NO_ID)
            r->unk_id = MOEC_TOKENIZER_ID_MISSING;
    }
    return MOEC_OK;
}

/* ---- added tokens ---- */

/* The added token of a text; NULL if there is none. */
static struct moec_tokenizer_added *find_added(const struct moec_tokenizer_reader *r, const char *bytes,
                                               size_t n_bytes)
{
    for (size_t i = 0; i < r->n_added; i++) {
        const struct moec_tokenizer_text_ref *text = &r->tokens[r->added[i].id];
        if (text->n_bytes == n_bytes && memcmp(text->bytes, bytes, n_bytes) == 0)
            return &r->added[i];
    }
    return NULL;
}

/* The id that the library gives to a text that it adds: the vocabulary's, or else the one past the
 * vocabulary's count, or past the largest added id if that is further on. */
static uint32_t added_id(const struct moec_tokenizer_reader *r, const char *text, size_t n_bytes,
                         bool *in_model)
{
    const uint32_t id = vocab_id(r, text, n_bytes);
    *in_model = id != MOEC_TOKENIZER_NO_ID;
    if (*in_model)
        return id;
    return r->n_added > 0 && r->largest_added >= r->n_vocab ? r->largest_added + 1 : (uint32_t)r->n_vocab;
}

static enum moec_status add_token(struct moec_tokenizer_reader *r, const char *text, size_t n_bytes,
                                  uint32_t flags, const char *place)
{
    bool in_model = false;
    const uint32_t id = added_id(r, text, n_bytes, &in_model);
    if (id >= MOEC_TOKENIZER_MAX_TOKENS)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "%s would get id %" PRIu32 ", expected ids below %" PRIu32,
                         place, id, MOEC_TOKENIZER_MAX_TOKENS);
    if (!in_model)
        MOEC_TRY(set_token(r, id, text, n_bytes));
    if (r->n_added == 0 || id > r->largest_added)
        r->largest_added = id;
    MOEC_TRY(moec_grow((void **)&r->added, &r->added_capacity, r->n_added + 1, sizeof *r->added,
                       "added tokens", r->err));
    r->added[r->n_added++] = (struct moec_tokenizer_added){id, flags | (in_model ? MOEC_ADDED_IN_MODEL : 0)};
    return MOEC_OK;
}

/* Adds what the folder declares beside the file. A token without a row in the embedding can neither be read
 * nor written, so it is left out. */
static enum moec_status add_declared(struct moec_tokenizer_reader *r, uint64_t vocab_size)
{
    const struct moec_declared_tokens *declared = r->declared;
    const size_t n_file = r->n_added;
    for (size_t i = 0; i < declared->n; i++) {
        const struct moec_declared_token *token = &declared->items[i];
        struct moec_tokenizer_added *known = find_added(r, token->bytes, token->n_bytes);
        bool in_model = false, is_taken = false;
        for (size_t k = 0; token->yields && k < n_file; k++)
            is_taken |= r->added[k].id == token->order;
        if (token->n_bytes == 0 || is_taken)
            continue;
        if (known != NULL) {
            const uint32_t flags = token->flags | (known->flags & MOEC_ADDED_IN_MODEL);
            r->is_changed |= token->replaces && known->flags != flags;
            known->flags = token->replaces ? flags : known->flags;
        } else if (added_id(r, token->bytes, token->n_bytes, &in_model) < vocab_size) {
            MOEC_TRY(add_token(r, token->bytes, token->n_bytes, token->flags, "a declared token"));
            r->is_changed = true;
        }
    }
    return MOEC_OK;
}

static enum moec_status read_added_token(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                         size_t index)
{
    static const struct {
        const char *key;
        uint32_t bit;
    } bits[] = {
        {"special", MOEC_ADDED_SPECIAL},       {"single_word", MOEC_ADDED_SINGLE_WORD},
        {"lstrip", MOEC_ADDED_LSTRIP},         {"rstrip", MOEC_ADDED_RSTRIP},
        {"normalized", MOEC_ADDED_NORMALIZED},
    };
    char path[64];
    (void)snprintf(path, sizeof path, "added_tokens[%zu]", index);
    struct moec_tokenizer_place place = moec_tokenizer_place_in(r, path);
    const char *text = NULL;
    size_t n_bytes = 0;
    struct moec_tokenizer_added added = {0};
    MOEC_TRY(moec_json_get_string(node, place.text, "content", &text, &n_bytes, r->err));
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        bool set = false;
        MOEC_TRY(moec_json_get_bool(node, place.text, bits[i].key, &set, r->err));
        added.flags |= set ? bits[i].bit : 0;
    }
    if (n_bytes == 0)
        return MOEC_OK;
    if (find_added(r, text, n_bytes) != NULL)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "'content' in %s is '%.*s', which an earlier added token already has", place.text,
                         shown(n_bytes), text);
    return add_token(r, text, n_bytes, added.flags, place.text);
}

static enum moec_status read_added_tokens(struct moec_tokenizer_reader *r)
{
    const struct moec_json *list = moec_json_find(r->root, "added_tokens");
    if (list == NULL || moec_json_type(list) == MOEC_JSON_NULL)
        return MOEC_OK;
    if (moec_json_type(list) != MOEC_JSON_ARRAY)
        return moec_fail(r->err, MOEC_ERR_FORMAT,
                         "'added_tokens' in the tokenizer '%s' is %s, expected an array", r->subject,
                         moec_json_type_name(list));
    if (moec_json_length(list) > MOEC_TOKENIZER_MAX_ADDED)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the tokenizer '%s' has %zu added tokens, more than the limit of %u", r->subject,
                         moec_json_length(list), MOEC_TOKENIZER_MAX_ADDED);
    for (size_t i = 0; i < moec_json_length(list); i++)
        MOEC_TRY(read_added_token(r, moec_json_at(list, i), i));
    return MOEC_OK;
}

/* ---- assembly ---- */

static void shift_strings(struct moec_tokenizer_step_list *list, uint32_t by)
{
    for (uint32_t i = 0; i < list->count; i++) {
        list->items[i].pattern.offset += by;
        list->items[i].content.offset += by;
    }
}

/* Tokens, merges and texts one after the other, as the binary form has them. */
struct flat {
    uint32_t *token_start, *merge_start; /* (n_tokens + 1), owned as all of these */
    struct moec_tokenizer_merge *merges; /* (n_merges) */
    uint32_t *scores;                    /* (n_tokens, 2) */
    char *text;                          /* (text_bytes): tokens, then strings of steps */
    uint32_t n_merges, text_bytes;
};

static enum moec_status allocate_flat(const struct moec_tokenizer_reader *r, struct flat *flat)
{
    uint64_t text_bytes = 0;
    for (size_t id = 0; id < r->n_tokens; id++)
        text_bytes += r->tokens[id].n_bytes;
    if (text_bytes + r->n_strings > MOEC_TOKENIZER_MAX_TEXT_BYTES)
        return moec_fail(r->err, MOEC_ERR_LIMIT,
                         "the tokens of the tokenizer '%s' have %" PRIu64 " bytes, more than the limit of "
                         "%u",
                         r->subject, text_bytes, MOEC_TOKENIZER_MAX_TEXT_BYTES);
    MOEC_TRY(moec_alloc((void **)&flat->token_start, r->n_tokens + 1, sizeof *flat->token_start,
                        "a vocabulary", r->err));
    MOEC_TRY(moec_alloc((void **)&flat->merge_start, r->n_tokens + 1, sizeof *flat->merge_start, "merges",
                        r->err));
    MOEC_TRY(moec_alloc((void **)&flat->merges, r->n_merges, sizeof *flat->merges, "merges", r->err));
    MOEC_TRY(moec_alloc((void **)&flat->text, text_bytes + r->n_strings, 1, "a vocabulary", r->err));
    return moec_alloc((void **)&flat->scores, 2 * r->n_tokens, sizeof *flat->scores, "a vocabulary", r->err);
}

static void fill_flat(struct moec_tokenizer_reader *r, struct flat *flat)
{
    uint32_t at = 0, merge = 0;
    for (uint32_t id = 0; id < r->unigram.n; id++)
        moec_tokenizer_score_words(r->unigram.pieces[id].score, flat->scores + 2 * (size_t)id);
    for (uint32_t id = 0; id < r->n_tokens; id++) {
        flat->token_start[id] = at;
        flat->merge_start[id] = merge;
        if (r->tokens[id].n_bytes > 0)
            memcpy(flat->text + at, r->tokens[id].bytes, r->tokens[id].n_bytes);
        at += (uint32_t)r->tokens[id].n_bytes;
        for (; merge < r->n_merges && r->merges[merge].left == id; merge++) {
            const struct moec_tokenizer_merge_item *item = &r->merges[merge];
            flat->merges[merge] = (struct moec_tokenizer_merge){item->right, item->rank, item->merged};
        }
    }
    flat->token_start[r->n_tokens] = at;
    flat->merge_start[r->n_tokens] = merge;
    if (r->n_strings > 0)
        memcpy(flat->text + at, r->strings, r->n_strings);
    shift_strings(&r->normalizer, at);
    shift_strings(&r->pretokenizer, at);
    shift_strings(&r->decoder, at);
    flat->n_merges = merge;
    flat->text_bytes = at + (uint32_t)r->n_strings;
}

static void release_flat(struct flat *flat)
{
    free(flat->scores);
    free(flat->text);
    free(flat->merges);
    free(flat->merge_start);
    free(flat->token_start);
}

/* Sends the flat arrays through the binary form, whose reader is the one place that checks a model. */
static enum moec_status assemble(struct moec_tokenizer_reader *r, struct moec_tokenizer_model *model)
{
    enum moec_status status = MOEC_OK;
    struct flat flat = {0};
    void *bytes = NULL;
    size_t n_bytes = 0;
    MOEC_TRY_OUT(allocate_flat(r, &flat));
    fill_flat(r, &flat);
    const struct moec_tokenizer_model made = {
        .flags = r->flags,
        .n_tokens = (uint32_t)r->n_tokens,
        .n_merges = flat.n_merges,
        .n_added = (uint32_t)r->n_added,
        .n_normalizer = r->normalizer.count,
        .n_pretokenizer = r->pretokenizer.count,
        .n_decoder = r->decoder.count,
        .n_prefix = r->n_affix[0],
        .n_suffix = r->n_affix[1],
        .unk_id = r->unk_id,
        .text_bytes = flat.text_bytes,
        .token_start = flat.token_start,
        .merge_start = flat.merge_start,
        .merges = flat.merges,
        .added = r->added,
        .normalizer = r->normalizer.items,
        .pretokenizer = r->pretokenizer.items,
        .decoder = r->decoder.items,
        .prefix = r->affix[0],
        .suffix = r->affix[1],
        .scores = flat.scores,
        .text = flat.text,
        .charsmap = r->charsmap,
        .charsmap_bytes = (uint32_t)r->n_charsmap,
    };
    MOEC_TRY_OUT(moec_tokenizer_model_encode(&made, &bytes, &n_bytes, r->err));
    MOEC_TRY_OUT(moec_tokenizer_model_decode(bytes, n_bytes, r->subject, model, r->err));
out:
    free(bytes);
    release_flat(&flat);
    return status;
}

static enum moec_status read_all(struct moec_tokenizer_reader *r, uint64_t vocab_size,
                                 struct moec_tokenizer_model *model)
{
    if (moec_json_type(r->root) != MOEC_JSON_OBJECT)
        return moec_fail(r->err, MOEC_ERR_FORMAT, "'%s' holds %s, expected an object", r->subject,
                         moec_json_type_name(r->root));
    MOEC_TRY(read_model(r));
    MOEC_TRY(read_added_tokens(r));
    MOEC_TRY(add_declared(r, vocab_size));
    MOEC_TRY(read_section(r, "normalizer", "normalizers", read_normalizer));
    MOEC_TRY(read_section(r, "pre_tokenizer", "pretokenizers", read_pretokenizer));
    MOEC_TRY(read_section(r, "post_processor", "processors", moec_tokenizer_read_processor));
    MOEC_TRY(read_section(r, "decoder", "decoders", read_decoder));
    return assemble(r, model);
}

enum moec_status moec_tokenizer_json_read(const char *json, size_t n_bytes, const char *subject,
                                          struct moec_tokenizer_model *model, struct moec_error *err)
{
    const struct moec_declared_tokens none = {0};
    bool is_changed = false;
    return moec_tokenizer_json_read_with((struct moec_tokenizer_json){json, n_bytes, subject}, &none, 0,
                                         &is_changed, model, err);
}

enum moec_status moec_tokenizer_json_read_with(struct moec_tokenizer_json json,
                                               const struct moec_declared_tokens *declared,
                                               uint64_t vocab_size, bool *is_changed,
                                               struct moec_tokenizer_model *model, struct moec_error *err)
{
    *is_changed = false;
    *model = (struct moec_tokenizer_model){0};
    struct moec_json *root = NULL;
    MOEC_TRY(
        moec_json_parse(json.bytes, json.n_bytes, MOEC_TOKENIZER_JSON_MAX_BYTES, json.subject, &root, err));
    struct moec_tokenizer_reader r = {
        .subject = json.subject,
        .root = root,
        .err = err,
        .declared = declared,
        .normalizer = {.name = "normalizer"},
        .pretokenizer = {.name = "pre_tokenizer"},
        .decoder = {.name = "decoder"},
    };
    enum moec_status status = read_all(&r, vocab_size, model);
    *is_changed = r.is_changed;
    moec_unigram_vocab_release(&r.unigram);
    free(r.charsmap);
    free(r.strings);
    free(r.added);
    free(r.merges);
    free(r.tokens);
    moec_json_free(root);
    return status;
}
