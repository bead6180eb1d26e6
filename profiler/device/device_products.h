/* What a decoded token's products take by themselves: the part of moec_device_measure_compute that says how
 * much of a token is neither its bytes nor its multiply-adds (internal to profiler/device/).
 *
 * The kernels of one token run over the same matrices in the same order: those of each layer, its router, as
 * many of its experts as a token takes, drawn anew for each token, and the head, all in one parallel region.
 * What a token takes beyond that are attention to earlier tokens, norms, the router's choice, activations,
 * regions and waits of threads. */
#ifndef MOEC_PROFILER_DEVICE_PRODUCTS_H
#define MOEC_PROFILER_DEVICE_PRODUCTS_H

#include "formats/bundle/bundle.h"
#include "runtime/forward/pass/forward.h"

struct moec_device_products_setup {
    const struct moec_dense *dense;     /* with a blob */
    const struct moec_forward *forward; /* of the model */
    struct moec_experts *resident;      /* serves every expert at once */
    uint32_t n_tokens;
};

/* The median of n_tokens. Errors: MOEC_ERR_MEMORY, those of the source of experts. */
MOEC_WARN_UNUSED enum moec_status moec_device_measure_products(const struct moec_device_products_setup *setup,
                                                               uint64_t *products_ns, struct moec_error *err);

#endif
