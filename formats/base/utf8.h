/* UTF-8, one character at a time, for text that may be broken.
 *
 * Broken input is cut into maximal subparts (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal
 * Subparts"), as CPython's errors="replace" and Rust's from_utf8_lossy do. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_UTF8_H
#define MOEC_FORMATS_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOEC_UTF8_REPLACEMENT 0xFFFDu

/* What stands at the start of a text. */
struct moec_utf8_char {
    uint32_t code_point; /* MOEC_UTF8_REPLACEMENT when broken */
    uint8_t n_bytes;     /* bytes to step over, 1..4 */
    bool valid;
    bool cut_off; /* broken only because the text ends: more bytes could complete it */
};

/* Reads the first character of text[n_bytes], n_bytes > 0. */
static inline struct moec_utf8_char moec_utf8_read(const char *text, size_t n_bytes)
{
    const uint8_t *s = (const uint8_t *)text;
    struct moec_utf8_char c = {.code_point = MOEC_UTF8_REPLACEMENT, .n_bytes = 1};
    uint8_t lead = s[0];
    if (lead < 0x80) {
        c.code_point = lead;
        c.valid = true;
        return c;
    }
    if (lead < 0xC2 || lead > 0xF4)
        return c;
    uint8_t total = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* Only the second byte has a narrower range: overlong forms, surrogates, past U+10FFFF. */
    uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t value = lead & (uint32_t)(0x7F >> total);
    for (uint8_t i = 1; i < total; i++) {
        if (i >= n_bytes) {
            c.n_bytes = i;
            c.cut_off = true;
            return c;
        }
        if (s[i] < low || s[i] > high) {
            c.n_bytes = i;
            return c;
        }
        value = value << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    c.code_point = value;
    c.n_bytes = total;
    c.valid = true;
    return c;
}

/* Writes `code_point` (a scalar value) to out[4]; returns the bytes written. */
static inline size_t moec_utf8_write(uint32_t code_point, char *out)
{
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    if (code_point < 0x800) {
        out[0] = (char)(0xC0 | code_point >> 6);
        out[1] = (char)(0x80 | (code_point & 0x3F));
        return 2;
    }
    if (code_point < 0x10000) {
        out[0] = (char)(0xE0 | code_point >> 12);
        out[1] = (char)(0x80 | (code_point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code_point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code_point >> 18);
    out[1] = (char)(0x80 | (code_point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code_point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code_point & 0x3F));
    return 4;
}

/* Offset of the first broken byte in text[n_bytes], or n_bytes when all of it is valid. */
static inline size_t moec_utf8_valid_bytes(const char *text, size_t n_bytes)
{
    size_t at = 0;
    while (at < n_bytes) {
        struct moec_utf8_char c = moec_utf8_read(text + at, n_bytes - at);
        if (!c.valid)
            break;
        at += c.n_bytes;
    }
    return at;
}

#endif
