/* Windows are cut into blocks that follow each other and differ by one window at most: rank r begins with
 * window n * r / count. Rows of states stand in the order of windows, so a rank's rows are one range, and
 * each rank spreads its own to all. */
#include "profiler/evaluate/rank_block.h"

#include "formats/base/memory.h"

#include <stdlib.h>

enum moec_status moec_rank_block_make(struct moec_ranks *ranks, const struct moec_windows *windows,
                                      struct moec_rank_block *out, struct moec_error *err)
{
    uint32_t *numbers = NULL;
    *out = (struct moec_rank_block){.ranks = ranks, .all = windows};
    const uint32_t own = moec_ranks_own(ranks), first = moec_rank_block_first(out, own);
    out->n_own = moec_rank_block_first(out, own + 1) - first;
    const uint32_t n = out->n_own > 0 ? out->n_own : 1;
    MOEC_TRY(moec_alloc((void **)&numbers, n, sizeof *numbers, "windows", err));
    for (uint32_t w = 0; w < out->n_own; w++)
        numbers[w] = first + w;
    const enum moec_status status = moec_windows_pick(windows, numbers, n, &out->own, err);
    free(numbers);
    return status;
}

void moec_rank_block_release(struct moec_rank_block *block)
{
    moec_windows_release(&block->own);
    *block = (struct moec_rank_block){0};
}

uint32_t moec_rank_block_first(const struct moec_rank_block *block, uint32_t rank)
{
    return (uint32_t)((uint64_t)block->all->n_window * rank / moec_ranks_count(block->ranks));
}

/* Of the first n windows. */
static uint64_t rows_of(const struct moec_windows *windows, enum moec_stack stack, uint32_t n)
{
    uint64_t n_row = 0;
    for (uint32_t w = 0; w < n; w++)
        n_row += stack == MOEC_STACK_ENCODER ? moec_windows_source(windows, w) : windows->scored[w];
    return n_row;
}

uint64_t moec_rank_block_rows(const struct moec_rank_block *block, enum moec_stack stack, uint32_t rank,
                              uint64_t *first_row)
{
    *first_row = rows_of(block->all, stack, moec_rank_block_first(block, rank));
    return rows_of(block->all, stack, moec_rank_block_first(block, rank + 1)) - *first_row;
}

enum moec_status moec_rank_block_gather(const struct moec_rank_block *block, enum moec_stack stack,
                                        const struct moec_states *states, struct moec_error *err)
{
    const uint32_t count = moec_ranks_count(block->ranks);
    const size_t row_bytes = states->stride * sizeof(float);
    const uint64_t most = moec_ranks_piece_items(row_bytes, 1);
    for (uint32_t rank = 0; rank < count; rank++) {
        uint64_t row = 0;
        for (uint64_t left = moec_rank_block_rows(block, stack, rank, &row); left > 0;) {
            const uint64_t n = left < most ? left : most;
            MOEC_TRY(moec_ranks_spread(block->ranks, rank, states->rows + row * states->stride, n * row_bytes,
                                       err));
            moec_states_leave(states, row, n);
            row += n;
            left -= n;
        }
    }
    return MOEC_OK;
}
