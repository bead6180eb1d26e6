/* SentencePiece's compiled character map, the way of the `tokenizers` library, which is not SentencePiece's:
 * the text falls into grapheme clusters (UAX 29); one of under six bytes that begins with an entry of the map
 * becomes what the shortest such entry stands for, as a whole; of the others, each character does the same
 * for itself.
 *
 * A unit of the trie (S. Yata, Darts-clone): bits 0-7 label, bit 8 has a leaf, bit 9 the offset is wide, bits
 * 10-30 offset, bit 31 leaf. */
#include "runtime/text/tokenizer_internal.h"

#include "formats/base/bytes.h"
#include "formats/base/utf8.h"

#include <string.h>
#include <utf8proc.h>

#define SHORT_CLUSTER_BYTES 6

struct charsmap {
    const uint8_t *units;
    uint32_t n_unit;
    const char *texts; /* valid UTF-8 */
    size_t n_text;
};

static struct charsmap open_map(const struct moec_tokenizer_model *model)
{
    if (model->charsmap_bytes == 0)
        return (struct charsmap){0};
    const uint32_t trie_bytes = moec_get_u32(model->charsmap);
    return (struct charsmap){.units = model->charsmap + 4,
                             .n_unit = trie_bytes / 4,
                             .texts = (const char *)model->charsmap + 4 + trie_bytes,
                             .n_text = model->charsmap_bytes - 4 - trie_bytes};
}

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The text of an entry that the key starts with, the longest or the shortest, and the entry's bytes in
 * the key; false when there is none. A trie that points outside itself ends there. */
static bool find_entry(const struct charsmap *map, struct moec_text key, bool longest, struct moec_text *text,
                       size_t *entry_bytes)
{
    bool found = false;
    uint32_t at = map->n_unit > 0 ? offset_of(moec_get_u32(map->units)) : 0;
    for (size_t i = 0; i < key.n_bytes && key.bytes[i] != '\0' && (longest || !found); i++) {
        const uint8_t byte = (uint8_t)key.bytes[i];
        at ^= byte;
        if (at >= map->n_unit)
            break;
        uint32_t unit = moec_get_u32(map->units + 4 * (size_t)at);
        if ((unit & (1u << 31 | 0xFFu)) != byte)
            break;
        at ^= offset_of(unit);
        if ((unit >> 8 & 1) == 0)
            continue;
        if (at >= map->n_unit)
            break;
        const size_t start = moec_get_u32(map->units + 4 * (size_t)at) & ~(1u << 31);
        if (start > map->n_text || (start < map->n_text && ((uint8_t)map->texts[start] & 0xC0) == 0x80))
            break;
        text->bytes = map->texts + start;
        text->n_bytes = strnlen(text->bytes, map->n_text - start);
        *entry_bytes = i + 1;
        found = true;
    }
    return found;
}

/* Appends the cluster text[n_bytes]. */
static enum moec_status append_cluster(const struct charsmap *map, const char *text, size_t n_bytes,
                                       struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    struct moec_text entry = {0};
    size_t n_key = 0;
    if (n_bytes < SHORT_CLUSTER_BYTES &&
        find_entry(map, (struct moec_text){text, n_bytes}, false, &entry, &n_key))
        return moec_buffer_append(out, entry.bytes, entry.n_bytes, err);
    for (size_t at = 0; at < n_bytes;) {
        const size_t n_char = moec_utf8_read(text + at, n_bytes - at).n_bytes;
        if (find_entry(map, (struct moec_text){text + at, n_char}, false, &entry, &n_key))
            MOEC_TRY(moec_buffer_append(out, entry.bytes, entry.n_bytes, err));
        else
            MOEC_TRY(moec_buffer_append(out, text + at, n_char, err));
        at += n_char;
    }
    return MOEC_OK;
}

enum moec_status moec_tokenizer_precompiled(const struct moec_tokenizer_model *model, struct moec_text text,
                                            struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    const struct charsmap map = open_map(model);
    utf8proc_int32_t state = 0;
    size_t start = 0;
    uint32_t before = 0;
    for (size_t at = 0; at < text.n_bytes;) {
        struct moec_utf8_char c = moec_utf8_read(text.bytes + at, text.n_bytes - at);
        if (at > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)before,
                                                       (utf8proc_int32_t)c.code_point, &state)) {
            MOEC_TRY(append_cluster(&map, text.bytes + start, at - start, out, err));
            start = at;
        }
        if (out->n_bytes > out->limit_bytes)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "the tokenizer's character map makes more than %zu "
                             "bytes from a text of %zu bytes",
                             out->limit_bytes, text.n_bytes);
        before = c.code_point;
        at += c.n_bytes;
    }
    return text.n_bytes > 0 ? append_cluster(&map, text.bytes + start, text.n_bytes - start, out, err)
                            : MOEC_OK;
}

/* ---- SentencePiece itself ---- */

#define SPACE_MARK "\xE2\x96\x81"

static enum moec_status append_mark(struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    return moec_buffer_append(out, SPACE_MARK, sizeof SPACE_MARK - 1, err);
}

/* What stands for the start of the text, and how many bytes of it. */
static size_t next_piece(const struct charsmap *map, struct moec_text text, struct moec_text *piece)
{
    size_t n_key = 0;
    if (find_entry(map, text, true, piece, &n_key))
        return n_key;
    *piece = (struct moec_text){text.bytes, moec_utf8_read(text.bytes, text.n_bytes).n_bytes};
    return piece->n_bytes;
}

/* Appends a piece with spaces marked. */
static enum moec_status append_marked(struct moec_tokenizer_buffer *out, const char *piece, size_t n_bytes,
                                      struct moec_error *err)
{
    for (size_t at = 0; at < n_bytes;) {
        if (piece[at] == ' ') {
            MOEC_TRY(append_mark(out, err));
            at++;
            continue;
        }
        const char *space = memchr(piece + at, ' ', n_bytes - at);
        const size_t n = space == NULL ? n_bytes - at : (size_t)(space - piece) - at;
        MOEC_TRY(moec_buffer_append(out, piece + at, n, err));
        at += n;
    }
    return MOEC_OK;
}

enum moec_status moec_tokenizer_sentencepiece(const struct moec_tokenizer_model *model,
                                              const struct moec_tokenizer_step *step, struct moec_text text,
                                              struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    const struct charsmap map = open_map(model);
    const bool remove_extra = (step->flags & MOEC_STEP_LEFT) != 0,
               as_suffix = (step->flags & MOEC_STEP_RIGHT) != 0;
    const bool dummy = (step->flags & MOEC_STEP_PREFIX_SPACE) != 0;
    struct moec_text piece = {0};
    size_t at = 0;
    while (remove_extra && at < text.n_bytes) {
        size_t n = next_piece(&map, (struct moec_text){text.bytes + at, text.n_bytes - at}, &piece);
        if (piece.n_bytes != 1 || *piece.bytes != ' ')
            break;
        at += n;
    }
    if (at == text.n_bytes)
        return MOEC_OK;
    if (dummy && !as_suffix)
        MOEC_TRY(append_mark(out, err));
    bool after_space = remove_extra;
    while (at < text.n_bytes) {
        at += next_piece(&map, (struct moec_text){text.bytes + at, text.n_bytes - at}, &piece);
        while (after_space && piece.n_bytes > 0 && *piece.bytes == ' ') {
            piece.bytes++;
            piece.n_bytes--;
        }
        MOEC_TRY(append_marked(out, piece.bytes, piece.n_bytes, err));
        if (piece.n_bytes > 0)
            after_space = remove_extra && piece.bytes[piece.n_bytes - 1] == ' ';
        if (out->n_bytes > out->limit_bytes)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "the tokenizer's character map makes more than %zu "
                             "bytes from a text of %zu bytes",
                             out->limit_bytes, text.n_bytes);
    }
    const size_t n_mark = sizeof SPACE_MARK - 1;
    while (remove_extra && out->n_bytes >= n_mark &&
           memcmp(out->bytes + out->n_bytes - n_mark, SPACE_MARK, n_mark) == 0)
        out->n_bytes -= n_mark;
    return dummy && as_suffix ? append_mark(out, err) : MOEC_OK;
}
