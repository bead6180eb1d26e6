/* What routers say of windows that a scorer runs, as the trace of an engine has it that reads the beginning of
 * each window as a prompt and the rest token by token: the loss of a candidate and its own choices come from one
 * run. The engine's bits are the same (D1), so are its choices. Thread rule: one thread at a time. */
#ifndef MOEC_PROFILER_ROUTER_RECORD_H
#define MOEC_PROFILER_ROUTER_RECORD_H

#include "formats/trace/replay.h"
#include "profiler/evaluate/score.h"

struct moec_router_record;

/* Of the windows (borrowed, as the model) that a scorer has, without sources; each begins with n_prompt tokens
 * that are read at once, one at least. The first windows that have most_tokens tokens together are recorded, two at
 * least. Errors: MOEC_ERR_MEMORY, MOEC_ERR_UNSUPPORTED for models with an encoder or with layers that route by
 * token. */
MOEC_WARN_UNUSED enum moec_status moec_router_record_create(const struct moec_model *model,
                                                            const struct moec_windows *windows,
                                                            uint32_t n_prompt, uint64_t most_tokens,
                                                            struct moec_router_record **out,
                                                            struct moec_error *err);
void moec_router_record_free(struct moec_router_record *record); /* NULL-safe */

/* For one run of the scorer on all of its windows; borrowed from the record. */
const struct moec_scorer_watch *moec_router_record_watch(const struct moec_router_record *record);

/* Moves what was recorded to `out`, without paths; the record can then only be freed. */
void moec_router_record_take(struct moec_router_record *record, struct moec_replay *out);

#endif
