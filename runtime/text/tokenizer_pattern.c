/* The library matches with Oniguruma, Ruby syntax, over Unicode. A pattern is translated piece by piece into
 * PCRE2, and refused where the two would differ: what this file lets through means the same in both.
 *
 * Where the engines' sets differ, the set is written out:
 *   \s  PCRE2 has U+180E too                   -> the 25 characters of White_Space
 *   \w  PCRE2 leaves marks out, takes all of N -> letters, marks, Nd, Nl, Pc and the circled letters of
 *       Other_Alphabetic; outside a class (a quirk of Oniguruma's Latin-1 table) also U+00B2 B3 B9 BC BD BE
 *
 * \d, \p{L}, \p{N} and the other general categories are equal wherever both versions of Unicode assign the
 * code point. Oniguruma 6.9.10 knows Unicode 16, PCRE2 10.42 knows 14: others stand in for what came after 14
 * (runtime/text/stand_ins.h). */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "runtime/text/tokenizer_internal.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"
#include "runtime/text/stand_ins.h"

#include <inttypes.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* PCRE2 keeps its backtracking points on the heap;
 * 64 MiB is 100 KB of the worst published pattern many times over. */
#define HEAP_LIMIT_KIB 65536u
#define MATCH_LIMIT    10000000u

#define SET_SPACE                                                                                            \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
#define SET_NOT_SPACE                                                                                        \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}" \
    "-"                                                                                                      \
    "\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define SET_WORD                                                                                             \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"         \
    "\\x{1f170}-\\x{1f189}"
#define SET_WORD_ALONE SET_WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

struct moec_pattern {
    pcre2_code *code; /* NULL: literal */
    pcre2_match_context *context;
    char *literal;
    size_t literal_bytes;
};

/* ---- translation ---- */

struct translation {
    const char *text;
    size_t n_bytes, at;
    struct moec_tokenizer_buffer out;
    struct moec_error *err;
    bool caseless[128]; /* of each open group */
    uint32_t depth;
    uint32_t last_literal; /* the character just before, for foldings of two; 0 otherwise */
    bool repeatable;       /* what stands before can take a quantifier */
};

static enum moec_status refuse(struct translation *t, const char *what)
{
    return moec_fail(t->err, MOEC_ERR_UNSUPPORTED,
                     "pattern '%.*s' has %s at byte %zu, and moec does not support this",
                     (int)(t->n_bytes < 200 ? t->n_bytes : 200), t->text, what, t->at);
}

static enum moec_status emit(struct translation *t, const char *text)
{
    return moec_buffer_append(&t->out, text, strlen(text), t->err);
}

static enum moec_status emit_char(struct translation *t, uint32_t code_point)
{
    char text[16];
    (void)snprintf(text, sizeof text, "\\x{%" PRIx32 "}", code_point);
    return emit(t, text);
}

static bool at_text(const struct translation *t, const char *text)
{
    size_t n = strlen(text);
    return t->n_bytes - t->at >= n && memcmp(t->text + t->at, text, n) == 0;
}

static char peek(const struct translation *t)
{
    if (t->at >= t->n_bytes)
        return '\0';
    return t->text[t->at];
}

/* Reads 1..most hexadecimal digits. */
static bool read_hex(struct translation *t, uint32_t most, uint32_t *value)
{
    *value = 0;
    uint32_t n = 0;
    for (; n < most && t->at < t->n_bytes; n++, t->at++) {
        char c = t->text[t->at];
        if (c >= '0' && c <= '9')
            *value = *value << 4 | (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            *value = *value << 4 | (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            *value = *value << 4 | (uint32_t)(c - 'A' + 10);
        else
            break;
    }
    return n > 0;
}

/* After "\x" or "\u". Oniguruma reads \xHH as a byte, which is a character below 0x80 only. */
static enum moec_status read_code(struct translation *t, char kind, uint32_t *code_point)
{
    bool fine = false;
    size_t start = t->at;
    if (kind == 'x' && peek(t) == '{') {
        t->at++;
        fine = read_hex(t, 6, code_point) && peek(t) == '}';
        t->at += fine;
    } else if (kind == 'x') {
        fine = read_hex(t, 2, code_point) && *code_point < 0x80;
    } else {
        fine = read_hex(t, 4, code_point) && t->at - start == 4;
    }
    if (!fine || *code_point > 0x10FFFF || (*code_point >= 0xD800 && *code_point < 0xE000)) {
        t->at = start;
        return refuse(t, "a character code");
    }
    return MOEC_OK;
}

/* Categories and scripts with the same name and meaning in both engines. */
static bool is_category(const char *name, size_t n_bytes)
{
    static const char *const categories[] = {
        "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
        "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
        "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co",
    };
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; i++) {
        if (strlen(categories[i]) == n_bytes && memcmp(categories[i], name, n_bytes) == 0)
            return true;
    }
    return false;
}

static bool is_script(const char *name, size_t n_bytes)
{
    static const char *const scripts[] = {
        "Han",    "Hiragana", "Katakana", "Hangul", "Latin", "Greek",   "Cyrillic", "Arabic",
        "Hebrew", "Thai",     "Lao",      "Khmer",  "Tamil", "Bengali", "Armenian", "Devanagari",
    };
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        if (strlen(scripts[i]) == n_bytes && memcmp(scripts[i], name, n_bytes) == 0)
            return true;
    }
    return false;
}

/* After "\p" or "\P". */
static enum moec_status translate_property(struct translation *t, char kind)
{
    const char *close = memchr(t->text + t->at, '}', t->n_bytes - t->at);
    if (peek(t) != '{' || close == NULL)
        return refuse(t, "a \\p property without braces");
    bool negated = kind == 'P';
    const char *name = t->text + t->at + 1;
    if (*name == '^') {
        negated = !negated;
        name++;
    }
    size_t n_bytes = (size_t)(close - name);
    bool script = is_script(name, n_bytes);
    if (!script && !is_category(name, n_bytes))
        return refuse(t, "an unknown property");
    /* Under (?i) the engines widen cased categories differently. */
    if (t->caseless[t->depth] && n_bytes == 2 && name[0] == 'L')
        return refuse(t, "a class of upper or lower case letters in a part that ignores case, (?i)");
    char text[32];
    /* sc: by script alone; PCRE2's bare name also takes shared punctuation. */
    (void)snprintf(text, sizeof text, "\\%c{%s%.*s}", negated ? 'P' : 'p', script ? "sc:" : "", (int)n_bytes,
                   name);
    t->at = (size_t)(close + 1 - t->text);
    return emit(t, text);
}

enum escape {
    ESCAPE_CHAR, /* one character, in *code_point */
    ESCAPE_SET,  /* a set, already emitted */
    ESCAPE_ANCHOR,
};

/* After the backslash. `in_class` emits sets bare. */
static enum moec_status translate_escape(struct translation *t, bool in_class, enum escape *kind,
                                         uint32_t *code_point)
{
    if (t->at >= t->n_bytes)
        return refuse(t, "a trailing backslash");
    struct moec_utf8_char c = moec_utf8_read(t->text + t->at, t->n_bytes - t->at);
    t->at += c.n_bytes;
    *kind = ESCAPE_SET;
    switch (c.code_point) {
    case 's':
        return emit(t, in_class ? SET_SPACE : "[" SET_SPACE "]");
    case 'S':
        return emit(t, in_class ? SET_NOT_SPACE : "[" SET_NOT_SPACE "]");
    case 'd':
        return emit(t, "\\p{Nd}");
    case 'D':
        return emit(t, "\\P{Nd}");
    case 'w':
        return emit(t, in_class ? SET_WORD : "[" SET_WORD_ALONE "]");
    case 'W':
        if (in_class)
            break;
        return emit(t, "[^" SET_WORD_ALONE "]");
    case 'p':
    case 'P':
        return translate_property(t, (char)c.code_point);
    case 'A':
    case 'z':
        if (in_class)
            break;
        *kind = ESCAPE_ANCHOR;
        return emit(t, c.code_point == 'A' ? "\\A" : "\\z");
    default: {
        static const char letters[] = "nrtfvae";
        static const char values[] = "\n\r\t\f\v\a\x1b";
        const char *letter =
            c.code_point < 0x80 && c.code_point != 0 ? strchr(letters, (int)c.code_point) : NULL;
        bool alphanumeric =
            (c.code_point >= '0' && c.code_point <= '9') ||
            ((c.code_point | 0x20) >= 'a' && (c.code_point | 0x20) <= 'z' && c.code_point < 0x80);
        *kind = ESCAPE_CHAR;
        *code_point = letter != NULL ? (uint32_t)(unsigned char)values[letter - letters] : c.code_point;
        if (c.code_point == 'x' || c.code_point == 'u')
            return read_code(t, (char)c.code_point, code_point);
        if (letter == NULL && alphanumeric)
            break;
        return MOEC_OK;
    }
    }
    t->at -= c.n_bytes;
    return refuse(t, "an escape");
}

/* Under (?i) Oniguruma also folds one character to several ("ss" matches U+00DF); PCRE2 does not. */
static bool folds_differently(const struct translation *t, uint32_t code_point)
{
    static const char *const pairs[] = {"ss", "ff", "fi", "fl", "st"};
    if (code_point >= 0x80)
        return true;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if ((t->last_literal | 0x20) == (uint32_t)pairs[i][0] && (code_point | 0x20) == (uint32_t)pairs[i][1])
            return true;
    }
    return false;
}

static enum moec_status translate_literal(struct translation *t, uint32_t code_point)
{
    if (t->caseless[t->depth] && folds_differently(t, code_point))
        return refuse(t, "a character whose lower or upper case has several characters, under (?i)");
    t->last_literal = code_point;
    t->repeatable = true;
    return emit_char(t, code_point);
}

/* One member of a class; `*single` tells that it is a character, which may start or end a range. */
static enum moec_status class_member(struct translation *t, bool *single, uint32_t *code_point)
{
    struct moec_utf8_char c = moec_utf8_read(t->text + t->at, t->n_bytes - t->at);
    if (c.code_point == '[')
        return refuse(t, "a set as the end of a range");
    t->at += c.n_bytes;
    *single = true;
    *code_point = c.code_point;
    if (c.code_point == '\\') {
        enum escape kind = ESCAPE_CHAR;
        MOEC_TRY(translate_escape(t, true, &kind, code_point));
        *single = kind == ESCAPE_CHAR;
    }
    return MOEC_OK;
}

/* A character, a range or a set like \s. */
static enum moec_status class_range(struct translation *t, bool is_first)
{
    bool single = false;
    uint32_t low = 0, high = 0;
    const bool bare_hyphen = peek(t) == '-';
    MOEC_TRY(class_member(t, &single, &low));
    const bool range = peek(t) == '-' && t->at + 1 < t->n_bytes && t->text[t->at + 1] != ']';
    if (bare_hyphen && !is_first && peek(t) != ']')
        return refuse(t, "an unescaped hyphen inside a character class");
    if (range && !single)
        return refuse(t, "a range that starts with a set");
    if (!single)
        return MOEC_OK;
    if (t->caseless[t->depth] && low >= 0x80)
        return refuse(t, "a case-insensitive character class beyond ASCII");
    MOEC_TRY(emit_char(t, low));
    if (!range)
        return MOEC_OK;
    t->at++;
    MOEC_TRY(class_member(t, &single, &high));
    if (!single || high < low || (t->caseless[t->depth] && high >= 0x80))
        return refuse(t, "a range");
    MOEC_TRY(emit(t, "-"));
    return emit_char(t, high);
}

#define MAX_NESTED_SETS 16u

static enum moec_status translate_set(struct translation *t, uint32_t depth);

/* Members up to the "]" or "&&" that ends them: sets among them are alternatives to classes of the others. */
static enum moec_status translate_members(struct translation *t, uint32_t depth)
{
    bool is_empty = true, is_open = false;
    MOEC_TRY(emit(t, "(?:"));
    while (t->at < t->n_bytes && peek(t) != ']' && !at_text(t, "&&")) {
        const bool is_set = peek(t) == '[';
        if (is_set && is_open)
            MOEC_TRY(emit(t, "]"));
        if (!is_empty && (is_set || !is_open))
            MOEC_TRY(emit(t, "|"));
        if (!is_set && !is_open)
            MOEC_TRY(emit(t, "["));
        t->at += is_set;
        MOEC_TRY(is_set ? translate_set(t, depth + 1) : class_range(t, is_empty));
        is_open = !is_set;
        is_empty = false;
    }
    if (is_empty || t->at >= t->n_bytes)
        return refuse(t, is_empty ? "an empty class" : "an open class");
    return emit(t, is_open ? "])" : ")");
}

/* After "[" of a set with sets inside, or of an intersection (&&), which PCRE2 has not: looking ahead, the
 * character is in each operand, or (^) not in all of them. */
static enum moec_status translate_set(struct translation *t, uint32_t depth)
{
    if (depth == MAX_NESTED_SETS || peek(t) == ':')
        return refuse(t, peek(t) == ':' ? "a POSIX class" : "character sets inside character sets too deep");
    const bool negated = peek(t) == '^';
    t->at += negated;
    MOEC_TRY(emit(t, negated ? "(?:(?!" : "(?:"));
    for (;;) {
        MOEC_TRY(emit(t, "(?="));
        MOEC_TRY(translate_members(t, depth));
        MOEC_TRY(emit(t, ")"));
        if (peek(t) == ']')
            break;
        t->at += 2; /* && */
    }
    t->at++;
    t->repeatable = true;
    return emit(t, negated ? ")[\\x{0}-\\x{10ffff}])" : "[\\x{0}-\\x{10ffff}])");
}

/* Whether the class that begins here is one of PCRE2's too. */
static bool is_plain_class(const struct translation *t)
{
    for (size_t at = t->at; at < t->n_bytes && t->text[at] != ']'; at++) {
        if (t->text[at] == '[' || (t->text[at] == '&' && at + 1 < t->n_bytes && t->text[at + 1] == '&'))
            return false;
        at += t->text[at] == '\\';
    }
    return true;
}

/* After "[". */
static enum moec_status translate_class(struct translation *t)
{
    if (!is_plain_class(t))
        return translate_set(t, 0);
    const bool negated = peek(t) == '^';
    t->at += negated;
    MOEC_TRY(emit(t, negated ? "[^" : "["));
    bool is_empty = true;
    for (; t->at < t->n_bytes && peek(t) != ']'; is_empty = false)
        MOEC_TRY(class_range(t, is_empty));
    if (is_empty || t->at >= t->n_bytes)
        return refuse(t, is_empty ? "an empty class" : "an open class");
    t->at++;
    t->repeatable = true;
    return emit(t, "]");
}

/* After "(". */
static enum moec_status translate_group(struct translation *t)
{
    static const struct {
        const char *from, *to;
        int caseless; /* 1 on, 0 off, -1 as outside */
    } kinds[] = {
        {"?:", "(?:", -1}, {"?=", "(?=", -1},  {"?!", "(?!", -1},    {"?<=", "(?<=", -1},
        {"?>", "(?>", -1}, {"?i:", "(?i:", 1}, {"?-i:", "(?-i:", 0}, {"?<!", "(?<!", -1},
    };
    if (t->depth + 1 >= sizeof t->caseless / sizeof t->caseless[0])
        return refuse(t, "groups inside groups too deep");
    bool caseless = t->caseless[t->depth];
    const char *to = peek(t) == '?' ? NULL : "(?:";
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0] && to == NULL; i++) {
        if (!at_text(t, kinds[i].from))
            continue;
        to = kinds[i].to;
        caseless = kinds[i].caseless < 0 ? caseless : kinds[i].caseless > 0;
        t->at += strlen(kinds[i].from);
    }
    if (to == NULL)
        return refuse(t, "an unknown kind of group, such as (?X...)");
    t->caseless[++t->depth] = caseless;
    t->repeatable = false;
    t->last_literal = 0;
    return emit(t, to);
}

/* "{n}", "{n,}", "{,m}" or "{n,m}" at the brace; `*is_quantifier` is false when it is a literal brace. */
static enum moec_status translate_counts(struct translation *t, bool *is_quantifier)
{
    uint32_t counts[2] = {0, 0};
    bool given[2] = {false, false};
    size_t at = t->at + 1;
    int side = 0;
    for (; at < t->n_bytes && t->text[at] != '}'; at++) {
        char c = t->text[at];
        if (c == ',' && side == 0) {
            side = 1;
        } else if (c >= '0' && c <= '9' && counts[side] < 100000) {
            counts[side] = counts[side] * 10 + (uint32_t)(c - '0');
            given[side] = true;
        } else {
            break;
        }
    }
    *is_quantifier = at < t->n_bytes && t->text[at] == '}' && (given[0] || given[1]);
    if (!*is_quantifier)
        return MOEC_OK;
    t->at = at + 1;
    char text[48];
    if (side == 0)
        (void)snprintf(text, sizeof text, "{%" PRIu32 "}", counts[0]);
    else if (given[1])
        (void)snprintf(text, sizeof text, "{%" PRIu32 ",%" PRIu32 "}", counts[0], counts[1]);
    else
        (void)snprintf(text, sizeof text, "{%" PRIu32 ",}", counts[0]);
    return emit(t, text);
}

/* At one of ? * + {. */
static enum moec_status translate_quantifier(struct translation *t)
{
    char c = t->text[t->at];
    bool counted = c == '{';
    if (counted) {
        bool is_quantifier = false;
        size_t before = t->at;
        if (!t->repeatable)
            return refuse(t, "a brace");
        MOEC_TRY(translate_counts(t, &is_quantifier));
        if (!is_quantifier) {
            t->at = before + 1;
            return translate_literal(t, '{');
        }
    } else {
        if (!t->repeatable)
            return refuse(t, "a quantifier without an operand");
        char text[2] = {c, '\0'};
        MOEC_TRY(emit(t, text));
        t->at++;
    }
    t->repeatable = false;
    t->last_literal = 0;
    /* Ruby reads {n}? and {n}+ as a second quantifier, PCRE2 as lazy and possessive. */
    char mode = peek(t);
    if (mode != '?' && mode != '+')
        return MOEC_OK;
    if (counted)
        return refuse(t, "a quantifier on a quantifier");
    t->at++;
    return emit(t, mode == '?' ? "?" : "+");
}

/* One piece of the pattern that starts with `c`, already stepped over. */
static enum moec_status translate_piece(struct translation *t, struct moec_utf8_char c)
{
    enum escape kind = ESCAPE_CHAR;
    uint32_t code_point = 0;
    switch (c.code_point) {
    case '\\':
        MOEC_TRY(translate_escape(t, false, &kind, &code_point));
        if (kind == ESCAPE_CHAR)
            return translate_literal(t, code_point);
        t->repeatable = kind == ESCAPE_SET;
        t->last_literal = 0;
        return MOEC_OK;
    case '[':
        t->last_literal = 0;
        return translate_class(t);
    case '(':
        return translate_group(t);
    case ')':
        if (t->depth == 0)
            return refuse(t, "a closing parenthesis without its opening one");
        t->depth--;
        t->repeatable = true;
        t->last_literal = 0;
        return emit(t, ")");
    case '|':
        t->repeatable = false;
        t->last_literal = 0;
        return emit(t, "|");
    case '.':
        t->repeatable = true;
        t->last_literal = 0;
        return emit(t, "[^\\x{a}]");
    case '^':
    case '$':
        t->repeatable = false;
        t->last_literal = 0;
        return emit(t, c.code_point == '^' ? "^" : "$");
    default:
        return translate_literal(t, c.code_point);
    }
}

static enum moec_status translate(struct translation *t)
{
    if (at_text(t, "(?i)")) {
        t->at += 4;
        t->caseless[0] = true;
        MOEC_TRY(emit(t, "(?i)"));
    }
    while (t->at < t->n_bytes) {
        char next = t->text[t->at];
        if (next == '?' || next == '*' || next == '+' || next == '{') {
            MOEC_TRY(translate_quantifier(t));
            continue;
        }
        struct moec_utf8_char c = moec_utf8_read(t->text + t->at, t->n_bytes - t->at);
        t->at += c.n_bytes;
        MOEC_TRY(translate_piece(t, c));
    }
    if (t->depth > 0)
        return refuse(t, "an open group");
    return MOEC_OK;
}

/* ---- compiling ---- */

static enum moec_status compile(struct moec_pattern *p, const char *source, size_t source_bytes,
                                const char *text, size_t n_bytes, struct moec_error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    p->context = pcre2_match_context_create(NULL);
    if (context == NULL || p->context == NULL) {
        pcre2_compile_context_free(context);
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory for a pattern");
    }
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    (void)pcre2_set_match_limit(p->context, MATCH_LIMIT);
    (void)pcre2_set_heap_limit(p->context, HEAP_LIMIT_KIB);
    int code = 0;
    PCRE2_SIZE offset = 0;
    p->code = pcre2_compile((PCRE2_SPTR)source, source_bytes,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset,
                            context);
    pcre2_compile_context_free(context);
    if (p->code != NULL)
        return MOEC_OK;
    char reason[128] = "";
    (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
    return moec_fail(err, MOEC_ERR_UNSUPPORTED, "pattern '%.*s' cannot be compiled: %s",
                     (int)(n_bytes < 200 ? n_bytes : 200), text, reason);
}

enum moec_status moec_pattern_create(const char *text, size_t n_bytes, bool is_regex,
                                     struct moec_pattern **out, struct moec_error *err)
{
    struct moec_pattern *p = NULL;
    enum moec_status status = MOEC_OK;
    struct translation t = {.text = text, .n_bytes = n_bytes, .err = err};
    *out = NULL;
    MOEC_TRY(moec_alloc((void **)&p, 1, sizeof *p, "a pattern", err));
    if (is_regex) {
        MOEC_TRY_OUT(translate(&t));
        MOEC_TRY_OUT(compile(p, t.out.bytes != NULL ? t.out.bytes : "", t.out.n_bytes, text, n_bytes, err));
    } else {
        MOEC_TRY_OUT(moec_strndup(&p->literal, text, n_bytes, err));
        p->literal_bytes = n_bytes;
    }
    *out = p;
    p = NULL;
out:
    free(t.out.bytes);
    moec_pattern_free(p);
    return status;
}

void moec_pattern_free(struct moec_pattern *pattern)
{
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    pcre2_match_context_free(pattern->context);
    free(pattern->literal);
    free(pattern);
}

/* ---- matching ---- */

struct memory {
    pcre2_match_data *match_data;
    char *subject; /* a copy with stand-ins, owned */
    size_t capacity;
};

static enum moec_status choose_subject(struct moec_pattern_walk *walk, struct memory *m,
                                       struct moec_error *err)
{
    walk->subject = walk->text;
    if (moec_stand_ins_find(walk->text, walk->n_bytes) == walk->n_bytes)
        return MOEC_OK;
    if (m->capacity < walk->n_bytes) {
        free(m->subject);
        m->subject = NULL;
        m->capacity = 0;
        MOEC_TRY(moec_alloc((void **)&m->subject, walk->n_bytes, 1, "a text to match", err));
        m->capacity = walk->n_bytes;
    }
    memcpy(m->subject, walk->text, walk->n_bytes);
    moec_stand_ins_put(m->subject, walk->n_bytes);
    walk->subject = m->subject;
    return MOEC_OK;
}

enum moec_status moec_pattern_walk_init(struct moec_pattern_walk *walk, const struct moec_pattern *pattern,
                                        const char *text, size_t n_bytes, void **memory,
                                        struct moec_error *err)
{
    *walk = (struct moec_pattern_walk){
        .pattern = pattern,
        .text = text,
        .n_bytes = n_bytes,
        .last_match_end = SIZE_MAX,
        .exhausted = n_bytes == 0,
    };
    if (pattern->code == NULL)
        return MOEC_OK;
    if (*memory == NULL)
        MOEC_TRY(moec_alloc(memory, 1, sizeof(struct memory), "matching a pattern", err));
    struct memory *m = *memory;
    walk->memory = m;
    if (m->match_data == NULL)
        m->match_data = pcre2_match_data_create(1, NULL);
    if (m->match_data == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory for matching a pattern");
    return choose_subject(walk, m, err);
}

void moec_pattern_memory_free(void *memory)
{
    struct memory *m = memory;
    if (m == NULL)
        return;
    pcre2_match_data_free(m->match_data);
    free(m->subject);
    free(m);
}

/* First match at or after search_from, into found_start and found_end. */
static enum moec_status search(struct moec_pattern_walk *walk, struct moec_error *err)
{
    const struct moec_pattern *p = walk->pattern;
    walk->found = false;
    if (walk->search_from > walk->n_bytes)
        return MOEC_OK;
    if (p->code == NULL) {
        const char *hit = memmem(walk->text + walk->search_from, walk->n_bytes - walk->search_from,
                                 p->literal, p->literal_bytes);
        if (hit != NULL) {
            walk->found = true;
            walk->found_start = (size_t)(hit - walk->text);
            walk->found_end = walk->found_start + p->literal_bytes;
        }
        return MOEC_OK;
    }
    const struct memory *memory = walk->memory;
    int rc = pcre2_match(p->code, (PCRE2_SPTR)walk->subject, walk->n_bytes, walk->search_from,
                         PCRE2_NO_UTF_CHECK, memory->match_data, p->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return MOEC_OK;
    if (rc < 0) {
        char reason[128] = "";
        (void)pcre2_get_error_message(rc, (PCRE2_UCHAR *)reason, sizeof reason);
        return moec_fail(err, rc == PCRE2_ERROR_NOMEMORY ? MOEC_ERR_MEMORY : MOEC_ERR_LIMIT,
                         "a pattern of the tokenizer failed on the text at byte %zu of its %zu bytes: %s",
                         walk->search_from, walk->n_bytes, reason);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(memory->match_data);
    walk->found = true;
    walk->found_start = ends[0];
    walk->found_end = ends[1];
    return MOEC_OK;
}

/* The next match that the library's iterator would give:
 * an empty one right behind the last match is passed over. */
static enum moec_status next_match(struct moec_pattern_walk *walk, struct moec_error *err)
{
    for (;;) {
        MOEC_TRY(search(walk, err));
        if (!walk->found)
            return MOEC_OK;
        if (walk->found_start == walk->found_end && walk->found_end == walk->last_match_end) {
            size_t left = walk->n_bytes - walk->search_from;
            walk->search_from += left > 0 ? moec_utf8_read(walk->text + walk->search_from, left).n_bytes : 1;
            continue;
        }
        walk->search_from = walk->found_end;
        walk->last_match_end = walk->found_end;
        return MOEC_OK;
    }
}

enum moec_status moec_pattern_walk_next(struct moec_pattern_walk *walk, struct moec_pattern_part *part,
                                        bool *more, struct moec_error *err)
{
    if (!walk->found && !walk->exhausted) {
        MOEC_TRY(next_match(walk, err));
        walk->exhausted = !walk->found;
    }
    *more = true;
    if (walk->found && walk->covered == walk->found_start) {
        *part = (struct moec_pattern_part){walk->found_start, walk->found_end, true};
        walk->covered = walk->found_end;
        walk->found = false;
        return MOEC_OK;
    }
    size_t end = walk->found ? walk->found_start : walk->n_bytes;
    *more = walk->covered != end;
    *part = (struct moec_pattern_part){walk->covered, end, false};
    walk->covered = end;
    return MOEC_OK;
}

enum moec_status moec_pattern_replace(const struct moec_pattern *pattern, struct moec_text text,
                                      struct moec_text content, struct moec_tokenizer_buffer *out,
                                      bool *keeps_start, struct moec_error *err)
{
    struct moec_pattern_walk walk;
    enum moec_status status = MOEC_OK;
    struct moec_pattern_part part = {0};
    bool more = true;
    void *memory = NULL;
    MOEC_TRY_OUT(moec_pattern_walk_init(&walk, pattern, text.bytes, text.n_bytes, &memory, err));
    for (;;) {
        MOEC_TRY_OUT(moec_pattern_walk_next(&walk, &part, &more, err));
        if (!more)
            break;
        const char *piece = part.is_match ? content.bytes : text.bytes + part.start;
        size_t piece_bytes = part.is_match ? content.n_bytes : part.end - part.start;
        if (out->n_bytes > out->limit_bytes || piece_bytes > out->limit_bytes - out->n_bytes) {
            status = moec_fail(err, MOEC_ERR_LIMIT,
                               "a replacement by the tokenizer makes more than the limit of %zu bytes "
                               "from a text of %zu bytes",
                               out->limit_bytes, text.n_bytes);
            goto out;
        }
        MOEC_TRY_OUT(moec_buffer_append(out, piece, piece_bytes, err));
        /* The library aligns what it puts in with the last character that it takes out. */
        if (keeps_start != NULL && part.is_match && part.start == 0 && part.end > 0 &&
            (content.n_bytes == 0 || moec_utf8_read(text.bytes, text.n_bytes).n_bytes != part.end))
            *keeps_start = false;
    }
out:
    moec_pattern_memory_free(memory);
    return status;
}

void moec_tokenizer_pcre2_version(char text[static 64])
{
    text[0] = '\0';
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) < 64)
        (void)pcre2_config(PCRE2_CONFIG_VERSION, text);
}
