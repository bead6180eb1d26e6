/* Messages for callers of libmoert. */
#include "runtime/engine/moert_internal.h"

#include <string.h>

enum moert_status moert_to_public(enum moec_status status, const struct moec_error *ours,
                                  struct moert_error *err)
{
    if (status != MOEC_OK && err != NULL && err->status == MOERT_OK) {
        err->status = (int)status;
        _Static_assert(sizeof err->message == sizeof ours->message, "messages are of one size");
        memcpy(err->message, ours->message, sizeof err->message);
    }
    return (enum moert_status)status;
}
