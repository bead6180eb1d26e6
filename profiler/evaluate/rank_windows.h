/* Windows shared among ranks: window w is measured by rank w mod n (profiler/ranks/ranks.h), so that the first
 * windows of a list are shared as evenly as all. Thread rule: as moec_ranks. */
#ifndef MOEC_PROFILER_RANK_WINDOWS_H
#define MOEC_PROFILER_RANK_WINDOWS_H

#include "profiler/evaluate/windows.h"
#include "profiler/ranks/ranks.h"

struct moec_rank_windows {
    struct moec_ranks *ranks;       /* borrowed; NULL = all windows are this process's */
    const struct moec_windows *all; /* borrowed */
    uint32_t n_all;
    /* This rank's, owned with ranks, else borrowed. A rank that has none has the first window, of which it
     * tells nobody. */
    struct moec_windows own;
};

/* Borrows `windows` until released. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_rank_windows_make(struct moec_ranks *ranks,
                                                         const struct moec_windows *windows,
                                                         struct moec_rank_windows *out,
                                                         struct moec_error *err);
void moec_rank_windows_release(struct moec_rank_windows *windows);

/* How many of the first n windows are this rank's: the first ones of `own`. */
uint32_t moec_rank_windows_count(const struct moec_rank_windows *windows, uint32_t n);
/* The number among all windows of the own window w. */
uint32_t moec_rank_windows_number(const struct moec_rank_windows *windows, uint32_t w);

/* Called by all ranks together: gives each rank the rows of the first n windows of all. Window w has rows
 * row_start[w] .. row_start[w + 1] - 1 of `rows` (row_start[n], row_bytes); each rank comes with those of its own
 * windows filled. Errors: those of moec_ranks_gather, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_rank_windows_gather_rows(const struct moec_rank_windows *windows,
                                                                uint32_t n, const uint64_t *row_start,
                                                                void *rows, size_t row_bytes,
                                                                struct moec_error *err);

#endif
