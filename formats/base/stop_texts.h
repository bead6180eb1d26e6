/* Texts before which a generated text ends, wherever the pieces that it comes in are cut.
 * Thread rule: one thread. */
#ifndef MOEC_FORMATS_STOP_TEXTS_H
#define MOEC_FORMATS_STOP_TEXTS_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_stop_text {
    const char *bytes; /* borrowed; may hold NUL */
    size_t n_bytes;    /* 0: it never appears */
};

/* Zero-initialise, then set the texts. */
struct moec_stop_texts {
    const struct moec_stop_text *texts; /* borrowed */
    size_t n_text;
    bool is_found;  /* one of them has appeared: nothing follows */
    char *pending;  /* owned: what was not given out, as it may begin one of them, and what was last */
    size_t n_given; /* of it, given out by the last call */
    size_t n_pending, capacity;
};

/* Adds a piece and gives out what can no longer be part of a stop text, *out (n_out), borrowed until the next
 * call; all of it with is_last, up to the first stop text where one has appeared. */
MOEC_WARN_UNUSED enum moec_status moec_stop_texts_push(struct moec_stop_texts *stops, const char *piece,
                                                       size_t n, bool is_last, const char **out,
                                                       size_t *n_out, struct moec_error *err);
void moec_stop_texts_release(struct moec_stop_texts *stops);

#endif
