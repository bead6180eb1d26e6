/* One recording is replayed for every way: eviction, predictor and device change when experts come, never
 * which. Decisions are made again from recorded scores, which gives the logical cache's contents as well. The
 * first window or sample only warms the buffer. The best of many must beat the first few by more than luck (WORTH). */
#include "compiler/tune/foretell.h"

#include "formats/base/memory.h"
#include "formats/bundle/dense_loading.h"
#include "formats/trace/trace_json.h"
#include "profiler/bench/bench_worker.h"
#include "profiler/simulate/simulated_decisions.h"
#include "profiler/simulate/simulated_run.h"
#include "runtime/experts/low_copy.h"
#include "runtime/moert.h"
#include "runtime/policy/decide/logical_cache.h"
#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What every bundle has or can be given; the first of equals is taken. The first few serve to compare bundles. */
static const struct moec_evict_ops *const policies[] = {&moec_evict_hobbit, &moec_evict_lru,  &moec_evict_lfu,
                                                        &moec_evict_lhu,    &moec_evict_fate, &moec_evict_arc,
                                                        &moec_evict_edgemoe};
static const struct moec_predict_ops *const predictors[] = {&moec_predict_none, &moec_predict_gate,
                                                            &moec_predict_path_gate};
#define N_POLICY        (sizeof policies / sizeof *policies)
#define N_PREDICTOR     (sizeof predictors / sizeof *predictors)
#define N_FEW_POLICY    3u
#define N_FEW_PREDICTOR 2u
/* Of what the first few take: the best of many must take less than this to be more than luck. */
#define WORTH 0.98

struct moec_foretell {
    struct moec_bundle *bundle;
    struct moec_replay replay;
    struct moec_recording plain, recording; /* as it was recorded, and with what logical caches hold */
    struct moec_route route;
    struct moec_simulated_decisions decided;
    struct moec_simulated_model model;
    struct moec_simulated_device clock;
    uint32_t low;
    bool has_times;
};

static enum moec_status from_runtime(enum moert_status status, const struct moert_error *theirs,
                                     struct moec_error *err)
{
    return status == MOERT_OK ? MOEC_OK : moec_fail(err, (enum moec_status)status, "%s", theirs->message);
}

/* ---- the run ---- */

static void set_decisions(const struct moec_decision_settings *settings, char slots[static 24],
                          char low_slots[static 24], struct moert_decisions *out)
{
    *out = (struct moert_decisions){.none = true};
    if (settings == NULL || !moec_decision_settings_are_on(settings))
        return;
    (void)snprintf(slots, 24, "%" PRIu32, settings->n_slots);
    (void)snprintf(low_slots, 24, "%" PRIu32, settings->n_low_slots);
    *out = (struct moert_decisions){.route = settings->route[0] != '\0' ? settings->route : NULL,
                                    .precision = settings->precision[0] != '\0' ? settings->precision : NULL,
                                    .slots = slots,
                                    .keep_top = settings->keep_top,
                                    .starts_frequent = settings->starts_frequent,
                                    .decode_only = settings->decode_only};
    if (!moec_decision_settings_take_low(settings))
        return;
    out->low_slots = low_slots;
    out->low_bits = settings->low_bits;
}

/* A prompt, then one token after the other. */
static enum moec_status run_sample(const struct moec_bench_tokens *tokens, uint32_t sample,
                                   struct moert_session *session, float *logits, struct moec_error *err)
{
    const uint32_t n_prompt = tokens->prompt_tokens, n = n_prompt + tokens->n_tokens;
    const uint32_t *ids = tokens->tokens + (size_t)sample * n;
    struct moert_error theirs = {0};
    moert_session_truncate(session, 0);
    moert_session_set_prompt(session, n_prompt);
    MOEC_TRY(from_runtime(moert_session_step(session, ids, n_prompt, logits, &theirs), &theirs, err));
    for (uint32_t i = n_prompt; i < n; i++)
        MOEC_TRY(from_runtime(moert_session_step(session, &ids[i], 1, logits, &theirs), &theirs, err));
    return MOEC_OK;
}

/* The sample that a bench does not count comes first here, too. */
static enum moec_status run_samples(const struct moec_bench_tokens *tokens, struct moert_engine *engine,
                                    bool (*is_cancelled)(void), struct moec_error *err)
{
    const uint32_t n = tokens->n_sample + 1;
    struct moert_session *session = NULL;
    struct moert_error theirs = {0};
    enum moec_status status = MOEC_OK;
    void *logits = NULL;
    MOEC_TRY(from_runtime(moert_session_create(engine, &session, &theirs), &theirs, err));
    MOEC_TRY_OUT(moec_alloc(&logits, moert_engine_info(engine).model.n_vocab, sizeof(float), "logits", err));
    for (uint32_t i = 0; i < n; i++) {
        if (is_cancelled != NULL && is_cancelled()) {
            status = moec_fail(err, MOEC_ERR_CANCELLED, "search: stopped; nothing was written");
            goto out;
        }
        MOEC_TRY_OUT(run_sample(tokens, (i + n - 1) % n, session, logits, err));
    }
out:
    free(logits);
    moert_session_free(session);
    return status;
}

static enum moec_status run(const struct moec_foretell_setup *setup, const char *path,
                            const struct moec_decision_settings *settings, bool (*is_cancelled)(void),
                            struct moec_error *err)
{
    char slots[24], low_slots[24];
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_error theirs = {0}, last = {0};
    set_decisions(settings, slots, low_slots, &options.decisions);
    options.n_threads = setup->n_threads;
    options.sessions.n_context = setup->tokens->prompt_tokens + setup->tokens->n_tokens;
    options.buffer.evict = moec_evict_lru.name;
    options.buffer.predict = moec_predict_gate.name; /* whose answers are recorded */
    options.trace.path = setup->trace;
    options.trace.scores = true;
    MOEC_TRY(from_runtime(moert_engine_open(path, &options, &engine, &theirs), &theirs, err));
    const enum moec_status status = run_samples(setup->tokens, engine, is_cancelled, err);
    const enum moert_status ended = moert_engine_end(engine, &last);
    return status != MOEC_OK ? status : from_runtime(ended, &last, err);
}

/* ---- what was chosen ---- */

/* The decisions again, of the recorded scores: they come out the same, and so what logical caches hold does.
 */
static enum moec_status decide(struct moec_foretell *foretell, const struct moec_model *given,
                               const struct moec_decision_settings *settings, const char *path,
                               struct moec_error *err)
{
    const struct moec_bundle *bundle = foretell->bundle;
    enum moec_status status = MOEC_OK;
    struct moec_dense dense = {0};
    struct moec_model *model = NULL;
    MOEC_TRY(moec_simulated_decisions_check(&foretell->replay, &bundle->config, path, err));
    MOEC_TRY(
        moec_route_from_settings(settings, &bundle->config, &bundle->paths, path, &foretell->route, err));
    if (given == NULL) {
        MOEC_TRY(moec_bundle_load_dense(bundle, &dense, err));
        MOEC_TRY(moec_model_create(&bundle->config, &dense, &model, err));
    }
    const struct moec_simulated_decisions_setup setup = {.replay = &foretell->replay,
                                                         .recording = &foretell->plain,
                                                         .model = given != NULL ? given : model,
                                                         .route = &foretell->route};
    MOEC_TRY_OUT(moec_simulated_decisions_make(&setup, &foretell->decided, err));
    MOEC_TRY_OUT(moec_recording_make(&foretell->decided.replay, NULL, 0, &foretell->recording, err));
    foretell->recording.known.logical = &foretell->decided.logical;
out:
    moec_model_free(model);
    return status;
}

/* The step with which the second sequence begins: the first one warms up. */
static uint64_t second_sequence(const struct moec_recording *recording)
{
    uint64_t step = 1;
    while (step < recording->n_step && !recording->steps[step].begins)
        step++;
    return step < recording->n_step ? step : 0;
}

static enum moec_status read_recording(const struct moec_device *device, const struct moec_model *model,
                                       const char *path, const struct moec_decision_settings *settings,
                                       struct moec_foretell *foretell, struct moec_error *err)
{
    MOEC_TRY(moec_bundle_open(path, &foretell->bundle, err));
    if (foretell->replay.paths == NULL)
        foretell->replay.paths = &foretell->bundle->paths;
    foretell->low = foretell->replay.low_copy;
    if (settings != NULL && moec_decision_settings_are_on(settings)) {
        MOEC_TRY(moec_recording_make(&foretell->replay, NULL, 0, &foretell->plain, err));
        MOEC_TRY(decide(foretell, model, settings, path, err));
    } else {
        MOEC_TRY(moec_recording_make(&foretell->replay, NULL, 0, &foretell->recording, err));
    }
    moec_recording_count_from(&foretell->recording, second_sequence(&foretell->recording));
    MOEC_TRY(moec_simulated_model_of_bundle(foretell->bundle, 0, foretell->low, &foretell->recording,
                                            &foretell->model, err));
    return moec_foretell_move(foretell, device, err);
}

enum moec_status moec_foretell_move(struct moec_foretell *foretell, const struct moec_device *device,
                                    struct moec_error *err)
{
    struct moec_simulated_model described = {0};
    MOEC_TRY(moec_simulated_model_of_bundle(foretell->bundle, 0, 0, &foretell->recording, &described, err));
    moec_simulated_device_release(&foretell->clock);
    foretell->has_times = device != NULL;
    const enum moec_status status = moec_simulated_device_make(
        &(struct moec_simulated_hardware){.device = device, .described = &described}, &foretell->recording,
        &foretell->model, &foretell->clock, err);
    moec_simulated_model_release(&described);
    return status;
}

enum moec_status moec_foretell_record(const struct moec_foretell_setup *setup, const char *path,
                                      const struct moec_decision_settings *settings,
                                      bool (*is_cancelled)(void), struct moec_foretell **out,
                                      struct moec_error *err)
{
    struct moec_foretell *foretell = NULL;
    MOEC_TRY(moec_alloc((void **)&foretell, 1, sizeof *foretell, "a recording", err));
    enum moec_status status = run(setup, path, settings, is_cancelled, err);
    if (status == MOEC_OK)
        status = moec_replay_load(setup->trace, &foretell->replay, err);
    (void)unlink(setup->trace);
    if (status == MOEC_OK)
        status = read_recording(setup->device, NULL, path, settings, foretell, err);
    if (status != MOEC_OK) {
        moec_foretell_free(foretell);
        return status;
    }
    *out = foretell;
    return MOEC_OK;
}

enum moec_status moec_foretell_recorded(const struct moec_device *device, const char *path,
                                        const struct moec_foretell_run *ran, struct moec_foretell **out,
                                        struct moec_error *err)
{
    struct moec_foretell *foretell = NULL;
    enum moec_status status = moec_alloc((void **)&foretell, 1, sizeof *foretell, "a recording", err);
    if (status != MOEC_OK) {
        moec_replay_release(ran->replay);
        return status;
    }
    foretell->replay = *ran->replay;
    *ran->replay = (struct moec_replay){0};
    status = read_recording(device, ran->model, path, ran->settings, foretell, err);
    if (status != MOEC_OK) {
        moec_foretell_free(foretell);
        return status;
    }
    *out = foretell;
    return MOEC_OK;
}

void moec_foretell_free(struct moec_foretell *foretell)
{
    if (foretell == NULL)
        return;
    moec_simulated_device_release(&foretell->clock);
    moec_simulated_model_release(&foretell->model);
    moec_recording_release(&foretell->recording);
    moec_recording_release(&foretell->plain);
    moec_simulated_decisions_release(&foretell->decided);
    moec_replay_release(&foretell->replay);
    moec_bundle_close(foretell->bundle);
    free(foretell);
}

enum moec_status moec_foretell_slots_bytes(const struct moec_foretell *foretell,
                                           const struct moec_decision_settings *settings, uint64_t *out,
                                           struct moec_error *err)
{
    const struct moec_simulated_model *model = &foretell->model;
    const uint32_t n_slots[2] = {settings->n_slots, settings->n_low_slots};
    struct moec_logical_cache *logical = NULL;
    MOEC_TRY(moec_logical_cache_create(
        &(struct moec_logical_shape){
            model->shape.n_layer, model->shape.n_form, model->shape.n_expert, {n_slots[0], n_slots[1]}},
        1, &logical, err));
    *out = moec_logical_cache_room(logical, model->records.slot_bytes).held_bytes;
    moec_logical_cache_free(logical);
    return MOEC_OK;
}

uint64_t moec_foretell_all_bytes(const struct moec_foretell *foretell)
{
    return foretell->model.slots.all_bytes;
}

/* What one way takes, if it is less than what `out` has. */
static enum moec_status try_way(const struct moec_foretell *foretell, uint64_t buffer_bytes,
                                const struct moec_evict_ops *policy, const struct moec_predict_ops *predictor,
                                struct moec_foretold *out, struct moec_error *err)
{
    const struct moec_recording *recording = &foretell->recording;
    const uint64_t most_bytes = foretell->model.slots.every_bytes;
    const struct moec_simulated_setup setup = {
        .recording = recording,
        .model = &foretell->model,
        .device = &foretell->clock,
        .buffer.capacity_bytes = buffer_bytes < most_bytes ? buffer_bytes : most_bytes,
        .evict.policy = policy,
        .preload = {.predictor = predictor, .precision = foretell->route.precision, .reads_on = true}};
    const double n_token = (double)recording->counted.n_decoded;
    struct moec_simulated_result result;
    if (!moec_simulated_can_predict(recording, &foretell->model, predictor))
        return MOEC_OK;
    MOEC_TRY(moec_simulated_run(&setup, &result, NULL, err));
    if (!(result.tpot_ns_mean < out->token_ns))
        return MOEC_OK;
    *out = (struct moec_foretold){.token_ns = result.tpot_ns_mean,
                                  .read_bytes = (double)result.decode.read_bytes / n_token,
                                  .stall_ns = result.decode.stall_ns / n_token,
                                  .reads = (double)result.decode.misses / n_token};
    (void)snprintf(out->evict, sizeof out->evict, "%s", policy->name);
    (void)snprintf(out->predict, sizeof out->predict, "%s", predictor->name);
    return MOEC_OK;
}

static enum moec_status try_ways(const struct moec_foretell *foretell, uint64_t buffer_bytes, size_t n_policy,
                                 size_t n_predictor, struct moec_foretold *out, struct moec_error *err)
{
    *out = (struct moec_foretold){.token_ns = INFINITY};
    for (size_t i = 0; i < n_policy * n_predictor; i++)
        MOEC_TRY(try_way(foretell, buffer_bytes, policies[i % n_policy], predictors[i / n_policy], out, err));
    return MOEC_OK;
}

enum moec_status moec_foretell_time(const struct moec_foretell *foretell, uint64_t buffer_bytes,
                                    struct moec_foretold *out, struct moec_error *err)
{
    if (!foretell->has_times)
        return try_ways(foretell, buffer_bytes, 1, 1, out, err);
    return try_ways(foretell, buffer_bytes, N_FEW_POLICY, N_FEW_PREDICTOR, out, err);
}

enum moec_status moec_foretell_best(const struct moec_foretell *foretell, uint64_t buffer_bytes,
                                    struct moec_foretold *out, struct moec_error *err)
{
    struct moec_foretold best;
    MOEC_TRY(moec_foretell_time(foretell, buffer_bytes, out, err));
    MOEC_TRY(try_ways(foretell, buffer_bytes, N_POLICY, N_PREDICTOR, &best, err));
    if (best.token_ns < WORTH * out->token_ns)
        *out = best;
    return MOEC_OK;
}

enum moec_status moec_foretell_with(const struct moec_foretell *foretell, uint64_t buffer_bytes,
                                    const char *evict, const char *predict, struct moec_foretold *out,
                                    struct moec_error *err)
{
    const struct moec_evict_ops *policy = NULL;
    const struct moec_predict_ops *predictor = NULL;
    MOEC_TRY(moec_evict_find(evict, &policy, err));
    MOEC_TRY(moec_predict_find(predict, &predictor, err));
    *out = (struct moec_foretold){.token_ns = INFINITY};
    return try_way(foretell, buffer_bytes, policy, predictor, out, err);
}
