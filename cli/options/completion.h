/* Shell completion, written from the option tables: verbs, options, values that an option takes, and files
 * where it names some. Thread rule: main thread. */
#ifndef MOEC_CLI_COMPLETION_H
#define MOEC_CLI_COMPLETION_H

#include "cli/options/options.h"

/* A verb that is no command: "help", "manual", "completion". */
struct cli_extra {
    const char *name, *summary;
    const char *words; /* what may follow, between bars; NULL: names of verbs */
};

struct cli_completion {
    const struct cli_command *const *commands; /* (n_command), run and device among them */
    size_t n_command;
    const struct cli_extra *extras; /* (n_extra) */
    size_t n_extra;
};

/* Prints the script to `out`: of "moec", which completes moec-run too, or of "moec-run" alone. False if the
 * program is another, or the shell is not bash, zsh or fish. */
bool cli_print_completion(FILE *out, const char *shell, const char *program,
                          const struct cli_completion *completion);

#endif
