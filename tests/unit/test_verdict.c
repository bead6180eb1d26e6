/* Verdict, coverage and planned mixtures on profiles whose answers are known. */
#include "tests/unit/temporary.h"

#include "profiler/profile/mixed.h"
#include "profiler/profile/mixed_plan.h"
#include "profiler/profile/verdict.h"
#include "profiler/routing/coverage.h"
#include "tests/unit/synthetic_profile.h"

#include <math.h>

static const struct synthetic_shape shape = {.n_dense = 1,
                                             .n_moe_layer = 2,
                                             .n_expert = 4,
                                             .top_k = 2,
                                             .n_window = 40,
                                             .seq_len_tokens = 12,
                                             .n_bits = 3,
                                             .n_uniform = 4,
                                             .n_key = 4};

/* Known effects: KL and NLL of expert i at 2, 3 and 8 bits differ from the baseline's by effect[i] times 1,
 * 0.1 and -0.01 nats a token in every window, and uniform 2 bits by `joint` times their sum. */
static const double effects[8] = {0.04, 0.001, 0.002, 0.003, 0.0005, 0.0006, 0.0007, 0.0008};
static const double scales[3] = {1, 0.1, -0.01};
#define SUM_EFFECTS (0.04 + 0.001 + 0.002 + 0.003 + 0.0005 + 0.0006 + 0.0007 + 0.0008)

static void shift(const struct moec_profile *p, const struct moec_measure *from, double by, double *nll,
                  double *kl)
{
    for (uint32_t w = 0; w < p->n_window; w++) {
        nll[w] = from->nll[w] + by * p->window_scored[w];
        kl[w] = from->kl[w] + by * p->window_scored[w];
    }
}

static void make(struct moec_profile *p, double joint)
{
    struct moec_error err = {0};
    static const double uniform[4] = {1, 0.1, 0, -0.01};
    assert_status(synthetic_profile(&shape, p), MOEC_OK, err);
    for (uint32_t w = 0; w < p->n_window; w++)
        p->reference.kl[w] = 0;
    shift(p, &p->reference, 0.002, p->baseline.nll, p->baseline.kl);
    for (uint32_t u = 0; u < 4; u++)
        shift(p, &p->baseline, (u == 0 ? joint : 1) * uniform[u] * SUM_EFFECTS, p->uniform[u].nll,
              p->uniform[u].kl);
    for (uint32_t i = 0; i < 8; i++)
        for (uint32_t b = 0; b < 3; b++)
            shift(p, &p->baseline, effects[i] * scales[b],
                  moec_profile_expert_row(p, p->expert_nll, i / 4, i % 4, b),
                  moec_profile_expert_row(p, p->expert_kl, i / 4, i % 4, b));
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 + 1e-6 * fabs(b);
}

static const char *text_with(const struct moec_paragraphs *text, const char *part)
{
    for (uint32_t i = 0; i < text->n; i++)
        if (strstr(text->items[i], part) != NULL)
            return text->items[i];
    return NULL;
}

static void assert_says(const struct moec_paragraphs *text, const char *part)
{
    if (text_with(text, part) != NULL)
        return;
    for (uint32_t i = 0; i < text->n; i++)
        print_message("# %s\n", text->items[i]);
    fail_msg("no paragraph says '%s'", part);
}

/* ---- verdict ---- */

static void test_verdict__spread_noise_and_additivity(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile p;
    struct moec_verdict v;
    struct moec_paragraphs text = {0};
    make(&p, 1.5);
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_int_equal(v.n_reached, 8);
    assert_int_equal(v.n_bits, 3);
    const struct moec_verdict_bits *two = &v.bits[0];
    assert_true(near(two->low, 0.0005) && near(two->median, 0.0008) && near(two->high, 0.04));
    assert_true(near(two->ratio, 80) && near(two->largest, 0.04));
    assert_int_equal(two->largest_layer, p.moe_layers[0]);
    assert_int_equal(two->largest_expert, 0);
    assert_int_equal(two->most_layer, p.moe_layers[0]);
    assert_int_equal(two->least_layer, p.moe_layers[1]);
    double mean = SUM_EFFECTS / 8, all = 0, first = 0.046 / 4, second = 0.0026 / 4;
    for (int i = 0; i < 8; i++)
        all += (effects[i] - mean) * (effects[i] - mean);
    assert_true(near(two->layer_share,
                     4 * ((first - mean) * (first - mean) + (second - mean) * (second - mean)) / all));
    assert_true(near(two->additivity, 1.5) && near(two->joint_kl, 1.5 * SUM_EFFECTS));
    assert_true(near(two->sum_loss, expm1(SUM_EFFECTS)));
    /* Every window agrees, so that no difference is noise. */
    assert_int_equal(two->n_worse, 8);
    assert_true(two->noise < 1e-12);
    assert_true(near(v.bits[1].additivity, 1));
    assert_int_equal(v.bits[2].n_better, 8);
    assert_true(near(v.bits[2].high, 0.0004)); /* the gain */
    moec_verdict_describe(&p, &v, &text);
    assert_says(&text, "is 80 times");
    assert_says(&text, "1.50 times");
    assert_says(&text, "errors compound");
    assert_says(&text, "8 of 8 experts lose more than noise");
    assert_says(&text, "holds no mixed assignment");
    moec_profile_release(&p);
}

static void test_verdict__noise_hides_differences(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile p;
    struct moec_verdict v;
    make(&p, 1);
    for (uint32_t i = 0; i < 8; i++) {
        double *nll = moec_profile_expert_row(&p, p.expert_nll, i / 4, i % 4, 0);
        for (uint32_t w = 0; w < p.n_window; w++)
            nll[w] += (w % 4 < 2 ? 0.02 : -0.02) * p.window_scored[w];
    }
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_int_equal(v.bits[0].n_worse, 1); /* 0.04 stands out of the noise, 0.003 does not */
    assert_int_equal(v.bits[0].n_unclear, 7);
    assert_true(v.bits[0].noise > 0.001 && v.bits[0].noise < 0.02);
    p.sensitivity = MOEC_SENSITIVITY_FAST;
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_true(v.is_estimated && isnan(v.bits[0].noise));
    moec_profile_release(&p);
}

static void add_values(struct moec_profile *p, const char *name, double a, double b, double c)
{
    struct moec_error err = {0};
    double values[3] = {a, b, c};
    struct moec_study study = {
        .n_axis = 1,
        .axes = {{.name = "target", .n = 3, .values = (double *)(uintptr_t)moec_mixed_targets}},
        .values = values};
    (void)snprintf(study.name, sizeof study.name, "mixed/%s", name);
    assert_status(moec_profile_add_study(p, &study, NULL, &err), MOEC_OK, err);
}

static void test_verdict__savings(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile p;
    struct moec_verdict v;
    struct moec_paragraphs text = {0};
    make(&p, 1);
    add_values(&p, "bytes", 90, 80, 75);
    add_values(&p, "loss", 0.009, 0.021, NAN);
    add_values(&p, "predicted_loss", 0.008, 0.02, 0.049);
    add_values(&p, "loss_high", 0.012, 0.03, NAN);
    add_values(&p, "uniform_bits", NAN, 4, 4);
    add_values(&p, "uniform_bytes", NAN, 100, 100);
    add_values(&p, "blind_bytes", NAN, 99, 90);
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_true(v.has_mixed && isnan(v.targets[0].saving) && v.targets[0].uniform_bits == 0);
    assert_true(v.targets[1].is_measured && !v.targets[1].is_met && near(v.targets[1].saving, 0.2));
    assert_true(!v.targets[2].is_measured && v.targets[2].is_met && near(v.targets[2].blind_saving, 0.1));
    moec_verdict_describe(&p, &v, &text);
    assert_says(&text, "is predicted to save 25%");
    assert_says(&text, "over the target: no plan that was tried stayed within it");
    assert_says(&text, "no measured uniform bitwidth stays within this limit");
    add_values(&p, "bytes", 90, 80, 100);
    text.n = 0;
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    moec_verdict_describe(&p, &v, &text);
    assert_says(&text, "saves nothing on this model and data");
    moec_profile_release(&p);
}

static void add_codes(struct moec_profile *p, const char *name, double a, double b)
{
    struct moec_error err = {0};
    char labels[3][MOEC_STUDY_LABEL] = {"int2 trellis channel", "int3 asymmetric nested g64", "others"};
    double values[3] = {a, b, NAN};
    struct moec_study study = {
        .n_axis = 1, .axes = {{.name = "codes", .n = 3, .labels = labels}}, .values = values};
    (void)snprintf(study.name, sizeof study.name, "codes/%s", name);
    assert_status(moec_profile_add_study(p, &study, NULL, &err), MOEC_OK, err);
}

/* The verdict is about compile's codes; the profile's own come second. */
static void test_verdict__codes_of_compile(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile p;
    struct moec_verdict v;
    struct moec_paragraphs text = {0};
    make(&p, 1);
    add_values(&p, "bytes", 90, 80, 75);
    add_values(&p, "loss", 0.009, 0.019, 0.04);
    add_values(&p, "loss_high", 0.012, 0.03, 0.05);
    add_values(&p, "uniform_bits", 8, 4, 4);
    add_values(&p, "uniform_bytes", 100, 100, 100);
    add_values(&p, "blind_bytes", 99, 99, 90);
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_false(v.has_codes);
    moec_verdict_describe(&p, &v, &text);
    assert_says(&text,
                "Verdict: with linear quantization, which EdgeMoE uses, giving experts different bitwidths "
                "saves 10 to 25%");
    assert_says(&text, "has not measured; profile again");
    add_codes(&p, "bits", 2, 3);
    add_codes(&p, "bytes", 800, 1200);
    add_codes(&p, "kl", 0.014, 0.0035);
    add_codes(&p, "loss", 0.0169, 0.0043);
    add_codes(&p, "loss_high", 0.018, 0.005);
    text.n = 0;
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_true(v.has_codes && v.singles[0].bits == 3 && v.singles[1].bits == 2 && v.singles[2].bits == 2);
    assert_string_equal(v.singles[1].codes, "int2 trellis channel");
    /* At 1 % the most sensitive expert alone gets the third bit, at 2 % none needs it. */
    assert_int_equal(v.singles[0].mixed_bytes, 850);
    assert_true(near(v.singles[0].saving, 1 - 850.0 / 1200) && v.singles[1].saving == 0);
    moec_verdict_describe(&p, &v, &text);
    assert_says(
        &text,
        "with compile's default quantization, all experts at one bitwidth need 3 bits to stay within 1% "
        "loss, 2 bits to stay within 2% loss and 2 bits to stay within 5% loss. Choosing the bitwidth by "
        "expert is predicted to save up to 29% of these bytes. With linear "
        "quantization, which EdgeMoE uses, ");
    assert_says(&text, "For a loss limit of 2%: all experts at int2 trellis channel take 0.0008 MB and lose "
                       "1.69% (upper end 1.80%); different bitwidths are predicted to save nothing. With "
                       "linear quantization, experts take");
    assert_says(&text, "The results below are for linear quantization");
    /* What no profile has is not used. */
    add_codes(&p, "bits", 3, 2);
    assert_status(moec_verdict_make(&p, &v, &err), MOEC_OK, err);
    assert_false(v.has_codes);
    moec_profile_release(&p);
}

/* ---- plans ---- */

static void test_verdict__plans_spend_where_it_counts(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile p;
    struct moec_mixed_model model;
    struct moec_mixed_plan plan;
    make(&p, 1.5);
    assert_status(moec_mixed_model_make(&p, &model, &err), MOEC_OK, err);
    assert_int_equal(model.n_option, 4);
    assert_int_equal(model.bits[2], 4);
    assert_true(near(model.additivity[0], 1.5) && near(model.additivity[1], 1));
    /* Uniform assignments are predicted as they were measured. */
    uint8_t uniform[8];
    for (uint32_t o = 0; o < 4; o++) {
        memset(uniform, (int)model.bits[o], sizeof uniform);
        assert_true(near(moec_mixed_predict(&model, uniform), model.kl[o]));
        assert_true(near(moec_mixed_loss(&model, model.kl[o]), model.loss[o]));
        assert_true(near(moec_mixed_kl(&model, model.loss[o]), model.kl[o]));
        assert_true(near(moec_mixed_blind_bytes(&model, model.kl[o]), 8 * (double)model.record_bytes[o]));
    }
    memset(uniform, 5, sizeof uniform);
    assert_true(isnan(moec_mixed_predict(&model, uniform)));
    double before = INFINITY;
    uint64_t bytes = 0;
    for (double budget = 0.1; budget > 0.0001; budget *= 0.7) {
        assert_status(moec_mixed_plan(&model, budget, &plan, &err), MOEC_OK, err);
        assert_true(near(plan.kl, moec_mixed_predict(&model, plan.assignment)));
        assert_true(plan.kl <= before && plan.n_bytes >= bytes);
        assert_true(plan.kl <= budget || plan.kl < 0.0017); /* all at 8 bits */
        /* No expert has fewer bits than one that is less sensitive. */
        for (uint32_t i = 0; i < 8; i++)
            for (uint32_t j = 0; j < 8; j++)
                assert_true(effects[i] <= effects[j] || plan.assignment[i] >= plan.assignment[j]);
        before = plan.kl;
        bytes = plan.n_bytes;
        moec_mixed_plan_release(&plan);
    }
    assert_status(moec_mixed_plan(&model, 0.02, &plan, &err), MOEC_OK, err);
    assert_true(plan.assignment[0] > 2 && plan.assignment[4] == 2);
    moec_mixed_plan_release(&plan);
    moec_mixed_model_release(&model);
    moec_profile_release(&p);
}

/* ---- coverage ---- */

static void test_verdict__coverage(void **state)
{
    (void)state;
    struct moec_error err = {0};
    struct moec_profile p;
    struct moec_coverage c;
    struct moec_paragraphs text = {0};
    make(&p, 1);
    /* Everybody chooses experts 0 and 1, but for expert 2 of layer 0 in the first four windows and expert 3
     * of layer 1 never; expert 3 of layer 0 in every window, twice. */
    memset(p.activations, 0, 8 * sizeof *p.activations);
    uint64_t t = 0;
    for (uint32_t w = 0; w < p.n_window; w++)
        for (uint32_t i = 0; i < p.window_length[w]; i++, t++)
            for (uint32_t s = 0; s < 2; s++) {
                uint16_t *choice = p.trace_experts + (t * 2 + s) * 2;
                choice[0] = 0;
                choice[1] = (uint16_t)(i < 2 ? (s == 0 ? 3 : 2) : i == 2 && s == 0 && w < 4 ? 2 : 1);
                p.activations[s * 4 + choice[0]]++;
                p.activations[s * 4 + choice[1]]++;
            }
    assert_status(moec_coverage_make(&p, &c, &err), MOEC_OK, err);
    assert_int_equal(c.n_unreached, 1);
    assert_int_equal(c.n_rare, 1);
    assert_int_equal(c.n_listed, 2);
    assert_int_equal(c.listed[0].layer, p.moe_layers[1]);
    assert_int_equal(c.listed[0].expert, 3);
    assert_int_equal(c.listed[1].expert, 2);
    assert_int_equal(c.listed[1].n_token, 4);
    assert_int_equal(c.listed[1].n_window, 4);
    assert_int_equal(c.windows_for_rare, 300); /* 30 tokens at one in ten windows */
    assert_int_equal(c.min_tokens, 0);
    assert_int_equal(c.target_bits[0], 3); /* 0.7 % */
    assert_int_equal(c.target_windows[0], p.n_window);
    moec_coverage_describe(&p, &c, &text);
    assert_says(&text, "1 of 8 experts were never reached");
    assert_says(&text, "300 windows");
    /* Without a trace the windows that change count. */
    p.n_trace_token = 0;
    assert_status(moec_coverage_make(&p, &c, &err), MOEC_OK, err);
    assert_int_equal(c.listed[c.n_listed - 1].n_window, p.n_window);
    moec_profile_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdict__spread_noise_and_additivity),
        cmocka_unit_test(test_verdict__noise_hides_differences),
        cmocka_unit_test(test_verdict__savings),
        cmocka_unit_test(test_verdict__codes_of_compile),
        cmocka_unit_test(test_verdict__plans_spend_where_it_counts),
        cmocka_unit_test(test_verdict__coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
