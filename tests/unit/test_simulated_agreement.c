/* What a simulated run counts is what the expert cache counts on the same routing: exactly without
 * predictions, hits and late ones together with a preload count, whatever the machine's timing. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"

#include "profiler/simulate/simulated_run.h"
#include "runtime/experts/expert_cache.h"
#include "tests/unit/synthetic_recording.h"

#define N_EXPERT 16
#define TOP_K    3
#define N_TOKEN  60
#define PROMPT   7

struct fixture {
    struct sample_fixture of;
    struct moec_replay replay;
    struct moec_recording recording;
    struct moec_simulated_model model;
    struct moec_simulated_device device;
};

static int set_up_prompt(void **state, uint32_t prompt, bool takes_all)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct moec_error err = {0};
    sample_make(&f->of.sample, N_EXPERT, 40, 24, 5);
    if (takes_all) {
        memset(f->of.sample.assignment, 4, SAMPLE_MOE * N_EXPERT);
        f->of.sample.parts.alignment = MOEC_BUNDLE_ALIGNMENT;
    }
    sample_open(&f->of);
    synthetic_steps(SAMPLE_MOE, N_EXPERT, f->of.sample.config.top_k, prompt, N_TOKEN, &f->replay);
    f->replay.moe_layers[1] = 2;
    synthetic_choices(11, &f->replay);
    for (uint32_t i = 0; takes_all && i < SAMPLE_MOE * prompt * TOP_K; i++)
        f->replay.experts[i] = i % N_EXPERT;
    synthetic_recording(&f->replay, &f->recording);
    assert_status(moec_simulated_model_of_bundle(f->of.bundle, 0, 0, &f->recording, &f->model, &err), MOEC_OK,
                  err);
    assert_status(moec_simulated_device_make(&(struct moec_simulated_hardware){0}, &f->recording, &f->model,
                                             &f->device, &err),
                  MOEC_OK, err);
    *state = f;
    return 0;
}

static int set_up(void **state)
{
    return set_up_prompt(state, PROMPT, false);
}

/* Its tokens take every expert of every layer. Of equal sizes: where a guess makes itself a hole, that
 * depends on the slots in use otherwise, which the simulator does not know. */
static int set_up_long(void **state)
{
    return set_up_prompt(state, N_EXPERT, true);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    moec_simulated_device_release(&f->device);
    moec_simulated_model_release(&f->model);
    moec_recording_release(&f->recording);
    moec_replay_release(&f->replay);
    sample_close(&f->of);
    free(f);
    return 0;
}

/* Takes one answer's experts from the source, as the forward pass does: those that are ready together. */
static void take(struct moec_experts *source, struct moec_router_answer *answer)
{
    uint32_t order[N_EXPERT];
    struct moec_error err = {0};
    struct moec_mlp mlp;
    memcpy(order, answer->active.list, answer->active.n * sizeof *order);
    answer->active.order = order;
    source->ops->expect(source, answer);
    for (uint32_t ahead = 1; source->ops->wants_prefetch(source, ahead); ahead++)
        source->ops->prefetch(source, answer, ahead);
    for (uint32_t next = 0; next < answer->active.n;) {
        uint32_t end = next;
        do {
            assert_status(
                source->ops->acquire(source, moec_expert_request_of(answer->layer, order[end++]), &mlp, &err),
                MOEC_OK, err);
        } while (end < answer->active.n && end - next < source->max_held &&
                 source->ops->ready(source, moec_expert_request_of(answer->layer, order[end])));
        for (; next < end; next++)
            source->ops->release(source, moec_expert_request_of(answer->layer, order[next]));
    }
}

static void compare(const struct fixture *f, const struct moec_simulated_setup *setup)
{
    struct moec_error err = {0};
    struct moec_expert_cache *cache = NULL;
    struct moec_simulated_result result;
    struct moec_simulated_counts layers[SAMPLE_MOE];
    const struct moec_expert_cache_options options = {.buffer.n_bytes = setup->buffer.capacity_bytes,
                                                      .keeps = {.policy = setup->evict.policy,
                                                                .is_warm = !setup->buffer.is_cold,
                                                                .nothing = setup->buffer.keeps_nothing},
                                                      .preload = {.predictor = setup->preload.predictor,
                                                                  .count = setup->preload.count,
                                                                  .ahead = setup->preload.ahead,
                                                                  .reads_on = setup->preload.reads_on}};
    assert_status(moec_simulated_run(setup, &result, layers, &err), MOEC_OK, err);
    assert_status(moec_expert_cache_create(f->of.bundle, &options, &cache, &err), MOEC_OK, err);
    moec_expert_cache_wait_warm(cache);
    struct moec_experts *source = moec_expert_cache_experts(cache);
    for (uint64_t step = 0; step < f->recording.n_step; step++) {
        if (f->recording.steps[step].begins)
            source->ops->begin(source);
        if (f->recording.steps[step].n_tok > 1)
            source->ops->begin_prompt(source, 0, f->recording.steps[step].n_tok, NULL);
        for (uint32_t s = 0; s < SAMPLE_MOE; s++) {
            struct moec_router_answer answer = moec_recording_answer(&f->recording, step, s);
            take(source, &answer);
        }
    }
    for (uint32_t s = 0; s < SAMPLE_MOE; s++) {
        const struct moec_cache_counters counters = moec_expert_cache_layer_counters(cache, s);
        assert_int_equal(counters.hits + counters.late, layers[s].hits + layers[s].late);
        assert_int_equal(counters.misses, layers[s].misses);
        assert_int_equal(counters.evictions, layers[s].evictions);
        assert_int_equal(counters.useful_preloads, layers[s].useful);
        if (setup->preload.predictor == &moec_predict_none && !setup->preload.reads_on)
            assert_int_equal(counters.hits, layers[s].hits);
    }
    moec_expert_cache_free(cache);
}

/* The sample's records are of all sizes from 2 to 16 bits, but for long prompts. */
static struct moec_simulated_setup setup_of(const struct fixture *f, double share)
{
    const uint64_t bytes = (uint64_t)(share * (double)f->model.slots.all_bytes);
    return (struct moec_simulated_setup){
        .recording = &f->recording,
        .model = &f->model,
        .device = &f->device,
        .buffer.capacity_bytes = bytes < f->model.slots.largest_bytes ? f->model.slots.largest_bytes : bytes,
        .evict.policy = &moec_evict_lru,
        .preload.predictor = &moec_predict_none};
}

static const double shares[] = {0, 0.15, 0.3, 0.5, 0.8, 1};
#define N_SHARE (sizeof shares / sizeof *shares)

static void test_simulated_agreement__every_policy(void **state)
{
    const struct fixture *f = *state;
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++)
        for (size_t i = 0; i < N_SHARE; i++)
            for (int is_cold = 0; is_cold < 2; is_cold++) {
                struct moec_simulated_setup setup = setup_of(f, shares[i]);
                setup.evict.policy = moec_evict_policies[p];
                setup.buffer.is_cold = is_cold != 0;
                compare(f, &setup);
            }
}

static void test_simulated_agreement__preload_count(void **state)
{
    const struct fixture *f = *state;
    static const struct moec_predict_ops *const predictors[] = {&moec_predict_frequency, &moec_predict_path};
    for (size_t p = 0; p < 2; p++)
        for (size_t i = 0; i < N_SHARE; i++)
            for (uint32_t count = 1; count <= 4; count++) {
                struct moec_simulated_setup setup = setup_of(f, shares[i]);
                setup.evict.policy = count % 2 ? &moec_evict_edgemoe : &moec_evict_lru;
                setup.preload.predictor = predictors[p];
                setup.preload.count = count;
                compare(f, &setup);
            }
}

/* As nothing is read that no token takes, nothing depends on when it is taken back. */
static void test_simulated_agreement__prompts_are_read_on(void **state)
{
    const struct fixture *f = *state;
    uint64_t n_useful = 0;
    for (size_t p = 0; moec_evict_policies[p] != NULL; p++)
        for (size_t i = 0; i < N_SHARE; i++) {
            struct moec_simulated_setup setup = setup_of(f, shares[i]);
            struct moec_simulated_result result;
            setup.evict.policy = moec_evict_policies[p];
            setup.preload.reads_on = true;
            compare(f, &setup);
            assert_int_equal(moec_simulated_run(&setup, &result, NULL, NULL), MOEC_OK);
            n_useful += result.prefill.useful;
        }
    assert_true(n_useful > 0);
}

static void test_simulated_agreement__nothing_kept(void **state)
{
    const struct fixture *f = *state;
    for (size_t i = 0; i < N_SHARE; i++) {
        struct moec_simulated_setup setup = setup_of(f, shares[i]);
        setup.buffer.keeps_nothing = setup.buffer.is_cold = true;
        compare(f, &setup);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_simulated_agreement__every_policy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_agreement__preload_count, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_agreement__prompts_are_read_on, set_up_long,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_agreement__nothing_kept, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
