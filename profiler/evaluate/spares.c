/* A spare's head is written into the memory itself, so only memory larger than the head may be left here.
 * Sizes must match exactly; the newest of a size is taken first, as it is the likeliest to be cached. */
#include "profiler/evaluate/spares.h"

#include <stddef.h>
#include <stdlib.h>

/* Stands at the memory's beginning. */
struct moec_spare {
    struct moec_spare *next;
    uint64_t n_bytes;
};

void moec_spares_leave(struct moec_spares *spares, void *memory, uint64_t n_bytes)
{
    struct moec_spare *spare = memory;
    *spare = (struct moec_spare){spares->first, n_bytes};
    spares->first = spare;
    spares->n_bytes += n_bytes;
}

static struct moec_spare *take_at(struct moec_spares *spares, struct moec_spare **at)
{
    struct moec_spare *spare = *at;
    *at = spare->next;
    spares->n_bytes -= spare->n_bytes;
    return spare;
}

void *moec_spares_take(struct moec_spares *spares, uint64_t n_bytes)
{
    struct moec_spare **at = &spares->first;
    while (*at != NULL && (*at)->n_bytes != n_bytes)
        at = &(*at)->next;
    return *at != NULL ? take_at(spares, at) : NULL;
}

void moec_spares_shrink(struct moec_spares *spares, uint64_t n_bytes)
{
    while (spares->n_bytes > n_bytes)
        free(take_at(spares, &spares->first));
}
