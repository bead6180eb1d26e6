#include "formats/base/half.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/score.h"
#include "profiler/routing/routing.h"
#include "tests/unit/fixture_model.h"

#include <math.h>

/* Every choice and weight is what the engine's own trace says for each window by itself; sums follow. */
static void check_family(const char *name)
{
    struct fixture fixture = fixture_open(name);
    struct moec_error err = {0};
    struct moec_windows windows;
    fixture_windows(&fixture, 7, &windows);
    assert_true(windows.n_window >= 2);
    const struct moec_config *config = &fixture.model->config;
    const uint32_t n_moe = moec_config_moe_count(config), k = config->top_k, n_expert = config->n_expert;
    const size_t n_token = moec_windows_token_count(&windows), n_cell = (size_t)n_moe * n_expert;
    struct moec_routing routing = {.experts = calloc(n_token * n_moe * k, sizeof(uint16_t)),
                                   .weights = calloc(n_token * n_moe * k, sizeof(uint16_t)),
                                   .activations = calloc(n_cell, sizeof(uint64_t)),
                                   .mean_gate_weight = calloc(n_cell, sizeof(double))};
    assert_ok(moec_routing_run(&(struct moec_runner){fixture.model, moec_variants_experts(fixture.variants),
                                                     moec_kernels_best(), 2},
                               &windows, &routing, NULL, &err),
              err);

    struct moec_forward forward;
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 1,
                                moec_variants_experts(fixture.variants), 7, &err),
              err);
    const size_t stride = moec_forward_stride(config), kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    float *hidden = calloc(7 * stride, sizeof(float)), *keys = calloc(7 * kv, sizeof(float));
    float *values = calloc(7 * kv, sizeof(float)), *weights = calloc(7 * k, sizeof(float));
    uint32_t *experts = calloc(7 * k, sizeof(uint32_t));
    uint64_t *activations = calloc(n_cell, sizeof(uint64_t));
    double *sums = calloc(n_cell, sizeof(double));
    const struct moec_mlp_trace trace = {.experts = experts, .weights = weights};
    for (uint32_t w = 0; w < windows.n_window; w++) {
        assert_ok(moec_forward_embed(&forward, windows.tokens + w * 7, 7, hidden, &err), err);
        for (uint32_t layer = 0; layer < config->n_layer; layer++) {
            const struct moec_span span = {.n_rows = 7, .keys = {.k_own = keys, .v_own = values}};
            const int32_t ordinal = moec_config_moe_ordinal(config, layer);
            assert_ok(moec_forward_attention(&forward, layer, (struct moec_batch){&span, 1, 7}, hidden, &err),
                      err);
            assert_ok(moec_forward_mlp(&forward, layer,
                                       &(struct moec_mlp_batch){.n_tok = 7,
                                                                .hidden = hidden,
                                                                .trace = ordinal >= 0 ? &trace : NULL},
                                       &err),
                      err);
            for (uint32_t c = 0; ordinal >= 0 && c < 7 * k; c++) {
                const size_t token = (size_t)w * 7 + c / k, s = (size_t)ordinal;
                const size_t at = (token * n_moe + s) * k + c % k;
                assert_int_equal(routing.experts[at], experts[c]);
                assert_int_equal(routing.weights[at], moec_f32_to_f16(weights[c]));
                activations[s * n_expert + experts[c]]++;
                sums[s * n_expert + experts[c]] += weights[c];
            }
        }
    }
    uint64_t total = 0;
    for (size_t i = 0; i < n_cell; i++) {
        assert_int_equal(routing.activations[i], activations[i]);
        const double mean = activations[i] > 0 ? sums[i] / (double)activations[i] : 0;
        assert_true(fabs(routing.mean_gate_weight[i] - mean) < 1e-6);
        total += activations[i];
    }
    assert_int_equal(total, n_token * n_moe * k);
    void *const owned[] = {hidden,
                           keys,
                           values,
                           weights,
                           experts,
                           activations,
                           sums,
                           routing.experts,
                           routing.weights,
                           routing.activations,
                           routing.mean_gate_weight};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    moec_forward_release(&forward);
    moec_windows_release(&windows);
    fixture_close(&fixture);
}

static void test_routing__equals_the_engine(void **state)
{
    (void)state;
    check_family("qwen2_moe"); /* with a dense layer */
    check_family("olmoe-b");
    check_family("mixtral-window");
}

/* The losses of the original and, of experts at 2 bits, losses and KL against it. */
struct reference_scores {
    double original[32], nll[32], kl[32];
    uint64_t multiply_adds;
};

static void score_against(struct fixture *fixture, const struct moec_windows *windows, bool by_routing,
                          struct reference_scores *out)
{
    struct moec_error err = {0};
    const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 2}};
    const struct moec_config *config = &fixture->model->config;
    const size_t n_choice = moec_windows_token_count(windows) * moec_config_moe_count(config) * config->top_k,
                 n_cell = (size_t)moec_config_moe_count(config) * config->n_expert;
    struct moec_experts *experts = moec_variants_experts(fixture->variants);
    struct moec_scorer *scorer = NULL;
    struct moec_states hidden = {0};
    struct moec_routing routing = {.experts = calloc(n_choice, sizeof(uint16_t)),
                                   .weights = calloc(n_choice, sizeof(uint16_t)),
                                   .activations = calloc(n_cell, sizeof(uint64_t)),
                                   .mean_gate_weight = calloc(n_cell, sizeof(double)),
                                   .hidden = &hidden};
    assert_ok(moec_variants_assign_all(fixture->variants, moec_variants_source_bits(fixture->variants), &err),
              err);
    assert_ok(moec_scorer_create(fixture->model, experts, windows, &options, &scorer, &err), err);
    if (by_routing) {
        assert_ok(moec_routing_run(&(struct moec_runner){fixture->model, experts, options.by.kernels, 2},
                                   windows, &routing, NULL, &err),
                  err);
        assert_ok(moec_scorer_take_reference(scorer, &hidden, out->original, NULL, &err), err);
        assert_null(hidden.rows);
    } else {
        assert_ok(moec_scorer_set_reference(scorer, fixture->model, experts, out->original, NULL, &err), err);
    }
    out->multiply_adds =
        moec_scorer_multiply_adds(scorer) + (by_routing ? moec_cost_layers(config, windows) : 0);
    assert_ok(moec_variants_assign_all(fixture->variants, 2, &err), err);
    const struct moec_measure measure = {.nll = out->nll, .kl = out->kl};
    assert_ok(moec_scorer_run(scorer, &measure, NULL, &err), err);
    moec_scorer_free(scorer);
    free(routing.experts);
    free(routing.weights);
    free(routing.activations);
    free(routing.mean_gate_weight);
}

/* A profile's first pass serves both: the states that windows end with, when traced, are the reference. */
static void test_routing__leaves_a_reference(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "olmoe-b", "mixtral-window"};
    for (size_t i = 0; i < 3; i++) {
        struct fixture fixture = fixture_open(names[i]);
        struct moec_windows windows;
        struct reference_scores own = {0}, shared = {0};
        fixture_windows(&fixture, 7, &windows);
        assert_in_range(windows.n_window, 2, 32);
        windows.length[0] = 5; /* of different lengths, so that rows move by different distances */
        windows.scored[0] = 4;
        score_against(&fixture, &windows, false, &own);
        score_against(&fixture, &windows, true, &shared);
        assert_true(own.original[0] > 0 && own.nll[0] != own.original[0] && own.kl[0] > 0);
        assert_memory_equal(&own, &shared, sizeof own);
        moec_windows_release(&windows);
        fixture_close(&fixture);
    }
}

static enum moec_status stop(void *context, const char *phase, double done, double total)
{
    (void)context;
    assert_string_equal(phase, "routing");
    assert_true(done > 0 && done < total);
    return MOEC_ERR_CANCELLED;
}

static void test_routing__stops(void **state)
{
    (void)state;
    struct fixture fixture = fixture_open("olmoe");
    struct moec_error err = {0};
    struct moec_windows windows;
    fixture_windows(&fixture, 7, &windows);
    const struct moec_progress progress = {.report = stop};
    uint16_t choices[2048];
    uint64_t activations[64];
    double means[64];
    const struct moec_config *config = &fixture.model->config;
    const uint32_t n_moe = moec_config_moe_count(config);
    assert_true(moec_windows_token_count(&windows) * n_moe * config->top_k <= 1024 &&
                n_moe * config->n_expert <= 64);
    struct moec_routing routing = {
        .experts = choices, .weights = choices + 1024, .activations = activations, .mean_gate_weight = means};
    assert_int_equal(
        moec_routing_run(&(struct moec_runner){fixture.model, moec_variants_experts(fixture.variants),
                                               moec_kernels_best(), 1},
                         &windows, &routing, &progress, &err),
        MOEC_ERR_CANCELLED);
    moec_windows_release(&windows);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routing__equals_the_engine),
        cmocka_unit_test(test_routing__leaves_a_reference),
        cmocka_unit_test(test_routing__stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
