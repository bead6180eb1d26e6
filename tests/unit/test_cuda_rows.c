/* The kernels of a GPU that work row by row, run on the processor, have the bits of the scalar set and of the
 * steps in runtime/forward: norms, additions, rotations, sums over ranks. */
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/forward/weights/rope.h"
#include "runtime/kernels/kernels.h"
#include "tests/unit/kernel_inputs.h"

/* ---- norms ---- */

struct norm_case {
    uint32_t n_tok, n_part, n;
    bool has_bias, has_weight, has_own_weights, in_place;
    enum kind kind;
};

/* A LayerNorm is an RMS norm of what is left without the mean, whose sum is taken in the order of a dot
 * product. */
static void norm_scalar(const float *x, const float *weight, const float *bias, size_t n, float *out)
{
    float lanes[MOEC_LANES] = {0}, mean = 0;
    for (size_t i = 0; i < n; i++)
        lanes[i % MOEC_LANES] += x[i];
    for (int width = MOEC_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    mean = lanes[0] / (float)n;
    for (size_t i = 0; i < n; i++)
        out[i] = bias != NULL ? x[i] - mean : x[i];
    if (weight != NULL)
        moec_kernels_scalar.rms_norm(out, weight, 1e-5f, n, out);
    if (bias != NULL)
        moec_kernels_scalar.add(bias, n, out);
}

static void check_norm(struct norm_case of)
{
    const size_t row = (size_t)of.n_part * of.n, padded = moec_lanes_padded(row), stride = padded + 3;
    float *x = random_rows(of.n_tok, row, stride, of.kind), *want = guarded(of.n_tok * stride);
    float *got = guarded(of.n_tok * stride), *weight = random_floats(row, KIND_ORDINARY),
          *bias = random_floats(of.n, KIND_ORDINARY);
    for (uint32_t t = 0; t < of.n_tok; t++) {
        for (uint32_t part = 0; part < of.n_part; part++) {
            const size_t at = t * stride + part * of.n;
            norm_scalar(x + at, !of.has_weight ? NULL : weight + (of.has_own_weights ? part * of.n : 0),
                        of.has_bias ? bias : NULL, of.n, want + at);
        }
        memset(want + t * stride + row, 0, (padded - row) * sizeof *want);
    }
    if (of.in_place)
        for (uint32_t t = 0; t < of.n_tok; t++)
            memcpy(got + t * stride, x + t * stride, row * sizeof *got);
    moec_cuda_norm_run(NULL, &(struct moec_cuda_norm){.x = {of.in_place ? got : x, stride, NULL},
                                                      .out = {got, stride, NULL},
                                                      .n_tok = of.n_tok,
                                                      .parts = {.n_part = of.n_part, .n = of.n},
                                                      .by = {.weight = of.has_weight ? weight : NULL,
                                                             .bias = of.has_bias ? bias : NULL,
                                                             .step = of.has_own_weights ? of.n : 0,
                                                             .eps = 1e-5f},
                                                      .padded = (uint32_t)padded});
    expect_same(want, got, of.n_tok * stride, "the GPU", "a norm");
    release_guarded(want, of.n_tok * stride);
    release_guarded(got, of.n_tok * stride);
    free(x);
    free(weight);
    free(bias);
}

static void test_cuda_rows__norms_have_same_bits(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 33, 64, 100, 255, 768};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < KIND_COUNT; kind++) {
            check_norm((struct norm_case){2, 1, sizes[s], false, true, false, kind == 1, (enum kind)kind});
            check_norm((struct norm_case){2, 1, sizes[s], true, true, false, kind == 0, (enum kind)kind});
            check_norm((struct norm_case){1, 3, sizes[s], false, true, kind == 2, true, (enum kind)kind});
            check_norm((struct norm_case){3, 1, sizes[s], false, false, false, false, (enum kind)kind});
        }
}

/* ---- element by element ---- */

static void test_cuda_rows__additions_and_scalings_have_same_bits(void **state)
{
    (void)state;
    enum { TOKENS = 3, N = 131 };
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int form = 0; form < 5; form++) {
            float *x = random_floats(TOKENS * N, (enum kind)kind), *want = guarded(TOKENS * N),
                  *got = guarded(TOKENS * N);
            const float factors[TOKENS] = {1, 1.5f, -0.25f};
            for (size_t i = 0; i < TOKENS * N; i++)
                want[i] = got[i] = random_float((enum kind)kind);
            for (size_t i = 0; i < TOKENS * N; i++)
                want[i] = form == 0   ? want[i] + x[i]
                          : form == 1 ? want[i] + x[i] * 0.3f
                          : form == 2 ? want[i] * 1.7f
                          : form == 3 ? want[i] * factors[i / N]
                                      : (want[i] > 2    ? 2
                                         : want[i] < -2 ? -2
                                                        : want[i]);
            const struct moec_cuda_rows rows = {got, N, NULL};
            if (form < 2)
                moec_cuda_addition_run(
                    NULL, &(struct moec_cuda_addition){{x, N, NULL}, rows, TOKENS, N, form == 0 ? 0 : 0.3f});
            else
                moec_cuda_scaling_run(NULL, &(struct moec_cuda_scaling){rows, TOKENS, N, 1.7f,
                                                                        form == 3 ? factors : NULL,
                                                                        form == 4 ? 2 : 0});
            expect_same(want, got, TOKENS * N, "the GPU", "an addition or scaling");
            release_guarded(want, TOKENS * N);
            release_guarded(got, TOKENS * N);
            free(x);
        }
}

static void test_cuda_rows__ranks_are_added_in_order(void **state)
{
    (void)state;
    enum { TOKENS = 2, RANKS = 5, N = 77, STRIDE = 80 };
    const float weights[TOKENS * RANKS] = {0.5f, 0.25f, 0.125f, 0, 0.1f, 1, -0.3f, 0.7f, 1e-20f, 3},
                                 factors[TOKENS] = {1, 0.3f};
    const uint8_t passes_by[TOKENS * RANKS] = {[3] = 1};
    for (int form = 0; form < 4; form++) {
        float *outputs = random_floats(TOKENS * RANKS * STRIDE, KIND_ORDINARY),
              *shared = random_floats(TOKENS * STRIDE, KIND_ORDINARY);
        float *want = guarded(TOKENS * STRIDE), *got = guarded(TOKENS * STRIDE), sum[N];
        for (size_t i = 0; i < TOKENS * STRIDE; i++)
            want[i] = got[i] = random_float(KIND_ORDINARY);
        for (uint32_t i = 0; i < N && form == 3; i++)
            outputs[3 * STRIDE + i] = NAN;
        for (uint32_t t = 0; t < TOKENS; t++) {
            memset(sum, 0, sizeof sum);
            for (uint32_t rank = 0; rank < RANKS; rank++)
                if (form != 3 || t > 0 || rank != 3) /* its weight is 0 */
                    moec_kernels_scalar.add_scaled(weights[t * RANKS + rank],
                                                   outputs + (t * RANKS + rank) * STRIDE, N, sum);
            for (uint32_t i = 0; i < N; i++) {
                const float part = shared[t * STRIDE + i] * factors[t];
                sum[i] = form > 0 ? sum[i] + part : sum[i];
                sum[i] = form > 1 ? sum[i] * 0.22f : sum[i];
                want[t * STRIDE + i] = form > 2 ? want[t * STRIDE + i] + sum[i] : sum[i];
            }
        }
        moec_cuda_combination_run(NULL,
                                  &(struct moec_cuda_combination){
                                      .ranks = {.outputs = outputs,
                                                .weights = weights,
                                                .passes_by = form == 3 ? passes_by : NULL,
                                                .top_k = RANKS},
                                      .stride = STRIDE,
                                      .shared = {.outputs = form > 0 ? shared : NULL, .factors = factors},
                                      .n_tok = TOKENS,
                                      .n = N,
                                      .scale = form > 1 ? 0.22f : 0,
                                      .adds = form > 2,
                                      .out = {got, STRIDE, NULL}});
        expect_same(want, got, TOKENS * STRIDE, "the GPU", "a sum over ranks");
        release_guarded(want, TOKENS * STRIDE);
        release_guarded(got, TOKENS * STRIDE);
        free(outputs);
        free(shared);
    }
}

/* ---- rotations ---- */

static void test_cuda_rows__positions_rotate_heads_as_the_forward_pass_does(void **state)
{
    (void)state;
    enum { TOKENS = 5, HEADS = 3, DIM = 40, PAIRS = 16, STRIDE = HEADS * DIM + 5 };
    static struct moec_config config;
    struct moec_layer_kind kind = {.head_dim = DIM, .rotary_dim = 2 * PAIRS, .rope_theta = 10000};
    const uint32_t positions[TOKENS] = {0, 1, 77, 4095, 1000003};
    float frequency[PAIRS], angles[TOKENS][2 * PAIRS], want[TOKENS * STRIDE], got[TOKENS * STRIDE];
    kind.rope_scaling.attention_factor = 1.1;
    moec_rope_fill(&config, &kind, frequency);
    for (size_t i = 0; i < TOKENS * STRIDE; i++)
        want[i] = got[i] = random_float(KIND_ORDINARY);
    for (uint32_t t = 0; t < TOKENS; t++) {
        float *cosine = angles[t], *sine = angles[t] + PAIRS;
        moec_rope_angles(&config, &kind, frequency, positions[t], cosine, sine);
        moec_rope_rotate(&kind, cosine, sine, HEADS, want + t * STRIDE);
    }
    moec_cuda_rotation_run(
        NULL, &(struct moec_cuda_rotation){{got, STRIDE, NULL}, angles[0], TOKENS, HEADS, DIM, PAIRS});
    expect_same(want, got, TOKENS * STRIDE, "the GPU", "rotated heads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_rows__norms_have_same_bits),
        cmocka_unit_test(test_cuda_rows__additions_and_scalings_have_same_bits),
        cmocka_unit_test(test_cuda_rows__ranks_are_added_in_order),
        cmocka_unit_test(test_cuda_rows__positions_rotate_heads_as_the_forward_pass_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
