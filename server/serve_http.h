/* HTTP, by GNU libmicrohttpd, of which this is the home: connections, routes, bodies and answers. One thread of
 * the library's own runs everything here but what is said otherwise. A request that waits for the compute thread
 * is suspended; the job's wake lets it go on. */
#ifndef MOEC_SERVER_SERVE_HTTP_H
#define MOEC_SERVER_SERVE_HTTP_H

#include "server/serve_state.h"

/* Listens. The caller's thread. Errors: MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status serve_http_start(struct serve *server, struct serve_http **out,
                                                   struct moec_error *err);
uint16_t serve_http_port(const struct serve_http *http);
/* Closes connections whose request has not come whole in time. The caller's thread. */
void serve_http_tick(struct serve_http *http);
/* Takes no more connections. The caller's thread. */
void serve_http_quiesce(struct serve_http *http);
/* Requests that are being read or answered. Any thread. */
size_t serve_http_count(struct serve_http *http);
/* When no job is left. NULL is allowed. The caller's thread. */
void serve_http_stop(struct serve_http *http);

/* Version of the library in use. */
const char *serve_http_version(void);

#endif
