/* Reading takes one of three ways. Packed floats go straight to their destination; rows in whole blocks are
 * read one by one. For anything else the first call reads the span of the whole matrix, and weights are
 * gathered from it. Factors are applied by the weight's place in the stored tensor, not in the view. Floats
 * are checked before conversion and other codings after it, so no NaN or infinity passes. */
#include "formats/checkpoint/tensor_view.h"

#include "formats/base/elementary.h"
#include "formats/base/memory.h"
#include "formats/model/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- making views ---- */

/* A vector that is one block of a longer one. */
static bool is_slice(struct moec_tensor_layout layout, uint32_t rows, uint32_t columns)
{
    return rows == 1 && layout.block_rows > 1 && layout.block_rows == columns;
}

/* Extents of a tensor of this layout. A vector stands for a matrix of one row, and of one column. */
static uint32_t wanted_shape(struct moec_tensor_layout layout, uint32_t rows, uint32_t columns,
                             uint32_t n_expert, bool is_vector, uint64_t shape[static 3])
{
    const uint32_t n_part = layout.n_part > 0 ? layout.n_part : 1;
    const uint64_t outputs = moec_tensor_layout_outputs(layout, rows);
    uint32_t n = 0;
    if (layout.is_convolution) {
        shape[0] = rows;
        shape[1] = 1;
        shape[2] = columns;
        return 3;
    }
    if (is_slice(layout, rows, columns)) {
        shape[0] = layout.block_step;
        return 1;
    }
    if (layout.is_stacked)
        shape[n++] = n_expert;
    if (layout.is_row_fused) {
        shape[n++] = rows;
        shape[n++] = (uint64_t)columns * n_part;
        return n;
    }
    if (is_vector) {
        shape[n++] = columns;
        return n;
    }
    shape[n++] = layout.is_transposed ? columns : outputs;
    shape[n++] = layout.is_transposed ? outputs : columns;
    return n;
}

/* The whole tensor must lie within its bytes in whole blocks. */
static enum moec_status check_bytes(const struct moec_tensor *tensor, uint64_t line, const char *where,
                                    struct moec_error *err)
{
    const struct moec_tensor_coding *coding = tensor->coding;
    uint64_t blocks = line / coding->block_weights, needed = 0;
    bool overflow = false;
    if (line % coding->block_weights != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has %" PRIu64 " weights in its last dimension, expected a multiple of %" PRIu32
                         ", the block size of %s",
                         where, line, coding->block_weights, tensor->dtype_name);
    for (uint32_t i = 0; i + 1 < tensor->n_dims; i++)
        overflow |= __builtin_mul_overflow(blocks, tensor->shape[i], &blocks);
    overflow |= __builtin_mul_overflow(blocks, (uint64_t)coding->block_bytes, &needed);
    if (overflow || needed > tensor->n_bytes)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s has %" PRIu64 " bytes, fewer than its shape needs", where,
                         tensor->n_bytes);
    return MOEC_OK;
}

/* First weight and steps of a part, in a tensor that is not stacked. */
static void place_weights(struct moec_tensor_layout layout, uint32_t n_part, struct moec_tensor_view *view)
{
    const uint64_t turns = layout.is_interleaved ? n_part : 1;
    if (is_slice(layout, view->rows, view->columns)) {
        view->step.first = layout.block_first;
        view->step.row = view->tensor.line;
        view->step.column = 1;
        return;
    }
    if (layout.is_row_fused) {
        view->step.first = (uint64_t)layout.part * (layout.is_interleaved ? 1 : view->columns);
        view->step.row = view->tensor.line;
        view->step.column = turns;
        return;
    }
    const uint64_t output_step = layout.is_transposed ? 1 : view->columns;
    const uint64_t part = layout.block_rows > 0
                              ? layout.block_first
                              : (uint64_t)layout.part * (layout.is_interleaved ? 1 : view->rows);
    view->step.first = part * output_step;
    view->step.row = output_step * turns;
    view->step.column = layout.is_transposed ? moec_tensor_layout_outputs(layout, view->rows) : 1;
}

/* The same weights in one dimension, or the last dimension and all others in one. How many they are is
 * compared with the tensor's bytes afterwards. */
static struct moec_tensor flatten(const struct moec_tensor *tensor, bool is_vector)
{
    struct moec_tensor flat = *tensor;
    const uint32_t n_joined = is_vector || tensor->n_dims == 0 ? tensor->n_dims : tensor->n_dims - 1;
    flat.n_dims = is_vector ? 1 : 2;
    flat.shape[0] = 1;
    for (uint32_t i = 0; i < n_joined; i++)
        flat.shape[0] *= tensor->shape[i];
    if (!is_vector)
        flat.shape[1] = tensor->n_dims > 0 ? tensor->shape[tensor->n_dims - 1] : 1;
    return flat;
}

enum moec_status moec_tensor_view_make(const struct moec_tensor *tensor, struct moec_tensor_layout layout,
                                       struct moec_tensor_wanted wanted, const char *where,
                                       struct moec_tensor_view *view, struct moec_error *err)
{
    const uint32_t rows = wanted.rows, columns = wanted.columns, n_expert = wanted.n_expert;
    char found_text[MOEC_TENSOR_SHAPE_BYTES], wanted_text[MOEC_TENSOR_SHAPE_BYTES];
    uint64_t shape[3];
    const uint32_t n_part = layout.n_part > 0 ? layout.n_part : 1;
    const bool may_be_vector = rows == 1 && n_part == 1 && layout.block_rows == 0;
    struct moec_tensor flat;
    if (layout.is_flat) {
        flat = flatten(tensor, rows == 1);
        tensor = &flat;
    }
    if (tensor->coding == NULL || tensor->coding->is_integer != layout.is_integer)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s at offset %" PRIu64 " has dtype %s, expected %s",
                         where, tensor->offset, tensor->dtype_name,
                         layout.is_integer ? "I64 or I32" : "BF16, F16 or F32");
    const bool is_vector = may_be_vector && tensor->n_dims == (layout.is_stacked ? 2 : 1);
    uint32_t n_dims = wanted_shape(layout, rows, columns, n_expert, is_vector, shape);
    if (tensor->n_dims != n_dims || memcmp(tensor->shape, shape, n_dims * sizeof *shape) != 0) {
        n_dims = wanted_shape(layout, rows, columns, n_expert, may_be_vector, shape);
        return moec_fail(err, MOEC_ERR_FORMAT, "%s at offset %" PRIu64 " has shape %s, expected %s", where,
                         tensor->offset, moec_tensor_shape_text(tensor->shape, tensor->n_dims, found_text),
                         moec_tensor_shape_text(shape, n_dims, wanted_text));
    }
    const uint64_t line = tensor->shape[tensor->n_dims - 1];
    MOEC_TRY(check_bytes(tensor, line, where, err));
    const bool has_blocks = layout.block_rows > 0 && layout.block_rows < rows;
    *view = (struct moec_tensor_view){
        .tensor = {.coding = tensor->coding,
                   .offset = tensor->offset,
                   .line = line,
                   .file = tensor->file,
                   .scales = tensor->scales},
        .rows = rows,
        .columns = columns,
        .blocks = {.rows = has_blocks ? layout.block_rows : 0, .step = has_blocks ? layout.block_step : 0},
        .change = {.adds_one = layout.adds_one, .takes_log = layout.takes_log},
        .tiles = layout.tiles};
    place_weights(layout, n_part, view);
    if (layout.is_stacked)
        view->step.first += wanted.expert * (uint64_t)rows * n_part * columns;
    return MOEC_OK;
}

struct moec_tensor_view moec_tensor_view_transpose(const struct moec_tensor_view *view)
{
    struct moec_tensor_view made = *view;
    made.rows = view->columns;
    made.columns = view->rows;
    made.step.row = view->step.column;
    made.step.column = view->step.row;
    return made;
}

struct moec_tensor_view moec_tensor_view_split_pairs(const struct moec_tensor_view *view, uint32_t head,
                                                     uint32_t first, uint32_t dims)
{
    struct moec_tensor_view made = *view;
    made.pairs.head = head;
    made.pairs.first = first;
    made.pairs.dims = dims;
    return made;
}

/* Where a number among heads that take turns is stored. */
static size_t tile_of(const struct moec_tensor_tiles *tiles, size_t number)
{
    if (number < tiles->first)
        return number;
    const size_t head = (number - tiles->first) / tiles->head,
                 in_head = (number - tiles->first) % tiles->head;
    const size_t stored = head % tiles->n_each * tiles->n_group + head / tiles->n_each;
    return tiles->first + stored * tiles->head + in_head;
}

/* Where an output is stored. */
static size_t stored_output(const struct moec_tensor_view *view, size_t output)
{
    if (view->tiles.head > 0 && !view->tiles.are_inputs)
        return tile_of(&view->tiles, output);
    if (view->pairs.dims == 0)
        return output;
    const size_t in_head = output % view->pairs.head, half = view->pairs.dims / 2;
    if (in_head < view->pairs.first || in_head >= (size_t)view->pairs.first + view->pairs.dims)
        return output;
    const size_t i = in_head - view->pairs.first;
    return output - i + 2 * (i % half) + i / half;
}

static size_t stored_row(const struct moec_tensor_view *view, size_t row)
{
    const size_t output = view->rows == 1 ? row : stored_output(view, row);
    if (view->blocks.rows == 0)
        return output;
    return output / view->blocks.rows * view->blocks.step + output % view->blocks.rows;
}

static size_t stored_column(const struct moec_tensor_view *view, size_t column)
{
    if (view->tiles.are_inputs)
        return tile_of(&view->tiles, column);
    return view->rows == 1 ? stored_output(view, column) : column;
}

/* Outputs or inputs stand in another order. */
static bool is_reordered(const struct moec_tensor_view *view)
{
    return view->pairs.dims > 0 || view->tiles.head > 0;
}

static bool is_float(const struct moec_tensor_view *view)
{
    return view->tensor.coding->dtype != MOEC_DTYPE_COUNT;
}

/* Of weights as they are decoded: that of stored floats, else F32. */
static enum moec_dtype stored_dtype(const struct moec_tensor_view *view)
{
    return is_float(view) ? view->tensor.coding->dtype : MOEC_DTYPE_F32;
}

enum moec_dtype moec_tensor_view_dtype(const struct moec_tensor_view *view)
{
    return moec_tensor_view_computes(view) ? MOEC_DTYPE_F32 : stored_dtype(view);
}

static uint64_t stored_bytes(const struct moec_tensor_coding *coding, uint64_t n_weights)
{
    return n_weights / coding->block_weights * coding->block_bytes;
}

uint64_t moec_tensor_view_bytes(const struct moec_tensor_view *view)
{
    return stored_bytes(view->tensor.coding, (uint64_t)view->rows * view->columns);
}

bool moec_tensor_view_has_rows(const struct moec_tensor_view *view)
{
    const uint32_t block = view->tensor.coding->block_weights;
    if (view->tiles.are_inputs || (view->rows == 1 && is_reordered(view)))
        return false;
    return (view->step.column == 1 || view->columns == 1) && view->step.first % block == 0 &&
           view->columns % block == 0 && (view->step.row % block == 0 || view->rows == 1);
}

/* ---- reading ---- */

/* Rows stand one behind the other. */
static bool is_packed(const struct moec_tensor_view *view)
{
    return moec_tensor_view_has_rows(view) && !is_reordered(view) && view->blocks.rows == 0 &&
           (view->step.row == view->columns || view->rows == 1);
}

struct moec_tensor_span moec_tensor_view_span(const struct moec_tensor_view *view)
{
    const uint32_t block = view->tensor.coding->block_weights;
    const uint64_t last_row = view->blocks.rows > 0 ? stored_row(view, view->rows - 1) : view->rows - 1;
    const uint64_t last =
        view->step.first + last_row * view->step.row + (view->columns - 1) * view->step.column;
    return (struct moec_tensor_span){view->step.first - view->step.first % block,
                                     last - last % block + block};
}

/* Factors of the rows of the tensor that hold the matrix: first .. first + count - 1. */
struct factors {
    uint64_t first, count;
};

static struct factors factors_of(const struct moec_tensor_view *view)
{
    const struct moec_tensor_scales *scales = &view->tensor.scales;
    const struct moec_tensor_span span = moec_tensor_view_span(view);
    if (scales->coding == NULL)
        return (struct factors){0, 0};
    const uint64_t first_row = span.from / view->tensor.line, last_row = (span.end - 1) / view->tensor.line;
    const uint64_t first = first_row / scales->tensor_rows * scales->scale_rows +
                           first_row % scales->tensor_rows / scales->block_rows;
    const uint64_t last = last_row / scales->tensor_rows * scales->scale_rows +
                          last_row % scales->tensor_rows / scales->block_rows;
    return (struct factors){first * scales->scale_line, (last - first + 1) * scales->scale_line};
}

struct moec_tensor_span moec_tensor_view_factors(const struct moec_tensor_view *view)
{
    const struct factors factors = factors_of(view);
    return (struct moec_tensor_span){factors.first, factors.first + factors.count};
}

/* Factors as F32, then their bytes; weights begin at a multiple of 16 behind them. */
static size_t factor_bytes(const struct moec_tensor_view *view)
{
    const uint64_t count = factors_of(view).count;
    const uint64_t stored = count == 0 ? 0 : stored_bytes(view->tensor.scales.coding, count);
    return (size_t)((count * sizeof(float) + stored + 15) / 16 * 16);
}

static uint8_t *weights_scratch(const struct moec_tensor_reader *reader)
{
    return (uint8_t *)reader->scratch + factor_bytes(&reader->view);
}

/* Factors, then: of rows their bytes; else decoded floats of a span, then its bytes; of floats the bytes
 * alone. */
uint64_t moec_tensor_scratch_bytes(const struct moec_tensor_view *view)
{
    const uint64_t factors = factor_bytes(view);
    if (moec_tensor_view_has_rows(view))
        return factors + MOEC_TENSOR_ROWS * stored_bytes(view->tensor.coding, view->columns);
    const struct moec_tensor_span span = moec_tensor_view_span(view);
    const uint64_t n = span.end - span.from;
    return factors + (is_float(view) ? 0 : n * sizeof(float)) + stored_bytes(view->tensor.coding, n);
}

static enum moec_status fail_number(const struct moec_tensor_reader *reader, uint64_t weight, float value,
                                    struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    const uint64_t offset = view->tensor.offset + stored_bytes(view->tensor.coding, weight);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "tensor '%s' in '%s' has %s at [%" PRIu64 ", %" PRIu64 "] (offset %" PRIu64
                     "), expected finite numbers",
                     reader->name, reader->source->file(reader->source, view->tensor.file)->path,
                     isnan(value) ? "NaN" : "infinity", weight / view->tensor.line,
                     weight % view->tensor.line, offset);
}

static enum moec_status fail_float(const struct moec_tensor_reader *reader, uint64_t from,
                                   const uint8_t *stored, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    const struct moec_codec codec = {.dtype = (uint8_t)view->tensor.coding->dtype};
    const size_t item = view->tensor.coding->block_bytes;
    size_t bad = 0;
    while (moec_codec_row_is_finite(codec, stored + bad * item, 1))
        bad++;
    float value = 0;
    moec_codec_decode_row(codec, stored + bad * item, 1, &value);
    return fail_number(reader, from + bad, value, err);
}

#define PIECE_BYTES                                                                                          \
    ((uint64_t)256 << 10) /* of floats: they are still in a near cache when they are looked at */

/* Reads n stored weights, whole blocks, and refuses floats that are NaN or infinite. */
static enum moec_status read_weights(const struct moec_tensor_reader *reader, uint64_t from, uint64_t n,
                                     uint8_t *stored, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    const struct moec_codec codec = {.dtype = (uint8_t)view->tensor.coding->dtype};
    const uint64_t most = is_float(view) ? PIECE_BYTES / view->tensor.coding->block_bytes : n;
    for (uint64_t done = 0, count; done < n;
         done += count, stored += stored_bytes(view->tensor.coding, count)) {
        count = n - done < most ? n - done : most;
        const enum moec_status status =
            reader->source->read(reader->source, view->tensor.file,
                                 view->tensor.offset + stored_bytes(view->tensor.coding, from + done), stored,
                                 (size_t)stored_bytes(view->tensor.coding, count), err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "tensor '%s'", reader->name);
            return status;
        }
        if (is_float(view) && !moec_codec_row_is_finite(codec, stored, (size_t)count))
            return fail_float(reader, from + done, stored, err);
    }
    return MOEC_OK;
}

/* Reads the factors once for each reader. */
static enum moec_status read_factors(struct moec_tensor_reader *reader, struct moec_error *err)
{
    const struct moec_tensor_scales *scales = &reader->view.tensor.scales;
    const struct factors factors = factors_of(&reader->view);
    float *values = reader->scratch;
    uint8_t *stored = (uint8_t *)(values + factors.count);
    if (scales->coding == NULL || reader->has_scales)
        return MOEC_OK;
    MOEC_TRY(reader->source->read(reader->source, scales->file,
                                  scales->offset + stored_bytes(scales->coding, factors.first), stored,
                                  (size_t)stored_bytes(scales->coding, factors.count), err));
    scales->coding->decode(stored, (size_t)factors.count, values);
    reader->has_scales = true;
    return MOEC_OK;
}

/* Multiplies weights `from` .. from + n - 1 of the tensor by their factors. */
static void apply_factors(const struct moec_tensor_reader *reader, uint64_t from, size_t n, float *weights)
{
    const struct moec_tensor_view *view = &reader->view;
    const struct moec_tensor_scales *scales = &view->tensor.scales;
    const float *values = reader->scratch;
    const uint64_t first = factors_of(view).first;
    for (size_t i = 0; i < n;) {
        const uint64_t row = (from + i) / view->tensor.line, column = (from + i) % view->tensor.line;
        const uint64_t scale_row =
            row / scales->tensor_rows * scales->scale_rows + row % scales->tensor_rows / scales->block_rows;
        const float factor = values[scale_row * scales->scale_line + column / scales->block_columns - first];
        uint64_t end = (column / scales->block_columns + 1) * scales->block_columns;
        end = end < view->tensor.line ? end : view->tensor.line;
        for (uint64_t c = column; c < end && i < n; c++, i++)
            weights[i] *= factor;
    }
}

/* Decodes weights that were read; what is no float may still decode to what is no number. */
static enum moec_status decode_weights(const struct moec_tensor_reader *reader, uint64_t from,
                                       const uint8_t *stored, size_t n, float *weights,
                                       struct moec_error *err)
{
    reader->view.tensor.coding->decode(stored, n, weights);
    if (reader->view.tensor.scales.coding != NULL)
        apply_factors(reader, from, n, weights);
    for (size_t i = 0; !is_float(&reader->view) && i < n; i++)
        if (!isfinite(weights[i]))
            return fail_number(reader, from + i, weights[i], err);
    return MOEC_OK;
}

/* Stored rows of a view that has rows, one behind the other. */
static enum moec_status read_run(const struct moec_tensor_reader *reader, size_t first, size_t count,
                                 uint8_t *stored, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    const size_t row_bytes = (size_t)stored_bytes(view->tensor.coding, view->columns);
    if (is_packed(view))
        return read_weights(reader, view->step.first + first * view->step.row,
                            (uint64_t)count * view->columns, stored, err);
    for (size_t i = 0; i < count; i++)
        MOEC_TRY(read_weights(reader, view->step.first + stored_row(view, first + i) * view->step.row,
                              view->columns, stored + i * row_bytes, err));
    return MOEC_OK;
}

/* Rows from the span whose weight (0, 0) is at `base`, one weight at a time. */
static void gather_each(const struct moec_tensor_view *view, const uint8_t *base, size_t first, size_t count,
                        float *weights)
{
    for (size_t i = 0; i < count; i++)
        for (size_t c = 0; c < view->columns; c++) {
            const struct moec_float_lines one = {.dtype = stored_dtype(view),
                                                 .data = base,
                                                 .first =
                                                     stored_row(view, first + i) * (size_t)view->step.row +
                                                     stored_column(view, c) * (size_t)view->step.column,
                                                 .line = 1};
            moec_gather_to_f32(&one, 1, 1, weights + i * view->columns + c);
        }
}

/* Rows that are gathered from the span of the whole matrix, which the first call reads. */
static enum moec_status gather_rows(struct moec_tensor_reader *reader, size_t first, size_t count,
                                    float *weights, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    const struct moec_tensor_span span = moec_tensor_view_span(view);
    const size_t n = (size_t)(span.end - span.from), skipped = (size_t)(view->step.first - span.from);
    const size_t item = is_float(view) ? view->tensor.coding->block_bytes : sizeof(float);
    uint8_t *held = weights_scratch(reader), *stored = held + (is_float(view) ? 0 : n * sizeof(float));
    if (!reader->has_span) {
        MOEC_TRY(read_factors(reader, err));
        MOEC_TRY(read_weights(reader, span.from, n, stored, err));
        if (!is_float(view))
            MOEC_TRY(decode_weights(reader, span.from, stored, n, (float *)(void *)held, err));
        reader->has_span = true;
    }
    const uint8_t *base = held + skipped * item;
    const struct moec_float_lines lines = {.dtype = stored_dtype(view),
                                           .data = base,
                                           .first = first * (size_t)view->step.row,
                                           .step = (size_t)view->step.row,
                                           .line = (size_t)view->step.column};
    if (!is_reordered(view) && view->blocks.rows == 0)
        moec_gather_to_f32(&lines, view->columns, count, weights);
    else
        gather_each(view, base, first, count, weights);
    return MOEC_OK;
}

static enum moec_status read_rows(struct moec_tensor_reader *reader, size_t first, size_t count,
                                  float *weights, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    if (!moec_tensor_view_has_rows(view))
        return gather_rows(reader, first, count, weights, err);
    uint8_t *stored = weights_scratch(reader);
    MOEC_TRY(read_factors(reader, err));
    MOEC_TRY(read_run(reader, first, count, stored, err));
    if (is_packed(view))
        return decode_weights(reader, view->step.first + first * view->step.row, stored,
                              count * view->columns, weights, err);
    const size_t row_bytes = (size_t)stored_bytes(view->tensor.coding, view->columns);
    for (size_t i = 0; i < count; i++)
        MOEC_TRY(decode_weights(reader, view->step.first + stored_row(view, first + i) * view->step.row,
                                stored + i * row_bytes, view->columns, weights + i * view->columns, err));
    return MOEC_OK;
}

enum moec_status moec_tensor_read_rows(struct moec_tensor_reader *reader, size_t first, size_t count,
                                       float *weights, struct moec_error *err)
{
    const size_t n = count * reader->view.columns;
    MOEC_TRY(read_rows(reader, first, count, weights, err));
    for (size_t i = 0; reader->view.change.adds_one && i < n; i++)
        weights[i] += 1.0f;
    for (size_t i = 0; reader->view.change.takes_log && i < n; i++) {
        if (!(weights[i] < 0))
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "tensor '%s' has the number %g, expected only numbers below 0: the tensor stores "
                "-exp(weight)",
                reader->name, (double)weights[i]);
        weights[i] = (float)moec_log_f64(-(double)weights[i]);
    }
    return MOEC_OK;
}

enum moec_status moec_tensor_read_stored(struct moec_tensor_reader *reader, size_t first, size_t count,
                                         uint8_t *rows, size_t stride_bytes, struct moec_error *err)
{
    const struct moec_tensor_view *view = &reader->view;
    const size_t row_bytes = (size_t)stored_bytes(view->tensor.coding, view->columns);
    uint8_t *stored = weights_scratch(reader);
    if (stride_bytes == row_bytes)
        return read_run(reader, first, count, rows, err);
    for (size_t done = 0; done < count; done += MOEC_TENSOR_ROWS) {
        const size_t n = count - done < MOEC_TENSOR_ROWS ? count - done : MOEC_TENSOR_ROWS;
        MOEC_TRY(read_run(reader, first + done, n, stored, err));
        for (size_t i = 0; i < n; i++)
            memcpy(rows + (done + i) * stride_bytes, stored + i * row_bytes, row_bytes);
    }
    return MOEC_OK;
}

/* Floats that are packed are read into the end of `weights` and converted from the front: a piece is copied
 * away before its place is overwritten. */
static enum moec_status read_packed_floats(const struct moec_tensor_reader *reader, float *weights,
                                           struct moec_error *err)
{
    enum { PIECE = 2048 };
    uint8_t piece[4 * PIECE];
    const struct moec_tensor_view *view = &reader->view;
    const size_t item = view->tensor.coding->block_bytes, n = (size_t)view->rows * view->columns;
    uint8_t *stored = (uint8_t *)weights + n * (sizeof *weights - item);
    MOEC_TRY(read_run(reader, 0, view->rows, stored, err));
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t count = n - i < PIECE ? n - i : PIECE;
        memcpy(piece, stored + i * item, count * item);
        view->tensor.coding->decode(piece, count, weights + i);
    }
    return MOEC_OK;
}

enum moec_status moec_tensor_read_matrix(const struct moec_tensor_reader *reader, float *weights,
                                         struct moec_error *err)
{
    struct moec_tensor_reader own = *reader;
    const size_t rows = own.view.rows;
    enum moec_status status = MOEC_OK;
    if (is_packed(&own.view) && is_float(&own.view) && !moec_tensor_view_computes(&own.view))
        return read_packed_floats(reader, weights, err);
    own.has_span = own.has_scales = false;
    MOEC_TRY(moec_alloc(&own.scratch, moec_tensor_scratch_bytes(&own.view), 1, "a tensor", err));
    for (size_t first = 0; first < rows; first += MOEC_TENSOR_ROWS) {
        const size_t count = rows - first < MOEC_TENSOR_ROWS ? rows - first : MOEC_TENSOR_ROWS;
        MOEC_TRY_OUT(moec_tensor_read_rows(&own, first, count, weights + first * own.view.columns, err));
    }
out:
    free(own.scratch);
    return status;
}
