/* Reports: what profiles name stands there as text, pictures are data, every study is shown. */
#include "profiler/report/report.h"
#include "profiler/report/report_html.h"
#include "tests/unit/study_profile.h"
#include "tests/unit/temporary.h"

static char *write_report(const struct moec_profile *profile, const char *folder, const char *name)
{
    struct moec_figures figures;
    struct moec_error err = {0};
    char *path = temporary_path(folder, name);
    size_t n = 0;
    assert_status(moec_figures_make(profile, &figures, &err), MOEC_OK, err);
    assert_status(moec_report_write(profile, &figures, path, &err), MOEC_OK, err);
    moec_figures_release(&figures);
    free(path);
    return (char *)temporary_read(folder, name, &n);
}

static struct synthetic_shape shape_of(uint32_t n_layer, uint32_t n_expert)
{
    return (struct synthetic_shape){.n_moe_layer = n_layer,
                                    .n_expert = n_expert,
                                    .top_k = 2,
                                    .n_window = 4,
                                    .seq_len_tokens = 16,
                                    .n_bits = 2,
                                    .n_uniform = 3,
                                    .every_unreached = 7,
                                    .n_key = 3};
}

static void test_report__base64_is_rfc_4648(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "f", "fo", "foo", "foob", "fooba", "foobar"};
    static const char *const encoded[] = {"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
    for (size_t i = 0; i < 7; i++) {
        char *text = NULL, expected[64];
        size_t n = 0;
        FILE *stream = open_memstream(&text, &n);
        assert_non_null(stream);
        moec_html_data(stream, MOEC_PLOT_PNG, (const uint8_t *)texts[i], strlen(texts[i]));
        assert_int_equal(fclose(stream), 0);
        (void)snprintf(expected, sizeof expected, "data:image/png;base64,%s", encoded[i]);
        assert_string_equal(text, expected);
        free(text);
    }
}

static void test_report__names_are_text(void **state)
{
    (void)state;
    static char labels[][MOEC_STUDY_LABEL] = {"<script>a</script>", "\"onload=\"b", "' & c"};
    char *folder = temporary_folder();
    struct moec_profile profile;
    const struct synthetic_shape shape = shape_of(2, 8);
    assert_int_equal(study_profile(&shape, STUDY_USUAL, &profile), MOEC_OK);
    const struct moec_study_axis axes[] = {study_axis("moe_layer", 2, NULL, NULL),
                                           study_axis("predictor", 3, NULL, labels),
                                           study_axis("cut", 3, NULL, NULL)};
    assert_int_equal(study_add(&profile, "predict/recall", STUDY_USUAL, 0.2, 1.2, 3, axes), MOEC_OK);
    const struct moec_study own = {.name = "own/idea",
                                   .units = "<i>",
                                   .description = "<img src=x onerror=alert(1)>",
                                   .n_axis = 1,
                                   .axes = {study_axis("predictor", 3, NULL, labels)}};
    assert_int_equal(moec_profile_add_study(&profile, &own, NULL, NULL), MOEC_OK);
    (void)snprintf(profile.data_name, sizeof profile.data_name, "</title><script>d</script>");
    (void)snprintf(profile.task, sizeof profile.task, "<u>");
    (void)snprintf(profile.metric, sizeof profile.metric, "<s>");
    char *page = write_report(&profile, folder, "r.html");
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "\"onload"));
    assert_null(strstr(page, "<img src=x"));
    assert_null(strstr(page, "<u>"));
    assert_null(strstr(page, "<s>"));
    assert_null(strstr(page, "<i>"));
    assert_non_null(strstr(page, "&lt;script&gt;a&lt;/script&gt;"));
    assert_non_null(strstr(page, "own/idea: &lt;img src=x onerror=alert(1)&gt; [&lt;i&gt;]"));
    free(page);
    moec_profile_release(&profile);
    temporary_remove(folder);
}

static void test_report__same_bytes_for_any_values(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    for (int kind = 0; kind < STUDY_N_VALUES; kind++) {
        struct moec_profile profile;
        const struct synthetic_shape shape = shape_of(2, 4);
        assert_int_equal(study_profile(&shape, (enum study_values)kind, &profile), MOEC_OK);
        char *first = write_report(&profile, folder, "a.html"),
             *second = write_report(&profile, folder, "b.html");
        assert_string_equal(first, second);
        assert_non_null(strstr(first, "<img alt="));
        assert_non_null(strstr(first, "</html>\n"));
        free(first);
        free(second);
        moec_profile_release(&profile);
    }
    assert_int_equal(temporary_count(folder), 2);
    temporary_remove(folder);
}

static void test_report__many_cells_are_pixels(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct moec_profile profile;
    struct synthetic_shape shape = shape_of(2, 4);
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    char *page = write_report(&profile, folder, "small.html");
    assert_null(strstr(page, "data:image/png"));
    free(page);
    moec_profile_release(&profile);
    shape = shape_of(9, 64);
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    page = write_report(&profile, folder, "large.html");
    assert_non_null(strstr(page, "data:image/png;base64,iVBORw0KGgo"));
    free(page);
    moec_profile_release(&profile);
    temporary_remove(folder);
}

/* A row of the table of losses, as it must stand there; `name` is the end of its heading. */
static void check_loss_row(const char *page, const struct moec_profile *profile, const char *name,
                           const struct moec_measure *measure)
{
    char row[256];
    double n_token = 0, reference = 0, ours = 0, kl = 0;
    for (uint32_t w = 0; w < profile->n_window; w++) {
        n_token += profile->window_scored[w];
        reference += profile->reference.nll[w];
        ours += measure->nll[w];
        kl += measure->kl != NULL ? measure->kl[w] : 0;
    }
    (void)snprintf(row, sizeof row, "%s</th><td>%.4f</td><td>%.3f %%</td><td>", name, exp(ours / n_token),
                   100 * (exp((ours - reference) / n_token) - 1));
    const char *found = strstr(page, row);
    if (found == NULL)
        fail_msg("no row begins with '%s'", row);
    (void)snprintf(row, sizeof row, "<td>%.5f</td></tr>", kl / n_token);
    assert_non_null(strstr(found, row));
    assert_true(strstr(found, row) < strstr(found, "</tr>"));
}

/* Numbers of the page are those of the profile, in the units that stand beside them. */
static void test_report__numbers_are_the_profiles(void **state)
{
    (void)state;
    char *folder = temporary_folder();
    struct moec_profile profile;
    struct synthetic_shape shape = shape_of(2, 8);
    shape.n_window = 12, shape.n_document = 12; /* which makes parts be known */
    assert_int_equal(study_profile(&shape, STUDY_USUAL, &profile), MOEC_OK);
    for (uint32_t w = 0; w < shape.n_window; w++)
        profile.window_part[w] = w < 5 ? MOEC_PART_SEARCH : w < 8 ? MOEC_PART_SELECT : MOEC_PART_CERTIFICATE;
    char *page = write_report(&profile, folder, "r.html");
    check_loss_row(page, &profile, ">original", &profile.reference);
    check_loss_row(page, &profile, " (baseline)", &profile.baseline);
    check_loss_row(page, &profile, "2", &profile.uniform[0]);
    check_loss_row(page, &profile, "3", &profile.uniform[1]);
    assert_non_null(strstr(page, "5 windows search, 3 select, 4 certify; single experts on the first 12"));
    free(page);
    moec_profile_release(&profile);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report__base64_is_rfc_4648),
        cmocka_unit_test(test_report__names_are_text),
        cmocka_unit_test(test_report__same_bytes_for_any_values),
        cmocka_unit_test(test_report__many_cells_are_pixels),
        cmocka_unit_test(test_report__numbers_are_the_profiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
