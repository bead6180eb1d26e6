/* One pass over text with \n alone as line end. Text before a tag loses whitespace by "-" or by
 * lstrip_blocks, text after a tag by "-" or by trim_blocks; "+" prevents both. `line_starting` carries over
 * a tag whether the text after it begins a line. A tag only ends outside brackets, so that "}}" may close
 * dicts. */
#include "runtime/chat/chat_lexer.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BRACKETS 128
#define MAX_TOKENS   ((size_t)1 << 20)

struct lexer {
    const char *text; /* with \n alone as the end of a line */
    size_t n_bytes, at;
    uint32_t line;
    size_t line_start;
    bool line_starting; /* what was read last ended with a newline */
    char brackets[MAX_BRACKETS];
    size_t n_bracket;
    struct moec_chat_arena *arena;
    struct moec_chat_tokens *tokens;
    struct moec_error *err;
};

enum moec_status moec_chat_fail(struct moec_error *err, enum moec_status status, uint32_t line,
                                uint32_t column, const char *format, ...)
{
    char text[768];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return moec_fail(err, status, "chat template, line %u, column %u: %s", line, column, text);
}

/* ---- whitespace ---- */

bool moec_chat_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

size_t moec_chat_space_before(const char *text, size_t n_bytes)
{
    size_t n = 0;
    while (n < n_bytes) {
        const struct moec_utf8_char c = moec_utf8_read(text + n, n_bytes - n);
        if (!moec_chat_is_space(c.code_point))
            break;
        n += c.n_bytes;
    }
    return n;
}

size_t moec_chat_space_after(const char *text, size_t n_bytes)
{
    size_t end = n_bytes;
    while (end > 0) {
        size_t start = end - 1;
        while (start > 0 && ((uint8_t)text[start] & 0xC0u) == 0x80)
            start--;
        if (!moec_chat_is_space(moec_utf8_read(text + start, end - start).code_point))
            break;
        end = start;
    }
    return n_bytes - end;
}

/* ---- tokens ---- */

static enum moec_status fail(const struct lexer *l, enum moec_status status, const char *what)
{
    return moec_chat_fail(l->err, status, l->line, (uint32_t)(l->at - l->line_start + 1), "%s", what);
}

static void advance(struct lexer *l, size_t n)
{
    for (size_t i = 0; i < n; i++, l->at++)
        if (l->text[l->at] == '\n') {
            l->line++;
            l->line_start = l->at + 1;
        }
}

static bool looks_at(const struct lexer *l, const char *text)
{
    const size_t n = strlen(text);
    return l->n_bytes - l->at >= n && memcmp(l->text + l->at, text, n) == 0;
}

static enum moec_status add(struct lexer *l, enum moec_chat_token_kind kind, const char *bytes,
                            size_t n_bytes)
{
    if (l->tokens->n == MAX_TOKENS)
        return fail(l, MOEC_ERR_LIMIT, "the template has more than 2^20 tokens");
    MOEC_TRY(moec_grow((void **)&l->tokens->items, &l->tokens->capacity, l->tokens->n + 1,
                       sizeof *l->tokens->items, "tokens of a chat template", l->err));
    l->tokens->items[l->tokens->n++] =
        (struct moec_chat_token){.kind = kind,
                                 .line = l->line,
                                 .column = (uint32_t)(l->at - l->line_start + 1),
                                 .bytes = bytes,
                                 .n_bytes = n_bytes};
    return MOEC_OK;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char peek(const struct lexer *l, size_t ahead)
{
    return (char)(ahead < l->n_bytes - l->at ? l->text[l->at + ahead] : 0);
}

static size_t count_digits(const struct lexer *l, size_t from)
{
    size_t n = 0;
    while (is_digit(peek(l, from + n)))
        n++;
    return n;
}

static enum moec_status lex_number(struct lexer *l)
{
    size_t n = count_digits(l, 0);
    bool is_float = false;
    if (peek(l, n) == '.' && count_digits(l, n + 1) > 0) {
        n += 1 + count_digits(l, n + 1);
        is_float = true;
    }
    const bool has_sign = peek(l, n + 1) == '-' || peek(l, n + 1) == '+';
    if ((peek(l, n) == 'e' || peek(l, n) == 'E') && count_digits(l, n + 1 + has_sign) > 0) {
        n += 1u + has_sign + count_digits(l, n + 1 + has_sign);
        is_float = true;
    }
    char text[64];
    if (is_letter(peek(l, n)) || n >= sizeof text)
        return fail(l, MOEC_ERR_UNSUPPORTED, "a number must be decimal and have at most 63 digits");
    memcpy(text, l->text + l->at, n);
    text[n] = '\0';
    MOEC_TRY(add(l, is_float ? MOEC_CHAT_TOKEN_FLOAT : MOEC_CHAT_TOKEN_INT, l->text + l->at, n));
    struct moec_chat_token *token = &l->tokens->items[l->tokens->n - 1];
    errno = 0;
    if (is_float)
        token->number = strtod(text, NULL);
    else
        token->integer = strtoll(text, NULL, 10);
    if (errno != 0)
        return fail(l, MOEC_ERR_UNSUPPORTED, "a number does not fit into 64 bits");
    advance(l, n);
    return MOEC_OK;
}

static int hex_value(char c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One escape of a string, after its backslash, as Python's unicode-escape has them; adds it to `out` and
 * answers how many bytes it has, 0 for one that is wrong. */
static size_t read_escape(const char *at, size_t n_bytes, char *out, size_t *n_out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = at[0] != '\0' ? strchr(from, at[0]) : NULL;
    if (simple != NULL) {
        out[(*n_out)++] = to[simple - from];
        return 1;
    }
    if (at[0] == '\n')
        return 1;
    const size_t n_hex = at[0] == 'x' ? 2 : at[0] == 'u' ? 4 : at[0] == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (n_hex == 0 && (at[0] == 'N' || is_digit(at[0])))
        return 0;
    if (n_hex == 0) { /* not an escape: both characters stay */
        out[(*n_out)++] = '\\';
        out[(*n_out)++] = at[0];
        return 1;
    }
    for (size_t i = 1; i <= n_hex; i++) {
        const int digit = i < n_bytes ? hex_value(at[i]) : -1;
        if (digit < 0 || code > 0x10FFFF)
            return 0;
        code = code << 4 | (uint32_t)digit;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return 0;
    *n_out += moec_utf8_write(code, out + *n_out);
    return 1 + n_hex;
}

static enum moec_status lex_string(struct lexer *l)
{
    const char quote = l->text[l->at];
    size_t end = l->at + 1, n_out = 0;
    void *memory = NULL;
    while (end < l->n_bytes && l->text[end] != quote)
        end += l->text[end] == '\\' ? 2u : 1u;
    if (end >= l->n_bytes)
        return fail(l, MOEC_ERR_FORMAT, "a string has no closing quote");
    MOEC_TRY(moec_chat_alloc(l->arena, 2 * (end - l->at), &memory, l->err));
    char *out = memory;
    for (size_t at = l->at + 1; at < end;) {
        if (l->text[at] != '\\') {
            out[n_out++] = l->text[at++];
            continue;
        }
        const size_t n = read_escape(l->text + at + 1, end - at - 1, out, &n_out);
        if (n == 0)
            return fail(l, MOEC_ERR_UNSUPPORTED,
                        "a string has an unknown escape, expected one such as \\n, \\\\, \\x41 or \\u0041");
        at += 1 + n;
    }
    MOEC_TRY(add(l, MOEC_CHAT_TOKEN_STRING, out, n_out));
    advance(l, end + 1 - l->at);
    return MOEC_OK;
}

static enum moec_status count_bracket(struct lexer *l, char c)
{
    static const char opening[] = {'(', '[', '{'}, closing[] = {')', ']', '}'};
    if (memchr(opening, c, sizeof opening) != NULL) {
        if (l->n_bracket == MAX_BRACKETS)
            return fail(l, MOEC_ERR_LIMIT, "brackets nest deeper than 128");
        l->brackets[l->n_bracket++] = c;
        return MOEC_OK;
    }
    const char *found = memchr(closing, c, sizeof closing);
    if (found == NULL)
        return MOEC_OK;
    if (l->n_bracket == 0 || l->brackets[l->n_bracket - 1] != opening[found - closing])
        return fail(l, MOEC_ERR_FORMAT, "a closing bracket has no matching opening bracket");
    l->n_bracket--;
    return MOEC_OK;
}

static enum moec_status lex_operator(struct lexer *l)
{
    static const char *const two[] = {"**", "//", "==", "!=", ">=", "<="};
    static const char one[] = "+-*/%~[](){}><=.:|,";
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (looks_at(l, two[i])) {
            MOEC_TRY(add(l, MOEC_CHAT_TOKEN_OPERATOR, l->text + l->at, 2));
            advance(l, 2);
            return MOEC_OK;
        }
    const char c = peek(l, 0);
    if (c == '\0' || strchr(one, c) == NULL)
        return fail(l, MOEC_ERR_FORMAT, "this character is not part of the template language");
    MOEC_TRY(count_bracket(l, c));
    MOEC_TRY(add(l, MOEC_CHAT_TOKEN_OPERATOR, l->text + l->at, 1));
    advance(l, 1);
    return MOEC_OK;
}

/* Length of what ends a tag here: "%}", "-%}", "+%}", without the whitespace after it; 0 for anything else.
 */
static size_t tag_end(const struct lexer *l, const char *end, bool may_plus)
{
    if (looks_at(l, end))
        return 2;
    const char sign = peek(l, 0);
    if ((sign != '-' && !(sign == '+' && may_plus)) || peek(l, 1) != end[0] || peek(l, 2) != end[1])
        return 0;
    return 3;
}

/* Steps over the end of a tag, and over the whitespace that it takes along. */
static void step_over_end(struct lexer *l, size_t n, bool trims)
{
    const char sign = (char)(n == 3 ? peek(l, 0) : 0);
    advance(l, n);
    if (sign == '-')
        advance(l, moec_chat_space_before(l->text + l->at, l->n_bytes - l->at));
    else if (sign != '+' && trims && peek(l, 0) == '\n')
        advance(l, 1);
    l->line_starting = l->text[l->at - 1] == '\n';
}

/* The tokens of a tag up to its end. */
static enum moec_status lex_tag(struct lexer *l, bool is_block)
{
    l->n_bracket = 0;
    while (l->at < l->n_bytes) {
        const size_t n = l->n_bracket == 0 ? tag_end(l, is_block ? "%}" : "}}", is_block) : 0;
        const size_t space = moec_chat_space_before(l->text + l->at, l->n_bytes - l->at);
        if (n > 0) {
            MOEC_TRY(add(l, is_block ? MOEC_CHAT_TOKEN_BLOCK_END : MOEC_CHAT_TOKEN_VARIABLE_END,
                         l->text + l->at, n));
            step_over_end(l, n, is_block);
            return MOEC_OK;
        }
        if (space > 0) {
            advance(l, space);
        } else if (is_digit(peek(l, 0))) {
            MOEC_TRY(lex_number(l));
        } else if (is_letter(peek(l, 0))) {
            size_t length = 1;
            while (is_letter(peek(l, length)) || is_digit(peek(l, length)))
                length++;
            MOEC_TRY(add(l, MOEC_CHAT_TOKEN_NAME, l->text + l->at, length));
            advance(l, length);
        } else if (peek(l, 0) == '\'' || peek(l, 0) == '"') {
            MOEC_TRY(lex_string(l));
        } else {
            MOEC_TRY(lex_operator(l));
        }
    }
    return fail(l, MOEC_ERR_FORMAT, "a tag is not closed");
}

static enum moec_status skip_comment(struct lexer *l)
{
    while (l->at < l->n_bytes) {
        const size_t n = tag_end(l, "#}", true);
        if (n > 0) {
            step_over_end(l, n, true);
            return MOEC_OK;
        }
        advance(l, 1);
    }
    return fail(l, MOEC_ERR_FORMAT, "a comment is not closed");
}

/* Where the next tag begins, or the end. */
static size_t find_tag(const struct lexer *l)
{
    for (size_t at = l->at; at + 1 < l->n_bytes; at++)
        if (l->text[at] == '{' && strchr("{%#", l->text[at + 1]) != NULL && l->text[at + 1] != '\0')
            return at;
    return l->n_bytes;
}

/* Bytes of the text before a tag that stay: "-" takes whitespace away, and before a block or comment that
 * stands alone on its line, lstrip_blocks does. */
static size_t kept_before(const struct lexer *l, size_t tag)
{
    const char *text = l->text + l->at;
    const size_t n = tag - l->at;
    const char sign = (char)(tag + 2 < l->n_bytes ? l->text[tag + 2] : 0);
    if (sign == '-')
        return n - moec_chat_space_after(text, n);
    if (sign == '+' || l->text[tag + 1] == '{')
        return n;
    size_t start = n;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    for (size_t i = start; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t')
            return n;
    return start > 0 || l->line_starting ? start : n;
}

/* ---- raw ---- */

/* Bytes of "{% word" at a place, with sign and whitespace, before the end of the tag; 0 where there is none.
 */
static size_t match_word_tag(const struct lexer *l, size_t at, const char *word, bool may_plus)
{
    struct lexer there = *l;
    const size_t n_word = strlen(word);
    there.at = at;
    if (!looks_at(&there, "{%"))
        return 0;
    there.at += peek(&there, 2) == '-' || peek(&there, 2) == '+' ? 3 : 2;
    there.at += moec_chat_space_before(l->text + there.at, l->n_bytes - there.at);
    if (!looks_at(&there, word))
        return 0;
    there.at += n_word;
    there.at += moec_chat_space_before(l->text + there.at, l->n_bytes - there.at);
    return tag_end(&there, "%}", may_plus) > 0 ? there.at - at : 0;
}

/* Text between {% raw %} and {% endraw %}, whatever it looks like; stands at the end of the first tag. The
 * newline after it stays, as in Jinja. */
static enum moec_status lex_raw(struct lexer *l)
{
    step_over_end(l, tag_end(l, "%}", false), false);
    size_t end = l->at, n_tag = 0;
    while (end < l->n_bytes && n_tag == 0) {
        n_tag = match_word_tag(l, end, "endraw", true);
        end += n_tag == 0;
    }
    if (n_tag == 0)
        return fail(l, MOEC_ERR_FORMAT, "a raw block has no endraw");
    const size_t kept = kept_before(l, end);
    if (kept > 0)
        MOEC_TRY(add(l, MOEC_CHAT_TOKEN_TEXT, l->text + l->at, kept));
    advance(l, end + n_tag - l->at);
    step_over_end(l, tag_end(l, "%}", true), true);
    return MOEC_OK;
}

static enum moec_status lex_all(struct lexer *l)
{
    while (l->at < l->n_bytes) {
        const size_t tag = find_tag(l);
        const size_t kept = tag == l->n_bytes ? tag - l->at : kept_before(l, tag);
        if (kept > 0)
            MOEC_TRY(add(l, MOEC_CHAT_TOKEN_TEXT, l->text + l->at, kept));
        advance(l, tag - l->at);
        if (tag == l->n_bytes)
            break;
        const size_t n_raw = match_word_tag(l, tag, "raw", false);
        if (n_raw > 0) {
            advance(l, n_raw);
            MOEC_TRY(lex_raw(l));
            continue;
        }
        const char kind = l->text[tag + 1], sign = peek(l, 2);
        if (kind != '#')
            MOEC_TRY(add(l, kind == '%' ? MOEC_CHAT_TOKEN_BLOCK_BEGIN : MOEC_CHAT_TOKEN_VARIABLE_BEGIN,
                         l->text + tag, 2));
        advance(l, sign == '-' || sign == '+' ? 3 : 2);
        MOEC_TRY(kind == '#' ? skip_comment(l) : lex_tag(l, kind == '%'));
    }
    return add(l, MOEC_CHAT_TOKEN_END, "", 0);
}

enum moec_status moec_chat_lex(const char *text, size_t n_bytes, struct moec_chat_arena *arena,
                               struct moec_chat_tokens *tokens, struct moec_error *err)
{
    void *memory = NULL;
    size_t n = 0;
    MOEC_TRY(moec_chat_alloc(arena, n_bytes + 1, &memory, err));
    char *lines = memory;
    for (size_t i = 0; i < n_bytes; i++) {
        if (text[i] != '\r')
            lines[n++] = text[i];
        else if (i + 1 == n_bytes || text[i + 1] != '\n')
            lines[n++] = '\n';
    }
    n -= n > 0 && lines[n - 1] == '\n';
    struct lexer l = {.text = lines,
                      .n_bytes = n,
                      .line = 1,
                      .line_starting = true,
                      .arena = arena,
                      .tokens = tokens,
                      .err = err};
    if (moec_utf8_valid_bytes(lines, n) != n)
        return moec_fail(err, MOEC_ERR_FORMAT, "a chat template is not UTF-8 at byte %zu",
                         moec_utf8_valid_bytes(lines, n));
    if (memchr(lines, '\0', n) != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "a chat template has a NUL byte");
    return lex_all(&l);
}

void moec_chat_tokens_release(struct moec_chat_tokens *tokens)
{
    free(tokens->items);
    *tokens = (struct moec_chat_tokens){0};
}
