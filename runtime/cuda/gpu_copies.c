/* A copy is valid as long as the source tells the same content for the request; nothing is ever marked as
 * stale. All copies of a device are one list from oldest to newest. A copy that is held or expected may not
 * go; one in use by given work may, because its memory is only written on the same stream. An answer is
 * split: what is there is expected here, the rest is asked behind, and every acquire or cancel ends one of
 * the two. */
#include "runtime/cuda/gpu_copies.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

#define ALIGNMENT 256u

struct source {
    struct moec_experts experts; /* first */
    struct moec_gpu_copies *shared;
    const struct moec_config *config;
    struct moec_experts *behind;
    uint32_t n_form, n_expert;
    uint32_t n_copy;
    struct moec_gpu_expert_copy *copies; /* (MoE layers, n_form, n_expert), owned */
    uint32_t *missing, *takers, *order;  /* (n_form x n_expert) of the answer at work, owned */
};

static struct source *of(struct moec_experts *self)
{
    return (struct source *)self;
}

static struct moec_gpu_expert_copy *copy_of(const struct source *source, struct moec_expert_request request)
{
    const uint32_t ordinal = (uint32_t)moec_config_moe_ordinal(source->config, request.layer);
    return &source->copies[(ordinal * source->n_form + request.form) * source->n_expert + request.expert];
}

static enum moec_status check_request(const struct source *source, struct moec_expert_request request,
                                      struct moec_error *err)
{
    MOEC_TRY(moec_experts_check_form(&source->experts, request, err));
    if (request.layer < source->config->n_layer && request.expert < source->n_expert &&
        moec_config_moe_ordinal(source->config, request.layer) >= 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE, "layer %" PRIu32 " has no expert %" PRIu32, request.layer,
                     request.expert);
}

/* ---- memory ---- */

static void unlist(struct moec_gpu_copies *shared, struct moec_gpu_expert_copy *copy)
{
    *(copy->older != NULL ? &copy->older->newer : &shared->oldest) = copy->newer;
    *(copy->newer != NULL ? &copy->newer->older : &shared->newest) = copy->older;
    copy->older = NULL;
    copy->newer = NULL;
}

static void list_newest(struct moec_gpu_copies *shared, struct moec_gpu_expert_copy *copy)
{
    copy->older = shared->newest;
    *(copy->older != NULL ? &copy->older->newer : &shared->oldest) = copy;
    shared->newest = copy;
}

static bool may_go(const struct moec_gpu_expert_copy *copy)
{
    return copy->held == 0 && copy->expected == 0;
}

/* The copy is there no more; its memory is the caller's. */
static uint8_t *take_memory(struct moec_gpu_copies *shared, struct moec_gpu_expert_copy *copy)
{
    uint8_t *memory = copy->memory;
    unlist(shared, copy);
    copy->memory = NULL;
    return memory;
}

static void drop(struct moec_gpu_copies *shared, struct moec_gpu_expert_copy *copy)
{
    shared->used_bytes -= copy->n_bytes;
    shared->gpu->ops->free(shared->gpu, take_memory(shared, copy));
}

/* The one that was used longest ago of those that may go, of this size where it is not 0. */
static struct moec_gpu_expert_copy *find_oldest(const struct moec_gpu_copies *shared, uint64_t n_bytes)
{
    struct moec_gpu_expert_copy *copy = shared->oldest;
    while (copy != NULL && !(may_go(copy) && (n_bytes == 0 || copy->n_bytes == n_bytes)))
        copy = copy->newer;
    return copy;
}

bool moec_gpu_copies_shrink(struct moec_gpu_copies *copies, uint64_t n_bytes)
{
    while (copies->used_bytes > n_bytes) {
        struct moec_gpu_expert_copy *oldest = find_oldest(copies, 0);
        if (oldest == NULL)
            return false;
        drop(copies, oldest);
    }
    return true;
}

static uint64_t room_of(const struct moec_gpu_copies *shared)
{
    return shared->limit_bytes > shared->used_bytes ? shared->limit_bytes - shared->used_bytes : 0;
}

/* Memory for a copy: of one of the same size, or new. Work that used it was given to the stream before. */
static enum moec_status find_memory(struct moec_gpu_copies *shared, uint64_t n_bytes, uint8_t **out,
                                    struct moec_error *err)
{
    void *memory = NULL;
    struct moec_gpu_expert_copy *same = room_of(shared) < n_bytes ? find_oldest(shared, n_bytes) : NULL;
    if (same != NULL) {
        *out = take_memory(shared, same);
        return MOEC_OK;
    }
    if (n_bytes > shared->limit_bytes || !moec_gpu_copies_shrink(shared, shared->limit_bytes - n_bytes))
        return moec_fail(
            err, MOEC_ERR_BUDGET,
            "an expert of %.2f MiB does not fit into the %.2f MiB of the device's memory for experts: allow "
            "more (--vram)",
            (double)n_bytes / 1048576.0, (double)shared->limit_bytes / 1048576.0);
    MOEC_TRY(shared->gpu->ops->alloc(shared->gpu, n_bytes, "a copy of an expert", &memory, err));
    shared->used_bytes += n_bytes;
    *out = memory;
    return MOEC_OK;
}

/* ---- copies ---- */

static uint64_t range_bytes(uint64_t n_bytes)
{
    return (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t all_bytes(const struct moec_expert_bytes *bytes)
{
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < bytes->n_range; i++)
        n_bytes += range_bytes(bytes->n_bytes[i]);
    return n_bytes;
}

static struct moec_expert_bytes tell(const struct source *source, struct moec_expert_request request,
                                     const struct moec_mlp *held)
{
    struct moec_expert_bytes bytes;
    source->behind->ops->bytes(source->behind, request, held, &bytes);
    return bytes;
}

/* Whether there is a copy of what the request is answered with now. */
static bool is_there(const struct source *source, struct moec_expert_request request)
{
    const struct moec_gpu_expert_copy *copy = copy_of(source, request);
    return copy->memory != NULL && copy->bytes.content == tell(source, request, NULL).content;
}

/* Points a matrix to where its range went. */
static void move_matrix(const struct moec_expert_bytes *bytes, uint8_t *memory, struct moec_matrix *matrix)
{
    for (uint32_t i = 0; i < bytes->n_range && matrix->rows > 0; i++) {
        const uintptr_t at = (uintptr_t)matrix->data - (uintptr_t)bytes->from[i];
        if ((uintptr_t)matrix->data >= (uintptr_t)bytes->from[i] && at < bytes->n_bytes[i]) {
            matrix->data = memory + at;
            return;
        }
        memory += range_bytes(bytes->n_bytes[i]);
    }
}

/* Copies a held expert. */
static enum moec_status fill(struct source *source, struct moec_gpu_expert_copy *copy,
                             const struct moec_expert_bytes *bytes, const struct moec_mlp *mlp,
                             struct moec_error *err)
{
    struct moec_gpu_copies *shared = source->shared;
    uint8_t *memory = NULL;
    const uint64_t n_bytes = all_bytes(bytes);
    if (copy->memory != NULL)
        drop(shared, copy);
    MOEC_TRY(find_memory(shared, n_bytes, &memory, err));
    *copy = (struct moec_gpu_expert_copy){.bytes = *bytes,
                                          .mlp = *mlp,
                                          .memory = memory,
                                          .n_bytes = n_bytes,
                                          .expected = copy->expected,
                                          .asked = copy->asked};
    list_newest(shared, copy);
    uint64_t at = 0;
    for (uint32_t i = 0; i < bytes->n_range; i++) {
        const enum moec_status status =
            moec_gpu_transfer_up(shared->transfer, memory + at, bytes->from[i], bytes->n_bytes[i], err);
        if (status != MOEC_OK) {
            drop(shared, copy);
            return status;
        }
        at += range_bytes(bytes->n_bytes[i]);
    }
    move_matrix(bytes, memory, &copy->mlp.gate);
    move_matrix(bytes, memory, &copy->mlp.up);
    move_matrix(bytes, memory, &copy->mlp.down);
    return MOEC_OK;
}

static enum moec_status bring(struct source *source, struct moec_expert_request request,
                              struct moec_error *err)
{
    struct moec_experts *behind = source->behind;
    struct moec_mlp mlp;
    MOEC_TRY(behind->ops->acquire(behind, request, &mlp, err));
    const struct moec_expert_bytes bytes = tell(source, request, &mlp);
    const enum moec_status status = fill(source, copy_of(source, request), &bytes, &mlp, err);
    behind->ops->release(behind, request);
    return status;
}

/* ---- as a source ---- */

/* Of what is missing the source behind is told, and says in which order it is to be taken. */
static void ask_behind(struct source *source, const struct moec_router_answer *answer, uint32_t n_missing)
{
    struct moec_experts *behind = source->behind;
    struct moec_router_answer asked = *answer;
    asked.active.list = source->missing;
    asked.active.n = n_missing;
    asked.active.n_takers = answer->active.n_takers != NULL ? source->takers : NULL;
    asked.active.order = source->order;
    memcpy(source->order, source->missing, n_missing * sizeof *source->order);
    if (n_missing > 0 && behind->ops->expect != NULL)
        behind->ops->expect(behind, &asked);
}

/* Copies that are there stay until they have been used, and come first. */
static void copies_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct source *source = of(self);
    const uint32_t last = answer->active.list[answer->active.n - 1]; /* they increase */
    uint32_t n_missing = 0, n_there = 0;
    if (answer->form + last / source->n_expert >= source->n_form)
        return; /* acquire reports it */
    for (uint32_t i = 0; i < answer->active.n; i++) {
        const struct moec_expert_request request = {.layer = answer->layer,
                                                    .expert = answer->active.list[i] % source->n_expert,
                                                    .form = answer->form +
                                                            answer->active.list[i] / source->n_expert};
        struct moec_gpu_expert_copy *copy = copy_of(source, request);
        if (is_there(source, request)) {
            copy->expected++;
            if (answer->active.order != NULL)
                answer->active.order[n_there] = answer->active.list[i];
            n_there++;
            continue;
        }
        copy->asked++;
        if (answer->active.n_takers != NULL)
            source->takers[n_missing] = answer->active.n_takers[i];
        source->missing[n_missing++] = answer->active.list[i];
    }
    ask_behind(source, answer, n_missing);
    if (answer->active.order != NULL)
        memcpy(answer->active.order + n_there, source->order, n_missing * sizeof *answer->active.order);
}

static enum moec_status copies_acquire(struct moec_experts *self, struct moec_expert_request request,
                                       struct moec_mlp *mlp, struct moec_error *err)
{
    struct source *source = of(self);
    MOEC_TRY(check_request(source, request, err));
    struct moec_gpu_expert_copy *copy = copy_of(source, request);
    copy->expected -= copy->expected > 0;
    if (!is_there(source, request)) {
        copy->asked -= copy->asked > 0;
        MOEC_TRY(bring(source, request, err));
    }
    unlist(source->shared, copy);
    list_newest(source->shared, copy);
    copy->held++;
    *mlp = copy->mlp;
    mlp->filter = tell(source, request, NULL).filter;
    return MOEC_OK;
}

static void copies_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_gpu_expert_copy *copy = copy_of(of(self), request);
    copy->held -= copy->held > 0;
}

static void copies_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    struct source *source = of(self);
    struct moec_gpu_expert_copy *copy = copy_of(source, request);
    if (copy->expected > 0) {
        copy->expected--;
    } else if (copy->asked > 0) {
        copy->asked--;
        if (source->behind->ops->cancel != NULL)
            source->behind->ops->cancel(source->behind, request);
    }
}

static bool copies_ready(struct moec_experts *self, struct moec_expert_request request)
{
    const struct source *source = of(self);
    struct moec_experts *behind = source->behind;
    if (is_there(source, request))
        return true;
    if (behind->ops->ready != NULL && !behind->ops->ready(behind, request))
        return false;
    const struct moec_expert_bytes bytes = tell(source, request, NULL);
    uint64_t room = room_of(source->shared);
    for (const struct moec_gpu_expert_copy *copy = source->shared->oldest; copy != NULL; copy = copy->newer)
        room += may_go(copy) ? copy->n_bytes : 0;
    return room >= all_bytes(&bytes);
}

static void copies_begin(struct moec_experts *self)
{
    struct moec_experts *behind = of(self)->behind;
    if (behind->ops->begin != NULL)
        behind->ops->begin(behind);
}

static const struct moec_experts_ops copies_ops = {.acquire = copies_acquire,
                                                   .release = copies_release,
                                                   .expect = copies_expect,
                                                   .begin = copies_begin,
                                                   .cancel = copies_cancel,
                                                   .ready = copies_ready};

/* ---- creation ---- */

enum moec_status moec_gpu_copies_open(struct moec_gpu_copies *copies, const struct moec_config *config,
                                      struct moec_experts *behind, struct moec_experts **out,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct source *source = NULL;
    const char *what = "copies of experts on a device";
    if (behind->ops->bytes == NULL || behind->gives_parts)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "experts that are read in parts cannot be copied to a device yet");
    MOEC_TRY(moec_alloc((void **)&source, 1, sizeof *source, what, err));
    source->shared = copies;
    source->config = config;
    source->behind = behind;
    source->n_form = behind->n_form > 1 ? behind->n_form : 1;
    source->n_expert = config->n_expert;
    source->n_copy = moec_config_moe_count(config) * source->n_form * source->n_expert;
    source->experts = (struct moec_experts){.ops = &copies_ops,
                                            .max_held = UINT32_MAX,
                                            .n_form = source->n_form,
                                            .wants_choices = behind->wants_choices};
    MOEC_TRY_OUT(moec_alloc((void **)&source->copies, source->n_copy, sizeof *source->copies, what, err));
    uint32_t **lists[] = {&source->missing, &source->takers, &source->order};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        MOEC_TRY_OUT(moec_alloc((void **)lists[i], (uint64_t)source->n_form * source->n_expert,
                                sizeof(uint32_t), what, err));
    *out = &source->experts;
    source = NULL;
out:
    moec_gpu_copies_close(source != NULL ? &source->experts : NULL);
    return status;
}

void moec_gpu_copies_close(struct moec_experts *self)
{
    if (self == NULL)
        return;
    struct source *source = of(self);
    for (uint32_t i = 0; source->copies != NULL && i < source->n_copy; i++)
        if (source->copies[i].memory != NULL)
            drop(source->shared, &source->copies[i]);
    free(source->copies);
    free(source->missing);
    free(source->takers);
    free(source->order);
    free(source);
}
