/* A trace that a running engine wrote (TRACE.md; runtime/trace/trace.h), read back as a replay. Thread rule:
 * one thread a call. */
#ifndef MOEC_FORMATS_TRACE_JSON_H
#define MOEC_FORMATS_TRACE_JSON_H

#include "formats/trace/replay.h"

/* Reads a trace, line by line. Spans are taken in as times and left out otherwise; other events are ignored.
 * Errors: MOEC_ERR_FORMAT naming the line, MOEC_ERR_UNSUPPORTED for a trace of several sessions at once or
 * one that lost answers, MOEC_ERR_LIMIT, those of moec_file_open. */
MOEC_WARN_UNUSED enum moec_status moec_replay_load(const char *path, struct moec_replay *out,
                                                   struct moec_error *err);

#endif
