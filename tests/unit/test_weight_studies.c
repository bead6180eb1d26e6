/* Studies of weights and ranks: what they report is what evaluating each changed model alone gives. */
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_model.h"

#include "formats/base/half.h"
#include "profiler/evaluate/score.h"
#include "profiler/profile/activations.h"
#include "profiler/profile/profile_run.h"
#include "profiler/profile/weight_studies.h"

#include <math.h>

#define MODEL "datasets/sample/model"
#define DATA  "datasets/sample/calibration.txt"

static const uint32_t bits[] = {2, 4};

struct profiled {
    struct moec_checkpoint *checkpoint;
    struct moec_profile profile;
    struct moec_profile_options options;
};

static struct profiled profile_make(const char *studies, int n_threads)
{
    struct profiled made = {.options = {.data = {.task = moec_task_text(),
                                                 .path = DATA,
                                                 .seq_len_tokens = 12,
                                                 .parts = {.n_window = 32},
                                                 .seed = 9},
                                        .codes = {.bits = bits, .n_bits = 2, .baseline_bits = 4},
                                        .by = {.kernels = moec_kernels_best(), .n_threads = n_threads}}};
    MUST(moec_weight_studies_parse(studies, &made.options.measures.studies, &err));
    MUST(moec_checkpoint_open(MODEL, &made.checkpoint, &err));
    MUST(moec_profile_run(made.checkpoint, &made.options, &made.profile, &err));
    return made;
}

static void profile_free(struct profiled *made)
{
    moec_profile_release(&made->profile);
    moec_checkpoint_close(made->checkpoint);
}

/* A model of the same checkpoint to evaluate as one likes. */
struct bench {
    struct moec_windows windows;
    struct moec_model *model;
    struct moec_variants *variants;
    struct moec_scorer *scorer;
    struct moec_measure measure;
};

/* The scorer borrows bench->windows. */
static void bench_open(struct bench *bench, const struct profiled *made, uint32_t dense_bits)
{
    struct moec_dense dense;
    const struct moec_scorer_options scoring = {.by = {.kernels = moec_kernels_best(), .n_threads = 1}};
    MUST(moec_windows_from_profile(&made->profile, MOEC_PART_ALL, &bench->windows, &err));
    bench->windows.n_window = made->profile.n_window; /* studies leave the certificate's alone */
    MUST(dense_load(made->checkpoint, dense_bits, 0, &dense, &err));
    MUST(moec_model_create(moec_checkpoint_config(made->checkpoint), &dense, &bench->model, &err));
    MUST(moec_variants_create(made->checkpoint,
                              &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, 1},
                              &bench->variants, &err));
    MUST(moec_scorer_create(bench->model, moec_variants_experts(bench->variants), &bench->windows, &scoring,
                            &bench->scorer, &err));
    bench->measure = (struct moec_measure){calloc(bench->windows.n_window, sizeof(double)), NULL};
}

static void bench_close(struct bench *bench)
{
    free(bench->measure.nll);
    moec_scorer_free(bench->scorer);
    moec_variants_free(bench->variants);
    moec_model_free(bench->model);
    moec_windows_release(&bench->windows);
}

static const struct moec_study *study_of(const struct profiled *made, const char *name)
{
    const struct moec_study *study = moec_studies_find(&made->profile.studies, name);
    if (study == NULL)
        fail_msg("no study '%s'", name);
    return study;
}

/* The value is the loss that the bench measures now, to the last bits of exp. */
static void check_loss(const struct profiled *made, const char *name, uint64_t at, double expected)
{
    const double value = study_of(made, name)->values[at];
    if (!(fabs(value - expected) <= 1e-12 * (1 + fabs(expected))))
        fail_msg("%s, value %u: %.17g, expected %.17g", name, (unsigned)at, value, expected);
}

static void check_value(const struct profiled *made, const struct bench *bench, const char *name, uint64_t at)
{
    check_loss(made, name, at, moec_profile_loss(&made->profile, bench->measure.nll));
}

static void test_weight_studies__are_full_evaluations(void **state)
{
    (void)state;
    struct profiled made = profile_make("layers,dense,projections,quantizers", 2);
    const struct moec_profile *profile = &made.profile;
    struct bench bench;
    bench_open(&bench, &made, 16);
    const uint32_t source = moec_variants_source_bits(bench.variants);
    for (uint32_t s = 0; s < profile->n_moe_layer; s += profile->n_moe_layer - 1) {
        MUST(moec_variants_assign_all(bench.variants, source, &err));
        for (uint32_t e = 0; e < profile->n_expert; e++)
            MUST(moec_variants_assign_one(bench.variants, profile->moe_layers[s], e, 2, &err));
        MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
        check_value(&made, &bench, "layer/loss", (uint64_t)s * 2);
    }
    /* By another way than a code: up from 2 bits, the rest from the source. */
    MUST(moec_variants_set_rest(bench.variants, source, &err));
    MUST(
        moec_variants_assign_all(bench.variants, moec_variants_projection_code(2, MOEC_PROJECTION_UP), &err));
    MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
    check_value(&made, &bench, "projection/loss", 2);
    MUST(moec_variants_assign_all(bench.variants, 4, &err));
    MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
    check_value(&made, &bench, "dense/loss", 1);
    check_value(&made, &bench, "quantizer/loss", 1); /* the profile's own */
    const struct moec_codec codec = {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 64};
    MUST(moec_variants_set_codec(bench.variants, moec_codec_bits(codec), codec, &err));
    MUST(moec_variants_assign_all(bench.variants, 2, &err));
    MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
    check_value(&made, &bench, "quantizer/loss", (1 * 4 + 2) * 2); /* linear asymmetric, 64, 2 bits */
    assert_true(study_of(&made, "quantizer/bits_per_weight")->values[(1 * 4 + 2) * 2] == 2 + 24 / 64.0);
    bench_close(&bench);
    bench_open(&bench, &made, 4);
    MUST(moec_variants_assign_all(bench.variants, 4, &err));
    MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
    check_value(&made, &bench, "dense/loss", 3);
    check_value(&made, &bench, "quantizer_all/loss", 1); /* linear symmetric, 4 bits */
    bench_close(&bench);
    profile_free(&made);
}

static void test_weight_studies__do_not_depend_on_threads_and_cost_what_was_said(void **state)
{
    (void)state;
    struct profiled bare = profile_make("none", 2), one = profile_make("ranks,sparsity", 1),
                    three = profile_make("ranks,sparsity", 3);
    for (uint32_t i = 0; i < one.profile.studies.n; i++) {
        const struct moec_study *study = &one.profile.studies.items[i];
        const struct moec_study *again = study_of(&three, study->name);
        assert_memory_equal(study->values, again->values, moec_study_count(study) * sizeof(double));
    }
    assert_null(moec_studies_find(&bare.profile.studies, "rank/loss"));
    const struct moec_config *config = &one.profile.config;
    /* Said in evaluations of the measured windows, paid in those of all that were drawn. */
    const double share = one.profile.n_window / (double)one.profile.n_drawn;
    const double said = share * (moec_weight_study_passes(MOEC_WEIGHT_STUDY_RANKS, config, &one.options) +
                                 moec_weight_study_passes(MOEC_WEIGHT_STUDY_SPARSITY, config, &one.options));
    const double paid = one.profile.cost_passes - bare.profile.cost_passes;
    assert_true(fabs(paid - said) < 0.05 * said);
    assert_true(one.profile.cost_passes == three.profile.cost_passes);

    /* Losses of ranks: the last rank dropped is the last rank cut, and rank 0 is worth most. */
    const struct moec_study *ranks = study_of(&one, "rank/loss");
    const uint32_t k = config->top_k;
    assert_string_equal(ranks->axes[0].labels[2], "cut");
    assert_true(ranks->values[3 * k - 1] == ranks->values[k - 1]);
    assert_true(ranks->values[0] > ranks->values[k - 1]);
    assert_true(ranks->values[2 * k] > ranks->values[0]);
    /* A random expert in place of the first is worse than the best of the others. */
    assert_string_equal(ranks->axes[0].labels[3], "random swap");
    assert_true(ranks->values[3 * k] > ranks->values[k]);
    /* Kinds of small activations: three by expert, and one by neuron, which differs from its kind by expert.
     */
    const struct moec_study *sparsity = study_of(&one, "sparsity/loss_high");
    assert_int_equal(sparsity->axes[0].n, 4);
    assert_string_equal(sparsity->axes[0].labels[3], "gate by neuron");
    assert_int_equal(sparsity->axes[1].n, 5);
    for (uint32_t i = 0; i < 20; i++)
        assert_true(isfinite(sparsity->values[i]));
    assert_true(sparsity->values[15] != sparsity->values[0]);
    profile_free(&bare);
    profile_free(&one);
    profile_free(&three);
}

/* Some of them, each evaluated by itself: the baseline, but for one projection of one expert. */
static void test_weight_studies__projections_of_single_experts_are_full_evaluations(void **state)
{
    (void)state;
    struct profiled made = profile_make("none", 2);
    struct moec_profile_options options = made.options;
    struct bench bench;
    options.measures.projections = true;
    moec_profile_release(&made.profile);
    MUST(moec_profile_run(made.checkpoint, &options, &made.profile, &err));
    bench_open(&bench, &made, 16);
    const struct moec_profile *profile = &made.profile;
    const uint32_t n_expert = profile->n_expert;
    assert_int_equal(moec_study_count(study_of(&made, "projection/expert_loss")),
                     profile->n_moe_layer * n_expert * MOEC_PROJECTION_COUNT);
    MUST(moec_variants_set_rest(bench.variants, 4, &err));
    for (uint32_t at = 0; at < profile->n_moe_layer * n_expert * MOEC_PROJECTION_COUNT; at += 25) {
        const uint32_t p = at % MOEC_PROJECTION_COUNT, e = at / MOEC_PROJECTION_COUNT % n_expert;
        const uint32_t layer = profile->moe_layers[at / MOEC_PROJECTION_COUNT / n_expert];
        MUST(moec_variants_assign_all(bench.variants, 4, &err));
        MUST(moec_variants_assign_one(bench.variants, layer, e,
                                      moec_variants_projection_code(2, (enum moec_projection)p), &err));
        MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
        check_loss(&made, "projection/expert_loss", at,
                   moec_profile_sensitivity_loss(&made.profile, bench.measure.nll));
    }
    bench_close(&bench);
    profile_free(&made);
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* What the down projection reads of a neuron, from both products. */
static double down_input(uint8_t activation, double gate, double up)
{
    switch (activation) {
    case MOEC_ACTIVATION_GELU_TANH:
        return 0.5 * gate * (1 + tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    case MOEC_ACTIVATION_RELU:
        return gate > 0 ? gate * up : 0;
    case MOEC_ACTIVATION_CLAMPED_SILU:
        gate = fmin(gate, 10);
        up = fmax(fmin(up, 10), -10);
        break;
    default:
        break;
    }
    return gate / (1 + exp(-gate)) * up;
}

/* An expert source whose experts compute another activation than the model's. */
struct reactivated {
    struct moec_experts experts; /* first */
    struct moec_experts *inner;
    uint8_t activation;
};

static enum moec_status reactivated_acquire(struct moec_experts *self, struct moec_expert_request request,
                                            struct moec_mlp *mlp, struct moec_error *err)
{
    const struct reactivated *source = (const struct reactivated *)self;
    MOEC_TRY(source->inner->ops->acquire(source->inner, request, mlp, err));
    mlp->activation = source->activation;
    return MOEC_OK;
}

static void reactivated_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct reactivated *source = (struct reactivated *)self;
    source->inner->ops->release(source->inner, request);
}

static void check_sorted(const struct moec_activations *activations, enum moec_projection projection,
                         float *values, size_t n)
{
    qsort(values, n, sizeof *values, by_size);
    for (double q = 0.1; q < 1; q += 0.2) {
        const double found = moec_activations_quantile(activations, 1, projection, q);
        const size_t at = (size_t)(q * (double)n);
        assert_true(found > 0.99 * values[at - 2] && found < 1.01 * values[at + 2]);
    }
}

/* Quantiles of counted activations are those of sorted ones, to the width of a bin. */
static void check_quantiles(uint8_t activation)
{
    enum { N_TOK = 40 };
    struct fixture fixture = fixture_open("mixtral");
    const struct moec_config *config = &fixture.model->config;
    const size_t stride = moec_forward_stride(config), n_ff = config->n_ff_expert;
    struct moec_error err = {0};
    struct moec_forward forward = {0};
    struct moec_activations *activations = NULL;
    static const struct moec_experts_ops ops = {.acquire = reactivated_acquire,
                                                .release = reactivated_release};
    struct reactivated source = {{.ops = &ops}, moec_variants_experts(fixture.variants), activation};
    struct moec_experts *experts = &source.experts;
    float *input = aligned_alloc(64, N_TOK * stride * sizeof(float)), *sorted = calloc(N_TOK * n_ff, 4);
    uint32_t *chosen = calloc(N_TOK * config->top_k, sizeof(uint32_t));
    float *weights = calloc(N_TOK * config->top_k, sizeof(float));
    for (size_t i = 0; i < N_TOK * stride; i++)
        input[i] = i % stride < config->n_embd ? sinf((float)(i * i % 1009)) : 0;
    for (uint32_t i = 0; i < N_TOK * config->top_k; i++)
        chosen[i] = i % config->top_k + (i / config->top_k % 2); /* 0 and 1, or 1 and 2 */
    assert_ok(moec_forward_init(&forward, fixture.model, moec_kernels_best(), 2, experts, N_TOK, &err), err);
    assert_ok(moec_activations_create(&forward, experts, &activations, &err), err);
    assert_ok(moec_activations_add(activations, 0, N_TOK, input,
                                   &(struct moec_token_choices){chosen, weights}, &err),
              err);
    moec_activations_clear(activations);
    assert_ok(moec_activations_add(activations, 0, N_TOK / 4, input,
                                   &(struct moec_token_choices){chosen, weights}, &err),
              err);
    assert_ok(moec_activations_add(activations, 0, N_TOK - N_TOK / 4, input + N_TOK / 4 * stride,
                                   &(struct moec_token_choices){chosen + N_TOK / 4 * config->top_k,
                                                                weights + N_TOK / 4 * config->top_k},
                                   &err),
              err);
    struct moec_mlp mlp;
    double *means = calloc(n_ff, sizeof *means), *by_hand = calloc(n_ff, sizeof *by_hand);
    const uint32_t n_kept = 7;
    const float least = 0.3f;
    uint64_t n_active = 0, n_turn = 0, active_by_hand = 0, turns_by_hand = 0;
    float before = 0;
    float *scaled = calloc(N_TOK * n_ff, sizeof *scaled);
    uint16_t *scales = calloc(config->n_expert * n_ff, sizeof *scales);
    for (size_t i = 0; i < n_ff; i++)
        scales[n_ff + i] = moec_f32_to_bf16((float)(1 + i % 5)); /* of expert 1 */
    assert_ok(experts->ops->acquire(experts, moec_expert_request_of(0, 1), &mlp, &err), err);
    for (size_t i = 0; i < N_TOK * n_ff; i++) {
        float gate = 0, up = 0;
        moec_kernels_scalar.dot_encoded(&mlp.gate, (uint32_t)(i % n_ff), 1, input + i / n_ff * stride, &gate);
        moec_kernels_scalar.dot_encoded(&mlp.up, (uint32_t)(i % n_ff), 1, input + i / n_ff * stride, &up);
        sorted[i] = (float)fabs(down_input(activation, gate, up));
        scaled[i] = (float)fabs(down_input(activation, gate, 1)) * (float)(1 + i % n_ff % 5);
        by_hand[i % n_ff] += fabs((double)up) / (double)N_TOK;
        /* Of the first tokens, which are all with expert 1. */
        if (i < n_kept * n_ff && i % n_ff > 0 && fabsf(before) >= least) {
            active_by_hand++;
            turns_by_hand += fabsf(up) < least;
        }
        before = up;
    }
    experts->ops->release(experts, moec_expert_request_of(0, 1));
    check_sorted(activations, MOEC_PROJECTION_DOWN, sorted, N_TOK * n_ff);
    moec_activations_up_means(activations, 1, means);
    for (size_t i = 0; i < n_ff; i++)
        assert_true(fabs(means[i] - by_hand[i]) < 1e-6 * by_hand[i]);
    moec_activations_clear(activations);
    moec_activations_scale_gate(activations, scales);
    assert_ok(moec_activations_keep_up(activations, n_kept, &err), err);
    assert_ok(moec_activations_add(activations, 0, N_TOK, input,
                                   &(struct moec_token_choices){chosen, weights}, &err),
              err);
    check_sorted(activations, MOEC_PROJECTION_GATE, scaled, N_TOK * n_ff);
    moec_activations_count_turns(activations, 1, least, &n_active, &n_turn);
    assert_int_equal(n_active, active_by_hand);
    assert_int_equal(n_turn, turns_by_hand);
    assert_true(n_turn > 0 && n_turn < n_active);
    free(scales);
    free(scaled);
    free(by_hand);
    free(means);
    assert_true(moec_activations_quantile(activations, 3, MOEC_PROJECTION_UP, 0.9) == 0);
    moec_activations_free(activations);
    free(weights);
    free(chosen);
    free(sorted);
    free(input);
    moec_forward_release(&forward);
    fixture_close(&fixture);
}

static void test_weight_studies__thresholds_are_quantiles(void **state)
{
    static const uint8_t activations[] = {MOEC_ACTIVATION_SILU, MOEC_ACTIVATION_GELU_TANH,
                                          MOEC_ACTIVATION_CLAMPED_SILU};
    (void)state;
    for (size_t i = 0; i < sizeof activations; i++)
        check_quantiles(activations[i]);
}

/* The token's best but for the last, and then the expert of the trial where it is not among them. */
struct tried {
    uint32_t layer, expert;
};

static void choose_tried(const void *context, const struct moec_scored_token *token, uint32_t *experts,
                         bool *skips)
{
    const struct tried *tried = context;
    float values[MOEC_MAX_TOP_K];
    bool is_there = false;
    (void)skips;
    moec_choose_best(token, token->top_k, experts, values);
    for (uint32_t rank = 0; rank < token->top_k; rank++)
        is_there |= experts[rank] == tried->expert;
    if (token->layer == tried->layer && !is_there)
        experts[token->top_k - 1] = tried->expert;
}

static void test_weight_studies__choices_are_full_evaluations(void **state)
{
    (void)state;
    struct profiled bare = profile_make("none", 1), made = profile_make("choices", 2);
    const struct moec_profile *profile = &made.profile;
    const double share = profile->n_window / (double)profile->n_drawn;
    const double said =
        share * moec_weight_study_passes(MOEC_WEIGHT_STUDY_CHOICES, &profile->config, &made.options);
    const double paid = profile->cost_passes - bare.profile.cost_passes;
    assert_true(fabs(paid - said) < 0.05 * said);
    struct bench bench;
    bench_open(&bench, &made, 16);
    MUST(moec_variants_assign_all(bench.variants, moec_variants_source_bits(bench.variants), &err));
    MUST(moec_scorer_run(bench.scorer, &bench.measure, NULL, &err));
    const uint64_t n = moec_windows_scored_count(&bench.windows);
    const double *nll = moec_scorer_token_nll(bench.scorer);
    double *original = calloc(n, sizeof *original), *least = calloc(n, sizeof *least), sum = 0, gain = 0;
    memcpy(original, nll, n * sizeof *nll);
    memcpy(least, nll, n * sizeof *nll);
    for (uint64_t t = 0; t < n; t++)
        sum += original[t];
    for (uint32_t w = 0; w < bench.windows.n_window; w++)
        sum -= bench.measure.nll[w];
    assert_true(fabs(sum) < 1e-6); /* tokens are those of the windows */
    const uint32_t s = 1;
    for (uint32_t e = 0; e < profile->n_expert; e++) {
        const struct tried tried = {profile->moe_layers[s], e};
        const struct moec_choice choice = {choose_tried, &tried};
        const struct moec_scorer_variation variation = {.choice = &choice};
        MUST(moec_scorer_run_varied(bench.scorer, &variation, &bench.measure, NULL, &err));
        for (uint64_t t = 0; t < n; t++)
            least[t] = nll[t] < least[t] ? nll[t] : least[t];
    }
    uint64_t n_right = 0;
    for (uint64_t t = 0; t < n; t++) {
        n_right += least[t] == original[t];
        gain += original[t] - least[t];
    }
    assert_true(n_right > 0 && n_right < n);
    assert_true(study_of(&made, "choice/right")->values[s] == (double)n_right / (double)n);
    assert_true(study_of(&made, "choice/gain")->values[s] == gain / (double)n);
    free(original);
    free(least);
    bench_close(&bench);
    profile_free(&made);
    profile_free(&bare);
}

static void test_weight_studies__read_lists(void **state)
{
    (void)state;
    uint32_t studies = 0;
    MUST(moec_weight_studies_parse("ranks,layer", &studies, &err));
    assert_int_equal(studies, 1u << MOEC_WEIGHT_STUDY_RANKS | 1u << MOEC_WEIGHT_STUDY_LAYERS);
    MUST(moec_weight_studies_parse("all", &studies, &err));
    assert_int_equal(studies, (1u << MOEC_WEIGHT_STUDY_CHOICES) - 1);
    MUST(moec_weight_studies_parse("choices", &studies, &err));
    assert_int_equal(studies, 1u << MOEC_WEIGHT_STUDY_CHOICES);
    MUST(moec_weight_studies_parse("none", &studies, &err));
    assert_int_equal(studies, 0);
    static const char *const wrong[] = {"", "ran", "ranks,", "all;none", "projections of single experts"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_error err = {0};
        assert_int_equal(moec_weight_studies_parse(wrong[i], &studies, &err), MOEC_ERR_USAGE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight_studies__are_full_evaluations),
        cmocka_unit_test(test_weight_studies__do_not_depend_on_threads_and_cost_what_was_said),
        cmocka_unit_test(test_weight_studies__projections_of_single_experts_are_full_evaluations),
        cmocka_unit_test(test_weight_studies__choices_are_full_evaluations),
        cmocka_unit_test(test_weight_studies__thresholds_are_quantiles),
        cmocka_unit_test(test_weight_studies__read_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
