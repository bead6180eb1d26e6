/* The table of --verbose: what each phase took, what was computed in it, and what bound it
 * (profiler/common/phases.h). Thread rule: main thread. */
#ifndef MOEC_CLI_PHASE_OUTPUT_H
#define MOEC_CLI_PHASE_OUTPUT_H

#include "cli/terminal/progress_line.h"
#include "formats/json/json_write.h"
#include "profiler/common/phases.h"
#include "profiler/ranks/ranks.h"
#include "runtime/kernels/kernels.h"

/* What a rank took. */
struct cli_rank_phases {
    char host[MOEC_RANKS_HOST_BYTES];
    uint64_t peak_bytes;
    uint32_t n;
    struct moec_phase items[MOEC_MAX_PHASES]; /* (n) */
};

struct cli_phases {
    struct moec_phases recorded;
    uint32_t n_rank;
    struct cli_rank_phases *ranks; /* (n_rank), owned; NULL with one, and without phases */
    uint64_t largest_peak_bytes;   /* of memory: of the rank that took most, */
    uint64_t sum_peak_bytes;       /* and of all together; 0 with one */
    int n_threads;
    double peak; /* multiply-adds a second of canonical products on all threads; 0 = not measured */
};

/* From here on the progress's phases are recorded, the first of them "start". */
void cli_phases_start(struct cli_phases *phases, struct cli_progress *progress);

/* The work is done: measures the peak and prints the table. Nothing where phases were not started. n_threads
 * as moec_pool_make. */
void cli_phases_finish(struct cli_phases *phases, struct cli_progress *progress,
                       const struct moec_kernels *kernels, int n_threads);

/* Together, between the two: every rank's peak of memory and phases, so that they are told too. Nothing with one rank;
 * without phases of the peaks alone. Errors: a rank's failure, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status cli_phases_share(struct cli_phases *phases, struct moec_ranks *ranks,
                                                   struct moec_error *err);
void cli_phases_release(struct cli_phases *phases);

/* The peak of memory until now, of ranks as they shared it: a line on stdout; "peak_bytes" of this process or of the
 * rank that took most, and "ranks_peak_bytes" of all. */
void cli_print_peak(const struct cli_phases *phases);
void cli_json_peak(struct moec_json_out *root, const struct cli_phases *phases);

/* Adds "phases" and what they are measured by; nothing where phases were not started. */
void cli_json_phases(struct moec_json_out *root, const struct cli_phases *phases);

#endif
