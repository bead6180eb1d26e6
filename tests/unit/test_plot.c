/* Plots and heatmaps: files of every kind, colours where they belong, text that fits its terminal. */
#include "formats/base/file.h"
#include "profiler/plot/plot.h"
#include "profiler/report/heatmap.h"
#include "profiler/report/terminal_heatmap.h"
#include "tests/unit/synthetic_profile.h"
#include "tests/unit/temporary.h"

#include <cairo.h>
#include <time.h>

/* cmocka's own comparison is of F32. */
#define assert_near(a, b, slack) assert_true(fabs((a) - (b)) <= (slack))

static struct moec_profile make(uint32_t n_layer, uint32_t n_expert, uint32_t every_unreached)
{
    const struct synthetic_shape shape = {.n_dense = 1,
                                          .n_moe_layer = n_layer,
                                          .n_expert = n_expert,
                                          .top_k = n_expert > 1 ? 2 : 1,
                                          .n_window = 6,
                                          .seq_len_tokens = 32,
                                          .n_bits = 3,
                                          .n_uniform = 4,
                                          .every_unreached = every_unreached,
                                          .n_key = 4};
    struct moec_profile profile;
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    return profile;
}

/* ---- plot ---- */

static void test_plot__format_by_ending(void **state)
{
    (void)state;
    enum moec_plot_format format;
    struct moec_error err = {0};
    assert_int_equal(moec_plot_format_of("a.b/c.PNG", &format, &err), MOEC_OK);
    assert_int_equal(format, MOEC_PLOT_PNG);
    assert_int_equal(moec_plot_format_of("c.svg", &format, &err), MOEC_OK);
    assert_int_equal(format, MOEC_PLOT_SVG);
    assert_int_equal(moec_plot_format_of("c.pdf", &format, &err), MOEC_OK);
    assert_int_equal(format, MOEC_PLOT_PDF);
    assert_int_equal(moec_plot_format_of("c.csv", &format, &err), MOEC_OK);
    assert_int_equal(format, MOEC_PLOT_CSV);
    assert_int_equal(moec_plot_format_of("png", &format, &err), MOEC_ERR_USAGE);
    assert_message(err, "'png' does not end in .png, .svg, .pdf or .csv");
    assert_int_equal(moec_plot_format_of("c.jpeg", &format, NULL), MOEC_ERR_USAGE);
}

static void test_plot__ticks_are_round_and_inside(void **state)
{
    (void)state;
    uint64_t seed = 7;
    struct moec_ticks ticks = moec_ticks_choose(1.17, 2.36, 9);
    assert_int_equal(ticks.n, 6);
    assert_near(ticks.first, 1.2, 1e-12);
    assert_near(ticks.step, 0.2, 1e-12);
    assert_int_equal(ticks.decimals, 1);
    ticks = moec_ticks_choose(0, 100, 6);
    assert_near(ticks.step, 20, 1e-12);
    assert_int_equal(ticks.decimals, 0);
    ticks = moec_ticks_choose(3, 3, 6);
    assert_int_equal(ticks.n, 1);
    for (int i = 0; i < 2000; i++) {
        double low = (double)random_float(&seed) * pow(10, random_u32(&seed) % 9);
        double high = low + (1e-3 + fabs((double)random_float(&seed))) * pow(10, random_u32(&seed) % 9);
        uint32_t most = 2 + random_u32(&seed) % 10;
        ticks = moec_ticks_choose(low, high, most);
        double last = ticks.first + (ticks.n - 1) * ticks.step, slack = ticks.step * 1e-6;
        assert_true(ticks.n <= most);
        if (ticks.n == 0)
            continue;
        assert_true(ticks.first >= low - slack && last <= high + slack);
        /* The printed step is the step. */
        char text[64];
        (void)snprintf(text, sizeof text, "%.*f", ticks.decimals, ticks.step);
        assert_near(strtod(text, NULL) / ticks.step, 1, 1e-9);
    }
}

static void test_plot__labels_of_categories_keep_apart(void **state)
{
    (void)state;
    assert_int_equal(moec_ticks_every(8, 48, 26), 1);
    assert_int_equal(moec_ticks_every(128, 8, 26), 4);
    assert_int_equal(moec_ticks_every(1, 1, 26), 1);
}

static void test_plot__colours_grow_lighter(void **state)
{
    (void)state;
    double before = -1;
    for (int i = 0; i <= 100; i++) {
        struct moec_colour c = moec_colour_of(i / 100.0);
        double luma = 0.299 * c.red + 0.587 * c.green + 0.114 * c.blue;
        assert_true(luma >= before);
        before = luma;
    }
    assert_int_equal(moec_colour_of(-1).blue, 84);
    assert_int_equal(moec_colour_of(NAN).blue, 84);
    assert_int_equal(moec_colour_of(2).red, 253);
    assert_int_equal(moec_colour_ink(moec_colour_of(0)).red, 255);
    assert_int_equal(moec_colour_ink(moec_colour_of(1)).red, 0);
}

static void test_plot__paragraph_wraps(void **state)
{
    (void)state;
    const struct moec_plot_font font = {.size = 8};
    double word = moec_plot_text_width(font, "quantisation");
    assert_true(word > 20);
    assert_int_equal(moec_plot_paragraph(NULL, (struct moec_plot_point){0, 0}, 10 * word, 12, font,
                                         "quantisation quantisation"),
                     1);
    assert_int_equal(moec_plot_paragraph(NULL, (struct moec_plot_point){0, 0}, 1.5 * word, 12, font,
                                         "quantisation quantisation"),
                     2);
    assert_int_equal(
        moec_plot_paragraph(NULL, (struct moec_plot_point){0, 0}, 1, 12, font, "quantisation quantisation"),
        2);
    assert_int_equal(moec_plot_paragraph(NULL, (struct moec_plot_point){0, 0}, 1, 12, font, ""), 0);
    char longest[5000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(moec_plot_paragraph(NULL, (struct moec_plot_point){0, 0}, 100, 12, font, longest), 5);
}

static void test_plot__sheet_too_large_is_refused(void **state)
{
    (void)state;
    struct moec_plot *plot = NULL;
    struct moec_error err = {0};
    assert_int_equal(
        moec_plot_open("a.png", &(struct moec_plot_sheet){MOEC_PLOT_PNG, 20000, 10, "t"}, &plot, &err),
        MOEC_ERR_LIMIT);
    assert_message(err, "use .csv");
    assert_int_equal(
        moec_plot_open("a.csv", &(struct moec_plot_sheet){MOEC_PLOT_CSV, 10, 10, "t"}, &plot, NULL),
        MOEC_ERR_USAGE);
}

/* ---- heatmap ---- */

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void test_plot__png_of_every_shape(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_layer, n_expert, width;
    } shapes[] = {{1, 1, 1400},   {8, 32, 2304},   {6, 16, 1920},
                  {16, 64, 2304}, {48, 128, 2432}, {2, 1000, 4384}};
    char *folder = temporary_folder(), *path = temporary_path(folder, "h.png");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct moec_profile profile = make(shapes[i].n_layer, shapes[i].n_expert, 0);
        struct moec_error err = {0};
        size_t n = 0;
        assert_status(moec_heatmap_write(&profile, 0, path, &err), MOEC_OK, err);
        uint8_t *bytes = temporary_read(folder, "h.png", &n);
        assert_memory_equal(bytes, "\x89PNG\r\n\x1a\n", 8);
        assert_int_equal(big_endian(bytes + 16), shapes[i].width);
        assert_in_range(big_endian(bytes + 20), 300, 2000);
        free(bytes);
        moec_profile_release(&profile);
    }
    assert_int_equal(temporary_count(folder), 1);
    free(path);
    temporary_remove(folder);
}

/* Pixels just inside the upper left corner of cells have the colours of their losses. */
static void test_plot__cells_have_their_colours(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "h.png");
    struct moec_profile profile = make(8, 32, 9);
    struct moec_heatmap map;
    struct moec_error err = {0};
    const double left = 62, top = 46, cell = 30;
    assert_status(moec_heatmap_write(&profile, 3, path, &err), MOEC_OK, err);
    assert_status(moec_heatmap_make(&profile, 3, &map, &err), MOEC_OK, err);
    cairo_surface_t *image = cairo_image_surface_create_from_png(path);
    assert_int_equal(cairo_surface_status(image), CAIRO_STATUS_SUCCESS);
    const uint8_t *pixels = cairo_image_surface_get_data(image);
    int stride = cairo_image_surface_get_stride(image);
    uint32_t n_hatched = 0;
    for (uint32_t s = 0; s < 8; s++)
        for (uint32_t e = 0; e < 32; e++) {
            int x = (int)(MOEC_PLOT_PNG_SCALE * (left + e * cell + 1)),
                y = (int)(MOEC_PLOT_PNG_SCALE * (top + s * cell + 1));
            uint32_t pixel;
            memcpy(&pixel, pixels + (ptrdiff_t)y * stride + 4 * (ptrdiff_t)x, sizeof pixel);
            struct moec_colour c = moec_heatmap_colour(&map, map.cells.loss[s * 32 + e]);
            if (map.cells.unclear[s * 32 + e])
                c = moec_colour_faded(c);
            uint32_t expected = (uint32_t)c.red << 16 | (uint32_t)c.green << 8 | c.blue;
            if (map.cells.reached[s * 32 + e])
                assert_int_equal(pixel & 0xffffff, expected);
            else
                n_hatched +=
                    (pixel & 0xff) == ((pixel >> 8) & 0xff) && (pixel & 0xff) == ((pixel >> 16) & 0xff);
        }
    assert_int_equal(map.counts.n_unreached, 29);
    assert_int_equal(n_hatched, map.counts.n_unreached);
    cairo_surface_destroy(image);
    moec_heatmap_release(&map);
    moec_profile_release(&profile);
    free(path);
    temporary_remove(folder);
}

/* The same profile gives the same bytes: later, and with other plots drawn in between. */
static void test_plot__same_bytes_a_second_later(void **state)
{
    (void)state;
    static const char *const names[] = {"h.png", "h.svg", "h.pdf", "h.csv"};
    static const char *const starts[] = {"\x89PNG", "<?xml", "%PDF-", "layer,"};
    char *folder = temporary_folder();
    struct moec_profile profile = make(4, 8, 7);
    struct moec_error err = {0};
    uint8_t *first[4];
    size_t n_first[4];
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < 4; i++) {
            char *path = temporary_path(folder, names[i]);
            size_t n = 0;
            assert_status(moec_heatmap_write(&profile, 0, path, &err), MOEC_OK, err);
            uint8_t *bytes = temporary_read(folder, names[i], &n);
            assert_memory_equal(bytes, starts[i], strlen(starts[i]));
            free(path);
            if (round == 0) {
                first[i] = bytes;
                n_first[i] = n;
                continue;
            }
            assert_int_equal(n, n_first[i]);
            assert_memory_equal(bytes, first[i], n);
            free(bytes);
            free(first[i]);
        }
        /* Cairo counts its surfaces. */
        char *other = temporary_path(folder, "other.svg");
        for (int i = 0; i < 11; i++)
            assert_status(moec_heatmap_write(&profile, 0, other, &err), MOEC_OK, err);
        free(other);
        (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    }
    moec_profile_release(&profile);
    temporary_remove(folder);
}

/* One layer of three experts whose losses are round numbers; the last is never reached. */
static void make_round(struct moec_profile *p)
{
    static const double percent[] = {2, -0.5, 1};
    *p = make(1, 3, 0);
    for (uint32_t w = 0; w < p->n_window; w++) {
        p->baseline.nll[w] = p->reference.nll[w] + log(1.01) * p->window_scored[w];
        for (uint32_t e = 0; e < 3; e++)
            for (uint32_t b = 0; b < p->n_bits; b++)
                moec_profile_expert_row(p, p->expert_nll, 0, e, b)[w] =
                    p->reference.nll[w] + log(1 + percent[e] / 100) * p->window_scored[w];
    }
    p->activations[0] = 11;
    p->activations[1] = 22;
    p->activations[2] = 0;
}

static void test_plot__csv_is_exact(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "h.csv");
    struct moec_profile profile;
    struct moec_error err = {0};
    size_t n = 0;
    make_round(&profile);
    assert_status(moec_heatmap_write(&profile, 8, path, &err), MOEC_OK, err);
    uint8_t *bytes = temporary_read(folder, "h.csv", &n);
    assert_string_equal((char *)bytes, "layer,expert,bits,reached,tokens,loss_percent,baseline_loss_percent\n"
                                       "1,0,8,1,11,2,1\n"
                                       "1,1,8,1,22,-0.5,1\n"
                                       "1,2,8,0,0,1,1\n");
    free(bytes);
    moec_profile_release(&profile);
    free(path);
    temporary_remove(folder);
}

/* What the caption says of experts is what their intervals say, and cells that may be noise are faded. */
static void test_plot__heatmap_caption(void **state)
{
    (void)state;
    static const uint32_t widths[] = {2, 8};
    struct moec_profile profile = make(8, 32, 0);
    struct moec_error err = {0};
    /* One expert that loses beyond doubt, one that gains. */
    for (uint32_t b = 0; b < profile.n_bits; b++)
        for (uint32_t w = 0; w < profile.n_window; w++) {
            const double base = profile.baseline.nll[w], scored = profile.window_scored[w];
            moec_profile_expert_row(&profile, profile.expert_nll, 3, 4, b)[w] = base + 0.2 * scored;
            moec_profile_expert_row(&profile, profile.expert_nll, 3, 5, b)[w] = base - 0.1 * scored;
        }
    for (size_t i = 0; i < 2; i++) {
        struct moec_heatmap map;
        struct moec_chart chart;
        char expected[96];
        uint64_t n_faded = 0;
        assert_status(moec_heatmap_make(&profile, widths[i], &map, &err), MOEC_OK, err);
        assert_status(moec_heatmap_chart(&profile, widths[i], &chart, &err), MOEC_OK, err);
        assert_int_equal(map.counts.n_worse + map.counts.n_better + map.counts.n_unclear,
                         8 * 32 - map.counts.n_unreached);
        assert_true(map.counts.n_worse >= 1 && map.counts.n_better >= 1 && !map.cells.unclear[3 * 32 + 4] &&
                    !map.cells.unclear[3 * 32 + 5]);
        assert_int_equal(map.range.is_diverging, widths[i] == 8);
        (void)snprintf(expected, sizeof expected, "%llu lose less, and for %llu (faded)",
                       (unsigned long long)map.counts.n_better, (unsigned long long)map.counts.n_unclear);
        assert_non_null(strstr(chart.caption, expected));
        assert_null(strstr(chart.caption, "low bitwidth"));
        for (uint32_t at = 0; at < 8 * 32; at++)
            n_faded += chart.cells.faded != NULL && chart.cells.faded[at];
        assert_int_equal(n_faded, map.counts.n_unclear);
        moec_chart_release(&chart);
        moec_heatmap_release(&map);
    }
    moec_profile_release(&profile);
}

static void test_plot__heatmap_values(void **state)
{
    (void)state;
    struct moec_profile profile;
    struct moec_heatmap map;
    struct moec_error err = {0};
    make_round(&profile);
    assert_status(moec_heatmap_make(&profile, 0, &map, &err), MOEC_OK, err);
    assert_int_equal(map.bits, 2);
    assert_near(map.cells.loss[0], 0.02, 1e-12);
    assert_near(map.range.baseline, 0.01, 1e-12);
    /* Colours begin at the baseline, and nothing under it has one of its own. */
    assert_near(map.range.low, 0.01, 1e-12);
    assert_near(map.range.high, 0.02, 1e-12);
    assert_int_equal(map.counts.n_unreached, 1);
    assert_true(moec_heatmap_unit(&map, 0.0075) == 0 && moec_heatmap_unit(&map, 0.01) == 0);
    assert_near(moec_heatmap_unit(&map, 0.02), 1, 1e-9);
    for (int i = 0; i <= 10; i++)
        assert_near(moec_heatmap_unit(&map, moec_heatmap_loss_at(&map, 0.1 * i)), 0.1 * i, 1e-9);
    /* By the logarithm: half of the range is more than half of the colours. */
    assert_true(moec_heatmap_unit(&map, 0.015) > 0.5);
    moec_heatmap_release(&map);
    /* One expert far above all others does not take the colours from them. */
    moec_profile_release(&profile);
    profile = make(8, 32, 0);
    double *row = moec_profile_expert_row(&profile, profile.expert_nll, 3, 4, 0);
    for (uint32_t w = 0; w < profile.n_window; w++)
        row[w] = profile.reference.nll[w] + log(3) * profile.window_scored[w];
    assert_status(moec_heatmap_make(&profile, 2, &map, &err), MOEC_OK, err);
    assert_near(map.range.largest, 2, 1e-9);
    uint32_t n_bright = 0;
    for (uint32_t i = 0; i < 8 * 32; i++)
        n_bright +=
            map.cells.loss[i] > map.range.baseline && moec_heatmap_unit(&map, map.cells.loss[i]) > 0.1;
    assert_true(n_bright > 20);
    moec_heatmap_release(&map);
    /* A broken variant has a loss beyond numbers; the heatmap has not. */
    for (uint32_t w = 0; w < profile.n_window; w++)
        row[w] = 1e14;
    assert_status(moec_heatmap_make(&profile, 2, &map, &err), MOEC_OK, err);
    assert_true(map.range.largest == MOEC_HEATMAP_MOST && isfinite(map.range.high));
    moec_heatmap_release(&map);
    assert_int_equal(moec_heatmap_make(&profile, 5, &map, &err), MOEC_ERR_USAGE);
    assert_message(err, "no expert was measured at 5 bits, expected one of 2, 3, 8");
    moec_profile_release(&profile);
}

/* File names are bytes; Cairo takes only UTF-8. */
static void test_plot__broken_names_are_drawn(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "h.svg");
    struct moec_profile profile = make(2, 4, 0);
    struct moec_error err = {0};
    memset(profile.data_name, 0xe2, sizeof profile.data_name - 1);
    memset(profile.task, 0x80, sizeof profile.task - 1);
    assert_status(moec_heatmap_write(&profile, 0, path, &err), MOEC_OK, err);
    moec_profile_release(&profile);
    free(path);
    temporary_remove(folder);
}

static void test_plot__failure_leaves_nothing(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "missing/h.svg");
    struct moec_profile profile = make(1, 2, 0);
    struct moec_error err = {0};
    assert_int_equal(moec_heatmap_write(&profile, 0, path, &err), MOEC_ERR_IO);
    free(path);
    path = temporary_path(folder, "h.gif");
    assert_int_equal(moec_heatmap_write(&profile, 0, path, NULL), MOEC_ERR_USAGE);
    assert_int_equal(temporary_count(folder), 0);
    moec_profile_release(&profile);
    free(path);
    temporary_remove(folder);
}

/* ---- terminal ---- */

static char *render(const struct moec_profile *profile, uint32_t columns, enum moec_terminal_colour colour,
                    bool utf8)
{
    const struct moec_terminal terminal = {.columns = columns, .colour = colour, .utf8 = utf8};
    struct moec_error err = {0};
    char *text = NULL;
    assert_status(moec_terminal_heatmap(profile, 0, &terminal, &text, &err), MOEC_OK, err);
    return text;
}

static void remove_escapes(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';) {
        if (*from == '\033') {
            from += strcspn(from, "m") + 1;
            continue;
        }
        *to++ = *from++;
    }
    *to = '\0';
}

static size_t widest_line(const char *text)
{
    size_t widest = 0, columns = 0;
    for (; *text != '\0'; text++) {
        if (*text == '\n')
            columns = 0;
        else if (((uint8_t)*text & 0xc0u) != 0x80u && ++columns > widest)
            widest = columns;
    }
    return widest;
}

/* Cells of all rows ("    7  ...") of the bands: words where they stand apart, characters where they do not.
 */
static uint32_t count_cells(const char *text, bool apart)
{
    uint32_t n = 0;
    bool inside = false;
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1) {
        size_t length = strcspn(line, "\n");
        if (strncmp(line, "layer  expert", 13) == 0)
            inside = true;
        else if (length == 0)
            inside = false;
        if (!inside || length < 8 || line[4] < '0' || line[4] > '9' || strncmp(line + 5, "  ", 2) != 0)
            continue;
        for (size_t i = 7; i < length; i++)
            n += apart ? line[i] != ' ' && (i == 7 || line[i - 1] == ' ') : line[i] != ' ';
    }
    return n;
}

static void test_plot__terminal_fits_and_shows_every_expert(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_layer, n_expert, columns;
        bool apart;
    } cases[] = {{4, 8, 80, true},     {6, 16, 80, true},    {8, 32, 80, true},     {16, 64, 80, false},
                 {24, 60, 80, false},  {48, 128, 80, false}, {48, 128, 200, false}, {2, 384, 80, false},
                 {48, 128, 60, false}, {4, 8, 60, true},     {1, 1, 80, true},      {3, 73, 80, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moec_profile profile =
            make(cases[i].n_layer, cases[i].n_expert, cases[i].n_expert > 1 ? 11 : 0);
        for (int utf8 = 0; utf8 < 2; utf8++) {
            char *plain = render(&profile, cases[i].columns, MOEC_TERMINAL_PLAIN, utf8);
            assert_true(widest_line(plain) <= cases[i].columns);
            assert_null(strchr(plain, '\033'));
            assert_null(strstr(plain, " \n"));
            assert_int_equal(count_cells(plain, cases[i].apart), cases[i].n_layer * cases[i].n_expert);
            for (const char *at = plain; !utf8 && *at != '\0'; at++)
                assert_true((uint8_t)*at < 0x80);
            /* Colour adds nothing but colour. */
            for (int colour = MOEC_TERMINAL_256; colour <= MOEC_TERMINAL_TRUE; colour++) {
                char *coloured = render(&profile, cases[i].columns, (enum moec_terminal_colour)colour, utf8);
                assert_non_null(strstr(coloured, colour == MOEC_TERMINAL_256 ? "\033[38;5;" : "\033[38;2;"));
                remove_escapes(coloured);
                assert_string_equal(coloured, plain);
                free(coloured);
            }
            free(plain);
        }
        moec_profile_release(&profile);
    }
}

static void test_plot__terminal_text(void **state)
{
    (void)state;
    struct moec_profile profile;
    make_round(&profile);
    (void)snprintf(profile.data_name, sizeof profile.data_name, "caf\xc3\xa9\033[31m\xc2\x9b\xff.txt");
    char *text = render(&profile, 80, MOEC_TERMINAL_PLAIN, false);
    assert_non_null(strstr(text, "Loss when one expert is INT2 and the others INT4, linear quantization\n"));
    assert_non_null(strstr(text, "data   caf??[31m??.txt, task language-modelling, 6 of 18 windows"));
    assert_non_null(strstr(text, "\n           0      1      2\n    1   2.00  -0.50      ?\n"));
    assert_non_null(strstr(text, "never reached by the data, loss unknown: 1\n"));
    assert_non_null(strstr(text, "layer 1 expert 0            2.00          +1.00         11\n"
                                 "layer 1 expert 1           -0.50          -1.50         22\n\n"));
    assert_non_null(strstr(text, "  (baseline)\n"));
    free(text);
    text = render(&profile, 80, MOEC_TERMINAL_PLAIN, true);
    assert_non_null(strstr(text, "caf\xc3\xa9?[31m??.txt"));
    free(text);
    moec_profile_release(&profile);
}

static void test_plot__terminal_names_the_scale(void **state)
{
    (void)state;
    struct moec_profile profile = make(2, 128, 0);
    for (uint32_t i = 0; i < 2 * 128; i++)
        profile.activations[i] = 1;
    char *text = render(&profile, 80, MOEC_TERMINAL_PLAIN, false);
    assert_non_null(strstr(text, "layer  expert 0 to 63\n"));
    assert_non_null(strstr(text, "layer  expert 64 to 127\n"));
    assert_non_null(strstr(text, "loss, %\n  .. "));
    assert_non_null(strstr(text, "  @@ "));
    assert_null(strstr(text, "never reached"));
    free(text);
    memset(profile.activations, 0, 2 * 128 * sizeof *profile.activations);
    text = render(&profile, 80, MOEC_TERMINAL_PLAIN, false);
    assert_non_null(strstr(text, "never reached by the data, loss unknown: 256\n"));
    assert_non_null(strstr(text, "the data reached no expert\n"));
    free(text);
    moec_profile_release(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plot__format_by_ending),
        cmocka_unit_test(test_plot__ticks_are_round_and_inside),
        cmocka_unit_test(test_plot__labels_of_categories_keep_apart),
        cmocka_unit_test(test_plot__colours_grow_lighter),
        cmocka_unit_test(test_plot__paragraph_wraps),
        cmocka_unit_test(test_plot__sheet_too_large_is_refused),
        cmocka_unit_test(test_plot__png_of_every_shape),
        cmocka_unit_test(test_plot__cells_have_their_colours),
        cmocka_unit_test(test_plot__same_bytes_a_second_later),
        cmocka_unit_test(test_plot__csv_is_exact),
        cmocka_unit_test(test_plot__heatmap_values),
        cmocka_unit_test(test_plot__heatmap_caption),
        cmocka_unit_test(test_plot__broken_names_are_drawn),
        cmocka_unit_test(test_plot__failure_leaves_nothing),
        cmocka_unit_test(test_plot__terminal_fits_and_shows_every_expert),
        cmocka_unit_test(test_plot__terminal_text),
        cmocka_unit_test(test_plot__terminal_names_the_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
