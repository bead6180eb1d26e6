/* The kernels of a GPU, run on the processor, have the bits of the scalar definition: products of all codecs,
 * odd sizes, strange numbers, nothing written outside its place. */
#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"

#include <stdio.h>

#define MAX_TOKENS 37 /* more than half warps of a block have, on the processor */

/* A codec's name for messages. */
static const char *name_of(struct moec_codec codec)
{
    static char text[40];
    return moec_codec_name(codec, text);
}

/* What a kernel reads and what it is checked with. */
struct inputs {
    struct moec_matrix matrix;
    struct moec_cuda_matrix device;
    uint32_t first, n_rows, n_tok;
    size_t x_stride, h_stride;
    float *x, *h, *bias;
};

static struct inputs make_inputs(struct moec_codec codec, uint32_t columns, uint32_t n_tok,
                                 enum scales scales)
{
    const bool is_mxfp4 = moec_codec_is_mxfp4(codec);
    const uint32_t rows = is_mxfp4 ? 32 * (1 + random_below(2)) : 1 + random_below(13);
    const enum kind kind = (enum kind)random_below(KIND_COUNT);
    struct inputs in = {.n_tok = n_tok, .first = random_below(rows)};
    in.matrix = is_mxfp4 ? mxfp4_matrix(codec, rows, columns) : random_matrix(codec, rows, columns, scales);
    in.device = moec_cuda_matrix_make(&in.matrix, in.matrix.data);
    in.n_rows = rows - in.first;
    in.x_stride = moec_lanes_padded(columns) + random_below(3);
    in.h_stride = in.n_rows + random_below(3);
    in.x = random_rows(n_tok, columns, in.x_stride, kind);
    in.h = random_floats(n_tok * in.h_stride, kind);
    in.bias = random_floats(in.n_rows, kind);
    return in;
}

static void release_inputs(struct inputs *in)
{
    free((void *)(uintptr_t)in->matrix.data);
    free(in->x);
    free(in->h);
    free(in->bias);
}

static void check_product(const struct inputs *in)
{
    const size_t stride = in->n_rows + random_below(3), n = in->n_tok * stride;
    float *want = guarded(n), *got = guarded(n);
    for (uint32_t t = 0; t < in->n_tok; t++) {
        moec_kernels_scalar.dot_encoded(&in->matrix, in->first, in->n_rows, in->x + t * in->x_stride,
                                        want + t * stride);
        moec_kernels_scalar.add(in->bias, in->n_rows, want + t * stride);
    }
    const struct moec_cuda_product product = {.matrix = in->device,
                                              .first_row = in->first,
                                              .n_rows = in->n_rows,
                                              .n_tok = in->n_tok,
                                              .x = {.first = in->x, .stride = in->x_stride},
                                              .y = {.bias = in->bias, .rows = {got, stride, NULL}}};
    moec_cuda_product_run(NULL, &product);
    expect_same(want, got, n, name_of(in->matrix.codec), "a product");
    release_guarded(want, n);
    release_guarded(got, n);
}

/* Chunks of MOEC_SUM_CHUNK rows, the first one's sum itself, the others added. */
static void sum_scalar(const struct inputs *in, const float *h, float *y)
{
    const uint32_t columns = in->matrix.columns;
    float chunk[512];
    for (uint32_t done = 0; done == 0 || done < in->n_rows; done += MOEC_SUM_CHUNK) {
        const uint32_t left = in->n_rows - done, n = left < MOEC_SUM_CHUNK ? left : MOEC_SUM_CHUNK;
        moec_kernels_scalar.sum_chunk_encoded(&in->matrix, in->first + done, n, h + done, chunk);
        if (done == 0)
            memcpy(y, chunk, columns * sizeof *y);
        else
            moec_kernels_scalar.add(chunk, columns, y);
    }
}

static void check_sum(const struct inputs *in)
{
    const size_t stride = in->matrix.columns + random_below(3), n = in->n_tok * stride;
    float *want = guarded(n), *got = guarded(n);
    for (uint32_t t = 0; t < in->n_tok; t++)
        sum_scalar(in, in->h + t * in->h_stride, want + t * stride);
    const struct moec_cuda_sum sum = {.matrix = in->device,
                                      .first_row = in->first,
                                      .n_rows = in->n_rows,
                                      .n_tok = in->n_tok,
                                      .h = {.first = in->h, .stride = in->h_stride},
                                      .y = {got, stride, NULL}};
    moec_cuda_sum_run(NULL, &sum);
    expect_same(want, got, n, name_of(in->matrix.codec), "a weighted sum");
    release_guarded(want, n);
    release_guarded(got, n);
}

static void check_lookup(const struct inputs *in, float scale)
{
    const size_t padded = moec_lanes_padded(in->matrix.columns), n = 3 * padded;
    float *want = guarded(n), *got = guarded(n);
    uint32_t ids[3];
    for (uint32_t i = 0; i < 3; i++) {
        ids[i] = random_below(in->matrix.rows);
        moec_kernels_scalar.decode_rows(&in->matrix, ids[i], 1, want + i * padded, padded);
        for (size_t c = 0; c < padded && scale != 0; c++)
            want[i * padded + c] *= scale;
    }
    float *const rows[3] = {got, got + padded, got + 2 * padded};
    const struct moec_cuda_lookup lookup = {.matrix = in->device,
                                            .n_first = in->matrix.rows,
                                            .ids = ids,
                                            .n = 3,
                                            .scale = scale,
                                            .out = {NULL, 0, rows}};
    moec_cuda_lookup_run(NULL, &lookup);
    expect_same(want, got, n, name_of(in->matrix.codec), "rows looked up");
    release_guarded(want, n);
    release_guarded(got, n);
}

static void check_codec(struct moec_codec codec)
{
    static const uint32_t sizes[] = {1,  3,  15, 16,  17,  31,  32,  33,  47,  48,
                                     49, 64, 96, 127, 128, 129, 160, 257, 300, 512};
    static const uint32_t tokens[] = {1, 2, 3, 9};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            if (moec_codec_is_mxfp4(codec) && sizes[i] % MOEC_CODEC_BLOCK != 0)
                continue;
            struct inputs in =
                make_inputs(codec, sizes[i], tokens[t], (i + t) % 2 == 0 ? SCALES_ORDINARY : SCALES_STRANGE);
            check_product(&in);
            check_sum(&in);
            check_lookup(&in, t == 0 ? 0 : 1.7f);
            release_inputs(&in);
        }
}

static void test_cuda_kernels__encoded_rows_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    static const uint16_t groups[] = {0, 16, 32, 64, 128};
    uint32_t n_codec = 0;
    for (int dtype = 0; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = MOEC_SCHEME_SYMMETRIC; scheme < MOEC_SCHEME_COUNT; scheme++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                const struct moec_codec codec = {
                    .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = groups[g]};
                struct moec_error err = {0};
                const bool is_down = dtype == MOEC_DTYPE_MXFP4_DOWN && scheme == 0 && g == 0;
                if (!is_down && moec_codec_check(codec, "a codec", &err) != MOEC_OK)
                    continue;
                check_codec(codec);
                n_codec++;
            }
    /* One bit, the last term, has no asymmetric schemes. */
    assert_int_equal(n_codec, 3 + 6 * (5 + 5 + 4 + 4) + 4 * (4 + 4) + 1 + 3 + 2 + (5 + 4));
}

/* Tiles of many tokens, with rows and tokens left over. */
static void test_cuda_kernels__tiles_have_same_bits_in_all_codecs(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 16, 20, 32, 49, 160};
    static const uint32_t tokens[] = {17, 32, MAX_TOKENS};
    uint32_t n = 0;
    for (int dtype = 0; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = MOEC_SCHEME_SYMMETRIC; scheme < MOEC_SCHEME_COUNT; scheme++) {
            const struct moec_codec codec = {
                .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = scheme % 2 == 0 ? 32 : 16};
            struct moec_error err = {0};
            if (moec_codec_is_mxfp4(codec) || moec_codec_check(codec, "a codec", &err) != MOEC_OK)
                continue;
            for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, n++) {
                struct inputs in = make_inputs(codec, sizes[i], tokens[n % 3],
                                               n % 2 == 0 ? SCALES_ORDINARY : SCALES_STRANGE);
                check_product(&in);
                release_inputs(&in);
            }
        }
    assert_true(n > 100);
    for (uint32_t n_tok = 17; n_tok <= MAX_TOKENS; n_tok += 20) {
        static const struct moec_codec whole[] = {{.dtype = MOEC_DTYPE_BF16},
                                                  {.dtype = MOEC_DTYPE_INT8},
                                                  {.dtype = MOEC_DTYPE_MXFP4},
                                                  {.dtype = MOEC_DTYPE_MXFP4_DOWN}};
        for (size_t c = 0; c < sizeof whole / sizeof *whole; c++) {
            struct inputs in = make_inputs(whole[c], 96, n_tok, SCALES_ORDINARY);
            check_product(&in);
            release_inputs(&in);
        }
    }
}

static struct moec_matrix int4_matrix(uint32_t rows, uint32_t columns)
{
    return random_matrix((struct moec_codec){.dtype = MOEC_DTYPE_INT4, .group = 32}, rows, columns,
                         SCALES_ORDINARY);
}

static void test_cuda_kernels__sums_add_chunks_in_order(void **state)
{
    (void)state;
    static const uint32_t n_rows[] = {0, 1, 63, 64, 65, 128, 200};
    for (size_t i = 0; i < sizeof n_rows / sizeof *n_rows; i++)
        for (uint32_t n_tok = 1; n_tok < 5; n_tok += 3) {
            struct inputs in = {.n_rows = n_rows[i], .n_tok = n_tok, .h_stride = n_rows[i]};
            in.matrix = int4_matrix(200, 80);
            in.device = moec_cuda_matrix_make(&in.matrix, in.matrix.data);
            in.h = random_floats(n_tok * in.h_stride, KIND_ORDINARY);
            check_sum(&in);
            release_inputs(&in);
        }
}

static void test_cuda_kernels__batches_are_products_of_one_shape(void **state)
{
    (void)state;
    enum { HEADS = 3, ROWS = 5, COLUMNS = 40, TOKENS = 4, STRIDE = HEADS * 48 };
    struct moec_matrix matrix = int4_matrix(HEADS * ROWS, COLUMNS);
    const struct moec_cuda_matrix device = moec_cuda_matrix_make(&matrix, matrix.data);
    float *x = random_rows(TOKENS * HEADS, COLUMNS, 48, KIND_ORDINARY), *want = guarded(TOKENS * STRIDE),
          *got = guarded(TOKENS * STRIDE);
    for (uint32_t n_tok = 1; n_tok <= TOKENS; n_tok += TOKENS - 1) {
        for (uint32_t t = 0; t < n_tok; t++)
            for (uint32_t h = 0; h < HEADS; h++)
                moec_kernels_scalar.dot_encoded(&matrix, h * ROWS, ROWS, x + t * STRIDE + h * 48,
                                                want + t * STRIDE + h * 8);
        moec_cuda_product_run(NULL, &(struct moec_cuda_product){
                                        .matrix = device,
                                        .n_rows = ROWS,
                                        .n_tok = n_tok,
                                        .x = {.first = x, .stride = STRIDE},
                                        .y.rows = {got, STRIDE, NULL},
                                        .batch = {.n = HEADS, .row_step = ROWS, .x_step = 48, .y_step = 8}});
        expect_same(want, got, TOKENS * STRIDE, "the GPU", "products of heads");
        for (uint32_t t = 0; t < n_tok; t++)
            for (uint32_t h = 0; h < HEADS; h++)
                moec_kernels_scalar.sum_chunk_encoded(&matrix, h * ROWS, ROWS, x + t * STRIDE + h * 48,
                                                      want + t * STRIDE + h * 48);
        moec_cuda_sum_run(NULL, &(struct moec_cuda_sum){
                                    .matrix = device,
                                    .n_rows = ROWS,
                                    .n_tok = n_tok,
                                    .h = {.first = x, .stride = STRIDE},
                                    .y = {got, STRIDE, NULL},
                                    .batch = {.n = HEADS, .row_step = ROWS, .x_step = 48, .y_step = 48}});
        expect_same(want, got, TOKENS * STRIDE, "the GPU", "sums of heads");
    }
    release_guarded(want, TOKENS * STRIDE);
    release_guarded(got, TOKENS * STRIDE);
    free(x);
    free((void *)(uintptr_t)matrix.data);
}

/* What each way of taking up an output makes of the same products. */
static void test_cuda_kernels__sinks_take_outputs_as_the_forward_pass_does(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 70, TOKENS = 3 };
    const float cap = 30.0f;
    struct moec_matrix matrix = int4_matrix(ROWS, COLUMNS);
    const size_t stride = moec_lanes_padded(COLUMNS);
    float *x = random_rows(TOKENS, COLUMNS, stride, KIND_ORDINARY),
          *before = random_floats(TOKENS * ROWS, KIND_EXTREME);
    float *y = guarded(TOKENS * ROWS), *want = guarded(TOKENS * ROWS), *got = guarded(TOKENS * ROWS);
    for (uint32_t t = 0; t < TOKENS; t++)
        moec_kernels_scalar.dot_encoded(&matrix, 0, ROWS, x + t * stride, y + t * ROWS);
    for (int sink = MOEC_CUDA_STORE; sink <= MOEC_CUDA_CAP; sink++) {
        memcpy(want, before, TOKENS * ROWS * sizeof *want);
        memcpy(got, before, TOKENS * ROWS * sizeof *got);
        for (size_t i = 0; i < TOKENS * ROWS; i++) {
            const float e = moec_exp_f32(-2 * fabsf(y[i] / cap));
            want[i] = sink == MOEC_CUDA_STORE              ? y[i]
                      : sink == MOEC_CUDA_ADD              ? want[i] + y[i]
                      : sink == MOEC_CUDA_MULTIPLY         ? want[i] * y[i]
                      : sink == MOEC_CUDA_MULTIPLY_SIGMOID ? want[i] * (1.0f / (1.0f + moec_exp_f32(-y[i])))
                      : sink == MOEC_CUDA_SIGMOID          ? 1.0f / (1.0f + moec_exp_f32(-y[i]))
                                                           : copysignf(cap * ((1 - e) / (1 + e)), y[i]);
        }
        moec_cuda_product_run(NULL, &(struct moec_cuda_product){
                                        .matrix = moec_cuda_matrix_make(&matrix, matrix.data),
                                        .n_rows = ROWS,
                                        .n_tok = TOKENS,
                                        .x = {.first = x, .stride = stride},
                                        .y = {.rows = {got, ROWS, NULL}, .sink = (uint8_t)sink, .cap = cap}});
        expect_same(want, got, TOKENS * ROWS, "the GPU", "a sink");
    }
    release_guarded(y, TOKENS * ROWS);
    release_guarded(want, TOKENS * ROWS);
    release_guarded(got, TOKENS * ROWS);
    free(x);
    free(before);
    free((void *)(uintptr_t)matrix.data);
}

static void test_cuda_kernels__empty_inputs_launch_nothing(void **state)
{
    (void)state;
    struct inputs in = make_inputs((struct moec_codec){.dtype = MOEC_DTYPE_INT8}, 40, 1, SCALES_ORDINARY);
    float *y = guarded(16);
    moec_cuda_product_run(NULL,
                          &(struct moec_cuda_product){
                              .matrix = in.device, .x.first = in.x, .n_tok = 1, .y.rows = {y, 1, NULL}});
    moec_cuda_product_run(NULL,
                          &(struct moec_cuda_product){
                              .matrix = in.device, .x.first = in.x, .n_rows = 1, .y.rows = {y, 1, NULL}});
    moec_cuda_sum_run(
        NULL, &(struct moec_cuda_sum){.matrix = in.device, .h.first = in.h, .n_rows = 1, .y = {y, 16, NULL}});
    moec_cuda_lookup_run(NULL, &(struct moec_cuda_lookup){.matrix = in.device, .out = {y, 16, NULL}});
    for (int i = 0; i < 16; i++)
        assert_int_equal(moec_f32_bits(y[i]), CANARY);
    release_guarded(y, 16);
    release_inputs(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_kernels__encoded_rows_have_same_bits_in_all_codecs),
        cmocka_unit_test(test_cuda_kernels__tiles_have_same_bits_in_all_codecs),
        cmocka_unit_test(test_cuda_kernels__sums_add_chunks_in_order),
        cmocka_unit_test(test_cuda_kernels__batches_are_products_of_one_shape),
        cmocka_unit_test(test_cuda_kernels__sinks_take_outputs_as_the_forward_pass_does),
        cmocka_unit_test(test_cuda_kernels__empty_inputs_launch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
