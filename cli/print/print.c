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
