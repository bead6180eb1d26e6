/* There are four ways to a product: weights read encoded for a token, decoded in tiles, inputs transposed
 * for many tokens, or integers. Each output is one canonical dot in all but the last. So tiles and threads
 * change the time, never the bits. */
#include "runtime/forward/context/linear.h"

#include "runtime/forward/context/rounded.h"
#include "runtime/forward/context/steps.h"

#include <math.h>
#include <string.h>

/* A cut of the product into items: (row tile of a part) x (group of tokens), row tiles fastest, so that
 * threads at work on neighbouring items read the same inputs. */
struct cut {
    const struct moec_linear *linear;
    bool encoded;
    const float *transposed; /* inputs of the one group there is, laid for dot_transposed, or NULL */
    uint32_t first_token;
    uint32_t tile_rows;
    uint32_t group_tokens;
    uint32_t n_tiles[MOEC_LINEAR_PARTS];
    uint32_t n_tiles_all;
};

/* Smallest piece worth a thread's attention with encoded weights. */
#define ENCODED_ROWS_MIN 16u

bool moec_linear_transposes(const struct moec_forward *forward, const struct moec_matrix *matrix,
                            uint32_t n_tok)
{
    return n_tok >= MOEC_TRANSPOSED_TOKENS &&
           matrix->columns >= moec_forward_scratch(forward)->transposed.columns &&
           forward->kernels->dot_transposed != NULL && !moec_rounded_serves(forward, matrix) &&
           moec_kernels_decode_parts(matrix->codec);
}

void moec_linear_store(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                       uint32_t row, uint32_t n, const float *y)
{
    (void)linear;
    memcpy(part->out + token * part->out_stride + row, y, n * sizeof(float));
}

void moec_linear_add(const struct moec_linear *linear, const struct moec_linear_part *part, uint32_t token,
                     uint32_t row, uint32_t n, const float *y)
{
    linear->forward->kernels->add(y, n, part->out + token * part->out_stride + row);
}

void moec_linear_tanh(const struct moec_linear *linear, float cap, const float *y, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = -2 * fabsf(y[i] / cap);
    (void)linear->forward->kernels->exp_sum(out, 0, n, out);
    for (uint32_t i = 0; i < n; i++)
        out[i] = copysignf(cap * ((1 - out[i]) / (1 + out[i])), y[i]);
}

/* Whether a product can write where the part's sink would. */
static bool writes_directly(const struct moec_linear_part *part)
{
    return part->sink == moec_linear_store;
}

/* Rows row .. row + n_rows - 1 of a part's matrix, times tokens token .. token + n_tok - 1. */
struct block {
    const struct moec_linear_part *part;
    uint32_t row, n_rows;
    uint32_t token, n_tok;
};

/* Gives a block's products (n_tok, n_rows) to whom they are for, where they do not stand there. */
static void give_products(const struct cut *cut, struct block block, float *y, size_t y_stride)
{
    const struct moec_linear_part *part = block.part;
    for (uint32_t token = block.token; token < block.token + block.n_tok; token++, y += y_stride) {
        if (part->bias != NULL)
            cut->linear->forward->kernels->add(part->bias + block.row, block.n_rows, y);
        if (!writes_directly(part) || y != part->out + token * part->out_stride + block.row)
            part->sink(cut->linear, part, token, block.row, block.n_rows, y);
    }
}

/* The same rows with n of the tokens, from `done` of them on. */
static struct block of_tokens(struct block block, uint32_t done, uint32_t n)
{
    block.token += done;
    block.n_tok = n;
    return block;
}

static void run_transposed(const struct cut *cut, struct block block,
                           const struct moec_linear_scratch *scratch)
{
    const struct moec_linear_part *part = block.part;
    const uint32_t row = block.row, n_rows = block.n_rows, n_tok = block.n_tok;
    float *y = writes_directly(part) ? part->out + block.token * part->out_stride + row : scratch->y;
    const size_t y_stride = writes_directly(part) ? part->out_stride : n_rows;
    cut->linear->forward->kernels->dot_transposed(part->matrix, row, n_rows, cut->transposed, n_tok,
                                                  scratch->weights, y, y_stride);
    give_products(cut, block, y, y_stride);
}

static void run_decoded(const struct cut *cut, struct block block, const struct moec_linear_scratch *scratch)
{
    const struct moec_linear_part *part = block.part;
    const uint32_t row = block.row, n_rows = block.n_rows, n_tok = block.n_tok;
    const struct moec_linear *linear = cut->linear;
    const struct moec_kernels *kernels = linear->forward->kernels;
    uint32_t k = part->matrix->columns;
    size_t w_stride = moec_lanes_padded(k);
    /* What all tokens take at once needs no decoding before. */
    const bool at_once = n_tok <= MOEC_TILE_TOKENS;
    if (!at_once)
        moec_forward_decode(kernels, part->matrix, row, n_rows, scratch->weights, w_stride);
    const bool direct = writes_directly(part);
    for (uint32_t done = 0; done < n_tok; done += MOEC_TILE_TOKENS) {
        uint32_t n = moec_min_u32(MOEC_TILE_TOKENS, n_tok - done);
        uint32_t first = block.token + done;
        float *y = direct ? part->out + first * part->out_stride + row : scratch->y;
        size_t y_stride = direct ? part->out_stride : n_rows;
        const float *x = linear->x + first * linear->x_stride;
        if (at_once)
            kernels->dot_tokens(part->matrix, row, n_rows, x, linear->x_stride, n, scratch->weights, y,
                                y_stride);
        else
            kernels->dot(x, linear->x_stride, n, scratch->weights, w_stride, n_rows, k, y, y_stride);
        give_products(cut, of_tokens(block, done, n), y, y_stride);
    }
}

/* Products of integers with the rounded rows. */
static void run_rounded(const struct cut *cut, struct block block, const struct moec_linear_scratch *scratch)
{
    const struct moec_linear_part *part = block.part;
    const uint32_t row = block.row, n_rows = block.n_rows, n_tok = block.n_tok;
    const struct moec_linear *linear = cut->linear;
    const struct moec_int8_kernels *kernels = linear->forward->rounded->kernels;
    if (linear->n_tok >= kernels->many_tokens) {
        const uint32_t at_once =
            MOEC_ENCODED_ROWS / n_rows / MOEC_LANES * MOEC_LANES; /* for which y has room */
        for (uint32_t done = 0, n; done < n_tok; done += n) {
            n = moec_min_u32(at_once, n_tok - done);
            kernels->dot_tiles(part->matrix, row, n_rows,
                               moec_rounded_tiles(linear->forward, block.token + done, part->matrix->columns),
                               n, scratch->y, n_rows);
            give_products(cut, of_tokens(block, done, n), scratch->y, n_rows);
        }
        return;
    }
    const uint32_t at_once = moec_min_u32(MOEC_INT8_FEW, MOEC_ENCODED_ROWS / n_rows);
    for (uint32_t done = 0, n; done < n_tok; done += n) {
        const struct moec_int8_span *spans[MOEC_INT8_FEW];
        n = moec_min_u32(at_once, n_tok - done);
        for (uint32_t t = 0; t < n; t++)
            spans[t] = moec_rounded_row(linear->forward, linear->x, block.token + done + t);
        kernels->dot(part->matrix, row, NULL, n_rows, spans, n, scratch->y, n_rows);
        give_products(cut, of_tokens(block, done, n), scratch->y, n_rows);
    }
}

static void run_item(void *context, size_t item, int thread)
{
    const struct cut *cut = context;
    const struct moec_linear *linear = cut->linear;
    const struct moec_linear_scratch *scratch =
        &moec_forward_scratch(linear->forward)->threads[thread].linear;
    uint32_t tile = (uint32_t)(item % cut->n_tiles_all);
    uint32_t token = cut->first_token + (uint32_t)(item / cut->n_tiles_all) * cut->group_tokens;
    uint32_t n_tok = moec_min_u32(cut->group_tokens, linear->n_tok - token);

    const struct moec_linear_part *part = linear->parts;
    for (const uint32_t *n_tiles = cut->n_tiles; tile >= *n_tiles; part++, n_tiles++)
        tile -= *n_tiles;
    uint32_t row = tile * cut->tile_rows;
    uint32_t n_rows = moec_min_u32(cut->tile_rows, part->matrix->rows - row);
    const struct block block = {part, row, n_rows, token, n_tok};
    if (cut->transposed != NULL) {
        run_transposed(cut, block, scratch);
        return;
    }
    if (moec_rounded_serves(linear->forward, part->matrix)) {
        run_rounded(cut, block, scratch);
        return;
    }
    if (!cut->encoded) {
        run_decoded(cut, block, scratch);
        return;
    }
    linear->forward->kernels->dot_encoded(part->matrix, row, n_rows, linear->x, scratch->y);
    give_products(cut, block, scratch->y, n_rows);
}

static uint32_t n_rounded_parts(const struct moec_linear *linear)
{
    uint32_t n = 0;
    for (uint32_t part = 0; part < linear->n_parts; part++)
        n += moec_rounded_serves(linear->forward, linear->parts[part].matrix);
    return n;
}

static void show_inputs(const struct moec_linear *linear)
{
    const struct moec_inputs_hook *hook = linear->forward->inputs;
    const struct moec_dense_entry *entries[MOEC_LINEAR_PARTS];
    uint32_t n = 0;
    for (uint32_t part = 0; part < linear->n_parts; part++) {
        if (linear->parts[part].matrix->entry != NULL)
            entries[n++] = linear->parts[part].matrix->entry;
    }
    if (n > 0 && hook->take != NULL)
        hook->take(hook->context, entries, n, linear->x, linear->x_stride, linear->n_tok);
}

static void cut_rows(struct cut *cut, uint32_t tile_rows)
{
    cut->tile_rows = tile_rows;
    for (uint32_t part = 0; part < cut->linear->n_parts; part++) {
        cut->n_tiles[part] = (cut->linear->parts[part].matrix->rows - 1) / tile_rows + 1;
        cut->n_tiles_all += cut->n_tiles[part];
    }
}

/* Whether inputs are laid: of many tokens, for matrices that all take them so. */
static bool takes_transposed(const struct moec_linear *linear)
{
    const struct moec_scratch *scratch = moec_forward_scratch(linear->forward);
    const uint32_t k = linear->parts[0].matrix->columns;
    if (linear->in_mlp || moec_lanes_padded(k) > scratch->transposed.stride ||
        moec_linear_tile_rows(k) < MOEC_TRANSPOSED_ROWS)
        return false;
    for (uint32_t part = 0; part < linear->n_parts; part++)
        if (!moec_linear_transposes(linear->forward, linear->parts[part].matrix, linear->n_tok))
            return false;
    return true;
}

/* One group of tokens after the other, all equally long. */
static void run_groups_transposed(const struct moec_linear *linear, uint64_t rows)
{
    const struct moec_scratch *scratch = moec_forward_scratch(linear->forward);
    const uint32_t k = linear->parts[0].matrix->columns;
    const uint32_t n_groups = (linear->n_tok + MOEC_GROUP_TOKENS - 1) / MOEC_GROUP_TOKENS;
    struct cut cut = {.linear = linear, .transposed = scratch->transposed.rows};
    cut.group_tokens = (linear->n_tok + n_groups - 1) / n_groups;
    cut_rows(&cut, moec_min_u32(moec_transposed_rows(cut.group_tokens),
                                moec_linear_tile_rows(k) / MOEC_TRANSPOSED_ROWS * MOEC_TRANSPOSED_ROWS));
    for (; cut.first_token < linear->n_tok; cut.first_token += cut.group_tokens) {
        const float *inputs[MOEC_GROUP_TOKENS];
        const uint32_t n = moec_min_u32(cut.group_tokens, linear->n_tok - cut.first_token);
        for (uint32_t t = 0; t < n; t++)
            inputs[t] = linear->x + (cut.first_token + t) * linear->x_stride;
        linear->forward->kernels->transpose_tokens(inputs, n, k, scratch->transposed.rows);
        moec_forward_run(linear->forward, cut.n_tiles_all, rows * k * n, run_item, &cut);
    }
}

void moec_linear_run(const struct moec_linear *linear)
{
    if (linear->forward->inputs != NULL)
        show_inputs(linear);
    struct cut cut = {.linear = linear, .encoded = linear->n_tok == 1};
    uint32_t n_threads = (uint32_t)linear->forward->pool.n_threads;
    uint32_t k = linear->parts[0].matrix->columns;
    uint64_t rows = 0;
    for (uint32_t part = 0; part < linear->n_parts; part++)
        rows += linear->parts[part].matrix->rows;
    if (takes_transposed(linear)) {
        run_groups_transposed(linear, rows);
        return;
    }

    cut.group_tokens = MOEC_GROUP_TOKENS;
    const uint32_t n_rounded = n_rounded_parts(linear);
    /* Rows of which none is decoded need no room. */
    uint32_t tile_rows = n_rounded == linear->n_parts ? MOEC_INT8_ROWS : moec_linear_tile_rows(k);
    if (cut.encoded) {
        uint64_t share =
            (rows / (n_threads * 4) + ENCODED_ROWS_MIN - 1) / ENCODED_ROWS_MIN * ENCODED_ROWS_MIN;
        tile_rows = share < ENCODED_ROWS_MIN    ? ENCODED_ROWS_MIN
                    : share > MOEC_ENCODED_ROWS ? MOEC_ENCODED_ROWS
                                                : (uint32_t)share;
    }
    cut_rows(&cut, tile_rows);
    if (n_rounded > 0)
        moec_rounded_fill(linear->forward, linear->x, linear->x_stride, linear->n_tok, k);
    size_t n_groups = (linear->n_tok + cut.group_tokens - 1) / cut.group_tokens;
    moec_forward_run(linear->forward, n_groups * cut.n_tiles_all, rows * k * linear->n_tok, run_item, &cut);
}

void moec_linear_run_one(const struct moec_forward *forward, const struct moec_linear_part *part,
                         uint32_t n_tok, const float *input)
{
    const uint32_t n_rows = part->matrix->rows;
    const size_t stride = moec_forward_scratch(forward)->stride;
    struct moec_linear linear = {.forward = forward,
                                 .x = input,
                                 .x_stride = stride,
                                 .n_tok = n_tok,
                                 .in_mlp = true,
                                 .n_parts = 1,
                                 .parts = {*part}};
    linear.parts[0].out_stride = stride;
    moec_linear_run(&linear);
    for (uint32_t t = 0; t < n_tok; t++)
        memset(part->out + t * stride + n_rows, 0, (stride - n_rows) * sizeof *part->out);
}
