/* Each step cuts a text into parts and hands every non-empty part to the next step at once, depth first;
 * after the last step a part is a word. The order of words is that of the library, which runs step by step
 * over all parts, and nothing grows with the number of words. */
#include "runtime/text/tokenizer_internal.h"
#include "runtime/text/unicode_sets.h"

#include "formats/base/utf8.h"

#include <string.h>

struct part {
    const char *text;
    size_t n_bytes;
    size_t
        first; /* bytes at its start that stand for the first character of the input: Metaspace's "first" */
};

static enum moec_status run_step(struct moec_encoding *e, uint32_t index, struct part part);

static struct part part_of(struct part whole, size_t start, size_t end)
{
    return (struct part){whole.text + start, end - start, start < whole.first ? whole.first - start : 0};
}

static enum moec_status hand_on(struct moec_encoding *e, uint32_t index, struct part part)
{
    if (part.n_bytes == 0)
        return MOEC_OK;
    if (index + 1 < e->tokenizer->model->n_pretokenizer)
        return run_step(e, index + 1, part);
    return moec_tokenizer_word(e, part.text, part.n_bytes);
}

/* ---- split behaviours ---- */

/* Turns the stream of matches and gaps into parts, as NormalizedString::split does. One part is kept back,
 * because what comes next may join it. */
struct splitter {
    struct moec_encoding *e;
    uint32_t index;
    enum moec_split_behavior behavior;
    struct part whole;
    size_t start, end; /* the part kept back */
    bool kept;
    bool kept_is_match;
};

static enum moec_status flush(struct splitter *s)
{
    if (!s->kept)
        return MOEC_OK;
    s->kept = false;
    return hand_on(s->e, s->index, part_of(s->whole, s->start, s->end));
}

static enum moec_status keep(struct splitter *s, size_t start, size_t end)
{
    MOEC_TRY(flush(s));
    s->start = start;
    s->end = end;
    s->kept = true;
    return MOEC_OK;
}

/* `previous_is_match` is that of the match or gap just before; false at the start. */
static enum moec_status take(struct splitter *s, size_t start, size_t end, bool is_match,
                             bool previous_is_match)
{
    bool joins = false;
    switch (s->behavior) {
    case MOEC_SPLIT_REMOVED:
        return is_match ? MOEC_OK : keep(s, start, end);
    case MOEC_SPLIT_ISOLATED:
        break;
    case MOEC_SPLIT_CONTIGUOUS:
        joins = is_match == previous_is_match;
        break;
    case MOEC_SPLIT_MERGED_WITH_PREVIOUS:
        joins = is_match && !previous_is_match;
        break;
    case MOEC_SPLIT_MERGED_WITH_NEXT:
        joins = !is_match && previous_is_match;
        break;
    }
    if (joins && s->kept) {
        s->end = end;
        return MOEC_OK;
    }
    return keep(s, start, end);
}

static enum moec_status split_by_pattern(struct moec_encoding *e, uint32_t index, struct part part,
                                         const struct moec_pattern *pattern,
                                         enum moec_split_behavior behavior, bool invert)
{
    struct splitter s = {.e = e, .index = index, .behavior = behavior, .whole = part};
    struct moec_pattern_walk walk;
    struct moec_pattern_part found = {0};
    bool previous = false;
    bool more = true;
    MOEC_TRY(
        moec_pattern_walk_init(&walk, pattern, part.text, part.n_bytes, &e->pattern_memory[index], e->err));
    for (;;) {
        MOEC_TRY(moec_pattern_walk_next(&walk, &found, &more, e->err));
        if (!more)
            break;
        bool is_match = found.is_match != invert;
        MOEC_TRY(take(&s, found.start, found.end, is_match, previous));
        previous = is_match;
    }
    return flush(&s);
}

/* Every character of the set is a match of its own. */
static enum moec_status split_by_set(struct moec_encoding *e, uint32_t index, struct part part,
                                     bool (*in_set)(uint32_t), enum moec_split_behavior behavior)
{
    struct splitter s = {.e = e, .index = index, .behavior = behavior, .whole = part};
    bool previous = false;
    size_t gap = 0;
    for (size_t at = 0; at < part.n_bytes;) {
        struct moec_utf8_char c = moec_utf8_read(part.text + at, part.n_bytes - at);
        if (in_set(c.code_point)) {
            if (gap < at) {
                MOEC_TRY(take(&s, gap, at, false, previous));
                previous = false;
            }
            gap = at + c.n_bytes;
            MOEC_TRY(take(&s, at, gap, true, previous));
            previous = true;
        }
        at += c.n_bytes;
    }
    if (gap < part.n_bytes)
        MOEC_TRY(take(&s, gap, part.n_bytes, false, previous));
    return flush(&s);
}

/* ---- single steps ---- */

enum char_class {
    CLASS_SPACE,
    CLASS_WORD,
    CLASS_OTHER,
};

static enum char_class class_of(uint32_t code_point)
{
    if (moec_unicode_is_word(code_point))
        return CLASS_WORD;
    return moec_unicode_is_space(code_point) ? CLASS_SPACE : CLASS_OTHER;
}

/* \w+|[^\w\s]+ : runs of one class, white space dropped. */
static enum moec_status split_words(struct moec_encoding *e, uint32_t index, struct part part)
{
    enum char_class run = CLASS_SPACE;
    size_t start = 0;
    size_t at = 0;
    while (at < part.n_bytes) {
        struct moec_utf8_char c = moec_utf8_read(part.text + at, part.n_bytes - at);
        enum char_class class = class_of(c.code_point);
        if (class != run) {
            if (run != CLASS_SPACE)
                MOEC_TRY(hand_on(e, index, part_of(part, start, at)));
            start = at;
            run = class;
        }
        at += c.n_bytes;
    }
    if (run == CLASS_SPACE)
        return MOEC_OK;
    return hand_on(e, index, part_of(part, start, at));
}

static enum moec_status metaspace(struct moec_encoding *e, uint32_t index, struct part part)
{
    const struct moec_tokenizer_step *step = &e->tokenizer->model->pretokenizer[index];
    const char *mark = e->tokenizer->model->text + step->content.offset;
    size_t mark_bytes = step->content.length;
    struct moec_tokenizer_buffer *out = &e->scratch[index];
    bool marked =
        part.text[0] == ' ' || (part.n_bytes >= mark_bytes && memcmp(part.text, mark, mark_bytes) == 0);
    bool prepend = step->mode == MOEC_PREPEND_ALWAYS || (step->mode == MOEC_PREPEND_FIRST && part.first > 0);
    out->n_bytes = 0;
    if (prepend && !marked)
        MOEC_TRY(moec_buffer_append(out, mark, mark_bytes, e->err));
    for (size_t at = 0; at < part.n_bytes;) {
        const char *space = memchr(part.text + at, ' ', part.n_bytes - at);
        size_t end = space != NULL ? (size_t)(space - part.text) : part.n_bytes;
        MOEC_TRY(moec_buffer_append(out, part.text + at, end - at, e->err));
        if (space != NULL)
            MOEC_TRY(moec_buffer_append(out, mark, mark_bytes, e->err));
        at = end + 1;
    }
    struct part marked_part = {out->bytes, out->n_bytes, part.first > 0 ? 1 : 0};
    if ((step->flags & MOEC_STEP_CUT) == 0)
        return hand_on(e, index, marked_part);
    return split_by_pattern(e, index, marked_part, e->tokenizer->pretokenizer_patterns[index],
                            MOEC_SPLIT_MERGED_WITH_NEXT, false);
}

/* Cuts only; tokenizer_bpe.c maps bytes to symbols, so that no text of mapped characters is ever made. */
static enum moec_status byte_level(struct moec_encoding *e, uint32_t index, struct part part)
{
    const struct moec_tokenizer_step *step = &e->tokenizer->model->pretokenizer[index];
    if ((step->flags & MOEC_STEP_PREFIX_SPACE) != 0 && part.text[0] != ' ') {
        struct moec_tokenizer_buffer *out = &e->scratch[index];
        out->n_bytes = 0;
        MOEC_TRY(moec_buffer_append(out, " ", 1, e->err));
        MOEC_TRY(moec_buffer_append(out, part.text, part.n_bytes, e->err));
        part.text = out->bytes;
        part.n_bytes = out->n_bytes;
    }
    if ((step->flags & MOEC_STEP_USE_REGEX) == 0)
        return hand_on(e, index, part);
    return split_by_pattern(e, index, part, e->tokenizer->pretokenizer_patterns[index], MOEC_SPLIT_ISOLATED,
                            false);
}

static enum moec_status run_step(struct moec_encoding *e, uint32_t index, struct part part)
{
    const struct moec_tokenizer_step *step = &e->tokenizer->model->pretokenizer[index];
    enum moec_split_behavior behavior = step->mode;
    switch (step->kind) {
    case MOEC_STEP_BYTE_LEVEL:
        return byte_level(e, index, part);
    case MOEC_STEP_METASPACE:
        return metaspace(e, index, part);
    case MOEC_STEP_DIGITS:
        return split_by_set(e, index, part, moec_unicode_is_numeric, behavior);
    case MOEC_STEP_PUNCTUATION:
        return split_by_set(e, index, part, moec_unicode_is_punctuation, behavior);
    case MOEC_STEP_WHITESPACE:
        return split_words(e, index, part);
    case MOEC_STEP_WHITESPACE_SPLIT:
        return split_by_set(e, index, part, moec_unicode_is_space, MOEC_SPLIT_REMOVED);
    default:
        return split_by_pattern(e, index, part, e->tokenizer->pretokenizer_patterns[index], behavior,
                                (step->flags & MOEC_STEP_INVERT) != 0);
    }
}

enum moec_status moec_tokenizer_pretokenize(struct moec_encoding *encoding, const char *text, size_t n_bytes,
                                            size_t first_bytes)
{
    struct part part = {text, n_bytes, first_bytes};
    if (n_bytes == 0)
        return MOEC_OK;
    if (encoding->tokenizer->model->n_pretokenizer == 0)
        return moec_tokenizer_word(encoding, text, n_bytes);
    return run_step(encoding, 0, part);
}
