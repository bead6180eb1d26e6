/* What a generated token will take on a described device: a bundle with its decisions runs text here, with
 * everything in memory, and what its routers choose is replayed through the buffer that the device leaves, on
 * the device's clock (profiler/simulate). So a candidate's own choices are counted, not those of a run that
 * did not decide. Eviction policies and predictors are tried on the same recording, since they change no
 * choice.
 *
 * Thread rule: one call at a time; it runs an engine of its own. */
#ifndef MOEC_COMPILER_FORETELL_H
#define MOEC_COMPILER_FORETELL_H

#include "formats/bundle/bundle.h"
#include "formats/model/decision_settings.h"
#include "formats/trace/device_description.h"
#include "formats/trace/replay.h"
#include "runtime/forward/weights/model.h"

#include <math.h>

/* Of what is foretold: journals keep times of one revision. Raised with each change of the simulator or of what it is
 * given by which the same choices take another time. */
#define MOEC_FORETELL_REVISION 3u

struct moec_bench_tokens; /* profiler/bench/bench_worker.h */

struct moec_foretell_setup {
    /* Of a model with the same layers; NULL: nothing takes time, so that bytes alone are told. Borrowed. */
    const struct moec_device *device;
    const char *trace;                      /* path of a file that is written meanwhile, and removed */
    int n_threads;                          /* as moec_pool_make */
    const struct moec_bench_tokens *tokens; /* of samples, which are run as a bench runs them. Borrowed. */
};

/* Of a generated token, means. */
struct moec_foretold {
    double token_ns;
    double read_bytes;           /* guesses included */
    double stall_ns;             /* waiting for storage */
    double reads;                /* records */
    char evict[16], predict[16]; /* with which it takes this */
};

/* A recording of one bundle with its decisions. */
struct moec_foretell;

/* Runs the bundle at `path`; settings NULL or off: without decisions. Errors: those of an engine and of
 * traces, MOEC_ERR_UNSUPPORTED for models whose decisions no trace has, MOEC_ERR_CANCELLED by `is_cancelled`
 * (may be NULL). */
MOEC_WARN_UNUSED enum moec_status moec_foretell_record(const struct moec_foretell_setup *setup,
                                                       const char *path,
                                                       const struct moec_decision_settings *settings,
                                                       bool (*is_cancelled)(void), struct moec_foretell **out,
                                                       struct moec_error *err);
/* What a scorer has run (profiler/evaluate/router_record.h): a bundle with these settings. */
struct moec_foretell_run {
    const struct moec_decision_settings *settings;
    const struct moec_model *model; /* the bundle's, for the call */
    struct moec_replay *replay;     /* what its routers chose; taken over in any case */
};

/* The same of such a run of the bundle at `path`. Errors: those of the simulator. */
MOEC_WARN_UNUSED enum moec_status moec_foretell_recorded(const struct moec_device *device, const char *path,
                                                         const struct moec_foretell_run *ran,
                                                         struct moec_foretell **out, struct moec_error *err);
void moec_foretell_free(struct moec_foretell *foretell); /* NULL-safe */

/* The fastest of three evictions, with a gate that predicts and without, for a buffer of so many bytes; of equals
 * the first. Without a device what hobbit reads with no predictor. Errors: those of moec_simulated_run. */
MOEC_WARN_UNUSED enum moec_status moec_foretell_time(const struct moec_foretell *foretell,
                                                     uint64_t buffer_bytes, struct moec_foretold *out,
                                                     struct moec_error *err);

/* The same of every eviction and predictor that a bundle has without being taught, where that takes at least 2 %
 * less. And with one of them by name. */
MOEC_WARN_UNUSED enum moec_status moec_foretell_best(const struct moec_foretell *foretell,
                                                     uint64_t buffer_bytes, struct moec_foretold *out,
                                                     struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_foretell_with(const struct moec_foretell *foretell,
                                                     uint64_t buffer_bytes, const char *evict,
                                                     const char *predict, struct moec_foretold *out,
                                                     struct moec_error *err);

/* Another device from here on, of the same layers. Errors: those of moec_simulated_device_make. */
MOEC_WARN_UNUSED enum moec_status
moec_foretell_move(struct moec_foretell *foretell, const struct moec_device *device, struct moec_error *err);

/* Of a buffer that has room for what logical caches of these settings hold, whichever experts these are. */
MOEC_WARN_UNUSED enum moec_status moec_foretell_slots_bytes(const struct moec_foretell *foretell,
                                                            const struct moec_decision_settings *settings,
                                                            uint64_t *out, struct moec_error *err);

/* Of a buffer that holds every record. */
uint64_t moec_foretell_all_bytes(const struct moec_foretell *foretell);

#endif
