#include "formats/model/neighbors.h"

uint32_t moec_config_moe_layer_before(const struct moec_config *config, uint32_t layer)
{
    const uint32_t first =
        moec_config_stack(config, layer) == MOEC_STACK_ENCODER ? 0 : config->n_encoder_layer;
    while (layer-- > first)
        if (moec_config_is_moe(config, layer))
            return layer;
    return MOEC_NO_LAYER;
}

uint32_t moec_config_moe_layer_after(const struct moec_config *config, uint32_t layer)
{
    const uint32_t end =
        moec_config_stack(config, layer) == MOEC_STACK_ENCODER ? config->n_encoder_layer : config->n_layer;
    while (++layer < end)
        if (moec_config_is_moe(config, layer))
            return layer;
    return MOEC_NO_LAYER;
}
