#include "formats/base/base64.h"

#include "formats/base/memory.h"

#include <nettle/base64.h>
#include <stdlib.h>
#include <string.h>

enum moec_status moec_base64_decode(const char *text, size_t n, const char *what, uint8_t **bytes,
                                    size_t *n_bytes, struct moec_error *err)
{
    struct base64_decode_ctx decoder;
    uint8_t *out = NULL;
    size_t n_out = 0, n_pad = 0;
    if (n % 4 != 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %zu characters of base64, expected a multiple of 4",
                         what, n);
    while (n_pad < 2 && n_pad < n && text[n - 1 - n_pad] == '=')
        n_pad++;
    MOEC_TRY(moec_alloc((void **)&out, n / 4 * 3, 1, what, err));
    base64_decode_init(&decoder);
    for (size_t i = 0; i < n; i += 4) {
        uint8_t piece[BASE64_DECODE_LENGTH(4)];
        size_t n_piece = 0;
        /* Nettle passes over white space, and takes three characters of padding: then bytes are missing. */
        if (!base64_decode_update(&decoder, &n_piece, piece, 4, text + i) ||
            n_piece != (i + 4 == n ? 3 - n_pad : 3)) {
            free(out);
            return moec_fail(err, MOEC_ERR_FORMAT, "%s is not base64 at characters %zu to %zu", what, i,
                             i + 3);
        }
        memcpy(out + n_out, piece, n_piece);
        n_out += n_piece;
    }
    *bytes = out;
    *n_bytes = n_out;
    return MOEC_OK;
}

void moec_base64_write(const uint8_t *bytes, size_t n_bytes, char *text)
{
    base64_encode_raw(text, n_bytes, bytes);
}

enum moec_status moec_base64_encode(const uint8_t *bytes, size_t n_bytes, char **text, struct moec_error *err)
{
    char *out = NULL;
    MOEC_TRY(moec_alloc((void **)&out, MOEC_BASE64_LENGTH((uint64_t)n_bytes) + 1, 1, "base64", err));
    moec_base64_write(bytes, n_bytes, out);
    *text = out;
    return MOEC_OK;
}
