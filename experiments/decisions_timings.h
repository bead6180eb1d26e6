/* What moec bench and moec simulate said in the parts of experiments/decisions.sh that are about time, read
 * back: one entry for each row of theirs.
 *
 * A folder that is missing is empty; a damaged file is an error. Numbers that a row lacks are NaN. Thread
 * rule: plain data. */
#ifndef MOEC_EXPERIMENTS_DECISIONS_TIMINGS_H
#define MOEC_EXPERIMENTS_DECISIONS_TIMINGS_H

#include "formats/base/error.h"

#include <stdint.h>

/* One row of moec bench. */
struct decisions_timing {
    char file[64]; /* of its file, without ending */
    char mode[16], predict[16];
    double memory_percent; /* of the experts; NaN: the mode has no buffer */
    double rate;           /* MB/s */
    uint32_t prompt_tokens, n_ahead;
    double ttft_ms, prompt_bytes, prompt_compute_ms, prompt_transfer_ms, prompt_floor_ms;
    double tpot_ms, compute_ms, stall_ms, token_bytes, hit_rate;
};

struct decisions_timings {
    uint32_t n;
    struct decisions_timing *rows; /* owned, by the names of their files */
};

MOEC_WARN_UNUSED enum moec_status
decisions_timings_read(const char *folder, struct decisions_timings *timings, struct moec_error *err);
/* The first row of a file, mode, memory in percent and rate; NULL where there is none. Of a mode without
 * buffer any memory will do. */
const struct decisions_timing *decisions_timing_find(const struct decisions_timings *timings,
                                                     const char *file, const char *mode,
                                                     double memory_percent, double rate);

/* One row of moec simulate. */
struct decisions_eviction {
    char policy[32]; /* "lru", "tuned", "window-lfu" */
    double memory_percent;
    double hit_rate, bound; /* of Belady's rule */
    double token_bytes, stall_ms;
};

struct decisions_evictions {
    uint32_t n;
    struct decisions_eviction *rows; /* owned */
    char weights[2][32];             /* of "tuned", in a quarter and in half of the memory; "" = not tuned */
};

MOEC_WARN_UNUSED enum moec_status
decisions_evictions_read(const char *folder, struct decisions_evictions *evictions, struct moec_error *err);
const struct decisions_eviction *decisions_eviction_find(const struct decisions_evictions *evictions,
                                                         const char *policy, double memory_percent);

#endif
