/* Quantised weights of safetensors are two tensors: codes, and factors under a derived name. FP8 takes
 * NAME_scale_inv or NAME_scale with factors by block of 128 x 128, by row, by column or one for all. MXFP4
 * takes NAME_blocks and NAME_scales and shows as one tensor of (rows, columns). A tensor whose factors do
 * not fit its shape gets no coding, so that using it is refused. */
#include "formats/checkpoint/safetensors_source.h"

#include "formats/base/memory.h"
#include "formats/checkpoint/shards.h"

#include <stdio.h>
#include <string.h>

struct safetensors_source {
    struct moec_tensor_source source; /* first: this is what others see */
    struct moec_shards shards;
};

/* ---- scaled weights ---- */

#define FP8_BLOCK 128 /* rows and columns of a block: weight_block_size, which family.c expects */
#define MX_BLOCK  32

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
static void read_as_fp8(const struct moec_shards *shards, const char *name, struct moec_tensor *tensor)
{
    static const char *const suffixes[] = {"_scale_inv", "_scale"};
    tensor->dtype_name = "F8_E4M3 without factors for the tensor, its rows or blocks of 128 x 128 in "
                         "'..._scale_inv' or '..._scale'";
    for (size_t i = 0; i < 2; i++) {
        char scales_name[512];
        uint32_t file = 0;
        const int n = snprintf(scales_name, sizeof scales_name, "%s%s", name, suffixes[i]);
        const struct moec_safetensors_entry *scales =
            n > 0 && (size_t)n < sizeof scales_name ? moec_shards_find(shards, scales_name, &file) : NULL;
        if (scales == NULL || !set_fp8_scales(tensor, scales, file))
            continue;
        tensor->dtype_name = "F8_E4M3";
        tensor->coding = &moec_tensor_e4m3;
        return;
    }
}

/* MXFP4: NAME_blocks (..., rows, columns / 32, 16) and NAME_scales (..., rows, columns / 32). */
static void read_as_mxfp4(const struct moec_shards *shards, const char *name, struct moec_tensor *tensor)
{
    char scales_name[512];
    uint32_t file = 0;
    const size_t n_stem = strlen(name) - strlen("_blocks");
    const uint32_t n = tensor->n_dims;
    struct moec_tensor made = *tensor;
    if (n_stem + sizeof "_scales" > sizeof scales_name || n < 3 || tensor->shape[n - 1] != MX_BLOCK / 2)
        return;
    (void)snprintf(scales_name, sizeof scales_name, "%.*s_scales", (int)n_stem, name);
    const struct moec_safetensors_entry *scales = moec_shards_find(shards, scales_name, &file);
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
    const struct moec_shards *shards = &((const struct safetensors_source *)self)->shards;
    const size_t n_name = strlen(name);
    uint32_t file = 0;
    const struct moec_safetensors_entry *entry = moec_shards_find(shards, name, &file);
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

static enum moec_status explain_missing(const struct moec_tensor_source *self, const char *name,
                                        struct moec_error *err)
{
    return moec_shards_explain(&((const struct safetensors_source *)self)->shards, name, err);
}

static enum moec_status read_bytes(const struct moec_tensor_source *self, uint32_t file, uint64_t offset,
                                   void *bytes, size_t n, struct moec_error *err)
{
    return moec_file_read(self->file(self, file), offset, bytes, n, err);
}

static const struct moec_file *file_of(const struct moec_tensor_source *self, uint32_t file)
{
    return &((const struct safetensors_source *)self)->shards.files[file].file;
}

static void forget_names(struct moec_tensor_source *self)
{
    moec_shards_forget(&((struct safetensors_source *)self)->shards);
}

static void free_source(struct moec_tensor_source *self)
{
    moec_shards_close(&((struct safetensors_source *)self)->shards);
    free(self);
}

enum moec_status moec_safetensors_source_open(const char *folder, struct moec_tensor_source **out,
                                              struct moec_error *err)
{
    struct safetensors_source *made = NULL;
    MOEC_TRY(moec_alloc((void **)&made, 1, sizeof *made, "a source of tensors", err));
    made->source = (struct moec_tensor_source){.find = find_tensor,
                                               .explain = explain_missing,
                                               .read = read_bytes,
                                               .file = file_of,
                                               .forget = forget_names,
                                               .free = free_source};
    const enum moec_status status = moec_shards_open(folder, &made->shards, err);
    if (status != MOEC_OK) {
        free(made);
        return status;
    }
    made->source.n_file = made->shards.n_file;
    made->source.index = made->shards.index;
    made->source.note = made->shards.note;
    *out = &made->source;
    return MOEC_OK;
}
