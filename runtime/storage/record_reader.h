/* The reader of a bundle's expert records, chosen by the user's options: shared by the cache and by streaming
 * in order (runtime/experts/expert_cache.h, runtime/experts/expert_stream.h). */
#ifndef MOEC_RUNTIME_RECORD_READER_H
#define MOEC_RUNTIME_RECORD_READER_H

#include "formats/bundle/bundle.h"
#include "runtime/storage/reader.h"
#include "runtime/storage/reader_test_hook.h"

#define MOEC_RECORD_READER_DEPTH 32u

/* How records are read; zero-initialised = the defaults. */
struct moec_record_io {
    enum moec_io io;
    enum moec_io_engine engine;
    uint32_t depth;                  /* requests in flight; 0 = MOEC_RECORD_READER_DEPTH */
    struct moec_emulation emulation; /* bytes_per_second 0 = the device as it is; else both AUTOs mean
                                      * the page cache, as nothing under it may be slower */
    struct moec_reader_test_hook test_hook;
};

/* A reader of the records of one precision copy into `buffer`. Records that stand at multiples of less than
 * 4096 bytes are not mapped by MOEC_IO_AUTO_MAPPED. Errors: those of moec_reader_create; MOEC_ERR_UNSUPPORTED
 * for MOEC_IO_MAPPED with such records, MOEC_ERR_USAGE for MOEC_IO_MAPPED with an emulation. */
MOEC_WARN_UNUSED enum moec_status moec_record_reader_create(const struct moec_bundle *bundle, uint32_t copy,
                                                            const struct moec_record_io *io,
                                                            struct moec_read_buffer buffer,
                                                            struct moec_reader **out, struct moec_error *err);

/* The request that reads n_bytes at `offset` of the file, a record or a part of one: it begins at the bundle's
 * direct_unit before them, which may be larger than the alignment of records. */
struct moec_record_place {
    uint64_t offset;  /* in the file */
    uint64_t n_bytes; /* including those before what is wanted */
    uint32_t skip;    /* bytes of the request before what is wanted */
};
struct moec_record_place moec_record_place_of(const struct moec_bundle *bundle, uint64_t offset,
                                              uint64_t n_bytes);

/* What a record's request takes in a buffer that this reader fills, so that direct reads fit: padded to units
 * and as in the file. */
uint64_t moec_record_slot_bytes(const struct moec_bundle *bundle, uint32_t copy, uint32_t ordinal,
                                uint32_t expert);

/* Times that a record somebody needs is read before its failure is reported. */
#define MOEC_RECORD_TRIES 3

/* Words for a record that still failed at the last try: layer, expert, copy, place and why. `problem` is an
 * errno, or 0 for bytes that are not the record; then `words` are those of the check (NULL when they are not
 * known any more). Never MOEC_OK: later bytes that pass the check would be another read's. */
enum moec_status moec_record_failed(const struct moec_bundle *bundle, struct moec_record_id record,
                                    int problem, const struct moec_error *words, struct moec_error *err);

#endif
