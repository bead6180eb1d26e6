/* One function for each step of the forward pass. It counts what the architecture asks for, not what kernels
 * or caches save. Progress, forecasts and the choice of sensitivities divide by these, so a new step must be
 * counted here too. Costs after a layer leave out a source's keys where the source is unchanged. */
#include "profiler/evaluate/cost.h"

/* Queries and output of n tokens; their keys and values. */
static uint64_t queries(const struct moec_config *config, uint32_t layer, uint64_t n)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, layer);
    if (kind->latent_dim == 0)
        return (2 + kind->has_gate) * n * moec_layer_q_dim(kind) * config->n_embd;
    const uint64_t columns = moec_layer_q_columns(kind, config->n_embd);
    return n * (kind->q_latent_dim * (uint64_t)config->n_embd + moec_layer_q_rows(kind) * columns +
                moec_layer_kv_up_rows(kind) * (uint64_t)kind->latent_dim +
                moec_layer_out_dim(kind) * (uint64_t)config->n_embd);
}

static uint64_t keys(const struct moec_config *config, uint32_t layer, uint64_t n)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, layer);
    const bool is_one = kind->keys_are_values || !moec_layer_has_values(kind);
    return (is_one ? 1 : 2) * n * moec_layer_kv_dim(kind) * config->n_embd;
}

/* Scores of so many pairs of positions, and the sums that they weight. */
static uint64_t products(const struct moec_config *config, uint32_t layer, uint64_t pairs)
{
    return 2 * pairs * moec_layer_q_dim(moec_config_layer(config, layer));
}

/* A running layer: projections, convolution, and three products of the state of each value head. */
static uint64_t running(const struct moec_config *config, uint32_t layer, uint64_t n)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, layer);
    const uint64_t out = moec_layer_out_dim(kind), channels = moec_layer_channels(kind);
    const bool has_matrices = moec_layer_has_matrices(kind), is_delta = moec_layer_is_delta(kind);
    if (kind->mixer == MOEC_MIXER_CHANNEL_DELTA) {
        const uint64_t rank = kind->head_dim, down = channels + out + kind->n_head + 2 * rank;
        return n * (down * config->n_embd + (channels - out) * rank + channels * kind->conv_size +
                    3 * out * rank);
    }
    const uint64_t rows = channels + 2 * out +
                          (!has_matrices ? out
                           : is_delta    ? 2 * (uint64_t)kind->n_head
                                         : kind->n_head);
    return n * (rows * config->n_embd + channels * kind->conv_size +
                (has_matrices ? (is_delta ? 3 : 2) * out * kind->head_dim : 0));
}

uint64_t moec_cost_attention(const struct moec_config *config, uint32_t layer, uint32_t first_position,
                             uint32_t n)
{
    if (moec_layer_is_running(moec_config_layer(config, layer)))
        return running(config, layer, n);
    const uint32_t window = moec_config_layer(config, layer)->window,
                   chunk = moec_config_layer(config, layer)->chunk;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t positions = (uint64_t)first_position + i + 1;
        positions = chunk > 0 ? (positions - 1) % chunk + 1 : positions;
        seen += window > 0 && positions > window ? window : positions;
    }
    return queries(config, layer, n) + keys(config, layer, n) + products(config, layer, seen);
}

uint64_t moec_cost_encoder_attention(const struct moec_config *config, uint32_t layer, uint32_t n)
{
    return queries(config, layer, n) + keys(config, layer, n) + products(config, layer, (uint64_t)n * n);
}

uint64_t moec_cost_source_keys(const struct moec_config *config, uint32_t layer, uint32_t n_source)
{
    return keys(config, layer, n_source);
}

uint64_t moec_cost_cross_attention(const struct moec_config *config, uint32_t layer, uint32_t n_source,
                                   uint32_t n)
{
    return queries(config, layer, n) + products(config, layer, (uint64_t)n_source * n);
}

uint64_t moec_cost_expert(const struct moec_config *config, uint64_t n)
{
    return moec_config_mlp_matrices(config) * n * config->n_ff_expert * config->n_embd;
}

uint64_t moec_cost_mlp(const struct moec_config *config, uint32_t layer, uint64_t n)
{
    const uint64_t d = config->n_embd, matrices = moec_config_mlp_matrices(config);
    if (!moec_config_is_moe(config, layer))
        return matrices * n * moec_config_layer(config, layer)->n_ff_dense * d;
    uint64_t shared = matrices * n * config->n_ff_shared * d + (config->mlp.shared_gate ? n * d : 0) +
                      (config->mlp.has_bypass ? n * d * d : 0);
    return n * moec_config_choices(config) * d + config->top_k * (moec_cost_expert(config, n) + n * d) +
           shared;
}

uint64_t moec_cost_head(const struct moec_config *config, uint64_t n)
{
    const uint64_t projected = config->head.projects_output ? config->n_embd : 0;
    return n * (config->n_vocab + projected) * config->n_embd;
}

uint64_t moec_cost_mixing(const struct moec_config *config, uint32_t layer, uint32_t n_source,
                          uint32_t first_position, uint32_t n)
{
    if (moec_config_stack(config, layer) == MOEC_STACK_ENCODER)
        return moec_cost_encoder_attention(config, layer, n_source);
    const uint64_t own = moec_cost_attention(config, layer, first_position, n);
    if (!moec_config_is_encoder_decoder(config))
        return own;
    return own + moec_cost_source_keys(config, layer, n_source) +
           moec_cost_cross_attention(config, layer, n_source, n);
}

uint64_t moec_cost_from_layer(const struct moec_config *config, uint32_t first_layer, uint32_t n_source,
                              uint32_t first_position, uint32_t n)
{
    uint64_t cost = moec_cost_head(config, n);
    for (uint32_t layer = first_layer; layer < config->n_layer; layer++)
        cost += moec_cost_mixing(config, layer, n_source, first_position, n) +
                moec_cost_mlp(config, layer,
                              moec_config_stack(config, layer) == MOEC_STACK_ENCODER ? n_source : n);
    return cost;
}

uint64_t moec_cost_after_layer(const struct moec_config *config, uint32_t layer, uint32_t n_source,
                               uint32_t first_position, uint32_t n)
{
    uint64_t cost = moec_cost_from_layer(config, layer + 1, n_source, first_position, n);
    /* The source's keys and values are known where the source did not change. */
    if (moec_config_stack(config, layer) == MOEC_STACK_DECODER)
        for (uint32_t later = layer + 1; later < config->n_layer; later++)
            cost -= moec_cost_source_keys(config, later, n_source);
    return cost;
}

uint64_t moec_cost_pass(const struct moec_config *config, const struct moec_windows *windows)
{
    uint64_t cost = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        cost += moec_cost_from_layer(config, 0, moec_windows_source(windows, w), 0, windows->scored[w]);
    return cost;
}

uint64_t moec_cost_layers(const struct moec_config *config, const struct moec_windows *windows)
{
    return moec_cost_pass(config, windows) - moec_cost_head(config, moec_windows_scored_count(windows));
}
