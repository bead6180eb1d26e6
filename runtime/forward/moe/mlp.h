/* MLPs over rows: routed experts, shared experts and dense MLPs alike (internal to runtime/).
 *
 * Neurons are summed in chunks of MOEC_SUM_CHUNK, each chunk's sum complete before it is added to the output
 * in increasing order, so a chunk is a unit of work that any thread may do. Small batches are cut by chunk,
 * large ones by tile of tokens; both give the same bits. */
#ifndef MOEC_RUNTIME_MLP_H
#define MOEC_RUNTIME_MLP_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/moe/mlp_rows.h"

/* Computes every job's rows of `out`, overwritten, padding zero. Jobs may have no rows. */
void moec_mlp_run(const struct moec_forward *forward, const struct moec_mlp_job *jobs, uint32_t n_jobs);

/* The neurons that some row of a job needs: bit i of neurons[c] is neuron i of chunk c. All, where no filter
 * of the up product leaves any out before gate and down are read, and where rows are so many that few would
 * be left out. Only the up projection is read. Returns whether the job's rows will be computed with rows of
 * all neurons, those of the others times 0.
 *
 * `up` (n, neurons), or NULL, receives the products for moec_mlp_run of the same rows, where
 * moec_mlp_mark_keeps. */
bool moec_mlp_mark(const struct moec_forward *forward, const struct moec_mlp_job *job, uint64_t *neurons,
                   float *up);
/* Whether marking looks at rows one by one. */
static inline bool moec_mlp_mark_keeps(const struct moec_mlp_job *job)
{
    return job->pairs.n <= MOEC_ENCODED_TOKENS;
}

/* What the down projection is given for n_tok rows of `input` (n_tok, stride): row i stands at out + i *
 * out_stride, one float for each neuron. */
void moec_mlp_activations(const struct moec_forward *forward, const struct moec_mlp *mlp, uint32_t n_tok,
                          const float *input, float *out, size_t out_stride);

/* One chunk of at most MOEC_SUM_CHUNK neurons, from `neuron` on, for one token, from encoded weights: y is
 * the chunk's sum. With a filter of the up product of a gated MLP without biases, gate and down rows of
 * neurons that it leaves out are not read; the sum has the same bits as with zeros in their place (but for
 * the sign of a zero that products too small for F32 leave, which the sum over ranks drops). Returns how
 * many neurons the filter leaves; `scratch` is a thread's. */
uint32_t moec_mlp_chunk(const struct moec_mlp_kernels *kernels, const struct moec_mlp *mlp, uint32_t neuron,
                        const struct moec_mlp_token *token, const struct moec_mlp_scratch *scratch, float *y);

#endif
