/* A character is printed as it is, or each of its bytes as \xNN: bytes that are no UTF-8, controls,
 * separators of lines, and marks that turn the direction of text. Output ends before the first piece that
 * does not fit, never inside one; the answer is what all would take. */
#include "formats/base/printable.h"

#include "formats/base/utf8.h"

#include <string.h>

static bool is_shown(uint32_t code, bool keeps_lines)
{
    if (code < 0x20)
        return keeps_lines && (code == '\n' || code == '\t');
    if (code >= 0x7f && code <= 0x9f)
        return false;
    const bool turns = code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
                       (code >= 0x2066 && code <= 0x2069);
    return code != 0x2028 && code != 0x2029 && !turns;
}

size_t moec_printable(const char *text, size_t n, bool keeps_lines, char *out, size_t capacity)
{
    static const char digits[] = "0123456789abcdef";
    size_t needed = 0, used = 0;
    for (size_t at = 0; at < n;) {
        const struct moec_utf8_char c = moec_utf8_read(text + at, n - at);
        const bool is_plain = c.valid && is_shown(c.code_point, keeps_lines);
        char piece[16];
        for (size_t i = 0; i < c.n_bytes; i++) {
            const unsigned char byte = (unsigned char)text[at + i];
            if (is_plain)
                piece[i] = text[at + i];
            else
                memcpy(piece + 4 * i, (char[4]){'\\', 'x', digits[byte >> 4], digits[byte & 15]}, 4);
        }
        const size_t n_piece = is_plain ? c.n_bytes : 4 * (size_t)c.n_bytes;
        if (used == needed && needed + n_piece < capacity) {
            memcpy(out + used, piece, n_piece);
            used += n_piece;
        }
        needed += n_piece;
        at += c.n_bytes;
    }
    if (capacity > 0)
        out[used] = '\0';
    return needed;
}
