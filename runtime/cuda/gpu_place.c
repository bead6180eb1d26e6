/* One budget: dense weights + working memory + callers' memory + the largest expert may not pass the limit.
 * What is left belongs to copies of experts, which shrink at once when another part grows. Working memory is
 * the largest that any model asked for, and it is turned to one model at a time. A failed turn frees it, so
 * that no step runs on half of a layout. */
#include "runtime/cuda/gpu_place.h"

#include "formats/base/memory.h"
#include "runtime/cuda/gpu_pass.h"
#include "runtime/cuda/gpu_place_internal.h"
#include "runtime/forward/attention/running.h"

#include <inttypes.h>
#include <string.h>

#define MIB(bytes)  ((double)(bytes) / 1048576.0)
#define STATE_BYTES ((uint64_t)16 << 20) /* of running states that are at work together, or one */
#define MOST_TOKENS 4096u

/* ---- sizes ---- */

static uint64_t row_bytes_of(const struct moec_config *config, uint32_t max_tokens)
{
    return max_tokens * moec_forward_stride(config) * sizeof(float);
}

static uint64_t kv_bytes_of(const struct moec_config *config, uint32_t max_tokens)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        const uint64_t n = moec_layer_is_running(kind) ? 0 : moec_layer_kv_dim(kind);
        most = n > most ? n : most;
    }
    return 4 * most * max_tokens * sizeof(float);
}

static uint64_t state_bytes_of(const struct moec_config *config, uint32_t max_tokens)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < config->n_kind; i++) {
        const struct moec_layer_kind *kind = &config->kinds[i];
        const uint64_t n = moec_layer_is_running(kind) ? moec_running_floats(kind) * sizeof(float) : 0;
        most = n > most ? n : most;
    }
    const uint64_t n_state = most > 0 && STATE_BYTES / most > 1 ? STATE_BYTES / most : 1;
    return most * (n_state < max_tokens ? n_state : max_tokens);
}

static uint64_t work_bytes_of(const struct moec_gpu_place *place, const struct moec_config *config,
                              uint32_t max_tokens)
{
    return moec_gpu_backend_sizes_of(config, max_tokens).device_bytes + row_bytes_of(config, max_tokens) +
           kv_bytes_of(config, max_tokens) + state_bytes_of(config, max_tokens) +
           (place->rounds ? moec_gpu_backend_bf16_bytes(config, max_tokens) : 0);
}

/* ---- the limit ---- */

/* Sets what is aside for these, and leaves the rest to copies of experts. */
static enum moec_status set_aside(struct moec_gpu_place *place, uint64_t dense_bytes, uint64_t work_bytes,
                                  uint64_t memory_bytes, struct moec_error *err)
{
    const uint64_t sum = dense_bytes + work_bytes + memory_bytes, floor = sum + place->largest_bytes;
    if (floor > place->limit_bytes)
        return moec_fail(err, MOEC_ERR_BUDGET,
                         "%.2f MiB of the device's memory are not enough: dense weights %.2f + activations "
                         "of batches of %" PRIu32 " tokens %.2f + sessions %.2f + largest expert %.2f = "
                         "%.2f MiB needed; %.2f MiB were free on the device",
                         MIB(place->limit_bytes), MIB(dense_bytes), place->max_tokens, MIB(work_bytes),
                         MIB(memory_bytes), MIB(place->largest_bytes), MIB(floor),
                         MIB(place->info.free_bytes));
    place->dense_bytes = dense_bytes;
    place->work_bytes = work_bytes;
    place->memory_bytes = memory_bytes;
    place->copies.limit_bytes = place->limit_bytes - sum;
    (void)moec_gpu_copies_shrink(&place->copies, place->copies.limit_bytes);
    return MOEC_OK;
}

/* ---- memory of callers ---- */

bool moec_gpu_place_has(const struct moec_gpu_place *place, const void *memory)
{
    for (size_t i = 0; i < place->n_memory; i++) {
        const struct moec_gpu_place_memory *at = &place->memories[i];
        if ((uintptr_t)memory >= (uintptr_t)at->first &&
            (uintptr_t)memory - (uintptr_t)at->first < at->n_bytes)
            return true;
    }
    return false;
}

enum moec_status moec_gpu_place_alloc(struct moec_gpu_place *place, uint64_t n_bytes, const char *what,
                                      void **out, struct moec_error *err)
{
    const struct moec_gpu_ops *ops = place->gpu->ops;
    void *memory = NULL;
    MOEC_TRY(moec_grow((void **)&place->memories, &place->memory_capacity, place->n_memory + 1,
                       sizeof *place->memories, what, err));
    MOEC_TRY(set_aside(place, place->dense_bytes, place->work_bytes, place->memory_bytes + n_bytes, err));
    enum moec_status status = ops->alloc(place->gpu, n_bytes, what, &memory, err);
    if (status == MOEC_OK)
        status = ops->clear(place->gpu, place->transfer.stream, memory, n_bytes, err);
    if (status != MOEC_OK) {
        ops->free(place->gpu, memory);
        place->memory_bytes -= n_bytes;
        return status;
    }
    place->memories[place->n_memory++] = (struct moec_gpu_place_memory){memory, n_bytes};
    *out = memory;
    return MOEC_OK;
}

void moec_gpu_place_free_memory(struct moec_gpu_place *place, void *memory)
{
    for (size_t i = 0; i < place->n_memory; i++) {
        if (place->memories[i].first != memory)
            continue;
        place->gpu->ops->free(place->gpu, memory);
        (void)set_aside(place, place->dense_bytes, place->work_bytes,
                        place->memory_bytes - place->memories[i].n_bytes, NULL);
        place->memories[i] = place->memories[--place->n_memory];
        return;
    }
}

/* ---- models ---- */

static enum moec_status turn(struct moec_gpu_place *place, const struct moec_gpu_offload_backend *to,
                             struct moec_error *err)
{
    const struct moec_gpu_model *model = to->offload->model;
    if (place->backend == NULL)
        MOEC_TRY(
            moec_gpu_backend_create(model, place->kernels, place->max_tokens, false, &place->backend, err));
    else
        MOEC_TRY(moec_gpu_backend_turn(place->backend, model, place->max_tokens, err));
    if (to->arithmetic == MOEC_ARITHMETIC_BF16)
        return moec_gpu_backend_use_bf16(place->backend, err);
    moec_gpu_backend_use_canonical(place->backend);
    return MOEC_OK;
}

enum moec_status moec_gpu_place_turn(const struct moec_gpu_offload_backend *to, struct moec_error *err)
{
    struct moec_gpu_place *place = to->offload->place;
    place->transfer.stream = to->offload->model->stream;
    const enum moec_status status = turn(place, to, err);
    if (status != MOEC_OK) {
        moec_gpu_backend_free(place->backend);
        place->backend = NULL;
    }
    return status;
}

static struct moec_gpu_offload *offload_of(struct moec_offload *self)
{
    return (struct moec_gpu_offload *)self;
}

/* Nothing is under way. */
static enum moec_status grow(struct moec_gpu_place *place, uint64_t n_bytes, const char *what, float **memory,
                             uint64_t *has_bytes, struct moec_error *err)
{
    if (n_bytes <= *has_bytes)
        return MOEC_OK;
    place->gpu->ops->free(place->gpu, *memory);
    *memory = NULL;
    *has_bytes = 0;
    MOEC_TRY(place->gpu->ops->alloc(place->gpu, n_bytes, what, (void **)memory, err));
    *has_bytes = n_bytes;
    return MOEC_OK;
}

/* Of the process's memory, for a batch. */
static void free_tables(struct moec_gpu_place *place)
{
    free(place->spans);
    free(place->pasts);
    free(place->past_of);
    place->spans = NULL;
    place->pasts = NULL;
    place->past_of = NULL;
}

static enum moec_status make_tables(struct moec_gpu_place *place, struct moec_error *err)
{
    const char *what = "spans of a batch";
    free_tables(place);
    MOEC_TRY(moec_alloc((void **)&place->spans, place->max_tokens, sizeof *place->spans, what, err));
    MOEC_TRY(moec_alloc((void **)&place->pasts, place->max_tokens, sizeof *place->pasts, what, err));
    return moec_alloc((void **)&place->past_of, place->max_tokens, sizeof *place->past_of, what, err);
}

static enum moec_status offload_open(struct moec_offload *self, uint32_t max_tokens,
                                     enum moec_arithmetic arithmetic, struct moec_backend **out,
                                     struct moec_error *err)
{
    struct moec_gpu_offload *offload = offload_of(self);
    struct moec_gpu_offload_backend *opened =
        arithmetic == MOEC_ARITHMETIC_BF16 ? &offload->bf16 : &offload->canonical;
    struct moec_gpu_place *place = offload->place;
    MOEC_TRY(moec_gpu_place_take_arithmetic(place, arithmetic, err));
    const struct moec_config *config = &offload->model->model->config;
    const uint32_t before = place->max_tokens, most = max_tokens > before ? max_tokens : before;
    const uint64_t work = work_bytes_of(place, config, most);
    place->max_tokens = most;
    const enum moec_status status =
        set_aside(place, place->dense_bytes, work > place->work_bytes ? work : place->work_bytes,
                  place->memory_bytes, err);
    if (status != MOEC_OK) {
        place->max_tokens = before;
        return status;
    }
    if (most > before)
        MOEC_TRY(make_tables(place, err));
    MOEC_TRY(
        grow(place, row_bytes_of(config, most), "rows of a batch", &place->rows, &place->row_bytes, err));
    MOEC_TRY(grow(place, kv_bytes_of(config, most), "keys and values of a batch", &place->kv,
                  &place->kv_bytes, err));
    MOEC_TRY(grow(place, state_bytes_of(config, most), "states of a batch", &place->states,
                  &place->state_bytes, err));
    MOEC_TRY(moec_gpu_place_turn(opened, err));
    *out = &opened->backend;
    return MOEC_OK;
}

static enum moec_status offload_experts(struct moec_offload *self, struct moec_experts *source,
                                        struct moec_experts **out, struct moec_error *err)
{
    struct moec_gpu_offload *offload = offload_of(self);
    return moec_gpu_copies_open(&offload->place->copies, &offload->model->model->config, source, out, err);
}

static void offload_forget(struct moec_offload *self, struct moec_experts *experts)
{
    (void)self;
    moec_gpu_copies_close(experts);
}

/* What is left to count is counted before. */
static enum moec_status offload_leave_out(struct moec_offload *self, struct moec_sparsity *sparsity,
                                          struct moec_error *err)
{
    struct moec_gpu_offload *offload = offload_of(self);
    struct moec_gpu_place *place = offload->place;
    struct moec_gpu_model *model = offload->model;
    if (model->sparsity == sparsity)
        return MOEC_OK;
    if (sparsity != NULL)
        MOEC_TRY(moec_sparsity_check_device(sparsity, err));
    enum moec_status status = moec_gpu_place_turn(&offload->canonical, err);
    if (status == MOEC_OK)
        status = moec_gpu_answer(place->backend, 0, err);
    if (place->backend != NULL)
        place->backend->counted.n = 0;
    const uint64_t n_bytes =
        moec_gpu_model_bytes(&model->model->config, model->model->dense.blob_bytes, sparsity);
    if (status == MOEC_OK)
        status = set_aside(place, place->dense_bytes - offload->dense_bytes + n_bytes, place->work_bytes,
                           place->memory_bytes, err);
    if (status == MOEC_OK)
        offload->dense_bytes = n_bytes;
    if (status != MOEC_OK || sparsity == NULL) {
        moec_gpu_model_keep_all(model);
        return sparsity == NULL ? MOEC_OK : status;
    }
    return moec_gpu_model_leave_out(model, &place->transfer, sparsity, err);
}

/* The working memory is turned to it: other models make it anew. */
static void offload_free(struct moec_offload *self)
{
    struct moec_gpu_offload *offload = offload_of(self);
    struct moec_gpu_place *place = offload->place;
    if (offload->model != NULL && place->transfer.stream == offload->model->stream) {
        moec_gpu_backend_free(place->backend);
        place->backend = NULL;
        place->transfer.stream = NULL;
    }
    moec_gpu_model_free(offload->model);
    place->dense_bytes -= offload->dense_bytes;
    place->copies.limit_bytes += offload->dense_bytes;
    free(offload);
}

static const struct moec_offload_ops offload_ops = {.open = offload_open,
                                                    .experts = offload_experts,
                                                    .forget = offload_forget,
                                                    .leave_out = offload_leave_out,
                                                    .free = offload_free};

static struct moec_gpu_offload_backend backend_in(struct moec_gpu_offload *offload,
                                                  enum moec_arithmetic arithmetic)
{
    return (struct moec_gpu_offload_backend){
        .backend = {.ops = &moec_gpu_offload_ops}, .offload = offload, .arithmetic = arithmetic};
}

enum moec_status moec_gpu_place_load(struct moec_gpu_place *place, struct moec_model *model,
                                     uint64_t largest_bytes, struct moec_error *err)
{
    struct moec_gpu_offload *offload = NULL;
    const uint64_t dense = moec_gpu_model_bytes(&model->config, model->dense.blob_bytes, NULL);
    if (model->stream != NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the dense weights do not fit into memory, and a device can copy them only from memory: give "
            "more memory, or leave out the device");
    place->largest_bytes = largest_bytes > place->largest_bytes ? largest_bytes : place->largest_bytes;
    MOEC_TRY(set_aside(place, place->dense_bytes + dense, place->work_bytes, place->memory_bytes, err));
    enum moec_status status = moec_alloc((void **)&offload, 1, sizeof *offload, "a model on a device", err);
    if (status == MOEC_OK) {
        *offload = (struct moec_gpu_offload){.offload = {&offload_ops},
                                             .canonical = backend_in(offload, MOEC_ARITHMETIC_CANONICAL),
                                             .bf16 = backend_in(offload, MOEC_ARITHMETIC_BF16),
                                             .place = place,
                                             .dense_bytes = dense};
        status = moec_gpu_model_create(place->gpu, model, NULL, &offload->model, err);
    }
    if (status != MOEC_OK) {
        free(offload);
        place->dense_bytes -= dense;
        return status;
    }
    model->offload = &offload->offload;
    return MOEC_OK;
}

uint32_t moec_gpu_place_batch_tokens(const struct moec_gpu_place *place, const struct moec_model *model)
{
    const uint64_t taken = place->dense_bytes + place->memory_bytes + place->largest_bytes;
    const uint64_t most = (place->limit_bytes > taken ? place->limit_bytes - taken : 0) / 2;
    uint32_t n = 1;
    while (n < MOST_TOKENS && work_bytes_of(place, &model->config, 2 * n) <= most)
        n *= 2;
    return n;
}

/* ---- the place ---- */

enum moec_status moec_gpu_place_take_arithmetic(struct moec_gpu_place *place, enum moec_arithmetic arithmetic,
                                                struct moec_error *err)
{
    MOEC_TRY(moec_gpu_check_arithmetic(&place->info, arithmetic, err));
    place->rounds = place->rounds || arithmetic == MOEC_ARITHMETIC_BF16;
    return MOEC_OK;
}

bool moec_gpu_place_rounds(const struct moec_gpu_place *place)
{
    return place->rounds;
}

const struct moec_gpu_info *moec_gpu_place_info(const struct moec_gpu_place *place)
{
    return &place->info;
}

bool moec_gpu_place_has_told(struct moec_gpu_place *place)
{
    const bool had = place->has_told;
    place->has_told = true;
    return had;
}

static enum moec_status prepare(struct moec_gpu_place *place, uint64_t vram_bytes, struct moec_error *err)
{
    MOEC_TRY(place->gpu->ops->info(place->gpu, &place->info, err));
    const uint64_t free_bytes = place->info.free_bytes;
    place->limit_bytes = vram_bytes > 0 ? vram_bytes : free_bytes - free_bytes / 16;
    if (place->limit_bytes > free_bytes)
        return moec_fail(
            err, MOEC_ERR_BUDGET,
            "--vram asks for %.2f MiB of the device's memory, but only %.2f MiB are free: give less, or "
            "leave out --vram",
            MIB(place->limit_bytes), MIB(free_bytes));
    place->copies = (struct moec_gpu_copies){.gpu = place->gpu, .transfer = &place->transfer};
    return moec_gpu_transfer_create(place->gpu, NULL, &place->transfer, err);
}

enum moec_status moec_gpu_place_create(struct moec_gpu *gpu, const struct moec_gpu_kernels *kernels,
                                       uint64_t vram_bytes, struct moec_gpu_place **out,
                                       struct moec_error *err)
{
    struct moec_gpu_place *place = NULL;
    MOEC_TRY(moec_alloc((void **)&place, 1, sizeof *place, "a device", err));
    place->gpu = gpu;
    place->kernels = kernels;
    const enum moec_status status = prepare(place, vram_bytes, err);
    if (status != MOEC_OK) {
        moec_gpu_place_free(place);
        return status;
    }
    *out = place;
    return MOEC_OK;
}

enum moec_status moec_gpu_place_open(const char *device, const struct moec_gpu_entry *entry,
                                     uint64_t vram_bytes, struct moec_gpu_place **out, struct moec_error *err)
{
    struct moec_gpu *gpu = NULL;
    uint32_t number = 0;
    MOEC_TRY(moec_gpu_number_read(device, &number, err));
    if (entry == NULL)
        MOEC_TRY(moec_gpu_library_open(&entry, err));
    MOEC_TRY(entry->open(number, &gpu, err));
    const enum moec_status status = moec_gpu_place_create(gpu, entry->kernels, vram_bytes, out, err);
    if (status == MOEC_OK)
        (*out)->owns_gpu = true;
    else
        gpu->ops->close(gpu);
    return status;
}

void moec_gpu_place_free(struct moec_gpu_place *place)
{
    if (place == NULL)
        return;
    moec_gpu_backend_free(place->backend);
    (void)moec_gpu_copies_shrink(&place->copies, 0);
    moec_gpu_transfer_release(&place->transfer);
    place->gpu->ops->free(place->gpu, place->rows);
    place->gpu->ops->free(place->gpu, place->kv);
    place->gpu->ops->free(place->gpu, place->states);
    if (place->owns_gpu)
        place->gpu->ops->close(place->gpu);
    free_tables(place);
    free(place->memories);
    free(place);
}
