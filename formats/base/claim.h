/* A claim on an output: a long job announces which file it is going to write, so that a second job that was
 * started by mistake ends at once, instead of after hours or while both write the same journal.
 *
 * A claim is a lock (lock.h) on the file `.NAME.moec-lock` beside the output, which is removed with the
 * claim. A file that a killed process left behind is not locked, and is taken over. Thread rule: one thread.
 */
#ifndef MOEC_FORMATS_CLAIM_H
#define MOEC_FORMATS_CLAIM_H

#include "formats/base/error.h"

struct moec_claim {
    int fd;     /* -1: nothing is claimed */
    char *path; /* owned: of the lock */
};

/* Claims `path` and removes temporary files that killed processes left of it. On file systems without locks
 * nothing is claimed. Errors: MOEC_ERR_IO if another process has it or nothing can be written there. */
MOEC_WARN_UNUSED enum moec_status moec_claim_take(struct moec_claim *claim, const char *path,
                                                  struct moec_error *err);
/* Idempotent; does nothing to a claim that is zero or failed. */
void moec_claim_release(struct moec_claim *claim);

#endif
