/* What an engine's memory is for, once its options are read and its bundle is open: the requests and settings
 * of which its plans and its sources of experts are made. */
#ifndef MOEC_RUNTIME_ENGINE_PLAN_H
#define MOEC_RUNTIME_ENGINE_PLAN_H

#include "runtime/engine/engine.h"
#include "runtime/moert.h"

/* "none" in modes that keep nothing. */
const char *moec_engine_evict_name(const struct moert_engine *engine);

/* Whether a device is given the active neurons of experts alone, where its memory has room for that: in the
 * canonical arithmetic, whose kernels read rows by a table. */
bool moec_engine_copies_neurons(const struct moert_engine *engine, const struct moert_options *options);

/* They borrow from the engine. */
struct moec_expert_cache_options moec_engine_cache_options(const struct moert_engine *engine);
struct moec_trace_setup moec_engine_trace_setup(const struct moert_engine *engine,
                                                const struct moert_options *options);

/* All but the process's own bytes, and the logical caches. */
struct moec_memory_request moec_engine_request(const struct moert_engine *engine,
                                               const struct moert_options *options);

/* What the request takes at least, and the longest context within its budget. Errors: those of
 * moec_memory_plan_make, but for the budget's. */
MOEC_WARN_UNUSED enum moec_status moec_engine_floor(const struct moert_engine *engine,
                                                    struct moec_memory_request request,
                                                    struct moert_floor *floor, struct moec_error *err);

/* Makes the plans of both memories, the logical caches' counts, and what is lent of the KV cache. Errors:
 * those of moec_memory_plan_make, of modes whose experts do not fit, and MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status
moec_engine_plan(struct moert_engine *engine, const struct moert_options *options, struct moec_error *err);

#endif
