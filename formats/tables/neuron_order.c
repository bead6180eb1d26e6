/* A record is reordered by whole rows: of its up section, and of its pairs of gate row and down column. A
 * row carries its own scales, so only a codec whose rows share none can be reordered. The order of each
 * expert is a permutation, which validate checks with one stamp for each neuron. */
#include "formats/tables/neuron_order.h"

#include "formats/base/memory.h"
#include "formats/tables/sparsity_table.h"

#include <inttypes.h>
#include <string.h>

enum moec_status moec_neuron_order_check(const struct moec_config *config, struct moec_error *err)
{
    MOEC_TRY(moec_sparsity_check_config(config, err));
    if (moec_codec_traits((struct moec_codec){.dtype = config->expert_dtype})->is_exact)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "experts of family '%s' are stored as MXFP4, in which 32 neurons share scales, "
                         "so neurons cannot be reordered: leave out --order-neurons",
                         config->family);
    if (config->n_ff_expert > MOEC_ORDER_MAX_NEURONS)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "an expert of family '%s' has %u neurons, but moec can reorder at most %u: leave "
                         "out --order-neurons",
                         config->family, config->n_ff_expert, MOEC_ORDER_MAX_NEURONS);
    return MOEC_OK;
}

enum moec_status moec_neuron_order_create(const struct moec_config *config, struct moec_neuron_order *order,
                                          struct moec_error *err)
{
    struct moec_neuron_order made = {.n_layer = moec_config_moe_count(config),
                                     .n_expert = config->n_expert,
                                     .n_neuron = config->n_ff_expert};
    const uint64_t n = (uint64_t)made.n_layer * made.n_expert * made.n_neuron;
    MOEC_TRY(moec_alloc((void **)&made.neurons, n, sizeof *made.neurons, "the order of neurons", err));
    for (uint64_t i = 0; i < n; i++)
        made.neurons[i] = (uint16_t)(i % made.n_neuron);
    *order = made;
    return MOEC_OK;
}

enum moec_status moec_neuron_order_validate(const struct moec_neuron_order *order, struct moec_error *err)
{
    const uint64_t n_key = (uint64_t)order->n_layer * order->n_expert;
    uint64_t *seen = NULL; /* (n_neuron): 1 + the last expert that it was seen in */
    MOEC_TRY(moec_alloc((void **)&seen, order->n_neuron, sizeof *seen, "the order of neurons", err));
    enum moec_status status = MOEC_OK;
    for (uint64_t at = 0; at < n_key * order->n_neuron && status == MOEC_OK; at++) {
        const uint64_t key = at / order->n_neuron;
        const uint16_t neuron = order->neurons[at];
        if (neuron >= order->n_neuron || seen[neuron] == key + 1)
            status = moec_fail(err, MOEC_ERR_FORMAT,
                               "the neuron order of expert %" PRIu64 " in MoE layer %" PRIu64 " has neuron "
                               "%u, expected each of %" PRIu32 " neurons once",
                               key % order->n_expert, key / order->n_expert, neuron, order->n_neuron);
        else
            seen[neuron] = key + 1;
    }
    free(seen);
    return status;
}

void moec_neuron_order_release(struct moec_neuron_order *order)
{
    free(order->neurons);
    *order = (struct moec_neuron_order){0};
}

void moec_rows_reorder(const uint16_t *neurons, uint32_t n, size_t row_bytes, size_t stride_bytes,
                       const void *from, void *to)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy((uint8_t *)to + i * stride_bytes, (const uint8_t *)from + neurons[i] * stride_bytes,
               row_bytes);
}

void moec_record_reorder(const struct moec_record_layout *layout, const uint16_t *neurons,
                         const uint8_t *from, uint8_t *to)
{
    const size_t up_row_bytes = layout->row_bytes[MOEC_PROJECTION_UP];
    moec_rows_reorder(neurons, layout->n_ff, up_row_bytes, up_row_bytes, from, to);
    moec_rows_reorder(neurons, layout->n_ff, layout->pair_stride_bytes, layout->pair_stride_bytes,
                      from + layout->up_bytes, to + layout->up_bytes);
}
