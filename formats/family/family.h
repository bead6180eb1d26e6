/* Model families: how config.json's fields and tensor names of each become the engine's terms, and back.
 *
 * A family is a row of the list in family.c (a model_type, functions that read and write its fields, name
 * patterns) and nothing else; the rest of moec sees struct moec_config and enum moec_role. Defaults are those
 * of transformers' config classes, because config.json may leave out what equals them. Thread rule: constant
 * data and pure functions. */
#ifndef MOEC_FORMATS_FAMILY_H
#define MOEC_FORMATS_FAMILY_H

#include "formats/family/tensor_layout.h"
#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "formats/model/generation.h"
#include "formats/model/record.h"

#define MOEC_TENSOR_NAME_BYTES 128

#define MOEC_FAMILY_OTHERS 4

/* A way to hold the routed experts. */
struct moec_family_experts {
    const char *names[MOEC_PROJECTION_COUNT];
    struct moec_tensor_layout layouts[MOEC_PROJECTION_COUNT];
};

struct moec_family {
    const char *model_type; /* config.json's */
    /* model_type of configs that have this one as their 'text_config', beside those of pictures or sound,
     * which are not read; tensors may then have "model.language_model." where names here have "model.", or
     * "language_model." before all of them. NULL: none. */
    const char *outer_type;
    /* Reads the fields that only this family has, or that it reads in its own way. Common ones are set
     * before, except for families that use names of their own for everything. */
    enum moec_status (*read)(const struct moec_json *root, const char *where, struct moec_config *config,
                             struct moec_error *err);
    /* Writes those fields. */
    void (*write)(const struct moec_config *config, struct moec_json_out *root);
    bool has_own_fields;
    bool has_own_rope;        /* `read` and `write` see to RoPE */
    bool has_partial_rope;    /* 'partial_rotary_factor' counts */
    double rotary_part;       /* the class's default of it; 0 = 1 */
    bool has_mscales;         /* LongRoPE's 'short_mscale' and 'long_mscale' count */
    const char *architecture; /* config.json's, of the class in transformers */
    /* What transformers assumes if config.json says nothing;
     * kinds[0] is what layers are like before they are placed. */
    struct moec_config defaults; /* n_kv_head 0: as many as heads; eos_ids as in the class */
    /* Tensor names with {L} for the layer within its stack, {H} for the half of that number and {R} for the
     * rest (of layers that files hold in pairs), {E} for the expert, and {_1} for "_1" where MLPs have a
     * gate; NULL where the family has none. An encoder's layers have their own. */
    const char *names[MOEC_ROLE_COUNT];
    const char *expert_names[MOEC_PROJECTION_COUNT];
    const char *encoder_names[MOEC_ROLE_COUNT];
    const char *direct_q_name; /* of Q beside a latent of keys, where queries have no latent of their own */
    const char *dense_positions_name; /* of vectors of positions that are added before a layer with an MLP */
    /* Names in running layers (enum moec_mixer), where they are others than in layers with attention. */
    const char *running_names[MOEC_ROLE_COUNT];
    const char *encoder_expert_names[MOEC_PROJECTION_COUNT];
    /* Names that other releases of transformers write for the same tensors, asked for where the first is not
     * there: a file has one or the other throughout. Dense ones keep their layout. */
    const char *other_names[MOEC_ROLE_COUNT];
    struct moec_family_experts other_experts[MOEC_FAMILY_OTHERS]; /* ended by one without names */
    /* How those tensors hold their matrices, in both stacks; zero: each is the linear layer (outputs, inputs)
     * itself. Export writes them so. */
    struct moec_tensor_layout layouts[MOEC_ROLE_COUNT];
    /* Where layouts depend on the model's sizes or on the layer; NULL: `layouts` says it all. */
    struct moec_tensor_layout (*layout_of)(const struct moec_config *config, enum moec_role role,
                                           uint32_t layer);
    struct moec_tensor_layout expert_layouts[MOEC_PROJECTION_COUNT];
    /* Further names of the embedding in files, ended by NULL: transformers needs them if the head is not
     * tied, although they are the same weights. NULL where the family has none. */
    const char *const *embedding_copies;
};

/* NULL when the model_type is not known. */
const struct moec_family *moec_family_find(const char *model_type);

/* Fills `config` from the root of config.json and finds the family. `where` names the file
 * ("'x/config.json'"). expert_dtype stays F32: tensors decide it. Errors: MOEC_ERR_UNSUPPORTED (family,
 * activation, RoPE scaling, quantised weights, ...), MOEC_ERR_FORMAT, MOEC_ERR_LIMIT.
 * The result has passed moec_config_check. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_config(const struct moec_json *root, const char *where,
                                                          const struct moec_family **family,
                                                          struct moec_config *config, struct moec_error *err);

/* Replaces the end-of-text ids by those of generation_config.json, when it names any. Ids past the vocabulary
 * are dropped: they can never be generated. */
MOEC_WARN_UNUSED enum moec_status moec_family_read_eos(const struct moec_json *root, const char *where,
                                                       struct moec_config *config, struct moec_error *err);

/* Texts of config.json and generation_config.json, NUL-terminated. */
struct moec_family_texts {
    char *config, *generation; /* the caller's (free) */
};

/* Texts that read back as exactly this config and generation (the config is checked before they are handed
 * out) but for expert_dtype, which tensors decide, and rope_context, which who opens a model does.
 * `torch_dtype` is the type that transformers is to compute in ("float32"); `subject` names the source in
 * messages. Errors: MOEC_ERR_UNSUPPORTED for an unknown family, or a config that its config.json cannot
 * express. */
MOEC_WARN_UNUSED enum moec_status moec_family_write_config(const struct moec_config *config,
                                                           const struct moec_generation *generation,
                                                           const char *torch_dtype, const char *subject,
                                                           struct moec_family_texts *out,
                                                           struct moec_error *err);

/* Pattern of a tensor's name; NULL where the family has none. */
const char *moec_family_pattern(const struct moec_family *family, const struct moec_config *config,
                                enum moec_role role, uint32_t layer);
const char *moec_family_expert_pattern(const struct moec_family *family, const struct moec_config *config,
                                       enum moec_projection projection, uint32_t layer);

/* How such a tensor holds the matrix. */
struct moec_tensor_layout moec_family_layout(const struct moec_family *family,
                                             const struct moec_config *config, enum moec_role role,
                                             uint32_t layer);
struct moec_tensor_layout moec_family_expert_layout(const struct moec_family *family,
                                                    enum moec_projection projection);

/* Which outputs of each head of a role with pairs (has_pairs) are pairs: `dims` from `first` on. */
struct moec_family_pairs {
    uint32_t head, first, dims;
};
struct moec_family_pairs moec_family_pairs(const struct moec_layer_kind *kind, enum moec_role role);

/* Name of a tensor in files: `pattern` filled in. `layer` is the model's. */
const char *moec_family_tensor_name(const char *pattern, const struct moec_config *config, uint32_t layer,
                                    uint32_t expert, char name[static MOEC_TENSOR_NAME_BYTES]);

#endif
