/* A part of the data, opened and measured for a plan. Thread rule: one thread, parallel inside. */
#ifndef MOEC_COMPILER_COMPILE_PART_H
#define MOEC_COMPILER_COMPILE_PART_H

#include "compiler/compile/compile_run.h"

/* Windows of a part that `model` can be evaluated on, canonically; its experts are the original's until they
 * are assigned. Errors: those of the scorer. The part is released by the caller in every case. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_make(struct moec_compile_run *run, enum moec_part which,
                                                         const struct moec_model *model,
                                                         struct moec_compile_part *part,
                                                         struct moec_error *err);
/* The same of the windows of the search part that the original is fitted on. Ranks share them in blocks. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_make_fit(struct moec_compile_run *run,
                                                             struct moec_compile_part *part,
                                                             struct moec_error *err);
/* The block of such a part, NULL without ranks. */
const struct moec_rank_block *moec_compile_part_block(const struct moec_compile_part *part);
/* Windows or rows of a part with what the original scores on them, to be measured with the dense weights that
 * are currently bound, or those of a plan. The original is evaluated on windows when the first plan is, of
 * which no measurement was kept, and on those that the profile did not measure only here. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_open(struct moec_compile_run *run, enum moec_part which,
                                                         struct moec_compile_part *part,
                                                         struct moec_error *err);
/* Frees what the part holds and zeroes it. */
void moec_compile_part_release(struct moec_compile_part *part);

/* The loss of a plan on a part, at the options' confidence: measured, or as an interrupted compile measured
 * it. Errors: MOEC_ERR_MISMATCH when the original is not what the profile measured. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_measure(struct moec_compile_run *run,
                                                            struct moec_compile_part *part,
                                                            const struct moec_plan *plan,
                                                            struct moec_loss *loss, struct moec_error *err);
/* The same for the test of a plan on the certificate part, with options->target.max_loss as its target. If the test
 * ends early as failed (moec_sequence_ends), this is the loss of the first windows alone. Tests on rows never do. */
MOEC_WARN_UNUSED enum moec_status moec_compile_part_test(struct moec_compile_run *run,
                                                         struct moec_compile_part *part,
                                                         const struct moec_plan *plan, struct moec_loss *loss,
                                                         struct moec_error *err);
/* Its steps. What measuring on windows needs, with the original's hidden states; a run, into the part's
 * arrays; and the loss of what these hold (`is_promise` as in struct moec_loss_options). */
MOEC_WARN_UNUSED enum moec_status
moec_compile_part_ready(struct moec_compile_run *run, struct moec_compile_part *part, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_compile_part_run(struct moec_compile_run *run,
                                                        struct moec_compile_part *part,
                                                        const struct moec_plan *plan, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_compile_part_loss(const struct moec_compile_run *run,
                                                         const struct moec_compile_part *part,
                                                         bool is_promise, struct moec_loss *loss,
                                                         struct moec_error *err);

#endif
