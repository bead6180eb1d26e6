/* What unit tests assert of a status; cmocka, with what it needs. Failures show the message. */
#ifndef MOEC_TESTS_STATUS_H
#define MOEC_TESTS_STATUS_H

#include "formats/base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A call that answers MOEC_OK. */
#define assert_ok(call, err)                                                                                 \
    do {                                                                                                     \
        if ((call) != MOEC_OK)                                                                               \
            fail_msg("%s", (err).message);                                                                   \
    } while (0)

/* The same, with an `err` of its own, to which the call points. */
#define MUST(call)                                                                                           \
    do {                                                                                                     \
        struct moec_error err = {0};                                                                         \
        if ((call) != MOEC_OK)                                                                               \
            fail_msg("%s", err.message);                                                                     \
    } while (0)

#define assert_status(status, expected, err)                                                                 \
    do {                                                                                                     \
        enum moec_status got_ = (status);                                                                    \
        if (got_ != (expected))                                                                              \
            fail_msg("status %d ('%s'), expected %d", (int)got_, (err).message, (int)(expected));            \
    } while (0)

#define assert_message(err, part)                                                                            \
    do {                                                                                                     \
        if (strstr((err).message, (part)) == NULL)                                                           \
            fail_msg("message '%s' does not say '%s'", (err).message, (part));                               \
    } while (0)

#endif
