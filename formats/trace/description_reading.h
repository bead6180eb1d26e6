/* How the sections of a device file are read, each from the JSON object that it stands in (internal to
 * formats/trace). Thread rule: as moec_json's. */
#ifndef MOEC_FORMATS_DESCRIPTION_READING_H
#define MOEC_FORMATS_DESCRIPTION_READING_H

#include "formats/json/json.h"

#include <string.h>

/* The object that is being read, and its name in messages. */
struct reading {
    const struct moec_json *node;
    char where[192];
    struct moec_error *err;
};

static inline enum moec_status read_u64(const struct reading *r, const char *key, uint64_t min, uint64_t max,
                                        uint64_t *out)
{
    return moec_json_get_u64(r->node, r->where, key, min, max, out, r->err);
}

static inline enum moec_status read_u32(const struct reading *r, const char *key, uint32_t min, uint32_t max,
                                        uint32_t *out)
{
    uint64_t value = 0;
    MOEC_TRY(read_u64(r, key, min, max, &value));
    *out = (uint32_t)value;
    return MOEC_OK;
}

static inline enum moec_status read_text(const struct reading *r, const char *key, char *out, size_t capacity)
{
    const char *text = NULL;
    MOEC_TRY(moec_json_get_string(r->node, r->where, key, &text, NULL, r->err));
    if (strlen(text) >= capacity)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "'%s' in %s has %zu bytes, expected at most %zu", key,
                         r->where, strlen(text), capacity - 1);
    memcpy(out, text, strlen(text) + 1);
    return MOEC_OK;
}

#endif
