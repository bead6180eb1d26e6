/* An open checkpoint, for the files that make it up (internal to formats/). */
#ifndef MOEC_FORMATS_CHECKPOINT_INTERNAL_H
#define MOEC_FORMATS_CHECKPOINT_INTERNAL_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/tensor_view.h"
#include "formats/family/family.h"
#include "formats/family/weight_types.h"
#include "formats/model/chat_source.h"

#include <pthread.h>

struct moec_checkpoint {
    char *folder;              /* or the GGUF file */
    char *note;                /* moec_checkpoint_note; NULL without */
    struct moec_family family; /* with the names and layouts of these files */
    struct moec_config config;
    struct moec_generation generation;
    char sampling[256]; /* moec_generation_sampling */
    struct moec_tokenizer_model tokenizer;
    struct moec_chat_source chat; /* owned; empty without a template */
    bool is_gguf, has_tokenizer;
    /* Tensors are those of a language model among others (struct moec_family, outer_type): "model." is
     * followed by "language_model.", or every name begins with it. */
    bool is_inner, is_enclosed;
    const char *const *tokenizer_files; /* names in the folder that it comes from, ended by NULL */
    struct moec_tensor_source *source;  /* owned; forgets its names once tensors are located */
    /* Rows as the engine wants them: [(n_layer + 1) x MOEC_ROLE_COUNT]; the last row is MOEC_LAYER_NONE. */
    struct moec_tensor_view *dense;
    /* The keys and values of a latent stand in two tensors, head by head: in `dense` the views of the roles K
     * and V are those of the first head's, and that of KV_UP is the first of them. */
    bool has_split_latents;
    bool lacks_weights; /* the views are those of tensors as `types` says, which no file holds */
    struct moec_weight_types types;
    /* Linear layers (outputs, inputs): [MoE layers x n_expert x MOEC_PROJECTION_COUNT]. */
    struct moec_tensor_view *experts;
    uint64_t weight_bytes;
    uint64_t expert_bytes;
    pthread_mutex_t lock; /* of the digest */
    bool has_digest;
    uint8_t digest[MOEC_SHA256_BYTES];
};

/* A matrix by its place in the model, enough to name its tensor in a message. */
struct moec_checkpoint_tensor {
    const char *pattern;
    uint32_t layer;
    uint32_t expert;
    bool is_expert;
    struct moec_tensor_view *view; /* its place in the tables above */
};

/* Of the rest of a matrix's rows: the tensor of all of them. */
struct moec_checkpoint_tensor moec_checkpoint_dense_tensor(const struct moec_checkpoint *ck,
                                                           enum moec_role role, uint32_t layer);
/* `ordinal`: of the layer among those with experts. */
struct moec_checkpoint_tensor moec_checkpoint_expert_tensor(const struct moec_checkpoint *ck, uint32_t layer,
                                                            uint32_t ordinal, uint32_t expert,
                                                            enum moec_projection projection);

/* The name of a tensor in the files: the pattern filled in. */
const char *moec_checkpoint_tensor_name(const struct moec_checkpoint *ck, const char *pattern, uint32_t layer,
                                        uint32_t expert, char name[static MOEC_TENSOR_NAME_BYTES]);

/* Finds every tensor that the family expects and checks its shape and coding; fills the tables, the sizes and
 * config.expert_dtype. Copies of the embedding must be copies. Where weights are absent nothing is looked for:
 * every tensor has the shape that it is expected to have. */
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_locate(struct moec_checkpoint *ck, struct moec_error *err);

#endif
