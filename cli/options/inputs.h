/* The files that a command line reads, looked at before any work: messages that say what to type instead of
 * what open(2) says. A path that is none of the mistakes here passes, and is judged by whoever opens it.
 * Thread rule: main thread. */
#ifndef MOEC_CLI_INPUTS_H
#define MOEC_CLI_INPUTS_H

#include "cli/options/options.h"

/* Whether a file begins with these 4 bytes: "GGUF", "MOEC". */
bool cli_file_begins(const char *path, const char *magic);

/* Whether a path leads to a folder or a GGUF file, and not to a bundle. */
bool cli_is_checkpoint(const char *path);

/* The model: a verb that takes a bundle is told that a checkpoint (a folder or a GGUF file) is compiled
 * first; every verb, that a name of the Hugging Face hub is downloaded first. Options
 * that are inputs: the file must be there, but for names of built-in things (CLI_BUILT_IN) and "-". Errors:
 * MOEC_ERR_USAGE for the model, MOEC_ERR_IO for a file that is not there. */
MOEC_WARN_UNUSED enum moec_status cli_check_inputs(const struct cli_args *args, struct moec_error *err);

#endif
