/* The one error convention of moec.
 *
 * Everything that can fail returns an `enum moec_status` (0 = success) and fills a caller-owned `struct
 * moec_error`. Results go through out-pointers and are valid only on success. Library code never prints,
 * exits, aborts or reads the environment. Messages are lower case without a full stop: what failed first, the
 * subject in 'quotes', what was found and what was expected, and what to do next where that is not obvious:
 *
 *     tensor 'model.norm.weight' in 'model.safetensors' has shape [255], expected [256]
 *
 * Thread rule: a `struct moec_error` belongs to one thread at a time. */
#ifndef MOEC_FORMATS_ERROR_H
#define MOEC_FORMATS_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* Families with gaps, so that a later code stands beside its relatives. */
enum moec_status {
    MOEC_OK = 0,
    MOEC_ERR_USAGE = 1,
    MOEC_ERR_MEMORY = 10,
    MOEC_ERR_BUDGET = 11, /* a memory budget is too small */
    MOEC_ERR_LIMIT = 12,  /* a value is over a limit */
    MOEC_ERR_IO = 20,
    MOEC_ERR_NOT_FOUND = 21,
    MOEC_ERR_FORMAT = 30, /* malformed data */
    MOEC_ERR_CHECKSUM = 31,
    MOEC_ERR_UNSUPPORTED = 32,
    MOEC_ERR_MISMATCH = 33, /* inputs do not belong together */
    MOEC_ERR_SCRIPT = 40,
    MOEC_ERR_TARGET = 50, /* a target is not met */
    MOEC_ERR_CANCELLED = 60,
};

#define MOEC_ERROR_BYTES 1024

/* Zero-initialise before use (`struct moec_error err = {0}`). Untouched on success. */
struct moec_error {
    enum moec_status status;
    char message[MOEC_ERROR_BYTES]; /* NUL-terminated, no newline */
};

#define MOEC_WARN_UNUSED     __attribute__((warn_unused_result))
#define MOEC_PRINTF(fmt, at) __attribute__((format(printf, fmt, at)))

/* Records `status` and the formatted message in `err` (which may be NULL) and returns `status`.
 * The first error wins: an `err` that already holds a failure is left alone. */
enum moec_status moec_fail(struct moec_error *err, enum moec_status status, const char *format, ...)
    MOEC_PRINTF(3, 4);

/* Puts "context: " in front of the message that `err` holds; a no-op when it holds none. Returns err->status.
 */
enum moec_status moec_error_prefix(struct moec_error *err, const char *format, ...) MOEC_PRINTF(2, 3);

/* Returns from the calling function with the status when `expr` is not MOEC_OK. */
#define MOEC_TRY(expr)                                                                                       \
    do {                                                                                                     \
        enum moec_status moec_try_status_ = (expr);                                                          \
        if (moec_try_status_ != MOEC_OK)                                                                     \
            return moec_try_status_;                                                                         \
    } while (0)

/* Same for functions with one `out:` label that frees; needs `enum moec_status status` in scope. */
#define MOEC_TRY_OUT(expr)                                                                                   \
    do {                                                                                                     \
        status = (expr);                                                                                     \
        if (status != MOEC_OK)                                                                               \
            goto out;                                                                                        \
    } while (0)

#endif
