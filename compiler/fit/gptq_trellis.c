/* Codes of the shift scheme (formats/codec/shift.h) by GPTQ.
 *
 * Where rows are outputs, Viterbi's algorithm walks along a row: each of the 64 states keeps the best path
 * that leads to it, and each path corrects the next weight by its own errors (per-survivor processing:
 * Raheli, Polydoros & Tzou, 1995), while what it costs is the error in the outputs, as in GPTQ. Paths agree
 * on what is long past, so they carry errors of at most WINDOW weights: when as many are open, the best path
 * decides about the older half, and paths that differ there end. With 32 in place of 64 experts lose 6 %
 * more; with 128, 2 % less at twice the time. Inputs are taken in the order of the columns, for this is the
 * trellis's.
 *
 * Where rows are inputs, weights of a row do not correct each other: each row, corrected by the errors of
 * those before it, takes the path of least squared error. Rows may then be taken in any order. Taking each row's
 * path again, for the errors that all others have by then, was found to gain 0.3 % of the error, and is left out.
 *
 * Sums of what a path's errors make of the weights to come go with it, for 16 weights at a time; what errors make of
 * later ones is summed when these are reached, for by then few paths differ in older errors. Outputs are walked one
 * by one, a block of weights each, so that all of it stays in the first-level cache.
 *
 * Scales begin with what moec_shift_scale foretells to be best. Afterwards each becomes that of least error for
 * the codes, without which rows of LONG weights lose .1 % more.
 */
#include "compiler/fit/gptq_internal.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/shift.h"

#include <math.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define STATES      MOEC_SHIFT_STATES
#define WINDOW      64u
#define DECIDED     (WINDOW / 2)
#define CHUNK       MOEC_SUM_CHUNK /* rows of the factor that are multiplied at once */
#define BLOCK_PARTS (DECIDED / LANES)
#define KEPT        3u    /* parts of LANES weights whose errors reach what comes next */
#define NO_PATH     1e30f /* cost of a state that nothing reaches */
#define SEARCHES    2     /* of a row that is an input, with the scale fitted between them */
#define LONG        2048u /* weights of rows whose first scale does: one search, and no fit afterwards */

#define PARTS  (STATES / LANES) /* vectors that have one element for each state */
#define OLDEST 4u               /* states before that lead to a state, by the oldest of their bits */
#define FREE   4u               /* levels at most that the same coded bits leave */

/* The best path to each state, of one output. Weights are taken in parts of LANES. */
struct paths {
    vec costs[PARTS];
    vec targets[PARTS];                   /* the next weight as the path corrects it */
    vec levels[FREE][OLDEST][PARTS];      /* of the step to a state, by its free bits, with which they rise */
    vec middles[FREE - 1][OLDEST][PARTS]; /* between a level and the next */
    /* Of part t at t % KEPT: the state in which the path entered it; and its errors, behind which stands what all
     * errors that are not decided make of the part's weights, as long as it is at work. */
    vec_bits starts[KEPT][PARTS];
    vec errors[KEPT][STATES];
    /* Of weight i at i % WINDOW, of state s in element s % LANES from bit 8 (s / LANES) on: the oldest bits of
     * the state before, and from bit 2 of it on the free bits. */
    vec_bits steps[WINDOW];
};

struct tile {
    const struct encoding *e;
    const struct moec_shift *shift;
    struct {
        uint32_t first, n;
    } outputs;
    struct paths *paths; /* (LANES) */
    struct {
        vec *others, *older; /* (STATES): errors as they change; sums of older errors */
    } states;
    struct {
        vec *weights, *errors; /* (K); errors of decided weights */
        vec *bases;            /* (DECIDED) weights as decided errors correct them */
        vec *room;             /* (CHUNK) */
        /* (BLOCK_PARTS): of the block before and the block, for each part's weights. */
        vec (*factors)[WINDOW];
    } arrays;
    uint32_t first; /* weight that is not decided */
    double largest; /* R_ii^2: costs are relative to it */
};

static uint64_t tile_bytes(uint32_t n_input)
{
    return LANES * sizeof(struct paths) +
           (2 * (uint64_t)n_input + DECIDED + CHUNK + 2 * STATES + WINDOW * BLOCK_PARTS) * sizeof(vec);
}

/* Of a thread that fits scales of `width` outputs. */
static uint64_t fit_bytes(uint32_t n_input, uint32_t width)
{
    return ((uint64_t)n_input + 2 * CHUNK) * 2 * width * sizeof(float);
}

static uint64_t outputs_bytes(uint32_t n_input, uint32_t width)
{
    const uint64_t tile = tile_bytes(n_input), fit = fit_bytes(n_input, width);
    return tile > fit ? tile : fit;
}

uint64_t moec_gptq_trellis_bytes(uint32_t n_row, uint32_t columns, bool by_input, int n_threads)
{
    const uint64_t path = sizeof(struct moec_shift_choices) + sizeof(float),
                   rooms = (uint64_t)n_threads * GPTQ_WIDTH;
    return by_input
               ? padded(columns) * ((n_row + CHUNK) * sizeof(float) + path) + rooms * CHUNK * sizeof(float)
               : (uint64_t)n_threads * outputs_bytes(columns, moec_gptq_width(n_row, n_threads));
}

/* sums (n_row) += rows first .. of the factor times n values. */
static void multiply(const struct tile *tile, uint32_t first, uint32_t n_row, const vec *values, uint32_t n,
                     vec *sums)
{
    const struct moec_gptq *gptq = tile->e->gptq;
    const struct moec_gptq_product product = {.kernels = tile->e->kernels,
                                              .rows = unit_row(gptq, first),
                                              .values = (const float *)values,
                                              .shape = {.n_row = n_row, .n = n, .width = LANES},
                                              .stride = row_stride(gptq->n),
                                              .pitch = LANES,
                                              .room = (float *)tile->arrays.room};
    moec_gptq_multiply(&product, (float *)sums);
}

/* ---- rows that are outputs: the paths by some weights on ---- */

/* What the step to each state is. */
struct choices {
    vec errors[PARTS];
    vec_bits froms[PARTS];
};

#define WALK_LANES 4
#define TARGET
#define NAMED(name) name##_plain
#include "compiler/fit/gptq_trellis_walk.h"

#ifdef __x86_64__
#define WALK_LANES  8
#define TARGET      __attribute__((target("avx2")))
#define NAMED(name) name##_avx2
#include "compiler/fit/gptq_trellis_walk.h"

#define WALK_LANES  16
#define TARGET      __attribute__((target("avx512f")))
#define NAMED(name) name##_avx512
#include "compiler/fit/gptq_trellis_walk.h"
#endif

/* One output's paths by n weights on, from `begin`, where a block begins. */
typedef void walker(const struct tile *tile, uint32_t lane, uint32_t begin, uint32_t n);

static walker *best_walk(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f"))
        return walk_avx512;
    if (__builtin_cpu_supports("avx2"))
        return walk_avx2;
#endif
    return walk_plain;
}

/* ---- rows that are outputs: deciding ---- */

/* Takes the codes of weights first .. end - 1 from an output's path that is in `state` before weight `end`. */
static void take_codes(const struct tile *tile, uint32_t lane, uint32_t state, uint32_t end)
{
    const struct paths *paths = &tile->paths[lane];
    for (uint32_t i = end; i-- > tile->first;) {
        const uint32_t steps = ((const uint32_t *)&paths->steps[i % WINDOW])[state % LANES];
        const uint32_t step = steps >> state / LANES * 8, oldest = step & 3, above = step >> 2 & 3;
        const vec *levels = &paths->levels[above][oldest][state / LANES];
        tile->arrays.errors[i][lane] = tile->arrays.weights[i][lane] - ((const float *)levels)[state % LANES];
        if (lane < tile->outputs.n)
            tile->e->out.codes[place_of(tile->e, i, tile->outputs.first + lane).weight] =
                (uint8_t)((state & MOEC_SHIFT_CODED) | above << 2);
        state = oldest * (STATES / OLDEST) + state / OLDEST;
    }
}

static uint32_t best_state(const struct paths *paths)
{
    const float *costs = (const float *)paths->costs;
    uint32_t best = 0;
    for (uint32_t s = 1; s < STATES; s++)
        best = costs[s] < costs[best] ? s : best;
    return best;
}

/* The older half of a full window follows the best path; paths that were in other states behind it end. */
static void decide(const struct tile *tile, uint32_t lane)
{
    struct paths *paths = &tile->paths[lane];
    float *costs = (float *)paths->costs;
    const uint32_t t = tile->first / LANES + 2 * BLOCK_PARTS, best = best_state(paths);
    const uint32_t *last = (const uint32_t *)paths->starts[(t + 2) % KEPT],
                   *before = (const uint32_t *)paths->starts[(t + 1) % KEPT];
    const uint32_t origin = before[last[best]];
    const float least = costs[best];
    take_codes(tile, lane, origin, tile->first + DECIDED);
    for (uint32_t s = 0; s < STATES; s++)
        costs[s] = before[last[s]] == origin ? costs[s] - least : NO_PATH;
}

/* Weights begin .. begin + n - 1 as decided errors correct them. */
static void find_bases(const struct tile *tile, uint32_t begin, uint32_t n)
{
    memcpy(tile->arrays.bases, tile->arrays.weights + begin, n * sizeof *tile->arrays.bases);
    multiply(tile, begin, n, tile->arrays.errors, tile->first, tile->arrays.bases);
}

/* What errors of the block before and of the block of n weights from `begin` on make of those of this block, and 1 of
 * their own place. */
static void list_factors(const struct tile *tile, uint32_t begin, uint32_t n)
{
    const uint32_t first = begin >= DECIDED ? begin - DECIDED : 0;
    memset(tile->arrays.factors, 0, BLOCK_PARTS * sizeof *tile->arrays.factors);
    for (uint32_t m = begin; m < begin + n; m++) {
        const float *row = unit_row(tile->e->gptq, m);
        for (uint32_t i = first; i <= m; i++)
            tile->arrays.factors[(m - begin) / LANES][i + DECIDED - begin][m % LANES] = row[i];
    }
}

static void start(const struct tile *tile, uint32_t lane)
{
    const float scale = lane < tile->outputs.n ? tile->e->out.scales[tile->outputs.first + lane] : 0;
    const struct moec_shift *shift = tile->shift;
    struct paths *paths = &tile->paths[lane];
    memset(paths, 0, sizeof *paths);
    for (uint32_t s = 0; s < STATES; s++) {
        ((float *)paths->costs)[s] = s == 0 ? 0 : NO_PATH;
        for (uint32_t o = 0; o < OLDEST; o++)
            for (uint32_t f = 0; f < 1u << shift->free_bits; f++) {
                const uint32_t from = o * (STATES / OLDEST) + s / OLDEST;
                const uint32_t place = moec_shift_place(shift, moec_shift_window(from, s & MOEC_SHIFT_CODED));
                ((float *)paths->levels[f][o])[s] =
                    (float)shift->levels[f << shift->coded_bits | place] * scale;
                if (f > 0)
                    paths->middles[f - 1][o][s / LANES][s % LANES] =
                        0.5f * (((float *)paths->levels[f - 1][o])[s] + ((float *)paths->levels[f][o])[s]);
            }
    }
}

static void search_tile(struct tile *tile, walker *walk)
{
    const uint32_t n = tile->e->gptq->n;
    for (uint32_t lane = 0; lane < LANES; lane++)
        start(tile, lane);
    for (uint32_t begin = 0; begin < n; begin += DECIDED) {
        const uint32_t length = n - begin < DECIDED ? n - begin : DECIDED;
        if (begin - tile->first == WINDOW) {
            for (uint32_t lane = 0; lane < LANES; lane++)
                decide(tile, lane);
            tile->first += DECIDED;
        }
        find_bases(tile, begin, length);
        list_factors(tile, begin, length);
        for (uint32_t lane = 0; lane < LANES; lane++)
            walk(tile, lane, begin, length);
    }
    for (uint32_t lane = 0; lane < LANES; lane++)
        take_codes(tile, lane, best_state(&tile->paths[lane]), n);
}

/* ---- scales ---- */

/* F16 bits of a scale; 0 for one that is not above 0 or too large. */
static uint16_t half_of(double scale)
{
    const uint16_t half = scale > 0 ? moec_f32_to_f16((float)scale) : 0;
    return half < 0x7c00 ? half : 0;
}

/* F16 bits of the scale that a row begins with; costs (columns) of errors, or NULL. */
static uint16_t first_half(const struct encoding *e, const float *weights, const float *costs)
{
    return moec_f32_to_f16(moec_shift_scale(moec_codec_bits(e->codec), weights, costs, e->shape.columns));
}

/* What the squared error of each input costs, relative to the geometric mean, to which the 16th power of the mean of
 * 16th roots is close. */
static void list_costs(const struct moec_gptq *gptq, float *costs)
{
    double mean = 0;
    for (uint32_t i = 0; i < gptq->n; i++)
        mean += sqrt(sqrt(sqrt(sqrt(gptq->costs[i])))) / gptq->n;
    for (int squares = 0; squares < 4; squares++)
        mean *= mean;
    for (uint32_t i = 0; i < gptq->n; i++)
        costs[i] = (float)(gptq->costs[i] / mean);
}

/* Scales of all rows to begin with. What has none the codec refuses, with the weight that is to blame. */
static enum moec_status first_scales(struct encoding *e, const float *costs, struct moec_error *err)
{
    for (uint32_t r = 0; r < e->shape.n_row; r++) {
        const float *weights = e->weights + (size_t)r * e->shape.columns;
        const uint16_t half = first_half(e, weights, costs);
        if (half >= 0x7c00)
            return moec_codec_encode_row(e->codec, weights, e->shape.columns, e->out.rows, err);
        e->out.scales[r] = moec_f16_to_f32(half);
    }
    return MOEC_OK;
}

static void pack_row(const struct encoding *e, uint32_t row)
{
    uint8_t *codes = e->out.codes + (size_t)row * e->shape.columns;
    const uint16_t half = moec_f32_to_f16(e->out.scales[row]);
    const uint8_t stored[2] = {(uint8_t)half, (uint8_t)(half >> 8)};
    if (half == 0)
        memset(codes, 0, e->shape.columns);
    moec_codec_pack_row(e->codec, codes, stored, NULL, e->shape.columns,
                        e->out.rows + (size_t)row * e->shape.row_bytes);
}

/* The levels that an output's codes have, one value in `stride`. */
static void list_levels(const struct encoding *e, uint32_t output, size_t stride, float *levels)
{
    const struct moec_shift *shift = moec_shift_of(moec_codec_bits(e->codec));
    uint32_t state = 0;
    for (uint32_t i = 0; i < e->gptq->n; i++, levels += stride) {
        const uint32_t code = e->out.codes[place_of(e, i, output).weight], coded = code & MOEC_SHIFT_CODED;
        const uint32_t place = moec_shift_place(shift, moec_shift_window(state, coded));
        *levels = (float)shift->levels[code >> 2 << shift->coded_bits | place];
        state = moec_shift_next(state, coded);
    }
}

/* A matrix whose rows are outputs, at work. */
struct matrix {
    struct encoding *e;
    walker *walk;
    uint32_t width;
};

/* For each output v' H w and v' H v, v the levels. Each row of `values` (K, 2 width) and of what is `made` of it
 * has all outputs' levels, then their weights. */
GPTQ_CLONES static void sum_products(const struct matrix *matrix, const float *values, float *made,
                                     double products[static GPTQ_WIDTH], double squares[static GPTQ_WIDTH])
{
    const struct moec_gptq *gptq = matrix->e->gptq;
    const uint32_t width = matrix->width;
    struct moec_gptq_product product = {.kernels = matrix->e->kernels,
                                        .values = values,
                                        .shape.width = 2 * width,
                                        .stride = row_stride(gptq->n),
                                        .pitch = 2 * width,
                                        .room = made + CHUNK * 2 * width};
    for (uint32_t first = 0; first < gptq->n; first += CHUNK) {
        product.rows = unit_row(gptq, first);
        product.shape.n_row = gptq->n - first < CHUNK ? gptq->n - first : CHUNK;
        product.shape.n = first + product.shape.n_row;
        memset(made, 0, (size_t)product.shape.n_row * 2 * width * sizeof *made);
        moec_gptq_multiply(&product, made);
        const float *v = made;
        for (uint32_t i = first; i < product.shape.n; i++, v += 2 * width)
            for (uint32_t from = 0; from < width; from += LANES)
                for (uint32_t o = from; o < from + LANES; o++) {
                    const double level = gptq->costs[i] * (double)v[o];
                    products[o] += level * (double)v[width + o];
                    squares[o] += level * (double)v[o];
                }
    }
}

/* Gives outputs the scales of least error in them for the codes that each has: v' H w / v' H v. */
static void fit_scales(void *context, size_t item, int thread)
{
    const struct matrix *matrix = context;
    struct encoding *e = matrix->e;
    const uint32_t width = matrix->width, first = (uint32_t)item * width, left = e->shape.n_output - first;
    const uint32_t n = left < width ? left : width;
    float *values = (float *)((uint8_t *)e->room.scratch + (size_t)thread * outputs_bytes(e->gptq->n, width));
    double products[GPTQ_WIDTH] = {0}, squares[GPTQ_WIDTH] = {0};
    for (uint32_t o = 0; o < n; o++)
        list_levels(e, first + o, 2 * width, values + o);
    for (uint32_t i = 0; i < e->gptq->n; i++) {
        float *weights = values + (2 * (size_t)i + 1) * width;
        for (uint32_t o = 0; o < n; o++)
            weights[o] = e->weights[place_of(e, i, first + o).weight];
        if (n < width) {
            memset(weights + n, 0, (width - n) * sizeof *weights);
            memset(weights - width + n, 0, (width - n) * sizeof *weights);
        }
    }
    sum_products(matrix, values, values + (size_t)e->gptq->n * 2 * width, products, squares);
    for (uint32_t o = 0; o < n; o++) {
        const uint16_t half = half_of(products[o] / squares[o]);
        if (half != 0 && e->out.scales[first + o] > 0)
            e->out.scales[first + o] = moec_f16_to_f32(half);
    }
}

static void encode_tile(void *context, size_t item, int thread)
{
    const struct matrix *matrix = context;
    struct encoding *e = matrix->e;
    const uint32_t output = (uint32_t)item * LANES, left = e->shape.n_output - output, n = e->gptq->n;
    struct tile tile = {.e = e, .outputs = {.first = output, .n = left < LANES ? left : LANES}};
    tile.shift = moec_shift_of(moec_codec_bits(e->codec));
    tile.paths = (struct paths *)(void *)((uint8_t *)e->room.scratch +
                                          (size_t)thread * outputs_bytes(n, matrix->width));
    tile.states.others = (vec *)(tile.paths + LANES);
    tile.states.older = tile.states.others + STATES;
    tile.arrays.factors = (vec(*)[WINDOW])(tile.states.older + STATES);
    tile.arrays.weights = (vec *)(tile.arrays.factors + BLOCK_PARTS);
    tile.arrays.errors = tile.arrays.weights + n;
    tile.arrays.bases = tile.arrays.errors + n;
    tile.arrays.room = tile.arrays.bases + DECIDED;
    for (uint32_t i = 0; i < n; i++) {
        tile.largest = e->gptq->costs[i] > tile.largest ? e->gptq->costs[i] : tile.largest;
        for (uint32_t lane = 0; lane < LANES; lane++)
            tile.arrays.weights[i][lane] =
                lane < tile.outputs.n ? e->weights[place_of(e, i, output + lane).weight] : 0;
    }
    search_tile(&tile, matrix->walk);
}

/* A weight's steps to each state, what its error makes of the weights of its part along each path, what errors of the
 * part before make of it, and what decided errors do. */
static uint64_t walk_multiply_adds(const struct encoding *e)
{
    const uint64_t n = e->gptq->n;
    return e->shape.n_output * n * (STATES * OLDEST + 2 * STATES * LANES + n / 2);
}

static enum moec_status encode_outputs(struct encoding *e, const struct moec_pool *pool, walker *walk,
                                       struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct matrix matrix = {e, walk, moec_gptq_width(e->shape.n_output, pool->n_threads)};
    float *costs = NULL;
    const char *what = "paths of a matrix";
    MOEC_TRY_OUT(moec_alloc((void **)&costs, e->gptq->n, sizeof *costs, what, err));
    list_costs(e->gptq, costs);
    MOEC_TRY_OUT(first_scales(e, costs, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&e->room.scratch, (uint64_t)pool->n_threads,
                                    outputs_bytes(e->gptq->n, matrix.width), what, err));
    moec_gptq_for(pool, (e->shape.n_output + LANES - 1) / LANES, encode_tile, &matrix, walk_multiply_adds(e));
    if (e->gptq->n < LONG)
        moec_gptq_for(pool, (e->shape.n_output + matrix.width - 1) / matrix.width, fit_scales, &matrix,
                      (uint64_t)e->shape.n_output * e->gptq->n * e->gptq->n);
    for (uint32_t r = 0; r < e->shape.n_row; r++)
        pack_row(e, r);
out:
    free(costs);
    free(e->room.scratch);
    return status;
}

/* ---- rows that are inputs ---- */

/* Rows in their order, corrected by errors of the chunks before theirs at once, then by those in theirs. */
struct row {
    const struct encoding *e;
    size_t stride;                      /* of errors and corrected weights */
    float *errors;                      /* (K, stride), in order */
    float *corrected;                   /* (CHUNK, stride) weights of the chunk's rows */
    float *rooms;                       /* (threads, CHUNK, GPTQ_WIDTH) */
    uint32_t i;                         /* place in the order */
    float *values;                      /* (stride) levels */
    struct moec_shift_choices *choices; /* (stride) */
};

/* Outputs of the chunk that begins with row i, as the rows before it correct them. */
static void correct_chunk(void *context, size_t item, int thread)
{
    const struct row *row = context;
    const struct encoding *e = row->e;
    const uint32_t first = (uint32_t)item * GPTQ_WIDTH, left = (uint32_t)row->stride - first;
    const uint32_t n_row = e->shape.n_row - row->i < CHUNK ? e->shape.n_row - row->i : CHUNK;
    const uint32_t n = e->shape.columns - first < GPTQ_WIDTH ? e->shape.columns - first : GPTQ_WIDTH;
    for (uint32_t r = 0; r < n_row; r++) {
        const float *weights = e->weights + (size_t)e->gptq->order[row->i + r] * e->shape.columns + first;
        memcpy(row->corrected + r * row->stride + first, weights, n * sizeof *weights);
    }
    const struct moec_gptq_product product = {
        .kernels = e->kernels,
        .rows = unit_row(e->gptq, row->i),
        .values = row->errors + first,
        .shape = {.n_row = n_row, .n = row->i, .width = left < GPTQ_WIDTH ? left : GPTQ_WIDTH},
        .stride = row_stride(e->gptq->n),
        .pitch = row->stride,
        .room = row->rooms + (size_t)thread * CHUNK * GPTQ_WIDTH};
    moec_gptq_multiply(&product, row->corrected + first);
}

static float *corrected_row(const struct row *row)
{
    return row->corrected + row->i % CHUNK * row->stride;
}

/* By the rows before it in its chunk. */
static void correct_row(const struct row *row)
{
    const uint32_t first = row->i / CHUNK * CHUNK;
    const float *factors = unit_row(row->e->gptq, row->i);
    for (uint32_t j = first; j < row->i; j++)
        row->e->kernels->add_scaled(factors[j], row->errors + j * row->stride, row->stride,
                                    corrected_row(row));
}

static uint16_t fitted_scale(const struct row *row)
{
    const float *corrected = corrected_row(row);
    double product = 0, square = 0;
    for (uint32_t c = 0; c < row->e->shape.columns; c++) {
        product += (double)corrected[c] * (double)row->values[c];
        square += (double)row->values[c] * (double)row->values[c];
    }
    return half_of(product / square);
}

static void encode_row(const struct row *row)
{
    const struct encoding *e = row->e;
    const uint32_t r = e->gptq->order[row->i];
    const float *weights = e->weights + (size_t)r * e->shape.columns;
    uint8_t *codes = e->out.codes + (size_t)r * e->shape.columns;
    float *errors = row->errors + row->i * row->stride;
    const uint32_t bits = moec_codec_bits(e->codec);
    uint16_t half = first_half(e, corrected_row(row), NULL);
    const int n_search = e->shape.columns < LONG ? SEARCHES : 1;
    half = half < 0x7c00 ? half : 0;
    for (int search = 0; search < n_search && half != 0; search++) {
        moec_shift_search(bits, corrected_row(row), e->shape.columns, moec_f16_to_f32(half), row->choices,
                          codes);
        moec_shift_values(bits, codes, e->shape.columns, row->values);
        const uint16_t fitted = fitted_scale(row);
        half = fitted != 0 ? fitted : half;
    }
    e->out.scales[r] = moec_f16_to_f32(half);
    for (uint32_t c = 0; c < e->shape.columns; c++)
        errors[c] = weights[c] - (half != 0 ? row->values[c] * e->out.scales[r] : 0);
    pack_row(e, r);
}

/* Of the errors in its chunk, and of each search's steps to every state. */
static uint64_t row_multiply_adds(const struct row *row)
{
    const uint64_t n_search = row->e->shape.columns < LONG ? SEARCHES : 1;
    return row->e->shape.columns * (row->i % CHUNK + n_search * STATES * OLDEST);
}

static enum moec_status encode_inputs(struct encoding *e, const struct moec_pool *pool,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const size_t stride = padded(e->shape.columns);
    const char *what = "paths of a matrix";
    struct row row = {.e = e, .stride = stride};
    MOEC_TRY_OUT(first_scales(e, NULL, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.errors, e->shape.n_row, stride * sizeof *row.errors, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.corrected, CHUNK, stride * sizeof *row.corrected, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.rooms, (uint64_t)pool->n_threads * CHUNK,
                            GPTQ_WIDTH * sizeof *row.rooms, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.values, stride, sizeof *row.values, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.choices, stride, sizeof *row.choices, what, err));
    for (row.i = 0; row.i < e->shape.n_row; row.i++) {
        if (row.i % CHUNK == 0)
            moec_gptq_for(pool, (stride + GPTQ_WIDTH - 1) / GPTQ_WIDTH, correct_chunk, &row,
                          (uint64_t)row.i * CHUNK * e->shape.columns);
        const uint64_t begun_ns = moec_work_begin(MOEC_WORK_FITTING);
        correct_row(&row);
        encode_row(&row);
        moec_work_end(MOEC_WORK_FITTING, begun_ns, row_multiply_adds(&row));
    }
out:
    free(row.errors);
    free(row.corrected);
    free(row.rooms);
    free(row.values);
    free(row.choices);
    return status;
}

enum moec_status moec_gptq_encode_trellis(struct encoding *e, const struct moec_pool *pool,
                                          struct moec_error *err)
{
    return e->by_input ? encode_inputs(e, pool, err) : encode_outputs(e, pool, best_walk(), err);
}
