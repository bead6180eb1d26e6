/* Reading the text that a user gives. Thread rule: main thread. */
#ifndef MOEC_CLI_PROMPT_H
#define MOEC_CLI_PROMPT_H

#include "formats/base/error.h"

#include <stddef.h>

/* Returns the text itself, the content of a file ("-" is standard input), or an empty text if both are NULL.
 * The caller frees `*prompt`. Errors: MOEC_ERR_IO; MOEC_ERR_LIMIT over 64 MiB. */
MOEC_WARN_UNUSED enum moec_status cli_read_prompt(const char *text, const char *file, char **prompt,
                                                  size_t *n_bytes, struct moec_error *err);

/* Grows `*buffer` so that `needed` bytes fit. */
MOEC_WARN_UNUSED enum moec_status cli_reserve(char **buffer, size_t *capacity, size_t needed,
                                              struct moec_error *err);

#endif
