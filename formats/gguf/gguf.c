/* The length of a header is not stated. The first MiB is parsed, and four times as much whenever that was
 * too short. The cursor tells "too short" from "past the end of the file". Counts are compared with the
 * bytes that are left before memory is taken for them. Both tables are sorted by name; a name that stands
 * twice is refused. */
#include "formats/gguf/gguf.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/gguf/ggml_blocks.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_BYTES       ((uint64_t)1 << 20) /* of the header that are read at first */
#define DEFAULT_ALIGNMENT 32u
#define MAX_ALIGNMENT     (1u << 20)
#define MIN_VALUE_BYTES   13u /* an empty key, a type, a byte */
#define MIN_TENSOR_BYTES  24u /* an empty name, no extents, a type, an offset */

static const uint8_t item_bytes[MOEC_GGUF_TYPE_COUNT] = {
    [MOEC_GGUF_U8] = 1,  [MOEC_GGUF_I8] = 1,  [MOEC_GGUF_U16] = 2, [MOEC_GGUF_I16] = 2,
    [MOEC_GGUF_U32] = 4, [MOEC_GGUF_I32] = 4, [MOEC_GGUF_F32] = 4, [MOEC_GGUF_BOOL] = 1,
    [MOEC_GGUF_U64] = 8, [MOEC_GGUF_I64] = 8, [MOEC_GGUF_F64] = 8,
};

static const char *const type_names[MOEC_GGUF_TYPE_COUNT] = {
    [MOEC_GGUF_U8] = "u8",          [MOEC_GGUF_I8] = "i8",       [MOEC_GGUF_U16] = "u16",
    [MOEC_GGUF_I16] = "i16",        [MOEC_GGUF_U32] = "u32",     [MOEC_GGUF_I32] = "i32",
    [MOEC_GGUF_F32] = "f32",        [MOEC_GGUF_BOOL] = "a bool", [MOEC_GGUF_STRING] = "a string",
    [MOEC_GGUF_ARRAY] = "an array", [MOEC_GGUF_U64] = "u64",     [MOEC_GGUF_I64] = "i64",
    [MOEC_GGUF_F64] = "f64",
};

/* ---- reading ---- */

struct cursor {
    const uint8_t *bytes;
    uint64_t at, n;      /* read so far, and there to be read */
    uint64_t file_bytes; /* n <= file_bytes */
    const char *path;
    bool is_short;
    struct moec_error *err;
};

/* Takes n bytes. */
static enum moec_status take(struct cursor *c, uint64_t n, const uint8_t **bytes)
{
    if (n > c->n - c->at) {
        c->is_short = n <= c->file_bytes - c->at;
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "the header of the GGUF file '%s' needs %" PRIu64 " more bytes at offset %" PRIu64
                         ", but the file ends at %" PRIu64 ": the file is truncated or its header is "
                         "damaged",
                         c->path, n, c->at, c->n);
    }
    *bytes = c->bytes + c->at;
    c->at += n;
    return MOEC_OK;
}

static enum moec_status take_u32(struct cursor *c, uint32_t *value)
{
    const uint8_t *bytes = NULL;
    MOEC_TRY(take(c, 4, &bytes));
    *value = moec_get_u32(bytes);
    return MOEC_OK;
}

static enum moec_status take_u64(struct cursor *c, uint64_t *value)
{
    const uint8_t *bytes = NULL;
    MOEC_TRY(take(c, 8, &bytes));
    *value = moec_get_u64(bytes);
    return MOEC_OK;
}

/* A key or a name: printable ASCII, which messages can quote as it is. */
static enum moec_status take_name(struct cursor *c, const char *what, char name[static MOEC_GGUF_NAME_BYTES])
{
    const uint64_t begin = c->at;
    const uint8_t *bytes = NULL;
    uint64_t n = 0;
    MOEC_TRY(take_u64(c, &n));
    if (n == 0 || n >= MOEC_GGUF_NAME_BYTES)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "%s in the GGUF file '%s' at offset %" PRIu64 " has a name of %" PRIu64
                         " bytes, expected 1..%d",
                         what, c->path, begin, n, MOEC_GGUF_NAME_BYTES - 1);
    MOEC_TRY(take(c, n, &bytes));
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] < ' ' || bytes[i] > '~')
            return moec_fail(c->err, MOEC_ERR_FORMAT,
                             "%s in the GGUF file '%s' at offset %" PRIu64 " has a name with byte 0x%02x, "
                             "expected printable ASCII",
                             what, c->path, begin, bytes[i]);
    memcpy(name, bytes, n);
    name[n] = '\0';
    return MOEC_OK;
}

/* ---- values ---- */

static enum moec_status take_items(struct cursor *c, struct moec_gguf_value *value)
{
    const uint64_t begin = c->at;
    const uint8_t *bytes = NULL;
    value->bytes = c->bytes + begin;
    if (value->item_type != MOEC_GGUF_STRING) {
        uint64_t n_bytes = 0;
        if (__builtin_mul_overflow(value->n_items, (uint64_t)item_bytes[value->item_type], &n_bytes))
            n_bytes = UINT64_MAX;
        MOEC_TRY(take(c, n_bytes, &bytes));
    } else {
        for (uint64_t i = 0; i < value->n_items; i++) {
            uint64_t n = 0;
            MOEC_TRY(take_u64(c, &n));
            MOEC_TRY(take(c, n, &bytes));
        }
    }
    value->n_bytes = c->at - begin;
    return MOEC_OK;
}

static enum moec_status take_value(struct cursor *c, struct moec_gguf_value *value)
{
    MOEC_TRY(take_name(c, "a value", value->key));
    const uint64_t begin = c->at;
    MOEC_TRY(take_u32(c, &value->type));
    value->item_type = value->type;
    value->n_items = 1;
    if (value->type == MOEC_GGUF_ARRAY) {
        MOEC_TRY(take_u32(c, &value->item_type));
        MOEC_TRY(take_u64(c, &value->n_items));
    }
    if (value->item_type >= MOEC_GGUF_TYPE_COUNT || value->item_type == MOEC_GGUF_ARRAY)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "the value '%s' in the GGUF file '%s' has type %" PRIu32 " at offset %" PRIu64
                         ", expected %d..%d (an array cannot have arrays as items)",
                         value->key, c->path, value->item_type, begin, MOEC_GGUF_U8, MOEC_GGUF_F64);
    return take_items(c, value);
}

static int compare_values(const void *a, const void *b)
{
    return strcmp(((const struct moec_gguf_value *)a)->key, ((const struct moec_gguf_value *)b)->key);
}

static enum moec_status take_values(struct cursor *c, uint64_t n, struct moec_gguf *gguf)
{
    if (n > MOEC_GGUF_MAX_VALUES || n > (c->file_bytes - c->at) / MIN_VALUE_BYTES)
        return moec_fail(c->err, MOEC_ERR_LIMIT,
                         "the GGUF file '%s' announces %" PRIu64 " metadata values: this is more than the "
                         "limit of %u, or the file is too short for them",
                         c->path, n, MOEC_GGUF_MAX_VALUES);
    MOEC_TRY(moec_alloc((void **)&gguf->values, n, sizeof *gguf->values, "values of a GGUF file", c->err));
    for (; gguf->n_values < n; gguf->n_values++)
        MOEC_TRY(take_value(c, &gguf->values[gguf->n_values]));
    qsort(gguf->values, gguf->n_values, sizeof *gguf->values, compare_values);
    for (size_t i = 1; i < gguf->n_values; i++)
        if (compare_values(&gguf->values[i - 1], &gguf->values[i]) == 0)
            return moec_fail(c->err, MOEC_ERR_FORMAT, "the GGUF file '%s' has the metadata key '%s' twice",
                             c->path, gguf->values[i].key);
    return MOEC_OK;
}

/* ---- tensors ---- */

static enum moec_status take_tensor(struct cursor *c, struct moec_gguf_tensor *tensor)
{
    MOEC_TRY(take_name(c, "a tensor", tensor->name));
    MOEC_TRY(take_u32(c, &tensor->n_dims));
    if (tensor->n_dims > MOEC_GGUF_MAX_DIMS)
        return moec_fail(c->err, MOEC_ERR_LIMIT,
                         "tensor '%s' in the GGUF file '%s' has %" PRIu32 " dimensions, more than the "
                         "limit of %d",
                         tensor->name, c->path, tensor->n_dims, MOEC_GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        MOEC_TRY(take_u64(c, &tensor->dims[i]));
    MOEC_TRY(take_u32(c, &tensor->type));
    return take_u64(c, &tensor->offset);
}

/* Makes the offset one of the file, and checks the range. */
static enum moec_status place_tensor(const struct cursor *c, uint64_t data, uint64_t alignment,
                                     struct moec_gguf_tensor *tensor)
{
    const struct moec_ggml_type *type = moec_ggml_type_find(tensor->type);
    uint64_t n = 1, n_bytes = 0;
    bool overflow = false;
    const uint64_t line = tensor->n_dims > 0 ? tensor->dims[0] : 1;
    if (data > c->file_bytes)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' ends at offset %" PRIu64 ", but its data begin at %" PRIu64
                         ": the file is truncated",
                         c->path, c->file_bytes, data);
    if (tensor->offset % alignment != 0 || tensor->offset > c->file_bytes - data)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "tensor '%s' in the GGUF file '%s' is at offset %" PRIu64 " of the data, "
                         "expected a multiple of %" PRIu64 " inside the file, which has %" PRIu64
                         " bytes and begins its data at byte %" PRIu64,
                         tensor->name, c->path, tensor->offset, alignment, c->file_bytes, data);
    tensor->offset += data;
    if (type == NULL)
        return MOEC_OK;
    if (line % type->block_weights != 0)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "tensor '%s' in the GGUF file '%s' has rows of %" PRIu64 " weights, expected a "
                         "multiple of %" PRIu32 ", the block size of %s",
                         tensor->name, c->path, line, type->block_weights, type->name);
    for (uint32_t i = 0; i < tensor->n_dims; i++)
        overflow |= __builtin_mul_overflow(n, tensor->dims[i], &n);
    overflow |= __builtin_mul_overflow(n / type->block_weights, (uint64_t)type->block_bytes, &n_bytes);
    if (overflow || n_bytes > c->file_bytes - tensor->offset)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "tensor '%s' in the GGUF file '%s' has %s%" PRIu64 " bytes at offset %" PRIu64
                         ", but the file ends at %" PRIu64 ": the file is truncated or its header is "
                         "damaged",
                         tensor->name, c->path, overflow ? "more than " : "", overflow ? UINT64_MAX : n_bytes,
                         tensor->offset, c->file_bytes);
    tensor->n_bytes = n_bytes;
    return MOEC_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct moec_gguf_tensor *)a)->name, ((const struct moec_gguf_tensor *)b)->name);
}

static enum moec_status take_tensors(struct cursor *c, uint64_t n, struct moec_gguf *gguf)
{
    const struct moec_gguf_value *value = moec_gguf_find(gguf, "general.alignment");
    uint64_t alignment = DEFAULT_ALIGNMENT;
    if (value != NULL)
        MOEC_TRY(moec_gguf_as_u64(gguf, value, &alignment, c->err));
    if (alignment == 0 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)) != 0)
        return moec_fail(c->err, MOEC_ERR_FORMAT,
                         "'general.alignment' in the GGUF file '%s' is %" PRIu64 ", expected a power of "
                         "two up to %u",
                         c->path, alignment, MAX_ALIGNMENT);
    if (n > MOEC_GGUF_MAX_TENSORS || n > (c->file_bytes - c->at) / MIN_TENSOR_BYTES)
        return moec_fail(c->err, MOEC_ERR_LIMIT,
                         "the GGUF file '%s' announces %" PRIu64 " tensors: this is more than the limit "
                         "of %u, or the file is too short for them",
                         c->path, n, MOEC_GGUF_MAX_TENSORS);
    MOEC_TRY(moec_alloc((void **)&gguf->tensors, n, sizeof *gguf->tensors, "tensors of a GGUF file", c->err));
    for (; gguf->n_tensors < n; gguf->n_tensors++)
        MOEC_TRY(take_tensor(c, &gguf->tensors[gguf->n_tensors]));
    const uint64_t data = (c->at + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < n; i++)
        MOEC_TRY(place_tensor(c, data, alignment, &gguf->tensors[i]));
    qsort(gguf->tensors, gguf->n_tensors, sizeof *gguf->tensors, compare_tensors);
    for (size_t i = 1; i < n; i++)
        if (compare_tensors(&gguf->tensors[i - 1], &gguf->tensors[i]) == 0)
            return moec_fail(c->err, MOEC_ERR_FORMAT, "'%s' has tensor '%s' twice", c->path,
                             gguf->tensors[i].name);
    return MOEC_OK;
}

/* ---- the header ---- */

static enum moec_status take_header(struct cursor *c, struct moec_gguf *gguf)
{
    const uint8_t *magic = NULL;
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_values = 0;
    MOEC_TRY(take(c, 4, &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return moec_fail(c->err, MOEC_ERR_FORMAT, "'%s' is not a GGUF file: it does not begin with 'GGUF'",
                         c->path);
    MOEC_TRY(take_u32(c, &version));
    if (version != 2 && version != 3)
        return moec_fail(c->err, MOEC_ERR_UNSUPPORTED,
                         "'%s' is %sGGUF of version %" PRIu32
                         ", expected little-endian GGUF of version 2 or 3",
                         c->path, (version & 0xffffu) == 0 ? "big-endian " : "",
                         (version & 0xffffu) == 0 ? version >> 24 : version);
    MOEC_TRY(take_u64(c, &n_tensors));
    MOEC_TRY(take_u64(c, &n_values));
    MOEC_TRY(take_values(c, n_values, gguf));
    return take_tensors(c, n_tensors, gguf);
}

enum moec_status moec_gguf_parse(struct moec_gguf *gguf, const uint8_t *bytes, size_t n, uint64_t file_bytes,
                                 const char *path, bool *is_short, struct moec_error *err)
{
    struct moec_file file = gguf->file;
    struct moec_error why = {0};
    struct cursor c = {.bytes = bytes, .n = n, .file_bytes = file_bytes, .path = path, .err = &why};
    *gguf = (struct moec_gguf){.file = file};
    gguf->file.path = (char *)(uintptr_t)path; /* of messages while there is no file */
    const enum moec_status status = take_header(&c, gguf);
    gguf->file.path = file.path;
    *is_short = c.is_short;
    if (status != MOEC_OK) {
        moec_gguf_forget(gguf);
        return moec_fail(err, status, "%s", why.message);
    }
    return MOEC_OK;
}

bool moec_gguf_is(const char *path)
{
    char magic[4] = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const bool is_gguf =
        read(fd, magic, sizeof magic) == (ssize_t)sizeof magic && memcmp(magic, "GGUF", 4) == 0;
    (void)close(fd);
    return is_gguf;
}

enum moec_status moec_gguf_open(struct moec_gguf *gguf, const char *path, struct moec_error *err)
{
    *gguf = (struct moec_gguf){.file = {.fd = -1}};
    enum moec_status status = moec_file_open(&gguf->file, path, err);
    uint8_t *header = NULL;
    bool is_short = true;
    MOEC_TRY(status);
    for (uint64_t wanted = FIRST_BYTES; is_short; wanted *= 4) {
        struct moec_error why = {0};
        const uint64_t left = gguf->file.n_bytes;
        const size_t n = (size_t)(wanted < left ? wanted : left);
        free(header);
        header = NULL;
        MOEC_TRY_OUT(moec_alloc((void **)&header, n, 1, "the header of a GGUF file", err));
        MOEC_TRY_OUT(moec_file_read(&gguf->file, 0, header, n, err));
        status = moec_gguf_parse(gguf, header, n, left, gguf->file.path, &is_short, &why);
        if (status != MOEC_OK && (!is_short || n == left || wanted >= MOEC_GGUF_MAX_HEADER_BYTES)) {
            (void)moec_fail(err, status, "%s", why.message);
            goto out;
        }
    }
    gguf->header = header;
    header = NULL;
out:
    free(header);
    if (status != MOEC_OK)
        moec_gguf_close(gguf);
    return status;
}

void moec_gguf_forget(struct moec_gguf *gguf)
{
    free(gguf->header);
    free(gguf->values);
    free(gguf->tensors);
    gguf->header = NULL;
    gguf->values = NULL;
    gguf->tensors = NULL;
    gguf->n_values = gguf->n_tensors = 0;
}

void moec_gguf_close(struct moec_gguf *gguf)
{
    moec_gguf_forget(gguf);
    moec_file_close(&gguf->file);
}

/* ---- looking up ---- */

static int find_value(const void *key, const void *value)
{
    return strcmp(key, ((const struct moec_gguf_value *)value)->key);
}

static int find_tensor(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct moec_gguf_tensor *)tensor)->name);
}

const struct moec_gguf_value *moec_gguf_find(const struct moec_gguf *gguf, const char *key)
{
    return gguf->n_values == 0 ? NULL
                               : bsearch(key, gguf->values, gguf->n_values, sizeof *gguf->values, find_value);
}

const struct moec_gguf_tensor *moec_gguf_find_tensor(const struct moec_gguf *gguf, const char *name)
{
    return gguf->n_tensors == 0
               ? NULL
               : bsearch(name, gguf->tensors, gguf->n_tensors, sizeof *gguf->tensors, find_tensor);
}

static enum moec_status fail_type(const struct moec_gguf *gguf, const struct moec_gguf_value *value,
                                  const char *expected, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_FORMAT, "the value '%s' in the GGUF file '%s' is %s, expected %s",
                     value->key, gguf->file.path, type_names[value->type], expected);
}

/* A number of any type but string and array. */
static double number_at(uint32_t type, const uint8_t *at)
{
    const uint32_t low = item_bytes[type] >= 4 ? moec_get_u32(at) : 0;
    float single;
    switch (type) {
    case MOEC_GGUF_I8:
        return (int8_t)at[0];
    case MOEC_GGUF_U16:
        return moec_get_u16(at);
    case MOEC_GGUF_I16:
        return (int16_t)moec_get_u16(at);
    case MOEC_GGUF_U32:
        return low;
    case MOEC_GGUF_I32:
        return (int32_t)low;
    case MOEC_GGUF_F32:
        memcpy(&single, &low, sizeof single);
        return (double)single;
    case MOEC_GGUF_U64:
        return (double)moec_get_u64(at);
    case MOEC_GGUF_I64:
        return (double)(int64_t)moec_get_u64(at);
    case MOEC_GGUF_F64:
        return moec_get_f64(at);
    default:
        return at[0];
    }
}

double moec_gguf_number(const struct moec_gguf_value *value, uint64_t i)
{
    return number_at(value->item_type, value->bytes + i * item_bytes[value->item_type]);
}

enum moec_status moec_gguf_as_double(const struct moec_gguf *gguf, const struct moec_gguf_value *value,
                                     double *out, struct moec_error *err)
{
    if (value->type == MOEC_GGUF_ARRAY || value->type == MOEC_GGUF_STRING || value->type == MOEC_GGUF_BOOL)
        return fail_type(gguf, value, "a number", err);
    *out = moec_gguf_number(value, 0);
    return MOEC_OK;
}

enum moec_status moec_gguf_as_u64(const struct moec_gguf *gguf, const struct moec_gguf_value *value,
                                  uint64_t *out, struct moec_error *err)
{
    double number = 0;
    MOEC_TRY(moec_gguf_as_double(gguf, value, &number, err));
    if (value->type == MOEC_GGUF_F32 || value->type == MOEC_GGUF_F64)
        return fail_type(gguf, value, "an integer", err);
    if (number < 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the value '%s' in the GGUF file '%s' is %.0f, expected 0 or more", value->key,
                         gguf->file.path, number);
    const bool is_wide = value->type == MOEC_GGUF_U64 || value->type == MOEC_GGUF_I64;
    *out = is_wide ? moec_get_u64(value->bytes) : (uint64_t)number; /* a double is exact up to 2^53 alone */
    return MOEC_OK;
}

enum moec_status moec_gguf_as_bool(const struct moec_gguf *gguf, const struct moec_gguf_value *value,
                                   bool *out, struct moec_error *err)
{
    if (value->type != MOEC_GGUF_BOOL)
        return fail_type(gguf, value, "a bool", err);
    *out = value->bytes[0] != 0;
    return MOEC_OK;
}

enum moec_status moec_gguf_as_text(const struct moec_gguf *gguf, const struct moec_gguf_value *value,
                                   struct moec_gguf_text *out, struct moec_error *err)
{
    uint64_t offset = 0;
    if (value->type != MOEC_GGUF_STRING)
        return fail_type(gguf, value, "a string", err);
    *out = moec_gguf_next_text(value, &offset);
    return MOEC_OK;
}

struct moec_gguf_text moec_gguf_next_text(const struct moec_gguf_value *value, uint64_t *offset)
{
    const uint64_t n = moec_get_u64(value->bytes + *offset);
    const struct moec_gguf_text text = {(const char *)value->bytes + *offset + 8, n};
    *offset += 8 + n;
    return text;
}

enum moec_status moec_gguf_expect_array(const struct moec_gguf *gguf, const struct moec_gguf_value *value,
                                        enum moec_gguf_type item_type, uint64_t n_items,
                                        struct moec_error *err)
{
    if (value->type != MOEC_GGUF_ARRAY || value->item_type != item_type)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the value '%s' in the GGUF file '%s' is %s (item type: %s), expected an array "
                         "(item type: %s)",
                         value->key, gguf->file.path, type_names[value->type], type_names[value->item_type],
                         type_names[item_type]);
    if (value->n_items != n_items)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the value '%s' in the GGUF file '%s' has %" PRIu64 " items, expected %" PRIu64,
                         value->key, gguf->file.path, value->n_items, n_items);
    return MOEC_OK;
}
