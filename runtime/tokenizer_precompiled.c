#include "runtime/tokenizer_internal.h"

#include "formats/bytes.h"
#include "formats/utf8.h"

#include <utf8proc.h>

/* SentencePiece's compiled character map, the way of the `tokenizers` library, which is not SentencePiece's:
 * the text falls into grapheme clusters (UAX 29); one of under six bytes that begins with an entry of the map
 * becomes what the shortest such entry stands for, as a whole; of the others, each character does the same
 * for itself.
 *
 * A unit of the trie (S. Yata, Darts-clone): bits 0-7 label, bit 8 has a leaf, bit 9 the offset is wide, bits
 * 10-30 offset, bit 31 leaf. */

#define SHORT_CLUSTER_BYTES 6

struct charsmap {
    const uint8_t *units;
    uint32_t n_unit;
    const char *texts; /* valid UTF-8 */
    size_t n_text;
};

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* The text of the shortest entry that key[n_bytes] starts with; false when there is none. A trie that points
 * outside itself has none there. */
static bool find_entry(const struct charsmap *map, const char *key, size_t n_bytes, const char **text,
                       size_t *text_bytes)
{
    uint32_t at = offset_of(moec_get_u32(map->units));
    for (size_t i = 0; i < n_bytes && key[i] != '\0'; i++) {
        const uint8_t byte = (uint8_t)key[i];
        at ^= byte;
        if (at >= map->n_unit)
            return false;
        uint32_t unit = moec_get_u32(map->units + 4 * (size_t)at);
        if ((unit & (1u << 31 | 0xFFu)) != byte)
            return false;
        at ^= offset_of(unit);
        if ((unit >> 8 & 1) == 0)
            continue;
        if (at >= map->n_unit)
            return false;
        const size_t start = moec_get_u32(map->units + 4 * (size_t)at) & ~(1u << 31);
        if (start > map->n_text || (start < map->n_text && ((uint8_t)map->texts[start] & 0xC0) == 0x80))
            return false;
        size_t end = start;
        while (end < map->n_text && map->texts[end] != '\0')
            end++;
        *text = map->texts + start;
        *text_bytes = end - start;
        return true;
    }
    return false;
}

/* Appends the cluster text[n_bytes]. */
static enum moec_status append_cluster(const struct charsmap *map, const char *text, size_t n_bytes,
                                       struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    const char *entry = NULL;
    size_t n_entry = 0;
    if (n_bytes < SHORT_CLUSTER_BYTES && find_entry(map, text, n_bytes, &entry, &n_entry))
        return moec_buffer_append(out, entry, n_entry, err);
    for (size_t at = 0; at < n_bytes;) {
        const size_t n_char = moec_utf8_read(text + at, n_bytes - at).n_bytes;
        if (find_entry(map, text + at, n_char, &entry, &n_entry))
            MOEC_TRY(moec_buffer_append(out, entry, n_entry, err));
        else
            MOEC_TRY(moec_buffer_append(out, text + at, n_char, err));
        at += n_char;
    }
    return MOEC_OK;
}

enum moec_status moec_tokenizer_precompiled(const struct moec_tokenizer_model *model, const char *text,
                                            size_t n_bytes, struct moec_tokenizer_buffer *out,
                                            size_t limit_bytes, struct moec_error *err)
{
    const uint32_t trie_bytes = moec_get_u32(model->charsmap);
    const struct charsmap map = {.units = model->charsmap + 4,
                                 .n_unit = trie_bytes / 4,
                                 .texts = (const char *)model->charsmap + 4 + trie_bytes,
                                 .n_text = model->charsmap_bytes - 4 - trie_bytes};
    utf8proc_int32_t state = 0;
    size_t start = 0;
    uint32_t before = 0;
    for (size_t at = 0; at < n_bytes;) {
        struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
        if (at > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)before,
                                                       (utf8proc_int32_t)c.code_point, &state)) {
            MOEC_TRY(append_cluster(&map, text + start, at - start, out, err));
            start = at;
        }
        if (out->n_bytes > limit_bytes)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "the tokenizer's character map makes more than %zu bytes of a text of %zu",
                             limit_bytes, n_bytes);
        before = c.code_point;
        at += c.n_bytes;
    }
    return n_bytes > 0 ? append_cluster(&map, text + start, n_bytes - start, out, err) : MOEC_OK;
}
