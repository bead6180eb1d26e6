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

#include "runtime/forward/context.h"
#include "runtime/forward/span.h"

/* Columns of a state that are worked on together. */
#define MOEC_RUNNING_COLUMNS 64u

/* Where a token's row has what, in floats: inputs of the convolution (queries, keys and values in the order
 * of its channels; outputs replace values), in layers with matrices the gate, the rate of each value head and
 * decays, and the latents of decays and gates where they have some. Each but the three first begins with
 * whole lanes, and behind values there is room for such. */
struct moec_running_row {
    size_t queries, keys, values, gate, rate, decay, decay_latent, gate_latent, end;
};
struct moec_running_row moec_running_row_of(const struct moec_layer_kind *kind);

/* transformers adds this to the squares of queries and keys of the delta rule before it divides by their
 * root; times 1 / head_dim it is an RMS norm's. */
#define MOEC_DELTA_NORM_EPS 1e-6f

/* Floats of a state that the convolution has. */
static inline size_t moec_running_tail_floats(const struct moec_layer_kind *kind)
{
    return (size_t)(kind->conv_size - 1) * moec_layer_channels(kind);
}

/* Floats of a sequence's state. */
uint64_t moec_running_floats(const struct moec_layer_kind *kind);
/* Floats of scratch: for each token, and for each thread. */
size_t moec_running_token_floats(const struct moec_layer_kind *kind);
uint64_t moec_running_thread_floats(const struct moec_layer_kind *kind);

/* hidden += mix(norm(hidden)) for a running layer. Each span begins with its state_in (NULL: nothing) and
 * leaves what it ends with in state_out (NULL: nowhere), which may be the same memory. */
void moec_running_run(const struct moec_forward *forward, uint32_t layer, const struct moec_layer *weights,
                      const struct moec_span *spans, uint32_t n_spans, uint32_t n_tok, float *hidden);

#endif
