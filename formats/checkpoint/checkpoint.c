/* Opening goes from the path to the weights: path, container, config, tensors, tokenizer, chat template.
 * Each step trusts what the one before has checked. The container's names are forgotten last, because views
 * of tensors hold all that reading needs. generation_config.json replaces what config.json says about
 * generation, unless it was made from config.json. */
#include "formats/checkpoint/checkpoint_internal.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/absent_weights.h"
#include "formats/checkpoint/checkpoint_chat.h"
#include "formats/checkpoint/folder_json.h"
#include "formats/checkpoint/gguf_model.h"
#include "formats/checkpoint/gguf_source.h"
#include "formats/checkpoint/model_path.h"
#include "formats/checkpoint/safetensors_source.h"
#include "formats/family/generation_json.h"
#include "formats/json/json.h"
#include "formats/tokenizer/folder_tokenizer.h"
#include "formats/tokenizer/gguf_tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_MAX_BYTES ((uint64_t)16 << 20)

/* ---- config and tokenizer ---- */

/* Targets that are scored begin with config.json's token, those that are generated with this file's. */
static enum moec_status check_start(const struct moec_json *root, const char *where,
                                    const struct moec_config *config, struct moec_error *err)
{
    uint64_t start = config->ids.decoder_start;
    if (!moec_config_is_encoder_decoder(config))
        return MOEC_OK;
    MOEC_TRY(moec_json_get_u64_or(root, where, "decoder_start_token_id", 0, UINT32_MAX, start, &start, err));
    if (start != config->ids.decoder_start)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'decoder_start_token_id' %" PRIu64 ", but config.json says %" PRIu32
                         ": expected the same id in both",
                         where, start, config->ids.decoder_start);
    return MOEC_OK;
}

static enum moec_status load_config(struct moec_checkpoint *ck, struct moec_error *err)
{
    struct moec_json *root = NULL;
    char *where = NULL;
    const struct moec_family *family = NULL;
    bool has_generation = false, from_config = false;
    enum moec_status status =
        moec_folder_load_json(ck->folder, "config.json", CONFIG_MAX_BYTES, &root, &where, err);
    if (status != MOEC_OK)
        goto out;
    MOEC_TRY_OUT(moec_family_read_config(root, where, &family, &ck->config, err));
    ck->family = *family;
    if (ck->lacks_weights)
        MOEC_TRY_OUT(moec_weight_types_read(root, where, &ck->types, err));
    ck->generation = moec_generation_default();
    MOEC_TRY_OUT(moec_generation_read(root, where, ck->config.n_vocab, &ck->generation, err));
    moec_generation_sampling(root, ck->sampling, sizeof ck->sampling);
    MOEC_TRY_OUT(moec_folder_has(ck->folder, "generation_config.json", &has_generation, err));
    if (!has_generation)
        goto out;
    moec_json_free(root);
    free(where);
    root = NULL;
    where = NULL;
    MOEC_TRY_OUT(
        moec_folder_load_json(ck->folder, "generation_config.json", CONFIG_MAX_BYTES, &root, &where, err));
    MOEC_TRY_OUT(moec_family_read_eos(root, where, &ck->config, err));
    MOEC_TRY_OUT(check_start(root, where, &ck->config, err));
    /* A file of its own takes the place of what config.json says, unless it was made of that. */
    MOEC_TRY_OUT(moec_json_get_bool_or(root, where, "_from_model_config", false, &from_config, err));
    if (!from_config)
        ck->generation = moec_generation_default();
    MOEC_TRY_OUT(moec_generation_read(root, where, ck->config.n_vocab, &ck->generation, err));
    moec_generation_sampling(root, ck->sampling, sizeof ck->sampling);
out:
    moec_json_free(root);
    free(where);
    return status;
}

/* What a GGUF file says, as the config.json of a folder would. */
static enum moec_status load_gguf_config(struct moec_checkpoint *ck, struct moec_error *err)
{
    struct moec_json *root = NULL;
    const struct moec_family *family = NULL;
    char *text = NULL, *where = NULL;
    enum moec_status status = moec_gguf_model_config(ck->source, &text, err);
    if (status == MOEC_OK && asprintf(&where, "the metadata of '%s'", ck->folder) < 0) {
        where = NULL;
        status = moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for the path of '%s'", ck->folder);
    }
    if (status == MOEC_OK)
        status = moec_json_parse(text, strlen(text), CONFIG_MAX_BYTES, where, &root, err);
    if (status == MOEC_OK)
        status = moec_family_read_config(root, where, &family, &ck->config, err);
    if (status == MOEC_OK) {
        ck->family = *family;
        ck->generation = moec_generation_default();
        moec_gguf_model_names(ck->source, &ck->family);
    }
    moec_json_free(root);
    free(text);
    free(where);
    return status;
}

static enum moec_status load_gguf_tokenizer(struct moec_checkpoint *ck, struct moec_error *err)
{
    const struct moec_gguf *header = moec_gguf_source_header(ck->source);
    MOEC_TRY(moec_gguf_tokenizer_read(header, &ck->tokenizer, &ck->has_tokenizer, err));
    return ck->has_tokenizer ? moec_tokenizer_model_fits(&ck->tokenizer, ck->config.n_vocab, ck->folder, err)
                             : MOEC_OK;
}

static enum moec_status load_tokenizer(struct moec_checkpoint *ck, struct moec_error *err)
{
    char *path = NULL;
    MOEC_TRY(moec_folder_tokenizer_load(ck->folder, ck->config.n_vocab, &ck->tokenizer, &ck->tokenizer_files,
                                        err));
    ck->has_tokenizer = ck->tokenizer_files[0] != NULL;
    if (!ck->has_tokenizer)
        return MOEC_OK;
    MOEC_TRY(moec_path_join(&path, ck->folder, ck->tokenizer_files[0], err));
    enum moec_status status = moec_tokenizer_model_fits(&ck->tokenizer, ck->config.n_vocab, path, err);
    free(path);
    return status;
}

/* ---- opening ---- */

static enum moec_status check_file(const char *path, struct moec_error *err)
{
    struct moec_file file;
    MOEC_TRY(moec_file_open(&file, path, err));
    moec_file_close(&file);
    if (moec_gguf_is(path))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "checkpoint '%s' is a file but not GGUF, expected a folder with config.json and "
                     "safetensors, or a GGUF file",
                     path);
}

/* Adds what the weights have to say. */
static enum moec_status finish_note(struct moec_checkpoint *ck, struct moec_error *err)
{
    char *joined = NULL;
    if (ck->source->note == NULL)
        return MOEC_OK;
    if (asprintf(&joined, "%s%s%s", ck->note != NULL ? ck->note : "", ck->note != NULL ? "; " : "",
                 ck->source->note) < 0)
        return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for a note on '%s'", ck->folder);
    free(ck->note);
    ck->note = joined;
    return MOEC_OK;
}

/* What is known of the weights of a folder that has none. */
static enum moec_status note_absence(struct moec_checkpoint *ck, struct moec_error *err)
{
    static const char *const names[] = {
        [MOEC_DTYPE_F32] = "float32", [MOEC_DTYPE_F16] = "float16", [MOEC_DTYPE_BF16] = "bfloat16"};
    static const char *const quantised[] = {[MOEC_STORAGE_PLAIN] = "",
                                            [MOEC_STORAGE_FP8] = ", linear layers in FP8",
                                            [MOEC_STORAGE_MXFP4] = ", experts in MXFP4"};
    if (asprintf(&ck->note,
                 "'%.300s' has no weights: sizes are computed from config.json for %s weights%s%s; "
                 "tensor names are %s",
                 ck->folder, names[ck->types.dtype], ck->types.is_said ? "" : " (it names no other type)",
                 quantised[ck->types.storage],
                 ck->source->index != NULL ? "those in the index"
                                           : "not checked, because there is no index") >= 0)
        return MOEC_OK;
    ck->note = NULL;
    return moec_fail(err, MOEC_ERR_MEMORY, "out of memory: no room for a note on '%s'", ck->folder);
}

static enum moec_status open_folder(struct moec_checkpoint *ck, bool needs_weights, struct moec_error *err)
{
    bool has_weights = true;
    if (!needs_weights)
        MOEC_TRY(moec_model_path_has_weights(ck->folder, &has_weights, err));
    ck->lacks_weights = !has_weights;
    MOEC_TRY(load_config(ck, err));
    if (has_weights)
        return moec_safetensors_source_open(ck->folder, &ck->source, err);
    MOEC_TRY(moec_absent_weights_open(ck->folder, &ck->source, err));
    free(ck->note);
    return note_absence(ck, err);
}

static enum moec_status open_checkpoint(const char *path, bool needs_weights, struct moec_checkpoint **out,
                                        struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_checkpoint), "checkpoint", err));
    struct moec_checkpoint *ck = memory;
    (void)pthread_mutex_init(&ck->lock, NULL);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(moec_model_path_find(path, needs_weights, &ck->folder, &ck->note, err));
    const char *folder = ck->folder;
    const bool is_gguf = !moec_path_is_folder(folder);
    ck->is_gguf = is_gguf;
    if (is_gguf)
        MOEC_TRY_OUT(check_file(folder, err));
    if (is_gguf) {
        MOEC_TRY_OUT(moec_gguf_source_open(folder, &ck->source, err));
        MOEC_TRY_OUT(load_gguf_config(ck, err));
    } else {
        MOEC_TRY_OUT(open_folder(ck, needs_weights, err));
    }
    MOEC_TRY_OUT(moec_checkpoint_locate(ck, err));
    MOEC_TRY_OUT(is_gguf ? load_gguf_tokenizer(ck, err) : load_tokenizer(ck, err));
    MOEC_TRY_OUT(is_gguf
                     ? moec_chat_source_read_gguf(moec_gguf_source_header(ck->source),
                                                  ck->has_tokenizer ? &ck->tokenizer : NULL, &ck->chat, err)
                     : moec_chat_source_read_folder(folder, &ck->chat, err));
    MOEC_TRY_OUT(finish_note(ck, err));
    ck->source->forget(ck->source);
    *out = ck;
    ck = NULL;
out:
    moec_checkpoint_close(ck);
    return status;
}

enum moec_status moec_checkpoint_open(const char *path, struct moec_checkpoint **out, struct moec_error *err)
{
    return open_checkpoint(path, true, out, err);
}

enum moec_status moec_checkpoint_open_config(const char *path, struct moec_checkpoint **out,
                                             struct moec_error *err)
{
    return open_checkpoint(path, false, out, err);
}

void moec_checkpoint_close(struct moec_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    if (checkpoint->source != NULL)
        checkpoint->source->free(checkpoint->source);
    free(checkpoint->dense);
    free(checkpoint->experts);
    free(checkpoint->folder);
    free(checkpoint->note);
    moec_tokenizer_model_release(&checkpoint->tokenizer);
    moec_chat_source_release(&checkpoint->chat);
    (void)pthread_mutex_destroy(&checkpoint->lock);
    free(checkpoint);
}

void moec_checkpoint_choose_rope(struct moec_checkpoint *checkpoint, uint32_t n_tokens)
{
    moec_config_choose_rope(&checkpoint->config, n_tokens);
}

bool moec_checkpoint_has_weights(const struct moec_checkpoint *checkpoint)
{
    return !checkpoint->lacks_weights;
}

void moec_checkpoint_set_frequent(struct moec_checkpoint *checkpoint, uint32_t n)
{
    checkpoint->config.n_frequent = n;
}

const struct moec_config *moec_checkpoint_config(const struct moec_checkpoint *checkpoint)
{
    return &checkpoint->config;
}

const struct moec_generation *moec_checkpoint_generation(const struct moec_checkpoint *checkpoint)
{
    return &checkpoint->generation;
}

const char *moec_checkpoint_sampling(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->sampling;
}

const struct moec_tokenizer_model *moec_checkpoint_tokenizer(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->has_tokenizer ? &checkpoint->tokenizer : NULL;
}

const char *moec_checkpoint_note(const struct moec_checkpoint *checkpoint)
{
    return checkpoint->note;
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

const struct moec_chat_source *moec_checkpoint_chat(const struct moec_checkpoint *checkpoint)
{
    return &checkpoint->chat;
}
