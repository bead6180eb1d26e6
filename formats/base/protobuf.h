/* The wire format of protocol buffers, one field after another, within bounds.
 *
 * A message is fields of a number and a value: an integer (varint, or 4 or 8 bytes little-endian) or bytes
 * (text, another message). Groups are refused. Thread rule: a cursor belongs to one thread. */
#ifndef MOEC_FORMATS_PROTOBUF_H
#define MOEC_FORMATS_PROTOBUF_H

#include "formats/base/error.h"

#include <stddef.h>

struct moec_protobuf {
    const uint8_t *bytes; /* borrowed: the message */
    size_t n_bytes, at;
    uint64_t offset;     /* of `bytes` in the file, for messages */
    const char *subject; /* borrowed: the file's name */
};

struct moec_protobuf_field {
    uint32_t number;
    bool is_bytes;
    uint64_t value;       /* of an integer; 4-byte values are not sign-extended */
    const uint8_t *bytes; /* borrowed from the message */
    size_t n_bytes;
    uint64_t offset; /* of the value in the file */
};

/* Reads the next field; `*more` is false at the end. Errors: MOEC_ERR_FORMAT with the offset. */
MOEC_WARN_UNUSED enum moec_status moec_protobuf_next(struct moec_protobuf *message,
                                                     struct moec_protobuf_field *field, bool *more,
                                                     struct moec_error *err);

#endif
