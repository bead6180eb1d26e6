/* Binding gives matrices that point into the record, with a stride of a pair for gate and down; nothing is
 * copied. A part is bound by a layout whose n_ff is the part's, so kernels see a smaller expert. Transposing
 * goes by tiles of 16 x 16, because a column would touch one cache line for each weight. Encoding transposes
 * a few neurons of down at a time, and never holds all of it. */
#include "formats/model/record.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/mxfp4.h"

#include <string.h>

#define TILE 16 /* a tile row is one cache line of F32 */

bool moec_variant_exists(struct moec_variant variant, const struct moec_codec codecs[static MOEC_CODEC_TABLE])
{
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++)
        if (variant.codecs[p] >= MOEC_CODEC_TABLE || codecs[variant.codecs[p]].dtype == MOEC_DTYPE_F32)
            return false;
    return true;
}

uint32_t moec_variant_bits(struct moec_variant variant,
                           const struct moec_codec codecs[static MOEC_CODEC_TABLE])
{
    uint32_t widest = 0;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        const uint32_t bits = moec_codec_bits(codecs[variant.codecs[p]]);
        widest = bits > widest ? bits : widest;
    }
    return widest;
}

static struct moec_record_layout make_layout(const struct moec_config *config, struct moec_codec gate,
                                             struct moec_codec up, struct moec_codec down)
{
    struct moec_record_layout layout = {.n_matrix = (uint8_t)moec_config_mlp_matrices(config),
                                        .activation = config->mlp.activation,
                                        .n_ff = config->n_ff_expert,
                                        .n_embd = config->n_embd};
    down = moec_codec_for_down(down);
    layout.codecs[MOEC_PROJECTION_UP] = up;
    layout.codecs[MOEC_PROJECTION_DOWN] = down;
    if (layout.n_matrix == 3) {
        layout.codecs[MOEC_PROJECTION_GATE] = gate;
        layout.row_bytes[MOEC_PROJECTION_GATE] = moec_codec_row_bytes(gate, config->n_embd);
    }
    layout.row_bytes[MOEC_PROJECTION_UP] = moec_codec_row_bytes(up, config->n_embd);
    layout.row_bytes[MOEC_PROJECTION_DOWN] = moec_codec_row_bytes(down, config->n_embd);
    layout.pair_stride_bytes =
        layout.row_bytes[MOEC_PROJECTION_GATE] + layout.row_bytes[MOEC_PROJECTION_DOWN];
    layout.up_bytes = (uint64_t)layout.n_ff * layout.row_bytes[MOEC_PROJECTION_UP];
    layout.pair_bytes = (uint64_t)layout.n_ff * layout.pair_stride_bytes;
    layout.n_bytes = layout.up_bytes + layout.pair_bytes;
    return layout;
}

struct moec_record_layout moec_record_layout_make(const struct moec_config *config, struct moec_codec codec)
{
    return make_layout(config, codec, codec, codec);
}

struct moec_record_layout moec_record_layout_of(const struct moec_config *config, struct moec_variant variant,
                                                const struct moec_codec codecs[static MOEC_CODEC_TABLE])
{
    const uint8_t *numbers = variant.codecs;
    return make_layout(config, codecs[numbers[MOEC_PROJECTION_GATE]], codecs[numbers[MOEC_PROJECTION_UP]],
                       codecs[numbers[MOEC_PROJECTION_DOWN]]);
}

static struct moec_matrix bind_rows(const struct moec_record_layout *layout, enum moec_projection projection,
                                    const uint8_t *data, size_t stride_bytes)
{
    return (struct moec_matrix){.codec = layout->codecs[projection],
                                .rows = layout->n_ff,
                                .columns = layout->n_embd,
                                .stride_bytes = stride_bytes,
                                .data = data};
}

void moec_record_bind(const struct moec_record_layout *layout, const uint8_t *record, struct moec_mlp *mlp)
{
    const size_t *row_bytes = layout->row_bytes;
    const uint8_t *pairs = record + layout->up_bytes;
    mlp->up = bind_rows(layout, MOEC_PROJECTION_UP, record, row_bytes[MOEC_PROJECTION_UP]);
    mlp->gate = (struct moec_matrix){0};
    if (layout->n_matrix == 3)
        mlp->gate = bind_rows(layout, MOEC_PROJECTION_GATE, pairs, layout->pair_stride_bytes);
    mlp->down = bind_rows(layout, MOEC_PROJECTION_DOWN, pairs + row_bytes[MOEC_PROJECTION_GATE],
                          layout->pair_stride_bytes);
    mlp->activation = layout->activation;
    memset(mlp->biases, 0, sizeof mlp->biases);
    mlp->filter = (struct moec_mlp_filter){0};
    mlp->places = NULL;
    mlp->frames = (struct moec_mlp_frames){0};
}

/* ---- parts ---- */

#define UP    (1u << MOEC_PROJECTION_UP)
#define PAIRS (1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_DOWN)

static uint32_t all_projections(const struct moec_record_layout *layout)
{
    return layout->n_matrix == 3 ? UP | PAIRS : UP | 1u << MOEC_PROJECTION_DOWN;
}

static uint32_t projections_of(const struct moec_record_layout *layout, const struct moec_record_part *part)
{
    return part->projections != 0 ? part->projections : all_projections(layout);
}

static uint32_t neurons_of(const struct moec_record_layout *layout, const struct moec_record_part *part)
{
    return part->n_neuron != 0 ? part->n_neuron : layout->n_ff - part->first_neuron;
}

enum moec_status moec_record_part_range(const struct moec_record_layout *layout,
                                        const struct moec_record_part *part, struct moec_record_range *range,
                                        struct moec_error *err)
{
    const uint32_t projections = projections_of(layout, part);
    const uint64_t pair_bytes = layout->pair_stride_bytes, up_bytes = layout->row_bytes[MOEC_PROJECTION_UP];
    if ((projections & ~all_projections(layout)) != 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "projections %#x of an expert were requested, but the expert has only %#x (a sum "
                         "of 1 for gate, 2 for up, 4 for down)",
                         projections, all_projections(layout));
    if (part->first_neuron >= layout->n_ff || part->n_neuron > layout->n_ff - part->first_neuron)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "an expert has %u neurons, too few to request %u from neuron %u on", layout->n_ff,
                         part->n_neuron, part->first_neuron);
    const uint32_t n = neurons_of(layout, part);
    if ((projections & 1u << MOEC_PROJECTION_DOWN) != 0 && n < layout->n_ff &&
        moec_codec_traits(layout->codecs[MOEC_PROJECTION_DOWN])->rows_together > 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the MXFP4 down projection shares scales between neurons, so it must be "
                         "requested for all neurons");
    if ((projections & UP) == 0)
        *range =
            (struct moec_record_range){layout->up_bytes + part->first_neuron * pair_bytes, n * pair_bytes};
    else if ((projections & PAIRS) == 0)
        *range = (struct moec_record_range){part->first_neuron * up_bytes, n * up_bytes};
    else if (n == layout->n_ff)
        *range = (struct moec_record_range){0, layout->n_bytes};
    else
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the up projection of these neurons is not stored next to their other "
                         "projections: request the up projection separately");
    return MOEC_OK;
}

void moec_record_part_bind(const struct moec_record_layout *layout, const struct moec_record_part *part,
                           const uint8_t *bytes, struct moec_mlp *mlp)
{
    const uint32_t projections = projections_of(layout, part), n = neurons_of(layout, part);
    struct moec_matrix *const matrices[] = {[MOEC_PROJECTION_GATE] = &mlp->gate,
                                            [MOEC_PROJECTION_UP] = &mlp->up,
                                            [MOEC_PROJECTION_DOWN] = &mlp->down};
    struct moec_record_layout rows = *layout;
    rows.up_bytes = (projections & UP) != 0 ? layout->up_bytes : 0;
    rows.n_ff = n;
    moec_record_bind(&rows, bytes, mlp);
    for (uint32_t i = 0; i < MOEC_PROJECTION_COUNT; i++)
        if ((projections >> i & 1u) == 0)
            *matrices[i] = (struct moec_matrix){0};
}

/* ---- transposing ---- */

static float load_float(enum moec_dtype dtype, const uint8_t *source, size_t index)
{
    if (dtype == MOEC_DTYPE_F32) {
        float value;
        memcpy(&value, source + 4 * index, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, source + 2 * index, sizeof half);
    return dtype == MOEC_DTYPE_F16 ? moec_f16_to_f32(half) : moec_bf16_to_f32(half);
}

/* One tile: `height` lines of `width` weights from `source` on become columns, `columns` apart. */
static void gather_tile(const struct moec_float_lines *from, const uint8_t *source, size_t height,
                        size_t width, float *out, size_t columns)
{
    float tile[TILE][TILE];
    for (size_t i = 0; i < height; i++)
        for (size_t j = 0; j < width; j++)
            tile[j][i] = load_float(from->dtype, source, i * from->line + j * from->step);
    for (size_t j = 0; j < width; j++)
        memcpy(out + j * columns, tile[j], height * sizeof(float));
}

/* The same of a whole tile of neighbours in BF16, which experts are made of. */
static void gather_bf16_tile(const uint8_t *source, size_t line, float *out, size_t columns)
{
    uint32_t tile[TILE][TILE];
    for (size_t i = 0; i < TILE; i++) {
        uint16_t halves[TILE];
        memcpy(halves, source + 2 * i * line, sizeof halves);
        for (size_t j = 0; j < TILE; j++)
            tile[i][j] = (uint32_t)halves[j] << 16;
    }
    for (size_t j = 0; j < TILE; j++) {
        uint32_t column[TILE];
        for (size_t i = 0; i < TILE; i++)
            column[i] = tile[i][j];
        memcpy(out + j * columns, column, sizeof column);
    }
}

#define ASKED_LINES 32 /* ahead: they lie too far apart for the processor to foresee */

/* Tile by tile, so that a line is complete when it is written; walking whole columns would touch one line for
 * each float, all in the same few cache sets when rows are a power of two long. */
void moec_gather_to_f32(const struct moec_float_lines *from, size_t columns, size_t count, float *out)
{
    const enum moec_dtype dtype = from->dtype;
    const size_t line = from->line, step = from->step;
    const size_t item = dtype == MOEC_DTYPE_F32 ? 4 : 2;
    for (size_t column = 0; column < columns; column += TILE) {
        const size_t height = columns - column < TILE ? columns - column : TILE;
        const uint8_t *lines = (const uint8_t *)from->data + item * (column * line + from->first);
        for (size_t i = 0; i < TILE && column + ASKED_LINES + i < columns; i++)
            for (size_t at = 0; at < count * step * item; at += 64)
                __builtin_prefetch(lines + (ASKED_LINES + i) * line * item + at, 0, 3);
        for (size_t row = 0; row < count; row += TILE) {
            const size_t width = count - row < TILE ? count - row : TILE;
            const uint8_t *at = lines + item * row * step;
            if (dtype == MOEC_DTYPE_BF16 && step == 1 && height == TILE && width == TILE)
                gather_bf16_tile(at, line, out + row * columns + column, columns);
            else
                gather_tile(from, at, height, width, out + row * columns + column, columns);
        }
    }
}

void moec_transpose_to_f32(struct moec_float_matrix from, size_t first, size_t count, float *out)
{
    const struct moec_float_lines lines = {
        .dtype = from.dtype, .data = from.data, .first = first, .step = 1, .line = from.columns};
    moec_gather_to_f32(&lines, from.rows, count, out);
}

/* ---- encoding ---- */

enum moec_status moec_rows_encode(const struct moec_encoded_rows *out, const float *weights, size_t count,
                                  size_t *failed, struct moec_error *err)
{
    const struct moec_codec codec = out->codec;
    const size_t columns = out->columns, stride_bytes = out->stride_bytes;
    uint8_t *rows = out->rows;
    const size_t step = moec_codec_traits(codec)->rows_together;
    const bool has_blocks = step > 1;
    if (has_blocks && (count % step != 0 || columns % step != 0))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "%zu rows of %zu weights cannot be encoded as MXFP4, expected multiples of %zu",
                         count, columns, step);
    for (size_t i = 0; i < count; i += step, weights += step * columns, rows += step * stride_bytes) {
        *failed = i;
        if (has_blocks)
            MOEC_TRY(moec_mxfp4_encode_block(weights, columns, rows, stride_bytes, err));
        else
            MOEC_TRY(moec_codec_encode_row(codec, weights, columns, rows, err));
    }
    return MOEC_OK;
}

enum moec_status moec_record_encode(const struct moec_record_layout *layout, const float *gate,
                                    const float *up, const float *down, uint8_t *record,
                                    struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const size_t n_embd = layout->n_embd, n_ff = layout->n_ff, pair_bytes = layout->pair_stride_bytes;
    const struct moec_codec *codecs = layout->codecs;
    const bool has_gate = layout->n_matrix == 3;
    uint8_t *pairs = record + layout->up_bytes, *down_rows = pairs + layout->row_bytes[MOEC_PROJECTION_GATE];
    void *memory = NULL;
    MOEC_TRY_OUT(
        moec_alloc(&memory, MOEC_TRANSPOSE_NEURONS * n_embd, sizeof(float), "transposed weights", err));
    float *columns = memory;
    for (size_t i = 0; i < n_ff; i++) {
        status = moec_codec_encode_row(codecs[MOEC_PROJECTION_UP], up + i * n_embd, n_embd,
                                       record + i * layout->row_bytes[MOEC_PROJECTION_UP], err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "up projection, neuron %zu", i);
            goto out;
        }
        if (!has_gate)
            continue;
        status = moec_codec_encode_row(codecs[MOEC_PROJECTION_GATE], gate + i * n_embd, n_embd,
                                       pairs + i * pair_bytes, err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "gate projection, neuron %zu", i);
            goto out;
        }
    }
    for (size_t first = 0; first < n_ff; first += MOEC_TRANSPOSE_NEURONS) {
        size_t count = n_ff - first < MOEC_TRANSPOSE_NEURONS ? n_ff - first : MOEC_TRANSPOSE_NEURONS;
        size_t failed = 0;
        moec_transpose_to_f32((struct moec_float_matrix){MOEC_DTYPE_F32, down, n_embd, n_ff}, first, count,
                              columns);
        status = moec_rows_encode(&(struct moec_encoded_rows){codecs[MOEC_PROJECTION_DOWN], n_embd,
                                                              down_rows + first * pair_bytes, pair_bytes},
                                  columns, count, &failed, err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "down projection, neuron %zu", first + failed);
            goto out;
        }
    }
out:
    free(memory);
    return status;
}

/* Rows of one matrix as another codec, as few at a time as it takes: their floats stay in the nearest cache.
 */
static enum moec_status recode_rows(const struct moec_matrix *from, struct moec_codec codec, uint8_t *rows,
                                    size_t stride_bytes, float *scratch, struct moec_error *err)
{
    const size_t most = moec_codec_traits(codec)->rows_together;
    for (size_t first = 0, count; first < from->rows; first += count) {
        size_t failed = 0;
        count = from->rows - first < most ? from->rows - first : most;
        for (size_t i = 0; i < count; i++)
            moec_codec_decode_row(from->codec, from->data + (first + i) * from->stride_bytes, from->columns,
                                  scratch + i * from->columns);
        MOEC_TRY(moec_rows_encode(
            &(struct moec_encoded_rows){codec, from->columns, rows + first * stride_bytes, stride_bytes},
            scratch, count, &failed, err));
    }
    return MOEC_OK;
}

enum moec_status moec_record_recode(const struct moec_record_layout *from, const uint8_t *source,
                                    const struct moec_record_layout *layout, float *scratch, uint8_t *record,
                                    struct moec_error *err)
{
    struct moec_mlp mlp;
    const size_t pair_bytes = layout->pair_stride_bytes;
    uint8_t *pairs = record + layout->up_bytes, *down = pairs + layout->row_bytes[MOEC_PROJECTION_GATE];
    moec_record_bind(from, source, &mlp);
    MOEC_TRY(recode_rows(&mlp.up, layout->codecs[MOEC_PROJECTION_UP], record,
                         layout->row_bytes[MOEC_PROJECTION_UP], scratch, err));
    if (layout->n_matrix == 3)
        MOEC_TRY(
            recode_rows(&mlp.gate, layout->codecs[MOEC_PROJECTION_GATE], pairs, pair_bytes, scratch, err));
    return recode_rows(&mlp.down, layout->codecs[MOEC_PROJECTION_DOWN], down, pair_bytes, scratch, err);
}

static bool rows_are_finite(const struct moec_matrix *matrix)
{
    return moec_codec_find_not_finite(matrix->codec, matrix->data, matrix->stride_bytes, matrix->rows,
                                      matrix->columns) == matrix->rows;
}

bool moec_record_part_is_finite(const struct moec_record_layout *layout, const struct moec_record_part *part,
                                const uint8_t *bytes)
{
    struct moec_mlp mlp;
    moec_record_part_bind(layout, part, bytes, &mlp);
    return rows_are_finite(&mlp.up) && rows_are_finite(&mlp.gate) && rows_are_finite(&mlp.down);
}

bool moec_record_is_finite(const struct moec_record_layout *layout, const uint8_t *record)
{
    static const struct moec_record_part whole = {0};
    return moec_record_part_is_finite(layout, &whole, record);
}
