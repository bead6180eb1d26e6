/* How well a simulation predicts what was measured: the rows of a bench, or one run, beside the same
 * simulated.
 *
 * Routing comes from a recording, which should be of the bench's data: hits then are of the same tokens, or
 * of tokens like them. Where the measured ones decided, the recording is one that decided afterwards
 * (profiler/simulate/simulated_decisions.h), and what they took stands beside what it takes. Of a bench
 * decoded tokens count, of a run its prompt's too. Thread rule: pure functions. */
#ifndef MOEC_PROFILER_AGREEMENT_H
#define MOEC_PROFILER_AGREEMENT_H

#include "formats/bundle/bundle.h"
#include "formats/trace/device_description.h"
#include "profiler/simulate/simulate.h"
#include "profiler/simulate/simulated_decisions.h"

#include <math.h>

#define MOEC_AGREEMENT_NAME   96
#define MOEC_AGREEMENT_MARGIN 0.15 /* of the measured time */

/* What tokens took, as shares; NaN where nothing was decided. */
struct moec_agreement_decided {
    double missed;       /* of the experts taken: those that the logical cache had not */
    double low, skipped; /* of the experts chosen */
};

/* Of a decoded token, in ms. */
struct moec_agreement_times {
    double median, mean; /* the median of a run is NaN */
    double stall;        /* waiting for storage, on average; of a run of its prompt's tokens too */
};

struct moec_agreement_row {
    char name[MOEC_AGREEMENT_NAME]; /* with the storage */
    struct moec_agreement_times measured_ms, predicted_ms;
    double measured_hits, predicted_hits;   /* share of experts asked for */
    double measured_bytes, predicted_bytes; /* read for a token */
    struct moec_agreement_decided measured, predicted;
};

/* The time that stands for a row: the median, or of a run the mean. */
static inline double moec_agreement_time(const struct moec_agreement_times *times)
{
    return isnan(times->median) ? times->mean : times->median;
}

struct moec_agreement {
    uint32_t n;
    struct moec_agreement_row *rows; /* (n), owned */
    uint32_t n_within;               /* predicted within MOEC_AGREEMENT_MARGIN */
    uint32_t n_failed;               /* rows that failed in the bench: left out */
};

/* What a recording decided, and by which words. */
struct moec_agreement_words {
    const struct moec_simulated_decisions *counts; /* NULL: nothing */
    const char *route, *precision;
};

struct moec_agreement_setup {
    const char *path; /* JSON of moec bench, or of moec run --stats json */
    const struct moec_recording *recording;
    const struct moec_bundle *bundle;
    uint32_t low;                     /* copy of the recording's form 1 */
    const struct moec_device *device; /* NULL: computing takes what it took when a trace was recorded */
    /* Storage of a run, which does not tell it; NULL: the device's. */
    const struct moec_emulation *emulation;
    struct moec_agreement_words decided;
    struct moec_precision prefetches; /* of struct moec_simulated_preload */
};

/* Where the recording is a trace of a bench like that of `path`, of as many samples and tokens, what it did
 * to warm up does not count, as it does not there. Errors: MOEC_ERR_FORMAT. */
MOEC_WARN_UNUSED enum moec_status moec_agreement_count(const char *path, struct moec_recording *recording,
                                                       struct moec_error *err);

/* Simulates each row. Errors: MOEC_ERR_FORMAT for something else, MOEC_ERR_USAGE for rows of another bundle
 * or other decisions and where nothing tells the times, those of moec_simulated_run. */
MOEC_WARN_UNUSED enum moec_status moec_agreement_make(const struct moec_agreement_setup *setup,
                                                      struct moec_agreement *agreement,
                                                      struct moec_error *err);
void moec_agreement_release(struct moec_agreement *agreement);

#endif
