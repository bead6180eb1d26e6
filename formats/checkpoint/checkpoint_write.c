/* The inverse of reading by layouts (tensor_view.h): parts of a fused tensor are put together again,
 * transposed, interleaved or in pairs. First all tensors are listed, in the order of writing, with shapes
 * and shards; then each is streamed in blocks of rows. The list alone decides the headers, so writing must
 * give exactly its bytes. One record is held at a time, and a change of expert reads the next. */
#include "formats/checkpoint/checkpoint_write.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_chat.h"
#include "formats/checkpoint/safetensors_write.h"
#include "formats/family/family.h"
#include "formats/json/json_write.h"
#include "formats/tokenizer/japanese_vocab.h"
#include "formats/tokenizer/tokenizer_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ROWS MOEC_TRANSPOSE_NEURONS /* rows of a file that are made at a time */

#define MAX_PARTS 5u

/* One tensor of the folder, and where its weights come from: matrices one behind the other, or sharing rows.
 */
struct item {
    char name[MOEC_TENSOR_NAME_BYTES];
    struct moec_safetensors_tensor tensor;
    bool is_expert;
    uint32_t n_part;
    uint32_t entries[MAX_PARTS];                  /* of the dense table */
    struct moec_tensor_layout layouts[MAX_PARTS]; /* of those */
    uint32_t ordinal, expert, n_expert;           /* of records: from `expert` on, each with all parts */
    enum moec_projection projections[MAX_PARTS];
    bool is_transposed;             /* (inputs, outputs) */
    bool shares_rows, takes_turns;  /* a row has one of each part; weight by weight */
    struct moec_family_pairs pairs; /* rows of each head that are written in pairs; all 0 = in order */
    uint32_t shard;
};

struct writing {
    const struct moec_bundle *bundle;
    const struct moec_checkpoint_write_options *options;
    const struct moec_family *family;
    struct moec_dense dense;
    enum moec_dtype expert_dtype;
    struct item *items; /* (n_item) in the order of writing */
    size_t n_item, items_capacity;
    uint32_t n_shard;
    uint64_t total_bytes, done_bytes;
    /* Scratch: decoded weights, the same transposed, rows of several matrices, and encoded. */
    float *decoded, *transposed, *shared;
    uint8_t *encoded;
    uint8_t *record; /* the record of (ordinal, expert) when has_record */
    bool has_record;
    uint32_t ordinal, expert;
    struct moec_safetensors_writer *writer; /* of the shard at work */
};

/* ---- what there is to write ---- */

static bool is_float(struct moec_codec codec)
{
    return codec.dtype <= MOEC_DTYPE_BF16;
}

/* Records hold floats at 16 bits alone. */
static enum moec_dtype choose_expert_dtype(const struct moec_bundle *bundle, uint32_t copy)
{
    uint32_t n_layer = moec_config_moe_count(&bundle->config);
    for (uint32_t s = 0; s < n_layer; s++)
        for (uint32_t e = 0; e < bundle->config.n_expert; e++)
            if (!moec_variant_equal(moec_bundle_record(bundle, copy, s, e)->variant,
                                    moec_variant_uniform(16)))
                return MOEC_DTYPE_F32;
    const enum moec_dtype dtype = (enum moec_dtype)bundle->codecs[16].dtype;
    const struct moec_codec_traits *traits = moec_codec_traits(bundle->codecs[16]);
    return traits->is_exact ? (enum moec_dtype)traits->float_dtype : dtype;
}

/* Roles that are vectors in files; the shared expert's gate is a matrix of one row. */
static bool role_is_vector(enum moec_role role)
{
    switch (role) {
    case MOEC_ROLE_FINAL_NORM:
    case MOEC_ROLE_ATTENTION_NORM:
    case MOEC_ROLE_MLP_NORM:
    case MOEC_ROLE_Q_BIAS:
    case MOEC_ROLE_K_BIAS:
    case MOEC_ROLE_V_BIAS:
    case MOEC_ROLE_Q_NORM:
    case MOEC_ROLE_K_NORM:
    case MOEC_ROLE_ROUTER_BIAS:
    case MOEC_ROLE_ROUTER_CHOICE_BIAS:
    case MOEC_ROLE_CROSS_NORM:
    case MOEC_ROLE_ENCODER_NORM:
    case MOEC_ROLE_O_BIAS:
    case MOEC_ROLE_SINKS:
    case MOEC_ROLE_ATTENTION_POST_NORM:
    case MOEC_ROLE_MLP_POST_NORM:
    case MOEC_ROLE_Q_DOWN_NORM:
    case MOEC_ROLE_KV_DOWN_NORM:
    case MOEC_ROLE_DELTA_DECAY_LOG:
    case MOEC_ROLE_DELTA_DECAY_BIAS:
    case MOEC_ROLE_DELTA_NORM:
    case MOEC_ROLE_ROUTER_NORM:
    case MOEC_ROLE_ROUTER_EXPERT_SCALE:
    case MOEC_ROLE_EXPERT_NORM:
    case MOEC_ROLE_EXPERT_POST_NORM:
    case MOEC_ROLE_SHARED_POST_NORM:
    case MOEC_ROLE_LAYER_SCALE:
    case MOEC_ROLE_SPACE_SKIP:
    case MOEC_ROLE_CONVOLUTION_BIAS:
    case MOEC_ROLE_ATTENTION_NORM_BIAS:
    case MOEC_ROLE_MLP_NORM_BIAS:
    case MOEC_ROLE_FINAL_NORM_BIAS:
    case MOEC_ROLE_HEAD_BIAS:
    case MOEC_ROLE_ATTENTION_POST_NORM_BIAS:
    case MOEC_ROLE_MLP_POST_NORM_BIAS:
    case MOEC_ROLE_OUTPUT_PROJECTION_BIAS:
    case MOEC_ROLE_DENSE_UP_BIAS:
    case MOEC_ROLE_DENSE_DOWN_BIAS:
        return true;
    default:
        return false;
    }
}

static enum moec_status add_item(struct writing *w, const struct item *item, struct moec_error *err)
{
    MOEC_TRY(moec_grow((void **)&w->items, &w->items_capacity, w->n_item + 1, sizeof *w->items,
                       "table of tensors", err));
    w->items[w->n_item++] = *item;
    return MOEC_OK;
}

/* Parts one behind the other are matrices one behind the other: outputs as rows do not take turns. */
static enum moec_status take_layout(const struct writing *w, struct moec_tensor_layout layout,
                                    struct item *item, struct moec_error *err)
{
    item->is_transposed = layout.is_transposed;
    item->shares_rows = layout.n_part > 1 && (layout.is_row_fused || layout.is_transposed);
    item->takes_turns = layout.is_interleaved;
    if ((layout.is_interleaved && !item->shares_rows) || layout.n_part > MAX_PARTS)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the bundle '%s' cannot be exported: models of family '%s' interleave the rows of several "
            "matrices in tensor '%s', which moec can read but not write",
            w->bundle->file.path, w->family->model_type, item->name);
    return MOEC_OK;
}

/* The layout of an entry of the dense table in the file. */
static struct moec_tensor_layout layout_of(const struct writing *w, const struct moec_dense_entry *entry)
{
    return moec_family_layout(w->family, &w->bundle->config, (enum moec_role)entry->role, entry->layer);
}

static bool is_first_part(struct moec_tensor_layout layout)
{
    return layout.part == 0 && layout.block_first == 0;
}

/* The further parts of a tensor whose first is the entry of the item. */
static void add_dense_parts(const struct writing *w, struct item *item, const char *pattern)
{
    const struct moec_dense_entry *first = &w->dense.entries[item->entries[0]];
    item->layouts[0] = layout_of(w, first);
    if (item->layouts[0].n_part < 2 && item->layouts[0].block_rows == 0)
        return;
    for (uint32_t i = 0; i < w->dense.n_entries && item->n_part < MAX_PARTS; i++) {
        const struct moec_dense_entry *entry = &w->dense.entries[i];
        const char *own =
            moec_family_pattern(w->family, &w->bundle->config, (enum moec_role)entry->role, entry->layer);
        if (entry->layer != first->layer || own == NULL || strcmp(own, pattern) != 0 ||
            is_first_part(layout_of(w, entry)))
            continue;
        item->layouts[item->n_part] = layout_of(w, entry);
        item->entries[item->n_part++] = i;
    }
}

/* The rest of the rows of the tensor that the item's entry begins. */
static void add_rest(const struct writing *w, struct item *item)
{
    const struct moec_dense_entry *first = &w->dense.entries[item->entries[0]];
    for (uint32_t i = 0; i < w->dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &w->dense.entries[i];
        if (i == item->entries[0] || entry->layer != first->layer ||
            moec_role_whole((enum moec_role)entry->role) != (enum moec_role)first->role)
            continue;
        if (!moec_codec_equal(entry->codec, first->codec))
            item->tensor.dtype = MOEC_DTYPE_F32;
        item->tensor.shape[0] += entry->rows;
        item->layouts[item->n_part] = item->layouts[0];
        item->entries[item->n_part++] = i;
    }
}

static enum moec_status add_dense(struct writing *w, uint32_t layer, struct moec_error *err)
{
    for (uint32_t i = 0; i < w->dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &w->dense.entries[i];
        enum moec_role role = (enum moec_role)entry->role;
        const struct moec_tensor_layout layout = layout_of(w, entry);
        if (entry->layer != layer || !is_first_part(layout) || moec_role_whole(role) != role)
            continue;
        struct item item = {.entries = {i}, .n_part = 1};
        bool transposed = moec_role_is_transposed(role) != layout.is_transposed;
        const char *pattern = moec_family_pattern(w->family, &w->bundle->config, role, layer);
        if (pattern == NULL)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "the bundle '%s' cannot be exported: it has a tensor '%s', which models of "
                             "family '%s' do not have",
                             w->bundle->file.path, moec_role_name(role), w->family->model_type);
        if (layout.is_integer)
            MOEC_TRY(moec_dense_check_routes(entry, 0, entry->rows, w->dense.blob + entry->offset,
                                             w->bundle->config.n_expert, err));
        (void)moec_family_tensor_name(pattern, &w->bundle->config, layer, 0, item.name);
        item.tensor.dtype = is_float(entry->codec) ? (enum moec_dtype)entry->codec.dtype : MOEC_DTYPE_F32;
        item.tensor.is_integer = layout.is_integer;
        item.tensor.n_dims = role_is_vector(role) ? 1 : layout.is_convolution ? 3 : 2;
        item.tensor.shape[0] = role_is_vector(role) || transposed ? entry->columns : entry->rows;
        item.tensor.shape[1] = layout.is_convolution ? 1 : transposed ? entry->rows : entry->columns;
        item.tensor.shape[2] = entry->columns;
        if (layout.is_row) {
            item.tensor.n_dims = 2;
            item.tensor.shape[0] = 1;
            item.tensor.shape[1] = entry->columns;
        }
        if (layout.is_four) {
            item.tensor.n_dims = 4;
            item.tensor.shape[0] = item.tensor.shape[1] = item.tensor.shape[3] = 1;
        }
        MOEC_TRY(take_layout(w, layout, &item, err));
        add_dense_parts(w, &item, pattern);
        if (layout.block_rows > 0)
            item.tensor.shape[0] = moec_tensor_layout_outputs(layout, entry->rows);
        else
            item.tensor.shape[item.shares_rows ? 1 : 0] *= item.n_part;
        if (layout.has_pairs)
            item.pairs = moec_family_pairs(moec_config_layer(&w->bundle->config, layer), role);
        add_rest(w, &item);
        MOEC_TRY(add_item(w, &item, err));
    }
    return MOEC_OK;
}

/* The embedding once more, where transformers looks for it under other names. */
static enum moec_status add_copies(struct writing *w, struct moec_error *err)
{
    const char *const *name = w->family->embedding_copies;
    const struct item embedding = w->items[0];
    for (; name != NULL && *name != NULL && !w->bundle->config.head.is_tied; name++) {
        struct item copy = embedding;
        (void)snprintf(copy.name, sizeof copy.name, "%s", *name);
        MOEC_TRY(add_item(w, &copy, err));
    }
    return MOEC_OK;
}

/* The tensor that begins with projection p of an expert: of all experts where they are stacked. */
static enum moec_status add_expert_item(struct writing *w, uint32_t layer, uint32_t expert,
                                        enum moec_projection p, struct moec_error *err)
{
    const struct moec_config *config = &w->bundle->config;
    const struct moec_tensor_layout layout = moec_family_expert_layout(w->family, p);
    const bool down = p == MOEC_PROJECTION_DOWN;
    const uint32_t n_part = layout.n_part > 0 ? layout.n_part : 1;
    struct item item = {.is_expert = true,
                        .ordinal = (uint32_t)moec_config_moe_ordinal(config, layer),
                        .expert = expert,
                        .n_expert = layout.is_stacked ? config->n_expert : 1,
                        .n_part = n_part,
                        .projections = {p, MOEC_PROJECTION_UP},
                        .tensor = {.dtype = w->expert_dtype}};
    uint64_t *shape = item.tensor.shape;
    if (layout.is_stacked)
        shape[item.tensor.n_dims++] = config->n_expert;
    const uint64_t outputs = down ? config->n_embd : (uint64_t)n_part * config->n_ff_expert;
    const uint64_t inputs = down ? config->n_ff_expert : config->n_embd;
    shape[item.tensor.n_dims++] = layout.is_transposed ? inputs : outputs;
    shape[item.tensor.n_dims++] = layout.is_transposed ? outputs : inputs;
    (void)moec_family_tensor_name(moec_family_expert_pattern(w->family, config, p, layer), config, layer,
                                  expert, item.name);
    MOEC_TRY(take_layout(w, layout, &item, err));
    return add_item(w, &item, err);
}

static enum moec_status add_experts(struct writing *w, uint32_t layer, struct moec_error *err)
{
    const struct moec_config *config = &w->bundle->config;
    if (moec_config_moe_ordinal(config, layer) < 0)
        return MOEC_OK;
    for (uint32_t e = 0; e < config->n_expert; e++)
        for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
            const struct moec_tensor_layout layout =
                moec_family_expert_layout(w->family, (enum moec_projection)p);
            const bool is_written = layout.part > 0 || (layout.is_stacked && e > 0);
            if (!is_written && !(p == MOEC_PROJECTION_GATE && config->mlp.plain))
                MOEC_TRY(add_expert_item(w, layer, e, (enum moec_projection)p, err));
        }
    return MOEC_OK;
}

static enum moec_status list_items(struct writing *w, struct moec_error *err)
{
    uint64_t limit = w->options->shard_bytes > 0 ? w->options->shard_bytes : MOEC_CHECKPOINT_SHARD_BYTES;
    uint64_t in_shard = 0;
    MOEC_TRY(add_dense(w, MOEC_LAYER_NONE, err));
    MOEC_TRY(add_copies(w, err));
    for (uint32_t layer = 0; layer < w->bundle->config.n_layer; layer++) {
        MOEC_TRY(add_dense(w, layer, err));
        MOEC_TRY(add_experts(w, layer, err));
    }
    for (size_t i = 0; i < w->n_item; i++) {
        uint64_t n_bytes = moec_safetensors_tensor_bytes(&w->items[i].tensor);
        if (w->n_shard == 0 || in_shard + n_bytes > limit) {
            w->n_shard++;
            in_shard = 0;
        }
        in_shard += n_bytes;
        w->total_bytes += n_bytes;
        w->items[i].shard = w->n_shard - 1;
        w->items[i].tensor.name = w->items[i].name;
    }
    return MOEC_OK;
}

/* ---- weights ---- */

/* Rows of the file that come from one block of the matrix, and floats that a block takes. */
static uint64_t block_floats(const struct moec_matrix *matrix, bool transposed)
{
    return (uint64_t)ROWS * (transposed ? matrix->rows : matrix->columns);
}

static enum moec_status allocate_scratch(struct writing *w, struct moec_error *err)
{
    const struct moec_config *config = &w->bundle->config;
    uint64_t floats =
        (uint64_t)ROWS * (config->n_embd > config->n_ff_expert ? config->n_embd : config->n_ff_expert);
    uint64_t record_bytes = 0;
    for (uint32_t i = 0; i < w->dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &w->dense.entries[i];
        struct moec_matrix matrix = {.rows = entry->rows, .columns = entry->columns};
        uint64_t needed = block_floats(&matrix, moec_role_is_transposed((enum moec_role)entry->role));
        floats = needed > floats ? needed : floats;
    }
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        for (uint32_t e = 0; e < config->n_expert; e++) {
            uint64_t n_bytes = moec_bundle_record(w->bundle, w->options->copy, s, e)->n_bytes;
            record_bytes = n_bytes > record_bytes ? n_bytes : record_bytes;
        }
    MOEC_TRY(moec_alloc((void **)&w->decoded, floats, sizeof(float), "decoded weights", err));
    MOEC_TRY(moec_alloc((void **)&w->transposed, floats, sizeof(float), "transposed weights", err));
    MOEC_TRY(moec_alloc((void **)&w->shared, floats, MAX_PARTS * sizeof(float), "shared rows", err));
    MOEC_TRY(moec_alloc((void **)&w->encoded, floats, MAX_PARTS * sizeof(float), "encoded weights", err));
    return moec_alloc((void **)&w->record, record_bytes, 1, "an expert", err);
}

/* Where row `row` of a file stands in a matrix whose heads have first all first coordinates of their pairs,
 * then all second ones, and side by side in the file. */
static size_t paired_row(size_t row, struct moec_family_pairs pairs)
{
    const size_t in_head = pairs.head > 0 ? row % pairs.head : 0;
    if (in_head < pairs.first || in_head - pairs.first >= pairs.dims)
        return row;
    const size_t i = in_head - pairs.first;
    return row - i + i / 2 + i % 2 * (pairs.dims / 2);
}

/* Decodes rows [first, first + count) of the file: those of the matrix, or its columns when it is transposed.
 */
static float *decode_block(struct writing *w, const struct moec_matrix *matrix, bool transposed,
                           struct moec_family_pairs pairs, size_t first, size_t count)
{
    if (!transposed) {
        for (size_t i = 0; i < count; i++)
            moec_matrix_decode_span(matrix, (uint32_t)paired_row(first + i, pairs), 0, matrix->columns,
                                    w->decoded + i * matrix->columns);
        return w->decoded;
    }
    for (uint32_t row = 0; row < matrix->rows; row++)
        moec_matrix_decode_span(matrix, row, first, count, w->decoded + row * count);
    moec_transpose_to_f32((struct moec_float_matrix){MOEC_DTYPE_F32, w->decoded, matrix->rows, count}, 0,
                          count, w->transposed);
    return w->transposed;
}

/* Matrices whose rows, or columns when they are transposed, stand side by side in rows of a file. */
struct parts {
    const struct moec_matrix *matrices; /* (n), of one shape */
    uint32_t n;
    bool transposed;
    bool adds_one; /* to what the file holds */
};

/* The same rows of several matrices: (count, n x columns). */
static float *decode_shared(struct writing *w, const struct parts *parts, const struct item *item,
                            size_t first, size_t count)
{
    const uint32_t n = parts->n;
    const size_t columns = parts->transposed ? parts->matrices->rows : parts->matrices->columns;
    for (uint32_t i = 0; i < n; i++) {
        const float *part =
            decode_block(w, &parts->matrices[i], parts->transposed, item->pairs, first, count);
        float *out = w->shared + (item->takes_turns ? i : i * columns);
        for (size_t row = 0; row < count; row++)
            for (size_t c = 0; c < columns; c++)
                out[row * n * columns + c * (item->takes_turns ? n : 1)] = part[row * columns + c];
    }
    return w->shared;
}

/* Puts n numbers into w->encoded as the file holds them; returns their bytes. Whole numbers are experts. */
static enum moec_status encode_numbers(struct writing *w, const struct item *item, const float *numbers,
                                       size_t n, size_t *n_bytes, struct moec_error *err)
{
    const struct moec_codec codec = {.dtype = (uint8_t)item->tensor.dtype};
    *n_bytes = item->tensor.is_integer ? n * sizeof(int64_t) : moec_codec_row_bytes(codec, n);
    if (!item->tensor.is_integer)
        return moec_codec_encode_row(codec, numbers, n, w->encoded, err);
    for (size_t i = 0; i < n; i++)
        moec_put_u64(w->encoded + i * sizeof(int64_t), (uint64_t)numbers[i]);
    return MOEC_OK;
}

/* Rows first .. end - 1 of the file's part of a matrix, or of several that share rows. */
static enum moec_status write_rows(struct writing *w, const struct parts *parts, const struct item *item,
                                   size_t first, size_t end, struct moec_error *err)
{
    const struct moec_matrix *matrix = parts->matrices;
    size_t columns = (parts->transposed ? matrix->rows : matrix->columns) * parts->n;
    for (; first < end; first += ROWS) {
        size_t count = end - first < ROWS ? end - first : ROWS;
        float *weights = parts->n > 1 ? decode_shared(w, parts, item, first, count)
                                      : decode_block(w, matrix, parts->transposed, item->pairs, first, count);
        size_t n_bytes = 0;
        for (size_t i = 0; parts->adds_one && i < count * columns; i++)
            weights[i] -= 1.0f;
        MOEC_TRY(encode_numbers(w, item, weights, count * columns, &n_bytes, err));
        MOEC_TRY(moec_safetensors_writer_append(w->writer, w->encoded, n_bytes, err));
        w->done_bytes += n_bytes;
        if (w->options->progress != NULL)
            MOEC_TRY(w->options->progress(w->options->context, w->done_bytes, w->total_bytes, err));
    }
    return MOEC_OK;
}

static enum moec_status write_matrices(struct writing *w, const struct parts *parts, const struct item *item,
                                       struct moec_error *err)
{
    return write_rows(w, parts, item, 0, parts->transposed ? parts->matrices->columns : parts->matrices->rows,
                      err);
}

/* The part of an item that begins at `output` of each of its tensor's periods. */
static uint32_t part_at(const struct item *item, uint32_t output)
{
    uint32_t part = 0;
    while (part < item->n_part && item->layouts[part].block_first != output)
        part++;
    return part;
}

/* A tensor whose parts take turns, block by block. */
static enum moec_status write_blocks(struct writing *w, const struct item *item, struct moec_error *err)
{
    const uint32_t step = item->layouts[0].block_step;
    for (uint32_t period = 0; period < item->tensor.shape[0] / step; period++)
        for (uint32_t output = 0; output < step;) {
            const uint32_t part = part_at(item, output);
            if (part == item->n_part)
                return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                                 "the bundle '%s' cannot be exported: no weights are known for row %u of "
                                 "tensor '%s'",
                                 w->bundle->file.path, output, item->name);
            const struct moec_dense_entry *entry = &w->dense.entries[item->entries[part]];
            const struct moec_matrix matrix =
                moec_dense_matrix(entry, entry->rows, w->dense.blob + entry->offset);
            const uint32_t rows = item->layouts[part].block_rows;
            const struct parts parts = {&matrix, 1, false, item->layouts[part].adds_one};
            MOEC_TRY(write_rows(w, &parts, item, (size_t)period * rows, (size_t)(period + 1) * rows, err));
            output += rows;
        }
    return MOEC_OK;
}

static enum moec_status write_parts(struct writing *w, const struct moec_matrix *matrices, bool transposed,
                                    const struct item *item, struct moec_error *err)
{
    struct parts parts = {matrices, 1, transposed, item->layouts[0].adds_one}; /* as all its parts do */
    if (item->shares_rows) {
        parts.n = item->n_part;
        return write_matrices(w, &parts, item, err);
    }
    for (uint32_t i = 0; i < item->n_part; i++, parts.matrices++)
        MOEC_TRY(write_matrices(w, &parts, item, err));
    return MOEC_OK;
}

static enum moec_status write_expert(struct writing *w, const struct item *item, uint32_t expert,
                                     struct moec_error *err)
{
    const struct moec_record_layout *layout =
        moec_bundle_layout(w->bundle, w->options->copy, item->ordinal, expert);
    struct moec_mlp mlp;
    if (!w->has_record || w->ordinal != item->ordinal || w->expert != expert) {
        w->has_record = false;
        MOEC_TRY(moec_bundle_read_record(
            w->bundle, (struct moec_record_id){w->options->copy, item->ordinal, expert}, w->record, err));
        w->has_record = true;
        w->ordinal = item->ordinal;
        w->expert = expert;
    }
    moec_record_bind(layout, w->record, &mlp);
    const struct moec_matrix *const matrices[] = {[MOEC_PROJECTION_GATE] = &mlp.gate,
                                                  [MOEC_PROJECTION_UP] = &mlp.up,
                                                  [MOEC_PROJECTION_DOWN] = &mlp.down};
    struct moec_matrix parts[MAX_PARTS];
    for (uint32_t i = 0; i < item->n_part; i++)
        parts[i] = *matrices[item->projections[i]];
    const bool is_down = item->projections[0] == MOEC_PROJECTION_DOWN; /* records have it transposed */
    return write_parts(w, parts, is_down != item->is_transposed, item, err);
}

static enum moec_status write_item(struct writing *w, const struct item *item, struct moec_error *err)
{
    for (uint32_t i = 0; i < item->n_expert; i++)
        MOEC_TRY(write_expert(w, item, item->expert + i, err));
    if (item->is_expert)
        return MOEC_OK;
    if (item->layouts[0].block_rows > 0)
        return write_blocks(w, item, err);
    struct moec_matrix parts[MAX_PARTS];
    for (uint32_t i = 0; i < item->n_part; i++) {
        const struct moec_dense_entry *entry = &w->dense.entries[item->entries[i]];
        parts[i] = moec_dense_matrix(entry, entry->rows, w->dense.blob + entry->offset);
    }
    const enum moec_role role = (enum moec_role)w->dense.entries[item->entries[0]].role;
    return write_parts(w, parts, moec_role_is_transposed(role) != item->is_transposed, item, err);
}

/* ---- files ---- */

static void shard_name(const struct writing *w, uint32_t shard, char name[static 64])
{
    if (w->n_shard == 1)
        (void)snprintf(name, 64, "model.safetensors");
    else
        (void)snprintf(name, 64, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1, w->n_shard);
}

static enum moec_status write_shard(struct writing *w, const char *folder, size_t *next, uint32_t shard,
                                    struct moec_error *err)
{
    struct moec_safetensors_writer writer = {.output = {.fd = -1}};
    struct moec_safetensors_tensor *tensors = NULL;
    char name[64], *path = NULL;
    size_t n = 0;
    enum moec_status status = MOEC_OK;
    while (*next + n < w->n_item && w->items[*next + n].shard == shard)
        n++;
    MOEC_TRY_OUT(moec_alloc((void **)&tensors, n, sizeof *tensors, "table of tensors", err));
    for (size_t i = 0; i < n; i++)
        tensors[i] = w->items[*next + i].tensor;
    shard_name(w, shard, name);
    MOEC_TRY_OUT(moec_path_join(&path, folder, name, err));
    MOEC_TRY_OUT(moec_safetensors_writer_open(&writer, path, tensors, n, err));
    w->writer = &writer;
    for (size_t i = 0; i < n; i++)
        MOEC_TRY_OUT(write_item(w, &w->items[*next + i], err));
    MOEC_TRY_OUT(moec_safetensors_writer_commit(&writer, err));
    *next += n;
out:
    moec_safetensors_writer_abort(&writer);
    free(tensors);
    free(path);
    return status;
}

static enum moec_status write_text(const char *folder, const char *name, const char *text,
                                   struct moec_error *err)
{
    struct moec_output output = {.fd = -1};
    char *path = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_path_join(&path, folder, name, err));
    MOEC_TRY_OUT(moec_output_open(&output, path, err));
    MOEC_TRY_OUT(moec_output_append(&output, text, strlen(text), err));
    MOEC_TRY_OUT(moec_output_commit(&output, err));
out:
    moec_output_abort(&output);
    free(path);
    return status;
}

/* Writes a tree, which it frees in every case. */
static enum moec_status write_json(const char *folder, const char *name, struct moec_json_out *root,
                                   struct moec_error *err)
{
    char *text = NULL;
    enum moec_status status = moec_json_out_text(root, &text, err);
    if (status == MOEC_OK)
        status = write_text(folder, name, text, err);
    free(text);
    moec_json_out_free(root);
    return status;
}

static enum moec_status write_index(const struct writing *w, const char *folder, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object(), *metadata = moec_json_out_object(),
                         *map = moec_json_out_object();
    moec_json_out_u64(metadata, "total_size", w->total_bytes);
    moec_json_out_node(root, "metadata", metadata);
    for (size_t i = 0; i < w->n_item; i++) {
        char name[64];
        shard_name(w, w->items[i].shard, name);
        moec_json_out_string(map, w->items[i].name, name);
    }
    moec_json_out_node(root, "weight_map", map);
    return write_json(folder, "model.safetensors.index.json", root, err);
}

/* An end-of-text token that the tokenizer treats as special; transformers would add another one to it. */
static bool find_eos(const struct moec_bundle *bundle, uint32_t *id)
{
    const struct moec_tokenizer_model *tokenizer = bundle->tokenizer;
    for (uint32_t i = 0; i < tokenizer->n_added; i++)
        if (bundle->config.ids.n_eos > 0 && tokenizer->added[i].id == bundle->config.ids.eos[0] &&
            (tokenizer->added[i].flags & MOEC_ADDED_SPECIAL)) {
            *id = tokenizer->added[i].id;
            return true;
        }
    return false;
}

/* Whether a text is a special token of the tokenizer: transformers would add any other to it. */
static bool is_special(const struct moec_tokenizer_model *tokenizer, const struct moec_chat_text *text)
{
    for (uint32_t i = 0; i < tokenizer->n_added; i++) {
        uint32_t length = 0;
        const char *token = moec_tokenizer_model_text(tokenizer, tokenizer->added[i].id, &length);
        if ((tokenizer->added[i].flags & MOEC_ADDED_SPECIAL) && length == text->n_bytes &&
            memcmp(token, text->bytes, length) == 0)
            return true;
    }
    return false;
}

/* The special tokens that templates name, and the templates where there are two; one alone has a file of its
 * own. */
static void put_chat(const struct moec_bundle *bundle, const struct moec_chat_source *chat, bool has_eos,
                     struct moec_json_out *root)
{
    const struct moec_chat_text *plain = moec_chat_source_find(chat, MOEC_CHAT_TEMPLATE),
                                *tools = moec_chat_source_find(chat, MOEC_CHAT_TEMPLATE_TOOLS);
    for (uint32_t i = 0; i < chat->n; i++) {
        const struct moec_chat_text *text = &chat->texts[i];
        const bool is_eos = strcmp(text->name, "eos_token") == 0;
        if (text != plain && text != tools && !(is_eos && has_eos) && is_special(bundle->tokenizer, text))
            moec_json_out_string_n(root, text->name, text->bytes, text->n_bytes);
    }
    if (tools == NULL)
        return;
    struct moec_json_out *list = moec_json_out_array();
    const struct {
        const char *name;
        const struct moec_chat_text *text;
    } both[] = {{"default", plain}, {"tool_use", tools}};
    for (size_t i = 0; i < 2; i++) {
        if (both[i].text == NULL)
            continue;
        struct moec_json_out *node = moec_json_out_object();
        moec_json_out_string(node, "name", both[i].name);
        moec_json_out_string_n(node, "template", both[i].text->bytes, both[i].text->n_bytes);
        moec_json_out_node(list, NULL, node);
    }
    moec_json_out_node(root, "chat_template", list);
}

static enum moec_status write_japanese(const struct moec_bundle *bundle, const char *folder,
                                       struct moec_json_out *config, struct moec_error *err)
{
    char *vocab = NULL, *emoji = NULL;
    MOEC_TRY(moec_japanese_vocab_write(bundle->tokenizer, &vocab, &emoji, config, err));
    enum moec_status status = write_text(folder, "vocab.txt", vocab, err);
    if (status == MOEC_OK)
        status = write_text(folder, "emoji.json", emoji, err);
    free(vocab);
    free(emoji);
    return status;
}

/* The vocabulary, and what it adds to tokenizer_config.json. */
static enum moec_status write_vocabulary(const struct moec_bundle *bundle, const char *folder,
                                         struct moec_json_out *config, struct moec_error *err)
{
    char *json = NULL;
    size_t n_bytes = 0;
    if ((bundle->tokenizer->flags & MOEC_TOKENIZER_JAPANESE) != 0)
        return write_japanese(bundle, folder, config, err);
    moec_json_out_string(config, "tokenizer_class", "PreTrainedTokenizerFast");
    MOEC_TRY(moec_tokenizer_json_write(bundle->tokenizer, bundle->file.path, &json, &n_bytes, err));
    const enum moec_status status = write_text(folder, "tokenizer.json", json, err);
    free(json);
    return status;
}

static enum moec_status write_tokenizer(const struct moec_bundle *bundle, const char *folder,
                                        const struct moec_chat_source *chat, struct moec_error *err)
{
    uint32_t eos = 0, length = 0;
    if (bundle->tokenizer == NULL)
        return MOEC_OK;
    struct moec_json_out *root = moec_json_out_object();
    const enum moec_status status = write_vocabulary(bundle, folder, root, err);
    if (status != MOEC_OK) {
        moec_json_out_free(root);
        return status;
    }
    if (bundle->config.n_position < MOEC_MAX_POSITIONS)
        moec_json_out_u64(root, "model_max_length", bundle->config.n_position);
    moec_json_out_bool(root, "clean_up_tokenization_spaces", false);
    const bool has_eos = find_eos(bundle, &eos);
    put_chat(bundle, chat, has_eos, root);
    if (has_eos) {
        const char *text = moec_tokenizer_model_text(bundle->tokenizer, eos, &length);
        moec_json_out_string_n(root, "eos_token", text, length);
    }
    return write_json(folder, "tokenizer_config.json", root, err);
}

static enum moec_status write_folder(struct writing *w, const char *folder, struct moec_error *err)
{
    struct moec_family_texts texts = {0};
    struct moec_chat_source chat = {0};
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_bundle_load_chat(w->bundle, &chat, err));
    MOEC_TRY_OUT(moec_family_write_config(&w->bundle->config, &w->bundle->generation, "float32",
                                          w->bundle->file.path, &texts, err));
    MOEC_TRY_OUT(write_text(folder, "config.json", texts.config, err));
    MOEC_TRY_OUT(write_text(folder, "generation_config.json", texts.generation, err));
    MOEC_TRY_OUT(write_tokenizer(w->bundle, folder, &chat, err));
    const struct moec_chat_text *template = moec_chat_source_find(&chat, MOEC_CHAT_TEMPLATE);
    if (template != NULL && moec_chat_source_find(&chat, MOEC_CHAT_TEMPLATE_TOOLS) == NULL)
        MOEC_TRY_OUT(write_text(folder, "chat_template.jinja", template->bytes, err));
    if (w->n_shard > 1)
        MOEC_TRY_OUT(write_index(w, folder, err));
    size_t next = 0;
    for (uint32_t shard = 0; shard < w->n_shard; shard++)
        MOEC_TRY_OUT(write_shard(w, folder, &next, shard, err));
out:
    moec_chat_source_release(&chat);
    free(texts.config);
    free(texts.generation);
    return status;
}

enum moec_status moec_checkpoint_write(const struct moec_bundle *bundle,
                                       const struct moec_checkpoint_write_options *options,
                                       const char *folder, struct moec_checkpoint_written *written,
                                       struct moec_error *err)
{
    struct writing w = {.bundle = bundle, .options = options};
    struct moec_output_folder output = {.fd = -1};
    enum moec_status status = MOEC_OK;
    if (options->copy >= bundle->n_copy)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle '%s' has no precision copy %" PRIu32 ", expected a number below "
                         "%" PRIu32,
                         bundle->file.path, options->copy, bundle->n_copy);
    w.family = moec_family_find(bundle->config.family);
    if (w.family == NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the bundle '%s' has a model of family '%s', which this version of moec does not know, so "
            "moec cannot name the tensors",
            bundle->file.path, bundle->config.family);
    w.expert_dtype = choose_expert_dtype(bundle, options->copy);
    MOEC_TRY_OUT(moec_output_folder_open(&output, folder, err));
    MOEC_TRY_OUT(moec_bundle_load_dense(bundle, &w.dense, err));
    MOEC_TRY_OUT(list_items(&w, err));
    MOEC_TRY_OUT(allocate_scratch(&w, err));
    MOEC_TRY_OUT(write_folder(&w, output.temporary, err));
    MOEC_TRY_OUT(moec_output_folder_commit(&output, err));
    *written = (struct moec_checkpoint_written){.weight_bytes = w.total_bytes,
                                                .n_tensor = (uint32_t)w.n_item,
                                                .n_shard = w.n_shard,
                                                .expert_dtype = w.expert_dtype};
out:
    moec_output_folder_abort(&output);
    moec_dense_release(&w.dense);
    free(w.items);
    free(w.decoded);
    free(w.transposed);
    free(w.shared);
    free(w.encoded);
    free(w.record);
    return status;
}
