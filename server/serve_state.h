/* A server's parts, for the files of this room. */
#ifndef MOEC_SERVER_SERVE_STATE_H
#define MOEC_SERVER_SERVE_STATE_H

#include "server/serve_compute.h"
#include "server/serve_metrics.h"
#include "server/serve_options.h"

struct serve_http;

struct serve {
    struct serve_options options;
    struct serve_metrics metrics;
    struct serve_compute compute;
    struct serve_http *http;
    atomic_size_t held; /* bytes of requests, at most limits.held_bytes */
    atomic_bool ends;   /* no more requests */
    uint64_t n_jobs;    /* of the thread of HTTP: names them */
};

#endif
