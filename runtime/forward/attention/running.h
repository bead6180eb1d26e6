/* Running layers (enum moec_mixer): short convolution, gated delta rule and state space, over the spans of a
 * batch.
 *
 * Tokens of a span pass the state in order, one by one, in every chunking, so that results depend on the past
 * alone (D1). Work is shared over spans and channels in the convolution, and over spans, value heads and
 * columns of their states where these are matrices: all of these are independent. Sums are those of
 * kernels.h.
 *
 * A state: the last conv_size - 1 rows that enter the convolution, oldest first, (conv_size - 1, channels);
 * then, where there are such, S of each value head, (n_head, head_dim, padded value_dim). Internal to
 * runtime/.
 */
#ifndef MOEC_RUNTIME_RUNNING_H
#define MOEC_RUNTIME_RUNNING_H

#include "runtime/forward/context/context.h"
#include "runtime/forward/context/running_row.h"
#include "runtime/forward/context/span.h"

/* transformers adds this to the squares of queries and keys of the delta rule before it divides by their
 * root; times 1 / head_dim it is an RMS norm's. */
#define MOEC_DELTA_NORM_EPS 1e-6f

/* hidden += mix(norm(hidden)) for a running layer. Each span begins with its state.in (NULL: nothing) and
 * leaves what it ends with in state.out (NULL: nowhere), which may be the same memory. */
void moec_running_run(const struct moec_forward *forward, uint32_t layer, const struct moec_layer *weights,
                      struct moec_batch batch, float *hidden);

#endif
