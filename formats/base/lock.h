/* Locks of whole files (flock), which end with the process. Some network file systems have none: work there
 * goes on without, and who asked says so. Thread rule: pure functions of their file. */
#ifndef MOEC_FORMATS_LOCK_H
#define MOEC_FORMATS_LOCK_H

#include "formats/base/error.h"

enum moec_lock {
    MOEC_LOCK_TAKEN,
    MOEC_LOCK_BUSY, /* another process has it */
    MOEC_LOCK_NONE, /* the file system has no locks (ENOLCK, ENOSYS, EOPNOTSUPP), or none for such files */
};

/* Takes the file's lock for this process alone, without waiting. Errors: MOEC_ERR_IO, what the system said.
 */
MOEC_WARN_UNUSED enum moec_status moec_lock_try(int fd, const char *path, enum moec_lock *lock,
                                                struct moec_error *err);

#endif
