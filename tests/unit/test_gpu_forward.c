/* The runtime on a GPU, on machines without one: its kernels compiled for the processor, on a device that
 * does work in orders drawn from a seed. Logits are those of the CPU bit for bit, with any pool of experts in
 * any cache, however the tokens are cut; and whatever a device refuses or however it ends, a message comes
 * and nothing is left over. */
#include "tests/unit/fixture_bundle.h"
#include "tests/unit/fixture_model.h"

#include "formats/bundle/bundle.h"
#include "runtime/cuda/blocks/blocks.h"
#include "runtime/cuda/gpu_backend.h"
#include "runtime/cuda/gpu_experts.h"
#include "runtime/cuda/gpu_place.h"
#include "runtime/cuda/host/host_gpu.h"
#include "runtime/experts/expert_cache.h"

#include <math.h>

#define MAX_TOKENS 80u

static const struct moec_gpu_kernels kernels = MOEC_GPU_KERNELS;

struct model {
    const char *name;
    char *folder, *path;
    struct moec_bundle *bundle;
    struct moec_model *model;
    uint32_t tokens[MAX_TOKENS], n_tok;
    uint32_t n_source; /* of these, what an encoder reads first; 0 in a decoder alone */
    float *expected;   /* (n_tok, n_vocab), by the CPU */
};

/* ---- the CPU ---- */

static struct moec_expert_cache *make_cache(const struct model *m, uint64_t buffer_bytes)
{
    struct moec_expert_cache *cache = NULL;
    const struct moec_expert_cache_options options = {.buffer.n_bytes = buffer_bytes};
    MUST(moec_expert_cache_create(m->bundle, &options, &cache, &err));
    return cache;
}

/* Logits of all tokens, in steps of `chunk`, after the source where there is one. */
static enum moec_status read_tokens(const struct model *m, struct moec_session *session, uint32_t chunk,
                                    float *logits, struct moec_error *wrong)
{
    uint32_t at[MAX_TOKENS];
    for (uint32_t i = 0; i < MAX_TOKENS; i++)
        at[i] = i;
    if (m->n_source > 0)
        MOEC_TRY(moec_session_encode(session, m->tokens, m->n_source, wrong));
    for (uint32_t done = 0; done < m->n_tok; done += chunk) {
        const uint32_t n = m->n_tok - done < chunk ? m->n_tok - done : chunk;
        MOEC_TRY(moec_session_step(session, m->tokens + done, n, at, n,
                                   logits + (size_t)done * m->bundle->config.n_vocab, wrong));
    }
    return MOEC_OK;
}

static float *make_logits(const struct model *m)
{
    float *logits = calloc((size_t)m->n_tok * m->bundle->config.n_vocab, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

static void open_model_rows(struct model *m, const char *family, uint32_t dense_bits, bool is_mixed,
                            uint32_t n_tok, uint32_t n_frequent)
{
    char fixture[256];
    struct moec_dense dense = {0};
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    snprintf(fixture, sizeof fixture, "tests/fixtures/families/%s", family);
    *m = (struct model){.name = family, .n_tok = n_tok, .folder = temporary_folder()};
    m->path = temporary_path(m->folder, "model.moec");
    fixture_bundle_write_rows(fixture, m->path, dense_bits, is_mixed, n_frequent);
    MUST(moec_bundle_open(m->path, &m->bundle, &err));
    MUST(moec_bundle_load_dense(m->bundle, &dense, &err));
    MUST(moec_model_create(&m->bundle->config, &dense, &m->model, &err));
    if (moec_config_is_encoder_decoder(&m->bundle->config))
        m->n_source = n_tok - n_tok / 4;
    uint64_t random = 99;
    for (uint32_t i = 0; i < n_tok; i++)
        m->tokens[i] = random_u32(&random) % m->bundle->config.n_vocab;
    struct moec_expert_cache *cache = make_cache(m, moec_record_sizes_of(m->bundle, 0).all_bytes);
    MUST(moec_forward_init(&forward, m->model, moec_kernels_best(), 1, moec_expert_cache_experts(cache),
                           n_tok, &err));
    MUST(moec_session_create(&forward, n_tok, &session, &err));
    m->expected = make_logits(m);
    MUST(read_tokens(m, session, n_tok, m->expected, &err));
    moec_session_free(session);
    moec_forward_release(&forward);
    moec_expert_cache_free(cache);
}

static void open_model(struct model *m, const char *family, uint32_t dense_bits, bool is_mixed,
                       uint32_t n_tok)
{
    open_model_rows(m, family, dense_bits, is_mixed, n_tok, 0);
}

static void close_model(struct model *m)
{
    moec_model_free(m->model);
    moec_bundle_close(m->bundle);
    temporary_remove(m->folder);
    free(m->path);
    free(m->expected);
}

/* ---- the device ---- */

/* Pool and cache hold so many of the largest records. */
struct shape {
    uint32_t n_pool, n_cache, max_tokens;
    uint32_t n_prefetch; /* after each answer, by the gate; 0 = none */
    double cpu_byte_ns;  /* against 1 of a copy, where the processor computes experts too; 0 = not */
    bool is_bf16;        /* in that arithmetic */
};

struct rig {
    const struct model *m;
    struct moec_gpu *gpu;
    struct moec_expert_cache *cache;
    struct moec_gpu_model *model;
    struct moec_gpu_experts *experts;
    struct moec_gpu_backend *backend;
    struct moec_forward forward;
    struct moec_session *session;
};

static enum moec_status make_rig(struct rig *rig, const struct shape *shape, struct moec_error *wrong)
{
    const struct moec_bundle *bundle = rig->m->bundle;
    MOEC_TRY(rig->gpu->ops->pin(rig->gpu, moec_expert_cache_memory(rig->cache),
                                moec_expert_cache_buffer_bytes(rig->cache), "the cache", wrong));
    MOEC_TRY(moec_gpu_model_create(rig->gpu, rig->m->model, NULL, &rig->model, wrong));
    const struct moec_gpu_experts_setup setup = {
        .gpu = rig->gpu,
        .compute = rig->model->stream,
        .behind = moec_expert_cache_experts(rig->cache),
        .bundle = bundle,
        .guesses = {.predictor = shape->n_prefetch > 0 ? &moec_predict_gate : NULL,
                    .count = shape->n_prefetch,
                    .piece_bytes = 512},
        .cooperation = {.is_on = shape->cpu_byte_ns > 0,
                        .cpu_byte_ns = shape->cpu_byte_ns,
                        .copy_byte_ns = 1},
        .pool.n_bytes = shape->n_pool * moec_gpu_pool_sizes_of(bundle, &(uint32_t){0}, 1).largest_bytes};
    MOEC_TRY(moec_gpu_experts_create(&setup, &rig->experts, wrong));
    MOEC_TRY(moec_gpu_backend_create(rig->model, &kernels, shape->max_tokens, shape->cpu_byte_ns > 0,
                                     &rig->backend, wrong));
    if (shape->is_bf16)
        MOEC_TRY(moec_gpu_backend_use_bf16(rig->backend, wrong));
    MOEC_TRY(moec_forward_init(&rig->forward, rig->m->model, moec_kernels_best(), 1,
                               moec_gpu_experts_source(rig->experts), shape->max_tokens, wrong));
    rig->forward.backend = moec_gpu_backend_of(rig->backend);
    return moec_session_create(&rig->forward, rig->m->n_tok, &rig->session, wrong);
}

static enum moec_status open_rig(struct rig *rig, const struct model *m, uint64_t seed,
                                 const struct shape *shape, const struct moec_host_gpu_faults *faults,
                                 struct moec_error *wrong)
{
    *rig = (struct rig){.m = m};
    moec_blocks_divert(moec_host_gpu_launch);
    MUST(moec_host_gpu_open(seed, &rig->gpu, &err));
    if (faults != NULL)
        moec_host_gpu_set_faults(rig->gpu, faults);
    rig->cache = make_cache(m, shape->n_cache * moec_record_sizes_of(m->bundle, 0).largest_bytes);
    return make_rig(rig, shape, wrong);
}

static void close_rig(struct rig *rig)
{
    moec_session_free(rig->session);
    moec_forward_release(&rig->forward);
    moec_gpu_backend_free(rig->backend);
    moec_gpu_experts_free(rig->experts);
    moec_gpu_model_free(rig->model);
    rig->gpu->ops->unpin(rig->gpu, moec_expert_cache_memory(rig->cache));
    moec_expert_cache_free(rig->cache);
    const struct moec_host_gpu_counts counts = moec_host_gpu_counts(rig->gpu);
    assert_int_equal(counts.allocations + counts.pinned + counts.streams + counts.events, 0);
    rig->gpu->ops->close(rig->gpu);
}

static void assert_run(const struct model *m, uint64_t seed, const struct shape *shape, uint32_t chunk)
{
    struct rig rig;
    char what[200];
    float *logits = make_logits(m);
    MUST(open_rig(&rig, m, seed, shape, NULL, &err));
    MUST(read_tokens(m, rig.session, chunk, logits, &err));
    snprintf(what, sizeof what, "%s, seed %u, pool of %u, cache of %u, steps of %u in batches of %u", m->name,
             (unsigned)seed, shape->n_pool, shape->n_cache, chunk, shape->max_tokens);
    assert_same_bits(logits, m->expected, (size_t)m->n_tok * m->bundle->config.n_vocab, what);
    close_rig(&rig);
    free(logits);
}

/* ---- tests ---- */

static void assert_families(const char *const *names, size_t n)
{
    static const struct shape whole = {.n_pool = 200, .n_cache = 200, .max_tokens = MAX_TOKENS},
                              small = {.n_pool = 3, .n_cache = 4, .max_tokens = 7, .n_prefetch = 2},
                              single = {.n_pool = 1, .n_cache = 1, .max_tokens = 1};
    for (size_t f = 0; f < n; f++) {
        struct model m;
        open_model(&m, names[f], f % 2 == 0 ? 16 : 4, true, f % 3 == 0 ? 70 : 19);
        assert_run(&m, f, &whole, MAX_TOKENS);
        assert_run(&m, f + 100, &small, 11);
        if (f % 2 == 1)
            assert_run(&m, f + 200, &single, 1);
        close_model(&m);
    }
}

static void logits_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe",
                                        "qwen2_moe-tied",
                                        "olmoe",
                                        "olmoe-b",
                                        "mixtral",
                                        "mixtral-window",
                                        "qwen3_moe",
                                        "qwen2_moe-window",
                                        "dots1",
                                        "ernie4_5_moe",
                                        "exaone_moe",
                                        "glm4_moe",
                                        "granitemoe",
                                        "granitemoeshared",
                                        "hunyuan_v1_moe",
                                        "minicpm",
                                        "minimax_m2",
                                        "olmoe-fp8",
                                        "deepseek",
                                        "qwen3_moe-yarn",
                                        "qwen3_moe-dynamic",
                                        "qwen3_moe-longrope",
                                        "phimoe-long"};
    assert_families(names, sizeof names / sizeof *names);
}

/* LayerNorms, norms after, around and of the router's own, biases of experts and of dense MLPs, attention in
 * chunks, values that are keys, learned positions, experts that tokens name, full experts. */
static void norms_biases_and_routers_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"phimoe", "flex_olmo", "afmoe",    "gemma4",       "gpt_oss",
                                        "gptsan", "llama4",    "hash_moe", "gpt_oss-mxfp4"};
    assert_families(names, sizeof names / sizeof *names);
}

/* Of the embedding and of the head, whose logits have biases in the last one. */
static void rows_in_two_matrices_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe-tied", "olmoe", "phimoe"};
    static const struct shape whole = {.n_pool = 200, .n_cache = 200, .max_tokens = MAX_TOKENS},
                              single = {.n_pool = 1, .n_cache = 1, .max_tokens = 1};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct model m;
        open_model_rows(&m, names[f], 4, true, 19, 40);
        assert_run(&m, f, &whole, MAX_TOKENS);
        assert_run(&m, f + 100, &single, 1);
        close_model(&m);
    }
}

static void latents_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"deepseek_v2", "deepseek_v3", "mistral4", "glm4_moe_lite",
                                        "longcat_flash"};
    assert_families(names, sizeof names / sizeof *names);
}

static void running_states_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"lfm2_moe",         "qwen3_next", "qwen3_5_moe",
                                        "granitemoehybrid", "nemotron_h", "kimi_linear"};
    assert_families(names, sizeof names / sizeof *names);
}

static void encoders_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const char *const names[] = {"switch", "switch-full", "switch-gated", "switch-gelu"};
    assert_families(names, sizeof names / sizeof *names);
}

static float *bf16_logits(const struct model *m, uint64_t seed, struct shape shape, uint32_t chunk)
{
    struct rig rig;
    float *logits = make_logits(m);
    shape.is_bf16 = true;
    MUST(open_rig(&rig, m, seed, &shape, NULL, &err));
    MUST(read_tokens(m, rig.session, chunk, logits, &err));
    close_rig(&rig);
    return logits;
}

/* The mean difference of logits as a share of how far they spread, over all tokens. */
static double mean_difference(const struct model *m, const float *logits)
{
    const size_t n_vocab = m->bundle->config.n_vocab;
    double sum = 0;
    for (uint32_t t = 0; t < m->n_tok; t++) {
        const float *want = m->expected + t * n_vocab, *got = logits + t * n_vocab;
        double least = (double)want[0], most = (double)want[0], difference = 0;
        for (size_t i = 0; i < n_vocab; i++) {
            least = fmin(least, (double)want[i]);
            most = fmax(most, (double)want[i]);
            difference += fabs((double)want[i] - (double)got[i]);
        }
        sum += difference / (double)n_vocab / (most - least);
    }
    return sum / m->n_tok;
}

/* In bf16 tokens alone, a few and many together have the same logits, with any pool; they are near the
 * canonical ones and are not these. */
static void bf16_is_the_same_at_every_chunking(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe",  "qwen2_moe",   "mixtral-window", "gpt_oss-mxfp4", "gemma4",
                                        "llama4", "deepseek_v3", "qwen3_next",     "nemotron_h",    "switch"};
    static const struct shape whole = {.n_pool = 200, .n_cache = 200, .max_tokens = MAX_TOKENS},
                              small = {.n_pool = 3, .n_cache = 4, .max_tokens = 7, .n_prefetch = 2},
                              single = {.n_pool = 1, .n_cache = 1, .max_tokens = 1};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct model m;
        open_model(&m, names[f], f % 2 == 0 ? 16 : 4, true, f == 0 ? MAX_TOKENS : 20);
        float *all = bf16_logits(&m, f, whole, MAX_TOKENS), *few = bf16_logits(&m, f + 100, small, 7),
              *one = bf16_logits(&m, f + 200, single, 1);
        const size_t n = (size_t)m.n_tok * m.bundle->config.n_vocab;
        assert_same_bits(few, all, n, names[f]);
        assert_same_bits(one, all, n, names[f]);
        const double difference = mean_difference(&m, all);
        if (!(difference > 0 && difference < 0.02))
            fail_msg("%s: logits differ from the canonical ones by %g of their spread", names[f], difference);
        free(all);
        free(few);
        free(one);
        close_model(&m);
    }
}

/* Two passes over a model on a device for measuring, one canonical and one in bf16, that take steps in turn:
 * the one's logits stay the CPU's, the other's are those of running in bf16. */
static void measuring_in_bf16_is_running_in_it(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2_moe", "deepseek_v2", "qwen3_next", "switch-full"};
    static const struct shape whole = {.n_pool = 200, .n_cache = 200, .max_tokens = MAX_TOKENS};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        struct model m;
        struct moec_gpu *gpu = NULL;
        struct moec_gpu_place *place = NULL;
        struct moec_forward forwards[2] = {{0}};
        struct moec_session *sessions[2] = {NULL};
        open_model(&m, names[f], f % 2 == 0 ? 16 : 4, true, 20);
        const struct moec_record_sizes sizes = moec_record_sizes_of(m.bundle, 0);
        struct moec_expert_cache *cache = make_cache(&m, sizes.all_bytes);
        float *run = bf16_logits(&m, f, whole, MAX_TOKENS), *logits[2] = {make_logits(&m), make_logits(&m)};
        moec_blocks_divert(moec_host_gpu_launch);
        MUST(moec_host_gpu_open(f, &gpu, &err));
        MUST(moec_gpu_place_create(gpu, &kernels, 0, &place, &err));
        MUST(moec_gpu_place_load(place, m.model, sizes.largest_bytes, &err));
        MUST(moec_forward_init(&forwards[0], m.model, moec_kernels_best(), 1,
                               moec_expert_cache_experts(cache), MAX_TOKENS, &err));
        forwards[1] = forwards[0];
        MUST(moec_forward_use_arithmetic(&forwards[1], MOEC_ARITHMETIC_BF16, &err));
        for (int i = 0; i < 2; i++)
            MUST(moec_session_create(&forwards[i], m.n_tok, &sessions[i], &err));
        for (int i = 0; i < 2 && m.n_source > 0; i++)
            MUST(moec_session_encode(sessions[i], m.tokens, m.n_source, &err));
        for (uint32_t t = 0; t < m.n_tok; t++)
            for (int i = 0; i < 2; i++)
                MUST(moec_session_step(sessions[i], m.tokens + t, 1, &(uint32_t){0}, 1,
                                       logits[i] + t * m.bundle->config.n_vocab, &err));
        const size_t n = (size_t)m.n_tok * m.bundle->config.n_vocab;
        assert_same_bits(logits[0], m.expected, n, names[f]);
        assert_same_bits(logits[1], run, n, names[f]);
        assert_memory_not_equal(run, m.expected, n * sizeof *run);
        for (int i = 0; i < 2; i++) {
            moec_session_free(sessions[i]);
            free(logits[i]);
        }
        free(run);
        moec_forward_release(&forwards[0]);
        moec_expert_cache_free(cache);
        close_model(&m);
        moec_gpu_place_free(place);
        gpu->ops->close(gpu);
    }
}

/* What is missed in VRAM and in memory, evicted while it is computed with, read while it is guessed. */
static void any_order_makes_the_same_bits(void **state)
{
    (void)state;
    struct model m;
    open_model(&m, "olmoe", 4, true, 9);
    for (uint32_t seed = 0; seed < 12; seed++) {
        const struct shape shape = {.n_pool = 1 + seed % 5,
                                    .n_cache = 1 + seed % 3,
                                    .max_tokens = 1 + seed % 4,
                                    .n_prefetch = seed % 2};
        assert_run(&m, seed, &shape, 1 + seed % 6);
    }
    close_model(&m);
}

/* Guesses are copied beside all that, piece by piece: they come in time, or late, or leave on their way. */
static void prefetches_change_nothing(void **state)
{
    (void)state;
    struct model m;
    struct moec_gpu_experts_counters sum = {0};
    open_model(&m, "olmoe", 4, true, 9);
    float *logits = make_logits(&m);
    for (uint32_t seed = 0; seed < 16; seed++) {
        const struct shape shape = {.n_pool = 1 + seed % 6,
                                    .n_cache = 1 + seed % 9,
                                    .max_tokens = 1 + seed % 3,
                                    .n_prefetch = 1 + seed % 4};
        struct rig rig;
        MUST(open_rig(&rig, &m, seed, &shape, NULL, &err));
        for (uint32_t turn = 0; turn < 3; turn++) {
            moec_session_truncate(rig.session, 0);
            MUST(read_tokens(&m, rig.session, 1 + seed % 4, logits, &err));
            assert_same_bits(logits, m.expected, (size_t)m.n_tok * m.bundle->config.n_vocab, "with guesses");
        }
        const struct moec_gpu_experts_counters counters = moec_gpu_experts_counters(rig.experts);
        assert_true(counters.guessed_bytes <= counters.copied_bytes);
        sum.useful_guesses += counters.useful_guesses;
        sum.wasted_guesses += counters.wasted_guesses;
        sum.guessed_bytes += counters.guessed_bytes;
        close_rig(&rig);
    }
    assert_true(sum.useful_guesses > 0 && sum.wasted_guesses > 0 && sum.guessed_bytes > 0);
    free(logits);
    close_model(&m);
}

/* The processor computes all that is missed, some of it, or nothing: one result. */
static void the_processor_helps_with_the_same_bits(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen2_moe", "gpt_oss", "gemma4"};
    static const double costs[] = {1e-6, 0.6, 1e6};
    for (size_t f = 0; f < 3; f++) {
        struct model m;
        open_model(&m, families[f], 4, true, 9);
        float *logits = make_logits(&m);
        for (uint32_t seed = 0; seed < 6; seed++) {
            const struct shape shape = {.n_pool = 2 + seed % 3,
                                        .n_cache = 1 + seed,
                                        .max_tokens = 1 + seed % 3,
                                        .n_prefetch = seed % 2,
                                        .cpu_byte_ns = costs[seed % 3]};
            struct rig rig;
            MUST(open_rig(&rig, &m, seed, &shape, NULL, &err));
            MUST(read_tokens(&m, rig.session, 1 + seed % 4, logits, &err));
            assert_same_bits(logits, m.expected, (size_t)m.n_tok * m.bundle->config.n_vocab, families[f]);
            const struct moec_gpu_experts_counters counters = moec_gpu_experts_counters(rig.experts);
            assert_true(seed % 3 == 0   ? counters.computed_here == counters.misses
                        : seed % 3 == 1 ? counters.computed_here > 0
                                        : counters.computed_here == 0);
            close_rig(&rig);
        }
        free(logits);
        close_model(&m);
    }
}

/* Beams: rows of keys and values, and running states, are copied on the device, two sequences stand in one
 * batch, and a sequence that goes back reads again what its states have passed. */
static void sequences_are_copied_on_the_device(void **state)
{
    (void)state;
    static const struct shape shape = {.n_pool = 4, .n_cache = 8, .max_tokens = 8, .n_prefetch = 1};
    static const char *const families[] = {"qwen2_moe", "deepseek_v3", "qwen3_next", "granitemoehybrid"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct model m;
        struct rig rig;
        struct moec_session *beside = NULL;
        open_model(&m, families[f], 4, true, 12);
        const size_t n_vocab = m.bundle->config.n_vocab;
        const uint32_t last = 0, *again = m.tokens + 7;
        float *logits = calloc(2 * n_vocab, sizeof *logits);
        MUST(open_rig(&rig, &m, 5, &shape, NULL, &err));
        MUST(moec_session_beside(rig.session, &beside, &err));
        MUST(moec_session_step(rig.session, m.tokens, 11, NULL, 0, NULL, &err));
        moec_session_copy(beside, rig.session);
        struct moec_session *const both[] = {rig.session, beside};
        const uint32_t next[] = {m.tokens[11], m.tokens[11]};
        MUST(moec_session_step_each(both, next, 2, logits, &err));
        assert_same_bits(logits, m.expected + 11 * n_vocab, n_vocab, "the first");
        assert_same_bits(logits + n_vocab, m.expected + 11 * n_vocab, n_vocab, "its copy");
        moec_session_truncate(rig.session, 7);
        MUST(moec_session_step(rig.session, again, 1, &last, 1, logits, &err));
        assert_same_bits(logits, m.expected + 7 * n_vocab, n_vocab, "gone back");
        moec_session_free(beside);
        close_rig(&rig);
        free(logits);
        close_model(&m);
    }
}

/* Each allocation in turn finds no room: a message says what for, and nothing is left over. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    static const struct shape shape = {.n_pool = 2, .n_cache = 2, .max_tokens = 4, .n_prefetch = 1};
    struct model m;
    enum moec_status status = MOEC_ERR_MEMORY;
    open_model(&m, "olmoe", 4, true, 4);
    for (uint32_t at = 1; status != MOEC_OK; at++) {
        struct rig rig;
        struct moec_error wrong = {0};
        const struct moec_host_gpu_faults faults = {.fail_alloc_at = at};
        status = open_rig(&rig, &m, at, &shape, &faults, &wrong);
        if (status != MOEC_OK) {
            assert_status(status, MOEC_ERR_MEMORY, wrong);
            assert_message(wrong, " of ");
        }
        close_rig(&rig);
        assert_true(at < 40);
    }
    close_model(&m);
}

/* A copy or a launch that is refused fails a step; the same session takes the step once more. A device that
 * is lost says so from then on. */
static void a_step_fails_and_the_session_goes_on(void **state)
{
    (void)state;
    static const struct shape shape = {.n_pool = 2, .n_cache = 3, .max_tokens = 4, .n_prefetch = 1};
    struct model m;
    uint32_t n_failed = 0;
    open_model(&m, "qwen2_moe", 4, true, 4);
    float *logits = make_logits(&m);
    for (uint32_t i = 1; i < 80; i += 6) {
        struct rig rig;
        struct moec_error wrong = {0};
        MUST(open_rig(&rig, &m, i, &shape, NULL, &err));
        const struct moec_host_gpu_faults faults = {.fail_copy_at = i % 4 == 1 ? i : 0,
                                                    .fail_launch_at = i % 4 == 3 ? i : 0};
        moec_host_gpu_set_faults(rig.gpu, &faults);
        const enum moec_status status = read_tokens(&m, rig.session, 4, logits, &wrong);
        if (status != MOEC_OK) {
            n_failed++;
            assert_status(status, MOEC_ERR_IO, wrong);
            assert_message(wrong, "refused");
            assert_int_equal(moec_session_length(rig.session), 0);
            MUST(read_tokens(&m, rig.session, 4, logits, &err));
        }
        assert_same_bits(logits, m.expected, (size_t)m.n_tok * m.bundle->config.n_vocab, "after a refusal");
        close_rig(&rig);
    }
    assert_true(n_failed >= 4);
    free(logits);
    close_model(&m);
}

static void a_lost_device_ends_the_session(void **state)
{
    (void)state;
    static const struct shape shape = {.n_pool = 2, .n_cache = 3, .max_tokens = 4, .n_prefetch = 1};
    struct model m;
    open_model(&m, "qwen2_moe", 4, true, 4);
    float *logits = make_logits(&m);
    for (uint32_t at = 1; at < 200; at += 23) {
        struct rig rig;
        struct moec_error wrong = {0};
        MUST(open_rig(&rig, &m, at, &shape, NULL, &err));
        moec_host_gpu_set_faults(rig.gpu, &(struct moec_host_gpu_faults){.lose_at = at});
        enum moec_status status = MOEC_OK;
        for (int i = 0; i < 20 && status == MOEC_OK; i++) {
            moec_session_truncate(rig.session, 0);
            status = read_tokens(&m, rig.session, 1, logits, &wrong);
        }
        assert_status(status, MOEC_ERR_IO, wrong);
        assert_message(wrong, "lost");
        assert_int_not_equal(read_tokens(&m, rig.session, 1, logits, &wrong), MOEC_OK);
        close_rig(&rig);
    }
    free(logits);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_cpu),
        cmocka_unit_test(norms_biases_and_routers_are_those_of_the_cpu),
        cmocka_unit_test(rows_in_two_matrices_are_those_of_the_cpu),
        cmocka_unit_test(latents_are_those_of_the_cpu),
        cmocka_unit_test(running_states_are_those_of_the_cpu),
        cmocka_unit_test(encoders_are_those_of_the_cpu),
        cmocka_unit_test(bf16_is_the_same_at_every_chunking),
        cmocka_unit_test(measuring_in_bf16_is_running_in_it),
        cmocka_unit_test(any_order_makes_the_same_bits),
        cmocka_unit_test(prefetches_change_nothing),
        cmocka_unit_test(the_processor_helps_with_the_same_bits),
        cmocka_unit_test(sequences_are_copied_on_the_device),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_step_fails_and_the_session_goes_on),
        cmocka_unit_test(a_lost_device_ends_the_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
