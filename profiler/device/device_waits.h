/* What waiting for storage costs in addition to the wait itself: the part of moec_device_measure_compute that
 * stalls on purpose (internal to profiler/device/).
 *
 * Tokens are decoded by the runtime's own forward pass, with every record in memory but those of the experts
 * that are waited for: each of these is read by the runtime's expert cache from an emulated device that
 * answers after a set time, and checked. What such a token takes beyond its waits and one that never waits is
 * what the processor loses: the other threads of a team have gone to sleep and are woken or done without,
 * caches have gone cold, experts are computed one by one. A layer that waits after another leaves them
 * asleep, one that does not wakes them, so some tokens wait in every layer and others in every third. Blocks
 * of tokens take turns; among them are some beside which another thread reads and checks a record in every
 * layer, as a prefetch is. */
#ifndef MOEC_PROFILER_DEVICE_WAITS_H
#define MOEC_PROFILER_DEVICE_WAITS_H

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"
#include "profiler/common/progress.h"
#include "runtime/forward/pass/forward.h"

struct moec_device_waits_setup {
    const struct moec_bundle *bundle;
    const struct moec_forward *forward; /* for one token; decodes in a copy with experts of its own */
    struct moec_experts *resident;      /* serves every expert at once */
    uint64_t limit_ns;                  /* after which no more tokens are decoded */
    const struct moec_progress *progress;
};

/* Fills device->waits and preload_ns; check_ns_per_byte is known. A model of fewer positions than a block has
 * none. Errors: those of reading, MOEC_ERR_MEMORY, MOEC_ERR_CANCELLED. */
MOEC_WARN_UNUSED enum moec_status moec_device_measure_waits(const struct moec_device_waits_setup *setup,
                                                            struct moec_device *device,
                                                            struct moec_error *err);

#endif
