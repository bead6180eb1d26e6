/* Why a request is refused, as OpenAI's protocol says it. Thread rule: one thread. */
#ifndef MOEC_SERVER_SERVE_PROBLEM_H
#define MOEC_SERVER_SERVE_PROBLEM_H

#include "formats/base/error.h"

#include <stddef.h>

#define SERVE_PARAM_BYTES 64

struct serve_problem {
    unsigned status;               /* of HTTP; 0 = there is none */
    const char *type, *code;       /* static; code may be NULL */
    char param[SERVE_PARAM_BYTES]; /* the field, "" = none; UTF-8 */
    char message[MOEC_ERROR_BYTES];
};

/* Fills in a problem; the first one wins. `param` may be NULL. Type and code follow from the status. Returns
 * false, for functions that say whether they succeeded. */
bool serve_refuse(struct serve_problem *problem, unsigned status, const char *param, const char *format, ...)
    MOEC_PRINTF(4, 5);

/* The same of an error of the engine or of a file format: what a client did is 400, all else 500. */
bool serve_refuse_error(struct serve_problem *problem, const char *param, enum moec_status status,
                        const char *message);

/* {"error": {"message", "type", "param", "code"}} on one line; the caller frees it. NULL: no memory. */
char *serve_problem_text(const struct serve_problem *problem);

#endif
