/* What a token, a thread and a sequence keep of a running layer (running.h), in floats. Functions of the
 * layer's kind alone; internal to runtime/. */
#ifndef MOEC_RUNTIME_RUNNING_ROW_H
#define MOEC_RUNTIME_RUNNING_ROW_H

#include "formats/model/config.h"

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

#endif
