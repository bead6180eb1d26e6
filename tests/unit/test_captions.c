/* Each caption says what the numbers under it say, and no more than their intervals bear: a profile made for
 * each claim, and one made against it. */
#include "profiler/report/figures.h"
#include "tests/unit/study_profile.h"
#include "tests/unit/temporary.h"

#define MOST_VALUES 32

static struct moec_profile profile;

/* Two MoE layers, 1 and 2, of four experts, after a dense one; eight windows. */
static void begin(void)
{
    const struct synthetic_shape shape = {.n_dense = 1,
                                          .n_moe_layer = 2,
                                          .n_expert = 4,
                                          .top_k = 2,
                                          .n_window = 8,
                                          .seq_len_tokens = 16,
                                          .n_bits = 1,
                                          .n_uniform = 3};
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
}

static void add(const char *name, uint32_t n_axis, const struct moec_study_axis *axes, const double *values)
{
    struct moec_error err = {0};
    double copy[MOST_VALUES];
    struct moec_study study = {.description = "made for a claim", .n_axis = n_axis, .values = copy};
    (void)snprintf(study.name, sizeof study.name, "%s", name);
    memcpy(study.axes, axes, n_axis * sizeof *axes);
    assert_in_range(moec_study_count(&study), 1, MOST_VALUES);
    memcpy(copy, values, moec_study_count(&study) * sizeof *values);
    assert_status(moec_profile_add_study(&profile, &study, NULL, &err), MOEC_OK, err);
}

/* Losses as fractions, with intervals of `half` to each side; negative: none. */
static void add_losses(const char *group, uint32_t n_axis, const struct moec_study_axis *axes,
                       const double *losses, double half)
{
    static const char *const names[] = {"loss", "loss_low", "loss_high"};
    double values[MOST_VALUES];
    char name[64];
    const struct moec_study shape = {.n_axis = n_axis,
                                     .axes = {axes[0], axes[n_axis > 1], axes[n_axis > 2 ? 2 : 0]}};
    const uint64_t n = moec_study_count(&shape);
    for (int part = 0; part < (half < 0 ? 1 : 3); part++) {
        for (uint64_t i = 0; i < n; i++)
            values[i] = losses[i] + (part == 0 ? 0 : part == 1 ? -half : half);
        (void)snprintf(name, sizeof name, "%s/%s", group, names[part]);
        add(name, n_axis, axes, values);
    }
}

/* Ends the profile: chart `index` of the figure with this study or, without one, of this title, has a caption
 * with all of `says`, and with none of `never`. */
static void check(const char *figure_name, uint32_t index, const char *const *says, const char *const *never)
{
    struct moec_figures figures;
    struct moec_error err = {0};
    const struct moec_chart *chart = NULL;
    assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < figures.n; i++)
        if (figures.items[i].n_chart > index &&
            (strcmp(figures.items[i].study, figure_name) == 0 ||
             strcmp(figures.items[i].charts[index].name, figure_name) == 0))
            chart = &figures.items[i].charts[index];
    if (chart == NULL)
        fail_msg("there is no figure '%s'", figure_name);
    char caption[MOEC_CHART_CAPTION] = "";
    for (size_t at = 0, to = 0; chart->caption[at] != '\0'; at++) { /* spaces that do not break */
        at += memcmp(chart->caption + at, "\xc2\xa0", 2) == 0;
        caption[to++] = chart->caption[at] == '\xa0' ? ' ' : chart->caption[at];
    }
    for (; *says != NULL; says++)
        if (strstr(caption, *says) == NULL)
            fail_msg("'%s' does not say '%s': %s", figure_name, *says, caption);
    for (; *never != NULL; never++)
        if (strstr(caption, *never) != NULL)
            fail_msg("'%s' says '%s': %s", figure_name, *never, caption);
    moec_figures_release(&figures);
    moec_profile_release(&profile);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NOTHING   ((const char *const[]){NULL})

static double bits_of[] = {2, 4};
static char weights[][MOEC_STUDY_LABEL] = {"experts only", "all weights"};
static char projections[][MOEC_STUDY_LABEL] = {"gate", "up", "down"};
static char quantizers[][MOEC_STUDY_LABEL] = {"linear", "HQQ"};
static char actions[][MOEC_STUDY_LABEL] = {"drop", "replace"};
static char predictors[][MOEC_STUDY_LABEL] = {"path", "gate", "frequency"};

static struct moec_study_axis layer_axis(void)
{
    return study_axis("moe_layer", 2, NULL, NULL);
}

static struct moec_study_axis bits_axis(void)
{
    return study_axis("bits", 2, bits_of, NULL);
}

/* ---- measured on windows ---- */

/* Per token: NLL of the original 2.5; each bitwidth adds `extra`, a window's own part of it up to `noise`. */
static void set_nll(double *nll, uint32_t n, double extra, double noise)
{
    for (uint32_t w = 0; w < n; w++)
        nll[w] = profile.window_scored[w] * (2.5 + 0.01 * w + extra + noise * (w % 2 == 0 ? 1 : -1));
}

static void test_captions__of_whole_models(void **state)
{
    (void)state;
    begin();
    set_nll(profile.reference.nll, 8, 0, 0);
    set_nll(profile.uniform[0].nll, 8, 0.2, 0);
    set_nll(profile.uniform[1].nll, 8, 0.0149, 0.01); /* 1.5 % as a figure, past 2 % by its interval */
    set_nll(profile.uniform[2].nll, 8, 0.004, 0);
    check(
        "loss_by_bits", 0,
        LIST("at most 1 % needs INT4", "at most 2 % needs INT4", "at most 5 % needs INT3", "over 8 windows"),
        LIST("at most 2 % needs INT3"));
    begin();
    set_nll(profile.reference.nll, 8, 0, 0);
    for (int u = 0; u < 3; u++)
        set_nll(profile.uniform[u].nll, 8, 0.3, 0.001);
    check("loss_by_bits", 0, LIST("No bitwidth that was measured is sure to lose at most 5 %"),
          LIST("needs"));
}

static void set_experts(double first, double step, double noise)
{
    set_nll(profile.baseline.nll, 8, 0, 0);
    for (uint32_t i = 0; i < 8; i++)
        set_nll(moec_profile_expert_row(&profile, profile.expert_nll, i / 4, i % 4, 0), 8, first + step * i,
                noise);
}

static void test_captions__of_sorted_experts(void **state)
{
    (void)state;
    begin();
    set_experts(-0.01, 0.005, 0.0001); /* two gain, one does nothing, five lose */
    check("sorted_int2", 0,
          LIST("Of 8 experts 5 certainly lose something and 2 certainly gain", "says which experts"),
          LIST("noise: it takes"));
    begin();
    set_experts(0.001, 0.00001, 0.02);
    check("sorted_int2", 0, LIST("Of 8 experts 0 certainly lose something and 0 certainly gain", "is noise"),
          LIST("says which experts"));
    begin();
    profile.sensitivity = MOEC_SENSITIVITY_FAST;
    check("sorted_int2", 0, LIST("estimates have no interval"), LIST("certainly"));
}

static void test_captions__of_tokens_and_load(void **state)
{
    (void)state;
    static const uint64_t tokens[] = {0, 50, 300, 650, 200, 200, 300, 300};
    begin();
    memcpy(profile.activations, tokens, sizeof tokens);
    check("tokens", 0,
          LIST("Half of the experts saw at least 300", "1 saw no tokens", "1 saw fewer than 100"), NOTHING);
    begin();
    memcpy(profile.activations, tokens, sizeof tokens);
    check("load", 0,
          LIST("expert 3 of layer 1 with 2.60 times", "takes 47.5 %", "popular experts pays",
               "1 experts were never"),
          LIST("says little"));
    begin();
    for (int i = 0; i < 8; i++)
        profile.activations[i] = 250;
    check("load", 0, LIST("takes 25.0 %", "says little"), LIST("pays here", "never chosen"));
    begin();
    for (int i = 0; i < 8; i++)
        profile.activations[i] = 250;
    check("tokens", 0, LIST("Every expert saw at least 100 tokens"), LIST("saw no tokens", "fewer"));
}

/* ---- losses with intervals ---- */

static void test_captions__of_layers(void **state)
{
    (void)state;
    const struct moec_study_axis axes[] = {layer_axis(), bits_axis()};
    const double losses[] = {0.03, 0.001, 0.01, 0.002};
    for (int i = 0; i < 3; i++) {
        begin();
        add_losses("layer", 2, axes, losses, i == 0 ? 0.005 : i == 1 ? 0.015 : -1);
        check("layer/loss", 0,
              LIST("At INT2 layer 1 costs most, 3.00 %, which is 75.0 % of what",
                   i == 0   ? "no other layer comes near"
                   : i == 1 ? "1 of the 1 others may cost as much"
                            : "There are no intervals"),
              i == 0 ? LIST("may") : LIST("well spent"));
    }
}

static void test_captions__of_dense_weights(void **state)
{
    (void)state;
    const struct moec_study_axis axes[] = {study_axis("weights", 2, NULL, weights), bits_axis()};
    static const struct {
        double all, half;
        const char *says, *never;
    } cases[] = {{0.05, 0.004, "tolerate low bitwidths better", "noise"},
                 {0.05, 0.02, "may be noise", "tolerate"},
                 {0.025, 0.001, "less than half as much as experts", "tolerate"},
                 {0.05, -1, "may be noise", "tolerate"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double losses[] = {0.02, 0.001, cases[i].all, 0.002};
        begin();
        add_losses("dense", 2, axes, losses, cases[i].half);
        check("dense/loss", 0, LIST("At INT2 experts alone lose 2.00 %", cases[i].says),
              LIST(cases[i].never));
    }
}

static void test_captions__of_projections(void **state)
{
    (void)state;
    const struct moec_study_axis axes[] = {study_axis("projection", 3, NULL, projections), bits_axis()};
    const double losses[] = {0.02, 0, 0.01, 0, 0.03, 0};
    begin();
    add_losses("projection", 2, axes, losses, 0.005);
    check("projection/loss", 0, LIST("the down projection suffers most (3.00 %) and up least (1.00 %)"),
          LIST("may be noise"));
    begin();
    add_losses("projection", 2, axes, losses, 0.015);
    check("projection/loss", 0, LIST("the order may be noise"), NOTHING);
    const struct moec_study_axis each[] = {layer_axis(), study_axis("expert", 4, NULL, NULL),
                                           study_axis("projection", 3, NULL, projections),
                                           study_axis("bits", 1, bits_of, NULL)};
    double experts[24] = {0};
    experts[3 * 6 + 1] = 0.04; /* layer 2 expert 2, up */
    begin();
    add("projection/expert_loss", 4, each, experts);
    check("projection/expert_loss", 1, LIST("expert 2 of layer 2 with 4.00 %", "no interval"), NOTHING);
}

static void add_quantizers(double half)
{
    static double groups[] = {0, 64};
    const struct moec_study_axis axes[] = {study_axis("quantizer", 2, NULL, quantizers),
                                           study_axis("group", 2, groups, NULL), bits_axis()};
    const double losses[] = {0.2, 0.02, 0.1, 0.008, 0.15, 0.015, 0.06, 0.004};
    const double sizes[] = {2.1, 4.1, 2.5, 4.5, 2.1, 4.1, 2.5, 4.6};
    begin();
    add("quantizer/bits_per_weight", 3, axes, sizes);
    add_losses("quantizer", 3, axes, losses, half);
}

static void test_captions__of_quantizers(void **state)
{
    (void)state;
    add_quantizers(0.001);
    check("quantizer/loss", 0,
          LIST("loses at most 1 % by its interval is linear with 4.50 bits",
               "loses at most 5 % by its interval is linear with 4.10"),
          NOTHING);
    add_quantizers(0.004); /* 0.8 % may be 1.2 % */
    check("quantizer/loss", 0, LIST("loses at most 1 % by its interval is HQQ with 4.60 bits"), NOTHING);
    add_quantizers(0.001);
    check("quantizer/loss", 1,
          LIST("Best is HQQ with groups of 64: 6.00 %; the worst choice loses 20.0 %",
               "every other loses more"),
          LIST("as good"));
    add_quantizers(0.03);
    check("quantizer/loss", 1, LIST("1 other may be as good"), LIST("every other"));
    for (int i = 0; i < 2; i++) {
        const struct moec_study_axis axes[] = {study_axis("quantizer", 2, NULL, quantizers), bits_axis()};
        const double losses[] = {0.3, 0.03, 0.2, 0.02};
        add_quantizers(0.001);
        profile.group = 64;
        add_losses("quantizer_all", 2, axes, losses, i == 0 ? 0.01 : 0.06);
        check("quantizer_all/loss", 0,
              LIST("HQQ loses least: 20.0 %, and 6.00 % with experts alone",
                   i == 0 ? "every other loses more" : "1 other may be"),
              NOTHING);
    }
}

static void test_captions__of_ranks(void **state)
{
    (void)state;
    const struct moec_study_axis axes[] = {study_axis("action", 2, NULL, actions),
                                           study_axis("rank", 2, NULL, NULL)};
    const double losses[] = {0.2, 0.02, 0.1, 0.004};
    begin();
    add_losses("rank", 2, axes, losses, 0.005);
    check("rank/loss", 0,
          LIST("drop: the first costs 20.0 %, the last 2.00 %; for 0 of 2 ranks",
               "replace: the first costs 10.0 %, the last 0.400 %; for 1 of 2",
               "whichever expert is in memory"),
          LIST("no rank is free"));
    begin();
    add_losses("rank", 2, axes, losses, 0.001);
    check("rank/loss", 0, LIST("no rank is free"), LIST("whichever"));
    begin();
    add_losses("rank", 2, axes, losses, -1);
    check("rank/loss", 0, LIST("drop: the first costs"), LIST("whichever", "no rank is free"));
}

static void test_captions__of_sparsity(void **state)
{
    (void)state;
    static double parts[] = {0.5, 0.7, 0.9};
    const struct moec_study_axis axes[] = {study_axis("projection", 2, NULL, projections),
                                           study_axis("sparsity", 3, parts, NULL)};
    const double losses[] = {0.001, 0.018, 0.2, 0.021, 0.04, 0.3};
    begin();
    add_losses("sparsity", 2, axes, losses, 0.001);
    check("sparsity/loss", 0, LIST("gate: 70 % can be zero", "up: even the lowest sparsity is not sure"),
          NOTHING);
    begin();
    add_losses("sparsity", 2, axes, losses, 0.005);
    check("sparsity/loss", 0, LIST("gate: 50 % can be zero"), LIST("gate: 70 %"));
}

static void test_captions__of_mixed_plans(void **state)
{
    (void)state;
    static double targets[] = {.01, .02, .05};
    const struct moec_study_axis target = study_axis("target", 3, targets, NULL);
    const double loss[] = {0.009, 0.018, 0.04}, bytes[] = {8e6, 9e6, 4e6}, uniform[] = {1e7, 8e6, 5e6},
                 bits[] = {8, 4, 3};
    begin();
    add("mixed/loss", 1, &target, loss);
    add("mixed/bytes", 1, &target, bytes);
    add("mixed/uniform_bytes", 1, &target, uniform);
    add("mixed/uniform_bits", 1, &target, bits);
    check("mixed", 0,
          LIST("At a loss of 1 % mixed bitwidths take 20.0 % less than the best uniform one (8 bits)",
               "At a loss of 5 % mixed bitwidths take 20.0 % less than the best uniform one (3 bits)"),
          NOTHING);
}

/* ---- routing ---- */

static void test_captions__of_layers_of_routers(void **state)
{
    (void)state;
    const struct moec_study_axis layer = layer_axis();
    static const struct {
        const char *study;
        double values[2];
        const char *says, *also, *never;
    } cases[] = {
        {"routing/entropy",
         {0.9, 0.8},
         "Layer 2 is the least even (0.800), the mean is 0.850",
         "small cache",
         "trained"},
        {"routing/entropy",
         {0.99, 0.98},
         "Layer 2 is the least even (0.980)",
         "trained to be even",
         "small cache"},
        {"predict/cosine",
         {0.9, 0.5},
         "The mean is 0.700, the lowest 0.500 at layer 2",
         "1 of 2 layers exceed",
         "too much"},
        {"predict/cosine", {0.6, 0.5}, "The mean is 0.550", "0 of 2 layers exceed", "worth trying"},
        {"gate/correlation", {0.99, 0.95}, "the lowest 0.950 at layer 2", "says how much", "only roughly"},
        {"gate/correlation", {0.5, 0.7}, "the lowest 0.500 at layer 1", "only roughly", "says how much"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        add(cases[i].study, 1, &layer, cases[i].values);
        check(cases[i].study, 0, LIST(cases[i].says, cases[i].also), LIST(cases[i].never));
    }
}

static void test_captions__of_margins_and_paths(void **state)
{
    (void)state;
    static double quantiles[] = {0.05, 0.25, 0.5, 0.75}, popular[] = {1, 10, 100}, parts[] = {0.1, 0.2};
    const struct moec_study_axis margins[] = {layer_axis(), study_axis("quantile", 4, quantiles, NULL)};
    const double margin[] = {0.01, 0.1, 0.3, 0.5, 0.005, 0.02, 0.04, 0.08};
    begin();
    add("routing/margin", 2, margins, margin);
    check("routing/margin", 0,
          LIST("less than 0.040 in layer 2, where choices are closest, and less than 0.300 in layer 1"),
          NOTHING);
    const struct moec_study_axis paths = study_axis("popular_paths", 3, popular, NULL),
                                 part = study_axis("path_fraction", 2, parts, NULL),
                                 three[] = {layer_axis(), paths};
    const double full[] = {0.2, 0.4, 0.7}, few[] = {0.01, 0.1, 0.3}, fraction[] = {0.5, 0.75},
                 shares[] = {0.3, 0.6, 0.9, 0.2, 0.6, 0.9};
    begin();
    add("paths/full", 1, &paths, full);
    add("paths/full_fraction", 1, &part, fraction);
    add("paths/three", 2, three, shares);
    check(
        "paths/full", 0,
        LIST("one of at most 100 full paths", "at most 10 paths carry half", "carries 75.0 % of the tokens"),
        NOTHING);
    begin();
    add("paths/full", 1, &paths, few);
    check("paths/full", 0, LIST("The 100 most popular full paths carry 30.0 %"),
          LIST("Half of the tokens", "fifth"));
}

static void test_captions__of_what_is_hinted(void **state)
{
    (void)state;
    const struct moec_study_axis ranks[] = {layer_axis(), study_axis("activation_rank", 4, NULL, NULL)};
    const double path[] = {1, 0.6, 0.2, 0.2, 1, 0.6, 0.2, 0.2},
                 frequency[] = {0.6, 0.4, 0.5, 0.5, 0.6, 0.4, 0.5, 0.5};
    begin();
    add("conditional/path", 2, ranks, path);
    add("conditional/frequency", 2, ranks, frequency);
    check("conditional", 0,
          LIST("The 2 likeliest experts hold 80.0 % of those", "50.0 % when nothing is", "a good deal"),
          LIST("say little"));
    begin();
    add("conditional/path", 2, ranks, frequency);
    add("conditional/frequency", 2, ranks, frequency);
    check("conditional", 0, LIST("say little"), LIST("a good deal"));
    /* Three layers: means are over the second and third for every predictor. */
    const struct synthetic_shape shape = {.n_moe_layer = 3,
                                          .n_expert = 4,
                                          .top_k = 2,
                                          .n_window = 4,
                                          .seq_len_tokens = 16,
                                          .n_bits = 1,
                                          .n_uniform = 1};
    const struct moec_study_axis axes[] = {study_axis("moe_layer", 3, NULL, NULL),
                                           study_axis("predictor", 3, NULL, predictors),
                                           study_axis("cut", 2, NULL, NULL)};
    const double recall[] = {1,   1,   NAN, NAN, 1,   1,   0.6, 0.9, 0.5,
                             0.7, 0.2, 0.3, 0.3, 0.5, 0.7, 0.9, 0.2, 0.3};
    for (uint32_t index = 0; index < 2; index++) {
        assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
        add("predict/recall", 3, axes, recall);
        if (index == 0)
            check("predict/recall", 0,
                  LIST("gate predicts best, in 1 of 2 layers: 60.0 % of the experts",
                       "80.0 % among the top 2k"),
                  NOTHING);
        else
            check("predict/recall", 1,
                  LIST("path: mean 45.0 %, worst 30.0 % at layer 2",
                       "gate: mean 60.0 %, worst 50.0 % at layer 1", "frequency: mean 20.0 %"),
                  NOTHING);
    }
}

static void test_captions__of_outputs(void **state)
{
    (void)state;
    static double gate_weights[] = {0.25, 0.75}, quantiles[] = {0.5, 0.9};
    const struct moec_study_axis gates = study_axis("gate_weight", 2, gate_weights, NULL);
    const double norms[] = {1, 1.1};
    begin();
    add("gate/output_norm", 1, &gates, norms);
    check("gate/output_norm", 0, LIST("Means over all choices"), NOTHING);
    begin();
    assert_int_equal(study_add_scores(&profile, STUDY_USUAL), MOEC_OK);
    check("gate/scores", 0,
          LIST("load 100 % of them in high and 0 % in low precision, and skip 0 %",
               "T1 = 0.5 and T2 = 0.5 give 100, 0 and 0 %"),
          NOTHING);
    const struct moec_study_axis errors[] = {layer_axis(), study_axis("expert", 4, NULL, NULL),
                                             study_axis("bits", 1, bits_of, NULL)};
    const double error[] = {0.1, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.3};
    begin();
    add("fast/local_error", 3, errors, error);
    check("fast/local_error", 0, LIST("the largest is 30.0 %, of expert 3 in layer 2"), NOTHING);
    const struct moec_study_axis ups[] = {layer_axis(), study_axis("expert", 4, NULL, NULL),
                                          study_axis("quantile", 2, quantiles, NULL)};
    const double up[] = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2};
    begin();
    add("neurons/up_quantiles", 3, ups, up);
    check("neurons/up_quantiles", 0, LIST("median over the experts of a layer"), NOTHING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_captions__of_whole_models),
        cmocka_unit_test(test_captions__of_sorted_experts),
        cmocka_unit_test(test_captions__of_tokens_and_load),
        cmocka_unit_test(test_captions__of_layers),
        cmocka_unit_test(test_captions__of_dense_weights),
        cmocka_unit_test(test_captions__of_projections),
        cmocka_unit_test(test_captions__of_quantizers),
        cmocka_unit_test(test_captions__of_ranks),
        cmocka_unit_test(test_captions__of_sparsity),
        cmocka_unit_test(test_captions__of_mixed_plans),
        cmocka_unit_test(test_captions__of_layers_of_routers),
        cmocka_unit_test(test_captions__of_margins_and_paths),
        cmocka_unit_test(test_captions__of_what_is_hinted),
        cmocka_unit_test(test_captions__of_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
