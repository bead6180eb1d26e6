/* What quantising does to the weights of each expert, as a first look at sensitivities: no data, no model that
 * runs. It does not know which experts tokens choose, nor what later layers make of an error, and so ranks
 * experts far worse than an estimate from data (profiler/sensitivity/fast_sensitivity.h). */
#ifndef MOEC_PROFILER_WEIGHT_ERROR_H
#define MOEC_PROFILER_WEIGHT_ERROR_H

#include "formats/checkpoint/checkpoint.h"
#include "profiler/common/progress.h"

#define MOEC_WEIGHT_ERROR_MAX_BITS 8

struct moec_weight_error_request {
    const struct moec_checkpoint *checkpoint; /* borrowed */
    const struct moec_codec *codecs;          /* (n_bits), what experts are encoded with */
    uint32_t n_bits;                          /* 1..MOEC_WEIGHT_ERROR_MAX_BITS */
    int n_threads;                            /* as moec_pool_make */
    const struct moec_progress *progress;     /* may be NULL; in experts */
};

/* errors (S, E, n_bits), the caller's: the squared error of all weights of an expert over their squares. The
 * same bits at any number of threads. Errors: those of moec_checkpoint_encode_expert, MOEC_ERR_MEMORY, what
 * `progress` answers. Thread rule: one thread, parallel inside. */
MOEC_WARN_UNUSED enum moec_status moec_weight_error_measure(const struct moec_weight_error_request *request,
                                                            double *errors, struct moec_error *err);

#endif
