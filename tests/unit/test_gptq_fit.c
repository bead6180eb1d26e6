/* Codecs whose quantizer is GPTQ, against the textbook in double precision: the explicit inverse of H, its
 * Cholesky factor, one input after the other. */
#include "tests/unit/temporary.h"

#include "compiler/fit/gptq.h"
#include "compiler/fit/gptq_range.h"
#include "formats/base/half.h"

#include <math.h>

#define LANES MOEC_RANGE_LANES

enum { INPUTS = 150, OUTPUTS = 70, TOKENS = 400, STRIDE = 160, SWEEPS = 3 };

/* Of the mean, added to H_ii */
#define SHARE (MOEC_GPTQ_FIT_DAMPING + (double)MOEC_GPTQ_FIT_TOKENS / (double)TOKENS)

struct bench {
    float x[TOKENS * STRIDE];        /* zero past the inputs */
    float factors[TOKENS];           /* of tokens */
    float weights[OUTPUTS * INPUTS]; /* rows are outputs */
    double h[INPUTS * INPUTS];       /* with what is added to H_ii */
};

static float next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-24f - 0.5f;
}

/* Inputs have different sizes and follow each other's; weights have a few large ones. */
static struct bench *bench_make(void)
{
    struct bench *b = calloc(1, sizeof *b);
    uint32_t seed = 11;
    for (uint32_t t = 0; t < TOKENS; t++) {
        b->factors[t] = 0.6f + next(&seed);
        for (uint32_t i = 0; i < INPUTS; i++) {
            const float size = 1 + (float)(i * 37 % 50) / 10;
            b->x[t * STRIDE + i] = size * next(&seed) + (i % 5 > 0 ? 0.7f * b->x[t * STRIDE + i - 1] : 0);
        }
    }
    for (uint32_t i = 0; i < OUTPUTS * INPUTS; i++)
        b->weights[i] = next(&seed) * next(&seed) * (i % 97 == 0 ? 4 : 1);
    double mean = 0;
    for (uint32_t i = 0; i < INPUTS; i++)
        for (uint32_t j = 0; j < INPUTS; j++)
            for (uint32_t t = 0; t < TOKENS; t++)
                b->h[i * INPUTS + j] += (double)b->factors[t] * (double)b->factors[t] *
                                        (double)b->x[t * STRIDE + i] * (double)b->x[t * STRIDE + j];
    for (uint32_t i = 0; i < INPUTS; i++)
        mean += b->h[i * INPUTS + i] / (double)INPUTS;
    for (uint32_t i = 0; i < INPUTS; i++)
        b->h[i * INPUTS + i] += SHARE * mean;
    return b;
}

static struct moec_gptq *gptq_of(const struct bench *b, enum moec_gptq_order order, int n_threads,
                                 uint32_t batch)
{
    const struct moec_pool pool = {n_threads};
    struct moec_gptq *gptq = NULL;
    MUST(moec_gptq_create(INPUTS, MOEC_GPTQ_QUICK, &gptq, &err));
    for (uint32_t t = 0; t < TOKENS; t += batch)
        moec_gptq_add(gptq, &pool, b->x + t * STRIDE, STRIDE, b->factors + t,
                      TOKENS - t < batch ? TOKENS - t : batch);
    MUST(moec_gptq_factor(gptq, order, &pool, &err));
    return gptq;
}

static struct moec_codec codec_of(uint32_t bits, enum moec_scheme scheme, uint32_t group,
                                  enum moec_quantizer quantizer)
{
    struct moec_codec codec;
    MUST(moec_codec_for_bits(bits, scheme, group, MOEC_DTYPE_F32, &codec, &err));
    codec.quantizer = (uint8_t)quantizer;
    return codec;
}

/* The matrix as it is stored: rows are outputs or inputs. */
struct stored {
    float weights[OUTPUTS * INPUTS];
    struct moec_gptq_matrix matrix;
};

static struct stored *stored_as(const struct bench *b, bool by_input)
{
    struct stored *s = malloc(sizeof *s);
    s->matrix = (struct moec_gptq_matrix){s->weights, by_input ? INPUTS : OUTPUTS,
                                          by_input ? OUTPUTS : INPUTS, by_input};
    for (uint32_t o = 0; o < OUTPUTS; o++)
        for (uint32_t i = 0; i < INPUTS; i++)
            s->weights[by_input ? i * OUTPUTS + o : o * INPUTS + i] = b->weights[o * INPUTS + i];
    return s;
}

/* Encoded rows; the caller frees them. */
static uint8_t *encode(const struct moec_gptq *gptq, const struct stored *s, struct moec_codec codec,
                       int n_threads)
{
    const struct moec_pool pool = {n_threads};
    uint8_t *rows = calloc(s->matrix.n_row, moec_codec_row_bytes(codec, s->matrix.columns));
    MUST(moec_gptq_encode(gptq, &pool, &s->matrix, codec, rows, &err));
    return rows;
}

/* As the matrix is stored. */
static void decode(const struct stored *s, struct moec_codec codec, const uint8_t *rows, float *weights)
{
    const size_t row_bytes = moec_codec_row_bytes(codec, s->matrix.columns);
    for (uint32_t r = 0; r < s->matrix.n_row; r++)
        moec_codec_decode_row(codec, rows + r * row_bytes, s->matrix.columns,
                              weights + (size_t)r * s->matrix.columns);
}

/* tr(D H D') of decoded weights. */
static double error_of(const struct bench *b, const struct stored *s, const float *decoded)
{
    double sum = 0;
    double d[INPUTS];
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        for (uint32_t i = 0; i < INPUTS; i++) {
            const size_t at = s->matrix.by_input ? i * OUTPUTS + o : o * INPUTS + i;
            d[i] = (double)s->weights[at] - (double)decoded[at];
        }
        for (uint32_t i = 0; i < INPUTS; i++)
            for (uint32_t j = 0; j < INPUTS; j++)
                sum += d[i] * b->h[i * INPUTS + j] * d[j];
    }
    return sum;
}

/* ---- the textbook ---- */

/* Sum of H_ii, without what is added to each, of inputs first .. end - 1. */
static double sum_of(const struct bench *b, uint32_t first, uint32_t end)
{
    double sum = 0, mean = 0;
    for (uint32_t i = 0; i < INPUTS; i++)
        mean += b->h[i * INPUTS + i] / (double)INPUTS;
    for (uint32_t i = first; i < end; i++)
        sum += b->h[i * INPUTS + i] - mean * SHARE / (1 + SHARE);
    return sum;
}

/* Inputs by runs of 128, then of 64, .., those of one length by their sums. */
static void order_inputs(const struct bench *b, uint32_t first, uint32_t end, uint32_t length,
                         uint32_t *order)
{
    bool is_taken[INPUTS] = {false};
    for (uint32_t n = 0; n < end - first;) {
        uint32_t best = 0, best_end = 0;
        for (uint32_t from = first; from < end; from += length) {
            const uint32_t to = from + length < end ? from + length : end;
            if (is_taken[from] || (best_end > 0 && sum_of(b, from, to) <= sum_of(b, best, best_end)))
                continue;
            best = from;
            best_end = to;
        }
        is_taken[best] = true;
        if (length == 1)
            order[n] = best;
        else
            order_inputs(b, best, best_end, length > LANES ? length / 2 : 1, order + n);
        n += best_end - best;
    }
}

/* U upper triangular with U'U the inverse of H in order. */
static void factor_inverse(const struct bench *b, const uint32_t *order, double *u)
{
    static double a[INPUTS][2 * INPUTS];
    for (uint32_t i = 0; i < INPUTS; i++)
        for (uint32_t j = 0; j < INPUTS; j++) {
            a[i][j] = b->h[order[i] * INPUTS + order[j]];
            a[i][INPUTS + j] = i == j;
        }
    for (uint32_t p = 0; p < INPUTS; p++) {
        const double pivot = a[p][p];
        for (uint32_t j = 0; j < 2 * INPUTS; j++)
            a[p][j] /= pivot;
        for (uint32_t i = 0; i < INPUTS; i++) {
            const double factor = a[i][p];
            for (uint32_t j = 0; j < 2 * INPUTS && i != p; j++)
                a[i][j] -= factor * a[p][j];
        }
    }
    memset(u, 0, INPUTS * INPUTS * sizeof *u);
    for (uint32_t i = 0; i < INPUTS; i++)
        for (uint32_t j = i; j < INPUTS; j++) {
            double sum = a[i][INPUTS + j];
            for (uint32_t k = 0; k < i; k++)
                sum -= u[k * INPUTS + i] * u[k * INPUTS + j];
            u[i * INPUTS + j] = i == j ? sqrt(sum) : sum / u[i * INPUTS + i];
        }
}

struct textbook {
    const struct bench *b;
    struct moec_codec codec;
    bool by_input;
    uint32_t order[INPUTS];
    double u[INPUTS * INPUTS];
    double w[OUTPUTS][INPUTS]; /* corrected, in order */
    double q[OUTPUTS][INPUTS];
    float scale[OUTPUTS][INPUTS], zero[OUTPUTS][INPUTS];
    float limits[INPUTS > OUTPUTS ? INPUTS : OUTPUTS];
};

static double levels_of(const struct textbook *t)
{
    return (double)((1u << moec_codec_bits(t->codec)) - 1);
}

static float stored_scale(const struct textbook *t, uint32_t row, float wanted)
{
    if (wanted <= 0)
        return 0;
    if (!moec_scheme_is_nested((enum moec_scheme)t->codec.scheme))
        return moec_f16_to_f32(moec_f32_to_f16(wanted));
    return t->limits[row] / 256 * fminf(fmaxf(rintf(wanted / t->limits[row] * 256), 1), 255);
}

static void set_limits(struct textbook *t, const struct stored *s)
{
    const uint32_t group = t->codec.group;
    const bool has_zeros = moec_scheme_has_zeros((enum moec_scheme)t->codec.scheme);
    for (uint32_t r = 0; r < s->matrix.n_row; r++) {
        float largest = 0;
        for (uint32_t first = 0; first < s->matrix.columns; first += group) {
            float most = 0, least = 0;
            for (uint32_t c = first; c < first + group && c < s->matrix.columns; c++) {
                most = fmaxf(most, s->weights[r * s->matrix.columns + c]);
                least = fminf(least, s->weights[r * s->matrix.columns + c]);
            }
            const float size = has_zeros ? (most - least) / (float)levels_of(t)
                                         : fmaxf(most, -least) / ((float)(levels_of(t) - 1) / 2);
            largest = fmaxf(largest, size);
        }
        t->limits[r] = moec_f16_to_f32(moec_f32_to_f16(largest * 1.25f * (256.0f / 255.0f)));
    }
}

/* Range of n weights with these factors of their errors, one group; without factors they lie over all lanes.
 */
static void find_range(const struct textbook *t, const float *weights, const float *v, size_t n, float *scale,
                       float *zero)
{
    float *lanes = calloc(n + LANES, LANES * sizeof *lanes), scales[LANES], zeros[LANES];
    for (size_t i = 0; i < n; i++)
        lanes[v != NULL ? i * LANES : i] = weights[i];
    const struct moec_range_task task = {.w = lanes,
                                         .v = v,
                                         .n = v != NULL ? n : (n + LANES - 1) / LANES,
                                         .bits = moec_codec_bits(t->codec),
                                         .has_zeros =
                                             moec_scheme_has_zeros((enum moec_scheme)t->codec.scheme),
                                         .is_shared = v == NULL};
    moec_range_search(&task, scales, zeros);
    *scale = scales[0];
    *zero = scales[0] > 0 || !task.has_zeros ? zeros[0] : 0;
    free(lanes);
}

static double nearest(const struct textbook *t, double value, float scale, float zero)
{
    if (scale == 0)
        return 0;
    return (fmin(fmax(rint(value / (double)scale) + (double)zero, 0), levels_of(t)) - (double)zero) *
           (double)scale;
}

/* Inputs of the order from i on that share a group of an output. */
static uint32_t run_length(const struct textbook *t, uint32_t i)
{
    uint32_t n = 1;
    if (t->codec.group == 0)
        return INPUTS - i;
    while (i + n < INPUTS && t->order[i + n] / t->codec.group == t->order[i] / t->codec.group)
        n++;
    return n;
}

/* Ranges of the groups that begin with input i, from the weights as they are corrected by now. */
static void find_ranges(struct textbook *t, uint32_t i)
{
    float weights[INPUTS], v[INPUTS];
    if (t->by_input) {
        for (uint32_t first = 0; first < OUTPUTS; first += t->codec.group) {
            const uint32_t n = OUTPUTS - first < t->codec.group ? OUTPUTS - first : t->codec.group;
            float scale, zero;
            for (uint32_t k = 0; k < n; k++)
                weights[k] = (float)t->w[first + k][i];
            find_range(t, weights, NULL, n, &scale, &zero);
            for (uint32_t k = 0; k < n; k++) {
                t->scale[first + k][i] = stored_scale(t, t->order[i], scale);
                t->zero[first + k][i] = zero;
            }
        }
        return;
    }
    const uint32_t n = run_length(t, i);
    double most = 0;
    for (uint32_t k = i; k < i + n; k++)
        most = fmax(most, 1 / (t->u[k * INPUTS + k] * t->u[k * INPUTS + k]));
    for (uint32_t k = 0; k < n; k++)
        v[k] = (float)(1 / (t->u[(i + k) * INPUTS + i + k] * t->u[(i + k) * INPUTS + i + k]) / most);
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        float scale, zero;
        for (uint32_t k = 0; k < n; k++)
            weights[k] = (float)t->w[o][i + k];
        find_range(t, weights, v, n, &scale, &zero);
        for (uint32_t k = i; k < i + n; k++) {
            t->scale[o][k] = stored_scale(t, o, scale);
            t->zero[o][k] = zero;
        }
    }
}

static void round_inputs(struct textbook *t)
{
    for (uint32_t i = 0; i < INPUTS; i++) {
        const bool begins = t->by_input
                                ? t->codec.group != 0
                                : i == 0 || (t->codec.group != 0 && t->order[i] / t->codec.group !=
                                                                        t->order[i - 1] / t->codec.group);
        if (begins)
            find_ranges(t, i);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            t->q[o][i] = nearest(t, t->w[o][i], t->scale[o][i], t->zero[o][i]);
            const double error = (t->w[o][i] - t->q[o][i]) / t->u[i * INPUTS + i];
            for (uint32_t k = i + 1; k < INPUTS; k++)
                t->w[o][k] -= error * t->u[i * INPUTS + k];
        }
    }
}

/* H times the error of output o, at input i. */
static double slope(const struct textbook *t, const double *w, uint32_t o, uint32_t i)
{
    double sum = 0;
    for (uint32_t k = 0; k < INPUTS; k++)
        sum += t->b->h[t->order[i] * INPUTS + t->order[k]] * (w[o * INPUTS + k] - t->q[o][k]);
    return sum;
}

/* The scale of least error of the weights (o..o+n_o, i..i+n_i), one group, all codes staying. */
static void fit_scale(struct textbook *t, const double *w, uint32_t o, uint32_t n_o, uint32_t i, uint32_t n_i)
{
    const float old = t->scale[o][i];
    double product = 0, square = 0;
    for (uint32_t a = o; a < o + n_o && old > 0; a++)
        for (uint32_t k = i; k < i + n_i; k++) {
            const double step = t->q[a][k] / (double)old;
            product += step * slope(t, w, a, k);
            for (uint32_t l = i; l < i + n_i; l++)
                square += step * t->b->h[t->order[k] * INPUTS + t->order[l]] * t->q[a][l] / (double)old;
        }
    if (!(square > 0))
        return;
    const double best = (double)old + product / square;
    const float scale = stored_scale(t, t->by_input ? t->order[i] : o, (float)best);
    if (scale <= 0 || fabs(best - (double)scale) >= fabs(best - (double)old))
        return;
    for (uint32_t a = o; a < o + n_o; a++)
        for (uint32_t k = i; k < i + n_i; k++) {
            t->q[a][k] *= (double)scale / (double)old;
            t->scale[a][k] = scale;
        }
}

static void sweep(struct textbook *t, const double *w)
{
    for (uint32_t i = 0; i < INPUTS;) {
        const uint32_t n = t->by_input ? 1 : run_length(t, i), group = t->codec.group;
        for (uint32_t o = 0; o < OUTPUTS && !t->by_input; o++)
            fit_scale(t, w, o, 1, i, n);
        for (uint32_t o = 0; o < OUTPUTS && t->by_input && group != 0; o += group)
            fit_scale(t, w, o, OUTPUTS - o < group ? OUTPUTS - o : group, i, 1);
        for (uint32_t o = 0; o < OUTPUTS; o++)
            for (uint32_t k = i; k < i + n; k++) {
                const double h = t->b->h[t->order[k] * INPUTS + t->order[k]];
                t->q[o][k] = nearest(t, t->q[o][k] + slope(t, w, o, k) / h, t->scale[o][k], t->zero[o][k]);
            }
        i += n;
    }
}

/* Decoded weights as the matrix is stored, after so many sweeps. */
static void by_the_textbook(const struct bench *b, const struct stored *s, struct moec_codec codec,
                            uint32_t sweeps, float *decoded)
{
    struct textbook *t = calloc(1, sizeof *t);
    double *w = malloc(OUTPUTS * INPUTS * sizeof *w);
    *t = (struct textbook){.b = b, .codec = codec, .by_input = s->matrix.by_input};
    order_inputs(b, 0, INPUTS, 128, t->order);
    factor_inverse(b, t->order, t->u);
    if (moec_scheme_is_nested((enum moec_scheme)codec.scheme))
        set_limits(t, s);
    for (uint32_t o = 0; o < OUTPUTS; o++)
        for (uint32_t i = 0; i < INPUTS; i++)
            w[o * INPUTS + i] = t->w[o][i] = (double)b->weights[o * INPUTS + t->order[i]];
    for (uint32_t i = 0; i < INPUTS && t->by_input && codec.group == 0; i++) {
        float row[OUTPUTS], scale, zero;
        for (uint32_t o = 0; o < OUTPUTS; o++)
            row[o] = (float)t->w[o][i];
        find_range(t, row, NULL, OUTPUTS, &scale, &zero);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            t->scale[o][i] = stored_scale(t, t->order[i], scale);
            t->zero[o][i] = zero;
        }
    }
    round_inputs(t);
    for (uint32_t n = 0; n < sweeps; n++)
        sweep(t, w);
    for (uint32_t o = 0; o < OUTPUTS; o++)
        for (uint32_t i = 0; i < INPUTS; i++)
            decoded[s->matrix.by_input ? t->order[i] * OUTPUTS + o : o * INPUTS + t->order[i]] =
                (float)t->q[o][i];
    free(t);
    free(w);
}

/* ---- tests ---- */

static const struct kind {
    uint32_t bits;
    enum moec_scheme scheme;
    uint32_t group;
} kinds[] = {{2, MOEC_SCHEME_ASYMMETRIC_NESTED, 64}, {2, MOEC_SCHEME_SYMMETRIC, 32},
             {3, MOEC_SCHEME_ASYMMETRIC_NESTED, 16}, {3, MOEC_SCHEME_ASYMMETRIC, 0},
             {4, MOEC_SCHEME_SYMMETRIC_NESTED, 32},  {4, MOEC_SCHEME_ASYMMETRIC, 128},
             {5, MOEC_SCHEME_ASYMMETRIC_NESTED, 64}, {6, MOEC_SCHEME_SYMMETRIC, 0},
             {8, MOEC_SCHEME_ASYMMETRIC_NESTED, 32}};
#define N_KIND (sizeof kinds / sizeof *kinds)

/* Ours sums in F32 where the textbook has F64, so a weight between two codes may get the other one, and those
 * after it follow; the error is the textbook's all the same, and less than without sweeps. */
static void test_gptq_fit__errs_as_the_textbook_does(void **state)
{
    (void)state;
    static float ours[OUTPUTS * INPUTS], theirs[OUTPUTS * INPUTS];
    struct bench *b = bench_make();
    struct moec_gptq *gptq = gptq_of(b, MOEC_GPTQ_BY_GROUP, 1, 33);
    for (size_t k = 0; k < N_KIND; k++)
        for (int by_input = 0; by_input < 2; by_input++) {
            const struct moec_codec codec =
                codec_of(kinds[k].bits, kinds[k].scheme, kinds[k].group, MOEC_QUANTIZER_GPTQ);
            struct stored *s = stored_as(b, by_input != 0);
            uint8_t *rows = encode(gptq, s, codec, 1);
            size_t same = 0;
            decode(s, codec, rows, ours);
            by_the_textbook(b, s, codec, SWEEPS, theirs);
            for (size_t i = 0; i < OUTPUTS * INPUTS; i++)
                same += fabsf(ours[i] - theirs[i]) <= 1e-6f;
            const double error = error_of(b, s, ours), expected = error_of(b, s, theirs);
            if (same < OUTPUTS * INPUTS * 99 / 100 || fabs(error - expected) > 0.005 * expected)
                fail_msg("kind %zu: %zu of %d weights, error %g, expected %g", k, same, OUTPUTS * INPUTS,
                         error, expected);
            by_the_textbook(b, s, codec, 0, theirs);
            assert_true(error < (kinds[k].bits <= 4 ? 0.95 : 1) * error_of(b, s, theirs));
            free(rows);
            free(s);
        }
    moec_gptq_free(gptq);
    free(b);
}

static void test_gptq_fit__is_nearer_than_published_gptq(void **state)
{
    (void)state;
    static float decoded[OUTPUTS * INPUTS];
    struct bench *b = bench_make();
    struct moec_gptq *gptq = gptq_of(b, MOEC_GPTQ_BY_GROUP, 2, TOKENS);
    struct moec_gptq *published = gptq_of(b, MOEC_GPTQ_BY_INPUT, 2, TOKENS);
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (int by_input = 0; by_input < 2; by_input++) {
            struct stored *s = stored_as(b, by_input != 0);
            double error[2];
            for (int i = 0; i < 2; i++) {
                const struct moec_codec codec = codec_of(
                    bits, MOEC_SCHEME_ASYMMETRIC, 32, i == 0 ? MOEC_QUANTIZER_GPTQ : MOEC_QUANTIZER_LINEAR);
                uint8_t *rows = encode(i == 0 ? gptq : published, s, codec, 2);
                decode(s, codec, rows, decoded);
                error[i] = error_of(b, s, decoded);
                free(rows);
            }
            assert_true(error[0] < (bits == 2 ? 0.75 : 0.9) * error[1]);
            free(s);
        }
    moec_gptq_free(gptq);
    moec_gptq_free(published);
    free(b);
}

static void test_gptq_fit__bytes_do_not_depend_on_threads_or_batches(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    struct moec_gptq *one = gptq_of(b, MOEC_GPTQ_BY_GROUP, 1, TOKENS);
    struct moec_gptq *many = gptq_of(b, MOEC_GPTQ_BY_GROUP, 3, 41);
    for (size_t k = 0; k < N_KIND; k++)
        for (int by_input = 0; by_input < 2; by_input++) {
            const struct moec_codec codec =
                codec_of(kinds[k].bits, kinds[k].scheme, kinds[k].group, MOEC_QUANTIZER_GPTQ);
            struct stored *s = stored_as(b, by_input != 0);
            uint8_t *first = encode(one, s, codec, 1), *second = encode(many, s, codec, 3);
            assert_memory_equal(first, second,
                                s->matrix.n_row * moec_codec_row_bytes(codec, s->matrix.columns));
            free(first);
            free(second);
            free(s);
        }
    moec_gptq_free(one);
    moec_gptq_free(many);
    free(b);
}

static void test_gptq_fit__error_is_that_of_the_products(void **state)
{
    (void)state;
    static float decoded[OUTPUTS * INPUTS];
    static const float nothing[OUTPUTS * INPUTS];
    const struct moec_pool pool = {3};
    const struct moec_codec codec = codec_of(3, MOEC_SCHEME_SYMMETRIC, 0, MOEC_QUANTIZER_LINEAR);
    struct bench *b = bench_make();
    struct moec_gptq *gptq = gptq_of(b, MOEC_GPTQ_BY_GROUP, 2, TOKENS), *twice = NULL;
    for (int by_input = 0; by_input < 2; by_input++) {
        struct stored *s = stored_as(b, by_input != 0);
        double error = 0;
        for (uint32_t r = 0; r < s->matrix.n_row; r++) {
            uint8_t row[4096];
            const float *weights = s->weights + (size_t)r * s->matrix.columns;
            MUST(moec_codec_encode_row(codec, weights, s->matrix.columns, row, &err));
            moec_codec_decode_row(codec, row, s->matrix.columns, decoded + (size_t)r * s->matrix.columns);
        }
        MUST(moec_gptq_error(gptq, &pool, &s->matrix, decoded, &error, &err));
        assert_true(fabs(error / error_of(b, s, decoded) - 1) < 1e-6);
        MUST(moec_gptq_error(gptq, &pool, &s->matrix, NULL, &error, &err));
        assert_true(fabs(error / error_of(b, s, nothing) - 1) < 1e-6);

        /* Another's H, and half of it more: more tokens then add a smaller share to H_ii. */
        double more = 0;
        MUST(moec_gptq_create(INPUTS, MOEC_GPTQ_QUICK, &twice, &err));
        moec_gptq_mix(twice, gptq, 1);
        MUST(moec_gptq_factor(twice, MOEC_GPTQ_BY_GROUP, &pool, &err));
        MUST(moec_gptq_error(twice, &pool, &s->matrix, NULL, &more, &err));
        assert_true(more == error);
        moec_gptq_mix(twice, gptq, 0.5);
        MUST(moec_gptq_factor(twice, MOEC_GPTQ_BY_GROUP, &pool, &err));
        MUST(moec_gptq_error(twice, &pool, &s->matrix, NULL, &more, &err));
        assert_true(more < 1.5 * error && more > 1.3 * error);
        moec_gptq_free(twice);
        free(s);
    }
    moec_gptq_free(gptq);
    free(b);
}

static void test_gptq_fit__edges(void **state)
{
    (void)state;
    struct moec_error problem = {0};
    const struct moec_pool pool = {1};
    struct bench *b = bench_make();
    struct stored *s = stored_as(b, false);
    const struct moec_codec codec = codec_of(2, MOEC_SCHEME_ASYMMETRIC_NESTED, 32, MOEC_QUANTIZER_GPTQ);
    const size_t row_bytes = moec_codec_row_bytes(codec, INPUTS);
    uint8_t *expected = malloc(row_bytes), *rows;
    float decoded[INPUTS];
    struct moec_gptq *gptq = NULL;

    /* Without inputs codes are HQQ's. */
    MUST(moec_gptq_create(INPUTS, MOEC_GPTQ_QUICK, &gptq, &err));
    MUST(moec_gptq_factor(gptq, MOEC_GPTQ_BY_GROUP, &pool, &err));
    rows = encode(gptq, s, codec, 1);
    struct moec_codec hqq = codec;
    hqq.quantizer = MOEC_QUANTIZER_HQQ;
    MUST(moec_codec_encode_row(hqq, s->weights, INPUTS, expected, &err));
    assert_memory_equal(rows, expected, row_bytes);
    free(rows);
    moec_gptq_free(gptq);

    gptq = gptq_of(b, MOEC_GPTQ_BY_INPUT, 1, TOKENS);
    rows = calloc(OUTPUTS, row_bytes);
    assert_int_equal(moec_gptq_encode(gptq, &pool, &s->matrix, codec, rows, &problem), MOEC_ERR_USAGE);
    MUST(moec_gptq_factor(gptq, MOEC_GPTQ_BY_GROUP, &pool, &err));

    /* Groups of zeros stay zeros, and weights beyond what F16 scales reach are told. */
    memset(s->weights, 0, INPUTS * sizeof *s->weights);
    MUST(moec_gptq_encode(gptq, &pool, &s->matrix, codec, rows, &err));
    moec_codec_decode_row(codec, rows, INPUTS, decoded);
    for (uint32_t i = 0; i < INPUTS; i++)
        assert_true(decoded[i] == 0);
    s->weights[5] = 1e30f;
    assert_int_equal(moec_gptq_encode(gptq, &pool, &s->matrix, codec, rows, &problem), MOEC_ERR_FORMAT);
    free(rows);
    free(expected);
    moec_gptq_free(gptq);
    free(s);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptq_fit__errs_as_the_textbook_does),
        cmocka_unit_test(test_gptq_fit__is_nearer_than_published_gptq),
        cmocka_unit_test(test_gptq_fit__bytes_do_not_depend_on_threads_or_batches),
        cmocka_unit_test(test_gptq_fit__error_is_that_of_the_products),
        cmocka_unit_test(test_gptq_fit__edges),
    };
    return cmocka_run_group_tests_name("gptq_fit", tests, NULL, NULL);
}
