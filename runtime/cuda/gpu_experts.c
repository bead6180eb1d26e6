#include "runtime/cuda/gpu_experts.h"

#include "formats/base/memory.h"
#include "runtime/policy/read_order.h"
#include "runtime/policy/residency.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#define N_FLYING   32u  /* copies under way, at most */
#define N_MARK     64u  /* marks behind uses of experts that are told apart */
#define ALIGNMENT  256u /* of records in the pool */
#define MIB(bytes) ((double)(bytes) / 1048576.0)

struct entry {
    uint64_t offset;   /* in the pool */
    uint64_t copy;     /* number of the copy that brought it */
    uint64_t used;     /* mark behind its last use; 0 = none */
    uint32_t expected; /* demands of answers for which it is present, and that nobody has taken yet */
    uint32_t asked;    /* demands that the source behind was told of, and that nobody has taken there */
    uint32_t held;
};

/* A record in pinned memory that a copy under way reads. */
struct flight {
    struct moec_expert_request request;
    uint64_t copy;
};

struct moec_gpu_experts {
    struct moec_experts experts; /* first: the source */
    struct moec_gpu_experts_setup setup;
    const struct moec_gpu_ops *ops;
    uint32_t n_layer, n_form, n_expert, n_key; /* keys as runtime/policy/residency.h has them */
    int32_t *ordinals;                         /* (config.n_layer): MoE ordinal or -1, owned */
    uint64_t *slot_bytes;                      /* (n_key), owned */
    struct entry *entries;                     /* (n_key), owned */
    uint32_t *slots;                           /* (n_key) keys that have a place, by offset, owned */
    uint32_t n_slot;
    uint32_t n_held; /* of all keys */
    struct moec_residency *residency;
    struct moec_gpu_experts_counters counters;

    /* Of the answer at work, (n_form x n_expert) each, owned. */
    bool *was_present, *is_ready;
    uint32_t *missing, *takers, *order, *turns;
    uint32_t wanted_layer, wanted_form;
    uint32_t n_wanted, n_tried; /* misses in order, of which n_tried need no copy any more */
    bool was_told;              /* the source behind was told of it */

    uint8_t *pool; /* the device's, owned */
    uint64_t pool_bytes;
    struct moec_gpu_stream *stream; /* of copies */
    struct moec_gpu_event *landed[N_FLYING], *marks[N_MARK];
    struct flight flights[N_FLYING];  /* a ring */
    uint64_t n_copy, n_landed;        /* that were begun, and that are known to be done */
    uint64_t n_mark, freed, n_waited; /* marks made, behind which room was freed, that copies wait for */

    pthread_mutex_t lock;
    pthread_cond_t released;
};

static struct moec_gpu_experts *of(struct moec_experts *self)
{
    return (struct moec_gpu_experts *)self;
}

static uint32_t key_of(const struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    return ((uint32_t)experts->ordinals[request.layer] * experts->n_form + request.form) * experts->n_expert +
           request.expert;
}

/* ---- places in the pool ---- */

static bool find_gap(const struct moec_gpu_experts *experts, uint64_t n_bytes, uint64_t *offset, uint32_t *at)
{
    uint64_t end = 0;
    for (*at = 0; *at < experts->n_slot; ++*at) {
        const uint32_t key = experts->slots[*at];
        if (experts->entries[key].offset - end >= n_bytes)
            break;
        end = experts->entries[key].offset + experts->slot_bytes[key];
    }
    *offset = end;
    return *at < experts->n_slot || experts->pool_bytes - end >= n_bytes;
}

static bool place(struct moec_gpu_experts *experts, uint32_t key)
{
    uint64_t offset = 0;
    uint32_t at = 0;
    if (!find_gap(experts, experts->slot_bytes[key], &offset, &at))
        return false;
    memmove(experts->slots + at + 1, experts->slots + at, (experts->n_slot - at) * sizeof *experts->slots);
    experts->slots[at] = key;
    experts->n_slot++;
    experts->entries[key].offset = offset;
    return true;
}

/* What comes next into its room waits for the work that used it. */
static void leave(struct moec_gpu_experts *experts, uint32_t key)
{
    uint32_t at = 0;
    while (experts->slots[at] != key)
        at++;
    experts->n_slot--;
    memmove(experts->slots + at, experts->slots + at + 1, (experts->n_slot - at) * sizeof *experts->slots);
    if (experts->entries[key].used > experts->freed)
        experts->freed = experts->entries[key].used;
}

/* Of the residency. */
static void evicted(void *context, uint32_t key)
{
    struct moec_gpu_experts *experts = context;
    experts->counters.evictions++;
    leave(experts, key);
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
    while (!place(experts, key)) {
        if (!moec_residency_shrink(experts->residency)) {
            undo(experts, key);
            return false;
        }
    }
    return true;
}

/* ---- copies ---- */

static struct moec_gpu_event *landed_event(const struct moec_gpu_experts *experts, uint64_t copy)
{
    return experts->landed[copy % N_FLYING];
}

/* The oldest copy under way is done, or will never be: its source is given back. */
static void end_flight(struct moec_gpu_experts *experts)
{
    const struct flight *flight = &experts->flights[++experts->n_landed % N_FLYING];
    experts->setup.behind->ops->release(experts->setup.behind, flight->request);
}

/* Notes which copies have landed. */
static enum moec_status look(struct moec_gpu_experts *experts, struct moec_error *err)
{
    bool done = true;
    while (experts->n_landed < experts->n_copy) {
        const struct moec_gpu_event *event = landed_event(experts, experts->n_landed + 1);
        MOEC_TRY(experts->ops->is_done(experts->setup.gpu, event, &done, err));
        if (!done)
            break;
        end_flight(experts);
    }
    return MOEC_OK;
}

/* Waits until at most n copies are under way. */
static enum moec_status land(struct moec_gpu_experts *experts, uint64_t n, struct moec_error *err)
{
    while (experts->n_copy - experts->n_landed > n) {
        MOEC_TRY(experts->ops->finish_event(experts->setup.gpu, landed_event(experts, experts->n_landed + 1),
                                            err));
        end_flight(experts);
    }
    return MOEC_OK;
}

static const struct moec_record_layout *layout_of(const struct moec_gpu_experts *experts, uint32_t key)
{
    const uint32_t n_expert = experts->n_expert, form = key / n_expert % experts->n_form;
    return moec_bundle_layout(experts->setup.bundle, experts->setup.copies[form],
                              key / n_expert / experts->n_form, key % n_expert);
}

/* Copies under way are in order, so that one event tells of all before. */
static enum moec_status give_copy(struct moec_gpu_experts *experts, uint32_t key, const uint8_t *record,
                                  struct moec_error *err)
{
    const struct moec_gpu_ops *ops = experts->ops;
    struct moec_gpu *gpu = experts->setup.gpu;
    struct entry *entry = &experts->entries[key];
    const uint64_t n_bytes = layout_of(experts, key)->n_bytes;
    if (experts->freed > experts->n_waited) {
        MOEC_TRY(ops->wait(gpu, experts->stream, experts->marks[experts->freed % N_MARK], err));
        experts->n_waited = experts->freed;
    }
    MOEC_TRY(ops->copy(gpu, experts->stream, MOEC_GPU_TO_DEVICE, experts->pool + entry->offset, record,
                       n_bytes, err));
    MOEC_TRY(ops->record(gpu, experts->stream, landed_event(experts, experts->n_copy + 1), err));
    entry->copy = ++experts->n_copy;
    experts->counters.copied_bytes += n_bytes;
    return MOEC_OK;
}

static bool is_ready_behind(const struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    struct moec_experts *behind = experts->setup.behind;
    return behind->ops->ready == NULL || behind->ops->ready(behind, request);
}

/* The source behind has been asked for an expert once more than it will be. */
static void forgo_behind(struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    struct moec_experts *behind = experts->setup.behind;
    if (behind->ops->forgo != NULL)
        behind->ops->forgo(behind, request);
}

/* Takes the record of an admitted key and begins to copy it. On failure the key is absent again. */
static enum moec_status bring(struct moec_gpu_experts *experts, struct moec_expert_request request,
                              struct moec_error *err)
{
    struct moec_experts *behind = experts->setup.behind;
    const uint32_t key = key_of(experts, request);
    struct entry *entry = &experts->entries[key];
    const uint64_t most = behind->max_held > N_FLYING ? N_FLYING
                          : behind->max_held > 0      ? behind->max_held
                                                      : 1;
    const bool was_asked = entry->asked > 0;
    struct moec_mlp mlp;
    enum moec_status status = MOEC_OK;
    entry->asked -= was_asked;
    status = land(experts, is_ready_behind(experts, request) ? most - 1 : 0, err);
    if (status != MOEC_OK && was_asked)
        forgo_behind(experts, request);
    if (status == MOEC_OK) {
        status = behind->ops->acquire(behind, request, &mlp, err);
        if (status == MOEC_OK) {
            status = give_copy(experts, key, mlp.up.data, err);
            if (status == MOEC_OK)
                experts->flights[experts->n_copy % N_FLYING] = (struct flight){request, experts->n_copy};
            else
                behind->ops->release(behind, request);
        }
    }
    if (status != MOEC_OK) {
        leave(experts, key);
        undo(experts, key);
        return status;
    }
    for (; entry->asked > 0; entry->asked--) /* by other sessions, which find it present */
        forgo_behind(experts, request);
    return MOEC_OK;
}

/* Begins to copy what the answer at work misses, as far as it is there and has room. What goes wrong is
 * reported when the expert is acquired. */
static void bring_wanted(struct moec_gpu_experts *experts)
{
    for (; experts->n_tried < experts->n_wanted; experts->n_tried++) {
        const uint32_t wanted = experts->order[experts->n_tried];
        const struct moec_expert_request request = {.layer = experts->wanted_layer,
                                                    .expert = wanted % experts->n_expert,
                                                    .form =
                                                        experts->wanted_form + wanted / experts->n_expert};
        const uint32_t key = key_of(experts, request);
        if (experts->entries[key].asked == 0 || moec_residency_is_present(experts->residency, key))
            continue;
        if (!is_ready_behind(experts, request) || experts->n_copy - experts->n_landed == N_FLYING ||
            !admit(experts, key))
            return;
        if (bring(experts, request, NULL) != MOEC_OK)
            return;
        experts->entries[key].expected++;
    }
}

/* ---- what the router answers ---- */

/* Tells the source behind what is missing, which puts it into the order in which it wants it to be taken. */
static void ask_behind(struct moec_gpu_experts *experts, const struct moec_router_answer *answer,
                       uint32_t n_missing)
{
    struct moec_experts *behind = experts->setup.behind;
    struct moec_router_answer asked = *answer;
    asked.active = experts->missing;
    asked.n_active = n_missing;
    asked.n_takers = answer->n_takers != NULL ? experts->takers : NULL;
    asked.order = experts->order;
    memcpy(experts->order, experts->missing, n_missing * sizeof *experts->order);
    experts->was_told = n_missing > 0 && behind->ops->expect != NULL;
    if (experts->was_told)
        behind->ops->expect(behind, &asked);
    experts->wanted_layer = answer->layer;
    experts->wanted_form = answer->form;
    experts->n_wanted = n_missing;
    experts->n_tried = 0;
}

static uint32_t ask(struct moec_gpu_experts *experts, const struct moec_router_answer *answer)
{
    const uint32_t ordinal = (uint32_t)experts->ordinals[answer->layer];
    const uint32_t first = (ordinal * experts->n_form + answer->form) * experts->n_expert;
    uint32_t n_missing = 0;
    moec_residency_ask(experts->residency, ordinal, answer->form, answer->active, answer->n_active,
                       experts->was_present);
    for (uint32_t i = 0; i < answer->n_active; i++) {
        struct entry *entry = &experts->entries[first + answer->active[i]];
        experts->is_ready[i] = experts->was_present[i] && entry->copy <= experts->n_landed;
        if (experts->was_present[i]) {
            entry->expected++;
            experts->counters.hits += experts->is_ready[i];
            experts->counters.late += !experts->is_ready[i];
            continue;
        }
        entry->asked++;
        experts->counters.misses++;
        if (answer->n_takers != NULL)
            experts->takers[n_missing] = answer->n_takers[i];
        experts->missing[n_missing++] = answer->active[i];
    }
    return n_missing;
}

static void gpu_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_gpu_experts *experts = of(self);
    if (answer->form + answer->active[answer->n_active - 1] / experts->n_expert >= experts->n_form)
        return; /* acquire reports it */
    (void)pthread_mutex_lock(&experts->lock);
    (void)look(experts, NULL);
    const uint32_t n_missing = ask(experts, answer);
    ask_behind(experts, answer, n_missing);
    if (answer->order != NULL) {
        moec_read_order(answer->n_active, experts->was_present, experts->is_ready, false, NULL,
                        experts->turns);
        for (uint32_t i = 0; i < answer->n_active - n_missing; i++)
            answer->order[i] = answer->active[experts->turns[i]];
        memcpy(answer->order + (answer->n_active - n_missing), experts->order,
               n_missing * sizeof *answer->order);
    }
    bring_wanted(experts);
    (void)pthread_mutex_unlock(&experts->lock);
}

static bool gpu_wants_guess(struct moec_experts *self)
{
    struct moec_experts *behind = of(self)->setup.behind;
    return of(self)->was_told && behind->ops->guess != NULL && behind->ops->wants_guess(behind);
}

static void gpu_guess(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_experts *behind = of(self)->setup.behind;
    behind->ops->guess(behind, answer);
}

static void gpu_foresee(struct moec_experts *self, uint32_t layer, const uint32_t *list, uint32_t n)
{
    struct moec_experts *behind = of(self)->setup.behind;
    if (behind->ops->foresee != NULL)
        behind->ops->foresee(behind, layer, list, n);
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
    if (request.layer >= experts->setup.bundle->config.n_layer || experts->ordinals[request.layer] < 0 ||
        request.expert >= experts->n_expert)
        return moec_fail(err, MOEC_ERR_USAGE, "there is no layer %u expert %u in '%s'", request.layer,
                         request.expert, experts->setup.bundle->file.path);
    return moec_experts_check_form(&experts->experts, request, err);
}

/* One wish of an answer is not fulfilled. */
static void end_wish(struct moec_gpu_experts *experts, struct moec_expert_request request)
{
    const uint32_t key = key_of(experts, request);
    struct entry *entry = &experts->entries[key];
    if (entry->expected > 0) {
        entry->expected--;
        moec_residency_release(experts->residency, key);
        (void)pthread_cond_broadcast(&experts->released);
    } else if (entry->asked > 0) {
        entry->asked--;
        forgo_behind(experts, request);
    }
}

/* What answers found present may be given up, and be copied once more: nothing else is left to make room. */
static void stop_expecting(struct moec_gpu_experts *experts)
{
    for (uint32_t key = 0; key < experts->n_key; key++)
        for (; experts->entries[key].expected > 0; experts->entries[key].expected--)
            moec_residency_release(experts->residency, key);
}

/* Makes the key present, with one demand of the caller's. */
static enum moec_status demand(struct moec_gpu_experts *experts, struct moec_expert_request request,
                               struct moec_error *err)
{
    const uint32_t key = key_of(experts, request);
    struct entry *entry = &experts->entries[key];
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
            return bring(experts, request, err);
        if (experts->n_held == 0)
            stop_expecting(experts);
        else /* other sessions hold something */
            (void)pthread_cond_wait(&experts->released, &experts->lock);
    }
}

static enum moec_status take(struct moec_gpu_experts *experts, struct moec_expert_request request,
                             struct moec_mlp *mlp, struct moec_error *err)
{
    const uint32_t key = key_of(experts, request);
    struct entry *entry = &experts->entries[key];
    MOEC_TRY(demand(experts, request, err));
    enum moec_status status = MOEC_OK;
    if (entry->copy > experts->n_landed)
        status = experts->ops->wait(experts->setup.gpu, experts->setup.compute,
                                    landed_event(experts, entry->copy), err);
    if (status != MOEC_OK) {
        moec_residency_release(experts->residency, key);
        return status;
    }
    entry->held++;
    experts->n_held++;
    moec_record_bind(layout_of(experts, key), experts->pool + entry->offset, mlp);
    bring_wanted(experts);
    return MOEC_OK;
}

static enum moec_status gpu_acquire(struct moec_experts *self, struct moec_expert_request request,
                                    struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_gpu_experts *experts = of(self);
    MOEC_TRY(check_request(experts, request, err));
    (void)pthread_mutex_lock(&experts->lock);
    const enum moec_status status = take(experts, request, mlp, err);
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
    const uint32_t key = key_of(experts, request);
    struct entry *entry = &experts->entries[key];
    if (entry->held > 0) {
        entry->held--;
        experts->n_held--;
        entry->used = ++experts->n_mark;
        (void)experts->ops->record(experts->setup.gpu, experts->setup.compute,
                                   experts->marks[entry->used % N_MARK], NULL);
        moec_residency_release(experts->residency, key);
        bring_wanted(experts);
        (void)pthread_cond_broadcast(&experts->released);
    }
    (void)pthread_mutex_unlock(&experts->lock);
}

static void gpu_forgo(struct moec_experts *self, struct moec_expert_request request)
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
    const uint32_t key = key_of(experts, request);
    (void)look(experts, NULL);
    const bool ready =
        moec_residency_is_present(experts->residency, key) && experts->entries[key].copy <= experts->n_landed;
    (void)pthread_mutex_unlock(&experts->lock);
    return ready;
}

/* 0 where a key is absent, 1 where its record is on its way, 2 where it is there. */
static int nearness(const struct moec_gpu_experts *experts, uint32_t key)
{
    if (!moec_residency_is_present(experts->residency, key))
        return 0;
    return experts->entries[key].copy <= experts->n_landed ? 2 : 1;
}

static uint32_t gpu_choose(struct moec_experts *self, struct moec_expert_request request, uint32_t forms)
{
    struct moec_gpu_experts *experts = of(self);
    struct moec_expert_request best = request;
    if (check_request(experts, request, NULL) != MOEC_OK)
        return request.form;
    (void)pthread_mutex_lock(&experts->lock);
    (void)look(experts, NULL);
    for (uint32_t form = 0; form < experts->n_form; form++) {
        struct moec_expert_request other = request;
        other.form = form;
        if ((forms >> form & 1u) != 0 &&
            nearness(experts, key_of(experts, other)) > nearness(experts, key_of(experts, best)))
            best = other;
    }
    (void)pthread_mutex_unlock(&experts->lock);
    return best.form;
}

static const struct moec_experts_ops gpu_ops = {.acquire = gpu_acquire,
                                                .release = gpu_release,
                                                .expect = gpu_expect,
                                                .wants_guess = gpu_wants_guess,
                                                .guess = gpu_guess,
                                                .foresee = gpu_foresee,
                                                .begin = gpu_begin,
                                                .forgo = gpu_forgo,
                                                .choose = gpu_choose,
                                                .ready = gpu_ready};

/* ---- creation ---- */

static uint64_t slot_bytes_of(const struct moec_bundle *bundle, uint32_t copy, uint32_t ordinal,
                              uint32_t expert)
{
    const uint64_t n_bytes = moec_bundle_layout(bundle, copy, ordinal, expert)->n_bytes;
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
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
                                      uint32_t n_form)
{
    const uint32_t n_expert = n_form * bundle->config.n_expert,
                   n_key = moec_config_moe_count(&bundle->config) * n_expert;
    return sizeof(struct moec_gpu_experts) + bundle->config.n_layer * sizeof(int32_t) +
           n_key * (sizeof(uint64_t) + sizeof(struct entry) + sizeof(uint32_t)) +
           n_expert * (2 * sizeof(bool) + 4 * sizeof(uint32_t)) +
           moec_residency_state_bytes(n_key, policy_of(policy));
}

static enum moec_status create_tables(struct moec_gpu_experts *experts, struct moec_error *err)
{
    const struct moec_bundle *bundle = experts->setup.bundle;
    const struct moec_config *config = &bundle->config;
    const char *what = "tables of experts on a device";
    MOEC_TRY(moec_alloc((void **)&experts->ordinals, config->n_layer, sizeof *experts->ordinals, what, err));
    MOEC_TRY(
        moec_alloc((void **)&experts->slot_bytes, experts->n_key, sizeof *experts->slot_bytes, what, err));
    MOEC_TRY(moec_alloc((void **)&experts->entries, experts->n_key, sizeof *experts->entries, what, err));
    MOEC_TRY(moec_alloc((void **)&experts->slots, experts->n_key, sizeof *experts->slots, what, err));
    const uint32_t n_active = experts->n_form * experts->n_expert;
    MOEC_TRY(moec_alloc((void **)&experts->was_present, n_active, sizeof(bool), what, err));
    MOEC_TRY(moec_alloc((void **)&experts->is_ready, n_active, sizeof(bool), what, err));
    uint32_t **lists[] = {&experts->missing, &experts->takers, &experts->order, &experts->turns};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        MOEC_TRY(moec_alloc((void **)lists[i], n_active, sizeof(uint32_t), what, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++)
        experts->ordinals[layer] = moec_config_moe_ordinal(config, layer);
    for (uint32_t key = 0; key < experts->n_key; key++)
        experts->slot_bytes[key] = (layout_of(experts, key)->n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return MOEC_OK;
}

static enum moec_status create_pool(struct moec_gpu_experts *experts, struct moec_error *err)
{
    const struct moec_gpu_experts_setup *setup = &experts->setup;
    const struct moec_gpu_pool_sizes sizes =
        moec_gpu_pool_sizes_of(setup->bundle, setup->copies, experts->n_form);
    experts->pool_bytes = setup->pool_bytes < sizes.all_bytes ? setup->pool_bytes : sizes.all_bytes;
    if (experts->pool_bytes < sizes.largest_bytes)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "a pool of %.2f MiB on the device is smaller than the largest expert of %.2f MiB",
                         MIB(experts->pool_bytes), MIB(sizes.largest_bytes));
    MOEC_TRY(experts->ops->alloc(setup->gpu, experts->pool_bytes, "the pool of experts",
                                 (void **)&experts->pool, err));
    MOEC_TRY(experts->ops->stream_create(setup->gpu, &experts->stream, err));
    for (uint32_t i = 0; i < N_FLYING; i++)
        MOEC_TRY(experts->ops->event_create(setup->gpu, &experts->landed[i], err));
    for (uint32_t i = 0; i < N_MARK; i++)
        MOEC_TRY(experts->ops->event_create(setup->gpu, &experts->marks[i], err));
    return MOEC_OK;
}

/* As the cache's behind it, with frequencies from the bundle's path table, where there is one. */
static enum moec_status create_residency(struct moec_gpu_experts *experts, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_gpu_experts_setup *setup = &experts->setup;
    const struct moec_path_table *paths = &setup->bundle->paths;
    struct moec_residency_setup residency = {.n_layer = experts->n_layer,
                                             .n_expert = experts->n_expert,
                                             .n_form = experts->n_form,
                                             .n_encoder =
                                                 moec_config_moe_encoder_count(&setup->bundle->config),
                                             .slot_bytes = experts->slot_bytes,
                                             .capacity_bytes = experts->pool_bytes,
                                             .policy = policy_of(setup->policy),
                                             .evict_weights = setup->evict_weights,
                                             .evicted = evicted,
                                             .context = experts};
    void *frequency = NULL;
    if (paths->n_layer == experts->n_layer && paths->n_expert == experts->n_expert) {
        MOEC_TRY_OUT(moec_alloc(&frequency, experts->n_key, sizeof(float), "expert frequencies", err));
        moec_residency_frequencies(paths, experts->n_form, frequency);
        residency.frequency = frequency;
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
    experts->n_layer = moec_config_moe_count(&setup->bundle->config);
    experts->n_expert = setup->bundle->config.n_expert;
    experts->n_form = setup->n_form > 1 ? setup->n_form : 1;
    experts->n_key = experts->n_layer * experts->n_form * experts->n_expert;
    experts->experts = (struct moec_experts){.ops = &gpu_ops,
                                             .max_held = UINT32_MAX,
                                             .n_form = experts->n_form,
                                             .wants_choices = setup->behind->wants_choices,
                                             .wants_next_gate = setup->behind->wants_next_gate};
    (void)pthread_mutex_init(&experts->lock, NULL);
    (void)pthread_cond_init(&experts->released, NULL);
    MOEC_TRY_OUT(create_tables(experts, err));
    MOEC_TRY_OUT(create_pool(experts, err));
    MOEC_TRY_OUT(create_residency(experts, err));
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
    if (experts->stream != NULL)
        (void)experts->ops->finish(gpu, experts->stream, NULL);
    while (experts->n_landed < experts->n_copy)
        end_flight(experts);
    experts->ops->stream_free(gpu, experts->stream);
    for (uint32_t i = 0; i < N_FLYING; i++)
        experts->ops->event_free(gpu, experts->landed[i]);
    for (uint32_t i = 0; i < N_MARK; i++)
        experts->ops->event_free(gpu, experts->marks[i]);
    experts->ops->free(gpu, experts->pool);
    moec_residency_free(experts->residency);
    free(experts->ordinals);
    free(experts->slot_bytes);
    free(experts->entries);
    free(experts->slots);
    free(experts->was_present);
    free(experts->is_ready);
    free(experts->missing);
    free(experts->takers);
    free(experts->order);
    free(experts->turns);
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
    return experts->pool_bytes;
}

struct moec_gpu_experts_counters moec_gpu_experts_counters(struct moec_gpu_experts *experts)
{
    (void)pthread_mutex_lock(&experts->lock);
    const struct moec_gpu_experts_counters counters = experts->counters;
    (void)pthread_mutex_unlock(&experts->lock);
    return counters;
}
