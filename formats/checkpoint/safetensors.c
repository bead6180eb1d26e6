/* The table is sorted twice: by offset, to check that ranges tile the data without gap or overlap, then by
 * name for binary search. Each range is compared with the file's end and with shape times item size, without
 * overflow. After that a reader may trust every entry. */
#include "formats/checkpoint/safetensors.h"

#include "formats/base/memory.h"
#include "formats/json/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PREFIX_BYTES 8 /* the header's length */

/* ---- dtypes ---- */

struct dtype_row {
    const char *name;
    uint32_t n_bytes;
    enum moec_dtype dtype;
};

/* Tensors of dtypes that the engine does not read may stand beside those that it does. */
static const struct dtype_row dtypes[] = {
    {"BF16", 2, MOEC_DTYPE_BF16},     {"F16", 2, MOEC_DTYPE_F16},       {"F32", 4, MOEC_DTYPE_F32},
    {"F64", 8, MOEC_DTYPE_COUNT},     {"BOOL", 1, MOEC_DTYPE_COUNT},    {"U8", 1, MOEC_DTYPE_COUNT},
    {"I8", 1, MOEC_DTYPE_COUNT},      {"F8_E5M2", 1, MOEC_DTYPE_COUNT}, {"F8_E4M3", 1, MOEC_DTYPE_COUNT},
    {"F8_E8M0", 1, MOEC_DTYPE_COUNT}, {"I16", 2, MOEC_DTYPE_COUNT},     {"U16", 2, MOEC_DTYPE_COUNT},
    {"I32", 4, MOEC_DTYPE_COUNT},     {"U32", 4, MOEC_DTYPE_COUNT},     {"I64", 8, MOEC_DTYPE_COUNT},
    {"U64", 8, MOEC_DTYPE_COUNT},     {"C64", 8, MOEC_DTYPE_COUNT},
};

static const struct dtype_row *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

/* ---- one tensor ---- */

/* What the entries of one file are checked against. */
struct context {
    const char *path;
    uint64_t data_start;
    uint64_t data_bytes;
};

#define WHERE_BYTES     400
#define DTYPE_MAX_BYTES 32 /* of a name that is unknown */

/* Names a tensor for a message; a longer name is cut. */
static const char *tensor_name(char text[static WHERE_BYTES], const char *name, const char *path)
{
    (void)snprintf(text, WHERE_BYTES, "tensor '%.160s' in '%.200s'", name, path);
    return text;
}

static enum moec_status read_shape(const struct moec_json *object, const char *where,
                                   struct moec_safetensors_entry *entry, struct moec_error *err)
{
    const struct moec_json *shape = NULL;
    MOEC_TRY(moec_json_get(object, where, "shape", MOEC_JSON_ARRAY, &shape, err));
    size_t n_dims = moec_json_length(shape);
    if (n_dims > MOEC_TENSOR_MAX_DIMS)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s has %zu dimensions, more than the limit of %d", where,
                         n_dims, MOEC_TENSOR_MAX_DIMS);
    entry->n_dims = (uint32_t)n_dims;
    for (size_t i = 0; i < n_dims; i++) {
        char what[WHERE_BYTES + 32];
        (void)snprintf(what, sizeof what, "shape[%zu] of %s", i, where);
        MOEC_TRY(moec_json_as_u64(moec_json_at(shape, i), what, 0, (uint64_t)1 << 48, &entry->shape[i], err));
    }
    return MOEC_OK;
}

static enum moec_status read_range(const struct moec_json *object, const char *where,
                                   const struct context *context, struct moec_safetensors_entry *entry,
                                   struct moec_error *err)
{
    const struct moec_json *offsets = NULL;
    uint64_t range[2] = {0, 0};
    MOEC_TRY(moec_json_get(object, where, "data_offsets", MOEC_JSON_ARRAY, &offsets, err));
    if (moec_json_length(offsets) != 2)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %zu data_offsets, expected 2", where,
                         moec_json_length(offsets));
    for (size_t i = 0; i < 2; i++) {
        char what[WHERE_BYTES + 32];
        (void)snprintf(what, sizeof what, "data_offsets[%zu] of %s", i, where);
        MOEC_TRY(moec_json_as_u64(moec_json_at(offsets, i), what, 0, INT64_MAX, &range[i], err));
    }
    if (range[0] > range[1])
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has data_offsets [%" PRIu64 ", %" PRIu64
                         "], expected the first to be at most the second",
                         where, range[0], range[1]);
    if (range[1] > context->data_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s ends at offset %" PRIu64 ", but the file ends at %" PRIu64
                         ": the file is truncated or its header is damaged",
                         where, context->data_start + range[1], context->data_start + context->data_bytes);
    entry->offset = context->data_start + range[0];
    entry->n_bytes = range[1] - range[0];
    return MOEC_OK;
}

/* A dtype of tomorrow: its name stands after the tensor's. */
static enum moec_status store_names(const char *name, const char *dtype_name,
                                    struct moec_safetensors_entry *entry, struct moec_error *err)
{
    const size_t n_name = strlen(name) + 1, n_dtype = strnlen(dtype_name, DTYPE_MAX_BYTES);
    MOEC_TRY(moec_alloc((void **)&entry->name, n_name + n_dtype + 1, 1, "name of a tensor", err));
    memcpy(entry->name, name, n_name);
    memcpy(entry->name + n_name, dtype_name, n_dtype);
    entry->name[n_name + n_dtype] = '\0';
    entry->dtype_name = entry->name + n_name;
    return MOEC_OK;
}

static enum moec_status read_entry(const char *name, const struct moec_json *object,
                                   const struct context *context, struct moec_safetensors_entry *entry,
                                   struct moec_error *err)
{
    char where[WHERE_BYTES], text[MOEC_TENSOR_SHAPE_BYTES];
    const char *dtype_name = NULL;
    (void)tensor_name(where, name, context->path);
    MOEC_TRY(moec_json_get_string(object, where, "dtype", &dtype_name, NULL, err));
    const struct dtype_row *dtype = find_dtype(dtype_name);
    MOEC_TRY(read_shape(object, where, entry, err));
    MOEC_TRY(read_range(object, where, context, entry, err));
    if (dtype == NULL) {
        entry->dtype = MOEC_DTYPE_COUNT;
        return store_names(name, dtype_name, entry, err);
    }
    entry->dtype_name = dtype->name;
    entry->dtype = dtype->dtype;
    uint64_t expected = dtype->n_bytes;
    bool overflow = false;
    for (uint32_t i = 0; i < entry->n_dims; i++)
        overflow |= __builtin_mul_overflow(expected, entry->shape[i], &expected);
    if (overflow || expected != entry->n_bytes)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has %" PRIu64 " bytes at offset %" PRIu64 ", but shape %s with dtype %s needs %s%" PRIu64,
            where, entry->n_bytes, entry->offset, moec_tensor_shape_text(entry->shape, entry->n_dims, text),
            dtype->name, overflow ? "more than " : "", overflow ? UINT64_MAX : expected);
    return moec_strndup(&entry->name, name, strlen(name), err);
}

/* ---- the table ---- */

static int by_offset(const void *a, const void *b)
{
    const struct moec_safetensors_entry *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->n_bytes != y->n_bytes) /* an empty tensor stands before the one that begins where it does */
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    const struct moec_safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static enum moec_status check_tiling(const struct moec_safetensors *safetensors,
                                     const struct context *context, struct moec_error *err)
{
    char where[WHERE_BYTES];
    uint64_t end = context->data_start;
    const char *previous = NULL;
    for (size_t i = 0; i < safetensors->n_entries; i++) {
        const struct moec_safetensors_entry *entry = &safetensors->entries[i];
        (void)tensor_name(where, entry->name, context->path);
        if (entry->offset < end)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s begins at offset %" PRIu64 ", inside tensor '%.160s' that ends at %" PRIu64,
                             where, entry->offset, previous, end);
        if (entry->offset > end)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s begins at offset %" PRIu64 ", expected %" PRIu64
                             ": the bytes between belong to no tensor",
                             where, entry->offset, end);
        end += entry->n_bytes;
        previous = entry->name;
    }
    uint64_t data_end = context->data_start + context->data_bytes;
    if (end != data_end)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the safetensors file '%s' has %" PRIu64 " bytes after its last tensor, which "
                         "ends at offset %" PRIu64 ", expected none",
                         context->path, data_end - end, end);
    return MOEC_OK;
}

void moec_safetensors_forget(struct moec_safetensors *safetensors)
{
    for (size_t i = 0; i < safetensors->n_entries; i++)
        free(safetensors->entries[i].name);
    free(safetensors->entries);
    safetensors->entries = NULL;
    safetensors->n_entries = 0;
}

enum moec_status moec_safetensors_parse(struct moec_safetensors *safetensors, const char *header,
                                        size_t n_header, uint64_t file_bytes, const char *path,
                                        struct moec_error *err)
{
    struct context context = {.path = path, .data_start = PREFIX_BYTES + (uint64_t)n_header};
    struct moec_json *root = NULL;
    void *entries = NULL;
    safetensors->entries = NULL;
    safetensors->n_entries = 0;
    enum moec_status status = MOEC_OK;
    if (file_bytes < context.data_start) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "the safetensors file '%s' ends at offset %" PRIu64 ", inside its header of %zu "
                           "bytes",
                           path, file_bytes, n_header);
        goto out;
    }
    context.data_bytes = file_bytes - context.data_start;
    status = moec_json_parse(header, n_header, MOEC_SAFETENSORS_MAX_HEADER_BYTES, path, &root, err);
    if (status != MOEC_OK) {
        (void)moec_error_prefix(err, "header at offset %d", PREFIX_BYTES);
        goto out;
    }
    if (moec_json_type(root) != MOEC_JSON_OBJECT) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "the header of the safetensors file '%s' at offset %d is %s, expected an object",
                           path, PREFIX_BYTES, moec_json_type_name(root));
        goto out;
    }
    MOEC_TRY_OUT(
        moec_alloc(&entries, moec_json_length(root), sizeof *safetensors->entries, "table of tensors", err));
    safetensors->entries = entries;
    for (struct moec_json_member m = moec_json_first(root); m.key != NULL; m = moec_json_next(root, m)) {
        if (strcmp(m.key, "__metadata__") == 0)
            continue;
        struct moec_safetensors_entry *entry = &safetensors->entries[safetensors->n_entries++];
        MOEC_TRY_OUT(read_entry(m.key, m.value, &context, entry, err));
    }
    qsort(safetensors->entries, safetensors->n_entries, sizeof *safetensors->entries, by_offset);
    MOEC_TRY_OUT(check_tiling(safetensors, &context, err));
    qsort(safetensors->entries, safetensors->n_entries, sizeof *safetensors->entries, by_name);
out:
    moec_json_free(root);
    if (status != MOEC_OK)
        moec_safetensors_forget(safetensors);
    return status;
}

enum moec_status moec_safetensors_open(struct moec_safetensors *safetensors, const char *path,
                                       struct moec_error *err)
{
    *safetensors = (struct moec_safetensors){.file = {.fd = -1}};
    void *header = NULL;
    uint8_t prefix[PREFIX_BYTES];
    MOEC_TRY(moec_file_open(&safetensors->file, path, err));
    enum moec_status status = MOEC_OK;
    uint64_t file_bytes = safetensors->file.n_bytes;
    if (file_bytes < PREFIX_BYTES) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "'%s' has only %" PRIu64 " bytes, too few for a safetensors file: download the "
                           "file again",
                           path, file_bytes);
        goto out;
    }
    MOEC_TRY_OUT(moec_file_read(&safetensors->file, 0, prefix, sizeof prefix, err));
    uint64_t n_header = 0;
    for (int i = 0; i < PREFIX_BYTES; i++)
        n_header |= (uint64_t)prefix[i] << (8 * i);
    if (n_header > MOEC_SAFETENSORS_MAX_HEADER_BYTES) {
        status = moec_fail(err, MOEC_ERR_LIMIT,
                           "'%s' says at offset 0 that its header has %" PRIu64
                           " bytes, more than the limit of %" PRIu64
                           ": the file is damaged or is not a safetensors file",
                           path, n_header, MOEC_SAFETENSORS_MAX_HEADER_BYTES);
        goto out;
    }
    if (n_header > file_bytes - PREFIX_BYTES) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "the safetensors file '%s' ends at offset %" PRIu64 ", inside its header of "
                           "%" PRIu64 " bytes: the file is truncated",
                           path, file_bytes, n_header);
        goto out;
    }
    MOEC_TRY_OUT(moec_alloc(&header, n_header, 1, "safetensors header", err));
    MOEC_TRY_OUT(moec_file_read(&safetensors->file, PREFIX_BYTES, header, (size_t)n_header, err));
    MOEC_TRY_OUT(moec_safetensors_parse(safetensors, header, (size_t)n_header, file_bytes, path, err));
out:
    free(header);
    if (status != MOEC_OK)
        moec_safetensors_close(safetensors);
    return status;
}

void moec_safetensors_close(struct moec_safetensors *safetensors)
{
    if (safetensors == NULL)
        return;
    moec_safetensors_forget(safetensors);
    moec_file_close(&safetensors->file);
    *safetensors = (struct moec_safetensors){.file = {.fd = -1}};
}
