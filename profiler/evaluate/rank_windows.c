/* Rows of windows are padded to the longest one, as a gather has items of one size. A rank without windows gets
 * the first one and measures nothing with it. */
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

/* Windows first .. first + n - 1 by way of `padded` (n, item_bytes). */
static enum moec_status gather_padded(const struct moec_rank_windows *windows, uint32_t first, uint32_t n,
                                      const uint64_t *row_start, uint8_t *rows, size_t row_bytes,
                                      uint8_t *padded, size_t item_bytes, struct moec_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *start = row_start + first + i;
        if (moec_ranks_has(windows->ranks, first + i))
            memcpy(padded + i * item_bytes, rows + start[0] * row_bytes,
                   (size_t)(start[1] - start[0]) * row_bytes);
    }
    MOEC_TRY(moec_ranks_gather(windows->ranks, padded, n, item_bytes, err));
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t *start = row_start + first + i;
        memcpy(rows + start[0] * row_bytes, padded + i * item_bytes,
               (size_t)(start[1] - start[0]) * row_bytes);
    }
    return MOEC_OK;
}

enum moec_status moec_rank_windows_gather_rows(const struct moec_rank_windows *windows, uint32_t n,
                                               const uint64_t *row_start, void *rows, size_t row_bytes,
                                               struct moec_error *err)
{
    uint8_t *padded = NULL;
    uint64_t longest = 0;
    if (windows->ranks == NULL)
        return MOEC_OK;
    for (uint32_t w = 0; w < n; w++)
        longest = row_start[w + 1] - row_start[w] > longest ? row_start[w + 1] - row_start[w] : longest;
    const size_t item_bytes = (size_t)longest * row_bytes;
    if (item_bytes == 0)
        return MOEC_OK;
    /* As many windows of each rank as fit. */
    const uint32_t count = moec_ranks_count(windows->ranks);
    const uint64_t most = moec_ranks_piece_items(item_bytes, count) * count;
    const uint32_t step = most < n ? (uint32_t)most : n;
    MOEC_TRY(moec_alloc((void **)&padded, step, item_bytes, "rows of windows", err));
    enum moec_status status = MOEC_OK;
    for (uint32_t first = 0; first < n && status == MOEC_OK; first += step) {
        const uint32_t left = n - first;
        status = gather_padded(windows, first, left < step ? left : step, row_start, rows, row_bytes, padded,
                               item_bytes, err);
    }
    free(padded);
    return status;
}
