/* A bundle as a Hugging Face folder: config.json, generation_config.json, tokenizer.json,
 * tokenizer_config.json and the decoded weights as safetensors, so that other software can check what a
 * bundle says.
 *
 * Weights keep their exact values: what the bundle holds as BF16, F16 or F32 stays so, what it holds as codes
 * is decoded to F32 (a code of 8 bits times a scale of 11 needs more than a 16-bit float has). All routed
 * experts have one dtype: F32 as soon as one of them is quantised. Reading the folder gives the bundle's
 * model bit for bit. Memory: the dense weights and one expert. Thread rule: one thread. */
#ifndef MOEC_FORMATS_CHECKPOINT_WRITE_H
#define MOEC_FORMATS_CHECKPOINT_WRITE_H

#include "formats/bundle/bundle.h"

#define MOEC_CHECKPOINT_SHARD_BYTES ((uint64_t)2000000000)

typedef enum moec_status moec_write_progress_fn(void *context, uint64_t done_bytes, uint64_t total_bytes,
                                                struct moec_error *err);

struct moec_checkpoint_write_options {
    uint32_t copy;        /* precision copy whose records are decoded; 0 = the compiled assignment */
    uint64_t shard_bytes; /* tensors of one safetensors file, but at least one tensor; 0 = 2 GB */
    moec_write_progress_fn *progress; /* may be NULL; anything but MOEC_OK stops */
    void *context;
};

struct moec_checkpoint_written {
    uint64_t weight_bytes;
    uint32_t n_tensor;
    uint32_t n_shard;
    enum moec_dtype expert_dtype;
};

/* Writes `folder`, which must not exist; it appears whole or not at all. Errors: MOEC_ERR_USAGE for a copy
 * level that is not there, MOEC_ERR_UNSUPPORTED for a family that has no table row, those of reading the
 * bundle and of the output. */
MOEC_WARN_UNUSED enum moec_status
moec_checkpoint_write(const struct moec_bundle *bundle, const struct moec_checkpoint_write_options *options,
                      const char *folder, struct moec_checkpoint_written *written, struct moec_error *err);

#endif
