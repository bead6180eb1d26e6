#include "runtime/engine/engine_test_hook.h"

#include "runtime/engine/moert_internal.h"

enum moert_status moert_engine_open_hooked(const char *path, const struct moert_options *options,
                                           const struct moec_reader_test_hook *hook,
                                           struct moert_engine **out, struct moert_error *err)
{
    const struct moec_record_io io = {.test_hook = *hook};
    return moert_engine_open_io(path, options, &io, out, err);
}
