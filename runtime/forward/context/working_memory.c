/* experts_here is not NULL exactly while the pass computes on a device. Whoever enters or leaves one must
 * set the backend, the experts and experts_here together. */
#include "runtime/forward/context/working_memory.h"

#include "formats/base/memory.h"
#include "runtime/forward/context/learned_predictor.h"
#include "runtime/forward/context/rounded.h"
#include "runtime/forward/context/scratch.h"
#include "runtime/forward/weights/offload.h"

#include <inttypes.h>
#include <stdlib.h>

uint64_t moec_forward_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    return moec_scratch_bytes(config, max_tokens, moec_pool_make(n_threads).n_threads);
}

/* Where the model has a device, the pass computes there. */
static enum moec_status enter_device(struct moec_forward *forward, struct moec_experts *experts,
                                     struct moec_error *err)
{
    struct moec_offload *offload = forward->model->offload;
    if (offload == NULL)
        return MOEC_OK;
    MOEC_TRY(
        offload->ops->open(offload, forward->max_tokens, MOEC_ARITHMETIC_CANONICAL, &forward->backend, err));
    MOEC_TRY(offload->ops->experts(offload, experts, &forward->experts, err));
    forward->experts_here = experts;
    return MOEC_OK;
}

enum moec_status moec_forward_init(struct moec_forward *forward, const struct moec_model *model,
                                   const struct moec_kernels *kernels, int n_threads,
                                   struct moec_experts *experts, uint32_t max_tokens, struct moec_error *err)
{
    if (max_tokens == 0)
        return moec_fail(err, MOEC_ERR_USAGE, "a forward pass needs room for at least one token");
    if (max_tokens > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_LIMIT, "a batch of %" PRIu32 " tokens is over the limit of %u",
                         max_tokens, MOEC_MAX_POSITIONS);
    *forward = (struct moec_forward){.model = model,
                                     .kernels = kernels,
                                     .pool = moec_pool_make(n_threads),
                                     .experts = experts,
                                     .max_tokens = max_tokens};
    MOEC_TRY(
        moec_scratch_create(&model->config, max_tokens, forward->pool.n_threads, &forward->scratch, err));
    forward->scratch_bytes = moec_scratch_bytes(&model->config, max_tokens, forward->pool.n_threads);
    const enum moec_status status = enter_device(forward, experts, err);
    if (status != MOEC_OK)
        moec_forward_release(forward);
    return status;
}

static struct moec_offload *offload_of(const struct moec_forward *forward)
{
    return forward->experts_here != NULL ? forward->model->offload : NULL;
}

void moec_forward_keep_all(struct moec_forward *forward)
{
    struct moec_offload *offload = offload_of(forward);
    forward->sparsity = NULL;
    if (offload != NULL)
        (void)offload->ops->leave_out(offload, NULL, NULL);
}

enum moec_status moec_forward_leave_out(struct moec_forward *forward, struct moec_sparsity *sparsity,
                                        struct moec_error *err)
{
    struct moec_offload *offload = offload_of(forward);
    forward->sparsity = NULL;
    if (offload != NULL)
        MOEC_TRY(offload->ops->leave_out(offload, sparsity, err));
    forward->sparsity = sparsity;
    return MOEC_OK;
}

void moec_forward_stay(struct moec_forward *forward)
{
    if (forward->experts_here == NULL)
        return;
    forward->backend = NULL;
    forward->experts = forward->experts_here;
    forward->experts_here = NULL;
    forward->arithmetic = MOEC_ARITHMETIC_CANONICAL;
}

enum moec_status moec_forward_take_model(struct moec_forward *forward, const struct moec_model *model,
                                         struct moec_error *err)
{
    forward->model = model;
    if (forward->experts_here == NULL)
        return MOEC_OK;
    if (model->offload != NULL)
        return model->offload->ops->open(model->offload, forward->max_tokens, forward->arithmetic,
                                         &forward->backend, err);
    if (forward->arithmetic != MOEC_ARITHMETIC_CANONICAL)
        return moec_fail(
            err, MOEC_ERR_BUDGET,
            "the device has no memory left for a second model, and in the arithmetic '%s' both models must "
            "run on it: allow more of the device's memory (--vram)",
            moec_arithmetic_name(forward->arithmetic));
    moec_forward_stay(forward);
    return MOEC_OK;
}

enum moec_status moec_forward_take_experts(struct moec_forward *forward, struct moec_experts *experts,
                                           struct moec_error *err)
{
    struct moec_offload *offload = forward->model->offload;
    if (forward->experts_here == NULL) {
        forward->experts = experts;
        return MOEC_OK;
    }
    MOEC_TRY(offload->ops->experts(offload, experts, &forward->experts, err));
    forward->experts_here = experts;
    return MOEC_OK;
}

void moec_forward_return_experts(struct moec_forward *forward)
{
    struct moec_offload *offload = forward->model->offload;
    if (forward->experts_here != NULL)
        offload->ops->forget(offload, forward->experts);
}

void moec_forward_release(struct moec_forward *forward)
{
    moec_forward_keep_all(forward);
    if (forward->experts_here != NULL)
        moec_forward_return_experts(forward);
    forward->experts_here = NULL;
    forward->backend = NULL;
    free(forward->scratch);
    free(forward->rounded);
    free(forward->learned_predictor);
    free(forward->kept_logits);
    forward->scratch = NULL;
    forward->rounded = NULL;
    forward->learned_predictor = NULL;
    forward->kept_logits = NULL;
    forward->scratch_bytes = 0;
}

uint64_t moec_forward_arithmetic_bytes(const struct moec_config *config, uint32_t max_tokens,
                                       enum moec_arithmetic arithmetic)
{
    return arithmetic == MOEC_ARITHMETIC_INT8 ? moec_rounded_bytes(config, max_tokens) : 0;
}

enum moec_status moec_forward_use_arithmetic(struct moec_forward *forward, enum moec_arithmetic arithmetic,
                                             struct moec_error *err)
{
    struct moec_offload *offload = offload_of(forward);
    forward->arithmetic = arithmetic;
    if (offload != NULL)
        return offload->ops->open(offload, forward->max_tokens, arithmetic, &forward->backend, err);
    if (arithmetic == MOEC_ARITHMETIC_CANONICAL)
        return MOEC_OK;
    MOEC_TRY(moec_arithmetic_check_processor(arithmetic, err));
    return moec_rounded_create(&forward->model->config, forward->max_tokens, forward->kernels,
                               &forward->rounded, err);
}

enum moec_status moec_forward_use_predictor(struct moec_forward *forward,
                                            const struct moec_expert_predictor *predictor,
                                            struct moec_error *err)
{
    return moec_learned_predictor_create(predictor, &forward->learned_predictor, err);
}

uint64_t moec_forward_logits_bytes(const struct moec_config *config, uint32_t max_tokens)
{
    return (uint64_t)max_tokens * moec_lanes_padded(moec_config_choices(config)) * sizeof(float);
}

enum moec_status moec_forward_keep_logits(struct moec_forward *forward, struct moec_error *err)
{
    const uint64_t n_bytes = moec_forward_logits_bytes(&forward->model->config, forward->max_tokens);
    return moec_alloc_aligned((void **)&forward->kept_logits, n_bytes / sizeof(float), sizeof(float),
                              "scores of experts", err);
}
