/* How a pool of experts on a GPU is made and freed, and what can be seen of it. */
#include "runtime/cuda/gpu_experts_internal.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "runtime/cuda/gpu_transfer.h"

#define MIB(bytes) ((double)(bytes) / 1048576.0)

static uint64_t slot_bytes_of(const struct moec_bundle *bundle, uint32_t copy, uint32_t ordinal,
                              uint32_t expert)
{
    const uint64_t n_bytes = moec_bundle_layout(bundle, copy, ordinal, expert)->n_bytes;
    return (n_bytes + MOEC_GPU_ALIGNMENT - 1) / MOEC_GPU_ALIGNMENT * MOEC_GPU_ALIGNMENT;
}

struct moec_gpu_pool_sizes moec_gpu_pool_sizes_of(const struct moec_bundle *bundle, const uint32_t *copies,
                                                  uint32_t n_copy)
{
    const uint32_t n_expert = bundle->config.n_expert, n = moec_config_moe_count(&bundle->config) * n_expert;
    struct moec_gpu_pool_sizes sizes = {0};
    for (uint32_t i = 0; i < n_copy * n; i++) {
        const uint64_t n_bytes = slot_bytes_of(bundle, copies[i / n], i % n / n_expert, i % n_expert);
        sizes.all_bytes += n_bytes;
        if (n_bytes > sizes.largest_bytes)
            sizes.largest_bytes = n_bytes;
    }
    return sizes;
}

static const struct moec_evict_ops *policy_of(const struct moec_evict_ops *policy)
{
    return policy != NULL ? policy : &moec_evict_lru;
}

uint64_t moec_gpu_experts_table_bytes(const struct moec_bundle *bundle, const struct moec_evict_ops *policy,
                                      const struct moec_predict_ops *predictor, uint32_t ahead,
                                      uint32_t n_form)
{
    const uint32_t n_expert = n_form * bundle->config.n_expert,
                   n_key = moec_config_moe_count(&bundle->config) * n_expert;
    return sizeof(struct moec_gpu_experts) + bundle->config.n_layer * sizeof(int32_t) +
           n_key * (sizeof(uint64_t) + sizeof(struct moec_gpu_entry) + sizeof(uint32_t)) +
           n_expert * (2 * sizeof(bool) + 4 * sizeof(uint32_t)) +
           moec_residency_state_bytes(n_key, policy_of(policy)) +
           moec_gpu_preload_bytes(bundle, predictor, ahead);
}

/* What a byte's copy to the pool takes: of as much as the largest record, or some of it, twice. */
static enum moec_status time_copies(struct moec_gpu_experts *experts, struct moec_error *err)
{
    const struct moec_gpu_experts_setup *setup = &experts->setup;
    const uint64_t largest =
        moec_gpu_pool_sizes_of(setup->bundle, setup->pool.copies, experts->keys.n_form).largest_bytes;
    const uint64_t n_bytes = largest < MOEC_GPU_TRANSFER_BYTES ? largest : MOEC_GPU_TRANSFER_BYTES;
    void *memory = NULL;
    uint64_t ns = 0;
    experts->here.cpu_byte_ns = setup->cooperation.cpu_byte_ns;
    experts->here.copy_byte_ns = setup->cooperation.copy_byte_ns;
    if (!setup->cooperation.is_on || setup->cooperation.copy_byte_ns > 0)
        return MOEC_OK;
    MOEC_TRY(experts->ops->alloc_pinned(setup->gpu, n_bytes, "a copy that is timed", &memory, err));
    enum moec_status status = MOEC_OK;
    for (int turn = 0; turn < 2 && status == MOEC_OK; turn++) { /* the first one warms up */
        const uint64_t begin_ns = moec_now_ns();
        status = experts->ops->copy(
            setup->gpu, experts->copies.stream,
            (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, experts->pool.memory, memory, n_bytes}, err);
        if (status == MOEC_OK)
            status = experts->ops->finish(setup->gpu, experts->copies.stream, err);
        ns = moec_now_ns() - begin_ns;
    }
    experts->ops->free_pinned(setup->gpu, memory);
    experts->here.copy_byte_ns = (double)ns / (double)n_bytes;
    return status;
}

static enum moec_status create_tables(struct moec_gpu_experts *experts, struct moec_error *err)
{
    const struct moec_bundle *bundle = experts->setup.bundle;
    const struct moec_config *config = &bundle->config;
    const char *what = "tables of experts on a device";
    MOEC_TRY(moec_alloc((void **)&experts->keys.ordinals, config->n_layer, sizeof *experts->keys.ordinals,
                        what, err));
    MOEC_TRY(moec_alloc((void **)&experts->keys.slot_bytes, experts->keys.n, sizeof *experts->keys.slot_bytes,
                        what, err));
    MOEC_TRY(moec_alloc((void **)&experts->keys.entries, experts->keys.n, sizeof *experts->keys.entries, what,
                        err));
    MOEC_TRY(
        moec_alloc((void **)&experts->pool.slots, experts->keys.n, sizeof *experts->pool.slots, what, err));
    const uint32_t n_active = experts->keys.n_form * experts->keys.n_expert;
    MOEC_TRY(moec_alloc((void **)&experts->wanted.was_present, n_active, sizeof(bool), what, err));
    MOEC_TRY(moec_alloc((void **)&experts->wanted.is_ready, n_active, sizeof(bool), what, err));
    uint32_t **lists[] = {&experts->wanted.missing, &experts->wanted.takers, &experts->wanted.order,
                          &experts->wanted.turns};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        MOEC_TRY(moec_alloc((void **)lists[i], n_active, sizeof(uint32_t), what, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        experts->keys.ordinals[layer] = moec_config_moe_ordinal(config, layer);
    for (uint32_t key = 0; key < experts->keys.n; key++)
        experts->keys.slot_bytes[key] = (moec_gpu_layout(experts, key)->n_bytes + MOEC_GPU_ALIGNMENT - 1) /
                                        MOEC_GPU_ALIGNMENT * MOEC_GPU_ALIGNMENT;
    return MOEC_OK;
}

static enum moec_status create_pool(struct moec_gpu_experts *experts, struct moec_error *err)
{
    const struct moec_gpu_experts_setup *setup = &experts->setup;
    const struct moec_gpu_pool_sizes sizes =
        moec_gpu_pool_sizes_of(setup->bundle, setup->pool.copies, experts->keys.n_form);
    experts->pool.n_bytes = setup->pool.n_bytes < sizes.all_bytes ? setup->pool.n_bytes : sizes.all_bytes;
    if (experts->pool.n_bytes < sizes.largest_bytes)
        return moec_fail(
            err, MOEC_ERR_BUDGET,
            "the device has %.2f MiB for experts, but the largest expert takes %.2f MiB: allow more of its "
            "memory (--vram)",
            MIB(experts->pool.n_bytes), MIB(sizes.largest_bytes));
    MOEC_TRY(experts->ops->alloc(setup->gpu, experts->pool.n_bytes, "the pool of experts",
                                 (void **)&experts->pool.memory, err));
    MOEC_TRY(experts->ops->stream_create(setup->gpu, &experts->copies.stream, err));
    for (uint32_t i = 0; i < MOEC_GPU_FLYING; i++)
        MOEC_TRY(experts->ops->event_create(setup->gpu, &experts->copies.landed[i], err));
    for (uint32_t i = 0; i < MOEC_GPU_MARKS; i++)
        MOEC_TRY(experts->ops->event_create(setup->gpu, &experts->copies.marks[i], err));
    return MOEC_OK;
}

/* As the cache's behind it, with frequencies from the bundle's path table, where there is one. */
static enum moec_status create_residency(struct moec_gpu_experts *experts, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_gpu_experts_setup *setup = &experts->setup;
    const struct moec_path_table *paths = &setup->bundle->paths;
    struct moec_residency_setup residency = {
        .shape = {.n_layer = experts->keys.n_layer,
                  .n_expert = experts->keys.n_expert,
                  .n_form = experts->keys.n_form,
                  .n_shallow = paths->n_shallow,
                  .top_k = setup->bundle->config.top_k,
                  .n_encoder = moec_config_moe_encoder_count(&setup->bundle->config)},
        .pools = {.slot_bytes = experts->keys.slot_bytes, .capacity_bytes = experts->pool.n_bytes},
        .policy = {.ops = policy_of(setup->keeps.policy), .weights = setup->keeps.weights},
        .evicted = {.call = moec_gpu_evicted, .context = experts}};
    void *frequency = NULL;
    if (paths->n_layer == experts->keys.n_layer && paths->n_expert == experts->keys.n_expert) {
        MOEC_TRY_OUT(moec_alloc(&frequency, experts->keys.n, sizeof(float), "expert frequencies", err));
        moec_residency_frequencies(paths, experts->keys.n_form, frequency);
        residency.policy.frequency = frequency;
    }
    MOEC_TRY_OUT(moec_residency_create(&residency, &experts->residency, err));
out:
    free(frequency);
    return status;
}

enum moec_status moec_gpu_experts_create(const struct moec_gpu_experts_setup *setup,
                                         struct moec_gpu_experts **out, struct moec_error *err)
{
    struct moec_gpu_experts *experts = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&experts, 1, sizeof *experts, "experts on a device", err));
    experts->setup = *setup;
    experts->ops = setup->gpu->ops;
    experts->guesses.key = MOEC_EVICT_NONE;
    experts->keys.n_layer = moec_config_moe_count(&setup->bundle->config);
    experts->keys.n_expert = setup->bundle->config.n_expert;
    experts->keys.n_form = setup->pool.n_form > 1 ? setup->pool.n_form : 1;
    experts->keys.n = experts->keys.n_layer * experts->keys.n_form * experts->keys.n_expert;
    experts->experts = (struct moec_experts){.ops = &moec_gpu_experts_ops,
                                             .max_held = UINT32_MAX,
                                             .n_form = experts->keys.n_form,
                                             .wants_choices = setup->behind->wants_choices,
                                             .wants_next_gate = setup->behind->wants_next_gate};
    (void)pthread_mutex_init(&experts->lock, NULL);
    (void)pthread_cond_init(&experts->released, NULL);
    MOEC_TRY_OUT(create_tables(experts, err));
    MOEC_TRY_OUT(create_pool(experts, err));
    MOEC_TRY_OUT(time_copies(experts, err));
    MOEC_TRY_OUT(create_residency(experts, err));
    MOEC_TRY_OUT(moec_gpu_preload_create(experts, err));
    *out = experts;
    experts = NULL;
out:
    moec_gpu_experts_free(experts);
    return status;
}

void moec_gpu_experts_free(struct moec_gpu_experts *experts)
{
    if (experts == NULL)
        return;
    struct moec_gpu *gpu = experts->setup.gpu;
    moec_gpu_preload_free(experts);
    if (experts->copies.stream != NULL)
        (void)experts->ops->finish(gpu, experts->copies.stream, NULL);
    while (experts->copies.n_landed < experts->copies.n_copy)
        moec_gpu_end_flight(experts);
    experts->ops->stream_free(gpu, experts->copies.stream);
    for (uint32_t i = 0; i < MOEC_GPU_FLYING; i++)
        experts->ops->event_free(gpu, experts->copies.landed[i]);
    for (uint32_t i = 0; i < MOEC_GPU_MARKS; i++)
        experts->ops->event_free(gpu, experts->copies.marks[i]);
    experts->ops->free(gpu, experts->pool.memory);
    moec_residency_free(experts->residency);
    free(experts->keys.ordinals);
    free(experts->keys.slot_bytes);
    free(experts->keys.entries);
    free(experts->pool.slots);
    free(experts->wanted.was_present);
    free(experts->wanted.is_ready);
    free(experts->wanted.missing);
    free(experts->wanted.takers);
    free(experts->wanted.order);
    free(experts->wanted.turns);
    (void)pthread_mutex_destroy(&experts->lock);
    (void)pthread_cond_destroy(&experts->released);
    free(experts);
}

struct moec_experts *moec_gpu_experts_source(struct moec_gpu_experts *experts)
{
    return &experts->experts;
}

uint64_t moec_gpu_experts_pool_bytes(const struct moec_gpu_experts *experts)
{
    return experts->pool.n_bytes;
}

struct moec_gpu_experts_counters moec_gpu_experts_counters(struct moec_gpu_experts *experts)
{
    (void)pthread_mutex_lock(&experts->lock);
    const struct moec_gpu_experts_counters counters = experts->counters;
    (void)pthread_mutex_unlock(&experts->lock);
    return counters;
}
