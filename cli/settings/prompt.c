#include "cli/settings/prompt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT_MAX_BYTES (64u << 20)
#define PIECE_BYTES      65536u

enum moec_status cli_reserve(char **buffer, size_t *capacity, size_t needed, struct moec_error *err)
{
    if (needed <= *capacity)
        return MOEC_OK;
    size_t grown = 2 * needed + 256;
    char *moved = realloc(*buffer, grown);
    if (moved == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: %zu bytes of text", grown);
    *buffer = moved;
    *capacity = grown;
    return MOEC_OK;
}

static enum moec_status read_stream(FILE *stream, const char *name, char **prompt, size_t *n_bytes,
                                    struct moec_error *err)
{
    size_t capacity = 0;
    for (;;) {
        MOEC_TRY(cli_reserve(prompt, &capacity, *n_bytes + PIECE_BYTES, err));
        size_t got = fread(*prompt + *n_bytes, 1, PIECE_BYTES, stream);
        *n_bytes += got;
        if (*n_bytes > PROMPT_MAX_BYTES)
            return moec_fail(err, MOEC_ERR_LIMIT, "prompt '%s' is longer than %u bytes: give less text", name,
                             PROMPT_MAX_BYTES);
        if (got == 0 && ferror(stream))
            return moec_fail(err, MOEC_ERR_IO, "cannot read '%s': %s", name, strerror(errno));
        if (got == 0)
            return MOEC_OK;
    }
}

enum moec_status cli_read_prompt(const char *text, const char *file, char **prompt, size_t *n_bytes,
                                 struct moec_error *err)
{
    size_t capacity = 0;
    *n_bytes = 0;
    if (file == NULL) {
        const size_t length = text != NULL ? strlen(text) : 0;
        MOEC_TRY(cli_reserve(prompt, &capacity, length + 1, err));
        memcpy(*prompt, text != NULL ? text : "", length);
        *n_bytes = length;
        return MOEC_OK;
    }
    bool is_stdin = strcmp(file, "-") == 0;
    FILE *stream = is_stdin ? stdin : fopen(file, "rbe");
    if (stream == NULL)
        return moec_fail(err, MOEC_ERR_IO, "cannot open prompt '%s': %s", file, strerror(errno));
    enum moec_status status = read_stream(stream, file, prompt, n_bytes, err);
    if (!is_stdin)
        (void)fclose(stream);
    return status;
}
