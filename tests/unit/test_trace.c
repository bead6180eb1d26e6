/* What a trace writes is what a replay reads, and what a viewer expects. */
#include "tests/unit/temporary.h"

#include "tests/unit/sample_bundle.h"
#include "tests/unit/synthetic_profile.h"

#include "formats/base/clock.h"
#include "formats/base/half.h"
#include "formats/json/json.h"
#include "formats/trace/trace_json.h"
#include "runtime/moert.h"
#include "runtime/storage/record_reader.h"
#include "runtime/trace/trace.h"

#include <pthread.h>

#define E 6

struct fixture {
    struct sample sample;
    char *folder, *path, *trace_path;
    struct moec_bundle *bundle;
    uint32_t k;
};

static struct fixture *fixture_make(void)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct moec_error err = {0};
    sample_make(&f->sample, E, 32, 16, 77);
    f->sample.parts.alignment = MOEC_BUNDLE_ALIGNMENT; /* requests are of records alone */
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "a \"name\".moec");
    f->trace_path = temporary_path(f->folder, "trace.json");
    (void)sample_write(&f->sample, f->path);
    assert_status(moec_bundle_open(f->path, &f->bundle, &err), MOEC_OK, err);
    f->k = f->bundle->config.top_k;
    return f;
}

static void fixture_free(struct fixture *f)
{
    moec_bundle_close(f->bundle);
    sample_release(&f->sample);
    free(f->path);
    free(f->trace_path);
    temporary_remove(f->folder);
    free(f);
}

static struct moec_trace *trace_make(const struct fixture *f, uint64_t capacity_bytes)
{
    struct moec_trace *trace = NULL;
    struct moec_error err = {0};
    const struct moec_trace_setup setup = {.path = f->trace_path,
                                           .bundle = f->bundle,
                                           .copies.copy = 1,
                                           .policy = {.buffer_bytes = 123456,
                                                      .evict = "edgemoe",
                                                      .predict = "path+gate",
                                                      .preload_count = 3,
                                                      .preload_ahead = 2},
                                           .capacity_bytes = capacity_bytes};
    assert_true(moec_trace_bytes(&setup) > capacity_bytes);
    assert_status(moec_trace_open(&setup, &trace, &err), MOEC_OK, err);
    return trace;
}

static void trace_end(struct moec_trace *trace)
{
    struct moec_error err = {0};
    assert_status(moec_trace_close(trace, &err), MOEC_OK, err);
}

/* An answer with numbers of its own; arrays live until the next call. */
static struct moec_router_answer make_answer(const struct fixture *f, uint32_t step, uint32_t ordinal,
                                             uint32_t n_tok)
{
    static uint32_t experts[64], active[E];
    static float weights[64];
    static struct moec_scored_expert gate[E];
    bool is_active[E] = {false};
    uint32_t n_active = 0;
    for (uint32_t t = 0; t < n_tok; t++) {
        for (uint32_t rank = 0; rank < f->k; rank++) {
            const uint32_t i = t * f->k + rank, expert = (step + ordinal + t + rank) % E;
            experts[i] = expert;
            is_active[expert] = true;
            weights[i] = 1.0f / (float)(3 + i + step);
        }
    }
    for (uint32_t e = 0; e < E; e++) {
        if (is_active[e])
            active[n_active++] = e;
        gate[e] = (struct moec_scored_expert){E - 1 - e, 0.7f / (float)(1 + e + step)};
    }
    return (struct moec_router_answer){
        .layer = moec_config_moe_layer(&f->bundle->config, ordinal),
        .n_tok = n_tok,
        .active = {.list = active, .n = n_active},
        .choices = {.experts = experts, .weights = weights},
        .next = {.gate = {.experts = ordinal + 1 < SAMPLE_MOE ? gate : NULL,
                          .n = ordinal + 1 < SAMPLE_MOE ? E : 0},
                 .later = {{gate + 1, ordinal + 2 < SAMPLE_MOE ? E - 1 : 0},
                           {gate + 2, ordinal + 3 < SAMPLE_MOE ? E - 2 : 0},
                           {gate + 3, ordinal + 4 < SAMPLE_MOE ? E - 3 : 0}},
                 .learned = {.experts = ordinal + 1 < SAMPLE_MOE ? gate + 1 : NULL,
                             .n = ordinal + 1 < SAMPLE_MOE ? E - 1 : 0}}};
}

static const uint32_t step_tokens[] = {5, 1, 1};
#define N_STEP 3

/* Times of layer `ordinal` of a step, relative to the start. */
static uint64_t time_of(uint32_t step, uint32_t ordinal)
{
    return 1000000 + (step * SAMPLE_MOE + ordinal) * 10000 + 7;
}

static void record_steps(const struct fixture *f, struct moec_trace *trace, uint64_t start_ns)
{
    for (uint32_t step = 0; step < N_STEP; step++) {
        for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE; ordinal++) {
            const struct moec_router_answer answer = make_answer(f, step, ordinal, step_tokens[step]);
            const uint64_t at = start_ns + time_of(step, ordinal);
            moec_trace_record(trace, &(struct moec_trace_span){.what = "attention",
                                                               .lane = MOEC_TRACE_COMPUTE,
                                                               .layer = answer.layer,
                                                               .expert = MOEC_TRACE_NONE,
                                                               .begin_ns = at - 900,
                                                               .end_ns = at - 400});
            moec_trace_answer(trace, &answer, f->k, at);
            moec_trace_record(trace, &(struct moec_trace_span){.what = "expert",
                                                               .lane = MOEC_TRACE_STALL,
                                                               .layer = answer.layer,
                                                               .expert = 2,
                                                               .begin_ns = at + 100,
                                                               .end_ns = at + 1100});
            moec_trace_record(trace, &(struct moec_trace_span){.what = "expert",
                                                               .lane = MOEC_TRACE_STALL,
                                                               .layer = answer.layer,
                                                               .expert = 4,
                                                               .begin_ns = at + 2000,
                                                               .end_ns = at + 2250});
            for (uint32_t e = 0; e < 3; e++) /* at once */
                moec_trace_record(trace, &(struct moec_trace_span){.what = "read",
                                                                   .lane = MOEC_TRACE_DEMAND,
                                                                   .layer = answer.layer,
                                                                   .expert = e,
                                                                   .n_bytes = 4096 + e,
                                                                   .begin_ns = at + e,
                                                                   .end_ns = at + 1000 + e});
            moec_trace_record(trace, &(struct moec_trace_span){.what = "read",
                                                               .lane = MOEC_TRACE_PRELOAD,
                                                               .layer = answer.layer + 1,
                                                               .expert = 5,
                                                               .n_bytes = 4096,
                                                               .begin_ns = at + 1500,
                                                               .end_ns = at + 2500});
            moec_trace_record(trace, &(struct moec_trace_span){.what = "experts",
                                                               .lane = MOEC_TRACE_COMPUTE,
                                                               .layer = answer.layer,
                                                               .expert = MOEC_TRACE_NONE,
                                                               .begin_ns = at + 90,
                                                               .end_ns = at + 4000});
        }
        moec_trace_record(trace, &(struct moec_trace_span){.what = "head",
                                                           .lane = MOEC_TRACE_COMPUTE,
                                                           .layer = MOEC_TRACE_NONE,
                                                           .expert = MOEC_TRACE_NONE,
                                                           .begin_ns = start_ns + time_of(step, 1) + 4000,
                                                           .end_ns = start_ns + time_of(step, 1) + 5000});
        moec_trace_flush(trace);
    }
}

static void check_setup(const struct fixture *f, const struct moec_replay *replay)
{
    assert_int_equal(replay->n_layer, SAMPLE_MOE);
    assert_int_equal(replay->n_expert, E);
    assert_int_equal(replay->top_k, f->k);
    assert_int_equal(replay->buffer_bytes, 123456);
    assert_int_equal(replay->preload_count, 3);
    assert_string_equal(replay->evict, "edgemoe");
    assert_string_equal(replay->predict, "path+gate");
    assert_string_equal(replay->version, MOEC_VERSION);
    for (uint32_t s = 0; s < SAMPLE_MOE; s++) {
        assert_int_equal(replay->moe_layers[s], moec_config_moe_layer(&f->bundle->config, s));
        for (uint32_t e = 0; e < E; e++) {
            assert_int_equal(replay->record_bytes[s * E + e],
                             moec_bundle_record(f->bundle, 1, s, e)->n_bytes);
            assert_int_equal(replay->slot_bytes[s * E + e], moec_record_slot_bytes(f->bundle, 1, s, e));
        }
    }
    const struct moec_path_table *ours = replay->paths, *theirs = &f->bundle->paths;
    assert_int_equal(ours->n_key, theirs->n_key);
    assert_memory_equal(ours->keys, theirs->keys, theirs->n_key * sizeof *theirs->keys);
    assert_memory_equal(ours->values, theirs->values,
                        (size_t)theirs->n_key * theirs->n_value * sizeof *theirs->values);
    assert_memory_equal(ours->frequency, theirs->frequency,
                        (size_t)SAMPLE_MOE * E * sizeof *theirs->frequency);
}

static void check_answer(const struct fixture *f, const struct moec_replay *replay, uint32_t step,
                         uint32_t ordinal)
{
    const struct moec_router_answer expected = make_answer(f, step, ordinal, step_tokens[step]);
    const struct moec_replay_answer *answer = &replay->answers[step * SAMPLE_MOE + ordinal];
    const size_t n = (size_t)expected.n_tok * f->k;
    assert_int_equal(answer->n_active, expected.active.n);
    assert_memory_equal(replay->active + answer->active, expected.active.list,
                        expected.active.n * sizeof(uint32_t));
    assert_memory_equal(replay->experts + answer->choices, expected.choices.experts, n * sizeof(uint32_t));
    assert_memory_equal(replay->weights + answer->choices, expected.choices.weights, n * sizeof(float));
    assert_int_equal(answer->n_next_gate, expected.next.gate.n);
    if (expected.next.gate.n > 0)
        assert_memory_equal(replay->scored + answer->next_gate, expected.next.gate.experts,
                            expected.next.gate.n * sizeof *expected.next.gate.experts);
    for (size_t i = 0; i < MOEC_REPLAY_LATER; i++) {
        assert_int_equal(answer->n_later_gates[i], expected.next.later[i].n);
        if (expected.next.later[i].n > 0)
            assert_memory_equal(replay->scored + answer->later_gates[i], expected.next.later[i].experts,
                                expected.next.later[i].n * sizeof(struct moec_scored_expert));
    }
    assert_int_equal(answer->n_next_learned, expected.next.learned.n);
    if (expected.next.learned.n > 0)
        assert_memory_equal(replay->scored + answer->next_learned, expected.next.learned.experts,
                            expected.next.learned.n * sizeof *expected.next.learned.experts);
    assert_int_equal(answer->stall_ns, 1250);
    assert_int_equal(answer->done_ns - answer->answered_ns, 4000);
    if (step + ordinal > 0)
        assert_int_equal(answer->answered_ns - answer[-1].answered_ns, 10000);
}

static void test_trace__reads_back_exactly(void **state)
{
    (void)state;
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 0);
    struct moec_replay replay;
    struct moec_error err = {0};
    record_steps(f, trace, moec_now_ns());
    trace_end(trace);
    assert_status(moec_replay_load(f->trace_path, &replay, &err), MOEC_OK, err);
    check_setup(f, &replay);
    assert_int_equal(replay.n_step, N_STEP);
    assert_true(replay.has_next_gate && replay.has_next_learned && replay.has_times);
    assert_int_equal(replay.gates_ahead, MOEC_GATES_AHEAD);
    assert_int_equal(replay.preload_ahead, 2);
    for (uint32_t step = 0; step < N_STEP; step++) {
        assert_int_equal(replay.n_tok[step], step_tokens[step]);
        for (uint32_t ordinal = 0; ordinal < SAMPLE_MOE; ordinal++)
            check_answer(f, &replay, step, ordinal);
    }
    moec_replay_release(&replay);
    fixture_free(f);
}

/* ---- the viewer ---- */

static double number(const struct moec_json *event, const char *key)
{
    double value = 0;
    struct moec_error err = {0};
    assert_status(moec_json_as_double(moec_json_find(event, key), key, 0, 1e15, &value, &err), MOEC_OK, err);
    return value;
}

static const char *text(const struct moec_json *event, const char *key)
{
    const char *value = NULL;
    struct moec_error err = {0};
    assert_status(moec_json_get_string(event, "an event", key, &value, NULL, &err), MOEC_OK, err);
    return value;
}

static struct moec_json *parse(const struct fixture *f)
{
    struct moec_json *root = NULL;
    struct moec_error err = {0};
    size_t n = 0;
    char *bytes = (char *)temporary_read(f->folder, "trace.json", &n);
    assert_status(moec_json_parse(bytes, n, n, "trace", &root, &err), MOEC_OK, err);
    free(bytes);
    return root;
}

/* Trace-event format: spans have a time, a length and a row; rows have names; spans of a row follow each
 * other, since a viewer takes what overlaps for nested calls. */
static void test_trace__is_what_viewers_read(void **state)
{
    (void)state;
    enum { N_ROW = 512 };
    static double row_end[N_ROW];
    static bool named[N_ROW], sorted[N_ROW];
    uint32_t n_span = 0, n_answer = 0;
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 0);
    record_steps(f, trace, moec_now_ns());
    trace_end(trace);
    struct moec_json *root = parse(f);
    const struct moec_json *events = moec_json_find(root, "traceEvents");
    assert_int_equal(moec_json_type(events), MOEC_JSON_ARRAY);
    assert_string_equal(text(moec_json_at(events, 0), "name"), "moec_trace");
    for (size_t i = 0; i < moec_json_length(events); i++) {
        const struct moec_json *event = moec_json_at(events, i), *args = moec_json_find(event, "args");
        const char *phase = text(event, "ph"), *name = text(event, "name");
        const size_t row = (size_t)number(event, "tid");
        assert_true(number(event, "pid") == 1 && row < N_ROW);
        assert_int_equal(moec_json_type(args), MOEC_JSON_OBJECT);
        if (strcmp(phase, "M") == 0) {
            named[row] = named[row] || (strcmp(name, "thread_name") == 0 && text(args, "name")[0] != '\0');
            sorted[row] =
                sorted[row] || (strcmp(name, "thread_sort_index") == 0 && number(args, "sort_index") > 0);
        } else if (strcmp(phase, "i") == 0) {
            assert_string_equal(text(event, "s"), "t");
            assert_true(number(event, "ts") > 0);
            n_answer++;
        } else {
            assert_string_equal(phase, "X");
            assert_true(named[row] && sorted[row]);
            assert_true(number(event, "ts") >= row_end[row] - 1e-6);
            row_end[row] = number(event, "ts") + number(event, "dur");
            n_span++;
        }
    }
    assert_int_equal(n_answer, N_STEP * SAMPLE_MOE);
    assert_int_equal(n_span, N_STEP * (SAMPLE_MOE * 8 + 1));
    moec_json_free(root);
    fixture_free(f);
}

/* ---- room ---- */

static void test_trace__counts_what_found_no_room(void **state)
{
    (void)state;
    enum { N_TOK = 10000 };
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 1);
    struct moec_replay replay;
    struct moec_error err = {0};
    const struct moec_router_answer answer = make_answer(f, 0, 0, 1);
    for (uint32_t i = 0; i < 5000; i++)
        moec_trace_record(trace, &(struct moec_trace_span){.what = "read",
                                                           .lane = MOEC_TRACE_DEMAND,
                                                           .layer = 0,
                                                           .expert = 1,
                                                           .n_bytes = 1,
                                                           .begin_ns = 10,
                                                           .end_ns = 20});
    for (uint32_t i = 0; i < 1000; i++) { /* these are flushed for */
        const struct moec_router_answer one = make_answer(f, i, i % 2, 1);
        moec_trace_answer(trace, &one, f->k, 30 + i);
    }
    trace_end(trace);
    struct moec_json *root = parse(f);
    const struct moec_json *events = moec_json_find(root, "traceEvents");
    const struct moec_json *end = moec_json_at(events, moec_json_length(events) - 1);
    assert_string_equal(text(end, "name"), "moec_end");
    assert_true(number(moec_json_find(end, "args"), "lost_spans") > 3000);
    assert_true(number(moec_json_find(end, "args"), "lost_answers") == 0);
    moec_json_free(root);
    assert_status(moec_replay_load(f->trace_path, &replay, &err), MOEC_OK, err);
    assert_int_equal(replay.n_step, 500);
    moec_replay_release(&replay);

    uint32_t *experts = calloc((size_t)N_TOK * f->k, sizeof *experts);
    float *weights = calloc((size_t)N_TOK * f->k, sizeof *weights);
    struct moec_router_answer large = answer;
    large.n_tok = N_TOK;
    large.choices.experts = experts;
    large.choices.weights = weights;
    trace = trace_make(f, 1);
    moec_trace_answer(trace, &answer, f->k, 30);
    moec_trace_answer(trace, &large, f->k, 40); /* more than there is room for at all */
    trace_end(trace);
    assert_int_equal(moec_replay_load(f->trace_path, &replay, &err), MOEC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "lost 1 'answer' events"));
    free(experts);
    free(weights);
    fixture_free(f);
}

static void *record_reads(void *context)
{
    for (uint32_t i = 0; i < 3000; i++)
        moec_trace_record(context, &(struct moec_trace_span){.what = "read",
                                                             .lane = MOEC_TRACE_DEMAND,
                                                             .layer = 0,
                                                             .expert = i % E,
                                                             .n_bytes = 4096,
                                                             .begin_ns = moec_now_ns() - 1000,
                                                             .end_ns = moec_now_ns()});
    return NULL;
}

/* Reads of another form than the head's say which. */
static void test_trace__names_other_forms(void **state)
{
    (void)state;
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 0);
    const struct moec_trace_span span = {
        .what = "read",
        .lane = MOEC_TRACE_DEMAND,
        .expert = 1,
        .has_form = true,
        .form = {.copy = 2,
                 .part = {.projections = 1u << MOEC_PROJECTION_GATE | 1u << MOEC_PROJECTION_DOWN,
                          .first_neuron = 4,
                          .n_neuron = 8}},
        .n_bytes = 640,
        .begin_ns = 1,
        .end_ns = 2};
    moec_trace_record(trace, &span);
    trace_end(trace);
    struct moec_json *root = parse(f);
    const struct moec_json *events = moec_json_find(root, "traceEvents");
    const struct moec_json *args = moec_json_find(moec_json_at(events, moec_json_length(events) - 2), "args");
    assert_true(number(args, "copy") == 2 && number(args, "expert") == 1 && number(args, "bytes") == 640);
    assert_string_equal(text(args, "part"), "gate+down");
    assert_true(number(args, "first_neuron") == 4 && number(args, "neurons") == 8);
    moec_json_free(root);
    fixture_free(f);
}

static void test_trace__leaves_no_file_when_discarded(void **state)
{
    (void)state;
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 1u << 20);
    moec_trace_record(trace, &(struct moec_trace_span){.what = "read",
                                                       .lane = MOEC_TRACE_DEMAND,
                                                       .layer = 0,
                                                       .expert = 0,
                                                       .n_bytes = 4096,
                                                       .begin_ns = 1,
                                                       .end_ns = 2});
    moec_trace_discard(trace);
    assert_int_equal(temporary_count(f->folder), 1); /* the bundle */
    moec_trace_discard(NULL);
    fixture_free(f);
}

/* The bundle's records stand closer than pages, so they cannot be mapped, which is found when all else is ready. */
static void test_trace__an_engine_that_does_not_open_leaves_none(void **state)
{
    (void)state;
    struct fixture *f = fixture_make();
    struct moert_options options = moert_options_default();
    struct moert_engine *engine = NULL;
    struct moert_error err = {0};
    options.trace.path = f->trace_path;
    options.storage.io = "mapped";
    f->sample.parts.alignment = MOEC_BUNDLE_LEAST_ALIGNMENT;
    (void)sample_write(&f->sample, f->path);
    assert_int_equal(moert_engine_open(f->path, &options, &engine, &err), MOERT_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "mapping needs"));
    assert_int_equal(temporary_count(f->folder), 1);
    temporary_write(f->folder, "trace.json", "before", 6);
    assert_int_equal(moert_engine_open(f->path, &options, &engine, &err), MOERT_ERR_UNSUPPORTED);
    size_t n = 0;
    uint8_t *bytes = temporary_read(f->folder, "trace.json", &n);
    assert_string_equal((const char *)bytes, "before"); /* what stood there still does */
    free(bytes);
    fixture_free(f);
}

static void test_trace__any_thread_records(void **state)
{
    (void)state;
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 1u << 22); /* room for all, whoever comes first */
    struct moec_replay replay;
    struct moec_error err = {0};
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_reads, trace), 0);
    record_steps(f, trace, moec_now_ns());
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    trace_end(trace);
    assert_status(moec_replay_load(f->trace_path, &replay, &err), MOEC_OK, err);
    assert_int_equal(replay.n_step, N_STEP);
    moec_replay_release(&replay);
    fixture_free(f);
}

static void test_trace__nobody_looks(void **state)
{
    (void)state;
    struct moec_error err = {0};
    const struct moec_router_answer answer = {0};
    moec_trace_record(
        NULL,
        &(struct moec_trace_span){
            .what = "x", .lane = MOEC_TRACE_STALL, .layer = 0, .expert = 0, .begin_ns = 0, .end_ns = 0});
    moec_trace_compute(NULL, "x", 0, 0);
    moec_trace_answer(NULL, &answer, 1, 0);
    moec_trace_flush(NULL);
    assert_int_equal(moec_trace_now(NULL), 0);
    assert_status(moec_trace_close(NULL, &err), MOEC_OK, err);
}

static void test_trace__reports_what_cannot_be_written(void **state)
{
    (void)state;
    struct fixture *f = fixture_make();
    struct moec_trace *trace = NULL;
    struct moec_error err = {0};
    char *missing = temporary_path(f->folder, "missing/trace.json");
    const struct moec_trace_setup setup = {.path = missing, .bundle = f->bundle};
    assert_int_equal(moec_trace_open(&setup, &trace, &err), MOEC_ERR_IO);
    assert_null(trace);
    free(missing);
    fixture_free(f);
}

/* ---- hostile files ---- */

/* Loads the trace with the first `from` replaced by `to`. */
static enum moec_status load_changed(const struct fixture *f, const char *from, const char *to,
                                     struct moec_replay *replay, struct moec_error *err)
{
    size_t n = 0;
    char *bytes = (char *)temporary_read(f->folder, "trace.json", &n);
    char *at = strstr(bytes, from), *path = temporary_path(f->folder, "bad.json");
    if (at == NULL)
        fail_msg("there is no %s", from);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fwrite(bytes, 1, (size_t)(at - bytes), file) == (size_t)(at - bytes));
    assert_true(fputs(to, file) >= 0 && fputs(at + strlen(from), file) >= 0);
    assert_int_equal(fclose(file), 0);
    const enum moec_status status = moec_replay_load(path, replay, err);
    free(path);
    free(bytes);
    return status;
}

static void refused(const struct fixture *f, const char *from, const char *to)
{
    struct moec_error err = {0};
    struct moec_replay replay;
    if (load_changed(f, from, to, &replay, &err) == MOEC_OK)
        fail_msg("%s instead of %s was taken", to, from);
    assert_true(err.message[0] != '\0');
    assert_int_equal(replay.n_step, 0);
    assert_null(replay.answers);
}

/* ---- scores and copies ---- */

/* One token, then five, of two choices each in both copies; logits of any bits. */
static void record_scored(const struct fixture *f, const float *logits, const bool *is_low)
{
    struct moec_trace *trace = NULL;
    struct moec_error err = {0};
    const struct moec_trace_setup setup = {
        .path = f->trace_path, .bundle = f->bundle, .copies.low = 1, .has_logits = true};
    assert_status(moec_trace_open(&setup, &trace, &err), MOEC_OK, err);
    for (uint32_t i = 0; i < 2 * SAMPLE_MOE; i++) {
        struct moec_router_answer answer = make_answer(f, 0, i % SAMPLE_MOE, i < SAMPLE_MOE ? 1 : 5);
        uint32_t active[2 * E], n = 0;
        for (uint32_t key = 0; key < 2 * E; key++) {
            bool is_active = false;
            for (uint32_t c = 0; c < answer.n_tok * f->k; c++)
                is_active = is_active || answer.choices.experts[c] + (is_low[c] ? E : 0) == key;
            if (is_active)
                active[n++] = key;
        }
        answer.active.list = active;
        answer.active.n = n;
        answer.choices.is_low = is_low;
        answer.logits.rows = logits;
        answer.logits.n = E;
        answer.logits.stride = E + 2;
        moec_trace_answer(trace, &answer, f->k, moec_now_ns());
    }
    trace_end(trace);
}

static void test_trace__keeps_scores_and_copies(void **state)
{
    static const char *const changes[][2] = {
        {"\"low_copy\":1", "\"low_copy\":0"}, {"\"choices\":6", "\"choices\":5"},
        {"\"low\":[", "\"low\":[2,"},         {"\"low\":[0", "\"low\":[2"},
        {"\"low\":[0", "\"low\":[1"},         {",\"low\":[", ",\"lov\":["},
        {"\"logits\":\"", "\"logits\":\"0"},  {"\"logits\":\"0", "\"logits\":\"g"},
        {"\"logits\":", "\"logitz\":"},       {"\"active\":[0", "\"active\":[0,12"}};
    struct fixture *f = fixture_make();
    struct moec_replay replay;
    struct moec_error err = {0};
    float logits[5 * (E + 2)];
    bool is_low[64];
    (void)state;
    for (uint32_t i = 0; i < 5 * (E + 2); i++)
        logits[i] = i == 3 ? NAN : i == 4 ? -INFINITY : (float)i / 7;
    for (uint32_t i = 0; i < 64; i++)
        is_low[i] = i % 3 == 1;
    record_scored(f, logits, is_low);
    assert_status(moec_replay_load(f->trace_path, &replay, &err), MOEC_OK, err);
    assert_int_equal(replay.n_form, 2);
    assert_int_equal(replay.low_copy, 1);
    assert_int_equal(replay.n_logit, E);
    for (uint32_t s = 0; s < SAMPLE_MOE; s++)
        for (uint32_t key = 0; key < 2 * E; key++)
            assert_int_equal(replay.record_bytes[s * 2 * E + key],
                             moec_bundle_record(f->bundle, key / E, s, key % E)->n_bytes);
    for (uint64_t a = 0; a < replay.n_step * replay.n_layer; a++) {
        const struct moec_replay_answer *answer = &replay.answers[a];
        const uint32_t n_tok = replay.n_tok[a / replay.n_layer];
        assert_memory_equal(replay.is_low + answer->choices, is_low, n_tok * f->k * sizeof *is_low);
        for (uint32_t t = 0; t < n_tok; t++)
            assert_memory_equal(replay.logits + answer->logits + (size_t)t * E, logits + t * (E + 2),
                                E * sizeof *logits);
        assert_true(replay.active[answer->active + answer->n_active - 1] >= E);
    }
    moec_replay_release(&replay);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        refused(f, changes[i][0], changes[i][1]);
    fixture_free(f);
}

/* What version 1 had has not changed. */
static void test_trace__older_versions_are_read(void **state)
{
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 0);
    struct moec_replay replay;
    struct moec_error err = {0};
    (void)state;
    record_steps(f, trace, moec_now_ns());
    trace_end(trace);
    assert_status(load_changed(f, "\"version\":2", "\"version\":1", &replay, &err), MOEC_OK, err);
    assert_int_equal(replay.n_step, N_STEP);
    assert_int_equal(replay.n_form, 1);
    check_answer(f, &replay, 1, 1);
    moec_replay_release(&replay);
    fixture_free(f);
}

static void test_trace__damaged_files_are_refused(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"{\"traceEvents\":[\n", "[\n"},
        {"],\"displayTimeUnit\":\"ns\"}\n", ""},
        {"],\"displayTimeUnit\":\"ns\"}\n", "],\"displayTimeUnit\":\"ns\"}\nmore\n"},
        {"moec_end", "moec_und"},
        {"moec_trace", "moec_tracf"},
        {"\"version\":2", "\"version\":3"},
        {"\"version\":2", "\"version\":0"},
        {"\"experts\":6", "\"experts\":0"},
        {"\"experts\":6", "\"experts\":5000"},
        {"\"experts\":6", "\"experts\":7"},
        {"\"layers\":2", "\"layers\":1"},
        {"\"layers\":2", "\"layers\":2000000000"},
        {"\"moe_layers\":[0,2]", "\"moe_layers\":[2,0]"},
        {"\"slot_bytes\":[", "\"slot_bytes\":[1,"},
        {"\"lost_answers\":0", "\"lost_answers\":2"},
        {"\"hex\":\"", "\"hex\":\"zz"},
        {"\"hex\":\"", "\"hex\":\"0"},
        {"\"tokens\":5", "\"tokens\":0"},
        {"\"tokens\":5", "\"tokens\":6"},
        {"\"tokens\":5", "\"tokens\":-1"},
        {"\"active\":[0,1", "\"active\":[1,0"},
        {"\"active\":[0,1", "\"active\":[0"},
        {"\"active\":[0,1", "\"active\":[0,0,1"},
        {"\"active\":[0,1", "\"active\":[0,99"},
        {"\"experts\":[0,1", "\"experts\":[0,0"},
        {"\"experts\":[0,1", "\"experts\":[0,1,2"},
        {"\"weights\":[", "\"weights\":[null,"},
        {"\"weights\":[0.", "\"weights\":[1e999,0."},
        {"\"next_gate\":[5,4", "\"next_gate\":[5,5"},
        {"\"next_gate\":[5,4", "\"next_gate\":[4"},
        {"\"next_scores\":[0.", "\"next_scores\":[0.00000"},
        {"\"next_learned\":[4,3", "\"next_learned\":[4,4"},
        {"\"next_learned_scores\":[0.", "\"next_learned_scores\":[-0."},
        {"\"ph\":\"i\",\"s\":\"t\"", "\"ph\":\"j\",\"s\":\"t\""},
        {"\"cat\":\"stall\"", "\"cat\":7"},
    };
    struct fixture *f = fixture_make();
    struct moec_trace *trace = trace_make(f, 0);
    record_steps(f, trace, moec_now_ns());
    trace_end(trace);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        refused(f, changes[i][0], changes[i][1]);
    fixture_free(f);
}

/* ---- profiles ---- */

static void check_profile(const struct moec_profile *profile, uint32_t prompt_tokens)
{
    struct moec_replay replay;
    struct moec_error err = {0};
    const uint32_t k = profile->top_k;
    uint64_t token = 0, step = 0;
    assert_status(moec_replay_from_profile(profile, prompt_tokens, &replay, &err), MOEC_OK, err);
    assert_ptr_equal(replay.paths, &profile->paths);
    assert_false(replay.has_next_gate || replay.has_times);
    for (uint32_t w = 0; w < profile->n_window; w++) {
        for (uint32_t at = 0; at < profile->window_length[w]; step++) {
            const uint32_t prompt =
                prompt_tokens > profile->window_length[w] ? profile->window_length[w] : prompt_tokens;
            const uint32_t n_tok = at == 0 && prompt > 0 ? prompt : 1;
            assert_true(step < replay.n_step);
            assert_int_equal(replay.n_tok[step], n_tok);
            for (uint32_t s = 0; s < replay.n_layer; s++) {
                const struct moec_replay_answer *answer = &replay.answers[step * replay.n_layer + s];
                bool seen[256] = {false};
                uint32_t n_active = 0;
                for (uint32_t i = 0; i < n_tok * k; i++) {
                    const uint64_t from = ((token + i / k) * replay.n_layer + s) * k + i % k;
                    assert_int_equal(replay.experts[answer->choices + i], profile->trace_experts[from]);
                    assert_true(replay.weights[answer->choices + i] ==
                                moec_f16_to_f32(profile->trace_weights[from]));
                    seen[profile->trace_experts[from]] = true;
                }
                for (uint32_t e = 0; e < replay.n_expert; e++) {
                    if (seen[e])
                        assert_int_equal(replay.active[answer->active + n_active++], e);
                }
                assert_int_equal(answer->n_active, n_active);
            }
            at += n_tok;
            token += n_tok;
        }
    }
    assert_int_equal(step, replay.n_step);
    moec_replay_release(&replay);
}

static void test_trace__profiles_are_replayed_token_by_token(void **state)
{
    (void)state;
    const struct synthetic_shape shape = {.n_moe_layer = 3,
                                          .n_expert = 8,
                                          .top_k = 2,
                                          .n_window = 4,
                                          .seq_len_tokens = 12,
                                          .n_bits = 1,
                                          .n_uniform = 1,
                                          .n_key = 4};
    struct moec_profile profile;
    struct moec_replay replay;
    struct moec_error err = {0};
    assert_int_equal(synthetic_profile(&shape, &profile), MOEC_OK);
    check_profile(&profile, 0);
    check_profile(&profile, 3);
    check_profile(&profile, 100000);
    profile.n_trace_token = 0;
    assert_int_equal(moec_replay_from_profile(&profile, 0, &replay, &err), MOEC_ERR_USAGE);
    moec_profile_release(&profile);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace__reads_back_exactly),
        cmocka_unit_test(test_trace__is_what_viewers_read),
        cmocka_unit_test(test_trace__counts_what_found_no_room),
        cmocka_unit_test(test_trace__names_other_forms),
        cmocka_unit_test(test_trace__leaves_no_file_when_discarded),
        cmocka_unit_test(test_trace__keeps_scores_and_copies),
        cmocka_unit_test(test_trace__older_versions_are_read),
        cmocka_unit_test(test_trace__an_engine_that_does_not_open_leaves_none),
        cmocka_unit_test(test_trace__any_thread_records),
        cmocka_unit_test(test_trace__nobody_looks),
        cmocka_unit_test(test_trace__reports_what_cannot_be_written),
        cmocka_unit_test(test_trace__damaged_files_are_refused),
        cmocka_unit_test(test_trace__profiles_are_replayed_token_by_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
