/* Codes of the trellis scheme (formats/codec/trellis.h) by GPTQ.
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
 * those before it, takes the path of least squared error. Rows may then be taken in any order.
 *
 * Sums of what a path's errors make of the weights to come go with it, 16 kB for all states: outputs are walked
 * one by one, a block of weights each, so that they stay in the first-level cache.
 *
 * Scales begin as the root mean square of a row. Afterwards each becomes that of least error for the codes.
 */
#include "compiler/fit/gptq_internal.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/trellis.h"

#include <math.h>
#include <string.h>

#define STATES       MOEC_TRELLIS_STATES
#define WINDOW       64u
#define DECIDED      (WINDOW / 2)
#define CHUNK        MOEC_SUM_CHUNK /* rows of the factor that are multiplied at once */
#define WINDOW_PARTS (WINDOW / LANES)
#define NO_PATH      1e30f /* cost of a state that nothing reaches */
#define SEARCHES     2     /* of a row that is an input, with the scale fitted between them */

#define PARTS (STATES / LANES) /* vectors that have one element for each state */

/* The best path to each state, of one output. */
struct paths {
    vec costs[PARTS];
    vec targets[PARTS];             /* the next weight as the path corrects it */
    vec lows[2][PARTS];             /* the lower level that a coded bit of 0 or 1 allows */
    vec highs[2][PARTS];            /* and the upper one */
    vec_bits origins[PARTS];        /* the state in which the path entered the block at work */
    vec sums[STATES][WINDOW_PARTS]; /* what errors that are not decided make of weight i + 1, at i % WINDOW */
    /* Of weight i at i % WINDOW, of state s in element s % LANES from bit 8 (s / LANES) on: 1 where the upper
     * one of the two states before is the better, and 2 with the free bit. */
    vec_bits steps[WINDOW];
};

struct tile {
    const struct encoding *e;
    uint32_t output, n;           /* first, and how many there are */
    struct paths *paths;          /* (LANES) */
    vec (*others)[WINDOW_PARTS];  /* (STATES): sums as they change */
    vec *weights, *errors;        /* (K); errors of decided weights */
    vec *bases;                   /* (DECIDED) weights as decided errors correct them */
    vec *room;                    /* (CHUNK) */
    vec (*factors)[WINDOW_PARTS]; /* (DECIDED): of the block's weights, as sums have them */
    uint32_t first;               /* weight that is not decided */
    double largest;               /* R_ii^2: costs are relative to it */
};

static uint64_t tile_bytes(uint32_t n_input)
{
    return LANES * sizeof(struct paths) +
           (2 * (uint64_t)n_input + DECIDED + CHUNK + (STATES + DECIDED) * WINDOW_PARTS) * sizeof(vec);
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
    const uint64_t path = sizeof(uint64_t) + sizeof(float), rooms = (uint64_t)n_threads * GPTQ_WIDTH;
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
                                              .n_row = n_row,
                                              .n = n,
                                              .width = LANES,
                                              .stride = row_stride(gptq->n),
                                              .pitch = LANES,
                                              .room = (float *)tile->room};
    moec_gptq_multiply(&product, (float *)sums);
}

/* ---- rows that are outputs: one weight on ---- */

#define EVEN_HALF 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ODD_HALF  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31

/* Elements of two vectors in turns, those of `zero` first. */
#define INTERLEAVE(zero, one, out)                                                                           \
    do {                                                                                                     \
        (out)[0] = __builtin_shufflevector(zero, one, EVEN_HALF);                                            \
        (out)[1] = __builtin_shufflevector(zero, one, ODD_HALF);                                             \
    } while (0)

#define CHOSEN_BITS(mask, a, b) (((a) & ~(mask)) | ((b) & (mask)))

/* Each state's path with a coded bit of 0 or 1 and the better of the two free bits. */
struct branches {
    vec costs[2][PARTS];
    vec errors[2][PARTS];
    vec_bits uppers[2][PARTS];
};

static inline __attribute__((always_inline)) void branch(const struct paths *paths, float w, float price,
                                                         struct branches *branches)
{
    for (uint32_t x = 0; x < 2; x++)
        for (uint32_t v = 0; v < PARTS; v++) {
            const vec low = paths->targets[v] - paths->lows[x][v],
                      high = paths->targets[v] - paths->highs[x][v];
            const vec low_error = low * low, high_error = high * high;
            const vec_bits upper = (vec_bits)(high_error < low_error);
            branches->costs[x][v] = paths->costs[v] + price * CHOSEN(upper, low_error, high_error);
            branches->errors[x][v] = w - CHOSEN(upper, paths->lows[x][v], paths->highs[x][v]);
            branches->uppers[x][v] = upper & 2;
        }
}

/* What the step to each state is. */
struct choices {
    vec errors[PARTS];
    vec_bits froms[PARTS];
};

/* State s is reached by bit s % 2 from states s / 2 and s / 2 + 32. */
static inline __attribute__((always_inline)) void choose(struct paths *paths, const struct branches *branches,
                                                         struct choices *choices, vec_bits *steps)
{
    vec costs[PARTS];
    vec_bits origins[PARTS], packed = {0};
    for (uint32_t v = 0; v < PARTS / 2; v++) {
        const vec_bits first = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        vec cost[2], error[2];
        vec_bits from[2], origin[2], step[2], both[2];
        for (uint32_t x = 0; x < 2; x++) {
            const vec one = branches->costs[x][v], other = branches->costs[x][v + PARTS / 2];
            const vec_bits mask = (vec_bits)(other < one);
            cost[x] = CHOSEN(mask, one, other);
            error[x] = CHOSEN(mask, branches->errors[x][v], branches->errors[x][v + PARTS / 2]);
            step[x] =
                CHOSEN_BITS(mask, branches->uppers[x][v], branches->uppers[x][v + PARTS / 2]) | (mask & 1);
            origin[x] = CHOSEN_BITS(mask, paths->origins[v], paths->origins[v + PARTS / 2]);
            from[x] = first + LANES * v + (mask & STATES / 2);
        }
        INTERLEAVE(cost[0], cost[1], costs + 2 * v);
        INTERLEAVE(origin[0], origin[1], origins + 2 * v);
        INTERLEAVE(error[0], error[1], choices->errors + 2 * v);
        INTERLEAVE(from[0], from[1], choices->froms + 2 * v);
        INTERLEAVE(step[0], step[1], both);
        packed |= both[0] << 16 * v | both[1] << (16 * v + 8);
    }
    *steps = packed;
    memcpy(paths->costs, costs, sizeof costs);
    memcpy(paths->origins, origins, sizeof origins);
}

/* Sums of each state with the error of the step to it. */
static inline __attribute__((always_inline)) void extend(const struct choices *choices,
                                                         const vec factors[static WINDOW_PARTS],
                                                         vec (*sums)[WINDOW_PARTS], vec (*next)[WINDOW_PARTS])
{
    const float *errors = (const float *)choices->errors;
    const uint32_t *froms = (const uint32_t *)choices->froms;
    for (uint32_t s = 0; s < STATES; s++) {
        const vec *from = sums[froms[s]];
        _Pragma("GCC unroll 4") for (uint32_t part = 0; part < WINDOW_PARTS; part++) next[s][part] =
            from[part] + errors[s] * factors[part];
    }
}

/* One output's paths by n weights on, from `begin`, where a block begins. */
GPTQ_CLONES static void walk(const struct tile *tile, uint32_t lane, uint32_t begin, uint32_t n)
{
    const struct encoding *e = tile->e;
    struct paths *paths = &tile->paths[lane];
    vec(*sums)[WINDOW_PARTS] = paths->sums, (*next)[WINDOW_PARTS] = tile->others;
    for (uint32_t s = 0; s < STATES; s++) {
        ((uint32_t *)paths->origins)[s] = s;
        for (uint32_t part = 0; part < DECIDED / LANES; part++)
            sums[s][((begin + DECIDED) % WINDOW) / LANES + part] = (vec){0};
    }
    for (uint32_t i = begin; i < begin + n; i++) {
        const float base = i + 1 < e->gptq->n ? tile->bases[i - begin][lane] : 0;
        vec(*const last)[WINDOW_PARTS] = sums;
        struct branches branches;
        struct choices choices;
        branch(paths, tile->weights[i][lane], (float)(e->gptq->costs[i] / tile->largest), &branches);
        choose(paths, &branches, &choices, &paths->steps[i % WINDOW]);
        extend(&choices, tile->factors[i - begin], sums, next);
        for (uint32_t s = 0; s < STATES; s++)
            ((float *)paths->targets)[s] = base + ((const float *)next[s])[i % WINDOW];
        sums = next;
        next = last;
    }
}

/* ---- rows that are outputs: deciding ---- */

/* Takes the codes of weights first .. end - 1 from an output's path that is in `state` before weight `end`. */
static void take_codes(const struct tile *tile, uint32_t lane, uint32_t state, uint32_t end)
{
    const struct paths *paths = &tile->paths[lane];
    for (uint32_t i = end; i-- > tile->first;) {
        const uint32_t steps = ((const uint32_t *)&paths->steps[i % WINDOW])[state % LANES];
        const uint32_t step = steps >> state / LANES * 8, x = state & 1;
        const vec(*levels)[PARTS] = step & 2 ? paths->highs : paths->lows;
        state = state / 2 + (step & 1) * (STATES / 2);
        tile->errors[i][lane] = tile->weights[i][lane] - ((const float *)levels[x])[state];
        if (lane < tile->n)
            tile->e->codes[place_of(tile->e, i, tile->output + lane).weight] = (uint8_t)(x | (step & 2));
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
    const uint32_t *origins = (const uint32_t *)paths->origins, best = best_state(paths);
    const uint32_t origin = origins[best];
    const float least = costs[best];
    take_codes(tile, lane, origin, tile->first + DECIDED);
    for (uint32_t s = 0; s < STATES; s++)
        costs[s] = origins[s] == origin ? costs[s] - least : NO_PATH;
}

/* Weights begin + 1 .. begin + n as decided errors correct them. */
static void find_bases(const struct tile *tile, uint32_t begin, uint32_t n)
{
    memcpy(tile->bases, tile->weights + begin + 1, n * sizeof *tile->bases);
    multiply(tile, begin + 1, n, tile->errors, tile->first, tile->bases);
}

/* What errors of DECIDED weights from `begin` on make of those behind them that their sums have. */
static void list_factors(const struct tile *tile, uint32_t begin)
{
    const uint32_t n = tile->e->gptq->n;
    memset(tile->factors, 0, DECIDED * sizeof *tile->factors);
    for (uint32_t m = begin + 1; m <= begin + WINDOW && m < n; m++) {
        const float *row = unit_row(tile->e->gptq, m);
        for (uint32_t i = begin; i < begin + DECIDED && i < m; i++)
            ((float *)tile->factors[i - begin])[(m - 1) % WINDOW] = row[i];
    }
}

static void start(const struct tile *tile, uint32_t lane)
{
    const float scale = lane < tile->n ? tile->e->scales[tile->output + lane] : 0;
    struct paths *paths = &tile->paths[lane];
    memset(paths, 0, sizeof *paths);
    for (uint32_t s = 0; s < STATES; s++) {
        ((float *)paths->costs)[s] = s == 0 ? 0 : NO_PATH;
        ((float *)paths->targets)[s] = tile->weights[0][lane];
        for (uint32_t x = 0; x < 2; x++) {
            const uint32_t z = moec_trellis_subset(s << 1 | x);
            ((float *)paths->lows[x])[s] = moec_trellis_levels[z] * scale;
            ((float *)paths->highs[x])[s] = moec_trellis_levels[z + 4] * scale;
        }
    }
}

static void search_tile(struct tile *tile)
{
    const uint32_t n = tile->e->gptq->n;
    for (uint32_t lane = 0; lane < LANES; lane++)
        start(tile, lane);
    for (uint32_t begin = 0; begin < n; begin += DECIDED) {
        const uint32_t length = n - begin < DECIDED ? n - begin : DECIDED, left = n - begin - 1;
        if (begin - tile->first == WINDOW) {
            for (uint32_t lane = 0; lane < LANES; lane++)
                decide(tile, lane);
            tile->first += DECIDED;
        }
        find_bases(tile, begin, left < DECIDED ? left : DECIDED);
        list_factors(tile, begin);
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

static double root_mean_square(const float *weights, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)weights[i] * (double)weights[i];
    return sqrt(sum / (double)n);
}

/* Scales of all rows to begin with. What has none the codec refuses, with the weight that is to blame. */
static enum moec_status first_scales(struct encoding *e, struct moec_error *err)
{
    for (uint32_t r = 0; r < e->n_row; r++) {
        const float *weights = e->weights + (size_t)r * e->columns;
        const uint16_t half = moec_f32_to_f16((float)root_mean_square(weights, e->columns));
        if (half >= 0x7c00)
            return moec_codec_encode_row(e->codec, weights, e->columns, e->rows, err);
        e->scales[r] = moec_f16_to_f32(half);
    }
    return MOEC_OK;
}

static void pack_row(const struct encoding *e, uint32_t row)
{
    uint8_t *codes = e->codes + (size_t)row * e->columns;
    const uint16_t half = moec_f32_to_f16(e->scales[row]);
    const uint8_t stored[2] = {(uint8_t)half, (uint8_t)(half >> 8)};
    if (half == 0)
        memset(codes, MOEC_TRELLIS_FREE, e->columns); /* zeros without a sign */
    moec_codec_pack_row(e->codec, codes, stored, NULL, e->columns, e->rows + (size_t)row * e->row_bytes);
}

/* The levels that an output's codes have, one value in `stride`. */
static void list_levels(const struct encoding *e, uint32_t output, size_t stride, float *levels)
{
    uint32_t seven = 0;
    for (uint32_t i = 0; i < e->gptq->n; i++, levels += stride) {
        const uint8_t code = e->codes[place_of(e, i, output).weight];
        seven = (seven << 1 | (code & 1)) & 0x7f;
        *levels = moec_trellis_levels[(code & MOEC_TRELLIS_FREE) << 1 | moec_trellis_subset(seven)];
    }
}

/* A matrix whose rows are outputs, at work. */
struct matrix {
    struct encoding *e;
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
                                        .width = 2 * width,
                                        .stride = row_stride(gptq->n),
                                        .pitch = 2 * width,
                                        .room = made + CHUNK * 2 * width};
    for (uint32_t first = 0; first < gptq->n; first += CHUNK) {
        product.rows = unit_row(gptq, first);
        product.n_row = gptq->n - first < CHUNK ? gptq->n - first : CHUNK;
        product.n = first + product.n_row;
        memset(made, 0, (size_t)product.n_row * 2 * width * sizeof *made);
        moec_gptq_multiply(&product, made);
        const float *v = made;
        for (uint32_t i = first; i < product.n; i++, v += 2 * width)
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
    const uint32_t width = matrix->width, first = (uint32_t)item * width, left = e->n_output - first;
    const uint32_t n = left < width ? left : width;
    float *values = (float *)((uint8_t *)e->scratch + (size_t)thread * outputs_bytes(e->gptq->n, width));
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
        if (half != 0 && e->scales[first + o] > 0)
            e->scales[first + o] = moec_f16_to_f32(half);
        pack_row(e, first + o);
    }
}

static void encode_tile(void *context, size_t item, int thread)
{
    const struct matrix *matrix = context;
    struct encoding *e = matrix->e;
    const uint32_t output = (uint32_t)item * LANES, left = e->n_output - output, n = e->gptq->n;
    struct tile tile = {.e = e, .output = output, .n = left < LANES ? left : LANES};
    tile.paths =
        (struct paths *)(void *)((uint8_t *)e->scratch + (size_t)thread * outputs_bytes(n, matrix->width));
    tile.others = (vec(*)[WINDOW_PARTS])(tile.paths + LANES);
    tile.factors = tile.others + STATES;
    tile.weights = (vec *)(tile.factors + DECIDED);
    tile.errors = tile.weights + n;
    tile.bases = tile.errors + n;
    tile.room = tile.bases + DECIDED;
    for (uint32_t i = 0; i < n; i++) {
        tile.largest = e->gptq->costs[i] > tile.largest ? e->gptq->costs[i] : tile.largest;
        for (uint32_t lane = 0; lane < LANES; lane++)
            tile.weights[i][lane] = lane < tile.n ? e->weights[place_of(e, i, output + lane).weight] : 0;
    }
    search_tile(&tile);
}

static enum moec_status encode_outputs(struct encoding *e, const struct moec_pool *pool,
                                       struct moec_error *err)
{
    struct matrix matrix = {e, moec_gptq_width(e->n_output, pool->n_threads)};
    MOEC_TRY(moec_alloc_aligned((void **)&e->scratch, (uint64_t)pool->n_threads,
                                outputs_bytes(e->gptq->n, matrix.width), "paths of a matrix", err));
    moec_parallel_for(pool, (e->n_output + LANES - 1) / LANES, encode_tile, &matrix);
    moec_parallel_for(pool, (e->n_output + matrix.width - 1) / matrix.width, fit_scales, &matrix);
    free(e->scratch);
    return MOEC_OK;
}

/* ---- rows that are inputs ---- */

/* Rows in their order, corrected by errors of the chunks before theirs at once, then by those in theirs. */
struct row {
    const struct encoding *e;
    size_t stride;     /* of errors and corrected weights */
    float *errors;     /* (K, stride), in order */
    float *corrected;  /* (CHUNK, stride) weights of the chunk's rows */
    float *rooms;      /* (threads, CHUNK, GPTQ_WIDTH) */
    uint32_t i;        /* place in the order */
    float *values;     /* (stride) levels */
    uint64_t *choices; /* (stride) */
};

/* Outputs of the chunk that begins with row i, as the rows before it correct them. */
static void correct_chunk(void *context, size_t item, int thread)
{
    const struct row *row = context;
    const struct encoding *e = row->e;
    const uint32_t first = (uint32_t)item * GPTQ_WIDTH, left = (uint32_t)row->stride - first;
    const uint32_t n_row = e->n_row - row->i < CHUNK ? e->n_row - row->i : CHUNK;
    const uint32_t n = e->columns - first < GPTQ_WIDTH ? e->columns - first : GPTQ_WIDTH;
    for (uint32_t r = 0; r < n_row; r++) {
        const float *weights = e->weights + (size_t)e->gptq->order[row->i + r] * e->columns + first;
        memcpy(row->corrected + r * row->stride + first, weights, n * sizeof *weights);
    }
    const struct moec_gptq_product product = {.kernels = e->kernels,
                                              .rows = unit_row(e->gptq, row->i),
                                              .values = row->errors + first,
                                              .n_row = n_row,
                                              .n = row->i,
                                              .width = left < GPTQ_WIDTH ? left : GPTQ_WIDTH,
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
    for (uint32_t c = 0; c < row->e->columns; c++) {
        product += (double)corrected[c] * (double)row->values[c];
        square += (double)row->values[c] * (double)row->values[c];
    }
    return half_of(product / square);
}

static void encode_row(const struct row *row)
{
    const struct encoding *e = row->e;
    const uint32_t r = e->gptq->order[row->i];
    const float *weights = e->weights + (size_t)r * e->columns;
    uint8_t *codes = e->codes + (size_t)r * e->columns;
    float *errors = row->errors + row->i * row->stride;
    uint16_t half = half_of(root_mean_square(corrected_row(row), e->columns));
    for (int search = 0; search < SEARCHES && half != 0; search++) {
        moec_trellis_search(corrected_row(row), e->columns, moec_f16_to_f32(half), row->choices, codes);
        moec_trellis_values(codes, e->columns, row->values);
        const uint16_t fitted = fitted_scale(row);
        half = fitted != 0 ? fitted : half;
    }
    e->scales[r] = moec_f16_to_f32(half);
    for (uint32_t c = 0; c < e->columns; c++)
        errors[c] = weights[c] - (half != 0 ? row->values[c] * e->scales[r] : 0);
    pack_row(e, r);
}

static enum moec_status encode_inputs(struct encoding *e, const struct moec_pool *pool,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const size_t stride = padded(e->columns);
    const char *what = "paths of a matrix";
    struct row row = {.e = e, .stride = stride};
    MOEC_TRY_OUT(moec_alloc((void **)&row.errors, e->n_row, stride * sizeof *row.errors, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.corrected, CHUNK, stride * sizeof *row.corrected, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.rooms, (uint64_t)pool->n_threads * CHUNK,
                            GPTQ_WIDTH * sizeof *row.rooms, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.values, stride, sizeof *row.values, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&row.choices, stride, sizeof *row.choices, what, err));
    for (row.i = 0; row.i < e->n_row; row.i++) {
        if (row.i % CHUNK == 0)
            moec_parallel_for(pool, (stride + GPTQ_WIDTH - 1) / GPTQ_WIDTH, correct_chunk, &row);
        correct_row(&row);
        encode_row(&row);
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
    MOEC_TRY(first_scales(e, err));
    return e->by_input ? encode_inputs(e, pool, err) : encode_outputs(e, pool, err);
}
