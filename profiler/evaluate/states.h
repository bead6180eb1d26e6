/* Activations of all windows between two layers, in memory or spilled to disk.
 *
 * Evaluating layer by layer keeps one row of floats for each token of every window: 8 KiB a token at a hidden
 * size of 2048, so that a million calibration tokens need 8 GB. What does not fit into the memory that
 * evaluations share is kept in an unlinked temporary file, which is mapped, so that rows are used in the same
 * way. Sweeps go through rows in order, batch by batch, and leave each batch behind: its pages are then the
 * kernel's page cache, written out when it likes, and not this process's memory. Nobody else can reach the
 * file and its blocks are reserved when it is made, so it neither shrinks nor fills the disk later.
 *
 * The bits are the same in memory and in a file. Thread rule: states and what they share belong to one
 * thread; rows may be read and written by any. */
#ifndef MOEC_PROFILER_STATES_H
#define MOEC_PROFILER_STATES_H

#include "formats/base/error.h"

#include <stddef.h>

/* What the evaluations of one job share; zero members set no bound. Windows carry it to whoever evaluates. */
struct moec_work_memory {
    uint32_t batch_tokens;  /* tokens that a forward pass takes at once, at least the longest window */
    uint64_t states_bytes;  /* of states in memory; more than that spills */
    uint64_t chunk_bytes;   /* of the reference\'s probabilities, computed at once */
    uint64_t logits_bytes;  /* of logits, scored at once; 0: moec_token_scorer_least_bytes */
    const char *folder;     /* where spilled states go; NULL: everything stays in memory. Borrowed */
    uint64_t used_bytes;    /* states in memory now */
    uint64_t spilled_bytes; /* states in files now */
};

/* n_row rows of `stride` floats, not initialised. */
struct moec_states {
    float *rows;
    uint64_t n_row;
    size_t stride;
    bool is_spilled;
    struct moec_work_memory *work; /* borrowed; NULL: none */
    uint64_t n_bytes;
};

/* `work` may be NULL. Errors: MOEC_ERR_MEMORY, MOEC_ERR_LIMIT,
 * MOEC_ERR_IO naming the folder when it has no room. */
MOEC_WARN_UNUSED enum moec_status moec_states_create(struct moec_work_memory *work, uint64_t n_row,
                                                     size_t stride, const char *what,
                                                     struct moec_states *states, struct moec_error *err);
void moec_states_release(struct moec_states *states);

/* These rows are not needed for now. They keep what they hold, and may be used again at any time. */
void moec_states_leave(const struct moec_states *states, uint64_t first_row, uint64_t n_rows);

#endif
