/* The order of neurons in records: found on the search part, before anything is fitted or measured, and then
 * that of everything but the original. */

#include "compiler/compile/compile_order.h"

#include "compiler/compile/compile_part.h"
#include "compiler/compile/compile_stages.h"

#include <inttypes.h>

/* Codec of the estimate below. */
#define TYPICAL_BITS 4

enum moec_status moec_compile_order_check(const struct moec_config *config, uint32_t group,
                                          struct moec_error *err)
{
    struct moec_codec codec;
    MOEC_TRY(moec_neuron_order_check(config, err));
    MOEC_TRY(moec_codec_for_bits(TYPICAL_BITS, MOEC_SCHEME_SYMMETRIC, group, MOEC_DTYPE_F32, &codec, err));
    const struct moec_record_layout layout = moec_record_layout_make(config, codec);
    if (layout.pair_bytes < MOEC_COACTIVATION_LEAST_BYTES)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the gate and down matrices of an expert of family '%s' take %" PRIu64
                         " bytes at %u bits (%zu per neuron), so reading them whole is faster than "
                         "reading parts. Ordering neurons saves time only if the two matrices take at "
                         "least %u bytes: leave out --order-neurons",
                         config->family, layout.pair_bytes, TYPICAL_BITS, layout.pair_stride_bytes,
                         MOEC_COACTIVATION_LEAST_BYTES);
    return MOEC_OK;
}

static enum moec_status measure(struct moec_compile_run *run, struct moec_coactivation_runs *runs,
                                struct moec_error *err)
{
    const struct moec_progress progress = moec_compile_whole_progress(run);
    struct moec_compile_part part = {0};
    enum moec_status status = moec_compile_part_make(run, MOEC_PART_SEARCH, run->original, &part, err);
    const struct moec_coactivation_request request = {.config = moec_checkpoint_config(run->checkpoint),
                                                      .scorer = part.measured.scorer,
                                                      .measure = &part.measured.losses,
                                                      .kernels = run->options->by.kernels,
                                                      .n_threads = run->options->by.n_threads,
                                                      .progress = &progress};
    if (status == MOEC_OK)
        status = moec_coactivation_order(&request, &run->order, runs, err);
    moec_compile_part_release(&part);
    return status;
}

enum moec_status moec_compile_order_make(struct moec_compile_run *run, struct moec_error *err)
{
    struct moec_neuron_order *order = &run->order;
    struct moec_coactivation_runs runs = {0};
    uint64_t cost = 0;
    bool found = false;
    if (!run->options->experts.orders_neurons)
        return MOEC_OK;
    moec_compile_begin(run, MOEC_STAGE_ORDER);
    MOEC_TRY(moec_neuron_order_create(moec_checkpoint_config(run->checkpoint), order, err));
    const struct moec_unit_part kept[] = {
        {order->neurons, (uint64_t)order->n_layer * order->n_expert * order->n_neuron * sizeof(uint16_t)},
        {&runs, sizeof runs}};
    const struct moec_unit unit = {"neurons", kept, 2};
    MOEC_TRY(moec_unit_find(run->units, &unit, &cost, &found, err));
    if (!found) {
        MOEC_TRY(measure(run, &runs, err));
        MOEC_TRY(moec_unit_keep(run->units, &unit, 0, err));
    }
    MOEC_TRY(moec_neuron_order_validate(order, err));
    run->report->runs_before = runs.before;
    run->report->runs_after = runs.after;
    run->ordered = moec_ordered_encoder_make(run->checkpoint, order);
    moec_compile_order_return(run);
    return MOEC_OK;
}
