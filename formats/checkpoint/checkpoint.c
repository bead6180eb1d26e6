#include "formats/checkpoint/checkpoint_internal.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/generation_json.h"
#include "formats/json/json.h"
#include "formats/tokenizer/folder_tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX_BYTES ((uint64_t)16 << 20)
#define INDEX_MAX_BYTES  ((uint64_t)256 << 20)
#define MAX_SHARDS       1000
#define ROWS             MOEC_TRANSPOSE_NEURONS /* rows that are converted at a time */

/* A tensor by its place in the model, enough to name it in a message. */
struct tensor {
    const char *pattern;
    uint32_t layer;
    uint32_t expert;
    uint32_t rows; /* as in the file */
    uint32_t columns;
    struct moec_tensor_location at;
};

/* ---- files of a folder ---- */

static enum moec_status exists_in(const char *folder, const char *name, bool *exists, struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_path_join(&path, folder, name, err));
    *exists = moec_path_exists(path);
    free(path);
    return MOEC_OK;
}

/* Loads and parses a JSON file of the folder; `*where` is its path in quotes, owned by the caller. */
static enum moec_status load_json(const char *folder, const char *name, uint64_t limit_bytes,
                                  struct moec_json **root, char **where, struct moec_error *err)
{
    char *path = NULL, *bytes = NULL, *quoted = NULL;
    size_t n_bytes = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_path_join(&path, folder, name, err));
    MOEC_TRY_OUT(moec_file_load(path, limit_bytes, &bytes, &n_bytes, err));
    if (asprintf(&quoted, "'%s'", path) < 0) {
        quoted = NULL;
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: name of '%s'", path);
        goto out;
    }
    MOEC_TRY_OUT(moec_json_parse(bytes, n_bytes, (size_t)limit_bytes, path, root, err));
    *where = quoted;
    quoted = NULL;
out:
    free(path);
    free(bytes);
    free(quoted);
    return status;
}

/* Targets that are scored begin with config.json's token, those that are generated with this file's. */
static enum moec_status check_start(const struct moec_json *root, const char *where,
                                    const struct moec_config *config, struct moec_error *err)
{
    uint64_t start = config->decoder_start_id;
    if (!moec_config_is_encoder_decoder(config))
        return MOEC_OK;
    MOEC_TRY(moec_json_get_u64_or(root, where, "decoder_start_token_id", 0, UINT32_MAX, start, &start, err));
    if (start != config->decoder_start_id)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'decoder_start_token_id' %" PRIu64 ", and config.json %" PRIu32
                         ": only one is supported",
                         where, start, config->decoder_start_id);
    return MOEC_OK;
}

static enum moec_status load_config(struct moec_checkpoint *ck, struct moec_error *err)
{
    struct moec_json *root = NULL;
    char *where = NULL;
    bool has_generation = false, from_config = false;
    enum moec_status status = load_json(ck->folder, "config.json", CONFIG_MAX_BYTES, &root, &where, err);
    if (status != MOEC_OK)
        goto out;
    MOEC_TRY_OUT(moec_family_read_config(root, where, &ck->family, &ck->config, err));
    ck->generation = moec_generation_default();
    MOEC_TRY_OUT(moec_generation_read(root, where, ck->config.n_vocab, &ck->generation, err));
    MOEC_TRY_OUT(exists_in(ck->folder, "generation_config.json", &has_generation, err));
    if (!has_generation)
        goto out;
    moec_json_free(root);
    free(where);
    root = NULL;
    where = NULL;
    MOEC_TRY_OUT(load_json(ck->folder, "generation_config.json", CONFIG_MAX_BYTES, &root, &where, err));
    MOEC_TRY_OUT(moec_family_read_eos(root, where, &ck->config, err));
    MOEC_TRY_OUT(check_start(root, where, &ck->config, err));
    /* A file of its own takes the place of what config.json says, unless it was made of that. */
    MOEC_TRY_OUT(moec_json_get_bool_or(root, where, "_from_model_config", false, &from_config, err));
    if (!from_config)
        ck->generation = moec_generation_default();
    MOEC_TRY_OUT(moec_generation_read(root, where, ck->config.n_vocab, &ck->generation, err));
out:
    moec_json_free(root);
    free(where);
    return status;
}

static enum moec_status load_tokenizer(struct moec_checkpoint *ck, struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_folder_tokenizer_load(ck->folder, &ck->tokenizer, &ck->tokenizer_files, err));
    if (ck->tokenizer_files[0] == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_path_join(&path, ck->folder, ck->tokenizer_files[0], err));
    enum moec_status status = moec_tokenizer_model_fits(&ck->tokenizer, ck->config.n_vocab, path, err);
    free(path);
    return status;
}

/* ---- shards ---- */

static enum moec_status open_shard(struct moec_checkpoint *ck, const char *name, struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_path_join(&path, ck->folder, name, err));
    enum moec_status status = moec_safetensors_open(&ck->shards[ck->n_shards], path, err);
    if (status == MOEC_OK)
        ck->n_shards++;
    free(path);
    return status;
}

/* A shard's name comes from a file that somebody sent: it must not lead out of the folder. */
static enum moec_status check_shard_name(const char *name, const char *where, struct moec_error *err)
{
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || strchr(name, '\\') != NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s names the shard '%.200s', expected a plain file name",
                         where, name);
    return MOEC_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Distinct shard names of an index, sorted; borrowed from `map`. */
static enum moec_status list_shards(const struct moec_json *map, const char *where, const char ***names,
                                    size_t *n_names, struct moec_error *err)
{
    void *list = NULL;
    size_t count = 0;
    MOEC_TRY(moec_alloc(&list, moec_json_length(map), sizeof **names, "list of shards", err));
    const char **all = list;
    enum moec_status status = MOEC_OK;
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        char what[512];
        (void)snprintf(what, sizeof what, "shard of tensor '%.160s' in %.300s", m.key, where);
        MOEC_TRY_OUT(moec_json_as_string(m.value, what, &all[count], NULL, err));
        MOEC_TRY_OUT(check_shard_name(all[count], where, err));
        count++;
    }
    qsort(all, count, sizeof *all, compare_names);
    size_t distinct = 0;
    for (size_t i = 0; i < count; i++)
        if (distinct == 0 || strcmp(all[distinct - 1], all[i]) != 0)
            all[distinct++] = all[i];
    if (distinct == 0 || distinct > MAX_SHARDS) {
        status = moec_fail(err, MOEC_ERR_FORMAT, "%s names %zu shards, expected 1..%d", where, distinct,
                           MAX_SHARDS);
        goto out;
    }
    *names = all;
    *n_names = distinct;
    list = NULL;
out:
    free(list);
    return status;
}

/* Every tensor that the index names must be in the shard that it names. */
static enum moec_status check_index(const struct moec_checkpoint *ck, const struct moec_json *map,
                                    const char **names, const char *where, struct moec_error *err)
{
    for (struct moec_json_member m = moec_json_first(map); m.key != NULL; m = moec_json_next(map, m)) {
        const char *shard = NULL;
        MOEC_TRY(moec_json_as_string(m.value, where, &shard, NULL, err));
        const char **found = bsearch(&shard, names, ck->n_shards, sizeof *names, compare_names);
        if (found == NULL || moec_safetensors_find(&ck->shards[found - names], m.key) == NULL)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "%s says that tensor '%.200s' is in '%.200s', which does not have it", where,
                             m.key, shard);
    }
    return MOEC_OK;
}

static enum moec_status open_index(struct moec_checkpoint *ck, struct moec_error *err)
{
    struct moec_json *root = NULL;
    const struct moec_json *map = NULL;
    const char **names = NULL;
    char *where = NULL;
    size_t n_names = 0;
    void *shards = NULL;
    enum moec_status status =
        load_json(ck->folder, "model.safetensors.index.json", INDEX_MAX_BYTES, &root, &where, err);
    if (status != MOEC_OK)
        goto out;
    MOEC_TRY_OUT(moec_json_get(root, where, "weight_map", MOEC_JSON_OBJECT, &map, err));
    MOEC_TRY_OUT(list_shards(map, where, &names, &n_names, err));
    MOEC_TRY_OUT(moec_alloc(&shards, n_names, sizeof *ck->shards, "table of shards", err));
    ck->shards = shards;
    for (size_t i = 0; i < n_names; i++) {
        status = open_shard(ck, names[i], err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(err, "shard %zu of %zu in %s", i + 1, n_names, where);
            goto out;
        }
    }
    MOEC_TRY_OUT(check_index(ck, map, names, where, err));
out:
    moec_json_free(root);
    free(where);
    free(names);
    return status;
}

static enum moec_status fail_no_weights(const struct moec_checkpoint *ck, struct moec_error *err)
{
    static const char *const pickled[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < 2; i++) {
        bool exists = false;
        MOEC_TRY(exists_in(ck->folder, pickled[i], &exists, err));
        if (exists)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "'%s' has its weights in '%s', which can run code when it is read and is not supported: "
                "convert it with transformers (load the model, then save_pretrained(..., "
                "safe_serialization=True)) and point to the new folder",
                ck->folder, pickled[i]);
    }
    return moec_fail(err, MOEC_ERR_NOT_FOUND,
                     "'%s' has no weights, expected 'model.safetensors' or 'model.safetensors.index.json'",
                     ck->folder);
}

static enum moec_status open_weights(struct moec_checkpoint *ck, struct moec_error *err)
{
    bool single = false;
    void *shards = NULL;
    MOEC_TRY(exists_in(ck->folder, "model.safetensors", &single, err));
    MOEC_TRY(exists_in(ck->folder, "model.safetensors.index.json", &ck->has_index, err));
    if (!single && !ck->has_index)
        return fail_no_weights(ck, err);
    if (!single)
        return open_index(ck, err);
    ck->has_index = false; /* transformers prefers the single file too */
    MOEC_TRY(moec_alloc(&shards, 1, sizeof *ck->shards, "table of shards", err));
    ck->shards = shards;
    return open_shard(ck, "model.safetensors", err);
}

/* ---- locating tensors ---- */

static enum moec_status fail_missing(const struct moec_checkpoint *ck, const char *name,
                                     struct moec_error *err)
{
    if (ck->n_shards == 1)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s' has no tensor '%s', which '%s' models need",
                         ck->shards[0].file.path, name, ck->family->model_type);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "none of the %u shards in '%s' has tensor '%s', which '%s' models need", ck->n_shards,
                     ck->folder, name, ck->family->model_type);
}

/* Finds a tensor and checks dtype and shape; fills `tensor->at`. */
static enum moec_status locate(struct moec_checkpoint *ck, struct tensor *tensor, struct moec_error *err)
{
    char name[MOEC_TENSOR_NAME_BYTES], found_text[192], wanted_text[192];
    const struct moec_safetensors_entry *entry = NULL;
    uint32_t shard = 0;
    (void)moec_family_tensor_name(tensor->pattern, &ck->config, tensor->layer, tensor->expert, name);
    for (; shard < ck->n_shards; shard++) {
        entry = moec_safetensors_find(&ck->shards[shard], name);
        if (entry != NULL)
            break;
    }
    if (entry == NULL)
        return fail_missing(ck, name, err);
    const char *path = ck->shards[shard].file.path;
    if (entry->dtype == MOEC_DTYPE_COUNT)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "tensor '%s' in '%s' at offset %" PRIu64 " has dtype %s, expected BF16, F16 or F32",
                         name, path, entry->offset, entry->dtype_name);
    /* A matrix of one row is a vector in files, but for the shared expert's gate; both are accepted for it.
     */
    uint64_t matrix[2] = {tensor->rows, tensor->columns};
    const uint64_t *wanted = tensor->rows == 1 && entry->n_dims == 1 ? matrix + 1 : matrix;
    uint32_t wanted_dims = wanted == matrix ? 2 : 1;
    if (entry->n_dims != wanted_dims || memcmp(entry->shape, wanted, wanted_dims * sizeof *wanted) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "tensor '%s' in '%s' at offset %" PRIu64 " has shape %s, expected %s", name, path,
                         entry->offset, moec_safetensors_shape_text(entry->shape, entry->n_dims, found_text),
                         tensor->rows == 1 ? moec_safetensors_shape_text(matrix + 1, 1, wanted_text)
                                           : moec_safetensors_shape_text(matrix, 2, wanted_text));
    tensor->at =
        (struct moec_tensor_location){.shard = shard, .dtype = entry->dtype, .offset = entry->offset};
    ck->weight_bytes += entry->n_bytes;
    return MOEC_OK;
}

/* Index into `dense`. */
static size_t dense_index(const struct moec_checkpoint *ck, enum moec_role role, uint32_t layer)
{
    return (size_t)(layer == MOEC_LAYER_NONE ? ck->config.n_layer : layer) * MOEC_ROLE_COUNT + role;
}

/* A dense tensor as it lies in the file. */
static struct tensor dense_tensor(const struct moec_checkpoint *ck, enum moec_role role, uint32_t layer)
{
    struct tensor tensor = {.pattern = moec_family_pattern(ck->family, &ck->config, role, layer),
                            .layer = layer};
    moec_role_shape(&ck->config, role, &tensor.rows, &tensor.columns);
    if (moec_role_is_transposed(role)) {
        uint32_t rows = tensor.rows;
        tensor.rows = tensor.columns;
        tensor.columns = rows;
    }
    tensor.at = ck->dense[dense_index(ck, role, layer)];
    return tensor;
}

static struct tensor expert_tensor(const struct moec_checkpoint *ck, uint32_t layer, uint32_t ordinal,
                                   uint32_t expert, enum moec_projection projection)
{
    size_t index = ((size_t)ordinal * ck->config.n_expert + expert) * MOEC_PROJECTION_COUNT + projection;
    bool down = projection == MOEC_PROJECTION_DOWN;
    return (struct tensor){.pattern = moec_family_expert_pattern(ck->family, &ck->config, projection, layer),
                           .layer = layer,
                           .expert = expert,
                           .rows = down ? ck->config.n_embd : ck->config.n_ff_expert,
                           .columns = down ? ck->config.n_ff_expert : ck->config.n_embd,
                           .at = ck->experts[index]};
}

static enum moec_status locate_dense(struct moec_checkpoint *ck, struct moec_error *err)
{
    void *table = NULL;
    MOEC_TRY(moec_alloc(&table, ((uint64_t)ck->config.n_layer + 1) * MOEC_ROLE_COUNT, sizeof *ck->dense,
                        "table of dense tensors", err));
    ck->dense = table;
    for (uint32_t i = 0; i <= ck->config.n_layer; i++) {
        uint32_t layer = i < ck->config.n_layer ? i : MOEC_LAYER_NONE;
        for (int role = 0; role < MOEC_ROLE_COUNT; role++) {
            if (!moec_role_expected(&ck->config, (enum moec_role)role, layer))
                continue;
            struct tensor tensor = dense_tensor(ck, (enum moec_role)role, layer);
            MOEC_TRY(locate(ck, &tensor, err));
            ck->dense[dense_index(ck, (enum moec_role)role, layer)] = tensor.at;
        }
    }
    return MOEC_OK;
}

static enum moec_status locate_experts(struct moec_checkpoint *ck, struct moec_error *err)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    void *table = NULL;
    uint32_t moe = moec_config_moe_count(&ck->config);
    uint64_t dense_bytes = ck->weight_bytes;
    bool is_known = false; /* the dtype of the first */
    MOEC_TRY(moec_alloc(&table, (uint64_t)moe * ck->config.n_expert * MOEC_PROJECTION_COUNT,
                        sizeof *ck->experts, "table of experts", err));
    ck->experts = table;
    struct moec_tensor_location *next = ck->experts;
    for (uint32_t ordinal = 0; ordinal < moe; ordinal++) {
        uint32_t layer = moec_config_moe_layer(&ck->config, ordinal);
        for (uint32_t expert = 0; expert < ck->config.n_expert; expert++) {
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
                char name[MOEC_TENSOR_NAME_BYTES];
                struct moec_tensor_location *place = next++;
                if (p == MOEC_PROJECTION_GATE && ck->config.plain_mlp)
                    continue;
                struct tensor tensor = expert_tensor(ck, layer, ordinal, expert, (enum moec_projection)p);
                MOEC_TRY(locate(ck, &tensor, err));
                if (!is_known)
                    ck->config.expert_dtype = (uint8_t)tensor.at.dtype;
                if (tensor.at.dtype != ck->config.expert_dtype)
                    return moec_fail(
                        err, MOEC_ERR_UNSUPPORTED,
                        "tensor '%s' in '%s' at offset %" PRIu64
                        " has dtype %s but earlier experts have %s, expected one dtype for all experts",
                        moec_family_tensor_name(tensor.pattern, &ck->config, layer, expert, name),
                        ck->shards[tensor.at.shard].file.path, tensor.at.offset, names[tensor.at.dtype],
                        names[ck->config.expert_dtype]);
                *place = tensor.at;
                is_known = true;
            }
        }
    }
    ck->expert_bytes = ck->weight_bytes - dense_bytes;
    return MOEC_OK;
}

/* Copies of the embedding must be copies: the engine has one. */
static enum moec_status check_embedding_copy(struct moec_checkpoint *ck, const char *name,
                                             struct moec_error *err)
{
    enum { PIECE = 1 << 16 };
    struct tensor embedding = dense_tensor(ck, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE), copy = embedding;
    void *memory = NULL;
    copy.pattern = name;
    MOEC_TRY(locate(ck, &copy, err));
    enum moec_status status = MOEC_OK;
    const uint64_t n_bytes =
        (uint64_t)embedding.rows * embedding.columns * (embedding.at.dtype == MOEC_DTYPE_F32 ? 4 : 2);
    MOEC_TRY(moec_alloc(&memory, 2, PIECE, "a read buffer", err));
    uint8_t *ours = memory, *theirs = ours + PIECE;
    bool is_same = copy.at.dtype == embedding.at.dtype;
    for (uint64_t done = 0; is_same && done < n_bytes;) {
        const size_t n = n_bytes - done < PIECE ? (size_t)(n_bytes - done) : PIECE;
        MOEC_TRY_OUT(
            moec_file_read(&ck->shards[embedding.at.shard].file, embedding.at.offset + done, ours, n, err));
        MOEC_TRY_OUT(moec_file_read(&ck->shards[copy.at.shard].file, copy.at.offset + done, theirs, n, err));
        is_same = memcmp(ours, theirs, n) == 0;
        done += n;
    }
    if (!is_same)
        status = moec_fail(err, MOEC_ERR_UNSUPPORTED,
                           "'%s' has other weights in tensor '%s' than in '%s', expected one embedding",
                           ck->folder, name, embedding.pattern);
out:
    free(memory);
    return status;
}

static enum moec_status check_embedding_copies(struct moec_checkpoint *ck, struct moec_error *err)
{
    const char *const *name = ck->family->embedding_copies;
    for (; name != NULL && *name != NULL; name++)
        for (uint32_t shard = 0; shard < ck->n_shards; shard++)
            if (moec_safetensors_find(&ck->shards[shard], *name) != NULL) {
                MOEC_TRY(check_embedding_copy(ck, *name, err));
                break;
            }
    return MOEC_OK;
}

/* ---- opening ---- */

enum moec_status moec_checkpoint_open(const char *folder, struct moec_checkpoint **out,
                                      struct moec_error *err)
{
    void *memory = NULL;
    if (!moec_path_exists(folder))
        return moec_fail(err, MOEC_ERR_NOT_FOUND, "checkpoint '%s' does not exist", folder);
    if (!moec_path_is_folder(folder))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "checkpoint '%s' is a file, expected a folder with config.json and safetensors",
                         folder);
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_checkpoint), "checkpoint", err));
    struct moec_checkpoint *ck = memory;
    (void)pthread_mutex_init(&ck->lock, NULL);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_strndup(&ck->folder, folder, strlen(folder), err));
    MOEC_TRY_OUT(load_config(ck, err));
    MOEC_TRY_OUT(open_weights(ck, err));
    MOEC_TRY_OUT(locate_dense(ck, err));
    MOEC_TRY_OUT(locate_experts(ck, err));
    MOEC_TRY_OUT(check_embedding_copies(ck, err));
    for (uint32_t i = 0; i < ck->n_shards; i++)
        moec_safetensors_forget(&ck->shards[i]);
    MOEC_TRY_OUT(load_tokenizer(ck, err));
    *out = ck;
    ck = NULL;
out:
    moec_checkpoint_close(ck);
    return status;
}

void moec_checkpoint_close(struct moec_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (uint32_t i = 0; i < checkpoint->n_shards; i++)
        moec_safetensors_close(&checkpoint->shards[i]);
    free(checkpoint->shards);
    free(checkpoint->dense);
    free(checkpoint->experts);
    free(checkpoint->folder);
    moec_tokenizer_model_release(&checkpoint->tokenizer);
    (void)pthread_mutex_destroy(&checkpoint->lock);
    free(checkpoint);
}

const struct moec_config *moec_checkpoint_config(const struct moec_checkpoint *checkpoint)
{
    return &checkpoint->config;
}

const struct moec_generation *moec_checkpoint_generation(const struct moec_checkpoint *checkpoint)
{
    return &checkpoint->generation;
}

const struct moec_tokenizer_model *moec_checkpoint_tokenizer(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->tokenizer_files[0] != NULL ? &checkpoint->tokenizer : NULL;
}

const char *moec_checkpoint_folder(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->folder;
}

uint64_t moec_checkpoint_weight_bytes(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->weight_bytes;
}

uint64_t moec_checkpoint_expert_bytes(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->expert_bytes;
}

/* ---- reading weights ---- */

static size_t dtype_bytes(uint32_t dtype)
{
    return dtype == MOEC_DTYPE_F32 ? 4 : 2;
}

/* Reads rows [first, first + count) of a tensor as they are stored and refuses NaN and infinity. */
static enum moec_status read_raw(const struct moec_checkpoint *ck, const struct tensor *tensor, size_t first,
                                 size_t count, uint8_t *raw, struct moec_error *err)
{
    const struct moec_file *file = &ck->shards[tensor->at.shard].file;
    size_t item = dtype_bytes(tensor->at.dtype), n = count * tensor->columns;
    uint64_t offset = tensor->at.offset + (uint64_t)first * tensor->columns * item;
    struct moec_codec codec = {.dtype = (uint8_t)tensor->at.dtype};
    char name[MOEC_TENSOR_NAME_BYTES];
    (void)moec_family_tensor_name(tensor->pattern, &ck->config, tensor->layer, tensor->expert, name);
    enum moec_status status = moec_file_read(file, offset, raw, n * item, err);
    if (status != MOEC_OK) {
        (void)moec_error_prefix(err, "tensor '%s'", name);
        return status;
    }
    if (moec_codec_row_is_finite(codec, raw, n))
        return MOEC_OK;
    size_t bad = 0;
    while (moec_codec_row_is_finite(codec, raw + bad * item, 1))
        bad++;
    float value = 0;
    moec_codec_decode_row(codec, raw + bad * item, 1, &value);
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "tensor '%s' in '%s' has %s at [%zu, %zu] (offset %" PRIu64 "), expected finite numbers",
                     name, file->path, value != value ? "NaN" : "infinity", first + bad / tensor->columns,
                     bad % tensor->columns, offset + bad * item);
}

/* Reads a whole tensor as F32. The raw bytes are read into the end of `out` and converted from the front: a
 * piece is copied away before its place is overwritten. */
static enum moec_status read_f32(const struct moec_checkpoint *ck, const struct tensor *tensor, float *out,
                                 struct moec_error *err)
{
    enum { PIECE = 2048 };
    uint8_t piece[4 * PIECE];
    struct moec_codec codec = {.dtype = (uint8_t)tensor->at.dtype};
    size_t item = dtype_bytes(tensor->at.dtype), n = (size_t)tensor->rows * tensor->columns;
    uint8_t *raw = (uint8_t *)out + n * (sizeof *out - item);
    MOEC_TRY(read_raw(ck, tensor, 0, tensor->rows, raw, err));
    for (size_t i = 0; i < n; i += PIECE) {
        size_t count = n - i < PIECE ? n - i : PIECE;
        memcpy(piece, raw + i * item, count * item);
        moec_codec_decode_row(codec, piece, count, out + i);
    }
    return MOEC_OK;
}

static enum moec_status encode_block(const struct moec_checkpoint *ck, const struct tensor *tensor,
                                     struct moec_codec codec, const float *weights, size_t first,
                                     size_t count, size_t columns, uint8_t *rows, size_t stride_bytes,
                                     struct moec_error *err)
{
    char name[MOEC_TENSOR_NAME_BYTES];
    for (size_t i = 0; i < count; i++) {
        enum moec_status status =
            moec_codec_encode_row(codec, weights + i * columns, columns, rows + i * stride_bytes, err);
        if (status != MOEC_OK) {
            (void)moec_error_prefix(
                err, "tensor '%s' in '%s', offset %" PRIu64 ", row %zu",
                moec_family_tensor_name(tensor->pattern, &ck->config, tensor->layer, tensor->expert, name),
                ck->shards[tensor->at.shard].file.path, tensor->at.offset, first + i);
            return status;
        }
    }
    return MOEC_OK;
}

/* Encodes rows from .. end - 1 of a tensor (columns when `transposed`) one after the other, stride_bytes
 * apart. Scratch: see scratch_bytes. */
static enum moec_status encode_rows(const struct moec_checkpoint *ck, const struct tensor *tensor,
                                    struct moec_codec codec, bool transposed, size_t from, size_t end,
                                    uint8_t *rows, size_t stride_bytes, void *scratch, struct moec_error *err)
{
    size_t columns = transposed ? tensor->rows : tensor->columns;
    struct moec_codec source = {.dtype = (uint8_t)tensor->at.dtype};
    size_t row_bytes = columns * dtype_bytes(tensor->at.dtype);
    bool as_stored = !transposed && codec.dtype == tensor->at.dtype;
    float *weights = scratch;
    uint8_t *raw = (uint8_t *)(weights + ROWS * columns);
    if (as_stored && stride_bytes == row_bytes)
        return read_raw(ck, tensor, from, end - from, rows, err);
    if (transposed)
        MOEC_TRY(read_raw(ck, tensor, 0, tensor->rows, raw, err));
    for (size_t first = from; first < end; first += ROWS) {
        size_t count = end - first < ROWS ? end - first : ROWS;
        uint8_t *out = rows + (first - from) * stride_bytes;
        if (transposed) {
            moec_transpose_to_f32((enum moec_dtype)tensor->at.dtype, raw, columns, tensor->columns, first,
                                  count, weights);
        } else {
            MOEC_TRY(read_raw(ck, tensor, first, count, raw, err));
            if (as_stored) {
                for (size_t i = 0; i < count; i++)
                    memcpy(out + i * stride_bytes, raw + i * row_bytes, row_bytes);
                continue;
            }
            moec_codec_decode_row(source, raw, count * columns, weights);
        }
        MOEC_TRY(encode_block(ck, tensor, codec, weights, first, count, columns, out, stride_bytes, err));
    }
    return MOEC_OK;
}

static enum moec_status encode_tensor(const struct moec_checkpoint *ck, const struct tensor *tensor,
                                      struct moec_codec codec, bool transposed, uint8_t *rows,
                                      size_t stride_bytes, void *scratch, struct moec_error *err)
{
    return encode_rows(ck, tensor, codec, transposed, 0, transposed ? tensor->columns : tensor->rows, rows,
                       stride_bytes, scratch, err);
}

/* F32 of one block of rows, then raw bytes: a block of rows, or the whole tensor when it is transposed. */
static uint64_t scratch_bytes(const struct tensor *tensor, bool transposed)
{
    uint64_t columns = transposed ? tensor->rows : tensor->columns;
    uint64_t raw_rows = transposed ? tensor->columns : ROWS;
    if (raw_rows < ROWS)
        raw_rows = ROWS;
    return ROWS * columns * sizeof(float) + raw_rows * columns * dtype_bytes(tensor->at.dtype);
}

/* ---- dense weights ---- */

struct dense_choice {
    const struct moec_checkpoint *ck;
    const struct moec_codec *quantised; /* NULL: every tensor in its source dtype */
};

static struct moec_codec choose_dense_codec(void *context, enum moec_role role, uint32_t layer)
{
    const struct dense_choice *choice = context;
    const uint32_t dtype = choice->ck->dense[dense_index(choice->ck, role, layer)].dtype;
    const bool is_halved = choice->quantised != NULL && moec_codec_bits(*choice->quantised) == 16;
    if (choice->quantised != NULL && moec_role_is_quantisable(role) &&
        (!is_halved || dtype == MOEC_DTYPE_F32))
        return *choice->quantised;
    return (struct moec_codec){.dtype = (uint8_t)dtype};
}

struct dense_stream {
    struct moec_dense_source source; /* first: this is what others see */
    const struct moec_checkpoint *ck;
    void *scratch; /* owned; for the largest tensor */
};

static enum moec_status load_rows(struct moec_dense_source *self, const struct moec_dense_entry *entry,
                                  uint32_t first_row, uint32_t n_rows, uint8_t *rows, struct moec_error *err)
{
    const struct dense_stream *stream = (const struct dense_stream *)self;
    enum moec_role role = (enum moec_role)entry->role;
    struct tensor tensor = dense_tensor(stream->ck, role, entry->layer);
    return encode_rows(stream->ck, &tensor, entry->codec, moec_role_is_transposed(role), first_row,
                       (size_t)first_row + n_rows, rows, moec_codec_row_bytes(entry->codec, entry->columns),
                       stream->scratch, err);
}

static void free_stream(struct moec_dense_source *self)
{
    struct dense_stream *stream = (struct dense_stream *)self;
    free(stream->scratch);
    free(stream);
}

enum moec_status moec_checkpoint_stream_dense(const struct moec_checkpoint *checkpoint, uint32_t dense_bits,
                                              uint32_t group, struct moec_dense *dense,
                                              struct moec_error *err)
{
    struct moec_codec codec;
    if (dense_bits != 16 && dense_bits != 8 && dense_bits != 4 && dense_bits != 3 && dense_bits != 2)
        return moec_fail(err, MOEC_ERR_USAGE, "dense weights at %u bits, expected 2, 3, 4, 8 or 16",
                         dense_bits);
    MOEC_TRY(moec_codec_for_bits(dense_bits, MOEC_SCHEME_SYMMETRIC, group, MOEC_DTYPE_BF16, &codec, err));
    return moec_checkpoint_stream_dense_as(checkpoint, dense_bits == 16 ? NULL : &codec, dense, err);
}

enum moec_status moec_checkpoint_stream_dense_as(const struct moec_checkpoint *checkpoint,
                                                 const struct moec_codec *codec, struct moec_dense *dense,
                                                 struct moec_error *err)
{
    struct dense_choice choice = {.ck = checkpoint, .quantised = codec};
    struct moec_dense made = {0};
    struct dense_stream *stream = NULL;
    uint64_t needed = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_dense_create_table(&checkpoint->config, choose_dense_codec, &choice, &made, err));
    for (uint32_t i = 0; i < made.n_entries; i++) {
        enum moec_role role = (enum moec_role)made.entries[i].role;
        struct tensor tensor = dense_tensor(checkpoint, role, made.entries[i].layer);
        uint64_t bytes = scratch_bytes(&tensor, moec_role_is_transposed(role));
        needed = bytes > needed ? bytes : needed;
    }
    MOEC_TRY_OUT(moec_alloc((void **)&stream, 1, sizeof *stream, "the source of dense weights", err));
    made.source = &stream->source;
    *stream = (struct dense_stream){.source = {.load = load_rows, .free = free_stream}, .ck = checkpoint};
    MOEC_TRY_OUT(moec_alloc_aligned(&stream->scratch, needed, 1, "buffer for dense weights", err));
    *dense = made;
    made = (struct moec_dense){0};
out:
    moec_dense_release(&made);
    return status;
}

enum moec_status moec_checkpoint_load_dense(const struct moec_checkpoint *checkpoint, uint32_t dense_bits,
                                            uint32_t group, struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    MOEC_TRY(moec_checkpoint_stream_dense(checkpoint, dense_bits, group, &made, err));
    enum moec_status status = moec_dense_load(&made, err);
    if (status != MOEC_OK)
        moec_dense_release(&made);
    else
        *dense = made;
    return status;
}

/* ---- experts ---- */

static enum moec_status find_expert(const struct moec_checkpoint *ck, uint32_t layer, uint32_t expert,
                                    uint32_t *ordinal, struct moec_error *err)
{
    int32_t found = moec_config_moe_ordinal(&ck->config, layer);
    if (found < 0 || expert >= ck->config.n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "'%s' has no expert %u in layer %u", ck->folder, expert, layer);
    *ordinal = (uint32_t)found;
    return MOEC_OK;
}

enum moec_status moec_checkpoint_load_expert(const struct moec_checkpoint *checkpoint, uint32_t layer,
                                             uint32_t expert, float *gate, float *up, float *down,
                                             struct moec_error *err)
{
    float *const out[MOEC_PROJECTION_COUNT] = {gate, up, down};
    uint32_t ordinal = 0;
    MOEC_TRY(find_expert(checkpoint, layer, expert, &ordinal, err));
    for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
        if (p == MOEC_PROJECTION_GATE && checkpoint->config.plain_mlp)
            continue;
        struct tensor tensor = expert_tensor(checkpoint, layer, ordinal, expert, (enum moec_projection)p);
        MOEC_TRY(read_f32(checkpoint, &tensor, out[p], err));
    }
    return MOEC_OK;
}

size_t moec_checkpoint_expert_scratch_bytes(const struct moec_checkpoint *checkpoint)
{
    uint32_t layer = moec_config_moe_layer(&checkpoint->config, 0);
    struct tensor up = expert_tensor(checkpoint, layer, 0, 0, MOEC_PROJECTION_UP);
    struct tensor down = expert_tensor(checkpoint, layer, 0, 0, MOEC_PROJECTION_DOWN);
    uint64_t rows = scratch_bytes(&up, false), columns = scratch_bytes(&down, true);
    return (size_t)(rows > columns ? rows : columns);
}

enum moec_status moec_checkpoint_encode_expert(const struct moec_checkpoint *checkpoint, uint32_t layer,
                                               uint32_t expert, const struct moec_record_layout *layout,
                                               void *scratch, uint8_t *record, struct moec_error *err)
{
    uint32_t ordinal = 0;
    MOEC_TRY(find_expert(checkpoint, layer, expert, &ordinal, err));
    if (layout->n_ff != checkpoint->config.n_ff_expert || layout->n_embd != checkpoint->config.n_embd ||
        layout->n_matrix != moec_config_mlp_matrices(&checkpoint->config))
        return moec_fail(err, MOEC_ERR_MISMATCH,
                         "record of %u matrices of %u neurons x %u, but experts of '%s' have %u of %u x %u",
                         layout->n_matrix, layout->n_ff, layout->n_embd, checkpoint->folder,
                         moec_config_mlp_matrices(&checkpoint->config), checkpoint->config.n_ff_expert,
                         checkpoint->config.n_embd);
    struct tensor up = expert_tensor(checkpoint, layer, ordinal, expert, MOEC_PROJECTION_UP);
    struct tensor gate = expert_tensor(checkpoint, layer, ordinal, expert, MOEC_PROJECTION_GATE);
    struct tensor down = expert_tensor(checkpoint, layer, ordinal, expert, MOEC_PROJECTION_DOWN);
    uint8_t *pairs = record + layout->up_bytes;
    size_t row_bytes = layout->row_bytes, pair_bytes = (layout->n_matrix - 1u) * row_bytes;
    MOEC_TRY(encode_tensor(checkpoint, &up, layout->codec, false, record, row_bytes, scratch, err));
    if (layout->n_matrix == 3) {
        MOEC_TRY(encode_tensor(checkpoint, &gate, layout->codec, false, pairs, pair_bytes, scratch, err));
        pairs += row_bytes;
    }
    return encode_tensor(checkpoint, &down, layout->codec, true, pairs, pair_bytes, scratch, err);
}
