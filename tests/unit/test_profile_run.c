#include "tests/unit/dense_load.h"
#include "tests/unit/naive_sensitivity.h"
#include "tests/unit/temporary.h"

#include "formats/profile/profile_h5.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/evaluate/score.h"
#include "profiler/profile/profile_run.h"
#include "profiler/sensitivity/sensitivity.h"

#include <math.h>

#define MODEL "datasets/sample/model"
#define DATA  "datasets/sample/calibration.txt"

static const uint32_t two_bits[] = {4, 2};

static struct moec_profile_options options_make(void)
{
    return (struct moec_profile_options){.data = {.task = moec_task_text(),
                                                  .path = DATA,
                                                  .seq_len_tokens = 12,
                                                  .parts = {.n_window = 33},
                                                  .seed = 9},
                                         .codes = {.bits = two_bits, .n_bits = 2, .baseline_bits = 4},
                                         .by = {.kernels = moec_kernels_best(), .n_threads = 1}};
}

static void check_same_bytes(const void *a, const void *b, size_t n_bytes)
{
    assert_memory_equal(a, b, n_bytes);
}

static void test_profile_run__same_at_any_thread_count(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_profile a, b;
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    struct moec_profile_options options = options_make();
    MUST(moec_profile_run(checkpoint, &options, &a, &err));
    options.by.n_threads = 3;
    options.memory.work_bytes = 4 << 20;
    MUST(moec_profile_run(checkpoint, &options, &b, &err));

    /* 16 certify and are not looked at; of the 17 others fewer than 8 would select. */
    assert_int_equal(a.n_drawn, 33);
    assert_int_equal(a.n_window, 17);
    assert_int_equal(moec_profile_part_count(&a, MOEC_PART_SEARCH), 17);
    assert_int_equal(moec_profile_part_count(&a, MOEC_PART_SELECT), 0);
    assert_int_equal(moec_profile_part_count(&a, MOEC_PART_CERTIFICATE), 16);
    assert_int_equal(a.n_trace_token, (uint64_t)17 * a.seq_len_tokens);
    assert_int_equal(a.n_sensitivity_window, 17);
    assert_int_equal(a.n_document, 1);
    assert_false(a.parts_by_document);
    assert_int_equal(a.n_bits, 1);
    assert_int_equal(a.bits[0], 2);
    assert_int_equal(a.n_uniform, 2);
    assert_int_equal(a.uniform_bits[1], 4);
    assert_string_equal(a.data_name, "calibration.txt");
    const size_t n_window = a.n_window, n_measured = a.n_sensitivity_window,
                 n_expert = (size_t)a.n_moe_layer * a.n_expert;
    check_same_bytes(a.window_tokens, b.window_tokens,
                     (size_t)a.n_drawn * a.seq_len_tokens * sizeof(uint32_t));
    check_same_bytes(a.reference.nll, b.reference.nll, n_window * sizeof(double));
    check_same_bytes(a.baseline.kl, b.baseline.kl, n_window * sizeof(double));
    check_same_bytes(a.uniform[0].nll, b.uniform[0].nll, n_window * sizeof(double));
    check_same_bytes(a.uniform[1].nll, a.baseline.nll, n_window * sizeof(double));
    check_same_bytes(a.expert_nll, b.expert_nll, n_expert * n_measured * sizeof(double));
    check_same_bytes(a.expert_kl, b.expert_kl, n_expert * n_measured * sizeof(double));
    check_same_bytes(a.activations, b.activations, n_expert * sizeof(uint64_t));
    check_same_bytes(a.mean_gate_weight, b.mean_gate_weight, n_expert * sizeof(double));
    /* Routing of the parts, from the trace, adds up to that of all windows. */
    uint64_t *search = calloc(n_expert, sizeof *search), *rest = calloc(n_expert, sizeof *rest), n_search = 0;
    double *weight = calloc(n_expert, sizeof *weight);
    moec_part_routing(&a, MOEC_PART_CERTIFICATE, rest, weight);
    moec_part_routing(&a, MOEC_PART_SEARCH, search, weight);
    for (size_t i = 0; i < n_expert; i++) {
        assert_int_equal(search[i] + rest[i], a.activations[i]);
        assert_true(weight[i] >= 0 && weight[i] <= 1 && (weight[i] > 0) == (search[i] > 0));
        n_search += search[i];
    }
    assert_int_equal(n_search, (uint64_t)17 * a.seq_len_tokens * a.n_moe_layer * a.top_k);
    free(search);
    free(rest);
    free(weight);
    check_same_bytes(a.trace_experts, b.trace_experts, a.n_trace_token * a.n_moe_layer * a.top_k * 2);
    check_same_bytes(a.path_recall, b.path_recall, (size_t)a.n_moe_layer * 3 * sizeof(double));
    assert_int_equal(a.paths.n_key, b.paths.n_key);
    check_same_bytes(a.paths.keys, b.paths.keys, a.paths.n_key * sizeof *a.paths.keys);
    assert_true(a.cost_passes > 1 && a.cost_passes < a.naive_passes);
    assert_true(a.naive_passes == (double)n_expert);
    moec_profile_release(&a);
    moec_profile_release(&b);
    moec_checkpoint_close(checkpoint);
}

/* The trained sample: every measure of the sweep is that of a full evaluation of the model changed so, and an
 * expert's row of the profile is what a search would measure for the same assignment. */
static void test_profile_run__sweep_equals_full_evaluations_on_the_sample(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_profile profile;
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    struct moec_profile_options options = options_make();
    MUST(moec_profile_run(checkpoint, &options, &profile, &err));

    const struct moec_config *config = moec_checkpoint_config(checkpoint);
    struct moec_windows windows;
    MUST(moec_windows_from_profile(&profile, MOEC_PART_SEARCH, &windows, &err));
    assert_int_equal(windows.n_window, profile.n_sensitivity_window);
    struct moec_dense dense;
    struct moec_model *model = NULL;
    struct moec_variants *variants = NULL;
    MUST(dense_load(checkpoint, 16, 0, &dense, &err));
    MUST(moec_model_create(config, &dense, &model, &err));
    MUST(moec_variants_create(checkpoint, &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, 1},
                              &variants, &err));
    const size_t n_window = profile.n_sensitivity_window,
                 n_cell = (size_t)profile.n_moe_layer * profile.n_expert * n_window;
    struct moec_sensitivity naive = {
        .baseline = {calloc(n_window, sizeof(double)), calloc(n_window, sizeof(double))},
        .expert_nll = calloc(n_cell, sizeof(double)),
        .expert_kl = calloc(n_cell, sizeof(double))};
    const struct moec_sensitivity_options sweep = {.of.model = model,
                                                   .of.variants = variants,
                                                   .by.kernels = moec_kernels_best(),
                                                   .of.windows = &windows,
                                                   .by.n_threads = 2,
                                                   .of.baseline_bits = 4,
                                                   .of.bits = profile.bits,
                                                   .of.n_bits = profile.n_bits};
    MUST(naive_sensitivity(&sweep, &naive, &err));
    check_same_bytes(naive.baseline.nll, profile.baseline.nll, n_window * sizeof(double));
    check_same_bytes(naive.baseline.kl, profile.baseline.kl, n_window * sizeof(double));
    check_same_bytes(naive.expert_nll, profile.expert_nll, n_cell * sizeof(double));
    check_same_bytes(naive.expert_kl, profile.expert_kl, n_cell * sizeof(double));
    free(naive.baseline.nll);
    free(naive.baseline.kl);
    free(naive.expert_nll);
    free(naive.expert_kl);
    moec_variants_free(variants);
    moec_model_free(model);
    moec_windows_release(&windows);
    moec_profile_release(&profile);
    moec_checkpoint_close(checkpoint);
}

/* Stops the run at its n-th report. */
struct stopper {
    uint32_t left;
};

static enum moec_status stop(void *context, const char *phase, double done, double total)
{
    struct stopper *stopper = context;
    (void)phase;
    assert_true(done <= total * (1 + 1e-9));
    return stopper->left-- > 0 ? MOEC_OK : MOEC_ERR_CANCELLED;
}

static uint8_t *encode(struct moec_profile *profile, size_t *n_bytes)
{
    uint8_t *bytes = NULL;
    MUST(moec_profile_encode(profile, &bytes, n_bytes, &err));
    moec_profile_release(profile);
    return bytes;
}

/* Stopped again and again, with other threads and working memory each time, a run ends in the same bytes. */
static void test_profile_run__resumed_equals_uninterrupted(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_profile profile;
    struct moec_units_summary summary;
    char *folder = temporary_folder(), *path = temporary_path(folder, "p.journal");
    size_t n_whole = 0, n_resumed = 0;
    uint32_t n_run = 0;
    uint64_t n_unit = 0;
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    struct moec_profile_options options = options_make();
    MUST(moec_profile_run(checkpoint, &options, &profile, &err));
    uint8_t *whole = encode(&profile, &n_whole);

    struct stopper stopper;
    const struct moec_progress progress = {.report = stop, .context = &stopper};
    options.progress = &progress;
    options.journal.path = path;
    options.journal.mode = MOEC_UNITS_RESUME;
    enum moec_status status = MOEC_ERR_CANCELLED;
    while (status == MOEC_ERR_CANCELLED) {
        struct moec_error stopped = {0};
        stopper.left = 40 + 30 * n_run;
        options.by.n_threads = 1 + (int)(n_run % 2);
        options.memory.work_bytes = n_run % 3 == 1 ? 4 << 20 : n_run % 3 == 2 ? 9 << 20 : 0;
        status = moec_profile_run(checkpoint, &options, &profile, &stopped);
        if (status != MOEC_OK && status != MOEC_ERR_CANCELLED)
            fail_msg("%s", stopped.message);
        MUST(moec_units_look(path, &summary, &err));
        assert_true(summary.n_unit >= n_unit);
        n_unit = summary.n_unit;
        n_run++;
    }
    assert_true(n_run > 4 && n_unit > 20);
    uint8_t *resumed = encode(&profile, &n_resumed);
    assert_int_equal(n_resumed, n_whole);
    assert_memory_equal(resumed, whole, n_whole);
    free(resumed);

    /* A finished journal gives the profile at the price of the original's evaluation. */
    options.progress = NULL;
    MUST(moec_profile_run(checkpoint, &options, &profile, &err));
    resumed = encode(&profile, &n_resumed);
    assert_memory_equal(resumed, whole, n_whole);

    struct moec_error refused = {0};
    options.data.seed++;
    assert_int_equal(moec_profile_run(checkpoint, &options, &profile, &refused), MOEC_ERR_MISMATCH);
    assert_message(refused, "seed is '9' (this run: '10')");
    free(resumed);
    free(whole);
    free(path);
    temporary_remove(folder);
    moec_checkpoint_close(checkpoint);
}

static void test_profile_run__wrong_options(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    static const uint32_t only_baseline[] = {4}, twice[] = {2, 4, 2}, seven[] = {7, 2};
    static const struct {
        const uint32_t *bits;
        uint32_t n_bits, baseline_bits, seq_len_tokens, n_sample;
        enum moec_status status;
        const char *message;
    } wrong[] = {
        {only_baseline, 1, 4, 12, 33, MOEC_ERR_USAGE, "baseline"},
        {twice, 3, 4, 12, 33, MOEC_ERR_USAGE, "twice"},
        {seven, 2, 4, 12, 33, MOEC_ERR_USAGE, "expected 1, 2, 3, 4, 5, 6, 8 or 16"},
        {two_bits, 0, 4, 12, 33, MOEC_ERR_USAGE, "0 bitwidths"},
        {two_bits, 2, 8, 12, 33, MOEC_ERR_USAGE, "expected 4 or 16"},
        {two_bits, 2, 4, 12, 31, MOEC_ERR_USAGE, "at least 16"},
        {two_bits, 2, 4, 100000, 33, MOEC_ERR_LIMIT, "positions of the model"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_profile_options options = options_make();
        struct moec_profile profile;
        struct moec_error err = {0};
        options.codes.bits = wrong[i].bits;
        options.codes.n_bits = wrong[i].n_bits;
        options.codes.baseline_bits = wrong[i].baseline_bits;
        options.data.seq_len_tokens = wrong[i].seq_len_tokens;
        options.data.parts.n_window = wrong[i].n_sample;
        assert_int_equal(moec_profile_run(checkpoint, &options, &profile, &err), wrong[i].status);
        if (strstr(err.message, wrong[i].message) == NULL)
            fail_msg("'%s' lacks '%s'", err.message, wrong[i].message);
        assert_null(profile.expert_nll);
    }
    struct moec_profile_options options = options_make();
    struct moec_profile profile;
    struct moec_error err = {0};
    options.data.path = "datasets/sample/no-such-file.txt";
    assert_int_equal(moec_profile_run(checkpoint, &options, &profile, &err), MOEC_ERR_NOT_FOUND);
    moec_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile_run__same_at_any_thread_count),
        cmocka_unit_test(test_profile_run__sweep_equals_full_evaluations_on_the_sample),
        cmocka_unit_test(test_profile_run__resumed_equals_uninterrupted),
        cmocka_unit_test(test_profile_run__wrong_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
