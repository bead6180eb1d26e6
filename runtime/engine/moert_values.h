/* Values of a conversation (runtime/moert.h), as the chat templates of a bundle take them. Apart from the
 * engine, so that what only makes values needs none. Owned by whoever created them. Thread rule: one thread. */
#ifndef MOEC_RUNTIME_MOERT_VALUES_H
#define MOEC_RUNTIME_MOERT_VALUES_H

#include "runtime/chat/chat_value.h"
#include "runtime/moert.h"

struct moert_values {
    struct moec_chat_arena arena;
    struct moec_error failure;    /* the first */
    struct moec_chat_value spare; /* handed out where there is no memory */
};

/* The template's value behind the caller's; NULL stays NULL. */
static inline const struct moec_chat_value *moert_value_inner(const struct moert_value *value)
{
    return (const struct moec_chat_value *)value;
}

#endif
