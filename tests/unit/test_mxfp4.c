/* MXFP4: rows and blocks of rows hold the weights that they were made of, bit for bit, and no others; every
 * instruction set gives the scalar definition's bits. */
#include "tests/unit/kernel_sets.h"
#include "tests/unit/status.h"

#include "formats/codec/mxfp4.h"
#include "formats/model/record.h"
#include "runtime/kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS        96u
#define MOST_TOKENS (MOEC_TRANSPOSED_TOKENS + 5)
#define COLUMNS     1120u /* a strip of 512, another, and a part of one */

static uint64_t random_state = 88172645463325252ull;

static uint32_t random_below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

/* Weights (rows, columns) whose groups of 32 lie along the rows, or along the columns. The levels of one
 * group in four stop at a random one. */
static float *random_weights(uint32_t rows, uint32_t columns, bool down, uint32_t first_scale,
                             uint32_t n_scale)
{
    static const double levels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    float *weights = malloc((size_t)rows * columns * sizeof *weights);
    assert_non_null(weights);
    const uint32_t n_group = rows * columns / 32;
    for (uint32_t g = 0; g < n_group; g++) {
        const int exponent = (int)(first_scale + random_below(n_scale)) - 127;
        const uint32_t n_level = random_below(4) == 0 ? 1 + random_below(8) : 8;
        for (uint32_t i = 0; i < 32; i++) {
            const double value = ldexp(levels[random_below(n_level)], exponent);
            const size_t at = down ? (size_t)(g / columns * 32 + i) * columns + g % columns : g * 32 + i;
            weights[at] = (float)(random_below(2) == 0 ? value : -value);
        }
    }
    return weights;
}

struct encoded {
    struct moec_matrix matrix;
    uint8_t *bytes;
};

static struct encoded encode(const float *weights, uint32_t rows, uint32_t columns, bool down, size_t extra)
{
    const struct moec_codec codec = {.dtype = down ? MOEC_DTYPE_MXFP4_DOWN : MOEC_DTYPE_MXFP4};
    const size_t stride = moec_codec_row_bytes(codec, columns) + extra;
    struct encoded made = {.bytes = malloc(rows * stride)};
    struct moec_error err = {0};
    size_t failed = 0;
    assert_non_null(made.bytes);
    assert_int_equal(moec_codec_row_bytes(codec, columns), columns / 2 + columns / 32);
    assert_ok(moec_rows_encode(&(struct moec_encoded_rows){codec, columns, made.bytes, stride}, weights, rows,
                               &failed, &err),
              err);
    made.matrix = (struct moec_matrix){
        .codec = codec, .rows = rows, .columns = columns, .stride_bytes = stride, .data = made.bytes};
    return made;
}

static void assert_same(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (moec_f32_bits(a[i]) != moec_f32_bits(b[i]))
            fail_msg("value %zu of %zu is %a, expected %a", i, n, (double)a[i], (double)b[i]);
}

/* Every scale whose levels are finite. */
static void test_mxfp4__weights_come_back_bit_for_bit(void **state)
{
    (void)state;
    for (uint32_t scale = 0; scale <= MOEC_MXFP4_MAX_SCALE; scale += 4)
        for (int down = 0; down < 2; down++) {
            float row[96];
            float *weights = random_weights(64, 96, down != 0, scale, scale + 4 <= 253 ? 4 : 1);
            struct encoded made = encode(weights, 64, 96, down != 0, down != 0 ? 13 : 0);
            for (uint32_t r = 0; r < 64; r++) {
                moec_matrix_decode_span(&made.matrix, r, 0, 96, row);
                assert_same(row, weights + r * 96, 96);
                moec_matrix_decode_span(&made.matrix, r, 32, 40, row);
                assert_same(row, weights + r * 96 + 32, 40);
                assert_true(moec_codec_row_is_finite(made.matrix.codec,
                                                     made.bytes + r * made.matrix.stride_bytes, 96));
            }
            made.bytes[96 / 2] = MOEC_MXFP4_MAX_SCALE + 1;
            assert_false(moec_codec_row_is_finite(made.matrix.codec, made.bytes, 96));
            free(made.bytes);
            free(weights);
        }
}

static void test_mxfp4__other_weights_are_refused(void **state)
{
    (void)state;
    /* Beside 6 and -0.5 units. The product of the smallest with a large group's inverse scale is zero. */
    static const struct {
        float weight, unit;
    } others[] = {{0.7f, 1},  {NAN, 1},   {INFINITY, 1}, {2.5f, 1},       {7, 1},
                  {0.25f, 1}, {0.75f, 1}, {0x1p-30f, 1}, {-0x1p-149f, 1}, {0x1p-126f, 0x1p124f}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        for (int down = 0; down < 2; down++) {
            const struct moec_codec codec = {.dtype = down ? MOEC_DTYPE_MXFP4_DOWN : MOEC_DTYPE_MXFP4};
            struct moec_error err = {0};
            uint8_t bytes[32 * 17];
            float weights[32 * 32];
            size_t failed = 0;
            for (size_t w = 0; w < 32 * 32; w++)
                weights[w] = others[i].unit * ((w + w / 32) % 2 == 0 ? 6 : -0.5f);
            weights[5 * 32 + 7] = others[i].weight;
            assert_status(moec_rows_encode(&(struct moec_encoded_rows){codec, 32, bytes, 17}, weights, 32,
                                           &failed, &err),
                          MOEC_ERR_FORMAT, err);
            assert_message(err, "MXFP4 cannot store");
            assert_int_equal(failed, down ? 0 : 5);
        }
    struct moec_error err = {0};
    float weights[33 * 32] = {0};
    uint8_t bytes[33 * 17];
    size_t failed = 0;
    assert_status(
        moec_rows_encode(
            &(struct moec_encoded_rows){(struct moec_codec){.dtype = MOEC_DTYPE_MXFP4_DOWN}, 32, bytes, 17},
            weights, 33, &failed, &err),
        MOEC_ERR_USAGE, err);
    assert_status(moec_codec_check((struct moec_codec){.dtype = MOEC_DTYPE_MXFP4_DOWN}, "it", &err),
                  MOEC_ERR_FORMAT, err);
    assert_status(moec_codec_check((struct moec_codec){.dtype = MOEC_DTYPE_MXFP4, .group = 32}, "it", &err),
                  MOEC_ERR_FORMAT, err);
}

/* What a set gives for some rows of a matrix, against the scalar set. */
static void check_set(const struct moec_kernels *set, const struct moec_matrix *matrix, uint32_t first,
                      uint32_t n, const float *x, const float *h)
{
    static float want[ROWS * COLUMNS], got[ROWS * COLUMNS];
    const struct moec_kernels *scalar = &moec_kernels_scalar;
    const size_t columns = matrix->columns;
    uint8_t some[MOEC_SUM_CHUNK];
    uint32_t n_some = 0;
    for (uint32_t i = 0; i < n; i++)
        if (random_below(3) > 0)
            some[n_some++] = (uint8_t)i;
    scalar->decode_rows(matrix, first, n, want, columns);
    set->decode_rows(matrix, first, n, got, columns);
    assert_same(got, want, n * columns);
    scalar->dot_encoded(matrix, first, n, x, want);
    set->dot_encoded(matrix, first, n, x, got);
    assert_same(got, want, n);
    scalar->dot_some(matrix, first, some, n_some, x, want);
    set->dot_some(matrix, first, some, n_some, x, got);
    assert_same(got, want, n_some);
    scalar->sum_chunk_encoded(matrix, first, n, h, want);
    set->sum_chunk_encoded(matrix, first, n, h, got);
    assert_same(got, want, columns);
    scalar->sum_chunk_some(matrix, first, some, n_some, h, want);
    set->sum_chunk_some(matrix, first, some, n_some, h, got);
    assert_same(got, want, columns);
}

/* What a set gives for many tokens with some rows of a matrix, against the scalar set with each alone. */
static void check_tokens(const struct moec_kernels *set, const struct moec_matrix *matrix, uint32_t first,
                         uint32_t n, uint32_t n_tok, const float *x, const float *h)
{
    static float want[MOST_TOKENS * COLUMNS], got[MOST_TOKENS * COLUMNS], room[MOEC_SUM_CHUNK * COLUMNS];
    const struct moec_kernels *scalar = &moec_kernels_scalar;
    const uint32_t columns = matrix->columns;
    for (uint32_t t = 0; t < n_tok; t++)
        scalar->dot_encoded(matrix, first, n, x + t * COLUMNS, want + t * n);
    set->dot_tokens(matrix, first, n, x, COLUMNS, n_tok, room, got, n);
    assert_same(got, want, (size_t)n_tok * n);
    for (uint32_t t = 0; t < n_tok; t++)
        scalar->sum_chunk_encoded(matrix, first, n, h + t * MOEC_SUM_CHUNK, want + t * columns);
    set->sum_chunk_tokens(matrix, first, n, h, MOEC_SUM_CHUNK, n_tok, false, room, got, columns);
    assert_same(got, want, (size_t)n_tok * columns);
    for (uint32_t t = 0; t < n_tok; t++)
        scalar->add(want + t * columns, columns, want + t * columns);
    set->sum_chunk_tokens(matrix, first, n, h, MOEC_SUM_CHUNK, n_tok, true, room, got, columns);
    assert_same(got, want, (size_t)n_tok * columns);
}

/* The same for tokens that are packed. */
static void check_packed(const struct moec_kernels *set, const struct moec_matrix *matrix, uint32_t first,
                         uint32_t n, const float *x)
{
    static float want[MOST_TOKENS * COLUMNS], got[MOST_TOKENS * COLUMNS], packed[MOST_TOKENS * COLUMNS];
    const float *rows[MOST_TOKENS];
    float *room = malloc(moec_transposed_room_floats(n, COLUMNS) * sizeof *room);
    assert_non_null(room);
    for (uint32_t t = 0; t < MOST_TOKENS; t++) {
        rows[t] = x + t * COLUMNS;
        moec_kernels_scalar.dot_encoded(matrix, first, n, rows[t], want + t * n);
    }
    set->transpose_tokens(rows, MOST_TOKENS, matrix->columns, packed);
    set->dot_transposed(matrix, first, n, packed, MOST_TOKENS, room, got, n);
    assert_same(got, want, (size_t)MOST_TOKENS * n);
    free(room);
}

static void test_mxfp4__many_tokens_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {32, 96, 512, COLUMNS}, tokens[] = {2, 3, 4, 9, MOST_TOKENS};
    float *x = calloc((size_t)MOST_TOKENS * COLUMNS, sizeof *x),
          *h = malloc(MOST_TOKENS * 4 * MOEC_SUM_CHUNK);
    assert_true(x != NULL && h != NULL);
    for (uint32_t i = 0; i < MOST_TOKENS * COLUMNS; i++)
        x[i] = (float)random_below(1u << 24) * 0x1p-23f - 1;
    for (uint32_t i = 0; i < MOST_TOKENS * MOEC_SUM_CHUNK; i++)
        h[i] = (float)random_below(1u << 24) * 0x1p-22f - 2;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int down = 0; down < 2; down++) {
            float *weights = random_weights(ROWS, sizes[i], down != 0, 112, 12);
            struct encoded made = encode(weights, ROWS, sizes[i], down != 0, i % 2 == 0 ? 0 : 29);
            for (size_t s = 0; s < n_kernel_sets(); s++) {
                const struct moec_kernels *set = kernel_set(s);
                for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
                    check_tokens(set, &made.matrix, 0, 64, tokens[t], x, h);
                    check_tokens(set, &made.matrix, 27, 41, tokens[t], x, h);
                    check_tokens(set, &made.matrix, 95, 1, tokens[t], x, h);
                }
                if (down == 0 && set->dot_transposed != NULL)
                    check_packed(set, &made.matrix, 5, 64, x);
            }
            free(made.bytes);
            free(weights);
        }
    free(x);
    free(h);
}

static void test_mxfp4__kernels_have_the_scalar_definition_s_bits(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {32, 96, 512, COLUMNS};
    float *x = malloc(COLUMNS * sizeof *x), h[MOEC_SUM_CHUNK];
    assert_non_null(x);
    for (uint32_t i = 0; i < COLUMNS; i++)
        x[i] = (float)random_below(1u << 24) * 0x1p-23f - 1;
    for (uint32_t i = 0; i < MOEC_SUM_CHUNK; i++)
        h[i] = (float)random_below(1u << 24) * 0x1p-22f - 2;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int down = 0; down < 2; down++) {
            float *weights = random_weights(ROWS, sizes[i], down != 0, 112, 12);
            struct encoded made = encode(weights, ROWS, sizes[i], down != 0, i % 2 == 0 ? 0 : 29);
            for (size_t s = 0; s < n_kernel_sets(); s++) {
                check_set(kernel_set(s), &made.matrix, 0, 64, x, h);
                check_set(kernel_set(s), &made.matrix, 27, 41, x, h);
                check_set(kernel_set(s), &made.matrix, 64, 32, x, h);
                check_set(kernel_set(s), &made.matrix, 31, 2, x, h);
                check_set(kernel_set(s), &made.matrix, 95, 1, x, h);
                check_set(kernel_set(s), &made.matrix, 5, 0, x, h);
            }
            free(made.bytes);
            free(weights);
        }
    free(x);
}

/* An expert as a checkpoint has it, through its record; its parts are requested by whole projections alone.
 */
static void test_mxfp4__experts_come_back_from_records(void **state)
{
    (void)state;
    enum { D = 64, M = 96 };
    const struct moec_config config = {.n_embd = D, .n_ff_expert = M};
    const struct moec_record_layout layout =
        moec_record_layout_make(&config, (struct moec_codec){.dtype = MOEC_DTYPE_MXFP4});
    const struct moec_record_part some = {.projections = 1u << MOEC_PROJECTION_DOWN, .n_neuron = 32},
                                  all = {.projections = 1u << MOEC_PROJECTION_DOWN};
    float *gate = random_weights(M, D, false, 115, 6), *up = random_weights(M, D, false, 115, 6),
          *down = random_weights(D, M, false, 115, 6);
    uint8_t *record = malloc(layout.n_bytes);
    struct moec_record_range range;
    struct moec_error err = {0};
    struct moec_mlp mlp;
    float row[D];
    assert_non_null(record);
    assert_int_equal(layout.n_bytes, 3 * M * (D / 2 + D / 32));
    assert_ok(moec_record_encode(&layout, gate, up, down, record, &err), err);
    assert_true(moec_record_is_finite(&layout, record));
    moec_record_bind(&layout, record, &mlp);
    for (uint32_t r = 0; r < M; r++) {
        moec_matrix_decode_span(&mlp.gate, r, 0, D, row);
        assert_same(row, gate + r * D, D);
        moec_matrix_decode_span(&mlp.up, r, 0, D, row);
        assert_same(row, up + r * D, D);
        moec_matrix_decode_span(&mlp.down, r, 0, D, row);
        for (uint32_t c = 0; c < D; c++)
            assert_same(&row[c], &down[c * M + r], 1);
    }
    assert_ok(moec_record_part_range(&layout, &all, &range, &err), err);
    assert_status(moec_record_part_range(&layout, &some, &range, &err), MOEC_ERR_USAGE, err);
    assert_message(err, "shares scales between neurons");
    free(record);
    free(gate);
    free(up);
    free(down);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mxfp4__weights_come_back_bit_for_bit),
        cmocka_unit_test(test_mxfp4__other_weights_are_refused),
        cmocka_unit_test(test_mxfp4__kernels_have_the_scalar_definition_s_bits),
        cmocka_unit_test(test_mxfp4__many_tokens_have_the_bits_of_each_alone),
        cmocka_unit_test(test_mxfp4__experts_come_back_from_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
