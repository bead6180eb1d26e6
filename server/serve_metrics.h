/* Counters of a server, and their text for Prometheus. Thread rule: any thread. */
#ifndef MOEC_SERVER_SERVE_METRICS_H
#define MOEC_SERVER_SERVE_METRICS_H

#include "runtime/moert.h"

#include <stdatomic.h>

#define SERVE_BUCKETS 13

/* Seconds, in buckets whose bounds double from a millisecond (a token) or 16 (a first token) on. */
struct serve_histogram {
    atomic_ullong counts[SERVE_BUCKETS + 1];
    atomic_ullong sum_us;
};

struct serve_metrics {
    atomic_ullong requests, refused, cancelled, failed;
    atomic_ullong prompt_tokens, cached_tokens, generated_tokens, scored_tokens;
    atomic_ullong steps; /* of sessions together */
    atomic_uint n_waiting, n_running;
    struct serve_histogram first_token; /* from a request to its first token */
    struct serve_histogram next_token;  /* from a token to the next */
};

void serve_histogram_add(struct serve_histogram *histogram, double least, uint64_t ns);

/* The caller frees it. NULL: no memory. */
char *serve_metrics_text(struct serve_metrics *metrics, const struct moert_engine *engine);

#define SERVE_LEAST_FIRST 0.016
#define SERVE_LEAST_NEXT  0.001

#endif
