/* A file is checked as text and its line ends are made alike before its format is parsed. Texts of all rows
 * are one array, into which rows hold offsets, since it moves as it grows. Memory is checked before each row.
 * Running text that is one row becomes that array without a copy. Labels are taken one a row, and their
 * number has to match. */
#include "profiler/tasks/rows.h"

#include "formats/base/compress.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "profiler/tasks/csv.h"
#include "profiler/tasks/row_fields.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What turns records into rows. */
struct row_maker {
    const struct moec_task *task;
    struct moec_rows *rows;
    enum moec_task_kind kind;
    struct moec_row_text raw, list; /* owned: choices as the row has them, and as the prompt lists them */
    struct {
        const char *text; /* borrowed, NULL when the task has none */
        size_t n_bytes, at;
        const char *path;
    } label_file;
    char **owned; /* borrowed: what was read, which may become the rows' text; NULL: it may not */
    struct {
        uint64_t limit_bytes; /* of the data and the rows; 0 = no bound */
        uint64_t data_bytes;  /* of the data that is held meanwhile */
    } memory;
};

#define MIB(n) ((double)(n) / (1 << 20))

/* ---- memory ---- */

static enum moec_status no_memory(const char *subject, uint64_t needed, uint64_t memory_bytes,
                                  struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "reading the data '%s' takes %.1f MiB or more, but text may take only %.1f MiB; "
                     "raise --work-memory or give less text",
                     subject, MIB(needed), MIB(memory_bytes));
}

/* Whether `more` bytes fit beside what is held. */
static enum moec_status check_memory(const struct row_maker *maker, uint64_t more, const char *subject,
                                     struct moec_error *err)
{
    const uint64_t needed = maker->memory.data_bytes + moec_rows_memory_bytes(maker->rows) + more;
    if (maker->memory.limit_bytes == 0 || needed <= maker->memory.limit_bytes)
        return MOEC_OK;
    return no_memory(subject, needed, maker->memory.limit_bytes, err);
}

/* The line at `*at` without its end, and `*at` behind it. */
static const char *next_line(const char *bytes, size_t n_bytes, size_t *at, size_t *length)
{
    const char *line = bytes + *at;
    const char *end = memchr(line, '\n', n_bytes - *at);
    *length = end == NULL ? n_bytes - *at : (size_t)(end - line);
    *at += *length + (end != NULL);
    if (*length > 0 && line[*length - 1] == '\r')
        --*length;
    return line;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    }
    return true;
}

/* ---- choices ---- */

/* Text of a choice within `raw`. */
struct raw_choice {
    size_t offset, n_bytes;
    char letter; /* A is the first; of choices after Z there is none */
};

static enum moec_status read_choices(struct row_maker *maker, const struct moec_row_fields *fields,
                                     struct raw_choice choices[MOEC_TASK_MAX_CHOICES], size_t *n,
                                     struct moec_error *err)
{
    const struct moec_task *task = maker->task;
    const bool is_array = task->n_choice == 0;
    const struct moec_json *array = NULL;
    *n = task->n_choice;
    if (is_array)
        MOEC_TRY(moec_row_fields_array(fields, task->choices_field, &array, n, err));
    if (*n < 2 || *n > MOEC_TASK_MAX_CHOICES)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s %" PRIu64 " of '%s' has %zu choices, expected 2..%d",
                         fields->unit, fields->line, fields->subject, *n, MOEC_TASK_MAX_CHOICES);
    maker->raw.n_bytes = 0;
    for (size_t i = 0; i < *n; i++) {
        choices[i].offset = maker->raw.n_bytes;
        if (is_array)
            MOEC_TRY(
                moec_row_fields_item(fields, task->choices_field, moec_json_at(array, i), &maker->raw, err));
        else
            MOEC_TRY(moec_row_fields_render(fields, task->choices[i], &maker->raw, err));
        choices[i].n_bytes = maker->raw.n_bytes - choices[i].offset;
        choices[i].letter = (char)('A' + i);
    }
    return MOEC_OK;
}

/* Renders `template` for a choice, whose fields {choice} and {letter} take places 1 and 2 of the extras. */
static enum moec_status render_choice(const struct row_maker *maker, struct moec_row_fields *fields,
                                      const struct raw_choice *choice, const char *template,
                                      struct moec_row_text *out, struct moec_error *err)
{
    fields->extras[1] = (struct moec_row_extra){"choice", maker->raw.bytes + choice->offset, choice->n_bytes};
    fields->extras[2] = (struct moec_row_extra){"letter", &choice->letter, choice->letter <= 'Z'};
    enum moec_status status = moec_row_fields_render(fields, template, out, err);
    fields->extras[1] = fields->extras[2] = (struct moec_row_extra){0};
    return status;
}

/* Sets row->label to the number that a label's text stands for. */
static enum moec_status read_label(const struct row_maker *maker, const struct moec_row_fields *fields,
                                   const char *text, size_t n_bytes, struct moec_row *row,
                                   struct moec_error *err)
{
    const size_t n_choice = row->n_choice;
    while (n_bytes > 0 && (text[n_bytes - 1] == ' ' || text[n_bytes - 1] == '\t'))
        n_bytes--;
    for (; n_bytes > 0 && (*text == ' ' || *text == '\t'); n_bytes--)
        text++;
    const uint32_t first = maker->task->first_label;
    size_t number = n_choice;
    if (n_bytes == 1 && *text >= 'A' && *text <= 'Z')
        number = (size_t)(*text - 'A');
    else if (n_bytes == 1 && *text >= '0' && *text <= '9')
        number = (size_t)(*text - '0') - first;
    else if (n_bytes == 2 && text[0] >= '1' && text[0] <= '2' && text[1] >= '0' && text[1] <= '9')
        number = (size_t)(10 * (text[0] - '0') + text[1] - '0') - first;
    if (number >= n_choice)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the label in %s %" PRIu64 " of '%s' is '%.*s', expected %" PRIu32 "..%zu or A..%c",
                         fields->unit, fields->line, fields->subject, (int)(n_bytes < 40 ? n_bytes : 40),
                         text, first, n_choice - 1 + first,
                         (char)('A' + (n_choice < 26 ? n_choice - 1 : 25)));
    row->label = (uint32_t)number;
    return MOEC_OK;
}

/* The label of a row by its template. */
static enum moec_status render_label(struct row_maker *maker, const struct moec_row_fields *fields,
                                     struct moec_row_text *out, struct moec_row *row, struct moec_error *err)
{
    const size_t start = out->n_bytes;
    MOEC_TRY(moec_row_fields_render(fields, maker->task->label, out, err));
    const enum moec_status status =
        read_label(maker, fields, out->bytes + start, out->n_bytes - start, row, err);
    out->n_bytes = start;
    if (status == MOEC_OK)
        maker->rows->choices[row->first_choice + row->label].is_right = true;
    return status;
}

/* Or by the row's array of ones and zeros. */
static enum moec_status mark_right(struct row_maker *maker, const struct moec_row_fields *fields,
                                   struct moec_row *row, struct moec_error *err)
{
    const struct moec_json *array = NULL;
    struct moec_row_choice *choices = &maker->rows->choices[row->first_choice];
    size_t n = 0;
    MOEC_TRY(moec_row_fields_array(fields, maker->task->right, &array, &n, err));
    if (n != row->n_choice)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field '%s' in %s %" PRIu64 " of '%s' has %zu values, expected one for each of the "
                         "%" PRIu32 " choices",
                         maker->task->right, fields->unit, fields->line, fields->subject, n, row->n_choice);
    row->label = row->n_choice;
    for (uint32_t i = 0; i < row->n_choice; i++) {
        double value = 0;
        MOEC_TRY(moec_json_as_double(moec_json_at(array, i), maker->task->right, 0, 1, &value, err));
        choices[i].is_right = value > 0;
        if (value > 0 && row->label == row->n_choice)
            row->label = i;
    }
    if (row->label < row->n_choice)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "field '%s' in %s %" PRIu64
                     " of '%s' marks no choice as right, expected a 1 for each right choice",
                     maker->task->right, fields->unit, fields->line, fields->subject);
}

/* Where the prompt has a choice in it, each choice has its own, and the row that of the right one. */
static enum moec_status add_prompts(struct row_maker *maker, struct moec_row_fields *fields,
                                    const struct raw_choice *raw, struct moec_row_text *out,
                                    struct moec_row *row, struct moec_error *err)
{
    struct moec_row_choice *choices = &maker->rows->choices[row->first_choice];
    const bool has_own = strstr(maker->task->prompt, "{choice}") != NULL;
    for (uint32_t i = 0; has_own && i < row->n_choice; i++) {
        choices[i].prompt_offset = out->n_bytes;
        MOEC_TRY(render_choice(maker, fields, &raw[i], maker->task->prompt, out, err));
        choices[i].prompt_bytes = out->n_bytes - choices[i].prompt_offset;
    }
    if (has_own) {
        row->prompt_offset = choices[row->label].prompt_offset;
        row->prompt_bytes = choices[row->label].prompt_bytes;
        return MOEC_OK;
    }
    fields->extras[1] = (struct moec_row_extra){"choices", maker->list.bytes, maker->list.n_bytes};
    row->prompt_offset = out->n_bytes;
    MOEC_TRY(moec_row_fields_render(fields, maker->task->prompt, out, err));
    row->prompt_bytes = out->n_bytes - row->prompt_offset;
    for (uint32_t i = 0; i < row->n_choice; i++) {
        choices[i].prompt_offset = row->prompt_offset;
        choices[i].prompt_bytes = row->prompt_bytes;
    }
    return MOEC_OK;
}

/* Choices, label and prompt of a row. */
static enum moec_status add_choices(struct row_maker *maker, struct moec_row_fields *fields,
                                    struct moec_row_text *out, struct moec_row *row, struct moec_error *err)
{
    struct moec_rows *rows = maker->rows;
    struct raw_choice choices[MOEC_TASK_MAX_CHOICES];
    size_t n = 0;
    MOEC_TRY(read_choices(maker, fields, choices, &n, err));
    MOEC_TRY(moec_grow((void **)&rows->choices, &rows->choice_capacity, rows->n_choice + n,
                       sizeof *rows->choices, "choices", err));
    row->first_choice = rows->n_choice;
    row->n_choice = (uint32_t)n;
    maker->list.n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        struct moec_row_choice *choice = &rows->choices[rows->n_choice + i];
        MOEC_TRY(render_choice(maker, fields, &choices[i], maker->task->list, &maker->list, err));
        *choice = (struct moec_row_choice){.offset = out->n_bytes};
        MOEC_TRY(render_choice(maker, fields, &choices[i], maker->task->choice, out, err));
        choice->n_bytes = out->n_bytes - choice->offset;
    }
    rows->n_choice += n;
    if (maker->task->right[0] != '\0')
        MOEC_TRY(mark_right(maker, fields, row, err));
    else
        MOEC_TRY(render_label(maker, fields, out, row, err));
    return add_prompts(maker, fields, choices, out, row, err);
}

/* ---- rows ---- */

/* {label} of the next row, where labels stand in a file of their own. */
static enum moec_status next_label(struct row_maker *maker, struct moec_row_fields *fields,
                                   struct moec_error *err)
{
    while (maker->label_file.at < maker->label_file.n_bytes) {
        size_t length = 0;
        const char *line =
            next_line(maker->label_file.text, maker->label_file.n_bytes, &maker->label_file.at, &length);
        if (is_blank(line, length))
            continue;
        fields->extras[0] = (struct moec_row_extra){"label", line, length};
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the label file '%s' has only %zu labels, but the data '%s' has more rows",
                     maker->label_file.path, maker->rows->n_row, fields->subject);
}

static enum moec_status render_row(struct row_maker *maker, struct moec_row_fields *fields,
                                   struct moec_row_text *out, struct moec_row *row, struct moec_error *err)
{
    if (maker->label_file.text != NULL)
        MOEC_TRY(next_label(maker, fields, err));
    if (maker->kind == MOEC_TASK_KIND_CHOICE) {
        MOEC_TRY(add_choices(maker, fields, out, row, err));
    } else {
        row->prompt_offset = out->n_bytes;
        MOEC_TRY(moec_row_fields_render(fields, maker->task->prompt, out, err));
        row->prompt_bytes = out->n_bytes - row->prompt_offset;
    }
    row->reference_offset = out->n_bytes;
    MOEC_TRY(moec_row_fields_render(fields, maker->task->reference, out, err));
    row->reference_bytes = out->n_bytes - row->reference_offset;
    return MOEC_OK;
}

static enum moec_status add_row(struct row_maker *maker, const struct moec_row_fields *fields,
                                struct moec_error *err)
{
    struct moec_rows *rows = maker->rows;
    if (rows->n_row == MOEC_ROWS_MAX_ROWS)
        return moec_fail(err, MOEC_ERR_LIMIT, "the data '%s' has more than %" PRIu64 " rows: give fewer rows",
                         fields->subject, MOEC_ROWS_MAX_ROWS);
    void *memory = rows->rows;
    enum moec_status status =
        moec_grow(&memory, &rows->row_capacity, rows->n_row + 1, sizeof *rows->rows, "rows", err);
    rows->rows = memory;
    MOEC_TRY(status);
    struct moec_row row = {.line = fields->line};
    struct moec_row_fields own = *fields;
    struct moec_row_text out = {.bytes = rows->text,
                                .n_bytes = rows->text_bytes,
                                .capacity = rows->text_capacity,
                                .limit_bytes = 4 * MOEC_ROWS_MAX_BYTES};
    MOEC_TRY(check_memory(maker, sizeof row, fields->subject, err));
    if (maker->memory.limit_bytes > 0)
        out.limit_bytes = rows->text_bytes + maker->memory.limit_bytes - maker->memory.data_bytes -
                          sizeof row - moec_rows_memory_bytes(rows);
    struct moec_error own_err = {0};
    status = render_row(maker, &own, &out, &row, &own_err);
    if (status == MOEC_ERR_LIMIT && maker->memory.limit_bytes > 0 && out.wanted_bytes > out.limit_bytes)
        status = no_memory(fields->subject, maker->memory.limit_bytes + (out.wanted_bytes - out.limit_bytes),
                           maker->memory.limit_bytes, err);
    else if (status != MOEC_OK)
        (void)moec_fail(err, status, "%s", own_err.message);
    rows->text = out.bytes;
    rows->text_capacity = out.capacity;
    MOEC_TRY(status);
    rows->text_bytes = out.n_bytes;
    rows->rows[rows->n_row++] = row;
    return MOEC_OK;
}

/* Running text that is one row without more becomes the rows' text itself. */
static bool take_whole(struct row_maker *maker, const char *bytes, size_t n_bytes)
{
    const struct moec_task *task = maker->task;
    if (maker->owned == NULL || maker->kind != MOEC_TASK_KIND_WINDOWS || maker->label_file.text != NULL ||
        strcmp(task->prompt, "{text}") != 0 || task->reference[0] != '\0')
        return false;
    struct moec_rows *rows = maker->rows;
    const size_t offset = (size_t)(bytes - *maker->owned);
    rows->text = *maker->owned;
    rows->text_bytes = rows->text_capacity = offset + n_bytes;
    *maker->owned = NULL;
    maker->memory.data_bytes = 0;
    rows->rows[0] = (struct moec_row){
        .prompt_offset = offset, .prompt_bytes = n_bytes, .reference_offset = offset + n_bytes, .line = 1};
    rows->n_row = 1;
    return true;
}

static enum moec_status parse_whole(struct row_maker *maker, const struct moec_task_data *data,
                                    struct moec_error *err)
{
    struct moec_rows *rows = maker->rows;
    const struct moec_row_fields fields = {.line = 1,
                                           .unit = "line",
                                           .subject = data->subject,
                                           .text = data->bytes,
                                           .text_bytes = data->n_bytes};
    if (data->n_bytes == 0)
        return MOEC_OK;
    MOEC_TRY(moec_grow((void **)&rows->rows, &rows->row_capacity, 1, sizeof *rows->rows, "rows", err));
    return take_whole(maker, data->bytes, data->n_bytes) ? MOEC_OK : add_row(maker, &fields, err);
}

static enum moec_status parse_text(struct row_maker *maker, const struct moec_task_data *data,
                                   struct moec_error *err)
{
    struct moec_row_fields fields = {.line = 1, .unit = "line", .subject = data->subject};
    if (maker->task->split == MOEC_TASK_SPLIT_FILE)
        return parse_whole(maker, data, err);
    uint64_t line_number = 0;
    for (size_t at = 0; at < data->n_bytes;) {
        size_t length = 0;
        const char *line = next_line(data->bytes, data->n_bytes, &at, &length);
        line_number++;
        bool blank = is_blank(line, length);
        if (blank && fields.text == NULL)
            continue;
        if (!blank && fields.text == NULL) {
            fields.text = line;
            fields.line = line_number;
        }
        if (!blank)
            fields.text_bytes = (size_t)(line + length - fields.text);
        if (blank || maker->task->split == MOEC_TASK_SPLIT_LINE) {
            MOEC_TRY(add_row(maker, &fields, err));
            fields.text = NULL;
        }
    }
    return fields.text != NULL ? add_row(maker, &fields, err) : MOEC_OK;
}

static enum moec_status check_json_row(const struct moec_row_fields *fields, struct moec_error *err)
{
    enum moec_json_type type = moec_json_type(fields->json);
    if (type == MOEC_JSON_OBJECT || type == MOEC_JSON_STRING)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT, "%s %" PRIu64 " of '%s' is %s, expected an object or a string",
                     fields->unit, fields->line, fields->subject, moec_json_type_name(fields->json));
}

static enum moec_status parse_jsonl(struct row_maker *maker, const char *unit,
                                    const struct moec_task_data *data, struct moec_error *err)
{
    struct moec_row_fields fields = {.unit = unit, .subject = data->subject};
    for (size_t at = 0; at < data->n_bytes;) {
        size_t length = 0;
        const char *line = next_line(data->bytes, data->n_bytes, &at, &length);
        fields.line++;
        if (is_blank(line, length))
            continue;
        struct moec_json *root = NULL;
        MOEC_TRY(check_memory(maker, length, data->subject, err)); /* the tree holds the text once more */
        enum moec_status status = moec_json_parse(line, length, MOEC_ROWS_MAX_BYTES, "the row", &root, err);
        if (status != MOEC_OK) {
            moec_error_prefix(err, "%s %" PRIu64 " of '%s'", unit, fields.line, data->subject);
            return status;
        }
        fields.json = root;
        status = check_json_row(&fields, err);
        if (status == MOEC_OK)
            status = add_row(maker, &fields, err);
        moec_json_free(root);
        MOEC_TRY(status);
    }
    return MOEC_OK;
}

static enum moec_status parse_json(struct row_maker *maker, const struct moec_task_data *data,
                                   struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_row_fields fields = {.unit = "row", .subject = data->subject};
    struct moec_json *root = NULL;
    MOEC_TRY(check_memory(maker, data->n_bytes, data->subject, err)); /* the tree holds the text once more */
    maker->memory.data_bytes += data->n_bytes;
    MOEC_TRY(moec_json_parse(data->bytes, data->n_bytes, MOEC_ROWS_MAX_BYTES, data->subject, &root, err));
    if (moec_json_type(root) != MOEC_JSON_ARRAY) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "the data '%s' holds %s, expected an array of rows; if the file has one object "
                           "per line, rename the file to .jsonl or set the task's format to jsonl",
                           data->subject, moec_json_type_name(root));
        goto out;
    }
    for (size_t i = 0; i < moec_json_length(root); i++) {
        fields.line = i + 1;
        fields.json = moec_json_at(root, i);
        MOEC_TRY_OUT(check_json_row(&fields, err));
        MOEC_TRY_OUT(add_row(maker, &fields, err));
    }
out:
    moec_json_free(root);
    return status;
}

static enum moec_status parse_csv(struct row_maker *maker, const struct moec_task_data *data,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_csv header = {0}, csv = {0};
    bool more = false;
    moec_csv_init(&header, data->bytes, data->n_bytes, data->delimiter, data->subject);
    MOEC_TRY_OUT(moec_csv_next(&header, MOEC_ROWS_MAX_FIELDS, &more, err));
    if (!more) {
        status =
            moec_fail(err, MOEC_ERR_FORMAT, "the data '%s' is empty, expected a header line", data->subject);
        goto out;
    }
    moec_csv_init(&csv, data->bytes, data->n_bytes, data->delimiter, data->subject);
    csv.at = header.at;
    csv.line = header.line;
    struct moec_row_fields fields = {
        .unit = "line", .subject = data->subject, .header = &header, .csv = &csv};
    for (;;) {
        MOEC_TRY_OUT(moec_csv_next(&csv, MOEC_ROWS_MAX_FIELDS, &more, err));
        if (!more)
            break;
        fields.line = csv.record_line;
        if (csv.n_cell != header.n_cell) {
            status =
                moec_fail(err, MOEC_ERR_FORMAT,
                          "the row at line %" PRIu64 " of '%s' has %zu fields, expected %zu as in its header",
                          csv.record_line, data->subject, csv.n_cell, header.n_cell);
            goto out;
        }
        MOEC_TRY_OUT(add_row(maker, &fields, err));
    }
out:
    moec_csv_release(&csv);
    moec_csv_release(&header);
    return status;
}

/* Rows that a script makes of the data's. */
static enum moec_status parse_reshaped(struct row_maker *maker, const struct moec_task_data *data,
                                       struct moec_error *err)
{
    char *lines = NULL;
    size_t n_lines = 0;
    MOEC_TRY(maker->task->reshape(maker->task, data, &lines, &n_lines, err));
    enum moec_status status = check_memory(maker, n_lines, data->subject, err);
    maker->memory.data_bytes += n_lines;
    const struct moec_task_data reshaped = {MOEC_TASK_FORMAT_JSONL, 0, lines, n_lines, data->subject};
    if (status == MOEC_OK)
        status = parse_jsonl(maker, data->format == MOEC_TASK_FORMAT_JSON ? "row" : "line", &reshaped, err);
    free(lines);
    return status;
}

static enum moec_status parse(struct row_maker *maker, const struct moec_task_data *data,
                              struct moec_error *err)
{
    struct moec_task_data text = *data;
    if (text.n_bytes >= 3 && memcmp(text.bytes, "\xef\xbb\xbf", 3) == 0) {
        text.bytes += 3;
        text.n_bytes -= 3;
    }
    if (text.delimiter == '\0')
        text.delimiter = ',';
    if (maker->task->reshape != NULL)
        return parse_reshaped(maker, &text, err);
    switch (text.format) {
    case MOEC_TASK_FORMAT_TEXT:
        return parse_text(maker, &text, err);
    case MOEC_TASK_FORMAT_JSONL:
        return parse_jsonl(maker, "line", &text, err);
    case MOEC_TASK_FORMAT_JSON:
        return parse_json(maker, &text, err);
    case MOEC_TASK_FORMAT_CSV:
        return parse_csv(maker, &text, err);
    default:
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the format of the data '%s' is unknown: set the task's field 'format'",
                         text.subject);
    }
}

/* Labels are told one after another, so a file of more of them belongs to other data. */
static enum moec_status check_labels(struct row_maker *maker, const char *subject, struct moec_error *err)
{
    while (maker->label_file.text != NULL && maker->label_file.at < maker->label_file.n_bytes) {
        size_t length = 0;
        const char *line =
            next_line(maker->label_file.text, maker->label_file.n_bytes, &maker->label_file.at, &length);
        if (!is_blank(line, length))
            return moec_fail(err, MOEC_ERR_MISMATCH,
                             "the label file '%s' has more labels than the data '%s' has rows (%zu)",
                             maker->label_file.path, subject, maker->rows->n_row);
    }
    return MOEC_OK;
}

static bool are_blank(const struct moec_rows *rows)
{
    for (size_t i = 0; i < rows->n_row; i++) {
        const struct moec_row *row = &rows->rows[i];
        if (row->n_choice > 0 || !moec_text_is_blank(rows->text + row->prompt_offset, row->prompt_bytes) ||
            !moec_text_is_blank(rows->text + row->reference_offset, row->reference_bytes))
            return false;
    }
    return true;
}

/* Parses what is known to be text. Its line ends are changed in place where it may become the rows' text. */
static enum moec_status parse_lines(struct row_maker *maker, const struct moec_task_data *data,
                                    struct moec_error *err)
{
    struct moec_rows *rows = maker->rows;
    struct moec_task_data unified = *data;
    char *copy = NULL;
    rows->has_new_lines = data->format == MOEC_TASK_FORMAT_TEXT && moec_text_has_foreign_lines(&rows->found);
    if (!rows->has_new_lines)
        return parse(maker, data, err);
    if (maker->owned != NULL) {
        unified.n_bytes = moec_text_unify_lines(&rows->found, *maker->owned, data->n_bytes);
        return parse(maker, &unified, err);
    }
    MOEC_TRY(moec_alloc((void **)&copy, data->n_bytes, 1, "text with other line ends", err));
    memcpy(copy, data->bytes, data->n_bytes);
    unified.bytes = copy;
    unified.n_bytes = moec_text_unify_lines(&rows->found, copy, data->n_bytes);
    const enum moec_status status = parse(maker, &unified, err);
    free(copy);
    return status;
}

static enum moec_status make_rows(struct row_maker *maker, const struct moec_task_data *data,
                                  struct moec_error *err)
{
    struct moec_rows *rows = maker->rows;
    *rows = (struct moec_rows){0};
    MOEC_TRY(moec_task_check(maker->task, err));
    maker->kind = moec_task_metric_kind(maker->task->metric);
    MOEC_TRY(moec_text_check(data->bytes, data->n_bytes, data->subject, &rows->found, err));
    enum moec_status status = parse_lines(maker, data, err);
    if (status == MOEC_OK && rows->n_row == 0)
        status = moec_fail(err, MOEC_ERR_FORMAT, "the data '%s' has no rows", data->subject);
    if (status == MOEC_OK && are_blank(rows))
        status = moec_fail(err, MOEC_ERR_FORMAT, "the data '%s' has nothing but white space, expected text",
                           data->subject);
    if (status == MOEC_OK)
        status = check_labels(maker, data->subject, err);
    free(maker->raw.bytes);
    free(maker->list.bytes);
    if (status != MOEC_OK)
        moec_rows_release(rows);
    return status;
}

enum moec_status moec_rows_parse(const struct moec_task *task, const struct moec_task_data *data,
                                 struct moec_rows *rows, struct moec_error *err)
{
    struct row_maker maker = {.task = task, .rows = rows};
    return make_rows(&maker, data, err);
}

static bool ends_with(const char *name, size_t n, const char *ending)
{
    size_t m = strlen(ending);
    return n >= m && memcmp(name + n - m, ending, m) == 0;
}

static enum moec_task_format format_of_name(const char *name, char *delimiter)
{
    size_t n = strlen(name);
    if (ends_with(name, n, ".zst"))
        n -= 4;
    if (ends_with(name, n, ".jsonl") || ends_with(name, n, ".ndjson"))
        return MOEC_TASK_FORMAT_JSONL;
    if (ends_with(name, n, ".json"))
        return MOEC_TASK_FORMAT_JSON;
    if (ends_with(name, n, ".csv") || ends_with(name, n, ".tsv")) {
        if (*delimiter == '\0')
            *delimiter = ends_with(name, n, ".tsv") ? '\t' : ',';
        return MOEC_TASK_FORMAT_CSV;
    }
    return MOEC_TASK_FORMAT_TEXT;
}

/* The file of labels that stands beside the data. */
static enum moec_status load_labels(const struct moec_task *task, const char *path, char **labels_path,
                                    char **labels, size_t *n_bytes, struct moec_error *err)
{
    const char *slash = strrchr(path, '/');
    size_t n = strlen(path), n_suffix = strlen(task->labels);
    if (ends_with(path, n, ".zst"))
        n -= 4;
    const char *dot = memrchr(path, '.', n);
    if (dot != NULL && (slash == NULL || dot > slash + 1))
        n = (size_t)(dot - path);
    MOEC_TRY(moec_alloc((void **)labels_path, n + n_suffix + 1, 1, "a path", err));
    memcpy(*labels_path, path, n);
    memcpy(*labels_path + n, task->labels, n_suffix);
    enum moec_status status = moec_file_load(*labels_path, MOEC_ROWS_MAX_BYTES, labels, n_bytes, err);
    struct moec_text_found found;
    if (status == MOEC_OK)
        status = moec_text_check(*labels, *n_bytes, *labels_path, &found, err);
    if (status != MOEC_OK)
        moec_error_prefix(err, "labels of task '%s'", task->name);
    return status;
}

/* What a file holds, unpacked, and the digest of the file as it is. `*bytes` is owned by the caller. */
static enum moec_status load_data(const char *path, uint64_t memory_bytes, struct moec_rows *rows,
                                  char **bytes, size_t *n_bytes, struct moec_error *err)
{
    const uint64_t limit =
        memory_bytes > 0 && memory_bytes < MOEC_ROWS_MAX_BYTES ? memory_bytes : MOEC_ROWS_MAX_BYTES;
    char *packed = NULL;
    size_t n_packed = 0;
    MOEC_TRY(moec_file_load(path, limit, bytes, n_bytes, err));
    rows->file_bytes = *n_bytes;
    moec_sha256(*bytes, *n_bytes, rows->digest);
    if (!moec_is_zstd(*bytes, *n_bytes)) {
        if (!ends_with(path, strlen(path), ".zst"))
            return MOEC_OK;
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the file '%s' is not zstd data, although its name ends in .zst: rename the file if it is not "
            "compressed",
            path);
    }
    packed = *bytes;
    n_packed = *n_bytes;
    *bytes = NULL;
    enum moec_status status =
        moec_decompress_all(packed, n_packed, limit - n_packed, bytes, n_bytes, path, err);
    free(packed);
    return status;
}

/* The same, where a limit that is passed is that of memory. */
static enum moec_status load_within(const char *path, uint64_t memory_bytes, struct moec_rows *rows,
                                    char **bytes, size_t *n_bytes, struct moec_error *err)
{
    struct moec_error own = {0};
    const enum moec_status status = load_data(path, memory_bytes, rows, bytes, n_bytes, &own);
    if (status == MOEC_ERR_LIMIT && memory_bytes > 0 && memory_bytes < MOEC_ROWS_MAX_BYTES)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "%s; text may take %.1f MiB: raise --work-memory or give less text", own.message,
                         MIB(memory_bytes));
    return status == MOEC_OK ? MOEC_OK : moec_fail(err, status, "%s", own.message);
}

enum moec_status moec_rows_read(const struct moec_task *task, const char *path, uint64_t memory_bytes,
                                struct moec_rows *rows, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    char *bytes = NULL, *labels = NULL, *labels_path = NULL;
    size_t n_bytes = 0;
    *rows = (struct moec_rows){0};
    struct moec_rows file = {0};
    struct row_maker maker = {
        .task = task, .rows = rows, .owned = &bytes, .memory.limit_bytes = memory_bytes};
    MOEC_TRY_OUT(load_within(path, memory_bytes, &file, &bytes, &n_bytes, err));
    struct moec_task_data data = {
        .delimiter = task->delimiter, .bytes = bytes, .n_bytes = n_bytes, .subject = path};
    const enum moec_task_format named = format_of_name(path, &data.delimiter);
    data.format = task->format == MOEC_TASK_FORMAT_AUTO ? named : task->format;
    if (task->labels[0] != '\0') {
        MOEC_TRY_OUT(load_labels(task, path, &labels_path, &labels, &maker.label_file.n_bytes, err));
        maker.label_file.text = labels;
        maker.label_file.path = labels_path;
    }
    maker.memory.data_bytes = n_bytes + maker.label_file.n_bytes;
    MOEC_TRY_OUT(make_rows(&maker, &data, err));
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    (void)moec_printable(name, strlen(name), false, rows->name, sizeof rows->name);
    memcpy(rows->digest, file.digest, sizeof file.digest);
    rows->file_bytes = file.file_bytes;
out:
    free(labels_path);
    free(labels);
    free(bytes);
    return status;
}

bool moec_rows_note(const struct moec_rows *rows, char *line, size_t capacity)
{
    const struct moec_text_found *found = &rows->found;
    char lines[128] = "";
    if (rows->has_new_lines)
        (void)snprintf(lines, sizeof lines, "%" PRIu64 " line ends %s are read as LF",
                       found->n_crlf > 0 ? found->n_crlf : found->n_cr,
                       found->n_crlf > 0 ? "of Windows (CR LF)" : "of old Macs (CR)");
    if (found->n_broken > 0)
        (void)snprintf(line, capacity,
                       "'%s': %s%s%" PRIu64 " places are not UTF-8, the first at byte %" PRIu64
                       "; each is read as U+FFFD",
                       rows->name, lines, lines[0] != '\0' ? "; " : "", found->n_broken, found->first_broken);
    else
        (void)snprintf(line, capacity, "'%s': %s", rows->name, lines);
    return rows->has_new_lines || found->n_broken > 0;
}

uint64_t moec_rows_memory_bytes(const struct moec_rows *rows)
{
    return rows->text_bytes + rows->n_row * sizeof *rows->rows + rows->n_choice * sizeof *rows->choices;
}

uint64_t moec_rows_left_bytes(const struct moec_rows *rows, uint64_t memory_bytes)
{
    const uint64_t held = moec_rows_memory_bytes(rows);
    return memory_bytes == 0 ? 0 : memory_bytes > held ? memory_bytes - held : 1;
}

void moec_rows_drop_texts(struct moec_rows *rows)
{
    free(rows->text);
    free(rows->rows);
    free(rows->choices);
    rows->text = NULL;
    rows->rows = NULL;
    rows->choices = NULL;
    rows->text_bytes = rows->n_row = rows->n_choice = 0;
    rows->text_capacity = rows->row_capacity = rows->choice_capacity = 0;
}

void moec_rows_release(struct moec_rows *rows)
{
    moec_rows_drop_texts(rows);
    *rows = (struct moec_rows){0};
}
