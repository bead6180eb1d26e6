#include "formats/base/mapped_memory.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((uint64_t)2 << 20)

enum moec_status moec_map_memory(void **out, uint64_t n_bytes, const char *what, struct moec_error *err)
{
    *out = NULL;
    if (n_bytes == 0)
        return MOEC_OK;
    if (n_bytes > MOEC_ALLOC_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%s would need %" PRIu64 " bytes, more than the limit of %" PRIu64, what, n_bytes,
                         MOEC_ALLOC_MAX_BYTES);
    void *memory =
        mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: %s needs %" PRIu64 " bytes", what, n_bytes);
    /* A kernel without huge pages refuses the advice, and has none to avoid. */
    (void)madvise(memory, n_bytes, MADV_NOHUGEPAGE);
    *out = memory;
    return MOEC_OK;
}

void moec_unmap_memory(void *memory, uint64_t n_bytes)
{
    if (memory != NULL)
        (void)munmap(memory, n_bytes);
}

void moec_give_back_memory(void *memory, uint64_t from, uint64_t end)
{
    uint8_t *bytes = memory;
    const uint64_t base = (uintptr_t)memory;
    const uint64_t first = (base + from + MOEC_PAGE_BYTES - 1) / MOEC_PAGE_BYTES * MOEC_PAGE_BYTES - base;
    const uint64_t last = (base + end) / MOEC_PAGE_BYTES * MOEC_PAGE_BYTES - base;
    if (first >= last)
        return;
    /* A huge page that the border cuts would be filled up again. Where it begins before the memory, it is not
     * one. */
    const uint64_t cut = (base + first) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    const uint64_t advised = cut > base ? cut - base : first;
    (void)madvise(bytes + advised, last - advised, MADV_NOHUGEPAGE);
    (void)madvise(bytes + first, last - first, MADV_DONTNEED);
}
