/* The floor is a chunk of one token and a buffer of the largest record. What is above it goes first to the
 * chunk, which is doubled while it takes at most a quarter of that. It is also doubled while all wanted
 * experts fit besides. The rest goes to the expert buffer. No item comes near 2^56 bytes, so sums cannot
 * overflow. The longest context is found by bisection. */
#include "runtime/engine/memory_plan.h"

#include "runtime/cuda/gpu_backend.h"
#include "runtime/experts/expert_cache.h"
#include "runtime/forward/moe/decide.h"
#include "runtime/forward/pass/session.h"
#include "runtime/forward/weights/position_bias.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB(bytes) ((double)(bytes) / 1048576.0)

/* ---- items ---- */

/* Norms, biases and gates as padded F32, the struct of each layer and the table of tensors: an upper bound of
 * what moec_model_create makes beside the blob. */
static uint64_t derived_bytes(const struct moec_config *config)
{
    const uint64_t norms = moec_config_is_encoder_decoder(config) ? 4 : config->layer_norm ? 5 : 3;
    const uint64_t extra = config->norms == MOEC_NORMS_AROUND ? 2 : 0;
    const uint64_t layer = sizeof(struct moec_layer) + MOEC_ROLE_COUNT * sizeof(struct moec_dense_entry);
    uint64_t floats = (norms - 2) * config->n_embd + moec_position_bias_floats(config);
    floats += config->head.bias ? config->n_vocab + (uint64_t)MOEC_LANES : 0;
    for (uint32_t at = 0; at < config->n_layer; at++) {
        const struct moec_layer_kind *kind = moec_config_layer(config, at);
        floats +=
            (norms + extra + kind->o_bias) * config->n_embd +
            2 * (moec_layer_q_dim(kind) + 2 * moec_layer_kv_dim(kind)) +
            (uint64_t)(kind->conv_size + 2) * (moec_layer_channels(kind) + MOEC_LANES) +
            2 * moec_layer_value_dim(kind) + kind->q_latent_dim +
            (config->mlp.own_norms ? 4 * (uint64_t)config->n_embd : 0) +
            (config->mlp.own_norms ? config->n_expert : 0) +
            (config->norms == MOEC_NORMS_AFTER && config->layer_norm ? 2 * (uint64_t)config->n_embd : 0) +
            (config->router.bias + config->router.choice_bias) * (uint64_t)moec_config_choices(config) +
            (uint64_t)20 * MOEC_LANES;
    }
    for (uint32_t kind = 0; kind < config->n_kind; kind++)
        floats += moec_config_rope_kind(config, kind) == kind ? config->kinds[kind].head_dim : 0;
    return config->n_layer * layer + floats * sizeof(float) + sizeof(struct moec_model) + 4096;
}

static uint32_t n_sessions(const struct moec_memory_request *request)
{
    return request->sessions.n > 0 ? request->sessions.n : 1;
}

static uint32_t n_beams(const struct moec_memory_request *request)
{
    return request->sessions.n_beams > 0 ? request->sessions.n_beams : 1;
}

static uint64_t scratch_bytes(const struct moec_memory_request *request, uint32_t max_tokens)
{
    const struct moec_config *config = request->config;
    uint64_t session = moec_session_bytes(config, request->sessions.n_context, max_tokens) -
                       moec_session_bytes(config, request->sessions.n_context, 0);
    return (request->sessions.share_scratch ? 1 : n_sessions(request)) *
           (moec_forward_scratch_bytes(config, max_tokens, request->process.n_threads) + session +
            moec_forward_arithmetic_bytes(config, max_tokens, request->pass.arithmetic) +
            (request->pass.on_device ? moec_gpu_backend_sizes_of(config, max_tokens).host_bytes : 0) +
            (request->pass.keeps_logits ? moec_forward_logits_bytes(config, max_tokens) : 0) +
            (request->pass.route != NULL ? moec_decider_bytes(config, request->pass.route, max_tokens) : 0));
}

/* Of all sequences. */
static uint64_t route_bytes(const struct moec_memory_request *request)
{
    if (request->pass.route == NULL)
        return 0;
    return (uint64_t)n_sessions(request) * n_beams(request) *
           moec_session_route_bytes(request->config, request->pass.route, request->sessions.n_context);
}

static uint64_t sum_bytes(const struct moec_memory_plan *plan)
{
    return plan->parts.base_bytes + plan->parts.dense_bytes + plan->parts.kv_bytes +
           plan->parts.scratch_bytes + plan->parts.logits_bytes + plan->parts.table_bytes +
           plan->parts.margin_bytes + plan->expert_buffer_bytes;
}

void moec_memory_request_bundle(struct moec_memory_request *request, const struct moec_bundle *bundle,
                                uint32_t copy, const struct moec_evict_ops *policy)
{
    struct moec_record_sizes sizes = moec_record_sizes_of(bundle, copy);
    request->config = &bundle->config;
    request->bundle.dense_bytes = moec_bundle_dense_bytes(bundle) + bundle->late_bytes;
    const struct moec_expert_cache_options options = {.records.copy = copy, .keeps.policy = policy};
    request->bundle.table_bytes = moec_expert_cache_table_bytes(bundle, &options);
    request->bundle.largest_record_bytes = sizes.largest_bytes;
    request->bundle.all_record_bytes = sizes.all_bytes;
    request->bundle.token_record_bytes = sizes.token_bytes;
}

/* No item may come near the end of 64 bits, so that sums of items cannot. */
static enum moec_status check_sizes(const struct moec_memory_request *request, struct moec_error *err)
{
    const uint64_t limit = (uint64_t)1 << 56;
    const struct moec_config *config = request->config;
    uint64_t session = 0;
    if (request->sessions.n_context == 0 || request->sessions.n_context > MOEC_MAX_POSITIONS)
        return moec_fail(err, MOEC_ERR_LIMIT, "the context has %u tokens, expected 1 to %u",
                         request->sessions.n_context, MOEC_MAX_POSITIONS);
    uint64_t one = moec_session_bytes(config, request->sessions.n_context, MOEC_PLAN_MAX_TOKENS) +
                   (n_beams(request) - 1) * moec_session_beside_bytes(config, request->sessions.n_context) +
                   moec_forward_scratch_bytes(config, MOEC_PLAN_MAX_TOKENS, request->process.n_threads) +
                   moec_forward_arithmetic_bytes(config, MOEC_PLAN_MAX_TOKENS, MOEC_ARITHMETIC_INT8);
    if (n_beams(request) > MOEC_MAX_BEAMS || request->sessions.generator_bytes > limit ||
        __builtin_mul_overflow(one, (uint64_t)n_sessions(request), &session) || session > limit ||
        request->process.base_bytes > limit || request->process.reserve_bytes > limit ||
        request->bundle.dense_bytes > limit || request->bundle.all_record_bytes > limit ||
        request->bundle.largest_record_bytes > request->bundle.all_record_bytes)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "%u sessions with a context of %u tokens need too much memory: "
                         "ask for fewer sessions or tokens",
                         n_sessions(request), request->sessions.n_context);
    return MOEC_OK;
}

/* ---- the plan ---- */

static enum moec_status refuse(const struct moec_memory_request *request, const struct moec_memory_plan *plan,
                               struct moec_error *err)
{
    const uint32_t n_fits = moec_memory_plan_context(request);
    char fits[64] = "";
    if (n_fits > 0)
        (void)snprintf(fits, sizeof fits, ", or use a context of at most %u tokens", n_fits);
    return moec_fail(
        err, MOEC_ERR_BUDGET,
        "memory budget of %" PRIu64 " bytes (%.2f MiB) is below the floor of %" PRIu64
        " (%.2f MiB): process %.2f + dense weights %.2f + KV cache for %u positions %.2f + scratch %.2f + "
        "logits %.2f + expert tables %.2f + %s %.2f + margin %.2f MiB; raise the budget%s",
        request->budget_bytes, MIB(request->budget_bytes), plan->floor_bytes, MIB(plan->floor_bytes),
        MIB(plan->parts.base_bytes), MIB(plan->parts.dense_bytes), request->sessions.n_context,
        MIB(plan->parts.kv_bytes), MIB(plan->parts.scratch_bytes), MIB(plan->parts.logits_bytes),
        MIB(plan->parts.table_bytes), request->buffer.n_bytes > 0 ? "expert buffer" : "largest expert",
        MIB(plan->expert_buffer_bytes), MIB(plan->parts.margin_bytes), fits);
}

/* What experts take where the budget does not end. */
static uint64_t wanted_buffer_bytes(const struct moec_memory_request *request)
{
    if (request->buffer.n_bytes == 0 || request->buffer.n_bytes > request->bundle.all_record_bytes)
        return request->bundle.all_record_bytes;
    return request->buffer.n_bytes > request->bundle.largest_record_bytes
               ? request->buffer.n_bytes
               : request->bundle.largest_record_bytes;
}

/* Everything at its least. */
static void plan_floor(const struct moec_memory_request *request, struct moec_memory_plan *plan)
{
    const struct moec_config *config = request->config;
    int n_threads = moec_pool_make(request->process.n_threads).n_threads;
    *plan = (struct moec_memory_plan){
        .max_tokens = 1,
        .n_context = request->sessions.n_context,
        .expert_buffer_bytes =
            request->buffer.n_bytes > 0 ? wanted_buffer_bytes(request) : request->bundle.largest_record_bytes,
        .parts = {.base_bytes = request->process.base_bytes,
                  .dense_bytes = request->bundle.dense_bytes + derived_bytes(config),
                  .kv_bytes = n_sessions(request) *
                                  (moec_session_bytes(config, request->sessions.n_context, 0) +
                                   (n_beams(request) - 1) *
                                       moec_session_beside_bytes(config, request->sessions.n_context)) +
                              route_bytes(request),
                  .scratch_bytes = scratch_bytes(request, 1),
                  .logits_bytes = (uint64_t)request->sessions.n_logits * config->n_vocab * sizeof(float) +
                                  request->sessions.generator_bytes,
                  .table_bytes = request->bundle.table_bytes,
                  .margin_bytes = MOEC_PLAN_MARGIN_BYTES + (uint64_t)n_threads * MOEC_PLAN_THREAD_BYTES +
                                  request->process.reserve_bytes},
        .experts = {.working_set_bytes = request->bundle.token_record_bytes,
                    .all_bytes = request->bundle.all_record_bytes,
                    .logical = request->buffer.logical}};
    plan->floor_bytes = sum_bytes(plan);
}

static uint64_t logical_bytes(const struct moec_logical_room *room)
{
    return room->held_bytes + room->passing_bytes;
}

/* Whether a chunk of n tokens leaves the room that logical caches want, or a short one does not either. */
static bool leaves_logical(const struct moec_memory_request *request, const struct moec_memory_plan *floor,
                           uint64_t above_floor, uint32_t n)
{
    const uint64_t wanted = logical_bytes(&request->buffer.logical), has = floor->expert_buffer_bytes;
    const uint64_t extra = scratch_bytes(request, n) - floor->parts.scratch_bytes,
                   least = scratch_bytes(request, MOEC_PLAN_SHORT_TOKENS) - floor->parts.scratch_bytes;
    if (n <= MOEC_PLAN_SHORT_TOKENS || wanted <= has || wanted > wanted_buffer_bytes(request) ||
        least > above_floor || wanted - has > above_floor - least)
        return true;
    return extra <= above_floor && above_floor - extra >= wanted - has;
}

/* Longer ones are of no use; they double, so that one may be longer. */
static uint32_t longest_chunk(const struct moec_memory_request *request)
{
    uint32_t longest = request->sessions.n_context < MOEC_PLAN_MAX_TOKENS ? request->sessions.n_context
                                                                          : MOEC_PLAN_MAX_TOKENS;
    if (request->sessions.n_together > 0 && request->sessions.n_together < longest)
        longest = request->sessions.n_together;
    return longest;
}

/* The longest chunk that takes at most a quarter of what is above the floor, or leaves room for the experts
 * that are wanted. */
static uint32_t choose_chunk(const struct moec_memory_request *request, const struct moec_memory_plan *floor,
                             uint64_t above_floor)
{
    uint32_t chunk = 1;
    uint64_t missing = wanted_buffer_bytes(request) - floor->expert_buffer_bytes;
    const uint32_t longest = longest_chunk(request);
    while (chunk < longest) {
        uint64_t extra = scratch_bytes(request, 2 * chunk) - floor->parts.scratch_bytes;
        bool holds_wanted = extra <= above_floor && above_floor - extra >= missing;
        if (!holds_wanted && (request->buffer.keeps_all || extra > above_floor / 4 ||
                              !leaves_logical(request, floor, above_floor, 2 * chunk)))
            break;
        chunk *= 2;
    }
    return chunk;
}

uint64_t moec_memory_plan_whole_bytes(const struct moec_memory_request *request)
{
    struct moec_memory_plan floor;
    plan_floor(request, &floor);
    const uint64_t missing = wanted_buffer_bytes(request) - floor.expert_buffer_bytes;
    const uint32_t longest = longest_chunk(request);
    uint64_t chunk_bytes = 0;
    /* A chunk is chosen before experts where a quarter of what is above the floor has room for it. */
    for (uint32_t chunk = 2; !request->buffer.keeps_all && chunk < 2 * longest; chunk *= 2) {
        const uint64_t extra = scratch_bytes(request, chunk) - floor.parts.scratch_bytes;
        chunk_bytes = 3 * extra <= missing ? extra : chunk_bytes;
    }
    return floor.floor_bytes + missing + chunk_bytes;
}

uint64_t moec_memory_start_bytes(uint64_t floor_bytes)
{
    return ((uint64_t)3 << 17) + floor_bytes / 40;
}

uint32_t moec_memory_plan_context(const struct moec_memory_request *request)
{
    struct moec_memory_request tried = *request;
    struct moec_memory_plan plan;
    uint32_t fits = 0, beyond = request->sessions.n_context + 1;
    while (beyond - fits > 1) {
        tried.sessions.n_context = fits + (beyond - fits) / 2;
        plan_floor(&tried, &plan);
        const uint64_t any_start = plan.floor_bytes + moec_memory_start_bytes(plan.floor_bytes);
        if (request->budget_bytes == 0 || any_start <= request->budget_bytes)
            fits = tried.sessions.n_context;
        else
            beyond = tried.sessions.n_context;
    }
    return fits;
}

enum moec_status moec_memory_plan_make(const struct moec_memory_request *request,
                                       struct moec_memory_plan *plan, struct moec_error *err)
{
    struct moec_memory_plan made;
    MOEC_TRY(check_sizes(request, err));
    plan_floor(request, &made);
    bool unlimited = request->budget_bytes == 0;
    if (!unlimited && request->budget_bytes < made.floor_bytes)
        return refuse(request, &made, err);
    uint64_t above_floor = unlimited ? UINT64_MAX : request->budget_bytes - made.floor_bytes;
    uint64_t floor_scratch = made.parts.scratch_bytes;
    made.max_tokens = choose_chunk(request, &made, above_floor);
    made.parts.scratch_bytes = scratch_bytes(request, made.max_tokens);
    above_floor -= made.parts.scratch_bytes - floor_scratch;
    uint64_t missing = wanted_buffer_bytes(request) - made.expert_buffer_bytes;
    made.expert_buffer_bytes += above_floor < missing ? above_floor : missing;
    made.experts.all_stay = made.expert_buffer_bytes >= request->bundle.all_record_bytes;
    made.experts.below_working_set =
        !made.experts.all_stay && made.expert_buffer_bytes < made.experts.working_set_bytes;
    made.total_bytes = sum_bytes(&made);
    *plan = made;
    return MOEC_OK;
}

bool moec_memory_plan_holds_logical(const struct moec_memory_plan *plan)
{
    return plan->expert_buffer_bytes >= plan->experts.logical.held_bytes;
}

static void warn_of_logical(const struct moec_memory_plan *plan, char *text, size_t capacity)
{
    (void)snprintf(
        text, capacity,
        "the expert buffer of %.2f MiB is smaller than the experts in the logical cache (%.2f MiB): some of "
        "these experts are read again, which takes time but does not change the text; a memory budget of "
        "%.2f MiB would hold all of them",
        MIB(plan->expert_buffer_bytes), MIB(plan->experts.logical.held_bytes),
        MIB(plan->total_bytes - plan->expert_buffer_bytes + logical_bytes(&plan->experts.logical)));
}

bool moec_memory_plan_warning(const struct moec_memory_plan *plan, char *text, size_t capacity)
{
    if (!moec_memory_plan_holds_logical(plan)) {
        warn_of_logical(plan, text, capacity);
        return true;
    }
    if (!plan->experts.below_working_set)
        return false;
    uint64_t wanted = plan->total_bytes - plan->expert_buffer_bytes + plan->experts.working_set_bytes;
    (void)snprintf(
        text, capacity,
        "the expert buffer of %.2f MiB is smaller than the experts of one token (%.2f MiB), so most of "
        "these experts are read again for every token; a memory budget of %.2f MiB would hold all of them",
        MIB(plan->expert_buffer_bytes), MIB(plan->experts.working_set_bytes), MIB(wanted));
    return true;
}
