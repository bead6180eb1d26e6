/* Decisions of an engine by what its expert buffer holds: what they are recorded as holding for, and a file
 * of them that is taken again (runtime/policy/decide/decision_book.h). */
#ifndef MOEC_RUNTIME_ENGINE_BOOK_H
#define MOEC_RUNTIME_ENGINE_BOOK_H

#include "runtime/engine/engine.h"
#include "runtime/moert.h"

/* Loads the options' replay, where there is one, into engine->replay, and fills in what *decisions leaves to
 * it: precision, low copy and whose tokens are decided about. The bundle is open. Errors: MOEC_ERR_USAGE for
 * options that contradict each other; MOEC_ERR_MISMATCH for a file of another bundle or of other settings;
 * those of moec_decision_file_load. */
MOEC_WARN_UNUSED enum moec_status moec_engine_load_replay(struct moert_engine *engine,
                                                          const struct moert_options *options,
                                                          struct moert_decisions *decisions,
                                                          struct moec_error *err);

/* Opens engine->book where decisions look at the buffer. All other settings are chosen; engine->replay is the
 * book's from then on. Errors: MOEC_ERR_USAGE for a file without such decisions; MOEC_ERR_MISMATCH for a
 * replay of other settings; those of moec_decision_book_create. */
MOEC_WARN_UNUSED enum moec_status moec_engine_open_book(struct moert_engine *engine,
                                                        const struct moert_decisions *decisions,
                                                        struct moec_error *err);

#endif
