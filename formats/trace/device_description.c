/* Writing keeps the order of fields, so that equal measurements give equal text. An expert costs the sum of
 * its products, each found by codec, shape and direction; where one was not measured the answer is 0. A read
 * costs the median of the nearest measured size, at the lowest depth, or what an emulated storage states. */
#include "formats/trace/device_description.h"

#include "formats/json/json_write.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void moec_device_release(struct moec_device *device)
{
    free(device->storage.reads);
    free(device->layers);
    device->storage.reads = NULL;
    device->layers = NULL;
    device->storage.n_reads = device->n_layer = 0;
}

/* ---- writing ---- */

const char *moec_device_io_name(bool is_direct)
{
    return is_direct ? "direct" : "cached";
}

static struct moec_json_out *write_storage(const struct moec_device_storage *storage)
{
    struct moec_json_out *node = moec_json_out_object(), *reads = moec_json_out_array();
    moec_json_out_bool(node, "emulated", storage->is_emulated);
    if (storage->is_emulated) {
        moec_json_out_u64(node, "bytes_per_second", storage->bytes_per_second);
        moec_json_out_u64(node, "latency_ns", storage->latency_ns);
        moec_json_out_u64(node, "request_ns", storage->request_ns);
    }
    moec_json_out_string(node, "io", moec_device_io_name(storage->is_direct_faster));
    moec_json_out_string(node, "description", storage->description);
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_string(item, "io", moec_device_io_name(read->is_direct));
        moec_json_out_u64(item, "record_bytes", read->record_bytes);
        moec_json_out_u64(item, "depth", read->depth);
        moec_json_out_u64(item, "latency_ns_median", read->latency_ns_median);
        moec_json_out_u64(item, "latency_ns_p95", read->latency_ns_p95);
        moec_json_out_u64(item, "bytes_per_second", read->bytes_per_second);
        moec_json_out_node(reads, NULL, item);
    }
    moec_json_out_node(node, "reads", reads);
    return node;
}

static struct moec_json_out *write_waits(const struct moec_device *device)
{
    struct moec_json_out *waits = moec_json_out_array();
    for (uint32_t i = 0; i < device->n_waits; i++) {
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_u64(item, "stall_ns", device->waits[i].stall_ns);
        moec_json_out_u64(item, "first_ns", device->waits[i].first_ns);
        moec_json_out_u64(item, "next_ns", device->waits[i].next_ns);
        moec_json_out_u64(item, "lone_ns", device->waits[i].lone_ns);
        moec_json_out_node(waits, NULL, item);
    }
    return waits;
}

static struct moec_json_out *write_products(const struct moec_device *device)
{
    struct moec_json_out *products = moec_json_out_array();
    for (uint32_t i = 0; i < device->n_products; i++) {
        const struct moec_device_product *product = &device->products[i];
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_string(item, "codec", product->codec);
        moec_json_out_bool(item, "down", product->is_down);
        moec_json_out_u64(item, "rows", product->rows);
        moec_json_out_u64(item, "columns", product->columns);
        moec_json_out_u64(item, "bytes", product->n_bytes);
        moec_json_out_u64(item, "ns", product->ns);
        moec_json_out_node(products, NULL, item);
    }
    return products;
}

static struct moec_json_out *write_compute(const struct moec_device *device)
{
    struct moec_json_out *node = moec_json_out_object();
    struct moec_json_out *layers = moec_json_out_array(), *experts = moec_json_out_array();
    moec_json_out_u64(node, "embed_ns", device->embed_ns);
    moec_json_out_u64(node, "head_ns", device->head_ns);
    moec_json_out_u64(node, "token_ns", device->token_ns);
    moec_json_out_u64(node, "token_position", device->token_position);
    if (device->products_ns > 0)
        moec_json_out_u64(node, "products_ns", device->products_ns);
    moec_json_out_double(node, "check_ns_per_byte", device->check_ns_per_byte);
    moec_json_out_double(node, "move_ns_per_byte", device->move_ns_per_byte);
    for (uint32_t i = 0; i < device->n_expert_widths; i++) {
        const struct moec_device_expert *expert = &device->experts[i];
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_u64(item, "bits", expert->bits);
        moec_json_out_u64(item, "record_bytes", expert->record_bytes);
        moec_json_out_u64(item, "compute_ns", expert->compute_ns);
        moec_json_out_u64(item, "check_ns", expert->check_ns);
        moec_json_out_node(experts, NULL, item);
    }
    for (uint32_t i = 0; i < device->n_layer; i++) {
        const struct moec_device_layer *layer = &device->layers[i];
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_bool(item, "moe", layer->is_moe);
        moec_json_out_u64(item, "attention_ns", layer->attention_ns);
        moec_json_out_double(item, "attention_ns_per_position", layer->attention_ns_per_position);
        moec_json_out_u64(item, "router_ns", layer->router_ns);
        moec_json_out_u64(item, "mlp_ns", layer->mlp_ns);
        moec_json_out_u64(item, "shared_ns", layer->shared_ns);
        moec_json_out_u64(item, "experts_ns", layer->experts_ns);
        moec_json_out_node(layers, NULL, item);
    }
    moec_json_out_node(node, "experts", experts);
    moec_json_out_node(node, "products", write_products(device));
    moec_json_out_node(node, "layers", layers);
    moec_json_out_u64(node, "decide_ns", device->decide_ns);
    moec_json_out_u64(node, "predict_ns", device->predict_ns);
    moec_json_out_u64(node, "preload_ns", device->preload_ns);
    moec_json_out_node(node, "waits", write_waits(device));
    return node;
}

enum moec_status moec_device_write(const struct moec_device *device, char **text, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "format", MOEC_DEVICE_FORMAT);
    moec_json_out_u64(root, "version", MOEC_DEVICE_VERSION);
    moec_json_out_string(root, "processor", device->processor);
    moec_json_out_string(root, "instruction_set", device->instruction_set);
    moec_json_out_u64(root, "threads", device->n_threads);
    moec_json_out_string(root, "bundle", device->bundle);
    moec_json_out_string(root, "model_sha256", device->model_sha256);
    moec_json_out_node(root, "storage", write_storage(&device->storage));
    moec_json_out_node(root, "compute", write_compute(device));
    if (device->gpu.name[0] != '\0')
        moec_json_out_node(root, "gpu", moec_gpu_description_write(&device->gpu));
    enum moec_status status = moec_json_out_text(root, text, err);
    moec_json_out_free(root);
    return status;
}

/* ---- costs ---- */

static const struct moec_device_product *find_product(const struct moec_device *device,
                                                      const struct moec_record_layout *layout,
                                                      enum moec_projection projection)
{
    char text[40];
    const char *name = moec_codec_name(layout->codecs[projection], text);
    for (uint32_t i = 0; i < device->n_products; i++) {
        const struct moec_device_product *product = &device->products[i];
        if (product->is_down == (projection == MOEC_PROJECTION_DOWN) && product->rows == layout->n_ff &&
            product->columns == layout->n_embd && strcmp(product->codec, name) == 0)
            return product;
    }
    return NULL;
}

double moec_device_expert_ns(const struct moec_device *device, const struct moec_record_layout *layout)
{
    double sum = 0;
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        if (layout->row_bytes[p] == 0)
            continue;
        const struct moec_device_product *product = find_product(device, layout, (enum moec_projection)p);
        if (product == NULL)
            return 0;
        sum += (double)product->ns;
    }
    return sum;
}

enum moec_status moec_device_expert_costs_of(const struct moec_device *device, const char *subject,
                                             struct moec_device_expert_costs *out, struct moec_error *err)
{
    const struct moec_gpu_description *gpu = &device->gpu;
    double cpu_ns = 0, cpu_bytes = 0, copy_ns = 0, gpu_ns = 0, gpu_bytes = 0;
    for (uint32_t i = 0; i < device->n_expert_widths; i++) {
        cpu_ns += (double)device->experts[i].compute_ns;
        cpu_bytes += (double)device->experts[i].record_bytes;
    }
    for (uint32_t i = 0; i < gpu->n_experts; i++) {
        copy_ns += moec_gpu_copy_ns(gpu, true, gpu->experts[i].record_bytes);
        gpu_ns += (double)gpu->experts[i].compute_ns;
        gpu_bytes += (double)gpu->experts[i].record_bytes;
    }
    if (gpu->name[0] == '\0')
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the device file '%s' has no GPU: measure one with moec device --device cuda",
                         subject);
    if (!(cpu_ns > 0) || !(copy_ns > 0)) /* NaN without copies from pinned memory */
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the device file '%s' has no measurement of %s: measure the device again with "
                         "moec device",
                         subject, cpu_ns > 0 ? "copies of experts to the GPU" : "experts on the processor");
    *out = (struct moec_device_expert_costs){cpu_ns / cpu_bytes, copy_ns / gpu_bytes, gpu_ns / gpu_bytes};
    return MOEC_OK;
}

/* The time of one read by itself: of an imagined storage, or the measured one of the nearest size, by the way
 * that the runtime takes. */
static double read_ns(const struct moec_device_storage *storage, uint64_t record_bytes)
{
    const struct moec_device_read *best = NULL;
    uint64_t best_distance = UINT64_MAX;
    if (storage->is_emulated)
        return (double)storage->latency_ns + (double)storage->request_ns +
               1e9 * (double)record_bytes / (double)storage->bytes_per_second;
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        const uint64_t distance = read->record_bytes > record_bytes ? read->record_bytes - record_bytes
                                                                    : record_bytes - read->record_bytes;
        if (read->is_direct != storage->is_direct_faster || distance > best_distance ||
            (distance == best_distance && read->depth >= best->depth))
            continue;
        best = read;
        best_distance = distance;
    }
    return best != NULL ? (double)best->latency_ns_median : INFINITY;
}

uint32_t moec_device_records_ahead(const struct moec_device *device, uint64_t record_bytes)
{
    double layer_ns = 0;
    uint32_t n_moe = 0;
    for (uint32_t i = 0; i < device->n_layer; i++) {
        const struct moec_device_layer *layer = &device->layers[i];
        if (!layer->is_moe)
            continue;
        layer_ns += (double)layer->attention_ns + (double)layer->router_ns + (double)layer->mlp_ns;
        n_moe++;
    }
    const double ahead = n_moe > 0 ? layer_ns / n_moe / fmax(1, read_ns(&device->storage, record_bytes)) : 0;
    return ahead < UINT32_MAX ? (uint32_t)ahead : UINT32_MAX;
}
