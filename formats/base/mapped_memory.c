/* Pages are the unit: a range to give back shrinks to whole pages, a range to map grows to them. A file's
 * pages replace anonymous ones at the same address (MAP_FIXED), and unmapping puts anonymous ones back. So
 * the range is never a hole. A huge page that a border cuts is declined before its part is given back, or
 * the kernel would fill it again. */
#include "formats/base/mapped_memory.h"

#include "formats/base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ /* Linux 5.14 */
#define MADV_POPULATE_READ 22
#endif

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

static uint64_t whole_pages(uint64_t n_bytes)
{
    return (n_bytes + MOEC_PAGE_BYTES - 1) / MOEC_PAGE_BYTES * MOEC_PAGE_BYTES;
}

void moec_welcome_huge_pages(void *memory, uint64_t from, uint64_t end)
{
    const uint64_t base = (uintptr_t)memory, huge = MOEC_HUGE_PAGE_BYTES;
    const uint64_t first = (base + from + huge - 1) / huge * huge - base;
    const uint64_t last = (base + end) / huge * huge - base;
    if (first < last)
        (void)madvise((uint8_t *)memory + first, last - first, MADV_HUGEPAGE);
}

void moec_welcome_shared_huge_pages(void *memory, uint64_t n_bytes)
{
    const uint64_t shared = (uintptr_t)memory % MOEC_PAGE_BYTES;
    (void)madvise((uint8_t *)memory - shared, whole_pages(shared + n_bytes), MADV_HUGEPAGE);
}

int moec_map_file(void *memory, int fd, uint64_t offset, uint64_t n_bytes)
{
    const uint64_t n = whole_pages(n_bytes);
    if (mmap(memory, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED)
        return errno;
    while (madvise(memory, n, MADV_POPULATE_READ) != 0) {
        const int problem = errno;
        if (problem == EINTR || problem == EAGAIN)
            continue;
        moec_unmap_file(memory, n_bytes);
        return problem;
    }
    return 0;
}

void moec_unmap_file(void *memory, uint64_t n_bytes)
{
    (void)mmap(memory, whole_pages(n_bytes), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
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
    const uint64_t cut = (base + first) / MOEC_HUGE_PAGE_BYTES * MOEC_HUGE_PAGE_BYTES;
    const uint64_t advised = cut > base ? cut - base : first;
    (void)madvise(bytes + advised, last - advised, MADV_NOHUGEPAGE);
    (void)madvise(bytes + first, last - first, MADV_DONTNEED);
}
