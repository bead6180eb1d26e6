/* A record reads as the measured size that is nearest by logarithm. Bandwidth is the best of any depth;
 * latency is what a single read takes beyond it. An expert takes what its codecs measured where all have,
 * else a part by its size. Experts are scaled so that the layer as described takes what was measured. */
#include "profiler/simulate/simulated_device.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void moec_simulated_device_release(struct moec_simulated_device *device)
{
    free(device->read_ns);
    free(device->check_ns);
    free(device->compute_ns);
    free(device->gap_ns);
    free(device->gap_ns_per_position);
    free(device->shared_ns);
    *device = (struct moec_simulated_device){0};
}

static enum moec_status allocate(uint32_t n_layer, uint32_t n_layer_key, struct moec_simulated_device *out,
                                 struct moec_error *err)
{
    double **const by_key[] = {&out->read_ns, &out->check_ns, &out->compute_ns};
    double **const by_layer[] = {&out->gap_ns, &out->gap_ns_per_position, &out->shared_ns};
    for (size_t i = 0; i < 3; i++) {
        MOEC_TRY(moec_alloc((void **)by_key[i], (uint64_t)n_layer * n_layer_key, sizeof(double),
                            "simulated device", err));
        MOEC_TRY(moec_alloc((void **)by_layer[i], n_layer, sizeof(double), "simulated device", err));
    }
    return MOEC_OK;
}

/* ---- storage ---- */

static double distance(uint64_t a, uint64_t b)
{
    return fabs(log((double)a / (double)b));
}

/* Bandwidth and latency for records of a size, from the measurements at the nearest size of the way that the
 * runtime takes: the best bandwidth of any depth, for the queue is kept full; and what a single read takes
 * beyond its bytes at that bandwidth. */
static void fit_storage(const struct moec_device_storage *storage, uint64_t n_bytes, double *bandwidth,
                        double *latency_ns)
{
    const struct moec_device_read *nearest = NULL, *single = NULL;
    *bandwidth = 0;
    *latency_ns = 0;
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        if (read->is_direct == storage->is_direct_faster &&
            (nearest == NULL ||
             distance(read->record_bytes, n_bytes) < distance(nearest->record_bytes, n_bytes)))
            nearest = read;
    }
    for (uint32_t i = 0; nearest != NULL && i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        if (read->is_direct != nearest->is_direct || read->record_bytes != nearest->record_bytes)
            continue;
        *bandwidth = fmax(*bandwidth, (double)read->bytes_per_second);
        if (single == NULL || read->depth < single->depth)
            single = read;
    }
    if (single != NULL && *bandwidth > 0)
        *latency_ns =
            fmax(0, (double)single->latency_ns_median - (double)single->record_bytes / *bandwidth * 1e9);
}

static enum moec_status set_storage(const struct moec_device_storage *storage,
                                    const struct moec_emulation *emulation,
                                    const struct moec_simulated_model *model,
                                    struct moec_simulated_device *out, struct moec_error *err)
{
    const size_t n_key = (size_t)model->shape.n_layer * model->shape.n_layer_key;
    uint64_t last_bytes = 0;
    double bandwidth = 0, latency_ns = 0, request_ns = 0, sum_ns = 0;
    if (emulation == NULL && (storage == NULL || (!storage->is_emulated && storage->n_reads == 0)))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the device description has no measurement of storage; give --emulate-storage");
    out->begins_in_turn = emulation != NULL || storage->is_emulated;
    for (size_t key = 0; key < n_key; key++) {
        const uint64_t n_bytes = model->records.record_bytes[key];
        if (emulation != NULL) {
            bandwidth = (double)emulation->bytes_per_second;
            latency_ns = (double)emulation->latency_ns;
            request_ns = (double)emulation->request_ns;
        } else if (storage->is_emulated) {
            bandwidth = (double)storage->bytes_per_second;
            latency_ns = (double)storage->latency_ns;
            request_ns = (double)storage->request_ns;
        } else if (n_bytes != last_bytes) {
            fit_storage(storage, n_bytes, &bandwidth, &latency_ns);
            last_bytes = n_bytes;
        }
        out->read_ns[key] = request_ns + (bandwidth > 0 ? (double)n_bytes / bandwidth * 1e9 : 0);
        sum_ns += latency_ns;
    }
    out->latency_ns = sum_ns / (double)n_key;
    return MOEC_OK;
}

/* ---- compute ---- */

/* The time of an expert, by the described bitwidth whose record is nearest in size. */
static double expert_ns(const struct moec_device *device, uint64_t n_bytes)
{
    const struct moec_device_expert *best = NULL;
    for (uint32_t i = 0; i < device->n_expert_widths; i++)
        if (best == NULL ||
            distance(device->experts[i].record_bytes, n_bytes) < distance(best->record_bytes, n_bytes))
            best = &device->experts[i];
    return best != NULL ? (double)best->compute_ns : 0;
}

static double layer_experts_ns(const struct moec_device *device, const struct moec_simulated_model *model,
                               uint32_t ordinal)
{
    double sum_ns = 0;
    for (uint32_t e = 0; e < model->shape.n_expert; e++)
        sum_ns +=
            expert_ns(device, model->records.record_bytes[(size_t)ordinal * model->shape.n_layer_key + e]);
    return sum_ns / model->shape.n_expert * model->shape.top_k;
}

/* Times of the products of each way in which the model stores records; false where one was not measured. */
static bool list_layouts(const struct moec_device *device, const struct moec_simulated_model *model,
                         double *layout_ns)
{
    bool is_known = model->layouts.n > 0;
    for (uint32_t i = 0; i < model->layouts.n; i++) {
        layout_ns[i] = moec_device_expert_ns(device, &model->layouts.all[i]);
        is_known = is_known && layout_ns[i] > 0;
    }
    for (uint32_t l = 0; l < device->n_layer; l++)
        is_known = is_known && (!device->layers[l].is_moe || device->layers[l].experts_ns > 0);
    return is_known;
}

/* By the codecs in which experts are stored, beside those that the layer was measured with: what it took beyond
 * its products stays. */
static void set_layer_of_codecs(const struct moec_device *device, const struct moec_device_layer *layer,
                                const struct moec_simulated_model *model, const double *layout_ns,
                                uint32_t ordinal, struct moec_simulated_device *out)
{
    const size_t first = (size_t)ordinal * model->shape.n_layer_key;
    const double all_ns = (double)layer->experts_ns;
    const double room_ns = fmax(0, (double)layer->mlp_ns - (double)layer->shared_ns);
    const double factor = all_ns > room_ns ? room_ns / all_ns : 1;
    for (size_t key = first; key < first + model->shape.n_layer_key; key++) {
        out->compute_ns[key] = factor * layout_ns[model->layouts.of[key]];
        out->check_ns[key] = device->check_ns_per_byte * (double)model->records.record_bytes[key];
    }
    out->shared_ns[ordinal] = (double)layer->mlp_ns - all_ns * factor;
}

/* Experts that are computed together take less time than one after the other: their times are scaled so that
 * a layer of the described sizes with everything resident takes as long as it was measured to. What is left
 * beyond is the sum's. */
static void set_layer(const struct moec_device *device, const struct moec_device_layer *layer,
                      const struct moec_simulated_model *model, const struct moec_simulated_model *described,
                      uint32_t ordinal, struct moec_simulated_device *out)
{
    const size_t first = (size_t)ordinal * model->shape.n_layer_key;
    const double all_ns = layer_experts_ns(device, described, ordinal);
    const double room_ns = fmax(0, (double)layer->mlp_ns - (double)layer->shared_ns);
    const double factor = all_ns > room_ns && all_ns > 0 ? room_ns / all_ns : 1;
    for (size_t key = first; key < first + model->shape.n_layer_key; key++) {
        out->compute_ns[key] = factor * expert_ns(device, model->records.record_bytes[key]);
        out->check_ns[key] = device->check_ns_per_byte * (double)model->records.record_bytes[key];
    }
    out->shared_ns[ordinal] = (double)layer->mlp_ns - all_ns * factor;
}

static double cost_of(const struct moec_device_wait *wait, enum moec_simulated_wait which)
{
    return (double)(which == MOEC_WAIT_FIRST  ? wait->first_ns
                    : which == MOEC_WAIT_LONE ? wait->lone_ns
                                              : wait->next_ns);
}

double moec_simulated_wait_cost(const struct moec_simulated_device *device, double stall_ns,
                                enum moec_simulated_wait which)
{
    double before_ns = 0, cost_before = 0;
    for (uint32_t i = 0; i < device->n_waits; i++) {
        const struct moec_device_wait *wait = &device->waits[i];
        const double cost = cost_of(wait, which);
        if (stall_ns < (double)wait->stall_ns)
            return cost_before +
                   (cost - cost_before) * (stall_ns - before_ns) / ((double)wait->stall_ns - before_ns);
        before_ns = (double)wait->stall_ns;
        cost_before = cost;
    }
    return cost_before;
}

static enum moec_status set_compute(const struct moec_device *device,
                                    const struct moec_simulated_model *model,
                                    const struct moec_simulated_model *described, bool decides,
                                    struct moec_simulated_device *out, struct moec_error *err)
{
    double *layout_ns = NULL;
    MOEC_TRY(moec_alloc((void **)&layout_ns, (uint64_t)model->layouts.n + 1, sizeof *layout_ns,
                        "simulated device", err));
    const bool by_codecs = list_layouts(device, model, layout_ns);
    uint32_t ordinal = 0;
    double gap_ns = model->shape.n_encoder > 0 ? 0 : (double)device->embed_ns, per_position = 0;
    for (uint32_t l = 0; l < device->n_layer; l++) {
        const struct moec_device_layer *layer = &device->layers[l];
        gap_ns += (double)layer->attention_ns + (double)(layer->is_moe ? layer->router_ns : layer->mlp_ns);
        per_position += layer->attention_ns_per_position;
        if (!layer->is_moe)
            continue;
        out->gap_ns[ordinal] = gap_ns + (decides ? (double)device->decide_ns : 0);
        out->gap_ns_per_position[ordinal] = per_position;
        gap_ns = per_position = 0;
        if (by_codecs)
            set_layer_of_codecs(device, layer, model, layout_ns, ordinal++, out);
        else
            set_layer(device, layer, model, described, ordinal++, out);
        if (ordinal == model->shape.n_encoder)
            gap_ns = (double)device->embed_ns;
    }
    out->last_ns = gap_ns + (double)device->head_ns;
    out->last_ns_per_position = per_position;
    out->move_ns_per_byte = device->move_ns_per_byte;
    out->predict_ns = (double)device->predict_ns;
    out->preload_ns = (double)device->preload_ns;
    out->n_waits = device->n_waits;
    memcpy(out->waits, device->waits, sizeof out->waits);
    free(layout_ns);
    return MOEC_OK;
}

enum moec_status moec_simulated_device_make(const struct moec_simulated_hardware *hardware,
                                            const struct moec_recording *recording,
                                            const struct moec_simulated_model *model,
                                            struct moec_simulated_device *out, struct moec_error *err)
{
    const struct moec_device *device = hardware->device;
    const struct moec_emulation *emulation = hardware->storage;
    enum moec_status status = MOEC_OK;
    uint32_t n_moe = 0;
    *out = (struct moec_simulated_device){0};
    for (uint32_t l = 0; device != NULL && l < device->n_layer; l++) {
        if (device->layers[l].is_moe && n_moe < recording->shape.n_layer &&
            recording->replay->moe_layers[n_moe] == l)
            n_moe++;
        else if (device->layers[l].is_moe)
            n_moe = recording->shape.n_layer + 1;
    }
    if (device != NULL && n_moe != recording->shape.n_layer)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the device description and the routing are from models with different MoE layers; "
                         "make a description for this model with moec device");
    MOEC_TRY_OUT(allocate(model->shape.n_layer, model->shape.n_layer_key, out, err));
    if (device != NULL || emulation != NULL)
        MOEC_TRY_OUT(set_storage(device != NULL ? &device->storage : NULL, emulation, model, out, err));
    if (device != NULL)
        MOEC_TRY_OUT(set_compute(device, model, hardware->described != NULL ? hardware->described : model,
                                 recording->known.logical != NULL, out, err));
    else
        out->is_recorded = emulation != NULL && recording->replay->has_times;
out:
    if (status != MOEC_OK)
        moec_simulated_device_release(out);
    return status;
}
