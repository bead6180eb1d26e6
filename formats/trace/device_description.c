#include "formats/trace/device_description.h"

#include "formats/trace/description_reading.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FORMAT    "moec device"
#define VERSION   1
#define MAX_BYTES ((size_t)16 << 20)

/* Limits of what is believed: a figure beyond them is a mistake, and sums of figures within them fit. */
#define MAX_NS    UINT64_C(3600000000000)
#define MAX_SPEED UINT64_C(1000000000000)
#define MAX_SIZE  ((uint64_t)1 << 40)

void moec_device_release(struct moec_device *device)
{
    free(device->storage.reads);
    free(device->layers);
    device->storage.reads = NULL;
    device->layers = NULL;
    device->storage.n_reads = device->n_layer = 0;
}

/* ---- writing ---- */

static const char *io_name(bool is_direct)
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
    moec_json_out_string(node, "io", io_name(storage->is_direct_faster));
    moec_json_out_string(node, "description", storage->description);
    for (uint32_t i = 0; i < storage->n_reads; i++) {
        const struct moec_device_read *read = &storage->reads[i];
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_string(item, "io", io_name(read->is_direct));
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
        moec_json_out_node(waits, NULL, item);
    }
    return waits;
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
        moec_json_out_node(layers, NULL, item);
    }
    moec_json_out_node(node, "experts", experts);
    moec_json_out_node(node, "layers", layers);
    moec_json_out_u64(node, "preload_ns", device->preload_ns);
    moec_json_out_node(node, "waits", write_waits(device));
    return node;
}

enum moec_status moec_device_write(const struct moec_device *device, char **text, struct moec_error *err)
{
    struct moec_json_out *root = moec_json_out_object();
    moec_json_out_string(root, "format", FORMAT);
    moec_json_out_u64(root, "version", VERSION);
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

/* ---- reading ---- */

static enum moec_status read_io(const struct reading *r, bool *is_direct)
{
    char name[8];
    MOEC_TRY(read_text(r, "io", name, sizeof name));
    *is_direct = strcmp(name, "direct") == 0;
    return *is_direct || strcmp(name, "cached") == 0
               ? MOEC_OK
               : moec_fail(r->err, MOEC_ERR_FORMAT, "'io' in %s is '%s', expected direct or cached", r->where,
                           name);
}

/* The array `key` of `r`, of min to max objects. */
static enum moec_status read_array(const struct reading *r, const char *key, size_t min, size_t max,
                                   const struct moec_json **array, uint32_t *n)
{
    MOEC_TRY(moec_json_get(r->node, r->where, key, MOEC_JSON_ARRAY, array, r->err));
    size_t length = moec_json_length(*array);
    if (length < min || length > max)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "'%s' in %s has %zu items, expected %zu to %zu", key,
                         r->where, length, min, max);
    *n = (uint32_t)length;
    return MOEC_OK;
}

static struct reading item_of(const struct reading *r, const struct moec_json *array, const char *key,
                              uint32_t index)
{
    struct reading item = {.node = moec_json_at(array, index), .err = r->err};
    (void)snprintf(item.where, sizeof item.where, "%s[%" PRIu32 "] of %.150s", key, index, r->where);
    return item;
}

static enum moec_status read_read(const struct reading *r, struct moec_device_read *read)
{
    MOEC_TRY(read_io(r, &read->is_direct));
    MOEC_TRY(read_u64(r, "record_bytes", 1, MAX_SIZE, &read->record_bytes));
    MOEC_TRY(read_u32(r, "depth", 1, 65536, &read->depth));
    MOEC_TRY(read_u64(r, "latency_ns_median", 0, MAX_NS, &read->latency_ns_median));
    MOEC_TRY(read_u64(r, "latency_ns_p95", read->latency_ns_median, MAX_NS, &read->latency_ns_p95));
    return read_u64(r, "bytes_per_second", 1, MAX_SPEED, &read->bytes_per_second);
}

static enum moec_status read_storage(const struct reading *root, struct moec_device_storage *storage)
{
    struct reading r = {.where = "'storage'", .err = root->err};
    const struct moec_json *array = NULL;
    void *memory = NULL;
    uint32_t n = 0, n_chosen = 0;
    MOEC_TRY(moec_json_get(root->node, root->where, "storage", MOEC_JSON_OBJECT, &r.node, r.err));
    (void)snprintf(r.where, sizeof r.where, "'storage' of %.150s", root->where);
    MOEC_TRY(moec_json_get_bool(r.node, r.where, "emulated", &storage->is_emulated, r.err));
    if (storage->is_emulated) {
        MOEC_TRY(read_u64(&r, "bytes_per_second", 1, MAX_SPEED, &storage->bytes_per_second));
        MOEC_TRY(read_u64(&r, "latency_ns", 0, MAX_NS, &storage->latency_ns));
        if (moec_json_find(r.node, "request_ns") != NULL)
            MOEC_TRY(read_u64(&r, "request_ns", 0, MAX_NS, &storage->request_ns));
    }
    MOEC_TRY(read_io(&r, &storage->is_direct_faster));
    MOEC_TRY(read_text(&r, "description", storage->description, sizeof storage->description));
    MOEC_TRY(read_array(&r, "reads", storage->is_emulated ? 0 : 1, MOEC_DEVICE_MAX_READS, &array, &n));
    MOEC_TRY(moec_alloc(&memory, n, sizeof *storage->reads, "measured reads", r.err));
    storage->reads = memory;
    storage->n_reads = n;
    for (uint32_t i = 0; i < n; i++) {
        struct reading item = item_of(&r, array, "'reads'", i);
        MOEC_TRY(read_read(&item, &storage->reads[i]));
        n_chosen += storage->reads[i].is_direct == storage->is_direct_faster;
    }
    if (!storage->is_emulated && n_chosen == 0)
        return moec_fail(r.err, MOEC_ERR_FORMAT, "'reads' in %s has none of its own 'io', %s", r.where,
                         io_name(storage->is_direct_faster));
    return MOEC_OK;
}

static enum moec_status read_experts(const struct reading *r, struct moec_device *device)
{
    const struct moec_json *array = NULL;
    uint32_t n = 0;
    MOEC_TRY(read_array(r, "experts", 0, MOEC_DEVICE_MAX_EXPERTS, &array, &n));
    for (uint32_t i = 0; i < n; i++) {
        struct reading item = item_of(r, array, "'experts'", i);
        struct moec_device_expert *expert = &device->experts[i];
        MOEC_TRY(read_u32(&item, "bits", i > 0 ? expert[-1].bits + 1 : 1, 64, &expert->bits));
        MOEC_TRY(read_u64(&item, "record_bytes", 1, MAX_SIZE, &expert->record_bytes));
        MOEC_TRY(read_u64(&item, "compute_ns", 0, MAX_NS, &expert->compute_ns));
        MOEC_TRY(read_u64(&item, "check_ns", 0, MAX_NS, &expert->check_ns));
    }
    device->n_expert_widths = n;
    return MOEC_OK;
}

static enum moec_status read_layers(const struct reading *r, struct moec_device *device)
{
    const struct moec_json *array = NULL;
    void *memory = NULL;
    uint32_t n = 0;
    MOEC_TRY(read_array(r, "layers", 1, MOEC_DEVICE_MAX_LAYERS, &array, &n));
    MOEC_TRY(moec_alloc(&memory, n, sizeof *device->layers, "layers of a device", r->err));
    device->layers = memory;
    device->n_layer = n;
    for (uint32_t i = 0; i < n; i++) {
        struct reading item = item_of(r, array, "'layers'", i);
        struct moec_device_layer *layer = &device->layers[i];
        MOEC_TRY(moec_json_get_bool(item.node, item.where, "moe", &layer->is_moe, item.err));
        MOEC_TRY(read_u64(&item, "attention_ns", 0, MAX_NS, &layer->attention_ns));
        MOEC_TRY(moec_json_get_double(item.node, item.where, "attention_ns_per_position", 0, (double)MAX_NS,
                                      &layer->attention_ns_per_position, item.err));
        MOEC_TRY(read_u64(&item, "router_ns", 0, MAX_NS, &layer->router_ns));
        MOEC_TRY(read_u64(&item, "mlp_ns", 0, MAX_NS, &layer->mlp_ns));
        MOEC_TRY(read_u64(&item, "shared_ns", 0, MAX_NS, &layer->shared_ns));
    }
    return MOEC_OK;
}

/* Descriptions that were written before waits were measured have none. */
static enum moec_status read_waits(const struct reading *r, struct moec_device *device)
{
    const struct moec_json *array = NULL;
    uint32_t n = 0;
    if (moec_json_find(r->node, "waits") == NULL)
        return MOEC_OK;
    MOEC_TRY(read_array(r, "waits", 0, MOEC_DEVICE_WAITS, &array, &n));
    for (uint32_t i = 0; i < n; i++) {
        struct reading item = item_of(r, array, "'waits'", i);
        struct moec_device_wait *wait = &device->waits[i];
        MOEC_TRY(read_u64(&item, "stall_ns", i > 0 ? wait[-1].stall_ns + 1 : 1, MAX_NS, &wait->stall_ns));
        MOEC_TRY(read_u64(&item, "first_ns", 0, MAX_NS, &wait->first_ns));
        MOEC_TRY(read_u64(&item, "next_ns", 0, MAX_NS, &wait->next_ns));
    }
    device->n_waits = n;
    return MOEC_OK;
}

static enum moec_status read_compute(const struct reading *root, struct moec_device *device)
{
    struct reading r = {.err = root->err};
    MOEC_TRY(moec_json_get(root->node, root->where, "compute", MOEC_JSON_OBJECT, &r.node, r.err));
    (void)snprintf(r.where, sizeof r.where, "'compute' of %.150s", root->where);
    MOEC_TRY(read_u64(&r, "embed_ns", 0, MAX_NS, &device->embed_ns));
    MOEC_TRY(read_u64(&r, "head_ns", 0, MAX_NS, &device->head_ns));
    MOEC_TRY(read_u64(&r, "token_ns", 0, MAX_NS, &device->token_ns));
    MOEC_TRY(read_u32(&r, "token_position", 0, UINT32_MAX, &device->token_position));
    MOEC_TRY(moec_json_get_u64_or(r.node, r.where, "products_ns", 0, MAX_NS, 0, &device->products_ns, r.err));
    MOEC_TRY(moec_json_get_double(r.node, r.where, "check_ns_per_byte", 0, (double)MAX_NS,
                                  &device->check_ns_per_byte, r.err));
    MOEC_TRY(moec_json_get_double_or(r.node, r.where, "move_ns_per_byte", 0, (double)MAX_NS, 0,
                                     &device->move_ns_per_byte, r.err));
    MOEC_TRY(moec_json_get_u64_or(r.node, r.where, "preload_ns", 0, MAX_NS, 0, &device->preload_ns, r.err));
    MOEC_TRY(read_experts(&r, device));
    MOEC_TRY(read_waits(&r, device));
    return read_layers(&r, device);
}

static enum moec_status read_device(const struct reading *root, struct moec_device *device)
{
    uint64_t version = 0;
    char format[sizeof FORMAT + 16];
    MOEC_TRY(read_text(root, "format", format, sizeof format));
    if (strcmp(format, FORMAT) != 0)
        return moec_fail(root->err, MOEC_ERR_FORMAT, "%s is a '%s', expected a '%s' (made by moec device)",
                         root->where, format, FORMAT);
    MOEC_TRY(read_u64(root, "version", 1, UINT32_MAX, &version));
    if (version != VERSION)
        return moec_fail(root->err, MOEC_ERR_UNSUPPORTED,
                         "%s has version %" PRIu64 ", this moec reads version %d: measure it again",
                         root->where, version, VERSION);
    MOEC_TRY(read_text(root, "processor", device->processor, sizeof device->processor));
    MOEC_TRY(read_text(root, "instruction_set", device->instruction_set, sizeof device->instruction_set));
    MOEC_TRY(read_u32(root, "threads", 1, 65536, &device->n_threads));
    MOEC_TRY(read_text(root, "bundle", device->bundle, sizeof device->bundle));
    MOEC_TRY(read_text(root, "model_sha256", device->model_sha256, sizeof device->model_sha256));
    if (strspn(device->model_sha256, "0123456789abcdef") != sizeof device->model_sha256 - 1)
        return moec_fail(root->err, MOEC_ERR_FORMAT, "'model_sha256' in %s is '%s', expected 64 hex digits",
                         root->where, device->model_sha256);
    MOEC_TRY(read_storage(root, &device->storage));
    MOEC_TRY(read_compute(root, device));
    if (moec_json_find(root->node, "gpu") == NULL)
        return MOEC_OK;
    const struct moec_json *section = NULL;
    MOEC_TRY(moec_json_get(root->node, root->where, "gpu", MOEC_JSON_OBJECT, &section, root->err));
    return moec_gpu_description_read(section, root->where, &device->gpu, root->err);
}

enum moec_status moec_device_parse(const char *text, size_t length, const char *subject,
                                   struct moec_device *device, struct moec_error *err)
{
    struct moec_json *json = NULL;
    struct reading root = {.err = err};
    *device = (struct moec_device){0};
    MOEC_TRY(moec_json_parse(text, length, MAX_BYTES, subject, &json, err));
    root.node = json;
    (void)snprintf(root.where, sizeof root.where, "'%.150s'", subject);
    enum moec_status status = read_device(&root, device);
    if (status != MOEC_OK)
        moec_device_release(device);
    moec_json_free(json);
    return status;
}

enum moec_status moec_device_load(const char *path, struct moec_device *device, struct moec_error *err)
{
    char *text = NULL;
    size_t length = 0;
    *device = (struct moec_device){0};
    MOEC_TRY(moec_file_load(path, MAX_BYTES, &text, &length, err));
    enum moec_status status = moec_device_parse(text, length, path, device, err);
    free(text);
    return status;
}

/* ---- costs ---- */

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
        return moec_fail(err, MOEC_ERR_USAGE, "'%s' has no GPU: measure one with moec device --device cuda",
                         subject);
    if (!(cpu_ns > 0) || !(copy_ns > 0)) /* NaN without copies from pinned memory */
        return moec_fail(err, MOEC_ERR_USAGE, "'%s' says nothing of %s: measure it again with moec device",
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
