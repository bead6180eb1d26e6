/* For tests: an engine whose storage fails or is late on purpose; not exported. */
#ifndef MOEC_RUNTIME_ENGINE_TEST_HOOK_H
#define MOEC_RUNTIME_ENGINE_TEST_HOOK_H

#include "runtime/moert.h"
#include "runtime/storage/reader_test_hook.h"

/* moert_engine_open with experts read through the hook's reader; the hook is borrowed for the call, its
 * context until the engine is closed. */
enum moert_status moert_engine_open_hooked(const char *path, const struct moert_options *options,
                                           const struct moec_reader_test_hook *hook,
                                           struct moert_engine **out, struct moert_error *err);

#endif
