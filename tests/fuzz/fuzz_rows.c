/* Hostile data files and hostile templates. The first byte chooses format, split and delimiter, the first
 * line after it is the prompt's template, the rest the data. What is accepted must lie within the text that
 * the rows own. */
#include "profiler/rows.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char delimiters[4] = {0, ';', '\t', '|'};
    if (size < 2)
        return 0;
    struct moec_task task = {.name = "fuzz",
                             .split = (enum moec_task_split)((data[0] >> 2 & 3) % 3),
                             .delimiter = delimiters[data[0] >> 4 & 3],
                             .reference = "{text}"};
    const enum moec_task_format format = (enum moec_task_format)((data[0] & 3) + 1);
    const char *bytes = (const char *)data + 1;
    size_t left = size - 1, n_template = 0;
    const char *end = memchr(bytes, '\n', left);
    n_template = end == NULL ? left : (size_t)(end - bytes);
    if (n_template < sizeof task.prompt)
        memcpy(task.prompt, bytes, n_template);
    bytes += n_template + (end != NULL);
    left -= n_template + (end != NULL);

    struct moec_rows rows;
    struct moec_error err = {0};
    if (moec_rows_parse(&task, format, task.delimiter, bytes, left, "data", &rows, &err) != MOEC_OK) {
        require(err.status != MOEC_OK && err.message[0] != '\0' && rows.rows == NULL && rows.text == NULL);
        return 0;
    }
    require(rows.n_row > 0);
    for (size_t i = 0; i < rows.n_row; i++) {
        const struct moec_row *row = &rows.rows[i];
        require(row->prompt_offset <= rows.text_bytes &&
                row->prompt_bytes <= rows.text_bytes - row->prompt_offset);
        require(row->reference_offset <= rows.text_bytes &&
                row->reference_bytes <= rows.text_bytes - row->reference_offset);
        require(i == 0 || row->line > rows.rows[i - 1].line);
    }
    moec_rows_release(&rows);
    return 0;
}
