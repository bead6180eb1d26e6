/* An open checkpoint, for the files that make it up (internal to formats/). */
#ifndef MOEC_FORMATS_CHECKPOINT_INTERNAL_H
#define MOEC_FORMATS_CHECKPOINT_INTERNAL_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/family.h"
#include "formats/checkpoint/safetensors.h"

#include <pthread.h>

/* Where a tensor's bytes stand. */
struct moec_tensor_location {
    uint32_t shard;
    uint32_t dtype; /* enum moec_dtype: F32, F16 or BF16 */
    uint64_t offset;
};

struct moec_checkpoint {
    char *folder;
    const struct moec_family *family;
    struct moec_config config;
    struct moec_generation generation;
    struct moec_tokenizer_model tokenizer;
    const char *const *tokenizer_files; /* names that it comes from, ended by NULL */
    bool has_index;
    struct moec_safetensors *shards; /* sorted by path; entries are released once tensors are located */
    uint32_t n_shards;
    struct moec_tensor_location
        *dense; /* [(n_layer + 1) x MOEC_ROLE_COUNT]; the last row is MOEC_LAYER_NONE */
    struct moec_tensor_location *experts; /* [MoE layers x n_expert x MOEC_PROJECTION_COUNT] */
    uint64_t weight_bytes;
    uint64_t expert_bytes;
    pthread_mutex_t lock; /* of the digest */
    bool has_digest;
    uint8_t digest[MOEC_SHA256_BYTES];
};

#endif
