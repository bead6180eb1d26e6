/* Long texts in pieces. A word that has the length of the text, a normalised copy and merges take many times
 * the text's bytes; a piece takes a bounded part of that.
 *
 * Whether text may be cut at a place depends on patterns, normalizers and vocabulary, so it is tried: a place
 * between two words is good when the tokens of the words before it (the context) are the same whether other
 * words follow or not. A piece is encoded behind its context, whose tokens are then taken off, because a text
 * may begin in another way than it goes on. The piece before must end with the context's last tokens too.
 * Where a check fails, the next place is tried; a text without a good place stays whole. */
#include "formats/base/memory.h"
#include "runtime/text/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* Text on either side of a place that decides whether it is good, without the words at its ends. */
#define CONTEXT_BYTES ((size_t)1024)
/* Longest context; the words of prose are shorter than its rest. */
#define MAX_CONTEXT_BYTES ((size_t)16 << 10)
/* Places tried in one stretch of text; in prose the first one is good. */
#define MAX_TRIED 8

struct pieces {
    const struct moec_tokenizer *tokenizer;
    const char *text;
    size_t n_bytes;
    uint64_t *left_bytes;
    uint32_t *ids; /* owned, until they are handed over */
    size_t n_ids, ids_capacity;
    struct moec_error *err;
};

/* Tokens of text[from..to). */
struct stretch {
    uint32_t *ids; /* owned */
    size_t n_ids;
    uint64_t n_bytes; /* of the budget */
};

static enum moec_status encode_stretch(const struct pieces *p, size_t from, size_t to, struct stretch *out)
{
    const uint64_t before = *p->left_bytes;
    *out = (struct stretch){0};
    MOEC_TRY(moec_tokenizer_encode_whole(p->tokenizer, (struct moec_text){p->text + from, to - from}, false,
                                         p->left_bytes, &out->ids, &out->n_ids, p->err));
    out->n_bytes = before - *p->left_bytes;
    return MOEC_OK;
}

static void release_stretch(const struct pieces *p, struct stretch *stretch)
{
    free(stretch->ids);
    *p->left_bytes += stretch->n_bytes;
    *stretch = (struct stretch){0};
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Behind a line, or before the space that a word begins with. */
static bool ends_line(const char *text, size_t at)
{
    return text[at - 1] == '\n' && !is_space(text[at]);
}

static bool is_between_words(const struct pieces *p, size_t at)
{
    if (at < 2 || at + 1 >= p->n_bytes)
        return false;
    if (ends_line(p->text, at))
        return !is_space(p->text[at - 2]);
    return p->text[at] == ' ' && !is_space(p->text[at - 1]) && !is_space(p->text[at + 1]);
}

/* Where the context of a place begins, and where the words that follow it end. */
static size_t context_start(const struct pieces *p, size_t at)
{
    size_t from = at > CONTEXT_BYTES ? at - CONTEXT_BYTES : 0;
    while (from > 0 && !is_between_words(p, from))
        from--;
    return from;
}

static size_t context_end(const struct pieces *p, size_t at)
{
    size_t to = p->n_bytes - at > CONTEXT_BYTES ? at + CONTEXT_BYTES : p->n_bytes;
    while (to < p->n_bytes && !is_between_words(p, to))
        to++;
    return to;
}

static bool starts_with(const struct stretch *whole, const struct stretch *start)
{
    return start->n_ids > 0 && whole->n_ids >= start->n_ids &&
           memcmp(whole->ids, start->ids, start->n_ids * sizeof *start->ids) == 0;
}

static enum moec_status try_place(const struct pieces *p, size_t at, bool *is_good)
{
    const size_t from = context_start(p, at), to = context_end(p, at);
    struct stretch before = {0}, both = {0};
    *is_good = false;
    if (at - from > MAX_CONTEXT_BYTES || to - at > MAX_CONTEXT_BYTES)
        return MOEC_OK;
    enum moec_status status = encode_stretch(p, from, at, &before);
    if (status == MOEC_OK)
        status = encode_stretch(p, from, to, &both);
    *is_good = status == MOEC_OK && starts_with(&both, &before);
    release_stretch(p, &both);
    release_stretch(p, &before);
    return status;
}

/* Sets *at to the last good place of text[from..to); 0 without one. Ends of lines are tried first. */
static enum moec_status find_place(const struct pieces *p, size_t from, size_t to, size_t *at)
{
    for (int lines = 1; lines >= 0; lines--) {
        unsigned n_tried = 0;
        for (*at = to; --*at > from && n_tried < MAX_TRIED;) {
            bool is_good = false;
            if (!is_between_words(p, *at) || ends_line(p->text, *at) != (lines == 1))
                continue;
            MOEC_TRY(try_place(p, *at, &is_good));
            if (is_good)
                return MOEC_OK;
            n_tried++;
        }
    }
    *at = 0;
    return MOEC_OK;
}

/* Where the piece that begins at `start` ends: behind half a piece or more, or at the end of the text. */
static enum moec_status find_end(const struct pieces *p, size_t start, size_t *end)
{
    const size_t half = MOEC_TOKENIZER_PIECE_BYTES / 2;
    size_t from = start;
    do {
        /* What is left makes one piece. */
        if (p->n_bytes - from <= 2 * half) {
            *end = p->n_bytes;
            return MOEC_OK;
        }
        from += half;
        MOEC_TRY(find_place(p, from, from + half, end));
    } while (*end == 0);
    return MOEC_OK;
}

static enum moec_status append(struct pieces *p, const uint32_t *ids, size_t n)
{
    if (n == 0)
        return MOEC_OK;
    MOEC_TRY(moec_grow_within((void **)&p->ids, &p->ids_capacity, p->n_ids + n, sizeof *p->ids, p->left_bytes,
                              "token ids", p->err));
    memcpy(p->ids + p->n_ids, ids, n * sizeof *ids);
    p->n_ids += n;
    return MOEC_OK;
}

/* Whether the tokens so far end with the later half of the context's. */
static bool ends_with(const struct pieces *p, size_t first, const struct stretch *context)
{
    const size_t n = (context->n_ids + 1) / 2;
    return p->n_ids - first >= n &&
           memcmp(p->ids + p->n_ids - n, context->ids + context->n_ids - n, n * sizeof *context->ids) == 0;
}

/* Adds the tokens of text[start..end). `first`: where the tokens of text begin. */
static enum moec_status add_piece(struct pieces *p, size_t first, size_t start, size_t end, bool *fits)
{
    enum moec_status status = MOEC_OK;
    struct stretch context = {0}, piece = {0};
    const size_t from = start > 0 ? context_start(p, start) : 0;
    *fits = true;
    if (start > 0) {
        MOEC_TRY_OUT(encode_stretch(p, from, start, &context));
        *fits = ends_with(p, first, &context);
    }
    MOEC_TRY_OUT(encode_stretch(p, from, end, &piece));
    *fits = *fits && (start == 0 || starts_with(&piece, &context));
    if (*fits)
        status = append(p, piece.ids + context.n_ids, piece.n_ids - context.n_ids);
out:
    release_stretch(p, &piece);
    release_stretch(p, &context);
    return status;
}

/* *fits: false where pieces and their contexts contradict each other; the tokens are then of no use. */
static enum moec_status add_pieces(struct pieces *p, bool *fits)
{
    const size_t first = p->n_ids;
    *fits = true;
    for (size_t start = 0, end = 0; start < p->n_bytes && *fits; start = end) {
        MOEC_TRY(find_end(p, start, &end));
        MOEC_TRY(add_piece(p, first, start, end, fits));
    }
    return MOEC_OK;
}

/* Gives back what the array has to spare. */
static void hand_over(struct pieces *p, uint32_t **ids, size_t *n_ids)
{
    uint32_t *exact = realloc(p->ids, p->n_ids * sizeof *exact);
    *ids = exact != NULL ? exact : p->ids;
    *n_ids = p->n_ids;
    p->ids = NULL;
}

static enum moec_status encode_pieces(struct pieces *p, bool add_special, bool *fits)
{
    const struct moec_tokenizer_model *m = p->tokenizer->model;
    MOEC_TRY(append(p, m->prefix,
                    add_special ? moec_tokenizer_prefix_count(p->tokenizer, p->text, p->n_bytes) : 0));
    MOEC_TRY(add_pieces(p, fits));
    return append(p, m->suffix, add_special ? m->n_suffix : 0);
}

enum moec_status moec_tokenizer_encode_within(const struct moec_tokenizer *tokenizer, struct moec_text text,
                                              bool add_special, uint64_t *left_bytes, uint32_t **ids,
                                              size_t *n_ids, struct moec_error *err)
{
    uint64_t budget = *left_bytes;
    bool fits = false;
    struct pieces p = {.tokenizer = tokenizer,
                       .text = text.bytes,
                       .n_bytes = text.n_bytes,
                       .left_bytes = &budget,
                       .err = err};
    if (text.n_bytes <= MOEC_TOKENIZER_PIECE_BYTES || text.n_bytes > MOEC_TOKENIZER_MAX_INPUT_BYTES)
        return moec_tokenizer_encode_whole(tokenizer, text, add_special, left_bytes, ids, n_ids, err);
    *ids = NULL;
    *n_ids = 0;
    const enum moec_status status = encode_pieces(&p, add_special, &fits);
    if (status == MOEC_OK && fits) {
        *left_bytes -= p.n_ids * sizeof *p.ids;
        hand_over(&p, ids, n_ids);
    }
    free(p.ids);
    if (status == MOEC_OK && !fits)
        return moec_tokenizer_encode_whole(tokenizer, text, add_special, left_bytes, ids, n_ids, err);
    return status;
}
