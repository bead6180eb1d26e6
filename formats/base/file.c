/* Outputs that appear whole. Each is written as `.NAME.moec-tmp-PID-N` beside its target, then fsync, close,
 * rename, and fsync of the folder. A temporary is locked (flock) as long as it is written: one that nobody
 * locks was left by a dead process and is removed. Whoever locks a new one checks that it still has a name,
 * since a remover may have been faster. Symbolic links are followed first, because a rename would replace
 * them. */
#include "formats/base/file.h"

#include "formats/base/lock.h"
#include "formats/base/memory.h"
#include "formats/base/work_tally.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One write or read call is at most this long: Linux moves no more than 2^31 - 4096 bytes at once. */
#define CALL_MAX_BYTES ((size_t)1 << 30)

#define TEMPORARY_INFIX ".moec-tmp-"

/* ---- reading ---- */

/* What git checks out where git-lfs has not fetched the file. */
static enum moec_status refuse_pointer(int fd, const char *path, off_t n_bytes, struct moec_error *err)
{
    static const char first_line[] = "version https://git-lfs.github.com/spec/";
    enum { POINTER_MAX_BYTES = 1024 };
    char text[sizeof first_line] = "";
    const ssize_t n = sizeof first_line - 1;
    if (n_bytes > POINTER_MAX_BYTES || pread(fd, text, (size_t)n, 0) != n || strcmp(text, first_line) != 0)
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_FORMAT,
        "'%s' is a Git LFS pointer, not the file itself: run 'git lfs pull' in its folder, or download the "
        "file",
        path);
}

enum moec_status moec_path_fail_link(const char *path, struct moec_error *err)
{
    char target[512] = "";
    const ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = '\0';
    return moec_fail(err, MOEC_ERR_NOT_FOUND,
                     "'%.400s' is a link to '%.400s', which does not exist: download or copy the file again",
                     path, target);
}

static bool is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

static enum moec_status open_regular(struct moec_file *file, const char *path, int flags,
                                     struct moec_error *err)
{
    *file = (struct moec_file){.fd = -1};
    /* O_NONBLOCK: a FIFO given by mistake must be refused, not waited for. It means nothing to regular files.
     */
    int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0) {
        int problem = errno;
        if (problem == ENOENT && is_link(path))
            return moec_path_fail_link(path, err);
        enum moec_status status = problem == ENOENT || problem == ENOTDIR ? MOEC_ERR_NOT_FOUND : MOEC_ERR_IO;
        return moec_fail(err, status, "cannot open '%s': %s", path, strerror(problem));
    }
    struct stat info;
    if (fstat(fd, &info) != 0) {
        int problem = errno;
        (void)close(fd);
        return moec_fail(err, MOEC_ERR_IO, "cannot examine '%s': %s", path, strerror(problem));
    }
    if (!S_ISREG(info.st_mode)) {
        (void)close(fd);
        return moec_fail(err, MOEC_ERR_IO, "'%s' is %s, expected a regular file", path,
                         S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    }
    char *copy = NULL;
    enum moec_status status = MOEC_OK;
    if ((flags & O_ACCMODE) == O_RDONLY)
        status = refuse_pointer(fd, path, info.st_size, err);
    if (status == MOEC_OK)
        status = moec_strndup(&copy, path, strlen(path), err);
    if (status != MOEC_OK) {
        (void)close(fd);
        return status;
    }
    file->fd = fd;
    file->n_bytes = (uint64_t)info.st_size;
    file->path = copy;
    return MOEC_OK;
}

enum moec_status moec_file_open(struct moec_file *file, const char *path, struct moec_error *err)
{
    return open_regular(file, path, O_RDONLY, err);
}

void moec_file_close(struct moec_file *file)
{
    if (file == NULL)
        return;
    if (file->path != NULL && file->fd >= 0)
        (void)close(file->fd);
    free(file->path);
    *file = (struct moec_file){.fd = -1};
}

enum moec_status moec_file_read(const struct moec_file *file, uint64_t offset, void *buffer, size_t n,
                                struct moec_error *err)
{
    uint64_t end = 0;
    if (__builtin_add_overflow(offset, (uint64_t)n, &end) || end > (uint64_t)INT64_MAX)
        return moec_fail(err, MOEC_ERR_IO,
                         "cannot read %zu bytes at offset %" PRIu64 " of the file '%s': these bytes end "
                         "past the largest offset that a file can have",
                         n, offset, file->path);
    uint8_t *at = buffer;
    while (n > 0) {
        const uint64_t begun_ns = moec_work_begin(MOEC_WORK_READING);
        ssize_t got = pread(file->fd, at, n < CALL_MAX_BYTES ? n : CALL_MAX_BYTES, (off_t)offset);
        moec_work_end(MOEC_WORK_READING, begun_ns, got > 0 ? (uint64_t)got : 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return moec_fail(err, MOEC_ERR_IO, "cannot read '%s' at offset %" PRIu64 ": %s", file->path,
                             offset, strerror(errno));
        if (got == 0)
            return moec_fail(err, MOEC_ERR_IO,
                             "the file '%s' ends at offset %" PRIu64 ", expected %zu more bytes: the file "
                             "is truncated",
                             file->path, offset, n);
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return MOEC_OK;
}

uint32_t moec_file_direct_unit(const struct moec_file *file)
{
    enum { LEAST = 512, MOST = 4096 };
    struct stat had, got;
    void *block = NULL;
    uint32_t unit = MOST;
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    if (fd < 0)
        return MOST;
    if (fstat(file->fd, &had) == 0 && fstat(fd, &got) == 0 && had.st_dev == got.st_dev &&
        had.st_ino == got.st_ino && posix_memalign(&block, MOST, MOST) == 0 &&
        pread(fd, (char *)block + LEAST, LEAST, LEAST) == LEAST)
        unit = LEAST;
    free(block);
    (void)close(fd);
    return unit;
}

void moec_file_drop(const struct moec_file *file, uint64_t offset, uint64_t n_bytes)
{
    if (file->fd >= 0 && offset <= (uint64_t)INT64_MAX && n_bytes <= (uint64_t)INT64_MAX)
        (void)posix_fadvise(file->fd, (off_t)offset, (off_t)n_bytes, POSIX_FADV_DONTNEED);
}

void moec_file_fetch(const struct moec_file *file, uint64_t offset, uint64_t n_bytes)
{
    if (file->fd >= 0 && offset <= (uint64_t)INT64_MAX && n_bytes <= (uint64_t)INT64_MAX)
        (void)posix_fadvise(file->fd, (off_t)offset, (off_t)n_bytes, POSIX_FADV_WILLNEED);
}

/* Else the kernel says that all is there (mincore(2)). */
static bool may_know_cached(const struct moec_file *file)
{
    struct stat info;
    return geteuid() == 0 || (fstat(file->fd, &info) == 0 && info.st_uid == geteuid()) ||
           faccessat(AT_FDCWD, file->path, W_OK, AT_EACCESS) == 0;
}

double moec_file_cached_share(const struct moec_file *file, uint64_t offset, uint64_t n_bytes)
{
    enum { PLACES = 64, PAGES = 16 };
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page_bytes;
    const uint64_t n_page = (n_bytes + page_bytes - 1) / page_bytes;
    uint64_t n_seen = 0, n_there = 0;
    unsigned char is_there[PAGES];
    if (n_bytes == 0 || offset > file->n_bytes || n_bytes > file->n_bytes - offset || !may_know_cached(file))
        return -1;
    for (uint64_t place = 0; place < PLACES; place++) {
        const uint64_t from = (uint64_t)((unsigned __int128)n_page * place / PLACES);
        const uint64_t n = n_page - from < PAGES ? n_page - from : PAGES;
        /* Mapped for the question alone: no page is touched. */
        void *memory =
            mmap(NULL, n * page_bytes, PROT_READ, MAP_SHARED, file->fd, (off_t)((first + from) * page_bytes));
        if (memory == MAP_FAILED)
            return -1;
        const int answer = mincore(memory, n * page_bytes, is_there);
        (void)munmap(memory, n * page_bytes);
        if (answer != 0)
            return -1;
        n_seen += n;
        for (uint64_t i = 0; i < n; i++)
            n_there += is_there[i] & 1;
    }
    return (double)n_there / (double)n_seen;
}

enum moec_status moec_file_load(const char *path, uint64_t limit_bytes, char **bytes, size_t *n_bytes,
                                struct moec_error *err)
{
    struct moec_file file;
    void *memory = NULL;
    MOEC_TRY(moec_file_open(&file, path, err));
    enum moec_status status = MOEC_OK;
    if (file.n_bytes > limit_bytes) {
        status = moec_fail(err, MOEC_ERR_LIMIT,
                           "the file '%s' has %" PRIu64 " bytes, more than the limit of %" PRIu64, path,
                           file.n_bytes, limit_bytes);
        goto out;
    }
    MOEC_TRY_OUT(moec_alloc(&memory, file.n_bytes + 1, 1, path, err));
    MOEC_TRY_OUT(moec_file_read(&file, 0, memory, (size_t)file.n_bytes, err));
    *bytes = memory;
    *n_bytes = (size_t)file.n_bytes;
    memory = NULL;
out:
    free(memory);
    moec_file_close(&file);
    return status;
}

/* ---- writing ---- */

/* Length of the folder part of a path with its slash: 0 for a bare name. */
static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (size_t)(slash - path) + 1;
}

/* Folder of a path as a string that can be opened. Owned by the caller. */
static enum moec_status folder_of(const char *path, char **out, struct moec_error *err)
{
    size_t length = folder_length(path);
    return length == 0 ? moec_strndup(out, ".", 1, err) : moec_strndup(out, path, length, err);
}

/* Whether a name is that of a temporary: "12-0" (process id, counter) after the prefix. */
static bool is_temporary(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0)
        return false;
    char *end = NULL;
    long pid = strtol(name + length, &end, 10);
    return pid > 0 && *end == '-' && end[1] >= '0' && end[1] <= '9';
}

/* Removes a file, or a folder (open as `fd`) with the files in it. */
static void remove_entry(int parent, const char *name, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISDIR(info.st_mode)) {
        (void)unlinkat(parent, name, 0);
        return;
    }
    int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (entries == NULL) {
        if (again >= 0)
            (void)close(again);
        return;
    }
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(fd, entry->d_name, 0);
    (void)closedir(entries);
    (void)unlinkat(parent, name, AT_REMOVEDIR);
}

/* Removes temporaries of this output that a killed process left: those whose lock nobody holds. Process ids
 * say nothing, for they are given again, and in another container they are others'. Failures are ignored: a
 * leftover does no harm but its space. */
static void remove_abandoned(const char *folder, const char *prefix)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return;
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        if (!is_temporary(entry->d_name, prefix))
            continue;
        int fd = openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        if (fd < 0)
            continue;
        enum moec_lock lock = MOEC_LOCK_NONE;
        if (moec_lock_try(fd, entry->d_name, &lock, NULL) == MOEC_OK && lock == MOEC_LOCK_TAKEN)
            remove_entry(dirfd(entries), entry->d_name, fd);
        (void)close(fd);
    }
    (void)closedir(entries);
}

/* Locks a temporary that was just made. False when another process took it for abandoned before the lock was
 * there: it is then lost. Where locks do not exist nothing is ever taken for abandoned. */
static bool lock_temporary(int fd)
{
    struct stat info;
    enum moec_lock lock = MOEC_LOCK_NONE;
    if (moec_lock_try(fd, "a temporary file", &lock, NULL) != MOEC_OK || lock != MOEC_LOCK_TAKEN)
        return lock != MOEC_LOCK_BUSY;
    return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

static enum moec_status check_target(const char *path, struct moec_error *err)
{
    struct stat info;
    if (path[0] == '\0' || path[strlen(path) - 1] == '/')
        return moec_fail(err, MOEC_ERR_IO,
                         "cannot write '%s': the path is empty or ends with '/', expected the name of a file",
                         path);
    /* A rename would replace a device such as /dev/null by a file. */
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return moec_fail(err, MOEC_ERR_IO, "cannot write '%s': it is %s, expected a regular file", path,
                         S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    return MOEC_OK;
}

/* Where a path leads, owned by the caller: a rename would replace a link instead of what it points to, and
 * /dev/stdout may be one to a regular file. A link to nothing is taken as the name it is. */
static enum moec_status follow_link(const char *path, char **target, struct moec_error *err)
{
    struct stat info;
    *target = NULL;
    if (lstat(path, &info) == 0 && S_ISLNK(info.st_mode)) {
        *target = realpath(path, NULL);
        if (*target == NULL && errno != ENOENT)
            return moec_fail(err, MOEC_ERR_IO, "cannot follow the link '%s': %s", path, strerror(errno));
    }
    return *target != NULL ? MOEC_OK : moec_strndup(target, path, strlen(path), err);
}

/* Folder of a path, and what names of its temporaries begin with, both owned by the caller. */
static enum moec_status temporary_prefix(const char *path, char **folder, char **prefix,
                                         struct moec_error *err)
{
    MOEC_TRY(folder_of(path, folder, err));
    if (asprintf(prefix, ".%s" TEMPORARY_INFIX, path + folder_length(path)) >= 0)
        return MOEC_OK;
    *prefix = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of a temporary file");
}

#define NAME_TRIES 1000

static int make_file(const char *name)
{
    return open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
}

static int make_folder(const char *name)
{
    return mkdir(name, 0777) != 0 ? -1 : open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

/* Makes what becomes `path`, locked, under a new name beside it, which is the caller's.
 * `what` it is, for the message. */
static enum moec_status make_temporary(const char *path, int (*make)(const char *name), const char *what,
                                       char **name, int *fd, struct moec_error *err)
{
    static atomic_uint counter;
    char *folder = NULL, *prefix = NULL;
    enum moec_status status = MOEC_OK;
    *name = NULL;
    *fd = -1;
    MOEC_TRY_OUT(temporary_prefix(path, &folder, &prefix, err));
    remove_abandoned(folder, prefix);
    for (int i = 0; *fd < 0 && i < NAME_TRIES; i++) {
        free(*name);
        if (asprintf(name, "%.*s%s%ld-%u", (int)folder_length(path), path, prefix, (long)getpid(),
                     atomic_fetch_add(&counter, 1)) < 0) {
            *name = NULL;
            status =
                moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of a temporary file");
            goto out;
        }
        *fd = make(*name);
        if (*fd < 0 && errno != EEXIST)
            break;
        if (*fd >= 0 && !lock_temporary(*fd)) {
            (void)close(*fd);
            *fd = -1;
            errno = EEXIST;
        }
    }
    if (*fd < 0)
        status = moec_fail(err, MOEC_ERR_IO, "cannot create %s'%s' in '%s': %s", what,
                           *name + folder_length(*name), folder, strerror(errno));
out:
    free(folder);
    free(prefix);
    return status;
}

enum moec_status moec_output_remove_abandoned(const char *path, struct moec_error *err)
{
    char *target = NULL, *folder = NULL, *prefix = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(follow_link(path, &target, err));
    MOEC_TRY_OUT(temporary_prefix(target, &folder, &prefix, err));
    remove_abandoned(folder, prefix);
out:
    free(target);
    free(folder);
    free(prefix);
    return status;
}

enum moec_status moec_output_open(struct moec_output *output, const char *path, struct moec_error *err)
{
    char *name = NULL, *copy = NULL;
    int fd = -1;
    *output = (struct moec_output){.fd = -1};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(check_target(path, err));
    MOEC_TRY_OUT(follow_link(path, &copy, err));
    MOEC_TRY_OUT(make_temporary(copy, make_file, "", &name, &fd, err));
    *output = (struct moec_output){.fd = fd, .path = copy, .temporary = name};
    copy = name = NULL;
out:
    free(name);
    free(copy);
    return status;
}

static enum moec_status write_at(int fd, const char *path, uint64_t offset, const void *bytes, size_t n,
                                 struct moec_error *err)
{
    const uint8_t *at = bytes;
    uint64_t end = 0;
    if (__builtin_add_overflow(offset, (uint64_t)n, &end) || end > (uint64_t)INT64_MAX)
        return moec_fail(err, MOEC_ERR_IO, "cannot write '%s' past the largest offset that a file can have",
                         path);
    while (n > 0) {
        ssize_t written = pwrite(fd, at, n < CALL_MAX_BYTES ? n : CALL_MAX_BYTES, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return moec_fail(err, MOEC_ERR_IO, "cannot write '%s' at offset %" PRIu64 ": %s", path, offset,
                             written == 0 ? "the system wrote no byte" : strerror(errno));
        at += written;
        offset += (uint64_t)written;
        n -= (size_t)written;
    }
    return MOEC_OK;
}

enum moec_status moec_output_append(struct moec_output *output, const void *bytes, size_t n,
                                    struct moec_error *err)
{
    MOEC_TRY(write_at(output->fd, output->path, output->n_bytes, bytes, n, err));
    output->n_bytes += n;
    return MOEC_OK;
}

enum moec_status moec_output_align(struct moec_output *output, uint64_t alignment, struct moec_error *err)
{
    static const uint8_t zeros[4096];
    uint64_t past = alignment > 1 ? output->n_bytes % alignment : 0;
    uint64_t missing = past == 0 ? 0 : alignment - past;
    while (missing > 0) {
        size_t n = missing < sizeof zeros ? (size_t)missing : sizeof zeros;
        MOEC_TRY(moec_output_append(output, zeros, n, err));
        missing -= n;
    }
    return MOEC_OK;
}

enum moec_status moec_output_patch(struct moec_output *output, uint64_t offset, const void *bytes, size_t n,
                                   struct moec_error *err)
{
    if (offset > output->n_bytes || n > output->n_bytes - offset)
        return moec_fail(err, MOEC_ERR_IO,
                         "cannot replace %zu bytes at offset %" PRIu64 " of the file '%s': only its first "
                         "%" PRIu64 " bytes are written so far",
                         n, offset, output->path, output->n_bytes);
    return write_at(output->fd, output->path, offset, bytes, n, err);
}

static enum moec_status sync_folder(const char *path, struct moec_error *err)
{
    char *folder = NULL;
    MOEC_TRY(folder_of(path, &folder, err));
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: file systems that cannot sync folders have nothing to sync. */
    bool failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL);
    int problem = errno;
    if (fd >= 0)
        (void)close(fd);
    free(folder);
    if (failed)
        return moec_fail(err, MOEC_ERR_IO, "cannot sync the folder of '%s': %s", path, strerror(problem));
    return MOEC_OK;
}

/* After the rename: the output is there, whatever comes of this. */
static enum moec_status sync_renamed(const char *path, struct moec_error *err)
{
    struct moec_error problem = {0};
    if (sync_folder(path, &problem) == MOEC_OK)
        return MOEC_OK;
    return moec_fail(err, problem.status,
                     "the file '%s' is complete and in place, but a power cut could remove it: %s", path,
                     problem.message);
}

/* Gives a finished output its name. From the rename on it is in place, and `temporary` is freed and NULL. */
static enum moec_status put_in_place(char **temporary, const char *path, struct moec_error *err)
{
    if (rename(*temporary, path) != 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot rename '%s' to '%s': %s", *temporary, path,
                         strerror(errno));
    free(*temporary);
    *temporary = NULL;
    return sync_renamed(path, err);
}

enum moec_status moec_output_commit(struct moec_output *output, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    if (fsync(output->fd) != 0) {
        status = moec_fail(err, MOEC_ERR_IO, "cannot sync '%s': %s", output->path, strerror(errno));
        goto out;
    }
    int fd = output->fd;
    output->fd = -1;
    if (close(fd) != 0) {
        status = moec_fail(err, MOEC_ERR_IO, "cannot close '%s': %s", output->path, strerror(errno));
        goto out;
    }
    status = put_in_place(&output->temporary, output->path, err);
out:
    moec_output_abort(output);
    return status;
}

void moec_output_abort(struct moec_output *output)
{
    if (output == NULL)
        return;
    if (output->temporary != NULL)
        (void)unlink(output->temporary);
    if (output->path != NULL && output->fd >= 0)
        (void)close(output->fd);
    free(output->temporary);
    free(output->path);
    *output = (struct moec_output){.fd = -1};
}

/* ---- without a name ---- */

static int open_nameless(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char *name = NULL;
    if (asprintf(&name, "%s/.moec-spill-XXXXXX", folder) < 0)
        return -1;
    fd = mkostemp(name, O_CLOEXEC);
    if (fd >= 0)
        (void)unlink(name);
    free(name);
    return fd;
}

enum moec_status moec_file_temporary(const char *folder, uint64_t n_bytes, const char *what, int *fd,
                                     struct moec_error *err)
{
    *fd = open_nameless(folder);
    if (*fd < 0)
        return moec_fail(err, MOEC_ERR_IO, "cannot create a temporary file in the folder '%s' for %s: %s",
                         folder, what, strerror(errno));
    int problem = n_bytes > (uint64_t)INT64_MAX ? EFBIG : posix_fallocate(*fd, 0, (off_t)n_bytes);
    if (problem == 0)
        return MOEC_OK;
    (void)close(*fd);
    *fd = -1;
    return moec_fail(err, MOEC_ERR_IO, "cannot reserve %" PRIu64 " bytes in the folder '%s' for %s: %s",
                     n_bytes, folder, what, strerror(problem));
}

/* ---- updating in place ---- */

enum moec_status moec_file_open_writable(struct moec_file *file, const char *path, bool create,
                                         struct moec_error *err)
{
    MOEC_TRY(open_regular(file, path, create ? O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW : O_RDWR, err));
    enum moec_status status = create ? sync_folder(path, err) : MOEC_OK;
    if (status != MOEC_OK) {
        (void)unlink(path);
        moec_file_close(file);
    }
    return status;
}

enum moec_status moec_file_write(struct moec_file *file, uint64_t offset, const void *bytes, size_t n,
                                 struct moec_error *err)
{
    MOEC_TRY(write_at(file->fd, file->path, offset, bytes, n, err));
    if (offset + n > file->n_bytes)
        file->n_bytes = offset + n;
    return MOEC_OK;
}

/* ---- folders ---- */

enum moec_status moec_output_folder_open(struct moec_output_folder *output, const char *path,
                                         struct moec_error *err)
{
    struct stat info;
    char *name = NULL, *copy = NULL;
    int fd = -1;
    size_t length = strlen(path);
    *output = (struct moec_output_folder){.fd = -1};
    enum moec_status status = MOEC_OK;
    while (length > 1 && path[length - 1] == '/')
        length--;
    MOEC_TRY_OUT(moec_strndup(&copy, path, length, err));
    if (length == 0 || lstat(copy, &info) == 0) {
        status = moec_fail(err, MOEC_ERR_IO, "cannot write the folder '%s': %s", path,
                           length == 0 ? "its name is empty; name a folder"
                                       : "it exists; remove it or name another folder");
        goto out;
    }
    MOEC_TRY_OUT(make_temporary(copy, make_folder, "the folder ", &name, &fd, err));
    *output = (struct moec_output_folder){.fd = fd, .path = copy, .temporary = name};
    copy = name = NULL;
out:
    free(name);
    free(copy);
    return status;
}

enum moec_status moec_output_folder_commit(struct moec_output_folder *output, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    if (fsync(output->fd) != 0 && errno != EINVAL) {
        status = moec_fail(err, MOEC_ERR_IO, "cannot sync the folder '%s': %s", output->temporary,
                           strerror(errno));
        goto out;
    }
    status = put_in_place(&output->temporary, output->path, err);
out:
    moec_output_folder_abort(output);
    return status;
}

void moec_output_folder_abort(struct moec_output_folder *output)
{
    if (output == NULL)
        return;
    if (output->temporary != NULL)
        remove_entry(AT_FDCWD, output->temporary, output->fd);
    if (output->path != NULL && output->fd >= 0)
        (void)close(output->fd);
    free(output->temporary);
    free(output->path);
    *output = (struct moec_output_folder){.fd = -1};
}

/* ---- paths ---- */

enum moec_status moec_path_join(char **out, const char *folder, const char *name, struct moec_error *err)
{
    size_t length = strlen(folder);
    const char *slash = length > 0 && folder[length - 1] != '/' ? "/" : "";
    char *joined = NULL;
    if (asprintf(&joined, "%s%s%s", folder, slash, name) < 0)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of '%s'", name);
    *out = joined;
    return MOEC_OK;
}

bool moec_path_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

enum moec_status moec_path_find(const char *path, bool *found, struct moec_error *err)
{
    struct stat info;
    *found = lstat(path, &info) == 0;
    if (!*found && errno != ENOENT)
        return moec_fail(err, MOEC_ERR_IO, "cannot look for '%s': %s", path, strerror(errno));
    return MOEC_OK;
}

bool moec_path_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}
