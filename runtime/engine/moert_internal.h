/* What tests need of an engine beside its public interface; not exported. */
#ifndef MOEC_RUNTIME_MOERT_INTERNAL_H
#define MOEC_RUNTIME_MOERT_INTERNAL_H

#include "runtime/moert.h"
#include "runtime/storage/reader.h"

/* Puts a reader of its own on top of `base`, which it owns from then on: faults, delays. */
typedef struct moec_reader *moert_wrap_fn(void *context, struct moec_reader *base);

/* moert_engine_open with experts read through such a reader; `wrap` NULL = none. `context` is borrowed until
 * the engine is closed. */
enum moert_status moert_engine_open_wrapped(const char *path, const struct moert_options *options,
                                            moert_wrap_fn *wrap, void *context, struct moert_engine **out,
                                            struct moert_error *err);

#endif
