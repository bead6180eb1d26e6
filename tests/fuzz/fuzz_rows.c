/* Hostile data files and hostile templates. The first byte chooses format, split and delimiter, the first
 * line after it is the prompt's template, the rest the data; bit 6 asks for choices, of the field `c` or (bit
 * 7) of two templates. What is accepted must lie within the text that the rows own. */
#include "profiler/tasks/rows.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Of text that is accepted as such, each CR LF loses one byte and nothing else changes its length. */
static void check_lines(const char *bytes, size_t n_bytes)
{
    struct moec_text_found found;
    struct moec_error err = {0};
    if (moec_text_check(bytes, n_bytes, "data", &found, &err) != MOEC_OK) {
        require(err.status == MOEC_ERR_UNSUPPORTED && strstr(err.message, "data") != NULL);
        return;
    }
    char *copy = malloc(n_bytes + 1);
    require(copy != NULL);
    if (n_bytes > 0)
        memcpy(copy, bytes, n_bytes);
    require(moec_text_unify_lines(&found, copy, n_bytes) == n_bytes - found.n_crlf);
    require(memchr(bytes, '\0', n_bytes) == NULL);
    free(copy);
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
    if ((data[0] & 0x40) != 0) {
        task.metric = MOEC_TASK_METRIC_ACCURACY;
        memcpy(task.choice, " {choice}", sizeof " {choice}");
        memcpy(task.list, "{letter} {choice}", sizeof "{letter} {choice}");
        memcpy(task.label, "{a}", sizeof "{a}");
        task.reference[0] = '\0';
        task.n_choice = (data[0] & 0x80) != 0 ? 2 : 0;
        memcpy(task.choices[0], "{c}", sizeof "{c}");
        memcpy(task.choices[1], "x", sizeof "x");
        if (task.n_choice == 0)
            memcpy(task.choices_field, "c", sizeof "c");
    }
    const enum moec_task_format format = (enum moec_task_format)((data[0] & 3) + 1);
    const char *bytes = (const char *)data + 1;
    size_t left = size - 1, n_template = 0;
    const char *end = memchr(bytes, '\n', left);
    n_template = end == NULL ? left : (size_t)(end - bytes);
    if (n_template < sizeof task.prompt)
        memcpy(task.prompt, bytes, n_template);
    bytes += n_template + (end != NULL);
    left -= n_template + (end != NULL);

    check_lines(bytes, left);
    struct moec_rows rows;
    struct moec_error err = {0};
    if (moec_rows_parse(&task, &(struct moec_task_data){format, task.delimiter, bytes, left, "data"}, &rows,
                        &err) != MOEC_OK) {
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
        require(row->n_choice == 0 || row->label < row->n_choice);
        require(row->first_choice <= rows.n_choice && row->n_choice <= rows.n_choice - row->first_choice);
        for (uint32_t k = 0; k < row->n_choice; k++) {
            const struct moec_row_choice *choice = &rows.choices[row->first_choice + k];
            require(choice->offset <= rows.text_bytes && choice->n_bytes <= rows.text_bytes - choice->offset);
        }
        require(i == 0 || row->line > rows.rows[i - 1].line);
    }
    moec_rows_release(&rows);
    return 0;
}
