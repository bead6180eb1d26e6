/* A unit is one record of a journal, whole or not there. Searches begin after the record found last, for a
 * run asks in the order in which it was kept. With ranks only the first has a journal, and each find is a
 * message from it to all. So all ranks must ask for the same keys in the same order. A full disk ends
 * keeping, not the run, unless the user asked for a journal. */
#include "profiler/common/unit.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "parts of units are written as they lie in memory, which must be little-endian"
#endif

/* The only kind of record. Its payload, before the parts:
 *   0  u64  multiply-adds
 *   8  f64  passes done, f64 of how many: progress when the unit was kept
 *  24  32   phase, zero-padded
 *  56  u32  number of parts, u32 zero
 *  64  u64  bytes of each part */
#define KIND_UNIT    1
#define HEAD_BYTES   64u
#define PHASE_OFFSET 24
#define PHASE_BYTES  32

struct moec_units {
    struct moec_journal journal;
    const struct moec_progress *outer;
    struct moec_progress progress; /* reports here, then to `outer` */
    char phase[PHASE_BYTES];
    double done_passes, total_passes;
    size_t hint; /* where the next unit is likely to be found */
    enum moec_units_mode mode;
    bool is_full;             /* no room was left: nothing more is kept */
    struct moec_ranks *ranks; /* that get what the first one's journal has; borrowed, NULL = there is one */
    uint64_t n_found;
};

/* ---- payloads ---- */

/* Head of a record and the sizes of its parts, checked against its length. */
static enum moec_status read_head(const struct moec_journal *journal, size_t record,
                                  uint8_t head[static HEAD_BYTES + 8 * MOEC_UNIT_MAX_PARTS], uint32_t *n_part,
                                  struct moec_error *err)
{
    MOEC_TRY(moec_journal_read(journal, record, 0, head, HEAD_BYTES, err));
    *n_part = moec_get_u32(head + 56);
    if (*n_part > MOEC_UNIT_MAX_PARTS)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "unit '%s' of journal '%s' has %" PRIu32 " parts, expected at most %u; "
                         "delete the journal to start over",
                         moec_journal_key(journal, record), journal->file.path, *n_part, MOEC_UNIT_MAX_PARTS);
    MOEC_TRY(moec_journal_read(journal, record, HEAD_BYTES, head + HEAD_BYTES, 8 * (size_t)*n_part, err));
    uint64_t left = journal->records[record].payload_bytes - HEAD_BYTES - 8 * (uint64_t)*n_part;
    for (uint32_t i = 0; i < *n_part; i++) {
        const uint64_t n = moec_get_u64(head + HEAD_BYTES + 8 * (size_t)i);
        if (n > left)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "part %" PRIu32 " of unit '%s' of journal '%s' has %" PRIu64 " bytes, but the "
                             "unit has only %" PRIu64 " bytes left; delete the journal to start over",
                             i, moec_journal_key(journal, record), journal->file.path, n, left);
        left -= n;
    }
    return MOEC_OK;
}

enum moec_status moec_unit_cost(const struct moec_units *units, size_t record, uint64_t *multiply_adds,
                                struct moec_error *err)
{
    uint8_t cost[8];
    MOEC_TRY(moec_journal_read(&units->journal, record, 0, cost, sizeof cost, err));
    *multiply_adds = moec_get_u64(cost);
    return MOEC_OK;
}

static enum moec_status find_part(const struct moec_units *units, size_t record, uint32_t part,
                                  uint64_t *offset, uint64_t *n_bytes, struct moec_error *err)
{
    uint8_t head[HEAD_BYTES + 8 * MOEC_UNIT_MAX_PARTS];
    uint32_t n_part = 0;
    MOEC_TRY(read_head(&units->journal, record, head, &n_part, err));
    if (part >= n_part)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "unit '%s' of journal '%s' has %" PRIu32 " parts, expected more than %" PRIu32
                         "; delete the journal to start over",
                         moec_journal_key(&units->journal, record), units->journal.file.path, n_part, part);
    *offset = HEAD_BYTES + 8 * (uint64_t)n_part;
    for (uint32_t i = 0; i < part; i++)
        *offset += moec_get_u64(head + HEAD_BYTES + 8 * (size_t)i);
    *n_bytes = moec_get_u64(head + HEAD_BYTES + 8 * (size_t)part);
    return MOEC_OK;
}

enum moec_status moec_unit_part_bytes(const struct moec_units *units, size_t record, uint32_t part,
                                      uint64_t *n_bytes, struct moec_error *err)
{
    uint64_t offset = 0;
    return find_part(units, record, part, &offset, n_bytes, err);
}

enum moec_status moec_unit_read_part(const struct moec_units *units, size_t record, uint32_t part, void *data,
                                     uint64_t n_bytes, struct moec_error *err)
{
    uint64_t offset = 0, n = 0;
    MOEC_TRY(find_part(units, record, part, &offset, &n, err));
    if (n != n_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "part %" PRIu32 " of unit '%s' of journal '%s' has %" PRIu64
                         " bytes, expected %" PRIu64 "; delete the journal to start over",
                         part, moec_journal_key(&units->journal, record), units->journal.file.path, n,
                         n_bytes);
    return moec_journal_read(&units->journal, record, offset, data, n_bytes, err);
}

bool moec_unit_next(const struct moec_units *units, const char *key, size_t *cursor, size_t *record)
{
    if (units == NULL)
        return false;
    const struct moec_journal *journal = &units->journal;
    for (size_t i = *cursor; i < journal->n_record; i++) {
        if (journal->records[i].kind != KIND_UNIT || strcmp(moec_journal_key(journal, i), key) != 0)
            continue;
        *record = i;
        *cursor = i + 1;
        return true;
    }
    *cursor = journal->n_record;
    return false;
}

/* ---- units ---- */

/* In the journal of this process. */
static enum moec_status find_here(struct moec_units *units, const struct moec_unit *unit, uint64_t *cost,
                                  bool *found, struct moec_error *err)
{
    const size_t record = moec_journal_find(&units->journal, units->hint, KIND_UNIT, unit->key);
    if (record == units->journal.n_record)
        return MOEC_OK;
    units->hint = record + 1;
    for (uint32_t i = 0; i < unit->n_part; i++)
        MOEC_TRY(moec_unit_read_part(units, record, i, unit->parts[i].data, unit->parts[i].n_bytes, err));
    MOEC_TRY(moec_unit_cost(units, record, cost, err));
    *found = true;
    return MOEC_OK;
}

/* From the first rank, whose journal it is, to all. */
static enum moec_status spread_found(struct moec_units *units, const struct moec_unit *unit, uint64_t *cost,
                                     bool *found, struct moec_error *err)
{
    uint64_t answer[2] = {*found, *cost};
    MOEC_TRY(moec_ranks_spread(units->ranks, 0, answer, sizeof answer, err));
    *found = answer[0] != 0;
    *cost = answer[1];
    for (uint32_t i = 0; i < unit->n_part && *found; i++)
        MOEC_TRY(moec_ranks_spread(units->ranks, 0, unit->parts[i].data, unit->parts[i].n_bytes, err));
    return MOEC_OK;
}

enum moec_status moec_unit_find(struct moec_units *units, const struct moec_unit *unit,
                                uint64_t *multiply_adds, bool *found, struct moec_error *err)
{
    uint64_t cost = 0;
    *found = false;
    if (units == NULL)
        return MOEC_OK;
    if (moec_ranks_own(units->ranks) == 0)
        MOEC_TRY(find_here(units, unit, &cost, found, err));
    MOEC_TRY(spread_found(units, unit, &cost, found, err));
    if (!*found)
        return MOEC_OK;
    *multiply_adds += cost;
    units->n_found++;
    return MOEC_OK;
}

enum moec_status moec_unit_any(struct moec_units *units, const char *prefix, bool *any,
                               struct moec_error *err)
{
    uint8_t answer = 0;
    *any = false;
    if (units == NULL)
        return MOEC_OK;
    for (size_t i = 0; moec_ranks_own(units->ranks) == 0 && i < units->journal.n_record; i++)
        if (units->journal.records[i].kind == KIND_UNIT &&
            strncmp(moec_journal_key(&units->journal, i), prefix, strlen(prefix)) == 0)
            answer = 1;
    MOEC_TRY(moec_ranks_spread(units->ranks, 0, &answer, sizeof answer, err));
    *any = answer != 0;
    return MOEC_OK;
}

enum moec_status moec_unit_keep(struct moec_units *units, const struct moec_unit *unit,
                                uint64_t multiply_adds, struct moec_error *err)
{
    const char *key = unit->key;
    const struct moec_unit_part *parts = unit->parts;
    const uint32_t n_part = unit->n_part;
    struct moec_error problem = {0};
    if (units == NULL || units->is_full || moec_ranks_own(units->ranks) != 0)
        return MOEC_OK;
    if (n_part > MOEC_UNIT_MAX_PARTS)
        return moec_fail(err, MOEC_ERR_USAGE, "unit '%s' has %" PRIu32 " parts, expected at most %u", key,
                         n_part, MOEC_UNIT_MAX_PARTS);
    uint8_t head[HEAD_BYTES + 8 * MOEC_UNIT_MAX_PARTS] = {0};
    struct moec_journal_piece pieces[1 + MOEC_UNIT_MAX_PARTS];
    moec_put_u64(head, multiply_adds);
    moec_put_f64(head + 8, units->done_passes);
    moec_put_f64(head + 16, units->total_passes);
    memcpy(head + PHASE_OFFSET, units->phase, PHASE_BYTES);
    moec_put_u32(head + 56, n_part);
    for (uint32_t i = 0; i < n_part; i++) {
        moec_put_u64(head + HEAD_BYTES + 8 * (size_t)i, parts[i].n_bytes);
        pieces[1 + i] = (struct moec_journal_piece){parts[i].data, parts[i].n_bytes};
    }
    pieces[0] = (struct moec_journal_piece){head, HEAD_BYTES + 8 * (size_t)n_part};
    const enum moec_status status =
        moec_journal_append(&units->journal, KIND_UNIT, key, pieces, 1 + (size_t)n_part, &problem);
    /* Everything before this unit is safe; who finds room again goes on from there. */
    if (status == MOEC_OK)
        return MOEC_OK;
    if (units->mode != MOEC_UNITS_AUTO)
        return moec_fail(err, status, "cannot save the finished unit '%s' in the journal: %s", key,
                         problem.message);
    units->is_full = true;
    moec_progress_note(units->outer, "%s: work finished from now on is not saved in the journal",
                       problem.message);
    return MOEC_OK;
}

/* ---- around the run ---- */

static void blank_controls(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

void moec_job_line(struct moec_job_text *job, const char *name, const char *format, ...)
{
    char value[1024];
    va_list args;
    va_start(args, format);
    const int n_value = vsnprintf(value, sizeof value, format, args);
    va_end(args);
    blank_controls(value);
    const size_t room = sizeof job->text - job->n_bytes;
    const int n = snprintf(job->text + job->n_bytes, room, "%s: %s\n", name, value);
    if (n < 0 || (size_t)n >= room || n_value < 0 || (size_t)n_value >= sizeof value)
        job->is_full = true;
    else
        job->n_bytes += (size_t)n;
}

static enum moec_status note_place(void *context, const char *phase, double done_passes, double total_passes)
{
    struct moec_units *units = context;
    if (strncmp(units->phase, phase, PHASE_BYTES - 1) != 0) {
        memset(units->phase, 0, sizeof units->phase);
        (void)snprintf(units->phase, sizeof units->phase, "%s", phase);
    }
    units->done_passes = done_passes;
    units->total_passes = total_passes;
    const struct moec_progress *outer = units->outer;
    return outer != NULL && outer->report != NULL
               ? outer->report(outer->context, phase, done_passes, total_passes)
               : MOEC_OK;
}

static void pass_note(void *context, const char *line)
{
    const struct moec_units *units = context;
    moec_progress_note(units->outer, "%s", line);
}

static void pass_expectation(void *context, double passes)
{
    const struct moec_units *units = context;
    moec_progress_expect(units->outer, passes);
}

const struct moec_progress *moec_units_progress(struct moec_units *units,
                                                const struct moec_progress *progress)
{
    return units != NULL ? &units->progress : progress;
}

/* Where the run stood when it kept its last unit. */
static enum moec_status summarise(const struct moec_journal *journal, struct moec_units_summary *summary,
                                  struct moec_error *err)
{
    uint8_t head[HEAD_BYTES + 8 * MOEC_UNIT_MAX_PARTS];
    uint32_t n_part = 0;
    *summary = (struct moec_units_summary){.n_unit = journal->n_record};
    if (journal->n_record == 0)
        return MOEC_OK;
    MOEC_TRY(read_head(journal, journal->n_record - 1, head, &n_part, err));
    summary->done_passes = moec_get_f64(head + 8);
    summary->total_passes = moec_get_f64(head + 16);
    memcpy(summary->phase, head + PHASE_OFFSET, sizeof summary->phase);
    summary->phase[sizeof summary->phase - 1] = '\0';
    blank_controls(summary->phase);
    return MOEC_OK;
}

enum moec_status moec_units_look(const char *path, struct moec_units_summary *summary, struct moec_error *err)
{
    struct moec_journal journal;
    MOEC_TRY(moec_journal_open(&journal, path, NULL, err));
    const enum moec_status status = summarise(&journal, summary, err);
    moec_journal_close(&journal);
    return status;
}

/* What is done about a journal that cannot be opened. */
static enum moec_status open_another(struct moec_units *units, const char *path,
                                     const struct moec_job_text *job, const struct moec_error *problem,
                                     struct moec_error *err)
{
    const bool is_auto = units->mode == MOEC_UNITS_AUTO;
    if (problem->status == MOEC_ERR_NOT_FOUND && !is_auto)
        moec_progress_note(units->outer, "there is no journal '%s' to resume: starting over", path);
    if (problem->status == MOEC_ERR_NOT_FOUND)
        return moec_journal_create(&units->journal, path, job->text, err);
    if (is_auto && (problem->status == MOEC_ERR_MISMATCH || problem->status == MOEC_ERR_CHECKSUM)) {
        if (problem->status == MOEC_ERR_CHECKSUM)
            moec_progress_note(units->outer, "the header of '%s' does not match its checksum; starting over",
                               path);
        else
            moec_progress_note(units->outer, "%s; starting over", problem->message);
        if (unlink(path) != 0)
            return moec_fail(err, MOEC_ERR_IO, "cannot remove '%s': %s", path, strerror(errno));
        return moec_journal_create(&units->journal, path, job->text, err);
    }
    return moec_fail(err, problem->status, "%s%s", problem->message,
                     problem->status == MOEC_ERR_MISMATCH
                         ? "; give the same options to continue that job, or delete the journal to start over"
                         : "");
}

static enum moec_status open_journal(struct moec_units *units, const char *path,
                                     const struct moec_job_text *job, struct moec_error *err)
{
    struct moec_units_summary summary;
    struct moec_error problem = {0};
    if (units->mode == MOEC_UNITS_NEW)
        return moec_journal_create(&units->journal, path, job->text, err);
    if (moec_journal_open(&units->journal, path, job->text, &problem) != MOEC_OK)
        return open_another(units, path, job, &problem, err);
    if (units->journal.n_dropped > 0)
        moec_progress_note(units->outer,
                           "'%s': the last %" PRIu64 " bytes were an incomplete record and were cut off",
                           path, units->journal.n_dropped);
    MOEC_TRY(summarise(&units->journal, &summary, err));
    char place[80] = "";
    if (units->mode == MOEC_UNITS_AUTO && summary.n_unit == 0)
        return MOEC_OK;
    if (summary.n_unit == 0 || summary.phase[0] != '\0')
        (void)snprintf(place, sizeof place, " (%s, %.1f of %.1f passes)",
                       summary.n_unit > 0 ? summary.phase : "nothing", summary.done_passes,
                       summary.total_passes);
    moec_progress_note(units->outer, "resuming from '%s': %" PRIu64 " units of work are done%s", path,
                       summary.n_unit, place);
    return MOEC_OK;
}

static enum moec_status create(enum moec_units_mode mode, const struct moec_progress *progress,
                               struct moec_ranks *ranks, struct moec_units **out, struct moec_error *err)
{
    struct moec_units *units = NULL;
    MOEC_TRY(moec_alloc((void **)&units, 1, sizeof *units, "units of work", err));
    units->outer = progress;
    units->mode = mode;
    units->ranks = ranks;
    units->journal.file.fd = -1;
    units->progress = (struct moec_progress){
        .report = note_place, .note = pass_note, .expect = pass_expectation, .context = units};
    *out = units;
    return MOEC_OK;
}

/* The journal of a process that has one; `*out` NULL where it cannot, and need not. */
static enum moec_status open_own(const char *path, const struct moec_job_text *job, struct moec_units **out,
                                 struct moec_error *err)
{
    struct moec_units *units = *out;
    const struct moec_progress *progress = units->outer;
    struct moec_error problem = {0};
    const enum moec_status status = open_journal(units, path, job, &problem);
    if (status == MOEC_OK && units->journal.is_unlocked)
        moec_progress_note(
            progress,
            "the journal '%s' cannot be locked on this file system: let no other run write this journal at "
            "the same time",
            path);
    if (status == MOEC_OK)
        return MOEC_OK;
    const bool is_auto = units->mode == MOEC_UNITS_AUTO;
    moec_journal_close(&units->journal);
    free(units);
    *out = NULL;
    if (!is_auto || status == MOEC_ERR_MEMORY)
        return moec_fail(err, status, "%s", problem.message);
    moec_progress_note(progress, "%s: finished work is not saved in a journal", problem.message);
    return MOEC_OK;
}

enum moec_status moec_units_open(const char *path, enum moec_units_mode mode, const struct moec_job_text *job,
                                 const struct moec_progress *progress, struct moec_units **out,
                                 struct moec_error *err)
{
    const struct moec_units_place place = {path, mode, NULL};
    return moec_units_open_shared(&place, job, progress, out, err);
}

enum moec_status moec_units_open_shared(const struct moec_units_place *place, const struct moec_job_text *job,
                                        const struct moec_progress *progress, struct moec_units **out,
                                        struct moec_error *err)
{
    struct moec_ranks *ranks = place->ranks;
    struct moec_units *units = NULL;
    *out = NULL;
    if (job->is_full)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "this job has too many options for a journal: their description is longer than %zu "
                         "bytes",
                         sizeof job->text);
    MOEC_TRY(create(place->mode, progress, ranks, &units, err));
    if (moec_ranks_own(ranks) == 0)
        MOEC_TRY(open_own(place->path, job, &units, err));
    uint8_t is_there = units != NULL;
    const enum moec_status status = moec_ranks_spread(ranks, 0, &is_there, sizeof is_there, err);
    if (status != MOEC_OK || is_there == 0) {
        moec_units_close(units);
        return status;
    }
    *out = units;
    return MOEC_OK;
}

/* Only the first rank has one. */
static void close_journal(struct moec_units *units, bool removes)
{
    if (units == NULL)
        return;
    if (removes && moec_ranks_own(units->ranks) == 0)
        (void)unlink(units->journal.file.path);
    moec_journal_close(&units->journal);
    free(units);
}

void moec_units_close(struct moec_units *units)
{
    close_journal(units, units != NULL && units->journal.n_record == 0);
}

void moec_units_discard(struct moec_units *units)
{
    close_journal(units, true);
}

uint64_t moec_units_found_count(const struct moec_units *units)
{
    return units != NULL ? units->n_found : 0;
}
