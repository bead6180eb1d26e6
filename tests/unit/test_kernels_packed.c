/* Every instruction set gives the bits of the scalar definition: products of tokens that are packed, with rows
 * of every codec but MXFP4. */
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

/* Tokens that are laid have the results of each alone. */
static void check_transposed(struct moec_codec codec, uint32_t columns, uint32_t rows, uint32_t n_tok,
                             enum scales scales)
{
    const uint32_t first = random_below(rows), n_rows = rows - first;
    const enum kind kind = (enum kind)random_below(KIND_COUNT);
    const size_t stride = moec_lanes_padded(columns), y_stride = n_rows + random_below(3);
    struct moec_matrix matrix = random_matrix(codec, rows, columns, scales);
    float *x = random_rows(n_tok, columns, stride, kind), *want = guarded(n_tok * y_stride);
    const size_t n_room = moec_transposed_room_floats(
        n_rows < moec_transposed_rows(n_tok) ? n_rows : moec_transposed_rows(n_tok), columns);
    const float *x_rows[2 * MOEC_TRANSPOSED_MANY];
    for (uint32_t t = 0; t < n_tok; t++) {
        x_rows[t] = x + random_below(n_tok) * stride;
        moec_kernels_scalar.dot_encoded(&matrix, first, n_rows, x_rows[t], want + t * y_stride);
    }
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        const struct moec_kernels *set = kernel_set(s);
        assert_true((set->transpose_tokens == NULL) == (set->dot_transposed == NULL));
        if (set->dot_transposed == NULL)
            continue;
        float *transposed = guarded(n_tok * stride), *room = guarded(n_room),
              *got = guarded(n_tok * y_stride);
        set->transpose_tokens(x_rows, n_tok, columns, transposed);
        set->dot_transposed(&matrix, first, n_rows, transposed, n_tok, room, got, y_stride);
        expect_same(want, got, n_tok * y_stride, set->name, "dot_laid");
        release_guarded(transposed, n_tok * stride);
        release_guarded(room, n_room);
        release_guarded(got, n_tok * y_stride);
    }
    release_guarded(want, n_tok * y_stride);
    free(x);
    free((void *)(uintptr_t)matrix.data);
}

static void check_transposed_codec(struct moec_codec codec)
{
    static const uint32_t columns[] = {1, 31, 32, 33, 64, 96, 100, 256, 300, 544, 1040};
    if (!moec_kernels_decode_parts(codec))
        return;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        check_transposed(codec, columns[i], 1 + random_below(80), MOEC_TRANSPOSED_TOKENS + random_below(20),
                         i % 2 == 0 ? SCALES_ORDINARY : SCALES_STRANGE);
    check_transposed(codec, 64, 100, MOEC_TRANSPOSED_MANY, SCALES_ORDINARY);
}

static void test_kernels__transposed_tokens_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    check_each_codec(check_transposed_codec);
    for (uint32_t n_tok = MOEC_TRANSPOSED_TOKENS; n_tok < MOEC_TRANSPOSED_TOKENS + 100; n_tok++)
        check_transposed((struct moec_codec){.dtype = MOEC_DTYPE_INT4}, 64, 1 + random_below(40), n_tok,
                         SCALES_ORDINARY);
    for (uint32_t rows = 1; rows < 140; rows += 1 + random_below(10))
        check_transposed((struct moec_codec){.dtype = MOEC_DTYPE_INT4}, 64, rows,
                         MOEC_TRANSPOSED_MANY + random_below(MOEC_TRANSPOSED_MANY), SCALES_ORDINARY);
}

static void test_kernels__no_rows_sum_to_zero(void **state)
{
    (void)state;
    struct moec_matrix matrix =
        random_matrix((struct moec_codec){.dtype = MOEC_DTYPE_INT4}, 1, 50, SCALES_ORDINARY);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        float zeros[50] = {0}, h = 1.0f, *y = guarded(50);
        kernel_set(s)->sum_chunk_encoded(&matrix, 0, 0, &h, y);
        expect_same(zeros, y, 50, kernel_set(s)->name, "sum_chunk_encoded");
        release_guarded(y, 50);
        y = guarded(50);
        kernel_set(s)->sum_chunk(&h, 1, 1, zeros, 50, 0, 50, y, 50);
        expect_same(zeros, y, 50, kernel_set(s)->name, "sum_chunk");
        release_guarded(y, 50);
    }
    free((void *)(uintptr_t)matrix.data);
}

int main(void)
{
    for (size_t s = 0; s < n_kernel_sets(); s++)
        print_message("set under test: %s\n", kernel_set(s)->name);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels__transposed_tokens_have_same_bits_in_all_codecs),
        cmocka_unit_test(test_kernels__no_rows_sum_to_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
