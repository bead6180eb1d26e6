/* A lock file that is removed while it is held. A second process may open the file just before its holder
 * unlinks it, and would then lock a file without a name. So a lock counts only if the name still leads to
 * the locked file (device and inode); else the claim is tried again. Release unlinks first and closes
 * afterwards, and the lock ends with the descriptor. */
#include "formats/base/claim.h"

#include "formats/base/file.h"
#include "formats/base/lock.h"
#include "formats/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLAIM_TRIES 100 /* at a lock that its holder removes in this very moment */

/* Beside the file that a link leads to, since that is what becomes overwritten. */
static enum moec_status lock_path(const char *path, char **out, struct moec_error *err)
{
    char *target = realpath(path, NULL);
    const char *file = target != NULL ? target : path, *slash = strrchr(file, '/');
    const int folder_length = slash == NULL ? 0 : (int)(slash - file) + 1;
    const int length = asprintf(out, "%.*s.%s.moec-lock", folder_length, file, file + folder_length);
    free(target);
    if (length >= 0)
        return MOEC_OK;
    *out = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of a lock file");
}

/* Whether the name still stands for the open file. */
static bool is_same(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

static enum moec_status take(struct moec_claim *claim, const char *path, struct moec_error *err)
{
    for (int i = 0; i < CLAIM_TRIES; i++) {
        claim->fd = open(claim->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (claim->fd < 0)
            return moec_fail(err, MOEC_ERR_IO, "cannot write '%s': cannot open its lock file '%s': %s", path,
                             claim->path, strerror(errno));
        enum moec_lock lock = MOEC_LOCK_NONE;
        MOEC_TRY(moec_lock_try(claim->fd, claim->path, &lock, err));
        if (lock == MOEC_LOCK_BUSY)
            return moec_fail(err, MOEC_ERR_IO,
                             "another run is writing '%s': wait until it ends, or name another file", path);
        if (lock == MOEC_LOCK_NONE) {
            (void)unlink(claim->path);
            return MOEC_OK;
        }
        if (is_same(claim->fd, claim->path))
            return MOEC_OK;
        (void)close(claim->fd);
        claim->fd = -1;
    }
    return moec_fail(err, MOEC_ERR_IO,
                     "cannot write '%s': another process keeps removing its lock file '%s'; stop that "
                     "process, or name another file",
                     path, claim->path);
}

enum moec_status moec_claim_take(struct moec_claim *claim, const char *path, struct moec_error *err)
{
    *claim = (struct moec_claim){.fd = -1};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(lock_path(path, &claim->path, err));
    MOEC_TRY_OUT(take(claim, path, err));
    MOEC_TRY_OUT(moec_output_remove_abandoned(path, err));
    return MOEC_OK;
out:
    if (claim->fd >= 0)
        (void)close(claim->fd);
    free(claim->path);
    *claim = (struct moec_claim){.fd = -1};
    return status;
}

void moec_claim_release(struct moec_claim *claim)
{
    if (claim->path == NULL)
        return;
    (void)unlink(claim->path); /* before the lock ends: whoever opened it meanwhile sees that it is gone */
    (void)close(claim->fd);
    free(claim->path);
    *claim = (struct moec_claim){.fd = -1};
}
