#include "formats/checkpoint/safetensors_source.h"

#include "formats/base/memory.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/checkpoint/safetensors.h"

#include <stdio.h>
#include <string.h>

#define INDEX_MAX_BYTES ((uint64_t)256 << 20)
#define MAX_SHARDS      1000

static const char single_name[] = "model.safetensors", index_name[] = "model.safetensors.index.json";

struct shards {
    struct moec_tensor_source source; /* first: this is what others see */
    const char *folder;               /* borrowed while opening */
    struct moec_safetensors *files;   /* (n_file) sorted by path; owned */
};

/* ---- opening ---- */

static enum moec_status open_shard(struct shards *shards, const char *name, struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_path_join(&path, shards->folder, name, err));
    enum moec_status status = moec_safetensors_open(&shards->files[shards->source.n_file], path, err);
    if (status == MOEC_OK)
        shards->source.n_file++;
    free(path);
    return status;
}

/* A shard's name comes from a file that somebody sent: it must not lead out of the folder. */
static enum moec_status check_shard_name(const char *name, const char *where, struct moec_error *err)
{
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || strchr(name, '\\') != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s names the shard '%.200s', expected a plain file name",
                         where, name);
    return MOEC_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Distinct shard names of an index, sorted; borrowed from `map`. */
static enum moec_status list_shards(const struct moec_json *map, const char *where, const char ***names,
                                    size_t *n_names, struct moec_error *err)
{
    void *list = NULL;
    size_t count = 0;
    MOEC_TRY(moec_alloc(&list, moec_json_length(map), sizeof **names, "list of shards", err));
    const char **all = list;
    enum moec_status status = MOEC_OK;
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        char what[512];
        (void)snprintf(what, sizeof what, "shard of tensor '%.160s' in %.300s", m.key, where);
        MOEC_TRY_OUT(moec_json_as_string(m.value, what, &all[count], NULL, err));
        MOEC_TRY_OUT(check_shard_name(all[count], where, err));
        count++;
    }
    qsort(all, count, sizeof *all, compare_names);
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++)
        if (distinct == 0 || strcmp(all[distinct - 1], all[i]) != 0)
            all[distinct++] = all[i];
    if (distinct == 0 || distinct > MAX_SHARDS) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "%s names %zu shards, expected 1..%d", where, distinct,
                           MAX_SHARDS);
        goto out;
    }
    *names = all;
    *n_names = distinct;
    list = NULL;
out:
    free(list);
    return status;
}

/* Every tensor that the index names must be in the shard that it names. */
static enum moec_status check_index(const struct shards *shards, const struct moec_json *map,
                                    const char **names, const char *where, struct moec_error *err)
{
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        const char *shard = NULL;
        MOEC_TRY(moec_json_as_string(m.value, where, &shard, NULL, err));
        const char **found = bsearch(&shard, names, shards->source.n_file, sizeof *names, compare_names);
        if (found == NULL || moec_safetensors_find(&shards->files[found - names], m.key) == NULL)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s says that tensor '%.200s' is in '%.200s', which does not have it", where,
                             m.key, shard);
    }
    return MOEC_OK;
}

static enum moec_status open_index(struct shards *shards, struct moec_error *err)
{
    struct moec_json *root = NULL;
    const struct moec_json *map = NULL;
    const char **names = NULL;
    char *where = NULL;
    size_t n_names = 0;
    void *files = NULL;
    enum moec_status status = moec_folder_load_json(shards->folder, "model.safetensors.index.json",
                                                    INDEX_MAX_BYTES, &root, &where, err);
    if (status != MOEC_OK)
        goto out;
    MOEC_TRY_OUT(moec_json_get(root, where, "weight_map", MOEC_JSON_OBJECT, &map, err));
    MOEC_TRY_OUT(list_shards(map, where, &names, &n_names, err));
    MOEC_TRY_OUT(moec_alloc(&files, n_names, sizeof *shards->files, "table of shards", err));
    shards->files = files;
    for (size_t i = 0; i < n_names; i++) {
        status = open_shard(shards, names[i], err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "shard %zu of %zu in %s", i + 1, n_names, where);
            goto out;
        }
    }
    MOEC_TRY_OUT(check_index(shards, map, names, where, err));
out:
    moec_json_free(root);
    free(where);
    free(names);
    return status;
}

static enum moec_status fail_no_weights(const struct shards *shards, struct moec_error *err)
{
    static const char *const pickled[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < 2; i++) {
        bool exists = false;
        MOEC_TRY(moec_folder_has(shards->folder, pickled[i], &exists, err));
        if (exists)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "'%s' has its weights in '%s', which can run code when it is read and is not supported: "
                "convert it with transformers (load the model, then save_pretrained(..., "
                "safe_serialization=True)) and point to the new folder",
                shards->folder, pickled[i]);
    }
    return moec_fail(err, MOEC_ERR_NOT_FOUND,
                     "'%s' has no weights, expected 'model.safetensors' or 'model.safetensors.index.json'",
                     shards->folder);
}

static enum moec_status open_files(struct shards *shards, struct moec_error *err)
{
    bool has_single = false, has_index = false;
    void *files = NULL;
    MOEC_TRY(moec_folder_has(shards->folder, single_name, &has_single, err));
    MOEC_TRY(moec_folder_has(shards->folder, index_name, &has_index, err));
    if (!has_single && !has_index)
        return fail_no_weights(shards, err);
    if (!has_single) { /* transformers prefers the single file too */
        shards->source.index = index_name;
        return open_index(shards, err);
    }
    MOEC_TRY(moec_alloc(&files, 1, sizeof *shards->files, "table of shards", err));
    shards->files = files;
    return open_shard(shards, single_name, err);
}

/* ---- scaled weights ---- */

#define FP8_BLOCK 128 /* rows and columns of a block: weight_block_size, which family.c expects */
#define MX_BLOCK  32

static const struct moec_safetensors_entry *find_entry(const struct shards *shards, const char *name,
                                                       uint32_t *file)
{
    const struct moec_safetensors_entry *entry = NULL;
    for (*file = 0; *file < shards->source.n_file && entry == NULL; ++*file)
        entry = moec_safetensors_find(&shards->files[*file], name);
    --*file;
    return entry;
}

static const struct moec_tensor_coding *scale_coding(const struct moec_safetensors_entry *entry)
{
    const bool is_exponent =
        strcmp(entry->dtype_name, "U8") == 0 || strcmp(entry->dtype_name, "F8_E8M0") == 0;
    return is_exponent ? &moec_tensor_e8m0 : moec_tensor_coding_of(entry->dtype);
}

/* Fills the scales of a tensor of shape (..., rows, columns) from the tensor that holds the factors. False if
 * its shape is another. */
static bool set_scales(struct moec_tensor *tensor, const struct moec_safetensors_entry *entry, uint32_t file,
                       uint32_t block_rows, uint32_t block_columns)
{
    const uint32_t n = tensor->n_dims;
    if (n < 2 || entry->n_dims != n ||
        memcmp(entry->shape, tensor->shape, (n - 2) * sizeof *entry->shape) != 0)
        return false;
    const uint64_t rows = tensor->shape[n - 2], line = tensor->shape[n - 1];
    const struct moec_tensor_scales scales = {.coding = scale_coding(entry),
                                              .offset = entry->offset,
                                              .file = file,
                                              .block_rows = block_rows,
                                              .block_columns = block_columns,
                                              .tensor_rows = rows,
                                              .scale_rows = entry->shape[n - 2],
                                              .scale_line = entry->shape[n - 1]};
    if (scales.coding == NULL || rows == 0 || line == 0 || scales.scale_rows != (rows - 1) / block_rows + 1 ||
        scales.scale_line != (line - 1) / block_columns + 1)
        return false;
    tensor->scales = scales;
    return true;
}

/* How many rows or columns share a factor where a dimension has so many factors; 0 where none do. */
static uint32_t block_of(uint64_t dim, uint64_t n_factor)
{
    if (dim > 0 && n_factor == (dim - 1) / FP8_BLOCK + 1)
        return FP8_BLOCK;
    if (n_factor == 1 && dim <= UINT32_MAX)
        return (uint32_t)dim;
    return n_factor == dim;
}

/* The same for factors of every shape that FP8 is published with: of blocks, of rows or columns, of a matrix,
 * or one of the whole tensor. */
static bool set_fp8_scales(struct moec_tensor *tensor, const struct moec_safetensors_entry *entry,
                           uint32_t file)
{
    const uint32_t n = tensor->n_dims;
    struct moec_safetensors_entry whole = *entry;
    if (n >= 2 && (entry->n_dims == 0 || (entry->n_dims == 1 && entry->shape[0] == 1))) {
        struct moec_tensor flat = *tensor;
        flat.n_dims = whole.n_dims = 2;
        flat.shape[0] = 1;
        for (uint32_t i = 0; i + 1 < n; i++)
            flat.shape[0] *= tensor->shape[i]; /* no more than the tensor has bytes */
        flat.shape[1] = tensor->shape[n - 1];
        whole.shape[0] = whole.shape[1] = 1;
        if (flat.shape[0] > UINT32_MAX || flat.shape[1] > UINT32_MAX ||
            !set_scales(&flat, &whole, file, (uint32_t)flat.shape[0], (uint32_t)flat.shape[1]))
            return false;
        tensor->scales = flat.scales;
        return true;
    }
    if (n < 2 || entry->n_dims != n)
        return false;
    const uint32_t block_rows = block_of(tensor->shape[n - 2], entry->shape[n - 2]),
                   block_columns = block_of(tensor->shape[n - 1], entry->shape[n - 1]);
    return block_rows > 0 && block_columns > 0 && set_scales(tensor, entry, file, block_rows, block_columns);
}

/* FP8: NAME_scale_inv or, in compressed-tensors, NAME_scale has the factors. */
static void read_as_fp8(const struct shards *shards, const char *name, struct moec_tensor *tensor)
{
    static const char *const suffixes[] = {"_scale_inv", "_scale"};
    tensor->dtype_name = "F8_E4M3 without factors for the tensor, its rows or blocks of 128 x 128 in "
                         "'..._scale_inv' or '..._scale'";
    for (size_t i = 0; i < 2; i++) {
        char scales_name[512];
        uint32_t file = 0;
        const int n = snprintf(scales_name, sizeof scales_name, "%s%s", name, suffixes[i]);
        const struct moec_safetensors_entry *scales =
            n > 0 && (size_t)n < sizeof scales_name ? find_entry(shards, scales_name, &file) : NULL;
        if (scales == NULL || !set_fp8_scales(tensor, scales, file))
            continue;
        tensor->dtype_name = "F8_E4M3";
        tensor->coding = &moec_tensor_e4m3;
        return;
    }
}

/* MXFP4: NAME_blocks (..., rows, columns / 32, 16) and NAME_scales (..., rows, columns / 32). */
static void read_as_mxfp4(const struct shards *shards, const char *name, struct moec_tensor *tensor)
{
    char scales_name[512];
    uint32_t file = 0;
    const size_t n_stem = strlen(name) - strlen("_blocks");
    const uint32_t n = tensor->n_dims;
    struct moec_tensor made = *tensor;
    if (n_stem + sizeof "_scales" > sizeof scales_name || n < 3 || tensor->shape[n - 1] != MX_BLOCK / 2)
        return;
    (void)snprintf(scales_name, sizeof scales_name, "%.*s_scales", (int)n_stem, name);
    const struct moec_safetensors_entry *scales = find_entry(shards, scales_name, &file);
    made.n_dims = n - 1;
    made.shape[n - 1] = 0;
    made.shape[n - 2] *= MX_BLOCK;
    if (scales == NULL || !set_scales(&made, scales, file, 1, MX_BLOCK))
        return;
    made.dtype_name = "MXFP4";
    made.coding = &moec_tensor_e2m1;
    *tensor = made;
}

/* ---- the source ---- */

static bool find_tensor(const struct moec_tensor_source *self, const char *name, struct moec_tensor *tensor)
{
    const struct shards *shards = (const struct shards *)self;
    const size_t n_name = strlen(name);
    uint32_t file = 0;
    const struct moec_safetensors_entry *entry = find_entry(shards, name, &file);
    if (entry == NULL)
        return false;
    *tensor = (struct moec_tensor){.dtype_name = entry->dtype_name,
                                   .coding = moec_tensor_coding_of(entry->dtype),
                                   .n_dims = entry->n_dims,
                                   .file = file,
                                   .offset = entry->offset,
                                   .n_bytes = entry->n_bytes};
    memcpy(tensor->shape, entry->shape, sizeof tensor->shape);
    if (strcmp(entry->dtype_name, "I64") == 0)
        tensor->coding = &moec_tensor_i64;
    else if (strcmp(entry->dtype_name, "I32") == 0)
        tensor->coding = &moec_tensor_i32;
    else if (strcmp(entry->dtype_name, "F8_E4M3") == 0)
        read_as_fp8(shards, name, tensor);
    else if (strcmp(entry->dtype_name, "U8") == 0 && n_name > 7 && strcmp(name + n_name - 7, "_blocks") == 0)
        read_as_mxfp4(shards, name, tensor);
    return true;
}

static enum moec_status read_bytes(const struct moec_tensor_source *self, uint32_t file, uint64_t offset,
                                   void *bytes, size_t n, struct moec_error *err)
{
    return moec_file_read(&((const struct shards *)self)->files[file].file, offset, bytes, n, err);
}

static const struct moec_file *file_of(const struct moec_tensor_source *self, uint32_t file)
{
    return &((const struct shards *)self)->files[file].file;
}

static void forget_names(struct moec_tensor_source *self)
{
    for (uint32_t i = 0; i < self->n_file; i++)
        moec_safetensors_forget(&((struct shards *)self)->files[i]);
}

static void free_shards(struct moec_tensor_source *self)
{
    struct shards *shards = (struct shards *)self;
    for (uint32_t i = 0; i < self->n_file; i++)
        moec_safetensors_close(&shards->files[i]);
    free(shards->files);
    free(shards);
}

enum moec_status moec_safetensors_source_open(const char *folder, struct moec_tensor_source **out,
                                              struct moec_error *err)
{
    struct shards *shards = NULL;
    MOEC_TRY(moec_alloc((void **)&shards, 1, sizeof *shards, "a source of tensors", err));
    *shards = (struct shards){.source = {.find = find_tensor,
                                         .read = read_bytes,
                                         .file = file_of,
                                         .forget = forget_names,
                                         .free = free_shards},
                              .folder = folder};
    enum moec_status status = open_files(shards, err);
    shards->folder = NULL;
    if (status != MOEC_OK)
        free_shards(&shards->source);
    else
        *out = &shards->source;
    return status;
}
