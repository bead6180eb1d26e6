/* Pages of the page cache as the bytes of a request: the file is mapped over the buffer (mmap, MAP_FIXED),
 * where memory would otherwise be taken from the system, zeroed and copied into.
 *
 * Mappings are private and may be written: an arena moves records, and another reader fills the same buffer;
 * the kernel then copies the page. */
#include "runtime/storage/reader_internal.h"

#include "formats/base/mapped_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE_BYTES ((uint64_t)MOEC_READER_ALIGNMENT)

enum moec_status moec_reader_mapped_check(const struct moec_reader_target *target, const char *path,
                                          struct moec_error *err)
{
    if (target->buffer == NULL || (uintptr_t)target->buffer % PAGE_BYTES != 0)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "there is no buffer of whole pages to map '%s' into",
                         path);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    if (page_bytes != MOEC_READER_ALIGNMENT)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "pages of this machine have %ld bytes, mapping needs %d",
                         page_bytes, MOEC_READER_ALIGNMENT);
    void *page = NULL;
    MOEC_TRY(moec_map_memory(&page, PAGE_BYTES, "a page", err));
    const int problem = moec_map_file(page, target->fd, 0, PAGE_BYTES);
    moec_unmap_memory(page, PAGE_BYTES);
    if (problem == 0 || problem == EFAULT) /* an empty file has no page */
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED, "the file '%s' cannot be mapped: %s", path,
                     problem == EINVAL ? "the kernel does not support MADV_POPULATE_READ"
                                       : strerror(problem));
}

/* 0, or an errno for a request that this reader does not serve. */
static int check_range(const struct moec_reader_target *target, const struct moec_read *read)
{
    const uintptr_t first = (uintptr_t)target->buffer, at = (uintptr_t)read->buffer;
    const bool is_aligned = read->offset % PAGE_BYTES == 0 && at % PAGE_BYTES == 0;
    return is_aligned && at >= first && at - first <= target->buffer_bytes &&
                   read->n_bytes <= target->buffer_bytes - (at - first)
               ? 0
               : EINVAL;
}

/* ENODATA where the file ends before the request does. */
static int check_end(int fd, const struct moec_read *read)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return errno;
    const uint64_t n_file = (uint64_t)info.st_size;
    return read->offset > n_file || read->n_bytes > n_file - read->offset ? ENODATA : 0;
}

/* 0, or an errno. */
static int map_pages(int fd, const struct moec_read *read)
{
    int problem = moec_map_file(read->buffer, fd, read->offset, read->n_bytes);
    if (problem == EFAULT) { /* cut off meanwhile, or the device failed */
        problem = check_end(fd, read);
        return problem != 0 ? problem : EIO;
    }
    return problem == EHWPOISON ? EIO : problem;
}

bool moec_read_map(const struct moec_reader_target *target, struct moec_read *read)
{
    read->error = check_range(target, read);
    if (read->error == 0)
        read->error = check_end(target->fd, read);
    if (read->error == 0 && read->n_bytes > 0) {
        /* What is not in the page cache is asked for in few large pieces. */
        (void)posix_fadvise(target->fd, (off_t)read->offset, (off_t)read->n_bytes, POSIX_FADV_WILLNEED);
        read->error = map_pages(target->fd, read);
    }
    if (read->error == ENOMEM)
        return false;
    read->progress.done_bytes = read->error == 0 ? read->n_bytes : 0;
    read->at.done_ns = moec_now_ns();
    return true;
}

void moec_reader_mapped_end(const struct moec_reader_target *target)
{
    const uint64_t n = target->buffer_bytes / PAGE_BYTES * PAGE_BYTES;
    if (n > 0)
        moec_unmap_file(target->buffer, n);
}
