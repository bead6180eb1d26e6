/* Codes of codecs whose quantizer is GPTQ: ranges are searched, and codes and scales improved after the last
 * input is rounded.
 *
 * Inputs are worked on by blocks: what all others make of a block's weights is a product (gptq_product.c) for
 * all outputs of a tile at once, and only what its own inputs make of each other goes one by one. */
#include "compiler/fit/gptq_internal.h"
#include "compiler/fit/gptq_range.h"
#include "formats/base/half.h"
#include "formats/base/memory.h"

#include <math.h>
#include <string.h>

_Static_assert(LANES == MOEC_RANGE_LANES, "tiles are searched as they lie");

/* A nested row's scale is fixed before its groups' are: that of the extremes of the weights as they are, and
 * this much more for what corrections add. */
#define NESTED_ROOM 1.25f

/* Over all inputs, after the last is rounded: each takes about as long as rounding. At 2 bits three take a
 * quarter off the error on unseen inputs, six another hundredth of it. */
#define SWEEPS 3u

#define BLOCK MOEC_SUM_CHUNK
#define ROUND 0x1.8p23f /* adding and subtracting it rounds to an integer, half to even */

#define VECTORS (GROUP_MOST / LANES) /* the most that a tile has */
_Static_assert(GPTQ_WIDTH <= GROUP_MOST, "tiles have a scale for each lane");

struct fitting {
    struct encoding *e;
    bool has_zeros, is_nested;
    float highest;  /* code */
    uint32_t width; /* outputs of a tile */
    float *limits;  /* (n_row) scales of nested rows */
    struct {
        uint8_t *stored; /* (threads, stored_bytes): a row's scales */
        size_t stored_bytes;
        float *scratch; /* (threads, scratch_floats) */
        size_t scratch_floats;
    } room;
};

/* Outputs that a thread encodes at once, LANES of them in a vector; those past the matrix have weights of 0.
 * Where rows are outputs each lane has groups of its own; where rows are inputs, a tile is one group wide and
 * all lanes have one scale, or, without groups, LANES wide. Inputs are in the order in which they are
 * rounded. */
struct tile {
    const struct fitting *fit;
    struct {
        uint32_t first, n;
        uint32_t n_vector; /* V */
    } outputs;
    struct {
        vec *weights;
        vec *left;   /* weight less what is decoded; 0 of inputs that are not rounded yet */
        vec *steps;  /* code less zero */
        vec *bases;  /* weights of a group as the inputs before it correct them; later, half the derivative of
                        the error by what each decodes to */
        vec *others; /* a group as it is searched; later, H's rows times the steps */
    } arrays;        /* (K, V) each */
    float *room;     /* (MOEC_SUM_CHUNK, width) */
    float *variances;                    /* (K) weights of a group's errors */
    vec scales[VECTORS], zeros[VECTORS]; /* of the group at work */
};

/* One more vector: of variances there may be fewer than a multiple of LANES. */
static size_t tile_floats(uint32_t n_input, uint32_t width)
{
    return (5 * (size_t)n_input + MOEC_SUM_CHUNK) * width + padded(n_input);
}

uint64_t moec_gptq_tile_bytes(uint32_t n_input, uint32_t width)
{
    return tile_floats(n_input, width) * sizeof(float);
}

static struct tile tile_make(const struct fitting *fit, size_t item, int thread)
{
    const struct encoding *e = fit->e;
    const uint32_t first = (uint32_t)item * fit->width, left = e->shape.n_output - first;
    struct tile tile = {.fit = fit,
                        .outputs = {.first = first,
                                    .n = left < fit->width ? left : fit->width,
                                    .n_vector = fit->width / LANES}};
    const size_t n = (size_t)e->gptq->n * tile.outputs.n_vector;
    tile.arrays.weights = (vec *)(fit->room.scratch + (size_t)thread * fit->room.scratch_floats);
    tile.arrays.left = tile.arrays.weights + n;
    tile.arrays.steps = tile.arrays.left + n;
    tile.arrays.bases = tile.arrays.steps + n;
    tile.arrays.others = tile.arrays.bases + n;
    tile.room = (float *)(tile.arrays.others + n);
    tile.variances = tile.room + MOEC_SUM_CHUNK * fit->width;
    float *weights = (float *)tile.arrays.weights;
    for (uint32_t i = 0; i < e->gptq->n; i++)
        for (uint32_t o = 0; o < fit->width; o++)
            *weights++ =
                o < tile.outputs.n ? e->weights[place_of(e, e->gptq->order[i], first + o).weight] : 0;
    memset(tile.arrays.left, 0, n * sizeof *tile.arrays.left);
    return tile;
}

/* sums (n_row, V) += rows of H or its factor times `values` (n, V). */
static void multiply(const struct tile *tile, const float *rows, uint32_t n_row, const vec *values,
                     uint32_t n, vec *sums)
{
    const struct encoding *e = tile->fit->e;
    const struct moec_gptq_product product = {
        .kernels = e->kernels,
        .rows = rows,
        .stride = row_stride(e->gptq->n),
        .shape = {.n_row = n_row, .n = n, .width = tile->outputs.n_vector * LANES},
        .pitch = tile->outputs.n_vector * LANES,
        .values = (const float *)values,
        .room = tile->room};
    moec_gptq_multiply(&product, (float *)sums);
}

static const float *square_row(const struct tile *tile, uint32_t i)
{
    return tile->fit->e->gptq->square + i * row_stride(tile->fit->e->gptq->n);
}

/* ---- scales ---- */

static float rounded_scale(const struct fitting *fit, size_t row, float wanted)
{
    if (!(wanted > 0))
        return 0;
    if (!fit->is_nested) {
        const float rounded = moec_f16_to_f32(moec_f32_to_f16(wanted));
        return isfinite(rounded) ? rounded : 65504;
    }
    const float limit = fit->limits[row];
    float code = limit > 0 ? rintf(wanted / limit * 256) : 0;
    code = code < 1 ? 1 : code > 255 ? 255 : code;
    return code * limit * 0x1p-8f;
}

static void limit_row(void *context, size_t row, int thread)
{
    (void)thread;
    const struct fitting *fit = context;
    const struct encoding *e = fit->e;
    const float *weights = e->weights + row * e->shape.columns;
    float largest = 0;
    for (uint32_t first = 0; first < e->shape.columns; first += e->codec.group) {
        const uint32_t n =
            e->shape.columns - first < e->codec.group ? e->shape.columns - first : e->codec.group;
        float most = 0, least = 0;
        for (uint32_t c = first; c < first + n; c++) {
            most = weights[c] > most ? weights[c] : most;
            least = weights[c] < least ? weights[c] : least;
        }
        const float size = most > -least ? most : -least;
        const float scale = fit->has_zeros ? (most - least) / fit->highest : size / ((fit->highest - 1) / 2);
        largest = scale > largest ? scale : largest;
    }
    float limit = moec_f16_to_f32(moec_f32_to_f16(largest * NESTED_ROOM * (256.0f / 255.0f)));
    if (largest > 0 && limit == 0)
        limit = 0x1p-24f;
    fit->limits[row] = isfinite(limit) ? limit : 65504;
}

/* Searches the ranges of n vectors, those of one vector's lanes or of all of them, and rounds the scales. */
static void search_range(struct tile *tile, uint32_t v, const vec *w, uint32_t n, bool is_shared,
                         const size_t rows[static LANES])
{
    const struct fitting *fit = tile->fit;
    const struct moec_range_task task = {.w = (const float *)w,
                                         .v = is_shared ? NULL : tile->variances,
                                         .n = n,
                                         .bits = moec_codec_bits(fit->e->codec),
                                         .has_zeros = fit->has_zeros,
                                         .is_shared = is_shared};
    float *scales = (float *)&tile->scales[v];
    moec_range_search(&task, scales, (float *)&tile->zeros[v]);
    for (uint32_t lane = 0; lane < LANES; lane++)
        scales[lane] = rounded_scale(fit, rows[lane], scales[lane]);
}

/* Inputs [begin, end) of the order that are one group of each output. */
static uint32_t group_end(const struct tile *tile, uint32_t begin)
{
    const struct encoding *e = tile->fit->e;
    const uint32_t n = e->gptq->n, group = e->codec.group;
    if (group == 0)
        return n;
    const uint32_t first = e->gptq->order[begin] / group * group;
    return begin + (n - first < group ? n - first : group);
}

/* The output of a lane; of one past the matrix, the tile's first. */
static uint32_t output_of(const struct tile *tile, uint32_t v, uint32_t lane)
{
    const uint32_t o = v * LANES + lane;
    return tile->outputs.first + (o < tile->outputs.n ? o : 0);
}

static size_t group_of(const struct tile *tile, uint32_t input, uint32_t v, uint32_t lane)
{
    return place_of(tile->fit->e, tile->fit->e->gptq->order[input], output_of(tile, v, lane)).group;
}

static void keep_range(const struct tile *tile, uint32_t v, uint32_t lane, size_t group)
{
    const float scale = tile->scales[v][lane];
    tile->fit->e->out.scales[group] = scale;
    tile->fit->e->out.zeros[group] = scale > 0 || !tile->fit->has_zeros ? (uint8_t)tile->zeros[v][lane] : 0;
}

/* Of each lane's group that has the input. */
static void keep_ranges(const struct tile *tile, uint32_t input, uint32_t v)
{
    for (uint32_t lane = 0; lane < LANES && v * LANES + lane < tile->outputs.n; lane++)
        keep_range(tile, v, lane, group_of(tile, input, v, lane));
}

static void take_ranges(struct tile *tile, uint32_t input, uint32_t v)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const size_t group = group_of(tile, input, v, lane);
        tile->scales[v][lane] = tile->fit->e->out.scales[group];
        tile->zeros[v][lane] = (float)tile->fit->e->out.zeros[group];
    }
}

/* The same where all lanes have one group. */
static void share_range(struct tile *tile, float scale, float zero)
{
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++) {
        tile->scales[v] = (vec){0} + scale;
        tile->zeros[v] = (vec){0} + zero;
    }
}

/* ---- codes ---- */

static inline __attribute__((always_inline)) void set_left(struct tile *tile, uint32_t i, uint32_t v)
{
    const size_t at = (size_t)i * tile->outputs.n_vector + v;
    tile->arrays.left[at] = tile->arrays.weights[at] - tile->arrays.steps[at] * tile->scales[v];
}

/* Gives LANES weights of input i the codes nearest to u. */
static inline __attribute__((always_inline)) void round_weights(struct tile *tile, uint32_t i, uint32_t v,
                                                                const vec *u)
{
    const vec none = {0}, highest = none + tile->fit->highest, zero = tile->zeros[v];
    vec code = *u / tile->scales[v] + zero;
    code = CHOSEN((vec_bits)(code < 0), code, none);
    code = CHOSEN((vec_bits)(code > highest), code, highest);
    code = ((code + ROUND) - ROUND) - zero;
    tile->arrays.steps[(size_t)i * tile->outputs.n_vector + v] =
        CHOSEN((vec_bits)(tile->scales[v] > 0), none, code);
    set_left(tile, i, v);
}

/* u: the weight at [i - begin] of `bases`, as inputs begin .. i - 1 correct it too. */
static inline __attribute__((always_inline)) void correct(const struct tile *tile, uint32_t begin, uint32_t i,
                                                          uint32_t v, const vec *bases, vec *u)
{
    const float *factors = unit_row(tile->fit->e->gptq, i) + begin;
    const vec *left = tile->arrays.left + (size_t)begin * tile->outputs.n_vector + v;
    vec sum = bases[(size_t)(i - begin) * tile->outputs.n_vector + v];
    for (uint32_t j = 0; j < i - begin; j++)
        sum += factors[j] * left[(size_t)j * tile->outputs.n_vector];
    *u = sum;
}

/* Weights of inputs [begin, end) as those before them correct them. */
static void find_bases(struct tile *tile, uint32_t begin, uint32_t end, vec *bases)
{
    const size_t n_vector = tile->outputs.n_vector;
    memcpy(bases, tile->arrays.weights + begin * n_vector, (end - begin) * n_vector * sizeof *bases);
    multiply(tile, unit_row(tile->fit->e->gptq, begin), end - begin, tile->arrays.left, begin, bases);
}

/* Weights of inputs [begin, end) of a group of `length` from input `first` on as they are best were nothing in
 * it rounded. */
GPTQ_CLONES static void idealise(struct tile *tile, uint32_t v, uint32_t first, uint32_t length,
                                 uint32_t begin, uint32_t end)
{
    const vec *bases = tile->arrays.bases + (size_t)(begin - first) * tile->outputs.n_vector;
    vec *ideals = tile->arrays.others + (size_t)v * length - first;
    for (uint32_t i = begin; i < end; i++) {
        const size_t at = (size_t)i * tile->outputs.n_vector + v;
        correct(tile, begin, i, v, bases, &ideals[i]);
        tile->arrays.left[at] = tile->arrays.weights[at] - ideals[i];
    }
}

GPTQ_CLONES static void round_block(struct tile *tile, uint32_t v, uint32_t first, uint32_t begin,
                                    uint32_t end)
{
    const vec *bases = tile->arrays.bases + (size_t)(begin - first) * tile->outputs.n_vector;
    for (uint32_t i = begin; i < end; i++) {
        vec u;
        correct(tile, begin, i, v, bases, &u);
        round_weights(tile, i, v, &u);
    }
}

/* What an error of each weight of the group costs when those after it are corrected. */
static void find_variances(struct tile *tile, uint32_t begin, uint32_t end)
{
    const double *costs = tile->fit->e->gptq->costs;
    double largest = costs[begin];
    for (uint32_t i = begin; i < end; i++)
        largest = costs[i] > largest ? costs[i] : largest;
    for (uint32_t i = begin; i < end; i++)
        tile->variances[i - begin] = (float)(costs[i] / largest);
}

static uint32_t block_end(uint32_t begin, uint32_t end)
{
    return end - begin < GROUP_MOST ? end : begin + GROUP_MOST;
}

static void round_group(struct tile *tile, uint32_t begin, uint32_t end)
{
    const uint32_t length = end - begin;
    for (uint32_t at = begin; at < end; at = block_end(at, end)) {
        find_bases(tile, at, block_end(at, end),
                   tile->arrays.bases + (size_t)(at - begin) * tile->outputs.n_vector);
        for (uint32_t v = 0; v < tile->outputs.n_vector; v++)
            idealise(tile, v, begin, length, at, block_end(at, end));
    }
    find_variances(tile, begin, end);
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++) {
        size_t rows[LANES];
        for (uint32_t lane = 0; lane < LANES; lane++)
            rows[lane] = output_of(tile, v, lane);
        search_range(tile, v, tile->arrays.others + (size_t)v * length, length, false, rows);
        keep_ranges(tile, begin, v);
    }
    for (uint32_t at = begin; at < end; at = block_end(at, end)) {
        if (at > begin) /* the first block's are still right */
            find_bases(tile, at, block_end(at, end),
                       tile->arrays.bases + (size_t)(at - begin) * tile->outputs.n_vector);
        for (uint32_t v = 0; v < tile->outputs.n_vector; v++)
            round_block(tile, v, begin, at, block_end(at, end));
    }
}

static void round_by_output(struct tile *tile)
{
    for (uint32_t begin = 0, end = 0; begin < tile->fit->e->gptq->n; begin = end) {
        end = group_end(tile, begin);
        round_group(tile, begin, end);
    }
}

/* A whole row's scale, where rows are inputs: from the weights as they are, for no tile has all of them. */
static void search_row(void *context, size_t row, int thread)
{
    struct fitting *fit = context;
    const struct encoding *e = fit->e;
    const size_t n = (e->shape.columns + LANES - 1) / LANES;
    float *vector = fit->room.scratch + (size_t)thread * fit->room.scratch_floats;
    float scales[LANES], zeros[LANES];
    memset(vector, 0, n * LANES * sizeof *vector);
    memcpy(vector, e->weights + row * e->shape.columns, e->shape.columns * sizeof *vector);
    const struct moec_range_task task = {.w = vector,
                                         .n = n,
                                         .bits = moec_codec_bits(e->codec),
                                         .has_zeros = fit->has_zeros,
                                         .is_shared = true};
    moec_range_search(&task, scales, zeros);
    e->out.scales[row] = rounded_scale(fit, row, scales[0]);
    e->out.zeros[row] = (uint8_t)zeros[0];
}

GPTQ_CLONES static void round_input(struct tile *tile, uint32_t begin, uint32_t i)
{
    const struct encoding *e = tile->fit->e;
    const size_t group = group_of(tile, i, 0, 0);
    vec *u = tile->arrays.others;
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++)
        correct(tile, begin, i, v, tile->arrays.bases, &u[v]);
    if (e->codec.group == 0) {
        share_range(tile, e->out.scales[group], (float)e->out.zeros[group]);
    } else {
        size_t rows[LANES];
        for (uint32_t lane = 0; lane < LANES; lane++)
            rows[lane] = e->gptq->order[i];
        search_range(tile, 0, u, tile->outputs.n_vector, true, rows);
        keep_range(tile, 0, 0, group);
        share_range(tile, tile->scales[0][0], tile->zeros[0][0]);
    }
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++)
        round_weights(tile, i, v, &u[v]);
}

static void round_by_input(struct tile *tile)
{
    const uint32_t n = tile->fit->e->gptq->n;
    for (uint32_t begin = 0; begin < n; begin += BLOCK) {
        const uint32_t end = n - begin < BLOCK ? n : begin + BLOCK;
        find_bases(tile, begin, end, tile->arrays.bases);
        for (uint32_t i = begin; i < end; i++)
            round_input(tile, begin, i);
    }
}

/* ---- sweeps ---- */

/* Half the derivatives of the error by what inputs [begin, end) decode to. */
static void derive(struct tile *tile, uint32_t begin, uint32_t end)
{
    memset(tile->arrays.bases, 0,
           (size_t)(end - begin) * tile->outputs.n_vector * sizeof *tile->arrays.bases);
    multiply(tile, square_row(tile, begin), end - begin, tile->arrays.left, tile->fit->e->gptq->n,
             tile->arrays.bases);
}

/* Gives LANES weights of input i the codes nearest to where their error is least, all others staying, and
 * tells the inputs up to `end`, whose slopes begin with those of input `begin`, what errors they have in place
 * of those `before`. */
static inline __attribute__((always_inline)) void improve_codes(struct tile *tile, uint32_t begin, uint32_t i,
                                                                uint32_t end, uint32_t v, const vec *before)
{
    const float *h = square_row(tile, i);
    const size_t n_vector = tile->outputs.n_vector, at = (size_t)i * n_vector + v;
    vec *slopes = tile->arrays.bases + v;
    const vec best = tile->arrays.steps[at] * tile->scales[v] + slopes[(i - begin) * n_vector] / h[i];
    round_weights(tile, i, v, &best);
    const vec change = tile->arrays.left[at] - *before;
    if (memcmp(&tile->arrays.left[at], before, sizeof *before) == 0)
        return;
    for (uint32_t j = i + 1; j < end; j++)
        slopes[(j - begin) * n_vector] += h[j] * change;
}

/* The scale of least error for the codes that there are, as near as it can be stored: what the error gains by
 * a larger scale is `product`, and its curvature `square`. */
static float improved_scale(const struct fitting *fit, float old, size_t row, float product, float square)
{
    const float best = old + product / square;
    const float scale = square > 0 ? rounded_scale(fit, row, best) : 0;
    return scale > 0 && fabsf(best - scale) < fabsf(best - old) ? scale : old;
}

/* Scales of a group for the codes that it has; slopes follow. */
GPTQ_CLONES static void improve_group(struct tile *tile, uint32_t begin, uint32_t end, uint32_t v)
{
    const size_t n_vector = tile->outputs.n_vector;
    const vec *steps = tile->arrays.steps + begin * n_vector + v, *sums = tile->arrays.others + v;
    vec *slopes = tile->arrays.bases + v, products = {0}, squares = {0}, changes;
    for (uint32_t i = 0; i < end - begin; i++) {
        products += steps[i * n_vector] * slopes[i * n_vector];
        squares += steps[i * n_vector] * sums[i * n_vector];
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const float old = tile->scales[v][lane];
        const float scale =
            improved_scale(tile->fit, old, output_of(tile, v, lane), products[lane], squares[lane]);
        changes[lane] = scale - old;
        tile->scales[v][lane] = scale;
    }
    for (uint32_t i = begin; i < end; i++) {
        slopes[(i - begin) * n_vector] -= changes * sums[(i - begin) * n_vector];
        set_left(tile, i, v);
    }
    for (uint32_t i = begin; i < end; i++) {
        const vec before = tile->arrays.left[i * n_vector + v];
        improve_codes(tile, begin, i, end, v, &before);
    }
}

static void sweep_by_output(struct tile *tile)
{
    for (uint32_t begin = 0, end = 0; begin < tile->fit->e->gptq->n; begin = end) {
        end = group_end(tile, begin);
        derive(tile, begin, end);
        memset(tile->arrays.others, 0,
               (size_t)(end - begin) * tile->outputs.n_vector * sizeof *tile->arrays.others);
        multiply(tile, square_row(tile, begin) + begin, end - begin,
                 tile->arrays.steps + (size_t)begin * tile->outputs.n_vector, end - begin,
                 tile->arrays.others);
        for (uint32_t v = 0; v < tile->outputs.n_vector; v++) {
            take_ranges(tile, begin, v);
            improve_group(tile, begin, end, v);
            keep_ranges(tile, begin, v);
        }
    }
}

/* The same for the tile's one group of an input. */
static inline __attribute__((always_inline)) void improve_input_scale(struct tile *tile, uint32_t i,
                                                                      vec *slopes)
{
    const vec *steps = tile->arrays.steps + (size_t)i * tile->outputs.n_vector;
    const float h = square_row(tile, i)[i], old = tile->scales[0][0];
    vec products = {0}, squares = {0};
    float product = 0, square = 0;
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++) {
        products += slopes[v] * steps[v];
        squares += h * steps[v] * steps[v];
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        product += products[lane];
        square += squares[lane];
    }
    const float scale = improved_scale(tile->fit, old, tile->fit->e->gptq->order[i], product, square);
    share_range(tile, scale, tile->zeros[0][0]);
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++) {
        slopes[v] -= (scale - old) * h * steps[v];
        set_left(tile, i, v);
    }
}

GPTQ_CLONES static void sweep_input(struct tile *tile, uint32_t begin, uint32_t i, uint32_t end)
{
    const struct encoding *e = tile->fit->e;
    const size_t group = group_of(tile, i, 0, 0);
    vec before[VECTORS];
    memcpy(before, tile->arrays.left + (size_t)i * tile->outputs.n_vector,
           tile->outputs.n_vector * sizeof *before);
    share_range(tile, e->out.scales[group], (float)e->out.zeros[group]);
    if (e->codec.group != 0)
        improve_input_scale(tile, i, tile->arrays.bases + (size_t)(i - begin) * tile->outputs.n_vector);
    for (uint32_t v = 0; v < tile->outputs.n_vector; v++)
        improve_codes(tile, begin, i, end, v, &before[v]);
    if (e->codec.group != 0)
        keep_range(tile, 0, 0, group);
}

static void sweep_by_input(struct tile *tile)
{
    const uint32_t n = tile->fit->e->gptq->n;
    for (uint32_t begin = 0; begin < n; begin += BLOCK) {
        const uint32_t end = n - begin < BLOCK ? n : begin + BLOCK;
        derive(tile, begin, end);
        for (uint32_t i = begin; i < end; i++)
            sweep_input(tile, begin, i, end);
    }
}

static void encode_tile(void *context, size_t item, int thread)
{
    const struct fitting *fit = context;
    const struct encoding *e = fit->e;
    struct tile tile = tile_make(fit, item, thread);
    (e->by_input ? round_by_input : round_by_output)(&tile);
    for (uint32_t sweep = 0; sweep < SWEEPS; sweep++)
        (e->by_input ? sweep_by_input : sweep_by_output)(&tile);
    const float *steps = (const float *)tile.arrays.steps;
    for (uint32_t i = 0; i < e->gptq->n; i++, steps += fit->width)
        for (uint32_t o = 0; o < tile.outputs.n; o++) {
            const struct place place = place_of(e, e->gptq->order[i], tile.outputs.first + o);
            e->out.codes[place.weight] = (uint8_t)(steps[o] + (float)e->out.zeros[place.group]);
        }
}

/* ---- rows ---- */

/* As moec_codec_round_scales stores them, with the scale that the row has. */
static void pack_row(void *context, size_t row, int thread)
{
    const struct fitting *fit = context;
    const struct encoding *e = fit->e;
    const float *scales = e->out.scales + row * e->shape.groups;
    uint8_t *stored = fit->room.stored + (size_t)thread * fit->room.stored_bytes;
    if (fit->is_nested) {
        const uint16_t limit = moec_f32_to_f16(fit->limits[row]);
        *stored++ = (uint8_t)limit;
        *stored++ = (uint8_t)(limit >> 8);
    }
    for (size_t g = 0; g < e->shape.groups; g++) {
        if (fit->is_nested) {
            *stored++ = scales[g] > 0 ? (uint8_t)rintf(scales[g] / fit->limits[row] * 256) : 0;
            continue;
        }
        const uint16_t half = moec_f32_to_f16(scales[g]);
        *stored++ = (uint8_t)half;
        *stored++ = (uint8_t)(half >> 8);
    }
    moec_codec_pack_row(e->codec, e->out.codes + row * e->shape.columns,
                        fit->room.stored + (size_t)thread * fit->room.stored_bytes,
                        fit->has_zeros ? e->out.zeros + row * e->shape.groups : NULL, e->shape.columns,
                        e->out.rows + row * e->shape.row_bytes);
}

/* Each weight is corrected by those before it, and each sweep reads all of H; products within a group are not
 * counted. */
static uint64_t multiply_adds(const struct encoding *e)
{
    const uint64_t n = e->gptq->n;
    return e->shape.n_output * (n * n / 2 + SWEEPS * n * n);
}

enum moec_status moec_gptq_encode_fitted(struct encoding *e, const struct moec_pool *pool,
                                         struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const char *what = "codes of a matrix";
    const uint32_t group = e->codec.group;
    const uint64_t n_threads = (uint64_t)pool->n_threads;
    struct fitting fit = {.e = e,
                          .has_zeros = moec_scheme_has_zeros((enum moec_scheme)e->codec.scheme),
                          .is_nested = moec_scheme_is_nested((enum moec_scheme)e->codec.scheme),
                          .highest = (float)((1u << moec_codec_bits(e->codec)) - 1),
                          .width = !e->by_input    ? moec_gptq_width(e->shape.n_output, pool->n_threads)
                                   : group > LANES ? group
                                                   : LANES,
                          .room.stored_bytes = moec_codec_scales_bytes(e->codec, e->shape.columns)};
    const uint64_t n_tile = (e->shape.n_output + fit.width - 1) / fit.width;
    const size_t row_floats = padded(e->shape.columns);
    fit.room.scratch_floats = tile_floats(e->gptq->n, fit.width);
    fit.room.scratch_floats = row_floats > fit.room.scratch_floats ? row_floats : fit.room.scratch_floats;
    MOEC_TRY_OUT(moec_alloc((void **)&fit.limits, e->shape.n_row, sizeof *fit.limits, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&fit.room.stored, n_threads, fit.room.stored_bytes, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&fit.room.scratch, n_threads,
                                    fit.room.scratch_floats * sizeof(float), what, err));
    if (fit.is_nested)
        moec_parallel_for(pool, e->shape.n_row, limit_row, &fit);
    if (e->by_input && group == 0)
        moec_parallel_for(pool, e->shape.n_row, search_row, &fit);
    moec_gptq_for(pool, n_tile, encode_tile, &fit, multiply_adds(e));
    moec_parallel_for(pool, e->shape.n_row, pack_row, &fit);
out:
    free(fit.limits);
    free(fit.room.stored);
    free(fit.room.scratch);
    return status;
}
