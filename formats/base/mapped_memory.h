/* Memory that fills slowly: zeroed, and taken from the system page by page as it is first written, in huge
 * pages only where they are welcome. What was not written yet is free for other use within a budget, which
 * memory of malloc does not promise: it may reuse what was freed before and clear it, which takes all of it
 * at once. Thread rule: any thread. */
#ifndef MOEC_FORMATS_MAPPED_MEMORY_H
#define MOEC_FORMATS_MAPPED_MEMORY_H

#include "formats/base/error.h"

#include <stddef.h>

#define MOEC_PAGE_BYTES      ((uint64_t)4096)
#define MOEC_HUGE_PAGE_BYTES ((uint64_t)2 << 20)

/* n_bytes at a page's start; 0 gives NULL. `what` names it in the message. Errors: MOEC_ERR_LIMIT over
 * MOEC_ALLOC_MAX_BYTES (formats/base/memory.h), MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_map_memory(void **out, uint64_t n_bytes, const char *what,
                                                  struct moec_error *err);
/* From here on what lies from memory + from to memory + end, and was not written yet, may be taken in huge
 * pages, which are read faster: MOEC_HUGE_PAGE_BYTES at once, nothing outside. A kernel without them takes
 * small ones. */
void moec_welcome_huge_pages(void *memory, uint64_t from, uint64_t end);

/* The same for allocations that lie side by side and are all advised: huge pages may reach from one into the
 * next. Of the pages that it shares with its neighbours the whole is advised. */
void moec_welcome_shared_huge_pages(void *memory, uint64_t n_bytes);

/* With the same n_bytes; NULL-safe. */
void moec_unmap_memory(void *memory, uint64_t n_bytes);

/* Puts n_bytes of a file from `offset` on, a multiple of MOEC_PAGE_BYTES, over memory at a page's start,
 * whoever allocated it: privately, as pages of the page cache, without a copy. 0 when all of them are there,
 * else an errno, and the memory is as after moec_unmap_file. The kernel may drop them and read them again, so
 * a file that is cut short later raises SIGBUS where they are touched. Before Linux 5.14, EINVAL. */
int moec_map_file(void *memory, int fd, uint64_t offset, uint64_t n_bytes);
/* Makes it memory of its own again, all zeros: before it is freed. */
void moec_unmap_file(void *memory, uint64_t n_bytes);

/* Gives the whole pages of memory + from .. memory + end back to the system, whoever allocated it: their
 * content is lost, and they are taken again when they are written again. The kernel joins no small pages to
 * a huge one there any more. */
void moec_give_back_memory(void *memory, uint64_t from, uint64_t end);

#endif
