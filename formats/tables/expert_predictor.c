/* All rows of all layers are one block of INT8 rows, and biases one array, in the order of layers. Offsets
 * follow from the sizes of each layer, so the section stores none. The last MoE layer of a stack has no
 * predictor. Bytes after the last row may be read by kernels and are zero. */
#include "formats/tables/expert_predictor.h"

#include "formats/base/bytes.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VERSION      1u
#define HEADER_BYTES 80u
#define DIGEST_AT    24u
#define RECALL_AT    56u
#define NO_LAYER     UINT32_MAX /* in place of the hidden units of a layer without a predictor */
/* Behind the last row: kernels read whole blocks of an instruction set. */
#define SPARE_BYTES 64u

static const struct moec_codec codec = {.dtype = MOEC_DTYPE_INT8};

static uint32_t inputs_of(const struct moec_expert_predictor *predictor)
{
    return moec_predictor_inputs(predictor->n_embd, predictor->n_expert);
}

static uint64_t bias_count(uint32_t n_expert, uint32_t n_hidden)
{
    return (uint64_t)n_expert + n_hidden;
}

static uint64_t rows_bytes(uint32_t n_embd, uint32_t n_expert, uint32_t n_hidden)
{
    const uint64_t row = moec_codec_row_bytes(codec, moec_predictor_inputs(n_embd, n_expert));
    const uint64_t out = n_hidden > 0 ? moec_codec_row_bytes(codec, n_hidden) : 0;
    return bias_count(n_expert, n_hidden) * row + n_expert * out;
}

uint64_t moec_predictor_layer_bytes(const struct moec_config *config, uint32_t n_hidden)
{
    return rows_bytes(config->n_embd, config->n_expert, n_hidden) +
           bias_count(config->n_expert, n_hidden) * sizeof(float);
}

/* ---- life ---- */

static struct moec_matrix matrix_at(uint8_t **at, uint32_t rows, uint32_t columns)
{
    const struct moec_matrix matrix = {.codec = codec,
                                       .rows = rows,
                                       .columns = columns,
                                       .stride_bytes = columns > 0 ? moec_codec_row_bytes(codec, columns) : 0,
                                       .data = *at};
    *at += rows * matrix.stride_bytes;
    return matrix;
}

enum moec_status moec_expert_predictor_create(const struct moec_config *config, const bool *is_known,
                                              const uint32_t *n_hidden, struct moec_expert_predictor *out,
                                              struct moec_error *err)
{
    static const char what[] = "a learned predictor";
    enum moec_status status = MOEC_OK;
    struct moec_expert_predictor made = {
        .n_layer = moec_config_moe_count(config), .n_expert = config->n_expert, .n_embd = config->n_embd};
    uint64_t n_bytes = SPARE_BYTES, n_bias = 0;
    *out = (struct moec_expert_predictor){0};
    for (uint32_t s = 0; s < made.n_layer; s++) {
        n_bytes += is_known[s] ? rows_bytes(made.n_embd, made.n_expert, n_hidden[s]) : 0;
        n_bias += is_known[s] ? bias_count(made.n_expert, n_hidden[s]) : 0;
    }
    MOEC_TRY_OUT(moec_alloc((void **)&made.layers, made.n_layer, sizeof *made.layers, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&made.rows, n_bytes, 1, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&made.biases, n_bias, sizeof *made.biases, what, err));
    uint8_t *at = made.rows;
    float *bias = made.biases;
    for (uint32_t s = 0; s < made.n_layer; s++) {
        struct moec_predictor_layer *layer = &made.layers[s];
        if (!is_known[s])
            continue;
        *layer = (struct moec_predictor_layer){.is_known = true, .n_hidden = n_hidden[s]};
        layer->direct = matrix_at(&at, made.n_expert, inputs_of(&made));
        layer->hidden = matrix_at(&at, n_hidden[s], inputs_of(&made));
        layer->out = matrix_at(&at, made.n_expert, n_hidden[s]);
        layer->bias = bias;
        layer->hidden_bias = bias + made.n_expert;
        bias += bias_count(made.n_expert, n_hidden[s]);
    }
    *out = made;
    return MOEC_OK;
out:
    moec_expert_predictor_release(&made);
    return status;
}

void moec_expert_predictor_release(struct moec_expert_predictor *predictor)
{
    free(predictor->layers);
    free(predictor->rows);
    free(predictor->biases);
    *predictor = (struct moec_expert_predictor){0};
}

/* Bytes of rows and numbers of biases of all layers. */
static void count(const struct moec_expert_predictor *predictor, uint64_t *n_bytes, uint64_t *n_bias)
{
    *n_bytes = *n_bias = 0;
    for (uint32_t s = 0; s < predictor->n_layer; s++) {
        const struct moec_predictor_layer *layer = &predictor->layers[s];
        if (!layer->is_known)
            continue;
        *n_bytes += rows_bytes(predictor->n_embd, predictor->n_expert, layer->n_hidden);
        *n_bias += bias_count(predictor->n_expert, layer->n_hidden);
    }
}

uint64_t moec_expert_predictor_bytes(const struct moec_expert_predictor *predictor)
{
    uint64_t n_bytes, n_bias;
    count(predictor, &n_bytes, &n_bias);
    return n_bytes + SPARE_BYTES + n_bias * sizeof(float) + predictor->n_layer * sizeof *predictor->layers;
}

/* ---- bytes ---- */

enum moec_status moec_expert_predictor_encode(const struct moec_expert_predictor *predictor, uint8_t **bytes,
                                              size_t *n_bytes, struct moec_error *err)
{
    uint64_t n_row, n_bias;
    uint8_t *made = NULL;
    count(predictor, &n_row, &n_bias);
    const uint64_t biases_at = HEADER_BYTES + 4 * (uint64_t)predictor->n_layer;
    const uint64_t rows_at = biases_at + 4 * n_bias, total = rows_at + n_row;
    MOEC_TRY(moec_alloc((void **)&made, total, 1, "a learned predictor", err));
    moec_put_u32(made, VERSION);
    moec_put_u32(made + 4, predictor->n_layer);
    moec_put_u32(made + 8, predictor->n_expert);
    moec_put_u32(made + 12, predictor->n_embd);
    moec_put_u64(made + 16, predictor->n_token);
    memcpy(made + DIGEST_AT, predictor->data_digest, MOEC_SHA256_BYTES);
    moec_put_f64(made + RECALL_AT, predictor->recall);
    moec_put_f64(made + RECALL_AT + 8, predictor->gate_recall);
    for (uint32_t s = 0; s < predictor->n_layer; s++)
        moec_put_u32(made + HEADER_BYTES + 4 * s,
                     predictor->layers[s].is_known ? predictor->layers[s].n_hidden : NO_LAYER);
    for (uint64_t i = 0; i < n_bias; i++)
        moec_put_f32(made + biases_at + 4 * i, predictor->biases[i]);
    memcpy(made + rows_at, predictor->rows, n_row);
    *bytes = made;
    *n_bytes = (size_t)total;
    return MOEC_OK;
}

static enum moec_status check_header(const uint8_t *bytes, size_t n_bytes, const struct moec_config *config,
                                     struct moec_error *err)
{
    if (n_bytes < HEADER_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the learned predictor has %zu bytes, expected at least %u",
                         n_bytes, HEADER_BYTES);
    if (moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the learned predictor has version %" PRIu32 ", expected %u", moec_get_u32(bytes),
                         VERSION);
    const uint32_t n_layer = moec_get_u32(bytes + 4), n_expert = moec_get_u32(bytes + 8),
                   n_embd = moec_get_u32(bytes + 12);
    const uint32_t n_moe = moec_config_moe_count(config);
    if (n_layer != n_moe || n_expert != config->n_expert || n_embd != config->n_embd)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the learned predictor is for %" PRIu32 " layers, %" PRIu32
                         " experts and hidden size %" PRIu32 ", but the model has %" PRIu32
                         " layers, %" PRIu32 " experts and hidden size %" PRIu32,
                         n_layer, n_expert, n_embd, n_moe, config->n_expert, config->n_embd);
    if ((n_bytes - HEADER_BYTES) / 4 < n_layer)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the learned predictor has %zu bytes and ends within its list of layers", n_bytes);
    for (uint32_t i = 0; i < 2; i++) {
        const double recall = moec_get_f64(bytes + RECALL_AT + 8 * i);
        if (!(recall >= 0 && recall <= 1))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the learned predictor states a recall of %g, expected 0 to 1", recall);
    }
    for (uint32_t i = RECALL_AT + 16; i < HEADER_BYTES; i++)
        if (bytes[i] != 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "reserved byte %" PRIu32 " of the learned predictor is %u, expected 0", i,
                             bytes[i]);
    return MOEC_OK;
}

/* The last layer of each stack, and no other, has no predictor. */
static enum moec_status read_hidden(const uint8_t *bytes, const struct moec_config *config, bool *is_known,
                                    uint32_t *n_hidden, struct moec_error *err)
{
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++) {
        const struct moec_moe_range range = moec_config_moe_range(config, s);
        const uint32_t found = moec_get_u32(bytes + HEADER_BYTES + 4 * s);
        is_known[s] = s + 1 < range.first + range.count;
        n_hidden[s] = is_known[s] ? found : 0;
        if (is_known[s] ? found > MOEC_PREDICTOR_MAX_HIDDEN : found != NO_LAYER)
            return moec_fail(
                err, MOEC_ERR_FORMAT,
                "layer %" PRIu32 " of the learned predictor has %" PRIu32 " hidden units, expected %s", s,
                found, is_known[s] ? "0 to 1024" : "none for the last MoE layer of the encoder or decoder");
    }
    return MOEC_OK;
}

static enum moec_status check_rows(const struct moec_matrix *matrix, uint32_t layer, struct moec_error *err)
{
    for (uint32_t r = 0; r < matrix->rows; r++)
        if (!moec_codec_row_is_finite(codec, matrix->data + r * matrix->stride_bytes, matrix->columns))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "row %" PRIu32 " of layer %" PRIu32
                             " of the learned predictor has a scale that is not finite",
                             r, layer);
    return MOEC_OK;
}

static enum moec_status read_layers(const uint8_t *bytes, size_t n_bytes, struct moec_expert_predictor *out,
                                    struct moec_error *err)
{
    uint64_t n_row, n_bias;
    count(out, &n_row, &n_bias);
    const uint64_t biases_at = HEADER_BYTES + 4 * (uint64_t)out->n_layer;
    const uint64_t rows_at = biases_at + 4 * n_bias;
    if (n_bytes != rows_at + n_row)
        return moec_fail(err, MOEC_ERR_FORMAT, "the learned predictor has %zu bytes, expected %" PRIu64,
                         n_bytes, rows_at + n_row);
    for (uint64_t i = 0; i < n_bias; i++) {
        out->biases[i] = moec_get_f32(bytes + biases_at + 4 * i);
        if (!isfinite(out->biases[i]))
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "bias %" PRIu64 " of the learned predictor is %g, expected a finite number", i,
                             (double)out->biases[i]);
    }
    memcpy(out->rows, bytes + rows_at, n_row);
    for (uint32_t s = 0; s < out->n_layer; s++) {
        MOEC_TRY(check_rows(&out->layers[s].direct, s, err));
        MOEC_TRY(check_rows(&out->layers[s].hidden, s, err));
        MOEC_TRY(check_rows(&out->layers[s].out, s, err));
    }
    return MOEC_OK;
}

enum moec_status moec_expert_predictor_decode(const uint8_t *bytes, size_t n_bytes,
                                              const struct moec_config *config,
                                              struct moec_expert_predictor *out, struct moec_error *err)
{
    bool is_known[MOEC_MAX_LAYERS];
    uint32_t n_hidden[MOEC_MAX_LAYERS];
    *out = (struct moec_expert_predictor){0};
    MOEC_TRY(check_header(bytes, n_bytes, config, err));
    MOEC_TRY(read_hidden(bytes, config, is_known, n_hidden, err));
    uint64_t n_expected = HEADER_BYTES;
    for (uint32_t s = 0; s < moec_config_moe_count(config); s++)
        n_expected += is_known[s] ? moec_predictor_layer_bytes(config, n_hidden[s]) : 0;
    if (n_bytes < n_expected) /* before so much memory is taken */
        return moec_fail(err, MOEC_ERR_FORMAT, "the learned predictor has %zu bytes, expected %" PRIu64,
                         n_bytes, n_expected + 4 * (uint64_t)moec_config_moe_count(config));
    MOEC_TRY(moec_expert_predictor_create(config, is_known, n_hidden, out, err));
    out->n_token = moec_get_u64(bytes + 16);
    memcpy(out->data_digest, bytes + DIGEST_AT, MOEC_SHA256_BYTES);
    out->recall = moec_get_f64(bytes + RECALL_AT);
    out->gate_recall = moec_get_f64(bytes + RECALL_AT + 8);
    const enum moec_status status = read_layers(bytes, n_bytes, out, err);
    if (status != MOEC_OK)
        moec_expert_predictor_release(out);
    return status;
}
