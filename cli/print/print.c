/* A text is formatted whole, and then control characters are replaced, so that they may come from any of its
 * parts. The text is copied only where there are some. A line is broken at the last space that fits, else at
 * its first. */
#include "cli/print/print.h"

#include "formats/base/printable.h"

#include <stdlib.h>
#include <string.h>

void cli_put(FILE *out, const char *text)
{
    const size_t n = strlen(text), n_shown = moec_printable(text, n, true, NULL, 0);
    char *shown = n_shown != n ? malloc(n_shown + 1) : NULL;
    if (n_shown != n && shown == NULL) {
        (void)fputs("(out of memory)\n", out);
        return;
    }
    if (shown != NULL)
        (void)moec_printable(text, n, true, shown, n_shown + 1);
    (void)fputs(shown != NULL ? shown : text, out);
    free(shown);
}

/* Where a line of n bytes is broken that begins `indent` columns from the left: at its last space that fits,
 * else at its first; n where it is not. */
static size_t break_of(const char *line, size_t n, size_t indent)
{
    const size_t first = strspn(line, " ");
    size_t at = n;
    if (indent + n <= CLI_COLUMNS)
        return n;
    for (size_t i = first; i < n; i++) {
        if (line[i] != ' ')
            continue;
        if (at < n && indent + i > CLI_COLUMNS)
            break;
        at = i;
    }
    return at;
}

static void put_line(FILE *out, size_t indent, const char *line, size_t n)
{
    for (size_t left = 0; n > 0; left = indent) {
        const size_t n_part = break_of(line, n, left);
        cli_print(out, "%*s%.*s", (int)left, "", (int)n_part, line);
        line += n_part;
        n -= n_part;
        while (n > 0 && *line == ' ') {
            line++;
            n--;
        }
        if (n > 0)
            (void)fputc('\n', out);
    }
}

void cli_put_wrapped(FILE *out, size_t indent, const char *text)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        put_line(out, indent, text, n);
        text += n;
        if (*text == '\n') {
            (void)fputc('\n', out);
            text++;
        }
    }
}

void cli_print(FILE *out, const char *format, ...)
{
    char *text = NULL;
    va_list list;
    va_start(list, format);
    const int n = vasprintf(&text, format, list);
    va_end(list);
    cli_put(out, n >= 0 ? text : "(out of memory)\n");
    if (n >= 0)
        free(text);
}

void cli_print_wrapped(FILE *out, size_t indent, const char *format, ...)
{
    char *text = NULL;
    va_list list;
    va_start(list, format);
    const int n = vasprintf(&text, format, list);
    va_end(list);
    cli_put_wrapped(out, indent, n >= 0 ? text : "(out of memory)\n");
    if (n >= 0)
        free(text);
}
