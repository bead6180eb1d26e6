/* Text is held back while its end may be the beginning of a stop text: the longest such end is kept for the
 * next piece. What was given out is removed at the next call, not before, because the caller still reads it.
 * No byte of a stop text is ever given out, and no byte before it is lost. */
#include "formats/base/stop_texts.h"

#include "formats/base/memory.h"

#include <string.h>

/* Longest end of `text` that a stop text begins with. */
static size_t overlap(const char *text, size_t n, const struct moec_stop_text *stop)
{
    const size_t most = stop->n_bytes < n ? stop->n_bytes : n;
    for (size_t length = most; length > 0; length--)
        if (memcmp(text + n - length, stop->bytes, length) == 0)
            return length;
    return 0;
}

enum moec_status moec_stop_texts_push(struct moec_stop_texts *stops, const char *piece, size_t n,
                                      bool is_last, const char **out, size_t *n_out, struct moec_error *err)
{
    stops->n_pending -= stops->n_given;
    if (stops->n_given > 0)
        memmove(stops->pending, stops->pending + stops->n_given, stops->n_pending);
    stops->n_given = 0;
    MOEC_TRY(moec_grow((void **)&stops->pending, &stops->capacity, stops->n_pending + n + 1, 1,
                       "text before a stop text", err));
    if (n > 0)
        memcpy(stops->pending + stops->n_pending, piece, n);
    stops->n_pending += n;
    size_t held = 0, end = stops->n_pending;
    for (size_t i = 0; i < stops->n_text; i++) {
        const struct moec_stop_text *stop = &stops->texts[i];
        const char *found =
            stop->n_bytes > 0 ? memmem(stops->pending, stops->n_pending, stop->bytes, stop->n_bytes) : NULL;
        if (found != NULL && (size_t)(found - stops->pending) <= end) {
            end = (size_t)(found - stops->pending);
            stops->is_found = true;
        }
        const size_t length = overlap(stops->pending, stops->n_pending, stop);
        held = length > held ? length : held;
    }
    if (!stops->is_found && !is_last)
        end -= held;
    stops->n_given = end;
    *out = stops->pending;
    *n_out = end;
    return MOEC_OK;
}

void moec_stop_texts_release(struct moec_stop_texts *stops)
{
    free(stops->pending);
    *stops = (struct moec_stop_texts){0};
}
