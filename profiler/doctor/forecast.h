/* What `moec profile` with its defaults would cost, from the model's dimensions: passes (design, "Words with
 * one meaning"), and seconds at the pace of this machine (profiler/doctor/pace.h).
 *
 * Taken for granted: text enough for the default parts of windows; experts chosen equally often and
 * independently, so that in a window of n tokens an expert with probability p = k / E a token is first chosen
 * at token t with probability p (1 - p)^t. Real routing is uneven, and machines are not always idle: the
 * forecast is meant to tell minutes from days. Reading weights from storage is not in it.
 * Thread rule: one thread, which uses the pool. */
#ifndef MOEC_PROFILER_FORECAST_H
#define MOEC_PROFILER_FORECAST_H

#include "runtime/kernels/kernels.h"

struct moec_forecast_request {
    const struct moec_config *config;
    const struct moec_kernels *kernels;
    int n_threads;           /* as moec_pool_make */
    uint32_t seq_len_tokens; /* of a window; fewer are taken where the model has fewer positions */
    uint32_t n_bits;         /* bitwidths, the baseline's among them */
};

/* What an evaluation of a window takes, and a multiply-add where many tokens share a plain matrix. */
struct moec_forecast_time {
    double seconds, product_seconds;           /* by the clock, on all threads, with what else runs here */
    double core_seconds, product_core_seconds; /* of one core that has nothing else to do */
};

struct moec_forecast {
    uint32_t n_window, n_sensitivity_window, window_tokens;
    double pass_multiply_adds;
    double multiply_adds_per_second;
    struct moec_forecast_time window;   /* of one evaluation of a window */
    double exact_passes, exact_seconds; /* --sensitivity exact */
    double fast_passes, fast_seconds; /* --sensitivity fast; 0 for models with an encoder, which have none */
    double naive_passes;              /* experts x (bitwidths - 1): each measured by itself */
    uint32_t n_sweep;                 /* how often the weights are read, if they do not fit into memory */
};

/* At the pace that is measured in most of a second. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_forecast_window(const struct moec_forecast_request *request,
                                                       struct moec_forecast_time *time,
                                                       struct moec_error *err);

/* Takes about a second. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_forecast_make(const struct moec_forecast_request *request,
                                                     struct moec_forecast *forecast, struct moec_error *err);

#endif
