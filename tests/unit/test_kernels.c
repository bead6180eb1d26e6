/* Every instruction set gives the bits of the scalar definition: each kernel, odd sizes, extremes, denormals,
 * all codecs, nothing read or written outside its place. */
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"
#include "tests/unit/kernel_sets.h"

#include "formats/base/half.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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

/* But for MXFP4, of test_mxfp4.c. */
static void check_each_codec(void (*check)(struct moec_codec codec))
{
    static const uint16_t groups[] = {0, 16, 32, 64, 128};
    for (int dtype = MOEC_DTYPE_F32; dtype <= MOEC_DTYPE_BF16; dtype++)
        check((struct moec_codec){.dtype = (uint8_t)dtype});
    for (int dtype = MOEC_DTYPE_INT2; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = MOEC_SCHEME_SYMMETRIC; scheme < MOEC_SCHEME_COUNT; scheme++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                const struct moec_codec codec = {
                    .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = groups[g]};
                struct moec_error err = {0};
                if (moec_codec_check(codec, "a codec", &err) == MOEC_OK && codec.dtype != MOEC_DTYPE_MXFP4)
                    check(codec);
            }
}

static void test_kernels__encoded_rows_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    check_each_codec(check_codec);
}

/* Tokens that are laid have the results of each alone. */
static void check_laid(struct moec_codec codec, uint32_t columns, uint32_t rows, uint32_t n_tok,
                       enum scales scales)
{
    const uint32_t first = random_below(rows), n_rows = rows - first;
    const enum kind kind = (enum kind)random_below(KIND_COUNT);
    const size_t stride = moec_lanes_padded(columns), y_stride = n_rows + random_below(3);
    struct moec_matrix matrix = random_matrix(codec, rows, columns, scales);
    float *x = random_rows(n_tok, columns, stride, kind), *want = guarded(n_tok * y_stride);
    const size_t n_room =
        moec_laid_room_floats(n_rows < moec_laid_rows(n_tok) ? n_rows : moec_laid_rows(n_tok), columns);
    const float *x_rows[2 * MOEC_LAID_MANY];
    for (uint32_t t = 0; t < n_tok; t++) {
        x_rows[t] = x + random_below(n_tok) * stride;
        moec_kernels_scalar.dot_encoded(&matrix, first, n_rows, x_rows[t], want + t * y_stride);
    }
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        const struct moec_kernels *set = kernel_set(s);
        assert_true((set->lay_tokens == NULL) == (set->dot_laid == NULL));
        if (set->dot_laid == NULL)
            continue;
        float *laid = guarded(n_tok * stride), *room = guarded(n_room), *got = guarded(n_tok * y_stride);
        set->lay_tokens(x_rows, n_tok, columns, laid);
        set->dot_laid(&matrix, first, n_rows, laid, n_tok, room, got, y_stride);
        expect_same(want, got, n_tok * y_stride, set->name, "dot_laid");
        release_guarded(laid, n_tok * stride);
        release_guarded(room, n_room);
        release_guarded(got, n_tok * y_stride);
    }
    release_guarded(want, n_tok * y_stride);
    free(x);
    free((void *)(uintptr_t)matrix.data);
}

static void check_laid_codec(struct moec_codec codec)
{
    static const uint32_t columns[] = {1, 31, 32, 33, 64, 96, 100, 256, 300, 544, 1040};
    if (!moec_kernels_decode_parts(codec))
        return;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        check_laid(codec, columns[i], 1 + random_below(80), MOEC_LAID_TOKENS + random_below(20),
                   i % 2 == 0 ? SCALES_ORDINARY : SCALES_STRANGE);
    check_laid(codec, 64, 100, MOEC_LAID_MANY, SCALES_ORDINARY);
}

static void test_kernels__laid_tokens_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    check_each_codec(check_laid_codec);
    for (uint32_t n_tok = MOEC_LAID_TOKENS; n_tok < MOEC_LAID_TOKENS + 100; n_tok++)
        check_laid((struct moec_codec){.dtype = MOEC_DTYPE_INT4}, 64, 1 + random_below(40), n_tok,
                   SCALES_ORDINARY);
    for (uint32_t rows = 1; rows < 140; rows += 1 + random_below(10))
        check_laid((struct moec_codec){.dtype = MOEC_DTYPE_INT4}, 64, rows,
                   MOEC_LAID_MANY + random_below(MOEC_LAID_MANY), SCALES_ORDINARY);
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

/* ---- element by element ---- */

/* What every element-wise kernel of a set makes of the same inputs: five outputs of n, two scalars. */
static void run_elements(const struct moec_kernels *set, const float *x, const float *z, size_t n, float *out)
{
    memcpy(out, z, n * sizeof *out);
    set->add(x, n, out);
    memcpy(out + n, z, n * sizeof *out);
    set->add_scaled(-1.7f, x, n, out + n);
    set->silu_mul(x, z, n, out + 2 * n);
    out[5 * n] = set->exp_sum(x, z[0], n, out + 3 * n);
    set->rms_norm(x, z, 1e-6f, n, out + 4 * n);
    out[5 * n + 1] = set->max(x, n);
}

/* A row of codes as scalar code makes it, and every other set as that. */
static void check_round_int8(const float *x, size_t n, uint8_t *want)
{
    const size_t n_bytes = moec_codec_row_bytes(head_codecs[2], n);
    moec_kernels_scalar.round_int8(x, n, want);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        uint8_t *got = malloc(n_bytes + 1);
        assert_non_null(got);
        got[n_bytes] = 0xa5;
        kernel_set(s)->round_int8(x, n, got);
        if (memcmp(got, want, n_bytes) != 0)
            fail_msg("%s: other codes of %zu numbers", kernel_set(s)->name, n);
        assert_int_equal(got[n_bytes], 0xa5);
        free(got);
    }
}

/* The scalar set rounds as codecs do what they take, and every set as it does. */
static void test_kernels__round_to_int8(void **state)
{
    (void)state;
    enum { most = 200 };
    uint8_t want[2 * most], encoded[2 * most];
    for (size_t n = 1; n <= most; n++) {
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            struct moec_error err = {0};
            float *x = random_floats(n, (enum kind)kind);
            check_round_int8(x, n, want);
            if (moec_codec_encode_row(head_codecs[2], x, n, encoded, &err) == MOEC_OK)
                assert_memory_equal(want, encoded, moec_codec_row_bytes(head_codecs[2], n));
            else
                assert_int_not_equal(kind, KIND_ORDINARY);
            free(x);
        }
    }
}

/* Beyond the range of scales to its ends; a NaN makes its group one and no other. */
static void test_kernels__round_to_int8_beyond(void **state)
{
    (void)state;
    static const float rounded[] = {0, 1, -INFINITY, 1e30f, 65504.0f * 127, -65504.0f * 12};
    static const float wanted[] = {0, 0, -65504.0f * 127, 65504.0f * 127, 65504.0f * 127, -65504.0f * 12};
    float x[96] = {0}, kept[96];
    uint8_t row[3 * 34];
    memcpy(x, rounded, sizeof rounded);
    x[40] = 2, x[41] = -1, x[70] = NAN, x[71] = 5;
    check_round_int8(x, 96, row);
    moec_codec_decode_row(head_codecs[2], row, 96, kept);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_true(kept[i] == wanted[i]);
    assert_true(fabsf(kept[40] - 2) < 2e-3f && fabsf(kept[41] + 1) < 2e-2f);
    for (size_t i = 64; i < 96; i++)
        assert_true(isnan(kept[i]));
}

/* The scalar set rounds as formats/base/half.h does within F16's range, and every set as it does. */
static void test_kernels__round_to_f16(void **state)
{
    (void)state;
    enum { n_special = 12 };
    static const float special[n_special] = {0,        -0.0f,     65504, 65519,   65520, -1e9f,
                                             INFINITY, -INFINITY, 1e-8f, 6.1e-5f, NAN,   1.00048828125f};
    for (size_t n = 1; n <= 70; n++) {
        float *x = random_floats(n, KIND_ORDINARY);
        uint8_t *want = malloc(2 * n);
        assert_non_null(want);
        for (size_t i = 0; i < n && i < n_special; i++)
            x[i] = special[(i + n) % n_special];
        moec_kernels_scalar.round_f16(x, n, want);
        for (size_t i = 0; i < n; i++) {
            uint16_t half = 0;
            memcpy(&half, want + 2 * i, sizeof half);
            const float kept = moec_f16_to_f32(half);
            assert_true(isnan(x[i]) ? isnan(kept) : isfinite(kept));
            if (fabsf(x[i]) < 65520)
                assert_int_equal(half, moec_f32_to_f16(x[i]));
        }
        for (size_t s = 0; s < n_kernel_sets(); s++) {
            uint8_t *got = malloc(2 * n + 1);
            assert_non_null(got);
            got[2 * n] = 0xa5;
            kernel_set(s)->round_f16(x, n, got);
            for (size_t i = 0; i < n; i++)
                if (!isnan(x[i]))
                    assert_memory_equal(got + 2 * i, want + 2 * i, 2);
            assert_int_equal(got[2 * n], 0xa5);
            free(got);
        }
        free(want);
        free(x);
    }
}

static void test_kernels__elements_have_same_bits(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 300; n++) {
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            size_t total = 5 * n + 2;
            float *x = random_floats(n, (enum kind)kind), *z = random_floats(n, (enum kind)kind);
            float *want = guarded(total);
            run_elements(&moec_kernels_scalar, x, z, n, want);
            for (size_t s = 0; s < n_kernel_sets(); s++) {
                float *got = guarded(total);
                run_elements(kernel_set(s), x, z, n, got);
                expect_same(want, got, total, kernel_set(s)->name, "an element-wise kernel");
                release_guarded(got, total);
            }
            release_guarded(want, total);
            free(x);
            free(z);
        }
    }
}

static void test_kernels__elements_work_in_place(void **state)
{
    (void)state;
    const size_t n = 77;
    float *x = random_floats(n, KIND_ORDINARY), *z = random_floats(n, KIND_ORDINARY);
    float *want = guarded(5 * n + 2), *got = guarded(n);
    run_elements(&moec_kernels_scalar, x, z, n, want);
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        const struct moec_kernels *set = kernel_set(s);
        memcpy(got, x, n * sizeof *got);
        set->silu_mul(got, z, n, got);
        expect_same(want + 2 * n, got, n, set->name, "silu_mul over its gate");
        memcpy(got, z, n * sizeof *got);
        set->silu_mul(x, got, n, got);
        expect_same(want + 2 * n, got, n, set->name, "silu_mul over up");
        memcpy(got, x, n * sizeof *got);
        float sum = set->exp_sum(got, z[0], n, got);
        expect_same(want + 3 * n, got, n, set->name, "exp_sum over its input");
        expect_same(want + 5 * n, &sum, 1, set->name, "sum of exp_sum");
        memcpy(got, x, n * sizeof *got);
        set->rms_norm(got, z, 1e-6f, n, got);
        expect_same(want + 4 * n, got, n, set->name, "rms_norm over its input");
    }
    release_guarded(want, 5 * n + 2);
    release_guarded(got, n);
    free(x);
    free(z);
}

static void test_kernels__max_passes_over_nan(void **state)
{
    (void)state;
    const float values[] = {NAN, -3.0f, NAN, 2.0f, -INFINITY}, none[] = {NAN, -INFINITY};
    for (size_t s = 0; s < n_kernel_sets(); s++) {
        assert_true(kernel_set(s)->max(values, 5) == 2.0f);
        assert_true(kernel_set(s)->max(none, 2) == -INFINITY);
    }
}

/* ---- exp and its relatives ---- */

/* |got - want| in units of the last place of an F32 (bits = 24) or F64 (53) near want. */
static double ulps(long double got, long double want, int bits)
{
    int exponent;
    (void)frexpl(want, &exponent);
    return (double)fabsl((got - want) / ldexpl(1.0L, exponent - bits));
}

static void test_kernels__exp_is_within_one_ulp(void **state)
{
    (void)state;
    enum { N = 4096 };
    float x[N], y[N];
    uint32_t bits = 0;
    double worst = 0;
    while (bits < 0x42b20000u) { /* every 1237th float from 0 to 89, both signs */
        for (int i = 0; i < N; i += 2, bits += 1237) {
            x[i] = moec_f32_from_bits(bits);
            x[i + 1] = -x[i];
        }
        (void)moec_kernels_best()->exp_sum(x, 0.0f, N, y);
        for (int i = 0; i < N; i++) {
            assert_int_equal(moec_f32_bits(y[i]), moec_f32_bits(moec_exp_f32(x[i])));
            double want = exp((double)x[i]);
            if (want > (double)FLT_MAX)
                continue;
            if (want < (double)FLT_MIN) {
                assert_true(y[i] == 0.0f);
                continue;
            }
            double error = ulps((long double)y[i], (long double)want, 24);
            worst = error > worst ? error : worst;
        }
    }
    print_message("largest error of exp: %.3f ulp\n", worst);
    assert_true(worst < 1.0);
}

static void test_kernels__exp_at_the_ends(void **state)
{
    (void)state;
    assert_true(moec_exp_f32(INFINITY) == INFINITY);
    assert_true(moec_exp_f32(89.5f) == INFINITY);
    assert_true(moec_exp_f32(88.72283f) < INFINITY);
    assert_true(moec_exp_f32(88.73f) == INFINITY);
    assert_int_equal(moec_f32_bits(moec_exp_f32(-INFINITY)), 0);
    assert_int_equal(moec_f32_bits(moec_exp_f32(-87.4f)), 0);
    assert_true(moec_exp_f32(-87.33f) >= FLT_MIN);
    assert_true(moec_exp_f32(0.0f) == 1.0f && moec_exp_f32(-0.0f) == 1.0f);
    assert_true(moec_exp_f32(NAN) != moec_exp_f32(NAN));
}

static double random_double(double from, double to)
{
    return from + (to - from) * ((double)random_u32() * 0x1p-32 + (double)random_u32() * 0x1p-64);
}

static void test_kernels__f64_functions_are_within_one_ulp(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0, worst_sine = 0, worst_cosine = 0;
    for (int i = 0; i < 300000; i++) {
        double x = random_double(-20, 20), error = ulps(moec_exp_f64(x), expl((long double)x), 53);
        worst_exp = error > worst_exp ? error : worst_exp;
        x = i % 4 == 0 ? random_double(0.99, 1.01) : exp(random_double(-60, 60));
        error = ulps(moec_log_f64(x), logl((long double)x), 53);
        worst_log = error > worst_log ? error : worst_log;
        x = random_double(-1, 1) * ldexp(1, (int)random_below(30) - 5);
        if (i % 3 == 0)
            x = rint(x);
        if (fabs(x) > 0x1p24)
            continue;
        double sine, cosine;
        moec_sincos_f64(x, &sine, &cosine);
        error = ulps(sine, sinl((long double)x), 53);
        worst_sine = error > worst_sine ? error : worst_sine;
        error = ulps(cosine, cosl((long double)x), 53);
        worst_cosine = error > worst_cosine ? error : worst_cosine;
    }
    print_message("largest errors: exp %.3f, log %.3f, sine %.3f, cosine %.3f ulp\n", worst_exp, worst_log,
                  worst_sine, worst_cosine);
    assert_true(worst_exp < 1.0 && worst_log < 1.0 && worst_sine < 1.0 && worst_cosine < 1.0);
}

static void test_kernels__f64_functions_at_the_ends(void **state)
{
    (void)state;
    double sine, cosine;
    moec_sincos_f64(0.0, &sine, &cosine);
    assert_true(sine == 0.0 && cosine == 1.0);
    assert_true(moec_exp_f64(0.0) == 1.0 && moec_exp_f64(-800.0) == 0.0 && isinf(moec_exp_f64(710.0)));
    assert_true(isnan(moec_exp_f64((double)NAN)) && isnan(moec_log_f64(-1.0)) &&
                isnan(moec_log_f64((double)NAN)));
    assert_true(moec_log_f64(1.0) == 0.0 && isinf(moec_log_f64(0.0)) &&
                isinf(moec_log_f64((double)INFINITY)));
    assert_true(ulps(moec_log_f64(0x1p-1074), logl(0x1p-1074L), 53) < 1.0);
}

/* Bits on record: another compiler, libm or processor must not change them. */
static void test_kernels__math_bits_are_pinned(void **state)
{
    (void)state;
    double sine, cosine;
    moec_sincos_f64(12345.678, &sine, &cosine);
    assert_true(sine == -0x1.687d5890974a5p-1 && cosine == 0x1.6b94c3bbe24b8p-1);
    assert_true(moec_exp_f64(-7.3) == 0x1.622d4792b6a8dp-11 && moec_log_f64(1e6) == 0x1.ba18a998fffap+3);
    assert_int_equal(moec_f32_bits(moec_exp_f32(-3.7f)), 0x3cca88feu);
}

/* ---- selection ---- */

static void test_kernels__find_knows_its_names(void **state)
{
    (void)state;
    const struct moec_kernels *set = NULL;
    struct moec_error err = {0};
    assert_int_equal(moec_kernels_find("scalar", &set, &err), MOEC_OK);
    assert_ptr_equal(set, &moec_kernels_scalar);
    assert_int_equal(moec_kernels_find("auto", &set, &err), MOEC_OK);
    assert_ptr_equal(set, moec_kernels_best());
    assert_int_equal(moec_kernels_find("sse9", &set, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "'sse9'"));
    static const char *const names[] = {"avx2", "avx512", "avx512-vbmi", "neon"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct moec_error other = {0};
        enum moec_status status = moec_kernels_find(names[i], &set, &other);
        if (status == MOEC_OK)
            assert_string_equal(set->name, names[i]);
        else
            assert_int_equal(status, MOEC_ERR_UNSUPPORTED);
    }
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
        cmocka_unit_test(test_kernels__encoded_rows_have_same_bits_in_all_codecs),
        cmocka_unit_test(test_kernels__laid_tokens_have_same_bits_in_all_codecs),
        cmocka_unit_test(test_kernels__no_rows_sum_to_zero),
        cmocka_unit_test(test_kernels__round_to_f16),
        cmocka_unit_test(test_kernels__round_to_int8),
        cmocka_unit_test(test_kernels__round_to_int8_beyond),
        cmocka_unit_test(test_kernels__elements_have_same_bits),
        cmocka_unit_test(test_kernels__elements_work_in_place),
        cmocka_unit_test(test_kernels__max_passes_over_nan),
        cmocka_unit_test(test_kernels__exp_is_within_one_ulp),
        cmocka_unit_test(test_kernels__exp_at_the_ends),
        cmocka_unit_test(test_kernels__f64_functions_are_within_one_ulp),
        cmocka_unit_test(test_kernels__f64_functions_at_the_ends),
        cmocka_unit_test(test_kernels__math_bits_are_pinned),
        cmocka_unit_test(test_kernels__find_knows_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
