/* Places are given out from left to right: the channels of the convolution (a state space has values first,
 * others last), then gate, rate, decay and latents. Each of these begins with whole lanes, and the gate
 * behind all channels. Only the room behind values may reach into keys, which are used up by then. */
#include "runtime/forward/context/running_row.h"

#include "runtime/kernels/kernels.h"

struct moec_running_row moec_running_row_of(const struct moec_layer_kind *kind)
{
    const bool has_matrices = moec_layer_has_matrices(kind);
    const size_t n_key = has_matrices ? (size_t)kind->n_kv_head * kind->head_dim : 0;
    const size_t n_value = moec_layer_out_dim(kind), n_head = moec_lanes_padded(kind->n_head);
    struct moec_running_row layout = {.keys = n_key, .values = 2 * n_key};
    if (kind->mixer == MOEC_MIXER_SPACE)
        layout = (struct moec_running_row){.keys = n_value, .queries = n_value + n_key};
    /* Behind values there is room for whole lanes, in keys that are used up where these come later. */
    layout.gate = layout.values + moec_lanes_padded(n_value);
    layout.gate = layout.gate > n_value + 2 * n_key ? layout.gate : n_value + 2 * n_key;
    layout.rate = layout.gate + (has_matrices ? moec_lanes_padded(n_value) : 0);
    layout.decay = layout.rate + (has_matrices ? n_head : 0);
    layout.decay_latent = layout.decay + (has_matrices ? moec_lanes_padded(moec_layer_decays(kind)) : 0);
    const size_t latent = kind->mixer == MOEC_MIXER_CHANNEL_DELTA ? moec_lanes_padded(kind->head_dim) : 0;
    layout.gate_latent = layout.decay_latent + latent;
    layout.end = moec_lanes_padded(layout.gate_latent + latent);
    return layout;
}

uint64_t moec_running_floats(const struct moec_layer_kind *kind)
{
    const uint64_t rows = moec_layer_has_matrices(kind) ? (uint64_t)kind->n_head * kind->head_dim : 0;
    return moec_running_tail_floats(kind) + rows * moec_lanes_padded(moec_layer_value_dim(kind));
}

size_t moec_running_token_floats(const struct moec_layer_kind *kind)
{
    return moec_running_row_of(kind).end;
}

uint64_t moec_running_thread_floats(const struct moec_layer_kind *kind)
{
    return moec_layer_has_matrices(kind) ? (uint64_t)kind->head_dim * MOEC_RUNNING_COLUMNS : 0;
}
