/* What experiments/edgemoe.sh left in its folder, read back: sizes, losses and times of one sample.
 *
 * A file that is missing leaves NaN and counts of 0, so that a report can be written of part of an
 * experiment; a damaged one is an error. Losses are fractions (0.02 is 2 %), sizes bytes, times milliseconds
 * or seconds as named. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_MEASURED_H
#define MOEC_EXPERIMENTS_MEASURED_H

#include "formats/profile/profile.h"

#define EXPERIMENT_MAX_ROWS    64
#define EXPERIMENT_N_TARGET    4
#define EXPERIMENT_N_BITS      4 /* uniform bitwidths: 2, 3, 4, 8 */
#define EXPERIMENT_N_QUANTIZER 4

extern const uint32_t experiment_targets[EXPERIMENT_N_TARGET]; /* percent: 2, 5, 10, 20 */
extern const uint32_t experiment_bits[EXPERIMENT_N_BITS];

/* One compiled model: `moec compile --json` and `moec eval --json` on the test data. */
struct experiment_bundle {
    double n_bytes, evaluations, seconds;
    double search_loss, search_high; /* of the certificate */
    bool missed;                     /* the certificate misses the target */
    double value, reference;         /* metric on the test data: this model's and the original's */
    double loss, low, high;          /* on the test data, with its 90 % interval */
    double n_sample;
};

/* One row of `moec bench --json`. */
struct experiment_row {
    char mode[32], memory[16];
    bool has_preloads, is_variant;
    double tpot_ms, floor_ms, compute_ms, transfer_ms, stall_ms, hit_rate, late_rate, bytes_per_token;
    double peak_bytes, buffer_bytes, memory_bytes;
    double total_bytes; /* of all experts */
};

/* One `moec bench --json`. */
struct experiment_bench {
    uint32_t n_row;
    struct experiment_row rows[EXPERIMENT_MAX_ROWS];
};

/* All experts at INT4 by one quantiser: `moec device` of that bundle, and its test. */
struct experiment_quantizer {
    char name[16];
    double record_bytes, expert_ns; /* of one expert on one token, decoding included */
    struct experiment_bundle bundle;
};

/* One row of `moec simulate --json` or of `moec bench --json` with --evict. */
struct experiment_hits {
    char evict[32];
    double buffer_share, hit_rate;
};

struct experiment_sample {
    char name[32], folder[512];
    bool has_profile;
    struct moec_profile profile;
    char metric[32];        /* of the test: "rouge-2", "perplexity" */
    char search_metric[32]; /* of profile and compile */
    double source_bytes, profile_seconds, threads;

    struct experiment_bundle uniform[EXPERIMENT_N_BITS];    /* experts alone */
    struct experiment_bundle everything[EXPERIMENT_N_BITS]; /* dense weights too */
    struct experiment_bundle ours[EXPERIMENT_N_TARGET];
    struct experiment_bundle paper[EXPERIMENT_N_TARGET]; /* the paper's procedure, --preset paper */
    struct experiment_bundle ours_dense;  /* target 2 %, bitwidth of the dense weights searched too */
    struct experiment_bundle like, other; /* Table IV */
    struct experiment_bundle paper_like, paper_other;

    uint32_t n_quantizer;
    struct experiment_quantizer quantizers[EXPERIMENT_N_QUANTIZER]; /* linear first */
    double plain_expert_ns;                                         /* 16 bits: nothing to decode */

    struct experiment_bench fast, slow;             /* on storage of 550 and of 50 MB/s */
    struct experiment_bench fast_paper, slow_paper; /* mode edgemoe of the paper's procedure's bundle */
    struct experiment_bench limits, limits_paper;   /* Table III: limits of the whole process */
    double tpot_of_target[EXPERIMENT_N_TARGET];     /* ms, mode edgemoe */
    double tpot_of_paper[EXPERIMENT_N_TARGET];
    uint32_t n_hits, n_hits_paper;
    struct experiment_hits hits[EXPERIMENT_MAX_ROWS], hits_paper[EXPERIMENT_MAX_ROWS];
    char processor[128];
};

/* Reads `folder`/`name`/; `sample` is empty (no profile, NaN) where there is no such folder. Released by the
 * caller. */
MOEC_WARN_UNUSED enum moec_status experiment_read(const char *folder, const char *name,
                                                  struct experiment_sample *sample, struct moec_error *err);
void experiment_release(struct experiment_sample *sample);

/* The row of a mode at a memory ("" = a mode without a buffer), with its usual predictor; NULL when there is
 * none. `index` counts memories as they were asked for. */
const struct experiment_row *experiment_find_row(const struct experiment_bench *bench, const char *mode,
                                                 uint32_t index);
/* Name of memory `index` of the bench, NULL past the last. */
const char *experiment_memory(const struct experiment_bench *bench, uint32_t index);

#endif
