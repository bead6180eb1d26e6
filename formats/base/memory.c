/* Every size is a product that is checked for overflow and against one limit before an allocation. Arrays
 * grow by doubling from 8 items. Within a budget the growth is what is left of it, and the budget falls by
 * exactly what the array grew by. */
#include "formats/base/memory.h"

#include "formats/base/mapped_memory.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <inttypes.h>
#include <string.h>

static enum moec_status total_bytes(uint64_t count, uint64_t item_bytes, const char *what, uint64_t *total,
                                    struct moec_error *err)
{
    if (__builtin_mul_overflow(count, item_bytes, total) || *total > MOEC_ALLOC_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%s would need %" PRIu64 " x %" PRIu64 " bytes, more than the limit of %" PRIu64,
                         what, count, item_bytes, MOEC_ALLOC_MAX_BYTES);
    return MOEC_OK;
}

enum moec_status moec_alloc(void **out, uint64_t count, uint64_t item_bytes, const char *what,
                            struct moec_error *err)
{
    uint64_t total = 0;
    MOEC_TRY(total_bytes(count, item_bytes, what, &total, err));
    void *memory = calloc(1, total > 0 ? total : 1);
    if (memory == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: %s needs %" PRIu64 " bytes", what, total);
    *out = memory;
    return MOEC_OK;
}

/* Room for `total` bytes at a multiple of `alignment`. */
static enum moec_status alloc_at(void **out, size_t alignment, uint64_t total, const char *what,
                                 struct moec_error *err)
{
    void *memory = aligned_alloc(alignment, (total + 2 * alignment - 1) / alignment * alignment);
    if (memory == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: %s needs %" PRIu64 " bytes", what, total);
    *out = memory;
    return MOEC_OK;
}

enum moec_status moec_alloc_aligned(void **out, uint64_t count, uint64_t item_bytes, const char *what,
                                    struct moec_error *err)
{
    uint64_t total = 0;
    MOEC_TRY(total_bytes(count, item_bytes, what, &total, err));
    return alloc_at(out, 64, total, what, err);
}

/* With fewer and larger pages, where the kernel has them, memory is taken faster, and a direct read of a
 * record is a few pieces for the device instead of hundreds. */
enum moec_status moec_alloc_pages(void **out, uint64_t n_bytes, const char *what, struct moec_error *err)
{
    uint64_t total = 0;
    void *memory = NULL;
    MOEC_TRY(total_bytes(n_bytes, 1, what, &total, err));
    if (total < MOEC_HUGE_PAGE_BYTES)
        return alloc_at(out, 4096, total, what, err);
    MOEC_TRY(alloc_at(&memory, MOEC_HUGE_PAGE_BYTES, total, what, err));
    moec_welcome_huge_pages(memory, 0, total);
    *out = memory;
    return MOEC_OK;
}

enum moec_status moec_grow_within(void **array, size_t *capacity, size_t needed, size_t item_bytes,
                                  uint64_t *left_bytes, const char *what, struct moec_error *err)
{
    if (needed <= *capacity)
        return MOEC_OK;
    size_t grown = *capacity < 8 ? 8 : *capacity;
    while (grown < needed) {
        if (__builtin_mul_overflow(grown, (size_t)2, &grown))
            return moec_fail(err, MOEC_ERR_LIMIT, "%s would need more bytes than a program can address",
                             what);
    }
    if (left_bytes != NULL && grown - *capacity > *left_bytes / item_bytes) {
        grown = *capacity + (size_t)(*left_bytes / item_bytes);
        if (grown < needed)
            return moec_fail(err, MOEC_ERR_BUDGET,
                             "%s needs %" PRIu64 " more bytes, but the limit on memory leaves only "
                             "%" PRIu64 " bytes",
                             what, (uint64_t)(needed - *capacity) * item_bytes, *left_bytes);
    }
    uint64_t total = 0;
    MOEC_TRY(total_bytes(grown, item_bytes, what, &total, err));
    void *memory = realloc(*array, total);
    if (memory == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: %s needs %" PRIu64 " bytes", what, total);
    if (left_bytes != NULL)
        *left_bytes -= (uint64_t)(grown - *capacity) * item_bytes;
    *array = memory;
    *capacity = grown;
    return MOEC_OK;
}

enum moec_status moec_grow(void **array, size_t *capacity, size_t needed, size_t item_bytes, const char *what,
                           struct moec_error *err)
{
    return moec_grow_within(array, capacity, needed, item_bytes, NULL, what, err);
}

void moec_give_back_free_memory(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
}

enum moec_status moec_strndup(char **out, const char *text, size_t length, struct moec_error *err)
{
    void *copy = NULL;
    MOEC_TRY(moec_alloc(&copy, (uint64_t)length + 1, 1, "a string", err));
    memcpy(copy, text, length);
    *out = copy;
    return MOEC_OK;
}
