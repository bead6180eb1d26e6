#include "formats/base/lock.h"

#include <errno.h>
#include <string.h>
#include <sys/file.h>

enum moec_status moec_lock_try(int fd, const char *path, enum moec_lock *lock, struct moec_error *err)
{
    int result = 0;
    *lock = MOEC_LOCK_TAKEN;
    do
        result = flock(fd, LOCK_EX | LOCK_NB);
    while (result != 0 && errno == EINTR);
    if (result == 0)
        return MOEC_OK;
    switch (errno) {
    case EWOULDBLOCK:
        *lock = MOEC_LOCK_BUSY;
        return MOEC_OK;
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
    case EINVAL: /* of a file that cannot be locked */
        *lock = MOEC_LOCK_NONE;
        return MOEC_OK;
    default:
        return moec_fail(err, MOEC_ERR_IO, "cannot lock '%s': %s", path, strerror(errno));
    }
}
