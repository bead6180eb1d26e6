#include "profiler/evaluate/rank_windows.h"

enum moec_status moec_rank_windows_make(struct moec_ranks *ranks, const struct moec_windows *windows,
                                        struct moec_rank_windows *out, struct moec_error *err)
{
    *out = (struct moec_rank_windows){.ranks = ranks, .n_all = windows->n_window};
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
