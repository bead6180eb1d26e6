/* The tokenizer of GPTSAN-japanese, as transformers 4.57's SubWordJapaneseTokenizer has it (tanreinama's
 * Japanese-BPEEncoder V2), without its cleaning of texts. */
#include "formats/base/utf8.h"
#include "runtime/text/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- encode ---- */

/* out = text with `from` replaced by `to`, left to right. */
static enum moec_status replace(const char *text, size_t n_bytes, const char *from, const char *to,
                                struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    const size_t n_from = strlen(from), n_to = strlen(to);
    for (size_t at = 0; at < n_bytes;) {
        const char *hit = memmem(text + at, n_bytes - at, from, n_from);
        const size_t end = hit != NULL ? (size_t)(hit - text) : n_bytes;
        MOEC_TRY(moec_buffer_append(out, text + at, end - at, err));
        if (hit != NULL)
            MOEC_TRY(moec_buffer_append(out, to, n_to, err));
        at = hit != NULL ? end + n_from : end;
    }
    return MOEC_OK;
}

enum moec_status moec_tokenizer_replace_each(struct moec_text pairs, struct moec_text text,
                                             struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    struct moec_tokenizer_buffer other = {.left_bytes = out->left_bytes, .limit_bytes = out->limit_bytes};
    const char *at = pairs.bytes, *from = NULL, *to = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_buffer_append(out, text.bytes, text.n_bytes, err));
    while (moec_tokenizer_next_pair(&at, pairs.bytes + pairs.n_bytes, &from, &to)) {
        if (memmem(out->bytes, out->n_bytes, from, strlen(from)) == NULL)
            continue;
        other.n_bytes = 0;
        MOEC_TRY_OUT(replace(out->bytes, out->n_bytes, from, to, &other, err));
        if (other.n_bytes > out->limit_bytes) {
            status =
                moec_fail(err, MOEC_ERR_LIMIT,
                          "the text grows to %zu bytes in the tokenizer's replacements, more than the limit "
                          "of %zu",
                          other.n_bytes, out->limit_bytes);
            goto out;
        }
        const struct moec_tokenizer_buffer filled = other;
        other = *out;
        *out = filled;
    }
out:
    free(other.bytes);
    return status;
}

void moec_tokenizer_index_japanese(struct moec_tokenizer *tokenizer)
{
    struct moec_tokenizer *t = tokenizer;
    const uint32_t unk = t->model->unk_id;
    const struct {
        const char *text;
        uint32_t *id;
    } named[] = {{"<KIGOU>", &t->symbol_id}, {"<U2000U2BFF>", &t->sign_id}};
    for (size_t i = 0; i < 2; i++) {
        const uint32_t id = moec_tokenizer_token_id(t, named[i].text, strlen(named[i].text));
        *named[i].id = id != MOEC_TOKENIZER_NO_ID ? id : unk;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[16];
        const int n = snprintf(text, sizeof text, "<|byte%u|>", byte);
        const uint32_t id = moec_tokenizer_token_id(t, text, (size_t)n);
        t->byte_token[byte] = id != MOEC_TOKENIZER_NO_ID ? id : unk;
    }
    for (uint32_t slot = 0; slot <= t->slot_mask; slot++) {
        if (t->slots[slot] == 0)
            continue;
        const struct moec_spelling *spelling = &t->spellings[t->slots[slot] - 1];
        if (t->model->text[spelling->offset] == '<' && spelling->n_bytes > t->longest_mark_bytes)
            t->longest_mark_bytes = spelling->n_bytes;
    }
}

uint32_t moec_tokenizer_prefix_count(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    const struct moec_tokenizer_model *m = tokenizer->model;
    uint32_t length = 0;
    if ((m->flags & MOEC_TOKENIZER_JAPANESE) == 0 || m->n_prefix < 2)
        return m->n_prefix;
    const char *second = moec_tokenizer_model_text(m, m->prefix[1], &length);
    return memmem(text, n_bytes, second, length) != NULL ? 1 : 2;
}

/* The token at text[0], and the bytes of its spelling. */
static uint32_t find_token(const struct moec_tokenizer *t, const char *text, size_t n_bytes, size_t *n_found)
{
    const bool is_mark = text[0] == '<';
    const size_t most = is_mark && n_bytes > t->longest_mark_bytes ? t->longest_mark_bytes : n_bytes;
    uint32_t best = MOEC_TOKENIZER_NO_ID;
    size_t at = 0;
    for (uint32_t n_chars = 1; at < most && (is_mark || n_chars <= 3); n_chars++) {
        at += moec_utf8_read(text + at, n_bytes - at).n_bytes;
        const uint32_t id = moec_tokenizer_token_id(t, text, at);
        if (id == MOEC_TOKENIZER_NO_ID || !(id <= best || (is_mark && n_chars > 2)))
            continue;
        best = id;
        *n_found = at;
    }
    return best;
}

/* What a character is that no token spells. */
static enum moec_status add_unknown(struct moec_encoding *e, const char *bytes, size_t n_bytes)
{
    uint32_t code = 0;
    for (size_t i = 0; i < n_bytes; i++)
        code = code << 8 | (uint8_t)bytes[i];
    const bool is_symbol =
        n_bytes == 2 && ((code >= 0xC2A1 && code <= 0xC2BF) || (code >= 0xC780 && code <= 0xC783) ||
                         (code >= 0xCAB9 && code <= 0xCBBF) || (code >= 0xCC80 && code <= 0xCDA2));
    if (is_symbol || (n_bytes == 3 && code >= 0xE28080 && code <= 0xE2B07F))
        return moec_encoding_add_id(e, is_symbol ? e->tokenizer->symbol_id : e->tokenizer->sign_id);
    for (size_t i = 0; i < n_bytes; i++)
        MOEC_TRY(moec_encoding_add_id(e, e->tokenizer->byte_token[(uint8_t)bytes[i]]));
    return MOEC_OK;
}

enum moec_status moec_tokenizer_japanese(struct moec_encoding *encoding, const char *text, size_t n_bytes)
{
    size_t n_found = 0;
    for (size_t at = 0; at < n_bytes; at += n_found) {
        const uint32_t id = find_token(encoding->tokenizer, text + at, n_bytes - at, &n_found);
        if (id != MOEC_TOKENIZER_NO_ID) {
            MOEC_TRY(moec_encoding_add_id(encoding, id));
            continue;
        }
        n_found = moec_utf8_read(text + at, n_bytes - at).n_bytes;
        MOEC_TRY(add_unknown(encoding, text + at, n_found));
    }
    return MOEC_OK;
}

/* ---- decode ---- */

static bool is(const char *text, size_t n_bytes, const char *other)
{
    return strlen(other) == n_bytes && memcmp(text, other, n_bytes) == 0;
}

/* Whether a text is <|...|> and begins with `start`. */
static bool is_mark(const char *text, size_t n_bytes, const char *start)
{
    const size_t n = strlen(start);
    return n_bytes >= n && n_bytes >= 4 && memcmp(text, start, n) == 0 &&
           memcmp(text + n_bytes - 2, "|>", 2) == 0;
}

/* N of <|byteN|>; -1 if the text is no such token. */
static int byte_of(const char *text, size_t n_bytes)
{
    int value = 0;
    if (!is_mark(text, n_bytes, "<|byte") || n_bytes < 9 || n_bytes > 11)
        return -1;
    for (size_t i = 6; i < n_bytes - 2; i++) {
        if (text[i] < '0' || text[i] > '9')
            return -1;
        value = 10 * value + (text[i] - '0');
    }
    return value < 256 ? value : -1;
}

/* What a token that is no byte and does not repeat stands for, ended by a NUL; NULL: its own text. */
static const char *meaning_of(const struct moec_tokenizer_model *m, const char *text, size_t n_bytes)
{
    static const struct {
        const char *token, *text;
    } meanings[] = {{"<SP>", " "},         {"<BR>", "\n"},        {"<TAB>", "\t"},
                    {"<BLOCK>", "\u2580"}, {"<KIGOU>", "\u01c0"}, {"<U2000U2BFF>", "\u2016"}};
    const struct moec_tokenizer_string content = m->decoder[0].content;
    const char *at = m->text + content.offset, *end = at + content.length, *from = NULL, *to = NULL;
    while (is_mark(text, n_bytes, "<|emoji") && moec_tokenizer_next_pair(&at, end, &from, &to))
        if (is(text, n_bytes, from))
            return to;
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (is(text, n_bytes, meanings[i].token))
            return meanings[i].text;
    return is_mark(text, n_bytes, "<|") ? "" : NULL;
}

/* Keeps what the piece has from `start` on as the end of the last word. */
static enum moec_status keep_word(struct moec_detokenizer *d, size_t start, struct moec_error *err)
{
    if (d->piece.n_bytes == start)
        return MOEC_OK;
    return moec_buffer_append(&d->word, d->piece.bytes + start, d->piece.n_bytes - start, err);
}

static enum moec_status add_byte(struct moec_detokenizer *d, uint8_t byte, struct moec_error *err)
{
    const size_t start = d->piece.n_bytes;
    if (!d->in_bytes)
        d->word.n_bytes = 0;
    d->in_bytes = true;
    MOEC_TRY(moec_detokenizer_add_byte(d, byte, err));
    return keep_word(d, start, err);
}

enum moec_status moec_detokenizer_japanese(struct moec_detokenizer *d, const char *text, size_t n_bytes,
                                           struct moec_error *err)
{
    size_t rest = 0, start = d->piece.n_bytes;
    n_bytes = moec_tokenizer_spelling(text, n_bytes, &rest);
    const int byte = byte_of(text, n_bytes);
    if (byte >= 0)
        return add_byte(d, (uint8_t)byte, err);
    MOEC_TRY(moec_detokenizer_end_bytes(d, err));
    MOEC_TRY(keep_word(d, start, err));
    d->in_bytes = false;
    if (is(text, n_bytes, "<|bagoftoken|>")) {
        for (int i = 0; i < 3; i++)
            MOEC_TRY(moec_detokenizer_add_text(d, d->word.bytes, d->word.n_bytes, err));
        return MOEC_OK;
    }
    const char *meaning = meaning_of(d->tokenizer->model, text, n_bytes);
    text = meaning != NULL ? meaning : text;
    n_bytes = meaning != NULL ? strlen(meaning) : n_bytes;
    d->word.n_bytes = 0;
    MOEC_TRY(moec_buffer_append(&d->word, text, n_bytes, err));
    return moec_detokenizer_add_text(d, text, n_bytes, err);
}
