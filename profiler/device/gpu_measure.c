/* Tokens are timed at the first positions and at the last. Two medians give a line, whose slope is the cost
 * of a position and whose start is the token's time. The engine is opened after the other measurements have
 * closed the device, so that it has all of the memory. */
#include "profiler/device/gpu_measure.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "profiler/common/machine.h"
#include "profiler/common/quantiles.h"
#include "profiler/common/random.h"
#include "profiler/device/gpu_speed.h"
#include "runtime/engine/moert_internal.h"

#include <stdio.h>
#include <string.h>

#define LIMIT_NS      50000000u
#define LARGEST_BYTES ((uint64_t)64 << 20)
#define LEAST_BYTES   ((uint64_t)4 << 10)
#define CACHE_BYTES   ((uint64_t)256 << 20)
#define GATHER_BYTES  ((uint64_t)8 << 20)
#define POSITIONS     256u
#define TOKENS        32u /* measured at the beginning and at the end of the positions */

struct job {
    const struct moec_bundle *bundle;
    const struct moec_gpu_measure_options *options;
    struct moec_gpu_description *gpu;
    struct moec_gpu_speed speed;
    uint64_t largest_bytes;
};

static enum moec_status measure_copies(struct job *job, struct moec_error *err)
{
    for (int way = 0; way < 4; way++)
        for (uint64_t n = LEAST_BYTES; n <= job->largest_bytes; n *= 4) {
            struct moec_gpu_copy_time *copy = &job->gpu->copies[job->gpu->n_copies];
            *copy =
                (struct moec_gpu_copy_time){.is_to_device = way % 2 == 0, .is_pinned = way < 2, .n_bytes = n};
            MOEC_TRY(moec_progress_report(job->options->progress, "copies", way, 4, err));
            MOEC_TRY(moec_gpu_speed_copy(&job->speed,
                                         copy->is_to_device ? MOEC_GPU_TO_DEVICE : MOEC_GPU_TO_HOST,
                                         copy->is_pinned, n, &copy->ns, err));
            if (++job->gpu->n_copies == MOEC_GPU_MAX_COPIES)
                return MOEC_OK;
        }
    return MOEC_OK;
}

/* A matrix as gate and up have it, in the codecs that bundles are most made of. */
static enum moec_status measure_products(struct job *job, struct moec_error *err)
{
    static const struct moec_codec codecs[] = {
        {.dtype = MOEC_DTYPE_BF16},
        {.dtype = MOEC_DTYPE_F16},
        {.dtype = MOEC_DTYPE_INT8},
        {.dtype = MOEC_DTYPE_INT6, .group = 64},
        {.dtype = MOEC_DTYPE_INT5, .group = 64},
        {.dtype = MOEC_DTYPE_INT4, .group = 64},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 64},
        {.dtype = MOEC_DTYPE_INT3, .group = 64},
        {.dtype = MOEC_DTYPE_INT2, .group = 64},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_ASYMMETRIC, .group = 32},
        {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT},
        {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT},
        {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_SHIFT}};
    const uint32_t n = sizeof codecs / sizeof *codecs;
    const struct moec_config *config = &job->bundle->config;
    for (uint32_t i = 0; i < n; i++) {
        struct moec_gpu_product_time *product = &job->gpu->products[i];
        *product = (struct moec_gpu_product_time){
            .bits = moec_codec_bits(codecs[i]), .rows = config->n_ff_expert, .columns = config->n_embd};
        (void)moec_codec_name(codecs[i], product->codec);
        MOEC_TRY(moec_progress_report(job->options->progress, "products", i, n, err));
        const struct moec_matrix shape = {
            .codec = codecs[i], .rows = product->rows, .columns = product->columns};
        MOEC_TRY(moec_gpu_speed_product(&job->speed, &shape, 1, &product->n_bytes, &product->ns, err));
        job->gpu->n_products = i + 1;
    }
    return MOEC_OK;
}

static enum moec_status measure_gathers(struct job *job, struct moec_error *err)
{
    const struct moec_pool pool = moec_pool_make(job->options->n_threads);
    const uint64_t n_bytes = job->largest_bytes < GATHER_BYTES ? job->largest_bytes : GATHER_BYTES;
    for (uint64_t piece = 256; piece <= 16384; piece *= 4) {
        struct moec_gpu_gather_time *gather = &job->gpu->gathers[job->gpu->n_gathers];
        *gather = (struct moec_gpu_gather_time){.piece_bytes = piece, .n_bytes = n_bytes};
        MOEC_TRY(moec_progress_report(job->options->progress, "gathering", job->gpu->n_gathers, 4, err));
        MOEC_TRY(moec_gpu_speed_gather(&job->speed, &pool, piece, n_bytes, &gather->ns, err));
        job->gpu->n_gathers++;
    }
    return MOEC_OK;
}

/* The first record of a bitwidth stands for all. */
static enum moec_status measure_expert(struct job *job, uint32_t index, struct moec_error *err)
{
    const struct moec_bundle *bundle = job->bundle;
    const uint32_t n_expert = bundle->config.n_expert, n_layer = moec_config_moe_count(&bundle->config);
    const uint32_t copy = index / n_expert / n_layer, ordinal = index / n_expert % n_layer,
                   expert = index % n_expert;
    const uint64_t n_bytes = bundle->records[index].n_bytes;
    struct moec_gpu_expert_time *time = &job->gpu->experts[job->gpu->n_experts];
    struct moec_mlp mlp = {0};
    void *record = NULL;
    *time = (struct moec_gpu_expert_time){.bits = bundle->records[index].bits};
    MOEC_TRY(moec_alloc_aligned(&record, n_bytes, 1, "an expert record", err));
    enum moec_status status =
        moec_bundle_read_record(bundle, (struct moec_record_id){copy, ordinal, expert}, record, err);
    if (status == MOEC_OK) {
        moec_record_bind(moec_bundle_layout(bundle, copy, ordinal, expert), record, &mlp);
        const struct moec_gpu_speed_batch batch = {&mlp, record, n_bytes, 1, 1, 1};
        status = moec_gpu_speed_experts(&job->speed, &batch, &time->compute_ns, err);
    }
    free(record);
    return status;
}

static enum moec_status measure_experts(struct job *job, struct moec_error *err)
{
    const struct moec_bundle *bundle = job->bundle;
    const uint32_t n_all =
        (uint32_t)bundle->n_copy * moec_config_moe_count(&bundle->config) * bundle->config.n_expert;
    for (uint32_t bits = 1; bits <= 32 && job->gpu->n_experts < MOEC_GPU_MAX_EXPERTS; bits++) {
        uint64_t sum_bytes = 0, n = 0;
        uint32_t first = 0;
        for (uint32_t i = n_all; i-- > 0;)
            if (bundle->records[i].bits == bits) {
                first = i;
                sum_bytes += bundle->records[i].n_bytes;
                n++;
            }
        MOEC_TRY(moec_progress_report(job->options->progress, "GPU experts", bits, 32, err));
        if (n == 0)
            continue;
        MOEC_TRY(measure_expert(job, first, err));
        job->gpu->experts[job->gpu->n_experts++].record_bytes = sum_bytes / n;
    }
    return MOEC_OK;
}

/* ---- whole tokens ---- */

static enum moec_status as_moec(enum moert_status status, const struct moert_error *wrong,
                                struct moec_error *err)
{
    return status == MOERT_OK                ? MOEC_OK
           : status == MOERT_ERR_UNSUPPORTED ? moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s", wrong->message)
           : status == MOERT_ERR_MEMORY      ? moec_fail(err, MOEC_ERR_MEMORY, "%s", wrong->message)
                                             : moec_fail(err, MOEC_ERR_IO, "%s", wrong->message);
}

/* Decodes tokens (TOKENS) from this position on, each of them twice, and notes how long the second time
 * took. */
static enum moert_status time_tokens(struct moert_session *session, uint32_t position, const uint32_t *tokens,
                                     float *times, float *logits, struct moert_error *wrong)
{
    enum moert_status status = MOERT_OK;
    for (uint32_t i = 0; status == MOERT_OK && i < TOKENS; i++) {
        for (int pass = 0; status == MOERT_OK && pass < 2; pass++) {
            moert_session_truncate(session, position + i);
            const uint64_t begun = moec_now_ns();
            status = moert_session_step(session, &tokens[i], 1, logits, wrong);
            times[i] = (float)(moec_now_ns() - begun);
        }
    }
    return status;
}

static enum moec_status measure_session(struct job *job, struct moert_engine *engine,
                                        struct moert_session *session, uint32_t n_positions, float *logits,
                                        struct moec_error *err)
{
    static const double middle[] = {0.5};
    const uint32_t n_vocab = moert_engine_info(engine).model.n_vocab;
    struct moec_random random = {1};
    struct moert_error wrong = {0};
    float times[TOKENS], scratch[TOKENS];
    uint32_t tokens[POSITIONS];
    double level[2] = {0, 0};
    const uint32_t far = n_positions - TOKENS;
    for (int end = 0; end < 2; end++) {
        MOEC_TRY(moec_progress_report(job->options->progress, "GPU tokens", end, 2, err));
        if (end == 1) {
            for (uint32_t i = 0; i < far; i++)
                tokens[i] = (uint32_t)moec_random_below(&random, n_vocab);
            moert_session_truncate(session, 0);
            MOEC_TRY(as_moec(moert_session_step(session, tokens, far, NULL, &wrong), &wrong, err));
        }
        for (uint32_t i = 0; i < TOKENS; i++)
            tokens[i] = (uint32_t)moec_random_below(&random, n_vocab);
        MOEC_TRY(
            as_moec(time_tokens(session, end == 0 ? 0 : far, tokens, times, logits, &wrong), &wrong, err));
        moec_quantiles(times, scratch, TOKENS, middle, 1, &level[end]);
    }
    const double slope = (level[1] - level[0]) / far;
    job->gpu->ns_per_position = slope > 0 ? slope : 0;
    const double first = level[0] - job->gpu->ns_per_position * (TOKENS / 2.0);
    job->gpu->token_ns = first > 0 ? (uint64_t)first : 0;
    return MOEC_OK;
}

static enum moec_status measure_tokens(struct job *job, struct moec_error *err)
{
    const uint32_t most = job->bundle->config.n_position, n_positions = most < POSITIONS ? most : POSITIONS;
    const uint64_t half_bytes = moec_machine_memory_bytes() / 2;
    struct moert_engine *engine = NULL;
    struct moert_session *session = NULL;
    struct moert_error wrong = {0};
    struct moert_options options = moert_options_default();
    const struct moec_record_io io = {0};
    char device[24];
    float *logits = NULL;
    enum moec_status status = MOEC_OK;
    if (n_positions < 2 * TOKENS)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the bundle '%s' supports contexts of %u tokens, but measuring a GPU needs at least %u",
            job->bundle->file.path, n_positions, 2 * TOKENS);
    (void)snprintf(device, sizeof device, "cuda:%u", job->options->number);
    options.device.name = device;
    options.sessions.n_context = n_positions;
    options.n_threads = job->options->n_threads;
    options.buffer.size_bytes = half_bytes;
    MOEC_TRY_OUT(as_moec(
        moert_engine_open_on(job->bundle->file.path, &options, &io, job->options->entry, &engine, &wrong),
        &wrong, err));
    MOEC_TRY_OUT(
        moec_alloc((void **)&logits, moert_engine_info(engine).model.n_vocab, sizeof *logits, "logits", err));
    MOEC_TRY_OUT(as_moec(moert_session_create(engine, &session, &wrong), &wrong, err));
    status = measure_session(job, engine, session, n_positions, logits, err);
out:
    free(logits);
    moert_session_free(session);
    moert_engine_close(engine);
    return status;
}

/* ---- all ---- */

static enum moec_status measure_parts(struct job *job, struct moec_error *err)
{
    struct moec_gpu_info info;
    struct moec_gpu *gpu = job->speed.gpu;
    MOEC_TRY(gpu->ops->info(gpu, &info, err));
    (void)snprintf(job->gpu->name, sizeof job->gpu->name, "%s", info.name);
    job->gpu->memory_bytes = info.total_bytes;
    MOEC_TRY(gpu->ops->stream_create(gpu, &job->speed.stream, err));
    MOEC_TRY(measure_copies(job, err));
    MOEC_TRY(moec_gpu_speed_launch(&job->speed, &job->gpu->launch_ns, &job->gpu->answer_ns, err));
    MOEC_TRY(measure_products(job, err));
    MOEC_TRY(measure_gathers(job, err));
    return measure_experts(job, err);
}

static uint64_t or_else(uint64_t value, uint64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

enum moec_status moec_gpu_measure(const struct moec_bundle *bundle,
                                  const struct moec_gpu_measure_options *options,
                                  struct moec_gpu_description *gpu, struct moec_error *err)
{
    struct job job = {.bundle = bundle,
                      .options = options,
                      .gpu = gpu,
                      .speed = {.kernels = options->entry->kernels,
                                .limit_ns = or_else(options->limit_ns, LIMIT_NS),
                                .cache_bytes = or_else(options->cache_bytes, CACHE_BYTES)},
                      .largest_bytes = or_else(options->largest_bytes, LARGEST_BYTES)};
    *gpu = (struct moec_gpu_description){0};
    MOEC_TRY(options->entry->open(options->number, &job.speed.gpu, err));
    enum moec_status status = measure_parts(&job, err);
    job.speed.gpu->ops->stream_free(job.speed.gpu, job.speed.stream);
    job.speed.gpu->ops->close(job.speed.gpu);
    if (status == MOEC_OK)
        status = measure_tokens(&job, err);
    return status;
}
