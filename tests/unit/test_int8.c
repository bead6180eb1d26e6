/* The int8 arithmetic: every set gives the bits of its scalar definition, for all codecs that it serves, odd
 * sizes, strange numbers and any cut into tokens and rows; and the definition is near the canonical one.
 * With a name as its argument it says whether that is the set of this processor, and nothing else. */
#include "runtime/kernels/int8.h"
#include "tests/unit/kernel_inputs.h"
#include "tests/unit/kernel_sets.h"

#include <stdio.h>

#define MAX_TOKENS 19

/* The set that would be chosen if the processor had not what `set` has over it. */
static const struct moec_int8_kernels *next_best(const struct moec_int8_kernels *set)
{
    return set == NULL                             ? NULL
           : set == moec_int8_kernels_avx512_amx() ? moec_int8_kernels_avx512_vnni()
           : set == moec_int8_kernels_neon_i8mm()  ? moec_int8_kernels_neon_dot()
           : set == moec_int8_kernels_neon_dot()   ? moec_int8_kernels_neon()
                                                   : NULL;
}

/* Sets of this processor, then those that its best set is chosen before, then NULL. */
static const struct moec_int8_kernels *int8_set(size_t index)
{
    const struct moec_kernels *kernels = kernel_set(index);
    if (kernels != NULL)
        return moec_int8_kernels_of(kernels);
    if (n_kernel_sets() == 0)
        return NULL;
    const struct moec_int8_kernels *set = moec_int8_kernels_of(kernel_set(0));
    for (size_t i = n_kernel_sets(); i <= index; i++)
        set = next_best(set);
    return set;
}

static struct moec_int8_span *rounded_rows(const struct moec_int8_kernels *set, const float *x, size_t stride,
                                           uint32_t n_tok, uint32_t columns)
{
    const size_t spans = moec_int8_spans(columns);
    struct moec_int8_span *out = aligned_alloc(64, n_tok * spans * sizeof *out);
    assert_non_null(out);
    for (uint32_t t = 0; t < n_tok; t++)
        set->round(x + t * stride, columns, out + t * spans);
    return out;
}

static void expect_same_spans(const struct moec_int8_span *want, const struct moec_int8_span *got, size_t n,
                              const char *set)
{
    for (size_t i = 0; i < n; i++) {
        assert_memory_equal(want[i].q, got[i].q, sizeof want[i].q);
        assert_memory_equal(want[i].sums, got[i].sums, sizeof want[i].sums);
        expect_same(&want[i].scale, &got[i].scale, 1, set, "round");
    }
}

struct case_of_dot {
    struct moec_matrix matrix;
    uint32_t first, n, n_tok;
    const uint8_t *some;
    const struct moec_int8_span *x[MAX_TOKENS];
};

static void point_at(struct case_of_dot *c, const struct moec_int8_span *rounded)
{
    for (uint32_t t = 0; t < c->n_tok; t++)
        c->x[t] = rounded + t * moec_int8_spans(c->matrix.columns);
}

static void check_dot(const struct moec_int8_kernels *set, const struct case_of_dot *c, const float *want)
{
    const size_t n = (size_t)c->n_tok * c->n;
    float *got = guarded(n);
    set->dot(&c->matrix, c->first, c->some, c->n, c->x, c->n_tok, got, c->n);
    expect_same(want, got, n, set->name, "dot");
    release_guarded(got, n);
}

/* Products with the same tokens side by side, from tiles of any set's spans. */
static void check_tiles(const struct moec_int8_kernels *set, const struct case_of_dot *c, const float *want)
{
    const size_t n = (size_t)c->n_tok * c->n, spans = moec_int8_spans(c->matrix.columns);
    if (c->some != NULL)
        return;
    struct moec_int8_tile *tiles = aligned_alloc(64, moec_int8_tiles(c->n_tok, spans) * sizeof *tiles);
    float *got = guarded(n);
    assert_non_null(tiles);
    moec_int8_lay(c->x, c->n_tok, spans, tiles);
    set->dot_tiles(&c->matrix, c->first, c->n, tiles, c->n_tok, got, c->n);
    expect_same(want, got, n, set->name, "dot_tiles");
    release_guarded(got, n);
    free(tiles);
}

static void check_sum(const struct moec_int8_kernels *set, const struct case_of_dot *c, const float *h,
                      const float *want)
{
    const size_t columns = c->matrix.columns, n = (size_t)c->n_tok * columns;
    float *got = guarded(n);
    set->sum_chunk(&c->matrix, c->first, c->some, c->n, h, c->n, c->n_tok, got, columns);
    expect_same(want, got, n, set->name, "sum_chunk");
    release_guarded(got, n);
}

static uint32_t choose_some(uint32_t n_rows, uint8_t *some)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        if (random_below(3) > 0)
            some[n++] = (uint8_t)r;
    return n;
}

static void check(struct moec_codec codec, uint32_t columns, uint32_t rows, uint32_t n_tok,
                  enum scales scales)
{
    const enum kind kind = scales == SCALES_STRANGE ? (enum kind)random_below(KIND_COUNT) : KIND_ORDINARY;
    const size_t stride = moec_lanes_padded(columns);
    uint8_t some[MOEC_SUM_CHUNK];
    struct case_of_dot c = {.matrix = random_matrix(codec, rows, columns, scales), .n_tok = n_tok};
    c.first = random_below(rows);
    c.n = rows - c.first;
    if (random_below(3) == 0) {
        c.n = choose_some(c.n, some);
        c.some = some;
    }
    float *x = random_rows(n_tok, columns, stride, kind), *h = random_floats((size_t)n_tok * c.n, kind);
    struct moec_int8_span *rounded = rounded_rows(&moec_int8_kernels_scalar, x, stride, n_tok, columns);
    float *dots = guarded((size_t)n_tok * c.n), *sums = guarded((size_t)n_tok * columns);
    point_at(&c, rounded);
    moec_int8_kernels_scalar.dot(&c.matrix, c.first, c.some, c.n, c.x, n_tok, dots, c.n);
    moec_int8_kernels_scalar.sum_chunk(&c.matrix, c.first, c.some, c.n, h, c.n, n_tok, sums, columns);
    check_tiles(&moec_int8_kernels_scalar, &c, dots);
    for (size_t s = 0; int8_set(s) != NULL; s++) {
        struct moec_int8_span *again = rounded_rows(int8_set(s), x, stride, n_tok, columns);
        expect_same_spans(rounded, again, n_tok * moec_int8_spans(columns), int8_set(s)->name);
        check_dot(int8_set(s), &c, dots);
        check_tiles(int8_set(s), &c, dots);
        check_sum(int8_set(s), &c, h, sums);
        free(again);
    }
    release_guarded(dots, (size_t)n_tok * c.n);
    release_guarded(sums, (size_t)n_tok * columns);
    free(rounded);
    free(x);
    free(h);
    free((void *)(uintptr_t)c.matrix.data);
}

typedef void each_codec(struct moec_codec codec);

static void for_each_codec(each_codec *body)
{
    static const uint16_t groups[] = {0, 16, 32, 64, 128};
    uint32_t n = 0;
    for (int dtype = 0; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = 0; scheme < MOEC_SCHEME_COUNT; scheme++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                const struct moec_codec codec = {
                    .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = groups[g]};
                struct moec_error err = {0};
                if (moec_codec_check(codec, "a codec", &err) != MOEC_OK || !moec_int8_serves(codec))
                    continue;
                body(codec);
                n++;
            }
    /* six bitwidths: with one scale a row in two schemes, in groups of three sizes in four; the trellis, shift
     * codes of three */
    assert_int_equal(n, 6 * (2 + 3 * 4) + 1 + 3);
}

static void check_codec(struct moec_codec codec)
{
    static const uint32_t wide[] = {127, 128, 129, 160, 200, 255, 256, 257, 288, 384, 417, 512};
    for (int round = 0; round < 3; round++) {
        const enum scales scales = round == 2 ? SCALES_STRANGE : SCALES_ORDINARY;
        for (uint32_t columns = 1; columns <= 70; columns += 1 + random_below(5))
            check(codec, columns, 1 + random_below(13), 1 + random_below(4), scales);
        for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
            check(codec, wide[i], 1 + random_below(MOEC_SUM_CHUNK), 1 + random_below(MAX_TOKENS), scales);
    }
}

static void test_int8__sets_have_the_same_bits_in_all_codecs(void **state)
{
    (void)state;
    for_each_codec(check_codec);
}

/* Rows longer than what is held together of a chunk's sum, and more groups than that. */
static void test_int8__long_rows_have_the_same_bits(void **state)
{
    (void)state;
    const struct moec_codec channel = {.dtype = MOEC_DTYPE_INT4},
                            groups = {.dtype = MOEC_DTYPE_INT3,
                                      .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
                                      .group = 32};
    uint8_t *data = calloc(70, 8192);
    assert_non_null(data);
    for (size_t i = 0; i < (size_t)70 * 8192; i++)
        data[i] = (uint8_t)random_below(100);
    for (uint32_t n_tok = 1; n_tok <= 5; n_tok += 4) {
        for (int i = 0; i < 2; i++) {
            const uint32_t columns = 4500 + 13 * (uint32_t)i, rows = MOEC_SUM_CHUNK;
            struct case_of_dot c = {.n = rows, .n_tok = n_tok};
            c.matrix = (struct moec_matrix){.codec = i == 0 ? channel : groups,
                                            .rows = 70,
                                            .columns = columns,
                                            .stride_bytes = 8192,
                                            .data = data};
            float *x = random_rows(n_tok, columns, moec_lanes_padded(columns), KIND_ORDINARY);
            float *h = random_floats((size_t)n_tok * rows, KIND_ORDINARY);
            float *dots = guarded((size_t)n_tok * rows), *sums = guarded((size_t)n_tok * columns);
            struct moec_int8_span *rounded =
                rounded_rows(&moec_int8_kernels_scalar, x, moec_lanes_padded(columns), n_tok, columns);
            point_at(&c, rounded);
            moec_int8_kernels_scalar.dot(&c.matrix, 0, NULL, rows, c.x, n_tok, dots, rows);
            moec_int8_kernels_scalar.sum_chunk(&c.matrix, 0, NULL, rows, h, rows, n_tok, sums, columns);
            for (size_t s = 0; int8_set(s) != NULL; s++) {
                check_dot(int8_set(s), &c, dots);
                check_tiles(int8_set(s), &c, dots);
                check_sum(int8_set(s), &c, h, sums);
            }
            release_guarded(dots, (size_t)n_tok * rows);
            release_guarded(sums, (size_t)n_tok * columns);
            free(rounded);
            free(x);
            free(h);
        }
    }
    free(data);
}

/* Errors of rounding: of n products of a row, each at most half a step of 1/127 of the largest activation. */
static void check_near(struct moec_codec codec)
{
    const uint32_t columns = 384, rows = 40;
    struct moec_matrix matrix = random_matrix(codec, rows, columns, SCALES_ORDINARY);
    float *x = random_rows(1, columns, columns, KIND_ORDINARY), *h = random_floats(rows, KIND_ORDINARY);
    float *w = calloc((size_t)rows * columns, sizeof *w), dots[40], sums[384];
    struct moec_int8_span *rounded = rounded_rows(&moec_int8_kernels_scalar, x, columns, 1, columns);
    assert_non_null(w);
    moec_kernels_scalar.decode_rows(&matrix, 0, rows, w, columns);
    const struct moec_int8_span *const row = rounded;
    moec_int8_kernels_scalar.dot(&matrix, 0, NULL, rows, &row, 1, dots, rows);
    moec_int8_kernels_scalar.sum_chunk(&matrix, 0, NULL, rows, h, rows, 1, sums, columns);
    for (uint32_t r = 0; r < rows; r++) {
        double want = 0, bound = 1e-6;
        for (uint32_t i = 0; i < columns; i++) {
            want += (double)x[i] * w[r * columns + i];
            bound += fabs((double)w[r * columns + i]) * 2.0 / 127 * 0.5001; /* |x| < 2 */
        }
        assert_true(fabs(want - dots[r]) <= bound);
        assert_true(fabs(want - dots[r]) <= 0.4 * bound + 1e-4); /* errors of either sign cancel */
    }
    /* Of a column each of the rows' products is off by half a step of 1/127 of the largest at most. */
    double largest = 0;
    for (uint32_t i = 0; i < rows * columns; i++)
        largest = fmax(largest, fabs((double)h[i / columns] * w[i]));
    for (uint32_t c = 0; c < columns; c++) {
        double want = 0, bound = 0.4 * rows * largest * 0.5001 / 127;
        for (uint32_t r = 0; r < rows; r++) {
            want += (double)h[r] * w[r * columns + c];
            bound +=
                codec.scheme == MOEC_SCHEME_TRELLIS ? 0.003 * fabs((double)h[r] * w[r * columns + c]) : 0;
        }
        assert_true(fabs(want - sums[c]) <= bound);
    }
    free(w);
    free(x);
    free(h);
    free(rounded);
    free((void *)(uintptr_t)matrix.data);
}

static void test_int8__is_near_the_canonical_arithmetic(void **state)
{
    (void)state;
    for_each_codec(check_near);
}

static void test_int8__rounds_as_stated(void **state)
{
    (void)state;
    float x[MOEC_INT8_SPAN + 1] = {0};
    struct moec_int8_span spans[2];
    x[0] = 127.0f;
    x[1] = 0.5f;
    x[2] = 1.5f;
    x[16] = -127.0f;
    x[33] = -2.5f;
    x[MOEC_INT8_SPAN] = -3.0f;
    moec_int8_kernels_scalar.round(x, MOEC_INT8_SPAN + 1, spans);
    assert_float_equal(spans[0].scale, 1.0f, 0);
    assert_int_equal(spans[0].q[0], 127);
    assert_int_equal(spans[0].q[1], 0); /* ties go to even */
    assert_int_equal(spans[0].q[2], 2);
    assert_int_equal(spans[0].q[64], -127);
    assert_int_equal(spans[0].q[16 + 1], -2);
    assert_int_equal(spans[0].sums[0], 2);
    assert_int_equal(spans[0].sums[3], 2); /* once for each of four rows */
    assert_int_equal(spans[0].sums[4], -2);
    assert_int_equal(spans[1].q[0], -127);
    assert_float_equal(spans[1].scale, 3.0f / 127.0f, 0);
    x[7] = NAN;
    moec_int8_kernels_scalar.round(x, MOEC_INT8_SPAN, spans);
    assert_true(isnan(spans[0].scale)); /* so that every product is NaN */
}

static int expect_set(const char *name)
{
    const char *chosen = moec_int8_kernels_of(moec_kernels_best())->name;
    printf("expected %s, found %s\n", name, chosen);
    return strcmp(chosen, name) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return expect_set(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8__sets_have_the_same_bits_in_all_codecs),
        cmocka_unit_test(test_int8__long_rows_have_the_same_bits),
        cmocka_unit_test(test_int8__is_near_the_canonical_arithmetic),
        cmocka_unit_test(test_int8__rounds_as_stated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
