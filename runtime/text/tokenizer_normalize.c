/* Unicode's normalisation forms by utf8proc's tables, with an ordering of marks in O(n log n) instead of its
 * exchange of neighbours. Characters that the library's older tables do not know as marks are left alone
 * (inert). An ASCII character joins nothing before it, so text is normalised in pieces that begin with one.
 * first_bytes follows the input's first character through every step, which Metaspace's "first" needs. */
#include "runtime/text/tokenizer_internal.h"
#include "runtime/text/unicode_sets.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <string.h>
#include <utf8proc.h>

/* ---- normalization forms ---- */

/* utf8proc_decompose sorts combining marks by exchanging neighbours, which is quadratic on a long run of
 * them. Here it decomposes single characters and composes; the sorting between is a stable merge sort. */

struct code_points {
    utf8proc_int32_t *items;
    size_t count, capacity;
    uint64_t *left_bytes; /* borrowed: the budget that it grows within; NULL: none */
};

static int combining_class(utf8proc_int32_t code_point)
{
    int class = utf8proc_get_property(code_point)->combining_class;
    return class != 0 && moec_unicode_is_inert((uint32_t)code_point) ? 0 : class;
}

/* Merges the sorted halves items[0..middle) and items[middle..count), stable. */
static void merge_halves(utf8proc_int32_t *items, size_t middle, size_t count, utf8proc_int32_t *spare)
{
    size_t left = 0;
    size_t right = middle;
    memcpy(spare, items, middle * sizeof *items);
    for (size_t at = 0; left < middle; at++) {
        if (right < count && combining_class(items[right]) < combining_class(spare[left]))
            items[at] = items[right++];
        else
            items[at] = spare[left++];
    }
}

/* Bottom-up, so that a long run costs no stack. `spare` holds as many as items. */
static void sort_marks(utf8proc_int32_t *items, size_t count, utf8proc_int32_t *spare)
{
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t at = 0; count - at > width; at += 2 * width) {
            size_t run = count - at < 2 * width ? count - at : 2 * width;
            merge_halves(items + at, width, run, spare);
            if (count - at <= 2 * width)
                break;
        }
    }
}

/* Canonical ordering: each run of characters with a non-zero class is sorted by class (Unicode 15, D109). */
static enum moec_status order_marks(struct code_points *text, struct moec_error *err)
{
    utf8proc_int32_t *spare = NULL;
    size_t at = 0;
    while (at < text->count) {
        if (combining_class(text->items[at]) == 0) {
            at++;
            continue;
        }
        size_t end = at + 1;
        bool sorted = true;
        for (; end < text->count && combining_class(text->items[end]) != 0; end++)
            sorted = sorted && combining_class(text->items[end - 1]) <= combining_class(text->items[end]);
        if (!sorted) {
            if (spare == NULL)
                MOEC_TRY(moec_alloc((void **)&spare, text->count, sizeof *spare, "a run of marks", err));
            sort_marks(text->items + at, end - at, spare);
        }
        at = end;
    }
    free(spare);
    return MOEC_OK;
}

static enum moec_status decompose(const char *text, size_t n_bytes, bool compatible, struct code_points *out,
                                  struct moec_error *err)
{
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    out->count = 0;
    for (size_t at = 0; at < n_bytes;) {
        struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
        at += c.n_bytes;
        /* No character decomposes into more than 18 (U+FDFA). */
        MOEC_TRY(moec_grow_within((void **)&out->items, &out->capacity, out->count + 32, sizeof *out->items,
                                  out->left_bytes, "text to normalise", err));
        if (moec_unicode_is_inert(c.code_point)) {
            out->items[out->count++] = (utf8proc_int32_t)c.code_point;
            continue;
        }
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c.code_point, out->items + out->count,
                                                     32, options, &boundary);
        if (n < 0 || n > 32)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "character U+%04X of the text cannot be decomposed for Unicode normalisation",
                             c.code_point);
        out->count += (size_t)n;
    }
    return MOEC_OK;
}

/* True where composition must not look across: around what the library does not know as a mark, inside the
 * one pair that Unicode composes only since version 13 (U+11935 U+11930), and before U+11A7, which
 * utf8proc 2.8 takes for a Hangul final consonant and swallows. */
static bool composition_ends(const struct code_points *text, size_t at)
{
    utf8proc_int32_t left = text->items[at - 1];
    utf8proc_int32_t right = text->items[at];
    return moec_unicode_is_inert((uint32_t)left) || moec_unicode_is_inert((uint32_t)right) ||
           right == 0x11A7 || (left == 0x11935 && right == 0x11930);
}

static void compose(struct code_points *text)
{
    size_t kept = 0;
    for (size_t at = 0; at < text->count;) {
        size_t end = at + 1;
        while (end < text->count && !composition_ends(text, end))
            end++;
        utf8proc_ssize_t n = utf8proc_normalize_utf32(text->items + at, (utf8proc_ssize_t)(end - at),
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        memmove(text->items + kept, text->items + at, (size_t)n * sizeof *text->items);
        kept += (size_t)n;
        at = end;
    }
    text->count = kept;
}

static enum moec_status append_code_points(const struct code_points *text, struct moec_tokenizer_buffer *out,
                                           struct moec_error *err)
{
    char bytes[256];
    size_t n = 0;
    for (size_t i = 0; i < text->count; i++) {
        n += moec_utf8_write((uint32_t)text->items[i], bytes + n);
        if (n > sizeof bytes - 4) {
            MOEC_TRY(moec_buffer_append(out, bytes, n, err));
            n = 0;
        }
    }
    return moec_buffer_append(out, bytes, n, err);
}

static bool is_ascii(char c)
{
    return (unsigned char)c < 0x80;
}

/* An ASCII character never changes and never joins what stands before it, so the text falls into pieces that
 * begin with one; only pieces that have more are normalised, which also bounds the memory for ordinary text.
 */
static enum moec_status normalize_form(uint32_t form, const char *text, size_t n_bytes,
                                       struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    struct code_points points = {.left_bytes = out->left_bytes};
    enum moec_status status = MOEC_OK;
    bool compatible = form == MOEC_STEP_NFKC || form == MOEC_STEP_NFKD;
    bool composed = form == MOEC_STEP_NFC || form == MOEC_STEP_NFKC;
    size_t at = 0;
    while (at < n_bytes) {
        size_t plain = at;
        while (plain < n_bytes && is_ascii(text[plain]))
            plain++;
        if (plain < n_bytes && plain > at)
            plain--;
        MOEC_TRY_OUT(moec_buffer_append(out, text + at, plain - at, err));
        size_t end = plain < n_bytes ? plain + 1 : plain;
        while (end < n_bytes && !is_ascii(text[end]))
            end++;
        MOEC_TRY_OUT(decompose(text + plain, end - plain, compatible, &points, err));
        MOEC_TRY_OUT(order_marks(&points, err));
        if (composed)
            compose(&points);
        MOEC_TRY_OUT(append_code_points(&points, out, err));
        at = end;
    }
out:
    free(points.items);
    return status;
}

/* ---- the other steps ---- */

static enum moec_status lowercase(const char *text, size_t n_bytes, struct moec_tokenizer_buffer *out,
                                  struct moec_error *err)
{
    for (size_t at = 0; at < n_bytes;) {
        struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
        char bytes[8];
        /* U+0130 is the one character whose lower case is two: i and U+0307. */
        bool dotted = c.code_point == 0x130;
        size_t n =
            moec_utf8_write(dotted ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c.code_point), bytes);
        if (dotted)
            n += moec_utf8_write(0x307, bytes + n);
        MOEC_TRY(moec_buffer_append(out, bytes, n, err));
        at += c.n_bytes;
    }
    return MOEC_OK;
}

/* Start of the last character of text[n_bytes], n_bytes > 0. */
static size_t last_char(const char *text, size_t n_bytes)
{
    size_t at = n_bytes - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80)
        at--;
    return at;
}

static enum moec_status strip(const struct moec_tokenizer_step *step, const char *text, size_t n_bytes,
                              struct moec_tokenizer_buffer *out, bool *keeps_start, struct moec_error *err)
{
    size_t start = 0;
    size_t end = n_bytes;
    while ((step->flags & MOEC_STEP_LEFT) != 0 && start < end) {
        struct moec_utf8_char c = moec_utf8_read(text + start, end - start);
        if (!moec_unicode_is_space(c.code_point))
            break;
        start += c.n_bytes;
        *keeps_start = false;
    }
    while ((step->flags & MOEC_STEP_RIGHT) != 0 && end > start) {
        size_t last = last_char(text, end);
        if (!moec_unicode_is_space(moec_utf8_read(text + last, end - last).code_point))
            break;
        end = last;
    }
    return moec_buffer_append(out, text + start, end - start, err);
}

/* Bytes as ByteLevel's characters. */
static enum moec_status map_bytes(const char *text, size_t n_bytes, struct moec_tokenizer_buffer *out,
                                  struct moec_error *err)
{
    for (size_t i = 0; i < n_bytes; i++) {
        char mapped[4];
        const size_t n = moec_utf8_write(moec_byte_level_char((uint8_t)text[i]), mapped);
        MOEC_TRY(moec_buffer_append(out, mapped, n, err));
    }
    return MOEC_OK;
}

static enum moec_status apply_step(const struct moec_tokenizer *tokenizer, uint32_t index,
                                   struct moec_text text, struct moec_tokenizer_buffer *out,
                                   bool *keeps_start, struct moec_error *err)
{
    const struct moec_tokenizer_model *m = tokenizer->model;
    const struct moec_tokenizer_step *step = &m->normalizer[index];
    const char *content = m->text + step->content.offset;
    switch (step->kind) {
    case MOEC_STEP_LOWERCASE:
        return lowercase(text.bytes, text.n_bytes, out, err);
    case MOEC_STEP_PREPEND:
        if (text.n_bytes > 0)
            MOEC_TRY(moec_buffer_append(out, content, step->content.length, err));
        return moec_buffer_append(out, text.bytes, text.n_bytes, err);
    case MOEC_STEP_REPLACE:
        return moec_pattern_replace(tokenizer->normalizer_patterns[index], text,
                                    (struct moec_text){content, step->content.length}, out, keeps_start, err);
    case MOEC_STEP_STRIP:
        return strip(step, text.bytes, text.n_bytes, out, keeps_start, err);
    case MOEC_STEP_BYTE_LEVEL:
        return map_bytes(text.bytes, text.n_bytes, out, err);
    case MOEC_STEP_SENTENCEPIECE:
        return moec_tokenizer_sentencepiece(m, step, text, out, err);
    case MOEC_STEP_REPLACE_EACH:
        return moec_tokenizer_replace_each((struct moec_text){content, step->content.length}, text, out, err);
    case MOEC_STEP_PRECOMPILED:
        return moec_tokenizer_precompiled(m, text, out, err);
    default:
        return normalize_form(step->kind, text.bytes, text.n_bytes, out, err);
    }
}

/* Bytes of the characters with which both texts begin; `least` where there are fewer. */
static size_t longest_common(const char *a, size_t n_a, const char *b, size_t n_b, size_t least)
{
    size_t n = 0;
    while (n < n_a && n < n_b) {
        const size_t n_char = moec_utf8_read(a + n, n_a - n).n_bytes;
        if (n_char > n_b - n || memcmp(a + n, b + n, n_char) != 0)
            break;
        n += n_char;
    }
    return n > least ? n : least;
}

/* How many bytes of a step's result stand for the first character that the library was given, of which
 * `first` bytes begin the step's text: those that the step makes of them, up to where what follows joins in
 * or moves between them (a mark that belongs before one of theirs). */
static enum moec_status follow_first(const struct moec_tokenizer_step *step, const char *text, size_t first,
                                     const struct moec_tokenizer_buffer *out, size_t *follows,
                                     struct moec_error *err)
{
    struct moec_tokenizer_buffer alone = {0};
    enum moec_status status = MOEC_OK;
    *follows = out->n_bytes == 0 ? 0 : moec_utf8_read(out->bytes, out->n_bytes).n_bytes;
    switch (step->kind) {
    case MOEC_STEP_NFC:
    case MOEC_STEP_NFD:
    case MOEC_STEP_NFKC:
    case MOEC_STEP_NFKD:
        status = normalize_form(step->kind, text, first, &alone, err);
        break;
    case MOEC_STEP_LOWERCASE:
        status = lowercase(text, first, &alone, err);
        break;
    case MOEC_STEP_BYTE_LEVEL:
        status = map_bytes(text, first, &alone, err);
        break;
    default:
        return MOEC_OK;
    }
    if (status == MOEC_OK)
        *follows = longest_common(alone.bytes, alone.n_bytes, out->bytes, out->n_bytes, *follows);
    free(alone.bytes);
    return status;
}

enum moec_status moec_tokenizer_normalize(const struct moec_tokenizer *tokenizer, struct moec_text text,
                                          struct moec_tokenizer_buffer buffers[2], struct moec_text *out,
                                          size_t *first_bytes, struct moec_error *err)
{
    /* Compatibility forms make at most 11 bytes of one (U+FDFA); no published tokenizer comes near. */
    size_t limit_bytes = 64 * text.n_bytes + 65536;
    *out = text;
    for (uint32_t i = 0; i < tokenizer->model->n_normalizer; i++) {
        struct moec_tokenizer_buffer *to = &buffers[i % 2];
        bool keeps_start = *first_bytes > 0;
        to->n_bytes = 0;
        to->limit_bytes = limit_bytes;
        MOEC_TRY(moec_buffer_append(to, "", 0, err));
        MOEC_TRY(apply_step(tokenizer, i, *out, to, &keeps_start, err));
        if (keeps_start && tokenizer->cares_for_start)
            MOEC_TRY(follow_first(&tokenizer->model->normalizer[i], out->bytes, *first_bytes, to, first_bytes,
                                  err));
        else
            *first_bytes = 0;
        *out = (struct moec_text){to->bytes, to->n_bytes};
    }
    return MOEC_OK;
}

const char *moec_tokenizer_utf8proc_version(void)
{
    return utf8proc_version();
}
