/* Every instruction set gives the bits of the scalar definition: products with rows of every codec but MXFP4,
 * of one token and of some (tests/unit/test_mxfp4.c has that one). */
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"
#include "tests/unit/kernel_sets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- encoded rows ---- */

static void check_decode(const struct moec_kernels *set, const struct moec_matrix *matrix, uint32_t first)
{
    uint32_t n_rows = matrix->rows - first, columns = matrix->columns;
    size_t stride = moec_lanes_padded(columns);
    float *got = guarded(n_rows * stride), want[1040 + MOEC_LANES];
    set->decode_rows(matrix, first, n_rows, got, stride);
    for (uint32_t r = 0; r < n_rows; r++) {
        memset(want, 0, sizeof want);
        moec_codec_decode_row(matrix->codec, matrix->data + (first + r) * matrix->stride_bytes, columns,
                              want);
        expect_same(want, got + r * stride, stride, set->name, "decode_rows");
    }
    release_guarded(got, n_rows * stride);
}

/* Some rows alone give what they give among the others, and their sum is that of their rows in order. */
static void check_some(const struct moec_matrix *matrix, uint32_t first, const float *x, const float *h,
                       const float *dots)
{
    const uint32_t n_rows = matrix->rows - first, columns = matrix->columns;
    const size_t stride = moec_lanes_padded(columns);
    uint8_t some[16];
    uint32_t n = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        if (random_below(3) > 0)
            some[n++] = (uint8_t)r;
    }
    float *rows = guarded((n + 1) * stride), *sums = guarded(columns);
    for (uint32_t i = 0; i < n; i++)
        moec_kernels_scalar.decode_rows(matrix, first + some[i], 1, rows + i * stride, stride);
    moec_kernels_scalar.sum_chunk(h, n, 1, rows, stride, n, columns, sums, columns);
    for (size_t s = 0; s <= n_kernel_sets(); s++) {
        const struct moec_kernels *set = s < n_kernel_sets() ? kernel_set(s) : &moec_kernels_scalar;
        float *got = guarded(n), *got_sums = guarded(columns);
        set->dot_some(matrix, first, some, n, x, got);
        for (uint32_t i = 0; i < n; i++)
            expect_same(dots + some[i], got + i, 1, set->name, "dot_some");
        set->sum_chunk_some(matrix, first, some, n, h, got_sums);
        expect_same(sums, got_sums, columns, set->name, "sum_chunk_some");
        release_guarded(got, n);
        release_guarded(got_sums, columns);
    }
    release_guarded(rows, (n + 1) * stride);
    release_guarded(sums, columns);
}

/* Some tokens at once have the results of each alone. */
static void check_tokens(const struct moec_matrix *matrix, uint32_t first, enum kind kind)
{
    const uint32_t n_rows = matrix->rows - first, columns = matrix->columns,
                   n_tok = random_below(100) == 0 ? 60 + random_below(80) : 1 + random_below(9);
    const size_t stride = moec_lanes_padded(columns), x_stride = stride + random_below(2) * MOEC_LANES;
    const size_t h_stride = n_rows + random_below(3), y_stride = columns + random_below(3);
    float *x = random_rows(n_tok, columns, x_stride, kind), *h = random_floats(n_tok * h_stride, kind);
    const size_t room_rows = n_rows < MOEC_FEW_TOKENS ? MOEC_FEW_TOKENS : n_rows;
    float *dots = guarded(n_tok * h_stride), *sums = guarded(n_tok * y_stride),
          *twice = guarded(n_tok * y_stride), *room = guarded(room_rows * stride);
    for (uint32_t t = 0; t < n_tok; t++) {
        moec_kernels_scalar.dot_encoded(matrix, first, n_rows, x + t * x_stride, dots + t * h_stride);
        moec_kernels_scalar.sum_chunk_encoded(matrix, first, n_rows, h + t * h_stride, sums + t * y_stride);
        memcpy(twice + t * y_stride, sums + t * y_stride, columns * sizeof *twice);
        moec_kernels_scalar.add(sums + t * y_stride, columns, twice + t * y_stride);
    }
    for (size_t s = 0; s <= n_kernel_sets(); s++) {
        const struct moec_kernels *set = s < n_kernel_sets() ? kernel_set(s) : &moec_kernels_scalar;
        float *got = guarded(n_tok * h_stride), *got_sums = guarded(n_tok * y_stride),
              *own = moec_kernels_decode_parts(matrix->codec) ? NULL : room;
        set->dot_tokens(matrix, first, n_rows, x, x_stride, n_tok, own, got, h_stride);
        expect_same(dots, got, n_tok * h_stride, set->name, "dot_tokens");
        set->sum_chunk_tokens(matrix, first, n_rows, h, h_stride, n_tok, false, own, got_sums, y_stride);
        expect_same(sums, got_sums, n_tok * y_stride, set->name, "sum_chunk_tokens");
        set->sum_chunk_tokens(matrix, first, n_rows, h, h_stride, n_tok, true, room, got_sums, y_stride);
        expect_same(twice, got_sums, n_tok * y_stride, set->name, "sum_chunk_tokens that adds");
        release_guarded(got, n_tok * h_stride);
        release_guarded(got_sums, n_tok * y_stride);
    }
    release_guarded(dots, n_tok * h_stride);
    release_guarded(sums, n_tok * y_stride);
    release_guarded(twice, n_tok * y_stride);
    release_guarded(room, room_rows * stride);
    free(x);
    free(h);
}

static void check_encoded(struct moec_codec codec, uint32_t columns, enum scales scales)
{
    uint32_t rows = 1 + random_below(13), first = random_below(rows), n_rows = rows - first;
    enum kind kind = (enum kind)random_below(KIND_COUNT);
    struct moec_matrix matrix = random_matrix(codec, rows, columns, scales);
    float *x = random_rows(1, columns, moec_lanes_padded(columns), kind), *h = random_floats(n_rows, kind);
    float *dots = guarded(n_rows), *sums = guarded(columns);
    moec_kernels_scalar.dot_encoded(&matrix, first, n_rows, x, dots);
    moec_kernels_scalar.sum_chunk_encoded(&matrix, first, n_rows, h, sums);

    size_t stride = moec_lanes_padded(columns);
    float *decoded = guarded(n_rows * stride), *again = guarded(columns > n_rows ? columns : n_rows);
    moec_kernels_scalar.decode_rows(&matrix, first, n_rows, decoded, stride);
    moec_kernels_scalar.dot(x, stride, 1, decoded, stride, n_rows, columns, again, n_rows);
    expect_same(dots, again, n_rows, "scalar", "dot after decode_rows");
    moec_kernels_scalar.sum_chunk(h, n_rows, 1, decoded, stride, n_rows, columns, again, columns);
    expect_same(sums, again, columns, "scalar", "sum_chunk after decode_rows");
    release_guarded(decoded, n_rows * stride);
    release_guarded(again, columns > n_rows ? columns : n_rows);

    check_some(&matrix, first, x, h, dots);
    if (random_below(4) == 0)
        check_tokens(&matrix, first, kind);
    check_decode(&moec_kernels_scalar, &matrix, first);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        const struct moec_kernels *set = kernel_set(s);
        float *got = guarded(n_rows), *got_sums = guarded(columns);
        check_decode(set, &matrix, first);
        set->dot_encoded(&matrix, first, n_rows, x, got);
        expect_same(dots, got, n_rows, set->name, "dot_encoded");
        set->sum_chunk_encoded(&matrix, first, n_rows, h, got_sums);
        expect_same(sums, got_sums, columns, set->name, "sum_chunk_encoded");
        release_guarded(got, n_rows);
        release_guarded(got_sums, columns);
    }
    release_guarded(dots, n_rows);
    release_guarded(sums, columns);
    free(x);
    free(h);
    free((void *)(uintptr_t)matrix.data);
}

static void check_codec(struct moec_codec codec)
{
    static const uint32_t wide[] = {96,  100, 127, 128, 129, 160, 192, 200,
                                    256, 257, 300, 384, 417, 512, 600, 1040};
    for (int round = 0; round < 4; round++) {
        enum scales scales = round % 2 == 0 ? SCALES_ORDINARY : SCALES_STRANGE;
        for (uint32_t columns = 1; columns <= 70; columns++)
            check_encoded(codec, columns, scales);
        for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
            check_encoded(codec, wide[i], scales);
    }
}

static void test_kernels__encoded_rows_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    check_each_codec(check_codec);
}

int main(void)
{
    for (size_t s = 0; s < n_kernel_sets(); s++)
        print_message("set under test: %s\n", kernel_set(s)->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__encoded_rows_have_same_bits_in_all_codecs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
