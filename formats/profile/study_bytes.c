/* Decoding points into the bytes, and moec_studies_add checks and copies. Every part is a multiple of 8
 * bytes, so numbers stay aligned where the bytes are. */
#include "formats/profile/study_bytes.h"

#include "formats/base/bytes.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values of studies are written as they lie in memory, which must be little-endian"
#endif

#define HEAD_BYTES 464u
#define AXIS_BYTES 72u
#define HAS_VALUES 1u
#define HAS_LABELS 2u

static uint64_t axis_array_bytes(const struct moec_study_axis *axis)
{
    return (axis->values != NULL ? axis->n * sizeof(double) : 0) +
           (axis->labels != NULL ? axis->n * MOEC_STUDY_LABEL : 0);
}

uint64_t moec_study_bytes(const struct moec_study *study)
{
    uint64_t n = HEAD_BYTES + (uint64_t)study->n_axis * AXIS_BYTES;
    for (uint32_t i = 0; i < study->n_axis; i++)
        n += axis_array_bytes(&study->axes[i]);
    return n + moec_study_count(study) * sizeof(double);
}

static void put_text(uint8_t *to, const char *text, size_t room)
{
    memset(to, 0, room);
    memcpy(to, text, strnlen(text, room - 1));
}

static uint8_t *put_array(uint8_t *to, const void *from, uint64_t n_bytes)
{
    if (from != NULL)
        memcpy(to, from, n_bytes);
    return to + (from != NULL ? n_bytes : 0);
}

void moec_study_encode(const struct moec_study *study, uint8_t *to)
{
    put_text(to, study->name, sizeof study->name);
    put_text(to + 64, study->units, sizeof study->units);
    put_text(to + 88, study->description, sizeof study->description);
    put_text(to + 328, study->source, sizeof study->source);
    moec_put_u32(to + 456, study->n_axis);
    moec_put_u32(to + 460, 0);
    to += HEAD_BYTES;
    for (uint32_t i = 0; i < study->n_axis; i++, to += AXIS_BYTES) {
        const struct moec_study_axis *axis = &study->axes[i];
        put_text(to, axis->name, sizeof axis->name);
        put_text(to + 32, axis->units, sizeof axis->units);
        moec_put_u64(to + 56, axis->n);
        moec_put_u32(to + 64,
                     (axis->values != NULL ? HAS_VALUES : 0) | (axis->labels != NULL ? HAS_LABELS : 0));
        moec_put_u32(to + 68, 0);
    }
    for (uint32_t i = 0; i < study->n_axis; i++) {
        const struct moec_study_axis *axis = &study->axes[i];
        to = put_array(to, axis->values, axis->n * sizeof(double));
        to = put_array(to, axis->labels, axis->n * MOEC_STUDY_LABEL);
    }
    (void)put_array(to, study->values, moec_study_count(study) * sizeof(double));
}

struct reader {
    const uint8_t *at;
    uint64_t left;
};

static const uint8_t *take(struct reader *reader, uint64_t count, uint64_t item_bytes)
{
    uint64_t n = 0;
    if (__builtin_mul_overflow(count, item_bytes, &n) || n > reader->left)
        return NULL;
    const uint8_t *at = reader->at;
    reader->at += n;
    reader->left -= n;
    return at;
}

/* Points the arrays of an axis into the bytes; moec_studies_add copies them. */
static bool take_axis(struct reader *reader, uint32_t flags, struct moec_study_axis *axis)
{
    const uint8_t *values = NULL, *labels = NULL;
    if (flags & HAS_VALUES) {
        values = take(reader, axis->n, sizeof(double));
        if (values == NULL)
            return false;
    }
    if (flags & HAS_LABELS) {
        labels = take(reader, axis->n, MOEC_STUDY_LABEL);
        if (labels == NULL)
            return false;
    }
    axis->values = (double *)(uintptr_t)values;
    axis->labels = (char(*)[MOEC_STUDY_LABEL])(uintptr_t)labels;
    return true;
}

static bool take_study(struct reader *reader, struct moec_study *study)
{
    const uint8_t *head = take(reader, 1, HEAD_BYTES);
    if (head == NULL)
        return false;
    memcpy(study->name, head, sizeof study->name);
    memcpy(study->units, head + 64, sizeof study->units);
    memcpy(study->description, head + 88, sizeof study->description);
    memcpy(study->source, head + 328, sizeof study->source);
    study->n_axis = moec_get_u32(head + 456);
    const uint8_t *axes =
        study->n_axis <= MOEC_STUDY_MAX_AXES ? take(reader, study->n_axis, AXIS_BYTES) : NULL;
    if (axes == NULL)
        return false;
    uint64_t n = 1;
    for (uint32_t i = 0; i < study->n_axis; i++) {
        const uint8_t *from = axes + (size_t)i * AXIS_BYTES;
        struct moec_study_axis *axis = &study->axes[i];
        memcpy(axis->name, from, sizeof axis->name);
        memcpy(axis->units, from + 32, sizeof axis->units);
        axis->n = moec_get_u64(from + 56);
        if (!take_axis(reader, moec_get_u32(from + 64), axis) || __builtin_mul_overflow(n, axis->n, &n))
            return false;
    }
    study->values = (double *)(uintptr_t)take(reader, n, sizeof(double));
    return study->values != NULL;
}

enum moec_status moec_study_decode(const uint8_t *bytes, uint64_t n, struct moec_studies *studies,
                                   uint64_t *used, struct moec_error *err)
{
    struct reader reader = {bytes, n};
    struct moec_study study = {0};
    if (!take_study(&reader, &study))
        return moec_fail(err, MOEC_ERR_FORMAT, "the %llu bytes of a study are incomplete or damaged",
                         (unsigned long long)n);
    MOEC_TRY(moec_studies_add(studies, &study, NULL, err));
    *used = n - reader.left;
    return MOEC_OK;
}
