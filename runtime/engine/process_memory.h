/* What this process has in memory, as the system counts it: read from /proc. Thread rule: any thread. */
#ifndef MOEC_RUNTIME_PROCESS_MEMORY_H
#define MOEC_RUNTIME_PROCESS_MEMORY_H

#include "formats/base/error.h"

#define MOEC_PLAN_CODE_EIGHTHS 3 /* of the program's code that count as resident */

/* Peak resident size of this process so far: VmHWM of /proc/self/status.
 * Errors: MOEC_ERR_UNSUPPORTED without it. */
MOEC_WARN_UNUSED enum moec_status moec_memory_peak_bytes(uint64_t *bytes, struct moec_error *err);

/* What a plan takes the process for: its peak so far, with no less of its code resident than
 * MOEC_PLAN_CODE_EIGHTHS eighths. How much is mapped when the first pages are touched depends on where the
 * program was loaded and in what pieces the page cache holds its file: of one program between an eighth and
 * three, from start to start, while runs end with three to five. Libraries are mapped in pieces too, so that
 * starts differ all the same: 300 of moec by .55 MiB, of moec-run by .26. What is promised of another start
 * leaves moec_memory_start_bytes to that. Errors as above. */
MOEC_WARN_UNUSED enum moec_status moec_memory_base_bytes(uint64_t *bytes, struct moec_error *err);

/* Its resident size now: VmRSS. Errors as above. */
MOEC_WARN_UNUSED enum moec_status moec_memory_resident_bytes(uint64_t *bytes, struct moec_error *err);

/* The same as fast as can be, and what of it are pages of files: some microseconds. */
struct moec_memory_pages {
    uint64_t resident_bytes;
    uint64_t file_bytes;
};
MOEC_WARN_UNUSED enum moec_status moec_memory_pages_now(struct moec_memory_pages *pages,
                                                        struct moec_error *err);

/* Gives the pages of the code that this function is part of back to the system, where none was written to.
 * Each comes back from the page cache when it is run again. */
void moec_memory_give_back_code(void);

#endif
