/* What a study of routers reports is what its definitions give, computed token by token with the engine's own
 * trace and plain loops. */
#include "profiler/common/quantiles.h"
#include "profiler/routing/paths.h"
#include "profiler/routing/position_study.h"
#include "profiler/routing/routing.h"
#include "profiler/routing/up_study.h"
#include "runtime/forward/context/steps.h"
#include "tests/unit/fixture_model.h"
#include "tests/unit/held_variant.h"

#include <math.h>

enum { LENGTH = 7 };

/* Everything that the engine traces, for all windows: (S, T, ...). */
struct traced {
    uint32_t n_moe, n_token, k;
    size_t stride;
    uint32_t *experts;
    float *weights, *margins, *input, *outputs;
    float *attention; /* what attention reads */
};

static struct traced traced_make(struct fixture *fixture, const struct moec_windows *windows)
{
    const struct moec_config *config = &fixture->model->config;
    struct moec_error err = {0};
    struct moec_forward forward;
    struct traced traced = {.n_moe = moec_config_moe_count(config),
                            .n_token = windows->n_window * LENGTH,
                            .k = config->top_k,
                            .stride = moec_forward_stride(config)};
    const size_t n = (size_t)traced.n_moe * traced.n_token,
                 kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    traced.experts = calloc(n * traced.k, sizeof(uint32_t));
    traced.weights = calloc(n * traced.k, sizeof(float));
    traced.margins = calloc(n, sizeof(float));
    traced.input = calloc(n * traced.stride, sizeof(float));
    traced.attention = calloc(n * traced.stride, sizeof(float));
    traced.outputs = calloc(n * traced.k * traced.stride, sizeof(float));
    float *hidden = calloc(LENGTH * traced.stride, sizeof(float));
    float *keys = calloc(LENGTH * kv, sizeof(float)), *values = calloc(LENGTH * kv, sizeof(float));
    assert_ok(moec_forward_init(&forward, fixture->model, &moec_kernels_scalar, 1,
                                moec_variants_experts(fixture->variants), LENGTH, &err),
              err);
    for (uint32_t w = 0; w < windows->n_window; w++) {
        assert_ok(moec_forward_embed(&forward, windows->tokens + w * LENGTH, LENGTH, hidden, &err), err);
        for (uint32_t layer = 0; layer < config->n_layer; layer++) {
            const struct moec_span span = {.n_rows = LENGTH, .keys = {.k_own = keys, .v_own = values}};
            const int32_t ordinal = moec_config_moe_ordinal(config, layer);
            const size_t at = (size_t)(ordinal < 0 ? 0 : ordinal) * traced.n_token + (size_t)w * LENGTH;
            const struct moec_mlp_trace trace = {.experts = traced.experts + at * traced.k,
                                                 .weights = traced.weights + at * traced.k,
                                                 .margins = traced.margins + at,
                                                 .input = traced.input + at * traced.stride,
                                                 .rank_outputs =
                                                     traced.outputs + at * traced.k * traced.stride};
            if (ordinal >= 0)
                moec_forward_norm(&forward, fixture->model->layers[layer].attention_norm, LENGTH, hidden,
                                  traced.attention + at * traced.stride);
            assert_ok(
                moec_forward_attention(&forward, layer, (struct moec_batch){&span, 1, LENGTH}, hidden, &err),
                err);
            assert_ok(moec_forward_mlp(&forward, layer,
                                       &(struct moec_mlp_batch){.n_tok = LENGTH,
                                                                .hidden = hidden,
                                                                .trace = ordinal >= 0 ? &trace : NULL},
                                       &err),
                      err);
        }
    }
    moec_forward_release(&forward);
    free(hidden);
    free(keys);
    free(values);
    return traced;
}

static void traced_release(struct traced *traced)
{
    free(traced->experts);
    free(traced->weights);
    free(traced->margins);
    free(traced->input);
    free(traced->attention);
    free(traced->outputs);
}

static double dot_of(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

#define assert_near(a, b, slack) assert_true(fabs((a) - (b)) <= (slack))

static void check_margins(const struct traced *traced, const struct moec_router_results *results)
{
    static const double at[] = {0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1};
    float *sorted = calloc(traced->n_token, sizeof(float)), *scratch = calloc(traced->n_token, sizeof(float));
    for (uint32_t s = 0; s < traced->n_moe; s++) {
        double expected[9];
        memcpy(sorted, traced->margins + (size_t)s * traced->n_token, traced->n_token * sizeof(float));
        moec_quantiles(sorted, scratch, traced->n_token, at, 9, expected);
        assert_memory_equal(results->margin + (size_t)s * 9, expected, sizeof expected);
    }
    free(sorted);
    free(scratch);
}

static void check_inputs(const struct traced *traced, const struct moec_config *config,
                         const struct moec_router_results *results)
{
    for (uint32_t s = 0; s < traced->n_moe; s++) {
        if (s + 1 == traced->n_moe) {
            assert_true(isnan(results->cosine[s]));
            continue;
        }
        double sum = 0;
        for (uint32_t t = 0; t < traced->n_token; t++) {
            const float *a = traced->input + ((size_t)s * traced->n_token + t) * traced->stride;
            const float *b = a + (size_t)traced->n_token * traced->stride;
            sum += dot_of(a, b, config->n_embd) /
                   sqrt(dot_of(a, a, config->n_embd) * dot_of(b, b, config->n_embd));
        }
        assert_near(results->cosine[s], sum / traced->n_token, 1e-5);
    }
}

/* The next layer's router on this layer's input, ranked by counting who is better. */
static void check_gates(const struct fixture *fixture, const struct traced *traced,
                        const struct moec_router_results *results)
{
    const struct moec_config *config = &fixture->model->config;
    const uint32_t n_expert = config->n_expert, k = traced->k;
    float *router = calloc((size_t)n_expert * traced->stride, sizeof(float));
    float *scores = calloc(n_expert, sizeof(float));
    for (uint32_t s = 1; s < traced->n_moe; s++) {
        const uint32_t layer = moec_config_moe_layer(config, s);
        uint64_t found[3] = {0}, n_top1 = 0, n = 0;
        moec_kernels_scalar.decode_rows(&fixture->model->layers[layer].router, 0, n_expert, router,
                                        traced->stride);
        for (uint32_t t = 0; t < traced->n_token; t++) {
            if (t / LENGTH % 2 == 0)
                continue;
            const float *x = traced->input + ((size_t)(s - 1) * traced->n_token + t) * traced->stride;
            const uint32_t *chosen = traced->experts + ((size_t)s * traced->n_token + t) * k;
            moec_kernels_scalar.dot(x, traced->stride, 1, router, traced->stride, n_expert, config->n_embd,
                                    scores, n_expert);
            for (uint32_t rank = 0; rank < k; rank++) {
                uint32_t better = 0;
                for (uint32_t e = 0; e < n_expert; e++)
                    better += scores[e] > scores[chosen[rank]] ||
                              (scores[e] == scores[chosen[rank]] && e < chosen[rank]);
                found[0] += better < k;
                found[1] += better < k + 1;
                found[2] += better < 2 * k;
                n_top1 += rank == 0 && better == 0;
            }
            n++;
        }
        for (uint32_t c = 0; c < 3; c++)
            assert_near(results->gate_recall[s * 3 + c], (double)found[c] / (double)(n * k), 1e-12);
        assert_near(results->gate_top1[s], (double)n_top1 / (double)n, 1e-12);
    }
    assert_true(isnan(results->gate_recall[0]) && isnan(results->gate_top1[0]));
    free(router);
    free(scores);
}

/* Share of a layer's choices that fewer than `width` experts beat, on rows of one layer. */
static double recall_of(const struct fixture *fixture, const struct traced *traced, uint32_t s,
                        const float *rows, uint32_t width)
{
    const struct moec_config *config = &fixture->model->config;
    const uint32_t n_expert = config->n_expert;
    float *router = calloc((size_t)n_expert * traced->stride, sizeof(float));
    float *scores = calloc(n_expert, sizeof(float));
    uint64_t n_found = 0;
    moec_kernels_scalar.decode_rows(&fixture->model->layers[moec_config_moe_layer(config, s)].router, 0,
                                    n_expert, router, traced->stride);
    for (uint32_t t = 0; t < traced->n_token; t++) {
        moec_kernels_scalar.dot(rows + (size_t)t * traced->stride, traced->stride, 1, router, traced->stride,
                                n_expert, config->n_embd, scores, n_expert);
        for (uint32_t rank = 0; rank < traced->k; rank++) {
            const uint32_t chosen = traced->experts[((size_t)s * traced->n_token + t) * traced->k + rank];
            uint32_t n_better = 0;
            for (uint32_t e = 0; e < n_expert; e++)
                n_better += scores[e] > scores[chosen] || (scores[e] == scores[chosen] && e < chosen);
            n_found += n_better < width;
        }
    }
    free(router);
    free(scores);
    return (double)n_found / (double)(traced->n_token * traced->k);
}

/* So few tokens that the sample is all of them. */
static void check_positions(const struct fixture *fixture, const struct traced *traced,
                            const struct moec_router_results *results)
{
    const struct moec_config *config = &fixture->model->config;
    const size_t n = (size_t)traced->n_token * traced->stride;
    for (uint32_t s = 0; s < traced->n_moe; s++) {
        const double *recall = results->position_recall + (size_t)s * MOEC_POSITION_COUNT * config->n_expert;
        const double *cosine = results->position_cosine + (size_t)s * MOEC_POSITION_COSINE;
        double sum = 0;
        for (uint32_t position = 0; position < MOEC_POSITION_COUNT; position++) {
            const bool is_here = position == 0, is_attention = is_here || position == MOEC_POSITION_COUNT - 1;
            const uint32_t before = is_here ? 0 : is_attention ? 1 : position;
            for (uint32_t width = 1; width <= config->n_expert; width++) {
                const double value = recall[(size_t)position * config->n_expert + width - 1];
                if (before > s) {
                    assert_true(isnan(value));
                    continue;
                }
                const float *rows = (is_attention ? traced->attention : traced->input) + (s - before) * n;
                assert_near(value, recall_of(fixture, traced, s, rows, width), 1e-12);
            }
        }
        for (uint32_t t = 0; t < traced->n_token; t++) {
            const float *a = traced->attention + s * n + (size_t)t * traced->stride,
                        *b = traced->input + s * n + (size_t)t * traced->stride;
            sum += dot_of(a, b, config->n_embd) /
                   sqrt(dot_of(a, a, config->n_embd) * dot_of(b, b, config->n_embd));
        }
        assert_near(cosine[0], sum / traced->n_token, 1e-5);
        assert_true(isnan(cosine[1]) == (s == 0));
    }
}

/* Two passes over values kept, where the study keeps sums. */
static double correlation_of(const double *x, const double *y, size_t n)
{
    double mean_x = 0, mean_y = 0, xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        mean_x += x[i] / (double)n;
        mean_y += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        yy += (y[i] - mean_y) * (y[i] - mean_y);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    return xy / sqrt(xx * yy);
}

static void check_outputs(const struct traced *traced, const struct moec_config *config,
                          const struct moec_router_results *results)
{
    const size_t n = (size_t)traced->n_token * traced->k;
    double *weight = calloc(n, sizeof(double)), *norm = calloc(n, sizeof(double));
    double *part = calloc(n, sizeof(double)), bins[2][MOEC_GATE_BINS] = {{0}};
    size_t counts[MOEC_GATE_BINS] = {0};
    for (uint32_t s = 0; s < traced->n_moe; s++) {
        double mean_norm = 0, mean_part = 0;
        for (size_t i = 0; i < n; i++) {
            const float *output = traced->outputs + ((size_t)s * n + i) * traced->stride;
            weight[i] = traced->weights[(size_t)s * n + i];
            norm[i] = sqrt(dot_of(output, output, config->n_embd));
            part[i] = weight[i] * norm[i];
            mean_norm += norm[i] / (double)n;
            mean_part += part[i] / (double)n;
        }
        for (size_t i = 0; i < n; i++) {
            const size_t bin = (size_t)(weight[i] / 0.05) < 20 ? (size_t)(weight[i] / 0.05) : 19;
            counts[bin]++;
            bins[0][bin] += norm[i] / mean_norm;
            bins[1][bin] += part[i] / mean_part;
        }
        assert_near(results->correlation[s], correlation_of(weight, part, n), 1e-4);
        assert_near(results->output_correlation[s], correlation_of(weight, norm, n), 1e-4);
    }
    for (size_t bin = 0; bin < MOEC_GATE_BINS; bin++) {
        if (counts[bin] == 0) {
            assert_true(isnan(results->output_norm[bin]) && isnan(results->weighted_norm[bin]));
            continue;
        }
        assert_near(results->output_norm[bin], bins[0][bin] / (double)counts[bin], 1e-4);
        assert_near(results->weighted_norm[bin], bins[1][bin] / (double)counts[bin], 1e-4);
    }
    free(weight);
    free(norm);
    free(part);
}

/* So few tokens that the sample is all of them. */
static void check_up(const struct fixture *fixture, const struct traced *traced,
                     const struct moec_router_results *results)
{
    const struct moec_config *config = &fixture->model->config;
    const uint32_t n_ff = config->n_ff_expert;
    float *row = calloc(traced->stride, sizeof(float));
    float *values = calloc((size_t)traced->n_token * n_ff, sizeof(float));
    float *scratch = calloc((size_t)traced->n_token * n_ff, sizeof(float));
    struct moec_error err = {0};
    uint32_t n_seen = 0;
    for (uint32_t s = 0; s < traced->n_moe; s++) {
        for (uint32_t e = 0; e < config->n_expert; e++) {
            const uint32_t layer = moec_config_moe_layer(config, s);
            struct moec_mlp mlp;
            size_t n = 0;
            double expected[MOEC_UP_QUANTILES];
            assert_ok(variant_hold(fixture->variants, layer, e, moec_variants_source_bits(fixture->variants),
                                   &mlp, &err),
                      err);
            for (uint32_t c = 0; c < traced->n_token * traced->k; c++) {
                if (traced->experts[(size_t)s * traced->n_token * traced->k + c] != e)
                    continue;
                const float *x =
                    traced->input + ((size_t)s * traced->n_token + c / traced->k) * traced->stride;
                for (uint32_t i = 0; i < n_ff; i++, n++) {
                    moec_kernels_scalar.decode_rows(&mlp.up, i, 1, row, traced->stride);
                    moec_kernels_scalar.dot(x, traced->stride, 1, row, traced->stride, 1, config->n_embd,
                                            &values[n], 1);
                    values[n] = fabsf(values[n]);
                }
            }
            variant_release(fixture->variants, layer, e, moec_variants_source_bits(fixture->variants));
            moec_quantiles(values, scratch, n, moec_up_quantiles, MOEC_UP_QUANTILES, expected);
            const double *found =
                results->up_quantiles + ((size_t)s * config->n_expert + e) * MOEC_UP_QUANTILES;
            for (size_t i = 0; i < MOEC_UP_QUANTILES; i++)
                assert_true(n > 0 ? found[i] == expected[i] : isnan(found[i]));
            n_seen += n > 0;
        }
    }
    assert_true(n_seen > 4);
    free(row);
    free(values);
    free(scratch);
}

static void check_family(const char *name)
{
    struct fixture fixture = fixture_open(name);
    struct moec_error err = {0};
    struct moec_windows windows;
    struct moec_router_results results;
    fixture_windows(&fixture, LENGTH, &windows);
    const struct moec_config *config = &fixture.model->config;
    const uint32_t n_moe = moec_config_moe_count(config);
    const size_t n_choice = moec_windows_token_count(&windows) * n_moe * config->top_k;
    const size_t n_cell = (size_t)n_moe * config->n_expert;
    assert_ok(moec_router_results_create(config, &results, &err), err);
    struct moec_routing routing = {.experts = calloc(n_choice, sizeof(uint16_t)),
                                   .weights = calloc(n_choice, sizeof(uint16_t)),
                                   .activations = calloc(n_cell, sizeof(uint64_t)),
                                   .mean_gate_weight = calloc(n_cell, sizeof(double)),
                                   .results = &results};
    assert_ok(moec_routing_run(&(struct moec_runner){fixture.model, moec_variants_experts(fixture.variants),
                                                     moec_kernels_best(), 3},
                               &windows, &routing, NULL, &err),
              err);
    struct traced traced = traced_make(&fixture, &windows);
    check_margins(&traced, &results);
    check_inputs(&traced, config, &results);
    check_positions(&fixture, &traced, &results);
    check_gates(&fixture, &traced, &results);
    check_positions(&fixture, &traced, &results);
    check_outputs(&traced, config, &results);
    check_up(&fixture, &traced, &results);

    /* Alone it costs less, and the trace is the same. */
    const uint64_t with_study = routing.multiply_adds;
    uint16_t *experts = routing.experts;
    routing.experts = calloc(n_choice, sizeof(uint16_t));
    routing.results = NULL;
    assert_ok(moec_routing_run(&(struct moec_runner){fixture.model, moec_variants_experts(fixture.variants),
                                                     moec_kernels_best(), 1},
                               &windows, &routing, NULL, &err),
              err);
    assert_true(routing.multiply_adds < with_study);
    assert_memory_equal(routing.experts, experts, n_choice * sizeof *experts);
    free(experts);
    free(routing.experts);
    free(routing.weights);
    free(routing.activations);
    free(routing.mean_gate_weight);
    traced_release(&traced);
    moec_router_results_release(&results);
    moec_windows_release(&windows);
    fixture_close(&fixture);
}

static void test_router_study__equals_definitions(void **state)
{
    (void)state;
    check_family("qwen2_moe"); /* with a dense layer and a shared expert */
    check_family("olmoe-b");
    check_family("mixtral-window");
}

/* With more windows than an expert takes tokens, each expert is still given some of every stretch. */
static void test_router_study__sample_of_many_windows(void **state)
{
    (void)state;
    enum { N = 200 };
    struct fixture fixture = fixture_open("olmoe");
    const struct moec_config *config = &fixture.model->config;
    struct moec_error err = {0};
    struct moec_up_study *study = NULL;
    struct moec_windows windows = {.n_window = N, .seq_len_tokens = 2};
    struct moec_rank_windows shared;
    const size_t stride = moec_forward_stride(config);
    const uint32_t n_cell = moec_config_moe_count(config) * config->n_expert;
    windows.length = calloc(N, sizeof(uint32_t));
    uint32_t *experts = calloc((size_t)2 * N * config->top_k, sizeof(uint32_t));
    float *input = calloc((size_t)2 * N * stride, sizeof(float));
    double *found = calloc((size_t)n_cell * MOEC_UP_QUANTILES, sizeof(double));
    for (uint32_t w = 0; w < N; w++)
        windows.length[w] = 2;
    for (uint32_t i = 0; i < 2 * N; i++) {
        for (uint32_t rank = 0; rank < config->top_k; rank++)
            experts[i * config->top_k + rank] = rank;
        for (uint32_t c = 0; c < config->n_embd; c++)
            input[i * stride + c] = 1;
    }
    assert_ok(moec_rank_windows_make(NULL, &windows, &shared, &err), err);
    struct moec_forward forward;
    struct moec_experts *source = moec_variants_experts(fixture.variants);
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2, source, 1, &err), err);
    assert_ok(moec_up_study_create(&forward, source, &shared, found, &study, &err), err);
    /* In uneven batches. */
    for (uint32_t w = 0; w < N; w += w == 0 ? 3 : 1) {
        const uint32_t n = w == 0 ? 3 : 1;
        assert_ok(moec_up_study_windows(study, 0, (struct moec_window_range){w, n},
                                        experts + (size_t)2 * w * config->top_k,
                                        input + (size_t)2 * w * stride, &err),
                  err);
    }
    assert_ok(moec_up_study_finish(study, 0, &err), err);
    const uint64_t per_token = (uint64_t)config->n_ff_expert * config->n_embd;
    const uint64_t n_taken = moec_up_study_multiply_adds(study) / per_token;
    /* Every fourth window gives a token to each of the experts that are chosen. */
    assert_int_equal(n_taken, 50 * config->top_k);
    for (uint32_t e = 0; e < config->n_expert; e++)
        assert_true(isnan(found[e * MOEC_UP_QUANTILES]) == (e >= config->top_k));
    moec_up_study_free(study);
    moec_forward_release(&forward);
    free(windows.length);
    free(experts);
    free(input);
    free(found);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_router_study__equals_definitions),
        cmocka_unit_test(test_router_study__sample_of_many_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
