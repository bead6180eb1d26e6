/* Units of work: the pieces in which a long measurement is saved while it runs, so that an interrupted run
 * continues where it stopped and ends in the same bytes.
 *
 * A unit is finished work that a phase saves: arrays ("parts") under a key, with the multiply-adds
 * that they cost. It is found again by its key in the journal of the run before; what it cost then counts as
 * if it had been done now, so the cost of a run is the same whether it was interrupted or not. A unit's
 * arrays depend on the job alone, never on threads, working memory or what ran before: a run that continues
 * may choose those differently. Work that is cheap or that only prepares is done again and counted once.
 *
 * Every function takes NULL for `units`: nothing is found, nothing is kept. Thread rule: one thread. */
#ifndef MOEC_PROFILER_UNIT_H
#define MOEC_PROFILER_UNIT_H

#include "formats/profile/journal.h"
#include "profiler/common/progress.h"
#include "profiler/ranks/ranks.h"

#define MOEC_UNIT_MAX_PARTS 8u

struct moec_units;

/* An array of a unit: read when it is kept, filled when it is found.
 * Little-endian like all that moec writes. */
struct moec_unit_part {
    void *data;
    uint64_t n_bytes;
};

/* ---- in the phases ---- */

/* Work that is done or found as a whole. Borrowed. */
struct moec_unit {
    /* What it is, such as "uniform/2": at most MOEC_JOURNAL_MAX_KEY - 1 bytes, the same in every run of the
     * job and no other unit's. */
    const char *key;
    const struct moec_unit_part *parts; /* (n_part) what it made */
    uint32_t n_part;
};

/* Looks for a unit. When it is there, fills the parts, adds its cost to `*multiply_adds` and sets
 * `*found`. Errors: MOEC_ERR_FORMAT when its parts have other sizes than these, MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_unit_find(struct moec_units *units, const struct moec_unit *unit,
                                                 uint64_t *multiply_adds, bool *found,
                                                 struct moec_error *err);

/* Whether there is a unit whose key begins so. */
MOEC_WARN_UNUSED enum moec_status moec_unit_any(struct moec_units *units, const char *prefix, bool *any,
                                                struct moec_error *err);

/* Keeps a finished unit. Errors: those of moec_journal_append. */
MOEC_WARN_UNUSED enum moec_status moec_unit_keep(struct moec_units *units, const struct moec_unit *unit,
                                                 uint64_t multiply_adds, struct moec_error *err);

/* For phases whose units share a key and say in a part of theirs what they cover: the next record from
 * `*cursor` on (0 at first); false at the end. */
bool moec_unit_next(const struct moec_units *units, const char *key, size_t *cursor, size_t *record);
/* Cost and parts of such a record. `n_bytes` must be the part's; MOEC_ERR_FORMAT when it is not. */
MOEC_WARN_UNUSED enum moec_status moec_unit_cost(const struct moec_units *units, size_t record,
                                                 uint64_t *multiply_adds, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_unit_part_bytes(const struct moec_units *units, size_t record,
                                                       uint32_t part, uint64_t *n_bytes,
                                                       struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_unit_read_part(const struct moec_units *units, size_t record,
                                                      uint32_t part, void *data, uint64_t n_bytes,
                                                      struct moec_error *err);

/* ---- around the run ---- */

/* The description of a job: lines "name: value" with everything that the result depends on. */
struct moec_job_text {
    char text[8192];
    size_t n_bytes;
    bool is_full; /* a line did not fit: moec_units_open refuses */
};

/* Adds a line; control characters of the value become '?'. */
void moec_job_line(struct moec_job_text *job, const char *name, const char *format, ...) MOEC_PRINTF(3, 4);

enum moec_units_mode {
    MOEC_UNITS_NEW,    /* there is none yet */
    MOEC_UNITS_RESUME, /* asked for: that of another job is refused, and if there is none, a note says so */
    /* Nobody asked: one of the same job is continued. One of another job, or whose header is damaged, is
     * replaced, and a file that is no journal is left alone, each with a note. Where units find no room, a
     * note says so and the work goes on without keeping them. */
    MOEC_UNITS_AUTO,
};

/* Opens the journal at `path`. `progress` (may be NULL) is told of what was found. `*out` may be NULL with
 * MOEC_UNITS_AUTO: nothing is kept. Errors: those of moec_journal_create and moec_journal_open. */
MOEC_WARN_UNUSED enum moec_status moec_units_open(const char *path, enum moec_units_mode mode,
                                                  const struct moec_job_text *job,
                                                  const struct moec_progress *progress,
                                                  struct moec_units **out, struct moec_error *err);
/* Where a journal is. Borrowed. */
struct moec_units_place {
    const char *path;
    enum moec_units_mode mode;
    struct moec_ranks *ranks; /* that do the same work; NULL = this process is alone */
};

/* The same for ranks that do the same work. The first one's journal is the only one. This function, moec_unit_find
 * and moec_unit_any are called together; moec_unit_next is not for use then. */
MOEC_WARN_UNUSED enum moec_status moec_units_open_shared(const struct moec_units_place *place,
                                                         const struct moec_job_text *job,
                                                         const struct moec_progress *progress,
                                                         struct moec_units **out, struct moec_error *err);
/* A journal in which nothing was kept is removed. */
void moec_units_close(struct moec_units *units);
/* Closes and removes the journal: the job is finished. */
void moec_units_discard(struct moec_units *units);
/* Units that were found in this run. */
uint64_t moec_units_found_count(const struct moec_units *units);

/* The progress that phases report to: passes everything on and notes where the run stands, which each unit
 * then records. `progress` itself for NULL. */
const struct moec_progress *moec_units_progress(struct moec_units *units,
                                                const struct moec_progress *progress);

/* How far the run that left a journal had come. */
struct moec_units_summary {
    uint64_t n_unit;
    char phase[32]; /* of the last unit; "" without units */
    double done_passes, total_passes;
};

/* Looks into a journal without changing it. Errors: those of moec_journal_open. */
MOEC_WARN_UNUSED enum moec_status moec_units_look(const char *path, struct moec_units_summary *summary,
                                                  struct moec_error *err);

#endif
