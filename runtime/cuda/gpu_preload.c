/* Prefetches into a GPU's memory: which records of those that are in the process's memory are copied before a
 * router asks for them. What is worth it is runtime/policy/schedule/preload.h's to say, with the times of copies. */
#include "runtime/cuda/gpu_experts_internal.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "runtime/policy/schedule/read_order.h"

static struct moec_preload_setup setup_of(const struct moec_bundle *bundle,
                                          const struct moec_predict_ops *predictor, uint32_t ahead)
{
    const struct moec_config *config = &bundle->config;
    return (struct moec_preload_setup){.predictor = predictor,
                                       .model = {.n_layer = moec_config_moe_count(config),
                                                 .n_encoder = moec_config_moe_encoder_count(config),
                                                 .n_expert = config->n_expert,
                                                 .top_k = config->top_k,
                                                 .paths = &bundle->paths},
                                       .bounds = {.ahead = ahead, .is_tried = true}};
}

static bool prefetches(const struct moec_predict_ops *predictor)
{
    return predictor != NULL && predictor != &moec_predict_none;
}

uint64_t moec_gpu_preload_bytes(const struct moec_bundle *bundle, const struct moec_predict_ops *predictor,
                                uint32_t ahead)
{
    const struct moec_preload_setup setup = setup_of(bundle, predictor, ahead);
    const uint64_t n = (uint64_t)setup.model.n_layer * setup.model.n_expert;
    return prefetches(predictor) ? moec_preload_state_bytes(&setup) + n * sizeof(uint32_t) : 0;
}

static bool view_is_present(void *context, uint32_t key)
{
    const struct moec_gpu_experts *experts = context;
    return moec_residency_hint(experts->residency, key);
}

static uint64_t view_n_bytes_of(void *context, uint32_t key)
{
    const struct moec_gpu_experts *experts = context;
    return moec_gpu_layout(experts, key)->n_bytes;
}

/* ---- choosing ---- */

static struct moec_expert_request request_of(const struct moec_gpu_experts *experts, uint32_t key)
{
    const uint32_t ordinal = key / experts->keys.n_expert / experts->keys.n_form;
    return moec_expert_request_of(moec_config_moe_layer(&experts->setup.bundle->config, ordinal),
                                  key % experts->keys.n_expert);
}

/* What used the prefetch's room is done before its first piece. */
static enum moec_status wait_for_room(struct moec_gpu_experts *experts)
{
    struct moec_gpu_stream *stream = moec_gpu_prefetches_stream(experts->guesses.prefetches);
    if (experts->copies.freed > 0)
        MOEC_TRY(experts->ops->wait(experts->setup.gpu, stream,
                                    experts->copies.marks[experts->copies.freed % MOEC_GPU_MARKS], NULL));
    if (experts->copies.freed_copy <= experts->copies.n_landed)
        return MOEC_OK;
    return experts->ops->wait(experts->setup.gpu, stream,
                              moec_gpu_landed(experts, experts->copies.freed_copy), NULL);
}

/* Makes room for an absent key, and begins to copy it. */
static bool begin(struct moec_gpu_experts *experts, uint32_t key)
{
    struct moec_experts *behind = experts->setup.behind;
    const struct moec_expert_request request = request_of(experts, key);
    struct moec_mlp mlp;
    if (!moec_residency_prefetch(experts->residency, key))
        return false;
    if (!moec_gpu_place(experts, key)) { /* what is free lies apart */
        moec_residency_drop(experts->residency, key);
        return false;
    }
    const bool is_held = behind->ops->borrow(behind, request, &mlp);
    if (!is_held || wait_for_room(experts) != MOEC_OK) {
        if (is_held)
            behind->ops->release(behind, request);
        moec_gpu_leave(experts, key);
        moec_residency_drop(experts->residency, key);
        return false;
    }
    const struct moec_gpu_prefetch prefetch = {.request = request,
                                               .key = key,
                                               .from = mlp.up.data,
                                               .to = experts->pool.memory + experts->keys.entries[key].offset,
                                               .n_bytes = moec_gpu_layout(experts, key)->n_bytes};
    experts->keys.entries[key].copy = 0;
    experts->keys.entries[key].is_prefetch = true;
    experts->guesses.key = key;
    moec_gpu_prefetches_begin(experts->guesses.prefetches, &prefetch);
    return true;
}

/* A prefetch that was made before its record was in memory, and now is. */
static uint32_t take_pending(struct moec_gpu_experts *experts)
{
    for (uint32_t i = 0; i < experts->guesses.n_pending; i++) {
        const uint32_t key = experts->guesses.pending[i];
        const bool is_present = moec_residency_is_present(experts->residency, key);
        if (!is_present && !moec_gpu_is_ready_behind(experts, request_of(experts, key)))
            continue;
        experts->guesses.pending[i--] = experts->guesses.pending[--experts->guesses.n_pending];
        if (!is_present)
            return key;
    }
    return MOEC_EVICT_NONE;
}

static uint32_t next_key(struct moec_gpu_experts *experts)
{
    const uint32_t key = take_pending(experts),
                   n_ahead = (uint32_t)(experts->copies.n_copy - experts->copies.n_landed);
    if (key != MOEC_EVICT_NONE || experts->guesses.is_out)
        return key;
    for (;;) {
        const uint32_t prefetched =
            moec_preload_next_behind(experts->guesses.preload, moec_now_ns(), n_ahead);
        if (prefetched == MOEC_EVICT_NONE ||
            moec_gpu_is_ready_behind(experts, request_of(experts, prefetched)))
            return prefetched;
        if (experts->guesses.n_pending < experts->keys.n_layer * experts->keys.n_expert)
            experts->guesses.pending[experts->guesses.n_pending++] = prefetched;
    }
}

/* Of moec_gpu_prefetches. */
static bool next(void *context)
{
    struct moec_gpu_experts *experts = context;
    bool has_begun = false;
    (void)pthread_mutex_lock(&experts->lock);
    while (experts->guesses.prefetches != NULL && experts->guesses.key == MOEC_EVICT_NONE && !has_begun) {
        const uint32_t key = next_key(experts);
        if (key == MOEC_EVICT_NONE)
            break;
        has_begun = begin(experts, key);
    }
    (void)pthread_mutex_unlock(&experts->lock);
    return has_begun;
}

/* Likewise. A prefetch that was given up and is asked for all the same stays to be copied once more. */
static void ended(void *context, const struct moec_gpu_prefetch *prefetch, bool is_whole, uint64_t copy_ns)
{
    struct moec_gpu_experts *experts = context;
    const struct moec_gpu_entry *entry = &experts->keys.entries[prefetch->key];
    (void)pthread_mutex_lock(&experts->lock);
    if (is_whole) {
        experts->counters.copied_bytes += prefetch->n_bytes;
        experts->counters.guessed_bytes += prefetch->n_bytes;
    }
    moec_preload_timed(experts->guesses.preload, prefetch->n_bytes, copy_ns, true);
    if (experts->guesses.key == prefetch->key && is_whole) {
        experts->guesses.key = MOEC_EVICT_NONE;
    } else if (experts->guesses.key == prefetch->key && entry->expected == 0 && entry->held == 0) {
        moec_gpu_leave(experts, prefetch->key);
        moec_residency_drop(experts->residency, prefetch->key);
    }
    (void)pthread_mutex_unlock(&experts->lock);
}

/* ---- what sessions tell ---- */

void moec_gpu_preload_judge(struct moec_gpu_experts *experts, uint32_t key, bool is_right)
{
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    if (entry->is_prefetch && is_right)
        experts->counters.useful_guesses++;
    else if (entry->is_prefetch)
        experts->counters.wasted_guesses++;
    entry->is_prefetch = false;
    if (is_right || key != experts->guesses.key)
        return;
    (void)moec_gpu_prefetches_cancel(experts->guesses.prefetches, key);
    experts->guesses.has_left = true;
    experts->guesses.key = MOEC_EVICT_NONE;
}

void moec_gpu_preload_wake(struct moec_gpu_experts *experts)
{
    if (experts->guesses.prefetches != NULL && experts->guesses.key == MOEC_EVICT_NONE &&
        (experts->guesses.n_pending > 0 || !experts->guesses.is_out))
        moec_gpu_prefetches_wake(experts->guesses.prefetches);
}

void moec_gpu_preload_answer(struct moec_gpu_experts *experts, const struct moec_router_answer *answer)
{
    if (experts->guesses.prefetches == NULL)
        return;
    const struct moec_read_rules rules = {.preload_count = experts->setup.guesses.count,
                                          .are_known = experts->setup.guesses.predictor->knows_tokens};
    const uint32_t key = experts->guesses.key;
    moec_preload_answer(experts->guesses.preload, answer, (uint32_t)experts->keys.ordinals[answer->layer],
                        moec_now_ns());
    experts->guesses.is_out = !moec_preload_knows(experts->guesses.preload);
    experts->guesses.n_pending = 0;
    if (moec_read_takes_prefetches_back(&rules) && key != MOEC_EVICT_NONE &&
        experts->keys.entries[key].expected == 0)
        (void)moec_gpu_prefetches_cancel(experts->guesses.prefetches, key);
    moec_gpu_preload_wake(experts);
}

bool moec_gpu_preload_wants_rank(const struct moec_gpu_experts *experts, uint32_t ahead)
{
    return experts->guesses.prefetches != NULL && moec_preload_wants_rank(experts->guesses.preload, ahead);
}

void moec_gpu_preload_rank(struct moec_gpu_experts *experts, const struct moec_router_answer *answer,
                           uint32_t ahead)
{
    moec_preload_rank(experts->guesses.preload, answer, ahead);
    experts->guesses.is_out = false;
    moec_gpu_preload_wake(experts);
}

void moec_gpu_preload_know(struct moec_gpu_experts *experts, uint32_t layer, const uint32_t *list, uint32_t n)
{
    if (experts->guesses.prefetches == NULL || !experts->setup.guesses.predictor->knows_tokens)
        return;
    moec_preload_know(experts->guesses.preload, (uint32_t)experts->keys.ordinals[layer], list, n);
    experts->guesses.is_out = false;
    moec_gpu_preload_wake(experts);
}

/* ---- creation ---- */

enum moec_status moec_gpu_preload_create(struct moec_gpu_experts *experts, struct moec_error *err)
{
    const struct moec_gpu_experts_setup *setup = &experts->setup;
    uint64_t all_bytes = 0;
    for (uint32_t key = 0; key < experts->keys.n; key++)
        all_bytes += experts->keys.slot_bytes[key];
    if (!prefetches(setup->guesses.predictor) || setup->behind->ops->borrow == NULL ||
        experts->pool.n_bytes >= all_bytes)
        return MOEC_OK;
    struct moec_preload_setup preload =
        setup_of(setup->bundle, setup->guesses.predictor, setup->guesses.ahead);
    preload.bounds.count = setup->guesses.count;
    preload.n_form = experts->keys.n_form; /* of which only the high copy is prefetched: the other is small */
    preload.view = (struct moec_preload_view){
        .is_present = view_is_present, .n_bytes_of = view_n_bytes_of, .context = experts};
    MOEC_TRY(moec_alloc((void **)&experts->guesses.pending,
                        (uint64_t)experts->keys.n_layer * experts->keys.n_expert,
                        sizeof *experts->guesses.pending, "predicted experts of a device", err));
    MOEC_TRY(moec_preload_create(&preload, &experts->guesses.preload, err));
    experts->experts.wants_choices = true;
    experts->experts.wants_next_gate |= setup->guesses.predictor->needs_next_gate;
    experts->guesses.is_out = true;
    const struct moec_gpu_prefetches_setup thread = {.gpu = setup->gpu,
                                                     .behind = setup->behind,
                                                     .piece_bytes = setup->guesses.piece_bytes,
                                                     .next = next,
                                                     .ended = ended,
                                                     .context = experts};
    (void)pthread_mutex_lock(&experts->lock); /* the thread asks for prefetches when it has its pointer */
    const enum moec_status status = moec_gpu_prefetches_create(&thread, &experts->guesses.prefetches, err);
    (void)pthread_mutex_unlock(&experts->lock);
    return status;
}

void moec_gpu_preload_free(struct moec_gpu_experts *experts)
{
    moec_gpu_prefetches_free(experts->guesses.prefetches);
    moec_preload_free(experts->guesses.preload);
    free(experts->guesses.pending);
}
