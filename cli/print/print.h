/* Text for people on standard output and standard error. It may hold names from foreign files and scripts, so
 * control characters are shown as \xNN (formats/base/printable.h); the ends of lines and tabs stay. Colours
 * and text that a model generates go to the stream itself. Thread rule: main thread. */
#ifndef MOEC_CLI_PRINT_H
#define MOEC_CLI_PRINT_H

#include "formats/base/error.h"

#include <stdio.h>

void cli_print(FILE *out, const char *format, ...) MOEC_PRINTF(2, 3);

/* Prints a text of any length, with control characters as above. */
void cli_put(FILE *out, const char *text);

#define CLI_COLUMNS 80

/* The same, with lines longer than CLI_COLUMNS broken at spaces; what follows a break begins behind `indent`
 * spaces. A word that is longer than a line stays whole. Bytes count as columns. */
void cli_put_wrapped(FILE *out, size_t indent, const char *text);
void cli_print_wrapped(FILE *out, size_t indent, const char *format, ...) MOEC_PRINTF(3, 4);

#endif
