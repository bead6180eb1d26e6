/* What the files of the engine share beside its public interface; not exported. */
#ifndef MOEC_RUNTIME_MOERT_INTERNAL_H
#define MOEC_RUNTIME_MOERT_INTERNAL_H

#include "runtime/moert.h"
#include "runtime/storage/record_reader.h"

/* moert_engine_open, with what `io` says beside the options:
 * those choose the way of reading and the emulated device. */
enum moert_status moert_engine_open_io(const char *path, const struct moert_options *options,
                                       const struct moec_record_io *io, struct moert_engine **out,
                                       struct moert_error *err);

#endif
