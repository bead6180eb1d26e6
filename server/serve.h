/* A server for programs that speak OpenAI's protocol: one bundle, opened by the caller, in its budget.
 *
 *     struct serve_limits limits = serve_limits_make(n_context, n_vocab);
 *     options.reserve_bytes = serve_reserve_bytes(&limits, n_connections);   before moert_engine_open
 *     MOEC_TRY(serve_start(&serve_options, &server, err));
 *     while (nobody wants it to end) serve_tick(server), a few times a second
 *     serve_stop(server, seconds)
 *
 * Two threads of its own: one of HTTP, and one that computes, which owns the engine's sessions. The words of an
 * answer are those of moec run with the same settings, whatever runs beside it. What a request says is never
 * logged. Thread rule: the functions below belong to one thread; the process ignores SIGPIPE. */
#ifndef MOEC_SERVER_SERVE_H
#define MOEC_SERVER_SERVE_H

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

struct serve;

/* What requests may hold with a context of n tokens. */
struct serve_limits serve_limits_make(uint32_t n_context, uint32_t n_vocab);
/* What the server takes of a budget at most, beside the engine. */
uint64_t serve_reserve_bytes(const struct serve_limits *limits, uint32_t n_connections, uint32_t n_sessions);

/* Reads keys, one a line, into the options; empty lines and those that begin with # are none. Errors:
 * MOEC_ERR_USAGE for a file that others than its owner can read, without a key, or with one of under 16
 * bytes; those of opening it. */
MOEC_WARN_UNUSED enum moec_status serve_read_keys(struct serve_options *options, const char *path,
                                                  struct moec_error *err);
/* Whether an address (an IP address) is of this machine alone. Errors: MOEC_ERR_USAGE for what is no address. */
MOEC_WARN_UNUSED enum moec_status serve_address_check(const char *address, bool *is_local,
                                                      struct moec_error *err);

/* Errors: MOEC_ERR_UNSUPPORTED for a model with an encoder or a bundle without a tokenizer; MOEC_ERR_IO where
 * the port cannot be listened on; those of sessions. */
MOEC_WARN_UNUSED enum moec_status serve_start(const struct serve_options *options, struct serve **out,
                                              struct moec_error *err);
uint16_t serve_port(const struct serve *server);
/* Cuts connections whose request does not come, and keeps waiting streams alive. */
void serve_tick(struct serve *server);
/* Takes no more requests, lets those at work finish for at most so long, and ends. Returns how many were cut.
 * `hurries` is asked a few times a second whether not even that is to be waited for; NULL = never. */
uint32_t serve_stop(struct serve *server, double seconds, bool (*hurries)(void));

#endif
