/* All arrays go by key: layer, form, expert. Bytes of a slot are what the buffer pays, those of a record what
 * storage reads. `all_bytes` counts the first form alone, `every_bytes` all of them. */
#include "profiler/simulate/simulated_model.h"

#include "formats/base/memory.h"
#include "formats/model/record.h"
#include "runtime/experts/low_copy.h"
#include "runtime/policy/schedule/residency.h"
#include "runtime/storage/record_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void moec_simulated_model_release(struct moec_simulated_model *model)
{
    free(model->records.record_bytes);
    free(model->records.slot_bytes);
    free(model->records.frequency);
    free(model->layouts.all);
    free(model->layouts.of);
    *model = (struct moec_simulated_model){0};
}

static enum moec_status allocate(struct moec_simulated_model *model, const struct moec_path_table *paths,
                                 struct moec_error *err)
{
    model->shape.n_layer_key = model->shape.n_form * model->shape.n_expert;
    const uint64_t n_key = (uint64_t)model->shape.n_layer * model->shape.n_layer_key;
    model->paths = paths;
    model->shape.n_shallow = paths->n_shallow;
    MOEC_TRY(moec_alloc((void **)&model->records.record_bytes, n_key, sizeof(uint64_t), "record sizes", err));
    MOEC_TRY(moec_alloc((void **)&model->records.slot_bytes, n_key, sizeof(uint64_t), "record sizes", err));
    if (paths->n_layer != model->shape.n_layer || paths->n_expert != model->shape.n_expert)
        return MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&model->records.frequency, n_key, sizeof(float), "expert frequencies", err));
    moec_residency_frequencies(paths, model->shape.n_form, model->records.frequency);
    return MOEC_OK;
}

static enum moec_status allocate_layouts(struct moec_simulated_model *model, uint32_t n_layout,
                                         struct moec_error *err)
{
    const uint64_t n_key = (uint64_t)model->shape.n_layer * model->shape.n_layer_key;
    MOEC_TRY(moec_alloc((void **)&model->layouts.all, n_layout, sizeof *model->layouts.all, "record layouts",
                        err));
    MOEC_TRY(moec_alloc((void **)&model->layouts.of, n_key, sizeof(uint32_t), "record layouts", err));
    model->layouts.n = n_layout;
    return MOEC_OK;
}

static void sum_slots(struct moec_simulated_model *model)
{
    for (uint32_t s = 0; s < model->shape.n_layer; s++) {
        uint64_t layer_bytes = 0;
        for (uint32_t i = 0; i < model->shape.n_layer_key; i++) {
            const uint64_t slot = model->records.slot_bytes[(size_t)s * model->shape.n_layer_key + i];
            model->slots.largest_bytes =
                slot > model->slots.largest_bytes ? slot : model->slots.largest_bytes;
            model->slots.every_bytes += slot;
            layer_bytes += i < model->shape.n_expert ? slot : 0;
        }
        model->slots.all_bytes += layer_bytes;
        if (s >= model->shape.n_encoder && model->shape.n_expert > 0)
            model->slots.token_bytes +=
                (model->shape.top_k * layer_bytes + model->shape.n_expert - 1) / model->shape.n_expert;
    }
    model->slots.is_equal = model->slots.every_bytes ==
                            model->slots.largest_bytes * model->shape.n_layer * model->shape.n_layer_key;
}

static struct moec_record_sizes sizes_of_form(const struct moec_simulated_model *model, uint32_t form)
{
    struct moec_record_sizes sizes = {0};
    for (uint32_t s = 0; s < model->shape.n_layer; s++)
        for (uint32_t e = 0; e < model->shape.n_expert; e++) {
            const uint64_t slot = model->records.slot_bytes[(size_t)s * model->shape.n_layer_key +
                                                            (size_t)form * model->shape.n_expert + e];
            sizes.largest_bytes = slot > sizes.largest_bytes ? slot : sizes.largest_bytes;
            sizes.all_bytes += slot;
        }
    return sizes;
}

void moec_simulated_model_pool(struct moec_simulated_model *model, const struct moec_precision *precision)
{
    model->slots.has_pools = model->shape.n_form == 2 && precision->kind == MOEC_PRECISION_SHARED;
    if (model->slots.has_pools)
        model->slots.largest_bytes =
            sizes_of_form(model, 0).largest_bytes + sizes_of_form(model, 1).largest_bytes;
}

uint64_t moec_simulated_low_pool(const struct moec_simulated_model *model, uint64_t buffer_bytes)
{
    if (!model->slots.has_pools)
        return 0;
    const struct moec_record_sizes high = sizes_of_form(model, 0), low = sizes_of_form(model, 1);
    return moec_low_pool_of_sizes(&high, &low, model->shape.n_expert, 0, buffer_bytes);
}

bool moec_simulated_pools_fit(const struct moec_simulated_model *model, uint64_t buffer_bytes,
                              uint64_t low_bytes)
{
    return low_bytes <= buffer_bytes && low_bytes >= sizes_of_form(model, 1).largest_bytes &&
           buffer_bytes - low_bytes >= sizes_of_form(model, 0).largest_bytes;
}

static void set_sizes(const struct moec_bundle *bundle, uint32_t copy, uint32_t form,
                      struct moec_simulated_model *model)
{
    for (uint32_t s = 0; s < model->shape.n_layer; s++)
        for (uint32_t e = 0; e < model->shape.n_expert; e++) {
            const size_t key =
                (size_t)s * model->shape.n_layer_key + (size_t)form * model->shape.n_expert + e;
            const struct moec_record_entry *entry = moec_bundle_record(bundle, copy, s, e);
            model->records.record_bytes[key] =
                moec_record_place_of(bundle, entry->offset, entry->n_bytes).n_bytes;
            model->records.slot_bytes[key] = moec_record_slot_bytes(bundle, copy, s, e);
            model->layouts.of[key] = entry->layout;
        }
}

enum moec_status moec_simulated_model_of_bundle(const struct moec_bundle *bundle, uint32_t copy, uint32_t low,
                                                const struct moec_recording *recording,
                                                struct moec_simulated_model *model, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_config *config = &bundle->config;
    *model = (struct moec_simulated_model){.shape = {.n_layer = moec_config_moe_count(config),
                                                     .n_encoder = moec_config_moe_encoder_count(config),
                                                     .n_expert = config->n_expert,
                                                     .n_form = recording->replay->n_form,
                                                     .top_k = config->top_k}};
    if (model->shape.n_layer != recording->shape.n_layer ||
        model->shape.n_encoder != recording->shape.n_encoder ||
        model->shape.n_expert != recording->shape.n_expert || model->shape.top_k != recording->shape.top_k)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the bundle '%s' has %" PRIu32 " MoE layers (%" PRIu32 " in an encoder), %" PRIu32
                         " experts, top-%" PRIu32 ", but the recorded routing has %" PRIu32 " layers "
                         "(%" PRIu32 " in an encoder), %" PRIu32 " experts, top-%" PRIu32 "; give the "
                         "bundle of the same model",
                         bundle->file.path, model->shape.n_layer, model->shape.n_encoder,
                         model->shape.n_expert, model->shape.top_k, recording->shape.n_layer,
                         recording->shape.n_encoder, recording->shape.n_expert, recording->shape.top_k);
    MOEC_TRY_OUT(allocate(model, &bundle->paths, err));
    MOEC_TRY_OUT(allocate_layouts(model, bundle->n_layout, err));
    memcpy(model->layouts.all, bundle->layouts, bundle->n_layout * sizeof *model->layouts.all);
    for (uint32_t form = 0; form < model->shape.n_form; form++)
        set_sizes(bundle, form == 0 ? copy : low, form, model);
    sum_slots(model);
    if (copy == 0)
        (void)snprintf(model->sizes, sizeof model->sizes, "the compiled bitwidths of the bundle");
    else
        (void)snprintf(model->sizes, sizeof model->sizes, "the bundle's copy at %u bits",
                       (unsigned)bundle->copy_bits[copy]);
out:
    if (status != MOEC_OK)
        moec_simulated_model_release(model);
    return status;
}

enum moec_status moec_simulated_model_of_profile(const struct moec_profile *profile, uint32_t bits,
                                                 struct moec_simulated_model *model, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    char name[40];
    *model =
        (struct moec_simulated_model){.shape = {.n_layer = profile->n_moe_layer,
                                                .n_encoder = moec_config_moe_encoder_count(&profile->config),
                                                .n_expert = profile->n_expert,
                                                .n_form = 1,
                                                .top_k = profile->top_k}};
    MOEC_TRY_OUT(moec_profile_codecs(profile, codecs, err));
    MOEC_TRY_OUT(allocate(model, &profile->paths, err));
    MOEC_TRY_OUT(allocate_layouts(model, 1, err));
    const struct moec_record_layout layout = moec_record_layout_make(&profile->config, codecs[bits]);
    model->layouts.all[0] = layout;
    const uint64_t slot_bytes = moec_bundle_slot_bytes(&profile->config, layout.n_bytes);
    for (size_t key = 0; key < (size_t)model->shape.n_layer * model->shape.n_layer_key; key++) {
        model->records.record_bytes[key] = layout.n_bytes;
        model->records.slot_bytes[key] = slot_bytes;
    }
    sum_slots(model);
    (void)snprintf(model->sizes, sizeof model->sizes, "every expert at %s",
                   moec_codec_name(codecs[bits], name));
out:
    if (status != MOEC_OK)
        moec_simulated_model_release(model);
    return status;
}

enum moec_status moec_simulated_model_of_trace(const struct moec_replay *replay,
                                               struct moec_simulated_model *model, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const size_t n_key = (size_t)replay->n_layer * replay->n_form * replay->n_expert;
    *model = (struct moec_simulated_model){.shape = {.n_layer = replay->n_layer,
                                                     .n_encoder = replay->n_encoder,
                                                     .n_expert = replay->n_expert,
                                                     .n_form = replay->n_form,
                                                     .top_k = replay->top_k}};
    MOEC_TRY_OUT(allocate(model, replay->paths, err));
    memcpy(model->records.record_bytes, replay->record_bytes, n_key * sizeof(uint64_t));
    memcpy(model->records.slot_bytes, replay->slot_bytes, n_key * sizeof(uint64_t));
    sum_slots(model);
    (void)snprintf(model->sizes, sizeof model->sizes, "as they ran");
out:
    if (status != MOEC_OK)
        moec_simulated_model_release(model);
    return status;
}
