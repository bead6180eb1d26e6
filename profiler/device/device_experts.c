/* Where all experts are kept the cache hears of answers as in a run. Else requests are mapped, and each
 * acquire asks by itself. */
#include "profiler/device/device_experts.h"

#include "formats/base/clock.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/policy/schedule/preload.h"

#include <inttypes.h>

static struct moec_experts *inner_of(const struct moec_device_experts *experts)
{
    return moec_expert_cache_experts(experts->cache);
}

static bool keeps_all(const struct moec_device_experts *experts)
{
    return experts->n_kept == experts->bundle->config.n_expert;
}

/* ---- the source ---- */

static struct moec_expert_request kept_request(const struct moec_device_experts *experts,
                                               struct moec_expert_request request)
{
    request.expert %= experts->n_kept;
    return request;
}

static enum moec_status device_acquire(struct moec_experts *self, struct moec_expert_request request,
                                       struct moec_mlp *mlp, struct moec_error *err)
{
    const struct moec_device_experts *experts = (const struct moec_device_experts *)self;
    struct moec_experts *inner = inner_of(experts);
    return inner->ops->acquire(inner, kept_request(experts, request), mlp, err);
}

static void device_release(struct moec_experts *self, struct moec_expert_request request)
{
    const struct moec_device_experts *experts = (const struct moec_device_experts *)self;
    struct moec_experts *inner = inner_of(experts);
    inner->ops->release(inner, kept_request(experts, request));
}

static bool device_ready(struct moec_experts *self, struct moec_expert_request request)
{
    const struct moec_device_experts *experts = (const struct moec_device_experts *)self;
    struct moec_experts *inner = inner_of(experts);
    return inner->ops->ready(inner, kept_request(experts, request));
}

static void device_expect(struct moec_experts *self, const struct moec_router_answer *answer)
{
    struct moec_device_experts *experts = (struct moec_device_experts *)self;
    struct moec_experts *inner = inner_of(experts);
    experts->answered_ns = moec_now_ns();
    if (keeps_all(experts))
        inner->ops->expect(inner, answer);
    if (experts->preload != NULL)
        moec_preload_answer(experts->preload, answer,
                            (uint32_t)moec_config_moe_ordinal(&experts->bundle->config, answer->layer),
                            experts->answered_ns);
}

static void device_cancel(struct moec_experts *self, struct moec_expert_request request)
{
    const struct moec_device_experts *experts = (const struct moec_device_experts *)self;
    struct moec_experts *inner = inner_of(experts);
    if (keeps_all(experts))
        inner->ops->cancel(inner, request);
}

static bool device_wants_prefetch(struct moec_experts *self, uint32_t ahead)
{
    const struct moec_device_experts *experts = (const struct moec_device_experts *)self;
    return experts->preload != NULL && moec_preload_wants_rank(experts->preload, ahead);
}

static void device_prefetch(struct moec_experts *self, const struct moec_router_answer *answer,
                            uint32_t ahead)
{
    const struct moec_device_experts *experts = (const struct moec_device_experts *)self;
    moec_preload_rank(experts->preload, answer, ahead);
    (void)moec_preload_next(experts->preload, moec_now_ns());
}

static const struct moec_experts_ops device_ops = {
    .acquire = device_acquire,
    .release = device_release,
    .expect = device_expect,
    .cancel = device_cancel,
    .ready = device_ready,
    .wants_prefetch = device_wants_prefetch,
    .prefetch = device_prefetch,
};

/* ---- reading ---- */

/* Of the first n experts of every layer. */
static uint64_t bytes_of_first(const struct moec_bundle *bundle, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t s = 0; s < moec_config_moe_count(&bundle->config); s++)
        for (uint32_t e = 0; e < n; e++)
            total += moec_record_slot_bytes(bundle, 0, s, e);
    return total;
}

static enum moec_status read_layer(struct moec_device_experts *experts, uint32_t ordinal,
                                   struct moec_error *err)
{
    struct moec_experts *inner = inner_of(experts);
    const uint32_t layer = moec_config_moe_layer(&experts->bundle->config, ordinal);
    for (uint32_t e = 0; e < experts->n_kept; e++) {
        const struct moec_expert_request request = moec_expert_request_of(layer, e);
        struct moec_mlp mlp;
        MOEC_TRY(inner->ops->acquire(inner, request, &mlp, err));
        inner->ops->release(inner, request);
    }
    return MOEC_OK;
}

enum moec_status moec_device_experts_open(const struct moec_bundle *bundle, uint64_t limit_bytes,
                                          const struct moec_progress *progress,
                                          struct moec_device_experts *out, struct moec_error *err)
{
    const uint32_t n_layer = moec_config_moe_count(&bundle->config), n_expert = bundle->config.n_expert;
    uint32_t n = n_expert;
    while (n > 1 && bytes_of_first(bundle, n) > limit_bytes)
        n--;
    const uint64_t kept_bytes = bytes_of_first(bundle, n),
                   least_bytes =
                       moec_record_sizes_of(bundle, 0).largest_bytes; /* that a cache must have room for */
    const struct moec_expert_cache_options options = {
        .buffer.n_bytes = kept_bytes > least_bytes ? kept_bytes : least_bytes};
    *out = (struct moec_device_experts){.bundle = bundle, .n_kept = n};
    MOEC_TRY(moec_expert_cache_create(bundle, &options, &out->cache, err));
    out->base = (struct moec_experts){.ops = &device_ops, .max_held = inner_of(out)->max_held};
    for (uint32_t s = 0; s < n_layer; s++) {
        MOEC_TRY(moec_progress_report(progress, "loading", s, n_layer, err));
        MOEC_TRY(read_layer(out, s, err));
    }
    if (n < n_expert)
        moec_progress_note(progress,
                           "only %" PRIu32 " of %" PRIu32 " experts of each layer fit into memory, so only "
                           "these are measured",
                           n, n_expert);
    return MOEC_OK;
}

void moec_device_experts_close(struct moec_device_experts *experts)
{
    moec_device_experts_predict_no_more(experts);
    moec_expert_cache_free(experts->cache);
    *experts = (struct moec_device_experts){0};
}

/* ---- predictions ---- */

static bool view_is_present(void *context, uint32_t key)
{
    (void)context;
    (void)key;
    return true;
}

static uint64_t view_n_bytes_of(void *context, uint32_t key)
{
    (void)context;
    (void)key;
    return 1;
}

enum moec_status moec_device_experts_predict(struct moec_device_experts *experts, struct moec_error *err)
{
    const struct moec_config *config = &experts->bundle->config;
    const struct moec_preload_setup setup = {
        .predictor = &moec_predict_gate,
        .model = {.n_layer = moec_config_moe_count(config),
                  .n_encoder = moec_config_moe_encoder_count(config),
                  .n_expert = config->n_expert,
                  .top_k = config->top_k,
                  .paths = &experts->bundle->paths},
        .view = {.is_present = view_is_present, .n_bytes_of = view_n_bytes_of}};
    MOEC_TRY(moec_preload_create(&setup, &experts->preload, err));
    experts->base.wants_choices = experts->base.wants_next_gate = true;
    return MOEC_OK;
}

void moec_device_experts_predict_no_more(struct moec_device_experts *experts)
{
    moec_preload_free(experts->preload);
    experts->preload = NULL;
    experts->base.wants_choices = experts->base.wants_next_gate = false;
}
