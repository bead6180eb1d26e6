/* Reading the section of a GPU (gpu_description.h) of a device file. */
#include "formats/trace/description_reading.h"
#include "formats/trace/gpu_description.h"

#include <inttypes.h>
#include <stdio.h>

/* As in device_reading.c. */
#define MAX_NS   UINT64_C(3600000000000)
#define MAX_SIZE ((uint64_t)1 << 40)

/* Calls read for each item of the array `key`, of at most max; *n of them. */
typedef enum moec_status read_item(const struct reading *item, struct moec_gpu_description *gpu, uint32_t i);

static enum moec_status read_items(const struct reading *r, const char *key, size_t max, read_item *read,
                                   struct moec_gpu_description *gpu, uint32_t *n)
{
    const struct moec_json *array = NULL;
    MOEC_TRY(moec_json_get(r->node, r->where, key, MOEC_JSON_ARRAY, &array, r->err));
    const size_t length = moec_json_length(array);
    if (length > max)
        return moec_fail(r->err, MOEC_ERR_LIMIT, "'%s' in %s has %zu items, expected at most %zu", key,
                         r->where, length, max);
    for (uint32_t i = 0; i < length; i++) {
        struct reading item = {.node = moec_json_at(array, i), .err = r->err};
        (void)snprintf(item.where, sizeof item.where, "'%s'[%" PRIu32 "] of %.150s", key, i, r->where);
        MOEC_TRY(read(&item, gpu, i));
        *n = i + 1;
    }
    return MOEC_OK;
}

/* Whether sizes of one kind increase, as moec_gpu_copy_ns expects. */
static enum moec_status read_copy(const struct reading *item, struct moec_gpu_description *gpu, uint32_t i)
{
    struct moec_gpu_copy_time *copy = &gpu->copies[i];
    uint64_t least = 1;
    MOEC_TRY(moec_json_get_bool(item->node, item->where, "to_device", &copy->is_to_device, item->err));
    MOEC_TRY(moec_json_get_bool(item->node, item->where, "pinned", &copy->is_pinned, item->err));
    for (uint32_t before = 0; before < i; before++)
        if (gpu->copies[before].is_to_device == copy->is_to_device &&
            gpu->copies[before].is_pinned == copy->is_pinned)
            least = gpu->copies[before].n_bytes + 1;
    MOEC_TRY(read_u64(item, "bytes", least, MAX_SIZE, &copy->n_bytes));
    return read_u64(item, "ns", 0, MAX_NS, &copy->ns);
}

static enum moec_status read_product(const struct reading *item, struct moec_gpu_description *gpu, uint32_t i)
{
    struct moec_gpu_product_time *product = &gpu->products[i];
    MOEC_TRY(read_text(item, "codec", product->codec, sizeof product->codec));
    MOEC_TRY(read_u32(item, "bits", 1, 64, &product->bits));
    MOEC_TRY(read_u32(item, "rows", 1, UINT32_MAX, &product->rows));
    MOEC_TRY(read_u32(item, "columns", 1, UINT32_MAX, &product->columns));
    MOEC_TRY(read_u64(item, "bytes", 1, MAX_SIZE, &product->n_bytes));
    return read_u64(item, "ns", 0, MAX_NS, &product->ns);
}

static enum moec_status read_gather(const struct reading *item, struct moec_gpu_description *gpu, uint32_t i)
{
    struct moec_gpu_gather_time *gather = &gpu->gathers[i];
    MOEC_TRY(read_u64(item, "piece_bytes", 1, MAX_SIZE, &gather->piece_bytes));
    MOEC_TRY(read_u64(item, "bytes", 1, MAX_SIZE, &gather->n_bytes));
    return read_u64(item, "ns", 0, MAX_NS, &gather->ns);
}

static enum moec_status read_expert(const struct reading *item, struct moec_gpu_description *gpu, uint32_t i)
{
    struct moec_gpu_expert_time *expert = &gpu->experts[i];
    MOEC_TRY(read_u32(item, "bits", i > 0 ? expert[-1].bits + 1 : 1, 64, &expert->bits));
    MOEC_TRY(read_u64(item, "record_bytes", 1, MAX_SIZE, &expert->record_bytes));
    return read_u64(item, "compute_ns", 0, MAX_NS, &expert->compute_ns);
}

enum moec_status moec_gpu_description_read(const struct moec_json *section, const char *where,
                                           struct moec_gpu_description *gpu, struct moec_error *err)
{
    struct reading r = {.node = section, .err = err};
    uint64_t version = 0;
    *gpu = (struct moec_gpu_description){0};
    (void)snprintf(r.where, sizeof r.where, "'gpu' of %.150s", where);
    MOEC_TRY(read_u64(&r, "version", 1, UINT32_MAX, &version));
    if (version != MOEC_GPU_DESCRIPTION_VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s has version %" PRIu64 ", this moec reads version %d: measure the GPU again with "
                         "moec device --device cuda",
                         r.where, version, MOEC_GPU_DESCRIPTION_VERSION);
    MOEC_TRY(read_text(&r, "name", gpu->name, sizeof gpu->name));
    if (gpu->name[0] == '\0')
        return moec_fail(err, MOEC_ERR_FORMAT, "'name' in %s is empty, expected a device name", r.where);
    MOEC_TRY(read_u64(&r, "memory_bytes", 1, UINT64_MAX / 2, &gpu->memory_bytes));
    MOEC_TRY(read_u64(&r, "launch_ns", 0, MAX_NS, &gpu->launch_ns));
    MOEC_TRY(read_u64(&r, "answer_ns", 0, MAX_NS, &gpu->answer_ns));
    MOEC_TRY(read_u64(&r, "token_ns", 0, MAX_NS, &gpu->token_ns));
    MOEC_TRY(moec_json_get_double(section, r.where, "ns_per_position", 0, (double)MAX_NS,
                                  &gpu->ns_per_position, err));
    MOEC_TRY(read_items(&r, "copies", MOEC_GPU_MAX_COPIES, read_copy, gpu, &gpu->n_copies));
    MOEC_TRY(read_items(&r, "products", MOEC_GPU_MAX_PRODUCTS, read_product, gpu, &gpu->n_products));
    MOEC_TRY(read_items(&r, "gathers", MOEC_GPU_MAX_GATHERS, read_gather, gpu, &gpu->n_gathers));
    return read_items(&r, "experts", MOEC_GPU_MAX_EXPERTS, read_expert, gpu, &gpu->n_experts);
}
