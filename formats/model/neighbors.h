/* The neighbouring MoE layers of a model's layer, in the same stack: a decoder's tokens never were in the
 * encoder. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_NEIGHBORS_H
#define MOEC_FORMATS_NEIGHBORS_H

#include "formats/model/config.h"

#define MOEC_NO_LAYER UINT32_MAX

uint32_t moec_config_moe_layer_before(const struct moec_config *config, uint32_t layer);
uint32_t moec_config_moe_layer_after(const struct moec_config *config, uint32_t layer);

#endif
