/* Allocation with overflow-checked sizes. Every allocation whose size comes from outside goes through here.
 * Thread rule: any thread. Memory is released with free(). */
#ifndef MOEC_FORMATS_MEMORY_H
#define MOEC_FORMATS_MEMORY_H

#include "formats/base/error.h"

#include <stddef.h>
#include <stdlib.h>

/* No single allocation may exceed this many bytes (1 TiB): absurd dimensions in a file fail here with a
 * message instead of in the kernel's overcommit. */
#define MOEC_ALLOC_MAX_BYTES ((uint64_t)1 << 40)

/* Allocates zeroed memory for `count` items of `item_bytes`. `what` names it in the message. count 0 gives a
 * non-NULL pointer. Errors: MOEC_ERR_LIMIT when the product overflows or passes the limit, MOEC_ERR_MEMORY.
 */
MOEC_WARN_UNUSED enum moec_status moec_alloc(void **out, uint64_t count, uint64_t item_bytes,
                                             const char *what, struct moec_error *err);

/* The same, aligned to 64 bytes and not zeroed: for weights and activations that kernels read. */
MOEC_WARN_UNUSED enum moec_status moec_alloc_aligned(void **out, uint64_t count, uint64_t item_bytes,
                                                     const char *what, struct moec_error *err);

/* n_bytes that begin at a multiple of 4096 and have room up to the next: for direct reads, and for what is
 * large. In huge pages where the kernel has some; memory is taken as it is filled. Not zeroed. */
MOEC_WARN_UNUSED enum moec_status moec_alloc_pages(void **out, uint64_t n_bytes, const char *what,
                                                   struct moec_error *err);

/* Grows `*array` (capacity `*capacity` items) so that `needed` items fit; doubles.
 * On failure both are unchanged. */
MOEC_WARN_UNUSED enum moec_status moec_grow(void **array, size_t *capacity, size_t needed, size_t item_bytes,
                                            const char *what, struct moec_error *err);

/* The same within a budget: what the array grows by is taken off *left_bytes, and where it is more than that,
 * nothing is allocated and the answer is MOEC_ERR_BUDGET. Near the end of the budget it grows by what is left
 * instead of doubling. left_bytes NULL: no budget. */
MOEC_WARN_UNUSED enum moec_status moec_grow_within(void **array, size_t *capacity, size_t needed,
                                                   size_t item_bytes, uint64_t *left_bytes, const char *what,
                                                   struct moec_error *err);

/* Gives memory that was freed and that the allocator keeps back to the system, where it can. */
void moec_give_back_free_memory(void);

/* Duplicates `length` bytes of `text` and adds a NUL. */
MOEC_WARN_UNUSED enum moec_status moec_strndup(char **out, const char *text, size_t length,
                                               struct moec_error *err);

#endif
