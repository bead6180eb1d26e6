/* A session that goes on where another one stands. */
#ifndef MOEC_TESTS_SESSION_FORK_H
#define MOEC_TESTS_SESSION_FORK_H

#include "runtime/forward/pass/session.h"

/* An independent copy of the state, on the same forward; freed by the caller. */
static inline enum moec_status session_fork(const struct moec_session *session, struct moec_session **out,
                                            struct moec_error *err)
{
    MOEC_TRY(moec_session_create(moec_session_forward(session), moec_session_context(session), out, err));
    moec_session_copy(*out, session);
    return MOEC_OK;
}

#endif
