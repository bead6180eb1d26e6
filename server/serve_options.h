/* What a server is started with (server/serve.h). Plain data; pointers are borrowed. */
#ifndef MOEC_SERVER_SERVE_OPTIONS_H
#define MOEC_SERVER_SERVE_OPTIONS_H

#include "formats/base/digest.h"
#include "runtime/moert.h"
#include "server/serve_request.h"

#define SERVE_MAX_KEYS     64u
#define SERVE_MAX_NAMES    8u
#define SERVE_MAX_SESSIONS 64u

struct serve_options {
    struct moert_engine *engine; /* borrowed; opened with one_thread, n_sessions and n_beams 1 */
    const char *model;           /* its name in answers */
    const char *address;         /* to listen on: an IP address */
    uint16_t port;               /* 0 = any that is free */
    const char
        *names[SERVE_MAX_NAMES]; /* of hosts that requests may be for, beside IP addresses and localhost */
    uint32_t n_name;
    const char *origins[SERVE_MAX_NAMES]; /* of pages elsewhere that may ask, such as https://example.org */
    uint32_t n_origin;
    uint8_t keys[SERVE_MAX_KEYS]
                [MOEC_SHA256_BYTES]; /* digests of those that open it; none: everybody may ask */
    uint32_t n_key;
    uint32_t n_sessions;
    uint32_t n_queue;       /* sequences that may wait */
    uint32_t n_connections; /* at once; half of them from one address */
    bool shares;            /* sessions go on from what other requests left in them */
    bool scores_decided;    /* scored text is decided about as generated, not as a prompt */
    struct serve_limits limits;
    double request_seconds; /* a request has to come whole within that */
    /* A line for each request, of method, path, status and counts; NULL: nobody wants them. From any thread. */
    void (*log)(void *context, const char *line);
    void *log_context;
};

/* Reads keys, one a line, into the options; empty lines and those that begin with # are none. Errors:
 * MOEC_ERR_USAGE for a file that others than its owner can read, without a key, or with one of under 16
 * bytes; those of opening it. */
MOEC_WARN_UNUSED enum moec_status serve_read_keys(struct serve_options *options, const char *path,
                                                  struct moec_error *err);
/* Whether an address (an IP address) is of this machine alone. Errors: MOEC_ERR_USAGE for what is no address. */
MOEC_WARN_UNUSED enum moec_status serve_address_check(const char *address, bool *is_local,
                                                      struct moec_error *err);

#endif
