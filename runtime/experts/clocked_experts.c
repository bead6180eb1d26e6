/* Each operation of the seam is forwarded, so one that is added there must be added here: a missing one
 * looks like a source that does not offer it. Only acquire and await are counted, since nothing else waits
 * for a read. */
#include "runtime/experts/clocked_experts.h"

#include "formats/base/clock.h"

static struct moec_clocked_experts *clocked_of(struct moec_experts *self)
{
    return (struct moec_clocked_experts *)self;
}

/* Counts what was computed since the last call. */
static void count(struct moec_clocked_experts *clocked)
{
    const uint64_t now = moec_now_ns(), elapsed = now - clocked->since_ns;
    if (elapsed > clocked->waited_ns)
        atomic_fetch_add_explicit(&clocked->compute_ns[clocked->ordinal], elapsed - clocked->waited_ns,
                                  memory_order_relaxed);
    clocked->since_ns = now;
    clocked->waited_ns = 0;
}

static enum moec_status clocked_acquire(struct moec_experts *self, struct moec_expert_request request,
                                        struct moec_mlp *mlp, struct moec_error *err)
{
    struct moec_clocked_experts *clocked = clocked_of(self);
    const uint64_t start = moec_now_ns();
    const enum moec_status status = clocked->inner->ops->acquire(clocked->inner, request, mlp, err);
    clocked->waited_ns += moec_now_ns() - start;
    return status;
}

static void clocked_release(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    inner->ops->release(inner, request);
}

static void clocked_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_clocked_experts *clocked = clocked_of(self);
    count(clocked);
    clocked->ordinal = (uint32_t)moec_config_moe_ordinal(clocked->config, answer->layer);
    if (clocked->inner->ops->expect != NULL)
        clocked->inner->ops->expect(clocked->inner, answer);
}

static bool clocked_wants_prefetch(struct moec_experts *self, uint32_t ahead)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    return inner->ops->prefetch != NULL && inner->ops->wants_prefetch(inner, ahead);
}

static void clocked_prefetch(struct moec_experts *self, const struct moec_router_answer *answer,
                             uint32_t ahead)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    inner->ops->prefetch(inner, answer, ahead);
}

static void clocked_hint(struct moec_experts *self, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    if (inner->ops->hint != NULL)
        inner->ops->hint(inner, layer, experts, n);
}

static void clocked_begin_prompt(struct moec_experts *self, uint32_t layer, uint32_t n_tok,
                                 const bool *is_low)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    if (inner->ops->begin_prompt != NULL)
        inner->ops->begin_prompt(inner, layer, n_tok, is_low);
}

static void clocked_begin(struct moec_experts *self)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    if (inner->ops->begin != NULL)
        inner->ops->begin(inner);
}

static void clocked_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    if (inner->ops->cancel != NULL)
        inner->ops->cancel(inner, request);
}

static bool clocked_ready(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    return inner->ops->ready == NULL || inner->ops->ready(inner, request);
}

static bool clocked_is_here(struct moec_experts *self, struct moec_expert_request request)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    return inner->ops->is_here != NULL && inner->ops->is_here(inner, request);
}

static void clocked_need(struct moec_experts *self, struct moec_expert_request request,
                         const uint64_t *neurons, bool touches_all)
{
    struct moec_experts *inner = clocked_of(self)->inner;
    inner->ops->need(inner, request, neurons, touches_all);
}

static enum moec_status clocked_await(struct moec_experts *self, struct moec_expert_request request,
                                      const uint64_t *neurons, bool touches_all, struct moec_error *err)
{
    struct moec_clocked_experts *clocked = clocked_of(self);
    const uint64_t begin_ns = moec_now_ns();
    const enum moec_status status =
        clocked->inner->ops->await(clocked->inner, request, neurons, touches_all, err);
    clocked->waited_ns += moec_now_ns() - begin_ns;
    return status;
}

static const struct moec_experts_ops clocked_ops = {.acquire = clocked_acquire,
                                                    .release = clocked_release,
                                                    .expect = clocked_expect,
                                                    .wants_prefetch = clocked_wants_prefetch,
                                                    .prefetch = clocked_prefetch,
                                                    .hint = clocked_hint,
                                                    .begin_prompt = clocked_begin_prompt,
                                                    .begin = clocked_begin,
                                                    .cancel = clocked_cancel,
                                                    .is_here = clocked_is_here,
                                                    .ready = clocked_ready,
                                                    .need = clocked_need,
                                                    .await = clocked_await};

void moec_clocked_experts_init(struct moec_clocked_experts *clocked, struct moec_experts *inner,
                               const struct moec_config *config, atomic_ullong *compute_ns)
{
    *clocked = (struct moec_clocked_experts){.experts = *inner,
                                             .inner = inner,
                                             .config = config,
                                             .compute_ns = compute_ns,
                                             .ordinal = moec_config_moe_count(config) - 1};
    clocked->experts.ops = &clocked_ops;
}

void moec_clocked_experts_begin(struct moec_clocked_experts *clocked)
{
    clocked->since_ns = moec_now_ns();
    clocked->waited_ns = 0;
}

void moec_clocked_experts_end(struct moec_clocked_experts *clocked)
{
    count(clocked);
}
