/* The first failure wins: a message that is set is never replaced, only prefixed. Every message passes
 * moec_printable, and a cut never splits a UTF-8 character. */
#include "formats/base/error.h"

#include "formats/base/printable.h"

#include <stdio.h>
#include <string.h>

/* What is formatted into err->message shows foreign text, so it is made printable on the way. */
static void set_message(struct moec_error *err, const char *format, va_list args)
{
    char raw[MOEC_ERROR_BYTES];
    const int length = vsnprintf(raw, sizeof raw, format, args);
    size_t n = length < 0 ? 0 : strlen(raw);
    if (length >= (int)sizeof raw) { /* the cut may stand within a character */
        while (n > 0 && (raw[n - 1] & 0xc0) == 0x80)
            n--;
        n -= n > 0 && (raw[n - 1] & 0x80) != 0;
    }
    (void)moec_printable(raw, n, false, err->message, sizeof err->message);
}

enum moec_status moec_fail(struct moec_error *err, enum moec_status status, const char *format, ...)
{
    if (err == NULL || err->status != MOEC_OK)
        return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    set_message(err, format, args);
    va_end(args);
    return status;
}

enum moec_status moec_error_prefix(struct moec_error *err, const char *format, ...)
{
    if (err == NULL)
        return MOEC_OK;
    if (err->status == MOEC_OK)
        return MOEC_OK;
    char old[MOEC_ERROR_BYTES];
    memcpy(old, err->message, sizeof old);
    va_list args;
    va_start(args, format);
    set_message(err, format, args);
    va_end(args);
    /* A message that no longer fits loses its end, never its terminator. */
    const size_t used = strlen(err->message);
    if (snprintf(err->message + used, sizeof err->message - used, ": %s", old) < 0)
        err->message[used] = '\0';
    return err->status;
}
