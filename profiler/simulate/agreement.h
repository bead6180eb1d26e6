/* How well a simulation predicts what was measured: the rows of a bench beside the same rows simulated.
 *
 * Routing comes from a recording, which should be of the bench's data: hits then are of the same tokens, or
 * of tokens like them. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_AGREEMENT_H
#define MOEC_PROFILER_AGREEMENT_H

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"
#include "profiler/simulate/simulate.h"

#define MOEC_AGREEMENT_NAME   96
#define MOEC_AGREEMENT_MARGIN 0.15 /* of the measured time */

struct moec_agreement_row {
    char name[MOEC_AGREEMENT_NAME];         /* with the storage */
    double measured_ms, predicted_ms;       /* median time of a decoded token */
    double measured_hits, predicted_hits;   /* share of experts asked for */
    double measured_bytes, predicted_bytes; /* read for a token */
};

struct moec_agreement {
    uint32_t n;
    struct moec_agreement_row *rows; /* (n), owned */
    uint32_t n_within;               /* predicted within MOEC_AGREEMENT_MARGIN */
    uint32_t n_failed;               /* rows that failed in the bench: left out */
};

/* Simulates each row of the JSON that moec bench wrote. Errors: MOEC_ERR_FORMAT for something else,
 * MOEC_ERR_USAGE for rows of another bundle, those of moec_simulated_run. */
MOEC_WARN_UNUSED enum moec_status
moec_agreement_make(const char *bench_path, const struct moec_recording *recording,
                    const struct moec_bundle *bundle, const struct moec_device *device,
                    struct moec_agreement *agreement, struct moec_error *err);
void moec_agreement_release(struct moec_agreement *agreement);

#endif
