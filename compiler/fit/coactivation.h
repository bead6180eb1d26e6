/* The neurons of each expert in an order in which those that are active for the same tokens stand together.
 *
 * While the windows pass a layer, each expert's first MOEC_COACTIVATION_TOKENS tokens are looked at: of its
 * neurons the share MOEC_COACTIVATION_SHARE with the largest |up . x| are a token's active ones (FloE,
 * eq. 5, keeps those). Their bits are put in order by compiler/fit/seriation.h. What a token needs of the
 * expert's pairs then lies in fewer and longer ranges, which storage gives in fewer requests; where several
 * pairs share a checksum, also in fewer bytes. An expert without tokens keeps its order.
 *
 * The order depends on weights and windows alone, not on threads, memory or batches. Thread rule: one thread;
 * it parallelises inside. */
#ifndef MOEC_COMPILER_COACTIVATION_H
#define MOEC_COMPILER_COACTIVATION_H

#include "formats/tables/neuron_order.h"
#include "profiler/evaluate/score.h"

#define MOEC_COACTIVATION_SHARE  0.2
#define MOEC_COACTIVATION_TOKENS 1024

/* Of an expert's gate and down, under which nothing can be saved: four fifths of them would take a device no
 * longer than two requests of MOEC_UNIT_GAP_BYTES (runtime/experts/expert_units.h). */
#define MOEC_COACTIVATION_LEAST_BYTES 16384u

struct moec_coactivation_request {
    const struct moec_config *config;
    struct moec_scorer *scorer;         /* of the original, whose experts stand in the checkpoint's order */
    const struct moec_measure *measure; /* room for a run */
    const struct moec_kernels *kernels;
    int n_threads;
    const struct moec_progress *progress;
};

/* Runs in which a token's active neurons lie, on average over all experts' tokens. */
struct moec_coactivation_runs {
    double before, after;
};

/* Fills `order`, which is the checkpoint's at first. Errors: those of the evaluation, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_coactivation_order(const struct moec_coactivation_request *request,
                                                          struct moec_neuron_order *order,
                                                          struct moec_coactivation_runs *runs,
                                                          struct moec_error *err);

/* Memory that it takes beside the scorer. */
uint64_t moec_coactivation_bytes(const struct moec_config *config, int n_threads);

#endif
