#include "formats/model/record.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"

#include <string.h>

#define TILE 16 /* a tile row is one cache line of F32 */

struct moec_record_layout moec_record_layout_make(const struct moec_config *config, struct moec_codec codec)
{
    struct moec_record_layout layout = {.codec = codec,
                                        .n_matrix = (uint8_t)moec_config_mlp_matrices(config),
                                        .activation = config->activation,
                                        .n_ff = config->n_ff_expert,
                                        .n_embd = config->n_embd};
    layout.row_bytes = moec_codec_row_bytes(codec, config->n_embd);
    layout.up_bytes = (uint64_t)layout.n_ff * layout.row_bytes;
    layout.pair_bytes = (layout.n_matrix - 1u) * layout.up_bytes;
    layout.n_bytes = layout.up_bytes + layout.pair_bytes;
    return layout;
}

void moec_record_bind(const struct moec_record_layout *layout, const uint8_t *record, struct moec_mlp *mlp)
{
    struct moec_matrix rows = {.codec = layout->codec, .rows = layout->n_ff, .columns = layout->n_embd};
    mlp->up = rows;
    mlp->up.stride_bytes = layout->row_bytes;
    mlp->up.data = record;
    mlp->gate = (struct moec_matrix){0};
    mlp->down = rows;
    mlp->down.stride_bytes = (layout->n_matrix - 1u) * layout->row_bytes;
    mlp->down.data = record + layout->up_bytes;
    if (layout->n_matrix == 3) {
        mlp->gate = mlp->down;
        mlp->down.data += layout->row_bytes;
    }
    mlp->activation = layout->activation;
    mlp->filter = (struct moec_mlp_filter){0};
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
    const uint64_t pair_bytes = (layout->n_matrix - 1u) * (uint64_t)layout->row_bytes;
    if ((projections & ~all_projections(layout)) != 0)
        return moec_fail(err, MOEC_ERR_USAGE, "an expert has no projections %#x, only %#x", projections,
                         all_projections(layout));
    if (part->first_neuron >= layout->n_ff || part->n_neuron > layout->n_ff - part->first_neuron)
        return moec_fail(err, MOEC_ERR_USAGE, "an expert has %u neurons, not %u from neuron %u on",
                         layout->n_ff, part->n_neuron, part->first_neuron);
    const uint32_t n = neurons_of(layout, part);
    if ((projections & UP) == 0)
        *range =
            (struct moec_record_range){layout->up_bytes + part->first_neuron * pair_bytes, n * pair_bytes};
    else if ((projections & PAIRS) == 0)
        *range = (struct moec_record_range){(uint64_t)part->first_neuron * layout->row_bytes,
                                            (uint64_t)n * layout->row_bytes};
    else if (n == layout->n_ff)
        *range = (struct moec_record_range){0, layout->n_bytes};
    else
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the up projection of some neurons does not stand in one piece with their other "
                         "projections; ask for it by itself");
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

/* Tile by tile, so that a line is complete when it is written; walking whole columns would touch one line for
 * each float, all in the same few cache sets when rows are a power of two long. */
void moec_gather_to_f32(enum moec_dtype dtype, const void *source, size_t columns, size_t line, size_t first,
                        size_t step, size_t count, float *out)
{
    for (size_t column = 0; column < columns; column += TILE) {
        size_t height = columns - column < TILE ? columns - column : TILE;
        for (size_t row = 0; row < count; row += TILE) {
            size_t width = count - row < TILE ? count - row : TILE;
            float tile[TILE][TILE];
            for (size_t i = 0; i < height; i++)
                for (size_t j = 0; j < width; j++)
                    tile[j][i] = load_float(dtype, source, (column + i) * line + first + (row + j) * step);
            for (size_t j = 0; j < width; j++)
                memcpy(out + (row + j) * columns + column, tile[j], height * sizeof(float));
        }
    }
}

void moec_transpose_to_f32(enum moec_dtype dtype, const void *source, size_t rows, size_t columns,
                           size_t first, size_t count, float *out)
{
    moec_gather_to_f32(dtype, source, rows, columns, first, 1, count, out);
}

/* ---- encoding ---- */

enum moec_status moec_record_encode(const struct moec_record_layout *layout, const float *gate,
                                    const float *up, const float *down, uint8_t *record,
                                    struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const size_t n_embd = layout->n_embd, n_ff = layout->n_ff, row_bytes = layout->row_bytes;
    const size_t pair_bytes = (layout->n_matrix - 1u) * row_bytes;
    const bool has_gate = layout->n_matrix == 3;
    uint8_t *pairs = record + layout->up_bytes, *down_rows = pairs + (has_gate ? row_bytes : 0);
    void *memory = NULL;
    MOEC_TRY_OUT(
        moec_alloc(&memory, MOEC_TRANSPOSE_NEURONS * n_embd, sizeof(float), "transposed weights", err));
    float *columns = memory;
    for (size_t i = 0; i < n_ff; i++) {
        status = moec_codec_encode_row(layout->codec, up + i * n_embd, n_embd, record + i * row_bytes, err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "up projection, neuron %zu", i);
            goto out;
        }
        if (!has_gate)
            continue;
        status = moec_codec_encode_row(layout->codec, gate + i * n_embd, n_embd, pairs + i * pair_bytes, err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "gate projection, neuron %zu", i);
            goto out;
        }
    }
    for (size_t first = 0; first < n_ff; first += MOEC_TRANSPOSE_NEURONS) {
        size_t count = n_ff - first < MOEC_TRANSPOSE_NEURONS ? n_ff - first : MOEC_TRANSPOSE_NEURONS;
        moec_transpose_to_f32(MOEC_DTYPE_F32, down, n_embd, n_ff, first, count, columns);
        for (size_t i = 0; i < count; i++) {
            status = moec_codec_encode_row(layout->codec, columns + i * n_embd, n_embd,
                                           down_rows + (first + i) * pair_bytes, err);
            if (status != MOEC_OK) {
                (void)moec_error_prefix(err, "down projection, neuron %zu", first + i);
                goto out;
            }
        }
    }
out:
    free(memory);
    return status;
}

bool moec_record_rows_are_finite(const struct moec_record_layout *layout, const uint8_t *rows,
                                 uint64_t n_bytes)
{
    for (uint64_t at = 0; at < n_bytes; at += layout->row_bytes)
        if (!moec_codec_row_is_finite(layout->codec, rows + at, layout->n_embd))
            return false;
    return true;
}

bool moec_record_is_finite(const struct moec_record_layout *layout, const uint8_t *record)
{
    return moec_record_rows_are_finite(layout, record, layout->n_bytes);
}
