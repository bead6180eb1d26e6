/* A bundle that is mapped (moert_options.storage.io) and cut short, or whose device fails, raises SIGBUS where its
 * pages are touched. A program cannot go on then, but it can say why it ends. Thread rule: main thread. */
#ifndef MOEC_CLI_MAPPED_GUARD_H
#define MOEC_CLI_MAPPED_GUARD_H

#include "cli/options/options.h"

/* From now on such a signal ends the program with a sentence about the command's bundle, its first argument,
 * and CLI_FAILED, as other errors of storage do. A terminal gets its present settings back. */
void cli_guard_mapped(const struct cli_args *args);

#endif
