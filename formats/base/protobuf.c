/* The wire format of protocol buffers: a key is a varint of field number x 8 + wire type. Each length is
 * compared with the bytes that are left before the cursor moves, so the cursor never passes the end. */
#include "formats/base/protobuf.h"

#include "formats/base/bytes.h"

#include <inttypes.h>

static enum moec_status fail(const struct moec_protobuf *m, const char *what, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT, "'%s' is damaged: %s at byte %" PRIu64, m->subject, what,
                     m->offset + m->at);
}

static enum moec_status read_varint(struct moec_protobuf *m, uint64_t *value, struct moec_error *err)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (m->at == m->n_bytes)
            return fail(m, "a number is cut short", err);
        const uint8_t byte = m->bytes[m->at++];
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return MOEC_OK;
    }
    return fail(m, "a number has more than 10 bytes", err);
}

enum moec_status moec_protobuf_next(struct moec_protobuf *m, struct moec_protobuf_field *field, bool *more,
                                    struct moec_error *err)
{
    uint64_t key = 0;
    *field = (struct moec_protobuf_field){0};
    *more = m->at < m->n_bytes;
    if (!*more)
        return MOEC_OK;
    MOEC_TRY(read_varint(m, &key, err));
    if (key >> 3 == 0 || key >> 3 > (1u << 29) - 1)
        return fail(m, "a field has an invalid number", err);
    field->number = (uint32_t)(key >> 3);
    uint64_t n = 0;
    switch (key & 7) {
    case 0:
        field->offset = m->offset + m->at;
        return read_varint(m, &field->value, err);
    case 1:
        n = 8;
        break;
    case 2:
        field->is_bytes = true;
        MOEC_TRY(read_varint(m, &n, err));
        break;
    case 5:
        n = 4;
        break;
    default:
        return fail(m, "a field has an unknown wire type", err);
    }
    if (n > m->n_bytes - m->at)
        return fail(m, "a field is cut short", err);
    field->bytes = m->bytes + m->at;
    field->n_bytes = (size_t)n;
    field->offset = m->offset + m->at;
    m->at += (size_t)n;
    if (!field->is_bytes)
        field->value = n == 8 ? moec_get_u64(field->bytes) : moec_get_u32(field->bytes);
    return MOEC_OK;
}
