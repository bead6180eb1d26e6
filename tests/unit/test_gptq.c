/* GPTQ against the published algorithm in double precision (tests/fixtures/gptq.bin, made by make_gptq.py).
 */
#include "tests/unit/number_fixture.h"
#include "tests/unit/temporary.h"

#include "compiler/fit/gptq.h"
#include "formats/base/half.h"
#include "formats/base/work_tally.h"

#include <math.h>

static const uint32_t widths[] = {2, 3, 4, 8};
static const uint32_t groups[] = {0, 32};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- the fixture ---- */

struct matrix {
    uint32_t n_token, n_input, n_output;
    size_t stride;  /* of x */
    float *x;       /* (n_token, stride), zero past the inputs */
    float *weights; /* (n_output, n_input) */
};

static bool next_matrix(struct fixture *fixture, struct matrix *m)
{
    if (fixture->at == fixture->n_bytes)
        return false;
    fixture_take(fixture, &m->n_token, 4);
    fixture_take(fixture, &m->n_input, 4);
    fixture_take(fixture, &m->n_output, 4);
    m->stride = (m->n_input + 15) / 16 * 16;
    m->x = calloc((size_t)m->n_token * m->stride, sizeof(float));
    for (uint32_t t = 0; t < m->n_token; t++)
        fixture_take(fixture, m->x + t * m->stride, m->n_input * sizeof(float));
    m->weights = malloc((size_t)m->n_output * m->n_input * sizeof(float));
    fixture_take(fixture, m->weights, (size_t)m->n_output * m->n_input * sizeof(float));
    return true;
}

static void matrix_release(struct matrix *m)
{
    free(m->x);
    free(m->weights);
}

/* ---- ours ---- */

/* Inputs are given in batches of `batch` tokens. */
static struct moec_gptq *gptq_of(const struct matrix *m, int n_threads, uint32_t batch)
{
    const struct moec_pool pool = {n_threads};
    struct moec_gptq *gptq = NULL;
    MUST(moec_gptq_create(m->n_input, MOEC_GPTQ_EXACT, &gptq, &err));
    for (uint32_t t = 0; t < m->n_token; t += batch)
        moec_gptq_add(gptq, &pool, m->x + t * m->stride, m->stride, NULL,
                      m->n_token - t < batch ? m->n_token - t : batch);
    MUST(moec_gptq_factor(gptq, MOEC_GPTQ_BY_INPUT, &pool, &err));
    return gptq;
}

/* Rows as they are stored: those of outputs, or of inputs. */
static float *stored_rows(const struct matrix *m, bool by_input)
{
    float *rows = malloc((size_t)m->n_output * m->n_input * sizeof(float));
    for (uint32_t o = 0; o < m->n_output; o++)
        for (uint32_t i = 0; i < m->n_input; i++)
            rows[by_input ? i * m->n_output + o : o * m->n_input + i] = m->weights[o * m->n_input + i];
    return rows;
}

struct encoded {
    struct moec_codec codec;
    bool by_input;
    uint32_t n_row, columns;
    size_t row_bytes;
    uint8_t *rows; /* owned */
};

static struct encoded encode(const struct matrix *m, const struct moec_gptq *gptq, struct moec_codec codec,
                             bool by_input, int n_threads)
{
    const struct moec_pool pool = {n_threads};
    struct encoded encoded = {
        codec, by_input, by_input ? m->n_input : m->n_output, by_input ? m->n_output : m->n_input, 0, NULL};
    float *rows = stored_rows(m, by_input);
    encoded.row_bytes = moec_codec_row_bytes(codec, encoded.columns);
    encoded.rows = calloc(encoded.n_row, encoded.row_bytes);
    const struct moec_gptq_matrix matrix = {rows, encoded.n_row, encoded.columns, by_input};
    MUST(moec_gptq_encode(gptq, &pool, &matrix, codec, encoded.rows, &err));
    free(rows);
    return encoded;
}

/* (n_output, n_input) decoded weights, and codes (NULL: not wanted). */
static void decode(const struct encoded *encoded, const struct matrix *m, double *weights, uint8_t *codes)
{
    const size_t n_group = moec_codec_row_groups(encoded->codec, encoded->columns);
    float *row = malloc(encoded->columns * sizeof(float));
    float *scales = malloc(n_group * sizeof *scales);
    uint8_t *zeros = malloc(n_group);
    for (uint32_t r = 0; r < encoded->n_row; r++) {
        const uint8_t *bytes = encoded->rows + r * encoded->row_bytes;
        moec_codec_decode_row(encoded->codec, bytes, encoded->columns, row);
        moec_codec_row_scales(encoded->codec, bytes, encoded->columns, scales, zeros);
        for (uint32_t c = 0; c < encoded->columns; c++) {
            const size_t group = encoded->codec.group == 0 ? 0 : c / encoded->codec.group;
            const size_t at = encoded->by_input ? (size_t)c * m->n_input + r : (size_t)r * m->n_input + c;
            weights[at] = (double)row[c];
            if (codes != NULL)
                codes[at] = (uint8_t)(row[c] / scales[group] + zeros[group]);
        }
    }
    free(row);
    free(scales);
    free(zeros);
}

/* Squares of what the outputs are off by, summed over all tokens. */
static double output_error(const struct matrix *m, const double *weights)
{
    double sum = 0;
    for (uint32_t t = 0; t < m->n_token; t++)
        for (uint32_t o = 0; o < m->n_output; o++) {
            double error = 0;
            for (uint32_t i = 0; i < m->n_input; i++)
                error += (double)m->x[t * m->stride + i] *
                         ((double)m->weights[o * m->n_input + i] - weights[o * m->n_input + i]);
            sum += error * error;
        }
    return sum;
}

/* ---- tests ---- */

static void test_gptq__codes_are_those_of_the_reference(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("tests/fixtures/gptq.bin");
    struct matrix m;
    size_t n = 0;
    while (next_matrix(&fixture, &m)) {
        const size_t n_weight = (size_t)m.n_output * m.n_input;
        struct moec_gptq *gptq = gptq_of(&m, 1, 7);
        double *weights = malloc(n_weight * sizeof(double));
        uint8_t *theirs = malloc(n_weight), *ours = malloc(n_weight);
        for (size_t b = 0; b < COUNT(widths); b++)
            for (int scheme = 0; scheme < 2; scheme++)
                for (size_t g = 0; g < COUNT(groups); g++)
                    for (int by_input = 0; by_input < 2; by_input++) {
                        struct moec_codec codec;
                        MUST(moec_codec_for_bits(widths[b], (enum moec_scheme)scheme, groups[g],
                                                 MOEC_DTYPE_F32, &codec, &err));
                        struct encoded encoded = encode(&m, gptq, codec, by_input != 0, 1);
                        decode(&encoded, &m, weights, ours);
                        fixture_take(&fixture, theirs, n_weight);
                        assert_memory_equal(ours, theirs, n_weight);
                        free(encoded.rows);
                        n++;
                    }
        free(weights);
        free(theirs);
        free(ours);
        moec_gptq_free(gptq);
        matrix_release(&m);
    }
    assert_int_equal(n, 3 * 32);
    free(fixture.bytes);
}

static void test_gptq__outputs_are_nearer_than_rounding_leaves_them(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("tests/fixtures/gptq.bin");
    struct matrix m;
    assert_true(next_matrix(&fixture, &m));
    struct moec_gptq *gptq = gptq_of(&m, 1, m.n_token), *blind = NULL;
    double *weights = malloc((size_t)m.n_output * m.n_input * sizeof(double));
    MUST(moec_gptq_create(m.n_input, MOEC_GPTQ_EXACT, &blind,
                          &err)); /* without inputs: the linear quantizer */
    for (size_t b = 0; b < COUNT(widths); b++) {
        double error[2];
        struct moec_codec codec;
        MUST(moec_codec_for_bits(widths[b], MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F32, &codec, &err));
        for (int i = 0; i < 2; i++) {
            struct encoded encoded = encode(&m, i == 0 ? gptq : blind, codec, false, 1);
            decode(&encoded, &m, weights, NULL);
            error[i] = output_error(&m, weights);
            free(encoded.rows);
        }
        assert_true(error[0] < 0.7 * error[1]);
    }
    free(weights);
    moec_gptq_free(gptq);
    moec_gptq_free(blind);
    matrix_release(&m);
    free(fixture.bytes);
}

static uint64_t fit_multiply_adds(void)
{
    return moec_work_now().n[MOEC_WORK_FITTING];
}

/* Wide enough for several blocks, and not a multiple of anything. */
static void test_gptq__bytes_do_not_depend_on_threads_or_batches(void **state)
{
    (void)state;
    enum { INPUTS = 85, OUTPUTS = 37, TOKENS = 150 };
    struct matrix m = {.n_token = TOKENS, .n_input = INPUTS, .n_output = OUTPUTS, .stride = 96};
    struct moec_codec codec;
    uint32_t seed = 5;
    m.x = calloc((size_t)TOKENS * m.stride, sizeof(float));
    m.weights = malloc((size_t)INPUTS * OUTPUTS * sizeof(float));
    for (size_t i = 0; i < (size_t)TOKENS * m.stride; i++, seed = seed * 1664525u + 1013904223u)
        m.x[i] = i % m.stride < INPUTS ? (float)(seed >> 8) * 0x1p-24f - 0.4f : 0;
    for (size_t i = 0; i < (size_t)INPUTS * OUTPUTS; i++, seed = seed * 1664525u + 1013904223u)
        m.weights[i] = (float)(seed >> 8) * 0x1p-24f - 0.5f;
    MUST(moec_codec_for_bits(3, MOEC_SCHEME_SYMMETRIC, 32, MOEC_DTYPE_F32, &codec, &err));
    moec_work_watch();
    const uint64_t n_before = fit_multiply_adds();
    struct moec_gptq *one = gptq_of(&m, 1, TOKENS);
    const uint64_t n_factored = fit_multiply_adds() - n_before;
    /* half of the products of inputs, and a sixth of a cube */
    assert_true(n_factored > TOKENS * INPUTS * INPUTS / 2 + INPUTS * INPUTS * INPUTS / 6);
    assert_true(n_factored < TOKENS * 96 * 96);
    struct moec_gptq *many = gptq_of(&m, 3, 41);
    assert_int_equal(fit_multiply_adds() - n_before, 2 * n_factored);
    for (int by_input = 0; by_input < 2; by_input++) {
        struct encoded a = encode(&m, one, codec, by_input != 0, 1),
                       b = encode(&m, many, codec, by_input != 0, 3);
        assert_memory_equal(a.rows, b.rows, a.n_row * a.row_bytes);
        free(a.rows);
        free(b.rows);
    }
    assert_true(fit_multiply_adds() - n_before >= 2 * n_factored + 4 * (OUTPUTS * INPUTS * INPUTS / 2));
    moec_gptq_free(one);
    moec_gptq_free(many);
    matrix_release(&m);
}

static void test_gptq__edges(void **state)
{
    (void)state;
    struct moec_error problem = {0};
    struct moec_gptq *gptq = NULL;
    const struct moec_pool pool = {1};
    float x[16] = {0}, weights[16] = {1, -2, 3};
    const struct moec_gptq_matrix three = {weights, 1, 3, false}, four = {weights, 1, 4, false};
    uint8_t rows[64], linear[64];
    struct moec_codec codec;
    assert_int_equal(moec_gptq_create(0, MOEC_GPTQ_EXACT, &gptq, &problem), MOEC_ERR_LIMIT);
    assert_int_equal(moec_gptq_create(MOEC_GPTQ_MAX_INPUTS + 1, MOEC_GPTQ_EXACT, &gptq, &problem),
                     MOEC_ERR_LIMIT);
    MUST(moec_codec_for_bits(4, MOEC_SCHEME_SYMMETRIC, 0, MOEC_DTYPE_F32, &codec, &err));

    /* Inputs that are all zero say nothing: linear. */
    MUST(moec_gptq_create(3, MOEC_GPTQ_EXACT, &gptq, &err));
    moec_gptq_add(gptq, &pool, x, 16, NULL, 1);
    MUST(moec_gptq_factor(gptq, MOEC_GPTQ_BY_INPUT, &pool, &err));
    MUST(moec_gptq_encode(gptq, &pool, &three, codec, rows, &err));
    MUST(moec_codec_encode_row(codec, weights, 3, linear, &err));
    assert_memory_equal(rows, linear, moec_codec_row_bytes(codec, 3));
    assert_int_equal(moec_gptq_encode(gptq, &pool, &four, codec, rows, &problem), MOEC_ERR_MISMATCH);
    moec_gptq_free(gptq);

    MUST(moec_gptq_create(3, MOEC_GPTQ_EXACT, &gptq, &err));
    x[1] = INFINITY;
    moec_gptq_add(gptq, &pool, x, 16, NULL, 1);
    assert_int_equal(moec_gptq_factor(gptq, MOEC_GPTQ_BY_INPUT, &pool, &problem), MOEC_ERR_FORMAT);
    moec_gptq_free(gptq);

    MUST(moec_gptq_create(3, MOEC_GPTQ_EXACT, &gptq, &err));
    x[1] = 2;
    moec_gptq_add(gptq, &pool, x, 16, NULL, 1);
    MUST(moec_gptq_factor(gptq, MOEC_GPTQ_BY_INPUT, &pool, &err));
    weights[2] = NAN;
    problem = (struct moec_error){0};
    assert_int_equal(moec_gptq_encode(gptq, &pool, &three, codec, rows, &problem), MOEC_ERR_FORMAT);
    assert_non_null(strstr(problem.message, "weight 2"));
    moec_gptq_free(gptq);
}

/* Products of other inputs count by their weight, and so do their tokens, which damping goes by. */
static void test_gptq__mixes_by_weight(void **state)
{
    (void)state;
    const struct moec_codec codec = {.dtype = MOEC_DTYPE_INT3};
    struct fixture fixture = fixture_open("tests/fixtures/gptq.bin");
    const struct moec_pool pool = {1};
    struct matrix m;
    assert_true(next_matrix(&fixture, &m));
    struct moec_gptq *whole = NULL, *mixed = NULL, *other = NULL;
    MUST(moec_gptq_create(m.n_input, MOEC_GPTQ_EXACT, &whole, &err));
    MUST(moec_gptq_create(m.n_input, MOEC_GPTQ_EXACT, &mixed, &err));
    MUST(moec_gptq_create(m.n_input, MOEC_GPTQ_EXACT, &other, &err));
    /* The first half once, and the second four times, which is with a factor of 2. */
    const uint32_t half = m.n_token / 2, rest = m.n_token - half;
    float *twice = malloc(rest * sizeof *twice);
    assert_non_null(twice);
    for (uint32_t t = 0; t < rest; t++)
        twice[t] = 2;
    moec_gptq_add(whole, &pool, m.x, m.stride, NULL, half);
    moec_gptq_add(whole, &pool, m.x + half * m.stride, m.stride, twice, rest);
    moec_gptq_add(mixed, &pool, m.x, m.stride, NULL, half);
    moec_gptq_add(other, &pool, m.x + half * m.stride, m.stride, NULL, rest);
    moec_gptq_mix(mixed, other, 4);
    assert_true(moec_gptq_token_count(mixed) == half + 4.0 * rest);
    MUST(moec_gptq_factor(whole, MOEC_GPTQ_BY_INPUT, &pool, &err));
    MUST(moec_gptq_factor(mixed, MOEC_GPTQ_BY_INPUT, &pool, &err));
    struct encoded a = encode(&m, whole, codec, false, 1), b = encode(&m, mixed, codec, false, 1);
    assert_memory_equal(a.rows, b.rows, a.n_row * a.row_bytes);
    free(a.rows);
    free(b.rows);
    free(twice);
    moec_gptq_free(whole);
    moec_gptq_free(mixed);
    moec_gptq_free(other);
    matrix_release(&m);
    free(fixture.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptq__codes_are_those_of_the_reference),
        cmocka_unit_test(test_gptq__outputs_are_nearer_than_rounding_leaves_them),
        cmocka_unit_test(test_gptq__bytes_do_not_depend_on_threads_or_batches),
        cmocka_unit_test(test_gptq__mixes_by_weight),
        cmocka_unit_test(test_gptq__edges),
    };
    return cmocka_run_group_tests_name("gptq", tests, NULL, NULL);
}
