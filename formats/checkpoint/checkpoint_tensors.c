/* Where each matrix of the model stands in the tensors of a checkpoint. */
#include "formats/checkpoint/checkpoint_internal.h"

#include "formats/base/memory.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/codec/mxfp4.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tensors by their place in the model ---- */

struct moec_checkpoint_tensor moec_checkpoint_dense_tensor(const struct moec_checkpoint *ck,
                                                           enum moec_role role, uint32_t layer)
{
    const size_t row = layer == MOEC_LAYER_NONE ? ck->config.n_layer : layer;
    role = moec_role_whole(role);
    return (struct moec_checkpoint_tensor){.pattern =
                                               moec_family_pattern(&ck->family, &ck->config, role, layer),
                                           .layer = layer,
                                           .view = &ck->dense[row * MOEC_ROLE_COUNT + role]};
}

struct moec_checkpoint_tensor moec_checkpoint_expert_tensor(const struct moec_checkpoint *ck, uint32_t layer,
                                                            uint32_t ordinal, uint32_t expert,
                                                            enum moec_projection projection)
{
    size_t index = ((size_t)ordinal * ck->config.n_expert + expert) * MOEC_PROJECTION_COUNT + projection;
    return (struct moec_checkpoint_tensor){
        .pattern = moec_family_expert_pattern(&ck->family, &ck->config, projection, layer),
        .layer = layer,
        .expert = expert,
        .is_expert = true,
        .view = &ck->experts[index]};
}

const char *moec_checkpoint_tensor_name(const struct moec_checkpoint *ck, const char *pattern, uint32_t layer,
                                        uint32_t expert, char name[static MOEC_TENSOR_NAME_BYTES])
{
    static const char outer[] = "model.", inner[] = "model.language_model.", enclosing[] = "language_model.";
    const size_t n_cut = ck->is_inner ? strlen(outer) : 0;
    const char *prefix = ck->is_inner ? inner : enclosing;
    char plain[MOEC_TENSOR_NAME_BYTES];
    (void)moec_family_tensor_name(pattern, &ck->config, layer, expert, name);
    if (!ck->is_enclosed && (!ck->is_inner || strncmp(name, outer, strlen(outer)) != 0))
        return name;
    memcpy(plain, name, sizeof plain);
    (void)snprintf(name, MOEC_TENSOR_NAME_BYTES, "%s%.*s", prefix,
                   (int)(MOEC_TENSOR_NAME_BYTES - 1 - strlen(prefix)), plain + n_cut);
    return name;
}

/* ---- locating ---- */

/* Weights that a tool quantised, and described in a file of its own. */
static enum moec_status refuse_quantised(const struct moec_checkpoint *ck, const char *name,
                                         struct moec_error *err)
{
    static const char *const files[] = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files && !ck->is_gguf; i++) {
        bool exists = false;
        MOEC_TRY(moec_folder_has(ck->folder, files[i], &exists, err));
        if (exists)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "the checkpoint '%s' has no tensor '%s', and the file '%s' says that the "
                             "weights are quantised already: start from the BF16, F16 or F32 checkpoint "
                             "that they were made from",
                             ck->folder, name, files[i]);
    }
    return MOEC_OK;
}

static enum moec_status fail_missing(const struct moec_checkpoint *ck, const char *name,
                                     struct moec_error *err)
{
    if (ck->source->explain != NULL)
        MOEC_TRY(ck->source->explain(ck->source, name, err));
    MOEC_TRY(refuse_quantised(ck, name, err));
    if (ck->source->n_file == 1)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the file '%s' has no tensor '%s', which models of family '%s' need",
                         ck->source->file(ck->source, 0)->path, name, ck->family.model_type);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "none of the %u shards in the checkpoint '%s' has the tensor '%s', which models of "
                     "family '%s' need",
                     ck->source->n_file, ck->folder, name, ck->family.model_type);
}

static bool has_tensor(const struct moec_checkpoint *ck, const char *pattern, uint32_t layer)
{
    char name[MOEC_TENSOR_NAME_BYTES];
    struct moec_tensor found;
    return ck->source->find(ck->source, moec_checkpoint_tensor_name(ck, pattern, layer, 0, name), &found);
}

/* Takes the family's other name of a dense tensor where the file has that one alone. */
static void choose_dense_name(struct moec_checkpoint *ck, enum moec_role role, uint32_t layer)
{
    const char *other = ck->family.other_names[role];
    if (other != NULL && !has_tensor(ck, moec_family_pattern(&ck->family, &ck->config, role, layer), layer) &&
        has_tensor(ck, other, layer))
        ck->family.names[role] = other;
}

/* The same for the routed experts, by the up projection of the first. */
static void choose_experts(struct moec_checkpoint *ck)
{
    const uint32_t layer = moec_config_moe_layer(&ck->config, 0);
    if (has_tensor(ck, moec_family_expert_pattern(&ck->family, &ck->config, MOEC_PROJECTION_UP, layer),
                   layer))
        return;
    for (size_t i = 0; i < MOEC_FAMILY_OTHERS; i++) {
        const struct moec_family_experts *other = &ck->family.other_experts[i];
        if (other->names[MOEC_PROJECTION_UP] == NULL ||
            !has_tensor(ck, other->names[MOEC_PROJECTION_UP], layer))
            continue;
        memcpy(ck->family.expert_names, other->names, sizeof other->names);
        memcpy(ck->family.expert_layouts, other->layouts, sizeof other->layouts);
        return;
    }
}

/* Whether a tensor is among those that config.json says are stored in fewer bits. */
static bool is_packed(const struct moec_checkpoint *ck, const struct moec_checkpoint_tensor *tensor)
{
    if (tensor->is_expert)
        return ck->types.storage != MOEC_STORAGE_PLAIN;
    const enum moec_role role = (enum moec_role)((size_t)(tensor->view - ck->dense) % MOEC_ROLE_COUNT);
    return ck->types.storage == MOEC_STORAGE_FP8 && role != MOEC_ROLE_EMBEDDING && role != MOEC_ROLE_HEAD &&
           moec_role_is_quantisable(role);
}

/* The view of a linear layer in a tensor of its own, for a folder without weights; its index, where there is
 * one, must have a tensor for it. */
static enum moec_status assume(struct moec_checkpoint *ck, const struct moec_checkpoint_tensor *tensor,
                               uint32_t rows, uint32_t columns, struct moec_error *err)
{
    const struct moec_tensor_coding *const packed =
        ck->types.storage == MOEC_STORAGE_FP8 ? &moec_tensor_e4m3 : &moec_tensor_e2m1;
    char name[MOEC_TENSOR_NAME_BYTES];
    struct moec_tensor found;
    (void)moec_checkpoint_tensor_name(ck, tensor->pattern, tensor->layer, tensor->expert, name);
    if (ck->source->index != NULL && !ck->source->find(ck->source, name, &found))
        return fail_missing(ck, name, err);
    *tensor->view = (struct moec_tensor_view){
        .tensor = {.coding = is_packed(ck, tensor) ? packed : moec_tensor_coding_of(ck->types.dtype),
                   .line = columns},
        .step = {.row = columns, .column = 1},
        .rows = rows,
        .columns = columns};
    ck->weight_bytes += moec_tensor_view_bytes(tensor->view);
    return MOEC_OK;
}

/* Finds a linear layer (rows = outputs), the expert's where it is stacked, and fills its view. */
static enum moec_status locate_stacked(struct moec_checkpoint *ck,
                                       const struct moec_checkpoint_tensor *tensor,
                                       struct moec_tensor_layout layout, struct moec_tensor_wanted wanted,
                                       struct moec_error *err)
{
    wanted.expert = tensor->expert;
    char name[MOEC_TENSOR_NAME_BYTES], where[MOEC_TENSOR_NAME_BYTES + 4096];
    struct moec_tensor found;
    if (ck->lacks_weights)
        return assume(ck, tensor, wanted.rows, wanted.columns, err);
    (void)moec_checkpoint_tensor_name(ck, tensor->pattern, tensor->layer, tensor->expert, name);
    if (!ck->source->find(ck->source, name, &found))
        return fail_missing(ck, name, err);
    (void)snprintf(where, sizeof where, "tensor '%s' in '%s'", name,
                   ck->source->file(ck->source, found.file)->path);
    MOEC_TRY(moec_tensor_view_make(&found, layout, wanted, where, tensor->view, err));
    ck->weight_bytes += moec_tensor_view_bytes(tensor->view);
    return MOEC_OK;
}

/* The same of experts, or of all that is not stacked. */
static enum moec_status locate(struct moec_checkpoint *ck, const struct moec_checkpoint_tensor *tensor,
                               struct moec_tensor_layout layout, uint32_t rows, uint32_t columns,
                               struct moec_error *err)
{
    return locate_stacked(
        ck, tensor, layout,
        (struct moec_tensor_wanted){.rows = rows, .columns = columns, .n_expert = ck->config.n_expert}, err);
}

/* Keys and values of a latent in two tensors (heads, latent, keys) and (heads, values, latent): the first
 * head's matrix of each. */
static enum moec_status locate_split_latents(struct moec_checkpoint *ck, uint32_t layer,
                                             struct moec_error *err)
{
    const struct moec_layer_kind *kind = moec_config_layer(&ck->config, layer);
    const struct moec_tensor_layout keys = {.is_stacked = true, .is_transposed = true},
                                    values = {.is_stacked = true};
    struct moec_checkpoint_tensor k = moec_checkpoint_dense_tensor(ck, MOEC_ROLE_K, layer),
                                  v = moec_checkpoint_dense_tensor(ck, MOEC_ROLE_V, layer);
    MOEC_TRY(locate_stacked(ck, &k, keys,
                            (struct moec_tensor_wanted){.rows = moec_layer_plain_dim(kind),
                                                        .columns = kind->latent_dim,
                                                        .n_expert = kind->n_head},
                            err));
    MOEC_TRY(locate_stacked(ck, &v, values,
                            (struct moec_tensor_wanted){.rows = moec_layer_value_dim(kind),
                                                        .columns = kind->latent_dim,
                                                        .n_expert = kind->n_head},
                            err));
    *moec_checkpoint_dense_tensor(ck, MOEC_ROLE_KV_UP, layer).view = *k.view;
    ck->weight_bytes +=
        (kind->n_head - 1) * (moec_tensor_view_bytes(k.view) + moec_tensor_view_bytes(v.view));
    return MOEC_OK;
}

static enum moec_status locate_dense(struct moec_checkpoint *ck, enum moec_role role, uint32_t layer,
                                     struct moec_error *err)
{
    if (role == MOEC_ROLE_KV_UP && ck->has_split_latents)
        return locate_split_latents(ck, layer, err);
    choose_dense_name(ck, role, layer);
    const struct moec_checkpoint_tensor tensor = moec_checkpoint_dense_tensor(ck, role, layer);
    const struct moec_tensor_layout layout = moec_family_layout(&ck->family, &ck->config, role, layer);
    const bool is_transposed = moec_role_is_transposed(role);
    uint32_t rows = 0, columns = 0;
    moec_role_shape(&ck->config, role, layer, &rows, &columns);
    if (!is_transposed) {
        MOEC_TRY(locate(ck, &tensor, layout, rows, columns, err));
        if (layout.has_pairs) {
            const struct moec_family_pairs pairs =
                moec_family_pairs(moec_config_layer(&ck->config, layer), role);
            *tensor.view = moec_tensor_view_split_pairs(tensor.view, pairs.head, pairs.first, pairs.dims);
        }
        return MOEC_OK;
    }
    MOEC_TRY(locate(ck, &tensor, layout, columns, rows, err));
    *tensor.view = moec_tensor_view_transpose(tensor.view);
    return MOEC_OK;
}

static enum moec_status locate_all_dense(struct moec_checkpoint *ck, struct moec_error *err)
{
    void *table = NULL;
    MOEC_TRY(moec_alloc(&table, ((uint64_t)ck->config.n_layer + 1) * MOEC_ROLE_COUNT, sizeof *ck->dense,
                        "table of dense tensors", err));
    ck->dense = table;
    for (struct moec_dense_walk at = {0}; moec_dense_next(&ck->config, &at);)
        MOEC_TRY(locate_dense(ck, at.role, at.layer, err));
    return MOEC_OK;
}

/* Of the first expert the others must have the dtype. */
static enum moec_status locate_expert(struct moec_checkpoint *ck, struct moec_checkpoint_tensor tensor,
                                      enum moec_projection projection, bool is_first, struct moec_error *err)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    struct moec_config *config = &ck->config;
    const bool is_down = projection == MOEC_PROJECTION_DOWN;
    char name[MOEC_TENSOR_NAME_BYTES];
    MOEC_TRY(locate(ck, &tensor, moec_family_expert_layout(&ck->family, projection),
                    is_down ? config->n_embd : config->n_ff_expert,
                    is_down ? config->n_ff_expert : config->n_embd, err));
    const enum moec_dtype dtype = moec_tensor_view_dtype(tensor.view);
    if (is_first)
        config->expert_dtype = (uint8_t)dtype;
    if (dtype != config->expert_dtype)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "tensor '%s' in '%s' at offset %" PRIu64
                         " has dtype %s but earlier experts have %s, expected one dtype for all experts",
                         moec_checkpoint_tensor_name(ck, tensor.pattern, tensor.layer, tensor.expert, name),
                         ck->source->file(ck->source, tensor.view->tensor.file)->path,
                         tensor.view->tensor.offset, names[dtype], names[config->expert_dtype]);
    return MOEC_OK;
}

/* Whether groups of MXFP4 are those of the matrix's rows. */
static bool view_is_mxfp4(const struct moec_tensor_view *view)
{
    return view->tensor.coding->is_mxfp4 && !moec_tensor_view_computes(view) && view->step.column == 1 &&
           view->step.first % MOEC_MXFP4_GROUP == 0 && view->step.row % MOEC_MXFP4_GROUP == 0;
}

static enum moec_status locate_all_experts(struct moec_checkpoint *ck, struct moec_error *err)
{
    void *table = NULL;
    const uint32_t n_layer = moec_config_moe_count(&ck->config), n_expert = ck->config.n_expert;
    const uint64_t dense_bytes = ck->weight_bytes;
    bool is_first = true, is_mxfp4 = n_layer > 0;
    MOEC_TRY(moec_alloc(&table, (uint64_t)n_layer * n_expert * MOEC_PROJECTION_COUNT, sizeof *ck->experts,
                        "table of experts", err));
    ck->experts = table;
    if (n_layer > 0)
        choose_experts(ck);
    for (uint32_t ordinal = 0; ordinal < n_layer; ordinal++) {
        const uint32_t layer = moec_config_moe_layer(&ck->config, ordinal);
        for (uint32_t expert = 0; expert < n_expert; expert++)
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
                if (p == MOEC_PROJECTION_GATE && ck->config.mlp.plain)
                    continue;
                const struct moec_checkpoint_tensor tensor =
                    moec_checkpoint_expert_tensor(ck, layer, ordinal, expert, (enum moec_projection)p);
                MOEC_TRY(locate_expert(ck, tensor, (enum moec_projection)p, is_first, err));
                is_first = false;
                is_mxfp4 = is_mxfp4 && view_is_mxfp4(tensor.view);
            }
    }
    if (is_mxfp4 && moec_mxfp4_fits(ck->config.n_ff_expert, ck->config.n_embd))
        ck->config.expert_dtype = MOEC_DTYPE_MXFP4;
    ck->expert_bytes = ck->weight_bytes - dense_bytes;
    return MOEC_OK;
}

/* ---- copies of the embedding ---- */

/* Whether a tensor holds the same weights as the embedding. */
static enum moec_status compare_embedding(struct moec_checkpoint *ck, const char *name, bool *same,
                                          struct moec_error *err)
{
    enum { PIECE = 1 << 16 };
    const struct moec_checkpoint_tensor embedding =
        moec_checkpoint_dense_tensor(ck, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE);
    struct moec_tensor_view copy = {0};
    const struct moec_checkpoint_tensor tensor = {.pattern = name, .layer = MOEC_LAYER_NONE, .view = &copy};
    const struct moec_tensor_source *source = ck->source;
    void *memory = NULL;
    MOEC_TRY(locate(ck, &tensor, (struct moec_tensor_layout){0}, embedding.view->rows,
                    embedding.view->columns, err));
    enum moec_status status = MOEC_OK;
    const uint64_t n_bytes = moec_tensor_view_bytes(embedding.view);
    MOEC_TRY(moec_alloc(&memory, 2, PIECE, "a read buffer", err));
    uint8_t *ours = memory, *theirs = ours + PIECE;
    bool is_same = copy.tensor.coding == embedding.view->tensor.coding;
    for (uint64_t done = 0; is_same && done < n_bytes;) {
        const size_t n = n_bytes - done < PIECE ? (size_t)(n_bytes - done) : PIECE;
        MOEC_TRY_OUT(source->read(source, embedding.view->tensor.file, embedding.view->tensor.offset + done,
                                  ours, n, err));
        MOEC_TRY_OUT(source->read(source, copy.tensor.file, copy.tensor.offset + done, theirs, n, err));
        is_same = memcmp(ours, theirs, n) == 0;
        done += n;
    }
    *same = is_same;
out:
    free(memory);
    return status;
}

/* Copies of the embedding must be copies: the engine has one. */
static enum moec_status check_embedding_copy(struct moec_checkpoint *ck, const char *name,
                                             struct moec_error *err)
{
    bool is_same = false;
    MOEC_TRY(compare_embedding(ck, name, &is_same, err));
    if (!is_same)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the checkpoint '%s' has different weights in tensors '%s' and '%s', expected the same "
            "embedding in both",
            ck->folder, name, moec_checkpoint_dense_tensor(ck, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE).pattern);
    return MOEC_OK;
}

/* A head of its own beside 'tie_word_embeddings' true: where it differs from the embedding, transformers uses
 * it. */
static enum moec_status untie_head(struct moec_checkpoint *ck, struct moec_error *err)
{
    const char *name = ck->family.names[MOEC_ROLE_HEAD];
    const uint64_t n_bytes = ck->weight_bytes;
    bool is_same = true;
    if (!ck->config.head.is_tied || name == NULL || ck->lacks_weights ||
        !has_tensor(ck, name, MOEC_LAYER_NONE))
        return MOEC_OK;
    MOEC_TRY(compare_embedding(ck, name, &is_same, err));
    ck->weight_bytes = n_bytes;
    if (is_same)
        return MOEC_OK;
    ck->config.head.is_tied = false;
    return locate_dense(ck, MOEC_ROLE_HEAD, MOEC_LAYER_NONE, err);
}

static enum moec_status check_embedding_copies(struct moec_checkpoint *ck, struct moec_error *err)
{
    const char *const *name = ck->family.embedding_copies;
    struct moec_tensor found;
    for (; !ck->lacks_weights && name != NULL && *name != NULL; name++)
        if (ck->source->find(ck->source, *name, &found))
            MOEC_TRY(check_embedding_copy(ck, *name, err));
    return MOEC_OK;
}

/* Where the first layer with latents has them so, all have. */
static bool has_split_latents(const struct moec_checkpoint *ck)
{
    const char *const *names = ck->family.names;
    uint32_t layer = 0;
    while (layer < ck->config.n_layer && moec_config_layer(&ck->config, layer)->latent_dim == 0)
        layer++;
    return ck->is_gguf && layer < ck->config.n_layer && !has_tensor(ck, names[MOEC_ROLE_KV_UP], layer) &&
           has_tensor(ck, names[MOEC_ROLE_K], layer);
}

enum moec_status moec_checkpoint_locate(struct moec_checkpoint *ck, struct moec_error *err)
{
    const char *embedding = ck->family.names[MOEC_ROLE_EMBEDDING];
    if (ck->family.outer_type != NULL && !has_tensor(ck, embedding, MOEC_LAYER_NONE)) {
        ck->is_enclosed = true;
        ck->is_enclosed = has_tensor(ck, embedding, MOEC_LAYER_NONE);
        ck->is_inner = !ck->is_enclosed;
    }
    ck->has_split_latents = has_split_latents(ck);
    MOEC_TRY(locate_all_dense(ck, err));
    MOEC_TRY(untie_head(ck, err));
    MOEC_TRY(locate_all_experts(ck, err));
    return check_embedding_copies(ck, err);
}
