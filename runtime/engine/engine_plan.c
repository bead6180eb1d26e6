/* Whatever the engine allocates later is counted here in moec_engine_request, by the *_bytes function of the
 * one that allocates. The order is that of dependence: logical caches, base, plan, low pool, lending, watch,
 * device. The chunk of a prompt is the smaller of what both memories have room for. */
#include "runtime/engine/engine_plan.h"

#include "runtime/cuda/gpu_transfer.h"
#include "runtime/engine/engine_book.h"
#include "runtime/forward/context/learned_predictor.h"
#include "runtime/forward/pass/session.h"
#include "runtime/generate/draft_pace.h"
#include "runtime/generate/generate.h"

#define TRACE_BYTES ((uint64_t)1 << 20) /* of events kept between steps */

const char *moec_engine_evict_name(const struct moert_engine *engine)
{
    return engine->choice.evict.ops != NULL ? engine->choice.evict.ops->name : "none";
}

bool moec_engine_copies_neurons(const struct moert_engine *engine, const struct moert_options *options)
{
    return options->device.name != NULL && engine->arithmetic.kind == MOEC_ARITHMETIC_CANONICAL &&
           engine->decisions.sparsity != NULL && !options->device.transfer.copies_whole &&
           !options->device.cooperates && engine->sessions.n_sessions == 1 && engine->choice.mode->keeps &&
           engine->choice.copy == 0 && !moec_route_takes_low(&engine->decisions.route);
}

struct moec_expert_cache_options moec_engine_cache_options(const struct moert_engine *engine)
{
    const struct moec_mode_choice *choice = &engine->choice;
    return (struct moec_expert_cache_options){
        .buffer = {.n_bytes = engine->plan.expert_buffer_bytes + engine->experts.lending.lent_bytes,
                   .least_bytes = engine->plan.expert_buffer_bytes,
                   .most_bytes = engine->plan.expert_buffer_bytes + engine->experts.lending.lent_bytes +
                                 engine->experts.watch.most_bytes,
                   .low_pool_bytes = engine->decisions.low_pool_bytes},
        .records = {.copy = choice->copy,
                    .beside = &engine->decisions.low,
                    .n_beside = moec_route_takes_low(&engine->decisions.route),
                    .parts = engine->experts.parts.n_layer > 0 ? &engine->experts.parts : NULL,
                    .io = engine->experts.io},
        .keeps = {.policy = choice->evict.ops,
                  .weights = choice->evict.has_weights ? choice->evict.weights : NULL,
                  .nothing = !choice->mode->keeps,
                  .is_warm = choice->mode->is_warm,
                  .is_resident = choice->mode->is_resident,
                  .logical = engine->decisions.logical},
        .preload = {.predictor = choice->predict,
                    .count = choice->preload_count,
                    .ahead = choice->preload_ahead,
                    .reads_on = choice->mode->takes_any,
                    .precision = engine->decisions.route.precision},
        .n_sessions = engine->sessions.one_thread ? 1 : engine->sessions.n_sessions, /* at work at once */
        .trace = engine->trace.file,
    };
}

struct moec_trace_setup moec_engine_trace_setup(const struct moert_engine *engine,
                                                const struct moert_options *options)
{
    const char *precision = options->decisions.precision;
    return (struct moec_trace_setup){
        .path = options->trace.path,
        .bundle = engine->bundle,
        .copies = {.copy = engine->choice.copy,
                   .low =
                       moec_route_takes_low(&engine->decisions.route) ? engine->decisions.low.form.copy : 0,
                   .precision = precision != NULL ? precision : engine->decisions.tuned.precision},
        .policy = {.evict = moec_engine_evict_name(engine),
                   .predict = engine->choice.predict->name,
                   .preload_count = engine->choice.preload_count,
                   .preload_ahead = engine->choice.preload_ahead,
                   .buffer_bytes = engine->plan.expert_buffer_bytes},
        .has_logits = engine->trace.scores,
        /* Of the longest chunk's answer too. */
        .capacity_bytes =
            TRACE_BYTES + (engine->trace.scores
                               ? 2 * moec_forward_logits_bytes(&engine->bundle->config, MOEC_PLAN_MAX_TOKENS)
                               : 0),
    };
}

/* Of a generator, but for its sequences and one row of logits, which the plan counts by themselves. */
static uint64_t generator_bytes(const struct moert_engine *engine)
{
    const struct moec_config *config = &engine->bundle->config;
    return moec_generator_bytes(config, engine->sessions.n_context, engine->sessions.n_beams,
                                engine->sessions.drafts) -
           (engine->sessions.n_beams - 1) * moec_session_beside_bytes(config, engine->sessions.n_context) -
           config->n_vocab * sizeof(float);
}

/* Each pool has room for a record at least, or as asked; bytes of the low one, then. */
static uint64_t request_pools(const struct moert_engine *engine, struct moec_memory_request *request)
{
    const struct moec_record_sizes low =
        moec_record_sizes_of(engine->bundle, engine->decisions.low.form.copy);
    uint64_t all = low.all_bytes, least = low.largest_bytes;
    if (engine->decisions.low_pool_slots > 0)
        all = least =
            moec_low_pool_bytes(engine->bundle, engine->choice.copy, engine->decisions.low.form.copy,
                                engine->decisions.low_pool_slots, UINT64_MAX);
    request->bundle.all_record_bytes += all;
    request->bundle.largest_record_bytes += least;
    return least;
}

/* The most tokens that pass through the layers together, where what will be generated is known. */
static uint32_t n_together(const struct moert_engine *engine)
{
    const uint32_t n_prefetch = engine->sessions.drafts ? MOEC_DRAFT_MOST + 1 : 1;
    const uint32_t n_step = engine->sessions.n_beams * n_prefetch;
    if (engine->sessions.n_prompt == 0)
        return 0;
    return engine->sessions.n_prompt > n_step ? engine->sessions.n_prompt : n_step;
}

static struct moec_sessions_request sessions_request(const struct moert_engine *engine)
{
    const struct moec_engine_sessions *sessions = &engine->sessions;
    return (struct moec_sessions_request){.n_context = sessions->n_context,
                                          .n = sessions->n_sessions,
                                          .share_scratch = sessions->one_thread,
                                          .n_beams = sessions->n_beams,
                                          .n_logits = sessions->n_sessions +
                                                      sessions->one_thread, /* one more for scores */
                                          .generator_bytes = sessions->n_sessions * generator_bytes(engine),
                                          .n_together = n_together(engine)};
}

struct moec_memory_request moec_engine_request(const struct moert_engine *engine,
                                               const struct moert_options *options)
{
    struct moec_memory_request request = {
        .budget_bytes = options->memory_bytes,
        .process = {.reserve_bytes = options->reserve_bytes, .n_threads = engine->n_threads},
        .sessions = sessions_request(engine),
        .pass = {.arithmetic = engine->arithmetic.kind,
                 .on_device = options->device.name != NULL,
                 .route = moec_route_is_on(&engine->decisions.route) ? &engine->decisions.route : NULL,
                 .keeps_logits = engine->trace.scores},
        .buffer = {.n_bytes = options->buffer.size_bytes, .keeps_all = engine->choice.mode->is_resident},
    };
    moec_memory_request_bundle(&request, engine->bundle, engine->choice.copy, engine->choice.evict.ops);
    struct moec_expert_cache_options cache_options = moec_engine_cache_options(engine);
    if (moec_route_looks_at_buffer(&engine->decisions.route)) {
        cache_options.buffer.low_pool_bytes = request_pools(engine, &request);
    } else if (moec_route_takes_low(&engine->decisions.route)) {
        const struct moec_record_sizes low =
            moec_record_sizes_of(engine->bundle, engine->decisions.low.form.copy);
        request.bundle.all_record_bytes += low.all_bytes;
        if (low.largest_bytes > request.bundle.largest_record_bytes)
            request.bundle.largest_record_bytes = low.largest_bytes;
    }
    request.bundle.table_bytes = moec_expert_cache_table_bytes(engine->bundle, &cache_options);
    if (engine->choice.mode->streams_all)
        request.bundle.table_bytes = moec_expert_stream_table_bytes(engine->bundle, &engine->experts.io);
    if (options->device.name != NULL)
        request.bundle.table_bytes +=
            MOEC_GPU_TRANSFER_BYTES +
            moec_gpu_experts_table_bytes(engine->bundle, engine->choice.evict.ops, engine->choice.predict,
                                         engine->choice.preload_ahead,
                                         moec_route_takes_low(&engine->decisions.route) ? 2 : 1);
    if (moec_engine_copies_neurons(engine, options))
        request.bundle.table_bytes += moec_gpu_neurons_table_bytes(engine->bundle, engine->choice.evict.ops);
    if (moec_route_is_on(&engine->decisions.route)) {
        const uint32_t n_layer = moec_config_moe_count(&engine->bundle->config),
                       n_form = 1 + moec_route_takes_low(&engine->decisions.route),
                       n_expert = engine->bundle->config.n_expert;
        request.bundle.table_bytes += (uint64_t)n_form * n_layer * n_expert * sizeof(uint64_t) +
                                      moec_logical_cache_bytes(n_layer, n_form, n_expert);
    }
    if (moec_route_looks_at_buffer(&engine->decisions.route))
        request.bundle.table_bytes += moec_decision_book_bytes(moec_config_moe_count(&engine->bundle->config),
                                                               engine->bundle->config.top_k);
    if (engine->experts.predictor.n_layer > 0)
        request.bundle.table_bytes += moec_expert_predictor_bytes(&engine->experts.predictor) +
                                      (engine->sessions.one_thread ? 1 : engine->sessions.n_sessions) *
                                          moec_learned_predictor_bytes(&engine->experts.predictor);
    if (options->trace.path != NULL) {
        const struct moec_trace_setup trace = moec_engine_trace_setup(engine, options);
        request.bundle.table_bytes += moec_trace_bytes(&trace);
    }
    return request;
}

/* What the route's logical caches hold together, where it has any and experts are kept. */
static enum moec_status plan_logical(struct moert_engine *engine, struct moec_logical_room *room,
                                     struct moec_error *err)
{
    const struct moec_config *config = &engine->bundle->config;
    const struct moec_route *route = &engine->decisions.route;
    const uint32_t copies[] = {engine->choice.copy, engine->decisions.low.form.copy};
    const uint32_t n_slots[] = {route->n_slots, route->n_low_slots};
    const uint32_t n_form = 1 + moec_route_takes_low(route);
    if (route->n_slots == 0 || !engine->choice.mode->keeps)
        return MOEC_OK;
    MOEC_TRY(moec_logical_cache_create(
        &(struct moec_logical_shape){
            moec_config_moe_count(config), n_form, config->n_expert, {n_slots[0], n_slots[1]}},
        engine->sessions.n_sessions * engine->sessions.n_beams, &engine->decisions.logical, err));
    return moec_record_logical_room(engine->bundle, engine->decisions.logical, copies, room, err);
}

/* The chunk is what both memories have room for. */
static enum moec_status make_vram_plan(struct moert_engine *engine, const struct moert_options *options,
                                       struct moec_error *err)
{
    const uint32_t copies[] = {engine->choice.copy, engine->decisions.low.form.copy};
    const struct moec_vram_request request = {
        .bundle = engine->bundle,
        .records = {.copies = copies,
                    .n_copy = 1 + moec_route_takes_low(&engine->decisions.route),
                    .sparsity = engine->decisions.sparsity},
        .budget_bytes = options->device.vram_bytes,
        .free_bytes = engine->experts.gpu->info.free_bytes,
        .sessions = {.n_context = engine->sessions.n_context,
                     .n = engine->sessions.n_sessions,
                     .n_beams = engine->sessions.n_beams},
        .rounds_inputs = engine->arithmetic.kind == MOEC_ARITHMETIC_BF16,
        .max_tokens = engine->plan.max_tokens};
    MOEC_TRY(moec_vram_plan_make(&request, &engine->experts.gpu->plan, err));
    engine->plan.max_tokens = engine->experts.gpu->plan.max_tokens;
    return MOEC_OK;
}

enum moec_status moec_engine_floor(const struct moert_engine *engine, struct moec_memory_request request,
                                   struct moert_floor *floor, struct moec_error *err)
{
    struct moec_memory_plan plan;
    const uint32_t n_fits = request.budget_bytes > 0 ? moec_memory_plan_context(&request) : 0;
    request.budget_bytes = 0;
    MOEC_TRY(moec_memory_plan_make(&request, &plan, err));
    *floor = (struct moert_floor){.memory_bytes = plan.floor_bytes,
                                  .start_bytes = moec_memory_start_bytes(plan.floor_bytes),
                                  .n_context = plan.n_context,
                                  .n_prompt = engine->sessions.n_prompt,
                                  .n_context_fits = n_fits};
    return MOEC_OK;
}

enum moec_status moec_engine_plan(struct moert_engine *engine, const struct moert_options *options,
                                  struct moec_error *err)
{
    const bool lends = !options->buffer.keeps_size && options->buffer.size_bytes == 0 &&
                       options->trace.path == NULL && engine->choice.mode->keeps &&
                       engine->experts.gpu == NULL && !moec_route_looks_at_buffer(&engine->decisions.route);
    struct moec_memory_request request = moec_engine_request(engine, options);
    MOEC_TRY(plan_logical(engine, &request.buffer.logical, err));
    MOEC_TRY(moec_memory_base_bytes(&request.process.base_bytes, err));
    const enum moec_status status = moec_memory_plan_make(&request, &engine->plan, err);
    if (status == MOEC_ERR_BUDGET && options->refused_floor != NULL)
        MOEC_TRY(moec_engine_floor(engine, request, options->refused_floor, err));
    MOEC_TRY(status);
    if (moec_route_looks_at_buffer(&engine->decisions.route))
        engine->decisions.low_pool_bytes =
            moec_low_pool_bytes(engine->bundle, engine->choice.copy, engine->decisions.low.form.copy,
                                engine->decisions.low_pool_slots, engine->plan.expert_buffer_bytes);
    if (lends)
        moec_kv_lending_plan(&engine->experts.lending, &engine->plan, &request,
                             engine->sessions.n_prompt + 1);
    MOEC_TRY(moec_memory_watch_plan(&engine->experts.watch, &engine->plan, request.budget_bytes,
                                    lends && engine->sessions.n_sessions == 1 &&
                                        engine->experts.parts.n_layer == 0 && !engine->sessions.drafts,
                                    err));
    MOEC_TRY(moec_mode_check_plan(engine->choice.mode, &engine->plan, err));
    return engine->experts.gpu != NULL ? make_vram_plan(engine, options, err) : MOEC_OK;
}
