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
#define MOEC_STATUS_MAP(X)                                                                                   \
    X(OK, 0, "success")                                                                                      \
    X(ERR_USAGE, 1, "wrong usage")                                                                           \
    X(ERR_MEMORY, 10, "out of memory")                                                                       \
    X(ERR_BUDGET, 11, "memory budget too small")                                                             \
    X(ERR_LIMIT, 12, "value over a limit")                                                                   \
    X(ERR_IO, 20, "input or output failed")                                                                  \
    X(ERR_NOT_FOUND, 21, "not found")                                                                        \
    X(ERR_FORMAT, 30, "malformed data")                                                                      \
    X(ERR_CHECKSUM, 31, "checksum does not match")                                                           \
    X(ERR_UNSUPPORTED, 32, "not supported")                                                                  \
    X(ERR_MISMATCH, 33, "inputs do not belong together")                                                     \
    X(ERR_SCRIPT, 40, "script failed")                                                                       \
    X(ERR_TARGET, 50, "target not met")                                                                      \
    X(ERR_CANCELLED, 60, "cancelled")

enum moec_status {
#define MOEC_STATUS_ENUM(name, value, text) MOEC_##name = value,
    MOEC_STATUS_MAP(MOEC_STATUS_ENUM)
#undef MOEC_STATUS_ENUM
};

#define MOEC_ERROR_BYTES 1024

/* Zero-initialise before use (`struct moec_error err = {0}`). Untouched on success. */
struct moec_error {
    enum moec_status status;
    char message[MOEC_ERROR_BYTES]; /* NUL-terminated, no newline */
};

#define MOEC_WARN_UNUSED     __attribute__((warn_unused_result))
#define MOEC_PRINTF(fmt, at) __attribute__((format(printf, fmt, at)))

/* Fixed English text of a status code, never NULL. */
const char *moec_status_text(enum moec_status status);

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
