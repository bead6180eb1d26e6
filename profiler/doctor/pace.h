/* How fast this machine does what profiling does most: products of many tokens with a matrix that is decoded
 * on the way, as runtime/forward/context/linear.c does them, and quantising. Measured on made-up weights of the
 * model's width, some tenths of a second each, on all threads. Thread rule: one thread, which uses the pool.
 */
#ifndef MOEC_PROFILER_PACE_H
#define MOEC_PROFILER_PACE_H

#include "runtime/kernels/kernels.h"

struct moec_pace_request {
    const struct moec_kernels *kernels;
    int n_threads;           /* as moec_pool_make */
    struct moec_codec codec; /* of the matrix */
    uint32_t columns;
    uint32_t n_tokens; /* that share one decoded matrix; at most MOEC_PACE_MAX_TOKENS are taken */
};

#define MOEC_PACE_MAX_TOKENS 256u

struct moec_pace {
    double per_second;      /* by the clock: less where other processes take their share */
    double per_core_second; /* for each second of a processor that this process was given */
};

/* Multiply-adds a second of such products. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_pace_products(const struct moec_pace_request *request,
                                                     struct moec_pace *pace, struct moec_error *err);

/* Floats a second that kernels go through one by one: an exp, an addition and a copy of each, as between the
 * products. The request's codec and n_tokens are not looked at. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_pace_elements(const struct moec_pace_request *request,
                                                     struct moec_pace *pace, struct moec_error *err);

/* Weights a second that are quantised to rows of the codec. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_pace_encoding(const struct moec_pace_request *request,
                                                     struct moec_pace *pace, struct moec_error *err);

#endif
