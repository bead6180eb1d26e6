/* A rank's windows are packed at the front of its arrays. Before a gather they move to their own numbers,
 * from the last on, so that none is overwritten. Rows of windows are padded to the longest one, as a gather
 * has items of one size. A rank without windows gets the first one and measures nothing with it. */
#include "profiler/evaluate/rank_windows.h"

#include "formats/base/memory.h"

#include <stdlib.h>
#include <string.h>

enum moec_status moec_rank_windows_make(struct moec_ranks *ranks, const struct moec_windows *windows,
                                        struct moec_rank_windows *out, struct moec_error *err)
{
    *out = (struct moec_rank_windows){.ranks = ranks, .all = windows, .n_all = windows->n_window};
    if (ranks == NULL) {
        out->own = *windows;
        return MOEC_OK;
    }
    if (moec_rank_windows_count(out, windows->n_window) == 0)
        return moec_windows_first(windows, 1, &out->own, err);
    return moec_windows_every(windows, moec_ranks_own(ranks), moec_ranks_count(ranks), &out->own, err);
}

void moec_rank_windows_release(struct moec_rank_windows *windows)
{
    if (windows->ranks != NULL)
        moec_windows_release(&windows->own);
    *windows = (struct moec_rank_windows){0};
}

uint32_t moec_rank_windows_count(const struct moec_rank_windows *windows, uint32_t n)
{
    return (uint32_t)moec_ranks_share(windows->ranks, n);
}

uint32_t moec_rank_windows_number(const struct moec_rank_windows *windows, uint32_t w)
{
    return w * moec_ranks_count(windows->ranks) + moec_ranks_own(windows->ranks);
}

enum moec_status moec_rank_windows_gather(const struct moec_rank_windows *windows, uint32_t n, double *values,
                                          struct moec_error *err)
{
    /* From the last on, so that none is overwritten before it is moved. */
    for (uint32_t w = moec_rank_windows_count(windows, n); w-- > 0;)
        values[moec_rank_windows_number(windows, w)] = values[w];
    return moec_ranks_gather(windows->ranks, values, n, sizeof *values, err);
}

enum moec_status moec_rank_windows_gather_rows(const struct moec_rank_windows *windows, uint32_t n,
                                               const uint64_t *row_start, void *rows, size_t row_bytes,
                                               struct moec_error *err)
{
    uint8_t *padded = NULL, *bytes = rows;
    uint64_t longest = 0;
    if (windows->ranks == NULL)
        return MOEC_OK;
    for (uint32_t w = 0; w < n; w++)
        longest = row_start[w + 1] - row_start[w] > longest ? row_start[w + 1] - row_start[w] : longest;
    const size_t item_bytes = (size_t)longest * row_bytes;
    if (item_bytes == 0)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&padded, n, item_bytes, "rows of windows", err));
    for (uint32_t w = 0; w < n; w++)
        if (moec_ranks_has(windows->ranks, w))
            memcpy(padded + w * item_bytes, bytes + row_start[w] * row_bytes,
                   (size_t)(row_start[w + 1] - row_start[w]) * row_bytes);
    const enum moec_status status = moec_ranks_gather(windows->ranks, padded, n, item_bytes, err);
    for (uint32_t w = 0; w < n && status == MOEC_OK; w++)
        memcpy(bytes + row_start[w] * row_bytes, padded + w * item_bytes,
               (size_t)(row_start[w + 1] - row_start[w]) * row_bytes);
    free(padded);
    return status;
}
