/* Codes of codecs whose quantizer is GPTQ: ranges are searched, and codes and scales improved after the last
 * input is rounded. */
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

#define AHEAD GPTQ_AHEAD

struct fitting {
    struct encoding *e;
    bool has_zeros, is_nested;
    float highest;   /* code */
    uint32_t width;  /* outputs of a tile */
    float *limits;   /* (n_row) scales of nested rows */
    uint8_t *stored; /* (threads, stored_bytes): a row's scales */
    size_t stored_bytes;
    double *scratch; /* (threads, scratch_doubles) */
    size_t scratch_doubles;
};

/* Outputs that a thread encodes at once. Vectors have one value for each of `width` outputs; those past the
 * matrix have weights of 0. Where rows are outputs the width is LANES, and each lane has groups of its own;
 * where rows are inputs, a tile is one group wide and an input's vector has one scale, or, without groups,
 * LANES wide. Inputs are in the order in which they are rounded. */
struct tile {
    const struct fitting *fit;
    uint32_t first, n, width; /* outputs */
    double *weights;          /* (K, width) */
    double *errors;           /* (K, width): weight less what is decoded */
    double *bases;            /* (K, LANES): weights of a group as the inputs before it correct them */
    float *left;              /* (K, width): `errors` once all are rounded */
    float *steps;             /* (K, width): code less zero */
    float *vector;            /* (K + AHEAD, LANES): a group as it is searched, and its derivatives */
    float *variances;         /* (K) weights of a group's errors */
    float scales[LANES];      /* of the group at work, for each lane */
    float zeros[LANES];
};

static size_t tile_doubles(uint32_t n_input, uint32_t width)
{
    return (size_t)n_input * (3 * (size_t)width + LANES + LANES / 2 + 1) + AHEAD * LANES;
}

uint64_t moec_gptq_tile_bytes(uint32_t n_input, uint32_t width)
{
    return tile_doubles(n_input, width) * sizeof(double);
}

static struct tile tile_make(const struct fitting *fit, size_t item, int thread)
{
    const struct encoding *e = fit->e;
    const uint32_t first = (uint32_t)item * fit->width, left = e->n_output - first;
    const size_t n = (size_t)e->gptq->n * fit->width, n_lane = (size_t)e->gptq->n * LANES;
    struct tile tile = {
        .fit = fit, .first = first, .n = left < fit->width ? left : fit->width, .width = fit->width};
    tile.weights = fit->scratch + (size_t)thread * fit->scratch_doubles;
    tile.errors = tile.weights + n;
    tile.bases = tile.errors + n;
    tile.left = (float *)(tile.bases + n_lane);
    tile.steps = tile.left + n;
    tile.vector = tile.steps + n;
    tile.variances = tile.vector + n_lane + AHEAD * LANES;
    for (uint32_t i = 0; i < e->gptq->n; i++)
        for (uint32_t o = 0; o < tile.width; o++)
            tile.weights[(size_t)i * tile.width + o] =
                o < tile.n ? (double)e->weights[place_of(e, e->gptq->order[i], first + o).weight] : 0;
    return tile;
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
    const float *weights = e->weights + row * e->columns;
    float largest = 0;
    for (uint32_t first = 0; first < e->columns; first += e->codec.group) {
        const uint32_t n = e->columns - first < e->codec.group ? e->columns - first : e->codec.group;
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

/* Searches the range of n vectors in `vector`, of the group at `place` of each lane, and rounds the scales.
 */
static void search_range(struct tile *tile, uint32_t n, bool is_shared, const size_t rows[static LANES])
{
    const struct fitting *fit = tile->fit;
    const struct moec_range_task task = {.w = tile->vector,
                                         .v = is_shared ? NULL : tile->variances,
                                         .n = n,
                                         .bits = moec_codec_bits(fit->e->codec),
                                         .has_zeros = fit->has_zeros,
                                         .is_shared = is_shared};
    moec_range_search(&task, tile->scales, tile->zeros);
    for (uint32_t lane = 0; lane < LANES; lane++)
        tile->scales[lane] = rounded_scale(fit, rows[lane], tile->scales[lane]);
}

static void keep_range(const struct tile *tile, uint32_t lane, size_t group)
{
    tile->fit->e->scales[group] = tile->scales[lane];
    tile->fit->e->zeros[group] =
        tile->scales[lane] > 0 || !tile->fit->has_zeros ? (uint8_t)tile->zeros[lane] : 0;
}

/* ---- codes ---- */

/* Code less zero. */
static float nearest_step(const struct tile *tile, uint32_t lane, double u)
{
    const double zero = (double)tile->zeros[lane], scale = (double)tile->scales[lane];
    if (scale == 0)
        return 0;
    double code = nearbyint(u / scale) + zero;
    code = code < 0 ? 0 : code;
    code = code > (double)tile->fit->highest ? (double)tile->fit->highest : code;
    return (float)(code - zero);
}

/* Rounds LANES corrected weights of input i, from output `from` of the tile on. */
static void round_vector(struct tile *tile, uint32_t i, uint32_t from, const double u[static LANES])
{
    const size_t at = (size_t)i * tile->width + from;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const float step = nearest_step(tile, lane, u[lane]);
        const double decoded = (double)step * (double)tile->scales[lane];
        tile->steps[at + lane] = step;
        tile->errors[at + lane] = tile->weights[at + lane] - decoded;
    }
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

static size_t group_of_lane(const struct tile *tile, uint32_t input, uint32_t lane)
{
    const uint32_t output = tile->first + (lane < tile->n ? lane : 0);
    return place_of(tile->fit->e, tile->fit->e->gptq->order[input], output).group;
}

/* Weights of the group as they are best were nothing in it rounded, and what an error of each costs when
 * those after it are corrected. */
GPTQ_CLONES static void correct_group(struct tile *tile, uint32_t begin, uint32_t end)
{
    const struct moec_gptq *gptq = tile->fit->e->gptq;
    const double first = gptq->factor[row_offset(begin) + begin];
    double largest = first * first;
    for (uint32_t i = begin; i < end; i++) {
        const double *factors = gptq->factor + row_offset(i), *w = tile->weights + (size_t)i * LANES;
        double *base = tile->bases + (size_t)(i - begin) * LANES, u[LANES];
        largest = factors[i] * factors[i] > largest ? factors[i] * factors[i] : largest;
        compensate(factors, begin, tile->errors, LANES, w, base);
        compensate(factors + begin, i - begin, tile->errors + (size_t)begin * LANES, LANES, base, u);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            tile->errors[(size_t)i * LANES + lane] = w[lane] - u[lane];
            tile->vector[(size_t)(i - begin) * LANES + lane] = (float)u[lane];
        }
    }
    for (uint32_t i = begin; i < end; i++) {
        const double root = gptq->factor[row_offset(i) + i];
        tile->variances[i - begin] = (float)(root * root / largest);
    }
}

GPTQ_CLONES static void round_by_output(struct tile *tile)
{
    const struct moec_gptq *gptq = tile->fit->e->gptq;
    for (uint32_t begin = 0, end = 0; begin < gptq->n; begin = end) {
        size_t rows[LANES];
        end = group_end(tile, begin);
        correct_group(tile, begin, end);
        for (uint32_t lane = 0; lane < LANES; lane++)
            rows[lane] = tile->first + (lane < tile->n ? lane : 0);
        search_range(tile, end - begin, false, rows);
        for (uint32_t lane = 0; lane < tile->n; lane++)
            keep_range(tile, lane, group_of_lane(tile, begin, lane));
        for (uint32_t i = begin; i < end; i++) {
            double u[LANES];
            compensate(gptq->factor + row_offset(i) + begin, i - begin, tile->errors + (size_t)begin * LANES,
                       LANES, tile->bases + (size_t)(i - begin) * LANES, u);
            round_vector(tile, i, 0, u);
        }
    }
}

/* A whole row's scale, where rows are inputs: from the weights as they are, for no tile has all of them. */
static void search_row(void *context, size_t row, int thread)
{
    struct fitting *fit = context;
    const struct encoding *e = fit->e;
    const size_t n = (e->columns + LANES - 1) / LANES;
    float *vector = (float *)(fit->scratch + (size_t)thread * fit->scratch_doubles);
    float scales[LANES], zeros[LANES];
    memset(vector, 0, n * LANES * sizeof *vector);
    memcpy(vector, e->weights + row * e->columns, e->columns * sizeof *vector);
    const struct moec_range_task task = {.w = vector,
                                         .n = n,
                                         .bits = moec_codec_bits(e->codec),
                                         .has_zeros = fit->has_zeros,
                                         .is_shared = true};
    moec_range_search(&task, scales, zeros);
    e->scales[row] = rounded_scale(fit, row, scales[0]);
    e->zeros[row] = (uint8_t)zeros[0];
}

static void take_range(struct tile *tile, size_t group)
{
    for (uint32_t lane = 0; lane < LANES; lane++) {
        tile->scales[lane] = tile->fit->e->scales[group];
        tile->zeros[lane] = (float)tile->fit->e->zeros[group];
    }
}

GPTQ_CLONES static void round_by_input(struct tile *tile)
{
    const struct encoding *e = tile->fit->e;
    double *u = tile->bases; /* (width) */
    for (uint32_t i = 0; i < e->gptq->n; i++) {
        const size_t group = group_of_lane(tile, i, 0);
        size_t rows[LANES];
        for (uint32_t from = 0; from < tile->width; from += LANES)
            compensate(e->gptq->factor + row_offset(i), i, tile->errors + from, tile->width,
                       tile->weights + (size_t)i * tile->width + from, u + from);
        for (uint32_t o = 0; o < tile->width; o++)
            tile->vector[o] = (float)u[o];
        for (uint32_t lane = 0; lane < LANES; lane++)
            rows[lane] = e->gptq->order[i];
        if (e->codec.group == 0) {
            take_range(tile, group);
        } else {
            search_range(tile, tile->width / LANES, true, rows);
            keep_range(tile, 0, group);
        }
        for (uint32_t from = 0; from < tile->width; from += LANES)
            round_vector(tile, i, from, u + from);
    }
}

/* ---- sweeps ---- */

/* H's rows times the errors, of inputs i .. i + AHEAD - 1 and LANES outputs: half the derivative of the error
 * by what each input decodes to. Those past the last input mean nothing. */
GPTQ_CLONES static void derive(const struct tile *tile, uint32_t i, uint32_t from,
                               float slopes[static AHEAD * LANES])
{
    const uint32_t n = tile->fit->e->gptq->n;
    const float *h = tile->fit->e->gptq->square + (size_t)i * n, *left = tile->left + from;
    float made[AHEAD][LANES] = {0};
    for (uint32_t j = 0; j < n; j++, h++, left += tile->width)
        for (uint32_t a = 0; a < AHEAD; a++)
            for (uint32_t lane = 0; lane < LANES; lane++)
                made[a][lane] += h[(size_t)a * n] * left[lane];
    memcpy(slopes, made, sizeof made);
}

static float h_at(const struct tile *tile, uint32_t i, uint32_t j)
{
    return tile->fit->e->gptq->square[(size_t)i * tile->fit->e->gptq->n + j];
}

/* slopes += factor times values. */
static void add_scaled(float *slopes, float factor, const float values[static LANES])
{
    for (uint32_t lane = 0; lane < LANES; lane++)
        slopes[lane] += factor * values[lane];
}

static void set_left(struct tile *tile, uint32_t i, uint32_t from)
{
    const size_t at = (size_t)i * tile->width + from;
    for (uint32_t lane = 0; lane < LANES; lane++)
        tile->left[at + lane] = (float)tile->weights[at + lane] - tile->steps[at + lane] * tile->scales[lane];
}

/* Gives each of LANES weights the code nearest to where its error is least, all others staying. */
static void improve_codes(struct tile *tile, uint32_t i, uint32_t from, const float slopes[static LANES])
{
    const float h = h_at(tile, i, i);
    float *steps = tile->steps + (size_t)i * tile->width + from;
    for (uint32_t lane = 0; lane < LANES; lane++)
        steps[lane] = nearest_step(tile, lane, (double)(steps[lane] * tile->scales[lane] + slopes[lane] / h));
    set_left(tile, i, from);
}

/* The scale of least error for the codes that there are, as near as it can be stored: what the error gains by
 * a larger scale is `product`, and its curvature `square`. */
static float improved_scale(const struct tile *tile, uint32_t lane, size_t row, float product, float square)
{
    const float old = tile->scales[lane], best = old + product / square;
    const float scale = square > 0 ? rounded_scale(tile->fit, row, best) : 0;
    return scale > 0 && fabsf(best - scale) < fabsf(best - old) ? scale : old;
}

/* Scales of a group for the codes that it has; `slopes` (end - begin, LANES) follow. */
GPTQ_CLONES static void improve_group_scales(struct tile *tile, uint32_t begin, uint32_t end, float *slopes)
{
    float products[LANES] = {0}, squares[LANES] = {0}, changes[LANES];
    float *sums = (float *)tile->bases; /* (end - begin, LANES): H's rows times the codes */
    for (uint32_t i = begin; i < end; i++) {
        const float *steps = tile->steps + (size_t)i * LANES;
        float *slope = slopes + (size_t)(i - begin) * LANES, *sum = sums + (size_t)(i - begin) * LANES;
        memset(sum, 0, LANES * sizeof *sum);
        for (uint32_t j = begin; j < end; j++)
            add_scaled(sum, h_at(tile, i, j), tile->steps + (size_t)j * LANES);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            products[lane] += steps[lane] * slope[lane];
            squares[lane] += steps[lane] * sum[lane];
        }
    }
    for (uint32_t lane = 0; lane < LANES; lane++) {
        const size_t row = tile->first + (lane < tile->n ? lane : 0);
        const float scale = improved_scale(tile, lane, row, products[lane], squares[lane]);
        changes[lane] = scale - tile->scales[lane];
        tile->scales[lane] = scale;
    }
    for (uint32_t i = begin; i < end; i++) {
        for (uint32_t lane = 0; lane < LANES; lane++)
            slopes[(size_t)(i - begin) * LANES + lane] -=
                changes[lane] * sums[(size_t)(i - begin) * LANES + lane];
        set_left(tile, i, 0);
    }
}

/* How much LANES errors of input i have changed since `before`; false if not at all. */
static bool changes_since(const struct tile *tile, uint32_t i, uint32_t from,
                          const float before[static LANES], float changes[static LANES])
{
    const float *left = tile->left + (size_t)i * tile->width + from;
    bool any = false;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        changes[lane] = left[lane] - before[lane];
        any = any || changes[lane] != 0;
    }
    return any;
}

static void sweep_by_output(struct tile *tile)
{
    const struct encoding *e = tile->fit->e;
    float *slopes = tile->vector;
    for (uint32_t begin = 0, end = 0; begin < e->gptq->n; begin = end) {
        end = group_end(tile, begin);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const size_t group = group_of_lane(tile, begin, lane);
            tile->scales[lane] = e->scales[group];
            tile->zeros[lane] = (float)e->zeros[group];
        }
        for (uint32_t i = begin; i < end; i += AHEAD)
            derive(tile, i, 0, slopes + (size_t)(i - begin) * LANES);
        improve_group_scales(tile, begin, end, slopes);
        for (uint32_t i = begin; i < end; i++) {
            float before[LANES], changes[LANES];
            memcpy(before, tile->left + (size_t)i * LANES, sizeof before);
            improve_codes(tile, i, 0, slopes + (size_t)(i - begin) * LANES);
            if (changes_since(tile, i, 0, before, changes))
                for (uint32_t j = i + 1; j < end; j++)
                    add_scaled(slopes + (size_t)(j - begin) * LANES, h_at(tile, i, j), changes);
        }
        for (uint32_t lane = 0; lane < tile->n; lane++)
            keep_range(tile, lane, group_of_lane(tile, begin, lane));
    }
}

/* The same for the tile's one group of an input; vector v's slopes stand at slopes + v * AHEAD * LANES. */
static void improve_input_scale(struct tile *tile, uint32_t i, float *slopes)
{
    const float h = h_at(tile, i, i);
    float product = 0, square = 0;
    for (uint32_t from = 0; from < tile->width; from += LANES) {
        const float *steps = tile->steps + (size_t)i * tile->width + from;
        for (uint32_t lane = 0; lane < LANES; lane++) {
            product += slopes[from * AHEAD + lane] * steps[lane];
            square += h * steps[lane] * steps[lane];
        }
    }
    const float scale = improved_scale(tile, 0, tile->fit->e->gptq->order[i], product, square);
    const float change = scale - tile->scales[0];
    for (uint32_t lane = 0; lane < LANES; lane++)
        tile->scales[lane] = scale;
    for (uint32_t from = 0; from < tile->width; from += LANES) {
        add_scaled(slopes + (size_t)from * AHEAD, -change * h, tile->steps + (size_t)i * tile->width + from);
        set_left(tile, i, from);
    }
}

static void sweep_input(struct tile *tile, uint32_t i, uint32_t end, float *slopes)
{
    const struct encoding *e = tile->fit->e;
    const size_t group = group_of_lane(tile, i, 0);
    float before[GROUP_MOST], changes[LANES];
    memcpy(before, tile->left + (size_t)i * tile->width, tile->width * sizeof *before);
    take_range(tile, group);
    if (e->codec.group != 0)
        improve_input_scale(tile, i, slopes);
    for (uint32_t from = 0; from < tile->width; from += LANES) {
        improve_codes(tile, i, from, slopes + (size_t)from * AHEAD);
        if (changes_since(tile, i, from, before + from, changes))
            for (uint32_t j = i + 1; j < end; j++)
                add_scaled(slopes + (size_t)from * AHEAD + (j - i) * LANES, h_at(tile, i, j), changes);
    }
    if (e->codec.group != 0)
        keep_range(tile, 0, group);
}

static void sweep_by_input(struct tile *tile)
{
    const uint32_t n = tile->fit->e->gptq->n;
    float slopes[GROUP_MOST * AHEAD];
    for (uint32_t begin = 0; begin < n; begin += AHEAD) {
        const uint32_t end = n - begin < AHEAD ? n : begin + AHEAD;
        for (uint32_t from = 0; from < tile->width; from += LANES)
            derive(tile, begin, from, slopes + (size_t)from * AHEAD);
        for (uint32_t i = begin; i < end; i++)
            sweep_input(tile, i, end, slopes + (size_t)(i - begin) * LANES);
    }
}

static void encode_tile(void *context, size_t item, int thread)
{
    const struct fitting *fit = context;
    const struct encoding *e = fit->e;
    struct tile tile = tile_make(fit, item, thread);
    (e->by_input ? round_by_input : round_by_output)(&tile);
    const size_t n = (size_t)e->gptq->n * tile.width;
    for (size_t i = 0; i < n; i++)
        tile.left[i] = (float)tile.errors[i];
    for (uint32_t sweep = 0; sweep < SWEEPS; sweep++)
        (e->by_input ? sweep_by_input : sweep_by_output)(&tile);
    for (uint32_t i = 0; i < e->gptq->n; i++)
        for (uint32_t o = 0; o < tile.n; o++) {
            const struct place place = place_of(e, e->gptq->order[i], tile.first + o);
            e->codes[place.weight] =
                (uint8_t)(tile.steps[(size_t)i * tile.width + o] + (float)e->zeros[place.group]);
        }
}

/* ---- rows ---- */

/* As moec_codec_round_scales stores them, with the scale that the row has. */
static void pack_row(void *context, size_t row, int thread)
{
    const struct fitting *fit = context;
    const struct encoding *e = fit->e;
    const float *scales = e->scales + row * e->groups;
    uint8_t *stored = fit->stored + (size_t)thread * fit->stored_bytes;
    if (fit->is_nested) {
        const uint16_t limit = moec_f32_to_f16(fit->limits[row]);
        *stored++ = (uint8_t)limit;
        *stored++ = (uint8_t)(limit >> 8);
    }
    for (size_t g = 0; g < e->groups; g++) {
        if (fit->is_nested) {
            *stored++ = scales[g] > 0 ? (uint8_t)rintf(scales[g] / fit->limits[row] * 256) : 0;
            continue;
        }
        const uint16_t half = moec_f32_to_f16(scales[g]);
        *stored++ = (uint8_t)half;
        *stored++ = (uint8_t)(half >> 8);
    }
    moec_codec_pack_row(
        e->codec, e->codes + row * e->columns, fit->stored + (size_t)thread * fit->stored_bytes,
        fit->has_zeros ? e->zeros + row * e->groups : NULL, e->columns, e->rows + row * e->row_bytes);
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
                          .width = e->by_input && group > LANES ? group : LANES,
                          .stored_bytes = moec_codec_scales_bytes(e->codec, e->columns)};
    const uint64_t n_tile = (e->n_output + fit.width - 1) / fit.width;
    const size_t row_doubles = padded(e->columns) / 2 + LANES;
    fit.scratch_doubles = tile_doubles(e->gptq->n, fit.width);
    fit.scratch_doubles = row_doubles > fit.scratch_doubles ? row_doubles : fit.scratch_doubles;
    MOEC_TRY_OUT(moec_alloc((void **)&fit.limits, e->n_row, sizeof *fit.limits, what, err));
    MOEC_TRY_OUT(moec_alloc((void **)&fit.stored, n_threads, fit.stored_bytes, what, err));
    MOEC_TRY_OUT(moec_alloc_aligned((void **)&fit.scratch, n_threads, fit.scratch_doubles * sizeof(double),
                                    what, err));
    if (fit.is_nested)
        moec_parallel_for(pool, e->n_row, limit_row, &fit);
    if (e->by_input && group == 0)
        moec_parallel_for(pool, e->n_row, search_row, &fit);
    moec_parallel_for(pool, n_tile, encode_tile, &fit);
    moec_parallel_for(pool, e->n_row, pack_row, &fit);
out:
    free(fit.limits);
    free(fit.stored);
    free(fit.scratch);
    return status;
}
