#include "runtime/forward/context/latent_row.h"

#include "runtime/kernels/kernels.h"

size_t moec_latent_queries(const struct moec_layer_kind *kind)
{
    return moec_lanes_padded(moec_layer_q_dim(kind));
}

size_t moec_latent_query_latent(const struct moec_layer_kind *kind)
{
    const size_t queries = moec_layer_q_rows(kind), outputs = moec_layer_out_dim(kind);
    return moec_latent_queries(kind) + moec_lanes_padded(queries > outputs ? queries : outputs);
}

size_t moec_latent_token_floats(const struct moec_layer_kind *kind)
{
    return moec_latent_query_latent(kind) + moec_lanes_padded(kind->q_latent_dim);
}
