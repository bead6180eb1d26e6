/* What one machine does with one bundle: how fast its storage answers at the sizes and queue depths that the
 * runtime uses, and how long each part of a token takes to compute with everything in memory. `moec device`
 * measures it; `moec simulate` predicts the time of a token from it. Byte by byte (JSON) in
 * formats/trace/DEVICE.md.
 *
 * A decoded token takes, with every record resident,
 *
 *     embed_ns + sum over layers (attention_ns + position x attention_ns_per_position + router_ns + mlp_ns)
 *     + head_ns
 *
 * where mlp_ns of a MoE layer is top-k experts at the compiled assignment, shared expert and weighted sum.
 * With an expert loaded late its share, the compute_ns of its bitwidth, moves behind its arrival and its
 * check, and the wait costs what `waits` says: threads wake late or sleep on, and work that was one piece is
 * done in two.
 *
 * All times are medians of wall time. Thread rule: plain data. */
#ifndef MOEC_FORMATS_DEVICE_DESCRIPTION_H
#define MOEC_FORMATS_DEVICE_DESCRIPTION_H

#include "formats/base/error.h"
#include "formats/model/record.h"
#include "formats/trace/gpu_description.h"

#include <stddef.h>

#define MOEC_DEVICE_FORMAT  "moec device"
#define MOEC_DEVICE_VERSION 1

#define MOEC_DEVICE_MAX_LAYERS   4096
#define MOEC_DEVICE_MAX_EXPERTS  16  /* bitwidths */
#define MOEC_DEVICE_MAX_READS    512 /* sizes x depths x ways */
#define MOEC_DEVICE_WAITS        5   /* lengths */
#define MOEC_DEVICE_MAX_PRODUCTS 64  /* codecs, of two projections each */

/* Random reads of records of one size, `depth` of them in flight. */
struct moec_device_read {
    bool is_direct; /* O_DIRECT; false: the page cache, cold */
    uint32_t depth;
    uint64_t record_bytes;      /* asked for, without padding; mean where records of a bitwidth differ */
    uint64_t latency_ns_median; /* of one request, from the kernel's call to the last byte */
    uint64_t latency_ns_p95;
    uint64_t bytes_per_second; /* of all requests together */
};

struct moec_device_storage {
    bool is_emulated;
    /* Emulated (runtime/storage/reader.h): done = max(issue + latency, previous done) + request + bytes /
     * bandwidth. */
    uint64_t bytes_per_second;
    uint64_t latency_ns;
    uint64_t request_ns; /* 0 in descriptions from before there was such a cost */
    /* Measured. */
    bool is_direct_faster;          /* which of the two --io auto takes */
    char description[192];          /* of the reader that auto takes, for people */
    uint32_t n_reads;               /* 0 when emulated */
    struct moec_device_read *reads; /* (n_reads), owned */
};

/* One layer of the model, one decoded token. */
struct moec_device_layer {
    bool is_moe;
    uint64_t attention_ns;            /* at position 0, norm and residual included */
    double attention_ns_per_position; /* added for each earlier token in the context, >= 0 */
    uint64_t router_ns;               /* MoE: norm and router, until its answer is known; else 0 */
    uint64_t mlp_ns;                  /* MoE: from the answer to the layer's end; else the dense MLP */
    uint64_t shared_ns;               /* the part of it that the shared expert takes, 0 without one */
    uint64_t experts_ns;              /* products of the experts it was measured with; 0: not measured */
};

/* One routed expert at one bitwidth, one token, computed by itself. */
struct moec_device_expert {
    uint32_t bits;
    uint64_t record_bytes; /* without padding, mean */
    uint64_t compute_ns;
    uint64_t check_ns; /* CRC32C of its record */
};

/* A projection of an expert in one codec, multiplied with one token's vector by all threads. */
struct moec_device_product {
    char codec[40]; /* moec_codec_name */
    bool is_down;   /* else up or gate, which are computed alike */
    uint32_t rows, columns;
    uint64_t n_bytes;
    uint64_t ns;
};

/* What a token loses when the computing thread waits this long for a record,
 * in addition to the wait and the check. */
struct moec_device_wait {
    uint64_t stall_ns;
    uint64_t first_ns; /* by the first wait in a layer, */
    uint64_t next_ns;  /* by each further one */
    uint64_t lone_ns;  /* by the first one, where the next layer has none; at least first_ns */
};

struct moec_device {
    char processor[128];      /* as the system names it; may be empty */
    char instruction_set[16]; /* "avx2": kernels in use */
    uint32_t n_threads;
    char bundle[256];      /* file name, without folder */
    char model_sha256[65]; /* of the checkpoint that the bundle was compiled from, hex */
    struct moec_device_storage storage;
    uint32_t n_layer;
    struct moec_device_layer *layers; /* (n_layer), owned */
    uint32_t n_expert_widths;
    struct moec_device_expert experts[MOEC_DEVICE_MAX_EXPERTS]; /* by increasing bits */
    uint32_t n_products; /* 0: not measured, experts are told apart by the sizes of their records alone */
    struct moec_device_product products[MOEC_DEVICE_MAX_PRODUCTS];
    uint64_t embed_ns;
    uint64_t head_ns;        /* final norm and logits */
    uint64_t token_ns;       /* a whole decoded token, measured by itself: what the parts should add up to */
    uint64_t products_ns;    /* the same token's products with weights by themselves; 0: not measured */
    uint32_t token_position; /* mean position at which it was measured */
    double check_ns_per_byte;
    double move_ns_per_byte; /* records that change places in the buffer; 0: not measured */
    uint64_t
        decide_ns; /* added to a MoE layer's router where routes look at a logical cache; 0: not measured */
    uint64_t predict_ns; /* that a MoE layer takes to predict the next one by its router; 0: not measured */
    uint64_t preload_ns; /* that computing loses to a record that another thread reads and checks meanwhile */
    uint32_t n_waits;    /* 0: not measured, waiting costs nothing */
    struct moec_device_wait waits[MOEC_DEVICE_WAITS]; /* by increasing stall_ns */
    struct moec_gpu_description gpu;                  /* its name is empty where none was measured */
};

/* What a byte of an expert takes on average over the described bitwidths, one token: to compute with by the
 * processor, to copy to the GPU from pinned memory, and to compute with there. */
struct moec_device_expert_costs {
    double cpu_byte_ns, copy_byte_ns, gpu_byte_ns;
};
/* `subject` names the description in messages. Errors: MOEC_ERR_USAGE without a GPU, or without what is asked
 * for. */
MOEC_WARN_UNUSED enum moec_status moec_device_expert_costs_of(const struct moec_device *device,
                                                              const char *subject,
                                                              struct moec_device_expert_costs *out,
                                                              struct moec_error *err);

/* What the products of one expert that is stored so take together; 0 where one of them was not measured. */
double moec_device_expert_ns(const struct moec_device *device, const struct moec_record_layout *layout);

/* Records of so many bytes that are read, one after the other, in the time that a MoE layer of a decoded
 * token takes on average with every record resident: n = T / t_expert of Fate (arXiv:2502.12224,
 * section 4.3). 0 = not even one. */
uint32_t moec_device_records_ahead(const struct moec_device *device, uint64_t record_bytes);

/* Frees what the description owns; idempotent. */
void moec_device_release(struct moec_device *device);

/* "direct" or "cached". */
const char *moec_device_io_name(bool is_direct);

/* The JSON text, owned by the caller. */
MOEC_WARN_UNUSED enum moec_status moec_device_write(const struct moec_device *device, char **text,
                                                    struct moec_error *err);

/* Reads and checks a JSON description. `subject` names it in messages. Errors: MOEC_ERR_FORMAT,
 * MOEC_ERR_LIMIT, MOEC_ERR_UNSUPPORTED for a later version, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_device_parse(const char *text, size_t length, const char *subject,
                                                    struct moec_device *device, struct moec_error *err);

/* The same from a file. Errors also MOEC_ERR_NOT_FOUND, MOEC_ERR_IO. */
MOEC_WARN_UNUSED enum moec_status moec_device_load(const char *path, struct moec_device *device,
                                                   struct moec_error *err);

#endif
