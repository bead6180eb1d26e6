/* Reading a device file (device_description.h) back and checking it. Writing one needs no JSON reader, so
 * that programs without one can. */
#include "formats/trace/description_reading.h"
#include "formats/trace/device_description.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_BYTES ((size_t)16 << 20)

/* Limits of what is believed: a figure beyond them is a mistake, and sums of figures within them fit. */
#define MAX_NS    UINT64_C(3600000000000)
#define MAX_SPEED UINT64_C(1000000000000)
#define MAX_SIZE  ((uint64_t)1 << 40)

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
        return moec_fail(r.err, MOEC_ERR_FORMAT,
                         "'reads' in %s has no entry for the storage's own 'io', which is %s", r.where,
                         moec_device_io_name(storage->is_direct_faster));
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

/* Descriptions that were written before products were measured have none. */
static enum moec_status read_products(const struct reading *r, struct moec_device *device)
{
    const struct moec_json *array = NULL;
    uint32_t n = 0;
    if (moec_json_find(r->node, "products") == NULL)
        return MOEC_OK;
    MOEC_TRY(read_array(r, "products", 0, MOEC_DEVICE_MAX_PRODUCTS, &array, &n));
    for (uint32_t i = 0; i < n; i++) {
        struct reading item = item_of(r, array, "'products'", i);
        struct moec_device_product *product = &device->products[i];
        MOEC_TRY(read_text(&item, "codec", product->codec, sizeof product->codec));
        MOEC_TRY(moec_json_get_bool(item.node, item.where, "down", &product->is_down, item.err));
        MOEC_TRY(read_u32(&item, "rows", 1, UINT32_MAX, &product->rows));
        MOEC_TRY(read_u32(&item, "columns", 1, UINT32_MAX, &product->columns));
        MOEC_TRY(read_u64(&item, "bytes", 1, MAX_SIZE, &product->n_bytes));
        MOEC_TRY(read_u64(&item, "ns", 0, MAX_NS, &product->ns));
    }
    device->n_products = n;
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
        MOEC_TRY(moec_json_get_u64_or(item.node, item.where, "experts_ns", 0, MAX_NS, 0, &layer->experts_ns,
                                      item.err));
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
        MOEC_TRY(moec_json_get_u64_or(item.node, item.where, "lone_ns", wait->first_ns, MAX_NS,
                                      wait->first_ns, &wait->lone_ns, item.err));
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
    MOEC_TRY(moec_json_get_u64_or(r.node, r.where, "decide_ns", 0, MAX_NS, 0, &device->decide_ns, r.err));
    MOEC_TRY(moec_json_get_u64_or(r.node, r.where, "predict_ns", 0, MAX_NS, 0, &device->predict_ns, r.err));
    MOEC_TRY(moec_json_get_u64_or(r.node, r.where, "preload_ns", 0, MAX_NS, 0, &device->preload_ns, r.err));
    MOEC_TRY(read_experts(&r, device));
    MOEC_TRY(read_products(&r, device));
    MOEC_TRY(read_waits(&r, device));
    return read_layers(&r, device);
}

static enum moec_status read_device(const struct reading *root, struct moec_device *device)
{
    uint64_t version = 0;
    char format[sizeof MOEC_DEVICE_FORMAT + 16];
    MOEC_TRY(read_text(root, "format", format, sizeof format));
    if (strcmp(format, MOEC_DEVICE_FORMAT) != 0)
        return moec_fail(root->err, MOEC_ERR_FORMAT, "%s is a '%s', expected a '%s' (made by moec device)",
                         root->where, format, MOEC_DEVICE_FORMAT);
    MOEC_TRY(read_u64(root, "version", 1, UINT32_MAX, &version));
    if (version != MOEC_DEVICE_VERSION)
        return moec_fail(root->err, MOEC_ERR_UNSUPPORTED,
                         "%s has version %" PRIu64 ", this moec reads version %d: measure the device again "
                         "with moec device",
                         root->where, version, MOEC_DEVICE_VERSION);
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
