/* What a GPU takes, beside the processor of the same machine (device_description.h, whose file it is a
 * section of): copies to and from its memory by size, launches, products by codec, experts, whole tokens.
 * `moec device --device cuda` measures it; `moec simulate --vram` predicts times of three tiers from it. Byte
 * by byte (JSON) in formats/trace/DEVICE.md.
 *
 * All times are medians of wall time, in nanoseconds. Thread rule: plain data. */
#ifndef MOEC_FORMATS_GPU_DESCRIPTION_H
#define MOEC_FORMATS_GPU_DESCRIPTION_H

#include "formats/json/json.h"
#include "formats/json/json_write.h"

#include <stddef.h>

#define MOEC_GPU_DESCRIPTION_VERSION 1

#define MOEC_GPU_MAX_COPIES   64
#define MOEC_GPU_MAX_PRODUCTS 32
#define MOEC_GPU_MAX_GATHERS  32
#define MOEC_GPU_MAX_EXPERTS  16 /* bitwidths */

/* One copy, from the call until it has landed. */
struct moec_gpu_copy_time {
    bool is_to_device; /* false: to the process's memory */
    bool is_pinned; /* there; false: through two pinned buffers in turn, which the processor fills or empties
                     */
    uint64_t n_bytes, ns;
};

/* A product of a matrix of one codec with one token, of many in a row; none of the matrices is in a cache. */
struct moec_gpu_product_time {
    char codec[40];
    uint32_t bits, rows, columns;
    uint64_t n_bytes; /* of the encoded matrix */
    uint64_t ns;
};

/* Pieces that lie apart in memory, put side by side into pinned memory by the processor's threads. */
struct moec_gpu_gather_time {
    uint64_t piece_bytes, n_bytes, ns;
};

/* One routed expert at one bitwidth, one token. */
struct moec_gpu_expert_time {
    uint32_t bits;
    uint64_t record_bytes; /* without padding, mean */
    uint64_t compute_ns;
};

struct moec_gpu_description {
    char name[256]; /* as the driver names it; empty: no GPU was measured */
    uint64_t memory_bytes;
    uint64_t launch_ns;     /* one of many launches of next to nothing */
    uint64_t answer_ns;     /* one launch, until the process knows that it is done */
    uint64_t token_ns;      /* a decoded token at position 0, every expert in the device's memory */
    double ns_per_position; /* added to it for each earlier token in the context, >= 0 */
    uint32_t n_copies, n_products, n_gathers, n_experts;
    struct moec_gpu_copy_time copies[MOEC_GPU_MAX_COPIES];
    struct moec_gpu_product_time products[MOEC_GPU_MAX_PRODUCTS];
    struct moec_gpu_gather_time gathers[MOEC_GPU_MAX_GATHERS];
    struct moec_gpu_expert_time experts[MOEC_GPU_MAX_EXPERTS]; /* by increasing bits */
};

/* Time of a copy of n_bytes, between the measured sizes and beyond them by the line through the nearest two;
 * `is_pinned` memory, to the device. NaN without measurements. */
double moec_gpu_copy_ns(const struct moec_gpu_description *gpu, bool is_pinned, uint64_t n_bytes);

/* The section as JSON, for the document that it becomes part of. */
struct moec_json_out *moec_gpu_description_write(const struct moec_gpu_description *gpu);

/* Reads and checks the section. `where` names the document in messages. Errors: MOEC_ERR_FORMAT,
 * MOEC_ERR_LIMIT, MOEC_ERR_UNSUPPORTED for a later version. */
MOEC_WARN_UNUSED enum moec_status moec_gpu_description_read(const struct moec_json *section,
                                                            const char *where,
                                                            struct moec_gpu_description *gpu,
                                                            struct moec_error *err);

#endif
