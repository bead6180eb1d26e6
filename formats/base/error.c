#include "formats/base/error.h"

#include <stdio.h>
#include <string.h>

const char *moec_status_text(enum moec_status status)
{
    switch (status) {
#define MOEC_STATUS_CASE(name, value, text)                                                                  \
    case MOEC_##name:                                                                                        \
        return text;
        MOEC_STATUS_MAP(MOEC_STATUS_CASE)
#undef MOEC_STATUS_CASE
    }
    return "unknown status";
}

enum moec_status moec_fail(struct moec_error *err, enum moec_status status, const char *format, ...)
{
    if (err == NULL || err->status != MOEC_OK)
        return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof err->message, format, args);
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
    int used = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    /* A message that no longer fits loses its end, never its terminator. */
    if (used >= 0 && (size_t)used < sizeof err->message &&
        snprintf(err->message + used, sizeof err->message - (size_t)used, ": %s", old) < 0)
        err->message[used] = '\0';
    return err->status;
}
