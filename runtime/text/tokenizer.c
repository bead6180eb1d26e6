/* Encoding in the library's order: added tokens are cut out of the raw text, then the rest is normalised.
 * Added tokens that count after normalisation are cut next, then words. A matcher finds the leftmost and
 * longest: its entries are sorted, and a range of them narrows byte by byte. The vocabulary is an
 * open-addressing table (FNV-1a). Marks say which bytes a user typed: special tokens are never found in
 * those. */
#include "runtime/text/tokenizer.h"

#include "runtime/text/tokenizer_internal.h"
#include "runtime/text/unicode_sets.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <inttypes.h>
#include <string.h>

enum moec_status moec_buffer_append(struct moec_tokenizer_buffer *buffer, const char *bytes, size_t n_bytes,
                                    struct moec_error *err)
{
    /* One more than asked, so that there is room for a NUL and `bytes` is never NULL. */
    MOEC_TRY(moec_grow_within((void **)&buffer->bytes, &buffer->capacity, buffer->n_bytes + n_bytes + 1, 1,
                              buffer->left_bytes, "text", err));
    if (n_bytes > 0)
        memcpy(buffer->bytes + buffer->n_bytes, bytes, n_bytes);
    buffer->n_bytes += n_bytes;
    return MOEC_OK;
}

/* ---- ByteLevel's alphabet ---- */

static bool prints(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

/* GPT-2's bytes_to_unicode: bytes that print stand for themselves, the others take U+0100, U+0101, ... in
 * order: 0x00..0x20, 0x7F..0xA0, 0xAD. */
uint32_t moec_byte_level_char(uint8_t byte)
{
    if (prints(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    return byte == 0xAD ? 0x143 : 0x100u + 0x21 + (byte - 0x7Fu);
}

int moec_byte_level_byte(uint32_t code_point)
{
    if (code_point < 0x100)
        return prints(code_point) ? (int)code_point : -1;
    if (code_point <= 0x120)
        return (int)(code_point - 0x100);
    if (code_point <= 0x142)
        return (int)(code_point - 0x121 + 0x7F);
    return code_point == 0x143 ? 0xAD : -1;
}

/* ---- vocabulary ---- */

/* FNV-1a. The vocabulary is fixed and texts to look up are short, so a keyed hash would buy nothing: a
 * hostile vocabulary can only slow down its own tokenizer. */
static uint32_t hash_text(const char *text, size_t n_bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ (uint8_t)text[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* The text that a slot in use stands for. */
static const char *slot_text(const struct moec_tokenizer *t, uint32_t held, uint32_t *length)
{
    if (t->spellings == NULL)
        return moec_tokenizer_model_text(t->model, held - 1, length);
    *length = t->spellings[held - 1].n_bytes;
    return t->model->text + t->spellings[held - 1].offset;
}

/* The slot that holds the text, or the free one where it would go. */
static uint32_t find_slot(const struct moec_tokenizer *t, const char *text, size_t n_bytes)
{
    uint32_t slot = hash_text(text, n_bytes) & t->slot_mask;
    for (; t->slots[slot] != 0; slot = (slot + 1) & t->slot_mask) {
        uint32_t length = 0;
        const char *held = slot_text(t, t->slots[slot], &length);
        if (length == n_bytes && memcmp(held, text, n_bytes) == 0)
            break;
    }
    return slot;
}

uint32_t moec_tokenizer_token_id(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    uint32_t held = n_bytes > 0 ? tokenizer->slots[find_slot(tokenizer, text, n_bytes)] : 0;
    if (held == 0)
        return MOEC_TOKENIZER_NO_ID;
    return tokenizer->spellings != NULL ? tokenizer->spellings[held - 1].id : held - 1;
}

uint32_t moec_tokenizer_model_id(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    uint32_t id = moec_tokenizer_token_id(tokenizer, text, n_bytes);
    return id != MOEC_TOKENIZER_NO_ID && moec_bit(tokenizer->outside_model, id) ? MOEC_TOKENIZER_NO_ID : id;
}

static enum moec_status make_slots(struct moec_tokenizer *t, uint32_t n_texts, struct moec_error *err)
{
    uint32_t capacity = 16;
    while (capacity < n_texts + n_texts / 2)
        capacity *= 2;
    t->slot_mask = capacity - 1;
    return moec_alloc((void **)&t->slots, capacity, sizeof *t->slots, "a vocabulary's index", err);
}

/* All spellings of a Japanese tokenizer; of equal ones the last stays. */
static enum moec_status index_spellings(struct moec_tokenizer *t, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = t->model;
    uint64_t n = m->n_tokens;
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->text_bytes; i++)
        n += m->text[i] == ',';
    MOEC_TRY(moec_alloc((void **)&t->spellings, n, sizeof *t->spellings, "spellings of tokens", err));
    MOEC_TRY(make_slots(t, (uint32_t)n, err));
    for (uint32_t id = 0; id < m->n_tokens; id++) {
        uint32_t length = 0;
        const char *text = moec_tokenizer_model_text(m, id, &length);
        for (size_t at = 0, rest = 0; at < length; at += rest) {
            const size_t n_bytes = moec_tokenizer_spelling(text + at, length - at, &rest);
            if (n_bytes == 0)
                continue;
            t->spellings[count] =
                (struct moec_spelling){m->token_start[id] + (uint32_t)at, (uint32_t)n_bytes, id};
            t->slots[find_slot(t, text + at, n_bytes)] = ++count;
            if (n_bytes > t->longest_token_bytes)
                t->longest_token_bytes = (uint32_t)n_bytes;
        }
    }
    return MOEC_OK;
}

static enum moec_status index_vocabulary(struct moec_tokenizer *t, struct moec_error *err)
{
    if ((t->model->flags & MOEC_TOKENIZER_JAPANESE) != 0)
        return index_spellings(t, err);
    MOEC_TRY(make_slots(t, t->model->n_tokens, err));
    for (uint32_t id = 0; id < t->model->n_tokens; id++) {
        uint32_t length = 0;
        const char *text = moec_tokenizer_model_text(t->model, id, &length);
        if (length == 0)
            continue;
        uint32_t slot = find_slot(t, text, length);
        if (t->slots[slot] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokens %" PRIu32 " and %" PRIu32 " of the tokenizer have the same text '%.*s'",
                             t->slots[slot] - 1, id, (int)(length < 64 ? length : 64), text);
        t->slots[slot] = id + 1;
        if (length > t->longest_token_bytes)
            t->longest_token_bytes = length;
    }
    return MOEC_OK;
}

static void index_bytes(struct moec_tokenizer *t)
{
    static const char digits[] = "0123456789ABCDEF";
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[8] = {'<', '0', 'x', digits[byte >> 4], digits[byte & 15], '>'};
        t->byte_token[byte] = moec_tokenizer_model_id(t, text, 6);
        size_t length = moec_utf8_write(moec_byte_level_char((uint8_t)byte), text);
        t->byte_symbol[byte] = moec_tokenizer_model_id(t, text, length);
    }
}

/* ---- added tokens ---- */

static int compare_entries(const void *a, const void *b)
{
    const struct moec_added_entry *x = a;
    const struct moec_added_entry *y = b;
    uint32_t common = x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes;
    int order = memcmp(x->text, y->text, common);
    if (order != 0 || x->n_bytes != y->n_bytes)
        return order != 0 ? order : x->n_bytes < y->n_bytes ? -1 : 1;
    /* Two tokens can become one text by normalisation; then special ones win, and earlier ones among equals.
     */
    bool x_special = (x->flags & MOEC_ADDED_SPECIAL) != 0;
    bool y_special = (y->flags & MOEC_ADDED_SPECIAL) != 0;
    if (x_special != y_special)
        return x_special ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static void index_first_bytes(struct moec_added_matcher *matcher)
{
    uint32_t at = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        matcher->first[byte] = at;
        while (at < matcher->count && (uint8_t)matcher->entries[at].text[0] == byte)
            at++;
    }
    matcher->first[256] = at;
}

static void finish_matcher(struct moec_added_matcher *matcher)
{
    if (matcher->count == 0)
        return;
    qsort(matcher->entries, matcher->count, sizeof *matcher->entries, compare_entries);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < matcher->count; i++) {
        const struct moec_added_entry *last = &matcher->entries[kept - 1];
        const struct moec_added_entry *entry = &matcher->entries[i];
        if (last->n_bytes != entry->n_bytes || memcmp(last->text, entry->text, entry->n_bytes) != 0)
            matcher->entries[kept++] = *entry;
    }
    matcher->count = kept;
    index_first_bytes(matcher);
}

/* Normalises the text of an added token; the matcher owns all of them in one buffer, found by offset until it
 * is complete. */
static enum moec_status normalize_added(const struct moec_tokenizer *t, struct moec_added_entry *entry,
                                        struct moec_tokenizer_buffer buffers[2],
                                        struct moec_tokenizer_buffer *texts, struct moec_error *err)
{
    struct moec_text text = {entry->text, entry->n_bytes};
    size_t first_bytes = 0;
    /* A user-defined piece of SentencePiece stands in the vocabulary as it stands in normalised text. */
    if (t->model->n_normalizer != 1 || t->model->normalizer[0].kind != MOEC_STEP_SENTENCEPIECE)
        MOEC_TRY(moec_tokenizer_normalize(t, text, buffers, &text, &first_bytes, err));
    if (text.n_bytes == 0 || text.n_bytes > MOEC_TOKENIZER_MAX_TOKEN_BYTES)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "added token %" PRIu32
                         " ('%.*s') is %zu bytes long after the normalizer, expected 1..%u",
                         entry->id, (int)(entry->n_bytes < 64 ? entry->n_bytes : 64), entry->text,
                         text.n_bytes, MOEC_TOKENIZER_MAX_TOKEN_BYTES);
    entry->n_bytes = (uint32_t)text.n_bytes;
    return moec_buffer_append(texts, text.bytes, text.n_bytes, err);
}

static enum moec_status index_added(struct moec_tokenizer *t, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = t->model;
    struct moec_tokenizer_buffer buffers[2] = {{0}, {0}};
    struct moec_tokenizer_buffer texts = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(
        moec_alloc((void **)&t->plain.entries, m->n_added, sizeof *t->plain.entries, "added tokens", err));
    MOEC_TRY_OUT(moec_alloc((void **)&t->normalized.entries, m->n_added, sizeof *t->plain.entries,
                            "added tokens", err));
    for (uint32_t i = 0; i < m->n_added; i++) {
        const struct moec_tokenizer_added *added = &m->added[i];
        struct moec_added_matcher *matcher =
            (added->flags & MOEC_ADDED_NORMALIZED) != 0 ? &t->normalized : &t->plain;
        struct moec_added_entry *entry = &matcher->entries[matcher->count++];
        *entry = (struct moec_added_entry){.id = added->id, .flags = added->flags, .order = i};
        entry->text = moec_tokenizer_model_text(m, added->id, &entry->n_bytes);
        if (matcher == &t->normalized)
            MOEC_TRY_OUT(normalize_added(t, entry, buffers, &texts, err));
    }
    t->normalized.texts = texts.bytes;
    texts.bytes = NULL;
    size_t offset = 0;
    for (uint32_t i = 0; i < t->normalized.count; i++) {
        t->normalized.entries[i].text = t->normalized.texts + offset;
        offset += t->normalized.entries[i].n_bytes;
    }
    finish_matcher(&t->plain);
    finish_matcher(&t->normalized);
out:
    free(texts.bytes);
    free(buffers[0].bytes);
    free(buffers[1].bytes);
    return status;
}

/* The longest entry that text[n_bytes] starts with, or NULL: narrows the sorted range byte by byte. */
static const struct moec_added_entry *match_here(const struct moec_added_matcher *matcher, const char *text,
                                                 size_t n_bytes)
{
    uint32_t low = matcher->first[(uint8_t)text[0]];
    uint32_t high = matcher->first[(uint8_t)text[0] + 1];
    const struct moec_added_entry *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        /* The first of the range is its shortest. */
        if (matcher->entries[low].n_bytes == depth)
            best = &matcher->entries[low++];
        if (depth == n_bytes)
            break;
        uint8_t byte = (uint8_t)text[depth];
        uint32_t from = low;
        uint32_t to = high;
        while (from < to) {
            uint32_t middle = from + (to - from) / 2;
            if ((uint8_t)matcher->entries[middle].text[depth] < byte)
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high;
        while (from < to) {
            uint32_t middle = from + (to - from) / 2;
            if ((uint8_t)matcher->entries[middle].text[depth] <= byte)
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return best;
}

static struct moec_utf8_char char_before(const char *text, size_t at)
{
    size_t start = at - 1;
    while (start > 0 && ((uint8_t)text[start] & 0xC0) == 0x80)
        start--;
    return moec_utf8_read(text + start, at - start);
}

static bool stands_alone(const char *text, size_t n_bytes, size_t start, size_t end)
{
    if (start > 0 && moec_unicode_is_word(char_before(text, start).code_point))
        return false;
    return end == n_bytes || !moec_unicode_is_word(moec_utf8_read(text + end, n_bytes - end).code_point);
}

/* What the text between added tokens goes through: the second matcher after the normalizer, then words. */
typedef enum moec_status between(struct moec_encoding *e, const char *text, size_t n_bytes,
                                 size_t first_bytes);

/* Whether a special token at text[n_bytes] is one that a user typed, as all of a text without marks is to
 * tokens that only templates write. Text that was normalised has no marks of its own: what it was made of is
 * asked then. */
static bool is_typed(const struct moec_encoding *e, const struct moec_added_entry *entry, const char *text)
{
    if (e->marks == NULL || (entry->flags & MOEC_ADDED_SPECIAL) == 0)
        return (entry->flags & MOEC_ADDED_WRITTEN) != 0;
    if (text < e->marked || text >= e->marked + e->n_marked)
        return e->has_marks;
    return memchr(e->marks + (text - e->marked), 1, entry->n_bytes) != NULL;
}

/* Cuts added tokens out of text[n_bytes], leftmost and longest first, and hands on what lies between.
 * `covered` can move back, as in the library: a token that begins in the white space which the one before
 * took is taken again. */
static enum moec_status cut_added(struct moec_encoding *e, const struct moec_added_matcher *matcher,
                                  const char *text, size_t n_bytes, size_t first_bytes, between *next)
{
    size_t covered = 0;
    size_t at = 0;
    while (at < n_bytes && matcher->count > 0) {
        const struct moec_added_entry *entry = match_here(matcher, text + at, n_bytes - at);
        if (entry == NULL || is_typed(e, entry, text + at)) {
            at++;
            continue;
        }
        size_t start = at;
        size_t end = at + entry->n_bytes;
        at = end;
        if ((entry->flags & MOEC_ADDED_SINGLE_WORD) != 0 && !stands_alone(text, n_bytes, start, end))
            continue;
        while ((entry->flags & MOEC_ADDED_LSTRIP) != 0 && start > covered) {
            struct moec_utf8_char c = char_before(text, start);
            if (!moec_unicode_is_space(c.code_point))
                break;
            start -= c.n_bytes;
        }
        while ((entry->flags & MOEC_ADDED_RSTRIP) != 0 && end < n_bytes) {
            struct moec_utf8_char c = moec_utf8_read(text + end, n_bytes - end);
            if (!moec_unicode_is_space(c.code_point))
                break;
            end += c.n_bytes;
        }
        if (covered < start)
            MOEC_TRY(
                next(e, text + covered, start - covered, covered < first_bytes ? first_bytes - covered : 0));
        MOEC_TRY(moec_encoding_add_id(e, entry->id));
        covered = end;
    }
    if (covered < n_bytes)
        MOEC_TRY(
            next(e, text + covered, n_bytes - covered, covered < first_bytes ? first_bytes - covered : 0));
    return MOEC_OK;
}

static enum moec_status normalize_and_cut(struct moec_encoding *e, const char *text, size_t n_bytes,
                                          size_t first_bytes)
{
    struct moec_text normal = {text, n_bytes};
    if (e->marks != NULL)
        e->has_marks = memchr(e->marks + (text - e->marked), 1, n_bytes) != NULL;
    MOEC_TRY(moec_tokenizer_normalize(e->tokenizer, normal, e->normal, &normal, &first_bytes, e->err));
    return cut_added(e, &e->tokenizer->normalized, normal.bytes, normal.n_bytes, first_bytes,
                     moec_tokenizer_pretokenize);
}

/* ---- create ---- */

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static enum moec_status compile_steps(const struct moec_tokenizer_model *m,
                                      const struct moec_tokenizer_step *steps, uint32_t count,
                                      const char *pipeline, struct moec_pattern **patterns,
                                      struct moec_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *text = m->text + steps[i].pattern.offset;
        size_t n_bytes = steps[i].pattern.length;
        bool is_regex = (steps[i].flags & MOEC_STEP_REGEX) != 0;
        switch (steps[i].kind) {
        case MOEC_STEP_SPLIT:
        case MOEC_STEP_REPLACE:
            break;
        case MOEC_STEP_METASPACE:
            text = m->text + steps[i].content.offset;
            n_bytes = steps[i].content.length;
            break;
        case MOEC_STEP_BYTE_LEVEL:
            text = GPT2_PATTERN;
            n_bytes = sizeof GPT2_PATTERN - 1;
            is_regex = true;
            break;
        default:
            continue;
        }
        if (moec_pattern_create(text, n_bytes, is_regex, &patterns[i], err) != MOEC_OK)
            return moec_error_prefix(err, "%s step %" PRIu32 " of the tokenizer", pipeline, i);
    }
    return MOEC_OK;
}

static enum moec_status prepare(struct moec_tokenizer *t, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = t->model;
    uint64_t words = (uint64_t)m->n_tokens / 64 + 1;
    MOEC_TRY(moec_alloc((void **)&t->outside_model, words, sizeof *t->outside_model, "added tokens", err));
    MOEC_TRY(moec_alloc((void **)&t->special, words, sizeof *t->special, "added tokens", err));
    for (uint32_t i = 0; i < m->n_added; i++) {
        uint32_t id = m->added[i].id;
        if ((m->added[i].flags & MOEC_ADDED_IN_MODEL) == 0)
            t->outside_model[id / 64] |= (uint64_t)1 << (id % 64);
        if ((m->added[i].flags & MOEC_ADDED_SPECIAL) != 0)
            t->special[id / 64] |= (uint64_t)1 << (id % 64);
    }
    MOEC_TRY(index_vocabulary(t, err));
    index_bytes(t);
    if ((m->flags & MOEC_TOKENIZER_UNIGRAM) != 0)
        MOEC_TRY(moec_tokenizer_index_unigram(t, err));
    if ((m->flags & MOEC_TOKENIZER_JAPANESE) != 0)
        moec_tokenizer_index_japanese(t);
    t->byte_level =
        m->n_pretokenizer > 0 && m->pretokenizer[m->n_pretokenizer - 1].kind == MOEC_STEP_BYTE_LEVEL;
    for (uint32_t i = 0; i < m->n_pretokenizer; i++)
        t->cares_for_start |=
            m->pretokenizer[i].kind == MOEC_STEP_METASPACE && m->pretokenizer[i].mode == MOEC_PREPEND_FIRST;
    MOEC_TRY(compile_steps(m, m->normalizer, m->n_normalizer, "normalizer", t->normalizer_patterns, err));
    MOEC_TRY(
        compile_steps(m, m->pretokenizer, m->n_pretokenizer, "pre-tokenizer", t->pretokenizer_patterns, err));
    MOEC_TRY(compile_steps(m, m->decoder, m->n_decoder, "decoder", t->decoder_patterns, err));
    moec_tokenizer_plan_decoder(t);
    return index_added(t, err);
}

enum moec_status moec_tokenizer_create(const struct moec_tokenizer_model *model, struct moec_tokenizer **out,
                                       struct moec_error *err)
{
    struct moec_tokenizer *t = NULL;
    *out = NULL;
    MOEC_TRY(moec_alloc((void **)&t, 1, sizeof *t, "a tokenizer", err));
    t->model = model;
    enum moec_status status = prepare(t, err);
    if (status != MOEC_OK) {
        moec_tokenizer_free(t);
        return status;
    }
    *out = t;
    return MOEC_OK;
}

void moec_tokenizer_free(struct moec_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    for (uint32_t i = 0; i < MOEC_TOKENIZER_MAX_STEPS; i++) {
        moec_pattern_free(tokenizer->normalizer_patterns[i]);
        moec_pattern_free(tokenizer->pretokenizer_patterns[i]);
        moec_pattern_free(tokenizer->decoder_patterns[i]);
    }
    free(tokenizer->plain.entries);
    free(tokenizer->normalized.entries);
    free(tokenizer->normalized.texts);
    free(tokenizer->slots);
    free(tokenizer->spellings);
    free(tokenizer->sorted);
    free(tokenizer->outside_model);
    free(tokenizer->special);
    free(tokenizer);
}

/* ---- encode ---- */

enum moec_status moec_encoding_add_id(struct moec_encoding *encoding, uint32_t id)
{
    MOEC_TRY(moec_grow_within((void **)&encoding->ids, &encoding->ids_capacity, encoding->n_ids + 1,
                              sizeof *encoding->ids, encoding->left_bytes, "token ids", encoding->err));
    encoding->ids[encoding->n_ids++] = id;
    return MOEC_OK;
}

enum moec_status moec_encoding_map_bytes(struct moec_encoding *encoding, const char *word, size_t n_bytes)
{
    encoding->mapped.n_bytes = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        char text[4];
        size_t length = moec_utf8_write(moec_byte_level_char((uint8_t)word[i]), text);
        MOEC_TRY(moec_buffer_append(&encoding->mapped, text, length, encoding->err));
    }
    return MOEC_OK;
}

enum moec_status moec_tokenizer_word(struct moec_encoding *encoding, const char *word, size_t n_bytes)
{
    const uint32_t flags = encoding->tokenizer->model->flags;
    if ((flags & MOEC_TOKENIZER_JAPANESE) != 0)
        return moec_tokenizer_japanese(encoding, word, n_bytes);
    return (flags & MOEC_TOKENIZER_UNIGRAM) != 0 ? moec_tokenizer_unigram(encoding, word, n_bytes)
                                                 : moec_tokenizer_bpe(encoding, word, n_bytes);
}

static void release_encoding(struct moec_encoding *e)
{
    free(e->symbols);
    free(e->heap);
    free(e->nodes);
    free(e->mapped.bytes);
    free(e->normal[0].bytes);
    free(e->normal[1].bytes);
    for (uint32_t i = 0; i < MOEC_TOKENIZER_MAX_STEPS; i++) {
        free(e->scratch[i].bytes);
        moec_pattern_memory_free(e->pattern_memory[i]);
    }
}

/* Copies text[n_bytes] with every broken part replaced by U+FFFD. */
static enum moec_status repair_text(const char *text, size_t n_bytes, struct moec_tokenizer_buffer *out,
                                    struct moec_error *err)
{
    for (size_t at = 0; at < n_bytes;) {
        size_t valid = moec_utf8_valid_bytes(text + at, n_bytes - at);
        MOEC_TRY(moec_buffer_append(out, text + at, valid, err));
        at += valid;
        if (at == n_bytes)
            break;
        MOEC_TRY(moec_buffer_append(out, "\xEF\xBF\xBD", 3, err));
        at += moec_utf8_read(text + at, n_bytes - at).n_bytes;
    }
    return MOEC_OK;
}

/* What grows with the text grows within `left_bytes`. */
static void set_budget(struct moec_encoding *e, uint64_t *left_bytes)
{
    e->left_bytes = left_bytes;
    e->mapped.left_bytes = e->normal[0].left_bytes = e->normal[1].left_bytes = left_bytes;
    for (uint32_t i = 0; i < MOEC_TOKENIZER_MAX_STEPS; i++)
        e->scratch[i].left_bytes = left_bytes;
}

/* The ids, with no room to spare. */
static void hand_over_ids(struct moec_encoding *e, uint32_t **ids, size_t *n_ids)
{
    const size_t n = e->n_ids > 0 ? e->n_ids : 1;
    uint32_t *exact = realloc(e->ids, n * sizeof *exact);
    *ids = exact != NULL ? exact : e->ids;
    *n_ids = e->n_ids;
    e->ids = NULL;
}

enum moec_status moec_tokenizer_encode(const struct moec_tokenizer *tokenizer, struct moec_text text,
                                       bool add_special, uint32_t **ids, size_t *n_ids,
                                       struct moec_error *err)
{
    uint64_t left_bytes = UINT64_MAX;
    return moec_tokenizer_encode_whole(tokenizer, text, add_special, &left_bytes, ids, n_ids, err);
}

enum moec_status moec_tokenizer_encode_whole(const struct moec_tokenizer *tokenizer, struct moec_text text,
                                             bool add_special, uint64_t *left_bytes, uint32_t **ids,
                                             size_t *n_ids, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = tokenizer->model;
    uint64_t budget = *left_bytes;
    struct moec_encoding e = {.tokenizer = tokenizer, .err = err};
    struct moec_tokenizer_buffer repaired = {.left_bytes = &budget};
    enum moec_status status = MOEC_OK;
    set_budget(&e, &budget);
    *ids = NULL;
    *n_ids = 0;
    if (text.n_bytes > MOEC_TOKENIZER_MAX_INPUT_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT, "the text has %zu bytes, more than the limit of %zu",
                         text.n_bytes, MOEC_TOKENIZER_MAX_INPUT_BYTES);
    if (text.n_bytes > 0 && moec_utf8_valid_bytes(text.bytes, text.n_bytes) < text.n_bytes) {
        MOEC_TRY_OUT(repair_text(text.bytes, text.n_bytes, &repaired, err));
        text = (struct moec_text){repaired.bytes, repaired.n_bytes};
    }
    /* Room for one more than there is, so that an empty result is an array too. */
    MOEC_TRY_OUT(
        moec_grow_within((void **)&e.ids, &e.ids_capacity, 1, sizeof *e.ids, &budget, "token ids", err));
    const uint32_t n_prefix =
        add_special ? moec_tokenizer_prefix_count(tokenizer, text.bytes, text.n_bytes) : 0;
    for (uint32_t i = 0; i < n_prefix; i++)
        MOEC_TRY_OUT(moec_encoding_add_id(&e, m->prefix[i]));
    const size_t first_bytes = text.n_bytes == 0 ? 0 : moec_utf8_read(text.bytes, text.n_bytes).n_bytes;
    MOEC_TRY_OUT(cut_added(&e, &tokenizer->plain, text.bytes, text.n_bytes, first_bytes, normalize_and_cut));
    for (uint32_t i = 0; add_special && i < m->n_suffix; i++)
        MOEC_TRY_OUT(moec_encoding_add_id(&e, m->suffix[i]));
    *left_bytes -= e.n_ids * sizeof *e.ids;
    hand_over_ids(&e, ids, n_ids);
out:
    free(e.ids);
    free(repaired.bytes);
    release_encoding(&e);
    return status;
}

enum moec_status moec_tokenizer_encode_marked(const struct moec_tokenizer *tokenizer, struct moec_text text,
                                              const uint8_t *marks, uint32_t **ids, size_t *n_ids,
                                              struct moec_error *err)
{
    uint64_t budget = UINT64_MAX;
    struct moec_encoding e = {
        .tokenizer = tokenizer, .err = err, .marks = marks, .marked = text.bytes, .n_marked = text.n_bytes};
    enum moec_status status = MOEC_OK;
    set_budget(&e, &budget);
    *ids = NULL;
    *n_ids = 0;
    if (text.n_bytes > MOEC_TOKENIZER_MAX_INPUT_BYTES ||
        moec_utf8_valid_bytes(text.bytes, text.n_bytes) < text.n_bytes)
        return moec_fail(err,
                         text.n_bytes > MOEC_TOKENIZER_MAX_INPUT_BYTES ? MOEC_ERR_LIMIT : MOEC_ERR_FORMAT,
                         text.n_bytes > MOEC_TOKENIZER_MAX_INPUT_BYTES
                             ? "the text of %zu bytes is too long, expected at most 1 GiB"
                             : "the text of %zu bytes is not UTF-8",
                         text.n_bytes);
    MOEC_TRY_OUT(
        moec_grow_within((void **)&e.ids, &e.ids_capacity, 1, sizeof *e.ids, &budget, "token ids", err));
    const size_t first_bytes = text.n_bytes == 0 ? 0 : moec_utf8_read(text.bytes, text.n_bytes).n_bytes;
    MOEC_TRY_OUT(cut_added(&e, &tokenizer->plain, text.bytes, text.n_bytes, first_bytes, normalize_and_cut));
    hand_over_ids(&e, ids, n_ids);
out:
    free(e.ids);
    release_encoding(&e);
    return status;
}

enum moec_status moec_tokenizer_encode_typed(const struct moec_tokenizer *tokenizer, struct moec_text text,
                                             bool add_special, uint32_t **ids, size_t *n_ids,
                                             struct moec_error *err)
{
    const struct moec_tokenizer_model *m = tokenizer->model;
    const uint32_t n_prefix =
                       add_special ? moec_tokenizer_prefix_count(tokenizer, text.bytes, text.n_bytes) : 0,
                   n_suffix = add_special ? m->n_suffix : 0;
    uint32_t *inner = NULL, *all = NULL;
    uint8_t *marks = NULL;
    size_t n = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_alloc((void **)&marks, text.n_bytes, 1, "marks of a text", err));
    if (text.n_bytes > 0)
        memset(marks, 1, text.n_bytes);
    MOEC_TRY_OUT(moec_tokenizer_encode_marked(tokenizer, text, marks, &inner, &n, err));
    MOEC_TRY_OUT(moec_alloc((void **)&all, n_prefix + n + n_suffix, sizeof *all, "token ids", err));
    memcpy(all, m->prefix, n_prefix * sizeof *all);
    memcpy(all + n_prefix, inner, n * sizeof *all);
    memcpy(all + n_prefix + n, m->suffix, n_suffix * sizeof *all);
    *ids = all;
    *n_ids = n_prefix + n + n_suffix;
out:
    free(marks);
    free(inner);
    return status;
}

/* ---- look-ups ---- */

bool moec_tokenizer_is_special(const struct moec_tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->model->n_tokens && moec_bit(tokenizer->special, id);
}

uint32_t moec_tokenizer_bos_id(const struct moec_tokenizer *tokenizer)
{
    const struct moec_tokenizer_model *m = tokenizer->model;
    return m->n_prefix > 0 ? m->prefix[0] : MOEC_TOKENIZER_NO_ID;
}
