/* A first-fit pool: keys stand in the order of their offsets, and a gap is what lies between two. Room that
 * is given up is written only after the last mark of work on it (freed, freed_copy). Copies run on one
 * stream, numbered; a record behind is held until its copy has landed. `asked`, `expected` and `held` count
 * the wishes of answers, and each wish ends once, by acquire or cancel. Whoever waits behind for a record
 * holds no other there, or two passes could wait for each other. */
#include "runtime/cuda/gpu_experts_internal.h"

#include "formats/base/clock.h"
#include "runtime/policy/schedule/cooperation.h"
#include "runtime/policy/schedule/read_order.h"

#include <string.h>

static struct moec_gpu_experts *of(struct moec_experts *self)
{
    return (struct moec_gpu_experts *)self;
}

/* Whether all of a present key's record has come. */
static bool is_there(const struct moec_gpu_experts *experts, uint32_t key)
{
    return key != experts->guesses.key && experts->keys.entries[key].copy <= experts->copies.n_landed;
}

/* ---- places in the pool ---- */

static bool find_gap(const struct moec_gpu_experts *experts, uint64_t n_bytes, uint64_t *offset, uint32_t *at)
{
    uint64_t end = 0;
    for (*at = 0; *at < experts->pool.n_slot; ++*at) {
        const uint32_t key = experts->pool.slots[*at];
        if (experts->keys.entries[key].offset - end >= n_bytes)
            break;
        end = experts->keys.entries[key].offset + experts->keys.slot_bytes[key];
    }
    *offset = end;
    return *at < experts->pool.n_slot || experts->pool.n_bytes - end >= n_bytes;
}

bool moec_gpu_place(struct moec_gpu_experts *experts, uint32_t key)
{
    uint64_t offset = 0;
    uint32_t at = 0;
    if (!find_gap(experts, experts->keys.slot_bytes[key], &offset, &at))
        return false;
    memmove(experts->pool.slots + at + 1, experts->pool.slots + at,
            (experts->pool.n_slot - at) * sizeof *experts->pool.slots);
    experts->pool.slots[at] = key;
    experts->pool.n_slot++;
    experts->keys.entries[key].offset = offset;
    return true;
}

/* What comes next into its room waits for the work that used it. */
void moec_gpu_leave(struct moec_gpu_experts *experts, uint32_t key)
{
    uint32_t at = 0;
    while (experts->pool.slots[at] != key)
        at++;
    experts->pool.n_slot--;
    memmove(experts->pool.slots + at, experts->pool.slots + at + 1,
            (experts->pool.n_slot - at) * sizeof *experts->pool.slots);
    if (experts->keys.entries[key].used > experts->copies.freed)
        experts->copies.freed = experts->keys.entries[key].used;
    if (experts->keys.entries[key].copy > experts->copies.freed_copy)
        experts->copies.freed_copy = experts->keys.entries[key].copy;
    moec_gpu_preload_judge(experts, key, false);
}

/* Of the residency. */
void moec_gpu_evicted(void *context, uint32_t key)
{
    struct moec_gpu_experts *experts = context;
    experts->counters.evictions++;
    moec_gpu_leave(experts, key);
}

/* Takes a key out that was admitted with one demand. */
static void undo(struct moec_gpu_experts *experts, uint32_t key)
{
    moec_residency_release(experts->residency, key);
    moec_residency_drop(experts->residency, key);
}

/* Makes an absent key present, with one demand, and gives it a place. False where what is demanded leaves
 * none. */
static bool admit(struct moec_gpu_experts *experts, uint32_t key)
{
    if (!moec_residency_admit(experts->residency, key))
        return false;
    while (!moec_gpu_place(experts, key)) {
        if (!moec_residency_shrink(experts->residency, key)) {
            undo(experts, key);
            return false;
        }
    }
    return true;
}

/* ---- copies ---- */

/* The oldest copy under way is done, or will never be: its source is given back. */
void moec_gpu_end_flight(struct moec_gpu_experts *experts)
{
    const struct moec_gpu_flight *flight =
        &experts->copies.flights[++experts->copies.n_landed % MOEC_GPU_FLYING];
    experts->setup.behind->ops->release(experts->setup.behind, flight->request);
}

/* Notes which copies have landed. */
static enum moec_status look(struct moec_gpu_experts *experts, struct moec_error *err)
{
    bool done = true;
    while (experts->copies.n_landed < experts->copies.n_copy) {
        const struct moec_gpu_event *event = moec_gpu_landed(experts, experts->copies.n_landed + 1);
        MOEC_TRY(experts->ops->is_done(experts->setup.gpu, event, &done, err));
        if (!done)
            break;
        moec_gpu_end_flight(experts);
    }
    return MOEC_OK;
}

/* Waits until at most n copies are under way. */
static enum moec_status land(struct moec_gpu_experts *experts, uint64_t n, struct moec_error *err)
{
    while (experts->copies.n_copy - experts->copies.n_landed > n) {
        MOEC_TRY(experts->ops->finish_event(experts->setup.gpu,
                                            moec_gpu_landed(experts, experts->copies.n_landed + 1), err));
        moec_gpu_end_flight(experts);
    }
    return MOEC_OK;
}

/* Copies under way are in order, so that one event tells of all before. */
static enum moec_status give_copy(struct moec_gpu_experts *experts, uint32_t key, const uint8_t *record,
                                  struct moec_error *err)
{
    const struct moec_gpu_ops *ops = experts->ops;
    struct moec_gpu *gpu = experts->setup.gpu;
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    const uint64_t n_bytes = moec_gpu_layout(experts, key)->n_bytes;
    if (experts->copies.freed > experts->copies.n_waited) {
        MOEC_TRY(ops->wait(gpu, experts->copies.stream,
                           experts->copies.marks[experts->copies.freed % MOEC_GPU_MARKS], err));
        experts->copies.n_waited = experts->copies.freed;
    }
    if (experts->guesses.has_left) {
        MOEC_TRY(moec_gpu_prefetches_wait(experts->guesses.prefetches, experts->copies.stream, err));
        experts->guesses.has_left = false;
    }
    MOEC_TRY(ops->copy(
        gpu, experts->copies.stream,
        (struct moec_gpu_move){MOEC_GPU_TO_DEVICE, experts->pool.memory + entry->offset, record, n_bytes},
        err));
    MOEC_TRY(
        ops->record(gpu, experts->copies.stream, moec_gpu_landed(experts, experts->copies.n_copy + 1), err));
    entry->copy = ++experts->copies.n_copy;
    experts->counters.copied_bytes += n_bytes;
    experts->counters.record_bytes += n_bytes;
    return MOEC_OK;
}

void moec_gpu_experts_settle(struct moec_gpu_experts *experts)
{
    (void)pthread_mutex_lock(&experts->lock);
    if (land(experts, 0, NULL) != MOEC_OK)
        while (experts->copies.n_landed < experts->copies.n_copy)
            moec_gpu_end_flight(experts);
    (void)pthread_mutex_unlock(&experts->lock);
}

bool moec_gpu_is_ready_behind(const struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    struct moec_experts *behind = experts->setup.behind;
    return behind->ops->ready == NULL || behind->ops->ready(behind, request);
}

/* The source behind has been asked for an expert once more than it will be. */
static void cancel_behind(struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    struct moec_experts *behind = experts->setup.behind;
    if (behind->ops->cancel != NULL)
        behind->ops->cancel(behind, request);
}

/* Records behind that copies may hold together; those that the processor holds leave less. */
static uint64_t most_behind(const struct moec_gpu_experts *experts)
{
    const uint64_t bound = experts->setup.behind->max_held > 0 ? experts->setup.behind->max_held : 1;
    const uint64_t most = bound > MOEC_GPU_FLYING ? MOEC_GPU_FLYING : bound;
    return most > experts->here.n ? most - experts->here.n : 0;
}

/* Holds a record behind that an answer has asked for. One whose copy is early is borrowed where it can be:
 * should the copy be refused, the source behind still expects the expert. Asked anew it would stand behind
 * all others of the answer, whose records may take all of the room. */
static enum moec_status hold_behind(struct moec_gpu_experts *experts, struct moec_expert_request request,
                                    bool is_early, struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_experts *behind = experts->setup.behind;
    struct moec_gpu_entry *entry = &experts->keys.entries[moec_gpu_key(experts, request)];
    if (is_early && behind->ops->borrow != NULL && behind->ops->borrow(behind, request, mlp))
        return MOEC_OK;
    entry->asked -= entry->asked > 0;
    return behind->ops->acquire(behind, request, mlp, err);
}

/* Takes the record of an admitted key and begins to copy it. On failure the key is absent again. */
static enum moec_status bring(struct moec_gpu_experts *experts, struct moec_expert_request request,
                              bool is_early, struct moec_error *err)
{
    struct moec_experts *behind = experts->setup.behind;
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    const uint64_t room = most_behind(experts), most = room > 0 ? room : 1;
    struct moec_mlp mlp;
    enum moec_status status = land(experts, moec_gpu_is_ready_behind(experts, request) ? most - 1 : 0, err);
    if (status != MOEC_OK && !is_early && entry->asked > 0) {
        entry->asked--;
        cancel_behind(experts, request);
    }
    if (status == MOEC_OK)
        status = hold_behind(experts, request, is_early, &mlp, err);
    if (status == MOEC_OK) {
        status = give_copy(experts, key, mlp.up.data, err);
        if (status == MOEC_OK)
            experts->copies.flights[experts->copies.n_copy % MOEC_GPU_FLYING] =
                (struct moec_gpu_flight){request, experts->copies.n_copy};
        else
            behind->ops->release(behind, request);
    }
    if (status != MOEC_OK) {
        moec_gpu_leave(experts, key);
        undo(experts, key);
        return status;
    }
    for (; entry->asked > 0; entry->asked--) /* what is present needs no asking */
        cancel_behind(experts, request);
    return MOEC_OK;
}

/* Begins to copy what the answer at work misses, as far as it is there and has room. What goes wrong is
 * reported when the expert is acquired. */
static void bring_wanted(struct moec_gpu_experts *experts)
{
    for (; experts->wanted.n_tried < experts->wanted.n; experts->wanted.n_tried++) {
        const uint32_t wanted = experts->wanted.order[experts->wanted.n_tried];
        const struct moec_expert_request request = {.layer = experts->wanted.layer,
                                                    .expert = wanted % experts->keys.n_expert,
                                                    .form = experts->wanted.form +
                                                            wanted / experts->keys.n_expert};
        const uint32_t key = moec_gpu_key(experts, request);
        if (experts->keys.entries[key].asked == 0 || experts->keys.entries[key].is_here ||
            moec_residency_is_present(experts->residency, key))
            continue;
        if (!moec_gpu_is_ready_behind(experts, request) ||
            (experts->here.n > 0 && most_behind(experts) == 0) ||
            experts->copies.n_copy - experts->copies.n_landed == MOEC_GPU_FLYING || !admit(experts, key))
            return;
        if (bring(experts, request, true, NULL) != MOEC_OK)
            return;
        experts->keys.entries[key].expected++;
    }
}

/* ---- what the router answers ---- */

/* Tells the source behind what is missing, which puts it into the order in which it wants it to be taken. */
static void ask_behind(struct moec_gpu_experts *experts, const struct moec_router_answer *answer,
                       uint32_t n_missing)
{
    struct moec_experts *behind = experts->setup.behind;
    struct moec_router_answer asked = *answer;
    asked.active.list = experts->wanted.missing;
    asked.active.n = n_missing;
    asked.active.n_takers = answer->active.n_takers != NULL ? experts->wanted.takers : NULL;
    asked.active.order = experts->wanted.order;
    memcpy(experts->wanted.order, experts->wanted.missing, n_missing * sizeof *experts->wanted.order);
    experts->wanted.was_told = n_missing > 0 && behind->ops->expect != NULL;
    if (experts->wanted.was_told)
        behind->ops->expect(behind, &asked);
    experts->wanted.layer = answer->layer;
    experts->wanted.form = answer->form;
    experts->wanted.n = n_missing;
    experts->wanted.n_tried = 0;
}

static uint32_t ask(struct moec_gpu_experts *experts, const struct moec_router_answer *answer)
{
    const uint32_t ordinal = (uint32_t)experts->keys.ordinals[answer->layer];
    const uint32_t first = (ordinal * experts->keys.n_form + answer->form) * experts->keys.n_expert;
    uint32_t n_missing = 0;
    moec_residency_ask(experts->residency, ordinal, answer->form, answer->active.list, answer->active.n,
                       experts->wanted.was_present);
    for (uint32_t i = 0; i < answer->active.n; i++) {
        struct moec_gpu_entry *entry = &experts->keys.entries[first + answer->active.list[i]];
        experts->wanted.is_ready[i] =
            experts->wanted.was_present[i] && is_there(experts, first + answer->active.list[i]);
        if (experts->wanted.was_present[i]) {
            entry->expected++;
            experts->counters.hits += experts->wanted.is_ready[i];
            experts->counters.late += !experts->wanted.is_ready[i];
            moec_gpu_preload_judge(experts, first + answer->active.list[i], true);
            continue;
        }
        entry->asked++;
        experts->counters.misses++;
        if (answer->active.n_takers != NULL)
            experts->wanted.takers[n_missing] = answer->active.n_takers[i];
        experts->wanted.missing[n_missing++] = answer->active.list[i];
    }
    return n_missing;
}

/* Leaves to the processor what it would have done before the device had its record, in the order in which the
 * missing ones are taken. */
static void share_missing(struct moec_gpu_experts *experts, const struct moec_router_answer *answer)
{
    struct moec_cooperation at = {0};
    if (!experts->setup.cooperation.is_on || answer->n_tok > MOEC_COOPERATION_TOKENS)
        return;
    experts->here.n_tok = answer->n_tok;
    for (uint32_t i = 0; i < experts->wanted.n; i++) {
        const uint32_t wanted = experts->wanted.order[i];
        const struct moec_expert_request request = {.layer = answer->layer,
                                                    .expert = wanted % experts->keys.n_expert,
                                                    .form = answer->form + wanted / experts->keys.n_expert};
        const uint32_t key = moec_gpu_key(experts, request);
        const double n_bytes = (double)moec_gpu_layout(experts, key)->n_bytes;
        at.cpu_ns = experts->here.cpu_byte_ns * n_bytes * answer->n_tok;
        at.copy_ns = experts->here.copy_byte_ns * n_bytes;
        at.gpu_ns = experts->setup.cooperation.gpu_byte_ns * n_bytes;
        experts->keys.entries[key].is_here = moec_cooperation_takes_cpu(&at);
        experts->counters.computed_here += experts->keys.entries[key].is_here;
        if (experts->keys.entries[key].is_here)
            at.cpu_free_ns += at.cpu_ns;
        else
            at.bus_free_ns += at.copy_ns;
    }
}

static void gpu_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_gpu_experts *experts = of(self);
    if (answer->form + answer->active.list[answer->active.n - 1] / experts->keys.n_expert >=
        experts->keys.n_form)
        return; /* acquire reports it */
    (void)pthread_mutex_lock(&experts->lock);
    (void)look(experts, NULL);
    const uint32_t n_missing = ask(experts, answer);
    ask_behind(experts, answer, n_missing);
    share_missing(experts, answer);
    moec_gpu_preload_answer(experts, answer);
    if (answer->active.order != NULL) {
        moec_read_order(answer->active.n, experts->wanted.was_present, experts->wanted.is_ready, false, NULL,
                        experts->wanted.turns);
        for (uint32_t i = 0; i < answer->active.n - n_missing; i++)
            answer->active.order[i] = answer->active.list[experts->wanted.turns[i]];
        memcpy(answer->active.order + (answer->active.n - n_missing), experts->wanted.order,
               n_missing * sizeof *answer->active.order);
    }
    bring_wanted(experts);
    (void)pthread_mutex_unlock(&experts->lock);
}

static bool prefetches_behind(const struct moec_gpu_experts *experts, uint32_t ahead)
{
    struct moec_experts *behind = experts->setup.behind;
    return experts->wanted.was_told && behind->ops->prefetch != NULL &&
           behind->ops->wants_prefetch(behind, ahead);
}

static bool gpu_wants_prefetch(struct moec_experts *self, uint32_t ahead)
{
    struct moec_gpu_experts *experts = of(self);
    (void)pthread_mutex_lock(&experts->lock);
    const bool wants = moec_gpu_preload_wants_rank(experts, ahead) || prefetches_behind(experts, ahead);
    (void)pthread_mutex_unlock(&experts->lock);
    return wants;
}

/* The cache behind begins to read what it guesses; what is there, or comes, is copied from it. */
static void gpu_prefetch(struct moec_experts *self, const struct moec_router_answer *answer, uint32_t ahead)
{
    struct moec_gpu_experts *experts = of(self);
    struct moec_experts *behind = experts->setup.behind;
    (void)pthread_mutex_lock(&experts->lock);
    if (prefetches_behind(experts, ahead))
        behind->ops->prefetch(behind, answer, ahead);
    if (moec_gpu_preload_wants_rank(experts, ahead))
        moec_gpu_preload_rank(experts, answer, ahead);
    (void)pthread_mutex_unlock(&experts->lock);
}

static void gpu_hint(struct moec_experts *self, uint32_t layer, const uint32_t *list, uint32_t n)
{
    struct moec_gpu_experts *experts = of(self);
    struct moec_experts *behind = experts->setup.behind;
    if (behind->ops->hint != NULL)
        behind->ops->hint(behind, layer, list, n);
    (void)pthread_mutex_lock(&experts->lock);
    moec_gpu_preload_know(experts, layer, list, n);
    (void)pthread_mutex_unlock(&experts->lock);
}

static void gpu_begin(struct moec_experts *self)
{
    struct moec_gpu_experts *experts = of(self);
    struct moec_experts *behind = experts->setup.behind;
    (void)pthread_mutex_lock(&experts->lock);
    moec_residency_begin(experts->residency);
    if (behind->ops->begin != NULL)
        behind->ops->begin(behind);
    (void)pthread_mutex_unlock(&experts->lock);
}

/* ---- taking and giving back ---- */

static enum moec_status check_request(const struct moec_gpu_experts *experts,
                                      struct moec_expert_request request, struct moec_error *err)
{
    if (request.layer >= experts->setup.bundle->config.n_layer || experts->keys.ordinals[request.layer] < 0 ||
        request.expert >= experts->keys.n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "layer %u expert %u does not exist in the bundle '%s'",
                         request.layer, request.expert, experts->setup.bundle->file.path);
    return moec_experts_check_form(&experts->experts, request, err);
}

/* One wish of an answer is not fulfilled. */
static void end_wish(struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    if (entry->expected > 0) {
        entry->expected--;
        moec_residency_release(experts->residency, key);
        (void)pthread_cond_broadcast(&experts->released);
    } else if (entry->asked > 0) {
        entry->asked--;
        entry->is_here = false;
        cancel_behind(experts, request);
    }
}

/* What answers found present may be given up, and be copied once more: nothing else is left to make room. */
static void stop_expecting(struct moec_gpu_experts *experts)
{
    for (uint32_t key = 0; key < experts->keys.n; key++)
        for (; experts->keys.entries[key].expected > 0; experts->keys.entries[key].expected--)
            moec_residency_release(experts->residency, key);
}

/* Makes the key present, with one demand of the caller's. */
static enum moec_status demand(struct moec_gpu_experts *experts, struct moec_expert_request request,
                               struct moec_error *err)
{
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    const enum moec_status status = look(experts, err);
    if (status != MOEC_OK) {
        end_wish(experts, request);
        return status;
    }
    for (;;) {
        if (entry->expected > 0) {
            entry->expected--;
            return MOEC_OK;
        }
        if (moec_residency_is_present(experts->residency, key)) {
            moec_residency_hold(experts->residency, key);
            return MOEC_OK;
        }
        if (admit(experts, key))
            return bring(experts, request, false, err);
        if (experts->n_held == 0)
            stop_expecting(experts);
        else /* other sessions hold something */
            (void)pthread_cond_wait(&experts->released, &experts->lock);
    }
}

/* A guess of a present key was given up: its record is copied as one that is demanded, to the place it has.
 */
static enum moec_status bring_again(struct moec_gpu_experts *experts, struct moec_expert_request request,
                                    struct moec_error *err)
{
    struct moec_experts *behind = experts->setup.behind;
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_mlp mlp;
    experts->guesses.key = MOEC_EVICT_NONE;
    MOEC_TRY(moec_gpu_prefetches_wait(experts->guesses.prefetches, experts->copies.stream, err));
    MOEC_TRY(land(experts, 0, err));
    MOEC_TRY(behind->ops->acquire(behind, request, &mlp, err));
    const enum moec_status status = give_copy(experts, key, mlp.up.data, err);
    if (status == MOEC_OK)
        experts->copies.flights[experts->copies.n_copy % MOEC_GPU_FLYING] =
            (struct moec_gpu_flight){request, experts->copies.n_copy};
    else
        behind->ops->release(behind, request);
    return status;
}

static enum moec_status take(struct moec_gpu_experts *experts, struct moec_expert_request request,
                             struct moec_mlp *mlp, struct moec_error *err)
{
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    MOEC_TRY(demand(experts, request, err));
    enum moec_status status = MOEC_OK;
    bool comes = true;
    if (key == experts->guesses.key)
        status =
            moec_gpu_prefetches_finish(experts->guesses.prefetches, key, experts->setup.compute, &comes, err);
    if (status == MOEC_OK && !comes)
        status = bring_again(experts, request, err);
    if (status == MOEC_OK && entry->copy > experts->copies.n_landed)
        status = experts->ops->wait(experts->setup.gpu, experts->setup.compute,
                                    moec_gpu_landed(experts, entry->copy), err);
    if (status != MOEC_OK) {
        moec_residency_release(experts->residency, key);
        return status;
    }
    entry->held++;
    experts->n_held++;
    moec_record_bind(moec_gpu_layout(experts, key), experts->pool.memory + entry->offset, mlp);
    bring_wanted(experts);
    moec_gpu_preload_wake(experts);
    return MOEC_OK;
}

/* An expert that the processor computes is held behind until it is released. */
static enum moec_status take_here(struct moec_gpu_experts *experts, struct moec_expert_request request,
                                  struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_experts *behind = experts->setup.behind;
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    const uint64_t most = most_behind(experts);
    const bool is_ready = moec_gpu_is_ready_behind(experts, request);
    const enum moec_status status = land(experts, is_ready && most > 0 ? most - 1 : 0, err);
    entry->asked--;
    entry->is_here = false;
    if (status != MOEC_OK) {
        cancel_behind(experts, request);
        return status;
    }
    MOEC_TRY(behind->ops->acquire(behind, request, mlp, err));
    entry->is_held_here = true;
    if (experts->here.n++ == 0) {
        experts->here.since_ns = moec_now_ns();
        experts->here.n_bytes = 0;
    }
    experts->here.n_bytes += (double)moec_gpu_layout(experts, key)->n_bytes * experts->here.n_tok;
    return MOEC_OK;
}

#define STEP 0.125 /* weight of a new sample in the mean of the processor's times */

static void release_here(struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    struct moec_experts *behind = experts->setup.behind;
    experts->keys.entries[moec_gpu_key(experts, request)].is_held_here = false;
    behind->ops->release(behind, request);
    if (--experts->here.n > 0 || experts->setup.cooperation.cpu_byte_ns > 0)
        return;
    const double byte_ns = (double)(moec_now_ns() - experts->here.since_ns) / experts->here.n_bytes;
    experts->here.cpu_byte_ns +=
        experts->here.cpu_byte_ns > 0 ? STEP * (byte_ns - experts->here.cpu_byte_ns) : byte_ns;
}

static enum moec_status gpu_acquire(struct moec_experts *self, struct moec_expert_request request,
                                    struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_gpu_experts *experts = of(self);
    MOEC_TRY(check_request(experts, request, err));
    (void)pthread_mutex_lock(&experts->lock);
    const bool is_here = experts->keys.entries[moec_gpu_key(experts, request)].is_here;
    const enum moec_status status =
        is_here ? take_here(experts, request, mlp, err) : take(experts, request, mlp, err);
    (void)pthread_mutex_unlock(&experts->lock);
    return status;
}

/* The mark stands behind all work on the expert that was given. A device that refuses it is lost. */
static void gpu_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_experts *experts = of(self);
    if (check_request(experts, request, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&experts->lock);
    const uint32_t key = moec_gpu_key(experts, request);
    struct moec_gpu_entry *entry = &experts->keys.entries[key];
    if (entry->is_held_here) {
        release_here(experts, request);
        bring_wanted(experts);
    } else if (entry->held > 0) {
        entry->held--;
        experts->n_held--;
        entry->used = ++experts->copies.n_mark;
        (void)experts->ops->record(experts->setup.gpu, experts->setup.compute,
                                   experts->copies.marks[entry->used % MOEC_GPU_MARKS], NULL);
        moec_residency_release(experts->residency, key);
        bring_wanted(experts);
        moec_gpu_preload_wake(experts);
        (void)pthread_cond_broadcast(&experts->released);
    }
    (void)pthread_mutex_unlock(&experts->lock);
}

static void gpu_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_experts *experts = of(self);
    if (check_request(experts, request, NULL) != MOEC_OK)
        return;
    (void)pthread_mutex_lock(&experts->lock);
    end_wish(experts, request);
    (void)pthread_mutex_unlock(&experts->lock);
}

static bool gpu_ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_experts *experts = of(self);
    if (check_request(experts, request, NULL) != MOEC_OK)
        return false;
    (void)pthread_mutex_lock(&experts->lock);
    const uint32_t key = moec_gpu_key(experts, request);
    (void)look(experts, NULL);
    const bool ready = experts->keys.entries[key].is_here
                           ? moec_gpu_is_ready_behind(experts, request) && most_behind(experts) > 1
                           : moec_residency_is_present(experts->residency, key) && is_there(experts, key);
    (void)pthread_mutex_unlock(&experts->lock);
    return ready;
}

static bool gpu_is_here(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_experts *experts = of(self);
    (void)pthread_mutex_lock(&experts->lock);
    const bool is_here = experts->keys.entries[moec_gpu_key(experts, request)].is_held_here;
    (void)pthread_mutex_unlock(&experts->lock);
    return is_here;
}

const struct moec_experts_ops moec_gpu_experts_ops = {.acquire = gpu_acquire,
                                                      .release = gpu_release,
                                                      .expect = gpu_expect,
                                                      .wants_prefetch = gpu_wants_prefetch,
                                                      .prefetch = gpu_prefetch,
                                                      .hint = gpu_hint,
                                                      .begin = gpu_begin,
                                                      .cancel = gpu_cancel,
                                                      .is_here = gpu_is_here,
                                                      .ready = gpu_ready};
