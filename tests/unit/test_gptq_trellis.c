/* GPTQ over a trellis, against the algorithm in double precision without a window and, on short rows, against
 * all codes that there are. */
#include "tests/unit/temporary.h"

#include "compiler/fit/gptq.h"
#include "formats/base/half.h"
#include "formats/codec/shift.h"

#include <math.h>

enum { TOKENS = 300, OUTPUTS = 37, MOST = 200, STATES = 64 };

/* Of the mean, added to H_ii */
#define SHARE (MOEC_GPTQ_FIT_DAMPING + (double)MOEC_GPTQ_FIT_TOKENS / (double)TOKENS)

#define EACH_CODEC 3
static const struct moec_codec codecs[EACH_CODEC] = {
    {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_SHIFT, .quantizer = MOEC_QUANTIZER_GPTQ},
    {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT, .quantizer = MOEC_QUANTIZER_GPTQ},
    {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT, .quantizer = MOEC_QUANTIZER_GPTQ}};

/* A matrix of OUTPUTS outputs and n inputs, stored by outputs or by inputs. */
struct bench {
    uint32_t n;
    bool by_input;
    float x[TOKENS * (MOST + 16)];
    float weights[OUTPUTS * MOST];
    double h[MOST][MOST]; /* with what is added to H_ii */
    double r[MOST][MOST]; /* H = R R', R upper triangular */
    struct moec_gptq *gptq;
};

static size_t place(const struct bench *b, uint32_t output, uint32_t input)
{
    return b->by_input ? (size_t)input * OUTPUTS + output : (size_t)output * b->n + input;
}

static struct moec_gptq_matrix matrix_of(const struct bench *b)
{
    return (struct moec_gptq_matrix){b->weights, b->by_input ? b->n : OUTPUTS, b->by_input ? OUTPUTS : b->n,
                                     b->by_input};
}

static void factorise(struct bench *b)
{
    for (uint32_t i = b->n; i-- > 0;)
        for (uint32_t j = i + 1; j-- > 0;) {
            double sum = b->h[j][i];
            for (uint32_t k = i + 1; k < b->n; k++)
                sum -= b->r[j][k] * b->r[i][k];
            b->r[j][i] = j == i ? sqrt(sum) : sum / b->r[i][i];
        }
}

/* Inputs that follow each other's, or each token one input. */
static struct bench *bench_make(uint32_t n, bool by_input, bool is_alone)
{
    struct bench *b = calloc(1, sizeof *b);
    const size_t stride = (n + 15) / 16 * 16;
    const struct moec_pool pool = {2};
    uint64_t seed = 7 + n;
    double mean = 0;
    b->n = n;
    b->by_input = by_input;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < n; i++) {
            float *x = &b->x[t * stride + i];
            if (is_alone)
                *x = t % n == i ? 2 : 0;
            else
                *x = (1 + (float)(i * 37 % 11) / 5) * random_float(&seed) + (i % 5 > 0 ? 0.7f * x[-1] : 0);
        }
    for (uint32_t i = 0; i < OUTPUTS * n; i++)
        b->weights[i] = 0.05f * (random_float(&seed) + random_float(&seed) + random_float(&seed));
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < n; j++)
                b->h[i][j] += (double)b->x[t * stride + i] * (double)b->x[t * stride + j];
    for (uint32_t i = 0; i < n; i++)
        mean += b->h[i][i] / n;
    for (uint32_t i = 0; i < n; i++)
        b->h[i][i] += SHARE * mean;
    factorise(b);
    MUST(moec_gptq_create(n, MOEC_GPTQ_QUICK, &b->gptq, &err));
    moec_gptq_add(b->gptq, &pool, b->x, stride, NULL, TOKENS);
    MUST(moec_gptq_factor(b->gptq, by_input ? MOEC_GPTQ_BY_GROUP : MOEC_GPTQ_BY_COLUMN, &pool, &err));
    return b;
}

static void bench_free(struct bench *b)
{
    moec_gptq_free(b->gptq);
    free(b);
}

/* Encoded rows; the caller frees them. */
static uint8_t *encode(const struct bench *b, struct moec_codec codec, int n_threads)
{
    const struct moec_pool pool = {n_threads};
    const struct moec_gptq_matrix matrix = matrix_of(b);
    uint8_t *rows = calloc(matrix.n_row, moec_codec_row_bytes(codec, matrix.columns));
    MUST(moec_gptq_encode(b->gptq, &pool, &matrix, codec, rows, &err));
    return rows;
}

static void decode(const struct bench *b, struct moec_codec codec, const uint8_t *rows, float *decoded)
{
    const struct moec_gptq_matrix matrix = matrix_of(b);
    const size_t row_bytes = moec_codec_row_bytes(codec, matrix.columns);
    for (uint32_t r = 0; r < matrix.n_row; r++)
        moec_codec_decode_row(codec, rows + r * row_bytes, matrix.columns,
                              decoded + (size_t)r * matrix.columns);
}

/* (w - q) H (w - q)' of one output. */
static double cost_of(const struct bench *b, uint32_t output, const double *q)
{
    double sum = 0;
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t j = 0; j < b->n; j++)
            sum += ((double)b->weights[place(b, output, i)] - q[i]) * b->h[i][j] *
                   ((double)b->weights[place(b, output, j)] - q[j]);
    return sum;
}

static double error_of(const struct bench *b, const float *decoded)
{
    double sum = 0, q[MOST];
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        for (uint32_t i = 0; i < b->n; i++)
            q[i] = (double)decoded[place(b, o, i)];
        sum += cost_of(b, o, q);
    }
    return sum;
}

/* The scale of least error for these levels. */
static double fitted(const struct bench *b, uint32_t output, const double *levels)
{
    double product = 0, square = 0;
    for (uint32_t i = 0; i < b->n; i++)
        for (uint32_t j = 0; j < b->n; j++) {
            product += levels[i] * b->h[i][j] * (double)b->weights[place(b, output, j)];
            square += levels[i] * b->h[i][j] * levels[j];
        }
    return product / square;
}

static double half(double value)
{
    return (double)moec_f16_to_f32(moec_f32_to_f16((float)value));
}

/* As the encoder begins. */
static double first_scale(const struct bench *b, uint32_t bits, uint32_t output)
{
    float costs[MOST], weights[MOST];
    double mean = 0;
    for (uint32_t i = 0; i < b->n; i++)
        mean += pow(b->r[i][i], 1.0 / 8) / b->n;
    for (uint32_t i = 0; i < b->n; i++) {
        costs[i] = (float)(b->r[i][i] * b->r[i][i] / pow(mean, 16));
        weights[i] = b->weights[place(b, output, i)];
    }
    return half((double)moec_shift_scale(bits, weights, costs, b->n));
}

/* Each state's best path, whole. */
struct paths {
    double costs[STATES];
    double levels[STATES][MOST];
};

/* Viterbi's algorithm with each path's own corrections; gives the levels of the best. */
static void by_the_textbook(const struct bench *b, uint32_t bits, uint32_t output, double scale,
                            double *levels)
{
    const struct moec_shift *shift = moec_shift_of(bits);
    struct paths *now = malloc(sizeof *now), *next = malloc(sizeof *next);
    for (int s = 0; s < STATES; s++)
        now->costs[s] = s == 0 ? 0 : INFINITY;
    for (uint32_t i = 0; i < b->n; i++) {
        for (int s = 0; s < STATES; s++)
            next->costs[s] = INFINITY;
        for (uint32_t s = 0; s < STATES; s++) {
            double u = (double)b->weights[place(b, output, i)];
            for (uint32_t j = 0; j < i && now->costs[s] < INFINITY; j++)
                u += b->r[j][i] / b->r[i][i] *
                     ((double)b->weights[place(b, output, j)] - now->levels[s][j] * scale);
            for (uint32_t x = 0; x < 1u << bits; x++) {
                const uint32_t coded = x & MOEC_SHIFT_CODED, to = moec_shift_next(s, coded);
                const uint32_t window = moec_shift_window(s, coded);
                const double level =
                    (double)shift->levels[x >> 2 << shift->coded_bits | moec_shift_place(shift, window)];
                const double off = b->r[i][i] * (u - level * scale), cost = now->costs[s] + off * off;
                if (!(cost < next->costs[to]))
                    continue;
                next->costs[to] = cost;
                memcpy(next->levels[to], now->levels[s], i * sizeof(double));
                next->levels[to][i] = level;
            }
        }
        struct paths *last = now;
        now = next;
        next = last;
    }
    int best = 0;
    for (int s = 1; s < STATES; s++)
        best = now->costs[s] < now->costs[best] ? s : best;
    memcpy(levels, now->levels[best], b->n * sizeof *levels);
    free(now);
    free(next);
}

/* Up to a window's length nothing is decided early. */
static void test_gptq_trellis__errs_as_the_textbook_does(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 5, 33, 64, 65, 150};
    static float decoded[OUTPUTS * MOST];
    for (size_t k = 0; k < EACH_CODEC * sizeof widths / sizeof *widths; k++) {
        const struct moec_codec trellis = codecs[k % EACH_CODEC];
        const uint32_t bits = moec_codec_bits(trellis);
        struct bench *b = bench_make(widths[k / EACH_CODEC], false, false);
        uint8_t *rows = encode(b, trellis, 1);
        double levels[MOST], q[MOST], expected = 0, total = 0;
        uint32_t same = 0;
        decode(b, trellis, rows, decoded);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            bool is_same = true;
            by_the_textbook(b, bits, o, first_scale(b, bits, o), levels);
            const double scale = half(fitted(b, o, levels));
            for (uint32_t i = 0; i < b->n; i++) {
                q[i] = levels[i] * scale;
                is_same = is_same && fabs((double)decoded[place(b, o, i)] - q[i]) < 1e-7;
            }
            expected += cost_of(b, o, q);
            same += is_same;
        }
        total = error_of(b, decoded);
        if ((b->n <= 64 && same < OUTPUTS - 1) || total > (b->n <= 64 ? 1.003 : 1.03) * expected ||
            total < (b->n <= 64 ? 0.997 : 0.95) * expected)
            fail_msg("%u inputs: %u of %d rows are the same, error %g, expected %g", b->n, same, OUTPUTS,
                     total, expected);
        free(rows);
        bench_free(b);
    }
}

/* Inputs that have nothing to do with each other: no code is better. */
static void test_gptq_trellis__short_rows_have_the_best_codes(void **state)
{
    (void)state;
    enum { N = 4 };
    static float decoded[OUTPUTS * MOST];
    struct bench *b = bench_make(N, false, true);
    for (uint32_t c = 0; c < EACH_CODEC; c++) {
        const struct moec_codec trellis = codecs[c];
        const uint32_t bits = moec_codec_bits(trellis);
        uint8_t *rows = encode(b, trellis, 2);
        decode(b, trellis, rows, decoded);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            double least = INFINITY, best[N] = {0}, q[N];
            const double scale = first_scale(b, bits, o);
            for (uint32_t all = 0; all < 1u << (bits * N); all++) {
                uint8_t codes[N];
                float values[N];
                for (uint32_t i = 0; i < N; i++)
                    codes[i] = (uint8_t)(all >> (bits * i) & ((1u << bits) - 1));
                moec_shift_values(bits, codes, N, values);
                for (uint32_t i = 0; i < N; i++)
                    q[i] = (double)values[i] * scale;
                const double cost = cost_of(b, o, q);
                for (uint32_t i = 0; i < N && cost < least; i++)
                    best[i] = (double)values[i];
                least = cost < least ? cost : least;
            }
            const double fit = half(fitted(b, o, best));
            for (uint32_t i = 0; i < N; i++)
                assert_true(fabs((double)decoded[place(b, o, i)] - best[i] * fit) < 1e-6);
        }
        free(rows);
    }
    bench_free(b);
}

/* One weight in 499 is five times as large as others: fewer bytes and no more error than codes with a scale for each
 * 64. */
static void test_gptq_trellis__loses_less_where_some_weights_are_large(void **state)
{
    (void)state;
    static float decoded[OUTPUTS * MOST];
    for (int k = 0; k < 2 * EACH_CODEC; k++) {
        const int by_input = k % 2;
        const struct moec_codec trellis = codecs[k / 2];
        struct bench *b = bench_make(MOST, by_input != 0, false);
        struct moec_codec even;
        double errors[2];
        for (uint32_t i = 0; i < OUTPUTS * b->n; i += 499)
            b->weights[i] *= 5;
        uint8_t *rows = encode(b, trellis, 2);
        decode(b, trellis, rows, decoded);
        errors[0] = error_of(b, decoded);
        free(rows);
        MUST(moec_codec_for_bits(moec_codec_bits(trellis), MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_DTYPE_F32,
                                 &even, &err));
        even.quantizer = MOEC_QUANTIZER_GPTQ;
        const struct moec_pool pool = {2};
        MUST(moec_gptq_factor(b->gptq, MOEC_GPTQ_BY_GROUP, &pool, &err));
        rows = encode(b, even, 2);
        decode(b, even, rows, decoded);
        errors[1] = error_of(b, decoded);
        if (errors[0] > 0.87 * errors[1])
            fail_msg("%u bits, by input %d: error %g, %g of even codes", moec_codec_bits(trellis), by_input,
                     errors[0], errors[1]);
        free(rows);
        bench_free(b);
    }
}

/* Fewer bytes and less error than evenly spaced codes by GPTQ, and much less than without inputs. */
static void test_gptq_trellis__loses_less_than_even_codes(void **state)
{
    (void)state;
    static float decoded[OUTPUTS * MOST];
    for (int k = 0; k < 2 * EACH_CODEC; k++) {
        const int by_input = k % 2;
        const struct moec_codec trellis = codecs[k / 2];
        struct bench *b = bench_make(MOST, by_input != 0, false);
        const struct moec_gptq_matrix matrix = matrix_of(b);
        struct moec_codec even;
        double errors[3];
        uint8_t *rows = encode(b, trellis, 2);
        decode(b, trellis, rows, decoded);
        errors[0] = error_of(b, decoded);
        for (uint32_t r = 0; r < matrix.n_row; r++)
            MUST(moec_codec_encode_row(trellis, b->weights + (size_t)r * matrix.columns, matrix.columns,
                                       rows + r * moec_codec_row_bytes(trellis, matrix.columns), &err));
        decode(b, trellis, rows, decoded);
        errors[1] = error_of(b, decoded);
        free(rows);
        MUST(moec_codec_for_bits(moec_codec_bits(trellis), MOEC_SCHEME_ASYMMETRIC_NESTED, 64, MOEC_DTYPE_F32,
                                 &even, &err));
        even.quantizer = MOEC_QUANTIZER_GPTQ;
        const struct moec_pool pool = {2};
        MUST(moec_gptq_factor(b->gptq, MOEC_GPTQ_BY_GROUP, &pool, &err));
        rows = encode(b, even, 2);
        decode(b, even, rows, decoded);
        errors[2] = error_of(b, decoded);
        assert_true(moec_codec_row_bytes(trellis, matrix.columns) <
                    moec_codec_row_bytes(even, matrix.columns));
        if (errors[0] > 0.85 * errors[1] || errors[0] > (by_input ? 0.99 : 0.81) * errors[2])
            fail_msg("by input %d: error %g, %g without inputs, %g of even codes", by_input, errors[0],
                     errors[1], errors[2]);
        free(rows);
        bench_free(b);
    }
}

static void test_gptq_trellis__bytes_do_not_depend_on_threads(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * EACH_CODEC; k++) {
        const int by_input = k % 2;
        const struct moec_codec trellis = codecs[k / 2];
        struct bench *b = bench_make(150, by_input != 0, false);
        const struct moec_gptq_matrix matrix = matrix_of(b);
        uint8_t *one = encode(b, trellis, 1), *three = encode(b, trellis, 3);
        assert_memory_equal(one, three, matrix.n_row * moec_codec_row_bytes(trellis, matrix.columns));
        free(one);
        free(three);
        bench_free(b);
    }
}

static void test_gptq_trellis__edges(void **state)
{
    (void)state;
    const struct moec_pool pool = {1};
    for (int k = 0; k < 2 * EACH_CODEC; k++) {
        const int by_input = k % 2;
        const struct moec_codec trellis = codecs[k / 2];
        struct moec_error problem = {0};
        struct bench *b = bench_make(70, by_input != 0, false);
        const struct moec_gptq_matrix matrix = matrix_of(b);
        const size_t row_bytes = moec_codec_row_bytes(trellis, matrix.columns);
        uint8_t *rows, expected[MOST];
        float decoded[MOST];
        /* A row of zeros. */
        memset(b->weights + matrix.columns, 0, matrix.columns * sizeof *b->weights);
        rows = encode(b, trellis, 1);
        if (!by_input) {
            moec_codec_decode_row(trellis, rows + row_bytes, matrix.columns, decoded);
            for (uint32_t i = 0; i < matrix.columns; i++)
                assert_true(decoded[i] == 0);
        }
        b->weights[3] = 1e30f;
        assert_int_equal(moec_gptq_encode(b->gptq, &pool, &matrix, trellis, rows, &problem), MOEC_ERR_FORMAT);
        b->weights[3] = NAN;
        problem = (struct moec_error){0};
        assert_int_equal(moec_gptq_encode(b->gptq, &pool, &matrix, trellis, rows, &problem), MOEC_ERR_FORMAT);
        assert_message(problem, "weight 3 of the row is NaN");
        b->weights[3] = 0;
        if (!by_input) {
            problem = (struct moec_error){0};
            MUST(moec_gptq_factor(b->gptq, MOEC_GPTQ_BY_GROUP, &pool, &err));
            assert_int_equal(moec_gptq_encode(b->gptq, &pool, &matrix, trellis, rows, &problem),
                             MOEC_ERR_USAGE);
        }
        free(rows);
        moec_gptq_free(b->gptq);
        /* Without inputs codes are the codec's own. */
        MUST(moec_gptq_create(b->n, MOEC_GPTQ_QUICK, &b->gptq, &err));
        MUST(moec_gptq_factor(b->gptq, MOEC_GPTQ_BY_COLUMN, &pool, &err));
        rows = encode(b, trellis, 1);
        MUST(moec_codec_encode_row(trellis, b->weights, matrix.columns, expected, &err));
        assert_memory_equal(rows, expected, row_bytes);
        free(rows);
        bench_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptq_trellis__errs_as_the_textbook_does),
        cmocka_unit_test(test_gptq_trellis__short_rows_have_the_best_codes),
        cmocka_unit_test(test_gptq_trellis__loses_less_than_even_codes),
        cmocka_unit_test(test_gptq_trellis__loses_less_where_some_weights_are_large),
        cmocka_unit_test(test_gptq_trellis__bytes_do_not_depend_on_threads),
        cmocka_unit_test(test_gptq_trellis__edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
