#include "profiler/cost.h"

uint64_t moec_cost_attention(const struct moec_config *config, uint32_t first_position, uint32_t n)
{
    const uint64_t q = (uint64_t)config->n_head * config->head_dim;
    const uint64_t kv = (uint64_t)config->n_kv_head * config->head_dim;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t positions = (uint64_t)first_position + i + 1;
        seen += config->window > 0 && positions > config->window ? config->window : positions;
    }
    return n * (2 * q + 2 * kv) * config->n_embd + 2 * q * seen;
}

uint64_t moec_cost_expert(const struct moec_config *config, uint64_t n)
{
    return 3 * n * config->n_ff_expert * config->n_embd;
}

uint64_t moec_cost_mlp(const struct moec_config *config, uint32_t layer, uint64_t n)
{
    const uint64_t d = config->n_embd;
    if (!config->layer_is_moe[layer])
        return 3 * n * config->n_ff_dense * d;
    uint64_t shared = 3 * n * config->n_ff_shared * d + (config->shared_gate ? n * d : 0);
    return n * config->n_expert * d + config->top_k * (moec_cost_expert(config, n) + n * d) + shared;
}

uint64_t moec_cost_head(const struct moec_config *config, uint64_t n)
{
    return n * config->n_vocab * config->n_embd;
}

uint64_t moec_cost_from_layer(const struct moec_config *config, uint32_t first_layer, uint32_t first_position,
                              uint32_t n)
{
    uint64_t cost = moec_cost_head(config, n);
    if (first_layer < config->n_layer)
        cost += (config->n_layer - first_layer) * moec_cost_attention(config, first_position, n);
    for (uint32_t layer = first_layer; layer < config->n_layer; layer++)
        cost += moec_cost_mlp(config, layer, n);
    return cost;
}

uint64_t moec_cost_pass(const struct moec_config *config, const struct moec_windows *windows)
{
    uint64_t cost = 0;
    for (uint32_t w = 0; w < windows->n_window; w++)
        cost += moec_cost_from_layer(config, 0, 0, windows->scored[w]);
    return cost;
}
