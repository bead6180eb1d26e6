/* Decisions of recorded tokens: those of a run with the same settings, bit for bit, and of another run those
 * of its first MoE layer. */
#include "tests/unit/family_store.h"

#include "formats/trace/trace_json.h"
#include "profiler/simulate/simulated_decisions.h"
#include "profiler/simulate/simulated_run.h"
#include "runtime/experts/low_copy.h"
#include "runtime/moert.h"

#include <stdio.h>

#define N_PROMPT 9u
#define N_DECODE 14u
#define N_TEXT   2u

/* Settings as a user gives them. */
struct words {
    const char *route, *precision, *prefill, *slots, *low_slots;
    uint32_t keep_top;
    bool decode_only;
};

/* Texts of which each is a prompt and then token by token; the trace appears. */
static struct moert_decided run(const struct store *s, const struct words *words, bool with_scores)
{
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_error err = {0};
    uint32_t tokens[N_PROMPT + N_DECODE];
    uint64_t seed = 7;
    options.sessions.n_context = N_PROMPT + N_DECODE;
    options.n_threads = 2;
    options.trace.path = s->file;
    options.trace.scores = with_scores;
    options.decisions = (struct moert_decisions){.route = words->route,
                                                 .precision = words->precision,
                                                 .prefill = words->prefill,
                                                 .slots = words->slots,
                                                 .low_slots = words->low_slots,
                                                 .keep_top = words->keep_top,
                                                 .decode_only = words->decode_only};
    if (moert_engine_open(s->bundle, &options, &engine, &err) != MOERT_OK ||
        moert_session_create(engine, &session, &err) != MOERT_OK)
        fail_msg("%s", err.message);
    const uint32_t n_vocab = moert_engine_info(engine).model.n_vocab;
    float *logits = malloc(n_vocab * sizeof *logits);
    for (uint32_t text = 0; text < N_TEXT; text++) {
        for (uint32_t i = 0; i < N_PROMPT + N_DECODE; i++)
            tokens[i] = random_u32(&seed) % n_vocab;
        moert_session_truncate(session, 0);
        moert_session_set_prompt(session, N_PROMPT);
        assert_int_equal(moert_session_step(session, tokens, N_PROMPT, logits, &err), MOERT_OK);
        for (uint32_t i = 0; i < N_DECODE; i++)
            assert_int_equal(moert_session_step(session, &tokens[N_PROMPT + i], 1, logits, &err), MOERT_OK);
    }
    const struct moert_decided decided = moert_session_decided(session);
    moert_session_free(session);
    assert_int_equal(moert_engine_end(engine, &err), MOERT_OK);
    free(logits);
    return decided;
}

/* A trace, and what its tokens decide. */
struct decided {
    struct moec_bundle *bundle;
    struct moec_model *model;
    struct moec_route route;
    uint32_t low;
    uint64_t *bytes[2];
    struct moec_replay replay;
    struct moec_recording recording;
    struct moec_simulated_decisions decisions;
};

static struct moec_route route_of(const struct words *words, const struct moec_config *config)
{
    struct moec_route route = {.keep_top = words->keep_top, .decode_only = words->decode_only};
    struct moec_error err = {0};
    if (words->route != NULL)
        assert_status(moec_route_read(words->route, &route, &err), MOEC_OK, err);
    if (words->precision != NULL)
        assert_status(moec_precision_read(words->precision, &route.precision, &err), MOEC_OK, err);
    if (words->prefill != NULL)
        assert_status(moec_prefill_read(words->prefill, &route.prefill, &err), MOEC_OK, err);
    assert_status(moec_route_read_slots(words->slots, config, &route.n_slots, &err), MOEC_OK, err);
    if (words->low_slots != NULL)
        assert_status(moec_route_read_slots(words->low_slots, config, &route.n_low_slots, &err), MOEC_OK,
                      err);
    assert_status(moec_route_check(&route, config, &err), MOEC_OK, err);
    return route;
}

static void open_trace(const struct store *s, struct decided *d)
{
    struct moec_error err = {0};
    struct moec_dense dense = {0};
    *d = (struct decided){0};
    assert_status(moec_bundle_open(s->bundle, &d->bundle, &err), MOEC_OK, err);
    assert_status(moec_low_copy_find(d->bundle, 0, 0, &d->low, &err), MOEC_OK, err);
    assert_status(moec_copy_record_bytes(d->bundle, 0, &d->bytes[0], &err), MOEC_OK, err);
    assert_status(moec_copy_record_bytes(d->bundle, d->low, &d->bytes[1], &err), MOEC_OK, err);
    assert_status(moec_bundle_load_dense(d->bundle, &dense, &err), MOEC_OK, err);
    assert_status(moec_model_create(&d->bundle->config, &dense, &d->model, &err), MOEC_OK, err);
    assert_status(moec_replay_load(s->file, &d->replay, &err), MOEC_OK, err);
    assert_status(moec_recording_make(&d->replay, NULL, 0, &d->recording, &err), MOEC_OK, err);
}

static enum moec_status decide(struct decided *d, const struct words *words, struct moec_error *err)
{
    d->route = route_of(words, &d->bundle->config);
    moec_route_know_calibration(&d->route, &d->bundle->config, &d->bundle->paths);
    const struct moec_simulated_decisions_setup setup = {.replay = &d->replay,
                                                         .recording = &d->recording,
                                                         .model = d->model,
                                                         .route = &d->route,
                                                         .record_bytes = {d->bytes[0], d->bytes[1]}};
    return moec_simulated_decisions_make(&setup, &d->decisions, err);
}

static void close_trace(struct decided *d)
{
    moec_simulated_decisions_release(&d->decisions);
    moec_recording_release(&d->recording);
    moec_replay_release(&d->replay);
    moec_model_free(d->model);
    moec_bundle_close(d->bundle);
    free(d->bytes[0]);
    free(d->bytes[1]);
}

/* Choices of a layer: experts and copies, and what they ask for. */
static void assert_same_answer(const struct moec_replay *ours, const struct moec_replay *theirs, uint64_t a,
                               const char *what)
{
    const struct moec_replay_answer *one = &ours->answers[a], *other = &theirs->answers[a];
    const uint64_t n = (uint64_t)ours->n_tok[a / ours->n_layer] * ours->top_k;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t c = one->choices + i, d = other->choices + i;
        if (ours->experts[c] != theirs->experts[d] || ours->weights[c] != theirs->weights[d] ||
            (ours->is_low != NULL && ours->is_low[c]) != (theirs->is_low != NULL && theirs->is_low[d]))
            fail_msg("%s: choice %u of answer %u differs", what, (unsigned)i, (unsigned)a);
    }
    assert_int_equal(one->n_active, other->n_active);
    assert_memory_equal(ours->active + one->active, theirs->active + other->active,
                        one->n_active * sizeof(uint32_t));
}

static const struct words settings[] = {
    {.route = "top-k", .slots = "50%"},
    {.route = "cache-prior:0.4", .slots = "50%"},
    {.route = "cache-prior:0.4:own", .slots = "4", .keep_top = 1, .decode_only = true},
    {.route = "cumsum:0.6", .slots = "4"},
    {.route = "max-rank:5", .slots = "4", .keep_top = 1},
    {.precision = "hobbit:0.3:0.8", .slots = "4", .low_slots = "4"},
    {.precision = "hobbit:0.3:0.8:0", .slots = "4", .low_slots = "4"},
    {.precision = "hobbit:0.3:0.8:3", .slots = "4", .low_slots = "4"},
    {.precision = "always:0.4:0.7", .slots = "5", .low_slots = "4", .decode_only = true},
    {.route = "cache-prior:0.3", .precision = "hobbit:0.4:1", .slots = "4", .low_slots = "4"},
    {.precision = "fate:4", .slots = "4", .low_slots = "4", .decode_only = true},
    {.prefill = "unpopular:0.5:4", .slots = "4", .low_slots = "4"},
    {.prefill = "whole:0.5", .slots = "4", .low_slots = "4"},
    {.route = "cache-prior:0.3",
     .precision = "hobbit:0.4:1",
     .prefill = "unpopular:0.5:4",
     .slots = "4",
     .low_slots = "4"},
};
#define N_SETTING (sizeof settings / sizeof *settings)

static const char *const families[] = {"qwen2_moe", "dots1", "deepseek_v3", "granitemoe", "longcat_flash"};
#define N_FAMILY (sizeof families / sizeof *families)

/* What a run decided is decided again, whatever router scores it and whatever is decided. */
static void test_simulated_decisions__are_those_of_the_run(void **state)
{
    const struct store *s = *state;
    for (size_t f = 0; f < N_FAMILY; f++) {
        write_bundle(s, families[f]);
        for (size_t i = 0; i < N_SETTING; i++) {
            struct moec_error err = {0};
            struct decided d;
            const struct moert_decided theirs = run(s, &settings[i], true);
            open_trace(s, &d);
            assert_status(moec_simulated_decisions_check(&d.replay, &d.bundle->config, s->file, &err),
                          MOEC_OK, err);
            assert_status(decide(&d, &settings[i], &err), MOEC_OK, err);
            struct moec_route_counts ours = d.decisions.decode;
            moec_route_counts_add(&ours, &d.decisions.prompt);
            assert_true(ours.n_taken > 0 && ours.n_missed > 0);
            assert_int_equal(ours.n_taken, theirs.n_taken);
            assert_int_equal(ours.n_missed, theirs.n_missed);
            assert_int_equal(ours.n_low, theirs.n_low);
            assert_int_equal(ours.n_low_missed, theirs.n_low_missed);
            assert_int_equal(ours.n_skipped, theirs.n_skipped);
            assert_true(moec_route_token_bytes(&ours, d.replay.n_layer) == theirs.missed_bytes);
            assert_int_equal(d.decisions.n_changed, 0);
            for (uint64_t a = 0; a < d.replay.n_step * d.replay.n_layer; a++)
                assert_same_answer(&d.decisions.replay, &d.replay, a, families[f]);
            close_trace(&d);
        }
    }
}

/* Each expert takes its part of what its answer's took, and what passes between answers is as recorded. */
static void assert_times_are_moved(const struct moec_replay *decided, const struct moec_replay *recorded)
{
    for (uint64_t a = 1; a < recorded->n_step * recorded->n_layer; a++) {
        const struct moec_replay_answer *ours = &decided->answers[a], *theirs = &recorded->answers[a];
        const int64_t busy_ns = (int64_t)(theirs->done_ns - theirs->answered_ns - theirs->stall_ns);
        assert_true((int64_t)(ours->answered_ns - ours[-1].done_ns) ==
                    (int64_t)(theirs->answered_ns - theirs[-1].done_ns));
        const int64_t own_ns = (int64_t)(ours->done_ns - ours->answered_ns - ours->stall_ns);
        if (busy_ns > 0 && theirs->n_active > 0)
            assert_true(llabs(own_ns - busy_ns * ours->n_active / theirs->n_active) <= 1);
    }
}

/* A run that did not decide has the decided run's logits in its first MoE layer, and not behind it. */
static void test_simulated_decisions__are_a_first_guess_of_another_run(void **state)
{
    const struct store *s = *state;
    struct moec_error err = {0};
    struct decided guess, real;
    uint64_t n_other = 0, n_changed = 0;
    write_bundle(s, "qwen2_moe");
    for (size_t i = 1; i < N_SETTING; i++) {
        (void)run(s, &settings[i], true);
        open_trace(s, &real);
        (void)run(s, &(struct words){0}, true);
        open_trace(s, &guess);
        assert_int_equal(guess.replay.n_form, 1);
        assert_status(decide(&guess, &settings[i], &err), MOEC_OK, err);
        n_changed += guess.decisions.n_changed;
        assert_times_are_moved(&guess.decisions.replay, &guess.replay);
        assert_true(guess.decisions.n_changed < guess.decisions.n_choice);
        for (uint64_t step = 0; step < real.replay.n_step; step++)
            assert_same_answer(&guess.decisions.replay, &real.replay, step * real.replay.n_layer,
                               "the first layer");
        for (uint64_t a = 0; a < real.replay.n_step * real.replay.n_layer; a++)
            n_other += guess.decisions.replay.answers[a].n_active != real.replay.answers[a].n_active;
        close_trace(&guess);
        close_trace(&real);
    }
    assert_true(n_other > 0 && n_changed > 0);
}

/* Which copies prompts take is known before their layers answer, unless the prompt is counted first. */
static void test_simulated_decisions__know_the_copies_of_prompts(void **state)
{
    const struct store *s = *state;
    struct moec_error err = {0};
    struct decided d;
    uint64_t n_low = 0, n_row = 0;
    write_bundle(s, "qwen2_moe");
    const struct words all = {.prefill = "unpopular:1:4", .slots = "4", .low_slots = "4"},
                       whole = {.prefill = "whole:1", .slots = "4", .low_slots = "4"};
    (void)run(s, &(struct words){0}, true);
    open_trace(s, &d);
    assert_status(decide(&d, &whole, &err), MOEC_OK, err);
    d.recording.known.forms = &d.decisions.forms;
    for (uint64_t a = 0; a < d.replay.n_step * d.replay.n_layer; a++)
        assert_null(moec_recording_low(&d.recording, a));
    moec_simulated_decisions_release(&d.decisions);
    assert_status(decide(&d, &all, &err), MOEC_OK, err);
    for (uint64_t a = 0; a < d.replay.n_step * d.replay.n_layer; a++) {
        const struct moec_replay *replay = &d.decisions.replay;
        const bool *is_low = moec_recording_low(&d.recording, a);
        assert_true((is_low != NULL) == d.recording.steps[a / d.replay.n_layer].is_prefill);
        n_row += is_low != NULL;
        for (uint32_t i = 0; is_low != NULL && i < 4 * replay->top_k; i++) { /* the first block */
            const uint64_t c = replay->answers[a].choices + i;
            assert_true(replay->is_low[c] == is_low[replay->experts[c]]);
            n_low += replay->is_low[c];
        }
    }
    assert_int_equal(n_row, N_TEXT * d.replay.n_layer);
    assert_true((n_low > 0) == (d.bundle->paths.n_layer > 0)); /* without calibration it is high */
    d.recording.known.forms = NULL;
    moec_simulated_decisions_release(&d.decisions);
    d.recording.steps[1].is_prefill = true; /* as if the prompt went on there */
    assert_status(decide(&d, &whole, &err), MOEC_ERR_USAGE, err);
    assert_non_null(strstr(err.message, "in several chunks (step 1)"));
    close_trace(&d);
}

/* Decided experts in both copies go through the simulated buffer. */
static void test_simulated_decisions__feed_the_buffer(void **state)
{
    const struct store *s = *state;
    struct moec_error err = {0};
    struct decided d;
    struct moec_simulated_model model;
    struct moec_simulated_device device;
    struct moec_simulated_result result;
    struct moec_recording recording;
    uint64_t n_low = 0, n_asked = 0;
    write_bundle(s, "qwen2_moe");
    (void)run(s, &(struct words){0}, true);
    open_trace(s, &d);
    assert_status(decide(&d, &settings[5], &err), MOEC_OK, err);
    const struct moec_replay *replay = &d.decisions.replay;
    assert_status(moec_recording_make(replay, NULL, 0, &recording, &err), MOEC_OK, err);
    assert_status(moec_simulated_model_of_bundle(d.bundle, 0, d.low, &recording, &model, &err), MOEC_OK, err);
    assert_int_equal(model.shape.n_layer_key, 2 * model.shape.n_expert);
    for (uint32_t e = 0; e < model.shape.n_expert; e++)
        assert_true(model.records.record_bytes[model.shape.n_expert + e] < model.records.record_bytes[e]);
    assert_status(
        moec_simulated_device_make(&(struct moec_simulated_hardware){0}, &recording, &model, &device, &err),
        MOEC_OK, err);
    for (uint64_t a = 0; a < replay->n_step * replay->n_layer; a++)
        for (uint32_t i = 0; i < replay->answers[a].n_active; i++) {
            n_asked++;
            n_low += replay->active[replay->answers[a].active + i] >= replay->n_expert;
        }
    assert_true(n_low > 0);
    const struct moec_simulated_setup setup = {
        .recording = &recording,
        .model = &model,
        .device = &device,
        .buffer = {.capacity_bytes = model.slots.every_bytes, .is_cold = true},
        .evict.policy = &moec_evict_lru,
        .preload.predictor = &moec_predict_none};
    assert_status(moec_simulated_run(&setup, &result, NULL, &err), MOEC_OK, err);
    assert_int_equal(result.prefill.asked + result.decode.asked, n_asked);
    assert_int_equal(result.prefill.evictions + result.decode.evictions, 0);
    /* Each record that anything asks for is read once: no more than there are. */
    assert_true(result.prefill.read_bytes + result.decode.read_bytes <= model.slots.every_bytes);
    moec_simulated_device_release(&device);
    moec_simulated_model_release(&model);
    moec_recording_release(&recording);
    close_trace(&d);
}

static void test_simulated_decisions__refuse_what_cannot_decide(void **state)
{
    const struct store *s = *state;
    struct moec_error err = {0};
    struct decided d;
    write_bundle(s, "qwen2_moe");
    (void)run(s, &(struct words){0}, false);
    open_trace(s, &d);
    assert_int_equal(moec_simulated_decisions_check(&d.replay, &d.bundle->config, s->file, &err),
                     MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "--trace-scores"));
    close_trace(&d);

    (void)run(s, &(struct words){0}, true);
    open_trace(s, &d);
    struct moec_config other = d.bundle->config;
    other.n_identity = 2;
    err = (struct moec_error){0};
    assert_int_equal(moec_simulated_decisions_check(&d.replay, &other, s->file, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "another model"));
    struct words fate = {.precision = "fate:4", .slots = "4", .low_slots = "4"};
    err = (struct moec_error){0};
    assert_int_equal(decide(&d, &fate, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "--decide decode"));
    assert_int_equal(d.decisions.n_choice, 0);
    for (uint64_t a = 0; a < d.replay.n_step * d.replay.n_layer; a++)
        d.replay.answers[a].n_next_gate -= d.replay.answers[a].n_next_gate > 3 ? 3 : 0;
    fate.decode_only = true;
    err = (struct moec_error){0};
    assert_int_equal(decide(&d, &fate, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "give fate:3"));
    close_trace(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_simulated_decisions__are_those_of_the_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_decisions__are_a_first_guess_of_another_run, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_decisions__know_the_copies_of_prompts, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_decisions__feed_the_buffer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_simulated_decisions__refuse_what_cannot_decide, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
