/* Renders chat templates: `render_chat TEMPLATE VARIABLES.json` prints the text that the template gives for
 * an object of variables (messages, tools, bos_token, ...), on Sunday, 22 November 2026, 13:05:09; `-` as the
 * variables only parses it. With a third argument it prints marks instead: one character for each byte, u for
 * what came from the variables and t for what came from the template. */
#include "formats/base/file.h"
#include "runtime/chat/chat_template.h"
#include "tests/unit/chat_json.h"

#include <stdio.h>
#include <stdlib.h>

static enum moec_status render(char **argv, bool shows_marks, struct moec_chat_template **chat_template,
                               struct moec_chat_arena *arena, struct moec_error *err)
{
    char *text_bytes = NULL;
    size_t n_bytes = 0;
    struct moec_json *root = NULL;
    struct moec_chat_value variables, text;
    const struct tm date = {
        .tm_year = 126, .tm_mon = 10, .tm_mday = 22, .tm_hour = 13, .tm_min = 5, .tm_sec = 9, .tm_yday = 325};
    MOEC_TRY(moec_file_load(argv[1], 1u << 24, &text_bytes, &n_bytes, err));
    enum moec_status status = moec_chat_template_parse(text_bytes, n_bytes, chat_template, err);
    free(text_bytes);
    if (status != MOEC_OK || strcmp(argv[2], "-") == 0)
        return status;
    MOEC_TRY(moec_file_load(argv[2], 1u << 24, &text_bytes, &n_bytes, err));
    status = moec_json_parse(text_bytes, n_bytes, 1u << 24, argv[2], &root, err);
    free(text_bytes);
    if (status == MOEC_OK)
        status = chat_from_json(arena, root, &variables, err);
    if (status == MOEC_OK)
        status = moec_chat_measure(&variables, err);
    if (status == MOEC_OK)
        status = moec_chat_template_render(*chat_template, variables.as.dict, &date, arena, &text, err);
    moec_json_free(root);
    if (status != MOEC_OK)
        return status;
    const struct moec_chat_string *string = text.as.string;
    for (size_t i = 0; i < string->n_bytes; i++) {
        const uint8_t mark = string->marks != NULL ? string->marks[i] : string->mark;
        (void)putchar(!shows_marks ? string->bytes[i] : mark != 0 ? 'u' : 't');
    }
    return MOEC_OK;
}

int main(int argc, char **argv)
{
    struct moec_chat_template *chat_template = NULL;
    struct moec_chat_arena arena = {0};
    struct moec_error err = {0};
    if (argc < 3) {
        (void)fprintf(stderr, "usage: render_chat TEMPLATE VARIABLES.json [marks]\n");
        return 2;
    }
    const enum moec_status status = render(argv, argc > 3, &chat_template, &arena, &err);
    moec_chat_template_free(chat_template);
    moec_chat_arena_release(&arena);
    if (status != MOEC_OK)
        (void)fprintf(stderr, "render_chat: %s\n", err.message);
    return status == MOEC_OK ? 0 : 1;
}
