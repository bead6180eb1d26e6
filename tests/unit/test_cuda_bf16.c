/* Products and MLPs of a GPU's kernels in the arithmetic bf16: on the processor the bits of the definition in
 * plain loops, of all codecs, sizes and tiles; on a device close to them. Everywhere an output is the same
 * whatever tokens stand beside it. */
#include "runtime/cuda/kernels/cuda_matrix.h"
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"

#include <stdio.h>

#ifdef MOEC_TESTS_GPU_PINNED_H
#define IS_DEVICE true
#else
#define IS_DEVICE false
#endif

#define MAX_TOKENS 70 /* more than two tiles of the processor's */

/* ---- the definition ---- */

static float rounded(float value)
{
    return moec_bf16_to_f32(moec_f32_to_bf16(value));
}

static float *decoded(const struct moec_matrix *matrix)
{
    float *w = malloc((size_t)matrix->rows * moec_lanes_padded(matrix->columns) * sizeof *w + 1);
    assert_non_null(w);
    moec_kernels_scalar.decode_rows(matrix, 0, matrix->rows, w, moec_lanes_padded(matrix->columns));
    return w;
}

static float dot(const float *x, const float *w, size_t w_step, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum = sum + rounded(x[i]) * rounded(w[i * w_step]);
    return sum;
}

/* A device adds in an order of its own: its error is a share of what is added. */
static void expect_near(const float *want, const float *got, const float *magnitude, size_t n,
                        const char *what)
{
    if (!IS_DEVICE) {
        expect_same(want, got, n, "the GPU", what);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (fabsf(want[i] - got[i]) > 1e-5f * magnitude[i] + 1e-30f)
            fail_msg("%s: element %zu is %a, expected near %a", what, i, got[i], want[i]);
}

/* ---- products ---- */

static struct moec_matrix make_matrix(struct moec_codec codec, uint32_t rows, uint32_t columns,
                                      enum scales scales)
{
    if (!moec_codec_is_mxfp4(codec))
        return random_matrix(codec, rows, columns, scales);
    const size_t stride = moec_codec_row_bytes(codec, columns) + random_below(4);
    uint8_t *data = malloc(rows * stride);
    assert_non_null(data);
    for (size_t i = 0; i < rows * stride; i++)
        data[i] = (uint8_t)(96 + random_below(64)); /* scales of ordinary size too */
    return (struct moec_matrix){
        .codec = codec, .rows = rows, .columns = columns, .stride_bytes = stride, .data = data};
}

struct inputs {
    struct moec_matrix matrix;
    uint32_t first, n_rows;
    size_t stride;
    float *x, *bias; /* (MAX_TOKENS, stride) */
    uint16_t *room;
};

static struct inputs make_inputs(struct moec_codec codec, uint32_t columns, bool is_strange)
{
    const uint32_t rows = moec_codec_is_mxfp4(codec) ? 32 * (1 + random_below(2)) : 1 + random_below(75);
    struct inputs in = {.first = random_below(rows)};
    in.matrix = make_matrix(codec, rows, columns, is_strange ? SCALES_STRANGE : SCALES_ORDINARY);
    in.n_rows = rows - in.first;
    in.stride = moec_lanes_padded(columns) + random_below(3);
    in.x = random_rows(MAX_TOKENS, columns, in.stride, is_strange ? KIND_EXTREME : KIND_ORDINARY);
    in.bias = random_floats(in.n_rows, KIND_ORDINARY);
    in.room = malloc(moec_cuda_rounded(columns, MAX_TOKENS) * sizeof *in.room);
    assert_non_null(in.room);
    return in;
}

static void release_inputs(struct inputs *in)
{
    free((void *)(uintptr_t)in->matrix.data);
    free(in->x);
    free(in->bias);
    free(in->room);
}

/* Tokens from `token` on, to their places of y. */
static void multiply(const struct inputs *in, uint32_t token, uint32_t n_tok, float *y)
{
    const struct moec_cuda_product product = {
        .matrix = moec_cuda_matrix_make(&in->matrix, in->matrix.data),
        .first_row = in->first,
        .n_rows = in->n_rows,
        .n_tok = n_tok,
        .x = {.first = in->x + token * in->stride, .stride = in->stride},
        .y = {.bias = in->bias, .rows = {y + token * in->n_rows, in->n_rows, NULL}},
        .rounded = in->room};
    moec_cuda_product_run(NULL, &product);
}

static void check_product(struct moec_codec codec, uint32_t columns, uint32_t n_tok, bool is_strange)
{
    struct inputs in = make_inputs(codec, columns, is_strange);
    const size_t n = (size_t)n_tok * in.n_rows, padded = moec_lanes_padded(columns);
    float *want = guarded(n), *got = guarded(n), *magnitude = guarded(n), *w = decoded(&in.matrix);
    for (uint32_t t = 0; t < n_tok; t++)
        for (uint32_t r = 0; r < in.n_rows; r++) {
            const float *x = in.x + t * in.stride, *row = w + (in.first + r) * padded;
            float sum = fabsf(in.bias[r]);
            for (uint32_t k = 0; k < columns; k++)
                sum += fabsf(x[k] * row[k]);
            want[t * in.n_rows + r] = dot(x, row, 1, columns) + in.bias[r];
            magnitude[t * in.n_rows + r] = sum;
        }
    multiply(&in, 0, n_tok, got);
    expect_near(want, got, magnitude, n, "a product");
    release_guarded(want, n);
    release_guarded(got, n);
    release_guarded(magnitude, n);
    free(w);
    release_inputs(&in);
}

static void test_cuda_bf16__products_are_as_defined_in_all_codecs(void **state)
{
    (void)state;
    static const uint16_t groups[] = {0, 16, 32, 64, 128};
    static const uint32_t sizes[] = {1, 15, 31, 32, 33, 49, 64, 96, 160, 257};
    static const uint32_t tokens[] = {1, 5, 16, 17, 33, MAX_TOKENS};
    uint32_t n_codec = 0, n = 0;
    for (int dtype = 0; dtype < MOEC_DTYPE_COUNT; dtype++)
        for (int scheme = MOEC_SCHEME_SYMMETRIC; scheme < MOEC_SCHEME_COUNT; scheme++)
            for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
                const struct moec_codec codec = {
                    .dtype = (uint8_t)dtype, .scheme = (uint8_t)scheme, .group = groups[g]};
                struct moec_error err = {0};
                const bool is_down = dtype == MOEC_DTYPE_MXFP4_DOWN && scheme == 0 && g == 0;
                if (!is_down && moec_codec_check(codec, "a codec", &err) != MOEC_OK)
                    continue;
                n_codec++;
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                    if (!moec_codec_is_mxfp4(codec) || sizes[i] % MOEC_CODEC_BLOCK == 0) {
                        check_product(codec, sizes[i], tokens[n % 6], !IS_DEVICE && n / 6 % 2 == 1);
                        n++;
                    }
            }
    assert_int_equal(n_codec, 3 + 6 * (5 + 5 + 4 + 4) + (5 + 4) + 4 * (4 + 4) + 1 + 3 + 2);
}

/* One token alone, some of them, and all: the tiles are others, the outputs are not. */
static void test_cuda_bf16__outputs_are_the_same_beside_any_tokens(void **state)
{
    (void)state;
    static const struct moec_codec codecs[] = {{.dtype = MOEC_DTYPE_BF16},
                                               {.dtype = MOEC_DTYPE_INT4, .group = 64},
                                               {.dtype = MOEC_DTYPE_INT5, .group = 32},
                                               {.dtype = MOEC_DTYPE_INT1, .group = 16},
                                               {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS},
                                               {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT},
                                               {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT}};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        struct inputs in = make_inputs(codecs[c], 200, false);
        const size_t n = (size_t)MAX_TOKENS * in.n_rows;
        float *whole = guarded(n), *parts = guarded(n);
        multiply(&in, 0, MAX_TOKENS, whole);
        for (uint32_t step = 1; step < MAX_TOKENS; step = step * 3 + 4) {
            for (uint32_t t = 0; t < MAX_TOKENS; t += step)
                multiply(&in, t, t + step < MAX_TOKENS ? step : MAX_TOKENS - t, parts);
            expect_same(whole, parts, n, "the GPU", "outputs in parts");
        }
        release_guarded(whole, n);
        release_guarded(parts, n);
        release_inputs(&in);
    }
}

/* ---- MLPs ---- */

enum { N_EMBD = 70, STRIDE = 80, N_JOBS = 4, TOP_K = 3 };

struct mlp {
    struct moec_matrix gate, up, down;
    float *biases[3];
    float *weights[3]; /* decoded */
};

static struct moec_codec random_codec(void)
{
    static const struct moec_codec codecs[] = {
        {.dtype = MOEC_DTYPE_INT4, .group = 32},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 16},
        {.dtype = MOEC_DTYPE_INT8},
        {.dtype = MOEC_DTYPE_INT1, .group = 64},
        {.dtype = MOEC_DTYPE_BF16},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS},
        {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT},
        {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED, .group = 64}};
    return codecs[random_below(sizeof codecs / sizeof *codecs)];
}

static void make_mlp(struct mlp *mlp, uint32_t n_ff, bool has_gate, bool has_biases)
{
    struct moec_matrix *const matrices[] = {&mlp->gate, &mlp->up, &mlp->down};
    *mlp = (struct mlp){0};
    for (int i = has_gate ? 0 : 1; i < 3; i++) {
        *matrices[i] = random_matrix(random_codec(), n_ff, N_EMBD, SCALES_ORDINARY);
        mlp->weights[i] = decoded(matrices[i]);
        if (has_biases)
            mlp->biases[i] = random_floats(i == 2 ? N_EMBD : n_ff, KIND_ORDINARY);
    }
}

static void release_mlp(struct mlp *mlp)
{
    free((void *)(uintptr_t)mlp->gate.data);
    free((void *)(uintptr_t)mlp->up.data);
    free((void *)(uintptr_t)mlp->down.data);
    for (int i = 0; i < 3; i++) {
        free(mlp->biases[i]);
        free(mlp->weights[i]);
    }
}

static float product_of(const struct mlp *mlp, int which, const float *x, uint32_t neuron)
{
    const float sum = dot(x, mlp->weights[which] + neuron * STRIDE, 1, N_EMBD);
    return mlp->biases[which] != NULL ? sum + mlp->biases[which][neuron] : sum;
}

/* One row by the definition: SiLU with a gate, else ReLU. */
static void run_defined(const struct mlp *mlp, uint32_t n_ff, const float *x, float *out)
{
    float h[512];
    for (uint32_t n = 0; n < n_ff; n++) {
        const float up = product_of(mlp, 1, x, n);
        h[n] = mlp->weights[0] != NULL ? moec_silu_f32(product_of(mlp, 0, x, n)) * up : up < 0 ? 0 : up;
    }
    memset(out, 0, STRIDE * sizeof *out);
    for (uint32_t c = 0; c < N_EMBD; c++) {
        out[c] = dot(h, mlp->weights[2] + c, STRIDE, n_ff);
        if (mlp->biases[2] != NULL)
            out[c] = out[c] + mlp->biases[2][c];
    }
}

static void check_mlps(uint32_t n_ff, bool has_gate, bool has_biases, const uint32_t n_rows[N_JOBS])
{
    struct mlp mlps[N_JOBS];
    struct moec_cuda_mlp_job *jobs = calloc(N_JOBS, sizeof *jobs);
    uint32_t n_pairs = 0, most = 0;
    assert_non_null(jobs);
    for (uint32_t j = 0; j < N_JOBS; j++) {
        make_mlp(&mlps[j], n_ff, has_gate, has_biases);
        jobs[j] = (struct moec_cuda_mlp_job){
            .gate = {.matrix = moec_cuda_matrix_make(&mlps[j].gate, mlps[j].gate.data),
                     .bias = mlps[j].biases[0]},
            .up = {.matrix = moec_cuda_matrix_make(&mlps[j].up, mlps[j].up.data), .bias = mlps[j].biases[1]},
            .down = {.matrix = moec_cuda_matrix_make(&mlps[j].down, mlps[j].down.data),
                     .bias = mlps[j].biases[2]},
            .first = n_pairs,
            .n = n_rows[j]};
        n_pairs += n_rows[j];
        most = n_rows[j] > most ? n_rows[j] : most;
    }
    const uint32_t n_x = n_pairs / TOP_K + 1;
    const size_t n_out = (size_t)n_pairs * STRIDE, h_stride = moec_lanes_padded(n_ff);
    float *x = random_rows(n_x, N_EMBD, STRIDE, KIND_ORDINARY);
    float *want = guarded(n_out), *got = guarded(n_out), *h = guarded(n_pairs * h_stride);
    float *magnitude = guarded(n_out);
    uint32_t *pairs = malloc(n_pairs * sizeof *pairs);
    uint16_t *room = malloc(moec_cuda_rounded(N_EMBD, n_x) * sizeof *room);
    assert_non_null(pairs);
    assert_non_null(room);
    for (uint32_t i = 0; i < n_pairs; i++) /* from the last on */
        pairs[i] = n_pairs - 1 - i;
    for (uint32_t j = 0; j < N_JOBS; j++)
        for (uint32_t i = 0; i < jobs[j].n; i++) {
            const uint32_t pair = pairs[jobs[j].first + i];
            run_defined(&mlps[j], n_ff, x + pair / TOP_K * STRIDE, want + pair * STRIDE);
        }
    for (size_t i = 0; i < n_out; i++) /* activations of a device may be rounded the other way */
        magnitude[i] = 1e3f * (float)n_ff;
    moec_cuda_mlp_run(NULL,
                      &(struct moec_cuda_mlp){.jobs = {.each = jobs, .n = N_JOBS, .most = most},
                                              .pairs = {.list = pairs, .per_row = TOP_K},
                                              .shape = {.n_ff = n_ff,
                                                        .n_embd = N_EMBD,
                                                        .activation = has_gate ? MOEC_CUDA_ACTIVATION_SILU
                                                                               : MOEC_CUDA_ACTIVATION_RELU},
                                              .x = {.first = x, .stride = STRIDE, .rounded = room, .n = n_x},
                                              .h = {.first = h, .stride = h_stride},
                                              .out = {.first = got, .stride = STRIDE}});
    expect_near(want, got, magnitude, n_out, "an MLP");
    release_guarded(want, n_out);
    release_guarded(got, n_out);
    release_guarded(magnitude, n_out);
    release_guarded(h, n_pairs * h_stride);
    for (uint32_t j = 0; j < N_JOBS; j++)
        release_mlp(&mlps[j]);
    free(jobs);
    free(pairs);
    free(room);
    free(x);
}

static void test_cuda_bf16__mlps_are_as_defined(void **state)
{
    (void)state;
    static const uint32_t n_ff[] = {1, 31, 32, 63, 64, 65, 200}, few[] = {1, 2, 0, 5},
                          many[] = {3, 0, 40, 17};
    for (size_t i = 0; i < sizeof n_ff / sizeof *n_ff; i++)
        for (int form = 0; form < 4; form++) {
            check_mlps(n_ff[i], form % 2 == 0, form > 1, few);
            check_mlps(n_ff[i], form % 2 == 0, form > 1, many);
        }
}

static void test_cuda_bf16__empty_inputs_launch_nothing(void **state)
{
    (void)state;
    struct inputs in = make_inputs((struct moec_codec){.dtype = MOEC_DTYPE_INT8}, 40, false);
    float *y = guarded(16);
    multiply(&in, 0, 0, y);
    in.n_rows = 0;
    multiply(&in, 0, 1, y);
    moec_cuda_mlp_run(NULL, &(struct moec_cuda_mlp){.shape = {.n_ff = 1, .n_embd = 1},
                                                    .jobs.most = 1,
                                                    .out.first = y,
                                                    .x = {.rounded = in.room, .n = 1}});
    for (int i = 0; i < 16; i++)
        assert_int_equal(moec_f32_bits(y[i]), CANARY);
    release_guarded(y, 16);
    release_inputs(&in);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_bf16__products_are_as_defined_in_all_codecs),
        cmocka_unit_test(test_cuda_bf16__outputs_are_the_same_beside_any_tokens),
        cmocka_unit_test(test_cuda_bf16__mlps_are_as_defined),
        cmocka_unit_test(test_cuda_bf16__empty_inputs_launch_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
