/* Windows of one part, and what is measured on them: the original's losses, and those of the last run of a
 * scorer, which gives the loss of what was run. Who runs what is the caller's. Thread rule: one thread. */
#ifndef MOEC_COMPILER_MEASURED_PART_H
#define MOEC_COMPILER_MEASURED_PART_H

#include "profiler/evaluate/metrics.h"
#include "profiler/evaluate/score.h"

/* Zero-initialised before its windows are set; everything is owned. */
struct moec_measured_part {
    struct moec_windows windows; /* W */
    uint32_t n_window;           /* that the part has, of which `windows` are the first */
    struct moec_scorer *scorer;  /* NULL: not made yet */
    double *reference_nll;       /* (W): the original's */
    struct moec_measure losses;  /* (W) each: of the last run */
};

/* After part->windows was set: takes the first n_most of them, with room for their losses; a reference_nll
 * that is there stays. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_measured_part_begin(struct moec_measured_part *part, uint32_t n_most,
                                                           struct moec_error *err);

/* The loss of the last run against the original. Errors: those of moec_loss_measure. */
MOEC_WARN_UNUSED enum moec_status moec_measured_part_loss(const struct moec_measured_part *part,
                                                          double confidence, struct moec_loss *loss,
                                                          struct moec_error *err);

/* The same of the first n windows alone. */
MOEC_WARN_UNUSED enum moec_status moec_measured_part_loss_first(const struct moec_measured_part *part,
                                                                uint32_t n, double confidence,
                                                                struct moec_loss *loss,
                                                                struct moec_error *err);

/* Frees all but what the original gave; and all. */
void moec_measured_part_forget(struct moec_measured_part *part);
void moec_measured_part_release(struct moec_measured_part *part);

#endif
