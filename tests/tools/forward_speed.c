/* Times the forward pass of a checkpoint beside what the processor can do, and gives the perplexity as a
 * check.
 *
 *     forward_speed CHECKPOINT TOKENS.u32 [--window N] [--batch N] [--bits N] [--cpu NAME] [--threads N]
 *                   [--decode N]
 *
 * TOKENS.u32 holds little-endian u32 ids. A pass cuts them into windows (256) without overlap, runs as many
 * windows together as fit into a batch (16384 tokens), head included, and scores tokens 2..n of each window.
 * Then one sequence is decoded token by token (--decode, 256). Shares of peak count the multiply-adds of all
 * products and of attention over visible positions; peak is a loop of independent fused multiply-adds on all
 * threads. */
#include "tests/unit/dense_load.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/checkpoint.h"
#include "profiler/evaluate/variants.h"
#include "runtime/forward/pass/session.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct settings {
    const char *checkpoint;
    const char *tokens;
    const char *cpu;
    uint32_t window;
    uint32_t batch;
    uint32_t bits;
    uint32_t threads;
    uint32_t decode;
};

struct bench {
    struct settings settings;
    struct moec_checkpoint *checkpoint;
    struct moec_variants *variants;
    struct moec_model *model;
    struct moec_forward forward;
    const uint32_t *tokens;
    char *token_bytes;
    uint32_t n_tok;
    float *hidden;
    float *keys;
    float *values;
    float *logits; /* (HEAD_TOKENS, n_vocab) */
    double nll;
    uint64_t n_scored;
    double seconds[4]; /* embed, attention, mlp, head: of all cores together */
};

#define HEAD_TOKENS 1024u

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

/* Of all threads, waiting in loops included: shares of peak by it hold on a machine that others use too. */
static double cpu_now(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

#if defined(__x86_64__)
#define PEAK_ROUNDS 10000000u
#define PEAK_CHAINS 10

#define PEAK_ITEM(name, instructions, bytes)                                                                 \
    __attribute__((target(instructions))) static void name(void *context, size_t item, int thread)           \
    {                                                                                                        \
        typedef float lanes __attribute__((vector_size(bytes)));                                             \
        (void)thread;                                                                                        \
        lanes a = {(float)item};                                                                             \
        lanes b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a;                                 \
        lanes x = a + 0.999f;                                                                                \
        lanes y = a + 0.001f;                                                                                \
        for (uint32_t round = 0; round < PEAK_ROUNDS; round++) {                                             \
            __asm__ volatile(                                                                                \
                "vfmadd132ps %10, %11, %0\n\tvfmadd132ps %10, %11, %1\n\tvfmadd132ps %10, %11, %2\n\t"       \
                "vfmadd132ps %10, %11, %3\n\tvfmadd132ps %10, %11, %4\n\tvfmadd132ps %10, %11, %5\n\t"       \
                "vfmadd132ps %10, %11, %6\n\tvfmadd132ps %10, %11, %7\n\tvfmadd132ps %10, %11, %8\n\t"       \
                "vfmadd132ps %10, %11, %9"                                                                   \
                : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g), "+x"(h), "+x"(i), "+x"(j)   \
                : "x"(x), "x"(y));                                                                           \
        }                                                                                                    \
        float *out = context;                                                                                \
        out[item] = a[0] + b[0] + c[0] + d[0] + e[0] + f[0] + g[0] + h[0] + i[0] + j[0];                     \
    }

PEAK_ITEM(peak_avx2, "avx2,fma", 32)
PEAK_ITEM(peak_avx512, "avx512f", 64)

/* Multiply-adds in a second of one core, with vectors as wide as those of the kernels. */
static double measure_peak(const struct moec_forward *forward)
{
    const struct moec_pool *pool = &forward->pool;
    const bool is_wide = strncmp(forward->kernels->name, "avx512", 6) == 0;
    float sink[256] = {0};
    double start = cpu_now();
    moec_parallel_for(pool, (size_t)pool->n_threads, is_wide ? peak_avx512 : peak_avx2, sink);
    return (is_wide ? 16.0 : 8.0) * PEAK_CHAINS * PEAK_ROUNDS * pool->n_threads / (cpu_now() - start);
}
#else
static double measure_peak(const struct moec_forward *forward)
{
    (void)forward;
    return 0;
}
#endif

static uint64_t multiply_adds_per_token(const struct moec_config *c)
{
    uint64_t total = (uint64_t)c->n_vocab * c->n_embd;
    for (uint32_t layer = 0; layer < c->n_layer; layer++) {
        const struct moec_layer_kind *kind = moec_config_layer(c, layer);
        uint64_t attention = 2ull * c->n_embd * (moec_layer_q_dim(kind) + moec_layer_kv_dim(kind));
        uint64_t neurons = kind->is_moe ? c->top_k * c->n_ff_expert + c->n_ff_shared : kind->n_ff_dense;
        total += attention + 3ull * neurons * c->n_embd;
        if (kind->is_moe)
            total += (uint64_t)c->n_expert * c->n_embd;
    }
    return total;
}

/* Of scores and values, over positions that are visible in one window. */
static uint64_t attention_per_window(const struct moec_config *c, uint32_t n)
{
    uint64_t total = 0;
    for (uint32_t layer = 0; layer < c->n_layer; layer++)
        total += 2ull * moec_layer_q_dim(moec_config_layer(c, layer)) * n * (n + 1) / 2;
    return total;
}

struct score {
    const struct bench *bench;
    const uint32_t *rows;
    uint32_t first;
    double *nll;
};

static void score_item(void *context, size_t item, int thread)
{
    (void)thread;
    const struct score *score = context;
    const struct moec_kernels *kernels = score->bench->forward.kernels;
    uint32_t n_vocab = score->bench->model->config.n_vocab;
    float *logits = score->bench->logits + item * n_vocab;
    float target = logits[score->rows[score->first + (uint32_t)item + 1]];
    float max = kernels->max(logits, n_vocab);
    score->nll[item] =
        moec_log_f64((double)kernels->exp_sum(logits, max, n_vocab, logits)) + (double)max - (double)target;
}

static enum moec_status run_head(struct bench *bench, uint32_t first_token, uint32_t n_tok,
                                 struct moec_error *err)
{
    static double nll[HEAD_TOKENS];
    size_t stride = moec_forward_stride(&bench->model->config);
    for (uint32_t row = 0; row < n_tok; row += HEAD_TOKENS) {
        uint32_t n = n_tok - row < HEAD_TOKENS ? n_tok - row : HEAD_TOKENS;
        double start = cpu_now();
        MOEC_TRY(moec_forward_head(&bench->forward, n, bench->hidden + row * stride, bench->logits,
                                   bench->model->config.n_vocab, err));
        bench->seconds[3] += cpu_now() - start;
        struct score score = {bench, bench->tokens + first_token, row, nll};
        bool last = first_token + row + n == bench->n_tok;
        moec_parallel_for(&bench->forward.pool, last ? n - 1 : n, score_item, &score);
        for (uint32_t t = 0; t < n; t++) {
            uint32_t at = first_token + row + t;
            if ((at + 1) % bench->settings.window == 0 || at + 1 == bench->n_tok)
                continue;
            bench->nll += nll[t];
            bench->n_scored++;
        }
    }
    return MOEC_OK;
}

static enum moec_status run_batch(struct bench *bench, uint32_t first, uint32_t n_tok,
                                  struct moec_span *spans, struct moec_error *err)
{
    const struct moec_config *config = &bench->model->config;
    size_t kv = moec_layer_kv_dim(moec_config_layer(config, 0));
    uint32_t n_spans = 0;
    for (uint32_t row = 0; row < n_tok; row += bench->settings.window) {
        uint32_t n = n_tok - row < bench->settings.window ? n_tok - row : bench->settings.window;
        spans[n_spans++] =
            (struct moec_span){.first_row = row,
                               .n_rows = n,
                               .keys = {.k_own = bench->keys + row * kv, .v_own = bench->values + row * kv}};
    }
    double t0 = cpu_now();
    MOEC_TRY(moec_forward_embed(&bench->forward, bench->tokens + first, n_tok, bench->hidden, err));
    bench->seconds[0] += cpu_now() - t0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        double t1 = cpu_now();
        MOEC_TRY(moec_forward_attention(&bench->forward, layer, (struct moec_batch){spans, n_spans, n_tok},
                                        bench->hidden, err));
        double t2 = cpu_now();
        MOEC_TRY(moec_forward_mlp(&bench->forward, layer,
                                  &(struct moec_mlp_batch){.n_tok = n_tok, .hidden = bench->hidden}, err));
        bench->seconds[1] += t2 - t1;
        bench->seconds[2] += cpu_now() - t2;
    }
    return run_head(bench, first, n_tok, err);
}

static enum moec_status run_pass(struct bench *bench, struct moec_error *err)
{
    const struct settings *settings = &bench->settings;
    const struct moec_config *config = &bench->model->config;
    uint32_t per_batch = settings->batch / settings->window * settings->window;
    void *spans = NULL;
    MOEC_TRY(moec_alloc(&spans, per_batch / settings->window, sizeof(struct moec_span), "spans", err));
    enum moec_status status = MOEC_OK;
    double peak = measure_peak(&bench->forward);
    for (uint32_t first = 0; first < bench->n_tok && status == MOEC_OK; first += per_batch) {
        uint32_t n = bench->n_tok - first < per_batch ? bench->n_tok - first : per_batch;
        double start = now();
        double cpu_start = cpu_now();
        status = run_batch(bench, first, n, spans, err);
        double seconds = now() - start;
        double cpu_seconds = cpu_now() - cpu_start;
        double work = (double)multiply_adds_per_token(config) * n +
                      (double)attention_per_window(config, settings->window) * n / settings->window;
        printf("%u tokens in %.3f s: %.0f tokens/s, %.1f G multiply-adds/s; %.0f %% of peak of %.3f core "
               "seconds at %.1f G/s\n",
               n, seconds, n / seconds, work / seconds * 1e-9, peak > 0 ? 100 * work / cpu_seconds / peak : 0,
               cpu_seconds, peak * 1e-9);
    }
    free(spans);
    printf("%s: embed %.3f, attention %.3f, mlp %.3f, head %.3f s; perplexity %.10f over %llu tokens\n",
           bench->forward.kernels->name, bench->seconds[0], bench->seconds[1], bench->seconds[2],
           bench->seconds[3], exp(bench->nll / (double)bench->n_scored), (unsigned long long)bench->n_scored);
    return status;
}

static enum moec_status run_decode(struct bench *bench, struct moec_error *err)
{
    struct moec_forward forward = {0};
    struct moec_session *session = NULL;
    uint32_t n = bench->settings.decode < bench->n_tok ? bench->settings.decode : bench->n_tok;
    uint32_t at = 0;
    enum moec_status status =
        moec_forward_init(&forward, bench->model, bench->forward.kernels, (int)bench->settings.threads,
                          moec_variants_experts(bench->variants), 1, err);
    if (status == MOEC_OK)
        status = moec_session_create(&forward, n, &session, err);
    double start = now();
    double cpu_start = cpu_now();
    for (uint32_t t = 0; t < n && status == MOEC_OK; t++)
        status = moec_session_step(session, bench->tokens + t, 1, &at, 1, bench->logits, err);
    double seconds = now() - start;
    printf("decoding %u tokens: %.0f tokens/s, %.3f ms of core time each, scratch %llu bytes\n", n,
           n / seconds, 1e3 * (cpu_now() - cpu_start) / n, (unsigned long long)forward.scratch_bytes);
    moec_session_free(session);
    moec_forward_release(&forward);
    return status;
}

static enum moec_status open_bench(struct bench *bench, struct moec_error *err)
{
    const struct settings *settings = &bench->settings;
    const struct moec_kernels *kernels = NULL;
    struct moec_dense dense = {0};
    size_t n_bytes = 0;
    MOEC_TRY(moec_kernels_find(settings->cpu, &kernels, err));
    MOEC_TRY(moec_file_load(settings->tokens, 1u << 30, &bench->token_bytes, &n_bytes, err));
    bench->tokens = (const uint32_t *)(const void *)bench->token_bytes;
    bench->n_tok = (uint32_t)(n_bytes / sizeof(uint32_t));
    MOEC_TRY(moec_checkpoint_open(settings->checkpoint, &bench->checkpoint, err));
    const struct moec_config *config = moec_checkpoint_config(bench->checkpoint);
    MOEC_TRY(dense_load(bench->checkpoint, 16, 0, &dense, err));
    MOEC_TRY(moec_model_create(config, &dense, &bench->model, err));
    MOEC_TRY(moec_variants_create(
        bench->checkpoint,
        &(struct moec_variants_options){MOEC_SCHEME_SYMMETRIC, 0, 0, (int)settings->threads},
        &bench->variants, err));
    if (settings->bits != 0)
        MOEC_TRY(moec_variants_assign_all(bench->variants, settings->bits, err));
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        if (moec_config_is_moe(config, layer))
            MOEC_TRY(moec_variants_prepare(bench->variants, layer, 0, err));
    }
    MOEC_TRY(moec_forward_init(&bench->forward, bench->model, kernels, (int)settings->threads,
                               moec_variants_experts(bench->variants), settings->batch, err));
    uint64_t kv = (uint64_t)settings->batch * moec_layer_kv_dim(moec_config_layer(config, 0));
    void *memory = NULL;
    MOEC_TRY(moec_alloc_aligned(&memory, (uint64_t)settings->batch * moec_forward_stride(config), 4, "hidden",
                                err));
    bench->hidden = memory;
    MOEC_TRY(moec_alloc_aligned(&memory, kv, 4, "keys", err));
    bench->keys = memory;
    MOEC_TRY(moec_alloc_aligned(&memory, kv, 4, "values", err));
    bench->values = memory;
    MOEC_TRY(moec_alloc_aligned(&memory, (uint64_t)HEAD_TOKENS * config->n_vocab, 4, "logits", err));
    bench->logits = memory;
    return MOEC_OK;
}

static bool parse(int argc, char **argv, struct settings *settings)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        uint32_t *number = strcmp(argv[i], "--window") == 0    ? &settings->window
                           : strcmp(argv[i], "--batch") == 0   ? &settings->batch
                           : strcmp(argv[i], "--bits") == 0    ? &settings->bits
                           : strcmp(argv[i], "--threads") == 0 ? &settings->threads
                           : strcmp(argv[i], "--decode") == 0  ? &settings->decode
                                                               : NULL;
        if (number != NULL && value != NULL) {
            *number = (uint32_t)strtoul(value, NULL, 10);
            i++;
        } else if (strcmp(argv[i], "--cpu") == 0 && value != NULL) {
            settings->cpu = value;
            i++;
        } else if (settings->checkpoint == NULL) {
            settings->checkpoint = argv[i];
        } else if (settings->tokens == NULL) {
            settings->tokens = argv[i];
        } else {
            return false;
        }
    }
    return settings->tokens != NULL && settings->window > 0 && settings->batch >= settings->window;
}

int main(int argc, char **argv)
{
    struct bench bench = {.settings = {.cpu = "auto", .window = 256, .batch = 16384, .decode = 256}};
    struct moec_error err = {0};
    if (!parse(argc, argv, &bench.settings)) {
        fprintf(stderr,
                "usage: forward_speed CHECKPOINT TOKENS.u32 [--window N] [--batch N] [--bits N] [--cpu NAME] "
                "[--threads N] [--decode N]\n");
        return 2;
    }
    enum moec_status status = open_bench(&bench, &err);
    if (status == MOEC_OK)
        status = run_pass(&bench, &err);
    if (status == MOEC_OK && bench.settings.decode > 0)
        status = run_decode(&bench, &err);
    if (status != MOEC_OK)
        fprintf(stderr, "forward_speed: %s\n", err.message);
    free(bench.logits);
    free(bench.values);
    free(bench.keys);
    free(bench.hidden);
    moec_forward_release(&bench.forward);
    moec_variants_free(bench.variants);
    moec_model_free(bench.model);
    moec_checkpoint_close(bench.checkpoint);
    free(bench.token_bytes);
    return status == MOEC_OK ? 0 : 1;
}
