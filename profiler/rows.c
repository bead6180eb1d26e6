#include "profiler/rows.h"

#include "formats/compress.h"
#include "formats/file.h"
#include "formats/json.h"
#include "formats/memory.h"
#include "profiler/csv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Longest list of fields that a message shows. */
#define FIELD_LIST_BYTES 200

/* One row of any format, as templates see it. */
struct record {
    const char *text; /* plain text: the field `text` */
    size_t text_bytes;
    const struct moec_json *json;  /* or a JSON value */
    const struct moec_csv *header; /* or a CSV record with its header */
    const struct moec_csv *csv;
    uint64_t line;
    const char *unit; /* what `line` counts: "line" or "row" */
    const char *subject;
};

struct field_value {
    const char *bytes;
    size_t n_bytes;
    char number[40];
};

/* "'a', 'b' and 3 more": so that a wrong field name shows the right ones. */
static void list_name(char *list, size_t *used, const char *name, size_t n)
{
    if (*used + n + 8 >= FIELD_LIST_BYTES)
        return;
    *used += (size_t)snprintf(list + *used, FIELD_LIST_BYTES - *used, "%s'%.*s'", *used > 0 ? ", " : "",
                              (int)n, name);
}

static enum moec_status fail_missing(const struct record *record, const char *name, size_t n,
                                     struct moec_error *err)
{
    char list[FIELD_LIST_BYTES] = "";
    size_t used = 0;
    if (record->csv != NULL) {
        for (size_t i = 0; i < record->header->n_cell; i++)
            list_name(list, &used, record->header->text + record->header->cells[i].offset,
                      record->header->cells[i].n_bytes);
    } else if (record->json != NULL && moec_json_type(record->json) == MOEC_JSON_OBJECT) {
        for (struct moec_json_member m = moec_json_first(record->json); m.key != NULL;
             m = moec_json_next(record->json, m))
            list_name(list, &used, m.key, m.key_length);
    } else {
        list_name(list, &used, "text", 4);
    }
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "%s %" PRIu64 " of '%s' has no field '%.*s' that the task asks for; it has %s",
                     record->unit, record->line, record->subject, (int)n, name, used > 0 ? list : "none");
}

/* Strings as they are, integers and booleans as JSON writes them. */
static enum moec_status json_value(const struct record *record, const struct moec_json *node,
                                   const char *name, size_t n, struct field_value *value,
                                   struct moec_error *err)
{
    double number = 0;
    bool flag = false;
    switch (moec_json_type(node)) {
    case MOEC_JSON_STRING:
        return moec_json_as_string(node, name, &value->bytes, &value->n_bytes, err);
    case MOEC_JSON_INTEGER:
        MOEC_TRY(moec_json_as_double(node, name, -9e15, 9e15, &number, err));
        value->n_bytes = (size_t)snprintf(value->number, sizeof value->number, "%.0f", number);
        value->bytes = value->number;
        return MOEC_OK;
    case MOEC_JSON_REAL:
        MOEC_TRY(moec_json_as_double(node, name, -1e308, 1e308, &number, err));
        value->n_bytes = (size_t)snprintf(value->number, sizeof value->number, "%.15g", number);
        value->bytes = value->number;
        return MOEC_OK;
    case MOEC_JSON_BOOL:
        MOEC_TRY(moec_json_as_bool(node, name, &flag, err));
        value->bytes = flag ? "true" : "false";
        value->n_bytes = strlen(value->bytes);
        return MOEC_OK;
    default:
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "field '%.*s' in %s %" PRIu64 " of '%s' is %s, expected a string or a number",
                         (int)n, name, record->unit, record->line, record->subject,
                         moec_json_type_name(node));
    }
}

static enum moec_status find_field(const struct record *record, const char *name, size_t n,
                                   struct field_value *value, struct moec_error *err)
{
    if (record->csv != NULL) {
        for (size_t i = 0; i < record->header->n_cell; i++) {
            const struct moec_csv_cell *title = &record->header->cells[i];
            if (title->n_bytes != n || memcmp(record->header->text + title->offset, name, n) != 0)
                continue;
            value->bytes = record->csv->text + record->csv->cells[i].offset;
            value->n_bytes = record->csv->cells[i].n_bytes;
            return MOEC_OK;
        }
        return fail_missing(record, name, n, err);
    }
    bool is_text = n == 4 && memcmp(name, "text", 4) == 0;
    if (record->json != NULL && moec_json_type(record->json) == MOEC_JSON_OBJECT) {
        char key[MOEC_TASK_TEMPLATE_BYTES];
        memcpy(key, name, n);
        key[n] = '\0';
        const struct moec_json *node = moec_json_find(record->json, key);
        return node == NULL ? fail_missing(record, name, n, err)
                            : json_value(record, node, name, n, value, err);
    }
    if (!is_text)
        return fail_missing(record, name, n, err);
    if (record->json != NULL)
        return json_value(record, record->json, name, n, value, err);
    value->bytes = record->text;
    value->n_bytes = record->text_bytes;
    return MOEC_OK;
}

static enum moec_status append(struct moec_rows *rows, const char *bytes, size_t n, struct moec_error *err)
{
    /* Templates may repeat a field, so the text can outgrow the file. */
    if (n > 4 * MOEC_ROWS_MAX_BYTES - rows->text_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT, "the rows' prompts pass %" PRIu64 " bytes",
                         4 * MOEC_ROWS_MAX_BYTES);
    void *memory = rows->text;
    enum moec_status status =
        moec_grow(&memory, &rows->text_capacity, rows->text_bytes + n, 1, "text of the rows", err);
    rows->text = memory;
    MOEC_TRY(status);
    if (n > 0)
        memcpy(rows->text + rows->text_bytes, bytes, n);
    rows->text_bytes += n;
    return MOEC_OK;
}

static enum moec_status render(struct moec_rows *rows, const char *template, const struct record *record,
                               struct moec_error *err)
{
    const char *piece = NULL;
    size_t n = 0;
    bool is_field = false;
    while (moec_task_template_next(&template, &piece, &n, &is_field)) {
        struct field_value value = {.bytes = piece, .n_bytes = n};
        if (is_field)
            MOEC_TRY(find_field(record, piece, n, &value, err));
        MOEC_TRY(append(rows, value.bytes, value.n_bytes, err));
    }
    return MOEC_OK;
}

static enum moec_status add_row(struct moec_rows *rows, const struct moec_task *task,
                                const struct record *record, struct moec_error *err)
{
    if (rows->n_row == MOEC_ROWS_MAX_ROWS)
        return moec_fail(err, MOEC_ERR_LIMIT, "'%s' has more than %" PRIu64 " rows", record->subject,
                         MOEC_ROWS_MAX_ROWS);
    void *memory = rows->rows;
    enum moec_status status =
        moec_grow(&memory, &rows->row_capacity, rows->n_row + 1, sizeof *rows->rows, "rows", err);
    rows->rows = memory;
    MOEC_TRY(status);
    struct moec_row row = {.line = record->line, .prompt_offset = rows->text_bytes};
    MOEC_TRY(render(rows, task->prompt, record, err));
    row.prompt_bytes = rows->text_bytes - row.prompt_offset;
    row.reference_offset = rows->text_bytes;
    MOEC_TRY(render(rows, task->reference, record, err));
    row.reference_bytes = rows->text_bytes - row.reference_offset;
    rows->rows[rows->n_row++] = row;
    return MOEC_OK;
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

static enum moec_status parse_text(const struct moec_task *task, const char *bytes, size_t n_bytes,
                                   const char *subject, struct moec_rows *rows, struct moec_error *err)
{
    struct record record = {.line = 1, .unit = "line", .subject = subject};
    if (task->split == MOEC_TASK_SPLIT_FILE) {
        record.text = bytes;
        record.text_bytes = n_bytes;
        return n_bytes > 0 ? add_row(rows, task, &record, err) : MOEC_OK;
    }
    uint64_t line_number = 0;
    for (size_t at = 0; at < n_bytes;) {
        size_t length = 0;
        const char *line = next_line(bytes, n_bytes, &at, &length);
        line_number++;
        bool blank = is_blank(line, length);
        if (blank && record.text == NULL)
            continue;
        if (!blank && record.text == NULL) {
            record.text = line;
            record.line = line_number;
        }
        if (!blank)
            record.text_bytes = (size_t)(line + length - record.text);
        if (blank || task->split == MOEC_TASK_SPLIT_LINE) {
            MOEC_TRY(add_row(rows, task, &record, err));
            record.text = NULL;
        }
    }
    return record.text != NULL ? add_row(rows, task, &record, err) : MOEC_OK;
}

static enum moec_status check_json_row(const struct record *record, struct moec_error *err)
{
    enum moec_json_type type = moec_json_type(record->json);
    if (type == MOEC_JSON_OBJECT || type == MOEC_JSON_STRING)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT, "%s %" PRIu64 " of '%s' is %s, expected an object or a string",
                     record->unit, record->line, record->subject, moec_json_type_name(record->json));
}

static enum moec_status parse_jsonl(const struct moec_task *task, const char *bytes, size_t n_bytes,
                                    const char *subject, struct moec_rows *rows, struct moec_error *err)
{
    struct record record = {.unit = "line", .subject = subject};
    for (size_t at = 0; at < n_bytes;) {
        size_t length = 0;
        const char *line = next_line(bytes, n_bytes, &at, &length);
        record.line++;
        if (is_blank(line, length))
            continue;
        struct moec_json *root = NULL;
        enum moec_status status = moec_json_parse(line, length, MOEC_ROWS_MAX_BYTES, "the row", &root, err);
        if (status != MOEC_OK) {
            moec_error_prefix(err, "line %" PRIu64 " of '%s'", record.line, subject);
            return status;
        }
        record.json = root;
        status = check_json_row(&record, err);
        if (status == MOEC_OK)
            status = add_row(rows, task, &record, err);
        moec_json_free(root);
        MOEC_TRY(status);
    }
    return MOEC_OK;
}

static enum moec_status parse_json(const struct moec_task *task, const char *bytes, size_t n_bytes,
                                   const char *subject, struct moec_rows *rows, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct record record = {.unit = "row", .subject = subject};
    struct moec_json *root = NULL;
    MOEC_TRY(moec_json_parse(bytes, n_bytes, MOEC_ROWS_MAX_BYTES, subject, &root, err));
    if (moec_json_type(root) != MOEC_JSON_ARRAY) {
        status = moec_fail(err, MOEC_ERR_FORMAT,
                           "'%s' holds %s, expected an array of rows; one object a line is jsonl", subject,
                           moec_json_type_name(root));
        goto out;
    }
    for (size_t i = 0; i < moec_json_length(root); i++) {
        record.line = i + 1;
        record.json = moec_json_at(root, i);
        MOEC_TRY_OUT(check_json_row(&record, err));
        MOEC_TRY_OUT(add_row(rows, task, &record, err));
    }
out:
    moec_json_free(root);
    return status;
}

static enum moec_status parse_csv(const struct moec_task *task, char delimiter, const char *bytes,
                                  size_t n_bytes, const char *subject, struct moec_rows *rows,
                                  struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_csv header = {0}, csv = {0};
    bool more = false;
    moec_csv_init(&header, bytes, n_bytes, delimiter, subject);
    MOEC_TRY_OUT(moec_csv_next(&header, MOEC_ROWS_MAX_FIELDS, &more, err));
    if (!more) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "'%s' is empty, expected a header line", subject);
        goto out;
    }
    moec_csv_init(&csv, bytes, n_bytes, delimiter, subject);
    csv.at = header.at;
    csv.line = header.line;
    struct record record = {.unit = "line", .subject = subject, .header = &header, .csv = &csv};
    for (;;) {
        MOEC_TRY_OUT(moec_csv_next(&csv, MOEC_ROWS_MAX_FIELDS, &more, err));
        if (!more)
            break;
        record.line = csv.record_line;
        if (csv.n_cell != header.n_cell) {
            status =
                moec_fail(err, MOEC_ERR_FORMAT,
                          "the row at line %" PRIu64 " of '%s' has %zu fields, expected %zu as in its header",
                          csv.record_line, subject, csv.n_cell, header.n_cell);
            goto out;
        }
        MOEC_TRY_OUT(add_row(rows, task, &record, err));
    }
out:
    moec_csv_release(&csv);
    moec_csv_release(&header);
    return status;
}

enum moec_status moec_rows_parse(const struct moec_task *task, enum moec_task_format format, char delimiter,
                                 const char *bytes, size_t n_bytes, const char *subject,
                                 struct moec_rows *rows, struct moec_error *err)
{
    *rows = (struct moec_rows){0};
    MOEC_TRY(moec_task_check(task, err));
    if (n_bytes >= 2 && (memcmp(bytes, "\xff\xfe", 2) == 0 || memcmp(bytes, "\xfe\xff", 2) == 0))
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "'%s' is UTF-16 text, expected UTF-8", subject);
    if (n_bytes >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        bytes += 3;
        n_bytes -= 3;
    }
    enum moec_status status = MOEC_OK;
    switch (format) {
    case MOEC_TASK_FORMAT_TEXT:
        status = parse_text(task, bytes, n_bytes, subject, rows, err);
        break;
    case MOEC_TASK_FORMAT_JSONL:
        status = parse_jsonl(task, bytes, n_bytes, subject, rows, err);
        break;
    case MOEC_TASK_FORMAT_JSON:
        status = parse_json(task, bytes, n_bytes, subject, rows, err);
        break;
    case MOEC_TASK_FORMAT_CSV:
        if (delimiter == '\0')
            delimiter = ',';
        status = parse_csv(task, delimiter, bytes, n_bytes, subject, rows, err);
        break;
    default:
        status = moec_fail(err, MOEC_ERR_USAGE, "the format of '%s' is not given", subject);
    }
    if (status == MOEC_OK && rows->n_row == 0)
        status = moec_fail(err, MOEC_ERR_FORMAT, "'%s' has no rows", subject);
    if (status != MOEC_OK)
        moec_rows_release(rows);
    return status;
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

enum moec_status moec_rows_read(const struct moec_task *task, const char *path, struct moec_rows *rows,
                                struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    char *bytes = NULL, *content = NULL;
    size_t n_bytes = 0, n_content = 0;
    uint8_t digest[MOEC_SHA256_BYTES];
    *rows = (struct moec_rows){0};
    MOEC_TRY(moec_file_load(path, MOEC_ROWS_MAX_BYTES, &bytes, &n_bytes, err));
    const uint64_t file_bytes = n_bytes;
    moec_sha256(bytes, n_bytes, digest);
    if (n_bytes >= 2 && memcmp(bytes, "\x1f\x8b", 2) == 0) {
        status = moec_fail(err, MOEC_ERR_UNSUPPORTED,
                           "'%s' is gzip data; unpack it, or compress it with zstd instead", path);
        goto out;
    }
    if (moec_is_zstd(bytes, n_bytes)) {
        MOEC_TRY_OUT(
            moec_decompress_all(bytes, n_bytes, MOEC_ROWS_MAX_BYTES, &content, &n_content, path, err));
        free(bytes);
        bytes = content;
        content = NULL;
        n_bytes = n_content;
    }
    char delimiter = task->delimiter;
    enum moec_task_format named = format_of_name(path, &delimiter);
    enum moec_task_format format = task->format == MOEC_TASK_FORMAT_AUTO ? named : task->format;
    MOEC_TRY_OUT(moec_rows_parse(task, format, delimiter, bytes, n_bytes, path, rows, err));
    const char *slash = strrchr(path, '/');
    (void)snprintf(rows->name, sizeof rows->name, "%s", slash == NULL ? path : slash + 1);
    memcpy(rows->digest, digest, sizeof digest);
    rows->file_bytes = file_bytes;
out:
    free(bytes);
    free(content);
    return status;
}

void moec_rows_release(struct moec_rows *rows)
{
    free(rows->text);
    free(rows->rows);
    *rows = (struct moec_rows){0};
}
