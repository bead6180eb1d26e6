/* Windows shared among ranks in blocks: the first ones are rank 0's, the next ones rank 1's, and so on, so that what
 * ranks have of their windows, one rank behind the other, is in the order of all. For sums over the rows of all
 * windows, whose bits depend on that order; rank_windows.h shares more evenly. Thread rule: as moec_ranks. */
#ifndef MOEC_PROFILER_RANK_BLOCK_H
#define MOEC_PROFILER_RANK_BLOCK_H

#include "profiler/evaluate/windows.h"
#include "profiler/ranks/ranks.h"

struct moec_rank_block {
    struct moec_ranks *ranks;       /* borrowed */
    const struct moec_windows *all; /* borrowed */
    /* This rank's, owned. A rank that has none, n_own 0, has the first window, of which it tells nobody. */
    struct moec_windows own;
    uint32_t n_own;
};

/* Borrows `windows` until released. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_rank_block_make(struct moec_ranks *ranks,
                                                       const struct moec_windows *windows,
                                                       struct moec_rank_block *out, struct moec_error *err);
void moec_rank_block_release(struct moec_rank_block *block);

/* The first window of a rank, among all; of rank n of n their number. */
uint32_t moec_rank_block_first(const struct moec_rank_block *block, uint32_t rank);

/* Hidden states that a stack's layers have of a rank's windows (moec_windows_state_count), and in *first_row how many
 * they have of those of the ranks before. */
uint64_t moec_rank_block_rows(const struct moec_rank_block *block, enum moec_stack stack, uint32_t rank,
                              uint64_t *first_row);

/* Together: `states` of all windows in the stack, of which each rank has those of its own windows; then all have all.
 * Errors: those of moec_ranks_spread. */
MOEC_WARN_UNUSED enum moec_status moec_rank_block_gather(const struct moec_rank_block *block,
                                                         enum moec_stack stack,
                                                         const struct moec_states *states,
                                                         struct moec_error *err);

#endif
