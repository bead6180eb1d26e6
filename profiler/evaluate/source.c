/* A checkpoint and a bundle as one thing. record_bytes[0] has the sizes of the experts, record_bytes[1]
 * those of low copies once they are served. A checkpoint makes low copies on demand; a bundle has them, and
 * its expert cache is made anew with both. */
#include "profiler/evaluate/source.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/gguf/gguf.h"
#include "profiler/evaluate/load_model.h"
#include "runtime/experts/low_copy.h"

#include <inttypes.h>
#include <string.h>

#define LOW_BITS 4 /* of a checkpoint's low copies, unless named */

/* Sizes of all of a checkpoint's records at these bits. */
static enum moec_status fill_bytes(const struct moec_source *source, uint32_t bits, uint64_t **bytes,
                                   struct moec_error *err)
{
    const uint64_t n = (uint64_t)moec_config_moe_count(source->config) * source->config->n_expert;
    MOEC_TRY(moec_alloc((void **)bytes, n, sizeof **bytes, "sizes of records", err));
    for (uint64_t i = 0; i < n; i++)
        (*bytes)[i] = moec_variants_record_bytes(source->variants, bits);
    return MOEC_OK;
}

static enum moec_status open_checkpoint(struct moec_source *source, uint64_t cache_bytes, int n_threads,
                                        uint32_t n_tokens, struct moec_error *err)
{
    MOEC_TRY(moec_checkpoint_open(source->path, &source->checkpoint, err));
    moec_checkpoint_choose_rope(source->checkpoint, n_tokens);
    source->config = moec_checkpoint_config(source->checkpoint);
    source->generation = moec_checkpoint_generation(source->checkpoint);
    source->tokenizer = moec_checkpoint_tokenizer(source->checkpoint);
    MOEC_TRY(moec_load_model(source->checkpoint, 16, 0, cache_bytes / 2, &source->model, err));
    MOEC_TRY(moec_variants_create(
        source->checkpoint, &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, cache_bytes, n_threads},
        &source->variants, err));
    source->experts = moec_variants_experts(source->variants);
    return fill_bytes(source, moec_variants_source_bits(source->variants), &source->record_bytes[0], err);
}

/* With a copy beside the assignment, where one is asked for. */
static enum moec_status open_cache(struct moec_source *source, const struct moec_cache_form *beside,
                                   struct moec_error *err)
{
    const struct moec_expert_cache_options options = {
        .buffer.n_bytes = source->cache_bytes,
        .records = {.beside = beside, .n_beside = beside != NULL, .io = {.io = MOEC_IO_AUTO_MAPPED}}};
    MOEC_TRY(moec_expert_cache_create(source->bundle, &options, &source->cache, err));
    source->experts = moec_expert_cache_experts(source->cache);
    return MOEC_OK;
}

static enum moec_status open_bundle(struct moec_source *source, uint64_t cache_bytes, uint32_t n_tokens,
                                    struct moec_error *err)
{
    struct moec_dense dense = {0};
    MOEC_TRY(moec_bundle_open(source->path, &source->bundle, err));
    struct moec_config config = source->bundle->config;
    moec_config_choose_rope(&config, n_tokens);
    source->config = &source->bundle->config;
    source->generation = &source->bundle->generation;
    source->tokenizer = source->bundle->tokenizer;
    MOEC_TRY(moec_bundle_load_dense(source->bundle, &dense, err));
    MOEC_TRY(moec_model_create(&config, &dense, &source->model, err));
    source->cache_bytes = cache_bytes;
    MOEC_TRY(moec_copy_record_bytes(source->bundle, 0, &source->record_bytes[0], err));
    return open_cache(source, NULL, err);
}

/* A checkpoint's copies are made on demand. */
static enum moec_status serve_variant(struct moec_source *source, uint32_t bits, struct moec_error *err)
{
    const uint32_t high = moec_variants_source_bits(source->variants);
    const uint32_t low = bits > 0 ? bits : LOW_BITS;
    if (low >= high)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "low-precision copies of experts at %" PRIu32 " bits are not smaller than the "
                         "experts of '%s' themselves, which have %" PRIu32 " bits: give fewer bits",
                         low, source->path, high);
    MOEC_TRY(moec_variants_serve_low(source->variants, low, err));
    return fill_bytes(source, low, &source->record_bytes[1], err);
}

enum moec_status moec_source_serve_low(struct moec_source *source, uint32_t bits, struct moec_error *err)
{
    struct moec_cache_form low = {0};
    free(source->record_bytes[1]);
    source->record_bytes[1] = NULL;
    if (source->bundle == NULL)
        return serve_variant(source, bits, err);
    MOEC_TRY(moec_low_copy_find(source->bundle, 0, bits, &low.form.copy, err));
    moec_expert_cache_free(source->cache);
    source->cache = NULL;
    MOEC_TRY(moec_copy_record_bytes(source->bundle, low.form.copy, &source->record_bytes[1], err));
    return open_cache(source, &low, err);
}

enum moec_status moec_source_offload(struct moec_source *source, struct moec_gpu_place *place,
                                     struct moec_error *err)
{
    const uint64_t n = (uint64_t)moec_config_moe_count(source->config) * source->config->n_expert;
    uint64_t largest = 0;
    for (uint32_t form = 0; form < 2 && source->record_bytes[form] != NULL; form++)
        for (uint64_t i = 0; i < n; i++)
            largest = source->record_bytes[form][i] > largest ? source->record_bytes[form][i] : largest;
    MOEC_TRY(moec_gpu_place_load(place, source->model, largest, err));
    source->place = place;
    return MOEC_OK;
}

enum moec_status moec_source_open(const char *path, uint64_t cache_bytes, int n_threads, uint32_t n_tokens,
                                  struct moec_source *source, struct moec_error *err)
{
    memset(source, 0, sizeof *source);
    enum moec_status status = moec_strndup(&source->path, path, strlen(path), err);
    if (status == MOEC_OK)
        status = moec_path_is_folder(path) || moec_gguf_is(path)
                     ? open_checkpoint(source, cache_bytes, n_threads, n_tokens, err)
                     : open_bundle(source, cache_bytes, n_tokens, err);
    if (status != MOEC_OK)
        moec_source_close(source);
    return status;
}

enum moec_status moec_source_keep_kv(struct moec_source *source, struct moec_codec kv, struct moec_error *err)
{
    MOEC_TRY(moec_config_choose_kv(&source->model->config, kv, err));
    source->config = &source->model->config;
    return MOEC_OK;
}

void moec_source_close(struct moec_source *source)
{
    moec_expert_cache_free(source->cache);
    moec_variants_free(source->variants);
    moec_model_free(source->model);
    moec_bundle_close(source->bundle);
    moec_checkpoint_close(source->checkpoint);
    free(source->record_bytes[0]);
    free(source->record_bytes[1]);
    free(source->path);
    memset(source, 0, sizeof *source);
}
