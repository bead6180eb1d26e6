/* Memory that records have left for the next ones of their size: fresh memory would be zeroed page by page.
 * Thread rule: the caller's lock. */
#ifndef MOEC_PROFILER_SPARES_H
#define MOEC_PROFILER_SPARES_H

#include <stdint.h>

struct moec_spare;

/* All zero: none. */
struct moec_spares {
    struct moec_spare *first;
    uint64_t n_bytes; /* of all */
};

/* Memory to be released with free(), of at least 16 bytes. */
void moec_spares_leave(struct moec_spares *spares, void *memory, uint64_t n_bytes);
/* One of exactly this size, not zeroed; NULL where there is none. */
void *moec_spares_take(struct moec_spares *spares, uint64_t n_bytes);
/* Frees some, the last ones left first, until at most n_bytes are there. */
void moec_spares_shrink(struct moec_spares *spares, uint64_t n_bytes);

#endif
