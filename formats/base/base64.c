#include "formats/base/base64.h"

#include "formats/base/memory.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Six bits of a character, or -1. */
static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

enum moec_status moec_base64_decode(const char *text, size_t n, const char *what, uint8_t **bytes,
                                    size_t *n_bytes, struct moec_error *err)
{
    uint8_t *out = NULL;
    size_t n_out = 0, n_pad = 0;
    if (n % 4 != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %zu characters of base64, expected a multiple of 4",
                         what, n);
    while (n_pad < 2 && n_pad < n && text[n - 1 - n_pad] == '=')
        n_pad++;
    MOEC_TRY(moec_alloc((void **)&out, n / 4 * 3, 1, what, err));
    for (size_t i = 0; i < n; i += 4) {
        const size_t n_char = i + 4 == n ? 4 - n_pad : 4;
        uint32_t bits = 0;
        bool good = true;
        for (size_t k = 0; k < 4; k++) {
            int value = k < n_char ? value_of(text[i + k]) : 0;
            good = good && value >= 0;
            bits = bits << 6 | (uint32_t)(value & 63);
        }
        /* Bits that no byte takes are zero. */
        good = good && (n_char == 4 || (bits & (n_char == 3 ? 0xFFu : 0xFFFFu)) == 0);
        if (!good) {
            free(out);
            return moec_fail(err, MOEC_ERR_FORMAT, "%s is not base64 at characters %zu to %zu", what, i,
                             i + 3);
        }
        for (size_t k = 0; k + 1 < n_char; k++)
            out[n_out++] = (uint8_t)(bits >> (16 - 8 * k) & 0xFF);
    }
    *bytes = out;
    *n_bytes = n_out;
    return MOEC_OK;
}

enum moec_status moec_base64_encode(const uint8_t *bytes, size_t n_bytes, char **text, struct moec_error *err)
{
    char *out = NULL;
    MOEC_TRY(moec_alloc((void **)&out, n_bytes / 3 * 4 + 5, 1, "base64", err));
    size_t at = 0;
    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t n = n_bytes - i < 3 ? n_bytes - i : 3;
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (k < n ? bytes[i + k] : 0u);
        for (size_t k = 0; k < 4; k++, at++) {
            out[at] = '=';
            if (k <= n)
                out[at] = alphabet[bits >> (18 - 6 * k) & 63];
        }
    }
    *text = out;
    return MOEC_OK;
}
