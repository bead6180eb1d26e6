/* A file is mapped shared, so that dropping pages writes them back: a private mapping would lose them. Pages
 * are dropped whole, with neighbours' rows on them, which costs these only a fault. Rows never move while the
 * states live. */
#include "profiler/evaluate/states.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool must_spill(const struct moec_work_memory *work, uint64_t n_bytes)
{
    return work != NULL && work->folder != NULL && work->states_bytes != 0 &&
           (n_bytes > work->states_bytes || work->used_bytes > work->states_bytes - n_bytes);
}

static enum moec_status spill(struct moec_states *states, const char *what, struct moec_error *err)
{
    int fd = -1;
    MOEC_TRY(moec_file_temporary(states->work->folder, states->n_bytes, what, &fd, err));
    void *rows = mmap(NULL, states->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int problem = errno;
    (void)close(fd);
    if (rows == MAP_FAILED)
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot map %" PRIu64 " bytes for %s: %s", states->n_bytes,
                         what, strerror(problem));
    (void)madvise(rows, states->n_bytes, MADV_SEQUENTIAL);
    states->rows = rows;
    states->is_spilled = true;
    states->work->spilled_bytes += states->n_bytes;
    return MOEC_OK;
}

enum moec_status moec_states_create(struct moec_work_memory *work, uint64_t n_row, size_t stride,
                                    const char *what, struct moec_states *states, struct moec_error *err)
{
    *states = (struct moec_states){.n_row = n_row, .stride = stride};
    if (__builtin_mul_overflow(n_row, (uint64_t)stride * sizeof(float), &states->n_bytes) ||
        states->n_bytes > (uint64_t)INT64_MAX)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s of %" PRIu64 " rows are too large to store", what, n_row);
    if (must_spill(work, states->n_bytes)) {
        states->work = work;
        enum moec_status status = spill(states, what, err);
        if (status != MOEC_OK)
            *states = (struct moec_states){0};
        return status;
    }
    void *rows = NULL;
    MOEC_TRY(moec_alloc_aligned(&rows, n_row, stride * sizeof(float), what, err));
    states->rows = rows;
    states->work = work;
    if (work != NULL)
        work->used_bytes += states->n_bytes;
    return MOEC_OK;
}

void moec_states_release(struct moec_states *states)
{
    if (states->rows == NULL)
        return;
    if (states->is_spilled) {
        (void)munmap(states->rows, states->n_bytes);
        states->work->spilled_bytes -= states->n_bytes;
    } else {
        free(states->rows);
        if (states->work != NULL)
            states->work->used_bytes -= states->n_bytes;
    }
    *states = (struct moec_states){0};
}

void moec_states_leave(const struct moec_states *states, uint64_t first_row, uint64_t n_rows)
{
    if (!states->is_spilled || n_rows == 0)
        return;
    /* Whole pages around the rows: the file holds what neighbouring rows have there. */
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), row = states->stride * sizeof(float);
    const uint64_t from = first_row * row / page * page;
    uint64_t end = ((first_row + n_rows) * row + page - 1) / page * page;
    end = end < states->n_bytes ? end : states->n_bytes;
    (void)madvise((uint8_t *)states->rows + from, end - from, MADV_DONTNEED);
}
