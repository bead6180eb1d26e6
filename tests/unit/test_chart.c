/* Charts: numbers come out of the CSV as they went in, and every kind is drawn whatever the numbers. */
#include "profiler/plot/chart.h"
#include "tests/unit/temporary.h"

#include <float.h>
#include <math.h>

static struct moec_chart make(enum moec_chart_kind kind, uint32_t n_category)
{
    struct moec_chart chart = {.kind = kind,
                               .name = "trial",
                               .title = "A title that says what is shown",
                               .caption = "What to conclude.",
                               .source = "nobody, Fig. 0",
                               .provenance = "Model: none.",
                               .x = {.name = "layer", .label = "layer"},
                               .y = {.name = "loss_percent", .label = "loss, %"},
                               .value_label = "loss against the original, %",
                               .value_name = "loss_percent"};
    assert_int_equal(n_category > 0 ? moec_chart_set_categories(&chart.x, n_category, NULL) : MOEC_OK,
                     MOEC_OK);
    for (uint32_t i = 0; i < n_category; i++)
        (void)snprintf(chart.x.categories[i], MOEC_CHART_LABEL, "name %u of many", (unsigned)i);
    return chart;
}

static struct moec_chart_series *add(struct moec_chart *chart, const char *name, uint64_t n)
{
    struct moec_chart_series *series = NULL;
    assert_int_equal(moec_chart_add_series(chart, name, n, &series, NULL), MOEC_OK);
    for (uint64_t i = 0; i < n; i++)
        series->x[i] = (double)i;
    return series;
}

/* Numbers that drawing has to survive. */
static double extreme(uint64_t i)
{
    static const double values[] = {0,    -1,       1e-300, 1e300,   -1e300,           (double)NAN,
                                    5e-7, 123456.7, 1e9,    DBL_MIN, (double)INFINITY, -DBL_EPSILON};
    return values[i % (sizeof values / sizeof *values)];
}

static void draw_everywhere(const struct moec_chart *chart)
{
    static const double widths[] = {0, 10, 280};
    static const enum moec_plot_format formats[] = {MOEC_PLOT_SVG, MOEC_PLOT_PNG, MOEC_PLOT_PDF};
    static const char *const starts[] = {"<?xml", "\x89PNG", "%PDF-"};
    for (size_t w = 0; w < 3; w++)
        for (size_t f = 0; f < (w == 2 ? 3 : 1); f++) {
            struct moec_error err = {0};
            uint8_t *bytes = NULL;
            size_t n = 0;
            assert_status(moec_chart_render(chart,
                                            &(struct moec_chart_look){formats[f], widths[w], w % 2 == 1},
                                            &bytes, &n, &err),
                          MOEC_OK, err);
            assert_true(n > 100);
            assert_memory_equal(bytes, starts[f], strlen(starts[f]));
            /* Broken arithmetic would show in the coordinates. */
            if (f == 0) {
                assert_null(memmem(bytes, n, "nan", 3));
                assert_null(memmem(bytes, n, "inf", 3));
            }
            free(bytes);
        }
}

static void test_chart__csv_is_what_is_shown(void **state)
{
    (void)state;
    struct moec_chart chart = make(MOEC_CHART_BARS, 2);
    (void)snprintf(chart.x.categories[0], MOEC_CHART_LABEL, "a \"b\", c");
    struct moec_chart_series *series = add(&chart, "experts, only", 2);
    char *text = NULL;
    size_t n = 0;
    series->y[0] = 0.1;
    series->y[1] = 1.0 / 3;
    series->low[0] = -0.0625;
    series->high[0] = 2e-17;
    series->has_interval = true;
    assert_int_equal(moec_chart_csv(&chart, &text, &n, NULL), MOEC_OK);
    assert_string_equal(text, "series,layer,loss_percent,low,high\n"
                              "\"experts, only\",\"a \"\"b\"\", c\",0.1,-0.0625,2e-17\n"
                              "\"experts, only\",name 1 of many,0.3333333333333333,,\n");
    assert_int_equal(n, strlen(text));
    free(text);
    moec_chart_release(&chart);
}

static void test_chart__csv_of_cells(void **state)
{
    (void)state;
    struct moec_chart chart = make(MOEC_CHART_CELLS, 0);
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(moec_chart_set_cells(&chart, 2, 2, NULL), MOEC_OK);
    chart.y = (struct moec_chart_axis){.name = "layer"};
    chart.x = (struct moec_chart_axis){.name = "expert"};
    chart.cells.rows[1] = 7;
    chart.cells.values[0] = 1.5;
    chart.cells.values[3] = M_PI;
    assert_int_equal(moec_chart_csv(&chart, &text, &n, NULL), MOEC_OK);
    assert_string_equal(text, "layer,expert,loss_percent\n0,0,1.5\n0,1,\n7,0,\n7,1,3.141592653589793\n");
    free(text);
    moec_chart_release(&chart);
}

static void test_chart__exact_numbers_read_back(void **state)
{
    (void)state;
    char text[MOEC_CHART_NUMBER];
    uint64_t seed = 3;
    for (int i = 0; i < 3000; i++) {
        double value = (double)random_float(&seed) * pow(10, (int)(random_u32(&seed) % 600) - 300) / 3;
        assert_true(strtod(moec_chart_exact(text, value), NULL) == value);
    }
    assert_string_equal(moec_chart_exact(text, 0.1), "0.1");
    assert_string_equal(moec_chart_exact(text, (double)NAN), "");
    assert_string_equal(moec_chart_number(text, 12.345), "12.3");
    assert_string_equal(moec_chart_number(text, 0), "0");
    assert_string_equal(moec_chart_number(text, -0.25), "-0.250");
    assert_string_equal(moec_chart_number(text, 1234.5), "1234");
    assert_string_equal(moec_chart_number(text, (double)NAN), "unknown");
}

static void test_chart__every_kind_with_extreme_numbers(void **state)
{
    (void)state;
    static const enum moec_chart_kind kinds[] = {MOEC_CHART_LINES, MOEC_CHART_POINTS, MOEC_CHART_BARS};
    static const uint64_t lengths[] = {0, 1, 5, 300};
    for (size_t k = 0; k < 3; k++)
        for (size_t l = 0; l < 4; l++)
            for (uint32_t variant = 0; variant < 4; variant++) {
                bool is_named = k == 2 || variant == 1;
                struct moec_chart chart =
                    make(kinds[k], is_named ? (uint32_t)(lengths[l] > 0 ? lengths[l] : 1) : 0);
                chart.y.is_log = variant == 2;
                chart.x.is_log = variant == 2 && !is_named;
                chart.has_value_labels = variant == 1;
                chart.y.is_whole = variant == 3;
                moec_chart_add_rule(&chart, 0, "zero");
                for (uint32_t s = 0; s < (l == 3 ? 2u : MOEC_CHART_MAX_SERIES); s++) {
                    struct moec_chart_series *series = add(&chart, "series", lengths[l]);
                    for (uint64_t i = 0; i < lengths[l]; i++) {
                        series->y[i] = extreme(i * 3 + s);
                        series->low[i] = extreme(i + 1);
                        series->high[i] = extreme(i + 5);
                    }
                    series->has_interval = variant > 0;
                    series->is_band = variant == 3;
                }
                draw_everywhere(&chart);
                moec_chart_release(&chart);
            }
}

static void test_chart__cells_of_every_shape(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1}, {1, 128}, {48, 8}, {9, 600}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int variant = 0; variant < 4; variant++) {
            struct moec_chart chart = make(MOEC_CHART_CELLS, 0);
            assert_int_equal(moec_chart_set_cells(&chart, shapes[i][0], shapes[i][1], NULL), MOEC_OK);
            for (size_t c = 0; c < (size_t)shapes[i][0] * shapes[i][1]; c++)
                chart.cells.values[c] = variant == 0   ? (double)NAN
                                        : variant == 1 ? 4
                                        : variant == 2 ? extreme(c)
                                                       : (double)c;
            (void)snprintf(chart.cells.words.missing, sizeof chart.cells.words.missing, "never reached");
            (void)snprintf(chart.cells.words.mark, sizeof chart.cells.words.mark, "mark");
            chart.cells.colours.mark = 2;
            chart.cells.numbers.decimals = 2;
            draw_everywhere(&chart);
            moec_chart_release(&chart);
        }
}

static void test_chart__files_appear_whole(void **state)
{
    (void)state;
    static const char *const names[] = {"c.png", "c.svg", "c.pdf", "c.csv"};
    char *folder = temporary_folder();
    struct moec_chart chart = make(MOEC_CHART_LINES, 0);
    struct moec_error err = {0};
    struct moec_chart_series *series = add(&chart, "", 4);
    for (uint64_t i = 0; i < 4; i++)
        series->y[i] = (double)(i * i);
    for (size_t i = 0; i < 4; i++) {
        char *path = temporary_path(folder, names[i]);
        size_t n[2];
        uint8_t *bytes[2];
        for (int round = 0; round < 2; round++) {
            assert_status(moec_chart_write(&chart, path, &err), MOEC_OK, err);
            bytes[round] = temporary_read(folder, names[i], &n[round]);
        }
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(bytes[0], bytes[1], n[0]);
        free(bytes[0]);
        free(bytes[1]);
        free(path);
    }
    char *path = temporary_path(folder, "missing/c.svg");
    assert_int_equal(moec_chart_write(&chart, path, &err), MOEC_ERR_IO);
    assert_int_equal(temporary_count(folder), 4);
    free(path);
    moec_chart_release(&chart);
    temporary_remove(folder);
}

static void test_chart__too_many_series_are_refused(void **state)
{
    (void)state;
    struct moec_chart chart = make(MOEC_CHART_LINES, 0);
    struct moec_chart_series *series = NULL;
    struct moec_error err = {0};
    for (int i = 0; i < MOEC_CHART_MAX_SERIES; i++)
        (void)add(&chart, "s", 2);
    assert_int_equal(moec_chart_add_series(&chart, "one more", 2, &series, &err), MOEC_ERR_LIMIT);
    moec_chart_release(&chart);
}

/* Styles repeat after MOEC_PLOT_N_STYLE; within them all colours differ, and not in hue alone. */
static void test_chart__series_colours_differ(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MOEC_PLOT_N_STYLE; i++)
        for (uint32_t j = i + 1; j < MOEC_PLOT_N_STYLE; j++) {
            struct moec_colour a = moec_colour_series(i), b = moec_colour_series(j);
            assert_true(abs(a.red - b.red) + abs(a.green - b.green) + abs(a.blue - b.blue) > 80);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chart__csv_is_what_is_shown),
        cmocka_unit_test(test_chart__csv_of_cells),
        cmocka_unit_test(test_chart__exact_numbers_read_back),
        cmocka_unit_test(test_chart__every_kind_with_extreme_numbers),
        cmocka_unit_test(test_chart__cells_of_every_shape),
        cmocka_unit_test(test_chart__files_appear_whole),
        cmocka_unit_test(test_chart__too_many_series_are_refused),
        cmocka_unit_test(test_chart__series_colours_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
