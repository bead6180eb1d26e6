/* The public interface over engine parts: bundle, plan, model, cache, tokenizer. Sessions and generators are
 * in moert_session.c. Words of options are read and written in the C locale. */
#include "formats/base/locale.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_evict.h"
#include "formats/bundle/bundle_predictor.h"
#include "formats/bundle/dense_loading.h"
#include "runtime/cuda/gpu_transfer.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_book.h"
#include "runtime/engine/engine_decisions.h"
#include "runtime/engine/engine_plan.h"
#include "runtime/engine/moert_internal.h"
#include "runtime/forward/attention/kv_state.h"
#include "runtime/forward/context/learned_predictor.h"
#include "runtime/forward/pass/session.h"
#include "runtime/generate/generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(MOEC_EVICT_WEIGHTS == MOEC_BUNDLE_EVICT_WEIGHTS, "a bundle has all weights");

#define DEFAULT_CONTEXT_TOKENS 2048u
#define DEFAULT_TEXT_TOKENS    128u

struct moert_text {
    struct moec_detokenizer detokenizer;
};

const char *moert_version(void)
{
    return MOEC_VERSION;
}

struct moert_options moert_options_default(void)
{
    return (struct moert_options){.cpu = "auto", .sessions = {.n_sessions = 1}};
}

/* ---- engine ---- */

static enum moec_status check_io(const struct moert_options *options, struct moec_record_io *io,
                                 struct moec_error *err)
{
    if (options->storage.io != NULL)
        MOEC_TRY(moec_io_find(options->storage.io, &io->io, err));
    if (options->device.name != NULL && io->io == MOEC_IO_MAPPED)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "device '%s' copies from pinned memory, into which files cannot be mapped: choose a "
                         "way of reading (--io) other than 'mapped'",
                         options->device.name);
    if (options->device.name != NULL && io->io == MOEC_IO_AUTO_MAPPED)
        io->io = MOEC_IO_AUTO;
    if (options->storage.emulate_latency_ns + options->storage.emulate_request_ns > 0 &&
        options->storage.emulate_bytes_per_second == 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "a latency of %" PRIu64 " ns, plus %" PRIu64
                         " ns for each request, can be emulated only "
                         "with a bandwidth: give a bandwidth too",
                         options->storage.emulate_latency_ns, options->storage.emulate_request_ns);
    io->emulation = (struct moec_emulation){.bytes_per_second = options->storage.emulate_bytes_per_second,
                                            .latency_ns = options->storage.emulate_latency_ns,
                                            .request_ns = options->storage.emulate_request_ns};
    return MOEC_OK;
}

static enum moec_status refuse_sparsity(double sparsity, const char *precision, const char *prefill,
                                        const char *whose, struct moec_error *err)
{
    const bool is_precision = precision != NULL && precision[0] != '\0';
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "sparsity %g cannot be combined with %s '%s'%s: sparsity "
        "thresholds hold only for the bits that experts were compiled with, without low-precision "
        "copies",
        sparsity, is_precision ? "precision" : "prefill", is_precision ? precision : prefill, whose);
}

/* The bundle's own plan, which is certified for its compiled assignment and used with that alone. */
static enum moec_status use_plan(struct moert_engine *engine, struct moec_error *err)
{
    if (engine->choice.copy != 0 || engine->choice.mode->bits > 0)
        return MOEC_OK;
    struct moec_certificate certificate;
    MOEC_TRY(moec_sparsity_open_planned(engine->bundle, &engine->decisions.sparsity, &certificate, err));
    engine->decisions.is_planned = engine->decisions.sparsity != NULL;
    if (engine->decisions.is_planned && !moec_decision_settings_are_on(&engine->decisions.tuned))
        moec_engine_take_arithmetic(engine, &certificate);
    if (!engine->decisions.is_planned || !moec_route_takes_low(&engine->decisions.route))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "a precision or prefill cannot be combined with the bundle's sparsity plan, which holds "
        "only for the bits that experts were compiled with: leave out the precision or prefill, or keep all "
        "neurons (decisions.all_neurons, --sparsity none)");
}

static enum moec_status open_sparsity(struct moert_engine *engine, const struct moert_decisions *decisions,
                                      struct moec_error *err)
{
    if (decisions->all_neurons && decisions->sparsity != 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the settings all_neurons and sparsity (%g) contradict each other: set only one",
                         decisions->sparsity);
    if (decisions->all_neurons)
        return MOEC_OK;
    if (decisions->sparsity == 0)
        return use_plan(engine, err);
    if (moec_route_takes_low(&engine->decisions.route)) /* not asked for, but the bundle's */
        return refuse_sparsity(
            decisions->sparsity, engine->decisions.tuned.precision, engine->decisions.tuned.prefill,
            " of the bundle's settings (--decide none turns them off, and decisions.none in a program)", err);
    return moec_sparsity_open(engine->bundle, engine->choice.copy, decisions->sparsity,
                              &engine->decisions.sparsity, err);
}

/* Experts come in parts where that takes less time: not to a device, nor where the page cache is mapped. What
 * the gate decides needs the gate's rows first, which stand among the pairs. */
static enum moec_status open_parts(struct moert_engine *engine, const struct moert_options *options,
                                   struct moec_error *err)
{
    if (engine->decisions.sparsity != NULL && options->device.name != NULL)
        MOEC_TRY(moec_sparsity_check_device(engine->decisions.sparsity, err));
    if (engine->decisions.sparsity == NULL || engine->choice.mode->streams_all ||
        options->device.name != NULL || engine->experts.io.io == MOEC_IO_MAPPED ||
        moec_sparsity_is_at_gate(engine->decisions.sparsity))
        return MOEC_OK;
    MOEC_TRY(moec_bundle_load_parts(engine->bundle, &engine->experts.parts, err));
    if (engine->experts.parts.n_layer > 0 &&
        !moec_parts_estimate_make(engine->bundle, &engine->experts.parts, &engine->experts.io.emulation,
                                  moec_sparsity_share(engine->decisions.sparsity))
             .pays)
        moec_record_parts_release(&engine->experts.parts);
    if (engine->experts.parts.n_layer > 0 && engine->experts.io.io == MOEC_IO_AUTO_MAPPED)
        engine->experts.io.io = MOEC_IO_AUTO;
    return MOEC_OK;
}

/* Everything that is planned goes by the bundle's config. */
static enum moec_status choose_kv(const struct moert_options *options, struct moec_config *config,
                                  struct moec_error *err)
{
    struct moec_codec kv;
    MOEC_TRY(moec_kv_read(options->sessions.kv, &kv, err));
    if (kv.dtype != MOEC_DTYPE_F32 && options->device.name != NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "device '%s' keeps keys and values only as F32: choose 'f32'", options->device.name);
    return moec_config_choose_kv(config, kv, err);
}

/* The weights of hobbit, where its word has none, are the bundle's; equal ones where it has none either. */
static enum moec_status take_evict_weights(struct moert_engine *engine, struct moec_error *err)
{
    struct moec_evict_choice *evict = &engine->choice.evict;
    struct moec_bundle_evict own;
    if (evict->ops != &moec_evict_hobbit || evict->has_weights)
        return MOEC_OK;
    MOEC_TRY(moec_bundle_load_evict(engine->bundle, &own, err));
    evict->has_weights = moec_bundle_evict_is_there(&own);
    memcpy(evict->weights, own.weights, sizeof evict->weights);
    return MOEC_OK;
}

/* A trace has what it says too, for simulations. */
static enum moec_status open_predictor(struct moert_engine *engine, const struct moert_options *options,
                                       struct moec_error *err)
{
    const bool is_traced = options->trace.path != NULL && options->device.name == NULL;
    if (!engine->choice.predict->needs_learned && !is_traced)
        return MOEC_OK;
    return moec_bundle_load_predictor(engine->bundle, &engine->experts.predictor, err);
}

/* Layers that the policy "fate" keeps whole: as its word says, or as the bundle does. */
static enum moec_status choose_shallow(struct moert_engine *engine, struct moec_error *err)
{
    const struct moec_config *config = &engine->bundle->config;
    const struct moec_evict_choice *evict = &engine->choice.evict;
    const uint32_t n_layer = moec_config_moe_count(config) - moec_config_moe_encoder_count(config);
    if (evict->n_shallow > n_layer)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "eviction '%s' asks for %" PRIu32 " shallow layers, expected 1 to the %" PRIu32
                         " MoE layers of '%s'",
                         evict->word, evict->n_shallow, n_layer, engine->bundle->file.path);
    if (evict->n_shallow > 0)
        engine->bundle->paths.n_shallow = evict->n_shallow;
    if (evict->ops == &moec_evict_fate && engine->bundle->paths.n_shallow == 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "eviction 'fate' keeps the shallow layers, but the bundle '%s' does not store how many layers "
            "are shallow, because it was compiled without a profile: give their number, such as fate:2",
            engine->bundle->file.path);
    return MOEC_OK;
}

static enum moec_status check_options(const struct moert_options *options, const struct moec_config *config,
                                      struct moert_engine *engine, struct moec_error *err)
{
    engine->experts.on_device = options->device.name != NULL;
    engine->trace.scores = options->trace.path != NULL && options->trace.scores;
    moec_engine_take_arithmetic(engine, &engine->bundle->certificate);
    engine->sessions.n_sessions = options->sessions.n_sessions > 0 ? options->sessions.n_sessions : 1;
    engine->sessions.one_thread = options->sessions.one_thread;
    engine->sessions.n_context = options->sessions.n_context;
    if (engine->sessions.n_context == 0)
        engine->sessions.n_context =
            config->n_position < DEFAULT_CONTEXT_TOKENS ? config->n_position : DEFAULT_CONTEXT_TOKENS;
    if (engine->sessions.n_context > config->n_position)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the context has %" PRIu32 " tokens, expected at most %" PRIu32
                         ", the number of positions that the model supports",
                         engine->sessions.n_context, config->n_position);
    engine->sessions.rope_tokens = engine->sessions.n_context;
    engine->sessions.n_beams =
        options->sessions.n_beams > 0 ? options->sessions.n_beams : engine->bundle->generation.n_beam;
    engine->sessions.drafts = options->sessions.drafts;
    if (engine->sessions.n_beams > MOEC_MAX_BEAMS)
        return moec_fail(err, MOEC_ERR_USAGE, "%" PRIu32 " beams are requested, but the limit is %d",
                         engine->sessions.n_beams, MOEC_MAX_BEAMS);
    if (engine->sessions.n_sessions > MOEC_MAX_SESSIONS)
        return moec_fail(err, MOEC_ERR_USAGE, "%" PRIu32 " sessions are requested, but the limit is %u",
                         engine->sessions.n_sessions, MOEC_MAX_SESSIONS);
    engine->n_threads = moec_pool_make(options->n_threads).n_threads;
    struct moec_mode_request request = {.mode = options->buffer.mode,
                                        .evict = options->buffer.evict,
                                        .predict = options->buffer.predict,
                                        .copy = options->copy,
                                        .preload_count = options->buffer.preload_count,
                                        .preload_ahead = options->buffer.preload_ahead,
                                        .has_device = options->device.name != NULL};
    MOEC_TRY(moec_mode_choose(engine->bundle, &request, &engine->choice, err));
    if (engine->choice.mode->streams_all && engine->sessions.n_sessions > 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "mode '%s' reads experts in one order and serves only one session, but %" PRIu32
                         " sessions are asked for: ask for one session, or use mode 'cache'",
                         engine->choice.mode->name, engine->sessions.n_sessions);
    MOEC_TRY(check_io(options, &engine->experts.io, err));
    if (options->decisions.sparsity != 0 &&
        (options->decisions.precision != NULL || options->decisions.prefill != NULL))
        return refuse_sparsity(options->decisions.sparsity, options->decisions.precision,
                               options->decisions.prefill, "", err);
    MOEC_TRY(moec_engine_decide(engine, options, config, err));
    request.decides = moec_route_is_on(&engine->decisions.route);
    MOEC_TRY(moec_mode_choose(engine->bundle, &request, &engine->choice, err)); /* by what is known now */
    MOEC_TRY(open_sparsity(engine, &options->decisions, err));
    MOEC_TRY(open_parts(engine, options, err));
    MOEC_TRY(open_predictor(engine, options, err));
    MOEC_TRY(take_evict_weights(engine, err));
    MOEC_TRY(choose_shallow(engine, err));
    MOEC_TRY(moec_kernels_find(options->cpu != NULL ? options->cpu : "auto", &engine->kernels, err));
    if (options->arithmetic == NULL)
        return MOEC_OK;
    engine->arithmetic.falls_back = false;
    return moec_arithmetic_read(options->arithmetic, &engine->arithmetic.kind, err);
}

/* What a device does not do is refused before anything is opened there. */
static enum moec_status check_device(const struct moert_engine *engine, const struct moert_options *options,
                                     struct moec_error *err)
{
    const struct moec_mode *mode = engine->choice.mode;
    const bool is_int8 = engine->arithmetic.kind == MOEC_ARITHMETIC_INT8,
               is_bf16 = engine->arithmetic.kind == MOEC_ARITHMETIC_BF16;
    const char *what = is_int8 ? "the arithmetic 'int8': choose 'canonical' or 'bf16'"
                       : engine->choice.predict->needs_learned
                           ? "the predictor 'learned', which the bundle holds: choose 'gate'"
                       : mode->streams_all ? "a mode that reads all experts in order: choose mode 'cache'"
                                           : NULL;
    if (options->device.name == NULL)
        MOEC_TRY(moec_arithmetic_check_processor(engine->arithmetic.kind, err));
    if (options->device.name == NULL && options->device.vram_bytes > 0)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "a limit on the device's memory (--vram) is given, but no device: give one (--device), or leave "
            "out the limit");
    if (options->device.cooperates && (options->device.name == NULL || engine->sessions.n_sessions > 1))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "computing experts on the processor as well as on a device (--cooperate) needs a device and a "
            "single session");
    if (options->device.transfer.copies_whole &&
        (options->device.name == NULL || engine->decisions.sparsity == NULL))
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "whole records (--whole-records) apply only to a device that runs with sparsity; without "
            "sparsity, experts are always copied whole");
    if (options->device.name == NULL)
        return MOEC_OK;
    if (options->device.cooperates && engine->bundle->config.router.scales_input)
        what = "--cooperate in a model whose router scales the experts' input";
    if (options->device.cooperates && is_bf16)
        what = "--cooperate in the arithmetic bf16, which the processor cannot run";
    if (what != NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "device '%s' does not support %s", options->device.name,
                         what);
    return MOEC_OK;
}

static enum moec_status need_tokenizer(const struct moert_engine *engine, struct moec_error *err)
{
    if (engine->tokenizer != NULL)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "the bundle '%s' has no tokenizer: its checkpoint had none, so only token ids can be "
                     "used",
                     engine->bundle->file.path);
}

uint32_t moert_engine_text_room(const struct moert_engine *engine, uint32_t asked, uint32_t n_prompt)
{
    const bool has_encoder = moec_config_is_encoder_decoder(&engine->bundle->config);
    return asked != MOERT_TOKENS_OF_MODEL
               ? asked
               : moec_generation_room(&engine->bundle->generation, has_encoder ? 1 : n_prompt,
                                      DEFAULT_TEXT_TOKENS);
}

/* No more positions than the prompt and its text take. A prompt that is too long is refused where it is
 * used. */
static enum moec_status fit_context(struct moert_engine *engine, const struct moert_options *options,
                                    struct moec_error *err)
{
    uint32_t *tokens = NULL;
    size_t n_prompt = 0;
    if (options->text.prompt == NULL)
        return MOEC_OK;
    MOEC_TRY(need_tokenizer(engine, err));
    MOEC_TRY(moec_tokenizer_encode(engine->tokenizer,
                                   (struct moec_text){options->text.prompt, options->text.n_prompt_bytes},
                                   true, &tokens, &n_prompt, err));
    free(tokens);
    engine->sessions.n_prompt = n_prompt < UINT32_MAX ? (uint32_t)n_prompt : UINT32_MAX;
    if (n_prompt >= engine->sessions.n_context)
        return MOEC_OK;
    const uint64_t n_text = moert_engine_text_room(engine, options->text.n_tokens, (uint32_t)n_prompt);
    /* A target begins with a token of its own. */
    const uint64_t needed = !moec_config_is_encoder_decoder(&engine->bundle->config) ? n_prompt + n_text
                            : n_prompt > n_text + 1                                  ? n_prompt
                                                                                     : n_text + 1;
    if (needed < engine->sessions.n_context)
        engine->sessions.n_context = needed > 0 ? (uint32_t)needed : 1;
    return MOEC_OK;
}

static enum moec_status create_experts(struct moert_engine *engine, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, moec_config_moe_count(&engine->bundle->config),
                        sizeof *engine->trace.compute_ns, "counters", err));
    engine->trace.compute_ns = memory;
    if (engine->choice.mode->streams_all) {
        const struct moec_expert_stream_options options = {.buffer_bytes = engine->plan.expert_buffer_bytes,
                                                           .copy = engine->choice.copy,
                                                           .io = engine->experts.io,
                                                           .trace = engine->trace.file};
        return moec_expert_stream_create(engine->bundle, &options, &engine->experts.stream, err);
    }
    const struct moec_expert_cache_options options = moec_engine_cache_options(engine);
    MOEC_TRY(moec_expert_cache_create(engine->bundle, &options, &engine->experts.cache, err));
    if (engine->experts.gpu != NULL)
        return moec_engine_gpu_load(engine->experts.gpu, engine->model, engine->bundle,
                                    engine->decisions.sparsity, &options, engine->experts.cache, err);
    if (engine->experts.lending.lent_bytes > 0 || engine->experts.watch.most_bytes > 0)
        moec_kv_lending_begin(&engine->experts.lending, engine->experts.cache);
    return MOEC_OK;
}

struct moec_experts *moert_engine_experts(const struct moert_engine *engine)
{
    if (engine->experts.gpu != NULL)
        return moec_engine_gpu_source(engine->experts.gpu);
    return engine->experts.stream != NULL ? moec_expert_stream_experts(engine->experts.stream)
                                          : moec_expert_cache_experts(engine->experts.cache);
}

/* Everything that a plan of memory depends on. */
static enum moec_status open_bundle(struct moert_engine *engine, const char *path,
                                    const struct moert_options *options, struct moec_error *err)
{
    MOEC_TRY(moec_bundle_open(path, &engine->bundle, err));
    const struct moec_bundle *bundle = engine->bundle;
    MOEC_TRY(choose_kv(options, &engine->bundle->config, err));
    MOEC_TRY(check_options(options, &bundle->config, engine, err));
    if (bundle->tokenizer != NULL)
        MOEC_TRY(moec_tokenizer_create(bundle->tokenizer, &engine->tokenizer, err));
    MOEC_TRY(moec_engine_chat_open(bundle, &engine->chat, err));
    return fit_context(engine, options, err);
}

/* Mapped where experts would be. A device is given all of them. */
static enum moec_status load_dense(struct moert_engine *engine, struct moec_dense *dense,
                                   struct moec_error *err)
{
    const bool is_auto = engine->experts.io.io == MOEC_IO_AUTO_MAPPED;
    const struct moec_dense_loading how = {.maps = engine->experts.io.emulation.bytes_per_second == 0 &&
                                                   (is_auto || engine->experts.io.io == MOEC_IO_MAPPED),
                                           .only_cached = is_auto,
                                           .leaves_embedding = engine->experts.gpu == NULL};
    return moec_bundle_open_dense(engine->bundle, &how, dense, err);
}

static void set_transfer(struct moec_engine_gpu *gpu, const struct moert_engine *engine,
                         const struct moert_options *options)
{
    const struct moert_transfer *transfer = &options->device.transfer;
    gpu->cooperates = options->device.cooperates;
    gpu->copies_neurons = moec_engine_copies_neurons(engine, options);
    gpu->n_threads = engine->n_threads;
    gpu->copy_byte_ns = transfer->copy_byte_ns;
    gpu->cpu_byte_ns = transfer->cpu_byte_ns;
    gpu->gpu_byte_ns = transfer->gpu_byte_ns;
}

/* A certificate's arithmetic is no reason to refuse a device that lacks it; that of the options is. */
static enum moec_status take_device(struct moert_engine *engine, const struct moert_options *options,
                                    struct moec_error *err)
{
    struct moec_error ignored = {0};
    const bool is_asked = options->arithmetic != NULL;
    const enum moec_status status = moec_gpu_check_arithmetic(
        &engine->experts.gpu->info, engine->arithmetic.kind, is_asked ? err : &ignored);
    if (status == MOEC_OK || is_asked)
        return status;
    engine->arithmetic.kind = MOEC_ARITHMETIC_CANONICAL;
    engine->arithmetic.falls_back = true;
    return MOEC_OK;
}

static enum moec_status load_engine(struct moert_engine *engine, const char *path,
                                    const struct moert_options *options, const struct moec_gpu_entry *entry,
                                    struct moec_error *err)
{
    MOEC_TRY(open_bundle(engine, path, options, err));
    const struct moec_bundle *bundle = engine->bundle;
    MOEC_TRY(check_device(engine, options, err));
    MOEC_TRY(moec_engine_open_book(engine, &options->decisions, err));
    if (options->device.name != NULL)
        MOEC_TRY(moec_engine_gpu_open(options->device.name, entry, &engine->experts.gpu, err));
    if (engine->experts.gpu != NULL) {
        MOEC_TRY(take_device(engine, options, err));
        set_transfer(engine->experts.gpu, engine, options);
    }
    MOEC_TRY(moec_engine_plan(engine, options, err));
    struct moec_dense dense = {0};
    MOEC_TRY(load_dense(engine, &dense, err));
    struct moec_config config = bundle->config;
    moec_config_choose_rope(&config, engine->sessions.rope_tokens);
    MOEC_TRY(moec_model_create(&config, &dense, &engine->model, err));
    moec_give_back_free_memory(); /* of threads that unpacked dense weights: half a mebibyte */
    if (options->trace.path != NULL) {
        const struct moec_trace_setup trace = moec_engine_trace_setup(engine, options);
        MOEC_TRY(moec_trace_open(&trace, &engine->trace.file, err));
    }
    if (moec_route_is_on(&engine->decisions.route))
        MOEC_TRY(
            moec_copy_record_bytes(bundle, engine->choice.copy, &engine->decisions.record_bytes[0], err));
    if (moec_route_takes_low(&engine->decisions.route))
        MOEC_TRY(moec_copy_record_bytes(bundle, engine->decisions.low.form.copy,
                                        &engine->decisions.record_bytes[1], err));
    return create_experts(engine, err);
}

static void release_engine(struct moert_engine *engine)
{
    moec_decision_file_release(&engine->decisions.replay);
    moec_model_free(engine->model);
    moec_tokenizer_free(engine->tokenizer);
    moec_engine_chat_free(engine->chat);
    moec_sparsity_free(engine->decisions.sparsity);
    moec_record_parts_release(&engine->experts.parts);
    moec_expert_predictor_release(&engine->experts.predictor);
    moec_bundle_close(engine->bundle);
    moec_logical_cache_free(engine->decisions.logical);
    free(engine->trace.compute_ns);
    free(engine->decisions.record_bytes[0]);
    free(engine->decisions.record_bytes[1]);
    free(engine);
}

static enum moec_status measure_floor(struct moert_engine *engine, const char *path,
                                      const struct moert_options *options, struct moert_floor *out,
                                      struct moec_error *err)
{
    MOEC_TRY(open_bundle(engine, path, options, err));
    struct moec_memory_request request = moec_engine_request(engine, options);
    MOEC_TRY(moec_memory_base_bytes(&request.process.base_bytes, err));
    return moec_engine_floor(engine, request, out, err);
}

enum moert_status moert_engine_floor(const char *path, const struct moert_options *options,
                                     struct moert_floor *out, struct moert_error *err)
{
    struct moec_error ours = {0};
    struct moert_engine engine = {0};
    const locale_t before = moec_locale_enter();
    const enum moec_status status = measure_floor(&engine, path, options, out, &ours);
    moec_locale_leave(before);
    moec_tokenizer_free(engine.tokenizer);
    moec_engine_chat_free(engine.chat);
    moec_sparsity_free(engine.decisions.sparsity);
    moec_record_parts_release(&engine.experts.parts);
    moec_expert_predictor_release(&engine.experts.predictor);
    moec_decision_file_release(&engine.decisions.replay);
    moec_bundle_close(engine.bundle);
    return moert_to_public(status, &ours, err);
}

enum moert_status moert_engine_open(const char *path, const struct moert_options *options,
                                    struct moert_engine **out, struct moert_error *err)
{
    const struct moec_record_io io = {0};
    return moert_engine_open_io(path, options, &io, out, err);
}

enum moert_status moert_engine_open_io(const char *path, const struct moert_options *options,
                                       const struct moec_record_io *io, struct moert_engine **out,
                                       struct moert_error *err)
{
    return moert_engine_open_on(path, options, io, NULL, out, err);
}

enum moert_status moert_engine_open_on(const char *path, const struct moert_options *options,
                                       const struct moec_record_io *io, const struct moec_gpu_entry *entry,
                                       struct moert_engine **out, struct moert_error *err)
{
    struct moec_error ours = {0};
    void *memory = NULL;
    enum moec_status status = moec_alloc(&memory, 1, sizeof(struct moert_engine), "an engine", &ours);
    if (status != MOEC_OK)
        return moert_to_public(status, &ours, err);
    struct moert_engine *engine = memory;
    engine->experts.io = *io;
    struct moert_options defaults = moert_options_default();
    const locale_t before = moec_locale_enter();
    status = load_engine(engine, path, options != NULL ? options : &defaults, entry, &ours);
    moec_locale_leave(before);
    if (status != MOEC_OK) { /* sources of experts are made last, the device's pool after the cache */
        moec_engine_gpu_free(engine->experts.gpu);
        moec_expert_cache_free(engine->experts.cache);
        moec_trace_discard(engine->trace.file);
        moec_decision_book_discard(engine->decisions.book);
        release_engine(engine);
        return moert_to_public(status, &ours, err);
    }
    *out = engine;
    return MOERT_OK;
}

enum moert_status moert_engine_end(struct moert_engine *engine, struct moert_error *err)
{
    struct moec_error ours = {0};
    if (engine == NULL)
        return MOERT_OK;
    moec_kv_lending_end(&engine->experts.lending);
    moec_engine_gpu_free(engine->experts.gpu);
    moec_expert_cache_free(engine->experts.cache);
    moec_expert_stream_free(engine->experts.stream);
    const enum moec_status traced = moec_trace_close(engine->trace.file, &ours);
    const enum moec_status kept = moec_decision_book_close(engine->decisions.book, &ours);
    const enum moec_status status = traced != MOEC_OK ? traced : kept;
    release_engine(engine);
    return moert_to_public(status, &ours, err);
}

void moert_engine_close(struct moert_engine *engine)
{
    (void)moert_engine_end(engine, NULL);
}

void moert_engine_warm(struct moert_engine *engine)
{
    if (engine->experts.cache != NULL)
        moec_expert_cache_wait_warm(engine->experts.cache);
}

/* A bundle that moec fit made for more memory than this is slower; a sixteenth less is no matter. */
static bool warn_of_fit(const struct moert_engine *engine, char *text, size_t capacity)
{
    const struct moec_bundle *bundle = engine->bundle;
    const struct moec_memory_plan *plan = &engine->plan;
    if (engine->experts.gpu != NULL || plan->experts.all_stay ||
        plan->expert_buffer_bytes >= bundle->fitted_buffer_bytes - bundle->fitted_buffer_bytes / 16)
        return false;
    (void)snprintf(
        text, capacity,
        "the bundle '%.200s' was fitted for moec-run with a memory budget of %.2f MiB, of which %.2f MiB "
        "hold experts; this run has only %.2f MiB for experts, so tokens take longer, but the text is the "
        "same",
        bundle->file.path, (double)bundle->fitted_memory_bytes / 1048576,
        (double)bundle->fitted_buffer_bytes / 1048576, (double)plan->expert_buffer_bytes / 1048576);
    return true;
}

bool moert_engine_warning(const struct moert_engine *engine, char *text, size_t capacity)
{
    const struct moec_mode_choice *choice = &engine->choice;
    if (engine->arithmetic.falls_back) {
        (void)snprintf(
            text, capacity,
            "the loss of the bundle '%.200s' is certified in the arithmetic 'bf16', which needs a GPU of "
            "compute capability 8.0 or more: this run uses 'canonical', so its loss may be slightly "
            "higher or lower",
            engine->bundle->file.path);
        return true;
    }
    if (choice->lacks_paths) {
        (void)snprintf(
            text, capacity,
            "mode '%s' predicts experts from a path table (which experts follow which), but the bundle "
            "'%.200s' was compiled without a profile and has no such table, so nothing is predicted",
            choice->mode->name, engine->bundle->file.path);
        return true;
    }
    if (warn_of_fit(engine, text, capacity))
        return true;
    const bool is_logical_short =
        engine->experts.parts.n_layer == 0 && !moec_memory_plan_holds_logical(&engine->plan);
    return (choice->evict.ops != NULL || is_logical_short) &&
           moec_memory_plan_warning(&engine->plan, text, capacity);
}

static struct moert_stats to_stats(const struct moec_cache_counters *counters, uint64_t compute_ns)
{
    return (struct moert_stats){
        .hits = counters->hits,
        .late = counters->late,
        .misses = counters->misses,
        .useful_preloads = counters->useful_preloads,
        .wasted_preloads = counters->wasted_preloads,
        .evictions = counters->evictions,
        .read_bytes = counters->read_bytes,
        .preload_bytes = counters->preload_bytes,
        .read_ns = counters->read_ns,
        .busy_ns = counters->busy_ns,
        .stall_ns = counters->stall_ns,
        .compute_ns = compute_ns,
        .n_reads = counters->n_reads,
        .pair_bytes = counters->unit_bytes,
    };
}

static struct moec_cache_counters layer_counters(const struct moert_engine *engine, uint32_t ordinal)
{
    return engine->experts.stream != NULL ? moec_expert_stream_layer_counters(engine->experts.stream, ordinal)
                                          : moec_expert_cache_layer_counters(engine->experts.cache, ordinal);
}

static uint64_t layer_compute_ns(const struct moert_engine *engine, uint32_t ordinal)
{
    return atomic_load_explicit(&engine->trace.compute_ns[ordinal], memory_order_relaxed);
}

struct moert_stats moert_engine_layer_stats(const struct moert_engine *engine, uint32_t ordinal)
{
    const struct moec_cache_counters counters = layer_counters(engine, ordinal);
    return to_stats(&counters, layer_compute_ns(engine, ordinal));
}

struct moert_pool_stats moert_engine_pool_stats(const struct moert_engine *engine)
{
    if (engine->experts.gpu == NULL)
        return (struct moert_pool_stats){0};
    const struct moec_gpu_experts_counters counters = moec_engine_gpu_counters(engine->experts.gpu);
    struct moert_pool_stats stats = {.hits = counters.hits,
                                     .late = counters.late,
                                     .misses = counters.misses,
                                     .computed_by_cpu = counters.computed_here,
                                     .evictions = counters.evictions,
                                     .copied_bytes = counters.copied_bytes,
                                     .guessed_bytes = counters.guessed_bytes,
                                     .useful_guesses = counters.useful_guesses,
                                     .wasted_guesses = counters.wasted_guesses};
    if (engine->experts.gpu->neurons == NULL)
        return stats;
    const struct moec_gpu_gather_speed speed = moec_gpu_neurons_speed(engine->experts.gpu->neurons);
    stats.record_bytes = counters.record_bytes;
    stats.chunk_bytes = speed.chunk_bytes;
    if (speed.gathered_byte_ns > 0)
        stats.gathered_bytes_per_second = 1e9 / speed.gathered_byte_ns;
    return stats;
}

struct moert_neurons moert_engine_neurons(const struct moert_engine *engine)
{
    if (engine->decisions.sparsity == NULL)
        return (struct moert_neurons){0};
    const struct moec_sparsity_counts counts = moec_sparsity_counts(engine->decisions.sparsity);
    return (struct moert_neurons){.n_neuron = counts.n_neuron,
                                  .n_active = counts.n_active,
                                  .dense_bytes = counts.dense_bytes,
                                  .active_bytes = counts.active_bytes,
                                  .is_planned = engine->decisions.is_planned};
}

struct moert_stats moert_engine_stats(const struct moert_engine *engine)
{
    const uint32_t n_moe_layer = moec_config_moe_count(&engine->bundle->config);
    struct moec_cache_counters sum = {0};
    uint64_t compute_ns = 0;
    for (uint32_t ordinal = 0; ordinal < n_moe_layer; ordinal++) {
        const struct moec_cache_counters one = layer_counters(engine, ordinal);
        moec_cache_counters_add(&sum, &one);
        compute_ns += layer_compute_ns(engine, ordinal);
    }
    return to_stats(&sum, compute_ns);
}

uint32_t moert_engine_moe_layer(const struct moert_engine *engine, uint32_t ordinal)
{
    return moec_config_moe_layer(&engine->bundle->config, ordinal);
}

const struct moec_engine_chat *moert_engine_chat(const struct moert_engine *engine)
{
    return engine->chat;
}

const struct moec_tokenizer *moert_engine_tokenizer(const struct moert_engine *engine)
{
    return engine->tokenizer;
}

const char *moert_engine_path(const struct moert_engine *engine)
{
    return engine->bundle->file.path;
}

/* ---- text ---- */

bool moert_token_is_end(const struct moert_engine *engine, uint32_t token)
{
    const struct moec_config *config = &engine->bundle->config;
    for (uint32_t i = 0; i < config->ids.n_eos; i++)
        if (config->ids.eos[i] == token)
            return true;
    return false;
}

enum moert_status moert_tokenize(const struct moert_engine *engine, const char *text, size_t n_bytes,
                                 bool add_special, uint32_t **tokens, size_t *n_tokens,
                                 struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_status status = need_tokenizer(engine, &ours);
    if (status == MOEC_OK)
        status = moec_tokenizer_encode(engine->tokenizer, (struct moec_text){text, n_bytes}, add_special,
                                       tokens, n_tokens, &ours);
    return moert_to_public(status, &ours, err);
}

enum moert_status moert_tokenize_typed(const struct moert_engine *engine, const char *text, size_t n_bytes,
                                       bool add_special, uint32_t **tokens, size_t *n_tokens,
                                       struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_status status = need_tokenizer(engine, &ours);
    if (status == MOEC_OK)
        status = moec_tokenizer_encode_typed(engine->tokenizer, (struct moec_text){text, n_bytes},
                                             add_special, tokens, n_tokens, &ours);
    return moert_to_public(status, &ours, err);
}

enum moert_status moert_detokenize(const struct moert_engine *engine, const uint32_t *tokens, size_t n_tokens,
                                   bool skip_special, char **text, size_t *n_bytes, struct moert_error *err)
{
    struct moec_error ours = {0};
    enum moec_status status = need_tokenizer(engine, &ours);
    if (status == MOEC_OK)
        status = moec_tokenizer_decode(engine->tokenizer, (struct moec_token_ids){tokens, n_tokens},
                                       skip_special, text, n_bytes, &ours);
    return moert_to_public(status, &ours, err);
}

void moert_free(void *memory)
{
    free(memory);
}

enum moert_status moert_text_create(const struct moert_engine *engine, struct moert_text **out,
                                    struct moert_error *err)
{
    struct moec_error ours = {0};
    void *memory = NULL;
    enum moec_status status = need_tokenizer(engine, &ours);
    if (status == MOEC_OK)
        status = moec_alloc(&memory, 1, sizeof(struct moert_text), "a text stream", &ours);
    if (status != MOEC_OK)
        return moert_to_public(status, &ours, err);
    *out = memory;
    moec_detokenizer_init(&(*out)->detokenizer, engine->tokenizer, true);
    return MOERT_OK;
}

enum moert_status moert_text_push(struct moert_text *text, uint32_t token, const char **piece,
                                  size_t *n_bytes, struct moert_error *err)
{
    struct moec_error ours = {0};
    return moert_to_public(moec_detokenizer_push(&text->detokenizer, token, piece, n_bytes, &ours), &ours,
                           err);
}

enum moert_status moert_text_flush(struct moert_text *text, const char **piece, size_t *n_bytes,
                                   struct moert_error *err)
{
    struct moec_error ours = {0};
    return moert_to_public(moec_detokenizer_finish(&text->detokenizer, piece, n_bytes, &ours), &ours, err);
}

void moert_text_free(struct moert_text *text)
{
    if (text == NULL)
        return;
    moec_detokenizer_release(&text->detokenizer);
    free(text);
}
