/* A claim on an output: a long job says beforehand which file it is going to write, so that a second one that
 * was started by mistake ends at once and not after hours, or in a fight over the same journal.
 *
 * A claim is a lock (flock) on the file `.NAME.moec-lock` beside the output, which is removed with the claim.
 * One that a killed process left is nobody's and is taken over. Thread rule: one thread. */
#ifndef MOEC_FORMATS_CLAIM_H
#define MOEC_FORMATS_CLAIM_H

#include "formats/base/error.h"

struct moec_claim {
    int fd;     /* -1: nothing is claimed */
    char *path; /* owned: of the lock */
};

/* Claims `path` and removes what killed processes left of it. On file systems without locks nothing is
 * claimed. Errors: MOEC_ERR_IO when another process has the claim, or nothing can be written there. */
MOEC_WARN_UNUSED enum moec_status moec_claim_take(struct moec_claim *claim, const char *path,
                                                  struct moec_error *err);
/* Idempotent; of a zero or failed claim a no-op. */
void moec_claim_release(struct moec_claim *claim);

#endif
