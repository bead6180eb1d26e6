/* GGUF lists dimensions from the innermost, so shapes are reversed here. Parts of a split file must name
 * their own number and count, and no tensor may be in two parts. Metadata come from the first part alone. */
#include "formats/checkpoint/gguf_source.h"

#include "formats/base/memory.h"
#include "formats/gguf/ggml_blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARTS    1000
#define MAX_TYPES    64 /* numbers of ggml's types are below this */
#define SUFFIX_BYTES 20 /* of "-00001-of-00003.gguf" */

struct parts {
    struct moec_tensor_source source; /* first: this is what others see */
    struct moec_gguf *files;          /* (n_file), owned */
    struct moec_tensor_coding codings[MAX_TYPES];
};

/* ---- the source ---- */

static const struct moec_tensor_coding *coding_of(const struct parts *parts,
                                                  const struct moec_ggml_type *type)
{
    switch (type->type) {
    case MOEC_GGML_F32:
        return moec_tensor_coding_of(MOEC_DTYPE_F32);
    case MOEC_GGML_F16:
        return moec_tensor_coding_of(MOEC_DTYPE_F16);
    case MOEC_GGML_BF16:
        return moec_tensor_coding_of(MOEC_DTYPE_BF16);
    default:
        return type->decode == NULL ? NULL : &parts->codings[type->type];
    }
}

static bool find_tensor(const struct moec_tensor_source *self, const char *name, struct moec_tensor *tensor)
{
    const struct parts *parts = (const struct parts *)self;
    for (uint32_t i = 0; i < self->n_file; i++) {
        const struct moec_gguf_tensor *found = moec_gguf_find_tensor(&parts->files[i], name);
        if (found == NULL)
            continue;
        const struct moec_ggml_type *type = moec_ggml_type_find(found->type);
        *tensor = (struct moec_tensor){.dtype_name = type == NULL ? "of an unknown type" : type->name,
                                       .coding = type == NULL ? NULL : coding_of(parts, type),
                                       .n_dims = found->n_dims,
                                       .file = i,
                                       .offset = found->offset,
                                       .n_bytes = found->n_bytes};
        for (uint32_t d = 0; d < found->n_dims; d++)
            tensor->shape[d] = found->dims[found->n_dims - 1 - d];
        return true;
    }
    return false;
}

static enum moec_status read_bytes(const struct moec_tensor_source *self, uint32_t file, uint64_t offset,
                                   void *bytes, size_t n, struct moec_error *err)
{
    return moec_file_read(&((const struct parts *)self)->files[file].file, offset, bytes, n, err);
}

static const struct moec_file *file_of(const struct moec_tensor_source *self, uint32_t file)
{
    return &((const struct parts *)self)->files[file].file;
}

static void forget_names(struct moec_tensor_source *self)
{
    for (uint32_t i = 0; i < self->n_file; i++)
        moec_gguf_forget(&((struct parts *)self)->files[i]);
}

static void free_parts(struct moec_tensor_source *self)
{
    struct parts *parts = (struct parts *)self;
    for (uint32_t i = 0; i < self->n_file; i++)
        moec_gguf_close(&parts->files[i]);
    free(parts->files);
    free(parts);
}

const struct moec_gguf *moec_gguf_source_header(const struct moec_tensor_source *source)
{
    return &((const struct parts *)source)->files[0];
}

/* ---- opening ---- */

static enum moec_status read_count(const struct moec_gguf *gguf, const char *key, uint64_t fallback,
                                   uint64_t *count, struct moec_error *err)
{
    const struct moec_gguf_value *value = moec_gguf_find(gguf, key);
    *count = fallback;
    return value == NULL ? MOEC_OK : moec_gguf_as_u64(gguf, value, count, err);
}

/* The part must say that it is number `part` of `n_parts`. */
static enum moec_status check_part(const struct moec_gguf *gguf, uint64_t part, uint64_t n_parts,
                                   struct moec_error *err)
{
    uint64_t number = 0, count = 0;
    MOEC_TRY(read_count(gguf, "split.no", 0, &number, err));
    MOEC_TRY(read_count(gguf, "split.count", 1, &count, err));
    if (number != part || count != n_parts)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the GGUF file '%s' says that it is part %" PRIu64 " of %" PRIu64 ", expected "
                         "%" PRIu64 " of %" PRIu64 " (counted from 0)",
                         gguf->file.path, number, count, part, n_parts);
    return MOEC_OK;
}

/* No tensor of the last part is in one before it. */
static enum moec_status check_copies(const struct parts *parts, struct moec_error *err)
{
    const struct moec_gguf *last = &parts->files[parts->source.n_file - 1];
    for (const struct moec_gguf *before = parts->files; before < last; before++)
        for (size_t i = 0; i < last->n_tensors; i++)
            if (moec_gguf_find_tensor(before, last->tensors[i].name) != NULL)
                return moec_fail(err, MOEC_ERR_MISMATCH,
                                 "tensor '%s' is in '%s' and in '%s', expected it in only one",
                                 last->tensors[i].name, before->file.path, last->file.path);
    return MOEC_OK;
}

/* Parts after the first, whose name ends in "-00001-of-0000N.gguf". */
static enum moec_status open_parts(struct parts *parts, const char *path, uint64_t n_parts,
                                   struct moec_error *err)
{
    char suffix[64];
    const size_t n_path = strlen(path), n_stem = n_path < SUFFIX_BYTES ? 0 : n_path - SUFFIX_BYTES;
    enum moec_status status = MOEC_OK;
    (void)snprintf(suffix, sizeof suffix, "-00001-of-%05" PRIu64 ".gguf", n_parts);
    if (n_stem == 0 || strcmp(path + n_stem, suffix) != 0)
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "the GGUF file '%s' is the first of %" PRIu64 " parts, expected a name that ends "
                         "with '%s'",
                         path, n_parts, suffix);
    for (uint64_t part = 1; part < n_parts && status == MOEC_OK; part++) {
        char *name = NULL;
        if (asprintf(&name, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)n_stem, path, part + 1,
                     n_parts) < 0)
            return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of a part of '%s'",
                             path);
        status = moec_gguf_open(&parts->files[part], name, err);
        free(name);
        if (status != MOEC_OK)
            return status;
        parts->source.n_file++;
        status = check_part(&parts->files[part], part, n_parts, err);
        if (status == MOEC_OK)
            status = check_copies(parts, err);
    }
    return status;
}

static enum moec_status open_files(struct parts *parts, const char *path, struct moec_error *err)
{
    uint64_t number = 0, n_parts = 1;
    struct moec_gguf first;
    MOEC_TRY(moec_gguf_open(&first, path, err));
    enum moec_status status = read_count(&first, "split.no", 0, &number, err);
    if (status == MOEC_OK)
        status = read_count(&first, "split.count", 1, &n_parts, err);
    if (status == MOEC_OK && number != 0)
        status = moec_fail(err, MOEC_ERR_USAGE,
                           "the GGUF file '%s' is part %" PRIu64 " of a split model, expected the first, "
                           "'...-00001-of-%05" PRIu64 ".gguf'",
                           path, number + 1, n_parts);
    if (status == MOEC_OK && (n_parts == 0 || n_parts > MAX_PARTS))
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "'split.count' in the GGUF file '%s' is %" PRIu64 ", expected 1..%d", path,
                           n_parts, MAX_PARTS);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&parts->files, n_parts, sizeof *parts->files, "table of parts", err);
    if (status != MOEC_OK) {
        moec_gguf_close(&first);
        return status;
    }
    parts->files[0] = first;
    parts->source.n_file = 1;
    return n_parts == 1 ? MOEC_OK : open_parts(parts, path, n_parts, err);
}

enum moec_status moec_gguf_source_open(const char *path, struct moec_tensor_source **out,
                                       struct moec_error *err)
{
    struct parts *parts = NULL;
    MOEC_TRY(moec_alloc((void **)&parts, 1, sizeof *parts, "a source of tensors", err));
    parts->source = (struct moec_tensor_source){
        .find = find_tensor, .read = read_bytes, .file = file_of, .forget = forget_names, .free = free_parts};
    for (uint32_t i = 0; i < MAX_TYPES; i++) {
        const struct moec_ggml_type *type = moec_ggml_type_find(i);
        if (type != NULL && type->decode != NULL)
            parts->codings[i] = (struct moec_tensor_coding){type->block_weights,
                                                            type->block_bytes,
                                                            MOEC_DTYPE_COUNT,
                                                            false,
                                                            type->decode,
                                                            i == MOEC_GGML_MXFP4,
                                                            type};
    }
    const enum moec_status status = open_files(parts, path, err);
    if (status != MOEC_OK)
        free_parts(&parts->source);
    else
        *out = &parts->source;
    return status;
}
