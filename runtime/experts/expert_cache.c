/* What sessions ask, hold and give back. A session's wish for a present key is a demand of the residency's as
 * n_demands below counts it; keys that wait for room are absent.
 * The life of an entry is runtime/experts/cache_entry.h's. */
#include "runtime/experts/expert_cache_internal.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

/* ---- coming and going ---- */

void moec_cache_evicted(void *context, uint32_t key)
{
    struct moec_expert_cache *cache = context;
    moec_cache_counters_of(cache, key)->evictions++;
    moec_cache_entry_leave(cache, key);
}

bool moec_cache_prefetch(struct moec_expert_cache *cache, uint32_t key)
{
    if (cache->entries[key].list == MOEC_CACHE_WAITING || !moec_residency_prefetch(cache->residency, key))
        return false;
    moec_cache_entry_bring(cache, key, MOEC_CACHE_PREFETCHED);
    return true;
}

/* What may not be given up: several sessions could block each other for ever by what they only expect. */
static uint32_t n_demands(const struct moec_expert_cache *cache, const struct moec_cache_entry *entry)
{
    return (cache->keeps_expected ? entry->expected : 0) + entry->awaited + entry->held;
}

/* Makes an absent key present, with its demands. */
static bool admit(struct moec_expert_cache *cache, uint32_t key)
{
    if (!moec_residency_admit(cache->residency, key))
        return false;
    const uint32_t n = n_demands(cache, &cache->entries[key]);
    if (n == 0)
        moec_residency_release(cache->residency, key);
    for (uint32_t i = 1; i < n; i++)
        moec_residency_hold(cache->residency, key);
    moec_cache_entry_bring(cache, key, MOEC_CACHE_DEMANDED);
    return true;
}

static void admit_or_wait(struct moec_expert_cache *cache, uint32_t key)
{
    if (cache->entries[key].list != MOEC_CACHE_WAITING &&
        (cache->lists[MOEC_CACHE_WAITING].n > 0 || !admit(cache, key)))
        moec_cache_entry_wait(cache, key);
}

/* Admits what waits for room, as far as there is some. */
static void admit_waiting(struct moec_expert_cache *cache)
{
    while (cache->lists[MOEC_CACHE_WAITING].n > 0 && admit(cache, cache->lists[MOEC_CACHE_WAITING].oldest))
        continue;
}

/* One wish for a key has ended. */
static void end_wish(struct moec_expert_cache *cache, uint32_t key, bool was_demand)
{
    struct moec_cache_entry *entry = &cache->entries[key];
    const bool is_wanted = moec_cache_wishes(entry) > 0;
    if (!moec_residency_is_present(cache->residency, key)) {
        if (!is_wanted)
            moec_cache_entry_stop_waiting(cache, key);
        return;
    }
    if (was_demand) {
        moec_residency_release(cache->residency, key);
        cache->is_blocked = false;
    }
    if (!is_wanted && (cache->options.keeps.nothing || entry->state == MOEC_CACHE_FAILED ||
                       entry->state == MOEC_CACHE_QUEUED)) {
        moec_residency_drop(cache->residency, key);
        moec_cache_entry_leave(cache, key);
    }
}

/* Of a prompt: what the next layer will ask for is present as far as there is room. */
static void read_on(struct moec_expert_cache *cache)
{
    for (uint32_t key; (key = moec_prompt_prefetch_next(&cache->prompt_prefetch)) != MOEC_EVICT_NONE;)
        if (!moec_cache_prefetch(cache, key))
            return;
}

/* ---- asking ---- */

static void count_present(struct moec_expert_cache *cache, uint32_t key)
{
    struct moec_cache_counters *counters = moec_cache_counters_of(cache, key);
    if (cache->entries[key].state == MOEC_CACHE_READY)
        counters->hits++;
    else
        counters->late++;
    moec_cache_entry_ask(cache, key);
}

/* The experts of an answer, as it names them, with the number of tokens that take each or NULL, or of one
 * acquire: was_present then tells which of them were. */
static void ask(struct moec_expert_cache *cache, uint32_t ordinal, uint32_t form, const uint32_t *experts,
                uint32_t n_experts, const uint32_t *n_takers)
{
    const uint32_t first = moec_cache_key(cache, ordinal, form, 0);
    moec_residency_ask(cache->residency, ordinal, form, experts, n_experts, cache->was_present);
    for (uint32_t i = 0; i < n_experts; i++) {
        cache->entries[first + experts[i]].expected++;
        if (!cache->was_present[i])
            continue;
        count_present(cache, first + experts[i]);
        if (!cache->keeps_expected)
            moec_residency_release(cache->residency, first + experts[i]);
    }
    moec_read_order(n_experts, cache->was_present, cache->was_present, true, n_takers, cache->turns);
    for (uint32_t i = 0; i < n_experts; i++) {
        const uint32_t key = first + experts[cache->turns[i]];
        if (cache->was_present[cache->turns[i]])
            continue;
        moec_cache_counters_of(cache, key)->misses++;
        admit_or_wait(cache, key);
    }
}

/* Rule 5 of runtime/policy/schedule/read_order.h. */
static void put_in_order(struct moec_expert_cache *cache, uint32_t ordinal,
                         const struct moec_router_answer *answer)
{
    const struct moec_cache_entry *entries = &cache->entries[moec_cache_key(cache, ordinal, answer->form, 0)];
    for (uint32_t i = 0; i < answer->active.n; i++)
        cache->is_ready[i] = entries[answer->active.list[i]].state == MOEC_CACHE_READY;
    moec_read_order(answer->active.n, cache->was_present, cache->is_ready,
                    cache->lists[MOEC_CACHE_WAITING].n > 0, answer->active.n_takers, answer->active.order);
    for (uint32_t i = 0; i < answer->active.n; i++)
        answer->active.order[i] = answer->active.list[answer->active.order[i]];
}

/* Prefetches that nothing has been asked of the device for are taken back when the router has answered. */
static void cancel_prefetches(struct moec_expert_cache *cache)
{
    const struct moec_key_list *prefetched = &cache->lists[MOEC_CACHE_PREFETCHED];
    const struct moec_read_rules rules = moec_cache_read_rules(cache);
    while (moec_read_takes_prefetches_back(&rules) && prefetched->n > 0) {
        const uint32_t key = prefetched->oldest;
        moec_residency_drop(cache->residency, key);
        moec_cache_entry_leave(cache, key);
    }
    moec_loader_cancel(cache);
}

static void cache_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    const uint64_t now_ns = moec_now_ns();
    if (answer->form + answer->active.list[answer->active.n - 1] / cache->n_expert >= cache->n_form)
        return; /* acquire reports it */
    (void)pthread_mutex_lock(&cache->lock);
    const uint32_t ordinal = (uint32_t)cache->ordinals[answer->layer];
    moec_loader_take(cache);
    ask(cache, ordinal, answer->form, answer->active.list, answer->active.n, answer->active.n_takers);
    cancel_prefetches(cache);
    if (answer->active.order != NULL)
        put_in_order(cache, ordinal, answer);
    cache->is_prefetched_out = true;
    if (cache->preload != NULL) {
        moec_preload_answer(cache->preload, answer, ordinal, now_ns);
        cache->is_prefetched_out = !moec_preload_knows(cache->preload);
    }
    if (cache->options.preload.reads_on)
        moec_prompt_prefetch_answered(&cache->prompt_prefetch, ordinal, answer);
    read_on(cache);
    moec_loader_begin(cache);
    moec_loader_notify(cache);
    (void)pthread_mutex_unlock(&cache->lock);
}

static bool cache_wants_prefetch(struct moec_experts *self, uint32_t ahead)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    if (cache->preload == NULL)
        return false;
    (void)pthread_mutex_lock(&cache->lock);
    const bool wants = moec_preload_wants_rank(cache->preload, ahead);
    (void)pthread_mutex_unlock(&cache->lock);
    return wants;
}

/* The preloader prefetches behind what the answer asks for: that has found room, or waits for it. */
static void cache_prefetch(struct moec_experts *self, const struct moec_router_answer *answer, uint32_t ahead)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    (void)pthread_mutex_lock(&cache->lock);
    moec_preload_rank(cache->preload, answer, ahead);
    cache->is_prefetched_out = cache->options.preload.count > 0;
    if (cache->is_prefetched_out)
        for (uint32_t key; (key = moec_preload_next(cache->preload, moec_now_ns())) != MOEC_EVICT_NONE;)
            (void)moec_cache_prefetch(cache, key);
    moec_loader_begin(cache);
    moec_loader_notify(cache);
    (void)pthread_mutex_unlock(&cache->lock);
}

/* The layer's answer long before it comes: its experts are read behind what is demanded. */
static void cache_hint(struct moec_experts *self, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    if (cache->preload == NULL || !cache->options.preload.predictor->knows_tokens)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    moec_preload_know(cache->preload, (uint32_t)cache->ordinals[layer], experts, n);
    cache->is_prefetched_out = false;
    moec_loader_begin(cache);
    moec_loader_notify(cache);
    (void)pthread_mutex_unlock(&cache->lock);
}

static void cache_begin_prompt(struct moec_experts *self, uint32_t layer, uint32_t n_tok, const bool *is_low)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    if (!cache->options.preload.reads_on)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    moec_prompt_prefetch_begin(&cache->prompt_prefetch, (uint32_t)cache->ordinals[layer], n_tok, is_low);
    read_on(cache);
    moec_loader_begin(cache);
    moec_loader_notify(cache);
    (void)pthread_mutex_unlock(&cache->lock);
}

/* ---- taking and giving back ---- */

static enum moec_status find_key(const struct moec_expert_cache *cache, struct moec_expert_request request,
                                 uint32_t *key, struct moec_error *err)
{
    const uint32_t layer = request.layer, expert = request.expert;
    if (layer >= cache->bundle->config.n_layer || cache->ordinals[layer] < 0 || expert >= cache->n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "layer %u expert %u does not exist in the bundle '%s'", layer,
                         expert, cache->bundle->file.path);
    MOEC_TRY(moec_experts_check_form(&cache->experts, request, err));
    *key = moec_cache_key(cache, (uint32_t)cache->ordinals[layer], request.form, expert);
    return MOEC_OK;
}

void moec_cache_trace(struct moec_expert_cache *cache, uint32_t key, struct moec_trace_span span)
{
    if (cache->options.trace == NULL)
        return;
    const uint32_t form = moec_cache_form(cache, key);
    span.layer = moec_config_moe_layer(&cache->bundle->config, moec_cache_ordinal(cache, key));
    span.expert = moec_cache_expert(cache, key);
    span.has_form = form > 0;
    span.form = cache->forms[form];
    moec_trace_record(cache->options.trace, &span);
}

static void wait_for(struct moec_expert_cache *cache, uint32_t key)
{
    const struct moec_cache_entry *entry = &cache->entries[key];
    if (moec_cache_has_ended(entry))
        return;
    const uint64_t begun_ns = moec_now_ns();
    cache->n_waiting++;
    while (!moec_cache_has_ended(entry))
        moec_loader_wait(cache);
    cache->n_waiting--;
    const uint64_t now_ns = moec_now_ns();
    moec_cache_counters_of(cache, key)->stall_ns += now_ns - begun_ns;
    moec_cache_trace(cache, key,
                     (struct moec_trace_span){
                         .what = "wait", .lane = MOEC_TRACE_STALL, .begin_ns = begun_ns, .end_ns = now_ns});
}

static enum moec_status describe_failure(const struct moec_expert_cache *cache, uint32_t key,
                                         struct moec_error *err)
{
    return moec_record_failed(
        cache->bundle,
        (struct moec_record_id){cache->forms[moec_cache_form(cache, key)].copy,
                                moec_cache_ordinal(cache, key), moec_cache_expert(cache, key)},
        cache->entries[key].problem, cache->failure_key == key ? &cache->failure : NULL, err);
}

/* What waited for room or for a place may go on. */
static void go_on(struct moec_expert_cache *cache)
{
    admit_waiting(cache);
    read_on(cache);
    moec_loader_begin(cache);
    if (cache->n_sleeping > 0)
        (void)pthread_cond_broadcast(&cache->changed);
    moec_loader_notify(cache);
}

/* What was only expected is waited for from now on; it may have been given up meanwhile. */
static void demand(struct moec_expert_cache *cache, uint32_t key)
{
    if (moec_residency_is_present(cache->residency, key))
        moec_residency_hold(cache->residency, key);
    else
        admit_or_wait(cache, key);
}

/* Makes what lies in the buffer end after so many bytes; whether it does. */
static bool shrink_to(struct moec_expert_cache *cache, uint64_t buffer_bytes)
{
    if (moec_cache_frames(cache) != NULL)
        return moec_unit_frames_limit(cache, buffer_bytes);
    return moec_residency_limit(cache->residency, buffer_bytes) &&
           moec_arena_shrink(cache->arenas[0], buffer_bytes, &cache->counters->moved_bytes);
}

/* Whether it was made so large, and comes whole. */
static bool may_grow_to(const struct moec_expert_cache *cache, uint64_t buffer_bytes)
{
    return buffer_bytes <= cache->most_bytes && moec_cache_frames(cache) == NULL;
}

void moec_expert_cache_resize(struct moec_expert_cache *cache, uint64_t buffer_bytes)
{
    (void)pthread_mutex_lock(&cache->lock);
    if (buffer_bytes > cache->buffer_bytes && may_grow_to(cache, buffer_bytes)) {
        cache->buffer_bytes = buffer_bytes;
        (void)moec_residency_limit(cache->residency, buffer_bytes);
        moec_arena_grow(cache->arenas[0], buffer_bytes);
        go_on(cache);
    }
    if (buffer_bytes < cache->buffer_bytes) {
        cache->buffer_bytes = buffer_bytes;
        while (!shrink_to(cache, buffer_bytes)) {
            moec_loader_notify(cache);
            moec_loader_wait_change(cache);
        }
        cache->is_blocked = false;
        go_on(cache);
    }
    (void)pthread_mutex_unlock(&cache->lock);
}

static void hold(struct moec_expert_cache *cache, uint32_t key, struct moec_mlp *mlp)
{
    moec_cache_entry_hold(cache, key);
    moec_storage_bind(moec_cache_storage(cache, key), moec_cache_ordinal(cache, key),
                      moec_cache_expert(cache, key), moec_arena_slot(moec_cache_arena(cache, key), key), mlp);
    if (moec_cache_frames(cache) != NULL)
        moec_unit_frames_bind(cache, key, mlp);
}

static enum moec_status cache_acquire(struct moec_experts *self, struct moec_expert_request request,
                                      struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    enum moec_status status = MOEC_OK;
    uint32_t key = 0;
    MOEC_TRY(find_key(cache, request, &key, err));
    struct moec_cache_entry *entry = &cache->entries[key];
    (void)pthread_mutex_lock(&cache->lock);
    if (entry->expected == 0)
        ask(cache, moec_cache_ordinal(cache, key), request.form, &request.expert, 1, NULL);
    entry->expected--;
    entry->awaited++;
    if (!cache->keeps_expected)
        demand(cache, key);
    moec_loader_begin(cache);
    wait_for(cache, key);
    entry->awaited--;
    if (entry->state == MOEC_CACHE_FAILED) {
        status = describe_failure(cache, key, err);
        end_wish(cache, key, true);
        if (entry->state == MOEC_CACHE_FAILED) /* another session wants it too */
            moec_cache_entry_retry(cache, key);
        go_on(cache);
    } else {
        hold(cache, key, mlp);
    }
    (void)pthread_mutex_unlock(&cache->lock);
    return status;
}

static bool cache_borrow(struct moec_experts *self, struct moec_expert_request request, struct moec_mlp *mlp)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (find_key(cache, request, &key, NULL) != MOEC_OK)
        return false;
    (void)pthread_mutex_lock(&cache->lock);
    const bool is_there =
        cache->entries[key].state == MOEC_CACHE_READY && moec_residency_is_present(cache->residency, key);
    if (is_there) {
        moec_residency_hold(cache->residency, key);
        hold(cache, key, mlp);
    }
    (void)pthread_mutex_unlock(&cache->lock);
    return is_there;
}

static void cache_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (find_key(cache, request, &key, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    if (cache->entries[key].held > 0) {
        moec_cache_entry_release(cache, key);
        end_wish(cache, key, true);
        go_on(cache);
    }
    (void)pthread_mutex_unlock(&cache->lock);
}

static void cache_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (find_key(cache, request, &key, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    struct moec_cache_entry *entry = &cache->entries[key];
    if (entry->expected > 0) {
        entry->expected--;
        end_wish(cache, key, cache->keeps_expected);
        go_on(cache);
    }
    (void)pthread_mutex_unlock(&cache->lock);
}

static void cache_begin(struct moec_experts *self)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    (void)pthread_mutex_lock(&cache->lock);
    moec_residency_begin(cache->residency);
    (void)pthread_mutex_unlock(&cache->lock);
}

static bool cache_ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (find_key(cache, request, &key, NULL) != MOEC_OK)
        return false;
    (void)pthread_mutex_lock(&cache->lock);
    const struct moec_cache_entry *entry = &cache->entries[key];
    if (entry->state == MOEC_CACHE_READING && cache->units == NULL)
        moec_loader_take(cache);
    const bool ready = entry->state == MOEC_CACHE_READY ||
                       (cache->units != NULL && entry->state == MOEC_CACHE_READING && !entry->is_doomed);
    (void)pthread_mutex_unlock(&cache->lock);
    return ready;
}

static void cache_need(struct moec_experts *self, struct moec_expert_request request, const uint64_t *neurons,
                       bool touches_all)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    uint32_t key = 0;
    if (cache->units == NULL || find_key(cache, request, &key, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&cache->lock);
    moec_units_need(cache, key, neurons, touches_all);
    moec_loader_begin(cache);
    moec_loader_notify(cache);
    (void)pthread_mutex_unlock(&cache->lock);
}

static enum moec_status cache_await(struct moec_experts *self, struct moec_expert_request request,
                                    const uint64_t *neurons, bool touches_all, struct moec_error *err)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    enum moec_status status = MOEC_OK;
    uint32_t key = 0;
    MOEC_TRY(find_key(cache, request, &key, err));
    if (cache->units == NULL)
        return MOEC_OK;
    (void)pthread_mutex_lock(&cache->lock);
    if (moec_units_are_coming(cache, key)) {
        const uint64_t begun_ns = moec_now_ns();
        cache->n_waiting++;
        while (moec_units_are_coming(cache, key))
            moec_loader_wait(cache);
        cache->n_waiting--;
        const uint64_t now_ns = moec_now_ns();
        moec_cache_counters_of(cache, key)->stall_ns += now_ns - begun_ns;
        moec_cache_trace(
            cache, key,
            (struct moec_trace_span){
                .what = "wait", .lane = MOEC_TRACE_STALL, .begin_ns = begun_ns, .end_ns = now_ns});
    }
    if (!moec_units_are_there(cache, key, neurons, touches_all))
        status = moec_record_failed(cache->bundle,
                                    (struct moec_record_id){cache->options.records.copy,
                                                            moec_cache_ordinal(cache, key), request.expert},
                                    cache->units->entries[key].problem,
                                    cache->failure_key == key ? &cache->failure : NULL, err);
    moec_loader_begin(cache);
    moec_loader_notify(cache);
    (void)pthread_mutex_unlock(&cache->lock);
    return status;
}

/* A record never changes. */
static void cache_bytes(struct moec_experts *self, struct moec_expert_request request,
                        const struct moec_mlp *held, struct moec_expert_bytes *out)
{
    struct moec_expert_cache *cache = (struct moec_expert_cache *)self;
    const struct moec_record_layout *layout =
        moec_bundle_layout(cache->bundle, cache->forms[request.form].copy,
                           (uint32_t)cache->ordinals[request.layer], request.expert);
    *out = (struct moec_expert_bytes){
        .from = {held != NULL ? held->up.data : NULL}, .n_bytes = {layout->n_bytes}, .n_range = 1};
}

const struct moec_experts_ops moec_cache_ops = {.acquire = cache_acquire,
                                                .release = cache_release,
                                                .expect = cache_expect,
                                                .wants_prefetch = cache_wants_prefetch,
                                                .prefetch = cache_prefetch,
                                                .hint = cache_hint,
                                                .begin_prompt = cache_begin_prompt,
                                                .begin = cache_begin,
                                                .cancel = cache_cancel,
                                                .borrow = cache_borrow,
                                                .bytes = cache_bytes,
                                                .ready = cache_ready,
                                                .need = cache_need,
                                                .await = cache_await};
