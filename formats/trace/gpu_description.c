/* The time of a copy lies on the line through the two measured sizes around it. Beyond the ends the line of
 * the last two goes on. A falling line counts as flat, and no time is negative. Sizes must increase in the
 * list. */
#include "formats/trace/gpu_description.h"

#include "formats/json/json_write.h"

#include <math.h>

/* ---- times between sizes ---- */

double moec_gpu_copy_ns(const struct moec_gpu_description *gpu, bool is_pinned, uint64_t n_bytes)
{
    const struct moec_gpu_copy_time *low = NULL, *high = NULL;
    for (uint32_t i = 0; i < gpu->n_copies; i++) {
        const struct moec_gpu_copy_time *copy = &gpu->copies[i];
        if (!copy->is_to_device || copy->is_pinned != is_pinned)
            continue;
        /* Sizes increase: the last two that begin at or below n_bytes, or the first two. */
        if (high == NULL || high->n_bytes <= n_bytes || low == NULL) {
            low = high;
            high = copy;
        }
    }
    if (high == NULL)
        return NAN;
    if (low == NULL)
        return (double)high->ns * (double)n_bytes / (double)high->n_bytes;
    const double slope =
        ((double)high->ns - (double)low->ns) / ((double)high->n_bytes - (double)low->n_bytes);
    return fmax(0, (double)low->ns + fmax(0, slope) * ((double)n_bytes - (double)low->n_bytes));
}

/* ---- writing ---- */

struct moec_json_out *moec_gpu_description_write(const struct moec_gpu_description *gpu)
{
    struct moec_json_out *node = moec_json_out_object();
    struct moec_json_out *copies = moec_json_out_array(), *products = moec_json_out_array(),
                         *gathers = moec_json_out_array(), *experts = moec_json_out_array();
    moec_json_out_u64(node, "version", MOEC_GPU_DESCRIPTION_VERSION);
    moec_json_out_string(node, "name", gpu->name);
    moec_json_out_u64(node, "memory_bytes", gpu->memory_bytes);
    moec_json_out_u64(node, "launch_ns", gpu->launch_ns);
    moec_json_out_u64(node, "answer_ns", gpu->answer_ns);
    moec_json_out_u64(node, "token_ns", gpu->token_ns);
    moec_json_out_double(node, "ns_per_position", gpu->ns_per_position);
    for (uint32_t i = 0; i < gpu->n_copies; i++) {
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_bool(item, "to_device", gpu->copies[i].is_to_device);
        moec_json_out_bool(item, "pinned", gpu->copies[i].is_pinned);
        moec_json_out_u64(item, "bytes", gpu->copies[i].n_bytes);
        moec_json_out_u64(item, "ns", gpu->copies[i].ns);
        moec_json_out_node(copies, NULL, item);
    }
    for (uint32_t i = 0; i < gpu->n_products; i++) {
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_string(item, "codec", gpu->products[i].codec);
        moec_json_out_u64(item, "bits", gpu->products[i].bits);
        moec_json_out_u64(item, "rows", gpu->products[i].rows);
        moec_json_out_u64(item, "columns", gpu->products[i].columns);
        moec_json_out_u64(item, "bytes", gpu->products[i].n_bytes);
        moec_json_out_u64(item, "ns", gpu->products[i].ns);
        moec_json_out_node(products, NULL, item);
    }
    for (uint32_t i = 0; i < gpu->n_gathers; i++) {
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_u64(item, "piece_bytes", gpu->gathers[i].piece_bytes);
        moec_json_out_u64(item, "bytes", gpu->gathers[i].n_bytes);
        moec_json_out_u64(item, "ns", gpu->gathers[i].ns);
        moec_json_out_node(gathers, NULL, item);
    }
    for (uint32_t i = 0; i < gpu->n_experts; i++) {
        struct moec_json_out *item = moec_json_out_object();
        moec_json_out_u64(item, "bits", gpu->experts[i].bits);
        moec_json_out_u64(item, "record_bytes", gpu->experts[i].record_bytes);
        moec_json_out_u64(item, "compute_ns", gpu->experts[i].compute_ns);
        moec_json_out_node(experts, NULL, item);
    }
    moec_json_out_node(node, "copies", copies);
    moec_json_out_node(node, "products", products);
    moec_json_out_node(node, "gathers", gathers);
    moec_json_out_node(node, "experts", experts);
    return node;
}
