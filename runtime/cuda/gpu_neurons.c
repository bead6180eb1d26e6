/* Two kinds of room: a slot for each expert's up projection, and rows for pairs of neurons, from a free
 * list. places[] of an expert says in which row each neuron's pair is, or nowhere. Decoded tokens use this
 * pool, longer batches the pool of whole records. What one holds behind is given back before the other asks
 * there. A record is held only while copies read it. Rows of evicted experts are written after the marks of
 * their last use (freed). */
#include "runtime/cuda/gpu_neurons_internal.h"

#include <string.h>

static struct moec_gpu_neurons *of(struct moec_experts *self)
{
    return (struct moec_gpu_neurons *)self;
}

static uint32_t key_of(const struct moec_gpu_neurons *n, struct moec_expert_request request)
{
    return (uint32_t)n->keys.ordinals[request.layer] * n->keys.n_expert + request.expert;
}

static struct moec_expert_request request_of(const struct moec_gpu_neurons *n, uint32_t key)
{
    const struct moec_config *config = &n->setup.experts.bundle->config;
    return moec_expert_request_of(moec_config_moe_layer(config, key / n->keys.n_expert),
                                  key % n->keys.n_expert);
}

static const struct moec_record_layout *layout_of(const struct moec_gpu_neurons *n, uint32_t key)
{
    return moec_bundle_layout(n->setup.experts.bundle, 0, key / n->keys.n_expert, key % n->keys.n_expert);
}

static enum moec_status check_request(const struct moec_gpu_neurons *n, struct moec_expert_request request,
                                      struct moec_error *err)
{
    const struct moec_bundle *bundle = n->setup.experts.bundle;
    if (request.layer >= bundle->config.n_layer || n->keys.ordinals[request.layer] < 0 ||
        request.expert >= n->keys.n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "layer %u expert %u does not exist in the bundle '%s'",
                         request.layer, request.expert, bundle->file.path);
    return moec_experts_check_form(&n->experts, request, err);
}

/* ---- records behind ---- */

/* The oldest flight's copies are done, or will never be. */
static void end_flight(struct moec_gpu_neurons *n)
{
    const struct moec_gpu_neuron_flight flight = n->copies.flights[n->copies.first_flight];
    n->copies.first_flight = (n->copies.first_flight + 1) % MOEC_GPU_NEURON_FLIGHTS;
    n->copies.n_flight--;
    n->copies.n_record--;
    n->behind->ops->release(n->behind, flight.request);
}

/* Waits until at most so many records are in flight. */
static enum moec_status land(struct moec_gpu_neurons *n, uint32_t most, struct moec_error *err)
{
    while (n->copies.n_flight > most) {
        const uint64_t copy = n->copies.flights[n->copies.first_flight].copy;
        if (copy > n->copies.n_landed)
            MOEC_TRY(n->ops->finish_event(n->setup.experts.gpu, moec_gpu_neurons_landed(n, copy), err));
        n->copies.n_landed = copy > n->copies.n_landed ? copy : n->copies.n_landed;
        end_flight(n);
    }
    return MOEC_OK;
}

/* Notes what has landed. */
static enum moec_status look(struct moec_gpu_neurons *n, struct moec_error *err)
{
    bool done = n->copies.n_copy == n->copies.n_landed;
    if (!done)
        MOEC_TRY(
            n->ops->is_done(n->setup.experts.gpu, moec_gpu_neurons_landed(n, n->copies.n_copy), &done, err));
    if (done)
        n->copies.n_landed = n->copies.n_copy;
    while (n->copies.n_flight > 0) {
        const uint64_t copy = n->copies.flights[n->copies.first_flight].copy;
        if (copy > n->copies.n_landed)
            MOEC_TRY(n->ops->is_done(n->setup.experts.gpu, moec_gpu_neurons_landed(n, copy), &done, err));
        if (copy > n->copies.n_landed && !done)
            break;
        n->copies.n_landed = copy > n->copies.n_landed ? copy : n->copies.n_landed;
        end_flight(n);
    }
    return MOEC_OK;
}

/* An entry needs its record no more: it is given back when copies under way have read it. */
static void let_go(struct moec_gpu_neurons *n, uint32_t key)
{
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    if (entry->record == NULL)
        return;
    if (n->copies.n_flight == MOEC_GPU_NEURON_FLIGHTS && land(n, n->copies.n_flight - 1, NULL) != MOEC_OK)
        end_flight(n); /* a lost device */
    n->copies.flights[(n->copies.first_flight + n->copies.n_flight++) % MOEC_GPU_NEURON_FLIGHTS] =
        (struct moec_gpu_neuron_flight){request_of(n, key), entry->read};
    entry->record = NULL;
}

void moec_gpu_neurons_settle(struct moec_gpu_neurons *n)
{
    for (uint32_t key = 0; key < n->keys.n; key++)
        let_go(n, key);
    if (land(n, 0, NULL) != MOEC_OK)
        while (n->copies.n_flight > 0)
            end_flight(n);
}

static void cancel_behind(struct moec_gpu_neurons *n, uint32_t key)
{
    if (n->keys.entries[key].is_asked && n->behind->ops->cancel != NULL)
        n->behind->ops->cancel(n->behind, request_of(n, key));
    n->keys.entries[key].is_asked = false;
}

static bool is_ready_behind(const struct moec_gpu_neurons *n, struct moec_expert_request request)
{
    return n->behind->ops->ready == NULL || n->behind->ops->ready(n->behind, request);
}

static uint32_t most_behind(const struct moec_gpu_neurons *n)
{
    return n->behind->max_held > 0 ? n->behind->max_held : 1;
}

/* Holds a key's record behind. Waiting for one there, nothing else is held (runtime/seam/experts.h). */
static enum moec_status take_record(struct moec_gpu_neurons *n, uint32_t key, struct moec_error *err)
{
    const struct moec_expert_request request = request_of(n, key);
    const uint32_t n_held = n->copies.n_record - n->copies.n_flight, most = most_behind(n);
    const uint32_t most_flying = is_ready_behind(n, request) && most > n_held ? most - n_held - 1 : 0;
    struct moec_mlp mlp;
    const enum moec_status status = land(n, most_flying, err);
    if (status != MOEC_OK) {
        cancel_behind(n, key);
        return status;
    }
    n->keys.entries[key].is_asked = false;
    MOEC_TRY(n->behind->ops->acquire(n->behind, request, &mlp, err));
    n->keys.entries[key].record = mlp.up.data;
    n->copies.n_record++;
    return MOEC_OK;
}

/* The record of an expert of which something is there, and for which the source behind was not asked. What it
 * was asked for is asked for again, lest one waits there for the other. */
static enum moec_status take_record_again(struct moec_gpu_neurons *n, uint32_t key, struct moec_error *err)
{
    const struct moec_expert_request request = request_of(n, key);
    struct moec_mlp mlp;
    MOEC_TRY(land(n, most_behind(n) - 1, err));
    if (n->behind->ops->borrow != NULL && n->copies.n_record < most_behind(n) &&
        n->behind->ops->borrow(n->behind, request, &mlp)) {
        n->keys.entries[key].record = mlp.up.data;
        n->copies.n_record++;
        return MOEC_OK;
    }
    for (uint32_t other = 0; other < n->keys.n; other++) {
        cancel_behind(n, other);
        let_go(n, other);
    }
    MOEC_TRY(land(n, 0, err));
    return take_record(n, key, err);
}

/* ---- room ---- */

void moec_gpu_neurons_leave(void *context, uint32_t key)
{
    struct moec_gpu_neurons *n = context;
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    uint32_t *places = moec_gpu_neurons_places(n, key);
    for (uint32_t i = 0; i < n->keys.n_ff; i++)
        if (places[i] != MOEC_CUDA_NOWHERE)
            n->pool.free_rows[n->pool.n_free_row++] = places[i];
    n->pool.free_slots[n->pool.n_free_slot++] = entry->slot;
    if (entry->used > n->copies.freed)
        n->copies.freed = entry->used;
    n->counters.evictions++;
}

/* Takes a key out that was admitted with one demand. */
static void undo(struct moec_gpu_neurons *n, uint32_t key)
{
    moec_residency_release(n->residency, key);
    moec_residency_drop(n->residency, key);
    moec_gpu_neurons_leave(n, key);
    n->counters.evictions--;
}

/* Makes an absent key present, with one demand. There is room for all that one answer demands. */
static enum moec_status admit(struct moec_gpu_neurons *n, uint32_t key, struct moec_error *err)
{
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    if (!moec_residency_admit(n->residency, key))
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the device's pool has room for %u experts, but more are in use at once: give a "
                         "larger --vram",
                         n->setup.plan.n_slot);
    entry->slot = n->pool.free_slots[--n->pool.n_free_slot];
    entry->copy = entry->read = entry->used = 0;
    memset(moec_gpu_neurons_places(n, key), 0xff, n->keys.n_ff * sizeof *n->pool.places);
    return MOEC_OK;
}

/* Gives the neurons of a list rows; false where what is demanded leaves too few. */
static bool take_rows(struct moec_gpu_neurons *n, uint32_t key, const uint32_t *list, uint32_t n_list)
{
    uint32_t *places = moec_gpu_neurons_places(n, key);
    while (n->pool.n_free_row < n_list)
        if (!moec_residency_shrink(n->residency, key))
            return false;
    for (uint32_t i = 0; i < n_list; i++)
        places[list[i]] = n->pool.free_rows[--n->pool.n_free_row];
    return true;
}

static void give_rows_back(struct moec_gpu_neurons *n, uint32_t key, const uint32_t *list, uint32_t n_list)
{
    uint32_t *places = moec_gpu_neurons_places(n, key);
    for (uint32_t i = 0; i < n_list; i++) {
        n->pool.free_rows[n->pool.n_free_row++] = places[list[i]];
        places[list[i]] = MOEC_CUDA_NOWHERE;
    }
}

/* ---- copies ---- */

/* Copies that are given from now on go to room that nothing uses any more. */
static enum moec_status wait_for_room(struct moec_gpu_neurons *n, uint64_t used, struct moec_error *err)
{
    n->copies.freed = used > n->copies.freed ? used : n->copies.freed;
    if (n->copies.freed > n->copies.n_waited) {
        MOEC_TRY(n->ops->wait(n->setup.experts.gpu, n->copies.stream,
                              n->copies.marks[n->copies.freed % MOEC_GPU_NEURON_MARKS], err));
        n->copies.n_waited = n->copies.freed;
    }
    return MOEC_OK;
}

static enum moec_status mark_copy(struct moec_gpu_neurons *n, uint32_t key, bool reads_record,
                                  struct moec_error *err)
{
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    MOEC_TRY(n->ops->record(n->setup.experts.gpu, n->copies.stream,
                            moec_gpu_neurons_landed(n, n->copies.n_copy + 1), err));
    entry->copy = ++n->copies.n_copy;
    if (reads_record)
        entry->read = entry->copy;
    return MOEC_OK;
}

/* Nothing that was given reads a record any more; of what was to land, nothing counts. */
static enum moec_status give_up_copies(struct moec_gpu_neurons *n, enum moec_status status)
{
    (void)n->ops->finish(n->setup.experts.gpu, n->copies.stream, NULL);
    return status;
}

/* Begins to copy the up projection of an admitted key, whose record is held. */
static enum moec_status copy_up(struct moec_gpu_neurons *n, uint32_t key, struct moec_error *err)
{
    const struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    const uint64_t n_bytes = layout_of(n, key)->up_bytes;
    MOEC_TRY(wait_for_room(n, 0, err));
    enum moec_status status = n->ops->copy(
        n->setup.experts.gpu, n->copies.stream,
        (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, n->pool.memory + entry->slot * n->setup.plan.slot_bytes,
                               entry->record, n_bytes},
        err);
    if (status == MOEC_OK) {
        n->counters.copied_bytes += n_bytes;
        status = mark_copy(n, key, true, err);
    }
    return status == MOEC_OK ? MOEC_OK : give_up_copies(n, status);
}

/* Neurons of those marked whose pairs are not there; with NULL of all. */
static uint32_t list_missing(const struct moec_gpu_neurons *n, uint32_t key, const uint64_t *neurons,
                             uint32_t *list)
{
    const uint32_t *places = moec_gpu_neurons_places(n, key);
    uint32_t n_list = 0;
    for (uint32_t i = 0; i < n->keys.n_ff; i++)
        if (places[i] == MOEC_CUDA_NOWHERE && (neurons == NULL || (neurons[i / 64] >> (i % 64) & 1) != 0))
            list[n_list++] = i;
    return n_list;
}

/* Begins to copy pairs of a key, whose record is held. */
static enum moec_status copy_pairs(struct moec_gpu_neurons *n, uint32_t key, const uint64_t *neurons,
                                   struct moec_error *err)
{
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    const struct moec_record_layout *layout = layout_of(n, key);
    const uint32_t *list = n->answer.list;
    uint32_t n_list = list_missing(n, key, neurons, n->answer.list);
    if (n_list == 0)
        return MOEC_OK;
    bool copies_all = moec_gpu_gather_copies_all(n->copies.gather, n_list, n->keys.n_ff);
    if (copies_all) {
        const uint32_t n_all = list_missing(n, key, NULL, n->answer.list + n->keys.n_ff);
        copies_all = take_rows(n, key, n->answer.list + n->keys.n_ff, n_all);
        list = copies_all ? n->answer.list + n->keys.n_ff : list;
        n_list = copies_all ? n_all : n_list;
    }
    if (!copies_all && !take_rows(n, key, list, n_list))
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the device's pool has room for %u neurons, but more are in use at once: give a "
                         "larger --vram",
                         n->setup.plan.n_row);
    const struct moec_gpu_gathering gathering = {.pairs = entry->record + layout->up_bytes,
                                                 .step = layout->pair_stride_bytes,
                                                 .places = moec_gpu_neurons_places(n, key),
                                                 .n_neuron = n->keys.n_ff,
                                                 .to = n->pool.rows,
                                                 .to_step = n->setup.plan.row_bytes,
                                                 .device_places = n->pool.device_places +
                                                                  (size_t)entry->slot * n->keys.n_ff};
    uint64_t *n_bytes = &n->counters.copied_bytes;
    enum moec_status status = wait_for_room(n, entry->used, err);
    if (status == MOEC_OK)
        status = copies_all ? moec_gpu_gather_all(n->copies.gather, &gathering, n_bytes, err)
                            : moec_gpu_gather_some(n->copies.gather, &gathering, list, n_list, n_bytes, err);
    if (status == MOEC_OK)
        status = mark_copy(n, key, copies_all, err);
    if (status == MOEC_OK)
        return MOEC_OK;
    give_rows_back(n, key, list, n_list);
    return give_up_copies(n, status);
}

/* ---- what the router answers ---- */

/* Of one kind of batches or the other: what that held behind is given back before the other asks there. */
static void choose_kind(struct moec_gpu_neurons *n, const struct moec_router_answer *answer)
{
    const bool is_whole = answer->n_tok > MOEC_CUDA_FEW;
    if (is_whole && !n->answer.is_whole)
        moec_gpu_neurons_settle(n);
    if (!is_whole && n->answer.is_whole)
        moec_gpu_experts_settle(n->whole);
    n->answer.is_whole = is_whole;
}

static uint32_t ask(struct moec_gpu_neurons *n, const struct moec_router_answer *answer)
{
    const uint32_t ordinal = (uint32_t)n->keys.ordinals[answer->layer], first = ordinal * n->keys.n_expert;
    uint32_t n_missing = 0;
    moec_residency_ask(n->residency, ordinal, 0, answer->active.list, answer->active.n,
                       n->answer.was_present);
    for (uint32_t i = 0; i < answer->active.n; i++) {
        struct moec_gpu_neuron_entry *entry = &n->keys.entries[first + answer->active.list[i]];
        if (n->answer.was_present[i]) {
            entry->expected++;
            n->counters.hits += entry->copy <= n->copies.n_landed;
            n->counters.late += entry->copy > n->copies.n_landed;
            continue;
        }
        n->counters.misses++;
        if (answer->active.n_takers != NULL)
            n->answer.takers[n_missing] = answer->active.n_takers[i];
        n->answer.missing[n_missing++] = answer->active.list[i];
    }
    return n_missing;
}

static void ask_behind(struct moec_gpu_neurons *n, const struct moec_router_answer *answer,
                       uint32_t n_missing)
{
    struct moec_router_answer asked = *answer;
    asked.active.list = n->answer.missing;
    asked.active.n = n_missing;
    asked.active.n_takers = answer->active.n_takers != NULL ? n->answer.takers : NULL;
    asked.active.order = n->answer.order;
    memcpy(n->answer.order, n->answer.missing, n_missing * sizeof *n->answer.order);
    n->answer.was_told = n_missing > 0 && n->behind->ops->expect != NULL;
    if (!n->answer.was_told)
        return;
    n->behind->ops->expect(n->behind, &asked);
    for (uint32_t i = 0; i < n_missing; i++)
        n->keys.entries[(uint32_t)n->keys.ordinals[answer->layer] * n->keys.n_expert + n->answer.missing[i]]
            .is_asked = true;
}

static void neurons_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_gpu_neurons *n = of(self);
    if (answer->form > 0 || answer->active.list[answer->active.n - 1] >= n->keys.n_expert)
        return; /* acquire reports it */
    (void)pthread_mutex_lock(&n->lock);
    choose_kind(n, answer);
    if (n->answer.is_whole) {
        struct moec_experts *whole = moec_gpu_experts_source(n->whole);
        (void)pthread_mutex_unlock(&n->lock);
        whole->ops->expect(whole, answer);
        return;
    }
    (void)look(n, NULL);
    const uint32_t n_missing = ask(n, answer);
    ask_behind(n, answer, n_missing);
    if (answer->active.order != NULL) {
        uint32_t n_present = 0;
        for (uint32_t i = 0; i < answer->active.n; i++)
            if (n->answer.was_present[i])
                answer->active.order[n_present++] = answer->active.list[i];
        memcpy(answer->active.order + n_present, n->answer.order, n_missing * sizeof *answer->active.order);
    }
    (void)pthread_mutex_unlock(&n->lock);
}

/* The pool of whole records, where the answer at work is its. */
static struct moec_experts *whole_of(struct moec_gpu_neurons *n)
{
    (void)pthread_mutex_lock(&n->lock);
    struct moec_experts *whole = n->answer.is_whole ? moec_gpu_experts_source(n->whole) : NULL;
    (void)pthread_mutex_unlock(&n->lock);
    return whole;
}

static bool neurons_wants_prefetch(struct moec_experts *self, uint32_t ahead)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = whole_of(n);
    if (whole != NULL)
        return whole->ops->wants_prefetch(whole, ahead);
    return n->answer.was_told && n->behind->ops->prefetch != NULL &&
           n->behind->ops->wants_prefetch(n->behind, ahead);
}

/* The cache behind reads what it guesses. */
static void neurons_prefetch(struct moec_experts *self, const struct moec_router_answer *answer,
                             uint32_t ahead)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = whole_of(n), *next = whole != NULL ? whole : n->behind;
    next->ops->prefetch(next, answer, ahead);
}

static void neurons_hint(struct moec_experts *self, uint32_t layer, const uint32_t *list, uint32_t n_list)
{
    struct moec_gpu_neurons *n = of(self);
    if (n->behind->ops->hint != NULL)
        n->behind->ops->hint(n->behind, layer, list, n_list);
}

static void neurons_begin(struct moec_experts *self)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = moec_gpu_experts_source(n->whole);
    (void)pthread_mutex_lock(&n->lock);
    moec_residency_begin(n->residency);
    (void)pthread_mutex_unlock(&n->lock);
    whole->ops->begin(whole); /* which tells the source behind */
}

/* ---- taking and giving back ---- */

/* Makes the key present, with one demand of the caller's, and its up projection on its way. */
static enum moec_status demand(struct moec_gpu_neurons *n, uint32_t key, struct moec_error *err)
{
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    if (entry->expected > 0) {
        entry->expected--;
        return MOEC_OK;
    }
    if (moec_residency_is_present(n->residency, key)) {
        cancel_behind(n, key);
        moec_residency_hold(n->residency, key);
        return MOEC_OK;
    }
    enum moec_status status = admit(n, key, err);
    if (status != MOEC_OK) {
        cancel_behind(n, key);
        return status;
    }
    status = take_record(n, key, err);
    if (status == MOEC_OK)
        status = copy_up(n, key, err);
    if (status != MOEC_OK) {
        let_go(n, key);
        undo(n, key);
        return status;
    }
    n->counters.record_bytes += layout_of(n, key)->n_bytes;
    return MOEC_OK;
}

/* As moec_record_bind, with gate and down rows where they are. */
static void bind(const struct moec_gpu_neurons *n, uint32_t key, struct moec_mlp *mlp)
{
    const struct moec_record_layout *layout = layout_of(n, key);
    const struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    moec_record_bind(layout, n->pool.memory + entry->slot * n->setup.plan.slot_bytes, mlp);
    mlp->gate.data = n->pool.rows;
    mlp->down.data = n->pool.rows + layout->row_bytes[MOEC_PROJECTION_GATE];
    mlp->gate.stride_bytes = mlp->down.stride_bytes = n->setup.plan.row_bytes;
    mlp->places = n->pool.device_places + (size_t)entry->slot * n->keys.n_ff;
}

/* What is given to the stream of uses from now on finds what was copied. */
static enum moec_status wait_for_copies(struct moec_gpu_neurons *n, uint32_t key, struct moec_error *err)
{
    const struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    if (entry->copy <= n->copies.n_landed)
        return MOEC_OK;
    return n->ops->wait(n->setup.experts.gpu, n->setup.experts.compute,
                        moec_gpu_neurons_landed(n, entry->copy), err);
}

static enum moec_status take(struct moec_gpu_neurons *n, uint32_t key, struct moec_mlp *mlp,
                             struct moec_error *err)
{
    MOEC_TRY(demand(n, key, err));
    const enum moec_status status = wait_for_copies(n, key, err);
    if (status != MOEC_OK) {
        let_go(n, key);
        moec_residency_release(n->residency, key);
        return status;
    }
    n->keys.entries[key].held++;
    bind(n, key, mlp);
    return MOEC_OK;
}

static enum moec_status neurons_acquire(struct moec_experts *self, struct moec_expert_request request,
                                        struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = whole_of(n);
    if (whole != NULL)
        return whole->ops->acquire(whole, request, mlp, err);
    MOEC_TRY(check_request(n, request, err));
    (void)pthread_mutex_lock(&n->lock);
    const enum moec_status status = take(n, key_of(n, request), mlp, err);
    (void)pthread_mutex_unlock(&n->lock);
    return status;
}

/* A record that is held anyway is read now; others when it is known that something is missing of them. What
 * goes wrong is tried again, and reported, when it is waited for. */
static void neurons_need(struct moec_experts *self, struct moec_expert_request request,
                         const uint64_t *neurons, bool touches_all)
{
    struct moec_gpu_neurons *n = of(self);
    (void)touches_all; /* kernels do not read what they leave out */
    if (whole_of(n) != NULL || check_request(n, request, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&n->lock);
    const uint32_t key = key_of(n, request);
    if (n->keys.entries[key].record != NULL && n->keys.entries[key].held > 0) {
        (void)copy_pairs(n, key, neurons, NULL);
        let_go(n, key);
    }
    (void)pthread_mutex_unlock(&n->lock);
}

static enum moec_status await(struct moec_gpu_neurons *n, uint32_t key, const uint64_t *neurons,
                              struct moec_error *err)
{
    if (list_missing(n, key, neurons, n->answer.list) > 0) {
        MOEC_TRY(take_record_again(n, key, err));
        const enum moec_status status = copy_pairs(n, key, neurons, err);
        let_go(n, key);
        MOEC_TRY(status);
    }
    return wait_for_copies(n, key, err);
}

static enum moec_status neurons_await(struct moec_experts *self, struct moec_expert_request request,
                                      const uint64_t *neurons, bool touches_all, struct moec_error *err)
{
    struct moec_gpu_neurons *n = of(self);
    (void)touches_all;
    if (whole_of(n) != NULL)
        return MOEC_OK;
    MOEC_TRY(check_request(n, request, err));
    (void)pthread_mutex_lock(&n->lock);
    const enum moec_status status = await(n, key_of(n, request), neurons, err);
    (void)pthread_mutex_unlock(&n->lock);
    return status;
}

/* The mark stands behind all work on the expert that was given. A device that refuses it is lost. */
static void give_back(struct moec_gpu_neurons *n, uint32_t key)
{
    struct moec_gpu_neuron_entry *entry = &n->keys.entries[key];
    if (entry->held == 0)
        return;
    entry->held--;
    let_go(n, key);
    entry->used = ++n->copies.n_mark;
    (void)n->ops->record(n->setup.experts.gpu, n->setup.experts.compute,
                         n->copies.marks[entry->used % MOEC_GPU_NEURON_MARKS], NULL);
    moec_residency_release(n->residency, key);
}

static void neurons_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = whole_of(n);
    if (whole != NULL) {
        whole->ops->release(whole, request);
        return;
    }
    if (check_request(n, request, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&n->lock);
    give_back(n, key_of(n, request));
    (void)pthread_mutex_unlock(&n->lock);
}

static void neurons_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = whole_of(n);
    if (whole != NULL) {
        whole->ops->cancel(whole, request);
        return;
    }
    if (check_request(n, request, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&n->lock);
    const uint32_t key = key_of(n, request);
    if (n->keys.entries[key].expected > 0) {
        n->keys.entries[key].expected--;
        moec_residency_release(n->residency, key);
    }
    cancel_behind(n, key);
    (void)pthread_mutex_unlock(&n->lock);
}

static bool neurons_ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_neurons *n = of(self);
    struct moec_experts *whole = whole_of(n);
    if (whole != NULL)
        return whole->ops->ready(whole, request);
    if (check_request(n, request, NULL) != MOEC_OK)
        return false;
    (void)pthread_mutex_lock(&n->lock);
    const bool ready =
        moec_residency_is_present(n->residency, key_of(n, request)) ||
        (n->copies.n_record - n->copies.n_flight + 1 < most_behind(n) && is_ready_behind(n, request));
    (void)pthread_mutex_unlock(&n->lock);
    return ready;
}

const struct moec_experts_ops moec_gpu_neurons_ops = {.acquire = neurons_acquire,
                                                      .release = neurons_release,
                                                      .expect = neurons_expect,
                                                      .wants_prefetch = neurons_wants_prefetch,
                                                      .prefetch = neurons_prefetch,
                                                      .hint = neurons_hint,
                                                      .begin = neurons_begin,
                                                      .cancel = neurons_cancel,
                                                      .ready = neurons_ready,
                                                      .need = neurons_need,
                                                      .await = neurons_await};
