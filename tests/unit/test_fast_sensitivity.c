/* Sensitivities that are estimated instead of measured: what they cost, how well they rank experts, and that
 * they do not depend on threads or working memory. */
#include "tests/unit/status.h"

#include "formats/profile/profile_h5.h"
#include "profiler/common/correlation.h"
#include "profiler/common/progress.h"
#include "profiler/evaluate/cost.h"
#include "profiler/evaluate/metrics.h"
#include "profiler/profile/codes_study.h"
#include "profiler/profile/profile_run.h"
#include "profiler/sensitivity/fast_sensitivity.h"
#include "profiler/sensitivity/gain_plan.h"

#include <math.h>
#include <stdlib.h>

#define MODEL "datasets/sample/model"
#define DATA  "datasets/sample/calibration.txt"

static const uint32_t all_bits[] = {2, 3, 4, 8}, two_bits[] = {2, 4};

static struct moec_profile_options options_make(enum moec_sensitivity_mode mode)
{
    return (struct moec_profile_options){.data = {.task = moec_task_text(),
                                                  .path = DATA,
                                                  .seq_len_tokens = 64,
                                                  .parts = {.n_window = 33},
                                                  .seed = 5},
                                         .codes = {.bits = all_bits, .n_bits = 4, .baseline_bits = 4},
                                         .measures.sensitivity = mode,
                                         .by = {.kernels = moec_kernels_best(), .n_threads = 2}};
}

static void profile_make(const char *model, const struct moec_profile_options *options,
                         struct moec_profile *profile)
{
    struct moec_checkpoint *checkpoint = NULL;
    MUST(moec_checkpoint_open(model, &checkpoint, &err));
    MUST(moec_profile_run(checkpoint, options, profile, &err));
    moec_checkpoint_close(checkpoint);
}

/* Estimated on one thread with room for everything: what others are compared with. */
static struct moec_profile plain;

static struct moec_profile_options plain_options(void)
{
    struct moec_profile_options options = options_make(MOEC_SENSITIVITY_FAST);
    options.data.seq_len_tokens = 24;
    return options;
}

static int plain_make(void **state)
{
    (void)state;
    struct moec_profile_options options = plain_options();
    options.by.n_threads = 1;
    profile_make(MODEL, &options, &plain);
    return 0;
}

static int plain_release(void **state)
{
    (void)state;
    moec_profile_release(&plain);
    return 0;
}

static void same_bytes_as_plain(const struct moec_profile *profile)
{
    uint8_t *bytes_a = NULL, *bytes_b = NULL;
    size_t n_a = 0, n_b = 0;
    MUST(moec_profile_encode(&plain, &bytes_a, &n_a, &err));
    MUST(moec_profile_encode(profile, &bytes_b, &n_b, &err));
    assert_int_equal(n_a, n_b);
    assert_memory_equal(bytes_a, bytes_b, n_a);
    free(bytes_a);
    free(bytes_b);
}

/* KL of each expert beyond the baseline's, summed over the part. */
static double *divergences(const struct moec_profile *profile, uint32_t b, enum moec_part part)
{
    const uint32_t n = profile->n_moe_layer * profile->n_expert;
    double *out = calloc(n, sizeof *out);
    for (uint32_t i = 0; i < n; i++) {
        const double *kl =
            profile->expert_kl + ((size_t)i * profile->n_bits + b) * profile->n_sensitivity_window;
        for (uint32_t w = 0; w < profile->n_sensitivity_window; w++)
            out[i] += moec_part_has(part, profile->window_part, w) ? kl[w] - profile->baseline.kl[w] : 0;
    }
    return out;
}

static const struct moec_study *study_of(const struct moec_profile *profile, const char *name)
{
    const struct moec_study *study = moec_studies_find(&profile->studies, name);
    assert_non_null(study);
    return study;
}

/* The original, whole models, and what the estimate may take: not more for more layers. */
static double most_passes(const struct moec_profile *profile)
{
    const double share = (double)profile->n_sensitivity_window / profile->n_window;
    return 1 + profile->n_uniform + MOEC_CODES_COUNT + 1.1 * MOEC_FAST_PASSES * share;
}

static void test_fast_sensitivity__ranks_experts_like_the_exact_one(void **state)
{
    (void)state;
    struct moec_profile exact, fast;
    struct moec_profile_options options = options_make(MOEC_SENSITIVITY_EXACT);
    options.codes.bits = two_bits;
    options.codes.n_bits = 2;
    profile_make(MODEL, &options, &exact);
    options.measures.sensitivity = MOEC_SENSITIVITY_FAST;
    profile_make(MODEL, &options, &fast);

    assert_int_equal(exact.sensitivity, MOEC_SENSITIVITY_EXACT);
    assert_int_equal(fast.sensitivity, MOEC_SENSITIVITY_FAST);
    assert_true(fast.cost_passes <= most_passes(&fast));
    /* Both measure single experts on half of the windows. */
    assert_true(exact.cost_passes > 2 * fast.cost_passes);
    /* What both measure is the same. */
    assert_memory_equal(exact.baseline.nll, fast.baseline.nll, exact.n_window * sizeof(double));
    assert_memory_equal(exact.baseline.kl, fast.baseline.kl, exact.n_window * sizeof(double));
    for (uint32_t u = 0; u < exact.n_uniform; u++)
        assert_memory_equal(exact.uniform[u].kl, fast.uniform[u].kl, exact.n_window * sizeof(double));

    double *truth = divergences(&exact, 0, MOEC_PART_SEARCH);
    double *prefetch = divergences(&fast, 0, MOEC_PART_SEARCH);
    double rho = 0, worst = 1, sum_truth = 0, sum_prefetch = 0;
    const uint32_t n_expert = exact.n_expert, n = exact.n_moe_layer * n_expert;
    for (uint32_t s = 0; s < exact.n_moe_layer; s++) {
        MUST(moec_correlation_spearman(truth + s * n_expert, prefetch + s * n_expert, n_expert, &rho, &err));
        worst = fmin(worst, rho);
    }
    MUST(moec_correlation_spearman(truth, prefetch, n, &rho, &err));
    for (uint32_t i = 0; i < n; i++) {
        sum_truth += truth[i];
        sum_prefetch += prefetch[i];
    }
    print_message("rank correlation with exact KL at INT2: %.3f, worst layer %.3f; sum %.3f of the exact\n",
                  rho, worst, sum_prefetch / sum_truth);
    assert_true(rho > 0.9);
    assert_true(worst > 0.6);
    assert_true(sum_prefetch > 0.4 * sum_truth && sum_prefetch < 2.5 * sum_truth);
    for (uint32_t s = 0; s < exact.n_moe_layer; s++)
        for (uint32_t e = 0; e < n_expert; e++)
            assert_int_equal(moec_profile_expert_reached(&exact, s, e),
                             moec_profile_expert_reached(&fast, s, e));
    free(truth);
    free(prefetch);
    moec_profile_release(&exact);
    moec_profile_release(&fast);
}

static void test_fast_sensitivity__same_bytes_at_any_thread_count(void **state)
{
    (void)state;
    struct moec_profile profile;
    struct moec_profile_options options = plain_options();
    options.by.n_threads = 3;
    options.memory.work_bytes = 4 << 20;
    options.memory.cache_bytes = 1 << 20; /* experts are encoded again and again */
    profile_make(MODEL, &options, &profile);
    same_bytes_as_plain(&profile);
    assert_string_equal(profile.sensitivity_choice, "asked for");
    moec_profile_release(&profile);
}

/* Chunks of scores that begin and end within windows. */
static void test_fast_sensitivity__same_bytes_in_least_memory(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_profile profile;
    struct moec_profile_options options = plain_options();
    struct moec_error refused = {0};
    enum moec_status status = MOEC_ERR_BUDGET;
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    /* From a little less than what the refusal of next to nothing names. */
    options.memory.limit_bytes = 8 << 20;
    assert_int_equal(moec_profile_run(checkpoint, &options, &profile, &refused), MOEC_ERR_BUDGET);
    const char *named = strstr(refused.message, "raise --work-memory to ");
    assert_non_null(named);
    options.memory.limit_bytes = (strtoull(named + strlen("raise --work-memory to "), NULL, 10) - 2) << 20;
    for (; status == MOEC_ERR_BUDGET; options.memory.limit_bytes += 1 << 19)
        status = moec_profile_run(checkpoint, &options, &profile, NULL);
    assert_int_equal(status, MOEC_OK);
    moec_checkpoint_close(checkpoint);
    same_bytes_as_plain(&profile);
    moec_profile_release(&profile);
}

/* Fewer bits, larger local errors; every value says something or that there is nothing to say. */
static void test_fast_sensitivity__studies(void **state)
{
    (void)state;
    assert_true(plain.cost_passes <= most_passes(&plain));
    const struct moec_study *errors = study_of(&plain, "fast/local_error");
    assert_int_equal(errors->n_axis, 3);
    assert_int_equal(errors->axes[2].n, 4);
    for (uint32_t b = 0; b < 4; b++)
        assert_true(errors->axes[2].values[b] == all_bits[b]);
    const uint32_t n_expert = plain.n_moe_layer * plain.n_expert;
    uint32_t n_known = 0;
    for (uint32_t i = 0; i < n_expert; i++) {
        const double *error = errors->values + (size_t)i * 4;
        if (isnan(error[0]))
            continue;
        n_known++;
        assert_true(error[0] > error[1] && error[1] > error[2] && error[2] > error[3] && error[3] > 0);
    }
    assert_true(n_known > n_expert / 2);
    const struct moec_study *gain = study_of(&plain, "fast/gain");
    assert_int_equal(moec_study_count(gain), n_expert);
    for (uint32_t i = 0; i < n_expert; i++)
        assert_true(isfinite(gain->values[i]) && gain->values[i] > 0);
    assert_int_equal(moec_study_count(study_of(&plain, "fast/small_gain")), plain.n_moe_layer);
    assert_int_equal(moec_study_count(study_of(&plain, "fast/bits_gain")), 4);
    assert_true(study_of(&plain, "fast/bits_gain")->values[0] == 1);
}

/* A baseline of 16 bits has no error of its own; experts at other bits can only be worse. */
static void test_fast_sensitivity__sixteen_bit_baseline(void **state)
{
    (void)state;
    static const uint32_t bits[] = {8, 2};
    struct moec_profile profile;
    struct moec_profile_options options = plain_options();
    options.codes.bits = bits;
    options.codes.n_bits = 2;
    options.codes.baseline_bits = 16;
    profile_make(MODEL, &options, &profile);
    for (uint32_t b = 0; b < 2; b++) {
        double *kl = divergences(&profile, b, MOEC_PART_ALL);
        for (uint32_t i = 0; i < profile.n_moe_layer * profile.n_expert; i++)
            assert_true(kl[i] >= 0);
        free(kl);
    }
    moec_profile_release(&profile);
}

static void check_choice(double limit, uint8_t expected, const char *words)
{
    struct moec_profile profile;
    struct moec_profile_options options = options_make(MOEC_SENSITIVITY_AUTO);
    options.data.seq_len_tokens = 8;
    options.codes.bits = two_bits;
    options.codes.n_bits = 2;
    options.measures.time_limit_seconds = limit;
    profile_make(MODEL, &options, &profile);
    assert_int_equal(profile.sensitivity, expected);
    assert_non_null(strstr(profile.sensitivity_choice, words));
    assert_int_equal(moec_studies_find(&profile.studies, "fast/gain") != NULL,
                     expected == MOEC_SENSITIVITY_FAST);
    moec_profile_release(&profile);
}

static void test_fast_sensitivity__auto_keeps_the_time_limit(void **state)
{
    (void)state;
    check_choice(1e6, MOEC_SENSITIVITY_EXACT, "less than 1e+06 s");
    check_choice(1e-6, MOEC_SENSITIVITY_FAST, "more than 1e-06 s");
}

static enum moec_status stop(void *context, const char *phase, double done, double total)
{
    (void)context;
    (void)total;
    return strcmp(phase, "local errors") == 0 && done > 0.2 ? MOEC_ERR_CANCELLED : MOEC_OK;
}

static void test_fast_sensitivity__stops_when_told(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_profile profile;
    struct moec_error stopped = {0};
    const struct moec_progress progress = {.report = stop};
    struct moec_profile_options options = options_make(MOEC_SENSITIVITY_FAST);
    options.data.seq_len_tokens = 8;
    options.progress = &progress;
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    assert_int_equal(moec_profile_run(checkpoint, &options, &profile, &stopped), MOEC_ERR_CANCELLED);
    assert_null(profile.expert_kl);
    moec_checkpoint_close(checkpoint);
}

/* ---- which layers are perturbed ---- */

#define N_WINDOW 64

static void check_plan(const struct moec_config *config, const struct moec_windows *windows)
{
    struct moec_gain_plan plan;
    const uint32_t n_moe = moec_config_moe_count(config);
    uint64_t n_row = 0;
    moec_gain_plan_make(config, windows, &plan);
    assert_true((double)plan.cost <= MOEC_GAIN_PASSES * (double)moec_cost_pass(config, windows));
    assert_true(plan.n_layer >= 2 && plan.n_layer <= n_moe);
    assert_true((N_WINDOW + plan.every - 1) / plan.every >= MOEC_GAIN_WINDOWS);
    assert_int_equal(plan.small_every % plan.every, 0);
    assert_int_equal(plan.layers[0], 0);
    assert_int_equal(plan.layers[plan.n_layer - 1], n_moe - 1);
    for (uint32_t g = 1; g < plan.n_layer; g++)
        assert_true(plan.layers[g] > plan.layers[g - 1]);
    /* Layers are left out only where all on the fewest windows would cost too much. */
    if (plan.n_layer < n_moe)
        assert_int_equal(N_WINDOW / plan.every, MOEC_GAIN_WINDOWS);
    for (uint32_t w = 0; w < N_WINDOW; w++)
        n_row +=
            (w % plan.every == 0) * windows->scored[w] + (w % plan.small_every == 0) * windows->scored[w];
    assert_int_equal(moec_gain_plan_rows(&plan, windows), n_row * plan.n_layer);
    for (uint32_t s = 0; s < n_moe; s++) {
        const struct moec_gain_place place = moec_gain_plan_place(&plan, s);
        const double at =
            (1 - place.share) * plan.layers[place.before] + place.share * plan.layers[place.after];
        assert_true(fabs(at - s) < 1e-9);
        assert_true(place.share >= 0 && place.share < 1);
    }
}

static void test_gain_plan__costs_the_same_at_any_depth(void **state)
{
    (void)state;
    static const uint32_t depths[] = {2, 3, 6, 16, 24, 48, 94};
    struct moec_checkpoint *checkpoint = NULL;
    uint32_t scored[N_WINDOW], length[N_WINDOW];
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    struct moec_config config = *moec_checkpoint_config(checkpoint);
    for (uint32_t w = 0; w < N_WINDOW; w++) {
        scored[w] = w % 7 == 3 ? 40 : 255;
        length[w] = scored[w] + 1;
    }
    const struct moec_windows windows = {
        .n_window = N_WINDOW, .seq_len_tokens = 256, .scored = scored, .length = length};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
        config.n_layer = depths[i]; /* layers past the model's are of its first kind */
        check_plan(&config, &windows);
    }
    moec_checkpoint_close(checkpoint);
}

static void test_gain_plan__of_one_layer(void **state)
{
    (void)state;
    struct moec_checkpoint *checkpoint = NULL;
    struct moec_gain_plan plan;
    uint32_t scored[] = {9, 9, 9}, length[] = {10, 10, 10};
    MUST(moec_checkpoint_open(MODEL, &checkpoint, &err));
    struct moec_config config = *moec_checkpoint_config(checkpoint);
    config.n_layer = 1;
    const struct moec_windows windows = {
        .n_window = 3, .seq_len_tokens = 10, .scored = scored, .length = length};
    moec_gain_plan_make(&config, &windows, &plan);
    assert_int_equal(plan.n_layer, 1);
    assert_int_equal(plan.every, 1);
    const struct moec_gain_place place = moec_gain_plan_place(&plan, 0);
    assert_int_equal(place.before, 0);
    assert_int_equal(place.after, 0);
    assert_true(place.share == 0);
    moec_checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gain_plan__costs_the_same_at_any_depth),
        cmocka_unit_test(test_gain_plan__of_one_layer),
        cmocka_unit_test(test_fast_sensitivity__ranks_experts_like_the_exact_one),
        cmocka_unit_test(test_fast_sensitivity__same_bytes_at_any_thread_count),
        cmocka_unit_test(test_fast_sensitivity__same_bytes_in_least_memory),
        cmocka_unit_test(test_fast_sensitivity__studies),
        cmocka_unit_test(test_fast_sensitivity__sixteen_bit_baseline),
        cmocka_unit_test(test_fast_sensitivity__auto_keeps_the_time_limit),
        cmocka_unit_test(test_fast_sensitivity__stops_when_told),
    };
    return cmocka_run_group_tests(tests, plain_make, plain_release);
}
