/* The kernels of a GPU that work row by row, run on the processor, have the bits of the scalar set and of the
 * steps in runtime/forward: norms, additions, rotations, sums over ranks, routers, the largest of a row. */
#include "formats/base/elementary.h"
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/forward/moe/router_scores.h"
#include "runtime/forward/weights/rope.h"
#include "runtime/kernels/kernels.h"
#include "runtime/policy/decide/choice.h"
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
                                                      .n_part = of.n_part,
                                                      .n = of.n,
                                                      .weight = of.has_weight ? weight : NULL,
                                                      .bias = of.has_bias ? bias : NULL,
                                                      .weight_step = of.has_own_weights ? of.n : 0,
                                                      .eps = 1e-5f,
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
                                  &(struct moec_cuda_combination){.outputs = outputs,
                                                                  .stride = STRIDE,
                                                                  .weights = weights,
                                                                  .passes_by = form == 3 ? passes_by : NULL,
                                                                  .shared = form > 0 ? shared : NULL,
                                                                  .shared_factors = factors,
                                                                  .n_tok = TOKENS,
                                                                  .top_k = RANKS,
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
    float frequency[PAIRS], angles[TOKENS * 2 * PAIRS], want[TOKENS * STRIDE], got[TOKENS * STRIDE];
    kind.rope_scaling.attention_factor = 1.1;
    moec_rope_fill(&config, &kind, frequency);
    moec_cuda_angles_run(NULL,
                         &(struct moec_cuda_angles){frequency, positions, TOKENS, PAIRS, (float)1.1, angles});
    for (size_t i = 0; i < TOKENS * STRIDE; i++)
        want[i] = got[i] = random_float(KIND_ORDINARY);
    for (uint32_t t = 0; t < TOKENS; t++) {
        float cosine[PAIRS], sine[PAIRS];
        moec_rope_angles(&config, &kind, frequency, positions[t], cosine, sine);
        expect_same(cosine, angles + t * 2 * PAIRS, PAIRS, "the GPU", "cosines");
        expect_same(sine, angles + t * 2 * PAIRS + PAIRS, PAIRS, "the GPU", "sines");
        moec_rope_rotate(&kind, cosine, sine, HEADS, want + t * STRIDE);
    }
    moec_cuda_rotation_run(
        NULL, &(struct moec_cuda_rotation){{got, STRIDE, NULL}, angles, TOKENS, HEADS, DIM, PAIRS});
    expect_same(want, got, TOKENS * STRIDE, "the GPU", "rotated heads");
}

/* ---- routers ---- */

struct route {
    uint32_t experts[2 * MOEC_MAX_TOP_K];
    float weights[2 * MOEC_MAX_TOP_K];
};

/* Both steps of routing as the forward pass takes them (runtime/forward/moe/router.c). */
static void route_scalar(const struct moec_config *config, const float *choice_bias,
                         const float *expert_scale, float *logits, uint32_t *experts, float *weights)
{
    float bias[MOEC_MAX_EXPERTS];
    bool skips[MOEC_MAX_TOP_K] = {false};
    moec_router_score(config, &moec_kernels_scalar, logits);
    struct moec_scored_token scored = {
        .n_expert = config->n_expert, .top_k = config->top_k, .scores = logits, .bias = choice_bias};
    if (config->router.n_group > 0) {
        moec_router_group(config, logits, choice_bias, bias);
        scored.bias = bias;
    }
    moec_choice_top_k.choose(NULL, &scored, experts, skips);
    moec_router_weigh(config, &moec_kernels_scalar, logits, experts, skips, weights);
    for (uint32_t rank = 0; rank < config->top_k && expert_scale != NULL; rank++)
        weights[rank] *= expert_scale[experts[rank]];
}

static void check_router(const struct moec_config *config, const float *choice_bias,
                         const float *expert_scale, const float *logits)
{
    enum { TOKENS = 2 };
    const uint32_t n = config->n_expert, k = config->top_k;
    const size_t stride = n + 1;
    float *want = guarded(TOKENS * stride), *got = guarded(TOKENS * stride);
    struct route wanted = {0}, made = {0};
    for (uint32_t t = 0; t < TOKENS; t++) {
        memcpy(want + t * stride, logits + t * n, n * sizeof *want);
        memcpy(got + t * stride, logits + t * n, n * sizeof *got);
        route_scalar(config, choice_bias, expert_scale, want + t * stride, wanted.experts + t * k,
                     wanted.weights + t * k);
    }
    moec_cuda_router_run(NULL, &(struct moec_cuda_router){.kind = config->router.kind,
                                                          .group_score = config->router.group_score,
                                                          .norms_weights = config->router.norm_topk_prob,
                                                          .has_soft_sum = config->router.soft_sum,
                                                          .n_tok = TOKENS,
                                                          .n_expert = n,
                                                          .top_k = k,
                                                          .n_group = config->router.n_group,
                                                          .n_top_group = config->router.n_top_group,
                                                          .jitter = config->router.jitter,
                                                          .scale = config->router.scale,
                                                          .choice_bias = choice_bias,
                                                          .expert_scale = expert_scale,
                                                          .scores = got,
                                                          .scores_stride = stride,
                                                          .experts = made.experts,
                                                          .weights = made.weights});
    expect_same(want, got, TOKENS * stride, "the GPU", "scores");
    assert_memory_equal(wanted.experts, made.experts, sizeof made.experts);
    expect_same(wanted.weights, made.weights, (size_t)TOKENS * k, "the GPU", "weights");
    release_guarded(want, TOKENS * stride);
    release_guarded(got, TOKENS * stride);
}

/* Logits with equal ones among them, and some that are not finite. */
static float *random_logits(uint32_t n, bool is_strange)
{
    float *logits = random_floats(2 * (size_t)n, KIND_ORDINARY);
    for (uint32_t i = 0; i < 2 * n; i++) {
        if (random_below(3) == 0)
            logits[i] = (float)random_below(3);
        else if (is_strange && random_below(6) == 0)
            logits[i] = random_float(KIND_EXTREME);
    }
    return logits;
}

static void test_cuda_rows__routers_choose_and_weigh_as_the_forward_pass_does(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{1, 1}, {8, 2}, {60, 4}, {64, 8}, {128, 10}, {256, 64}, {500, 3}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int kind = 0; kind < MOEC_ROUTER_COUNT; kind++)
            for (int form = 0; form < 4; form++) {
                const uint32_t n = sizes[s][0];
                static struct moec_config config;
                config = (struct moec_config){.n_expert = n,
                                              .top_k = sizes[s][1],
                                              .router.kind = (uint8_t)kind,
                                              .router.jitter = 0.01f};
                config.router.norm_topk_prob = form % 2 == 1;
                config.router.soft_sum = form == 3;
                config.router.scale = form > 1 ? 2.5f : 0;
                float *logits = random_logits(n, form == 2), *bias = random_floats(n, KIND_ORDINARY),
                      *scale = random_floats(n, KIND_ORDINARY);
                check_router(&config, form == 1 ? bias : NULL, form == 3 ? scale : NULL, logits);
                if (n % 4 == 0 && sizes[s][1] <= n / 2) {
                    config.router.n_group = 4;
                    config.router.n_top_group = 2;
                    config.router.group_score = (uint8_t)(form % 2);
                    check_router(&config, form < 2 ? bias : NULL, NULL, logits);
                }
                free(logits);
                free(bias);
                free(scale);
            }
}

static void test_cuda_rows__given_experts_stand_in_the_order_of_their_scores(void **state)
{
    (void)state;
    const uint32_t given[] = {5, 1, 3, 0}, want[] = {3, 0, 1, 5};
    float scores[] = {0.5f, 0.25f, 9, 0.75f, 9, 0.25f}, weights[4];
    uint32_t experts[4];
    moec_cuda_router_run(NULL, &(struct moec_cuda_router){.kind = MOEC_CUDA_ROUTER_SOFTMAX_CHOSEN,
                                                          .n_tok = 1,
                                                          .n_expert = 6,
                                                          .top_k = 4,
                                                          .given = given,
                                                          .scores = scores,
                                                          .scores_stride = 6,
                                                          .experts = experts,
                                                          .weights = weights});
    assert_memory_equal(experts, want, sizeof want);
    float kept[] = {0.75f, 0.5f, 0.25f, 0.25f};
    const float sum = moec_kernels_scalar.exp_sum(kept, 0.75f, 4, kept);
    for (int i = 0; i < 4; i++)
        kept[i] = kept[i] / sum;
    expect_same(kept, weights, 4, "the GPU", "weights of given experts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_rows__norms_have_same_bits),
        cmocka_unit_test(test_cuda_rows__additions_and_scalings_have_same_bits),
        cmocka_unit_test(test_cuda_rows__ranks_are_added_in_order),
        cmocka_unit_test(test_cuda_rows__positions_rotate_heads_as_the_forward_pass_does),
        cmocka_unit_test(test_cuda_rows__routers_choose_and_weigh_as_the_forward_pass_does),
        cmocka_unit_test(test_cuda_rows__given_experts_stand_in_the_order_of_their_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
