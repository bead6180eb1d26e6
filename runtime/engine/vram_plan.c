/* The same greedy plan as of main memory: the floor is a chunk of one token. The chunk is doubled within a
 * quarter of what is above the floor, or while all experts fit. The rest is the pool's. */
#include "runtime/engine/vram_plan.h"

#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_experts.h"
#include "runtime/forward/pass/session.h"

#include <inttypes.h>

#define MIB(bytes) ((double)(bytes) / 1048576.0)

/* Activations of all sessions: of the backend, and the hidden states that a session keeps. */
static uint64_t scratch_bytes(const struct moec_vram_request *request, uint32_t max_tokens)
{
    const struct moec_config *config = &request->bundle->config;
    const uint64_t rounded = request->rounds_inputs ? moec_gpu_backend_bf16_bytes(config, max_tokens) : 0;
    return request->sessions.n * (moec_gpu_backend_sizes_of(config, max_tokens).device_bytes + rounded +
                                  (uint64_t)max_tokens * moec_forward_stride(config) * sizeof(float));
}

static uint64_t sum_bytes(const struct moec_vram_plan *plan)
{
    return plan->dense_bytes + plan->kv_bytes + plan->scratch_bytes + plan->pool_bytes;
}

static enum moec_status refuse(const struct moec_vram_request *request, const struct moec_vram_plan *plan,
                               uint64_t budget_bytes, const char *what, struct moec_error *err)
{
    return moec_fail(err, MOEC_ERR_BUDGET,
                     "%.2f MiB of the device's memory %s: dense weights %.2f + KV cache for "
                     "%" PRIu32 " positions %.2f + activations %.2f + largest expert %.2f = %.2f "
                     "MiB needed; %.2f MiB are free on the device",
                     MIB(budget_bytes), what, MIB(plan->dense_bytes), request->sessions.n_context,
                     MIB(plan->kv_bytes), MIB(plan->scratch_bytes), MIB(plan->pool_bytes),
                     MIB(sum_bytes(plan)), MIB(request->free_bytes));
}

/* The longest chunk that takes at most a quarter of what is above the floor, or leaves room for all experts.
 */
static uint32_t choose_chunk(const struct moec_vram_request *request, const struct moec_vram_plan *floor,
                             uint64_t above_floor, uint64_t missing)
{
    uint32_t chunk = 1;
    while (chunk < request->max_tokens) {
        const uint32_t next = chunk < request->max_tokens / 2 ? 2 * chunk : request->max_tokens;
        const uint64_t extra = scratch_bytes(request, next) - floor->scratch_bytes;
        const bool holds_all = extra <= above_floor && above_floor - extra >= missing;
        if (!holds_all && extra > above_floor / 4)
            break;
        chunk = next;
    }
    return chunk;
}

enum moec_status moec_vram_plan_make(const struct moec_vram_request *request, struct moec_vram_plan *plan,
                                     struct moec_error *err)
{
    const struct moec_config *config = &request->bundle->config;
    const struct moec_gpu_pool_sizes sizes =
        moec_gpu_pool_sizes_of(request->bundle, request->records.copies, request->records.n_copy);
    const uint64_t free_bytes = request->free_bytes,
                   budget = request->budget_bytes > 0 ? request->budget_bytes : free_bytes - free_bytes / 16;
    struct moec_vram_plan made = {
        .dense_bytes =
            moec_gpu_model_bytes(config, moec_bundle_dense_bytes(request->bundle), request->records.sparsity),
        .kv_bytes =
            request->sessions.n * (moec_session_bytes(config, request->sessions.n_context, 0) +
                                   (request->sessions.n_beams - 1) *
                                       moec_session_beside_bytes(config, request->sessions.n_context)),
        .scratch_bytes = scratch_bytes(request, 1),
        .pool_bytes = sizes.largest_bytes};
    if (budget > free_bytes)
        return refuse(request, &made, budget, "are more than its free memory", err);
    const uint64_t floor = sum_bytes(&made);
    if (budget < floor)
        return refuse(request, &made, budget, "are not enough", err);
    const uint64_t missing = sizes.all_bytes - sizes.largest_bytes;
    uint64_t above_floor = budget - floor;
    made.max_tokens = choose_chunk(request, &made, above_floor, missing);
    const uint64_t floor_scratch = made.scratch_bytes;
    made.scratch_bytes = scratch_bytes(request, made.max_tokens);
    above_floor -= made.scratch_bytes - floor_scratch;
    made.pool_bytes += above_floor < missing ? above_floor : missing;
    made.total_bytes = sum_bytes(&made);
    *plan = made;
    return MOEC_OK;
}
