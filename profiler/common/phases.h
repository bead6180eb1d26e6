/* What each phase of long work took and what bound it: times, the work that was counted meanwhile
 * (formats/base/work_tally.h), and the share of the rate that the same machine's products reach.
 *
 * A phase goes on until another one is named; one that comes again adds to its first row. Times never enter a
 * profile or bundle. Thread rule: one thread. */
#ifndef MOEC_PROFILER_PHASES_H
#define MOEC_PROFILER_PHASES_H

#include "formats/base/work_tally.h"

#include <stddef.h>

#define MOEC_MAX_PHASES 24 /* of different names; what comes later counts to the last */

struct moec_phase {
    char name[48];
    double seconds;
    double processor_seconds; /* of all threads of the process, system included */
    double alone_seconds;     /* in which the thread that drives the work was in no parallel region */
    double multiply_adds;     /* of products of the model and of fits */
    double fit_seconds;       /* of all threads: codes fitted to data */
    double fit_multiply_adds; /* those of `multiply_adds` that fits did */
    double decode_seconds;    /* of all threads: weights into floats, ahead of products with many tokens */
    double decoded_weights;
    double encode_seconds; /* of all threads: records of experts */
    double encoded_bytes;
    double read_seconds; /* of all threads: in system calls, the page cache included */
    double read_bytes;
    double receive_seconds; /* in meetings with other ranks, the waiting for them included */
    double received_bytes;  /* from them */
};

/* What a phase was bound by: the largest part of its threads' time. */
enum moec_phase_bound {
    MOEC_BOUND_PRODUCTS, /* as fast as the machine's products would have been */
    MOEC_BOUND_FITTING,  /* codes fitted to data */
    MOEC_BOUND_DECODING,
    MOEC_BOUND_ENCODING,
    MOEC_BOUND_READING,
    MOEC_BOUND_ONE_THREAD, /* the others had nothing to do */
    MOEC_BOUND_WAITING,    /* had something, and no processor: other programs, locks, mapped files */
    MOEC_BOUND_OTHER,      /* products slower than that, norms, scores, and all that is not counted */
    MOEC_BOUND_COUNT
};

struct moec_phase_parts {
    double shares[MOEC_BOUND_COUNT]; /* of seconds x threads; their sum is 1 unless products are faster than
                                      * the peak */
    enum moec_phase_bound bound;
};

struct moec_phases {
    struct moec_phase items[MOEC_MAX_PHASES];
    uint32_t n;
    uint32_t current; /* n: none */
    uint64_t begun_ns;
    double begun_processor;
    struct moec_work_tally begun_work;
};

/* Ends the phase at work and begins the one of this name (at most 47 bytes), which is copied. The first call
 * begins to watch. Of the name at work: nothing. */
void moec_phases_begin(struct moec_phases *phases, const char *name);
/* Ends the phase at work. */
void moec_phases_end(struct moec_phases *phases);

/* The sum of all phases, named "all". */
struct moec_phase moec_phases_sum(const struct moec_phases *phases);

/* peak: multiply-adds a second of n_threads together; 0 = unknown. A pure function. */
struct moec_phase_parts moec_phase_parts_of(const struct moec_phase *phase, int n_threads, double peak);

/* "products", "fitting", "decoding", "encoding", "reading", "one thread", "waiting", "other" */
const char *moec_phase_bound_name(enum moec_phase_bound bound);

#endif
