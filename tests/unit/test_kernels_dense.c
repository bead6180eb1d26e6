/* Every instruction set gives the bits of the scalar definition: products with rows of F32, and with heads of
 * keys and values as a KV cache holds them; nothing read or written outside its place. */
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"
#include "tests/unit/kernel_sets.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- products ---- */

static void check_dot(uint32_t n_tok, uint32_t n_rows, uint32_t k, size_t extra, enum kind kind)
{
    size_t stride = moec_lanes_padded(k) + extra, y_stride = n_rows + extra, n = n_tok * y_stride;
    float *x = random_rows(n_tok, k, stride, kind), *w = random_rows(n_rows, k, stride, kind);
    float *want = guarded(n);
    moec_kernels_scalar.dot(x, stride, n_tok, w, stride, n_rows, k, want, y_stride);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        float *got = guarded(n);
        kernel_set(s)->dot(x, stride, n_tok, w, stride, n_rows, k, got, y_stride);
        expect_same(want, got, n, kernel_set(s)->name, "dot");
        release_guarded(got, n);
    }
    release_guarded(want, n);
    free(x);
    free(w);
}

static void test_kernels__dot_has_same_bits_at_all_small_sizes(void **state)
{
    (void)state;
    for (uint32_t k = 1; k <= 70; k++)
        for (uint32_t n_tok = 1; n_tok <= 20; n_tok++)
            for (uint32_t n_rows = 1; n_rows <= 20; n_rows++)
                check_dot(n_tok, n_rows, k, random_below(3) * 5, (enum kind)random_below(KIND_COUNT));
}

static void test_kernels__dot_has_same_bits_at_large_sizes(void **state)
{
    (void)state;
    static const uint32_t depths[] = {128, 255, 256, 512, 513, 1100, 2048, 4096};
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++)
        for (int kind = 0; kind < KIND_COUNT; kind++)
            check_dot(1 + random_below(40), 1 + random_below(40), depths[d], 0, (enum kind)kind);
    check_dot(300, 17, 256, 0, KIND_ORDINARY); /* more tokens than stay in cache at once */
}

/* With one row and one token the definition itself is pinned: the lanes and the tree written out. */
static void test_kernels__dot_is_16_lanes_and_a_tree(void **state)
{
    (void)state;
    float *x = random_rows(1, 40, 48, KIND_ORDINARY), *w = random_rows(1, 40, 48, KIND_ORDINARY), lanes[16],
          y;
    for (int i = 0; i < 16; i++)
        lanes[i] = fmaf(x[i + 32], w[i + 32], fmaf(x[i + 16], w[i + 16], fmaf(x[i], w[i], 0.0f)));
    for (int i = 0; i < 8; i++)
        lanes[i] += lanes[i + 8];
    for (int i = 0; i < 4; i++)
        lanes[i] += lanes[i + 4];
    float want = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    moec_kernels_scalar.dot(x, 48, 1, w, 48, 1, 40, &y, 1);
    assert_int_equal(moec_f32_bits(want), moec_f32_bits(y));
    free(x);
    free(w);
}

static void check_sum_chunk(uint32_t n_tok, uint32_t n_rows, uint32_t columns, enum kind kind)
{
    size_t w_stride = moec_lanes_padded(columns), h_stride = n_rows + random_below(3);
    size_t y_stride = columns + random_below(3), n = n_tok * y_stride;
    float *h = random_floats(n_tok * h_stride, kind), *w = random_rows(n_rows, columns, w_stride, kind);
    float *want = guarded(n);
    moec_kernels_scalar.sum_chunk(h, h_stride, n_tok, w, w_stride, n_rows, columns, want, y_stride);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        float *got = guarded(n);
        kernel_set(s)->sum_chunk(h, h_stride, n_tok, w, w_stride, n_rows, columns, got, y_stride);
        expect_same(want, got, n, kernel_set(s)->name, "sum_chunk");
        release_guarded(got, n);
    }
    release_guarded(want, n);
    free(h);
    free(w);
}

static void test_kernels__sum_chunk_has_same_bits(void **state)
{
    (void)state;
    for (uint32_t columns = 1; columns <= 70; columns++)
        for (uint32_t n_tok = 1; n_tok <= 20; n_tok++)
            for (int kind = 0; kind < KIND_COUNT; kind++)
                check_sum_chunk(n_tok, 1 + random_below(MOEC_SUM_CHUNK), columns, (enum kind)kind);
    check_sum_chunk(7, MOEC_SUM_CHUNK, 333, KIND_ORDINARY);
    check_sum_chunk(64, MOEC_SUM_CHUNK, 256, KIND_DENORMAL);
}

/* ---- heads ---- */

static const struct moec_codec head_codecs[] = {
    {.dtype = MOEC_DTYPE_F32},
    {.dtype = MOEC_DTYPE_F16},
    {.dtype = MOEC_DTYPE_INT8, .group = 32},
};
#define N_HEAD_CODECS (sizeof head_codecs / sizeof *head_codecs)

/* Rounds a row of heads in place: it only becomes shorter. */
static void round_heads(struct moec_codec codec, uint32_t n_heads, uint32_t dim, float *row)
{
    const size_t head_bytes = moec_codec_row_bytes(codec, dim);
    for (uint32_t head = 0; head < n_heads && codec.dtype != MOEC_DTYPE_F32; head++) {
        uint8_t *out = (uint8_t *)row + head * head_bytes;
        float made[1024];
        memcpy(made, row + (size_t)head * dim, dim * sizeof *made);
        if (codec.dtype == MOEC_DTYPE_F16)
            moec_kernels_scalar.round_f16(made, dim, out);
        else
            moec_kernels_scalar.round_int8(made, dim, out);
    }
}

static void check_heads(uint32_t n_heads, uint32_t n_queries, uint32_t dim, struct moec_codec codec,
                        enum kind kind)
{
    const uint32_t n_rows = 1 + random_below(MOEC_SUM_CHUNK), n = n_heads * n_queries;
    const size_t columns = (size_t)n_heads * dim, stride = columns + 16 * random_below(3);
    const size_t y_stride = n_rows + random_below(3), h_stride = n_rows + random_below(3);
    float *rows = random_rows(n_rows, (uint32_t)columns, stride, kind);
    float *x = random_floats((size_t)n * dim, kind), *h = random_floats(n * h_stride, kind);
    for (size_t r = 0; r < n_rows; r++)
        round_heads(codec, n_heads, dim, rows + r * stride);
    const struct moec_heads heads = {.rows = (const uint8_t *)rows,
                                     .stride_bytes = stride * sizeof(float),
                                     .n_heads = n_heads,
                                     .dim = dim,
                                     .n_queries = n_queries,
                                     .codec = codec};
    float *want = guarded(n * y_stride), *want_sum = guarded((size_t)n * dim);
    moec_kernels_scalar.dot_heads(&heads, n_rows, x, want, y_stride);
    moec_kernels_scalar.sum_heads(&heads, n_rows, h, h_stride, want_sum);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        float *got = guarded(n * y_stride), *got_sum = guarded((size_t)n * dim);
        kernel_set(s)->dot_heads(&heads, n_rows, x, got, y_stride);
        kernel_set(s)->sum_heads(&heads, n_rows, h, h_stride, got_sum);
        expect_same(want, got, n * y_stride, kernel_set(s)->name, "dot_heads");
        expect_same(want_sum, got_sum, (size_t)n * dim, kernel_set(s)->name, "sum_heads");
        release_guarded(got, n * y_stride);
        release_guarded(got_sum, (size_t)n * dim);
    }
    release_guarded(want, n * y_stride);
    release_guarded(want_sum, (size_t)n * dim);
    free(rows);
    free(x);
    free(h);
}

static void test_kernels__heads_have_same_bits(void **state)
{
    (void)state;
    static const uint32_t dims[] = {32, 64, 96, 128, 256, 576};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int kind = 0; kind < KIND_COUNT; kind++)
            for (uint32_t n_queries = 1; n_queries <= 5; n_queries++)
                for (size_t c = 0; c < N_HEAD_CODECS; c++)
                    check_heads(1 + random_below(5), n_queries, dims[d], head_codecs[c], (enum kind)kind);
}

/* A head's row among others is what dot and sum_chunk make of it alone. */
static void test_kernels__heads_are_rows_apart(void **state)
{
    (void)state;
    float *rows = random_rows(9, 96, 96, KIND_ORDINARY), *x = random_floats(96, KIND_ORDINARY);
    float dots[3][9], sums[3][32], dot[9], sum[32];
    const struct moec_heads heads = {(const uint8_t *)rows, 96 * sizeof(float), 3, 32, 1, head_codecs[0]};
    moec_kernels_scalar.dot_heads(&heads, 9, x, dots[0], 9);
    moec_kernels_scalar.sum_heads(&heads, 9, dots[0], 9, sums[0]);
    for (uint32_t head = 0; head < 3; head++) {
        moec_kernels_scalar.dot(x + 32 * head, 32, 1, rows + 32 * head, 96, 9, 32, dot, 9);
        assert_memory_equal(dots[head], dot, sizeof dot);
        moec_kernels_scalar.sum_chunk(dots[head], 9, 1, rows + 32 * head, 96, 9, 32, sum, 32);
        assert_memory_equal(sums[head], sum, sizeof sum);
    }
    free(rows);
    free(x);
}

int main(void)
{
    for (size_t s = 0; s < n_kernel_sets(); s++)
        print_message("set under test: %s\n", kernel_set(s)->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__dot_has_same_bits_at_all_small_sizes),
        cmocka_unit_test(test_kernels__dot_has_same_bits_at_large_sizes),
        cmocka_unit_test(test_kernels__dot_is_16_lanes_and_a_tree),
        cmocka_unit_test(test_kernels__sum_chunk_has_same_bits),
        cmocka_unit_test(test_kernels__heads_have_same_bits),
        cmocka_unit_test(test_kernels__heads_are_rows_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
