/* Figures of profiles: all of them are made, captioned and drawn, whatever the studies hold. */
#include "profiler/report/figures.h"
#include "tests/unit/study_profile.h"
#include "tests/unit/temporary.h"

static struct synthetic_shape shape_of(uint32_t n_layer, uint32_t n_expert)
{
    return (struct synthetic_shape){.n_dense = 1,
                                    .n_moe_layer = n_layer,
                                    .n_expert = n_expert,
                                    .top_k = n_expert < 4 ? n_expert : 4,
                                    .n_window = 4,
                                    .seq_len_tokens = 16,
                                    .n_bits = 3,
                                    .n_uniform = 4,
                                    .every_unreached = 9,
                                    .n_key = 3};
}

static const struct moec_figure *find(const struct moec_figures *figures, const char *study)
{
    for (uint32_t i = 0; i < figures->n; i++)
        if (strcmp(figures->items[i].study, study) == 0)
            return &figures->items[i];
    fail_msg("no figure of '%s'", study);
    return NULL;
}

static void test_figures__all_are_made_from_all_studies(void **state)
{
    (void)state;
    struct moec_profile profile;
    struct moec_figures figures;
    struct moec_error err = {0};
    const struct synthetic_shape shape = shape_of(6, 16);
    assert_int_equal(study_profile(&shape, STUDY_USUAL, &profile), MOEC_OK);
    assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < figures.n; i++) {
        const struct moec_figure *figure = &figures.items[i];
        if (figure->n_chart == 0)
            fail_msg("'%s' was not made", figure->title);
        for (uint32_t c = 0; c < figure->n_chart; c++) {
            const struct moec_chart *chart = &figure->charts[c];
            assert_true(strlen(chart->title) > 10);
            if (strlen(chart->caption) < 40)
                fail_msg("'%s' concludes nothing: '%s'", chart->name, chart->caption);
            assert_true(strlen(chart->caption) < sizeof chart->caption - 200);
            /* Names of files differ. */
            for (uint32_t j = 0; j < i; j++)
                for (uint32_t d = 0; d < figures.items[j].n_chart; d++)
                    assert_string_not_equal(chart->name, figures.items[j].charts[d].name);
        }
    }
    assert_int_equal(find(&figures, "quantizer/loss")->n_chart, 5);
    assert_int_equal(find(&figures, "predict/recall")->n_chart, 2);
    moec_figures_release(&figures);
    moec_profile_release(&profile);
}

static void test_figures__without_studies_they_are_listed(void **state)
{
    (void)state;
    struct moec_profile profile;
    struct moec_figures figures;
    struct moec_error err = {0};
    const struct synthetic_shape shape = shape_of(2, 4);
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < figures.n; i++) {
        const struct moec_figure *figure = &figures.items[i];
        assert_int_equal(figure->n_chart > 0, figure->study[0] == '\0');
        if (figure->n_chart == 0)
            assert_true(strlen(figure->option) > 5);
    }
    moec_figures_release(&figures);
    moec_profile_release(&profile);
}

/* The caption of the recall says what the numbers say. */
static void test_figures__captions_follow_the_numbers(void **state)
{
    (void)state;
    static char predictors[][MOEC_STUDY_LABEL] = {"path table", "next-layer gate"};
    double values[] = {.25, .5, .75, .5, .625, 1, .25, .5, .75, .625, .75, 1};
    const struct moec_study recall = {.name = "predict/recall",
                                      .description = "two layers",
                                      .n_axis = 3,
                                      .axes = {study_axis("moe_layer", 2, NULL, NULL),
                                               study_axis("predictor", 2, NULL, predictors),
                                               study_axis("cut", 3, NULL, NULL)},
                                      .values = values};
    struct moec_profile profile;
    struct moec_figures figures;
    struct moec_error err = {0};
    const struct synthetic_shape shape = shape_of(2, 4);
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    assert_status(moec_profile_add_study(&profile, &recall, NULL, &err), MOEC_OK, err);
    assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
    const struct moec_chart *chart = &find(&figures, "predict/recall")->charts[0];
    assert_int_equal(chart->n_series, 2);
    /* Of the second layer alone: the first has none before it. */
    assert_true(chart->series[1].y[0] == 62.5 && chart->series[1].low[0] == 62.5 &&
                chart->series[1].high[0] == 62.5);
    assert_non_null(strstr(chart->caption, "next-layer gate predicts best, in 1 of 1 layers: 62.5"));
    moec_figures_release(&figures);
    moec_profile_release(&profile);
}

/* A study that is shaped otherwise than its name promises is not drawn. */
static void test_figures__other_shapes_are_left_alone(void **state)
{
    (void)state;
    struct moec_profile profile;
    struct moec_figures figures;
    struct moec_error err = {0};
    const struct synthetic_shape shape = shape_of(2, 4);
    const struct moec_study_axis axis = study_axis("rank", 3, NULL, NULL);
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    assert_int_equal(study_add(&profile, "predict/recall", STUDY_USUAL, 1, 1, 1, &axis), MOEC_OK);
    assert_int_equal(study_add(&profile, "dense/loss", STUDY_USUAL, 1, 1, 0, &axis), MOEC_OK);
    assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
    assert_int_equal(find(&figures, "predict/recall")->n_chart, 0);
    assert_int_equal(find(&figures, "dense/loss")->n_chart, 0);
    moec_figures_release(&figures);
    moec_profile_release(&profile);
}

static void test_figures__every_shape_and_value_is_drawn(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1}, {1, 128}, {30, 3}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < STUDY_N_VALUES; kind++) {
            struct moec_profile profile;
            struct moec_figures figures;
            struct moec_error err = {0};
            const struct synthetic_shape shape = shape_of(shapes[i][0], shapes[i][1]);
            assert_int_equal(study_profile(&shape, (enum study_values)kind, &profile), MOEC_OK);
            assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
            for (uint32_t f = 0; f < figures.n; f++)
                for (uint32_t c = 0; c < figures.items[f].n_chart; c++) {
                    uint8_t *bytes = NULL;
                    size_t n = 0;
                    assert_status(moec_chart_render(&figures.items[f].charts[c],
                                                    &(struct moec_chart_look){MOEC_PLOT_SVG, 290, true},
                                                    &bytes, &n, &err),
                                  MOEC_OK, err);
                    assert_null(memmem(bytes, n, "nan", 3));
                    free(bytes);
                }
            moec_figures_release(&figures);
            moec_profile_release(&profile);
        }
}

static void test_figures__files_of_a_folder(void **state)
{
    (void)state;
    static const enum moec_plot_format formats[] = {MOEC_PLOT_SVG, MOEC_PLOT_CSV};
    char *folder = temporary_folder(), *plots = temporary_path(folder, "plots");
    struct moec_profile profile;
    struct moec_figures figures;
    struct moec_error err = {0};
    uint32_t n_written = 0;
    const struct synthetic_shape shape = shape_of(3, 8);
    assert_int_equal(study_profile(&shape, STUDY_USUAL, &profile), MOEC_OK);
    assert_status(moec_figures_make(&profile, &figures, &err), MOEC_OK, err);
    for (int round = 0; round < 2; round++) {
        assert_status(moec_figures_write(&figures, plots, formats, 2, &n_written, &err), MOEC_OK, err);
        assert_int_equal(temporary_count(plots), (int)n_written);
    }
    size_t n = 0;
    uint8_t *csv = temporary_read(plots, "dense_loss.csv", &n);
    assert_memory_equal(csv, "series,bits,loss_percent,low,high\nexperts only,2,", 47);
    free(csv);
    free(plots);
    /* A file in the way, and a folder too deep. */
    temporary_write(folder, "file", "x", 1);
    plots = temporary_path(folder, "file");
    assert_int_equal(moec_figures_write(&figures, plots, formats, 2, &n_written, &err), MOEC_ERR_IO);
    assert_message(err, "it is a file, expected a folder");
    free(plots);
    plots = temporary_path(folder, "a/b");
    err = (struct moec_error){0};
    assert_int_equal(moec_figures_write(&figures, plots, formats, 2, &n_written, &err), MOEC_ERR_IO);
    assert_message(err, "cannot make the folder");
    free(plots);
    moec_figures_release(&figures);
    moec_profile_release(&profile);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures__all_are_made_from_all_studies),
        cmocka_unit_test(test_figures__without_studies_they_are_listed),
        cmocka_unit_test(test_figures__captions_follow_the_numbers),
        cmocka_unit_test(test_figures__other_shapes_are_left_alone),
        cmocka_unit_test(test_figures__every_shape_and_value_is_drawn),
        cmocka_unit_test(test_figures__files_of_a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
