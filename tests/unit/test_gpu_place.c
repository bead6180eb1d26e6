/* Measuring on a GPU, on machines without one: on a device that does work in orders drawn from a seed,
 * scores, hidden states, keys, values and sensitivities are those of the CPU bit for bit, whatever room there
 * is; and whatever a device refuses or however it ends, a message comes and nothing is left over. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_model.h"
#include "tests/unit/random_windows.h"

#include "formats/base/memory.h"
#include "profiler/evaluate/load_model.h"
#include "profiler/evaluate/score.h"
#include "profiler/evaluate/sweep.h"
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_place.h"
#include "runtime/cuda/host/host_gpu.h"

#include <math.h>

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;

/* ---- a device ---- */

struct device {
    struct moec_gpu *gpu;
    struct moec_gpu_place *place;
};

static uint64_t largest_of(const struct bench *bench)
{
    return moec_variants_record_bytes(bench->variants, moec_variants_source_bits(bench->variants));
}

/* The bench's model on a device whose limit is vram_bytes (0: all of it). */
static enum moec_status enter(struct bench *bench, uint64_t seed, uint64_t vram_bytes,
                              const struct moec_host_gpu_faults *faults, struct device *device,
                              struct moec_error *wrong)
{
    *device = (struct device){0};
    moec_blocks_divert(moec_host_gpu_launch);
    MUST(moec_host_gpu_open(seed, &device->gpu, &err));
    if (faults != NULL)
        moec_host_gpu_set_faults(device->gpu, faults);
    MOEC_TRY(moec_gpu_place_create(device->gpu, &kernels, vram_bytes, &device->place, wrong));
    return moec_gpu_place_load(device->place, bench->model, largest_of(bench), wrong);
}

/* The bench is closed too, as its model has its weights there. */
static void leave(struct bench *bench, struct device *device)
{
    bench_close(bench);
    moec_gpu_place_free(device->place);
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(device->gpu);
    assert_int_equal(counts.allocations + counts.pinned + counts.streams + counts.events, 0);
    device->gpu->ops->close(device->gpu);
}

/* ---- scores ---- */

#define N_WINDOW 3u
#define MAX_ROWS 64u /* of all windows */

struct scores {
    double reference[N_WINDOW], nll[N_WINDOW], kl[N_WINDOW];
    float *hidden; /* of the reference, (n_row, stride), owned */
    size_t n_float;
};

/* The original as reference, then all experts at 4 bits. */
static enum moec_status score_in(struct bench *bench, enum moec_arithmetic arithmetic, struct scores *scores,
                                 struct moec_error *wrong)
{
    enum moec_status status = MOEC_OK;
    struct moec_scorer *scorer = NULL;
    struct moec_experts *experts = moec_variants_experts(bench->variants);
    const struct moec_scorer_options options = {
        .by = {.kernels = moec_kernels_best(), .n_threads = 1, .arithmetic = arithmetic}};
    const struct moec_measure measure = {scores->nll, scores->kl};
    scores->n_float = moec_windows_scored_count(&bench->windows) * moec_forward_stride(&bench->model->config);
    MUST(moec_variants_assign_all(bench->variants, moec_variants_source_bits(bench->variants), &err));
    status = moec_scorer_create(bench->model, experts, &bench->windows, &options, &scorer, wrong);
    if (status == MOEC_OK)
        status = moec_scorer_set_reference(scorer, bench->model, experts, scores->reference, NULL, wrong);
    MUST(moec_variants_assign_all(bench->variants, 4, &err));
    if (status == MOEC_OK)
        status = moec_scorer_run(scorer, &measure, NULL, wrong);
    if (status == MOEC_OK) {
        scores->hidden = malloc(scores->n_float * sizeof(float));
        assert_non_null(scores->hidden);
        memcpy(scores->hidden, moec_scorer_reference_hidden(scorer), scores->n_float * sizeof(float));
    }
    moec_scorer_free(scorer);
    return status;
}

static enum moec_status score(struct bench *bench, struct scores *scores, struct moec_error *wrong)
{
    return score_in(bench, MOEC_ARITHMETIC_CANONICAL, scores, wrong);
}

static void assert_same_scores(const struct scores *a, const struct scores *b, const char *what)
{
    assert_int_equal(a->n_float, b->n_float);
    assert_same_bits(a->hidden, b->hidden, a->n_float, what);
    assert_memory_equal(a->reference, b->reference, sizeof a->reference);
    assert_memory_equal(a->nll, b->nll, sizeof a->nll);
    assert_memory_equal(a->kl, b->kl, sizeof a->kl);
}

static void open_family(const char *family, uint32_t seq_len, struct bench *bench)
{
    char folder[128];
    snprintf(folder, sizeof folder, "tests/fixtures/families/%s", family);
    bench_open(folder, N_WINDOW, seq_len, bench);
}

static const char *const families[] = {
    "qwen2_moe",  "olmoe",         "mixtral-window", "deepseek_v2",   "deepseek_v3",      "dots1",
    "gpt_oss",    "gpt_oss-mxfp4", "gemma4",         "granitemoe",    "granitemoehybrid", "hash_moe",
    "lfm2_moe",   "llama4",        "longcat_flash",  "nemotron_h",    "phimoe",           "qwen3_next",
    "minimax_m2", "kimi_linear",   "gptsan",         "switch-gated",  "switch-full",      "exaone_moe",
    "minicpm",    "afmoe",         "qwen3_5_moe",    "hunyuan_v1_moe"};

static void scores_are_those_of_the_cpu(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct bench here, there;
        struct scores expected = {0}, scores = {0};
        struct device device;
        open_family(families[f], 6, &here);
        MUST(score(&here, &expected, &err));
        open_family(families[f], 6, &there);
        MUST(enter(&there, f, 0, NULL, &device, &err));
        MUST(score(&there, &scores, &err));
        assert_same_scores(&scores, &expected, families[f]);
        free(expected.hidden);
        free(scores.hidden);
        bench_close(&here);
        leave(&there, &device);
    }
}

/* ---- room ---- */

/* The least that a limit may be, as its message says. */
static uint64_t floor_of(const char *family)
{
    struct bench bench;
    struct device device;
    struct scores scores = {0};
    struct moec_error wrong = {0};
    double sum = 0;
    open_family(family, 6, &bench);
    enum moec_status status = enter(&bench, 1, 1024, NULL, &device, &wrong);
    assert_status(status, MOEC_ERR_BUDGET, wrong);
    assert_message(wrong, "dense weights");
    leave(&bench, &device);
    for (uint64_t kib = 16;; kib += kib / 8) {
        wrong = (struct moec_error){0};
        open_family(family, 6, &bench);
        status = enter(&bench, 1, kib << 10, NULL, &device, &wrong);
        if (status == MOEC_OK)
            status = score(&bench, &scores, &wrong);
        leave(&bench, &device);
        free(scores.hidden);
        if (status == MOEC_OK)
            return kib << 10;
        assert_status(status, MOEC_ERR_BUDGET, wrong);
        const char *at = strstr(wrong.message, "largest expert");
        assert_non_null(at);
        at = strchr(at, '=');
        assert_non_null(at);
        sum = strtod(at + 1, NULL);
        assert_true(sum * 1048576.0 > (double)(kib << 10) - 10486);
    }
}

/* Copies of experts come and go, and the device's memory stays within the limit. */
static void little_room_makes_the_same_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "switch-gated"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct bench here, there;
        struct scores expected = {0}, scores = {0};
        struct device device;
        const uint64_t limit = floor_of(names[f]);
        open_family(names[f], 6, &here);
        MUST(score(&here, &expected, &err));
        open_family(names[f], 6, &there);
        MUST(enter(&there, 5, limit, NULL, &device, &err));
        MUST(score(&there, &scores, &err));
        assert_same_scores(&scores, &expected, names[f]);
        assert_true(moec_host_gpu_counts(device.gpu).peak_bytes <= limit);
        free(expected.hidden);
        free(scores.hidden);
        bench_close(&here);
        leave(&there, &device);
    }
}

/* ---- bf16 ---- */

/* The original stays canonical, whatever the model is measured in; numbers are the same with any room; and
 * what is measured canonically afterwards is the CPU's. */
static void bf16_is_measured_against_the_canonical_original(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "deepseek_v2", "switch-gated"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        const uint64_t limits[] = {0, floor_of(names[f]) * 9 / 8};
        struct scores expected = {0}, scores[2];
        memset(scores, 0, sizeof scores);
        struct bench here;
        open_family(names[f], 6, &here);
        MUST(score(&here, &expected, &err));
        bench_close(&here);
        for (int i = 0; i < 2; i++) {
            struct scores again = {0};
            struct bench there;
            struct device device;
            open_family(names[f], 6, &there);
            MUST(enter(&there, f, limits[i], NULL, &device, &err));
            MUST(score_in(&there, MOEC_ARITHMETIC_BF16, &scores[i], &err));
            assert_memory_equal(scores[i].reference, expected.reference, sizeof expected.reference);
            assert_same_bits(scores[i].hidden, expected.hidden, expected.n_float, names[f]);
            assert_memory_not_equal(scores[i].nll, expected.nll, sizeof expected.nll);
            for (uint32_t w = 0; w < N_WINDOW; w++)
                assert_true(fabs(scores[i].nll[w] - expected.nll[w]) < 0.1 * expected.nll[w]);
            MUST(score(&there, &again, &err));
            assert_same_scores(&again, &expected, names[f]);
            if (limits[i] > 0)
                assert_true(moec_host_gpu_counts(device.gpu).peak_bytes <= limits[i]);
            free(again.hidden);
            leave(&there, &device);
        }
        assert_same_scores(&scores[1], &scores[0], names[f]);
        for (int i = 0; i < 2; i++)
            free(scores[i].hidden);
        free(expected.hidden);
    }
}

/* Measures in an arithmetic with a device that lacks it, or none. */
static void assert_lacks(enum moec_arithmetic arithmetic, uint32_t capability, const char *words)
{
    const struct moec_host_gpu_faults faults = {.capability = capability};
    struct bench there;
    struct device device;
    struct scores scores = {0};
    struct moec_error wrong = {0};
    open_family("qwen2_moe", 4, &there);
    if (capability > 0)
        MUST(enter(&there, 1, 0, &faults, &device, &err));
    const enum moec_status status = score_in(&there, arithmetic, &scores, &wrong);
    assert_status(status, MOEC_ERR_UNSUPPORTED, wrong);
    assert_message(wrong, words);
    if (capability > 0)
        leave(&there, &device);
    else
        bench_close(&there);
}

static void an_arithmetic_that_a_device_lacks_is_refused(void **state)
{
    (void)state;
    assert_lacks(MOEC_ARITHMETIC_BF16, 75, "compute capability 7.5, but the arithmetic 'bf16' needs 8.0");
    assert_lacks(MOEC_ARITHMETIC_BF16, 0, "no device is given");
    assert_lacks(MOEC_ARITHMETIC_INT8, 80, "int8 arithmetic does not run on a device");
}

/* ---- what a sweep keeps ---- */

struct kept {
    float *attention_out;
    struct moec_kv_state kv;
    uint64_t n_row, n_layer_row;
};

static void keep(const struct bench *bench, struct kept *kept)
{
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    const struct moec_config *config = &bench->model->config;
    const size_t stride = moec_forward_stride(config);
    MUST(moec_forward_init(&forward, bench->model, moec_kernels_best(), 1,
                           moec_variants_experts(bench->variants), moec_sweep_max_tokens(&bench->windows),
                           &err));
    MUST(moec_sweep_create(&forward, &bench->windows, false, &sweep, &err));
    kept->n_row = moec_sweep_rows(&sweep, 0, N_WINDOW);
    kept->n_layer_row = kept->n_row * moec_config_moe_count(config);
    kept->attention_out = calloc(kept->n_layer_row * stride, sizeof(float));
    float *hidden = calloc(kept->n_row * stride, sizeof(float));
    MUST(moec_kv_state_create(config,
                              (struct moec_kv_layers){0, config->n_layer, MOEC_KV_EACH_LAYER, kept->n_row},
                              "keys", &kept->kv, &err));
    const struct moec_sweep_store store = {.attention_out = kept->attention_out, .kv = &kept->kv};
    MUST(moec_sweep_run(&sweep, (struct moec_window_range){0, N_WINDOW}, hidden, &store, &err));
    free(hidden);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
}

static void drop(struct kept *kept)
{
    free(kept->attention_out);
    moec_kv_state_release(&kept->kv);
}

static void sweeps_keep_what_the_cpu_keeps(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "deepseek_v2", "granitemoehybrid", "longcat_flash"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct bench here, there;
        struct kept expected, kept;
        struct device device;
        open_family(names[f], 7, &here);
        keep(&here, &expected);
        open_family(names[f], 7, &there);
        MUST(enter(&there, f, 0, NULL, &device, &err));
        keep(&there, &kept);
        assert_same_bits(kept.attention_out, expected.attention_out,
                         kept.n_layer_row * moec_forward_stride(&here.model->config), names[f]);
        assert_int_equal(kept.kv.n_bytes, expected.kv.n_bytes);
        assert_same_bits(kept.kv.floats, expected.kv.floats, kept.kv.n_bytes / sizeof(float), names[f]);
        drop(&expected);
        drop(&kept);
        bench_close(&here);
        leave(&there, &device);
    }
}

/* ---- traces ---- */

struct traces {
    struct moec_mlp_trace batch;
    const struct moec_config *config;
    float *all; /* of all layers, owned */
    size_t n, capacity;
};

static void append(struct traces *traces, const void *from, size_t n)
{
    MUST(moec_grow((void **)&traces->all, &traces->capacity, traces->n + n, sizeof(float), "traces", &err));
    memcpy(traces->all + traces->n, from, n * sizeof(float));
    traces->n += n;
}

static enum moec_status take_trace(void *context, uint32_t ordinal, const struct moec_sweep_batch *batch,
                                   struct moec_error *err)
{
    (void)ordinal;
    (void)err;
    struct traces *traces = context;
    const struct moec_mlp_trace *trace = &traces->batch;
    const size_t rows = batch->n_rows * moec_forward_stride(traces->config), k = traces->config->top_k;
    append(traces, trace->experts, batch->n_rows * k);
    append(traces, trace->weights, batch->n_rows * k);
    append(traces, trace->margins, batch->n_rows);
    append(traces, trace->input, rows);
    if (traces->config->mlp.own_norms || traces->config->router.scales_input)
        append(traces, trace->gate_input, rows);
    append(traces, trace->rank_outputs, rows * k);
    append(traces, trace->rank_norms, batch->n_rows * k);
    append(traces, trace->shared_output, rows);
    return MOEC_OK;
}

static void trace(const struct bench *bench, struct traces *traces)
{
    struct moec_forward forward = {0};
    struct moec_sweep sweep = {0};
    const struct moec_config *config = &bench->model->config;
    const size_t rows = MAX_ROWS * moec_forward_stride(config), k = config->top_k;
    MUST(moec_forward_init(&forward, bench->model, moec_kernels_best(), 1,
                           moec_variants_experts(bench->variants), moec_sweep_max_tokens(&bench->windows),
                           &err));
    MUST(moec_sweep_create(&forward, &bench->windows, false, &sweep, &err));
    *traces = (struct traces){.config = config,
                              .batch = {.experts = calloc(MAX_ROWS * k, sizeof(uint32_t)),
                                        .weights = calloc(MAX_ROWS * k, sizeof(float)),
                                        .margins = calloc(MAX_ROWS, sizeof(float)),
                                        .input = calloc(rows, sizeof(float)),
                                        .gate_input = calloc(rows, sizeof(float)),
                                        .rank_outputs = calloc(rows * k, sizeof(float)),
                                        .rank_norms = calloc(MAX_ROWS * k, sizeof(float)),
                                        .shared_output = calloc(rows, sizeof(float))}};
    float *hidden = calloc(2 * rows, sizeof(float));
    const struct moec_sweep_store store = {.trace = &traces->batch, .traced = take_trace, .context = traces};
    MUST(moec_sweep_run(&sweep, (struct moec_window_range){0, N_WINDOW}, hidden, &store, &err));
    free(hidden);
    moec_sweep_release(&sweep);
    moec_forward_release(&forward);
    void *const owned[] = {traces->batch.experts,    traces->batch.weights,      traces->batch.margins,
                           traces->batch.input,      traces->batch.gate_input,   traces->batch.rank_outputs,
                           traces->batch.rank_norms, traces->batch.shared_output};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
}

static void traces_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe",   "gemma4",      "llama4",        "longcat_flash",
                                        "switch-full", "gpt_oss",     "afmoe",         "minicpm",
                                        "nemotron_h",  "deepseek_v3", "hunyuan_v1_moe"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct bench here, there;
        struct traces expected, traces;
        struct device device;
        open_family(names[f], 6, &here);
        trace(&here, &expected);
        open_family(names[f], 6, &there);
        MUST(enter(&there, f, 0, NULL, &device, &err));
        trace(&there, &traces);
        assert_true(expected.n > 0);
        assert_int_equal(traces.n, expected.n);
        assert_same_bits(traces.all, expected.all, expected.n, names[f]);
        free(expected.all);
        free(traces.all);
        bench_close(&here);
        leave(&there, &device);
    }
}

/* ---- sensitivities ---- */

static enum moec_status measure(struct bench *bench, const float *reference, struct moec_sensitivity *result,
                                struct moec_error *wrong)
{
    static const uint32_t bits[] = {2};
    const struct moec_sensitivity_options options = {.of.model = bench->model,
                                                     .of.variants = bench->variants,
                                                     .by.kernels = moec_kernels_best(),
                                                     .of.windows = &bench->windows,
                                                     .by.n_threads = 1,
                                                     .of.baseline_bits = 4,
                                                     .of.bits = bits,
                                                     .of.n_bits = 1,
                                                     .reference_hidden = reference};
    return moec_sensitivity_run(&options, result, wrong);
}

static void sensitivities_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "deepseek_v2", "qwen3_next", "switch-full", "gpt_oss"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct bench here, there;
        struct scores scores = {0};
        struct device device;
        size_t n_cell = 0;
        open_family(names[f], 5, &here);
        struct moec_sensitivity expected = result_make(&here, 1, &n_cell);
        MUST(score(&here, &scores, &err));
        MUST(measure(&here, scores.hidden, &expected, &err));
        open_family(names[f], 5, &there);
        struct moec_sensitivity result = result_make(&there, 1, &n_cell);
        MUST(enter(&there, f, 0, NULL, &device, &err));
        MUST(measure(&there, scores.hidden, &result, &err));
        assert_memory_equal(result.expert_nll, expected.expert_nll, n_cell * sizeof(double));
        assert_memory_equal(result.expert_kl, expected.expert_kl, n_cell * sizeof(double));
        assert_int_equal(result.multiply_adds, expected.multiply_adds);
        result_release(&expected);
        result_release(&result);
        free(scores.hidden);
        bench_close(&here);
        leave(&there, &device);
    }
}

/* ---- what goes wrong ---- */

static void every_failure_is_told_and_leaves_nothing(void **state)
{
    (void)state;
    uint32_t n_failed = 0;
    for (uint32_t at = 1; at < 400; at += at / 3 + 1) {
        const struct moec_host_gpu_faults faults[] = {
            {.lose_at = 4 * at}, {.fail_alloc_at = at}, {.fail_copy_at = at}, {.fail_launch_at = at}};
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            struct bench bench;
            struct device device;
            struct scores scores = {0};
            struct moec_error wrong = {0};
            open_family("qwen2_moe", 4, &bench);
            enum moec_status status = enter(&bench, at, 0, &faults[i], &device, &wrong);
            if (status == MOEC_OK)
                status = score(&bench, &scores, &wrong);
            if (status != MOEC_OK) {
                n_failed++;
                assert_true(status == MOEC_ERR_IO || status == MOEC_ERR_MEMORY);
                assert_true(strlen(wrong.message) > 0);
            }
            free(scores.hidden);
            leave(&bench, &device);
        }
    }
    assert_true(n_failed > 20);
}

static void count_note(void *context, const char *line)
{
    uint32_t *n = context;
    assert_non_null(strstr(line, "run on the CPU instead of the GPU"));
    ++*n;
}

/* A second model computes on the device where it fits, and else on the processor, which is told once; in an
 * arithmetic of the device's own it is refused. */
static void models_without_room_are_told_of(void **state)
{
    (void)state;
    for (int fits = 0; fits < 2; fits++) {
        struct bench there;
        struct device device;
        struct moec_dense dense;
        struct moec_model *others[2] = {NULL, NULL};
        uint32_t n_note = 0;
        const struct moec_progress progress = {.note = count_note, .context = &n_note};
        open_family("qwen3_moe", 12, &there);
        const uint64_t own = moec_gpu_model_bytes(&there.model->config, there.model->dense.blob_bytes, NULL);
        MUST(enter(&there, 3, fits ? 0 : own + largest_of(&there), NULL, &device, &err));
        for (int i = 0; i < 2; i++) {
            MUST(dense_load(there.checkpoint, 16, 0, &dense, &err));
            MUST(moec_model_create(&there.model->config, &dense, &others[i], &err));
            MUST(moec_offload_if_room(device.place, others[i], &progress, &err));
            assert_int_equal(others[i]->offload != NULL, fits);
        }
        assert_int_equal(n_note, fits ? 0 : 1);
        moec_model_free(others[0]);
        struct moec_error wrong = {0};
        MUST(moec_gpu_place_take_arithmetic(device.place, MOEC_ARITHMETIC_BF16, &err));
        MUST(dense_load(there.checkpoint, 16, 0, &dense, &err));
        MUST(moec_model_create(&there.model->config, &dense, &others[0], &err));
        const enum moec_status status = moec_offload_if_room(device.place, others[0], &progress, &wrong);
        assert_int_equal(status, fits ? MOEC_OK : MOEC_ERR_BUDGET);
        moec_model_free(others[0]);
        moec_model_free(others[1]);
        leave(&there, &device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_those_of_the_cpu),
        cmocka_unit_test(little_room_makes_the_same_bits),
        cmocka_unit_test(bf16_is_measured_against_the_canonical_original),
        cmocka_unit_test(an_arithmetic_that_a_device_lacks_is_refused),
        cmocka_unit_test(models_without_room_are_told_of),
        cmocka_unit_test(sweeps_keep_what_the_cpu_keeps),
        cmocka_unit_test(traces_are_those_of_the_cpu),
        cmocka_unit_test(sensitivities_are_those_of_the_cpu),
        cmocka_unit_test(every_failure_is_told_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
