/* Ends are looked at from the latest back, until one agrees as far as is looked. Only a longer match
 * replaces an earlier find, so of equal ones the latest stays. Each end costs at most MOEC_LOOKUP_MOST
 * comparisons. */
#include "runtime/generate/draft_lookup.h"

#include "formats/base/memory.h"

#include <string.h>

enum moec_status moec_draft_lookup_create(uint32_t n_room, struct moec_draft_lookup *lookup,
                                          struct moec_error *err)
{
    *lookup = (struct moec_draft_lookup){.n_room = n_room};
    return moec_alloc((void **)&lookup->text, n_room, sizeof *lookup->text, "a text to draft from", err);
}

void moec_draft_lookup_release(struct moec_draft_lookup *lookup)
{
    free(lookup->text);
    *lookup = (struct moec_draft_lookup){0};
}

void moec_draft_lookup_clear(struct moec_draft_lookup *lookup)
{
    lookup->n_text = 0;
}

void moec_draft_lookup_append(struct moec_draft_lookup *lookup, const uint32_t *tokens, uint32_t n)
{
    memcpy(lookup->text + lookup->n_text, tokens, n * sizeof *tokens);
    lookup->n_text += n;
}

/* Tokens before `end` that are the last of the text too, up to `most`. */
static uint32_t count_equal(const struct moec_draft_lookup *lookup, uint32_t end, uint32_t most)
{
    const uint32_t *text = lookup->text;
    uint32_t n = 0;
    while (n < most && n < end && text[end - 1 - n] == text[lookup->n_text - 1 - n])
        n++;
    return n;
}

uint32_t moec_draft_lookup_find(const struct moec_draft_lookup *lookup, uint32_t n_most, uint32_t *draft)
{
    uint32_t longest = 0, begin = 0;
    for (uint32_t end = lookup->n_text; end-- > MOEC_LOOKUP_LEAST && longest < MOEC_LOOKUP_MOST;) {
        const uint32_t n = count_equal(lookup, end, MOEC_LOOKUP_MOST);
        if (n > longest) {
            longest = n;
            begin = end;
        }
    }
    if (longest < MOEC_LOOKUP_LEAST)
        return 0;
    const uint32_t period = lookup->n_text - begin;
    for (uint32_t i = 0; i < n_most; i++)
        draft[i] = lookup->text[begin + i % period];
    return longest;
}
