/* The decoder in three parts (moec_tokenizer_model_decode has checked the order): steps on single tokens; a
 * joiner, which turns tokens into bytes or text; characters taken off the start of the whole. */
#include "runtime/text/tokenizer_internal.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <string.h>

#define REPLACEMENT       "\xEF\xBF\xBD"
#define REPLACEMENT_BYTES 3u

/* A token may grow to this in a decoder step. */
#define TOKEN_LIMIT_BYTES ((size_t)1 << 20)

void moec_tokenizer_plan_decoder(struct moec_tokenizer *tokenizer)
{
    const struct moec_tokenizer_model *m = tokenizer->model;
    tokenizer->n_token_steps = m->n_decoder;
    tokenizer->joiner = m->n_decoder > 0 ? MOEC_STEP_FUSE : 0;
    bool joined = false;
    for (uint32_t i = 0; i < m->n_decoder; i++) {
        const struct moec_tokenizer_step *step = &m->decoder[i];
        bool joins = step->kind == MOEC_STEP_BYTE_LEVEL || step->kind == MOEC_STEP_BYTE_FALLBACK ||
                     step->kind == MOEC_STEP_FUSE || step->kind == MOEC_STEP_JAPANESE;
        if (joins && !joined) {
            tokenizer->n_token_steps = i;
            tokenizer->joiner = step->kind;
            joined = true;
        } else if (joined && step->kind == MOEC_STEP_STRIP_CHAR) {
            tokenizer->strip_count = step->start;
            tokenizer->strip_char = step->content;
        }
    }
}

/* ---- steps on single tokens ---- */

static enum moec_status strip_token(const struct moec_tokenizer_model *m,
                                    const struct moec_tokenizer_step *step, const char *text, size_t n_bytes,
                                    struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    const char *mark = m->text + step->content.offset;
    size_t mark_bytes = step->content.length;
    size_t start = 0;
    size_t end = n_bytes;
    for (uint32_t i = 0; i < step->start && end - start >= mark_bytes; i++) {
        if (memcmp(text + start, mark, mark_bytes) != 0)
            break;
        start += mark_bytes;
    }
    for (uint32_t i = 0; i < step->stop && end - start >= mark_bytes; i++) {
        if (memcmp(text + end - mark_bytes, mark, mark_bytes) != 0)
            break;
        end -= mark_bytes;
    }
    return moec_buffer_append(out, text + start, end - start, err);
}

/* Marks become spaces; those of the first token vanish where encoding had put one in front. */
static enum moec_status unmark_token(const struct moec_tokenizer_model *m,
                                     const struct moec_tokenizer_step *step, struct moec_text text,
                                     bool first, struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    const char *mark = m->text + step->content.offset;
    size_t mark_bytes = step->content.length;
    bool drop = first && step->mode != MOEC_PREPEND_NEVER;
    for (size_t at = 0; at < text.n_bytes;) {
        const char *hit = memmem(text.bytes + at, text.n_bytes - at, mark, mark_bytes);
        size_t end = hit != NULL ? (size_t)(hit - text.bytes) : text.n_bytes;
        MOEC_TRY(moec_buffer_append(out, text.bytes + at, end - at, err));
        if (hit != NULL && !drop)
            MOEC_TRY(moec_buffer_append(out, " ", 1, err));
        at = hit != NULL ? end + mark_bytes : end;
    }
    return MOEC_OK;
}

static enum moec_status token_steps(struct moec_detokenizer *d, const char **text, size_t *n_bytes,
                                    struct moec_error *err)
{
    const struct moec_tokenizer_model *m = d->tokenizer->model;
    for (uint32_t i = 0; i < d->tokenizer->n_token_steps; i++) {
        const struct moec_tokenizer_step *step = &m->decoder[i];
        struct moec_tokenizer_buffer *out = &d->scratch[i % 2];
        out->n_bytes = 0;
        out->limit_bytes = TOKEN_LIMIT_BYTES;
        MOEC_TRY(moec_buffer_append(out, "", 0, err));
        switch (step->kind) {
        case MOEC_STEP_REPLACE:
            MOEC_TRY(moec_pattern_replace(
                d->tokenizer->decoder_patterns[i], (struct moec_text){*text, *n_bytes},
                (struct moec_text){m->text + step->content.offset, step->content.length}, out, NULL, err));
            break;
        case MOEC_STEP_STRIP_CHAR:
            MOEC_TRY(strip_token(m, step, *text, *n_bytes, out, err));
            break;
        default:
            MOEC_TRY(unmark_token(m, step, (struct moec_text){*text, *n_bytes}, d->n_tokens == 0, out, err));
            break;
        }
        *text = out->bytes;
        *n_bytes = out->n_bytes;
    }
    return MOEC_OK;
}

/* ---- joining ---- */

/* Adds finished text to the piece, less what comes off the start. */
enum moec_status moec_detokenizer_add_text(struct moec_detokenizer *d, const char *text, size_t n_bytes,
                                           struct moec_error *err)
{
    const char *mark = d->tokenizer->model->text + d->tokenizer->strip_char.offset;
    size_t mark_bytes = d->tokenizer->strip_char.length;
    while (!d->strip_done && n_bytes > 0) {
        if (d->n_stripped < d->tokenizer->strip_count && n_bytes >= mark_bytes &&
            memcmp(text, mark, mark_bytes) == 0) {
            text += mark_bytes;
            n_bytes -= mark_bytes;
            d->n_stripped++;
        } else {
            d->strip_done = true;
        }
    }
    return moec_buffer_append(&d->piece, text, n_bytes, err);
}

/* Adds one byte of a stream of UTF-8; whole characters go on as text, broken parts as U+FFFD. */
enum moec_status moec_detokenizer_add_byte(struct moec_detokenizer *d, uint8_t byte, struct moec_error *err)
{
    d->held[d->n_held++] = (char)byte;
    while (d->n_held > 0) {
        struct moec_utf8_char c = moec_utf8_read(d->held, d->n_held);
        if (c.cut_off)
            return MOEC_OK;
        MOEC_TRY(c.valid ? moec_detokenizer_add_text(d, d->held, c.n_bytes, err)
                         : moec_detokenizer_add_text(d, REPLACEMENT, REPLACEMENT_BYTES, err));
        d->n_held = (uint8_t)(d->n_held - c.n_bytes);
        memmove(d->held, d->held + c.n_bytes, d->n_held);
    }
    return MOEC_OK;
}

/* The stream of bytes ends here. */
enum moec_status moec_detokenizer_end_bytes(struct moec_detokenizer *d, struct moec_error *err)
{
    if (d->n_held == 0)
        return MOEC_OK;
    d->n_held = 0;
    return moec_detokenizer_add_text(d, REPLACEMENT, REPLACEMENT_BYTES, err);
}

/* A run of <0xNN> tokens ends here. */
static enum moec_status end_run(struct moec_detokenizer *d, struct moec_error *err)
{
    size_t n_bytes = d->run.n_bytes;
    d->run.n_bytes = 0;
    if (n_bytes == 0)
        return moec_detokenizer_end_bytes(d, err);
    if (moec_utf8_valid_bytes(d->run.bytes, n_bytes) == n_bytes)
        return moec_detokenizer_add_text(d, d->run.bytes, n_bytes, err);
    for (size_t i = 0; i < n_bytes; i++)
        MOEC_TRY(moec_detokenizer_add_text(d, REPLACEMENT, REPLACEMENT_BYTES, err));
    return MOEC_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static enum moec_status add_fallback_token(struct moec_detokenizer *d, const char *text, size_t n_bytes,
                                           struct moec_error *err)
{
    int high = n_bytes == 6 ? hex_digit(text[3]) : -1;
    int low = n_bytes == 6 ? hex_digit(text[4]) : -1;
    if (high < 0 || low < 0 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        MOEC_TRY(end_run(d, err));
        return moec_detokenizer_add_text(d, text, n_bytes, err);
    }
    char byte = (char)(high << 4 | low);
    return d->whole_runs ? moec_buffer_append(&d->run, &byte, 1, err)
                         : moec_detokenizer_add_byte(d, (uint8_t)byte, err);
}

/* A token that is not wholly in ByteLevel's alphabet (an added token with a space) stands for its own bytes.
 */
static enum moec_status add_byte_level_token(struct moec_detokenizer *d, const char *text, size_t n_bytes,
                                             struct moec_error *err)
{
    bool mapped = true;
    for (size_t at = 0; at < n_bytes && mapped;) {
        struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
        mapped = moec_byte_level_byte(c.code_point) >= 0;
        at += c.n_bytes;
    }
    for (size_t at = 0; at < n_bytes;) {
        struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
        MOEC_TRY(moec_detokenizer_add_byte(
            d, mapped ? (uint8_t)moec_byte_level_byte(c.code_point) : (uint8_t)text[at], err));
        at += mapped ? c.n_bytes : 1;
    }
    return MOEC_OK;
}

static enum moec_status add_token(struct moec_detokenizer *d, const char *text, size_t n_bytes,
                                  struct moec_error *err)
{
    switch (d->tokenizer->joiner) {
    case MOEC_STEP_BYTE_LEVEL:
        return add_byte_level_token(d, text, n_bytes, err);
    case MOEC_STEP_BYTE_FALLBACK:
        return add_fallback_token(d, text, n_bytes, err);
    case MOEC_STEP_JAPANESE:
        return moec_detokenizer_japanese(d, text, n_bytes, err);
    case 0:
        if (d->n_tokens > 0)
            MOEC_TRY(moec_detokenizer_add_text(d, " ", 1, err));
        return moec_detokenizer_add_text(d, text, n_bytes, err);
    default:
        return moec_detokenizer_add_text(d, text, n_bytes, err);
    }
}

/* ---- the detokenizer ---- */

void moec_detokenizer_init(struct moec_detokenizer *detokenizer, const struct moec_tokenizer *tokenizer,
                           bool skip_special)
{
    *detokenizer = (struct moec_detokenizer){.tokenizer = tokenizer, .skip_special = skip_special};
}

static enum moec_status hand_out(struct moec_detokenizer *d, const char **piece, size_t *n_bytes,
                                 struct moec_error *err)
{
    MOEC_TRY(moec_buffer_append(&d->piece, "", 0, err));
    d->piece.bytes[d->piece.n_bytes] = '\0';
    *piece = d->piece.bytes;
    *n_bytes = d->piece.n_bytes;
    return MOEC_OK;
}

/* Appends what one id adds to the piece. */
static enum moec_status add_id(struct moec_detokenizer *d, uint32_t id, struct moec_error *err)
{
    uint32_t length = 0;
    const char *text = moec_tokenizer_model_text(d->tokenizer->model, id, &length);
    size_t n_bytes = length;
    if (length == 0 || (d->skip_special && moec_tokenizer_is_special(d->tokenizer, id)))
        return MOEC_OK;
    MOEC_TRY(token_steps(d, &text, &n_bytes, err));
    MOEC_TRY(add_token(d, text, n_bytes, err));
    d->n_tokens++;
    return MOEC_OK;
}

enum moec_status moec_detokenizer_push(struct moec_detokenizer *detokenizer, uint32_t id, const char **piece,
                                       size_t *n_bytes, struct moec_error *err)
{
    detokenizer->piece.n_bytes = 0;
    MOEC_TRY(add_id(detokenizer, id, err));
    return hand_out(detokenizer, piece, n_bytes, err);
}

enum moec_status moec_detokenizer_finish(struct moec_detokenizer *detokenizer, const char **piece,
                                         size_t *n_bytes, struct moec_error *err)
{
    detokenizer->piece.n_bytes = 0;
    MOEC_TRY(end_run(detokenizer, err));
    detokenizer->n_tokens = 0;
    detokenizer->in_bytes = false;
    detokenizer->n_stripped = 0;
    detokenizer->strip_done = false;
    return hand_out(detokenizer, piece, n_bytes, err);
}

void moec_detokenizer_release(struct moec_detokenizer *detokenizer)
{
    free(detokenizer->run.bytes);
    free(detokenizer->word.bytes);
    free(detokenizer->scratch[0].bytes);
    free(detokenizer->scratch[1].bytes);
    free(detokenizer->piece.bytes);
    *detokenizer = (struct moec_detokenizer){0};
}

enum moec_status moec_tokenizer_decode(const struct moec_tokenizer *tokenizer, struct moec_token_ids ids,
                                       bool skip_special, char **text, size_t *n_bytes,
                                       struct moec_error *err)
{
    struct moec_detokenizer d;
    enum moec_status status = MOEC_OK;
    const char *piece = NULL;
    *text = NULL;
    *n_bytes = 0;
    moec_detokenizer_init(&d, tokenizer, skip_special);
    d.whole_runs = true;
    for (size_t i = 0; i < ids.n; i++)
        MOEC_TRY_OUT(add_id(&d, ids.ids[i], err));
    MOEC_TRY_OUT(end_run(&d, err));
    MOEC_TRY_OUT(hand_out(&d, &piece, n_bytes, err));
    *text = d.piece.bytes;
    d.piece.bytes = NULL;
out:
    moec_detokenizer_release(&d);
    return status;
}
