#include "tests/unit/naive_sensitivity.h"
#include "tests/unit/random_windows.h"
#include "tests/unit/status.h"

#include "profiler/common/random.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/score.h"
#include "profiler/sensitivity/sensitivity.h"
#include "runtime/forward/pass/session.h"

#include <math.h>
#include <stdlib.h>

static struct moec_scorer *scorer_make(const struct bench *bench, uint64_t reference_limit_bytes)
{
    const struct moec_scorer_options options = {.by = {.kernels = moec_kernels_best(), .n_threads = 1},
                                                .reference_limit_bytes = reference_limit_bytes};
    struct moec_scorer *scorer = NULL;
    MUST(moec_scorer_create(bench->model, moec_variants_experts(bench->variants), &bench->windows, &options,
                            &scorer, &err));
    return scorer;
}

static void check_equal(const struct bench *bench, const struct moec_sensitivity *a,
                        const struct moec_sensitivity *b, size_t n_cell)
{
    const size_t window_bytes = bench->windows.n_window * sizeof(double);
    assert_memory_equal(a->baseline.nll, b->baseline.nll, window_bytes);
    assert_memory_equal(a->baseline.kl, b->baseline.kl, window_bytes);
    assert_memory_equal(a->expert_nll, b->expert_nll, n_cell * sizeof(double));
    assert_memory_equal(a->expert_kl, b->expert_kl, n_cell * sizeof(double));
}

/* The sweep with several ways of cutting the work equals one evaluation for each variant, bit for bit. */
static void check_exact_in(enum moec_arithmetic arithmetic, const char *folder, uint32_t baseline_bits)
{
    static const uint32_t all_bits[] = {2, 3, 4, 8, 16};
    uint32_t bits[4], n_bits = 0;
    for (size_t i = 0; i < 5; i += 2) /* 2, 4, 16 without the baseline */
        if (all_bits[i] != baseline_bits)
            bits[n_bits++] = all_bits[i];
    struct bench bench;
    bench_open(folder, 9, 24, &bench);
    struct moec_scorer *scorer = scorer_make(&bench, 0);
    MUST(moec_scorer_set_reference(scorer, bench.model, moec_variants_experts(bench.variants), NULL, NULL,
                                   &err));
    struct moec_sensitivity_options options = {.of.model = bench.model,
                                               .of.variants = bench.variants,
                                               .by.kernels = moec_kernels_best(),
                                               .of.windows = &bench.windows,
                                               .by.n_threads = 1,
                                               .by.arithmetic = arithmetic,
                                               .of.baseline_bits = baseline_bits,
                                               .of.bits = bits,
                                               .of.n_bits = n_bits,
                                               .reference_hidden = moec_scorer_reference_hidden(scorer)};
    size_t n_cell = 0;
    struct moec_sensitivity naive = result_make(&bench, n_bits, &n_cell);
    MUST(naive_sensitivity(&options, &naive, &err));
    size_t n_different = 0;
    for (size_t i = 0; i < n_cell; i++)
        n_different += naive.expert_nll[i] != naive.baseline.nll[i % bench.windows.n_window];
    assert_true(n_different > n_cell / 4);

    static const struct {
        int n_threads;
        uint64_t work_bytes;
    } ways[] = {{1, 0}, {2, 0}, {2, 300000}, {1, 1}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct moec_sensitivity result = result_make(&bench, n_bits, &n_cell);
        options.by.n_threads = ways[i].n_threads;
        options.work_bytes = ways[i].work_bytes;
        MUST(moec_sensitivity_run(&options, &result, &err));
        check_equal(&bench, &result, &naive, n_cell);
        assert_true(result.multiply_adds < naive.multiply_adds);
        result_release(&result);
    }
    options.by.kernels = &moec_kernels_scalar;
    struct moec_sensitivity scalar = result_make(&bench, n_bits, &n_cell);
    MUST(moec_sensitivity_run(&options, &scalar, &err));
    check_equal(&bench, &scalar, &naive, n_cell);
    result_release(&scalar);
    result_release(&naive);
    moec_scorer_free(scorer);
    bench_close(&bench);
}

static void check_exact(const char *folder, uint32_t baseline_bits)
{
    check_exact_in(MOEC_ARITHMETIC_CANONICAL, folder, baseline_bits);
}

/* Against the original in the canonical arithmetic, whatever the arithmetic is. */
static void test_sensitivity__equals_naive_in_int8(void **state)
{
    (void)state;
    check_exact_in(MOEC_ARITHMETIC_INT8, "tests/fixtures/families/qwen2_moe", 4);
    check_exact_in(MOEC_ARITHMETIC_INT8, "tests/fixtures/families/olmoe", 16);
}

static void test_sensitivity__equals_naive_olmoe(void **state)
{
    (void)state;
    check_exact("tests/fixtures/families/olmoe", 4);
}

static void test_sensitivity__equals_naive_qwen2_moe(void **state)
{
    (void)state;
    check_exact("tests/fixtures/families/qwen2_moe", 4);
    check_exact("tests/fixtures/families/qwen2_moe-tied", 16);
}

static void test_sensitivity__equals_naive_sliding_window(void **state)
{
    (void)state;
    check_exact("tests/fixtures/families/mixtral-window", 16);
}

/* Experts beside an MLP, with norms of their own and a factor of the layer. */
static void test_sensitivity__equals_naive_own_norms(void **state)
{
    (void)state;
    check_exact("tests/fixtures/families/gemma4", 4);
}

/* States that cannot be entered in the middle of a window. */
static void test_sensitivity__equals_naive_running(void **state)
{
    (void)state;
    check_exact("tests/fixtures/families/lfm2_moe", 4);
    check_exact("tests/fixtures/families/nemotron_h", 4); /* layers of one part */
    check_exact("tests/fixtures/families/qwen3_next", 4);
}

/* Experts of an encoder and of a decoder; with experts that are full, and that are not. */
static void test_sensitivity__equals_naive_switch(void **state)
{
    (void)state;
    check_exact("tests/fixtures/families/switch", 4);
    check_exact("tests/fixtures/families/switch-full", 4);
    check_exact("tests/fixtures/families/switch-gated", 16);
}

/* Scores of a window equal those of a session that reads it token by token, with log-softmax in F64. */
static void check_sessions(const char *folder)
{
    struct bench bench;
    bench_open(folder, 5, 17, &bench);
    const struct moec_config *config = moec_checkpoint_config(bench.checkpoint);
    struct moec_experts *experts = moec_variants_experts(bench.variants);
    double reference[5], nll[5], kl[5];
    struct moec_scorer *scorer = scorer_make(&bench, (uint64_t)1 << 24);
    MUST(moec_scorer_set_reference(scorer, bench.model, experts, reference, NULL, &err));
    MUST(moec_variants_assign_all(bench.variants, 3, &err));
    const struct moec_measure measure = {nll, kl};
    MUST(moec_scorer_run(scorer, &measure, NULL, &err));

    struct moec_forward forward;
    MUST(moec_forward_init(&forward, bench.model, moec_kernels_best(), 1, experts, 4, &err));
    float *logits = calloc((size_t)2 * config->n_vocab, sizeof(float));
    for (uint32_t w = 0; w < 5; w++) {
        const uint32_t *tokens = moec_windows_target(&bench.windows, w);
        const uint32_t source = moec_windows_source(&bench.windows, w);
        struct moec_session *sessions[2] = {NULL, NULL};
        double sums[2] = {0, 0}, divergence = 0;
        for (int i = 0; i < 2; i++) {
            MUST(moec_variants_assign_all(bench.variants,
                                          i == 0 ? moec_variants_source_bits(bench.variants) : 3, &err));
            MUST(moec_session_create(&forward, 17, &sessions[i], &err));
            moec_session_count_capacity(sessions[i], true);
            if (source > 0)
                MUST(moec_session_encode(sessions[i], moec_windows_tokens(&bench.windows, w), source, &err));
        }
        for (uint32_t t = 0; t < bench.windows.scored[w]; t++) {
            double lse[2];
            for (uint32_t i = 0; i < 2; i++) {
                float *row = logits + i * config->n_vocab;
                const uint32_t at = 0;
                MUST(moec_variants_assign_all(bench.variants,
                                              i == 0 ? moec_variants_source_bits(bench.variants) : 3, &err));
                MUST(moec_session_step(sessions[i], tokens + t, 1, &at, 1, row, &err));
                double sum = 0;
                for (uint32_t v = 0; v < config->n_vocab; v++)
                    sum += exp((double)row[v]);
                lse[i] = log(sum);
                sums[i] += lse[i] - (double)row[tokens[t + 1]];
            }
            for (uint32_t v = 0; v < config->n_vocab; v++) {
                const double p = (double)logits[v] - lse[0], q = (double)logits[config->n_vocab + v] - lse[1];
                divergence += exp(p) * (p - q);
            }
        }
        assert_true(fabs(sums[0] - reference[w]) < 2e-5 && sums[0] > 0);
        assert_true(fabs(sums[1] - nll[w]) < 2e-5);
        assert_true(fabs(divergence - kl[w]) < 2e-5 + 1e-4 * divergence);
        for (int i = 0; i < 2; i++)
            moec_session_free(sessions[i]);
    }
    moec_forward_release(&forward);
    free(logits);
    moec_scorer_free(scorer);
    bench_close(&bench);
}

static void test_sensitivity__scorer_equals_session(void **state)
{
    (void)state;
    check_sessions("tests/fixtures/families/qwen2_moe");
    check_sessions("tests/fixtures/families/switch-full");
    check_sessions("tests/fixtures/families/switch-gated");
}

static void test_sensitivity__kl_of_the_original_is_zero(void **state)
{
    (void)state;
    struct bench bench;
    bench_open("tests/fixtures/families/olmoe", 6, 20, &bench);
    struct moec_experts *experts = moec_variants_experts(bench.variants);
    double reference[6], kept_nll[6], kept_kl[6], nll[6], kl[6];
    struct moec_scorer *kept = scorer_make(&bench, (uint64_t)1 << 24), *again = scorer_make(&bench, 0);
    MUST(moec_scorer_set_reference(kept, bench.model, experts, reference, NULL, &err));
    MUST(moec_scorer_set_reference(again, bench.model, experts, NULL, NULL, &err));
    const struct moec_measure measure = {nll, kl}, kept_measure = {kept_nll, kept_kl};
    MUST(moec_scorer_run(again, &measure, NULL, &err));
    assert_memory_equal(nll, reference, sizeof nll);
    for (size_t w = 0; w < 6; w++)
        assert_true(kl[w] == 0);
    /* Probabilities kept or computed again: the same bits. */
    MUST(moec_variants_assign_all(bench.variants, 2, &err));
    MUST(moec_scorer_run(again, &measure, NULL, &err));
    MUST(moec_scorer_run(kept, &kept_measure, NULL, &err));
    assert_memory_equal(nll, kept_nll, sizeof nll);
    assert_memory_equal(kl, kept_kl, sizeof kl);
    for (size_t w = 0; w < 6; w++)
        assert_true(kl[w] > 0);
    moec_scorer_free(kept);
    moec_scorer_free(again);
    bench_close(&bench);
}

/* The same model loaded twice stands for a reference behind another dense table (bundle against checkpoint).
 */
static void test_sensitivity__reference_of_another_model(void **state)
{
    (void)state;
    struct bench bench, other;
    bench_open("tests/fixtures/families/qwen2_moe", 4, 12, &bench);
    bench_open("tests/fixtures/families/qwen2_moe", 4, 12, &other);
    double reference[4], nll[4], kl[4], same_kl[4];
    const struct moec_measure measure = {nll, kl}, same = {nll, same_kl};
    MUST(moec_variants_assign_all(bench.variants, 2, &err));
    struct moec_scorer *scorer = scorer_make(&bench, 0);
    MUST(moec_scorer_set_reference(scorer, other.model, moec_variants_experts(other.variants), reference,
                                   NULL, &err));
    MUST(moec_scorer_run(scorer, &measure, NULL, &err));
    assert_true(nll[0] != reference[0] && kl[0] > 0);
    MUST(moec_variants_assign_all(other.variants, 2, &err));
    MUST(moec_scorer_set_reference(scorer, other.model, moec_variants_experts(other.variants), reference,
                                   NULL, &err));
    MUST(moec_scorer_run(scorer, &same, NULL, &err));
    assert_memory_equal(nll, reference, sizeof nll);
    assert_true(same_kl[0] == 0);
    struct bench mixtral;
    bench_open("tests/fixtures/families/mixtral", 4, 12, &mixtral);
    struct moec_error err = {0};
    enum moec_status status = moec_scorer_set_reference(
        scorer, mixtral.model, moec_variants_experts(mixtral.variants), NULL, NULL, &err);
    assert_int_equal(status, MOEC_ERR_MISMATCH);
    assert_non_null(strstr(err.message, "vocabulary of 128"));
    moec_scorer_free(scorer);
    bench_close(&mixtral);
    bench_close(&other);
    bench_close(&bench);
}

struct watcher {
    double last, total;
    int calls, stop_at;
};

static enum moec_status watch(void *context, const char *phase, double done, double total)
{
    struct watcher *watcher = context;
    assert_non_null(phase);
    assert_true(done >= watcher->last);
    watcher->last = done;
    watcher->total = total;
    return ++watcher->calls == watcher->stop_at ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void check_progress(const char *folder)
{
    static const uint32_t bits[] = {2, 8};
    struct bench bench;
    bench_open(folder, 4, 16, &bench);
    struct moec_scorer *scorer = scorer_make(&bench, 0);
    MUST(moec_scorer_set_reference(scorer, bench.model, moec_variants_experts(bench.variants), NULL, NULL,
                                   &err));
    struct watcher watcher = {0};
    const struct moec_progress progress = {.report = watch, .context = &watcher};
    struct moec_sensitivity_options options = {.of.model = bench.model,
                                               .of.variants = bench.variants,
                                               .by.kernels = moec_kernels_best(),
                                               .of.windows = &bench.windows,
                                               .by.n_threads = 1,
                                               .of.baseline_bits = 4,
                                               .of.bits = bits,
                                               .of.n_bits = 2,
                                               .reference_hidden = moec_scorer_reference_hidden(scorer),
                                               .progress = &progress};
    size_t n_cell = 0;
    struct moec_sensitivity result = result_make(&bench, 2, &n_cell);
    MUST(moec_sensitivity_run(&options, &result, &err));
    assert_true(fabs(watcher.last - watcher.total) < 1e-9 * watcher.total);

    watcher = (struct watcher){.stop_at = watcher.calls / 2};
    struct moec_error err = {0};
    assert_int_equal(moec_sensitivity_run(&options, &result, &err), MOEC_ERR_CANCELLED);
    assert_int_equal(watcher.calls, watcher.stop_at);
    result_release(&result);
    moec_scorer_free(scorer);
    bench_close(&bench);
}

static void test_sensitivity__progress_reaches_its_end_and_stops(void **state)
{
    (void)state;
    check_progress("tests/fixtures/families/qwen2_moe");
    check_progress("tests/fixtures/families/switch");
}

static void test_sensitivity__unreached_experts_are_the_baseline(void **state)
{
    (void)state;
    static const uint32_t bits[] = {2};
    struct bench bench;
    bench_open("tests/fixtures/families/olmoe", 1, 4, &bench);
    const struct moec_config *config = moec_checkpoint_config(bench.checkpoint);
    struct moec_scorer *scorer = scorer_make(&bench, 0);
    MUST(moec_scorer_set_reference(scorer, bench.model, moec_variants_experts(bench.variants), NULL, NULL,
                                   &err));
    const struct moec_sensitivity_options options = {.of.model = bench.model,
                                                     .of.variants = bench.variants,
                                                     .by.kernels = moec_kernels_best(),
                                                     .of.windows = &bench.windows,
                                                     .by.n_threads = 1,
                                                     .of.baseline_bits = 4,
                                                     .of.bits = bits,
                                                     .of.n_bits = 1,
                                                     .reference_hidden =
                                                         moec_scorer_reference_hidden(scorer)};
    size_t n_cell = 0;
    struct moec_sensitivity result = result_make(&bench, 1, &n_cell);
    MUST(moec_sensitivity_run(&options, &result, &err));
    uint64_t total = 0;
    size_t n_unreached = 0;
    for (size_t i = 0; i < n_cell; i++) {
        total += result.reached[i];
        n_unreached += result.reached[i] == 0;
        assert_true((result.reached[i] == 0) == (result.expert_nll[i] == result.baseline.nll[0]));
    }
    assert_true(n_unreached > 0);
    assert_int_equal(total,
                     (uint64_t)bench.windows.scored[0] * config->top_k * moec_config_moe_count(config));
    result_release(&result);
    moec_scorer_free(scorer);
    bench_close(&bench);
}

static void test_sensitivity__cost_of_a_pass(void **state)
{
    (void)state;
    static struct moec_config config = {
        .n_layer = 2,
        .n_embd = 8,
        .n_vocab = 10,
        .n_expert = 4,
        .top_k = 2,
        .n_ff_expert = 3,
        .n_ff_shared = 5,
        .mlp.shared_gate = true,
        .n_kind = 2,
        .kinds = {{.n_head = 2, .n_kv_head = 1, .head_dim = 4, .n_ff_dense = 7},
                  {.n_head = 2, .n_kv_head = 1, .head_dim = 4, .is_moe = true}},
        .layer_kind = {0, 1}};
    /* Three positions: q and o 8 x 8, k and v 4 x 8; each sees 1, 2, 3 positions in two products of 8. */
    const uint64_t attention = 3 * (64 + 64 + 32 + 32) + (1 + 2 + 3) * 2 * 8;
    const uint64_t dense = 3 * 3 * 7 * 8, moe = 3 * (4 * 8 + 2 * (3 * 3 * 8 + 8) + 3 * 5 * 8 + 8),
                   head = 3 * 80;
    assert_int_equal(moec_cost_attention(&config, 0, 0, 3), attention);
    assert_int_equal(moec_cost_mlp(&config, 0, 3), dense);
    assert_int_equal(moec_cost_mlp(&config, 1, 3), moe);
    assert_int_equal(moec_cost_from_layer(&config, 0, 0, 0, 3), 2 * attention + dense + moe + head);
    assert_int_equal(moec_cost_from_layer(&config, 1, 0, 0, 3), attention + moe + head);
    assert_int_equal(moec_cost_from_layer(&config, 2, 0, 0, 3), head);
    config.kinds[1].window = 2;
    assert_int_equal(moec_cost_attention(&config, 0, 0, 3), attention);
    assert_int_equal(moec_cost_attention(&config, 1, 0, 3), attention - 2 * 8);
    assert_int_equal(moec_cost_attention(&config, 1, 5, 1), 192 + 2 * 2 * 8);
}

static void test_sensitivity__cost_of_two_stacks(void **state)
{
    (void)state;
    static struct moec_config config = {
        .n_layer = 3,
        .n_encoder_layer = 1,
        .n_embd = 8,
        .n_vocab = 10,
        .n_expert = 4,
        .top_k = 1,
        .n_ff_expert = 3,
        .mlp.plain = true,
        .n_kind = 2,
        .kinds = {{.n_head = 2, .n_kv_head = 2, .head_dim = 4, .is_moe = true},
                  {.n_head = 2, .n_kv_head = 2, .head_dim = 4, .n_ff_dense = 7}},
        .layer_kind = {0, 1, 0}};
    /* A source of five tokens that see each other, a target of three. */
    const uint64_t encoder = 5 * 4 * 64 + 2 * 8 * 25, own = 3 * 4 * 64 + (1 + 2 + 3) * 2 * 8;
    const uint64_t keys = 5 * 2 * 64, cross = 3 * 2 * 64 + 2 * 8 * 15;
    const uint64_t moe = 4 * 8 + 2 * 3 * 8 + 8, dense = 2 * 7 * 8, head = 3 * 80;
    assert_int_equal(moec_cost_mixing(&config, 0, 5, 0, 3), encoder);
    assert_int_equal(moec_cost_mixing(&config, 1, 5, 0, 3), own + keys + cross);
    assert_int_equal(moec_cost_from_layer(&config, 0, 5, 0, 3),
                     encoder + 5 * moe + 2 * (own + keys + cross) + 3 * (dense + moe) + head);
    assert_int_equal(moec_cost_after_layer(&config, 0, 5, 0, 3),
                     2 * (own + keys + cross) + 3 * (dense + moe) + head);
    assert_int_equal(moec_cost_after_layer(&config, 1, 5, 0, 3), own + cross + 3 * moe + head);
    assert_int_equal(moec_cost_after_layer(&config, 2, 5, 0, 3), head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sensitivity__cost_of_a_pass),
        cmocka_unit_test(test_sensitivity__cost_of_two_stacks),
        cmocka_unit_test(test_sensitivity__equals_naive_switch),
        cmocka_unit_test(test_sensitivity__scorer_equals_session),
        cmocka_unit_test(test_sensitivity__kl_of_the_original_is_zero),
        cmocka_unit_test(test_sensitivity__reference_of_another_model),
        cmocka_unit_test(test_sensitivity__equals_naive_in_int8),
        cmocka_unit_test(test_sensitivity__equals_naive_olmoe),
        cmocka_unit_test(test_sensitivity__equals_naive_qwen2_moe),
        cmocka_unit_test(test_sensitivity__equals_naive_sliding_window),
        cmocka_unit_test(test_sensitivity__equals_naive_running),
        cmocka_unit_test(test_sensitivity__equals_naive_own_norms),
        cmocka_unit_test(test_sensitivity__unreached_experts_are_the_baseline),
        cmocka_unit_test(test_sensitivity__progress_reaches_its_end_and_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
