/* --work-memory is divided without remainder above it, and refused where the least does not fit. */
#include "tests/unit/fixture_model.h"

#include "profiler/evaluate/load_model.h"
#include "profiler/profile/work_plan.h"

#include <inttypes.h>

#define MIB ((uint64_t)1 << 20)

struct bench {
    struct moec_checkpoint *checkpoint;
    struct moec_windows windows;
    uint32_t length[64], scored[64];
};

static void bench_open(struct bench *bench)
{
    struct moec_error err = {0};
    assert_ok(moec_checkpoint_open("datasets/sample/model", &bench->checkpoint, &err), err);
    bench->windows = (struct moec_windows){
        .n_window = 64, .seq_len_tokens = 256, .length = bench->length, .scored = bench->scored};
    for (uint32_t w = 0; w < 64; w++) {
        bench->length[w] = 256 - w;
        bench->scored[w] = 255 - w;
    }
}

static struct moec_work_request request_make(const struct bench *bench, uint64_t work_bytes)
{
    return (struct moec_work_request){
        .checkpoint = bench->checkpoint,
        .windows = &bench->windows,
        .bytes = {.work = work_bytes, .base = 10 * MIB, .result = 1 * MIB},
        .n_threads = 2,
        .evaluations =
            {.dense_bits = 16, .n_models = 1, .n_passes = 2, .n_states = 3, .traces = true, .sweeps = true},
        .folder = "/tmp"};
}

static uint64_t sum(const struct moec_work_request *request, const struct moec_work_plan *plan)
{
    return plan->fixed.base_bytes + plan->fixed.result_bytes + plan->fixed.buffer_bytes +
           request->evaluations.n_models * plan->dense_bytes + plan->activation_bytes + plan->cache_bytes +
           plan->sweep_bytes + plan->work.states_bytes +
           request->evaluations.n_reference * plan->reference_bytes;
}

static void test_work_plan__stays_within_the_limit(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench);
    const uint64_t layer = moec_work_plan_layer_bytes(bench.checkpoint);
    assert_true(layer > 0 && layer < moec_checkpoint_weight_bytes(bench.checkpoint));
    uint32_t n_planned = 0, batch = 0;
    for (uint64_t work_bytes = 8 * MIB; work_bytes <= 2048 * MIB; work_bytes += work_bytes / 4) {
        uint64_t shared = 0;
        for (int shape = 0; shape < 6; shape++) {
            struct moec_error err = {0};
            struct moec_work_plan plan;
            struct moec_work_request request = request_make(&bench, work_bytes);
            if (shape == 1) {
                request.evaluations.sweeps = false;
                request.evaluations.n_reference = 1;
                request.evaluations.n_models = 2;
            } else if (shape == 2) {
                request.folder = NULL;
            } else if (shape == 3) {
                request.windows = NULL;
            } else if (shape == 4) {
                request.evaluations.sweeps = false;
            } else if (shape == 5) {
                request.bytes.exchange = 24 * MIB;
            }
            if (moec_work_plan_make(&request, &plan, &err) != MOEC_OK) {
                assert_int_equal(err.status, MOEC_ERR_BUDGET);
                assert_true(work_bytes < 100 * MIB);
                continue;
            }
            n_planned++;
            assert_int_equal(plan.limit_bytes, work_bytes + layer);
            assert_true(sum(&request, &plan) <= plan.limit_bytes);
            if (shape == 3)
                continue;
            assert_true(plan.work.batch_tokens >= 256);
            assert_true(plan.cache_bytes > 0 && plan.dense_bytes > 0);
            if (shape == 0) {
                assert_true(plan.work.batch_tokens >= batch); /* more memory, longer batches */
                batch = plan.work.batch_tokens;
                shared = plan.cache_bytes;
            }
            assert_true(plan.fixed.buffer_bytes >= request.bytes.exchange);
            if (shape == 4) /* experts get what nothing else wants */
                assert_true(plan.cache_bytes >= shared);
        }
    }
    assert_true(n_planned > 40);
    moec_checkpoint_close(bench.checkpoint);
}

static void test_work_plan__gives_small_models_everything(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_error err = {0};
    struct moec_work_plan plan;
    bench_open(&bench);
    const struct moec_work_request request = request_make(&bench, 1024 * MIB);
    assert_ok(moec_work_plan_make(&request, &plan, &err), err);
    const uint64_t dense =
        moec_checkpoint_weight_bytes(bench.checkpoint) - moec_checkpoint_expert_bytes(bench.checkpoint);
    const uint64_t row_bytes = moec_forward_stride(moec_checkpoint_config(bench.checkpoint)) * sizeof(float);
    assert_true(plan.dense_bytes >= dense);
    assert_int_equal(plan.work.batch_tokens, 4096);
    assert_true(plan.cache_bytes > moec_checkpoint_expert_bytes(bench.checkpoint) * 2);
    assert_true(plan.work.states_bytes >= 3 * moec_windows_token_count(&bench.windows) * row_bytes);
    assert_true(plan.sweep_bytes > 256 * MIB);
    struct moec_model *model = NULL;
    assert_ok(moec_load_model(bench.checkpoint, 16, 0, plan.dense_bytes, &model, &err), err);
    assert_null(model->stream);
    moec_model_free(model);
    assert_ok(moec_load_model(bench.checkpoint, 16, 0, 1, &model, &err), err);
    assert_non_null(model->stream);
    moec_model_free(model);
    moec_checkpoint_close(bench.checkpoint);
}

/* Memory that nobody named keeps every expert in every form, but never takes more than half of what is free.
 */
static void test_work_plan__default_holds_all_experts(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_error err = {0};
    struct moec_work_plan plan;
    bench_open(&bench);
    const struct moec_checkpoint *checkpoint = bench.checkpoint;
    const uint64_t plenty = (uint64_t)1 << 50, exact = moec_checkpoint_expert_bytes(checkpoint);
    const uint64_t variants = moec_work_plan_default_bytes(checkpoint, 0, plenty);
    assert_true(variants > 2 * exact && variants < 3 * exact);
    const uint64_t least = 3 * variants, all = least + variants + moec_work_plan_layer_bytes(checkpoint);
    assert_int_equal(moec_work_plan_default_bytes(checkpoint, least, plenty), least + variants);
    assert_int_equal(moec_work_plan_default_bytes(checkpoint, least, 2 * all), least + variants);
    assert_int_equal(moec_work_plan_default_bytes(checkpoint, least, 2 * all - 1), least);
    assert_int_equal(moec_work_plan_default_bytes(checkpoint, least, 0), least);
    assert_int_equal(moec_work_plan_default_bytes(checkpoint, 4 * variants, plenty), 4 * variants);
    struct moec_work_request request = request_make(&bench, 1024 * MIB + variants);
    for (int sweeps = 0; sweeps < 2; sweeps++) {
        request.evaluations.sweeps = sweeps != 0;
        assert_ok(moec_work_plan_make(&request, &plan, &err), err);
        assert_int_equal(plan.cache_bytes, variants);
    }
    moec_checkpoint_close(bench.checkpoint);
}

/* The message names a size that is enough. */
static void test_work_plan__refuses_with_the_items(void **state)
{
    (void)state;
    struct bench bench;
    struct moec_error err = {0};
    struct moec_work_plan plan;
    bench_open(&bench);
    struct moec_work_request request = request_make(&bench, 4 * MIB);
    assert_int_equal(moec_work_plan_make(&request, &plan, &err), MOEC_ERR_BUDGET);
    static const char *const items[] = {"work memory of 4.0 MiB",
                                        "process 10.0",
                                        "results 1.0",
                                        "buffers ",
                                        "dense weights of a layer ",
                                        "activations of a window ",
                                        "largest expert ",
                                        "hidden states ",
                                        "raise --work-memory to "};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        if (strstr(err.message, items[i]) == NULL)
            fail_msg("'%s' is not in: %s", items[i], err.message);
    const char *enough = strstr(err.message, "raise --work-memory to ");
    request.bytes.work = strtoull(enough + strlen("raise --work-memory to "), NULL, 10) * MIB;
    assert_true(request.bytes.work > 4 * MIB);
    err = (struct moec_error){0};
    assert_ok(moec_work_plan_make(&request, &plan, &err), err);
    request.bytes.work -= 2 * MIB;
    assert_int_equal(moec_work_plan_make(&request, &plan, NULL), MOEC_ERR_BUDGET);
    moec_checkpoint_close(bench.checkpoint);
}

/* A forecast holds what a run fills: never more than the limit, more with single experts than without, and
 * little of a memory that nobody needs. */
static void test_work_plan__hints_what_is_filled(void **state)
{
    (void)state;
    static const uint32_t bits[] = {2, 4, 16};
    struct bench bench;
    bench_open(&bench);
    uint64_t most = 0;
    for (uint64_t work_bytes = 128 * MIB; work_bytes <= 4096 * MIB; work_bytes *= 2) {
        const struct moec_work_request request = request_make(&bench, work_bytes);
        struct moec_work_load load = {.bits = bits, .n_bits = 3};
        struct moec_work_plan plan;
        struct moec_error err = {0};
        uint64_t without = 0, exact = 0, fast = 0;
        assert_ok(moec_work_plan_make(&request, &plan, &err), err);
        assert_ok(moec_work_plan_peak(&request, &plan, &load, &without, &err), err);
        load.sensitivity_windows = &bench.windows;
        assert_ok(moec_work_plan_peak(&request, &plan, &load, &fast, &err), err);
        load.is_exact = true;
        assert_ok(moec_work_plan_peak(&request, &plan, &load, &exact, &err), err);
        assert_true(without <= fast && without <= exact);
        assert_true(fast <= plan.limit_bytes && exact <= plan.limit_bytes);
        assert_true(without > request.bytes.base + request.bytes.result);
        most = without;
    }
    assert_true(most < 400 * MIB);
    moec_checkpoint_close(bench.checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_plan__stays_within_the_limit),
        cmocka_unit_test(test_work_plan__gives_small_models_everything),
        cmocka_unit_test(test_work_plan__default_holds_all_experts),
        cmocka_unit_test(test_work_plan__refuses_with_the_items),
        cmocka_unit_test(test_work_plan__hints_what_is_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
