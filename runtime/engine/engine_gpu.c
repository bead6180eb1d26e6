/* Parts are freed in the reverse of the order in which they were made. Pools give their records back to the
 * expert cache. So they go before the cache's buffer is unpinned and the device closed. */
#include "runtime/engine/engine_gpu.h"

#include "formats/base/memory.h"

enum moec_status moec_engine_gpu_open(const char *device, const struct moec_gpu_entry *entry,
                                      struct moec_engine_gpu **out, struct moec_error *err)
{
    struct moec_engine_gpu *made = NULL;
    enum moec_status status = MOEC_OK;
    uint32_t number = 0;
    MOEC_TRY(moec_gpu_number_read(device, &number, err));
    if (entry == NULL)
        MOEC_TRY(moec_gpu_library_open(&entry, err));
    MOEC_TRY(moec_alloc((void **)&made, 1, sizeof *made, "a device", err));
    made->kernels = entry->kernels;
    MOEC_TRY_OUT(entry->open(number, &made->gpu, err));
    MOEC_TRY_OUT(made->gpu->ops->info(made->gpu, &made->info, err));
    *out = made;
    made = NULL;
out:
    moec_engine_gpu_free(made);
    return status;
}

enum moec_status moec_engine_gpu_load(struct moec_engine_gpu *gpu, const struct moec_model *model,
                                      const struct moec_bundle *bundle, struct moec_sparsity *sparsity,
                                      const struct moec_expert_cache_options *options,
                                      struct moec_expert_cache *cache, struct moec_error *err)
{
    uint8_t *memory = moec_expert_cache_memory(cache);
    MOEC_TRY(gpu->gpu->ops->pin(gpu->gpu, memory, moec_expert_cache_buffer_bytes(cache), "the expert buffer",
                                err));
    gpu->pinned = memory;
    MOEC_TRY(moec_gpu_model_create(gpu->gpu, model, sparsity, &gpu->model, err));
    const struct moec_gpu_experts_setup setup = {
        .gpu = gpu->gpu,
        .compute = gpu->model->stream,
        .behind = moec_expert_cache_experts(cache),
        .bundle = bundle,
        .keeps = {.policy = options->keeps.policy, .weights = options->keeps.weights},
        .cooperation = {.is_on = gpu->cooperates,
                        .cpu_byte_ns = gpu->cpu_byte_ns,
                        .copy_byte_ns = gpu->copy_byte_ns,
                        .gpu_byte_ns = gpu->gpu_byte_ns},
        .guesses = {.predictor = options->preload.predictor,
                    .count = options->preload.count,
                    .ahead = options->preload.ahead},
        .pool = {.n_form = 1 + options->records.n_beside,
                 .copies = {options->records.copy,
                            options->records.n_beside > 0 ? options->records.beside->form.copy : 0},
                 .n_bytes = gpu->plan.pool_bytes}};
    struct moec_gpu_neurons_setup neurons = {.experts = setup,
                                             .kernels = gpu->kernels,
                                             .threads = moec_pool_make(gpu->n_threads),
                                             .memory = memory,
                                             .memory_bytes = moec_expert_cache_buffer_bytes(cache)};
    if (gpu->copies_neurons)
        neurons.plan = moec_gpu_neurons_plan_of(bundle, moec_sparsity_share(sparsity), setup.pool.n_bytes);
    return neurons.plan.n_slot > 0 ? moec_gpu_neurons_create(&neurons, &gpu->neurons, err)
                                   : moec_gpu_experts_create(&setup, &gpu->experts, err);
}

struct moec_experts *moec_engine_gpu_source(const struct moec_engine_gpu *gpu)
{
    return gpu->neurons != NULL ? moec_gpu_neurons_source(gpu->neurons)
                                : moec_gpu_experts_source(gpu->experts);
}

uint64_t moec_engine_gpu_pool_bytes(const struct moec_engine_gpu *gpu)
{
    return gpu->neurons != NULL ? gpu->plan.pool_bytes : moec_gpu_experts_pool_bytes(gpu->experts);
}

struct moec_gpu_experts_counters moec_engine_gpu_counters(const struct moec_engine_gpu *gpu)
{
    return gpu->neurons != NULL ? moec_gpu_neurons_counters(gpu->neurons)
                                : moec_gpu_experts_counters(gpu->experts);
}

void moec_engine_gpu_free(struct moec_engine_gpu *gpu)
{
    if (gpu == NULL)
        return;
    moec_gpu_neurons_free(gpu->neurons);
    moec_gpu_experts_free(gpu->experts);
    moec_gpu_model_free(gpu->model);
    if (gpu->gpu != NULL) {
        gpu->gpu->ops->unpin(gpu->gpu, gpu->pinned);
        gpu->gpu->ops->close(gpu->gpu);
    }
    free(gpu);
}
