/* The engine with a device, on the stand-in: the same bits as without, three tiers within their two limits,
 * and an answer in words where there is no device, no room on it, or a device that is lost. */
#include "tests/unit/fixture_bundle.h"

#include "formats/bundle/bundle_sparsity.h"
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_kernels.h"
#include "runtime/cuda/gpu_library.h"
#include "runtime/cuda/host/host_gpu.h"
#include "runtime/engine/moert_internal.h"

#define N_TOK 20u
#define KIB   ((uint64_t)1 << 10)

static struct moec_host_gpu_faults faults; /* of the next device */
static struct moec_gpu *opened;

static enum moec_status open_stand_in(uint32_t number, struct moec_gpu **out, struct moec_error *err)
{
    if (number > 1)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "there is no device %u", number);
    moec_blocks_divert(moec_host_gpu_launch);
    MOEC_TRY(moec_host_gpu_open(number + 7, out, err));
    moec_host_gpu_set_faults(*out, &faults);
    opened = *out;
    return MOEC_OK;
}

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;
static const struct moec_gpu_entry entry = {MOEC_VERSION, open_stand_in, &kernels};

struct fixture {
    char *folder, *path;
    struct moert_engine *cpu;
    uint32_t n_vocab;
    float *expected; /* (N_TOK, n_vocab) */
};

static uint32_t token_of(uint32_t i)
{
    return (i * 37 + 11) % 90;
}

/* Logits of all tokens, chunk by chunk. */
static enum moert_status read_all(struct moert_session *session, uint32_t chunk, uint32_t n_vocab,
                                  float *logits, struct moert_error *err)
{
    for (uint32_t done = 0; done < N_TOK; done += chunk) {
        const uint32_t n = N_TOK - done < chunk ? N_TOK - done : chunk;
        uint32_t tokens[N_TOK], at[N_TOK];
        for (uint32_t i = 0; i < n; i++) {
            tokens[i] = token_of(done + i);
            at[i] = i;
        }
        const enum moert_status status =
            moert_session_step_at(session, tokens, n, at, n, logits + (size_t)done * n_vocab, err);
        if (status != MOERT_OK)
            return status;
    }
    return MOERT_OK;
}

static struct moert_options options_of(const char *device, uint64_t vram_bytes)
{
    struct moert_options options = moert_options_default();
    options.n_threads = 1;
    options.sessions.n_context = 32;
    options.sessions.n_sessions = 2;
    options.device.name = device;
    options.device.vram_bytes = vram_bytes;
    return options;
}

static enum moert_status open_engine(const struct fixture *f, const struct moert_options *options,
                                     struct moert_engine **out, struct moert_error *err)
{
    const struct moec_record_io io = {0};
    return moert_engine_open_on(f->path, options, &io, &entry, out, err);
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct moert_error wrong = {0};
    struct moert_session *session = NULL;
    const struct moert_options options = options_of(NULL, 0);
    assert_non_null(f);
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "model.moec");
    fixture_bundle_write("tests/fixtures/families/qwen2_moe", f->path, 4, true);
    assert_int_equal(open_engine(f, &options, &f->cpu, &wrong), MOERT_OK);
    f->n_vocab = moert_engine_info(f->cpu).model.n_vocab;
    f->expected = calloc((size_t)N_TOK * f->n_vocab, sizeof *f->expected);
    assert_int_equal(moert_session_create(f->cpu, &session, &wrong), MOERT_OK);
    assert_int_equal(read_all(session, N_TOK, f->n_vocab, f->expected, &wrong), MOERT_OK);
    moert_session_free(session);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    moert_engine_close(f->cpu);
    temporary_remove(f->folder);
    free(f->path);
    free(f->expected);
    free(f);
    return 0;
}

static void assert_expected(const struct fixture *f, const float *logits)
{
    assert_memory_equal(logits, f->expected, (size_t)N_TOK * f->n_vocab * sizeof(float));
}

/* The least budget of the device's memory that is not refused. */
static uint64_t floor_bytes(const struct fixture *f)
{
    uint64_t refused = KIB, taken = 64 * KIB * KIB;
    while (taken - refused > 64) {
        struct moert_options options = options_of("cuda", refused + (taken - refused) / 2);
        struct moert_engine *engine = NULL;
        struct moert_error wrong = {0};
        const enum moert_status status = open_engine(f, &options, &engine, &wrong);
        if (status != MOERT_OK)
            assert_int_equal(status, MOERT_ERR_BUDGET);
        *(status == MOERT_OK ? &taken : &refused) = options.device.vram_bytes;
        moert_engine_close(engine);
    }
    return taken;
}

static void a_device_gives_the_same_bits_within_its_limit(void **state)
{
    const struct fixture *f = *state;
    const uint64_t floor = floor_bytes(f) + 16 * KIB;
    const uint64_t limits[] = {0, floor, floor + 300 * KIB};
    float *logits = calloc((size_t)N_TOK * f->n_vocab, sizeof *logits);
    for (size_t i = 0; i < 3; i++) {
        const struct moert_options options = options_of("cuda:1", limits[i]);
        struct moert_engine *engine = NULL;
        struct moert_session *session = NULL, *fork = NULL;
        struct moert_error wrong = {0};
        if (open_engine(f, &options, &engine, &wrong) != MOERT_OK)
            fail_msg("%s", wrong.message);
        const struct moert_info info = moert_engine_info(engine);
        assert_string_equal(info.device.name, "stand-in for tests");
        assert_true(limits[i] == 0 || info.device.vram_bytes <= limits[i]);
        assert_int_equal(moert_session_create(engine, &session, &wrong), MOERT_OK);
        if (read_all(session, 1 + 6 * (uint32_t)i, f->n_vocab, logits, &wrong) != MOERT_OK)
            fail_msg("%s", wrong.message);
        assert_expected(f, logits);
        const uint32_t last = token_of(N_TOK - 1);
        assert_int_equal(moert_session_fork(session, &fork, &wrong), MOERT_OK);
        moert_session_truncate(fork, N_TOK - 1);
        assert_int_equal(moert_session_step(fork, &last, 1, logits, &wrong), MOERT_OK);
        assert_memory_equal(logits, f->expected + (size_t)(N_TOK - 1) * f->n_vocab,
                            f->n_vocab * sizeof(float));
        const struct moert_pool_stats stats = moert_engine_pool_stats(engine);
        assert_true(stats.misses > 0 && stats.copied_bytes > 0);
        assert_true(i == 1 ? stats.evictions > 0 : i == 2 || stats.evictions == 0);
        assert_true(moec_host_gpu_counts(opened).peak_bytes <= info.device.vram_bytes);
        moert_session_free(fork);
        moert_session_free(session);
        moert_engine_close(engine);
    }
    free(logits);
}

/* What a run gave, by decisions: logits (N_TOK, n_vocab), and what was counted. */
struct decided {
    float *logits;
    struct moert_decided experts;
    struct moert_neurons neurons;
};

static struct decided run_decided(const struct fixture *f, const struct moert_options *options,
                                  uint32_t chunk)
{
    struct decided decided = {.logits = calloc((size_t)N_TOK * f->n_vocab, sizeof(float))};
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_error wrong = {0};
    if (open_engine(f, options, &engine, &wrong) != MOERT_OK ||
        moert_session_create(engine, &session, &wrong) != MOERT_OK ||
        read_all(session, chunk, f->n_vocab, decided.logits, &wrong) != MOERT_OK)
        fail_msg("%s", wrong.message);
    decided.experts = moert_session_decided(session);
    moert_session_free(session);
    decided.neurons = moert_engine_neurons(engine);
    moert_engine_close(engine);
    return decided;
}

/* Both have the same bits and counts, in a small pool, whatever the chunks are. Returns the CPU's counts. */
static struct decided assert_decided(const struct fixture *f, struct moert_options options)
{
    options.device.name = NULL;
    options.device.vram_bytes = 0;
    const struct decided cpu = run_decided(f, &options, N_TOK);
    options.device.name = "cuda";
    options.device.vram_bytes = floor_bytes(f) + 64 * KIB;
    for (uint32_t chunk = 1; chunk <= N_TOK; chunk += 6) {
        const struct decided gpu = run_decided(f, &options, chunk);
        assert_memory_equal(gpu.logits, cpu.logits, (size_t)N_TOK * f->n_vocab * sizeof(float));
        assert_int_equal(gpu.experts.n_taken, cpu.experts.n_taken);
        assert_int_equal(gpu.experts.n_missed, cpu.experts.n_missed);
        assert_int_equal(gpu.experts.n_low, cpu.experts.n_low);
        assert_int_equal(gpu.experts.n_skipped, cpu.experts.n_skipped);
        assert_int_equal(gpu.neurons.n_neuron, cpu.neurons.n_neuron);
        assert_int_equal(gpu.neurons.n_active, cpu.neurons.n_active);
        assert_int_equal(gpu.neurons.active_bytes, cpu.neurons.active_bytes);
        free(gpu.logits);
    }
    free(cpu.logits);
    return cpu;
}

/* Routes, precisions and evictions are the same code on both. */
/* ---- texts ---- */

enum { N_TEXT = 12, N_PROMPT = 9 };

static struct moert_session *open_session(struct moert_engine *engine)
{
    struct moert_session *session = NULL;
    struct moert_error wrong = {0};
    assert_int_equal(moert_session_create(engine, &session, &wrong), MOERT_OK);
    return session;
}

/* Three texts of one generator, the second of which is left in the middle. */
static void write_texts(struct moert_engine *engine, const struct moert_generation *generation,
                        uint32_t texts[3][N_TEXT])
{
    struct moert_session *session = open_session(engine);
    struct moert_generator *generator = NULL;
    struct moert_error wrong = {0};
    if (moert_generator_create(session, generation, &generator, &wrong) != MOERT_OK)
        fail_msg("%s", wrong.message);
    for (uint32_t text = 0; text < 3; text++) {
        uint32_t prompt[N_PROMPT];
        for (uint32_t i = 0; i < N_PROMPT; i++)
            prompt[i] = token_of(i % 4 + text);
        assert_int_equal(moert_generator_start(generator, prompt, N_PROMPT, &wrong), MOERT_OK);
        for (uint32_t i = 0; i < (text == 1 ? N_TEXT / 2 : N_TEXT); i++) {
            enum moert_generated what = MOERT_GENERATED_LENGTH;
            if (moert_generator_next(generator, &texts[text][i], &what, &wrong) != MOERT_OK)
                fail_msg("%s", wrong.message);
            assert_int_equal(what, MOERT_GENERATED_TOKEN);
        }
    }
    moert_generator_free(generator);
    moert_session_free(session);
}

/* Tokens that the device chooses, and those that rules, drafts or typical sets leave to the process. */
static void texts_are_those_of_the_cpu(void **state)
{
    const struct fixture *f = *state;
    static const struct moert_generation settings[] = {
        {.sampler = {.top_p = 1}},
        {.sampler = {.temperature = 1, .top_p = 1, .state = 1}},
        {.sampler = {.temperature = 2, .top_k = 7, .top_p = 1, .state = 2}},
        {.sampler = {.temperature = 1.5f, .top_k = 30, .top_p = 0.8f, .state = 3}},
        {.sampler = {.temperature = 1, .top_p = 0.95f, .min_p = 0.1f, .state = 4}},
        {.sampler = {.temperature = 1, .top_p = 1, .typical_p = 0.5f, .state = 5}},
        {.sampler = {.temperature = 1, .top_p = 0.9f, .state = 6}, .repetition_penalty = 1.3},
        {.sampler = {.temperature = 0.2f, .top_p = 1, .state = 7}, .no_repeat_ngram = 2},
        {.sampler = {.temperature = 0.1f, .top_p = 1, .state = 8}, .draft = MOERT_DRAFT_LOOKUP},
        {.sampler = {.top_p = 1}, .draft = MOERT_DRAFT_LOOKUP},
    };
    struct moert_options options = options_of("cuda:1", 0);
    options.sessions.drafts = true;
    struct moert_engine *gpu = NULL, *cpu = NULL;
    struct moert_error wrong = {0};
    assert_int_equal(open_engine(f, &options, &gpu, &wrong), MOERT_OK);
    options.device.name = NULL;
    assert_int_equal(open_engine(f, &options, &cpu, &wrong), MOERT_OK);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        uint32_t want[3][N_TEXT] = {0}, got[3][N_TEXT] = {0};
        struct moert_generation generation = moert_generation_default(cpu);
        generation.n_tokens = N_TEXT;
        generation.ignore_end = true;
        generation.sampler = settings[i].sampler;
        generation.draft = settings[i].draft;
        generation.no_repeat_ngram = settings[i].no_repeat_ngram;
        if (settings[i].repetition_penalty > 0)
            generation.repetition_penalty = settings[i].repetition_penalty;
        write_texts(cpu, &generation, want);
        write_texts(gpu, &generation, got);
        if (memcmp(want, got, sizeof want) != 0)
            fail_msg("settings %zu: texts differ", i);
    }
    moert_engine_close(gpu);
    moert_engine_close(cpu);
}

/* A token that the device chooses comes to the process without its logits. */
static void chosen_tokens_come_without_logits(void **state)
{
    const struct fixture *f = *state;
    const struct moert_options options = options_of("cuda:1", 0);
    uint32_t texts[2][3][N_TEXT] = {0};
    uint64_t n_bytes[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct moert_engine *engine = NULL;
        struct moert_error wrong = {0};
        assert_int_equal(open_engine(f, &options, &engine, &wrong), MOERT_OK);
        struct moert_generation generation = moert_generation_default(engine);
        generation.n_tokens = N_TEXT;
        generation.ignore_end = true;
        generation.no_repeat_ngram = i == 0 ? 0 : 1000; /* which no text is long enough for */
        const uint64_t before = moec_host_gpu_counts(opened).to_host_bytes;
        write_texts(engine, &generation, texts[i]);
        n_bytes[i] = moec_host_gpu_counts(opened).to_host_bytes - before;
        const bool counts = moec_host_gpu_counts(opened).n_copies > 0;
        moert_engine_close(engine);
        if (!counts) /* a real device */
            skip();
    }
    assert_memory_equal(texts[0], texts[1], sizeof texts[0]);
    const uint64_t n_chosen = 2 * N_TEXT + N_TEXT / 2;
    assert_int_equal(n_bytes[1] - n_bytes[0], n_chosen * (f->n_vocab * sizeof(float) - 2 * sizeof(uint32_t)));
}

static void decisions_are_those_of_the_cpu(void **state)
{
    const struct fixture *f = *state;
    static const struct {
        const char *route, *precision, *evict;
    } cases[] = {{"cache-prior:0.5", NULL, "lru"}, {"max-rank:4", NULL, "lfu"},
                 {"prune:1", NULL, "lru"},         {NULL, "hobbit:0.3:0.8", "lru"},
                 {NULL, "always:0.2:0.9", "lru"},  {"cache-prior:0.3", "hobbit", "lru"},
                 {NULL, "fate:1", "lru"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct moert_options options = options_of(NULL, 0);
        options.decisions.route = cases[i].route;
        options.decisions.precision = cases[i].precision;
        options.buffer.evict = cases[i].evict;
        const struct decided cpu = assert_decided(f, options);
        assert_true(cpu.experts.n_missed > 0);
        assert_true((cpu.experts.n_low > 0) == (cases[i].precision != NULL));
    }
}

/* A copy of the bundle with thresholds, and with a plan of neurons' scales. */
static void put_thresholds(const struct fixture *f, const char *path, float threshold, bool is_planned)
{
    static const uint16_t shares[] = {500};
    struct moec_bundle *bundle = NULL;
    struct moec_sparsity_table table;
    struct moec_sparsity_plan plan = {0};
    MUST(moec_bundle_open(f->path, &bundle, &err));
    const struct moec_config *config = &bundle->config;
    MUST(moec_sparsity_table_create(config, shares, 1, &table, &err));
    for (uint32_t i = 0; i < table.n_layer * table.n_expert; i++)
        table.thresholds[i] = threshold * (float)(1 + i % 3);
    if (is_planned) {
        MUST(moec_sparsity_plan_create(config, MOEC_SPARSITY_BY_NEURON, &plan, &err));
        plan.threshold = threshold / 4;
        for (uint32_t i = 0; i < plan.n_layer * plan.n_expert * plan.n_scale; i++)
            plan.scales[i] = (uint16_t)(0x3e00 + i % 256); /* 0.125 to 0.5 */
        plan.certificate = (struct moec_certificate){
            .present = true,
            .metric = "perplexity",
            .loss = 0.01,
            .n_sequence = 1,
            .sequence = {{.n_bytes = 7, .result = MOEC_SEQUENCE_PASSED, .is_chosen = true}}};
        plan.traffic =
            (struct moec_sparsity_traffic){.active_share = 0.3, .token_bytes = 5, .dense_token_bytes = 9};
    }
    MUST(moec_bundle_put_sparsity(f->path, &table, is_planned ? &plan : NULL, false, path, &err));
    moec_sparsity_table_release(&table);
    if (is_planned)
        moec_sparsity_plan_release(&plan);
    moec_bundle_close(bundle);
}

/* Neurons that are left out, and their counts. */
static void sparsity_is_that_of_the_cpu(void **state)
{
    const struct fixture *f = *state;
    for (int is_planned = 0; is_planned < 2; is_planned++) {
        struct fixture sparse = *f;
        struct moert_options options = options_of(NULL, 0);
        sparse.path = temporary_path(f->folder, is_planned ? "planned.moec" : "sparse.moec");
        put_thresholds(f, sparse.path, 0.1f, is_planned);
        options.decisions.sparsity = is_planned ? 0 : 0.5;
        const struct decided cpu = assert_decided(&sparse, options);
        assert_true(cpu.neurons.n_active > cpu.neurons.n_neuron / 20);
        assert_true(cpu.neurons.n_active < cpu.neurons.n_neuron - cpu.neurons.n_neuron / 20);
        assert_true(cpu.neurons.is_planned == is_planned);
        free(sparse.path);
    }
}

/* The sample, whose records are large beside what gathering takes: neurons come alone, within the limit, and
 * the device says what whole records would have been. */
static void neurons_come_alone_to_a_device(void **state)
{
    const struct fixture *f = *state;
    struct fixture sample = *f, sparse = *f;
    struct moert_options options = options_of(NULL, 0);
    sample.path = temporary_path(f->folder, "sample.moec");
    sparse.path = temporary_path(f->folder, "sample-sparse.moec");
    fixture_bundle_write("datasets/sample/model", sample.path, 4, true);
    put_thresholds(&sample, sparse.path, 0.5f, false);
    options.sessions.n_sessions = 1;
    options.decisions.sparsity = 0.5;
    struct moert_engine *engine = NULL;
    struct moert_error wrong = {0};
    assert_int_equal(open_engine(&sparse, &options, &engine, &wrong), MOERT_OK);
    sparse.n_vocab = moert_engine_info(engine).model.n_vocab;
    moert_engine_close(engine);
    const struct decided cpu = run_decided(&sparse, &options, 1);
    options.device.name = "cuda";
    options.device.vram_bytes = floor_bytes(&sparse) + 1500 * KIB;
    for (int whole = 0; whole < 2; whole++) {
        struct moert_session *session = NULL;
        options.device.transfer.copies_whole = whole;
        const struct decided gpu = run_decided(&sparse, &options, 1);
        assert_memory_equal(gpu.logits, cpu.logits, (size_t)N_TOK * sparse.n_vocab * sizeof(float));
        assert_int_equal(gpu.neurons.n_active, cpu.neurons.n_active);
        assert_int_equal(gpu.neurons.active_bytes, cpu.neurons.active_bytes);
        assert_int_equal(open_engine(&sparse, &options, &engine, &wrong), MOERT_OK);
        assert_int_equal(moert_session_create(engine, &session, &wrong), MOERT_OK);
        assert_int_equal(read_all(session, 1, sparse.n_vocab, gpu.logits, &wrong), MOERT_OK);
        const struct moert_pool_stats stats = moert_engine_pool_stats(engine);
        assert_true(stats.misses > 0 && (stats.record_bytes > 0) == !whole);
        assert_true(whole || (stats.chunk_bytes > 0 && stats.copied_bytes < 2 * stats.record_bytes));
        assert_true(moec_host_gpu_counts(opened).peak_bytes <= moert_engine_info(engine).device.vram_bytes);
        moert_session_free(session);
        moert_engine_close(engine);
        free(gpu.logits);
    }
    free(cpu.logits);
    free(sample.path);
    free(sparse.path);
}

/* --memory and --vram at once: what is pinned is within the one, what the device has within the other, while
 * guesses come and go. */
static void both_limits_hold(void **state)
{
    const struct fixture *f = *state;
    struct moert_options options = options_of(NULL, 0);
    struct moert_floor least = {0};
    struct moert_error wrong = {0};
    uint64_t n_prefetch = 0;
    options.buffer.predict = "gate";
    options.buffer.preload_count = 2;
    options.device.name = "cuda";
    float *logits = calloc((size_t)N_TOK * f->n_vocab, sizeof *logits);
    for (uint32_t i = 0; i < 3; i++) {
        struct moert_engine *engine = NULL;
        struct moert_session *session = NULL;
        options.device.vram_bytes = floor_bytes(f) + (16 + 60 * i) * KIB;
        options.memory_bytes = 0;
        assert_int_equal(moert_engine_floor(f->path, &options, &least, &wrong), MOERT_OK);
        options.memory_bytes = least.memory_bytes + 300 * KIB; /* what opening adds to the process so far */
        if (open_engine(f, &options, &engine, &wrong) != MOERT_OK ||
            moert_session_create(engine, &session, &wrong) != MOERT_OK ||
            read_all(session, 3, f->n_vocab, logits, &wrong) != MOERT_OK)
            fail_msg("%s", wrong.message);
        assert_expected(f, logits);
        const struct moert_info info = moert_engine_info(engine);
        const struct moec_host_gpu_counts counts = moec_host_gpu_counts(opened);
        assert_true(info.device.vram_bytes <= options.device.vram_bytes &&
                    counts.peak_bytes <= info.device.vram_bytes);
        assert_true(counts.peak_pinned_bytes <= options.memory_bytes - info.memory.base_bytes);
        assert_true(counts.peak_pinned_bytes >= info.memory.expert_buffer_bytes);
        n_prefetch += moert_engine_pool_stats(engine).useful_guesses;
        moert_session_free(session);
        moert_engine_close(engine);
    }
    assert_true(n_prefetch > 0);
    free(logits);
}

/* With times that are measured, the first missed expert is the processor's; with given ones all are, or none,
 * or by turns where a copy takes as long. */
static void the_processor_helps_a_session(void **state)
{
    const struct fixture *f = *state;
    static const struct moert_transfer transfers[] = {
        {0},
        {.cpu_byte_ns = 1e-6, .copy_byte_ns = 1},
        {.cpu_byte_ns = 1e6, .copy_byte_ns = 1},
        {.cpu_byte_ns = 1, .copy_byte_ns = 1e-6, .gpu_byte_ns = 2},
    };
    float *logits = calloc((size_t)N_TOK * f->n_vocab, sizeof *logits);
    for (size_t i = 0; i < sizeof transfers / sizeof *transfers; i++) {
        struct moert_options options = options_of("cuda", floor_bytes(f) + 16 * KIB);
        struct moert_engine *engine = NULL;
        struct moert_session *session = NULL;
        struct moert_error wrong = {0};
        options.sessions.n_sessions = 1;
        options.device.cooperates = true;
        options.device.transfer = transfers[i];
        if (open_engine(f, &options, &engine, &wrong) != MOERT_OK ||
            moert_session_create(engine, &session, &wrong) != MOERT_OK ||
            read_all(session, 1, f->n_vocab, logits, &wrong) != MOERT_OK)
            fail_msg("%s", wrong.message);
        assert_expected(f, logits);
        const struct moert_pool_stats stats = moert_engine_pool_stats(engine);
        assert_true(stats.computed_by_cpu <= stats.misses);
        assert_true((stats.computed_by_cpu > 0) == (i != 2));
        assert_true((stats.computed_by_cpu == stats.misses) == (i == 1) || i == 0);
        moert_session_free(session);
        moert_engine_close(engine);
    }
    free(logits);
}

/* With neurons left out: outputs and counts are the same at any chunk, as experts come whole. */
static void bf16_leaves_neurons_out_at_any_chunk(void **state)
{
    const struct fixture *f = *state;
    struct fixture sparse = *f;
    struct moert_options options = options_of("cuda", 0);
    sparse.path = temporary_path(f->folder, "sparse-bf16.moec");
    put_thresholds(f, sparse.path, 0.1f, false);
    options.sessions.n_sessions = 1;
    options.arithmetic = "bf16";
    options.decisions.sparsity = 0.5;
    const struct decided all = run_decided(&sparse, &options, N_TOK);
    assert_true(all.neurons.n_active > 0 && all.neurons.n_active < all.neurons.n_neuron);
    for (uint32_t chunk = 1; chunk < N_TOK; chunk += 6) {
        const struct decided cut = run_decided(&sparse, &options, chunk);
        assert_memory_equal(cut.logits, all.logits, (size_t)N_TOK * f->n_vocab * sizeof(float));
        assert_int_equal(cut.neurons.n_active, all.neurons.n_active);
        free(cut.logits);
    }
    free(all.logits);
    free(sparse.path);
}

/* The same within any limit and by any chunk, and not the canonical bits. */
static void bf16_is_the_devices_own(void **state)
{
    const struct fixture *f = *state;
    const size_t n = (size_t)N_TOK * f->n_vocab;
    float *first = calloc(n, sizeof *first), *logits = calloc(n, sizeof *logits);
    const uint64_t least = floor_bytes(f) + 256 * KIB;
    for (uint32_t chunk = 1; chunk <= N_TOK; chunk += 6) {
        struct moert_options options = options_of("cuda", chunk == 1 ? 0 : least);
        struct moert_engine *engine = NULL;
        struct moert_session *session = NULL;
        struct moert_error wrong = {0};
        options.arithmetic = "bf16";
        assert_int_equal(open_engine(f, &options, &engine, &wrong), MOERT_OK);
        assert_string_equal(moert_engine_info(engine).compute.arithmetic, "bf16");
        assert_int_equal(moert_session_create(engine, &session, &wrong), MOERT_OK);
        assert_int_equal(read_all(session, chunk, f->n_vocab, chunk == 1 ? first : logits, &wrong), MOERT_OK);
        assert_true(moec_host_gpu_counts(opened).peak_bytes <= moert_engine_info(engine).device.vram_bytes);
        if (chunk > 1)
            assert_memory_equal(logits, first, n * sizeof *logits);
        moert_session_free(session);
        moert_engine_close(engine);
    }
    assert_memory_not_equal(first, f->expected, n * sizeof *first);
    free(first);
    free(logits);
}

static void assert_refused(const struct fixture *f, const struct moert_options *options,
                           enum moert_status status, const char *words)
{
    struct moert_engine *engine = NULL;
    struct moert_error wrong = {0};
    const enum moert_status got = open_engine(f, options, &engine, &wrong);
    if (got != status || strstr(wrong.message, words) == NULL)
        fail_msg("status %d, '%s', expected %d and '%s'", (int)got, wrong.message, (int)status, words);
}

static void what_cannot_be_is_refused_in_words(void **state)
{
    const struct fixture *f = *state;
    struct moert_options options = options_of("cuda", KIB);
    assert_refused(f, &options, MOERT_ERR_BUDGET, "not enough: dense weights");
    options.device.vram_bytes = (uint64_t)1 << 50;
    assert_refused(f, &options, MOERT_ERR_BUDGET, "more than its free memory");
    options = options_of("cuda:2", 0);
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED, "no device 2");
    options = options_of("vulkan", 0);
    assert_refused(f, &options, MOERT_ERR_USAGE, "device 'vulkan' is unknown");
    options = options_of("cuda:", 0);
    assert_refused(f, &options, MOERT_ERR_USAGE, "expected 'cuda' or 'cuda:N'");
    options = options_of(NULL, KIB);
    assert_refused(f, &options, MOERT_ERR_USAGE, "no device");
    options = options_of("cuda", 0);
    options.device.cooperates = true;
    assert_refused(f, &options, MOERT_ERR_USAGE, "needs a device and a single session");
    options = options_of("cuda", 0);
    options.arithmetic = "int8";
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED, "int8");
    options = options_of("cuda", 0);
    options.buffer.mode = "sti";
    options.sessions.n_sessions = 1;
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED, "in order");
    options = options_of(NULL, 0);
    options.arithmetic = "bf16";
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED, "'bf16' runs only on a GPU's tensor cores");
    options = options_of("cuda", 0);
    options.arithmetic = "bf16";
    options.sessions.n_sessions = 1;
    options.device.cooperates = true;
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED, "bf16, which the processor cannot run");
    options.device.cooperates = false;
    faults.capability = 75;
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED,
                   "'stand-in for tests' has compute capability 7.5, but the arithmetic 'bf16' needs 8.0");
    faults.capability = 0;
    options = options_of("cuda", 0);
    options.decisions.precision = "shared";
    assert_refused(f, &options, MOERT_ERR_UNSUPPORTED, "a device keeps experts in a pool of its own");
}

/* Without the library the engine says where it would have to be. */
static void a_missing_library_is_one_sentence(void **state)
{
    const struct fixture *f = *state;
    const struct moert_options options = options_of("cuda", 0);
    struct moert_engine *engine = NULL;
    struct moert_error wrong = {0};
    const enum moert_status status = moert_engine_open(f->path, &options, &engine, &wrong);
    if (status == MOERT_OK) { /* a machine with a device, and its library in the system's folders */
        moert_engine_close(engine);
        return;
    }
    assert_int_equal(status, MOERT_ERR_UNSUPPORTED);
    assert_true(strstr(wrong.message, "libmoert-cuda.so") != NULL || strstr(wrong.message, "CUDA") != NULL);
    assert_null(strchr(wrong.message, '\n'));
}

static void memory_that_runs_out_leaves_nothing(void **state)
{
    const struct fixture *f = *state;
    enum moert_status status = MOERT_ERR_MEMORY;
    for (uint64_t at = 1; status != MOERT_OK; at++) {
        const struct moert_options options = options_of("cuda", 0);
        struct moert_engine *engine = NULL;
        struct moert_session *session = NULL;
        struct moert_error wrong = {0};
        faults = (struct moec_host_gpu_faults){.fail_alloc_at = at};
        status = open_engine(f, &options, &engine, &wrong);
        if (status == MOERT_OK)
            status = moert_session_create(engine, &session, &wrong);
        moert_session_free(session);
        moert_engine_close(engine);
        assert_true(status == MOERT_OK || status == MOERT_ERR_MEMORY);
        assert_true(at < 40);
    }
    faults = (struct moec_host_gpu_faults){0};
}

static void a_lost_device_ends_its_sessions_and_nothing_else(void **state)
{
    const struct fixture *f = *state;
    const struct moert_options options = options_of("cuda", 0);
    float *logits = calloc((size_t)N_TOK * f->n_vocab, sizeof *logits);
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL, *on_cpu = NULL;
    struct moert_error wrong = {0};
    assert_int_equal(open_engine(f, &options, &engine, &wrong), MOERT_OK);
    assert_int_equal(moert_session_create(engine, &session, &wrong), MOERT_OK);
    moec_host_gpu_set_faults(opened, &(struct moec_host_gpu_faults){.lose_at = 50});
    assert_int_equal(read_all(session, 5, f->n_vocab, logits, &wrong), MOERT_ERR_IO);
    assert_non_null(strstr(wrong.message, "lost"));
    assert_int_equal(read_all(session, 5, f->n_vocab, logits, &wrong), MOERT_ERR_IO);
    moert_session_free(session);
    moert_engine_close(engine);
    wrong = (struct moert_error){0};
    assert_int_equal(moert_session_create(f->cpu, &on_cpu, &wrong), MOERT_OK);
    assert_int_equal(read_all(on_cpu, 5, f->n_vocab, logits, &wrong), MOERT_OK);
    assert_expected(f, logits);
    moert_session_free(on_cpu);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_gives_the_same_bits_within_its_limit),
        cmocka_unit_test(texts_are_those_of_the_cpu),
        cmocka_unit_test(chosen_tokens_come_without_logits),
        cmocka_unit_test(decisions_are_those_of_the_cpu),
        cmocka_unit_test(sparsity_is_that_of_the_cpu),
        cmocka_unit_test(neurons_come_alone_to_a_device),
        cmocka_unit_test(both_limits_hold),
        cmocka_unit_test(the_processor_helps_a_session),
        cmocka_unit_test(bf16_is_the_devices_own),
        cmocka_unit_test(bf16_leaves_neurons_out_at_any_chunk),
        cmocka_unit_test(what_cannot_be_is_refused_in_words),
        cmocka_unit_test(a_missing_library_is_one_sentence),
        cmocka_unit_test(memory_that_runs_out_leaves_nothing),
        cmocka_unit_test(a_lost_device_ends_its_sessions_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
