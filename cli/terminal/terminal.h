/* What the terminal can show, and numbers as people read them. Thread rule: main thread. */
#ifndef MOEC_CLI_TERMINAL_H
#define MOEC_CLI_TERMINAL_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum cli_colour { CLI_COLOUR_NONE, CLI_COLOUR_256, CLI_COLOUR_TRUE };

struct cli_terminal {
    int columns;            /* 80 when stdout is not a terminal */
    enum cli_colour colour; /* none without a terminal, under NO_COLOR or TERM=dumb */
    bool is_utf8;
};

/* Looks at stdout and the environment. `colour` "auto", "always" or "never". */
struct cli_terminal cli_terminal_detect(const char *colour);

/* "1.23 MB" (powers of 1000), as storage is sold and files are listed. */
const char *cli_size_text(char text[static 24], uint64_t bytes);
/* "12.3 MiB" (powers of 1024), as memory is counted. */
const char *cli_memory_text(char text[static 24], uint64_t bytes);
/* As --memory takes it, no less than bytes and less than a tenth of a mebibyte more: "11.4MiB". */
const char *cli_budget_text(char text[static 24], uint64_t bytes);

/* Peak resident size of this process (VmHWM), 0 where the system does not say. */
uint64_t cli_peak_memory_bytes(void);
/* Seconds of a clock that never goes back. */
double cli_seconds(void);

#endif
