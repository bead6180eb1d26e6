/* How fast a reader brings random ranges of a file: what `moec device` says of storage.
 *
 * As many requests as the depth are kept in flight; each range comes once before any comes again. Through the
 * page cache a range is only storage while it is not cached: then the ranges' pages are dropped before each
 * round over them, outside the time that counts. Thread rule: the reader's thread. */
#ifndef MOEC_PROFILER_READ_SPEED_H
#define MOEC_PROFILER_READ_SPEED_H

#include "runtime/storage/reader.h"

struct moec_read_range {
    uint64_t offset; /* multiple of the reader's alignment */
    uint64_t n_bytes;
};

struct moec_read_speed_request {
    struct moec_reader *reader;     /* nothing in flight */
    const struct moec_file *cached; /* the file, when the reader goes through the page cache, else NULL */
    struct moec_read_range *ranges; /* (n_ranges), 1 or more; their order changes */
    uint32_t n_ranges;
    struct {
        uint32_t depth;
        uint8_t *buffer;     /* depth slots, at a multiple of 4096 */
        uint64_t slot_bytes; /* the largest range, rounded up to 4096 */
    } room;
    struct {
        uint64_t ns; /* of reading, once min_reads requests were made */
        uint32_t min_reads;
        uint32_t max_reads; /* 1 or more */
    } limits;
    uint64_t seed; /* of the order */
};

struct moec_read_speed {
    uint32_t n_reads;
    uint64_t n_bytes; /* of ranges, without padding */
    uint64_t spent_ns;
    uint64_t latency_ns_median;
    uint64_t latency_ns_p95;
    uint64_t bytes_per_second;
};

/* Errors: MOEC_ERR_IO naming offset and reason; MOEC_ERR_MEMORY. Nothing is in flight afterwards. */
MOEC_WARN_UNUSED enum moec_status moec_read_speed_measure(const struct moec_read_speed_request *request,
                                                          struct moec_read_speed *speed,
                                                          struct moec_error *err);

#endif
