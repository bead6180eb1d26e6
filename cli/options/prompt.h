/* Texts that a user gives, read whole. Thread rule: main thread. */
#ifndef MOEC_CLI_PROMPT_H
#define MOEC_CLI_PROMPT_H

#include "formats/base/error.h"

#include <stddef.h>

/* The text itself, what a file holds ("-" is standard input), or nothing when both are NULL. `*prompt` is the
 * caller's (free). Errors: MOEC_ERR_IO; MOEC_ERR_LIMIT over 64 MiB. */
MOEC_WARN_UNUSED enum moec_status cli_read_prompt(const char *text, const char *file, char **prompt,
                                                  size_t *n_bytes, struct moec_error *err);

/* Grows `*buffer` so that `needed` bytes fit. */
MOEC_WARN_UNUSED enum moec_status cli_reserve(char **buffer, size_t *capacity, size_t needed,
                                              struct moec_error *err);

#endif
