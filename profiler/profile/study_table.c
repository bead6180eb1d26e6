/* Axes with one value go to the heading; the last of the others runs across and the rest count like an
 * odometer. Decimals are chosen for each column, percent for losses. Values of the axis that runs across lie
 * next to each other in a study, which bands rely on. */
#include "profiler/profile/study_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_COLUMNS 60
#define MOST_ACROSS   64 /* columns in a band */
#define N_SIBLING     3
#define CELL_TEXT     48

static const char *const sibling_names[N_SIBLING] = {"loss_low", "loss_high", "kl"};

/* How the values of one study are written. */
struct format {
    bool percent;
    bool whole; /* all of them are whole numbers */
    int decimals;
};

struct table {
    FILE *stream;
    const struct moec_study *study;
    struct format format;
    uint32_t axes[MOEC_STUDY_MAX_AXES]; /* those with more than one value */
    uint32_t n_axis;
    uint64_t strides[MOEC_STUDY_MAX_AXES]; /* of every axis of the study, in values */
    int label_width[MOEC_STUDY_MAX_AXES];
    struct format formats[MOST_ACROSS]; /* of the columns of a band */
};

/* ---- studies by name ---- */

static size_t group_length(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash != NULL ? (size_t)(slash - name) : strlen(name);
}

/* Length without the s of a plural. */
static size_t singular_length(const char *word, size_t n)
{
    return n > 1 && word[n - 1] == 's' ? n - 1 : n;
}

bool moec_study_matches(const struct moec_study *study, const char *what)
{
    const size_t n = singular_length(study->name, group_length(study->name));
    return strcmp(what, "all") == 0 || strcmp(what, study->name) == 0 ||
           (singular_length(what, strlen(what)) == n && strncmp(what, study->name, n) == 0);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Whether values are losses: fractions of the original's perplexity, shown in percent. */
static bool is_loss(const struct moec_study *study)
{
    return study->units[0] == '\0' && (ends_with(study->name, "loss") || ends_with(study->name, "loss_low") ||
                                       ends_with(study->name, "loss_high"));
}

const struct moec_study *moec_study_sibling(const struct moec_studies *studies,
                                            const struct moec_study *study, const char *dataset)
{
    char name[sizeof study->name + 32];
    if (!ends_with(study->name, "/loss"))
        return NULL;
    (void)snprintf(name, sizeof name, "%.*s/%s", (int)group_length(study->name), study->name, dataset);
    const struct moec_study *sibling = moec_studies_find(studies, name);
    if (sibling == NULL || sibling->n_axis != study->n_axis)
        return NULL;
    for (uint32_t a = 0; a < study->n_axis; a++) {
        if (sibling->axes[a].n != study->axes[a].n)
            return NULL;
    }
    return sibling;
}

const char *moec_study_axis_text(const struct moec_study_axis *axis, uint64_t i,
                                 char text[static MOEC_STUDY_LABEL])
{
    if (axis->labels != NULL)
        return axis->labels[i];
    (void)snprintf(text, MOEC_STUDY_LABEL, "%.6g", moec_study_axis_value(axis, i));
    return text;
}

/* ---- cells ---- */

/* Of `n` values that stand `stride` apart. */
static struct format format_of(const struct moec_study *study, uint64_t first, uint64_t n, uint64_t stride)
{
    struct format format = {.percent = is_loss(study), .whole = true};
    double most = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double value = study->values[first + i * stride];
        if (!isfinite(value))
            continue;
        most = fmax(most, fabs(value));
        format.whole = format.whole && value == floor(value);
    }
    if (format.percent)
        most *= 100;
    format.decimals = most >= 100 ? 1 : most >= 1 ? 2 : 3;
    return format;
}

static struct format format_of_all(const struct moec_study *study)
{
    return format_of(study, 0, moec_study_count(study), 1);
}

static const char *cell_text(struct format format, double value, char text[static CELL_TEXT])
{
    if (!isfinite(value))
        (void)snprintf(text, CELL_TEXT, "-");
    else if (format.percent)
        (void)snprintf(text, CELL_TEXT, "%.*f%%", format.decimals, 100 * value);
    else if (format.whole && fabs(value) < 1e15)
        (void)snprintf(text, CELL_TEXT, "%.0f", value);
    else
        (void)snprintf(text, CELL_TEXT, "%.4g", value);
    return text;
}

/* Of values as format_of takes them. */
static int widest_cell(const struct moec_study *study, struct format format, uint64_t first, uint64_t n,
                       uint64_t stride, int at_least)
{
    char text[CELL_TEXT];
    for (uint64_t i = 0; i < n; i++) {
        const int width = (int)strlen(cell_text(format, study->values[first + i * stride], text));
        at_least = width > at_least ? width : at_least;
    }
    return at_least;
}

static int widest_label(const struct moec_study_axis *axis, int at_least)
{
    char text[MOEC_STUDY_LABEL];
    for (uint64_t i = 0; i < axis->n; i++) {
        const int width = (int)strlen(moec_study_axis_text(axis, i, text));
        at_least = width > at_least ? width : at_least;
    }
    return at_least;
}

/* ---- tables ---- */

static void put_heading(const struct table *table)
{
    const struct moec_study *study = table->study;
    char text[MOEC_STUDY_LABEL];
    (void)fprintf(table->stream, "%s", study->name);
    if (study->units[0] != '\0')
        (void)fprintf(table->stream, " (%s)", study->units);
    if (study->description[0] != '\0')
        (void)fprintf(table->stream, ": %s", study->description);
    if (study->source[0] != '\0')
        (void)fprintf(table->stream, " [%s]", study->source);
    for (uint32_t a = 0; a < study->n_axis; a++) {
        if (study->axes[a].n == 1)
            (void)fprintf(table->stream, "; %s %s", study->axes[a].name,
                          moec_study_axis_text(&study->axes[a], 0, text));
    }
    (void)fputc('\n', table->stream);
}

/* Index among the values of the study of row r, the first `n` varying axes counted out. */
static uint64_t row_start(const struct table *table, uint32_t n, uint64_t r,
                          uint64_t index[MOEC_STUDY_MAX_AXES])
{
    uint64_t at = 0;
    for (uint32_t i = n; i-- > 0;) {
        const struct moec_study_axis *axis = &table->study->axes[table->axes[i]];
        index[i] = r % axis->n;
        r /= axis->n;
        at += index[i] * table->strides[table->axes[i]];
    }
    return at;
}

static uint64_t row_count(const struct table *table, uint32_t n)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i < n; i++)
        rows *= table->study->axes[table->axes[i]].n;
    return rows;
}

static void put_row_labels(const struct table *table, uint32_t n, const uint64_t index[MOEC_STUDY_MAX_AXES])
{
    char text[MOEC_STUDY_LABEL];
    for (uint32_t i = 0; i < n; i++)
        (void)fprintf(table->stream, "  %-*s", table->label_width[i],
                      moec_study_axis_text(&table->study->axes[table->axes[i]], index[i], text));
}

static void put_axis_names(const struct table *table, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        (void)fprintf(table->stream, "  %-*s", table->label_width[i],
                      table->study->axes[table->axes[i]].name);
}

/* At most one axis varies: a value a line, siblings beside it. */
static void put_list(const struct table *table, const struct moec_studies *studies)
{
    const struct moec_study *columns[1 + N_SIBLING] = {table->study};
    const char *heads[1 + N_SIBLING] = {is_loss(table->study) ? "loss" : "value"};
    struct format formats[1 + N_SIBLING] = {table->format};
    int widths[1 + N_SIBLING];
    uint32_t n = 1;
    for (size_t i = 0; i < N_SIBLING; i++) {
        const struct moec_study *sibling = moec_study_sibling(studies, table->study, sibling_names[i]);
        if (sibling == NULL)
            continue;
        columns[n] = sibling;
        formats[n] = is_loss(sibling) ? table->format : format_of_all(sibling);
        heads[n++] = sibling_names[i];
    }
    put_axis_names(table, table->n_axis);
    for (uint32_t c = 0; c < n; c++) {
        widths[c] =
            widest_cell(columns[c], formats[c], 0, moec_study_count(columns[c]), 1, (int)strlen(heads[c]));
        (void)fprintf(table->stream, "  %*s", widths[c], heads[c]);
    }
    (void)fputc('\n', table->stream);
    const uint64_t rows = row_count(table, table->n_axis);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t index[MOEC_STUDY_MAX_AXES] = {0};
        const uint64_t at = row_start(table, table->n_axis, r, index);
        put_row_labels(table, table->n_axis, index);
        for (uint32_t c = 0; c < n; c++) {
            char text[CELL_TEXT];
            (void)fprintf(table->stream, "  %*s", widths[c],
                          cell_text(formats[c], columns[c]->values[at], text));
        }
        (void)fputc('\n', table->stream);
    }
}

/* Columns first .. end - 1 of the axis that runs across, whose values lie next to each other. */
static void put_band(struct table *table, uint64_t first, uint64_t end, int width)
{
    const uint32_t n = table->n_axis - 1, across = table->axes[n];
    const struct moec_study_axis *axis = &table->study->axes[across];
    int indent = 0;
    for (uint32_t i = 0; i < n; i++)
        indent += 2 + table->label_width[i];
    (void)fprintf(table->stream, "%*s  %s\n", indent, "", axis->name);
    put_axis_names(table, n);
    for (uint64_t c = first; c < end; c++) {
        char text[MOEC_STUDY_LABEL];
        (void)fprintf(table->stream, "  %*s", width, moec_study_axis_text(axis, c, text));
    }
    (void)fputc('\n', table->stream);
    const uint64_t rows = row_count(table, n);
    for (uint64_t c = first; c < end; c++)
        table->formats[c - first] = format_of(table->study, c, rows, axis->n);
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t index[MOEC_STUDY_MAX_AXES] = {0};
        const uint64_t at = row_start(table, n, r, index);
        put_row_labels(table, n, index);
        for (uint64_t c = first; c < end; c++) {
            char text[CELL_TEXT];
            (void)fprintf(table->stream, "  %*s", width,
                          cell_text(table->formats[c - first], table->study->values[at + c], text));
        }
        (void)fputc('\n', table->stream);
    }
}

static void put_matrix(struct table *table, const struct moec_studies *studies, uint32_t columns)
{
    const uint32_t across = table->axes[table->n_axis - 1];
    const struct moec_study_axis *axis = &table->study->axes[across];
    const uint64_t rows = row_count(table, table->n_axis - 1);
    int width = widest_label(axis, 1);
    for (uint64_t c = 0; c < axis->n; c++)
        width = widest_cell(table->study, format_of(table->study, c, rows, axis->n), c, rows, axis->n, width);
    uint32_t indent = 0;
    for (uint32_t i = 0; i + 1 < table->n_axis; i++)
        indent += 2 + (uint32_t)table->label_width[i];
    uint64_t band = columns > indent ? (columns - indent) / ((uint32_t)width + 2) : 1;
    band = band == 0 ? 1 : band > MOST_ACROSS ? MOST_ACROSS : band;
    for (uint64_t first = 0; first < axis->n; first += band)
        put_band(table, first, axis->n - first < band ? axis->n : first + band, width);
    if (moec_study_sibling(studies, table->study, "loss_high") != NULL) {
        const int n = (int)group_length(table->study->name);
        (void)fprintf(table->stream, "  ends of the 95 %% intervals: %.*s/loss_low, %.*s/loss_high\n", n,
                      table->study->name, n, table->study->name);
    }
}

enum moec_status moec_study_table(const struct moec_studies *studies, const struct moec_study *study,
                                  uint32_t columns, char **text, struct moec_error *err)
{
    struct table table = {.study = study, .format = format_of_all(study)};
    size_t length = 0;
    *text = NULL;
    table.stream = open_memstream(text, &length);
    if (table.stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table of '%s'", study->name);
    uint64_t stride = 1;
    for (uint32_t a = study->n_axis; a-- > 0; stride *= study->axes[a].n)
        table.strides[a] = stride;
    for (uint32_t a = 0; a < study->n_axis; a++) {
        if (study->axes[a].n == 1)
            continue;
        table.label_width[table.n_axis] = widest_label(&study->axes[a], (int)strlen(study->axes[a].name));
        table.axes[table.n_axis++] = a;
    }
    put_heading(&table);
    if (table.n_axis <= 1)
        put_list(&table, studies);
    else
        put_matrix(&table, studies, columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns);
    if (fclose(table.stream) == 0)
        return MOEC_OK;
    free(*text);
    *text = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: table of '%s'", study->name);
}

enum moec_status moec_study_list(const struct moec_studies *studies, char **text, struct moec_error *err)
{
    size_t length = 0;
    *text = NULL;
    FILE *stream = open_memstream(text, &length);
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: list of studies");
    for (uint32_t i = 0; i < studies->n; i++) {
        const struct moec_study *study = &studies->items[i];
        (void)fprintf(stream, "%s (", study->name);
        for (uint32_t a = 0; a < study->n_axis; a++)
            (void)fprintf(stream, "%s%s %" PRIu64, a > 0 ? ", " : "", study->axes[a].name, study->axes[a].n);
        (void)fprintf(stream, "): %s\n", study->description);
    }
    if (fclose(stream) == 0)
        return MOEC_OK;
    free(*text);
    *text = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: list of studies");
}
