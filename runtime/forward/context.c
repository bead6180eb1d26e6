#include "runtime/forward/context.h"

#include "runtime/forward/rounded.h"
#include "runtime/forward/scratch.h"

#include <inttypes.h>
#include <stdlib.h>

uint64_t moec_forward_scratch_bytes(const struct moec_config *config, uint32_t max_tokens, int n_threads)
{
    return moec_scratch_bytes(config, max_tokens, moec_pool_make(n_threads).n_threads);
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
    return MOEC_OK;
}

void moec_forward_release(struct moec_forward *forward)
{
    free(forward->scratch);
    free(forward->rounded);
    forward->scratch = NULL;
    forward->rounded = NULL;
    forward->scratch_bytes = 0;
}

uint64_t moec_forward_int8_bytes(const struct moec_config *config, uint32_t max_tokens)
{
    return moec_rounded_bytes(config, max_tokens);
}

enum moec_status moec_forward_use_int8(struct moec_forward *forward, struct moec_error *err)
{
    return moec_rounded_create(&forward->model->config, forward->max_tokens, forward->kernels,
                               &forward->rounded, err);
}
