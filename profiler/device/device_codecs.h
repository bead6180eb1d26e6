/* What the products of an expert take in each codec: the part of moec_device_measure_compute that says how long
 * experts will take in codecs which the bundle at hand does not have (internal to profiler/device/).
 *
 * Of each codec that the bundle or a search has experts in, matrices of an expert's size with made-up weights are
 * multiplied in turn with one vector, on as many threads as the runtime takes for one token: by rows, as up and gate
 * are, and by sums of rows, as down is. So an expert's time is arithmetic over its projections' codecs. */
#ifndef MOEC_PROFILER_DEVICE_CODECS_H
#define MOEC_PROFILER_DEVICE_CODECS_H

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"
#include "runtime/forward/pass/forward.h"

struct moec_device_codecs_setup {
    const struct moec_bundle *bundle;
    const struct moec_forward *forward; /* whose kernels and threads compute */
    uint32_t n_kept;                    /* experts of each layer with which the layers were measured */
    uint64_t limit_ns;                  /* about, of all of it */
};

/* Fills device->products, and experts_ns of the layers that are described. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_device_measure_codecs(const struct moec_device_codecs_setup *setup,
                                                             struct moec_device *device,
                                                             struct moec_error *err);

#endif
