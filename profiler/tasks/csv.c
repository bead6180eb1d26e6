/* A cell is an offset into text that the next record overwrites. Quoted text is copied in pieces between its
 * doubled quotes, of which one stays. Lines are counted inside quotes too, so that an error names the right
 * one. */
#include "profiler/tasks/csv.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

void moec_csv_init(struct moec_csv *csv, const char *bytes, size_t n_bytes, char delimiter,
                   const char *subject)
{
    *csv = (struct moec_csv){
        .bytes = bytes, .n_bytes = n_bytes, .line = 1, .delimiter = delimiter, .subject = subject};
}

void moec_csv_release(struct moec_csv *csv)
{
    free(csv->cells);
    free(csv->text);
    *csv = (struct moec_csv){0};
}

/* Steps over one line end at `at`, counting it. */
static void skip_line_end(struct moec_csv *csv)
{
    if (csv->bytes[csv->at] == '\r' && csv->at + 1 < csv->n_bytes && csv->bytes[csv->at + 1] == '\n')
        csv->at++;
    csv->at++;
    csv->line++;
}

static bool at_line_end(const struct moec_csv *csv)
{
    return csv->bytes[csv->at] == '\n' || csv->bytes[csv->at] == '\r';
}

static enum moec_status put(struct moec_csv *csv, const char *bytes, size_t n, struct moec_error *err)
{
    void *memory = csv->text;
    enum moec_status status = /* of empty cells there is text too, to point into */
        moec_grow(&memory, &csv->text_capacity, csv->text_bytes + n + 1, 1, "a CSV record", err);
    csv->text = memory;
    MOEC_TRY(status);
    if (n > 0)
        memcpy(csv->text + csv->text_bytes, bytes, n);
    csv->text_bytes += n;
    return MOEC_OK;
}

/* The field from its opening quote to behind its closing one. */
static enum moec_status read_quoted(struct moec_csv *csv, struct moec_error *err)
{
    uint64_t opened = csv->line;
    csv->at++;
    for (;;) {
        size_t begin = csv->at;
        while (csv->at < csv->n_bytes && csv->bytes[csv->at] != '"') {
            if (at_line_end(csv))
                skip_line_end(csv);
            else
                csv->at++;
        }
        if (csv->at == csv->n_bytes)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "the CSV file '%s' ends within a quoted field that begins on line %" PRIu64,
                             csv->subject, opened);
        bool doubled = csv->at + 1 < csv->n_bytes && csv->bytes[csv->at + 1] == '"';
        MOEC_TRY(put(csv, csv->bytes + begin, csv->at - begin + doubled, err));
        csv->at += 1 + (size_t)doubled;
        if (!doubled)
            break;
    }
    if (csv->at < csv->n_bytes && csv->bytes[csv->at] != csv->delimiter && !at_line_end(csv))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the CSV file '%s' has text after the closing quote of a field on line %" PRIu64
                         "; write a quote inside quotes twice",
                         csv->subject, csv->line);
    return MOEC_OK;
}

static enum moec_status read_plain(struct moec_csv *csv, struct moec_error *err)
{
    size_t begin = csv->at;
    while (csv->at < csv->n_bytes && csv->bytes[csv->at] != csv->delimiter && !at_line_end(csv))
        csv->at++;
    return put(csv, csv->bytes + begin, csv->at - begin, err);
}

enum moec_status moec_csv_next(struct moec_csv *csv, size_t max_cells, bool *more, struct moec_error *err)
{
    csv->n_cell = 0;
    csv->text_bytes = 0;
    while (csv->at < csv->n_bytes && at_line_end(csv))
        skip_line_end(csv);
    *more = csv->at < csv->n_bytes;
    if (!*more)
        return MOEC_OK;
    csv->record_line = csv->line;
    for (;;) {
        if (csv->n_cell == max_cells)
            return moec_fail(err, MOEC_ERR_LIMIT,
                             "the CSV file '%s' has more than %zu fields on line %" PRIu64, csv->subject,
                             max_cells, csv->record_line);
        void *memory = csv->cells;
        enum moec_status status = moec_grow(&memory, &csv->cell_capacity, csv->n_cell + 1, sizeof *csv->cells,
                                            "cells of a CSV record", err);
        csv->cells = memory;
        MOEC_TRY(status);
        size_t begin = csv->text_bytes;
        bool quoted = csv->at < csv->n_bytes && csv->bytes[csv->at] == '"';
        MOEC_TRY(quoted ? read_quoted(csv, err) : read_plain(csv, err));
        csv->cells[csv->n_cell++] = (struct moec_csv_cell){begin, csv->text_bytes - begin};
        if (csv->at == csv->n_bytes)
            return MOEC_OK;
        if (csv->bytes[csv->at] != csv->delimiter) {
            skip_line_end(csv);
            return MOEC_OK;
        }
        csv->at++;
    }
}
