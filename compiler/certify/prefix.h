/* How many windows of the certificate part are tested on. Their order is drawn with the parts, before anything
 * is evaluated; the first n of them are one fixed sample. n is chosen when the search has ended and before any
 * of them has been through a model, from the target, the confidence and what the search and selection parts
 * show, so nothing seen on them changes n, order or plans, and each test has the level that it says. Thread
 * rule: pure functions. */
#ifndef MOEC_COMPILER_PREFIX_H
#define MOEC_COMPILER_PREFIX_H

#include "profiler/evaluate/metrics.h"

#define MOEC_PREFIX_LEAST 64
#define MOEC_PREFIX_MOST  512
/* Of the target: what the interval may take of it. */
#define MOEC_PREFIX_HALF_WIDTH 0.12
/* Documents, by Kish's effective number: square of their windows' sum over sum of squares. */
#define MOEC_PREFIX_DOCUMENTS 32

struct moec_prefix_request {
    uint32_t n_window;         /* of the certificate part */
    const uint64_t *documents; /* (n_window), in order; NULL: windows stand for themselves */
    double target;             /* 0.02 is 2 %; NaN: none */
    double confidence;         /* or MOEC_CONFIDENCE_POINT */
    /* Standard error of the loss (of ln perplexity) of a plan that about meets the target, on so many windows
     * that are none of the certificate's; 0: not known. */
    double error;
    uint32_t n_measured;
};

/* The smallest of 64, 128, 256 and 512 windows whose interval is expected to be narrow enough and that are of
 * enough documents. All windows (at most 512) where there are not that many, where no number would do, where
 * the error is not known and without a target. */
uint32_t moec_prefix_choose(const struct moec_prefix_request *request);

#endif
