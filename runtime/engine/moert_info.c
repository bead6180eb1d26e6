/* What an engine says of itself. */
#include "runtime/engine/engine.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/moert.h"

static struct moert_model_info model_info(const struct moert_engine *engine)
{
    const struct moec_config *config = &engine->bundle->config;
    return (struct moert_model_info){.n_vocab = config->n_vocab,
                                     .n_position = config->n_position,
                                     .n_expert = config->n_expert,
                                     .top_k = config->top_k,
                                     .decoder_start_id = config->ids.decoder_start,
                                     .pad_id = config->ids.pad,
                                     .rope_limit = moec_config_rope_limit(config),
                                     .rope_context = engine->model->config.position.rope_context};
}

static struct moert_compute_info compute_info(const struct moert_engine *engine)
{
    const char *certified = engine->arithmetic.certified;
    return (struct moert_compute_info){.n_threads = (uint32_t)engine->n_threads,
                                       .cpu = engine->kernels->name,
                                       .arithmetic = moec_arithmetic_name(engine->arithmetic.kind),
                                       .certified_arithmetic = certified[0] != '\0' ? certified : NULL,
                                       .kv = moec_kv_name(&engine->bundle->config),
                                       .n_context = engine->sessions.n_context,
                                       .prefill_tokens = engine->plan.max_tokens,
                                       .n_beams = engine->sessions.n_beams};
}

static struct moert_experts_info experts_info(const struct moert_engine *engine)
{
    const struct moec_mode_choice *choice = &engine->choice;
    return (struct moert_experts_info){.mode = choice->mode->name,
                                       .evict = choice->evict.ops != NULL ? choice->evict.word : "none",
                                       .predict = choice->predict->name,
                                       .preload_count = choice->preload_count,
                                       .preload_ahead = choice->preload_ahead,
                                       .copy = choice->copy,
                                       .bits = engine->bundle->copy_bits[choice->copy]};
}

static struct moert_memory_info memory_info(const struct moert_engine *engine)
{
    /* What is lent changes while sessions work, but for the engine's users nothing does. */
    struct moec_kv_lending *lending = (struct moec_kv_lending *)(uintptr_t)&engine->experts.lending;
    const struct moec_memory_plan *plan = &engine->plan;
    const struct moec_expert_stream *stream = engine->experts.stream;
    return (struct moert_memory_info){.base_bytes = plan->parts.base_bytes,
                                      .dense_bytes = plan->parts.dense_bytes,
                                      .kv_bytes = plan->parts.kv_bytes,
                                      .kv_lent_bytes = moec_kv_lending_lent_bytes(lending),
                                      .scratch_bytes = plan->parts.scratch_bytes + plan->parts.logits_bytes,
                                      .table_bytes = plan->parts.table_bytes,
                                      .expert_buffer_bytes = stream != NULL
                                                                 ? moec_expert_stream_buffer_bytes(stream)
                                                                 : plan->expert_buffer_bytes,
                                      .total_bytes = plan->total_bytes};
}

static struct moert_buffer_info buffer_info(const struct moert_engine *engine)
{
    const struct moec_memory_experts *experts = &engine->plan.experts;
    struct moec_expert_cache *cache = engine->experts.cache;
    return (struct moert_buffer_info){.low_pool_bytes = engine->decisions.low_pool_bytes,
                                      .all_bytes = experts->all_bytes,
                                      .working_set_bytes = experts->working_set_bytes,
                                      .logical_cache_bytes = experts->logical.held_bytes,
                                      .logical_passing_bytes = experts->logical.passing_bytes,
                                      .keeps_logical_cache =
                                          cache != NULL && moec_expert_cache_keeps_logical(cache)};
}

static struct moert_device_info device_info(const struct moec_engine_gpu *gpu)
{
    if (gpu == NULL)
        return (struct moert_device_info){0};
    return (struct moert_device_info){.name = gpu->info.name,
                                      .vram_bytes = gpu->plan.total_bytes,
                                      .vram_pool_bytes = moec_engine_gpu_pool_bytes(gpu)};
}

struct moert_info moert_engine_info(const struct moert_engine *engine)
{
    const struct moec_bundle *bundle = engine->bundle;
    const struct moec_config *config = &bundle->config;
    const struct moec_expert_stream *stream = engine->experts.stream;
    return (struct moert_info){
        .model = model_info(engine),
        .layers = {.n = config->n_layer,
                   .n_moe = moec_config_moe_count(config),
                   .n_encoder = config->n_encoder_layer,
                   .n_moe_encoder = moec_config_moe_encoder_count(config)},
        .compute = compute_info(engine),
        .experts = experts_info(engine),
        .storage = {.io = stream != NULL ? moec_expert_stream_io(stream)
                                         : moec_expert_cache_reader_description(engine->experts.cache),
                    .fitted_bytes_per_second = bundle->fitted_bytes_per_second,
                    .fitted_latency_ns = bundle->fitted_latency_ns},
        .memory = memory_info(engine),
        .buffer = buffer_info(engine),
        .device = device_info(engine->experts.gpu),
    };
}
