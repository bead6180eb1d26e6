/* How many bytes of expert records a second come from the device through the runtime's own reader, many
 * requests at once: what a floor of streaming is computed with. Thread rule: one thread. */
#ifndef MOEC_PROFILER_BANDWIDTH_H
#define MOEC_PROFILER_BANDWIDTH_H

#include "runtime/storage/record_reader.h"

/* Reads records of the precision copy in pseudo-random order, as many at once as the reader takes, for about
 * `limit_ns`. Where the reader goes through the page cache this is the speed of what is cached, as decoding
 * finds it after a while. Errors: those of the reader and of moec_read_speed_measure. */
MOEC_WARN_UNUSED enum moec_status moec_bandwidth_measure(const struct moec_bundle *bundle, uint32_t copy,
                                                         const struct moec_record_io *io, uint64_t limit_ns,
                                                         double *bytes_per_second, struct moec_error *err);

#endif
