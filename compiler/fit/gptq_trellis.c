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
 * Scales begin as the root mean square of a row. Afterwards each becomes that of least error for the codes.
 */
#include "compiler/fit/gptq_internal.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/trellis.h"

#include <math.h>
#include <string.h>

#define STATES   MOEC_TRELLIS_STATES
#define LEVELS   MOEC_TRELLIS_LEVELS
#define WINDOW   64u
#define DECIDED  (WINDOW / 2)
#define CHUNK    MOEC_SUM_CHUNK /* rows of the factor that are multiplied at once */
#define NO_PATH  1e30f          /* cost of a state that nothing reaches */
#define SEARCHES 2              /* of a row that is an input, with the scale fitted between them */

/* The best path to each state. */
struct survivors {
    vec costs[STATES];
    vec targets[STATES];        /* the next weight as the path corrects it */
    vec_bits coded[STATES][2];  /* the last 64 coded bits, the newest lowest; [1] has the older 32 */
    vec_bits uppers[STATES][2]; /* free bits */
    vec errors[STATES][WINDOW]; /* weight less level, of weight i at i % WINDOW */
};

/* What each state's path becomes with a coded bit of 0 or 1 and the better of the two free bits. */
struct branches {
    vec costs[STATES][2];
    vec errors[STATES][2];
    vec_bits uppers[STATES][2];
};

struct search {
    struct survivors survivors[2];
    struct branches branches;
    vec_bits chosen[STATES]; /* which of a state's two branches came out best: all ones for that of the upper
                            state */
};

struct tile {
    struct encoding *e;
    struct search *search;
    uint32_t output, n;    /* first, and how many there are */
    vec *weights, *errors; /* (K); errors of decided weights */
    vec *bases;            /* (DECIDED) weights as decided errors correct them */
    vec *made;             /* (2, CHUNK): products */
    vec *room;             /* (CHUNK) */
    vec levels[LEVELS];    /* times each output's scale */
    uint32_t first;        /* weight that is not decided */
    double largest;        /* R_ii^2: costs are relative to it */
};

static uint64_t tile_bytes(uint32_t n_input)
{
    return sizeof(struct search) + (2 * (uint64_t)n_input + DECIDED + 3 * CHUNK) * sizeof(vec);
}

uint64_t moec_gptq_trellis_bytes(uint32_t n_row, uint32_t columns, bool by_input, int n_threads)
{
    const uint64_t path = sizeof(uint64_t) + sizeof(float), rooms = (uint64_t)n_threads * GPTQ_WIDTH;
    return by_input
               ? padded(columns) * ((n_row + CHUNK) * sizeof(float) + path) + rooms * CHUNK * sizeof(float)
               : (uint64_t)n_threads * tile_bytes(columns);
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

GPTQ_CLONES static void branch(struct tile *tile, uint32_t i, const struct survivors *now)
{
    struct branches *branches = &tile->search->branches;
    const float price = (float)(tile->e->gptq->costs[i] / tile->largest);
    const vec w = tile->weights[i];
    for (uint32_t s = 0; s < STATES; s++)
        for (uint32_t x = 0; x < 2; x++) {
            const uint32_t z = moec_trellis_subset(s << 1 | x);
            const vec low = now->targets[s] - tile->levels[z], high = now->targets[s] - tile->levels[z + 4];
            const vec low_error = low * low, high_error = high * high;
            const vec_bits upper = (vec_bits)(high_error < low_error);
            branches->costs[s][x] = now->costs[s] + price * CHOSEN(upper, low_error, high_error);
            branches->errors[s][x] = w - CHOSEN(upper, tile->levels[z], tile->levels[z + 4]);
            branches->uppers[s][x] = upper & 1;
        }
}

/* State s is reached by bit s % 2 from states s / 2 and s / 2 + 32. */
GPTQ_CLONES static void choose(struct tile *tile, uint32_t i, const struct survivors *now,
                               struct survivors *next)
{
    const struct branches *branches = &tile->search->branches;
    for (uint32_t s = 0; s < STATES; s++) {
        const uint32_t a = s / 2, b = a + STATES / 2, x = s % 2;
        const vec_bits mask = (vec_bits)(branches->costs[b][x] < branches->costs[a][x]);
        const vec_bits coded = ((now->coded[a][0] & ~mask) | (now->coded[b][0] & mask));
        const vec_bits uppers = ((now->uppers[a][0] & ~mask) | (now->uppers[b][0] & mask));
        const vec_bits upper = (branches->uppers[a][x] & ~mask) | (branches->uppers[b][x] & mask);
        tile->search->chosen[s] = mask;
        next->costs[s] = CHOSEN(mask, branches->costs[a][x], branches->costs[b][x]);
        next->errors[s][i % WINDOW] = CHOSEN(mask, branches->errors[a][x], branches->errors[b][x]);
        next->coded[s][0] = coded << 1 | x;
        next->coded[s][1] = ((now->coded[a][1] & ~mask) | (now->coded[b][1] & mask)) << 1 | coded >> 31;
        next->uppers[s][0] = uppers << 1 | upper;
        next->uppers[s][1] = ((now->uppers[a][1] & ~mask) | (now->uppers[b][1] & mask)) << 1 | uppers >> 31;
    }
}

/* Errors of weights first .. i - 1 go with the chosen paths, and with that of weight i correct weight i + 1.
 */
GPTQ_CLONES static void extend(struct tile *tile, uint32_t i, const struct survivors *now,
                               struct survivors *next)
{
    const float *factors = unit_row(tile->e->gptq, i + 1) + tile->first;
    const uint32_t n = i - tile->first;
    uint32_t places[WINDOW];
    const vec base = tile->first == 0 ? tile->weights[i + 1] : tile->bases[n - DECIDED];
    for (uint32_t k = 0; k <= n; k++)
        places[k] = (tile->first + k) % WINDOW;
    for (uint32_t a = 0; a < STATES / 2; a++) {
        const vec *one = now->errors[a], *other = now->errors[a + STATES / 2];
        vec *even = next->errors[2 * a], *odd = next->errors[2 * a + 1];
        const vec_bits even_chosen = tile->search->chosen[2 * a],
                       odd_chosen = tile->search->chosen[2 * a + 1];
        vec even_target = base, odd_target = base;
        for (uint32_t k = 0; k < n; k++) {
            const uint32_t at = places[k];
            const vec even_error = CHOSEN(even_chosen, one[at], other[at]);
            const vec odd_error = CHOSEN(odd_chosen, one[at], other[at]);
            even[at] = even_error;
            odd[at] = odd_error;
            even_target += factors[k] * even_error;
            odd_target += factors[k] * odd_error;
        }
        next->targets[2 * a] = even_target + factors[n] * even[places[n]];
        next->targets[2 * a + 1] = odd_target + factors[n] * odd[places[n]];
    }
}

/* ---- rows that are outputs: deciding ---- */

/* Takes the codes of n weights, of which the first has bit `top` of `coded` and `uppers`, from output's path.
 */
static void take_codes(const struct tile *tile, uint32_t lane, uint32_t state, uint32_t n, uint32_t top,
                       const struct survivors *now)
{
    const uint64_t coded = (uint64_t)now->coded[state][1][lane] << 32 | now->coded[state][0][lane];
    const uint64_t uppers = (uint64_t)now->uppers[state][1][lane] << 32 | now->uppers[state][0][lane];
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t i = tile->first + k;
        const uint64_t x = coded >> (top - k) & 1, f = uppers >> (top - k) & 1;
        tile->errors[i][lane] = now->errors[state][i % WINDOW][lane];
        if (lane < tile->n)
            tile->e->codes[place_of(tile->e, i, tile->output + lane).weight] = (uint8_t)(x | f << 1);
    }
}

static uint32_t best_state(const struct survivors *now, uint32_t lane)
{
    uint32_t best = 0;
    for (uint32_t s = 1; s < STATES; s++)
        best = now->costs[s][lane] < now->costs[best][lane] ? s : best;
    return best;
}

/* What decided errors make of the weights that follow before more are decided, for all paths. */
static void correct(struct tile *tile)
{
    const uint32_t begin = tile->first + DECIDED + 1, left = tile->e->gptq->n - begin;
    if (begin >= tile->e->gptq->n)
        return;
    const uint32_t n = left < DECIDED ? left : DECIDED;
    memcpy(tile->bases, tile->weights + begin, n * sizeof *tile->bases);
    multiply(tile, begin, n, tile->errors, tile->first, tile->bases);
}

/* The older half of a full window follows the best path; the others' paths end where they differ there. */
static void decide(struct tile *tile, struct survivors *now)
{
    vec least;
    vec_bits coded, uppers;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const uint32_t best = best_state(now, lane);
        take_codes(tile, lane, best, DECIDED, WINDOW - 1, now);
        least[lane] = now->costs[best][lane];
        coded[lane] = now->coded[best][1][lane];
        uppers[lane] = now->uppers[best][1][lane];
    }
    for (uint32_t s = 0; s < STATES; s++) {
        const vec_bits same = (vec_bits)(((now->coded[s][1] ^ coded) | (now->uppers[s][1] ^ uppers)) == 0);
        const vec none = (vec){0} + NO_PATH;
        now->costs[s] = CHOSEN(same, none, now->costs[s] - least);
    }
    tile->first += DECIDED;
    correct(tile);
}

static void start(struct tile *tile, struct survivors *now)
{
    memset(tile->search, 0, sizeof *tile->search);
    for (uint32_t s = 0; s < STATES; s++) {
        now->costs[s] = (vec){0} + (s == 0 ? 0 : NO_PATH);
        now->targets[s] = tile->weights[0];
    }
}

static void search_tile(struct tile *tile)
{
    const uint32_t n = tile->e->gptq->n;
    struct survivors *now = &tile->search->survivors[0], *next = &tile->search->survivors[1];
    start(tile, now);
    for (uint32_t i = 0; i < n; i++) {
        struct survivors *const last = now;
        if (i - tile->first == WINDOW)
            decide(tile, now);
        branch(tile, i, now);
        choose(tile, i, now, next);
        if (i + 1 < n)
            extend(tile, i, now, next);
        now = next;
        next = last;
    }
    for (uint32_t lane = 0; lane < LANES; lane++)
        take_codes(tile, lane, best_state(now, lane), n - tile->first, n - tile->first - 1, now);
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

/* The levels that each output's codes have. */
static void list_levels(const struct tile *tile, vec *values)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        uint32_t seven = 0;
        for (uint32_t i = 0; i < tile->e->gptq->n; i++) {
            const uint8_t code = lane < tile->n
                                     ? tile->e->codes[place_of(tile->e, i, tile->output + lane).weight]
                                     : MOEC_TRELLIS_FREE;
            seven = (seven << 1 | (code & 1)) & 0x7f;
            values[i][lane] =
                moec_trellis_levels[(code & MOEC_TRELLIS_FREE) << 1 | moec_trellis_subset(seven)];
        }
    }
}

/* The scale of least error in the outputs for the codes that each has: v' H w / v' H v, v the levels. */
GPTQ_CLONES static void fit_scales(const struct tile *tile)
{
    const struct encoding *e = tile->e;
    const uint32_t n = e->gptq->n;
    vec *values = tile->errors; /* which are no longer wanted */
    vec *v = tile->made, *w = tile->made + CHUNK;
    double products[LANES] = {0}, squares[LANES] = {0};
    list_levels(tile, values);
    for (uint32_t first = 0; first < n; first += CHUNK) {
        const uint32_t n_row = n - first < CHUNK ? n - first : CHUNK;
        memset(tile->made, 0, 2 * CHUNK * sizeof *tile->made);
        multiply(tile, first, n_row, values, first + n_row, v);
        multiply(tile, first, n_row, tile->weights, first + n_row, w);
        for (uint32_t i = 0; i < n_row; i++)
            for (uint32_t lane = 0; lane < LANES; lane++) {
                const double level = e->gptq->costs[first + i] * (double)v[i][lane];
                products[lane] += level * (double)w[i][lane];
                squares[lane] += level * (double)v[i][lane];
            }
    }
    for (uint32_t lane = 0; lane < tile->n; lane++) {
        const uint16_t half = half_of(products[lane] / squares[lane]);
        if (half != 0 && e->scales[tile->output + lane] > 0)
            e->scales[tile->output + lane] = moec_f16_to_f32(half);
    }
}

static void encode_tile(void *context, size_t item, int thread)
{
    struct encoding *e = context;
    const uint32_t output = (uint32_t)item * LANES, left = e->n_output - output, n = e->gptq->n;
    struct tile tile = {.e = e, .output = output, .n = left < LANES ? left : LANES};
    tile.search = (struct search *)(void *)((uint8_t *)e->scratch + (size_t)thread * tile_bytes(n));
    tile.weights = (vec *)(tile.search + 1);
    tile.errors = tile.weights + n;
    tile.bases = tile.errors + n;
    tile.made = tile.bases + DECIDED;
    tile.room = tile.made + 2 * CHUNK;
    for (uint32_t i = 0; i < n; i++) {
        tile.largest = e->gptq->costs[i] > tile.largest ? e->gptq->costs[i] : tile.largest;
        for (uint32_t lane = 0; lane < LANES; lane++)
            tile.weights[i][lane] = lane < tile.n ? e->weights[place_of(e, i, output + lane).weight] : 0;
    }
    for (uint32_t lane = 0; lane < LANES; lane++)
        for (uint32_t level = 0; level < LEVELS; level++)
            tile.levels[level][lane] =
                lane < tile.n ? moec_trellis_levels[level] * e->scales[output + lane] : 0;
    search_tile(&tile);
    fit_scales(&tile);
    for (uint32_t lane = 0; lane < tile.n; lane++)
        pack_row(e, output + lane);
}

static enum moec_status encode_outputs(struct encoding *e, const struct moec_pool *pool,
                                       struct moec_error *err)
{
    MOEC_TRY(moec_alloc_aligned((void **)&e->scratch, (uint64_t)pool->n_threads, tile_bytes(e->gptq->n),
                                "paths of a matrix", err));
    moec_parallel_for(pool, (e->n_output + LANES - 1) / LANES, encode_tile, e);
    free(e->scratch);
    return MOEC_OK;
}

/* ---- rows that are inputs ---- */

/* Rows in their order, corrected by chunks: first by errors of the chunks before, then by those in theirs. */
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
