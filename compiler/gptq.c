#include "compiler/gptq.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Rows and columns are worked on in lanes: a constant inner count is what lets the compiler use vector
 * instructions at -O2. Every element sees its own operations in one order, so lanes never show in a result.
 */
#define LANES        16u
#define CHUNK_TOKENS 32u

struct moec_gptq {
    uint32_t n; /* K */
    uint64_t n_token;
    double *h;       /* lower triangle: row i at row_offset(i), i + 1 values and padding to whole lanes */
    double *factor;  /* the same, in order: R_ji / R_ii at (i, j), j < i; NULL before moec_gptq_factor */
    double *inputs;  /* (CHUNK_TOKENS, K padded) */
    uint32_t *order; /* (K) inputs in the order in which they are rounded */
};

static uint32_t padded(uint32_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* Row i has (i / LANES + 1) * LANES values. */
static uint64_t row_offset(uint32_t i)
{
    const uint64_t q = i / LANES;
    return LANES * (LANES * q * (q + 1) / 2 + (i % LANES) * (q + 1));
}

uint64_t moec_gptq_bytes(uint32_t n_input)
{
    return row_offset(padded(n_input)) * sizeof(double) +
           (uint64_t)CHUNK_TOKENS * padded(n_input) * sizeof(double) + n_input * sizeof(uint32_t);
}

enum moec_status moec_gptq_create(uint32_t n_input, struct moec_gptq **out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_gptq *gptq = NULL;
    const char *what = "products of inputs";
    if (n_input == 0 || n_input > MOEC_GPTQ_MAX_INPUTS)
        return moec_fail(err, MOEC_ERR_LIMIT, "a matrix of %" PRIu32 " inputs, expected 1 to %u", n_input,
                         MOEC_GPTQ_MAX_INPUTS);
    MOEC_TRY(moec_alloc((void **)&gptq, 1, sizeof *gptq, what, err));
    gptq->n = n_input;
    MOEC_TRY_OUT(moec_alloc((void **)&gptq->h, row_offset(padded(n_input)), sizeof(double), what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&gptq->inputs, (uint64_t)CHUNK_TOKENS * padded(n_input), sizeof(double),
                            what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&gptq->order, n_input, sizeof(uint32_t), what, err));
    *out = gptq;
    gptq = NULL;
out:
    moec_gptq_free(gptq);
    return status;
}

void moec_gptq_free(struct moec_gptq *gptq)
{
    if (gptq == NULL)
        return;
    free(gptq->h);
    free(gptq->factor);
    free(gptq->inputs);
    free(gptq->order);
    free(gptq);
}

/* ---- products of inputs ---- */

struct adding {
    struct moec_gptq *gptq;
    uint32_t n_tok;
};

/* LANES rows of H: tokens are added in their order. */
static void add_band(void *context, size_t item, int thread)
{
    (void)thread;
    const struct adding *adding = context;
    const struct moec_gptq *gptq = adding->gptq;
    const size_t stride = padded(gptq->n);
    const uint32_t first = (uint32_t)item * LANES;
    for (uint32_t i = first; i < first + LANES && i < gptq->n; i++) {
        double *row = gptq->h + row_offset(i);
        for (uint32_t j = 0; j <= i; j += LANES) {
            const double *x = gptq->inputs;
            double sums[LANES];
            memcpy(sums, row + j, sizeof sums);
            for (uint32_t t = 0; t < adding->n_tok; t++, x += stride) {
                const double factor = x[i];
                for (uint32_t lane = 0; lane < LANES; lane++)
                    sums[lane] += factor * x[j + lane];
            }
            memcpy(row + j, sums, sizeof sums);
        }
    }
}

void moec_gptq_add(struct moec_gptq *gptq, const struct moec_pool *pool, const float *x, size_t stride,
                   uint32_t n_tok)
{
    const uint32_t width = padded(gptq->n);
    for (uint32_t first = 0; first < n_tok; first += CHUNK_TOKENS) {
        struct adding adding = {gptq, n_tok - first < CHUNK_TOKENS ? n_tok - first : CHUNK_TOKENS};
        for (uint32_t t = 0; t < adding.n_tok; t++)
            for (uint32_t i = 0; i < width; i++)
                gptq->inputs[(size_t)t * width + i] = (double)x[(first + t) * stride + i];
        moec_parallel_for(pool, width / LANES, add_band, &adding);
    }
    gptq->n_token += n_tok;
}

/* ---- order and factor ---- */

/* Largest H_ii first, ties to the lower index. */
static int compare_inputs(const void *a, const void *b, void *context)
{
    const struct moec_gptq *gptq = context;
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const double left = gptq->h[row_offset(i) + i], right = gptq->h[row_offset(j) + j];
    if (left != right)
        return left > right ? -1 : 1;
    return i < j ? -1 : 1;
}

static double h_at(const struct moec_gptq *gptq, uint32_t i, uint32_t j)
{
    return i > j ? gptq->h[row_offset(i) + j] : gptq->h[row_offset(j) + i];
}

/* Copies H in order, with damping, into `factor`. */
static enum moec_status copy_ordered(struct moec_gptq *gptq, struct moec_error *err)
{
    double sum = 0;
    for (uint32_t i = 0; i < gptq->n; i++) {
        const double square = gptq->h[row_offset(i) + i];
        if (!isfinite(square))
            return moec_fail(err, MOEC_ERR_FORMAT, "input %" PRIu32 " of the matrix is not finite", i);
        gptq->order[i] = i;
        sum += square;
    }
    const double damping = MOEC_GPTQ_DAMPING * sum / gptq->n;
    qsort_r(gptq->order, gptq->n, sizeof *gptq->order, compare_inputs, gptq);
    for (uint32_t i = 0; i < gptq->n; i++) {
        double *row = gptq->factor + row_offset(i);
        for (uint32_t j = 0; j <= i; j++)
            row[j] = h_at(gptq, gptq->order[i], gptq->order[j]);
        row[i] += damping;
    }
    return MOEC_OK;
}

struct block {
    double *factor;
    uint32_t begin, end; /* rows that are finished */
};

/* row[0..] -= sum over finished rows m, last first, of their value at i times their values. */
static void subtract_rows(const struct block *block, uint32_t i)
{
    double *row = block->factor + row_offset(i);
    for (uint32_t j = 0; j <= i; j += LANES) {
        double values[LANES];
        memcpy(values, row + j, sizeof values);
        for (uint32_t m = block->end; m-- > block->begin;) {
            const double *finished = block->factor + row_offset(m);
            const double factor = finished[i];
            for (uint32_t lane = 0; lane < LANES; lane++)
                values[lane] -= factor * finished[j + lane];
        }
        memcpy(row + j, values, sizeof values);
    }
}

static void subtract_band(void *context, size_t item, int thread)
{
    (void)thread;
    const struct block *block = context;
    const uint32_t first = (uint32_t)item * LANES;
    for (uint32_t i = first; i < first + LANES && i < block->begin; i++)
        subtract_rows(block, i);
}

/* Rows become those of R': from the last one up, H_ij less what the rows below make of it, over R_ii. */
static enum moec_status factorise(struct moec_gptq *gptq, const struct moec_pool *pool,
                                  struct moec_error *err)
{
    struct block block = {gptq->factor, padded(gptq->n), gptq->n};
    for (; block.end > 0; block.end = block.begin) {
        block.begin -= LANES;
        for (uint32_t m = block.end; m-- > block.begin;) {
            double *row = gptq->factor + row_offset(m);
            if (!(row[m] > 0))
                return moec_fail(err, MOEC_ERR_FORMAT,
                                 "the products of the inputs are not positive at %" PRIu32 " of %" PRIu32, m,
                                 gptq->n);
            const double root = sqrt(row[m]);
            for (uint32_t j = 0; j <= m; j++)
                row[j] /= root;
            const struct block last = {gptq->factor, m, m + 1};
            for (uint32_t i = block.begin; i < m; i++)
                subtract_rows(&last, i);
        }
        moec_parallel_for(pool, (block.begin + LANES - 1) / LANES, subtract_band, &block);
    }
    return MOEC_OK;
}

enum moec_status moec_gptq_factor(struct moec_gptq *gptq, const struct moec_pool *pool,
                                  struct moec_error *err)
{
    double most = 0;
    for (uint32_t i = 0; i < gptq->n; i++)
        most = gptq->h[row_offset(i) + i] > most ? gptq->h[row_offset(i) + i] : most;
    if (gptq->n_token == 0 || (most == 0 && !isnan(gptq->h[0])))
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&gptq->factor, row_offset(padded(gptq->n)), sizeof(double),
                        "the factor of the inputs' products", err));
    enum moec_status status = copy_ordered(gptq, err);
    if (status == MOEC_OK)
        status = factorise(gptq, pool, err);
    if (status != MOEC_OK) {
        free(gptq->factor);
        gptq->factor = NULL;
        return status;
    }
    for (uint32_t i = 0; i < gptq->n; i++) {
        double *row = gptq->factor + row_offset(i);
        for (uint32_t j = 0; j < i; j++)
            row[j] /= row[i];
    }
    return MOEC_OK;
}

/* ---- codes ---- */

struct encoding {
    const struct moec_gptq *gptq;
    struct moec_codec codec;
    bool by_input;
    const float *weights;
    uint32_t n_row, columns;
    uint32_t n_output;
    size_t groups;
    size_t row_bytes;
    uint8_t *rows;
    float *scales;   /* (n_row, groups) */
    uint8_t *zeros;  /* (n_row, groups) */
    uint8_t *codes;  /* (n_row, columns) */
    double *scratch; /* (threads, 2, K, LANES): weights in order, and errors of those that are rounded */
    struct moec_error *errors; /* (threads) */
};

/* The linear quantizer's row, for its scales, and where there is no factor to stay. */
static void encode_linear(void *context, size_t item, int thread)
{
    const struct encoding *e = context;
    uint8_t *row = e->rows + item * e->row_bytes;
    if (e->errors[thread].status != MOEC_OK)
        return;
    if (moec_codec_encode_row(e->codec, e->weights + item * e->columns, e->columns, row,
                              &e->errors[thread]) != MOEC_OK)
        return;
    moec_codec_row_scales(e->codec, row, e->columns, e->scales + item * e->groups,
                          e->zeros + item * e->groups);
}

/* Where weight (input, output) stands in the matrix. */
struct place {
    size_t weight; /* of weights and codes */
    size_t group;  /* of scales and zeros */
};

static struct place place_of(const struct encoding *e, uint32_t input, uint32_t output)
{
    const size_t row = e->by_input ? input : output, column = e->by_input ? output : input;
    const size_t group = e->codec.group == 0 ? 0 : column / e->codec.group;
    return (struct place){row * e->columns + column, row * e->groups + group};
}

/* u = w + sum of factors times errors, for LANES outputs. */
static void compensate(const double *factors, uint32_t n, const double *errors, const double *w, double *u)
{
    double sums[LANES];
    memcpy(sums, w, sizeof sums);
    for (uint32_t j = 0; j < n; j++, errors += LANES) {
        const double factor = factors[j];
        for (uint32_t lane = 0; lane < LANES; lane++)
            sums[lane] += factor * errors[lane];
    }
    memcpy(u, sums, sizeof sums);
}

static uint8_t round_code(double u, float scale, uint8_t zero, double highest, double *decoded)
{
    if (scale == 0) {
        *decoded = 0;
        return zero;
    }
    double code = nearbyint(u / (double)scale) + zero;
    code = code < 0 ? 0 : code;
    code = code > highest ? highest : code;
    *decoded = (code - zero) * (double)scale;
    return (uint8_t)code;
}

/* LANES outputs, or what is left of them: an output that is not there has weights of zero. */
static void encode_outputs(void *context, size_t item, int thread)
{
    const struct encoding *e = context;
    const struct moec_gptq *gptq = e->gptq;
    const uint32_t first = (uint32_t)item * LANES;
    const uint32_t n = e->n_output - first < LANES ? e->n_output - first : LANES;
    const double highest = (double)((1u << moec_codec_bits(e->codec)) - 1);
    double *weights = e->scratch + (size_t)thread * 2 * gptq->n * LANES, *errors = weights + gptq->n * LANES;
    for (uint32_t i = 0; i < gptq->n; i++)
        for (uint32_t lane = 0; lane < LANES; lane++)
            weights[i * LANES + lane] =
                lane < n ? (double)e->weights[place_of(e, gptq->order[i], first + lane).weight] : 0;
    for (uint32_t i = 0; i < gptq->n; i++) {
        const double *w = weights + i * LANES;
        double u[LANES];
        compensate(gptq->factor + row_offset(i), i, errors, w, u);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            double decoded = 0;
            if (lane < n) {
                const struct place place = place_of(e, gptq->order[i], first + lane);
                e->codes[place.weight] =
                    round_code(u[lane], e->scales[place.group], e->zeros[place.group], highest, &decoded);
            }
            errors[i * LANES + lane] = w[lane] - decoded;
        }
    }
}

static void pack(void *context, size_t item, int thread)
{
    (void)thread;
    const struct encoding *e = context;
    moec_codec_replace_codes(e->codec, e->codes + item * e->columns, e->columns,
                             e->rows + item * e->row_bytes);
}

enum moec_status moec_gptq_encode(const struct moec_gptq *gptq, const struct moec_pool *pool,
                                  struct moec_codec codec, bool by_input, const float *weights,
                                  uint32_t n_row, uint32_t columns, uint8_t *rows, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const char *what = "codes of a matrix";
    struct encoding e = {.gptq = gptq,
                         .codec = codec,
                         .by_input = by_input,
                         .weights = weights,
                         .n_row = n_row,
                         .columns = columns,
                         .n_output = by_input ? columns : n_row,
                         .groups = moec_codec_row_groups(codec, columns),
                         .row_bytes = moec_codec_row_bytes(codec, columns),
                         .rows = rows};
    const uint64_t n_group = (uint64_t)n_row * e.groups, n_threads = (uint64_t)pool->n_threads;
    e.codec.quantizer = MOEC_QUANTIZER_LINEAR;
    if ((by_input ? n_row : columns) != gptq->n)
        return moec_fail(err, MOEC_ERR_MISMATCH, "a matrix of %" PRIu32 " inputs, expected %" PRIu32,
                         by_input ? n_row : columns, gptq->n);
    MOEC_TRY_OUT(moec_alloc((void **)&e.errors, n_threads, sizeof *e.errors, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&e.scales, n_group, sizeof *e.scales, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&e.zeros, n_group, 1, what, err));
    moec_parallel_for(pool, n_row, encode_linear, &e);
    for (uint64_t i = 0; i < n_threads; i++)
        if (e.errors[i].status != MOEC_OK) {
            status = moec_fail(err, e.errors[i].status, "%s", e.errors[i].message);
            goto out;
        }
    if (gptq->factor == NULL)
        goto out;
    MOEC_TRY_OUT(moec_alloc((void **)&e.codes, (uint64_t)n_row * columns, 1, what, err));
    MOEC_TRY_OUT(
        moec_alloc_aligned((void **)&e.scratch, n_threads * 2 * gptq->n * LANES, sizeof(double), what, err));
    moec_parallel_for(pool, (e.n_output + LANES - 1) / LANES, encode_outputs, &e);
    moec_parallel_for(pool, n_row, pack, &e);
out:
    free(e.errors);
    free(e.scales);
    free(e.zeros);
    free(e.codes);
    free(e.scratch);
    return status;
}
