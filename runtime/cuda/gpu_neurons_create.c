/* How a pool of experts by their neurons is planned, made and freed, and what can be seen of it. */
#include "formats/base/memory.h"
#include "runtime/cuda/gpu_neurons_internal.h"
#include "runtime/cuda/gpu_room.h"

#define ALIGNMENT     256u
#define ROW_ALIGNMENT 16u
#define WHOLE_RECORDS 2u /* one is copied while another one is computed with */

static uint64_t rounded(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- planning ---- */

/* Of the records of copy 0. */
struct record_sizes {
    uint32_t n_key, n_ff;
    uint64_t up_bytes, pair_bytes; /* the largest */
    bool has_pairs;                /* every neuron's pair can be read alone, and its MLP skips neurons */
};

static struct record_sizes sizes_of(const struct moec_bundle *bundle)
{
    const uint32_t n_expert = bundle->config.n_expert;
    struct record_sizes sizes = {.n_key = moec_config_moe_count(&bundle->config) * n_expert,
                                 .has_pairs = true};
    for (uint32_t key = 0; key < sizes.n_key; key++) {
        const struct moec_record_layout *layout =
            moec_bundle_layout(bundle, 0, key / n_expert, key % n_expert);
        sizes.n_ff = layout->n_ff;
        sizes.up_bytes = layout->up_bytes > sizes.up_bytes ? layout->up_bytes : sizes.up_bytes;
        if (layout->pair_stride_bytes > sizes.pair_bytes)
            sizes.pair_bytes = layout->pair_stride_bytes;
        sizes.has_pairs = sizes.has_pairs && layout->n_matrix == 3 &&
                          layout->activation != MOEC_ACTIVATION_CLAMPED_GLU &&
                          moec_codec_traits(layout->codecs[MOEC_PROJECTION_DOWN])->rows_together == 1;
    }
    return sizes;
}

/* Slots and rows of so many bytes; the slots of what a batch of few tokens asks for at least, and the rows.
 */
static void divide(const struct record_sizes *sizes, const struct moec_config *config, double share,
                   uint64_t n_bytes, struct moec_gpu_neurons_plan *plan)
{
    const uint64_t place_bytes = sizes->n_ff * sizeof(uint32_t), all = sizes->n_key;
    const double stays = 2 * (1 - share) < 1 ? 2 * (1 - share) : 1;
    const double each_bytes =
        (double)(plan->slot_bytes + place_bytes) + stays * sizes->n_ff * (double)plan->row_bytes;
    const uint64_t asked = (uint64_t)MOEC_CUDA_FEW * config->top_k, least = asked < all ? asked : all;
    const double fit = (double)n_bytes / each_bytes;
    uint64_t n_slot = fit < (double)all ? (uint64_t)fit : all;
    n_slot = n_slot > least ? n_slot : least;
    if (n_slot * (plan->slot_bytes + place_bytes) > n_bytes)
        return;
    const uint64_t n_row = (n_bytes - n_slot * (plan->slot_bytes + place_bytes)) / plan->row_bytes,
                   most = n_slot * sizes->n_ff;
    if (n_row < least * sizes->n_ff || most >= MOEC_CUDA_NOWHERE)
        return;
    plan->n_slot = (uint32_t)n_slot;
    plan->n_row = (uint32_t)(n_row < most ? n_row : most);
}

struct moec_gpu_neurons_plan moec_gpu_neurons_plan_of(const struct moec_bundle *bundle, double share,
                                                      uint64_t pool_bytes)
{
    const struct moec_config *config = &bundle->config;
    const struct record_sizes sizes = sizes_of(bundle);
    const struct moec_gpu_pool_sizes whole = moec_gpu_pool_sizes_of(bundle, &(uint32_t){0}, 1);
    struct moec_gpu_neurons_plan plan = {.whole_bytes = WHOLE_RECORDS * whole.largest_bytes,
                                         .slot_bytes = rounded(sizes.up_bytes, ALIGNMENT),
                                         .row_bytes = rounded(sizes.pair_bytes, ROW_ALIGNMENT)};
    const uint64_t taken =
        plan.whole_bytes + moec_gpu_gather_bytes(sizes.n_ff, sizes.pair_bytes) + 3 * ALIGNMENT;
    const bool is_few = MOEC_CUDA_FEW * config->top_k <= moec_gpu_partial_rows(config, MOEC_CUDA_FEW);
    if (sizes.has_pairs && is_few && pool_bytes < whole.all_bytes && pool_bytes > taken)
        divide(&sizes, config, share, pool_bytes - taken, &plan);
    return plan;
}

uint64_t moec_gpu_neurons_table_bytes(const struct moec_bundle *bundle, const struct moec_evict_ops *policy)
{
    const struct record_sizes sizes = sizes_of(bundle);
    const uint64_t n_slot = sizes.n_key, n_place = n_slot * sizes.n_ff;
    return sizeof(struct moec_gpu_neurons) + bundle->config.n_layer * sizeof(int32_t) +
           sizes.n_key * (sizeof(uint64_t) + sizeof(struct moec_gpu_neuron_entry)) +
           (n_slot + 2 * n_place + 2 * (uint64_t)sizes.n_ff) * sizeof(uint32_t) +
           bundle->config.n_expert * (sizeof(bool) + 3 * sizeof(uint32_t)) +
           moec_residency_state_bytes(sizes.n_key, policy != NULL ? policy : &moec_evict_lru) +
           moec_gpu_gather_bytes(sizes.n_ff, sizes.pair_bytes);
}

/* ---- creation ---- */

static enum moec_status create_tables(struct moec_gpu_neurons *n, struct moec_error *err)
{
    const struct moec_config *config = &n->setup.experts.bundle->config;
    const struct moec_gpu_neurons_plan *plan = &n->setup.plan;
    const char *what = "tables of experts on a device";
    MOEC_TRY(moec_alloc((void **)&n->keys.ordinals, config->n_layer, sizeof *n->keys.ordinals, what, err));
    MOEC_TRY(moec_alloc((void **)&n->keys.slot_bytes, n->keys.n, sizeof *n->keys.slot_bytes, what, err));
    MOEC_TRY(moec_alloc((void **)&n->keys.entries, n->keys.n, sizeof *n->keys.entries, what, err));
    MOEC_TRY(moec_alloc((void **)&n->answer.was_present, n->keys.n_expert, sizeof(bool), what, err));
    const struct {
        uint32_t **table;
        uint64_t n;
    } tables[] = {{&n->pool.places, (uint64_t)plan->n_slot * n->keys.n_ff},
                  {&n->pool.free_slots, plan->n_slot},
                  {&n->pool.free_rows, plan->n_row},
                  {&n->answer.list, 2 * (uint64_t)n->keys.n_ff},
                  {&n->answer.missing, n->keys.n_expert},
                  {&n->answer.takers, n->keys.n_expert},
                  {&n->answer.order, n->keys.n_expert}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        MOEC_TRY(moec_alloc((void **)tables[i].table, tables[i].n, sizeof(uint32_t), what, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        n->keys.ordinals[layer] = moec_config_moe_ordinal(config, layer);
    for (uint32_t key = 0; key < n->keys.n; key++)
        n->keys.slot_bytes[key] = plan->slot_bytes;
    for (uint32_t slot = plan->n_slot; slot-- > 0;)
        n->pool.free_slots[n->pool.n_free_slot++] = slot;
    for (uint32_t row = plan->n_row; row-- > 0;)
        n->pool.free_rows[n->pool.n_free_row++] = row;
    return MOEC_OK;
}

static enum moec_status create_pool(struct moec_gpu_neurons *n, struct moec_error *err)
{
    const struct moec_gpu_neurons_plan *plan = &n->setup.plan;
    struct moec_gpu *gpu = n->setup.experts.gpu;
    const uint64_t rows_at = plan->n_slot * plan->slot_bytes,
                   places_at = rounded(rows_at + plan->n_row * plan->row_bytes, ALIGNMENT);
    MOEC_TRY(n->ops->alloc(gpu, places_at + (uint64_t)plan->n_slot * n->keys.n_ff * sizeof(uint32_t),
                           "the pool of experts", (void **)&n->pool.memory, err));
    n->pool.rows = n->pool.memory + rows_at;
    n->pool.device_places = (uint32_t *)(n->pool.memory + places_at);
    MOEC_TRY(n->ops->stream_create(gpu, &n->copies.stream, err));
    for (uint32_t i = 0; i < MOEC_GPU_NEURON_MARKS; i++) {
        MOEC_TRY(n->ops->event_create(gpu, &n->copies.landed[i], err));
        MOEC_TRY(n->ops->event_create(gpu, &n->copies.marks[i], err));
    }
    const struct moec_gpu_gather_setup gather = {
        .gpu = gpu,
        .stream = n->copies.stream,
        .kernels = n->setup.kernels,
        .threads = n->setup.threads,
        .n_neuron = n->keys.n_ff,
        .pair_bytes = sizes_of(n->setup.experts.bundle).pair_bytes,
        .sample = {.memory = n->setup.memory, .n_bytes = n->setup.memory_bytes},
        .speed = n->setup.speed};
    return moec_gpu_gather_create(&gather, &n->copies.gather, err);
}

/* As the cache's behind it, with frequencies from the bundle's path table, where there is one. */
static enum moec_status create_residency(struct moec_gpu_neurons *n, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_gpu_experts_setup *setup = &n->setup.experts;
    const struct moec_path_table *paths = &setup->bundle->paths;
    struct moec_residency_setup residency = {
        .shape = {.n_layer = n->keys.n_layer,
                  .n_expert = n->keys.n_expert,
                  .n_form = 1,
                  .n_encoder = moec_config_moe_encoder_count(&setup->bundle->config),
                  .n_shallow = paths->n_shallow,
                  .top_k = setup->bundle->config.top_k},
        .pools = {.slot_bytes = n->keys.slot_bytes,
                  .capacity_bytes = n->setup.plan.n_slot * n->setup.plan.slot_bytes},
        .policy = {.ops = setup->keeps.policy != NULL ? setup->keeps.policy : &moec_evict_lru,
                   .weights = setup->keeps.weights},
        .evicted = {.call = moec_gpu_neurons_leave, .context = n}};
    void *frequency = NULL;
    if (paths->n_layer == n->keys.n_layer && paths->n_expert == n->keys.n_expert) {
        MOEC_TRY_OUT(moec_alloc(&frequency, n->keys.n, sizeof(float), "expert frequencies", err));
        moec_residency_frequencies(paths, 1, frequency);
        residency.policy.frequency = frequency;
    }
    MOEC_TRY_OUT(moec_residency_create(&residency, &n->residency, err));
out:
    free(frequency);
    return status;
}

static enum moec_status create(struct moec_gpu_neurons *n, struct moec_error *err)
{
    struct moec_gpu_experts_setup whole = n->setup.experts;
    whole.pool.n_bytes = n->setup.plan.whole_bytes;
    whole.guesses.predictor = NULL; /* what it has passes through */
    MOEC_TRY(create_tables(n, err));
    MOEC_TRY(moec_gpu_experts_create(&whole, &n->whole, err));
    MOEC_TRY(create_pool(n, err));
    return create_residency(n, err);
}

enum moec_status moec_gpu_neurons_create(const struct moec_gpu_neurons_setup *setup,
                                         struct moec_gpu_neurons **out, struct moec_error *err)
{
    struct moec_gpu_neurons *n = NULL;
    MOEC_TRY(moec_alloc((void **)&n, 1, sizeof *n, "experts on a device", err));
    n->setup = *setup;
    n->ops = setup->experts.gpu->ops;
    n->behind = setup->experts.behind;
    n->keys.n_layer = moec_config_moe_count(&setup->experts.bundle->config);
    n->keys.n_expert = setup->experts.bundle->config.n_expert;
    n->keys.n = n->keys.n_layer * n->keys.n_expert;
    n->keys.n_ff = sizes_of(setup->experts.bundle).n_ff;
    n->experts = (struct moec_experts){.ops = &moec_gpu_neurons_ops,
                                       .max_held = UINT32_MAX,
                                       .n_form = 1,
                                       .wants_choices = n->behind->wants_choices,
                                       .wants_next_gate = n->behind->wants_next_gate,
                                       .gives_parts = true};
    (void)pthread_mutex_init(&n->lock, NULL);
    const enum moec_status status = create(n, err);
    if (status != MOEC_OK) {
        moec_gpu_neurons_free(n);
        return status;
    }
    *out = n;
    return MOEC_OK;
}

void moec_gpu_neurons_free(struct moec_gpu_neurons *n)
{
    if (n == NULL)
        return;
    struct moec_gpu *gpu = n->setup.experts.gpu;
    if (n->copies.stream != NULL)
        (void)n->ops->finish(gpu, n->copies.stream, NULL);
    if (n->keys.entries != NULL)
        moec_gpu_neurons_settle(n);
    moec_gpu_gather_free(n->copies.gather);
    n->ops->stream_free(gpu, n->copies.stream);
    for (uint32_t i = 0; i < MOEC_GPU_NEURON_MARKS; i++) {
        n->ops->event_free(gpu, n->copies.landed[i]);
        n->ops->event_free(gpu, n->copies.marks[i]);
    }
    n->ops->free(gpu, n->pool.memory);
    moec_gpu_experts_free(n->whole);
    moec_residency_free(n->residency);
    free(n->keys.ordinals);
    free(n->keys.slot_bytes);
    free(n->keys.entries);
    free(n->pool.places);
    free(n->pool.free_slots);
    free(n->pool.free_rows);
    free(n->answer.list);
    free(n->answer.was_present);
    free(n->answer.missing);
    free(n->answer.takers);
    free(n->answer.order);
    (void)pthread_mutex_destroy(&n->lock);
    free(n);
}

struct moec_experts *moec_gpu_neurons_source(struct moec_gpu_neurons *neurons)
{
    return &neurons->experts;
}

struct moec_gpu_experts_counters moec_gpu_neurons_counters(struct moec_gpu_neurons *n)
{
    struct moec_gpu_experts_counters sum = moec_gpu_experts_counters(n->whole);
    (void)pthread_mutex_lock(&n->lock);
    sum.hits += n->counters.hits;
    sum.late += n->counters.late;
    sum.misses += n->counters.misses;
    sum.evictions += n->counters.evictions;
    sum.copied_bytes += n->counters.copied_bytes;
    sum.record_bytes += n->counters.record_bytes;
    (void)pthread_mutex_unlock(&n->lock);
    return sum;
}

struct moec_gpu_gather_speed moec_gpu_neurons_speed(const struct moec_gpu_neurons *neurons)
{
    return moec_gpu_gather_speed_of(neurons->copies.gather);
}
