/* Reading the weights of a checkpoint: dense ones as the engine wants them, experts as matrices and records.
 */
#include "formats/checkpoint/checkpoint_internal.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>

#define ROWS      MOEC_TENSOR_ROWS /* that are converted at a time */
#define EXACT_F16 2048u            /* numbers below are exact in F16 */

/* ---- encoding rows ---- */

static void name_tensor(const struct moec_checkpoint *ck, const struct moec_checkpoint_tensor *tensor,
                        char name[static MOEC_TENSOR_NAME_BYTES])
{
    (void)moec_checkpoint_tensor_name(ck, tensor->pattern, tensor->layer, tensor->expert, name);
}

/* Encodes a block of weights, which are rows first .. first + count - 1 of the reader's view. */
static enum moec_status encode_block(const struct moec_tensor_reader *reader,
                                     const struct moec_encoded_rows *out, const float *weights, size_t first,
                                     size_t count, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    size_t failed = 0;
    const enum moec_status status = moec_rows_encode(out, weights, count, &failed, err);
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "tensor '%s' in '%s', offset %" PRIu64 ", row %zu", reader->name,
                                reader->source->file(reader->source, view->tensor.file)->path,
                                view->tensor.offset, first + failed);
    return status;
}

/* Rows of a matrix from .. end - 1. */
struct row_range {
    size_t from, end;
};

/* Encodes rows of a tensor's view one after the other. Scratch: see scratch_bytes. */
static enum moec_status encode_rows(const struct moec_checkpoint *ck,
                                    const struct moec_checkpoint_tensor *tensor, struct row_range range,
                                    struct moec_encoded_rows out, void *scratch, struct moec_error *err)
{
    const struct moec_tensor_view *view = tensor->view;
    char name[MOEC_TENSOR_NAME_BYTES];
    float *weights = scratch;
    struct moec_tensor_reader reader = {
        .source = ck->source, .view = *view, .name = name, .scratch = weights + (size_t)ROWS * view->columns};
    name_tensor(ck, tensor, name);
    if (moec_tensor_view_has_rows(view) && !moec_tensor_view_computes(view) &&
        out.codec.dtype == view->tensor.coding->dtype)
        return moec_tensor_read_stored(&reader, range.from, range.end - range.from, out.rows,
                                       out.stride_bytes, err);
    for (size_t first = range.from; first < range.end; first += ROWS) {
        const size_t count = range.end - first < ROWS ? range.end - first : ROWS;
        MOEC_TRY(moec_tensor_read_rows(&reader, first, count, weights, err));
        MOEC_TRY(encode_block(&reader, &out, weights, first, count, err));
        out.rows += count * out.stride_bytes;
    }
    return MOEC_OK;
}

/* F32 of one block of rows, then what reading takes. */
static uint64_t scratch_bytes(const struct moec_tensor_view *view)
{
    return (uint64_t)ROWS * view->columns * sizeof(float) + moec_tensor_scratch_bytes(view);
}

/* ---- dense weights ---- */

struct dense_choice {
    const struct moec_checkpoint *ck;
    const struct moec_codec *quantised; /* NULL: every tensor in its source dtype */
    bool has_each;                      /* quantised[i] is of matrix i, else it is of all */
    uint32_t n_chosen;
};

static bool is_split(const struct moec_checkpoint *ck, uint32_t role)
{
    return role == MOEC_ROLE_KV_UP && ck->has_split_latents;
}

/* The dtype that holds a tensor's weights without loss. */
static enum moec_dtype dtype_of(const struct moec_checkpoint *ck, enum moec_role role, uint32_t layer)
{
    const enum moec_dtype dtype = moec_tensor_view_dtype(moec_checkpoint_dense_tensor(ck, role, layer).view);
    const bool differs =
        is_split(ck, role) &&
        moec_tensor_view_dtype(moec_checkpoint_dense_tensor(ck, MOEC_ROLE_V, layer).view) != dtype;
    return differs ? MOEC_DTYPE_F32 : dtype;
}

/* Asked for each tensor in the order of the table. */
static struct moec_codec choose_dense_codec(void *context, enum moec_role role, uint32_t layer)
{
    struct dense_choice *choice = context;
    const enum moec_dtype dtype = dtype_of(choice->ck, role, layer);
    const bool is_short = role == MOEC_ROLE_ROUTER_TABLE && choice->ck->config.n_expert <= EXACT_F16;
    const struct moec_codec stored = {.dtype = (uint8_t)(is_short ? MOEC_DTYPE_F16 : dtype)};
    if (choice->quantised == NULL || !moec_role_is_quantisable(role))
        return stored;
    const struct moec_codec wanted = choice->quantised[choice->has_each ? choice->n_chosen++ : 0];
    const bool is_float = moec_codec_bits(wanted) >= 16;
    return !is_float || (dtype == MOEC_DTYPE_F32 && wanted.dtype != MOEC_DTYPE_F32) ? wanted : stored;
}

struct dense_stream {
    struct moec_dense_source source; /* first: this is what others see */
    const struct moec_checkpoint *ck;
    void *scratch; /* owned; for the largest tensor */
};

/* Rows of keys and values of a latent, head by head, where these stand in two tensors. */
static enum moec_status load_latents(const struct dense_stream *stream, const struct moec_dense_entry *entry,
                                     uint32_t first_row, uint32_t n_rows, uint8_t *rows,
                                     struct moec_error *err)
{
    const struct moec_layer_kind *kind = moec_config_layer(&stream->ck->config, entry->layer);
    const uint32_t n_key = moec_layer_plain_dim(kind), n_head_rows = n_key + moec_layer_value_dim(kind);
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    for (uint32_t done = 0, n = 0; done < n_rows; done += n) {
        const uint32_t head = (first_row + done) / n_head_rows, at = (first_row + done) % n_head_rows;
        const bool is_key = at < n_key;
        const uint32_t from = is_key ? at : at - n_key;
        struct moec_checkpoint_tensor tensor =
            moec_checkpoint_dense_tensor(stream->ck, is_key ? MOEC_ROLE_K : MOEC_ROLE_V, entry->layer);
        struct moec_tensor_view view = *tensor.view;
        tensor.view = &view;
        view.step.first += (uint64_t)head * view.rows * view.columns;
        n = view.rows - from < n_rows - done ? view.rows - from : n_rows - done;
        const struct moec_encoded_rows out = {entry->codec, view.columns, rows + done * row_bytes, row_bytes};
        MOEC_TRY(encode_rows(stream->ck, &tensor, (struct row_range){from, (size_t)from + n}, out,
                             stream->scratch, err));
    }
    return MOEC_OK;
}

static enum moec_status load_rows(struct moec_dense_source *self, const struct moec_dense_entry *entry,
                                  uint32_t first_row, uint32_t n_rows, uint8_t *rows, struct moec_error *err)
{
    const struct dense_stream *stream = (const struct dense_stream *)self;
    const struct moec_checkpoint_tensor tensor =
        moec_checkpoint_dense_tensor(stream->ck, (enum moec_role)entry->role, entry->layer);
    if (is_split(stream->ck, entry->role))
        return load_latents(stream, entry, first_row, n_rows, rows, err);
    const struct moec_encoded_rows out = {entry->codec, tensor.view->columns, rows,
                                          moec_codec_row_bytes(entry->codec, entry->columns)};
    const bool is_rest = moec_role_whole((enum moec_role)entry->role) != (enum moec_role)entry->role;
    const size_t from = first_row + (is_rest ? tensor.view->rows - entry->rows : 0);
    const struct row_range range = {from, from + n_rows};
    MOEC_TRY(encode_rows(stream->ck, &tensor, range, out, stream->scratch, err));
    if (entry->role != MOEC_ROLE_ROUTER_TABLE)
        return MOEC_OK;
    return moec_dense_check_routes(entry, first_row, n_rows, rows, stream->ck->config.n_expert, err);
}

static void free_stream(struct moec_dense_source *self)
{
    struct dense_stream *stream = (struct dense_stream *)self;
    free(stream->scratch);
    free(stream);
}

enum moec_status moec_checkpoint_stream_dense(const struct moec_checkpoint *checkpoint, uint32_t dense_bits,
                                              uint32_t group, struct moec_dense *dense,
                                              struct moec_error *err)
{
    struct moec_codec codec;
    if (dense_bits != 16 && dense_bits != 8 && dense_bits != 4 && dense_bits != 3 && dense_bits != 2)
        return moec_fail(err, MOEC_ERR_USAGE, "dense weights cannot have %u bits, expected 2, 3, 4, 8 or 16",
                         dense_bits);
    MOEC_TRY(moec_codec_for_bits(dense_bits, MOEC_SCHEME_SYMMETRIC, group, MOEC_DTYPE_BF16, &codec, err));
    return moec_checkpoint_stream_dense_as(checkpoint, dense_bits == 16 ? NULL : &codec, dense, err);
}

static uint64_t entry_scratch_bytes(const struct moec_checkpoint *ck, const struct moec_dense_entry *entry)
{
    const uint64_t bytes =
        scratch_bytes(moec_checkpoint_dense_tensor(ck, (enum moec_role)entry->role, entry->layer).view);
    if (!is_split(ck, entry->role))
        return bytes;
    const uint64_t values = scratch_bytes(moec_checkpoint_dense_tensor(ck, MOEC_ROLE_V, entry->layer).view);
    return bytes > values ? bytes : values;
}

static enum moec_status stream_dense(const struct moec_checkpoint *checkpoint, struct dense_choice *choice,
                                     struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    struct dense_stream *stream = NULL;
    uint64_t needed = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_dense_create_table(&checkpoint->config, choose_dense_codec, choice, &made, err));
    for (uint32_t i = 0; i < made.n_entries; i++) {
        const struct moec_dense_entry *entry = &made.entries[i];
        const uint64_t bytes = entry_scratch_bytes(checkpoint, entry);
        needed = bytes > needed ? bytes : needed;
    }
    MOEC_TRY_OUT(moec_alloc((void **)&stream, 1, sizeof *stream, "the source of dense weights", err));
    made.source = &stream->source;
    *stream = (struct dense_stream){.source = {.load = load_rows, .free = free_stream}, .ck = checkpoint};
    MOEC_TRY_OUT(moec_alloc_aligned(&stream->scratch, needed, 1, "buffer for dense weights", err));
    *dense = made;
    made = (struct moec_dense){0};
out:
    moec_dense_release(&made);
    return status;
}

enum moec_status moec_checkpoint_stream_dense_as(const struct moec_checkpoint *checkpoint,
                                                 const struct moec_codec *codec, struct moec_dense *dense,
                                                 struct moec_error *err)
{
    struct dense_choice choice = {.ck = checkpoint, .quantised = codec};
    return stream_dense(checkpoint, &choice, dense, err);
}

enum moec_status moec_checkpoint_stream_dense_each(const struct moec_checkpoint *checkpoint,
                                                   const struct moec_codec *codecs, struct moec_dense *dense,
                                                   struct moec_error *err)
{
    struct dense_choice choice = {.ck = checkpoint, .quantised = codecs, .has_each = true};
    return stream_dense(checkpoint, &choice, dense, err);
}

/* ---- experts ---- */

static enum moec_status find_expert(const struct moec_checkpoint *ck, uint32_t layer, uint32_t expert,
                                    uint32_t *ordinal, struct moec_error *err)
{
    int32_t found = moec_config_moe_ordinal(&ck->config, layer);
    if (found < 0 || expert >= ck->config.n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "the checkpoint '%s' has no expert %u in layer %u", ck->folder,
                         expert, layer);
    *ordinal = (uint32_t)found;
    return MOEC_OK;
}

enum moec_status moec_checkpoint_load_expert(const struct moec_checkpoint *checkpoint, uint32_t layer,
                                             uint32_t expert, struct moec_expert_floats out,
                                             struct moec_error *err)
{
    float *const matrices[MOEC_PROJECTION_COUNT] = {out.gate, out.up, out.down};
    char name[MOEC_TENSOR_NAME_BYTES];
    uint32_t ordinal = 0;
    MOEC_TRY(find_expert(checkpoint, layer, expert, &ordinal, err));
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        if (p == MOEC_PROJECTION_GATE && checkpoint->config.mlp.plain)
            continue;
        const struct moec_checkpoint_tensor tensor =
            moec_checkpoint_expert_tensor(checkpoint, layer, ordinal, expert, (enum moec_projection)p);
        const struct moec_tensor_reader reader = {
            .source = checkpoint->source, .view = *tensor.view, .name = name};
        name_tensor(checkpoint, &tensor, name);
        MOEC_TRY(moec_tensor_read_matrix(&reader, matrices[p], err));
    }
    return MOEC_OK;
}

/* A projection with neurons as rows, as records have it. */
static struct moec_tensor_view record_view(const struct moec_checkpoint_tensor *tensor,
                                           enum moec_projection projection)
{
    return projection == MOEC_PROJECTION_DOWN ? moec_tensor_view_transpose(tensor->view) : *tensor->view;
}

size_t moec_checkpoint_expert_scratch_bytes(const struct moec_checkpoint *checkpoint)
{
    const uint32_t layer = moec_config_moe_layer(&checkpoint->config, 0);
    uint64_t most = 0;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        if (p == MOEC_PROJECTION_GATE && checkpoint->config.mlp.plain)
            continue;
        const struct moec_checkpoint_tensor tensor =
            moec_checkpoint_expert_tensor(checkpoint, layer, 0, 0, (enum moec_projection)p);
        const struct moec_tensor_view view = record_view(&tensor, (enum moec_projection)p);
        const uint64_t bytes = scratch_bytes(&view);
        most = bytes > most ? bytes : most;
    }
    return (size_t)most;
}

enum moec_status moec_checkpoint_encode_expert(const struct moec_checkpoint *checkpoint, uint32_t layer,
                                               uint32_t expert, const struct moec_record_layout *layout,
                                               void *scratch, uint8_t *record, struct moec_error *err)
{
    uint32_t ordinal = 0;
    MOEC_TRY(find_expert(checkpoint, layer, expert, &ordinal, err));
    if (layout->n_ff != checkpoint->config.n_ff_expert || layout->n_embd != checkpoint->config.n_embd ||
        layout->n_matrix != moec_config_mlp_matrices(&checkpoint->config))
        return moec_fail(
            err, MOEC_ERR_MISMATCH,
            "the expert's record in the bundle has %u matrices of %u x %u weights, but experts of the "
            "checkpoint '%s' have %u matrices of %u x %u weights",
            layout->n_matrix, layout->n_ff, layout->n_embd, checkpoint->folder,
            moec_config_mlp_matrices(&checkpoint->config), checkpoint->config.n_ff_expert,
            checkpoint->config.n_embd);
    uint8_t *pairs = record + layout->up_bytes;
    uint8_t *const rows[MOEC_PROJECTION_COUNT] = {pairs, record,
                                                  pairs + layout->row_bytes[MOEC_PROJECTION_GATE]};
    static const enum moec_projection order[] = {MOEC_PROJECTION_UP, MOEC_PROJECTION_GATE,
                                                 MOEC_PROJECTION_DOWN};
    for (size_t i = 0; i < MOEC_PROJECTION_COUNT; i++) {
        const enum moec_projection p = order[i];
        if (p == MOEC_PROJECTION_GATE && layout->n_matrix == 2)
            continue;
        struct moec_checkpoint_tensor tensor =
            moec_checkpoint_expert_tensor(checkpoint, layer, ordinal, expert, p);
        struct moec_tensor_view view = record_view(&tensor, p);
        tensor.view = &view;
        const struct moec_encoded_rows out = {layout->codecs[p], view.columns, rows[p],
                                              p == MOEC_PROJECTION_UP ? layout->row_bytes[p]
                                                                      : layout->pair_stride_bytes};
        MOEC_TRY(encode_rows(checkpoint, &tensor, (struct row_range){0, view.rows}, out, scratch, err));
    }
    return MOEC_OK;
}
