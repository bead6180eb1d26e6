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

#include "server/serve_options.h"

struct serve;

/* What requests may hold with a context of n tokens. */
struct serve_limits serve_limits_make(uint32_t n_context, uint32_t n_vocab);
/* What the server takes of a budget at most, beside the engine. */
uint64_t serve_reserve_bytes(const struct serve_limits *limits, uint32_t n_connections, uint32_t n_sessions);

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
