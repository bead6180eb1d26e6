/* The table of --verbose: what each phase took, what was computed in it, and what bound it
 * (profiler/common/phases.h). Thread rule: main thread. */
#ifndef MOEC_CLI_PHASE_OUTPUT_H
#define MOEC_CLI_PHASE_OUTPUT_H

#include "cli/output/progress_line.h"
#include "formats/json/json_write.h"
#include "profiler/common/phases.h"
#include "runtime/kernels/kernels.h"

struct cli_phases {
    struct moec_phases recorded;
    int n_threads;
    double peak; /* multiply-adds a second of canonical products on all threads; 0 = not measured */
};

/* From here on the progress's phases are recorded, the first of them "start". */
void cli_phases_start(struct cli_phases *phases, struct cli_progress *progress);

/* The work is done: measures the peak and prints the table. Nothing where phases were not started. n_threads
 * as moec_pool_make. */
void cli_phases_finish(struct cli_phases *phases, struct cli_progress *progress,
                       const struct moec_kernels *kernels, int n_threads);

/* Adds "phases" and what they are measured by; nothing where phases were not started. */
void cli_json_phases(struct moec_json_out *root, const struct cli_phases *phases);

#endif
